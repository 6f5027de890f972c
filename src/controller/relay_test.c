/* Relays: three workers in groups of two, so the first is the second's relay
 * and the third has none. */
#include "controller/fixture_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *relay, *child, *lone;
    peer_t *client;
} fixture_t;

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){.cluster.options.relay_fanout = 2};
    cluster_open(&fixture->cluster);
    fixture->relay = worker_make(&fixture->cluster, 1);
    fixture->child = worker_make(&fixture->cluster, 2);
    fixture->lone = worker_make(&fixture->cluster, 3);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 6);
    compile(fixture->client, 1, 1, add_text);
    add_program(fixture->client, 1, one_add);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->relay);
    discard_messages(fixture->child);
    discard_messages(fixture->lone);
}

/* The sequence number of the grant for the child. */
static uint64_t expect_relay_grant(fixture_t *fixture, uint64_t run)
{
    const tow_msg_relay_grant_t *grant =
        EXPECT(fixture->relay, RELAY_GRANT, relay_grant);
    assert_int_equal(grant->grant->run, tow_key(fixture->client->number, run));
    assert_int_equal(grant->n_processes, 1);
    assert_int_equal(grant->n_numbers, 1);
    assert_int_equal(grant->processes[0], 2);
    return grant->numbers[0];
}

static void send_all_done(fixture_t *fixture, uint64_t run)
{
    uint64_t key = tow_key(fixture->client->number, run);
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.runs = &key;
    done.n_runs = 1;
    send_message(fixture->relay, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void send_one_done(fixture_t *fixture, uint64_t run, uint32_t process)
{
    uint64_t key = tow_key(fixture->client->number, run);
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.part_runs = &key;
    done.part_processes = &process;
    done.n_part_runs = done.n_part_processes = 1;
    send_message(fixture->relay, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void send_disconnected(peer_t *worker, uint32_t process)
{
    tow_msg_relay_disconnected_t disconnected = TOW_MSG_RELAY_DISCONNECTED_INIT;
    disconnected.process = process;
    send_message(worker, TOW_MESSAGE_RELAY_DISCONNECTED, &disconnected.base);
}

static void a_relay_is_granted_and_reports_for_its_group(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 1, 1, 1, 10);
    expect_relay_grant(&fixture, 1);
    const uint64_t run = expect_grant(fixture.lone, fixture.client, 1);
    expect_no_message(fixture.child);
    send_done(fixture.lone, run);
    expect_no_message(fixture.client);
    send_all_done(&fixture, 1);
    expect_run_done(fixture.client, 1);
    cluster_close(&fixture.cluster);
}

static void partial_relay_reports_add_up(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 1, 1, 1, 10);
    expect_relay_grant(&fixture, 1);
    send_done(fixture.lone, expect_grant(fixture.lone, fixture.client, 1));
    send_one_done(&fixture, 1, 2);
    send_one_done(&fixture, 1, 2); /* The second report has no effect. */
    send_one_done(&fixture, 1, 3); /* Not of its group. */
    expect_no_message(fixture.client);
    send_one_done(&fixture, 1, 1);
    expect_run_done(fixture.client, 1);
    send_all_done(&fixture, 1); /* Of a run that is over. */
    expect_no_message(fixture.client);
    cluster_close(&fixture.cluster);
}

static void a_command_after_a_relayed_grant_states_its_number(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 1, 1, 1, 10);
    send_run(fixture.client, 2, 1, 10, 11);
    const uint64_t first = expect_relay_grant(&fixture, 1);
    assert_int_equal(expect_relay_grant(&fixture, 2), first + 1);
    send_all_done(&fixture, 1);
    send_done(fixture.lone, expect_grant(fixture.lone, fixture.client, 1));
    expect_run_done(fixture.client, 1);
    send_release(fixture.client, 10, 1);
    send_all_done(&fixture, 2);
    send_done(fixture.lone, expect_grant(fixture.lone, fixture.client, 2));
    expect_run_done(fixture.client, 2);
    assert_int_equal(EXPECT(fixture.child, SEQUENCE, sequence)->next,
                     first + 2);
    (void)EXPECT(fixture.child, RELEASE, release);
    cluster_close(&fixture.cluster);
}

static void grants_lost_by_a_relay_are_resent_directly(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 1, 1, 1, 10);
    const uint64_t number = expect_relay_grant(&fixture, 1);
    const uint64_t run = expect_grant(fixture.lone, fixture.client, 1);
    send_disconnected(fixture.relay, 2);
    const tow_msg_forwarded_grant_t *again =
        EXPECT(fixture.child, FORWARDED_GRANT, forwarded_grant);
    assert_int_equal(again->number, number);
    assert_int_equal(again->grant->run, run);
    assert_int_equal(again->grant->arguments[0],
                     tow_key(fixture.client->number, 1));
    send_done(fixture.child, run);
    send_done(fixture.lone, run);
    send_one_done(&fixture, 1, 1);
    expect_run_done(fixture.client, 1);
    /* From now on without it. */
    send_run(fixture.client, 2, 1, 1, 20);
    assert_int_equal(EXPECT(fixture.child, SEQUENCE, sequence)->next,
                     number + 1);
    send_done(fixture.child, expect_grant(fixture.child, fixture.client, 2));
    send_done(fixture.relay, expect_grant(fixture.relay, fixture.client, 2));
    send_done(fixture.lone, expect_grant(fixture.lone, fixture.client, 2));
    expect_run_done(fixture.client, 2);
    cluster_close(&fixture.cluster);
}

static void either_side_may_report_a_lost_relay_session(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 1, 1, 1, 10);
    const uint64_t number = expect_relay_grant(&fixture, 1);
    send_disconnected(fixture.child, 1);
    assert_int_equal(
        EXPECT(fixture.child, FORWARDED_GRANT, forwarded_grant)->number,
        number);
    send_disconnected(fixture.child, 77); /* An unknown process. */
    expect_no_message(fixture.child);
    send_done(fixture.child, tow_key(fixture.client->number, 1));
    send_done(fixture.lone, expect_grant(fixture.lone, fixture.client, 1));
    send_one_done(&fixture, 1, 1);
    expect_run_done(fixture.client, 1);
    cluster_close(&fixture.cluster);
}

/* All or nothing: a worker without the grant gets it, and then the abort. */
static void a_relay_that_crashes_mid_grant_is_replaced_by_the_controller(
    void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 1, 1, 1, 10);
    const uint64_t number = expect_relay_grant(&fixture, 1);
    const uint64_t run = expect_grant(fixture.lone, fixture.client, 1);
    peer_crash(fixture.relay);
    /* In the meantime it was asked for its waits. */
    assert_int_equal(EXPECT(fixture.child, SEQUENCE, sequence)->next,
                     number + 1);
    assert_int_equal(
        EXPECT(fixture.child, FORWARDED_GRANT, forwarded_grant)->number,
        number);
    assert_int_equal(EXPECT(fixture.child, ABORT, abort)->run, run);
    assert_int_equal(EXPECT(fixture.lone, ABORT, abort)->run, run);
    expect_no_message(fixture.client); /* Until all have reported. */
    send_failed(fixture.child, run, TOW_UNAVAILABLE, "aborted");
    send_failed(fixture.lone, run, TOW_UNAVAILABLE, "aborted");
    expect_run_failed(fixture.client, 1, TOW_UNAVAILABLE, "worker/1");
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_relay_is_granted_and_reports_for_its_group),
    cmocka_unit_test(partial_relay_reports_add_up),
    cmocka_unit_test(a_command_after_a_relayed_grant_states_its_number),
    cmocka_unit_test(grants_lost_by_a_relay_are_resent_directly),
    cmocka_unit_test(either_side_may_report_a_lost_relay_session),
    cmocka_unit_test(
        a_relay_that_crashes_mid_grant_is_replaced_by_the_controller))
