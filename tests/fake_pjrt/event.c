#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_impl.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

struct fake_waiter {
    fake_waiter_t *next;
    PJRT_Event_OnReadyCallback callback;
    void *context;
};

PJRT_Error *fake_error(PJRT_Error_Code code, const char *format, ...)
{
    PJRT_Error *error = calloc(1, sizeof(*error));
    if (error == NULL) abort();
    error->code = code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    return error;
}

/* NULL for none. */
static PJRT_Error *copy_of(const PJRT_Error *error)
{
    if (error->code == PJRT_Error_Code_OK) return NULL;
    return fake_error(error->code, "%s", error->message);
}

PJRT_Event *fake_event_make(void)
{
    PJRT_Event *event = calloc(1, sizeof(*event));
    if (event == NULL) abort();
    event->reference_count = 1;
    return event;
}

PJRT_Event *fake_event_retain(PJRT_Event *event)
{
    pthread_mutex_lock(&fake_lock);
    event->reference_count++;
    pthread_mutex_unlock(&fake_lock);
    return event;
}

void fake_event_release(PJRT_Event *event)
{
    if (event == NULL) return;
    pthread_mutex_lock(&fake_lock);
    const bool is_last = --event->reference_count == 0;
    pthread_mutex_unlock(&fake_lock);
    if (is_last) free(event);
}

/* The caller holds a reference. Callbacks run without the lock. */
void fake_event_complete(PJRT_Event *event, const PJRT_Error *error)
{
    pthread_mutex_lock(&fake_lock);
    if (error != NULL) event->error = *error;
    event->is_ready = true;
    fake_waiter_t *waiter = event->waiters;
    event->waiters = NULL;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    while (waiter != NULL) {
        fake_waiter_t *next = waiter->next;
        waiter->callback(copy_of(&event->error), waiter->context);
        free(waiter);
        waiter = next;
    }
}

PJRT_Error fake_event_await(PJRT_Event *event)
{
    pthread_mutex_lock(&fake_lock);
    while (!event->is_ready)
        pthread_cond_wait(&fake_changed, &fake_lock);
    const PJRT_Error error = event->error;
    pthread_mutex_unlock(&fake_lock);
    return error;
}

PJRT_Error *fake_event_destroy(PJRT_Event_Destroy_Args *args)
{
    fake_event_release(args->event);
    return NULL;
}

PJRT_Error *fake_event_is_ready(PJRT_Event_IsReady_Args *args)
{
    pthread_mutex_lock(&fake_lock);
    args->is_ready = args->event->is_ready;
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

PJRT_Error *fake_event_on_ready(PJRT_Event_OnReady_Args *args)
{
    fake_waiter_t *waiter = malloc(sizeof(*waiter));
    if (waiter == NULL) abort();
    pthread_mutex_lock(&fake_lock);
    const bool is_ready = args->event->is_ready;
    if (!is_ready) {
        *waiter = (fake_waiter_t){.next = args->event->waiters,
                                  .callback = args->callback,
                                  .context = args->user_arg};
        args->event->waiters = waiter;
    }
    pthread_mutex_unlock(&fake_lock);
    if (!is_ready) return NULL;
    free(waiter);
    args->callback(copy_of(&args->event->error), args->user_arg);
    return NULL;
}
