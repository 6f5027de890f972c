/* Rendezvous: members of a collective arrive, wait, and continue or withdraw.
 *
 * The first member makes a rendezvous, and the last frees it. It is open until
 * all have arrived; then no other can join, and the timers of all members are
 * set to the same time. If one withdraws before that, the timers of the others
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
    tow_list_init(&fabric->all_rendezvous);
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
    /* Replaces a value, which needs no memory. */
    if (first == NULL)
        tow_map_remove(&fabric->assignments, assignment->hash);
    else
        TOW_ASSERT(tow_map_put(&fabric->assignments, assignment->hash, first));
    tow_free(assignment);
}

/* -- Devices --------------------------------------------------------------- */

static void await_absent(tow_sim_fabric_t *fabric,
                         const rendezvous_t *rendezvous, uint32_t change)
{
    for (uint32_t rank = 0; rank < rendezvous->group.size; rank++) {
        if (tow_sim_rendezvous_has(rendezvous, rank)) continue;
        uint64_t id = (uint64_t)tow_sim_group_id(&rendezvous->group, rank);
        member_t *member = tow_map_find(&fabric->members, id);
        if (member != NULL) member->awaited_count += change;
    }
}

/* A device that joins again after its host has died, or joins late. */
static void count_awaiting(const tow_sim_fabric_t *fabric, member_t *member)
{
    const tow_list_t *head = &fabric->all_rendezvous;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const rendezvous_t *rendezvous =
            TOW_CONTAINER_OF(at, const rendezvous_t, in_fabric);
        for (uint32_t rank = 0; rank < rendezvous->group.size; rank++)
            if (!tow_sim_rendezvous_has(rendezvous, rank) &&
                tow_sim_group_id(&rendezvous->group, rank) == member->device_id)
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
    tow_list_init(&member->in_rendezvous);
    count_awaiting(fabric, member);
    return TOW_OK;
}

void tow_sim_fabric_leave(tow_sim_fabric_t *fabric, member_t *member)
{
    uint64_t id = (uint64_t)member->device_id;
    if (tow_map_find(&fabric->members, id) != member) return;
    tow_sim_fabric_withdraw(fabric, member);
    tow_map_remove(&fabric->members, id);
}

/* -- Rendezvous ------------------------------------------------------------ */

static uint64_t hash_of(const arrival_t *arrival)
{
    const group_t *group = &arrival->group;
    uint64_t hash = tow_mix64(arrival->gang_id ^ group->assignment->hash);
    hash = tow_mix64(hash ^ arrival->collective);
    return tow_mix64(hash ^ ((uint64_t)group->start << 32 | group->stride));
}

static bool is_same_place(const rendezvous_t *rendezvous,
                          const arrival_t *arrival)
{
    return rendezvous->gang_id == arrival->gang_id &&
           rendezvous->collective == arrival->collective &&
           rendezvous->group.assignment == arrival->group.assignment &&
           rendezvous->group.start == arrival->group.start &&
           rendezvous->group.stride == arrival->group.stride;
}

static rendezvous_t *find_rendezvous(const tow_sim_fabric_t *fabric,
                                     const arrival_t *arrival)
{
    rendezvous_t *rendezvous = tow_map_find(&fabric->open, hash_of(arrival));
    while (rendezvous != NULL && !is_same_place(rendezvous, arrival))
        rendezvous = rendezvous->next_same_hash;
    return rendezvous;
}

static rendezvous_t *make_rendezvous(tow_sim_fabric_t *fabric,
                                     const arrival_t *arrival)
{
    size_t words = (arrival->group.size + 63) / 64;
    rendezvous_t *rendezvous =
        tow_calloc(1, sizeof(*rendezvous) + words * sizeof(uint64_t));
    if (rendezvous == NULL) return NULL;
    rendezvous->hash = hash_of(arrival);
    rendezvous->gang_id = arrival->gang_id;
    rendezvous->collective = arrival->collective;
    rendezvous->kind = arrival->kind;
    rendezvous->bytes = arrival->bytes;
    rendezvous->group = arrival->group;
    rendezvous->next_same_hash = tow_map_find(&fabric->open, rendezvous->hash);
    if (!tow_map_put(&fabric->open, rendezvous->hash, rendezvous)) {
        tow_free(rendezvous);
        return NULL;
    }
    rendezvous->is_open = true;
    rendezvous->is_broken =
        tow_map_find(&fabric->aborted, arrival->gang_id) != NULL;
    rendezvous->group.assignment->reference_count++;
    tow_list_init(&rendezvous->members);
    tow_list_append(&fabric->all_rendezvous, &rendezvous->in_fabric);
    await_absent(fabric, rendezvous, 1);
    return rendezvous;
}

/* No member can join any more. */
static void shut_rendezvous(tow_sim_fabric_t *fabric, rendezvous_t *rendezvous)
{
    if (!rendezvous->is_open) return;
    rendezvous->is_open = false;
    rendezvous_t *first = tow_map_find(&fabric->open, rendezvous->hash);
    rendezvous_t **at = &first;
    while (*at != rendezvous)
        at = &(*at)->next_same_hash;
    *at = rendezvous->next_same_hash;
    if (first == NULL)
        tow_map_remove(&fabric->open, rendezvous->hash);
    else
        TOW_ASSERT(tow_map_put(&fabric->open, rendezvous->hash, first));
}

static void free_rendezvous(tow_sim_fabric_t *fabric, rendezvous_t *rendezvous)
{
    TOW_ASSERT(tow_list_is_empty(&rendezvous->members));
    shut_rendezvous(fabric, rendezvous);
    if (!rendezvous->is_running) await_absent(fabric, rendezvous, UINT32_MAX);
    tow_list_remove(&rendezvous->in_fabric);
    tow_sim_assignment_release(fabric, rendezvous->group.assignment);
    tow_free(rendezvous);
}

static tow_status_t check_agrees(const rendezvous_t *rendezvous,
                                 const member_t *member,
                                 const arrival_t *arrival)
{
    if (rendezvous->kind == arrival->kind &&
        rendezvous->bytes == arrival->bytes &&
        rendezvous->group.size == arrival->group.size &&
        !tow_sim_rendezvous_has(rendezvous, arrival->rank))
        return TOW_OK;
    return TOW_ERROR(
        TOW_FAILED_PRECONDITION,
        "gang %" PRIu64 ", collective %u: device %" PRId64
        " arrives for %s of %" PRIu64 " bytes among %u, and %u others wait for "
        "%s of %" PRIu64 " bytes among %u: the members run different programs, "
        "or two runs have one gang id",
        arrival->gang_id, arrival->collective, member->device_id,
        tow_sim_collective_name(arrival->kind), arrival->bytes,
        arrival->group.size, rendezvous->present_count,
        tow_sim_collective_name(rendezvous->kind), rendezvous->bytes,
        rendezvous->group.size);
}

static uint64_t weigh(uint64_t contribution, uint32_t rank)
{
    return tow_mix64(contribution ^ tow_mix64((uint64_t)rank + 1));
}

/* All have arrived: they continue at the same time. */
static void start_collective(tow_sim_fabric_t *fabric, rendezvous_t *rendezvous)
{
    shut_rendezvous(fabric, rendezvous);
    rendezvous->is_running = true;
    tow_sim_rendezvous_check(rendezvous);
    fabric->counts.collectives++;
    int64_t end_ns = rendezvous->last_ns + (int64_t)rendezvous->duration_ns;
    tow_list_t *head = &rendezvous->members;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        member_t *member = TOW_CONTAINER_OF(at, member_t, in_rendezvous);
        member->combined = rendezvous->combined;
        member->started_ns = rendezvous->last_ns;
        member->end_ns = end_ns;
        tow_env_timer_start(member->env, member->timer, end_ns);
    }
}

static void enter(rendezvous_t *rendezvous, member_t *member,
                  const arrival_t *arrival)
{
    member->rendezvous = rendezvous;
    member->rank = arrival->rank;
    member->since_ns = arrival->now_ns;
    tow_list_append(&rendezvous->members, &member->in_rendezvous);
    rendezvous->present[arrival->rank / 64] |= (uint64_t)1
                                               << arrival->rank % 64;
    rendezvous->present_count++;
    rendezvous->combined += weigh(member->contribution, arrival->rank);
    if (arrival->duration_ns > rendezvous->duration_ns)
        rendezvous->duration_ns = arrival->duration_ns;
    if (arrival->now_ns > rendezvous->last_ns)
        rendezvous->last_ns = arrival->now_ns;
    TOW_ASSERT(member->awaited_count > 0);
    member->awaited_count--;
    tow_sim_rendezvous_check(rendezvous);
}

tow_status_t tow_sim_fabric_arrive(tow_sim_fabric_t *fabric, member_t *member,
                                   const arrival_t *arrival)
{
    TOW_ASSERT(member->rendezvous == NULL &&
               arrival->rank < arrival->group.size);
    TOW_ASSERT(tow_sim_group_id(&arrival->group, arrival->rank) ==
               member->device_id);
    rendezvous_t *rendezvous = find_rendezvous(fabric, arrival);
    if (rendezvous == NULL) rendezvous = make_rendezvous(fabric, arrival);
    if (rendezvous == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(check_agrees(rendezvous, member, arrival));
    enter(rendezvous, member, arrival);
    if (rendezvous->present_count == rendezvous->group.size)
        start_collective(fabric, rendezvous);
    else if (member->awaited_count > 0)
        tow_sim_fabric_find_cycle(fabric, member);
    return TOW_OK;
}

static void leave(tow_sim_fabric_t *fabric, member_t *member)
{
    rendezvous_t *rendezvous = member->rendezvous;
    tow_list_remove(&member->in_rendezvous);
    member->rendezvous = NULL;
    tow_sim_rendezvous_check(rendezvous);
    if (tow_list_is_empty(&rendezvous->members))
        free_rendezvous(fabric, rendezvous);
}

void tow_sim_fabric_depart(tow_sim_fabric_t *fabric, member_t *member)
{
    TOW_ASSERT(member->rendezvous != NULL && member->rendezvous->is_running);
    member->rendezvous->has_departed = true;
    leave(fabric, member);
}

/* The members wait again, for one that never arrives. */
static void stop_collective(rendezvous_t *rendezvous)
{
    rendezvous->is_running = false;
    tow_list_t *head = &rendezvous->members;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        member_t *member = TOW_CONTAINER_OF(at, member_t, in_rendezvous);
        if (member->env != NULL) /* otherwise its host has died */
            tow_env_timer_stop(member->env, member->timer);
    }
}

void tow_sim_fabric_withdraw(tow_sim_fabric_t *fabric, member_t *member)
{
    rendezvous_t *rendezvous = member->rendezvous;
    if (rendezvous == NULL) return;
    if (!rendezvous->has_departed) {
        uint32_t rank = member->rank;
        tow_list_remove(&member->in_rendezvous);
        if (rendezvous->is_running) stop_collective(rendezvous);
        shut_rendezvous(fabric, rendezvous);
        rendezvous->is_broken = true;
        rendezvous->present[rank / 64] &= ~((uint64_t)1 << rank % 64);
        rendezvous->present_count--;
        member->awaited_count++;
    }
    leave(fabric, member);
}

static void break_all_of_gang(tow_sim_fabric_t *fabric, uint64_t gang_id)
{
    tow_list_t *head = &fabric->all_rendezvous;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        rendezvous_t *rendezvous =
            TOW_CONTAINER_OF(at, rendezvous_t, in_fabric);
        if (rendezvous->gang_id == gang_id) rendezvous->is_broken = true;
    }
}

void tow_sim_fabric_abort(tow_sim_fabric_t *fabric, uint64_t gang_id)
{
    break_all_of_gang(fabric, gang_id);
    if (tow_map_find(&fabric->aborted, gang_id) != NULL) return;
    uint64_t *slot =
        &fabric->aborted_ids[fabric->aborted_count % TOW_SIM_ABORTED_GANGS_MAX];
    if (fabric->aborted_count >= TOW_SIM_ABORTED_GANGS_MAX)
        tow_map_remove(&fabric->aborted, *slot);
    /* Without memory the gang is not remembered, and may be reported as a
     * deadlock. */
    if (!tow_map_put(&fabric->aborted, gang_id, fabric)) return;
    *slot = gang_id;
    fabric->aborted_count++;
}

/* -- Reports --------------------------------------------------------------- */

static tow_sim_stuck_t describe(const member_t *member)
{
    const rendezvous_t *rendezvous = member->rendezvous;
    return (tow_sim_stuck_t){.device_id = member->device_id,
                             .gang_id = rendezvous->gang_id,
                             .collective = rendezvous->collective,
                             .kind = rendezvous->kind,
                             .since_ns = member->since_ns,
                             .member_count = rendezvous->group.size,
                             .present_count = rendezvous->present_count};
}

size_t tow_sim_fabric_stuck(const tow_sim_fabric_t *fabric,
                            tow_sim_stuck_t *out_stuck, size_t capacity)
{
    size_t count = 0;
    const tow_list_t *head = &fabric->all_rendezvous;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const rendezvous_t *rendezvous =
            TOW_CONTAINER_OF(at, const rendezvous_t, in_fabric);
        if (rendezvous->is_running) continue;
        const tow_list_t *members = &rendezvous->members;
        for (const tow_list_t *m = members->next; m != members; m = m->next)
            if (count++ < capacity)
                out_stuck[count - 1] = describe(
                    TOW_CONTAINER_OF(m, const member_t, in_rendezvous));
    }
    return count;
}

/* Text that is truncated at its capacity. */
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
        add(note, " (not connected)");
    else if (member->rendezvous != NULL)
        add(note, " (in gang %" PRIu64 ")", member->rendezvous->gang_id);
}

static void add_rendezvous(note_t *note, const tow_sim_fabric_t *fabric,
                           const rendezvous_t *rendezvous)
{
    const member_t *first = TOW_CONTAINER_OF(rendezvous->members.next,
                                             const member_t, in_rendezvous);
    add(note,
        "gang %" PRIu64 ", collective %u (%s): %u of %u devices wait, the "
        "first, %" PRId64 ", since %" PRId64 " ns; missing:",
        rendezvous->gang_id, rendezvous->collective,
        tow_sim_collective_name(rendezvous->kind), rendezvous->present_count,
        rendezvous->group.size, first->device_id, first->since_ns);
    uint32_t missing = 0;
    for (uint32_t rank = 0; rank < rendezvous->group.size; rank++)
        if (!tow_sim_rendezvous_has(rendezvous, rank) &&
            missing++ < TOW_SIM_SHOWN_DEVICES_MAX)
            add_missing(note, fabric,
                        tow_sim_group_id(&rendezvous->group, rank));
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
    const tow_list_t *head = &fabric->all_rendezvous;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const rendezvous_t *rendezvous =
            TOW_CONTAINER_OF(at, const rendezvous_t, in_fabric);
        if (!rendezvous->is_running) add_rendezvous(&note, fabric, rendezvous);
    }
    return text;
}
