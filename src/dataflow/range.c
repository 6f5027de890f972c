/* Runs that are granted in pieces: ranges of their steps.
 *
 * The pieces of a run come in order and without gaps; grants of other runs may
 * come between them. A piece is applied like a whole grant. The run keeps its
 * values from one piece to the next (scratch.c) and is under way until its last
 * piece has ended. The end of every other piece is reported as progress, when
 * all steps of this worker before it have ended; steps of a run are listed in
 * their order, so the first one under way tells how far that is.
 *
 * A run that fails ends at once, whether or not all of it was granted. Pieces
 * of it that arrive later are stale. */
#include <inttypes.h>

#include "base/assert.h"
#include "dataflow/dataflow_impl.h"
#include "store/object_table.h"

/* -- Progress -------------------------------------------------------------- */

/* All steps before this one have ended. */
static uint32_t reached(const ranges_t *ranges)
{
    const tow_list_t *steps = &ranges->run->steps;
    if (tow_list_is_empty(steps)) return ranges->applied_end;
    return TOW_CONTAINER_OF(steps->next, step_run_t, in_owner)->index;
}

void dataflow_range_progress(tow_dataflow_t *dataflow, run_t *run)
{
    ranges_t *ranges = run->ranges;
    if (run->error != TOW_OK) return; /* It is reported as a failure. */
    const uint32_t end = reached(ranges);
    size_t ended = 0;
    while (ended < ranges->ends.count && ranges->ends.items[ended] <= end)
        ended++;
    if (ended == 0) return;
    ranges->progress_end = ranges->ends.items[ended - 1];
    for (size_t i = ended; i < ranges->ends.count; i++)
        ranges->ends.items[i - ended] = ranges->ends.items[i];
    ranges->ends.count -= ended;
    tow_list_remove(&ranges->in_progressed);
    tow_list_append(&dataflow->progressed, &ranges->in_progressed);
    dataflow_wake(dataflow);
}

void dataflow_range_applied(tow_dataflow_t *dataflow, run_t *run)
{
    ranges_t *ranges = run->ranges;
    ranges->applied_end = ranges->granted_end;
    ranges->next = ranges->stop;
    dataflow_range_progress(dataflow, run);
}

bool tow_dataflow_has_run(const tow_dataflow_t *dataflow, uint64_t run)
{
    return tow_map_find(&dataflow->runs, run) != NULL;
}

uint32_t tow_dataflow_progress(const tow_dataflow_t *dataflow, uint64_t key)
{
    const run_t *run = tow_map_find(&dataflow->runs, key);
    return run != NULL && run->ranges != NULL ? run->ranges->progress_end : 0;
}

void dataflow_ranges_report(tow_dataflow_t *dataflow)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&dataflow->progressed)) != NULL) {
        const ranges_t *ranges =
            TOW_CONTAINER_OF(item, ranges_t, in_progressed);
        run_t *run = ranges->run;
        const tow_run_progress_t progress = {run->key, ranges->progress_end,
                                             dataflow_time_take(dataflow, run)};
        const bool is_kept = tow_vec_push(&dataflow->progress, progress);
        TOW_ASSERT(is_kept); /* The space was reserved with the record. */
    }
}

void dataflow_ranges_free(tow_dataflow_t *dataflow, run_t *run)
{
    ranges_t *ranges = run->ranges;
    run->ranges = NULL;
    tow_list_remove(&ranges->in_progressed);
    tow_vec_deinit(&ranges->ends);
    tow_pool_give(&dataflow->ranges_pool, ranges);
}

/* -- Beginning a run ------------------------------------------------------- */

static tow_status_t make_ranges(tow_dataflow_t *dataflow, run_t *run)
{
    ranges_t *ranges = tow_pool_take(&dataflow->ranges_pool);
    if (ranges == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *ranges = (ranges_t){.run = run};
    tow_list_init(&ranges->in_progressed);
    run->ranges = ranges;
    return tow_vec_reserve(&dataflow->progress,
                           dataflow->ranges_pool.taken_count)
               ? TOW_OK
               : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Pieces ---------------------------------------------------------------- */

static tow_status_t check_range(const tow_dataflow_t *dataflow,
                                const program_t *program, uint32_t expected,
                                const tow_run_grant_t *grant)
{
    const uint32_t all = program->lowered->step_count_all;
    const uint32_t end = grant->step_end != 0 ? grant->step_end : all;
    if (grant->first_step != expected || end <= expected || end > all)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "run %" PRIu64 ": steps %u to %u are granted, it "
                         "stands at step %u of %u",
                         tow_key_id(grant->run), grant->first_step, end,
                         expected, all);
    if (grant->first_gang + grant->first_step <= dataflow->last_gang)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "run %" PRIu64 ", step %u: gang %" PRIu64
                         " is granted after gang %" PRIu64,
                         tow_key_id(grant->run), grant->first_step,
                         grant->first_gang + grant->first_step,
                         dataflow->last_gang);
    return TOW_OK;
}

/* Adds the piece to the run; the last one has no end that is reported. */
static tow_status_t add_range(const tow_dataflow_t *dataflow,
                              const program_t *program, run_t *run,
                              const tow_run_grant_t *grant)
{
    ranges_t *ranges = run->ranges;
    const tow_lowered_t *lowered = program->lowered;
    const uint32_t all = lowered->step_count_all;
    const uint32_t end = grant->step_end != 0 ? grant->step_end : all;
    size_t stop = ranges->next;
    while (stop < lowered->step_count && lowered->steps[stop].index < end)
        stop++;
    TOW_RETURN_IF_ERROR(
        dataflow_check_steps(dataflow, run->key, stop - ranges->next));
    if (end < all && !tow_vec_push(&ranges->ends, end))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    ranges->granted_end = end;
    ranges->stop = stop;
    return TOW_OK;
}

tow_status_t dataflow_check_first(const tow_dataflow_t *dataflow,
                                  const program_t *program,
                                  const tow_run_grant_t *grant)
{
    return check_range(dataflow, program, 0, grant);
}

static tow_status_t begin_ranges(tow_dataflow_t *dataflow, program_t *program,
                                 run_t *run, const tow_run_grant_t *grant)
{
    const size_t device_count = dataflow->options.driver->device_count;
    TOW_RETURN_IF_ERROR(make_ranges(dataflow, run));
    TOW_RETURN_IF_ERROR(add_range(dataflow, program, run, grant));
    scratch_t *scratch = dataflow_scratch_take(program, device_count);
    if (scratch == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    dataflow_scratch_adopt(scratch, grant->arguments, device_count);
    run->ranges->scratch = scratch;
    run->hold_count++; /* Until its last piece has been applied. */
    return TOW_OK;
}

tow_status_t dataflow_begin_ranges(tow_dataflow_t *dataflow, program_t *program,
                                   run_t *run, const tow_run_grant_t *grant)
{
    tow_status_t status = begin_ranges(dataflow, program, run, grant);
    dataflow->stats.piece_count++;
    if (TOW_LIKELY(status == TOW_OK)) return TOW_OK;
    if (run->ranges != NULL) dataflow_ranges_free(dataflow, run);
    dataflow_time_end(dataflow, run);
    tow_map_remove(&dataflow->runs, run->key);
    tow_pool_give(&dataflow->run_pool, run);
    return status;
}

/* The run has ended here, or is about to. Other workers may have sent us
 * messages for these gangs. */
static void ignore(tow_dataflow_t *dataflow, const tow_run_grant_t *grant)
{
    const program_t *program =
        tow_map_find(&dataflow->programs, grant->program);
    const uint32_t all = program != NULL ? program->lowered->step_count_all : 0;
    const uint32_t end = grant->step_end != 0 ? grant->step_end : all;
    dataflow->stats.piece_count++;
    dataflow->stats.stale_count++;
    if (end > grant->first_step)
        dataflow_granted(dataflow, grant->first_gang + end - 1);
}

static tow_status_t add_more(const tow_dataflow_t *dataflow, run_t *run,
                             const tow_run_grant_t *grant)
{
    if (run->ranges == NULL || run->ranges->scratch == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "run %" PRIu64 ": steps from %u on are granted a "
                         "second time",
                         tow_key_id(grant->run), grant->first_step);
    const program_t *program = run->ranges->scratch->program;
    TOW_RETURN_IF_ERROR(
        check_range(dataflow, program, run->ranges->granted_end, grant));
    return add_range(dataflow, program, run, grant);
}

void dataflow_grant_more(tow_dataflow_t *dataflow, const tow_run_grant_t *grant)
{
    run_t *run = tow_map_find(&dataflow->runs, grant->run);
    if (run == NULL || run->error != TOW_OK) {
        ignore(dataflow, grant);
        return;
    }
    tow_status_t status = add_more(dataflow, run, grant);
    dataflow->stats.piece_count++;
    if (TOW_LIKELY(status == TOW_OK)) {
        dataflow_scratch_find(dataflow, run->ranges->scratch);
        dataflow_apply_begin(dataflow, run, run->ranges->scratch,
                             grant->first_gang);
        return;
    }
    dataflow_abort_run(dataflow, run, status);
    tow_status_release(status);
}
