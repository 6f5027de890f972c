/* One lock, one thread at a time that turns the net (the turner), and a keeper.
 *
 * The lock is held whenever the net is touched, callbacks included, and given up
 * while the turner sleeps: it then waits for epoll's own descriptor to become
 * readable, so that other threads can enter, send and leave. They wake the
 * sleeper only if they changed what it waits for: a timer that is sooner, or a
 * `done` that their own turn has set. For that it has a descriptor of its own:
 * events of epoll are gone when another thread's turn has taken them.
 *
 * One thread sleeps at a time. A turner that follows a keeper which is not awake
 * yet waits for it. */
#include "env/net/shared.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/net_impl.h"

struct tow_shared_net {
    tow_net_t *net;             /* owned */
    pthread_mutex_t lock;       /* guards all that is not atomic */
    pthread_cond_t told;        /* a done was set, or nobody turns any more */
    pthread_cond_t keeper_told; /* for the keeper alone */
    pthread_t keeper;
    bool has_keeper;
    atomic_int
        entering_count; /* threads that want the lock; the spinner looks */
    bool is_turned;     /* a thread is in wait_turning, maybe asleep */
    bool keeper_turns;  /* and it is the keeper */
    /* The turner, or a keeper that was sent off and is not awake yet, has given up
     * the lock to sleep. */
    bool is_asleep;
    bool is_woken; /* ... and wake_fd was written */
    int64_t asleep_until_ns;
    int wake_fd;           /* owned; of the sleeper alone */
    uint32_t waiter_count; /* threads in tow_shared_net_wait */
    uint32_t expected_count;
    bool notified; /* since the lock was taken */
    bool outside_is_wanted;
    bool keeper_was_told_outside;
    bool leavers_run_outside;
    void (*run_outside)(void *context);
    void *outside_context; /* lent */
    bool is_ending;
};

/* This thread leaves, and runs what is to run outside. */
static _Thread_local bool is_running_outside;

/* -- The lock --------------------------------------------------------------- */

static void lock(tow_shared_net_t *shared)
{
    if (pthread_mutex_trylock(&shared->lock) == 0) return;
    atomic_fetch_add(&shared->entering_count, 1);
    pthread_mutex_lock(&shared->lock);
    atomic_fetch_sub(&shared->entering_count, 1);
}

static void unlock(tow_shared_net_t *shared)
{
    pthread_mutex_unlock(&shared->lock);
}

static void wake_sleeper(tow_shared_net_t *shared)
{
    if (!shared->is_asleep || shared->is_woken) return;
    shared->is_woken = true;
    const int failed = eventfd_write(shared->wake_fd, 1);
    TOW_ASSERT(failed == 0);
}

/* A turn beside the sleeper. It may have taken the event by which a post wanted to
 * wake: the next post must do so again. What it left is the sleeper's. */
static void turn_beside(tow_shared_net_t *shared)
{
    tow_net_t *net = shared->net;
    tow_net_turn(net, 0);
    if (!shared->is_asleep) return;
    atomic_store(&net->is_sleeping, true);
    if (atomic_load(&net->posts) != NULL || tow_net_has_work(net))
        wake_sleeper(shared);
}

/* Callbacks that ran on this thread may have set what others wait for. */
static void tell_waiters(tow_shared_net_t *shared)
{
    if (!shared->notified) return;
    shared->notified = false;
    if (shared->waiter_count == 0) return;
    pthread_cond_broadcast(&shared->told);
    wake_sleeper(shared);
}

static bool is_keeper(const tow_shared_net_t *shared)
{
    return shared->has_keeper && pthread_equal(shared->keeper, pthread_self());
}

/* What is to run outside is not for the caller, or not now. */
static void tell_keeper(tow_shared_net_t *shared)
{
    if (!shared->outside_is_wanted || shared->keeper_was_told_outside) return;
    if (is_keeper(shared)) return; /* It looks by itself. */
    shared->keeper_was_told_outside = true;
    pthread_cond_signal(&shared->keeper_told);
    if (shared->keeper_turns) wake_sleeper(shared);
}

static void run_outside(tow_shared_net_t *shared)
{
    shared->outside_is_wanted = false;
    shared->keeper_was_told_outside = false;
    unlock(shared);
    shared->run_outside(shared->outside_context);
}

/* Not within itself: what comes meanwhile is for the keeper. */
static void run_outside_leaving(tow_shared_net_t *shared)
{
    is_running_outside = true;
    run_outside(shared);
    is_running_outside = false;
}

/* The sleeper would sleep past a timer that was armed meanwhile. */
static void mend_sleep(tow_shared_net_t *shared)
{
    if (tow_net_next_deadline_ns(shared->net) < shared->asleep_until_ns)
        wake_sleeper(shared);
}

void tow_shared_net_enter(tow_shared_net_t *shared)
{
    lock(shared);
    tow_net_refresh_clock(shared->net);
}

void tow_shared_net_leave(tow_shared_net_t *shared, tow_leave_t how)
{
    if (how == TOW_LEAVE_FLUSH) turn_beside(shared);
    tell_waiters(shared);
    mend_sleep(shared);
    if (shared->outside_is_wanted && how == TOW_LEAVE_FLUSH &&
        shared->leavers_run_outside && !tow_shared_net_is_calling(shared)) {
        run_outside_leaving(shared);
        return;
    }
    tell_keeper(shared);
    unlock(shared);
}

void tow_shared_net_notify(tow_shared_net_t *shared)
{
    shared->notified = true;
}

tow_env_t *tow_shared_net_env(tow_shared_net_t *shared)
{
    return tow_net_env(shared->net);
}

/* -- Turning ---------------------------------------------------------------- */

static void wait_readable(const tow_shared_net_t *shared, int64_t wait_ns)
{
    struct pollfd readable[] = {
        {.fd = shared->net->epoll_fd, .events = POLLIN},
        {.fd = shared->wake_fd, .events = POLLIN},
    };
    struct timespec timeout = {.tv_sec = wait_ns / TOW_NS_PER_S,
                               .tv_nsec = wait_ns % TOW_NS_PER_S};
    ppoll(readable, TOW_COUNT_OF(readable),
          wait_ns == TOW_TIME_NEVER ? NULL : &timeout, NULL);
}

static void end_sleep(tow_shared_net_t *shared)
{
    eventfd_t count;
    shared->is_asleep = false;
    if (shared->is_woken) (void)eventfd_read(shared->wake_fd, &count);
    shared->is_woken = false;
    /* Sent off: who did it waits to sleep in our place. */
    if (is_keeper(shared) && !shared->keeper_turns)
        pthread_cond_broadcast(&shared->told);
}

/* Sleeps without the lock until the net has something, or somebody wakes us. */
static void sleep_unlocked(tow_shared_net_t *shared, int64_t deadline_ns)
{
    int64_t wait_ns;
    TOW_ASSERT(!shared->is_asleep);
    if (!tow_net_sleep_begin(shared->net, deadline_ns, &wait_ns)) return;
    int64_t timer_ns = tow_net_next_deadline_ns(shared->net);
    shared->asleep_until_ns = timer_ns < deadline_ns ? timer_ns : deadline_ns;
    shared->is_asleep = true;
    unlock(shared);
    wait_readable(shared, wait_ns);
    lock(shared);
    end_sleep(shared);
    tow_net_sleep_end(shared->net);
    tell_waiters(shared);
}

/* What the turner runs outside when it leaves it will, if that is now. */
static void tell_keeper_unless(tow_shared_net_t *shared, bool is_done)
{
    if (!is_done || !shared->leavers_run_outside) tell_keeper(shared);
}

/* Gives way to threads that want in: a mutex alone would let the spinner have
 * it again and again. */
static void let_others_in(tow_shared_net_t *shared)
{
    unlock(shared);
    while (atomic_load(&shared->entering_count) > 0)
        sched_yield();
    lock(shared);
}

static void wait_told(tow_shared_net_t *shared, int64_t deadline_ns)
{
    if (deadline_ns == TOW_TIME_NEVER) {
        pthread_cond_wait(&shared->told, &shared->lock);
        return;
    }
    struct timespec until = {.tv_sec = deadline_ns / TOW_NS_PER_S,
                             .tv_nsec = deadline_ns % TOW_NS_PER_S};
    pthread_cond_timedwait(&shared->told, &shared->lock, &until);
}

/* One round of the turner. */
static void turn_once(tow_shared_net_t *shared, const bool *done,
                      int64_t deadline_ns)
{
    bool any = tow_net_turn_awake(shared->net, deadline_ns);
    tell_waiters(shared);
    tell_keeper_unless(shared, *done);
    if (atomic_load(&shared->entering_count) > 0) {
        let_others_in(shared);
        return;
    }
    if (any || *done) return;
    if (shared->is_asleep) { /* The keeper, for a moment still. */
        wait_told(shared, deadline_ns);
        return;
    }
    sleep_unlocked(shared, deadline_ns);
    tell_keeper_unless(shared, *done);
}

static bool deadline_has_passed(int64_t deadline_ns)
{
    return deadline_ns != TOW_TIME_NEVER && tow_net_clock_ns() >= deadline_ns;
}

/* The keeper turns only for want of a better one. */
static void send_keeper_off(tow_shared_net_t *shared)
{
    shared->keeper_turns = false;
    wake_sleeper(shared);
}

static void turn_until(tow_shared_net_t *shared, const bool *done,
                       int64_t deadline_ns)
{
    shared->is_turned = true;
    while (!*done && !deadline_has_passed(deadline_ns))
        turn_once(shared, done, deadline_ns);
    shared->is_turned = false;
}

bool tow_shared_net_wait(tow_shared_net_t *shared, const bool *done,
                         int64_t deadline_ns)
{
    TOW_ASSERT(!tow_shared_net_is_calling(shared));
    shared->waiter_count++;
    while (!*done && !deadline_has_passed(deadline_ns)) {
        if (shared->keeper_turns) send_keeper_off(shared);
        if (shared->is_turned)
            wait_told(shared, deadline_ns);
        else
            turn_until(shared, done, deadline_ns);
    }
    shared->waiter_count--;
    /* Somebody else must turn for those who still wait. */
    if (shared->waiter_count > 0)
        pthread_cond_broadcast(&shared->told);
    else if (shared->expected_count > 0)
        pthread_cond_signal(&shared->keeper_told);
    tow_net_refresh_clock(shared->net);
    return *done;
}

/* -- The keeper ------------------------------------------------------------- */

void tow_shared_net_expect(tow_shared_net_t *shared, bool expected)
{
    TOW_ASSERT(expected || shared->expected_count > 0);
    shared->expected_count += expected ? 1 : -1;
    if (expected && shared->expected_count == 1)
        pthread_cond_signal(&shared->keeper_told);
}

bool tow_shared_net_is_calling(const tow_shared_net_t *shared)
{
    return is_running_outside || is_keeper(shared);
}

void tow_shared_net_set_outside(tow_shared_net_t *shared,
                                void (*run)(void *context), void *context)
{
    shared->run_outside = run;
    shared->outside_context = context;
}

void tow_shared_net_call_on_leaving(tow_shared_net_t *shared)
{
    shared->leavers_run_outside = true;
}

void tow_shared_net_call(tow_shared_net_t *shared)
{
    shared->outside_is_wanted = true;
}

static void run_outside_keeping(tow_shared_net_t *shared)
{
    run_outside(shared);
    lock(shared);
}

/* Turns as a waiter does, until there is nothing to expect, or a waiter wants
 * to do it. */
static void keep_turning(tow_shared_net_t *shared)
{
    const bool never = false;
    shared->keeper_turns = true;
    while (shared->keeper_turns && !shared->is_turned &&
           shared->expected_count > 0 && !shared->is_ending &&
           !shared->outside_is_wanted)
        turn_once(shared, &never, TOW_TIME_NEVER);
    shared->keeper_turns = false;
}

static void wait_tick(tow_shared_net_t *shared)
{
    int64_t until_ns = tow_net_clock_ns() + TOW_SHARED_TICK_NS;
    struct timespec until = {.tv_sec = until_ns / TOW_NS_PER_S,
                             .tv_nsec = until_ns % TOW_NS_PER_S};
    pthread_cond_timedwait(&shared->keeper_told, &shared->lock, &until);
}

static void *keep(void *context)
{
    tow_shared_net_t *shared = context;
    pthread_mutex_lock(&shared->lock);
    while (!shared->is_ending) {
        if (shared->outside_is_wanted)
            run_outside_keeping(shared);
        else if (shared->is_turned || shared->expected_count == 0)
            wait_tick(shared);
        else
            keep_turning(shared);
        /* Or a lazy leaver left something, and the turner sleeps. */
        if (shared->is_turned &&
            !(shared->is_asleep && tow_net_has_work(shared->net)))
            continue;
        turn_beside(shared);
        tell_waiters(shared);
    }
    /* Whoever ends it has told all that was to tell. */
    if (shared->outside_is_wanted) run_outside_keeping(shared);
    pthread_mutex_unlock(&shared->lock);
    return NULL;
}

/* -- Life ------------------------------------------------------------------- */

static tow_status_t init_locks(tow_shared_net_t *shared)
{
    pthread_condattr_t clock;
    if (pthread_condattr_init(&clock) != 0)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&shared->lock, NULL);
    int failed = pthread_cond_init(&shared->told, &clock) |
                 pthread_cond_init(&shared->keeper_told, &clock);
    pthread_condattr_destroy(&clock);
    return failed == 0 ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t start_keeper(tow_shared_net_t *shared)
{
    /* Held until has_keeper is set: the keeper looks at it in callbacks. */
    pthread_mutex_lock(&shared->lock);
    int error = pthread_create(&shared->keeper, NULL, keep, shared);
    shared->has_keeper = error == 0;
    pthread_mutex_unlock(&shared->lock);
    return error == 0 ? TOW_OK : TOW_ERRNO(error, "starting a thread");
}

/* See TOW_SHARED_SPIN_CORES_MIN. */
static tow_status_t create_net(const tow_net_options_t *options,
                               tow_net_t **out_net)
{
    tow_net_options_t own = *options;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores < 2 || (own.spin_ns == 0 && cores < TOW_SHARED_SPIN_CORES_MIN))
        own.spin_ns = -1;
    return tow_net_create(&own, out_net);
}

tow_status_t tow_shared_net_create(const tow_net_options_t *options,
                                   tow_shared_net_t **out_shared)
{
    *out_shared = NULL;
    tow_shared_net_t *shared = tow_calloc(1, sizeof(*shared));
    if (shared == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = init_locks(shared);
    shared->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (status == TOW_OK && shared->wake_fd < 0)
        status = TOW_ERRNO(errno, "eventfd");
    if (status == TOW_OK) status = create_net(options, &shared->net);
    if (status == TOW_OK) {
        shared->net->spin_breaker = &shared->entering_count;
        status = start_keeper(shared);
    }
    if (status != TOW_OK) {
        tow_shared_net_destroy(shared);
        return status;
    }
    *out_shared = shared;
    return TOW_OK;
}

static void end_keeper(tow_shared_net_t *shared)
{
    if (!shared->has_keeper) return;
    TOW_ASSERT(!is_keeper(shared));
    pthread_mutex_lock(&shared->lock);
    shared->is_ending = true;
    pthread_cond_signal(&shared->keeper_told);
    wake_sleeper(shared);
    pthread_mutex_unlock(&shared->lock);
    pthread_join(shared->keeper, NULL);
}

void tow_shared_net_destroy(tow_shared_net_t *shared)
{
    if (shared == NULL) return;
    end_keeper(shared);
    if (shared->net != NULL) tow_net_destroy(shared->net);
    if (shared->wake_fd >= 0) close(shared->wake_fd);
    pthread_cond_destroy(&shared->keeper_told);
    pthread_cond_destroy(&shared->told);
    pthread_mutex_destroy(&shared->lock);
    tow_free(shared);
}
