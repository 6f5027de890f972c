#include <string.h>

#include "session/session.h"

/* The message of a status starts with the outermost context and ends with the
 * cause: a long one is truncated at its start. */
tow_msg_failure_t tow_failure_of(tow_status_t status)
{
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    const char *message = tow_status_message(status);
    size_t length = strlen(message);
    if (length > TOW_FAILURE_MESSAGE_MAX) {
        message += length - TOW_FAILURE_MESSAGE_MAX;
        while (((unsigned char)*message & 0xc0) == 0x80)
            message++; /* Not inside a UTF-8 character. */
    }
    failure.code = tow_status_code(status);
    failure.message = (char *)message; /* protobuf-c only reads it. */
    return failure;
}

tow_status_t tow_failure_status(const tow_msg_failure_t *failure)
{
    if (failure == NULL || failure->code == TOW_CODE_OK) return TOW_OK;
    tow_code_t code = failure->code <= TOW_UNAUTHENTICATED
                          ? (tow_code_t)failure->code
                          : TOW_UNKNOWN;
    return TOW_ERROR(code, "%s", failure->message);
}
