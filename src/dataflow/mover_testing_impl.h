/* A little world for the mover's tests: workers whose movers are joined in
 * memory, devices that hold bytes, and one queue of everything that is to happen.
 * A test takes events in order or at random, one at a time. */
#ifndef TOW_DATAFLOW_MOVER_TESTING_IMPL_H_
#define TOW_DATAFLOW_MOVER_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/list.h"
#include "base/random.h"
#include "dataflow/mover.h"
#include "dataflow/tuning.h"
#include "env/env.h"

#define WORKERS_MAX 4
#define DEVICES_MAX 8
#define SHARDS_MAX  16
#define PIECES_MAX  (SHARDS_MAX * SHARDS_MAX)

typedef struct yard yard_t;
typedef struct hand hand_t;

/* -- Events ---------------------------------------------------------------------- */

typedef struct event {
    tow_list_t list;
    uint64_t channel; /* events of one channel stay in order; 0: of none */
    void (*run)(struct event *event);
    hand_t *hand;
    void *what;
    tow_status_t status; /* owned */
    /* Of messages. */
    uint32_t from;
    uint32_t type;
    size_t size;
    uint8_t bytes[];
} event_t;

/* A worker. */
struct hand {
    yard_t *yard;
    tow_env_t env;
    tow_driver_t driver;
    tow_device_info_t devices[DEVICES_MAX];
    tow_mover_t *mover;
    uint32_t process;
    bool is_dead;
    int quiet_count;
    /* Buffers and regions that live. */
    int buffer_count;
    int region_count;
    int loan_count;
    uint64_t next_region;
    tow_list_t regions;
    tow_list_t buffers;
    uint8_t address[8];
    tow_code_t last_error; /* of a message */
};

struct yard {
    tow_list_t events;
    tow_random_t random; /* seeded: events are taken in any order */
    bool is_random;
    bool copies_uploads; /* devices do not use memory as it is */
    hand_t hands[WORKERS_MAX];
    uint32_t hand_count;
    tow_arena_t arena;
    int message_count;
    int write_count;
    int refuse_write_at; /* the nth fails; 0: none */
    int spoil_write_at;  /* the nth fails later */
    /* Writes that may be are lent; at random, some of these lanes break. */
    bool lends;
    bool lends_on;    /* drivers keep what is lent */
    tow_list_t loans; /* of yard_loan_t */
    int lent_count;   /* ever */
};

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline event_t *yard_event(hand_t *hand, void (*run)(event_t *event),
                                  void *what, size_t size)
{
    event_t *event = test_calloc(1, sizeof(*event) + size);
    event->run = run;
    event->hand = hand;
    event->what = what;
    event->size = size;
    tow_list_append(&hand->yard->events, &event->list);
    return event;
}

static inline bool is_first_of_channel(const yard_t *yard, const event_t *event)
{
    const tow_list_t *head = &yard->events;
    if (event->channel == 0) return true;
    for (const tow_list_t *at = head->next; at != &event->list; at = at->next)
        if (TOW_CONTAINER_OF(at, event_t, list)->channel == event->channel)
            return false;
    return true;
}

static inline event_t *yard_pick(yard_t *yard)
{
    const tow_list_t *head = &yard->events;
    size_t count = 0, chosen;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        count++;
    chosen = yard->is_random ? tow_random_below(&yard->random, count) : 0;
    tow_list_t *at = head->next;
    while (chosen-- > 0)
        at = at->next;
    while (!is_first_of_channel(yard, TOW_CONTAINER_OF(at, event_t, list)))
        at = at->previous;
    return TOW_CONTAINER_OF(at, event_t, list);
}

/* False: nothing is to happen. */
static inline bool yard_step(yard_t *yard)
{
    if (tow_list_is_empty(&yard->events)) return false;
    event_t *event = yard_pick(yard);
    tow_list_remove(&event->list);
    event->run(event);
    test_free(event);
    return true;
}

static inline size_t yard_run(yard_t *yard)
{
    size_t count = 0;
    while (yard_step(yard))
        assert_true(++count < 1000000);
    return count;
}

/* -- The env ----------------------------------------------------------------------- */

typedef struct yard_region {
    tow_region_t base;
    tow_list_t list;
    tow_region_options_t options;
    tow_closed_t closed;
    bool is_closing;
} yard_region_t;

static inline hand_t *hand_of(tow_env_t *env)
{
    return TOW_CONTAINER_OF(env, hand_t, env);
}

static inline void run_post(event_t *event)
{
    tow_post_t *post = event->what;
    post->run(post);
}

static inline void yard_post(tow_env_t *env, tow_post_t *post)
{
    hand_t *hand = hand_of(env);
    yard_event(hand, run_post, post, 0)->channel = 1000 + hand->process;
}

static inline void yard_lane_address(tow_env_t *env, const void **out_bytes,
                                     size_t *out_size)
{
    hand_t *hand = hand_of(env);
    *out_bytes = hand->address;
    *out_size = sizeof(hand->address);
}

static inline tow_status_t yard_lane_open(tow_env_t *env,
                                          const tow_lane_options_t *options,
                                          tow_lane_t **out_lane)
{
    (void)env, (void)options, (void)out_lane;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static inline tow_status_t yard_region_open(tow_env_t *env,
                                            const tow_region_options_t *options,
                                            tow_region_t **out_region)
{
    hand_t *hand = hand_of(env);
    yard_region_t *region = tow_calloc(1, sizeof(*region));
    if (region == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    region->base.env = env;
    region->base.key = (tow_region_key_t){++hand->next_region, 99};
    region->options = *options;
    tow_list_append(&hand->regions, &region->list);
    hand->region_count++;
    *out_region = &region->base;
    return TOW_OK;
}

static inline void run_region_closed(event_t *event)
{
    yard_region_t *region = event->what;
    const tow_closed_t closed = region->closed;
    tow_list_remove(&region->list);
    tow_free(region);
    event->hand->region_count--;
    closed.run(closed.context);
}

static inline void yard_region_close(tow_region_t *base, tow_closed_t closed)
{
    yard_region_t *region = (yard_region_t *)base;
    assert_false(region->is_closing);
    region->is_closing = true;
    region->closed = closed;
    yard_event(hand_of(base->env), run_region_closed, region, 0);
}

/* A write that is used where it is. The receiver's view of the bytes lives on
 * whatever the writer does. */
typedef struct yard_loan {
    tow_list_t list;
    hand_t *writer;
    tow_mover_write_t *write; /* NULL: the writer has been told */
    uint8_t *bytes;           /* aligned, in `room` */
    uint8_t room[];
} yard_loan_t;

static inline void run_written(event_t *event)
{
    tow_mover_write_t *write = event->what;
    tow_status_t status = event->status;
    event->status = TOW_OK;
    write->write.is_adrift = status != TOW_OK;
    write->done(write, status);
}

static inline event_t *yard_written(yard_loan_t *loan)
{
    event_t *event = yard_event(loan->writer, run_written, loan->write, 0);
    event->channel = 2000 + loan->writer->process;
    loan->write = NULL;
    return event;
}

static inline void free_loan_record(yard_loan_t *loan)
{
    tow_list_remove(&loan->list);
    test_free(loan);
}

/* Nobody may have changed the bytes while the writer stood by them. */
static inline void yard_loan_end(tow_env_t *env, tow_loan_t *base)
{
    yard_loan_t *loan = (yard_loan_t *)base;
    (void)env;
    if (loan->write != NULL) {
        const tow_write_t *write = &loan->write->write;
        assert_memory_equal(loan->bytes, write->bytes, write->size);
        yard_written(loan);
    }
    free_loan_record(loan);
}

static inline void run_work_done(event_t *event)
{
    tow_work_t *work = event->what;
    work->done(work, TOW_OK);
}

/* A helper does it, and some time after that it is told. */
static inline void run_work(event_t *event)
{
    tow_work_t *work = event->what;
    tow_status_t status = work->run(work);
    assert_true(status == TOW_OK);
    yard_event(event->hand, run_work_done, work, 0);
}

static inline void yard_work_start(tow_env_t *env, tow_work_t *work)
{
    yard_event(hand_of(env), run_work, work, 0);
}

static const tow_env_ops_t yard_env_ops = {
    .name = "yard",
    .loan_end = yard_loan_end,
    .post = yard_post,
    .work_start = yard_work_start,
    .lane_address = yard_lane_address,
    .lane_open = yard_lane_open,
    .region_open = yard_region_open,
    .region_close = yard_region_close,
};

static inline yard_region_t *find_region(hand_t *hand, uint64_t id)
{
    const tow_list_t *head = &hand->regions;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        yard_region_t *region = TOW_CONTAINER_OF(at, yard_region_t, list);
        if (region->base.key.id == id && !region->is_closing) return region;
    }
    return NULL;
}

/* -- Devices -------------------------------------------------------------------------- */

typedef struct yard_buffer {
    tow_buffer_t base;
    tow_list_t list;
    uint32_t reference_count;
    tow_buffer_state_t state;
    tow_status_t error;        /* owned */
    uint8_t *bytes;            /* owned, or the upload's */
    tow_upload_t *upload;      /* whose memory it uses */
    tow_borrow_t *borrows[32]; /* that wait */
    size_t borrow_count;
    tow_copy_t *copies[32]; /* that wait */
    size_t copy_count;
} yard_buffer_t;

static inline hand_t *hand_of_driver(const tow_driver_t *driver)
{
    return TOW_CONTAINER_OF(driver, hand_t, driver);
}

static inline yard_buffer_t *yard_buffer(hand_t *hand, size_t device,
                                         const tow_shape_t *shape)
{
    yard_buffer_t *buffer = tow_calloc(1, sizeof(*buffer));
    if (buffer == NULL) return NULL;
    buffer->base.driver = &hand->driver;
    buffer->base.device = device;
    buffer->base.shape = *shape;
    must(tow_shape_bytes(shape, &buffer->base.bytes));
    buffer->reference_count = 1;
    buffer->state = TOW_BUFFER_PENDING;
    hand->buffer_count++;
    tow_list_append(&hand->buffers, &buffer->list);
    return buffer;
}

static inline tow_buffer_state_t yard_state(tow_buffer_t *buffer)
{
    return ((yard_buffer_t *)buffer)->state;
}

static inline void yard_retain(tow_buffer_t *buffer)
{
    ((yard_buffer_t *)buffer)->reference_count++;
}

static inline void run_upload_done(event_t *event)
{
    tow_upload_t *upload = event->what;
    tow_status_t status = event->status;
    event->status = TOW_OK;
    upload->done(upload, status);
}

static inline void yard_release(tow_buffer_t *base)
{
    yard_buffer_t *buffer = (yard_buffer_t *)base;
    hand_t *hand = hand_of_driver(base->driver);
    assert_true(buffer->reference_count > 0);
    if (--buffer->reference_count > 0) return;
    assert_int_equal(buffer->borrow_count + buffer->copy_count, 0);
    if (buffer->upload != NULL)
        yard_event(hand, run_upload_done, buffer->upload, 0);
    else
        tow_free(buffer->bytes);
    tow_status_release(buffer->error);
    tow_list_remove(&buffer->list);
    tow_free(buffer);
    hand->buffer_count--;
}

static inline void run_borrowed(event_t *event)
{
    tow_borrow_t *borrow = event->what;
    tow_status_t status = event->status;
    event->status = TOW_OK;
    if (status == TOW_OK) event->hand->loan_count++;
    borrow->done(borrow, status);
}

static inline void finish_borrow(hand_t *hand, tow_borrow_t *borrow)
{
    yard_buffer_t *buffer = (yard_buffer_t *)borrow->buffer;
    event_t *event = yard_event(hand, run_borrowed, borrow, 0);
    borrow->bytes = buffer->bytes;
    if (buffer->state == TOW_BUFFER_FAILED)
        event->status = tow_status_retain(buffer->error);
}

static inline tow_status_t yard_borrow(tow_driver_t *driver,
                                       tow_borrow_t *borrow)
{
    yard_buffer_t *buffer = (yard_buffer_t *)borrow->buffer;
    borrow->private_[0] = NULL;
    if (buffer->state != TOW_BUFFER_PENDING) {
        finish_borrow(hand_of_driver(driver), borrow);
        return TOW_OK;
    }
    assert_true(buffer->borrow_count < 32);
    buffer->borrows[buffer->borrow_count++] = borrow;
    return TOW_OK;
}

/* The caller's reference is ours until it is given back. */
static inline bool yard_lend(tow_driver_t *driver, tow_borrow_t *borrow)
{
    if (!hand_of_driver(driver)->yard->lends_on) return false;
    assert_null(borrow->private_[0]);
    borrow->private_[0] = borrow->buffer;
    return true;
}

static inline void yard_give_back(tow_driver_t *driver, tow_borrow_t *borrow)
{
    hand_t *hand = hand_of_driver(driver);
    hand->loan_count--;
    if (borrow->private_[0] != NULL) tow_buffer_release(borrow->buffer);
}

static inline void yard_resolve(yard_buffer_t *buffer);

static inline void run_copied(event_t *event)
{
    tow_copy_t *copy = event->what;
    yard_buffer_t *source = copy->private_[0];
    yard_buffer_t *target = copy->private_[1];
    tow_status_t status = TOW_OK;
    target->state = source->state;
    if (source->state == TOW_BUFFER_FAILED) {
        target->error = tow_status_retain(source->error);
        status = tow_status_retain(source->error);
    } else {
        target->bytes = tow_malloc(target->base.bytes + 1);
        memcpy(target->bytes, source->bytes, target->base.bytes);
    }
    yard_resolve(target);
    tow_buffer_release(&source->base);
    tow_buffer_release(&target->base);
    copy->done(copy, status);
}

static inline tow_status_t yard_copy(tow_driver_t *driver, tow_copy_t *copy)
{
    hand_t *hand = hand_of_driver(driver);
    yard_buffer_t *source = (yard_buffer_t *)copy->source;
    yard_buffer_t *target =
        yard_buffer(hand, copy->device, &source->base.shape);
    if (target == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_buffer_retain(&source->base);
    tow_buffer_retain(&target->base);
    copy->private_[0] = source;
    copy->private_[1] = target;
    copy->buffer = &target->base;
    if (source->state != TOW_BUFFER_PENDING)
        yard_event(hand, run_copied, copy, 0);
    else
        source->copies[source->copy_count++] = copy;
    return TOW_OK;
}

/* It is there, or will never be: who waited goes on. */
static inline void yard_resolve(yard_buffer_t *buffer)
{
    hand_t *hand = hand_of_driver(buffer->base.driver);
    for (size_t i = 0; i < buffer->borrow_count; i++)
        finish_borrow(hand, buffer->borrows[i]);
    for (size_t i = 0; i < buffer->copy_count; i++)
        yard_event(hand, run_copied, buffer->copies[i], 0);
    buffer->borrow_count = buffer->copy_count = 0;
}

static inline tow_status_t yard_upload(tow_driver_t *driver,
                                       tow_upload_t *upload)
{
    assert_true(upload->is_late && upload->may_alias);
    assert_int_equal((uintptr_t)upload->bytes % 64, 0);
    yard_buffer_t *buffer =
        yard_buffer(hand_of_driver(driver), upload->device, &upload->shape);
    if (buffer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    /* The caller's reference, and ours until it is settled. */
    tow_buffer_retain(&buffer->base);
    upload->buffer = &buffer->base;
    upload->private_[0] = buffer;
    return TOW_OK;
}

static inline void yard_settle(tow_driver_t *driver, tow_upload_t *upload,
                               tow_status_t take_status)
{
    hand_t *hand = hand_of_driver(driver);
    yard_buffer_t *buffer = upload->private_[0];
    assert_int_equal(buffer->state, TOW_BUFFER_PENDING);
    if (take_status != TOW_OK) {
        buffer->state = TOW_BUFFER_FAILED;
        buffer->error = take_status;
    } else {
        buffer->state = TOW_BUFFER_READY;
        if (hand->yard->copies_uploads) {
            buffer->bytes = tow_malloc(buffer->base.bytes + 1);
            memcpy(buffer->bytes, upload->bytes, buffer->base.bytes);
        } else {
            buffer->bytes = (uint8_t *)upload->bytes;
            buffer->upload = upload;
        }
    }
    if (buffer->upload == NULL)
        yard_event(hand, run_upload_done, upload, 0)->status =
            tow_status_retain(take_status);
    yard_resolve(buffer);
    tow_buffer_release(&buffer->base);
}

static const tow_driver_ops_t yard_driver_ops = {
    .upload = yard_upload,
    .upload_settle = yard_settle,
    .borrow = yard_borrow,
    .borrow_give_back = yard_give_back,
    .borrow_lend = yard_lend,
    .copy = yard_copy,
    .buffer_state = yard_state,
    .buffer_retain = yard_retain,
    .buffer_release = yard_release,
};

/* A producer has finished. */
static inline void buffer_finish(tow_buffer_t *base, const void *bytes)
{
    yard_buffer_t *buffer = (yard_buffer_t *)base;
    assert_int_equal(buffer->state, TOW_BUFFER_PENDING);
    buffer->state = TOW_BUFFER_READY;
    buffer->bytes = tow_malloc(base->bytes + 1);
    memcpy(buffer->bytes, bytes, base->bytes);
    yard_resolve(buffer);
}

/* It has failed. */
static inline void buffer_fail(tow_buffer_t *base, tow_status_t take_error)
{
    yard_buffer_t *buffer = (yard_buffer_t *)base;
    assert_int_equal(buffer->state, TOW_BUFFER_PENDING);
    buffer->state = TOW_BUFFER_FAILED;
    buffer->error = take_error;
    yard_resolve(buffer);
}

/* -- Between workers --------------------------------------------------------------------- */

static inline void run_message(event_t *event)
{
    const tow_body_t *body;
    hand_t *hand = event->hand;
    if (hand->is_dead) return;
    tow_arena_reset(&hand->yard->arena);
    must(tow_message_decode(event->type, event->bytes, event->size,
                            &hand->yard->arena, &body));
    tow_status_t status =
        event->type == TOW_MESSAGE_EDGE_PIECE
            ? tow_mover_piece(hand->mover, event->from,
                              (const tow_msg_edge_piece_t *)body)
        : event->type == TOW_MESSAGE_EDGE_SIZE
            ? tow_mover_size(hand->mover, event->from,
                             (const tow_msg_edge_size_t *)body)
            : tow_mover_offer(hand->mover, event->from,
                              (const tow_msg_edge_offer_t *)body);
    if (status == TOW_OK) return;
    hand->last_error = tow_status_code(status);
    tow_mover_peer_gone(hand->mover, event->from, status);
    tow_status_release(status);
}

static inline void run_ready(event_t *event)
{
    tow_mover_peer_ready(event->hand->mover, event->from);
}

/* Every third message finds no connection, which then comes. */
static inline tow_mover_sent_t yard_send(void *context, uint32_t process,
                                         uint32_t type, const tow_body_t *body)
{
    hand_t *from = context;
    yard_t *yard = from->yard;
    assert_true(process < yard->hand_count && process != from->process);
    event_t *event = yard_event(&yard->hands[process], run_message, NULL,
                                tow_message_size(body));
    tow_message_encode(body, event->bytes);
    event->type = type;
    event->from = from->process;
    event->channel = 1 + from->process * WORKERS_MAX + process;
    if (++yard->message_count % 3 != 0) return TOW_MOVER_SENT;
    yard_event(from, run_ready, NULL, 0)->from = process;
    return TOW_MOVER_WAITS;
}

static inline void run_lent(event_t *event)
{
    tow_mover_write_t *write = event->what;
    write->lent(write);
}

static inline yard_loan_t *make_loan(hand_t *writer, tow_mover_write_t *write)
{
    yard_loan_t *loan = test_calloc(1, sizeof(*loan) + write->write.size + 64);
    loan->writer = writer;
    loan->write = write;
    loan->bytes = loan->room + (64 - (uintptr_t)loan->room % 64);
    memcpy(loan->bytes, write->write.bytes, write->write.size);
    tow_list_append(&writer->yard->loans, &loan->list);
    return loan;
}

/* Told there, then here; and at some time that it is over. */
static inline void lend(hand_t *writer, tow_mover_write_t *write,
                        yard_region_t *region)
{
    yard_t *yard = writer->yard;
    yard_loan_t *loan = make_loan(writer, write);
    event_t *event = yard_event(writer, run_lent, write, 0);
    event->channel = 2000 + writer->process;
    yard->lent_count++;
    if (yard->is_random && tow_random_below(&yard->random, 4) == 0)
        yard_written(loan)->status =
            TOW_ERROR(TOW_UNAVAILABLE, "the lane broke");
    const tow_arrival_t arrival = {.size = write->write.size,
                                   .tag = write->write.tag,
                                   .lent = loan->bytes,
                                   .loan = (tow_loan_t *)loan};
    region->options.arrived(region->options.context, &region->base, &arrival);
}

static inline bool is_lent(const yard_t *yard, const tow_mover_write_t *write,
                           const yard_region_t *region)
{
    return yard->lends && write->lent != NULL && region->options.may_borrow &&
           write->write.offset == 0 &&
           write->write.size == region->options.size;
}

/* Lands, is told there, and then here. */
static inline void run_write(event_t *event)
{
    tow_mover_write_t *write = event->what;
    yard_t *yard = event->hand->yard;
    hand_t *to = &yard->hands[write->process];
    yard_region_t *region = find_region(to, write->target->region_id);
    tow_status_t status = event->status;
    event->status = TOW_OK;
    if (status == TOW_OK && (region == NULL || to->is_dead))
        status = TOW_ERROR(TOW_NOT_FOUND, "no such region");
    if (status == TOW_OK) {
        assert_int_equal(write->target->region_secret, 99);
        assert_memory_equal(write->target->lane_address.data, to->address, 8);
        assert_true(write->write.offset + write->write.size <=
                    region->options.size);
        if (is_lent(yard, write, region)) {
            lend(event->hand, write, region);
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

static inline tow_status_t yard_write(void *context, tow_mover_write_t *write)
{
    hand_t *hand = context;
    yard_t *yard = hand->yard;
    const int number = ++yard->write_count;
    if (number == yard->refuse_write_at)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "no lane");
    event_t *event = yard_event(hand, run_write, write, 0);
    if (number == yard->spoil_write_at)
        event->status = TOW_ERROR(TOW_DATA_LOSS, "checksum");
    return TOW_OK;
}

/* -- The yard ----------------------------------------------------------------------------- */

static inline void on_quiet(void *context)
{
    hand_t *hand = context;
    assert_true(tow_mover_is_quiet(hand->mover));
    hand->quiet_count++;
}

static inline void yard_open(yard_t *yard, uint32_t hand_count, uint64_t seed)
{
    *yard = (yard_t){.hand_count = hand_count,
                     .is_random = seed != 0,
                     .lends = seed % 2 == 1,
                     .lends_on = seed % 4 == 1};
    tow_list_init(&yard->loans);
    tow_random_init(&yard->random, seed);
    tow_list_init(&yard->events);
    tow_arena_init(&yard->arena, 0);
    for (uint32_t i = 0; i < hand_count; i++) {
        hand_t *hand = &yard->hands[i];
        hand->yard = yard;
        hand->process = i;
        hand->env = (tow_env_t){.ops = &yard_env_ops, .name = "hand"};
        hand->driver = (tow_driver_t){.ops = &yard_driver_ops,
                                      .env = &hand->env,
                                      .name = "yard",
                                      .devices = hand->devices,
                                      .device_count = DEVICES_MAX};
        tow_list_init(&hand->regions);
        tow_list_init(&hand->buffers);
        memset(hand->address, (int)i + 1, sizeof(hand->address));
        must(tow_mover_create(&(tow_mover_options_t){.driver = &hand->driver,
                                                     .process = i,
                                                     .send = yard_send,
                                                     .write = yard_write,
                                                     .quiet = on_quiet,
                                                     .context = hand},
                              &hand->mover));
    }
}

/* All has ended, and all memory is back. */
static inline void yard_close(yard_t *yard)
{
    yard_run(yard);
    for (uint32_t i = 0; i < yard->hand_count; i++) {
        hand_t *hand = &yard->hands[i];
        assert_int_equal(hand->buffer_count, 0);
        assert_int_equal(hand->region_count, 0);
        assert_int_equal(hand->loan_count, 0);
        assert_true(tow_mover_is_quiet(hand->mover));
        assert_int_equal(tow_mover_stats(hand->mover).receive_bytes, 0);
        assert_int_equal(tow_mover_stats(hand->mover).lent_count, 0);
        assert_int_equal(tow_mover_stats(hand->mover).lent_bytes, 0);
        assert_int_equal(tow_mover_stats(hand->mover).move_count, 0);
        tow_mover_clear(hand->mover);
        assert_int_equal(tow_mover_stats(hand->mover).early_count, 0);
        assert_int_equal(tow_mover_stats(hand->mover).early_bytes, 0);
        tow_mover_destroy(hand->mover);
    }
    assert_true(tow_list_is_empty(&yard->loans));
    tow_arena_deinit(&yard->arena);
}

static inline void hand_crash(hand_t *hand)
{
    tow_list_t *item;
    tow_mover_forget(hand->mover);
    while ((item = tow_list_pop_front(&hand->regions)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, yard_region_t, list));
    while ((item = tow_list_pop_front(&hand->buffers)) != NULL) {
        yard_buffer_t *buffer = TOW_CONTAINER_OF(item, yard_buffer_t, list);
        tow_status_release(buffer->error);
        if (buffer->upload == NULL) tow_free(buffer->bytes);
        tow_free(buffer);
    }
}

/* All processes die: what is left is the env's and the driver's. */
static inline void yard_crash(yard_t *yard)
{
    tow_list_t *item;
    for (uint32_t i = 0; i < yard->hand_count; i++)
        hand_crash(&yard->hands[i]);
    while ((item = tow_list_pop_front(&yard->events)) != NULL) {
        event_t *event = TOW_CONTAINER_OF(item, event_t, list);
        tow_status_release(event->status);
        test_free(event);
    }
    while ((item = tow_list_pop_front(&yard->loans)) != NULL)
        test_free(TOW_CONTAINER_OF(item, yard_loan_t, list));
    tow_arena_deinit(&yard->arena);
}

/* -- Routes ------------------------------------------------------------------------------- */

/* How an array lies: equal parts in order, part p on worker places[p], several
 * times if there are more places than parts. */
typedef struct layout {
    uint32_t parts[TOW_RANK_MAX];
    size_t place_count;
    uint32_t places[SHARDS_MAX]; /* processes */
} layout_t;

typedef struct plan {
    tow_shape_t whole;
    layout_t from, to;
    tow_route_t routes[WORKERS_MAX];
    tow_piece_t *sends[WORKERS_MAX];
    tow_piece_t *receives[WORKERS_MAX];
    uint32_t devices[WORKERS_MAX][SHARDS_MAX];
    size_t source_counts[WORKERS_MAX];
} plan_t;

static inline size_t part_count(const layout_t *layout, uint32_t rank)
{
    size_t count = 1;
    for (uint32_t i = 0; i < rank; i++)
        count *= layout->parts[i];
    return count;
}

static inline tow_shape_t shard_shape(const tow_shape_t *whole,
                                      const layout_t *layout)
{
    tow_shape_t shape = *whole;
    for (uint32_t i = 0; i < whole->rank; i++) {
        assert_int_equal(whole->dims[i] % layout->parts[i], 0);
        shape.dims[i] /= layout->parts[i];
    }
    return shape;
}

/* Where the part of that shard begins. */
static inline void shard_start(const tow_shape_t *whole, const layout_t *layout,
                               size_t shard, int64_t *out_start)
{
    size_t part = shard % part_count(layout, whole->rank);
    for (uint32_t i = whole->rank; i-- > 0;) {
        out_start[i] = (int64_t)(part % layout->parts[i]) *
                       (whole->dims[i] / layout->parts[i]);
        part /= layout->parts[i];
    }
}

static inline uint32_t local_index(const layout_t *layout, size_t shard)
{
    uint32_t index = 0;
    for (size_t i = 0; i < shard; i++)
        index += layout->places[i] == layout->places[shard];
    return index;
}

static inline bool intersect(const plan_t *plan, size_t from, size_t to,
                             tow_piece_t *out_piece)
{
    int64_t a[TOW_RANK_MAX], b[TOW_RANK_MAX];
    const tow_shape_t source = shard_shape(&plan->whole, &plan->from);
    const tow_shape_t target = shard_shape(&plan->whole, &plan->to);
    uint64_t bytes = tow_type_bits(plan->whole.type) / 8;
    shard_start(&plan->whole, &plan->from, from, a);
    shard_start(&plan->whole, &plan->to, to, b);
    *out_piece = (tow_piece_t){.source_shard = local_index(&plan->from, from),
                               .target_shard = local_index(&plan->to, to)};
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

/* One row in the target? Then where. Written apart from what is tested. */
static inline bool is_row(const plan_t *plan, const tow_piece_t *piece,
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

/* Fills the routes of all workers. Each target takes a part from the first
 * shard that has it, or, for a replica, from another. */
static inline void plan_make(plan_t *plan, uint32_t hand_count)
{
    const uint32_t rank = plan->whole.rank;
    const size_t from_parts = part_count(&plan->from, rank);
    bool is_packed = false;
    for (uint32_t i = 0; i < hand_count; i++) {
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
    for (uint32_t i = 0; i < hand_count; i++) {
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

static inline void plan_free(plan_t *plan, uint32_t hand_count)
{
    for (uint32_t i = 0; i < hand_count; i++) {
        test_free(plan->sends[i]);
        test_free(plan->receives[i]);
    }
}

static inline uint8_t byte_at(uint64_t index, uint64_t salt)
{
    return (uint8_t)((index * UINT64_C(0x9e3779b97f4a7c15) + salt) >> 40);
}

/* The bytes of a shard, element by element of the whole array. */
static inline void fill_shard(const plan_t *plan, const layout_t *layout,
                              size_t shard, uint64_t salt, uint8_t *out_bytes)
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
            out_bytes[at * element + b] = byte_at(whole * element + b, salt);
    }
}

/* -- Trips: one transfer, on all its workers ------------------------------------------------- */

typedef struct trip_part {
    tow_move_t move;
    struct trip *trip;
    bool is_begun;
    bool is_done;
    int sized_count; /* how often it was told */
    tow_code_t code;
    char message[256];
    tow_buffer_t *sources[SHARDS_MAX];
    tow_buffer_t *targets[SHARDS_MAX];
} trip_part_t;

typedef struct trip {
    yard_t *yard;
    const plan_t *plan;
    uint64_t salt;
    trip_part_t parts[WORKERS_MAX];
} trip_t;

static inline void trip_done(tow_move_t *move, tow_status_t take_status)
{
    trip_part_t *part = TOW_CONTAINER_OF(move, trip_part_t, move);
    assert_false(part->is_done);
    part->is_done = true;
    part->code = tow_status_code(take_status);
    snprintf(part->message, sizeof(part->message), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
}

/* Sources are there as promises. */
static inline void trip_init(trip_t *trip, yard_t *yard, const plan_t *plan,
                             uint64_t gang)
{
    *trip = (trip_t){.yard = yard, .plan = plan, .salt = gang * 77};
    for (uint32_t i = 0; i < yard->hand_count; i++) {
        trip_part_t *part = &trip->parts[i];
        part->trip = trip;
        part->move = (tow_move_t){.route = &plan->routes[i],
                                  .gang = gang,
                                  .sources = part->sources,
                                  .source_stride = 1,
                                  .targets = part->targets,
                                  .done = trip_done};
        for (size_t s = 0; s < plan->source_counts[i]; s++)
            part->sources[s] =
                &yard_buffer(&yard->hands[i], s, &plan->routes[i].source)->base;
    }
}

static inline tow_status_t trip_start(trip_t *trip, uint32_t process)
{
    trip_part_t *part = &trip->parts[process];
    tow_mover_t *mover = trip->yard->hands[process].mover;
    tow_status_t status = tow_mover_start(mover, &part->move);
    if (status == TOW_OK) part->is_begun = true;
    tow_mover_granted(mover, part->move.gang);
    return status;
}

/* Source shard `shard` of all is there. */
static inline void trip_produce(trip_t *trip, size_t shard)
{
    const plan_t *plan = trip->plan;
    tow_buffer_t *buffer = trip->parts[plan->from.places[shard]]
                               .sources[local_index(&plan->from, shard)];
    uint8_t *bytes = test_malloc(buffer->bytes + 1);
    fill_shard(plan, &plan->from, shard, trip->salt, bytes);
    buffer_finish(buffer, bytes);
    test_free(bytes);
}

static inline void trip_expect_bytes(const trip_t *trip)
{
    const plan_t *plan = trip->plan;
    for (size_t t = 0; t < plan->to.place_count; t++) {
        const trip_part_t *part = &trip->parts[plan->to.places[t]];
        const yard_buffer_t *buffer =
            (const yard_buffer_t *)part->targets[local_index(&plan->to, t)];
        assert_int_equal(buffer->state, TOW_BUFFER_READY);
        uint8_t *bytes = test_malloc(buffer->base.bytes + 1);
        fill_shard(plan, &plan->to, t, trip->salt, bytes);
        assert_memory_equal(buffer->bytes, bytes, buffer->base.bytes);
        test_free(bytes);
    }
}

/* The owner lets go of everything. A producer that has not finished fails. */
static inline void trip_release(trip_t *trip)
{
    for (uint32_t i = 0; i < trip->yard->hand_count; i++) {
        trip_part_t *part = &trip->parts[i];
        for (size_t s = 0; s < trip->plan->source_counts[i]; s++) {
            tow_buffer_t *source = part->sources[s];
            if (tow_buffer_state(source) == TOW_BUFFER_PENDING)
                buffer_fail(source, TOW_ERROR(TOW_CANCELLED, "not any more"));
            tow_buffer_release(source);
        }
        for (size_t t = 0; part->is_begun && t < part->move.route->target_count;
             t++)
            if (part->targets[t] != NULL) /* It was sized. */
                tow_buffer_release(part->targets[t]);
    }
}

#endif /* TOW_DATAFLOW_MOVER_TESTING_IMPL_H_ */
