/* Loopback connections: both ends are links of one net, in a process that dials
 * itself, such as the only worker of a cluster with an embedded controller.
 *
 * There is no socket. The phases, including the handshake, are the usual ones,
 * but a reader takes whole chunks out of the other end's send queue, in a task
 * of its own. So a message costs no system call and no wakeup. */
#include <stdio.h>

#include "env/net/connection.h"

static void pair(tow_net_link_t *link, tow_net_link_t *loopback_peer)
{
    link->is_loopback = true;
    link->loopback_peer = loopback_peer;
}

bool tow_net_loopback_dial(tow_net_link_t *link)
{
    if (link->target.kind == TOW_ADDRESS_TLS || link->trunk != NULL)
        return false;
    tow_net_listener_t *listener =
        tow_net_listener_find(link->net, &link->target);
    if (listener == NULL) return false;
    char peer[TOW_ADDRESS_TEXT_MAX + 64];
    snprintf(peer, sizeof(peer), "%s (this process)", link->address);
    tow_net_link_t *accepted = tow_net_listener_add_link(listener, peer);
    if (accepted == NULL) {
        tow_net_connection_fail(link, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return true;
    }
    pair(link, accepted);
    pair(accepted, link);
    tow_net_connection_start(link);
    /* No callback has run, so it is still there. */
    tow_net_connection_start(accepted);
    return true;
}

void tow_net_loopback_notify(tow_net_link_t *link)
{
    if (link->loopback_peer != NULL && link->queue.bytes > 0)
        tow_net_defer(link->net, &link->loopback_peer->again);
}

void tow_net_loopback_disconnect(tow_net_link_t *link)
{
    tow_net_link_t *loopback_peer = link->loopback_peer;
    link->is_loopback = false;
    link->loopback_peer = NULL;
    if (loopback_peer == NULL) return;
    loopback_peer->loopback_peer = NULL;
    tow_net_defer(link->net, &loopback_peer->again);
}

/* Takes everything that the other end has queued. Its owner may be waiting for
 * space: the queue is empty now, and `writable` follows at the end of the
 * pass. */
static tow_net_queue_t take_queue(tow_net_link_t *loopback_peer)
{
    tow_net_queue_t taken = loopback_peer->queue;
    TOW_ASSERT(taken.begun == NULL);
    loopback_peer->queue = (tow_net_queue_t){.chunks = taken.chunks};
    tow_net_connection_mark_dirty(loopback_peer);
    return taken;
}

bool tow_net_loopback_read(tow_net_link_t *link)
{
    if (link->loopback_peer == NULL) {
        tow_net_connection_read_end(link);
        return true;
    }
    if (link->loopback_peer->queue.bytes == 0) {
        tow_net_connection_read_dry(link);
        return false;
    }
    tow_net_queue_t taken = take_queue(link->loopback_peer);
    link->has_received = true;
    for (tow_net_chunk_t *chunk = taken.first; chunk != NULL;
         chunk = chunk->next)
        tow_net_connection_take(link,
                                (tow_net_input_t){chunk->bytes + chunk->begin,
                                                  chunk->end - chunk->begin});
    tow_net_queue_clear(&taken);
    /* The next read must find the queue empty to handle these. */
    if (link->has_shut_down || link->failure != TOW_OK)
        tow_net_defer(link->net, &link->again);
    return true;
}
