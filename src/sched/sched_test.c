#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "sched/sched.h"

#define DEVICE_COUNT  4
#define LIMIT_BYTES   1000
#define RUN_AHEAD_MAX 8
#define EVENT_COUNT   64

typedef struct fixture {
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_placement_t *all;   /* devices 0 to 3 */
    tow_placement_t *left;  /* 0 and 1 */
    tow_placement_t *mid;   /* 1 and 2 */
    tow_placement_t *right; /* 2 and 3 */
    const tow_ticket_t *granted[EVENT_COUNT];
    size_t granted_count;
    const tow_ticket_t *refused[EVENT_COUNT];
    tow_status_t refusals[EVENT_COUNT];
    size_t refused_count;
    /* Called for each grant and refusal; may be NULL. */
    void (*on_event)(struct fixture *fixture, tow_ticket_t *ticket);
    tow_ticket_t *other; /* for on_event */
} fixture_t;

static void note_granted(void *context, tow_ticket_t *ticket)
{
    fixture_t *fixture = context;
    assert_true(fixture->granted_count < EVENT_COUNT);
    assert_int_equal(ticket->state, TOW_TICKET_GRANTED);
    fixture->granted[fixture->granted_count++] = ticket;
    if (fixture->on_event != NULL) fixture->on_event(fixture, ticket);
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    fixture_t *fixture = context;
    assert_true(fixture->refused_count < EVENT_COUNT);
    assert_int_equal(ticket->state, TOW_TICKET_IDLE);
    fixture->refusals[fixture->refused_count] = take_status;
    fixture->refused[fixture->refused_count++] = ticket;
    if (fixture->on_event != NULL) fixture->on_event(fixture, ticket);
}

static void make_sched(fixture_t *fixture, const tow_sched_policy_t *policy)
{
    tow_sched_options_t options = {.policy = policy,
                                   .run_ahead_ns = RUN_AHEAD_MAX,
                                   .gang_count_min = 1,
                                   .grant = note_granted,
                                   .refuse = note_refused,
                                   .context = fixture};
    assert_null(tow_sched_create(&options, &fixture->sched));
    for (uint32_t client = 1; client <= 4; client++)
        assert_null(tow_sched_add_client(fixture->sched, client));
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
    for (size_t i = 0; i < DEVICE_COUNT; i++)
        assert_null(tow_object_table_add_account(
            fixture.object_table, LIMIT_BYTES, &fixture.accounts[i]));
    fixture.all = place(&fixture, 0, 4);
    fixture.left = place(&fixture, 0, 2);
    fixture.mid = place(&fixture, 1, 2);
    fixture.right = place(&fixture, 2, 2);
    make_sched(&fixture, NULL);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    assert_null(tow_object_table_check(fixture->object_table));
    for (size_t i = 0; i < fixture->refused_count; i++)
        tow_status_release(fixture->refusals[i]);
    tow_sched_destroy(fixture->sched);
    tow_placement_release(fixture->all);
    tow_placement_release(fixture->left);
    tow_placement_release(fixture->mid);
    tow_placement_release(fixture->right);
    tow_object_table_destroy(fixture->object_table);
    return 0;
}

/* A ticket with one part. */
typedef struct run {
    tow_ticket_t ticket;
    tow_ticket_part_t part;
} run_t;

static void submit(fixture_t *fixture, run_t *run)
{
    run->ticket.parts = &run->part;
    run->ticket.part_count = 1;
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
}

#define RUN(owner, where, size, steps)                                   \
    {                                                                    \
        .ticket = {.client = (owner), .next = {.step_ns = 1}}, .part = { \
            (where),                                                     \
            (size),                                                      \
            (steps)                                                      \
        }                                                                \
    }

/* All tickets granted since the test began, in order. */
static void assert_granted(const fixture_t *fixture, size_t count,
                           run_t *const *runs)
{
    assert_int_equal(fixture->granted_count, count);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(fixture->granted[i], &runs[i]->ticket);
        assert_int_equal(runs[i]->ticket.number, i + 1);
    }
}
#define ASSERT_GRANTED(fixture, ...)                                   \
    assert_granted((fixture),                                          \
                   sizeof((run_t *[]){__VA_ARGS__}) / sizeof(run_t *), \
                   (run_t *[]){__VA_ARGS__})

/* -- Order ----------------------------------------------------------------- */

static void sched_grants_in_order_of_arrival_across_clients(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 10, 1), b = RUN(2, fixture->left, 10, 1);
    run_t c = RUN(1, fixture->right, 10, 1), d = RUN(3, fixture->mid, 10, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    assert_int_equal(fixture->granted_count, 0); /* Only a pass grants. */
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b, &c, &d);
}

static void sched_keeps_the_order_of_each_client(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 10, 1), b = RUN(1, fixture->right, 10, 1);
    tow_ticket_block(fixture->sched, &a.ticket);
    tow_ticket_block(fixture->sched, &a.ticket);
    submit(fixture, &a);
    submit(fixture, &b);
    run_pass(fixture);
    tow_ticket_unblock(fixture->sched, &a.ticket);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 0);
    tow_ticket_unblock(fixture->sched, &a.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b);
}

static void sched_client_with_a_blocked_head_does_not_block_others(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 10, 1), b = RUN(2, fixture->all, 10, 1);
    tow_ticket_block(fixture->sched, &a.ticket);
    submit(fixture, &a);
    submit(fixture, &b);
    run_pass(fixture);
    tow_ticket_unblock(fixture->sched, &a.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &b, &a);
}

static void sched_ticket_blocked_after_submission_lets_others_pass(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 10, 1), b = RUN(2, fixture->all, 10, 1);
    run_t c = RUN(1, fixture->all, 10, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    tow_ticket_block(fixture->sched, &a.ticket);
    tow_ticket_block(fixture->sched, &c.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &b);
    tow_ticket_unblock(fixture->sched, &c.ticket);
    tow_ticket_unblock(fixture->sched, &a.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &b, &a, &c);
}

static void sched_ticket_without_parts_is_granted_in_order(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 10, 1), b = RUN(1, NULL, 0, 0);
    submit(fixture, &a);
    tow_sched_submit(fixture->sched, &b.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b);
    finish(fixture, &b);
    finish(fixture, &a);
}

/* -- Memory ---------------------------------------------------------------- */

static void sched_reserves_memory_and_returns_it(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 400, 1);
    submit(fixture, &a);
    run_pass(fixture);
    assert_int_equal(fixture->accounts[1]->reserved_bytes, 400);
    assert_int_equal(fixture->accounts[2]->reserved_bytes, 0);
    finish(fixture, &a);
    assert_int_equal(fixture->accounts[1]->reserved_bytes, 0);
    assert_int_equal(a.ticket.state, TOW_TICKET_IDLE);
    submit(fixture, &a); /* A ticket may be reused. */
    run_pass(fixture);
    assert_int_equal(a.ticket.number, 2);
}

static void sched_nothing_overtakes_a_ticket_that_waits_for_memory(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 600, 1), b = RUN(2, fixture->left, 600, 1);
    run_t c = RUN(3, fixture->right, 1, 1), d = RUN(1, fixture->left, 1, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    run_pass(fixture);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a);
    finish(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b, &c, &d);
    assert_int_equal(fixture->refused_count, 0);
}

static void sched_refuses_a_ticket_too_large_for_idle_devices(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 600, 1), b = RUN(2, fixture->all, 1001, 1);
    run_t c = RUN(3, fixture->right, 600, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    assert_int_equal(fixture->refused_count, 0); /* `a` could make room. */
    finish(fixture, &a);
    run_pass(fixture);
    assert_int_equal(fixture->refused_count, 1);
    assert_ptr_equal(fixture->refused[0], &b.ticket);
    assert_int_equal(tow_status_code(fixture->refusals[0]),
                     TOW_RESOURCE_EXHAUSTED);
    assert_string_equal(tow_status_message(fixture->refusals[0]),
                        "nothing is under way that could make room: 1001 bytes "
                        "do not fit on device 0 of 4: of its 1000 bytes of "
                        "memory, objects have 0 and runs under way 0");
    ASSERT_GRANTED(fixture, &a, &c);
}

static void sched_notify_after_a_release_grants_waiting_tickets(void **state)
{
    fixture_t *fixture = *state;
    tow_object_id_t id = {tow_key(1, 1)};
    tow_object_options_t options = {.id = id,
                                    .state = TOW_OBJECT_ARRIVING,
                                    .bytes = 700,
                                    .placement = fixture->mid,
                                    .count_bytes = true};
    tow_object_t *object;
    assert_null(tow_object_table_add(fixture->object_table, &options, &object));
    run_t a = RUN(1, fixture->right, 100, 1), b = RUN(2, fixture->all, 500, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a);
    assert_null(tow_object_table_release(fixture->object_table, id));
    tow_sched_notify(fixture->sched, NULL);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b);
}

static void sched_ticket_blocked_while_it_waits_for_memory_lets_others_pass(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 600, 1), b = RUN(2, fixture->left, 600, 1);
    run_t c = RUN(3, fixture->left, 100, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a);
    tow_ticket_block(fixture->sched, &b.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c);
    finish(fixture, &a);
    tow_ticket_unblock(fixture->sched, &b.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c, &b);
}

/* -- Run-ahead ------------------------------------------------------------- */

static void sched_bounds_the_steps_under_way_on_each_device(void **state)
{
    fixture_t *fixture = *state;
    run_t runs[6] = {RUN(1, fixture->left, 0, 3), RUN(1, fixture->mid, 0, 3),
                     RUN(1, fixture->mid, 0, 2),  RUN(1, fixture->mid, 0, 1),
                     RUN(1, fixture->left, 0, 1), RUN(1, fixture->right, 0, 1)};
    for (size_t i = 0; i < 6; i++)
        submit(fixture, &runs[i]);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 3);
    assert_int_equal(fixture->accounts[0]->queued_ns, 3);
    assert_int_equal(fixture->accounts[1]->queued_ns, 8);
    assert_int_equal(fixture->accounts[2]->queued_ns, 5);
    finish(fixture, &runs[0]);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 6);
    assert_int_equal(fixture->accounts[1]->queued_ns, 7);
}

static void sched_full_queues_hold_up_only_tickets_that_need_them(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 0, 8), b = RUN(1, fixture->left, 0, 1);
    run_t c = RUN(2, fixture->right, 0, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c);
    finish(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c, &b);
}

/* Without reservations on all its devices, a gang of four would starve while
 * two clients keep two of its queues full alternately. */
static void sched_wide_gang_is_not_starved_by_narrow_ones(void **state)
{
    fixture_t *fixture = *state;
    run_t left[12], right[12];
    run_t wide = RUN(3, fixture->all, 0, 1);
    size_t last_left = 7, last_right = 7;
    for (size_t i = 0; i < 12; i++) {
        left[i] = (run_t)RUN(1, fixture->left, 0, 1);
        right[i] = (run_t)RUN(2, fixture->right, 0, 1);
    }
    for (size_t i = 0; i < 8; i++) {
        submit(fixture, &left[i]);
        submit(fixture, &right[i]);
    }
    submit(fixture, &wide);
    run_pass(fixture);
    assert_int_equal(wide.ticket.state, TOW_TICKET_QUEUED);
    for (size_t i = 8; wide.ticket.state != TOW_TICKET_GRANTED; i++) {
        assert_true(i < 12);
        submit(fixture, &left[i]);
        submit(fixture, &right[i]);
        finish(fixture, &left[last_left--]);
        run_pass(fixture);
        assert_int_equal(left[i].ticket.state, TOW_TICKET_QUEUED);
        finish(fixture, &right[last_right--]);
        run_pass(fixture);
    }
    assert_int_equal(wide.ticket.number, 17); /* Right behind the first 16. */
}

static void sched_ticket_larger_than_run_ahead_is_granted_alone(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 0, 1), big = RUN(2, fixture->mid, 0, 128);
    run_t b = RUN(3, fixture->left, 0, 1), c = RUN(4, fixture->right, 0, 1);
    submit(fixture, &a);
    submit(fixture, &big);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a); /* b and c share a device with it. */
    finish(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &big);
    finish(fixture, &big);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &big, &b, &c);
}

static void sched_ticket_without_steps_does_not_wait_for_a_long_queue(
    void **state)
{
    fixture_t *fixture = *state;
    run_t big = RUN(1, fixture->left, 0, 128), put = RUN(2, fixture->all, 5, 0);
    submit(fixture, &big);
    submit(fixture, &put);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &big, &put);
    finish(fixture, &big);
    finish(fixture, &put);
}

static void sched_tickets_that_share_devices_in_part_keep_one_order(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 0, 8), b = RUN(2, fixture->mid, 0, 8);
    run_t c = RUN(3, fixture->right, 0, 8), d = RUN(4, fixture->left, 0, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a); /* c waits for b, b for a. */
    finish(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b);
    finish(fixture, &b);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b, &c, &d);
}

/* -- Several parts --------------------------------------------------------- */

static void sched_parts_that_share_a_device_add_up_there(void **state)
{
    fixture_t *fixture = *state;
    const tow_ticket_part_t parts[] = {{fixture->left, 300, 3},
                                       {fixture->mid, 300, 3}};
    run_t first = RUN(1, fixture->mid, 500, 1);
    tow_ticket_t both = {
        .client = 2, .parts = parts, .part_count = 2, .next = {.step_ns = 1}};
    submit(fixture, &first);
    tow_sched_submit(fixture->sched, &both);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 1); /* 500 + 300 + 300 > 1000 */
    assert_int_equal(fixture->accounts[1]->peak_bytes, 500);
    finish(fixture, &first);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 2);
    assert_int_equal(fixture->accounts[0]->reserved_bytes, 300);
    assert_int_equal(fixture->accounts[1]->reserved_bytes, 600);
    assert_int_equal(fixture->accounts[1]->queued_ns, 6);
    run_t third = RUN(1, fixture->mid, 0, 3);
    submit(fixture, &third);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 2); /* 6 + 3 > 8 */
    tow_sched_finish(fixture->sched, &both);
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 3);
    assert_int_equal(fixture->accounts[1]->queued_ns, 3);
}

static void sched_refusal_counts_all_parts_on_the_device_that_is_short(
    void **state)
{
    fixture_t *fixture = *state;
    const tow_ticket_part_t parts[] = {{fixture->left, 600, 1},
                                       {fixture->right, 100, 1},
                                       {fixture->mid, 600, 1}};
    tow_ticket_t ticket = {.client = 2, .parts = parts, .part_count = 3};
    tow_sched_submit(fixture->sched, &ticket);
    run_pass(fixture);
    assert_int_equal(fixture->refused_count, 1);
    assert_non_null(strstr(tow_status_message(fixture->refusals[0]),
                           "1200 bytes do not fit on device 0 of 2"));
    const tow_ticket_part_t huge[] = {{fixture->left, UINT64_MAX, 1},
                                      {fixture->left, UINT64_MAX, 1}};
    ticket.parts = huge;
    ticket.part_count = 2;
    tow_sched_submit(fixture->sched, &ticket);
    run_pass(fixture);
    assert_int_equal(fixture->refused_count, 2);
}

/* -- Withdrawal and disconnection ------------------------------------------ */

static void sched_withdraws_a_ticket_at_any_position_of_the_queue(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 0, 1), b = RUN(1, fixture->all, 0, 1);
    run_t c = RUN(1, fixture->all, 0, 1), d = RUN(1, fixture->all, 0, 1);
    tow_ticket_block(fixture->sched, &c.ticket);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    assert_int_equal(tow_sched_client_queued(fixture->sched, 1), 4);
    tow_sched_withdraw(fixture->sched, &b.ticket); /* in the middle */
    tow_sched_withdraw(fixture->sched, &b.ticket); /* removed already */
    tow_sched_withdraw(fixture->sched, &a.ticket); /* the first, ready */
    tow_sched_withdraw(fixture->sched, &c.ticket); /* the first, blocked */
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &d);
    assert_int_equal(tow_sched_stats(fixture->sched).withdrawn, 3);
    tow_sched_withdraw(fixture->sched, &a.ticket);
    assert_int_equal(tow_sched_client_queued(fixture->sched, 1), 0);
}

static void sched_withdrawal_of_one_that_waits_for_memory_frees_the_others(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 600, 1), b = RUN(2, fixture->left, 600, 1);
    run_t c = RUN(3, fixture->right, 1, 1), d = RUN(2, fixture->left, 1, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a);
    tow_sched_withdraw(fixture->sched, &b.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c, &d);
}

static void sched_withdrawal_of_one_that_waits_for_run_ahead_frees_its_devices(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 0, 8), b = RUN(2, fixture->all, 0, 1);
    run_t c = RUN(3, fixture->right, 0, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a);
    tow_sched_withdraw(fixture->sched, &b.ticket);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c);
}

static void sched_client_may_be_removed_while_its_runs_are_under_way(
    void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 100, 1), b = RUN(2, fixture->left, 950, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    run_pass(fixture);
    tow_sched_remove_client(fixture->sched, 1);
    tow_sched_remove_client(fixture->sched, 77);
    finish(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b);
    assert_int_equal(tow_sched_client_queued(fixture->sched, 1), 0);
    assert_null(tow_sched_add_client(fixture->sched, 1));
    tow_status_t status = tow_sched_add_client(fixture->sched, 1);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
}

static void sched_refuses_tickets_on_disconnected_devices(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 100, 8), b = RUN(2, fixture->left, 100, 1);
    run_t c = RUN(3, fixture->right, 100, 1);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "worker w0 is gone");
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[0],
                                   cause);
    tow_status_release(cause);
    tow_sched_notify(fixture->sched, NULL);
    run_pass(fixture);
    assert_int_equal(fixture->refused_count, 1);
    assert_ptr_equal(fixture->refused[0], &b.ticket);
    assert_string_equal(tow_status_message(fixture->refusals[0]),
                        "worker w0 is gone");
    finish(fixture, &a); /* Its other members have failed. */
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c);
    assert_int_equal(fixture->accounts[0]->queued_ns, 0);
}

/* -- Calls from the callbacks ---------------------------------------------- */

static void submit_other_once(fixture_t *fixture, tow_ticket_t *ticket)
{
    (void)ticket;
    if (fixture->other == NULL) return;
    tow_ticket_t *other = fixture->other;
    fixture->other = NULL;
    tow_sched_submit(fixture->sched, other);
}

static void sched_owner_may_submit_from_a_grant(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 0, 1), b = RUN(2, fixture->all, 0, 1);
    b.ticket.parts = &b.part;
    b.ticket.part_count = 1;
    fixture->other = &b.ticket;
    fixture->on_event = submit_other_once;
    submit(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &b);
}

static void withdraw_other(fixture_t *fixture, tow_ticket_t *ticket)
{
    if (ticket != fixture->other)
        tow_sched_withdraw(fixture->sched, fixture->other);
}

static void sched_owner_may_withdraw_from_a_refusal(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->all, 5000, 1), b = RUN(1, fixture->all, 0, 1);
    run_t c = RUN(1, fixture->all, 0, 1);
    fixture->other = &b.ticket; /* It needs the result of `a`. */
    fixture->on_event = withdraw_other;
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    assert_int_equal(fixture->refused_count, 1);
    ASSERT_GRANTED(fixture, &c);
}

static void withdraw_and_remove_2(fixture_t *fixture, tow_ticket_t *ticket)
{
    if (ticket->client != 3) return;
    tow_sched_withdraw(fixture->sched, fixture->other);
    tow_sched_remove_client(fixture->sched, 2);
}

static void sched_client_may_be_removed_during_a_pass(void **state)
{
    fixture_t *fixture = *state;
    run_t a = RUN(1, fixture->left, 0, 8), b = RUN(2, fixture->mid, 0, 1);
    run_t c = RUN(3, fixture->right, 0, 1), d = RUN(4, fixture->mid, 0, 1);
    run_t e = RUN(1, fixture->right, 0, 1);
    /* `right` has device 2, for which b waits: so another for client 3. */
    tow_placement_t *last = place(fixture, 3, 1);
    c.part.placement = last;
    fixture->other = &b.ticket;
    fixture->on_event = withdraw_and_remove_2;
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    submit(fixture, &d);
    submit(fixture, &e);
    run_pass(fixture);
    finish(fixture, &a);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a, &c, &d, &e);
    tow_placement_release(last);
}

static void finish_at_once(fixture_t *fixture, tow_ticket_t *ticket)
{
    tow_sched_finish(fixture->sched, ticket);
}

static void sched_owner_may_finish_from_a_grant(void **state)
{
    fixture_t *fixture = *state;
    run_t runs[5];
    fixture->on_event = finish_at_once;
    for (size_t i = 0; i < 5; i++) {
        runs[i] = (run_t)RUN((uint32_t)(1 + i % 2), fixture->all, 900, 8);
        submit(fixture, &runs[i]);
    }
    run_pass(fixture);
    assert_int_equal(fixture->granted_count, 5);
    tow_sched_stats_t stats = tow_sched_stats(fixture->sched);
    assert_int_equal(stats.submitted, 5);
    assert_int_equal(stats.granted, 5);
    assert_int_equal(stats.finished, 5);
    assert_int_equal(stats.queued_count, 0);
    assert_int_equal(stats.under_way_count, 0);
}

/* -- Policies -------------------------------------------------------------- */

/* The client with the next higher number than the one served last. */
static size_t choose_next(void *context, const tow_ticket_t *const *tickets,
                          size_t count)
{
    uint32_t last = *(const uint32_t *)context;
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (tickets[i]->client - last - 1 < tickets[best]->client - last - 1)
            best = i;
    return best;
}

static void remember_served(void *context, const tow_ticket_t *ticket)
{
    *(uint32_t *)context = ticket->client;
}

static void sched_serves_clients_in_the_order_of_its_policy(void **state)
{
    fixture_t *fixture = *state;
    uint32_t last = 0;
    tow_sched_policy_t round_robin = {.name = "round robin",
                                      .choose = choose_next,
                                      .served = remember_served,
                                      .context = &last};
    tow_sched_destroy(fixture->sched);
    make_sched(fixture, &round_robin);
    run_t a[3], b[2] = {RUN(2, fixture->all, 0, 1), RUN(2, fixture->all, 0, 1)};
    run_t c = RUN(3, fixture->all, 0, 1);
    for (size_t i = 0; i < 3; i++) {
        a[i] = (run_t)RUN(1, fixture->all, 0, 1);
        submit(fixture, &a[i]);
    }
    submit(fixture, &c);
    submit(fixture, &b[0]);
    submit(fixture, &b[1]);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &a[0], &b[0], &c, &a[1], &b[1], &a[2]);
}

static size_t choose_last(void *context, const tow_ticket_t *const *tickets,
                          size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++)
        assert_int_equal(tickets[i]->blocker_count, 0);
    return count - 1;
}

static void sched_offers_only_ready_clients_to_its_policy(void **state)
{
    fixture_t *fixture = *state;
    tow_sched_policy_t newest_first = {.name = "newest first",
                                       .choose = choose_last};
    tow_sched_destroy(fixture->sched);
    make_sched(fixture, &newest_first);
    run_t a = RUN(1, fixture->all, 0, 1), b = RUN(2, fixture->all, 0, 1);
    run_t c = RUN(3, fixture->all, 0, 1);
    tow_ticket_block(fixture->sched, &b.ticket);
    submit(fixture, &a);
    submit(fixture, &b);
    submit(fixture, &c);
    run_pass(fixture);
    ASSERT_GRANTED(fixture, &c, &a);
}

/* -- Exhaustion ------------------------------------------------------------ */

static tow_exhaust_result_t add_clients(void *context)
{
    fixture_t *fixture = context;
    tow_sched_options_t options = {
        .grant = note_granted, .refuse = note_refused, .context = fixture};
    tow_sched_t *sched;
    tow_status_t status = tow_sched_create(&options, &sched);
    fixture->granted_count = 0;
    for (uint32_t i = 1; i <= 40 && status == TOW_OK; i++)
        status = tow_sched_add_client(sched, i);
    if (status == TOW_OK) {
        run_t run = RUN(40, fixture->all, 1, 1);
        run.ticket.parts = &run.part;
        run.ticket.part_count = 1;
        tow_sched_submit(sched, &run.ticket);
        tow_sched_pass(sched);
        assert_int_equal(run.ticket.number, 1);
        tow_sched_finish(sched, &run.ticket);
    }
    tow_sched_destroy(sched);
    bool failed = status != TOW_OK;
    tow_status_release(status);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void sched_survives_any_failed_allocation(void **state)
{
    assert_true(tow_test_exhaust(add_clients, *state) > 40);
}

static void sched_makes_no_allocation_per_ticket(void **state)
{
    fixture_t *fixture = *state;
    run_t runs[8];
    tow_alloc_fail_after(0);
    for (size_t round = 0; round < 4; round++) {
        for (size_t i = 0; i < 8; i++) {
            runs[i] = (run_t)RUN((uint32_t)(1 + i % 4), fixture->all, 50, 2);
            submit(fixture, &runs[i]);
        }
        for (size_t i = 0; i < 8; i++) {
            tow_sched_pass(fixture->sched);
            finish(fixture, &runs[i]);
        }
    }
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
    assert_int_equal(fixture->granted_count, 32);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(
    CASE(sched_grants_in_order_of_arrival_across_clients),
    CASE(sched_keeps_the_order_of_each_client),
    CASE(sched_client_with_a_blocked_head_does_not_block_others),
    CASE(sched_ticket_blocked_after_submission_lets_others_pass),
    CASE(sched_ticket_without_parts_is_granted_in_order),
    CASE(sched_reserves_memory_and_returns_it),
    CASE(sched_nothing_overtakes_a_ticket_that_waits_for_memory),
    CASE(sched_refuses_a_ticket_too_large_for_idle_devices),
    CASE(sched_notify_after_a_release_grants_waiting_tickets),
    CASE(sched_ticket_blocked_while_it_waits_for_memory_lets_others_pass),
    CASE(sched_bounds_the_steps_under_way_on_each_device),
    CASE(sched_full_queues_hold_up_only_tickets_that_need_them),
    CASE(sched_wide_gang_is_not_starved_by_narrow_ones),
    CASE(sched_ticket_larger_than_run_ahead_is_granted_alone),
    CASE(sched_ticket_without_steps_does_not_wait_for_a_long_queue),
    CASE(sched_tickets_that_share_devices_in_part_keep_one_order),
    CASE(sched_parts_that_share_a_device_add_up_there),
    CASE(sched_refusal_counts_all_parts_on_the_device_that_is_short),
    CASE(sched_withdraws_a_ticket_at_any_position_of_the_queue),
    CASE(sched_withdrawal_of_one_that_waits_for_memory_frees_the_others),
    CASE(sched_withdrawal_of_one_that_waits_for_run_ahead_frees_its_devices),
    CASE(sched_client_may_be_removed_while_its_runs_are_under_way),
    CASE(sched_refuses_tickets_on_disconnected_devices),
    CASE(sched_owner_may_submit_from_a_grant),
    CASE(sched_owner_may_withdraw_from_a_refusal),
    CASE(sched_client_may_be_removed_during_a_pass),
    CASE(sched_owner_may_finish_from_a_grant),
    CASE(sched_serves_clients_in_the_order_of_its_policy),
    CASE(sched_offers_only_ready_clients_to_its_policy),
    CASE(sched_survives_any_failed_allocation),
    CASE(sched_makes_no_allocation_per_ticket))
