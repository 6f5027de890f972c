/* What will happen: sources of events, soonest first, equal times in the order
 * in which they were put in. A heap with four children a node in one array.
 *
 * The first entry may be held while its event is performed: all that is put in
 * meanwhile sorts behind it. Then it leaves, or it takes a later time, which is
 * one walk down the heap instead of two. */
#ifndef TOW_ENV_SIM_QUEUE_IMPL_H_
#define TOW_ENV_SIM_QUEUE_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

typedef struct source source_t;

typedef struct queue_entry {
    int64_t time_ns;
    uint64_t sequence;
    source_t *source; /* lent */
} queue_entry_t;

typedef struct queue {
    queue_entry_t *entries; /* owned */
    size_t count;
    size_t capacity;
    uint64_t sequence;
} queue_t;

void tow_sim_queue_deinit(queue_t *queue);

/* False when memory is exhausted. */
bool tow_sim_queue_push(queue_t *queue, int64_t time_ns, source_t *source)
    TOW_MUST_USE;

static inline const queue_entry_t *tow_sim_queue_first(const queue_t *queue)
{
    return queue->count > 0 ? &queue->entries[0] : NULL;
}

/* Asks for the memory of those who are likely to be next. */
static inline void tow_sim_queue_prefetch(const queue_t *queue)
{
    for (size_t i = 1; i <= 4 && i < queue->count; i++) {
        const char *source = (const char *)queue->entries[i].source;
        __builtin_prefetch(source);
        __builtin_prefetch(source + TOW_CACHE_LINE_BYTES);
    }
}

/* The queue must not be empty. */
void tow_sim_queue_pop(queue_t *queue);
/* Gives the first entry a time that is not before its own, behind all others of
 * that time. */
void tow_sim_queue_postpone(queue_t *queue, int64_t time_ns);

#endif /* TOW_ENV_SIM_QUEUE_IMPL_H_ */
