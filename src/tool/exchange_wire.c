#include "tool/exchange_wire.h"

#include "base/hash.h"
#include "wire/message.h"

static uint64_t pattern_word(uint64_t stream, uint64_t number, uint64_t index)
{
    return tow_mix64((stream << 48) ^ (number << 16) ^ index ^
                     0x9e3779b97f4a7c15u);
}

void exchange_fill(uint8_t *bytes, size_t size, uint64_t stream,
                   uint64_t number)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = pattern_word(stream, number, at / 8);
        memcpy(bytes + at, &word, size - at < 8 ? size - at : 8);
    }
}

bool exchange_matches(const uint8_t *bytes, size_t size, uint64_t stream,
                      uint64_t number)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = pattern_word(stream, number, at / 8);
        if (memcmp(bytes + at, &word, size - at < 8 ? size - at : 8) != 0)
            return false;
    }
    return true;
}

static void take_stream(exchange_message_t *out, exchange_kind_t kind,
                        uint64_t stream, uint64_t number)
{
    out->kind = kind;
    out->stream = stream;
    out->number = number;
}

static void take_exchange(const tow_body_t *body, exchange_message_t *out)
{
    const tow_msg_exchange_t *message = (const tow_msg_exchange_t *)body;
    take_stream(out, EXCHANGE_MESSAGE, message->stream, message->sequence);
    out->payload = message->payload.data;
    out->payload_size = message->payload.len;
}

static void take_offer(const tow_body_t *body, exchange_message_t *out)
{
    const tow_msg_lane_offer_t *message = (const tow_msg_lane_offer_t *)body;
    out->kind = EXCHANGE_OFFER;
    out->offer =
        (exchange_offer_t){.lane_address = message->lane_address.data,
                           .lane_address_size = message->lane_address.len,
                           .key = {message->region_id, message->region_secret}};
}

/* A code says that a write failed; the writer wants a new offer. */
static void take_result(const tow_body_t *body, exchange_message_t *out)
{
    const tow_msg_lane_result_t *message = (const tow_msg_lane_result_t *)body;
    take_stream(out, message->code == 0 ? EXCHANGE_RESULT : EXCHANGE_ASK, 0,
                message->tag);
}

tow_status_t exchange_decode(const tow_message_t *message, tow_arena_t *arena,
                             exchange_message_t *out_message)
{
    *out_message = (exchange_message_t){0};
    tow_arena_reset(arena);
    const tow_body_t *body = NULL;
    TOW_RETURN_IF_ERROR(tow_message_decode(message->type, message->bytes,
                                           message->size, arena, &body));
    switch (message->type) {
    case TOW_MESSAGE_EXCHANGE: take_exchange(body, out_message); break;
    case TOW_MESSAGE_EXCHANGE_ACK:
        take_stream(out_message, EXCHANGE_ACKNOWLEDGEMENT,
                    ((const tow_msg_exchange_ack_t *)body)->stream,
                    ((const tow_msg_exchange_ack_t *)body)->next_sequence);
        break;
    case TOW_MESSAGE_LANE_OFFER: take_offer(body, out_message); break;
    case TOW_MESSAGE_LANE_RESULT: take_result(body, out_message); break;
    default:
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "message type %u is not of the exchange",
                         message->type);
    }
    return TOW_OK;
}

static tow_send_result_t send_body(tow_link_t *link, uint32_t type,
                                   const tow_body_t *body)
{
    uint8_t *room = NULL;
    uint32_t size = (uint32_t)tow_message_size(body);
    tow_send_result_t result = tow_link_begin(link, size, &room);
    if (result != TOW_SEND_OK) return result;
    tow_message_encode(body, room);
    tow_link_commit(link, type, size);
    return TOW_SEND_OK;
}

tow_send_result_t exchange_send_message(tow_link_t *link, uint64_t stream,
                                        uint64_t number, uint32_t payload_size)
{
    TOW_ASSERT(payload_size <= TOW_EXCHANGE_PAYLOAD_MAX);
    uint8_t payload[TOW_EXCHANGE_PAYLOAD_MAX];
    exchange_fill(payload, payload_size, stream, number);
    tow_msg_exchange_t message = TOW_MSG_EXCHANGE_INIT;
    message.stream = stream;
    message.sequence = number;
    message.payload = (ProtobufCBinaryData){payload_size, payload};
    return send_body(link, TOW_MESSAGE_EXCHANGE, &message.base);
}

tow_send_result_t exchange_send_acknowledgement(tow_link_t *link,
                                                uint64_t stream, uint64_t next)
{
    tow_msg_exchange_ack_t message = TOW_MSG_EXCHANGE_ACK_INIT;
    message.stream = stream;
    message.next_sequence = next;
    return send_body(link, TOW_MESSAGE_EXCHANGE_ACK, &message.base);
}

tow_send_result_t exchange_send_offer(tow_link_t *link,
                                      const exchange_offer_t *offer)
{
    tow_msg_lane_offer_t message = TOW_MSG_LANE_OFFER_INIT;
    message.lane_address = (ProtobufCBinaryData){
        offer->lane_address_size, (uint8_t *)offer->lane_address};
    message.region_id = offer->key.id;
    message.region_secret = offer->key.secret;
    return send_body(link, TOW_MESSAGE_LANE_OFFER, &message.base);
}

tow_send_result_t exchange_send_result(tow_link_t *link, uint64_t index)
{
    tow_msg_lane_result_t message = TOW_MSG_LANE_RESULT_INIT;
    message.tag = index;
    return send_body(link, TOW_MESSAGE_LANE_RESULT, &message.base);
}

tow_send_result_t exchange_ask_for_offer(tow_link_t *link)
{
    tow_msg_lane_result_t message = TOW_MSG_LANE_RESULT_INIT;
    message.code = TOW_UNAVAILABLE;
    return send_body(link, TOW_MESSAGE_LANE_RESULT, &message.base);
}
