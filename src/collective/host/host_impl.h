/* One process's part in the arena, and what mail.c gives to collective.c. */
#ifndef TOW_COLLECTIVE_HOST_HOST_IMPL_H_
#define TOW_COLLECTIVE_HOST_HOST_IMPL_H_

#include <pthread.h>
#include <stdbool.h>

#include "collective/host/arena_impl.h"

struct tow_host {
    arena_t *arena; /* mapped */
    int64_t patience_ns;
    size_t core_count;
    /* Until then others want our cores. Any thread; a guess may be late. */
    _Atomic(int64_t) crowded_ns;
    uint32_t process; /* our row */
    pthread_t heart;
    bool heart_beats;
    pthread_mutex_t heart_lock;
    pthread_cond_t heart_stop;
    bool heart_must_stop; /* under heart_lock */
    pthread_mutex_t wait_lock;
    /* Under wait_lock, in no order; free: since_ns is 0. */
    tow_host_wait_t waits[TOW_HOST_DEVICE_COUNT_MAX];
};

/* One member's view of one collective, while it is inside. */
typedef struct meeting {
    tow_host_t *host;
    const tow_xla_collective_t *collective;
    uint64_t key;         /* of the collective; steps are mixed in */
    uint64_t abort_count; /* of the arena, when we last looked through it */
    /* Of all members, in rank order: indices into the arena. */
    uint16_t boxes[TOW_HOST_DEVICE_COUNT_MAX];
} meeting_t;

int64_t host_clock_ns(void);

/* Tells the core that we spin. */
static inline void host_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline mailbox_t *meeting_box(const meeting_t *meeting, size_t rank)
{
    return &meeting->host->arena->mailboxes[meeting->boxes[rank]];
}

/* -- mail.c ----------------------------------------------------------------- */

/* Finds the members' mailboxes. Waits for those that are not there yet. */
tow_status_t meeting_begin(meeting_t *meeting) TOW_MUST_USE;

/* Our next half, once the readers of what it held have finished. */
tow_status_t mail_prepare(meeting_t *meeting, uint8_t **out_stage) TOW_MUST_USE;
/* Who takes what is published. */
typedef struct mail_readers {
    uint32_t count;
    int64_t only; /* the device, if it is one; else -1 */
} mail_readers_t;

/* Lets them take, under (collective, step), what was put there. */
void mail_publish(meeting_t *meeting, uint64_t step, mail_readers_t readers);

typedef struct letter {
    mail_half_t *half;
    const uint8_t *bytes;
    uint64_t ticket;
} letter_t;

/* Waits until all members have published under (collective, step). Cheaper than
 * to wait for one after the other, when they have to sleep. */
tow_status_t mail_await_all(meeting_t *meeting, uint64_t step) TOW_MUST_USE;
/* Waits for what member `rank` publishes under (collective, step). */
tow_status_t mail_fetch(meeting_t *meeting, size_t rank, uint64_t step,
                        letter_t *out_letter) TOW_MUST_USE;
/* We have read it. ABORTED when it was replaced meanwhile, which happens only
 * after an abort: what was read is worthless. */
tow_status_t mail_release(meeting_t *meeting, size_t rank,
                          const letter_t *letter) TOW_MUST_USE;

/* -- host.c ----------------------------------------------------------------- */

/* A process that has died, and whose place nobody has taken yet. */
bool host_any_is_dead(const tow_host_t *host);

/* The abort of this run, if there is one. */
tow_status_t host_abort_of(const tow_host_t *host, uint64_t run_id)
    TOW_MUST_USE;

#endif /* TOW_COLLECTIVE_HOST_HOST_IMPL_H_ */
