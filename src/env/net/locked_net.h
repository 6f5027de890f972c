/* A net that several threads of a process use under a lock: the client
 * library's.
 *
 * State machines are single-threaded. A thread that has entered, and so holds
 * the lock, acts as that single thread: it calls the machines, and their
 * messages are sent before it leaves. A thread that waits drives the net
 * itself, so the reply that it waits for wakes that thread and no other; if
 * several wait, one of them drives and the others sleep on a condition. No call
 * wakes an extra thread.
 *
 *     tow_locked_net_enter(locked);
 *     tow_worker_callback(machine, ..., &done);
 *     tow_locked_net_wait(locked, &done, deadline_ns);
 *     tow_locked_net_leave(locked, TOW_LEAVE_FLUSH);
 *
 * A progress thread drives the net while no thread is inside: periodically, for
 * heartbeats and unflushed messages; or, while a callback is expected
 * (tow_locked_net_expect), as soon as there is something to do. */
#ifndef TOW_ENV_NET_SHARED_H_
#define TOW_ENV_NET_SHARED_H_

#include <stdbool.h>
#include <stdint.h>

#include "env/net/net.h"

typedef struct tow_locked_net tow_locked_net_t;

tow_status_t tow_locked_net_create(const tow_net_options_t *options,
                                   tow_locked_net_t **out_shared) TOW_MUST_USE;
/* Ends the progress thread, then closes and frees the net. No thread may be
 * inside, and the progress thread may not call this. */
void tow_locked_net_destroy(tow_locked_net_t *locked);

/* Lent. For threads that have entered. */
tow_env_t *tow_locked_net_env(tow_locked_net_t *locked);

/* Must not be called in a callback of the net, which is inside already. The
 * env's clock is up to date when this returns. */
void tow_locked_net_enter(tow_locked_net_t *locked);

typedef enum tow_leave {
    TOW_LEAVE_FLUSH, /* messages are sent now */
    /* Messages may wait for the next flush, or for the progress thread, which
     * flushes within TOW_LOCKED_NET_TICK_NS: for one of many calls in a row. */
    TOW_LEAVE_LAZY,
} tow_leave_t;
void tow_locked_net_leave(tow_locked_net_t *locked, tow_leave_t how);

/* Inside: drives the net until a callback sets *done, or until the deadline (of
 * the env's clock). Other threads may enter meanwhile. False: the deadline came
 * first. */
bool tow_locked_net_wait(tow_locked_net_t *locked, const bool *done,
                         int64_t deadline_ns);
/* Inside: some thread's `done` was set. A callback calls this after setting
 * one. */
void tow_locked_net_notify(tow_locked_net_t *locked);

/* Inside: a callback is, or is no longer, expected while no thread waits.
 * Counted. */
void tow_locked_net_expect(tow_locked_net_t *locked, bool expected);

/* Sets the callback that must run without the lock: the progress thread calls
 * `run` once after each tow_locked_net_request_callback. To be set before the
 * first request. */
void tow_locked_net_set_unlocked_callback(tow_locked_net_t *locked,
                                          void (*run)(void *context),
                                          void *context);
/* Inside: from now on, threads that leave with TOW_LEAVE_FLUSH also run the
 * callback, for requests made while they were inside. This saves waking the
 * progress thread. */
void tow_locked_net_run_callback_on_leave(tow_locked_net_t *locked);
/* Inside: requests a run of the callback. */
void tow_locked_net_request_callback(tow_locked_net_t *locked);

/* Whether this thread is the progress thread, or runs the callback while
 * leaving. Waiting there would deadlock. Any thread. */
bool tow_locked_net_is_in_callback(const tow_locked_net_t *locked);

#endif /* TOW_ENV_NET_SHARED_H_ */
