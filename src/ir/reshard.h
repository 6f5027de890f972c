/* From one sharding to another: which boxes of which source shards make up a
 * target shard, and who sends them.
 *
 * Every worker works out its own part, and all agree. With the same sharding on
 * both sides shard i comes from shard i. Else, among replicas of a source part, a
 * target takes the one on its own device, else one of its process, else of its
 * host, else any; where several are as near, the targets that want the part take
 * turns, so replicas share the load. The work is in the order of what
 * comes out: parts that do not overlap are never looked at. Pure. */
#ifndef TOW_IR_RESHARD_H_
#define TOW_IR_RESHARD_H_

#include "base/arena.h"
#include "ir/lower.h"

typedef struct tow_reshard_side {
    const tow_sharding_t
        *sharding; /* checked, for as many as there are places */
    const tow_shape_t *shard;
    const tow_place_t *places; /* by shard */
    /* Shards of the worker that the route is for, in the order of its own
     * numbers. */
    const uint32_t *own;
    size_t own_count;
} tow_reshard_side_t;

/* Does some piece not lie in one row in its target? The same for all workers. */
bool tow_reshard_is_packed(const tow_shape_t *source_shard,
                           const tow_shape_t *target_shard);

/* The route of the worker of `process`. Both sides are shards of one array. All
 * that it points to is in the arena. RESOURCE_EXHAUSTED past TOW_PIECES_MAX
 * pieces, or without memory. */
tow_status_t tow_reshard_route(const tow_reshard_side_t *source,
                               const tow_reshard_side_t *target,
                               uint32_t process, tow_arena_t *arena,
                               tow_route_t *out_route) TOW_MUST_USE;

#endif /* TOW_IR_RESHARD_H_ */
