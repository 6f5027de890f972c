#include <inttypes.h>
#include <stdio.h>

#include "plan/schedule/nodes_testing_impl.h"

/* One line per node: "%3 1:F0 = 100(%0, %2.1)", with the device before the
 * colon. */
static void describe(const tow_plan_nodes_t *nodes, char *text, size_t capacity)
{
    static const char *const kinds[] = {"argument", "call", "transfer",
                                        "all_reduce", "result"};
    size_t size = 0;
    text[0] = '\0';
    for (size_t i = 0; i < nodes->nodes.count; i++) {
        const tow_plan_node_t *it = &nodes->nodes.items[i];
        size += (size_t)snprintf(text + size, capacity - size,
                                 "%%%zu %s %" PRId32 " on %" PRIu32 " (", i,
                                 kinds[it->kind], (int32_t)it->function,
                                 it->device);
        for (uint32_t k = 0; k < it->operand_count; k++) {
            const tow_plan_value_t *value =
                &nodes->operands.items[it->first_operand + k];
            size += (size_t)snprintf(
                text + size, capacity - size, "%s%%%" PRIu32 ".%" PRIu32,
                k > 0 ? " " : "", value->node, value->result);
        }
        size += (size_t)snprintf(text + size, capacity - size, ")\n");
    }
    assert_true(size < capacity);
}

static void nodes_are(const char *csv, uint32_t stage_count,
                      const char *expected)
{
    static tow_test_pipeline_t pipeline;
    tow_plan_schedule_t schedule = tow_test_parse(csv);
    tow_plan_nodes_t nodes;
    char text[8192];
    tow_test_pipeline_fill(&pipeline, stage_count);
    tow_test_must(tow_plan_nodes_init(&nodes, &schedule, &pipeline.pipeline));
    describe(&nodes, text, sizeof(text));
    assert_string_equal(text, expected);
    tow_plan_nodes_deinit(&nodes);
    tow_plan_schedule_deinit(&schedule);
}

static void a_schedule_becomes_nodes_with_operands(void **state)
{
    nodes_are("0F0,0F1,0B0,0B1,0AR,0U\n1F0,1B0,1F1,1I1,1W1,1AR,1U\n", 2,
              "%0 argument -1 on 0 ()\n"
              "%1 argument -1 on 0 ()\n"
              "%2 argument -1 on 0 ()\n"
              "%3 argument -1 on 1 ()\n"
              "%4 argument -1 on 1 ()\n"
              "%5 argument -1 on 1 ()\n"
              "%6 call 0 on 0 (%0.0 %1.0)\n"
              "%7 call 0 on 0 (%0.0 %2.0)\n"
              "%8 call 100 on 1 (%3.0 %4.0 %6.0)\n"
              "%9 call 101 on 1 (%3.0 %8.2)\n"
              "%10 call 1 on 0 (%0.0 %6.2 %9.0)\n"
              "%11 call 100 on 1 (%3.0 %5.0 %7.0)\n"
              "%12 call 102 on 1 (%3.0 %11.2)\n"
              "%13 call 1 on 0 (%0.0 %7.2 %12.0)\n"
              "%14 call 5 on 0 (%10.2 %13.2)\n"
              "%15 call 103 on 1 (%12.2)\n"
              "%16 call 105 on 1 (%9.2 %15.0)\n"
              "%17 all_reduce -1 on 0 (%14.0)\n"
              "%18 all_reduce -1 on 1 (%16.0)\n"
              "%19 call 6 on 0 (%0.0 %17.0)\n"
              "%20 call 106 on 1 (%3.0 %18.0)\n"
              "%21 result -1 on 0 (%19.0)\n"
              "%22 result -1 on 1 (%20.0)\n"
              "%23 result -1 on 1 (%8.1)\n"
              "%24 result -1 on 1 (%11.1)\n");
}

static void gradients_wait_for_those_of_earlier_microbatches(void **state)
{
    nodes_are("0F0,0F1,0F2,0B2,0B0,0B1\n", 1,
              "%0 argument -1 on 0 ()\n"
              "%1 argument -1 on 0 ()\n"
              "%2 argument -1 on 0 ()\n"
              "%3 argument -1 on 0 ()\n"
              "%4 call 0 on 0 (%0.0 %1.0)\n"
              "%5 call 0 on 0 (%0.0 %2.0)\n"
              "%6 call 0 on 0 (%0.0 %3.0)\n"
              "%7 call 1 on 0 (%0.0 %6.2)\n"
              "%8 call 1 on 0 (%0.0 %4.2)\n"
              "%9 call 1 on 0 (%0.0 %5.2)\n"
              "%10 call 5 on 0 (%8.2 %9.2)\n"
              "%11 call 5 on 0 (%10.0 %7.2)\n"
              "%12 result -1 on 0 (%11.0)\n"
              "%13 result -1 on 0 (%4.1)\n"
              "%14 result -1 on 0 (%5.1)\n"
              "%15 result -1 on 0 (%6.1)\n");
}

static void a_single_microbatch_needs_no_sum(void **state)
{
    nodes_are("0F0,0R0,0I0,0W0,0U\n", 1,
              "%0 argument -1 on 0 ()\n"
              "%1 argument -1 on 0 ()\n"
              "%2 call 0 on 0 (%0.0 %1.0)\n"
              "%3 call 0 on 0 (%0.0 %1.0)\n" /* recomputed */
              "%4 call 2 on 0 (%0.0 %3.2)\n"
              "%5 call 3 on 0 (%4.2)\n"
              "%6 call 6 on 0 (%0.0 %5.0)\n"
              "%7 result -1 on 0 (%6.0)\n"
              "%8 result -1 on 0 (%2.1)\n");
}

static void sends_become_transfers(void **state)
{
    nodes_are("0F0,0SEND_F0,0B0\n1F0,1B0,1SEND_B0\n", 2,
              "%0 argument -1 on 0 ()\n"
              "%1 argument -1 on 0 ()\n"
              "%2 argument -1 on 1 ()\n"
              "%3 argument -1 on 1 ()\n"
              "%4 call 0 on 0 (%0.0 %1.0)\n"
              "%5 transfer -1 on 1 (%4.0)\n"
              "%6 call 100 on 1 (%2.0 %3.0 %5.0)\n"
              "%7 call 101 on 1 (%2.0 %6.2)\n"
              "%8 transfer -1 on 0 (%7.0)\n"
              "%9 call 1 on 0 (%0.0 %4.2 %8.0)\n"
              "%10 result -1 on 0 (%9.2)\n"
              "%11 result -1 on 1 (%7.2)\n"
              "%12 result -1 on 1 (%6.1)\n");
}

static void skips_bring_their_own_cotangent(void **state)
{
    nodes_are("0F0,0B0\n1F0,1B0\n2F0,2B0\n", 3,
              "%0 argument -1 on 0 ()\n"
              "%1 argument -1 on 0 ()\n"
              "%2 argument -1 on 1 ()\n"
              "%3 argument -1 on 2 ()\n"
              "%4 argument -1 on 2 ()\n"
              "%5 call 0 on 0 (%0.0 %1.0)\n"
              "%6 call 100 on 1 (%2.0 %5.0)\n"
              "%7 call 200 on 2 (%3.0 %4.0 %6.0 %5.0)\n"
              "%8 call 201 on 2 (%3.0 %7.2)\n"
              "%9 call 101 on 1 (%2.0 %6.2 %8.0)\n"
              "%10 call 1 on 0 (%0.0 %5.2 %9.0 %8.1)\n"
              "%11 result -1 on 0 (%10.2)\n"
              "%12 result -1 on 1 (%9.2)\n"
              "%13 result -1 on 2 (%8.2)\n"
              "%14 result -1 on 2 (%7.1)\n");
}

/* -- Errors ---------------------------------------------------------------- */

static tow_test_pipeline_t broken;

static void refuses(const char *csv, const char *text, const char *other)
{
    tow_plan_schedule_t schedule = tow_test_parse(csv);
    tow_plan_nodes_t nodes;
    tow_test_refused(tow_plan_nodes_init(&nodes, &schedule, &broken.pipeline),
                     TOW_INVALID_ARGUMENT, text, other);
    assert_null(nodes.nodes.items);
    tow_plan_schedule_deinit(&schedule);
}

static const char *two_stages = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

static void functions_that_the_schedule_needs_must_exist(void **state)
{
    tow_test_pipeline_fill(&broken, 2);
    broken.stages[1].fragments[TOW_PLAN_FRAGMENT_BACKWARD] = NULL;
    refuses(two_stages, "stage 1 has no function for its backward", "");
    tow_test_pipeline_fill(&broken, 2);
    broken.stages[0].fragments[TOW_PLAN_FRAGMENT_ACCUMULATE] = NULL;
    refuses(two_stages, "stage 0 has no function for its accumulation", "");
    tow_test_pipeline_fill(&broken, 1);
    broken.stages[0].fragments[TOW_PLAN_FRAGMENT_UPDATE] = NULL;
    refuses("0F0,0B0,0U\n", "stage 0 has no function for its update", "");
}

static void operands_must_have_a_source(void **state)
{
    tow_test_pipeline_fill(&broken, 2);
    broken.fragments[1][TOW_PLAN_FRAGMENT_FORWARD].inputs[0].index = 1;
    refuses(two_stages, "stage 1, forward: operand 0", "above the count");
    tow_test_pipeline_fill(&broken, 2);
    broken.fragments[0][TOW_PLAN_FRAGMENT_FORWARD].inputs[1] =
        (tow_plan_input_t){TOW_PLAN_SOURCE_SUM, 0};
    refuses(two_stages, "stage 0, forward: operand 1", "cannot use");
    tow_test_pipeline_fill(&broken, 2);
    broken.fragments[0][TOW_PLAN_FRAGMENT_FORWARD].inputs[1] =
        (tow_plan_input_t){TOW_PLAN_SOURCE_ACTIVATION, 0};
    refuses(two_stages, "stage 0, forward: operand 1", "another stage");
    tow_test_pipeline_fill(&broken, 2);
    broken.edges[0].is_forward_only = true;
    refuses(two_stages, "stage 0, backward: operand 2", "another stage");
}

static void results_that_edges_use_must_exist(void **state)
{
    tow_test_pipeline_fill(&broken, 2);
    broken.edges[0].result = 3;
    refuses(two_stages, "stage 0, forward: 3 results", "uses 4");
    tow_test_pipeline_fill(&broken, 2);
    broken.edges[0].cotangent = UINT32_MAX;
    refuses(two_stages, "stage 1, backward: 3 results", "uses 4294967296");
    tow_test_pipeline_fill(&broken, 2);
    broken.stages[0].gradient_count = 2;
    refuses(two_stages, "stage 0, backward: 3 results", "uses 4");
}

static void a_schedule_that_ignores_an_edge_is_refused(void **state)
{
    tow_test_pipeline_fill(&broken, 3);
    refuses("2F0,2B0,0F0,0B0\n1F0,1B0\n", "deadlock", "2F0");
}

static tow_exhaust_result_t build_once(void *context)
{
    tow_plan_nodes_t nodes;
    tow_status_t status =
        tow_plan_nodes_init(&nodes, context, &broken.pipeline);
    const bool failed = status != TOW_OK;
    tow_status_release(status);
    tow_plan_nodes_deinit(&nodes);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void building_survives_exhausted_memory(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_ZB_V, 2, 3);
    tow_test_pipeline_fill(&broken, 4);
    assert_true(tow_test_exhaust(build_once, &schedule) > 20);
    tow_plan_schedule_deinit(&schedule);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_schedule_becomes_nodes_with_operands),
    cmocka_unit_test(gradients_wait_for_those_of_earlier_microbatches),
    cmocka_unit_test(a_single_microbatch_needs_no_sum),
    cmocka_unit_test(sends_become_transfers),
    cmocka_unit_test(skips_bring_their_own_cotangent),
    cmocka_unit_test(functions_that_the_schedule_needs_must_exist),
    cmocka_unit_test(operands_must_have_a_source),
    cmocka_unit_test(results_that_edges_use_must_exist),
    cmocka_unit_test(a_schedule_that_ignores_an_edge_is_refused),
    cmocka_unit_test(building_survives_exhausted_memory))
