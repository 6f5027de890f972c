/* Status: how every Towpath call says what went wrong.
 *
 * NULL is success, so success costs nothing. Anything else is an error with a
 * canonical code, a message for a person, and the place that first knew.
 * The codes carry the numbers that PJRT and gRPC use. */
#ifndef TOWPATH_STATUS_H_
#define TOWPATH_STATUS_H_

#ifdef __cplusplus
extern "C" {
#endif

/* What the library has for others; all else in it is hidden. */
#pragma GCC visibility push(default)

typedef enum tow_code {
    TOW_CODE_OK = 0,
    TOW_CANCELLED = 1,
    TOW_UNKNOWN = 2,
    TOW_INVALID_ARGUMENT = 3,
    TOW_DEADLINE_EXCEEDED = 4,
    TOW_NOT_FOUND = 5,
    TOW_ALREADY_EXISTS = 6,
    TOW_PERMISSION_DENIED = 7,
    TOW_RESOURCE_EXHAUSTED = 8,
    TOW_FAILED_PRECONDITION = 9,
    TOW_ABORTED = 10,
    TOW_OUT_OF_RANGE = 11,
    TOW_UNIMPLEMENTED = 12,
    TOW_INTERNAL = 13,
    TOW_UNAVAILABLE = 14,
    TOW_DATA_LOSS = 15,
    TOW_UNAUTHENTICATED = 16,
} tow_code_t;

/* A status is owned by whoever holds it; release it once. */
typedef const struct tow_status *tow_status_t;

#define TOW_OK ((tow_status_t)0)

/* The canonical code; TOW_CODE_OK for TOW_OK. */
tow_code_t tow_status_code(tow_status_t status);

/* "NOT_FOUND" and so on; never NULL, "UNKNOWN" for a number that is none. */
const char *tow_code_name(tow_code_t code);

/* The whole message, outermost context first. Lent: lives as long as the
 * status. "" for TOW_OK. */
const char *tow_status_message(tow_status_t status);

/* Gives the status back. TOW_OK is fine. */
void tow_status_release(tow_status_t status);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_STATUS_H_ */
