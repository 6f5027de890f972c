/* Islands that do not wait for each other, and tickets that span them. */
#include "base/testing.h"

#include <string.h>

#include "sched/sched.h"

#define ISLAND_COUNT  3 /* X, Y and Z, of two devices each */
#define LIMIT_BYTES   1000
#define RUN_AHEAD_MAX 4
#define EVENT_COUNT   64

enum {
    X,
    Y,
    Z
};

typedef struct fixture {
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_account_t *accounts[ISLAND_COUNT * 2];
    tow_placement_t *on[ISLAND_COUNT];    /* both devices */
    tow_placement_t *first[ISLAND_COUNT]; /* one of them */
    const tow_ticket_t *granted[EVENT_COUNT];
    size_t granted_count;
    const tow_ticket_t *refused;
    tow_status_t refusal;
} fixture_t;

static void note_granted(void *context, tow_ticket_t *ticket)
{
    fixture_t *fixture = context;
    assert_true(fixture->granted_count < EVENT_COUNT);
    fixture->granted[fixture->granted_count++] = ticket;
    assert_int_equal(ticket->number, fixture->granted_count);
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    fixture_t *fixture = context;
    assert_null(fixture->refused);
    fixture->refused = ticket;
    fixture->refusal = take_status;
}

static void make_island(fixture_t *fixture, uint32_t island)
{
    tow_account_t **accounts = &fixture->accounts[island * 2];
    for (size_t i = 0; i < 2; i++) {
        assert_null(tow_object_table_add_account(fixture->object_table,
                                                 LIMIT_BYTES, &accounts[i]));
        accounts[i]->island = (uint8_t)island;
    }
    assert_null(tow_object_table_place(fixture->object_table, accounts, 2, NULL,
                                       &fixture->on[island]));
    assert_null(tow_object_table_place(fixture->object_table, accounts, 1, NULL,
                                       &fixture->first[island]));
    assert_null(tow_sched_add_island(fixture->sched, island));
}

static int set_up(void **state)
{
    static fixture_t fixture;
    memset(&fixture, 0, sizeof(fixture));
    assert_null(tow_object_table_create(&(tow_object_table_options_t){0},
                                        &fixture.object_table));
    assert_null(
        tow_sched_create(&(tow_sched_options_t){.run_ahead_ns = RUN_AHEAD_MAX,
                                                .gang_count_min = 1,
                                                .grant = note_granted,
                                                .refuse = note_refused,
                                                .context = &fixture},
                         &fixture.sched));
    for (uint32_t client = 1; client <= 4; client++)
        assert_null(tow_sched_add_client(fixture.sched, client));
    for (uint32_t i = 0; i < ISLAND_COUNT; i++)
        make_island(&fixture, i);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    assert_null(tow_object_table_check(fixture->object_table));
    tow_status_release(fixture->refusal);
    tow_sched_destroy(fixture->sched);
    for (uint32_t i = 0; i < ISLAND_COUNT; i++) {
        tow_placement_release(fixture->on[i]);
        tow_placement_release(fixture->first[i]);
    }
    tow_object_table_destroy(fixture->object_table);
    return 0;
}

/* A run with a part on one island or on two. */
typedef struct run {
    tow_ticket_t ticket;
    tow_ticket_part_t parts[2];
    tow_ticket_link_t links[2];
} run_t;

static run_t on_one(uint32_t client, tow_placement_t *where, uint64_t bytes,
                    uint32_t steps)
{
    return (run_t){
        .ticket = {.client = client, .part_count = 1, .next = {.step_ns = 1}},
        .parts = {{where, bytes, steps}}};
}

static run_t on_two(uint32_t client, tow_placement_t *one,
                    tow_placement_t *other, uint64_t bytes)
{
    return (run_t){
        .ticket = {.client = client, .part_count = 2, .next = {.step_ns = 1}},
        .parts = {{one, bytes, 1}, {other, bytes, 1}}};
}

static void submit(fixture_t *fixture, run_t *run)
{
    run->ticket.parts = run->parts;
    run->ticket.links = run->links;
    tow_sched_submit(fixture->sched, &run->ticket);
}

static void run_pass(fixture_t *fixture)
{
    tow_sched_pass(fixture->sched);
    assert_null(tow_sched_check(fixture->sched));
    assert_null(tow_object_table_check(fixture->object_table));
}

static void finish(fixture_t *fixture, run_t *run)
{
    tow_sched_finish(fixture->sched, &run->ticket);
    run_pass(fixture);
}

static bool is_granted(const run_t *run)
{
    return run->ticket.state == TOW_TICKET_GRANTED;
}

/* -- One island at a time -------------------------------------------------- */

static void an_island_short_of_memory_does_not_delay_another(void **state)
{
    fixture_t *fixture = *state;
    run_t a = on_one(1, fixture->on[X], 900, 1);
    run_t b = on_one(2, fixture->on[X], 900, 1); /* Closes X. */
    run_t c = on_one(3, fixture->first[X], 10, 1);
    run_t d = on_one(4, fixture->on[Y], 900, 1);
    run_t e = on_one(2, fixture->on[Z], 10, 1); /* The same client as b. */
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    submit(fixture, &e);
    run_pass(fixture);
    assert_true(is_granted(&a) && is_granted(&d) && is_granted(&e));
    assert_false(is_granted(&b) || is_granted(&c));
    assert_int_equal(
        tow_sched_island_stats(fixture->sched, X).memory_waiting_client, 2);
    assert_int_equal(
        tow_sched_island_stats(fixture->sched, Y).memory_waiting_client, 0);
    finish(fixture, &a);
    assert_true(is_granted(&b) && is_granted(&c));
}

static void a_ticket_too_large_is_refused_when_its_island_is_idle(void **state)
{
    fixture_t *fixture = *state;
    run_t busy = on_one(1, fixture->on[Y], 10, 1);
    run_t large = on_one(2, fixture->on[X], LIMIT_BYTES + 1, 1);
    submit(fixture, &busy);
    submit(fixture, &large);
    run_pass(fixture);
    assert_true(is_granted(&busy)); /* It cannot free memory on X. */
    assert_ptr_equal(fixture->refused, &large.ticket);
    assert_int_equal(tow_status_code(fixture->refusal), TOW_RESOURCE_EXHAUSTED);
}

static void full_queues_and_uploads_delay_only_their_island(void **state)
{
    fixture_t *fixture = *state;
    run_t a = on_one(1, fixture->on[X], 0, RUN_AHEAD_MAX);
    run_t b = on_one(1, fixture->on[X], 0, 1); /* X is full. */
    run_t c = on_one(1, fixture->on[Y], 0, 1); /* It waits for an upload. */
    run_t d = on_one(1, fixture->on[Z], 0, 1);
    tow_ticket_block(fixture->sched, &c.ticket);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    run_pass(fixture);
    assert_true(is_granted(&a) && is_granted(&d));
    assert_false(is_granted(&b) || is_granted(&c));
    assert_int_equal(tow_sched_island_stats(fixture->sched, X).run_ahead_count,
                     1);
    tow_ticket_unblock(fixture->sched, &c.ticket);
    run_pass(fixture);
    assert_true(is_granted(&c) && !is_granted(&b));
}

/* -- Several islands ------------------------------------------------------- */

/* A on X -> B on Y, and C on Y -> D on X. If each island ordered its gangs
 * alone, X might have D before A and Y B before C, a deadlock: D waits for C
 * behind B, which waits for A behind D. A program is granted on both islands at
 * once, so one of the two is first on both. */
static void crossing_tickets_have_one_order_on_both_islands(void **state)
{
    fixture_t *fixture = *state;
    run_t ab = on_two(1, fixture->on[X], fixture->on[Y], 600);
    run_t cd = on_two(2, fixture->on[Y], fixture->on[X], 600);
    run_t x = on_one(3, fixture->on[X], 300, 1);
    run_t y = on_one(4, fixture->on[Y], 300, 1);
    submit(fixture, &x);
    submit(fixture, &cd);
    submit(fixture, &ab);
    submit(fixture, &y);
    run_pass(fixture);
    /* There is memory for one of the two, which gets it on both islands. */
    assert_true(is_granted(&x) && is_granted(&cd));
    assert_false(is_granted(&ab) || is_granted(&y));
    finish(fixture, &x);
    assert_false(is_granted(&ab));
    finish(fixture, &cd);
    assert_true(is_granted(&ab) && is_granted(&y));
    assert_true(cd.ticket.number < ab.ticket.number);
}

static void a_ticket_short_of_memory_on_two_islands_does_not_delay_a_third(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = on_one(1, fixture->on[X], 900, 1);
    run_t spanning = on_two(2, fixture->first[X], fixture->first[Y], 200);
    run_t y = on_one(3, fixture->on[Y], 10, 1);
    run_t z = on_one(3, fixture->on[Z], 10, 1);
    submit(fixture, &a);
    submit(fixture, &spanning);
    submit(fixture, &y);
    submit(fixture, &z);
    run_pass(fixture);
    assert_true(is_granted(&a) && is_granted(&z));
    /* Nothing is reserved on Y while X is short; nothing overtakes there. */
    assert_false(is_granted(&spanning) || is_granted(&y));
    assert_int_equal(fixture->accounts[2]->reserved_bytes, 0);
    finish(fixture, &a);
    assert_true(is_granted(&spanning) && is_granted(&y));
    assert_true(spanning.ticket.number < y.ticket.number);
}

/* While Y waits for memory, a ticket that spans X and Y waits behind it, and
 * keeps its position on its devices of X; other devices of X continue. */
static void a_ticket_that_waits_for_a_closed_island_keeps_its_position(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = on_one(1, fixture->on[Y], 900, 1);
    run_t b = on_one(2, fixture->on[Y], 900, 1); /* Closes Y. */
    run_t spanning = on_two(3, fixture->first[X], fixture->on[Y], 10);
    run_t later = on_one(4, fixture->first[X], 10, 1);
    tow_placement_t *second;
    assert_null(tow_object_table_place(
        fixture->object_table, &fixture->accounts[1], 1, NULL, &second));
    run_t aside = on_one(1, second, 10, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &spanning);
    submit(fixture, &later);
    submit(fixture, &aside);
    run_pass(fixture);
    assert_true(is_granted(&a) && is_granted(&aside));
    assert_false(is_granted(&spanning) || is_granted(&later));
    finish(fixture, &a);
    assert_true(is_granted(&b) && is_granted(&spanning) && is_granted(&later));
    assert_true(spanning.ticket.number < later.ticket.number);
    finish(fixture, &aside);
    tow_placement_release(second);
}

/* One gang with devices of two islands: one part; otherwise as tickets with
 * several parts. */
static void a_gang_over_islands_is_granted_on_both_at_once(void **state)
{
    fixture_t *fixture = *state;
    tow_placement_t *both;
    assert_null(tow_object_table_place(fixture->object_table, fixture->accounts,
                                       4, NULL, &both));
    run_t a = on_one(1, fixture->first[X], 0, RUN_AHEAD_MAX);
    run_t gang = on_one(2, both, 10, 1);
    run_t later_x = on_one(3, fixture->on[X], 10, 1);
    run_t later_y = on_one(4, fixture->first[Y], 10, 1);
    run_t z = on_one(3, fixture->on[Z], 10, 1);
    assert_int_equal(tow_ticket_link_count(gang.parts, 1), 2);
    submit(fixture, &a);
    submit(fixture, &gang);
    submit(fixture, &later_x);
    submit(fixture, &later_y);
    submit(fixture, &z);
    run_pass(fixture);
    assert_true(is_granted(&a) && is_granted(&z));
    /* It keeps its position on the devices of Y, though only X is busy, also in
     * a pass over Y alone. */
    tow_sched_notify(fixture->sched, fixture->on[Y]);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 2);
    finish(fixture, &a);
    assert_int_equal(fixture->granted_count, 5);
    assert_true(gang.ticket.number < later_x.ticket.number);
    assert_true(gang.ticket.number < later_y.ticket.number);
    for (size_t i = 0; i < 4; i++)
        assert_true(fixture->accounts[i]->reserved_bytes >= 10);
    finish(fixture, &gang);
    tow_placement_release(both);
}

/* After the withdrawal of a ticket that spans islands, its reservations are
 * removed even in passes over one of the islands. */
static void a_withdrawn_gang_over_islands_delays_no_others(void **state)
{
    fixture_t *fixture = *state;
    tow_placement_t *both;
    assert_null(tow_object_table_place(fixture->object_table, fixture->accounts,
                                       4, NULL, &both));
    run_t a = on_one(1, fixture->on[X], 0, RUN_AHEAD_MAX);
    run_t gang = on_one(2, both, 10, 1);
    run_t y = on_one(3, fixture->on[Y], 10, 1);
    submit(fixture, &a);
    submit(fixture, &gang);
    submit(fixture, &y);
    run_pass(fixture);
    assert_true(is_granted(&a));
    assert_false(is_granted(&gang) || is_granted(&y));
    tow_sched_withdraw(fixture->sched, &gang.ticket);
    run_pass(fixture);
    assert_true(is_granted(&y));
    finish(fixture, &y);
    run_t again = on_one(2, both, 10, 1);
    submit(fixture, &again);
    finish(fixture, &a);
    assert_true(is_granted(&again));
    finish(fixture, &again);
    tow_placement_release(both);
}

static void tickets_of_a_client_keep_their_order_on_shared_islands(void **state)
{
    fixture_t *fixture = *state;
    run_t x = on_one(1, fixture->on[X], 0, RUN_AHEAD_MAX);
    run_t waits = on_one(1, fixture->on[X], 0, 1);
    run_t spanning = on_two(1, fixture->on[X], fixture->on[Y], 0);
    run_t y = on_one(1, fixture->on[Y], 0, 1);
    submit(fixture, &x);
    submit(fixture, &waits);
    submit(fixture, &spanning);
    submit(fixture, &y);
    run_pass(fixture);
    /* y comes after spanning on Y, which comes after waits on X. */
    assert_int_equal(fixture->granted_count, 1);
    finish(fixture, &x);
    assert_int_equal(fixture->granted_count, 4);
    assert_true(waits.ticket.number < spanning.ticket.number);
    assert_true(spanning.ticket.number < y.ticket.number);
}

/* Crossing tickets with little memory: whenever all granted ones have finished
 * the oldest is granted, so all are granted in the end. */
static void the_oldest_ticket_can_always_finish(void **state)
{
    fixture_t *fixture = *state;
    enum {
        COUNT = 24
    };
    static run_t runs[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t one = i % ISLAND_COUNT, other = (i + 1 + i % 2) % ISLAND_COUNT;
        runs[i] = i % 4 == 3 ? on_one(1 + i % 4, fixture->on[one], 700, 1)
                             : on_two(1 + i % 4, fixture->on[one],
                                      fixture->on[other], 400 + 100 * (i % 3));
        submit(fixture, &runs[i]);
    }
    run_pass(fixture);
    for (size_t done = 0; done < COUNT; done++) {
        assert_true(done < fixture->granted_count);
        finish(fixture,
               TOW_CONTAINER_OF(fixture->granted[done], run_t, ticket));
    }
    assert_int_equal(tow_sched_stats(fixture->sched).queued_count, 0);
}

static void withdrawn_and_blocked_tickets_open_all_their_islands(void **state)
{
    fixture_t *fixture = *state;
    run_t a = on_one(1, fixture->on[X], 900, 1);
    run_t spanning = on_two(2, fixture->on[X], fixture->on[Y], 200);
    run_t y = on_one(3, fixture->on[Y], 10, 1);
    submit(fixture, &a);
    submit(fixture, &spanning);
    submit(fixture, &y);
    run_pass(fixture);
    assert_false(is_granted(&y));
    tow_ticket_block(fixture->sched, &spanning.ticket);
    run_pass(fixture);
    assert_true(is_granted(&y));
    tow_ticket_unblock(fixture->sched, &spanning.ticket);
    run_pass(fixture);
    assert_int_equal(
        tow_sched_island_stats(fixture->sched, Y).memory_waiting_client, 2);
    tow_sched_withdraw(fixture->sched, &spanning.ticket);
    run_pass(fixture);
    assert_int_equal(
        tow_sched_island_stats(fixture->sched, Y).memory_waiting_client, 0);
    assert_int_equal(tow_sched_island_stats(fixture->sched, X).queued_count, 0);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

TOW_TEST_MAIN(
    WITH(an_island_short_of_memory_does_not_delay_another),
    WITH(a_ticket_too_large_is_refused_when_its_island_is_idle),
    WITH(full_queues_and_uploads_delay_only_their_island),
    WITH(crossing_tickets_have_one_order_on_both_islands),
    WITH(a_ticket_short_of_memory_on_two_islands_does_not_delay_a_third),
    WITH(a_ticket_that_waits_for_a_closed_island_keeps_its_position),
    WITH(a_gang_over_islands_is_granted_on_both_at_once),
    WITH(a_withdrawn_gang_over_islands_delays_no_others),
    WITH(tickets_of_a_client_keep_their_order_on_shared_islands),
    WITH(the_oldest_ticket_can_always_finish),
    WITH(withdrawn_and_blocked_tickets_open_all_their_islands))
