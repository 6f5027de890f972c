/* Failed operations, and operations that depend on them. */
#include <string.h>

#include "fixture.h"

/* Skips the test on a driver that refuses the run at once. */
static void start_failing(run_probe_t *run, tow_executable_t *fails,
                          tow_executable_t *other)
{
    tow_status_t status = probe_run(run, fails, 1);
    if (tow_status_code(status) != TOW_RESOURCE_EXHAUSTED) {
        expect_ok(status);
        return;
    }
    tow_status_release(status);
    tow_driver_t *driver = fails->driver;
    tow_buffer_release(run->arguments[0]);
    tow_executable_release(fails);
    tow_executable_release(other);
    fixture_close(driver);
    fixture_skip("the driver refuses the call");
}

static void run_that_fails_poisons_what_depends_on_it(void **state)
{
    fixture_require(PROGRAM_FAIL);
    tow_driver_t *driver = fixture_open_small();
    tow_executable_t *fails = compiled(driver, PROGRAM_FAIL);
    tow_executable_t *after = compiled(driver, PROGRAM_AFTER);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    start_failing(&first, fails, after);
    run_probe_t second = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&second, after, 1));
    float values[4];
    download_probe_t download;
    expect_ok(
        probe_download(&download, second.results[0], values, sizeof(values)));

    FIXTURE_UNTIL(first.outcome.done_count > 0);
    tow_status_t cause = first.outcome.status;
    assert_non_null(cause);
    FIXTURE_UNTIL(second.outcome.done_count > 0 &&
                  download.outcome.done_count > 0);
    assert_int_equal(tow_status_code(second.outcome.status),
                     tow_status_code(cause));
    assert_int_equal(tow_status_code(download.outcome.status),
                     tow_status_code(cause));
    assert_int_equal(tow_buffer_state(first.results[0]), TOW_BUFFER_FAILED);
    assert_int_equal(tow_buffer_state(second.results[0]), TOW_BUFFER_FAILED);
    tow_status_t why = tow_buffer_error(second.results[0]);
    assert_string_equal(tow_status_message(why), tow_status_message(cause));
    tow_status_release(why);
    tow_status_release(second.outcome.status);
    tow_status_release(download.outcome.status);

    /* Also runs that are enqueued after the failure is known. */
    run_probe_t late = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&late, after, 1));
    FIXTURE_UNTIL(late.outcome.done_count > 0);
    assert_string_equal(tow_status_message(late.outcome.status),
                        tow_status_message(cause));
    tow_status_release(late.outcome.status);
    assert_int_equal(tow_buffer_state(late.results[0]), TOW_BUFFER_FAILED);
    expect_ok(
        probe_download(&download, late.results[0], values, sizeof(values)));
    outcome_expect(&download.outcome, tow_status_code(cause));

    tow_status_release(cause);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(late.results[0]);
    tow_buffer_release(input);
    tow_executable_release(fails);
    tow_executable_release(after);
    fixture_close(driver);
}

static void run_that_fails_leaves_the_device_usable(void **state)
{
    fixture_require(PROGRAM_FAIL);
    tow_driver_t *driver = fixture_open_small();
    tow_executable_t *fails = compiled(driver, PROGRAM_FAIL);
    tow_executable_t *adds = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    run_probe_t second = {.arguments = {input, input}};
    start_failing(&first, fails, adds);
    expect_ok(probe_run(&second, adds, 2));
    FIXTURE_UNTIL(first.outcome.done_count > 0);
    assert_non_null(first.outcome.status);
    assert_non_null(strstr(tow_status_message(first.outcome.status), "device"));
    tow_status_release(first.outcome.status);
    expect_values(second.results[0], 2);
    outcome_expect(&second.outcome, TOW_CODE_OK);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(input);
    tow_executable_release(fails);
    tow_executable_release(adds);
    fixture_close(driver);
}

static void gang_that_is_aborted_fails_and_what_depends_on_it(void **state)
{
    fixture_require(PROGRAM_LONG);
    tow_driver_t *driver = fixture_open(1);
    assert_true(tow_driver_can_abort(driver));
    tow_executable_t *takes_long = compiled(driver, PROGRAM_LONG);
    tow_executable_t *adds = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    expect_ok(probe_run(&first, takes_long, 1));
    run_probe_t second = {.arguments = {first.results[0], input}};
    expect_ok(probe_run(&second, adds, 2));
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "host 7 is gone");
    tow_driver_abort(driver, first.run.gang_id + 100,
                     cause); /* An id that no run has. */
    fixture_settle();
    assert_int_equal(first.outcome.done_count, 0);
    assert_int_equal(tow_buffer_state(first.results[0]), TOW_BUFFER_PENDING);
    tow_driver_abort(driver, first.run.gang_id, cause);
    tow_status_release(cause);
    FIXTURE_UNTIL(first.outcome.done_count > 0 &&
                  second.outcome.done_count > 0);
    expect_refusal(first.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    expect_refusal(second.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    assert_int_equal(tow_buffer_state(second.results[0]), TOW_BUFFER_FAILED);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(input);
    tow_executable_release(takes_long);
    tow_executable_release(adds);
    fixture_close(driver);
}

FIXTURE_SUITE(error_suite,
              FIXTURE_CASE(run_that_fails_poisons_what_depends_on_it),
              FIXTURE_CASE(gang_that_is_aborted_fails_and_what_depends_on_it),
              FIXTURE_CASE(run_that_fails_leaves_the_device_usable));
