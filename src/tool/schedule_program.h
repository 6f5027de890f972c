/* The program of a pipeline schedule, in the text form that `tow lower` reads. */
#ifndef TOW_TOOL_SCHEDULE_PROGRAM_H_
#define TOW_TOOL_SCHEDULE_PROGRAM_H_

#include <stdio.h>

#include "plan/schedule/schedule.h"

/* The stages form a chain, each with one weight; all arrays are f32[4]. Device d
 * is slice d + 1, on process d. Calls have the names of their actions, and
 * accumulations A: "2A1" adds the gradient of microbatch 1. */
tow_status_t tow_pipeline_program_print(const char *name,
                                        const tow_plan_schedule_t *schedule,
                                        FILE *out) TOW_MUST_USE;

#endif /* TOW_TOOL_SCHEDULE_PROGRAM_H_ */
