/* Questions of compilers. Some programs have operations that only their client can
 * divide among devices: the compiler asks, by way of us, and stands still until
 * the client has answered or is gone. What comes out is that client's alone. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* The one that the code is for; NULL: it has been dropped. */
static function_t *function_of(const code_t *code)
{
    TOW_ASSERT(code->asks);
    return tow_list_is_empty(&code->waiting)
               ? NULL
               : TOW_CONTAINER_OF(code->waiting.next, function_t, node);
}

/* Into the message if they are few. */
static tow_status_t attach(const client_t *client, tow_bytes_t bytes,
                           tow_msg_question_t *message)
{
    if (bytes.size <= TOW_INLINE_BYTES_MAX) {
        message->bytes =
            (ProtobufCBinaryData){bytes.size, (uint8_t *)bytes.data};
        return TOW_OK;
    }
    blob_t *blob = tow_malloc(sizeof(*blob));
    void *copy = tow_malloc(bytes.size);
    if (blob == NULL || copy == NULL) {
        tow_free(blob);
        tow_free(copy);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    memcpy(copy, bytes.data, bytes.size);
    *blob = (blob_t){copy, bytes.size};
    message->blob = tow_blob_send(client->session, blob);
    return TOW_OK;
}

static tow_status_t pass_on(code_t *code, tow_bytes_t question)
{
    const function_t *function = function_of(code);
    if (function == NULL || function->client->session == NULL)
        return TOW_ERROR(TOW_CANCELLED, "the client of the program is gone");
    tow_msg_question_t message = TOW_MSG_QUESTION_INIT;
    message.function = function->id;
    message.number = ++code->question_number;
    TOW_RETURN_IF_ERROR(attach(function->client, question, &message));
    tow_tell_client(function->client, TOW_MESSAGE_QUESTION, &message.base);
    return TOW_OK;
}

void tow_code_asked(tow_compile_job_t *job, tow_bytes_t question)
{
    code_t *code = TOW_CONTAINER_OF(job, code_t, job);
    tow_status_t status = pass_on(code, question);
    if (status != TOW_OK)
        tow_compiler_answer(code->controller->options.compiler, job,
                            (tow_bytes_t){0}, status);
    tow_controller_touch(code->controller);
}

/* One that nobody waits for was for a compiler that has ended meanwhile. */
void tow_code_answered(client_t *client, const tow_msg_answer_t *message)
{
    blob_t *blob = tow_map_remove(&client->blobs, message->blob);
    const function_t *function =
        tow_map_find(&client->functions, message->function);
    code_t *code = function != NULL ? function->code : NULL;
    tow_bytes_t bytes = {message->bytes.data, message->bytes.len};
    if (blob != NULL) bytes = (tow_bytes_t){blob->bytes, blob->size};
    if (code != NULL && code->asks && code->state == CODE_COMPILING &&
        code->question_number == message->number)
        tow_compiler_answer(client->controller->options.compiler, &code->job,
                            bytes, tow_failure_status(message->failure));
    tow_blob_free(blob);
}
