/* The armed timers of an env, earliest first: an intrusive pairing heap. Arming
 * needs no memory, so it cannot fail. Arming is O(1); removing the first and
 * stopping are O(log n) amortised. Equal deadlines keep the order of arming. */
#ifndef TOW_ENV_TIMER_HEAP_H_
#define TOW_ENV_TIMER_HEAP_H_

#include "env/env.h"

typedef struct tow_timer_heap {
    tow_timer_t *root;
    size_t count;
} tow_timer_heap_t;

/* Arms `timer` for its deadline_ns, or moves it if it is armed. `sequence`
 * breaks ties; it must grow from call to call. */
void tow_timer_heap_arm(tow_timer_heap_t *heap, tow_timer_t *timer,
                        uint64_t sequence);
/* The timer must be armed in this heap. */
void tow_timer_heap_disarm(tow_timer_heap_t *heap, tow_timer_t *timer);

/* Asserts the invariants of the heap. O(n): for tests. */
void tow_timer_heap_check(const tow_timer_heap_t *heap);

/* The timer with the earliest deadline, still armed; NULL if there is none. */
static inline tow_timer_t *tow_timer_heap_first(const tow_timer_heap_t *heap)
{
    return heap->root;
}

#endif /* TOW_ENV_TIMER_HEAP_H_ */
