/* A pipeline for tests: a chain with one skip from the first stage to the last,
 * weights and a gradient in each stage, tokens for the first, labels and a loss
 * in the last. */
#ifndef TOW_PLAN_SCHEDULE_NODES_TESTING_IMPL_H_
#define TOW_PLAN_SCHEDULE_NODES_TESTING_IMPL_H_

#include "plan/schedule/nodes.h"
#include "plan/schedule/schedule_testing_impl.h"

#define TOW_TEST_INPUTS_MAX 8

typedef struct tow_test_fragment {
    tow_plan_fragment_t fragment;
    tow_plan_input_t inputs[TOW_TEST_INPUTS_MAX];
} tow_test_fragment_t;

typedef struct tow_test_pipeline {
    tow_plan_pipeline_t pipeline;
    tow_plan_stage_t stages[TOW_TEST_STAGE_COUNT_MAX];
    tow_plan_edge_t edges[TOW_TEST_STAGE_COUNT_MAX];
    tow_test_fragment_t fragments[TOW_TEST_STAGE_COUNT_MAX]
                                 [TOW_PLAN_FRAGMENT_KIND_COUNT];
} tow_test_pipeline_t;

static const uint32_t tow_test_loss = 1; /* result of the last forward */

static inline void tow_test_input(tow_test_fragment_t *it,
                                  tow_plan_source_t source, uint32_t index)
{
    assert_true(it->fragment.input_count < TOW_TEST_INPUTS_MAX);
    it->inputs[it->fragment.input_count++] = (tow_plan_input_t){source, index};
    it->fragment.inputs = it->inputs;
}

/* Activations in, or cotangents back. */
static inline void tow_test_edge_inputs(tow_test_pipeline_t *p,
                                        tow_test_fragment_t *it, uint32_t stage,
                                        tow_plan_source_t source)
{
    for (uint32_t i = 0; i < p->pipeline.edge_count; i++)
        if ((source == TOW_PLAN_SOURCE_ACTIVATION
                 ? p->edges[i].to_stage
                 : p->edges[i].from_stage) == stage)
            tow_test_input(it, source, i);
}

static inline void tow_test_fill_stage(tow_test_pipeline_t *p, uint32_t stage,
                                       uint32_t stage_count)
{
    tow_test_fragment_t *f = p->fragments[stage];
    tow_plan_stage_t *it = &p->stages[stage];
    *it = (tow_plan_stage_t){
        .argument_count = 1,
        .batch_count = stage == 0 || stage == stage_count - 1 ? 1 : 0,
        .gradient_count = 1,
        .backward_gradient = 2,
        .outputs = &tow_test_loss,
        .output_count = stage == stage_count - 1 ? 1 : 0,
    };
    for (int kind = 0; kind < TOW_PLAN_FRAGMENT_KIND_COUNT; kind++) {
        f[kind] = (tow_test_fragment_t){0};
        f[kind].fragment.function = stage * 100 + (uint32_t)kind;
        f[kind].fragment.result_count = 1;
        if (kind != TOW_PLAN_FRAGMENT_RECOMPUTE)
            it->fragments[kind] = &f[kind].fragment;
    }
    tow_test_fragment_t *forward = &f[TOW_PLAN_FRAGMENT_FORWARD];
    forward->fragment.result_count = 3; /* activation, loss, residual */
    tow_test_input(forward, TOW_PLAN_SOURCE_ARGUMENT, 0);
    if (it->batch_count > 0) tow_test_input(forward, TOW_PLAN_SOURCE_BATCH, 0);
    tow_test_edge_inputs(p, forward, stage, TOW_PLAN_SOURCE_ACTIVATION);
    for (int kind = TOW_PLAN_FRAGMENT_BACKWARD;
         kind <= TOW_PLAN_FRAGMENT_INPUT_GRAD; kind++) {
        f[kind].fragment.result_count = 3; /* 2 cotangents, gradient or rest */
        tow_test_input(&f[kind], TOW_PLAN_SOURCE_ARGUMENT, 0);
        tow_test_input(&f[kind], TOW_PLAN_SOURCE_FORWARD, 2);
        tow_test_edge_inputs(p, &f[kind], stage, TOW_PLAN_SOURCE_COTANGENT);
    }
    tow_test_input(&f[TOW_PLAN_FRAGMENT_WEIGHT_GRAD],
                   TOW_PLAN_SOURCE_INPUT_GRAD, 2);
    tow_test_input(&f[TOW_PLAN_FRAGMENT_ACCUMULATE], TOW_PLAN_SOURCE_SUM, 0);
    tow_test_input(&f[TOW_PLAN_FRAGMENT_ACCUMULATE], TOW_PLAN_SOURCE_GRADIENT,
                   0);
    tow_test_input(&f[TOW_PLAN_FRAGMENT_UPDATE], TOW_PLAN_SOURCE_ARGUMENT, 0);
    tow_test_input(&f[TOW_PLAN_FRAGMENT_UPDATE], TOW_PLAN_SOURCE_SUM, 0);
}

static inline void tow_test_pipeline_fill(tow_test_pipeline_t *p,
                                          uint32_t stage_count)
{
    assert_true(stage_count < TOW_TEST_STAGE_COUNT_MAX);
    p->pipeline = (tow_plan_pipeline_t){.stages = p->stages, .edges = p->edges};
    for (uint32_t s = 0; s + 1 < stage_count; s++)
        p->edges[p->pipeline.edge_count++] =
            (tow_plan_edge_t){.from_stage = s, .to_stage = s + 1};
    if (stage_count > 2)
        p->edges[p->pipeline.edge_count++] = (tow_plan_edge_t){
            .from_stage = 0, .to_stage = stage_count - 1, .cotangent = 1};
    for (uint32_t s = 0; s < stage_count; s++)
        tow_test_fill_stage(p, s, stage_count);
}

#endif /* TOW_PLAN_SCHEDULE_NODES_TESTING_IMPL_H_ */
