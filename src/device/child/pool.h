/* A pool of child processes for work that may crash, hang or corrupt its own
 * memory: compilers and host functions.
 *
 * A slot of the pool runs one job at a time. It has a thread, and a child
 * process from the first job that needs one; the child stays for the next job,
 * because starting it costs far more than a small job. A slot replaces a child
 * that crashed, timed out, broke the protocol or served enough jobs, when the
 * next job needs one.
 *
 * The owner's loop starts jobs and cancels them; ops->run does a job, on the
 * slot's thread, by exchanging messages with the child (exchange.h); then
 * ops->finished runs in a turn of the loop. */
#ifndef TOW_DEVICE_CHILD_POOL_H_
#define TOW_DEVICE_CHILD_POOL_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/list.h"
#include "device/child/exchange.h"
#include "env/env.h"

typedef struct tow_child_pool tow_child_pool_t;
typedef struct tow_child_slot tow_child_slot_t;

typedef struct tow_child_pool_ops {
    const tow_child_protocol_t *protocol;
    /* On the slot's thread: does slot->job and returns its status. */
    tow_status_t (*run)(tow_child_slot_t *slot);
    /* On the slot's thread: names slot->job in errors ("compiling add"), and
     * says its time limit. */
    void (*describe)(const tow_child_slot_t *slot, char *text, size_t capacity,
                     int64_t *out_timeout_ns);
    /* On the slot's thread, may be NULL: the child has ended; discard what the
     * user knows of it. */
    void (*child_ended)(tow_child_slot_t *slot);
    /* On the slot's thread, may be NULL: it is about to end. */
    void (*thread_ended)(tow_child_slot_t *slot);
    /* On the loop, may be NULL: the thread called tow_child_slot_report. */
    void (*reported)(tow_child_slot_t *slot);
    /* On the loop. The slot is idle. */
    void (*finished)(tow_child_slot_t *slot, void *job,
                     tow_status_t take_status);
} tow_child_pool_ops_t;

struct tow_child_pool {
    const tow_child_pool_ops_t *ops; /* static */
    tow_env_t *env;                  /* lent, outlives the pool */
    char **argv;            /* lent: the children's; read by all threads */
    int fork_server_fd;     /* lent: fork_request.h; 0: none */
    uint64_t job_count_max; /* that a child serves; 0: any */
    /* The pool's own. */
    tow_list_t slots;
    size_t slot_count;
    size_t busy_count;   /* slots with a job */
    size_t thread_count; /* slots with a thread */
    bool is_closing;
    tow_closed_t closed;
};

/* Part of the user's own slot. */
struct tow_child_slot {
    tow_child_pool_t *pool; /* lent */
    tow_list_t link;
    /* Its child ends after each job: for slots beyond the usual number. */
    bool ends_child_after_job;
    /* Written by the loop while the slot is idle. */
    void *job;
    /* The pool's own; the loop's. */
    pthread_t thread;
    bool has_thread;
    int wake_fd;                /* an eventfd: look at `commands` */
    _Atomic(unsigned) commands; /* set by the loop, taken by the thread */
    tow_post_t finished, reported, ended;
    /* The thread's while a job runs, and the loop's otherwise. */
    tow_status_t status; /* owned */
    /* The thread's. */
    tow_child_process_t process;
    uint64_t job_count; /* of this child, the one that runs included */
    /* Written by the thread, read by the loop. */
    _Atomic(pid_t) pid; /* 0: no child, the slot is cold */
    _Atomic(uint64_t) started_count, crashed_count, timed_out_count;
};

typedef struct tow_child_pool_stats {
    uint64_t started_count; /* children */
    uint64_t
        crashed_count; /* that ended by themselves, or broke the protocol */
    uint64_t timed_out_count; /* that were ended after the time limit */
    pid_t pid;                /* of the first slot's child; 0: none now */
} tow_child_pool_stats_t;

/* The first arguments of every child: PROGRAM PARENT MEMORY, for
 * tow_child_process_enter, then NULL `extra_count` + 1 times for the caller to
 * fill in. In the arena; NULL when memory is exhausted. */
#define TOW_CHILD_ARGC 3
char **tow_child_argv_make(tow_arena_t *arena, const char *program,
                           uint64_t memory_bytes_max, size_t extra_count);

/* -- For the loop ----------------------------------------------------------- */

/* The fields above `slots` are set; the rest is zero. */
void tow_child_pool_init(tow_child_pool_t *pool);
/* Zeroed memory that outlives the pool's closing. */
void tow_child_slot_init(tow_child_slot_t *slot, tow_child_pool_t *pool);
/* Of a pool that has closed, or never started a job. */
void tow_child_pool_deinit(tow_child_pool_t *pool);

/* An idle slot, preferably with a warm child; NULL: all are busy. O(slots). */
tow_child_slot_t *tow_child_pool_idle(const tow_child_pool_t *pool);
/* Starts a job on an idle slot; `finished` follows unless this fails. Starts
 * the slot's thread if there is none. */
tow_status_t tow_child_slot_start(tow_child_slot_t *slot, void *job)
    TOW_MUST_USE;
/* Ends the slot's job soon, and its child. */
void tow_child_slot_cancel(tow_child_slot_t *slot);
/* Wakes the slot's job: its wait returns TOW_CHILD_NOTIFIED. */
void tow_child_slot_notify(tow_child_slot_t *slot);
/* No job runs. Ends children and threads, then calls `closed`: in this call if
 * no thread was ever started. */
void tow_child_pool_close(tow_child_pool_t *pool, tow_closed_t closed);
tow_child_pool_stats_t tow_child_pool_stats(const tow_child_pool_t *pool);
/* Asserts the pool's invariants. O(slots). */
void tow_child_pool_check(const tow_child_pool_t *pool);

/* -- For ops->run ----------------------------------------------------------- */

/* Starts a child if there is none, or another if the last one served enough or
 * has ended. Clears the last output: it was about other jobs. */
tow_status_t tow_child_slot_ensure(tow_child_slot_t *slot) TOW_MUST_USE;
/* Ends the child, if there is one. */
void tow_child_slot_end(tow_child_slot_t *slot);
/* An exchange with the slot's child. */
tow_child_exchange_t tow_child_slot_exchange(tow_child_slot_t *slot,
                                             int64_t timeout_ns);
/* tow_child_exchange_wait, which also returns NOTIFIED and CANCELLED. From
 * CANCELLED on the child has been ended. */
tow_child_event_t tow_child_slot_wait(tow_child_slot_t *slot,
                                      tow_child_exchange_t *exchange);
/* The message that was received makes no sense to the caller: ends the child,
 * and returns the error. */
tow_status_t tow_child_slot_reject(tow_child_slot_t *slot) TOW_MUST_USE;
/* The error of a job that CANCELLED or a later event has ended. */
tow_status_t tow_child_slot_error(tow_child_slot_t *slot,
                                  tow_child_event_t event) TOW_MUST_USE;
/* ops->reported follows on the loop, before `finished`. */
void tow_child_slot_report(tow_child_slot_t *slot);

#endif /* TOW_DEVICE_CHILD_POOL_H_ */
