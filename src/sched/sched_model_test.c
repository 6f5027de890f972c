/* The scheduler compared with a plain model (sched_model_testing.c). Each seed
 * runs thousands of random operations under two policies, on one to four
 * islands; grants of pieces and refusals must be equal, in the same order, and
 * the guarantees of the scheduler are checked independently of the model.
 *
 * Pieces end as on devices that execute their queues in order, and whose gangs
 * wait for all members: if two devices had two gangs in different orders, there
 * would be a deadlock. */
#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "sched/sched_model_testing_impl.h"

#define SEED_COUNT      240
#define OPERATION_COUNT 2000
#define QUEUE_MAX       (MODEL_TICKETS * TOW_SCHED_PIECES_MAX)

typedef enum policies {
    FIFO,
    ROUND_ROBIN,
    CHANGING, /* between these two */
} policies_t;

typedef struct entry {
    tow_ticket_t ticket;
    tow_ticket_part_t parts[MODEL_PARTS_MAX];
    tow_ticket_link_t links[MODEL_ISLANDS];
    uint64_t submission; /* in order */
    size_t granted_count;
} entry_t;

typedef struct queued_piece {
    size_t ticket, piece;
    uint64_t number;
} queued_piece_t;

/* Pieces under way with steps there, in the order of grants. */
typedef struct device_queue {
    queued_piece_t items[QUEUE_MAX];
    size_t count;
} device_queue_t;

typedef struct fixture {
    tow_random_t random;
    sched_model_t model;
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_account_t *accounts[MODEL_DEVICES];
    tow_placement_t *placements[MODEL_PLACEMENTS];
    tow_object_t *ballast[MODEL_PLACEMENTS];
    entry_t entries[MODEL_TICKETS];
    device_queue_t queues[MODEL_DEVICES];
    policies_t policies;
    tow_sched_policy_t round_robin;
    size_t slow_device; /* pieces seldom end there; MODEL_NONE: none is */
    size_t client_last; /* served last */
    model_event_t events[MODEL_EVENTS_MAX];
    size_t event_count;
    uint64_t number_last;
    uint64_t submission_last;
    uint64_t begun_last[MODEL_CLIENTS + 1][MODEL_ISLANDS];
} fixture_t;

static uint64_t below(fixture_t *fixture, uint64_t bound)
{
    return tow_random_below(&fixture->random, bound);
}

/* -- Callbacks of the scheduler -------------------------------------------- */

static size_t index_of(const fixture_t *fixture, const tow_ticket_t *ticket)
{
    return (size_t)(TOW_CONTAINER_OF(ticket, const entry_t, ticket) -
                    fixture->entries);
}

static void add_event(fixture_t *fixture, model_event_t event)
{
    assert_true(fixture->event_count < MODEL_EVENTS_MAX);
    fixture->events[fixture->event_count++] = event;
}

/* Every device sees all pieces in the order of their numbers. */
static void enqueue(fixture_t *fixture, size_t device, queued_piece_t piece)
{
    device_queue_t *queue = &fixture->queues[device];
    assert_true(queue->count < QUEUE_MAX);
    assert_true(queue->count == 0 ||
                queue->items[queue->count - 1].number < piece.number);
    queue->items[queue->count++] = piece;
}

/* What was under way before this piece, or with it, is bounded. */
static void check_room(const fixture_t *fixture, size_t device, size_t gangs)
{
    const tow_account_t *account = fixture->accounts[device];
    const sched_model_t *model = &fixture->model;
    assert_true(account->gang_count >= gangs);
    const size_t before = account->gang_count - gangs;
    assert_true(before < model->gang_count_min ||
                (before < model->gang_count_max &&
                 account->queued_ns <= MODEL_RUN_AHEAD_NS));
}

/* The tickets of a client begin on each island in the order of submission. */
static void check_begin(fixture_t *fixture, size_t index)
{
    const entry_t *entry = &fixture->entries[index];
    const model_ticket_t *ticket = &fixture->model.tickets[index];
    assert_true(ticket->holder == MODEL_NONE ||
                fixture->entries[ticket->holder].ticket.state !=
                    TOW_TICKET_PARTLY);
    for (uint32_t i = 0; i < fixture->model.island_count; i++) {
        uint64_t *last = &fixture->begun_last[ticket->client][i];
        if (!sched_model_is_on_island(ticket, i)) continue;
        assert_true(entry->submission > *last);
        *last = entry->submission;
    }
}

static void set_next_piece(const fixture_t *fixture, entry_t *entry)
{
    const model_ticket_t *ticket =
        &fixture->model.tickets[index_of(fixture, &entry->ticket)];
    const size_t piece = entry->granted_count;
    entry->ticket.next = (tow_run_piece_t){
        .step_counts = ticket->piece_count > 1 ? ticket->steps[piece] : NULL,
        .step_ns = ticket->is_of_unknown_duration ? 0 : 1,
        .is_last = piece + 1 == ticket->piece_count};
}

static void note_granted(void *context, tow_ticket_t *ticket)
{
    fixture_t *fixture = context;
    const size_t index = index_of(fixture, ticket);
    entry_t *entry = &fixture->entries[index];
    const size_t piece = entry->granted_count++;
    add_event(fixture, (model_event_t){index, piece, false});
    /* One sequence for all islands: tickets that span islands have one order on
     * all of them. */
    assert_int_equal(ticket->number, ++fixture->number_last);
    if (piece == 0) check_begin(fixture, index);
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        const size_t gangs =
            sched_model_gangs_on(&fixture->model, index, piece, d);
        if (gangs == 0) continue;
        check_room(fixture, d, gangs);
        enqueue(fixture, d, (queued_piece_t){index, piece, ticket->number});
    }
    if (!ticket->next.is_last) set_next_piece(fixture, entry);
    if (piece + 1 == fixture->model.tickets[index].stopped_at)
        tow_sched_stop(fixture->sched, ticket);
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    fixture_t *fixture = context;
    add_event(fixture, (model_event_t){index_of(fixture, ticket), 0, true});
    tow_status_release(take_status);
}

static bool is_held(void *context, const tow_ticket_t *ticket)
{
    const fixture_t *fixture = context;
    const size_t holder =
        fixture->model.tickets[index_of(fixture, ticket)].holder;
    return holder != MODEL_NONE &&
           fixture->entries[holder].ticket.state == TOW_TICKET_PARTLY;
}

static size_t choose_next(void *context, const tow_ticket_t *const *tickets,
                          size_t count)
{
    const fixture_t *fixture = context;
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        assert_true(tickets[i - 1]->arrival_ < tickets[i]->arrival_);
        if (sched_model_distance(fixture->client_last, tickets[i]->client) <
            sched_model_distance(fixture->client_last, tickets[best]->client))
            best = i;
    }
    return best;
}

static void remember_served(void *context, const tow_ticket_t *ticket)
{
    ((fixture_t *)context)->client_last = ticket->client;
}

/* -- Submitting ------------------------------------------------------------ */

/* A random ticket in this state; MODEL_NONE: there is none. */
static size_t random_ticket(fixture_t *fixture, tow_ticket_state_t state)
{
    const size_t start = below(fixture, MODEL_TICKETS);
    for (size_t i = 0; i < MODEL_TICKETS; i++) {
        const size_t index = (start + i) % MODEL_TICKETS;
        if (fixture->model.tickets[index].state == state) return index;
    }
    return MODEL_NONE;
}

/* Mostly one part, sometimes none. */
static size_t random_part_count(fixture_t *fixture)
{
    const uint64_t choice = below(fixture, 10);
    return choice == 0 ? 0 : choice < 5 ? 1 : choice < 8 ? 2 : 3;
}

static void fill_part(fixture_t *fixture, model_ticket_t *ticket, size_t part)
{
    const bool is_large = below(fixture, 6) == 0;
    const bool is_long = below(fixture, 12) == 0;
    const bool has_steps = below(fixture, 6) != 0;
    ticket->placements[part] = below(fixture, MODEL_PLACEMENTS);
    ticket->bytes[part] = below(fixture, is_large ? 1200 : 200);
    for (size_t i = 0; i < ticket->piece_count && has_steps; i++)
        ticket->steps[i][part] = (uint32_t)below(fixture, is_long ? 20 : 5);
}

/* An earlier ticket of the same client that is not granted completely. */
static size_t random_holder(fixture_t *fixture, size_t client)
{
    const size_t start = below(fixture, MODEL_TICKETS);
    for (size_t i = 0; i < MODEL_TICKETS; i++) {
        const size_t index = (start + i) % MODEL_TICKETS;
        const model_ticket_t *ticket = &fixture->model.tickets[index];
        if (ticket->client == client && ticket->piece_count > 1 &&
            (ticket->state == TOW_TICKET_QUEUED ||
             ticket->state == TOW_TICKET_PARTLY))
            return index;
    }
    return MODEL_NONE;
}

static void fill_ticket(fixture_t *fixture, size_t index)
{
    model_ticket_t *ticket = &fixture->model.tickets[index];
    /* It is another ticket from now on. */
    for (size_t t = 0; t < MODEL_TICKETS; t++)
        if (fixture->model.tickets[t].holder == index)
            fixture->model.tickets[t].holder = MODEL_NONE;
    *ticket = (model_ticket_t){.client = 1 + below(fixture, MODEL_CLIENTS),
                               .holder = MODEL_NONE,
                               .piece_count = 1};
    ticket->part_count = random_part_count(fixture);
    if (below(fixture, 3) == 0)
        ticket->piece_count = 2 + below(fixture, MODEL_PIECES_MAX - 1);
    for (size_t p = 0; p < ticket->part_count; p++)
        fill_part(fixture, ticket, p);
    ticket->is_of_unknown_duration = below(fixture, 10) == 0;
    if (below(fixture, 3) == 0)
        ticket->holder = random_holder(fixture, ticket->client);
    if (below(fixture, 20) == 0)
        ticket->stopped_at = 1 + below(fixture, ticket->piece_count);
    if (below(fixture, 4) == 0)
        ticket->blockers = (uint32_t)(1 + below(fixture, 2));
}

static uint32_t steps_of_run(const model_ticket_t *ticket, size_t part)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < ticket->piece_count; i++)
        sum += ticket->steps[i][part];
    return sum;
}

static void submit(fixture_t *fixture)
{
    const size_t index = random_ticket(fixture, TOW_TICKET_IDLE);
    if (index == MODEL_NONE) return;
    entry_t *entry = &fixture->entries[index];
    const model_ticket_t *ticket = &fixture->model.tickets[index];
    fill_ticket(fixture, index);
    *entry = (entry_t){.submission = ++fixture->submission_last,
                       .ticket = {.client = (uint32_t)ticket->client,
                                  .parts = entry->parts,
                                  .part_count = ticket->part_count,
                                  .links = entry->links}};
    for (size_t p = 0; p < ticket->part_count; p++)
        entry->parts[p] = (tow_ticket_part_t){
            .placement = fixture->placements[ticket->placements[p]],
            .bytes = ticket->bytes[p],
            .step_count = steps_of_run(ticket, p)};
    set_next_piece(fixture, entry);
    for (uint32_t i = 0; i < ticket->blockers; i++)
        tow_ticket_block(fixture->sched, &entry->ticket);
    tow_sched_submit(fixture->sched, &entry->ticket);
    sched_model_submit(&fixture->model, index);
}

/* -- Other operations on queued tickets ------------------------------------ */

static void unblock(fixture_t *fixture)
{
    const size_t start = below(fixture, MODEL_TICKETS);
    for (size_t i = 0; i < MODEL_TICKETS; i++) {
        const size_t index = (start + i) % MODEL_TICKETS;
        const model_ticket_t *ticket = &fixture->model.tickets[index];
        if (ticket->state != TOW_TICKET_QUEUED || ticket->blockers == 0)
            continue;
        tow_ticket_unblock(fixture->sched, &fixture->entries[index].ticket);
        sched_model_unblock(&fixture->model, index);
        return;
    }
}

/* Often one that waits for memory, or a head: the hardest cases. */
static size_t random_queued(fixture_t *fixture)
{
    const model_island_t *island =
        &fixture->model.islands[below(fixture, MODEL_ISLANDS)];
    const size_t special =
        below(fixture, 2) == 0 ? island->chosen : island->head;
    if (special != MODEL_NONE && below(fixture, 3) == 0 &&
        fixture->model.tickets[special].state == TOW_TICKET_QUEUED)
        return special;
    return random_ticket(fixture, TOW_TICKET_QUEUED);
}

static void block(fixture_t *fixture)
{
    const size_t index = random_queued(fixture);
    if (index == MODEL_NONE) return;
    tow_ticket_block(fixture->sched, &fixture->entries[index].ticket);
    sched_model_block(&fixture->model, index);
}

static void withdraw(fixture_t *fixture)
{
    const size_t index = random_queued(fixture);
    if (index == MODEL_NONE) return;
    tow_sched_withdraw(fixture->sched, &fixture->entries[index].ticket);
    sched_model_withdraw(&fixture->model, index);
}

/* -- Execution ------------------------------------------------------------- */

static bool is_under_way(const model_ticket_t *ticket)
{
    return ticket->state == TOW_TICKET_PARTLY ||
           ticket->state == TOW_TICKET_GRANTED;
}

/* Its oldest piece is first in the queues of all its devices. */
static bool can_end(const fixture_t *fixture, size_t index)
{
    const model_ticket_t *ticket = &fixture->model.tickets[index];
    const size_t piece = ticket->ended_count;
    if (!is_under_way(ticket) || sched_model_under_way(ticket) == 0)
        return false;
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        const queued_piece_t *first = &fixture->queues[d].items[0];
        if (sched_model_gangs_on(&fixture->model, index, piece, d) == 0)
            continue;
        assert_true(fixture->queues[d].count > 0);
        if (first->ticket != index || first->piece != piece) return false;
    }
    return true;
}

/* All its pieces have ended, and there are no more. */
static bool can_finish(const fixture_t *fixture, size_t index)
{
    const model_ticket_t *ticket = &fixture->model.tickets[index];
    return ticket->state == TOW_TICKET_GRANTED &&
           sched_model_under_way(ticket) == 0;
}

static bool has_piece_under_way(const fixture_t *fixture)
{
    for (size_t t = 0; t < MODEL_TICKETS; t++)
        if (is_under_way(&fixture->model.tickets[t]) &&
            sched_model_under_way(&fixture->model.tickets[t]) > 0)
            return true;
    return false;
}

static size_t random_that(fixture_t *fixture,
                          bool (*can)(const fixture_t *fixture, size_t index))
{
    const size_t start = below(fixture, MODEL_TICKETS);
    for (size_t i = 0; i < MODEL_TICKETS; i++)
        if (can(fixture, (start + i) % MODEL_TICKETS))
            return (start + i) % MODEL_TICKETS;
    return MODEL_NONE;
}

static void leave_queues(fixture_t *fixture, size_t index)
{
    const size_t piece = fixture->model.tickets[index].ended_count;
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        device_queue_t *queue = &fixture->queues[d];
        if (sched_model_gangs_on(&fixture->model, index, piece, d) == 0)
            continue;
        queue->count--;
        memmove(queue->items, queue->items + 1,
                queue->count * sizeof(*queue->items));
    }
}

static void finish_ticket(fixture_t *fixture, size_t index)
{
    tow_sched_finish(fixture->sched, &fixture->entries[index].ticket);
    sched_model_finish(&fixture->model, index);
}

static bool is_on_slow_device(const fixture_t *fixture, size_t index)
{
    return fixture->slow_device != MODEL_NONE &&
           sched_model_gangs_on(&fixture->model, index,
                                fixture->model.tickets[index].ended_count,
                                fixture->slow_device) > 0;
}

/* The last piece may end with the ticket, without a report of its own. */
static void end_piece(fixture_t *fixture)
{
    const size_t index = random_that(fixture, can_end);
    if (index == MODEL_NONE) {
        assert_false(has_piece_under_way(fixture)); /* a deadlock */
        return;
    }
    if (is_on_slow_device(fixture, index) && below(fixture, 40) > 0) return;
    const model_ticket_t *ticket = &fixture->model.tickets[index];
    leave_queues(fixture, index);
    if (ticket->state == TOW_TICKET_GRANTED &&
        sched_model_under_way(ticket) == 1 && below(fixture, 2) == 0) {
        finish_ticket(fixture, index);
        return;
    }
    tow_sched_piece_ended(fixture->sched, &fixture->entries[index].ticket);
    sched_model_piece_ended(&fixture->model, index);
}

static void finish(fixture_t *fixture)
{
    const size_t index = random_that(fixture, can_finish);
    if (index != MODEL_NONE) finish_ticket(fixture, index);
}

/* It fails between two pieces; sometimes that is its end. */
static void stop(fixture_t *fixture)
{
    const size_t index = random_ticket(fixture, TOW_TICKET_PARTLY);
    if (index == MODEL_NONE) return;
    if (sched_model_under_way(&fixture->model.tickets[index]) == 0 &&
        below(fixture, 2) == 0) {
        finish_ticket(fixture, index);
        return;
    }
    tow_sched_stop(fixture->sched, &fixture->entries[index].ticket);
    sched_model_stop(&fixture->model, index);
}

/* -- Memory and devices ---------------------------------------------------- */

/* Adds an object to a placement, or releases it. */
static void change_ballast(fixture_t *fixture)
{
    const size_t placement = below(fixture, MODEL_PLACEMENTS);
    const tow_object_id_t id = {tow_key(1, 1 + placement)};
    tow_object_t **object = &fixture->ballast[placement];
    const bool is_added = *object == NULL;
    const uint64_t bytes = is_added ? below(fixture, 200) : (*object)->bytes;
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        if (fixture->model.is_on[placement][d])
            fixture->model.devices[d].ballast_bytes +=
                is_added ? bytes : -bytes;
    if (is_added) {
        const tow_object_options_t options = {
            .id = id,
            .state = TOW_OBJECT_ARRIVING,
            .bytes = bytes,
            .placement = fixture->placements[placement],
            .count_bytes = true};
        assert_null(
            tow_object_table_add(fixture->object_table, &options, object));
    } else {
        assert_null(tow_object_table_release(fixture->object_table, id));
        *object = NULL;
    }
    tow_sched_notify(fixture->sched, fixture->placements[placement]);
    sched_model_notify(&fixture->model, placement);
}

/* Its tickets under way end as ever; the owner may stop them later. */
static void disconnect_device(fixture_t *fixture)
{
    const size_t device = below(fixture, MODEL_DEVICES);
    tow_object_table_on_disconnect(fixture->object_table,
                                   fixture->accounts[device],
                                   tow_status_bare(TOW_UNAVAILABLE));
    tow_sched_notify(fixture->sched, NULL);
    sched_model_disconnect(&fixture->model, device);
}

static void change_policy(fixture_t *fixture)
{
    const bool is_round_robin = !fixture->model.is_round_robin;
    if (fixture->policies != CHANGING) return;
    tow_sched_set_policy(fixture->sched,
                         is_round_robin ? &fixture->round_robin : NULL);
    sched_model_set_policy(&fixture->model, is_round_robin);
}

static void run_pass(fixture_t *fixture)
{
    fixture->event_count = 0;
    tow_sched_pass(fixture->sched);
    sched_model_pass(&fixture->model);
}

/* -- Comparing ------------------------------------------------------------- */

static void compare_events(const fixture_t *fixture)
{
    const sched_model_t *model = &fixture->model;
    for (size_t i = 0; i < fixture->event_count && i < model->event_count;
         i++) {
        assert_int_equal(fixture->events[i].ticket, model->events[i].ticket);
        assert_int_equal(fixture->events[i].piece, model->events[i].piece);
        assert_int_equal(fixture->events[i].is_refused,
                         model->events[i].is_refused);
    }
    assert_int_equal(fixture->event_count, model->event_count);
}

static void compare_device(const fixture_t *fixture, size_t device)
{
    const model_device_t *expected = &fixture->model.devices[device];
    const tow_account_t *account = fixture->accounts[device];
    assert_int_equal(account->gang_count, expected->gang_count);
    assert_int_equal(account->queued_ns, expected->queued_ns);
    assert_int_equal(account->scratch_bytes_, 0);
    assert_int_equal(account->scratch_sum_, 0);
    if (expected->is_disconnected) return;
    assert_int_equal(account->reserved_bytes, expected->reserved_bytes);
    assert_int_equal(account->object_bytes, expected->ballast_bytes);
    assert_true(account->reserved_bytes <= MODEL_LIMIT_BYTES);
}

static void compare_island(const fixture_t *fixture, uint32_t island)
{
    const tow_sched_island_stats_t stats =
        tow_sched_island_stats(fixture->sched, island);
    const sched_model_t *model = &fixture->model;
    size_t queued_count = 0, under_way_count = 0, waiting_count = 0;
    for (size_t t = 0; t < MODEL_TICKETS; t++) {
        const model_ticket_t *ticket = &model->tickets[t];
        if (!sched_model_is_on_island(ticket, island)) continue;
        queued_count += ticket->state == TOW_TICKET_QUEUED;
        under_way_count += is_under_way(ticket);
        waiting_count += ticket->wait != MODEL_NOT_ASKED;
    }
    assert_int_equal(stats.queued_count, queued_count);
    assert_int_equal(stats.under_way_count, under_way_count);
    assert_int_equal(stats.run_ahead_count, waiting_count);
    const size_t chosen = model->islands[island].chosen;
    assert_int_equal(stats.memory_waiting_client,
                     chosen == MODEL_NONE ? 0 : model->tickets[chosen].client);
}

static void compare_tickets(const fixture_t *fixture)
{
    const tow_sched_stats_t stats = tow_sched_stats(fixture->sched);
    size_t counts[4] = {0};
    for (size_t t = 0; t < MODEL_TICKETS; t++) {
        const model_ticket_t *ticket = &fixture->model.tickets[t];
        assert_int_equal(fixture->entries[t].ticket.state, ticket->state);
        assert_true(!is_under_way(ticket) ||
                    sched_model_under_way(ticket) <= TOW_SCHED_PIECES_MAX);
        counts[ticket->state]++;
    }
    const size_t queued_count = counts[TOW_TICKET_QUEUED];
    assert_int_equal(stats.queued_count, queued_count);
    assert_int_equal(stats.partly_count, counts[TOW_TICKET_PARTLY]);
    assert_int_equal(stats.under_way_count,
                     counts[TOW_TICKET_PARTLY] + counts[TOW_TICKET_GRANTED]);
    assert_int_equal(stats.submitted, stats.granted + stats.refused +
                                          stats.withdrawn + queued_count);
    assert_int_equal(stats.granted, stats.finished + stats.under_way_count);
    assert_int_equal(stats.piece_count, fixture->model.counts.pieces);
}

static void compare(const fixture_t *fixture)
{
    compare_events(fixture);
    compare_tickets(fixture);
    for (uint32_t i = 0; i < fixture->model.island_count; i++)
        compare_island(fixture, i);
    for (size_t d = 0; d < MODEL_DEVICES; d++)
        compare_device(fixture, d);
    assert_null(tow_sched_check(fixture->sched));
    assert_null(tow_object_table_check(fixture->object_table));
}

/* -- Seeds ----------------------------------------------------------------- */

static void make_placement(fixture_t *fixture, size_t index)
{
    tow_account_t *chosen[MODEL_DEVICES];
    const model_device_t *devices = fixture->model.devices;
    size_t count = 0;
    const size_t first = below(fixture, MODEL_DEVICES);
    const bool spans = below(fixture, 4) == 0;
    for (size_t i = 0; i < MODEL_DEVICES; i++) {
        const size_t device = (first + i) % MODEL_DEVICES;
        if (i > 0 && below(fixture, 2) == 0) continue;
        if (!spans && devices[device].island != devices[first].island) continue;
        fixture->model.is_on[index][device] = true;
        chosen[count++] = fixture->accounts[device];
    }
    assert_null(tow_object_table_place(fixture->object_table, chosen, count,
                                       NULL, &fixture->placements[index]));
}

static void make_devices(fixture_t *fixture)
{
    assert_null(tow_object_table_create(&(tow_object_table_options_t){0},
                                        &fixture->object_table));
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        const uint32_t island = (uint32_t)d % fixture->model.island_count;
        assert_null(tow_object_table_add_account(
            fixture->object_table, MODEL_LIMIT_BYTES, &fixture->accounts[d]));
        fixture->model.devices[d].island = island;
        fixture->accounts[d]->island = (uint8_t)island;
    }
    for (size_t p = 0; p < MODEL_PLACEMENTS; p++)
        make_placement(fixture, p);
}

static void make_sched(fixture_t *fixture)
{
    const sched_model_t *model = &fixture->model;
    const tow_sched_options_t options = {
        .policy = model->is_round_robin ? &fixture->round_robin : NULL,
        .run_ahead_ns = MODEL_RUN_AHEAD_NS,
        .gang_count_min = model->gang_count_min,
        .gang_count_max = model->gang_count_max,
        .overtaken_max = model->overtaken_max,
        .grant = note_granted,
        .refuse = note_refused,
        .is_held = is_held,
        .context = fixture};
    assert_null(tow_sched_create(&options, &fixture->sched));
    /* Islands and clients may be added in any order. */
    for (uint32_t i = 0; i < model->island_count; i += 2)
        assert_null(tow_sched_add_island(fixture->sched, i));
    for (uint32_t c = 1; c <= MODEL_CLIENTS; c++)
        assert_null(tow_sched_add_client(fixture->sched, c));
    for (uint32_t i = 0; i < model->island_count; i++)
        assert_null(tow_sched_add_island(fixture->sched, i));
}

static void set_up(fixture_t *fixture, uint64_t seed, policies_t policies)
{
    memset(fixture, 0, sizeof(*fixture));
    fixture->policies = policies;
    fixture->round_robin = (tow_sched_policy_t){.name = "round robin",
                                                .choose = choose_next,
                                                .served = remember_served,
                                                .context = fixture};
    tow_random_init(&fixture->random, seed);
    sched_model_t *model = &fixture->model;
    sched_model_init(model);
    model->is_round_robin = policies == ROUND_ROBIN;
    model->island_count = (uint32_t)(1 + below(fixture, MODEL_ISLANDS));
    model->gang_count_min = (uint32_t)(1 + below(fixture, 2));
    model->gang_count_max = below(fixture, 2) == 0 ? 4 : 256;
    model->overtaken_max = (uint32_t)(1 + below(fixture, 8));
    fixture->slow_device =
        below(fixture, 4) == 0 ? below(fixture, MODEL_DEVICES) : MODEL_NONE;
    for (size_t t = 0; t < MODEL_TICKETS; t++)
        model->tickets[t].holder = MODEL_NONE;
    make_devices(fixture);
    make_sched(fixture);
}

static void act(fixture_t *fixture)
{
    const uint64_t choice = below(fixture, 3000);
    if (choice < 650)
        submit(fixture);
    else if (choice < 1650)
        end_piece(fixture);
    else if (choice < 2050)
        finish(fixture);
    else if (choice < 2080)
        stop(fixture);
    else if (choice < 2230)
        unblock(fixture);
    else if (choice < 2280)
        block(fixture);
    else if (choice < 2380)
        withdraw(fixture);
    else if (choice < 2480)
        change_ballast(fixture);
    else if (choice < 2985)
        run_pass(fixture);
    else if (choice < 2999)
        change_policy(fixture);
    else
        disconnect_device(fixture);
}

static bool is_idle(const fixture_t *fixture)
{
    const tow_sched_stats_t stats = tow_sched_stats(fixture->sched);
    return stats.queued_count + stats.under_way_count == 0;
}

static bool is_any_blocked(const fixture_t *fixture)
{
    for (size_t t = 0; t < MODEL_TICKETS; t++)
        if (fixture->model.tickets[t].state == TOW_TICKET_QUEUED &&
            fixture->model.tickets[t].blockers > 0)
            return true;
    return false;
}

/* Without new tickets all finish: none waits for ever. */
static void finish_everything(fixture_t *fixture)
{
    fixture->slow_device = MODEL_NONE;
    while (is_any_blocked(fixture))
        unblock(fixture);
    for (size_t i = 0; !is_idle(fixture); i++) {
        assert_true(i < MODEL_TICKETS * (MODEL_PIECES_MAX + 2));
        run_pass(fixture);
        compare(fixture);
        end_piece(fixture);
        finish(fixture);
    }
    for (size_t d = 0; d < MODEL_DEVICES; d++) {
        assert_int_equal(fixture->accounts[d]->gang_count, 0);
        assert_int_equal(fixture->accounts[d]->queued_ns, 0);
    }
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).reserved_bytes, 0);
}

static void tear_down(fixture_t *fixture)
{
    for (uint32_t c = 1; c <= MODEL_CLIENTS; c++)
        tow_sched_remove_client(fixture->sched, c);
    tow_sched_destroy(fixture->sched);
    for (size_t p = 0; p < MODEL_PLACEMENTS; p++)
        tow_placement_release(fixture->placements[p]);
    tow_object_table_destroy(fixture->object_table);
}

static void run_seed(fixture_t *fixture, uint64_t seed, policies_t policies)
{
    set_up(fixture, seed, policies);
    for (size_t i = 0; i < OPERATION_COUNT; i++) {
        act(fixture);
        compare(fixture);
    }
    finish_everything(fixture);
    tear_down(fixture);
}

static void add_counts(model_counts_t *sum, const model_counts_t *counts)
{
    sum->pieces += counts->pieces;
    sum->refused += counts->refused;
    sum->waited_for_memory += counts->waited_for_memory;
    sum->spanning += counts->spanning;
    sum->stopped += counts->stopped;
    sum->held += counts->held;
    sum->overtaken_served += counts->overtaken_served;
    sum->partly_where_closed += counts->partly_where_closed;
    sum->closed_waiters += counts->closed_waiters;
}

/* The test is not vacuous. */
static void check_counts(const model_counts_t *sum)
{
    fprintf(stderr,
            "%zu pieces granted (%zu on several islands, %zu where a ticket "
            "waits for memory), %zu refused, %zu times waited for memory, %zu "
            "for others, %zu for a closed island; %zu stopped, %zu times a "
            "head went first\n",
            sum->pieces, sum->spanning, sum->partly_where_closed, sum->refused,
            sum->waited_for_memory, sum->held, sum->closed_waiters,
            sum->stopped, sum->overtaken_served);
    assert_true(sum->pieces > 20000 && sum->spanning > 4000);
    assert_true(sum->refused > 100 && sum->waited_for_memory > 100);
    assert_true(sum->held > 100 && sum->stopped > 100);
    assert_true(sum->partly_where_closed > 100 && sum->closed_waiters > 100);
    assert_true(sum->overtaken_served > 100);
}

static void run_seeds(policies_t policies)
{
    static fixture_t fixture;
    model_counts_t sum = {0};
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        run_seed(&fixture, seed, policies);
        add_counts(&sum, &fixture.model.counts);
    }
    check_counts(&sum);
}

static void sched_agrees_with_a_plain_model_first_come_first_served(
    void **state)
{
    (void)state;
    run_seeds(FIFO);
}

static void sched_agrees_with_a_plain_model_round_robin(void **state)
{
    (void)state;
    run_seeds(ROUND_ROBIN);
}

static void sched_agrees_with_a_plain_model_while_the_policy_changes(
    void **state)
{
    (void)state;
    run_seeds(CHANGING);
}

TOW_TEST_MAIN(
    cmocka_unit_test(sched_agrees_with_a_plain_model_first_come_first_served),
    cmocka_unit_test(sched_agrees_with_a_plain_model_round_robin),
    cmocka_unit_test(sched_agrees_with_a_plain_model_while_the_policy_changes))
