/* Workers: joining, what they say, and being gone. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"

static void free_worker(worker_t *worker)
{
    tow_vec_deinit(&worker->release_firsts);
    tow_vec_deinit(&worker->release_counts);
    tow_blobs_deinit(&worker->blobs);
    tow_status_release(worker->fault);
    tow_free(worker->peer_bytes);
    tow_free(worker->name);
    tow_free(worker);
}

void tow_worker_release(worker_t *worker)
{
    TOW_ASSERT(worker->reference_count > 0);
    if (--worker->reference_count == 0) free_worker(worker);
}

/* So that a simulation can see what runs cost. */
static void count_message(tow_controller_t *controller, uint32_t type)
{
    controller->grant_message_count +=
        type == TOW_MESSAGE_GRANT || type == TOW_MESSAGE_RELAY_GRANT;
    controller->again_message_count += type == TOW_MESSAGE_PASSED_GRANT;
    controller->abort_message_count += type == TOW_MESSAGE_ABORT;
    controller->done_message_count +=
        type == TOW_MESSAGE_DONE || type == TOW_MESSAGE_RELAY_DONE;
}

static void queue(worker_t *worker, uint32_t type, const tow_body_t *body)
{
    if (tow_session_send(worker->session, type, body) != TOW_SEND_FULL) return;
    tow_worker_fault(worker, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                       "worker %s takes no messages: its queue "
                                       "is full",
                                       worker->name));
}

/* All that it is told has a number, which is said only where the one before went
 * through a relay. */
static void number(worker_t *worker, uint32_t type)
{
    if (type == TOW_MESSAGE_WORKER_JOINED || type == TOW_MESSAGE_PASSED_GRANT)
        return;
    worker->sequence++;
    if (TOW_LIKELY(!worker->needs_mark)) return;
    worker->needs_mark = false;
    tow_msg_sequence_t mark = TOW_MSG_SEQUENCE_INIT;
    mark.next = worker->sequence;
    queue(worker, TOW_MESSAGE_SEQUENCE, &mark.base);
}

void tow_worker_send(worker_t *worker, uint32_t type, const tow_body_t *body)
{
    count_message(worker->controller, type);
    if (worker->session == NULL || worker->fault != TOW_OK) return;
    /* What was released makes room for what comes. */
    if (worker->release_firsts.count > 0 && type != TOW_MESSAGE_RELEASE)
        tow_worker_send_releases(worker);
    number(worker, type);
    queue(worker, type, body);
}

/* Not at once: whoever finds it out may be in the middle of a list of runs that
 * its end would change. */
void tow_worker_fault(worker_t *worker, tow_status_t take_status)
{
    if (worker->fault != TOW_OK || worker->session == NULL) {
        tow_status_release(take_status);
        return;
    }
    worker->fault = take_status;
    tow_controller_touch(worker->controller);
}

/* -- Releases ------------------------------------------------------------------ */

/* Ranges that a message has room for; more go in a second one. */
void tow_worker_send_releases(worker_t *worker)
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
        tow_worker_send(worker, TOW_MESSAGE_RELEASE, &release.base);
        done += count;
    }
    worker->release_firsts.count = 0;
    worker->release_counts.count = 0;
}

void tow_worker_flush(worker_t *worker)
{
    tow_controller_t *controller = worker->controller;
    if (worker->release_firsts.count == 0) return;
    if (worker->release_firsts.count >= TOW_RELEASE_RANGES_MAX)
        tow_worker_send_releases(worker);
    else if (!tow_timer_is_armed(&controller->release_timer))
        tow_env_timer_start(controller->env, &controller->release_timer,
                            tow_env_now_ns(controller->env) +
                                TOW_RELEASE_DELAY_NS);
}

void tow_workers_release(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, release_timer);
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next)
        tow_worker_send_releases(TOW_CONTAINER_OF(item, worker_t, node));
}

/* -- Joining ------------------------------------------------------------------- */

/* What others are told of it: copied, for the message goes. */
static bool copy_peer(worker_t *worker, const tow_msg_worker_join_t *join)
{
    tow_msg_peer_t *peer = &worker->peer;
    *peer = (tow_msg_peer_t)TOW_MSG_PEER_INIT;
    const tow_msg_lane_target_t *mail = join->mail;
    size_t host_size = strlen(join->host) + 1;
    size_t door_size = strlen(join->door) + 1;
    size_t lane_size = mail != NULL ? mail->lane_address.len : 0;
    uint8_t *bytes = tow_malloc(sizeof(tow_msg_lane_target_t) + lane_size +
                                host_size + door_size);
    if (bytes == NULL) return false;
    worker->peer_bytes = bytes;
    peer->process = join->process;
    peer->device_count = (uint32_t)join->n_devices;
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
    peer->door = peer->host + host_size;
    memcpy(peer->door, join->door, door_size);
    return true;
}

static void introduce(tow_controller_t *controller, worker_t *worker)
{
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next) {
        worker_t *other = TOW_CONTAINER_OF(item, worker_t, node);
        if (other == worker) continue;
        tow_worker_send(other, TOW_MESSAGE_PEER, &worker->peer.base);
        tow_worker_send(worker, TOW_MESSAGE_PEER, &other->peer.base);
    }
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    TOW_TRACE(tow_message_type_name(message->type));
    tow_worker_message(context, message);
}

static void on_blob(void *context, tow_session_t *session, uint64_t blob,
                    void *take_bytes, size_t size)
{
    worker_t *worker = context;
    if (!tow_blob_keep(&worker->blobs, TOW_WORKER_BLOBS_MAX, blob, take_bytes,
                       size))
        tow_worker_fault(worker, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                           "worker %s sent more than %u blobs "
                                           "that no message names",
                                           worker->name, TOW_WORKER_BLOBS_MAX));
}

static void on_gone(void *context, tow_session_t *session, tow_status_t cause)
{
    tow_worker_gone(context, cause);
}

static const tow_session_handler_t worker_handler = {
    .message = on_message,
    .blob = on_blob,
    .gone = on_gone,
};

static worker_t *make_worker(tow_controller_t *controller,
                             tow_session_t *session,
                             const tow_msg_worker_join_t *join)
{
    worker_t *worker = tow_calloc(1, sizeof(*worker));
    if (worker == NULL) return NULL;
    worker->controller = controller;
    worker->session = session;
    worker->reference_count = 1;
    worker->process = join->process;
    worker->name = tow_strdup(tow_session_peer(session)->name);
    tow_list_init(&worker->node);
    if (worker->name != NULL && copy_peer(worker, join)) return worker;
    free_worker(worker);
    return NULL;
}

/* Host memory for what is spilled from its devices. */
static tow_status_t add_memory(tow_controller_t *controller, worker_t *worker,
                               uint64_t bytes)
{
    TOW_RETURN_IF_ERROR(
        tow_ledger_add_host(controller->ledger, bytes, &worker->memory));
    for (size_t i = 0; i < worker->entry->device_count; i++)
        worker->entry->devices[i].account->host = worker->memory->number;
    return TOW_OK;
}

tow_status_t tow_worker_join(tow_controller_t *controller,
                             tow_session_t *session,
                             const tow_msg_worker_join_t *join)
{
    worker_t *worker = make_worker(controller, session, join);
    if (worker == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = tow_resource_add_worker(
        controller->resource, worker->name, join, worker, &worker->entry);
    if (status == TOW_OK) {
        status = tow_sched_add_island(controller->sched,
                                      worker->entry->island->number);
        if (status == TOW_OK)
            status = add_memory(controller, worker, join->host_bytes);
        if (status != TOW_OK)
            tow_resource_remove_worker(controller->resource, worker->entry);
    }
    if (status != TOW_OK) {
        free_worker(worker);
        return status;
    }
    tow_list_append(&controller->workers, &worker->node);
    controller->membership_number++;
    tow_session_accept(session, &worker_handler, worker);
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    joined.cluster = controller->cluster;
    /* So what was meant for another of its sessions is known as such. */
    worker->sequence = (uint64_t)++controller->join_count << 32;
    joined.sequence = worker->sequence;
    tow_worker_send(worker, TOW_MESSAGE_WORKER_JOINED, &joined.base);
    introduce(controller, worker);
    tow_log(&controller->env->log, TOW_LOG_INFO, "worker joined",
            TOW_F_STR("worker", worker->name),
            TOW_F_STR("host", worker->entry->host),
            TOW_F_STR("island", worker->entry->island->name),
            TOW_F_U64("devices", worker->entry->device_count));
    return TOW_OK;
}

/* -- Being gone ---------------------------------------------------------------- */

static void say_gone(tow_controller_t *controller, const worker_t *worker,
                     tow_status_t cause)
{
    tow_msg_peer_gone_t gone = TOW_MSG_PEER_GONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(cause);
    gone.process = worker->process;
    gone.failure = &failure;
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next)
        tow_worker_send(TOW_CONTAINER_OF(item, worker_t, node),
                        TOW_MESSAGE_PEER_GONE, &gone.base);
}

static void lose_accounts(tow_controller_t *controller, worker_t *worker,
                          tow_status_t cause)
{
    for (size_t i = 0; i < worker->entry->device_count; i++)
        tow_ledger_lose_account(controller->ledger,
                                worker->entry->devices[i].account, cause);
    tow_ledger_lose_host(worker->memory);
}

/* The order matters: runs first, whose results fail with their own words, then
 * what they used. */
void tow_worker_gone(worker_t *worker, tow_status_t cause)
{
    tow_controller_t *controller = worker->controller;
    tow_session_t *session = worker->session;
    if (session == NULL || controller->is_closing) return;
    worker->session = NULL;
    tow_list_remove(&worker->node);
    controller->membership_number++;
    tow_status_t lost =
        TOW_ERROR(TOW_UNAVAILABLE, "worker %s on host %s is gone: %s",
                  worker->name, worker->entry->host, tow_status_message(cause));
    tow_log(&controller->env->log, TOW_LOG_WARN, "worker gone",
            TOW_F_STR("worker", worker->name),
            TOW_F_STR("why", tow_status_message(cause)));
    tow_session_close(session, cause, (tow_closed_t){0});
    tow_relay_gone(worker);
    tow_runs_lose(controller, worker, lost);
    tow_executables_lose(controller, worker, lost);
    tow_puts_lose(controller, worker, NULL, lost);
    tow_gets_lose(controller, worker, NULL, lost);
    tow_reports_lose(controller, worker, NULL);
    tow_callbacks_lose(controller, worker, NULL);
    lose_accounts(controller, worker, lost);
    tow_spills_lose(controller, worker);
    say_gone(controller, worker, lost);
    tow_status_release(lost);
    tow_resource_remove_worker(controller->resource, worker->entry);
    worker->entry = NULL;
    worker->release_firsts.count = worker->release_counts.count = 0;
    tow_sched_poke(controller->sched, NULL);
    tow_controller_touch(controller);
    tow_worker_release(worker);
}

void tow_workers_close(tow_controller_t *controller, tow_status_t reason)
{
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next) {
        worker_t *worker = TOW_CONTAINER_OF(item, worker_t, node);
        tow_session_close(worker->session, reason,
                          tow_controller_closing(controller));
        worker->session = NULL;
    }
}

void tow_workers_abandon(tow_controller_t *controller)
{
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next) {
        worker_t *worker = TOW_CONTAINER_OF(item, worker_t, node);
        tow_session_abandon(worker->session);
        worker->session = NULL;
    }
}

void tow_workers_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->workers)) {
        tow_list_t *item = tow_list_pop_front(&controller->workers);
        tow_worker_release(TOW_CONTAINER_OF(item, worker_t, node));
    }
}

/* -- What it says -------------------------------------------------------------- */

static bool is_from_worker(uint32_t type)
{
    switch (type) {
    case TOW_MESSAGE_DONE:
    case TOW_MESSAGE_RELAY_DONE:
    case TOW_MESSAGE_RELAY_LOST:
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

static void dispatch(worker_t *worker, uint32_t type, const tow_body_t *body)
{
    switch (type) {
    case TOW_MESSAGE_DONE:
        tow_runs_done(worker, (const tow_msg_done_t *)body);
        return;
    case TOW_MESSAGE_RELAY_DONE:
        tow_relay_done(worker, (const tow_msg_relay_done_t *)body);
        return;
    case TOW_MESSAGE_RELAY_LOST:
        tow_relay_lost(worker, ((const tow_msg_relay_lost_t *)body)->process);
        return;
    case TOW_MESSAGE_LOAD_DONE: {
        const tow_msg_load_done_t *done = (const tow_msg_load_done_t *)body;
        tow_executable_loaded(worker->controller, worker, done->executable,
                              tow_failure_status(done->failure));
        return;
    }
    case TOW_MESSAGE_SHARD_PUT_OPENED:
        tow_put_opened(worker, (const tow_msg_shard_put_opened_t *)body);
        return;
    case TOW_MESSAGE_SHARD_PUT_DONE:
        tow_put_done(worker, (const tow_msg_shard_put_done_t *)body);
        return;
    case TOW_MESSAGE_SHARD_GET_DONE:
        tow_get_done(worker, (const tow_msg_shard_get_done_t *)body);
        return;
    case TOW_MESSAGE_SPILL_DONE:
        tow_spill_done(worker, (const tow_msg_spill_done_t *)body);
        return;
    case TOW_MESSAGE_CALLBACK:
        tow_callback_begin(worker, (const tow_msg_callback_t *)body);
        return;
    case TOW_MESSAGE_REPORT:
        tow_report_answer(worker, (const tow_msg_report_t *)body);
        return;
    default: TOW_UNREACHABLE();
    }
}

void tow_worker_message(worker_t *worker, const tow_message_t *message)
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
            : TOW_ERROR(TOW_FAILED_PRECONDITION, "worker %s sent %s",
                        worker->name, tow_message_type_name(message->type));
    if (status == TOW_OK)
        dispatch(worker, message->type, body);
    else
        tow_worker_fault(worker, status);
    tow_controller_touch(controller);
}
