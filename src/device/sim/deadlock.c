/* Detection of gangs that wait for each other in a cycle.
 *
 * A rendezvous needs all of its members, so one that waits elsewhere blocks it:
 * rendezvous A waits for rendezvous B if a device that A misses waits in B.
 * Only a device that starts to wait in B while A waits for it can close a
 * cycle, which is rare where gangs run in one order: the search then starts at
 * B and looks for a rendezvous that misses that device. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/sim/fabric_impl.h"
#include "device/sim/tuning.h"

/* The rendezvous in which the device waits, if it does and is not about to
 * continue. A broken one does not count: its members will be aborted. */
static rendezvous_t *waits_in(const tow_sim_fabric_t *fabric, int64_t id)
{
    const member_t *member = tow_map_find(&fabric->members, (uint64_t)id);
    if (member == NULL || member->rendezvous == NULL) return NULL;
    const rendezvous_t *rendezvous = member->rendezvous;
    return rendezvous->is_running || rendezvous->is_broken ? NULL
                                                           : member->rendezvous;
}

/* Appends the rendezvous that `rendezvous` waits for to the list of
 * search_next; true if `rendezvous` misses `target`. */
static bool visit(const tow_sim_fabric_t *fabric, rendezvous_t *rendezvous,
                  int64_t target, rendezvous_t **last)
{
    for (uint32_t rank = 0; rank < rendezvous->group.size; rank++) {
        if (tow_sim_rendezvous_has(rendezvous, rank)) continue;
        int64_t id = tow_sim_group_id(&rendezvous->group, rank);
        if (id == target) return true;
        rendezvous_t *next = waits_in(fabric, id);
        if (next == NULL || next->search_number == fabric->search_count)
            continue;
        next->search_number = fabric->search_count;
        next->search_from = rendezvous;
        next->search_device = id;
        next->search_next = NULL;
        (*last)->search_next = next;
        *last = next;
    }
    return false;
}

/* From the rendezvous that misses the member back to the one in which it
 * waits. */
static void describe_cycle(const rendezvous_t *end, const member_t *member,
                           char *text, size_t capacity)
{
    int64_t device = member->device_id;
    uint64_t elsewhere = member->rendezvous->gang_id;
    size_t shown = 0;
    size_t length = 0;
    for (const rendezvous_t *at = end; at != NULL; at = at->search_from) {
        if (shown++ == TOW_SIM_SHOWN_GANGS_MAX) {
            snprintf(text + length, capacity - length, "; and more");
            return;
        }
        int added = snprintf(
            text + length, capacity - length,
            "%sgang %" PRIu64 " (%s, collective %u, %u of %u devices there) "
            "waits for device %" PRId64 ", which waits in gang %" PRIu64,
            length > 0 ? "; " : "", at->gang_id,
            tow_sim_collective_name(at->kind), at->collective,
            at->present_count, at->group.size, device, elsewhere);
        TOW_ASSERT(added > 0 && (size_t)added < capacity - length);
        length += (size_t)added;
        device = at->search_device;
        elsewhere = at->gang_id;
    }
}

/* False if all of it was reported before. */
static bool mark_cycle(rendezvous_t *end)
{
    bool is_new = false;
    for (rendezvous_t *at = end; at != NULL; at = at->search_from) {
        is_new |= !at->is_reported;
        at->is_reported = true;
    }
    return is_new;
}

static void report_cycle(tow_sim_fabric_t *fabric, rendezvous_t *end,
                         const member_t *member)
{
    char text[TOW_SIM_SHOWN_GANGS_MAX * 224 + 64];
    if (!mark_cycle(end)) return;
    fabric->counts.deadlocks++;
    describe_cycle(end, member, text, sizeof(text));
    tow_status_t status = TOW_ERROR(
        TOW_FAILED_PRECONDITION,
        "deadlock: %s; devices saw these gangs in different orders", text);
    if (fabric->options.deadlock != NULL)
        fabric->options.deadlock(fabric->options.context, status);
    if (fabric->deadlock == TOW_OK)
        fabric->deadlock = status;
    else
        tow_status_release(status);
}

void tow_sim_fabric_find_cycle(tow_sim_fabric_t *fabric, member_t *member)
{
    rendezvous_t *first = member->rendezvous;
    rendezvous_t *last = first;
    if (first->is_broken) return;
    fabric->search_count++;
    first->search_number = fabric->search_count;
    first->search_from = NULL;
    first->search_next = NULL;
    for (rendezvous_t *at = first; at != NULL; at = at->search_next) {
        if (!visit(fabric, at, member->device_id, &last)) continue;
        report_cycle(fabric, at, member);
        return;
    }
}
