#include "tool/schedule_program.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "plan/schedule/nodes.h"

#define ARRAY      "f32[4]"
#define INPUTS_MAX 4

typedef struct model_stage {
    tow_plan_fragment_t fragments[TOW_PLAN_FRAGMENT_KIND_COUNT];
    tow_plan_input_t inputs[TOW_PLAN_FRAGMENT_KIND_COUNT][INPUTS_MAX];
} model_stage_t;

typedef struct model {
    tow_plan_pipeline_t pipeline;
    tow_plan_stage_t *stages; /* owned */
    tow_plan_edge_t *edges;   /* owned */
    model_stage_t *details;   /* owned */
    bool *is_declared;        /* owned; by function */
} model_t;

static const uint32_t loss = 0; /* result of the last forward */

/* -- The pipeline ---------------------------------------------------------- */

static void add_input(model_stage_t *stage, tow_plan_fragment_kind_t kind,
                      tow_plan_source_t source, uint32_t index)
{
    tow_plan_fragment_t *fragment = &stage->fragments[kind];
    TOW_ASSERT(fragment->input_count < INPUTS_MAX);
    stage->inputs[kind][fragment->input_count++] =
        (tow_plan_input_t){source, index};
}

static void fill_backward(model_stage_t *it, tow_plan_fragment_kind_t kind,
                          uint32_t stage, bool is_last)
{
    it->fragments[kind].result_count = 2; /* cotangent; gradient or rest */
    add_input(it, kind, TOW_PLAN_SOURCE_ARGUMENT, 0);
    add_input(it, kind, TOW_PLAN_SOURCE_FORWARD, 1);
    if (!is_last) add_input(it, kind, TOW_PLAN_SOURCE_COTANGENT, stage);
}

static void fill_fragments(model_stage_t *it, uint32_t stage, bool is_last)
{
    const tow_plan_fragment_kind_t forward = TOW_PLAN_FRAGMENT_FORWARD;
    for (uint32_t kind = 0; kind < TOW_PLAN_FRAGMENT_KIND_COUNT; kind++)
        it->fragments[kind] = (tow_plan_fragment_t){
            .function = stage * TOW_PLAN_FRAGMENT_KIND_COUNT + kind,
            .inputs = it->inputs[kind],
            .result_count = 1,
        };
    it->fragments[forward].result_count = 2; /* activation, residual */
    add_input(it, forward, TOW_PLAN_SOURCE_ARGUMENT, 0);
    if (stage == 0)
        add_input(it, forward, TOW_PLAN_SOURCE_BATCH, 0);
    else
        add_input(it, forward, TOW_PLAN_SOURCE_ACTIVATION, stage - 1);
    fill_backward(it, TOW_PLAN_FRAGMENT_BACKWARD, stage, is_last);
    fill_backward(it, TOW_PLAN_FRAGMENT_INPUT_GRAD, stage, is_last);
    add_input(it, TOW_PLAN_FRAGMENT_WEIGHT_GRAD, TOW_PLAN_SOURCE_INPUT_GRAD, 1);
    add_input(it, TOW_PLAN_FRAGMENT_ACCUMULATE, TOW_PLAN_SOURCE_SUM, 0);
    add_input(it, TOW_PLAN_FRAGMENT_ACCUMULATE, TOW_PLAN_SOURCE_GRADIENT, 0);
    add_input(it, TOW_PLAN_FRAGMENT_UPDATE, TOW_PLAN_SOURCE_ARGUMENT, 0);
    add_input(it, TOW_PLAN_FRAGMENT_UPDATE, TOW_PLAN_SOURCE_SUM, 0);
}

static void fill_stage(model_t *model, uint32_t stage, uint32_t stage_count)
{
    const bool is_last = stage + 1 == stage_count;
    tow_plan_stage_t *it = &model->stages[stage];
    fill_fragments(&model->details[stage], stage, is_last);
    *it = (tow_plan_stage_t){
        .argument_count = 1,
        .batch_count = stage == 0,
        .gradient_count = 1,
        .backward_gradient = 1,
        .outputs = &loss,
        .output_count = is_last,
    };
    for (int kind = 0; kind < TOW_PLAN_FRAGMENT_KIND_COUNT; kind++)
        if (kind != TOW_PLAN_FRAGMENT_RECOMPUTE)
            it->fragments[kind] = &model->details[stage].fragments[kind];
    if (!is_last)
        model->edges[stage] =
            (tow_plan_edge_t){.from_stage = stage, .to_stage = stage + 1};
}

static void deinit(model_t *model)
{
    tow_free(model->stages);
    tow_free(model->edges);
    tow_free(model->details);
    tow_free(model->is_declared);
}

static bool init(model_t *model, uint32_t stage_count)
{
    *model = (model_t){
        .stages = tow_calloc(stage_count, sizeof(model->stages[0])),
        .edges = tow_calloc(stage_count, sizeof(model->edges[0])),
        .details = tow_calloc(stage_count, sizeof(model->details[0])),
        .is_declared =
            tow_calloc(stage_count * (size_t)TOW_PLAN_FRAGMENT_KIND_COUNT, 1),
    };
    if (model->stages == NULL || model->edges == NULL ||
        model->details == NULL || model->is_declared == NULL)
        return false;
    for (uint32_t s = 0; s < stage_count; s++)
        fill_stage(model, s, stage_count);
    model->pipeline =
        (tow_plan_pipeline_t){model->stages, model->edges, stage_count - 1};
    return true;
}

/* -- Text ------------------------------------------------------------------ */

static const char *const letters[TOW_PLAN_FRAGMENT_KIND_COUNT] = {
    [TOW_PLAN_FRAGMENT_FORWARD] = "F",    [TOW_PLAN_FRAGMENT_BACKWARD] = "B",
    [TOW_PLAN_FRAGMENT_INPUT_GRAD] = "I", [TOW_PLAN_FRAGMENT_WEIGHT_GRAD] = "W",
    [TOW_PLAN_FRAGMENT_RECOMPUTE] = "R",  [TOW_PLAN_FRAGMENT_ACCUMULATE] = "A",
    [TOW_PLAN_FRAGMENT_UPDATE] = "U",
};

static void print_arrays(uint32_t count, FILE *out)
{
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s" ARRAY " as 1", i > 0 ? ", " : "");
}

/* Function ids are one more, because 0 is none. */
static void declare(model_t *model, const tow_plan_node_t *node, FILE *out)
{
    const uint32_t kind = node->function % TOW_PLAN_FRAGMENT_KIND_COUNT;
    if (node->kind != TOW_PLAN_NODE_CALL || model->is_declared[node->function])
        return;
    model->is_declared[node->function] = true;
    fprintf(out, "function %" PRIu32 " \"%" PRIu32 "%s\" for 1 (",
            node->function + 1, node->stage, letters[kind]);
    print_arrays(node->operand_count, out);
    fprintf(out, ") -> (");
    print_arrays(node->result_count, out);
    fprintf(out, ")\n");
}

static void print_operands(const tow_plan_nodes_t *nodes,
                           const tow_plan_node_t *node, FILE *out)
{
    fprintf(out, " (");
    for (uint32_t i = 0; i < node->operand_count; i++) {
        const tow_plan_value_t *it =
            &nodes->operands.items[node->first_operand + i];
        fprintf(out, "%s%%%" PRIu32, i > 0 ? ", " : "", it->node);
        if (it->result > 0) fprintf(out, ":%" PRIu32, it->result);
    }
    fprintf(out, ")\n");
}

/* "w0" and "x3": a weight and a microbatch; "loss3" and "w0": results. */
static void print_name(const tow_plan_node_t *node, const char *batch,
                       FILE *out)
{
    if (node->microbatch == TOW_PLAN_NONE)
        fprintf(out, "\"w%" PRIu32 "\"", node->stage);
    else
        fprintf(out, "\"%s%" PRIu32 "\"", batch, node->microbatch);
}

static void print_call(const tow_plan_node_t *node, FILE *out)
{
    fprintf(out, "compute \"%" PRIu32 "%s", node->stage,
            letters[node->fragment]);
    if (node->microbatch != TOW_PLAN_NONE)
        fprintf(out, "%" PRIu32, node->microbatch);
    fprintf(out, "\" function %" PRIu32 " on slice %" PRIu32,
            node->function + 1, node->device + 1);
}

static void print_node(const tow_plan_nodes_t *nodes, size_t number, FILE *out)
{
    const tow_plan_node_t *node = &nodes->nodes.items[number];
    fprintf(out, "  %%%zu = ", number);
    switch (node->kind) {
    case TOW_PLAN_NODE_ARGUMENT:
        fprintf(out, "argument ");
        print_name(node, "x", out);
        fprintf(out, " : " ARRAY " on slice %" PRIu32 "\n", node->device + 1);
        return;
    case TOW_PLAN_NODE_CALL: print_call(node, out); break;
    case TOW_PLAN_NODE_TRANSFER:
        fprintf(out, "transfer from 1 to slice %" PRIu32 " as 1",
                node->device + 1);
        break;
    case TOW_PLAN_NODE_ALL_REDUCE:
        fprintf(out, "all_reduce sum on slice %" PRIu32, node->device + 1);
        break;
    case TOW_PLAN_NODE_RESULT:
        fprintf(out, "result ");
        print_name(node, "loss", out);
        break;
    }
    print_operands(nodes, node, out);
}

static void print_program(model_t *model, const char *name,
                          const tow_plan_schedule_t *schedule,
                          const tow_plan_nodes_t *nodes, FILE *out)
{
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        fprintf(out, "slice %" PRIu32 " on %" PRIu32 ".0\n", d + 1, d);
    for (size_t i = 0; i < nodes->nodes.count; i++)
        declare(model, &nodes->nodes.items[i], out);
    fprintf(out, "program \"%s\" {\n", name);
    for (size_t i = 0; i < nodes->nodes.count; i++)
        print_node(nodes, i, out);
    fprintf(out, "}\n");
}

tow_status_t tow_pipeline_program_print(const char *name,
                                        const tow_plan_schedule_t *schedule,
                                        FILE *out)
{
    model_t model;
    tow_plan_nodes_t nodes = {0};
    tow_status_t status = TOW_OK;
    if (!init(&model, schedule->shape.stage_count))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK)
        status = tow_plan_nodes_init(&nodes, schedule, &model.pipeline);
    if (status == TOW_OK) print_program(&model, name, schedule, &nodes, out);
    tow_plan_nodes_deinit(&nodes);
    deinit(&model);
    return status;
}
