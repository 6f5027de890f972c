/* The dialling half: a stream of messages with resending, then blocks. */
#include "base/fault.h"
#include "tool/exchange_impl.h"
#include "tool/exchange_wire.h"

static void pump_messages(exchange_sender_t *sender);
static void pump_blocks(exchange_sender_t *sender);

static void finish_if_done(exchange_sender_t *sender)
{
    tow_exchange_t *exchange = sender->exchange;
    if (sender->finished ||
        sender->acknowledged < exchange->options.message_count ||
        sender->blocks_done < exchange->options.block_count)
        return;
    sender->finished = true;
    TOW_ASSERT(exchange->unfinished_count > 0);
    exchange->unfinished_count--;
    if (exchange->unfinished_count == 0 && exchange->options.finished != NULL)
        exchange->options.finished(exchange->options.context);
}

/* A receiver in a new life has forgotten all: begin from the beginning. In the
 * same life it has all that it acknowledged, so go on behind that. */
static void sender_up(void *context, tow_link_t *link)
{
    exchange_sender_t *sender = context;
    const tow_peer_t *peer = tow_link_peer(link);
    sender->exchange->stats.epochs++;
    if (peer->incarnation != sender->peer_incarnation && !sender->finished) {
        sender->peer_incarnation = peer->incarnation;
        sender->acknowledged = 0;
        sender->blocks_done = 0;
        for (uint64_t i = 0; i < sender->exchange->options.block_count; i++)
            if (sender->block_states[i] == BLOCK_DONE)
                sender->block_states[i] = BLOCK_WAITING;
    }
    sender->next_sequence = sender->acknowledged;
    pump_messages(sender);
}

static void pump_messages(exchange_sender_t *sender)
{
    tow_exchange_t *exchange = sender->exchange;
    while (sender->next_sequence < exchange->options.message_count &&
           sender->next_sequence < sender->acknowledged + EXCHANGE_WINDOW) {
        tow_send_result_t result = exchange_send_message(
            sender->link, sender->stream, sender->next_sequence,
            exchange->options.payload_size);
        if (result != TOW_SEND_OK) return; /* `writable` or `up` goes on. */
        if (sender->next_sequence < sender->sent_once) {
            exchange->stats.messages_resent++;
        } else {
            exchange->stats.messages_sent++;
            sender->sent_once++;
        }
        sender->next_sequence++;
    }
}

static void take_acknowledgement(exchange_sender_t *sender, uint64_t stream,
                                 uint64_t next_sequence)
{
    if (stream != sender->stream || next_sequence > sender->sent_once) {
        exchange_violate(sender->exchange,
                         TOW_ERROR(TOW_INTERNAL,
                                   "%s acknowledged %llu of stream %llu, of "
                                   "which %llu were sent",
                                   sender->link->peer.name,
                                   (unsigned long long)next_sequence,
                                   (unsigned long long)stream,
                                   (unsigned long long)sender->sent_once));
        return;
    }
    if (next_sequence > sender->acknowledged)
        sender->acknowledged = next_sequence;
    if (sender->next_sequence < sender->acknowledged)
        sender->next_sequence = sender->acknowledged;
    pump_messages(sender);
    pump_blocks(sender);
    finish_if_done(sender);
}

static void lane_closed(void *context)
{
    (void)context;
}

static void drop_lane(exchange_sender_t *sender)
{
    if (sender->lane == NULL) return;
    tow_lane_close(sender->lane, TOW_LANE_CLOSE_FORCE,
                   (tow_closed_t){lane_closed, NULL});
    sender->lane = NULL;
}

/* What was written over the broken lane may still land, so the next try needs a
 * region that it cannot reach. If the link is down too, the next epoch brings
 * an offer by itself; if its queue is full, it is about to break as well. */
static void ask_for_offer(exchange_sender_t *sender)
{
    if (sender->lane == NULL) return; /* Asked already. */
    drop_lane(sender);
    if (exchange_ask_for_offer(sender->link) != TOW_SEND_OK)
        tow_log(&sender->exchange->env->log, TOW_LOG_INFO,
                "offer not asked for",
                TOW_F_STR("peer", sender->link->peer.name));
}

static void lane_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    exchange_sender_t *sender = context;
    if (sender->lane != lane) return; /* Closed already. */
    tow_log(&sender->exchange->env->log, TOW_LOG_INFO, "lane down",
            TOW_F_STR("peer", sender->link->peer.name),
            TOW_F_STATUS("cause", cause));
    ask_for_offer(sender);
}

static void lane_writable(void *context, tow_lane_t *lane)
{
    exchange_sender_t *sender = context;
    if (sender->lane == lane) pump_blocks(sender);
}

/* A new region: what was on its way to the old one counts for nothing. */
static void rewind_blocks(exchange_sender_t *sender)
{
    for (uint64_t i = 0; i < sender->exchange->options.block_count; i++)
        if (sender->block_states[i] == BLOCK_FLYING)
            sender->block_states[i] = BLOCK_WAITING;
    for (size_t i = 0; i < EXCHANGE_BLOCKS_IN_FLIGHT; i++)
        sender->slots[i].unconfirmed = false;
}

static void take_offer(exchange_sender_t *sender, const exchange_offer_t *offer)
{
    drop_lane(sender);
    if (sender->finished || sender->exchange->options.block_count == 0) return;
    tow_lane_options_t options = {.address = offer->lane_address,
                                  .address_size = offer->lane_address_size,
                                  .peer_name = sender->link->peer.name,
                                  .down = lane_down,
                                  .writable = lane_writable,
                                  .context = sender};
    tow_status_t status =
        tow_env_lane_open(sender->exchange->env, &options, &sender->lane);
    if (status != TOW_OK) {
        exchange_violate(sender->exchange,
                         tow_status_annotate(status, "opening a lane to %s",
                                             sender->link->peer.name));
        return;
    }
    sender->key = offer->key;
    rewind_blocks(sender);
    pump_blocks(sender);
}

static void block_written(tow_write_t *write, tow_status_t take_status)
{
    block_slot_t *slot = TOW_CONTAINER_OF(write, block_slot_t, write);
    exchange_sender_t *sender = slot->sender;
    bool is_flying = sender->block_states[slot->index] == BLOCK_FLYING;
    slot->in_flight = false;
    bool failed = take_status != TOW_OK || TOW_FAULT("exchange.write_failed");
    slot->unconfirmed = !failed && is_flying;
    if (failed && is_flying) {
        sender->block_states[slot->index] = BLOCK_WAITING;
        sender->exchange->stats.blocks_repeated++;
        ask_for_offer(sender);
    }
    tow_status_ignore(take_status, "an unconfirmed block is written again");
    pump_blocks(sender);
}

static uint64_t next_waiting_block(const exchange_sender_t *sender)
{
    uint64_t count = sender->exchange->options.block_count;
    for (uint64_t i = 0; i < count; i++)
        if (sender->block_states[i] == BLOCK_WAITING) return i;
    return count;
}

static bool start_block(exchange_sender_t *sender, block_slot_t *slot)
{
    const tow_exchange_options_t *options = &sender->exchange->options;
    uint64_t index = next_waiting_block(sender);
    if (index == options->block_count) return false;
    exchange_fill(slot->bytes, options->block_size, sender->stream, index);
    size_t place = (size_t)(slot - sender->slots);
    slot->index = index;
    slot->write = (tow_write_t){.bytes = slot->bytes,
                                .size = options->block_size,
                                .key = sender->key,
                                .offset = place * options->block_size,
                                .tag = block_tag(sender->stream, index),
                                .check = TOW_WRITE_CRC32C,
                                .done = block_written};
    if (tow_lane_write(sender->lane, &slot->write) != TOW_SEND_OK) return false;
    slot->in_flight = true;
    sender->block_states[index] = BLOCK_FLYING;
    return true;
}

/* Blocks go after the messages, so that a break in either is met alone too. */
static void pump_blocks(exchange_sender_t *sender)
{
    if (sender->lane == NULL || sender->link->state != TOW_LINK_UP) return;
    if (sender->acknowledged < sender->exchange->options.message_count) return;
    for (size_t i = 0; i < EXCHANGE_BLOCKS_IN_FLIGHT; i++) {
        block_slot_t *slot = &sender->slots[i];
        if (slot->in_flight || slot->unconfirmed) continue;
        if (!start_block(sender, slot)) return;
    }
}

/* A place is free again once the receiver has looked at it. */
static void release_slot(exchange_sender_t *sender, uint64_t index)
{
    for (size_t i = 0; i < EXCHANGE_BLOCKS_IN_FLIGHT; i++)
        if (sender->slots[i].index == index)
            sender->slots[i].unconfirmed = false;
}

static void take_result(exchange_sender_t *sender, uint64_t tag)
{
    uint64_t index = block_index(tag);
    if (block_stream(tag) != sender->stream ||
        index >= sender->exchange->options.block_count) {
        exchange_violate(sender->exchange,
                         TOW_ERROR(TOW_INTERNAL, "%s confirmed block %llu",
                                   sender->link->peer.name,
                                   (unsigned long long)index));
        return;
    }
    release_slot(sender, index);
    if (sender->block_states[index] == BLOCK_DONE) return;
    sender->block_states[index] = BLOCK_DONE;
    sender->blocks_done++;
    sender->exchange->stats.blocks_written++;
    pump_blocks(sender);
    finish_if_done(sender);
}

static void sender_message(void *context, tow_link_t *link,
                           const tow_message_t *message)
{
    exchange_sender_t *sender = context;
    exchange_message_t decoded;
    tow_status_t status =
        exchange_decode(message, &sender->exchange->arena, &decoded);
    if (status != TOW_OK) {
        exchange_violate(
            sender->exchange,
            tow_status_annotate(status, "from %s", link->peer.name));
        return;
    }
    switch (decoded.kind) {
    case EXCHANGE_ACKNOWLEDGEMENT:
        take_acknowledgement(sender, decoded.stream, decoded.number);
        break;
    case EXCHANGE_OFFER: take_offer(sender, &decoded.offer); break;
    case EXCHANGE_RESULT: take_result(sender, decoded.number); break;
    case EXCHANGE_MESSAGE:
    case EXCHANGE_ASK:
        exchange_violate(
            sender->exchange,
            TOW_ERROR(TOW_INTERNAL, "%s sent to a sender", link->peer.name));
        break;
    }
}

static void sender_writable(void *context, tow_link_t *link)
{
    (void)link;
    pump_messages(context);
}

/* Whether the receiver lives is not known; what it holds of ours will be found
 * out when the link is up again. */
static void sender_down(void *context, tow_link_t *link, tow_status_t cause)
{
    exchange_sender_t *sender = context;
    sender->exchange->stats.breaks++;
    tow_log(&sender->exchange->env->log, TOW_LOG_INFO, "link down",
            TOW_F_STR("peer", link->peer.name), TOW_F_STATUS("cause", cause));
    drop_lane(sender);
    rewind_blocks(sender);
}

static const tow_link_handler_t sender_handler = {
    .up = sender_up,
    .message = sender_message,
    .writable = sender_writable,
    .down = sender_down,
};

static bool allocate_blocks(exchange_sender_t *sender)
{
    const tow_exchange_options_t *options = &sender->exchange->options;
    if (options->block_count == 0) return true;
    sender->block_states = tow_calloc(options->block_count, 1);
    if (sender->block_states == NULL) return false;
    for (size_t i = 0; i < EXCHANGE_BLOCKS_IN_FLIGHT; i++) {
        sender->slots[i].sender = sender;
        sender->slots[i].bytes = tow_malloc(options->block_size);
        if (sender->slots[i].bytes == NULL) return false;
    }
    return true;
}

tow_status_t exchange_sender_create(tow_exchange_t *exchange,
                                    const char *address, uint64_t stream,
                                    exchange_sender_t **out_sender)
{
    exchange_sender_t *sender = tow_calloc(1, sizeof(*sender));
    if (sender == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sender->exchange = exchange;
    sender->stream = stream;
    tow_status_t status = TOW_OK;
    if (!allocate_blocks(sender)) {
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    } else {
        tow_connect_options_t connect = {
            .address = address, .handler = &sender_handler, .context = sender};
        status = tow_env_connect(exchange->env, &connect, &sender->link);
    }
    if (status != TOW_OK) {
        exchange_sender_destroy(sender);
        return tow_status_annotate(status, "dialling %s", address);
    }
    *out_sender = sender;
    return TOW_OK;
}

void exchange_sender_destroy(exchange_sender_t *sender)
{
    if (sender == NULL) return;
    for (size_t i = 0; i < EXCHANGE_BLOCKS_IN_FLIGHT; i++)
        tow_free(sender->slots[i].bytes);
    tow_free(sender->block_states);
    tow_free(sender);
}
