/* The cost of a run: memory of a device, results, consumed arguments. */
#include "base/alloc.h"
#include "base/assert.h"
#include "ir/lower.h"
#include "ir/reshard.h"
#include "ir/schedule_impl.h"

/* -- Bytes ----------------------------------------------------------------- */

/* All in bytes of one device of the slice, beside the arguments. `live` may be
 * negative: a consumed argument gives memory back. */
typedef struct account {
    tow_schedule_t schedule;
    const tow_graph_scope_t *scope;
    /* By slot: 0 for arguments, freed values, and values of other slices. */
    uint64_t *sizes;
    /* By slot: a transfer or a collective reads it, for an unknown time. */
    bool *is_lent;
    /* By slot: late transfers that read it and have not been sent. */
    uint32_t *unsent_counts;
    size_t first_unsent; /* step: all late transfers before it were sent */
    size_t next_late;    /* step: those before it have memory, or had */
    int64_t live;
    int64_t peak;
    bool overflowed;
    tow_graph_cost_t cost;
} account_t;

static void change(account_t *account, uint64_t bytes, bool is_more)
{
    int64_t live = account->live;
    account->overflowed |=
        is_more ? __builtin_add_overflow(live, bytes, &account->live)
                : __builtin_sub_overflow(live, bytes, &account->live);
}

static void note_peak(account_t *account, uint64_t temporary_bytes)
{
    int64_t now = 0;
    account->overflowed |=
        __builtin_add_overflow(account->live, temporary_bytes, &now);
    if (now > account->peak) account->peak = now;
}

/* The output of a transfer, on its target slice. Packed pieces take as much
 * again. */
static tow_status_t size_transfer(const account_t *account, size_t step,
                                  uint64_t *out_bytes, uint64_t *out_packed)
{
    const tow_schedule_t *schedule = &account->schedule;
    const tow_value_t value = {schedule->nodes[step], 0};
    tow_shape_t source, target;
    TOW_RETURN_IF_ERROR(
        tow_value_shape(schedule->program, account->scope,
                        tow_schedule_node(schedule, step)->inputs[0], &source));
    TOW_RETURN_IF_ERROR(
        tow_value_shape(schedule->program, account->scope, value, &target));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&target, out_bytes));
    *out_packed = tow_reshard_is_packed(&source, &target) ? *out_bytes : 0;
    return TOW_OK;
}

/* Memory for incoming values is allocated before the data arrives. */
static tow_status_t begin_transfer(account_t *account, size_t step)
{
    const tow_schedule_t *schedule = &account->schedule;
    const uint32_t slot = schedule->first_slots[schedule->nodes[step]];
    uint64_t *bytes = &account->sizes[slot];
    uint64_t packed = 0;
    TOW_RETURN_IF_ERROR(size_transfer(account, step, bytes, &packed));
    change(account, *bytes, true);
    change(account, packed, true);
    if (schedule->slots[slot].is_result)
        account->overflowed |= __builtin_add_overflow(
            account->cost.result_bytes, *bytes, &account->cost.result_bytes);
    note_peak(account, 0);
    return TOW_OK;
}

/* No later step waits for a value that none of them uses: it may arrive at any
 * time. */
static tow_status_t end_transfer(account_t *account, size_t step)
{
    const tow_schedule_t *schedule = &account->schedule;
    const uint32_t slot = schedule->first_slots[schedule->nodes[step]];
    uint64_t bytes = 0;
    uint64_t packed = 0;
    TOW_RETURN_IF_ERROR(size_transfer(account, step, &bytes, &packed));
    change(account, packed, false);
    if (schedule->slots[slot].last_step <= step) account->is_lent[slot] = true;
    return TOW_OK;
}

/* A worker with one shard of a group receives at most as much from the other
 * members; local shards of a group share that memory. */
static tow_status_t size_arriving(const account_t *account, size_t step,
                                  tow_slice_id_t slice, uint64_t *out_bytes)
{
    const tow_schedule_t *schedule = &account->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const uint32_t first = schedule->first_slots[schedule->nodes[step]];
    *out_bytes = 0;
    if (account->scope->slice_devices(account->scope->context, slice) == 1)
        return TOW_OK;
    for (uint32_t i = 0; i < node->input_count; i++)
        if (__builtin_add_overflow(*out_bytes, account->sizes[first + i],
                                   out_bytes))
            return TOW_ERROR(TOW_OUT_OF_RANGE,
                             "a collective of more than 2^64 - 1 bytes");
    return TOW_OK;
}

/* The outputs of a collective, like those of transfers. */
static tow_status_t begin_collective(account_t *account, size_t step,
                                     tow_slice_id_t slice)
{
    const tow_schedule_t *schedule = &account->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const uint32_t first = schedule->first_slots[schedule->nodes[step]];
    uint64_t arriving = 0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint64_t *bytes = &account->sizes[first + i];
        tow_shape_t shape;
        TOW_RETURN_IF_ERROR(tow_value_shape(schedule->program, account->scope,
                                            node->inputs[i], &shape));
        TOW_RETURN_IF_ERROR(tow_shape_bytes(&shape, bytes));
        change(account, *bytes, true);
        if (schedule->slots[first + i].is_result)
            account->overflowed |=
                __builtin_add_overflow(account->cost.result_bytes, *bytes,
                                       &account->cost.result_bytes);
    }
    TOW_RETURN_IF_ERROR(size_arriving(account, step, slice, &arriving));
    change(account, arriving, true);
    note_peak(account, 0);
    return TOW_OK;
}

/* Other workers read its inputs, its outputs arrive at any time, even unused
 * ones, and copies for other local devices read them: all stay until the run
 * ends. */
static tow_status_t end_collective(account_t *account, size_t step,
                                   tow_slice_id_t slice)
{
    const tow_schedule_t *schedule = &account->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const uint32_t first = schedule->first_slots[schedule->nodes[step]];
    uint64_t arriving = 0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        account->is_lent[tow_schedule_slot(schedule, node->inputs[i])] = true;
        account->is_lent[first + i] = true;
    }
    TOW_RETURN_IF_ERROR(size_arriving(account, step, slice, &arriving));
    change(account, arriving, false);
    return TOW_OK;
}

/* Adds the outputs. A donated input's memory becomes an output's, and is not
 * counted twice; but an input that may still be read is copied. */
static void start_step(account_t *account, size_t step)
{
    tow_schedule_t *schedule = &account->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const tow_signature_t *signature = schedule->signatures[step];
    const bool *donates = tow_schedule_donates(schedule, step);
    const uint32_t first = schedule->first_slots[schedule->nodes[step]];
    for (size_t i = 0; i < signature->result_count; i++) {
        account->sizes[first + i] = signature->results[i].bytes;
        change(account, signature->results[i].bytes, true);
        if (schedule->slots[first + i].is_result)
            account->overflowed |= __builtin_add_overflow(
                account->cost.result_bytes, signature->results[i].bytes,
                &account->cost.result_bytes);
    }
    for (size_t i = 0; i < node->input_count; i++) {
        const uint32_t slot = tow_schedule_slot(schedule, node->inputs[i]);
        if (!donates[i] || !tow_schedule_may_donate(schedule, step, slot))
            continue;
        const bool is_argument = slot < schedule->program->arguments.count;
        const uint64_t bytes =
            is_argument ? signature->arguments[i].bytes : account->sizes[slot];
        if (account->unsent_counts[slot] > 0) account->is_lent[slot] = true;
        if (!account->is_lent[slot]) change(account, bytes, false);
        account->sizes[slot] = 0;
        if (is_argument)
            account->overflowed |=
                __builtin_add_overflow(account->cost.donated_bytes, bytes,
                                       &account->cost.donated_bytes);
    }
}

/* Like a transfer: memory for its outputs, by their bounds, from the start of
 * the run; it reads its inputs for an unknown time. */
static void begin_host(account_t *account, size_t step)
{
    start_step(account, step);
    note_peak(account, 0);
}

/* Frees values after their last use. Donated slots and arguments have size 0 by
 * now. The inputs of transfers that are not late stay until the run ends,
 * because steps do not wait for sends to complete. */
static void free_slot(account_t *account, size_t step, uint32_t slot)
{
    const tow_slot_t *it = &account->schedule.slots[slot];
    if (it->last_step > step || it->is_result || account->is_lent[slot] ||
        account->unsent_counts[slot] > 0)
        return;
    change(account, account->sizes[slot], false);
    account->sizes[slot] = 0;
}

static void end_step(account_t *account, size_t step)
{
    const tow_schedule_t *schedule = &account->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const uint32_t first = schedule->first_slots[schedule->nodes[step]];
    for (size_t i = 0; i < node->input_count; i++)
        free_slot(account, step, tow_schedule_slot(schedule, node->inputs[i]));
    for (uint32_t i = 0; i < tow_schedule_outputs(schedule, step); i++)
        free_slot(account, step, first + i);
}

/* -- Late transfers --------------------------------------------------------- */

static void lend(account_t *account, size_t step, uint32_t slot)
{
    const tow_schedule_t *schedule = &account->schedule;
    if (schedule->has_late && schedule->sent_before[step] != 0)
        account->unsent_counts[slot]++;
    else
        account->is_lent[slot] = true;
}

/* Is the value that a late transfer sends on this slice? */
static bool is_from(const account_t *account, size_t step, tow_slice_id_t slice)
{
    const tow_schedule_t *schedule = &account->schedule;
    const tow_value_t value = tow_schedule_node(schedule, step)->inputs[0];
    return tow_slice_id_equal(
        tow_graph_node(schedule->program, value.node)->slice, slice);
}

/* The computation waits until these have been sent. The waits of one slice
 * ascend. */
static void free_sent(account_t *account, size_t computation,
                      tow_slice_id_t slice)
{
    const tow_schedule_t *schedule = &account->schedule;
    if (!schedule->has_late) return;
    for (; account->first_unsent < computation; account->first_unsent++) {
        const size_t step = account->first_unsent;
        if (schedule->sent_before[step] == 0 || !is_from(account, step, slice))
            continue;
        if (schedule->sent_before[step] > computation + 1) break;
        const uint32_t slot = tow_schedule_slot(
            schedule, tow_schedule_node(schedule, step)->inputs[0]);
        TOW_ASSERT(account->unsent_counts[slot] > 0);
        account->unsent_counts[slot]--;
        free_slot(account, computation - 1, slot);
    }
}

/* Takes memory for the transfers that may have it when the computation has
 * ended. The waits of one slice ascend. */
static tow_status_t begin_late(account_t *account, size_t computation,
                               tow_slice_id_t slice)
{
    const tow_schedule_t *schedule = &account->schedule;
    if (!schedule->has_late) return TOW_OK;
    for (; account->next_late < schedule->step_count; account->next_late++) {
        const size_t step = account->next_late;
        const tow_node_t *node = tow_schedule_node(schedule, step);
        if (node->kind != TOW_NODE_TRANSFER ||
            schedule->memory_after[step] == 0 ||
            !tow_slice_id_equal(node->slice, slice))
            continue;
        if (schedule->memory_after[step] > computation + 1) break;
        TOW_RETURN_IF_ERROR(begin_transfer(account, step));
    }
    return TOW_OK;
}

/* -- The walk --------------------------------------------------------------- */

static tow_status_t walk_computation(account_t *account, size_t step,
                                     tow_slice_id_t slice)
{
    free_sent(account, step, slice);
    start_step(account, step);
    note_peak(account, account->schedule.signatures[step]->temporary_bytes);
    end_step(account, step);
    return begin_late(account, step, slice);
}

static tow_status_t walk_step(account_t *account, size_t step,
                              tow_slice_id_t slice)
{
    tow_schedule_t *schedule = &account->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const bool is_here = tow_slice_id_equal(node->slice, slice);
    if (node->kind == TOW_NODE_TRANSFER) {
        lend(account, step, tow_schedule_slot(schedule, node->inputs[0]));
        if (is_here) TOW_RETURN_IF_ERROR(end_transfer(account, step));
        end_step(account, step);
        return TOW_OK;
    }
    if (!is_here) return TOW_OK;
    if (node->kind == TOW_NODE_COLLECTIVE) {
        TOW_RETURN_IF_ERROR(end_collective(account, step, slice));
        end_step(account, step);
        return TOW_OK;
    }
    account->cost.step_count++;
    if (node->kind ==
        TOW_NODE_HOST) { /* Its outputs were counted at the start. */
        for (size_t i = 0; i < node->input_count; i++)
            account->is_lent[tow_schedule_slot(schedule, node->inputs[i])] =
                true;
        end_step(account, step);
        return TOW_OK;
    }
    return walk_computation(account, step, slice);
}

static tow_status_t check_range(const account_t *account, size_t step)
{
    const tow_schedule_t *schedule = &account->schedule;
    char label[TOW_LABEL_SIZE];
    if (!account->overflowed) return TOW_OK;
    return TOW_ERROR(
        TOW_OUT_OF_RANGE,
        "%s: up to here the program takes more than 2^63 - 1 bytes of a device",
        tow_node_label(schedule->program, schedule->nodes[step], label));
}

/* Outputs that have memory from the start of the run. */
static tow_status_t begin_ahead(account_t *account, size_t step,
                                tow_slice_id_t slice)
{
    const tow_node_t *node = tow_schedule_node(&account->schedule, step);
    if (!tow_slice_id_equal(node->slice, slice)) return TOW_OK;
    switch (node->kind) {
    case TOW_NODE_TRANSFER:
        return account->schedule.has_late &&
                       account->schedule.memory_after[step] != 0
                   ? TOW_OK
                   : begin_transfer(account, step);
    case TOW_NODE_COLLECTIVE: return begin_collective(account, step, slice);
    case TOW_NODE_HOST: begin_host(account, step); return TOW_OK;
    default: return TOW_OK;
    }
}

static tow_status_t walk(account_t *account, tow_slice_id_t slice)
{
    const size_t count = account->schedule.step_count;
    for (size_t step = 0; step < count; step++) {
        TOW_RETURN_IF_ERROR(begin_ahead(account, step, slice));
        TOW_RETURN_IF_ERROR(check_range(account, step));
    }
    for (size_t step = 0; step < count; step++) {
        TOW_RETURN_IF_ERROR(walk_step(account, step, slice));
        TOW_RETURN_IF_ERROR(check_range(account, step));
    }
    account->cost.peak_bytes = (uint64_t)account->peak;
    return TOW_OK;
}

tow_status_t tow_graph_cost(const tow_graph_t *program,
                            const tow_graph_scope_t *scope,
                            tow_slice_id_t slice, tow_graph_cost_t *out_cost)
{
    TOW_ASSERT(program != NULL && scope != NULL && out_cost != NULL);
    account_t account = {.scope = scope};
    tow_status_t status = tow_schedule_init(&account.schedule, program, scope);
    if (status == TOW_OK) {
        account.sizes = tow_calloc(account.schedule.slot_count + 1,
                                   sizeof(account.sizes[0]));
        account.is_lent = tow_calloc(account.schedule.slot_count + 1,
                                     sizeof(account.is_lent[0]));
        account.unsent_counts = tow_calloc(account.schedule.slot_count + 1,
                                           sizeof(account.unsent_counts[0]));
        status = account.sizes != NULL && account.is_lent != NULL &&
                         account.unsent_counts != NULL
                     ? walk(&account, slice)
                     : tow_ir_exhausted();
    }
    *out_cost = account.cost;
    tow_free(account.unsent_counts);
    tow_free(account.is_lent);
    tow_free(account.sizes);
    tow_schedule_deinit(&account.schedule);
    return status;
}

/* -- Results --------------------------------------------------------------- */

/* The index of an argument node: arguments are in the order of nodes. */
static uint32_t argument_of(const tow_graph_t *program, uint32_t node)
{
    size_t low = 0;
    size_t high = program->arguments.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (program->arguments.items[middle] < node)
            low = middle + 1;
        else
            high = middle;
    }
    TOW_ASSERT(low < program->arguments.count &&
               program->arguments.items[low] == node);
    return (uint32_t)low;
}

tow_status_t tow_graph_result_info(const tow_graph_t *program,
                                   const tow_graph_scope_t *scope, size_t index,
                                   tow_result_info_t *out_info)
{
    TOW_ASSERT(program != NULL && scope != NULL && out_info != NULL);
    *out_info = (tow_result_info_t){.argument = UINT32_MAX};
    if (index >= program->results.count)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "result %zu of a program that has %zu", index,
                         program->results.count);
    const tow_node_t *result =
        tow_graph_node(program, program->results.items[index]);
    TOW_ASSERT(result->input_count == 1);
    const tow_value_t value = result->inputs[0];
    const tow_node_t *producer = tow_graph_node(program, value.node);
    out_info->slice = producer->slice;
    out_info->bounds = tow_value_bounds(program, scope, value);
    if (producer->kind == TOW_NODE_ARGUMENT) {
        out_info->argument = argument_of(program, value.node);
        out_info->shape = producer->shape;
        return tow_shape_bytes(&producer->shape, &out_info->bytes);
    }
    if (!tow_node_has_function(producer)) {
        TOW_RETURN_IF_ERROR(
            tow_value_shape(program, scope, value, &out_info->shape));
        return tow_shape_bytes(&out_info->shape, &out_info->bytes);
    }
    const tow_signature_t *signature =
        scope->function(scope->context, producer->function);
    TOW_ASSERT(signature != NULL && value.output < signature->result_count);
    out_info->shape = signature->results[value.output].shape;
    out_info->bytes = signature->results[value.output].bytes;
    return TOW_OK;
}

/* -- Arguments ------------------------------------------------------------- */

static void mark_consumed(tow_schedule_t *schedule, size_t step,
                          bool *out_consumed)
{
    const tow_node_t *node = tow_schedule_node(schedule, step);
    const bool *donates = tow_schedule_donates(schedule, step);
    for (size_t i = 0; i < node->input_count; i++) {
        const uint32_t slot = tow_schedule_slot(schedule, node->inputs[i]);
        if (slot < schedule->program->arguments.count && donates[i] &&
            tow_schedule_may_donate(schedule, step, slot))
            out_consumed[slot] = true;
    }
}

tow_status_t tow_graph_consumed(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                bool *out_consumed)
{
    TOW_ASSERT(program != NULL && scope != NULL);
    TOW_ASSERT(out_consumed != NULL || program->arguments.count == 0);
    tow_schedule_t schedule;
    for (size_t i = 0; i < program->arguments.count; i++)
        out_consumed[i] = false;
    tow_status_t status = tow_schedule_init(&schedule, program, scope);
    for (size_t step = 0; status == TOW_OK && step < schedule.step_count;
         step++)
        mark_consumed(&schedule, step, out_consumed);
    tow_schedule_deinit(&schedule);
    return status;
}

bool tow_graph_consumes(const tow_graph_t *program,
                        const tow_graph_scope_t *scope, size_t index)
{
    TOW_ASSERT(index < program->arguments.count);
    bool *consumed = tow_malloc(program->arguments.count);
    if (consumed == NULL) return false;
    tow_status_t status = tow_graph_consumed(program, scope, consumed);
    const bool answer = status == TOW_OK && consumed[index];
    tow_status_ignore(status, "the header promises false");
    tow_free(consumed);
    return answer;
}
