/* What a session keeps for its peer: records in the order of sending, in one
 * block of memory that grows as needed. Each record lies in one piece, so that
 * it goes to a link by one memcpy; none costs an allocation.
 *
 * A cursor divides the records into those that have been sent in this epoch and
 * those that wait. Zeroed memory is an empty ring. */
#ifndef TOW_SESSION_RING_H_
#define TOW_SESSION_RING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

typedef struct tow_ring_record {
    uint32_t size; /* of the bytes */
    uint32_t type; /* the caller's */
    uint8_t bytes[];
} tow_ring_record_t;

typedef struct tow_ring {
    uint8_t *bytes; /* owned */
    size_t capacity;
    size_t head;   /* offset of the oldest record */
    size_t cursor; /* of the oldest one that waits */
    size_t tail;   /* where the next one goes */
    size_t end;  /* of the upper part while the tail is below the head; or 0 */
    size_t used; /* bytes of all records */
    uint32_t count;
    uint32_t waiting; /* records at the cursor and behind it */
} tow_ring_t;

/* What a record of `size` bytes takes. */
static inline size_t tow_ring_bytes(uint32_t size)
{
    const size_t header = sizeof(tow_ring_record_t);
    return (header + size + header - 1) / header * header;
}

void tow_ring_deinit(tow_ring_t *ring);

/* Room for a record of up to `size_max` bytes, aligned to 8; NULL when memory is
 * exhausted. It is no record until committed. */
uint8_t *tow_ring_begin(tow_ring_t *ring, uint32_t size_max) TOW_MUST_USE;
/* Makes what was written the newest record, which waits. */
const tow_ring_record_t *tow_ring_commit(tow_ring_t *ring, uint32_t type,
                                         uint32_t size);

static inline const tow_ring_record_t *tow_ring_at(const tow_ring_t *ring,
                                                   size_t offset)
{
    return (const tow_ring_record_t *)(const void *)(ring->bytes + offset);
}

/* The oldest record, and the oldest that waits; NULL if there is none. */
static inline const tow_ring_record_t *tow_ring_front(const tow_ring_t *ring)
{
    return ring->count == 0 ? NULL : tow_ring_at(ring, ring->head);
}

static inline const tow_ring_record_t *tow_ring_next(const tow_ring_t *ring)
{
    return ring->waiting == 0 ? NULL : tow_ring_at(ring, ring->cursor);
}

/* The next record has been sent. */
void tow_ring_advance(tow_ring_t *ring);
/* All records wait again. */
void tow_ring_rewind(tow_ring_t *ring);
/* Drops the oldest record, sent or not. */
void tow_ring_pop(tow_ring_t *ring);
/* Gives back the memory of an empty ring above `bytes_keep`. */
void tow_ring_trim(tow_ring_t *ring, size_t bytes_keep);

#endif /* TOW_SESSION_RING_H_ */
