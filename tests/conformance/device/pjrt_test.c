/* Properties of the pjrt driver only, with a plugin that misbehaves in known
 * ways: versions, options, key-value tables, late events, errors, probes. */
#include "fixture.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/pjrt/pjrt.h"

/* -- Opening ----------------------------------------------------------------- */

typedef struct opening {
    tow_pjrt_open_t open;
    tow_status_t status; /* owned */
    tow_driver_t *driver;
    bool is_done;
} opening_t;

static const char *fake_path(void)
{
    return getenv("TOW_FAKE_PJRT_PATH");
}

static const char *why_not(void)
{
    return fake_path() == NULL
               ? "TOW_FAKE_PJRT_PATH does not name the fake plugin"
               : NULL;
}

const subject_t subject = {.name = "pjrt",
                           .computes = true,
                           .format = TOW_PROGRAM_MLIR,
                           .programs = {[PROGRAM_ADD] = "add 4"},
                           .why_not = why_not};

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    opening_t *opening = TOW_CONTAINER_OF(open, opening_t, open);
    assert_false(opening->is_done);
    opening->status = take_status;
    opening->driver = take_driver;
    opening->is_done = true;
}

static void begin_open(opening_t *opening, const char *mode)
{
    setenv("TOW_FAKE_PJRT", mode, 1);
    if (opening->open.path == NULL) opening->open.path = fake_path();
    opening->open.done = opened;
    expect_ok(tow_pjrt_open(fixture_env(), &opening->open));
    assert_false(opening->is_done);
}

static tow_driver_t *open_with(tow_pjrt_open_t open, const char *mode)
{
    opening_t opening = {.open = open};
    begin_open(&opening, mode);
    FIXTURE_UNTIL(opening.is_done);
    expect_ok(opening.status);
    return opening.driver;
}

static tow_driver_t *open_flag(const char *name)
{
    const tow_pjrt_value_t value = {
        .name = name, .type = TOW_PJRT_BOOL, .bool_ = true};
    return open_with((tow_pjrt_open_t){.values = &value, .value_count = 1}, "");
}

static void expect_refused(tow_pjrt_open_t open, const char *mode,
                           tow_code_t code, const char *words)
{
    opening_t opening = {.open = open};
    begin_open(&opening, mode);
    FIXTURE_UNTIL(opening.is_done);
    assert_null(opening.driver);
    expect_refusal(opening.status, code, words);
}

/* -- Files and versions ------------------------------------------------------ */

static void plugin_that_is_not_there_is_not_found(void **state)
{
    expect_refused((tow_pjrt_open_t){.path = "/no/such/plugin.so"}, "",
                   TOW_NOT_FOUND, "/no/such/plugin.so");
    fixture_end();
}

static void plugin_that_is_no_library_is_refused(void **state)
{
    char path[] = "/tmp/tow-plugin-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    dprintf(file, "not a library\n");
    close(file);
    expect_refused((tow_pjrt_open_t){.path = path}, "", TOW_INVALID_ARGUMENT,
                   "does not load");
    unlink(path);
    fixture_end();
}

static void library_that_is_no_plugin_is_refused(void **state)
{
    Dl_info info;
    assert_int_not_equal(dladdr((void *)dlerror, &info), 0);
    expect_refused((tow_pjrt_open_t){.path = info.dli_fname}, "",
                   TOW_INVALID_ARGUMENT, "no GetPjrtApi");
    fixture_end();
}

static void plugin_of_another_version_is_refused(void **state)
{
    expect_refused((tow_pjrt_open_t){0}, "major=1", TOW_FAILED_PRECONDITION,
                   "speaks PJRT 1.90; we speak major version 0");
    expect_refused((tow_pjrt_open_t){0}, "minor=28", TOW_FAILED_PRECONDITION,
                   "speaks PJRT 0.28; the oldest that we know how to use is "
                   "0.29");
    expect_refused((tow_pjrt_open_t){0}, "null", TOW_FAILED_PRECONDITION,
                   "gave no table");
    expect_refused((tow_pjrt_open_t){0}, "size=16", TOW_FAILED_PRECONDITION,
                   "has no version");
    fixture_end();
}

static void plugin_without_a_function_that_we_need_is_refused(void **state)
{
    expect_refused((tow_pjrt_open_t){0}, "without=PJRT_Event_OnReady",
                   TOW_FAILED_PRECONDITION,
                   "(PJRT 0.90) has no PJRT_Event_OnReady, which we need");
    /* A table that ends before an entry does not have it. */
    expect_refused((tow_pjrt_open_t){0}, "minor=30 size=400",
                   TOW_FAILED_PRECONDITION, "which we need");
    fixture_end();
}

static void expect_sum(tow_driver_t *driver)
{
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {one, one}};
    expect_ok(probe_run(&run, executable, 2));
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_values(run.results[0], 2);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(one);
    tow_executable_release(executable);
}

static void plugin_of_an_old_version_does_what_it_can(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "minor=40 plain");
    assert_false(tow_driver_can_abort(driver));
    expect_sum(driver);
    fixture_close(driver);
}

static void plugin_of_a_newer_version_is_used_as_we_know_it(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "minor=900");
    assert_true(tow_driver_can_abort(driver));
    expect_sum(driver);
    fixture_close(driver);
}

static void plugin_may_lack_what_we_can_do_without(void **state)
{
    static const char *const modes[] = {
        "without=PJRT_Plugin_Initialize",
        "without=PJRT_Executable_Name",
        "without=PJRT_Buffer_ReadyEvent",
        "without=PJRT_Executable_GetCostAnalysis",
        "without=PJRT_Device_AddressableMemories",
        "without=PJRT_Device_DefaultMemory"};
    for (size_t i = 0; i < TOW_COUNT_OF(modes); i++) {
        tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, modes[i]);
        expect_sum(driver);
        fixture_close(driver);
    }
}

/* A plugin without our extension that has no asynchronous transfers, or no
 * copies between devices. */
static void plugin_that_cannot_be_ahead_of_the_data_says_so(void **state)
{
    tow_driver_t *driver = open_with(
        (tow_pjrt_open_t){0},
        "plain without=PJRT_Client_CreateBuffersForAsyncHostToDevice");
    upload_probe_t upload = {.upload = {.is_deferred = true}};
    expect_refusal(probe_upload(&upload, driver, 0, "f32[4]", NULL),
                   TOW_UNIMPLEMENTED, "deferred uploads");
    expect_sum(driver);
    fixture_close(driver);
    driver =
        open_with((tow_pjrt_open_t){0}, "without=PJRT_Buffer_CopyToDevice");
    tow_buffer_t *one = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    copy_probe_t copy;
    expect_refusal(probe_copy(&copy, one, 0), TOW_UNIMPLEMENTED, "copies");
    tow_buffer_release(one);
    fixture_close(driver);
}

static void plugin_that_cannot_initialise_says_why(void **state)
{
    expect_refused((tow_pjrt_open_t){0}, "initialize=fails",
                   TOW_FAILED_PRECONDITION,
                   "initialising: no driver in the kernel, of plugin ");
    fixture_end();
}

/* -- Options ----------------------------------------------------------------- */

static const int64_t one_two_three[] = {1, 2, 3};
static const tow_pjrt_value_t all_types[] = {
    {.name = "sums_to_six",
     .type = TOW_PJRT_INT64_LIST,
     .int64_list = one_two_three,
     .count = 3},
    {.name = "half", .type = TOW_PJRT_FLOAT, .float_ = 0.5F},
    {.name = "is_off_host", .type = TOW_PJRT_BOOL, .bool_ = true},
    {.name = "device_count", .type = TOW_PJRT_INT64, .int64 = 3},
    {.name = "refuse", .type = TOW_PJRT_STRING, .string = "no device"},
};

static void client_gets_options_of_all_types(void **state)
{
    const tow_pjrt_open_t good = {.values = all_types, .value_count = 4};
    const tow_pjrt_open_t refused = {.values = all_types, .value_count = 5};
    expect_refused(refused, "", TOW_UNAVAILABLE,
                   "making a client: no device, of plugin ");
    tow_driver_t *driver = open_with(good, "");
    assert_int_equal(driver->device_count, 3);
    tow_buffer_t *buffer = uploaded(driver, 2, (float[]){1, 2, 3, 4});
    FIXTURE_UNTIL(tow_buffer_state(buffer) == TOW_BUFFER_READY);
    void *address;
    expect_refusal(tow_buffer_address(buffer, &address), TOW_UNIMPLEMENTED,
                   "device 2 (fakium)");
    tow_buffer_release(buffer);
    fixture_close(driver);
}

static void driver_says_what_the_plugin_says(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    assert_string_equal(driver->platform, "fake");
    assert_string_equal(driver->version, "fake 1.0");
    assert_string_equal(driver->devices[0].kind, "fakium");
    assert_string_equal(driver->devices[0].name, "FakeDevice(id=100)");
    assert_int_equal(driver->devices[0].id, 100);
    assert_int_equal(driver->devices[0].memory_count, 2);
    assert_string_equal(driver->devices[0].memories[0].kind, "device");
    assert_string_equal(driver->devices[0].memories[1].kind, "pinned_host");
    assert_true(driver->devices[0].memories[0].is_default);
    assert_false(driver->devices[0].memories[1].is_default);
    assert_int_equal(driver->devices[0].memories[1].id, 1);
    assert_false(driver->simulated);
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    assert_string_equal(executable->signature.name, "add");
    assert_int_equal(executable->signature.code_bytes, 123);
    assert_int_equal(executable->signature.temporary_bytes, 45);
    assert_true(executable->signature.flops == 4);
    tow_executable_release(executable);
    fixture_close(driver);
}

/* -- Several hosts ----------------------------------------------------------- */

static void fill_host(opening_t *opening, tow_pjrt_value_t values[3],
                      int64_t host, tow_pjrt_table_t *table)
{
    values[0] = (tow_pjrt_value_t){
        .name = "host", .type = TOW_PJRT_INT64, .int64 = host};
    values[1] = (tow_pjrt_value_t){
        .name = "host_count", .type = TOW_PJRT_INT64, .int64 = 2};
    values[2] = (tow_pjrt_value_t){
        .name = "timeout_ms", .type = TOW_PJRT_INT64, .int64 = 60000};
    opening->open =
        (tow_pjrt_open_t){.values = values, .value_count = 3, .table = table};
}

static void hosts_find_each_other_through_a_table(void **state)
{
    tow_pjrt_table_t *table;
    expect_ok(tow_pjrt_table_create(&table));
    opening_t hosts[2] = {0};
    tow_pjrt_value_t values[2][3];
    for (int i = 0; i < 2; i++) {
        fill_host(&hosts[i], values[i], i, table);
        begin_open(&hosts[i], "");
    }
    FIXTURE_UNTIL(hosts[0].is_done && hosts[1].is_done);
    for (int i = 0; i < 2; i++) {
        expect_ok(hosts[i].status);
        fixture_close(hosts[i].driver);
    }
    tow_pjrt_table_destroy(table);
}

static void host_that_is_alone_gives_up(void **state)
{
    tow_pjrt_table_t *table;
    expect_ok(tow_pjrt_table_create(&table));
    opening_t host = {0};
    tow_pjrt_value_t values[3];
    fill_host(&host, values, 0, table);
    values[2].int64 = 1;
    expect_refused(host.open, "", TOW_DEADLINE_EXCEEDED,
                   "no key 'fake/1' within 1 ms");
    tow_pjrt_table_destroy(table);
    fill_host(&host, values, 0, NULL);
    expect_refused(host.open, "", TOW_FAILED_PRECONDITION,
                   "need key-value callbacks");
    fixture_end();
}

static void host_that_waits_leaves_when_the_table_stops(void **state)
{
    tow_pjrt_table_t *table;
    expect_ok(tow_pjrt_table_create(&table));
    opening_t host = {0};
    tow_pjrt_value_t values[3];
    fill_host(&host, values, 0, table);
    begin_open(&host, "");
    tow_pjrt_table_stop(table);
    FIXTURE_UNTIL(host.is_done);
    expect_refusal(host.status, TOW_CANCELLED, "stopped");
    tow_pjrt_table_destroy(table);
    fixture_end();
}

/* -- Late events ------------------------------------------------------------- */

static void release_held(int count)
{
    void *library = dlopen(fake_path(), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    void (*release)(int) = NULL;
    void *symbol = dlsym(library, "fake_pjrt_release");
    memcpy(&release, &symbol, sizeof(release));
    release(count);
    dlclose(library);
}

static tow_executable_t *compiled_text(tow_driver_t *driver, const char *text)
{
    compile_probe_t probe;
    expect_ok(probe_compile(&probe, driver, text, 1));
    outcome_expect(&probe.outcome, TOW_CODE_OK);
    return probe.executable;
}

static void promises_are_pending_until_the_event_comes(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    tow_executable_t *hold = compiled_text(driver, "hold 4");
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    expect_ok(probe_run(&first, hold, 1));
    run_probe_t second = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&second, hold, 1));
    float values[4] = {0};
    download_probe_t download;
    expect_ok(
        probe_download(&download, second.results[0], values, sizeof(values)));
    fixture_settle();
    assert_int_equal(first.outcome.done_count + second.outcome.done_count +
                         download.outcome.done_count,
                     0);
    assert_int_equal(tow_buffer_state(first.results[0]), TOW_BUFFER_PENDING);
    void *address;
    expect_refusal(tow_buffer_address(first.results[0], &address),
                   TOW_FAILED_PRECONDITION, "not ready");

    release_held(1);
    outcome_expect(&first.outcome, TOW_CODE_OK);
    fixture_settle();
    assert_int_equal(tow_buffer_state(first.results[0]), TOW_BUFFER_READY);
    assert_int_equal(tow_buffer_state(second.results[0]), TOW_BUFFER_PENDING);
    release_held(1);
    outcome_expect(&second.outcome, TOW_CODE_OK);
    outcome_expect(&download.outcome, TOW_CODE_OK);
    assert_float_equal(values[0], 1, 0);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(input);
    tow_executable_release(hold);
    fixture_close(driver);
}

static void close_waits_for_late_events(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    tow_executable_t *hold = compiled_text(driver, "hold 4");
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {input}};
    expect_ok(probe_run(&run, hold, 1));
    tow_buffer_release(run.results[0]);
    tow_buffer_release(input);
    tow_executable_release(hold);
    fixture_begin_close(driver);
    fixture_settle();
    assert_false(fixture_is_closed());
    release_held(1);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    fixture_end_close();
}

static void gang_that_is_aborted_fails_with_the_cause(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    tow_executable_t *hold = compiled_text(driver, "hold 4");
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t run = {.arguments = {input}};
    expect_ok(probe_run(&run, hold, 1));
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "host 7 is gone");
    tow_driver_abort(driver, run.run.gang_id + 1, cause); /* Another's. */
    fixture_settle();
    assert_int_equal(run.outcome.done_count, 0);
    tow_driver_abort(driver, run.run.gang_id, cause);
    tow_status_release(cause);
    FIXTURE_UNTIL(run.outcome.done_count > 0);
    expect_refusal(run.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    assert_int_equal(tow_buffer_state(run.results[0]), TOW_BUFFER_FAILED);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(input);
    tow_executable_release(hold);
    fixture_close(driver);
}

/* -- Errors ------------------------------------------------------------------ */

/* Runs `first` on an input, then `copy 4` on its result; both must fail with
 * this error. */
static void expect_poison(tow_driver_t *driver, const char *first_text,
                          tow_code_t code, const char *words)
{
    tow_executable_t *first = compiled_text(driver, first_text);
    tow_executable_t *copy = compiled_text(driver, "copy 4");
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t runs[3] = {{.arguments = {input}}};
    expect_ok(probe_run(&runs[0], first, 1));
    for (int i = 1; i < 3; i++) {
        runs[i].arguments[0] = runs[i - 1].results[0];
        expect_ok(probe_run(&runs[i], copy, 1));
    }
    for (int i = 0; i < 3; i++) {
        FIXTURE_UNTIL(runs[i].outcome.done_count > 0);
        expect_refusal(runs[i].outcome.status, code, words);
        assert_int_equal(tow_buffer_state(runs[i].results[0]),
                         TOW_BUFFER_FAILED);
        expect_refusal(tow_buffer_error(runs[i].results[0]), code, words);
        tow_buffer_release(runs[i].results[0]);
    }
    tow_buffer_release(input);
    tow_executable_release(first);
    tow_executable_release(copy);
}

static void error_names_the_device_and_the_plugin(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    expect_poison(driver, "fail 4", TOW_INTERNAL,
                  "the device caught fire, on device 0 (fakium) of plugin ");
    fixture_close(driver);
}

static void error_reaches_dependents_even_if_the_plugin_drops_it(void **state)
{
    tow_driver_t *driver = open_flag("drops_poison");
    expect_poison(driver, "fail 4", TOW_INTERNAL, "the device caught fire");
    fixture_close(driver);
}

/* The consumer's event is ready before the producer's. */
static void error_is_the_producers_even_if_it_comes_last(void **state)
{
    tow_driver_t *driver = open_flag("drops_poison");
    tow_executable_t *late = compiled_text(driver, "late 4");
    tow_executable_t *copy = compiled_text(driver, "copy 4");
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    expect_ok(probe_run(&first, late, 1));
    run_probe_t second = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&second, copy, 1));
    float values[4];
    download_probe_t download;
    expect_ok(
        probe_download(&download, second.results[0], values, sizeof(values)));
    /* In order, so when this one is done the copy is, too. */
    run_probe_t third = {.arguments = {input}};
    expect_ok(probe_run(&third, copy, 1));
    outcome_expect(&third.outcome, TOW_CODE_OK);
    fixture_settle();
    assert_int_equal(second.outcome.done_count + download.outcome.done_count,
                     0);
    assert_int_equal(tow_buffer_state(second.results[0]), TOW_BUFFER_PENDING);
    release_held(1);
    FIXTURE_UNTIL(first.outcome.done_count > 0 &&
                  second.outcome.done_count > 0 &&
                  download.outcome.done_count > 0);
    expect_refusal(first.outcome.status, TOW_INTERNAL, "caught fire");
    expect_refusal(second.outcome.status, TOW_INTERNAL, "caught fire");
    expect_refusal(download.outcome.status, TOW_INTERNAL, "caught fire");
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(third.results[0]);
    tow_buffer_release(input);
    tow_executable_release(late);
    tow_executable_release(copy);
    fixture_close(driver);
}

static void run_that_the_plugin_refuses_fails_in_its_turn(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    expect_poison(driver, "refuse 4", TOW_RESOURCE_EXHAUSTED,
                  "running refuse: no memory for the results");
    fixture_close(driver);
}

/* As it does with an input that is known to have failed. */
static void run_that_is_refused_has_its_producers_error(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    tow_executable_t *fails = compiled_text(driver, "fail 4");
    tow_executable_t *refuses = compiled_text(driver, "refuse 4");
    tow_buffer_t *input = uploaded(driver, 0, (float[]){1, 1, 1, 1});
    run_probe_t first = {.arguments = {input}};
    expect_ok(probe_run(&first, fails, 1));
    run_probe_t second = {.arguments = {first.results[0]}};
    expect_ok(probe_run(&second, refuses, 1));
    FIXTURE_UNTIL(first.outcome.done_count > 0 &&
                  second.outcome.done_count > 0);
    expect_refusal(first.outcome.status, TOW_INTERNAL, "caught fire");
    expect_refusal(second.outcome.status, TOW_INTERNAL, "caught fire");
    expect_refusal(tow_buffer_error(second.results[0]), TOW_INTERNAL,
                   "caught fire");
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(input);
    tow_executable_release(fails);
    tow_executable_release(refuses);
    fixture_close(driver);
}

static void upload_that_is_lost_poisons_its_buffer(void **state)
{
    tow_driver_t *driver = open_flag("fails_uploads");
    expect_poison(driver, "copy 4", TOW_DATA_LOSS, "the copy was lost");
    fixture_close(driver);
}

static void program_that_does_not_compile_says_why(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    compile_probe_t probe;
    expect_ok(probe_compile(&probe, driver, "hope 4", 1));
    FIXTURE_UNTIL(probe.outcome.done_count > 0);
    assert_null(probe.executable);
    expect_refusal(probe.outcome.status, TOW_INVALID_ARGUMENT,
                   "compiling: 'hope 4' is no program of the fake, of plugin ");
    probe.compile.format = TOW_PROGRAM_COST;
    expect_refusal(tow_driver_compile(driver, &probe.compile),
                   TOW_INVALID_ARGUMENT, "driver sim");
    fixture_close(driver);
}

/* -- Exhausted memory -------------------------------------------------------- */

typedef struct trial {
    tow_executable_t *executable;
    tow_buffer_t *input;
} trial_t;

static tow_exhaust_result_t run_and_download(void *context)
{
    trial_t *trial = context;
    const float ones[4] = {1, 1, 1, 1};
    float values[4];
    upload_probe_t upload = {0};
    download_probe_t download;
    run_probe_t run = {.arguments = {trial->input, NULL}};
    tow_driver_t *driver = trial->executable->driver;
    tow_status_t status = probe_upload(&upload, driver, 0, "f32[4]", ones);
    if (status == TOW_OK) {
        outcome_expect(&upload.outcome, TOW_CODE_OK);
        run.arguments[1] = upload.upload.buffer;
        status = probe_run(&run, trial->executable, 2);
        if (status == TOW_OK) {
            status = probe_download(&download, run.results[0], values,
                                    sizeof(values));
            if (status == TOW_OK)
                outcome_expect(&download.outcome, TOW_CODE_OK);
            outcome_expect(&run.outcome, TOW_CODE_OK);
            tow_buffer_release(run.results[0]);
        }
        tow_buffer_release(upload.upload.buffer);
    }
    const bool is_done = status == TOW_OK;
    tow_status_release(status);
    return is_done ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

/* As above; deferred uploads are settled whatever else fails. */
static tow_exhaust_result_t move_about(void *context)
{
    const trial_t *trial = context;
    const float ones[4] = {1, 1, 1, 1};
    upload_probe_t upload = {.upload = {.is_deferred = true}};
    copy_probe_t copy = {0};
    share_probe_t share = {0};
    tow_status_t status =
        probe_upload(&upload, trial->executable->driver, 0, "f32[4]", NULL);
    if (status == TOW_OK) {
        tow_buffer_t *late = upload.upload.buffer;
        status = probe_copy(&copy, late, 0);
        const bool is_copied = status == TOW_OK;
        if (is_copied) status = probe_share(&share, copy.copy.buffer);
        probe_settle(&upload, ones, TOW_OK);
        if (status == TOW_OK) {
            outcome_expect(&share.outcome, TOW_CODE_OK);
            tow_buffer_share_end(late->driver, &share.share);
        }
        if (is_copied) outcome_expect(&copy.outcome, TOW_CODE_OK);
        tow_buffer_release(copy.copy.buffer);
        tow_buffer_release(late);
        outcome_expect(&upload.outcome, TOW_CODE_OK);
    }
    const bool is_done = status == TOW_OK;
    tow_status_release(status);
    return is_done ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void operations_survive_without_memory(void **state)
{
    tow_driver_t *driver = open_with((tow_pjrt_open_t){0}, "");
    trial_t trial = {.executable = compiled(driver, PROGRAM_ADD),
                     .input = uploaded(driver, 0, (float[]){1, 1, 1, 1})};
    /* Memory that is kept for reuse is not a leak. */
    assert_int_equal(run_and_download(&trial), TOW_EXHAUST_SUCCEEDED);
    assert_true(tow_test_exhaust(run_and_download, &trial) > 0);
    assert_int_equal(move_about(&trial), TOW_EXHAUST_SUCCEEDED);
    assert_true(tow_test_exhaust(move_about, &trial) > 0);
    tow_buffer_release(trial.input);
    tow_executable_release(trial.executable);
    fixture_close(driver);
}

/* -- Probes ------------------------------------------------------------------ */

static tow_pjrt_open_t probed(void)
{
    const char *program = getenv("TOW_PJRT_PROBE");
    if (program == NULL) fixture_skip("TOW_PJRT_PROBE does not name the probe");
    return (tow_pjrt_open_t){.probe_program = program};
}

static void probe_lets_a_good_plugin_through(void **state)
{
    tow_pjrt_open_t open = probed();
    open.values = all_types;
    open.value_count = 4;
    tow_driver_t *driver = open_with(open, "");
    expect_sum(driver);
    fixture_close(driver);
}

static void probe_says_what_the_plugin_says(void **state)
{
    tow_pjrt_open_t open = probed();
    expect_refused(open, "initialize=fails", TOW_FAILED_PRECONDITION,
                   "no driver in the kernel");
    open.values = all_types;
    open.value_count = 5;
    expect_refused(open, "", TOW_UNAVAILABLE, "no device");
    fixture_end();
}

static void probe_dies_instead_of_us(void **state)
{
    expect_refused(probed(), "initialize=aborts", TOW_ABORTED,
                   "signal 6 (Aborted); its last output: check failed: 1 == 2");
    fixture_end();
}

static void probe_that_hangs_is_ended(void **state)
{
    tow_pjrt_open_t open = probed();
    open.probe_timeout_ns = 200 * 1000000;
    expect_refused(open, "initialize=hangs", TOW_DEADLINE_EXCEEDED,
                   "its limit, 200 ms");
    fixture_end();
}

static void probe_that_is_not_there_is_an_error(void **state)
{
    expect_refused((tow_pjrt_open_t){.probe_program = "/no/such/probe"}, "",
                   TOW_NOT_FOUND, "/no/such/probe");
    fixture_end();
}

TOW_TEST_MAIN(
    FIXTURE_CASE(plugin_that_is_not_there_is_not_found),
    FIXTURE_CASE(plugin_that_is_no_library_is_refused),
    FIXTURE_CASE(library_that_is_no_plugin_is_refused),
    FIXTURE_CASE(plugin_of_another_version_is_refused),
    FIXTURE_CASE(plugin_without_a_function_that_we_need_is_refused),
    FIXTURE_CASE(plugin_of_an_old_version_does_what_it_can),
    FIXTURE_CASE(plugin_of_a_newer_version_is_used_as_we_know_it),
    FIXTURE_CASE(plugin_may_lack_what_we_can_do_without),
    FIXTURE_CASE(plugin_that_cannot_be_ahead_of_the_data_says_so),
    FIXTURE_CASE(plugin_that_cannot_initialise_says_why),
    FIXTURE_CASE(client_gets_options_of_all_types),
    FIXTURE_CASE(driver_says_what_the_plugin_says),
    FIXTURE_CASE(hosts_find_each_other_through_a_table),
    FIXTURE_CASE(host_that_is_alone_gives_up),
    FIXTURE_CASE(host_that_waits_leaves_when_the_table_stops),
    FIXTURE_CASE(promises_are_pending_until_the_event_comes),
    FIXTURE_CASE(close_waits_for_late_events),
    FIXTURE_CASE(gang_that_is_aborted_fails_with_the_cause),
    FIXTURE_CASE(error_names_the_device_and_the_plugin),
    FIXTURE_CASE(error_reaches_dependents_even_if_the_plugin_drops_it),
    FIXTURE_CASE(error_is_the_producers_even_if_it_comes_last),
    FIXTURE_CASE(run_that_the_plugin_refuses_fails_in_its_turn),
    FIXTURE_CASE(run_that_is_refused_has_its_producers_error),
    FIXTURE_CASE(upload_that_is_lost_poisons_its_buffer),
    FIXTURE_CASE(program_that_does_not_compile_says_why),
    FIXTURE_CASE(operations_survive_without_memory),
    FIXTURE_CASE(probe_lets_a_good_plugin_through),
    FIXTURE_CASE(probe_says_what_the_plugin_says),
    FIXTURE_CASE(probe_dies_instead_of_us),
    FIXTURE_CASE(probe_that_hangs_is_ended),
    FIXTURE_CASE(probe_that_is_not_there_is_an_error))
