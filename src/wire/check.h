/* Limits for protobuf-c, which has none: one pass over the bytes of a message,
 * before it is unpacked, checks every count, length and depth against the
 * limits of its type. This bounds the memory that the unpacker takes. Allocates
 * nothing. */
#ifndef TOW_WIRE_CHECK_H_
#define TOW_WIRE_CHECK_H_

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

#define TOW_CHECK_FIELDS_MAX  32 /* fields of one message type */
#define TOW_CHECK_UNKNOWN_MAX 16 /* unknown fields in one message */

typedef struct tow_limits tow_limits_t;

typedef struct tow_field_limits {
    uint32_t count_max; /* elements of a repeated field */
    uint32_t bytes_max; /* length of a string or bytes field, of each element */
    const tow_limits_t *nested; /* of a message field */
} tow_field_limits_t;

/* Limits of one message type. A type must not contain itself: the recursion is
 * as deep as the limits are. */
struct tow_limits {
    const ProtobufCMessageDescriptor *descriptor;
    tow_field_limits_t fields[TOW_CHECK_FIELDS_MAX]; /* by field number - 1 */
};

typedef struct tow_check_fault {
    const char *message; /* static: the type's name */
    const char *field;   /* static; NULL: no known field */
    const char *problem; /* static */
} tow_check_fault_t;

/* False, and *out_fault is set, if the bytes are malformed, repeat a field that
 * is not repeated, or exceed a limit. */
bool tow_check(const tow_limits_t *limits, const uint8_t *bytes, size_t count,
               tow_check_fault_t *out_fault) TOW_MUST_USE;

/* True if exactly the fields that need limits have them. For tests. */
bool tow_limits_are_complete(const tow_limits_t *limits);

#endif /* TOW_WIRE_CHECK_H_ */
