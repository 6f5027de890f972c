#include "ir/lower.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/lowered_impl.h"
#include "ir/schedule_impl.h"

typedef struct lowering {
    const tow_lower_scope_t *scope;
    tow_schedule_t schedule;
    tow_lowered_t *lowered;
    tow_lowered_step_t *next_step; /* in the block of `lowered` */
    uint32_t *next_number;         /* in the same block, behind the steps */
} lowering_t;

static bool is_here(const lowering_t *lowering, size_t step)
{
    const tow_lower_scope_t *scope = lowering->scope;
    if (scope->slice_is_here == NULL) return true;
    return scope->slice_is_here(
        scope->context, tow_schedule_node(&lowering->schedule, step)->slice);
}

/* -- Memory ------------------------------------------------------------------ */

/* Room for the most that there can be: every input kept, every slot freed. */
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

/* -- Steps ------------------------------------------------------------------- */

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

/* A slot goes once, although it may be two inputs. */
static void write_freed(lowering_t *lowering, uint32_t slot)
{
    tow_slot_t *it = &lowering->schedule.slots[slot];
    if (it->is_listed) return;
    it->is_listed = true;
    *lowering->next_number++ = slot;
}

/* Arguments that the run does not consume stay the caller's. So an argument goes
 * only by donation; all else goes with its last use. */
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
    out->kept = lowering->next_number;
    for (uint32_t i = 0; i < out->input_count; i++)
        if (donates[i] &&
            !tow_schedule_may_donate(schedule, step, out->inputs[i]))
            *lowering->next_number++ = i;
    out->kept_count = (size_t)(lowering->next_number - out->kept);

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

static void write_step(lowering_t *lowering, size_t step)
{
    const tow_schedule_t *schedule = &lowering->schedule;
    const tow_lower_scope_t *scope = lowering->scope;
    const tow_node_t *node = tow_schedule_node(schedule, step);
    tow_lowered_step_t *out = lowering->next_step++;
    out->node = schedule->nodes[step];
    out->index = (uint32_t)step;
    out->executable =
        scope->executable(scope->context, node->function, node->slice);
    out->first_output = schedule->first_slots[out->node];
    out->output_count = (uint32_t)schedule->signatures[step]->result_count;
    write_inputs(lowering, step, out);
    write_kept_and_freed(lowering, step, out);
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

/* -- Required aliases -------------------------------------------------------- */

static const char *why_kept(const tow_slot_t *slot, size_t step)
{
    if (slot->is_result) return "it is a result of the program too";
    if (slot->is_kept) return "the program's argument is not marked as donated";
    if (slot->last_step != step) return "a later computation uses it";
    return "the computation is given it twice";
}

/* Devices refuse to run a function whose required alias is kept. Here it can be
 * said which node that is, and why. */
static tow_status_t check_aliases(const lowering_t *lowering, size_t step)
{
    const tow_schedule_t *schedule = &lowering->schedule;
    const tow_signature_t *signature = schedule->signatures[step];
    const tow_node_t *node = tow_schedule_node(schedule, step);
    char label[TOW_LABEL_SIZE];
    for (size_t i = 0; i < signature->alias_count; i++) {
        const tow_alias_t *alias = &signature->aliases[i];
        TOW_ASSERT(alias->argument < node->input_count);
        const uint32_t slot =
            tow_schedule_slot(schedule, node->inputs[alias->argument]);
        if (!alias->required || tow_schedule_may_donate(schedule, step, slot))
            continue;
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "%s: function %s must have input %zu donated, which cannot be: %s",
            tow_node_label(schedule->program, schedule->nodes[step], label),
            signature->name, alias->argument,
            why_kept(&schedule->slots[slot], step));
    }
    return TOW_OK;
}

/* -- The door ---------------------------------------------------------------- */

static tow_status_t lower(lowering_t *lowering, const tow_graph_t *program)
{
    tow_schedule_t *schedule = &lowering->schedule;
    TOW_RETURN_IF_ERROR(
        tow_schedule_init(schedule, program, &lowering->scope->program));
    for (size_t step = 0; step < schedule->step_count; step++)
        TOW_RETURN_IF_ERROR(check_aliases(lowering, step));
    if (!allocate(lowering)) return tow_ir_exhausted();
    for (size_t step = 0; step < schedule->step_count; step++)
        if (is_here(lowering, step)) write_step(lowering, step);
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
    tow_status_t status = lower(&lowering, program);
    tow_schedule_deinit(&lowering.schedule);
    *out_lowered = lowering.lowered;
    return status;
}

void tow_lowered_destroy(tow_lowered_t *lowered)
{
    tow_free(lowered);
}
