/* The ready list: queues whose first ticket is ready, in order of its arrival,
 * as the plain array that policies read.
 *
 * Removing the first and adding the last is O(1), amortised; otherwise the
 * shorter side moves, 8 bytes per queue. */
#ifndef TOW_SCHED_READY_LIST_IMPL_H_
#define TOW_SCHED_READY_LIST_IMPL_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "sched/sched.h"

typedef struct ready_list {
    tow_sched_queue_t **items; /* owned */
    size_t capacity;
    size_t begin; /* the first is items[begin] */
    size_t count;
} ready_list_t;

void tow_ready_list_deinit(ready_list_t *ready_list);
/* Reserves space for `count`, so that adding cannot fail; false when memory is
 * exhausted. */
bool tow_ready_list_reserve(ready_list_t *ready_list, size_t count)
    TOW_MUST_USE;
/* By its `arrival`, which is unique. */
void tow_ready_list_add(ready_list_t *ready_list, tow_sched_queue_t *queue);
void tow_ready_list_remove(ready_list_t *ready_list,
                           const tow_sched_queue_t *queue);
tow_sched_queue_t *tow_ready_list_take(ready_list_t *ready_list, size_t index);
/* Verifies the invariants. O(queues). */
tow_status_t tow_ready_list_check(const ready_list_t *ready_list) TOW_MUST_USE;

static inline tow_sched_queue_t *const *tow_ready_list_queues(
    const ready_list_t *ready_list)
{
    return ready_list->items + ready_list->begin;
}

#endif /* TOW_SCHED_READY_LIST_IMPL_H_ */
