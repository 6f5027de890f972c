/* Output of `tow lower` as text or JSON: slices and their devices, programs,
 * the steps of each worker, and memory. */
#ifndef TOW_TOOL_LOWER_PRINT_H_
#define TOW_TOOL_LOWER_PRINT_H_

#include "tool/lower_header.h"

/* Text, to standard output. */
void tow_lower_print_places(const tow_lower_header_t *header);
tow_status_t tow_lower_print_program(const tow_graph_t *program) TOW_MUST_USE;
void tow_lower_print_worker(const tow_lower_header_t *header,
                            const tow_graph_t *program,
                            const tow_lowered_t *lowered);

/* JSON, one object per line. */
void tow_lower_json_program(const tow_lower_header_t *header, const char *pass,
                            const tow_graph_t *program);
void tow_lower_json_worker(const tow_lower_header_t *header,
                           const tow_graph_t *program,
                           const tow_lowered_t *lowered);

typedef enum tow_lower_format {
    TOW_LOWER_TEXT,
    TOW_LOWER_JSON,
} tow_lower_format_t;

/* The memory that a run takes on each device, by slice, as the controller
 * accounts for it. The program has its transfers. */
tow_status_t tow_lower_show_memory(const tow_lower_header_t *header,
                                   const tow_graph_t *program,
                                   tow_lower_format_t format) TOW_MUST_USE;

#endif /* TOW_TOOL_LOWER_PRINT_H_ */
