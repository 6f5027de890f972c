/* Device time: how long runs keep devices, and when they start, also if timers
 * fire late. */
#include "device/sim/device_testing_impl.h"

#define LAUNCH_NS 5
/* Among two: 2 * 1000 / 2 bytes and 2 steps of 100 ns. */
#define REDUCE_NS (1000 + 200)

static const char pause_100[] = "towpath-cost 1\n"
                                "name pause\n"
                                "result u8[16]\n"
                                "duration 100\n";
static const char copy_100[] = "towpath-cost 1\n"
                               "name copy\n"
                               "argument u8[16]\n"
                               "result u8[16]\n"
                               "duration 100\n";
static const char reduce[] = "towpath-cost 1\n"
                             "name reduce\n"
                             "duration 100\n"
                             "all_reduce 1000\n"
                             "duration 10\n";
static const char too_large[] = "towpath-cost 1\n"
                                "name large\n"
                                "temporary 2000000\n"
                                "duration 100\n";

static const int64_t device_0[] = {0};
static const int64_t both[] = {0, 1};

static void open_hosts(fixture_t *fixture, size_t host_count)
{
    fixture_open(fixture, (fixture_options_t){.host_count = host_count,
                                              .device_count = 2 / host_count});
}

static void expect_time(const launch_t *launch, uint64_t busy_ns,
                        uint64_t wait_ns, uint64_t longest_ns)
{
    assert_true(launch->is_done);
    assert_int_equal(launch->run.time.busy_ns, busy_ns);
    assert_int_equal(launch->run.time.wait_ns, wait_ns);
    assert_int_equal(launch->run.time.longest_ns, longest_ns);
}

static void expect_counts(fixture_t *fixture, size_t host, uint64_t busy_ns,
                          uint64_t wait_ns)
{
    const tow_sim_device_counts_t counts =
        tow_sim_device_counts(driver_at(fixture, host));
    assert_int_equal(counts.busy_ns, busy_ns);
    assert_int_equal(counts.wait_ns, wait_ns);
}

static void abort_on(fixture_t *fixture, size_t host, uint64_t gang_id)
{
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "given up");
    tow_driver_abort(driver_at(fixture, host), gang_id, cause);
    tow_status_release(cause);
    run_idle(fixture);
}

/* -- Times that runs report ------------------------------------------------ */

static void run_reports_its_own_duration(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launches[2];
    open_hosts(&fixture, 1);
    tow_executable_t *program =
        compile_for(&fixture, 0, pause_100, device_0, 1);
    for (size_t i = 0; i < 2; i++)
        launch_gang(&launches[i], program, i);
    run_idle(&fixture);
    for (size_t i = 0; i < 2; i++) {
        expect_time(&launches[i], 105, 0, 105); /* Not the time in the queue. */
        launch_end(&launches[i]);
    }
    expect_counts(&fixture, 0, 210, 0);
    fixture_close(&fixture);
}

static void run_sums_its_devices(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    open_hosts(&fixture, 1);
    launch_gang(&launch, compile_for(&fixture, 0, reduce, both, 2), 1);
    run_idle(&fixture);
    const uint64_t each_ns = LAUNCH_NS + 100 + REDUCE_NS + 10;
    expect_time(&launch, 2 * each_ns, 0, each_ns);
    fixture_close(&fixture);
}

static void member_that_arrives_early_waits(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t early, late;
    open_hosts(&fixture, 2);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce, both, 2);
    const int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&early, on_0, 7);
    run_until(&fixture, start_ns + 5000);
    launch_gang(&late, on_1, 7);
    run_idle(&fixture);
    const uint64_t busy_ns = LAUNCH_NS + 100 + REDUCE_NS + 10;
    expect_time(&early, busy_ns, 5000, busy_ns + 5000);
    expect_time(&late, busy_ns, 0, busy_ns);
    expect_counts(&fixture, 0, busy_ns, 5000);
    fixture_close(&fixture);
}

static void run_that_never_started_reports_nothing(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    open_hosts(&fixture, 1);
    launch_gang(&launch, compile_for(&fixture, 0, too_large, device_0, 1), 1);
    run_idle(&fixture);
    expect_time(&launch, 0, 0, 0);
    expect_error(launch.status, TOW_RESOURCE_EXHAUSTED, "temporary memory");
    fixture_close(&fixture);
}

/* -- Aborts ---------------------------------------------------------------- */

static void aborted_run_reports_the_time_until_then(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t first, second;
    open_hosts(&fixture, 1);
    tow_executable_t *program =
        compile_for(&fixture, 0, pause_100, device_0, 1);
    const int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&first, program, 1);
    launch_gang(&second, program, 2);
    run_until(&fixture, start_ns + 30);
    abort_on(&fixture, 0, 1);
    expect_time(&first, 30, 0, 30);
    expect_done_at(&second, start_ns + 30 + 105);
    launch_end(&first);
    launch_end(&second);
    fixture_close(&fixture);
}

static void member_aborted_before_the_last_arrives_has_only_waited(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    open_hosts(&fixture, 2);
    const int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&launch, compile_for(&fixture, 0, reduce, both, 2), 7);
    run_until(&fixture, start_ns + 1000);
    abort_on(&fixture, 0, 7);
    expect_time(&launch, 105, 895, 1000);
    launch_end(&launch);
    fixture_close(&fixture);
}

static void member_aborted_in_a_collective_reports_both_parts(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t early, late;
    open_hosts(&fixture, 2);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce, both, 2);
    const int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&early, on_0, 7);
    run_until(&fixture, start_ns + 200);
    launch_gang(&late, on_1, 7);
    run_until(&fixture, start_ns + 200 + 105 + 300);
    abort_on(&fixture, 0, 7);
    abort_on(&fixture, 1, 7);
    expect_time(&early, 105 + 300, 200, 605);
    launch_end(&early);
    launch_end(&late);
    fixture_close(&fixture);
}

/* -- Late timers ----------------------------------------------------------- */

/* While the process is paused no timer fires; the devices' own time goes on. */
static void late_timers_do_not_add_up(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launches[3];
    open_hosts(&fixture, 1);
    tow_executable_t *first = compile_for(&fixture, 0, pause_100, device_0, 1);
    tow_executable_t *next = compile_for(&fixture, 0, copy_100, device_0, 1);
    const int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&launches[0], first, 0);
    for (size_t i = 1; i < 3; i++)
        must(try_launch(&launches[i], next, i, &launches[i - 1].results[0], 1));
    run_until(&fixture, start_ns + 50);
    tow_sim_pause(fixture.hosts[0].node);
    run_until(&fixture, start_ns + 250);
    tow_sim_resume(fixture.hosts[0].node);
    run_idle(&fixture);
    expect_done_at(&launches[2], start_ns + 3 * 105);
    for (size_t i = 0; i < 3; i++) {
        expect_time(&launches[i], 105, 0, 105);
        launch_end(&launches[i]);
    }
    fixture_close(&fixture);
}

static void collective_starts_when_its_last_member_was_due(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    open_hosts(&fixture, 2);
    tow_executable_t *on_0 = compile_for(&fixture, 0, reduce, both, 2);
    tow_executable_t *on_1 = compile_for(&fixture, 1, reduce, both, 2);
    const int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&a, on_0, 7);
    launch_gang(&b, on_1, 7);
    run_until(&fixture, start_ns + 50);
    tow_sim_pause(fixture.hosts[0].node);
    run_until(&fixture, start_ns + 500);
    tow_sim_resume(fixture.hosts[0].node);
    run_idle(&fixture);
    const uint64_t busy_ns = LAUNCH_NS + 100 + REDUCE_NS + 10;
    expect_done_at(&a, start_ns + (int64_t)busy_ns);
    expect_done_at(&b, start_ns + (int64_t)busy_ns);
    expect_time(&a, busy_ns, 0, busy_ns);
    expect_time(&b, busy_ns, 0, busy_ns);
    fixture_close(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(run_reports_its_own_duration),
    cmocka_unit_test(run_sums_its_devices),
    cmocka_unit_test(member_that_arrives_early_waits),
    cmocka_unit_test(run_that_never_started_reports_nothing),
    cmocka_unit_test(aborted_run_reports_the_time_until_then),
    cmocka_unit_test(member_aborted_before_the_last_arrives_has_only_waited),
    cmocka_unit_test(member_aborted_in_a_collective_reports_both_parts),
    cmocka_unit_test(late_timers_do_not_add_up),
    cmocka_unit_test(collective_starts_when_its_last_member_was_due))
