/* Fields of a serialised protobuf message whose schema is XLA's. We need a few
 * numbers of some and pass all others through, so we read and write them one by
 * one. Reading never trusts the bytes. */
#ifndef TOW_DEVICE_PROTO_H_
#define TOW_DEVICE_PROTO_H_

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

typedef enum proto_kind {
    PROTO_VARINT = 0,
    PROTO_64 = 1,
    PROTO_BYTES = 2,
    PROTO_32 = 5,
} proto_kind_t;

typedef struct proto_field {
    uint32_t number;
    uint32_t kind;
    uint64_t value;    /* of PROTO_VARINT */
    tow_bytes_t bytes; /* of all others */
} proto_field_t;

#define PROTO_NUMBER_MAX       ((1u << 29) - 1)
#define PROTO_VARINT_BYTES_MAX 10

/* These remove what they read from the front of `bytes`. False if it is not
 * there. */
static inline bool proto_read_varint(tow_bytes_t *bytes, uint64_t *out_value)
{
    const uint8_t *at = bytes->data;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes->size && i < PROTO_VARINT_BYTES_MAX; i++) {
        if (i == PROTO_VARINT_BYTES_MAX - 1 && at[i] > 1) return false;
        value |= (uint64_t)(at[i] & 0x7f) << (7 * i);
        if (at[i] >= 0x80) continue;
        bytes->data = at + i + 1;
        bytes->size -= i + 1;
        *out_value = value;
        return true;
    }
    return false;
}

static inline bool proto_take(tow_bytes_t *bytes, uint64_t count,
                              tow_bytes_t *out)
{
    if (count > bytes->size) return false;
    *out = (tow_bytes_t){bytes->data, (size_t)count};
    bytes->data = (const uint8_t *)bytes->data + count;
    bytes->size -= (size_t)count;
    return true;
}

/* The next field of a message. */
static inline bool proto_read_field(tow_bytes_t *bytes,
                                    proto_field_t *out_field)
{
    uint64_t key, count;
    if (!proto_read_varint(bytes, &key) || key >> 3 == 0 ||
        key >> 3 > PROTO_NUMBER_MAX)
        return false;
    *out_field =
        (proto_field_t){.number = (uint32_t)(key >> 3), .kind = key & 7};
    switch (out_field->kind) {
    case PROTO_VARINT: return proto_read_varint(bytes, &out_field->value);
    case PROTO_64: return proto_take(bytes, 8, &out_field->bytes);
    case PROTO_BYTES:
        return proto_read_varint(bytes, &count) &&
               proto_take(bytes, count, &out_field->bytes);
    case PROTO_32: return proto_take(bytes, 4, &out_field->bytes);
    default: return false; /* Groups, which are obsolete. */
    }
}

static inline size_t proto_varint_size(uint64_t value)
{
    size_t size = 1;
    for (; value >= 0x80; value >>= 7)
        size++;
    return size;
}

/* These return the end of what they wrote. */
static inline uint8_t *proto_write_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static inline uint8_t *proto_write_key(uint8_t *at, uint32_t number,
                                       proto_kind_t kind)
{
    return proto_write_varint(at, (uint64_t)number << 3 | (uint64_t)kind);
}

static inline uint8_t *proto_write_number(uint8_t *at, uint32_t number,
                                          uint64_t value)
{
    return proto_write_varint(proto_write_key(at, number, PROTO_VARINT), value);
}

/* The key and the length of a message or of bytes that follow. */
static inline uint8_t *proto_write_length(uint8_t *at, uint32_t number,
                                          size_t size)
{
    return proto_write_varint(proto_write_key(at, number, PROTO_BYTES), size);
}

#endif /* TOW_DEVICE_PROTO_H_ */
