/* Callbacks: functions of clients. A computation on a worker calls one and
 * waits until the client of the run has answered; the controller only
 * forwards. The bytes go through the controller, in messages or blobs: the two
 * ends share no lane, and these calls carry little (a line to print, a loss to
 * log). */
#include "controller/controller_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/blob_impl.h"
#include "env/tuning.h"

/* A call that its client has not answered. */
typedef struct callback {
    uint64_t number; /* ours, to the client */
    tow_ctl_client_t *client;
    tow_ctl_worker_t *worker; /* counted */
    uint64_t call;            /* the worker's number of it */
    uint64_t run;             /* its key */
    int64_t device;
    int64_t since_ns;
} callback_t;

static void free_callback(tow_controller_t *controller, callback_t *callback)
{
    tow_map_remove(&controller->callbacks.by_number, callback->number);
    TOW_ASSERT(callback->client != NULL &&
               callback->client->callback_count > 0);
    callback->client->callback_count--;
    tow_ctl_worker_release(callback->worker);
    tow_free(callback);
}

static void refuse(tow_ctl_worker_t *worker, uint64_t call,
                   tow_status_t take_cause)
{
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_cause);
    done.call = call;
    done.failure = &failure;
    tow_ctl_worker_send(worker, TOW_MESSAGE_CALLBACK_DONE, &done.base);
    tow_status_release(take_cause);
}

static tow_status_t note(tow_ctl_worker_t *worker, tow_ctl_client_t *client,
                         const tow_msg_callback_t *message,
                         uint64_t *out_number)
{
    tow_controller_t *controller = worker->controller;
    if (client->callback_count >= TOW_CLIENT_CALLBACKS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "client %s has %u unanswered callbacks, the limit",
                         client->name, TOW_CLIENT_CALLBACKS_MAX);
    callback_t *callback = tow_calloc(1, sizeof(*callback));
    if (callback == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *callback = (callback_t){.number = controller->callbacks.number + 1,
                             .client = client,
                             .worker = worker,
                             .call = message->call,
                             .run = message->run,
                             .device = message->device,
                             .since_ns = tow_env_now_ns(controller->env)};
    if (!tow_map_put(&controller->callbacks.by_number, callback->number,
                     callback)) {
        tow_free(callback);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_ctl_worker_retain(worker);
    client->callback_count++;
    *out_number = ++controller->callbacks.number;
    return TOW_OK;
}

void tow_ctl_callback_begin(tow_ctl_worker_t *worker,
                            const tow_msg_callback_t *message)
{
    tow_controller_t *controller = worker->controller;
    tow_ctl_blob_t *blob = tow_map_remove(&worker->blobs, message->blob);
    const tow_ctl_run_t *run =
        tow_map_find(&controller->runs.by_key, message->run);
    tow_ctl_client_t *client = run != NULL ? run->client : NULL;
    tow_msg_callback_t forward = *message;
    tow_status_t status =
        client == NULL || client->session == NULL
            ? TOW_ERROR(TOW_CANCELLED, "the client of the run has disconnected")
            : note(worker, client, message, &forward.call);
    if (status != TOW_OK) {
        tow_ctl_blob_free(blob);
        refuse(worker, message->call, status);
        return;
    }
    forward.run = run->id;
    forward.blob =
        blob != NULL ? tow_ctl_blob_send(client->session, blob) : message->blob;
    tow_ctl_client_send(client, TOW_MESSAGE_CALLBACK, &forward.base);
}

/* Only its client may answer it. One that is not found was discarded in the
 * meantime. */
void tow_ctl_callback_done(tow_ctl_client_t *client,
                           const tow_msg_callback_done_t *message)
{
    tow_controller_t *controller = client->controller;
    tow_ctl_blob_t *blob = tow_map_remove(&client->blobs, message->blob);
    callback_t *callback =
        tow_map_find(&controller->callbacks.by_number, message->call);
    if (callback == NULL || callback->client != client) {
        tow_ctl_blob_free(blob);
        return;
    }
    tow_ctl_worker_t *worker = callback->worker;
    tow_msg_callback_done_t forward = *message;
    forward.call = callback->call;
    if (blob != NULL && worker->session != NULL)
        forward.blob = tow_ctl_blob_send(worker->session, blob);
    else
        tow_ctl_blob_free(blob);
    tow_ctl_worker_send(worker, TOW_MESSAGE_CALLBACK_DONE, &forward.base);
    free_callback(controller, callback);
}

void tow_ctl_callbacks_on_disconnect(tow_controller_t *controller,
                                     const tow_ctl_worker_t *worker,
                                     const tow_ctl_client_t *client)
{
    size_t cursor = 0;
    uint64_t number;
    void *value;
    while (tow_map_next(&controller->callbacks.by_number, &cursor, &number,
                        &value)) {
        callback_t *callback = value;
        if (callback->worker != worker && callback->client != client) continue;
        if (client != NULL)
            refuse(callback->worker, callback->call,
                   TOW_ERROR(
                       TOW_CANCELLED,
                       "client %s disconnected before it answered a callback",
                       client->name));
        free_callback(controller, callback);
    }
}

/* Numbers count up, so the least is the oldest; the map has no order. */
static const callback_t *oldest_of(const tow_ctl_run_t *run)
{
    const callback_t *oldest = NULL;
    uint64_t number, least = UINT64_MAX;
    size_t cursor = 0;
    void *value;
    while (tow_map_next(&run->controller->callbacks.by_number, &cursor, &number,
                        &value)) {
        const callback_t *callback = value;
        if (callback->run != run->key || number > least) continue;
        oldest = callback;
        least = number;
    }
    return oldest;
}

/* One is enough to find the function. */
void tow_ctl_callbacks_describe(FILE *out, const tow_ctl_run_t *run)
{
    const callback_t *callback = oldest_of(run);
    if (callback == NULL) return;
    const int64_t waited_ns =
        tow_env_now_ns(run->controller->env) - callback->since_ns;
    fprintf(out,
            "; device %lld of %s has waited for %lld s for a callback, a "
            "function of the client's, to return",
            (long long)callback->device, callback->worker->name,
            (long long)(waited_ns / TOW_NS_PER_S));
}

void tow_ctl_callbacks_check(const tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t number;
    void *value;
    while (tow_map_next(&controller->callbacks.by_number, &cursor, &number,
                        &value)) {
        const callback_t *callback = value;
        TOW_ASSERT(callback->number == number);
        TOW_ASSERT(number <= controller->callbacks.number);
        TOW_ASSERT(callback->client->callback_count > 0);
        TOW_ASSERT(callback->worker->session != NULL);
    }
}

void tow_ctl_callbacks_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t number;
    void *callback;
    while (tow_map_next(&controller->callbacks.by_number, &cursor, &number,
                        &callback))
        free_callback(controller, callback);
    tow_map_deinit(&controller->callbacks.by_number);
}
