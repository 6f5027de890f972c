#include "base/testing.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"

static void fail_in_child(int stderr_fd)
{
    dup2(stderr_fd, STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);
    int barges = 3;
    TOW_ASSERT(barges == 4);
    _exit(0);
}

static void failed_assert_says_where_and_aborts(void **state)
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) fail_in_child(pipe_fds[1]);
    close(pipe_fds[1]);

    char said[256] = "";
    size_t length = 0;
    ssize_t count;
    while ((count = read(pipe_fds[0], said + length,
                         sizeof(said) - 1 - length)) > 0)
        length += (size_t)count;
    close(pipe_fds[0]);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    assert_non_null(strstr(said, "base/assert_test.c:"));
    assert_non_null(strstr(said, "barges == 4"));
}

static int evaluation_count;

static int count_evaluation(void)
{
    return ++evaluation_count;
}

static void assert_evaluates_its_expression_once(void **state)
{
    TOW_ASSERT(count_evaluation() == 1);
    assert_int_equal(evaluation_count, 1);
}

TOW_TEST_MAIN(cmocka_unit_test(failed_assert_says_where_and_aborts),
              cmocka_unit_test(assert_evaluates_its_expression_once))
