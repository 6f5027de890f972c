/* Programs: stored as received, bound to their executables at their first
 * run. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"

static void release_executables(program_t *program)
{
    if (program->steps == NULL) return;
    for (size_t i = 0; i < program->lowered->step_count; i++)
        if (program->steps[i].executable != NULL)
            tow_executable_release(program->steps[i].executable);
}

static void release_hosts(program_t *program)
{
    if (program->steps == NULL) return;
    for (size_t i = 0; i < program->lowered->step_count; i++)
        tow_host_code_release(program->steps[i].host);
}

static void unbind(program_t *program)
{
    release_executables(program);
    release_hosts(program);
    tow_arena_reset(&program->arena);
    program->steps = NULL;
    program->scratch = (scratch_t){0};
    program->result_count = 0;
    program->arguments = NULL;
    program->is_bound = false;
}

/* Its executables belong to the driver, which has crashed too. */
void dataflow_program_discard(program_t *program)
{
    release_hosts(program);
    dataflow_scratches_free(program);
    tow_arena_deinit(&program->arena);
    tow_lowered_destroy(program->lowered);
    tow_free(program);
}

void dataflow_program_free(program_t *program)
{
    release_executables(program);
    dataflow_program_discard(program);
}

void dataflow_program_remove(tow_dataflow_t *dataflow, program_t *program)
{
    if (program->hold_count == 0) {
        dataflow_program_free(program);
        return;
    }
    program->is_removed = true;
    tow_list_append(&dataflow->removed, &program->in_removed);
}

void dataflow_program_unhold(program_t *program)
{
    TOW_ASSERT(program->hold_count > 0);
    if (--program->hold_count > 0 || !program->is_removed) return;
    tow_list_remove(&program->in_removed);
    dataflow_program_free(program);
}

/* -- Checks that need the executables -------------------------------------- */

static tow_status_t check_step(const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const tow_signature_t *signature = &step->executable->signature;
    if ((signature->argument_count != TOW_COUNT_UNKNOWN &&
         signature->argument_count != lowered->input_count) ||
        signature->result_count != lowered->output_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "node %u: %s takes %zu arguments and returns %zu "
                         "results; the program has %zu and %u",
                         lowered->node, signature->name,
                         signature->argument_count, signature->result_count,
                         lowered->input_count, lowered->output_count);
    if (step->executable->local_device_count == 0)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "node %u: %s has none of this worker's devices",
                         lowered->node, signature->name);
    return TOW_OK;
}

/* Unpacking has checked that inputs are written before and not freed yet; this
 * checks that they have a shard for each device. Arguments are checked when
 * they are known. */
static tow_status_t check_inputs(program_t *program, const step_t *step,
                                 size_t shard_count)
{
    const tow_lowered_step_t *lowered = step->lowered;
    for (size_t i = 0; i < lowered->input_count; i++) {
        slot_t *slot = &program->scratch.slots[lowered->inputs[i]];
        if (lowered->inputs[i] < program->lowered->argument_count)
            slot->is_needed = true;
        else if (slot->count != shard_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "node %u: input %zu is on %u devices of this "
                             "worker, the step runs on %zu",
                             lowered->node, i, slot->count, shard_count);
    }
    return TOW_OK;
}

/* A transfer. */
static tow_status_t check_route(const tow_dataflow_t *dataflow,
                                const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const tow_route_t *route = lowered->route;
    if (dataflow->options.engine == NULL)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "node %u: this worker does not support transfers",
                         lowered->node);
    if (lowered->input_count != (route->source_count > 0 ? 1 : 0) ||
        lowered->output_count != (route->target_count > 0 ? 1 : 0))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "node %u: a transfer of %zu shards to %zu with %zu "
                         "inputs and %u outputs",
                         lowered->node, route->source_count,
                         route->target_count, lowered->input_count,
                         lowered->output_count);
    return tow_status_annotate(
        tow_route_check(route, dataflow->options.process,
                        dataflow->options.driver->device_count),
        "node %u", lowered->node);
}

static tow_status_t check_part(const tow_dataflow_t *dataflow,
                               const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    if (dataflow->options.engine == NULL)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "node %u: this worker does not support collectives",
                         lowered->node);
    return tow_status_annotate(
        tow_part_check(lowered->collective, dataflow->options.process,
                       dataflow->options.driver->device_count),
        "node %u", lowered->node);
}

/* -- Layout ---------------------------------------------------------------- */

static bool lay_out_step(program_t *program, step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    tow_arena_t *arena = &program->arena;
    /* One more of each: an allocation of 0 bytes returns NULL. */
    step->kept = tow_arena_calloc(arena, lowered->non_donatable_count + 1,
                                  sizeof(*step->kept));
    step->kept_now = tow_arena_calloc(arena, lowered->input_count + 1,
                                      sizeof(*step->kept_now));
    if (step->kept == NULL || step->kept_now == NULL) return false;
    for (size_t i = 0; i < lowered->non_donatable_count; i++)
        step->kept[i] = lowered->non_donatable[i];
    step->first_result = program->result_count;
    program->result_count += (size_t)step->shard_count * lowered->output_count;
    for (uint32_t i = 0; i < lowered->output_count; i++)
        program->scratch.slots[lowered->first_output + i].count =
            step->shard_count;
    return true;
}

static tow_status_t find_executable(tow_dataflow_t *dataflow,
                                    const program_t *program, step_t *step)
{
    const uint64_t key = step->lowered->executable.value;
    tow_executable_t *executable = tow_map_find(&dataflow->executables, key);
    if (executable == NULL)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "node %u of program %" PRIu64 ": executable %" PRIu64
                         " is not loaded here",
                         step->lowered->node, program->key, key);
    tow_executable_retain(executable);
    step->executable = executable;
    return TOW_OK;
}

static tow_status_t bind_host(tow_dataflow_t *dataflow, program_t *program,
                              step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const uint64_t key = lowered->executable.value;
    tow_host_code_t *code = tow_map_find(&dataflow->hosts, key);
    if (code == NULL || dataflow->options.host_runner == NULL)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "node %u of program %" PRIu64
                         ": host function %" PRIu64 " is not loaded here",
                         lowered->node, program->key, key);
    if (code->signature.argument_count != lowered->input_count ||
        code->signature.result_count != lowered->output_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "node %u: host function %s takes %zu arrays and "
                         "returns %zu; the program has %zu and %u",
                         lowered->node, code->signature.name,
                         code->signature.argument_count,
                         code->signature.result_count, lowered->input_count,
                         lowered->output_count);
    tow_host_code_retain(code);
    step->host = code;
    step->shard_count = (uint32_t)code->device_count;
    return check_inputs(program, step, step->shard_count);
}

static tow_status_t bind_step(tow_dataflow_t *dataflow, program_t *program,
                              step_t *step)
{
    const tow_route_t *route = step->lowered->route;
    if (route != NULL) {
        step->shard_count = (uint32_t)route->target_count;
        TOW_RETURN_IF_ERROR(check_route(dataflow, step));
        return check_inputs(program, step, route->source_count);
    }
    const tow_collective_part_t *part = step->lowered->collective;
    if (part != NULL) {
        step->shard_count = (uint32_t)part->shard_count;
        TOW_RETURN_IF_ERROR(check_part(dataflow, step));
        return check_inputs(program, step, part->shard_count);
    }
    if (step->lowered->is_host) return bind_host(dataflow, program, step);
    TOW_RETURN_IF_ERROR(find_executable(dataflow, program, step));
    TOW_RETURN_IF_ERROR(check_step(step));
    step->shard_count = (uint32_t)step->executable->local_device_count;
    return check_inputs(program, step, step->shard_count);
}

/* NULL: it is another worker's. */
static step_t *find_step(program_t *program, uint32_t index)
{
    size_t low = 0, high = program->lowered->step_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (program->lowered->steps[middle].index < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low < program->lowered->step_count &&
                   program->lowered->steps[low].index == index
               ? &program->steps[low]
               : NULL;
}

/* The step that frees the value, if it and all other users are computations;
 * NULL: the value may be in use for longer. */
static step_t *find_freer(program_t *program, size_t first, uint32_t slot)
{
    const tow_lowered_t *lowered = program->lowered;
    for (size_t i = first; i < lowered->step_count &&
                           i - first < TOW_DATAFLOW_LAST_USE_SEARCH_COUNT;
         i++) {
        const tow_lowered_step_t *step = &lowered->steps[i];
        for (size_t k = 0; k < step->input_count; k++)
            if (step->inputs[k] == slot && program->steps[i].executable == NULL)
                return NULL;
        for (size_t k = 0; k < step->freed_count; k++)
            if (step->freed[k] == slot) return &program->steps[i];
    }
    return NULL; /* A result, or far away. */
}

/* Marks the computations that a late transfer names, and notes its memory. */
static void mark_waits(const tow_dataflow_t *dataflow, program_t *program,
                       size_t at)
{
    const tow_lowered_step_t *lowered = &program->lowered->steps[at];
    if (lowered->sent_before != 0) {
        step_t *step = find_step(program, lowered->sent_before - 1);
        if (step != NULL) step->waits_for_sends = true;
    }
    if (!lowered->is_late || lowered->output_count == 0) return;
    step_t *step = lowered->memory_after != 0
                       ? find_step(program, lowered->memory_after - 1)
                       : NULL;
    if (step != NULL) step->is_awaited = true;
    /* A computation that consumes the value gives its memory to a result, which
     * may stay for longer. */
    if (program->steps[at].is_consumed) return;
    step_t *freer = find_freer(program, at + 1, lowered->first_output);
    if (freer == NULL) return;
    const uint64_t bytes =
        tow_transfer_memory(dataflow->options.engine, lowered->route,
                            program->steps[at].is_consumed);
    program->steps[at].late_bytes = bytes;
    program->steps[at].freer = (size_t)(freer - program->steps);
    freer->late_bytes += bytes;
}

static bool is_kept(const tow_lowered_step_t *step, size_t input)
{
    for (size_t i = 0; i < step->non_donatable_count; i++)
        if (step->non_donatable[i] == input) return true;
    return false;
}

/* By slot: whether a computation may overwrite it. */
static void find_consumed(const program_t *program, bool *is_consumed)
{
    for (size_t i = 0; i < program->lowered->step_count; i++) {
        const step_t *step = &program->steps[i];
        if (step->executable == NULL) continue;
        const tow_signature_t *signature = &step->executable->signature;
        for (size_t k = 0; k < signature->alias_count; k++) {
            const size_t input = signature->aliases[k].argument;
            if (!is_kept(step->lowered, input))
                is_consumed[step->lowered->inputs[input]] = true;
        }
    }
}

/* Marks the transfers whose values a computation overwrites: they need memory
 * that is ours. */
static tow_status_t mark_consumed(program_t *program)
{
    const tow_lowered_t *lowered = program->lowered;
    bool *is_consumed = tow_calloc((size_t)lowered->slot_count + 1, 1);
    if (is_consumed == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    find_consumed(program, is_consumed);
    for (size_t i = 0; i < lowered->step_count; i++)
        program->steps[i].is_consumed =
            lowered->steps[i].route != NULL &&
            lowered->steps[i].output_count > 0 &&
            is_consumed[lowered->steps[i].first_output];
    tow_free(is_consumed);
    return TOW_OK;
}

static tow_status_t lay_out(tow_dataflow_t *dataflow, program_t *program)
{
    const tow_lowered_t *lowered = program->lowered;
    const tow_status_t no_memory = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    size_t argument_count_max = 0;
    program->steps = tow_arena_calloc(&program->arena, lowered->step_count + 1,
                                      sizeof(*program->steps));
    program->scratch.program = program;
    program->scratch.slots =
        tow_arena_calloc(&program->arena, (size_t)lowered->slot_count + 1,
                         sizeof(*program->scratch.slots));
    if (program->steps == NULL || program->scratch.slots == NULL)
        return no_memory;
    for (size_t i = 0; i < lowered->step_count; i++) {
        step_t *step = &program->steps[i];
        step->lowered = &lowered->steps[i];
        TOW_RETURN_IF_ERROR(bind_step(dataflow, program, step));
        if (!lay_out_step(program, step)) return no_memory;
        const size_t count =
            (size_t)step->shard_count * step->lowered->input_count;
        if (count > argument_count_max) argument_count_max = count;
    }
    program->arguments = tow_arena_calloc(
        &program->arena, argument_count_max + 1, sizeof(*program->arguments));
    program->scratch.results =
        tow_arena_calloc(&program->arena, program->result_count + 1,
                         sizeof(*program->scratch.results));
    if (program->arguments == NULL || program->scratch.results == NULL)
        return no_memory;
    if (!dataflow_time_bind(dataflow, program)) return no_memory;
    dataflow_place_outputs(&program->scratch, program);
    TOW_RETURN_IF_ERROR(mark_consumed(program));
    for (size_t i = 0; i < lowered->step_count; i++)
        if (lowered->steps[i].route != NULL) mark_waits(dataflow, program, i);
    for (size_t i = 0; i < lowered->step_count; i++)
        program->steps[i].may_wait = lowered->steps[i].is_sequential ||
                                     lowered->steps[i].is_late ||
                                     program->steps[i].waits_for_sends;
    return TOW_OK;
}

tow_status_t dataflow_bind(tow_dataflow_t *dataflow, program_t *program)
{
    TOW_ASSERT(!program->is_bound);
    tow_status_t status = lay_out(dataflow, program);
    if (status != TOW_OK) {
        unbind(program);
        return status;
    }
    program->is_bound = true;
    return TOW_OK;
}
