/* Costs on the command line of `tow schedule`: a number for all stages, or one
 * number for each. */
#ifndef TOW_TOOL_SCHEDULE_COSTS_H_
#define TOW_TOOL_SCHEDULE_COSTS_H_

#include "plan/schedule/cost.h"
#include "plan/schedule/schedule.h"

/* The options, in the order of this list. */
typedef enum tow_cost_option {
    TOW_COST_FORWARD,
    TOW_COST_BACKWARD, /* of the input gradient */
    TOW_COST_WEIGHT,
    TOW_COST_RECOMPUTE,
    TOW_COST_ALL_REDUCE,
    TOW_COST_UPDATE,
    TOW_COST_ACTIVATION,
    TOW_COST_STASH,
    TOW_COST_INPUT,
    TOW_COST_PARAMETERS,
    TOW_COST_EDGE, /* by edge: one less than stages */
    TOW_COST_LATENCY,
    TOW_COST_BANDWIDTH,
    TOW_COST_OPTION_COUNT,
} tow_cost_option_t;

/* The texts of the options; lent by argv. NULL: the default. */
typedef struct tow_cost_texts {
    const char *texts[TOW_COST_OPTION_COUNT];
} tow_cost_texts_t;

typedef struct tow_cost_set {
    tow_plan_stage_cost_t *stages; /* owned */
    tow_plan_edge_t *edges;        /* owned */
    tow_plan_costs_t costs;        /* of these two */
    bool has_memory;               /* some bytes are not zero */
} tow_cost_set_t;

/* "--forward", for messages and the table of options. Static. */
const char *tow_cost_option_name(tow_cost_option_t option);

/* INVALID_ARGUMENT names the option and the text. Without options a forward, an
 * input gradient and a weight gradient take 1 ms each, a recomputation as
 * long as the forward, and all else nothing. */
tow_status_t tow_cost_set_init(tow_cost_set_t *set,
                               const tow_cost_texts_t *texts,
                               const tow_plan_shape_t *shape) TOW_MUST_USE;
/* Accepts a zeroed one. */
void tow_cost_set_deinit(tow_cost_set_t *set);

#endif /* TOW_TOOL_SCHEDULE_COSTS_H_ */
