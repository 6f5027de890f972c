/* Device time. All times are compared on one clock, and the only lower bounds
 * are delays that a test makes itself. */
#include "fixture.h"

#include <time.h>

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The turn in which a run is enqueued began then; the clock stands still. */
static int64_t turn_ns(void)
{
    return tow_env_now_ns(fixture_env());
}

static uint64_t kept_ns(const run_probe_t *run)
{
    return run->run.time.busy_ns + run->run.time.wait_ns;
}

static void expect_at_most(uint64_t sum_ns, int64_t since_ns)
{
    const int64_t span_ns = clock_ns() - since_ns;
    if (sum_ns > (uint64_t)span_ns)
        fail_msg("%llu ns of device time in %lld ns",
                 (unsigned long long)sum_ns, (long long)span_ns);
}

static void run_reports_the_time_that_it_kept_its_device(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {one, one}};
    run.run.time.busy_ns = 12345; /* The driver's to write. */
    const int64_t since_ns = turn_ns();
    expect_ok(probe_run(&run, executable, 2));
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_at_most(kept_ns(&run), since_ns);
    assert_int_equal(run.run.time.longest_ns, kept_ns(&run));
    if (subject.add_ns > 0)
        assert_int_equal(run.run.time.busy_ns, subject.add_ns);
    else
        assert_true(run.run.time.busy_ns > 0);
    assert_int_equal(run.run.time.wait_ns, 0);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

#define CHAIN_COUNT 50

/* Time in a queue, and time in which inputs are awaited, is no run's. */
static void times_of_runs_on_a_device_do_not_overlap(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    static run_probe_t runs[CHAIN_COUNT];
    const int64_t since_ns = turn_ns();
    for (int i = 0; i < CHAIN_COUNT; i++) {
        tow_buffer_t *before = i % 2 == 0 ? one : runs[i - 1].results[0];
        runs[i] = (run_probe_t){.arguments = {before, one}};
        expect_ok(probe_run(&runs[i], executable, 2));
    }
    uint64_t sum_ns = 0;
    for (int i = 0; i < CHAIN_COUNT; i++) {
        outcome_expect(&runs[i].outcome, TOW_CODE_OK);
        sum_ns += kept_ns(&runs[i]);
        tow_buffer_release(runs[i].results[0]);
    }
    expect_at_most(sum_ns, since_ns);
    if (subject.add_ns > 0)
        assert_int_equal(sum_ns, CHAIN_COUNT * subject.add_ns);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

#define DEVICE_COUNT 3

static void time_of_a_gang_is_the_sum_over_its_devices(void **state)
{
    tow_driver_t *driver = fixture_open(DEVICE_COUNT);
    tow_executable_t *executable =
        compiled_for(driver, PROGRAM_ADD, DEVICE_COUNT);
    run_probe_t run = {0};
    for (size_t i = 0; i < 2 * DEVICE_COUNT; i++)
        run.arguments[i] = uploaded(driver, i / 2, (float[]){1, 1, 1, 1});
    const int64_t since_ns = turn_ns();
    expect_ok(probe_run(&run, executable, 2));
    outcome_expect(&run.outcome, TOW_CODE_OK);
    const uint64_t longest_ns = run.run.time.longest_ns;
    expect_at_most(longest_ns, since_ns);
    assert_true(longest_ns <= kept_ns(&run));
    assert_true(kept_ns(&run) <= DEVICE_COUNT * longest_ns);
    if (subject.add_ns > 0)
        assert_int_equal(run.run.time.busy_ns, DEVICE_COUNT * subject.add_ns);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        tow_buffer_release(run.results[d]);
    for (size_t i = 0; i < 2 * DEVICE_COUNT; i++)
        tow_buffer_release(run.arguments[i]);
    tow_executable_release(executable);
    fixture_close(driver);
}

#define DELAY_NS 2000000

static void aborted_run_reports_the_time_until_then(void **state)
{
    fixture_require(PROGRAM_LONG);
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_LONG);
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {one}};
    const int64_t since_ns = turn_ns();
    expect_ok(probe_run(&run, executable, 1));
    const int64_t enqueued_ns = clock_ns();
    FIXTURE_UNTIL(clock_ns() >= enqueued_ns + DELAY_NS);
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "given up");
    tow_driver_abort(driver, run.run.gang_id, cause);
    tow_status_release(cause);
    outcome_expect(&run.outcome, TOW_ABORTED);
    expect_at_most(kept_ns(&run), since_ns);
    assert_true(kept_ns(&run) >= DELAY_NS);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void run_that_fails_reports_no_more_than_it_took(void **state)
{
    fixture_require(PROGRAM_FAIL);
    tow_driver_t *driver = fixture_open_small();
    tow_executable_t *fails = compiled(driver, PROGRAM_FAIL);
    tow_executable_t *after = compiled(driver, PROGRAM_AFTER);
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {one}};
    const int64_t since_ns = turn_ns();
    tow_status_t status = probe_run(&first, fails, 1);
    if (status != TOW_OK) { /* The driver sees at once that it does not fit. */
        tow_status_release(status);
    } else {
        run_probe_t second = {.arguments = {first.results[0]}};
        expect_ok(probe_run(&second, after, 1));
        FIXTURE_UNTIL(first.outcome.done_count + second.outcome.done_count ==
                      2);
        expect_at_most(kept_ns(&first) + kept_ns(&second), since_ns);
        tow_status_release(first.outcome.status);
        tow_status_release(second.outcome.status);
        tow_buffer_release(first.results[0]);
        tow_buffer_release(second.results[0]);
    }
    tow_buffer_release(one);
    tow_executable_release(fails);
    tow_executable_release(after);
    fixture_close(driver);
}

FIXTURE_SUITE(time_suite,
              FIXTURE_CASE(run_reports_the_time_that_it_kept_its_device),
              FIXTURE_CASE(times_of_runs_on_a_device_do_not_overlap),
              FIXTURE_CASE(time_of_a_gang_is_the_sum_over_its_devices),
              FIXTURE_CASE(aborted_run_reports_the_time_until_then),
              FIXTURE_CASE(run_that_fails_reports_no_more_than_it_took));
