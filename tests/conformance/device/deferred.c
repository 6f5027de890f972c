/* Deferred uploads: their bytes arrive after runs that use them were
 * enqueued. */
#include "fixture.h"

#include "base/alloc.h"

static const float ones[4] = {1, 1, 1, 1};
static const float twos[4] = {2, 2, 2, 2};

static tow_driver_t *open_late(size_t device_count)
{
    tow_driver_t *driver = fixture_open(device_count);
    fixture_require_of(driver, driver->ops->upload_settle != NULL,
                       "the driver has no deferred uploads");
    return driver;
}

static tow_buffer_t *begin_late(upload_probe_t *probe, tow_driver_t *driver,
                                size_t device)
{
    *probe = (upload_probe_t){.upload = {.is_deferred = true}};
    expect_ok(probe_upload(probe, driver, device, "f32[4]", NULL));
    assert_non_null(probe->upload.buffer);
    assert_int_equal(tow_buffer_state(probe->upload.buffer),
                     TOW_BUFFER_PENDING);
    return probe->upload.buffer;
}

static void settle_with_error(upload_probe_t *probe)
{
    probe_settle(probe, NULL, TOW_ERROR(TOW_UNAVAILABLE, "host 7 is gone"));
}

static void deferred_upload_is_pending_until_it_is_settled(void **state)
{
    tow_driver_t *driver = open_late(1);
    upload_probe_t upload;
    tow_buffer_t *buffer = begin_late(&upload, driver, 0);
    float values[4] = {0};
    download_probe_t download;
    expect_ok(probe_download(&download, buffer, values, sizeof(values)));
    fixture_settle();
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_PENDING);
    assert_int_equal(upload.outcome.done_count + download.outcome.done_count,
                     0);
    probe_settle(&upload, twos, TOW_OK);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    outcome_expect(&download.outcome, TOW_CODE_OK);
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_READY);
    assert_float_equal(values[3], 2, 0);
    expect_values(buffer, 2);
    tow_buffer_release(buffer);
    fixture_close(driver);
}

#define CHAIN_LENGTH 20

static void runs_wait_in_order_behind_a_deferred_upload(void **state)
{
    tow_driver_t *driver = open_late(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    upload_probe_t upload;
    tow_buffer_t *value = begin_late(&upload, driver, 0);
    static run_probe_t runs[CHAIN_LENGTH];
    for (int i = 0; i < CHAIN_LENGTH; i++) {
        runs[i] = (run_probe_t){.arguments = {value, one}};
        expect_ok(probe_run(&runs[i], executable, 2));
        if (i > 0) tow_buffer_release(value);
        value = runs[i].results[0];
    }
    /* It needs no deferred upload, but waits for the runs before it. */
    run_probe_t last = {.arguments = {one, one}};
    expect_ok(probe_run(&last, executable, 2));
    fixture_settle();
    for (int i = 0; i < CHAIN_LENGTH; i++)
        assert_int_equal(runs[i].outcome.done_count, 0);
    assert_int_equal(last.outcome.done_count, 0);
    probe_settle(&upload, twos, TOW_OK);
    outcome_expect(&last.outcome, TOW_CODE_OK);
    for (int i = 0; i < CHAIN_LENGTH; i++) {
        outcome_expect(&runs[i].outcome, TOW_CODE_OK);
        assert_true(i == 0 || runs[i].sequence > runs[i - 1].sequence);
    }
    expect_values(value, 2 + CHAIN_LENGTH);
    expect_values(last.results[0], 2);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(upload.upload.buffer);
    tow_buffer_release(value);
    tow_buffer_release(last.results[0]);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void deferred_uploads_may_settle_in_any_order(void **state)
{
    tow_driver_t *driver = open_late(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    upload_probe_t uploads[2];
    run_probe_t first = {0};
    for (int i = 0; i < 2; i++)
        first.arguments[i] = begin_late(&uploads[i], driver, 0);
    expect_ok(probe_run(&first, executable, 2));
    run_probe_t second = {
        .arguments = {first.arguments[1], first.arguments[1]}};
    expect_ok(probe_run(&second, executable, 2));
    probe_settle(&uploads[1], twos, TOW_OK);
    outcome_expect(&uploads[1].outcome, TOW_CODE_OK);
    fixture_settle();
    assert_int_equal(first.outcome.done_count + second.outcome.done_count, 0);
    probe_settle(&uploads[0], ones, TOW_OK);
    outcome_expect(&first.outcome, TOW_CODE_OK);
    outcome_expect(&second.outcome, TOW_CODE_OK);
    expect_values(first.results[0], 3);
    expect_values(second.results[0], 4);
    outcome_expect(&uploads[0].outcome, TOW_CODE_OK);
    for (int i = 0; i < 2; i++)
        tow_buffer_release(first.arguments[i]);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void other_devices_do_not_wait_for_a_deferred_upload(void **state)
{
    tow_driver_t *driver = open_late(2);
    tow_executable_t *on_first = compiled(driver, PROGRAM_ADD);
    void *bytes;
    size_t size;
    expect_ok(tow_executable_serialize(on_first, &bytes, &size));
    compile_probe_t load;
    expect_ok(probe_load_on(&load, driver, bytes, size, 1));
    outcome_expect(&load.outcome, TOW_CODE_OK);
    tow_free(bytes);
    upload_probe_t upload;
    tow_buffer_t *deferred = begin_late(&upload, driver, 0);
    tow_buffer_t *one = uploaded(driver, 1, ones);
    run_probe_t waits = {.arguments = {deferred, deferred}};
    run_probe_t goes = {.arguments = {one, one}};
    expect_ok(probe_run(&waits, on_first, 2));
    expect_ok(probe_run(&goes, load.executable, 2));
    outcome_expect(&goes.outcome, TOW_CODE_OK);
    assert_int_equal(waits.outcome.done_count, 0);
    probe_settle(&upload, twos, TOW_OK);
    outcome_expect(&waits.outcome, TOW_CODE_OK);
    expect_values(waits.results[0], 4);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(waits.results[0]);
    tow_buffer_release(goes.results[0]);
    tow_buffer_release(deferred);
    tow_buffer_release(one);
    tow_executable_release(on_first);
    tow_executable_release(load.executable);
    fixture_close(driver);
}

/* The second of two gangs needs no deferred upload, but shares devices with the
 * first. */
static void gangs_keep_their_order_behind_a_deferred_upload(void **state)
{
    tow_driver_t *driver = open_late(2);
    tow_executable_t *executable = compiled_for(driver, PROGRAM_ADD, 2);
    upload_probe_t upload;
    tow_buffer_t *deferred = begin_late(&upload, driver, 1);
    tow_buffer_t *ready[2] = {uploaded(driver, 0, ones),
                              uploaded(driver, 1, ones)};
    run_probe_t first = {.arguments = {ready[0], ready[0], deferred, ready[1]}};
    run_probe_t second = {
        .arguments = {ready[0], ready[0], ready[1], ready[1]}};
    expect_ok(probe_run(&first, executable, 2));
    expect_ok(probe_run(&second, executable, 2));
    fixture_settle();
    assert_int_equal(first.outcome.done_count + second.outcome.done_count, 0);
    probe_settle(&upload, twos, TOW_OK);
    outcome_expect(&second.outcome, TOW_CODE_OK);
    outcome_expect(&first.outcome, TOW_CODE_OK);
    expect_values(first.results[0], 2);
    expect_values(first.results[1], 3);
    expect_values(second.results[1], 2);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    for (int i = 0; i < 2; i++) {
        tow_buffer_release(first.results[i]);
        tow_buffer_release(second.results[i]);
        tow_buffer_release(ready[i]);
    }
    tow_buffer_release(deferred);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void deferred_upload_that_fails_poisons_its_dependents(void **state)
{
    tow_driver_t *driver = open_late(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    upload_probe_t upload;
    tow_buffer_t *deferred = begin_late(&upload, driver, 0);
    run_probe_t first = {.arguments = {deferred, one}};
    expect_ok(probe_run(&first, executable, 2));
    run_probe_t second = {.arguments = {one, first.results[0]}};
    expect_ok(probe_run(&second, executable, 2));
    run_probe_t unrelated = {.arguments = {one, one}};
    expect_ok(probe_run(&unrelated, executable, 2));
    float values[4];
    download_probe_t download;
    expect_ok(probe_download(&download, deferred, values, sizeof(values)));
    settle_with_error(&upload);
    FIXTURE_UNTIL(
        upload.outcome.done_count > 0 && first.outcome.done_count > 0 &&
        second.outcome.done_count > 0 && download.outcome.done_count > 0);
    expect_refusal(upload.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    expect_refusal(first.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    expect_refusal(second.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    expect_refusal(download.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    assert_int_equal(tow_buffer_state(deferred), TOW_BUFFER_FAILED);
    expect_refusal(tow_buffer_error(deferred), TOW_UNAVAILABLE,
                   "host 7 is gone");
    assert_int_equal(tow_buffer_state(second.results[0]), TOW_BUFFER_FAILED);
    outcome_expect(&unrelated.outcome, TOW_CODE_OK);
    expect_values(unrelated.results[0], 2);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(unrelated.results[0]);
    tow_buffer_release(deferred);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void deferred_upload_may_be_donated_before_it_is_settled(void **state)
{
    tow_driver_t *driver = open_late(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    for (int comes = 0; comes < 2; comes++) {
        upload_probe_t upload;
        tow_buffer_t *deferred = begin_late(&upload, driver, 0);
        run_probe_t run = {.arguments = {deferred, one}};
        expect_ok(probe_run(&run, executable, 2));
        assert_int_equal(tow_buffer_state(deferred), TOW_BUFFER_DONATED);
        tow_buffer_release(deferred);
        if (comes) {
            probe_settle(&upload, twos, TOW_OK);
            outcome_expect(&run.outcome, TOW_CODE_OK);
            expect_values(run.results[0], 3);
            outcome_expect(&upload.outcome, TOW_CODE_OK);
        } else {
            settle_with_error(&upload);
            outcome_expect(&run.outcome, TOW_UNAVAILABLE);
            outcome_expect(&upload.outcome, TOW_UNAVAILABLE);
        }
        tow_buffer_release(run.results[0]);
    }
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void deferred_upload_may_be_released_before_it_is_settled(void **state)
{
    tow_driver_t *driver = open_late(1);
    upload_probe_t uploads[2];
    for (int i = 0; i < 2; i++)
        tow_buffer_release(begin_late(&uploads[i], driver, 0));
    fixture_settle();
    assert_int_equal(uploads[0].outcome.done_count, 0);
    probe_settle(&uploads[0], twos, TOW_OK);
    settle_with_error(&uploads[1]);
    outcome_expect(&uploads[0].outcome, TOW_CODE_OK);
    outcome_expect(&uploads[1].outcome, TOW_UNAVAILABLE);
    fixture_close(driver);
}

/* If the driver uses the caller's memory, `done` runs after its last use. */
static void large_deferred_upload_works_without_a_copy(void **state)
{
    tow_driver_t *driver = open_late(1);
    const size_t size = 4u << 20;
    char *bytes = tow_aligned_alloc(64, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 7);
    upload_probe_t upload = {
        .upload = {.may_alias = true, .is_deferred = true}};
    expect_ok(probe_upload(&upload, driver, 0, "u8[4194304]", NULL));
    tow_buffer_t *buffer = upload.upload.buffer;
    probe_settle(&upload, bytes, TOW_OK);
    char *back = tow_calloc(1, size);
    download_probe_t download;
    expect_ok(probe_download(&download, buffer, back, size));
    outcome_expect(&download.outcome, TOW_CODE_OK);
    if (subject.computes) assert_memory_equal(back, bytes, size);
    if (subject.shares_in_place) {
        void *address;
        expect_ok(tow_buffer_address(buffer, &address));
        assert_ptr_equal(address, bytes);
    }
    tow_buffer_release(buffer);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_free(bytes);
    tow_free(back);
    fixture_close(driver);
}

static void empty_deferred_upload_works(void **state)
{
    tow_driver_t *driver = open_late(1);
    upload_probe_t upload = {.upload = {.is_deferred = true}};
    expect_ok(probe_upload(&upload, driver, 0, "f32[0]", NULL));
    probe_settle(&upload, NULL, TOW_OK);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    FIXTURE_UNTIL(tow_buffer_state(upload.upload.buffer) == TOW_BUFFER_READY);
    tow_buffer_release(upload.upload.buffer);
    fixture_close(driver);
}

static void gang_that_waits_for_a_deferred_upload_can_be_aborted(void **state)
{
    tow_driver_t *driver = open_late(1);
    fixture_require_of(driver, tow_driver_can_abort(driver),
                       "the driver cannot abort");
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    upload_probe_t upload;
    tow_buffer_t *deferred = begin_late(&upload, driver, 0);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    run_probe_t first = {.arguments = {deferred, one}};
    run_probe_t second = {.arguments = {one, one}};
    expect_ok(probe_run(&first, executable, 2));
    expect_ok(probe_run(&second, executable, 2));
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "enough");
    tow_driver_abort(driver, first.run.gang_id, cause);
    tow_status_release(cause);
    FIXTURE_UNTIL(first.outcome.done_count > 0);
    expect_refusal(first.outcome.status, TOW_ABORTED, "enough");
    outcome_expect(&second.outcome, TOW_CODE_OK);
    assert_int_equal(tow_buffer_state(deferred), TOW_BUFFER_PENDING);
    probe_settle(&upload, twos, TOW_OK);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(deferred);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void close_waits_for_deferred_uploads(void **state)
{
    tow_driver_t *driver = open_late(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    upload_probe_t upload;
    tow_buffer_t *deferred = begin_late(&upload, driver, 0);
    run_probe_t run = {.arguments = {deferred, deferred}};
    expect_ok(probe_run(&run, executable, 2));
    tow_buffer_release(run.results[0]);
    tow_buffer_release(deferred);
    tow_executable_release(executable);
    fixture_begin_close(driver);
    fixture_settle();
    assert_false(fixture_is_closed());
    assert_int_equal(upload.outcome.done_count, 0);
    tow_upload_settle(driver, &upload.upload,
                      TOW_ERROR(TOW_CANCELLED, "the end"));
    fixture_end_close();
    assert_int_equal(upload.outcome.done_count, 1);
    assert_int_equal(run.outcome.done_count, 1);
    assert_non_null(upload.outcome.status);
    assert_non_null(run.outcome.status);
    tow_status_release(upload.outcome.status);
    tow_status_release(run.outcome.status);
}

FIXTURE_SUITE(
    deferred_suite,
    FIXTURE_CASE(deferred_upload_is_pending_until_it_is_settled),
    FIXTURE_CASE(runs_wait_in_order_behind_a_deferred_upload),
    FIXTURE_CASE(deferred_uploads_may_settle_in_any_order),
    FIXTURE_CASE(other_devices_do_not_wait_for_a_deferred_upload),
    FIXTURE_CASE(gangs_keep_their_order_behind_a_deferred_upload),
    FIXTURE_CASE(deferred_upload_that_fails_poisons_its_dependents),
    FIXTURE_CASE(deferred_upload_may_be_donated_before_it_is_settled),
    FIXTURE_CASE(deferred_upload_may_be_released_before_it_is_settled),
    FIXTURE_CASE(large_deferred_upload_works_without_a_copy),
    FIXTURE_CASE(empty_deferred_upload_works),
    FIXTURE_CASE(gang_that_waits_for_a_deferred_upload_can_be_aborted),
    FIXTURE_CASE(close_waits_for_deferred_uploads));
