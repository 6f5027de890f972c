/* Runs, with scripted workers and clients. */
#include "controller/fixture_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} fixture_t;

/* Slice 1 has all four devices, function 1 is `text`, program 1 is `program`,
 * object 1 is on the slice. */
static void fixture_open(fixture_t *fixture, const char *text,
                         const char *program)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 4);
    compile(fixture->client, 1, 1, text);
    add_program(fixture->client, 1, program);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->one);
    discard_messages(fixture->two);
}

static uint64_t totals_bytes(const fixture_t *fixture)
{
    return tow_controller_totals(fixture->cluster.controller).object_bytes;
}

/* -- Success --------------------------------------------------------------- */

static void a_run_is_one_grant_a_worker_and_one_answer(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    const tow_msg_grant_t *grant = EXPECT(fixture.one, GRANT, grant);
    assert_int_equal(grant->run, tow_key(fixture.client->number, 1));
    assert_int_equal(grant->program, tow_key(fixture.client->number, 1));
    assert_int_equal(grant->n_arguments, 1);
    assert_int_equal(grant->arguments[0], tow_key(fixture.client->number, 1));
    assert_int_equal(grant->first_result, tow_key(fixture.client->number, 10));
    uint64_t run = expect_grant(fixture.two, fixture.client, 1);
    assert_true(
        tow_controller_totals(fixture.cluster.controller).reserved_bytes > 0);
    send_done(fixture.one, run);
    expect_no_message(fixture.client); /* All have to report. */
    send_done(fixture.two, run);
    expect_run_done(fixture.client, 1);
    assert_int_equal(totals_bytes(&fixture), 2 * 4 * 1024);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).reserved_bytes, 0);
    send_release(fixture.client, 10, 1);
    const tow_msg_release_t *release = EXPECT(fixture.one, RELEASE, release);
    assert_int_equal(release->firsts[0], tow_key(fixture.client->number, 10));
    assert_int_equal(release->counts[0], 1);
    assert_int_equal(totals_bytes(&fixture), 4 * 1024);
    cluster_close(&fixture.cluster);
}

static void completions_of_one_turn_are_one_message(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    uint64_t runs[2]; /* As many as are under way while nothing is known. */
    for (uint64_t i = 0; i < 2; i++)
        send_run(fixture.client, 1 + i, 1, i == 0 ? 1 : 9 + i, 10 + i);
    uint64_t gang = 0;
    for (uint64_t i = 0; i < 2; i++) {
        runs[i] = expect_grant(fixture.one, fixture.client, 1 + i);
        const tow_msg_grant_t *grant = EXPECT(fixture.two, GRANT, grant);
        assert_true(grant->first_gang > gang); /* One order. */
        gang = grant->first_gang;
    }
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = runs;
    done.n_runs = 2;
    send_message(fixture.one, TOW_MESSAGE_DONE, &done.base);
    send_message(fixture.two, TOW_MESSAGE_DONE, &done.base);
    const tow_msg_runs_done_t *reported =
        EXPECT(fixture.client, RUNS_DONE, runs_done);
    assert_int_equal(reported->n_runs, 2);
    expect_no_message(fixture.client);
    send_release(fixture.client, 10, 2);
    const tow_msg_release_t *release = EXPECT(fixture.two, RELEASE, release);
    assert_int_equal(release->n_firsts, 1); /* One range. */
    assert_int_equal(release->counts[0], 2);
    cluster_close(&fixture.cluster);
}

static void runs_wait_for_their_program_to_be_loaded(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    fixture.two->holds_loads = true;
    open_slice(fixture.client, 2, 4);
    compile(fixture.client, 2, 2, consuming_text);
    add_program(fixture.client, 2,
                "program \"late\" {\n"
                "  %0 = argument : u8[1024] on slice 1\n"
                "  %1 = compute \"A\" function 2 on slice 1 (%0)\n"
                "  %2 = result (%1)\n}\n");
    send_run(fixture.client, 1, 2, 1, 10);
    send_run(fixture.client, 2, 2, 1, 11);
    uint64_t executable = EXPECT(fixture.two, LOAD, load)->executable;
    EXPECT(fixture.two, PROGRAM_LOAD, program_load);
    expect_no_message(fixture.two);
    answer_load(fixture.two, executable, NULL);
    expect_grant(fixture.two, fixture.client, 1);
    expect_grant(fixture.two, fixture.client, 2);
    cluster_close(&fixture.cluster);
}

static void a_program_that_cannot_be_loaded_fails_its_runs(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    fixture.two->holds_loads = true;
    compile(fixture.client, 2, 1, consuming_text);
    add_program(fixture.client, 2,
                "program \"late\" {\n"
                "  %0 = argument : u8[1024] on slice 1\n"
                "  %1 = compute \"A\" function 2 on slice 1 (%0)\n"
                "  %2 = result (%1)\n}\n");
    send_run(fixture.client, 1, 2, 1, 10);
    answer_load(fixture.two, EXPECT(fixture.two, LOAD, load)->executable,
                "no room for code");
    expect_run_failed(fixture.client, 1, TOW_INTERNAL, "no room for code");
    send_run(fixture.client, 2, 2, 1, 11);
    expect_run_failed(fixture.client, 2, TOW_INTERNAL, "worker/2");
    send_run(fixture.client, 3, 1, 10,
             12); /* uses a result of the failed one */
    expect_run_failed(fixture.client, 3, TOW_INTERNAL, "no room for code");
    send_run(fixture.client, 4, 1, 1, 13); /* Other runs continue. */
    send_done(fixture.one, tow_key(fixture.client->number, 4));
    send_done(fixture.two, tow_key(fixture.client->number, 4));
    cluster_close(&fixture.cluster);
}

/* -- Invalid runs ---------------------------------------------------------- */

static void an_invalid_run_fails_only_itself(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 77, 1, 10);
    expect_run_failed(fixture.client, 1, TOW_NOT_FOUND, "program 77");
    send_run(fixture.client, 2, 1, 55, 11);
    expect_run_failed(fixture.client, 2, TOW_NOT_FOUND, "55");
    send_run(fixture.client, 3, 1, 0, 12); /* without its argument */
    expect_run_failed(fixture.client, 3, TOW_INVALID_ARGUMENT, "1 arguments");
    send_put(fixture.client, 2, 1, 7, zeroes);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    send_run(fixture.client, 4, 1, 2, 13);
    expect_run_failed(fixture.client, 4, TOW_INVALID_ARGUMENT, "u8[7]");
    open_slice(fixture.client, 2, 2);
    send_put(fixture.client, 3, 2, 1024, zeroes);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    send_run(fixture.client, 5, 1, 3, 14);
    expect_run_failed(fixture.client, 5, TOW_INVALID_ARGUMENT, "other devices");
    send_run(fixture.client, 6, 1, 11, 15); /* a result that does not exist */
    expect_run_failed(fixture.client, 6, TOW_NOT_FOUND, "55");
    discard_messages(fixture.one);
    send_run(fixture.client, 7, 1, 1, 16);
    expect_grant(fixture.one, fixture.client, 7);
    cluster_close(&fixture.cluster);
}

static void runs_of_a_refused_program_fail_with_its_reason(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    refuse_program(fixture.client, 2,
                   "program \"p\" {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 1\n"
                   "  %1 = compute \"A\" function 9 on slice 1 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "function 9");
    send_run(fixture.client, 1, 2, 1, 10);
    expect_run_failed(fixture.client, 1, TOW_INVALID_ARGUMENT, "function 9");
    send_get(fixture.client, 1, 10, 0);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_INVALID_ARGUMENT, "function 9");
    send_run(fixture.client, 2, 1, 10, 11); /* uses its result */
    expect_run_failed(fixture.client, 2, TOW_INVALID_ARGUMENT, "function 9");
    send_release(fixture.client, 10, 2);
    add_program(fixture.client, 2, one_add); /* The id is free. */
    send_run(fixture.client, 3, 2, 1, 12);
    discard_messages(fixture.one);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).run_count, 1);
    cluster_close(&fixture.cluster);
}

static void clients_cannot_name_objects_of_others(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    peer_t *thief = client_make(&fixture.cluster, "client/thief");
    open_slice(thief, 1, 4);
    compile(thief, 1, 1, add_text);
    add_program(thief, 1, one_add);
    send_run(thief, 1, 1, 1, 10);
    expect_run_failed(thief, 1, TOW_NOT_FOUND, "object 1");
    send_run(thief, 2, 1, tow_key(fixture.client->number, 1), 11);
    expect_run_failed(thief, 2, TOW_NOT_FOUND, "object");
    send_get(thief, 1, tow_key(fixture.client->number, 1), 0);
    expect_failure(EXPECT(thief, GET_DONE, get_done)->failure,
                   TOW_INVALID_ARGUMENT, "range");
    send_release(thief, tow_key(fixture.client->number, 1), 1);
    send_cancel(thief, tow_key(fixture.client->number, 1));
    expect_no_message(thief);
    assert_int_equal(totals_bytes(&fixture), 4 * 1024);
    /* Ids whose results would reach into another's. */
    send_run(thief, 3, 1, 1, UINT64_MAX);
    run_for(&fixture.cluster, SECOND / 10);
    assert_int_equal(thief->disconnect_count, 1);
    expect_part(thief->disconnect_message, "ids are 1 to");
    cluster_close(&fixture.cluster);
}

/* -- Failure --------------------------------------------------------------- */

static void a_failure_aborts_the_other_workers(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    expect_grant(fixture.two, fixture.client, 1);
    send_failed(fixture.one, run, TOW_INTERNAL, "device 1 caught fire");
    const tow_msg_abort_t *abort = EXPECT(fixture.two, ABORT, abort);
    assert_int_equal(abort->run, run);
    expect_failure(abort->failure, TOW_INTERNAL, "caught fire");
    expect_no_message(fixture.client);
    send_failed(fixture.two, run, TOW_CANCELLED, "aborted");
    expect_run_failed(fixture.client, 1, TOW_INTERNAL, "caught fire");
    expect_no_message(fixture.one); /* It reported the failure itself. */
    send_get(fixture.client, 1, 10, 0);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_INTERNAL, "caught fire");
    send_run(fixture.client, 2, 1, 10, 11); /* not granted at all */
    expect_run_failed(fixture.client, 2, TOW_INTERNAL, "caught fire");
    expect_no_message(fixture.one);
    cluster_close(&fixture.cluster);
}

static void send_get_failed(peer_t *worker, uint64_t request)
{
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    tow_msg_shard_get_done_t got = TOW_MSG_SHARD_GET_DONE_INIT;
    failure.code = TOW_INTERNAL;
    failure.message = (char *)"caught fire";
    got.request = request;
    got.failure = &failure;
    send_message(worker, TOW_MESSAGE_SHARD_GET_DONE, &got.base);
}

static void a_get_that_fails_before_its_run_has_the_error_of_the_run(
    void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    const uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    expect_grant(fixture.two, fixture.client, 1);
    send_get(fixture.client, 1, 10, 0);
    send_get_failed(fixture.one,
                    EXPECT(fixture.one, SHARD_GET, shard_get)->request);
    expect_no_message(fixture.client);
    send_failed(fixture.one, run, TOW_INTERNAL, "node 1: caught fire");
    send_failed(fixture.two, run, TOW_CANCELLED, "aborted");
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_INTERNAL, "node 1: caught fire");
    expect_run_failed(fixture.client, 1, TOW_INTERNAL, "node 1");
    cluster_close(&fixture.cluster);
}

static void a_get_that_fails_alone_has_its_own_error(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    const uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    expect_grant(fixture.two, fixture.client, 1);
    send_get(fixture.client, 1, 10, 0);
    send_get_failed(fixture.one,
                    EXPECT(fixture.one, SHARD_GET, shard_get)->request);
    send_done(fixture.one, run);
    expect_no_message(fixture.client);
    send_done(fixture.two, run);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_INTERNAL, "caught fire");
    expect_run_done(fixture.client, 1);
    cluster_close(&fixture.cluster);
}

static void a_run_fails_when_its_worker_disconnects(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    send_run(fixture.client, 2, 1, 10, 11);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    expect_grant(fixture.one, fixture.client, 2);
    send_get(fixture.client, 5, 10, 3); /* of a shard on worker 2 */
    run_for(&fixture.cluster, SECOND / 100);
    peer_crash(fixture.two);
    assert_int_equal(EXPECT(fixture.one, ABORT, abort)->run, run);
    assert_int_equal(EXPECT(fixture.one, ABORT, abort)->run, run + 1);
    send_failed(fixture.one, run, TOW_CANCELLED, "aborted");
    send_failed(fixture.one, run + 1, TOW_CANCELLED, "aborted");
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    const tow_msg_runs_done_t *done =
        EXPECT(fixture.client, RUNS_DONE, runs_done);
    expect_failure(done->failures[0]->failure, TOW_UNAVAILABLE, "worker/2");
    EXPECT(fixture.client, RUNS_DONE, runs_done);
    send_run(fixture.client, 3, 1, 1, 12); /* Its argument has failed. */
    expect_run_failed(fixture.client, 3, TOW_UNAVAILABLE, "worker/2");
    cluster_close(&fixture.cluster);
}

static void a_client_that_disconnects_during_a_run_leaves_nothing(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    send_run(fixture.client, 2, 1, 10, 11);
    send_put(fixture.client, 20, 1, 4096, NULL);
    send_run(fixture.client, 3, 1, 20, 12); /* waits for the put */
    send_get(fixture.client, 1, 10, 0);
    send_get(fixture.client, 2, 12, 0);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    peer_crash(fixture.client);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).client_count, 0);
    expect_grant(fixture.one, fixture.client, 2);
    EXPECT(fixture.one, SHARD_PUT, shard_put);
    uint64_t request = EXPECT(fixture.one, SHARD_GET, shard_get)->request;
    assert_int_equal(EXPECT(fixture.one, ABORT, abort)->run, run);
    assert_int_equal(EXPECT(fixture.one, ABORT, abort)->run, run + 1);
    for (uint64_t i = 0; i < 2; i++) {
        send_failed(fixture.one, run + i, TOW_CANCELLED, "aborted");
        send_failed(fixture.two, run + i, TOW_CANCELLED, "aborted");
    }
    run_for(&fixture.cluster, SECOND / 100);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).run_count, 0);
    tow_msg_shard_get_done_t got = TOW_MSG_SHARD_GET_DONE_INIT;
    got.request = request;
    send_message(fixture.one, TOW_MESSAGE_SHARD_GET_DONE, &got.base);
    run_for(&fixture.cluster, SECOND / 100);
    expect_nothing(&fixture.cluster);
    cluster_close(&fixture.cluster);
}

static void a_cancelled_run_fails_with_the_reason_of_its_client(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    failure.code = TOW_DEADLINE_EXCEEDED;
    failure.message = (char *)"it took too long";
    cancel.run = 1;
    cancel.failure = &failure;
    send_message(fixture.client, TOW_MESSAGE_CANCEL, &cancel.base);
    expect_failure(EXPECT(fixture.one, ABORT, abort)->failure,
                   TOW_DEADLINE_EXCEEDED, "too long");
    send_failed(fixture.one, run, TOW_DEADLINE_EXCEEDED, "aborted");
    send_done(fixture.two, run);
    expect_run_failed(fixture.client, 1, TOW_DEADLINE_EXCEEDED,
                      "it took too long");
    send_run(fixture.client, 2, 1, 10, 11);
    expect_run_failed(fixture.client, 2, TOW_DEADLINE_EXCEEDED,
                      "it took too long");
    cluster_close(&fixture.cluster);
}

static void cancelled_runs_are_withdrawn_or_aborted(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    send_put(fixture.client, 20, 1, 1024, NULL);
    send_run(fixture.client, 2, 1, 20, 11); /* waits */
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    send_cancel(fixture.client, 2);
    expect_run_failed(fixture.client, 2, TOW_CANCELLED, "run 2 was cancelled");
    send_cancel(fixture.client, 1);
    EXPECT(fixture.one, SHARD_PUT, shard_put);
    expect_failure(EXPECT(fixture.one, ABORT, abort)->failure, TOW_CANCELLED,
                   "1");
    send_cancel(fixture.client, 1); /* the second has no effect */
    send_cancel(fixture.client, 99);
    expect_no_message(fixture.one);
    send_failed(fixture.one, run, TOW_CANCELLED, "aborted");
    send_done(fixture.two, run); /* It completed first. */
    expect_run_failed(fixture.client, 1, TOW_CANCELLED, "run 1 was cancelled");
    cluster_close(&fixture.cluster);
}

/* -- Donation ---------------------------------------------------------------------- */

static void a_donated_argument_is_consumed(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, consuming_text, donating);
    send_run(fixture.client, 1, 1, 1, 10);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    send_run(fixture.client, 2, 1, 1, 11);
    expect_run_failed(fixture.client, 2, TOW_FAILED_PRECONDITION, "donated");
    send_get(fixture.client, 1, 1, 0);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_FAILED_PRECONDITION, "donated");
    send_done(fixture.one, run);
    send_done(fixture.two, run);
    expect_run_done(fixture.client, 1);
    assert_int_equal(totals_bytes(&fixture), 4 * 1024);
    send_release(fixture.client, 1, 1);
    send_run(fixture.client, 3, 1, 10, 12);
    run = tow_key(fixture.client->number, 3);
    run_for(&fixture.cluster, SECOND / 100);
    send_failed(fixture.one, run, TOW_INTERNAL, "broken"); /* consumed anyway */
    send_done(fixture.two, run);
    expect_run_failed(fixture.client, 3, TOW_INTERNAL, "broken");
    assert_int_equal(totals_bytes(&fixture), 0);
    cluster_close(&fixture.cluster);
}

static void one_object_twice_cannot_be_donated(void **state)
{
    (void)state;
    static const char text[] = "towpath-cost 1\n"
                               "name two\n"
                               "argument u8[1024]\n"
                               "argument u8[1024]\n"
                               "result u8[1024] alias 0\n";
    static const char program[] =
        "program \"two\" {\n"
        "  %0 = argument : u8[1024] on slice 1 donated\n"
        "  %1 = argument : u8[1024] on slice 1\n"
        "  %2 = compute \"A\" function 1 on slice 1 (%0, %1)\n"
        "  %3 = result (%2)\n}\n";
    fixture_t fixture;
    fixture_open(&fixture, text, program);
    uint64_t arguments[] = {1, 1};
    tow_msg_run_t message = TOW_MSG_RUN_INIT;
    message.run = 1;
    message.program = 1;
    message.arguments = arguments;
    message.n_arguments = 2;
    message.first_result = 10;
    send_message(fixture.client, TOW_MESSAGE_RUN, &message.base);
    expect_run_failed(fixture.client, 1, TOW_INVALID_ARGUMENT,
                      "the same object");
    cluster_close(&fixture.cluster);
}

/* -- Memory ------------------------------------------------------------------------ */

static void a_run_that_does_not_fit_waits_in_order(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, big_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    send_run(fixture.client, 2, 1, 1, 11);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    expect_no_message(fixture.one); /* Two do not fit. */
    send_done(fixture.one, run);
    send_done(fixture.two, run);
    expect_run_done(fixture.client, 1);
    expect_grant(fixture.one, fixture.client, 2);
    cluster_close(&fixture.cluster);
}

static void a_run_that_can_never_fit_is_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, huge_text, one_add);
    send_run(fixture.client, 1, 1, 1, 10);
    expect_run_failed(fixture.client, 1, TOW_RESOURCE_EXHAUSTED, "bytes");
    send_put(fixture.client, 2, 1, 2 * MEMORY_BYTES, NULL);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_RESOURCE_EXHAUSTED, "bytes");
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_run_is_one_grant_a_worker_and_one_answer),
    cmocka_unit_test(completions_of_one_turn_are_one_message),
    cmocka_unit_test(runs_wait_for_their_program_to_be_loaded),
    cmocka_unit_test(a_program_that_cannot_be_loaded_fails_its_runs),
    cmocka_unit_test(an_invalid_run_fails_only_itself),
    cmocka_unit_test(runs_of_a_refused_program_fail_with_its_reason),
    cmocka_unit_test(clients_cannot_name_objects_of_others),
    cmocka_unit_test(a_failure_aborts_the_other_workers),
    cmocka_unit_test(a_get_that_fails_before_its_run_has_the_error_of_the_run),
    cmocka_unit_test(a_get_that_fails_alone_has_its_own_error),
    cmocka_unit_test(a_run_fails_when_its_worker_disconnects),
    cmocka_unit_test(a_client_that_disconnects_during_a_run_leaves_nothing),
    cmocka_unit_test(cancelled_runs_are_withdrawn_or_aborted),
    cmocka_unit_test(a_cancelled_run_fails_with_the_reason_of_its_client),
    cmocka_unit_test(a_donated_argument_is_consumed),
    cmocka_unit_test(one_object_twice_cannot_be_donated),
    cmocka_unit_test(a_run_that_does_not_fit_waits_in_order),
    cmocka_unit_test(a_run_that_can_never_fit_is_refused))
