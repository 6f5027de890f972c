/* Bounds for protobuf-c, which has none: one pass over a message's bytes,
 * before it is unpacked, that holds every count, length and depth to the
 * schema's limits. What passes cannot make the unpacker take more memory than
 * the limits and the length imply; it may still find the bytes malformed.
 * Allocates nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum {
    WIRE_CHECK_FIELDS_MAX = 32,  /* fields of one message type */
    WIRE_CHECK_UNKNOWN_MAX = 16, /* unknown fields of one message */
};

/* Limits of one message type. It must not contain itself: the depth of the
 * limits is then the depth of the recursion. */
typedef struct wire_limits {
    const ProtobufCMessageDescriptor *descriptor;
    struct {
        uint32_t count_max; /* elements of a repeated field */
        uint32_t bytes_max; /* length of a string, bytes or each of several */
        const struct wire_limits *nested; /* for a message field */
    } fields[WIRE_CHECK_FIELDS_MAX];      /* in order of their numbers */
} wire_limits_t;

typedef struct wire_fault {
    const char *message; /* type name, from the schema */
    const char *field;   /* or NULL when it is not about a known field */
    const char *problem;
} wire_fault_t;

/* False, and a filled `out_fault`, if the bytes are malformed, repeat a field
 * that is not repeated, or pass a limit. */
bool wire_check(const wire_limits_t *limits, const uint8_t *bytes,
                size_t length, wire_fault_t *out_fault);
