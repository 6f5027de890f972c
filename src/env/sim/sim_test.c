#include "env/sim/chaos_testing_impl.h"
#include "env/sim/fixture_testing_impl.h"

#include <stdlib.h>

#include "base/fault.h"

/* -- Determinism ---------------------------------------------------------- */

static uint64_t digest_of_run(uint64_t seed, int64_t failure_interval_ns,
                              tow_sim_counts_t *out_counts)
{
    tow_sim_chaos_t chaos;
    int64_t live_before = tow_alloc_live_count();
    must(tow_sim_chaos_open(&chaos, seed, failure_interval_ns, NULL));
    must(
        tow_sim_run(chaos.sim, &(tow_sim_run_options_t){.until_ns = 300 * MS}));
    *out_counts = tow_sim_counts(chaos.sim);
    uint64_t digest = tow_sim_digest(chaos.sim);
    tow_sim_destroy(chaos.sim);
    assert_int_equal(tow_alloc_live_count(), live_before);
    return digest;
}

static void the_same_seed_gives_the_same_digest(void **state)
{
    (void)state;
    uint64_t before = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        tow_sim_counts_t counts;
        tow_sim_counts_t again;
        uint64_t digest = digest_of_run(seed, 5 * MS, &counts);
        assert_int_equal(digest, digest_of_run(seed, 5 * MS, &again));
        assert_memory_equal(&counts, &again, sizeof(counts));
        assert_int_not_equal(digest, before);
        before = digest;
    }
}

static void a_chaos_run_covers_every_kind_of_event(void **state)
{
    (void)state;
    tow_sim_counts_t sum = {0};
    for (uint64_t seed = 100; seed < 110; seed++) {
        tow_sim_counts_t counts;
        digest_of_run(seed, 5 * MS, &counts);
        sum.messages_delivered += counts.messages_delivered;
        sum.messages_lost += counts.messages_lost;
        sum.datagrams_delivered += counts.datagrams_delivered;
        sum.datagrams_lost += counts.datagrams_lost;
        sum.writes_completed += counts.writes_completed;
        sum.writes_failed += counts.writes_failed;
        sum.epochs_begun += counts.epochs_begun;
        sum.epochs_broken += counts.epochs_broken;
    }
    assert_true(sum.messages_delivered > 1000 && sum.messages_lost > 10);
    assert_true(sum.datagrams_delivered > 100 && sum.datagrams_lost > 10);
    assert_true(sum.writes_completed > 100 && sum.writes_failed > 10);
    assert_true(sum.epochs_begun > 100 && sum.epochs_broken > 50);
}

/* Computed once with gcc: other compilers, sanitizers and machines must agree,
 * or the simulation is not deterministic. Change it when the model changes. */
#define KNOWN_SEED   20261115
#define KNOWN_DIGEST UINT64_C(0x45d1c80f77984ecf)

static void a_known_seed_gives_its_known_digest(void **state)
{
    (void)state;
    tow_sim_counts_t counts;
    assert_int_equal(digest_of_run(KNOWN_SEED, 5 * MS, &counts), KNOWN_DIGEST);
}

static void the_event_log_of_two_runs_is_the_same(void **state)
{
    (void)state;
    char *texts[2] = {NULL, NULL};
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        FILE *log = open_memstream(&texts[i], &sizes[i]);
        tow_sim_chaos_t chaos;
        must(tow_sim_chaos_open(&chaos, 5, 5 * MS, log));
        run_until(chaos.sim, 50 * MS);
        tow_sim_destroy(chaos.sim);
        fclose(log);
    }
    assert_true(sizes[0] > 1000);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(texts[0], texts[1], sizes[0]);
    assert_non_null(strstr(texts[0], " message node "));
    free(texts[0]);
    free(texts[1]);
}

/* -- Destroying ----------------------------------------------------------- */

static void a_simulation_may_be_destroyed_at_any_time(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        tow_sim_chaos_t chaos;
        int64_t live_before = tow_alloc_live_count();
        must(tow_sim_chaos_open(&chaos, seed, 3 * MS, NULL));
        uint64_t steps = tow_random_below(&chaos.random, 20000);
        while (steps > 0 && tow_sim_step(chaos.sim))
            steps--;
        tow_sim_destroy(chaos.sim);
        assert_int_equal(tow_alloc_live_count(), live_before);
    }
}

static tow_exhaust_result_t run_chaos_for_a_moment(void *context)
{
    (void)context;
    tow_sim_chaos_t chaos;
    tow_status_t status = tow_sim_chaos_open(&chaos, 77, 3 * MS, NULL);
    if (status == TOW_OK)
        status = tow_sim_run(chaos.sim,
                             &(tow_sim_run_options_t){.until_ns = 8 * MS});
    tow_sim_destroy(chaos.sim);
    bool failed = status != TOW_OK;
    if (failed)
        assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(run_chaos_for_a_moment, NULL) > 100);
}

/* -- Running -------------------------------------------------------------- */

static bool reached(void *context)
{
    return *(int *)context >= 3;
}

static void count_call(void *context, tow_sim_t *sim)
{
    (void)sim;
    ++*(int *)context;
}

static void call_at(tow_sim_t *sim, int64_t time_ns, int *count)
{
    must(tow_sim_schedule(sim, time_ns,
                          &(tow_sim_action_t){.kind = TOW_SIM_CALL,
                                              .call = count_call,
                                              .context = count},
                          NULL));
}

static void a_run_stops_at_its_limits(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    int count = 0;
    for (int i = 1; i <= 5; i++)
        call_at(pair.sim, i * MS, &count);
    run_until(pair.sim, MS);
    assert_int_equal(count, 1);
    must(tow_sim_run(pair.sim, &(tow_sim_run_options_t){.event_count_max = 1}));
    assert_int_equal(count, 2);
    must(tow_sim_run(pair.sim, &(tow_sim_run_options_t){.until = reached,
                                                        .context = &count}));
    assert_int_equal(count, 3);
    assert_int_equal(tow_sim_now_ns(pair.sim), 3 * MS);
    run_until(pair.sim, 10 * MS);
    assert_int_equal(count, 5);
    assert_int_equal(tow_sim_now_ns(pair.sim), 10 * MS);
    assert_false(tow_sim_step(pair.sim));
    pair_close(&pair);
}

static void a_condition_that_stays_false_is_an_error(void **state)
{
    (void)state;
    static const tow_sim_run_options_t cases[] = {
        {0}, {.until_ns = 3 * MS}, {.event_count_max = 2}};
    for (size_t i = 0; i < TOW_COUNT_OF(cases); i++) {
        pair_t pair;
        pair_open(&pair, (tow_sim_options_t){0});
        int count = -10;
        for (int k = 1; k <= 5; k++)
            call_at(pair.sim, k * MS, &count);
        tow_sim_run_options_t options = cases[i];
        options.until = reached;
        options.context = &count;
        tow_status_t status = tow_sim_run(pair.sim, &options);
        assert_int_equal(tow_status_code(status), TOW_DEADLINE_EXCEEDED);
        tow_status_release(status);
        pair_close(&pair);
    }
}

typedef struct checker {
    uint64_t seen;
    uint64_t fails_at;
} checker_t;

static void check_invariants(void *context, tow_sim_t *sim)
{
    checker_t *checker = context;
    if (++checker->seen == checker->fails_at)
        tow_sim_fail(sim, TOW_ERROR(TOW_INTERNAL, "two gangs on one device"));
}

static void a_checker_sees_each_event_and_can_fail_the_run(void **state)
{
    (void)state;
    checker_t checker = {.fails_at = 4};
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){.after_event = check_invariants,
                                         .after_event_context = &checker});
    int count = 0;
    for (int i = 1; i <= 5; i++)
        call_at(pair.sim, i, &count);
    for (int again = 0; again < 2; again++) {
        tow_status_t status =
            tow_sim_run(pair.sim, &(tow_sim_run_options_t){0});
        assert_int_equal(tow_status_code(status), TOW_INTERNAL);
        assert_non_null(strstr(tow_status_message(status), "two gangs"));
        tow_status_release(status);
        assert_int_equal(count, 4);
        assert_int_equal(checker.seen, tow_sim_counts(pair.sim).events);
    }
    assert_false(tow_sim_step(pair.sim));
    pair_close(&pair);
}

/* -- Options and actions -------------------------------------------------- */

static void expect_invalid(tow_status_t take_status, const char *words)
{
    assert_int_equal(tow_status_code(take_status), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(take_status), words));
    tow_status_release(take_status);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    tow_sim_t *sim;
    expect_invalid(
        tow_sim_create(&(tow_sim_options_t){.remote_path.loss_ppm = 1000001},
                       &sim),
        "loss_ppm");
    expect_invalid(
        tow_sim_create(&(tow_sim_options_t){.local_path.latency_ns = -1}, &sim),
        "latency");
    expect_invalid(
        tow_sim_create(&(tow_sim_options_t){.fault_chance_ppm = 2000000}, &sim),
        "fault_chance_ppm");
    expect_invalid(
        tow_sim_create(&(tow_sim_options_t){.timeouts.dial_ns = -1}, &sim),
        "timeouts");
    assert_null(sim);
}

static void bad_hosts_are_named(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    tow_sim_host_t *host;
    expect_invalid(
        tow_sim_host_create(
            pair.sim, &(tow_sim_host_options_t){.costs.send_ns = -1}, &host),
        "send_ns");
    expect_invalid(tow_sim_host_create(
                       pair.sim,
                       &(tow_sim_host_options_t){.costs.turn_ns = INT64_MAX},
                       &host),
                   "turn_ns");
    assert_null(host);
    pair_close(&pair);
}

static void a_simulation_ends_at_the_maximal_time(void **state)
{
    (void)state;
    pair_t pair;
    tow_sim_options_t options = {.remote_path.bandwidth_bytes_per_second = 1};
    pair_connect(&pair, options);
    uint8_t bytes[1000] = {0};
    for (int i = 0; i < 10; i++)
        assert_int_equal(
            tow_link_send(pair.dialled.link, 1, bytes, sizeof(bytes)),
            TOW_SEND_OK);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.message_count, 10);
    int count = 0;
    call_at(pair.sim, INT64_MAX, &count);
    tow_status_t status = tow_sim_run(pair.sim, &(tow_sim_run_options_t){0});
    assert_int_equal(tow_status_code(status), TOW_OUT_OF_RANGE);
    tow_status_release(status);
    assert_int_equal(count, 0);
    pair_close(&pair);
}

static void bad_nodes_and_actions_are_named(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    tow_sim_node_t *node;
    expect_invalid(
        tow_sim_node_create(pair.sim, &(tow_sim_node_options_t){0}, &node),
        "name");
    expect_invalid(
        tow_sim_node_create(
            pair.sim, &(tow_sim_node_options_t){.name = "two words"}, &node),
        "letters");
    tow_status_t status = tow_sim_node_create(
        pair.sim, &(tow_sim_node_options_t){.name = "a"}, &node);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
    static const tow_sim_action_kind_t kinds[] = {
        TOW_SIM_CALL,   TOW_SIM_CRASH,     TOW_SIM_RESTART, TOW_SIM_PAUSE,
        TOW_SIM_RESUME, TOW_SIM_PARTITION, TOW_SIM_SET_PATH};
    for (size_t i = 0; i < TOW_COUNT_OF(kinds); i++)
        expect_invalid(tow_sim_schedule(pair.sim, 0,
                                        &(tow_sim_action_t){.kind = kinds[i]},
                                        NULL),
                       "needs");
    pair_close(&pair);
}

static void plan(tow_sim_t *sim, int64_t time_ns, tow_sim_action_t action,
                 uint64_t *out_cut_id)
{
    must(tow_sim_schedule(sim, time_ns, &action, out_cut_id));
}

static void actions_happen_at_their_time(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, (tow_sim_options_t){.timeouts.link_ns = 100 * SECOND});
    tow_sim_host_t *a = tow_sim_node_host(pair.a);
    tow_sim_host_t *b = tow_sim_node_host(pair.b);
    tow_sim_cut_t between = {.a = &a, .a_count = 1, .b = &b, .b_count = 1};
    uint64_t cut_id;
    plan(pair.sim, SECOND,
         (tow_sim_action_t){.kind = TOW_SIM_PAUSE, .node = pair.b}, NULL);
    plan(pair.sim, 2 * SECOND,
         (tow_sim_action_t){.kind = TOW_SIM_RESUME, .node = pair.b}, NULL);
    plan(pair.sim, 3 * SECOND,
         (tow_sim_action_t){.kind = TOW_SIM_PARTITION, .cut = between},
         &cut_id);
    plan(pair.sim, 4 * SECOND,
         (tow_sim_action_t){.kind = TOW_SIM_HEAL, .cut_id = cut_id}, NULL);
    plan(pair.sim, 5 * SECOND,
         (tow_sim_action_t){
             .kind = TOW_SIM_SET_PATH, .cut = between, .path.latency_ns = MS},
         NULL);
    plan(pair.sim, 6 * SECOND,
         (tow_sim_action_t){.kind = TOW_SIM_CRASH, .node = pair.b}, NULL);
    plan(pair.sim, 7 * SECOND,
         (tow_sim_action_t){.kind = TOW_SIM_RESTART, .node = pair.b}, NULL);
    run_until(pair.sim, SECOND);
    assert_true(tow_sim_node_is_paused(pair.b));
    run_until(pair.sim, 2 * SECOND);
    assert_false(tow_sim_node_is_paused(pair.b));
    run_until(pair.sim, 3 * SECOND);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    run_until(pair.sim, 4 * SECOND - 1);
    assert_int_equal(pair.accepted.message_count, 0);
    run_until(pair.sim, 4 * SECOND);
    assert_int_equal(pair.accepted.message_count, 1);
    run_until(pair.sim, 5 * SECOND);
    assert_int_equal(send_counter(&pair.dialled, 1), TOW_SEND_OK);
    run_for(pair.sim, SECOND / 2);
    assert_int_equal(pair.accepted.last_ns, 5 * SECOND + MS);
    run_until(pair.sim, 6 * SECOND);
    assert_false(tow_sim_node_is_alive(pair.b));
    run_until(pair.sim, 7 * SECOND);
    assert_true(tow_sim_node_is_alive(pair.b));
    assert_int_equal(tow_sim_node_incarnation(pair.b), 2);
    pair_close(&pair);
}

static void cuts_are_bounded(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    tow_sim_host_t *a = tow_sim_node_host(pair.a);
    tow_sim_cut_t cut = {.a = &a, .a_count = 1};
    tow_status_t status = TOW_OK;
    int count = 0;
    while ((status = tow_sim_partition(pair.sim, &cut, NULL)) == TOW_OK)
        count++;
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    assert_int_equal(count, 64);
    tow_sim_heal(pair.sim, 3);
    tow_sim_heal(pair.sim, 3);
    must(tow_sim_partition(pair.sim, &cut, NULL));
    pair_close(&pair);
}

/* -- Fault points --------------------------------------------------------- */

typedef struct alarm_once {
    tow_timer_t timer;
    tow_env_t *env;
    int count;
} alarm_once_t;

static int fault_count;

static void reach_a_fault(tow_timer_t *timer)
{
    alarm_once_t *alarm = TOW_CONTAINER_OF(timer, alarm_once_t, timer);
    if (TOW_FAULT("sim_test.rare")) fault_count++;
    if (++alarm->count < 1000)
        tow_env_timer_start(alarm->env, timer, tow_env_now_ns(alarm->env) + 1);
}

static int faults_of_run(uint64_t seed, uint32_t chance_ppm)
{
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){.seed = seed,
                                         .fault_chance_ppm = chance_ppm});
    alarm_once_t alarm = {.timer.fire = reach_a_fault, .env = pair.a_env};
    fault_count = 0;
    tow_env_timer_start(pair.a_env, &alarm.timer, 0);
    run_idle(pair.sim);
    assert_null(tow_fault_current);
    pair_close(&pair);
    return fault_count;
}

static void fault_points_fire_by_the_seed(void **state)
{
    (void)state;
    assert_int_equal(faults_of_run(1, 0), 0);
    assert_int_equal(faults_of_run(1, 1000000), 1000);
    int count = faults_of_run(1, 100000);
    assert_in_range(count, 50, 150);
    assert_int_equal(faults_of_run(1, 100000), count);
    assert_false(TOW_FAULT("sim_test.outside"));
}

TOW_TEST_MAIN(cmocka_unit_test(the_same_seed_gives_the_same_digest),
              cmocka_unit_test(a_chaos_run_covers_every_kind_of_event),
              cmocka_unit_test(a_known_seed_gives_its_known_digest),
              cmocka_unit_test(the_event_log_of_two_runs_is_the_same),
              cmocka_unit_test(a_simulation_may_be_destroyed_at_any_time),
              cmocka_unit_test(every_allocation_may_fail),
              cmocka_unit_test(a_run_stops_at_its_limits),
              cmocka_unit_test(a_condition_that_stays_false_is_an_error),
              cmocka_unit_test(a_checker_sees_each_event_and_can_fail_the_run),
              cmocka_unit_test(bad_options_are_named),
              cmocka_unit_test(bad_hosts_are_named),
              cmocka_unit_test(a_simulation_ends_at_the_maximal_time),
              cmocka_unit_test(bad_nodes_and_actions_are_named),
              cmocka_unit_test(actions_happen_at_their_time),
              cmocka_unit_test(cuts_are_bounded),
              cmocka_unit_test(fault_points_fire_by_the_seed))
