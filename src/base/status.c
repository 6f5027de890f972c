/* An error is one heap block: header and text together. Bare codes point into
 * a static table, so an error can be reported without memory. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

struct tow_status {
    tow_code_t code;
    int line;
    const char *file;            /* static */
    atomic_uint reference_count; /* unused in the bare table */
    char message[];
};

#define CODE_COUNT 17

static const char *const code_names[CODE_COUNT] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

#define BARE(number)                             \
    {                                            \
        .code = (tow_code_t)(number), .file = "" \
    }

static const struct tow_status bare_table[CODE_COUNT] = {
    BARE(0),  BARE(1),  BARE(2),  BARE(3),  BARE(4),  BARE(5),
    BARE(6),  BARE(7),  BARE(8),  BARE(9),  BARE(10), BARE(11),
    BARE(12), BARE(13), BARE(14), BARE(15), BARE(16),
};

static int is_bare(tow_status_t status)
{
    return status >= bare_table && status < bare_table + CODE_COUNT;
}

const char *tow_code_name(tow_code_t code)
{
    return (unsigned)code < CODE_COUNT ? code_names[code] : "UNKNOWN";
}

tow_code_t tow_status_code(tow_status_t status)
{
    return status == TOW_OK ? TOW_CODE_OK : status->code;
}

const char *tow_status_message(tow_status_t status)
{
    if (status == TOW_OK) return "";
    return is_bare(status) ? code_names[status->code] : status->message;
}

const char *tow_status_file(tow_status_t status)
{
    return status == TOW_OK ? "" : status->file;
}

int tow_status_line(tow_status_t status)
{
    return status == TOW_OK ? 0 : status->line;
}

tow_status_t tow_status_bare(tow_code_t code)
{
    TOW_ASSERT((unsigned)code < CODE_COUNT);
    return code == TOW_CODE_OK ? TOW_OK : &bare_table[code];
}

static struct tow_status *allocate(tow_code_t code, const char *file, int line,
                                   size_t text_length)
{
    struct tow_status *status = tow_malloc(sizeof(*status) + text_length + 1);
    if (status == NULL) return NULL;
    status->code = code;
    status->file = file;
    status->line = line;
    atomic_init(&status->reference_count, 1);
    status->message[0] = '\0';
    return status;
}

static tow_status_t make_from_list(tow_code_t code, const char *file, int line,
                                   const char *suffix, const char *format,
                                   va_list arguments)
{
    TOW_ASSERT(code != TOW_CODE_OK && (unsigned)code < CODE_COUNT);
    TOW_ASSERT(format != NULL);
    va_list measured;
    va_copy(measured, arguments);
    int length = vsnprintf(NULL, 0, format, measured);
    va_end(measured);
    if (length < 0) return tow_status_bare(code);
    size_t total = (size_t)length + strlen(suffix);
    struct tow_status *status = allocate(code, file, line, total);
    if (status == NULL) return tow_status_bare(code);
    vsnprintf(status->message, (size_t)length + 1, format, arguments);
    memcpy(status->message + length, suffix, strlen(suffix) + 1);
    return status;
}

tow_status_t tow_status_make(tow_code_t code, const char *file, int line,
                             const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tow_status_t status =
        make_from_list(code, file, line, "", format, arguments);
    va_end(arguments);
    return status;
}

static tow_code_t code_of_errno(int error_number)
{
    switch (error_number) {
    case ENOENT: return TOW_NOT_FOUND;
    case EEXIST:
    case EADDRINUSE: return TOW_ALREADY_EXISTS;
    case EACCES:
    case EPERM: return TOW_PERMISSION_DENIED;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE: return TOW_RESOURCE_EXHAUSTED;
    case EINVAL:
    case ENAMETOOLONG: return TOW_INVALID_ARGUMENT;
    case ETIMEDOUT: return TOW_DEADLINE_EXCEEDED;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH: return TOW_UNAVAILABLE;
    default: return TOW_UNKNOWN;
    }
}

tow_status_t tow_status_from_errno(int error_number, const char *file, int line,
                                   const char *format, ...)
{
    char text[128];
    char suffix[192];
    /* The GNU strerror_r: it may or may not use the buffer it is given. */
    const char *reason = strerror_r(error_number, text, sizeof(text));
    const char *name = strerrorname_np(error_number);
    snprintf(suffix, sizeof(suffix), ": %s (%s)", reason,
             name != NULL ? name : "unknown errno");
    va_list arguments;
    va_start(arguments, format);
    tow_status_t status = make_from_list(code_of_errno(error_number), file,
                                         line, suffix, format, arguments);
    va_end(arguments);
    return status;
}

tow_status_t tow_status_annotate(tow_status_t take_status, const char *format,
                                 ...)
{
    if (take_status == TOW_OK) return TOW_OK;
    va_list arguments;
    va_start(arguments, format);
    va_list measured;
    va_copy(measured, arguments);
    int length = vsnprintf(NULL, 0, format, measured);
    va_end(measured);
    const char *cause = tow_status_message(take_status);
    size_t cause_length = strlen(cause);
    struct tow_status *status = NULL;
    if (length >= 0)
        status = allocate(take_status->code, take_status->file,
                          take_status->line, (size_t)length + 2 + cause_length);
    if (status == NULL) {
        va_end(arguments);
        return take_status; /* Out of memory: without the context. */
    }
    vsnprintf(status->message, (size_t)length + 1, format, arguments);
    va_end(arguments);
    memcpy(status->message + length, ": ", 2);
    memcpy(status->message + length + 2, cause, cause_length + 1);
    tow_status_release(take_status);
    return status;
}

tow_status_t tow_status_retain(tow_status_t status)
{
    if (status == TOW_OK || is_bare(status)) return status;
    struct tow_status *counted = (struct tow_status *)status;
    atomic_fetch_add_explicit(&counted->reference_count, 1,
                              memory_order_relaxed);
    return status;
}

void tow_status_release(tow_status_t status)
{
    if (status == TOW_OK || is_bare(status)) return;
    struct tow_status *counted = (struct tow_status *)status;
    unsigned before = atomic_fetch_sub_explicit(&counted->reference_count, 1,
                                                memory_order_acq_rel);
    TOW_ASSERT(before > 0);
    if (before == 1) tow_free(counted);
}

void tow_status_ignore(tow_status_t take_status, const char *reason)
{
    TOW_ASSERT(reason != NULL && reason[0] != '\0');
    tow_status_release(take_status);
}
