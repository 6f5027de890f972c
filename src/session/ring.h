/* The retransmit buffer of a session: records in the order of sending, in one
 * ring buffer that grows as needed. Each record is contiguous, so that one
 * memcpy passes it to a link; no record costs an allocation.
 *
 * A cursor separates the records that were sent in this epoch from those that
 * wait. Zeroed memory is an empty ring. */
#ifndef TOW_SESSION_RING_H_
#define TOW_SESSION_RING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

typedef struct tow_ring_record {
    uint32_t size; /* of the bytes */
    uint32_t type; /* for the caller */
    uint8_t bytes[];
} tow_ring_record_t;

typedef struct tow_ring {
    uint8_t *bytes; /* owned */
    size_t capacity;
    size_t head;   /* offset of the oldest record */
    size_t cursor; /* offset of the oldest waiting record */
    size_t tail;   /* offset of the next record */
    size_t end;    /* of the upper part, if the ring has wrapped; else 0 */
    size_t used;   /* bytes of all records */
    uint32_t count;
    uint32_t waiting; /* records from the cursor on */
} tow_ring_t;

/* The space that a record of `size` bytes takes. */
static inline size_t tow_ring_bytes(uint32_t size)
{
    const size_t header = sizeof(tow_ring_record_t);
    return (header + size + header - 1) / header * header;
}

void tow_ring_deinit(tow_ring_t *ring);

/* Space for a record of up to `size_max` bytes, aligned to 8; NULL when memory
 * is exhausted. tow_ring_commit makes it a record. */
uint8_t *tow_ring_begin(tow_ring_t *ring, uint32_t size_max) TOW_MUST_USE;
/* Appends the bytes written there as the newest record, which waits. */
const tow_ring_record_t *tow_ring_commit(tow_ring_t *ring, uint32_t type,
                                         uint32_t size);

static inline const tow_ring_record_t *tow_ring_at(const tow_ring_t *ring,
                                                   size_t offset)
{
    return (const tow_ring_record_t *)(const void *)(ring->bytes + offset);
}

/* The oldest record, and the oldest waiting one; NULL if there is none. */
static inline const tow_ring_record_t *tow_ring_front(const tow_ring_t *ring)
{
    return ring->count == 0 ? NULL : tow_ring_at(ring, ring->head);
}

static inline const tow_ring_record_t *tow_ring_next(const tow_ring_t *ring)
{
    return ring->waiting == 0 ? NULL : tow_ring_at(ring, ring->cursor);
}

/* The oldest waiting record has been sent. */
void tow_ring_advance(tow_ring_t *ring);
/* All records wait again. */
void tow_ring_rewind(tow_ring_t *ring);
/* Discards the oldest record, sent or not. */
void tow_ring_pop(tow_ring_t *ring);
/* Frees the memory of an empty ring above `bytes_keep`. */
void tow_ring_trim(tow_ring_t *ring, size_t bytes_keep);

/* Asserts the invariants: O(1). */
void tow_ring_check(const tow_ring_t *ring);

#endif /* TOW_SESSION_RING_H_ */
