/* Events: counted, and completed once.
 *
 * Waiters are pushed onto a stack that the completion takes whole, so waiting
 * and completing need no lock. The next thread that turns the net and leaves
 * completes the events of executions. A thread that asks for the event of a
 * buffer polls the net for a moment before it hands over to the progress
 * thread: the 128 runs of a chain wake no other thread. */
#include <semaphore.h> /* tow-allow: PJRT_Event_Await blocks its caller */

#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

struct waiter {
    waiter_t *next;
    PJRT_Event_OnReadyCallback call;
    void *context;
};

/* The stack of an event that has been completed. */
static waiter_t closed;

/* -- References ------------------------------------------------------------ */

PJRT_Event *tow_plugin_event_create(PJRT_Client *client)
{
    PJRT_Event *event = tow_calloc(1, sizeof(*event));
    if (event == NULL) return NULL;
    atomic_init(&event->reference_count, 1);
    event->client = client;
    return event;
}

PJRT_Event *tow_plugin_event_done(void)
{
    static PJRT_Event done = {.reference_count = 1, .waiters = &closed};
    tow_plugin_event_retain(&done); /* Its first reference is never released. */
    return &done;
}

void tow_plugin_event_retain(PJRT_Event *event)
{
    const unsigned before = atomic_fetch_add_explicit(&event->reference_count,
                                                      1, memory_order_relaxed);
    TOW_ASSERT(before > 0);
}

void tow_plugin_event_release(PJRT_Event *event)
{
    if (event == NULL) return;
    const unsigned before = atomic_fetch_sub(&event->reference_count, 1);
    TOW_ASSERT(before > 0);
    if (before > 1) return;
    TOW_ASSERT(!event->is_expected); /* Its completion would use it. */
    waiter_t *waiter = atomic_load(&event->waiters);
    while (waiter != NULL && waiter != &closed) { /* It was never completed. */
        waiter_t *next = waiter->next;
        tow_free(waiter);
        waiter = next;
    }
    tow_status_release(event->error);
    tow_free(event);
}

bool tow_plugin_event_is_ready(PJRT_Event *event)
{
    return atomic_load(&event->waiters) == &closed;
}

/* -- Completion ------------------------------------------------------------ */

static void call_waiters(PJRT_Event *event, waiter_t *waiter)
{
    while (waiter != NULL) {
        waiter_t *next = waiter->next;
        waiter->call(take_error(tow_status_retain(event->error)),
                     waiter->context);
        tow_free(waiter);
        waiter = next;
    }
}

/* In the order of arrival, not of the stack. */
static waiter_t *reversed(waiter_t *waiter)
{
    waiter_t *first = NULL;
    while (waiter != NULL) {
        waiter_t *next = waiter->next;
        waiter->next = first;
        first = waiter;
        waiter = next;
    }
    return first;
}

static void stop_expecting(PJRT_Event *event)
{
    TOW_ASSERT(event->client != NULL);
    client_enter(event->client);
    if (event->is_expected)
        tow_locked_net_expect(tow_client_locked_net(event->client->tow), false);
    event->is_expected = false;
    client_leave_lazily(event->client);
}

void tow_plugin_event_complete(PJRT_Event *take_event, tow_status_t take_status)
{
    PJRT_Event *event = take_event;
    if (TOW_UNLIKELY(take_status != TOW_OK) &&
        tow_status_code(take_status) == TOW_UNAVAILABLE)
        atomic_fetch_add(&tow_plugin_unavailable_count, 1);
    TOW_ASSERT(event->error == TOW_OK);
    event->error = take_status;
    waiter_t *waiters = atomic_exchange(&event->waiters, &closed);
    TOW_ASSERT(waiters != &closed);
    /* Set while locked before the callback was due, or never. */
    if (atomic_load(&event->is_awaited)) stop_expecting(event);
    call_waiters(event, reversed(waiters));
    tow_plugin_event_release(event);
}

static void call_complete(void *context, tow_status_t take_status)
{
    tow_plugin_event_complete(context, take_status);
}

tow_callback_t *tow_plugin_event_callback(PJRT_Event *event)
{
    TOW_ASSERT(event->callback.done == NULL); /* It completes once. */
    event->callback = (tow_callback_t){.done = call_complete,
                                       .context = event,
                                       .is_patient = true,
                                       .is_lent = true};
    tow_plugin_event_retain(event);
    return &event->callback;
}

void tow_plugin_event_follow(PJRT_Event *event, tow_array_t *array)
{
    tow_array_call_when_ready(array, tow_plugin_event_callback(event));
}

/* Polls the net until the event is about to be completed; not for long. */
static bool linger(PJRT_Event *event)
{
    PJRT_Client *client = event->client;
    tow_locked_net_t *shared = tow_client_locked_net(client->tow);
    if (tow_locked_net_is_in_callback(shared)) return false;
    if (client->poll_skip_count > 0) {
        client->poll_skip_count--;
        return false;
    }
    const int64_t until_ns =
        tow_env_now_ns(tow_locked_net_env(shared)) + TOW_PLUGIN_POLL_NS;
    if (tow_locked_net_wait(shared, &event->callback.is_due, until_ns))
        return true;
    client->poll_skip_count = TOW_PLUGIN_POLL_SKIP_COUNT;
    return false;
}

void tow_plugin_event_progress_locked(PJRT_Event *event, bool may_poll)
{
    if (event->callback.is_due || (may_poll && linger(event))) return;
    if (event->is_expected) return; /* Another thread did this meanwhile. */
    atomic_store(&event->is_awaited, true);
    event->is_expected = true;
    tow_locked_net_expect(tow_client_locked_net(event->client->tow), true);
}

void tow_plugin_event_progress(PJRT_Event *event)
{
    if (event->client == NULL || tow_plugin_event_is_ready(event) ||
        atomic_load(&event->is_awaited) || atomic_load(&tow_plugin_is_forked))
        return;
    client_enter(event->client);
    if (!event->is_expected) tow_plugin_event_progress_locked(event, true);
    client_leave(event->client);
}

/* -- Waiting ------------------------------------------------------------------- */

tow_status_t tow_plugin_event_call_when_ready(PJRT_Event *event,
                                              PJRT_Event_OnReadyCallback call,
                                              void *context)
{
    waiter_t *waiter = tow_malloc(sizeof(*waiter));
    if (waiter == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *waiter = (waiter_t){.call = call, .context = context};
    waiter_t *first = atomic_load(&event->waiters);
    do {
        if (first == &closed) {
            waiter->next = NULL;
            call_waiters(event, waiter);
            return TOW_OK;
        }
        waiter->next = first;
    } while (!atomic_compare_exchange_weak(&event->waiters, &first, waiter));
    return TOW_OK;
}

static void wake(PJRT_Error *error, void *context)
{
    tow_status_release((tow_status_t)error);
    sem_post(context);
}

static tow_status_t await(PJRT_Event *event)
{
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    if (event->client != NULL && tow_locked_net_is_in_callback(
                                     tow_client_locked_net(event->client->tow)))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "a callback must not wait for an event");
    sem_t awake;
    sem_init(&awake, 0, 0);
    tow_plugin_event_progress(event);
    tow_status_t status = tow_plugin_event_call_when_ready(event, wake, &awake);
    while (status == TOW_OK && sem_wait(&awake) != 0) { /* interrupted */
    }
    sem_destroy(&awake);
    return status != TOW_OK ? status : tow_status_retain(event->error);
}

/* -- Functions of the PJRT table ------------------------------------------- */

static PJRT_Error *event_destroy(PJRT_Event_Destroy_Args *args)
{
    tow_plugin_event_release(args->event);
    return NULL;
}

static PJRT_Error *event_is_ready(PJRT_Event_IsReady_Args *args)
{
    args->is_ready = tow_plugin_event_is_ready(args->event);
    return NULL;
}

static PJRT_Error *event_error(PJRT_Event_Error_Args *args)
{
    if (!tow_plugin_event_is_ready(args->event))
        return take_error(
            TOW_ERROR(TOW_FAILED_PRECONDITION, "the event is not ready"));
    return take_error(tow_status_retain(args->event->error));
}

static PJRT_Error *event_await(PJRT_Event_Await_Args *args)
{
    if (tow_plugin_event_is_ready(args->event))
        return take_error(tow_status_retain(args->event->error));
    return take_error(await(args->event));
}

static PJRT_Error *event_on_ready(PJRT_Event_OnReady_Args *args)
{
    return take_error(tow_plugin_event_call_when_ready(
        args->event, args->callback, args->user_arg));
}

static PJRT_Error *event_create(PJRT_Event_Create_Args *args)
{
    args->event = tow_plugin_event_create(NULL);
    return args->event != NULL
               ? NULL
               : take_error(tow_status_bare(TOW_RESOURCE_EXHAUSTED));
}

static PJRT_Error *event_set(PJRT_Event_Set_Args *args)
{
    if (tow_plugin_event_is_ready(args->event))
        return take_error(
            TOW_ERROR(TOW_FAILED_PRECONDITION, "the event has been set"));
    tow_status_t status = TOW_OK;
    if (args->error_code != PJRT_Error_Code_OK)
        status = TOW_ERROR((tow_code_t)args->error_code, "%.*s",
                           (int)args->error_message_size, args->error_message);
    tow_plugin_event_retain(args->event);
    tow_plugin_event_complete(args->event, status);
    return NULL;
}

void tow_plugin_fill_events(PJRT_Api *api)
{
    api->PJRT_Event_Destroy = event_destroy;
    api->PJRT_Event_IsReady = event_is_ready;
    api->PJRT_Event_Error = event_error;
    api->PJRT_Event_Await = event_await;
    api->PJRT_Event_OnReady = event_on_ready;
    api->PJRT_Event_Create = event_create;
    api->PJRT_Event_Set = event_set;
}
