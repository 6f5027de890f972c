/* Copies of buffers between devices of a driver. */
#include "fixture.h"

#include "base/alloc.h"

static const float ones[4] = {1, 1, 1, 1};

static tow_driver_t *open_copier(size_t device_count)
{
    tow_driver_t *driver = fixture_open(device_count);
    fixture_require_of(driver, driver->ops->copy != NULL,
                       "the driver copies nothing between devices");
    return driver;
}

static void copy_has_the_value_on_the_other_device(void **state)
{
    tow_driver_t *driver = open_copier(2);
    tow_buffer_t *source = uploaded(driver, 0, (float[]){7, 7, 7, 7});
    for (size_t device = 0; device < 2; device++) {
        copy_probe_t copy;
        expect_ok(probe_copy(&copy, source, device));
        tow_buffer_t *buffer = copy.copy.buffer;
        assert_non_null(buffer);
        assert_int_equal(buffer->device, device);
        assert_int_equal(buffer->bytes, source->bytes);
        assert_true(tow_shape_equal(&buffer->shape, &source->shape));
        expect_values(buffer, 7);
        outcome_expect(&copy.outcome, TOW_CODE_OK);
        assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_READY);
        tow_buffer_release(buffer);
    }
    expect_values(source, 7);
    tow_buffer_release(source);
    fixture_close(driver);
}

static void expect_copied(tow_driver_t *driver, const char *shape,
                          const void *bytes, size_t size)
{
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, shape, bytes));
    copy_probe_t copy;
    expect_ok(probe_copy(&copy, upload.upload.buffer, 1));
    tow_buffer_release(upload.upload.buffer); /* Lent for the call. */
    char *back = tow_calloc(1, size + 1);
    download_probe_t download;
    expect_ok(probe_download(&download, copy.copy.buffer, back, size));
    outcome_expect(&download.outcome, TOW_CODE_OK);
    outcome_expect(&copy.outcome, TOW_CODE_OK);
    if (subject.computes) assert_memory_equal(back, bytes, size);
    tow_buffer_release(copy.copy.buffer);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_free(back);
}

static void copy_of_little_and_of_much_works(void **state)
{
    tow_driver_t *driver = open_copier(2);
    char *bytes = tow_calloc(1, 4u << 20);
    for (size_t i = 0; i < 4u << 20; i++)
        bytes[i] = (char)(i * 5);
    expect_copied(driver, "f32[0]", "", 0);
    expect_copied(driver, "u8[1]", bytes, 1);
    expect_copied(driver, "u8[32,128]", bytes, 4096);
    expect_copied(driver, "u8[131072]", bytes, 131072);
    expect_copied(driver, "u8[4194304]", bytes, 4u << 20);
    tow_free(bytes);
    fixture_close(driver);
}

#define CHAIN_LENGTH 20

/* A run on one device, a copy to the next, and so on, all before the data. */
static void copies_of_promises_make_a_pipeline(void **state)
{
    tow_driver_t *driver = open_copier(2);
    tow_executable_t *stages[2] = {compiled(driver, PROGRAM_ADD)};
    void *bytes;
    size_t size;
    expect_ok(tow_executable_serialize(stages[0], &bytes, &size));
    compile_probe_t load;
    expect_ok(probe_load_on(&load, driver, bytes, size, 1));
    outcome_expect(&load.outcome, TOW_CODE_OK);
    tow_free(bytes);
    stages[1] = load.executable;
    tow_buffer_t *step[2] = {uploaded(driver, 0, ones),
                             uploaded(driver, 1, ones)};
    static run_probe_t runs[CHAIN_LENGTH];
    static copy_probe_t copies[CHAIN_LENGTH];
    tow_buffer_t *value = uploaded(driver, 0, ones);
    for (int i = 0; i < CHAIN_LENGTH; i++) {
        runs[i] = (run_probe_t){.arguments = {value, step[i % 2]}};
        expect_ok(probe_run(&runs[i], stages[i % 2], 2));
        tow_buffer_release(value);
        expect_ok(
            probe_copy(&copies[i], runs[i].results[0], (size_t)(i + 1) % 2));
        tow_buffer_release(runs[i].results[0]);
        value = copies[i].copy.buffer;
    }
    expect_values(value, 1 + CHAIN_LENGTH);
    for (int i = 0; i < CHAIN_LENGTH; i++) {
        outcome_expect(&runs[i].outcome, TOW_CODE_OK);
        outcome_expect(&copies[i].outcome, TOW_CODE_OK);
    }
    tow_buffer_release(value);
    for (int i = 0; i < 2; i++) {
        tow_buffer_release(step[i]);
        tow_executable_release(stages[i]);
    }
    fixture_close(driver);
}

static void copy_fails_with_its_source(void **state)
{
    tow_driver_t *driver = open_copier(2);
    fixture_require_of(driver, driver->ops->upload_settle != NULL,
                       "the driver has no deferred uploads");
    upload_probe_t upload = {.upload = {.is_deferred = true}};
    expect_ok(probe_upload(&upload, driver, 0, "f32[4]", NULL));
    copy_probe_t first;
    copy_probe_t second;
    expect_ok(probe_copy(&first, upload.upload.buffer, 1));
    expect_ok(probe_copy(&second, first.copy.buffer, 0));
    fixture_settle();
    assert_int_equal(first.outcome.done_count, 0);
    probe_settle(&upload, NULL, TOW_ERROR(TOW_UNAVAILABLE, "host 7 is gone"));
    FIXTURE_UNTIL(first.outcome.done_count > 0 &&
                  second.outcome.done_count > 0);
    expect_refusal(first.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    expect_refusal(second.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    assert_int_equal(tow_buffer_state(second.copy.buffer), TOW_BUFFER_FAILED);
    expect_refusal(tow_buffer_error(second.copy.buffer), TOW_UNAVAILABLE,
                   "host 7 is gone");
    copy_probe_t late;
    expect_ok(probe_copy(&late, upload.upload.buffer, 1));
    FIXTURE_UNTIL(late.outcome.done_count > 0);
    expect_refusal(late.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    outcome_expect(&upload.outcome, TOW_UNAVAILABLE);
    tow_buffer_release(first.copy.buffer);
    tow_buffer_release(second.copy.buffer);
    tow_buffer_release(late.copy.buffer);
    tow_buffer_release(upload.upload.buffer);
    fixture_close(driver);
}

static void copy_of_what_is_late_waits_for_it(void **state)
{
    tow_driver_t *driver = open_copier(2);
    fixture_require_of(driver, driver->ops->upload_settle != NULL,
                       "the driver has no deferred uploads");
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    upload_probe_t upload = {.upload = {.is_deferred = true}};
    expect_ok(probe_upload(&upload, driver, 1, "f32[4]", NULL));
    copy_probe_t copy;
    expect_ok(probe_copy(&copy, upload.upload.buffer, 0));
    tow_buffer_release(upload.upload.buffer);
    run_probe_t run = {.arguments = {copy.copy.buffer, copy.copy.buffer}};
    expect_ok(probe_run(&run, executable, 2));
    fixture_settle();
    assert_int_equal(copy.outcome.done_count + run.outcome.done_count, 0);
    probe_settle(&upload, ones, TOW_OK);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_values(run.results[0], 2);
    outcome_expect(&copy.outcome, TOW_CODE_OK);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(copy.copy.buffer);
    tow_buffer_release(run.results[0]);
    tow_executable_release(executable);
    fixture_close(driver);
}

static tow_buffer_t *uploaded_large(tow_driver_t *driver, float value)
{
    float *values = tow_malloc(LARGE_COUNT * sizeof(float));
    for (size_t i = 0; i < LARGE_COUNT; i++)
        values[i] = value;
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, LARGE_SHAPE, values));
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_free(values);
    return upload.upload.buffer;
}

static void expect_large(tow_buffer_t *buffer, float value)
{
    float *values = tow_malloc(LARGE_COUNT * sizeof(float));
    download_probe_t download;
    expect_ok(
        probe_download(&download, buffer, values, LARGE_COUNT * sizeof(float)));
    outcome_expect(&download.outcome, TOW_CODE_OK);
    for (size_t i = 0; i < LARGE_COUNT && subject.computes; i++)
        assert_float_equal(values[i], value, 0);
    tow_free(values);
}

/* Copies may share memory; that must not be visible. */
static void run_that_consumes_a_source_leaves_its_copies(void **state)
{
    fixture_require(PROGRAM_LARGE);
    tow_driver_t *driver = open_copier(2);
    tow_executable_t *executable = compiled(driver, PROGRAM_LARGE);
    tow_buffer_t *five = uploaded_large(driver, 5);
    tow_buffer_t *source = uploaded_large(driver, 3);
    copy_probe_t copy;
    expect_ok(probe_copy(&copy, source, 1));
    run_probe_t run = {.arguments = {source, five}};
    expect_ok(probe_run(&run, executable, 2));
    assert_int_equal(tow_buffer_state(source), TOW_BUFFER_DONATED);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_large(copy.copy.buffer, 3);
    expect_large(run.results[0], 8);
    outcome_expect(&copy.outcome, TOW_CODE_OK);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(copy.copy.buffer);
    tow_buffer_release(source);
    tow_buffer_release(five);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void run_that_consumes_a_copy_leaves_the_source(void **state)
{
    fixture_require(PROGRAM_LARGE);
    tow_driver_t *driver = open_copier(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_LARGE);
    tow_buffer_t *five = uploaded_large(driver, 5);
    tow_buffer_t *source = uploaded_large(driver, 3);
    copy_probe_t copies[2];
    expect_ok(probe_copy(&copies[0], source, 0));
    expect_ok(probe_copy(&copies[1], source, 0));
    run_probe_t run = {.arguments = {copies[0].copy.buffer, five}};
    expect_ok(probe_run(&run, executable, 2));
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_large(run.results[0], 8);
    expect_large(source, 3);
    /* And again, after the source was released. */
    tow_buffer_release(source);
    run_probe_t again = {.arguments = {copies[1].copy.buffer, five}};
    expect_ok(probe_run(&again, executable, 2));
    outcome_expect(&again.outcome, TOW_CODE_OK);
    expect_large(again.results[0], 8);
    for (int i = 0; i < 2; i++) {
        outcome_expect(&copies[i].outcome, TOW_CODE_OK);
        tow_buffer_release(copies[i].copy.buffer);
    }
    tow_buffer_release(run.results[0]);
    tow_buffer_release(again.results[0]);
    tow_buffer_release(five);
    tow_executable_release(executable);
    fixture_close(driver);
}

static uint64_t bytes_in_use(tow_driver_t *driver, size_t device)
{
    tow_memory_stats_t stats;
    expect_ok(tow_driver_memory_stats(driver, device, &stats));
    return stats.bytes_in_use;
}

static void copies_give_their_memory_back(void **state)
{
    tow_driver_t *driver = open_copier(2);
    uint64_t before[2] = {bytes_in_use(driver, 0), bytes_in_use(driver, 1)};
    tow_buffer_t *source = uploaded_large(driver, 3);
    copy_probe_t copies[3];
    for (int i = 0; i < 3; i++) {
        expect_ok(probe_copy(&copies[i], source, i > 0));
        outcome_expect(&copies[i].outcome, TOW_CODE_OK);
    }
    tow_buffer_release(source);
    for (int i = 0; i < 3; i++)
        expect_large(copies[i].copy.buffer, 3);
    for (int i = 0; i < 3; i++)
        tow_buffer_release(copies[i].copy.buffer);
    FIXTURE_UNTIL(bytes_in_use(driver, 0) == before[0] &&
                  bytes_in_use(driver, 1) == before[1]);
    fixture_close(driver);
}

static void copy_to_no_device_or_of_nothing_is_refused(void **state)
{
    tow_driver_t *driver = open_copier(1);
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    tow_buffer_t *buffer = uploaded(driver, 0, ones);
    copy_probe_t copy;
    expect_refusal(probe_copy(&copy, buffer, 9), TOW_INVALID_ARGUMENT,
                   "device 9");
    run_probe_t run = {.arguments = {buffer, one}};
    expect_ok(probe_run(&run, executable, 2));
    expect_refusal(probe_copy(&copy, buffer, 0), TOW_FAILED_PRECONDITION,
                   "donated");
    assert_null(copy.copy.buffer);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(buffer);
    tow_buffer_release(one);
    tow_executable_release(executable);
    fixture_close(driver);
}

static void close_waits_for_copies(void **state)
{
    tow_driver_t *driver = open_copier(2);
    tow_buffer_t *source = uploaded(driver, 0, ones);
    copy_probe_t copies[2];
    for (int i = 0; i < 2; i++) {
        expect_ok(probe_copy(&copies[i], source, (size_t)i));
        tow_buffer_release(copies[i].copy.buffer);
    }
    tow_buffer_release(source);
    fixture_close(driver);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(copies[i].outcome.done_count, 1);
        tow_status_release(copies[i].outcome.status);
    }
}

FIXTURE_SUITE(copy_suite, FIXTURE_CASE(copy_has_the_value_on_the_other_device),
              FIXTURE_CASE(copy_of_little_and_of_much_works),
              FIXTURE_CASE(copies_of_promises_make_a_pipeline),
              FIXTURE_CASE(copy_fails_with_its_source),
              FIXTURE_CASE(copy_of_what_is_late_waits_for_it),
              FIXTURE_CASE(run_that_consumes_a_source_leaves_its_copies),
              FIXTURE_CASE(run_that_consumes_a_copy_leaves_the_source),
              FIXTURE_CASE(copies_give_their_memory_back),
              FIXTURE_CASE(copy_to_no_device_or_of_nothing_is_refused),
              FIXTURE_CASE(close_waits_for_copies));
