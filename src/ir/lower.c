#include "ir/lower.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/lowered_impl.h"
#include "ir/schedule_impl.h"
#include "ir/split_impl.h"

typedef struct lowering {
    const tow_lower_scope_t *scope;
    tow_schedule_t schedule;
    tow_split_t split; /* of the slices of transfers and collectives */
    tow_lowered_t *lowered;
    tow_lowered_step_t *next_step; /* in the block of `lowered` */
    uint32_t *next_number;         /* in the same block, behind the steps */
} lowering_t;

/* The source slice of a transfer. */
static tow_slice_id_t source_slice(const lowering_t *lowering,
                                   const tow_node_t *transfer)
{
    return tow_graph_node(lowering->schedule.program, transfer->inputs[0].node)
        ->slice;
}

static bool is_here(const lowering_t *lowering, size_t step)
{
    const tow_lower_scope_t *scope = lowering->scope;
    const tow_node_t *node = tow_schedule_node(&lowering->schedule, step);
    if (node->kind == TOW_NODE_TRANSFER)
        return tow_split_has(&lowering->split, node->slice) ||
               tow_split_has(&lowering->split, source_slice(lowering, node));
    if (node->kind == TOW_NODE_COLLECTIVE)
        return tow_split_has(&lowering->split, node->slice);
    if (scope->slice_is_here == NULL) return true;
    return scope->slice_is_here(scope->context, node->slice);
}

static tow_status_t split_slices(lowering_t *lowering)
{
    for (size_t step = 0; step < lowering->schedule.step_count; step++) {
        const tow_node_t *node = tow_schedule_node(&lowering->schedule, step);
        if (tow_node_has_function(node)) continue;
        TOW_RETURN_IF_ERROR(tow_split_add(&lowering->split, node->slice));
        if (node->kind != TOW_NODE_TRANSFER) continue;
        TOW_RETURN_IF_ERROR(
            tow_split_add(&lowering->split, source_slice(lowering, node)));
    }
    return TOW_OK;
}

/* -- Allocation ------------------------------------------------------------ */

/* Room for the worst case: no input donatable, every slot freed. */
static bool allocate(lowering_t *lowering)
{
    const tow_schedule_t *schedule = &lowering->schedule;
    size_t step_count = 0;
    size_t number_count =
        schedule->program->results.count + schedule->slot_count;
    for (size_t step = 0; step < schedule->step_count; step++) {
        if (!is_here(lowering, step)) continue;
        step_count++;
        number_count += 2 * tow_schedule_node(schedule, step)->input_count;
    }
    tow_lowered_t *lowered = tow_lowered_allocate(
        step_count, number_count, &lowering->next_step, &lowering->next_number);
    if (lowered == NULL) return false;
    lowered->slot_count = schedule->slot_count;
    lowered->argument_count = (uint32_t)schedule->program->arguments.count;
    lowered->step_count_all = (uint32_t)schedule->step_count;
    lowering->lowered = lowered;
    return true;
}

/* -- Steps ----------------------------------------------------------------- */

static void write_inputs(lowering_t *lowering, size_t step,
                         tow_lowered_step_t *out)
{
    const tow_node_t *node = tow_schedule_node(&lowering->schedule, step);
    out->inputs = lowering->next_number;
    out->input_count = node->input_count;
    for (size_t i = 0; i < node->input_count; i++)
        *lowering->next_number++ =
            tow_schedule_slot(&lowering->schedule, node->inputs[i]);
}

/* A slot is freed once, even if it is two inputs. */
static void write_freed(lowering_t *lowering, uint32_t slot)
{
    tow_slot_t *it = &lowering->schedule.slots[slot];
    if (it->is_listed) return;
    it->is_listed = true;
    *lowering->next_number++ = slot;
}

/* The caller keeps arguments that the run does not consume: an argument is
 * freed only by donation, other values by their last use. */
static bool goes_with(const lowering_t *lowering, size_t step, uint32_t slot,
                      bool is_donated)
{
    const tow_slot_t *it = &lowering->schedule.slots[slot];
    if (slot < lowering->lowered->argument_count) return is_donated;
    return it->last_step == step && !it->is_result;
}

static void write_kept_and_freed(lowering_t *lowering, size_t step,
                                 tow_lowered_step_t *out)
{
    tow_schedule_t *schedule = &lowering->schedule;
    const bool *donates = tow_schedule_donates(schedule, step);
    out->non_donatable = lowering->next_number;
    for (uint32_t i = 0; i < out->input_count; i++)
        if (donates[i] &&
            !tow_schedule_may_donate(schedule, step, out->inputs[i]))
            *lowering->next_number++ = i;
    out->non_donatable_count =
        (size_t)(lowering->next_number - out->non_donatable);

    out->freed = lowering->next_number;
    for (size_t i = 0; i < out->input_count; i++) {
        const uint32_t slot = out->inputs[i];
        const bool is_donated =
            donates[i] && tow_schedule_may_donate(schedule, step, slot);
        if (goes_with(lowering, step, slot, is_donated))
            write_freed(lowering, slot);
    }
    for (uint32_t i = 0; i < out->output_count; i++)
        if (goes_with(lowering, step, out->first_output + i, false))
            write_freed(lowering, out->first_output + i);
    out->freed_count = (size_t)(lowering->next_number - out->freed);
}

/* The node named in errors of the step: one that the client knows. */
static uint32_t client_node(const lowering_t *lowering, uint32_t node)
{
    const uint32_t count = lowering->scope->client_node_count;
    const tow_graph_t *program = lowering->schedule.program;
    while (count > 0 && node >= count)
        node = tow_graph_node(program, node)->inputs[0].node;
    return node;
}

/* A worker has an input slot if it has shards of the value, and an output slot
 * if it receives some. */
static tow_status_t write_transfer(lowering_t *lowering, size_t step,
                                   tow_lowered_step_t *out)
{
    const tow_schedule_t *schedule = &lowering->schedule;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    if (tow_split_has(&lowering->split, source_slice(lowering, node)))
        write_inputs(lowering, step, out);
    if (!tow_split_has(&lowering->split, node->slice)) out->output_count = 0;
    out->is_late =
        schedule->has_late && schedule->is_late[schedule->nodes[step]];
    if (schedule->has_late && out->output_count > 0)
        out->memory_after = schedule->memory_after[step];
    if (schedule->has_late && out->input_count > 0)
        out->sent_before = schedule->sent_before[step];
    write_kept_and_freed(lowering, step, out);
    tow_status_t status =
        tow_split_route(&lowering->split, lowering->schedule.program,
                        lowering->schedule.nodes[step],
                        tow_lowered_arena(lowering->lowered), &out->route);
    if (status == TOW_OK) return TOW_OK;
    char label[TOW_LABEL_SIZE];
    return tow_status_annotate(
        status, "%s",
        tow_node_label(lowering->schedule.program, out->node, label));
}

static tow_status_t write_collective(lowering_t *lowering, size_t step,
                                     tow_lowered_step_t *out)
{
    write_inputs(lowering, step, out);
    write_kept_and_freed(lowering, step, out);
    return tow_split_collective(&lowering->split, lowering->schedule.program,
                                lowering->schedule.nodes[step],
                                tow_lowered_arena(lowering->lowered),
                                &out->collective);
}

/* Inserted nodes have none. */
static tow_status_t write_name(lowering_t *lowering, size_t step,
                               tow_lowered_step_t *out)
{
    const tow_signature_t *signature = lowering->schedule.signatures[step];
    const char *name = tow_schedule_node(&lowering->schedule, step)->name;
    if (name == NULL || name[0] == '\0' ||
        (signature != NULL && signature->name != NULL &&
         strcmp(name, signature->name) == 0))
        return TOW_OK;
    out->name = tow_arena_strndup(tow_lowered_arena(lowering->lowered), name,
                                  strlen(name));
    return out->name != NULL ? TOW_OK : tow_ir_exhausted();
}

static tow_status_t write_step(lowering_t *lowering, size_t step)
{
    const tow_schedule_t *schedule = &lowering->schedule;
    const tow_lower_scope_t *scope = lowering->scope;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    tow_lowered_step_t *out = lowering->next_step++;
    out->node = client_node(lowering, schedule->nodes[step]);
    out->index = (uint32_t)step;
    out->first_output = schedule->first_slots[schedule->nodes[step]];
    out->output_count = tow_schedule_outputs(schedule, step);
    out->is_host = node->kind == TOW_NODE_HOST;
    out->time_limit_ms = node->time_limit_ms;
    TOW_RETURN_IF_ERROR(write_name(lowering, step, out));
    out->is_sequential =
        schedule->program->is_sequential ||
        tow_node_is_irregular(schedule->program, &scope->program,
                              schedule->nodes[step]);
    if (node->kind == TOW_NODE_TRANSFER)
        return write_transfer(lowering, step, out);
    if (node->kind == TOW_NODE_COLLECTIVE)
        return write_collective(lowering, step, out);
    out->executable =
        scope->executable(scope->context, node->function, node->slice);
    write_inputs(lowering, step, out);
    write_kept_and_freed(lowering, step, out);
    return TOW_OK;
}

static void write_results(lowering_t *lowering)
{
    const tow_graph_t *program = lowering->schedule.program;
    lowering->lowered->results = lowering->next_number;
    lowering->lowered->result_count = program->results.count;
    for (size_t i = 0; i < program->results.count; i++) {
        const tow_node_t *node =
            &program->nodes.items[program->results.items[i]];
        *lowering->next_number++ =
            tow_schedule_slot(&lowering->schedule, node->inputs[0]);
    }
}

/* -- Required aliases ------------------------------------------------------ */

static const char *why_kept(const tow_slot_t *slot, size_t step)
{
    if (slot->is_result) return "it is a result of the program too";
    if (slot->is_caller_owned)
        return "the program's argument is not marked as donated";
    if (slot->last_step != step) return "a later computation uses it";
    return "it is two inputs of the computation";
}

/* Devices refuse to run a function whose required alias cannot be donated. This
 * check names the node and the reason. */
static tow_status_t check_aliases(const lowering_t *lowering, size_t step)
{
    const tow_schedule_t *schedule = &lowering->schedule;
    const tow_signature_t *signature = schedule->signatures[step];
    const tow_node_t *node = tow_schedule_node(schedule, step);
    char label[TOW_LABEL_SIZE];
    if (signature == NULL) return TOW_OK;
    for (size_t i = 0; i < signature->alias_count; i++) {
        const tow_alias_t *alias = &signature->aliases[i];
        TOW_ASSERT(alias->argument < node->input_count);
        const uint32_t slot =
            tow_schedule_slot(schedule, node->inputs[alias->argument]);
        if (!alias->required || tow_schedule_may_donate(schedule, step, slot))
            continue;
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "%s: function %s requires the donation of input %zu, which is not "
            "possible: %s",
            tow_node_label(schedule->program, schedule->nodes[step], label),
            signature->name, alias->argument,
            why_kept(&schedule->slots[slot], step));
    }
    return TOW_OK;
}

/* -- Entry point ----------------------------------------------------------- */

static tow_status_t lower(lowering_t *lowering, const tow_graph_t *program)
{
    tow_schedule_t *schedule = &lowering->schedule;
    TOW_RETURN_IF_ERROR(
        tow_schedule_init(schedule, program, &lowering->scope->program));
    for (size_t step = 0; step < schedule->step_count; step++)
        TOW_RETURN_IF_ERROR(check_aliases(lowering, step));
    TOW_RETURN_IF_ERROR(split_slices(lowering));
    if (!allocate(lowering)) return tow_ir_exhausted();
    for (size_t step = 0; step < schedule->step_count; step++)
        if (is_here(lowering, step))
            TOW_RETURN_IF_ERROR(write_step(lowering, step));
    write_results(lowering);
    return TOW_OK;
}

tow_status_t tow_graph_lower(const tow_graph_t *program,
                             const tow_lower_scope_t *scope,
                             tow_lowered_t **out_lowered)
{
    TOW_ASSERT(program != NULL && scope != NULL);
    TOW_ASSERT(out_lowered != NULL);
    lowering_t lowering = {.scope = scope};
    tow_split_init(&lowering.split, scope);
    tow_status_t status = lower(&lowering, program);
    tow_schedule_deinit(&lowering.schedule);
    tow_split_deinit(&lowering.split);
    if (status != TOW_OK) {
        tow_lowered_destroy(lowering.lowered);
        lowering.lowered = NULL;
    }
    *out_lowered = lowering.lowered;
    return status;
}
