#include "supervisor/fork_server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/child/fork_request.h"
#include "device/child/process.h"
#include "device/compiler/child.h"
#include "supervisor/process_title.h"

void tow_fork_server_init(tow_fork_server_t *server)
{
    *server = (tow_fork_server_t){.fd = -1};
}

/* Called after every change. */
static void check(const tow_fork_server_t *server)
{
    TOW_ASSERT(server->count <= TOW_FORK_SERVER_COUNT_MAX);
    for (size_t i = 0; i < server->count; i++)
        TOW_ASSERT(server->children[i].pid > 0 &&
                   server->children[i].control_fd >= 0);
}

/* -- One child ----------------------------------------------------------------- */

static void wait_for(pid_t pid, int *out_status)
{
    while (waitpid(pid, out_status, 0) < 0 && errno == EINTR) {
    }
}

static void discard(tow_fork_server_t *server, size_t index, int wait_status)
{
    tow_fork_report_ended(server->children[index].control_fd, wait_status);
    close(server->children[index].control_fd);
    server->children[index] = server->children[--server->count];
    check(server);
}

/* Kills a child with its process group. */
static void end_child(tow_fork_server_t *server, size_t index)
{
    const pid_t pid = server->children[index].pid;
    int wait_status = 0;
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    wait_for(pid, &wait_status);
    discard(server, index, wait_status);
}

#if TOW_HAS_PJRT

/* Duplicates `fd` above the descriptors of the child. */
static int move_above_child_fds(int fd)
{
    return fcntl(fd, F_DUPFD, TOW_CHILD_SOCKET_FD + 1);
}

/* Runs in the child: the same state as a compiler started as a program
 * (process.c). */
TOW_NORETURN static void become_compiler(tow_fork_request_t *request,
                                         pid_t parent)
{
    char text[24];
    sigset_t none;
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int socket_fd = move_above_child_fds(request->socket_fd),
              error_fd = move_above_child_fds(request->error_fd);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(error_fd, STDOUT_FILENO);
    dup2(error_fd, STDERR_FILENO);
    dup2(socket_fd, TOW_CHILD_SOCKET_FD);
    close_range(TOW_CHILD_SOCKET_FD + 1, ~0u, 0);
    tow_process_title_set(request->argv, request->argc);
    /* Its parent is this process, not the controller. */
    snprintf(text, sizeof(text), "%d", (int)parent);
    request->argv[1] = text;
    _exit(tow_compile_child_main((int)request->argc, request->argv));
}

static bool fork_child(tow_fork_server_t *server, tow_fork_request_t *request)
{
    if (server->count == TOW_FORK_SERVER_COUNT_MAX || request->argc < 2)
        return false;
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_compiler(request, parent);
    if (pid < 0) return false;
    setpgid(pid, pid); /* Set in both processes: either may run first. */
    const int pid_fd = pidfd_open(pid, 0);
    const int control_fd = fcntl(request->control_fd, F_DUPFD_CLOEXEC, 0);
    if (pid_fd < 0 || control_fd < 0) {
        kill(pid, SIGKILL);
        wait_for(pid, NULL);
        if (pid_fd >= 0) close(pid_fd);
        return false;
    }
    tow_fork_report_started(control_fd, pid, pid_fd);
    close(pid_fd);
    server->children[server->count].pid = pid;
    server->children[server->count++].control_fd = control_fd;
    return true;
}

#else

static bool fork_child(tow_fork_server_t *server, tow_fork_request_t *request)
{
    (void)server, (void)request;
    return false;
}

#endif

static void receive_request(tow_fork_server_t *server, bool can_fork)
{
    tow_fork_request_t request;
    switch (tow_fork_request_receive(server->fd, &request)) {
    case TOW_FORK_NOTHING: return;
    case TOW_FORK_DISCONNECTED:
        close(server->fd);
        server->fd = -1;
        return;
    case TOW_FORK_REQUESTED: break;
    }
    if (!can_fork || !fork_child(server, &request))
        tow_fork_report_refused(request.control_fd);
    tow_fork_request_close(&request);
}

/* -- All children --------------------------------------------------------- */

int tow_fork_server_open(tow_fork_server_t *server)
{
    int fds[2];
    tow_fork_server_close(server);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return -1;
    server->fd = fds[0];
    return fds[1];
}

size_t tow_fork_server_polls(const tow_fork_server_t *server,
                             struct pollfd polls[TOW_FORK_SERVER_POLL_MAX])
{
    polls[0] = (struct pollfd){.fd = server->fd, .events = POLLIN};
    for (size_t i = 0; i < server->count; i++)
        polls[1 + i] = (struct pollfd){.fd = server->children[i].control_fd,
                                       .events = POLLIN};
    return 1 + server->count;
}

void tow_fork_server_handle(tow_fork_server_t *server,
                            const struct pollfd *polls, size_t count,
                            bool can_fork)
{
    /* From the last, because removal moves the last child into the gap. The
     * only event on a control socket is that the controller closes it. */
    for (size_t i = count - 1; i > 0; i--)
        if (polls[i].revents != 0) end_child(server, i - 1);
    if (polls[0].revents != 0) receive_request(server, can_fork);
}

void tow_fork_server_reap(tow_fork_server_t *server)
{
    for (size_t i = server->count; i > 0; i--) {
        siginfo_t info = {0};
        const id_t pid = (id_t)server->children[i - 1].pid;
        if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0)
            end_child(server, i - 1); /* Kills its remaining process group. */
    }
}

void tow_fork_server_close(tow_fork_server_t *server)
{
    while (server->count > 0)
        end_child(server, server->count - 1);
    if (server->fd >= 0) close(server->fd);
    server->fd = -1;
}
