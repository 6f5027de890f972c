/* Spills: shards of idle objects move to host memory, and back.
 *
 * The controller chooses objects that no granted run uses. In the shard store a
 * spilled object has an error instead of shards, so a run that used it all the
 * same would fail; gets find it here. Its bytes are counted by reference,
 * because a get may still write from them when the object is on its devices
 * again, or released. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/object_table.h"
#include "worker/worker_impl.h"

typedef enum spill_state {
    SPILL_LEAVING,
    SPILL_AWAY,
    SPILL_RETURNING, /* in the store again; the device still reads */
} spill_state_t;

typedef struct spill_shard {
    union {
        tow_download_t download;
        tow_upload_t upload;
    };
    spill_t *spill;
    tow_buffer_t *buffer; /* counted; LEAVING */
    tow_shape_t shape;
    size_t device;
    host_bytes_t *bytes; /* counted */
} spill_shard_t;

struct spill {
    tow_worker_t *worker;
    tow_list_t in_worker;
    uint64_t object;
    uint64_t number;
    spill_state_t state;
    bool is_cancelled; /* no reply is expected */
    uint32_t busy_count;
    tow_status_t error; /* owned: the first */
    uint32_t shard_count;
    spill_shard_t shards[];
};

/* -- Bytes ----------------------------------------------------------------- */

static host_bytes_t *make_bytes(tow_worker_t *worker, uint64_t size)
{
    if (size > TOW_ALLOC_BYTES_MAX - sizeof(host_bytes_t)) return NULL;
    host_bytes_t *bytes = tow_malloc(sizeof(*bytes) + (size_t)size);
    if (bytes == NULL) return NULL;
    bytes->reference_count = 1;
    bytes->size = size;
    worker->spill_bytes += size;
    return bytes;
}

void worker_host_bytes_release(tow_worker_t *worker, host_bytes_t *bytes)
{
    if (bytes == NULL || --bytes->reference_count > 0) return;
    TOW_ASSERT(worker->spill_bytes >= bytes->size);
    worker->spill_bytes -= bytes->size;
    tow_free(bytes);
}

/* -- Ending ---------------------------------------------------------------- */

static void answer(tow_worker_t *worker, uint64_t object, uint64_t number,
                   bool is_back, tow_status_t status)
{
    tow_msg_spill_done_t done = TOW_MSG_SPILL_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    done.object = object;
    done.spill = number;
    done.is_back = is_back;
    if (status != TOW_OK) done.failure = &failure;
    worker_send(worker, TOW_MESSAGE_SPILL_DONE, &done.base);
}

static void free_spill(spill_t *spill)
{
    tow_worker_t *worker = spill->worker;
    for (uint32_t i = 0; i < spill->shard_count; i++) {
        if (spill->shards[i].buffer != NULL)
            tow_buffer_release(spill->shards[i].buffer);
        worker_host_bytes_release(worker, spill->shards[i].bytes);
    }
    TOW_ASSERT(worker->spill_count > 0);
    tow_list_remove(&spill->in_worker);
    tow_status_release(spill->error);
    tow_free(spill);
    worker->spill_count--;
}

/* Removes it from the tables: operations under way end by themselves. */
static void drop(spill_t *spill)
{
    if (spill->state != SPILL_RETURNING)
        tow_map_remove(&spill->worker->spills_by_object, spill->object);
    spill->is_cancelled = true;
    if (spill->busy_count == 0) free_spill(spill);
}

static void note_error(spill_t *spill, tow_status_t take_status)
{
    if (spill->error == TOW_OK)
        spill->error = take_status;
    else
        tow_status_release(take_status);
}

/* -- To host memory -------------------------------------------------------- */

static void remove_from_store(spill_t *spill)
{
    tow_worker_t *worker = spill->worker;
    tow_shard_store_object_t *object =
        tow_shard_store_find(worker->shard_store, spill->object);
    tow_status_t away = TOW_ERROR(TOW_FAILED_PRECONDITION,
                                  "object %" PRIu64 " is in host memory",
                                  tow_key_id(spill->object));
    TOW_ASSERT(object != NULL);
    for (uint32_t i = 0; i < spill->shard_count; i++) {
        tow_buffer_release(spill->shards[i].buffer);
        spill->shards[i].buffer = NULL;
    }
    tow_shard_store_fail(worker->shard_store, object, away);
    tow_status_release(away);
}

/* All downloads have ended, or could not start. */
static void settle_leaving(spill_t *spill)
{
    tow_worker_t *worker = spill->worker;
    if (spill->is_cancelled) {
        free_spill(spill);
        worker_settle(worker);
        return;
    }
    if (spill->error == TOW_OK) {
        remove_from_store(spill);
        spill->state = SPILL_AWAY;
        answer(worker, spill->object, spill->number, false, TOW_OK);
        return;
    }
    answer(worker, spill->object, spill->number, false, spill->error);
    drop(spill);
}

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    spill_shard_t *shard = TOW_CONTAINER_OF(download, spill_shard_t, download);
    spill_t *spill = shard->spill;
    if (take_status != TOW_OK) note_error(spill, take_status);
    if (--spill->busy_count == 0) settle_leaving(spill);
}

static tow_status_t begin_download(spill_shard_t *shard)
{
    tow_worker_t *worker = shard->spill->worker;
    uint64_t size = 0;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&shard->shape, &size));
    shard->bytes = make_bytes(worker, size);
    if (shard->bytes == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "cannot allocate %" PRIu64 " bytes of host memory",
                         size);
    shard->bytes->shape = shard->shape;
    shard->download = (tow_download_t){.buffer = shard->buffer,
                                       .bytes = shard->bytes->bytes,
                                       .size = (size_t)size,
                                       .done = downloaded};
    return tow_driver_download(worker->options.driver, &shard->download);
}

static tow_status_t check_spill(const tow_worker_t *worker,
                                const tow_msg_spill_t *message,
                                tow_shard_store_object_t **out_object)
{
    tow_shard_store_object_t *object =
        tow_shard_store_find(worker->shard_store, message->object);
    const uint64_t id = tow_key_id(message->object);
    if (object == NULL)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "object %" PRIu64 " is not on this worker", id);
    if (object->error != TOW_OK) return tow_status_retain(object->error);
    if (tow_map_find(&worker->spills_by_object, message->object) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "object %" PRIu64 " is being spilled", id);
    if (tow_shard_store_is_shared(object))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "object %" PRIu64 " shares its memory with another",
                         id);
    *out_object = object;
    return TOW_OK;
}

static spill_t *make_spill(tow_worker_t *worker, const tow_msg_spill_t *message,
                           const tow_shard_store_object_t *object)
{
    TOW_ASSERT(object != NULL);
    spill_t *spill = tow_calloc(1, sizeof(*spill) + object->shard_count *
                                                        sizeof(spill_shard_t));
    if (spill == NULL ||
        !tow_map_put(&worker->spills_by_object, message->object, spill)) {
        tow_free(spill);
        return NULL;
    }
    spill->worker = worker;
    spill->object = message->object;
    spill->number = message->spill;
    spill->shard_count = object->shard_count;
    for (uint32_t i = 0; i < spill->shard_count; i++) {
        spill_shard_t *shard = &spill->shards[i];
        shard->spill = spill;
        shard->buffer = object->shards[i];
        shard->shape = shard->buffer->shape;
        shard->device = shard->buffer->device;
        tow_buffer_retain(shard->buffer);
    }
    tow_list_append(&worker->spills, &spill->in_worker);
    worker->spill_count++;
    return spill;
}

static tow_status_t begin_spill(tow_worker_t *worker,
                                const tow_msg_spill_t *message)
{
    tow_shard_store_object_t *object = NULL;
    TOW_RETURN_IF_ERROR(check_spill(worker, message, &object));
    spill_t *spill = make_spill(worker, message, object);
    if (spill == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    spill->busy_count = 1; /* This call. */
    for (uint32_t i = 0; i < spill->shard_count && spill->error == TOW_OK;
         i++) {
        tow_status_t status = begin_download(&spill->shards[i]);
        if (status == TOW_OK)
            spill->busy_count++;
        else
            note_error(spill, status);
    }
    if (--spill->busy_count == 0) settle_leaving(spill);
    return TOW_OK;
}

void worker_spill(tow_worker_t *worker, const tow_msg_spill_t *message)
{
    tow_status_t status = begin_spill(worker, message);
    if (status == TOW_OK) return;
    answer(worker, message->object, message->spill, false, status);
    tow_status_release(status);
}

/* -- Back to the devices --------------------------------------------------- */

static void settle_returning(spill_t *spill)
{
    tow_worker_t *worker = spill->worker;
    if (!spill->is_cancelled)
        answer(worker, spill->object, spill->number, true, spill->error);
    free_spill(spill);
    worker_settle(worker);
}

/* The device has its copy. */
static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    spill_shard_t *shard = TOW_CONTAINER_OF(upload, spill_shard_t, upload);
    spill_t *spill = shard->spill;
    TOW_ASSERT(spill->state == SPILL_RETURNING && spill->busy_count > 0);
    if (take_status != TOW_OK) note_error(spill, take_status);
    if (--spill->busy_count == 0) settle_returning(spill);
}

static tow_status_t upload(spill_t *spill, tow_buffer_t **out_buffers)
{
    for (uint32_t i = 0; i < spill->shard_count; i++) {
        spill_shard_t *shard = &spill->shards[i];
        shard->upload = (tow_upload_t){.device = shard->device,
                                       .shape = shard->shape,
                                       .bytes = shard->bytes->bytes,
                                       .done = uploaded};
        tow_status_t status =
            tow_driver_upload(spill->worker->options.driver, &shard->upload);
        if (status != TOW_OK) {
            while (i-- > 0)
                tow_buffer_release(out_buffers[i]);
            return status;
        }
        spill->busy_count++;
        out_buffers[i] = shard->upload.buffer;
    }
    return TOW_OK;
}

/* Replaces its error. */
static tow_status_t add_to_store(const spill_t *spill, tow_buffer_t **buffers)
{
    tow_shard_store_t *shard_store = spill->worker->shard_store;
    (void)tow_shard_store_remove(shard_store, spill->object);
    tow_status_t status = tow_shard_store_put(
        shard_store, spill->object,
        &(tow_shard_list_t){
            .first = buffers, .stride = 1, .count = spill->shard_count});
    for (uint32_t i = 0; status != TOW_OK && i < spill->shard_count; i++)
        tow_buffer_release(buffers[i]);
    return status;
}

static void unspill(spill_t *spill)
{
    tow_worker_t *worker = spill->worker;
    tow_buffer_t *buffers[TOW_WORKER_DEVICES_MAX];
    tow_map_remove(&worker->spills_by_object, spill->object);
    spill->state = SPILL_RETURNING;
    spill->busy_count = 1; /* This call. */
    tow_status_t status = upload(spill, buffers);
    if (status == TOW_OK)
        status = add_to_store(spill, buffers);
    else
        (void)tow_shard_store_remove(worker->shard_store, spill->object);
    if (status != TOW_OK) {
        tow_status_ignore(tow_shard_store_put_failed(worker->shard_store,
                                                     spill->object, status),
                          "the reply to the controller has the cause");
        note_error(spill, status);
    }
    if (--spill->busy_count == 0) settle_returning(spill);
}

/* An object whose spill failed is still on its devices. */
tow_status_t worker_unspill(tow_worker_t *worker,
                            const tow_msg_unspill_t *message)
{
    spill_t *spill = tow_map_find(&worker->spills_by_object, message->object);
    if (spill == NULL) {
        answer(worker, message->object, message->spill, true, TOW_OK);
        return TOW_OK;
    }
    if (spill->state != SPILL_AWAY || spill->number != message->spill)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "object %" PRIu64
                         " is not spilled, or by another request",
                         tow_key_id(message->object));
    unspill(spill);
    return TOW_OK;
}

/* -- Look-up and cancelling ------------------------------------------------ */

host_bytes_t *worker_spill_find(const tow_worker_t *worker, uint64_t object,
                                uint32_t shard)
{
    const spill_t *spill = tow_map_find(&worker->spills_by_object, object);
    if (spill == NULL || spill->state != SPILL_AWAY ||
        shard >= spill->shard_count)
        return NULL;
    return spill->shards[shard].bytes;
}

void worker_spill_release(tow_worker_t *worker, uint64_t object)
{
    spill_t *spill = tow_map_find(&worker->spills_by_object, object);
    if (spill != NULL) drop(spill);
}

void worker_spills_on_disconnect(tow_worker_t *worker)
{
    for (tow_list_t *item = worker->spills.next; item != &worker->spills;) {
        spill_t *spill = TOW_CONTAINER_OF(item, spill_t, in_worker);
        item = item->next;
        drop(spill);
    }
}

void worker_spills_discard(tow_worker_t *worker)
{
    while (!tow_list_is_empty(&worker->spills)) {
        spill_t *spill =
            TOW_CONTAINER_OF(worker->spills.next, spill_t, in_worker);
        for (uint32_t i = 0; i < spill->shard_count; i++)
            spill->shards[i].buffer = NULL; /* The driver frees it. */
        free_spill(spill);
    }
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_spill_record(const tow_worker_t *worker,
                                       const spill_t *spill)
{
    const spill_t *found =
        tow_map_find(&worker->spills_by_object, spill->object);
    const bool is_listed =
        spill->state != SPILL_RETURNING && !spill->is_cancelled;
    TOW_INVARIANT(spill->worker == worker);
    TOW_INVARIANT(is_listed ? found == spill : found != spill);
    TOW_INVARIANT((spill->busy_count == 0) == (spill->state == SPILL_AWAY));
    for (uint32_t i = 0; i < spill->shard_count; i++) {
        const spill_shard_t *shard = &spill->shards[i];
        TOW_INVARIANT(shard->spill == spill);
        TOW_INVARIANT(spill->state == SPILL_LEAVING || shard->buffer == NULL);
        TOW_INVARIANT(spill->state == SPILL_LEAVING || shard->bytes != NULL);
    }
    return TOW_OK;
}

tow_status_t worker_spills_check(const tow_worker_t *worker)
{
    uint64_t bytes = 0;
    size_t count = 0;
    const tow_list_t *head = &worker->spills;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const spill_t *spill = TOW_CONTAINER_OF(at, spill_t, in_worker);
        TOW_RETURN_IF_ERROR(check_spill_record(worker, spill));
        for (uint32_t i = 0; i < spill->shard_count; i++)
            if (spill->shards[i].bytes != NULL)
                bytes += spill->shards[i].bytes->size;
        count++;
    }
    TOW_INVARIANT(count == worker->spill_count);
    TOW_INVARIANT(tow_map_count(&worker->spills_by_object) <= count);
    /* Gets may keep more. */
    TOW_INVARIANT(bytes <= worker->spill_bytes);
    return TOW_OK;
}
