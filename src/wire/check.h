/* Bounds for protobuf-c, which has none: one pass over a message's bytes,
 * before it is unpacked, that holds every count, length and depth to the
 * limits of its type. What passes cannot make the unpacker take more memory
 * than the limits and the length imply. Allocates nothing. */
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

/* Limits of one message type. It must not contain itself: the depth of the
 * limits is the depth of the recursion. */
struct tow_limits {
    const ProtobufCMessageDescriptor *descriptor;
    tow_field_limits_t fields[TOW_CHECK_FIELDS_MAX]; /* in order of numbers */
};

typedef struct tow_check_fault {
    const char *message; /* static: the type's name */
    const char *field;   /* static; NULL when it is about no known field */
    const char *problem; /* static */
} tow_check_fault_t;

/* False, and a filled *out_fault, if the bytes are malformed, repeat a field
 * that is not repeated, or pass a limit. */
bool tow_check(const tow_limits_t *limits, const uint8_t *bytes, size_t count,
               tow_check_fault_t *out_fault) TOW_MUST_USE;

/* Do the limits name every field that needs one, and no other? For tests. */
bool tow_limits_are_complete(const tow_limits_t *limits);

#endif /* TOW_WIRE_CHECK_H_ */
