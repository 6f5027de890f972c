#include "fixture.h"

/* Arrays of equal values, and an executable that adds. */
typedef struct sum {
    tow_driver_t *driver;
    tow_executable_t *executable;
    tow_buffer_t *one;
    tow_buffer_t *two;
} sum_t;

static sum_t sum_open(program_t program)
{
    sum_t sum = {.driver = fixture_open(1)};
    sum.executable = compiled(sum.driver, program);
    sum.one = uploaded(sum.driver, 0, (float[]){1, 1, 1, 1});
    sum.two = uploaded(sum.driver, 0, (float[]){2, 2, 2, 2});
    return sum;
}

static void sum_close(sum_t *sum)
{
    tow_buffer_release(sum->one);
    tow_buffer_release(sum->two);
    tow_executable_release(sum->executable);
    fixture_close(sum->driver);
}

static void run_gives_its_results(void **state)
{
    sum_t sum = sum_open(PROGRAM_ADD);
    run_probe_t run = {.arguments = {sum.one, sum.two}};
    expect_ok(probe_run(&run, sum.executable, 2));
    tow_buffer_t *result = run.results[0];
    assert_non_null(result);
    assert_int_equal(result->device, 0);
    assert_int_equal(result->bytes, 16);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    assert_int_equal(tow_buffer_state(result), TOW_BUFFER_READY);
    expect_values(result, 3);
    assert_int_equal(tow_buffer_state(sum.one), TOW_BUFFER_READY);
    tow_buffer_release(result);
    sum_close(&sum);
}

static void run_keeps_what_it_needs(void **state)
{
    sum_t sum = sum_open(PROGRAM_ADD);
    run_probe_t run = {.arguments = {sum.one, sum.two}};
    expect_ok(probe_run(&run, sum.executable, 2));
    tow_buffer_release(sum.one);
    tow_buffer_release(sum.two);
    tow_executable_release(sum.executable);
    expect_values(run.results[0], 3);
    tow_buffer_release(run.results[0]);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    fixture_close(sum.driver);
}

static void run_whose_results_nobody_wants_still_completes(void **state)
{
    sum_t sum = sum_open(PROGRAM_ADD);
    run_probe_t run = {.arguments = {sum.one, sum.two}};
    expect_ok(probe_run(&run, sum.executable, 2));
    tow_buffer_release(run.results[0]);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    sum_close(&sum);
}

#define CHAIN_COUNT 200

/* Each run takes the promised result of the one before. */
static void runs_are_enqueued_behind_promises_and_finish_in_order(void **state)
{
    sum_t sum = sum_open(PROGRAM_ADD);
    static run_probe_t runs[CHAIN_COUNT];
    tow_buffer_t *latest = sum.one;
    for (int i = 0; i < CHAIN_COUNT; i++) {
        runs[i] = (run_probe_t){.arguments = {latest, sum.two}};
        expect_ok(probe_run(&runs[i], sum.executable, 2));
        if (i > 0) tow_buffer_release(latest);
        latest = runs[i].results[0];
    }
    expect_values(latest, 1 + 2 * CHAIN_COUNT);
    for (int i = 0; i < CHAIN_COUNT; i++) {
        outcome_expect(&runs[i].outcome, TOW_CODE_OK);
        assert_int_equal(runs[i].sequence, i);
    }
    tow_buffer_release(latest);
    sum_close(&sum);
}

static void run_of_wrong_arguments_is_refused(void **state)
{
    sum_t sum = sum_open(PROGRAM_ADD);
    if (sum.executable->signature.argument_count == TOW_COUNT_UNKNOWN) {
        sum_close(&sum);
        fixture_skip("the plugin does not tell what programs take");
    }
    upload_probe_t upload = {0};
    const float values[4] = {0};
    expect_ok(probe_upload(&upload, sum.driver, 0, "f32[2,2]", values));
    run_probe_t run = {.arguments = {sum.one, upload.upload.buffer}};
    expect_refusal(probe_run(&run, sum.executable, 2), TOW_INVALID_ARGUMENT,
                   "argument 1 on device 0 is f32[2,2], not f32[4]");
    expect_refusal(probe_run(&run, sum.executable, 1), TOW_INVALID_ARGUMENT,
                   "takes 2 arguments; 1 were given");
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(upload.upload.buffer);
    fixture_settle();
    assert_int_equal(run.outcome.done_count, 0);
    sum_close(&sum);
}

static void run_on_another_device_than_its_arguments_is_refused(void **state)
{
    tow_driver_t *driver = fixture_open(2);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *here = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    tow_buffer_t *there = uploaded(driver, 1, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {here, there}};
    expect_refusal(probe_run(&run, executable, 2), TOW_INVALID_ARGUMENT,
                   "on device 1");
    tow_buffer_release(here);
    tow_buffer_release(there);
    tow_executable_release(executable);
    fixture_close(driver);
}

/* -- Donation --------------------------------------------------------------- */

static void run_consumes_what_is_donated_at_once(void **state)
{
    sum_t sum = sum_open(PROGRAM_DONATE);
    run_probe_t run = {.arguments = {sum.one, sum.two}};
    expect_ok(probe_run(&run, sum.executable, 2));
    assert_int_equal(tow_buffer_state(sum.one), TOW_BUFFER_DONATED);
    assert_int_not_equal(tow_buffer_state(sum.two), TOW_BUFFER_DONATED);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_values(run.results[0], 3);

    run_probe_t again = {.arguments = {sum.one, sum.two}};
    expect_refusal(probe_run(&again, sum.executable, 2),
                   TOW_FAILED_PRECONDITION, "donated");
    download_probe_t download;
    float values[4];
    expect_refusal(probe_download(&download, sum.one, values, sizeof(values)),
                   TOW_FAILED_PRECONDITION, "donated");
    assert_null(tow_buffer_error(sum.one));
    tow_buffer_release(run.results[0]);
    sum_close(&sum);
}

static void run_keeps_what_it_must_not_consume(void **state)
{
    sum_t sum = sum_open(PROGRAM_DONATE);
    const size_t kept[] = {0};
    run_probe_t run = {.run = {.non_donatable_arguments = kept,
                               .non_donatable_argument_count = 1},
                       .arguments = {sum.one, sum.two}};
    expect_ok(probe_run(&run, sum.executable, 2));
    assert_int_not_equal(tow_buffer_state(sum.one), TOW_BUFFER_DONATED);
    expect_values(run.results[0], 3);
    expect_values(sum.one, 1);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    tow_buffer_release(run.results[0]);
    sum_close(&sum);
}

static void run_that_consumes_an_argument_given_twice_is_refused(void **state)
{
    sum_t sum = sum_open(PROGRAM_DONATE);
    if (sum.executable->signature.argument_count == TOW_COUNT_UNKNOWN) {
        sum_close(&sum);
        fixture_skip("the plugin does not tell what programs consume");
    }
    run_probe_t run = {.arguments = {sum.one, sum.one}};
    expect_refusal(probe_run(&run, sum.executable, 2), TOW_INVALID_ARGUMENT,
                   "given twice");
    assert_int_equal(tow_buffer_state(sum.one), TOW_BUFFER_READY);
    const size_t kept[] = {0, 7};
    run.run.non_donatable_arguments = kept;
    run.run.non_donatable_argument_count = 2;
    expect_refusal(probe_run(&run, sum.executable, 2), TOW_INVALID_ARGUMENT,
                   "argument 7");
    run.run.non_donatable_argument_count = 1;
    expect_ok(probe_run(&run, sum.executable, 2));
    expect_values(run.results[0], 2);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    tow_buffer_release(run.results[0]);
    sum_close(&sum);
}

/* In place, repeatedly, faster than the device executes. */
static void runs_can_consume_promises(void **state)
{
    sum_t sum = sum_open(PROGRAM_DONATE);
    static run_probe_t runs[CHAIN_COUNT];
    tow_buffer_t *latest = sum.one;
    tow_buffer_retain(latest);
    for (int i = 0; i < CHAIN_COUNT; i++) {
        runs[i] = (run_probe_t){.arguments = {latest, sum.two}};
        expect_ok(probe_run(&runs[i], sum.executable, 2));
        assert_int_equal(tow_buffer_state(latest), TOW_BUFFER_DONATED);
        tow_buffer_release(latest);
        latest = runs[i].results[0];
    }
    expect_values(latest, 1 + 2 * CHAIN_COUNT);
    for (int i = 0; i < CHAIN_COUNT; i++)
        outcome_expect(&runs[i].outcome, TOW_CODE_OK);
    tow_buffer_release(latest);
    sum_close(&sum);
}

FIXTURE_SUITE(
    run_suite, FIXTURE_CASE(run_gives_its_results),
    FIXTURE_CASE(run_keeps_what_it_needs),
    FIXTURE_CASE(run_whose_results_nobody_wants_still_completes),
    FIXTURE_CASE(runs_are_enqueued_behind_promises_and_finish_in_order),
    FIXTURE_CASE(run_of_wrong_arguments_is_refused),
    FIXTURE_CASE(run_on_another_device_than_its_arguments_is_refused),
    FIXTURE_CASE(run_consumes_what_is_donated_at_once),
    FIXTURE_CASE(run_keeps_what_it_must_not_consume),
    FIXTURE_CASE(run_that_consumes_an_argument_given_twice_is_refused),
    FIXTURE_CASE(runs_can_consume_promises));
