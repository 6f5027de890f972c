/* Completions, from the plugin's threads to the owner's loop.
 *
 * A callback pushes its completion onto the driver's stack; the loop takes the
 * whole stack and reverses it. Waking the loop for each would cost more than a
 * small run: on a host with more devices than cores it takes the core from the
 * next run. So completions of shards with may_coalesce that end while others
 * run are coalesced, TOW_PJRT_COALESCE_NS after the last drain at the earliest;
 * the last one of all, and errors, wake the loop at once, and a timer of the
 * loop drains the rest when a long run follows short ones. */
#include "device/pjrt/pjrt_impl.h"

#include <sched.h>
#include <time.h>

#include "env/tuning.h"

int64_t tow_pjrt_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * TOW_NS_PER_S + now.tv_nsec;
}

static void push(pjrt_driver_t *driver, pjrt_completion_t *completion)
{
    pjrt_completion_t *head =
        atomic_load_explicit(&driver->completed, memory_order_relaxed);
    do {
        completion->next = head;
    } while (!atomic_compare_exchange_weak_explicit(
        &driver->completed, &head, completion, memory_order_acq_rel,
        memory_order_relaxed));
}

/* After a push the loop may finish and free everything, the driver included,
 * unless it knows that this thread is about to post: it waits until
 * returned_count equals started_count. */
static void push_and_post(pjrt_driver_t *driver, pjrt_completion_t *completion)
{
    atomic_fetch_add(&driver->started_count, 1);
    push(driver, completion);
    if (!atomic_exchange(&driver->is_posted, true))
        tow_env_post(driver->driver.env, &driver->drain);
    atomic_fetch_add_explicit(&driver->returned_count, 1, memory_order_release);
}

void tow_pjrt_await_posters(pjrt_driver_t *driver)
{
    while (
        atomic_load_explicit(&driver->returned_count, memory_order_acquire) !=
        atomic_load(&driver->started_count))
        sched_yield();
}

/* Called before the push: afterwards the completion is the loop's. */
static bool may_coalesce(pjrt_driver_t *driver,
                         const pjrt_completion_t *completion)
{
    if (!completion->is_shard) return false;
    const bool others_follow = atomic_fetch_sub(&driver->shard_count, 1) > 1;
    return others_follow && completion->may_coalesce &&
           completion->error == NULL &&
           tow_pjrt_clock_ns() - atomic_load_explicit(&driver->drained_ns,
                                                      memory_order_relaxed) <
               TOW_PJRT_COALESCE_NS;
}

/* Any thread of the plugin, or ours inside OnReady. */
static void on_ready(PJRT_Error *take_error, void *context)
{
    pjrt_completion_t *completion = context;
    pjrt_driver_t *driver = completion->driver;
    completion->error = take_error;
    if (completion->is_of_run && !driver->has_device_times)
        TOW_CONTAINER_OF(completion, pjrt_shard_t, completion)->ready_ns =
            tow_pjrt_clock_ns();
    if (may_coalesce(driver, completion))
        push(driver, completion);
    else
        push_and_post(driver, completion);
}

void tow_pjrt_watch(pjrt_completion_t *completion, PJRT_Event *take_event)
{
    const PJRT_Api *api = &completion->driver->plugin.api;
    completion->event = take_event;
    completion->error = NULL;
    if (take_event == NULL) {
        on_ready(NULL, completion);
        return;
    }
    PJRT_Event_OnReady_Args args =
        PJRT_ARGS(PJRT_Event_OnReady, .event = take_event, .callback = on_ready,
                  .user_arg = completion);
    PJRT_Error *error = api->PJRT_Event_OnReady(&args);
    if (TOW_UNLIKELY(error != NULL)) on_ready(error, completion);
}

void tow_pjrt_complete_soon(pjrt_completion_t *completion,
                            PJRT_Error *take_error)
{
    completion->event = NULL;
    on_ready(take_error, completion);
}

/* -- On the loop ------------------------------------------------------------ */

static void append_ready(pjrt_driver_t *driver, pjrt_completion_t *completion)
{
    completion->next = NULL;
    if (driver->ready_first == NULL)
        driver->ready_first = completion;
    else
        driver->ready_last->next = completion;
    driver->ready_last = completion;
}

void tow_pjrt_resume(pjrt_driver_t *driver, pjrt_completion_t *first)
{
    while (first != NULL) {
        pjrt_completion_t *next = first->next;
        append_ready(driver, first);
        first = next;
    }
}

static void destroy_event(pjrt_completion_t *completion)
{
    const pjrt_plugin_t *plugin = &completion->driver->plugin;
    if (completion->event == NULL) return;
    PJRT_Event_Destroy_Args args =
        PJRT_ARGS(PJRT_Event_Destroy, .event = completion->event);
    tow_pjrt_error_discard(plugin, plugin->api.PJRT_Event_Destroy(&args));
    completion->event = NULL;
}

/* The oldest is at the bottom of the stack. */
static void take_completed(pjrt_driver_t *driver)
{
    /* Releases, too: from here on threads may post `drain` again. */
    pjrt_completion_t *newest = atomic_exchange_explicit(
        &driver->completed, NULL, memory_order_acq_rel);
    pjrt_completion_t *oldest = NULL;
    while (newest != NULL) {
        pjrt_completion_t *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    tow_pjrt_resume(driver, oldest);
}

/* A `finish` may release the last object that a closing driver waits for; the
 * driver itself is freed in a later turn. */
static void finish_all(pjrt_driver_t *driver)
{
    atomic_store_explicit(&driver->drained_ns,
                          tow_env_now_ns(driver->driver.env),
                          memory_order_relaxed);
    take_completed(driver);
    while (driver->ready_first != NULL) {
        pjrt_completion_t *completion = driver->ready_first;
        driver->ready_first = completion->next;
        if (completion->is_of_run)
            tow_pjrt_time_read(
                TOW_CONTAINER_OF(completion, pjrt_shard_t, completion));
        destroy_event(completion);
        completion->finish(completion);
    }
}

static void drain(tow_post_t *post)
{
    pjrt_driver_t *driver = TOW_CONTAINER_OF(post, pjrt_driver_t, drain);
    /* Before the stack is taken: a later push posts again. */
    atomic_exchange(&driver->is_posted, false);
    finish_all(driver);
    if (TOW_UNLIKELY(driver->is_closing)) tow_pjrt_check_closed(driver);
}

static void flush_coalesced(tow_timer_t *timer)
{
    pjrt_driver_t *driver =
        TOW_CONTAINER_OF(timer, pjrt_driver_t, coalesce_timer);
    tow_env_t *env = driver->driver.env;
    if (atomic_load(&driver->shard_count) > 0)
        tow_env_timer_start(env, timer,
                            tow_env_now_ns(env) + TOW_PJRT_COALESCE_FLUSH_NS);
    finish_all(driver);
}

void tow_pjrt_expect_shards(pjrt_driver_t *driver, size_t count)
{
    tow_env_t *env = driver->driver.env;
    atomic_fetch_add(&driver->shard_count, count);
    if (!tow_timer_is_armed(&driver->coalesce_timer))
        tow_env_timer_start(env, &driver->coalesce_timer,
                            tow_env_now_ns(env) + TOW_PJRT_COALESCE_FLUSH_NS);
}

/* -- Executions on the loop's thread ---------------------------------------- */

void tow_pjrt_continue_inline(pjrt_driver_t *driver)
{
    tow_env_t *env = driver->driver.env;
    const tow_xla_extension_t *xla = driver->plugin.xla;
    if (xla == NULL) return;
    if (xla->progress() != 0 && !tow_timer_is_armed(&driver->inline_timer))
        tow_env_timer_start(env, &driver->inline_timer,
                            tow_env_now_ns(env) + TOW_PJRT_CONTINUE_INLINE_NS);
}

static void continue_inline(tow_timer_t *timer)
{
    tow_pjrt_continue_inline(
        TOW_CONTAINER_OF(timer, pjrt_driver_t, inline_timer));
}

void tow_pjrt_completions_init(pjrt_driver_t *driver)
{
    driver->inline_timer = (tow_timer_t){.fire = continue_inline};
    driver->drain = (tow_post_t){.run = drain};
    driver->coalesce_timer = (tow_timer_t){.fire = flush_coalesced};
}
