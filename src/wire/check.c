#include "wire/check.h"

#include <string.h>

#include "base/assert.h"

typedef enum wire_type {
    WIRE_VARINT = 0,
    WIRE_64 = 1,
    WIRE_BYTES = 2,
    WIRE_32 = 5,
} wire_type_t;

/* Limits of protobuf-c, so that this check and the unpacker agree. */
#define KEY_BYTES_MAX   5
#define VALUE_BYTES_MAX 10

typedef struct cursor {
    const uint8_t *next;
    const uint8_t *end;
} cursor_t;

static bool read_long_varint(cursor_t *cursor, uint64_t *out_value)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 7 * KEY_BYTES_MAX; shift += 7) {
        if (cursor->next == cursor->end) return false;
        uint8_t byte = *cursor->next++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out_value = value;
            return true;
        }
    }
    return false;
}

/* A key or a length; nearly always one byte. */
static inline bool read_varint(cursor_t *cursor, uint64_t *out_value)
{
    if (cursor->next < cursor->end && *cursor->next < 0x80) {
        *out_value = *cursor->next++;
        return true;
    }
    return read_long_varint(cursor, out_value);
}

static bool skip_varint(cursor_t *cursor)
{
    for (size_t i = 0; i < VALUE_BYTES_MAX && cursor->next < cursor->end; i++) {
        if (*cursor->next++ < 0x80) return true;
    }
    return false;
}

static bool skip(cursor_t *cursor, uint64_t count)
{
    if (count > (uint64_t)(cursor->end - cursor->next)) return false;
    cursor->next += count;
    return true;
}

static bool skip_value(cursor_t *cursor, unsigned wire_type)
{
    uint64_t count;
    switch (wire_type) {
    case WIRE_VARINT: return skip_varint(cursor);
    case WIRE_64: return skip(cursor, 8);
    case WIRE_32: return skip(cursor, 4);
    case WIRE_BYTES: return read_varint(cursor, &count) && skip(cursor, count);
    default: return false; /* groups and undefined wire types */
    }
}

static wire_type_t wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT: return WIRE_32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return WIRE_BYTES;
    default: return WIRE_VARINT;
    }
}

/* Number of elements in a packed list; SIZE_MAX if the last is truncated. */
static size_t packed_count(wire_type_t element, const uint8_t *bytes,
                           size_t count)
{
    if (element == WIRE_64) return count % 8 != 0 ? SIZE_MAX : count / 8;
    if (element == WIRE_32) return count % 4 != 0 ? SIZE_MAX : count / 4;
    if (count > 0 && bytes[count - 1] >= 0x80) return SIZE_MAX;
    size_t elements = 0;
    for (size_t i = 0; i < count; i++)
        elements += bytes[i] < 0x80;
    return elements;
}

/* State of the check of one message. */
typedef struct check {
    const tow_limits_t *limits;
    tow_check_fault_t *fault;
    cursor_t cursor;
    uint32_t unknown_count;
    uint32_t counts[TOW_CHECK_FIELDS_MAX]; /* elements seen of each field */
} check_t;

static bool refuse(check_t *check, const char *field, const char *problem)
{
    *check->fault = (tow_check_fault_t){
        .message = check->limits->descriptor->short_name,
        .field = field,
        .problem = problem,
    };
    return false;
}

static bool check_unknown(check_t *check, unsigned wire_type)
{
    if (++check->unknown_count > TOW_CHECK_UNKNOWN_MAX)
        return refuse(check, NULL, "too many unknown fields");
    if (!skip_value(&check->cursor, wire_type))
        return refuse(check, NULL, "malformed unknown field");
    return true;
}

/* Counts the elements of one field. A field that is not repeated may occur
 * once: protobuf would let the last one win, but a flood of them costs
 * memory. */
static bool add_count(check_t *check, size_t index, size_t count)
{
    const ProtobufCFieldDescriptor *field =
        &check->limits->descriptor->fields[index];
    size_t max = field->label == PROTOBUF_C_LABEL_REPEATED
                     ? check->limits->fields[index].count_max
                     : 1;
    if (count > max - check->counts[index])
        return refuse(check, field->name, "too many elements");
    check->counts[index] += (uint32_t)count;
    return true;
}

static bool check_bytes(check_t *check, size_t index, const uint8_t *bytes,
                        size_t count)
{
    const ProtobufCFieldDescriptor *field =
        &check->limits->descriptor->fields[index];
    const tow_field_limits_t *limits = &check->limits->fields[index];
    wire_type_t element = wire_type_of(field->type);
    if (element != WIRE_BYTES) {
        size_t elements = packed_count(element, bytes, count);
        if (elements == SIZE_MAX) return refuse(check, field->name, "cut off");
        return add_count(check, index, elements);
    }
    if (!add_count(check, index, 1)) return false;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return tow_check(limits->nested, bytes, count, check->fault);
    if (count > limits->bytes_max)
        return refuse(check, field->name, "too long");
    if (field->type == PROTOBUF_C_TYPE_STRING &&
        memchr(bytes, 0, count) != NULL)
        return refuse(check, field->name, "zero byte in a string");
    return true;
}

static bool check_field(check_t *check, size_t index, unsigned wire_type)
{
    const ProtobufCFieldDescriptor *field =
        &check->limits->descriptor->fields[index];
    bool packed =
        wire_type == WIRE_BYTES && field->label == PROTOBUF_C_LABEL_REPEATED;
    if (wire_type != (unsigned)wire_type_of(field->type) && !packed)
        return refuse(check, field->name, "wrong wire type");
    if (wire_type != WIRE_BYTES) {
        if (!skip_value(&check->cursor, wire_type))
            return refuse(check, field->name, "cut off");
        return add_count(check, index, 1);
    }
    uint64_t count;
    if (!read_varint(&check->cursor, &count))
        return refuse(check, field->name, "malformed length");
    const uint8_t *bytes = check->cursor.next;
    if (!skip(&check->cursor, count))
        return refuse(check, field->name, "longer than the message");
    return check_bytes(check, index, bytes, (size_t)count);
}

/* Our field numbers have no gaps, so the index is the number - 1. The search in
 * protobuf-c is for unknown fields. */
static inline const ProtobufCFieldDescriptor *find_field(
    const ProtobufCMessageDescriptor *descriptor, uint32_t number)
{
    const ProtobufCFieldDescriptor *fields = descriptor->fields;
    if (TOW_LIKELY(number <= descriptor->n_fields &&
                   fields[number - 1].id == number))
        return &fields[number - 1];
    return protobuf_c_message_descriptor_get_field(descriptor, number);
}

static bool check_next(check_t *check)
{
    const ProtobufCMessageDescriptor *descriptor = check->limits->descriptor;
    uint64_t key;
    if (!read_varint(&check->cursor, &key) || key >> 3 == 0 || key > UINT32_MAX)
        return refuse(check, NULL, "malformed key");
    const ProtobufCFieldDescriptor *field =
        find_field(descriptor, (uint32_t)(key >> 3));
    if (field == NULL) return check_unknown(check, key & 7);
    return check_field(check, (size_t)(field - descriptor->fields), key & 7);
}

bool tow_check(const tow_limits_t *limits, const uint8_t *bytes, size_t count,
               tow_check_fault_t *out_fault)
{
    size_t field_count = limits->descriptor->n_fields;
    TOW_ASSERT(field_count <= TOW_CHECK_FIELDS_MAX);
    check_t check; /* Not zeroed: only the counts in use are cleared below. */
    check.limits = limits;
    check.fault = out_fault;
    check.cursor = (cursor_t){.next = bytes, .end = bytes + count};
    check.unknown_count = 0;
    memset(check.counts, 0, field_count * sizeof(check.counts[0]));
    while (check.cursor.next < check.cursor.end) {
        if (!check_next(&check)) return false;
    }
    return true;
}

static bool field_is_complete(const ProtobufCFieldDescriptor *field,
                              const tow_field_limits_t *limits)
{
    bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
    bool nested = field->type == PROTOBUF_C_TYPE_MESSAGE;
    bool sized = !nested && wire_type_of(field->type) == WIRE_BYTES;
    if (repeated != (limits->count_max > 0)) return false;
    if (sized != (limits->bytes_max > 0)) return false;
    if (nested != (limits->nested != NULL)) return false;
    return !nested || (limits->nested->descriptor == field->descriptor &&
                       tow_limits_are_complete(limits->nested));
}

bool tow_limits_are_complete(const tow_limits_t *limits)
{
    const ProtobufCMessageDescriptor *descriptor = limits->descriptor;
    for (size_t i = 0; i < TOW_CHECK_FIELDS_MAX; i++) {
        static const tow_field_limits_t none;
        if (i >= descriptor->n_fields) {
            if (memcmp(&limits->fields[i], &none, sizeof(none)) != 0)
                return false;
            continue;
        }
        if (!field_is_complete(&descriptor->fields[i], &limits->fields[i]))
            return false;
    }
    return true;
}
