#include "ir/schedule_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/lower.h"

/* -- Steps and slots ------------------------------------------------------- */

static bool allocate_steps(tow_schedule_t *schedule)
{
    const size_t count = schedule->program->nodes.count + 1;
    schedule->signatures = tow_malloc(count * (sizeof(schedule->signatures[0]) +
                                               2 * sizeof(schedule->nodes[0])));
    if (schedule->signatures == NULL) return false;
    schedule->nodes = (uint32_t *)(schedule->signatures + count);
    schedule->first_slots = schedule->nodes + count;
    return true;
}

/* Arguments fill the first slots, then each step's outputs follow. */
static void number_slots(tow_schedule_t *schedule,
                         const tow_graph_scope_t *scope)
{
    const tow_graph_t *program = schedule->program;
    uint32_t next = 0;
    for (size_t i = 0; i < program->arguments.count; i++)
        schedule->first_slots[program->arguments.items[i]] = next++;
    for (size_t step = 0; step < schedule->step_count; step++) {
        const tow_node_t *node = tow_schedule_node(schedule, step);
        const tow_signature_t *signature = NULL;
        if (tow_node_has_function(node)) {
            signature = scope->function(scope->context, node->function);
            TOW_ASSERT(signature != NULL);
            TOW_ASSERT(signature->argument_count == node->input_count);
            TOW_ASSERT(signature->result_count <= TOW_SLOTS_MAX - next);
        }
        schedule->signatures[step] = signature;
        schedule->first_slots[schedule->nodes[step]] = next;
        next += tow_schedule_outputs(schedule, step);
    }
    schedule->slot_count = next;
}

static size_t most_inputs(const tow_schedule_t *schedule)
{
    size_t most = 0;
    for (size_t step = 0; step < schedule->step_count; step++) {
        const size_t count = tow_schedule_node(schedule, step)->input_count;
        if (count > most) most = count;
    }
    return most;
}

static bool allocate_slots(tow_schedule_t *schedule)
{
    const size_t slot_bytes = schedule->slot_count * sizeof(schedule->slots[0]);
    schedule->slots = tow_calloc(1, slot_bytes + most_inputs(schedule) + 1);
    if (schedule->slots == NULL) return false;
    schedule->donates = (bool *)(schedule->slots + schedule->slot_count);
    return true;
}

/* -- Uses ------------------------------------------------------------------ */

static void start_slots(tow_schedule_t *schedule)
{
    const tow_graph_t *program = schedule->program;
    for (size_t i = 0; i < program->arguments.count; i++) {
        const uint32_t node = program->arguments.items[i];
        schedule->slots[i].last_step = TOW_STEP_NONE;
        schedule->slots[i].is_caller_owned =
            !program->nodes.items[node].donated;
    }
    for (uint32_t step = 0; step < schedule->step_count; step++) {
        const uint32_t first = schedule->first_slots[schedule->nodes[step]];
        const size_t count = tow_schedule_outputs(schedule, step);
        for (size_t i = 0; i < count; i++)
            schedule->slots[first + i].last_step = step;
    }
}

static void note_uses(tow_schedule_t *schedule, uint32_t step)
{
    const tow_node_t *node = tow_schedule_node(schedule, step);
    for (size_t i = 0; i < node->input_count; i++) {
        tow_slot_t *slot =
            &schedule->slots[tow_schedule_slot(schedule, node->inputs[i])];
        slot->is_repeated = slot->last_step == step;
        slot->last_step = step;
    }
}

static void note_results(tow_schedule_t *schedule)
{
    const tow_graph_t *program = schedule->program;
    for (size_t i = 0; i < program->results.count; i++) {
        const tow_node_t *node =
            &program->nodes.items[program->results.items[i]];
        schedule->slots[tow_schedule_slot(schedule, node->inputs[0])]
            .is_result = true;
    }
}

tow_status_t tow_schedule_init(tow_schedule_t *schedule,
                               const tow_graph_t *program,
                               const tow_graph_scope_t *scope)
{
    *schedule = (tow_schedule_t){.program = program};
    if (!allocate_steps(schedule)) return tow_ir_exhausted();
    TOW_RETURN_IF_ERROR(
        tow_graph_order(program, schedule->nodes, &schedule->step_count));
    number_slots(schedule, scope);
    TOW_RETURN_IF_ERROR(tow_schedule_place_late(schedule, scope));
    if (schedule->has_late) number_slots(schedule, scope);
    TOW_RETURN_IF_ERROR(tow_schedule_find_waits(schedule, scope));
    if (!allocate_slots(schedule)) return tow_ir_exhausted();
    start_slots(schedule);
    for (uint32_t step = 0; step < schedule->step_count; step++)
        note_uses(schedule, step);
    note_results(schedule);
    return TOW_OK;
}

void tow_schedule_deinit(tow_schedule_t *schedule)
{
    tow_free(schedule->signatures);
    tow_free(schedule->slots);
    tow_free(schedule->is_late);
    tow_free(schedule->memory_after);
    *schedule = (tow_schedule_t){0};
}

const bool *tow_schedule_donates(tow_schedule_t *schedule, size_t step)
{
    const tow_signature_t *signature = schedule->signatures[step];
    memset(schedule->donates, 0,
           tow_schedule_node(schedule, step)->input_count);
    if (signature == NULL) return schedule->donates;
    for (size_t i = 0; i < signature->alias_count; i++) {
        TOW_ASSERT(signature->aliases[i].argument < signature->argument_count);
        schedule->donates[signature->aliases[i].argument] = true;
    }
    return schedule->donates;
}
