/* Files for `tow up --hosts`. */
#include "supervisor/hosts_file.h"

#include <stdio.h>
#include <string.h>

#include "base/testing.h"

static void parse(const char *text, tow_hosts_t *hosts)
{
    tow_status_t status = tow_hosts_parse("hosts", text, strlen(text), hosts);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void expect_error(const char *text, const char *part)
{
    tow_hosts_t hosts;
    tow_status_t status = tow_hosts_parse("hosts", text, strlen(text), &hosts);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    const char *message = tow_status_message(status);
    if (strstr(message, part) == NULL)
        fail_msg("'%s' has no '%s'", message, part);
    assert_null(strchr(message, '\n'));
    assert_null(hosts.items);
    tow_status_release(status);
}

static void a_line_is_a_host_with_its_settings(void **state)
{
    (void)state;
    tow_hosts_t hosts;
    parse("# comment\n"
          "\n"
          "node-1   # another\r\n"
          "node-2\tdevices=4 workers=2 island=left\n"
          "  node-3 ssh=me@10.0.0.3 port=2222 tow=/opt/tow-1/bin/tow",
          &hosts);
    assert_int_equal(hosts.count, 3);
    assert_int_equal(hosts.worker_count, 4);
    const tow_host_t *host = &hosts.items[0];
    assert_string_equal(host->name, "node-1");
    assert_string_equal(host->ssh, "node-1");
    assert_string_equal(host->tow, "tow");
    assert_string_equal(host->island, "");
    assert_int_equal(host->device_count, 0);
    assert_int_equal(host->worker_count, 1);
    assert_int_equal(host->line, 3);
    host = &hosts.items[1];
    assert_int_equal(host->device_count, 4);
    assert_int_equal(host->worker_count, 2);
    assert_string_equal(host->island, "left");
    host = &hosts.items[2];
    assert_string_equal(host->ssh, "me@10.0.0.3");
    assert_string_equal(host->tow, "/opt/tow-1/bin/tow");
    assert_int_equal(host->port, 2222);
    tow_hosts_deinit(&hosts);
}

static void errors_name_the_line(void **state)
{
    (void)state;
    expect_error("", "hosts names no host");
    expect_error("# only\n\n", "hosts names no host");
    expect_error("a\nb colour=red\n", "hosts:2: 'colour=red' is none of");
    expect_error("a b\n", "hosts:1: 'b' is none of");
    expect_error("a devices\n", "hosts:1: 'devices' is none of");
    expect_error("a devices=0\n", "hosts:1: devices is a whole number from 1");
    expect_error("a devices=1x\n", "'1x' is not");
    expect_error("a devices=\n", "'' is not");
    expect_error("a port=65536\n", "from 1 to 65535");
    expect_error("a workers=257\n", "from 1 to 256");
    expect_error("a workers=200\nb workers=57\n", "hosts:2: more than 256");
    expect_error("a\nb\na\n",
                 "hosts:3: host a is there twice, first in line 1");
}

/* They go to a command line of ssh, and to a shell there. */
static void words_that_a_shell_or_ssh_would_interpret_are_refused(void **state)
{
    (void)state;
    expect_error("-oProxyCommand=x\n", "does not begin with '-'");
    expect_error("a ssh=-oProxyCommand\n", "does not begin with '-'");
    expect_error("a ssh=$(x)\n", "hosts:1: ssh is");
    expect_error("a tow=tow;reboot\n", "hosts:1: tow is");
    expect_error("a tow='x'\n", "hosts:1: tow is");
    expect_error("a island=`x`\n", "hosts:1: island is");
    expect_error("a;b\n", "hosts:1: a host's name is");
    expect_error("\x01\xff\n", "'?\?' is not");
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    tow_hosts_t hosts;
    tow_status_t status = tow_hosts_load("/nowhere/hosts", &hosts);
    assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
    assert_non_null(strstr(tow_status_message(status), "/nowhere/hosts"));
    tow_status_release(status);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_line_is_a_host_with_its_settings),
    cmocka_unit_test(errors_name_the_line),
    cmocka_unit_test(words_that_a_shell_or_ssh_would_interpret_are_refused),
    cmocka_unit_test(a_missing_file_is_named))
