/* Invariants of records with state. A module's `_check` functions state them and
 * return the first that does not hold; tests and simulation call these between
 * turns. Checks of O(1) after a change are plain asserts (base/assert.h).
 *
 *     tow_status_t tow_queue_check(const tow_queue_t *queue)
 *     {
 *         TOW_INVARIANT(queue->count <= queue->capacity);
 *         TOW_INVARIANT(tow_list_length(&queue->items) == queue->count);
 *         return TOW_OK;
 *     } */
#ifndef TOW_BASE_INVARIANT_H_
#define TOW_BASE_INVARIANT_H_

#include <stddef.h>

#include "base/list.h"
#include "base/status.h"

#define TOW_INVARIANT(expression)                                  \
    do {                                                           \
        if (TOW_UNLIKELY(!(expression)))                           \
            return TOW_ERROR(TOW_INTERNAL, "broken invariant: %s", \
                             #expression);                         \
    } while (0)

/* O(items). */
static inline size_t tow_list_length(const tow_list_t *head)
{
    size_t count = 0;
    for (const tow_list_t *at = head->next; at != head; at = at->next)
        count++;
    return count;
}

#endif /* TOW_BASE_INVARIANT_H_ */
