/* Memory in the order of use (ir/late.c), on a worker.
 *
 * A large transfer takes its memory when a certain computation before it has
 * ended. Until then it is *held*: its targets are promises, so that later steps
 * and later grants start as usual, and only this transfer waits. Devices whose
 * promises take memory (tow_driver_t.has_free_promises) cannot do that: there
 * the grant stops (apply.c).
 *
 * A held transfer waits for a computation of its own run, which comes before it
 * in the common order, and for devices to free memory of computations that have
 * ended. It waits for no other held transfer: one that a callback of a
 * computation started, and which its run waits for, is not held up.
 *
 * Two numbers tell whether devices have freed what they should have: the late
 * memory that the steps account for, and what the transfer engine has. */
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"

/* -- Conditions ------------------------------------------------------------ */

static bool has_ended(const run_t *run, uint32_t index)
{
    const tow_list_t *head = &run->steps;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const step_run_t *step = TOW_CONTAINER_OF(at, step_run_t, in_owner);
        if (step->index >= index) return step->index > index;
    }
    return true;
}

/* Devices free the inputs of a computation shortly after its end. */
static bool is_memory_freed(const tow_dataflow_t *dataflow)
{
    return tow_transfer_engine_stats(dataflow->options.engine).late_bytes <=
           dataflow->late_bytes;
}

bool dataflow_has_memory(const tow_dataflow_t *dataflow, const run_t *run,
                         const step_t *step)
{
    const uint32_t after = step->lowered->memory_after;
    return (step->late_bytes == 0 || is_memory_freed(dataflow)) &&
           (after == 0 || has_ended(run, after - 1));
}

bool dataflow_has_sent(const run_t *run, const step_t *step)
{
    const uint32_t name = step->lowered->index + 1;
    const tow_list_t *head = &run->steps;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const step_run_t *sent = TOW_CONTAINER_OF(at, step_run_t, in_owner);
        if (sent->kind == STEP_TRANSFER &&
            sent->step->lowered->sent_before == name)
            return false;
    }
    return true;
}

bool dataflow_can_hold(const tow_dataflow_t *dataflow)
{
    return dataflow->options.driver->has_free_promises;
}

/* -- Books ----------------------------------------------------------------- */

void dataflow_return_late(tow_dataflow_t *dataflow, uint64_t bytes)
{
    TOW_ASSERT(dataflow->late_bytes >= bytes);
    dataflow->late_bytes -= bytes;
}

void dataflow_return_unused(tow_dataflow_t *dataflow, const program_t *program,
                            size_t next)
{
    for (size_t i = 0; i < next; i++) {
        const step_t *step = &program->steps[i];
        if (step->lowered->is_late && step->late_bytes > 0 &&
            step->freer >= next)
            dataflow_return_late(dataflow, step->late_bytes);
    }
}

/* -- Held transfers -------------------------------------------------------- */

void dataflow_hold(step_run_t *step)
{
    tow_dataflow_t *dataflow = step->dataflow;
    run_t *run = step->owner;
    dataflow->stats.memory_wait_count++;
    if (tow_list_is_empty(&run->held))
        tow_list_append(&dataflow->held_runs, &run->in_held);
    tow_list_append(&run->held, &step->in_held);
}

/* One that has failed counts too: the computation that frees its value has been
 * enqueued, or will be counted as unused, and returns the bytes. */
void dataflow_unhold(step_run_t *step)
{
    run_t *run = step->owner;
    tow_list_remove(&step->in_held);
    if (tow_list_is_empty(&run->held)) tow_list_remove(&run->in_held);
    step->dataflow->late_bytes += step->step->late_bytes;
}

/* In their order, but values of one device do not wait for those of another. */
static void release_run(tow_dataflow_t *dataflow, run_t *run)
{
    const tow_list_t *head = &run->held;
    uint32_t waiting_count = 0;
    for (tow_list_t *at = head->next;
         at != head && waiting_count < TOW_DATAFLOW_HELD_LOOK_COUNT;) {
        step_run_t *step = TOW_CONTAINER_OF(at, step_run_t, in_held);
        at = at->next;
        if (!dataflow_has_memory(dataflow, run, step->step)) {
            waiting_count++;
            continue;
        }
        dataflow_unhold(step);
        tow_transfer_begin(dataflow->options.engine, &step->transfer);
    }
}

static void release(tow_post_t *post)
{
    tow_dataflow_t *dataflow = TOW_CONTAINER_OF(post, tow_dataflow_t, release);
    const tow_list_t *head = &dataflow->held_runs;
    dataflow->is_releasing = false;
    for (tow_list_t *at = head->next; at != head;) {
        run_t *run = TOW_CONTAINER_OF(at, run_t, in_held);
        at = at->next;
        release_run(dataflow, run);
    }
}

void dataflow_release_soon(tow_dataflow_t *dataflow)
{
    if (dataflow->is_releasing || tow_list_is_empty(&dataflow->held_runs))
        return;
    dataflow->is_releasing = true;
    tow_env_post(dataflow->options.driver->env, &dataflow->release);
}

/* Memory of a late transfer, of any run, has been freed. */
static void memory_freed(void *context)
{
    tow_dataflow_t *dataflow = context;
    if (dataflow->applying.awaits_end) dataflow_apply_soon(dataflow);
    dataflow_release_soon(dataflow);
}

void dataflow_late_init(tow_dataflow_t *dataflow)
{
    tow_list_init(&dataflow->held_runs);
    dataflow->release.run = release;
    if (dataflow->options.engine != NULL)
        tow_transfer_engine_watch(dataflow->options.engine, memory_freed,
                                  dataflow);
}
