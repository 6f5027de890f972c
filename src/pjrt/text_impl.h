/* A writer of protobuf messages, field by field, for schemas that are not
 * ours. */
#ifndef TOW_PJRT_TEXT_IMPL_H_
#define TOW_PJRT_TEXT_IMPL_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

/* A growing message; after a failure it stays failed. */
typedef struct text {
    uint8_t *bytes; /* owned */
    size_t size;
    size_t capacity;
    bool has_failed;
} text_t;

static inline void put_raw(text_t *text, const void *bytes, size_t size)
{
    if (text->size + size > text->capacity) {
        const size_t capacity = 2 * (text->size + size) + 64;
        uint8_t *grown = tow_realloc(text->bytes, capacity);
        if (grown == NULL) {
            text->has_failed = true;
            return;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    if (size > 0) memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
}

static inline void put_varint(text_t *text, uint64_t value)
{
    uint8_t bytes[10];
    size_t size = 0;
    do {
        bytes[size++] = (uint8_t)(value | 0x80);
        value >>= 7;
    } while (value > 0);
    bytes[size - 1] &= 0x7f;
    put_raw(text, bytes, size);
}

static inline void put_number(text_t *text, uint32_t field, uint64_t value)
{
    put_varint(text, (uint64_t)field << 3);
    put_varint(text, value);
}

static inline void put_bytes(text_t *text, uint32_t field, const void *bytes,
                             size_t size)
{
    put_varint(text, (uint64_t)field << 3 | 2);
    put_varint(text, size);
    put_raw(text, bytes, size);
}

static inline void put_string(text_t *text, uint32_t field, const char *string)
{
    put_bytes(text, field, string, strlen(string));
}

/* Takes the inner message. */
static inline void put_message(text_t *text, uint32_t field,
                               text_t *take_inside)
{
    text->has_failed |= take_inside->has_failed;
    if (!take_inside->has_failed)
        put_bytes(text, field, take_inside->bytes, take_inside->size);
    tow_free(take_inside->bytes);
    *take_inside = (text_t){0};
}

#endif /* TOW_PJRT_TEXT_IMPL_H_ */
