/* Control links. An epoch connects two ends, one in each node; each sends
 * straight into the other's inbox, through the channel between their hosts.
 * When the epoch breaks, the ends are disconnected immediately and each is
 * notified in its own time. */
#include <string.h>

#include "base/hash.h"
#include "env/sim/sim_impl.h"
#include "wire/frame.h"

/* -- Memory --------------------------------------------------------------- */

tow_sim_link_t *tow_sim_link_create(tow_sim_node_t *node)
{
    tow_sim_link_t *link = tow_pool_take(&node->sim->links);
    if (link == NULL) return NULL;
    memset(link, 0, sizeof(*link));
    link->base.env = &node->env;
    link->base.state = TOW_LINK_DIALLING;
    link->source =
        (tow_sim_source_t){.perform = tow_sim_link_perform, .node = node};
    link->peer_index = EVENT_NO_NODE;
    link->pin_count = 1; /* The owner's, until it has learned of the end. */
    tow_list_init(&link->by_channel);
    tow_list_append(&node->links, &link->by_node);
    return link;
}

static void try_free(tow_sim_t *sim, tow_sim_link_t *link)
{
    if (link->pin_count > 0 || link->source.scheduled) return;
    TOW_ASSERT(link->dead && link->inbox_first == NULL);
    tow_free(link->address);
    tow_free(link->expected_name);
    tow_pool_give(&sim->links, link);
}

void tow_sim_link_unpin(tow_sim_t *sim, tow_sim_link_t *link)
{
    TOW_ASSERT(link->pin_count > 0);
    link->pin_count--;
    try_free(sim, link);
}

/* -- Epochs --------------------------------------------------------------- */

static void enter_epoch(tow_sim_link_t *link, tow_sim_link_t *remote,
                        tow_sim_channel_t *out)
{
    link->remote = remote;
    link->out = out;
    link->peer_index = tow_sim_link_node(remote)->index;
    link->inbox_ended = false;
    link->unacknowledged_bytes = link->taken_bytes = 0;
    link->wants_writable = false;
    tow_list_append(&out->links, &link->by_channel);
}

static void leave_epoch(tow_sim_link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    tow_sim_inbox_clear(link);
    tow_list_remove(&link->by_channel);
    if (link->writing != NULL) tow_sim_item_free(sim, link->writing);
    link->writing = NULL;
}

static bool announce(tow_sim_link_t *link, tow_sim_link_t *remote,
                     int64_t time_ns)
{
    tow_sim_node_t *peer = tow_sim_link_node(remote);
    tow_sim_t *sim = peer->sim;
    tow_sim_item_t *item = tow_sim_item_create(sim, ITEM_UP, 0);
    if (item == NULL) return false;
    item->up.peer = peer;
    item->up.incarnation = peer->incarnation;
    tow_sim_inbox_take(sim, link, item, time_ns);
    return true;
}

bool tow_sim_link_connect(tow_sim_link_t *dialled, tow_sim_link_t *accepted)
{
    tow_sim_node_t *near = tow_sim_link_node(accepted);
    tow_sim_node_t *far = tow_sim_link_node(dialled);
    tow_sim_t *sim = near->sim;
    tow_sim_channel_t *out = tow_sim_channel(sim, near->host, far->host);
    if (out == NULL) return false;
    enter_epoch(accepted, dialled, out);
    enter_epoch(dialled, accepted, out->reverse);
    return announce(accepted, dialled, sim->now_ns) &&
           announce(dialled, accepted, tow_sim_channel_trip(sim, out));
}

tow_sim_link_t *tow_sim_link_disconnect(tow_sim_link_t *link)
{
    tow_sim_link_t *remote = link->remote;
    link->remote = NULL;
    if (remote != NULL) remote->remote = NULL;
    return remote;
}

void tow_sim_link_end_at(tow_sim_link_t *link, int64_t time_ns,
                         tow_status_t take_cause)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    tow_sim_item_t *item = tow_sim_item_create(sim, ITEM_DOWN, 0);
    if (item == NULL) {
        tow_status_ignore(take_cause, "the run has failed: out of memory");
        return;
    }
    item->cause = take_cause;
    tow_sim_inbox_take(sim, link, item, time_ns);
}

void tow_sim_link_end_remote(tow_sim_link_t *link, const char *what)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    tow_sim_channel_t *out = link->out;
    tow_sim_link_t *remote = tow_sim_link_disconnect(link);
    if (remote == NULL || tow_sim_channel_is_cut(out)) return;
    tow_sim_link_end_at(remote, tow_sim_channel_trip(node->sim, out),
                        TOW_ERROR(TOW_UNAVAILABLE, "%s %s", node->name, what));
}

void tow_sim_link_kill(tow_sim_link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    if (link->base.state == TOW_LINK_CLOSING) return;
    tow_sim_dial_discard(link);
    tow_sim_link_end_remote(link, "died");
    leave_epoch(link);
    tow_list_remove(&link->by_node);
    link->dead = true;
    tow_sim_link_unpin(sim, link);
}

void tow_sim_link_healed(tow_sim_link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    if (tow_sim_channel_is_cut(link->out->reverse)) return;
    tow_sim_inbox_release_stalled(link);
    if (tow_sim_channel_is_cut(link->out)) return;
    tow_sim_link_take_bytes(sim, link, 0);
    if (link->remote == NULL && !link->inbox_ended)
        tow_sim_link_end_at(link, tow_sim_channel_trip(sim, link->out->reverse),
                            TOW_ERROR(TOW_UNAVAILABLE,
                                      "%s knows nothing of the link any more",
                                      link->base.peer.name));
}

/* -- Receiving ------------------------------------------------------------ */

static void record(tow_sim_t *sim, const tow_sim_link_t *link,
                   tow_sim_event_kind_t kind, const tow_message_t *message,
                   uint64_t content)
{
    tow_sim_record(sim,
                   &(tow_sim_event_t){.time_ns = sim->now_ns,
                                      .kind = kind,
                                      .node = tow_sim_link_node(link)->index,
                                      .peer = link->peer_index,
                                      .type = message->type,
                                      .size = message->size,
                                      .content = content});
}

static void deliver_bytes(tow_sim_t *sim, tow_sim_link_t *link,
                          const tow_message_t *message)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    sim->counts.messages_delivered++;
    record(sim, link, EVENT_MESSAGE, message,
           tow_hash_bytes(message->bytes, message->size, 0));
    tow_sim_link_take_bytes(sim, link,
                            TOW_FRAME_HEADER_SIZE + (uint64_t)message->size);
    tow_sim_turn_begin(node, tow_sim_receive_cost(node, message->size));
    link->base.handler->message(link->base.context, &link->base, message);
    tow_sim_turn_end(node);
}

static void redial_later(tow_sim_t *sim, tow_sim_link_t *link)
{
    int64_t delay_ns = link->dial_delay_ns;
    link->dial_delay_ns = delay_ns * 2 < TOW_DIAL_DELAY_MAX_NS
                              ? delay_ns * 2
                              : TOW_DIAL_DELAY_MAX_NS;
    uint64_t half = (uint64_t)delay_ns / 2;
    delay_ns = (int64_t)(half + tow_random_below(&sim->random, half + 1));
    tow_sim_item_t *item = tow_sim_item_create(sim, ITEM_REDIAL, 0);
    if (item != NULL)
        tow_sim_inbox_take(sim, link, item, sim->now_ns + delay_ns);
}

/* The epoch or the attempt has ended for this end. */
static void go_down(tow_sim_t *sim, tow_sim_link_t *link, tow_status_t cause)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    bool was_up = link->base.state == TOW_LINK_UP;
    bool dials = link->address != NULL;
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = EVENT_DOWN,
                                           .node = node->index,
                                           .peer = link->peer_index,
                                           .type = was_up,
                                           .size = link->base.peer.epoch,
                                           .content = tow_status_code(cause)});
    if (link->remote != NULL) tow_sim_link_end_remote(link, "gave up the link");
    leave_epoch(link);
    if (was_up) {
        sim->counts.epochs_broken++;
        if (sim->now_ns - link->up_since_ns >= TOW_DIAL_STABLE_NS)
            link->dial_delay_ns = TOW_DIAL_DELAY_MIN_NS;
    }
    link->base.state = dials ? TOW_LINK_DIALLING : TOW_LINK_FINISHED;
    link->inbox_ended = !dials;
    if (dials) redial_later(sim, link);
    tow_sim_turn_begin(node, 0);
    link->base.handler->down(link->base.context, &link->base, cause);
    tow_sim_turn_end(node);
}

/* The real frame parser examines the damage. A size field that grew makes it
 * wait for bytes of the next frames; then the checksum fails. */
static void deliver_damaged(tow_sim_t *sim, tow_sim_link_t *link,
                            tow_sim_item_t *item)
{
    tow_frame_t frame;
    size_t needed = 0;
    tow_status_t error = TOW_OK;
    tow_frame_result_t result =
        tow_frame_parse(tow_sim_item_bytes(item), item->size,
                        TOW_MESSAGE_SIZE_MAX, &frame, &needed, &error);
    if (result == TOW_FRAME_READY) { /* Undetectable. */
        deliver_bytes(sim, link,
                      &(tow_message_t){.type = frame.type,
                                       .size = frame.size,
                                       .bytes = frame.payload});
        return;
    }
    sim->counts.messages_lost++;
    if (error == TOW_OK || tow_status_code(error) != TOW_DATA_LOSS) {
        tow_status_release(error);
        error = TOW_ERROR(TOW_DATA_LOSS, "a damaged frame from %s",
                          link->base.peer.name);
    }
    go_down(sim, link, error);
    tow_status_release(error);
}

static void go_up(tow_sim_t *sim, tow_sim_link_t *link,
                  const tow_sim_item_t *item)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    tow_peer_t *peer = &link->base.peer;
    snprintf(peer->name, sizeof(peer->name), "%s", item->up.peer->name);
    peer->incarnation = item->up.incarnation;
    peer->features = node->features & item->up.peer->features;
    peer->epoch++;
    link->base.state = TOW_LINK_UP;
    link->up_since_ns = sim->now_ns;
    sim->counts.epochs_begun++;
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = EVENT_UP,
                                           .node = node->index,
                                           .peer = item->up.peer->index,
                                           .size = peer->epoch,
                                           .content = peer->incarnation});
    tow_sim_turn_begin(node, 0);
    link->base.handler->up(link->base.context, &link->base);
    tow_sim_turn_end(node);
}

static void deliver(tow_sim_t *sim, tow_sim_link_t *link, tow_sim_item_t *item)
{
    switch (item->kind) {
    case ITEM_MESSAGE:
        deliver_bytes(sim, link,
                      &(tow_message_t){.type = item->type,
                                       .size = item->size,
                                       .bytes = tow_sim_item_bytes(item)});
        break;
    case ITEM_DAMAGED: deliver_damaged(sim, link, item); break;
    case ITEM_UP: go_up(sim, link, item); break;
    case ITEM_DOWN: go_down(sim, link, item->cause); break;
    case ITEM_REDIAL: tow_sim_dial(link); break;
    }
    tow_sim_item_free(sim, item);
}

int64_t tow_sim_link_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_link_t *link = TOW_CONTAINER_OF(source, tow_sim_link_t, source);
    tow_sim_item_t *item = link->dead ? NULL : link->inbox_first;
    if (item != NULL && item->time_ns <= sim->now_ns)
        deliver(sim, link, tow_sim_inbox_pop(link));
    tow_sim_item_t *next = link->inbox_first;
    if (next != NULL && next->time_ns != TOW_TIME_NEVER)
        return next->time_ns > sim->now_ns ? next->time_ns : sim->now_ns;
    tow_sim_source_rest(source);
    try_free(sim, link);
    return TOW_TIME_NEVER;
}

/* -- Closing -------------------------------------------------------------- */

static void release_closed(tow_sim_t *sim,
                           tow_sim_pending_close_t *pending_close)
{
    tow_sim_link_t *link =
        TOW_CONTAINER_OF(pending_close, tow_sim_link_t, pending_close);
    tow_sim_link_unpin(sim, link);
}

void tow_sim_link_close(tow_link_t *base, tow_closed_t closed)
{
    tow_sim_link_t *link = (tow_sim_link_t *)base;
    tow_sim_node_t *node = tow_sim_link_node(link);
    TOW_ASSERT(base->state != TOW_LINK_CLOSING && link->writing == NULL);
    base->state = TOW_LINK_CLOSING;
    tow_sim_dial_discard(link);
    if (link->remote != NULL) {
        tow_sim_item_t *end = tow_sim_item_create(node->sim, ITEM_DOWN, 0);
        if (end != NULL) {
            end->cause =
                TOW_ERROR(TOW_UNAVAILABLE, "%s closed the link", node->name);
            tow_sim_link_send_item(link, end);
        }
    }
    leave_epoch(link);
    link->dead = link->inbox_ended = true;
    tow_list_remove(&link->by_node);
    link->pending_close =
        (tow_sim_pending_close_t){.release = release_closed, .closed = closed};
    tow_sim_close_later(node, &link->pending_close);
}
