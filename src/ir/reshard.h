/* Resharding: which boxes of which source shards form each target shard, and
 * which workers send them.
 *
 * Every worker computes its own part, and the results agree. With equal
 * shardings shard i comes from shard i. Otherwise, among the replicas of a
 * source part, a target takes the one on its own device, else one of its
 * process, else of its host, else any; among equally near ones, the targets
 * take turns, so that replicas share the load. The cost is proportional to the
 * result: parts that do not overlap are never visited. Pure. */
#ifndef TOW_IR_RESHARD_H_
#define TOW_IR_RESHARD_H_

#include "base/arena.h"
#include "ir/lower.h"

typedef struct tow_reshard_side {
    const tow_sharding_t *sharding; /* checked, for the number of places */
    const tow_shape_t *shard;
    const tow_place_t *places; /* by shard */
    /* Local shards of the worker of the route, in the order of their local
     * indices. */
    const uint32_t *own;
    size_t own_count;
} tow_reshard_side_t;

/* True if some piece is not contiguous in its target. The same for all
 * workers. */
bool tow_reshard_is_packed(const tow_shape_t *source_shard,
                           const tow_shape_t *target_shard);

/* The route of the worker `process`. Both sides are shards of one array. All
 * that it points to is in the arena. RESOURCE_EXHAUSTED beyond TOW_PIECES_MAX
 * pieces, or without memory. */
tow_status_t tow_reshard_route(const tow_reshard_side_t *source,
                               const tow_reshard_side_t *target,
                               uint32_t process, tow_arena_t *arena,
                               tow_route_t *out_route) TOW_MUST_USE;

#endif /* TOW_IR_RESHARD_H_ */
