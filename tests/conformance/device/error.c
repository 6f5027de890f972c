/* What fails, and what then depends on it. */
#include <string.h>

#include "world.h"

static void run_that_fails_poisons_what_depends_on_it(void **state)
{
    world_require(PROGRAM_FAIL);
    tow_driver_t *driver = world_open_small();
    tow_executable_t *fails = compiled(driver, PROGRAM_FAIL);
    tow_executable_t *after = compiled(driver, PROGRAM_AFTER);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    expect_ok(probe_run(&first, fails, 1));
    run_probe_t second = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&second, after, 1));
    float values[4];
    download_probe_t download;
    expect_ok(
        probe_download(&download, second.results[0], values, sizeof(values)));

    WORLD_UNTIL(first.outcome.done_count > 0);
    tow_status_t cause = first.outcome.status;
    assert_non_null(cause);
    WORLD_UNTIL(second.outcome.done_count > 0 &&
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

    /* Also what comes when all of that is known. */
    run_probe_t late = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&late, after, 1));
    WORLD_UNTIL(late.outcome.done_count > 0);
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
    world_close(driver);
}

static void run_that_fails_leaves_the_device_usable(void **state)
{
    world_require(PROGRAM_FAIL);
    tow_driver_t *driver = world_open_small();
    tow_executable_t *fails = compiled(driver, PROGRAM_FAIL);
    tow_executable_t *adds = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    run_probe_t second = {.arguments = {input, input}};
    expect_ok(probe_run(&first, fails, 1));
    expect_ok(probe_run(&second, adds, 2));
    WORLD_UNTIL(first.outcome.done_count > 0);
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
    world_close(driver);
}

WORLD_SUITE(error_suite, WORLD_CASE(run_that_fails_poisons_what_depends_on_it),
            WORLD_CASE(run_that_fails_leaves_the_device_usable));
