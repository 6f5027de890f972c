/* Cross-process reads: large writes within a host take one copy instead of two,
 * because the target reads the writer's memory.
 *
 * The writer sends the address of its bytes and the target reads them with
 * process_vm_readv. So no process writes into another one: only the owner of a
 * region writes into it, and can close it without anyone's consent. But when
 * its lane is cut, the writer may reuse its bytes at any time. So it keeps a
 * guard beside them, the number of the write, and clears it before it lets the
 * bytes change. The target reads the guard after the last byte, and accepts the
 * bytes only if the guard still has its value.
 *
 * Authorization. A lane announces itself with a datagram to the target's
 * cross-read endpoint, a Unix socket in the abstract namespace. The kernel
 * attaches the process and user id, so a peer can only announce its own
 * process. The target opens a pidfd of that process, accepts its own user only,
 * and tests whether the kernel lets it read there; a lane that is not accepted
 * sends its bytes through its ring. Rationale:
 * docs/decisions/0006-cross-process-reads.md. */
#ifndef TOW_ENV_NET_DATA_REACH_H_
#define TOW_ENV_NET_DATA_REACH_H_

#include <sys/types.h>

#include "env/net/data/wire.h"

/* A process whose memory we may read. Zeroed: none. */
typedef struct tow_data_cross_read {
    pid_t pid; /* 0: none */
    int pidfd; /* owned */
} tow_data_cross_read_t;

static inline bool tow_data_cross_read_is_open(
    const tow_data_cross_read_t *cross_read)
{
    return cross_read->pid != 0;
}

/* Orders a guard and its bytes, on both sides. ThreadSanitizer does not support
 * atomic_thread_fence, hence the builtin. */
static inline void tow_data_cross_read_fence(void)
{
    __sync_synchronize();
}

/* 0, or an errno: ESRCH, EFAULT, EPERM. Any thread. */
int tow_data_cross_read_bytes(const tow_data_cross_read_t *cross_read, void *to,
                              uint64_t from, size_t size) TOW_MUST_USE;
/* Whether the guard still has `value` and the process is still the same: then
 * everything read from it before is valid. Any thread. */
bool tow_data_cross_read_guard_holds(const tow_data_cross_read_t *cross_read,
                                     uint64_t guard_address, uint64_t value);
void tow_data_cross_read_close(tow_data_cross_read_t *cross_read);

/* -- Cross-read endpoints ------------------------------------------------- */

/* A received announcement that no lane has claimed yet. */
typedef struct tow_data_announcement {
    tow_data_offer_t offer;
    pid_t pid;
    uid_t uid;
} tow_data_announcement_t;

#define TOW_DATA_ANNOUNCEMENT_COUNT_MAX 64

typedef struct tow_data_cross_endpoint {
    int fd; /* owned; negative: none */
    uint32_t next_announcement;
    tow_data_announcement_t announcements[TOW_DATA_ANNOUNCEMENT_COUNT_MAX];
} tow_data_cross_endpoint_t;

/* `node` is the number in our lane address; it names the endpoint. */
tow_status_t tow_data_cross_endpoint_open(tow_data_cross_endpoint_t *endpoint,
                                          uint64_t node) TOW_MUST_USE;
void tow_data_cross_endpoint_close(tow_data_cross_endpoint_t *endpoint);
/* Announces our process to the endpoint of `node`. False if it cannot be
 * reached. */
bool tow_data_cross_endpoint_announce(const tow_data_cross_endpoint_t *ours,
                                      uint64_t node,
                                      const tow_data_offer_t *offer);
/* Whether the endpoint of `node` is in our network namespace. */
bool tow_data_cross_endpoint_is_reachable(uint64_t node);
/* False if the endpoint of `node` was closed, or its process has died. */
bool tow_data_cross_endpoint_exists(uint64_t node);
/* The process that announced this stream, if we may read its memory; otherwise
 * the reason why not. */
tow_status_t tow_data_cross_endpoint_accept(
    tow_data_cross_endpoint_t *endpoint, uint64_t stream,
    tow_data_cross_read_t *out_cross_read) TOW_MUST_USE;

#endif /* TOW_ENV_NET_DATA_REACH_H_ */
