#include "wire_check.h"

#include <assert.h>
#include <string.h>

enum {
    WIRE_VARINT = 0,
    WIRE_64 = 1,
    WIRE_BYTES = 2,
    WIRE_32 = 5
};

/* The unpacker reads no further than this, and must see what we see. */
enum {
    KEY_BYTES_MAX = 5,
    VALUE_BYTES_MAX = 10
};

typedef struct cursor {
    const uint8_t *at, *end;
} cursor_t;

static bool read_varint_slow(cursor_t *cursor, uint64_t *out_value)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 7 * KEY_BYTES_MAX; shift += 7) {
        if (cursor->at == cursor->end) return false;
        uint8_t byte = *cursor->at++;
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
    if (cursor->at < cursor->end && *cursor->at < 0x80) {
        *out_value = *cursor->at++;
        return true;
    }
    return read_varint_slow(cursor, out_value);
}

static bool skip_varint(cursor_t *cursor)
{
    for (size_t i = 0; i < VALUE_BYTES_MAX && cursor->at < cursor->end; i++)
        if (*cursor->at++ < 0x80) return true;
    return false;
}

static bool skip(cursor_t *cursor, uint64_t length)
{
    if (length > (uint64_t)(cursor->end - cursor->at)) return false;
    cursor->at += length;
    return true;
}

static int wire_type_of(ProtobufCType type)
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

/* Elements in a packed list, or SIZE_MAX if the last is cut off. */
static size_t packed_count(int wire_type, const uint8_t *bytes, size_t length)
{
    if (wire_type == WIRE_64) return length % 8 != 0 ? SIZE_MAX : length / 8;
    if (wire_type == WIRE_32) return length % 4 != 0 ? SIZE_MAX : length / 4;
    if (length > 0 && bytes[length - 1] >= 0x80) return SIZE_MAX;
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += bytes[i] < 0x80;
    return count;
}

/* The check of one message, and where it stands. */
typedef struct check {
    const wire_limits_t *limits;
    wire_fault_t *fault;
    cursor_t cursor;
    uint32_t unknown_count;
    uint32_t counts[WIRE_CHECK_FIELDS_MAX]; /* elements seen of each field */
} check_t;

static bool refuse(check_t *self, const char *field, const char *problem)
{
    *self->fault =
        (wire_fault_t){self->limits->descriptor->name, field, problem};
    return false;
}

static bool skip_value(check_t *self, unsigned wire_type)
{
    uint64_t length;
    switch (wire_type) {
    case WIRE_VARINT: return skip_varint(&self->cursor);
    case WIRE_64: return skip(&self->cursor, 8);
    case WIRE_32: return skip(&self->cursor, 4);
    case WIRE_BYTES:
        return read_varint(&self->cursor, &length) &&
               skip(&self->cursor, length);
    default: return false;
    }
}

static bool check_unknown(check_t *self, unsigned wire_type)
{
    if (++self->unknown_count > WIRE_CHECK_UNKNOWN_MAX)
        return refuse(self, NULL, "too many unknown fields");
    if (!skip_value(self, wire_type))
        return refuse(self, NULL, "malformed unknown field");
    return true;
}

/* Counts what arrived of one field; a field that is not repeated may come
 * once: protobuf lets the last win, but a flood of them costs memory. */
static bool add_count(check_t *self, size_t index, size_t count)
{
    const ProtobufCFieldDescriptor *field =
        &self->limits->descriptor->fields[index];
    size_t max = field->label == PROTOBUF_C_LABEL_REPEATED
                     ? self->limits->fields[index].count_max
                     : 1;
    if (count > max - self->counts[index])
        return refuse(self, field->name, "too many elements");
    self->counts[index] += (uint32_t)count;
    return true;
}

static bool check_bytes(check_t *self, size_t index, const uint8_t *bytes,
                        size_t length)
{
    const ProtobufCFieldDescriptor *field =
        &self->limits->descriptor->fields[index];
    int element = wire_type_of(field->type);
    if (element != WIRE_BYTES) {
        size_t count = packed_count(element, bytes, length);
        if (count == SIZE_MAX) return refuse(self, field->name, "cut off");
        return add_count(self, index, count);
    }
    if (!add_count(self, index, 1)) return false;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return wire_check(self->limits->fields[index].nested, bytes, length,
                          self->fault);
    if (length > self->limits->fields[index].bytes_max)
        return refuse(self, field->name, "too long");
    if (field->type == PROTOBUF_C_TYPE_STRING &&
        memchr(bytes, 0, length) != NULL)
        return refuse(self, field->name, "zero byte in a string");
    return true;
}

static bool check_field(check_t *self, size_t index, unsigned wire_type)
{
    const ProtobufCFieldDescriptor *field =
        &self->limits->descriptor->fields[index];
    unsigned expected = (unsigned)wire_type_of(field->type);
    bool packed =
        wire_type == WIRE_BYTES && field->label == PROTOBUF_C_LABEL_REPEATED;
    if (wire_type != expected && !packed)
        return refuse(self, field->name, "wrong wire type");
    if (wire_type != WIRE_BYTES) {
        if (!skip_value(self, wire_type))
            return refuse(self, field->name, "cut off");
        return add_count(self, index, 1);
    }
    uint64_t length;
    const uint8_t *bytes;
    if (!read_varint(&self->cursor, &length) ||
        (bytes = self->cursor.at, !skip(&self->cursor, length)))
        return refuse(self, field->name, "longer than the message");
    return check_bytes(self, index, bytes, (size_t)length);
}

bool wire_check(const wire_limits_t *limits, const uint8_t *bytes,
                size_t length, wire_fault_t *out_fault)
{
    assert(limits->descriptor->n_fields <= WIRE_CHECK_FIELDS_MAX);
    check_t self = {.limits = limits,
                    .fault = out_fault,
                    .cursor = {bytes, bytes + length}};
    const ProtobufCMessageDescriptor *descriptor = limits->descriptor;
    while (self.cursor.at < self.cursor.end) {
        uint64_t key;
        if (!read_varint(&self.cursor, &key) || key >> 3 == 0 ||
            key > UINT32_MAX)
            return refuse(&self, NULL, "malformed key");
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(descriptor,
                                                    (unsigned)(key >> 3));
        bool sound =
            field == NULL
                ? check_unknown(&self, key & 7)
                : check_field(&self, (size_t)(field - descriptor->fields),
                              key & 7);
        if (!sound) return false;
    }
    return true;
}
