/* Properties of the child compiler only: the compiler may crash, hang, break
 * the protocol or be killed, and the service continues. With the fake plugin,
 * whose compiler does all of that. */
#include "fixture.h"
#include "subject.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/compiler/child.h"
#include "device/compiler/tuning.h"
#include "device/partition_query.h"

#define NS_PER_MS    1000000
#define LEFT_OPEN_FD 200 /* the fake plugin checks it */

/* Short for a test, and long enough for one line of a child that has
 * started. */
#define SHORT_TIMEOUT_NS ((int64_t)2000 * NS_PER_MS)

static tow_compiler_t *open_with(tow_child_compiler_options_t options)
{
    char program[4096];
    tow_compiler_t *compiler = NULL;
    if (options.plugin == NULL) options.plugin = subject_plugin();
    if (options.program == NULL) {
        expect_ok(tow_child_compiler_find(program, sizeof(program)));
        options.program = program;
    }
    expect_ok(tow_child_compiler_create(fixture_env(), &options, &compiler));
    return compiler;
}

static tow_compiler_t *open_plain(void)
{
    return open_with((tow_child_compiler_options_t){0});
}

static uint64_t started_count(const tow_compiler_t *compiler)
{
    return tow_child_compiler_stats(compiler).started_count;
}

/* -- Starting and replacing children ---------------------------------------- */

static void child_stays_for_the_next_program(void **state)
{
    tow_compiler_t *compiler = open_plain();
    assert_int_equal(started_count(compiler), 0);
    for (int i = 0; i < 5; i++)
        expect_compiles(compiler, "add 4");
    expect_fails(compiler, "hope 4", TOW_INVALID_ARGUMENT, "hope");
    expect_compiles(compiler, "add 4");
    assert_int_equal(started_count(compiler), 1);
    fixture_close(compiler);
}

static void child_that_has_compiled_enough_is_replaced(void **state)
{
    tow_compiler_t *compiler =
        open_with((tow_child_compiler_options_t){.compile_count_max = 2});
    for (int i = 0; i < 5; i++)
        expect_compiles(compiler, "add 4");
    assert_int_equal(started_count(compiler), 3);
    assert_int_equal(tow_child_compiler_stats(compiler).crashed_count, 0);
    fixture_close(compiler);
}

static void child_gets_the_options_of_the_client(void **state)
{
    const tow_pjrt_value_t value = {
        .name = "refuse", .type = TOW_PJRT_STRING, .string = "not today"};
    tow_compiler_t *compiler = open_with(
        (tow_child_compiler_options_t){.values = &value, .value_count = 1});
    expect_fails(compiler, "add 4", TOW_UNAVAILABLE, "not today");
    expect_fails(compiler, "add 4", TOW_UNAVAILABLE, "not today");
    fixture_close(compiler);
}

static void plugin_that_is_not_there_is_not_found(void **state)
{
    tow_compiler_t *compiler =
        open_with((tow_child_compiler_options_t){.plugin = "/no/such.so"});
    expect_fails(compiler, "add 4", TOW_NOT_FOUND, "/no/such.so");
    fixture_close(compiler);
}

static void program_that_is_not_there_is_not_found(void **state)
{
    tow_compiler_t *compiler =
        open_with((tow_child_compiler_options_t){.program = "/no/such"});
    expect_fails(compiler, "add 4", TOW_NOT_FOUND, "/no/such");
    fixture_close(compiler);
}

static void program_of_another_format_is_refused(void **state)
{
    tow_compiler_t *compiler = open_plain();
    job_t job = {.job.format = TOW_PROGRAM_COST};
    job_submit(&job, compiler, "towpath-cost 1", TOW_SUBMIT_OK);
    job_expect(&job, TOW_INVALID_ARGUMENT, "driver sim");
    fixture_close(compiler);
}

static void child_inherits_no_descriptor(void **state)
{
    assert_int_equal(dup2(STDERR_FILENO, LEFT_OPEN_FD), LEFT_OPEN_FD);
    tow_compiler_t *compiler = open_plain();
    expect_fails(compiler, "look around", TOW_UNKNOWN, "inherited nothing");
    close(LEFT_OPEN_FD);
    fixture_close(compiler);
}

static tow_exhaust_result_t make_one(void *context)
{
    const tow_pjrt_value_t value = {.name = "list",
                                    .type = TOW_PJRT_INT64_LIST,
                                    .int64_list = (const int64_t[]){1, 2},
                                    .count = 2};
    const tow_child_compiler_options_t options = {.program = "/no/such",
                                                  .plugin = "/no/such.so",
                                                  .values = &value,
                                                  .value_count = 1,
                                                  .child_count_max = 3};
    tow_compiler_t *compiler = NULL;
    tow_status_t status =
        tow_child_compiler_create(fixture_env(), &options, &compiler);
    assert_true((status == TOW_OK) == (compiler != NULL));
    tow_status_release(status);
    if (compiler == NULL) return TOW_EXHAUST_FAILED;
    fixture_close(compiler);
    return TOW_EXHAUST_SUCCEEDED;
}

static void compiler_without_memory_is_not_made(void **state)
{
    assert_true(tow_test_exhaust(make_one, NULL) > 0);
    const tow_child_compiler_options_t options = {
        .program = "", .plugin = "", .child_count_max = 1000};
    tow_compiler_t *compiler = NULL;
    tow_status_t status =
        tow_child_compiler_create(fixture_env(), &options, &compiler);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
}

/* -- Crashes and time limits ------------------------------------------------ */

static void crash_is_an_error_with_the_last_words(void **state)
{
    tow_compiler_t *compiler = open_plain();
    expect_compiles(compiler, "add 4");
    expect_fails(
        compiler, "abort", TOW_INTERNAL,
        "compiling the test's: its process ended by signal 6 (Aborted); its "
        "last output: noise check failed: 3 == 4");
    expect_compiles(compiler, "add 4");
    expect_fails(compiler, "segfault", TOW_INTERNAL,
                 "ended by signal 11 (Segmentation fault)");
    expect_fails(compiler, "exit", TOW_INTERNAL,
                 "ended by exit status 7 (without a reply)");
    expect_compiles(compiler, "add 4");
    assert_int_equal(started_count(compiler), 4);
    assert_int_equal(tow_child_compiler_stats(compiler).crashed_count, 3);
    fixture_close(compiler);
}

static void crash_before_the_program_is_not_blamed_on_it(void **state)
{
    setenv("TOW_FAKE_PJRT", "initialize=aborts", 1);
    tow_compiler_t *compiler = open_plain();
    expect_fails(compiler, "add 4", TOW_INTERNAL,
                 "starting the compiler of the test's: its process ended");
    unsetenv("TOW_FAKE_PJRT");
    expect_compiles(compiler, "add 4");
    fixture_close(compiler);
}

/* Tries again if the machine is so busy that a child starts too late. */
static void expect_compiles_at_last(tow_compiler_t *compiler)
{
    job_t job = {0};
    for (int i = 0; i < 20; i++) {
        job = (job_t){0};
        job_submit(&job, compiler, "add 4", TOW_SUBMIT_OK);
        FIXTURE_UNTIL(job.done_count > 0);
        if (tow_status_code(job.status) != TOW_DEADLINE_EXCEEDED) break;
        tow_status_release(job.status);
    }
    job_expect(&job, TOW_CODE_OK, "");
}

static void program_that_takes_too_long_is_ended(void **state)
{
    tow_compiler_t *compiler = open_with(
        (tow_child_compiler_options_t){.timeout_ns = SHORT_TIMEOUT_NS});
    expect_compiles_at_last(compiler);
    const uint64_t timed_out_count =
        tow_child_compiler_stats(compiler).timed_out_count;
    expect_fails(compiler, "hang", TOW_DEADLINE_EXCEEDED,
                 "compiling the test's took longer than its limit, 2000 ms, "
                 "and was ended; its last output: still optimising");
    assert_int_equal(tow_child_compiler_stats(compiler).timed_out_count,
                     timed_out_count + 1);
    expect_compiles_at_last(compiler);
    fixture_close(compiler);
}

static void garbage_is_an_error(void **state)
{
    tow_compiler_t *compiler = open_plain();
    expect_fails(compiler, "garbage", TOW_INTERNAL,
                 "sent an invalid message and was ended; its last output: gone "
                 "mad");
    expect_compiles(compiler, "add 4");
    fixture_close(compiler);
}

/* The shadow memory of sanitizers is above any limit. */
static void child_has_no_more_memory_than_it_may(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tow_compiler_t *compiler = open_plain();
    fixture_close(compiler);
    tow_test_skip("sanitizers take more memory than the limit");
#else
    tow_compiler_t *compiler = open_with(
        (tow_child_compiler_options_t){.memory_bytes_max = (uint64_t)4 << 30});
    expect_fails(compiler, "greedy", TOW_RESOURCE_EXHAUSTED,
                 "no more than 3 GiB");
    expect_compiles(compiler, "add 4");
    fixture_close(compiler);
#endif
}

/* -- Children that are killed ----------------------------------------------- */

/* Returns the process id of the child that was killed last. */
static pid_t kill_another(const tow_compiler_t *compiler, pid_t killed)
{
    const pid_t pid = tow_child_compiler_stats(compiler).pid;
    if (pid == 0 || pid == killed) return killed;
    kill(pid, SIGKILL);
    return pid;
}

static void child_that_is_killed_at_work_is_an_error(void **state)
{
    tow_compiler_t *compiler = open_plain();
    expect_compiles(compiler, "add 4"); /* So that there is one. */
    job_t job = {0};
    job_submit(&job, compiler, "hang", TOW_SUBMIT_OK);
    /* A child that had ended before the job was replaced. */
    pid_t killed = 0;
    FIXTURE_UNTIL(
        (killed = kill_another(compiler, killed), job.done_count > 0));
    job_expect(&job, TOW_INTERNAL, "signal 9 (Killed, by the user");
    expect_compiles(compiler, "add 4");
    fixture_close(compiler);
}

static void child_that_is_killed_at_rest_is_replaced(void **state)
{
    tow_compiler_t *compiler = open_plain();
    expect_compiles(compiler, "add 4");
    const pid_t pid = tow_child_compiler_stats(compiler).pid;
    kill(pid, SIGKILL);
    /* Until it is seen and reaped. */
    FIXTURE_UNTIL(tow_child_compiler_stats(compiler).pid == 0);
    expect_compiles(compiler, "add 4");
    assert_int_equal(started_count(compiler), 2);
    fixture_close(compiler);
}

static void job_that_hangs_can_be_cancelled(void **state)
{
    tow_compiler_t *compiler = open_plain();
    job_t hangs = {0}, waits = {0};
    job_submit(&hangs, compiler, "hang", TOW_SUBMIT_OK);
    job_submit(&waits, compiler, "add 4", TOW_SUBMIT_OK);
    FIXTURE_UNTIL(started_count(compiler) == 1);
    tow_compiler_cancel(compiler, &hangs.job);
    job_expect(&hangs, TOW_CANCELLED, "");
    job_expect(&waits, TOW_CODE_OK, "");
    fixture_close(compiler);
}

static void close_ends_a_child_at_work(void **state)
{
    tow_compiler_t *compiler = open_plain();
    job_t job = {0};
    job_submit(&job, compiler, "hang", TOW_SUBMIT_OK);
    FIXTURE_UNTIL(tow_child_compiler_stats(compiler).pid != 0);
    const pid_t pid = tow_child_compiler_stats(compiler).pid;
    fixture_close(compiler);
    job_expect(&job, TOW_CANCELLED, "closing");
    assert_int_equal(kill(pid, 0), -1); /* It has ended, and was reaped. */
}

static void children_work_side_by_side(void **state)
{
    tow_compiler_t *compiler =
        open_with((tow_child_compiler_options_t){.child_count_max = 2});
    job_t hangs = {0};
    job_submit(&hangs, compiler, "hang", TOW_SUBMIT_OK);
    for (int i = 0; i < 3; i++)
        expect_compiles(compiler, "add 4");
    assert_int_equal(hangs.done_count, 0);
    /* The first slot's thread may be slower than the whole second job. */
    FIXTURE_UNTIL(started_count(compiler) >= 2);
    assert_int_equal(started_count(compiler), 2);
    tow_compiler_cancel(compiler, &hangs.job);
    job_expect(&hangs, TOW_CANCELLED, "");
    fixture_close(compiler);
}

/* -- Partition queries ------------------------------------------------------ */

typedef struct asking {
    job_t job;
    int asked_count;
} asking_t;

static void note_asked(tow_compile_job_t *base, tow_bytes_t question)
{
    asking_t *asking = TOW_CONTAINER_OF(base, asking_t, job.job);
    tow_xla_partition_query_t asked;
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    expect_ok(tow_partition_query_unpack(question, &arena, &asked));
    assert_int_equal(asked.kind, TOW_XLA_QUERY_RESULT_SHARDING);
    assert_int_equal(asked.config.size, 5);
    assert_memory_equal(asked.config.data, "6 x 9", 5);
    tow_arena_deinit(&arena);
    asking->asked_count++;
}

static void begin_asking(asking_t *asking, tow_compiler_t *compiler)
{
    asking->job.job.on_query = note_asked;
    job_submit(&asking->job, compiler, "ask", TOW_SUBMIT_OK);
    FIXTURE_UNTIL(asking->asked_count == 1 || asking->job.done_count > 0);
}

static void answer(asking_t *asking, tow_compiler_t *compiler, const char *text)
{
    const tow_xla_partition_reply_t sent = {
        .result_sharding = {text, strlen(text)}};
    void *bytes;
    size_t size;
    expect_ok(tow_partition_reply_pack(&sent, &bytes, &size));
    tow_compiler_reply(compiler, &asking->job.job, (tow_bytes_t){bytes, size},
                       TOW_OK);
    tow_free(bytes);
}

static void questions_are_answered(void **state)
{
    tow_compiler_t *compiler = open_plain();
    asking_t asking = {0}, again = {0};
    begin_asking(&asking, compiler);
    answer(&asking, compiler, "forty-two");
    answer(&asking, compiler, "it has one already");
    job_expect(&asking.job, TOW_UNKNOWN, "answered: 'forty-two'");
    begin_asking(&again, compiler);
    tow_compiler_reply(compiler, &again.job.job, (tow_bytes_t){0},
                       TOW_ERROR(TOW_NOT_FOUND, "who knows"));
    job_expect(&again.job, TOW_UNKNOWN, "refused: 'who knows'");
    assert_int_equal(started_count(compiler), 1);
    fixture_close(compiler);
}

static void job_that_may_not_ask_is_told_so(void **state)
{
    tow_compiler_t *compiler = open_plain();
    expect_fails(compiler, "ask", TOW_UNKNOWN,
                 "refused: 'the program has a partitioned custom call");
    expect_compiles(compiler, "add 4");
    fixture_close(compiler);
}

static void others_compile_while_one_waits_for_its_answer(void **state)
{
    tow_compiler_t *compiler = open_plain();
    asking_t asking = {0};
    begin_asking(&asking, compiler);
    for (int i = 0; i < 2; i++)
        expect_compiles(compiler, "add 4");
    assert_int_equal(asking.job.done_count, 0);
    answer(&asking, compiler, "at last");
    job_expect(&asking.job, TOW_UNKNOWN, "answered: 'at last'");
    fixture_close(compiler);
}

static void time_stands_still_while_the_client_thinks(void **state)
{
    tow_compiler_t *compiler = open_with(
        (tow_child_compiler_options_t){.timeout_ns = SHORT_TIMEOUT_NS});
    asking_t asking = {0};
    job_t hangs = {0};
    begin_asking(&asking, compiler);
    job_submit(&hangs, compiler, "hang", TOW_SUBMIT_OK);
    job_expect(&hangs, TOW_DEADLINE_EXCEEDED, "took longer");
    answer(&asking, compiler, "at last");
    job_expect(&asking.job, TOW_UNKNOWN, "answered: 'at last'");
    fixture_close(compiler);
}

static void job_that_asks_can_be_cancelled(void **state)
{
    tow_compiler_t *compiler = open_plain();
    asking_t asking = {0}, closed = {0};
    begin_asking(&asking, compiler);
    tow_compiler_cancel(compiler, &asking.job.job);
    answer(&asking, compiler, "too late");
    job_expect(&asking.job, TOW_CANCELLED, "");
    expect_compiles(compiler, "add 4");
    begin_asking(&closed, compiler);
    fixture_close(compiler);
    job_expect(&closed.job, TOW_CANCELLED, "closing");
}

static void child_that_is_killed_while_it_asks_is_an_error(void **state)
{
    tow_compiler_t *compiler = open_plain();
    asking_t asking = {0};
    begin_asking(&asking, compiler);
    kill(tow_child_compiler_stats(compiler).pid, SIGKILL);
    job_expect(&asking.job, TOW_INTERNAL, "signal 9");
    answer(&asking, compiler, "too late");
    expect_compiles(compiler, "add 4");
    fixture_close(compiler);
}

/* One job more than may wait for replies is refused: it would occupy the last
 * child, which the functions of the others may need. */
static void no_more_than_a_few_ask_at_a_time(void **state)
{
    tow_compiler_t *compiler = open_plain();
    asking_t asking[TOW_COMPILER_QUERYING_COUNT_MAX] = {0}, more = {0};
    for (size_t i = 0; i < TOW_COMPILER_QUERYING_COUNT_MAX; i++)
        begin_asking(&asking[i], compiler);
    expect_compiles(compiler, "add 4");
    begin_asking(&more, compiler);
    job_expect(&more.job, TOW_UNKNOWN, "refused: ");
    assert_int_equal(more.asked_count, 0);
    for (size_t i = 0; i < TOW_COMPILER_QUERYING_COUNT_MAX; i++) {
        answer(&asking[i], compiler, "done");
        job_expect(&asking[i].job, TOW_UNKNOWN, "answered: 'done'");
    }
    fixture_close(compiler);
}

/* -- The end of the parent -------------------------------------------------- */

/* In another process: starts a child that hangs, reports its process id, and
 * waits to be killed. */
static void be_a_parent(int told_fd)
{
    tow_compiler_t *compiler = open_plain();
    job_t job = {0};
    job_submit(&job, compiler, "hang", TOW_SUBMIT_OK);
    FIXTURE_UNTIL(tow_child_compiler_stats(compiler).pid != 0);
    const pid_t pid = tow_child_compiler_stats(compiler).pid;
    if (write(told_fd, &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    FIXTURE_UNTIL(job.done_count > 0);
    _exit(1);
}

static void child_ends_with_its_parent(void **state)
{
    int told[2];
    pid_t child = 0;
    const char *plugin = subject_plugin();
    assert_non_null(plugin);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    assert_int_equal(pipe(told), 0);
    const pid_t parent = fork();
    if (parent == 0) {
        fixture_set_up(NULL); /* A loop of its own. */
        be_a_parent(told[1]);
    }
    close(told[1]);
    assert_int_equal(read(told[0], &child, sizeof(child)), sizeof(child));
    const int child_fd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(child_fd >= 0);
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    struct pollfd poll_fd = {.fd = child_fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 60000), 1);
    close(child_fd);
    close(told[0]);
    waitpid(child, NULL, 0); /* Ours now. */
    fixture_close(open_plain());
}

TOW_TEST_MAIN(FIXTURE_CASE(child_ends_with_its_parent),
              FIXTURE_CASE(child_stays_for_the_next_program),
              FIXTURE_CASE(child_that_has_compiled_enough_is_replaced),
              FIXTURE_CASE(child_gets_the_options_of_the_client),
              FIXTURE_CASE(plugin_that_is_not_there_is_not_found),
              FIXTURE_CASE(program_that_is_not_there_is_not_found),
              FIXTURE_CASE(program_of_another_format_is_refused),
              FIXTURE_CASE(child_inherits_no_descriptor),
              FIXTURE_CASE(compiler_without_memory_is_not_made),
              FIXTURE_CASE(crash_is_an_error_with_the_last_words),
              FIXTURE_CASE(crash_before_the_program_is_not_blamed_on_it),
              FIXTURE_CASE(program_that_takes_too_long_is_ended),
              FIXTURE_CASE(garbage_is_an_error),
              FIXTURE_CASE(child_has_no_more_memory_than_it_may),
              FIXTURE_CASE(child_that_is_killed_at_work_is_an_error),
              FIXTURE_CASE(child_that_is_killed_at_rest_is_replaced),
              FIXTURE_CASE(job_that_hangs_can_be_cancelled),
              FIXTURE_CASE(close_ends_a_child_at_work),
              FIXTURE_CASE(children_work_side_by_side),
              FIXTURE_CASE(questions_are_answered),
              FIXTURE_CASE(job_that_may_not_ask_is_told_so),
              FIXTURE_CASE(others_compile_while_one_waits_for_its_answer),
              FIXTURE_CASE(time_stands_still_while_the_client_thinks),
              FIXTURE_CASE(job_that_asks_can_be_cancelled),
              FIXTURE_CASE(child_that_is_killed_while_it_asks_is_an_error),
              FIXTURE_CASE(no_more_than_a_few_ask_at_a_time))
