#include "session/ring.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "session/tuning.h"

void tow_ring_deinit(tow_ring_t *ring)
{
    tow_free(ring->bytes);
    *ring = (tow_ring_t){0};
}

void tow_ring_check(const tow_ring_t *ring)
{
    TOW_ASSERT(ring->waiting <= ring->count);
    TOW_ASSERT((ring->count == 0) == (ring->used == 0));
    TOW_ASSERT(ring->used <= ring->capacity);
    TOW_ASSERT((ring->bytes == NULL) == (ring->capacity == 0));
    TOW_ASSERT(ring->end <= ring->capacity && ring->tail <= ring->capacity);
    if (ring->end == 0)
        TOW_ASSERT(ring->tail - ring->head == ring->used);
    else
        TOW_ASSERT(ring->tail <= ring->head &&
                   ring->end - ring->head + ring->tail == ring->used);
    if (ring->waiting == ring->count && ring->count > 0)
        TOW_ASSERT(ring->cursor == ring->head);
}

static void reset(tow_ring_t *ring)
{
    ring->head = ring->cursor = ring->tail = ring->end = 0;
}

/* Moves all records to a larger buffer, the oldest first. */
static bool grow(tow_ring_t *ring, size_t needed)
{
    size_t capacity =
        ring->capacity == 0 ? TOW_SESSION_RING_BYTES_FIRST : ring->capacity * 2;
    while (capacity < ring->used + needed)
        capacity *= 2;
    uint8_t *bytes = tow_malloc(capacity);
    if (bytes == NULL) return false;
    size_t upper = (ring->end != 0 ? ring->end : ring->tail) - ring->head;
    if (ring->bytes != NULL) {
        memcpy(bytes, ring->bytes + ring->head, upper);
        memcpy(bytes + upper, ring->bytes, ring->used - upper);
    }
    bool cursor_is_upper = ring->end == 0 || ring->cursor >= ring->head;
    if (ring->waiting == 0)
        ring->cursor = ring->used;
    else
        ring->cursor =
            cursor_is_upper ? ring->cursor - ring->head : ring->cursor + upper;
    tow_free(ring->bytes);
    ring->bytes = bytes;
    ring->capacity = capacity;
    ring->head = ring->end = 0;
    ring->tail = ring->used;
    return true;
}

/* The space at the top is too small: continue at the bottom. */
static void wrap(tow_ring_t *ring)
{
    ring->end = ring->tail;
    if (ring->cursor == ring->tail) ring->cursor = 0;
    ring->tail = 0;
}

uint8_t *tow_ring_begin(tow_ring_t *ring, uint32_t size_max)
{
    size_t needed = tow_ring_bytes(size_max);
    bool is_wrapped = ring->end != 0;
    size_t top = is_wrapped ? ring->head : ring->capacity;
    if (TOW_UNLIKELY(needed > top - ring->tail)) {
        if (!is_wrapped && needed <= ring->head)
            wrap(ring);
        else if (!grow(ring, needed))
            return NULL;
    }
    return ring->bytes + ring->tail + sizeof(tow_ring_record_t);
}

const tow_ring_record_t *tow_ring_commit(tow_ring_t *ring, uint32_t type,
                                         uint32_t size)
{
    tow_ring_record_t *record =
        (tow_ring_record_t *)(void *)(ring->bytes + ring->tail);
    size_t bytes = tow_ring_bytes(size);
    TOW_ASSERT(bytes <= ring->capacity - ring->tail);
    record->size = size;
    record->type = type;
    if (ring->waiting == 0) ring->cursor = ring->tail;
    ring->tail += bytes;
    ring->used += bytes;
    ring->count++;
    ring->waiting++;
    return record;
}

static size_t behind(const tow_ring_t *ring, size_t offset)
{
    offset += tow_ring_bytes(tow_ring_at(ring, offset)->size);
    return offset == ring->end ? 0 : offset;
}

void tow_ring_advance(tow_ring_t *ring)
{
    TOW_ASSERT(ring->waiting > 0);
    ring->cursor = behind(ring, ring->cursor);
    ring->waiting--;
}

void tow_ring_rewind(tow_ring_t *ring)
{
    ring->cursor = ring->head;
    ring->waiting = ring->count;
}

void tow_ring_pop(tow_ring_t *ring)
{
    TOW_ASSERT(ring->count > 0);
    if (ring->waiting == ring->count) tow_ring_advance(ring);
    size_t next = behind(ring, ring->head);
    ring->used -= tow_ring_bytes(tow_ring_at(ring, ring->head)->size);
    if (next < ring->head) ring->end = 0; /* The upper part is empty. */
    ring->head = next;
    if (--ring->count == 0) reset(ring);
}

void tow_ring_trim(tow_ring_t *ring, size_t bytes_keep)
{
    if (ring->count == 0 && ring->capacity > bytes_keep) tow_ring_deinit(ring);
}
