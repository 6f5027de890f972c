/* Functions of clients. A computation on a worker calls one and stands still until
 * the client whose run it is has answered; we only pass on. Bytes go through us,
 * in messages or blobs: the ends share no lane, and these calls are for what is
 * small (a line to print, a loss to log). */
#include "controller/controller_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "env/tuning.h"

/* A call that its client has not answered. */
typedef struct callback {
    uint64_t number; /* ours, to the client */
    client_t *client;
    worker_t *worker; /* counted */
    uint64_t call;    /* the worker's number of it */
    uint64_t run;     /* its key */
    int64_t device;
    int64_t since_ns;
} callback_t;

static void free_callback(tow_controller_t *controller, callback_t *callback)
{
    tow_map_remove(&controller->callback_of, callback->number);
    callback->client->callback_count--;
    tow_worker_release(callback->worker);
    tow_free(callback);
}

static void refuse(worker_t *worker, uint64_t call, tow_status_t take_cause)
{
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_cause);
    done.call = call;
    done.failure = &failure;
    tow_worker_send(worker, TOW_MESSAGE_CALLBACK_DONE, &done.base);
    tow_status_release(take_cause);
}

static tow_status_t note(worker_t *worker, client_t *client,
                         const tow_msg_callback_t *message,
                         uint64_t *out_number)
{
    tow_controller_t *controller = worker->controller;
    if (client->callback_count >= TOW_CLIENT_CALLBACKS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "client %s has %u callbacks to answer already",
                         client->name, TOW_CLIENT_CALLBACKS_MAX);
    callback_t *callback = tow_calloc(1, sizeof(*callback));
    if (callback == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *callback = (callback_t){.number = controller->callback_number + 1,
                             .client = client,
                             .worker = worker,
                             .call = message->call,
                             .run = message->run,
                             .device = message->device,
                             .since_ns = tow_env_now_ns(controller->env)};
    if (!tow_map_put(&controller->callback_of, callback->number, callback)) {
        tow_free(callback);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_worker_retain(worker);
    client->callback_count++;
    *out_number = ++controller->callback_number;
    return TOW_OK;
}

void tow_callback_begin(worker_t *worker, const tow_msg_callback_t *message)
{
    tow_controller_t *controller = worker->controller;
    blob_t *blob = tow_map_remove(&worker->blobs, message->blob);
    const run_t *run = tow_map_find(&controller->run_of, message->run);
    client_t *client = run != NULL ? run->client : NULL;
    tow_msg_callback_t forward = *message;
    tow_status_t status =
        client == NULL || client->session == NULL
            ? TOW_ERROR(TOW_CANCELLED, "the client of the run is gone")
            : note(worker, client, message, &forward.call);
    if (status != TOW_OK) {
        tow_blob_free(blob);
        refuse(worker, message->call, status);
        return;
    }
    forward.run = run->id;
    forward.blob =
        blob != NULL ? tow_blob_send(client->session, blob) : message->blob;
    tow_tell_client(client, TOW_MESSAGE_CALLBACK, &forward.base);
}

/* Its client may name it, and nobody else. One that is not there was lost
 * meanwhile. */
void tow_callback_done(client_t *client, const tow_msg_callback_done_t *message)
{
    tow_controller_t *controller = client->controller;
    blob_t *blob = tow_map_remove(&client->blobs, message->blob);
    callback_t *callback =
        tow_map_find(&controller->callback_of, message->call);
    if (callback == NULL || callback->client != client) {
        tow_blob_free(blob);
        return;
    }
    worker_t *worker = callback->worker;
    tow_msg_callback_done_t forward = *message;
    forward.call = callback->call;
    if (blob != NULL && worker->session != NULL)
        forward.blob = tow_blob_send(worker->session, blob);
    else
        tow_blob_free(blob);
    tow_worker_send(worker, TOW_MESSAGE_CALLBACK_DONE, &forward.base);
    free_callback(controller, callback);
}

void tow_callbacks_lose(tow_controller_t *controller, const worker_t *worker,
                        const client_t *client)
{
    size_t cursor = 0;
    uint64_t number;
    void *value;
    while (tow_map_next(&controller->callback_of, &cursor, &number, &value)) {
        callback_t *callback = value;
        if (callback->worker != worker && callback->client != client) continue;
        if (client != NULL)
            refuse(callback->worker, callback->call,
                   TOW_ERROR(TOW_CANCELLED,
                             "client %s went before it answered a callback",
                             client->name));
        free_callback(controller, callback);
    }
}

/* Numbers count up, so the least is the oldest; the table has no order. */
static const callback_t *oldest_of(const run_t *run)
{
    const callback_t *oldest = NULL;
    uint64_t number, least = UINT64_MAX;
    size_t cursor = 0;
    void *value;
    while (
        tow_map_next(&run->controller->callback_of, &cursor, &number, &value)) {
        const callback_t *callback = value;
        if (callback->run != run->key || number > least) continue;
        oldest = callback;
        least = number;
    }
    return oldest;
}

/* One is enough: whoever made the function knows the rest. */
void tow_callbacks_describe(FILE *out, const run_t *run)
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

void tow_callbacks_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t number;
    void *callback;
    while (tow_map_next(&controller->callback_of, &cursor, &number, &callback))
        free_callback(controller, callback);
    tow_map_deinit(&controller->callback_of);
}
