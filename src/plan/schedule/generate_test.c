#include "plan/schedule/schedule_testing_impl.h"

static void gpipe_does_all_forwards_first(void **state)
{
    tow_test_print_is(tow_test_generate(TOW_PLAN_GPIPE, 2, 3),
                      "0F0,0F1,0F2,0B0,0B1,0B2\n"
                      "1F0,1F1,1F2,1B0,1B1,1B2\n");
}

static void one_f_one_b_starts_with_as_many_forwards_as_stages_follow(
    void **state)
{
    tow_test_print_is(tow_test_generate(TOW_PLAN_1F1B, 3, 4),
                      "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
                      "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
                      "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

static void policy_b_starts_with_nearly_twice_as_many(void **state)
{
    const tow_plan_generate_options_t options = {
        .generator = TOW_PLAN_1F1B,
        .device_count = 3,
        .microbatch_count = 6,
        .warmup = TOW_PLAN_WARMUP_B,
    };
    tow_plan_schedule_t schedule;
    tow_test_must(tow_plan_generate(&options, &schedule));
    tow_test_print_is(schedule,
                      "0F0,0F1,0F2,0F3,0F4,0B0,0F5,0B1,0B2,0B3,0B4,0B5\n"
                      "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1B4,1B5\n"
                      "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4,2F5,2B5\n");
}

static void memory_bounds_the_warm_up(void **state)
{
    const tow_plan_generate_options_t options = {
        .generator = TOW_PLAN_1F1B,
        .device_count = 3,
        .microbatch_count = 3,
        .in_flight_max = 2,
    };
    tow_plan_schedule_t schedule;
    tow_test_must(tow_plan_generate(&options, &schedule));
    tow_test_print_is(schedule, "0F0,0F1,0B0,0F2,0B1,0B2\n"
                                "1F0,1F1,1B0,1F2,1B1,1B2\n"
                                "2F0,2B0,2F1,2B1,2F2,2B2\n");
}

static void interleaved_takes_rounds_of_chunks(void **state)
{
    tow_test_print_is(tow_test_generate(TOW_PLAN_INTERLEAVED, 2, 2),
                      "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
                      "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
}

static void zero_bubble_schedules_delay_weight_gradients(void **state)
{
    tow_test_print_is(tow_test_generate(TOW_PLAN_ZB_H1, 2, 3),
                      "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
                      "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
    tow_test_print_is(tow_test_generate(TOW_PLAN_ZB_H2, 2, 4),
                      "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
                      "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3\n");
}

static void zb_v_has_its_second_chunk_in_reverse(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_ZB_V, 3, 5);
    const uint32_t devices[] = {0, 1, 2, 2, 1, 0};
    assert_memory_equal(schedule.stage_devices, devices, sizeof(devices));
    tow_plan_schedule_deinit(&schedule);
    tow_test_print_is(tow_test_generate(TOW_PLAN_ZB_V, 1, 2),
                      "0F0,1F0,1I0,1W0,0F1,0I0,0W0,1F1,1I1,1W1,0I1,0W1\n");
}

static void extras_stand_beside_their_actions(void **state)
{
    const tow_plan_generate_options_t options = {
        .generator = TOW_PLAN_1F1B,
        .device_count = 2,
        .microbatch_count = 2,
        .extras = {true, true, true, true},
    };
    tow_plan_schedule_t schedule;
    tow_test_must(tow_plan_generate(&options, &schedule));
    tow_test_must(tow_plan_schedule_check(&schedule, NULL, NULL));
    tow_test_print_is(schedule,
                      "0F0,0SEND_F0,0F1,0SEND_F1,0R0,0B0,0R1,0B1,0AR,0U\n"
                      "1F0,1R0,1B0,1SEND_B0,1F1,1R1,1B1,1SEND_B1,1AR,1U\n");
}

static void chunks_of_one_device_need_no_send(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_ZB_V, 1, 1);
    const tow_plan_extras_t extras = {.sends = true, .update = true};
    tow_test_must(tow_plan_schedule_extend(&schedule, &extras));
    tow_test_print_is(schedule, "0F0,1F0,1I0,1W0,0I0,0W0,1U,0U\n");
}

static void extras_are_added_once(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_GPIPE, 2, 2);
    const tow_plan_extras_t extras = {.recompute = true};
    tow_test_must(tow_plan_schedule_extend(&schedule, &extras));
    tow_test_refused(tow_plan_schedule_extend(&schedule, &extras),
                     TOW_INVALID_ARGUMENT, "actions R already", NULL);
    tow_plan_schedule_deinit(&schedule);
}

static void options_that_a_generator_lacks_are_refused(void **state)
{
    tow_plan_schedule_t schedule;
    tow_plan_generate_options_t options = {
        .generator = TOW_PLAN_INTERLEAVED,
        .device_count = 4,
        .microbatch_count = 6,
    };
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "multiple of 4", "it got 6");
    options.generator = TOW_PLAN_ZB_V;
    options.chunk_count = 3;
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "zb-v puts 2 stages on a device",
                     "not 3");
    options.chunk_count = 0;
    options.warmup = TOW_PLAN_WARMUP_B;
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "only 1f1b", NULL);
    assert_null(schedule.devices);
}

static void counts_out_of_bounds_are_refused(void **state)
{
    tow_plan_schedule_t schedule;
    tow_plan_generate_options_t options = {.microbatch_count = 1};
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "0 devices", "1 to 4096");
    options.device_count = 1;
    options.microbatch_count = 70000;
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "70000 microbatches", NULL);
    options.device_count = 4096;
    options.microbatch_count = 4096;
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "more than the limit", NULL);
    options.generator = TOW_PLAN_INTERLEAVED;
    options.chunk_count = UINT32_MAX;
    tow_test_refused(tow_plan_generate(&options, &schedule),
                     TOW_INVALID_ARGUMENT, "stages", NULL);
}

static void names_find_their_generators(void **state)
{
    tow_plan_generator_t found;
    for (int i = 0; i < TOW_PLAN_GENERATOR_COUNT; i++) {
        assert_true(tow_plan_generator_find(
            tow_plan_generator_name((tow_plan_generator_t)i), &found));
        assert_int_equal(found, i);
    }
    assert_false(tow_plan_generator_find("zb", &found));
}

static tow_exhaust_result_t generate_once(void *context)
{
    const tow_plan_generate_options_t *options = context;
    tow_plan_schedule_t schedule;
    tow_status_t status = tow_plan_generate(options, &schedule);
    const bool failed = status != TOW_OK;
    tow_status_release(status);
    tow_plan_schedule_deinit(&schedule);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void generating_survives_exhausted_memory(void **state)
{
    tow_plan_generate_options_t options = {
        .generator = TOW_PLAN_ZB_V,
        .device_count = 3,
        .microbatch_count = 5,
        .extras = {true, true, true, true},
    };
    assert_true(tow_test_exhaust(generate_once, &options) > 5);
}

TOW_TEST_MAIN(
    cmocka_unit_test(gpipe_does_all_forwards_first),
    cmocka_unit_test(one_f_one_b_starts_with_as_many_forwards_as_stages_follow),
    cmocka_unit_test(policy_b_starts_with_nearly_twice_as_many),
    cmocka_unit_test(memory_bounds_the_warm_up),
    cmocka_unit_test(interleaved_takes_rounds_of_chunks),
    cmocka_unit_test(zero_bubble_schedules_delay_weight_gradients),
    cmocka_unit_test(zb_v_has_its_second_chunk_in_reverse),
    cmocka_unit_test(extras_stand_beside_their_actions),
    cmocka_unit_test(chunks_of_one_device_need_no_send),
    cmocka_unit_test(extras_are_added_once),
    cmocka_unit_test(options_that_a_generator_lacks_are_refused),
    cmocka_unit_test(counts_out_of_bounds_are_refused),
    cmocka_unit_test(names_find_their_generators),
    cmocka_unit_test(generating_survives_exhausted_memory))
