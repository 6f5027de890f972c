/* Messages of the control plane: protobuf, as towpath.proto has them, held to
 * limits. protobuf-c's structs under names of ours, and three functions.
 *
 *     tow_msg_exchange_t exchange = TOW_MSG_EXCHANGE_INIT;
 *     exchange.sequence = 7;
 *     size_t size = tow_message_size(&exchange.base);
 *     if (tow_link_begin(link, size, &room) == TOW_SEND_OK) {
 *         tow_message_encode(&exchange.base, room);
 *         tow_link_commit(link, TOW_MESSAGE_EXCHANGE, size);
 *     }
 *
 *     const tow_body_t *body;
 *     status = tow_message_decode(message->type, message->bytes, message->size,
 *                                 &arena, &body);
 *     const tow_msg_exchange_t *exchange = (const tow_msg_exchange_t *)body;
 *
 * Nothing here touches the heap but through the arena, which keeps its memory
 * from one message to the next. */
#ifndef TOW_WIRE_MESSAGE_H_
#define TOW_WIRE_MESSAGE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/macros.h"
#include "base/status.h"
#include "wire/check.h"
#include "wire/towpath.pb-c.h"

/* The type of a frame, for ever. 1 to 15 are the handshake's: the session
 * knows them no more. */
typedef enum tow_message_type {
    TOW_MESSAGE_HELLO = 1,
    TOW_MESSAGE_PROOF = 2,
    TOW_MESSAGE_WELCOME = 3,
    TOW_MESSAGE_REFUSE = 4,
    TOW_MESSAGE_SESSION_FIRST = 16,
    TOW_MESSAGE_EXCHANGE = 16,
    TOW_MESSAGE_EXCHANGE_ACK = 17,
    TOW_MESSAGE_LANE_OFFER = 18,
    TOW_MESSAGE_LANE_RESULT = 19,
    TOW_MESSAGE_TYPE_COUNT,
} tow_message_type_t;

/* What a peer may send in each field; more is refused. */
#define TOW_PROOF_SIZE           32u
#define TOW_SOFTWARE_MAX         31u
#define TOW_REFUSE_REASON_MAX    255u
#define TOW_EXCHANGE_PAYLOAD_MAX 65536u
#define TOW_LANE_ADDRESS_MAX     4096u

typedef Tow__Hello tow_msg_hello_t;
typedef Tow__Proof tow_msg_proof_t;
typedef Tow__Welcome tow_msg_welcome_t;
typedef Tow__Refuse tow_msg_refuse_t;
typedef Tow__Exchange tow_msg_exchange_t;
typedef Tow__ExchangeAck tow_msg_exchange_ack_t;
typedef Tow__LaneOffer tow_msg_lane_offer_t;
typedef Tow__LaneResult tow_msg_lane_result_t;

#define TOW_MSG_HELLO_INIT        TOW__HELLO__INIT
#define TOW_MSG_PROOF_INIT        TOW__PROOF__INIT
#define TOW_MSG_WELCOME_INIT      TOW__WELCOME__INIT
#define TOW_MSG_REFUSE_INIT       TOW__REFUSE__INIT
#define TOW_MSG_EXCHANGE_INIT     TOW__EXCHANGE__INIT
#define TOW_MSG_EXCHANGE_ACK_INIT TOW__EXCHANGE_ACK__INIT
#define TOW_MSG_LANE_OFFER_INIT   TOW__LANE_OFFER__INIT
#define TOW_MSG_LANE_RESULT_INIT  TOW__LANE_RESULT__INIT

/* Any message: the first member (`base`) of each struct above. */
typedef ProtobufCMessage tow_body_t;

/* The bytes that it takes on the wire. */
size_t tow_message_size(const tow_body_t *body);
/* Writes that many bytes, and returns their number. */
size_t tow_message_encode(const tow_body_t *body, uint8_t *bytes);

/* The message of `type` in the bytes. *out_body and all that it points to live
 * in the arena until that is reset; nobody frees parts of it. INVALID_ARGUMENT
 * names the field that is malformed or passes its limit, UNIMPLEMENTED a type
 * that this version does not know, RESOURCE_EXHAUSTED an arena at its end. */
tow_status_t tow_message_decode(uint32_t type, const uint8_t *bytes,
                                size_t count, tow_arena_t *arena,
                                const tow_body_t **out_body) TOW_MUST_USE;

/* "Exchange"; "?" for a type that is not known. Static. */
const char *tow_message_type_name(uint32_t type);

/* The limits of a type, NULL if it is not known. For tests. */
const tow_limits_t *tow_message_limits(uint32_t type);

#endif /* TOW_WIRE_MESSAGE_H_ */
