/* Combining chunks: small ones in the turn that has them ready, all others off
 * the loop, one batch at a time.
 *
 * Ready chunks are queued in the order of gangs and, within a gang, of tensors;
 * so where there is a choice, the first in the program's list goes first,
 * however many of the others are ready. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "collective/reduce.h"
#include "dataflow/transfer_reduce_impl.h"

/* -- One chunk ------------------------------------------------------------- */

/* The work on a chunk that is possible now. */
static bool make_task(reduction_t *it, uint32_t chunk, reduce_task_t *out)
{
    const reduce_plan_t *plan = &it->plan;
    const reduce_chunk_t *state = &it->chunks[chunk];
    const bool is_own = reduce_owns(plan, it->self, chunk);
    const bool is_there = it->ready_count == it->source_count;
    const bool needs_load = is_own || it->source_count > 1;
    *out =
        (reduce_task_t){.reduction = it,
                        .chunk = chunk,
                        .from = state->next_member,
                        .until = state->next_member,
                        .loads = needs_load && is_there && !state->is_loaded};
    /* Our part alone is sent to all: it is sent before others are added. */
    const bool is_loaded = state->is_loaded || (out->loads && !plan->is_shared);
    if (!is_own) return out->loads;
    while (out->until < plan->member_count &&
           (out->until == it->self
                ? is_loaded
                : reduce_bit(it->arrived, it, chunk, out->until)))
        out->until++;
    return out->loads || out->until > out->from;
}

static uint64_t task_bytes(const reduce_task_t *task)
{
    const reduction_t *it = task->reduction;
    const uint64_t rounds =
        task->until - task->from + (task->loads ? it->source_count : 0);
    return rounds * reduce_length(&it->plan, task->chunk);
}

/* Touches bytes only: runs on any thread. Contributions are combined in the
 * order of members: those before us into the buffer of the first, then that
 * into our own part, then those behind us. Both orders of operands give the
 * same bits. */
static void perform(const reduce_task_t *task)
{
    const reduction_t *it = task->reduction;
    const uint64_t offset = reduce_offset(&it->plan, task->chunk);
    const size_t length = (size_t)reduce_length(&it->plan, task->chunk);
    const size_t count = length / it->element_bytes;
    uint8_t *own = it->bytes + offset;
    if (task->loads) {
        memcpy(own, (const uint8_t *)it->sources[0].share.bytes + offset,
               length);
        for (uint32_t i = 1; i < it->source_count; i++)
            tow_reduce(own,
                       (const uint8_t *)it->sources[i].share.bytes + offset,
                       count, it->type, it->how);
    }
    for (uint32_t member = task->from; member < task->until; member++) {
        if (member == 0) continue; /* The others are added to it. */
        uint8_t *first =
            it->self == 0 ? own : it->inbox + reduce_slot(it, task->chunk, 0);
        if (member == it->self)
            tow_reduce(own, first, count, it->type, it->how);
        else
            tow_reduce(member > it->self ? own : first,
                       it->inbox + reduce_slot(it, task->chunk, member), count,
                       it->type, it->how);
    }
}

static void loaded(reduction_t *it, uint32_t chunk)
{
    it->chunks[chunk].is_loaded = true;
    it->load_count--;
    reduce_look_at_sources(it);
    if (it->source_count > 1 &&
        (it->plan.is_shared || !reduce_owns(&it->plan, it->self, chunk)))
        reduce_send_contribution(it, chunk);
}

static void take_result(const reduce_task_t *task)
{
    reduction_t *it = task->reduction;
    reduce_chunk_t *state = &it->chunks[task->chunk];
    state->is_working = false;
    if (task->loads) loaded(it, task->chunk);
    if (it->job == NULL || task->until == task->from) return;
    state->next_member = task->until;
    if (task->until < it->plan.member_count) return;
    it->combine_count--;
    if (!it->plan.is_shared) reduce_send_result(it, task->chunk);
}

/* -- The queue ------------------------------------------------------------- */

static bool is_before(const reduction_t *a, const reduction_t *b)
{
    return a->gang != b->gang ? a->gang < b->gang : a->order < b->order;
}

/* They arrive nearly in order: the position is near the end. */
static void list_ready(reduction_t *it)
{
    tow_list_t *head = &it->engine->ready;
    tow_list_t *at = head->previous;
    while (at != head &&
           is_before(it, TOW_CONTAINER_OF(at, reduction_t, in_ready)))
        at = at->previous;
    tow_list_append(at->next, &it->in_ready); /* Before the next. */
}

static void enqueue(reduction_t *it, uint32_t chunk)
{
    reduce_chunk_t *state = &it->chunks[chunk];
    state->is_queued = true;
    state->next_ready = TOW_REDUCE_NONE;
    if (it->last_ready != TOW_REDUCE_NONE) {
        it->chunks[it->last_ready].next_ready = chunk;
    } else {
        it->first_ready = chunk;
        list_ready(it);
    }
    it->last_ready = chunk;
}

static uint32_t dequeue(reduction_t *it)
{
    const uint32_t chunk = it->first_ready;
    it->chunks[chunk].is_queued = false;
    it->first_ready = it->chunks[chunk].next_ready;
    if (it->first_ready == TOW_REDUCE_NONE) {
        it->last_ready = TOW_REDUCE_NONE;
        tow_list_remove(&it->in_ready);
    }
    return chunk;
}

void reduce_unqueue(reduction_t *it)
{
    while (it->first_ready != TOW_REDUCE_NONE)
        dequeue(it);
}

/* -- Off the loop ---------------------------------------------------------- */

static tow_status_t run_batch(tow_work_t *work)
{
    const tow_transfer_engine_t *engine =
        TOW_CONTAINER_OF(work, tow_transfer_engine_t, work);
    for (uint32_t i = 0; i < engine->task_count; i++)
        perform(&engine->tasks[i]);
    return TOW_OK;
}

static uint64_t take_batch(tow_transfer_engine_t *engine)
{
    uint64_t bytes = 0;
    while (!tow_list_is_empty(&engine->ready) &&
           engine->task_count < TOW_REDUCE_BATCH_COUNT &&
           bytes < TOW_REDUCE_BATCH_BYTES) {
        reduction_t *it =
            TOW_CONTAINER_OF(engine->ready.next, reduction_t, in_ready);
        reduce_task_t *task = &engine->tasks[engine->task_count];
        if (!make_task(it, dequeue(it), task)) continue;
        it->chunks[task->chunk].is_working = true;
        it->work_count++;
        engine->task_count++;
        bytes += task_bytes(task);
    }
    return bytes;
}

static void start_batch(tow_transfer_engine_t *engine)
{
    if (engine->task_count > 0) return; /* One at a time. */
    const uint64_t bytes = take_batch(engine);
    if (engine->task_count == 0) return;
    engine->work.cost_ns =
        (int64_t)(bytes / TOW_REDUCE_BYTES_PER_US) * TOW_NS_PER_US;
    tow_env_work_start(engine->env, &engine->work);
}

static void batch_done(tow_work_t *work, tow_status_t take_status)
{
    tow_transfer_engine_t *engine =
        TOW_CONTAINER_OF(work, tow_transfer_engine_t, work);
    TOW_ASSERT(take_status == TOW_OK); /* It is never cancelled. */
    for (uint32_t i = 0; i < engine->task_count; i++) {
        const reduce_task_t task = engine->tasks[i];
        reduction_t *it = task.reduction;
        reduce_pin(it);
        it->work_count--;
        if (it->job != NULL) {
            take_result(&task);
            if (it->job != NULL) reduce_advance(it, task.chunk);
        }
        reduce_unpin(it);
    }
    engine->task_count = 0;
    start_batch(engine);
    transfer_check_quiet(engine);
}

void transfer_reduce_init(tow_transfer_engine_t *engine)
{
    engine->work.run = run_batch;
    engine->work.done = batch_done;
    tow_list_init(&engine->reductions);
    tow_list_init(&engine->ready);
    tow_pool_init(&engine->reduction_pool, sizeof(reduction_t), 0);
    tow_pool_init(&engine->post_pool, sizeof(reduce_post_t), 0);
}

void reduce_advance(reduction_t *it, uint32_t chunk)
{
    reduce_chunk_t *state = &it->chunks[chunk];
    reduce_task_t task;
    reduce_pin(it);
    while (it->job != NULL && !state->is_working && !state->is_queued &&
           make_task(it, chunk, &task)) {
        if (task_bytes(&task) > TOW_REDUCE_INLINE_BYTES) {
            enqueue(it, chunk);
            start_batch(it->engine);
            break;
        }
        perform(&task);
        take_result(&task);
    }
    reduce_unpin(it);
}
