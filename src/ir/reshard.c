#include "ir/reshard.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/map.h"
#include "base/vec.h"
#include "ir/graph_impl.h"

/* A replica of a source part. */
typedef struct candidate {
    tow_place_t place;
    uint32_t shard;
} candidate_t;

/* A piece by its two shards and its number. Pieces are large, so these keys are
 * collected and sorted instead. */
typedef struct edge {
    uint32_t target;
    uint32_t number;
    uint32_t source;
} edge_t;

typedef struct plan {
    const tow_reshard_side_t *source;
    const tow_reshard_side_t *target;
    uint32_t process;
    uint32_t rank;
    uint64_t element_bytes;
    bool is_same;         /* equal shardings: shard i to shard i */
    tow_map_t candidates; /* part + 1 -> its replicas, sorted by host */
    tow_arena_t scratch;
    TOW_VEC(edge_t) edges;
} plan_t;

/* -- Grids ----------------------------------------------------------------- */

/* Parts that overlap a box: a range along each dimension. */
typedef struct range {
    uint32_t first[TOW_RANK_MAX];
    uint32_t count[TOW_RANK_MAX];
} range_t;

/* The parts of `other` that overlap the part at `index` of `side`. */
static void find_overlap(const tow_reshard_side_t *side, const uint32_t *index,
                         const tow_reshard_side_t *other, range_t *out)
{
    for (uint32_t i = 0; i < side->shard->rank; i++) {
        const int64_t start = index[i] * side->shard->dims[i];
        const int64_t last = start + side->shard->dims[i] - 1;
        const int64_t step = other->shard->dims[i];
        out->first[i] = (uint32_t)(start / step);
        out->count[i] = (uint32_t)(last / step) - out->first[i] + 1;
    }
}

static void start_walk(const range_t *range, uint32_t rank, uint32_t *index)
{
    memcpy(index, range->first, rank * sizeof(*index));
}

/* The next index in row-major order; false at the end. */
static bool walk_on(const range_t *range, uint32_t rank, uint32_t *index)
{
    for (uint32_t i = rank; i-- > 0;) {
        if (++index[i] < range->first[i] + range->count[i]) return true;
        index[i] = range->first[i];
    }
    return false;
}

/* The number of indices before `index` in that order. */
static uint64_t number_in(const range_t *range, uint32_t rank,
                          const uint32_t *index)
{
    uint64_t number = 0;
    for (uint32_t i = 0; i < rank; i++)
        number = number * range->count[i] + (index[i] - range->first[i]);
    return number;
}

static uint64_t part_number(const tow_sharding_t *sharding,
                            const uint32_t *index)
{
    uint64_t number = 0;
    for (uint32_t i = 0; i < sharding->rank; i++)
        number = number * sharding->parts[i] + index[i];
    return number;
}

static void part_index(const tow_sharding_t *sharding, uint64_t number,
                       uint32_t *index)
{
    for (uint32_t i = sharding->rank; i-- > 0;) {
        index[i] = (uint32_t)(number % sharding->parts[i]);
        number /= sharding->parts[i];
    }
}

static bool is_empty(const tow_shape_t *shape)
{
    for (uint32_t i = 0; i < shape->rank; i++)
        if (shape->dims[i] == 0) return true;
    return false;
}

/* A piece is not contiguous if it covers a dimension in part, and is longer
 * than one along an earlier dimension. The first overlap along each dimension
 * is the longest, and all combinations of overlaps occur. */
bool tow_reshard_is_packed(const tow_shape_t *source_shard,
                           const tow_shape_t *target_shard)
{
    bool is_packed = false, is_long = false;
    if (is_empty(target_shard)) return false;
    for (uint32_t i = 0; i < target_shard->rank; i++) {
        const int64_t source = source_shard->dims[i];
        const int64_t target = target_shard->dims[i];
        is_packed |= is_long && source % target != 0;
        is_long |= source > 1 && target > 1;
    }
    return is_packed;
}

/* -- Choosing replicas ----------------------------------------------------- */

typedef enum nearness {
    NEAR_HOST,
    NEAR_PROCESS,
    NEAR_DEVICE,
    NEARNESS_COUNT,
} nearness_t;

static uint32_t place_key(const tow_place_t *place, nearness_t nearness)
{
    if (nearness == NEAR_HOST) return place->host;
    return nearness == NEAR_PROCESS ? place->process : place->device;
}

static int by_place(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    for (nearness_t i = NEAR_HOST; i < NEARNESS_COUNT; i++) {
        const uint32_t key_x = place_key(&x->place, i);
        const uint32_t key_y = place_key(&y->place, i);
        if (key_x != key_y) return key_x < key_y ? -1 : 1;
    }
    return x->shard < y->shard ? -1 : x->shard > y->shard;
}

/* Lower bound: the first replica with a key of at least `key`. */
static size_t lower_bound(const candidate_t *list, size_t count,
                          nearness_t nearness, uint64_t key)
{
    size_t low = 0;
    while (low < count) {
        const size_t middle = low + (count - low) / 2;
        if (place_key(&list[middle].place, nearness) < key)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* The replicas of a part, sorted; NULL without memory. */
static const candidate_t *candidates_of(plan_t *plan, const uint32_t *index)
{
    const tow_sharding_t *sharding = plan->source->sharding;
    const uint64_t key = part_number(sharding, index) + 1;
    candidate_t *list = tow_map_find(&plan->candidates, key);
    if (list != NULL) return list;
    list = tow_arena_alloc(&plan->scratch, sharding->replicas * sizeof(*list));
    if (list == NULL) return NULL;
    for (uint32_t i = 0; i < sharding->replicas; i++) {
        const size_t shard = tow_sharding_device_of(sharding, index, i);
        list[i] = (candidate_t){plan->source->places[shard], (uint32_t)shard};
    }
    qsort(list, sharding->replicas, sizeof(*list), by_place);
    return tow_map_put(&plan->candidates, key, list) ? list : NULL;
}

/* The source shard of a part for the target shard `shard`, which is number
 * `turn` among all targets of that part. False without memory. */
static bool choose(plan_t *plan, const uint32_t *index, uint32_t shard,
                   uint64_t turn, uint32_t *out_shard)
{
    const tow_sharding_t *sharding = plan->source->sharding;
    const tow_place_t *target = &plan->target->places[shard];
    size_t count = sharding->replicas;
    if (plan->is_same) {
        *out_shard = shard;
        return true;
    }
    if (count == 1) {
        *out_shard = (uint32_t)tow_sharding_device_of(sharding, index, 0);
        return true;
    }
    const candidate_t *list = candidates_of(plan, index);
    if (list == NULL) return false;
    for (nearness_t i = NEAR_HOST; i < NEARNESS_COUNT; i++) {
        const uint64_t key = place_key(target, i);
        const size_t first = lower_bound(list, count, i, key);
        const size_t end = lower_bound(list, count, i, key + 1);
        if (first == end) break;
        list += first;
        count = end - first;
    }
    *out_shard = list[turn % count].shard;
    return true;
}

/* Its number among the targets that overlap the source part at `from`. */
static uint64_t turn_of(const plan_t *plan, const uint32_t *from,
                        const uint32_t *to, uint32_t replica)
{
    range_t range = {0};
    find_overlap(plan->source, from, plan->target, &range);
    return number_in(&range, plan->rank, to) *
               plan->target->sharding->replicas +
           replica;
}

/* -- Pieces ---------------------------------------------------------------- */

/* The box in which the part `from` of the source and the part `to` of the
 * target overlap. */
static void cut_piece(const plan_t *plan, const uint32_t *from,
                      const uint32_t *to, tow_piece_t *piece)
{
    uint64_t behind = 1; /* elements per step along a dimension */
    uint64_t before = 1; /* of the box, along earlier dimensions */
    uint64_t offset = 0;
    for (uint32_t i = 0; i < plan->rank; i++)
        behind *= (uint64_t)plan->target->shard->dims[i];
    for (uint32_t i = 0; i < plan->rank; i++) {
        const int64_t source_dim = plan->source->shard->dims[i];
        const int64_t target_dim = plan->target->shard->dims[i];
        const int64_t source = from[i] * source_dim;
        const int64_t target = to[i] * target_dim;
        const int64_t start = source > target ? source : target;
        const int64_t source_end = source + source_dim;
        const int64_t target_end = target + target_dim;
        const int64_t end = source_end < target_end ? source_end : target_end;
        piece->source_start[i] = start - source;
        piece->target_start[i] = start - target;
        piece->extent[i] = end - start;
        /* The sizes of all boxes before this one in row-major order. */
        behind /= (uint64_t)target_dim;
        offset += before * (uint64_t)piece->target_start[i] * behind;
        before *= (uint64_t)piece->extent[i];
    }
    piece->bytes = before * plan->element_bytes;
    piece->offset = offset * plan->element_bytes;
}

static tow_status_t add_edge(plan_t *plan, const edge_t *edge)
{
    if (plan->edges.count == TOW_PIECES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "one worker would send or receive more than %u "
                         "pieces; choose shardings that are more alike",
                         TOW_PIECES_MAX);
    return tow_vec_push(&plan->edges, *edge) ? TOW_OK : tow_ir_exhausted();
}

static tow_status_t receive_shard(plan_t *plan, uint32_t shard)
{
    uint32_t to[TOW_RANK_MAX] = {0}, from[TOW_RANK_MAX] = {0};
    edge_t edge = {.target = shard};
    range_t range = {0};
    const uint32_t replica =
        tow_sharding_part_of(plan->target->sharding, shard, to);
    find_overlap(plan->target, to, plan->source, &range);
    start_walk(&range, plan->rank, from);
    do {
        if (!choose(plan, from, shard, turn_of(plan, from, to, replica),
                    &edge.source))
            return tow_ir_exhausted();
        TOW_RETURN_IF_ERROR(add_edge(plan, &edge));
        edge.number++;
    } while (walk_on(&range, plan->rank, from));
    return TOW_OK;
}

/* Sends to those replicas of one target part that chose this source. */
static tow_status_t send_to(plan_t *plan, const uint32_t *from,
                            const uint32_t *to, uint64_t first_turn)
{
    const tow_sharding_t *sharding = plan->target->sharding;
    range_t range = {0};
    find_overlap(plan->target, to, plan->source, &range);
    edge_t edge = {.number = (uint32_t)number_in(&range, plan->rank, from)};
    for (uint32_t replica = 0; replica < sharding->replicas; replica++) {
        edge.target = (uint32_t)tow_sharding_device_of(sharding, to, replica);
        if (!choose(plan, from, edge.target, first_turn + replica,
                    &edge.source))
            return tow_ir_exhausted();
        if (plan->source->places[edge.source].process == plan->process)
            TOW_RETURN_IF_ERROR(add_edge(plan, &edge));
    }
    return TOW_OK;
}

static tow_status_t send_part(plan_t *plan, uint64_t part)
{
    uint32_t from[TOW_RANK_MAX] = {0}, to[TOW_RANK_MAX] = {0};
    uint64_t turn = 0;
    range_t range = {0};
    part_index(plan->source->sharding, part, from);
    find_overlap(plan->source, from, plan->target, &range);
    start_walk(&range, plan->rank, to);
    do {
        TOW_RETURN_IF_ERROR(send_to(plan, from, to, turn));
        turn += plan->target->sharding->replicas;
    } while (walk_on(&range, plan->rank, to));
    return TOW_OK;
}

/* -- Routes ---------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Local parts, each once, even with several local replicas. */
static tow_status_t send_parts(plan_t *plan)
{
    const tow_reshard_side_t *source = plan->source;
    uint32_t index[TOW_RANK_MAX] = {0};
    uint64_t *parts = tow_arena_alloc(&plan->scratch,
                                      (source->own_count + 1) * sizeof(*parts));
    if (parts == NULL) return tow_ir_exhausted();
    for (size_t i = 0; i < source->own_count; i++) {
        tow_sharding_part_of(source->sharding, source->own[i], index);
        parts[i] = part_number(source->sharding, index);
    }
    qsort(parts, source->own_count, sizeof(*parts), by_number);
    for (size_t i = 0; i < source->own_count; i++)
        if (i == 0 || parts[i] != parts[i - 1])
            TOW_RETURN_IF_ERROR(send_part(plan, parts[i]));
    return TOW_OK;
}

static int by_target(const void *a, const void *b)
{
    const edge_t *x = a, *y = b;
    if (x->target != y->target) return x->target < y->target ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

typedef enum direction {
    SENT,
    RECEIVED,
} direction_t;

static void write_piece(const plan_t *plan, const edge_t *edge,
                        direction_t direction, tow_piece_t *piece)
{
    const tow_place_t *source = &plan->source->places[edge->source];
    const tow_place_t *target = &plan->target->places[edge->target];
    uint32_t from[TOW_RANK_MAX] = {0}, to[TOW_RANK_MAX] = {0};
    tow_sharding_part_of(plan->source->sharding, edge->source, from);
    tow_sharding_part_of(plan->target->sharding, edge->target, to);
    piece->process = direction == SENT ? target->process : source->process;
    piece->source_shard = source->index;
    piece->target_shard = target->index;
    piece->number = edge->number;
    cut_piece(plan, from, to, piece);
}

/* Makes pieces from the collected keys. */
static tow_status_t write_pieces(plan_t *plan, direction_t direction,
                                 tow_arena_t *arena,
                                 const tow_piece_t **out_pieces,
                                 size_t *out_count)
{
    const size_t count = plan->edges.count;
    tow_piece_t *pieces = tow_arena_calloc(arena, count + 1, sizeof(*pieces));
    if (pieces == NULL) return tow_ir_exhausted();
    if (count > 1) qsort(plan->edges.items, count, sizeof(edge_t), by_target);
    for (size_t i = 0; i < count; i++)
        write_piece(plan, &plan->edges.items[i], direction, &pieces[i]);
    *out_pieces = pieces;
    *out_count = count;
    plan->edges.count = 0;
    return TOW_OK;
}

static tow_status_t list_devices(const tow_reshard_side_t *target,
                                 tow_arena_t *arena, tow_route_t *route)
{
    uint32_t *devices =
        tow_arena_alloc(arena, (target->own_count + 1) * sizeof(*devices));
    if (devices == NULL) return tow_ir_exhausted();
    for (size_t i = 0; i < target->own_count; i++)
        devices[i] = target->places[target->own[i]].device;
    route->target_devices = devices;
    route->target_count = target->own_count;
    return TOW_OK;
}

static tow_status_t make_route(plan_t *plan, tow_arena_t *arena,
                               tow_route_t *route)
{
    const bool has_pieces = !is_empty(plan->target->shard);
    TOW_RETURN_IF_ERROR(list_devices(plan->target, arena, route));
    for (size_t i = 0; has_pieces && i < plan->target->own_count; i++)
        TOW_RETURN_IF_ERROR(receive_shard(plan, plan->target->own[i]));
    TOW_RETURN_IF_ERROR(write_pieces(plan, RECEIVED, arena, &route->receives,
                                     &route->receive_count));
    if (has_pieces) TOW_RETURN_IF_ERROR(send_parts(plan));
    return write_pieces(plan, SENT, arena, &route->sends, &route->send_count);
}

tow_status_t tow_reshard_route(const tow_reshard_side_t *source,
                               const tow_reshard_side_t *target,
                               uint32_t process, tow_arena_t *arena,
                               tow_route_t *out_route)
{
    TOW_ASSERT(source->shard->rank == target->shard->rank);
    TOW_ASSERT(source->shard->type == target->shard->type);
    const uint32_t bits = tow_type_bits(source->shard->type);
    plan_t plan = {.source = source,
                   .target = target,
                   .process = process,
                   .rank = source->shard->rank,
                   .element_bytes = (bits + 7) / 8,
                   .is_same =
                       tow_sharding_equal(source->sharding, target->sharding)};
    tow_arena_init(&plan.scratch, 0);
    *out_route = (tow_route_t){
        .source = *source->shard,
        .target = *target->shard,
        .source_count = source->own_count,
        .is_packed = tow_reshard_is_packed(source->shard, target->shard)};
    tow_status_t status = make_route(&plan, arena, out_route);
    tow_vec_deinit(&plan.edges);
    tow_map_deinit(&plan.candidates);
    tow_arena_deinit(&plan.scratch);
    return status;
}
