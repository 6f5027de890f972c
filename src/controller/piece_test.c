/* Runs that are granted in pieces, with scripted workers and clients. */
#include "controller/fixture_testing_impl.h"

static const uint8_t zeroes[1024];

static const char four_adds[] =
    "program \"four\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 1\n"
    "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
    "  %2 = compute \"B\" function 1 on slice 1 (%1)\n"
    "  %3 = compute \"C\" function 1 on slice 1 (%2)\n"
    "  %4 = compute \"D\" function 1 on slice 1 (%3)\n"
    "  %5 = result \"y\" (%4)\n}\n";

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} fixture_t;

/* Each step is a piece. Program 1 has four of them, program 2 one. */
static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){.cluster.options.piece_steps = 1};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 4);
    compile(fixture->client, 1, 1, add_text);
    add_program(fixture->client, 1, four_adds);
    add_program(fixture->client, 2, one_add);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->one);
    discard_messages(fixture->two);
}

static void expect_piece(peer_t *worker, uint64_t run, uint32_t first)
{
    const tow_msg_grant_t *grant = EXPECT(worker, GRANT, grant);
    assert_int_equal(tow_key_id(grant->run), run);
    assert_int_equal(grant->first_step, first);
    assert_int_equal(grant->step_end, first + 1);
    assert_int_equal(grant->n_arguments, first == 0);
}

static void expect_pieces(fixture_t *fixture, uint64_t run, uint32_t first)
{
    expect_piece(fixture->one, run, first);
    expect_piece(fixture->two, run, first);
}

static void send_progress(peer_t *worker, const peer_t *client, uint64_t run,
                          uint32_t end)
{
    uint64_t key = tow_key(client->number, run);
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.progress_runs = &key;
    done.progress_ends = &end;
    done.n_progress_runs = done.n_progress_ends = 1;
    send_message(worker, TOW_MESSAGE_DONE, &done.base);
}

static void end_piece(fixture_t *fixture, uint64_t run, uint32_t end)
{
    send_progress(fixture->one, fixture->client, run, end);
    expect_no_message(fixture->one); /* All workers have to report. */
    send_progress(fixture->two, fixture->client, run, end);
}

static void send_both_done(fixture_t *fixture, uint64_t run)
{
    const uint64_t key = tow_key(fixture->client->number, run);
    send_done(fixture->one, key);
    send_done(fixture->two, key);
}

static void start_run(fixture_t *fixture)
{
    send_run(fixture->client, 1, 1, 1, 10);
    expect_pieces(fixture, 1, 0);
    expect_pieces(fixture, 1, 1);
    expect_no_message(fixture->one);
}

static void pieces_follow_the_progress_of_all_workers(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    start_run(&fixture);
    end_piece(&fixture, 1, 1);
    expect_pieces(&fixture, 1, 2);
    end_piece(&fixture, 1, 2);
    expect_pieces(&fixture, 1, 3);
    send_both_done(&fixture, 1);
    expect_run_done(fixture.client, 1);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).reserved_bytes, 0);
    cluster_close(&fixture.cluster);
}

static void another_run_goes_between_pieces(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    peer_t *other = client_make(&fixture.cluster, "client/2");
    open_slice(other, 1, 4);
    compile(other, 1, 1, add_text);
    add_program(other, 1, one_add);
    send_put(other, 1, 1, 1024, zeroes);
    expect_success(EXPECT(other, PUT_DONE, put_done)->failure);
    discard_messages(fixture.one);
    discard_messages(fixture.two);
    start_run(&fixture);
    send_run(other, 1, 1, 1, 10);
    expect_no_message(fixture.one);
    end_piece(&fixture, 1, 1);
    expect_grant(fixture.one, other, 1);
    cluster_close(&fixture.cluster);
}

static void a_run_waits_for_the_results_of_one_in_pieces(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    start_run(&fixture);
    send_run(fixture.client, 2, 2, 10, 20);
    end_piece(&fixture, 1, 1);
    expect_pieces(&fixture, 1, 2);
    end_piece(&fixture, 1, 2);
    expect_pieces(&fixture, 1, 3);
    expect_no_message(fixture.one); /* No room yet. */
    send_both_done(&fixture, 1);
    expect_grant(fixture.one, fixture.client, 2);
    cluster_close(&fixture.cluster);
}

static void a_run_that_consumes_an_argument_waits_for_its_user(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 2, 1, consuming_text);
    add_program(fixture.client, 3,
                "program \"consuming\" {\n"
                "  %0 = argument \"x\" : u8[1024] on slice 1 donated\n"
                "  %1 = compute \"A\" function 2 on slice 1 (%0)\n"
                "  %2 = result \"y\" (%1)\n}\n");
    discard_messages(fixture.one);
    discard_messages(fixture.two);
    start_run(&fixture);
    send_run(fixture.client, 2, 3, 1, 20);
    end_piece(&fixture, 1, 1);
    expect_pieces(&fixture, 1, 2);
    end_piece(&fixture, 1, 2);
    expect_pieces(&fixture, 1, 3);
    send_progress(fixture.one, fixture.client, 1, 3);
    send_progress(fixture.two, fixture.client, 1, 3);
    expect_grant(fixture.one, fixture.client, 2);
    cluster_close(&fixture.cluster);
}

static void a_failure_between_pieces_ends_the_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    fixture.two->answers_aborts = true;
    start_run(&fixture);
    send_failed(fixture.one, tow_key(fixture.client->number, 1), TOW_INTERNAL,
                "broken");
    expect_run_failed(fixture.client, 1, TOW_INTERNAL, "broken");
    expect_no_message(fixture.one);
    send_run(fixture.client, 2, 2, 10, 20); /* Of a result of it. */
    expect_run_failed(fixture.client, 2, TOW_INTERNAL, "broken");
    cluster_close(&fixture.cluster);
}

static void an_early_failure_aborts_the_run_elsewhere(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    start_run(&fixture);
    tow_msg_failure_t cause = TOW_MSG_FAILURE_INIT;
    cause.code = TOW_INTERNAL;
    cause.message = "broken";
    tow_msg_run_failure_t failure = TOW_MSG_RUN_FAILURE_INIT;
    failure.run = tow_key(fixture.client->number, 1);
    failure.failure = &cause;
    failure.early = true;
    tow_msg_run_failure_t *failures = &failure;
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.failures = &failures;
    done.n_failures = 1;
    send_message(fixture.one, TOW_MESSAGE_DONE, &done.base);
    EXPECT(fixture.two, ABORT, abort);
    expect_no_message(fixture.client); /* Steps of it are under way. */
    send_failed(fixture.one, failure.run, TOW_INTERNAL, "broken");
    send_failed(fixture.two, failure.run, TOW_INTERNAL, "aborted");
    expect_run_failed(fixture.client, 1, TOW_INTERNAL, "broken");
    cluster_close(&fixture.cluster);
}

static void a_cancelled_run_gets_no_more_pieces(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    fixture.one->answers_aborts = fixture.two->answers_aborts = true;
    start_run(&fixture);
    send_cancel(fixture.client, 1);
    expect_run_failed(fixture.client, 1, TOW_CANCELLED, "");
    EXPECT(fixture.one, ABORT, abort);
    expect_no_message(fixture.one);
    cluster_close(&fixture.cluster);
}

static void a_worker_that_disconnects_between_pieces_fails_the_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    fixture.one->answers_aborts = true;
    start_run(&fixture);
    end_piece(&fixture, 1, 1);
    peer_crash(fixture.two);
    expect_run_failed(fixture.client, 1, TOW_UNAVAILABLE, "worker/2");
    cluster_close(&fixture.cluster);
}

static void a_worker_cannot_report_what_was_not_granted(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    fixture.two->answers_aborts = true;
    start_run(&fixture);
    send_progress(fixture.one, fixture.client, 1, 4);
    send_progress(fixture.one, fixture.client, 1, 100);
    send_progress(fixture.one, fixture.client, 9, 1);
    expect_no_message(fixture.one);
    send_done(fixture.one, tow_key(fixture.client->number, 1));
    expect_run_failed(fixture.client, 1, TOW_INTERNAL,
                      "all 4 steps of 'four', of which 2 are granted");
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(pieces_follow_the_progress_of_all_workers),
    cmocka_unit_test(another_run_goes_between_pieces),
    cmocka_unit_test(a_run_waits_for_the_results_of_one_in_pieces),
    cmocka_unit_test(a_run_that_consumes_an_argument_waits_for_its_user),
    cmocka_unit_test(a_failure_between_pieces_ends_the_run),
    cmocka_unit_test(an_early_failure_aborts_the_run_elsewhere),
    cmocka_unit_test(a_cancelled_run_gets_no_more_pieces),
    cmocka_unit_test(a_worker_that_disconnects_between_pieces_fails_the_run),
    cmocka_unit_test(a_worker_cannot_report_what_was_not_granted))
