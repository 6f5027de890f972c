/* The line-up: clients whose first ticket is ready, in order of its arrival, as
 * the plain array that policies are shown.
 *
 * The first leaves and the last comes in O(1), amortised; others move the
 * shorter side, 8 bytes a client. */
#ifndef TOW_SCHED_LINEUP_IMPL_H_
#define TOW_SCHED_LINEUP_IMPL_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "sched/sched.h"

typedef struct lineup {
    tow_sched_client_t **items; /* owned */
    size_t capacity;
    size_t begin; /* the first is items[begin] */
    size_t count;
} lineup_t;

void tow_lineup_deinit(lineup_t *lineup);
/* Makes room for so many, so that adding cannot fail; false when memory is
 * exhausted. */
bool tow_lineup_reserve(lineup_t *lineup, size_t count) TOW_MUST_USE;
/* By its `arrival`, which is no other's. */
void tow_lineup_add(lineup_t *lineup, tow_sched_client_t *client);
void tow_lineup_remove(lineup_t *lineup, const tow_sched_client_t *client);
tow_sched_client_t *tow_lineup_take(lineup_t *lineup, size_t index);

static inline tow_sched_client_t *const *tow_lineup_clients(
    const lineup_t *lineup)
{
    return lineup->items + lineup->begin;
}

#endif /* TOW_SCHED_LINEUP_IMPL_H_ */
