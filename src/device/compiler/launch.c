#include "device/compiler/launch.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FD_COUNT 3 /* of a request: talk, errors, leash */

typedef enum tell_kind {
    TELL_STARTED = 1,
    TELL_REFUSED,
    TELL_ENDED,
} tell_kind_t;

/* On the leash. */
typedef struct tell {
    uint32_t kind;
    int32_t pid;
    int32_t wait_status;
} tell_t;

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

/* One message, and at most FD_COUNT descriptors, now the caller's. Returns its
 * size; 0: the other end is gone; -1: none is there, or it was too long. */
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

/* -- Who asks --------------------------------------------------------------- */

/* 0: they do not fit. */
static size_t pack(char *const words[], char bytes[TOW_LAUNCH_BYTES_MAX])
{
    size_t size = 0;
    for (size_t i = 0; words[i] != NULL; i++) {
        const size_t length = strlen(words[i]) + 1;
        if (i == TOW_LAUNCH_WORDS_MAX || length > TOW_LAUNCH_BYTES_MAX - size)
            return 0;
        memcpy(bytes + size, words[i], length);
        size += length;
    }
    return size;
}

/* Waits: a launcher answers, or goes and the leash with it. */
static bool hear_started(int leash_fd, pid_t *out_pid, int *out_pid_fd)
{
    tell_t told;
    int fds[FD_COUNT];
    size_t fd_count;
    const ssize_t got =
        receive_with(leash_fd, &told, sizeof(told), 0, fds, &fd_count);
    if (got == sizeof(told) && told.kind == TELL_STARTED && fd_count == 1) {
        *out_pid = told.pid;
        *out_pid_fd = fds[0];
        return true;
    }
    close_all(fds, fd_count);
    return false;
}

bool tow_launch_ask(int launcher_fd, char *const words[], int talk_fd,
                    int error_fd, pid_t *out_pid, int *out_pid_fd,
                    int *out_leash_fd)
{
    char bytes[TOW_LAUNCH_BYTES_MAX];
    int leash[2];
    const size_t size = pack(words, bytes);
    if (size == 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, leash) != 0)
        return false;
    const int fds[FD_COUNT] = {talk_fd, error_fd, leash[1]};
    const bool is_sent = send_with(launcher_fd, bytes, size, fds, FD_COUNT);
    close(leash[1]);
    *out_leash_fd = leash[0];
    if (is_sent && hear_started(leash[0], out_pid, out_pid_fd)) return true;
    close(leash[0]);
    return false;
}

int tow_launch_end(int take_leash_fd)
{
    tell_t told = {0};
    int fds[FD_COUNT];
    size_t fd_count;
    /* It can still say how the child ended. */
    shutdown(take_leash_fd, SHUT_WR);
    const ssize_t got =
        receive_with(take_leash_fd, &told, sizeof(told), 0, fds, &fd_count);
    close_all(fds, fd_count);
    close(take_leash_fd);
    return got == sizeof(told) ? told.wait_status : 0;
}

/* -- Who launches ----------------------------------------------------------- */

static bool unpack(tow_launch_t *launch, size_t size)
{
    if (size == 0 || launch->bytes[size - 1] != '\0') return false;
    for (size_t at = 0; at < size; at += strlen(launch->bytes + at) + 1) {
        if (launch->word_count == TOW_LAUNCH_WORDS_MAX) return false;
        launch->words[launch->word_count++] = launch->bytes + at;
    }
    launch->words[launch->word_count] = NULL;
    return true;
}

tow_launch_heard_t tow_launch_hear(int fd, tow_launch_t *out_launch)
{
    int fds[FD_COUNT];
    size_t fd_count;
    *out_launch = (tow_launch_t){.talk_fd = -1, .error_fd = -1, .leash_fd = -1};
    const ssize_t got =
        receive_with(fd, out_launch->bytes, sizeof(out_launch->bytes),
                     MSG_DONTWAIT, fds, &fd_count);
    if (got == 0) return TOW_LAUNCH_OVER;
    if (got < 0 || fd_count != FD_COUNT || !unpack(out_launch, (size_t)got)) {
        close_all(fds, fd_count);
        return TOW_LAUNCH_NONE;
    }
    out_launch->talk_fd = fds[0];
    out_launch->error_fd = fds[1];
    out_launch->leash_fd = fds[2];
    return TOW_LAUNCH_ASKED;
}

void tow_launch_close(tow_launch_t *launch)
{
    close(launch->talk_fd);
    close(launch->error_fd);
    close(launch->leash_fd);
}

static void tell(int leash_fd, tell_t told, const int *fds, size_t fd_count)
{
    /* Who has gone does not want to know. */
    (void)send_with(leash_fd, &told, sizeof(told), fds, fd_count);
}

void tow_launch_tell_started(int leash_fd, pid_t pid, int pid_fd)
{
    tell(leash_fd, (tell_t){.kind = TELL_STARTED, .pid = pid}, &pid_fd, 1);
}

void tow_launch_tell_refused(int leash_fd)
{
    tell(leash_fd, (tell_t){.kind = TELL_REFUSED}, NULL, 0);
}

void tow_launch_tell_ended(int leash_fd, int wait_status)
{
    tell(leash_fd, (tell_t){.kind = TELL_ENDED, .wait_status = wait_status},
         NULL, 0);
}
