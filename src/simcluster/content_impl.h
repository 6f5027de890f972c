/* The contents that arrays of a simulated cluster should have, computed apart
 * from the cluster, and compared with what clients download.
 *
 * A shard's content is a simulated value (device/sim/README.md), or bytes that
 * show none, such as uploaded ones. Contents are immutable and counted. */
#ifndef TOW_SIMCLUSTER_CONTENT_IMPL_H_
#define TOW_SIMCLUSTER_CONTENT_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ir/collective.h"
#include "ir/sharding.h"

typedef struct sim_bytes sim_bytes_t; /* counted */

typedef struct sim_shard {
    uint64_t value;
    uint32_t size;
    sim_bytes_t *bytes; /* NULL: those that show the value */
} sim_shard_t;

/* Of all shards of an array. */
typedef struct sim_contents {
    uint32_t reference_count;
    uint32_t device_count;
    uint32_t distinct_count; /* device_count, or 1: all shards are equal */
    sim_shard_t shards[];
} sim_contents_t;

/* -- Shards ---------------------------------------------------------------- */

sim_shard_t sim_shard_of_value(uint64_t value, uint32_t size);
/* As a device keeps them. */
sim_shard_t sim_shard_of_bytes(const void *bytes, uint32_t size);
sim_shard_t sim_shard_retain(const sim_shard_t *shard);
void sim_shard_release(sim_shard_t *shard);
bool sim_shard_equal(const sim_shard_t *a, const sim_shard_t *b);
/* Writes the `size` bytes that a download gives. */
void sim_shard_show(const sim_shard_t *shard, uint8_t *bytes);

/* -- Contents -------------------------------------------------------------- */

/* With empty shards; one reference. */
sim_contents_t *sim_contents_create(uint32_t device_count,
                                    uint32_t distinct_count);
sim_contents_t *sim_contents_retain(sim_contents_t *contents);
void sim_contents_release(sim_contents_t *contents); /* NULL is fine */
/* Lent. */
const sim_shard_t *sim_contents_shard(const sim_contents_t *contents,
                                      size_t device);

/* -- Operations: each result has one reference ----------------------------- */

/* Of `part_count` parts in order, each on equally many devices. */
sim_contents_t *sim_contents_upload(const uint8_t *bytes, uint32_t size,
                                    uint32_t part_count, uint32_t device_count);
/* All replicas of a part must be equal: else the result depends on which one is
 * transferred. Arrays of rank 1. */
sim_contents_t *sim_contents_reshard(const sim_contents_t *contents,
                                     const tow_sharding_t *from,
                                     const tow_sharding_t *to,
                                     uint32_t device_count);
/* Of bytes, over groups of devices. */
sim_contents_t *sim_contents_all_reduce(const sim_contents_t *contents,
                                        const tow_collective_t *collective);

#endif /* TOW_SIMCLUSTER_CONTENT_IMPL_H_ */
