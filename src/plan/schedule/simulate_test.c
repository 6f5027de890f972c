#include "plan/schedule/schedule_testing_impl.h"

static tow_plan_timeline_t simulate(const tow_plan_schedule_t *schedule,
                                    const tow_plan_costs_t *costs)
{
    tow_plan_timeline_t timeline;
    tow_test_must(tow_plan_simulate(schedule, costs, &timeline));
    return timeline;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* -- Closed forms ---------------------------------------------------------- */

/* f, b, w with w <= f and w <= b, where the paper's formulas hold. */
static const int64_t times[][3] = {{1, 1, 1},
                                   {10, 12, 8},
                                   {10, 20, 10},
                                   {9, 7, 7},
                                   {100, 150, 50}};

typedef void (*form_t)(uint32_t s, uint32_t m, const int64_t t[3]);

static void for_all(form_t form)
{
    for (size_t i = 0; i < TOW_COUNT_OF(times); i++)
        for (uint32_t s = 1; s <= 8; s++)
            for (uint32_t m = 1; m <= 4 * s; m++)
                form(s, m, times[i]);
}

static void check_whole_backwards(tow_plan_generator_t generator, uint32_t s,
                                  uint32_t m, const int64_t t[3])
{
    const int64_t each = t[0] + t[1] + t[2];
    tow_test_costs_t costs;
    tow_test_costs_set(&costs, t[0], t[1], t[2]);
    tow_plan_schedule_t schedule = tow_test_generate(generator, s, m);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    assert_int_equal(timeline.step_ns, (m + s - 1) * each);
    assert_int_equal(timeline.period_ns, timeline.step_ns);
    assert_int_equal(tow_plan_timeline_bubble_ppm(&timeline),
                     ((s - 1) * 1000000 + (m + s - 1) / 2) / (m + s - 1));
    for (uint32_t d = 0; d < s; d++) {
        assert_int_equal(timeline.devices[d].bubble_ns, (s - 1) * each);
        assert_int_equal(timeline.devices[d].activation_count_peak,
                         generator == TOW_PLAN_GPIPE ? m : least(s - d, m));
    }
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void check_gpipe(uint32_t s, uint32_t m, const int64_t t[3])
{
    check_whole_backwards(TOW_PLAN_GPIPE, s, m, t);
}

static void gpipe_has_its_closed_form(void **state)
{
    for_all(check_gpipe);
}

static void check_1f1b(uint32_t s, uint32_t m, const int64_t t[3])
{
    check_whole_backwards(TOW_PLAN_1F1B, s, m, t);
}

static void one_f_one_b_has_its_closed_form(void **state)
{
    for_all(check_1f1b);
}

static void check_interleaved(uint32_t s, uint32_t m, uint32_t v,
                              const int64_t t[3])
{
    const tow_plan_generate_options_t options = {
        .generator = TOW_PLAN_INTERLEAVED,
        .device_count = s,
        .microbatch_count = m,
        .chunk_count = v,
    };
    tow_test_costs_t costs;
    tow_plan_schedule_t schedule;
    tow_test_costs_set(&costs, t[0], t[1], t[2]);
    tow_test_must(tow_plan_generate(&options, &schedule));
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    /* t is of one chunk: 1 / v of a device's layers. */
    assert_int_equal(timeline.step_ns, (v * m + s - 1) * (t[0] + t[1] + t[2]));
    /* In whole activations S (1 + (S - 1) / (v S)). */
    assert_int_equal(timeline.devices[0].activation_count_peak,
                     least(v * s + s - 1, v * m));
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void interleaved_has_its_closed_form(void **state)
{
    for (size_t i = 0; i < TOW_COUNT_OF(times); i++)
        for (uint32_t v = 1; v <= 4; v++)
            for (uint32_t s = 1; s <= 6; s++)
                for (uint32_t m = s; m <= 4 * s; m += s)
                    check_interleaved(s, m, v, times[i]);
}

/* The bubble of the paper: what the longest span of a device is longer than its
 * work. */
static void check_split(tow_plan_generator_t generator, uint32_t s, uint32_t m,
                        const int64_t t[3], int64_t bubble_ns,
                        uint32_t activations)
{
    const uint32_t chunks = generator == TOW_PLAN_ZB_V ? 2 : 1;
    tow_test_costs_t costs;
    tow_test_costs_set(&costs, t[0], t[1], t[2]);
    tow_plan_schedule_t schedule = tow_test_generate(generator, s, m);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    assert_int_equal(timeline.period_ns - chunks * m * (t[0] + t[1] + t[2]),
                     bubble_ns);
    uint32_t peak = 0;
    for (uint32_t d = 0; d < s; d++)
        if (timeline.devices[d].activation_count_peak > peak)
            peak = timeline.devices[d].activation_count_peak;
    assert_int_equal(peak, activations);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void check_zb_h1(uint32_t s, uint32_t m, const int64_t t[3])
{
    if (m < s) return;
    check_split(TOW_PLAN_ZB_H1, s, m, t, (s - 1) * (t[0] + t[1] - t[2]), s);
}

static void zb_h1_has_a_third_of_the_bubble(void **state)
{
    for_all(check_zb_h1);
}

static void the_step_of_zb_h1_has_no_more_than_its_bubble(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_set(&costs, 1, 1, 1);
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_ZB_H1, 4, 8);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    assert_int_equal(timeline.step_ns, 3 * 8 + 4 - 1);
    assert_int_equal(tow_plan_timeline_bubble_ppm(&timeline),
                     (3 * 1000000 + 13) / 27);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void check_zb_h2(uint32_t s, uint32_t m, const int64_t t[3])
{
    if (m < 2 * s - 1) return;
    const int64_t bubble_ns = (s - 1) * (t[0] + t[1] - 2 * t[2]);
    check_split(TOW_PLAN_ZB_H2, s, m, t, bubble_ns > 0 ? bubble_ns : 0,
                2 * s - 1);
}

static void zb_h2_has_the_bubble_of_the_paper_and_none_if_all_are_equal(
    void **state)
{
    for_all(check_zb_h2);
}

static void check_zb_v(uint32_t s, uint32_t m, const int64_t t[3])
{
    if (m < 2 * s - 1) return;
    if (t[0] == t[1] && t[1] == t[2])
        check_split(TOW_PLAN_ZB_V, s, m, t, 0, 2 * s);
}

static void zb_v_has_no_bubble_and_the_memory_of_1f1b(void **state)
{
    for_all(check_zb_v);
}

static void fewer_microbatches_than_stages_work_too(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_set(&costs, 1, 1, 1);
    for (int generator = 0; generator < TOW_PLAN_GENERATOR_COUNT; generator++) {
        if (generator == TOW_PLAN_INTERLEAVED) continue;
        for (uint32_t m = 1; m < 12; m++) {
            tow_plan_schedule_t schedule =
                tow_test_generate((tow_plan_generator_t)generator, 6, m);
            tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
            assert_true(timeline.step_ns >= 3 * m);
            tow_plan_timeline_deinit(&timeline);
            tow_plan_schedule_deinit(&schedule);
        }
    }
}

/* -- Recomputation and unequal stages -------------------------------------- */

static void recomputation_fills_the_wait_for_cotangents(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_fill(&costs, (tow_plan_stage_cost_t){.forward_ns = 10,
                                                        .backward_ns = 20,
                                                        .recompute_ns = 10});
    tow_plan_schedule_t schedule = tow_test_parse("0F0,0R0,0B0\n1F0,1R0,1B0\n");
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    /* 0R0 runs beside 1F0. */
    assert_int_equal(timeline.devices[0].intervals[1].start_ns, 10);
    assert_int_equal(timeline.devices[0].intervals[2].start_ns, 50);
    assert_int_equal(timeline.step_ns, 70);
    assert_int_equal(timeline.devices[0].input_count_peak, 1);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void the_slowest_stage_sets_the_pace(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_set(&costs, 10, 10, 10);
    costs.stages[1].forward_ns = 30;
    costs.stages[1].backward_ns = 60;
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_1F1B, 3, 8);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    assert_int_equal(timeline.devices[1].busy_ns, 8 * 90);
    /* Before its first forward 0F0, after its first 2F0 and 2B0, after its last
     * backward 0B7. */
    assert_int_equal(timeline.step_ns, 10 + 8 * 90 + 20);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

/* -- Communication --------------------------------------------------------- */

static void values_travel_while_devices_compute(void **state)
{
    tow_test_costs_t costs;
    const tow_plan_edge_t edge = {.from_stage = 0,
                                  .to_stage = 1,
                                  .bytes = 1000,
                                  .bytes_per_s = 100000000, /* 10,000 ns */
                                  .latency_ns = 500};
    tow_test_costs_fill(&costs, (tow_plan_stage_cost_t){.forward_ns = 4000,
                                                        .backward_ns = 8000});
    costs.costs.edges = &edge;
    costs.costs.edge_count = 1;
    tow_plan_schedule_t schedule =
        tow_test_parse("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    const tow_plan_interval_t *last = timeline.devices[1].intervals;
    /* The second value waits for the link, and not for the latency. */
    assert_int_equal(last[0].start_ns, 4000 + 10500);
    assert_int_equal(last[1].start_ns, 4000 + 20500);
    assert_int_equal(timeline.transfers.count, 4);
    assert_int_equal(timeline.transfers.items[1].link.start_ns, 14000);
    assert_int_equal(timeline.transfers.items[1].arrival_ns, 24500);
    assert_int_equal(last[2].start_ns, 28500);
    /* Cotangents take the other direction of the link. */
    assert_int_equal(timeline.devices[0].intervals[2].start_ns,
                     28500 + 8000 + 10500);
    assert_int_equal(timeline.step_ns, 28500 + 16000 + 10500 + 8000 + 2000);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void explicit_sends_delay_the_transfer(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_set(&costs, 10, 10, 10);
    tow_plan_schedule_t schedule =
        tow_test_parse("0F0,0F1,0SEND_F0,0SEND_F1,0B0,0B1\n"
                       "1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n");
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    assert_int_equal(timeline.devices[1].intervals[0].start_ns, 20);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void policy_b_hides_communication_that_policy_a_cannot(void **state)
{
    tow_test_costs_t costs;
    tow_plan_edge_t edges[3];
    int64_t steps[2];
    tow_test_costs_set(&costs, 10, 10, 10);
    for (uint32_t s = 0; s < 3; s++)
        edges[s] = (tow_plan_edge_t){
            .from_stage = s, .to_stage = s + 1, .latency_ns = 20};
    costs.costs.edges = edges;
    costs.costs.edge_count = 3;
    for (int warmup = 0; warmup < 2; warmup++) {
        const tow_plan_generate_options_t options = {
            .generator = TOW_PLAN_1F1B,
            .device_count = 4,
            .microbatch_count = 24,
            .warmup = (tow_plan_warmup_t)warmup,
        };
        tow_plan_schedule_t schedule;
        tow_test_must(tow_plan_generate(&options, &schedule));
        tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
        steps[warmup] = timeline.step_ns;
        assert_int_equal(timeline.devices[0].activation_count_peak,
                         warmup == 0 ? 4 : 7);
        tow_plan_timeline_deinit(&timeline);
        tow_plan_schedule_deinit(&schedule);
    }
    assert_true(steps[1] < steps[0] * 7 / 10);
}

static void skips_arrive_from_their_own_stage(void **state)
{
    tow_test_costs_t costs;
    const tow_plan_edge_t edges[] = {
        {.from_stage = 0, .to_stage = 1},
        {.from_stage = 1, .to_stage = 2},
        {.from_stage = 0, .to_stage = 2, .latency_ns = 100}};
    tow_test_costs_set(&costs, 10, 10, 10);
    costs.costs.edges = edges;
    costs.costs.edge_count = 3;
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_GPIPE, 3, 1);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    assert_int_equal(timeline.devices[2].intervals[0].start_ns, 110);
    assert_int_equal(timeline.devices[1].intervals[1].start_ns, 140);
    /* The cotangent over the skip is later than the one over stage 1. */
    assert_int_equal(timeline.devices[0].intervals[1].start_ns, 240);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void all_reduces_run_beside_computation(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_fill(&costs, (tow_plan_stage_cost_t){.forward_ns = 10,
                                                        .backward_ns = 20,
                                                        .all_reduce_ns = 50,
                                                        .update_ns = 5});
    tow_plan_schedule_t schedule =
        tow_test_parse("0F0,1F0,1B0,1AR,0B0,0AR,1U,0U\n");
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    const tow_plan_interval_t *it = timeline.devices[0].intervals;
    assert_int_equal(it[3].start_ns, 40);
    assert_int_equal(it[4].start_ns, 40); /* 0B0 does not wait */
    assert_int_equal(it[5].start_ns, 90); /* 0AR waits for 1AR */
    assert_int_equal(it[6].start_ns, 90);
    assert_int_equal(it[7].start_ns, 140);
    assert_int_equal(timeline.step_ns, 145);
    assert_int_equal(timeline.devices[0].busy_ns, 70);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

/* -- Memory ---------------------------------------------------------------- */

static void memory_has_a_peak_and_a_mean(void **state)
{
    tow_test_costs_t costs;
    tow_test_costs_fill(&costs,
                        (tow_plan_stage_cost_t){.forward_ns = 10,
                                                .backward_ns = 10,
                                                .activation_bytes = 8,
                                                .parameter_bytes = 100});
    tow_plan_schedule_t schedule = tow_test_parse("0F0,0F1,0B0,0B1\n");
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    const tow_plan_device_times_t *it = &timeline.devices[0];
    assert_int_equal(it->bytes_peak, 116);
    assert_int_equal(it->bytes_mean, 100 + (8 + 16 + 16 + 8) / 4);
    assert_int_equal(it->memory.count, 4);
    assert_int_equal(it->memory.items[1].time_ns, 10);
    assert_int_equal(it->memory.items[1].bytes, 116);
    assert_int_equal(it->memory.items[3].time_ns, 40);
    assert_int_equal(it->memory.items[3].bytes, 100);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void receive_buffers_count_from_the_transfer_to_the_use(void **state)
{
    tow_test_costs_t costs;
    const tow_plan_edge_t edge = {
        .from_stage = 0, .to_stage = 1, .bytes = 7, .latency_ns = 5};
    tow_test_costs_fill(&costs, (tow_plan_stage_cost_t){.forward_ns = 10,
                                                        .backward_ns = 10,
                                                        .activation_bytes = 8});
    costs.costs.edges = &edge;
    costs.costs.edge_count = 1;
    tow_plan_schedule_t schedule = tow_test_parse("0F0,0B0\n1F0,1B0\n");
    tow_plan_timeline_t timeline = simulate(&schedule, &costs.costs);
    const tow_plan_device_times_t *it = &timeline.devices[1];
    assert_int_equal(it->bytes_peak, 15);
    assert_int_equal(it->memory.items[1].time_ns, 10);
    assert_int_equal(it->memory.items[1].bytes, 7);
    assert_int_equal(it->memory.items[3].time_ns, 25);
    assert_int_equal(it->memory.items[3].bytes, 8);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static void the_order_of_memory_is_kept_if_nothing_takes_time(void **state)
{
    const tow_plan_stage_cost_t stages[2] = {{.activation_bytes = 8},
                                             {.activation_bytes = 8}};
    const tow_plan_costs_t costs = {.stages = stages};
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_1F1B, 2, 9);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs);
    assert_int_equal(timeline.step_ns, 0);
    assert_int_equal(timeline.devices[0].bytes_peak, 16);
    assert_int_equal(timeline.devices[1].bytes_peak, 8);
    assert_int_equal(tow_plan_timeline_bubble_ppm(&timeline), 0);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

/* -- Failures -------------------------------------------------------------- */

static void a_wrong_schedule_is_not_simulated(void **state)
{
    tow_plan_timeline_t timeline;
    tow_plan_schedule_t schedule = tow_test_parse("0F0,0W0,0I0\n");
    const tow_plan_costs_t costs = {0};
    tow_test_refused(tow_plan_simulate(&schedule, &costs, &timeline),
                     TOW_INVALID_ARGUMENT, "0W0 comes before 0I0", NULL);
    assert_null(timeline.devices);
    tow_plan_schedule_deinit(&schedule);
}

static void the_largest_costs_do_not_overflow(void **state)
{
    tow_plan_stage_cost_t stages[2];
    const tow_plan_edge_t edge = {.from_stage = 0,
                                  .to_stage = 1,
                                  .bytes = TOW_PLAN_BYTES_MAX,
                                  .bytes_per_s = 1,
                                  .latency_ns = TOW_PLAN_TIME_NS_MAX};
    for (int s = 0; s < 2; s++)
        stages[s] = (tow_plan_stage_cost_t){
            .forward_ns = TOW_PLAN_TIME_NS_MAX,
            .backward_ns = TOW_PLAN_TIME_NS_MAX,
            .activation_bytes = TOW_PLAN_BYTES_MAX,
            .parameter_bytes = TOW_PLAN_BYTES_MAX,
        };
    const tow_plan_costs_t costs = {stages, &edge, 1};
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_GPIPE, 2, 40000);
    tow_plan_timeline_t timeline = simulate(&schedule, &costs);
    assert_true(timeline.step_ns > 40000 * TOW_PLAN_TIME_NS_MAX);
    assert_true(timeline.devices[0].bytes_peak > 40000 * TOW_PLAN_BYTES_MAX);
    tow_plan_timeline_deinit(&timeline);
    tow_plan_schedule_deinit(&schedule);
}

static tow_exhaust_result_t simulate_once(void *context)
{
    tow_test_costs_t costs;
    tow_plan_timeline_t timeline;
    tow_test_costs_set(&costs, 1, 2, 3);
    tow_status_t status = tow_plan_simulate(context, &costs.costs, &timeline);
    const bool failed = status != TOW_OK;
    tow_status_release(status);
    tow_plan_timeline_deinit(&timeline);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void simulating_survives_exhausted_memory(void **state)
{
    tow_plan_schedule_t schedule = tow_test_generate(TOW_PLAN_ZB_H2, 3, 5);
    assert_true(tow_test_exhaust(simulate_once, &schedule) > 20);
    tow_plan_schedule_deinit(&schedule);
}

TOW_TEST_MAIN(
    cmocka_unit_test(gpipe_has_its_closed_form),
    cmocka_unit_test(one_f_one_b_has_its_closed_form),
    cmocka_unit_test(interleaved_has_its_closed_form),
    cmocka_unit_test(zb_h1_has_a_third_of_the_bubble),
    cmocka_unit_test(the_step_of_zb_h1_has_no_more_than_its_bubble),
    cmocka_unit_test(
        zb_h2_has_the_bubble_of_the_paper_and_none_if_all_are_equal),
    cmocka_unit_test(zb_v_has_no_bubble_and_the_memory_of_1f1b),
    cmocka_unit_test(fewer_microbatches_than_stages_work_too),
    cmocka_unit_test(recomputation_fills_the_wait_for_cotangents),
    cmocka_unit_test(the_slowest_stage_sets_the_pace),
    cmocka_unit_test(values_travel_while_devices_compute),
    cmocka_unit_test(explicit_sends_delay_the_transfer),
    cmocka_unit_test(policy_b_hides_communication_that_policy_a_cannot),
    cmocka_unit_test(skips_arrive_from_their_own_stage),
    cmocka_unit_test(all_reduces_run_beside_computation),
    cmocka_unit_test(memory_has_a_peak_and_a_mean),
    cmocka_unit_test(receive_buffers_count_from_the_transfer_to_the_use),
    cmocka_unit_test(the_order_of_memory_is_kept_if_nothing_takes_time),
    cmocka_unit_test(a_wrong_schedule_is_not_simulated),
    cmocka_unit_test(the_largest_costs_do_not_overflow),
    cmocka_unit_test(simulating_survives_exhausted_memory))
