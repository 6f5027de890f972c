/* The event queue: sources in order of time; equal times in order of insertion.
 *
 * A calendar queue in three parts. Near days are in a heap that fits into the
 * L1 cache; each later day, up to DAY_COUNT, is an unsorted list of chunks;
 * anything later is in a second heap. When the near heap is empty, the next
 * non-empty day is moved into it. So most events are written once, sorted among
 * few, and read once.
 *
 * The first entry may stay in place while its event is performed: entries
 * pushed meanwhile sort behind it. Then it is popped or postponed. */
#ifndef TOW_ENV_SIM_QUEUE_IMPL_H_
#define TOW_ENV_SIM_QUEUE_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/pool.h"

typedef struct tow_sim_source tow_sim_source_t;

/* Children per heap entry. Measured with 100,000 entries at random times in one
 * heap: 2, 4 and 8 are within 5% of each other; branch-free comparison is 30%
 * slower, since a predicted branch lets the next level's loads start. */
#define TOW_SIM_QUEUE_FAN_OUT 4
/* A day is 256 ns, and the calendar covers 2 ms: more than most latencies, and
 * 100,000 events within 20 us are 1,300 per day, 31 KB. */
#define TOW_SIM_QUEUE_DAY_SHIFT 8
#define TOW_SIM_QUEUE_DAY_COUNT 8192
#define TOW_SIM_QUEUE_CHUNK     40 /* entries; about 1 KB */

typedef struct tow_sim_queue_entry {
    int64_t time_ns;
    uint64_t sequence;
    tow_sim_source_t *source; /* lent */
} tow_sim_queue_entry_t;

typedef struct tow_sim_queue_heap {
    tow_sim_queue_entry_t *entries; /* owned */
    size_t count;
    size_t capacity; /* at least the count of the whole queue */
} tow_sim_queue_heap_t;

typedef struct tow_sim_queue_chunk {
    struct tow_sim_queue_chunk *next;
    size_t count;
    tow_sim_queue_entry_t entries[TOW_SIM_QUEUE_CHUNK];
} tow_sim_queue_chunk_t;

typedef struct tow_sim_queue {
    size_t count;
    uint64_t sequence;
    tow_sim_queue_heap_t near; /* days before `today` */
    tow_sim_queue_heap_t far;  /* and entries that found no chunk */
    int64_t today;
    tow_pool_t chunks;
    uint64_t marks[TOW_SIM_QUEUE_DAY_COUNT / 64]; /* days that have chunks */
    tow_sim_queue_chunk_t
        *days[TOW_SIM_QUEUE_DAY_COUNT]; /* newest chunk first */
} tow_sim_queue_t;

void tow_sim_queue_init(tow_sim_queue_t *queue);
void tow_sim_queue_deinit(tow_sim_queue_t *queue);

/* False when memory is exhausted. */
bool tow_sim_queue_push(tow_sim_queue_t *queue, int64_t time_ns,
                        tow_sim_source_t *source) TOW_MUST_USE;

void tow_sim_queue_refill(tow_sim_queue_t *queue);

/* NULL when the queue is empty. */
static inline const tow_sim_queue_entry_t *tow_sim_queue_first(
    tow_sim_queue_t *queue)
{
    if (TOW_UNLIKELY(queue->near.count == 0)) {
        if (queue->count == 0) return NULL;
        tow_sim_queue_refill(queue);
    }
    return &queue->near.entries[0];
}

/* The entry after the first, as far as known; NULL if unknown. */
const tow_sim_queue_entry_t *tow_sim_queue_second(const tow_sim_queue_t *queue);

/* These two apply to the entry that tow_sim_queue_first returned. */
void tow_sim_queue_pop(tow_sim_queue_t *queue);
/* Gives it a time that is not before its own, behind all others of that
 * time. */
void tow_sim_queue_postpone(tow_sim_queue_t *queue, int64_t time_ns);

/* Asserts the order of both heaps, and the count. O(n): for tests. */
void tow_sim_queue_check(const tow_sim_queue_t *queue);

size_t tow_sim_queue_bytes(const tow_sim_queue_t *queue);

#endif /* TOW_ENV_SIM_QUEUE_IMPL_H_ */
