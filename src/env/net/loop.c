/* The event loop: one pass over everything that is ready, a short spin, then
 * sleep.
 *
 * The loop has three states. Busy on the data plane: it calls `progress`
 * repeatedly, without a system call in between. Busy on one socket: it reads
 * that socket directly. In both states it polls the other sources through epoll
 * every TOW_NET_LOOK_NS. Idle for spin_ns: it sleeps in epoll until a
 * descriptor, a timer or a post wakes it, so an idle process uses no CPU. While
 * it spins, the loop yields its core in each round, so that more busy processes
 * than cores do not starve each other. */
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "env/net/connection.h"
#include "env/net/net_impl.h"

/* -- Sources -------------------------------------------------------------- */

tow_status_t tow_net_source_open(tow_net_t *net, tow_net_source_t *source,
                                 uint32_t events)
{
    TOW_ASSERT(source->fd >= 0 && source->ready != NULL);
    struct epoll_event event = {.events = events | EPOLLET, .data.ptr = source};
    if (epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) == 0)
        return TOW_OK;
    return TOW_ERRNO(errno, "watching a descriptor");
}

void tow_net_source_change(tow_net_t *net, tow_net_source_t *source,
                           uint32_t events)
{
    struct epoll_event event = {.events = events | EPOLLET, .data.ptr = source};
    int result = epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, source->fd, &event);
    TOW_ASSERT(result ==
               0); /* It is registered, and changing needs no memory. */
}

int tow_net_source_take(tow_net_t *net, tow_net_source_t *source)
{
    const int fd = source->fd;
    epoll_ctl(net->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    source->fd = -1;
    return fd;
}

/* Removes it from epoll explicitly: if a forked child holds the descriptor
 * open, closing ours would not. */
void tow_net_source_close(tow_net_t *net, tow_net_source_t *source)
{
    if (source->fd >= 0) close(tow_net_source_take(net, source));
}

/* The event only ends the sleep; the next pass finds the cause. */
static bool ready_to_look(tow_net_source_t *source, uint32_t events)
{
    (void)source;
    (void)events;
    return false;
}

/* -- Timers --------------------------------------------------------------- */

void tow_net_timer_start(tow_env_t *env, tow_timer_t *timer)
{
    tow_net_t *net = tow_net_of(env);
    tow_timer_heap_arm(&net->timers, timer, net->timer_sequence++);
}

void tow_net_timer_stop(tow_env_t *env, tow_timer_t *timer)
{
    tow_timer_heap_disarm(&tow_net_of(env)->timers, timer);
}

static int64_t next_deadline_ns(const tow_net_t *net)
{
    const tow_timer_t *first = tow_timer_heap_first(&net->timers);
    return first != NULL ? first->deadline_ns : TOW_TIME_NEVER;
}

/* Fires timers that are due and were armed before this pass: a timer that
 * rearms itself for now must not block the rest of the loop. */
static bool fire_timers(tow_net_t *net)
{
    if (next_deadline_ns(net) > net->env.now_ns) return false;
    const uint64_t sequence_end = net->timer_sequence;
    for (;;) {
        tow_timer_t *timer = tow_timer_heap_first(&net->timers);
        if (timer == NULL || timer->deadline_ns > net->env.now_ns ||
            timer->private_.sequence >= sequence_end)
            return true;
        tow_timer_heap_disarm(&net->timers, timer);
        timer->fire(timer);
    }
}

/* -- One pass ------------------------------------------------------------- */

static bool dispatch(const struct epoll_event *events, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) {
        /* Sources are freed by tasks only, so every source in this batch
         * exists; a closed one has no descriptor. */
        tow_net_source_t *source = events[i].data.ptr;
        if (source->fd >= 0) any |= source->ready(source, events[i].events);
    }
    return any;
}

static bool look_with_epoll(tow_net_t *net)
{
    struct epoll_event events[TOW_NET_EVENT_COUNT_MAX];
    int count = epoll_wait(net->epoll_fd, events, TOW_NET_EVENT_COUNT_MAX, 0);
    return dispatch(events, count);
}

static bool has_inner_work(tow_net_t *net)
{
    return tow_net_has_posts(net) || !tow_list_is_empty(&net->tasks);
}

/* Reads the socket that was last busy without asking epoll. The others are
 * polled every TOW_NET_LOOK_NS. */
static bool look_at_sockets(tow_net_t *net)
{
    const bool epolled_lately =
        net->env.now_ns - net->epolled_ns < TOW_NET_LOOK_NS;
    /* Posts and tasks, which other threads or the loop itself have queued, run
     * first; but only for a while. */
    if (epolled_lately && has_inner_work(net)) return false;
    if (net->hot != NULL && epolled_lately)
        return tow_net_connection_read(net->hot);
    net->epolled_ns = net->env.now_ns;
    return look_with_epoll(net);
}

static void flush_dirty(tow_net_t *net)
{
    tow_list_t mark; /* Links that become dirty now wait for the next pass. */
    tow_list_append(&net->dirty, &mark);
    while (net->dirty.next != &mark) {
        tow_list_t *item = tow_list_pop_front(&net->dirty);
        tow_net_connection_flush_dirty(item);
    }
    tow_list_remove(&mark);
}

/* Work left by callbacks. */
static bool settle(tow_net_t *net)
{
    bool any = tow_net_run_posts(net);
    any |= tow_net_run_tasks(net);
    if (tow_list_is_empty(&net->dirty)) return any;
    flush_dirty(net);
    return true;
}

static bool pass(tow_net_t *net)
{
    net->stats.pass_count++;
    tow_net_refresh_clock(net);
    net->looked_ns = net->env.now_ns;
    const bool progressed = net->poller.progress != NULL &&
                            net->poller.progress(net->poller.context);
    const bool has_read = look_at_sockets(net);
    if (progressed || has_read) net->poller_is_hot = progressed;
    const bool fired = fire_timers(net);
    const bool settled = settle(net);
    /* A timer alone does not announce more work: it does not start a spin. */
    if (progressed || has_read || settled) net->active_ns = net->env.now_ns;
    return progressed || has_read || settled || fired;
}

/* -- Spinning and sleeping ------------------------------------------------ */

/* Sockets and timers have not been polled for a while. */
static bool wants_pass(const tow_net_t *net)
{
    return net->env.now_ns - net->looked_ns >= TOW_NET_LOOK_NS ||
           next_deadline_ns(net) <= net->env.now_ns;
}

/* The hot path of the data plane: a turn without a system call that does not
 * read the clock (`progress` does, before its first callback). */
static bool turn_on_poller(tow_net_t *net)
{
    for (int i = 0; i < TOW_NET_BURST_COUNT; i++) {
        if (net->poller.progress(net->poller.context)) {
            settle(net);
            net->active_ns = net->env.now_ns;
            return true;
        }
        if (tow_net_has_posts(net)) return false;
    }
    return false;
}

bool tow_net_has_work(tow_net_t *net)
{
    return tow_net_has_posts(net) || !tow_list_is_empty(&net->tasks) ||
           !tow_list_is_empty(&net->dirty) ||
           atomic_load_explicit(&net->is_stopped, memory_order_relaxed);
}

/* Several slow yields in a row mean that other threads want this core. Then
 * sleeping beats spinning: the kernel schedules a woken sleeper ahead of
 * others, while a yielding thread waits until all of them had their slice. */
static void note_yield(tow_net_t *net, int64_t took_ns)
{
    if (took_ns < TOW_NET_LONG_YIELD_NS) {
        net->long_yield_count = 0;
        return;
    }
    if (took_ns >= TOW_NET_LOST_YIELD_NS) {
        net->long_yield_count = 0;
        net->crowded_ns = net->env.now_ns + TOW_NET_LOST_NS;
        return;
    }
    if (++net->long_yield_count < TOW_NET_LONG_YIELD_COUNT) return;
    net->long_yield_count = 0;
    net->crowded_ns = net->env.now_ns + TOW_NET_CROWDED_NS;
}

/* On crowded cores it only pays to wait for an answer that is imminent: one
 * over the data plane, from a peer that runs on another core. */
static int64_t spin_ns_at(const tow_net_t *net, int64_t now_ns)
{
    if (now_ns >= net->crowded_ns) return net->spin_ns;
    return net->poller_is_hot && net->spin_ns > TOW_NET_CROWDED_SPIN_NS
               ? TOW_NET_CROWDED_SPIN_NS
               : 0;
}

/* The awaited event repeatedly takes longer than a spin: other threads, perhaps
 * those we wait for, use the core better. */
static void note_vain_spin(tow_net_t *net)
{
    if (++net->vain_spin_count < TOW_NET_VAIN_SPIN_COUNT) return;
    if (net->skipped_spin_max < TOW_NET_SKIPPED_SPIN_MAX)
        net->skipped_spin_max = net->skipped_spin_max * 2 + 1;
    net->skipped_spin_count = net->skipped_spin_max;
}

static void note_good_spin(tow_net_t *net)
{
    net->vain_spin_count = 0;
    net->skipped_spin_max = 0;
}

static bool should_skip_spin(tow_net_t *net)
{
    if (net->skipped_spin_count == 0) return false;
    net->skipped_spin_count--;
    return true;
}

/* Polls repeatedly while there was activity recently. True if something
 * happened; false when it is time to sleep or to give up. */
static bool spin_awake(tow_net_t *net, int64_t deadline_ns)
{
    for (;;) {
        if (net->poller_is_hot && turn_on_poller(net)) return true;
        const int64_t now_ns = tow_net_clock_ns();
        if (now_ns - net->active_ns >= spin_ns_at(net, now_ns) ||
            now_ns >= deadline_ns)
            return false;
        if (net->spin_breaker != NULL && atomic_load(net->spin_breaker) > 0)
            return false;
        if (tow_net_has_work(net) || next_deadline_ns(net) <= now_ns)
            return pass(net);
        if (net->poller_is_hot && now_ns - net->looked_ns < TOW_NET_LOOK_NS)
            continue;
        sched_yield();
        const bool any = pass(net);
        note_yield(net, net->env.now_ns - now_ns);
        if (any) return true;
    }
}

/* Whether to spin at all: not after a timer alone, nor on crowded cores. */
static bool should_spin(const tow_net_t *net)
{
    const int64_t now_ns = tow_net_clock_ns();
    return now_ns - net->active_ns < net->spin_ns && now_ns >= net->crowded_ns;
}

static bool spin(tow_net_t *net, int64_t deadline_ns)
{
    if (!should_spin(net)) return spin_awake(net, deadline_ns);
    if (should_skip_spin(net)) return false;
    const int64_t before_ns = net->active_ns;
    const bool any = spin_awake(net, deadline_ns);
    if (net->active_ns != before_ns)
        note_good_spin(net);
    else if (!any && tow_net_clock_ns() < deadline_ns)
        note_vain_spin(net);
    return any;
}

static int sleep_in_epoll(tow_net_t *net, struct epoll_event *events,
                          int64_t wait_ns)
{
    if (net->has_pwait2) {
        struct timespec timeout = {.tv_sec = wait_ns / TOW_NS_PER_S,
                                   .tv_nsec = wait_ns % TOW_NS_PER_S};
        return epoll_pwait2(net->epoll_fd, events, TOW_NET_EVENT_COUNT_MAX,
                            wait_ns == TOW_TIME_NEVER ? NULL : &timeout, NULL);
    }
    int64_t wait_ms = -1;
    if (wait_ns != TOW_TIME_NEVER)
        wait_ms = (wait_ns + TOW_NS_PER_MS - 1) / TOW_NS_PER_MS;
    if (wait_ms > INT32_MAX) wait_ms = INT32_MAX;
    return epoll_wait(net->epoll_fd, events, TOW_NET_EVENT_COUNT_MAX,
                      (int)wait_ms);
}

/* The time until the deadline or the next timer, whichever is sooner. */
static int64_t wait_ns_until(const tow_net_t *net, int64_t deadline_ns)
{
    const int64_t timer_ns = next_deadline_ns(net);
    if (timer_ns < deadline_ns) deadline_ns = timer_ns;
    if (deadline_ns == TOW_TIME_NEVER) return TOW_TIME_NEVER;
    const int64_t now_ns = tow_net_clock_ns();
    return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

bool tow_net_sleep_begin(tow_net_t *net, int64_t deadline_ns,
                         int64_t *out_wait_ns)
{
    net->poller_is_hot = false;
    if (net->poller.progress != NULL && !net->poller.arm(net->poller.context))
        return false;
    atomic_store(&net->is_sleeping, true);
    if (tow_net_has_work(net) || atomic_load(&net->posts) != NULL ||
        atomic_load(&net->is_stopped)) {
        atomic_store(&net->is_sleeping, false);
        return false;
    }
    net->stats.sleep_count++;
    *out_wait_ns = wait_ns_until(net, deadline_ns);
    return true;
}

/* After a sleep; `events` are those that ended it. */
static bool wake_up(tow_net_t *net, const struct epoll_event *events, int count)
{
    atomic_store(&net->is_sleeping, false);
    tow_net_refresh_clock(net);
    bool any = dispatch(events, count);
    const bool fired = fire_timers(net);
    any |= settle(net);
    if (any) net->active_ns = net->env.now_ns;
    return any || fired;
}

bool tow_net_sleep_end(tow_net_t *net)
{
    struct epoll_event events[TOW_NET_EVENT_COUNT_MAX];
    int count = epoll_wait(net->epoll_fd, events, TOW_NET_EVENT_COUNT_MAX, 0);
    net->is_turning = true;
    const bool any = wake_up(net, events, count);
    net->is_turning = false;
    return any;
}

static bool sleep_until(tow_net_t *net, int64_t deadline_ns)
{
    int64_t wait_ns;
    if (!tow_net_sleep_begin(net, deadline_ns, &wait_ns)) return pass(net);
    struct epoll_event events[TOW_NET_EVENT_COUNT_MAX];
    int count = sleep_in_epoll(net, events, wait_ns);
    return wake_up(net, events, count);
}

bool tow_net_turn_awake(tow_net_t *net, int64_t deadline_ns)
{
    TOW_ASSERT(!net->is_turning);
    net->is_turning = true;
    const bool any = pass(net) || spin(net, deadline_ns);
    net->is_turning = false;
    return any;
}

int64_t tow_net_next_deadline_ns(const tow_net_t *net)
{
    return next_deadline_ns(net);
}

bool tow_net_turn(tow_net_t *net, int64_t max_wait_ns)
{
    TOW_ASSERT(!net->is_turning); /* Not called in a callback. */
    net->is_turning = true;
    bool any = net->poller_is_hot && max_wait_ns > 0 && !wants_pass(net)
                   ? turn_on_poller(net)
                   : pass(net);
    if (!any && max_wait_ns > 0) {
        const int64_t now_ns = tow_net_clock_ns();
        const int64_t deadline_ns = max_wait_ns < TOW_TIME_NEVER - now_ns
                                        ? now_ns + max_wait_ns
                                        : TOW_TIME_NEVER;
        any = spin(net, deadline_ns) || sleep_until(net, deadline_ns);
    }
    net->is_turning = false;
    return any;
}

void tow_net_run(tow_net_t *net)
{
    while (!net->is_closed) {
        if (atomic_load_explicit(&net->is_stopped, memory_order_relaxed)) {
            atomic_store(&net->is_stopped, false);
            return;
        }
        tow_net_turn(net, TOW_TIME_NEVER);
    }
}

void tow_net_stop(tow_net_t *net)
{
    atomic_store(&net->is_stopped, true);
    tow_net_wake(net);
}

/* -- Creating and freeing ------------------------------------------------- */

tow_status_t tow_net_poller_open(tow_net_t *net, const tow_net_poller_t *poller)
{
    TOW_ASSERT(net->poller.progress == NULL && poller->progress != NULL);
    net->poller_source =
        (tow_net_source_t){.fd = poller->fd, .ready = ready_to_look};
    /* Level-triggered, unlike the others: `arm` drains it before each sleep, so
     * no code has to reason about its edges. */
    struct epoll_event event = {.events = EPOLLIN,
                                .data.ptr = &net->poller_source};
    if (epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, poller->fd, &event) != 0)
        return TOW_ERRNO(errno, "watching the data plane");
    net->poller = *poller;
    return TOW_OK;
}

static bool probe_pwait2(int epoll_fd)
{
    struct epoll_event event;
    const struct timespec now = {0};
    return epoll_pwait2(epoll_fd, &event, 1, &now, NULL) >= 0 ||
           errno != ENOSYS;
}

tow_status_t tow_net_loop_init(tow_net_t *net)
{
    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (net->epoll_fd < 0) return TOW_ERRNO(errno, "epoll_create1");
    net->has_pwait2 = probe_pwait2(net->epoll_fd);
    if (!net->has_pwait2)
        tow_log(&net->env.log, TOW_LOG_WARN,
                "no epoll_pwait2: timers are late by up to a millisecond",
                TOW_F_STR("needs", "linux 5.11"));
    net->wake_source.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->wake_source.fd < 0) return TOW_ERRNO(errno, "eventfd");
    net->wake_source.ready = ready_to_look;
    tow_net_refresh_clock(net);
    net->looked_ns = net->env.now_ns;
    net->active_ns = net->env.now_ns - net->spin_ns;
    return tow_net_source_open(net, &net->wake_source, EPOLLIN);
}

void tow_net_loop_deinit(tow_net_t *net)
{
    if (net->epoll_fd < 0) return;
    tow_net_source_close(net, &net->wake_source);
    close(net->epoll_fd);
    net->epoll_fd = -1;
}
