/* Other workers: sessions for the messages of their transfer engines, and lanes
 * for their writes.
 *
 * Each direction has a session of its own, which the sender dials at the
 * address that the controller announced. So two workers that dial at the same
 * moment need no rule for which session stays. Both sides begin with PeerOpen;
 * until the other has answered, messages are queued. When a peer disconnects,
 * does not read, or breaks the protocol, both directions are closed, the writes
 * to it end, and the transfer engine fails the transfers that need it. Only the
 * controller decides whether the worker itself has disconnected: until then
 * both dial again, and announce the last gang whose messages may be lost. The
 * other may not even have been granted it yet. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "worker/worker_impl.h"

/* A queued message. */
typedef struct queued_message {
    tow_list_t in_outbox;
    uint32_t type;
    uint32_t size;
    uint8_t bytes[];
} queued_message_t;

/* A session with another worker, until it is closed. */
typedef struct peer_session {
    tow_list_t in_worker;
    tow_worker_t *worker;
    tow_session_t *session;
    uint32_t process; /* of the peer */
    uint64_t cluster; /* as the peer announced it */
    uint64_t lost;    /* as the peer announced it: a gang */
    bool is_ours;     /* we dialled it, to send; otherwise to receive */
    bool has_opened;  /* PeerOpen has arrived */
    bool is_accepted; /* and was accepted */
    bool is_closing;
} peer_session_t;

/* A worker that the controller has announced. */
struct peer {
    uint32_t process;
    peer_session_t *session; /* to send; NULL: none yet */
    tow_list_t outbox;
    size_t outbox_bytes;
    tow_status_t
        disconnect_cause; /* owned; why it disconnects, in a turn of its own */
    uint64_t last_gang;   /* the last that we sent a message for */
    uint64_t lost_gang;   /* the same, when a session broke */
    bool is_broken;       /* a session broke, and ours is not open again */
    int64_t redial_ns;    /* when to dial again */
    char *address;        /* owned; "": it accepts no peers */
    char *handshake_name; /* owned */
    char name[];
};

/* A large piece that is being written to another worker. */
typedef struct peer_write {
    delivery_t delivery;
    tow_list_t in_worker;
    tow_worker_t *worker;
    tow_transfer_write_t *write;
} peer_write_t;

static peer_t *find_peer(const tow_worker_t *worker, uint32_t process)
{
    return tow_map_find(&worker->peers, process);
}

/* -- Sessions with peers --------------------------------------------------- */

static void peer_session_closed(void *context)
{
    peer_session_t *peer_session = context;
    tow_worker_t *worker = peer_session->worker;
    tow_list_remove(&peer_session->in_worker);
    TOW_ASSERT(worker->peer_session_count > 0);
    worker->peer_session_count--;
    tow_free(peer_session);
    worker_settle(worker);
}

static void close_peer_session(peer_session_t *peer_session,
                               tow_status_t reason)
{
    if (peer_session->is_closing) return;
    peer_session->is_closing = true;
    if (peer_session->is_ours) {
        peer_t *peer = find_peer(peer_session->worker, peer_session->process);
        if (peer != NULL && peer->session == peer_session) peer->session = NULL;
    }
    tow_session_close(peer_session->session, reason,
                      (tow_closed_t){peer_session_closed, peer_session});
}

static peer_session_t *make_peer_session(tow_worker_t *worker)
{
    peer_session_t *peer_session = tow_calloc(1, sizeof(*peer_session));
    if (peer_session == NULL) return NULL;
    peer_session->worker = worker;
    tow_list_append(&worker->peer_sessions, &peer_session->in_worker);
    worker->peer_session_count++;
    return peer_session;
}

static void unmake_peer_session(peer_session_t *peer_session)
{
    tow_list_remove(&peer_session->in_worker);
    peer_session->worker->peer_session_count--;
    tow_free(peer_session);
}

/* -- Disconnecting a peer -------------------------------------------------- */

static void discard_queued(peer_t *peer)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&peer->outbox)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, queued_message_t, in_outbox));
    peer->outbox_bytes = 0;
}

static void close_peer_sessions(tow_worker_t *worker, uint32_t process,
                                tow_status_t reason)
{
    const tow_list_t *head = &worker->peer_sessions;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        peer_session_t *peer_session =
            TOW_CONTAINER_OF(at, peer_session_t, in_worker);
        if (peer_session->process == process &&
            (peer_session->is_ours || peer_session->has_opened))
            close_peer_session(peer_session, reason);
    }
}

static void cut_writes(tow_worker_t *worker, uint32_t process)
{
    const tow_list_t *head = &worker->peer_writes;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        const tow_transfer_write_t *write =
            TOW_CONTAINER_OF(at, peer_write_t, in_worker)->write;
        if (write->process == process)
            worker_lane_cut(worker, &write->target->lane_address);
    }
}

static bool has_open_session(const tow_worker_t *worker, uint32_t process)
{
    const tow_list_t *head = &worker->peer_sessions;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        const peer_session_t *peer_session =
            TOW_CONTAINER_OF(at, peer_session_t, in_worker);
        if (peer_session->process == process && peer_session->is_accepted &&
            !peer_session->is_closing)
            return true;
    }
    return false;
}

/* Queued messages are lost, and the peer must learn of it. */
static void redial_later(tow_worker_t *worker, peer_t *peer)
{
    if (has_open_session(worker, peer->process) && peer->address[0] != '\0') {
        peer->is_broken = true;
        peer->lost_gang = peer->last_gang;
    }
    if (!peer->is_broken) return;
    peer->redial_ns = tow_env_now_ns(worker->env) + TOW_WORKER_PEER_REDIAL_NS;
    if (!tow_timer_is_armed(&worker->peer_redial))
        tow_env_timer_start(worker->env, &worker->peer_redial, peer->redial_ns);
}

/* The code with which a session ended concerns only its two ends: it was ended
 * before (NOT_FOUND), or the peer may not connect any more (ALREADY_EXISTS).
 * For transfers the peer is UNAVAILABLE. */
static tow_status_t disconnect_status(tow_status_t cause)
{
    switch (tow_status_code(cause)) {
    case TOW_ABORTED:
    case TOW_CANCELLED:
    case TOW_DATA_LOSS:
    case TOW_UNAVAILABLE: return tow_status_retain(cause);
    default: return TOW_ERROR(TOW_UNAVAILABLE, "%s", tow_status_message(cause));
    }
}

/* Ends every operation with it. */
static void disconnect(tow_worker_t *worker, uint32_t process,
                       tow_status_t cause)
{
    peer_t *peer = find_peer(worker, process);
    tow_status_t told = disconnect_status(cause);
    if (peer != NULL) {
        discard_queued(peer);
        tow_status_release(peer->disconnect_cause);
        peer->disconnect_cause = TOW_OK;
        redial_later(worker, peer);
        told = tow_status_annotate(told, "worker %s", peer->name);
    }
    tow_log(&worker->env->log, TOW_LOG_INFO, "peer disconnected",
            TOW_F_U64("process", process), TOW_F_STATUS("cause", told));
    close_peer_sessions(worker, process, cause);
    cut_writes(worker, process);
    tow_transfer_engine_on_peer_disconnect(worker->transfer_engine, process,
                                           told);
    tow_status_release(told);
    worker_relay_on_peer_disconnect(worker, process);
}

static void on_peer_timer(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, peer_timer);
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        peer_t *peer = value;
        if (peer->disconnect_cause == TOW_OK) continue;
        tow_status_t cause = tow_status_retain(peer->disconnect_cause);
        disconnect(worker, peer->process, cause);
        tow_status_release(cause);
    }
    for (size_t i = 0; i < worker->unknown_peers.count; i++) {
        tow_status_t cause =
            TOW_ERROR(TOW_NOT_FOUND, "it is not a worker of this cluster");
        tow_transfer_engine_on_peer_disconnect(
            worker->transfer_engine, worker->unknown_peers.items[i], cause);
        worker_relay_on_peer_disconnect(worker, worker->unknown_peers.items[i]);
        tow_status_release(cause);
    }
    worker->unknown_peers.count = 0;
}

static void wake_soon(tow_worker_t *worker)
{
    if (!tow_timer_is_armed(&worker->peer_timer))
        tow_env_timer_start(worker->env, &worker->peer_timer,
                            tow_env_now_ns(worker->env));
}

/* In a turn of its own: the transfer engine may be sending right now. */
static void disconnect_soon(tow_worker_t *worker, peer_t *peer,
                            tow_status_t take_cause)
{
    if (peer->disconnect_cause != TOW_OK) {
        tow_status_ignore(take_cause, "it disconnects for another reason");
        return;
    }
    peer->disconnect_cause = take_cause;
    wake_soon(worker);
}

static void disconnect_unknown(tow_worker_t *worker, uint32_t process)
{
    const size_t count = worker->unknown_peers.count;
    if (count > 0 && worker->unknown_peers.items[count - 1] == process) return;
    if (!tow_vec_push(&worker->unknown_peers, process))
        worker_end_session_soon(worker,
                                tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    wake_soon(worker);
}

/* -- Sending --------------------------------------------------------------- */

static void queue_message(tow_worker_t *worker, peer_t *peer, uint32_t type,
                          const tow_body_t *body)
{
    const size_t size = tow_message_size(body);
    queued_message_t *queued = NULL;
    if (peer->outbox_bytes + size <= TOW_WORKER_PEER_OUTBOX_BYTES_MAX)
        queued = tow_malloc(sizeof(*queued) + size);
    if (queued == NULL) {
        disconnect_soon(
            worker, peer,
            TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                      "its send queue is full: %zu bytes queued and %zu "
                      "more, limit %u",
                      peer->outbox_bytes, size,
                      TOW_WORKER_PEER_OUTBOX_BYTES_MAX));
        return;
    }
    queued->type = type;
    queued->size = (uint32_t)size;
    tow_message_encode(body, queued->bytes);
    tow_list_append(&peer->outbox, &queued->in_outbox);
    peer->outbox_bytes += size;
}

/* False: the session is full. */
static bool send_queued(peer_t *peer, queued_message_t *queued)
{
    uint8_t *room;
    tow_session_t *session = peer->session->session;
    const tow_send_result_t result =
        tow_session_begin(session, queued->size, &room);
    if (result != TOW_SEND_OK) return false; /* Down: an event follows. */
    if (queued->size > 0) memcpy(room, queued->bytes, queued->size);
    tow_session_commit(session, queued->type, queued->size);
    TOW_ASSERT(peer->outbox_bytes >= queued->size);
    peer->outbox_bytes -= queued->size;
    tow_list_remove(&queued->in_outbox);
    tow_free(queued);
    return true;
}

static void flush(peer_t *peer)
{
    while (!tow_list_is_empty(&peer->outbox))
        if (!send_queued(peer, TOW_CONTAINER_OF(peer->outbox.next,
                                                queued_message_t, in_outbox)))
            return;
}

static void send_open(peer_session_t *peer_session)
{
    tow_msg_peer_open_t open = TOW_MSG_PEER_OPEN_INIT;
    open.cluster = peer_session->worker->cluster;
    open.process = peer_session->worker->options.process;
    if (peer_session->is_ours)
        open.lost =
            find_peer(peer_session->worker, peer_session->process)->lost_gang;
    const tow_send_result_t result = tow_session_send(
        peer_session->session, TOW_MESSAGE_PEER_OPEN, &open.base);
    TOW_ASSERT(result != TOW_SEND_FULL); /* It is the first message. */
}

static const tow_session_handler_t peer_session_handler;

static tow_status_t dial(tow_worker_t *worker, peer_t *peer)
{
    if (peer->address[0] == '\0')
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "it has no address for other workers");
    peer_session_t *peer_session = make_peer_session(worker);
    if (peer_session == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    peer_session->process = peer->process;
    peer_session->is_ours = true;
    const tow_session_dial_options_t options = {
        .address = peer->address,
        .expected_name = peer->handshake_name,
        .is_announced = true,
        .limits = worker->options.limits.session,
        .handler = &peer_session_handler,
        .context = peer_session,
    };
    tow_status_t status =
        tow_session_dial(worker->env, &options, &peer_session->session);
    if (status != TOW_OK) {
        unmake_peer_session(peer_session);
        return status;
    }
    peer->session = peer_session;
    return TOW_OK;
}

static void on_peer_redial(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, peer_redial);
    const int64_t now_ns = tow_env_now_ns(worker->env);
    int64_t next_ns = TOW_TIME_NEVER;
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        peer_t *peer = value;
        if (!peer->is_broken || peer->session != NULL) continue;
        if (peer->redial_ns > now_ns) {
            if (peer->redial_ns < next_ns) next_ns = peer->redial_ns;
            continue;
        }
        tow_status_t status = dial(worker, peer);
        if (status != TOW_OK) disconnect_soon(worker, peer, status);
    }
    if (next_ns != TOW_TIME_NEVER)
        tow_env_timer_start(worker->env, &worker->peer_redial, next_ns);
}

/* Once a session is accepted, the peer would learn of its end, and fail the
 * transfers that wait for us; before, only we know. */
tow_transfer_sent_t worker_peer_send(void *context, uint32_t process,
                                     uint32_t type, const tow_body_t *body)
{
    tow_worker_t *worker = context;
    peer_t *peer = find_peer(worker, process);
    if (TOW_UNLIKELY(peer == NULL)) {
        disconnect_unknown(worker, process);
        return TOW_TRANSFER_WAITS;
    }
    if (TOW_UNLIKELY(peer->disconnect_cause != TOW_OK))
        return TOW_TRANSFER_WAITS;
    if (TOW_LIKELY(type == TOW_MESSAGE_EDGE_PIECE)) {
        const uint64_t gang = ((const tow_msg_edge_piece_t *)body)->gang;
        if (gang > peer->last_gang) peer->last_gang = gang;
    } else if (type == TOW_MESSAGE_EDGE_SIZE) {
        const uint64_t gang = ((const tow_msg_edge_size_t *)body)->gang;
        if (gang > peer->last_gang) peer->last_gang = gang;
    }
    const peer_session_t *peer_session = peer->session;
    const bool is_open = peer_session != NULL && peer_session->is_accepted;
    if (TOW_LIKELY(is_open) && TOW_LIKELY(tow_list_is_empty(&peer->outbox)) &&
        TOW_LIKELY(tow_session_send(peer_session->session, type, body) !=
                   TOW_SEND_FULL))
        return TOW_TRANSFER_SENT; /* Or down: an event follows. */
    queue_message(worker, peer, type, body);
    if (is_open) return TOW_TRANSFER_SENT;
    if (peer->session != NULL || peer->disconnect_cause != TOW_OK)
        return TOW_TRANSFER_WAITS;
    tow_status_t status = dial(worker, peer);
    if (status != TOW_OK) disconnect_soon(worker, peer, status);
    return TOW_TRANSFER_WAITS;
}

/* -- Accepting peers ------------------------------------------------------- */

static tow_status_t check_identity(const peer_session_t *peer_session)
{
    const tow_worker_t *worker = peer_session->worker;
    if (peer_session->cluster != worker->cluster)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "process %u is of cluster %016" PRIx64
                         ", process %u of %016" PRIx64,
                         peer_session->process, peer_session->cluster,
                         worker->options.process, worker->cluster);
    if (peer_session->process == worker->options.process)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "two workers have process number %u",
                         peer_session->process);
    return TOW_OK;
}

/* The controller may not have announced it yet. */
static void accept_peer(peer_session_t *peer_session)
{
    tow_worker_t *worker = peer_session->worker;
    tow_status_t status = check_identity(peer_session);
    if (status != TOW_OK) {
        tow_log(
            &worker->env->log, TOW_LOG_WARN, "peer refused",
            TOW_F_STR("peer", tow_session_peer(peer_session->session)->name),
            TOW_F_STATUS("cause", status));
        close_peer_session(peer_session, status);
        tow_status_release(status);
        return;
    }
    const tow_list_t *head = &worker->peer_sessions;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        peer_session_t *older = TOW_CONTAINER_OF(at, peer_session_t, in_worker);
        if (older->is_ours || !older->is_accepted || older->is_closing ||
            older->process != peer_session->process)
            continue;
        /* It has disconnected us, and we did not know. */
        peer_session->has_opened = false; /* Not this one. */
        tow_status_t lost = TOW_ERROR(TOW_ABORTED, "it has connected again");
        disconnect(worker, peer_session->process, lost);
        tow_status_release(lost);
        peer_session->has_opened = true;
        break;
    }
    TOW_ASSERT(peer_session->has_opened && !peer_session->is_closing);
    peer_session->is_accepted = true;
    if (peer_session->lost > 0)
        tow_transfer_engine_on_peer_reconnect(
            worker->transfer_engine, peer_session->process, peer_session->lost);
    send_open(peer_session);
}

static tow_status_t take_open(peer_session_t *peer_session,
                              const tow_msg_peer_open_t *open)
{
    tow_worker_t *worker = peer_session->worker;
    if (peer_session->has_opened)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "a second time");
    peer_session->has_opened = true;
    peer_session->cluster = open->cluster;
    peer_session->lost = open->lost;
    if (!peer_session->is_ours) {
        peer_session->process = open->process;
        if (worker_is_joined(worker))
            accept_peer(peer_session); /* Otherwise when we have joined. */
        return TOW_OK;
    }
    if (open->process != peer_session->process)
        return TOW_ERROR(TOW_ABORTED,
                         "process %u is at its address, not process %u",
                         open->process, peer_session->process);
    TOW_RETURN_IF_ERROR(check_identity(peer_session));
    TOW_ASSERT(peer_session->has_opened && !peer_session->is_closing);
    peer_session->is_accepted = true;
    find_peer(worker, peer_session->process)->is_broken = false;
    flush(find_peer(worker, peer_session->process));
    tow_transfer_engine_on_peer_ready(worker->transfer_engine,
                                      peer_session->process);
    return TOW_OK;
}

static tow_status_t take_message(peer_session_t *peer_session,
                                 const tow_message_t *message)
{
    tow_worker_t *worker = peer_session->worker;
    const tow_body_t *body;
    tow_arena_reset(&worker->arena);
    TOW_RETURN_IF_ERROR(tow_message_decode(
        message->type, message->bytes, message->size, &worker->arena, &body));
    if (message->type == TOW_MESSAGE_PEER_OPEN)
        return take_open(peer_session, (const tow_msg_peer_open_t *)body);
    if (peer_session->is_accepted && !peer_session->is_ours) {
        if (TOW_LIKELY(message->type == TOW_MESSAGE_EDGE_PIECE))
            return tow_transfer_engine_on_piece(
                worker->transfer_engine, peer_session->process,
                (const tow_msg_edge_piece_t *)body);
        if (message->type == TOW_MESSAGE_EDGE_SIZE)
            return tow_transfer_engine_on_size(
                worker->transfer_engine, peer_session->process,
                (const tow_msg_edge_size_t *)body);
        if (message->type == TOW_MESSAGE_EDGE_OFFER)
            return tow_transfer_engine_on_offer(
                worker->transfer_engine, peer_session->process,
                (const tow_msg_edge_offer_t *)body);
        if (message->type == TOW_MESSAGE_FORWARDED_GRANT)
            return worker_relay_passed(worker, peer_session->process,
                                       (const tow_msg_forwarded_grant_t *)body);
        if (message->type == TOW_MESSAGE_FORWARDED_DONE)
            return worker_relay_passed_done(
                worker, peer_session->process,
                (const tow_msg_forwarded_done_t *)body);
    }
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "not a message for a worker, or not in this state");
}

/* -- Session events -------------------------------------------------------- */

static void end_peer_session(peer_session_t *peer_session, tow_status_t cause)
{
    if (peer_session->is_closing) return;
    if (peer_session->is_ours || peer_session->is_accepted)
        disconnect(peer_session->worker, peer_session->process, cause);
    close_peer_session(peer_session, cause);
}

static void on_peer_message(void *context, tow_session_t *session,
                            const tow_message_t *message)
{
    (void)session;
    TOW_TRACE(tow_message_type_name(message->type));
    peer_session_t *peer_session = context;
    tow_status_t status = take_message(peer_session, message);
    if (TOW_LIKELY(status == TOW_OK)) return;
    status =
        tow_status_annotate(status, "%s", tow_message_type_name(message->type));
    end_peer_session(peer_session, status);
    tow_status_release(status);
}

static void on_peer_opened(void *context, tow_session_t *session)
{
    (void)session;
    peer_session_t *peer_session = context;
    if (peer_session->is_ours) send_open(peer_session);
}

static void on_peer_writable(void *context, tow_session_t *session)
{
    (void)session;
    peer_session_t *peer_session = context;
    peer_t *peer = find_peer(peer_session->worker, peer_session->process);
    if (peer != NULL && peer->session == peer_session &&
        peer_session->is_accepted)
        flush(peer);
}

static void on_peer_session_end(void *context, tow_session_t *session,
                                tow_status_t cause)
{
    (void)session;
    end_peer_session(context, cause);
}

static const tow_session_handler_t peer_session_handler = {
    .opened = on_peer_opened,
    .message = on_peer_message,
    .writable = on_peer_writable,
    .disconnected = on_peer_session_end,
};

static void on_arrived(void *context, tow_session_t *session)
{
    tow_worker_t *worker = context;
    peer_session_t *peer_session =
        worker->state != TOW_WORKER_DRAINING && !worker->is_closing
            ? make_peer_session(worker)
            : NULL;
    if (peer_session == NULL) {
        tow_status_t status =
            TOW_ERROR(TOW_UNAVAILABLE, "this worker has not joined a cluster");
        tow_session_close(session, status, (tow_closed_t){0});
        tow_status_release(status);
        return;
    }
    peer_session->session = session;
    tow_session_accept(session, &peer_session_handler, peer_session);
}

/* -- Writing --------------------------------------------------------------- */

static void delivered(delivery_t *delivery, tow_status_t take_status)
{
    peer_write_t *peer_write =
        TOW_CONTAINER_OF(delivery, peer_write_t, delivery);
    tow_worker_t *worker = peer_write->worker;
    tow_transfer_write_t *write = peer_write->write;
    write->write.is_stranded = delivery->write.is_stranded;
    tow_list_remove(&peer_write->in_worker);
    tow_pool_give(&worker->peer_write_pool, peer_write);
    write->done(write, take_status);
}

static void lent(tow_write_t *write)
{
    const delivery_t *delivery = TOW_CONTAINER_OF(write, delivery_t, write);
    tow_transfer_write_t *of_engine =
        TOW_CONTAINER_OF(delivery, peer_write_t, delivery)->write;
    of_engine->shared(of_engine);
}

tow_status_t worker_peer_write(void *context, tow_transfer_write_t *write)
{
    tow_worker_t *worker = context;
    peer_write_t *peer_write = tow_pool_take(&worker->peer_write_pool);
    if (peer_write == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    peer_write->delivery =
        (delivery_t){.write = write->write, .done = delivered};
    peer_write->delivery.write.check = worker->options.check;
    if (write->shared != NULL) peer_write->delivery.write.shared = lent;
    peer_write->worker = worker;
    peer_write->write = write;
    tow_list_append(&worker->peer_writes, &peer_write->in_worker);
    tow_status_t status =
        worker_deliver(worker, write->target, &peer_write->delivery);
    if (status != TOW_OK) {
        tow_list_remove(&peer_write->in_worker);
        tow_pool_give(&worker->peer_write_pool, peer_write);
    }
    return status;
}

/* -- Messages of the controller -------------------------------------------- */

tow_status_t worker_peer_add(tow_worker_t *worker,
                             const tow_msg_peer_t *message)
{
    const size_t name_size = strlen(message->name) + 1;
    peer_t *peer = tow_calloc(1, sizeof(*peer) + name_size);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    peer->process = message->process;
    tow_list_init(&peer->outbox);
    memcpy(peer->name, message->name, name_size);
    peer->address = tow_strdup(message->listen_address);
    peer->handshake_name =
        tow_strdup(message->handshake_name[0] != '\0' ? message->handshake_name
                                                      : message->name);
    if (peer->address != NULL && peer->handshake_name != NULL &&
        tow_map_put(&worker->peers, peer->process, peer))
        return TOW_OK;
    tow_free(peer->handshake_name);
    tow_free(peer->address);
    tow_free(peer);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static void free_peer(peer_t *peer)
{
    discard_queued(peer);
    tow_status_release(peer->disconnect_cause);
    tow_free(peer->handshake_name);
    tow_free(peer->address);
    tow_free(peer);
}

bool worker_peer_remove(tow_worker_t *worker, uint32_t process,
                        tow_status_t cause)
{
    peer_t *peer = find_peer(worker, process);
    if (peer == NULL) return false;
    disconnect(worker, process, cause);
    tow_map_remove(&worker->peers, process);
    free_peer(peer);
    return true;
}

void worker_peers_joined(tow_worker_t *worker)
{
    const tow_list_t *head = &worker->peer_sessions;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        peer_session_t *peer_session =
            TOW_CONTAINER_OF(at, peer_session_t, in_worker);
        if (peer_session->has_opened && !peer_session->is_closing)
            accept_peer(peer_session);
    }
}

/* -- Opening and closing --------------------------------------------------- */

tow_status_t worker_peers_open(tow_worker_t *worker, const char *address)
{
    tow_list_init(&worker->peer_sessions);
    tow_list_init(&worker->peer_writes);
    tow_pool_init(&worker->peer_write_pool, sizeof(peer_write_t), 0);
    worker->peer_timer.fire = on_peer_timer;
    worker->peer_redial.fire = on_peer_redial;
    if (address == NULL) return TOW_OK;
    return tow_session_listen(worker->env,
                              &(tow_session_listen_options_t){
                                  .carries_lanes = true,
                                  .address = address,
                                  .limits = worker->options.limits.session,
                                  .arrived = on_arrived,
                                  .context = worker},
                              &worker->port);
}

const char *worker_peers_listen_address(const tow_worker_t *worker)
{
    return worker->port != NULL ? tow_session_port_address(worker->port) : "";
}

/* The session with the controller has ended. The runs abort their transfers. */
void worker_peer_sessions_on_disconnect(tow_worker_t *worker,
                                        tow_status_t cause)
{
    tow_env_timer_stop(worker->env, &worker->peer_timer);
    tow_env_timer_stop(worker->env, &worker->peer_redial);
    worker->unknown_peers.count = 0;
    const tow_list_t *head = &worker->peer_sessions;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        close_peer_session(TOW_CONTAINER_OF(at, peer_session_t, in_worker),
                           cause);
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        tow_map_remove(&worker->peers, process);
        free_peer(value);
    }
}

static void port_closed(void *context)
{
    tow_worker_t *worker = context;
    worker->is_port_closing = false;
    worker_settle(worker);
}

void worker_peers_close(tow_worker_t *worker)
{
    if (worker->port == NULL) return;
    tow_session_port_t *port = worker->port;
    worker->port = NULL;
    worker->is_port_closing = true;
    tow_session_port_close(port, (tow_closed_t){port_closed, worker});
}

void worker_peers_discard(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->peer_sessions)) != NULL) {
        peer_session_t *peer_session =
            TOW_CONTAINER_OF(item, peer_session_t, in_worker);
        tow_session_discard(peer_session->session);
        tow_free(peer_session);
    }
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value))
        free_peer(value);
    tow_session_port_discard(worker->port);
    worker->port = NULL;
}

void worker_peers_free(tow_worker_t *worker)
{
    tow_vec_deinit(&worker->unknown_peers);
    tow_pool_deinit(&worker->peer_write_pool);
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_peer(const tow_worker_t *worker, const peer_t *peer)
{
    size_t bytes = 0;
    const tow_list_t *head = &peer->outbox;
    for (const tow_list_t *at = head->next; at != head; at = at->next)
        bytes += TOW_CONTAINER_OF(at, queued_message_t, in_outbox)->size;
    TOW_INVARIANT(bytes == peer->outbox_bytes);
    TOW_INVARIANT(bytes <= TOW_WORKER_PEER_OUTBOX_BYTES_MAX);
    TOW_INVARIANT(peer->lost_gang <= peer->last_gang);
    TOW_INVARIANT(peer->disconnect_cause == TOW_OK ||
                  tow_timer_is_armed(&worker->peer_timer));
    if (peer->session == NULL) return TOW_OK;
    TOW_INVARIANT(peer->session->worker == worker);
    TOW_INVARIANT(peer->session->process == peer->process);
    TOW_INVARIANT(peer->session->is_ours && !peer->session->is_closing);
    return TOW_OK;
}

tow_status_t worker_peers_check(const tow_worker_t *worker)
{
    const tow_list_t *head = &worker->peer_sessions;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const peer_session_t *peer_session =
            TOW_CONTAINER_OF(at, peer_session_t, in_worker);
        TOW_INVARIANT(peer_session->worker == worker &&
                      peer_session->session != NULL);
        TOW_INVARIANT(peer_session->has_opened || !peer_session->is_accepted);
    }
    TOW_INVARIANT(tow_list_length(head) == worker->peer_session_count);
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        TOW_INVARIANT(((const peer_t *)value)->process == process);
        TOW_RETURN_IF_ERROR(check_peer(worker, value));
    }
    TOW_INVARIANT(tow_map_count(&worker->peers) <= TOW_WORKER_PEER_COUNT_MAX);
    TOW_INVARIANT(worker->unknown_peers.count == 0 ||
                  tow_timer_is_armed(&worker->peer_timer));
    return TOW_OK;
}
