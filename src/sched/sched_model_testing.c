/* See sched_model_testing_impl.h. Plain loops over everything; the order of the
 * functions follows a decision from its data to the pass. */
#include "sched/sched_model_testing_impl.h"

#include "base/testing.h"

void sched_model_init(sched_model_t *model)
{
    for (size_t i = 0; i < MODEL_ISLANDS; i++)
        model->islands[i] =
            (model_island_t){MODEL_NONE, MODEL_NONE, MODEL_NONE};
}

/* -- What a ticket takes --------------------------------------------------- */

static model_islands_t bit(uint32_t island)
{
    return (model_islands_t)1 << island;
}

bool sched_model_is_on_island(const model_ticket_t *ticket, uint32_t island)
{
    return (ticket->islands & bit(island)) != 0;
}

size_t sched_model_under_way(const model_ticket_t *ticket)
{
    return ticket->granted_count - ticket->ended_count;
}

size_t sched_model_gangs_on(const sched_model_t *model, size_t ticket,
                            size_t piece, size_t device)
{
    const model_ticket_t *entry = &model->tickets[ticket];
    size_t count = 0;
    for (size_t p = 0; p < entry->part_count; p++)
        count += model->is_on[entry->placements[p]][device] &&
                 entry->steps[piece][p] > 0;
    return count;
}

static uint64_t ns_on(const sched_model_t *model, const model_ticket_t *entry,
                      size_t piece, size_t device)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < entry->part_count; p++) {
        const uint32_t steps = entry->steps[piece][p];
        if (!model->is_on[entry->placements[p]][device] || steps == 0) continue;
        sum += entry->is_of_unknown_duration ? MODEL_RUN_AHEAD_NS : steps;
    }
    return sum;
}

static uint64_t bytes_on(const sched_model_t *model,
                         const model_ticket_t *entry, size_t device)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < entry->part_count; p++)
        if (model->is_on[entry->placements[p]][device]) sum += entry->bytes[p];
    return sum;
}

static bool has_part_on(const sched_model_t *model, const model_ticket_t *entry,
                        size_t device)
{
    for (size_t p = 0; p < entry->part_count; p++)
        if (model->is_on[entry->placements[p]][device]) return true;
    return false;
}

/* A new ticket needs all its devices, because of its memory; afterwards, a piece
 * needs those where it has steps. */
static bool needs(const sched_model_t *model, const model_ticket_t *entry,
                  size_t device)
{
    return entry->state == TOW_TICKET_PARTLY
               ? ns_on(model, entry, entry->granted_count, device) > 0
               : has_part_on(model, entry, device);
}

static model_islands_t islands_of_placement(const sched_model_t *model,
                                            size_t placement)
{
    model_islands_t set = 0;
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        if (model->is_on[placement][d]) set |= bit(model->devices[d].island);
    return set;
}

static model_islands_t islands_of(const sched_model_t *model,
                                  const model_ticket_t *entry)
{
    model_islands_t set = 0;
    for (size_t p = 0; p < entry->part_count; p++)
        set |= islands_of_placement(model, entry->placements[p]);
    return entry->part_count == 0 ? bit(0) : set;
}

/* -- Which tickets are ready ----------------------------------------------- */

static model_islands_t closed_islands(const sched_model_t *model)
{
    model_islands_t set = 0;
    for (uint32_t i = 0; i < model->island_count; i++)
        if (model->islands[i].chosen != MODEL_NONE) set |= bit(i);
    return set;
}

static bool is_chosen(const sched_model_t *model, size_t ticket)
{
    for (uint32_t i = 0; i < model->island_count; i++)
        if (model->islands[i].chosen == ticket) return true;
    return false;
}

/* No earlier ticket of its client is queued on one of its islands. */
static bool is_first(const sched_model_t *model, const model_ticket_t *entry)
{
    for (size_t t = 0; t < MODEL_TICKETS; t++) {
        const model_ticket_t *other = &model->tickets[t];
        if (other->state == TOW_TICKET_QUEUED &&
            other->client == entry->client && other->arrival < entry->arrival &&
            (other->islands & entry->islands) != 0)
            return false;
    }
    return true;
}

static bool is_ready(const sched_model_t *model, size_t ticket)
{
    const model_ticket_t *entry = &model->tickets[ticket];
    if (entry->state == TOW_TICKET_PARTLY)
        return sched_model_under_way(entry) < TOW_SCHED_PIECES_MAX;
    return entry->state == TOW_TICKET_QUEUED && entry->blockers == 0 &&
           !is_chosen(model, ticket) && is_first(model, entry);
}

/* It is no longer ready, or no longer waits for memory. */
static void leave(sched_model_t *model, size_t ticket)
{
    model->tickets[ticket].wait = MODEL_NOT_ASKED;
    for (uint32_t i = 0; i < model->island_count; i++) {
        model_island_t *island = &model->islands[i];
        if (island->chosen == ticket) island->chosen = MODEL_NONE;
        if (island->head == ticket) island->head = MODEL_NONE;
        if (island->former_head == ticket) island->former_head = MODEL_NONE;
    }
}

/* -- Granting and refusing ------------------------------------------------- */

static void add_event(sched_model_t *model, model_event_t event)
{
    assert_true(model->event_count < MODEL_EVENTS_MAX);
    model->events[model->event_count++] = event;
}

/* Those that it held may go on, wherever they are. */
static void leave_partly(sched_model_t *model, const model_ticket_t *entry)
{
    model->freed |= entry->islands;
    for (size_t t = 0; t < MODEL_TICKETS; t++)
        if (model->tickets[t].wait == MODEL_WAITS_FOR_OTHERS)
            model->freed |= model->tickets[t].islands;
}

static void become_ready_again(sched_model_t *model, model_ticket_t *entry)
{
    entry->arrival = ++model->arrival_last;
    entry->overtaken = 0;
}

static void overtake(sched_model_t *model, size_t ticket)
{
    for (uint32_t i = 0; i < model->island_count; i++) {
        const size_t former = model->islands[i].former_head;
        if (sched_model_is_on_island(&model->tickets[ticket], i) &&
            former != MODEL_NONE && former != ticket)
            model->tickets[former].overtaken++;
    }
}

static void occupy(sched_model_t *model, size_t ticket, size_t piece)
{
    const model_ticket_t *entry = &model->tickets[ticket];
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        model_device_t *device = &model->devices[d];
        device->queued_ns += ns_on(model, entry, piece, d);
        device->gang_count +=
            (uint32_t)sched_model_gangs_on(model, ticket, piece, d);
        if (piece == 0) device->reserved_bytes += bytes_on(model, entry, d);
    }
}

static void count_grant(sched_model_t *model, const model_ticket_t *entry)
{
    model->counts.pieces++;
    model->counts.spanning += (entry->islands & (entry->islands - 1)) != 0;
    model->counts.partly_where_closed +=
        (closed_islands(model) & entry->islands) != 0;
}

static void grant(sched_model_t *model, size_t ticket)
{
    model_ticket_t *entry = &model->tickets[ticket];
    const size_t piece = entry->granted_count;
    leave(model, ticket);
    count_grant(model, entry);
    overtake(model, ticket);
    occupy(model, ticket, piece);
    entry->granted_count++;
    const bool is_last = entry->granted_count == entry->piece_count;
    if (is_last && entry->state == TOW_TICKET_PARTLY)
        leave_partly(model, entry);
    entry->state = is_last ? TOW_TICKET_GRANTED : TOW_TICKET_PARTLY;
    if (model->is_round_robin) model->client_last = entry->client;
    add_event(model, (model_event_t){ticket, piece, false});
    if (entry->granted_count == entry->stopped_at)
        sched_model_stop(model, ticket);
    if (is_ready(model, ticket)) become_ready_again(model, entry);
}

static void refuse(sched_model_t *model, size_t ticket)
{
    leave(model, ticket);
    model->tickets[ticket].state = TOW_TICKET_IDLE;
    model->counts.refused++;
    add_event(model, (model_event_t){ticket, 0, true});
}

/* -- Verdicts -------------------------------------------------------------- */

static bool is_lost(const sched_model_t *model, const model_ticket_t *entry)
{
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        if (model->devices[d].is_disconnected && has_part_on(model, entry, d))
            return true;
    return false;
}

static bool has_room(const sched_model_t *model, const model_ticket_t *entry)
{
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        const model_device_t *device = &model->devices[d];
        const uint64_t ns = ns_on(model, entry, entry->granted_count, d);
        if (!needs(model, entry, d)) continue;
        if (device->is_marked) return false;
        if (ns == 0 || device->gang_count < model->gang_count_min) continue;
        if (device->gang_count >= model->gang_count_max ||
            device->queued_ns + ns > MODEL_RUN_AHEAD_NS)
            return false;
    }
    return true;
}

static bool has_memory(const sched_model_t *model, const model_ticket_t *entry)
{
    if (entry->state == TOW_TICKET_PARTLY) return true;
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        const model_device_t *device = &model->devices[d];
        const uint64_t bytes = bytes_on(model, entry, d);
        if (bytes > 0 &&
            device->reserved_bytes + device->ballast_bytes + bytes >
                MODEL_LIMIT_BYTES)
            return false;
    }
    return true;
}

static bool is_anything_under_way(const sched_model_t *model,
                                  model_islands_t islands)
{
    for (size_t t = 0; t < MODEL_TICKETS; t++) {
        const model_ticket_t *entry = &model->tickets[t];
        if ((entry->state == TOW_TICKET_PARTLY ||
             entry->state == TOW_TICKET_GRANTED) &&
            (entry->islands & islands) != 0)
            return true;
    }
    return false;
}

static bool is_held(const sched_model_t *model, const model_ticket_t *entry)
{
    return entry->state == TOW_TICKET_QUEUED && entry->holder != MODEL_NONE &&
           model->tickets[entry->holder].state == TOW_TICKET_PARTLY;
}

static bool has_placement(const model_ticket_t *entry, size_t placement)
{
    for (size_t p = 0; p < entry->part_count; p++)
        if (entry->placements[p] == placement &&
            (entry->state == TOW_TICKET_QUEUED ||
             entry->steps[entry->granted_count][p] > 0))
            return true;
    return false;
}

/* The head has marked its only placement: the scheduler looks no further, and
 * does not learn that the ticket is held, or can never run. */
static bool is_behind_head(const sched_model_t *model,
                           const model_ticket_t *entry)
{
    if (entry->part_count != 1 || entry->state != TOW_TICKET_QUEUED)
        return false;
    for (uint32_t i = 0; i < model->island_count; i++)
        if (entry->islands == bit(i) && model->islands[i].head != MODEL_NONE &&
            has_placement(&model->tickets[model->islands[i].head],
                          entry->placements[0]))
            return true;
    return false;
}

/* -- Serving one ticket ---------------------------------------------------- */

static void wait_for_memory(sched_model_t *model, size_t ticket)
{
    leave(model, ticket);
    for (uint32_t i = 0; i < model->island_count; i++)
        if (sched_model_is_on_island(&model->tickets[ticket], i))
            model->islands[i].chosen = ticket;
    model->counts.waited_for_memory++;
}

/* The first of a scan on all its islands; its devices are marked. */
static void become_head(sched_model_t *model, size_t ticket)
{
    const model_ticket_t *entry = &model->tickets[ticket];
    for (uint32_t i = 0; i < model->island_count; i++)
        if (sched_model_is_on_island(entry, i) &&
            model->islands[i].head != MODEL_NONE)
            return;
    for (uint32_t i = 0; i < model->island_count; i++)
        if (sched_model_is_on_island(entry, i)) model->islands[i].head = ticket;
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        model->devices[d].is_marked |= needs(model, entry, d);
}

static void wait_for_room(sched_model_t *model, size_t ticket)
{
    model->tickets[ticket].wait = MODEL_WAITS_FOR_ROOM;
    model->waited |= model->tickets[ticket].islands;
    become_head(model, ticket);
}

static void wait_for_others(sched_model_t *model, size_t ticket)
{
    model->tickets[ticket].wait = MODEL_WAITS_FOR_OTHERS;
    model->waited |= model->tickets[ticket].islands;
    model->counts.held++;
}

static void serve(sched_model_t *model, size_t ticket)
{
    const model_ticket_t *entry = &model->tickets[ticket];
    const bool is_new = entry->state == TOW_TICKET_QUEUED;
    const bool is_closed = (closed_islands(model) & entry->islands) != 0;
    model->counts.closed_waiters += is_new && is_closed;
    if (is_behind_head(model, entry))
        wait_for_room(model, ticket);
    else if (is_new && is_lost(model, entry))
        refuse(model, ticket);
    else if (is_new && is_closed)
        wait_for_room(model, ticket);
    else if (is_held(model, entry))
        wait_for_others(model, ticket);
    else if (!has_room(model, entry))
        wait_for_room(model, ticket);
    else if (has_memory(model, entry))
        grant(model, ticket);
    else if (is_anything_under_way(model, entry->islands))
        wait_for_memory(model, ticket);
    else
        refuse(model, ticket);
}

/* -- Scans ----------------------------------------------------------------- */

/* With all islands that a ready ticket, or one that waits for memory, joins. */
static model_islands_t joined(const sched_model_t *model, model_islands_t set)
{
    for (size_t t = 0; t < MODEL_TICKETS; t++) {
        const model_islands_t islands = model->tickets[t].islands;
        if ((set & islands) == 0 || (islands & ~set) == 0) continue;
        if (is_ready(model, t) || is_chosen(model, t))
            return joined(model, set | islands);
    }
    return set;
}

static void ask_again(sched_model_t *model, model_islands_t set)
{
    for (uint32_t i = 0; i < model->island_count; i++) {
        model_island_t *island = &model->islands[i];
        if ((set & bit(i)) == 0) continue;
        if (island->head != MODEL_NONE) island->former_head = island->head;
        island->head = MODEL_NONE;
    }
    for (size_t t = 0; t < MODEL_TICKETS; t++)
        if ((model->tickets[t].islands & set) != 0)
            model->tickets[t].wait = MODEL_NOT_ASKED;
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        if ((bit(model->devices[d].island) & set) != 0)
            model->devices[d].is_marked = false;
    model->waited &= ~set;
}

static size_t older(const sched_model_t *model, size_t a, size_t b)
{
    if (a == MODEL_NONE) return b;
    if (b == MODEL_NONE) return a;
    return model->tickets[b].arrival < model->tickets[a].arrival ? b : a;
}

/* Each once, in order of arrival. */
static void serve_those_short_of_memory(sched_model_t *model,
                                        model_islands_t set)
{
    for (;;) {
        size_t oldest = MODEL_NONE;
        for (uint32_t i = 0; i < model->island_count; i++)
            if ((set & bit(i)) != 0)
                oldest = older(model, oldest, model->islands[i].chosen);
        if (oldest == MODEL_NONE) return;
        set &= ~model->tickets[oldest].islands;
        leave(model, oldest);
        serve(model, oldest);
    }
}

static void serve_overtaken(sched_model_t *model, model_islands_t set)
{
    for (uint32_t i = 0; i < model->island_count; i++) {
        const size_t former = model->islands[i].former_head;
        if ((set & bit(i)) == 0 || former == MODEL_NONE) continue;
        const model_ticket_t *entry = &model->tickets[former];
        if (entry->overtaken < model->overtaken_max ||
            (entry->islands & closed_islands(model)) != 0)
            continue;
        model->counts.overtaken_served++;
        serve(model, former);
    }
}

static void scan(sched_model_t *model)
{
    const model_islands_t set =
        joined(model, model->freed & (model->waited | closed_islands(model)));
    model->freed = 0;
    ask_again(model, set);
    serve_those_short_of_memory(model, set);
    serve_overtaken(model, set);
}

/* -- Choosing -------------------------------------------------------------- */

size_t sched_model_distance(size_t last, size_t client)
{
    return (client + MODEL_CLIENTS - last - 1) % MODEL_CLIENTS;
}

static size_t preferred(const sched_model_t *model, size_t a, size_t b)
{
    if (a == MODEL_NONE || !model->is_round_robin) return older(model, a, b);
    const size_t to_a =
        sched_model_distance(model->client_last, model->tickets[a].client);
    const size_t to_b =
        sched_model_distance(model->client_last, model->tickets[b].client);
    if (to_a == to_b) return older(model, a, b);
    return to_b < to_a ? b : a;
}

static bool can_be_asked(const sched_model_t *model, size_t ticket,
                         uint32_t island)
{
    return sched_model_is_on_island(&model->tickets[ticket], island) &&
           model->tickets[ticket].wait == MODEL_NOT_ASKED &&
           is_ready(model, ticket);
}

/* Where tickets wait for memory, those that are granted in part go on, in order
 * of arrival, before all others. */
static size_t choose_where_closed(const sched_model_t *model)
{
    size_t oldest = MODEL_NONE;
    for (uint32_t i = 0; i < model->island_count; i++)
        for (size_t t = 0; t < MODEL_TICKETS; t++)
            if (model->islands[i].chosen != MODEL_NONE &&
                model->tickets[t].state == TOW_TICKET_PARTLY &&
                can_be_asked(model, t, i))
                oldest = older(model, oldest, t);
    return oldest;
}

/* The oldest of those that the policy chooses on each of the other islands. */
static size_t choose_where_open(const sched_model_t *model)
{
    size_t oldest = MODEL_NONE;
    for (uint32_t i = 0; i < model->island_count; i++) {
        size_t one = MODEL_NONE;
        if (model->islands[i].chosen != MODEL_NONE) continue;
        for (size_t t = 0; t < MODEL_TICKETS; t++)
            if (can_be_asked(model, t, i)) one = preferred(model, one, t);
        oldest = older(model, oldest, one);
    }
    return oldest;
}

void sched_model_pass(sched_model_t *model)
{
    model->event_count = 0;
    for (;;) {
        if (model->freed != 0) scan(model);
        size_t ticket = choose_where_closed(model);
        if (ticket == MODEL_NONE) ticket = choose_where_open(model);
        if (ticket != MODEL_NONE)
            serve(model, ticket);
        else if (model->freed == 0)
            return;
    }
}

/* -- Operations ------------------------------------------------------------ */

void sched_model_submit(sched_model_t *model, size_t ticket)
{
    model_ticket_t *entry = &model->tickets[ticket];
    entry->state = TOW_TICKET_QUEUED;
    entry->arrival = ++model->arrival_last;
    entry->islands = islands_of(model, entry);
}

/* Those that waited for it go on. */
static void step_aside(sched_model_t *model, size_t ticket)
{
    if (!is_ready(model, ticket) && !is_chosen(model, ticket)) return;
    model->freed |= model->tickets[ticket].islands;
    leave(model, ticket);
}

void sched_model_block(sched_model_t *model, size_t ticket)
{
    step_aside(model, ticket);
    model->tickets[ticket].blockers++;
}

void sched_model_unblock(sched_model_t *model, size_t ticket)
{
    model->tickets[ticket].blockers--;
}

void sched_model_withdraw(sched_model_t *model, size_t ticket)
{
    step_aside(model, ticket);
    model->tickets[ticket].state = TOW_TICKET_IDLE;
}

static void vacate(sched_model_t *model, size_t ticket)
{
    model_ticket_t *entry = &model->tickets[ticket];
    const size_t piece = entry->ended_count++;
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        model_device_t *device = &model->devices[d];
        device->queued_ns -= ns_on(model, entry, piece, d);
        device->gang_count -=
            (uint32_t)sched_model_gangs_on(model, ticket, piece, d);
    }
}

void sched_model_piece_ended(sched_model_t *model, size_t ticket)
{
    model_ticket_t *entry = &model->tickets[ticket];
    const bool was_ready = is_ready(model, ticket);
    vacate(model, ticket);
    model->freed |= entry->islands;
    if (!was_ready && is_ready(model, ticket)) become_ready_again(model, entry);
}

void sched_model_stop(sched_model_t *model, size_t ticket)
{
    model_ticket_t *entry = &model->tickets[ticket];
    if (entry->state != TOW_TICKET_PARTLY) return;
    leave(model, ticket);
    leave_partly(model, entry);
    entry->state = TOW_TICKET_GRANTED;
    model->counts.stopped++;
}

void sched_model_finish(sched_model_t *model, size_t ticket)
{
    model_ticket_t *entry = &model->tickets[ticket];
    sched_model_stop(model, ticket);
    while (sched_model_under_way(entry) > 0)
        vacate(model, ticket);
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        model->devices[d].reserved_bytes -= bytes_on(model, entry, d);
    entry->state = TOW_TICKET_IDLE;
    model->freed |= entry->islands;
}

void sched_model_notify(sched_model_t *model, size_t placement)
{
    model->freed |= islands_of_placement(model, placement);
}

static void notify_all(sched_model_t *model)
{
    for (uint32_t i = 0; i < model->island_count; i++)
        model->freed |= bit(i);
}

void sched_model_set_policy(sched_model_t *model, bool is_round_robin)
{
    model->is_round_robin = is_round_robin;
    notify_all(model);
}

void sched_model_disconnect(sched_model_t *model, size_t device)
{
    model->devices[device].is_disconnected = true;
    notify_all(model);
}
