/* What the files of this folder share. See README.md for who does what. */
#ifndef TOW_ENV_NET_NET_IMPL_H_
#define TOW_ENV_NET_NET_IMPL_H_

#include <stdatomic.h>
#include <time.h>

#include "base/list.h"
#include "env/net/complaint.h"
#include "env/net/net.h"
#include "env/net/queue.h"
#include "env/timer_heap.h"
#include "env/tuning.h"
#include "wire/handshake.h"

/* -- Things that the loop waits for --------------------------------------- */

typedef struct tow_net_source tow_net_source_t;

/* A descriptor in epoll, edge-triggered. Edges, because a busy socket is read
 * directly without asking epoll, and an edge that was served that way costs one
 * spurious look later, while a level would have to be cleared each time.
 * Whoever gets an edge reads until a short read or EAGAIN, or defers a task
 * to go on. */
struct tow_net_source {
    int fd; /* owned; -1: none */
    /* True if it did something: that keeps the loop awake for a while. */
    bool (*ready)(tow_net_source_t *source, uint32_t events);
};

tow_status_t tow_net_source_open(tow_net_t *net, tow_net_source_t *source,
                                 uint32_t events) TOW_MUST_USE;
void tow_net_source_change(tow_net_t *net, tow_net_source_t *source,
                           uint32_t events);
/* Closes the descriptor too. Harmless when there is none. */
void tow_net_source_close(tow_net_t *net, tow_net_source_t *source);

/* Something to do in the next pass, on the loop, outside of any callback. */
typedef struct tow_net_task tow_net_task_t;
struct tow_net_task {
    tow_list_t list; /* a list of its own when it is not deferred */
    void (*run)(tow_net_task_t *task);
};

void tow_net_task_init(tow_net_task_t *task, void (*run)(tow_net_task_t *task));
/* Harmless when it already waits. */
void tow_net_defer(tow_net_t *net, tow_net_task_t *task);

/* The data plane, as the loop sees it. */
typedef struct tow_net_poller {
    void *context;
    /* Called in a tight loop while it is busy: must cost next to nothing when
     * nothing happened. True if something happened; before the first callback
     * it makes, it calls tow_net_refresh_clock. */
    bool (*progress)(void *context);
    /* Readable when progress has something to do. Lent by the data plane. */
    int fd;
    /* Before sleeping on `fd`: false if progress must be called first. */
    bool (*arm)(void *context);
    /* The env closes: close all lanes and regions. The data plane took a hold
     * (tow_net_hold) when it was made and drops it when all are gone. */
    void (*close)(void *context);
    /* Frees the data plane; nothing of it is open. */
    void (*destroy)(void *context);
} tow_net_poller_t;

/* -- The net -------------------------------------------------------------- */

typedef struct tow_net_link tow_net_link_t;
typedef struct tow_net_helpers tow_net_helpers_t;

struct tow_net {
    tow_env_t env;     /* first: a tow_env_t of ours is a tow_net_t */
    tow_env_ops_t ops; /* ours, so that the data plane can add its entries */
    tow_identity_t identity;
    const tow_security_t *security; /* lent */
    tow_net_complaints_t complaints;
    tow_net_stats_t stats;

    /* Loop. */
    int epoll_fd;
    bool has_pwait2; /* kernel 5.11 or later */
    bool is_turning;
    bool poller_is_hot;  /* the data plane was the last to be busy */
    tow_net_link_t *hot; /* lent: the link that was last to bring bytes */
    int64_t spin_ns;
    uint32_t vain_spin_count;    /* in a row */
    uint32_t skipped_spin_count; /* still to skip */
    uint32_t skipped_spin_max;   /* the last time */
    int64_t active_ns;           /* when something last happened */
    int64_t looked_ns;           /* when sockets were last looked at */
    int64_t epolled_ns;          /* when epoll was last asked */
    int64_t crowded_ns; /* no spinning until then: others want the core */
    uint32_t long_yield_count; /* in a row */
    /* Lent; NULL: none. Threads that want the net: above 0 it spins no more. */
    const atomic_int *spin_breaker;
    tow_timer_heap_t timers;
    uint64_t timer_sequence;
    tow_net_poller_t poller;        /* progress NULL: none */
    tow_net_source_t poller_source; /* its descriptor is the data plane's */

    /* Posts: pushed by any thread, taken whole by the loop. */
    _Atomic(tow_post_t *) posts;
    atomic_bool is_sleeping; /* set by the loop; who clears it wakes */
    atomic_bool is_stopped;  /* set by any thread, cleared by the loop */
    tow_net_source_t wake_source;

    /* Work off the loop. */
    tow_net_helpers_t *helpers; /* owned; NULL until work is started */
    tow_net_helpers_t *copiers; /* the same, for tow_net_copy_start */
    uint32_t helper_count_max;

    /* Connections. */
    tow_list_t tasks;
    tow_list_t links;     /* all, by `all` */
    tow_list_t listeners; /* all */
    tow_list_t half_open; /* oldest first, by `half_open` */
    tow_list_t dirty;     /* links with bytes to flush at the end of a pass */
    tow_net_chunks_t chunks;
    uint8_t *read_bytes;  /* owned, TOW_NET_READ_BYTES, shared by all links */
    uint8_t *plain_bytes; /* owned, the same for what TLS decrypts, or NULL */

    /* Closing: the net is closed when the last hold is dropped. */
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

/* Lets the env's time move on. Between callbacks only. */
static inline void tow_net_refresh_clock(tow_net_t *net)
{
    net->env.now_ns = tow_net_clock_ns();
}

/* -- loop.c --------------------------------------------------------------- */

tow_status_t tow_net_loop_init(tow_net_t *net) TOW_MUST_USE;
void tow_net_loop_deinit(tow_net_t *net);
void tow_net_timer_start(tow_env_t *env, tow_timer_t *timer);
void tow_net_timer_stop(tow_env_t *env, tow_timer_t *timer);
/* For a net that threads share (shared.c): a turn that may spin but does not
 * sleep; and a sleep in two halves, with the net free for others in between.
 * `begin` says how long to wait for epoll_fd to be readable, or false if there
 * is something to do first. */
bool tow_net_turn_awake(tow_net_t *net, int64_t deadline_ns);
bool tow_net_sleep_begin(tow_net_t *net, int64_t deadline_ns,
                         int64_t *out_wait_ns) TOW_MUST_USE;
bool tow_net_sleep_end(tow_net_t *net);
int64_t tow_net_next_deadline_ns(const tow_net_t *net);
/* Something to do that no event will tell of. */
bool tow_net_has_work(tow_net_t *net);
/* The data plane joins the loop. Once, from tow_net_data_create. */
tow_status_t tow_net_poller_open(tow_net_t *net, const tow_net_poller_t *poller)
    TOW_MUST_USE;

/* -- post.c --------------------------------------------------------------- */

void tow_net_post(tow_env_t *env, tow_post_t *post);
/* Ends the loop's sleep if it sleeps. Any thread. */
void tow_net_wake(tow_net_t *net);
/* Runs what has been posted so far; true if there was anything. */
bool tow_net_run_posts(tow_net_t *net);
bool tow_net_run_tasks(tow_net_t *net);

static inline bool tow_net_has_posts(tow_net_t *net)
{
    return atomic_load_explicit(&net->posts, memory_order_relaxed) != NULL;
}

/* -- work.c --------------------------------------------------------------- */

void tow_net_work_start(tow_env_t *env, tow_work_t *work);
void tow_net_work_cancel(tow_env_t *env, tow_work_t *work);
/* All that has not begun ends with CANCELLED. */
void tow_net_work_cancel_all(tow_net_t *net);
/* Joins the threads. No work is left. */
/* As tow_env_work_start, on threads that do nothing else, so that it waits for
 * no work of others. Cannot be cancelled. */
void tow_net_copy_start(tow_net_t *net, tow_work_t *work);
void tow_net_helpers_destroy(tow_net_t *net);

/* -- net.c ---------------------------------------------------------------- */

/* What keeps the net from being closed: a link, a listener, work, the data
 * plane. Dropping the last one while closing ends it, in a later pass. */
void tow_net_hold(tow_net_t *net);
void tow_net_drop(tow_net_t *net);

/* Random bytes of the system. */
tow_status_t tow_net_system_random(void *bytes, size_t count) TOW_MUST_USE;

#endif /* TOW_ENV_NET_NET_IMPL_H_ */
