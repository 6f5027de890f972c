#include "supervisor/subprocess.h"

#include <string.h>

#include "base/testing.h"

#define TIMEOUT_NS INT64_C(30000000000)

static tow_status_t run_shell(const char *script, int64_t timeout_ns,
                              char *text, size_t capacity)
{
    char *const argv[] = {"sh", "-c", (char *)script, NULL};
    char *const extra[] = {"TOW_TEST_VALUE=forty-two", NULL};
    tow_subprocess_t process;
    TOW_RETURN_IF_ERROR(
        tow_subprocess_start(argv, extra, TOW_SUBPROCESS_PIPE, &process));
    return tow_subprocess_finish(&process, "sh", timeout_ns, text, capacity);
}

static void expect_failure(tow_status_t status, tow_code_t code,
                           const char *part)
{
    assert_int_equal(tow_status_code(status), code);
    assert_non_null(strstr(tow_status_message(status), part));
    tow_status_release(status);
}

static void output_and_extra_environment_are_passed(void **state)
{
    char text[64];
    assert_ptr_equal(
        run_shell("echo $TOW_TEST_VALUE", TIMEOUT_NS, text, sizeof(text)),
        TOW_OK);
    assert_string_equal(text, "forty-two\n");
}

static void output_is_truncated_to_the_capacity(void **state)
{
    char text[5];
    assert_ptr_equal(run_shell("echo 123456789", TIMEOUT_NS, text, 5), TOW_OK);
    assert_string_equal(text, "1234");
}

static void a_failing_exit_names_the_status_and_quotes_the_output(void **state)
{
    char text[64];
    expect_failure(
        run_shell("echo bad; exit 3", TIMEOUT_NS, text, sizeof(text)),
        TOW_ABORTED, "sh exited with status 3: bad");
    expect_failure(run_shell("kill -9 $$", TIMEOUT_NS, text, sizeof(text)),
                   TOW_ABORTED, "sh was killed by signal 9");
}

static void a_process_past_its_timeout_is_killed(void **state)
{
    char text[64];
    expect_failure(run_shell("exec sleep 60", 50000000, text, sizeof(text)),
                   TOW_DEADLINE_EXCEEDED, "sh did not exit");
}

TOW_TEST_MAIN(
    cmocka_unit_test(output_and_extra_environment_are_passed),
    cmocka_unit_test(output_is_truncated_to_the_capacity),
    cmocka_unit_test(a_failing_exit_names_the_status_and_quotes_the_output),
    cmocka_unit_test(a_process_past_its_timeout_is_killed))
