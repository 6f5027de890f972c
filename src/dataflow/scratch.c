/* The values of a run while its steps are started.
 *
 * A whole run is applied in one go and uses the scratch of its program. A run
 * in pieces has one of its own, in one block, which the program keeps for the
 * next such run. It holds its arguments itself: between two pieces, the run
 * that created one may fail, its client may release it, and another run may
 * consume it. While it is held it counts as shared (store/shard_store.h), so no
 * other run destroys its bytes. */
#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"

/* -- Slots ------------------------------------------------------------------ */

static void unshare(slot_t *slot)
{
    slot->is_shared = false;
    for (uint32_t d = 0; d < slot->count; d++)
        tow_shard_unshare(slot->shards[d]);
}

void dataflow_release_shards(slot_t *slot)
{
    if (TOW_UNLIKELY(slot->is_shared)) unshare(slot);
    if (!slot->is_owned) return;
    slot->is_owned = false;
    for (uint32_t d = 0; d < slot->count; d++) {
        tow_buffer_t **shard = &slot->shards[d * slot->stride];
        if (TOW_LIKELY(*shard != NULL)) tow_buffer_release(*shard);
        *shard = NULL;
    }
    slot->is_pending = false;
}

/* Outputs always are where the driver writes them: in the results of their
 * step. */
void dataflow_place_outputs(scratch_t *scratch, const program_t *program)
{
    for (size_t k = 0; k < program->lowered->step_count; k++) {
        const step_t *step = &program->steps[k];
        const tow_lowered_step_t *lowered = step->lowered;
        for (uint32_t i = 0; i < lowered->output_count; i++)
            scratch->slots[lowered->first_output + i] = (slot_t){
                .shards = dataflow_results(scratch, step) + i,
                .stride = lowered->output_count,
                .count = step->shard_count,
            };
    }
}

/* -- Results --------------------------------------------------------------- */

/* One reference of each shard for the shard store. */
static void hold_shards(slot_t *slot, uint32_t count)
{
    if (slot->is_owned && !slot->is_shared) {
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

tow_status_t dataflow_put_results(tow_dataflow_t *dataflow, run_t *run)
{
    const scratch_t *scratch = dataflow->applying.scratch;
    const tow_lowered_t *lowered = scratch->program->lowered;
    for (size_t i = 0; i < lowered->result_count; i++) {
        TOW_RETURN_IF_ERROR(put_result(dataflow,
                                       &scratch->slots[lowered->results[i]],
                                       run->first_result + i));
        run->result_count =
            (uint32_t)i + 1; /* Results so far are poisoned if the run fails. */
    }
    return TOW_OK;
}

/* The run did not get that far: adds failed objects for its results on this
 * worker. */
void dataflow_put_failed_results(tow_dataflow_t *dataflow,
                                 const scratch_t *scratch,
                                 uint64_t first_result, tow_status_t cause)
{
    const tow_lowered_t *lowered = scratch->program->lowered;
    for (size_t i = 0; i < lowered->result_count; i++) {
        const slot_t *slot = &scratch->slots[lowered->results[i]];
        if (slot->count == 0 && slot->object == NULL) continue;
        tow_status_t status = tow_shard_store_put_failed(
            dataflow->options.shard_store, first_result + i, cause);
        tow_status_ignore(status, "a user of it gets NOT_FOUND");
    }
}

/* -- Scratches of runs in pieces -------------------------------------------- */

static scratch_t *make(program_t *program, size_t device_count)
{
    const tow_lowered_t *lowered = program->lowered;
    const size_t slot_count = lowered->slot_count;
    const size_t argument_count = lowered->argument_count;
    const size_t pointer_count =
        program->result_count + argument_count * device_count;
    scratch_t *scratch =
        tow_calloc(1, sizeof(*scratch) + slot_count * sizeof(slot_t) +
                          argument_count * sizeof(uint64_t) +
                          pointer_count * sizeof(tow_buffer_t *));
    if (scratch == NULL) return NULL;
    scratch->program = program;
    scratch->slots = (slot_t *)(scratch + 1);
    scratch->argument_keys = (uint64_t *)(scratch->slots + slot_count);
    scratch->results =
        (tow_buffer_t **)(scratch->argument_keys + argument_count);
    scratch->argument_shards = scratch->results + program->result_count;
    return scratch;
}

/* Unused ones are at the front. */
static scratch_t *find_spare(program_t *program)
{
    if (program->spare_count == 0) return NULL;
    scratch_t *scratch =
        TOW_CONTAINER_OF(program->scratches.next, scratch_t, in_program);
    TOW_ASSERT(!scratch->is_used);
    program->spare_count--;
    tow_list_remove(&scratch->in_program);
    return scratch;
}

scratch_t *dataflow_scratch_take(program_t *program, size_t device_count)
{
    scratch_t *scratch = find_spare(program);
    if (scratch == NULL) scratch = make(program, device_count);
    if (scratch == NULL) return NULL;
    scratch->is_used = true;
    scratch->pending_count = 0;
    tow_list_append(&program->scratches, &scratch->in_program);
    program->hold_count++;
    dataflow_place_outputs(scratch, program);
    return scratch;
}

static void give(scratch_t *scratch)
{
    program_t *program = scratch->program;
    tow_list_remove(&scratch->in_program);
    scratch->is_used = false;
    if (program->spare_count < TOW_DATAFLOW_SPARE_SCRATCH_COUNT) {
        tow_list_append(program->scratches.next, &scratch->in_program);
        program->spare_count++;
    } else {
        tow_free(scratch);
    }
    dataflow_program_unhold(program);
}

void dataflow_scratches_free(program_t *program)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&program->scratches)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, scratch_t, in_program));
    program->spare_count = 0;
}

void dataflow_scratch_adopt(scratch_t *scratch, const uint64_t *keys,
                            size_t device_count)
{
    const program_t *program = scratch->program;
    for (uint32_t i = 0; i < program->lowered->argument_count; i++) {
        const slot_t *found = &program->scratch.slots[i];
        const uint32_t count = dataflow_count_shards(found);
        slot_t *slot = &scratch->slots[i];
        *slot = (slot_t){.shards = scratch->argument_shards + i * device_count,
                         .stride = 1,
                         .count = count,
                         .is_owned = true,
                         .is_shared = true,
                         .is_needed = found->is_needed,
                         .object = found->object};
        scratch->argument_keys[i] = keys[i];
        for (uint32_t d = 0; d < count; d++) {
            slot->shards[d] = found->shards[d];
            tow_buffer_retain(slot->shards[d]);
            tow_shard_share(slot->shards[d]);
        }
    }
}

void dataflow_scratch_find(tow_dataflow_t *dataflow, scratch_t *scratch)
{
    for (uint32_t i = 0; i < scratch->program->lowered->argument_count; i++) {
        slot_t *slot = &scratch->slots[i];
        slot->object = tow_shard_store_find(dataflow->options.shard_store,
                                            scratch->argument_keys[i]);
        if (slot->object != NULL && slot->object->shard_count != slot->count)
            slot->object = NULL;
    }
}

void dataflow_scratch_unshare(scratch_t *scratch, const step_t *step)
{
    for (size_t i = 0; i < step->lowered->freed_count; i++) {
        slot_t *slot = &scratch->slots[step->lowered->freed[i]];
        if (slot->is_shared) unshare(slot);
    }
}

static void release_slots(scratch_t *scratch, uint32_t first)
{
    const uint32_t count = scratch->program->lowered->slot_count;
    for (uint32_t i = first; i < count; i++)
        dataflow_release_slot(&scratch->slots[i]);
}

/* A run in pieces: its arguments too. */
static void end_own(run_t *run, scratch_t *scratch)
{
    release_slots(scratch, 0);
    run->ranges->scratch = NULL;
    TOW_ASSERT(run->hold_count > 0);
    run->hold_count--; /* No piece follows. */
    give(scratch);
}

void dataflow_end_values(tow_dataflow_t *dataflow, run_t *run, size_t next)
{
    scratch_t *scratch = dataflow_scratch_of(dataflow, run);
    program_t *program = scratch->program;
    if (TOW_UNLIKELY(run->error != TOW_OK)) {
        if (!run->is_cancelled)
            dataflow_put_failed_results(dataflow, scratch, run->first_result,
                                        run->error);
        dataflow_return_unused(dataflow, program, next);
    }
    if (TOW_LIKELY(scratch == &program->scratch))
        release_slots(scratch, program->lowered->argument_count);
    else
        end_own(run, scratch);
}
