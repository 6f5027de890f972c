/* The wait-for graph. Members that wait in a collective report for whom; some
 * of those wait themselves, for others. At the ends of these chains are the
 * devices that stall the gang. */
#include "controller/controller_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

void tow_ctl_wait_graph_add(tow_ctl_wait_graph_t *waits,
                            const tow_msg_report_t *message)
{
    for (size_t i = 0;
         i < message->n_waits && waits->items.count < TOW_STALL_WAITS_MAX;
         i++) {
        const tow_msg_wait_t *given = message->waits[i];
        tow_ctl_wait_t wait = {.device = given->device,
                               .gang = given->gang,
                               .waited_ns = given->waited_ns,
                               .missing_count = given->n_missing};
        memcpy(wait.missing, given->missing,
               given->n_missing * sizeof(*given->missing));
        if (!tow_vec_push(&waits->items, wait)) return;
        waits->is_sorted = false;
    }
}

void tow_ctl_wait_graph_deinit(tow_ctl_wait_graph_t *waits)
{
    tow_vec_deinit(&waits->items);
}

static int by_device(const void *a, const void *b)
{
    const int64_t one = ((const tow_ctl_wait_t *)a)->device;
    const int64_t two = ((const tow_ctl_wait_t *)b)->device;
    return (one > two) - (one < two);
}

static void sort(tow_ctl_wait_graph_t *waits)
{
    if (!waits->is_sorted && waits->items.count > 0)
        qsort(waits->items.items, waits->items.count,
              sizeof(*waits->items.items), by_device);
    waits->is_sorted = true;
}

static tow_ctl_wait_t *find(const tow_ctl_wait_graph_t *waits, int64_t device)
{
    const tow_ctl_wait_t key = {.device = device};
    if (waits->items.count == 0) return NULL;
    return bsearch(&key, waits->items.items, waits->items.count, sizeof(key),
                   by_device);
}

static void add_stalled(tow_ctl_stall_t *stall, int64_t device)
{
    for (size_t i = 0; i < stall->device_count; i++)
        if (stall->devices[i] == device) return;
    if (stall->device_count < TOW_COUNT_OF(stall->devices))
        stall->devices[stall->device_count++] = device;
    else
        stall->has_more = true;
}

/* Follows all chains from this wait. Each wait is marked, so it is followed
 * once even if chains cross. */
static void follow(const tow_ctl_wait_graph_t *waits, tow_ctl_wait_t *first,
                   tow_ctl_stall_t *stall)
{
    tow_ctl_wait_t *next = first;
    first->after = NULL;
    first->is_seen = true;
    while (next != NULL) {
        tow_ctl_wait_t *wait = next;
        next = wait->after;
        stall->waiting_count++;
        if (wait->waited_ns > stall->waited_ns)
            stall->waited_ns = wait->waited_ns;
        for (size_t i = 0; i < wait->missing_count; i++) {
            tow_ctl_wait_t *other = find(waits, wait->missing[i]);
            if (other == NULL) add_stalled(stall, wait->missing[i]);
            if (other == NULL || other->is_seen) continue;
            other->is_seen = true;
            other->after = next;
            next = other;
        }
    }
}

tow_ctl_stall_t tow_ctl_wait_graph_find_stall(tow_ctl_wait_graph_t *waits,
                                              uint64_t first_gang,
                                              uint64_t gang_count)
{
    tow_ctl_stall_t stall = {0};
    sort(waits);
    for (size_t i = 0; i < waits->items.count; i++)
        waits->items.items[i].is_seen = false;
    for (size_t i = 0; i < waits->items.count; i++) {
        tow_ctl_wait_t *wait = &waits->items.items[i];
        if (!wait->is_seen && wait->gang - first_gang < gang_count)
            follow(waits, wait, &stall);
    }
    return stall;
}
