/* Splitting transfers and collectives among workers: one worker's shards of
 * each slice, its routes and its parts. Lives for one lowering. */
#ifndef TOW_IR_SPLIT_IMPL_H_
#define TOW_IR_SPLIT_IMPL_H_

#include "base/arena.h"
#include "base/map.h"
#include "ir/lower.h"

typedef struct tow_split {
    const tow_lower_scope_t *scope; /* lent */
    tow_map_t slices;               /* id -> places of its shards */
    tow_arena_t arena;
} tow_split_t;

void tow_split_init(tow_split_t *split, const tow_lower_scope_t *scope);
void tow_split_deinit(tow_split_t *split);
/* Before any other function for the slice. */
tow_status_t tow_split_add(tow_split_t *split, tow_slice_id_t slice)
    TOW_MUST_USE;
/* True if the worker has shards of it. */
bool tow_split_has(const tow_split_t *split, tow_slice_id_t slice);
/* The worker's part of a transfer, in `arena`. */
tow_status_t tow_split_route(tow_split_t *split, const tow_graph_t *program,
                             uint32_t transfer, tow_arena_t *arena,
                             const tow_route_t **out_route) TOW_MUST_USE;

/* The worker's part of a collective, in `arena`; it has shards of its slice. */
tow_status_t tow_split_collective(tow_split_t *split,
                                  const tow_graph_t *program,
                                  uint32_t collective, tow_arena_t *arena,
                                  const tow_collective_part_t **out_part)
    TOW_MUST_USE;

#endif /* TOW_IR_SPLIT_IMPL_H_ */
