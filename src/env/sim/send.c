/* Sending on a link, and the credit that the receiver returns.
 *
 * A message waits in the outbox until the turn that sent it has been charged,
 * then passes the channel into the inbox of the other end. Its bytes count
 * against the sender's bound until the receiver has consumed them and returned
 * credit. */
#include <string.h>

#include "env/sim/sim_impl.h"
#include "wire/frame.h"

/* -- Sending -------------------------------------------------------------- */

static uint64_t bytes_max(const tow_sim_link_t *link)
{
    return tow_sim_link_node(link)->sim->options.link_bytes_max;
}

/* Both sides detect it by timeout. */
static void lose(tow_sim_t *sim, tow_sim_link_t *link, tow_sim_item_t *item)
{
    int64_t patience_ns = sim->options.timeouts.link_ns;
    tow_sim_node_t *node = tow_sim_link_node(link);
    tow_sim_link_t *remote = tow_sim_link_disconnect(link);
    tow_sim_record(sim,
                   &(tow_sim_event_t){.time_ns = sim->now_ns,
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

/* Encodes the message as a real frame and flips one bit. */
static tow_sim_item_t *damage(tow_sim_t *sim, tow_sim_item_t *item)
{
    uint32_t frame_size = TOW_FRAME_HEADER_SIZE + item->size;
    tow_sim_item_t *damaged =
        tow_sim_item_create(sim, ITEM_DAMAGED, frame_size);
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

static void transmit(tow_sim_t *sim, tow_sim_link_t *link, tow_sim_item_t *item)
{
    tow_sim_channel_t *out = link->out;
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

/* An emitted DOWN is the end of the stream, behind all messages. */
static void emit_item(tow_sim_t *sim, tow_sim_emission_t *emission)
{
    tow_sim_item_t *item = TOW_CONTAINER_OF(emission, tow_sim_item_t, emission);
    tow_sim_link_t *link = item->link;
    item->link = NULL;
    bool is_end = item->kind == ITEM_DOWN;
    bool alive = tow_sim_link_node(link)->alive;
    if (link->remote != NULL && alive) {
        transmit(sim, link, item);
    } else {
        if (!is_end) sim->counts.messages_lost++;
        tow_sim_item_free(sim, item);
    }
    if (is_end && alive) tow_sim_link_disconnect(link);
    if (is_end && !alive) tow_sim_link_end_remote(link, "died");
    tow_sim_link_unpin(sim, link);
}

void tow_sim_link_send_item(tow_sim_link_t *link, tow_sim_item_t *item)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    item->link = link;
    link->pin_count++;
    item->emission.emit = emit_item;
    tow_sim_charge_send(node, item->size);
    tow_sim_emit(node, &item->emission);
}

/* When half of the bound is free, any message fits: one of the maximal size
 * does not wait for a credit that never comes. */
tow_send_result_t tow_sim_link_begin(tow_link_t *base, uint32_t size_max,
                                     uint8_t **out_bytes)
{
    tow_sim_link_t *link = (tow_sim_link_t *)base;
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    TOW_ASSERT(link->writing == NULL);
    uint64_t bound = bytes_max(link);
    uint64_t queued = link->unacknowledged_bytes;
    if (TOW_UNLIKELY(queued > bound / 2 &&
                     queued + TOW_FRAME_HEADER_SIZE + size_max > bound)) {
        link->wants_writable = true;
        return TOW_SEND_FULL;
    }
    tow_sim_item_t *item = tow_sim_item_create(sim, ITEM_MESSAGE, size_max);
    if (item == NULL) return TOW_SEND_DOWN;
    link->writing = item;
    *out_bytes = tow_sim_item_bytes(item);
    return TOW_SEND_OK;
}

void tow_sim_link_commit(tow_link_t *base, uint32_t type, uint32_t size)
{
    tow_sim_link_t *link = (tow_sim_link_t *)base;
    tow_sim_item_t *item = link->writing;
    TOW_ASSERT(item != NULL && size <= item->capacity);
    link->writing = NULL;
    item->type = type;
    item->size = size;
    link->unacknowledged_bytes += TOW_FRAME_HEADER_SIZE + size;
    tow_sim_link_send_item(link, item);
}

/* -- Credit --------------------------------------------------------------- */

/* Travels back to the sender: the number of bytes consumed. */
typedef struct credit {
    tow_sim_source_t source;
    tow_sim_link_t *link; /* pinned */
    uint64_t bytes;
    uint64_t epoch;
} credit_t;

size_t tow_sim_credit_bytes(void)
{
    return sizeof(credit_t);
}

static void call_writable(tow_sim_t *sim, tow_sim_link_t *link)
{
    tow_sim_node_t *node = tow_sim_link_node(link);
    link->wants_writable = false;
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = EVENT_WRITABLE,
                                           .node = node->index,
                                           .peer = EVENT_NO_NODE,
                                           .size = link->unacknowledged_bytes});
    if (link->base.handler->writable == NULL) return;
    tow_sim_turn_begin(node, 0);
    link->base.handler->writable(link->base.context, &link->base);
    tow_sim_turn_end(node);
}

/* Credit arrives in the kernel, so to speak; it becomes a turn only if the
 * owner waits for it. */
static int64_t credit_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    credit_t *credit = TOW_CONTAINER_OF(source, credit_t, source);
    tow_sim_link_t *link = credit->link;
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

static void give_credit(tow_sim_t *sim, tow_sim_link_t *link)
{
    tow_sim_link_t *remote = link->remote;
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

void tow_sim_link_take_bytes(tow_sim_t *sim, tow_sim_link_t *link,
                             uint64_t size)
{
    link->taken_bytes += size;
    if (link->taken_bytes < bytes_max(link) / TOW_SIM_CREDIT_SHARE) return;
    if (link->remote != NULL && !tow_sim_channel_is_cut(link->out))
        give_credit(sim, link);
}
