/* The phases of a connection once it has a socket, and reading. */
#include "env/net/connection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/socket.h"

const char *tow_net_phase_name(tow_net_phase_t phase)
{
    switch (phase) {
    case TOW_NET_IDLE: return "idle";
    case TOW_NET_RESOLVING: return "resolving the name";
    case TOW_NET_CONNECTING: return "connecting";
    case TOW_NET_TLS: return "in the TLS handshake";
    case TOW_NET_HANDSHAKE: return "in the handshake";
    case TOW_NET_UP: return "up";
    case TOW_NET_LINGERING: return "closing";
    case TOW_NET_AWAITING_EXIT: return "broken";
    }
    return "?";
}

/* -- End of a connection -------------------------------------------------- */

static void leave_half_open(tow_net_link_t *link)
{
    if (tow_list_is_empty(&link->half_open)) return;
    tow_list_remove(&link->half_open);
    link->net->stats.half_open_count--;
}

/* All but the state, which the caller changes. */
static void check_discarded(const tow_net_link_t *link)
{
    TOW_ASSERT(link->source.fd < 0 && !link->is_loopback);
    TOW_ASSERT(link->loopback_peer == NULL && link->queue.bytes == 0);
    TOW_ASSERT(link->resolve == NULL && link->net->hot != link);
}

void tow_net_connection_discard(tow_net_link_t *link)
{
    tow_net_t *net = link->net;
    TOW_ASSERT(link->phase != TOW_NET_RESOLVING);
    if (net->hot == link) net->hot = NULL;
    if (link->is_loopback) tow_net_loopback_disconnect(link);
    tow_net_source_close(net, &link->source);
    if (link->peer_fd >= 0) close(link->peer_fd);
    link->peer_fd = -1;
    tow_env_timer_stop(&net->env, &link->timer);
    tow_list_remove(&link->again.list);
    tow_list_remove(&link->dirty);
    leave_half_open(link);
    tow_handshake_destroy(link->handshake);
    link->handshake = NULL;
    tow_tls_destroy(link->tls);
    link->tls = NULL;
    tow_net_inbox_clear(&link->inbox);
    tow_net_queue_clear(&link->queue);
    tow_status_release(link->failure);
    link->failure = TOW_OK;
    link->waits_for_room = link->wants_room = link->was_full = false;
    link->has_hung_up = link->has_shut_down = link->has_received = false;
    link->listener = NULL;
    link->phase = TOW_NET_IDLE;
    check_discarded(link);
}

static void log_rejected(tow_net_link_t *link, const char *event,
                         tow_status_t cause)
{
    tow_net_log_limited(&link->net->log_limiter, &link->net->env.log,
                        link->net->env.now_ns, event, link->address, cause);
}

/* A connection that failed before it had an owner. One that closed without
 * sending a byte is a probe whether the address is in use, such as our own
 * listeners make before they replace a socket file: not worth a warning. */
static void report_rejected(tow_net_link_t *link, bool had_received,
                            tow_status_t cause)
{
    link->net->stats.refused_count++;
    if (had_received || tow_status_code(cause) != TOW_UNAVAILABLE)
        log_rejected(link, "connection refused", cause);
    else
        tow_log(&link->net->env.log, TOW_LOG_DEBUG,
                "connection closed without data",
                TOW_F_STR("address", link->address));
}

static void fail_dialling(tow_net_link_t *link, bool was_up)
{
    const int64_t now_ns = link->net->env.now_ns;
    if (was_up && now_ns - link->up_ns >= TOW_DIAL_STABLE_NS)
        link->failure_count = 0;
    if (link->failure_count < UINT32_MAX) link->failure_count++;
    link->link.state = TOW_LINK_DIALLING;
    tow_net_dial_later(link);
}

/* The peer was a process of this host: waits for its exit, so that the end of
 * the connection and the exit are reported together. False if there is nothing
 * to wait for. */
static bool await_exit(tow_net_link_t *link, tow_status_t cause)
{
    tow_net_t *net = link->net;
    if (link->phase != TOW_NET_UP || link->peer_fd < 0 || !link->is_exposed ||
        link->link.state == TOW_LINK_CLOSING)
        return false;
    if (net->hot == link) net->hot = NULL;
    tow_net_source_close(net, &link->source);
    link->source.fd = link->peer_fd;
    link->peer_fd = -1;
    tow_status_t status = tow_net_source_open(net, &link->source, EPOLLIN);
    if (status != TOW_OK) {
        tow_status_ignore(status, "the exit stays unknown");
        return false;
    }
    tow_status_release(link->failure);
    link->failure = tow_status_retain(cause);
    link->phase = TOW_NET_AWAITING_EXIT;
    tow_env_timer_start(&net->env, &link->timer,
                        net->env.now_ns + TOW_NET_EXIT_WAIT_NS);
    tow_net_link_check(link);
    return true;
}

void tow_net_connection_exit_checked(tow_net_link_t *link, bool is_dead)
{
    tow_status_t cause = link->failure;
    link->failure = TOW_OK;
    link->link.peer.is_dead = is_dead;
    tow_net_connection_fail(link, cause);
}

void tow_net_connection_fail(tow_net_link_t *link, tow_status_t take_cause)
{
    if (await_exit(link, take_cause)) {
        tow_status_release(take_cause);
        return;
    }
    const bool was_up =
        link->phase == TOW_NET_UP || link->phase == TOW_NET_AWAITING_EXIT;
    const bool is_reported = link->phase == TOW_NET_LINGERING;
    const bool had_received = link->has_received;
    tow_net_connection_discard(link);
    if (link->link.state == TOW_LINK_CLOSING) {
        tow_net_link_finish(link);
    } else if (!link->is_exposed) {
        if (!is_reported) report_rejected(link, had_received, take_cause);
        tow_net_link_finish(link);
    } else {
        if (link->side == TOW_SIDE_DIALLER)
            fail_dialling(link, was_up);
        else
            link->link.state = TOW_LINK_FINISHED;
        tow_net_link_check(link);
        link->link.handler->down(link->link.context, &link->link, take_cause);
    }
    tow_status_release(take_cause);
}

void tow_net_connection_linger(tow_net_link_t *link)
{
    if (link->failure != TOW_OK) { /* Nothing can be sent. */
        tow_net_connection_discard(link);
        tow_net_link_finish(link);
        return;
    }
    link->phase = TOW_NET_LINGERING;
    tow_net_inbox_clear(&link->inbox);
    tow_env_timer_start(&link->net->env, &link->timer,
                        link->net->env.now_ns + TOW_NET_LINGER_NS);
    tow_net_connection_mark_dirty(link);
    tow_net_link_check(link);
}

/* -- The handshake -------------------------------------------------------- */

/* Rejects a peer and sends it the reason; the connection lingers so that the
 * peer can read it. */
static void refuse(tow_net_link_t *link)
{
    tow_status_t cause = tow_handshake_error(link->handshake);
    if (link->side == TOW_SIDE_DIALLER) {
        tow_net_connection_flush(link);
        tow_net_connection_fail(link, cause);
        return;
    }
    report_rejected(link, true, cause);
    tow_status_release(cause);
    tow_net_connection_linger(link);
}

/* Starts an epoch. */
static void become_up(tow_net_link_t *link)
{
    const tow_identity_t *peer = tow_handshake_peer(link->handshake);
    snprintf(link->link.peer.name, sizeof(link->link.peer.name), "%s",
             peer->name);
    link->link.peer.incarnation = peer->incarnation;
    link->link.peer.features = peer->features;
    link->link.peer.epoch++;
    link->link.peer.is_dead = false;
    if (link->target.kind == TOW_ADDRESS_UNIX && !link->is_loopback)
        link->peer_fd = tow_net_socket_peer_process(link->source.fd);
    tow_handshake_destroy(link->handshake);
    link->handshake = NULL;
    tow_env_timer_stop(&link->net->env, &link->timer);
    link->phase = TOW_NET_UP;
    link->up_ns = link->net->env.now_ns;
    if (link->side == TOW_SIDE_LISTENER) {
        leave_half_open(link);
        if (link->link.peer.features & TOW_FEATURE_LANES)
            tow_data_trunk_accept(link);
        else
            tow_net_listener_hand_over(link);
        if (link->link.state == TOW_LINK_CLOSING) return;
    }
    link->link.state = TOW_LINK_UP;
    tow_net_link_check(link);
    link->link.handler->up(link->link.context, &link->link);
}

/* Queues the output of the handshake; false when memory is exhausted. */
static bool pump_handshake(tow_net_link_t *link)
{
    const uint8_t *bytes;
    size_t count;
    tow_handshake_take_output(link->handshake, &bytes, &count);
    if (count == 0) return true;
    if (tow_net_queue_append(&link->queue, bytes, count) != TOW_NET_QUEUE_OK) {
        tow_net_connection_fail(link, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return false;
    }
    tow_net_connection_mark_dirty(link);
    return true;
}

static tow_status_t create_handshake(tow_net_link_t *link)
{
    tow_handshake_options_t options = {
        .side = link->side,
        .self = link->net->identity,
        .security = link->net->security,
        .expected_name = link->expected_name,
        .peer_address = link->address,
    };
    if (link->trunk != NULL || (link->listener != NULL &&
                                tow_net_listener_carries_lanes(link->listener)))
        options.self.features |= TOW_FEATURE_LANES;
    TOW_RETURN_IF_ERROR(
        tow_net_system_random(options.nonce, sizeof(options.nonce)));
    if (link->tls != NULL) {
        TOW_RETURN_IF_ERROR(tow_tls_binding(link->tls, options.binding));
        options.has_binding = true;
    }
    return tow_handshake_create(&options, &link->handshake);
}

static void start_handshake(tow_net_link_t *link)
{
    link->phase = TOW_NET_HANDSHAKE;
    tow_status_t status = create_handshake(link);
    if (status != TOW_OK) {
        tow_net_connection_fail(link, status);
        return;
    }
    (void)pump_handshake(link);
}

static tow_status_t start_tls(tow_net_link_t *link)
{
    tow_net_t *net = link->net;
    link->phase = TOW_NET_TLS;
    if (net->plain_bytes == NULL)
        net->plain_bytes = tow_malloc(TOW_NET_READ_BYTES);
    if (net->plain_bytes == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const bool checks_name = link->side == TOW_SIDE_DIALLER &&
                             !link->is_announced &&
                             tow_tls_context_checks_names(net->security->tls);
    const char *host = checks_name ? link->target.host : NULL;
    TOW_RETURN_IF_ERROR(
        tow_tls_create(net->security->tls, link->side, host, &link->tls));
    bool is_done;
    TOW_RETURN_IF_ERROR(tow_tls_handshake(link->tls, &is_done));
    tow_net_connection_mark_dirty(link);
    return TOW_OK;
}

void tow_net_connection_start(tow_net_link_t *link)
{
    if (!tow_timer_is_armed(&link->timer))
        tow_env_timer_start(&link->net->env, &link->timer,
                            link->net->env.now_ns + TOW_NET_HANDSHAKE_NS);
    if (link->target.kind != TOW_ADDRESS_TLS) {
        start_handshake(link);
        return;
    }
    tow_status_t status = start_tls(link);
    if (status != TOW_OK) tow_net_connection_fail(link, status);
}

/* -- Reading -------------------------------------------------------------- */

static void take_frames(tow_net_link_t *link, tow_net_input_t input)
{
    while (link->phase == TOW_NET_UP) {
        tow_frame_t frame;
        tow_status_t error = TOW_OK;
        tow_frame_result_t result = tow_net_inbox_next(
            &link->inbox, &input, TOW_MESSAGE_SIZE_MAX, &frame, &error);
        if (result == TOW_FRAME_PARTIAL) return;
        if (TOW_UNLIKELY(result == TOW_FRAME_BAD)) {
            error = tow_status_annotate(error, "%s", link->address);
            log_rejected(link, "bad frame", error);
            tow_net_connection_fail(link, error);
            return;
        }
        const tow_message_t message = {
            .type = frame.type, .size = frame.size, .bytes = frame.payload};
        link->link.handler->message(link->link.context, &link->link, &message);
    }
}

static void take_handshake(tow_net_link_t *link, tow_net_input_t input)
{
    size_t consumed = 0;
    tow_handshake_state_t state = tow_handshake_feed(
        link->handshake, input.bytes, input.count, &consumed);
    if (!pump_handshake(link) || state == TOW_HANDSHAKE_MORE) return;
    if (state == TOW_HANDSHAKE_FAILED) {
        refuse(link);
        return;
    }
    become_up(link);
    tow_net_connection_take(link,
                            (tow_net_input_t){.bytes = input.bytes + consumed,
                                              .count = input.count - consumed});
}

void tow_net_connection_take(tow_net_link_t *link, tow_net_input_t input)
{
    if (TOW_LIKELY(link->phase == TOW_NET_UP && link->trunk == NULL))
        take_frames(link, input);
    else if (link->phase == TOW_NET_UP)
        tow_data_trunk_take(link->trunk, input);
    else if (link->phase == TOW_NET_HANDSHAKE)
        take_handshake(link, input);
}

/* Processes the bytes that TLS has decrypted. */
static void take_decrypted(tow_net_link_t *link)
{
    while (link->phase == TOW_NET_HANDSHAKE || link->phase == TOW_NET_UP) {
        size_t count = 0;
        bool is_closed = false;
        tow_status_t status =
            tow_tls_read(link->tls, link->net->plain_bytes, TOW_NET_READ_BYTES,
                         &count, &is_closed);
        if (status != TOW_OK) {
            tow_net_connection_fail(
                link, tow_status_annotate(status, "%s", link->address));
            return;
        }
        if (count > 0)
            tow_net_connection_take(
                link, (tow_net_input_t){link->net->plain_bytes, count});
        else if (is_closed)
            tow_net_connection_read_end(link);
        else
            return;
    }
}

static void fail_tls(tow_net_link_t *link, tow_status_t take_status)
{
    tow_net_connection_flush(link); /* Sends the TLS alert. */
    tow_net_connection_fail(
        link, tow_status_annotate(take_status, "%s: %s", link->address,
                                  tow_net_phase_name(link->phase)));
}

static void take_cipher(tow_net_link_t *link, tow_net_input_t input)
{
    if (link->phase == TOW_NET_LINGERING) return;
    tow_status_t status = tow_tls_feed(link->tls, input.bytes, input.count);
    bool is_done = false;
    if (status == TOW_OK && link->phase == TOW_NET_TLS)
        status = tow_tls_handshake(link->tls, &is_done);
    if (status != TOW_OK) {
        fail_tls(link, status);
        return;
    }
    tow_net_connection_mark_dirty(link); /* TLS may have a reply. */
    if (is_done) start_handshake(link);
    take_decrypted(link);
}

static tow_status_t describe_end(tow_net_link_t *link)
{
    const size_t held = tow_net_inbox_held(&link->inbox);
    if (link->phase == TOW_NET_HANDSHAKE &&
        tow_handshake_end(link->handshake) == TOW_HANDSHAKE_FAILED)
        return tow_handshake_error(link->handshake);
    if (link->phase == TOW_NET_UP && held > 0)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "%s: the connection ended in the middle of a frame "
                         "(%zu of %zu bytes received)",
                         link->address, held, link->inbox.needed);
    if (link->phase == TOW_NET_UP)
        return TOW_ERROR(TOW_UNAVAILABLE, "%s: the peer closed the connection",
                         link->address);
    return TOW_ERROR(
        TOW_UNAVAILABLE,
        "%s: the peer closed the connection %s: see its log for the cause",
        link->address, tow_net_phase_name(link->phase));
}

void tow_net_connection_read_end(tow_net_link_t *link)
{
    tow_net_connection_fail(link, describe_end(link));
}

void tow_net_connection_read_dry(tow_net_link_t *link)
{
    if (link->failure != TOW_OK) {
        tow_status_t failure = link->failure;
        link->failure = TOW_OK;
        tow_net_connection_fail(link, failure);
    } else if (link->has_shut_down &&
               (link->target.kind == TOW_ADDRESS_UNIX || link->is_loopback)) {
        /* On a Unix socket, the bytes we sent are already in the peer's socket
         * and outlive ours. With TCP they may still be in flight, and a byte
         * that arrives for a closed socket would reset the connection and
         * discard them. */
        tow_net_connection_fail(link, TOW_OK);
    }
}

void tow_net_connection_read_failed(tow_net_link_t *link, int error)
{
    if (error == EINTR)
        tow_net_defer(link->net, &link->again);
    else if (error == EAGAIN)
        tow_net_connection_read_dry(link);
    else
        tow_net_connection_fail(link,
                                TOW_ERRNO(error, "%s: %s", link->address,
                                          tow_net_phase_name(link->phase)));
}

void tow_net_connection_note_received(tow_net_link_t *link, size_t count,
                                      size_t room)
{
    tow_net_t *net = link->net;
    net->stats.bytes_read += count;
    net->stats.read_count++;
    net->hot = link;
    link->has_received = true;
    /* A short read has emptied the socket. Otherwise there may be more, which
     * is read after the other sockets had their turn. */
    if (count == room || link->has_hung_up || link->failure != TOW_OK)
        tow_net_defer(net, &link->again);
}

ssize_t tow_net_connection_receive(tow_net_link_t *link, void *bytes,
                                   size_t room)
{
    const ssize_t count = recv(link->source.fd, bytes, room, 0);
    if (count < 0)
        tow_net_connection_read_failed(link, errno);
    else if (count == 0)
        tow_net_connection_read_end(link);
    else
        tow_net_connection_note_received(link, (size_t)count, room);
    return count;
}

bool tow_net_connection_read(tow_net_link_t *link)
{
    if (link->phase < TOW_NET_TLS || link->phase == TOW_NET_AWAITING_EXIT)
        return false;
    if (link->is_loopback) return tow_net_loopback_read(link);
    if (link->trunk != NULL && link->phase == TOW_NET_UP)
        return tow_data_trunk_read(link->trunk);
    tow_net_t *net = link->net;
    uint8_t *bytes = net->read_bytes;
    size_t room = 0;
    if (link->phase == TOW_NET_UP && link->tls == NULL)
        room = tow_net_inbox_room(&link->inbox, &bytes);
    const bool is_direct = room > 0;
    if (!is_direct) room = TOW_NET_READ_BYTES;

    const ssize_t count = tow_net_connection_receive(link, bytes, room);
    if (count <= 0) return count == 0;
    if (is_direct) {
        tow_net_inbox_added(&link->inbox, (size_t)count);
        take_frames(link, (tow_net_input_t){0});
    } else if (link->tls != NULL) {
        take_cipher(link, (tow_net_input_t){bytes, (size_t)count});
    } else {
        tow_net_connection_take(link, (tow_net_input_t){bytes, (size_t)count});
    }
    return true;
}
