/* Meetings: members come, wait, go on or give up.
 *
 * A meeting is made by its first member and freed with its last. It is open
 * until all have come; then nobody can join, and each member's timer is set to
 * the same moment. If one withdraws before that moment the timers of the others
 * are stopped: their collective never ends. */
#include "device/sim/fabric_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"

tow_status_t tow_sim_fabric_create(const tow_sim_fabric_options_t *options,
                                   tow_sim_fabric_t **out_fabric)
{
    *out_fabric = NULL;
    tow_sim_fabric_t *fabric = tow_calloc(1, sizeof(*fabric));
    if (fabric == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (options != NULL) fabric->options = *options;
    tow_list_init(&fabric->meetings);
    *out_fabric = fabric;
    return TOW_OK;
}

void tow_sim_fabric_destroy(tow_sim_fabric_t *fabric)
{
    if (fabric == NULL) return;
    TOW_ASSERT(tow_map_count(&fabric->members) == 0);
    TOW_ASSERT(tow_map_count(&fabric->assignments) == 0);
    tow_map_deinit(&fabric->members);
    tow_map_deinit(&fabric->open);
    tow_map_deinit(&fabric->assignments);
    tow_map_deinit(&fabric->aborted);
    tow_status_release(fabric->deadlock);
    tow_free(fabric);
}

tow_status_t tow_sim_fabric_deadlock(const tow_sim_fabric_t *fabric)
{
    return fabric->deadlock;
}

tow_sim_fabric_counts_t tow_sim_fabric_counts(const tow_sim_fabric_t *fabric)
{
    tow_sim_fabric_counts_t counts = fabric->counts;
    counts.devices = tow_map_count(&fabric->members);
    return counts;
}

/* -- Assignments ----------------------------------------------------------- */

assignment_t *tow_sim_assignment_intern(tow_sim_fabric_t *fabric,
                                        const int64_t *ids, uint32_t count)
{
    size_t bytes = count * sizeof(*ids);
    uint64_t hash = tow_hash_bytes(ids, bytes, 0);
    assignment_t *first = tow_map_find(&fabric->assignments, hash);
    for (assignment_t *at = first; at != NULL; at = at->next_same_hash)
        if (at->count == count && memcmp(at->ids, ids, bytes) == 0) {
            at->reference_count++;
            return at;
        }
    assignment_t *made = tow_malloc(sizeof(*made) + bytes);
    if (made == NULL) return NULL;
    *made = (assignment_t){.reference_count = 1,
                           .count = count,
                           .hash = hash,
                           .next_same_hash = first};
    memcpy(made->ids, ids, bytes);
    if (!tow_map_put(&fabric->assignments, hash, made)) {
        tow_free(made);
        return NULL;
    }
    return made;
}

void tow_sim_assignment_release(tow_sim_fabric_t *fabric,
                                assignment_t *assignment)
{
    if (assignment == NULL || --assignment->reference_count > 0) return;
    assignment_t *first = tow_map_find(&fabric->assignments, assignment->hash);
    assignment_t **at = &first;
    while (*at != assignment)
        at = &(*at)->next_same_hash;
    *at = assignment->next_same_hash;
    /* Replaces a value in its place, which takes no memory. */
    if (first == NULL)
        tow_map_remove(&fabric->assignments, assignment->hash);
    else
        TOW_ASSERT(tow_map_put(&fabric->assignments, assignment->hash, first));
    tow_free(assignment);
}

/* -- Devices --------------------------------------------------------------- */

static void await_absent(tow_sim_fabric_t *fabric, const meeting_t *meeting,
                         uint32_t change)
{
    for (uint32_t rank = 0; rank < meeting->group.size; rank++) {
        if (tow_sim_meeting_has(meeting, rank)) continue;
        uint64_t id = (uint64_t)tow_sim_group_id(&meeting->group, rank);
        member_t *member = tow_map_find(&fabric->members, id);
        if (member != NULL) member->awaited_count += change;
    }
}

/* A device that comes back after its node has died, or comes late. */
static void count_awaiting(const tow_sim_fabric_t *fabric, member_t *member)
{
    const tow_list_t *head = &fabric->meetings;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const meeting_t *meeting =
            TOW_CONTAINER_OF(at, const meeting_t, in_fabric);
        for (uint32_t rank = 0; rank < meeting->group.size; rank++)
            if (!tow_sim_meeting_has(meeting, rank) &&
                tow_sim_group_id(&meeting->group, rank) == member->device_id)
                member->awaited_count++;
    }
}

tow_status_t tow_sim_fabric_join(tow_sim_fabric_t *fabric, member_t *member)
{
    uint64_t id = (uint64_t)member->device_id;
    if (tow_map_find(&fabric->members, id) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "the fabric has a device %" PRId64 " already",
                         member->device_id);
    if (!tow_map_put(&fabric->members, id, member))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_list_init(&member->in_meeting);
    count_awaiting(fabric, member);
    return TOW_OK;
}

void tow_sim_fabric_vanish(tow_sim_fabric_t *fabric, member_t *member)
{
    uint64_t id = (uint64_t)member->device_id;
    if (tow_map_find(&fabric->members, id) != member) return;
    tow_sim_fabric_withdraw(fabric, member);
    tow_map_remove(&fabric->members, id);
}

/* -- Meetings -------------------------------------------------------------- */

static uint64_t hash_of(const arrival_t *arrival)
{
    const group_t *group = &arrival->group;
    uint64_t hash = tow_mix64(arrival->gang_id ^ group->assignment->hash);
    hash = tow_mix64(hash ^ arrival->collective);
    return tow_mix64(hash ^ ((uint64_t)group->start << 32 | group->stride));
}

static bool is_same_place(const meeting_t *meeting, const arrival_t *arrival)
{
    return meeting->gang_id == arrival->gang_id &&
           meeting->collective == arrival->collective &&
           meeting->group.assignment == arrival->group.assignment &&
           meeting->group.start == arrival->group.start &&
           meeting->group.stride == arrival->group.stride;
}

static meeting_t *find_meeting(const tow_sim_fabric_t *fabric,
                               const arrival_t *arrival)
{
    meeting_t *meeting = tow_map_find(&fabric->open, hash_of(arrival));
    while (meeting != NULL && !is_same_place(meeting, arrival))
        meeting = meeting->next_same_hash;
    return meeting;
}

static meeting_t *make_meeting(tow_sim_fabric_t *fabric,
                               const arrival_t *arrival)
{
    size_t words = (arrival->group.size + 63) / 64;
    meeting_t *meeting =
        tow_calloc(1, sizeof(*meeting) + words * sizeof(uint64_t));
    if (meeting == NULL) return NULL;
    meeting->hash = hash_of(arrival);
    meeting->gang_id = arrival->gang_id;
    meeting->collective = arrival->collective;
    meeting->kind = arrival->kind;
    meeting->bytes = arrival->bytes;
    meeting->group = arrival->group;
    meeting->next_same_hash = tow_map_find(&fabric->open, meeting->hash);
    if (!tow_map_put(&fabric->open, meeting->hash, meeting)) {
        tow_free(meeting);
        return NULL;
    }
    meeting->is_open = true;
    meeting->is_broken =
        tow_map_find(&fabric->aborted, arrival->gang_id) != NULL;
    meeting->group.assignment->reference_count++;
    tow_list_init(&meeting->members);
    tow_list_append(&fabric->meetings, &meeting->in_fabric);
    await_absent(fabric, meeting, 1);
    return meeting;
}

/* Nobody can join any more. */
static void shut_meeting(tow_sim_fabric_t *fabric, meeting_t *meeting)
{
    if (!meeting->is_open) return;
    meeting->is_open = false;
    meeting_t *first = tow_map_find(&fabric->open, meeting->hash);
    meeting_t **at = &first;
    while (*at != meeting)
        at = &(*at)->next_same_hash;
    *at = meeting->next_same_hash;
    if (first == NULL)
        tow_map_remove(&fabric->open, meeting->hash);
    else
        TOW_ASSERT(tow_map_put(&fabric->open, meeting->hash, first));
}

static void free_meeting(tow_sim_fabric_t *fabric, meeting_t *meeting)
{
    TOW_ASSERT(tow_list_is_empty(&meeting->members));
    shut_meeting(fabric, meeting);
    if (!meeting->is_running) await_absent(fabric, meeting, UINT32_MAX);
    tow_list_remove(&meeting->in_fabric);
    tow_sim_assignment_release(fabric, meeting->group.assignment);
    tow_free(meeting);
}

static tow_status_t check_agrees(const meeting_t *meeting,
                                 const member_t *member,
                                 const arrival_t *arrival)
{
    if (meeting->kind == arrival->kind && meeting->bytes == arrival->bytes &&
        meeting->group.size == arrival->group.size &&
        !tow_sim_meeting_has(meeting, arrival->rank))
        return TOW_OK;
    return TOW_ERROR(
        TOW_FAILED_PRECONDITION,
        "gang %" PRIu64 ", collective %u: device %" PRId64
        " comes for %s of %" PRIu64 " bytes among %u, and %u others are there "
        "for %s of %" PRIu64 " bytes among %u: the members run different "
        "programs, or one gang id names two runs",
        arrival->gang_id, arrival->collective, member->device_id,
        tow_sim_collective_name(arrival->kind), arrival->bytes,
        arrival->group.size, meeting->present_count,
        tow_sim_collective_name(meeting->kind), meeting->bytes,
        meeting->group.size);
}

static uint64_t weigh(uint64_t contribution, uint32_t rank)
{
    return tow_mix64(contribution ^ tow_mix64((uint64_t)rank + 1));
}

/* All are there: each wakes up at the same moment. */
static void start_collective(tow_sim_fabric_t *fabric, meeting_t *meeting,
                             int64_t now_ns)
{
    shut_meeting(fabric, meeting);
    meeting->is_running = true;
    fabric->counts.collectives++;
    int64_t end_ns = now_ns + (int64_t)meeting->duration_ns;
    tow_list_t *head = &meeting->members;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        member_t *member = TOW_CONTAINER_OF(at, member_t, in_meeting);
        member->combined = meeting->combined;
        tow_env_timer_start(member->env, member->timer, end_ns);
    }
}

static void enter(meeting_t *meeting, member_t *member,
                  const arrival_t *arrival)
{
    member->meeting = meeting;
    member->rank = arrival->rank;
    member->since_ns = arrival->now_ns;
    tow_list_append(&meeting->members, &member->in_meeting);
    meeting->present[arrival->rank / 64] |= (uint64_t)1 << arrival->rank % 64;
    meeting->present_count++;
    meeting->combined += weigh(member->contribution, arrival->rank);
    if (arrival->duration_ns > meeting->duration_ns)
        meeting->duration_ns = arrival->duration_ns;
    TOW_ASSERT(member->awaited_count > 0);
    member->awaited_count--;
}

tow_status_t tow_sim_fabric_arrive(tow_sim_fabric_t *fabric, member_t *member,
                                   const arrival_t *arrival)
{
    TOW_ASSERT(member->meeting == NULL && arrival->rank < arrival->group.size);
    TOW_ASSERT(tow_sim_group_id(&arrival->group, arrival->rank) ==
               member->device_id);
    meeting_t *meeting = find_meeting(fabric, arrival);
    if (meeting == NULL) meeting = make_meeting(fabric, arrival);
    if (meeting == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(check_agrees(meeting, member, arrival));
    enter(meeting, member, arrival);
    if (meeting->present_count == meeting->group.size)
        start_collective(fabric, meeting, arrival->now_ns);
    else if (member->awaited_count > 0)
        tow_sim_fabric_look_for_circle(fabric, member);
    return TOW_OK;
}

static void leave(tow_sim_fabric_t *fabric, member_t *member)
{
    meeting_t *meeting = member->meeting;
    tow_list_remove(&member->in_meeting);
    member->meeting = NULL;
    if (tow_list_is_empty(&meeting->members)) free_meeting(fabric, meeting);
}

void tow_sim_fabric_depart(tow_sim_fabric_t *fabric, member_t *member)
{
    TOW_ASSERT(member->meeting != NULL && member->meeting->is_running);
    member->meeting->has_departed = true;
    leave(fabric, member);
}

/* Who had come waits again, for one that never will. */
static void stop_collective(meeting_t *meeting)
{
    meeting->is_running = false;
    tow_list_t *head = &meeting->members;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        member_t *member = TOW_CONTAINER_OF(at, member_t, in_meeting);
        if (member->env != NULL) /* else its node has died */
            tow_env_timer_stop(member->env, member->timer);
    }
}

void tow_sim_fabric_withdraw(tow_sim_fabric_t *fabric, member_t *member)
{
    meeting_t *meeting = member->meeting;
    if (meeting == NULL) return;
    if (!meeting->has_departed) {
        uint32_t rank = member->rank;
        tow_list_remove(&member->in_meeting);
        if (meeting->is_running) stop_collective(meeting);
        shut_meeting(fabric, meeting);
        meeting->is_broken = true;
        meeting->present[rank / 64] &= ~((uint64_t)1 << rank % 64);
        meeting->present_count--;
        member->awaited_count++;
    }
    leave(fabric, member);
}

static void break_meetings(tow_sim_fabric_t *fabric, uint64_t gang_id)
{
    tow_list_t *head = &fabric->meetings;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        meeting_t *meeting = TOW_CONTAINER_OF(at, meeting_t, in_fabric);
        if (meeting->gang_id == gang_id) meeting->is_broken = true;
    }
}

void tow_sim_fabric_abort(tow_sim_fabric_t *fabric, uint64_t gang_id)
{
    break_meetings(fabric, gang_id);
    if (tow_map_find(&fabric->aborted, gang_id) != NULL) return;
    uint64_t *slot =
        &fabric->aborted_ids[fabric->aborted_count % TOW_SIM_ABORTED_GANGS_MAX];
    if (fabric->aborted_count >= TOW_SIM_ABORTED_GANGS_MAX)
        tow_map_remove(&fabric->aborted, *slot);
    /* Without memory it is not remembered, and may be told as a deadlock. */
    if (!tow_map_put(&fabric->aborted, gang_id, fabric)) return;
    *slot = gang_id;
    fabric->aborted_count++;
}

/* -- Looking --------------------------------------------------------------- */

static tow_sim_stuck_t describe(const member_t *member)
{
    const meeting_t *meeting = member->meeting;
    return (tow_sim_stuck_t){.device_id = member->device_id,
                             .gang_id = meeting->gang_id,
                             .collective = meeting->collective,
                             .kind = meeting->kind,
                             .since_ns = member->since_ns,
                             .member_count = meeting->group.size,
                             .present_count = meeting->present_count};
}

size_t tow_sim_fabric_stuck(const tow_sim_fabric_t *fabric,
                            tow_sim_stuck_t *out_stuck, size_t capacity)
{
    size_t count = 0;
    const tow_list_t *head = &fabric->meetings;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const meeting_t *meeting =
            TOW_CONTAINER_OF(at, const meeting_t, in_fabric);
        if (meeting->is_running) continue;
        const tow_list_t *members = &meeting->members;
        for (const tow_list_t *m = members->next; m != members; m = m->next)
            if (count++ < capacity)
                out_stuck[count - 1] =
                    describe(TOW_CONTAINER_OF(m, const member_t, in_meeting));
    }
    return count;
}

/* Text that stops at its end. */
typedef struct note {
    char *text;
    size_t capacity;
    size_t length;
} note_t;

static void add(note_t *note, const char *format, ...) TOW_PRINTF(2, 3);
static void add(note_t *note, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(note->text + note->length,
                           note->capacity - note->length, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    note->length += (size_t)length;
    if (note->length >= note->capacity) note->length = note->capacity - 1;
}

static void add_missing(note_t *note, const tow_sim_fabric_t *fabric,
                        int64_t id)
{
    const member_t *member = tow_map_find(&fabric->members, (uint64_t)id);
    add(note, " %" PRId64, id);
    if (member == NULL)
        add(note, " (gone)");
    else if (member->meeting != NULL)
        add(note, " (in gang %" PRIu64 ")", member->meeting->gang_id);
}

static void add_meeting(note_t *note, const tow_sim_fabric_t *fabric,
                        const meeting_t *meeting)
{
    const member_t *first =
        TOW_CONTAINER_OF(meeting->members.next, const member_t, in_meeting);
    add(note,
        "gang %" PRIu64 ", collective %u (%s): %u of %u devices wait, the "
        "first, %" PRId64 ", since %" PRId64 " ns; missing:",
        meeting->gang_id, meeting->collective,
        tow_sim_collective_name(meeting->kind), meeting->present_count,
        meeting->group.size, first->device_id, first->since_ns);
    uint32_t missing = 0;
    for (uint32_t rank = 0; rank < meeting->group.size; rank++)
        if (!tow_sim_meeting_has(meeting, rank) &&
            missing++ < TOW_SIM_SHOWN_DEVICES_MAX)
            add_missing(note, fabric, tow_sim_group_id(&meeting->group, rank));
    if (missing > TOW_SIM_SHOWN_DEVICES_MAX)
        add(note, " and %u more", missing - TOW_SIM_SHOWN_DEVICES_MAX);
    add(note, "\n");
}

const char *tow_sim_fabric_explain(const tow_sim_fabric_t *fabric, char *text,
                                   size_t capacity)
{
    TOW_ASSERT(capacity > 0);
    note_t note = {.text = text, .capacity = capacity};
    text[0] = '\0';
    const tow_list_t *head = &fabric->meetings;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const meeting_t *meeting =
            TOW_CONTAINER_OF(at, const meeting_t, in_fabric);
        if (!meeting->is_running) add_meeting(&note, fabric, meeting);
    }
    return text;
}
