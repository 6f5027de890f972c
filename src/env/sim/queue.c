#include "env/sim/queue_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/vec.h"

#define FAN_OUT TOW_SIM_QUEUE_FAN_OUT

static inline bool is_sooner(const queue_entry_t *a, const queue_entry_t *b)
{
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns;
    return a->sequence < b->sequence;
}

void tow_sim_queue_deinit(queue_t *queue)
{
    tow_free(queue->entries);
    *queue = (queue_t){0};
}

bool tow_sim_queue_push(queue_t *queue, int64_t time_ns, source_t *source)
{
    if (queue->count == queue->capacity &&
        !tow_vec_grow((void **)&queue->entries, &queue->capacity,
                      sizeof(queue_entry_t), queue->count + 1))
        return false;
    queue_entry_t entry = {time_ns, queue->sequence++, source};
    size_t hole = queue->count++;
    while (hole > 0) {
        size_t parent = (hole - 1) / FAN_OUT;
        if (!is_sooner(&entry, &queue->entries[parent])) break;
        queue->entries[hole] = queue->entries[parent];
        hole = parent;
    }
    queue->entries[hole] = entry;
    return true;
}

static size_t soonest_child(const queue_t *queue, size_t first_child)
{
    size_t end = first_child + FAN_OUT;
    if (end > queue->count) end = queue->count;
    size_t best = first_child;
    for (size_t child = first_child + 1; child < end; child++) {
        if (is_sooner(&queue->entries[child], &queue->entries[best]))
            best = child;
    }
    return best;
}

const queue_entry_t *tow_sim_queue_second(const queue_t *queue)
{
    return queue->count > 1 ? &queue->entries[soonest_child(queue, 1)] : NULL;
}

/* Puts `entry` where the first one was and lets it sink. */
static void sink_from_top(queue_t *queue, queue_entry_t entry)
{
    size_t hole = 0;
    for (;;) {
        size_t first_child = hole * FAN_OUT + 1;
        if (first_child >= queue->count) break;
        size_t child = soonest_child(queue, first_child);
        if (!is_sooner(&queue->entries[child], &entry)) break;
        queue->entries[hole] = queue->entries[child];
        hole = child;
    }
    queue->entries[hole] = entry;
}

void tow_sim_queue_pop(queue_t *queue)
{
    TOW_ASSERT(queue->count > 0);
    queue_entry_t last = queue->entries[--queue->count];
    if (queue->count > 0) sink_from_top(queue, last);
}

void tow_sim_queue_postpone(queue_t *queue, int64_t time_ns)
{
    TOW_ASSERT(queue->count > 0);
    queue_entry_t entry = queue->entries[0];
    TOW_ASSERT(time_ns >= entry.time_ns);
    entry.time_ns = time_ns;
    entry.sequence = queue->sequence++;
    sink_from_top(queue, entry);
}
