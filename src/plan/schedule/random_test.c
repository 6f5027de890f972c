/* Random pipelines, from a seed: every generated schedule is right, every
 * mutated one is refused or runs, and no step is shorter than it can be. */
#include "plan/schedule/scenario_testing_impl.h"

/* -- Tight timelines ------------------------------------------------------- */

typedef struct run {
    const tow_test_scenario_t *it;
    const tow_plan_timeline_t *timeline;
} run_t;

/* The end of an action, found by search; -1 if there is none. */
static int64_t end_of(const run_t *run, tow_plan_action_kind_t kind,
                      uint32_t stage, uint32_t microbatch)
{
    const uint32_t device = run->it->schedule.stage_devices[stage];
    const tow_plan_actions_t *list = &run->it->schedule.devices[device];
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].kind == kind && list->items[i].stage == stage &&
            list->items[i].microbatch == microbatch)
            return run->timeline->devices[device].intervals[i].end_ns;
    return -1;
}

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* When the value of an edge has been computed, and sent. */
static int64_t made_at(const run_t *run, const tow_plan_edge_t *edge,
                       uint32_t m, bool is_cotangent)
{
    if (!is_cotangent)
        return latest(end_of(run, TOW_PLAN_FORWARD, edge->from_stage, m),
                      end_of(run, TOW_PLAN_SEND_FORWARD, edge->from_stage, m));
    const int64_t whole = end_of(run, TOW_PLAN_BACKWARD, edge->to_stage, m);
    const int64_t half = end_of(run, TOW_PLAN_INPUT_GRAD, edge->to_stage, m);
    const int64_t sent = end_of(run, TOW_PLAN_SEND_BACKWARD, edge->to_stage, m);
    return latest(latest(whole, half), sent);
}

static int64_t arrival_at(const run_t *run, uint32_t edge, uint32_t m,
                          bool is_cotangent)
{
    for (size_t i = 0; i < run->timeline->transfers.count; i++) {
        const tow_plan_transfer_t *t = &run->timeline->transfers.items[i];
        if (t->edge == edge && t->microbatch == m &&
            t->is_cotangent == is_cotangent)
            return t->arrival_ns;
    }
    return made_at(run, &run->it->edges[edge], m, is_cotangent);
}

static int64_t inputs_at(const run_t *run, tow_plan_action_t action)
{
    const bool is_forward = action.kind == TOW_PLAN_FORWARD;
    int64_t ready_ns = 0;
    if (action.kind == TOW_PLAN_UPDATE)
        return latest(
            0, end_of(run, TOW_PLAN_ALL_REDUCE, action.stage, TOW_PLAN_NONE));
    if (!is_forward && action.kind != TOW_PLAN_BACKWARD &&
        action.kind != TOW_PLAN_INPUT_GRAD)
        return 0;
    for (uint32_t i = 0; i < run->it->costs.costs.edge_count; i++) {
        const tow_plan_edge_t *edge = &run->it->edges[i];
        if (is_forward && edge->to_stage == action.stage)
            ready_ns =
                latest(ready_ns, arrival_at(run, i, action.microbatch, false));
        if (!is_forward && edge->from_stage == action.stage &&
            !edge->is_forward_only)
            ready_ns =
                latest(ready_ns, arrival_at(run, i, action.microbatch, true));
    }
    return ready_ns;
}

/* A device starts each action at the first moment that it can. */
static void check_device(const run_t *run, uint32_t device)
{
    const tow_plan_actions_t *list = &run->it->schedule.devices[device];
    int64_t free_ns = 0;
    int64_t reduced_ns = 0;
    for (size_t i = 0; i < list->count; i++) {
        const tow_plan_action_t action = list->items[i];
        const tow_plan_interval_t *interval =
            &run->timeline->devices[device].intervals[i];
        int64_t start_ns = latest(free_ns, inputs_at(run, action));
        if (action.kind == TOW_PLAN_ALL_REDUCE)
            start_ns = latest(start_ns, reduced_ns);
        assert_int_equal(interval->start_ns, start_ns);
        assert_int_equal(interval->end_ns - interval->start_ns,
                         tow_plan_costs_time_ns(&run->it->costs.costs, action));
        if (action.kind == TOW_PLAN_ALL_REDUCE) reduced_ns = interval->end_ns;
        if (!tow_plan_action_is_asynchronous(action.kind))
            free_ns = interval->end_ns;
    }
}

/* A link starts each transfer when the value is there and it is free. */
static void check_transfer(const run_t *run, size_t number)
{
    const tow_plan_transfer_t *all = run->timeline->transfers.items;
    const tow_plan_transfer_t *t = &all[number];
    const tow_plan_edge_t *edge = &run->it->edges[t->edge];
    int64_t free_ns = 0;
    for (size_t i = 0; i < number; i++)
        if (all[i].from_device == t->from_device &&
            all[i].to_device == t->to_device)
            free_ns = latest(free_ns, all[i].link.end_ns);
    assert_int_equal(
        t->link.start_ns,
        latest(free_ns, made_at(run, edge, t->microbatch, t->is_cotangent)));
    assert_int_equal(t->link.end_ns - t->link.start_ns,
                     tow_plan_edge_time_ns(edge));
    assert_int_equal(t->arrival_ns, t->link.end_ns + edge->latency_ns);
}

static void check_tight(tow_test_scenario_t *it)
{
    tow_plan_timeline_t timeline;
    const run_t run = {it, &timeline};
    if (it->costs.costs.edges == NULL) tow_test_draw_edges(it);
    tow_test_must(
        tow_plan_simulate(&it->schedule, &it->costs.costs, &timeline));
    for (uint32_t d = 0; d < timeline.device_count; d++)
        check_device(&run, d);
    for (size_t i = 0; i < timeline.transfers.count; i++)
        check_transfer(&run, i);
    tow_plan_timeline_deinit(&timeline);
}

static void nothing_starts_early_or_late(void **state)
{
    tow_test_for_all(check_tight);
}

/* -- Bounds ---------------------------------------------------------------- */

/* One microbatch has to go through all stages and back. */
static int64_t critical_path(const tow_test_scenario_t *it)
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

static void check_times(tow_test_scenario_t *it)
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
    }
    tow_plan_timeline_deinit(&timeline);
}

static void no_step_is_shorter_than_its_work_or_its_longest_path(void **state)
{
    tow_test_for_all(check_times);
}

/* The least limit that the checker accepts is the peak of the simulation, where
 * no receive buffer counts. */
static void check_memory(tow_test_scenario_t *it)
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
    tow_test_for_all(check_memory);
}

/* -- Mutations ------------------------------------------------------------- */

static tow_plan_place_t draw_place(tow_test_scenario_t *it)
{
    const uint32_t device = tow_test_below(it, it->schedule.shape.device_count);
    return (tow_plan_place_t){
        device,
        tow_test_below(it, (uint32_t)it->schedule.devices[device].count)};
}

static void remove_action(tow_test_scenario_t *it, tow_plan_place_t place)
{
    tow_plan_actions_t *list = &it->schedule.devices[place.device];
    memmove(list->items + place.index, list->items + place.index + 1,
            (list->count - place.index - 1) * sizeof(list->items[0]));
    list->count--;
}

/* Recomputation is optional, and the only action of a kind makes the whole kind
 * vanish. */
static bool may_be_removed(const tow_test_scenario_t *it,
                           tow_plan_action_t action)
{
    if (action.kind == TOW_PLAN_RECOMPUTE) return true;
    return it->schedule.shape.stage_count == 1 &&
           !tow_plan_action_has_microbatch(action.kind);
}

static void check_removed(tow_test_scenario_t *it)
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
    tow_test_for_all(check_removed);
}

static void check_doubled(tow_test_scenario_t *it)
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
    tow_test_for_all(check_doubled);
}

static void check_misplaced(tow_test_scenario_t *it)
{
    const uint32_t devices = it->schedule.shape.device_count;
    if (devices == 1) return;
    const tow_plan_place_t place = draw_place(it);
    const uint32_t other =
        (place.device + 1 + tow_test_below(it, devices - 1)) % devices;
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
    tow_test_for_all(check_misplaced);
}

/* Whether actions in the order of a unit-time walk all find what they need: an
 * independent, slow check by repeated search. */
static bool is_before(const tow_test_scenario_t *it,
                      tow_plan_action_kind_t kind, uint32_t stage,
                      uint32_t microbatch, const size_t *done)
{
    const uint32_t device = it->schedule.stage_devices[stage];
    for (size_t i = 0; i < done[device]; i++) {
        const tow_plan_action_t *a = &it->schedule.devices[device].items[i];
        if (a->kind == kind && a->stage == stage && a->microbatch == microbatch)
            return true;
    }
    return false;
}

static bool has_backward(const tow_test_scenario_t *it, uint32_t s, uint32_t m,
                         const size_t *done)
{
    return is_before(it, TOW_PLAN_BACKWARD, s, m, done) ||
           is_before(it, TOW_PLAN_INPUT_GRAD, s, m, done);
}

static bool can_run(const tow_test_scenario_t *it, tow_plan_action_t a,
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

static bool runs_to_the_end(const tow_test_scenario_t *it)
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
static void check_swapped(tow_test_scenario_t *it)
{
    tow_plan_schedule_deinit(&it->schedule);
    it->options.extras = (tow_plan_extras_t){0};
    tow_test_must(tow_plan_generate(&it->options, &it->schedule));
    const tow_plan_place_t place = draw_place(it);
    tow_plan_actions_t *list = &it->schedule.devices[place.device];
    const uint32_t other = tow_test_below(it, (uint32_t)list->count);
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
    tow_test_for_all(check_swapped);
}

/* -- Text ------------------------------------------------------------------ */

static void check_text(tow_test_scenario_t *it)
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
    tow_test_for_all(check_text);
}

TOW_TEST_MAIN(
    cmocka_unit_test(nothing_starts_early_or_late),
    cmocka_unit_test(no_step_is_shorter_than_its_work_or_its_longest_path),
    cmocka_unit_test(checker_and_simulator_agree_on_memory),
    cmocka_unit_test(schedules_with_removed_work_are_refused),
    cmocka_unit_test(schedules_with_doubled_work_are_refused),
    cmocka_unit_test(schedules_with_misplaced_work_are_refused),
    cmocka_unit_test(the_checker_accepts_exactly_what_runs),
    cmocka_unit_test(printed_schedules_parse_to_themselves))
