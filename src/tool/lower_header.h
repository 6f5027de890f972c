/* The declarations above a program in a file for `tow lower`, which has no cluster
 * to query.
 *
 *     // Processes and their devices.
 *     slice 1 on 0.0-3, 1.0-3
 *     slice 2 on 2-3.0-3
 *     // Processes on one host; every other process has its own.
 *     host 0, 1
 *     // Shapes of shards, and the sharding of the whole array.
 *     function 1 "A" for 8 (f32[4,8] as 8x1, f32[] as *8) -> (f32[4,8] as 8x1)
 *     function 2 "filter" for 8 host (f32[4,8]) -> (f32[<=4,8])
 *     function 2 "B" for 8 (f32[32,1] as 1x8) -> (f32[32,1] as 1x8 alias 0)
 *     program { ... }
 *
 * `temporary 4096` after the results: bytes of a device that the function takes
 * while it runs. An omitted sharding is unknown, as it may be after compilation. */
#ifndef TOW_TOOL_LOWER_HEADER_H_
#define TOW_TOOL_LOWER_HEADER_H_

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

/* A function on a slice. Its index in the list, from 1, is its id. */
typedef struct tow_lower_executable {
    tow_function_id_t function;
    tow_slice_id_t slice;
} tow_lower_executable_t;

typedef struct tow_lower_header {
    tow_arena_t arena;
    TOW_VEC(tow_lower_slice_t) slices;
    TOW_VEC(tow_lower_function_t) functions;
    TOW_VEC(tow_lower_executable_t) executables;
    TOW_VEC(uint32_t) processes; /* ascending */
    tow_lower_scope_t scope;
} tow_lower_header_t;

/* Reads the lines above the program and overwrites them with blanks, which
 * keeps the line numbers of the program. INVALID_ARGUMENT names the line. */
tow_status_t tow_lower_header_open(tow_lower_header_t *header, char *text,
                                   size_t size) TOW_MUST_USE;
/* Accepts a header that was not fully read. */
void tow_lower_header_close(tow_lower_header_t *header);
/* Assigns an id to every function of the program on its slice. */
tow_status_t tow_lower_header_place(tow_lower_header_t *header,
                                    const tow_graph_t *program) TOW_MUST_USE;
const tow_lower_slice_t *tow_lower_header_slice(
    const tow_lower_header_t *header, tow_slice_id_t id);

#endif /* TOW_TOOL_LOWER_HEADER_H_ */
