/* The known schedules. S is the number of devices, M of microbatches.
 *
 * | generator   | stages per device | needs               | source           |
 * | gpipe       | 1                 |                     | GPipe            |
 * | 1f1b        | 1                 |                     | DAPPLE           |
 * | interleaved | v                 | M a multiple of S   | Megatron-LM      |
 * | zb-h1       | 1                 |                     | zero bubble      |
 * | zb-h2       | 1                 |                     | zero bubble      |
 * | zb-v        | 2, in V shape     |                     | zero bubble      |
 *
 * The zero-bubble schedules split backwards into I and W. Their bubbles are
 * those of the paper from M = S (zb-h1) and M = 2S - 1 (zb-h2, zb-v) on, as
 * long as W takes no longer than F and I; else they are correct, and slower. */
#ifndef TOW_PLAN_SCHEDULE_GENERATE_H_
#define TOW_PLAN_SCHEDULE_GENERATE_H_

#include "plan/schedule/schedule.h"

typedef enum tow_plan_generator {
    TOW_PLAN_GPIPE,
    TOW_PLAN_1F1B,
    TOW_PLAN_INTERLEAVED,
    TOW_PLAN_ZB_H1,
    TOW_PLAN_ZB_H2,
    TOW_PLAN_ZB_V,
    TOW_PLAN_GENERATOR_COUNT,
} tow_plan_generator_t;

/* How many forwards stage i of 1F1B starts with, within in_flight_max: DAPPLE's
 * policies. B keeps devices busy where communication takes as long as
 * computation, for nearly twice the memory. */
typedef enum tow_plan_warmup {
    TOW_PLAN_WARMUP_A, /* S - i */
    TOW_PLAN_WARMUP_B, /* 2 (S - i) - 1 */
} tow_plan_warmup_t;

typedef struct tow_plan_generate_options {
    tow_plan_generator_t generator;
    uint32_t device_count;
    uint32_t microbatch_count;
    uint32_t chunk_count;     /* interleaved only: stages per device; 0: 2 */
    tow_plan_warmup_t warmup; /* 1F1B only */
    uint32_t in_flight_max;   /* 1F1B only: forwards without a backward on a
                                 device, DAPPLE's D; 0: no limit */
    tow_plan_extras_t extras;
} tow_plan_generate_options_t;

/* The caller deinitialises the schedule, which is zeroed after an error.
 * INVALID_ARGUMENT: counts that the generator cannot serve, or options that it
 * does not have. */
tow_status_t tow_plan_generate(const tow_plan_generate_options_t *options,
                               tow_plan_schedule_t *out_schedule) TOW_MUST_USE;

/* "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v". Static. */
const char *tow_plan_generator_name(tow_plan_generator_t generator);
/* False if no generator has this name. */
bool tow_plan_generator_find(const char *name,
                             tow_plan_generator_t *out_generator);

#endif /* TOW_PLAN_SCHEDULE_GENERATE_H_ */
