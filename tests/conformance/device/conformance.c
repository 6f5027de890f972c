/* The suite: the contract of device/device.h as tests that run on each driver.
 * A driver without any entry has only the optional ones to pass. */
#include <string.h>

#include "fixture.h"

static const suite_t *const suites[] = {
    &compile_suite, &transfer_suite, &run_suite,      &gang_suite,
    &error_suite,   &deferred_suite, &share_suite,    &copy_suite,
    &close_suite,   &time_suite,     &optional_suite,
};

#define TEST_COUNT_MAX 128

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[TEST_COUNT_MAX];
    const bool can_nothing = subject.programs[PROGRAM_ADD] == NULL;
    size_t test_count = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(suites); i++) {
        if (can_nothing && suites[i] != &optional_suite) continue;
        TOW_ASSERT(test_count + suites[i]->test_count <= TEST_COUNT_MAX);
        memcpy(tests + test_count, suites[i]->tests,
               suites[i]->test_count * sizeof(tests[0]));
        test_count += suites[i]->test_count;
    }
    return tow_test_main(argc, argv, tests, test_count);
}
