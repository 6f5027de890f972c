/* An array with free space on both sides. */
#include "sched/ready_list_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/invariant.h"
#include "base/vec.h"
#include "sched/sched_impl.h"

void tow_ready_list_deinit(ready_list_t *list)
{
    tow_free(list->items);
    *list = (ready_list_t){0};
}

/* Doubles the space: when an end is reached, the additions that led there pay
 * for moving back to the middle. */
bool tow_ready_list_reserve(ready_list_t *list, size_t count)
{
    if (count * 2 <= list->capacity) return true;
    return tow_vec_grow((void **)&list->items, &list->capacity,
                        sizeof(*list->items), count * 2);
}

/* Usually none: tickets come last and go first. */
static void move(tow_ticket_t **to, tow_ticket_t **from, size_t count)
{
    if (count > 0) memmove(to, from, count * sizeof(*to));
}

/* The index of the first that arrived no earlier, among those that do not
 * wait. */
static size_t find_place(const ready_list_t *list, uint64_t arrival)
{
    tow_ticket_t *const *tickets = tow_ready_list_tickets(list);
    size_t low = 0;
    size_t high = tow_ready_list_count(list);
    /* Usually the newest ticket of all. */
    if (high == 0 || tickets[high - 1]->arrival_ < arrival) return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (tickets[middle]->arrival_ < arrival)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void move_to_middle(ready_list_t *list)
{
    size_t begin = (list->capacity - list->count) / 2;
    move(list->items + begin, list->items + list->begin, list->count);
    list->begin = begin;
}

void tow_ready_list_add(ready_list_t *list, tow_ticket_t *ticket)
{
    TOW_ASSERT(list->count * 2 < list->capacity);
    size_t index = list->waiting_count + find_place(list, ticket->arrival_);
    bool moves_left_side = index < list->count - index;
    size_t room = moves_left_side ? list->begin
                                  : list->capacity - list->begin - list->count;
    if (room == 0) move_to_middle(list);
    tow_ticket_t **first = list->items + list->begin;
    if (moves_left_side) {
        move(first - 1, first, index);
        list->begin--;
    } else {
        move(first + index + 1, first + index, list->count - index);
    }
    list->items[list->begin + index] = ticket;
    list->count++;
}

/* The index among all. */
static void take_at(ready_list_t *list, size_t index)
{
    TOW_ASSERT(index < list->count);
    tow_ticket_t **first = list->items + list->begin;
    list->count--;
    if (index <= list->count / 2) {
        move(first + 1, first, index);
        list->begin++;
    } else {
        move(first + index, first + index + 1, list->count - index);
    }
}

void tow_ready_list_take(ready_list_t *list, size_t index)
{
    take_at(list, list->waiting_count + index);
}

void tow_ready_list_set_waiting(ready_list_t *list, size_t index)
{
    tow_ticket_t **first = list->items + list->begin + list->waiting_count;
    tow_ticket_t *ticket = first[index];
    TOW_ASSERT(index < tow_ready_list_count(list));
    list->waiting_count++;
    if (index == 0) return;
    move(first + 1, first, index);
    *first = ticket;
}

static size_t index_of(const ready_list_t *list, const tow_ticket_t *ticket)
{
    size_t index = 0;
    while (list->items[list->begin + index] != ticket)
        index++;
    TOW_ASSERT(index < list->count);
    return index;
}

size_t tow_ready_list_find(const ready_list_t *list, const tow_ticket_t *ticket)
{
    const size_t index = index_of(list, ticket);
    return index < list->waiting_count ? SIZE_MAX : index - list->waiting_count;
}

void tow_ready_list_remove(ready_list_t *list, const tow_ticket_t *ticket)
{
    const size_t index = index_of(list, ticket);
    take_at(list, index);
    if (index < list->waiting_count) list->waiting_count--;
}

/* Sorted by insertion: nearly all are in order. */
void tow_ready_list_reopen(ready_list_t *list)
{
    tow_ticket_t **tickets = list->items + list->begin;
    if (list->waiting_count == 0) return;
    list->waiting_count = 0;
    for (size_t i = 1; i < list->count; i++) {
        tow_ticket_t *ticket = tickets[i];
        size_t at = i;
        for (; at > 0 && tickets[at - 1]->arrival_ > ticket->arrival_; at--)
            tickets[at] = tickets[at - 1];
        tickets[at] = ticket;
    }
}

tow_status_t tow_ready_list_check(const ready_list_t *list)
{
    tow_ticket_t *const *tickets = tow_ready_list_tickets(list);
    TOW_INVARIANT(list->begin + list->count <= list->capacity);
    TOW_INVARIANT(list->waiting_count <= list->count);
    for (size_t i = 1; i < tow_ready_list_count(list); i++)
        TOW_INVARIANT(tickets[i - 1]->arrival_ < tickets[i]->arrival_);
    return TOW_OK;
}
