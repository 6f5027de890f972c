/* Invariants of a net and of its links, queues and inboxes. */
#include "env/net/connection.h"

void tow_net_queue_check(const tow_net_queue_t *queue)
{
    size_t bytes = 0;
    const tow_net_chunk_t *last = NULL;
    for (const tow_net_chunk_t *chunk = queue->first; chunk != NULL;
         chunk = chunk->next) {
        TOW_ASSERT(chunk->begin <= chunk->end);
        TOW_ASSERT(chunk->end <= chunk->capacity);
        TOW_ASSERT(chunk != queue->begun);
        bytes += chunk->end - chunk->begin;
        last = chunk;
    }
    TOW_ASSERT(bytes == queue->bytes);
    TOW_ASSERT(last == NULL || last == queue->last);
}

void tow_net_inbox_check(const tow_net_inbox_t *inbox)
{
    TOW_ASSERT(inbox->count <= inbox->capacity);
    TOW_ASSERT((inbox->bytes == NULL) == (inbox->capacity == 0));
}

static void check_idle(const tow_net_link_t *link)
{
    TOW_ASSERT(link->source.fd < 0 && link->peer_fd < 0);
    TOW_ASSERT(!link->is_loopback && link->queue.bytes == 0);
    TOW_ASSERT(link->handshake == NULL && link->tls == NULL);
    TOW_ASSERT(link->failure == TOW_OK);
    TOW_ASSERT(tow_list_is_empty(&link->dirty));
}

static void check_loopback(const tow_net_link_t *link)
{
    const tow_net_link_t *peer = link->loopback_peer;
    TOW_ASSERT(!link->is_loopback || link->source.fd < 0);
    if (peer == NULL) return;
    TOW_ASSERT(link->is_loopback && peer->is_loopback);
    TOW_ASSERT(peer->loopback_peer == link && peer->net == link->net);
}

void tow_net_link_check(const tow_net_link_t *link)
{
    const bool is_half_open = !tow_list_is_empty(&link->half_open);
    const bool has_epoch =
        link->phase == TOW_NET_UP || link->phase == TOW_NET_AWAITING_EXIT;
    TOW_ASSERT(link->link.state != TOW_LINK_UP || has_epoch);
    TOW_ASSERT((link->phase == TOW_NET_RESOLVING) == (link->resolve != NULL));
    TOW_ASSERT(link->handshake == NULL || link->phase == TOW_NET_HANDSHAKE ||
               link->phase == TOW_NET_LINGERING);
    TOW_ASSERT(link->side == TOW_SIDE_LISTENER || !is_half_open);
    TOW_ASSERT(!is_half_open || !link->is_exposed);
    TOW_ASSERT(link->side == TOW_SIDE_DIALLER ||
               (link->phase != TOW_NET_RESOLVING &&
                link->phase != TOW_NET_CONNECTING));
    check_loopback(link);
    if (link->phase == TOW_NET_IDLE) check_idle(link);
}

static size_t check_links(const tow_net_t *net)
{
    size_t half_open_count = 0, count = 0;
    const tow_list_t *item = net->links.next;
    for (; item != &net->links; item = item->next, count++) {
        const tow_net_link_t *link =
            TOW_CONTAINER_OF(item, const tow_net_link_t, all);
        tow_net_link_check(link);
        tow_net_queue_check(&link->queue);
        tow_net_inbox_check(&link->inbox);
        half_open_count += !tow_list_is_empty(&link->half_open);
    }
    TOW_ASSERT(half_open_count == net->stats.half_open_count);
    return count;
}

void tow_net_check(const tow_net_t *net)
{
    TOW_ASSERT(!net->is_turning);
    TOW_ASSERT(check_links(net) <= net->hold_count);
    TOW_ASSERT(!net->is_closed || (net->is_closing && net->hold_count == 0));
    TOW_ASSERT(net->stats.half_open_count <= TOW_NET_HALF_OPEN_MAX);
    tow_timer_heap_check(&net->timers);
}
