/* The scheduler compared with a simple model, which examines all tickets of all
 * islands in each pass. Each seed runs thousands of random operations under two
 * policies, on one to four islands; grants and refusals must be equal, in the
 * same order, and the guarantees of the scheduler are checked independently.
 *
 * Granted tickets finish as on devices that execute their queues in order, and
 * whose gangs wait for all members: if two devices had two gangs in different
 * orders, there would be a deadlock. */
#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "sched/sched.h"

#define DEVICE_COUNT    8
#define PLACEMENT_COUNT 12
#define ISLAND_COUNT    4
#define CLIENT_COUNT    5
#define TICKET_COUNT    60
#define PART_COUNT_MAX  3
#define SEED_COUNT      120
#define LIMIT_BYTES     1000
#define RUN_AHEAD_MAX   10
#define EVENT_COUNT_MAX (TICKET_COUNT * 2)
#define WAITING_MAX     (CLIENT_COUNT * ISLAND_COUNT)
#define NONE            SIZE_MAX

/* The real ticket, and the model's record of it. */
typedef struct entry {
    tow_ticket_t ticket;
    tow_ticket_part_t parts[PART_COUNT_MAX];
    tow_ticket_link_t links[ISLAND_COUNT];
    size_t placements[PART_COUNT_MAX];
    tow_ticket_state_t state;
    size_t client;
    uint64_t arrival;
    uint64_t order; /* in which it was chosen */
    uint32_t blockers;
} entry_t;

typedef struct event {
    size_t ticket;
    bool refused;
} event_t;

typedef struct device {
    uint32_t island;
    size_t queue[TICKET_COUNT]; /* granted, in order */
    size_t queue_count;
    uint64_t reserved_bytes;
    uint64_t ballast_bytes; /* of objects */
    uint64_t steps;
    bool disconnected;
} device_t;

typedef struct model {
    tow_random_t random;
    uint32_t island_count;
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_placement_t *placements[PLACEMENT_COUNT];
    bool on[PLACEMENT_COUNT][DEVICE_COUNT];
    tow_object_t *ballast[PLACEMENT_COUNT];
    entry_t tickets[TICKET_COUNT];
    uint64_t arrivals;
    uint64_t orders;
    bool is_round_robin;
    uint32_t real_last; /* the clients that were served last */
    uint32_t model_last;
    event_t real[EVENT_COUNT_MAX];
    size_t real_count;
    event_t expected[EVENT_COUNT_MAX];
    size_t expected_count;
    device_t devices[DEVICE_COUNT];
    size_t chosen[ISLAND_COUNT]; /* tickets that wait for memory */
    /* Tickets that wait for run-ahead, in the order of their choice. */
    size_t waiting[WAITING_MAX];
    size_t waiting_count;
    uint64_t last_number;
    uint64_t last_arrival_of[CLIENT_COUNT][ISLAND_COUNT];
    size_t granted_count, refused_count, waited_count, spanning_count;
} model_t;

static uint64_t below(model_t *model, uint64_t bound)
{
    return tow_random_below(&model->random, bound);
}

/* -- Events of the scheduler ----------------------------------------------- */

static size_t index_of(const model_t *model, const tow_ticket_t *ticket)
{
    return (size_t)(TOW_CONTAINER_OF(ticket, entry_t, ticket) - model->tickets);
}

static bool needs(const model_t *model, const entry_t *entry, size_t device)
{
    for (size_t p = 0; p < entry->ticket.part_count; p++)
        if (model->on[entry->placements[p]][device]) return true;
    return false;
}

static bool is_on(const model_t *model, const entry_t *entry, uint32_t island)
{
    if (entry->ticket.part_count == 0) return island == 0;
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (model->devices[d].island == island && needs(model, entry, d))
            return true;
    return false;
}

static void enqueue(model_t *model, size_t device, size_t ticket)
{
    device_t *queue = &model->devices[device];
    if (queue->queue_count > 0) {
        size_t last = queue->queue[queue->queue_count - 1];
        assert_true(model->tickets[last].ticket.number <
                    model->tickets[ticket].ticket.number);
    }
    queue->queue[queue->queue_count++] = ticket;
}

static void note_granted(void *context, tow_ticket_t *ticket)
{
    model_t *model = context;
    entry_t *entry = &model->tickets[index_of(model, ticket)];
    assert_true(model->real_count < EVENT_COUNT_MAX);
    model->real[model->real_count++] =
        (event_t){index_of(model, ticket), false};
    /* One sequence for all islands: tickets that span islands have one order on
     * all of them. */
    assert_int_equal(ticket->number, ++model->last_number);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (needs(model, entry, d)) enqueue(model, d, index_of(model, ticket));
    /* Tickets of a client on one island are granted in order of arrival. */
    for (uint32_t i = 0; i < model->island_count; i++) {
        uint64_t *last = &model->last_arrival_of[entry->client][i];
        if (!is_on(model, entry, i)) continue;
        assert_true(entry->arrival > *last);
        *last = entry->arrival;
    }
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    model_t *model = context;
    assert_true(model->real_count < EVENT_COUNT_MAX);
    model->real[model->real_count++] = (event_t){index_of(model, ticket), true};
    tow_status_release(take_status);
}

static uint32_t distance(uint32_t last, uint32_t number)
{
    return (number - last - 1) % CLIENT_COUNT;
}

static size_t choose_next(void *context,
                          const tow_sched_queue_t *const *clients, size_t count)
{
    const model_t *model = context;
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        uint32_t number = tow_sched_queue_client(clients[i]);
        uint32_t best_number = tow_sched_queue_client(clients[best]);
        assert_true(tow_sched_queue_first(clients[i - 1])->arrival_ <
                    tow_sched_queue_first(clients[i])->arrival_);
        if (distance(model->real_last, number + CLIENT_COUNT) <
            distance(model->real_last, best_number + CLIENT_COUNT))
            best = i;
    }
    return best;
}

static void remember_served(void *context, const tow_sched_queue_t *client,
                            const tow_ticket_t *ticket)
{
    model_t *model = context;
    (void)ticket;
    model->real_last = tow_sched_queue_client(client);
}

/* -- Expectations of the model --------------------------------------------- */

static uint64_t steps_on(const model_t *model, const entry_t *entry,
                         size_t device)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < entry->ticket.part_count; p++)
        if (model->on[entry->placements[p]][device])
            sum += entry->parts[p].step_count;
    return sum;
}

static uint64_t bytes_on(const model_t *model, const entry_t *entry,
                         size_t device)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < entry->ticket.part_count; p++)
        if (model->on[entry->placements[p]][device])
            sum += entry->parts[p].bytes;
    return sum;
}

static size_t first_of(const model_t *model, size_t client, uint32_t island)
{
    size_t best = NONE;
    for (size_t t = 0; t < TICKET_COUNT; t++) {
        const entry_t *entry = &model->tickets[t];
        if (entry->state != TOW_TICKET_QUEUED || entry->client != client ||
            !is_on(model, entry, island))
            continue;
        if (best == NONE || entry->arrival < model->tickets[best].arrival)
            best = t;
    }
    return best;
}

static bool is_first_everywhere(const model_t *model, size_t ticket)
{
    const entry_t *entry = &model->tickets[ticket];
    for (uint32_t i = 0; i < model->island_count; i++)
        if (is_on(model, entry, i) &&
            first_of(model, entry->client, i) != ticket)
            return false;
    return true;
}

static bool comes_before(const model_t *model, const entry_t *a,
                         const entry_t *b)
{
    if (!model->is_round_robin) return a->arrival < b->arrival;
    return distance(model->model_last, (uint32_t)a->client + 1 + CLIENT_COUNT) <
           distance(model->model_last, (uint32_t)b->client + 1 + CLIENT_COUNT);
}

static bool is_waiting(const model_t *model, size_t ticket)
{
    for (size_t i = 0; i < model->waiting_count; i++)
        if (model->waiting[i] == ticket) return true;
    return false;
}

static bool is_closed(const model_t *model, uint32_t island)
{
    return model->chosen[island] != NONE;
}

/* The ticket that the policy chooses on an open island. */
static size_t pick_on(const model_t *model, uint32_t island)
{
    size_t best = NONE;
    for (size_t c = 0; c < CLIENT_COUNT; c++) {
        size_t first = first_of(model, c, island);
        if (first == NONE || is_waiting(model, first)) continue;
        if (model->tickets[first].blockers > 0) continue;
        if (!is_first_everywhere(model, first)) continue;
        if (best == NONE ||
            comes_before(model, &model->tickets[first], &model->tickets[best]))
            best = first;
    }
    return best;
}

/* The oldest ticket that a policy chooses. */
static size_t pick(const model_t *model)
{
    size_t best = NONE;
    for (uint32_t i = 0; i < model->island_count; i++) {
        size_t one = is_closed(model, i) ? NONE : pick_on(model, i);
        if (one == NONE) continue;
        if (best == NONE ||
            model->tickets[one].arrival < model->tickets[best].arrival)
            best = one;
    }
    return best;
}

static bool is_disconnected(const model_t *model, const entry_t *entry)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (model->devices[d].disconnected && needs(model, entry, d))
            return true;
    return false;
}

static bool has_run_ahead(const model_t *model, const entry_t *entry,
                          const bool *awaited)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        uint64_t steps = model->devices[d].steps;
        if (!needs(model, entry, d)) continue;
        if (awaited[d]) return false;
        uint64_t more = steps_on(model, entry, d);
        if (steps > 0 && more > 0 && steps + more > RUN_AHEAD_MAX) return false;
    }
    return true;
}

static bool fits(const model_t *model, const entry_t *entry)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        uint64_t bytes = bytes_on(model, entry, d);
        const device_t *device = &model->devices[d];
        if (bytes > 0 &&
            device->reserved_bytes + device->ballast_bytes + bytes >
                LIMIT_BYTES)
            return false;
    }
    return true;
}

static bool is_anything_under_way(const model_t *model, const entry_t *where)
{
    for (size_t t = 0; t < TICKET_COUNT; t++)
        for (uint32_t i = 0; i < model->island_count; i++)
            if (model->tickets[t].state == TOW_TICKET_GRANTED &&
                is_on(model, &model->tickets[t], i) && is_on(model, where, i))
                return true;
    return false;
}

static bool is_on_closed(const model_t *model, const entry_t *entry)
{
    for (uint32_t i = 0; i < model->island_count; i++)
        if (is_closed(model, i) && is_on(model, entry, i)) return true;
    return false;
}

static bool is_on_open(const model_t *model, const entry_t *entry)
{
    for (uint32_t i = 0; i < model->island_count; i++)
        if (!is_closed(model, i) && is_on(model, entry, i)) return true;
    return false;
}

static size_t count_islands(const model_t *model, const entry_t *entry)
{
    size_t count = 0;
    for (uint32_t i = 0; i < model->island_count; i++)
        count += is_on(model, entry, i);
    return count;
}

static void expect(model_t *model, size_t ticket, bool refused)
{
    entry_t *entry = &model->tickets[ticket];
    model->expected[model->expected_count++] = (event_t){ticket, refused};
    entry->state = refused ? TOW_TICKET_IDLE : TOW_TICKET_GRANTED;
    *(refused ? &model->refused_count : &model->granted_count) += 1;
    if (refused) return;
    model->spanning_count += count_islands(model, entry) > 1;
    model->model_last = (uint32_t)entry->client + 1;
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        model->devices[d].steps += steps_on(model, entry, d);
        model->devices[d].reserved_bytes += bytes_on(model, entry, d);
    }
}

static void close_islands(model_t *model, size_t ticket)
{
    for (uint32_t i = 0; i < model->island_count; i++)
        if (is_on(model, &model->tickets[ticket], i)) model->chosen[i] = ticket;
    model->waited_count++;
}

static void serve(model_t *model, size_t ticket, bool *awaited)
{
    const entry_t *entry = &model->tickets[ticket];
    bool disconnected = is_disconnected(model, entry);
    if (!disconnected &&
        (is_on_closed(model, entry) || !has_run_ahead(model, entry, awaited))) {
        model->waiting[model->waiting_count++] = ticket;
        for (size_t d = 0; d < DEVICE_COUNT; d++)
            awaited[d] |= needs(model, entry, d);
    } else if (!disconnected && !fits(model, entry) &&
               is_anything_under_way(model, entry)) {
        close_islands(model, ticket);
    } else {
        expect(model, ticket, disconnected || !fits(model, entry));
    }
}

static void remove_from_waiting(model_t *model, size_t ticket)
{
    size_t kept_count = 0;
    for (uint32_t i = 0; i < ISLAND_COUNT; i++)
        if (model->chosen[i] == ticket) model->chosen[i] = NONE;
    for (size_t i = 0; i < model->waiting_count; i++)
        if (model->waiting[i] != ticket)
            model->waiting[kept_count++] = model->waiting[i];
    model->waiting_count = kept_count;
}

/* In the order in which they were chosen. */
static size_t list_chosen(const model_t *model, size_t *chosen)
{
    size_t count = 0;
    for (uint32_t i = 0; i < model->island_count; i++) {
        size_t ticket = model->chosen[i];
        bool known = ticket == NONE;
        for (size_t j = 0; j < count; j++)
            known |= chosen[j] == ticket;
        if (known) continue;
        size_t place = count++;
        for (; place > 0 && model->tickets[chosen[place - 1]].order >
                                model->tickets[ticket].order;
             place--)
            chosen[place] = chosen[place - 1];
        chosen[place] = ticket;
    }
    return count;
}

/* Tickets that wait for memory, then those that wait for run-ahead, then
 * others. */
static void model_pass(model_t *model)
{
    bool awaited[DEVICE_COUNT] = {false};
    size_t waited[WAITING_MAX], chosen[ISLAND_COUNT];
    size_t waited_count = model->waiting_count;
    size_t chosen_count = list_chosen(model, chosen);
    memcpy(waited, model->waiting, sizeof(waited));
    for (size_t i = 0; i < chosen_count; i++) {
        remove_from_waiting(model, chosen[i]);
        serve(model, chosen[i], awaited);
    }
    model->waiting_count = 0;
    for (size_t i = 0; i < waited_count; i++) {
        if (is_on_open(model, &model->tickets[waited[i]]))
            serve(model, waited[i], awaited);
        else
            model->waiting[model->waiting_count++] = waited[i];
    }
    for (size_t ticket; (ticket = pick(model)) != NONE;) {
        model->tickets[ticket].order = ++model->orders;
        serve(model, ticket, awaited);
    }
}

/* -- Operations ------------------------------------------------------------ */

static size_t random_ticket(model_t *model, tow_ticket_state_t state)
{
    size_t start = below(model, TICKET_COUNT);
    for (size_t i = 0; i < TICKET_COUNT; i++) {
        size_t index = (start + i) % TICKET_COUNT;
        if (model->tickets[index].state == state) return index;
    }
    return NONE;
}

static void fill_ticket(model_t *model, entry_t *entry)
{
    *entry = (entry_t){.client = below(model, CLIENT_COUNT)};
    entry->ticket.client = (uint32_t)entry->client + 1;
    entry->ticket.parts = entry->parts;
    entry->ticket.links = entry->links;
    /* Mostly one part, sometimes none. */
    uint64_t choice = below(model, 10);
    entry->ticket.part_count = choice == 0  ? 0
                               : choice < 5 ? 1
                               : choice < 8 ? 2
                                            : 3;
    for (size_t p = 0; p < entry->ticket.part_count; p++) {
        size_t placement = below(model, PLACEMENT_COUNT);
        bool is_long = below(model, 12) == 0;
        bool is_large = below(model, 6) == 0;
        entry->placements[p] = placement;
        entry->parts[p] = (tow_ticket_part_t){
            .placement = model->placements[placement],
            .bytes = below(model, is_large ? 1200 : 200),
            .step_count = (uint32_t)below(model, is_long ? 20 : 4)};
    }
}

static void submit(model_t *model)
{
    size_t index = random_ticket(model, TOW_TICKET_IDLE);
    if (index == NONE) return;
    entry_t *entry = &model->tickets[index];
    fill_ticket(model, entry);
    entry->blockers =
        below(model, 4) == 0 ? (uint32_t)(1 + below(model, 2)) : 0;
    for (uint32_t i = 0; i < entry->blockers; i++)
        tow_ticket_block(model->sched, &entry->ticket);
    entry->arrival = ++model->arrivals;
    entry->state = TOW_TICKET_QUEUED;
    tow_sched_submit(model->sched, &entry->ticket);
}

static void unblock(model_t *model)
{
    size_t start = below(model, TICKET_COUNT);
    for (size_t i = 0; i < TICKET_COUNT; i++) {
        entry_t *entry = &model->tickets[(start + i) % TICKET_COUNT];
        if (entry->state != TOW_TICKET_QUEUED || entry->blockers == 0) continue;
        entry->blockers--;
        tow_ticket_unblock(model->sched, &entry->ticket);
        return;
    }
}

static void block(model_t *model)
{
    size_t index = random_ticket(model, TOW_TICKET_QUEUED);
    if (index == NONE) return;
    model->tickets[index].blockers++;
    tow_ticket_block(model->sched, &model->tickets[index].ticket);
    remove_from_waiting(model, index);
}

static void withdraw(model_t *model)
{
    size_t index = random_ticket(model, TOW_TICKET_QUEUED);
    /* A ticket that waits for memory is the hardest case: choose it often. */
    size_t chosen = model->chosen[below(model, ISLAND_COUNT)];
    if (chosen != NONE && below(model, 3) == 0) index = chosen;
    if (index == NONE) return;
    model->tickets[index].state = TOW_TICKET_IDLE;
    tow_sched_withdraw(model->sched, &model->tickets[index].ticket);
    remove_from_waiting(model, index);
}

/* Its gangs are first in the queues of all their devices. */
static bool can_finish(const model_t *model, size_t ticket)
{
    const entry_t *entry = &model->tickets[ticket];
    if (entry->state != TOW_TICKET_GRANTED) return false;
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (needs(model, entry, d) && model->devices[d].queue[0] != ticket)
            return false;
    return true;
}

static size_t random_finishable(model_t *model)
{
    size_t start = below(model, TICKET_COUNT);
    for (size_t i = 0; i < TICKET_COUNT; i++)
        if (can_finish(model, (start + i) % TICKET_COUNT))
            return (start + i) % TICKET_COUNT;
    /* Otherwise there is a deadlock. */
    assert_int_equal(random_ticket(model, TOW_TICKET_GRANTED), NONE);
    return NONE;
}

static void finish(model_t *model)
{
    size_t index = random_finishable(model);
    if (index == NONE) return;
    entry_t *entry = &model->tickets[index];
    entry->state = TOW_TICKET_IDLE;
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        device_t *device = &model->devices[d];
        device->steps -= steps_on(model, entry, d);
        device->reserved_bytes -= bytes_on(model, entry, d);
        if (!needs(model, entry, d)) continue;
        device->queue_count--;
        memmove(device->queue, device->queue + 1,
                device->queue_count * sizeof(*device->queue));
    }
    tow_sched_finish(model->sched, &entry->ticket);
}

/* Adds an object to a placement, or releases it. */
static void change_ballast(model_t *model)
{
    size_t placement = below(model, PLACEMENT_COUNT);
    tow_object_id_t id = {tow_key(1, 1 + placement)};
    tow_object_t **object = &model->ballast[placement];
    bool is_added = *object == NULL;
    uint64_t bytes = is_added ? below(model, 200) : (*object)->bytes;
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (model->on[placement][d])
            model->devices[d].ballast_bytes += is_added ? bytes : -bytes;
    if (is_added) {
        tow_object_options_t options = {.id = id,
                                        .state = TOW_OBJECT_ARRIVING,
                                        .bytes = bytes,
                                        .placement =
                                            model->placements[placement],
                                        .count_bytes = true};
        assert_null(
            tow_object_table_add(model->object_table, &options, object));
    } else {
        assert_null(tow_object_table_release(model->object_table, id));
        *object = NULL;
    }
    tow_sched_notify(model->sched, model->placements[placement]);
}

static void disconnect_device(model_t *model)
{
    size_t device = below(model, DEVICE_COUNT);
    tow_object_table_on_disconnect(model->object_table, model->accounts[device],
                                   tow_status_bare(TOW_UNAVAILABLE));
    model->devices[device].disconnected = true;
    tow_sched_notify(model->sched, NULL);
}

static void run_pass(model_t *model)
{
    model->real_count = model->expected_count = 0;
    tow_sched_pass(model->sched);
    model_pass(model);
}

/* -- Comparing ------------------------------------------------------------- */

static void compare_device(const model_t *model, size_t device)
{
    const device_t *expected = &model->devices[device];
    const tow_account_t *account = model->accounts[device];
    assert_int_equal(account->step_count, expected->steps);
    assert_int_equal(account->scratch_bytes_, 0);
    assert_int_equal(account->scratch_sum_, 0);
    if (expected->disconnected) return;
    assert_int_equal(account->reserved_bytes, expected->reserved_bytes);
    assert_int_equal(account->object_bytes, expected->ballast_bytes);
    /* Bounded, except for a single ticket. */
    if (expected->steps <= RUN_AHEAD_MAX) return;
    size_t count = 0;
    for (size_t t = 0; t < TICKET_COUNT; t++)
        if (model->tickets[t].state == TOW_TICKET_GRANTED)
            count += steps_on(model, &model->tickets[t], device) > 0;
    assert_int_equal(count, 1);
}

static void compare_island(const model_t *model, uint32_t island)
{
    tow_sched_island_stats_t stats =
        tow_sched_island_stats(model->sched, island);
    size_t queued_count = 0, under_way_count = 0, waiting_count = 0;
    for (size_t t = 0; t < TICKET_COUNT; t++) {
        const entry_t *entry = &model->tickets[t];
        if (!is_on(model, entry, island)) continue;
        queued_count += entry->state == TOW_TICKET_QUEUED;
        under_way_count += entry->state == TOW_TICKET_GRANTED;
        waiting_count += is_waiting(model, t);
    }
    assert_int_equal(stats.queued_count, queued_count);
    assert_int_equal(stats.under_way_count, under_way_count);
    assert_int_equal(stats.run_ahead_count, waiting_count);
    size_t chosen = model->chosen[island];
    assert_int_equal(stats.memory_waiting_client,
                     chosen == NONE ? 0 : model->tickets[chosen].client + 1);
}

static void compare(const model_t *model)
{
    size_t queued_count = 0;
    assert_int_equal(model->real_count, model->expected_count);
    for (size_t i = 0; i < model->real_count; i++) {
        assert_int_equal(model->real[i].ticket, model->expected[i].ticket);
        assert_int_equal(model->real[i].refused, model->expected[i].refused);
    }
    for (size_t t = 0; t < TICKET_COUNT; t++) {
        assert_int_equal(model->tickets[t].ticket.state,
                         model->tickets[t].state);
        queued_count += model->tickets[t].state == TOW_TICKET_QUEUED;
    }
    tow_sched_stats_t stats = tow_sched_stats(model->sched);
    assert_int_equal(stats.queued_count, queued_count);
    assert_int_equal(stats.submitted, stats.granted + stats.refused +
                                          stats.withdrawn + queued_count);
    for (uint32_t i = 0; i < model->island_count; i++)
        compare_island(model, i);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        compare_device(model, d);
    assert_null(tow_sched_check(model->sched));
    assert_null(tow_object_table_check(model->object_table));
}

/* -- Seeds ----------------------------------------------------------------- */

static void make_placement(model_t *model, size_t index)
{
    tow_account_t *chosen[DEVICE_COUNT];
    size_t count = 0;
    size_t first = below(model, DEVICE_COUNT);
    bool spans = below(model, 4) == 0;
    for (size_t i = 0; i < DEVICE_COUNT; i++) {
        size_t device = (first + i) % DEVICE_COUNT;
        if (i > 0 && below(model, 2) == 0) continue;
        if (!spans &&
            model->devices[device].island != model->devices[first].island)
            continue;
        model->on[index][device] = true;
        chosen[count++] = model->accounts[device];
    }
    assert_null(tow_object_table_place(model->object_table, chosen, count, NULL,
                                       &model->placements[index]));
}

static void make_model(model_t *model, uint64_t seed, bool is_round_robin,
                       const tow_sched_policy_t *policy)
{
    memset(model, 0, sizeof(*model));
    for (size_t i = 0; i < ISLAND_COUNT; i++)
        model->chosen[i] = NONE;
    model->is_round_robin = is_round_robin;
    tow_random_init(&model->random, seed);
    assert_null(tow_object_table_create(&(tow_object_table_options_t){0},
                                        &model->object_table));
    model->island_count = (uint32_t)(1 + below(model, ISLAND_COUNT));
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        assert_null(tow_object_table_add_account(
            model->object_table, LIMIT_BYTES, &model->accounts[d]));
        model->devices[d].island = (uint32_t)d % model->island_count;
        model->accounts[d]->island = (uint8_t)model->devices[d].island;
    }
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        make_placement(model, p);
    tow_sched_options_t options = {.policy = policy,
                                   .run_ahead_max = RUN_AHEAD_MAX,
                                   .grant = note_granted,
                                   .refuse = note_refused,
                                   .context = model};
    assert_null(tow_sched_create(&options, &model->sched));
    /* Islands and clients may be added in any order. */
    for (uint32_t i = 0; i < model->island_count; i += 2)
        assert_null(tow_sched_add_island(model->sched, i));
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++)
        assert_null(tow_sched_add_client(model->sched, c));
    for (uint32_t i = 0; i < model->island_count; i++)
        assert_null(tow_sched_add_island(model->sched, i));
}

static void act(model_t *model)
{
    uint64_t choice = below(model, 2000);
    if (choice < 700)
        submit(model);
    else if (choice < 1250)
        finish(model);
    else if (choice < 1400)
        unblock(model);
    else if (choice < 1450)
        block(model);
    else if (choice < 1550)
        withdraw(model);
    else if (choice < 1650)
        change_ballast(model);
    else if (choice < 1999)
        run_pass(model);
    else
        disconnect_device(model);
}

static bool is_idle(const model_t *model)
{
    tow_sched_stats_t stats = tow_sched_stats(model->sched);
    return stats.queued_count + stats.under_way_count == 0;
}

/* Without new tickets all finish: none waits for ever. */
static void finish_everything(model_t *model)
{
    for (size_t t = 0; t < TICKET_COUNT; t++)
        for (size_t i = 0; i < TICKET_COUNT; i++)
            unblock(model);
    for (size_t i = 0; !is_idle(model); i++) {
        assert_true(i < TICKET_COUNT * 2);
        run_pass(model);
        compare(model);
        finish(model);
    }
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        assert_int_equal(model->accounts[d]->step_count, 0);
    assert_int_equal(
        tow_object_table_totals(model->object_table).reserved_bytes, 0);
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++)
        tow_sched_remove_client(model->sched, c);
    tow_sched_destroy(model->sched);
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        tow_placement_release(model->placements[p]);
    tow_object_table_destroy(model->object_table);
}

static void run_seeds(bool is_round_robin)
{
    static model_t model;
    const tow_sched_policy_t round_robin = {.name = "round robin",
                                            .choose = choose_next,
                                            .served = remember_served,
                                            .context = &model};
    size_t granted = 0, refused = 0, waited = 0, spanning = 0;
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        make_model(&model, seed, is_round_robin,
                   is_round_robin ? &round_robin : NULL);
        for (size_t step = 0; step < 2000; step++) {
            act(&model);
            compare(&model);
        }
        finish_everything(&model);
        granted += model.granted_count;
        refused += model.refused_count;
        waited += model.waited_count;
        spanning += model.spanning_count;
    }
    fprintf(stderr,
            "%zu granted, %zu of them on several islands, %zu refused, %zu "
            "times waited for memory\n",
            granted, spanning, refused, waited);
    /* The test is not vacuous. */
    assert_true(granted > 2000 && refused > 100 && waited > 100);
    assert_true(spanning > 4000);
}

static void sched_agrees_with_a_plain_model_first_come_first_served(
    void **state)
{
    (void)state;
    run_seeds(false);
}

static void sched_agrees_with_a_plain_model_round_robin(void **state)
{
    (void)state;
    run_seeds(true);
}

TOW_TEST_MAIN(
    cmocka_unit_test(sched_agrees_with_a_plain_model_first_come_first_served),
    cmocka_unit_test(sched_agrees_with_a_plain_model_round_robin))
