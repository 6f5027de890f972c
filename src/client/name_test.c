/* Names of clients. */
#include "base/testing.h"

#include <string.h>

#include "client/name.h"

#define SCRIPT_OF(line, script)                                          \
    (tow_client_name_script(line, sizeof(line), script, sizeof(script)), \
     (script))

static void the_script_of_a_command_line_is_what_runs(void **state)
{
    (void)state;
    char script[64];
    assert_string_equal(SCRIPT_OF("/usr/bin/gang\0"
                                  "10",
                                  script),
                        "gang");
    assert_string_equal(SCRIPT_OF("python3\0train/train_lm.py\0--steps\0"
                                  "9",
                                  script),
                        "train_lm.py");
    assert_string_equal(
        SCRIPT_OF("/venv/bin/python\0-u\0-X\0dev\0-m\0pkg.train", script),
        "pkg.train");
    assert_string_equal(SCRIPT_OF("python3.11\0-c\0import jax", script), "-c");
    assert_string_equal(SCRIPT_OF("python3", script), "python3");
    assert_string_equal(SCRIPT_OF("python3\0-X", script), "python3");
}

static void a_name_has_user_host_process_and_script(void **state)
{
    (void)state;
    char name[TOW_CLIENT_NAME_SIZE];
    tow_client_name("a rather long name of a program\n", name);
    assert_true(strchr(name, '@') != NULL && strlen(name) <= TOW_PEER_NAME_MAX);
    assert_string_equal(strrchr(name, ':'), ":a_rather_long_name_of_");
    tow_client_name(NULL, name);
    assert_string_equal(strrchr(name, ':'), ":client_name_test");
}

TOW_TEST_MAIN(cmocka_unit_test(the_script_of_a_command_line_is_what_runs),
              cmocka_unit_test(a_name_has_user_host_process_and_script))
