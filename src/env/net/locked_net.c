/* One lock, at most one thread that drives the net (the driver), and a progress
 * thread.
 *
 * The lock is held whenever the net is touched, including in callbacks. The
 * driver releases it to sleep: it then polls epoll's own descriptor, so that
 * other threads can enter, send and leave. They wake the sleeper only if they
 * changed what it waits for: by arming an earlier timer, or by setting a `done`
 * in their own turn. The sleeper has an eventfd for that, since epoll events
 * are gone once another thread's turn has consumed them.
 *
 * At most one thread sleeps. A driver that takes over from the progress thread
 * waits until that thread is awake. */
#include "env/net/locked_net.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/net_impl.h"

struct tow_locked_net {
    tow_net_t *net;               /* owned */
    pthread_mutex_t lock;         /* guards all fields that are not atomic */
    pthread_cond_t done_cond;     /* a `done` was set, or no thread drives */
    pthread_cond_t progress_cond; /* for the progress thread alone */
    pthread_t progress_thread;
    bool has_progress_thread;
    atomic_int entering_count; /* threads that wait for the lock */
    bool is_driven;            /* a thread is in drive_until, perhaps asleep */
    bool progress_thread_drives; /* and it is the progress thread */
    /* The driver, or a displaced progress thread that is not awake yet, has
     * released the lock to sleep. */
    bool is_asleep;
    bool is_woken; /* ... and wake_fd was written */
    int64_t asleep_until_ns;
    int wake_fd;           /* owned; wakes the sleeper */
    uint32_t waiter_count; /* threads in tow_locked_net_wait */
    uint32_t expected_count;
    bool notified; /* since the lock was taken */
    bool callback_is_requested;
    bool progress_thread_was_signalled;
    bool leavers_run_callback;
    void (*run_callback)(void *context);
    void *callback_context; /* lent */
    bool is_ending;
};

/* This thread is leaving and runs the callback. */
static _Thread_local bool is_running_callback;

/* -- The lock ------------------------------------------------------------- */

static void lock(tow_locked_net_t *locked)
{
    if (pthread_mutex_trylock(&locked->lock) == 0) return;
    atomic_fetch_add(&locked->entering_count, 1);
    pthread_mutex_lock(&locked->lock);
    atomic_fetch_sub(&locked->entering_count, 1);
}

/* Called whenever the lock is released: O(1). */
static void check(const tow_locked_net_t *locked)
{
    TOW_ASSERT(!locked->is_woken || locked->is_asleep);
    TOW_ASSERT(!locked->is_driven || locked->waiter_count > 0);
    TOW_ASSERT(!locked->progress_thread_was_signalled ||
               locked->callback_is_requested);
    TOW_ASSERT(!locked->net->is_turning);
}

static void unlock(tow_locked_net_t *locked)
{
    check(locked);
    pthread_mutex_unlock(&locked->lock);
}

static void wake_sleeper(tow_locked_net_t *locked)
{
    if (!locked->is_asleep || locked->is_woken) return;
    locked->is_woken = true;
    const int failed = eventfd_write(locked->wake_fd, 1);
    TOW_ASSERT(failed == 0);
}

/* A turn while another thread sleeps. It may have consumed the event by which a
 * post meant to wake that thread, so the next post must wake it again. The
 * sleeper does the work that this turn leaves. */
static void turn_beside_sleeper(tow_locked_net_t *locked)
{
    tow_net_t *net = locked->net;
    tow_net_turn(net, 0);
    if (!locked->is_asleep) return;
    atomic_store(&net->is_sleeping, true);
    if (atomic_load(&net->posts) != NULL || tow_net_has_work(net))
        wake_sleeper(locked);
}

/* Callbacks that ran on this thread may have set the `done` of other
 * threads. */
static void wake_waiters(tow_locked_net_t *locked)
{
    if (!locked->notified) return;
    locked->notified = false;
    if (locked->waiter_count == 0) return;
    pthread_cond_broadcast(&locked->done_cond);
    wake_sleeper(locked);
}

static bool is_progress_thread(const tow_locked_net_t *locked)
{
    return locked->has_progress_thread &&
           pthread_equal(locked->progress_thread, pthread_self());
}

/* The caller does not run the requested callback, or not now. */
static void signal_progress_thread(tow_locked_net_t *locked)
{
    if (!locked->callback_is_requested || locked->progress_thread_was_signalled)
        return;
    if (is_progress_thread(locked)) return; /* It checks by itself. */
    locked->progress_thread_was_signalled = true;
    pthread_cond_signal(&locked->progress_cond);
    if (locked->progress_thread_drives) wake_sleeper(locked);
}

static void run_callback(tow_locked_net_t *locked)
{
    locked->callback_is_requested = false;
    locked->progress_thread_was_signalled = false;
    unlock(locked);
    locked->run_callback(locked->callback_context);
}

/* Not recursively: the progress thread serves requests made meanwhile. */
static void run_callback_on_leave(tow_locked_net_t *locked)
{
    is_running_callback = true;
    run_callback(locked);
    is_running_callback = false;
}

/* The sleeper would miss a timer that was armed meanwhile. */
static void shorten_sleep(tow_locked_net_t *locked)
{
    if (tow_net_next_deadline_ns(locked->net) < locked->asleep_until_ns)
        wake_sleeper(locked);
}

void tow_locked_net_enter(tow_locked_net_t *locked)
{
    lock(locked);
    tow_net_refresh_clock(locked->net);
}

void tow_locked_net_leave(tow_locked_net_t *locked, tow_leave_t how)
{
    if (how == TOW_LEAVE_FLUSH) turn_beside_sleeper(locked);
    wake_waiters(locked);
    shorten_sleep(locked);
    if (locked->callback_is_requested && how == TOW_LEAVE_FLUSH &&
        locked->leavers_run_callback &&
        !tow_locked_net_is_in_callback(locked)) {
        run_callback_on_leave(locked);
        return;
    }
    signal_progress_thread(locked);
    unlock(locked);
}

void tow_locked_net_notify(tow_locked_net_t *locked)
{
    locked->notified = true;
}

tow_env_t *tow_locked_net_env(tow_locked_net_t *locked)
{
    return tow_net_env(locked->net);
}

/* -- Driving the net ------------------------------------------------------ */

static void wait_readable(const tow_locked_net_t *locked, int64_t wait_ns)
{
    struct pollfd readable[] = {
        {.fd = locked->net->epoll_fd, .events = POLLIN},
        {.fd = locked->wake_fd, .events = POLLIN},
    };
    struct timespec timeout = {.tv_sec = wait_ns / TOW_NS_PER_S,
                               .tv_nsec = wait_ns % TOW_NS_PER_S};
    ppoll(readable, TOW_COUNT_OF(readable),
          wait_ns == TOW_TIME_NEVER ? NULL : &timeout, NULL);
}

static void end_sleep(tow_locked_net_t *locked)
{
    eventfd_t count;
    locked->is_asleep = false;
    if (locked->is_woken) (void)eventfd_read(locked->wake_fd, &count);
    locked->is_woken = false;
    /* Displaced: the thread that did it waits to sleep instead of us. */
    if (is_progress_thread(locked) && !locked->progress_thread_drives)
        pthread_cond_broadcast(&locked->done_cond);
}

/* Sleeps without the lock until the net has work, or another thread wakes
 * us. */
static void sleep_unlocked(tow_locked_net_t *locked, int64_t deadline_ns)
{
    int64_t wait_ns;
    TOW_ASSERT(!locked->is_asleep);
    if (!tow_net_sleep_begin(locked->net, deadline_ns, &wait_ns)) return;
    int64_t timer_ns = tow_net_next_deadline_ns(locked->net);
    locked->asleep_until_ns = timer_ns < deadline_ns ? timer_ns : deadline_ns;
    locked->is_asleep = true;
    unlock(locked);
    wait_readable(locked, wait_ns);
    lock(locked);
    end_sleep(locked);
    tow_net_sleep_end(locked->net);
    wake_waiters(locked);
}

/* If the driver is about to leave, it runs the callback itself. */
static void signal_progress_thread_unless(tow_locked_net_t *locked,
                                          bool is_done)
{
    if (!is_done || !locked->leavers_run_callback)
        signal_progress_thread(locked);
}

/* Lets waiting threads enter: with a mutex alone, the spinning thread would
 * take the lock again and again. */
static void let_others_in(tow_locked_net_t *locked)
{
    unlock(locked);
    while (atomic_load(&locked->entering_count) > 0)
        sched_yield();
    lock(locked);
}

static void wait_done(tow_locked_net_t *locked, int64_t deadline_ns)
{
    if (deadline_ns == TOW_TIME_NEVER) {
        pthread_cond_wait(&locked->done_cond, &locked->lock);
        return;
    }
    struct timespec until = {.tv_sec = deadline_ns / TOW_NS_PER_S,
                             .tv_nsec = deadline_ns % TOW_NS_PER_S};
    pthread_cond_timedwait(&locked->done_cond, &locked->lock, &until);
}

/* One round of the driver. */
static void drive_once(tow_locked_net_t *locked, const bool *done,
                       int64_t deadline_ns)
{
    bool any = tow_net_turn_awake(locked->net, deadline_ns);
    wake_waiters(locked);
    signal_progress_thread_unless(locked, *done);
    if (atomic_load(&locked->entering_count) > 0) {
        let_others_in(locked);
        return;
    }
    if (any || *done) return;
    if (locked->is_asleep) { /* The progress thread, which is about to wake. */
        wait_done(locked, deadline_ns);
        return;
    }
    sleep_unlocked(locked, deadline_ns);
    signal_progress_thread_unless(locked, *done);
}

static bool deadline_has_passed(int64_t deadline_ns)
{
    return deadline_ns != TOW_TIME_NEVER && tow_net_clock_ns() >= deadline_ns;
}

/* The progress thread drives only while no other thread does. */
static void displace_progress_thread(tow_locked_net_t *locked)
{
    locked->progress_thread_drives = false;
    wake_sleeper(locked);
}

static void drive_until(tow_locked_net_t *locked, const bool *done,
                        int64_t deadline_ns)
{
    locked->is_driven = true;
    while (!*done && !deadline_has_passed(deadline_ns))
        drive_once(locked, done, deadline_ns);
    locked->is_driven = false;
}

bool tow_locked_net_wait(tow_locked_net_t *locked, const bool *done,
                         int64_t deadline_ns)
{
    TOW_ASSERT(!tow_locked_net_is_in_callback(locked));
    locked->waiter_count++;
    while (!*done && !deadline_has_passed(deadline_ns)) {
        if (locked->progress_thread_drives) displace_progress_thread(locked);
        if (locked->is_driven)
            wait_done(locked, deadline_ns);
        else
            drive_until(locked, done, deadline_ns);
    }
    locked->waiter_count--;
    /* Another thread must drive for those that still wait. */
    if (locked->waiter_count > 0)
        pthread_cond_broadcast(&locked->done_cond);
    else if (locked->expected_count > 0)
        pthread_cond_signal(&locked->progress_cond);
    tow_net_refresh_clock(locked->net);
    return *done;
}

/* -- The progress thread -------------------------------------------------- */

void tow_locked_net_expect(tow_locked_net_t *locked, bool expected)
{
    TOW_ASSERT(expected || locked->expected_count > 0);
    locked->expected_count += expected ? 1 : -1;
    if (expected && locked->expected_count == 1)
        pthread_cond_signal(&locked->progress_cond);
}

bool tow_locked_net_is_in_callback(const tow_locked_net_t *locked)
{
    return is_running_callback || is_progress_thread(locked);
}

void tow_locked_net_set_unlocked_callback(tow_locked_net_t *locked,
                                          void (*run)(void *context),
                                          void *context)
{
    locked->run_callback = run;
    locked->callback_context = context;
}

void tow_locked_net_run_callback_on_leave(tow_locked_net_t *locked)
{
    locked->leavers_run_callback = true;
}

void tow_locked_net_request_callback(tow_locked_net_t *locked)
{
    locked->callback_is_requested = true;
}

static void run_callback_on_thread(tow_locked_net_t *locked)
{
    run_callback(locked);
    lock(locked);
}

/* Drives as a waiter does, until no callback is expected or a waiter takes
 * over. */
static void drive_while_expected(tow_locked_net_t *locked)
{
    const bool never = false;
    locked->progress_thread_drives = true;
    while (locked->progress_thread_drives && !locked->is_driven &&
           locked->expected_count > 0 && !locked->is_ending &&
           !locked->callback_is_requested)
        drive_once(locked, &never, TOW_TIME_NEVER);
    locked->progress_thread_drives = false;
}

static void wait_tick(tow_locked_net_t *locked)
{
    int64_t until_ns = tow_net_clock_ns() + TOW_LOCKED_NET_TICK_NS;
    struct timespec until = {.tv_sec = until_ns / TOW_NS_PER_S,
                             .tv_nsec = until_ns % TOW_NS_PER_S};
    pthread_cond_timedwait(&locked->progress_cond, &locked->lock, &until);
}

static void *progress_main(void *context)
{
    tow_locked_net_t *locked = context;
    pthread_mutex_lock(&locked->lock);
    while (!locked->is_ending) {
        if (locked->callback_is_requested)
            run_callback_on_thread(locked);
        else if (locked->is_driven || locked->expected_count == 0)
            wait_tick(locked);
        else
            drive_while_expected(locked);
        /* Or a thread left without flushing while the driver sleeps. */
        if (locked->is_driven &&
            !(locked->is_asleep && tow_net_has_work(locked->net)))
            continue;
        turn_beside_sleeper(locked);
        wake_waiters(locked);
    }
    /* Requests made before the end are served. */
    if (locked->callback_is_requested) run_callback_on_thread(locked);
    pthread_mutex_unlock(&locked->lock);
    return NULL;
}

/* -- Creating and freeing ------------------------------------------------- */

static tow_status_t init_locks(tow_locked_net_t *locked)
{
    pthread_condattr_t clock;
    if (pthread_condattr_init(&clock) != 0)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&locked->lock, NULL);
    int failed = pthread_cond_init(&locked->done_cond, &clock) |
                 pthread_cond_init(&locked->progress_cond, &clock);
    pthread_condattr_destroy(&clock);
    return failed == 0 ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t start_progress_thread(tow_locked_net_t *locked)
{
    /* Held until has_progress_thread is set: the new thread reads it in
     * callbacks. */
    pthread_mutex_lock(&locked->lock);
    int error =
        pthread_create(&locked->progress_thread, NULL, progress_main, locked);
    locked->has_progress_thread = error == 0;
    pthread_mutex_unlock(&locked->lock);
    return error == 0 ? TOW_OK : TOW_ERRNO(error, "starting a thread");
}

/* See TOW_LOCKED_NET_SPIN_CORES_MIN. */
static tow_status_t create_net(const tow_net_options_t *options,
                               tow_net_t **out_net)
{
    tow_net_options_t own = *options;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores < 2 ||
        (own.spin_ns == 0 && cores < TOW_LOCKED_NET_SPIN_CORES_MIN))
        own.spin_ns = -1;
    return tow_net_create(&own, out_net);
}

tow_status_t tow_locked_net_create(const tow_net_options_t *options,
                                   tow_locked_net_t **out_shared)
{
    *out_shared = NULL;
    tow_locked_net_t *locked = tow_calloc(1, sizeof(*locked));
    if (locked == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = init_locks(locked);
    locked->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (status == TOW_OK && locked->wake_fd < 0)
        status = TOW_ERRNO(errno, "eventfd");
    if (status == TOW_OK) status = create_net(options, &locked->net);
    if (status == TOW_OK) {
        locked->net->spin_breaker = &locked->entering_count;
        status = start_progress_thread(locked);
    }
    if (status != TOW_OK) {
        tow_locked_net_destroy(locked);
        return status;
    }
    *out_shared = locked;
    return TOW_OK;
}

static void end_progress_thread(tow_locked_net_t *locked)
{
    if (!locked->has_progress_thread) return;
    TOW_ASSERT(!is_progress_thread(locked));
    pthread_mutex_lock(&locked->lock);
    locked->is_ending = true;
    pthread_cond_signal(&locked->progress_cond);
    wake_sleeper(locked);
    pthread_mutex_unlock(&locked->lock);
    pthread_join(locked->progress_thread, NULL);
}

void tow_locked_net_destroy(tow_locked_net_t *locked)
{
    if (locked == NULL) return;
    end_progress_thread(locked);
    if (locked->net != NULL) tow_net_destroy(locked->net);
    if (locked->wake_fd >= 0) close(locked->wake_fd);
    pthread_cond_destroy(&locked->progress_cond);
    pthread_cond_destroy(&locked->done_cond);
    pthread_mutex_destroy(&locked->lock);
    tow_free(locked);
}
