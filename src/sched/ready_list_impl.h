/* The ready tickets of an island, as the plain array that policies read: first
 * those that were asked for in this scan and wait, in any order, then the
 * others, in order of arrival.
 *
 * Removing the first and adding the last is O(1), amortised; otherwise the
 * shorter side moves, 8 bytes per ticket. */
#ifndef TOW_SCHED_READY_LIST_IMPL_H_
#define TOW_SCHED_READY_LIST_IMPL_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "sched/sched.h"

typedef struct ready_list {
    tow_ticket_t **items; /* owned */
    size_t capacity;
    size_t begin; /* the first is items[begin] */
    size_t count;
    size_t waiting_count; /* of these, the first ones wait */
} ready_list_t;

void tow_ready_list_deinit(ready_list_t *list);
/* Reserves space for `count`, so that adding cannot fail; false when memory is
 * exhausted. */
bool tow_ready_list_reserve(ready_list_t *list, size_t count) TOW_MUST_USE;
/* By its arrival, which is unique. */
void tow_ready_list_add(ready_list_t *list, tow_ticket_t *ticket);
/* The index among those that do not wait. */
void tow_ready_list_take(ready_list_t *list, size_t index);
/* It waits until tow_ready_list_reopen. */
void tow_ready_list_set_waiting(ready_list_t *list, size_t index);
/* Wherever it is. O(tickets). */
void tow_ready_list_remove(ready_list_t *list, const tow_ticket_t *ticket);
/* The index of one that does not wait; SIZE_MAX: it waits. O(tickets). */
size_t tow_ready_list_find(const ready_list_t *list,
                           const tow_ticket_t *ticket);
/* None waits any more. */
void tow_ready_list_reopen(ready_list_t *list);
/* Verifies the invariants. O(tickets). */
tow_status_t tow_ready_list_check(const ready_list_t *list) TOW_MUST_USE;

/* Those that do not wait. */
static inline tow_ticket_t *const *tow_ready_list_tickets(
    const ready_list_t *list)
{
    return list->items + list->begin + list->waiting_count;
}

static inline size_t tow_ready_list_count(const ready_list_t *list)
{
    return list->count - list->waiting_count;
}

#endif /* TOW_SCHED_READY_LIST_IMPL_H_ */
