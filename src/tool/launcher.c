#include "tool/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/compiler/child.h"
#include "device/compiler/launch.h"
#include "device/compiler/process.h"
#include "tool/title.h"

void tow_launcher_init(tow_launcher_t *launcher)
{
    *launcher = (tow_launcher_t){.fd = -1};
}

/* -- One child ----------------------------------------------------------------- */

static void wait_for(pid_t pid, int *out_status)
{
    while (waitpid(pid, out_status, 0) < 0 && errno == EINTR) {
    }
}

static void forget(tow_launcher_t *launcher, size_t index, int wait_status)
{
    tow_launch_tell_ended(launcher->children[index].leash_fd, wait_status);
    close(launcher->children[index].leash_fd);
    launcher->children[index] = launcher->children[--launcher->count];
}

/* With all that it started. */
static void end_child(tow_launcher_t *launcher, size_t index)
{
    const pid_t pid = launcher->children[index].pid;
    int wait_status = 0;
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    wait_for(pid, &wait_status);
    forget(launcher, index, wait_status);
}

#if TOW_HAS_PJRT

/* Above those that it is to have. */
static int lift(int fd)
{
    return fcntl(fd, F_DUPFD, TOW_CHILD_TALK_FD + 1);
}

/* In the child: as a program that was started has it (process.c). */
TOW_NORETURN static void become_compiler(tow_launch_t *launch, pid_t parent)
{
    char text[24];
    sigset_t none;
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int talk_fd = lift(launch->talk_fd),
              error_fd = lift(launch->error_fd);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(error_fd, STDOUT_FILENO);
    dup2(error_fd, STDERR_FILENO);
    dup2(talk_fd, TOW_CHILD_TALK_FD);
    close_range(TOW_CHILD_TALK_FD + 1, ~0u, 0);
    tow_title_set(launch->words, launch->word_count);
    /* It ends with us, not with who has asked. */
    snprintf(text, sizeof(text), "%d", (int)parent);
    launch->words[1] = text;
    _exit(tow_compile_child_main((int)launch->word_count, launch->words));
}

static bool fork_child(tow_launcher_t *launcher, tow_launch_t *launch)
{
    if (launcher->count == TOW_LAUNCHER_COUNT_MAX || launch->word_count < 2)
        return false;
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_compiler(launch, parent);
    if (pid < 0) return false;
    setpgid(pid, pid); /* Whoever is first. */
    const int pid_fd = pidfd_open(pid, 0);
    const int leash_fd = fcntl(launch->leash_fd, F_DUPFD_CLOEXEC, 0);
    if (pid_fd < 0 || leash_fd < 0) {
        kill(pid, SIGKILL);
        wait_for(pid, NULL);
        if (pid_fd >= 0) close(pid_fd);
        return false;
    }
    tow_launch_tell_started(leash_fd, pid, pid_fd);
    close(pid_fd);
    launcher->children[launcher->count].pid = pid;
    launcher->children[launcher->count++].leash_fd = leash_fd;
    return true;
}

#else

static bool fork_child(tow_launcher_t *launcher, tow_launch_t *launch)
{
    (void)launcher, (void)launch;
    return false;
}

#endif

static void hear(tow_launcher_t *launcher, bool can_launch)
{
    tow_launch_t launch;
    switch (tow_launch_hear(launcher->fd, &launch)) {
    case TOW_LAUNCH_NONE: return;
    case TOW_LAUNCH_OVER:
        close(launcher->fd);
        launcher->fd = -1;
        return;
    case TOW_LAUNCH_ASKED: break;
    }
    if (!can_launch || !fork_child(launcher, &launch))
        tow_launch_tell_refused(launch.leash_fd);
    tow_launch_close(&launch);
}

/* -- All of them --------------------------------------------------------------- */

int tow_launcher_open(tow_launcher_t *launcher)
{
    int fds[2];
    tow_launcher_close(launcher);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return -1;
    launcher->fd = fds[0];
    return fds[1];
}

size_t tow_launcher_polls(const tow_launcher_t *launcher,
                          struct pollfd polls[TOW_LAUNCHER_POLL_MAX])
{
    polls[0] = (struct pollfd){.fd = launcher->fd, .events = POLLIN};
    for (size_t i = 0; i < launcher->count; i++)
        polls[1 + i] = (struct pollfd){.fd = launcher->children[i].leash_fd,
                                       .events = POLLIN};
    return 1 + launcher->count;
}

void tow_launcher_mind(tow_launcher_t *launcher, const struct pollfd *polls,
                       size_t count, bool can_launch)
{
    /* From the last: the place of one that goes is taken by the last. Nothing is
     * ever said on a leash but that it is let go of. */
    for (size_t i = count - 1; i > 0; i--)
        if (polls[i].revents != 0) end_child(launcher, i - 1);
    if (polls[0].revents != 0) hear(launcher, can_launch);
}

void tow_launcher_reap(tow_launcher_t *launcher)
{
    for (size_t i = launcher->count; i > 0; i--) {
        siginfo_t info = {0};
        const id_t pid = (id_t)launcher->children[i - 1].pid;
        if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0)
            end_child(launcher, i - 1); /* With what it has left behind. */
    }
}

void tow_launcher_close(tow_launcher_t *launcher)
{
    while (launcher->count > 0)
        end_child(launcher, launcher->count - 1);
    if (launcher->fd >= 0) close(launcher->fd);
    launcher->fd = -1;
}
