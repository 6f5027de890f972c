/* Host functions in child processes, without a cluster: one loop, one runner,
 * and calls of functions.c that succeed and fail. */
#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "device/host/child.h"
#include "device/host/tuning.h"
#include "device/signature.h"
#include "env/net/net.h"
#include "wire/security.h"

#define COUNT      100 /* elements at most */
#define WAIT_S_MAX 120
#define TURN_NS    10000000
#define NS_PER_S   INT64_C(1000000000)

static struct {
    tow_net_t *net;
    tow_security_t security;
    tow_host_runner_t *host;
    bool is_closed;
} fixture;

static void expect_ok(tow_status_t take_status)
{
    if (take_status != TOW_OK)
        fail_msg("%s: %s", tow_code_name(tow_status_code(take_status)),
                 tow_status_message(take_status));
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

/* The limit only prevents hanging. */
static void turn_until(const bool *condition, const char *what)
{
    const int64_t deadline_ns = now_ns() + WAIT_S_MAX * NS_PER_S;
    while (!*condition) {
        tow_net_turn(fixture.net, TURN_NS);
        if (now_ns() > deadline_ns)
            fail_msg("not within %d s: %s", WAIT_S_MAX, what);
    }
}

static int set_up(void **state)
{
    (void)state;
    fixture.is_closed = false;
    expect_ok(
        tow_net_create(&(tow_net_options_t){.name = "host-test",
                                            .security = &fixture.security},
                       &fixture.net));
    expect_ok(tow_host_child_create(
        tow_net_env(fixture.net),
        &(tow_host_child_options_t){.program = getenv("TOW_HOST_CHILD"),
                                    .name = "w0",
                                    .child_count_max = 2},
        &fixture.host));
    return 0;
}

static void note_closed(void *context)
{
    (void)context;
    fixture.is_closed = true;
}

static void close_host(void)
{
    tow_host_runner_close(fixture.host, (tow_closed_t){.run = note_closed});
    assert_false(fixture.is_closed); /* Not inside the call. */
    turn_until(&fixture.is_closed, "closed");
    tow_net_destroy(fixture.net);
}

/* -- Calls ------------------------------------------------------------------- */

/* (f32[COUNT]) -> (f32[<=COUNT]), for one shard of two. */
typedef struct call {
    tow_host_job_t job;
    tow_host_array_t input, output;
    float in[COUNT], out[COUNT];
    bool is_done;
    tow_status_t status; /* owned */
} call_t;

static void note_done(tow_host_job_t *job, tow_status_t take_status)
{
    call_t *call = TOW_CONTAINER_OF(job, call_t, job);
    assert_false(call->is_done);
    call->is_done = true;
    call->status = take_status;
}

static void *read_functions(size_t *out_size)
{
    FILE *file = fopen(getenv("TOW_HOST_FUNCTIONS"), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *out_size = (size_t)ftell(file);
    rewind(file);
    void *bytes = tow_malloc(*out_size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *out_size, file), *out_size);
    fclose(file);
    return bytes;
}

static tow_host_code_t *load(const char *symbol)
{
    static const uint32_t device = 0, shard = 1;
    const tow_array_info_t array = {
        .shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {COUNT}},
        .bytes = COUNT * sizeof(float)};
    tow_array_info_t bounded = array;
    bounded.bounds = 1;
    const tow_signature_t signature = {.name = symbol,
                                       .is_host = true,
                                       .replica_count = 1,
                                       .partition_count = 2,
                                       .argument_count = 1,
                                       .arguments = &array,
                                       .result_count = 1,
                                       .results = &bounded};
    void *packed;
    tow_host_code_options_t options = {.devices = &device,
                                       .shards = &shard,
                                       .device_count = 1,
                                       .device_count_max = 1};
    tow_host_code_t *code;
    options.take_bytes = read_functions(&options.size);
    expect_ok(tow_signature_pack(&signature, &packed, &options.signature.size));
    options.signature.data = packed;
    expect_ok(tow_host_code_create(&options, &code));
    tow_free(packed);
    return code;
}

static void submit(call_t *call, tow_host_code_t *code)
{
    for (size_t i = 0; i < COUNT; i++)
        call->in[i] = COUNT / 2 + (float)i;
    call->input = (tow_host_array_t){code->signature.arguments[0].shape,
                                     call->in, sizeof(call->in)};
    call->output = (tow_host_array_t){code->signature.results[0].shape,
                                      call->out, sizeof(call->out)};
    const bool is_probe = call->job.is_probe;
    const int64_t time_limit_ns = call->job.time_limit_ns;
    call->job = (tow_host_job_t){.code = code,
                                 .is_probe = is_probe,
                                 .inputs = &call->input,
                                 .outputs = &call->output,
                                 .shard = 1,
                                 .time_limit_ns = time_limit_ns != 0
                                                      ? time_limit_ns
                                                      : TOW_HOST_TIME_LIMIT_NS,
                                 .done = note_done};
    call->is_done = false;
    expect_ok(tow_host_runner_submit(fixture.host, &call->job));
    assert_false(call->is_done); /* Not inside the call. */
}

static void expect(call_t *call, tow_code_t code, const char *part)
{
    turn_until(&call->is_done, "done");
    if (tow_status_code(call->status) != code ||
        strstr(tow_status_message(call->status), part) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", tow_code_name(code), part,
                 tow_code_name(tow_status_code(call->status)),
                 tow_status_message(call->status));
    tow_status_release(call->status);
}

static void expect_keep_works(void)
{
    tow_host_code_t *code = load("keep");
    call_t call = {0};
    submit(&call, code);
    expect(&call, TOW_CODE_OK, "");
    assert_int_equal(call.output.shape.dims[0], COUNT / 2);
    assert_memory_equal(call.out, call.in, COUNT / 2 * sizeof(float));
    tow_host_code_release(code);
}

/* The next call succeeds. */
static void expect_fails(const char *symbol, tow_code_t status_code,
                         const char *part)
{
    tow_host_code_t *code = load(symbol);
    call_t call = {0};
    submit(&call, code);
    expect(&call, status_code, part);
    tow_host_code_release(code);
    expect_keep_works();
}

/* -- Tests ------------------------------------------------------------------- */

static void a_function_chooses_the_size_of_its_output(void **state)
{
    (void)state;
    expect_keep_works();
    expect_keep_works(); /* In the same child process. */
    close_host();
}

static void an_unused_runner_closes(void **state)
{
    (void)state;
    close_host();
}

static void a_failure_has_the_message_of_the_function(void **state)
{
    (void)state;
    expect_fails("fail_one", TOW_ABORTED, "with 42: shard 1 is out of sorts");
    close_host();
}

static void a_crash_is_an_error_with_the_last_output(void **state)
{
    (void)state;
    expect_fails("crash", TOW_INTERNAL,
                 "by signal 11 (Segmentation fault); its last output: here it "
                 "comes");
    expect_fails("leave", TOW_INTERNAL, "exit status 3 (without a reply)");
    close_host();
}

static void invalid_replies_are_errors(void **state)
{
    (void)state;
    expect_fails("lie", TOW_OUT_OF_RANGE, "with 101 in dimension 0");
    expect_fails("babble", TOW_INTERNAL, "invalid message");
    expect_fails("nosuch", TOW_NOT_FOUND, "no such symbol");
    close_host();
}

static void a_probe_does_not_call_the_function(void **state)
{
    tow_host_code_t *code = load("crash");
    call_t probe = {.job.is_probe = true};
    (void)state;
    submit(&probe, code);
    expect(&probe, TOW_CODE_OK, "");
    tow_host_code_release(code);
    close_host();
}

static void a_call_beyond_its_time_limit_is_ended(void **state)
{
    tow_host_code_t *code = load("hang");
    call_t call = {.job.time_limit_ns = NS_PER_S / 10};
    (void)state;
    submit(&call, code);
    expect(&call, TOW_DEADLINE_EXCEEDED, "its limit, 100 ms");
    tow_host_code_release(code);
    expect_keep_works();
    close_host();
}

/* With three calls on two children one is queued, and can be cancelled too. */
static void calls_can_be_cancelled(void **state)
{
    tow_host_code_t *code = load("hang");
    call_t calls[3] = {0};
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(calls); i++)
        submit(&calls[i], code);
    for (size_t i = TOW_COUNT_OF(calls); i-- > 0;) {
        tow_host_runner_cancel(fixture.host, &calls[i].job);
        assert_false(calls[i].is_done);
        expect(&calls[i], TOW_CANCELLED,
               "host function hang on worker w0 was cancelled");
    }
    tow_host_code_release(code);
    expect_keep_works();
    close_host();
}

static void closing_cancels_remaining_calls(void **state)
{
    tow_host_code_t *code = load("hang");
    call_t calls[3] = {0};
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(calls); i++)
        submit(&calls[i], code);
    close_host();
    for (size_t i = 0; i < TOW_COUNT_OF(calls); i++) {
        assert_true(calls[i].is_done);
        expect(&calls[i], TOW_CANCELLED, "cancelled");
    }
    tow_host_code_release(code);
}

#define CASE(name) cmocka_unit_test_setup(name, set_up)

TOW_TEST_MAIN(CASE(a_function_chooses_the_size_of_its_output),
              CASE(an_unused_runner_closes),
              CASE(a_failure_has_the_message_of_the_function),
              CASE(a_crash_is_an_error_with_the_last_output),
              CASE(invalid_replies_are_errors),
              CASE(a_probe_does_not_call_the_function),
              CASE(a_call_beyond_its_time_limit_is_ended),
              CASE(calls_can_be_cancelled),
              CASE(closing_cancels_remaining_calls))
