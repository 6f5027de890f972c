/* Messages of the control plane: protobuf, as towpath.proto defines them,
 * checked against limits before they are decoded.
 *
 * The build makes wire/messages.h from towpath.proto. For a message SessionAck
 * it has the struct tow_msg_session_ack_t, its initialiser
 * TOW_MSG_SESSION_ACK_INIT and its type TOW_MESSAGE_SESSION_ACK.
 *
 *     tow_msg_session_ack_t ack = TOW_MSG_SESSION_ACK_INIT;
 *     ack.received = 7;
 *     size_t size = tow_message_size(&ack.base);
 *     if (tow_link_begin(link, size, &room) == TOW_SEND_OK) {
 *         tow_message_encode(&ack.base, room);
 *         tow_link_commit(link, TOW_MESSAGE_SESSION_ACK, size);
 *     }
 *
 *     const tow_body_t *body;
 *     status = tow_message_decode(message->type, message->bytes, message->size,
 *                                 &arena, &body);
 *     const tow_msg_session_ack_t *ack = (const tow_msg_session_ack_t *)body;
 *
 * Decoding allocates from the caller's arena only, which keeps its memory from
 * one message to the next. */
#ifndef TOW_WIRE_MESSAGE_H_
#define TOW_WIRE_MESSAGE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/macros.h"
#include "base/status.h"
#include "wire/check.h"
#include "wire/messages.h"

/* Types below this one belong to the handshake; a session never sees them. */
enum {
    TOW_MESSAGE_SESSION_FIRST = 16
};

/* Limits of fields; limits.c has the rest. A message beyond one is refused. */
#define TOW_PROOF_SIZE                32u
#define TOW_SOFTWARE_MAX              31u
#define TOW_REFUSE_REASON_MAX         255u
#define TOW_LANE_ADDRESS_MAX          4096u
#define TOW_BLOB_PART_MAX             (256u << 10)
#define TOW_FAILURE_MESSAGE_MAX       2048u
#define TOW_STALL_TEXT_MAX            1024u
#define TOW_NAME_MAX                  255u /* kinds, hosts, nodes, programs */
#define TOW_WORKER_NAME_MAX           63u
#define TOW_INLINE_BYTES_MAX          (64u << 10) /* larger: lanes */
#define TOW_SIGNATURE_BYTES_MAX       (2u << 20)
#define TOW_SHARDING_BYTES_MAX        (256u << 10)
#define TOW_PARTITION_CONFIG_MAX      (64u << 10) /* names the function */
#define TOW_PARTITION_PROGRAM_MAX     (32u << 20)
#define TOW_PARTITION_QUERY_BYTES_MAX (16u << 20) /* whole content */
#define TOW_PARTITION_REPLY_BYTES_MAX (48u << 20)
#define TOW_DEVICES_MAX               65536u /* of a slice */
#define TOW_WORKER_DEVICES_MAX        256u
#define TOW_NODES_MAX                 65536u /* of a program */
#define TOW_VALUES_MAX                16384u /* inputs or outputs of a node */
#define TOW_MESH_RANK_MAX             16u    /* of a sharding's mesh */
#define TOW_PIECES_MAX                65536u /* of a transfer, at one worker */
#define TOW_PEER_ADDRESS_MAX          511u   /* address for other workers */
#define TOW_BATCH_MAX                 16384u /* runs or ranges in one message */
#define TOW_RELAY_FANOUT_MAX          256u   /* workers, the relay included */
#define TOW_WAIT_MISSING_MAX          8u /* missing devices named by a Wait */

/* ReportGet.kind. */
typedef enum tow_report_kind {
    TOW_REPORT_STATUS = 1, /* JSON: state of the cluster or the worker */
    TOW_REPORT_TRACE = 2,  /* JSON: trace events, as Perfetto reads them */
    TOW_REPORT_MEMORY = 3, /* one line per device, in bytes: ID LIMIT OBJECTS
                              RUNS PEAK; answered by the controller alone */
    TOW_REPORT_CODE = 4,   /* a function's optimised code, as text */
    /* Trace events as lines, times in nanoseconds of the controller's clock:
     * "process P NAME", "thread P T NAME", "event P T START DURATION NAME". */
    TOW_REPORT_SPANS = 5,
    /* Of a worker: only Report.waits, which STATUS includes too. */
    TOW_REPORT_WAITS = 6,
} tow_report_kind_t;

/* Any message: the first member (`base`) of every tow_msg_*_t. */
typedef ProtobufCMessage tow_body_t;

/* Encoded size in bytes. */
size_t tow_message_size(const tow_body_t *body);
/* Writes tow_message_size bytes and returns their number. */
size_t tow_message_encode(const tow_body_t *body, uint8_t *bytes);

/* Decodes a message of `type`. *out_body and all that it points to live in the
 * arena until that is reset. INVALID_ARGUMENT names the field that is malformed
 * or exceeds its limit, UNIMPLEMENTED a type that this version does not know;
 * RESOURCE_EXHAUSTED: the arena is full. */
tow_status_t tow_message_decode(uint32_t type, const uint8_t *bytes,
                                size_t count, tow_arena_t *arena,
                                const tow_body_t **out_body) TOW_MUST_USE;

/* Decodes a message without a type of its own, which is a field of another or
 * travels through a pipe. */
tow_status_t tow_body_decode(const tow_limits_t *limits, const uint8_t *bytes,
                             size_t count, tow_arena_t *arena,
                             const tow_body_t **out_body) TOW_MUST_USE;

/* "SessionAck"; "?" for an unknown type. Static. */
const char *tow_message_type_name(uint32_t type);

/* The limits of a type; NULL if it is unknown. For tests. */
const tow_limits_t *tow_message_limits(uint32_t type);
/* Of tow_msg_executable_signature_t. */
extern const tow_limits_t tow_executable_signature_limits;
/* Of tow_msg_partition_query_content_t and
 * tow_msg_partition_reply_content_t. */
extern const tow_limits_t tow_partition_query_content_limits;
extern const tow_limits_t tow_partition_reply_content_limits;

#endif /* TOW_WIRE_MESSAGE_H_ */
