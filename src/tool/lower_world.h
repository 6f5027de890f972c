/* What ids in a program stand for, told by the lines above it in a file: for
 * `tow lower`, which has no cluster to ask.
 *
 *     // Processes, and the devices that each has.
 *     slice 1 on 0.0-3, 1.0-3
 *     slice 2 on 2-3.0-3
 *     // Those that are on one machine; others are on one each.
 *     host 0, 1
 *     // Shapes of shards, and how the whole lies on the devices.
 *     function 1 "A" for 8 (f32[4,8] as 8x1, f32[] as *8) -> (f32[4,8] as 8x1)
 *     function 2 "filter" for 8 host (f32[4,8]) -> (f32[<=4,8])
 *     function 2 "B" for 8 (f32[32,1] as 1x8) -> (f32[32,1] as 1x8 alias 0)
 *     program { ... }
 *
 * A sharding that is left out is not known, as a compiler may not tell. */
#ifndef TOW_TOOL_LOWER_WORLD_H_
#define TOW_TOOL_LOWER_WORLD_H_

#include "base/arena.h"
#include "base/vec.h"
#include "ir/lower.h"

typedef struct tow_lower_slice {
    tow_slice_id_t id;
    TOW_VEC(tow_place_t) places;
} tow_lower_slice_t;

typedef struct tow_lower_function {
    tow_function_id_t id;
    tow_signature_t signature; /* in the arena */
} tow_lower_function_t;

/* A function on a slice. Its place in the list, from 1 on, is its id. */
typedef struct tow_lower_executable {
    tow_function_id_t function;
    tow_slice_id_t slice;
} tow_lower_executable_t;

typedef struct tow_lower_world {
    tow_arena_t arena;
    TOW_VEC(tow_lower_slice_t) slices;
    TOW_VEC(tow_lower_function_t) functions;
    TOW_VEC(tow_lower_executable_t) executables;
    TOW_VEC(uint32_t) processes; /* ascending */
    tow_lower_scope_t scope;
} tow_lower_world_t;

/* Reads the lines above the program, and blanks them out in `text`, so that what
 * is left is the program with the same numbers of lines. INVALID_ARGUMENT names
 * the line. */
tow_status_t tow_lower_world_open(tow_lower_world_t *world, char *text,
                                  size_t size) TOW_MUST_USE;
/* Accepts half-open ones. */
void tow_lower_world_close(tow_lower_world_t *world);
/* Gives every function of the program on its slice an id. */
tow_status_t tow_lower_world_place(tow_lower_world_t *world,
                                   const tow_graph_t *program) TOW_MUST_USE;
const tow_lower_slice_t *tow_lower_world_slice(const tow_lower_world_t *world,
                                               tow_slice_id_t id);

#endif /* TOW_TOOL_LOWER_WORLD_H_ */
