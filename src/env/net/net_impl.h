/* Internals shared by the files of this folder; README.md lists them. */
#ifndef TOW_ENV_NET_NET_IMPL_H_
#define TOW_ENV_NET_NET_IMPL_H_

#include <stdatomic.h>
#include <time.h>

#include "base/list.h"
#include "env/net/log_limiter.h"
#include "env/net/net.h"
#include "env/net/queue.h"
#include "env/timer_heap.h"
#include "env/tuning.h"
#include "wire/handshake.h"

/* -- Event sources of the loop -------------------------------------------- */

typedef struct tow_net_source tow_net_source_t;

/* A descriptor in epoll, edge-triggered: the loop reads a busy socket directly,
 * without epoll_wait, and an edge for data already read costs one spurious
 * wakeup, where a level-triggered event would have to be cleared each time. The
 * handler of an edge reads until a short read or EAGAIN, or defers a task to
 * continue. */
struct tow_net_source {
    int fd; /* owned; -1: none */
    /* True if it did any work: the loop then stays awake for a while. */
    bool (*ready)(tow_net_source_t *source, uint32_t events);
};

tow_status_t tow_net_source_open(tow_net_t *net, tow_net_source_t *source,
                                 uint32_t events) TOW_MUST_USE;
void tow_net_source_change(tow_net_t *net, tow_net_source_t *source,
                           uint32_t events);
/* Also closes the descriptor. Does nothing without one. */
void tow_net_source_close(tow_net_t *net, tow_net_source_t *source);
/* Removes the descriptor without closing it; the caller owns it. */
int tow_net_source_take(tow_net_t *net, tow_net_source_t *source) TOW_MUST_USE;

/* A function to run in the next pass of the loop, outside of any callback. */
typedef struct tow_net_task tow_net_task_t;
struct tow_net_task {
    tow_list_t list; /* linked to itself when the task is not deferred */
    void (*run)(tow_net_task_t *task);
};

void tow_net_task_init(tow_net_task_t *task, void (*run)(tow_net_task_t *task));
/* Does nothing if the task is already deferred. */
void tow_net_defer(tow_net_t *net, tow_net_task_t *task);

/* The data plane, as a poller in the loop. */
typedef struct tow_net_poller {
    void *context;
    /* Called in a tight loop while the data plane is busy: must be almost free
     * when nothing happened. True if something happened; calls
     * tow_net_refresh_clock before the first callback it makes. */
    bool (*progress)(void *context);
    /* Readable when `progress` has work to do. Lent by the data plane. */
    int fd;
    /* Called before the loop sleeps on `fd`; false if `progress` must be called
     * first. */
    bool (*arm)(void *context);
    /* The env closes: closes all lanes and regions. The data plane retains the
     * net (tow_net_retain) when it is created and releases it when all of them
     * are closed. */
    void (*close)(void *context);
    /* Frees the data plane, which has nothing open. */
    void (*destroy)(void *context);
} tow_net_poller_t;

/* -- The net -------------------------------------------------------------- */

typedef struct tow_net_link tow_net_link_t;
typedef struct tow_net_helpers tow_net_helpers_t;

struct tow_net {
    tow_env_t env;     /* first: a tow_env_t of this env is a tow_net_t */
    tow_env_ops_t ops; /* a copy, so that the data plane can add its entries */
    tow_identity_t identity;
    const tow_security_t *security; /* lent */
    tow_net_log_limiter_t log_limiter;
    tow_net_stats_t stats;

    /* The loop. */
    int epoll_fd;
    bool has_pwait2; /* kernel 5.11 or later */
    bool is_turning;
    bool poller_is_hot;  /* the data plane was the last active source */
    tow_net_link_t *hot; /* lent: the link that last received bytes */
    int64_t spin_ns;
    uint32_t vain_spin_count;    /* in a row */
    uint32_t skipped_spin_count; /* spins still to skip */
    uint32_t skipped_spin_max;   /* how many were skipped the last time */
    int64_t active_ns;           /* time of the last activity */
    int64_t looked_ns;           /* when sockets were last polled */
    int64_t epolled_ns;          /* time of the last epoll_wait */
    int64_t
        crowded_ns; /* no spinning until then: other threads want the core */
    uint32_t long_yield_count; /* in a row */
    /* Lent, or NULL. The number of threads that wait for the net
     * (locked_net.c); above 0 the loop stops spinning. */
    const atomic_int *spin_breaker;
    tow_timer_heap_t timers;
    uint64_t timer_sequence;
    tow_net_poller_t poller; /* `progress` is NULL without a data plane */
    tow_net_source_t poller_source; /* lent descriptor of the data plane */
    char *data_source;              /* owned; NULL: as the route says */

    /* Posts: pushed by any thread, taken all at once by the loop. */
    _Atomic(tow_post_t *) posts;
    atomic_bool
        is_sleeping; /* set by the loop; the thread that clears it wakes it */
    atomic_bool is_stopped; /* set by any thread, cleared by the loop */
    tow_net_source_t wake_source;

    /* Helper threads. */
    tow_net_helpers_t *helpers; /* owned; NULL until work is started */
    tow_net_helpers_t *copiers; /* the same, for tow_net_copy_start */
    tow_net_helpers_t *ciphers; /* the same, for tow_net_cipher_start */
    uint32_t helper_count_max;

    /* Connections. */
    tow_list_t tasks;
    tow_list_t links;     /* every link, through `all` */
    tow_list_t listeners; /* every listener */
    tow_list_t half_open; /* oldest first, through `half_open` */
    tow_list_t dirty;     /* links with bytes to flush at the end of a pass */
    tow_net_chunks_t chunks;
    uint8_t *read_bytes; /* owned, TOW_NET_READ_BYTES, shared by all links */
    uint8_t *
        plain_bytes; /* owned: the same for bytes that TLS decrypted; or NULL */

    /* Closing: the net is closed when it is no longer retained. */
    uint64_t hold_count;
    bool is_closing;
    bool is_closed;
    tow_closed_t closed;
    tow_net_task_t closed_task;
    char name[TOW_PEER_NAME_MAX + 1];
};

static inline tow_net_t *tow_net_of(tow_env_t *env)
{
    return (tow_net_t *)env;
}

static inline int64_t tow_net_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * TOW_NS_PER_S + now.tv_nsec;
}

/* Updates the env's clock. Between callbacks only. */
static inline void tow_net_refresh_clock(tow_net_t *net)
{
    net->env.now_ns = tow_net_clock_ns();
}

/* -- loop.c --------------------------------------------------------------- */

tow_status_t tow_net_loop_init(tow_net_t *net) TOW_MUST_USE;
void tow_net_loop_deinit(tow_net_t *net);
void tow_net_timer_start(tow_env_t *env, tow_timer_t *timer);
void tow_net_timer_stop(tow_env_t *env, tow_timer_t *timer);
/* For a net used by several threads (locked_net.c): a turn that may spin but
 * does not sleep; and a sleep in two halves, between which other threads may
 * use the net. `begin` returns how long to wait for epoll_fd to become
 * readable, or false if there is work to do first. */
bool tow_net_turn_awake(tow_net_t *net, int64_t deadline_ns);
bool tow_net_sleep_begin(tow_net_t *net, int64_t deadline_ns,
                         int64_t *out_wait_ns) TOW_MUST_USE;
bool tow_net_sleep_end(tow_net_t *net);
int64_t tow_net_next_deadline_ns(const tow_net_t *net);
/* Whether there is work that no descriptor will signal. */
bool tow_net_has_work(tow_net_t *net);
/* Adds the data plane to the loop. Called once, by tow_net_data_create. */
tow_status_t tow_net_poller_open(tow_net_t *net, const tow_net_poller_t *poller)
    TOW_MUST_USE;

/* -- post.c --------------------------------------------------------------- */

void tow_net_post(tow_env_t *env, tow_post_t *post);
/* Wakes the loop if it sleeps. Any thread. */
void tow_net_wake(tow_net_t *net);
/* Runs all posts so far; returns whether there were any. */
bool tow_net_run_posts(tow_net_t *net);
bool tow_net_run_tasks(tow_net_t *net);

static inline bool tow_net_has_posts(tow_net_t *net)
{
    return atomic_load_explicit(&net->posts, memory_order_relaxed) != NULL;
}

/* -- work.c --------------------------------------------------------------- */

void tow_net_work_start(tow_env_t *env, tow_work_t *work);
void tow_net_work_cancel(tow_env_t *env, tow_work_t *work);
/* Jobs that have not started end with CANCELLED. */
void tow_net_work_cancel_all(tow_net_t *net);
/* Like tow_env_work_start, on threads that do nothing else, so that the job
 * never waits behind other work. Cannot be cancelled. */
void tow_net_copy_start(tow_net_t *net, tow_work_t *work);
/* The same on threads for subflows of trunks, at most `thread_count_max`, which
 * is the same in each call. */
void tow_net_cipher_start(tow_net_t *net, tow_work_t *work,
                          uint32_t thread_count_max);
/* Joins the threads. All work has ended. */
void tow_net_helpers_destroy(tow_net_t *net);

/* -- net.c ---------------------------------------------------------------- */

/* Links, listeners, work and the data plane keep the net from closing by
 * retaining it. When a closing net is released for the last time, it closes in
 * a later pass. */
void tow_net_retain(tow_net_t *net);
void tow_net_release(tow_net_t *net);

/* check.c: asserts the invariants of the net, its links and timers, between two
 * turns. O(n): for tests. */
void tow_net_check(const tow_net_t *net);

/* Random bytes from the operating system. */
tow_status_t tow_net_system_random(void *bytes, size_t count) TOW_MUST_USE;

#endif /* TOW_ENV_NET_NET_IMPL_H_ */
