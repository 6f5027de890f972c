/* Applying a grant: its steps in order, then its results.
 *
 * As a rule all of it in the call that brings the grant, ahead of the data. A
 * sequential step stops the walk until its inputs have been produced, and so does
 * one whose input has no buffer yet, because its size is not known. The walk goes
 * on in a post; until it has come to the end no other grant begins, here: so gangs
 * begin on every device in the order of grants, whoever waits. What a step waits
 * for are steps before it in that order, here or on workers that go by the same,
 * so the first of all that wait is never waiting for one that waits for it.
 *
 * It ends early when the run fails: by an abort, or by one of its steps. */
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"

/* An input that the walk waits for: borrowed, and given back at once. */
typedef struct await {
    tow_borrow_t borrow;
    tow_dataflow_t *dataflow;
    run_t *run;
} await_t;

/* -- Waiting ---------------------------------------------------------------------- */

void dataflow_walk_soon(tow_dataflow_t *dataflow)
{
    walk_t *walk = &dataflow->walk;
    if (walk->program == NULL || walk->is_resuming) return;
    walk->is_resuming = true;
    tow_env_post(dataflow->options.driver->env, &walk->resume);
}

/* It is there, or has failed: then the step fails by it, in its own words. */
static void awaited(tow_borrow_t *borrow, tow_status_t take_status)
{
    await_t *await = TOW_CONTAINER_OF(borrow, await_t, borrow);
    tow_dataflow_t *dataflow = await->dataflow;
    walk_t *walk = &dataflow->walk;
    run_t *run = await->run;
    if (take_status == TOW_OK)
        tow_borrow_give_back(dataflow->options.driver, borrow);
    else
        tow_status_ignore(take_status, "whoever uses it is told the same");
    tow_buffer_release(borrow->buffer);
    tow_pool_give(&dataflow->await_pool, await);
    if (walk->run == run && --walk->await_count == 0)
        dataflow_walk_soon(dataflow);
    run->hold_count--;
    dataflow_finish_run(dataflow, run);
}

static tow_status_t ask_for(tow_dataflow_t *dataflow, tow_buffer_t *buffer)
{
    walk_t *walk = &dataflow->walk;
    if (tow_buffer_state(buffer) != TOW_BUFFER_PENDING) return TOW_OK;
    await_t *await = tow_pool_take(&dataflow->await_pool);
    if (await == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    await->borrow = (tow_borrow_t){.buffer = buffer, .done = awaited};
    await->dataflow = dataflow;
    await->run = walk->run;
    tow_buffer_retain(buffer);
    tow_status_t status =
        tow_driver_borrow(dataflow->options.driver, &await->borrow);
    if (status != TOW_OK) {
        tow_buffer_release(buffer);
        tow_pool_give(&dataflow->await_pool, await);
        return status;
    }
    walk->await_count++;
    walk->run->hold_count++;
    return TOW_OK;
}

static tow_status_t ask_for_inputs(tow_dataflow_t *dataflow, const step_t *step)
{
    const program_t *program = dataflow->walk.program;
    const tow_lowered_step_t *lowered = step->lowered;
    for (size_t i = 0; i < lowered->input_count; i++) {
        const slot_t *slot = &program->slots[lowered->inputs[i]];
        const uint32_t count = dataflow_count_shards(slot);
        for (uint32_t d = 0; d < count; d++)
            TOW_RETURN_IF_ERROR(
                ask_for(dataflow, slot->shards[d * slot->stride]));
    }
    return TOW_OK;
}

/* Arguments were there when the grant came, but whoever makes one may have failed
 * while it waited. */
static tow_status_t lost_input(const program_t *program, const step_t *step)
{
    for (size_t i = 0; i < step->lowered->input_count; i++) {
        const slot_t *slot = &program->slots[step->lowered->inputs[i]];
        if (slot->object != NULL && slot->object->shard_count == 0 &&
            slot->object->error != TOW_OK)
            return tow_status_retain(slot->object->error);
    }
    return TOW_OK;
}

static bool has_pending_input(const walk_t *walk, const step_t *step)
{
    if (TOW_LIKELY(walk->pending_count == 0)) return false;
    for (size_t i = 0; i < step->lowered->input_count; i++)
        if (walk->program->slots[step->lowered->inputs[i]].is_pending)
            return true;
    return false;
}

typedef enum verdict {
    MAY_BEGIN,
    MUST_WAIT,
    CANNOT,
} verdict_t;

static verdict_t look_at(tow_dataflow_t *dataflow, const step_t *step,
                         tow_status_t *out_error)
{
    walk_t *walk = &dataflow->walk;
    if (has_pending_input(walk, step)) return MUST_WAIT;
    if (TOW_LIKELY(!step->lowered->is_sequential)) return MAY_BEGIN;
    if (!walk->has_asked) {
        walk->has_asked = true;
        *out_error = ask_for_inputs(dataflow, step);
        if (*out_error != TOW_OK) return CANNOT;
    }
    return walk->await_count > 0 ? MUST_WAIT : MAY_BEGIN;
}

void dataflow_outputs_ready(tow_dataflow_t *dataflow, program_t *program,
                            const step_t *step)
{
    walk_t *walk = &dataflow->walk;
    TOW_ASSERT(walk->program == program);
    for (uint32_t i = 0; i < step->lowered->output_count; i++) {
        slot_t *slot = &program->slots[step->lowered->first_output + i];
        walk->pending_count -= slot->is_pending;
        slot->is_pending = false;
    }
    dataflow_walk_soon(dataflow);
}

/* -- The end ---------------------------------------------------------------------- */

static void end(tow_dataflow_t *dataflow)
{
    walk_t *walk = &dataflow->walk;
    program_t *program = walk->program;
    run_t *run = walk->run;
    dataflow_release_slots(program);
    if (TOW_UNLIKELY(run->error != TOW_OK && !run->is_dropped))
        dataflow_put_failed_results(dataflow, program, run->first_result,
                                    run->error);
    dataflow_tell_mover(dataflow, program, walk->first_gang);
    walk->program = NULL;
    walk->run = NULL;
    walk->await_count = 0;
    dataflow_program_unhold(program);
    run->hold_count--;
    dataflow_finish_run(dataflow, run);
}

/* Results that were put are poisoned by whoever fails the run. */
static void conclude(tow_dataflow_t *dataflow)
{
    walk_t *walk = &dataflow->walk;
    if (walk->run->error == TOW_OK) {
        tow_status_t status =
            dataflow_put_results(dataflow, walk->program, walk->run);
        if (TOW_UNLIKELY(status != TOW_OK))
            dataflow_fail_run(dataflow, walk->run, 0, status);
    }
    end(dataflow);
}

/* -- The way ---------------------------------------------------------------------- */

/* False: it stops here, until something happens. */
static bool take_step(tow_dataflow_t *dataflow)
{
    walk_t *walk = &dataflow->walk;
    const step_t *step = &walk->program->steps[walk->next];
    tow_status_t status = TOW_UNLIKELY(walk->is_blocked)
                              ? lost_input(walk->program, step)
                              : TOW_OK;
    if (TOW_UNLIKELY(status != TOW_OK)) { /* In the words of who failed. */
        dataflow_fail_run(dataflow, walk->run, step->lowered->node, status);
        return true;
    }
    const verdict_t verdict = look_at(dataflow, step, &status);
    if (TOW_UNLIKELY(verdict == MUST_WAIT)) return false;
    if (verdict == MAY_BEGIN)
        status = dataflow_start_step(dataflow, walk->program, step,
                                     walk->first_gang + step->lowered->index,
                                     walk->run);
    walk->has_asked = false;
    walk->next++;
    if (TOW_UNLIKELY(status != TOW_OK))
        dataflow_fail_run(
            dataflow, walk->run, step->lowered->node,
            dataflow_tell(dataflow, walk->run, step->lowered->node, status));
    return true;
}

static void go_on(tow_dataflow_t *dataflow)
{
    walk_t *walk = &dataflow->walk;
    const size_t step_count = walk->program->lowered->step_count;
    while (walk->run->error == TOW_OK && walk->next < step_count)
        if (!take_step(dataflow)) return;
    if (walk->run->error == TOW_OK && TOW_UNLIKELY(walk->pending_count > 0))
        return;
    conclude(dataflow);
}

static void resume(tow_post_t *post)
{
    tow_dataflow_t *dataflow =
        TOW_CONTAINER_OF(post, tow_dataflow_t, walk.resume);
    walk_t *walk = &dataflow->walk;
    walk->is_resuming = false;
    if (walk->program != NULL) go_on(dataflow);
    if (walk->program != NULL || !walk->is_blocked) return;
    walk->is_blocked = false;
    dataflow->options.unblocked(dataflow->options.context);
}

void dataflow_walk_init(tow_dataflow_t *dataflow)
{
    dataflow->walk = (walk_t){.resume = {.run = resume}};
    tow_pool_init(&dataflow->await_pool, sizeof(await_t), 0);
}

void dataflow_walk_begin(tow_dataflow_t *dataflow, program_t *program,
                         run_t *run, const tow_run_grant_t *grant)
{
    walk_t *walk = &dataflow->walk;
    TOW_ASSERT(walk->program == NULL);
    walk->program = program;
    walk->run = run;
    walk->first_gang = grant->first_gang;
    walk->next = 0;
    walk->has_asked = false;
    walk->pending_count = 0;
    program->hold_count++;
    run->hold_count++;
    go_on(dataflow);
    if (TOW_LIKELY(walk->program == NULL)) return;
    walk->is_blocked = true;
    dataflow->stats.blocked_count++;
    TOW_ASSERT(dataflow->options.unblocked != NULL);
}
