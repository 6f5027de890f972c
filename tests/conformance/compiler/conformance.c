/* The contract of every compiler; one test program for each. */
#include "fixture.h"
#include "subject.h"

#include "base/alloc.h"

#define QUEUE_COUNT_MAX 3

static tow_compiler_t *open_subject(void)
{
    return subject_open(QUEUE_COUNT_MAX);
}

static void close_subject(tow_compiler_t *compiler)
{
    fixture_close(compiler);
    subject_close();
}

static void program_becomes_bytes_and_a_signature(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t job = {.job.device_kind = subject.device_kind};
    job_submit(&job, compiler, subject.program, TOW_SUBMIT_OK);
    FIXTURE_UNTIL(job.done_count > 0);
    expect_ok(job.status);
    const tow_signature_t *signature = &job.compiled->signature;
    assert_true(job.compiled->size > 0);
    assert_int_equal(signature->replica_count, 1);
    assert_int_equal(signature->argument_count, 2);
    assert_int_equal(signature->result_count, 1);
    char text[TOW_SHAPE_TEXT_MAX];
    assert_string_equal(tow_shape_format(&signature->results[0].shape, text),
                        "f32[4]");
    assert_string_equal(tow_shape_format(&signature->arguments[1].shape, text),
                        "f32[4]");
    tow_compiled_destroy(job.compiled);
    close_subject(compiler);
}

static void program_that_is_wrong_is_refused_and_the_next_compiles(void **state)
{
    tow_compiler_t *compiler = open_subject();
    expect_fails(compiler, subject.malformed, TOW_INVALID_ARGUMENT,
                 subject.complaint);
    expect_fails(compiler, "", TOW_INVALID_ARGUMENT, "the test's is empty");
    expect_compiles(compiler, subject.program);
    close_subject(compiler);
}

static void program_for_another_kind_of_device_is_refused(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t job = {.job.device_kind = "abacus"};
    job_submit(&job, compiler, subject.program, TOW_SUBMIT_OK);
    job_expect(&job, TOW_INVALID_ARGUMENT, "of kind 'abacus'");
    close_subject(compiler);
}

static void options_that_are_no_options_are_refused(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t job = {.job.options = {"\xff\xff\xff", 3}};
    job_submit(&job, compiler, subject.program, TOW_SUBMIT_OK);
    FIXTURE_UNTIL(job.done_count > 0);
    assert_true(job.status != TOW_OK);
    tow_status_release(job.status);
    expect_compiles(compiler, subject.program);
    close_subject(compiler);
}

static void jobs_end_in_the_order_of_submission(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t jobs[QUEUE_COUNT_MAX + 1] = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++)
        job_submit(&jobs[i], compiler,
                   i == 1 ? subject.malformed : subject.program, TOW_SUBMIT_OK);
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++) {
        job_expect(&jobs[i], i == 1 ? TOW_INVALID_ARGUMENT : TOW_CODE_OK, "");
        assert_int_equal(jobs[i].sequence, i + 1);
    }
    close_subject(compiler);
}

static void queue_has_a_bound(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t jobs[QUEUE_COUNT_MAX + 1] = {0}, more = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++) /* The first one runs. */
        job_submit(&jobs[i], compiler, subject.program, TOW_SUBMIT_OK);
    job_submit(&more, compiler, subject.program, TOW_SUBMIT_FULL);
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++)
        job_expect(&jobs[i], TOW_CODE_OK, "");
    assert_int_equal(more.done_count, 0);
    expect_compiles(compiler, subject.program);
    close_subject(compiler);
}

static void jobs_can_be_cancelled(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t jobs[3] = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++)
        job_submit(&jobs[i], compiler, subject.program, TOW_SUBMIT_OK);
    tow_compiler_cancel(compiler, &jobs[1].job); /* waits */
    tow_compiler_cancel(compiler, &jobs[0].job); /* runs */
    tow_compiler_cancel(compiler, &jobs[0].job); /* again: harmless */
    assert_int_equal(jobs[0].done_count + jobs[1].done_count, 0);
    job_expect(&jobs[0], TOW_CANCELLED, "the test's was cancelled");
    job_expect(&jobs[1], TOW_CANCELLED, "the test's was cancelled");
    job_expect(&jobs[2], TOW_CODE_OK, "");
    tow_compiler_cancel(compiler, &jobs[2].job); /* is done: harmless */
    close_subject(compiler);
}

static void close_cancels_what_is_left(void **state)
{
    tow_compiler_t *compiler = open_subject();
    job_t jobs[3] = {0}, more = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++)
        job_submit(&jobs[i], compiler, subject.program, TOW_SUBMIT_OK);
    fixture_begin_close(compiler);
    job_submit(&more, compiler, subject.program, TOW_SUBMIT_CLOSING);
    for (size_t i = 0; i < TOW_COUNT_OF(jobs); i++)
        job_expect(&jobs[i], TOW_CANCELLED, "closing");
    FIXTURE_UNTIL(fixture_is_closed());
    assert_int_equal(more.done_count, 0);
    subject_close();
}

static void compiler_that_did_nothing_closes(void **state)
{
    close_subject(open_subject());
}

TOW_TEST_MAIN(
    FIXTURE_CASE(program_becomes_bytes_and_a_signature),
    FIXTURE_CASE(program_that_is_wrong_is_refused_and_the_next_compiles),
    FIXTURE_CASE(program_for_another_kind_of_device_is_refused),
    FIXTURE_CASE(options_that_are_no_options_are_refused),
    FIXTURE_CASE(jobs_end_in_the_order_of_submission),
    FIXTURE_CASE(queue_has_a_bound), FIXTURE_CASE(jobs_can_be_cancelled),
    FIXTURE_CASE(close_cancels_what_is_left),
    FIXTURE_CASE(compiler_that_did_nothing_closes))
