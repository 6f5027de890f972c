#include <string.h>

#include "base/alloc.h"
#include "fixture.h"

static void driver_says_what_it_has(void **state)
{
    tow_driver_t *driver = fixture_open(2);
    assert_int_equal(driver->device_count, 2);
    assert_non_null(driver->platform);
    assert_non_null(driver->version);
    assert_int_not_equal(driver->devices[0].id, driver->devices[1].id);
    for (size_t i = 0; i < 2; i++) {
        assert_true(strlen(driver->devices[i].kind) > 0);
        assert_non_null(driver->devices[i].name);
    }
    fixture_close(driver);
}

static void compile_gives_the_signature(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    const tow_signature_t *signature = &executable->signature;
    tow_shape_t shape;
    expect_ok(tow_shape_parse("f32[4]", &shape));
    assert_true(strlen(signature->name) > 0);
    assert_int_equal(signature->replica_count, 1);
    assert_int_equal(signature->partition_count, 1);
    assert_int_equal(signature->result_count, 1);
    assert_true(tow_shape_equal(&signature->results[0].shape, &shape));
    assert_int_equal(signature->results[0].bytes, 16);
    if (signature->argument_count != TOW_COUNT_UNKNOWN) {
        assert_int_equal(signature->argument_count, 2);
        assert_true(tow_shape_equal(&signature->arguments[1].shape, &shape));
        assert_int_equal(signature->alias_count, 0);
    }
    assert_int_equal(executable->local_device_count, 1);
    assert_int_equal(executable->local_devices[0], 0);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void compile_gives_the_aliases(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    const tow_signature_t *signature = &executable->signature;
    if (signature->argument_count != TOW_COUNT_UNKNOWN) {
        assert_int_equal(signature->alias_count, 1);
        assert_int_equal(signature->aliases[0].result, 0);
        assert_int_equal(signature->aliases[0].argument, 0);
        assert_false(signature->aliases[0].required);
    }
    tow_executable_release(executable);
    fixture_close(driver);
}

static void compile_of_a_malformed_program_says_why(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    compile_probe_t probe;
    tow_status_t status =
        probe_compile(&probe, driver, subject.programs[PROGRAM_MALFORMED], 1);
    /* A driver may refuse it at once, or when it compiles. */
    if (status == TOW_OK) {
        FIXTURE_UNTIL(probe.outcome.done_count > 0);
        status = probe.outcome.status;
        assert_null(probe.executable);
    }
    expect_refusal(status, TOW_INVALID_ARGUMENT, "");
    fixture_close(driver);
}

static void compile_of_nothing_is_refused(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    compile_probe_t probe;
    expect_refusal(probe_compile(&probe, driver, "", 1), TOW_INVALID_ARGUMENT,
                   "empty");
    expect_refusal(probe_load(&probe, driver, "", 0), TOW_INVALID_ARGUMENT,
                   "empty");
    fixture_settle();
    assert_int_equal(probe.outcome.done_count, 0);
    fixture_close(driver);
}

/* Adds on the executable's one device. */
static void expect_sum_on(tow_executable_t *executable, size_t device)
{
    assert_int_equal(executable->local_device_count, 1);
    assert_int_equal(executable->local_devices[0], device);
    tow_driver_t *driver = executable->driver;
    run_probe_t run = {0};
    run.arguments[0] = uploaded(driver, device, (float[]){1, 1, 1, 1});
    run.arguments[1] = uploaded(driver, device, (float[]){2, 2, 2, 2});
    expect_ok(probe_run(&run, executable, 2));
    expect_values(run.results[0], 3);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    tow_buffer_release(run.arguments[0]);
    tow_buffer_release(run.arguments[1]);
    tow_buffer_release(run.results[0]);
}

static void executable_that_was_serialised_runs_elsewhere(void **state)
{
    tow_driver_t *driver = fixture_open(2);
    tow_executable_t *first = compiled(driver, PROGRAM_ADD);
    void *bytes = NULL;
    size_t size = 0;
    expect_ok(tow_executable_serialize(first, &bytes, &size));
    assert_true(size > 0);
    tow_executable_release(first);
    compile_probe_t here;
    compile_probe_t there;
    expect_ok(probe_load(&here, driver, bytes, size));
    expect_ok(probe_load_on(&there, driver, bytes, size, 1));
    outcome_expect(&here.outcome, TOW_CODE_OK);
    outcome_expect(&there.outcome, TOW_CODE_OK);
    tow_free(bytes);
    expect_sum_on(here.executable, 0);
    expect_sum_on(there.executable, 1);
    tow_executable_release(here.executable);
    tow_executable_release(there.executable);
    fixture_close(driver);
}

static void load_of_garbage_is_an_error(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    compile_probe_t probe;
    tow_status_t status = probe_load(&probe, driver, "garbage", 7);
    if (status == TOW_OK) {
        FIXTURE_UNTIL(probe.outcome.done_count > 0);
        status = probe.outcome.status;
        assert_null(probe.executable);
    }
    assert_non_null(status);
    tow_status_release(status);
    fixture_close(driver);
}

static void executable_lives_until_its_last_reference(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_executable_retain(executable);
    tow_executable_release(executable);
    assert_int_equal(executable->signature.result_count, 1);
    tow_executable_release(executable);
    fixture_close(driver);
}

FIXTURE_SUITE(compile_suite, FIXTURE_CASE(driver_says_what_it_has),
              FIXTURE_CASE(compile_gives_the_signature),
              FIXTURE_CASE(compile_gives_the_aliases),
              FIXTURE_CASE(compile_of_a_malformed_program_says_why),
              FIXTURE_CASE(compile_of_nothing_is_refused),
              FIXTURE_CASE(executable_that_was_serialised_runs_elsewhere),
              FIXTURE_CASE(load_of_garbage_is_an_error),
              FIXTURE_CASE(executable_lives_until_its_last_reference));
