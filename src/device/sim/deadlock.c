/* Gangs that wait for each other in a circle.
 *
 * A meeting needs all of its members, so one that waits elsewhere is enough to
 * hold it up: meeting A waits for meeting B when a device that is missing in A
 * waits in B. A circle can only be closed by a device that begins to wait in B
 * while A waits for it. Such a device is rare where gangs run in one order: the
 * search then starts at B and looks for a meeting that misses that device. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/sim/fabric_impl.h"
#include "device/sim/tuning.h"

/* The meeting in which the device waits, if it does and is not on its way out
 * of it. One that is broken does not count: it waits to be aborted, and whoever
 * aborted its other members knows that. */
static meeting_t *waits_in(const tow_sim_fabric_t *fabric, int64_t id)
{
    const member_t *member = tow_map_find(&fabric->members, (uint64_t)id);
    if (member == NULL || member->meeting == NULL) return NULL;
    const meeting_t *meeting = member->meeting;
    return meeting->is_running || meeting->is_broken ? NULL : member->meeting;
}

/* Visits the meetings that `meeting` waits for, by a list that goes through
 * search_next; true when `meeting` misses `target`. */
static bool visit(const tow_sim_fabric_t *fabric, meeting_t *meeting,
                  int64_t target, meeting_t **last)
{
    for (uint32_t rank = 0; rank < meeting->group.size; rank++) {
        if (tow_sim_meeting_has(meeting, rank)) continue;
        int64_t id = tow_sim_group_id(&meeting->group, rank);
        if (id == target) return true;
        meeting_t *next = waits_in(fabric, id);
        if (next == NULL || next->search_number == fabric->search_count)
            continue;
        next->search_number = fabric->search_count;
        next->search_from = meeting;
        next->search_device = id;
        next->search_next = NULL;
        (*last)->search_next = next;
        *last = next;
    }
    return false;
}

/* From the meeting that misses the member back to the one in which it waits. */
static void describe_circle(const meeting_t *end, const member_t *member,
                            char *text, size_t capacity)
{
    int64_t device = member->device_id;
    uint64_t elsewhere = member->meeting->gang_id;
    size_t shown = 0;
    size_t length = 0;
    for (const meeting_t *at = end; at != NULL; at = at->search_from) {
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

/* False when all of it has been told before. */
static bool mark_circle(meeting_t *end)
{
    bool is_new = false;
    for (meeting_t *at = end; at != NULL; at = at->search_from) {
        is_new |= !at->is_reported;
        at->is_reported = true;
    }
    return is_new;
}

static void report_circle(tow_sim_fabric_t *fabric, meeting_t *end,
                          const member_t *member)
{
    char text[TOW_SIM_SHOWN_GANGS_MAX * 224 + 64];
    if (!mark_circle(end)) return;
    fabric->counts.deadlocks++;
    describe_circle(end, member, text, sizeof(text));
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

void tow_sim_fabric_look_for_circle(tow_sim_fabric_t *fabric, member_t *member)
{
    meeting_t *first = member->meeting;
    meeting_t *last = first;
    if (first->is_broken) return;
    fabric->search_count++;
    first->search_number = fabric->search_count;
    first->search_from = NULL;
    first->search_next = NULL;
    for (meeting_t *at = first; at != NULL; at = at->search_next) {
        if (!visit(fabric, at, member->device_id, &last)) continue;
        report_circle(fabric, at, member);
        return;
    }
}
