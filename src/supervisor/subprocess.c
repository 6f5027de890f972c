#include "supervisor/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Runs in the child between fork and exec. Callers have one thread, so fork is
 * safe; libraries that live in users' processes use posix_spawn. */
TOW_NORETURN static void become(const char *program, char *const argv[],
                                char *const extra[], int output_fd,
                                pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* The parent is already dead. */
    if (output_fd >= 0) dup2(output_fd, STDOUT_FILENO);
    for (size_t i = 0; extra != NULL && extra[i] != NULL; i++)
        putenv(extra[i]);
    execvp(program, argv);
    fprintf(stderr, "tow: cannot run %s: %s\n", program, strerror(errno));
    _exit(127);
}

static tow_status_t start(const char *program, char *const argv[],
                          char *const extra[], tow_subprocess_output_t output,
                          tow_subprocess_t *out_process)
{
    *out_process = (tow_subprocess_t){.output_fd = -1};
    int pipe_fds[2] = {-1, -1};
    if (output == TOW_SUBPROCESS_PIPE && pipe2(pipe_fds, O_CLOEXEC) != 0)
        return TOW_ERRNO(errno, "making a pipe for %s", argv[0]);
    fflush(stdout);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) become(program, argv, extra, pipe_fds[1], parent);
    int error = errno;
    if (pipe_fds[1] >= 0) close(pipe_fds[1]);
    if (pid < 0) {
        if (pipe_fds[0] >= 0) close(pipe_fds[0]);
        return TOW_ERRNO(error, "starting %s", argv[0]);
    }
    *out_process = (tow_subprocess_t){.pid = pid, .output_fd = pipe_fds[0]};
    return TOW_OK;
}

tow_status_t tow_subprocess_start(char *const argv[], char *const extra[],
                                  tow_subprocess_output_t output,
                                  tow_subprocess_t *out_process)
{
    return start(argv[0], argv, extra, output, out_process);
}

tow_status_t tow_subprocess_start_self(char *const argv[], char *const extra[],
                                       tow_subprocess_output_t output,
                                       tow_subprocess_t *out_process)
{
    return start("/proc/self/exe", argv, extra, output, out_process);
}

/* Reads until end of file. False: the deadline passed first. */
static bool read_to_end(int fd, int64_t deadline_ns, char *text,
                        size_t capacity)
{
    size_t count = 0;
    for (;;) {
        int64_t left_ms = (deadline_ns - now_ns()) / 1000000;
        struct pollfd waited = {.fd = fd, .events = POLLIN};
        if (left_ms <= 0 || poll(&waited, 1, (int)left_ms) == 0) return false;
        char piece[4096];
        ssize_t got = read(fd, piece, sizeof(piece));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        size_t room = capacity - 1 - count;
        size_t kept = (size_t)got < room ? (size_t)got : room;
        memcpy(text + count, piece, kept);
        count += kept;
        text[count] = '\0';
    }
    return true;
}

static tow_status_t status_of_exit(const char *name, int exit_status,
                                   const char *text)
{
    if (WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0) return TOW_OK;
    size_t length = strlen(text);
    const char *tail = length > 300 ? text + length - 300 : text;
    if (WIFSIGNALED(exit_status))
        return TOW_ERROR(TOW_ABORTED, "%s was killed by signal %d: %s", name,
                         WTERMSIG(exit_status), tail);
    return TOW_ERROR(TOW_ABORTED, "%s exited with status %d: %s", name,
                     WEXITSTATUS(exit_status), tail);
}

tow_status_t tow_subprocess_finish(tow_subprocess_t *process, const char *name,
                                   int64_t timeout_ns, char *text,
                                   size_t capacity)
{
    text[0] = '\0';
    if (process->output_fd >= 0 &&
        !read_to_end(process->output_fd, now_ns() + timeout_ns, text,
                     capacity)) {
        tow_subprocess_kill(process);
        return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                         "%s did not exit within %lld s and was killed", name,
                         (long long)(timeout_ns / 1000000000));
    }
    int exit_status = 0;
    while (waitpid(process->pid, &exit_status, 0) < 0 && errno == EINTR) {
    }
    process->pid = 0;
    tow_subprocess_kill(process);
    return status_of_exit(name, exit_status, text);
}

void tow_subprocess_kill(tow_subprocess_t *process)
{
    if (process->pid > 0) {
        kill(process->pid, SIGKILL);
        while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    if (process->output_fd >= 0) close(process->output_fd);
    *process = (tow_subprocess_t){.output_fd = -1};
}
