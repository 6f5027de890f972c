/* Status: the result of every Towpath call that can fail.
 *
 * NULL is success, so success costs nothing. Anything else is an error with a
 * canonical code, a message for people, and the source location that detected
 * it. The codes have the numbers that PJRT and gRPC use. */
#ifndef TOWPATH_STATUS_H_
#define TOWPATH_STATUS_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Exported symbols; all others of the library are hidden. */
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

/* The holder of a status owns it and releases it once. */
typedef const struct tow_status *tow_status_t;

#define TOW_OK ((tow_status_t)0)

/* The canonical code; TOW_CODE_OK for TOW_OK. */
tow_code_t tow_status_code(tow_status_t status);

/* "NOT_FOUND" and so on; "UNKNOWN" for an undefined number. Never NULL. */
const char *tow_code_name(tow_code_t code);

/* The whole message, outermost context first. Lent: lives as long as the
 * status. "" for TOW_OK. */
const char *tow_status_message(tow_status_t status);

/* Releases the status. TOW_OK is allowed. */
void tow_status_release(tow_status_t status);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_STATUS_H_ */
