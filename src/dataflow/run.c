/* Steps of runs: the hot path.
 *
 * For a run of one step on d devices: one look-up of the program, one for each
 * argument and result, and 2 * d pointers moved for each value. Records come
 * from pools, arrays are the scratch of the program or of the run. */
#include <inttypes.h>

#include "base/assert.h"
#include "base/trace.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"
#include "store/object_table.h"

/* -- Failing --------------------------------------------------------------- */

/* The user's name of a node. NULL: it has none, or the program was removed. */
static const char *name_of(const tow_dataflow_t *dataflow, const run_t *run,
                           uint32_t node)
{
    const program_t *program =
        tow_map_find(&dataflow->programs, run->program_key);
    if (program == NULL) return NULL;
    for (size_t i = 0; i < program->lowered->step_count; i++)
        if (program->lowered->steps[i].node == node &&
            program->lowered->steps[i].name != NULL)
            return program->lowered->steps[i].name;
    return NULL;
}

/* The driver's message names device and cause; we add run and node. A run that
 * depends on one that failed gets the same error of the driver, and then the
 * same text as the first. */
tow_status_t dataflow_describe(tow_dataflow_t *dataflow, const run_t *run,
                               uint32_t node, tow_status_t take_raw)
{
    if (dataflow->raw_error != take_raw) {
        tow_status_release(dataflow->raw_error);
        tow_status_release(dataflow->reported_error);
        dataflow->raw_error = tow_status_retain(take_raw);
        const char *name = name_of(dataflow, run, node);
        dataflow->reported_error = tow_status_annotate(
            tow_status_retain(take_raw), "run %" PRIu64 ", node %u%s%s%s",
            tow_key_id(run->key), node, name != NULL ? " (" : "",
            name != NULL ? name : "", name != NULL ? ")" : "");
    }
    tow_status_release(take_raw);
    return tow_status_retain(dataflow->reported_error);
}

static void poison_results(tow_dataflow_t *dataflow, const run_t *run)
{
    tow_shard_store_t *shard_store = dataflow->options.shard_store;
    for (uint32_t i = 0; i < run->result_count; i++) {
        tow_shard_store_object_t *object =
            tow_shard_store_find(shard_store, run->first_result + i);
        if (object != NULL)
            tow_shard_store_fail(shard_store, object, run->error);
    }
}

static void TOW_COLD fail(tow_dataflow_t *dataflow, run_t *run, uint32_t node,
                          tow_status_t take_cause)
{
    if (run->error != TOW_OK) {
        tow_status_ignore(take_cause, "the run has an earlier error");
        return;
    }
    run->error = take_cause;
    run->node = node;
    poison_results(dataflow, run);
    if (run->ranges != NULL && !run->is_cancelled &&
        !tow_list_is_empty(&run->steps))
        dataflow_report_early(dataflow, run);
    if (dataflow->applying.run == run)
        dataflow_apply_soon(dataflow);
    else if (run->ranges != NULL && run->ranges->scratch != NULL)
        dataflow_end_values(dataflow, run, run->ranges->next);
}

void dataflow_finish_run(tow_dataflow_t *dataflow, run_t *run)
{
    if (!tow_list_is_empty(&run->steps) || run->hold_count > 0) return;
    tow_map_remove(&dataflow->runs, run->key);
    if (TOW_UNLIKELY(run->ranges != NULL)) dataflow_ranges_free(dataflow, run);
    if (run->error == TOW_OK)
        dataflow->stats.succeeded++;
    else
        dataflow->stats.failed++;
    if (TOW_UNLIKELY(run->is_cancelled)) {
        tow_status_release(run->error);
        if (tow_map_count(&dataflow->runs) == 0) dataflow_wake(dataflow);
    } else {
        dataflow_report(
            dataflow,
            &(tow_failed_run_t){.run = run->key,
                                .node = run->node,
                                .cause = run->error,
                                .time = dataflow_time_take(dataflow, run)});
    }
    dataflow_time_end(dataflow, run);
    tow_pool_give(&dataflow->run_pool, run);
}

/* The driver remembers aborted gangs itself. */
static void notify_engine(const tow_dataflow_t *dataflow,
                          const step_run_t *step, tow_status_t cause)
{
    const tow_dataflow_options_t *options = &dataflow->options;
    if (options->abort_gang != NULL)
        options->abort_gang(options->context, step->run.gang_id, cause);
}

static void resend_aborts_later(tow_dataflow_t *dataflow)
{
    tow_env_t *env = dataflow->options.driver->env;
    if (!tow_timer_is_armed(&dataflow->abort_timer))
        tow_env_timer_start(env, &dataflow->abort_timer,
                            tow_env_now_ns(env) + TOW_DATAFLOW_ABORT_AGAIN_NS);
}

/* See tuning.h. */
void dataflow_resend_aborts(tow_timer_t *timer)
{
    tow_dataflow_t *dataflow =
        TOW_CONTAINER_OF(timer, tow_dataflow_t, abort_timer);
    tow_list_t *head = &dataflow->aborted;
    const tow_list_t *last = head->previous;
    for (uint32_t i = 0; i < TOW_DATAFLOW_ABORT_AGAIN_COUNT; i++) {
        tow_list_t *item = tow_list_pop_front(head);
        if (item == NULL) return;
        tow_list_append(head, item);
        const step_run_t *step = TOW_CONTAINER_OF(item, step_run_t, in_aborted);
        notify_engine(dataflow, step, step->abort_cause);
        if (item == last) break;
    }
    resend_aborts_later(dataflow);
}

/* Our members of the step's gang must give up. */
static void TOW_COLD abort_step(tow_dataflow_t *dataflow, step_run_t *step,
                                tow_status_t cause)
{
    tow_driver_t *driver = dataflow->options.driver;
    if (dataflow_is_held(step)) dataflow_unhold(step);
    if (step->kind == STEP_TRANSFER)
        tow_transfer_abort(dataflow->options.engine, &step->transfer, cause);
    if (step->kind == STEP_HOST) dataflow_host_abort(step, cause);
    if (step->kind != STEP_COMPUTE) return;
    if (step->abort_cause != TOW_OK) return;
    step->abort_cause = tow_status_retain(cause);
    tow_list_append(&dataflow->aborted, &step->in_aborted);
    if (tow_driver_can_abort(driver))
        tow_driver_abort(driver, step->run.gang_id, cause);
    notify_engine(dataflow, step, cause);
    if (dataflow->options.abort_gang != NULL) resend_aborts_later(dataflow);
}

static void unlist_aborted(tow_dataflow_t *dataflow, step_run_t *step)
{
    tow_list_remove(&step->in_aborted);
    tow_status_release(step->abort_cause);
    if (tow_list_is_empty(&dataflow->aborted))
        tow_env_timer_stop(dataflow->options.driver->env,
                           &dataflow->abort_timer);
}

/* Members of gangs that wait for a failed one must not wait for ever; the
 * controller aborts those on other workers when we report. We report when all
 * steps have ended: so all steps give up, or one that has started on the
 * devices that are free now would wait for devices of other workers that still
 * wait for us in the failed one. */
static void TOW_COLD abort_steps(tow_dataflow_t *dataflow, run_t *run,
                                 tow_status_t cause)
{
    const tow_list_t *head = &run->steps;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        abort_step(dataflow, TOW_CONTAINER_OF(at, step_run_t, in_owner), cause);
}

void dataflow_abort_run(tow_dataflow_t *dataflow, run_t *run,
                        tow_status_t cause)
{
    const tow_list_t *head = &run->steps;
    uint32_t node = run->node;
    abort_steps(dataflow, run, cause);
    if (!tow_list_is_empty(head))
        node = TOW_CONTAINER_OF(head->next, step_run_t, in_owner)->node;
    fail(dataflow, run, node, tow_status_retain(cause));
    dataflow_finish_run(dataflow, run); /* Between two pieces. */
}

void dataflow_fail_run(tow_dataflow_t *dataflow, run_t *run, uint32_t node,
                       tow_status_t take_cause)
{
    abort_steps(dataflow, run, take_cause);
    fail(dataflow, run, node, take_cause);
}

void tow_dataflow_abort(tow_dataflow_t *dataflow, uint64_t run_key,
                        tow_status_t cause)
{
    TOW_ASSERT(cause != TOW_OK);
    run_t *run = tow_map_find(&dataflow->runs, run_key);
    if (run != NULL) dataflow_abort_run(dataflow, run, cause);
}

static bool has_gang(const run_t *run, uint64_t gang_id)
{
    for (const tow_list_t *item = run->steps.next; item != &run->steps;
         item = item->next) {
        const step_run_t *step = TOW_CONTAINER_OF(item, step_run_t, in_owner);
        if (step->kind == STEP_COMPUTE && step->run.gang_id == gang_id)
            return true;
    }
    return false;
}

bool tow_dataflow_run_of_gang(const tow_dataflow_t *dataflow, uint64_t gang_id,
                              uint64_t *out_run)
{
    size_t cursor = 0;
    void *run;
    while (tow_map_next(&dataflow->runs, &cursor, out_run, &run))
        if (has_gang(run, gang_id)) return true;
    return false;
}

/* -- Completions ----------------------------------------------------------- */

/* Measures whether a program of one step is small; see tuning.h. */
static void judge(tow_dataflow_t *dataflow, const step_run_t *step)
{
    program_t *program = tow_map_find(&dataflow->programs, step->program_key);
    if (program == NULL) return;
    const int64_t span_ns =
        tow_env_now_ns(dataflow->options.driver->env) - step->enqueued_ns;
    if (span_ns > TOW_DATAFLOW_INLINE_SLOW_NS) program->is_slow = true;
    if (span_ns < TOW_DATAFLOW_INLINE_FAST_NS)
        program->fast_count++;
    else
        program->fast_count = 0;
}

static void TOW_COLD member_failed(tow_run_t *driver_run, tow_status_t cause)
{
    step_run_t *step = TOW_CONTAINER_OF(driver_run, step_run_t, run);
    abort_steps(step->dataflow, step->owner, cause);
}

void dataflow_end_step(step_run_t *step, tow_status_t take_status)
{
    tow_dataflow_t *dataflow = step->dataflow;
    run_t *run = step->owner;
    tow_list_remove(&step->in_owner);
    if (TOW_UNLIKELY(dataflow_is_held(step))) dataflow_unhold(step);
    TOW_ASSERT(dataflow->stats.step_count > 0);
    dataflow->stats.step_count--;
    if (TOW_UNLIKELY(step->abort_cause != TOW_OK))
        unlist_aborted(dataflow, step);
    if (step->is_alone) judge(dataflow, step);
    if (step->kind == STEP_COMPUTE && TOW_UNLIKELY(step->late_bytes > 0))
        dataflow_return_late(dataflow, step->late_bytes);
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        /* Members on other workers may be ahead, and have left messages for
         * ours that will not be received now. */
        if (step->kind == STEP_COMPUTE)
            notify_engine(dataflow, step, take_status);
        abort_steps(dataflow, run, take_status);
        fail(dataflow, run, step->node,
             dataflow_describe(dataflow, run, step->node, take_status));
    }
    tow_pool_give(&dataflow->step_pool, step);
    if (TOW_UNLIKELY(run->ranges != NULL))
        dataflow_range_progress(dataflow, run);
    if (TOW_UNLIKELY(dataflow->applying.run == run &&
                     dataflow->applying.awaits_end))
        dataflow_apply_soon(dataflow);
    if (TOW_UNLIKELY(!tow_list_is_empty(&run->held)))
        dataflow_release_soon(dataflow);
    dataflow_finish_run(dataflow, run);
}

static void step_done(tow_run_t *driver_run, tow_status_t take_status)
{
    step_run_t *step = TOW_CONTAINER_OF(driver_run, step_run_t, run);
    dataflow_time_add(step);
    dataflow_end_step(step, take_status);
}

static void transfer_done(tow_transfer_t *transfer, tow_status_t take_status)
{
    step_run_t *step = TOW_CONTAINER_OF(transfer, step_run_t, transfer);
    dataflow_program_unhold(step->program);
    dataflow_end_step(step, take_status);
}

/* The sizes are known: the buffers exist. */
static void transfer_sized(tow_transfer_t *transfer)
{
    const step_run_t *step = TOW_CONTAINER_OF(transfer, step_run_t, transfer);
    dataflow_outputs_ready(step->dataflow, step->owner, step->step);
}

/* -- Inputs ---------------------------------------------------------------- */

static tow_status_t TOW_COLD wrong_input(const step_t *step, size_t input,
                                         uint32_t count)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%s, input %zu: it has %u shards on this worker%s, the "
                     "computation runs on %u of its devices",
                     step->executable != NULL ? step->executable->signature.name
                                              : "collective",
                     input, count,
                     count == 0 ? " (not here, or consumed before)" : "",
                     step->shard_count);
}

static tow_status_t gather(const scratch_t *scratch, const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const size_t device_count = step->shard_count;
    const size_t input_count = lowered->input_count;
    for (size_t i = 0; i < input_count; i++) {
        const slot_t *slot = &scratch->slots[lowered->inputs[i]];
        const uint32_t count = dataflow_count_shards(slot);
        if (TOW_UNLIKELY(count != device_count))
            return wrong_input(step, i, count);
        tow_buffer_t **to = scratch->program->arguments + i;
        for (size_t d = 0; d < device_count; d++)
            to[d * input_count] = slot->shards[d * slot->stride];
    }
    return TOW_OK;
}

/* An argument that is not in the store any more may be a part of another
 * object. */
static bool has_other_users(const scratch_t *scratch, uint32_t slot)
{
    if (slot >= scratch->program->lowered->argument_count) return false;
    const tow_shard_store_object_t *object = scratch->slots[slot].object;
    return object == NULL || tow_shard_store_is_shared(object);
}

/* The inputs that the step must not destroy: those that lowering lists, and
 * arguments that other objects share. Returns their number. */
static size_t keep_shared(const scratch_t *scratch, const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    size_t count = 0, next = 0;
    for (size_t i = 0; i < lowered->input_count; i++) {
        const bool is_kept = next < lowered->non_donatable_count &&
                             lowered->non_donatable[next] == i;
        next += is_kept;
        if (is_kept || has_other_users(scratch, lowered->inputs[i]))
            step->kept_now[count++] = i;
    }
    return count;
}

/* -- Steps ----------------------------------------------------------------- */

/* The step is enqueued: inputs that it was the last to use are released. */
static void settle_slots(tow_dataflow_t *dataflow, const scratch_t *scratch,
                         const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    for (uint32_t i = 0; i < lowered->output_count; i++)
        scratch->slots[lowered->first_output + i].is_owned = true;
    for (size_t i = 0; i < lowered->freed_count; i++) {
        slot_t *slot = &scratch->slots[lowered->freed[i]];
        if (TOW_UNLIKELY(slot->is_pending))
            continue; /* Released when all of the run has started. */
        if (slot->object != NULL) /* An argument: the step consumes it. */
            tow_shard_store_fail(dataflow->options.shard_store, slot->object,
                                 dataflow->donated);
        dataflow_release_slot(slot);
    }
}

/* Outputs without a buffer get one later. */
static void note_pending(scratch_t *scratch, const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    for (uint32_t i = 0; i < lowered->output_count; i++) {
        slot_t *slot = &scratch->slots[lowered->first_output + i];
        slot->is_pending = false;
        for (uint32_t d = 0; d < slot->count; d++)
            slot->is_pending |= slot->shards[d * slot->stride] == NULL;
        scratch->pending_count += slot->is_pending;
    }
}

/* A step that the driver does not run, and that reads its program until it
 * ends. */
static void has_begun(step_run_t *step_run)
{
    tow_dataflow_t *dataflow = step_run->dataflow;
    scratch_t *scratch = dataflow->applying.scratch;
    step_run->program->hold_count++;
    dataflow_list_step(dataflow, step_run);
    note_pending(scratch, step_run->step);
    settle_slots(dataflow, scratch, step_run->step);
}

static bool may_run_inline(const tow_dataflow_t *dataflow,
                           const program_t *program, const step_t *step)
{
    const tow_signature_t *signature = &step->executable->signature;
    return program->fast_count >= TOW_DATAFLOW_INLINE_RUN_COUNT &&
           !program->is_slow &&
           signature->replica_count * signature->partition_count == 1 &&
           dataflow->options.driver->device_count == 1;
}

/* May the end of this step be reported late? Not if a transfer waits for it;
 * nor that of the last step of a grant, which a client or the scheduler may wait
 * for, unless many runs follow it. */
static bool may_coalesce(const tow_dataflow_t *dataflow,
                         const program_t *program, const step_t *step)
{
    if (TOW_UNLIKELY(step->is_awaited)) return false;
    return step != &program->steps[dataflow->applying.stop - 1] ||
           tow_map_count(&dataflow->runs) > TOW_DATAFLOW_PROMPT_RUN_COUNT;
}

/* Programs of many steps keep several devices busy: those are handed to the
 * devices. */
static bool may_linger_too(tow_dataflow_t *dataflow, const program_t *program)
{
    if (!dataflow->options.may_linger_always ||
        program->lowered->step_count > 1)
        return false;
    const int64_t now_ns = tow_env_now_ns(dataflow->options.driver->env);
    if (now_ns != dataflow->linger_turn_ns) {
        dataflow->linger_turn_ns = now_ns;
        dataflow->lingered_count = 0;
    }
    return dataflow->lingered_count++ < TOW_DATAFLOW_LINGER_COUNT;
}

static void watch(tow_dataflow_t *dataflow, const program_t *program,
                  const step_t *step, step_run_t *step_run)
{
    step_run->run.may_start_inline = may_linger_too(dataflow, program);
    step_run->is_alone =
        dataflow->stats.step_count == 0 && program->lowered->step_count == 1;
    if (!step_run->is_alone) return;
    step_run->program_key = program->key;
    step_run->enqueued_ns = tow_env_now_ns(dataflow->options.driver->env);
    step_run->run.may_block = may_run_inline(dataflow, program, step);
    step_run->run.may_start_inline = true;
    dataflow->stats.inline_count += step_run->run.may_block;
}

void dataflow_list_step(tow_dataflow_t *dataflow, step_run_t *step_run)
{
    tow_list_append(&step_run->owner->steps, &step_run->in_owner);
    dataflow->stats.step_count++;
}

static tow_status_t enqueue(tow_dataflow_t *dataflow, run_t *run,
                            const step_t *step, uint64_t gang_id)
{
    scratch_t *scratch = dataflow->applying.scratch;
    program_t *program = dataflow->applying.program;
    TOW_RETURN_IF_ERROR(gather(scratch, step));
    step_run_t *step_run = tow_pool_take(&dataflow->step_pool);
    if (step_run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *step_run = (step_run_t){
        .run = {.executable = step->executable,
                .gang_id = gang_id,
                .arguments = program->arguments,
                .argument_count = step->lowered->input_count,
                .non_donatable_arguments = step->kept,
                .non_donatable_argument_count =
                    step->lowered->non_donatable_count,
                .results = dataflow_results(scratch, step),
                .may_coalesce = may_coalesce(dataflow, program, step),
                .failed = member_failed,
                .done = step_done},
        .dataflow = dataflow,
        .owner = run,
        .node = step->lowered->node,
        .index = step->lowered->index,
        .device_set = step->device_set,
        .late_bytes = step->late_bytes,
    };
    if (step->executable->signature.alias_count > 0) {
        dataflow_scratch_unshare(scratch, step);
        step_run->run.non_donatable_arguments = step->kept_now;
        step_run->run.non_donatable_argument_count = keep_shared(scratch, step);
    }
    if (dataflow->options.may_run_inline)
        watch(dataflow, program, step, step_run);
    tow_status_t status =
        tow_driver_run(dataflow->options.driver, &step_run->run);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&dataflow->step_pool, step_run);
        return status;
    }
    dataflow_list_step(dataflow, step_run);
    settle_slots(dataflow, scratch, step);
    return TOW_OK;
}

/* -- Transfers and collectives --------------------------------------------- */

static tow_status_t TOW_COLD wrong_source(const step_t *step, uint32_t count)
{
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "the value has %u shards on this worker, the transfer "
                     "has %zu",
                     count, step->lowered->route->source_count);
}

/* The controller checks shapes of arguments; but the output of a host function
 * may be smaller than its bound, and must not be read past its end. */
static tow_status_t check_sources(const slot_t *source,
                                  const tow_shape_t *wanted, size_t count)
{
    char texts[2][TOW_SHAPE_TEXT_MAX];
    for (size_t i = 0; i < count; i++) {
        const tow_shape_t *shape = &source->shards[i * source->stride]->shape;
        if (TOW_UNLIKELY(!tow_shape_equal(shape, wanted)))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "shard %zu is %s, the transfer has %s", i,
                             tow_shape_format(shape, texts[0]),
                             tow_shape_format(wanted, texts[1]));
    }
    return TOW_OK;
}

/* Whole shards, so their sizes may be sent when they are known. */
static bool is_sized(const tow_lowered_step_t *lowered)
{
    return lowered->is_sequential &&
           tow_shape_equal(&lowered->route->source, &lowered->route->target);
}

/* Like a computation: started at once, ahead of its data, unless it is
 * sequential. */
static tow_status_t begin_transfer(tow_dataflow_t *dataflow, run_t *run,
                                   const step_t *step,
                                   const tow_transfer_t *transfer)
{
    step_run_t *step_run = tow_pool_take(&dataflow->step_pool);
    if (step_run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *step_run = (step_run_t){
        .transfer = *transfer,
        .kind = STEP_TRANSFER,
        .dataflow = dataflow,
        .owner = run,
        .program = dataflow->applying.program,
        .step = step,
        .node = step->lowered->node,
        .index = step->lowered->index,
    };
    tow_list_init(&step_run->in_held);
    tow_status_t status =
        tow_transfer_start(dataflow->options.engine, &step_run->transfer);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&dataflow->step_pool, step_run);
        return status;
    }
    has_begun(step_run);
    if (TOW_UNLIKELY(transfer->is_held))
        dataflow_hold(step_run);
    else
        dataflow->late_bytes += step->late_bytes;
    return TOW_OK;
}

static tow_status_t start_transfer(tow_dataflow_t *dataflow, run_t *run,
                                   const step_t *step, uint64_t gang_id)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const scratch_t *scratch = dataflow->applying.scratch;
    const slot_t *source =
        lowered->input_count > 0 ? &scratch->slots[lowered->inputs[0]] : NULL;
    const uint32_t count = source != NULL ? dataflow_count_shards(source) : 0;
    if (TOW_UNLIKELY(count != lowered->route->source_count))
        return wrong_source(step, count);
    if (count > 0 && !is_sized(lowered))
        TOW_RETURN_IF_ERROR(
            check_sources(source, &lowered->route->source, count));
    const tow_transfer_t transfer = {
        .route = lowered->route,
        .gang = gang_id,
        .sources = source != NULL ? source->shards : NULL,
        .source_stride = source != NULL ? source->stride : 0,
        .targets = dataflow_results(scratch, step),
        .is_sized = is_sized(lowered),
        .sized = transfer_sized,
        .is_late = step->late_bytes > 0,
        .is_held =
            lowered->is_late && !dataflow_has_memory(dataflow, run, step),
        .is_consumed = step->is_consumed,
        .done = transfer_done};
    return begin_transfer(dataflow, run, step, &transfer);
}

/* Its values are ordered shard by shard, like those of a computation. */
static tow_status_t start_collective(tow_dataflow_t *dataflow, run_t *run,
                                     const step_t *step, uint64_t gang_id)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const scratch_t *scratch = dataflow->applying.scratch;
    TOW_RETURN_IF_ERROR(gather(scratch, step));
    for (size_t i = 0; i < lowered->input_count; i++)
        TOW_RETURN_IF_ERROR(check_sources(&scratch->slots[lowered->inputs[i]],
                                          &lowered->collective->tensors[i],
                                          step->shard_count));
    const tow_transfer_t transfer = {.part = lowered->collective,
                                     .gang = gang_id,
                                     .sources = scratch->program->arguments,
                                     .source_stride = lowered->input_count,
                                     .targets = dataflow_results(scratch, step),
                                     .done = transfer_done};
    return begin_transfer(dataflow, run, step, &transfer);
}

/* -- Host functions -------------------------------------------------------- */

static tow_status_t start_host(tow_dataflow_t *dataflow, run_t *run,
                               const step_t *step)
{
    step_run_t *step_run = tow_pool_take(&dataflow->step_pool);
    if (step_run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *step_run = (step_run_t){.kind = STEP_HOST,
                             .dataflow = dataflow,
                             .owner = run,
                             .program = dataflow->applying.program,
                             .step = step,
                             .node = step->lowered->node,
                             .index = step->lowered->index};
    tow_status_t status = dataflow_host_start(dataflow, step, step_run);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&dataflow->step_pool, step_run);
        return status;
    }
    has_begun(step_run);
    return TOW_OK;
}

tow_status_t dataflow_start_step(tow_dataflow_t *dataflow, run_t *run,
                                 const step_t *step, uint64_t gang)
{
    if (TOW_LIKELY(step->executable != NULL))
        return enqueue(dataflow, run, step, gang);
    if (step->host != NULL) return start_host(dataflow, run, step);
    if (step->lowered->collective != NULL)
        return start_collective(dataflow, run, step, gang);
    return start_transfer(dataflow, run, step, gang);
}
