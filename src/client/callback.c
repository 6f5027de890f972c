/* Callbacks: functions that computations of this client call, and wait for.
 * The user of tow_client_set_callback_server decides which functions exist and
 * which threads run them. */
#include <string.h>

#include "base/alloc.h"
#include "client/client_impl.h"

void tow_client_set_callback_server(
    tow_client_t *client, const tow_callback_server_t *callback_server)
{
    client->callback_server = *callback_server;
}

static void free_request(tow_callback_call_t *request)
{
    tow_free(request->bytes);
    tow_free(request);
}

/* Sends results that are too large for a message as a blob before it. */
static tow_status_t attach(tow_client_t *client, const void *results,
                           size_t size, tow_msg_callback_done_t *done)
{
    if (size <= TOW_INLINE_BYTES_MAX) {
        done->bytes = (ProtobufCBinaryData){size, (uint8_t *)results};
        return TOW_OK;
    }
    void *copy = tow_malloc(size);
    if (copy == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "no memory for %zu bytes of results", size);
    memcpy(copy, results, size);
    done->blob = tow_client_send_blob(client, copy, size);
    return TOW_OK;
}

void tow_client_callback_reply(tow_client_t *client,
                               tow_callback_call_t *take_request,
                               const void *results, tow_status_t take_status)
{
    if (take_request->generation != tow_client_generation(client)) {
        tow_status_release(
            take_status); /* The call ended with its generation. */
        free_request(take_request);
        return;
    }
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    done.call = take_request->number;
    if (take_status == TOW_OK)
        take_status = attach(client, results, take_request->result_size, &done);
    tow_msg_failure_t failure = tow_failure_of(take_status);
    if (take_status != TOW_OK) done.failure = &failure;
    tow_status_ignore(
        tow_client_send(client, TOW_MESSAGE_CALLBACK_DONE, &done.base),
        "without a cluster nothing waits for it");
    tow_status_release(take_status);
    free_request(take_request);
}

static tow_status_t take(tow_client_t *client,
                         const tow_msg_callback_t *message,
                         tow_callback_call_t *request)
{
    *request =
        (tow_callback_call_t){.number = message->call,
                              .generation = tow_client_generation(client),
                              .function = message->function,
                              .device = message->device,
                              .size = message->bytes.len,
                              .result_size = message->result_bytes};
    if (message->result_bytes > TOW_CLIENT_RESULT_BYTES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "a callback needs %llu bytes of results; the limit is "
                         "%llu: compute them on the device",
                         (unsigned long long)message->result_bytes,
                         (unsigned long long)TOW_CLIENT_RESULT_BYTES_MAX);
    if (message->blob != 0) {
        request->bytes =
            tow_client_take_blob(client, message->blob, &request->size);
    } else {
        request->bytes = tow_malloc(request->size + 1);
        if (request->bytes != NULL && request->size > 0)
            memcpy(request->bytes, message->bytes.data, request->size);
    }
    return request->bytes != NULL ? TOW_OK
                                  : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

void tow_client_on_callback(tow_client_t *client,
                            const tow_msg_callback_t *message)
{
    tow_callback_call_t *request = tow_malloc(sizeof(*request));
    if (request == NULL) {
        tow_client_on_disconnect(client,
                                 tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    tow_status_t status = take(client, message, request);
    if (status == TOW_OK && client->callback_server.called == NULL)
        status = TOW_ERROR(TOW_FAILED_PRECONDITION,
                           "the program calls function %llu of its client, "
                           "which has no callbacks",
                           (unsigned long long)message->function);
    if (status == TOW_OK)
        client->callback_server.called(client->callback_server.context,
                                       request);
    else
        tow_client_callback_reply(client, request, NULL, status);
}
