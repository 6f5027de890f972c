/* The limits of each message, by field number: every string, bytes, repeated
 * and message field has one. */
#include "wire/message.h"

#include "wire/handshake.h"

#define FIELD(number)  [(number)-1]
#define RANK_MAX       32u
#define SLICE_DIMS_MAX 3u

#define LIMITS(message, ...)                         \
    static const tow_limits_t message##_limits = {   \
        .descriptor = &tow__##message##__descriptor, \
        .fields = {__VA_ARGS__},                     \
    }

LIMITS(hello, FIELD(1) = {.bytes_max = TOW_NONCE_SIZE},
       FIELD(2) = {.bytes_max = TOW_IDENTITY_NAME_MAX},
       FIELD(5) = {.bytes_max = TOW_SOFTWARE_MAX},
       FIELD(6) = {.bytes_max = TOW_PROOF_SIZE});
LIMITS(proof, FIELD(1) = {.bytes_max = TOW_PROOF_SIZE});
LIMITS(welcome, {0});
LIMITS(refuse, FIELD(2) = {.bytes_max = TOW_REFUSE_REASON_MAX});
LIMITS(session_resume, {0});
LIMITS(session_ack, {0});
LIMITS(session_end, FIELD(2) = {.bytes_max = TOW_REFUSE_REASON_MAX});
LIMITS(blob, FIELD(4) = {.bytes_max = TOW_BLOB_PART_MAX});
LIMITS(failure, FIELD(2) = {.bytes_max = TOW_FAILURE_MESSAGE_MAX});
LIMITS(run_failure, FIELD(2) = {.nested = &failure_limits});
LIMITS(array_type, FIELD(2) = {.count_max = RANK_MAX});
LIMITS(device, FIELD(2) = {.bytes_max = TOW_NAME_MAX},
       FIELD(3) = {.bytes_max = TOW_NAME_MAX},
       FIELD(5) = {.bytes_max = TOW_NAME_MAX},
       FIELD(6) = {.bytes_max = TOW_NAME_MAX},
       FIELD(7) = {.bytes_max = TOW_NAME_MAX});
LIMITS(lane_target, FIELD(1) = {.bytes_max = TOW_LANE_ADDRESS_MAX});
LIMITS(sharding, FIELD(1) = {.count_max = RANK_MAX},
       FIELD(3) = {.count_max = TOW_MESH_RANK_MAX},
       FIELD(4) = {.count_max = TOW_MESH_RANK_MAX});
LIMITS(collective, FIELD(3) = {.count_max = TOW_MESH_RANK_MAX},
       FIELD(4) = {.count_max = TOW_MESH_RANK_MAX});
LIMITS(graph_node, FIELD(2) = {.bytes_max = TOW_NAME_MAX},
       FIELD(5) = {.count_max = TOW_VALUES_MAX},
       FIELD(6) = {.count_max = TOW_VALUES_MAX},
       FIELD(7) = {.nested = &array_type_limits},
       FIELD(9) = {.nested = &sharding_limits},
       FIELD(10) = {.nested = &sharding_limits},
       FIELD(12) = {.nested = &collective_limits});
LIMITS(graph, FIELD(1) = {.bytes_max = TOW_NAME_MAX},
       FIELD(2) = {.count_max = TOW_NODES_MAX, .nested = &graph_node_limits});
LIMITS(piece, FIELD(6) = {.count_max = RANK_MAX},
       FIELD(7) = {.count_max = RANK_MAX}, FIELD(8) = {.count_max = RANK_MAX});
LIMITS(route, FIELD(1) = {.nested = &array_type_limits},
       FIELD(2) = {.nested = &array_type_limits},
       FIELD(3) = {.count_max = TOW_PIECES_MAX, .nested = &piece_limits},
       FIELD(4) = {.count_max = TOW_PIECES_MAX, .nested = &piece_limits},
       FIELD(5) = {.count_max = TOW_WORKER_DEVICES_MAX});
LIMITS(members, FIELD(2) = {.count_max = TOW_DEVICES_MAX},
       FIELD(4) = {.count_max = TOW_WORKER_DEVICES_MAX});
LIMITS(collective_part,
       FIELD(3) = {.count_max = TOW_VALUES_MAX, .nested = &array_type_limits},
       FIELD(4) = {.count_max = TOW_WORKER_DEVICES_MAX},
       FIELD(5) = {.count_max = TOW_WORKER_DEVICES_MAX,
                   .nested = &members_limits});
LIMITS(lowered_step, FIELD(2) = {.count_max = TOW_VALUES_MAX},
       FIELD(4) = {.count_max = TOW_VALUES_MAX},
       /* Inputs, and unused outputs. */
       FIELD(5) = {.count_max = 2 * TOW_VALUES_MAX},
       FIELD(9) = {.nested = &route_limits},
       FIELD(13) = {.nested = &collective_part_limits},
       FIELD(17) = {.bytes_max = TOW_NAME_MAX});
LIMITS(lowered, FIELD(3) = {.count_max = TOW_VALUES_MAX},
       FIELD(4) = {.count_max = TOW_NODES_MAX, .nested = &lowered_step_limits});
LIMITS(client_open, FIELD(1) = {.bytes_max = TOW_NAME_MAX});
LIMITS(client_opened, FIELD(3) = {.nested = &failure_limits});
LIMITS(slice_open, FIELD(2) = {.bytes_max = TOW_NAME_MAX},
       FIELD(3) = {.count_max = SLICE_DIMS_MAX},
       FIELD(4) = {.count_max = TOW_DEVICES_MAX},
       FIELD(5) = {.bytes_max = TOW_NAME_MAX});
LIMITS(slice_opened, FIELD(2) = {.nested = &failure_limits},
       FIELD(3) = {.count_max = TOW_DEVICES_MAX, .nested = &device_limits},
       FIELD(4) = {.bytes_max = TOW_NAME_MAX});
LIMITS(slice_close, {0});
LIMITS(compile, {0});
LIMITS(compile_done, FIELD(2) = {.nested = &failure_limits},
       FIELD(3) = {.bytes_max = TOW_SIGNATURE_BYTES_MAX});
LIMITS(partition_query, FIELD(3) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(partition_reply, FIELD(3) = {.nested = &failure_limits},
       FIELD(4) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(function_discard, {0});
LIMITS(program_add, {0});
LIMITS(program_added, FIELD(2) = {.nested = &failure_limits});
LIMITS(program_discard, {0});
LIMITS(put, FIELD(3) = {.nested = &array_type_limits},
       FIELD(5) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(put_opened, FIELD(2) = {.count_max = TOW_WORKER_DEVICES_MAX,
                               .nested = &lane_target_limits});
LIMITS(put_done, FIELD(2) = {.nested = &failure_limits});
LIMITS(run, FIELD(3) = {.count_max = TOW_VALUES_MAX});
LIMITS(runs_done, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX, .nested = &run_failure_limits});
LIMITS(cancel, FIELD(2) = {.nested = &failure_limits});
LIMITS(release, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX});
LIMITS(get, FIELD(4) = {.nested = &lane_target_limits});
LIMITS(get_done, FIELD(2) = {.nested = &failure_limits},
       FIELD(3) = {.bytes_max = TOW_INLINE_BYTES_MAX},
       FIELD(4) = {.count_max = RANK_MAX});
LIMITS(assemble, FIELD(3) = {.count_max = TOW_DEVICES_MAX},
       FIELD(4) = {.count_max = TOW_DEVICES_MAX});
LIMITS(copy, {0});
LIMITS(lane_invite, FIELD(1) = {.bytes_max = TOW_LANE_ADDRESS_MAX});
LIMITS(callback, FIELD(5) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(callback_done, FIELD(2) = {.nested = &failure_limits},
       FIELD(3) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(run_stalled, FIELD(3) = {.bytes_max = TOW_STALL_TEXT_MAX});
LIMITS(report_get, {0});
LIMITS(wait, FIELD(4) = {.count_max = TOW_WAIT_MISSING_MAX});
LIMITS(report, FIELD(3) = {.nested = &failure_limits},
       FIELD(4) = {.count_max = TOW_WORKER_DEVICES_MAX,
                   .nested = &wait_limits});
LIMITS(worker_join, FIELD(2) = {.bytes_max = TOW_NAME_MAX},
       FIELD(3) = {.bytes_max = TOW_NAME_MAX},
       FIELD(4) = {.bytes_max = TOW_NAME_MAX},
       FIELD(6) = {.count_max = TOW_WORKER_DEVICES_MAX,
                   .nested = &device_limits},
       FIELD(7) = {.nested = &lane_target_limits},
       FIELD(8) = {.bytes_max = TOW_PEER_ADDRESS_MAX},
       FIELD(9) = {.bytes_max = TOW_NAME_MAX},
       FIELD(10) = {.bytes_max = TOW_NAME_MAX},
       FIELD(13) = {.bytes_max = TOW_WORKER_NAME_MAX});
LIMITS(worker_enrol, FIELD(1) = {.bytes_max = TOW_NAME_MAX},
       FIELD(2) = {.bytes_max = TOW_WORKER_NAME_MAX},
       FIELD(5) = {.nested = &failure_limits});
LIMITS(worker_joined, FIELD(2) = {.nested = &failure_limits});
LIMITS(peer, FIELD(2) = {.bytes_max = TOW_NAME_MAX},
       FIELD(3) = {.bytes_max = TOW_NAME_MAX},
       FIELD(4) = {.nested = &lane_target_limits},
       FIELD(6) = {.bytes_max = TOW_PEER_ADDRESS_MAX},
       FIELD(8) = {.bytes_max = TOW_NAME_MAX});
LIMITS(peer_disconnected, FIELD(2) = {.nested = &failure_limits});
LIMITS(load, FIELD(4) = {.count_max = TOW_WORKER_DEVICES_MAX},
       FIELD(5) = {.count_max = TOW_WORKER_DEVICES_MAX});
LIMITS(load_done, FIELD(2) = {.nested = &failure_limits});
LIMITS(unload, {0});
LIMITS(program_load, {0});
LIMITS(program_unload, {0});
LIMITS(grant, FIELD(3) = {.count_max = TOW_VALUES_MAX});
LIMITS(done, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX, .nested = &run_failure_limits},
       FIELD(3) = {.count_max = TOW_BATCH_MAX},
       FIELD(4) = {.count_max = TOW_BATCH_MAX},
       FIELD(5) = {.count_max = TOW_BATCH_MAX},
       FIELD(6) = {.count_max = TOW_BATCH_MAX},
       FIELD(7) = {.count_max = TOW_BATCH_MAX},
       FIELD(8) = {.count_max = TOW_BATCH_MAX},
       FIELD(9) = {.count_max = TOW_BATCH_MAX},
       FIELD(10) = {.count_max = TOW_BATCH_MAX});
LIMITS(abort, FIELD(2) = {.nested = &failure_limits});
LIMITS(shard_put, FIELD(2) = {.nested = &array_type_limits},
       FIELD(3) = {.count_max = TOW_WORKER_DEVICES_MAX},
       FIELD(5) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(shard_put_opened, FIELD(2) = {.count_max = TOW_WORKER_DEVICES_MAX,
                                     .nested = &lane_target_limits});
LIMITS(shard_put_done, FIELD(2) = {.nested = &failure_limits});
LIMITS(shard_get, FIELD(4) = {.nested = &lane_target_limits});
LIMITS(shard_get_done, FIELD(2) = {.nested = &failure_limits},
       FIELD(3) = {.bytes_max = TOW_INLINE_BYTES_MAX},
       FIELD(4) = {.count_max = RANK_MAX});
LIMITS(shard_assemble, FIELD(2) = {.count_max = TOW_WORKER_DEVICES_MAX},
       FIELD(3) = {.count_max = TOW_WORKER_DEVICES_MAX});
LIMITS(relay_grant, FIELD(1) = {.nested = &grant_limits},
       FIELD(2) = {.count_max = TOW_RELAY_FANOUT_MAX},
       FIELD(3) = {.count_max = TOW_RELAY_FANOUT_MAX});
LIMITS(forwarded_grant, FIELD(1) = {.nested = &grant_limits});
LIMITS(sequence, {0});
LIMITS(relay_done, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX},
       FIELD(3) = {.count_max = TOW_BATCH_MAX},
       FIELD(4) = {.count_max = TOW_BATCH_MAX},
       FIELD(5) = {.count_max = TOW_BATCH_MAX},
       FIELD(6) = {.count_max = TOW_BATCH_MAX},
       FIELD(7) = {.count_max = TOW_BATCH_MAX},
       FIELD(8) = {.count_max = TOW_BATCH_MAX},
       FIELD(9) = {.count_max = TOW_BATCH_MAX},
       FIELD(10) = {.count_max = TOW_BATCH_MAX},
       FIELD(11) = {.count_max = TOW_BATCH_MAX},
       FIELD(12) = {.count_max = TOW_BATCH_MAX},
       FIELD(13) = {.count_max = TOW_BATCH_MAX},
       FIELD(14) = {.count_max = TOW_BATCH_MAX},
       FIELD(15) = {.count_max = TOW_BATCH_MAX});
LIMITS(relay_disconnected, {0});
LIMITS(spill, {0});
LIMITS(unspill, {0});
LIMITS(spill_done, FIELD(4) = {.nested = &failure_limits});
LIMITS(peer_open, {0});
LIMITS(edge_offer, FIELD(3) = {.nested = &lane_target_limits});
LIMITS(edge_piece, FIELD(4) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(edge_size, FIELD(3) = {.count_max = RANK_MAX});
LIMITS(forwarded_done, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX},
       FIELD(3) = {.count_max = TOW_BATCH_MAX},
       FIELD(4) = {.count_max = TOW_BATCH_MAX},
       FIELD(5) = {.count_max = TOW_BATCH_MAX},
       FIELD(6) = {.count_max = TOW_BATCH_MAX},
       FIELD(7) = {.count_max = TOW_BATCH_MAX},
       FIELD(8) = {.count_max = TOW_BATCH_MAX},
       FIELD(9) = {.count_max = TOW_BATCH_MAX});

LIMITS(signature_array, FIELD(2) = {.count_max = RANK_MAX},
       FIELD(4) = {.bytes_max = TOW_SHARDING_BYTES_MAX},
       FIELD(8) = {.bytes_max = RANK_MAX});
LIMITS(signature_alias, {0});
const tow_limits_t tow_executable_signature_limits = {
    .descriptor = &tow__executable_signature__descriptor,
    .fields = {FIELD(1) = {.bytes_max = TOW_NAME_MAX},
               FIELD(5) = {.count_max = TOW_VALUES_MAX,
                           .nested = &signature_array_limits},
               FIELD(6) = {.count_max = TOW_VALUES_MAX,
                           .nested = &signature_array_limits},
               FIELD(7) = {.count_max = TOW_VALUES_MAX,
                           .nested = &signature_alias_limits}},
};

LIMITS(partition_value, FIELD(1) = {.bytes_max = TOW_SHARDING_BYTES_MAX},
       FIELD(2) = {.bytes_max = TOW_SHARDING_BYTES_MAX});
const tow_limits_t tow_partition_query_content_limits = {
    .descriptor = &tow__partition_query_content__descriptor,
    .fields = {FIELD(2) = {.bytes_max = TOW_NAME_MAX},
               FIELD(3) = {.bytes_max = TOW_PARTITION_CONFIG_MAX},
               FIELD(4) = {.count_max = TOW_VALUES_MAX,
                           .nested = &partition_value_limits},
               FIELD(5) = {.nested = &partition_value_limits}},
};
const tow_limits_t tow_partition_reply_content_limits = {
    .descriptor = &tow__partition_reply_content__descriptor,
    .fields = {FIELD(1) = {.bytes_max = TOW_PARTITION_PROGRAM_MAX},
               FIELD(2) = {.count_max = TOW_VALUES_MAX,
                           .bytes_max = TOW_SHARDING_BYTES_MAX},
               FIELD(3) = {.bytes_max = TOW_SHARDING_BYTES_MAX}},
};

#define ROW(NAME, name) [TOW_MESSAGE_##NAME] = &name##_limits,
static const tow_limits_t *const limits_of[TOW_MESSAGE_TYPE_COUNT] = {
    TOW_MESSAGES(ROW)};

const tow_limits_t *tow_message_limits(uint32_t type)
{
    return type < TOW_MESSAGE_TYPE_COUNT ? limits_of[type] : NULL;
}
