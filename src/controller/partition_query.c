/* Partition queries. Only the client can partition some operations of a
 * program. The compiler sends a query through the controller and waits until
 * the client has replied or disconnected. The resulting code belongs to that
 * client only. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/blob_impl.h"

/* The function that the code is for; NULL: the client has released it. */
static tow_ctl_function_t *function_of(const tow_ctl_code_t *code)
{
    TOW_ASSERT(code->asks);
    return tow_list_is_empty(&code->waiting)
               ? NULL
               : TOW_CONTAINER_OF(code->waiting.next, tow_ctl_function_t, node);
}

/* In the message if they are few, else as a blob. */
static tow_status_t attach(const tow_ctl_client_t *client, tow_bytes_t bytes,
                           tow_msg_partition_query_t *message)
{
    if (bytes.size <= TOW_INLINE_BYTES_MAX) {
        message->bytes =
            (ProtobufCBinaryData){bytes.size, (uint8_t *)bytes.data};
        return TOW_OK;
    }
    tow_ctl_blob_t *blob = tow_malloc(sizeof(*blob));
    void *copy = tow_malloc(bytes.size);
    if (blob == NULL || copy == NULL) {
        tow_free(blob);
        tow_free(copy);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    memcpy(copy, bytes.data, bytes.size);
    *blob = (tow_ctl_blob_t){copy, bytes.size};
    message->blob = tow_ctl_blob_send(client->session, blob);
    return TOW_OK;
}

static tow_status_t pass_on(tow_ctl_code_t *code, tow_bytes_t query)
{
    const tow_ctl_function_t *function = function_of(code);
    if (function == NULL || function->client->session == NULL)
        return TOW_ERROR(TOW_CANCELLED,
                         "the client of the program has disconnected");
    tow_msg_partition_query_t message = TOW_MSG_PARTITION_QUERY_INIT;
    message.function = function->id;
    message.number = ++code->query_number;
    TOW_RETURN_IF_ERROR(attach(function->client, query, &message));
    tow_ctl_client_send(function->client, TOW_MESSAGE_PARTITION_QUERY,
                        &message.base);
    return TOW_OK;
}

void tow_ctl_code_partition_query(tow_compile_job_t *job, tow_bytes_t query)
{
    tow_ctl_code_t *code = TOW_CONTAINER_OF(job, tow_ctl_code_t, job);
    tow_status_t status = pass_on(code, query);
    if (status != TOW_OK)
        tow_compiler_reply(code->controller->options.compiler, job,
                           (tow_bytes_t){0}, status);
    tow_controller_touch(code->controller);
}

/* A reply that nothing waits for was for a compiler that has ended in the
 * meantime. */
void tow_ctl_code_partition_reply(tow_ctl_client_t *client,
                                  const tow_msg_partition_reply_t *message)
{
    tow_ctl_blob_t *blob = tow_map_remove(&client->blobs, message->blob);
    const tow_ctl_function_t *function =
        tow_map_find(&client->functions, message->function);
    tow_ctl_code_t *code = function != NULL ? function->code : NULL;
    tow_bytes_t bytes = {message->bytes.data, message->bytes.len};
    if (blob != NULL) bytes = (tow_bytes_t){blob->bytes, blob->size};
    if (code != NULL && code->asks && code->state == CODE_COMPILING &&
        code->query_number == message->number)
        tow_compiler_reply(client->controller->options.compiler, &code->job,
                           bytes, tow_failure_status(message->failure));
    tow_ctl_blob_free(blob);
}
