#include "ir/split_impl.h"

#include "base/assert.h"
#include "ir/graph_impl.h"
#include "ir/reshard.h"

/* A slice as the worker that we lower for sees it. */
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
