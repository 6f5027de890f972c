/* Puts: bytes of a client become shards in the shard store.
 *
 * Small ones arrive inside the message. For others each shard gets memory of
 * its own and a region over it; the client writes it whole, once. Then the
 * region is closed, so that the bytes cannot change any more, and the memory is
 * given to the device, which may use it without a copy for the life of the
 * buffer.
 *
 * A put is *settled* when the controller has been answered, or needs no answer.
 * Its record stays until regions and uploads have ended. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

typedef struct put_shard {
    tow_upload_t upload;
    put_t *put;
    tow_region_t *region; /* NULL: none is open */
    void *bytes;          /* owned; NULL: the put's bytes */
    bool is_counted;      /* as the device's; later the driver does it */
    bool is_closing;      /* the region */
    bool has_arrived;
} put_shard_t;

struct put {
    tow_worker_t *worker;
    tow_list_t in_worker;
    uint64_t object;
    tow_shape_t shape;
    uint64_t shard_bytes;
    uint64_t memory_bytes; /* counted in the worker */
    void *bytes;           /* owned; of an inlined put */
    uint32_t busy_count;   /* callbacks outstanding */
    uint32_t uploaded_count;
    uint32_t shard_count;
    bool is_settled;
    put_shard_t shards[];
};

/* -- Ending ---------------------------------------------------------------- */

static void count_bytes(put_shard_t *shard, bool is_counted)
{
    const int64_t bytes = (int64_t)shard->put->shard_bytes;
    if (shard->is_counted == is_counted) return;
    shard->is_counted = is_counted;
    tow_driver_borrow(shard->put->worker->options.driver, shard->upload.device,
                      is_counted ? bytes : -bytes);
}

static void free_bytes(put_shard_t *shard)
{
    put_t *put = shard->put;
    count_bytes(shard, false);
    tow_block_cache_free(&put->worker->block_cache, shard->bytes,
                         (size_t)put->shard_bytes);
    shard->bytes = NULL;
}

static void free_put(put_t *put)
{
    for (uint32_t i = 0; i < put->shard_count; i++)
        free_bytes(&put->shards[i]);
    tow_free(put->bytes);
    tow_free(put);
}

static void release_when_idle(put_t *put)
{
    if (!put->is_settled || put->busy_count > 0) return;
    tow_worker_t *worker = put->worker;
    tow_list_remove(&put->in_worker);
    TOW_ASSERT(worker->put_count > 0 && worker->put_bytes >= put->memory_bytes);
    worker->put_count--;
    worker->put_bytes -= put->memory_bytes;
    free_put(put);
    worker_settle(worker);
}

static void answer(tow_worker_t *worker, uint64_t object, tow_status_t status)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    done.object = object;
    if (status != TOW_OK) done.failure = &failure;
    worker_send(worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
}

static void region_closed(void *context);

static void close_region(put_shard_t *shard)
{
    if (shard->region == NULL || shard->is_closing) return;
    shard->is_closing = true;
    tow_region_close(shard->region, (tow_closed_t){region_closed, shard});
}

static void settle(put_t *put)
{
    TOW_ASSERT(!put->is_settled);
    put->is_settled = true;
    tow_map_remove(&put->worker->puts_by_object, put->object);
    for (uint32_t i = 0; i < put->shard_count; i++)
        close_region(&put->shards[i]);
}

static void release_buffers(put_t *put)
{
    for (uint32_t i = 0; i < put->shard_count; i++) {
        tow_buffer_release(put->shards[i].upload.buffer);
        put->shards[i].upload.buffer = NULL;
    }
}

/* The object fails. Runs that were granted with it find the error. */
static void fail(put_t *put, tow_status_t take_cause)
{
    tow_worker_t *worker = put->worker;
    settle(put);
    release_buffers(put);
    tow_status_ignore(tow_shard_store_put_failed(worker->shard_store,
                                                 put->object, take_cause),
                      "the reply to the controller has the cause");
    answer(worker, put->object, take_cause);
    tow_status_release(take_cause);
}

/* All shards have been handed to their devices. */
static void complete(put_t *put)
{
    tow_worker_t *worker = put->worker;
    tow_buffer_t *buffers[TOW_WORKER_DEVICES_MAX];
    for (uint32_t i = 0; i < put->shard_count; i++)
        buffers[i] = put->shards[i].upload.buffer;
    tow_status_t status = tow_shard_store_put(
        worker->shard_store, put->object,
        &(tow_shard_list_t){
            .first = buffers, .stride = 1, .count = put->shard_count});
    if (status != TOW_OK) release_buffers(put);
    settle(put);
    answer(worker, put->object, status);
    tow_status_release(status);
}

/* -- Uploads --------------------------------------------------------------- */

/* The device does not need the bytes any more. If the upload failed, the buffer
 * has failed and reports that to its users. */
static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    put_shard_t *shard = TOW_CONTAINER_OF(upload, put_shard_t, upload);
    put_t *put = shard->put;
    tow_status_ignore(take_status, "the buffer reports the same error");
    TOW_ASSERT(put->busy_count > 0);
    free_bytes(shard);
    put->busy_count--;
    release_when_idle(put);
}

static tow_status_t upload(put_shard_t *shard, const void *bytes)
{
    put_t *put = shard->put;
    shard->upload.shape = put->shape;
    shard->upload.bytes = bytes;
    shard->upload.may_alias = shard->bytes != NULL;
    shard->upload.may_overwrite = true;
    shard->upload.done = uploaded;
    count_bytes(shard, false);
    TOW_RETURN_IF_ERROR(
        tow_driver_upload(put->worker->options.driver, &shard->upload));
    TOW_ASSERT(put->uploaded_count < put->shard_count);
    put->busy_count++;
    put->uploaded_count++;
    return TOW_OK;
}

/* -- Regions --------------------------------------------------------------- */

/* The memory cannot be written any more. */
static void region_closed(void *context)
{
    put_shard_t *shard = context;
    put_t *put = shard->put;
    TOW_ASSERT(shard->is_closing && put->busy_count > 0);
    shard->region = NULL;
    shard->is_closing = false;
    put->busy_count--;
    if (!put->is_settled && shard->has_arrived) {
        tow_status_t status = upload(shard, shard->bytes);
        if (status != TOW_OK)
            fail(put, status);
        else if (put->uploaded_count == put->shard_count)
            complete(put);
    }
    release_when_idle(put);
}

/* Whole and once: bytes that a client did not write would be another
 * client's. */
static void shard_arrived(void *context, tow_region_t *region,
                          const tow_arrival_t *arrival)
{
    (void)region;
    put_shard_t *shard = context;
    put_t *put = shard->put;
    if (put->is_settled || shard->is_closing) return;
    if (arrival->offset != 0 || arrival->size != put->shard_bytes) {
        fail(put, TOW_ERROR(TOW_INVALID_ARGUMENT,
                            "a shard of %" PRIu64
                            " bytes must be written whole, not %" PRIu64
                            " bytes at offset %" PRIu64,
                            put->shard_bytes, arrival->size, arrival->offset));
        return;
    }
    shard->has_arrived = true;
    close_region(shard);
}

static tow_status_t open_region(put_shard_t *shard)
{
    put_t *put = shard->put;
    shard->bytes = tow_block_cache_alloc(&put->worker->block_cache,
                                         (size_t)put->shard_bytes);
    if (shard->bytes == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "cannot allocate %" PRIu64 " bytes for a shard",
                         put->shard_bytes);
    count_bytes(shard, true);
    const tow_region_options_t options = {.bytes = shard->bytes,
                                          .size = (size_t)put->shard_bytes,
                                          .arrived = shard_arrived,
                                          .context = shard};
    TOW_RETURN_IF_ERROR(
        tow_env_region_open(put->worker->env, &options, &shard->region));
    put->busy_count++;
    return TOW_OK;
}

static void send_opened(put_t *put)
{
    tow_msg_shard_put_opened_t opened = TOW_MSG_SHARD_PUT_OPENED_INIT;
    tow_msg_lane_target_t targets[TOW_WORKER_DEVICES_MAX];
    tow_msg_lane_target_t *pointers[TOW_WORKER_DEVICES_MAX];
    const void *address;
    size_t address_size;
    tow_env_lane_address(put->worker->env, &address, &address_size);
    for (uint32_t i = 0; i < put->shard_count; i++) {
        const tow_region_key_t key = tow_region_key(put->shards[i].region);
        targets[i] = (tow_msg_lane_target_t)TOW_MSG_LANE_TARGET_INIT;
        targets[i].lane_address.data = (uint8_t *)address;
        targets[i].lane_address.len = address_size;
        targets[i].region_id = key.id;
        targets[i].region_secret = key.secret;
        pointers[i] = &targets[i];
    }
    opened.object = put->object;
    opened.targets = pointers;
    opened.n_targets = put->shard_count;
    worker_send(put->worker, TOW_MESSAGE_SHARD_PUT_OPENED, &opened.base);
}

/* -- Regions or inlined bytes ---------------------------------------------- */

static tow_status_t open_regions(put_t *put)
{
    if (!tow_env_has_lanes(put->worker->env))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the worker has no data plane");
    if (put->shard_bytes == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "an array without bytes must be inlined");
    for (uint32_t i = 0; i < put->shard_count; i++)
        TOW_RETURN_IF_ERROR(open_region(&put->shards[i]));
    send_opened(put);
    return TOW_OK;
}

static tow_status_t upload_inlined(put_t *put,
                                   const tow_msg_shard_put_t *message)
{
    const uint64_t expected =
        put->shard_bytes * (message->replicated ? 1 : put->shard_count);
    if (message->bytes.len != expected)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%u shards of %" PRIu64 " bytes: %" PRIu64
                         " bytes are expected, and %zu arrived",
                         put->shard_count, put->shard_bytes, expected,
                         message->bytes.len);
    put->bytes = tow_malloc((size_t)expected + 1);
    if (put->bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (expected > 0) memcpy(put->bytes, message->bytes.data, expected);
    const size_t step = message->replicated ? 0 : (size_t)put->shard_bytes;
    for (uint32_t i = 0; i < put->shard_count; i++)
        TOW_RETURN_IF_ERROR(
            upload(&put->shards[i], (const char *)put->bytes + i * step));
    complete(put);
    return TOW_OK;
}

/* -- Starting -------------------------------------------------------------- */

static tow_status_t read_shape(const tow_msg_array_type_t *type,
                               tow_shape_t *out_shape, uint64_t *out_bytes)
{
    if (type == NULL || type->n_dims > TOW_RANK_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "it has no shape");
    *out_shape = (tow_shape_t){.type = (tow_type_t)type->type,
                               .rank = (uint32_t)type->n_dims};
    for (size_t i = 0; i < type->n_dims; i++)
        out_shape->dims[i] = type->dims[i];
    return tow_shape_bytes(out_shape, out_bytes);
}

static tow_status_t check_devices(const tow_worker_t *worker,
                                  const tow_msg_shard_put_t *message)
{
    const size_t device_count = worker->options.driver->device_count;
    bool is_taken[TOW_WORKER_DEVICES_MAX] = {false};
    if (message->n_devices == 0 || message->n_devices > device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu shards for a worker of %zu devices",
                         message->n_devices, device_count);
    for (size_t i = 0; i < message->n_devices; i++) {
        const uint32_t device = message->devices[i];
        if (device >= device_count || is_taken[device])
            return TOW_ERROR(
                TOW_INVALID_ARGUMENT,
                "device %u: the worker has %zu, and each may be used once",
                device, device_count);
        is_taken[device] = true;
    }
    return TOW_OK;
}

static tow_status_t reserve(const tow_worker_t *worker, uint64_t object,
                            uint64_t memory_bytes)
{
    if (tow_map_find(&worker->puts_by_object, object) != NULL ||
        tow_shard_store_find(worker->shard_store, object) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "it exists on this worker already");
    const uint64_t bytes_max = worker->options.limits.put_bytes_max;
    if (worker->put_count < TOW_WORKER_PUT_COUNT_MAX &&
        memory_bytes <= bytes_max &&
        worker->put_bytes <= bytes_max - memory_bytes)
        return TOW_OK;
    return TOW_ERROR(
        TOW_RESOURCE_EXHAUSTED,
        "%" PRIu64 " bytes: %zu puts have %" PRIu64
        " bytes of the worker's memory, and the limits are %u and %" PRIu64,
        memory_bytes, worker->put_count, worker->put_bytes,
        TOW_WORKER_PUT_COUNT_MAX, bytes_max);
}

static tow_status_t make_put(tow_worker_t *worker,
                             const tow_msg_shard_put_t *message,
                             put_t **out_put)
{
    tow_shape_t shape;
    uint64_t shard_bytes = 0;
    TOW_RETURN_IF_ERROR(check_devices(worker, message));
    TOW_RETURN_IF_ERROR(read_shape(message->type, &shape, &shard_bytes));
    if (shard_bytes > TOW_ALLOC_BYTES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "a shard of %" PRIu64 " bytes",
                         shard_bytes);
    const uint64_t memory_bytes = shard_bytes * message->n_devices;
    TOW_RETURN_IF_ERROR(reserve(worker, message->object, memory_bytes));
    put_t *put =
        tow_calloc(1, sizeof(*put) + message->n_devices * sizeof(put_shard_t));
    if (put == NULL ||
        !tow_map_put(&worker->puts_by_object, message->object, put)) {
        tow_free(put);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    put->worker = worker;
    put->object = message->object;
    put->shape = shape;
    put->shard_bytes = shard_bytes;
    put->memory_bytes = memory_bytes;
    put->shard_count = (uint32_t)message->n_devices;
    for (uint32_t i = 0; i < put->shard_count; i++) {
        put->shards[i].put = put;
        put->shards[i].upload.device = message->devices[i];
    }
    tow_list_append(&worker->puts, &put->in_worker);
    worker->put_count++;
    worker->put_bytes += memory_bytes;
    worker->put_bytes_total += memory_bytes;
    *out_put = put;
    return TOW_OK;
}

void worker_put(tow_worker_t *worker, const tow_msg_shard_put_t *message)
{
    put_t *put = NULL;
    tow_status_t status = make_put(worker, message, &put);
    if (status != TOW_OK) {
        answer(worker, message->object, status);
        tow_status_release(status);
        return;
    }
    status =
        message->inlined ? upload_inlined(put, message) : open_regions(put);
    if (status != TOW_OK) fail(put, status);
    release_when_idle(put);
}

/* -- Cancelling ------------------------------------------------------------ */

static void cancel(put_t *put)
{
    settle(put);
    release_buffers(put);
    release_when_idle(put);
}

bool worker_put_cancel(tow_worker_t *worker, uint64_t object)
{
    put_t *put = tow_map_find(&worker->puts_by_object, object);
    if (put == NULL) return false;
    cancel(put);
    return true;
}

void worker_puts_on_disconnect(tow_worker_t *worker)
{
    size_t cursor = 0;
    uint64_t object;
    void *value;
    while (tow_map_next(&worker->puts_by_object, &cursor, &object, &value))
        cancel(value);
}

void worker_puts_discard(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->puts)) != NULL) {
        put_t *put = TOW_CONTAINER_OF(item, put_t, in_worker);
        for (uint32_t i = 0; i < put->shard_count; i++)
            tow_free(put->shards[i].bytes);
        tow_free(put->bytes);
        tow_free(put);
    }
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_put(const tow_worker_t *worker, const put_t *put)
{
    const put_t *found = tow_map_find(&worker->puts_by_object, put->object);
    uint32_t region_count = 0;
    TOW_INVARIANT(put->worker == worker);
    TOW_INVARIANT(put->memory_bytes == put->shard_bytes * put->shard_count);
    TOW_INVARIANT(put->uploaded_count <= put->shard_count);
    TOW_INVARIANT(put->is_settled ? found != put : found == put);
    TOW_INVARIANT(put->busy_count > 0);
    for (uint32_t i = 0; i < put->shard_count; i++) {
        const put_shard_t *shard = &put->shards[i];
        region_count += shard->region != NULL;
        TOW_INVARIANT(shard->put == put);
        TOW_INVARIANT(shard->region != NULL || !shard->is_closing);
        TOW_INVARIANT(shard->region == NULL || shard->bytes != NULL);
        TOW_INVARIANT(shard->region == NULL ||
                      shard->is_closing ==
                          (put->is_settled || shard->has_arrived));
    }
    TOW_INVARIANT(region_count <= put->busy_count);
    return TOW_OK;
}

tow_status_t worker_puts_check(const tow_worker_t *worker)
{
    uint64_t bytes = 0;
    size_t count = 0, unsettled_count = 0;
    const tow_list_t *head = &worker->puts;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const put_t *put = TOW_CONTAINER_OF(at, put_t, in_worker);
        TOW_RETURN_IF_ERROR(check_put(worker, put));
        bytes += put->memory_bytes;
        unsettled_count += !put->is_settled;
        count++;
    }
    TOW_INVARIANT(count == worker->put_count);
    TOW_INVARIANT(bytes == worker->put_bytes);
    TOW_INVARIANT(unsettled_count == tow_map_count(&worker->puts_by_object));
    return TOW_OK;
}
