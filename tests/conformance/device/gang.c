/* Runs on several devices of one driver. */
#include "fixture.h"

#define DEVICE_COUNT 3

static void fill_arguments(run_probe_t *run, tow_driver_t *driver)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        const float value = (float)d;
        run->arguments[2 * d] =
            uploaded(driver, d, (float[]){value, value, value, value});
        run->arguments[2 * d + 1] =
            uploaded(driver, d, (float[]){10, 10, 10, 10});
    }
}

static void release_arguments(run_probe_t *run)
{
    for (size_t i = 0; i < 2 * DEVICE_COUNT; i++)
        tow_buffer_release(run->arguments[i]);
}

static void gang_runs_on_all_its_devices(void **state)
{
    tow_driver_t *driver = fixture_open(DEVICE_COUNT);
    tow_executable_t *executable =
        compiled_for(driver, PROGRAM_ADD, DEVICE_COUNT);
    assert_int_equal(executable->local_device_count, DEVICE_COUNT);
    assert_int_equal(executable->signature.replica_count *
                         executable->signature.partition_count,
                     DEVICE_COUNT);
    run_probe_t run = {0};
    fill_arguments(&run, driver);
    expect_ok(probe_run(&run, executable, 2));
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        assert_int_equal(run.results[d]->device, executable->local_devices[d]);
        expect_values(run.results[d], 10 + (float)executable->local_devices[d]);
    }
    outcome_expect(&run.outcome, TOW_CODE_OK);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        tow_buffer_release(run.results[d]);
    release_arguments(&run);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void gang_consumes_on_all_its_devices(void **state)
{
    tow_driver_t *driver = fixture_open(DEVICE_COUNT);
    tow_executable_t *executable =
        compiled_for(driver, PROGRAM_DONATE, DEVICE_COUNT);
    run_probe_t run = {0};
    fill_arguments(&run, driver);
    expect_ok(probe_run(&run, executable, 2));
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        assert_int_equal(tow_buffer_state(run.arguments[2 * d]),
                         TOW_BUFFER_DONATED);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        tow_buffer_release(run.results[d]);
    release_arguments(&run);
    tow_executable_release(executable);
    fixture_close(driver);
}

FIXTURE_SUITE(gang_suite, FIXTURE_CASE(gang_runs_on_all_its_devices),
              FIXTURE_CASE(gang_consumes_on_all_its_devices));
