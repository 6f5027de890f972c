/* What a peer may send in each field of each message: every field that can be
 * made long is here, by its number. */
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
LIMITS(exchange, FIELD(3) = {.bytes_max = TOW_EXCHANGE_PAYLOAD_MAX});
LIMITS(exchange_ack, {0});
LIMITS(lane_offer, FIELD(1) = {.bytes_max = TOW_LANE_ADDRESS_MAX});
LIMITS(lane_result, {0});
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
       /* Inputs, and outputs that nobody uses. */
       FIELD(5) = {.count_max = 2 * TOW_VALUES_MAX},
       FIELD(9) = {.nested = &route_limits},
       FIELD(13) = {.nested = &collective_part_limits});
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
LIMITS(question, FIELD(3) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(answer, FIELD(3) = {.nested = &failure_limits},
       FIELD(4) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(function_drop, {0});
LIMITS(program_add, {0});
LIMITS(program_added, FIELD(2) = {.nested = &failure_limits});
LIMITS(program_drop, {0});
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
LIMITS(regroup, FIELD(3) = {.count_max = TOW_DEVICES_MAX},
       FIELD(4) = {.count_max = TOW_DEVICES_MAX});
LIMITS(copy, {0});
LIMITS(callback, FIELD(5) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(callback_done, FIELD(2) = {.nested = &failure_limits},
       FIELD(3) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(run_late, FIELD(3) = {.bytes_max = TOW_LATE_TEXT_MAX});
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
       FIELD(8) = {.bytes_max = TOW_DOOR_MAX},
       FIELD(9) = {.bytes_max = TOW_NAME_MAX},
       FIELD(10) = {.bytes_max = TOW_NAME_MAX});
LIMITS(worker_joined, FIELD(2) = {.nested = &failure_limits});
LIMITS(peer, FIELD(2) = {.bytes_max = TOW_NAME_MAX},
       FIELD(3) = {.bytes_max = TOW_NAME_MAX},
       FIELD(4) = {.nested = &lane_target_limits},
       FIELD(6) = {.bytes_max = TOW_DOOR_MAX});
LIMITS(peer_gone, FIELD(2) = {.nested = &failure_limits});
LIMITS(load, FIELD(4) = {.count_max = TOW_WORKER_DEVICES_MAX},
       FIELD(5) = {.count_max = TOW_WORKER_DEVICES_MAX});
LIMITS(load_done, FIELD(2) = {.nested = &failure_limits});
LIMITS(unload, {0});
LIMITS(program_load, {0});
LIMITS(program_unload, {0});
LIMITS(grant, FIELD(3) = {.count_max = TOW_VALUES_MAX});
LIMITS(done, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX, .nested = &run_failure_limits});
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
LIMITS(shard_regroup, FIELD(2) = {.count_max = TOW_WORKER_DEVICES_MAX},
       FIELD(3) = {.count_max = TOW_WORKER_DEVICES_MAX});
LIMITS(relay_grant, FIELD(1) = {.nested = &grant_limits},
       FIELD(2) = {.count_max = TOW_RELAY_FANOUT_MAX},
       FIELD(3) = {.count_max = TOW_RELAY_FANOUT_MAX});
LIMITS(passed_grant, FIELD(1) = {.nested = &grant_limits});
LIMITS(sequence, {0});
LIMITS(relay_done, FIELD(1) = {.count_max = TOW_BATCH_MAX},
       FIELD(2) = {.count_max = TOW_BATCH_MAX},
       FIELD(3) = {.count_max = TOW_BATCH_MAX});
LIMITS(relay_lost, {0});
LIMITS(spill, {0});
LIMITS(unspill, {0});
LIMITS(spill_done, FIELD(4) = {.nested = &failure_limits});
LIMITS(peer_open, {0});
LIMITS(edge_offer, FIELD(3) = {.nested = &lane_target_limits});
LIMITS(edge_piece, FIELD(4) = {.bytes_max = TOW_INLINE_BYTES_MAX});
LIMITS(edge_size, FIELD(3) = {.count_max = RANK_MAX});
LIMITS(passed_done, FIELD(1) = {.count_max = TOW_BATCH_MAX});

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
const tow_limits_t tow_partition_question_limits = {
    .descriptor = &tow__partition_question__descriptor,
    .fields = {FIELD(2) = {.bytes_max = TOW_NAME_MAX},
               FIELD(3) = {.bytes_max = TOW_QUESTION_CONFIG_MAX},
               FIELD(4) = {.count_max = TOW_VALUES_MAX,
                           .nested = &partition_value_limits},
               FIELD(5) = {.nested = &partition_value_limits}},
};
const tow_limits_t tow_partition_answer_limits = {
    .descriptor = &tow__partition_answer__descriptor,
    .fields = {FIELD(1) = {.bytes_max = TOW_ANSWER_PROGRAM_MAX},
               FIELD(2) = {.count_max = TOW_VALUES_MAX,
                           .bytes_max = TOW_SHARDING_BYTES_MAX},
               FIELD(3) = {.bytes_max = TOW_SHARDING_BYTES_MAX}},
};

static const tow_limits_t *const limits_of[TOW_MESSAGE_TYPE_COUNT] = {
    [TOW_MESSAGE_HELLO] = &hello_limits,
    [TOW_MESSAGE_PROOF] = &proof_limits,
    [TOW_MESSAGE_WELCOME] = &welcome_limits,
    [TOW_MESSAGE_REFUSE] = &refuse_limits,
    [TOW_MESSAGE_EXCHANGE] = &exchange_limits,
    [TOW_MESSAGE_EXCHANGE_ACK] = &exchange_ack_limits,
    [TOW_MESSAGE_LANE_OFFER] = &lane_offer_limits,
    [TOW_MESSAGE_LANE_RESULT] = &lane_result_limits,
    [TOW_MESSAGE_SESSION_RESUME] = &session_resume_limits,
    [TOW_MESSAGE_SESSION_ACK] = &session_ack_limits,
    [TOW_MESSAGE_SESSION_END] = &session_end_limits,
    [TOW_MESSAGE_BLOB] = &blob_limits,
    [TOW_MESSAGE_CLIENT_OPEN] = &client_open_limits,
    [TOW_MESSAGE_CLIENT_OPENED] = &client_opened_limits,
    [TOW_MESSAGE_SLICE_OPEN] = &slice_open_limits,
    [TOW_MESSAGE_SLICE_OPENED] = &slice_opened_limits,
    [TOW_MESSAGE_SLICE_CLOSE] = &slice_close_limits,
    [TOW_MESSAGE_COMPILE] = &compile_limits,
    [TOW_MESSAGE_COMPILE_DONE] = &compile_done_limits,
    [TOW_MESSAGE_FUNCTION_DROP] = &function_drop_limits,
    [TOW_MESSAGE_PROGRAM_ADD] = &program_add_limits,
    [TOW_MESSAGE_PROGRAM_ADDED] = &program_added_limits,
    [TOW_MESSAGE_PROGRAM_DROP] = &program_drop_limits,
    [TOW_MESSAGE_PUT] = &put_limits,
    [TOW_MESSAGE_PUT_OPENED] = &put_opened_limits,
    [TOW_MESSAGE_PUT_DONE] = &put_done_limits,
    [TOW_MESSAGE_RUN] = &run_limits,
    [TOW_MESSAGE_RUNS_DONE] = &runs_done_limits,
    [TOW_MESSAGE_CANCEL] = &cancel_limits,
    [TOW_MESSAGE_RELEASE] = &release_limits,
    [TOW_MESSAGE_GET] = &get_limits,
    [TOW_MESSAGE_GET_DONE] = &get_done_limits,
    [TOW_MESSAGE_REPORT_GET] = &report_get_limits,
    [TOW_MESSAGE_REPORT] = &report_limits,
    [TOW_MESSAGE_REGROUP] = &regroup_limits,
    [TOW_MESSAGE_COPY] = &copy_limits,
    [TOW_MESSAGE_CALLBACK] = &callback_limits,
    [TOW_MESSAGE_CALLBACK_DONE] = &callback_done_limits,
    [TOW_MESSAGE_RUN_LATE] = &run_late_limits,
    [TOW_MESSAGE_QUESTION] = &question_limits,
    [TOW_MESSAGE_ANSWER] = &answer_limits,
    [TOW_MESSAGE_WORKER_JOIN] = &worker_join_limits,
    [TOW_MESSAGE_WORKER_JOINED] = &worker_joined_limits,
    [TOW_MESSAGE_PEER] = &peer_limits,
    [TOW_MESSAGE_PEER_GONE] = &peer_gone_limits,
    [TOW_MESSAGE_LOAD] = &load_limits,
    [TOW_MESSAGE_LOAD_DONE] = &load_done_limits,
    [TOW_MESSAGE_UNLOAD] = &unload_limits,
    [TOW_MESSAGE_PROGRAM_LOAD] = &program_load_limits,
    [TOW_MESSAGE_PROGRAM_UNLOAD] = &program_unload_limits,
    [TOW_MESSAGE_GRANT] = &grant_limits,
    [TOW_MESSAGE_DONE] = &done_limits,
    [TOW_MESSAGE_ABORT] = &abort_limits,
    [TOW_MESSAGE_SHARD_PUT] = &shard_put_limits,
    [TOW_MESSAGE_SHARD_PUT_OPENED] = &shard_put_opened_limits,
    [TOW_MESSAGE_SHARD_PUT_DONE] = &shard_put_done_limits,
    [TOW_MESSAGE_SHARD_GET] = &shard_get_limits,
    [TOW_MESSAGE_SHARD_GET_DONE] = &shard_get_done_limits,
    [TOW_MESSAGE_SHARD_REGROUP] = &shard_regroup_limits,
    [TOW_MESSAGE_RELAY_GRANT] = &relay_grant_limits,
    [TOW_MESSAGE_PASSED_GRANT] = &passed_grant_limits,
    [TOW_MESSAGE_SEQUENCE] = &sequence_limits,
    [TOW_MESSAGE_RELAY_DONE] = &relay_done_limits,
    [TOW_MESSAGE_RELAY_LOST] = &relay_lost_limits,
    [TOW_MESSAGE_SPILL] = &spill_limits,
    [TOW_MESSAGE_UNSPILL] = &unspill_limits,
    [TOW_MESSAGE_SPILL_DONE] = &spill_done_limits,
    [TOW_MESSAGE_PEER_OPEN] = &peer_open_limits,
    [TOW_MESSAGE_EDGE_OFFER] = &edge_offer_limits,
    [TOW_MESSAGE_EDGE_PIECE] = &edge_piece_limits,
    [TOW_MESSAGE_PASSED_DONE] = &passed_done_limits,
    [TOW_MESSAGE_EDGE_SIZE] = &edge_size_limits,
    [TOW_MESSAGE_GRAPH] = &graph_limits,
    [TOW_MESSAGE_LOWERED] = &lowered_limits,
};

/* The schema and the header say the same numbers. */
#define SAME_NUMBER(name)                                           \
    _Static_assert((int)TOW_MESSAGE_##name ==                       \
                       (int)TOW__MESSAGE_TYPE__MESSAGE_TYPE_##name, \
                   #name " has two numbers")
SAME_NUMBER(HELLO);
SAME_NUMBER(PROOF);
SAME_NUMBER(WELCOME);
SAME_NUMBER(REFUSE);
SAME_NUMBER(EXCHANGE);
SAME_NUMBER(EXCHANGE_ACK);
SAME_NUMBER(LANE_OFFER);
SAME_NUMBER(LANE_RESULT);
SAME_NUMBER(SESSION_RESUME);
SAME_NUMBER(SESSION_ACK);
SAME_NUMBER(SESSION_END);
SAME_NUMBER(BLOB);
SAME_NUMBER(CLIENT_OPEN);
SAME_NUMBER(CLIENT_OPENED);
SAME_NUMBER(SLICE_OPEN);
SAME_NUMBER(SLICE_OPENED);
SAME_NUMBER(SLICE_CLOSE);
SAME_NUMBER(COMPILE);
SAME_NUMBER(COMPILE_DONE);
SAME_NUMBER(FUNCTION_DROP);
SAME_NUMBER(PROGRAM_ADD);
SAME_NUMBER(PROGRAM_ADDED);
SAME_NUMBER(PROGRAM_DROP);
SAME_NUMBER(PUT);
SAME_NUMBER(PUT_OPENED);
SAME_NUMBER(PUT_DONE);
SAME_NUMBER(RUN);
SAME_NUMBER(RUNS_DONE);
SAME_NUMBER(CANCEL);
SAME_NUMBER(RELEASE);
SAME_NUMBER(GET);
SAME_NUMBER(GET_DONE);
SAME_NUMBER(REPORT_GET);
SAME_NUMBER(REPORT);
SAME_NUMBER(REGROUP);
SAME_NUMBER(COPY);
SAME_NUMBER(RUN_LATE);
SAME_NUMBER(QUESTION);
SAME_NUMBER(ANSWER);
SAME_NUMBER(WORKER_JOIN);
SAME_NUMBER(WORKER_JOINED);
SAME_NUMBER(PEER);
SAME_NUMBER(PEER_GONE);
SAME_NUMBER(LOAD);
SAME_NUMBER(LOAD_DONE);
SAME_NUMBER(UNLOAD);
SAME_NUMBER(PROGRAM_LOAD);
SAME_NUMBER(PROGRAM_UNLOAD);
SAME_NUMBER(GRANT);
SAME_NUMBER(DONE);
SAME_NUMBER(ABORT);
SAME_NUMBER(SHARD_PUT);
SAME_NUMBER(SHARD_PUT_OPENED);
SAME_NUMBER(SHARD_PUT_DONE);
SAME_NUMBER(SHARD_GET);
SAME_NUMBER(SHARD_GET_DONE);
SAME_NUMBER(SHARD_REGROUP);
SAME_NUMBER(RELAY_GRANT);
SAME_NUMBER(PASSED_GRANT);
SAME_NUMBER(SEQUENCE);
SAME_NUMBER(RELAY_DONE);
SAME_NUMBER(RELAY_LOST);
SAME_NUMBER(SPILL);
SAME_NUMBER(UNSPILL);
SAME_NUMBER(SPILL_DONE);
SAME_NUMBER(PEER_OPEN);
SAME_NUMBER(EDGE_OFFER);
SAME_NUMBER(EDGE_PIECE);
SAME_NUMBER(PASSED_DONE);
SAME_NUMBER(EDGE_SIZE);
SAME_NUMBER(GRAPH);
SAME_NUMBER(LOWERED);

const tow_limits_t *tow_message_limits(uint32_t type)
{
    return type < TOW_MESSAGE_TYPE_COUNT ? limits_of[type] : NULL;
}
