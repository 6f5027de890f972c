/* An array with free space on both sides. */
#include "sched/ready_list_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/invariant.h"
#include "base/vec.h"
#include "sched/sched_impl.h"

void tow_ready_list_deinit(ready_list_t *ready_list)
{
    tow_free(ready_list->items);
    *ready_list = (ready_list_t){0};
}

/* Doubles the space: when an end is reached, the additions that led there pay
 * for moving back to the middle. */
bool tow_ready_list_reserve(ready_list_t *ready_list, size_t count)
{
    if (count * 2 <= ready_list->capacity) return true;
    return tow_vec_grow((void **)&ready_list->items, &ready_list->capacity,
                        sizeof(*ready_list->items), count * 2);
}

static void move(tow_sched_queue_t **to, tow_sched_queue_t **from, size_t count)
{
    memmove(to, from, count * sizeof(*to));
}

/* The index of the first that arrived no earlier. */
static size_t find_place(const ready_list_t *ready_list, uint64_t arrival)
{
    tow_sched_queue_t *const *queues = tow_ready_list_queues(ready_list);
    size_t low = 0;
    size_t high = ready_list->count;
    /* Usually the newest ticket of all. */
    if (high == 0 || queues[high - 1]->arrival < arrival) return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (queues[middle]->arrival < arrival)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void move_to_middle(ready_list_t *ready_list)
{
    size_t begin = (ready_list->capacity - ready_list->count) / 2;
    move(ready_list->items + begin, ready_list->items + ready_list->begin,
         ready_list->count);
    ready_list->begin = begin;
}

void tow_ready_list_add(ready_list_t *ready_list, tow_sched_queue_t *queue)
{
    TOW_ASSERT(ready_list->count * 2 < ready_list->capacity);
    size_t index = find_place(ready_list, queue->arrival);
    bool moves_left_side = index < ready_list->count - index;
    size_t room = moves_left_side ? ready_list->begin
                                  : ready_list->capacity - ready_list->begin -
                                        ready_list->count;
    if (room == 0) move_to_middle(ready_list);
    tow_sched_queue_t **first = ready_list->items + ready_list->begin;
    if (moves_left_side) {
        move(first - 1, first, index);
        ready_list->begin--;
    } else {
        move(first + index + 1, first + index, ready_list->count - index);
    }
    ready_list->items[ready_list->begin + index] = queue;
    ready_list->count++;
}

tow_sched_queue_t *tow_ready_list_take(ready_list_t *ready_list, size_t index)
{
    TOW_ASSERT(index < ready_list->count);
    tow_sched_queue_t **first = ready_list->items + ready_list->begin;
    tow_sched_queue_t *taken = first[index];
    ready_list->count--;
    if (index <= ready_list->count / 2) {
        move(first + 1, first, index);
        ready_list->begin++;
    } else {
        move(first + index, first + index + 1, ready_list->count - index);
    }
    return taken;
}

void tow_ready_list_remove(ready_list_t *ready_list,
                           const tow_sched_queue_t *queue)
{
    size_t index = find_place(ready_list, queue->arrival);
    const tow_sched_queue_t *taken = tow_ready_list_take(ready_list, index);
    TOW_ASSERT(taken == queue);
}

tow_status_t tow_ready_list_check(const ready_list_t *ready_list)
{
    tow_sched_queue_t *const *queues = tow_ready_list_queues(ready_list);
    TOW_INVARIANT(ready_list->begin + ready_list->count <=
                  ready_list->capacity);
    for (size_t i = 1; i < ready_list->count; i++)
        TOW_INVARIANT(queues[i - 1]->arrival < queues[i]->arrival);
    return TOW_OK;
}
