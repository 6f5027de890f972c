/* The state of a simulation, between its two files. */
#ifndef TOW_PLAN_SCHEDULE_SIMULATE_IMPL_H_
#define TOW_PLAN_SCHEDULE_SIMULATE_IMPL_H_

#include "plan/schedule/simulate.h"
#include "plan/schedule/work_impl.h"

typedef struct tow_plan_simulation {
    tow_plan_work_t work;
    const tow_plan_costs_t *costs; /* lent */
    tow_plan_timeline_t *timeline; /* lent */
    tow_plan_place_t *order;       /* owned */
    uint32_t *stuck;               /* owned; unused after the check */
    int64_t *device_free_ns;       /* owned; by device */
    int64_t *collective_free_ns;   /* owned; by device */
    int64_t *reduced_ns;           /* owned; by stage: end of its all-reduce */
    int64_t *arrivals_ns;          /* owned; by direction, edge, microbatch */
    uint32_t *edge_links;          /* owned; by direction and edge */
    int64_t *link_free_ns;         /* owned; by link */
} tow_plan_simulation_t;

/* After all actions have their times: fills in the memory of all devices. */
tow_status_t tow_plan_simulation_add_memory(tow_plan_simulation_t *simulation)
    TOW_MUST_USE;

#endif /* TOW_PLAN_SCHEDULE_SIMULATE_IMPL_H_ */
