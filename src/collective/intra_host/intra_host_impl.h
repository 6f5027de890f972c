/* One process's membership in the arena, and the interface between mailboxes
 * and collectives. */
#ifndef TOW_COLLECTIVE_INTRA_HOST_INTRA_HOST_IMPL_H_
#define TOW_COLLECTIVE_INTRA_HOST_INTRA_HOST_IMPL_H_

#include <pthread.h>
#include <stdbool.h>

#include "collective/intra_host/arena_impl.h"

struct tow_intra_host {
    arena_t *arena; /* mapped */
    int64_t heartbeat_timeout_ns;
    size_t core_count;
    /* Of any thread, estimates: members of gangs larger than our cores do not
     * yield before contended_ns, and have yielded since yielding_since_ns. */
    _Atomic(int64_t) contended_ns;
    _Atomic(int64_t) yielding_since_ns;
    uint32_t process; /* our row in arena_t.processes; UINT32_MAX: none yet */
    pthread_t heartbeat_thread;
    bool heartbeat_runs;
    pthread_mutex_t heartbeat_lock;
    pthread_cond_t heartbeat_stop;
    bool heartbeat_must_stop; /* under heart_lock */
    pthread_mutex_t wait_lock;
    /* Under wait_lock, in no order; since_ns is 0 in free rows. */
    tow_intra_host_wait_t waits[TOW_INTRA_HOST_DEVICE_COUNT_MAX];
};

/* One member's part in one collective, while it runs. */
typedef struct op {
    tow_intra_host_t *host;
    const tow_xla_collective_t *collective;
    uint64_t key;         /* of the collective; see step_key */
    uint64_t abort_count; /* of the arena, when we last searched its aborts */
    /* By rank: index into arena_t.mailboxes. */
    uint16_t mailbox_indices[TOW_INTRA_HOST_DEVICE_COUNT_MAX];
} member_op_t;

int64_t intra_host_clock_ns(void);

/* Asserts the invariants of an open host. O(devices): not in collectives. */
void intra_host_check(tow_intra_host_t *host);

/* A hint to the processor that we spin. */
static inline void intra_host_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline mailbox_t *member_op_mailbox(const member_op_t *op, size_t rank)
{
    return &op->host->arena->mailboxes[op->mailbox_indices[rank]];
}

/* -- mailbox.c ------------------------------------------------------------- */

/* Finds the mailboxes of all members; waits for devices that have not joined
 * the arena yet. */
tow_status_t member_op_begin(member_op_t *op) TOW_MUST_USE;

/* The stage of our next half, once all readers of its previous content have
 * finished. */
tow_status_t mailbox_prepare(member_op_t *op, uint8_t **out_stage) TOW_MUST_USE;
/* The readers of published bytes. */
typedef struct mailbox_readers {
    uint32_t count;
    int64_t only; /* the device, if there is one reader; else -1 */
} mailbox_readers_t;

/* Publishes the prepared stage under (collective, step). */
void mailbox_publish(member_op_t *op, uint64_t step, mailbox_readers_t readers);

typedef struct mailbox_message {
    mailbox_half_t *half;
    const uint8_t *bytes;
    uint64_t ticket;
} mailbox_message_t;

/* Waits until all members have published under (collective, step). Wakes up
 * once, where waiting for one member after another wakes up for each. */
tow_status_t mailbox_await_all(member_op_t *op, uint64_t step) TOW_MUST_USE;
/* Waits until member `rank` has published under (collective, step). */
tow_status_t mailbox_fetch(member_op_t *op, size_t rank, uint64_t step,
                           mailbox_message_t *out_message) TOW_MUST_USE;
/* Ends the reading. ABORTED if the bytes were replaced meanwhile, which happens
 * only after an abort: the bytes read are then invalid. */
tow_status_t mailbox_release(member_op_t *op, size_t rank,
                             const mailbox_message_t *message) TOW_MUST_USE;

/* -- intra_host.c ---------------------------------------------------------- */

/* Whether a process died whose row no other process has claimed yet. */
bool intra_host_any_is_dead(const tow_intra_host_t *host);

/* The error with which this run was aborted, or OK. */
tow_status_t intra_host_abort_of(const tow_intra_host_t *host, uint64_t run_id)
    TOW_MUST_USE;

#endif /* TOW_COLLECTIVE_INTRA_HOST_INTRA_HOST_IMPL_H_ */
