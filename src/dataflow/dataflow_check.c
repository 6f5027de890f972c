/* The invariants of the executor: see tow_dataflow_check. */
#include "base/invariant.h"
#include "dataflow/dataflow_impl.h"

static tow_status_t check_step(const tow_dataflow_t *dataflow, const run_t *run,
                               const step_run_t *step)
{
    TOW_INVARIANT(step->dataflow == dataflow && step->owner == run);
    if (step->kind == STEP_COMPUTE) return TOW_OK;
    TOW_INVARIANT(!dataflow_is_held(step) || run->error == TOW_OK);
    TOW_INVARIANT(step->abort_cause == TOW_OK);
    TOW_INVARIANT(step->program != NULL && step->program->hold_count > 0);
    return TOW_OK;
}

/* Only a run in pieces, or the one that is being applied, has values. */
static tow_status_t check_values(const tow_dataflow_t *dataflow,
                                 const run_t *run)
{
    const scratch_t *scratch = dataflow_scratch_of(dataflow, run);
    const ranges_t *ranges = run->ranges;
    const bool is_applied = dataflow->applying.run == run;
    TOW_INVARIANT(scratch == NULL || is_applied || run->error == TOW_OK);
    if (ranges == NULL) {
        TOW_INVARIANT(scratch == NULL ||
                      (is_applied && scratch == &scratch->program->scratch));
        return TOW_OK;
    }
    TOW_INVARIANT(ranges->run == run);
    TOW_INVARIANT(ranges->applied_end <= ranges->granted_end);
    TOW_INVARIANT(is_applied || ranges->applied_end == ranges->granted_end ||
                  run->error != TOW_OK);
    TOW_INVARIANT(ranges->next <= ranges->stop);
    for (size_t i = 1; i < ranges->ends.count; i++)
        TOW_INVARIANT(ranges->ends.items[i - 1] < ranges->ends.items[i]);
    if (scratch == NULL) return TOW_OK;
    TOW_INVARIANT(scratch->is_used && run->hold_count > 0);
    TOW_INVARIANT(scratch->program->hold_count > 0);
    return TOW_OK;
}

/* Adds the numbers of its steps. */
static tow_status_t check_run(const tow_dataflow_t *dataflow, const run_t *run,
                              size_t *step_count, size_t *aborted_count)
{
    const tow_list_t *head = &run->steps;
    uint32_t next = 0;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const step_run_t *step = TOW_CONTAINER_OF(at, step_run_t, in_owner);
        TOW_INVARIANT(step->index >= next);
        next = step->index + 1;
        TOW_RETURN_IF_ERROR(check_step(dataflow, run, step));
        *step_count += 1;
        *aborted_count += step->abort_cause != TOW_OK;
    }
    TOW_INVARIANT(tow_list_is_empty(&run->held) ==
                  tow_list_is_empty(&run->in_held));
    /* Otherwise it would have been reported. */
    TOW_INVARIANT(!tow_list_is_empty(head) || run->hold_count > 0);
    return check_values(dataflow, run);
}

static tow_status_t check_runs(const tow_dataflow_t *dataflow)
{
    size_t step_count = 0, aborted_count = 0, kept_count = 0, cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->runs, &cursor, &key, &value)) {
        TOW_INVARIANT(((const run_t *)value)->key == key);
        kept_count += ((const run_t *)value)->kept_ns != NULL;
        TOW_RETURN_IF_ERROR(
            check_run(dataflow, value, &step_count, &aborted_count));
    }
    TOW_INVARIANT(tow_map_count(&dataflow->runs) > 0 ||
                  dataflow->late_bytes == 0);
    TOW_INVARIANT(step_count == dataflow->stats.step_count);
    TOW_INVARIANT(step_count == dataflow->step_pool.taken_count);
    TOW_INVARIANT(aborted_count == tow_list_length(&dataflow->aborted));
    TOW_INVARIANT(tow_map_count(&dataflow->runs) ==
                  dataflow->run_pool.taken_count);
    TOW_INVARIANT(kept_count == dataflow->kept_pool.taken_count);
    return TOW_OK;
}

static tow_status_t check_programs(const tow_dataflow_t *dataflow)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->programs, &cursor, &key, &value)) {
        const program_t *program = value;
        TOW_INVARIANT(program->key == key && !program->is_removed);
    }
    const tow_list_t *head = &dataflow->removed;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const program_t *program = TOW_CONTAINER_OF(at, program_t, in_removed);
        TOW_INVARIANT(program->is_removed && program->hold_count > 0);
    }
    return TOW_OK;
}

static tow_status_t check_grant(const applying_t *applying)
{
    if (applying->program == NULL) {
        TOW_INVARIANT(applying->run == NULL && !applying->is_blocked);
        return TOW_OK;
    }
    TOW_INVARIANT(applying->run != NULL && applying->run->hold_count > 0);
    TOW_INVARIANT(applying->program->is_bound &&
                  applying->program->hold_count > 0);
    TOW_INVARIANT(applying->next <= applying->stop &&
                  applying->stop <= applying->program->lowered->step_count);
    TOW_INVARIANT(applying->scratch->program == applying->program);
    TOW_INVARIANT(applying->await_count <= applying->run->hold_count);
    return TOW_OK;
}

static tow_status_t check_reports(const tow_dataflow_t *dataflow)
{
    const size_t run_count = tow_map_count(&dataflow->runs);
    TOW_INVARIANT(dataflow->is_reporting ||
                  dataflow->finished.count + dataflow->failures.count == 0);
    TOW_INVARIANT(dataflow->finished.count + run_count <=
                  dataflow->finished.capacity);
    TOW_INVARIANT(dataflow->failures.count + run_count <=
                  dataflow->failures.capacity);
    TOW_INVARIANT(dataflow->is_reporting ||
                  tow_list_is_empty(&dataflow->progressed));
    TOW_INVARIANT(dataflow->progress.count == 0 &&
                  dataflow->ranges_pool.taken_count <=
                      dataflow->progress.capacity);
    TOW_INVARIANT((dataflow->raw_error == TOW_OK) ==
                  (dataflow->reported_error == TOW_OK));
    return TOW_OK;
}

tow_status_t tow_dataflow_check(const tow_dataflow_t *dataflow)
{
    TOW_RETURN_IF_ERROR(check_runs(dataflow));
    TOW_RETURN_IF_ERROR(check_programs(dataflow));
    TOW_RETURN_IF_ERROR(check_grant(&dataflow->applying));
    return check_reports(dataflow);
}
