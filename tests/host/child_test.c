/* Host functions in child processes, without a cluster: one loop, one runner,
 * and calls of functions.c that do well and badly. */
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

#define COUNT      100 /* elements at the most */
#define WAIT_S_MAX 120
#define TURN_NS    10000000
#define NS_PER_S   INT64_C(1000000000)

static struct {
    tow_net_t *net;
    tow_security_t security;
    tow_host_runner_t *host;
    bool is_closed;
} world;

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

/* The bound is there only to fail instead of to hang. */
static void turn_until(const bool *condition, const char *what)
{
    const int64_t deadline_ns = now_ns() + WAIT_S_MAX * NS_PER_S;
    while (!*condition) {
        tow_net_turn(world.net, TURN_NS);
        if (now_ns() > deadline_ns)
            fail_msg("not within %d s: %s", WAIT_S_MAX, what);
    }
}

static int set_up(void **state)
{
    (void)state;
    world.is_closed = false;
    expect_ok(tow_net_create(
        &(tow_net_options_t){.name = "host-test", .security = &world.security},
        &world.net));
    expect_ok(tow_host_child_create(
        tow_net_env(world.net),
        &(tow_host_child_options_t){.program = getenv("TOW_HOST_CHILD"),
                                    .name = "w0",
                                    .child_count_max = 2},
        &world.host));
    return 0;
}

static void note_closed(void *context)
{
    (void)context;
    world.is_closed = true;
}

static void close_host(void)
{
    tow_host_runner_close(world.host, (tow_closed_t){.run = note_closed});
    assert_false(world.is_closed); /* Never inside the call. */
    turn_until(&world.is_closed, "closed");
    tow_net_destroy(world.net);
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
    expect_ok(tow_host_runner_submit(world.host, &call->job));
    assert_false(call->is_done); /* Never inside the call. */
}

static void expect(call_t *call, tow_code_t code, const char *words)
{
    turn_until(&call->is_done, "done");
    if (tow_status_code(call->status) != code ||
        strstr(tow_status_message(call->status), words) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", tow_code_name(code),
                 words, tow_code_name(tow_status_code(call->status)),
                 tow_status_message(call->status));
    tow_status_release(call->status);
}

static void expect_keeps(void)
{
    tow_host_code_t *code = load("keep");
    call_t call = {0};
    submit(&call, code);
    expect(&call, TOW_CODE_OK, "");
    assert_int_equal(call.output.shape.dims[0], COUNT / 2);
    assert_memory_equal(call.out, call.in, COUNT / 2 * sizeof(float));
    tow_host_code_release(code);
}

/* After it, the next call is served as though nothing had been. */
static void expect_fails(const char *symbol, tow_code_t status_code,
                         const char *words)
{
    tow_host_code_t *code = load(symbol);
    call_t call = {0};
    submit(&call, code);
    expect(&call, status_code, words);
    tow_host_code_release(code);
    expect_keeps();
}

/* -- Tests ------------------------------------------------------------------- */

static void function_gives_as_many_as_it_likes(void **state)
{
    (void)state;
    expect_keeps();
    expect_keeps(); /* By the same child. */
    close_host();
}

static void runner_that_did_nothing_closes(void **state)
{
    (void)state;
    close_host();
}

static void failure_has_the_function_s_words(void **state)
{
    (void)state;
    expect_fails("fail_one", TOW_ABORTED, "with 42: shard 1 is out of sorts");
    close_host();
}

static void crash_is_an_error_with_the_last_words(void **state)
{
    (void)state;
    expect_fails("crash", TOW_INTERNAL,
                 "by signal 11 (Segmentation fault); its last words: here it "
                 "comes");
    expect_fails("leave", TOW_INTERNAL, "exit status 3 (without an answer)");
    close_host();
}

static void answers_without_sense_are_errors(void **state)
{
    (void)state;
    expect_fails("lie", TOW_OUT_OF_RANGE, "with 101 in dimension 0");
    expect_fails("babble", TOW_INTERNAL, "makes no sense");
    expect_fails("nosuch", TOW_NOT_FOUND, "no such symbol");
    close_host();
}

static void probe_calls_nothing(void **state)
{
    tow_host_code_t *code = load("crash");
    call_t probe = {.job.is_probe = true};
    (void)state;
    submit(&probe, code);
    expect(&probe, TOW_CODE_OK, "");
    tow_host_code_release(code);
    close_host();
}

static void call_past_its_limit_is_ended(void **state)
{
    tow_host_code_t *code = load("hang");
    call_t call = {.job.time_limit_ns = NS_PER_S / 10};
    (void)state;
    submit(&call, code);
    expect(&call, TOW_DEADLINE_EXCEEDED, "its limit, 100 ms");
    tow_host_code_release(code);
    expect_keeps();
    close_host();
}

/* Of three on two children one waits, and may be cancelled there too. */
static void calls_can_be_cancelled(void **state)
{
    tow_host_code_t *code = load("hang");
    call_t calls[3] = {0};
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(calls); i++)
        submit(&calls[i], code);
    for (size_t i = TOW_COUNT_OF(calls); i-- > 0;) {
        tow_host_runner_cancel(world.host, &calls[i].job);
        assert_false(calls[i].is_done);
        expect(&calls[i], TOW_CANCELLED, "hang was cancelled");
    }
    tow_host_code_release(code);
    expect_keeps();
    close_host();
}

static void close_cancels_what_is_left(void **state)
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

TOW_TEST_MAIN(CASE(function_gives_as_many_as_it_likes),
              CASE(runner_that_did_nothing_closes),
              CASE(failure_has_the_function_s_words),
              CASE(crash_is_an_error_with_the_last_words),
              CASE(answers_without_sense_are_errors), CASE(probe_calls_nothing),
              CASE(call_past_its_limit_is_ended), CASE(calls_can_be_cancelled),
              CASE(close_cancels_what_is_left))
