/* Workers: joining, messages, disconnection. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "controller/blob_impl.h"
#include "controller/relay_impl.h"

static void free_worker(tow_ctl_worker_t *worker)
{
    tow_vec_deinit(&worker->release_firsts);
    tow_vec_deinit(&worker->release_counts);
    tow_ctl_blobs_deinit(&worker->blobs);
    tow_status_release(worker->fault);
    tow_free(worker->peer_bytes);
    tow_free(worker->name);
    tow_free(worker);
}

void tow_ctl_worker_release(tow_ctl_worker_t *worker)
{
    TOW_ASSERT(worker->reference_count > 0);
    if (--worker->reference_count == 0) free_worker(worker);
}

/* For simulations, which bound the messages per run. */
static void count_message(tow_controller_t *controller, uint32_t type)
{
    controller->runs.grant_message_count +=
        type == TOW_MESSAGE_GRANT || type == TOW_MESSAGE_RELAY_GRANT;
    controller->runs.again_message_count += type == TOW_MESSAGE_FORWARDED_GRANT;
    controller->runs.abort_message_count += type == TOW_MESSAGE_ABORT;
    controller->runs.done_message_count +=
        type == TOW_MESSAGE_DONE || type == TOW_MESSAGE_RELAY_DONE;
}

static void queue(tow_ctl_worker_t *worker, uint32_t type,
                  const tow_body_t *body)
{
    if (tow_session_send(worker->session, type, body) != TOW_SEND_FULL) return;
    tow_ctl_worker_fault(worker,
                         TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                   "the send queue to worker %s is full: the "
                                   "worker does not receive",
                                   worker->name));
}

/* Every command to a worker has a number. It is sent only if the command
 * before went through a relay. */
static void number(tow_ctl_worker_t *worker, uint32_t type)
{
    if (type == TOW_MESSAGE_WORKER_JOINED ||
        type == TOW_MESSAGE_FORWARDED_GRANT)
        return;
    worker->sequence++;
    if (TOW_LIKELY(!worker->needs_mark)) return;
    worker->needs_mark = false;
    tow_msg_sequence_t mark = TOW_MSG_SEQUENCE_INIT;
    mark.next = worker->sequence;
    queue(worker, TOW_MESSAGE_SEQUENCE, &mark.base);
}

void tow_ctl_worker_send(tow_ctl_worker_t *worker, uint32_t type,
                         const tow_body_t *body)
{
    count_message(worker->controller, type);
    if (worker->session == NULL || worker->fault != TOW_OK) return;
    /* Releases make room for what follows. */
    if (worker->release_firsts.count > 0 && type != TOW_MESSAGE_RELEASE)
        tow_ctl_worker_send_releases(worker);
    number(worker, type);
    queue(worker, type, body);
}

/* Disconnects at the end of the turn: the caller may be iterating over a list
 * that disconnection changes. */
void tow_ctl_worker_fault(tow_ctl_worker_t *worker, tow_status_t take_status)
{
    if (worker->fault != TOW_OK || worker->session == NULL) {
        tow_status_release(take_status);
        return;
    }
    worker->fault = take_status;
    tow_controller_touch(worker->controller);
}

/* -- Releases ------------------------------------------------------------------ */

/* At most TOW_BATCH_MAX ranges in one message. */
void tow_ctl_worker_send_releases(tow_ctl_worker_t *worker)
{
    size_t done = 0;
    while (done < worker->release_firsts.count) {
        size_t count = worker->release_firsts.count - done;
        if (count > TOW_BATCH_MAX) count = TOW_BATCH_MAX;
        tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
        release.firsts = worker->release_firsts.items + done;
        release.n_firsts = count;
        release.counts = worker->release_counts.items + done;
        release.n_counts = count;
        tow_ctl_worker_send(worker, TOW_MESSAGE_RELEASE, &release.base);
        done += count;
    }
    worker->release_firsts.count = 0;
    worker->release_counts.count = 0;
}

void tow_ctl_worker_flush(tow_ctl_worker_t *worker)
{
    tow_controller_t *controller = worker->controller;
    if (worker->release_firsts.count == 0) return;
    if (worker->release_firsts.count >= TOW_RELEASE_RANGES_MAX)
        tow_ctl_worker_send_releases(worker);
    else if (!tow_timer_is_armed(&controller->workers.release_timer))
        tow_env_timer_start(controller->env, &controller->workers.release_timer,
                            tow_env_now_ns(controller->env) +
                                TOW_RELEASE_DELAY_NS);
}

void tow_ctl_workers_on_release_timer(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, workers.release_timer);
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next)
        tow_ctl_worker_send_releases(
            TOW_CONTAINER_OF(item, tow_ctl_worker_t, node));
}

/* -- Joining ------------------------------------------------------------------- */

/* Copies what other workers need to reach it. */
static bool copy_peer(tow_ctl_worker_t *worker,
                      const tow_msg_worker_join_t *join)
{
    const char *handshake_name = tow_session_peer(worker->session)->name;
    tow_msg_peer_t *peer = &worker->peer;
    *peer = (tow_msg_peer_t)TOW_MSG_PEER_INIT;
    const tow_msg_lane_target_t *mail = join->mail;
    size_t host_size = strlen(join->host) + 1;
    size_t door_size = strlen(join->listen_address) + 1;
    size_t handshake_size = strlen(handshake_name) + 1;
    size_t lane_size = mail != NULL ? mail->lane_address.len : 0;
    uint8_t *bytes = tow_malloc(sizeof(tow_msg_lane_target_t) + lane_size +
                                host_size + door_size + handshake_size);
    if (bytes == NULL) return false;
    worker->peer_bytes = bytes;
    peer->process = join->process;
    peer->device_count = (uint32_t)join->n_devices;
    peer->memory = join->memory;
    peer->name = worker->name;
    uint8_t *text = bytes + sizeof(tow_msg_lane_target_t);
    if (mail != NULL) {
        tow_msg_lane_target_t *copy = (tow_msg_lane_target_t *)bytes;
        *copy = *mail;
        copy->lane_address.data = text;
        if (lane_size > 0) memcpy(text, mail->lane_address.data, lane_size);
        peer->mail = copy;
    }
    memcpy(text + lane_size, join->host, host_size);
    peer->host = (char *)text + lane_size;
    peer->listen_address = peer->host + host_size;
    memcpy(peer->listen_address, join->listen_address, door_size);
    peer->handshake_name = peer->listen_address + door_size;
    memcpy(peer->handshake_name, handshake_name, handshake_size);
    return true;
}

static void introduce(tow_controller_t *controller, tow_ctl_worker_t *worker)
{
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next) {
        tow_ctl_worker_t *other =
            TOW_CONTAINER_OF(item, tow_ctl_worker_t, node);
        if (other == worker) continue;
        tow_ctl_worker_send(other, TOW_MESSAGE_PEER, &worker->peer.base);
        tow_ctl_worker_send(worker, TOW_MESSAGE_PEER, &other->peer.base);
    }
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    TOW_TRACE(tow_message_type_name(message->type));
    tow_ctl_worker_message(context, message);
}

static void on_blob(void *context, tow_session_t *session, uint64_t blob,
                    void *take_bytes, size_t size)
{
    tow_ctl_worker_t *worker = context;
    if (!tow_ctl_blob_add(&worker->blobs, TOW_WORKER_BLOBS_MAX, blob,
                          take_bytes, size))
        tow_ctl_worker_fault(worker,
                             TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                       "worker %s sent more than %u blobs "
                                       "that no message names",
                                       worker->name, TOW_WORKER_BLOBS_MAX));
}

static void on_disconnect(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    tow_ctl_worker_on_disconnect(context, cause);
}

static const tow_session_handler_t worker_handler = {
    .message = on_message,
    .blob = on_blob,
    .disconnected = on_disconnect,
};

static tow_ctl_worker_t *make_worker(tow_controller_t *controller,
                                     tow_session_t *session, const char *name,
                                     const tow_msg_worker_join_t *join)
{
    tow_ctl_worker_t *worker = tow_calloc(1, sizeof(*worker));
    if (worker == NULL) return NULL;
    worker->controller = controller;
    worker->session = session;
    worker->reference_count = 1;
    worker->process = join->process;
    worker->name = tow_strdup(name);
    tow_list_init(&worker->node);
    if (worker->name != NULL && copy_peer(worker, join)) return worker;
    free_worker(worker);
    return NULL;
}

/* Its account of host memory, for spilled objects of its devices. */
static tow_status_t add_memory(tow_controller_t *controller,
                               tow_ctl_worker_t *worker, uint64_t bytes)
{
    TOW_RETURN_IF_ERROR(tow_object_table_add_host_memory(
        controller->object_table, bytes, &worker->memory));
    for (size_t i = 0; i < worker->entry->device_count; i++)
        worker->entry->devices[i].account->host = worker->memory->number;
    return TOW_OK;
}

tow_status_t tow_ctl_worker_join(tow_controller_t *controller,
                                 tow_session_t *session,
                                 const tow_msg_worker_join_t *join)
{
    const tow_peer_t *peer = tow_session_peer(session);
    const char *name = join->name[0] != '\0' ? join->name : peer->name;
    TOW_RETURN_IF_ERROR(
        tow_ctl_roster_check_join(controller, name, join->process, peer));
    tow_ctl_worker_t *worker = make_worker(controller, session, name, join);
    if (worker == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = tow_resource_add_worker(
        controller->resource, worker->name, join, worker, &worker->entry);
    if (status == TOW_OK) {
        status = tow_sched_add_island(controller->sched,
                                      worker->entry->island->number);
        if (status == TOW_OK)
            status = add_memory(controller, worker, join->host_bytes);
        if (status == TOW_OK) status = tow_ctl_roster_join(worker, join);
        if (status != TOW_OK)
            tow_resource_remove_worker(controller->resource, worker->entry);
    }
    if (status != TOW_OK) {
        free_worker(worker);
        return status;
    }
    tow_list_append(&controller->workers.list, &worker->node);
    tow_ctl_worker_check(worker);
    controller->workers.membership_number++;
    tow_session_accept(session, &worker_handler, worker);
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    joined.cluster = controller->cluster;
    /* Each session has its own range of numbers, so a forwarded grant of an
     * earlier session is recognised. */
    worker->sequence = (uint64_t)++controller->workers.join_count << 32;
    joined.sequence = worker->sequence;
    tow_ctl_worker_send(worker, TOW_MESSAGE_WORKER_JOINED, &joined.base);
    introduce(controller, worker);
    tow_log(&controller->env->log, TOW_LOG_INFO, "worker joined",
            TOW_F_STR("worker", worker->name),
            TOW_F_STR("host", worker->entry->host),
            TOW_F_STR("island", worker->entry->island->name),
            TOW_F_U64("devices", worker->entry->device_count));
    return TOW_OK;
}

/* -- Disconnection --------------------------------------------------------- */

static void send_peer_disconnected(tow_controller_t *controller,
                                   const tow_ctl_worker_t *worker,
                                   tow_status_t cause)
{
    tow_msg_peer_disconnected_t message = TOW_MSG_PEER_DISCONNECTED_INIT;
    tow_msg_failure_t failure = tow_failure_of(cause);
    message.process = worker->process;
    message.failure = &failure;
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next)
        tow_ctl_worker_send(TOW_CONTAINER_OF(item, tow_ctl_worker_t, node),
                            TOW_MESSAGE_PEER_DISCONNECTED, &message.base);
}

static void fail_accounts(tow_controller_t *controller,
                          tow_ctl_worker_t *worker, tow_status_t cause)
{
    for (size_t i = 0; i < worker->entry->device_count; i++)
        tow_object_table_on_disconnect(
            controller->object_table, worker->entry->devices[i].account, cause);
    tow_host_memory_on_disconnect(worker->memory);
}

/* Why everything on its devices fails. */
static tow_status_t describe_loss(const tow_ctl_worker_t *worker,
                                  tow_status_t cause)
{
    /* It closed its session without a reason: its process was asked to end. */
    if (tow_status_code(cause) == TOW_CANCELLED)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "worker %s on host %s left: its process was ended",
                         worker->name, worker->entry->host);
    return TOW_ERROR(TOW_UNAVAILABLE, "worker %s on host %s is gone: %s",
                     worker->name, worker->entry->host,
                     tow_status_message(cause));
}

/* Runs come first, so that their results fail with errors of their own; then
 * what the runs used. */
void tow_ctl_worker_on_disconnect(tow_ctl_worker_t *worker, tow_status_t cause)
{
    tow_controller_t *controller = worker->controller;
    tow_session_t *session = worker->session;
    if (session == NULL || controller->is_closing) return;
    worker->session = NULL;
    tow_list_remove(&worker->node);
    tow_ctl_roster_leave(worker);
    controller->workers.membership_number++;
    tow_status_t lost = describe_loss(worker, cause);
    tow_log(&controller->env->log, TOW_LOG_WARN, "worker disconnected",
            TOW_F_STR("worker", worker->name),
            TOW_F_STR("why", tow_status_message(cause)));
    tow_session_close(session, cause, (tow_closed_t){0});
    tow_ctl_relay_on_disconnect(worker);
    tow_ctl_runs_on_worker_disconnect(controller, worker, lost);
    tow_ctl_executables_on_disconnect(controller, worker, lost);
    tow_ctl_puts_on_disconnect(controller, worker, NULL, lost);
    tow_ctl_gets_on_disconnect(controller, worker, NULL, lost);
    tow_ctl_reports_on_disconnect(controller, worker, NULL);
    tow_ctl_callbacks_on_disconnect(controller, worker, NULL);
    fail_accounts(controller, worker, lost);
    tow_ctl_spills_on_disconnect(controller, worker);
    send_peer_disconnected(controller, worker, lost);
    tow_status_release(lost);
    tow_resource_remove_worker(controller->resource, worker->entry);
    worker->entry = NULL;
    worker->release_firsts.count = worker->release_counts.count = 0;
    tow_sched_notify(controller->sched, NULL);
    tow_controller_touch(controller);
    tow_ctl_worker_release(worker);
}

void tow_ctl_workers_close(tow_controller_t *controller, tow_status_t reason)
{
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next) {
        tow_ctl_worker_t *worker =
            TOW_CONTAINER_OF(item, tow_ctl_worker_t, node);
        tow_session_close(worker->session, reason,
                          tow_controller_closing(controller));
        worker->session = NULL;
    }
}

void tow_ctl_workers_discard(tow_controller_t *controller)
{
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next) {
        tow_ctl_worker_t *worker =
            TOW_CONTAINER_OF(item, tow_ctl_worker_t, node);
        tow_session_discard(worker->session);
        worker->session = NULL;
    }
}

void tow_ctl_workers_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->workers.list)) {
        tow_list_t *item = tow_list_pop_front(&controller->workers.list);
        tow_ctl_worker_release(TOW_CONTAINER_OF(item, tow_ctl_worker_t, node));
    }
}

/* -- Messages from workers ------------------------------------------------- */

static bool is_from_worker(uint32_t type)
{
    switch (type) {
    case TOW_MESSAGE_DONE:
    case TOW_MESSAGE_RELAY_DONE:
    case TOW_MESSAGE_RELAY_DISCONNECTED:
    case TOW_MESSAGE_LOAD_DONE:
    case TOW_MESSAGE_SHARD_PUT_OPENED:
    case TOW_MESSAGE_SHARD_PUT_DONE:
    case TOW_MESSAGE_SHARD_GET_DONE:
    case TOW_MESSAGE_SPILL_DONE:
    case TOW_MESSAGE_CALLBACK:
    case TOW_MESSAGE_REPORT: return true;
    default: return false;
    }
}

static void dispatch(tow_ctl_worker_t *worker, uint32_t type,
                     const tow_body_t *body)
{
    switch (type) {
    case TOW_MESSAGE_DONE:
        tow_ctl_runs_done(worker, (const tow_msg_done_t *)body);
        return;
    case TOW_MESSAGE_RELAY_DONE:
        tow_ctl_relay_done(worker, (const tow_msg_relay_done_t *)body);
        return;
    case TOW_MESSAGE_RELAY_DISCONNECTED:
        tow_ctl_relay_link_down(
            worker, ((const tow_msg_relay_disconnected_t *)body)->process);
        return;
    case TOW_MESSAGE_LOAD_DONE: {
        const tow_msg_load_done_t *done = (const tow_msg_load_done_t *)body;
        tow_ctl_executable_loaded(worker->controller, worker, done->executable,
                                  tow_failure_status(done->failure));
        return;
    }
    case TOW_MESSAGE_SHARD_PUT_OPENED:
        tow_ctl_put_opened(worker, (const tow_msg_shard_put_opened_t *)body);
        return;
    case TOW_MESSAGE_SHARD_PUT_DONE:
        tow_ctl_put_done(worker, (const tow_msg_shard_put_done_t *)body);
        return;
    case TOW_MESSAGE_SHARD_GET_DONE:
        tow_ctl_get_done(worker, (const tow_msg_shard_get_done_t *)body);
        return;
    case TOW_MESSAGE_SPILL_DONE:
        tow_ctl_spill_done(worker, (const tow_msg_spill_done_t *)body);
        return;
    case TOW_MESSAGE_CALLBACK:
        tow_ctl_callback_begin(worker, (const tow_msg_callback_t *)body);
        return;
    case TOW_MESSAGE_REPORT:
        tow_ctl_report_answer(worker, (const tow_msg_report_t *)body);
        return;
    default: TOW_UNREACHABLE();
    }
}

void tow_ctl_worker_message(tow_ctl_worker_t *worker,
                            const tow_message_t *message)
{
    tow_controller_t *controller = worker->controller;
    if (worker->fault != TOW_OK) return;
    count_message(controller, message->type);
    const tow_body_t *body;
    tow_arena_reset(&controller->arena);
    tow_status_t status =
        is_from_worker(message->type)
            ? tow_message_decode(message->type, message->bytes, message->size,
                                 &controller->arena, &body)
            : TOW_ERROR(TOW_FAILED_PRECONDITION,
                        "worker %s sent %s, which workers do not send",
                        worker->name, tow_message_type_name(message->type));
    if (status == TOW_OK)
        dispatch(worker, message->type, body);
    else
        tow_ctl_worker_fault(worker, status);
    tow_ctl_worker_check(worker);
    tow_controller_touch(controller);
}
