#include "plan/schedule/schedule_testing_impl.h"

static const tow_plan_check_options_t *no_options;

/* The schedule is refused with this fault, and a message with both texts. */
static void refuses(const char *csv, const tow_plan_check_options_t *options,
                    tow_plan_fault_t expected, const char *text,
                    const char *other)
{
    tow_plan_schedule_t schedule = tow_test_parse(csv);
    tow_plan_fault_t fault;
    tow_test_refused(tow_plan_schedule_check(&schedule, options, &fault),
                     expected.kind == TOW_PLAN_FAULT_MEMORY
                         ? TOW_RESOURCE_EXHAUSTED
                         : TOW_INVALID_ARGUMENT,
                     text, other);
    assert_int_equal(fault.kind, expected.kind);
    assert_int_equal(fault.place.device, expected.place.device);
    assert_int_equal(fault.place.index, expected.place.index);
    tow_plan_schedule_deinit(&schedule);
}

static void accepts(const char *csv, const tow_plan_check_options_t *options)
{
    tow_plan_schedule_t schedule = tow_test_parse(csv);
    tow_plan_fault_t fault;
    tow_test_must(tow_plan_schedule_check(&schedule, options, &fault));
    assert_int_equal(fault.kind, TOW_PLAN_FAULT_NONE);
    tow_plan_schedule_deinit(&schedule);
}

static void every_generated_schedule_is_right(void **state)
{
    for (int generator = 0; generator < TOW_PLAN_GENERATOR_COUNT; generator++)
        for (uint32_t s = 1; s <= 5; s++)
            for (uint32_t m = s; m <= 4 * s; m += s) {
                tow_plan_schedule_t schedule =
                    tow_test_generate((tow_plan_generator_t)generator, s, m);
                tow_test_must(tow_plan_schedule_check(&schedule, NULL, NULL));
                tow_plan_schedule_deinit(&schedule);
            }
}

static void whole_and_split_backwards_may_be_mixed(void **state)
{
    accepts("0F0,0F1,0B0,0I1,0W1\n1F0,1B0,1F1,1I1,1W1\n", no_options);
    accepts("0F0,0F1,0R1,0B1,0B0\n", no_options);
}

static void work_on_the_wrong_device_is_impossible(void **state)
{
    refuses("0F0,0B0\n1F0,1B0,0U\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_IMPOSSIBLE, {1, 2}},
            "device 1, action 2: 0U", "stage 0 is on device 0");
}

static void a_send_without_a_receiver_is_impossible(void **state)
{
    refuses("0F0,0SEND_F0,0B0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_IMPOSSIBLE, {0, 1}}, "0SEND_F0",
            "no stage of another device");
}

static void work_out_of_range_is_impossible(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_GPIPE, 2, 2);
    tow_plan_fault_t fault;
    schedule.devices[1].items[1].microbatch = 2;
    tow_test_refused(tow_plan_schedule_check(&schedule, NULL, &fault),
                     TOW_INVALID_ARGUMENT, "device 1, action 1: 1F2",
                     "2 microbatches");
    assert_int_equal(fault.kind, TOW_PLAN_FAULT_IMPOSSIBLE);
    schedule.devices[1].items[1] = (tow_plan_action_t){TOW_PLAN_FORWARD, 2, 1};
    tow_test_refused(tow_plan_schedule_check(&schedule, NULL, &fault),
                     TOW_INVALID_ARGUMENT, "2F1 is of stage 2", "2 stages");
    tow_plan_schedule_deinit(&schedule);
}

static void doubled_work_is_refused(void **state)
{
    refuses("0F0,0B0,0F0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_DOUBLED, {0, 2}},
            "device 0, action 2: 0F0", "by action 0");
    refuses("0F0,0B0,0I0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_DOUBLED, {0, 2}}, "0I0",
            "by 0B0");
    refuses("0F0,0B0,0W0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_DOUBLED, {0, 2}}, "0W0",
            "by 0B0");
}

static void missing_work_is_refused(void **state)
{
    const tow_plan_fault_t missing = {TOW_PLAN_FAULT_MISSING,
                                      {1, TOW_PLAN_NONE}};
    refuses("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", no_options, missing,
            "device 1: 1F1", "missing");
    refuses("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", no_options, missing, "1B1",
            "(or 1I1 and 1W1)");
    refuses("0F0,0B0\n1F0,1I0\n", no_options, missing, "1W0", "missing");
    refuses("0F0,0B0,0U\n1F0,1B0\n", no_options, missing, "1U", "missing");
    refuses("0F0,0B0,0AR\n1F0,1B0\n", no_options, missing, "1AR", "missing");
    refuses("0F0,0SEND_F0,0B0\n1F0,1B0\n", no_options, missing, "1SEND_B0",
            "missing");
}

static void a_schedule_with_far_too_little_work_is_refused_early(void **state)
{
    tow_plan_schedule_t schedule = tow_test_parse("4095F65535\n");
    tow_test_refused(tow_plan_schedule_check(&schedule, NULL, NULL),
                     TOW_INVALID_ARGUMENT, "work is missing", NULL);
    tow_plan_schedule_deinit(&schedule);
}

static void order_within_a_stage_is_checked(void **state)
{
    refuses("0F0,0W0,0I0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_ORDER, {0, 1}},
            "device 0, action 1: 0W0 comes before 0I0", "action 2");
    refuses("0B0,0F0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_ORDER, {0, 0}},
            "0B0 comes before 0F0", "");
    refuses("0F0,0B0,0R0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_ORDER, {0, 1}},
            "0B0 comes before 0R0", "");
    refuses("0F0,0F1,0B0,0U,0B1\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_ORDER, {0, 3}},
            "0U comes before 0B1", "");
    refuses("0F0,0B0,0U,0AR\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_ORDER, {0, 2}},
            "0U comes before 0AR", "");
    refuses("0SEND_F0,0F0,0B0\n1F0,1B0,1SEND_B0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_ORDER, {0, 0}},
            "0SEND_F0 comes before 0F0", "");
}

static void a_deadlock_is_told_as_its_cycle(void **state)
{
    refuses("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_DEADLOCK, {0, 1}},
            "device 0 is at action 1, 0B0, and waits for 1B0 of device 1; "
            "device 1 is at action 1, 1F1, and waits for 0F1 of device 0",
            "deadlock");
}

static void a_device_can_wait_for_itself(void **state)
{
    refuses("1F0,0F0,1B0,0B0\n", no_options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_DEADLOCK, {0, 0}},
            "device 0 is at action 0, 1F0, and waits for 0F0 of device 0", "");
}

static void edges_over_several_stages_are_needed_too(void **state)
{
    /* Without the edge from 0 to 2, 2F0 may come before 0F0. */
    const char *csv = "2F0,2B0,0F0,0B0\n1F0,1B0\n";
    const tow_plan_edge_t edges[] = {{.from_stage = 0, .to_stage = 1},
                                     {.from_stage = 0, .to_stage = 2}};
    tow_plan_check_options_t options = {
        .costs = {.edges = edges, .edge_count = 1}};
    accepts(csv, &options);
    options.costs.edge_count = 2;
    refuses(csv, &options, (tow_plan_fault_t){TOW_PLAN_FAULT_DEADLOCK, {0, 0}},
            "2F0, and waits for 0F0", "");
}

static void edges_without_cotangent_bind_forwards_only(void **state)
{
    const char *csv = "0F0,0B0\n1F0,1B0\n";
    const char *reverse = "0F0,0B0,1F0,1B0\n";
    tow_plan_edge_t edge = {.from_stage = 0, .to_stage = 1};
    const tow_plan_check_options_t options = {
        .costs = {.edges = &edge, .edge_count = 1}};
    accepts(csv, &options);
    refuses(reverse, &options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_DEADLOCK, {0, 1}}, "0B0", "1B0");
    edge.is_forward_only = true;
    accepts(reverse, &options);
}

static void edges_must_point_forward(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_GPIPE, 2, 1);
    const tow_plan_edge_t edge = {.from_stage = 1, .to_stage = 1};
    const tow_plan_check_options_t options = {
        .costs = {.edges = &edge, .edge_count = 1}};
    tow_test_refused(tow_plan_schedule_check(&schedule, &options, NULL),
                     TOW_INVALID_ARGUMENT, "edge 0 goes from stage 1 to 1",
                     NULL);
    tow_plan_schedule_deinit(&schedule);
}

static void costs_out_of_bounds_are_refused(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_GPIPE, 2, 1);
    tow_plan_stage_cost_t stages[2] = {{0}, {.update_ns = -1}};
    const tow_plan_check_options_t options = {.costs = {.stages = stages}};
    tow_test_refused(tow_plan_schedule_check(&schedule, &options, NULL),
                     TOW_INVALID_ARGUMENT, "stage 1: update is -1 ns", NULL);
    stages[1] = (tow_plan_stage_cost_t){.input_bytes = UINT64_MAX};
    tow_test_refused(tow_plan_schedule_check(&schedule, &options, NULL),
                     TOW_INVALID_ARGUMENT, "stage 1: inputs are", NULL);
    tow_plan_schedule_deinit(&schedule);
}

static void a_memory_overrun_names_the_action(void **state)
{
    const tow_plan_stage_cost_t stage = {
        .activation_bytes = 10, .stash_bytes = 4, .parameter_bytes = 100};
    tow_plan_check_options_t options = {.costs = {.stages = &stage},
                                        .bytes_max = 120};
    accepts("0F0,0F1,0B0,0F2,0B1,0B2\n", &options);
    refuses("0F0,0F1,0F2,0B0,0B1,0B2\n", &options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_MEMORY, {0, 2}},
            "device 0, action 2: 0F2 brings the memory in use to 130 bytes",
            "the limit is 120");
    refuses("0F0,0F1,0I0,0F2,0I1,0I2,0W0,0W1,0W2\n", &options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_MEMORY, {0, 3}}, "124 bytes",
            "0F2");
}

static void recomputation_keeps_inputs_only(void **state)
{
    const tow_plan_stage_cost_t stage = {.activation_bytes = 10,
                                         .input_bytes = 1};
    tow_plan_check_options_t options = {.costs = {.stages = &stage},
                                        .bytes_max = 13};
    accepts("0F0,0F1,0F2,0R0,0B0,0R1,0B1,0R2,0B2\n", &options);
    options.bytes_max = 12;
    refuses("0F0,0F1,0F2,0R0,0B0,0R1,0B1,0R2,0B2\n", &options,
            (tow_plan_fault_t){TOW_PLAN_FAULT_MEMORY, {0, 3}}, "0R0",
            "13 bytes");
}

static tow_exhaust_result_t check_once(void *context)
{
    tow_status_t status = tow_plan_schedule_check(context, NULL, NULL);
    const bool failed = status != TOW_OK;
    tow_status_release(status);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void checking_survives_exhausted_memory(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_ZB_V, 2, 3);
    assert_true(tow_test_exhaust(check_once, &schedule) > 5);
    tow_plan_schedule_deinit(&schedule);
}

TOW_TEST_MAIN(
    cmocka_unit_test(every_generated_schedule_is_right),
    cmocka_unit_test(whole_and_split_backwards_may_be_mixed),
    cmocka_unit_test(work_on_the_wrong_device_is_impossible),
    cmocka_unit_test(a_send_without_a_receiver_is_impossible),
    cmocka_unit_test(work_out_of_range_is_impossible),
    cmocka_unit_test(doubled_work_is_refused),
    cmocka_unit_test(missing_work_is_refused),
    cmocka_unit_test(a_schedule_with_far_too_little_work_is_refused_early),
    cmocka_unit_test(order_within_a_stage_is_checked),
    cmocka_unit_test(a_deadlock_is_told_as_its_cycle),
    cmocka_unit_test(a_device_can_wait_for_itself),
    cmocka_unit_test(edges_over_several_stages_are_needed_too),
    cmocka_unit_test(edges_without_cotangent_bind_forwards_only),
    cmocka_unit_test(edges_must_point_forward),
    cmocka_unit_test(costs_out_of_bounds_are_refused),
    cmocka_unit_test(a_memory_overrun_names_the_action),
    cmocka_unit_test(recomputation_keeps_inputs_only),
    cmocka_unit_test(checking_survives_exhausted_memory))
