/* Collectives between hosts: rendezvous, waiting, deadlock, abort, crash. */
#include "device/sim/device_testing_impl.h"

static const char reduce[] = "towpath-cost 1\n"
                             "name reduce\n"
                             "argument u8[8]\n"
                             "result u8[8]\n"
                             "all_reduce 1000\n";
static const char reduce_alone[] = "towpath-cost 1\n"
                                   "name reduce\n"
                                   "all_reduce 1000\n";

/* Among two: 2 * 1000 / 2 bytes and 2 steps of 100 ns. */
#define LAUNCH_NS 5
#define REDUCE_NS (1000 + 200)

static const int64_t both[] = {0, 1};

static void open_two(fixture_t *fixture)
{
    fixture_open(fixture,
                 (fixture_options_t){.host_count = 2, .device_count = 1});
}

static void abort_on(fixture_t *fixture, size_t host, uint64_t gang_id)
{
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "given up");
    tow_driver_abort(driver_at(fixture, host), gang_id, cause);
    tow_status_release(cause);
}

static void expect_aborted(launch_t *launch, const char *words)
{
    assert_true(launch->is_done);
    expect_error(launch->status, TOW_ABORTED, words);
    launch->status = TOW_OK;
}

static void a_collective_starts_when_the_last_one_is_there(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    assert_int_equal(on_0->local_device_count, 1);
    assert_int_equal(on_0->signature.replica_count, 2);
    launch_gang(&a, on_0, 7);
    run_until(&fixture, 5000);
    assert_false(a.is_done);
    launch_gang(&b, on_1, 7);
    run_idle(&fixture);
    expect_done_at(&a, 5000 + LAUNCH_NS + REDUCE_NS);
    expect_done_at(&b, 5000 + LAUNCH_NS + REDUCE_NS);
    assert_int_equal(tow_sim_fabric_counts(fixture.fabric).collectives, 1);
    fixture_close(&fixture);
}

static void devices_of_one_host_meet_too(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 1, .device_count = 2});
    tow_executable_t *program = compile_for(&fixture, 0, reduce_alone, both, 2);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&launch, program, 1);
    run_idle(&fixture);
    expect_done_at(&launch, start_ns + LAUNCH_NS + REDUCE_NS);
    fixture_close(&fixture);
}

static void who_waits_can_be_asked(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a;
    tow_sim_stuck_t stuck[2];
    char text[512];
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, stuck, 2), 0);
    launch_gang(&a, on_0, 7);
    run_until(&fixture, 5000);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, stuck, 2), 1);
    assert_int_equal(stuck[0].device_id, 0);
    assert_int_equal(stuck[0].gang_id, 7);
    assert_int_equal(stuck[0].collective, 0);
    assert_int_equal(stuck[0].since_ns, start_ns + LAUNCH_NS);
    assert_int_equal(stuck[0].member_count, 2);
    assert_int_equal(stuck[0].present_count, 1);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, NULL, 0), 1);
    tow_sim_fabric_explain(fixture.fabric, text, sizeof(text));
    assert_non_null(strstr(text, "gang 7, collective 0 (all_reduce): 1 of 2"));
    assert_non_null(strstr(text, "missing: 1\n"));
    assert_int_equal(strlen(tow_sim_fabric_explain(fixture.fabric, text, 10)),
                     9);
    fixture_close(&fixture);
}

static void gangs_in_one_order_run(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a[2], b[2];
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    for (int i = 0; i < 2; i++) {
        launch_gang(&a[i], on_0, 7 + (uint64_t)i);
        launch_gang(&b[i], on_1, 7 + (uint64_t)i);
    }
    run_idle(&fixture);
    assert_true(a[0].is_done && a[1].is_done && b[0].is_done && b[1].is_done);
    assert_int_equal(fixture.deadlock_count, 0);
    fixture_close(&fixture);
}

static void gangs_in_two_orders_deadlock_and_are_named(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a[2], b[2];
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    launch_gang(&a[0], on_0, 7);
    launch_gang(&a[1], on_0, 9);
    launch_gang(&b[0], on_1, 9);
    launch_gang(&b[1], on_1, 7);
    run_idle(&fixture);
    assert_false(a[0].is_done || a[1].is_done || b[0].is_done || b[1].is_done);
    assert_int_equal(fixture.deadlock_count, 1);
    assert_non_null(strstr(fixture.deadlock,
                           "gang 7 (all_reduce, collective 0, "
                           "1 of 2 devices there) waits for "
                           "device 1, which waits in gang 9"));
    assert_non_null(strstr(fixture.deadlock,
                           "gang 9 (all_reduce, collective 0, "
                           "1 of 2 devices there) waits for "
                           "device 0, which waits in gang 7"));
    assert_int_equal(tow_status_code(tow_sim_fabric_deadlock(fixture.fabric)),
                     TOW_FAILED_PRECONDITION);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, NULL, 0), 2);
    /* Aborting one gang everywhere lets the other one run. */
    abort_on(&fixture, 0, 7);
    abort_on(&fixture, 1, 7);
    run_idle(&fixture);
    expect_aborted(&a[0], "device 0, reduce: given up");
    expect_aborted(&b[1], "device 1, reduce: given up");
    assert_true(a[1].is_done && b[0].is_done);
    must(a[1].status);
    must(b[0].status);
    assert_int_equal(fixture.deadlock_count, 1);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, NULL, 0), 0);
    fixture_close(&fixture);
}

static void a_cycle_of_three_gangs_is_found(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launches[6];
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 3, .device_count = 1});
    /* Gang 10 + i is on devices i and i + 1; each device starts with its
     * own. */
    for (size_t i = 0; i < 3; i++) {
        size_t before = (i + 2) % 3;
        int64_t own[] = {(int64_t)i, (int64_t)(i + 1) % 3};
        int64_t other[] = {(int64_t)before, (int64_t)i};
        tow_executable_t *first =
            compile_for(&fixture, i, reduce_alone, own, 2);
        tow_executable_t *second =
            compile_for(&fixture, i, reduce_alone, other, 2);
        launch_gang(&launches[2 * i], first, 10 + i);
        launch_gang(&launches[2 * i + 1], second, 10 + before);
    }
    run_idle(&fixture);
    for (size_t i = 0; i < 6; i++)
        assert_false(launches[i].is_done);
    assert_int_equal(fixture.deadlock_count, 1);
    assert_non_null(strstr(fixture.deadlock, "gang 10 "));
    assert_non_null(strstr(fixture.deadlock, "gang 11 "));
    assert_non_null(strstr(fixture.deadlock, "gang 12 "));
    fixture_close(&fixture);
}

static void one_that_is_ahead_is_no_deadlock(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b, c, d;
    const int64_t front[] = {0, 1}, back[] = {1, 2};
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 3, .device_count = 1});
    tow_executable_t *front_0 =
        compile_for(&fixture, 0, reduce_alone, front, 2);
    tow_executable_t *front_1 =
        compile_for(&fixture, 1, reduce_alone, front, 2);
    tow_executable_t *back_1 = compile_for(&fixture, 1, reduce_alone, back, 2);
    tow_executable_t *back_2 = compile_for(&fixture, 2, reduce_alone, back, 2);
    /* Device 1 waits in gang 1 while gang 2 waits for it. */
    launch_gang(&a, back_2, 2);
    run_until(&fixture, 1000);
    launch_gang(&b, front_1, 1);
    launch_gang(&c, back_1, 2);
    run_until(&fixture, 2000);
    launch_gang(&d, front_0, 1);
    run_idle(&fixture);
    assert_true(a.is_done && b.is_done && c.is_done && d.is_done);
    assert_int_equal(fixture.deadlock_count, 0);
    fixture_close(&fixture);
}

static void an_abort_frees_the_local_members_only(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b, later;
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    launch_gang(&a, on_0, 7);
    launch_gang(&b, on_1, 7);
    run_until(&fixture,
              tow_sim_now_ns(fixture.sim) + 500); /* In mid-collective. */
    assert_int_equal(tow_sim_fabric_counts(fixture.fabric).collectives, 1);
    abort_on(&fixture, 0, 7);
    run_idle(&fixture);
    expect_aborted(&a, "given up");
    assert_false(b.is_done);
    /* The free device continues with the next gang, which is not a deadlock:
     * the other will be aborted. */
    launch_gang(&later, on_0, 8);
    run_idle(&fixture);
    assert_int_equal(fixture.deadlock_count, 0);
    abort_on(&fixture, 1, 7);
    run_idle(&fixture);
    expect_aborted(&b, "given up");
    launch_gang(&b, on_1, 8);
    run_idle(&fixture);
    assert_true(later.is_done && b.is_done);
    must(later.status);
    fixture_close(&fixture);
}

static void a_member_that_comes_after_the_abort_of_others_waits(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b, next;
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    launch_gang(&a, on_0, 7);
    run_idle(&fixture);
    abort_on(&fixture, 0, 7);
    run_idle(&fixture);
    expect_aborted(&a, "given up");
    launch_gang(&b, on_1, 7);
    launch_gang(&next, on_0, 8);
    run_idle(&fixture);
    assert_false(b.is_done || next.is_done);
    assert_int_equal(fixture.deadlock_count, 0);
    abort_on(&fixture, 1, 7);
    run_idle(&fixture);
    expect_aborted(&b, "given up");
    fixture_close(&fixture);
}

static void the_death_of_a_node_blocks_the_others_until_aborted(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b, again;
    char text[256];
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    launch_gang(&a, on_0, 7);
    launch_gang(&b, on_1, 7);
    run_until(&fixture,
              tow_sim_now_ns(fixture.sim) + 500); /* In mid-collective. */
    tow_sim_crash(fixture.hosts[1].node);
    run_idle(&fixture);
    assert_false(a.is_done || b.is_done);
    tow_sim_fabric_explain(fixture.fabric, text, sizeof(text));
    assert_non_null(strstr(text, "missing: 1 (not connected)"));
    abort_on(&fixture, 0, 7);
    run_idle(&fixture);
    expect_aborted(&a, "given up");
    /* The host restarts, with the same device. */
    tow_sim_restart(fixture.hosts[1].node);
    run_idle(&fixture);
    on_1 = compile_for(&fixture, 1, reduce_alone, both, 2);
    launch_gang(&again, on_0, 8);
    launch_gang(&b, on_1, 8);
    run_idle(&fixture);
    assert_true(again.is_done && b.is_done);
    must(again.status);
    fixture_close(&fixture);
}

static void both_devices_of_a_dying_node_vanish(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    const int64_t all[] = {0, 1, 2, 3};
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 2, .device_count = 2});
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, all, 4);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce_alone, all, 4);
    launch_gang(&a, on_0, 7);
    launch_gang(&b, on_1, 7);
    run_until(&fixture, tow_sim_now_ns(fixture.sim) + 500);
    tow_sim_crash(fixture.hosts[0].node);
    run_idle(&fixture);
    assert_false(b.is_done);
    assert_int_equal(tow_sim_fabric_counts(fixture.fabric).devices, 2);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, NULL, 0), 2);
    fixture_close(&fixture);
}

static void sub_gangs_do_not_wait_for_each_other(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    const int64_t all[] = {0, 1, 2, 3};
    /* Groups {0,2} and {1,3}, then all. */
    const char *text = "towpath-cost 1\nname grouped\n"
                       "all_gather 1000 group 2 stride 2\n"
                       "barrier\n";
    tow_sim_stuck_t stuck[4];
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 2, .device_count = 2});
    tow_executable_t *on_0 = compile_for(&fixture, 0, text, all, 4);
    tow_executable_t *on_1 = compile_for(&fixture, 1, text, all, 4);
    launch_gang(&a, on_0, 7);
    run_until(&fixture, 1000);
    assert_int_equal(tow_sim_fabric_stuck(fixture.fabric, stuck, 4), 2);
    assert_int_equal(stuck[0].member_count, 2);
    launch_gang(&b, on_1, 7);
    run_idle(&fixture);
    /* 1000 / 2 bytes and one step; then two steps. */
    expect_done_at(&a, 1000 + LAUNCH_NS + 600 + 200);
    expect_done_at(&b, 1000 + LAUNCH_NS + 600 + 200);
    assert_int_equal(tow_sim_fabric_counts(fixture.fabric).collectives, 3);
    fixture_close(&fixture);
}

static void members_that_disagree_are_told(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    open_two(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce_alone, both, 2);
    tow_executable_t *on_1 = compile_for(
        &fixture, 1, "towpath-cost 1\nname gather\nduration 1\nall_gather 8\n",
        both, 2);
    launch_gang(&a, on_0, 7);
    launch_gang(&b, on_1, 7);
    run_idle(&fixture);
    assert_true(b.is_done);
    assert_false(a.is_done);
    expect_error(b.status, TOW_FAILED_PRECONDITION,
                 "device 1 arrives for all_gather of 8 bytes among 2, and 1 "
                 "others wait for all_reduce of 1000 bytes");
    fixture_close(&fixture);
}

static void a_device_id_is_there_once(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_driver_t *second;
    open_two(&fixture);
    tow_sim_device_options_t options = fixture.hosts[0].options;
    options.device_count = 2;
    options.first_id = -1;
    tow_env_t *env = tow_sim_node_env(fixture.hosts[0].node);
    expect_error(tow_sim_device_driver_create(env, &options, &second),
                 TOW_ALREADY_EXISTS, "has a device 0 already");
    assert_int_equal(tow_sim_fabric_counts(fixture.fabric).devices, 2);
    fixture_close(&fixture);
}

/* -- Values ---------------------------------------------------------------- */

static void results_depend_on_all_members(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    uint64_t seen[3];
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t mine = 1, theirs = i == 1 ? 3 : 2, result_0, result_1;
        open_two(&fixture);
        tow_executable_t *on_0 = compile_for(&fixture, 0, reduce, both, 2);
        tow_executable_t *on_1 = compile_for(&fixture, 1, reduce, both, 2);
        tow_buffer_t *input_0 = upload_now(&fixture, 0, 0, &mine, 8);
        tow_buffer_t *input_1 = upload_now(&fixture, 1, 0, &theirs, 8);
        must(try_launch(&a, on_0, 1, &input_0, 1));
        must(try_launch(&b, on_1, 1, &input_1, 1));
        run_idle(&fixture);
        download_now(&fixture, a.results[0], &result_0, 8);
        download_now(&fixture, b.results[0], &result_1, 8);
        assert_int_equal(result_0, result_1); /* It was all reduced. */
        seen[i] = result_0;
        fixture_close(&fixture);
    }
    assert_int_equal(seen[0], seen[2]);
    assert_int_not_equal(seen[0], seen[1]);
}

/* -- Random orders ---------------------------------------------------------- */

#define CHANCE_HOSTS 6
#define CHANCE_GANGS 5
#define CHANCE_SEEDS 300

/* The gangs, and the order in which each device sees them. */
typedef struct plan {
    int64_t members[CHANCE_GANGS][CHANCE_HOSTS];
    size_t member_counts[CHANCE_GANGS];
    size_t orders[CHANCE_HOSTS][CHANCE_GANGS];
} plan_t;

static void shuffle(tow_random_t *random, size_t *items, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)tow_random_below(random, i);
        size_t item = items[i - 1];
        items[i - 1] = items[other];
        items[other] = item;
    }
}

static plan_t plan_by_chance(uint64_t seed, bool in_one_order)
{
    plan_t plan = {.member_counts = {0}};
    tow_random_t random;
    tow_random_init(&random, seed);
    for (size_t gang = 0; gang < CHANCE_GANGS; gang++) {
        size_t hosts[CHANCE_HOSTS] = {0, 1, 2, 3, 4, 5};
        shuffle(&random, hosts, CHANCE_HOSTS);
        plan.member_counts[gang] = 1 + (size_t)tow_random_below(&random, 4);
        for (size_t i = 0; i < plan.member_counts[gang]; i++)
            plan.members[gang][i] = (int64_t)hosts[i];
    }
    for (size_t host = 0; host < CHANCE_HOSTS; host++) {
        for (size_t i = 0; i < CHANCE_GANGS; i++)
            plan.orders[host][i] = i;
        if (!in_one_order) shuffle(&random, plan.orders[host], CHANCE_GANGS);
    }
    return plan;
}

static bool is_member(const plan_t *plan, size_t gang, size_t host)
{
    for (size_t i = 0; i < plan->member_counts[gang]; i++)
        if (plan->members[gang][i] == (int64_t)host) return true;
    return false;
}

/* Starts all, in each host's order, and runs until idle. Returns how many did
 * not finish. */
static size_t play(fixture_t *fixture, const plan_t *plan)
{
    static launch_t launches[CHANCE_HOSTS][CHANCE_GANGS];
    size_t launched = 0, finished = 0;
    for (size_t host = 0; host < CHANCE_HOSTS; host++)
        for (size_t i = 0; i < CHANCE_GANGS; i++) {
            size_t gang = plan->orders[host][i];
            launches[host][i].is_done = false;
            if (!is_member(plan, gang, host)) continue;
            tow_executable_t *program =
                compile_for(fixture, host, reduce_alone, plan->members[gang],
                            plan->member_counts[gang]);
            launch_gang(&launches[host][i], program, gang);
            launched++;
        }
    run_idle(fixture);
    for (size_t host = 0; host < CHANCE_HOSTS; host++)
        for (size_t i = 0; i < CHANCE_GANGS; i++)
            finished += launches[host][i].is_done;
    return launched - finished;
}

static size_t play_seed(uint64_t seed, bool in_one_order, int *out_deadlocks)
{
    fixture_t fixture;
    plan_t plan = plan_by_chance(seed, in_one_order);
    fixture_open(&fixture, (fixture_options_t){.host_count = CHANCE_HOSTS,
                                               .device_count = 1,
                                               .seed = seed});
    size_t stuck = play(&fixture, &plan);
    *out_deadlocks = fixture.deadlock_count;
    fixture_close(&fixture);
    return stuck;
}

/* Only the order is random: a stuck device is in a deadlock. */
static void all_that_gets_stuck_is_reported_and_nothing_else(void **state)
{
    (void)state;
    int deadlocks;
    size_t stuck_seeds = 0;
    for (uint64_t seed = 0; seed < CHANCE_SEEDS; seed++) {
        size_t stuck = play_seed(seed, false, &deadlocks);
        if ((stuck > 0) != (deadlocks > 0))
            fail_msg("seed %d: %zu runs are stuck, %d deadlocks reported",
                     (int)seed, stuck, deadlocks);
        stuck_seeds += stuck > 0;
    }
    assert_in_range(stuck_seeds, CHANCE_SEEDS / 10, CHANCE_SEEDS * 9 / 10);
}

static void gangs_in_one_order_never_get_stuck(void **state)
{
    (void)state;
    int deadlocks;
    for (uint64_t seed = 0; seed < CHANCE_SEEDS; seed++) {
        assert_int_equal(play_seed(seed, true, &deadlocks), 0);
        assert_int_equal(deadlocks, 0);
    }
}

/* -- Determinism ----------------------------------------------------------- */

static uint64_t digest_of(uint64_t seed)
{
    fixture_t fixture;
    launch_t launches[2][20];
    fixture_open(&fixture, (fixture_options_t){.host_count = 2,
                                               .device_count = 1,
                                               .seed = seed,
                                               .jitter_ppm = 200000});
    const char *text = "towpath-cost 1\nname step\n"
                       "compute flops 1000 f32\nall_reduce 1000\n"
                       "compute flops 500 f32\nbarrier\n";
    tow_executable_t *programs[] = {compile_for(&fixture, 0, text, both, 2),
                                    compile_for(&fixture, 1, text, both, 2)};
    for (uint64_t i = 0; i < 20; i++)
        for (int host = 0; host < 2; host++)
            launch_gang(&launches[host][i], programs[host], i);
    run_idle(&fixture);
    assert_true(launches[0][19].is_done && launches[1][19].is_done);
    uint64_t digest = tow_sim_digest(fixture.sim);
    fixture_close(&fixture);
    return digest;
}

static void the_same_seed_gives_the_same_digest(void **state)
{
    (void)state;
    assert_int_equal(digest_of(1), digest_of(1));
    assert_int_not_equal(digest_of(1), digest_of(2));
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_collective_starts_when_the_last_one_is_there),
    cmocka_unit_test(devices_of_one_host_meet_too),
    cmocka_unit_test(who_waits_can_be_asked),
    cmocka_unit_test(gangs_in_one_order_run),
    cmocka_unit_test(gangs_in_two_orders_deadlock_and_are_named),
    cmocka_unit_test(a_cycle_of_three_gangs_is_found),
    cmocka_unit_test(one_that_is_ahead_is_no_deadlock),
    cmocka_unit_test(an_abort_frees_the_local_members_only),
    cmocka_unit_test(a_member_that_comes_after_the_abort_of_others_waits),
    cmocka_unit_test(the_death_of_a_node_blocks_the_others_until_aborted),
    cmocka_unit_test(both_devices_of_a_dying_node_vanish),
    cmocka_unit_test(sub_gangs_do_not_wait_for_each_other),
    cmocka_unit_test(members_that_disagree_are_told),
    cmocka_unit_test(a_device_id_is_there_once),
    cmocka_unit_test(results_depend_on_all_members),
    cmocka_unit_test(all_that_gets_stuck_is_reported_and_nothing_else),
    cmocka_unit_test(gangs_in_one_order_never_get_stuck),
    cmocka_unit_test(the_same_seed_gives_the_same_digest))
