/* A ring of slots in memory shared by two processes of one host. The writer of
 * a lane creates it, copies a fragment into a slot and sends a message with the
 * slot's index; the target copies the fragment out and increments a counter.
 *
 * UCX could carry the bytes itself, but it has one receive queue for all peers,
 * and reserves a slot in it before it copies the bytes: a process killed during
 * that copy leaves a hole behind which the target never receives anything
 * again, from any peer. With the bytes in this ring the message has 84 bytes,
 * and copying it takes nanoseconds. */
#ifndef TOW_ENV_NET_DATA_RING_H_
#define TOW_ENV_NET_DATA_RING_H_

#include "base/status.h"
#include "env/net/data/wire.h"

typedef struct tow_data_ring tow_data_ring_t;

/* The segment has no name and is freed with the last process that attached
 * it. */
tow_status_t tow_data_ring_create(tow_data_ring_t **out_ring) TOW_MUST_USE;
/* INVALID_ARGUMENT, or the system's error, for an id that is not a ring. */
tow_status_t tow_data_ring_attach(int32_t id, tow_data_ring_t **out_ring)
    TOW_MUST_USE;
/* NULL is allowed. */
void tow_data_ring_destroy(tow_data_ring_t *ring);
int32_t tow_data_ring_id(const tow_data_ring_t *ring);

/* For the writer: copies up to TOW_NET_FRAGMENT_SHM_BYTES; false when full. */
bool tow_data_ring_put(tow_data_ring_t *ring, const void *bytes, size_t size,
                       tow_data_ring_ref_t *out_ref);
/* For the target: the bytes of a slot, and their release after the copy. */
const void *tow_data_ring_get(const tow_data_ring_t *ring,
                              const tow_data_ring_ref_t *ref);
void tow_data_ring_take(tow_data_ring_t *ring, const tow_data_ring_ref_t *ref);

#endif /* TOW_ENV_NET_DATA_RING_H_ */
