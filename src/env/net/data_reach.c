#include "env/net/data_reach.h"

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

/* ThreadSanitizer would take two writes of a peer to one place for a race of
 * ours; that is the peer's affair, as it is with fragments. So it sees nothing of
 * this. AddressSanitizer does, and looks at where the bytes go. */
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

int tow_data_reach_read(const tow_data_reach_t *reach, void *to, uint64_t from,
                        size_t size)
{
    size_t at = 0;
    while (at < size) {
        const struct iovec local = {(uint8_t *)to + at, size - at};
        const struct iovec remote = {(void *)(uintptr_t)(from + at), size - at};
        const ssize_t got = read_process(reach->pid, &local, &remote);
        if (got < 0) return errno;
        if (got == 0) return EFAULT;
        at += (size_t)got;
    }
    return 0;
}

/* Its number may be another process's by now: the descriptor is not. */
static bool is_alive(const tow_data_reach_t *reach)
{
    struct pollfd poller = {.fd = reach->pidfd, .events = POLLIN};
    return poll(&poller, 1, 0) == 0;
}

bool tow_data_reach_holds(const tow_data_reach_t *reach, uint64_t word,
                          uint64_t value)
{
    uint64_t found = 0;
    /* After all that was read before: pairs with the fence of the writer, which
     * clears the word before its bytes change. */
    tow_data_reach_fence();
    return tow_data_reach_read(reach, &found, word, sizeof(found)) == 0 &&
           found == value && is_alive(reach);
}

void tow_data_reach_close(tow_data_reach_t *reach)
{
    if (tow_data_reach_is_open(reach)) close(reach->pidfd);
    *reach = (tow_data_reach_t){0};
}

/* -- Doors ---------------------------------------------------------------- */

/* Abstract: it has no file, and goes with its socket. */
static socklen_t name_door(uint64_t node, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length =
        snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1,
                 "towpath-door-%016llx", (unsigned long long)node);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)length);
}

tow_status_t tow_data_door_open(tow_data_door_t *door, uint64_t node)
{
    struct sockaddr_un name;
    const socklen_t size = name_door(node, &name);
    const int yes = 1;
    door->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->fd < 0) return TOW_ERRNO(errno, "a door for peers of this host");
    if (setsockopt(door->fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) == 0 &&
        bind(door->fd, (struct sockaddr *)&name, size) == 0)
        return TOW_OK;
    tow_status_t status = TOW_ERRNO(errno, "a door for peers of this host");
    tow_data_door_close(door);
    return status;
}

void tow_data_door_close(tow_data_door_t *door)
{
    if (door->fd >= 0) close(door->fd);
    door->fd = -1;
}

bool tow_data_door_knock(const tow_data_door_t *ours, uint64_t node,
                         const tow_data_offer_t *offer)
{
    struct sockaddr_un name;
    const socklen_t size = name_door(node, &name);
    if (ours->fd < 0) return false;
    return sendto(ours->fd, offer, sizeof(*offer), MSG_NOSIGNAL | MSG_DONTWAIT,
                  (struct sockaddr *)&name, size) == sizeof(*offer);
}

bool tow_data_door_is_there(uint64_t node)
{
    struct sockaddr_un name;
    const socklen_t size = name_door(node, &name);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return true; /* Nothing is known. */
    const bool is_refused = connect(fd, (struct sockaddr *)&name, size) != 0 &&
                            errno == ECONNREFUSED;
    close(fd);
    return !is_refused;
}

/* False when nobody waits any more. What makes no sense is skipped: anyone on
 * this host may knock. */
static bool take_caller(tow_data_door_t *door)
{
    uint8_t bytes[sizeof(tow_data_offer_t) + 1];
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec room = {bytes, sizeof(bytes)};
    struct msghdr message = {.msg_iov = &room,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    ssize_t size = recvmsg(door->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0) return errno == EINTR;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    tow_data_caller_t caller;
    if (header == NULL || header->cmsg_level != SOL_SOCKET ||
        header->cmsg_type != SCM_CREDENTIALS ||
        header->cmsg_len != CMSG_LEN(sizeof(struct ucred)) ||
        tow_data_parse_offer(bytes, (size_t)size, &caller.offer) != NULL)
        return true;
    struct ucred who;
    memcpy(&who, CMSG_DATA(header), sizeof(who));
    caller.pid = who.pid;
    caller.uid = who.uid;
    door->callers[door->next_caller++ % TOW_DATA_CALLER_COUNT_MAX] = caller;
    return true;
}

static tow_status_t find_caller(tow_data_door_t *door, uint64_t stream,
                                tow_data_caller_t *out_caller)
{
    /* More than the kernel queues there; so a flood cannot hold us. */
    for (int i = 0; i < 1024 && take_caller(door); i++) {
    }
    for (size_t i = 0; i < TOW_DATA_CALLER_COUNT_MAX; i++) {
        tow_data_caller_t *caller = &door->callers[i];
        if (caller->offer.stream != stream) continue;
        *out_caller = *caller;
        *caller = (tow_data_caller_t){0};
        return TOW_OK;
    }
    return TOW_ERROR(TOW_NOT_FOUND, "it did not knock");
}

tow_status_t tow_data_door_answer(tow_data_door_t *door, uint64_t stream,
                                  tow_data_reach_t *out_reach)
{
    tow_data_caller_t caller = {0};
    *out_reach = (tow_data_reach_t){0};
    if (door->fd < 0) return TOW_ERROR(TOW_UNAVAILABLE, "we have no door");
    TOW_RETURN_IF_ERROR(find_caller(door, stream, &caller));
    /* A privileged process reads for nobody else: what it may read of them is
     * more than they could themselves. */
    if (caller.pid <= 0 || caller.uid != getuid())
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "process %d of user %u is not ours", (int)caller.pid,
                         (unsigned)caller.uid);
    const int pidfd = (int)syscall(SYS_pidfd_open, caller.pid, 0u);
    if (pidfd < 0) return TOW_ERRNO(errno, "process %d", (int)caller.pid);
    /* The word is there only if this process is the one that knocked. */
    tow_data_reach_t reach = {.pid = caller.pid, .pidfd = pidfd};
    uint64_t found = 0;
    const int error =
        tow_data_reach_read(&reach, &found, caller.offer.word, sizeof(found));
    if (error == 0 && found == caller.offer.value) {
        *out_reach = reach;
        return TOW_OK;
    }
    close(pidfd);
    if (error != 0)
        return TOW_ERRNO(error,
                         "reading memory of process %d (see "
                         "kernel.yama.ptrace_scope)",
                         (int)caller.pid);
    return TOW_ERROR(TOW_UNAUTHENTICATED, "process %d is another by now",
                     (int)caller.pid);
}
