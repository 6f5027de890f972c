/* Rejects schedules that cannot run, and says why. */
#ifndef TOW_PLAN_SCHEDULE_CHECK_H_
#define TOW_PLAN_SCHEDULE_CHECK_H_

#include "plan/schedule/cost.h"
#include "plan/schedule/schedule.h"

typedef enum tow_plan_fault_kind {
    TOW_PLAN_FAULT_NONE,
    TOW_PLAN_FAULT_IMPOSSIBLE, /* wrong device, stage or microbatch */
    TOW_PLAN_FAULT_DOUBLED,
    TOW_PLAN_FAULT_MISSING,
    TOW_PLAN_FAULT_ORDER,    /* before an action of its own stage it needs */
    TOW_PLAN_FAULT_DEADLOCK, /* devices that wait for each other */
    TOW_PLAN_FAULT_MEMORY,
} tow_plan_fault_kind_t;

typedef struct tow_plan_fault {
    tow_plan_fault_kind_t kind;
    /* The action; of missing work, the device that should do it and index
     * TOW_PLAN_NONE; of a deadlock, one action of the cycle. */
    tow_plan_place_t place;
} tow_plan_fault_t;

typedef struct tow_plan_check_options {
    tow_plan_costs_t costs; /* edges, and bytes for the memory limit */
    /* Per device, for parameters, activations and stashed values; 0: no limit.
     * Receive buffers depend on time: simulate.h counts them. */
    uint64_t bytes_max;
} tow_plan_check_options_t;

/* A schedule is right if each stage has, for each microbatch, one F, and one B
 * or one I and one W; all on the stage's device and in an order that comes to
 * an end. Recomputation is optional for each microbatch; sends, all-reduces and
 * updates are all there or not at all. INVALID_ARGUMENT names the device, the
 * number of the action in its list (from 0) and the action, for a deadlock the
 * whole cycle. RESOURCE_EXHAUSTED with a fault of kind MEMORY: the action that
 * exceeds bytes_max. `options` and `out_fault` may be NULL. */
tow_status_t tow_plan_schedule_check(const tow_plan_schedule_t *schedule,
                                     const tow_plan_check_options_t *options,
                                     tow_plan_fault_t *out_fault) TOW_MUST_USE;

#endif /* TOW_PLAN_SCHEDULE_CHECK_H_ */
