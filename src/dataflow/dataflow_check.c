/* The invariants of the executor: see tow_dataflow_check. */
#include "base/invariant.h"
#include "dataflow/dataflow_impl.h"

static tow_status_t check_step(const tow_dataflow_t *dataflow, const run_t *run,
                               const step_run_t *step)
{
    TOW_INVARIANT(step->dataflow == dataflow && step->owner == run);
    if (step->kind == STEP_COMPUTE) return TOW_OK;
    TOW_INVARIANT(step->abort_cause == TOW_OK);
    TOW_INVARIANT(step->program != NULL && step->program->hold_count > 0);
    return TOW_OK;
}

/* Adds the numbers of its steps. */
static tow_status_t check_run(const tow_dataflow_t *dataflow, const run_t *run,
                              size_t *step_count, size_t *aborted_count)
{
    const tow_list_t *head = &run->steps;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const step_run_t *step = TOW_CONTAINER_OF(at, step_run_t, in_owner);
        TOW_RETURN_IF_ERROR(check_step(dataflow, run, step));
        *step_count += 1;
        *aborted_count += step->abort_cause != TOW_OK;
    }
    /* Otherwise it would have been reported. */
    TOW_INVARIANT(!tow_list_is_empty(head) || run->hold_count > 0);
    return TOW_OK;
}

static tow_status_t check_runs(const tow_dataflow_t *dataflow)
{
    size_t step_count = 0, aborted_count = 0, cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->runs, &cursor, &key, &value)) {
        TOW_INVARIANT(((const run_t *)value)->key == key);
        TOW_RETURN_IF_ERROR(
            check_run(dataflow, value, &step_count, &aborted_count));
    }
    TOW_INVARIANT(step_count == dataflow->stats.step_count);
    TOW_INVARIANT(step_count == dataflow->step_pool.taken_count);
    TOW_INVARIANT(aborted_count == tow_list_length(&dataflow->aborted));
    TOW_INVARIANT(tow_map_count(&dataflow->runs) ==
                  dataflow->run_pool.taken_count);
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
    TOW_INVARIANT(applying->next <= applying->program->lowered->step_count);
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
