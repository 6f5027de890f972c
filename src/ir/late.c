/* Late transfers: memory in the order of use.
 *
 * The order of a program has its transfers as early as possible. If memory
 * followed it, a step of 64 microbatches would hold all 64. So a large transfer
 * comes directly before the first step that uses its value. Its worker takes
 * the memory a few computations before that step, and the sender's computations
 * wait until the value has been sent. Both are waits for steps that come before
 * in one order, which all workers share: so the first unfinished step never
 * waits, and no wait is for ever. The cost of a program (cost.c) is the peak
 * along the same order, with the same waits.
 *
 * Not late are: small values; values that are results only, which stay until
 * the end anyway; values of unknown size; and transfers of a value that a
 * computation would donate, which has to come after them. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "ir/schedule_impl.h"
#include "ir/tuning.h"

/* -- Placing --------------------------------------------------------------- */

typedef struct placing {
    tow_schedule_t *schedule;
    const tow_graph_scope_t *scope;
    bool *is_donated; /* by slot: a function would donate it */
    bool *is_used;    /* by node, of transfers: by a step */
    bool *is_emitted; /* by node */
    uint32_t *order;  /* nodes */
    size_t count;
} placing_t;

/* The larger of one shard at the source and at the target. */
static tow_status_t size_shards(const placing_t *placing, uint32_t node,
                                uint64_t *out_bytes)
{
    const tow_graph_t *program = placing->schedule->program;
    tow_shape_t source, target;
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_value_shape(program, placing->scope,
                                        program->nodes.items[node].inputs[0],
                                        &source));
    TOW_RETURN_IF_ERROR(tow_value_shape(program, placing->scope,
                                        (tow_value_t){node, 0}, &target));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&source, &bytes));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&target, out_bytes));
    if (bytes > *out_bytes) *out_bytes = bytes;
    return TOW_OK;
}

static void note_inputs(placing_t *placing, size_t step)
{
    tow_schedule_t *schedule = placing->schedule;
    const tow_graph_t *program = schedule->program;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const tow_signature_t *signature = schedule->signatures[step];
    for (size_t i = 0; i < node->input_count; i++)
        if (program->nodes.items[node->inputs[i].node].kind ==
            TOW_NODE_TRANSFER)
            placing->is_used[node->inputs[i].node] = true;
    for (size_t i = 0; signature != NULL && i < signature->alias_count; i++) {
        const tow_value_t value = node->inputs[signature->aliases[i].argument];
        placing->is_donated[tow_schedule_slot(schedule, value)] = true;
    }
}

static tow_status_t mark_late(placing_t *placing, size_t step)
{
    tow_schedule_t *schedule = placing->schedule;
    const uint32_t node = schedule->nodes[step];
    const tow_node_t *it = tow_schedule_node(schedule, step);
    uint64_t bytes = 0;
    if (it->kind != TOW_NODE_TRANSFER || !placing->is_used[node] ||
        placing->is_donated[tow_schedule_slot(schedule, it->inputs[0])] ||
        tow_node_is_irregular(schedule->program, placing->scope, node))
        return TOW_OK;
    TOW_RETURN_IF_ERROR(size_shards(placing, node, &bytes));
    schedule->is_late[node] =
        bytes >= TOW_LATE_BYTES_MIN >> placing->scope->late_shift;
    schedule->has_late |= schedule->is_late[node];
    return TOW_OK;
}

/* Its late inputs come directly before it. A chain of transfers is short:
 * TOW_TRANSFER_CHAIN_MAX. */
static void emit(placing_t *placing, uint32_t node)
{
    const tow_schedule_t *schedule = placing->schedule;
    const tow_node_t *it = &schedule->program->nodes.items[node];
    if (placing->is_emitted[node]) return;
    placing->is_emitted[node] = true;
    for (size_t i = 0; i < it->input_count; i++)
        if (schedule->is_late[it->inputs[i].node])
            emit(placing, it->inputs[i].node);
    placing->order[placing->count++] = node;
}

static tow_status_t place(placing_t *placing)
{
    tow_schedule_t *schedule = placing->schedule;
    for (size_t step = 0; step < schedule->step_count; step++)
        note_inputs(placing, step);
    for (size_t step = 0; step < schedule->step_count; step++)
        TOW_RETURN_IF_ERROR(mark_late(placing, step));
    if (!schedule->has_late) return TOW_OK;
    for (size_t step = 0; step < schedule->step_count; step++)
        if (!schedule->is_late[schedule->nodes[step]])
            emit(placing, schedule->nodes[step]);
    TOW_ASSERT(placing->count == schedule->step_count);
    for (size_t step = 0; step < schedule->step_count; step++)
        schedule->nodes[step] = placing->order[step];
    return TOW_OK;
}

static bool has_transfers(const tow_schedule_t *schedule)
{
    for (size_t step = 0; step < schedule->step_count; step++)
        if (tow_schedule_node(schedule, step)->kind == TOW_NODE_TRANSFER)
            return true;
    return false;
}

tow_status_t tow_schedule_place_late(tow_schedule_t *schedule,
                                     const tow_graph_scope_t *scope)
{
    const size_t node_count = schedule->program->nodes.count;
    if (schedule->program->is_sequential || !has_transfers(schedule))
        return TOW_OK;
    placing_t placing = {.schedule = schedule, .scope = scope};
    schedule->is_late = tow_calloc(node_count + 1, sizeof(bool));
    placing.is_donated = tow_calloc(schedule->slot_count + 1, sizeof(bool));
    placing.is_used = tow_calloc(2 * node_count + 1, sizeof(bool));
    placing.order = tow_malloc((node_count + 1) * sizeof(*placing.order));
    tow_status_t status = tow_ir_exhausted();
    if (schedule->is_late != NULL && placing.is_donated != NULL &&
        placing.is_used != NULL && placing.order != NULL) {
        placing.is_emitted = placing.is_used + node_count;
        status = place(&placing);
    }
    tow_free(placing.is_donated);
    tow_free(placing.is_used);
    tow_free(placing.order);
    return status;
}

/* -- Waits ----------------------------------------------------------------- */

typedef struct mark {
    uint32_t step;
    uint64_t bytes;
} mark_t;

/* What the steps so far do on one slice. */
typedef struct traffic {
    TOW_VEC(mark_t) computations; /* with the bytes received before them */
    uint64_t received_bytes;      /* by late transfers */
    TOW_VEC(mark_t) sends;        /* late ones, with their bytes */
    size_t first_unsent;
    uint64_t unsent_bytes;
} traffic_t;

typedef struct waits {
    tow_schedule_t *schedule;
    const tow_graph_scope_t *scope;
    tow_map_t by_slice; /* of owned traffic_t */
} waits_t;

static traffic_t *find_traffic(waits_t *waits, tow_slice_id_t slice)
{
    traffic_t *traffic = tow_map_find(&waits->by_slice, slice.value);
    if (traffic != NULL) return traffic;
    traffic = tow_calloc(1, sizeof(*traffic));
    if (traffic == NULL) return NULL;
    if (tow_map_put(&waits->by_slice, slice.value, traffic)) return traffic;
    tow_free(traffic);
    return NULL;
}

static tow_status_t size_value(const waits_t *waits, tow_value_t value,
                               uint64_t *out_bytes)
{
    tow_shape_t shape;
    TOW_RETURN_IF_ERROR(
        tow_value_shape(waits->schedule->program, waits->scope, value, &shape));
    return tow_shape_bytes(&shape, out_bytes);
}

/* The earliest computation after which the memory may be taken; 0: at once. */
static uint32_t memory_after(const waits_t *waits, const traffic_t *traffic)
{
    const uint64_t ahead = TOW_RECEIVE_AHEAD_BYTES >> waits->scope->late_shift;
    const size_t count = traffic->computations.count;
    if (count <= TOW_RECEIVE_AHEAD_COUNT || traffic->received_bytes <= ahead)
        return 0;
    size_t at = count - 1 - TOW_RECEIVE_AHEAD_COUNT;
    const mark_t *marks = traffic->computations.items;
    while (at > 0 && traffic->received_bytes - marks[at - 1].bytes <= ahead)
        at--;
    return marks[at].step + 1;
}

static tow_status_t note_received(waits_t *waits, size_t step)
{
    const tow_schedule_t *schedule = waits->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    traffic_t *traffic = find_traffic(waits, node->slice);
    uint64_t bytes = 0;
    if (traffic == NULL) return tow_ir_exhausted();
    TOW_RETURN_IF_ERROR(
        size_value(waits, (tow_value_t){schedule->nodes[step], 0}, &bytes));
    traffic->received_bytes += bytes;
    schedule->memory_after[step] = memory_after(waits, traffic);
    return TOW_OK;
}

/* Arguments stay until the end of the run in any case. */
static tow_status_t note_sent(waits_t *waits, size_t step)
{
    const tow_schedule_t *schedule = waits->schedule;
    const tow_value_t value = tow_schedule_node(schedule, step)->inputs[0];
    const tow_node_t *producer = &schedule->program->nodes.items[value.node];
    uint64_t bytes = 0;
    if (producer->kind == TOW_NODE_ARGUMENT) return TOW_OK;
    traffic_t *traffic = find_traffic(waits, producer->slice);
    if (traffic == NULL) return tow_ir_exhausted();
    TOW_RETURN_IF_ERROR(size_value(waits, value, &bytes));
    const mark_t mark = {(uint32_t)step, bytes};
    traffic->unsent_bytes += bytes;
    return tow_vec_push(&traffic->sends, mark) ? TOW_OK : tow_ir_exhausted();
}

static tow_status_t note_computation(waits_t *waits, size_t step)
{
    const tow_schedule_t *schedule = waits->schedule;
    traffic_t *traffic =
        find_traffic(waits, tow_schedule_node(schedule, step)->slice);
    const uint64_t behind = TOW_SEND_BEHIND_BYTES >> waits->scope->late_shift;
    if (traffic == NULL) return tow_ir_exhausted();
    while (traffic->sends.count - traffic->first_unsent >
               TOW_SEND_BEHIND_COUNT &&
           traffic->unsent_bytes > behind) {
        const mark_t *sent = &traffic->sends.items[traffic->first_unsent++];
        traffic->unsent_bytes -= sent->bytes;
        schedule->sent_before[sent->step] = (uint32_t)step + 1;
    }
    const mark_t mark = {(uint32_t)step, traffic->received_bytes};
    return tow_vec_push(&traffic->computations, mark) ? TOW_OK
                                                      : tow_ir_exhausted();
}

static tow_status_t note_step(waits_t *waits, size_t step)
{
    const tow_schedule_t *schedule = waits->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    if (node->kind == TOW_NODE_COMPUTE) return note_computation(waits, step);
    if (!schedule->is_late[schedule->nodes[step]]) return TOW_OK;
    TOW_RETURN_IF_ERROR(note_received(waits, step));
    return note_sent(waits, step);
}

static void free_traffic(waits_t *waits)
{
    size_t cursor = 0;
    uint64_t slice;
    void *value;
    while (tow_map_next(&waits->by_slice, &cursor, &slice, &value)) {
        traffic_t *traffic = value;
        tow_vec_deinit(&traffic->computations);
        tow_vec_deinit(&traffic->sends);
        tow_free(traffic);
    }
    tow_map_deinit(&waits->by_slice);
}

tow_status_t tow_schedule_find_waits(tow_schedule_t *schedule,
                                     const tow_graph_scope_t *scope)
{
    if (!schedule->has_late) return TOW_OK;
    waits_t waits = {.schedule = schedule, .scope = scope};
    schedule->memory_after =
        tow_calloc(2 * schedule->step_count + 1, sizeof(uint32_t));
    if (schedule->memory_after == NULL) return tow_ir_exhausted();
    schedule->sent_before = schedule->memory_after + schedule->step_count;
    tow_status_t status = TOW_OK;
    for (size_t step = 0; status == TOW_OK && step < schedule->step_count;
         step++)
        status = note_step(&waits, step);
    free_traffic(&waits);
    return status;
}
