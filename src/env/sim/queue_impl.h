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

/* Children of an entry in the heap. Measured with 100,000 entries at random
 * times: 2, 4 and 8 are within 5% of each other, and so is asking for the
 * grandchildren's memory early; comparing without branches is 30% slower, for a
 * guessed branch lets the next level's loads begin. */
#define TOW_SIM_QUEUE_FAN_OUT 4

void tow_sim_queue_deinit(queue_t *queue);

/* False when memory is exhausted. */
bool tow_sim_queue_push(queue_t *queue, int64_t time_ns, source_t *source)
    TOW_MUST_USE;

static inline const queue_entry_t *tow_sim_queue_first(const queue_t *queue)
{
    return queue->count > 0 ? &queue->entries[0] : NULL;
}

/* The one that comes after the first, as things stand; NULL if there is none.
 */
const queue_entry_t *tow_sim_queue_second(const queue_t *queue);

/* The queue must not be empty. */
void tow_sim_queue_pop(queue_t *queue);
/* Gives the first entry a time that is not before its own, behind all others of
 * that time. */
void tow_sim_queue_postpone(queue_t *queue, int64_t time_ns);

#endif /* TOW_ENV_SIM_QUEUE_IMPL_H_ */
