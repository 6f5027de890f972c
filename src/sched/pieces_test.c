/* Tickets that are granted in pieces, and tickets that are chosen late. */
#include "base/testing.h"

#include <string.h>

#include "sched/sched.h"
#include "sched/tuning.h"

#define EVENT_COUNT 256

typedef struct run {
    tow_ticket_t ticket;
    tow_ticket_part_t part;
    tow_ticket_link_t links[2];
    uint32_t steps_each;      /* of a piece; 0: it is granted whole */
    uint32_t left;            /* pieces after the next one */
    const tow_ticket_t *user; /* it waits until that is granted completely */
} run_t;

typedef struct fixture {
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_account_t *accounts[3]; /* the last is on another island */
    tow_placement_t *both, *first, *second;
    tow_placement_t *other, *spanning; /* the last, and the last two */
    const run_t *granted[EVENT_COUNT];
    size_t granted_count;
    size_t refused_count;
    uint32_t preferred; /* the client that the policy prefers */
    uint64_t charged_ns[4];
} fixture_t;

static run_t *run_of(const tow_ticket_t *ticket)
{
    return TOW_CONTAINER_OF((tow_ticket_t *)ticket, run_t, ticket);
}

static void note_granted(void *context, tow_ticket_t *ticket)
{
    fixture_t *fixture = context;
    run_t *run = run_of(ticket);
    assert_true(fixture->granted_count < EVENT_COUNT);
    fixture->granted[fixture->granted_count++] = run;
    assert_int_equal(ticket->number, fixture->granted_count);
    if (run->steps_each == 0 || run->left == 0) return;
    run->left--;
    ticket->next.is_last = run->left == 0;
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    (void)ticket;
    ((fixture_t *)context)->refused_count++;
    tow_status_release(take_status);
}

static bool is_held(void *context, const tow_ticket_t *ticket)
{
    (void)context;
    const tow_ticket_t *user = run_of(ticket)->user;
    return user != NULL && user->state == TOW_TICKET_PARTLY;
}

static tow_placement_t *place(fixture_t *fixture, size_t first, size_t count)
{
    tow_placement_t *placement;
    assert_null(tow_object_table_place(fixture->object_table,
                                       &fixture->accounts[first], count, NULL,
                                       &placement));
    return placement;
}

static int set_up(void **state)
{
    static fixture_t fixture;
    memset(&fixture, 0, sizeof(fixture));
    assert_null(tow_object_table_create(&(tow_object_table_options_t){0},
                                        &fixture.object_table));
    for (size_t i = 0; i < TOW_COUNT_OF(fixture.accounts); i++)
        assert_null(tow_object_table_add_account(fixture.object_table, 1000,
                                                 &fixture.accounts[i]));
    fixture.accounts[2]->island = 1;
    fixture.both = place(&fixture, 0, 2);
    fixture.first = place(&fixture, 0, 1);
    fixture.second = place(&fixture, 1, 1);
    fixture.other = place(&fixture, 2, 1);
    fixture.spanning = place(&fixture, 1, 2);
    const tow_sched_options_t options = {.run_ahead_ns = 8,
                                         .gang_count_min = 2,
                                         .grant = note_granted,
                                         .refuse = note_refused,
                                         .is_held = is_held,
                                         .context = &fixture};
    assert_null(tow_sched_create(&options, &fixture.sched));
    assert_null(tow_sched_add_island(fixture.sched, 1));
    for (uint32_t client = 1; client <= 3; client++)
        assert_null(tow_sched_add_client(fixture.sched, client));
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    assert_int_equal(tow_sched_stats(fixture->sched).under_way_count, 0);
    assert_int_equal(tow_sched_stats(fixture->sched).partly_count, 0);
    for (size_t i = 0; i < TOW_COUNT_OF(fixture->accounts); i++) {
        assert_int_equal(fixture->accounts[i]->gang_count, 0);
        assert_int_equal(fixture->accounts[i]->queued_ns, 0);
        assert_int_equal(fixture->accounts[i]->reserved_bytes, 0);
    }
    tow_sched_destroy(fixture->sched);
    tow_placement_release(fixture->both);
    tow_placement_release(fixture->first);
    tow_placement_release(fixture->second);
    tow_placement_release(fixture->other);
    tow_placement_release(fixture->spanning);
    tow_object_table_destroy(fixture->object_table);
    return 0;
}

static run_t whole(uint32_t client, tow_placement_t *where, uint64_t bytes,
                   uint32_t ns)
{
    return (run_t){.ticket = {.client = client, .next = {.step_ns = ns}},
                   .part = {where, bytes, 1}};
}

static const uint32_t one_step[] = {1};

static run_t in_pieces(uint32_t client, tow_placement_t *where, uint64_t bytes,
                       uint32_t count)
{
    return (run_t){.ticket = {.client = client,
                              .next = {.step_counts = one_step, .step_ns = 8}},
                   .part = {where, bytes, count},
                   .steps_each = 1,
                   .left = count - 1};
}

static void submit(fixture_t *fixture, run_t *run)
{
    run->ticket.parts = &run->part;
    run->ticket.part_count = 1;
    run->ticket.links = run->links;
    tow_sched_submit(fixture->sched, &run->ticket);
}

static void pass(fixture_t *fixture)
{
    tow_sched_pass(fixture->sched);
    assert_null(tow_sched_check(fixture->sched));
    assert_null(tow_object_table_check(fixture->object_table));
}

static void end_piece(fixture_t *fixture, run_t *run)
{
    tow_sched_piece_ended(fixture->sched, &run->ticket);
    pass(fixture);
}

static void finish(fixture_t *fixture, run_t *run)
{
    tow_sched_finish(fixture->sched, &run->ticket);
    pass(fixture);
}

static void assert_granted(const fixture_t *fixture, size_t count,
                           const run_t *const *runs)
{
    assert_int_equal(fixture->granted_count, count);
    for (size_t i = 0; i < count; i++)
        assert_ptr_equal(fixture->granted[i], runs[i]);
}
#define ASSERT_GRANTED(fixture, ...)                                         \
    assert_granted((fixture),                                                \
                   sizeof((const run_t *[]){__VA_ARGS__}) / sizeof(run_t *), \
                   (const run_t *[]){__VA_ARGS__})

/* -- Pieces ---------------------------------------------------------------- */

static void pieces_of_a_run_are_granted_two_at_a_time(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 100, 4);
    submit(fixture, &a);
    pass(fixture);
    ASSERT_GRANTED(fixture, &a, &a);
    assert_int_equal(a.ticket.state, TOW_TICKET_PARTLY);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &a);
    assert_int_equal(a.ticket.state, TOW_TICKET_GRANTED);
    assert_int_equal(fixture->accounts[0]->reserved_bytes, 100);
    finish(fixture, &a);
}

static void a_short_run_goes_between_two_pieces(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 0, 5);
    run_t b = whole(2, fixture->both, 0, 1);
    submit(fixture, &a);
    pass(fixture);
    submit(fixture, &b);
    pass(fixture);
    ASSERT_GRANTED(fixture, &a, &a);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &b);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &b, &a);
    finish(fixture, &b);
    ASSERT_GRANTED(fixture, &a, &a, &b, &a, &a);
    finish(fixture, &a);
}

static void pieces_of_two_runs_of_a_client_alternate(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->first, 0, 3);
    run_t b = in_pieces(1, fixture->second, 0, 3);
    submit(fixture, &a);
    submit(fixture, &b);
    pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b, &a, &b);
    finish(fixture, &a);
    finish(fixture, &b);
}

static void a_run_that_stops_between_pieces_gets_no_more(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 100, 4);
    submit(fixture, &a);
    pass(fixture);
    tow_sched_stop(fixture->sched, &a.ticket);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a);
    finish(fixture, &a);
}

static void pieces_go_on_while_another_waits_for_memory(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 600, 4);
    run_t b = whole(2, fixture->both, 600, 1),
          c = whole(3, fixture->both, 1, 1);
    submit(fixture, &a);
    pass(fixture);
    submit(fixture, &b);
    submit(fixture, &c);
    end_piece(fixture, &a);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &a);
    finish(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &a, &b, &c);
    finish(fixture, &b);
    finish(fixture, &c);
}

static void a_held_run_waits_until_another_is_granted_completely(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->first, 0, 3);
    run_t b = whole(1, fixture->second, 0, 1);
    b.user = &a.ticket;
    submit(fixture, &a);
    submit(fixture, &b);
    pass(fixture);
    ASSERT_GRANTED(fixture, &a, &a);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &b);
    finish(fixture, &a);
    finish(fixture, &b);
}

/* Its owner stops it, but perhaps later. */
static void pieces_go_on_after_a_device_has_disconnected(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 600, 4);
    run_t b = whole(2, fixture->second, 600, 1);
    submit(fixture, &a);
    pass(fixture);
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[0],
                                   tow_status_bare(TOW_UNAVAILABLE));
    tow_sched_notify(fixture->sched, NULL);
    submit(fixture, &b); /* It waits for memory on the other device. */
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a);
    finish(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &b);
    finish(fixture, &b);
}

static void a_run_of_another_island_is_held_no_longer_than_needed(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 0, 3);
    run_t b = whole(1, fixture->other, 0, 1);
    run_t c = whole(1, fixture->other, 0, 1);
    b.user = c.user = &a.ticket;
    submit(fixture, &a);
    submit(fixture, &b);
    pass(fixture);
    ASSERT_GRANTED(fixture, &a, &a);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &b);
    finish(fixture, &a);
    finish(fixture, &b);
    /* The same if it is stopped. */
    a = in_pieces(1, fixture->both, 0, 3);
    submit(fixture, &a);
    submit(fixture, &c);
    pass(fixture);
    tow_sched_stop(fixture->sched, &a.ticket);
    pass(fixture);
    ASSERT_GRANTED(fixture, &a, &a, &a, &b, &a, &a, &c);
    finish(fixture, &a);
    finish(fixture, &c);
}

/* `c` spans to an island where `b` waits for memory of `a`. It waits for `b`, and
 * must not keep `a` from its devices: each of the three would wait for the
 * next. */
static void a_run_behind_a_closed_island_does_not_hold_up_pieces(void **state)
{
    fixture_t *fixture = *state;
    run_t a = in_pieces(1, fixture->both, 600, 4);
    run_t b = whole(2, fixture->both, 600, 1);
    run_t c = whole(3, fixture->spanning, 0, 1);
    submit(fixture, &a);
    pass(fixture);
    submit(fixture, &b);
    submit(fixture, &c);
    end_piece(fixture, &a);
    end_piece(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &a);
    finish(fixture, &a);
    ASSERT_GRANTED(fixture, &a, &a, &a, &a, &b, &c);
    finish(fixture, &b);
    finish(fixture, &c);
}

/* -- Choosing late --------------------------------------------------------- */

static size_t choose_preferred(void *context,
                               const tow_ticket_t *const *tickets, size_t count)
{
    const fixture_t *fixture = context;
    for (size_t i = 0; i < count; i++)
        if (tickets[i]->client == fixture->preferred) return i;
    return 0;
}

static void note_charged(void *context, const tow_ticket_t *ticket,
                         uint64_t device_ns)
{
    ((fixture_t *)context)->charged_ns[ticket->client] += device_ns;
}

static void the_policy_is_asked_when_a_device_has_room(void **state)
{
    fixture_t *fixture = *state;
    const tow_sched_policy_t policy = {.name = "preferred",
                                       .choose = choose_preferred,
                                       .charged = note_charged,
                                       .context = fixture};
    run_t a[2] = {whole(1, fixture->both, 0, 8), whole(1, fixture->both, 0, 8)};
    run_t b = whole(2, fixture->both, 0, 8), c = whole(3, fixture->both, 0, 8);
    submit(fixture, &a[0]);
    submit(fixture, &a[1]);
    pass(fixture);
    submit(fixture, &b);
    submit(fixture, &c);
    pass(fixture); /* `b` waits, and is the head. */
    fixture->preferred = 3;
    tow_sched_set_policy(fixture->sched, &policy);
    finish(fixture, &a[0]);
    ASSERT_GRANTED(fixture, &a[0], &a[1], &c);
    finish(fixture, &a[1]);
    ASSERT_GRANTED(fixture, &a[0], &a[1], &c, &b);
    tow_sched_charge(fixture->sched, &c.ticket, 5);
    assert_int_equal(fixture->charged_ns[3], 5);
    finish(fixture, &b);
    finish(fixture, &c);
    tow_sched_set_policy(fixture->sched, NULL);
}

static void a_wide_gang_is_overtaken_a_bounded_number_of_times(void **state)
{
    fixture_t *fixture = *state;
    const tow_sched_policy_t policy = {
        .name = "preferred", .choose = choose_preferred, .context = fixture};
    run_t narrow[2] = {whole(1, fixture->first, 0, 8),
                       whole(1, fixture->first, 0, 8)};
    run_t more = whole(1, fixture->first, 0, 8);
    run_t wide = whole(2, fixture->both, 0, 8);
    fixture->preferred = 1;
    tow_sched_set_policy(fixture->sched, &policy);
    submit(fixture, &narrow[0]);
    submit(fixture, &narrow[1]);
    pass(fixture);
    submit(fixture, &wide);
    pass(fixture);
    submit(fixture, &more);
    size_t i = 0;
    for (; wide.ticket.state == TOW_TICKET_QUEUED; i++) {
        assert_true(i <= TOW_SCHED_OVERTAKEN_MAX + 2);
        run_t *oldest = i % 3 < 2 ? &narrow[i % 3] : &more;
        tow_sched_finish(fixture->sched, &oldest->ticket);
        tow_sched_pass(fixture->sched);
        if (wide.ticket.state == TOW_TICKET_QUEUED) submit(fixture, oldest);
    }
    assert_true(i > TOW_SCHED_OVERTAKEN_MAX / 2);
    run_t *all[] = {&narrow[0], &narrow[1], &more, &wide};
    for (size_t round = 0; round < 4; round++)
        for (size_t k = 0; k < 4; k++) {
            if (all[k]->ticket.state == TOW_TICKET_GRANTED)
                tow_sched_finish(fixture->sched, &all[k]->ticket);
            tow_sched_pass(fixture->sched);
        }
    tow_sched_set_policy(fixture->sched, NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(pieces_of_a_run_are_granted_two_at_a_time),
              CASE(a_short_run_goes_between_two_pieces),
              CASE(pieces_of_two_runs_of_a_client_alternate),
              CASE(a_run_that_stops_between_pieces_gets_no_more),
              CASE(pieces_go_on_while_another_waits_for_memory),
              CASE(a_held_run_waits_until_another_is_granted_completely),
              CASE(pieces_go_on_after_a_device_has_disconnected),
              CASE(a_run_of_another_island_is_held_no_longer_than_needed),
              CASE(a_run_behind_a_closed_island_does_not_hold_up_pieces),
              CASE(the_policy_is_asked_when_a_device_has_room),
              CASE(a_wide_gang_is_overtaken_a_bounded_number_of_times))
