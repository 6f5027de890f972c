/* Spilling: idle objects make room on devices, and return when a unit names
 * them.
 *
 * * When the scheduler's oldest ticket lacks memory (tow_ctl_spill_make_room),
 * objects that nothing granted needs are moved to host memory: first those
 * that no queued run names, least recently used first, then those that queued
 * runs name, last use first. All that is needed moves at once, or nothing
 * does. A device's bytes are free when all workers of the object have
 * answered. If objects are in the way that gets read, the ticket waits for
 * these: they are earlier work, as runs are.
 *
 * * A ticket that names a spilled object reserves its bytes too
 * (tow_ctl_spill_weigh), in order like all memory. When it is granted, the
 * object is requested in the stream of grants, before the grant itself
 * (tow_ctl_spill_bring_back). Gets read host memory.
 *
 * * This costs a run nothing while all objects are on their devices: the
 * objects in use are found by scanning all runs, only when memory is short. */
#include "controller/controller_impl.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"

/* An object that is not, or not only, on its devices. */
struct tow_ctl_spill {
    uint64_t number;
    tow_object_t *object; /* borrowed: when discarded, it frees this */
    uint32_t open_count;  /* workers that have not answered */
    bool is_refused;      /* one of them refused */
    bool is_open[];       /* by part of the object's mapping */
};

static tow_ctl_mapping_t *mapping_of(const tow_object_t *object)
{
    return object->placement->context;
}

/* O(parts). */
static void check(const tow_ctl_spill_t *spill)
{
    const bool is_moving = spill->object->residence == TOW_SPILLING ||
                           spill->object->residence == TOW_RETURNING;
    uint32_t open = 0;
    for (uint32_t i = 0; i < mapping_of(spill->object)->part_count; i++)
        open += spill->is_open[i];
    TOW_ASSERT(open == spill->open_count);
    TOW_ASSERT(is_moving == (open > 0));
    TOW_ASSERT(!is_moving || spill->object->hold_count > 0);
}

static tow_ctl_spill_t *find_spill(const tow_controller_t *controller,
                                   const tow_object_t *object)
{
    tow_ctl_spill_t *spill =
        tow_map_find(&controller->spills.by_key, object->id.value);
    TOW_ASSERT(spill != NULL && spill->object == object);
    return spill;
}

static void note_weighing(tow_controller_t *controller)
{
    tow_sched_set_updating_parts(
        controller->sched, tow_map_count(&controller->spills.by_key) > 0 ||
                               controller->spills.weighed_count > 0);
}

/* -- Objects in transit ---------------------------------------------------- */

/* Counts objects in transit on each island of the object. */
static void count_moving(tow_controller_t *controller,
                         const tow_object_t *object, int change)
{
    size_t *counts = object->residence == TOW_SPILLING
                         ? controller->spills.spilling_count
                         : controller->spills.returning_count;
    for (uint64_t set = object->placement->islands; set != 0; set &= set - 1)
        counts[__builtin_ctzll(set)] += (size_t)change;
}

static bool is_any_moving(const size_t *counts, const tow_ticket_t *ticket)
{
    uint64_t islands = 0;
    for (size_t p = 0; p < ticket->part_count; p++)
        islands |= ticket->parts[p].placement->islands;
    for (; islands != 0; islands &= islands - 1)
        if (counts[__builtin_ctzll(islands)] > 0) return true;
    return false;
}

static void discard_spill(tow_controller_t *controller, tow_ctl_spill_t *spill)
{
    tow_map_remove(&controller->spills.by_key, spill->object->id.value);
    tow_free(spill);
    note_weighing(controller);
}

static void send(tow_ctl_worker_t *worker, const tow_ctl_spill_t *spill)
{
    if (spill->object->residence == TOW_SPILLING) {
        tow_msg_spill_t message = TOW_MSG_SPILL_INIT;
        message.object = spill->object->id.value;
        message.spill = spill->number;
        tow_ctl_worker_send(worker, TOW_MESSAGE_SPILL, &message.base);
    } else {
        tow_msg_unspill_t message = TOW_MSG_UNSPILL_INIT;
        message.object = spill->object->id.value;
        message.spill = spill->number;
        tow_ctl_worker_send(worker, TOW_MESSAGE_UNSPILL, &message.base);
    }
}

/* Notifies all its connected workers: if one has disconnected, the object has
 * failed or is about to. The object is held until they have answered, because
 * its memory is in use until then. */
static void notify_workers(tow_controller_t *controller, tow_ctl_spill_t *spill)
{
    const tow_ctl_mapping_t *mapping = mapping_of(spill->object);
    TOW_ASSERT(spill->open_count == 0);
    for (uint32_t i = 0; i < mapping->part_count; i++) {
        tow_ctl_worker_t *worker = mapping->parts[i].worker;
        if (worker->session == NULL) continue;
        spill->is_open[i] = true;
        spill->open_count++;
        send(worker, spill);
    }
    TOW_ASSERT(spill->open_count > 0);
    tow_object_hold(spill->object);
    count_moving(controller, spill->object, 1);
    check(spill);
}

/* -- Answers ------------------------------------------------------------------- */

static void end_return(tow_controller_t *controller, tow_ctl_spill_t *spill)
{
    tow_object_t *object = spill->object;
    tow_object_end_return(controller->object_table, object);
    if (spill->is_refused && !object->pinned) {
        object->pinned = true;
        controller->spills.pinned_count++;
    }
    discard_spill(controller, spill);
}

/* All its workers have answered or disconnected. If one refused, the others
 * bring their shards back: an object is spilled whole or not at all. */
static void settle(tow_controller_t *controller, tow_ctl_spill_t *spill)
{
    tow_object_t *object = spill->object;
    count_moving(controller, object, -1);
    tow_sched_notify(controller->sched, object->placement);
    if (object->residence == TOW_RETURNING) {
        end_return(controller, spill);
    } else if (!spill->is_refused || object->placement->disconnected) {
        tow_object_end_spill(object);
        controller->spills.total_count++;
    } else {
        tow_object_begin_return(object);
        notify_workers(controller, spill);
    }
    tow_object_unhold(controller->object_table, object);
}

static void answer(tow_controller_t *controller, tow_ctl_spill_t *spill,
                   uint32_t part, tow_status_t take_status)
{
    tow_object_t *object = spill->object;
    spill->is_open[part] = false;
    spill->open_count--;
    if (take_status != TOW_OK && object->residence == TOW_RETURNING)
        tow_object_fail(object, take_status);
    else if (take_status != TOW_OK)
        spill->is_refused = true;
    tow_status_release(take_status);
    if (spill->open_count == 0) settle(controller, spill);
}

static bool find_part(const tow_ctl_spill_t *spill,
                      const tow_ctl_worker_t *worker, uint32_t *out_part)
{
    const tow_ctl_mapping_t *mapping = mapping_of(spill->object);
    for (uint32_t i = 0; i < mapping->part_count; i++)
        if (mapping->parts[i].worker == worker && spill->is_open[i]) {
            *out_part = i;
            return true;
        }
    return false;
}

/* Ignores answers about an object that was released in the meantime. */
void tow_ctl_spill_done(tow_ctl_worker_t *worker,
                        const tow_msg_spill_done_t *message)
{
    tow_controller_t *controller = worker->controller;
    tow_ctl_spill_t *spill =
        tow_map_find(&controller->spills.by_key, message->object);
    uint32_t part;
    if (spill == NULL || spill->number != message->spill ||
        !find_part(spill, worker, &part))
        return;
    answer(controller, spill, part, tow_failure_status(message->failure));
}

/* The worker's accounts are closed, so the objects have failed. */
void tow_ctl_spills_on_disconnect(tow_controller_t *controller,
                                  tow_ctl_worker_t *worker)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->spills.by_key, &cursor, &key, &value)) {
        uint32_t part;
        if (find_part(value, worker, &part))
            answer(controller, value, part, TOW_OK);
    }
}

/* Objects that were not spilled because they shared memory may not share it
 * any more. */
static void clear_pinned(tow_controller_t *controller)
{
    size_t cursor = 0;
    for (tow_object_t *object;
         (object = tow_object_table_next(controller->object_table, &cursor)) !=
         NULL;)
        object->pinned = false;
    controller->spills.pinned_count = 0;
}

void tow_ctl_spill_object_discarded(tow_controller_t *controller,
                                    tow_object_t *object)
{
    if (TOW_UNLIKELY(controller->spills.pinned_count > 0))
        clear_pinned(controller);
    if (TOW_LIKELY(object->residence == TOW_ON_DEVICE)) return;
    tow_ctl_spill_t *spill = find_spill(controller, object);
    TOW_ASSERT(spill->open_count == 0);
    discard_spill(controller, spill);
}

void tow_ctl_spills_check(const tow_controller_t *controller)
{
    size_t cursor = 0, moving[TOW_ISLANDS_MAX] = {0};
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->spills.by_key, &cursor, &key, &value)) {
        const tow_ctl_spill_t *spill = value;
        check(spill);
        if (spill->open_count == 0) continue;
        for (uint64_t set = spill->object->placement->islands; set != 0;
             set &= set - 1)
            moving[__builtin_ctzll(set)]++;
    }
    for (size_t i = 0; i < TOW_ISLANDS_MAX; i++)
        TOW_ASSERT(moving[i] == controller->spills.spilling_count[i] +
                                    controller->spills.returning_count[i]);
}

void tow_ctl_spills_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->spills.by_key, &cursor, &key, &value))
        tow_free(value);
    tow_map_deinit(&controller->spills.by_key);
    tow_status_release(controller->spills.room_error);
}

/* -- Memory that a ticket reserves ----------------------------------------- */

/* The objects and memory that a unit needs on its devices. */
typedef struct unit_needs {
    tow_object_t *const *objects;
    size_t object_count;
    const tow_ticket_part_t *parts;
    size_t part_count;
} unit_needs_t;

static unit_needs_t needs_of(const tow_ctl_unit_t *unit)
{
    if (unit->kind == UNIT_RUN) {
        const tow_ctl_run_t *run = (const tow_ctl_run_t *)unit;
        return (unit_needs_t){run->arguments, run->argument_count,
                              run->program->parts, run->program->mapping_count};
    }
    unit_needs_t needs = {0};
    if (unit->kind == UNIT_ASSEMBLY)
        tow_ctl_assembly_needs((const tow_ctl_assembly_t *)unit, &needs.objects,
                               &needs.object_count, &needs.parts);
    needs.part_count = needs.parts != NULL;
    return needs;
}

static void clear_scratch(const unit_needs_t *needs)
{
    for (size_t i = 0; i < needs->object_count; i++)
        needs->objects[i]->scratch = false;
}

static bool needs_return(const tow_object_t *object)
{
    return object->residence == TOW_SPILLED &&
           object->state != TOW_OBJECT_FAILED;
}

void tow_ctl_spill_unweigh(tow_controller_t *controller, tow_ctl_unit_t *unit)
{
    if (TOW_LIKELY(unit->weighed == NULL)) return;
    const unit_needs_t needs = needs_of(unit);
    tow_free(unit->weighed);
    unit->weighed = NULL;
    unit->ticket.parts = needs.parts;
    unit->ticket.part_count = needs.part_count;
    controller->spills.weighed_count--;
    note_weighing(controller);
}

/* Its own parts, and one for each object that must return. */
static bool weigh(tow_controller_t *controller, tow_ctl_unit_t *unit,
                  const unit_needs_t *needs)
{
    if (unit->weighed == NULL) {
        unit->weighed = tow_calloc(needs->part_count + needs->object_count,
                                   sizeof(*unit->weighed));
        if (unit->weighed == NULL) return false;
        controller->spills.weighed_count++;
    }
    size_t count = 0;
    for (; count < needs->part_count; count++)
        unit->weighed[count] = needs->parts[count];
    for (size_t i = 0; i < needs->object_count; i++) {
        tow_object_t *object = needs->objects[i];
        if (!needs_return(object) || object->scratch) continue;
        object->scratch = true;
        unit->weighed[count++] = (tow_ticket_part_t){
            .placement = object->placement, .bytes = object->bytes};
    }
    clear_scratch(needs);
    unit->ticket.parts = unit->weighed;
    unit->ticket.part_count = count;
    return true;
}

/* If there is no memory for the parts, it waits: the scheduler tries again
 * whenever something ends. */
bool tow_ctl_spill_weigh(void *context, tow_ticket_t *ticket)
{
    tow_controller_t *controller = context;
    tow_ctl_unit_t *unit = TOW_CONTAINER_OF(ticket, tow_ctl_unit_t, ticket);
    const unit_needs_t needs = needs_of(unit);
    bool is_any_spilled = false;
    for (size_t i = 0; i < needs.object_count; i++) {
        if (needs.objects[i]->residence == TOW_SPILLING) return false;
        is_any_spilled |= needs_return(needs.objects[i]);
    }
    if (is_any_spilled) return weigh(controller, unit, &needs);
    tow_ctl_spill_unweigh(controller, unit);
    return true;
}

/* The reservation for spilled objects passes to the objects. */
void tow_ctl_spill_bring_back(tow_controller_t *controller,
                              tow_ctl_unit_t *unit)
{
    if (TOW_LIKELY(unit->weighed == NULL)) return;
    const unit_needs_t needs = needs_of(unit);
    for (size_t i = needs.part_count; i < unit->ticket.part_count; i++)
        tow_placement_unreserve(unit->ticket.parts[i].placement,
                                unit->ticket.parts[i].bytes);
    for (size_t i = 0; i < needs.object_count; i++) {
        tow_object_t *object = needs.objects[i];
        if (!needs_return(object)) continue;
        tow_object_begin_return(object);
        notify_workers(controller, find_spill(controller, object));
    }
    tow_ctl_spill_unweigh(controller, unit);
}

/* -- Making room ---------------------------------------------------------------- */

/* Writes to the accounts' scratch what the ticket would lack if all work under
 * way had finished and left nothing. False: nothing is lacking. */
static bool note_deficits(const tow_ticket_t *ticket)
{
    bool is_short = false;
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            uint64_t *bytes = &placement->accounts[i]->scratch_bytes_;
            if (__builtin_add_overflow(*bytes, ticket->parts[p].bytes, bytes))
                *bytes = UINT64_MAX;
        }
    }
    /* The mark avoids computing the deficit of an account twice. */
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            if (account->scratch_sum_ != 0) continue;
            account->scratch_sum_ = 1;
            const uint64_t limit =
                account->limit_bytes != 0 ? account->limit_bytes : UINT64_MAX;
            const uint64_t free_bytes = limit > account->object_bytes
                                            ? limit - account->object_bytes
                                            : 0;
            const uint64_t need = account->scratch_bytes_;
            account->scratch_bytes_ = need > free_bytes ? need - free_bytes : 0;
            is_short |= account->scratch_bytes_ > 0;
        }
    }
    return is_short;
}

static void clear_deficits(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            placement->accounts[i]->scratch_bytes_ = 0;
            placement->accounts[i]->scratch_sum_ = 0;
        }
    }
}

/* Subtracts its bytes from the deficits. True: that reduces one. */
static bool cover(const tow_object_t *object)
{
    bool helps = false;
    for (size_t i = 0; i < object->placement->device_count; i++) {
        uint64_t *deficit = &object->placement->accounts[i]->scratch_bytes_;
        helps |= *deficit > 0;
        *deficit -= *deficit < object->bytes ? *deficit : object->bytes;
    }
    return helps;
}

static bool would_help(const tow_object_t *object)
{
    for (size_t i = 0; i < object->placement->device_count; i++)
        if (object->placement->accounts[i]->scratch_bytes_ > 0) return true;
    return false;
}

static bool is_covered(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++)
            if (placement->accounts[i]->scratch_bytes_ > 0) return false;
    }
    return true;
}

static void mark_needs(const tow_ctl_unit_t *unit)
{
    const unit_needs_t needs = needs_of(unit);
    for (size_t i = 0; i < needs.object_count; i++)
        needs.objects[i]->scratch = true;
}

/* Marks what granted runs, gets and the ticket itself need. Consumed arguments
 * are freed with their runs and need not be spilled. */
static void mark_busy(tow_controller_t *controller, const tow_ctl_unit_t *unit)
{
    for (tow_list_t *item = controller->runs.list.next;
         item != &controller->runs.list; item = item->next) {
        const tow_ctl_run_t *run = TOW_CONTAINER_OF(item, tow_ctl_run_t, node);
        if (!run->is_granted) continue;
        for (size_t i = 0; i < run->argument_count; i++) {
            tow_object_t *object = run->arguments[i];
            if (object->consumed && object->counted && !object->scratch)
                (void)cover(object);
            object->scratch = true;
        }
    }
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->gets.by_number, &cursor, &key, &value))
        ((tow_ctl_get_t *)value)->object->scratch = true;
    mark_needs(unit);
}

static bool may_move(const tow_object_t *object)
{
    return object->state == TOW_OBJECT_READY && object->counted &&
           object->residence == TOW_ON_DEVICE && !object->pinned &&
           !object->discarded && object->bytes > 0 &&
           object->context == &tow_ctl_object_is_placed &&
           !object->placement->disconnected;
}

static bool is_idle(const tow_object_t *object)
{
    return !object->scratch && may_move(object);
}

/* Gets under way read objects that could be spilled otherwise, and that would
 * reduce the remaining deficits. A get waits for no memory, so it ends, and then
 * the scheduler asks again. */
static bool is_held_by_gets(tow_controller_t *controller,
                            const tow_ctl_unit_t *unit)
{
    const unit_needs_t needs = needs_of(unit);
    bool is_held = false;
    mark_needs(unit);
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->gets.by_number, &cursor, &key, &value)) {
        const tow_ctl_get_t *get = value;
        is_held |= get->worker != NULL && is_idle(get->object) &&
                   would_help(get->object);
    }
    clear_scratch(&needs);
    return is_held;
}

void tow_ctl_spill_on_get_end(tow_controller_t *controller)
{
    if (TOW_LIKELY(!controller->spills.awaits_gets)) return;
    controller->spills.awaits_gets = false;
    tow_sched_notify(controller->sched, NULL);
    tow_controller_touch(controller);
}

/* Objects that no unit waits for come first, least recently used first; then
 * the others, last queued use first. */
static int compare(const void *left, const void *right)
{
    const tow_object_t *a = *(tow_object_t *const *)left;
    const tow_object_t *b = *(tow_object_t *const *)right;
    const bool is_a_awaited = a->hold_count > 0;
    if (is_a_awaited != (b->hold_count > 0)) return is_a_awaited ? 1 : -1;
    if (a->mark != b->mark) return (a->mark < b->mark) != is_a_awaited ? -1 : 1;
    return a->id.value < b->id.value ? -1 : a->id.value > b->id.value;
}

typedef TOW_VEC(tow_object_t *) object_vec_t;

/* All candidates that reduce a deficit, best first. Clears the marks. */
static bool find_idle(tow_controller_t *controller, object_vec_t *out_idle)
{
    size_t cursor = 0;
    bool has_memory = true;
    for (tow_object_t *object;
         (object = tow_object_table_next(controller->object_table, &cursor)) !=
         NULL;) {
        if (is_idle(object) && would_help(object) && has_memory)
            has_memory = tow_vec_push(out_idle, object);
        object->scratch = false;
    }
    if (out_idle->count > 1)
        qsort(out_idle->items, out_idle->count, sizeof(*out_idle->items),
              compare);
    return has_memory;
}

/* Cancels the move: the object stays on its devices. */
static void unbook(tow_controller_t *controller, tow_object_t *object)
{
    tow_object_begin_return(object);
    tow_object_end_return(controller->object_table, object);
}

/* Its host memory is reserved already. */
static bool start(tow_controller_t *controller, tow_object_t *object)
{
    const tow_ctl_mapping_t *mapping = mapping_of(object);
    tow_ctl_spill_t *spill =
        tow_calloc(1, sizeof(*spill) + mapping->part_count);
    if (spill == NULL ||
        !tow_map_put(&controller->spills.by_key, object->id.value, spill)) {
        tow_free(spill);
        unbook(controller, object);
        return false;
    }
    spill->number = ++controller->spills.number;
    spill->object = object;
    notify_workers(controller, spill);
    return true;
}

static void say_short_host(tow_controller_t *controller,
                           const tow_host_memory_t *host)
{
    tow_status_release(controller->spills.room_error);
    controller->spills.room_error =
        host->number == 0
            ? TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                        "idle objects cannot be spilled: their workers have "
                        "no host memory for it (tow worker --host-memory)")
            : TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                        "idle objects cannot be spilled: of their worker's "
                        "%" PRIu64 " bytes of host memory %" PRIu64
                        " are taken",
                        host->limit_bytes, host->spilled_bytes);
}

/* Selects the objects to spill and reserves host memory for them; selects none
 * if they would not suffice. */
static void book(tow_controller_t *controller, const tow_ticket_t *ticket,
                 object_vec_t *idle)
{
    size_t count = 0;
    for (size_t i = 0; i < idle->count; i++) {
        tow_object_t *object = idle->items[i];
        if (!would_help(object)) continue;
        const tow_host_memory_t *host =
            tow_object_full_host(controller->object_table, object);
        if (host != NULL) {
            say_short_host(controller, host);
            continue;
        }
        tow_object_begin_spill(controller->object_table, object);
        (void)cover(object);
        idle->items[count++] = object;
    }
    idle->count = count;
    if (is_covered(ticket)) return;
    while (idle->count > 0)
        unbook(controller, idle->items[--idle->count]);
}

static bool spill_idle(tow_controller_t *controller, const tow_ctl_unit_t *unit)
{
    object_vec_t idle = {0};
    bool is_any = false;
    mark_busy(controller, unit);
    if (find_idle(controller, &idle))
        book(controller, &unit->ticket, &idle);
    else
        idle.count = 0;
    for (size_t i = 0; i < idle.count; i++)
        is_any |= start(controller, idle.items[i]);
    if (is_any) note_weighing(controller);
    tow_vec_deinit(&idle);
    if (is_any || !is_held_by_gets(controller, unit)) return is_any;
    controller->spills.awaits_gets = true;
    return true;
}

/* One batch at a time: when the objects in transit have arrived, the scheduler
 * asks again. */
bool tow_ctl_spill_make_room(void *context, tow_ticket_t *ticket)
{
    tow_controller_t *controller = context;
    tow_status_release(controller->spills.room_error);
    controller->spills.room_error = TOW_OK;
    if (is_any_moving(controller->spills.spilling_count, ticket)) return true;
    const bool is_coming =
        note_deficits(ticket) &&
        spill_idle(controller,
                   TOW_CONTAINER_OF(ticket, tow_ctl_unit_t, ticket));
    clear_deficits(ticket);
    return is_coming ||
           is_any_moving(controller->spills.returning_count, ticket);
}

tow_status_t tow_ctl_spill_explain(tow_controller_t *controller,
                                   tow_status_t take_refusal)
{
    if (controller->spills.room_error == TOW_OK ||
        tow_status_code(take_refusal) != TOW_RESOURCE_EXHAUSTED)
        return take_refusal;
    tow_status_t status = tow_status_annotate(
        take_refusal, "%s", tow_status_message(controller->spills.room_error));
    tow_status_release(controller->spills.room_error);
    controller->spills.room_error = TOW_OK;
    return status;
}
