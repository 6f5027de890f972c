/* Steps of runs: the hot path.
 *
 * For a run of one step on d devices: one look-up of the program, one for each
 * argument and result, and 2 * d pointers moved for each value. Records come
 * from pools, arrays are the program's scratch. */
#include <inttypes.h>

#include "base/assert.h"
#include "base/trace.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"
#include "store/object_table.h"

/* -- Failing --------------------------------------------------------------- */

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
        dataflow->reported_error = tow_status_annotate(
            tow_status_retain(take_raw), "run %" PRIu64 ", node %u",
            tow_key_id(run->key), node);
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
    if (dataflow->applying.run == run) dataflow_apply_soon(dataflow);
}

void dataflow_finish_run(tow_dataflow_t *dataflow, run_t *run)
{
    if (!tow_list_is_empty(&run->steps) || run->hold_count > 0) return;
    tow_map_remove(&dataflow->runs, run->key);
    if (run->error == TOW_OK)
        dataflow->stats.succeeded++;
    else
        dataflow->stats.failed++;
    if (TOW_UNLIKELY(run->is_cancelled)) {
        tow_status_release(run->error);
        if (tow_map_count(&dataflow->runs) == 0) dataflow_wake(dataflow);
    } else {
        dataflow_report(dataflow, &(tow_failed_run_t){.run = run->key,
                                                      .node = run->node,
                                                      .cause = run->error,
                                                      .time = run->time});
    }
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
    program_t *program =
        tow_map_find(&dataflow->programs, step->owner->program_key);
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
    TOW_ASSERT(dataflow->stats.step_count > 0);
    dataflow->stats.step_count--;
    if (TOW_UNLIKELY(step->abort_cause != TOW_OK))
        unlist_aborted(dataflow, step);
    if (step->is_alone) judge(dataflow, step);
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
    dataflow_finish_run(dataflow, run);
}

static void count_time(const step_run_t *step)
{
    const tow_device_time_t *time = &step->run.time;
    tow_dataflow_stats_t *stats = &step->dataflow->stats;
    tow_device_time_t *sum = &step->owner->time;
    sum->busy_ns += time->busy_ns;
    sum->wait_ns += time->wait_ns;
    sum->longest_ns += time->longest_ns;
    stats->device_ns += time->busy_ns;
    stats->wait_ns += time->wait_ns;
}

static void step_done(tow_run_t *driver_run, tow_status_t take_status)
{
    step_run_t *step = TOW_CONTAINER_OF(driver_run, step_run_t, run);
    count_time(step);
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
    dataflow_outputs_ready(step->dataflow, step->program, step->step);
}

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
    const tow_shard_store_object_t *object = program->slots[index].object;
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
        slot_t *slot = &program->slots[i];
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

/* Zero: no shards here, or no longer. */
uint32_t dataflow_count_shards(const slot_t *slot)
{
    return slot->object != NULL ? slot->object->shard_count : slot->count;
}

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

static tow_status_t gather(const program_t *program, const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const size_t device_count = step->shard_count;
    const size_t input_count = lowered->input_count;
    for (size_t i = 0; i < input_count; i++) {
        const slot_t *slot = &program->slots[lowered->inputs[i]];
        const uint32_t count = dataflow_count_shards(slot);
        if (TOW_UNLIKELY(count != device_count))
            return wrong_input(step, i, count);
        tow_buffer_t **to = program->arguments + i;
        for (size_t d = 0; d < device_count; d++)
            to[d * input_count] = slot->shards[d * slot->stride];
    }
    return TOW_OK;
}

/* The inputs that the step must not destroy: those that lowering lists, and
 * arguments that other objects share. Returns their number. */
static size_t keep_shared(const program_t *program, const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    size_t count = 0, next = 0;
    for (size_t i = 0; i < lowered->input_count; i++) {
        const slot_t *slot = &program->slots[lowered->inputs[i]];
        const bool is_kept = next < lowered->non_donatable_count &&
                             lowered->non_donatable[next] == i;
        next += is_kept;
        if (is_kept ||
            (slot->object != NULL && tow_shard_store_is_shared(slot->object)))
            step->kept_now[count++] = i;
    }
    return count;
}

/* -- Steps ----------------------------------------------------------------- */

static void release_slot(slot_t *slot)
{
    if (!slot->is_owned) return;
    slot->is_owned = false;
    for (uint32_t d = 0; d < slot->count; d++) {
        tow_buffer_t **shard = &slot->shards[d * slot->stride];
        if (TOW_LIKELY(*shard != NULL)) tow_buffer_release(*shard);
        *shard = NULL;
    }
    slot->is_pending = false;
}

/* The step is enqueued: inputs that it was the last to use are released. */
static void settle_slots(tow_dataflow_t *dataflow, program_t *program,
                         const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    for (uint32_t i = 0; i < lowered->output_count; i++)
        program->slots[lowered->first_output + i].is_owned = true;
    for (size_t i = 0; i < lowered->freed_count; i++) {
        slot_t *slot = &program->slots[lowered->freed[i]];
        if (TOW_UNLIKELY(slot->is_pending))
            continue; /* Released when all of the run has started. */
        if (slot->object == NULL)
            release_slot(slot);
        else /* An argument: the step consumes it. */
            tow_shard_store_fail(dataflow->options.shard_store, slot->object,
                                 dataflow->donated);
    }
}

/* Outputs without a buffer get one later. */
static void note_pending(tow_dataflow_t *dataflow, program_t *program,
                         const step_t *step)
{
    const tow_lowered_step_t *lowered = step->lowered;
    for (uint32_t i = 0; i < lowered->output_count; i++) {
        slot_t *slot = &program->slots[lowered->first_output + i];
        slot->is_pending = false;
        for (uint32_t d = 0; d < slot->count; d++)
            slot->is_pending |= slot->shards[d * slot->stride] == NULL;
        dataflow->applying.pending_count += slot->is_pending;
    }
}

/* A step that the driver does not run, and that reads its program until it
 * ends. */
static void has_begun(step_run_t *step_run)
{
    tow_dataflow_t *dataflow = step_run->dataflow;
    program_t *program = step_run->program;
    program->hold_count++;
    dataflow_list_step(dataflow, step_run);
    note_pending(dataflow, program, step_run->step);
    settle_slots(dataflow, program, step_run->step);
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

/* May the end of this step be reported late? Not that of the last step of a
 * run, which a client may wait for, unless many runs follow it. */
static bool may_coalesce(const tow_dataflow_t *dataflow,
                         const program_t *program, const step_t *step)
{
    const tow_lowered_t *lowered = program->lowered;
    return step->lowered != &lowered->steps[lowered->step_count - 1] ||
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

static tow_status_t enqueue(tow_dataflow_t *dataflow, program_t *program,
                            const step_t *step, uint64_t gang_id, run_t *run)
{
    TOW_RETURN_IF_ERROR(gather(program, step));
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
                .results = step->results,
                .may_coalesce = may_coalesce(dataflow, program, step),
                .failed = member_failed,
                .done = step_done},
        .dataflow = dataflow,
        .owner = run,
        .node = step->lowered->node,
    };
    if (step->executable->signature.alias_count > 0) {
        step_run->run.non_donatable_arguments = step->kept_now;
        step_run->run.non_donatable_argument_count = keep_shared(program, step);
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
    settle_slots(dataflow, program, step);
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
static tow_status_t begin_transfer(tow_dataflow_t *dataflow, program_t *program,
                                   const step_t *step,
                                   const tow_transfer_t *transfer, run_t *run)
{
    step_run_t *step_run = tow_pool_take(&dataflow->step_pool);
    if (step_run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *step_run = (step_run_t){
        .transfer = *transfer,
        .kind = STEP_TRANSFER,
        .dataflow = dataflow,
        .owner = run,
        .program = program,
        .step = step,
        .node = step->lowered->node,
    };
    tow_status_t status =
        tow_transfer_start(dataflow->options.engine, &step_run->transfer);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&dataflow->step_pool, step_run);
        return status;
    }
    has_begun(step_run);
    return TOW_OK;
}

static tow_status_t start_transfer(tow_dataflow_t *dataflow, program_t *program,
                                   const step_t *step, uint64_t gang_id,
                                   run_t *run)
{
    const tow_lowered_step_t *lowered = step->lowered;
    const slot_t *source =
        lowered->input_count > 0 ? &program->slots[lowered->inputs[0]] : NULL;
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
        .targets = step->results,
        .is_sized = is_sized(lowered),
        .sized = transfer_sized,
        .done = transfer_done};
    return begin_transfer(dataflow, program, step, &transfer, run);
}

/* Its values are ordered shard by shard, like those of a computation. */
static tow_status_t start_collective(tow_dataflow_t *dataflow,
                                     program_t *program, const step_t *step,
                                     uint64_t gang_id, run_t *run)
{
    const tow_lowered_step_t *lowered = step->lowered;
    TOW_RETURN_IF_ERROR(gather(program, step));
    for (size_t i = 0; i < lowered->input_count; i++)
        TOW_RETURN_IF_ERROR(check_sources(&program->slots[lowered->inputs[i]],
                                          &lowered->collective->tensors[i],
                                          step->shard_count));
    const tow_transfer_t transfer = {.part = lowered->collective,
                                     .gang = gang_id,
                                     .sources = program->arguments,
                                     .source_stride = lowered->input_count,
                                     .targets = step->results,
                                     .done = transfer_done};
    return begin_transfer(dataflow, program, step, &transfer, run);
}

/* -- Host functions -------------------------------------------------------- */

static tow_status_t start_host(tow_dataflow_t *dataflow, program_t *program,
                               const step_t *step, run_t *run)
{
    step_run_t *step_run = tow_pool_take(&dataflow->step_pool);
    if (step_run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *step_run = (step_run_t){.kind = STEP_HOST,
                             .dataflow = dataflow,
                             .owner = run,
                             .program = program,
                             .step = step,
                             .node = step->lowered->node};
    tow_status_t status =
        dataflow_host_start(dataflow, program, step, step_run);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&dataflow->step_pool, step_run);
        return status;
    }
    has_begun(step_run);
    return TOW_OK;
}

tow_status_t dataflow_start_step(tow_dataflow_t *dataflow, program_t *program,
                                 const step_t *step, uint64_t gang, run_t *run)
{
    if (TOW_LIKELY(step->executable != NULL))
        return enqueue(dataflow, program, step, gang, run);
    if (step->host != NULL) return start_host(dataflow, program, step, run);
    if (step->lowered->collective != NULL)
        return start_collective(dataflow, program, step, gang, run);
    return start_transfer(dataflow, program, step, gang, run);
}

/* -- Results --------------------------------------------------------------- */

/* One reference of each shard for the shard store. */
static void hold_shards(slot_t *slot, uint32_t count)
{
    if (slot->is_owned) {
        slot->is_owned = false; /* The slot's own references pass on. */
        return;
    }
    for (uint32_t d = 0; d < count; d++)
        tow_buffer_retain(slot->shards[d * slot->stride]);
}

static tow_status_t put_result(tow_dataflow_t *dataflow, slot_t *slot,
                               uint64_t key)
{
    tow_shard_store_t *shard_store = dataflow->options.shard_store;
    const uint32_t count = dataflow_count_shards(slot);
    if (TOW_UNLIKELY(count == 0)) {
        /* Another worker's; or an argument, passed through, that failed. */
        if (slot->object == NULL) return TOW_OK;
        return tow_shard_store_put_failed(shard_store, key,
                                          slot->object->error);
    }
    hold_shards(slot, count);
    tow_shard_list_t shards = {
        .first = slot->shards, .stride = slot->stride, .count = count};
    tow_status_t status = tow_shard_store_put(shard_store, key, &shards);
    if (TOW_UNLIKELY(status != TOW_OK))
        for (uint32_t d = 0; d < count; d++)
            tow_buffer_release(slot->shards[d * slot->stride]);
    return status;
}

tow_status_t dataflow_put_results(tow_dataflow_t *dataflow, program_t *program,
                                  run_t *run)
{
    const tow_lowered_t *lowered = program->lowered;
    for (size_t i = 0; i < lowered->result_count; i++) {
        TOW_RETURN_IF_ERROR(put_result(dataflow,
                                       &program->slots[lowered->results[i]],
                                       run->first_result + i));
        run->result_count =
            (uint32_t)i + 1; /* Results so far are poisoned if the run fails. */
    }
    return TOW_OK;
}

/* The run did not get that far: adds failed objects for its results on this
 * worker. */
void dataflow_put_failed_results(tow_dataflow_t *dataflow,
                                 const program_t *program,
                                 uint64_t first_result, tow_status_t cause)
{
    const tow_lowered_t *lowered = program->lowered;
    for (size_t i = 0; i < lowered->result_count; i++) {
        const slot_t *slot = &program->slots[lowered->results[i]];
        if (slot->count == 0 && slot->object == NULL) continue;
        tow_status_t status = tow_shard_store_put_failed(
            dataflow->options.shard_store, first_result + i, cause);
        tow_status_ignore(status, "a user of it gets NOT_FOUND");
    }
}

void dataflow_release_slots(program_t *program)
{
    for (uint32_t i = program->lowered->argument_count;
         i < program->lowered->slot_count; i++)
        release_slot(&program->slots[i]);
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
    const size_t step_count_max = dataflow->options.step_count_max;
    if (TOW_LIKELY(dataflow->stats.step_count + program->lowered->step_count <=
                   step_count_max))
        return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "run %" PRIu64 ": %zu steps are queued on this worker, "
                     "and its limit is %zu",
                     tow_key_id(grant->run), dataflow->stats.step_count,
                     step_count_max);
}

static tow_status_t begin_run(tow_dataflow_t *dataflow,
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
    *out_run = run;
    return TOW_OK;
}

/* Messages of other workers for this run that no transfer has taken are
 * stale. */
void dataflow_grant_applied(tow_dataflow_t *dataflow, const program_t *program,
                            uint64_t first_gang)
{
    const uint32_t count = program->lowered->step_count_all;
    if (dataflow->options.engine != NULL && count > 0)
        tow_transfer_engine_granted(dataflow->options.engine,
                                    first_gang + count - 1);
}

tow_status_t tow_dataflow_grant(tow_dataflow_t *dataflow,
                                const tow_run_grant_t *grant)
{
    TOW_TRACE("dataflow.grant");
    TOW_ASSERT(!tow_dataflow_is_blocked(dataflow));
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
    if (status == TOW_OK)
        status = find_arguments(dataflow, program, grant, &node);
    if (status == TOW_OK) status = begin_run(dataflow, grant, &run);
    if (TOW_LIKELY(status == TOW_OK)) {
        dataflow_apply_begin(dataflow, program, run, grant);
        return TOW_OK;
    }
    if (program != NULL) {
        dataflow_put_failed_results(dataflow, program, grant->first_result,
                                    status);
        dataflow_grant_applied(dataflow, program, grant->first_gang);
    }
    dataflow->stats.failed++;
    dataflow_report(
        dataflow,
        &(tow_failed_run_t){.run = grant->run, .node = node, .cause = status});
    return TOW_OK;
}
