/* An array with free room on both sides. */
#include "sched/lineup_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/vec.h"
#include "sched/sched_impl.h"

void tow_lineup_deinit(lineup_t *lineup)
{
    tow_free(lineup->items);
    *lineup = (lineup_t){0};
}

/* Twice the room: when an end is reached, the way back to the middle is paid for
 * by the additions that led there. */
bool tow_lineup_reserve(lineup_t *lineup, size_t count)
{
    if (count * 2 <= lineup->capacity) return true;
    return tow_vec_grow((void **)&lineup->items, &lineup->capacity,
                        sizeof(*lineup->items), count * 2);
}

static void move(tow_sched_client_t **to, tow_sched_client_t **from,
                 size_t count)
{
    memmove(to, from, count * sizeof(*to));
}

/* The index of the first that arrived no earlier. */
static size_t find_place(const lineup_t *lineup, uint64_t arrival)
{
    tow_sched_client_t *const *clients = tow_lineup_clients(lineup);
    size_t low = 0;
    size_t high = lineup->count;
    /* Mostly the newest ticket of all. */
    if (high == 0 || clients[high - 1]->arrival < arrival) return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (clients[middle]->arrival < arrival)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void move_to_middle(lineup_t *lineup)
{
    size_t begin = (lineup->capacity - lineup->count) / 2;
    move(lineup->items + begin, lineup->items + lineup->begin, lineup->count);
    lineup->begin = begin;
}

void tow_lineup_add(lineup_t *lineup, tow_sched_client_t *client)
{
    TOW_ASSERT(lineup->count * 2 < lineup->capacity);
    size_t index = find_place(lineup, client->arrival);
    bool moves_left_side = index < lineup->count - index;
    size_t room = moves_left_side
                      ? lineup->begin
                      : lineup->capacity - lineup->begin - lineup->count;
    if (room == 0) move_to_middle(lineup);
    tow_sched_client_t **first = lineup->items + lineup->begin;
    if (moves_left_side) {
        move(first - 1, first, index);
        lineup->begin--;
    } else {
        move(first + index + 1, first + index, lineup->count - index);
    }
    lineup->items[lineup->begin + index] = client;
    lineup->count++;
}

tow_sched_client_t *tow_lineup_take(lineup_t *lineup, size_t index)
{
    TOW_ASSERT(index < lineup->count);
    tow_sched_client_t **first = lineup->items + lineup->begin;
    tow_sched_client_t *taken = first[index];
    lineup->count--;
    if (index <= lineup->count / 2) {
        move(first + 1, first, index);
        lineup->begin++;
    } else {
        move(first + index, first + index + 1, lineup->count - index);
    }
    return taken;
}

void tow_lineup_remove(lineup_t *lineup, const tow_sched_client_t *client)
{
    size_t index = find_place(lineup, client->arrival);
    const tow_sched_client_t *taken = tow_lineup_take(lineup, index);
    TOW_ASSERT(taken == client);
}
