/* Questions of compilers about programs of ours: how to divide among devices what
 * only we know how to. The compiler waits; whoever waits for the function sees to
 * the answer. */
#include <string.h>

#include "base/alloc.h"
#include "client/client_impl.h"

const tow_settling_t *tow_function_asking(const tow_function_t *function)
{
    return &function->asking;
}

void *tow_function_take_question(tow_function_t *function, size_t *out_size)
{
    void *question = function->question;
    *out_size = function->question_size;
    function->question = NULL;
    if (!function->compiling.settled) function->asking.settled = false;
    return question;
}

/* Answers that are too large for a message go ahead of it. Returns what is still
 * to be freed. */
static void *attach(tow_client_t *client, void *take_bytes, size_t size,
                    tow_msg_answer_t *answer)
{
    if (size <= TOW_INLINE_BYTES_MAX) {
        answer->bytes = (ProtobufCBinaryData){size, take_bytes};
        return take_bytes;
    }
    answer->blob = tow_client_send_blob(client, take_bytes, size);
    return NULL;
}

void tow_function_answer(tow_function_t *function, void *take_bytes,
                         size_t size, tow_status_t take_status)
{
    tow_client_t *client = function->slice->client;
    if (function->compiling.settled || !tow_slice_is_known(function->slice)) {
        tow_free(take_bytes); /* Nobody waits for it any more. */
        tow_status_release(take_status);
        return;
    }
    tow_msg_answer_t answer = TOW_MSG_ANSWER_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    answer.function = function->id;
    answer.number = function->question_number;
    if (take_status != TOW_OK)
        answer.failure = &failure;
    else
        take_bytes = attach(client, take_bytes, size, &answer);
    tow_status_ignore(tow_client_send(client, TOW_MESSAGE_ANSWER, &answer.base),
                      "without a cluster nobody waits for it");
    tow_free(take_bytes);
    tow_status_release(take_status);
}

static tow_status_t take(tow_client_t *client,
                         const tow_msg_question_t *message,
                         tow_function_t *function)
{
    size_t size = message->bytes.len;
    if (message->blob != 0) {
        function->question = tow_client_take_blob(client, message->blob, &size);
    } else {
        function->question = tow_malloc(size + 1);
        if (function->question != NULL && size > 0)
            memcpy(function->question, message->bytes.data, size);
    }
    function->question_size = size;
    if (function->question == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

/* Of a function that was dropped the compiler ends by itself. */
void tow_function_asked(tow_client_t *client, const tow_msg_question_t *message)
{
    tow_function_t *function =
        tow_map_find(&client->functions, message->function);
    if (function == NULL || function->compiling.settled) return;
    tow_free(function->question);
    function->question_number = message->number;
    tow_status_t status = take(client, message, function);
    if (status != TOW_OK)
        tow_function_answer(function, NULL, 0, status);
    else
        tow_settle(client, &function->asking, TOW_OK);
}
