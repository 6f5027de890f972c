/* Functions of clients: a computation calls, the client whose run it is answers.
 *
 * The computation stands still meanwhile, and its gang with it. So every call
 * ends: with the client's answer, or when its gang is aborted (the client is
 * gone, another member failed), or with the session. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

static void finish(tow_worker_t *worker, tow_client_call_t *call,
                   tow_status_t take_status)
{
    tow_list_remove(&call->node_);
    worker->call_count--;
    call->done(call, take_status);
}

/* -- Asking ------------------------------------------------------------------------- */

static size_t bytes_of(const tow_bytes_t *parts, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += parts[i].size;
    return total;
}

static size_t room_of(const tow_client_call_t *call)
{
    size_t total = 0;
    for (size_t i = 0; i < call->result_count; i++)
        total += call->results[i].size;
    return total;
}

static void pack(const tow_client_call_t *call, uint8_t *bytes)
{
    for (size_t i = 0; i < call->argument_count; i++) {
        const tow_bytes_t *each = &call->arguments[i];
        if (each->size > 0) memcpy(bytes, each->data, each->size);
        bytes += each->size;
    }
}

/* Into the message if they are few. */
static tow_status_t attach(tow_worker_t *worker, const tow_client_call_t *call,
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

static tow_status_t ask(tow_worker_t *worker, tow_client_call_t *call)
{
    tow_msg_callback_t message = TOW_MSG_CALLBACK_INIT;
    if (!worker_is_joined(worker) || worker->doom != TOW_OK)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "the cluster was lost before the callback was made");
    if (!tow_dataflow_run_of_gang(worker->dataflow, call->gang_id,
                                  &message.run))
        return TOW_ERROR(TOW_CANCELLED, "the run that calls back has ended");
    if (worker->call_count >= TOW_WORKER_CALL_COUNT_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%u callbacks wait for their clients already",
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

void tow_worker_call_client(tow_worker_t *worker, tow_client_call_t *call)
{
    tow_status_t status = ask(worker, call);
    if (status != TOW_OK) {
        call->done(call, status);
        return;
    }
    tow_list_append(&worker->calls, &call->node_);
    worker->call_count++;
}

/* -- Answers ------------------------------------------------------------------------ */

static tow_client_call_t *find(tow_worker_t *worker, uint64_t number)
{
    for (tow_list_t *item = worker->calls.next; item != &worker->calls;
         item = item->next) {
        tow_client_call_t *call =
            TOW_CONTAINER_OF(item, tow_client_call_t, node_);
        if (call->number_ == number) return call;
    }
    return NULL;
}

static tow_status_t unpack(const tow_client_call_t *call, const uint8_t *bytes,
                           size_t size)
{
    if (size != room_of(call))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a callback answered with %zu bytes, and the program "
                         "wants %zu",
                         size, room_of(call));
    for (size_t i = 0; i < call->result_count; i++) {
        const tow_room_t *each = &call->results[i];
        if (each->size > 0) memcpy(each->data, bytes, each->size);
        bytes += each->size;
    }
    return TOW_OK;
}

/* An answer to a call that was given up is none of ours any more. */
tow_status_t worker_call_done(tow_worker_t *worker,
                              const tow_msg_callback_done_t *message)
{
    blob_t blob = {message->bytes.data, message->bytes.len};
    if (message->blob != 0)
        TOW_RETURN_IF_ERROR(worker_claim_blob(worker, message->blob, &blob));
    tow_client_call_t *call = find(worker, message->call);
    if (call != NULL) {
        tow_status_t status = tow_failure_status(message->failure);
        if (status == TOW_OK) status = unpack(call, blob.bytes, blob.size);
        finish(worker, call, status);
    }
    if (message->blob != 0) tow_free(blob.bytes);
    return TOW_OK;
}

/* -- Giving up ------------------------------------------------------------------------ */

static void abort_some(tow_worker_t *worker, bool is_all, uint64_t gang_id,
                       tow_status_t cause)
{
    for (tow_list_t *item = worker->calls.next, *next; item != &worker->calls;
         item = next) {
        tow_client_call_t *call =
            TOW_CONTAINER_OF(item, tow_client_call_t, node_);
        next = item->next;
        if (is_all || call->gang_id == gang_id)
            finish(worker, call, tow_status_retain(cause));
    }
}

void worker_calls_abort(tow_worker_t *worker, uint64_t gang_id,
                        tow_status_t cause)
{
    abort_some(worker, false, gang_id, cause);
}

void worker_calls_drop(tow_worker_t *worker, tow_status_t cause)
{
    abort_some(worker, true, 0, cause);
}
