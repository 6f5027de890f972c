/* The cluster in memory of the tests of transfers and collectives. */
#include "dataflow/transfer_testing_impl.h"

/* -- Events ---------------------------------------------------------------- */

static fixture_event_t *add_event(fixture_worker_t *worker,
                                  void (*run)(fixture_event_t *event),
                                  void *object, size_t size)
{
    fixture_event_t *event = test_calloc(1, sizeof(*event) + size);
    event->run = run;
    event->worker = worker;
    event->object = object;
    event->size = size;
    tow_list_append(&worker->fixture->events, &event->list);
    return event;
}

static bool is_first_of_channel(const transfer_fixture_t *fixture,
                                const fixture_event_t *event)
{
    const tow_list_t *head = &fixture->events;
    if (event->channel == 0) return true;
    for (const tow_list_t *at = head->next; at != &event->list; at = at->next)
        if (TOW_CONTAINER_OF(at, fixture_event_t, list)->channel ==
            event->channel)
            return false;
    return true;
}

static fixture_event_t *pick_event(transfer_fixture_t *fixture)
{
    const tow_list_t *head = &fixture->events;
    size_t count = 0, chosen;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        count++;
    chosen = fixture->is_random ? tow_random_below(&fixture->random, count) : 0;
    tow_list_t *at = head->next;
    while (chosen-- > 0)
        at = at->next;
    while (!is_first_of_channel(fixture,
                                TOW_CONTAINER_OF(at, fixture_event_t, list)))
        at = at->previous;
    return TOW_CONTAINER_OF(at, fixture_event_t, list);
}

bool transfer_fixture_step(transfer_fixture_t *fixture)
{
    if (tow_list_is_empty(&fixture->events)) return false;
    fixture_event_t *event = pick_event(fixture);
    fixture_worker_t *worker = event->worker;
    tow_list_remove(&event->list);
    event->run(event);
    must(tow_transfer_engine_check(worker->engine));
    test_free(event);
    return true;
}

size_t transfer_fixture_run(transfer_fixture_t *fixture)
{
    size_t count = 0;
    while (transfer_fixture_step(fixture))
        assert_true(++count < 1000000);
    return count;
}

/* -- The env --------------------------------------------------------------- */

static fixture_worker_t *worker_of(tow_env_t *env)
{
    return TOW_CONTAINER_OF(env, fixture_worker_t, env);
}

static void run_post(fixture_event_t *event)
{
    tow_post_t *post = event->object;
    post->run(post);
}

static void env_post(tow_env_t *env, tow_post_t *post)
{
    fixture_worker_t *worker = worker_of(env);
    add_event(worker, run_post, post, 0)->channel = 1000 + worker->process;
}

static void env_lane_address(tow_env_t *env, const void **out_bytes,
                             size_t *out_size)
{
    fixture_worker_t *worker = worker_of(env);
    *out_bytes = worker->address;
    *out_size = sizeof(worker->address);
}

static tow_status_t env_lane_open(tow_env_t *env,
                                  const tow_lane_options_t *options,
                                  tow_lane_t **out_lane)
{
    (void)env, (void)options, (void)out_lane;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static tow_status_t env_region_open(tow_env_t *env,
                                    const tow_region_options_t *options,
                                    tow_region_t **out_region)
{
    fixture_worker_t *worker = worker_of(env);
    fixture_region_t *region = tow_calloc(1, sizeof(*region));
    if (region == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    region->base.env = env;
    region->base.key = (tow_region_key_t){++worker->next_region, 99};
    region->options = *options;
    tow_list_append(&worker->regions, &region->list);
    worker->region_count++;
    *out_region = &region->base;
    return TOW_OK;
}

static void run_region_closed(fixture_event_t *event)
{
    fixture_region_t *region = event->object;
    const tow_closed_t closed = region->closed;
    tow_list_remove(&region->list);
    tow_free(region);
    event->worker->region_count--;
    closed.run(closed.context);
}

static void env_region_close(tow_region_t *base, tow_closed_t closed)
{
    fixture_region_t *region = (fixture_region_t *)base;
    assert_false(region->is_closing);
    region->is_closing = true;
    region->closed = closed;
    add_event(worker_of(base->env), run_region_closed, region, 0);
}

/* A write whose bytes the receiver uses in place. The receiver's view stays
 * valid even if the writer crashes. */
typedef struct fixture_share {
    tow_list_t list;
    fixture_worker_t *writer;
    tow_transfer_write_t *write; /* NULL: its completion was reported */
    uint8_t *bytes;              /* aligned, in `room` */
    uint8_t room[];
} fixture_share_t;

static void run_written(fixture_event_t *event)
{
    tow_transfer_write_t *write = event->object;
    tow_status_t status = event->status;
    event->status = TOW_OK;
    write->write.is_stranded = status != TOW_OK;
    write->done(write, status);
}

static fixture_event_t *share_written(fixture_share_t *share)
{
    fixture_event_t *event =
        add_event(share->writer, run_written, share->write, 0);
    event->channel = 2000 + share->writer->process;
    share->write = NULL;
    return event;
}

static void free_share(fixture_share_t *share)
{
    tow_list_remove(&share->list);
    test_free(share);
}

/* The bytes must not change during the share. */
static void env_share_end(tow_env_t *env, tow_share_t *base)
{
    fixture_share_t *share = (fixture_share_t *)base;
    (void)env;
    if (share->write != NULL) {
        const tow_write_t *write = &share->write->write;
        assert_memory_equal(share->bytes, write->bytes, write->size);
        share_written(share);
    }
    free_share(share);
}

static void run_work_done(fixture_event_t *event)
{
    tow_work_t *work = event->object;
    work->done(work, TOW_OK);
}

/* A helper thread does the work; its completion is a later event. */
static void run_work(fixture_event_t *event)
{
    tow_work_t *work = event->object;
    tow_status_t status = work->run(work);
    assert_true(status == TOW_OK);
    add_event(event->worker, run_work_done, work, 0);
}

static void env_work_start(tow_env_t *env, tow_work_t *work)
{
    add_event(worker_of(env), run_work, work, 0);
}

static const tow_env_ops_t env_ops = {
    .name = "fixture",
    .share_release = env_share_end,
    .post = env_post,
    .work_start = env_work_start,
    .lane_address = env_lane_address,
    .lane_open = env_lane_open,
    .region_open = env_region_open,
    .region_close = env_region_close,
};

fixture_region_t *transfer_fixture_find_region(fixture_worker_t *worker,
                                               uint64_t id)
{
    const tow_list_t *head = &worker->regions;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        fixture_region_t *region = TOW_CONTAINER_OF(at, fixture_region_t, list);
        if (region->base.key.id == id && !region->is_closing) return region;
    }
    return NULL;
}

/* -- Devices --------------------------------------------------------------- */

static fixture_worker_t *worker_of_driver(const tow_driver_t *driver)
{
    return TOW_CONTAINER_OF(driver, fixture_worker_t, driver);
}

fixture_buffer_t *transfer_fixture_buffer(fixture_worker_t *worker,
                                          size_t device,
                                          const tow_shape_t *shape)
{
    fixture_buffer_t *buffer = tow_calloc(1, sizeof(*buffer));
    if (buffer == NULL) return NULL;
    buffer->base.driver = &worker->driver;
    buffer->base.device = device;
    buffer->base.shape = *shape;
    must(tow_shape_bytes(shape, &buffer->base.bytes));
    buffer->reference_count = 1;
    buffer->state = TOW_BUFFER_PENDING;
    worker->buffer_count++;
    tow_list_append(&worker->buffers, &buffer->list);
    return buffer;
}

static tow_buffer_state_t driver_buffer_state(tow_buffer_t *buffer)
{
    return ((fixture_buffer_t *)buffer)->state;
}

static void driver_buffer_retain(tow_buffer_t *buffer)
{
    ((fixture_buffer_t *)buffer)->reference_count++;
}

static void run_upload_done(fixture_event_t *event)
{
    tow_upload_t *upload = event->object;
    tow_status_t status = event->status;
    event->status = TOW_OK;
    upload->done(upload, status);
}

static void driver_buffer_release(tow_buffer_t *base)
{
    fixture_buffer_t *buffer = (fixture_buffer_t *)base;
    fixture_worker_t *worker = worker_of_driver(base->driver);
    assert_true(buffer->reference_count > 0);
    if (--buffer->reference_count > 0) return;
    assert_int_equal(buffer->share_count + buffer->copy_count, 0);
    if (buffer->upload != NULL)
        add_event(worker, run_upload_done, buffer->upload, 0);
    else
        tow_free(buffer->bytes);
    tow_status_release(buffer->error);
    tow_list_remove(&buffer->list);
    tow_free(buffer);
    worker->buffer_count--;
}

static void run_buffer_shared(fixture_event_t *event)
{
    tow_buffer_share_t *share = event->object;
    tow_status_t status = event->status;
    event->status = TOW_OK;
    if (status == TOW_OK) event->worker->share_count++;
    share->done(share, status);
}

static void finish_buffer_share(fixture_worker_t *worker,
                                tow_buffer_share_t *share)
{
    fixture_buffer_t *buffer = (fixture_buffer_t *)share->buffer;
    fixture_event_t *event = add_event(worker, run_buffer_shared, share, 0);
    share->bytes = buffer->bytes;
    if (buffer->state == TOW_BUFFER_FAILED)
        event->status = tow_status_retain(buffer->error);
}

static tow_status_t driver_share(tow_driver_t *driver,
                                 tow_buffer_share_t *share)
{
    fixture_buffer_t *buffer = (fixture_buffer_t *)share->buffer;
    share->private_[0] = NULL;
    if (buffer->state != TOW_BUFFER_PENDING) {
        finish_buffer_share(worker_of_driver(driver), share);
        return TOW_OK;
    }
    assert_true(buffer->share_count < 32);
    buffer->pending_shares[buffer->share_count++] = share;
    return TOW_OK;
}

/* Takes the caller's reference until the share ends. */
static bool driver_share_export(tow_driver_t *driver, tow_buffer_share_t *share)
{
    if (!worker_of_driver(driver)->fixture->exports_shares) return false;
    assert_null(share->private_[0]);
    share->private_[0] = share->buffer;
    return true;
}

static void driver_share_end(tow_driver_t *driver, tow_buffer_share_t *share)
{
    fixture_worker_t *worker = worker_of_driver(driver);
    worker->share_count--;
    if (share->private_[0] != NULL) tow_buffer_release(share->buffer);
}

static void notify_waiters(fixture_buffer_t *buffer);

static void run_copied(fixture_event_t *event)
{
    tow_copy_t *copy = event->object;
    fixture_buffer_t *source = copy->private_[0];
    fixture_buffer_t *target = copy->private_[1];
    tow_status_t status = TOW_OK;
    target->state = source->state;
    if (source->state == TOW_BUFFER_FAILED) {
        target->error = tow_status_retain(source->error);
        status = tow_status_retain(source->error);
    } else {
        target->bytes = tow_malloc(target->base.bytes + 1);
        memcpy(target->bytes, source->bytes, target->base.bytes);
    }
    notify_waiters(target);
    tow_buffer_release(&source->base);
    tow_buffer_release(&target->base);
    copy->done(copy, status);
}

static tow_status_t driver_copy(tow_driver_t *driver, tow_copy_t *copy)
{
    fixture_worker_t *worker = worker_of_driver(driver);
    fixture_buffer_t *source = (fixture_buffer_t *)copy->source;
    fixture_buffer_t *target =
        transfer_fixture_buffer(worker, copy->device, &source->base.shape);
    if (target == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_buffer_retain(&source->base);
    tow_buffer_retain(&target->base);
    copy->private_[0] = source;
    copy->private_[1] = target;
    copy->buffer = &target->base;
    if (source->state != TOW_BUFFER_PENDING)
        add_event(worker, run_copied, copy, 0);
    else
        source->copies[source->copy_count++] = copy;
    return TOW_OK;
}

/* Completes operations that wait for the buffer. */
static void notify_waiters(fixture_buffer_t *buffer)
{
    fixture_worker_t *worker = worker_of_driver(buffer->base.driver);
    for (size_t i = 0; i < buffer->share_count; i++)
        finish_buffer_share(worker, buffer->pending_shares[i]);
    for (size_t i = 0; i < buffer->copy_count; i++)
        add_event(worker, run_copied, buffer->copies[i], 0);
    buffer->share_count = buffer->copy_count = 0;
}

static tow_status_t driver_upload(tow_driver_t *driver, tow_upload_t *upload)
{
    assert_true(upload->is_deferred && upload->may_alias);
    assert_int_equal((uintptr_t)upload->bytes % 64, 0);
    fixture_buffer_t *buffer = transfer_fixture_buffer(
        worker_of_driver(driver), upload->device, &upload->shape);
    if (buffer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    /* The caller's reference, and the driver's until the upload is settled. */
    tow_buffer_retain(&buffer->base);
    upload->buffer = &buffer->base;
    upload->private_[0] = buffer;
    return TOW_OK;
}

static void driver_upload_settle(tow_driver_t *driver, tow_upload_t *upload,
                                 tow_status_t take_status)
{
    fixture_worker_t *worker = worker_of_driver(driver);
    fixture_buffer_t *buffer = upload->private_[0];
    assert_int_equal(buffer->state, TOW_BUFFER_PENDING);
    if (take_status != TOW_OK) {
        buffer->state = TOW_BUFFER_FAILED;
        buffer->error = take_status;
    } else {
        buffer->state = TOW_BUFFER_READY;
        if (worker->fixture->copies_uploads) {
            buffer->bytes = tow_malloc(buffer->base.bytes + 1);
            memcpy(buffer->bytes, upload->bytes, buffer->base.bytes);
        } else {
            buffer->bytes = (uint8_t *)upload->bytes;
            buffer->upload = upload;
        }
    }
    if (buffer->upload == NULL)
        add_event(worker, run_upload_done, upload, 0)->status =
            tow_status_retain(take_status);
    notify_waiters(buffer);
    tow_buffer_release(&buffer->base);
}

const tow_driver_ops_t transfer_fixture_driver_ops = {
    .upload = driver_upload,
    .upload_settle = driver_upload_settle,
    .share = driver_share,
    .share_end = driver_share_end,
    .share_export = driver_share_export,
    .copy = driver_copy,
    .buffer_state = driver_buffer_state,
    .buffer_retain = driver_buffer_retain,
    .buffer_release = driver_buffer_release,
};

void fixture_buffer_finish(tow_buffer_t *base, const void *bytes)
{
    fixture_buffer_t *buffer = (fixture_buffer_t *)base;
    assert_int_equal(buffer->state, TOW_BUFFER_PENDING);
    buffer->state = TOW_BUFFER_READY;
    buffer->bytes = tow_malloc(base->bytes + 1);
    memcpy(buffer->bytes, bytes, base->bytes);
    notify_waiters(buffer);
}

void fixture_buffer_fail(tow_buffer_t *base, tow_status_t take_error)
{
    fixture_buffer_t *buffer = (fixture_buffer_t *)base;
    assert_int_equal(buffer->state, TOW_BUFFER_PENDING);
    buffer->state = TOW_BUFFER_FAILED;
    buffer->error = take_error;
    notify_waiters(buffer);
}

/* -- Between workers ------------------------------------------------------- */

static void run_message(fixture_event_t *event)
{
    const tow_body_t *body;
    fixture_worker_t *worker = event->worker;
    if (worker->is_crashed) return;
    tow_arena_reset(&worker->fixture->arena);
    must(tow_message_decode(event->type, event->bytes, event->size,
                            &worker->fixture->arena, &body));
    tow_status_t status =
        event->type == TOW_MESSAGE_EDGE_PIECE
            ? tow_transfer_engine_on_piece(worker->engine, event->from,
                                           (const tow_msg_edge_piece_t *)body)
        : event->type == TOW_MESSAGE_EDGE_SIZE
            ? tow_transfer_engine_on_size(worker->engine, event->from,
                                          (const tow_msg_edge_size_t *)body)
            : tow_transfer_engine_on_offer(worker->engine, event->from,
                                           (const tow_msg_edge_offer_t *)body);
    if (status == TOW_OK) return;
    worker->last_error = tow_status_code(status);
    tow_transfer_engine_on_peer_disconnect(worker->engine, event->from, status);
    tow_status_release(status);
}

static void run_ready(fixture_event_t *event)
{
    tow_transfer_engine_on_peer_ready(event->worker->engine, event->from);
}

/* Every third message finds no connection, which is then established. */
static tow_transfer_sent_t send_message(void *context, uint32_t process,
                                        uint32_t type, const tow_body_t *body)
{
    fixture_worker_t *from = context;
    transfer_fixture_t *fixture = from->fixture;
    assert_true(process < fixture->worker_count && process != from->process);
    fixture_event_t *event = add_event(&fixture->workers[process], run_message,
                                       NULL, tow_message_size(body));
    tow_message_encode(body, event->bytes);
    event->type = type;
    event->from = from->process;
    event->channel = 1 + from->process * WORKERS_MAX + process;
    if (++fixture->message_count % 3 != 0) return TOW_TRANSFER_SENT;
    add_event(from, run_ready, NULL, 0)->from = process;
    return TOW_TRANSFER_WAITS;
}

static void run_shared(fixture_event_t *event)
{
    tow_transfer_write_t *write = event->object;
    write->shared(write);
}

static fixture_share_t *make_share(fixture_worker_t *writer,
                                   tow_transfer_write_t *write)
{
    fixture_share_t *share =
        test_calloc(1, sizeof(*share) + write->write.size + 64);
    share->writer = writer;
    share->write = write;
    share->bytes = share->room + (64 - (uintptr_t)share->room % 64);
    memcpy(share->bytes, write->write.bytes, write->write.size);
    tow_list_append(&writer->fixture->shares, &share->list);
    return share;
}

/* Reports to the receiver, then to the writer; the end of the share is a later
 * event. */
static void share_write(fixture_worker_t *writer, tow_transfer_write_t *write,
                        fixture_region_t *region)
{
    transfer_fixture_t *fixture = writer->fixture;
    fixture_share_t *share = make_share(writer, write);
    fixture_event_t *event = add_event(writer, run_shared, write, 0);
    event->channel = 2000 + writer->process;
    fixture->shared_count++;
    if (fixture->is_random && tow_random_below(&fixture->random, 4) == 0)
        share_written(share)->status =
            TOW_ERROR(TOW_UNAVAILABLE, "the lane broke");
    const tow_arrival_t arrival = {.size = write->write.size,
                                   .tag = write->write.tag,
                                   .shared = share->bytes,
                                   .share = (tow_share_t *)share};
    region->options.arrived(region->options.context, &region->base, &arrival);
}

static bool is_shared(const transfer_fixture_t *fixture,
                      const tow_transfer_write_t *write,
                      const fixture_region_t *region)
{
    return fixture->shares_writes && write->shared != NULL &&
           region->options.may_share && write->write.offset == 0 &&
           write->write.size == region->options.size;
}

/* Writes the bytes, and reports to the receiver, then to the writer. */
static void run_write(fixture_event_t *event)
{
    tow_transfer_write_t *write = event->object;
    transfer_fixture_t *fixture = event->worker->fixture;
    fixture_worker_t *to = &fixture->workers[write->process];
    fixture_region_t *region =
        transfer_fixture_find_region(to, write->target->region_id);
    tow_status_t status = event->status;
    event->status = TOW_OK;
    if (status == TOW_OK && (region == NULL || to->is_crashed))
        status = TOW_ERROR(TOW_NOT_FOUND, "no such region");
    if (status == TOW_OK) {
        assert_int_equal(write->target->region_secret, 99);
        assert_memory_equal(write->target->lane_address.data, to->address, 8);
        assert_true(write->write.offset + write->write.size <=
                    region->options.size);
        if (is_shared(fixture, write, region)) {
            share_write(event->worker, write, region);
            return;
        }
        memcpy((char *)region->options.bytes + write->write.offset,
               write->write.bytes, write->write.size);
        region->options.arrived(region->options.context, &region->base,
                                &(tow_arrival_t){.offset = write->write.offset,
                                                 .size = write->write.size,
                                                 .tag = write->write.tag});
    }
    write->done(write, status);
}

static tow_status_t start_write(void *context, tow_transfer_write_t *write)
{
    fixture_worker_t *worker = context;
    transfer_fixture_t *fixture = worker->fixture;
    const int number = ++fixture->write_count;
    if (number == fixture->refuse_write_at)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "no lane");
    fixture_event_t *event = add_event(worker, run_write, write, 0);
    if (number == fixture->fail_write_at)
        event->status = TOW_ERROR(TOW_DATA_LOSS, "checksum");
    return TOW_OK;
}

/* -- The fixture ----------------------------------------------------------- */

static void on_quiet(void *context)
{
    fixture_worker_t *worker = context;
    assert_true(tow_transfer_engine_is_quiet(worker->engine));
    worker->quiet_count++;
}

void transfer_fixture_open(transfer_fixture_t *fixture, uint32_t worker_count,
                           uint64_t seed)
{
    *fixture = (transfer_fixture_t){.worker_count = worker_count,
                                    .is_random = seed != 0,
                                    .shares_writes = seed % 2 == 1,
                                    .exports_shares = seed % 4 == 1};
    tow_list_init(&fixture->shares);
    tow_random_init(&fixture->random, seed);
    tow_list_init(&fixture->events);
    tow_arena_init(&fixture->arena, 0);
    for (uint32_t i = 0; i < worker_count; i++) {
        fixture_worker_t *worker = &fixture->workers[i];
        worker->fixture = fixture;
        worker->process = i;
        worker->env = (tow_env_t){.ops = &env_ops, .name = "worker"};
        worker->driver = (tow_driver_t){.ops = &transfer_fixture_driver_ops,
                                        .env = &worker->env,
                                        .name = "fixture",
                                        .devices = worker->devices,
                                        .device_count = DEVICES_MAX};
        tow_list_init(&worker->regions);
        tow_list_init(&worker->buffers);
        memset(worker->address, (int)i + 1, sizeof(worker->address));
        must(tow_transfer_engine_create(
            &(tow_transfer_engine_options_t){.driver = &worker->driver,
                                             .process = i,
                                             .send = send_message,
                                             .write = start_write,
                                             .quiet = on_quiet,
                                             .context = worker},
            &worker->engine));
    }
}

void transfer_fixture_close(transfer_fixture_t *fixture)
{
    transfer_fixture_run(fixture);
    for (uint32_t i = 0; i < fixture->worker_count; i++) {
        fixture_worker_t *worker = &fixture->workers[i];
        assert_int_equal(worker->buffer_count, 0);
        assert_int_equal(worker->region_count, 0);
        assert_int_equal(worker->share_count, 0);
        assert_true(tow_transfer_engine_is_quiet(worker->engine));
        assert_int_equal(
            tow_transfer_engine_stats(worker->engine).receive_bytes, 0);
        assert_int_equal(tow_transfer_engine_stats(worker->engine).shared_count,
                         0);
        assert_int_equal(tow_transfer_engine_stats(worker->engine).shared_bytes,
                         0);
        assert_int_equal(
            tow_transfer_engine_stats(worker->engine).transfer_count, 0);
        tow_transfer_engine_clear(worker->engine);
        assert_int_equal(tow_transfer_engine_stats(worker->engine).early_count,
                         0);
        assert_int_equal(tow_transfer_engine_stats(worker->engine).early_bytes,
                         0);
        tow_transfer_engine_destroy(worker->engine);
    }
    assert_true(tow_list_is_empty(&fixture->shares));
    tow_arena_deinit(&fixture->arena);
}

static void worker_crash(fixture_worker_t *worker)
{
    tow_list_t *item;
    tow_transfer_engine_discard(worker->engine);
    while ((item = tow_list_pop_front(&worker->regions)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, fixture_region_t, list));
    while ((item = tow_list_pop_front(&worker->buffers)) != NULL) {
        fixture_buffer_t *buffer =
            TOW_CONTAINER_OF(item, fixture_buffer_t, list);
        tow_status_release(buffer->error);
        if (buffer->upload == NULL) tow_free(buffer->bytes);
        tow_free(buffer);
    }
}

void transfer_fixture_crash(transfer_fixture_t *fixture)
{
    tow_list_t *item;
    for (uint32_t i = 0; i < fixture->worker_count; i++)
        worker_crash(&fixture->workers[i]);
    while ((item = tow_list_pop_front(&fixture->events)) != NULL) {
        fixture_event_t *event = TOW_CONTAINER_OF(item, fixture_event_t, list);
        tow_status_release(event->status);
        test_free(event);
    }
    while ((item = tow_list_pop_front(&fixture->shares)) != NULL)
        test_free(TOW_CONTAINER_OF(item, fixture_share_t, list));
    tow_arena_deinit(&fixture->arena);
}

/* -- Routes ---------------------------------------------------------------- */

static size_t part_count(const layout_t *layout, uint32_t rank)
{
    size_t count = 1;
    for (uint32_t i = 0; i < rank; i++)
        count *= layout->parts[i];
    return count;
}

static tow_shape_t shard_shape(const tow_shape_t *whole, const layout_t *layout)
{
    tow_shape_t shape = *whole;
    for (uint32_t i = 0; i < whole->rank; i++) {
        assert_int_equal(whole->dims[i] % layout->parts[i], 0);
        shape.dims[i] /= layout->parts[i];
    }
    return shape;
}

/* The position of the part that a shard holds. */
static void shard_start(const tow_shape_t *whole, const layout_t *layout,
                        size_t shard, int64_t *out_start)
{
    size_t part = shard % part_count(layout, whole->rank);
    for (uint32_t i = whole->rank; i-- > 0;) {
        out_start[i] = (int64_t)(part % layout->parts[i]) *
                       (whole->dims[i] / layout->parts[i]);
        part /= layout->parts[i];
    }
}

uint32_t plan_local_index(const layout_t *layout, size_t shard)
{
    uint32_t index = 0;
    for (size_t i = 0; i < shard; i++)
        index += layout->places[i] == layout->places[shard];
    return index;
}

static bool intersect(const plan_t *plan, size_t from, size_t to,
                      tow_piece_t *out_piece)
{
    int64_t a[TOW_RANK_MAX], b[TOW_RANK_MAX];
    const tow_shape_t source = shard_shape(&plan->whole, &plan->from);
    const tow_shape_t target = shard_shape(&plan->whole, &plan->to);
    uint64_t bytes = tow_type_bits(plan->whole.type) / 8;
    shard_start(&plan->whole, &plan->from, from, a);
    shard_start(&plan->whole, &plan->to, to, b);
    *out_piece =
        (tow_piece_t){.source_shard = plan_local_index(&plan->from, from),
                      .target_shard = plan_local_index(&plan->to, to)};
    for (uint32_t i = 0; i < plan->whole.rank; i++) {
        const int64_t start = a[i] > b[i] ? a[i] : b[i];
        const int64_t a_end = a[i] + source.dims[i];
        const int64_t b_end = b[i] + target.dims[i];
        const int64_t end = a_end < b_end ? a_end : b_end;
        if (end <= start) return false;
        out_piece->source_start[i] = start - a[i];
        out_piece->target_start[i] = start - b[i];
        out_piece->extent[i] = end - start;
        bytes *= (uint64_t)(end - start);
    }
    out_piece->bytes = bytes;
    return true;
}

/* True if a piece is one row of the target, at `out_offset`. Independent of the
 * code under test. */
static bool is_row(const plan_t *plan, const tow_piece_t *piece,
                   uint64_t *out_offset)
{
    const tow_shape_t target = shard_shape(&plan->whole, &plan->to);
    uint64_t first = 0, last = 0;
    for (uint32_t i = 0; i < target.rank; i++) {
        first =
            first * (uint64_t)target.dims[i] + (uint64_t)piece->target_start[i];
        last = last * (uint64_t)target.dims[i] +
               (uint64_t)(piece->target_start[i] + piece->extent[i] - 1);
    }
    const uint64_t element = tow_type_bits(plan->whole.type) / 8;
    *out_offset = first * element;
    return (last - first + 1) * element == piece->bytes;
}

void plan_make(plan_t *plan, uint32_t worker_count)
{
    const uint32_t rank = plan->whole.rank;
    const size_t from_parts = part_count(&plan->from, rank);
    TOW_ASSERT(from_parts > 0 && plan->from.place_count >= from_parts);
    bool is_packed = false;
    for (uint32_t i = 0; i < worker_count; i++) {
        plan->sends[i] = test_calloc(PIECES_MAX, sizeof(tow_piece_t));
        plan->receives[i] = test_calloc(PIECES_MAX, sizeof(tow_piece_t));
        plan->routes[i] =
            (tow_route_t){.source = shard_shape(&plan->whole, &plan->from),
                          .target = shard_shape(&plan->whole, &plan->to),
                          .sends = plan->sends[i],
                          .receives = plan->receives[i],
                          .target_devices = plan->devices[i]};
        plan->source_counts[i] = 0;
    }
    for (size_t s = 0; s < plan->from.place_count; s++)
        plan->source_counts[plan->from.places[s]]++;
    for (size_t t = 0; t < plan->to.place_count; t++) {
        tow_route_t *to = &plan->routes[plan->to.places[t]];
        uint32_t number = 0;
        uint64_t packed = 0;
        plan->devices[plan->to.places[t]][to->target_count] =
            (uint32_t)to->target_count % DEVICES_MAX;
        to->target_count++;
        for (size_t p = 0; p < from_parts; p++) {
            const size_t copies = plan->from.place_count / from_parts;
            const size_t s = p + from_parts * (t % copies);
            tow_piece_t piece;
            uint64_t row;
            if (!intersect(plan, s, t, &piece)) continue;
            if (!is_row(plan, &piece, &row)) is_packed = true;
            piece.number = number++;
            piece.offset = packed;
            packed += piece.bytes;
            tow_route_t *from = &plan->routes[plan->from.places[s]];
            piece.process = plan->to.places[t];
            plan->sends[plan->from.places[s]][from->send_count++] = piece;
            piece.process = plan->from.places[s];
            plan->receives[plan->to.places[t]][to->receive_count++] = piece;
        }
    }
    for (uint32_t i = 0; i < worker_count; i++) {
        tow_route_t *route = &plan->routes[i];
        route->source_count = plan->source_counts[i];
        route->is_packed = is_packed;
        for (size_t k = 0; k < route->send_count && !is_packed; k++)
            is_row(plan, &plan->sends[i][k], &plan->sends[i][k].offset);
        for (size_t k = 0; k < route->receive_count && !is_packed; k++)
            is_row(plan, &plan->receives[i][k], &plan->receives[i][k].offset);
        must(tow_route_check(route, i, DEVICES_MAX));
    }
}

void plan_free(plan_t *plan, uint32_t worker_count)
{
    for (uint32_t i = 0; i < worker_count; i++) {
        test_free(plan->sends[i]);
        test_free(plan->receives[i]);
    }
}

uint8_t plan_byte_at(uint64_t index, uint64_t salt)
{
    return (uint8_t)((index * UINT64_C(0x9e3779b97f4a7c15) + salt) >> 40);
}

void plan_fill_shard(const plan_t *plan, const layout_t *layout, size_t shard,
                     uint64_t salt, uint8_t *out_bytes)
{
    const tow_shape_t shape = shard_shape(&plan->whole, layout);
    const uint64_t element = tow_type_bits(plan->whole.type) / 8;
    int64_t start[TOW_RANK_MAX] = {0};
    uint64_t count = 1;
    shard_start(&plan->whole, layout, shard, start);
    for (uint32_t i = 0; i < shape.rank; i++)
        count *= (uint64_t)shape.dims[i];
    for (uint64_t at = 0; at < count; at++) {
        uint64_t rest = at, whole = 0, scale = 1;
        for (uint32_t i = shape.rank; i-- > 0;) {
            whole +=
                (rest % (uint64_t)shape.dims[i] + (uint64_t)start[i]) * scale;
            rest /= (uint64_t)shape.dims[i];
            scale *= (uint64_t)plan->whole.dims[i];
        }
        for (uint64_t b = 0; b < element; b++)
            out_bytes[at * element + b] =
                plan_byte_at(whole * element + b, salt);
    }
}

/* -- Exchanges: one transfer, on all its workers --------------------------- */

void exchange_done(tow_transfer_t *transfer, tow_status_t take_status)
{
    exchange_part_t *part =
        TOW_CONTAINER_OF(transfer, exchange_part_t, transfer);
    assert_false(part->is_done);
    part->is_done = true;
    part->code = tow_status_code(take_status);
    snprintf(part->message, sizeof(part->message), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
}

void exchange_init(exchange_t *exchange, transfer_fixture_t *fixture,
                   const plan_t *plan, uint64_t gang)
{
    *exchange =
        (exchange_t){.fixture = fixture, .plan = plan, .salt = gang * 77};
    for (uint32_t i = 0; i < fixture->worker_count; i++) {
        exchange_part_t *part = &exchange->parts[i];
        part->exchange = exchange;
        part->transfer = (tow_transfer_t){.route = &plan->routes[i],
                                          .gang = gang,
                                          .sources = part->sources,
                                          .source_stride = 1,
                                          .targets = part->targets,
                                          .done = exchange_done};
        for (size_t s = 0; s < plan->source_counts[i]; s++)
            part->sources[s] = &transfer_fixture_buffer(&fixture->workers[i], s,
                                                        &plan->routes[i].source)
                                    ->base;
    }
}

/* Memory is free now. */
static void run_begin(fixture_event_t *event)
{
    exchange_part_t *part = event->object;
    if (part->is_done || event->worker->is_crashed) return;
    tow_transfer_begin(event->worker->engine, &part->transfer);
}

static bool must_hold(transfer_fixture_t *fixture, const exchange_part_t *part)
{
    return fixture->holds && part->transfer.route != NULL &&
           !part->transfer.is_sized &&
           (!fixture->is_random || tow_random_below(&fixture->random, 2) == 0);
}

tow_status_t exchange_start(exchange_t *exchange, uint32_t process)
{
    exchange_part_t *part = &exchange->parts[process];
    fixture_worker_t *worker = &exchange->fixture->workers[process];
    tow_transfer_engine_t *engine = worker->engine;
    part->transfer.is_held = must_hold(exchange->fixture, part);
    tow_status_t status = tow_transfer_start(engine, &part->transfer);
    if (status == TOW_OK) part->is_begun = true;
    if (status == TOW_OK && part->transfer.is_held)
        add_event(worker, run_begin, part, 0);
    tow_transfer_engine_granted(engine, part->transfer.gang);
    return status;
}

void exchange_produce(exchange_t *exchange, size_t shard)
{
    const plan_t *plan = exchange->plan;
    tow_buffer_t *buffer = exchange->parts[plan->from.places[shard]]
                               .sources[plan_local_index(&plan->from, shard)];
    uint8_t *bytes = test_malloc(buffer->bytes + 1);
    plan_fill_shard(plan, &plan->from, shard, exchange->salt, bytes);
    fixture_buffer_finish(buffer, bytes);
    test_free(bytes);
}

void exchange_expect_bytes(const exchange_t *exchange)
{
    const plan_t *plan = exchange->plan;
    for (size_t t = 0; t < plan->to.place_count; t++) {
        const exchange_part_t *part = &exchange->parts[plan->to.places[t]];
        const fixture_buffer_t *buffer =
            (const fixture_buffer_t *)
                part->targets[plan_local_index(&plan->to, t)];
        assert_int_equal(buffer->state, TOW_BUFFER_READY);
        uint8_t *bytes = test_malloc(buffer->base.bytes + 1);
        plan_fill_shard(plan, &plan->to, t, exchange->salt, bytes);
        assert_memory_equal(buffer->bytes, bytes, buffer->base.bytes);
        test_free(bytes);
    }
}

void exchange_release(exchange_t *exchange)
{
    for (uint32_t i = 0; i < exchange->fixture->worker_count; i++) {
        exchange_part_t *part = &exchange->parts[i];
        for (size_t s = 0; s < exchange->plan->source_counts[i]; s++) {
            tow_buffer_t *source = part->sources[s];
            if (tow_buffer_state(source) == TOW_BUFFER_PENDING)
                fixture_buffer_fail(source,
                                    TOW_ERROR(TOW_CANCELLED, "not any more"));
            tow_buffer_release(source);
        }
        for (size_t t = 0;
             part->is_begun && t < part->transfer.route->target_count; t++)
            if (part->targets[t] != NULL) /* Its size was known. */
                tow_buffer_release(part->targets[t]);
    }
}
