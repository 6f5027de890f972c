/* Partition queries: the compiler of a function asks how to partition an
 * operation that only the client knows, and waits. The thread that waits for
 * the function replies. */
#include <string.h>

#include "base/alloc.h"
#include "client/client_impl.h"

const tow_completion_t *tow_function_query_completion(
    const tow_function_t *function)
{
    return &function->query_ready;
}

void *tow_function_take_partition_query(tow_function_t *function,
                                        size_t *out_size)
{
    void *query = function->query;
    *out_size = function->query_size;
    function->query = NULL;
    if (!function->compiling.settled) function->query_ready.settled = false;
    return query;
}

/* Sends a reply that is too large for a message as a blob before it. Returns
 * the bytes that the caller must free. */
static void *attach(tow_client_t *client, void *take_bytes, size_t size,
                    tow_msg_partition_reply_t *answer)
{
    if (size <= TOW_INLINE_BYTES_MAX) {
        answer->bytes = (ProtobufCBinaryData){size, take_bytes};
        return take_bytes;
    }
    answer->blob = tow_client_send_blob(client, take_bytes, size);
    return NULL;
}

void tow_function_partition_reply(tow_function_t *function, void *take_bytes,
                                  size_t size, tow_status_t take_status)
{
    tow_client_t *client = function->slice->client;
    if (function->compiling.settled || !tow_slice_is_known(function->slice)) {
        tow_free(take_bytes); /* The compilation ended with its generation. */
        tow_status_release(take_status);
        return;
    }
    tow_msg_partition_reply_t answer = TOW_MSG_PARTITION_REPLY_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    answer.function = function->id;
    answer.number = function->query_number;
    if (take_status != TOW_OK)
        answer.failure = &failure;
    else
        take_bytes = attach(client, take_bytes, size, &answer);
    tow_status_ignore(
        tow_client_send(client, TOW_MESSAGE_PARTITION_REPLY, &answer.base),
        "without a cluster nothing waits for it");
    tow_free(take_bytes);
    tow_status_release(take_status);
}

static tow_status_t take(tow_client_t *client,
                         const tow_msg_partition_query_t *message,
                         tow_function_t *function)
{
    size_t size = message->bytes.len;
    if (message->blob != 0) {
        function->query = tow_client_take_blob(client, message->blob, &size);
    } else {
        function->query = tow_malloc(size + 1);
        if (function->query != NULL && size > 0)
            memcpy(function->query, message->bytes.data, size);
    }
    function->query_size = size;
    if (function->query == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

/* If the function was released, its compilation ends by itself. */
void tow_function_on_partition_query(tow_client_t *client,
                                     const tow_msg_partition_query_t *message)
{
    tow_function_t *function =
        tow_map_find(&client->functions, message->function);
    if (function == NULL || function->compiling.settled) return;
    tow_free(function->query);
    function->query_number = message->number;
    tow_status_t status = take(client, message, function);
    if (status != TOW_OK)
        tow_function_partition_reply(function, NULL, 0, status);
    else
        tow_completion_settle(client, &function->query_ready, TOW_OK);
}
