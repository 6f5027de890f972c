#include "fixture.h"

#include "subject.h"

#include <time.h>

#include "env/net/net.h"
#include "wire/security.h"

#define WAIT_S_MAX 120
#define NS_PER_S   1000000000
#define TURN_NS    10000000

static struct {
    tow_net_t *net;
    tow_security_t security;
    bool is_closed;
    bool has_passed; /* the last test closed its compiler */
    int64_t deadline_ns;
    int ended_count;
} fixture;

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
    /* Some conditions change on other threads, without waking the loop. */
    tow_net_turn(fixture.net, TURN_NS);
    if (now_ns() > fixture.deadline_ns)
        fail_msg("not within %d s: %s", WAIT_S_MAX, condition);
}

int fixture_set_up(void **state)
{
    (void)state;
    /* The state of a failed test is abandoned: its jobs are no longer valid. */
    fixture.net = NULL;
    fixture.has_passed = false;
    fixture.ended_count = 0;
    expect_ok(
        tow_net_create(&(tow_net_options_t){.name = "compiler-test",
                                            .security = &fixture.security},
                       &fixture.net));
    return 0;
}

int fixture_tear_down(void **state)
{
    (void)state;
    if (fixture.has_passed) tow_net_destroy(fixture.net);
    return 0;
}

tow_env_t *fixture_env(void)
{
    return tow_net_env(fixture.net);
}

/* -- Closing ---------------------------------------------------------------- */

static void note_closed(void *context)
{
    (void)context;
    assert_false(fixture.is_closed);
    fixture.is_closed = true;
}

void fixture_begin_close(tow_compiler_t *compiler)
{
    fixture.is_closed = false;
    tow_compiler_close(compiler, (tow_closed_t){.run = note_closed});
    assert_false(fixture.is_closed); /* Never inside the call. */
}

bool fixture_is_closed(void)
{
    fixture.has_passed = fixture.is_closed;
    return fixture.is_closed;
}

void fixture_close(tow_compiler_t *compiler)
{
    fixture_begin_close(compiler);
    FIXTURE_UNTIL(fixture_is_closed());
}

/* -- Jobs ------------------------------------------------------------------- */

void expect_ok(tow_status_t take_status)
{
    if (take_status != TOW_OK)
        fail_msg("%s: %s", tow_code_name(tow_status_code(take_status)),
                 tow_status_message(take_status));
}

static void note_done(tow_compile_job_t *base, tow_status_t take_status,
                      tow_compiled_t *take_compiled)
{
    job_t *job = TOW_CONTAINER_OF(base, job_t, job);
    assert_false(job->is_in_call);
    assert_int_equal(job->done_count, 0);
    assert_true((take_status == TOW_OK) == (take_compiled != NULL));
    job->done_count++;
    job->sequence = ++fixture.ended_count;
    job->status = take_status;
    job->compiled = take_compiled;
}

void job_submit(job_t *job, tow_compiler_t *compiler, const char *program,
                tow_submit_result_t result)
{
    job->job.name = "the test's";
    if (job->job.format == TOW_PROGRAM_MLIR) job->job.format = subject.format;
    job->job.program = (tow_bytes_t){program, strlen(program)};
    job->job.done = note_done;
    job->done_count = 0;
    job->is_in_call = true;
    assert_int_equal(tow_compiler_submit(compiler, &job->job), result);
    job->is_in_call = false;
}

void job_expect(job_t *job, tow_code_t code, const char *words)
{
    FIXTURE_UNTIL(job->done_count > 0);
    if (tow_status_code(job->status) != code ||
        strstr(tow_status_message(job->status), words) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", tow_code_name(code),
                 words, tow_code_name(tow_status_code(job->status)),
                 tow_status_message(job->status));
    tow_status_release(job->status);
    tow_compiled_destroy(job->compiled);
    job->status = TOW_OK;
    job->compiled = NULL;
}

void expect_compiles(tow_compiler_t *compiler, const char *program)
{
    job_t job = {0};
    job_submit(&job, compiler, program, TOW_SUBMIT_OK);
    job_expect(&job, TOW_CODE_OK, "");
}

void expect_fails(tow_compiler_t *compiler, const char *program,
                  tow_code_t code, const char *words)
{
    job_t job = {0};
    job_submit(&job, compiler, program, TOW_SUBMIT_OK);
    job_expect(&job, code, words);
}
