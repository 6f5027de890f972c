/* A ring of slots in memory that two processes of one host share. The writer of
 * a lane makes it, copies a fragment into a slot and sends a message that names
 * the slot; the target copies it out and counts.
 *
 * UCX could carry the bytes itself, but its receive queue is one for all peers,
 * and a place in it is taken before the bytes are copied: a process that is
 * killed in that copy leaves a hole behind which nothing is ever received again,
 * from anybody. With the bytes here the message is 84 bytes, and its copy takes
 * nanoseconds. */
#ifndef TOW_ENV_NET_DATA_RING_H_
#define TOW_ENV_NET_DATA_RING_H_

#include "base/status.h"
#include "env/net/data_wire.h"

typedef struct tow_data_ring tow_data_ring_t;

/* The segment has no name and goes with the last process that has it. */
tow_status_t tow_data_ring_create(tow_data_ring_t **out_ring) TOW_MUST_USE;
/* INVALID_ARGUMENT or what the system says, for an id that is no ring. */
tow_status_t tow_data_ring_attach(int32_t id, tow_data_ring_t **out_ring)
    TOW_MUST_USE;
/* NULL is fine. */
void tow_data_ring_destroy(tow_data_ring_t *ring);
int32_t tow_data_ring_id(const tow_data_ring_t *ring);

/* The writer's: copies up to TOW_NET_FRAGMENT_SHM_BYTES; false when full. */
bool tow_data_ring_put(tow_data_ring_t *ring, const void *bytes, size_t size,
                       tow_data_ring_ref_t *out_ref);
/* The target's: where they are, and that they have been copied. */
const void *tow_data_ring_get(const tow_data_ring_t *ring,
                              const tow_data_ring_ref_t *ref);
void tow_data_ring_take(tow_data_ring_t *ring, const tow_data_ring_ref_t *ref);

#endif /* TOW_ENV_NET_DATA_RING_H_ */
