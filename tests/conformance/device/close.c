#include "fixture.h"

#define RUN_COUNT 20

static void close_waits_for_what_is_under_way(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    static run_probe_t runs[RUN_COUNT];
    for (int i = 0; i < RUN_COUNT; i++) {
        runs[i] = (run_probe_t){.arguments = {input, input}};
        expect_ok(probe_run(&runs[i], executable, 2));
        tow_buffer_release(runs[i].results[0]);
    }
    tow_buffer_release(input);
    tow_executable_release(executable);
    fixture_close(driver);
    for (int i = 0; i < RUN_COUNT; i++) {
        assert_int_equal(runs[i].outcome.done_count, 1);
        tow_status_release(runs[i].outcome.status);
    }
}

static void close_refuses_new_work(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    fixture_begin_close(driver);
    const float values[4] = {0};
    upload_probe_t upload = {0};
    expect_refusal(probe_upload(&upload, driver, 0, "f32[4]", values),
                   TOW_FAILED_PRECONDITION, "clos");
    run_probe_t run = {.arguments = {input, input}};
    expect_refusal(probe_run(&run, executable, 2), TOW_FAILED_PRECONDITION,
                   "clos");
    compile_probe_t compile;
    expect_refusal(
        probe_compile(&compile, driver, subject.programs[PROGRAM_ADD], 1),
        TOW_FAILED_PRECONDITION, "clos");
    /* And waits until the owner has released its objects. */
    fixture_settle();
    assert_false(fixture_is_closed());
    tow_buffer_release(input);
    tow_executable_release(executable);
    assert_false(fixture_is_closed());
    fixture_end_close();
}

static void driver_can_be_opened_again(void **state)
{
    for (int i = 0; i < 3; i++) {
        tow_driver_t *driver = fixture_open(1);
        tow_buffer_t *buffer = uploaded(driver, 0, (float[]){4, 4, 4, 4});
        expect_values(buffer, 4);
        tow_buffer_release(buffer);
        fixture_close(driver);
    }
}

FIXTURE_SUITE(close_suite, FIXTURE_CASE(close_waits_for_what_is_under_way),
              FIXTURE_CASE(close_refuses_new_work),
              FIXTURE_CASE(driver_can_be_opened_again));
