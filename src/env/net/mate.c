/* A connection whose two ends are links of one net: a process that dials itself,
 * as the only worker of a cluster does that has the controller within.
 *
 * There is no socket. All phases are as elsewhere, the handshake too; but what
 * one end has queued the other takes out of its queue, whole chunks of it, in a
 * task of its own. So a message costs no system call and wakes nobody. */
#include <stdio.h>

#include "env/net/connection.h"

static void pair(tow_net_link_t *link, tow_net_link_t *mate)
{
    link->is_mated = true;
    link->mate = mate;
}

bool tow_net_mate_dial(tow_net_link_t *link)
{
    if (link->target.kind == TOW_ADDRESS_TLS) return false;
    tow_net_listener_t *listener =
        tow_net_listener_find(link->net, &link->target);
    if (listener == NULL) return false;
    char peer[TOW_ADDRESS_TEXT_MAX + 64];
    snprintf(peer, sizeof(peer), "%s (this process)", link->address);
    tow_net_link_t *accepted = tow_net_listener_take_in(listener, peer);
    if (accepted == NULL) {
        tow_net_connection_fail(link, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return true;
    }
    pair(link, accepted);
    pair(accepted, link);
    tow_net_connection_start(link);
    /* No callback has run that could have ended it. */
    tow_net_connection_start(accepted);
    return true;
}

void tow_net_mate_tell(tow_net_link_t *link)
{
    if (link->mate != NULL && link->queue.bytes > 0)
        tow_net_defer(link->net, &link->mate->again);
}

void tow_net_mate_part(tow_net_link_t *link)
{
    tow_net_link_t *mate = link->mate;
    link->is_mated = false;
    link->mate = NULL;
    if (mate == NULL) return;
    mate->mate = NULL;
    tow_net_defer(link->net, &mate->again);
}

/* Takes all that the other end has sent. Its owner may be waiting for that: the
 * queue is empty now, and it hears of it at the end of the pass. */
static tow_net_queue_t take_queue(tow_net_link_t *mate)
{
    tow_net_queue_t taken = mate->queue;
    TOW_ASSERT(taken.begun == NULL);
    mate->queue = (tow_net_queue_t){.chunks = taken.chunks};
    tow_net_connection_mark_dirty(mate);
    return taken;
}

bool tow_net_mate_read(tow_net_link_t *link)
{
    if (link->mate == NULL) {
        tow_net_connection_read_end(link);
        return true;
    }
    if (link->mate->queue.bytes == 0) {
        tow_net_connection_read_dry(link);
        return false;
    }
    tow_net_queue_t taken = take_queue(link->mate);
    link->has_spoken = true;
    for (tow_net_chunk_t *chunk = taken.first; chunk != NULL;
         chunk = chunk->next)
        tow_net_connection_take(link,
                                (tow_net_input_t){chunk->bytes + chunk->begin,
                                                  chunk->end - chunk->begin});
    tow_net_queue_clear(&taken);
    /* Then it has to be found dry, too. */
    if (link->has_shut_down || link->failure != TOW_OK)
        tow_net_defer(link->net, &link->again);
    return true;
}
