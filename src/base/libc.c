/* Functions of newer C libraries, implemented by system calls, so that programs
 * built with glibc 2.36 start on 2.34 (docs/dependencies.md). The system
 * headers declare them; they are hidden, so that no other library uses them. */
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel needs the size of its signal set. */
#define KERNEL_SIGNALS_SIZE 8

int epoll_pwait2(int epoll_fd, struct epoll_event *events, int event_count_max,
                 const struct timespec *timeout, const sigset_t *signals)
{
    return (int)syscall(SYS_epoll_pwait2, epoll_fd, events, event_count_max,
                        timeout, signals, KERNEL_SIGNALS_SIZE);
}

int pidfd_open(pid_t pid, unsigned int flags)
{
    return (int)syscall(SYS_pidfd_open, pid, flags);
}

int pidfd_send_signal(int pid_fd, int signal, siginfo_t *info,
                      unsigned int flags)
{
    return (int)syscall(SYS_pidfd_send_signal, pid_fd, signal, info, flags);
}
