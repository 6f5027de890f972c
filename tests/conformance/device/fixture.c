#include "fixture.h"

#include <string.h>
#include <time.h>

#include "device/options.h"
#include "env/net/net.h"
#include "wire/security.h"

#define WAIT_S_MAX     120
#define SETTLE_COUNT   50
#define SETTLE_WAIT_NS 100000
#define NS_PER_S       1000000000

#define PROBE_DEVICE_COUNT_MAX 16

static struct {
    tow_net_t *net;
    tow_security_t security;
    tow_driver_t *driver; /* that has been opened */
    tow_status_t status;
    bool is_opened;
    bool is_closed;
    int64_t deadline_ns;
    int finished_run_count;
    bool has_passed; /* the last test closed its driver */
} fixture = {.has_passed = true};

/* -- Turning ---------------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

void fixture_wait_begin(void)
{
    fixture.deadline_ns = now_ns() + (int64_t)WAIT_S_MAX * NS_PER_S;
}

void fixture_wait_step(const char *condition)
{
    tow_net_turn(fixture.net, NS_PER_S);
    if (now_ns() > fixture.deadline_ns)
        fail_msg("not within %d s: %s", WAIT_S_MAX, condition);
}

void fixture_settle(void)
{
    for (int i = 0; i < SETTLE_COUNT; i++)
        tow_net_turn(fixture.net, SETTLE_WAIT_NS);
}

/* -- Opening and closing ---------------------------------------------------- */

int fixture_set_up(void **state)
{
    (void)state;
    const char *why = subject.why_not != NULL ? subject.why_not() : NULL;
    if (why != NULL) tow_test_skip(why);
    /* The state of a failed test is abandoned: its probes are no longer
     * valid. */
    fixture.net = NULL;
    fixture.finished_run_count = 0;
    fixture.has_passed = false;
    expect_ok(
        tow_net_create(&(tow_net_options_t){.name = "device-test",
                                            .security = &fixture.security},
                       &fixture.net));
    return 0;
}

int fixture_tear_down(void **state)
{
    (void)state;
    if (fixture.has_passed && fixture.net != NULL) tow_net_destroy(fixture.net);
    fixture.net = NULL;
    return 0;
}

tow_env_t *fixture_env(void)
{
    return tow_net_env(fixture.net);
}

void fixture_opened(tow_status_t take_status, tow_driver_t *take_driver)
{
    fixture.status = take_status;
    fixture.driver = take_driver;
    fixture.is_opened = true;
}

static tow_driver_t *open_with(size_t device_count, uint64_t memory_bytes)
{
    fixture.is_opened = false;
    subject.open(fixture_env(), device_count, memory_bytes);
    FIXTURE_UNTIL(fixture.is_opened);
    expect_ok(fixture.status);
    assert_non_null(fixture.driver);
    assert_string_equal(fixture.driver->name, subject.name);
    return fixture.driver;
}

tow_driver_t *fixture_open(size_t device_count)
{
    return open_with(device_count, 0);
}

tow_driver_t *fixture_open_small(void)
{
    return open_with(1, SMALL_MEMORY_BYTES);
}

static void note_closed(void *context)
{
    (void)context;
    assert_false(fixture.is_closed);
    fixture.is_closed = true;
}

void fixture_begin_close(tow_driver_t *driver)
{
    fixture.is_closed = false;
    tow_driver_close(driver, (tow_closed_t){.run = note_closed});
    assert_false(fixture.is_closed); /* Never inside the call. */
}

bool fixture_is_closed(void)
{
    return fixture.is_closed;
}

void fixture_end_close(void)
{
    FIXTURE_UNTIL(fixture.is_closed);
    fixture.has_passed = true;
}

void fixture_close(tow_driver_t *driver)
{
    fixture_begin_close(driver);
    fixture_end_close();
}

void fixture_end(void)
{
    fixture.has_passed = true;
}

void fixture_skip(const char *reason)
{
    fixture_end();
    tow_test_skip(reason);
}

void fixture_require(program_t program)
{
    if (subject.programs[program] == NULL)
        fixture_skip("the driver has no such program");
}

void fixture_require_of(tow_driver_t *driver, bool can, const char *reason)
{
    if (can) return;
    fixture_close(driver);
    fixture_skip(reason);
}

/* -- Outcomes --------------------------------------------------------------- */

void expect_ok(tow_status_t take_status)
{
    if (take_status != TOW_OK)
        fail_msg("%s: %s", tow_code_name(tow_status_code(take_status)),
                 tow_status_message(take_status));
}

void expect_refusal(tow_status_t take_status, tow_code_t code,
                    const char *words)
{
    if (tow_status_code(take_status) != code ||
        strstr(tow_status_message(take_status), words) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", tow_code_name(code),
                 words, tow_code_name(tow_status_code(take_status)),
                 tow_status_message(take_status));
    tow_status_release(take_status);
}

static void note_done(outcome_t *outcome, tow_status_t take_status)
{
    assert_false(outcome->is_in_call);
    assert_int_equal(outcome->done_count, 0);
    outcome->done_count++;
    outcome->status = take_status;
}

void outcome_expect(outcome_t *outcome, tow_code_t code)
{
    FIXTURE_UNTIL(outcome->done_count > 0);
    if (tow_status_code(outcome->status) != code)
        fail_msg("expected %s, got %s: %s", tow_code_name(code),
                 tow_code_name(tow_status_code(outcome->status)),
                 tow_status_message(outcome->status));
    tow_status_release(outcome->status);
    outcome->status = TOW_OK;
}

/* -- Probes ----------------------------------------------------------------- */

static void compile_done(tow_compile_t *compile, tow_status_t take_status,
                         tow_executable_t *take_executable)
{
    compile_probe_t *probe =
        TOW_CONTAINER_OF(compile, compile_probe_t, compile);
    probe->executable = take_executable;
    note_done(&probe->outcome, take_status);
}

static void upload_done(tow_upload_t *upload, tow_status_t take_status)
{
    note_done(&TOW_CONTAINER_OF(upload, upload_probe_t, upload)->outcome,
              take_status);
}

static void download_done(tow_download_t *download, tow_status_t take_status)
{
    note_done(&TOW_CONTAINER_OF(download, download_probe_t, download)->outcome,
              take_status);
}

static void borrow_done(tow_buffer_share_t *share, tow_status_t take_status)
{
    note_done(&TOW_CONTAINER_OF(share, share_probe_t, share)->outcome,
              take_status);
}

static void copy_done(tow_copy_t *copy, tow_status_t take_status)
{
    note_done(&TOW_CONTAINER_OF(copy, copy_probe_t, copy)->outcome,
              take_status);
}

static void run_done(tow_run_t *run, tow_status_t take_status)
{
    run_probe_t *probe = TOW_CONTAINER_OF(run, run_probe_t, run);
    probe->sequence = fixture.finished_run_count++;
    note_done(&probe->outcome, take_status);
}

tow_status_t probe_compile(compile_probe_t *probe, tow_driver_t *driver,
                           const char *program, size_t device_count)
{
    *probe = (compile_probe_t){
        .compile = {.format = subject.format,
                    .program = {program, strlen(program)},
                    .done = compile_done},
        .outcome = {.is_in_call = true},
    };
    probe->options = options_pack(driver, 0, device_count);
    if (device_count > 1)
        probe->compile.options =
            (tow_bytes_t){probe->options.data, probe->options.size};
    tow_status_t status = tow_driver_compile(driver, &probe->compile);
    probe->outcome.is_in_call = false;
    return status;
}

static tow_status_t start_load(compile_probe_t *probe, tow_driver_t *driver)
{
    probe->compile.done = compile_done;
    probe->outcome = (outcome_t){.is_in_call = true};
    tow_status_t status = tow_driver_load(driver, &probe->compile);
    probe->outcome.is_in_call = false;
    return status;
}

tow_status_t probe_load(compile_probe_t *probe, tow_driver_t *driver,
                        const void *bytes, size_t size)
{
    *probe = (compile_probe_t){
        .compile = {.format = subject.format, .program = {bytes, size}}};
    return start_load(probe, driver);
}

tow_status_t probe_load_on(compile_probe_t *probe, tow_driver_t *driver,
                           const void *bytes, size_t size, size_t device)
{
    *probe = (compile_probe_t){
        .compile = {.format = subject.format, .program = {bytes, size}},
        .options = options_pack(driver, device, 1)};
    probe->compile.options =
        (tow_bytes_t){probe->options.data, probe->options.size};
    return start_load(probe, driver);
}

tow_status_t probe_upload(upload_probe_t *probe, tow_driver_t *driver,
                          size_t device, const char *shape, const void *bytes)
{
    const bool may_alias = probe->upload.may_alias;
    const bool is_deferred = probe->upload.is_deferred;
    *probe = (upload_probe_t){
        .upload = {.device = device,
                   .bytes = bytes,
                   .may_alias = may_alias,
                   .is_deferred = is_deferred,
                   .done = upload_done},
        .outcome = {.is_in_call = true},
    };
    expect_ok(tow_shape_parse(shape, &probe->upload.shape));
    tow_status_t status = tow_driver_upload(driver, &probe->upload);
    probe->outcome.is_in_call = false;
    return status;
}

tow_status_t probe_download(download_probe_t *probe, tow_buffer_t *buffer,
                            void *bytes, size_t size)
{
    *probe = (download_probe_t){
        .download = {.buffer = buffer,
                     .bytes = bytes,
                     .size = size,
                     .done = download_done},
        .outcome = {.is_in_call = true},
    };
    tow_status_t status = tow_driver_download(buffer->driver, &probe->download);
    probe->outcome.is_in_call = false;
    return status;
}

void probe_settle(upload_probe_t *probe, const void *bytes,
                  tow_status_t take_status)
{
    probe->upload.bytes = bytes;
    probe->outcome.is_in_call = true;
    tow_upload_settle(probe->upload.buffer->driver, &probe->upload,
                      take_status);
    probe->outcome.is_in_call = false;
}

tow_status_t probe_share(share_probe_t *probe, tow_buffer_t *buffer)
{
    *probe = (share_probe_t){
        .share = {.buffer = buffer, .done = borrow_done},
        .outcome = {.is_in_call = true},
    };
    tow_status_t status = tow_driver_share(buffer->driver, &probe->share);
    probe->outcome.is_in_call = false;
    return status;
}

tow_status_t probe_copy(copy_probe_t *probe, tow_buffer_t *source,
                        size_t device)
{
    *probe = (copy_probe_t){
        .copy = {.source = source, .device = device, .done = copy_done},
        .outcome = {.is_in_call = true},
    };
    tow_status_t status = tow_driver_copy(source->driver, &probe->copy);
    probe->outcome.is_in_call = false;
    return status;
}

tow_status_t probe_run(run_probe_t *probe, tow_executable_t *executable,
                       size_t argument_count)
{
    static uint64_t gang_count;
    probe->run.executable = executable;
    probe->run.gang_id = ++gang_count;
    probe->run.arguments = probe->arguments;
    probe->run.argument_count = argument_count;
    probe->run.results = probe->results;
    probe->run.done = run_done;
    probe->outcome = (outcome_t){.is_in_call = true};
    tow_status_t status = tow_driver_run(executable->driver, &probe->run);
    probe->outcome.is_in_call = false;
    return status;
}

/* -- Awaited ---------------------------------------------------------------- */

tow_executable_t *compiled_for(tow_driver_t *driver, program_t program,
                               size_t device_count)
{
    compile_probe_t probe;
    expect_ok(
        probe_compile(&probe, driver, subject.programs[program], device_count));
    outcome_expect(&probe.outcome, TOW_CODE_OK);
    assert_non_null(probe.executable);
    return probe.executable;
}

tow_executable_t *compiled(tow_driver_t *driver, program_t program)
{
    return compiled_for(driver, program, 1);
}

tow_buffer_t *uploaded(tow_driver_t *driver, size_t device,
                       const float values[4])
{
    upload_probe_t probe = {0};
    expect_ok(probe_upload(&probe, driver, device, "f32[4]", values));
    outcome_expect(&probe.outcome, TOW_CODE_OK);
    return probe.upload.buffer;
}

void expect_values(tow_buffer_t *buffer, float value)
{
    float values[4] = {0};
    download_probe_t probe;
    expect_ok(probe_download(&probe, buffer, values, sizeof(values)));
    outcome_expect(&probe.outcome, TOW_CODE_OK);
    for (int i = 0; i < 4 && subject.computes; i++)
        assert_float_equal(values[i], value, 0);
}

/* -- Options ---------------------------------------------------------------- */

options_bytes_t options_pack(const tow_driver_t *driver, size_t first_device,
                             size_t device_count)
{
    int64_t ids[PROBE_DEVICE_COUNT_MAX];
    if (driver->device_count == 0) return (options_bytes_t){.size = 0};
    assert_true(first_device + device_count <= driver->device_count &&
                device_count <= TOW_COUNT_OF(ids));
    for (size_t i = 0; i < device_count; i++)
        ids[i] = driver->devices[first_device + i].id;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = device_count, .device_ids = ids}};
    options_bytes_t packed;
    assert_true(tow_compile_options_size(&options) <= sizeof(packed.data));
    packed.size = tow_compile_options_pack(&options, packed.data);
    return packed;
}
