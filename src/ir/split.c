#include "ir/split_impl.h"

#include <stdlib.h>

#include "base/assert.h"
#include "ir/graph_impl.h"
#include "ir/reshard.h"

/* A slice from the view of the target worker. */
typedef struct slice_view {
    size_t count;
    tow_place_t *places; /* by shard */
    uint32_t *own;       /* shards */
    size_t own_count;
} slice_view_t;

void tow_split_init(tow_split_t *split, const tow_lower_scope_t *scope)
{
    *split = (tow_split_t){.scope = scope};
    tow_arena_init(&split->arena, 0);
}

void tow_split_deinit(tow_split_t *split)
{
    tow_map_deinit(&split->slices);
    tow_arena_deinit(&split->arena);
}

tow_status_t tow_split_add(tow_split_t *split, tow_slice_id_t slice)
{
    const tow_lower_scope_t *scope = split->scope;
    if (tow_map_find(&split->slices, slice.value) != NULL) return TOW_OK;
    TOW_ASSERT(scope->place != NULL);
    const size_t count =
        scope->program.slice_devices(scope->program.context, slice);
    slice_view_t *view = tow_arena_calloc(&split->arena, 1, sizeof(*view));
    if (view == NULL) return tow_ir_exhausted();
    view->count = count;
    view->places = tow_arena_calloc(&split->arena, count, sizeof(tow_place_t));
    view->own = tow_arena_calloc(&split->arena, count, sizeof(uint32_t));
    if (view->places == NULL || view->own == NULL ||
        !tow_map_put(&split->slices, slice.value, view))
        return tow_ir_exhausted();
    for (uint32_t i = 0; i < count; i++) {
        view->places[i] = scope->place(scope->context, slice, i);
        if (view->places[i].process != scope->process) continue;
        TOW_ASSERT(view->places[i].index == view->own_count);
        view->own[view->own_count++] = i;
    }
    return TOW_OK;
}

static const slice_view_t *view_of(const tow_split_t *split,
                                   tow_slice_id_t slice)
{
    const slice_view_t *view = tow_map_find(&split->slices, slice.value);
    TOW_ASSERT(view != NULL);
    return view;
}

bool tow_split_has(const tow_split_t *split, tow_slice_id_t slice)
{
    return view_of(split, slice)->own_count > 0;
}

static tow_reshard_side_t side_of(const slice_view_t *view,
                                  const tow_sharding_t *sharding,
                                  const tow_shape_t *shard)
{
    return (tow_reshard_side_t){.sharding = sharding,
                                .shard = shard,
                                .places = view->places,
                                .own = view->own,
                                .own_count = view->own_count};
}

tow_status_t tow_split_route(tow_split_t *split, const tow_graph_t *program,
                             uint32_t transfer, tow_arena_t *arena,
                             const tow_route_t **out_route)
{
    const tow_graph_scope_t *scope = &split->scope->program;
    const tow_node_t *node = tow_graph_node(program, transfer);
    const tow_node_t *producer = tow_graph_node(program, node->inputs[0].node);
    tow_shape_t shapes[2];
    TOW_RETURN_IF_ERROR(
        tow_value_shape(program, scope, node->inputs[0], &shapes[0]));
    TOW_RETURN_IF_ERROR(tow_value_shape(
        program, scope, (tow_value_t){transfer, 0}, &shapes[1]));
    const tow_reshard_side_t source =
        side_of(view_of(split, producer->slice), node->from, &shapes[0]);
    const tow_reshard_side_t target =
        side_of(view_of(split, node->slice), node->to, &shapes[1]);
    tow_route_t *route = tow_arena_alloc(arena, sizeof(*route));
    if (route == NULL) return tow_ir_exhausted();
    *out_route = route;
    return tow_reshard_route(&source, &target, split->scope->process, arena,
                             route);
}

/* -- Collectives ----------------------------------------------------------- */

/* The members of all groups, from one pass over the shards of the slice. */
typedef struct gathering {
    const tow_collective_t *collective;
    const slice_view_t *view;
    uint32_t process; /* local */
    tow_map_t groups; /* local: number -> tow_members_t */
    tow_map_t seen;   /* group and process */
} gathering_t;

/* A group with local shards, with room for all its members. */
static tow_status_t add_group(gathering_t *gathering, size_t number,
                              tow_arena_t *arena, tow_members_t *members)
{
    const size_t size = gathering->view->count /
                        tow_collective_group_count(gathering->collective);
    uint32_t *numbers = tow_arena_alloc(arena, 2 * size * sizeof(*numbers));
    if (numbers == NULL || !tow_map_put(&gathering->groups, number, members))
        return tow_ir_exhausted();
    *members = (tow_members_t){.group = (uint32_t)number,
                               .processes = numbers,
                               .shards = numbers + size};
    return TOW_OK;
}

static tow_status_t add_groups(gathering_t *gathering, tow_arena_t *arena,
                               tow_collective_part_t *part)
{
    const slice_view_t *view = gathering->view;
    tow_members_t *groups =
        tow_arena_calloc(arena, view->own_count, sizeof(*groups));
    if (groups == NULL) return tow_ir_exhausted();
    part->groups = groups;
    for (size_t i = 0; i < view->own_count; i++) {
        const size_t number =
            tow_collective_group_of(gathering->collective, view->own[i]);
        tow_members_t *members = tow_map_find(&gathering->groups, number);
        if (members == NULL) {
            members = &groups[part->group_count++];
            TOW_RETURN_IF_ERROR(add_group(gathering, number, arena, members));
        }
        ((uint32_t *)members->shards)[members->shard_count++] = (uint32_t)i;
    }
    return TOW_OK;
}

static tow_status_t add_processes(gathering_t *gathering)
{
    const slice_view_t *view = gathering->view;
    for (size_t shard = 0; shard < view->count; shard++) {
        const size_t number =
            tow_collective_group_of(gathering->collective, shard);
        const uint32_t process = view->places[shard].process;
        const uint64_t key = (uint64_t)number << 32 | process;
        tow_members_t *members = tow_map_find(&gathering->groups, number);
        if (members == NULL || tow_map_find(&gathering->seen, key) != NULL)
            continue;
        if (!tow_map_put(&gathering->seen, key, members))
            return tow_ir_exhausted();
        if (process == gathering->process)
            members->self = members->process_count;
        ((uint32_t *)members->processes)[members->process_count++] = process;
    }
    return TOW_OK;
}

static int by_group(const void *a, const void *b)
{
    const uint32_t first = ((const tow_members_t *)a)->group;
    const uint32_t second = ((const tow_members_t *)b)->group;
    return first < second ? -1 : first > second;
}

static tow_status_t gather(tow_split_t *split, const tow_node_t *node,
                           tow_arena_t *arena, tow_collective_part_t *part)
{
    gathering_t gathering = {.collective = node->collective,
                             .view = view_of(split, node->slice),
                             .process = split->scope->process};
    tow_status_t status = add_groups(&gathering, arena, part);
    if (status == TOW_OK) status = add_processes(&gathering);
    tow_map_deinit(&gathering.groups);
    tow_map_deinit(&gathering.seen);
    if (part->group_count > 1)
        qsort((void *)part->groups, part->group_count, sizeof(tow_members_t),
              by_group);
    return status;
}

static tow_status_t copy_devices(const slice_view_t *view, tow_arena_t *arena,
                                 tow_collective_part_t *part)
{
    uint32_t *devices =
        tow_arena_alloc(arena, (view->own_count + 1) * sizeof(*devices));
    if (devices == NULL) return tow_ir_exhausted();
    for (size_t i = 0; i < view->own_count; i++)
        devices[i] = view->places[view->own[i]].device;
    part->devices = devices;
    part->shard_count = view->own_count;
    return TOW_OK;
}

tow_status_t tow_split_collective(tow_split_t *split,
                                  const tow_graph_t *program,
                                  uint32_t collective, tow_arena_t *arena,
                                  const tow_collective_part_t **out_part)
{
    const tow_node_t *node = tow_graph_node(program, collective);
    tow_collective_part_t *part = tow_arena_calloc(arena, 1, sizeof(*part));
    tow_shape_t *tensors =
        tow_arena_calloc(arena, node->input_count, sizeof(*tensors));
    if (part == NULL || tensors == NULL) return tow_ir_exhausted();
    *out_part = part;
    part->kind = node->collective->kind;
    part->reduction = node->collective->reduction;
    part->chunk_bytes = TOW_COLLECTIVE_CHUNK_BYTES;
    part->tensors = tensors;
    part->tensor_count = node->input_count;
    for (size_t i = 0; i < node->input_count; i++)
        TOW_RETURN_IF_ERROR(tow_value_shape(program, &split->scope->program,
                                            node->inputs[i], &tensors[i]));
    TOW_RETURN_IF_ERROR(copy_devices(view_of(split, node->slice), arena, part));
    return gather(split, node, arena, part);
}
