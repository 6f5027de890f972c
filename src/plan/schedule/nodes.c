#include "plan/schedule/nodes.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "plan/schedule/nodes_impl.h"

typedef struct builder {
    tow_plan_work_t work;
    const tow_plan_pipeline_t *pipeline; /* lent */
    tow_plan_nodes_t *nodes;             /* lent */
    tow_plan_place_t *order;             /* owned */
    uint32_t *stuck;                     /* owned */
    uint32_t *calls;     /* owned; node of each action, by slot of the work */
    uint32_t *transfers; /* owned; node by direction, edge, microbatch;
                            TOW_PLAN_NONE */
    uint32_t *arguments; /* owned; first argument node, by stage */
    uint32_t *sums;      /* owned; by stage: node of the sums so far;
                            TOW_PLAN_NONE before the first */
    uint32_t *summed;    /* owned; by stage: microbatches in the sums */
} builder_t;

static uint32_t device_of(const builder_t *builder, uint32_t stage)
{
    return builder->work.schedule->stage_devices[stage];
}

static bool add_operand(builder_t *builder, tow_plan_value_t value)
{
    TOW_ASSERT(value.node < builder->nodes->nodes.count);
    return builder->nodes->operands.count < TOW_PLAN_NONE &&
           tow_vec_push(&builder->nodes->operands, value);
}

/* The operands have been added since `first_operand`. */
static bool add_node(builder_t *builder, tow_plan_node_t node)
{
    node.operand_count =
        (uint32_t)builder->nodes->operands.count - node.first_operand;
    return builder->nodes->nodes.count < TOW_PLAN_NONE &&
           tow_vec_push(&builder->nodes->nodes, node);
}

static tow_plan_node_t node_of(const builder_t *builder,
                               tow_plan_node_kind_t kind, uint32_t stage,
                               uint32_t microbatch)
{
    return (tow_plan_node_t){
        .kind = kind,
        .device = device_of(builder, stage),
        .stage = stage,
        .microbatch = microbatch,
        .fragment = TOW_PLAN_FRAGMENT_KIND_COUNT,
        .function = TOW_PLAN_NONE,
        .first_operand = (uint32_t)builder->nodes->operands.count,
        .result_count = 1,
    };
}

/* -- Arguments ------------------------------------------------------------- */

static bool add_argument(builder_t *builder, uint32_t stage,
                         uint32_t microbatch, uint32_t index)
{
    tow_plan_node_t node =
        node_of(builder, TOW_PLAN_NODE_ARGUMENT, stage, microbatch);
    node.index = index;
    return add_node(builder, node);
}

static bool add_arguments(builder_t *builder, uint32_t stage)
{
    const tow_plan_stage_t *it = &builder->pipeline->stages[stage];
    builder->arguments[stage] = (uint32_t)builder->nodes->nodes.count;
    for (uint32_t i = 0; i < it->argument_count; i++)
        if (!add_argument(builder, stage, TOW_PLAN_NONE, i)) return false;
    for (uint32_t m = 0; m < builder->work.schedule->shape.microbatch_count;
         m++)
        for (uint32_t i = 0; i < it->batch_count; i++)
            if (!add_argument(builder, stage, m, i)) return false;
    return true;
}

/* -- Values ---------------------------------------------------------------- */

static uint32_t call_of(const builder_t *builder, tow_plan_action_t action)
{
    const uint32_t node =
        builder->calls[tow_plan_work_slot(&builder->work, action)];
    TOW_ASSERT(node != TOW_PLAN_NONE); /* It comes earlier in the order. */
    return node;
}

static uint32_t *transfer_of(const builder_t *builder, uint32_t edge,
                             uint32_t microbatch, bool is_cotangent)
{
    const tow_plan_work_t *work = &builder->work;
    const size_t row = (is_cotangent ? work->edge_count : 0) + edge;
    return &builder->transfers[row * work->schedule->shape.microbatch_count +
                               microbatch];
}

/* The value of an edge where it was computed. */
static tow_plan_value_t made_value(const builder_t *builder, uint32_t edge,
                                   uint32_t microbatch, bool is_cotangent)
{
    const tow_plan_edge_t *it = &builder->work.edges[edge];
    if (is_cotangent)
        return (tow_plan_value_t){
            call_of(builder, tow_plan_work_backward(&builder->work,
                                                    it->to_stage, microbatch)),
            it->cotangent};
    return (tow_plan_value_t){
        call_of(builder, (tow_plan_action_t){TOW_PLAN_FORWARD, it->from_stage,
                                             microbatch}),
        it->result};
}

static tow_plan_value_t edge_value(const builder_t *builder, uint32_t edge,
                                   uint32_t microbatch, bool is_cotangent)
{
    const uint32_t moved =
        *transfer_of(builder, edge, microbatch, is_cotangent);
    if (moved != TOW_PLAN_NONE) return (tow_plan_value_t){moved, 0};
    return made_value(builder, edge, microbatch, is_cotangent);
}

/* The activations of a microbatch: recomputed, or of its forward. */
static tow_plan_value_t forward_value(const builder_t *builder, uint32_t stage,
                                      uint32_t microbatch, uint32_t index)
{
    const bool again = tow_plan_work_has(&builder->work, TOW_PLAN_RECOMPUTE,
                                         stage, microbatch);
    return (tow_plan_value_t){
        call_of(builder, (tow_plan_action_t){again ? TOW_PLAN_RECOMPUTE
                                                   : TOW_PLAN_FORWARD,
                                             stage, microbatch}),
        index};
}

static tow_plan_value_t gradient_value(const builder_t *builder, uint32_t stage,
                                       uint32_t microbatch, uint32_t index)
{
    const tow_plan_stage_t *it = &builder->pipeline->stages[stage];
    const tow_plan_action_t action =
        tow_plan_work_gradient(&builder->work, stage, microbatch);
    const uint32_t first = action.kind == TOW_PLAN_BACKWARD
                               ? it->backward_gradient
                               : it->weight_gradient;
    return (tow_plan_value_t){call_of(builder, action), first + index};
}

/* Without an accumulation the sum is the gradient of microbatch 0. */
static tow_plan_value_t sum_value(const builder_t *builder, uint32_t stage,
                                  uint32_t index)
{
    TOW_ASSERT(builder->summed[stage] > 0);
    if (builder->sums[stage] == TOW_PLAN_NONE)
        return gradient_value(builder, stage, 0, index);
    return (tow_plan_value_t){builder->sums[stage], index};
}

static tow_plan_value_t value_of(const builder_t *builder, uint32_t stage,
                                 uint32_t microbatch,
                                 const tow_plan_input_t *input)
{
    const tow_plan_stage_t *it = &builder->pipeline->stages[stage];
    const uint32_t arguments = builder->arguments[stage];
    const uint32_t index = input->index;
    switch (input->source) {
    case TOW_PLAN_SOURCE_ARGUMENT:
        return (tow_plan_value_t){arguments + index, 0};
    case TOW_PLAN_SOURCE_BATCH:
        return (tow_plan_value_t){arguments + it->argument_count +
                                      microbatch * it->batch_count + index,
                                  0};
    case TOW_PLAN_SOURCE_ACTIVATION:
        return edge_value(builder, index, microbatch, false);
    case TOW_PLAN_SOURCE_COTANGENT:
        return edge_value(builder, index, microbatch, true);
    case TOW_PLAN_SOURCE_FORWARD:
        return forward_value(builder, stage, microbatch, index);
    case TOW_PLAN_SOURCE_INPUT_GRAD:
        return (tow_plan_value_t){
            call_of(builder, (tow_plan_action_t){TOW_PLAN_INPUT_GRAD, stage,
                                                 microbatch}),
            index};
    case TOW_PLAN_SOURCE_GRADIENT:
        return gradient_value(builder, stage, microbatch, index);
    case TOW_PLAN_SOURCE_SUM: return sum_value(builder, stage, index);
    case TOW_PLAN_SOURCE_COUNT: break;
    }
    TOW_UNREACHABLE();
}

/* -- Calls ----------------------------------------------------------------- */

static bool add_call(builder_t *builder, tow_plan_fragment_kind_t kind,
                     uint32_t stage, uint32_t microbatch)
{
    const tow_plan_fragment_t *fragment =
        tow_plan_stage_fragment(&builder->pipeline->stages[stage], kind);
    tow_plan_node_t node =
        node_of(builder, TOW_PLAN_NODE_CALL, stage, microbatch);
    node.fragment = kind;
    node.function = fragment->function;
    node.result_count = fragment->result_count;
    for (uint32_t i = 0; i < fragment->input_count; i++)
        if (!add_operand(builder, value_of(builder, stage, microbatch,
                                           &fragment->inputs[i])))
            return false;
    return add_node(builder, node);
}

static bool has_gradient(const builder_t *builder, uint32_t stage,
                         uint32_t microbatch)
{
    const tow_plan_action_t action =
        tow_plan_work_gradient(&builder->work, stage, microbatch);
    return builder->calls[tow_plan_work_slot(&builder->work, action)] !=
           TOW_PLAN_NONE;
}

/* Sums up the gradients that are there, in the order of microbatches. */
static bool add_sums(builder_t *builder, uint32_t stage)
{
    uint32_t *summed = &builder->summed[stage];
    if (builder->pipeline->stages[stage].gradient_count == 0) return true;
    for (; *summed < builder->work.schedule->shape.microbatch_count &&
           has_gradient(builder, stage, *summed);
         (*summed)++) {
        if (*summed == 0) continue;
        if (!add_call(builder, TOW_PLAN_FRAGMENT_ACCUMULATE, stage, *summed))
            return false;
        builder->sums[stage] = (uint32_t)builder->nodes->nodes.count - 1;
    }
    return true;
}

static bool add_all_reduce(builder_t *builder, uint32_t stage)
{
    tow_plan_node_t node =
        node_of(builder, TOW_PLAN_NODE_ALL_REDUCE, stage, TOW_PLAN_NONE);
    node.result_count = builder->pipeline->stages[stage].gradient_count;
    if (node.result_count == 0) return true;
    for (uint32_t i = 0; i < node.result_count; i++)
        if (!add_operand(builder, sum_value(builder, stage, i))) return false;
    builder->sums[stage] = (uint32_t)builder->nodes->nodes.count;
    return add_node(builder, node);
}

static bool add_transfer(builder_t *builder, uint32_t edge, uint32_t microbatch,
                         bool is_cotangent)
{
    const tow_plan_edge_t *it = &builder->work.edges[edge];
    const uint32_t target = is_cotangent ? it->from_stage : it->to_stage;
    tow_plan_node_t node =
        node_of(builder, TOW_PLAN_NODE_TRANSFER,
                is_cotangent ? it->to_stage : it->from_stage, microbatch);
    node.device = device_of(builder, target);
    if (!add_operand(builder,
                     made_value(builder, edge, microbatch, is_cotangent)))
        return false;
    *transfer_of(builder, edge, microbatch, is_cotangent) =
        (uint32_t)builder->nodes->nodes.count;
    return add_node(builder, node);
}

static bool add_send(builder_t *builder, tow_plan_action_t action)
{
    const bool is_cotangent = action.kind == TOW_PLAN_SEND_BACKWARD;
    const tow_plan_work_t *work = &builder->work;
    const tow_plan_edge_lists_t *lists =
        is_cotangent ? &work->entering : &work->leaving;
    for (uint32_t i = lists->firsts[action.stage];
         i < lists->firsts[action.stage + 1]; i++) {
        const tow_plan_edge_t *edge = &work->edges[lists->items[i]];
        if (is_cotangent && edge->is_forward_only) continue;
        if (tow_plan_work_crosses(work, edge) &&
            !add_transfer(builder, lists->items[i], action.microbatch,
                          is_cotangent))
            return false;
    }
    return true;
}

static bool add_action(builder_t *builder, tow_plan_action_t action)
{
    const tow_plan_fragment_kind_t kind = tow_plan_fragment_of(action.kind);
    if (action.kind == TOW_PLAN_ALL_REDUCE)
        return add_all_reduce(builder, action.stage);
    if (kind == TOW_PLAN_FRAGMENT_KIND_COUNT) return add_send(builder, action);
    if (!add_call(builder, kind, action.stage, action.microbatch)) return false;
    builder->calls[tow_plan_work_slot(&builder->work, action)] =
        (uint32_t)builder->nodes->nodes.count - 1;
    return action.kind == TOW_PLAN_UPDATE || add_sums(builder, action.stage);
}

/* -- Results --------------------------------------------------------------- */

static bool add_result(builder_t *builder, uint32_t stage, uint32_t microbatch,
                       uint32_t index, tow_plan_value_t value)
{
    tow_plan_node_t node =
        node_of(builder, TOW_PLAN_NODE_RESULT, stage, microbatch);
    node.index = index;
    node.result_count = 0;
    return add_operand(builder, value) && add_node(builder, node);
}

static bool add_update_results(builder_t *builder, uint32_t stage)
{
    if (!builder->work.has_updates) return true;
    const uint32_t update = call_of(
        builder, (tow_plan_action_t){TOW_PLAN_UPDATE, stage, TOW_PLAN_NONE});
    const uint32_t count = builder->nodes->nodes.items[update].result_count;
    for (uint32_t i = 0; i < count; i++)
        if (!add_result(builder, stage, TOW_PLAN_NONE, i,
                        (tow_plan_value_t){update, i}))
            return false;
    return true;
}

/* Without updates the sums are the results. */
static bool add_sum_results(builder_t *builder, uint32_t stage)
{
    if (builder->work.has_updates) return true;
    const uint32_t count = builder->pipeline->stages[stage].gradient_count;
    for (uint32_t i = 0; i < count; i++)
        if (!add_result(builder, stage, TOW_PLAN_NONE, i,
                        sum_value(builder, stage, i)))
            return false;
    return true;
}

static bool add_outputs(builder_t *builder, uint32_t stage)
{
    const tow_plan_stage_t *it = &builder->pipeline->stages[stage];
    for (uint32_t m = 0; m < builder->work.schedule->shape.microbatch_count;
         m++) {
        const tow_plan_action_t forward = {TOW_PLAN_FORWARD, stage, m};
        for (uint32_t i = 0; i < it->output_count; i++)
            if (!add_result(builder, stage, m, i,
                            (tow_plan_value_t){call_of(builder, forward),
                                               it->outputs[i]}))
                return false;
    }
    return true;
}

/* -- All ------------------------------------------------------------------- */

static uint32_t *allocate_none(size_t count)
{
    uint32_t *numbers = tow_malloc((count + 1) * sizeof(numbers[0]));
    for (size_t i = 0; numbers != NULL && i < count; i++)
        numbers[i] = TOW_PLAN_NONE;
    return numbers;
}

static bool allocate(builder_t *builder)
{
    const tow_plan_work_t *work = &builder->work;
    const tow_plan_shape_t *shape = &work->schedule->shape;
    builder->order =
        tow_malloc((work->action_count + 1) * sizeof(builder->order[0]));
    builder->stuck = allocate_none(shape->device_count);
    builder->calls = allocate_none(tow_plan_work_slot_count(work));
    builder->transfers =
        allocate_none(2 * work->edge_count * shape->microbatch_count);
    builder->arguments = allocate_none(shape->stage_count);
    builder->sums = allocate_none(shape->stage_count);
    builder->summed =
        tow_calloc(shape->stage_count, sizeof(builder->summed[0]));
    return builder->order != NULL && builder->stuck != NULL &&
           builder->calls != NULL && builder->transfers != NULL &&
           builder->arguments != NULL && builder->sums != NULL &&
           builder->summed != NULL;
}

static void deinit(builder_t *builder)
{
    tow_free(builder->order);
    tow_free(builder->stuck);
    tow_free(builder->calls);
    tow_free(builder->transfers);
    tow_free(builder->arguments);
    tow_free(builder->sums);
    tow_free(builder->summed);
    tow_plan_work_deinit(&builder->work);
}

static bool add_all(builder_t *builder)
{
    const tow_plan_schedule_t *schedule = builder->work.schedule;
    const uint32_t stages = schedule->shape.stage_count;
    for (uint32_t s = 0; s < stages; s++)
        if (!add_arguments(builder, s)) return false;
    for (size_t i = 0; i < builder->work.action_count; i++)
        if (!add_action(builder,
                        tow_plan_schedule_at(schedule, builder->order[i])))
            return false;
    for (uint32_t s = 0; s < stages; s++)
        if (!add_update_results(builder, s) || !add_sum_results(builder, s))
            return false;
    for (uint32_t s = 0; s < stages; s++)
        if (!add_outputs(builder, s)) return false;
    return true;
}

static tow_status_t build(builder_t *builder)
{
    TOW_RETURN_IF_ERROR(
        tow_plan_pipeline_check(builder->pipeline, &builder->work));
    if (!allocate(builder)) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const bool ordered =
        tow_plan_work_order(&builder->work, builder->order, builder->stuck);
    TOW_ASSERT(ordered); /* The schedule has been checked. */
    return add_all(builder) ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

tow_status_t tow_plan_nodes_init(tow_plan_nodes_t *nodes,
                                 const tow_plan_schedule_t *schedule,
                                 const tow_plan_pipeline_t *pipeline)
{
    builder_t builder = {.pipeline = pipeline, .nodes = nodes};
    static const tow_plan_edge_t no_edge;
    const tow_plan_check_options_t options = {
        .costs = {.edges = pipeline->edges != NULL ? pipeline->edges : &no_edge,
                  .edge_count = pipeline->edge_count},
    };
    *nodes = (tow_plan_nodes_t){0};
    TOW_RETURN_IF_ERROR(tow_plan_schedule_check(schedule, &options, NULL));
    tow_status_t status =
        tow_plan_work_init(&builder.work, schedule, &options.costs, NULL);
    if (status == TOW_OK) status = build(&builder);
    deinit(&builder);
    if (status != TOW_OK) tow_plan_nodes_deinit(nodes);
    return status;
}

void tow_plan_nodes_deinit(tow_plan_nodes_t *nodes)
{
    tow_vec_deinit(&nodes->nodes);
    tow_vec_deinit(&nodes->operands);
}
