/* Random pipelines: node lists follow their schedules. */
#include "plan/schedule/nodes_testing_impl.h"
#include "plan/schedule/scenario_testing_impl.h"

static tow_test_pipeline_t pipeline;

static bool is_action_of(const tow_plan_node_t *node, tow_plan_action_t action)
{
    static const tow_plan_fragment_kind_t fragments[] = {
        [TOW_PLAN_FORWARD] = TOW_PLAN_FRAGMENT_FORWARD,
        [TOW_PLAN_BACKWARD] = TOW_PLAN_FRAGMENT_BACKWARD,
        [TOW_PLAN_INPUT_GRAD] = TOW_PLAN_FRAGMENT_INPUT_GRAD,
        [TOW_PLAN_WEIGHT_GRAD] = TOW_PLAN_FRAGMENT_WEIGHT_GRAD,
        [TOW_PLAN_RECOMPUTE] = TOW_PLAN_FRAGMENT_RECOMPUTE,
        [TOW_PLAN_UPDATE] = TOW_PLAN_FRAGMENT_UPDATE,
    };
    if (node->stage != action.stage || node->microbatch != action.microbatch)
        return false;
    if (action.kind == TOW_PLAN_ALL_REDUCE)
        return node->kind == TOW_PLAN_NODE_ALL_REDUCE;
    return node->kind == TOW_PLAN_NODE_CALL &&
           node->fragment == fragments[action.kind];
}

static bool is_send(tow_plan_action_kind_t kind)
{
    return kind == TOW_PLAN_SEND_FORWARD || kind == TOW_PLAN_SEND_BACKWARD;
}

/* The calls and all-reduces on a device, without accumulations, are the actions
 * of its list without sends. */
static void check_device_order(const tow_test_scenario_t *it,
                               const tow_plan_nodes_t *nodes, uint32_t device)
{
    const tow_plan_actions_t *list = &it->schedule.devices[device];
    size_t next = 0;
    for (size_t i = 0; i < nodes->nodes.count; i++) {
        const tow_plan_node_t *node = &nodes->nodes.items[i];
        if (node->device != device) continue;
        if (node->kind != TOW_PLAN_NODE_ALL_REDUCE &&
            (node->kind != TOW_PLAN_NODE_CALL ||
             node->fragment == TOW_PLAN_FRAGMENT_ACCUMULATE))
            continue;
        while (next < list->count && is_send(list->items[next].kind))
            next++;
        assert_true(next < list->count);
        assert_true(is_action_of(node, list->items[next++]));
    }
    while (next < list->count && is_send(list->items[next].kind))
        next++;
    assert_int_equal(next, list->count);
}

static void check_operands(const tow_plan_nodes_t *nodes)
{
    for (size_t i = 0; i < nodes->nodes.count; i++) {
        const tow_plan_node_t *node = &nodes->nodes.items[i];
        for (uint32_t k = 0; k < node->operand_count; k++) {
            const tow_plan_value_t *value =
                &nodes->operands.items[node->first_operand + k];
            assert_true(value->node < i);
            assert_true(value->result <
                        nodes->nodes.items[value->node].result_count);
        }
    }
}

/* Sums of a stage are one chain, in the order of microbatches. */
static void check_sums(const tow_test_scenario_t *it,
                       const tow_plan_nodes_t *nodes)
{
    uint32_t next[TOW_TEST_STAGE_COUNT_MAX];
    uint32_t sums[TOW_TEST_STAGE_COUNT_MAX];
    for (uint32_t s = 0; s < it->schedule.shape.stage_count; s++)
        next[s] = 1;
    for (uint32_t i = 0; i < nodes->nodes.count; i++) {
        const tow_plan_node_t *node = &nodes->nodes.items[i];
        if (node->kind != TOW_PLAN_NODE_CALL ||
            node->fragment != TOW_PLAN_FRAGMENT_ACCUMULATE)
            continue;
        const tow_plan_value_t *operands =
            &nodes->operands.items[node->first_operand];
        assert_int_equal(node->microbatch, next[node->stage]++);
        assert_int_equal(nodes->nodes.items[operands[1].node].microbatch,
                         node->microbatch);
        if (node->microbatch == 1)
            assert_int_equal(nodes->nodes.items[operands[0].node].microbatch,
                             0);
        else
            assert_int_equal(operands[0].node, sums[node->stage]);
        sums[node->stage] = i;
    }
    for (uint32_t s = 0; s < it->schedule.shape.stage_count; s++)
        assert_int_equal(next[s], it->schedule.shape.microbatch_count);
}

static void check_nodes(tow_test_scenario_t *it)
{
    tow_plan_nodes_t nodes;
    tow_test_pipeline_fill(&pipeline, it->schedule.shape.stage_count);
    if (it->options.extras.sends && pipeline.pipeline.edge_count > 0 &&
        it->schedule.shape.stage_count > 2)
        pipeline.pipeline.edge_count--; /* Sends were made for a chain. */
    for (uint32_t s = 0; s < it->schedule.shape.stage_count; s++)
        tow_test_fill_stage(&pipeline, s, it->schedule.shape.stage_count);
    tow_test_must(
        tow_plan_nodes_init(&nodes, &it->schedule, &pipeline.pipeline));
    for (uint32_t d = 0; d < it->schedule.shape.device_count; d++)
        check_device_order(it, &nodes, d);
    check_operands(&nodes);
    check_sums(it, &nodes);
    tow_plan_nodes_deinit(&nodes);
}

static void nodes_follow_the_schedule_and_sum_in_order(void **state)
{
    tow_test_for_all(check_nodes);
}

TOW_TEST_MAIN(cmocka_unit_test(nodes_follow_the_schedule_and_sum_in_order))
