/* The scheduler beside a model that looks at everything anew each turn: no
 * line-ups, no marks, no early ends, no islands left out. Thousands of random
 * operations a seed under two policies, on one to four islands; grants and
 * refusals must be the same, in the same order, and the promises hold by
 * themselves.
 *
 * What was granted ends as it would on devices that run their queues in order
 * and whose gangs wait for all their members: if two devices, of whatever
 * islands, had two gangs in different orders, there would come a moment when
 * nothing can end. */
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

/* The real ticket, and what the model knows of it. */
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
    bool lost;
} device_t;

typedef struct world {
    tow_random_t random;
    uint32_t island_count;
    tow_ledger_t *ledger;
    tow_sched_t *sched;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_placement_t *placements[PLACEMENT_COUNT];
    bool on[PLACEMENT_COUNT][DEVICE_COUNT];
    tow_object_t *ballast[PLACEMENT_COUNT];
    entry_t tickets[TICKET_COUNT];
    uint64_t arrivals;
    uint64_t orders;
    bool is_round_robin;
    uint32_t real_last; /* whom each of the two served last */
    uint32_t model_last;
    event_t real[EVENT_COUNT_MAX];
    size_t real_count;
    event_t expected[EVENT_COUNT_MAX];
    size_t expected_count;
    device_t devices[DEVICE_COUNT];
    size_t chosen[ISLAND_COUNT]; /* the ticket that waits for memory */
    /* Those that wait for run-ahead, in the order in which they were chosen. */
    size_t waiting[WAITING_MAX];
    size_t waiting_count;
    uint64_t last_number;
    uint64_t last_arrival_of[CLIENT_COUNT][ISLAND_COUNT];
    size_t granted_count, refused_count, waited_count, spanning_count;
} world_t;

static uint64_t below(world_t *world, uint64_t bound)
{
    return tow_random_below(&world->random, bound);
}

/* -- What the real one does --------------------------------------------------- */

static size_t index_of(const world_t *world, const tow_ticket_t *ticket)
{
    return (size_t)(TOW_CONTAINER_OF(ticket, entry_t, ticket) - world->tickets);
}

static bool needs(const world_t *world, const entry_t *entry, size_t device)
{
    for (size_t p = 0; p < entry->ticket.part_count; p++)
        if (world->on[entry->placements[p]][device]) return true;
    return false;
}

static bool is_on(const world_t *world, const entry_t *entry, uint32_t island)
{
    if (entry->ticket.part_count == 0) return island == 0;
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (world->devices[d].island == island && needs(world, entry, d))
            return true;
    return false;
}

static void enqueue(world_t *world, size_t device, size_t ticket)
{
    device_t *queue = &world->devices[device];
    if (queue->queue_count > 0) {
        size_t last = queue->queue[queue->queue_count - 1];
        assert_true(world->tickets[last].ticket.number <
                    world->tickets[ticket].ticket.number);
    }
    queue->queue[queue->queue_count++] = ticket;
}

static void note_granted(void *context, tow_ticket_t *ticket)
{
    world_t *world = context;
    entry_t *entry = &world->tickets[index_of(world, ticket)];
    assert_true(world->real_count < EVENT_COUNT_MAX);
    world->real[world->real_count++] =
        (event_t){index_of(world, ticket), false};
    /* One sequence for all islands: what spans them is in ticket order on each
     * of them. */
    assert_int_equal(ticket->number, ++world->last_number);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (needs(world, entry, d)) enqueue(world, d, index_of(world, ticket));
    /* First come, first served within a client, where its tickets meet. */
    for (uint32_t i = 0; i < world->island_count; i++) {
        uint64_t *last = &world->last_arrival_of[entry->client][i];
        if (!is_on(world, entry, i)) continue;
        assert_true(entry->arrival > *last);
        *last = entry->arrival;
    }
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    world_t *world = context;
    assert_true(world->real_count < EVENT_COUNT_MAX);
    world->real[world->real_count++] = (event_t){index_of(world, ticket), true};
    tow_status_release(take_status);
}

static uint32_t distance(uint32_t last, uint32_t number)
{
    return (number - last - 1) % CLIENT_COUNT;
}

static size_t choose_next(void *context,
                          const tow_sched_client_t *const *clients,
                          size_t count)
{
    const world_t *world = context;
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        uint32_t number = tow_sched_client_number(clients[i]);
        uint32_t best_number = tow_sched_client_number(clients[best]);
        assert_true(tow_sched_client_first(clients[i - 1])->arrival_ <
                    tow_sched_client_first(clients[i])->arrival_);
        if (distance(world->real_last, number + CLIENT_COUNT) <
            distance(world->real_last, best_number + CLIENT_COUNT))
            best = i;
    }
    return best;
}

static void remember_served(void *context, const tow_sched_client_t *client,
                            const tow_ticket_t *ticket)
{
    world_t *world = context;
    (void)ticket;
    world->real_last = tow_sched_client_number(client);
}

/* -- What the model expects --------------------------------------------------- */

static uint64_t steps_on(const world_t *world, const entry_t *entry,
                         size_t device)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < entry->ticket.part_count; p++)
        if (world->on[entry->placements[p]][device])
            sum += entry->parts[p].step_count;
    return sum;
}

static uint64_t bytes_on(const world_t *world, const entry_t *entry,
                         size_t device)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < entry->ticket.part_count; p++)
        if (world->on[entry->placements[p]][device])
            sum += entry->parts[p].bytes;
    return sum;
}

static size_t first_of(const world_t *world, size_t client, uint32_t island)
{
    size_t best = NONE;
    for (size_t t = 0; t < TICKET_COUNT; t++) {
        const entry_t *entry = &world->tickets[t];
        if (entry->state != TOW_TICKET_QUEUED || entry->client != client ||
            !is_on(world, entry, island))
            continue;
        if (best == NONE || entry->arrival < world->tickets[best].arrival)
            best = t;
    }
    return best;
}

static bool is_first_everywhere(const world_t *world, size_t ticket)
{
    const entry_t *entry = &world->tickets[ticket];
    for (uint32_t i = 0; i < world->island_count; i++)
        if (is_on(world, entry, i) &&
            first_of(world, entry->client, i) != ticket)
            return false;
    return true;
}

static bool comes_before(const world_t *world, const entry_t *a,
                         const entry_t *b)
{
    if (!world->is_round_robin) return a->arrival < b->arrival;
    return distance(world->model_last, (uint32_t)a->client + 1 + CLIENT_COUNT) <
           distance(world->model_last, (uint32_t)b->client + 1 + CLIENT_COUNT);
}

static bool is_waiting(const world_t *world, size_t ticket)
{
    for (size_t i = 0; i < world->waiting_count; i++)
        if (world->waiting[i] == ticket) return true;
    return false;
}

static bool is_closed(const world_t *world, uint32_t island)
{
    return world->chosen[island] != NONE;
}

/* What the policy would serve on an open island. */
static size_t pick_on(const world_t *world, uint32_t island)
{
    size_t best = NONE;
    for (size_t c = 0; c < CLIENT_COUNT; c++) {
        size_t first = first_of(world, c, island);
        if (first == NONE || is_waiting(world, first)) continue;
        if (world->tickets[first].blockers > 0) continue;
        if (!is_first_everywhere(world, first)) continue;
        if (best == NONE ||
            comes_before(world, &world->tickets[first], &world->tickets[best]))
            best = first;
    }
    return best;
}

/* The oldest of them. */
static size_t pick(const world_t *world)
{
    size_t best = NONE;
    for (uint32_t i = 0; i < world->island_count; i++) {
        size_t one = is_closed(world, i) ? NONE : pick_on(world, i);
        if (one == NONE) continue;
        if (best == NONE ||
            world->tickets[one].arrival < world->tickets[best].arrival)
            best = one;
    }
    return best;
}

static bool is_lost(const world_t *world, const entry_t *entry)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (world->devices[d].lost && needs(world, entry, d)) return true;
    return false;
}

static bool has_run_ahead(const world_t *world, const entry_t *entry,
                          const bool *awaited)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        uint64_t steps = world->devices[d].steps;
        if (!needs(world, entry, d)) continue;
        if (awaited[d]) return false;
        uint64_t more = steps_on(world, entry, d);
        if (steps > 0 && more > 0 && steps + more > RUN_AHEAD_MAX) return false;
    }
    return true;
}

static bool fits(const world_t *world, const entry_t *entry)
{
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        uint64_t bytes = bytes_on(world, entry, d);
        const device_t *device = &world->devices[d];
        if (bytes > 0 &&
            device->reserved_bytes + device->ballast_bytes + bytes >
                LIMIT_BYTES)
            return false;
    }
    return true;
}

static bool is_anything_under_way(const world_t *world, const entry_t *where)
{
    for (size_t t = 0; t < TICKET_COUNT; t++)
        for (uint32_t i = 0; i < world->island_count; i++)
            if (world->tickets[t].state == TOW_TICKET_GRANTED &&
                is_on(world, &world->tickets[t], i) && is_on(world, where, i))
                return true;
    return false;
}

static bool is_on_closed(const world_t *world, const entry_t *entry)
{
    for (uint32_t i = 0; i < world->island_count; i++)
        if (is_closed(world, i) && is_on(world, entry, i)) return true;
    return false;
}

static bool is_on_open(const world_t *world, const entry_t *entry)
{
    for (uint32_t i = 0; i < world->island_count; i++)
        if (!is_closed(world, i) && is_on(world, entry, i)) return true;
    return false;
}

static size_t count_islands(const world_t *world, const entry_t *entry)
{
    size_t count = 0;
    for (uint32_t i = 0; i < world->island_count; i++)
        count += is_on(world, entry, i);
    return count;
}

static void expect(world_t *world, size_t ticket, bool refused)
{
    entry_t *entry = &world->tickets[ticket];
    world->expected[world->expected_count++] = (event_t){ticket, refused};
    entry->state = refused ? TOW_TICKET_IDLE : TOW_TICKET_GRANTED;
    *(refused ? &world->refused_count : &world->granted_count) += 1;
    if (refused) return;
    world->spanning_count += count_islands(world, entry) > 1;
    world->model_last = (uint32_t)entry->client + 1;
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        world->devices[d].steps += steps_on(world, entry, d);
        world->devices[d].reserved_bytes += bytes_on(world, entry, d);
    }
}

static void close_islands(world_t *world, size_t ticket)
{
    for (uint32_t i = 0; i < world->island_count; i++)
        if (is_on(world, &world->tickets[ticket], i)) world->chosen[i] = ticket;
    world->waited_count++;
}

static void serve(world_t *world, size_t ticket, bool *awaited)
{
    const entry_t *entry = &world->tickets[ticket];
    bool lost = is_lost(world, entry);
    if (!lost &&
        (is_on_closed(world, entry) || !has_run_ahead(world, entry, awaited))) {
        world->waiting[world->waiting_count++] = ticket;
        for (size_t d = 0; d < DEVICE_COUNT; d++)
            awaited[d] |= needs(world, entry, d);
    } else if (!lost && !fits(world, entry) &&
               is_anything_under_way(world, entry)) {
        close_islands(world, ticket);
    } else {
        expect(world, ticket, lost || !fits(world, entry));
    }
}

static void give_up_place(world_t *world, size_t ticket)
{
    size_t kept = 0;
    for (uint32_t i = 0; i < ISLAND_COUNT; i++)
        if (world->chosen[i] == ticket) world->chosen[i] = NONE;
    for (size_t i = 0; i < world->waiting_count; i++)
        if (world->waiting[i] != ticket)
            world->waiting[kept++] = world->waiting[i];
    world->waiting_count = kept;
}

/* In the order in which they were chosen. */
static size_t list_chosen(const world_t *world, size_t *chosen)
{
    size_t count = 0;
    for (uint32_t i = 0; i < world->island_count; i++) {
        size_t ticket = world->chosen[i];
        bool known = ticket == NONE;
        for (size_t j = 0; j < count; j++)
            known |= chosen[j] == ticket;
        if (known) continue;
        size_t place = count++;
        for (; place > 0 && world->tickets[chosen[place - 1]].order >
                                world->tickets[ticket].order;
             place--)
            chosen[place] = chosen[place - 1];
        chosen[place] = ticket;
    }
    return count;
}

/* Whoever waits for memory, then those that wait for run-ahead, then others. */
static void model_turn(world_t *world)
{
    bool awaited[DEVICE_COUNT] = {false};
    size_t waited[WAITING_MAX], chosen[ISLAND_COUNT];
    size_t waited_count = world->waiting_count;
    size_t chosen_count = list_chosen(world, chosen);
    memcpy(waited, world->waiting, sizeof(waited));
    for (size_t i = 0; i < chosen_count; i++) {
        give_up_place(world, chosen[i]);
        serve(world, chosen[i], awaited);
    }
    world->waiting_count = 0;
    for (size_t i = 0; i < waited_count; i++) {
        if (is_on_open(world, &world->tickets[waited[i]]))
            serve(world, waited[i], awaited);
        else
            world->waiting[world->waiting_count++] = waited[i];
    }
    for (size_t ticket; (ticket = pick(world)) != NONE;) {
        world->tickets[ticket].order = ++world->orders;
        serve(world, ticket, awaited);
    }
}

/* -- Operations --------------------------------------------------------------- */

static size_t random_ticket(world_t *world, tow_ticket_state_t state)
{
    size_t start = below(world, TICKET_COUNT);
    for (size_t i = 0; i < TICKET_COUNT; i++) {
        size_t index = (start + i) % TICKET_COUNT;
        if (world->tickets[index].state == state) return index;
    }
    return NONE;
}

static void fill_ticket(world_t *world, entry_t *entry)
{
    *entry = (entry_t){.client = below(world, CLIENT_COUNT)};
    entry->ticket.client = (uint32_t)entry->client + 1;
    entry->ticket.parts = entry->parts;
    entry->ticket.links = entry->links;
    /* Mostly one part, sometimes none. */
    uint64_t dice = below(world, 10);
    entry->ticket.part_count = dice == 0 ? 0 : dice < 5 ? 1 : dice < 8 ? 2 : 3;
    for (size_t p = 0; p < entry->ticket.part_count; p++) {
        size_t placement = below(world, PLACEMENT_COUNT);
        bool is_long = below(world, 12) == 0;
        bool is_large = below(world, 6) == 0;
        entry->placements[p] = placement;
        entry->parts[p] = (tow_ticket_part_t){
            .placement = world->placements[placement],
            .bytes = below(world, is_large ? 1200 : 200),
            .step_count = (uint32_t)below(world, is_long ? 20 : 4)};
    }
}

static void submit(world_t *world)
{
    size_t index = random_ticket(world, TOW_TICKET_IDLE);
    if (index == NONE) return;
    entry_t *entry = &world->tickets[index];
    fill_ticket(world, entry);
    entry->blockers =
        below(world, 4) == 0 ? (uint32_t)(1 + below(world, 2)) : 0;
    for (uint32_t i = 0; i < entry->blockers; i++)
        tow_ticket_block(world->sched, &entry->ticket);
    entry->arrival = ++world->arrivals;
    entry->state = TOW_TICKET_QUEUED;
    tow_sched_submit(world->sched, &entry->ticket);
}

static void unblock(world_t *world)
{
    size_t start = below(world, TICKET_COUNT);
    for (size_t i = 0; i < TICKET_COUNT; i++) {
        entry_t *entry = &world->tickets[(start + i) % TICKET_COUNT];
        if (entry->state != TOW_TICKET_QUEUED || entry->blockers == 0) continue;
        entry->blockers--;
        tow_ticket_unblock(world->sched, &entry->ticket);
        return;
    }
}

static void block(world_t *world)
{
    size_t index = random_ticket(world, TOW_TICKET_QUEUED);
    if (index == NONE) return;
    world->tickets[index].blockers++;
    tow_ticket_block(world->sched, &world->tickets[index].ticket);
    give_up_place(world, index);
}

static void withdraw(world_t *world)
{
    size_t index = random_ticket(world, TOW_TICKET_QUEUED);
    /* The most delicate one more often than by chance. */
    size_t chosen = world->chosen[below(world, ISLAND_COUNT)];
    if (chosen != NONE && below(world, 3) == 0) index = chosen;
    if (index == NONE) return;
    world->tickets[index].state = TOW_TICKET_IDLE;
    tow_sched_withdraw(world->sched, &world->tickets[index].ticket);
    give_up_place(world, index);
}

/* Its gangs are the next on all their devices. */
static bool can_end(const world_t *world, size_t ticket)
{
    const entry_t *entry = &world->tickets[ticket];
    if (entry->state != TOW_TICKET_GRANTED) return false;
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (needs(world, entry, d) && world->devices[d].queue[0] != ticket)
            return false;
    return true;
}

static size_t random_end(world_t *world)
{
    size_t start = below(world, TICKET_COUNT);
    for (size_t i = 0; i < TICKET_COUNT; i++)
        if (can_end(world, (start + i) % TICKET_COUNT))
            return (start + i) % TICKET_COUNT;
    /* Something always can. */
    assert_int_equal(random_ticket(world, TOW_TICKET_GRANTED), NONE);
    return NONE;
}

static void finish(world_t *world)
{
    size_t index = random_end(world);
    if (index == NONE) return;
    entry_t *entry = &world->tickets[index];
    entry->state = TOW_TICKET_IDLE;
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        device_t *device = &world->devices[d];
        device->steps -= steps_on(world, entry, d);
        device->reserved_bytes -= bytes_on(world, entry, d);
        if (!needs(world, entry, d)) continue;
        device->queue_count--;
        memmove(device->queue, device->queue + 1,
                device->queue_count * sizeof(*device->queue));
    }
    tow_sched_finish(world->sched, &entry->ticket);
}

/* An object comes to a placement, or goes. */
static void shift_ballast(world_t *world)
{
    size_t placement = below(world, PLACEMENT_COUNT);
    tow_object_id_t id = {tow_key(1, 1 + placement)};
    tow_object_t **object = &world->ballast[placement];
    bool comes = *object == NULL;
    uint64_t bytes = comes ? below(world, 200) : (*object)->bytes;
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        if (world->on[placement][d])
            world->devices[d].ballast_bytes += comes ? bytes : -bytes;
    if (comes) {
        tow_object_options_t options = {.id = id,
                                        .state = TOW_OBJECT_ARRIVING,
                                        .bytes = bytes,
                                        .placement =
                                            world->placements[placement],
                                        .count_bytes = true};
        assert_null(tow_ledger_add(world->ledger, &options, object));
    } else {
        assert_null(tow_ledger_release(world->ledger, id));
        *object = NULL;
    }
    tow_sched_poke(world->sched, world->placements[placement]);
}

static void lose_device(world_t *world)
{
    size_t device = below(world, DEVICE_COUNT);
    tow_ledger_lose_account(world->ledger, world->accounts[device],
                            tow_status_bare(TOW_UNAVAILABLE));
    world->devices[device].lost = true;
    tow_sched_poke(world->sched, NULL);
}

static void turn(world_t *world)
{
    world->real_count = world->expected_count = 0;
    tow_sched_turn(world->sched);
    model_turn(world);
}

/* -- Comparing ---------------------------------------------------------------- */

static void compare_device(const world_t *world, size_t device)
{
    const device_t *model = &world->devices[device];
    const tow_account_t *account = world->accounts[device];
    assert_int_equal(account->step_count, model->steps);
    assert_int_equal(account->scratch_bytes_, 0);
    assert_int_equal(account->scratch_steps_, 0);
    if (model->lost) return;
    assert_int_equal(account->reserved_bytes, model->reserved_bytes);
    assert_int_equal(account->object_bytes, model->ballast_bytes);
    /* Bounded, but for one that is alone. */
    if (model->steps <= RUN_AHEAD_MAX) return;
    size_t count = 0;
    for (size_t t = 0; t < TICKET_COUNT; t++)
        if (world->tickets[t].state == TOW_TICKET_GRANTED)
            count += steps_on(world, &world->tickets[t], device) > 0;
    assert_int_equal(count, 1);
}

static void compare_island(const world_t *world, uint32_t island)
{
    tow_island_stats_t stats = tow_sched_island_stats(world->sched, island);
    size_t queued_count = 0, under_way_count = 0, waiting_count = 0;
    for (size_t t = 0; t < TICKET_COUNT; t++) {
        const entry_t *entry = &world->tickets[t];
        if (!is_on(world, entry, island)) continue;
        queued_count += entry->state == TOW_TICKET_QUEUED;
        under_way_count += entry->state == TOW_TICKET_GRANTED;
        waiting_count += is_waiting(world, t);
    }
    assert_int_equal(stats.queued_count, queued_count);
    assert_int_equal(stats.under_way_count, under_way_count);
    assert_int_equal(stats.run_ahead_count, waiting_count);
    size_t chosen = world->chosen[island];
    assert_int_equal(stats.short_client,
                     chosen == NONE ? 0 : world->tickets[chosen].client + 1);
}

static void compare(const world_t *world)
{
    size_t queued_count = 0;
    assert_int_equal(world->real_count, world->expected_count);
    for (size_t i = 0; i < world->real_count; i++) {
        assert_int_equal(world->real[i].ticket, world->expected[i].ticket);
        assert_int_equal(world->real[i].refused, world->expected[i].refused);
    }
    for (size_t t = 0; t < TICKET_COUNT; t++) {
        assert_int_equal(world->tickets[t].ticket.state,
                         world->tickets[t].state);
        queued_count += world->tickets[t].state == TOW_TICKET_QUEUED;
    }
    tow_sched_stats_t stats = tow_sched_stats(world->sched);
    assert_int_equal(stats.queued_count, queued_count);
    assert_int_equal(stats.submitted, stats.granted + stats.refused +
                                          stats.withdrawn + queued_count);
    for (uint32_t i = 0; i < world->island_count; i++)
        compare_island(world, i);
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        compare_device(world, d);
    assert_null(tow_ledger_check(world->ledger));
}

/* -- Worlds ------------------------------------------------------------------- */

static void make_placement(world_t *world, size_t index)
{
    tow_account_t *chosen[DEVICE_COUNT];
    size_t count = 0;
    size_t first = below(world, DEVICE_COUNT);
    bool spans = below(world, 4) == 0;
    for (size_t i = 0; i < DEVICE_COUNT; i++) {
        size_t device = (first + i) % DEVICE_COUNT;
        if (i > 0 && below(world, 2) == 0) continue;
        if (!spans &&
            world->devices[device].island != world->devices[first].island)
            continue;
        world->on[index][device] = true;
        chosen[count++] = world->accounts[device];
    }
    assert_null(tow_ledger_place(world->ledger, chosen, count, NULL,
                                 &world->placements[index]));
}

static void make_world(world_t *world, uint64_t seed, bool is_round_robin,
                       const tow_sched_policy_t *policy)
{
    memset(world, 0, sizeof(*world));
    for (size_t i = 0; i < ISLAND_COUNT; i++)
        world->chosen[i] = NONE;
    world->is_round_robin = is_round_robin;
    tow_random_init(&world->random, seed);
    assert_null(tow_ledger_create(&(tow_ledger_options_t){0}, &world->ledger));
    world->island_count = (uint32_t)(1 + below(world, ISLAND_COUNT));
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        assert_null(tow_ledger_add_account(world->ledger, LIMIT_BYTES,
                                           &world->accounts[d]));
        world->devices[d].island = (uint32_t)d % world->island_count;
        world->accounts[d]->island = (uint8_t)world->devices[d].island;
    }
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        make_placement(world, p);
    tow_sched_options_t options = {.policy = policy,
                                   .run_ahead_max = RUN_AHEAD_MAX,
                                   .grant = note_granted,
                                   .refuse = note_refused,
                                   .context = world};
    assert_null(tow_sched_create(&options, &world->sched));
    /* Islands and clients come in any order. */
    for (uint32_t i = 0; i < world->island_count; i += 2)
        assert_null(tow_sched_add_island(world->sched, i));
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++)
        assert_null(tow_sched_add_client(world->sched, c));
    for (uint32_t i = 0; i < world->island_count; i++)
        assert_null(tow_sched_add_island(world->sched, i));
}

static void act(world_t *world)
{
    uint64_t dice = below(world, 2000);
    if (dice < 700)
        submit(world);
    else if (dice < 1250)
        finish(world);
    else if (dice < 1400)
        unblock(world);
    else if (dice < 1450)
        block(world);
    else if (dice < 1550)
        withdraw(world);
    else if (dice < 1650)
        shift_ballast(world);
    else if (dice < 1999)
        turn(world);
    else
        lose_device(world);
}

static bool is_idle(const world_t *world)
{
    tow_sched_stats_t stats = tow_sched_stats(world->sched);
    return stats.queued_count + stats.under_way_count == 0;
}

/* When nothing comes any more, everything ends: nobody waits for ever. */
static void wind_down(world_t *world)
{
    for (size_t t = 0; t < TICKET_COUNT; t++)
        for (size_t i = 0; i < TICKET_COUNT; i++)
            unblock(world);
    for (size_t i = 0; !is_idle(world); i++) {
        assert_true(i < TICKET_COUNT * 2);
        turn(world);
        compare(world);
        finish(world);
    }
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        assert_int_equal(world->accounts[d]->step_count, 0);
    assert_int_equal(tow_ledger_totals(world->ledger).reserved_bytes, 0);
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++)
        tow_sched_remove_client(world->sched, c);
    tow_sched_destroy(world->sched);
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        tow_placement_release(world->placements[p]);
    tow_ledger_destroy(world->ledger);
}

static void run_seeds(bool is_round_robin)
{
    static world_t world;
    const tow_sched_policy_t round_robin = {.name = "round robin",
                                            .choose = choose_next,
                                            .served = remember_served,
                                            .context = &world};
    size_t granted = 0, refused = 0, waited = 0, spanning = 0;
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        make_world(&world, seed, is_round_robin,
                   is_round_robin ? &round_robin : NULL);
        for (size_t step = 0; step < 2000; step++) {
            act(&world);
            compare(&world);
        }
        wind_down(&world);
        granted += world.granted_count;
        refused += world.refused_count;
        waited += world.waited_count;
        spanning += world.spanning_count;
    }
    fprintf(stderr,
            "%zu granted, %zu of them on several islands, %zu refused, %zu "
            "times waited for memory\n",
            granted, spanning, refused, waited);
    /* The test did something. */
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
