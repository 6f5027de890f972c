/* Collectives among the devices of one host, in shared memory, done by the
 * threads that call them.
 *
 * XLA calls a collective on a thread of its own and expects it to work there; a
 * hop through a loop costs several times the collective itself. So this engine
 * is exempt from the rule of the state machines: it blocks, it has a thread, and
 * it looks at the clock. What is decided about gangs is decided elsewhere; this
 * only moves and combines bytes.
 *
 * Every device of the host has a mailbox in one piece of shared memory, the
 * arena. To take part, a member puts its bytes into its mailbox under a key that
 * names the collective, and takes those of the others from theirs. There is
 * nothing to set up per gang, so sub-gangs cost nothing, and processes need not
 * have heard of each other.
 *
 * A member that is killed or frozen is noticed by those that wait for it, by
 * its process's heartbeat; they fail with an error that names it, and so does
 * every other member of that run, on the whole host. */
#ifndef TOW_COLLECTIVE_HOST_HOST_H_
#define TOW_COLLECTIVE_HOST_HOST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/xla_cpu/xla_cpu.h"

#define TOW_HOST_DEVICE_COUNT_MAX  256
#define TOW_HOST_PROCESS_COUNT_MAX 64
#define TOW_HOST_MISSING_MAX       8

/* Makes the arena of a host: POSIX shared memory of mode 0600 under `name`,
 * which begins with "/" and has no other. It takes memory as it is used.
 * ALREADY_EXISTS names it. */
tow_status_t tow_host_arena_create(const char *name) TOW_MUST_USE;
/* Processes that have it open keep it; no other can open it. */
void tow_host_arena_remove(const char *name);

typedef struct tow_host_options {
    const char *arena;
    const int64_t *device_ids; /* ours: global, not claimed by another */
    size_t device_count;
    /* Silence of a process after which it counts as frozen; 0: the default. */
    int64_t patience_ns;
} tow_host_options_t;

typedef struct tow_host tow_host_t;

tow_status_t tow_host_open(const tow_host_options_t *options,
                           tow_host_t **out_host) TOW_MUST_USE;
/* No call may be inside. */
void tow_host_close(tow_host_t *host);

/* Does one member's part in one collective. Any thread. Has the form that
 * tow_xla_collectives_t wants, with the host as context: returns 0 or a
 * tow_code_t, with the reason in `error`. All members must be devices of this
 * host. */
int tow_host_collective(void *host, const tow_xla_collective_t *collective,
                        char *error, size_t error_capacity);

/* Fails all that wait, or will wait, in a collective of this run, in all
 * processes of the host. Any thread. */
void tow_host_abort(tow_host_t *host, uint64_t run_id, tow_code_t code,
                    const char *reason);

/* The abort of this run, if it is still remembered. Any thread. */
tow_status_t tow_host_check(const tow_host_t *host, uint64_t run_id)
    TOW_MUST_USE;

/* -- Who waits for whom ------------------------------------------------------- */

/* A device of ours that has waited in a collective for long (tuning.h). */
typedef struct tow_host_wait {
    int64_t device;
    uint64_t run_id;
    int64_t since_ns; /* of CLOCK_MONOTONIC; when it was first seen to wait */
    /* Those that have not come, the first few of them. Some may be waiting
     * themselves, for others. */
    size_t missing_count;
    int64_t missing[TOW_HOST_MISSING_MAX];
} tow_host_wait_t;

/* As of a moment ago; returns how many. Any thread. */
size_t tow_host_waits(tow_host_t *host, tow_host_wait_t *waits, size_t capacity,
                      int64_t *out_now_ns);

/* One wait as whoever waits sees it, from zeroes on. */
typedef struct tow_host_watch {
    int64_t since_ns; /* when it was first looked at */
    int64_t noted_ns; /* when it was last noted; 0: never */
} tow_host_watch_t;

/* Looked at after each sleep; true: it is time to note for whom we wait. */
bool tow_host_wait_is_long(tow_host_watch_t *watch);
/* A device has one wait at a time. `since_ns` is filled in. */
void tow_host_wait_note(tow_host_t *host, tow_host_watch_t *watch,
                        const tow_host_wait_t *wait);
void tow_host_wait_forget(tow_host_t *host, int64_t device);
/* It is over, for whatever reason: nothing to do unless it was noted. */
static inline void tow_host_wait_end(tow_host_t *host,
                                     const tow_host_watch_t *watch,
                                     int64_t device)
{
    if (TOW_UNLIKELY(watch->noted_ns != 0)) tow_host_wait_forget(host, device);
}

#endif /* TOW_COLLECTIVE_HOST_HOST_H_ */
