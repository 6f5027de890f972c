#include "env/sim/queue_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/vec.h"

#define FAN_OUT   TOW_SIM_QUEUE_FAN_OUT
#define DAY_COUNT TOW_SIM_QUEUE_DAY_COUNT

/* -- Heaps ---------------------------------------------------------------- */

static inline bool is_sooner(const tow_sim_queue_entry_t *a,
                             const tow_sim_queue_entry_t *b)
{
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns;
    return a->sequence < b->sequence;
}

static void heap_push(tow_sim_queue_heap_t *heap,
                      const tow_sim_queue_entry_t *entry)
{
    TOW_ASSERT(heap->count < heap->capacity);
    tow_sim_queue_entry_t added = *entry;
    size_t hole = heap->count++;
    while (hole > 0) {
        size_t parent = (hole - 1) / FAN_OUT;
        if (!is_sooner(&added, &heap->entries[parent])) break;
        heap->entries[hole] = heap->entries[parent];
        hole = parent;
    }
    heap->entries[hole] = added;
}

static size_t soonest_child(const tow_sim_queue_heap_t *heap,
                            size_t first_child)
{
    size_t end = first_child + FAN_OUT;
    if (end > heap->count) end = heap->count;
    size_t best = first_child;
    for (size_t child = first_child + 1; child < end; child++) {
        if (is_sooner(&heap->entries[child], &heap->entries[best]))
            best = child;
    }
    return best;
}

/* Replaces the first entry and sifts the new one down. */
static void replace_first(tow_sim_queue_heap_t *heap,
                          tow_sim_queue_entry_t entry)
{
    size_t hole = 0;
    for (;;) {
        size_t first_child = hole * FAN_OUT + 1;
        if (first_child >= heap->count) break;
        size_t child = soonest_child(heap, first_child);
        if (!is_sooner(&heap->entries[child], &entry)) break;
        heap->entries[hole] = heap->entries[child];
        hole = child;
    }
    heap->entries[hole] = entry;
}

static void heap_pop(tow_sim_queue_heap_t *heap)
{
    TOW_ASSERT(heap->count > 0);
    tow_sim_queue_entry_t last = heap->entries[--heap->count];
    if (heap->count > 0) replace_first(heap, last);
}

/* -- Days ----------------------------------------------------------------- */

static int64_t day_of(int64_t time_ns)
{
    return time_ns >> TOW_SIM_QUEUE_DAY_SHIFT;
}

static size_t slot_of(int64_t day)
{
    return (size_t)day % DAY_COUNT;
}

/* False when there is no memory for a chunk. */
static bool append_to_day(tow_sim_queue_t *queue, int64_t day,
                          const tow_sim_queue_entry_t *entry)
{
    size_t slot = slot_of(day);
    tow_sim_queue_chunk_t *chunk = queue->days[slot];
    if (chunk == NULL || chunk->count == TOW_SIM_QUEUE_CHUNK) {
        tow_sim_queue_chunk_t *fresh = tow_pool_take(&queue->chunks);
        if (fresh == NULL) return false;
        fresh->next = chunk;
        fresh->count = 0;
        queue->days[slot] = chunk = fresh;
        queue->marks[slot / 64] |= UINT64_C(1) << (slot % 64);
    }
    chunk->entries[chunk->count++] = *entry;
    return true;
}

/* The first day from `today` on that has chunks; INT64_MAX if none has. */
static int64_t next_marked_day(const tow_sim_queue_t *queue)
{
    size_t start = slot_of(queue->today);
    size_t word = start / 64;
    uint64_t bits = queue->marks[word] & (UINT64_MAX << (start % 64));
    /* Once around, and the first bitmap element again for its lower bits. */
    for (size_t i = 0; i <= DAY_COUNT / 64; i++) {
        if (bits != 0) {
            size_t slot = word * 64 + (size_t)__builtin_ctzll(bits);
            return queue->today + (int64_t)((slot - start) % DAY_COUNT);
        }
        word = (word + 1) % (DAY_COUNT / 64);
        bits = queue->marks[word];
    }
    return INT64_MAX;
}

static void move_day_to_near(tow_sim_queue_t *queue, size_t slot)
{
    tow_sim_queue_chunk_t *chunk = queue->days[slot];
    queue->days[slot] = NULL;
    queue->marks[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    while (chunk != NULL) {
        tow_sim_queue_chunk_t *next = chunk->next;
        for (size_t i = 0; i < chunk->count; i++)
            heap_push(&queue->near, &chunk->entries[i]);
        tow_pool_give(&queue->chunks, chunk);
        chunk = next;
    }
}

static int64_t first_far_day(const tow_sim_queue_t *queue)
{
    return queue->far.count > 0 ? day_of(queue->far.entries[0].time_ns)
                                : INT64_MAX;
}

void tow_sim_queue_refill(tow_sim_queue_t *queue)
{
    TOW_ASSERT(queue->near.count == 0 && queue->count > 0);
    int64_t marked = next_marked_day(queue);
    int64_t far = first_far_day(queue);
    int64_t day = marked < far ? marked : far;
    if (marked == day) move_day_to_near(queue, slot_of(day));
    while (first_far_day(queue) <= day && queue->far.count > 0) {
        heap_push(&queue->near, &queue->far.entries[0]);
        heap_pop(&queue->far);
    }
    queue->today = day + 1;
}

/* -- The queue ------------------------------------------------------------ */

void tow_sim_queue_init(tow_sim_queue_t *queue)
{
    *queue = (tow_sim_queue_t){0};
    tow_pool_init(&queue->chunks, sizeof(tow_sim_queue_chunk_t), 0);
}

void tow_sim_queue_deinit(tow_sim_queue_t *queue)
{
    tow_free(queue->near.entries);
    tow_free(queue->far.entries);
    tow_pool_deinit(&queue->chunks);
    *queue = (tow_sim_queue_t){0};
}

static bool reserve(tow_sim_queue_heap_t *heap, size_t count)
{
    return count <= heap->capacity ||
           tow_vec_grow((void **)&heap->entries, &heap->capacity,
                        sizeof(tow_sim_queue_entry_t), count);
}

static void insert(tow_sim_queue_t *queue, const tow_sim_queue_entry_t *entry)
{
    int64_t day = day_of(entry->time_ns);
    if (day < queue->today)
        heap_push(&queue->near, entry);
    else if (day - queue->today >= DAY_COUNT ||
             !append_to_day(queue, day, entry))
        heap_push(&queue->far, entry);
}

/* Both heaps get capacity for all entries here, so nothing can fail later.
 * Memory that is never touched costs nothing. */
bool tow_sim_queue_push(tow_sim_queue_t *queue, int64_t time_ns,
                        tow_sim_source_t *source)
{
    if (!reserve(&queue->near, queue->count + 1) ||
        !reserve(&queue->far, queue->count + 1))
        return false;
    queue->count++;
    insert(queue, &(tow_sim_queue_entry_t){time_ns, queue->sequence++, source});
    return true;
}

const tow_sim_queue_entry_t *tow_sim_queue_second(const tow_sim_queue_t *queue)
{
    return queue->near.count > 1
               ? &queue->near.entries[soonest_child(&queue->near, 1)]
               : NULL;
}

void tow_sim_queue_pop(tow_sim_queue_t *queue)
{
    heap_pop(&queue->near);
    queue->count--;
}

void tow_sim_queue_postpone(tow_sim_queue_t *queue, int64_t time_ns)
{
    TOW_ASSERT(queue->near.count > 0);
    tow_sim_queue_entry_t entry = queue->near.entries[0];
    TOW_ASSERT(time_ns >= entry.time_ns);
    entry.time_ns = time_ns;
    entry.sequence = queue->sequence++;
    if (day_of(time_ns) < queue->today) {
        replace_first(&queue->near, entry);
        return;
    }
    heap_pop(&queue->near);
    insert(queue, &entry);
}

size_t tow_sim_queue_bytes(const tow_sim_queue_t *queue)
{
    size_t entries = queue->near.capacity + queue->far.capacity;
    return entries * sizeof(tow_sim_queue_entry_t) +
           queue->chunks.made_count * queue->chunks.object_bytes;
}

static size_t check_heap(const tow_sim_queue_heap_t *heap)
{
    TOW_ASSERT(heap->count <= heap->capacity);
    for (size_t i = 1; i < heap->count; i++)
        TOW_ASSERT(
            !is_sooner(&heap->entries[i], &heap->entries[(i - 1) / FAN_OUT]));
    return heap->count;
}

void tow_sim_queue_check(const tow_sim_queue_t *queue)
{
    size_t count = check_heap(&queue->near) + check_heap(&queue->far);
    for (size_t slot = 0; slot < DAY_COUNT; slot++) {
        const uint64_t mark = UINT64_C(1) << (slot % 64);
        const tow_sim_queue_chunk_t *chunk = queue->days[slot];
        TOW_ASSERT((chunk != NULL) == ((queue->marks[slot / 64] & mark) != 0));
        for (; chunk != NULL; chunk = chunk->next)
            count += chunk->count;
    }
    TOW_ASSERT(count == queue->count);
}
