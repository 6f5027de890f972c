/* With entries of the table removed: the wrappers return UNIMPLEMENTED with the
 * driver's name, and everything else works. */
#include "fixture.h"

/* A table from which the test removes entries. */
static tow_driver_ops_t reduced;

static tow_driver_t *open_reducible(void)
{
    tow_driver_t *driver = fixture_open(1);
    reduced = *driver->ops;
    driver->ops = &reduced;
    return driver;
}

static void driver_without_any_entry_says_unimplemented(void **state)
{
    tow_driver_t *driver = open_reducible();
    reduced = (tow_driver_ops_t){.close = reduced.close};
    tow_memory_stats_t stats;
    tow_buffer_t *buffer = NULL;
    void *bytes;
    size_t size;
    float values[4] = {0};
    tow_shape_t shape;
    expect_ok(tow_shape_parse("f32[4]", &shape));
    expect_refusal(tow_driver_memory_stats(driver, 0, &stats),
                   TOW_UNIMPLEMENTED, subject.name);
    expect_refusal(tow_driver_allocate(driver, 0, &shape, &buffer),
                   TOW_UNIMPLEMENTED, subject.name);
    compile_probe_t compile;
    expect_refusal(probe_compile(&compile, driver, "program", 1),
                   TOW_UNIMPLEMENTED, subject.name);
    expect_refusal(probe_load(&compile, driver, "bytes", 5), TOW_UNIMPLEMENTED,
                   subject.name);
    upload_probe_t upload = {0};
    expect_refusal(probe_upload(&upload, driver, 0, "f32[4]", values),
                   TOW_UNIMPLEMENTED, subject.name);
    assert_false(tow_driver_can_abort(driver));
    tow_executable_t executable = {.driver = driver};
    expect_refusal(tow_executable_serialize(&executable, &bytes, &size),
                   TOW_UNIMPLEMENTED, subject.name);
    tow_buffer_t none = {.driver = driver, .shape = shape};
    void *address;
    expect_refusal(tow_buffer_address(&none, &address), TOW_UNIMPLEMENTED,
                   subject.name);
    download_probe_t download;
    expect_refusal(probe_download(&download, &none, values, sizeof(values)),
                   TOW_UNIMPLEMENTED, subject.name);
    share_probe_t share;
    expect_refusal(probe_share(&share, &none), TOW_UNIMPLEMENTED, subject.name);
    copy_probe_t copy;
    expect_refusal(probe_copy(&copy, &none, 0), TOW_UNIMPLEMENTED,
                   subject.name);
    run_probe_t run = {0};
    expect_refusal(probe_run(&run, &executable, 0), TOW_UNIMPLEMENTED,
                   subject.name);
    fixture_settle();
    assert_int_equal(compile.outcome.done_count + upload.outcome.done_count +
                         download.outcome.done_count + run.outcome.done_count +
                         share.outcome.done_count + copy.outcome.done_count,
                     0);
    fixture_close(driver);
}

/* All that a worker can do without. */
static void driver_without_the_optional_entries_still_runs(void **state)
{
    fixture_require(PROGRAM_ADD);
    tow_driver_t *driver = open_reducible();
    reduced.memory_stats = NULL;
    reduced.load = NULL;
    reduced.serialize = NULL;
    reduced.allocate = NULL;
    reduced.buffer_error = NULL;
    reduced.buffer_address = NULL;
    reduced.abort = NULL;
    reduced.upload_settle = NULL;
    reduced.share = NULL;
    reduced.share_end = NULL;
    reduced.copy = NULL;
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {one, one}};
    expect_ok(probe_run(&run, executable, 2));
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_values(run.results[0], 2);
    assert_null(tow_buffer_error(run.results[0]));
    void *bytes;
    size_t size;
    expect_refusal(tow_executable_serialize(executable, &bytes, &size),
                   TOW_UNIMPLEMENTED, subject.name);
    expect_refusal(tow_buffer_address(one, &bytes), TOW_UNIMPLEMENTED,
                   subject.name);
    assert_false(tow_driver_can_abort(driver));
    upload_probe_t deferred = {.upload = {.is_deferred = true}};
    expect_refusal(probe_upload(&deferred, driver, 0, "f32[4]", NULL),
                   TOW_UNIMPLEMENTED, "deferred");
    tow_buffer_release(one);
    tow_buffer_release(run.results[0]);
    tow_executable_release(executable);
    fixture_close(driver);
}

FIXTURE_SUITE(optional_suite,
              FIXTURE_CASE(driver_without_any_entry_says_unimplemented),
              FIXTURE_CASE(driver_without_the_optional_entries_still_runs));
