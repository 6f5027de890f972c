/* When each action of a schedule runs, in virtual time.
 *
 * A device performs its actions one after the other, each as soon as its inputs
 * have arrived. A value for another device travels while both devices compute.
 * A link, one for each ordered pair of devices, carries one value at a time, in
 * the order in which the sender made them; the latency comes on top and does not
 * occupy the link. An all-reduce begins when its device reaches it, one at a
 * time on each device, and only the update waits for it. */
#ifndef TOW_PLAN_SCHEDULE_SIMULATE_H_
#define TOW_PLAN_SCHEDULE_SIMULATE_H_

#include "plan/schedule/cost.h"
#include "plan/schedule/schedule.h"

typedef struct tow_plan_interval {
    int64_t start_ns;
    int64_t end_ns;
} tow_plan_interval_t;

/* The memory in use from this time to the next sample. */
typedef struct tow_plan_memory_sample {
    int64_t time_ns;
    uint64_t bytes;
} tow_plan_memory_sample_t;

typedef struct tow_plan_device_times {
    tow_plan_interval_t *intervals; /* owned; by action */
    tow_plan_interval_t
        span;          /* first start to last end, all-reduces included */
    int64_t busy_ns;   /* without sends and all-reduces */
    int64_t bubble_ns; /* of the step: step_ns - busy_ns */
    /* Owned; parameters, activations, stashes, and receive buffers: from the
     * start of a transfer to the end of the action that takes the value. */
    TOW_VEC(tow_plan_memory_sample_t) memory;
    uint64_t bytes_peak;
    uint64_t bytes_mean; /* over the step, rounded down */
    /* Most activations at a time: microbatches of a stage from their forward,
     * or recomputation, to their gradient of weights. */
    uint32_t activation_count_peak;
    uint32_t input_count_peak; /* kept for recomputation */
} tow_plan_device_times_t;

typedef struct tow_plan_transfer {
    uint32_t edge;
    uint32_t microbatch;
    bool is_cotangent;
    uint32_t from_device;
    uint32_t to_device;
    tow_plan_interval_t link; /* while the link is occupied */
    int64_t arrival_ns;
} tow_plan_transfer_t;

typedef struct tow_plan_timeline {
    uint32_t device_count;
    tow_plan_device_times_t *devices;       /* owned */
    TOW_VEC(tow_plan_transfer_t) transfers; /* owned; by order of making */
    int64_t step_ns;                        /* from 0 to the last end */
    /* Between two steps that follow each other without a barrier: the longest
     * span of a device. The papers on zero bubbles count this. */
    int64_t period_ns;
} tow_plan_timeline_t;

/* Checks the schedule, with the errors of tow_plan_schedule_check, and computes
 * its times. The caller deinitialises the timeline, which is zeroed after an
 * error. O(actions + edges x microbatches). */
tow_status_t tow_plan_simulate(const tow_plan_schedule_t *schedule,
                               const tow_plan_costs_t *costs,
                               tow_plan_timeline_t *out_timeline) TOW_MUST_USE;
/* Accepts a zeroed one. */
void tow_plan_timeline_deinit(tow_plan_timeline_t *timeline);

/* The idle time of all devices in a step, in millionths of all their time. */
uint32_t tow_plan_timeline_bubble_ppm(const tow_plan_timeline_t *timeline);
/* The same where steps follow each other without a barrier: what the busiest
 * device is idle, in millionths of the period. */
uint32_t tow_plan_timeline_period_bubble_ppm(
    const tow_plan_timeline_t *timeline);

#endif /* TOW_PLAN_SCHEDULE_SIMULATE_H_ */
