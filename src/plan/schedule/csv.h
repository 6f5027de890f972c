/* Schedules as text, in the form of torch.distributed.pipelining: one row per
 * device, cells STAGE ACTION MICROBATCH such as 0F0, 3I2, 3W2, 1B0. Cells may be
 * empty. Beyond torch's F, B, I, W, SEND_F and SEND_B we have R (recompute), and
 * without a microbatch AR (all-reduce) and U (update). Receives are not
 * actions: a value is received when it arrives. */
#ifndef TOW_PLAN_SCHEDULE_CSV_H_
#define TOW_PLAN_SCHEDULE_CSV_H_

#include "plan/schedule/schedule.h"

#define TOW_PLAN_CSV_BYTES_MAX ((size_t)16 << 20)

/* The device of a stage is the first row that names it; the numbers of stages
 * and microbatches follow from the largest. INVALID_ARGUMENT names row, column
 * (from 1) and the text. The result parses; whether it can run is the question
 * of tow_plan_schedule_check. Zeroed after an error. */
tow_status_t tow_plan_csv_parse(const char *text, size_t size,
                                tow_plan_schedule_t *out_schedule) TOW_MUST_USE;

/* The caller frees *out_text, which ends with a zero byte, with tow_free. */
tow_status_t tow_plan_csv_print(const tow_plan_schedule_t *schedule,
                                char **out_text, size_t *out_size) TOW_MUST_USE;

#endif /* TOW_PLAN_SCHEDULE_CSV_H_ */
