#include "base/testing.h"

#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/child/fork_request.h"

static char *child_argv[] = {"tow_compile_child", "1", "0", "plugin", NULL};

typedef struct stage {
    int client, server; /* the ends of the shared socket */
    int talk[2];        /* of the child */
} stage_t;

static int set_up(void **state)
{
    static stage_t stage;
    int ends[2];
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    stage.client = ends[0];
    stage.server = ends[1];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, stage.talk), 0);
    *state = &stage;
    return 0;
}

static int tear_down(void **state)
{
    stage_t *stage = *state;
    if (stage->client >= 0) close(stage->client);
    close(stage->server);
    close(stage->talk[0]);
    close(stage->talk[1]);
    return 0;
}

/* Sends a request from another process, because that waits; exits with the
 * result. */
static pid_t send_elsewhere(const stage_t *stage, char **sent_argv,
                            bool ends_it)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    close(stage->server);
    pid_t child = 0;
    int pid_fd = -1, control_fd = -1;
    if (!tow_fork_request_send(stage->client, sent_argv, stage->talk[1],
                               stage->talk[1], &child, &pid_fd, &control_fd))
        _exit(1);
    if (child != 77 || pid_fd < 0) _exit(2);
    if (!ends_it) _exit(0);
    _exit(tow_fork_end_child(control_fd) == SIGKILL ? 0 : 3);
}

static int exit_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* In place: argv points into it. */
static void receive_one(const stage_t *stage, tow_fork_request_t *out_request)
{
    struct timeval patience = {.tv_sec = 60};
    char byte;
    setsockopt(stage->server, SOL_SOCKET, SO_RCVTIMEO, &patience,
               sizeof(patience));
    assert_true(recv(stage->server, &byte, 1, MSG_PEEK) >= 0); /* Waits. */
    assert_int_equal(tow_fork_request_receive(stage->server, out_request),
                     TOW_FORK_REQUESTED);
}

static void request_arrives_and_the_end_is_reported(void **state)
{
    const stage_t *stage = *state;
    const pid_t client = send_elsewhere(stage, child_argv, true);
    tow_fork_request_t request;
    receive_one(stage, &request);
    assert_int_equal(request.argc, 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(request.argv[i], child_argv[i]);
    assert_null(request.argv[4]);
    assert_int_equal(write(request.socket_fd, "x", 1), 1);
    char byte = 0;
    assert_int_equal(read(stage->talk[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');

    const int pid_fd = pidfd_open(getpid(), 0);
    tow_fork_report_started(request.control_fd, 77, pid_fd);
    close(pid_fd);
    /* The client closes the control socket; it sends nothing else. */
    assert_int_equal(read(request.control_fd, &byte, 1), 0);
    tow_fork_report_ended(request.control_fd, SIGKILL);
    tow_fork_request_close(&request);
    assert_int_equal(exit_of(client), 0);
}

static void client_that_ends_closes_the_control_socket(void **state)
{
    const stage_t *stage = *state;
    const pid_t client = send_elsewhere(stage, child_argv, false);
    tow_fork_request_t request;
    receive_one(stage, &request);
    const int pid_fd = pidfd_open(getpid(), 0);
    tow_fork_report_started(request.control_fd, 77, pid_fd);
    close(pid_fd);
    assert_int_equal(exit_of(client), 0);
    char byte;
    assert_int_equal(read(request.control_fd, &byte, 1), 0);
    tow_fork_report_ended(request.control_fd,
                          0); /* No receiver, and no signal. */
    tow_fork_request_close(&request);
}

static void server_may_refuse_or_end(void **state)
{
    const stage_t *stage = *state;
    pid_t client = send_elsewhere(stage, child_argv, false);
    tow_fork_request_t request;
    receive_one(stage, &request);
    tow_fork_report_refused(request.control_fd);
    tow_fork_request_close(&request);
    assert_int_equal(exit_of(client), 1);

    client = send_elsewhere(stage, child_argv, false);
    receive_one(stage, &request);
    tow_fork_request_close(&request); /* Without a report. */
    assert_int_equal(exit_of(client), 1);
}

static void arguments_that_do_not_fit_are_not_sent(void **state)
{
    const stage_t *stage = *state;
    static char large[TOW_FORK_REQUEST_BYTES_MAX + 1];
    char *sent_argv[] = {"tow_compile_child", large, NULL};
    tow_fork_request_t request;
    memset(large, 'a', sizeof(large) - 1);
    assert_int_equal(exit_of(send_elsewhere(stage, sent_argv, false)), 1);
    assert_int_equal(tow_fork_request_receive(stage->server, &request),
                     TOW_FORK_NOTHING);
}

static void invalid_requests_are_discarded(void **state)
{
    stage_t *stage = *state;
    tow_fork_request_t request;
    static char large[2 * TOW_FORK_REQUEST_BYTES_MAX];
    assert_int_equal(send(stage->client, "words", 5, 0),
                     5); /* no descriptors */
    assert_int_equal(tow_fork_request_receive(stage->server, &request),
                     TOW_FORK_NOTHING);
    assert_true(send(stage->client, large, sizeof(large), 0) > 0);
    assert_int_equal(tow_fork_request_receive(stage->server, &request),
                     TOW_FORK_NOTHING);
    assert_int_equal(tow_fork_request_receive(stage->server, &request),
                     TOW_FORK_NOTHING);
    close(stage->client);
    stage->client = -1;
    assert_int_equal(tow_fork_request_receive(stage->server, &request),
                     TOW_FORK_DISCONNECTED);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(request_arrives_and_the_end_is_reported),
              CASE(client_that_ends_closes_the_control_socket),
              CASE(server_may_refuse_or_end),
              CASE(arguments_that_do_not_fit_are_not_sent),
              CASE(invalid_requests_are_discarded))
