/* The session with the controller: sending, releases, dispatching its
 * messages. */
#include "client/client_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "session/tuning.h"

/* -- Completions and callbacks --------------------------------------------- */

void tow_completion_settle(tow_client_t *client, completion_t *completion,
                           tow_status_t take_status)
{
    if (completion->settled) {
        tow_status_release(take_status);
        return;
    }
    completion->error = take_status;
    completion->settled = true;
    if (client->net != NULL) tow_locked_net_notify(client->net);
}

void tow_client_expect(tow_client_t *client, bool expected)
{
    if (client->net != NULL) tow_locked_net_expect(client->net, expected);
}

void tow_client_call_later(tow_client_t *client, callback_t *take_callback,
                           tow_status_t take_status)
{
    take_callback->status = take_status;
    take_callback->is_due = true;
    tow_list_append(&client->callbacks, &take_callback->node);
    if (client->net == NULL) {
        tow_client_callbacks_run(&client->callbacks);
        return;
    }
    tow_locked_net_notify(client->net); /* A thread may wait for is_due. */
    tow_locked_net_request_callback(client->net);
}

void tow_client_callback_free(callback_t *callback)
{
    if (callback != NULL && !callback->is_lent) tow_free(callback);
}

void tow_client_callbacks_run(tow_list_t *callbacks)
{
    while (!tow_list_is_empty(callbacks)) {
        callback_t *callback =
            TOW_CONTAINER_OF(tow_list_pop_front(callbacks), callback_t, node);
        const bool is_lent = callback->is_lent;
        if (callback->done != NULL)
            callback->done(callback->context, callback->status);
        else
            callback->plain(callback->context);
        if (!is_lent) tow_free(callback);
    }
}

struct tow_locked_net *tow_client_locked_net(const tow_client_t *client)
{
    return client->net;
}

/* -- Sending ------------------------------------------------------------------- */

tow_status_t tow_client_send(tow_client_t *client, uint32_t type,
                             const tow_body_t *body)
{
    TOW_RETURN_IF_ERROR(tow_client_connection_status(client));
    switch (tow_session_send(client->session, type, body)) {
    case TOW_SEND_OK: return TOW_OK;
    case TOW_SEND_FULL:
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "the send queue to the controller is full: %llu bytes queued, "
            "limit %llu",
            (unsigned long long)tow_session_stats(client->session)
                .retransmit_bytes,
            (unsigned long long)TOW_SESSION_RETRANSMIT_BYTES_MAX);
    case TOW_SEND_DOWN: break;
    }
    return TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
}

static void free_bytes(void *context)
{
    tow_free(context);
}

uint64_t tow_client_send_blob(tow_client_t *client, void *take_bytes,
                              size_t size)
{
    if (client->session == NULL) {
        tow_free(take_bytes);
        return 0;
    }
    return tow_session_send_blob(client->session,
                                 &(tow_session_blob_t){.bytes = take_bytes,
                                                       .size = size,
                                                       .release = free_bytes,
                                                       .context = take_bytes});
}

/* -- Releases ------------------------------------------------------------------ */

void tow_client_flush_releases(tow_client_t *client)
{
    if (client->release_firsts.count == 0) return;
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = client->release_firsts.items;
    release.n_firsts = client->release_firsts.count;
    release.counts = client->release_counts.items;
    release.n_counts = client->release_counts.count;
    tow_status_ignore(
        tow_client_send(client, TOW_MESSAGE_RELEASE, &release.base),
        "without a cluster there is nothing to release");
    tow_client_discard_releases(client);
}

void tow_client_discard_releases(tow_client_t *client)
{
    client->release_firsts.count = client->release_counts.count = 0;
    tow_env_timer_stop(client->env, &client->release_timer);
}

static void release_late(tow_timer_t *timer)
{
    tow_client_flush_releases(
        TOW_CONTAINER_OF(timer, tow_client_t, release_timer));
}

/* If there is no memory, the controller keeps the object until the client
 * closes. */
void tow_client_note_release(tow_client_t *client, uint64_t id)
{
    if (client->disconnect_cause != TOW_OK) return;
    const size_t count = client->release_firsts.count;
    if (count > 0 && client->release_firsts.items[count - 1] +
                             client->release_counts.items[count - 1] ==
                         id) {
        client->release_counts.items[count - 1]++;
    } else if (tow_vec_reserve(&client->release_firsts, count + 1) &&
               tow_vec_reserve(&client->release_counts, count + 1)) {
        client->release_firsts.items[client->release_firsts.count++] = id;
        client->release_counts.items[client->release_counts.count++] = 1;
    }
    if (client->release_firsts.count >= TOW_CLIENT_RELEASE_COUNT)
        tow_client_flush_releases(client);
    else if (!tow_timer_is_armed(&client->release_timer))
        tow_env_timer_start(client->env, &client->release_timer,
                            tow_env_now_ns(client->env) +
                                TOW_CLIENT_RELEASE_NS);
}

/* -- Messages from the controller ------------------------------------------ */

static void on_disconnect(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    tow_client_t *client = context;
    const bool was_there =
        client->opening.settled && client->disconnect_cause == TOW_OK;
    tow_client_on_disconnect(
        client, was_there
                    ? TOW_ERROR(TOW_UNAVAILABLE, "the cluster is gone: %s (%s)",
                                tow_status_message(cause), client->address)
                    : tow_status_retain(cause));
}

static void opened(tow_client_t *client, const tow_msg_client_opened_t *message)
{
    tow_status_t status = tow_failure_status(message->failure);
    if (status != TOW_OK) {
        tow_client_on_disconnect(client, status);
        return;
    }
    client->number = message->client;
    tow_client_begin_generation(client);
}

static tow_status_t handle(tow_client_t *client, uint32_t type,
                           const tow_body_t *body)
{
#define AS(name) ((const tow_msg_##name##_t *)body)
    switch (type) {
    case TOW_MESSAGE_RUNS_DONE:
        tow_client_runs_done(client, AS(runs_done));
        break;
    case TOW_MESSAGE_LANE_INVITE:
        tow_env_lane_prepare(client->env, AS(lane_invite)->lane_address.data,
                             AS(lane_invite)->lane_address.len);
        break;
    case TOW_MESSAGE_GET_DONE:
        tow_client_download_done(client, AS(get_done));
        break;
    case TOW_MESSAGE_PUT_OPENED:
        tow_client_upload_opened(client, AS(put_opened));
        break;
    case TOW_MESSAGE_PUT_DONE:
        tow_client_upload_done(client, AS(put_done));
        break;
    case TOW_MESSAGE_SLICE_OPENED:
        tow_slice_opened(client, AS(slice_opened));
        break;
    case TOW_MESSAGE_COMPILE_DONE:
        tow_function_compiled(client, AS(compile_done));
        break;
    case TOW_MESSAGE_PROGRAM_ADDED:
        tow_program_answered(client, AS(program_added));
        break;
    case TOW_MESSAGE_PARTITION_QUERY:
        tow_function_on_partition_query(client, AS(partition_query));
        break;
    case TOW_MESSAGE_RUN_STALLED:
        tow_client_run_on_stall(client, AS(run_stalled));
        break;
    case TOW_MESSAGE_CALLBACK:
        tow_client_on_callback(client, AS(callback));
        break;
    case TOW_MESSAGE_REPORT: tow_client_report_done(client, AS(report)); break;
    case TOW_MESSAGE_CLIENT_OPENED: opened(client, AS(client_opened)); break;
    default:
        return TOW_ERROR(TOW_INTERNAL, "the controller sent %s",
                         tow_message_type_name(type));
    }
#undef AS
    return TOW_OK;
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    tow_client_t *client = context;
    const tow_body_t *body;
    tow_arena_reset(&client->arena);
    tow_status_t status = tow_message_decode(
        message->type, message->bytes, message->size, &client->arena, &body);
    if (status == TOW_OK) status = handle(client, message->type, body);
    if (status != TOW_OK) tow_client_on_disconnect(client, status);
}

static void on_opened(void *context, tow_session_t *session)
{
    tow_client_t *client = context;
    tow_msg_client_open_t open = TOW_MSG_CLIENT_OPEN_INIT;
    open.name =
        client->name[0] != '\0' ? client->name : (char *)client->env->name;
    if (tow_session_send(session, TOW_MESSAGE_CLIENT_OPEN, &open.base) !=
        TOW_SEND_OK)
        tow_client_on_disconnect(
            client, TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone"));
}

typedef struct report_blob {
    void *bytes; /* owned */
    size_t size;
} report_blob_t;

static void on_blob(void *context, tow_session_t *session, uint64_t number,
                    void *take_bytes, size_t size)
{
    tow_client_t *client = context;
    report_blob_t *blob = tow_malloc(sizeof(*blob));
    if (blob == NULL || !tow_map_put(&client->blobs, number, blob)) {
        tow_free(blob);
        tow_free(take_bytes);
        return; /* The message that names it reports the loss. */
    }
    *blob = (report_blob_t){take_bytes, size};
}

void *tow_client_take_blob(tow_client_t *client, uint64_t number,
                           size_t *out_size)
{
    report_blob_t *blob = tow_map_remove(&client->blobs, number);
    if (blob == NULL) return NULL;
    void *bytes = blob->bytes;
    *out_size = blob->size;
    tow_free(blob);
    return bytes;
}

static void on_writable(void *context, tow_session_t *session)
{
    tow_client_notify_room(context);
}

const tow_session_handler_t tow_client_handler = {
    .opened = on_opened,
    .message = on_message,
    .blob = on_blob,
    .writable = on_writable,
    .disconnected = on_disconnect,
};

/* -- Opening and freeing --------------------------------------------------- */

tow_status_t tow_client_dial(tow_env_t *env,
                             const tow_client_dial_options_t *options,
                             tow_client_t **out_client)
{
    *out_client = NULL;
    tow_client_t *client = tow_calloc(1, sizeof(*client));
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client->reference_count = 1;
    client->has_room = true;
    client->env = env;
    client->net = options->net;
    if (options->name != NULL)
        snprintf(client->name, sizeof(client->name), "%s", options->name);
    client->release_timer.fire = release_late;
    tow_list_init(&client->callbacks);
    tow_list_init(&client->lanes);
    tow_list_init(&client->uploads);
    tow_arena_init(&client->arena, (size_t)64 << 20);
    tow_status_t status = tow_client_dial_first(client, options);
    if (status != TOW_OK) {
        tow_client_free(client);
        return status;
    }
    *out_client = client;
    return TOW_OK;
}

bool tow_client_is_quiet(const tow_client_t *client)
{
    return client->is_closed && tow_client_transfers_are_quiet(client);
}

const tow_completion_t *tow_client_opening(const tow_client_t *client)
{
    return &client->opening;
}

tow_status_t tow_client_disconnect_cause(const tow_client_t *client)
{
    return client->disconnect_cause;
}

size_t tow_client_run_count(const tow_client_t *client)
{
    return tow_map_count(&client->runs);
}

void tow_client_discard(tow_client_t *client)
{
    if (client->disconnect_cause == TOW_OK)
        client->disconnect_cause =
            TOW_ERROR(TOW_CANCELLED, "the process has died");
    tow_session_discard(client->session);
    tow_session_discard(client->closing);
    client->session = client->closing = NULL;
    client->is_closing = true;
    tow_client_runs_discard(client);
    tow_client_transfers_discard(client);
}

void tow_client_discard_blobs(tow_client_t *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->blobs, &cursor, &key, &value)) {
        tow_free(((report_blob_t *)value)->bytes);
        tow_free(value);
    }
    tow_map_deinit(&client->blobs);
}

void tow_client_free(tow_client_t *client)
{
    if (client == NULL) return;
    tow_client_discard_blobs(client);
    tow_map_deinit(&client->slices);
    tow_map_deinit(&client->functions);
    tow_map_deinit(&client->programs);
    tow_map_deinit(&client->arrays);
    tow_map_deinit(&client->runs);
    tow_map_deinit(&client->requests);
    tow_vec_deinit(&client->release_firsts);
    tow_vec_deinit(&client->release_counts);
    tow_status_release(client->opening.error);
    tow_status_release(client->disconnect_cause);
    tow_status_release(client->last_cause);
    tow_free(client->address);
    tow_arena_deinit(&client->arena);
    tow_free(client);
}
