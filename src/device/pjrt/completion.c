/* From the plugin's threads to the owner's loop.
 *
 * A callback pushes its completion onto the driver's stack, and posts only if
 * the stack was empty: completions that come close together cost one post, and
 * the post wakes nobody while the loop still spins. The loop takes the stack
 * whole and turns it round. */
#include "device/pjrt/pjrt_impl.h"

#include <sched.h>

static void push(pjrt_completion_t *completion)
{
    pjrt_driver_t *driver = completion->driver;
    pjrt_completion_t *head =
        atomic_load_explicit(&driver->completed, memory_order_relaxed);
    do {
        completion->next = head;
    } while (!atomic_compare_exchange_weak_explicit(
        &driver->completed, &head, completion, memory_order_acq_rel,
        memory_order_relaxed));
    /* After the push the loop may have finished and freed all of it, the driver
     * too, unless the push was onto the empty stack: then its post is yet to
     * come, and the loop cannot have looked. */
    if (head != NULL) return;
    tow_env_post(driver->driver.env, &driver->drain);
    /* Only now may the driver go, and its env: see tow_pjrt_await_posters. */
    atomic_fetch_add_explicit(&driver->returned_count, 1, memory_order_release);
}

void tow_pjrt_await_posters(pjrt_driver_t *driver)
{
    while (atomic_load_explicit(&driver->returned_count,
                                memory_order_acquire) != driver->drain_count)
        sched_yield();
}

/* Any thread of the plugin, or ours inside OnReady. */
static void on_ready(PJRT_Error *take_error, void *context)
{
    pjrt_completion_t *completion = context;
    completion->error = take_error;
    push(completion);
}

void tow_pjrt_watch(pjrt_completion_t *completion, PJRT_Event *take_event)
{
    const PJRT_Api *api = &completion->driver->plugin.api;
    completion->event = take_event;
    completion->error = NULL;
    if (take_event == NULL) {
        push(completion);
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
    tow_pjrt_error_drop(plugin, plugin->api.PJRT_Event_Destroy(&args));
    completion->event = NULL;
}

/* The oldest is at the bottom of the stack. */
static void take_completed(pjrt_driver_t *driver)
{
    /* Releases, too: from here on others may post `drain` again. */
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

static void drain(tow_post_t *post)
{
    pjrt_driver_t *driver = TOW_CONTAINER_OF(post, pjrt_driver_t, drain);
    driver->drain_count++;
    take_completed(driver);
    /* A `finish` may release the last thing that a closing driver waits for; the
     * driver itself goes only in a later turn. */
    while (driver->ready_first != NULL) {
        pjrt_completion_t *completion = driver->ready_first;
        driver->ready_first = completion->next;
        destroy_event(completion);
        completion->finish(completion);
    }
}

void tow_pjrt_completions_init(pjrt_driver_t *driver)
{
    atomic_init(&driver->completed, NULL);
    atomic_init(&driver->returned_count, 0);
    driver->drain = (tow_post_t){.run = drain};
}
