/* What the actions of a schedule cost, and which values flow between stages. */
#ifndef TOW_PLAN_SCHEDULE_COST_H_
#define TOW_PLAN_SCHEDULE_COST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/schedule/schedule.h"

#define TOW_PLAN_TIME_NS_MAX    INT64_C(1000000000000) /* 1,000 s */
#define TOW_PLAN_BYTES_MAX      ((uint64_t)1 << 42)
#define TOW_PLAN_EDGE_COUNT_MAX 16384
/* Edges times microbatches. */
#define TOW_PLAN_FLOW_COUNT_MAX ((size_t)1 << 20)

/* Times are of one microbatch, except for the all-reduce and the update. */
typedef struct tow_plan_stage_cost {
    int64_t forward_ns;
    int64_t backward_ns; /* of a whole backward */
    int64_t input_grad_ns;
    int64_t weight_grad_ns;
    int64_t recompute_ns;
    int64_t all_reduce_ns;
    int64_t update_ns;
    /* From the start of a forward, or of its recomputation, to the end of the
     * backward or input gradient. */
    uint64_t activation_bytes;
    /* From the end of an input gradient to the end of its weight gradient. */
    uint64_t stash_bytes;
    /* The inputs of a forward that will be recomputed: from its start to the
     * end of the recomputation, which has them among its activations. */
    uint64_t input_bytes;
    /* All the time: parameters, gradients, optimizer. */
    uint64_t parameter_bytes;
} tow_plan_stage_cost_t;

/* A value that each forward of `from_stage` gives to the forward of `to_stage`.
 * Its cotangent flows back. Edges may skip stages, and two stages may have
 * several. */
typedef struct tow_plan_edge {
    uint32_t from_stage; /* < to_stage */
    uint32_t to_stage;
    bool is_forward_only; /* no cotangent: integers, masks */
    /* For simulation, where the stages are on different devices. */
    uint64_t bytes;       /* of the value, and of its cotangent */
    uint64_t bytes_per_s; /* 0: no limit */
    int64_t latency_ns;
    /* For nodes.h: */
    uint32_t result;    /* of the forward of `from_stage` */
    uint32_t cotangent; /* result of the backward, and of the input gradient, of
                           `to_stage` */
} tow_plan_edge_t;

typedef struct tow_plan_costs {
    /* Lent. NULL: all zero; otherwise one for each stage. */
    const tow_plan_stage_cost_t *stages;
    /* Lent. NULL: a chain, stage s to s + 1, without costs. */
    const tow_plan_edge_t *edges;
    size_t edge_count;
} tow_plan_costs_t;

/* INVALID_ARGUMENT: a number out of its bounds, or an edge that does not point
 * forward, by stage or edge and field. */
tow_status_t tow_plan_costs_check(const tow_plan_costs_t *costs,
                                  uint32_t stage_count) TOW_MUST_USE;

/* The time of an action on its device; 0 for sends. */
int64_t tow_plan_costs_time_ns(const tow_plan_costs_t *costs,
                               tow_plan_action_t action);
/* How long an edge occupies its link, without the latency; rounded up. At most
 * TOW_PLAN_TIME_NS_MAX. */
int64_t tow_plan_edge_time_ns(const tow_plan_edge_t *edge);

#endif /* TOW_PLAN_SCHEDULE_COST_H_ */
