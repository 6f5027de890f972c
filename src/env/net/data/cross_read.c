#include "env/net/data/cross_read.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/status.h"

/* -- Reading -------------------------------------------------------------- */

/* Hidden from ThreadSanitizer, which would report two writes of a peer to one
 * place as a race of ours, although ordering them is up to the peer, as with
 * fragments. AddressSanitizer still checks the destination. */
#if defined(__SANITIZE_THREAD__)
#define READS_UNSEEN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define READS_UNSEEN 1
#endif
#endif

static ssize_t read_process(pid_t pid, const struct iovec *local,
                            const struct iovec *remote)
{
#ifdef READS_UNSEEN
    return syscall(SYS_process_vm_readv, pid, local, 1ul, remote, 1ul, 0ul);
#else
    return process_vm_readv(pid, local, 1, remote, 1, 0);
#endif
}

int tow_data_cross_read_bytes(const tow_data_cross_read_t *cross_read, void *to,
                              uint64_t from, size_t size)
{
    size_t at = 0;
    while (at < size) {
        const struct iovec local = {(uint8_t *)to + at, size - at};
        const struct iovec remote = {(void *)(uintptr_t)(from + at), size - at};
        const ssize_t got = read_process(cross_read->pid, &local, &remote);
        if (got < 0) return errno;
        if (got == 0) return EFAULT;
        at += (size_t)got;
    }
    return 0;
}

/* The process id may have been reused; the pidfd was not. */
static bool is_alive(const tow_data_cross_read_t *cross_read)
{
    struct pollfd poller = {.fd = cross_read->pidfd, .events = POLLIN};
    return poll(&poller, 1, 0) == 0;
}

bool tow_data_cross_read_guard_holds(const tow_data_cross_read_t *cross_read,
                                     uint64_t guard_address, uint64_t value)
{
    uint64_t found = 0;
    /* After all earlier reads: pairs with the fence of the writer, which clears
     * the guard before its bytes change. */
    tow_data_cross_read_fence();
    return tow_data_cross_read_bytes(cross_read, &found, guard_address,
                                     sizeof(found)) == 0 &&
           found == value && is_alive(cross_read);
}

void tow_data_cross_read_close(tow_data_cross_read_t *cross_read)
{
    if (tow_data_cross_read_is_open(cross_read)) close(cross_read->pidfd);
    *cross_read = (tow_data_cross_read_t){0};
}

/* -- Cross-read endpoints ------------------------------------------------- */

/* Abstract: it has no file and disappears with its socket. */
static socklen_t endpoint_name(uint64_t node, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length =
        snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1,
                 "towpath-door-%016llx", (unsigned long long)node);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)length);
}

tow_status_t tow_data_cross_endpoint_open(tow_data_cross_endpoint_t *endpoint,
                                          uint64_t node)
{
    struct sockaddr_un name;
    const socklen_t size = endpoint_name(node, &name);
    const int yes = 1;
    endpoint->fd =
        socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (endpoint->fd < 0)
        return TOW_ERRNO(errno, "creating the cross-read endpoint");
    if (setsockopt(endpoint->fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) ==
            0 &&
        bind(endpoint->fd, (struct sockaddr *)&name, size) == 0)
        return TOW_OK;
    tow_status_t status = TOW_ERRNO(errno, "creating the cross-read endpoint");
    tow_data_cross_endpoint_close(endpoint);
    return status;
}

void tow_data_cross_endpoint_close(tow_data_cross_endpoint_t *endpoint)
{
    if (endpoint->fd >= 0) close(endpoint->fd);
    endpoint->fd = -1;
}

bool tow_data_cross_endpoint_announce(const tow_data_cross_endpoint_t *ours,
                                      uint64_t node,
                                      const tow_data_offer_t *offer)
{
    struct sockaddr_un name;
    const socklen_t size = endpoint_name(node, &name);
    if (ours->fd < 0) return false;
    return sendto(ours->fd, offer, sizeof(*offer), MSG_NOSIGNAL | MSG_DONTWAIT,
                  (struct sockaddr *)&name, size) == sizeof(*offer);
}

/* 0, or the errno of a connection to the endpoint. */
static int try_endpoint(uint64_t node)
{
    struct sockaddr_un name;
    const socklen_t size = endpoint_name(node, &name);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    const int error =
        connect(fd, (struct sockaddr *)&name, size) == 0 ? 0 : errno;
    close(fd);
    return error;
}

bool tow_data_cross_endpoint_is_reachable(uint64_t node)
{
    return try_endpoint(node) == 0;
}

bool tow_data_cross_endpoint_exists(uint64_t node)
{
    return try_endpoint(node) != ECONNREFUSED; /* Else it is unknown. */
}

/* False when there is no more. Malformed announcements are skipped: any process
 * on this host may send one. */
static bool receive_announcement(tow_data_cross_endpoint_t *endpoint)
{
    uint8_t bytes[sizeof(tow_data_offer_t) + 1];
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec room = {bytes, sizeof(bytes)};
    struct msghdr message = {.msg_iov = &room,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    ssize_t size =
        recvmsg(endpoint->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) return errno == EINTR;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    tow_data_announcement_t announcement;
    if (header == NULL || header->cmsg_level != SOL_SOCKET ||
        header->cmsg_type != SCM_CREDENTIALS ||
        header->cmsg_len != CMSG_LEN(sizeof(struct ucred)) ||
        tow_data_parse_offer(bytes, (size_t)size, &announcement.offer) != NULL)
        return true;
    struct ucred who;
    memcpy(&who, CMSG_DATA(header), sizeof(who));
    announcement.pid = who.pid;
    announcement.uid = who.uid;
    endpoint->announcements[endpoint->next_announcement++ %
                            TOW_DATA_ANNOUNCEMENT_COUNT_MAX] = announcement;
    return true;
}

static tow_status_t find_announcement(tow_data_cross_endpoint_t *endpoint,
                                      uint64_t stream,
                                      tow_data_announcement_t *out_caller)
{
    /* More than the kernel queues: a flood cannot block us here. */
    for (int i = 0; i < 1024 && receive_announcement(endpoint); i++) {
    }
    for (size_t i = 0; i < TOW_DATA_ANNOUNCEMENT_COUNT_MAX; i++) {
        tow_data_announcement_t *announcement = &endpoint->announcements[i];
        if (announcement->offer.stream != stream) continue;
        *out_caller = *announcement;
        *announcement = (tow_data_announcement_t){0};
        return TOW_OK;
    }
    return TOW_ERROR(
        TOW_NOT_FOUND,
        "the peer sent no announcement to our cross-read endpoint");
}

tow_status_t tow_data_cross_endpoint_accept(
    tow_data_cross_endpoint_t *endpoint, uint64_t stream,
    tow_data_cross_read_t *out_cross_read)
{
    tow_data_announcement_t announcement = {0};
    *out_cross_read = (tow_data_cross_read_t){0};
    if (endpoint->fd < 0)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "this process has no cross-read endpoint");
    TOW_RETURN_IF_ERROR(find_announcement(endpoint, stream, &announcement));
    /* A privileged process must not read for other users: it may read more than
     * they could themselves. */
    if (announcement.pid <= 0 || announcement.uid != getuid())
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "process %d runs as user %u, this one as user %u",
                         (int)announcement.pid, (unsigned)announcement.uid,
                         (unsigned)getuid());
    const int pidfd = (int)syscall(SYS_pidfd_open, announcement.pid, 0u);
    if (pidfd < 0) return TOW_ERRNO(errno, "process %d", (int)announcement.pid);
    /* The proof is at that address only if this process is the one that sent
     * it. */
    tow_data_cross_read_t cross_read = {.pid = announcement.pid,
                                        .pidfd = pidfd};
    uint64_t found = 0;
    const int error = tow_data_cross_read_bytes(
        &cross_read, &found, announcement.offer.guard_address, sizeof(found));
    if (error == 0 && found == announcement.offer.value) {
        *out_cross_read = cross_read;
        return TOW_OK;
    }
    close(pidfd);
    if (error != 0)
        return TOW_ERRNO(error,
                         "reading memory of process %d (see "
                         "kernel.yama.ptrace_scope)",
                         (int)announcement.pid);
    return TOW_ERROR(TOW_UNAUTHENTICATED,
                     "process id %d belongs to another process by now",
                     (int)announcement.pid);
}
