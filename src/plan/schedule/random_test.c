/* Random pipelines, from a seed: every generated schedule is right, every
 * mutated one is refused or runs, and no step is shorter than it can be. */
#include <inttypes.h>
#include <stdio.h>

#include "base/random.h"
#include "plan/schedule/nodes_testing_impl.h"

#define CASE_COUNT 400

typedef struct scenario {
    tow_random_t random;
    tow_plan_generate_options_t options;
    tow_plan_schedule_t schedule;
    tow_test_costs_t costs;
    tow_plan_edge_t edges[TOW_TEST_STAGE_COUNT_MAX];
} scenario_t;

static uint32_t below(scenario_t *it, uint32_t bound)
{
    return (uint32_t)tow_random_below(&it->random, bound);
}

static bool coin(scenario_t *it)
{
    return below(it, 2) == 1;
}

static void draw_options(scenario_t *it)
{
    tow_plan_generate_options_t *options = &it->options;
    *options = (tow_plan_generate_options_t){
        .generator = (tow_plan_generator_t)below(it, TOW_PLAN_GENERATOR_COUNT),
        .device_count = 1 + below(it, 8),
        .microbatch_count = 1 + below(it, 24),
        .extras = {coin(it), coin(it), coin(it), coin(it)},
    };
    if (options->generator == TOW_PLAN_INTERLEAVED) {
        options->chunk_count = 1 + below(it, 4);
        options->microbatch_count = options->device_count * (1 + below(it, 4));
    }
    if (options->generator == TOW_PLAN_1F1B) {
        options->warmup = (tow_plan_warmup_t)below(it, 2);
        options->in_flight_max = below(it, 5);
    }
}

static void draw_costs(scenario_t *it)
{
    const bool with_edges = coin(it);
    for (uint32_t s = 0; s < it->schedule.shape.stage_count; s++) {
        it->costs.stages[s] = (tow_plan_stage_cost_t){
            .forward_ns = below(it, 100),
            .input_grad_ns = below(it, 100),
            .weight_grad_ns = below(it, 100),
            .backward_ns = below(it, 200),
            .recompute_ns = below(it, 100),
            .all_reduce_ns = below(it, 500),
            .update_ns = below(it, 50),
            .activation_bytes = below(it, 1000),
            .stash_bytes = below(it, 1000),
            .input_bytes = below(it, 100),
            .parameter_bytes = below(it, 10000),
        };
        it->edges[s] = (tow_plan_edge_t){.from_stage = s,
                                         .to_stage = s + 1,
                                         .bytes = below(it, 5000),
                                         .bytes_per_s = UINT64_C(1) << 36,
                                         .latency_ns = below(it, 50)};
    }
    it->costs.costs = (tow_plan_costs_t){.stages = it->costs.stages};
    if (!with_edges) return;
    it->costs.costs.edges = it->edges;
    it->costs.costs.edge_count = it->schedule.shape.stage_count - 1;
}

static void draw(scenario_t *it, uint64_t seed)
{
    tow_random_init(&it->random, seed);
    draw_options(it);
    tow_test_must(tow_plan_generate(&it->options, &it->schedule));
    draw_costs(it);
}

static void for_all(void (*claim)(scenario_t *it))
{
    static scenario_t scenario;
    for (uint64_t seed = 1; seed <= CASE_COUNT; seed++) {
        draw(&scenario, seed);
        print_message("seed %" PRIu64 ": %s, %" PRIu32 " devices, %" PRIu32
                      " microbatches\n",
                      seed, tow_plan_generator_name(scenario.options.generator),
                      scenario.options.device_count,
                      scenario.options.microbatch_count);
        claim(&scenario);
        tow_plan_schedule_deinit(&scenario.schedule);
    }
}

/* -- Steps ----------------------------------------------------------------- */

/* One microbatch has to go through all stages and back. */
static int64_t critical_path(const scenario_t *it)
{
    int64_t path = 0;
    const bool is_split =
        tow_plan_schedule_has(&it->schedule, TOW_PLAN_INPUT_GRAD);
    for (uint32_t s = 0; s < it->schedule.shape.stage_count; s++)
        path += it->costs.stages[s].forward_ns +
                (is_split ? it->costs.stages[s].input_grad_ns
                          : it->costs.stages[s].backward_ns);
    return path;
}

static void check_intervals(const scenario_t *it, uint32_t device,
                            const tow_plan_device_times_t *times)
{
    int64_t free_ns = 0;
    for (size_t i = 0; i < it->schedule.devices[device].count; i++) {
        const tow_plan_action_t action = it->schedule.devices[device].items[i];
        const tow_plan_interval_t *interval = &times->intervals[i];
        assert_int_equal(interval->end_ns - interval->start_ns,
                         tow_plan_costs_time_ns(&it->costs.costs, action));
        assert_true(interval->start_ns >= free_ns);
        if (!tow_plan_action_is_asynchronous(action.kind))
            free_ns = interval->end_ns;
    }
}

static void check_times(scenario_t *it)
{
    tow_plan_timeline_t timeline;
    tow_test_must(
        tow_plan_simulate(&it->schedule, &it->costs.costs, &timeline));
    assert_true(timeline.step_ns >= critical_path(it));
    assert_true(timeline.period_ns <= timeline.step_ns);
    for (uint32_t d = 0; d < timeline.device_count; d++) {
        const tow_plan_device_times_t *times = &timeline.devices[d];
        assert_true(times->busy_ns <= timeline.period_ns);
        assert_true(times->bytes_mean <= times->bytes_peak);
        assert_true(times->bytes_peak < UINT64_C(1) << 40);
        check_intervals(it, d, times);
    }
    tow_plan_timeline_deinit(&timeline);
}

static void no_step_is_shorter_than_its_work_or_its_longest_path(void **state)
{
    for_all(check_times);
}

/* The least limit that the checker accepts is the peak of the simulation, where
 * no receive buffer counts. */
static void check_memory(scenario_t *it)
{
    tow_plan_timeline_t timeline;
    tow_plan_check_options_t options = {.costs.stages = it->costs.stages};
    tow_plan_fault_t fault;
    tow_test_must(tow_plan_simulate(&it->schedule, &options.costs, &timeline));
    for (uint32_t d = 0; d < timeline.device_count; d++)
        if (timeline.devices[d].bytes_peak > options.bytes_max)
            options.bytes_max = timeline.devices[d].bytes_peak;
    tow_plan_timeline_deinit(&timeline);
    if (options.bytes_max < 2) return;
    tow_test_must(tow_plan_schedule_check(&it->schedule, &options, &fault));
    options.bytes_max--;
    tow_test_refused(tow_plan_schedule_check(&it->schedule, &options, &fault),
                     TOW_RESOURCE_EXHAUSTED, "brings the memory", NULL);
    assert_int_equal(fault.kind, TOW_PLAN_FAULT_MEMORY);
}

static void checker_and_simulator_agree_on_memory(void **state)
{
    for_all(check_memory);
}

/* -- Mutations ------------------------------------------------------------- */

static tow_plan_place_t draw_place(scenario_t *it)
{
    const uint32_t device = below(it, it->schedule.shape.device_count);
    return (tow_plan_place_t){
        device, below(it, (uint32_t)it->schedule.devices[device].count)};
}

static void remove_action(scenario_t *it, tow_plan_place_t place)
{
    tow_plan_actions_t *list = &it->schedule.devices[place.device];
    memmove(list->items + place.index, list->items + place.index + 1,
            (list->count - place.index - 1) * sizeof(list->items[0]));
    list->count--;
}

/* Recomputation is optional, and the only action of a kind makes the whole kind
 * vanish. */
static bool may_be_removed(const scenario_t *it, tow_plan_action_t action)
{
    if (action.kind == TOW_PLAN_RECOMPUTE) return true;
    return it->schedule.shape.stage_count == 1 &&
           !tow_plan_action_has_microbatch(action.kind);
}

static void check_removed(scenario_t *it)
{
    const tow_plan_place_t place = draw_place(it);
    const tow_plan_action_t action = tow_plan_schedule_at(&it->schedule, place);
    /* One of the only two sends of a schedule. */
    if (action.kind == TOW_PLAN_SEND_FORWARD ||
        action.kind == TOW_PLAN_SEND_BACKWARD)
        if (it->schedule.shape.stage_count == 2 &&
            it->schedule.shape.microbatch_count == 1)
            return;
    remove_action(it, place);
    tow_status_t status = tow_plan_schedule_check(&it->schedule, NULL, NULL);
    assert_int_equal(status == TOW_OK, may_be_removed(it, action));
    tow_status_release(status);
}

static void schedules_with_removed_work_are_refused(void **state)
{
    for_all(check_removed);
}

static void check_doubled(scenario_t *it)
{
    const tow_plan_place_t place = draw_place(it);
    tow_plan_fault_t fault;
    tow_test_must(
        tow_plan_schedule_add(&it->schedule, place.device,
                              tow_plan_schedule_at(&it->schedule, place)));
    tow_test_refused(tow_plan_schedule_check(&it->schedule, NULL, &fault),
                     TOW_INVALID_ARGUMENT, "is done already", NULL);
    assert_int_equal(fault.kind, TOW_PLAN_FAULT_DOUBLED);
    assert_int_equal(fault.place.device, place.device);
}

static void schedules_with_doubled_work_are_refused(void **state)
{
    for_all(check_doubled);
}

static void check_misplaced(scenario_t *it)
{
    const uint32_t devices = it->schedule.shape.device_count;
    if (devices == 1) return;
    const tow_plan_place_t place = draw_place(it);
    const uint32_t other =
        (place.device + 1 + below(it, devices - 1)) % devices;
    tow_plan_fault_t fault;
    tow_test_must(tow_plan_schedule_add(
        &it->schedule, other, tow_plan_schedule_at(&it->schedule, place)));
    remove_action(it, place);
    tow_test_refused(tow_plan_schedule_check(&it->schedule, NULL, &fault),
                     TOW_INVALID_ARGUMENT, "on the wrong device", NULL);
    assert_int_equal(fault.kind, TOW_PLAN_FAULT_IMPOSSIBLE);
}

static void schedules_with_misplaced_work_are_refused(void **state)
{
    for_all(check_misplaced);
}

/* Whether actions in the order of a unit-time walk all find what they need: an
 * independent, slow check by repeated search. */
static bool is_before(const scenario_t *it, tow_plan_action_kind_t kind,
                      uint32_t stage, uint32_t microbatch, const size_t *done)
{
    const uint32_t device = it->schedule.stage_devices[stage];
    for (size_t i = 0; i < done[device]; i++) {
        const tow_plan_action_t *a = &it->schedule.devices[device].items[i];
        if (a->kind == kind && a->stage == stage && a->microbatch == microbatch)
            return true;
    }
    return false;
}

static bool has_backward(const scenario_t *it, uint32_t s, uint32_t m,
                         const size_t *done)
{
    return is_before(it, TOW_PLAN_BACKWARD, s, m, done) ||
           is_before(it, TOW_PLAN_INPUT_GRAD, s, m, done);
}

static bool can_run(const scenario_t *it, tow_plan_action_t a,
                    const size_t *done)
{
    switch (a.kind) {
    case TOW_PLAN_FORWARD:
        return a.stage == 0 ||
               is_before(it, TOW_PLAN_FORWARD, a.stage - 1, a.microbatch, done);
    case TOW_PLAN_BACKWARD:
    case TOW_PLAN_INPUT_GRAD:
        return is_before(it, TOW_PLAN_FORWARD, a.stage, a.microbatch, done) &&
               (a.stage + 1 == it->schedule.shape.stage_count ||
                has_backward(it, a.stage + 1, a.microbatch, done));
    case TOW_PLAN_WEIGHT_GRAD:
        return is_before(it, TOW_PLAN_INPUT_GRAD, a.stage, a.microbatch, done);
    default: return true;
    }
}

static bool runs_to_the_end(const scenario_t *it)
{
    size_t done[TOW_TEST_STAGE_COUNT_MAX] = {0};
    size_t left = tow_plan_schedule_action_count(&it->schedule);
    for (bool moved = true; moved && left > 0;) {
        moved = false;
        for (uint32_t d = 0; d < it->schedule.shape.device_count; d++)
            while (done[d] < it->schedule.devices[d].count &&
                   can_run(it, it->schedule.devices[d].items[done[d]], done)) {
                done[d]++;
                left--;
                moved = true;
            }
    }
    return left == 0;
}

/* Swaps two actions of a device: the checker accepts exactly what runs. */
static void check_swapped(scenario_t *it)
{
    tow_plan_schedule_deinit(&it->schedule);
    it->options.extras = (tow_plan_extras_t){0};
    tow_test_must(tow_plan_generate(&it->options, &it->schedule));
    const tow_plan_place_t place = draw_place(it);
    tow_plan_actions_t *list = &it->schedule.devices[place.device];
    const uint32_t other = below(it, (uint32_t)list->count);
    const tow_plan_action_t action = list->items[place.index];
    list->items[place.index] = list->items[other];
    list->items[other] = action;
    tow_plan_fault_t fault;
    tow_status_t status = tow_plan_schedule_check(&it->schedule, NULL, &fault);
    assert_int_equal(status == TOW_OK, runs_to_the_end(it));
    if (status != TOW_OK)
        assert_true(fault.kind == TOW_PLAN_FAULT_ORDER ||
                    fault.kind == TOW_PLAN_FAULT_DEADLOCK);
    tow_status_release(status);
}

static void the_checker_accepts_exactly_what_runs(void **state)
{
    for_all(check_swapped);
}

/* -- Text ------------------------------------------------------------------ */

static void check_text(scenario_t *it)
{
    char *text;
    size_t size;
    tow_plan_schedule_t again;
    tow_test_must(tow_plan_csv_print(&it->schedule, &text, &size));
    tow_test_must(tow_plan_csv_parse(text, size, &again));
    tow_test_must(tow_plan_schedule_check(&again, NULL, NULL));
    assert_memory_equal(&again.shape, &it->schedule.shape, sizeof(again.shape));
    assert_memory_equal(again.stage_devices, it->schedule.stage_devices,
                        again.shape.stage_count * sizeof(uint32_t));
    tow_test_print_is(again, text);
    tow_free(text);
}

static void printed_schedules_parse_to_themselves(void **state)
{
    for_all(check_text);
}

/* -- Nodes ----------------------------------------------------------------- */

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
static void check_device_order(const scenario_t *it,
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
static void check_sums(const scenario_t *it, const tow_plan_nodes_t *nodes)
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

static void check_nodes(scenario_t *it)
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
    for_all(check_nodes);
}

TOW_TEST_MAIN(
    cmocka_unit_test(no_step_is_shorter_than_its_work_or_its_longest_path),
    cmocka_unit_test(checker_and_simulator_agree_on_memory),
    cmocka_unit_test(schedules_with_removed_work_are_refused),
    cmocka_unit_test(schedules_with_doubled_work_are_refused),
    cmocka_unit_test(schedules_with_misplaced_work_are_refused),
    cmocka_unit_test(the_checker_accepts_exactly_what_runs),
    cmocka_unit_test(printed_schedules_parse_to_themselves),
    cmocka_unit_test(nodes_follow_the_schedule_and_sum_in_order))
