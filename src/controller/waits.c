/* Who keeps a gang waiting. Members that wait in a collective say for whom; some of
 * those wait themselves, for others still. At the ends of these chains are the
 * devices that are late. */
#include "controller/controller_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

void tow_waits_add(waits_t *waits, const tow_msg_report_t *message)
{
    for (size_t i = 0;
         i < message->n_waits && waits->items.count < TOW_LATE_WAITS_MAX; i++) {
        const tow_msg_wait_t *told = message->waits[i];
        wait_t wait = {.device = told->device,
                       .gang = told->gang,
                       .waited_ns = told->waited_ns,
                       .missing_count = told->n_missing};
        memcpy(wait.missing, told->missing,
               told->n_missing * sizeof(*told->missing));
        if (!tow_vec_push(&waits->items, wait)) return;
        waits->is_sorted = false;
    }
}

void tow_waits_deinit(waits_t *waits)
{
    tow_vec_deinit(&waits->items);
}

static int by_device(const void *a, const void *b)
{
    const int64_t one = ((const wait_t *)a)->device;
    const int64_t two = ((const wait_t *)b)->device;
    return (one > two) - (one < two);
}

static void sort(waits_t *waits)
{
    if (!waits->is_sorted && waits->items.count > 0)
        qsort(waits->items.items, waits->items.count,
              sizeof(*waits->items.items), by_device);
    waits->is_sorted = true;
}

static wait_t *find(const waits_t *waits, int64_t device)
{
    const wait_t key = {.device = device};
    if (waits->items.count == 0) return NULL;
    return bsearch(&key, waits->items.items, waits->items.count, sizeof(key),
                   by_device);
}

static void add_late(late_t *late, int64_t device)
{
    for (size_t i = 0; i < late->device_count; i++)
        if (late->devices[i] == device) return;
    if (late->device_count < TOW_COUNT_OF(late->devices))
        late->devices[late->device_count++] = device;
    else
        late->has_more = true;
}

/* Everybody of the chain that this wait is part of. What is taken up is marked, so
 * each is followed once, however they cross. */
static void follow(const waits_t *waits, wait_t *first, late_t *late)
{
    wait_t *next = first;
    first->after = NULL;
    first->is_seen = true;
    while (next != NULL) {
        wait_t *wait = next;
        next = wait->after;
        late->waiting_count++;
        if (wait->waited_ns > late->waited_ns)
            late->waited_ns = wait->waited_ns;
        for (size_t i = 0; i < wait->missing_count; i++) {
            wait_t *other = find(waits, wait->missing[i]);
            if (other == NULL) add_late(late, wait->missing[i]);
            if (other == NULL || other->is_seen) continue;
            other->is_seen = true;
            other->after = next;
            next = other;
        }
    }
}

late_t tow_waits_judge(waits_t *waits, uint64_t first_gang, uint64_t gang_count)
{
    late_t late = {0};
    sort(waits);
    for (size_t i = 0; i < waits->items.count; i++)
        waits->items.items[i].is_seen = false;
    for (size_t i = 0; i < waits->items.count; i++) {
        wait_t *wait = &waits->items.items[i];
        if (!wait->is_seen && wait->gang - first_gang < gang_count)
            follow(waits, wait, &late);
    }
    return late;
}
