/* A net that the threads of a process share: the client library's.
 *
 * Machines are single-threaded. Here a thread that has entered is that thread:
 * it calls the machines, and what they sent leaves before it goes. A thread that
 * waits turns the net itself, so the answer it waits for wakes it and no other;
 * if several wait, one turns and the others are told. No thread is woken per
 * call.
 *
 *     tow_shared_net_enter(shared);
 *     tow_client_call(machine, ..., &done);
 *     tow_shared_net_wait(shared, &done, deadline_ns);
 *     tow_shared_net_leave(shared, TOW_LEAVE_FLUSH);
 *
 * A keeper thread looks after the net while nobody is inside: now and then, for
 * heartbeats and what was left unflushed; or, while somebody has asked for
 * callbacks (tow_shared_net_expect), as soon as something comes. */
#ifndef TOW_ENV_NET_SHARED_H_
#define TOW_ENV_NET_SHARED_H_

#include <stdbool.h>
#include <stdint.h>

#include "env/net/net.h"

typedef struct tow_shared_net tow_shared_net_t;

tow_status_t tow_shared_net_create(const tow_net_options_t *options,
                                   tow_shared_net_t **out_shared) TOW_MUST_USE;
/* Ends the keeper, then closes and frees the net. No thread is inside, and it is
 * not the keeper that calls. */
void tow_shared_net_destroy(tow_shared_net_t *shared);

/* Lent. For threads that have entered. */
tow_env_t *tow_shared_net_env(tow_shared_net_t *shared);

/* Not from a callback of the net: that is inside already. The env's clock is
 * right when this returns. */
void tow_shared_net_enter(tow_shared_net_t *shared);

typedef enum tow_leave {
    TOW_LEAVE_FLUSH, /* what was sent goes out now */
    /* It may wait for the next flush, or for the keeper, which comes within
     * TOW_SHARED_TICK_NS: for one of many calls in a row. */
    TOW_LEAVE_LAZY,
} tow_leave_t;
void tow_shared_net_leave(tow_shared_net_t *shared, tow_leave_t how);

/* Inside: turns the net until *done, which a callback sets, or the deadline of
 * the env's clock. Others enter meanwhile. False: the deadline came first. */
bool tow_shared_net_wait(tow_shared_net_t *shared, const bool *done,
                         int64_t deadline_ns);
/* Inside: a `done` of some thread has been set. Callbacks call it after they set
 * one. */
void tow_shared_net_notify(tow_shared_net_t *shared);

/* Inside: somebody does, or no longer does, expect a callback though no thread
 * waits. Counted. */
void tow_shared_net_expect(tow_shared_net_t *shared, bool expected);

/* Who runs what must run outside, on the keeper: `run` is called there, not
 * inside, after each tow_shared_net_call. Set it before anybody calls. */
void tow_shared_net_set_outside(tow_shared_net_t *shared,
                                void (*run)(void *context), void *context);
/* Inside: from now on also threads that leave with TOW_LEAVE_FLUSH run it, for
 * what has come while they were inside: no keeper is woken for that. */
void tow_shared_net_call_on_leaving(tow_shared_net_t *shared);
/* Inside: there is something to run outside. */
void tow_shared_net_call(tow_shared_net_t *shared);

/* Is this in a callback, on the keeper or on a thread that leaves? Waiting there
 * would wait for itself. Any thread. */
bool tow_shared_net_is_calling(const tow_shared_net_t *shared);

#endif /* TOW_ENV_NET_SHARED_H_ */
