/* The memory of a lowered program (one block, and an arena for routes and
 * parts), and the encoding of routes and parts. */
#ifndef TOW_IR_LOWERED_IMPL_H_
#define TOW_IR_LOWERED_IMPL_H_

#include "base/arena.h"
#include "ir/lower.h"
#include "wire/message.h"

/* A zeroed lowered program with room for `step_count` steps and `number_count`
 * slots and indices; NULL without memory. */
tow_lowered_t *tow_lowered_allocate(size_t step_count, size_t number_count,
                                    tow_lowered_step_t **out_steps,
                                    uint32_t **out_numbers);
/* The arena of its routes and parts, freed with it. */
tow_arena_t *tow_lowered_arena(tow_lowered_t *lowered);

/* A message that points into the route; NULL without memory. */
tow_msg_route_t *tow_route_pack(const tow_route_t *route, tow_arena_t *arena);
/* Untrusted: checks all fields, and that the route matches its step, which has
 * one. */
tow_status_t tow_route_unpack(const tow_msg_lowered_step_t *step,
                              tow_arena_t *arena, const tow_route_t **out_route)
    TOW_MUST_USE;
/* The same for a collective (part.c). */
tow_msg_collective_part_t *tow_part_pack(const tow_collective_part_t *part,
                                         tow_arena_t *arena);
tow_status_t tow_part_unpack(const tow_msg_lowered_step_t *step,
                             tow_arena_t *arena,
                             const tow_collective_part_t **out_part)
    TOW_MUST_USE;

/* Common parts of both (route.c). `out_bytes` is the size of the dense
 * array. */
tow_msg_array_type_t *tow_shape_pack(const tow_shape_t *shape,
                                     tow_arena_t *arena);
tow_status_t tow_shape_unpack(const tow_msg_array_type_t *type,
                              tow_shape_t *shape, uint64_t *out_bytes)
    TOW_MUST_USE;
/* Indices of devices of a worker, each once. */
tow_status_t tow_devices_unpack(const uint32_t *numbers, size_t count,
                                tow_arena_t *arena,
                                const uint32_t **out_devices) TOW_MUST_USE;

#endif /* TOW_IR_LOWERED_IMPL_H_ */
