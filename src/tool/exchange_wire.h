/* The exchange's messages, between the machine's terms and the schema's. */
#ifndef TOW_TOOL_EXCHANGE_WIRE_H_
#define TOW_TOOL_EXCHANGE_WIRE_H_

#include "base/arena.h"
#include "base/status.h"
#include "env/env.h"

typedef enum exchange_kind {
    EXCHANGE_MESSAGE,
    EXCHANGE_ACKNOWLEDGEMENT,
    EXCHANGE_OFFER,
    EXCHANGE_RESULT,
    EXCHANGE_ASK, /* a sender lost its lane and wants another offer */
} exchange_kind_t;

typedef struct exchange_offer {
    const void *lane_address; /* lent */
    size_t lane_address_size;
    tow_region_key_t key;
} exchange_offer_t;

typedef struct exchange_message {
    exchange_kind_t kind;
    uint64_t stream;
    /* Its number, the next one that is expected, or the block's index. */
    uint64_t number;
    const uint8_t *payload; /* lent for the callback */
    size_t payload_size;
    exchange_offer_t offer; /* likewise */
} exchange_message_t;

/* What the message points to lives in `arena`, until the next call. */
tow_status_t exchange_decode(const tow_message_t *message, tow_arena_t *arena,
                             exchange_message_t *out_message) TOW_MUST_USE;

/* What message `number` of a stream, or block `number`, must contain: a pattern
 * that depends on which and where. */
void exchange_fill(uint8_t *bytes, size_t size, uint64_t stream,
                   uint64_t number);
bool exchange_matches(const uint8_t *bytes, size_t size, uint64_t stream,
                      uint64_t number);

/* Sends message `number` of the stream, with the payload that it must have. */
tow_send_result_t exchange_send_message(tow_link_t *link, uint64_t stream,
                                        uint64_t number, uint32_t payload_size)
    TOW_MUST_USE;
tow_send_result_t exchange_send_acknowledgement(tow_link_t *link,
                                                uint64_t stream, uint64_t next)
    TOW_MUST_USE;
tow_send_result_t exchange_send_offer(tow_link_t *link,
                                      const exchange_offer_t *offer)
    TOW_MUST_USE;
tow_send_result_t exchange_send_result(tow_link_t *link, uint64_t index)
    TOW_MUST_USE;

tow_send_result_t exchange_ask_for_offer(tow_link_t *link) TOW_MUST_USE;

#endif /* TOW_TOOL_EXCHANGE_WIRE_H_ */
