/* cmocka runs the tests; this file wraps each of them, records its outcome and
 * prints it as TAP. Outcomes are printed when the next test begins or the list
 * ends, because a failed assert leaves by longjmp past the wrapper.
 *
 * Why not cmocka's own TAP (1.1.5): it prints a skipped test as "not ok N #
 * SKIP name", which meson counts as failed and nameless; and it shares standard
 * output with the code under test, where one stray line makes the whole program
 * an error. */
#include "base/testing.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"

typedef struct runner {
    const struct CMUnitTest **chosen; /* owned array of the caller's tests */
    size_t chosen_count;
    size_t begun_count;
    size_t failed_count;
    int tap_fd;
    /* About the test begun last. */
    bool passed;
    bool torn_down;
    const char *skip_reason;
} runner_t;

static runner_t runner;

static const struct CMUnitTest *current_test(void)
{
    TOW_ASSERT(runner.begun_count > 0);
    return runner.chosen[runner.begun_count - 1];
}

static void report_current(void)
{
    if (runner.begun_count == 0) return;
    const char *name = current_test()->name;
    bool ok = runner.passed && runner.torn_down;
    if (runner.skip_reason != NULL) {
        dprintf(runner.tap_fd, "ok %zu - %s # SKIP %s\n", runner.begun_count,
                name, runner.skip_reason);
        return;
    }
    if (!ok) runner.failed_count++;
    dprintf(runner.tap_fd, "%s %zu - %s\n", ok ? "ok" : "not ok",
            runner.begun_count, name);
}

static int begin_test(void **state)
{
    report_current();
    runner.begun_count++;
    TOW_ASSERT(runner.begun_count <= runner.chosen_count);
    runner.passed = false;
    runner.torn_down = false;
    runner.skip_reason = NULL;
    const struct CMUnitTest *test = current_test();
    return test->setup_func == NULL ? 0 : test->setup_func(state);
}

static void perform_test(void **state)
{
    current_test()->test_func(state);
    runner.passed = true;
}

static int end_test(void **state)
{
    const struct CMUnitTest *test = current_test();
    int result = test->teardown_func == NULL ? 0 : test->teardown_func(state);
    runner.torn_down = result == 0;
    return result;
}

void tow_test_skip(const char *reason)
{
    runner.skip_reason = reason;
    skip();
    TOW_UNREACHABLE();
}

static bool is_chosen(const char *name, int argc, char **argv)
{
    if (argc < 2) return true;
    for (int i = 1; i < argc; i++) {
        if (fnmatch(argv[i], name, 0) == 0) return true;
    }
    return false;
}

/* Reserves standard output for TAP; everything else goes to standard error. The
 * saved descriptor closes on exec, so children cannot hold the pipe open. */
static void divert_standard_output(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    runner.tap_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    TOW_ASSERT(runner.tap_fd >= 0);
    TOW_ASSERT(dup2(STDERR_FILENO, STDOUT_FILENO) == STDOUT_FILENO);
    unsetenv("CMOCKA_MESSAGE_OUTPUT");
    cmocka_set_message_output(CM_OUTPUT_STDOUT);
}

int tow_test_main(int argc, char **argv, const struct CMUnitTest *tests,
                  size_t test_count)
{
    struct CMUnitTest *wrapped = calloc(test_count + 1, sizeof(*wrapped));
    runner.chosen = calloc(test_count + 1, sizeof(*runner.chosen));
    TOW_ASSERT(wrapped != NULL && runner.chosen != NULL);
    for (size_t i = 0; i < test_count; i++) {
        if (!is_chosen(tests[i].name, argc, argv)) continue;
        wrapped[runner.chosen_count] =
            (struct CMUnitTest){.name = tests[i].name,
                                .test_func = perform_test,
                                .setup_func = begin_test,
                                .teardown_func = end_test,
                                .initial_state = tests[i].initial_state};
        runner.chosen[runner.chosen_count++] = &tests[i];
    }
    divert_standard_output();
    dprintf(runner.tap_fd, "1..%zu%s\n", runner.chosen_count,
            runner.chosen_count == 0 ? " # SKIP no test has that name" : "");
    int failed = 0;
    if (runner.chosen_count > 0)
        failed = _cmocka_run_group_tests("tests", wrapped, runner.chosen_count,
                                         NULL, NULL);
    report_current();
    free(wrapped);
    free(runner.chosen);
    return failed != 0 || runner.failed_count != 0;
}

uint64_t tow_test_exhaust(tow_exhaust_body_t body, void *context)
{
    for (uint64_t nth = 0; nth < TOW_EXHAUST_CALL_COUNT_MAX; nth++) {
        int64_t live_before = tow_alloc_live_count();
        tow_alloc_fail_after(nth);
        tow_exhaust_result_t result = body(context);
        bool refused = tow_alloc_has_failed();
        tow_alloc_fail_after(UINT64_MAX);
        int64_t leaked = tow_alloc_live_count() - live_before;
        if (leaked != 0)
            fail_msg("%lld blocks leaked with allocation %llu refused",
                     (long long)leaked, (unsigned long long)nth + 1);
        if (refused) continue;
        if (result != TOW_EXHAUST_SUCCEEDED)
            fail_msg("failed although all %llu allocations were granted",
                     (unsigned long long)nth);
        return nth;
    }
    fail_msg("not done after %d calls", TOW_EXHAUST_CALL_COUNT_MAX);
    return 0;
}
