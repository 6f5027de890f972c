/* Grants of whole runs, and what the first piece of a run has in common with
 * them: finding the program and the arguments, and the record of the run. */
#include <inttypes.h>

#include "base/assert.h"
#include "base/trace.h"
#include "dataflow/dataflow_impl.h"
#include "store/object_table.h"

/* -- Arguments ------------------------------------------------------------- */

static uint32_t node_of_argument(const program_t *program, uint32_t slot)
{
    for (size_t i = 0; i < program->lowered->step_count; i++) {
        const tow_lowered_step_t *step = &program->lowered->steps[i];
        for (size_t k = 0; k < step->input_count; k++)
            if (step->inputs[k] == slot) return step->node;
    }
    return 0;
}

static tow_status_t TOW_COLD missing_argument(const program_t *program,
                                              const tow_run_grant_t *grant,
                                              uint32_t index,
                                              uint32_t *out_node)
{
    const tow_shard_store_object_t *object =
        program->scratch.slots[index].object;
    *out_node = node_of_argument(program, index);
    if (object != NULL) return tow_status_retain(object->error);
    return TOW_ERROR(TOW_NOT_FOUND,
                     "run %" PRIu64 ", node %u: argument %u, object %" PRIu64
                     ", is not on this worker",
                     tow_key_id(grant->run), *out_node, index,
                     tow_key_id(grant->arguments[index]));
}

/* Fills the first slots. An argument that no step of ours needs may be another
 * worker's. */
static tow_status_t find_arguments(tow_dataflow_t *dataflow, program_t *program,
                                   const tow_run_grant_t *grant,
                                   uint32_t *out_node)
{
    if (TOW_UNLIKELY(grant->argument_count != program->lowered->argument_count))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "run %" PRIu64 " has %zu arguments, its program takes "
                         "%u",
                         tow_key_id(grant->run), grant->argument_count,
                         program->lowered->argument_count);
    tow_status_t status = TOW_OK;
    for (uint32_t i = 0; i < grant->argument_count; i++) {
        slot_t *slot = &program->scratch.slots[i];
        tow_shard_store_object_t *object = tow_shard_store_find(
            dataflow->options.shard_store, grant->arguments[i]);
        slot->object = object;
        slot->stride = 1;
        slot->shards = object != NULL ? object->shards : NULL;
        slot->is_pending = false;
        const bool is_there = object != NULL && object->shard_count > 0;
        if (TOW_UNLIKELY(!is_there && slot->is_needed && status == TOW_OK))
            status = missing_argument(program, grant, i, out_node);
    }
    return status;
}

/* -- Grants ---------------------------------------------------------------- */

/* Reserves space to report every run under way, and one more. */
static bool reserve_reports(tow_dataflow_t *dataflow)
{
    const size_t more = tow_map_count(&dataflow->runs) + 1;
    return tow_vec_reserve(&dataflow->finished,
                           dataflow->finished.count + more) &&
           tow_vec_reserve(&dataflow->finished_times,
                           dataflow->finished_times.count + more) &&
           tow_vec_reserve(&dataflow->failures,
                           dataflow->failures.count + more);
}

tow_status_t TOW_COLD dataflow_too_many_steps(const tow_dataflow_t *dataflow,
                                              uint64_t run)
{
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "run %" PRIu64 ": %zu steps are queued on this worker, "
                     "and its limit is %u",
                     tow_key_id(run), dataflow->stats.step_count,
                     dataflow->options.step_count_max);
}

static tow_status_t find_program(tow_dataflow_t *dataflow,
                                 const tow_run_grant_t *grant,
                                 program_t **out_program)
{
    program_t *program = tow_map_find(&dataflow->programs, grant->program);
    if (TOW_UNLIKELY(program == NULL))
        return TOW_ERROR(TOW_NOT_FOUND,
                         "run %" PRIu64 ": program %" PRIu64
                         " is not loaded here",
                         tow_key_id(grant->run), tow_key_id(grant->program));
    if (TOW_UNLIKELY(!program->is_bound))
        TOW_RETURN_IF_ERROR(dataflow_bind(dataflow, program));
    *out_program = program;
    return TOW_OK;
}

static tow_status_t begin_run(tow_dataflow_t *dataflow,
                              const program_t *program,
                              const tow_run_grant_t *grant, run_t **out_run)
{
    run_t *run = tow_pool_take(&dataflow->run_pool);
    if (TOW_UNLIKELY(run == NULL))
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "run %" PRIu64 ": %zu runs are under way on this "
                         "worker, which is its limit",
                         tow_key_id(grant->run),
                         tow_map_count(&dataflow->runs));
    if (TOW_UNLIKELY(!tow_map_put(&dataflow->runs, grant->run, run))) {
        tow_pool_give(&dataflow->run_pool, run);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *run = (run_t){.key = grant->run,
                   .program_key = grant->program,
                   .first_result = grant->first_result};
    tow_list_init(&run->steps);
    tow_list_init(&run->held);
    tow_list_init(&run->in_held);
    dataflow_time_begin(dataflow, program, run);
    *out_run = run;
    return TOW_OK;
}

/* It fails before it has begun. */
static void TOW_COLD refuse(tow_dataflow_t *dataflow, const program_t *program,
                            const tow_run_grant_t *grant, uint32_t node,
                            tow_status_t take_cause)
{
    if (program != NULL) {
        const uint32_t all = program->lowered->step_count_all;
        const uint32_t end = grant->step_end != 0 && grant->step_end < all
                                 ? grant->step_end
                                 : all;
        dataflow_put_failed_results(dataflow, &program->scratch,
                                    grant->first_result, take_cause);
        if (end > 0) dataflow_granted(dataflow, grant->first_gang + end - 1);
    }
    dataflow->stats.failed++;
    dataflow_report(dataflow, &(tow_failed_run_t){.run = grant->run,
                                                  .node = node,
                                                  .cause = take_cause});
}

static bool is_whole(const program_t *program, const tow_run_grant_t *grant)
{
    return TOW_LIKELY(grant->step_end == 0) ||
           grant->step_end == program->lowered->step_count_all;
}

/* A whole run, or its first piece. */
static tow_status_t begin(tow_dataflow_t *dataflow, program_t *program,
                          const tow_run_grant_t *grant, uint32_t *out_node,
                          run_t **out_run)
{
    const bool is_all = is_whole(program, grant);
    TOW_RETURN_IF_ERROR(is_all
                            ? dataflow_check_steps(dataflow, grant->run,
                                                   program->lowered->step_count)
                            : dataflow_check_first(dataflow, program, grant));
    TOW_RETURN_IF_ERROR(find_arguments(dataflow, program, grant, out_node));
    TOW_RETURN_IF_ERROR(begin_run(dataflow, program, grant, out_run));
    return is_all ? TOW_OK
                  : dataflow_begin_ranges(dataflow, program, *out_run, grant);
}

tow_status_t tow_dataflow_grant(tow_dataflow_t *dataflow,
                                const tow_run_grant_t *grant)
{
    TOW_TRACE("dataflow.grant");
    TOW_ASSERT(!tow_dataflow_is_blocked(dataflow));
    if (TOW_UNLIKELY(grant->first_step > 0)) {
        dataflow_grant_more(dataflow, grant);
        return TOW_OK;
    }
    if (TOW_UNLIKELY(tow_map_find(&dataflow->runs, grant->run) != NULL))
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "run %" PRIu64 " is granted a second time",
                         grant->run);
    if (TOW_UNLIKELY(!reserve_reports(dataflow)))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    dataflow->stats.granted++;
    program_t *program = NULL;
    run_t *run = NULL;
    uint32_t node = 0;
    tow_status_t status = find_program(dataflow, grant, &program);
    if (TOW_LIKELY(status == TOW_OK))
        status = begin(dataflow, program, grant, &node, &run);
    if (TOW_LIKELY(status == TOW_OK))
        dataflow_apply_begin(dataflow, run,
                             run->ranges != NULL ? run->ranges->scratch
                                                 : &program->scratch,
                             grant->first_gang);
    else
        refuse(dataflow, program, grant, node, status);
    return TOW_OK;
}
