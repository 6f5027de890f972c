/* Making and passing on statuses. The public half is towpath/status.h.
 *
 * Every status is returned, handled, or given to tow_status_ignore with the
 * reason. The code that detects an error writes its message; callers add
 * context with tow_status_annotate. An error is either logged or returned, not
 * both. */
#ifndef TOW_BASE_STATUS_H_
#define TOW_BASE_STATUS_H_

#include "base/macros.h"
#include "towpath/status.h"

/* A described error, with the place it was made. If memory for the text is
 * exhausted the bare code comes back: making an error never fails. */
#define TOW_ERROR(code, ...) \
    tow_status_make((code), __FILE__, __LINE__, __VA_ARGS__)

tow_status_t tow_status_make(tow_code_t code, const char *file, int line,
                             const char *format, ...) TOW_PRINTF(4, 5)
    TOW_MUST_USE TOW_COLD;

/* An error from the operating system: "format: strerror (ENAME)", with the
 * canonical code that fits `error_number`. */
#define TOW_ERRNO(error_number, ...) \
    tow_status_from_errno((error_number), __FILE__, __LINE__, __VA_ARGS__)

tow_status_t tow_status_from_errno(int error_number, const char *file, int line,
                                   const char *format, ...) TOW_PRINTF(4, 5)
    TOW_MUST_USE TOW_COLD;

/* A code without a message. Static: allocates nothing. */
tow_status_t tow_status_bare(tow_code_t code) TOW_MUST_USE;

/* Takes `status` and returns it with "context: " before its message. TOW_OK
 * stays TOW_OK. The code and the place stay those of the cause. */
tow_status_t tow_status_annotate(tow_status_t take_status, const char *format,
                                 ...) TOW_PRINTF(2, 3) TOW_MUST_USE;

/* A second reference to the same error, for a second holder. */
tow_status_t tow_status_retain(tow_status_t status) TOW_MUST_USE;

/* Releases `status`; `reason` documents why it is ignored. */
void tow_status_ignore(tow_status_t take_status, const char *reason);

/* Source location of the error; "" and 0 for a bare one. Lent. */
const char *tow_status_file(tow_status_t status);
int tow_status_line(tow_status_t status);

#define TOW_RETURN_IF_ERROR(expression)                      \
    do {                                                     \
        tow_status_t status_ = (expression);                 \
        if (TOW_UNLIKELY(status_ != TOW_OK)) return status_; \
    } while (0)

#endif /* TOW_BASE_STATUS_H_ */
