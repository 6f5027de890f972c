/* Callbacks to clients: a computation calls a function of the client whose run
 * it is part of.
 *
 * The computation and its gang block meanwhile. So every call ends: with the
 * client's reply, or when its gang is aborted (the client has disconnected,
 * another member failed), or with the session. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

static void finish(tow_worker_t *worker, tow_worker_callback_t *call,
                   tow_status_t take_status)
{
    TOW_ASSERT(worker->call_count > 0);
    tow_list_remove(&call->node_);
    worker->call_count--;
    call->done(call, take_status);
}

/* -- Calling --------------------------------------------------------------- */

static size_t bytes_of(const tow_bytes_t *parts, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += parts[i].size;
    return total;
}

static size_t room_of(const tow_worker_callback_t *call)
{
    size_t total = 0;
    for (size_t i = 0; i < call->result_count; i++)
        total += call->results[i].size;
    return total;
}

static void pack(const tow_worker_callback_t *call, uint8_t *bytes)
{
    for (size_t i = 0; i < call->argument_count; i++) {
        const tow_bytes_t *each = &call->arguments[i];
        if (each->size > 0) memcpy(bytes, each->data, each->size);
        bytes += each->size;
    }
}

/* Inline in the message if they are small. */
static tow_status_t attach(tow_worker_t *worker,
                           const tow_worker_callback_t *call,
                           tow_msg_callback_t *message)
{
    const size_t size = bytes_of(call->arguments, call->argument_count);
    if (size > TOW_WORKER_CALL_BYTES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "a callback with %zu bytes of arguments; at most %llu "
                         "go to the client: reduce them on the device first",
                         size, (unsigned long long)TOW_WORKER_CALL_BYTES_MAX);
    uint8_t *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    pack(call, bytes);
    if (size <= TOW_INLINE_BYTES_MAX) {
        message->bytes = (ProtobufCBinaryData){size, bytes};
        return TOW_OK;
    }
    message->blob = tow_session_send_blob(
        worker->session, &(tow_session_blob_t){.bytes = bytes,
                                               .size = size,
                                               .release = tow_free,
                                               .context = bytes});
    return TOW_OK;
}

static tow_status_t call_client(tow_worker_t *worker,
                                tow_worker_callback_t *call)
{
    tow_msg_callback_t message = TOW_MSG_CALLBACK_INIT;
    if (!worker_is_joined(worker) || worker->end_cause != TOW_OK)
        return TOW_ERROR(
            TOW_UNAVAILABLE,
            "the session with the controller ended before the callback");
    if (!tow_dataflow_run_of_gang(worker->dataflow, call->gang_id,
                                  &message.run))
        return TOW_ERROR(TOW_CANCELLED,
                         "the run that makes the callback has ended");
    if (worker->call_count >= TOW_WORKER_CALL_COUNT_MAX)
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "%u callbacks wait for their clients, which is the limit",
            TOW_WORKER_CALL_COUNT_MAX);
    TOW_RETURN_IF_ERROR(attach(worker, call, &message));
    call->number_ = ++worker->call_number;
    message.call = call->number_;
    message.function = call->function;
    message.device = call->device;
    message.result_bytes = room_of(call);
    worker_send(worker, TOW_MESSAGE_CALLBACK, &message.base);
    tow_free(message.bytes.data);
    return TOW_OK;
}

void tow_worker_call_client(tow_worker_t *worker, tow_worker_callback_t *call)
{
    tow_status_t status = call_client(worker, call);
    if (status != TOW_OK) {
        call->done(call, status);
        return;
    }
    tow_list_append(&worker->calls, &call->node_);
    worker->call_count++;
}

/* -- Replies --------------------------------------------------------------- */

static tow_worker_callback_t *find(tow_worker_t *worker, uint64_t number)
{
    for (tow_list_t *item = worker->calls.next; item != &worker->calls;
         item = item->next) {
        tow_worker_callback_t *call =
            TOW_CONTAINER_OF(item, tow_worker_callback_t, node_);
        if (call->number_ == number) return call;
    }
    return NULL;
}

static tow_status_t unpack(const tow_worker_callback_t *call,
                           const uint8_t *bytes, size_t size)
{
    if (size != room_of(call))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the client's reply to a callback has %zu bytes, the "
                         "program expects %zu",
                         size, room_of(call));
    for (size_t i = 0; i < call->result_count; i++) {
        const tow_mutable_bytes_t *each = &call->results[i];
        if (each->size > 0) memcpy(each->data, bytes, each->size);
        bytes += each->size;
    }
    return TOW_OK;
}

/* A reply to a call that was aborted is ignored. */
tow_status_t worker_callback_done(tow_worker_t *worker,
                                  const tow_msg_callback_done_t *message)
{
    blob_t blob = {message->bytes.data, message->bytes.len};
    if (message->blob != 0)
        TOW_RETURN_IF_ERROR(worker_claim_blob(worker, message->blob, &blob));
    tow_worker_callback_t *call = find(worker, message->call);
    if (call != NULL) {
        tow_status_t status = tow_failure_status(message->failure);
        if (status == TOW_OK) status = unpack(call, blob.bytes, blob.size);
        finish(worker, call, status);
    }
    if (message->blob != 0) tow_free(blob.bytes);
    return TOW_OK;
}

/* -- Aborting -------------------------------------------------------------- */

static void abort_some(tow_worker_t *worker, bool is_all, uint64_t gang_id,
                       tow_status_t cause)
{
    for (tow_list_t *item = worker->calls.next, *next; item != &worker->calls;
         item = next) {
        tow_worker_callback_t *call =
            TOW_CONTAINER_OF(item, tow_worker_callback_t, node_);
        next = item->next;
        if (is_all || call->gang_id == gang_id)
            finish(worker, call, tow_status_retain(cause));
    }
}

void worker_callbacks_abort(tow_worker_t *worker, uint64_t gang_id,
                            tow_status_t cause)
{
    abort_some(worker, false, gang_id, cause);
}

void worker_callbacks_on_disconnect(tow_worker_t *worker, tow_status_t cause)
{
    abort_some(worker, true, 0, cause);
}

/* -- Invariants ------------------------------------------------------------ */

tow_status_t worker_callbacks_check(const tow_worker_t *worker)
{
    uint64_t last = 0;
    const tow_list_t *head = &worker->calls;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const tow_worker_callback_t *call =
            TOW_CONTAINER_OF(at, tow_worker_callback_t, node_);
        TOW_INVARIANT(call->number_ > last);
        last = call->number_;
    }
    TOW_INVARIANT(last <= worker->call_number);
    TOW_INVARIANT(tow_list_length(head) == worker->call_count);
    TOW_INVARIANT(worker->call_count <= TOW_WORKER_CALL_COUNT_MAX);
    TOW_INVARIANT(worker->call_count == 0 || worker_is_joined(worker));
    return TOW_OK;
}
