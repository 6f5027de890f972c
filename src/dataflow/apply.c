/* Applying a grant: its steps in order, and after the last one of the run its
 * results.
 *
 * Usually all of it in the call that brings the grant, ahead of the data. A
 * sequential step stops until its inputs have been produced, and so does a step
 * whose input has no buffer yet, because its size is unknown. A computation stops
 * until large values before it have been sent, and on some devices a large
 * transfer stops until memory for it is free (late.c). Applying continues in a
 * post; until it is complete no other grant starts here: so
 * gangs start on every device in the order of grants, whichever of them waits.
 * A step waits only for steps before it in that order, here or on other workers
 * that follow the same order, so the first of all waiting steps never waits for
 * one that waits for it.
 *
 * It ends early when the run fails: by an abort, or by one of its steps. */
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"

/* An input that the grant waits for: borrowed, and returned at once. */
typedef struct await {
    tow_buffer_share_t share;
    tow_dataflow_t *dataflow;
    run_t *run;
} await_t;

/* -- Waiting --------------------------------------------------------------- */

void dataflow_apply_soon(tow_dataflow_t *dataflow)
{
    applying_t *applying = &dataflow->applying;
    if (applying->program == NULL || applying->is_resuming) return;
    applying->is_resuming = true;
    tow_env_post(dataflow->options.driver->env, &applying->resume);
}

/* It is ready, or has failed: then the step fails with its error. */
static void awaited(tow_buffer_share_t *share, tow_status_t take_status)
{
    await_t *await = TOW_CONTAINER_OF(share, await_t, share);
    tow_dataflow_t *dataflow = await->dataflow;
    applying_t *applying = &dataflow->applying;
    run_t *run = await->run;
    if (take_status == TOW_OK)
        tow_buffer_share_end(dataflow->options.driver, share);
    else
        tow_status_ignore(take_status, "a user of it gets the same error");
    tow_buffer_release(share->buffer);
    tow_pool_give(&dataflow->await_pool, await);
    if (applying->run == run && --applying->await_count == 0)
        dataflow_apply_soon(dataflow);
    run->hold_count--;
    dataflow_finish_run(dataflow, run);
}

static tow_status_t ask_for(tow_dataflow_t *dataflow, tow_buffer_t *buffer)
{
    applying_t *applying = &dataflow->applying;
    if (tow_buffer_state(buffer) != TOW_BUFFER_PENDING) return TOW_OK;
    await_t *await = tow_pool_take(&dataflow->await_pool);
    if (await == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    await->share = (tow_buffer_share_t){.buffer = buffer, .done = awaited};
    await->dataflow = dataflow;
    await->run = applying->run;
    tow_buffer_retain(buffer);
    tow_status_t status =
        tow_driver_share(dataflow->options.driver, &await->share);
    if (status != TOW_OK) {
        tow_buffer_release(buffer);
        tow_pool_give(&dataflow->await_pool, await);
        return status;
    }
    applying->await_count++;
    applying->run->hold_count++;
    return TOW_OK;
}

static tow_status_t ask_for_inputs(tow_dataflow_t *dataflow, const step_t *step)
{
    const scratch_t *scratch = dataflow->applying.scratch;
    const tow_lowered_step_t *lowered = step->lowered;
    for (size_t i = 0; i < lowered->input_count; i++) {
        const slot_t *slot = &scratch->slots[lowered->inputs[i]];
        const uint32_t count = dataflow_count_shards(slot);
        for (uint32_t d = 0; d < count; d++)
            TOW_RETURN_IF_ERROR(
                ask_for(dataflow, slot->shards[d * slot->stride]));
    }
    return TOW_OK;
}

/* Arguments were present when the grant arrived, but their producer may have
 * failed meanwhile. */
static tow_status_t lost_input(const scratch_t *scratch, const step_t *step)
{
    for (size_t i = 0; i < step->lowered->input_count; i++) {
        const slot_t *slot = &scratch->slots[step->lowered->inputs[i]];
        if (slot->object != NULL && slot->object->shard_count == 0 &&
            slot->object->error != TOW_OK)
            return tow_status_retain(slot->object->error);
    }
    return TOW_OK;
}

static bool has_pending_input(const scratch_t *scratch, const step_t *step)
{
    if (scratch->pending_count == 0) return false;
    for (size_t i = 0; i < step->lowered->input_count; i++)
        if (scratch->slots[step->lowered->inputs[i]].is_pending) return true;
    return false;
}

typedef enum verdict {
    MAY_BEGIN,
    MUST_WAIT,
    CANNOT,
} verdict_t;

/* Of a step before it in the common order (late.c). A large transfer that waits
 * for memory need not stop the grant where promises take none. */
static bool awaits_end(const tow_dataflow_t *dataflow, const step_t *step)
{
    const run_t *run = dataflow->applying.run;
    if (TOW_UNLIKELY(step->lowered->is_late) && !dataflow_can_hold(dataflow) &&
        !dataflow_has_memory(dataflow, run, step))
        return true;
    return TOW_UNLIKELY(step->waits_for_sends) && !dataflow_has_sent(run, step);
}

static verdict_t look_closer(tow_dataflow_t *dataflow, const step_t *step,
                             tow_status_t *out_error)
{
    applying_t *applying = &dataflow->applying;
    const bool awaited_end = applying->awaits_end;
    if (has_pending_input(applying->scratch, step)) return MUST_WAIT;
    applying->awaits_end = awaits_end(dataflow, step);
    if (applying->awaits_end) {
        dataflow->stats.memory_wait_count += !awaited_end;
        return MUST_WAIT;
    }
    if (!step->lowered->is_sequential) return MAY_BEGIN;
    if (!applying->has_asked) {
        applying->has_asked = true;
        *out_error = ask_for_inputs(dataflow, step);
        if (*out_error != TOW_OK) return CANNOT;
    }
    return applying->await_count > 0 ? MUST_WAIT : MAY_BEGIN;
}

static verdict_t look_at(tow_dataflow_t *dataflow, const step_t *step,
                         tow_status_t *out_error)
{
    const scratch_t *scratch = dataflow->applying.scratch;
    if (TOW_LIKELY(!step->may_wait && scratch->pending_count == 0))
        return MAY_BEGIN;
    return look_closer(dataflow, step, out_error);
}

void dataflow_outputs_ready(tow_dataflow_t *dataflow, const run_t *run,
                            const step_t *step)
{
    scratch_t *scratch = dataflow_scratch_of(dataflow, run);
    if (scratch == NULL) return; /* All outputs had buffers from the start. */
    for (uint32_t i = 0; i < step->lowered->output_count; i++) {
        slot_t *slot = &scratch->slots[step->lowered->first_output + i];
        scratch->pending_count -= slot->is_pending;
        slot->is_pending = false;
    }
    if (dataflow->applying.run == run) dataflow_apply_soon(dataflow);
}

/* -- Ending ---------------------------------------------------------------- */

static void end(tow_dataflow_t *dataflow)
{
    applying_t *applying = &dataflow->applying;
    program_t *program = applying->program;
    run_t *run = applying->run;
    /* The gangs of a cancelled run have numbers of the former controller, which
     * may be above those of the present one. */
    if (TOW_LIKELY(!run->is_cancelled))
        dataflow_granted(dataflow, applying->last_gang);
    if (TOW_LIKELY(applying->is_last || run->error != TOW_OK))
        dataflow_end_values(dataflow, run, applying->next);
    if (TOW_UNLIKELY(run->ranges != NULL))
        dataflow_range_applied(dataflow, run);
    applying->program = NULL;
    applying->run = NULL;
    applying->scratch = NULL;
    applying->await_count = 0;
    dataflow_program_unhold(program);
    run->hold_count--;
    dataflow_finish_run(dataflow, run);
}

/* The function that fails the run poisons results that were put before. */
static void conclude(tow_dataflow_t *dataflow)
{
    applying_t *applying = &dataflow->applying;
    if (applying->is_last && applying->run->error == TOW_OK) {
        tow_status_t status = dataflow_put_results(dataflow, applying->run);
        if (TOW_UNLIKELY(status != TOW_OK))
            dataflow_fail_run(dataflow, applying->run, 0, status);
    }
    end(dataflow);
}

/* -- Steps ----------------------------------------------------------------- */

/* False: it stops here, until an event resumes it. */
static bool take_step(tow_dataflow_t *dataflow)
{
    applying_t *applying = &dataflow->applying;
    const step_t *step = &applying->program->steps[applying->next];
    tow_status_t status = TOW_UNLIKELY(applying->is_blocked)
                              ? lost_input(applying->scratch, step)
                              : TOW_OK;
    if (TOW_UNLIKELY(status != TOW_OK)) { /* With the producer's error. */
        dataflow_fail_run(dataflow, applying->run, step->lowered->node, status);
        return true;
    }
    const verdict_t verdict = look_at(dataflow, step, &status);
    if (TOW_UNLIKELY(verdict == MUST_WAIT)) return false;
    if (verdict == MAY_BEGIN)
        status =
            dataflow_start_step(dataflow, applying->run, step,
                                applying->first_gang + step->lowered->index);
    applying->has_asked = false;
    applying->next += status == TOW_OK;
    if (TOW_UNLIKELY(status != TOW_OK))
        dataflow_fail_run(dataflow, applying->run, step->lowered->node,
                          dataflow_describe(dataflow, applying->run,
                                            step->lowered->node, status));
    return true;
}

/* The last piece also waits for values without a buffer, which may be
 * results. */
static void go_on(tow_dataflow_t *dataflow)
{
    applying_t *applying = &dataflow->applying;
    while (applying->run->error == TOW_OK && applying->next < applying->stop)
        if (!take_step(dataflow)) return;
    if (applying->run->error == TOW_OK && applying->is_last &&
        TOW_UNLIKELY(applying->scratch->pending_count > 0))
        return;
    conclude(dataflow);
}

static void resume(tow_post_t *post)
{
    tow_dataflow_t *dataflow =
        TOW_CONTAINER_OF(post, tow_dataflow_t, applying.resume);
    applying_t *applying = &dataflow->applying;
    applying->is_resuming = false;
    if (applying->program != NULL) go_on(dataflow);
    if (applying->program != NULL || !applying->is_blocked) return;
    applying->is_blocked = false;
    dataflow->options.unblocked(dataflow->options.context);
}

void dataflow_apply_init(tow_dataflow_t *dataflow)
{
    dataflow->applying = (applying_t){.resume = {.run = resume}};
    tow_pool_init(&dataflow->await_pool, sizeof(await_t), 0);
}

static void begin_whole(applying_t *applying)
{
    const tow_lowered_t *lowered = applying->program->lowered;
    applying->next = 0;
    applying->stop = lowered->step_count;
    applying->last_gang =
        lowered->step_count_all > 0
            ? applying->first_gang + lowered->step_count_all - 1
            : 0;
    applying->is_last = true;
    applying->scratch->pending_count = 0;
}

static void begin_range(applying_t *applying)
{
    const ranges_t *ranges = applying->run->ranges;
    const tow_lowered_t *lowered = applying->program->lowered;
    applying->next = ranges->next;
    applying->stop = ranges->stop;
    applying->last_gang = applying->first_gang + ranges->granted_end - 1;
    applying->is_last = ranges->granted_end == lowered->step_count_all;
}

void dataflow_apply_begin(tow_dataflow_t *dataflow, run_t *run,
                          scratch_t *scratch, uint64_t first_gang)
{
    applying_t *applying = &dataflow->applying;
    TOW_ASSERT(applying->program == NULL);
    applying->program = scratch->program;
    applying->run = run;
    applying->scratch = scratch;
    applying->first_gang = first_gang;
    applying->has_asked = false;
    applying->awaits_end = false;
    if (TOW_LIKELY(run->ranges == NULL))
        begin_whole(applying);
    else
        begin_range(applying);
    applying->program->hold_count++;
    run->hold_count++;
    go_on(dataflow);
    if (TOW_LIKELY(applying->program == NULL)) return;
    applying->is_blocked = true;
    dataflow->stats.blocked_count++;
    TOW_ASSERT(dataflow->options.unblocked != NULL);
}
