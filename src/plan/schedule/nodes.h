/* From a schedule and the functions of its stages to the nodes of a program.
 *
 * The caller describes a pipeline: for each stage its fragments, which are
 * functions of the caller with the sources of their operands, and the edges
 * between stages. The result is one list of nodes in which every operand comes
 * before its use, and which, restricted to one device, is that device's
 * schedule. A client walks it and calls tow_program_argument,
 * tow_function_call, tow_arrays_all_reduce, tow_array_transfer and
 * tow_program_result in this order; a benchmark uses functions that only take
 * time. Operands from another device are transferred where the program is
 * lowered; the lowering keeps the order of calls, because the list is a
 * topological order and transfers come first (src/ir/order.c).
 *
 * The gradients of a stage are summed in the order of microbatch numbers,
 * ((g0 + g1) + g2) + ..., under every schedule: two schedules of one pipeline
 * give the same bits. Where a schedule computes them in another order, a
 * gradient waits for those before it. */
#ifndef TOW_PLAN_SCHEDULE_NODES_H_
#define TOW_PLAN_SCHEDULE_NODES_H_

#include "plan/schedule/cost.h"
#include "plan/schedule/schedule.h"

/* -- The pipeline ---------------------------------------------------------- */

typedef enum tow_plan_fragment_kind {
    TOW_PLAN_FRAGMENT_FORWARD,
    TOW_PLAN_FRAGMENT_BACKWARD,
    TOW_PLAN_FRAGMENT_INPUT_GRAD,
    TOW_PLAN_FRAGMENT_WEIGHT_GRAD,
    /* Has the results of the forward. NULL: the forward itself. */
    TOW_PLAN_FRAGMENT_RECOMPUTE,
    /* Adds a microbatch's gradients to the sums: as many results as the stage
     * has gradients. */
    TOW_PLAN_FRAGMENT_ACCUMULATE,
    TOW_PLAN_FRAGMENT_UPDATE, /* all its results are the program's */
    TOW_PLAN_FRAGMENT_KIND_COUNT,
} tow_plan_fragment_kind_t;

/* Where an operand comes from; always of the same stage and microbatch. Right:
 * what `index` counts, and the fragments that may use it. */
typedef enum tow_plan_source {
    TOW_PLAN_SOURCE_ARGUMENT,   /* arguments: F, R, B, I, W, update */
    TOW_PLAN_SOURCE_BATCH,      /* batch arguments: F, R, B, I, W */
    TOW_PLAN_SOURCE_ACTIVATION, /* edges of the pipeline, into this stage:
                                       F, R, B, I, W */
    TOW_PLAN_SOURCE_COTANGENT,  /* edges, out of this stage: B, I, W */
    TOW_PLAN_SOURCE_FORWARD,    /* results of the forward, or of its
                                       recomputation: B, I, W */
    TOW_PLAN_SOURCE_INPUT_GRAD, /* results of the input gradient: W */
    TOW_PLAN_SOURCE_GRADIENT,   /* gradients: accumulate */
    TOW_PLAN_SOURCE_SUM,        /* sums of gradients so far: accumulate; of
                                       all microbatches, reduced if the schedule
                                       has an all-reduce: update */
    TOW_PLAN_SOURCE_COUNT,
} tow_plan_source_t;

typedef struct tow_plan_input {
    tow_plan_source_t source;
    uint32_t index;
} tow_plan_input_t;

typedef struct tow_plan_fragment {
    uint32_t function;              /* the caller's number for it */
    const tow_plan_input_t *inputs; /* lent; by operand */
    uint32_t input_count;
    uint32_t result_count;
} tow_plan_fragment_t;

typedef struct tow_plan_stage {
    /* Lent. NULL: absent; an error if the schedule needs it. */
    const tow_plan_fragment_t *fragments[TOW_PLAN_FRAGMENT_KIND_COUNT];
    uint32_t argument_count; /* parameters, optimizer state: one for a step */
    uint32_t batch_count;    /* arguments for each microbatch */
    /* Gradients of weights: results backward_gradient, ... of the backward, and
     * weight_gradient, ... of the weight gradient. */
    uint32_t gradient_count;
    uint32_t backward_gradient;
    uint32_t weight_gradient;
    /* Lent; results of the forward that are results of the program for each
     * microbatch, such as losses. */
    const uint32_t *outputs;
    uint32_t output_count;
} tow_plan_stage_t;

typedef struct tow_plan_pipeline {
    const tow_plan_stage_t *stages; /* lent; as many as the schedule has */
    const tow_plan_edge_t *edges;   /* lent */
    size_t edge_count;
} tow_plan_pipeline_t;

/* -- The nodes ------------------------------------------------------------- */

typedef enum tow_plan_node_kind {
    TOW_PLAN_NODE_ARGUMENT,   /* `index` of its stage; with a microbatch, batch
                                 argument `index` */
    TOW_PLAN_NODE_CALL,       /* of `function` */
    TOW_PLAN_NODE_TRANSFER,   /* one value to `device`: an edge of a send */
    TOW_PLAN_NODE_ALL_REDUCE, /* each operand to one result */
    TOW_PLAN_NODE_RESULT,     /* of the program; `index` of its stage: of the
                                 update, or with a microbatch of `outputs` */
} tow_plan_node_kind_t;

typedef struct tow_plan_value {
    uint32_t node;
    uint32_t result;
} tow_plan_value_t;

typedef struct tow_plan_node {
    tow_plan_node_kind_t kind;
    uint32_t device; /* where it runs: a row of the schedule, a slice of the
                        client */
    uint32_t stage;
    uint32_t microbatch;               /* TOW_PLAN_NONE: of the whole step */
    tow_plan_fragment_kind_t fragment; /* of a call */
    uint32_t function;                 /* of a call; else TOW_PLAN_NONE */
    uint32_t index;                    /* of an argument or result */
    uint32_t first_operand;            /* in tow_plan_nodes_t.operands */
    uint32_t operand_count;
    uint32_t result_count;
} tow_plan_node_t;

typedef struct tow_plan_nodes {
    /* Owned. Arguments first, in order of stages, the batch arguments of a
     * stage by microbatch; results last, updates before outputs. */
    TOW_VEC(tow_plan_node_t) nodes;
    TOW_VEC(tow_plan_value_t) operands; /* owned */
} tow_plan_nodes_t;

/* Checks the schedule with the pipeline's edges, and the pipeline: all errors
 * are INVALID_ARGUMENT and name the stage, the fragment and the operand. The
 * caller deinitialises the nodes, which are zeroed after an error. */
tow_status_t tow_plan_nodes_init(tow_plan_nodes_t *nodes,
                                 const tow_plan_schedule_t *schedule,
                                 const tow_plan_pipeline_t *pipeline)
    TOW_MUST_USE;
/* Accepts zeroed ones. */
void tow_plan_nodes_deinit(tow_plan_nodes_t *nodes);

/* "forward", "input gradient". Static. */
const char *tow_plan_fragment_kind_name(tow_plan_fragment_kind_t kind);

#endif /* TOW_PLAN_SCHEDULE_NODES_H_ */
