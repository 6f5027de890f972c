/* What `tow lower` shows: slices and their devices, programs, and what each worker
 * is told; as text, or as JSON. */
#ifndef TOW_TOOL_LOWER_PRINT_H_
#define TOW_TOOL_LOWER_PRINT_H_

#include "tool/lower_world.h"

/* On standard output. */
void tow_lower_print_places(const tow_lower_world_t *world);
tow_status_t tow_lower_print_program(const tow_graph_t *program) TOW_MUST_USE;
void tow_lower_print_worker(const tow_lower_world_t *world,
                            const tow_graph_t *program,
                            const tow_lowered_t *lowered);

/* The same, one object a line. */
void tow_lower_json_program(const tow_lower_world_t *world, const char *pass,
                            const tow_graph_t *program);
void tow_lower_json_worker(const tow_lower_world_t *world,
                           const tow_graph_t *program,
                           const tow_lowered_t *lowered);

#endif /* TOW_TOOL_LOWER_PRINT_H_ */
