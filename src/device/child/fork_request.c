#include "device/child/fork_request.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FD_COUNT 3 /* of a request: socket, output, control */

typedef enum report_kind {
    REPORT_STARTED = 1,
    REPORT_REFUSED,
    REPORT_ENDED,
} report_kind_t;

/* On the control socket. */
typedef struct report {
    uint32_t kind;
    int32_t pid;
    int32_t wait_status;
} report_t;

/* One message, with descriptors; they stay the caller's. */
static bool send_with(int fd, const void *bytes, size_t size, const int *fds,
                      size_t fd_count)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FD_COUNT * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

/* One message, and at most FD_COUNT descriptors, which the caller owns. Returns
 * its size; 0: the other end is closed; -1: no message, or it is too long. */
static ssize_t receive_with(int fd, void *bytes, size_t capacity, int flags,
                            int fds[FD_COUNT], size_t *out_fd_count)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FD_COUNT * sizeof(int))];
    } control;
    struct iovec part = {bytes, capacity};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t got;
    *out_fd_count = 0;
    do {
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | flags);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_level == SOL_SOCKET &&
        header->cmsg_type == SCM_RIGHTS) {
        *out_fd_count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(header), *out_fd_count * sizeof(int));
    }
    return (message.msg_flags & MSG_TRUNC) == 0 ? got : -1;
}

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
}

/* -- For clients ------------------------------------------------------------ */

/* 0: the arguments do not fit. */
static size_t pack(char *const argv[], char bytes[TOW_FORK_REQUEST_BYTES_MAX])
{
    size_t size = 0;
    for (size_t i = 0; argv[i] != NULL; i++) {
        const size_t length = strlen(argv[i]) + 1;
        if (i == TOW_FORK_REQUEST_ARGC_MAX ||
            length > TOW_FORK_REQUEST_BYTES_MAX - size)
            return 0;
        memcpy(bytes + size, argv[i], length);
        size += length;
    }
    return size;
}

/* Waits for the server's report, or for its end, which closes the socket. */
static bool await_start(int control_fd, pid_t *out_pid, int *out_pid_fd)
{
    report_t report;
    int fds[FD_COUNT];
    size_t fd_count;
    const ssize_t got =
        receive_with(control_fd, &report, sizeof(report), 0, fds, &fd_count);
    if (got == sizeof(report) && report.kind == REPORT_STARTED &&
        fd_count == 1) {
        *out_pid = report.pid;
        *out_pid_fd = fds[0];
        return true;
    }
    close_all(fds, fd_count);
    return false;
}

bool tow_fork_request_send(int fork_server_fd, char *const argv[],
                           int socket_fd, int error_fd, pid_t *out_pid,
                           int *out_pid_fd, int *out_control_fd)
{
    char bytes[TOW_FORK_REQUEST_BYTES_MAX];
    int control[2];
    const size_t size = pack(argv, bytes);
    if (size == 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0)
        return false;
    const int fds[FD_COUNT] = {socket_fd, error_fd, control[1]};
    const bool is_sent = send_with(fork_server_fd, bytes, size, fds, FD_COUNT);
    close(control[1]);
    *out_control_fd = control[0];
    if (is_sent && await_start(control[0], out_pid, out_pid_fd)) return true;
    close(control[0]);
    return false;
}

int tow_fork_end_child(int take_control_fd)
{
    report_t report = {0};
    int fds[FD_COUNT];
    size_t fd_count;
    /* The server can still report how the child ended. */
    shutdown(take_control_fd, SHUT_WR);
    const ssize_t got = receive_with(take_control_fd, &report, sizeof(report),
                                     0, fds, &fd_count);
    close_all(fds, fd_count);
    close(take_control_fd);
    return got == sizeof(report) ? report.wait_status : 0;
}

/* -- For fork servers ------------------------------------------------------- */

static bool unpack(tow_fork_request_t *launch, size_t size)
{
    if (size == 0 || launch->bytes[size - 1] != '\0') return false;
    for (size_t at = 0; at < size; at += strlen(launch->bytes + at) + 1) {
        if (launch->argc == TOW_FORK_REQUEST_ARGC_MAX) return false;
        launch->argv[launch->argc++] = launch->bytes + at;
    }
    launch->argv[launch->argc] = NULL;
    return true;
}

tow_fork_received_t tow_fork_request_receive(int fd,
                                             tow_fork_request_t *out_launch)
{
    int fds[FD_COUNT];
    size_t fd_count;
    *out_launch =
        (tow_fork_request_t){.socket_fd = -1, .error_fd = -1, .control_fd = -1};
    const ssize_t got =
        receive_with(fd, out_launch->bytes, sizeof(out_launch->bytes),
                     MSG_DONTWAIT, fds, &fd_count);
    if (got == 0) return TOW_FORK_DISCONNECTED;
    if (got < 0 || fd_count != FD_COUNT || !unpack(out_launch, (size_t)got)) {
        close_all(fds, fd_count);
        return TOW_FORK_NOTHING;
    }
    out_launch->socket_fd = fds[0];
    out_launch->error_fd = fds[1];
    out_launch->control_fd = fds[2];
    return TOW_FORK_REQUESTED;
}

void tow_fork_request_close(tow_fork_request_t *launch)
{
    close(launch->socket_fd);
    close(launch->error_fd);
    close(launch->control_fd);
}

static void send_report(int control_fd, report_t report, const int *fds,
                        size_t fd_count)
{
    /* A client that has ended needs no report. */
    (void)send_with(control_fd, &report, sizeof(report), fds, fd_count);
}

void tow_fork_report_started(int control_fd, pid_t pid, int pid_fd)
{
    send_report(control_fd, (report_t){.kind = REPORT_STARTED, .pid = pid},
                &pid_fd, 1);
}

void tow_fork_report_refused(int control_fd)
{
    send_report(control_fd, (report_t){.kind = REPORT_REFUSED}, NULL, 0);
}

void tow_fork_report_ended(int control_fd, int wait_status)
{
    send_report(control_fd,
                (report_t){.kind = REPORT_ENDED, .wait_status = wait_status},
                NULL, 0);
}
