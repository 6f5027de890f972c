/* JAX's callbacks: functions of the user that computations call.
 *
 * Python registers one entry point for all functions
 * (towpath_serve_callbacks); programs name functions by number, and
 * python/towpath/callbacks.py has the table. A call arrives while some thread
 * turns the client's machine, which must not wait for Python, so threads of
 * the plugin make the call. There are as many as concurrent calls, up to a
 * limit, because a function may itself run a program that calls another. */
#include "pjrt/plugin_impl.h"

#include <pthread.h>
#include <string.h>

#include "base/list.h"
#include "pjrt/tuning.h"

/* Returns 0, or a tow_code_t with a text in `error`. */
typedef int (*callback_function_t)(uint64_t function, int64_t device,
                                   const void *arguments, size_t size,
                                   void *results, size_t result_size,
                                   char *error, size_t error_capacity);

static _Atomic(callback_function_t) callback_function;

/* Counted: by the client and by each thread. */
struct callbacks {
    atomic_uint reference_count;
    pthread_mutex_t queue_mutex; /* of the fields below */
    pthread_cond_t has_come;
    tow_list_t requests; /* of tow_callback_call_t, owned */
    uint32_t thread_count, idle_count;
    bool is_closing;
    pthread_mutex_t life_mutex; /* never taken while locked */
    PJRT_Client *client;        /* borrowed; NULL: destroyed */
};

__attribute__((visibility("default"))) void towpath_serve_callbacks(
    callback_function_t function);
void towpath_serve_callbacks(callback_function_t function)
{
    atomic_store(&callback_function, function);
}

static void drop_request(tow_callback_call_t *request)
{
    tow_free(request->bytes);
    tow_free(request);
}

static void release(callbacks_t *callbacks)
{
    const unsigned before = atomic_fetch_sub(&callbacks->reference_count, 1);
    TOW_ASSERT(before > 0);
    if (before > 1) return;
    TOW_ASSERT(callbacks->is_closing && callbacks->client == NULL);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&callbacks->requests)) != NULL)
        drop_request(TOW_CONTAINER_OF(item, tow_callback_call_t, node));
    pthread_mutex_destroy(&callbacks->queue_mutex);
    pthread_mutex_destroy(&callbacks->life_mutex);
    pthread_cond_destroy(&callbacks->has_come);
    tow_free(callbacks);
}

/* -- Threads ---------------------------------------------------------------------- */

static tow_status_t call(const tow_callback_call_t *request, void *results)
{
    char error[TOW_PLUGIN_CALLBACK_ERROR_SIZE] = "";
    callback_function_t function = atomic_load(&callback_function);
    if (function == NULL)
        return TOW_ERROR(
            TOW_FAILED_PRECONDITION,
            "the program calls back, but this process has no callback "
            "server: import towpath's plugin as JAX does");
    int code = function(request->function, request->device, request->bytes,
                        request->size, results, request->result_size, error,
                        sizeof(error));
    if (code == 0) return TOW_OK;
    return TOW_ERROR((tow_code_t)code, "%s", error);
}

static void serve(callbacks_t *callbacks, tow_callback_call_t *request)
{
    void *results = tow_calloc(1, request->result_size + 1);
    tow_status_t status = results != NULL
                              ? call(request, results)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    pthread_mutex_lock(&callbacks->life_mutex);
    PJRT_Client *client = callbacks->client;
    if (client != NULL) {
        client_enter(client);
        tow_client_callback_reply(client->tow, request, results, status);
        client_leave(client);
    } else {
        tow_status_release(status);
        drop_request(request);
    }
    pthread_mutex_unlock(&callbacks->life_mutex);
    tow_free(results);
}

/* NULL: the client is closing, or the thread has been idle. */
static tow_callback_call_t *next(callbacks_t *callbacks)
{
    pthread_mutex_lock(&callbacks->queue_mutex);
    callbacks->idle_count++;
    while (tow_list_is_empty(&callbacks->requests) && !callbacks->is_closing)
        pthread_cond_wait(&callbacks->has_come, &callbacks->queue_mutex);
    TOW_ASSERT(callbacks->idle_count > 0);
    callbacks->idle_count--;
    tow_list_t *item =
        callbacks->is_closing ? NULL : tow_list_pop_front(&callbacks->requests);
    pthread_mutex_unlock(&callbacks->queue_mutex);
    return item != NULL ? TOW_CONTAINER_OF(item, tow_callback_call_t, node)
                        : NULL;
}

static void *serve_all(void *context)
{
    callbacks_t *callbacks = context;
    for (tow_callback_call_t *request; (request = next(callbacks)) != NULL;)
        serve(callbacks, request);
    release(callbacks);
    return NULL;
}

/* Holds the queue's mutex. */
static void add_thread(callbacks_t *callbacks)
{
    pthread_t thread;
    if (callbacks->thread_count >= TOW_PLUGIN_CALLBACK_THREADS_MAX) return;
    atomic_fetch_add(&callbacks->reference_count, 1);

    if (pthread_create(&thread, NULL, serve_all, callbacks) == 0) {
        pthread_detach(thread);
        callbacks->thread_count++;
    } else {
        atomic_fetch_sub(&callbacks->reference_count, 1);
    }
}

/* -- Calls from the client's machine --------------------------------------- */

static void called(void *context, tow_callback_call_t *take_request)
{
    callbacks_t *callbacks = context;
    pthread_mutex_lock(&callbacks->queue_mutex);
    tow_list_append(&callbacks->requests, &take_request->node);
    if (callbacks->idle_count == 0) add_thread(callbacks);
    pthread_cond_signal(&callbacks->has_come);
    pthread_mutex_unlock(&callbacks->queue_mutex);
}

static callbacks_t *create(PJRT_Client *client)
{
    callbacks_t *callbacks = tow_calloc(1, sizeof(*callbacks));
    if (callbacks == NULL) return NULL;
    atomic_init(&callbacks->reference_count, 1);
    tow_list_init(&callbacks->requests);
    pthread_mutex_init(&callbacks->queue_mutex, NULL);
    pthread_mutex_init(&callbacks->life_mutex, NULL);
    pthread_cond_init(&callbacks->has_come, NULL);
    callbacks->client = client;
    return callbacks;
}

/* Calls arrive at any time, also while no thread of the user is in the
 * library: from the first such program on the progress thread polls for them.
 */
tow_status_t tow_plugin_enable_callbacks(PJRT_Client *client,
                                         const char *program, size_t size)
{
    static const char target[] = TOW_PLUGIN_CALLBACK_TARGET;
    if (memmem(program, size, target, sizeof(target) - 1) == NULL)
        return TOW_OK;
    client_enter(client);
    if (client->callbacks == NULL) {
        client->callbacks = create(client);
        if (client->callbacks != NULL) {
            tow_client_set_callback_server(
                client->tow,
                &(tow_callback_server_t){called, client->callbacks});
            tow_locked_net_expect(tow_client_locked_net(client->tow), true);
        }
    }
    bool is_there = client->callbacks != NULL;
    client_leave_lazily(client);
    return is_there ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* A thread that is in a function of the user continues; its answer is
 * discarded. */
void tow_plugin_callbacks_close(PJRT_Client *client)
{
    callbacks_t *callbacks = client->callbacks;
    if (callbacks == NULL) return;
    pthread_mutex_lock(&callbacks->life_mutex);
    callbacks->client = NULL;
    pthread_mutex_unlock(&callbacks->life_mutex);
    client_enter(client);
    tow_client_set_callback_server(client->tow, &(tow_callback_server_t){0});
    tow_locked_net_expect(tow_client_locked_net(client->tow), false);
    client_leave_lazily(client);
    pthread_mutex_lock(&callbacks->queue_mutex);
    callbacks->is_closing = true;
    pthread_cond_broadcast(&callbacks->has_come);
    pthread_mutex_unlock(&callbacks->queue_mutex);
    release(callbacks);
}
