#include "env/timer_heap.h"

/* A node's `previous` is its left sibling, or its parent if it is the leftmost
 * child, or NULL at the root. */

static bool fires_before(const tow_timer_t *a, const tow_timer_t *b)
{
    if (a->deadline_ns != b->deadline_ns)
        return a->deadline_ns < b->deadline_ns;
    return a->private_.sequence < b->private_.sequence;
}

/* Makes the later of two roots the leftmost child of the earlier. */
static tow_timer_t *meld(tow_timer_t *a, tow_timer_t *b)
{
    if (a == NULL) return b;
    if (b == NULL) return a;
    if (fires_before(b, a)) {
        tow_timer_t *swapped = a;
        a = b;
        b = swapped;
    }
    b->private_.next = a->private_.child;
    if (b->private_.next != NULL) b->private_.next->private_.previous = b;
    b->private_.previous = a;
    a->private_.child = b;
    a->private_.next = a->private_.previous = NULL;
    return a;
}

static tow_timer_t *detach(tow_timer_t *timer)
{
    timer->private_.next = timer->private_.previous = NULL;
    return timer;
}

/* Melds siblings in pairs from left to right and chains the pairs up in
 * reverse, then melds that chain: the two passes that give the pairing heap its
 * bound. Iterative: a chain may be as long as the heap. */
static tow_timer_t *meld_siblings(tow_timer_t *first)
{
    tow_timer_t *pairs = NULL;
    while (first != NULL) {
        tow_timer_t *second = first->private_.next;
        tow_timer_t *rest = second != NULL ? second->private_.next : NULL;
        tow_timer_t *pair =
            meld(detach(first), second != NULL ? detach(second) : NULL);
        pair->private_.next = pairs;
        pairs = pair;
        first = rest;
    }
    tow_timer_t *root = NULL;
    while (pairs != NULL) {
        tow_timer_t *rest = pairs->private_.next;
        root = meld(root, detach(pairs));
        pairs = rest;
    }
    return root;
}

static void cut(tow_timer_t *timer)
{
    tow_timer_t *previous = timer->private_.previous;
    if (previous->private_.child == timer)
        previous->private_.child = timer->private_.next;
    else
        previous->private_.next = timer->private_.next;
    if (timer->private_.next != NULL)
        timer->private_.next->private_.previous = previous;
    detach(timer);
}

void tow_timer_heap_disarm(tow_timer_heap_t *heap, tow_timer_t *timer)
{
    TOW_ASSERT(timer->private_.armed && heap->count > 0);
    tow_timer_t *children = meld_siblings(timer->private_.child);
    timer->private_.child = NULL;
    if (heap->root == timer) {
        heap->root = children;
    } else {
        cut(timer);
        heap->root = meld(heap->root, children);
    }
    timer->private_.armed = false;
    heap->count--;
}

void tow_timer_heap_arm(tow_timer_heap_t *heap, tow_timer_t *timer,
                        uint64_t sequence)
{
    /* The caller has already overwritten the deadline of an armed timer, which
     * is harmless: removing it compares only the others. */
    if (timer->private_.armed) tow_timer_heap_disarm(heap, timer);
    timer->private_.sequence = sequence;
    timer->private_.armed = true;
    timer->private_.child = NULL;
    heap->root = meld(heap->root, detach(timer));
    heap->count++;
}

/* The siblings from `first` on, below `parent`. Returns their number, with all
 * their children. */
static size_t check_siblings(const tow_timer_t *first,
                             const tow_timer_t *parent)
{
    size_t count = 0;
    const tow_timer_t *previous = parent;
    for (const tow_timer_t *timer = first; timer != NULL;
         timer = timer->private_.next) {
        TOW_ASSERT(timer->private_.armed);
        TOW_ASSERT(timer->private_.previous == previous);
        TOW_ASSERT(parent == NULL || !fires_before(timer, parent));
        count += 1 + check_siblings(timer->private_.child, timer);
        previous = timer;
    }
    return count;
}

void tow_timer_heap_check(const tow_timer_heap_t *heap)
{
    TOW_ASSERT(heap->root == NULL || heap->root->private_.next == NULL);
    TOW_ASSERT(check_siblings(heap->root, NULL) == heap->count);
}
