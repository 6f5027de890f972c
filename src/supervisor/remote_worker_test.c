/* The commands that run over ssh, with a script in its place. */
#include "supervisor/remote_worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/testing.h"
#include "supervisor/scratch_folder.h"

#define VERSION "tow 1.2.3 (commit abc), protocol 1"

static char folder[64];

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static const char *in_folder(const char *name)
{
    static char paths[8][128];
    static size_t next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, mode_t mode, const char *text)
{
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    chmod(in_folder(name), mode);
}

/* Runs the last argument here; hosts "down" and "slow" do not answer. */
static const char fake_ssh[] =
    "#!/bin/sh\n"
    "for last; do host=$previous; previous=$last; done\n"
    "case $host in\n"
    "down) echo 'noise' >&2; echo 'ssh: connect to down: refused' >&2; exit "
    "255;;\n"
    "esac\n"
    "echo Welcome to $host\n"
    "SSH_CONNECTION='10.0.0.1 5000 10.0.0.2 22' exec sh -c \"$last\"\n";

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tow-remote-XXXXXX");
    assert_non_null(mkdtemp(folder));
    write_file("ssh", 0700, fake_ssh);
    write_file("good", 0700, "#!/bin/sh\necho '" VERSION "'\necho ucx\n");
    write_file("other", 0700, "#!/bin/sh\necho 'tow 0.0.1'\n");
    setenv("TOW_SSH", in_folder("ssh"), 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tow_scratch_folder_remove(folder);
    return 0;
}

/* -- The check -------------------------------------------------------------- */

typedef struct reports {
    char text[4096];
    size_t count;
} reports_t;

static void on_report(void *context, const char *line)
{
    reports_t *reports = context;
    strncat(reports->text, line,
            sizeof(reports->text) - strlen(reports->text) - 1);
    reports->count++;
}

static tow_status_t check(const char *text, reports_t *reports, char *address)
{
    tow_hosts_t hosts;
    char whole[1024];
    snprintf(whole, sizeof(whole), text, folder, folder);
    must(tow_hosts_parse("hosts", whole, strlen(whole), &hosts));
    tow_status_t status =
        tow_remote_check(&(tow_remote_check_t){.hosts = &hosts,
                                               .version = VERSION,
                                               .report = on_report,
                                               .context = reports},
                         address);
    tow_hosts_deinit(&hosts);
    return status;
}

static void hosts_with_the_same_version_pass(void **state)
{
    (void)state;
    reports_t reports = {0};
    char address[TOW_REMOTE_ADDRESS_SIZE];
    must(check("a tow=%s/good\nb tow=%s/good workers=2\n", &reports, address));
    assert_string_equal(address, "10.0.0.1");
    assert_int_equal(reports.count, 2);
    assert_non_null(strstr(reports.text, "b: reached, 2 worker(s)"));
}

static void each_host_that_fails_has_a_line(void **state)
{
    (void)state;
    reports_t reports = {0};
    char address[TOW_REMOTE_ADDRESS_SIZE];
    tow_status_t status =
        check("a tow=%s/good\nb tow=%s/other\nc tow=/none/tow\ndown\n",
              &reports, address);
    const char *message = tow_status_message(status);
    assert_int_equal(tow_status_code(status), TOW_UNAVAILABLE);
    assert_non_null(strstr(message, "3 of 4 hosts failed:"));
    assert_non_null(
        strstr(message, "\nb: it has tow 0.0.1, and this host has " VERSION));
    assert_non_null(strstr(message, "\nc: there is no program /none/tow"));
    assert_non_null(
        strstr(message, "\ndown: ssh down exited with status 255: "
                        "ssh: connect to down: refused: try `ssh down true`"));
    assert_int_equal(reports.count, 4);
    tow_status_release(status);
}

static void a_missing_ssh_is_reported_once(void **state)
{
    (void)state;
    reports_t reports = {0};
    char address[TOW_REMOTE_ADDRESS_SIZE];
    setenv("TOW_SSH", "no-such-ssh", 1);
    tow_status_t status =
        check("a tow=%s/good\nb tow=%s/good\n", &reports, address);
    setenv("TOW_SSH", in_folder("ssh"), 1);
    assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
    assert_non_null(strstr(tow_status_message(status), "no-such-ssh"));
    assert_non_null(strstr(tow_status_message(status), "TOW_SSH"));
    assert_int_equal(reports.count, 0);
    tow_status_release(status);
}

/* -- Workers ---------------------------------------------------------------- */

/* Prints its arguments and the mode and content of its keys, and ends with its
 * standard input. */
static const char fake_tow[] = "#!/bin/sh\n"
                               "echo noise\n"
                               "stat -c '%a %s' \"$3\" >&2\n"
                               "stat -c '%a' \"$3/token\" >&2\n"
                               "cat \"$3/token\" \"$3/cert.pem\" >&2\n"
                               "ls \"$3\" >&2\n"
                               "echo folder \"$3\" >&2\n"
                               "echo \"$@\" >&2\n"
                               "echo ready >&3\n"
                               "cat >/dev/null\n";

static void read_text(const char *path, char *text, size_t capacity)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, capacity - 1, file)] = '\0';
    fclose(file);
}

static void start_worker(int ready_fd, tow_remote_process_t *process)
{
    tow_hosts_t hosts;
    char text[256];
    tow_credential_t credential;
    tow_ssh_command_t command;
    snprintf(text, sizeof(text), "a tow=%s/worker island=left devices=3",
             folder);
    must(tow_hosts_parse("hosts", text, strlen(text), &hosts));
    must(tow_credential_load(folder, &credential));
    must(tow_remote_worker_command(
        &(tow_remote_worker_t){.host = hosts.items,
                               .controller = "tls:10.0.0.1:400",
                               .name = "a-1",
                               .model = "tpu_v4",
                               .device_count = 8},
        &credential, &command));
    for (char **item = command.items; *item != NULL; item++)
        assert_null(strstr(*item, "secret"));
    must(tow_remote_worker_start(&command, &credential, in_folder("log"),
                                 ready_fd, process));
    tow_hosts_deinit(&hosts);
}

static void a_worker_gets_its_credential_and_leaves_nothing(void **state)
{
    (void)state;
    write_file("worker", 0700, fake_tow);
    write_file("token", 0600, "secret token\n");
    write_file("cert.pem", 0600, "a\nb\n");
    write_file("key.pem", 0600, "secret key"); /* The controller's alone. */
    int fds[2];
    char line[64] = "", log[2048], path[256];
    assert_int_equal(pipe(fds), 0);
    tow_remote_process_t process;
    start_worker(fds[1], &process);
    close(fds[1]);
    /* The fake ssh greets; libraries of the worker do not reach this pipe. */
    FILE *ready = fdopen(fds[0], "r");
    assert_non_null(fgets(line, sizeof(line), ready));
    assert_string_equal(line, "Welcome to a\n");
    assert_non_null(fgets(line, sizeof(line), ready));
    assert_string_equal(line, "ready\n");
    assert_int_equal(waitpid(process.pid, NULL, WNOHANG), 0);
    close(process.follow_fd);
    int exit_status;
    assert_int_equal(waitpid(process.pid, &exit_status, 0), process.pid);
    assert_int_equal(exit_status, 0);
    fclose(ready);
    read_text(in_folder("log"), log, sizeof(log));
    assert_non_null(strstr(log, "700 "));
    assert_non_null(strstr(log, "600\nsecret token\na\nb\ncert.pem\ntoken\n"));
    assert_non_null(strstr(log, "--controller tls:10.0.0.1:400 --name a-1 "
                                "--island left --simulated tpu_v4 "
                                "--devices 3"));
    assert_int_equal(sscanf(strstr(log, "folder "), "folder %255s", path), 1);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void a_plugin_that_a_shell_would_interpret_is_refused(void **state)
{
    (void)state;
    tow_host_t host = {.name = "a", .ssh = "a", .tow = "tow"};
    tow_credential_t credential = {0};
    tow_ssh_command_t command;
    tow_status_t status = tow_remote_worker_command(
        &(tow_remote_worker_t){.host = &host,
                               .controller = "tls:b:1",
                               .name = "a",
                               .plugin = "/tmp/$(reboot).so"},
        &credential, &command);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(TEST(hosts_with_the_same_version_pass),
              TEST(each_host_that_fails_has_a_line),
              TEST(a_missing_ssh_is_reported_once),
              TEST(a_worker_gets_its_credential_and_leaves_nothing),
              TEST(a_plugin_that_a_shell_would_interpret_is_refused))
