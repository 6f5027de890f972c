/* The listening half: takes streams in order, offers a region, checks all. */
#include <stdio.h>

#include "base/fault.h"
#include "tool/exchange_impl.h"
#include "tool/exchange_wire.h"

static void violate(exchange_receiver_t *receiver, tow_status_t take_status)
{
    exchange_violate(
        receiver->exchange,
        tow_status_annotate(take_status, "from %s", receiver->link->peer.name));
}

/* The record of this peer's stream: found, renewed for a new life of the peer,
 * or made. NULL when memory is exhausted. */
static exchange_stream_t *find_stream(exchange_receiver_t *receiver,
                                      uint64_t stream_id)
{
    tow_exchange_t *exchange = receiver->exchange;
    const tow_peer_t *peer = tow_link_peer(receiver->link);
    char name[TOW_PEER_NAME_MAX + 32];
    snprintf(name, sizeof(name), "%s#%llu", peer->name,
             (unsigned long long)stream_id);
    exchange_stream_t *stream =
        tow_names_find(&exchange->streams_by_name, name);
    if (stream == NULL) {
        stream = tow_calloc(1, sizeof(*stream));
        if (stream == NULL) return NULL;
        stream->sender_incarnation = peer->incarnation;
        if (!tow_names_put(&exchange->streams_by_name, name, stream)) {
            tow_free(stream);
            return NULL;
        }
        tow_list_append(&exchange->streams, &stream->all);
    }
    if (stream->sender_incarnation != peer->incarnation) {
        stream->sender_incarnation = peer->incarnation;
        stream->expected = 0;
    }
    return stream;
}

static void acknowledge_in_a_while(exchange_receiver_t *receiver)
{
    tow_env_t *env = receiver->exchange->env;
    tow_env_timer_start(env, &receiver->ack_timer,
                        tow_env_now_ns(env) + EXCHANGE_ACK_DELAY_NS);
}

/* An acknowledgement that finds the queue full waits for `writable`. */
static void acknowledge(exchange_receiver_t *receiver)
{
    if (receiver->stream == NULL || receiver->unacknowledged == 0) return;
    if (TOW_FAULT("exchange.acknowledge_late")) {
        acknowledge_in_a_while(receiver);
        return;
    }
    if (exchange_send_acknowledgement(receiver->link, receiver->stream_id,
                                      receiver->stream->expected) !=
        TOW_SEND_OK)
        return;
    receiver->unacknowledged = 0;
    tow_env_timer_stop(receiver->exchange->env, &receiver->ack_timer);
}

static void acknowledge_late(tow_timer_t *timer)
{
    acknowledge(TOW_CONTAINER_OF(timer, exchange_receiver_t, ack_timer));
}

static void note_for_acknowledgement(exchange_receiver_t *receiver)
{
    receiver->unacknowledged++;
    if (receiver->unacknowledged >= EXCHANGE_ACK_EVERY)
        acknowledge(receiver);
    else if (!tow_timer_is_armed(&receiver->ack_timer))
        acknowledge_in_a_while(receiver);
}

static void take_message(exchange_receiver_t *receiver,
                         const exchange_message_t *message)
{
    exchange_stream_t *stream = find_stream(receiver, message->stream);
    if (stream == NULL) {
        violate(receiver, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    receiver->stream = stream;
    receiver->stream_id = message->stream;
    if (message->number > stream->expected) {
        violate(receiver,
                TOW_ERROR(TOW_DATA_LOSS, "message %llu came, %llu is next",
                          (unsigned long long)message->number,
                          (unsigned long long)stream->expected));
        return;
    }
    if (!exchange_matches(message->payload, message->payload_size,
                          message->stream, message->number)) {
        violate(receiver, TOW_ERROR(TOW_DATA_LOSS, "message %llu is altered",
                                    (unsigned long long)message->number));
        return;
    }
    if (message->number < stream->expected) {
        receiver->exchange->stats.duplicates_dropped++;
    } else {
        stream->expected++;
        receiver->exchange->stats.messages_taken++;
    }
    note_for_acknowledgement(receiver);
}

static void block_arrived(void *context, tow_region_t *region,
                          const tow_arrival_t *arrival)
{
    exchange_landing_t *landing = context;
    exchange_receiver_t *receiver = landing->receiver;
    (void)region;
    if (landing->closing) return;
    if (!exchange_matches(landing->memory + arrival->offset, arrival->size,
                          block_stream(arrival->tag),
                          block_index(arrival->tag))) {
        violate(receiver,
                TOW_ERROR(TOW_DATA_LOSS, "block %llu is altered",
                          (unsigned long long)block_index(arrival->tag)));
        return;
    }
    receiver->exchange->stats.blocks_taken++;
    /* Lost when the link is down: the sender writes an unconfirmed block again
     * in the next epoch. It waits for each, so the queue is never full. */
    tow_send_result_t result =
        exchange_send_result(receiver->link, arrival->tag);
    TOW_ASSERT(result != TOW_SEND_FULL);
}

static tow_status_t open_landing(exchange_receiver_t *receiver,
                                 exchange_landing_t **out_landing)
{
    size_t size =
        EXCHANGE_BLOCKS_IN_FLIGHT * receiver->exchange->options.block_size;
    exchange_landing_t *landing = tow_calloc(1, sizeof(*landing) + size);
    if (landing == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    landing->receiver = receiver;
    tow_list_append(&receiver->landings, &landing->all);
    tow_region_options_t region = {.bytes = landing->memory,
                                   .size = size,
                                   .arrived = block_arrived,
                                   .context = landing};
    *out_landing = landing;
    return tow_env_region_open(receiver->exchange->env, &region,
                               &landing->region);
}

static void destroy_when_closed(exchange_receiver_t *receiver);

static void landing_closed(void *context)
{
    exchange_landing_t *landing = context;
    exchange_receiver_t *receiver = landing->receiver;
    tow_list_remove(&landing->all);
    tow_free(landing);
    destroy_when_closed(receiver);
}

static void close_landings(exchange_receiver_t *receiver)
{
    for (tow_list_t *item = receiver->landings.next;
         item != &receiver->landings; item = item->next) {
        exchange_landing_t *landing =
            TOW_CONTAINER_OF(item, exchange_landing_t, all);
        if (landing->closing || landing->region == NULL) continue;
        landing->closing = true;
        tow_region_close(landing->region,
                         (tow_closed_t){landing_closed, landing});
    }
}

static void offer_region(exchange_receiver_t *receiver)
{
    if (receiver->exchange->options.block_count == 0) return;
    exchange_landing_t *landing = NULL;
    tow_status_t status = open_landing(receiver, &landing);
    if (status != TOW_OK) {
        violate(receiver, status);
        return;
    }
    exchange_offer_t offer = {.key = tow_region_key(landing->region)};
    tow_env_lane_address(receiver->exchange->env, &offer.lane_address,
                         &offer.lane_address_size);
    /* The link carries little else this way, so there is room. */
    tow_send_result_t result = exchange_send_offer(receiver->link, &offer);
    TOW_ASSERT(result != TOW_SEND_FULL);
}

static void receiver_up(void *context, tow_link_t *link)
{
    (void)link;
    exchange_receiver_t *receiver = context;
    receiver->exchange->stats.epochs++;
    offer_region(receiver);
}

static void receiver_message(void *context, tow_link_t *link,
                             const tow_message_t *message)
{
    (void)link;
    exchange_receiver_t *receiver = context;
    exchange_message_t decoded;
    tow_status_t status =
        exchange_decode(message, &receiver->exchange->arena, &decoded);
    if (status == TOW_OK && decoded.kind == EXCHANGE_MESSAGE) {
        take_message(receiver, &decoded);
    } else if (status == TOW_OK && decoded.kind == EXCHANGE_ASK) {
        close_landings(receiver);
        offer_region(receiver);
    } else {
        if (status == TOW_OK)
            status =
                TOW_ERROR(TOW_INTERNAL, "a sender sent kind %d", decoded.kind);
        violate(receiver, status);
    }
}

static void receiver_writable(void *context, tow_link_t *link)
{
    (void)link;
    acknowledge(context);
}

/* Goes once its regions and its link are closed. */
static void destroy_when_closed(exchange_receiver_t *receiver)
{
    if (receiver->link != NULL || !tow_list_is_empty(&receiver->landings))
        return;
    tow_exchange_t *exchange = receiver->exchange;
    tow_list_remove(&receiver->all);
    exchange_receiver_destroy(receiver);
    if (exchange->options.peer_left != NULL)
        exchange->options.peer_left(exchange->options.context);
}

static void link_closed(void *context)
{
    exchange_receiver_t *receiver = context;
    receiver->link = NULL;
    destroy_when_closed(receiver);
}

static void receiver_down(void *context, tow_link_t *link, tow_status_t cause)
{
    exchange_receiver_t *receiver = context;
    tow_log(&receiver->exchange->env->log, TOW_LOG_INFO, "peer left",
            TOW_F_STR("peer", link->peer.name), TOW_F_STATUS("cause", cause));
    receiver->exchange->stats.breaks++;
    tow_env_timer_stop(receiver->exchange->env, &receiver->ack_timer);
    close_landings(receiver);
    tow_link_close(link, (tow_closed_t){link_closed, receiver});
}

static const tow_link_handler_t receiver_handler = {
    .up = receiver_up,
    .message = receiver_message,
    .writable = receiver_writable,
    .down = receiver_down,
};

void exchange_receiver_accept(void *context, tow_link_t *link)
{
    tow_exchange_t *exchange = context;
    exchange_receiver_t *receiver = TOW_FAULT("exchange.accept_no_memory")
    ? NULL : tow_calloc(1, sizeof(*receiver));
    if (receiver == NULL) { /* The peer dials again, later. */
        tow_link_close(link, (tow_closed_t){0});
        return;
    }
    receiver->exchange = exchange;
    receiver->link = link;
    receiver->ack_timer.fire = acknowledge_late;
    tow_list_init(&receiver->landings);
    tow_list_append(&exchange->receivers, &receiver->all);
    link->handler = &receiver_handler;
    link->context = receiver;
}

void exchange_receiver_destroy(exchange_receiver_t *receiver)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&receiver->landings)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, exchange_landing_t, all));
    tow_free(receiver);
}
