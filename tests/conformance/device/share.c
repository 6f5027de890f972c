/* Buffers shared in host memory. */
#include "fixture.h"

#include "base/alloc.h"

static const float ones[4] = {1, 1, 1, 1};

static tow_driver_t *open_lender(void)
{
    tow_driver_t *driver = fixture_open(1);
    fixture_require_of(driver, driver->ops->share != NULL,
                       "the driver lends no bytes");
    return driver;
}

static const float *shared(share_probe_t *probe, tow_buffer_t *buffer)
{
    expect_ok(probe_share(probe, buffer));
    outcome_expect(&probe->outcome, TOW_CODE_OK);
    assert_non_null(probe->share.bytes);
    return probe->share.bytes;
}

static void share_shows_the_bytes_repeatedly(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){1, 2, 3, 4});
    share_probe_t shares[3];
    for (int i = 0; i < 3; i++)
        expect_ok(probe_share(&shares[i], buffer));
    for (int i = 0; i < 3; i++) {
        outcome_expect(&shares[i].outcome, TOW_CODE_OK);
        const float *values = shares[i].share.bytes;
        assert_float_equal(values[0], 1, 0);
        assert_float_equal(values[3], 4, 0);
    }
    for (int i = 0; i < 3; i++)
        tow_buffer_share_end(driver, &shares[i].share);
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_READY);
    tow_buffer_release(buffer);
    fixture_close(driver);
}

static void share_waits_for_the_producer(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    run_probe_t run = {.arguments = {one, one}};
    expect_ok(probe_run(&run, executable, 2));
    share_probe_t probe;
    const float *values = shared(&probe, run.results[0]);
    if (subject.computes) assert_float_equal(values[2], 2, 0);
    tow_buffer_share_end(driver, &probe.share);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void share_of_a_large_buffer_needs_no_copy_in_host_memory(void **state)
{
    tow_driver_t *driver = open_lender();
    const size_t size = 4u << 20;
    char *bytes = tow_calloc(1, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 3);
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, "u8[4194304]", bytes));
    share_probe_t probe;
    const void *values = shared(&probe, upload.upload.buffer);
    if (subject.computes) assert_memory_equal(values, bytes, size);
    if (subject.shares_in_place) {
        void *address;
        expect_ok(tow_buffer_address(upload.upload.buffer, &address));
        assert_ptr_equal(address, values);
    }
    tow_buffer_share_end(driver, &probe.share);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(upload.upload.buffer);
    tow_free(bytes);
    fixture_close(driver);
}

static void share_of_an_empty_buffer_works(void **state)
{
    tow_driver_t *driver = open_lender();
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, "f32[0]", ""));
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    share_probe_t probe;
    expect_ok(probe_share(&probe, upload.upload.buffer));
    outcome_expect(&probe.outcome, TOW_CODE_OK);
    tow_buffer_share_end(driver, &probe.share);
    tow_buffer_release(upload.upload.buffer);
    fixture_close(driver);
}

/* The run waits, or works on a copy: both are right. */
static void run_that_consumes_leaves_shared_bytes(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){5, 5, 5, 5});
    share_probe_t probe;
    const float *values = shared(&probe, buffer);
    run_probe_t run = {.arguments = {buffer, one}};
    expect_ok(probe_run(&run, executable, 2));
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_DONATED);
    fixture_settle();
    assert_float_equal(values[0], 5, 0);
    assert_float_equal(values[3], 5, 0);
    tow_buffer_share_end(driver, &probe.share);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_values(run.results[0], 6);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(buffer);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

/* Started before the run that consumes it, and before there is a value. */
static void share_precedes_a_later_run_that_consumes(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *adds = compiled(driver, PROGRAM_ADD);
    tow_executable_t *consumes = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    run_probe_t first = {.arguments = {one, one}};
    expect_ok(probe_run(&first, adds, 2));
    share_probe_t probe;
    expect_ok(probe_share(&probe, first.results[0]));
    run_probe_t second = {.arguments = {first.results[0], one}};
    expect_ok(probe_run(&second, consumes, 2));
    outcome_expect(&probe.outcome, TOW_CODE_OK);
    fixture_settle();
    const float *values = probe.share.bytes;
    if (subject.computes) assert_float_equal(values[1], 2, 0);
    tow_buffer_share_end(driver, &probe.share);
    outcome_expect(&second.outcome, TOW_CODE_OK);
    outcome_expect(&first.outcome, TOW_CODE_OK);
    expect_values(second.results[0], 3);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(one);
    tow_executable_release(adds);
    tow_executable_release(consumes);
    fixture_close(driver);
}

static void share_of_a_donated_buffer_is_refused(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    tow_buffer_t *buffer = uploaded(driver, 0, ones);
    run_probe_t run = {.arguments = {buffer, one}};
    expect_ok(probe_run(&run, executable, 2));
    share_probe_t probe;
    expect_refusal(probe_share(&probe, buffer), TOW_FAILED_PRECONDITION,
                   "donated");
    outcome_expect(&run.outcome, TOW_CODE_OK);
    assert_int_equal(probe.outcome.done_count, 0);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(buffer);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void share_of_a_failed_buffer_has_its_error(void **state)
{
    tow_driver_t *driver = open_lender();
    fixture_require_of(driver, driver->ops->upload_settle != NULL,
                       "the driver has no deferred uploads");
    upload_probe_t upload = {.upload = {.is_deferred = true}};
    expect_ok(probe_upload(&upload, driver, 0, "f32[4]", NULL));
    share_probe_t before;
    expect_ok(probe_share(&before, upload.upload.buffer));
    fixture_settle();
    assert_int_equal(before.outcome.done_count, 0);
    probe_settle(&upload, NULL, TOW_ERROR(TOW_UNAVAILABLE, "host 7 is gone"));
    FIXTURE_UNTIL(before.outcome.done_count > 0);
    expect_refusal(before.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    share_probe_t after;
    expect_ok(probe_share(&after, upload.upload.buffer));
    FIXTURE_UNTIL(after.outcome.done_count > 0);
    expect_refusal(after.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    outcome_expect(&upload.outcome, TOW_UNAVAILABLE);
    tow_buffer_release(upload.upload.buffer);
    fixture_close(driver);
}

static void close_waits_for_shares(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_buffer_t *buffer = uploaded(driver, 0, ones);
    share_probe_t probe;
    const float *values = shared(&probe, buffer);
    fixture_begin_close(driver);
    fixture_settle();
    assert_false(fixture_is_closed());
    assert_float_equal(values[3], 1, 0);
    tow_buffer_share_end(driver, &probe.share);
    tow_buffer_release(buffer);
    fixture_end_close();
}

FIXTURE_SUITE(
    share_suite, FIXTURE_CASE(share_shows_the_bytes_repeatedly),
    FIXTURE_CASE(share_waits_for_the_producer),
    FIXTURE_CASE(share_of_a_large_buffer_needs_no_copy_in_host_memory),
    FIXTURE_CASE(share_of_an_empty_buffer_works),
    FIXTURE_CASE(run_that_consumes_leaves_shared_bytes),
    FIXTURE_CASE(share_precedes_a_later_run_that_consumes),
    FIXTURE_CASE(share_of_a_donated_buffer_is_refused),
    FIXTURE_CASE(share_of_a_failed_buffer_has_its_error),
    FIXTURE_CASE(close_waits_for_shares));
