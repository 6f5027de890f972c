/* Support for unit tests: cmocka, a main that prints TAP, and a harness that
 * fails allocations. For test programs only. See "Writing a test" in README.md.
 *
 *     static void map_iterates_in_insertion_order(void **state) { ... }
 *
 *     TOW_TEST_MAIN(cmocka_unit_test(map_iterates_in_insertion_order),
 *                   cmocka_unit_test_setup_teardown(other, set_up, tear_down))
 * */
#ifndef TOW_BASE_TESTING_H_
#define TOW_BASE_TESTING_H_

/* cmocka.h needs these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/macros.h"

/* Ends the running test as skipped, with the reason in the report. */
TOW_NORETURN void tow_test_skip(const char *reason);

/* Runs the tests in order under cmocka; one process runs one list. With
 * arguments, runs only those whose names match one of them (shell patterns).
 * Standard output carries TAP and nothing else: what tests and cmocka print
 * goes to standard error. Returns the exit status: 0 when none failed. */
int tow_test_main(int argc, char **argv, const struct CMUnitTest *tests,
                  size_t test_count);

#define TOW_TEST_MAIN(...)                                            \
    int main(int argc, char **argv)                                   \
    {                                                                 \
        const struct CMUnitTest tests[] = {__VA_ARGS__};              \
        return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests)); \
    }

/* The outcome of a body with failing allocations. */
typedef enum tow_exhaust_result {
    TOW_EXHAUST_FAILED,    /* reported the failure and undid its work */
    TOW_EXHAUST_SUCCEEDED, /* did all of its work and undid it */
} tow_exhaust_result_t;

typedef tow_exhaust_result_t (*tow_exhaust_body_t)(void *context);

/* Calls `body` with the 1st, then the 2nd, ... nth allocation of this thread
 * refused, until a call makes fewer than n and succeeds. Fails the test if a
 * call leaks, if `body` fails although nothing was refused, or if it is not
 * done after TOW_EXHAUST_CALL_COUNT_MAX calls. A body may succeed in spite of a
 * refusal, when it has another way. Returns how many allocations the
 * undisturbed body makes, so that a test can tell that the harness had
 * something to refuse.
 * */
uint64_t tow_test_exhaust(tow_exhaust_body_t body, void *context);

#define TOW_EXHAUST_CALL_COUNT_MAX 100000

#endif /* TOW_BASE_TESTING_H_ */
