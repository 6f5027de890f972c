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
    TOW_MESSAGE_SESSION_RESUME = 32,
    TOW_MESSAGE_SESSION_ACK = 33,
    TOW_MESSAGE_SESSION_END = 34,
    TOW_MESSAGE_BLOB = 35,
    TOW_MESSAGE_CLIENT_OPEN = 48,
    TOW_MESSAGE_CLIENT_OPENED = 49,
    TOW_MESSAGE_SLICE_OPEN = 50,
    TOW_MESSAGE_SLICE_OPENED = 51,
    TOW_MESSAGE_SLICE_CLOSE = 52,
    TOW_MESSAGE_COMPILE = 53,
    TOW_MESSAGE_COMPILE_DONE = 54,
    TOW_MESSAGE_FUNCTION_DROP = 55,
    TOW_MESSAGE_PROGRAM_ADD = 56,
    TOW_MESSAGE_PROGRAM_ADDED = 57,
    TOW_MESSAGE_PROGRAM_DROP = 58,
    TOW_MESSAGE_PUT = 59,
    TOW_MESSAGE_PUT_OPENED = 60,
    TOW_MESSAGE_PUT_DONE = 61,
    TOW_MESSAGE_RUN = 62,
    TOW_MESSAGE_RUNS_DONE = 63,
    TOW_MESSAGE_CANCEL = 64,
    TOW_MESSAGE_RELEASE = 65,
    TOW_MESSAGE_GET = 66,
    TOW_MESSAGE_GET_DONE = 67,
    TOW_MESSAGE_REPORT_GET = 68,
    TOW_MESSAGE_REPORT = 69,
    TOW_MESSAGE_REGROUP = 70,
    TOW_MESSAGE_COPY = 71,
    TOW_MESSAGE_CALLBACK = 73,
    TOW_MESSAGE_CALLBACK_DONE = 74,
    TOW_MESSAGE_RUN_LATE = 75,
    TOW_MESSAGE_QUESTION = 76,
    TOW_MESSAGE_ANSWER = 77,
    TOW_MESSAGE_WORKER_JOIN = 80,
    TOW_MESSAGE_WORKER_JOINED = 81,
    TOW_MESSAGE_PEER = 82,
    TOW_MESSAGE_PEER_GONE = 83,
    TOW_MESSAGE_LOAD = 84,
    TOW_MESSAGE_LOAD_DONE = 85,
    TOW_MESSAGE_UNLOAD = 86,
    TOW_MESSAGE_PROGRAM_LOAD = 87,
    TOW_MESSAGE_PROGRAM_UNLOAD = 88,
    TOW_MESSAGE_GRANT = 89,
    TOW_MESSAGE_DONE = 90,
    TOW_MESSAGE_ABORT = 91,
    TOW_MESSAGE_SHARD_PUT = 92,
    TOW_MESSAGE_SHARD_PUT_OPENED = 93,
    TOW_MESSAGE_SHARD_PUT_DONE = 94,
    TOW_MESSAGE_SHARD_GET = 95,
    TOW_MESSAGE_SHARD_GET_DONE = 96,
    TOW_MESSAGE_SHARD_REGROUP = 97,
    TOW_MESSAGE_RELAY_GRANT = 98,
    TOW_MESSAGE_PASSED_GRANT = 99,
    TOW_MESSAGE_SEQUENCE = 100,
    TOW_MESSAGE_RELAY_DONE = 101,
    TOW_MESSAGE_RELAY_LOST = 102,
    TOW_MESSAGE_SPILL = 103,
    TOW_MESSAGE_PEER_OPEN = 104,
    TOW_MESSAGE_EDGE_OFFER = 105,
    TOW_MESSAGE_EDGE_PIECE = 106,
    TOW_MESSAGE_PASSED_DONE = 107,
    TOW_MESSAGE_UNSPILL = 108,
    TOW_MESSAGE_SPILL_DONE = 109,
    TOW_MESSAGE_EDGE_SIZE = 110,
    TOW_MESSAGE_GRAPH = 112,
    TOW_MESSAGE_LOWERED = 113,
    TOW_MESSAGE_TYPE_COUNT,
} tow_message_type_t;

/* What a peer may send in each field; more is refused. */
#define TOW_PROOF_SIZE           32u
#define TOW_SOFTWARE_MAX         31u
#define TOW_REFUSE_REASON_MAX    255u
#define TOW_EXCHANGE_PAYLOAD_MAX 65536u
#define TOW_LANE_ADDRESS_MAX     4096u
#define TOW_BLOB_PART_MAX        (256u << 10)
#define TOW_FAILURE_MESSAGE_MAX  2048u
#define TOW_LATE_TEXT_MAX        1024u
#define TOW_NAME_MAX             255u /* of kinds, hosts, nodes, programs */
#define TOW_INLINE_BYTES_MAX     (64u << 10) /* of a put or get; more: lanes */
#define TOW_SIGNATURE_BYTES_MAX  (2u << 20)
#define TOW_SHARDING_BYTES_MAX   (256u << 10)
#define TOW_QUESTION_CONFIG_MAX  (64u << 10) /* that names a function */
#define TOW_ANSWER_PROGRAM_MAX   (32u << 20)
#define TOW_QUESTION_BYTES_MAX   (16u << 20) /* all of it */
#define TOW_ANSWER_BYTES_MAX     (48u << 20)
#define TOW_DEVICES_MAX          65536u /* of a slice */
#define TOW_WORKER_DEVICES_MAX   256u
#define TOW_NODES_MAX            65536u /* of a program */
#define TOW_VALUES_MAX           16384u /* arguments or results of one node */
#define TOW_MESH_RANK_MAX        16u    /* of a sharding's mesh */
#define TOW_PIECES_MAX           65536u /* of a transfer, at one worker */
#define TOW_DOOR_MAX             511u   /* an address of a worker */
#define TOW_BATCH_MAX            16384u /* runs or ranges in one message */
#define TOW_RELAY_FANOUT_MAX     256u   /* workers of a relay, with itself */
#define TOW_WAIT_MISSING_MAX     8u     /* devices that a wait names */

typedef Tow__Hello tow_msg_hello_t;
typedef Tow__Proof tow_msg_proof_t;
typedef Tow__Welcome tow_msg_welcome_t;
typedef Tow__Refuse tow_msg_refuse_t;
typedef Tow__Exchange tow_msg_exchange_t;
typedef Tow__ExchangeAck tow_msg_exchange_ack_t;
typedef Tow__LaneOffer tow_msg_lane_offer_t;
typedef Tow__LaneResult tow_msg_lane_result_t;
typedef Tow__SessionResume tow_msg_session_resume_t;
typedef Tow__SessionAck tow_msg_session_ack_t;
typedef Tow__SessionEnd tow_msg_session_end_t;
typedef Tow__Blob tow_msg_blob_t;
typedef Tow__Failure tow_msg_failure_t;
typedef Tow__RunFailure tow_msg_run_failure_t;
typedef Tow__ArrayType tow_msg_array_type_t;
typedef Tow__Device tow_msg_device_t;
typedef Tow__LaneTarget tow_msg_lane_target_t;
typedef Tow__Sharding tow_msg_sharding_t;
typedef Tow__Collective tow_msg_collective_t;
typedef Tow__GraphNode tow_msg_graph_node_t;
typedef Tow__Graph tow_msg_graph_t;
typedef Tow__Piece tow_msg_piece_t;
typedef Tow__Route tow_msg_route_t;
typedef Tow__Members tow_msg_members_t;
typedef Tow__CollectivePart tow_msg_collective_part_t;
typedef Tow__LoweredStep tow_msg_lowered_step_t;
typedef Tow__Lowered tow_msg_lowered_t;
typedef Tow__ClientOpen tow_msg_client_open_t;
typedef Tow__ClientOpened tow_msg_client_opened_t;
typedef Tow__SliceOpen tow_msg_slice_open_t;
typedef Tow__SliceOpened tow_msg_slice_opened_t;
typedef Tow__SliceClose tow_msg_slice_close_t;
typedef Tow__Compile tow_msg_compile_t;
typedef Tow__CompileDone tow_msg_compile_done_t;
typedef Tow__FunctionDrop tow_msg_function_drop_t;
typedef Tow__ProgramAdd tow_msg_program_add_t;
typedef Tow__ProgramAdded tow_msg_program_added_t;
typedef Tow__ProgramDrop tow_msg_program_drop_t;
typedef Tow__Put tow_msg_put_t;
typedef Tow__PutOpened tow_msg_put_opened_t;
typedef Tow__PutDone tow_msg_put_done_t;
typedef Tow__Run tow_msg_run_t;
typedef Tow__RunsDone tow_msg_runs_done_t;
typedef Tow__Cancel tow_msg_cancel_t;
typedef Tow__Release tow_msg_release_t;
typedef Tow__Get tow_msg_get_t;
typedef Tow__GetDone tow_msg_get_done_t;
typedef Tow__ReportGet tow_msg_report_get_t;
typedef Tow__Report tow_msg_report_t;
typedef Tow__Regroup tow_msg_regroup_t;
typedef Tow__Copy tow_msg_copy_t;
typedef Tow__Callback tow_msg_callback_t;
typedef Tow__CallbackDone tow_msg_callback_done_t;
typedef Tow__RunLate tow_msg_run_late_t;
typedef Tow__Question tow_msg_question_t;
typedef Tow__Answer tow_msg_answer_t;
typedef Tow__Wait tow_msg_wait_t;
typedef Tow__WorkerJoin tow_msg_worker_join_t;
typedef Tow__WorkerJoined tow_msg_worker_joined_t;
typedef Tow__Peer tow_msg_peer_t;
typedef Tow__PeerGone tow_msg_peer_gone_t;
typedef Tow__Load tow_msg_load_t;
typedef Tow__LoadDone tow_msg_load_done_t;
typedef Tow__Unload tow_msg_unload_t;
typedef Tow__ProgramLoad tow_msg_program_load_t;
typedef Tow__ProgramUnload tow_msg_program_unload_t;
typedef Tow__Grant tow_msg_grant_t;
typedef Tow__Done tow_msg_done_t;
typedef Tow__Abort tow_msg_abort_t;
typedef Tow__ShardPut tow_msg_shard_put_t;
typedef Tow__ShardPutOpened tow_msg_shard_put_opened_t;
typedef Tow__ShardPutDone tow_msg_shard_put_done_t;
typedef Tow__ShardGet tow_msg_shard_get_t;
typedef Tow__ShardGetDone tow_msg_shard_get_done_t;
typedef Tow__ShardRegroup tow_msg_shard_regroup_t;
typedef Tow__Spill tow_msg_spill_t;
typedef Tow__Unspill tow_msg_unspill_t;
typedef Tow__SpillDone tow_msg_spill_done_t;
typedef Tow__PeerOpen tow_msg_peer_open_t;
typedef Tow__EdgeOffer tow_msg_edge_offer_t;
typedef Tow__EdgePiece tow_msg_edge_piece_t;
typedef Tow__EdgeSize tow_msg_edge_size_t;
typedef Tow__RelayGrant tow_msg_relay_grant_t;
typedef Tow__PassedGrant tow_msg_passed_grant_t;
typedef Tow__Sequence tow_msg_sequence_t;
typedef Tow__RelayDone tow_msg_relay_done_t;
typedef Tow__RelayLost tow_msg_relay_lost_t;
typedef Tow__PassedDone tow_msg_passed_done_t;
typedef Tow__SignatureArray tow_msg_signature_array_t;
typedef Tow__SignatureAlias tow_msg_signature_alias_t;
typedef Tow__ExecutableSignature tow_msg_executable_signature_t;
typedef Tow__PartitionValue tow_msg_partition_value_t;
typedef Tow__PartitionQuestion tow_msg_partition_question_t;
typedef Tow__PartitionAnswer tow_msg_partition_answer_t;

#define TOW_MSG_HELLO_INIT              TOW__HELLO__INIT
#define TOW_MSG_PROOF_INIT              TOW__PROOF__INIT
#define TOW_MSG_WELCOME_INIT            TOW__WELCOME__INIT
#define TOW_MSG_REFUSE_INIT             TOW__REFUSE__INIT
#define TOW_MSG_EXCHANGE_INIT           TOW__EXCHANGE__INIT
#define TOW_MSG_EXCHANGE_ACK_INIT       TOW__EXCHANGE_ACK__INIT
#define TOW_MSG_LANE_OFFER_INIT         TOW__LANE_OFFER__INIT
#define TOW_MSG_LANE_RESULT_INIT        TOW__LANE_RESULT__INIT
#define TOW_MSG_SESSION_RESUME_INIT     TOW__SESSION_RESUME__INIT
#define TOW_MSG_SESSION_ACK_INIT        TOW__SESSION_ACK__INIT
#define TOW_MSG_SESSION_END_INIT        TOW__SESSION_END__INIT
#define TOW_MSG_BLOB_INIT               TOW__BLOB__INIT
#define TOW_MSG_FAILURE_INIT            TOW__FAILURE__INIT
#define TOW_MSG_RUN_FAILURE_INIT        TOW__RUN_FAILURE__INIT
#define TOW_MSG_ARRAY_TYPE_INIT         TOW__ARRAY_TYPE__INIT
#define TOW_MSG_DEVICE_INIT             TOW__DEVICE__INIT
#define TOW_MSG_LANE_TARGET_INIT        TOW__LANE_TARGET__INIT
#define TOW_MSG_SHARDING_INIT           TOW__SHARDING__INIT
#define TOW_MSG_COLLECTIVE_INIT         TOW__COLLECTIVE__INIT
#define TOW_MSG_GRAPH_NODE_INIT         TOW__GRAPH_NODE__INIT
#define TOW_MSG_GRAPH_INIT              TOW__GRAPH__INIT
#define TOW_MSG_PIECE_INIT              TOW__PIECE__INIT
#define TOW_MSG_ROUTE_INIT              TOW__ROUTE__INIT
#define TOW_MSG_MEMBERS_INIT            TOW__MEMBERS__INIT
#define TOW_MSG_COLLECTIVE_PART_INIT    TOW__COLLECTIVE_PART__INIT
#define TOW_MSG_LOWERED_STEP_INIT       TOW__LOWERED_STEP__INIT
#define TOW_MSG_LOWERED_INIT            TOW__LOWERED__INIT
#define TOW_MSG_CLIENT_OPEN_INIT        TOW__CLIENT_OPEN__INIT
#define TOW_MSG_CLIENT_OPENED_INIT      TOW__CLIENT_OPENED__INIT
#define TOW_MSG_SLICE_OPEN_INIT         TOW__SLICE_OPEN__INIT
#define TOW_MSG_SLICE_OPENED_INIT       TOW__SLICE_OPENED__INIT
#define TOW_MSG_SLICE_CLOSE_INIT        TOW__SLICE_CLOSE__INIT
#define TOW_MSG_COMPILE_INIT            TOW__COMPILE__INIT
#define TOW_MSG_COMPILE_DONE_INIT       TOW__COMPILE_DONE__INIT
#define TOW_MSG_FUNCTION_DROP_INIT      TOW__FUNCTION_DROP__INIT
#define TOW_MSG_PROGRAM_ADD_INIT        TOW__PROGRAM_ADD__INIT
#define TOW_MSG_PROGRAM_ADDED_INIT      TOW__PROGRAM_ADDED__INIT
#define TOW_MSG_PROGRAM_DROP_INIT       TOW__PROGRAM_DROP__INIT
#define TOW_MSG_PUT_INIT                TOW__PUT__INIT
#define TOW_MSG_PUT_OPENED_INIT         TOW__PUT_OPENED__INIT
#define TOW_MSG_PUT_DONE_INIT           TOW__PUT_DONE__INIT
#define TOW_MSG_RUN_INIT                TOW__RUN__INIT
#define TOW_MSG_RUNS_DONE_INIT          TOW__RUNS_DONE__INIT
#define TOW_MSG_CANCEL_INIT             TOW__CANCEL__INIT
#define TOW_MSG_RELEASE_INIT            TOW__RELEASE__INIT
#define TOW_MSG_GET_INIT                TOW__GET__INIT
#define TOW_MSG_GET_DONE_INIT           TOW__GET_DONE__INIT
#define TOW_MSG_REPORT_GET_INIT         TOW__REPORT_GET__INIT
#define TOW_MSG_REPORT_INIT             TOW__REPORT__INIT
#define TOW_MSG_REGROUP_INIT            TOW__REGROUP__INIT
#define TOW_MSG_COPY_INIT               TOW__COPY__INIT
#define TOW_MSG_CALLBACK_INIT           TOW__CALLBACK__INIT
#define TOW_MSG_CALLBACK_DONE_INIT      TOW__CALLBACK_DONE__INIT
#define TOW_MSG_RUN_LATE_INIT           TOW__RUN_LATE__INIT
#define TOW_MSG_QUESTION_INIT           TOW__QUESTION__INIT
#define TOW_MSG_ANSWER_INIT             TOW__ANSWER__INIT
#define TOW_MSG_PARTITION_VALUE_INIT    TOW__PARTITION_VALUE__INIT
#define TOW_MSG_PARTITION_QUESTION_INIT TOW__PARTITION_QUESTION__INIT
#define TOW_MSG_PARTITION_ANSWER_INIT   TOW__PARTITION_ANSWER__INIT
#define TOW_MSG_WAIT_INIT               TOW__WAIT__INIT
#define TOW_MSG_WORKER_JOIN_INIT        TOW__WORKER_JOIN__INIT
#define TOW_MSG_WORKER_JOINED_INIT      TOW__WORKER_JOINED__INIT
#define TOW_MSG_PEER_INIT               TOW__PEER__INIT
#define TOW_MSG_PEER_GONE_INIT          TOW__PEER_GONE__INIT
#define TOW_MSG_LOAD_INIT               TOW__LOAD__INIT
#define TOW_MSG_LOAD_DONE_INIT          TOW__LOAD_DONE__INIT
#define TOW_MSG_UNLOAD_INIT             TOW__UNLOAD__INIT
#define TOW_MSG_PROGRAM_LOAD_INIT       TOW__PROGRAM_LOAD__INIT
#define TOW_MSG_PROGRAM_UNLOAD_INIT     TOW__PROGRAM_UNLOAD__INIT
#define TOW_MSG_GRANT_INIT              TOW__GRANT__INIT
#define TOW_MSG_DONE_INIT               TOW__DONE__INIT
#define TOW_MSG_ABORT_INIT              TOW__ABORT__INIT
#define TOW_MSG_SHARD_PUT_INIT          TOW__SHARD_PUT__INIT
#define TOW_MSG_SHARD_PUT_OPENED_INIT   TOW__SHARD_PUT_OPENED__INIT
#define TOW_MSG_SHARD_PUT_DONE_INIT     TOW__SHARD_PUT_DONE__INIT
#define TOW_MSG_SHARD_GET_INIT          TOW__SHARD_GET__INIT
#define TOW_MSG_SHARD_GET_DONE_INIT     TOW__SHARD_GET_DONE__INIT
#define TOW_MSG_SHARD_REGROUP_INIT      TOW__SHARD_REGROUP__INIT
#define TOW_MSG_SPILL_INIT              TOW__SPILL__INIT
#define TOW_MSG_UNSPILL_INIT            TOW__UNSPILL__INIT
#define TOW_MSG_SPILL_DONE_INIT         TOW__SPILL_DONE__INIT
#define TOW_MSG_PEER_OPEN_INIT          TOW__PEER_OPEN__INIT
#define TOW_MSG_EDGE_OFFER_INIT         TOW__EDGE_OFFER__INIT
#define TOW_MSG_EDGE_PIECE_INIT         TOW__EDGE_PIECE__INIT
#define TOW_MSG_EDGE_SIZE_INIT          TOW__EDGE_SIZE__INIT
#define TOW_MSG_RELAY_GRANT_INIT        TOW__RELAY_GRANT__INIT
#define TOW_MSG_PASSED_GRANT_INIT       TOW__PASSED_GRANT__INIT
#define TOW_MSG_SEQUENCE_INIT           TOW__SEQUENCE__INIT
#define TOW_MSG_RELAY_DONE_INIT         TOW__RELAY_DONE__INIT
#define TOW_MSG_RELAY_LOST_INIT         TOW__RELAY_LOST__INIT
#define TOW_MSG_PASSED_DONE_INIT        TOW__PASSED_DONE__INIT

#define TOW_MSG_SIGNATURE_ARRAY_INIT      TOW__SIGNATURE_ARRAY__INIT
#define TOW_MSG_SIGNATURE_ALIAS_INIT      TOW__SIGNATURE_ALIAS__INIT
#define TOW_MSG_EXECUTABLE_SIGNATURE_INIT TOW__EXECUTABLE_SIGNATURE__INIT

/* What ReportGet asks for. */
typedef enum tow_report_kind {
    TOW_REPORT_STATUS = 1, /* JSON: what there is and what it does */
    TOW_REPORT_TRACE = 2,  /* JSON: trace events, as Perfetto reads them */
    TOW_REPORT_MEMORY = 3, /* a line a device, in bytes: ID LIMIT OBJECTS RUNS
                              PEAK; no worker is asked */
    TOW_REPORT_CODE = 4,   /* a function as its compiler wrote it */
    /* The same events as lines, times in nanoseconds of the controller's clock:
     * "process P NAME", "thread P T NAME", "event P T START DURATION NAME". */
    TOW_REPORT_SPANS = 5,
    /* Of a worker: only `waits`, which its status has, too. */
    TOW_REPORT_WAITS = 6,
} tow_report_kind_t;

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

/* The same for a message that is no frame of its own: it travels inside of
 * another, or through a pipe. */
tow_status_t tow_body_decode(const tow_limits_t *limits, const uint8_t *bytes,
                             size_t count, tow_arena_t *arena,
                             const tow_body_t **out_body) TOW_MUST_USE;

/* "Exchange"; "?" for a type that is not known. Static. */
const char *tow_message_type_name(uint32_t type);

/* The limits of a type, NULL if it is not known. For tests. */
const tow_limits_t *tow_message_limits(uint32_t type);
/* Of tow_msg_executable_signature_t. */
extern const tow_limits_t tow_executable_signature_limits;
/* Of tow_msg_partition_question_t and tow_msg_partition_answer_t. */
extern const tow_limits_t tow_partition_question_limits;
extern const tow_limits_t tow_partition_answer_limits;

#endif /* TOW_WIRE_MESSAGE_H_ */
