/* Control links. An epoch joins two ends, one in each node; each sends straight
 * into the other's inbox, through the channel between their hosts. When the
 * epoch breaks, the ends part at once and each is told in its own time. */
#include <string.h>

#include "base/hash.h"
#include "env/sim/sim_impl.h"
#include "wire/frame.h"

/* -- Memory --------------------------------------------------------------- */

link_t *tow_sim_link_create(tow_sim_node_t *node)
{
    link_t *link = tow_pool_take(&node->sim->links);
    if (link == NULL) return NULL;
    memset(link, 0, sizeof(*link));
    link->base.env = &node->env;
    link->base.state = TOW_LINK_DIALLING;
    link->source = (source_t){.perform = tow_sim_link_perform, .node = node};
    link->peer_index = EVENT_NO_NODE;
    link->pin_count = 1; /* Its owner: until it has been told of the end. */
    tow_list_init(&link->by_channel);
    tow_list_append(&node->links, &link->by_node);
    return link;
}

static void try_free(tow_sim_t *sim, link_t *link)
{
    if (link->pin_count > 0 || link->source.scheduled) return;
    TOW_ASSERT(link->dead && link->inbox_first == NULL);
    tow_free(link->address);
    tow_free(link->expected_name);
    tow_pool_give(&sim->links, link);
}

void tow_sim_link_unpin(tow_sim_t *sim, link_t *link)
{
    TOW_ASSERT(link->pin_count > 0);
    link->pin_count--;
    try_free(sim, link);
}

/* -- Epochs --------------------------------------------------------------- */

static void enter_epoch(link_t *link, link_t *remote, channel_t *out)
{
    link->remote = remote;
    link->out = out;
    link->peer_index = tow_sim_link_node(remote)->index;
    link->inbox_ended = false;
    link->unacknowledged_bytes = link->taken_bytes = 0;
    link->wants_writable = false;
    tow_list_append(&out->links, &link->by_channel);
}

static void leave_epoch(link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    tow_sim_inbox_clear(link);
    tow_list_remove(&link->by_channel);
    if (link->writing != NULL) tow_sim_item_free(sim, link->writing);
    link->writing = NULL;
}

static bool announce(link_t *link, link_t *remote, int64_t time_ns)
{
    tow_sim_node_t *peer = tow_sim_link_node(remote);
    tow_sim_t *sim = peer->sim;
    item_t *item = tow_sim_item_create(sim, ITEM_UP, 0);
    if (item == NULL) return false;
    item->up.peer = peer;
    item->up.incarnation = peer->incarnation;
    tow_sim_inbox_take(sim, link, item, time_ns);
    return true;
}

bool tow_sim_link_join(link_t *dialled, link_t *accepted)
{
    tow_sim_node_t *near = tow_sim_link_node(accepted);
    tow_sim_node_t *far = tow_sim_link_node(dialled);
    tow_sim_t *sim = near->sim;
    channel_t *out = tow_sim_channel(sim, near->host, far->host);
    if (out == NULL) return false;
    enter_epoch(accepted, dialled, out);
    enter_epoch(dialled, accepted, out->reverse);
    return announce(accepted, dialled, sim->now_ns) &&
           announce(dialled, accepted, tow_sim_channel_trip(sim, out));
}

link_t *tow_sim_link_part(link_t *link)
{
    link_t *remote = link->remote;
    link->remote = NULL;
    if (remote != NULL) remote->remote = NULL;
    return remote;
}

void tow_sim_link_end_at(link_t *link, int64_t time_ns, tow_status_t take_cause)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    item_t *item = tow_sim_item_create(sim, ITEM_DOWN, 0);
    if (item == NULL) {
        tow_status_ignore(take_cause, "the run has failed for want of memory");
        return;
    }
    item->cause = take_cause;
    tow_sim_inbox_take(sim, link, item, time_ns);
}

/* Tells the other end, if the way there is free; else healing or silence
 * will. */
static void end_remote(link_t *link, const char *what)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    channel_t *out = link->out;
    link_t *remote = tow_sim_link_part(link);
    if (remote == NULL || tow_sim_channel_is_cut(out)) return;
    tow_sim_link_end_at(remote, tow_sim_channel_trip(node->sim, out),
                        TOW_ERROR(TOW_UNAVAILABLE, "%s %s", node->name, what));
}

void tow_sim_link_kill(link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    if (link->base.state == TOW_LINK_CLOSING) return;
    tow_sim_dial_abandon(link);
    end_remote(link, "died");
    leave_epoch(link);
    tow_list_remove(&link->by_node);
    link->dead = true;
    tow_sim_link_unpin(sim, link);
}

/* -- Sending -------------------------------------------------------------- */

static uint64_t bytes_max(const link_t *link)
{
    return tow_sim_link_node(link)->sim->options.link_bytes_max;
}

/* Both sides learn of it by silence. */
static void lose(tow_sim_t *sim, link_t *link, item_t *item)
{
    int64_t patience_ns = sim->options.patience.link_ns;
    tow_sim_node_t *node = tow_sim_link_node(link);
    link_t *remote = tow_sim_link_part(link);
    tow_sim_record(sim, &(event_t){.time_ns = sim->now_ns,
                                   .kind = EVENT_LOST,
                                   .node = node->index,
                                   .peer = tow_sim_link_node(remote)->index,
                                   .type = item->type,
                                   .size = item->size});
    sim->counts.messages_lost++;
    tow_sim_item_free(sim, item);
    tow_sim_link_end_at(link, sim->now_ns + patience_ns,
                        TOW_ERROR(TOW_UNAVAILABLE,
                                  "%s does not acknowledge what it was sent",
                                  tow_sim_link_node(remote)->name));
    tow_sim_link_end_at(
        remote, tow_sim_channel_trip(sim, link->out) + patience_ns,
        TOW_ERROR(TOW_UNAVAILABLE, "%s has gone silent", node->name));
}

/* Makes the message a frame as it would lie on the wire, and flips one bit. */
static item_t *damage(tow_sim_t *sim, item_t *item)
{
    uint32_t frame_size = TOW_FRAME_HEADER_SIZE + item->size;
    item_t *damaged = tow_sim_item_create(sim, ITEM_DAMAGED, frame_size);
    if (damaged == NULL) return item;
    uint8_t *frame = tow_sim_item_bytes(damaged);
    memcpy(frame + TOW_FRAME_HEADER_SIZE, tow_sim_item_bytes(item), item->size);
    tow_frame_seal(frame, (uint16_t)item->type, item->size);
    uint64_t bit = tow_random_below(&sim->random, 8ull * frame_size);
    frame[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    damaged->type = item->type;
    damaged->size = frame_size;
    tow_sim_item_free(sim, item);
    return damaged;
}

static void transmit(tow_sim_t *sim, link_t *link, item_t *item)
{
    channel_t *out = link->out;
    if (TOW_UNLIKELY(tow_sim_channel_is_cut(out))) {
        tow_sim_inbox_take(sim, link->remote, item, TOW_TIME_NEVER);
        return;
    }
    uint64_t size = TOW_FRAME_HEADER_SIZE + (uint64_t)item->size;
    if (item->kind == ITEM_MESSAGE) {
        if (tow_sim_chance(sim, out->path->loss_ppm)) {
            lose(sim, link, item);
            return;
        }
        if (tow_sim_chance(sim, out->path->corrupt_ppm))
            item = damage(sim, item);
    }
    int64_t arrival_ns = tow_sim_channel_transit(sim, out, size);
    tow_sim_inbox_take(sim, link->remote, item, arrival_ns);
}

/* A DOWN that is emitted is the end of the stream, behind all that was sent. */
static void emit_item(tow_sim_t *sim, emission_t *emission)
{
    item_t *item = TOW_CONTAINER_OF(emission, item_t, emission);
    link_t *link = item->link;
    item->link = NULL;
    bool is_end = item->kind == ITEM_DOWN;
    bool alive = tow_sim_link_node(link)->alive;
    if (link->remote != NULL && alive) {
        transmit(sim, link, item);
    } else {
        if (!is_end) sim->counts.messages_lost++;
        tow_sim_item_free(sim, item);
    }
    if (is_end && alive) tow_sim_link_part(link);
    if (is_end && !alive) end_remote(link, "died");
    tow_sim_link_unpin(sim, link);
}

static void send_item(link_t *link, item_t *item)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    item->link = link;
    link->pin_count++;
    item->emission.emit = emit_item;
    tow_sim_charge_send(node, item->size);
    tow_sim_emit(node, &item->emission);
}

/* When half is free any message fits, so that one of the largest size does not
 * wait for a credit that never comes. */
tow_send_result_t tow_sim_link_begin(tow_link_t *base, uint32_t size_max,
                                     uint8_t **out_bytes)
{
    link_t *link = (link_t *)base;
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    TOW_ASSERT(link->writing == NULL);
    uint64_t bound = bytes_max(link);
    uint64_t queued = link->unacknowledged_bytes;
    if (TOW_UNLIKELY(queued > bound / 2 &&
                     queued + TOW_FRAME_HEADER_SIZE + size_max > bound)) {
        link->wants_writable = true;
        return TOW_SEND_FULL;
    }
    item_t *item = tow_sim_item_create(sim, ITEM_MESSAGE, size_max);
    if (item == NULL) return TOW_SEND_DOWN;
    link->writing = item;
    *out_bytes = tow_sim_item_bytes(item);
    return TOW_SEND_OK;
}

void tow_sim_link_commit(tow_link_t *base, uint32_t type, uint32_t size)
{
    link_t *link = (link_t *)base;
    item_t *item = link->writing;
    TOW_ASSERT(item != NULL && size <= item->capacity);
    link->writing = NULL;
    item->type = type;
    item->size = size;
    link->unacknowledged_bytes += TOW_FRAME_HEADER_SIZE + size;
    send_item(link, item);
}

/* -- Credit --------------------------------------------------------------- */

/* On its way back to the sender: so many bytes have been taken. */
typedef struct credit {
    source_t source;
    link_t *link; /* pinned */
    uint64_t bytes;
    uint64_t epoch;
} credit_t;

size_t tow_sim_credit_bytes(void)
{
    return sizeof(credit_t);
}

static void call_writable(tow_sim_t *sim, link_t *link)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    link->wants_writable = false;
    tow_sim_record(sim, &(event_t){.time_ns = sim->now_ns,
                                   .kind = EVENT_WRITABLE,
                                   .node = node->index,
                                   .peer = EVENT_NO_NODE,
                                   .size = link->unacknowledged_bytes});
    if (link->base.handler->writable == NULL) return;
    tow_sim_turn_begin(node, 0);
    link->base.handler->writable(link->base.context, &link->base);
    tow_sim_turn_end(node);
}

/* Credit arrives in the kernel, so to speak; only if somebody waits for it does
 * it become a turn. */
static int64_t credit_perform(tow_sim_t *sim, source_t *source)
{
    credit_t *credit = TOW_CONTAINER_OF(source, credit_t, source);
    link_t *link = credit->link;
    bool valid = !link->dead && link->base.state == TOW_LINK_UP &&
                 link->base.peer.epoch == credit->epoch;
    if (valid) {
        TOW_ASSERT(link->unacknowledged_bytes >= credit->bytes);
        link->unacknowledged_bytes -= credit->bytes;
        credit->bytes = 0;
        bool due = link->wants_writable &&
                   link->unacknowledged_bytes <= bytes_max(link) / 2;
        if (due && source->node == NULL) {
            source->node = tow_sim_link_node(link);
            return sim->now_ns;
        }
        if (due) call_writable(sim, link);
    }
    tow_sim_link_unpin(sim, link);
    tow_pool_give(&sim->credits, credit);
    return TOW_TIME_NEVER;
}

static void give_credit(tow_sim_t *sim, link_t *link)
{
    link_t *remote = link->remote;
    credit_t *credit = tow_pool_take(&sim->credits);
    if (credit == NULL) {
        tow_sim_out_of_memory(sim);
        return;
    }
    *credit = (credit_t){.source = {.perform = credit_perform},
                         .link = remote,
                         .bytes = link->taken_bytes,
                         .epoch = remote->base.peer.epoch};
    link->taken_bytes = 0;
    remote->pin_count++;
    tow_sim_schedule_source(sim, &credit->source,
                            tow_sim_channel_trip(sim, link->out));
}

static void take_bytes(tow_sim_t *sim, link_t *link, uint64_t size)
{
    link->taken_bytes += size;
    if (link->taken_bytes < bytes_max(link) / TOW_SIM_CREDIT_SHARE) return;
    if (link->remote != NULL && !tow_sim_channel_is_cut(link->out))
        give_credit(sim, link);
}

void tow_sim_link_healed(link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    if (tow_sim_channel_is_cut(link->out->reverse)) return;
    tow_sim_inbox_release_stalled(link);
    if (tow_sim_channel_is_cut(link->out)) return;
    take_bytes(sim, link, 0);
    if (link->remote == NULL && !link->inbox_ended)
        tow_sim_link_end_at(link, tow_sim_channel_trip(sim, link->out->reverse),
                            TOW_ERROR(TOW_UNAVAILABLE,
                                      "%s knows nothing of the link any more",
                                      link->base.peer.name));
}

/* -- Receiving ------------------------------------------------------------ */

static void record(tow_sim_t *sim, const link_t *link, event_kind_t kind,
                   const tow_message_t *message, uint64_t content)
{
    tow_sim_record(sim, &(event_t){.time_ns = sim->now_ns,
                                   .kind = kind,
                                   .node = tow_sim_link_node(link)->index,
                                   .peer = link->peer_index,
                                   .type = message->type,
                                   .size = message->size,
                                   .content = content});
}

static void deliver_bytes(tow_sim_t *sim, link_t *link,
                          const tow_message_t *message)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    sim->counts.messages_delivered++;
    record(sim, link, EVENT_MESSAGE, message,
           tow_hash_bytes(message->bytes, message->size, 0));
    take_bytes(sim, link, TOW_FRAME_HEADER_SIZE + (uint64_t)message->size);
    tow_sim_turn_begin(node, tow_sim_receive_cost(node, message->size));
    link->base.handler->message(link->base.context, &link->base, message);
    tow_sim_turn_end(node);
}

static void redial_later(tow_sim_t *sim, link_t *link)
{
    int64_t delay_ns = link->dial_delay_ns;
    link->dial_delay_ns = delay_ns * 2 < TOW_DIAL_DELAY_MAX_NS
                              ? delay_ns * 2
                              : TOW_DIAL_DELAY_MAX_NS;
    uint64_t half = (uint64_t)delay_ns / 2;
    delay_ns = (int64_t)(half + tow_random_below(&sim->random, half + 1));
    item_t *item = tow_sim_item_create(sim, ITEM_REDIAL, 0);
    if (item != NULL)
        tow_sim_inbox_take(sim, link, item, sim->now_ns + delay_ns);
}

/* The epoch or the attempt is over for this end. */
static void go_down(tow_sim_t *sim, link_t *link, tow_status_t cause)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    bool was_up = link->base.state == TOW_LINK_UP;
    bool dials = link->address != NULL;
    tow_sim_record(sim, &(event_t){.time_ns = sim->now_ns,
                                   .kind = EVENT_DOWN,
                                   .node = node->index,
                                   .peer = link->peer_index,
                                   .type = was_up,
                                   .size = link->base.peer.epoch,
                                   .content = tow_status_code(cause)});
    if (link->remote != NULL) end_remote(link, "gave up the link");
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

/* The receiver's own code looks at the damage. A size field that grew makes it
 * wait for bytes that belong to the next frames; then the checksum tells. */
static void deliver_damaged(tow_sim_t *sim, link_t *link, item_t *item)
{
    tow_frame_t frame;
    size_t needed = 0;
    tow_status_t error = TOW_OK;
    tow_frame_result_t result =
        tow_frame_parse(tow_sim_item_bytes(item), item->size,
                        TOW_MESSAGE_SIZE_MAX, &frame, &needed, &error);
    if (result == TOW_FRAME_READY) { /* Nobody can tell. */
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

static void go_up(tow_sim_t *sim, link_t *link, const item_t *item)
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
    tow_sim_record(sim, &(event_t){.time_ns = sim->now_ns,
                                   .kind = EVENT_UP,
                                   .node = node->index,
                                   .peer = item->up.peer->index,
                                   .size = peer->epoch,
                                   .content = peer->incarnation});
    tow_sim_turn_begin(node, 0);
    link->base.handler->up(link->base.context, &link->base);
    tow_sim_turn_end(node);
}

static void deliver(tow_sim_t *sim, link_t *link, item_t *item)
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

int64_t tow_sim_link_perform(tow_sim_t *sim, source_t *source)
{
    link_t *link = TOW_CONTAINER_OF(source, link_t, source);
    item_t *item = link->dead ? NULL : link->inbox_first;
    if (item != NULL && item->time_ns <= sim->now_ns)
        deliver(sim, link, tow_sim_inbox_pop(link));
    item_t *next = link->inbox_first;
    if (next != NULL && next->time_ns != TOW_TIME_NEVER)
        return next->time_ns > sim->now_ns ? next->time_ns : sim->now_ns;
    tow_sim_source_rest(source);
    try_free(sim, link);
    return TOW_TIME_NEVER;
}

/* -- Closing -------------------------------------------------------------- */

static void release_closed(tow_sim_t *sim, closure_t *closure)
{
    link_t *link = TOW_CONTAINER_OF(closure, link_t, closure);
    tow_sim_link_unpin(sim, link);
}

void tow_sim_link_close(tow_link_t *base, tow_closed_t closed)
{
    link_t *link = (link_t *)base;
    tow_sim_node_t *node = tow_sim_link_node(link);
    TOW_ASSERT(base->state != TOW_LINK_CLOSING && link->writing == NULL);
    base->state = TOW_LINK_CLOSING;
    tow_sim_dial_abandon(link);
    if (link->remote != NULL) {
        item_t *end = tow_sim_item_create(node->sim, ITEM_DOWN, 0);
        if (end != NULL) {
            end->cause =
                TOW_ERROR(TOW_UNAVAILABLE, "%s closed the link", node->name);
            send_item(link, end);
        }
    }
    leave_epoch(link);
    link->dead = link->inbox_ended = true;
    tow_list_remove(&link->by_node);
    link->closure = (closure_t){.release = release_closed, .closed = closed};
    tow_sim_close_later(node, &link->closure);
}
