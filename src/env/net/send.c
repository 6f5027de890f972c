/* Writing: from the queue, through TLS if used, into the socket until it is
 * full. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "env/net/connection.h"

#define READ_EVENTS (EPOLLIN | EPOLLRDHUP)
/* Chunks per system call: 512 KiB of them at the usual size. */
#define PIECE_COUNT_MAX 8

void tow_net_connection_mark_dirty(tow_net_link_t *link)
{
    if (tow_list_is_empty(&link->dirty))
        tow_list_append(&link->net->dirty, &link->dirty);
}

/* Requests EPOLLOUT only from a full socket until an empty queue; otherwise
 * every message that the peer reads would wake the loop for nothing. */
void tow_net_connection_want_room(tow_net_link_t *link, bool wants_room)
{
    if (link->wants_room == wants_room) return;
    link->wants_room = wants_room;
    tow_net_source_change(link->net, &link->source,
                          READ_EVENTS | (wants_room ? EPOLLOUT : 0));
}

/* Writing has failed. Input received before may explain why, so the link reads
 * to the end and reports the failure there. */
void tow_net_connection_break(tow_net_link_t *link, tow_status_t take_failure)
{
    if (link->failure != TOW_OK) {
        tow_status_release(take_failure); /* The first cause is kept. */
        return;
    }
    link->failure = take_failure;
    tow_net_queue_clear(&link->queue);
    tow_net_defer(link->net, &link->again);
}

/* Only EAGAIN stops: after a send that was short for another reason, no edge
 * would follow. */
bool tow_net_connection_note_sent(tow_net_link_t *link, ssize_t sent)
{
    if (TOW_LIKELY(sent >= 0)) {
        link->net->stats.bytes_written += (uint64_t)sent;
        link->net->stats.write_count++;
        return true;
    }
    if (errno == EINTR) return true;
    if (errno == EAGAIN) {
        link->waits_for_room = true;
        tow_net_connection_want_room(link, true);
    } else {
        tow_net_connection_break(
            link, TOW_ERRNO(errno, "%s: sending", link->address));
    }
    return false;
}

static void flush_plain(tow_net_link_t *link)
{
    while (link->queue.bytes > 0) {
        struct iovec pieces[PIECE_COUNT_MAX];
        struct msghdr message = {.msg_iov = pieces};
        message.msg_iovlen =
            tow_net_queue_peek(&link->queue, pieces, PIECE_COUNT_MAX);
        ssize_t sent = sendmsg(link->source.fd, &message, MSG_NOSIGNAL);
        if (!tow_net_connection_note_sent(link, sent)) return;
        if (sent > 0) tow_net_queue_consume(&link->queue, (size_t)sent);
    }
    tow_net_connection_want_room(link, false);
}

/* Encrypts the next piece of the queue; false on failure. */
static bool encrypt_some(tow_net_link_t *link)
{
    struct iovec piece;
    if (tow_net_queue_peek(&link->queue, &piece, 1) == 0) return true;
    if (piece.iov_len > TOW_NET_TLS_RECORD_BYTES)
        piece.iov_len = TOW_NET_TLS_RECORD_BYTES;
    tow_status_t status =
        tow_tls_write(link->tls, piece.iov_base, piece.iov_len);
    if (status != TOW_OK) {
        tow_net_connection_break(link, status);
        return false;
    }
    tow_net_queue_consume(&link->queue, piece.iov_len);
    return true;
}

static void flush_tls(tow_net_link_t *link)
{
    for (;;) {
        const uint8_t *cipher;
        if (tow_tls_drain_pending(link->tls) == 0 && !encrypt_some(link))
            return;
        const size_t count = tow_tls_peek(link->tls, &cipher);
        if (count == 0) break;
        ssize_t sent = send(link->source.fd, cipher, count, MSG_NOSIGNAL);
        if (!tow_net_connection_note_sent(link, sent)) return;
        if (sent > 0) tow_tls_drained(link->tls, (size_t)sent);
    }
    tow_net_connection_want_room(link, false);
}

void tow_net_connection_flush(tow_net_link_t *link)
{
    if (link->phase < TOW_NET_TLS || link->waits_for_room ||
        link->failure != TOW_OK)
        return;
    if (link->is_loopback)
        tow_net_loopback_notify(link);
    else if (link->tls != NULL)
        flush_tls(link);
    else
        flush_plain(link);
}

/* Whether the socket has taken everything. */
static bool is_flushed(const tow_net_link_t *link)
{
    return link->queue.bytes == 0 && !link->waits_for_room &&
           (link->tls == NULL || tow_tls_drain_pending(link->tls) == 0);
}

/* The socket of a closing link has taken everything: shuts down our side. */
static void shut_down(tow_net_link_t *link)
{
    if (link->tls != NULL) { /* TLS sends a close_notify first. */
        tow_tls_shutdown(link->tls);
        tow_net_connection_flush(link);
    }
    if (!link->is_loopback) shutdown(link->source.fd, SHUT_WR);
    link->has_shut_down = true;
    tow_net_defer(link->net, &link->again);
}

/* Flushes, then does what depends on it. Calls `writable`. */
static void flush_and_go_on(tow_net_link_t *link)
{
    tow_net_connection_flush(link);
    if (link->failure != TOW_OK) return; /* The next read reports it. */
    if (link->phase == TOW_NET_LINGERING && !link->has_shut_down &&
        is_flushed(link))
        shut_down(link);
    if (link->trunk != NULL && link->phase == TOW_NET_UP)
        tow_data_trunk_writable(link->trunk);
    if (link->phase == TOW_NET_UP && link->was_full &&
        link->queue.bytes <= TOW_LINK_QUEUE_BYTES_MAX / 2) {
        link->was_full = false;
        if (link->link.handler->writable != NULL)
            link->link.handler->writable(link->link.context, &link->link);
    }
}

void tow_net_connection_flush_dirty(tow_list_t *dirty)
{
    flush_and_go_on(TOW_CONTAINER_OF(dirty, tow_net_link_t, dirty));
}
