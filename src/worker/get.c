/* Gets: a shard's bytes for a client, inside the reply or over a lane.
 *
 * The download waits for the value, so a get sees the effect of all earlier
 * grants and nothing blocks here. Host memory for the bytes is bounded: gets
 * that do not fit wait, in order. Large shards are borrowed from the device,
 * where the driver allows it: then nothing is copied on this side. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

struct get {
    union {
        tow_download_t download;
        tow_buffer_share_t share;
    };
    delivery_t delivery;
    tow_worker_t *worker;
    tow_list_t in_worker;
    uint64_t request;
    tow_buffer_t *buffer;  /* counted; NULL: the bytes are in host memory */
    host_bytes_t *spilled; /* counted: the spilled shard; or NULL */
    void *bytes;           /* owned */
    uint64_t size;
    tow_shape_t shape;
    bool is_cancelled; /* the client does not wait for the reply any more */
    bool is_shared;    /* by the driver; `bytes` is NULL */
    bool has_target;
    tow_msg_lane_target_t target; /* its address follows the struct */
    uint8_t address[];
};

static void start_waiting(tow_worker_t *worker);

/* -- Replies --------------------------------------------------------------- */

static void answer(tow_worker_t *worker, uint64_t request, tow_status_t status,
                   const void *bytes, size_t size, const tow_shape_t *shape)
{
    tow_msg_shard_get_done_t done = TOW_MSG_SHARD_GET_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    done.request = request;
    if (status != TOW_OK) {
        done.failure = &failure;
    } else {
        done.dims = (int64_t *)shape->dims;
        done.n_dims = shape->rank;
        if (bytes != NULL) {
            done.bytes.data = (uint8_t *)bytes;
            done.bytes.len = size;
        }
    }
    worker_send(worker, TOW_MESSAGE_SHARD_GET_DONE, &done.base);
}

static void free_get(get_t *get)
{
    worker_host_bytes_release(get->worker, get->spilled);
    tow_free(get->bytes);
    tow_free(get);
}

/* Of a get that is under way. */
static void finish(get_t *get, tow_status_t take_status)
{
    tow_worker_t *worker = get->worker;
    if (!get->is_cancelled)
        answer(worker, get->request, take_status,
               get->has_target        ? NULL
               : get->spilled != NULL ? get->spilled->bytes
                                      : get->bytes,
               (size_t)get->size, &get->shape);
    TOW_ASSERT(worker->get_count > 0 && worker->get_bytes >= get->size);
    tow_status_release(take_status);
    tow_list_remove(&get->in_worker);
    worker->get_count--;
    worker->get_bytes -= get->size;
    if (get->is_shared)
        tow_buffer_share_end(worker->options.driver, &get->share);
    if (get->buffer != NULL) tow_buffer_release(get->buffer);
    free_get(get);
    start_waiting(worker);
    worker_settle(worker);
}

/* -- Steps ----------------------------------------------------------------- */

static void delivered(delivery_t *delivery, tow_status_t take_status)
{
    get_t *get = TOW_CONTAINER_OF(delivery, get_t, delivery);
    finish(get, tow_status_annotate(take_status, "writing to the client"));
}

static void deliver(get_t *get, const void *bytes)
{
    get->delivery.write = (tow_write_t){.bytes = bytes,
                                        .size = (size_t)get->size,
                                        .tag = get->request,
                                        .check = get->worker->options.check};
    get->delivery.done = delivered;
    tow_status_t status =
        worker_deliver(get->worker, &get->target, &get->delivery);
    if (status != TOW_OK) finish(get, status);
}

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    get_t *get = TOW_CONTAINER_OF(download, get_t, download);
    if (take_status == TOW_OK && get->has_target && get->size > 0 &&
        !get->is_cancelled) {
        /* The bytes are in host memory now: a client that has died keeps no
         * device memory in use until its lane times out. */
        tow_buffer_release(get->buffer);
        get->buffer = NULL;
        deliver(get, get->bytes);
    } else {
        finish(get, take_status);
    }
}

static void borrowed(tow_buffer_share_t *share, tow_status_t take_status)
{
    get_t *get = TOW_CONTAINER_OF(share, get_t, share);
    get->is_shared = take_status == TOW_OK;
    if (get->is_shared && !get->is_cancelled)
        deliver(get, share->bytes);
    else
        finish(get, take_status);
}

static bool may_share(const get_t *get)
{
    return get->has_target && get->size >= TOW_WORKER_BORROW_BYTES_MIN &&
           get->worker->options.driver->ops->share != NULL;
}

static tow_status_t download(get_t *get)
{
    if (may_share(get)) {
        get->share =
            (tow_buffer_share_t){.buffer = get->buffer, .done = borrowed};
        return tow_driver_share(get->worker->options.driver, &get->share);
    }
    get->bytes = tow_malloc((size_t)get->size + 1);
    if (get->bytes == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "cannot allocate %" PRIu64 " bytes of host memory",
                         get->size);
    get->download = (tow_download_t){.buffer = get->buffer,
                                     .bytes = get->bytes,
                                     .size = (size_t)get->size,
                                     .done = downloaded};
    return tow_driver_download(get->worker->options.driver, &get->download);
}

/* -- Starting -------------------------------------------------------------- */

static bool fits(const tow_worker_t *worker, const get_t *get)
{
    const uint64_t bytes_max = worker->options.limits.get_bytes_max;
    return tow_list_is_empty(&worker->gets) ||
           (get->size <= bytes_max &&
            worker->get_bytes <= bytes_max - get->size);
}

static void start(get_t *get)
{
    tow_worker_t *worker = get->worker;
    tow_list_remove(&get->in_worker);
    tow_list_append(&worker->gets, &get->in_worker);
    worker->get_bytes += get->size;
    worker->get_bytes_total += get->size;
    if (get->spilled != NULL) {
        if (get->has_target && get->size > 0)
            deliver(get, get->spilled->bytes);
        else
            finish(get, TOW_OK);
        return;
    }
    tow_shard_unshare(
        get->buffer); /* The device protects the bytes from here on. */
    tow_status_t status = download(get);
    if (status != TOW_OK) finish(get, status);
}

static void start_waiting(tow_worker_t *worker)
{
    while (!tow_list_is_empty(&worker->waiting_gets)) {
        get_t *get =
            TOW_CONTAINER_OF(worker->waiting_gets.next, get_t, in_worker);
        if (!fits(worker, get)) return;
        start(get);
    }
}

static tow_status_t find_shard(tow_worker_t *worker,
                               const tow_msg_shard_get_t *message,
                               tow_buffer_t **out_buffer,
                               host_bytes_t **out_spilled, uint64_t *out_size)
{
    *out_spilled = worker_spill_find(worker, message->object, message->shard);
    if (*out_spilled != NULL) {
        *out_size = (*out_spilled)->size;
        return TOW_OK;
    }
    const tow_shard_store_object_t *object =
        tow_shard_store_find(worker->shard_store, message->object);
    if (object == NULL)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "object %" PRIu64 " is not on this worker",
                         message->object);
    if (object->error != TOW_OK) return tow_status_retain(object->error);
    if (message->shard >= object->shard_count)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "shard %u of object %" PRIu64 ", which has %u on this "
                         "worker",
                         message->shard, message->object, object->shard_count);
    *out_buffer = object->shards[message->shard];
    return tow_shape_bytes(&(*out_buffer)->shape, out_size);
}

static tow_status_t check_way(const tow_worker_t *worker,
                              const tow_msg_shard_get_t *message, uint64_t size)
{
    if (worker->get_count >= TOW_WORKER_GET_COUNT_MAX)
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "%zu gets are under way on this worker, which is its limit",
            worker->get_count);
    if (message->target == NULL && size > TOW_INLINE_BYTES_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "%" PRIu64
            " bytes do not fit into a reply, whose limit is %u: give a target",
            size, TOW_INLINE_BYTES_MAX);
    return TOW_OK;
}

static tow_status_t make_get(tow_worker_t *worker,
                             const tow_msg_shard_get_t *message, get_t **out)
{
    tow_buffer_t *buffer = NULL;
    uint64_t size = 0;
    host_bytes_t *spilled = NULL;
    TOW_RETURN_IF_ERROR(find_shard(worker, message, &buffer, &spilled, &size));
    TOW_RETURN_IF_ERROR(check_way(worker, message, size));
    const size_t address_size =
        message->target != NULL ? message->target->lane_address.len : 0;
    get_t *get = tow_calloc(1, sizeof(*get) + address_size);
    if (get == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_ASSERT((buffer != NULL) != (spilled != NULL));
    get->worker = worker;
    get->request = message->request;
    get->buffer = buffer;
    get->size = size;
    get->shape = spilled != NULL ? spilled->shape : buffer->shape;
    if (message->target != NULL) {
        get->has_target = true;
        get->target = *message->target;
        if (address_size > 0)
            memcpy(get->address, message->target->lane_address.data,
                   address_size);
        get->target.lane_address.data = get->address;
    }
    tow_list_init(&get->in_worker);
    get->spilled = spilled;
    if (spilled != NULL)
        spilled->reference_count++;
    else
        tow_buffer_retain(buffer);
    *out = get;
    return TOW_OK;
}

void worker_get(tow_worker_t *worker, const tow_msg_shard_get_t *message)
{
    get_t *get = NULL;
    tow_status_t status = make_get(worker, message, &get);
    if (status != TOW_OK) {
        answer(worker, message->request, status, NULL, 0, NULL);
        tow_status_release(status);
        return;
    }
    worker->get_count++;
    tow_list_append(&worker->waiting_gets, &get->in_worker);
    /* A run that is granted while the get waits must leave it the bytes. */
    if (get->buffer != NULL) tow_shard_share(get->buffer);
    start_waiting(worker);
}

/* -- Cancelling ------------------------------------------------------------ */

void worker_gets_on_disconnect(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->waiting_gets)) != NULL) {
        get_t *get = TOW_CONTAINER_OF(item, get_t, in_worker);
        worker->get_count--;
        if (get->buffer != NULL) {
            tow_shard_unshare(get->buffer);
            tow_buffer_release(get->buffer);
        }
        free_get(get);
    }
    const tow_list_t *head = &worker->gets;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        TOW_CONTAINER_OF(at, get_t, in_worker)->is_cancelled = true;
}

void worker_gets_discard(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->waiting_gets)) != NULL)
        free_get(TOW_CONTAINER_OF(item, get_t, in_worker));
    while ((item = tow_list_pop_front(&worker->gets)) != NULL)
        free_get(TOW_CONTAINER_OF(item, get_t, in_worker));
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_get(const tow_worker_t *worker, const get_t *get)
{
    TOW_INVARIANT(get->worker == worker);
    TOW_INVARIANT(get->spilled == NULL || get->buffer == NULL);
    TOW_INVARIANT(get->spilled == NULL || get->spilled->reference_count > 0);
    TOW_INVARIANT(!get->is_shared ||
                  (get->bytes == NULL && get->buffer != NULL));
    TOW_INVARIANT(get->has_target || get->size <= TOW_INLINE_BYTES_MAX);
    return TOW_OK;
}

tow_status_t worker_gets_check(const tow_worker_t *worker)
{
    uint64_t bytes = 0;
    size_t count = 0;
    for (const tow_list_t *at = worker->gets.next; at != &worker->gets;
         at = at->next) {
        const get_t *get = TOW_CONTAINER_OF(at, get_t, in_worker);
        TOW_RETURN_IF_ERROR(check_get(worker, get));
        bytes += get->size;
        count++;
    }
    for (const tow_list_t *at = worker->waiting_gets.next;
         at != &worker->waiting_gets; at = at->next) {
        const get_t *get = TOW_CONTAINER_OF(at, get_t, in_worker);
        TOW_RETURN_IF_ERROR(check_get(worker, get));
        TOW_INVARIANT((get->buffer != NULL) != (get->spilled != NULL));
        TOW_INVARIANT(get->bytes == NULL && !get->is_cancelled);
        TOW_INVARIANT(!tow_list_is_empty(&worker->gets)); /* One always fits. */
        count++;
    }
    TOW_INVARIANT(bytes == worker->get_bytes);
    TOW_INVARIANT(count == worker->get_count);
    TOW_INVARIANT(count <= TOW_WORKER_GET_COUNT_MAX);
    return TOW_OK;
}
