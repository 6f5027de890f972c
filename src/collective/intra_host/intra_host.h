/* Collectives among the devices of one host, in shared memory, executed by the
 * calling threads.
 *
 * XLA calls a collective on one of its own threads and blocks that thread until
 * it is done; handing it to an event loop would cost several times the
 * collective itself. So this module is exempt from the purity rule of the state
 * machines: it blocks, has a thread, and reads the clock. It makes no decisions
 * about gangs; it only moves and combines bytes.
 *
 * Every device of the host has a mailbox in one shared memory segment, the
 * arena. A member writes its bytes into its own mailbox under a key that
 * identifies the collective, and reads the bytes of the others from theirs.
 * There is no set-up per gang, so sub-gangs cost nothing, and processes need
 * not know each other.
 *
 * Members that wait detect a killed or frozen process by its heartbeat. They
 * fail with an error that names the device, and so does every other member of
 * that run on the host. */
#ifndef TOW_COLLECTIVE_INTRA_HOST_INTRA_HOST_H_
#define TOW_COLLECTIVE_INTRA_HOST_INTRA_HOST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/xla_cpu/xla_cpu.h"

#define TOW_INTRA_HOST_DEVICE_COUNT_MAX  256
#define TOW_INTRA_HOST_PROCESS_COUNT_MAX 64
#define TOW_INTRA_HOST_MISSING_MAX       8

/* Creates the arena of a host: POSIX shared memory of mode 0600 under `name`,
 * which begins with "/" and contains no other slash. Its pages are allocated on
 * first use. Fails with ALREADY_EXISTS if the name is taken. */
tow_status_t tow_intra_host_arena_create(const char *name) TOW_MUST_USE;
/* Processes that have the arena open keep it; no other can open it. */
void tow_intra_host_arena_remove(const char *name);

typedef struct tow_intra_host_options {
    const char *arena;
    uint64_t random;           /* see tow_intra_host_memory */
    const int64_t *device_ids; /* of this process: global, not yet claimed */
    size_t device_count;
    /* A process without a heartbeat for this long counts as frozen; 0: the
     * default. */
    int64_t heartbeat_timeout_ns;
} tow_intra_host_options_t;

/* One process's membership in the arena. */
typedef struct tow_intra_host tow_intra_host_t;

tow_status_t tow_intra_host_open(const tow_intra_host_options_t *options,
                                 tow_intra_host_t **out_host) TOW_MUST_USE;
/* No call may be in progress. */
void tow_intra_host_close(tow_intra_host_t *host);
/* The number in the arena: the `random` of the first process that opened it.
 * Two processes that find the same number there do share the memory. */
uint64_t tow_intra_host_memory(const tow_intra_host_t *host);

/* Runs one member's part in one collective: tow_xla_collectives_t.run, with the
 * tow_intra_host_t as context. Returns 0 or a tow_code_t, with a message in
 * `error`. All members must be devices of this host. Any thread. */
int tow_intra_host_collective(void *host,
                              const tow_xla_collective_t *collective,
                              char *error, size_t error_capacity);

/* Fails all present and future collectives of this run, in all processes of the
 * host. Any thread. */
void tow_intra_host_abort(tow_intra_host_t *host, uint64_t run_id,
                          tow_code_t code, const char *reason);

/* The error with which this run was aborted, if it is still recorded
 * (TOW_INTRA_HOST_ABORT_COUNT); else OK. Any thread. */
tow_status_t tow_intra_host_check(const tow_intra_host_t *host, uint64_t run_id)
    TOW_MUST_USE;

/* -- Long waits ------------------------------------------------------------ */

/* A device of this process that has waited in a collective for longer than
 * TOW_INTRA_HOST_LONG_WAIT_NS. */
typedef struct tow_intra_host_wait {
    int64_t device;
    uint64_t run_id;
    int64_t since_ns; /* CLOCK_MONOTONIC */
    /* The first few devices that it waits for. Some may be waiting for other
     * devices themselves. */
    size_t missing_count;
    int64_t missing[TOW_INTRA_HOST_MISSING_MAX];
} tow_intra_host_wait_t;

/* Copies the current long waits and returns their number. Any thread. */
size_t tow_intra_host_list_waits(tow_intra_host_t *host,
                                 tow_intra_host_wait_t *waits, size_t capacity,
                                 int64_t *out_now_ns);

/* The duration of one wait, kept by the waiting member. Initially zero. */
typedef struct tow_intra_host_wait_timer {
    int64_t begun_ns;    /* 0: it has not begun */
    int64_t since_ns;    /* its first sleep ended */
    int64_t reported_ns; /* when it was last reported; 0: never */
} tow_intra_host_wait_timer_t;

/* Called before each pause. Reads the clock the first time. */
void tow_intra_host_wait_begin(tow_intra_host_wait_timer_t *timer);
/* Called after each sleep; true if the wait is to be reported now. */
bool tow_intra_host_wait_is_long(tow_intra_host_wait_timer_t *timer);
/* Records a long wait, or updates it. A device has one wait at a time. The
 * function fills in `since_ns`. */
void tow_intra_host_wait_report(tow_intra_host_t *host,
                                tow_intra_host_wait_timer_t *timer,
                                const tow_intra_host_wait_t *wait);
void tow_intra_host_wait_clear(tow_intra_host_t *host, int64_t device);
/* Adds the duration of the wait to collective->wait_ns. */
void tow_intra_host_wait_count(const tow_intra_host_wait_timer_t *timer,
                               const tow_xla_collective_t *collective);
/* The wait is over, or there was none: counts it, and clears it if it was
 * reported. */
static inline void tow_intra_host_wait_end(
    tow_intra_host_t *host, const tow_intra_host_wait_timer_t *timer,
    const tow_xla_collective_t *collective)
{
    if (timer->begun_ns != 0) tow_intra_host_wait_count(timer, collective);
    if (TOW_UNLIKELY(timer->reported_ns != 0))
        tow_intra_host_wait_clear(host, collective->members[collective->rank]);
}

#endif /* TOW_COLLECTIVE_INTRA_HOST_INTRA_HOST_H_ */
