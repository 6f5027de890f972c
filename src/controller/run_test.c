/* Runs, against workers and clients that the tests write themselves. */
#include "controller/world_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct cast {
    world_t world;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} cast_t;

/* Slice 1 has all four devices, function 1 is `text`, program 1 is `program`,
 * object 1 is on the slice. */
static void cast_open(cast_t *cast, const char *text, const char *program)
{
    *cast = (cast_t){0};
    world_open(&cast->world);
    cast->one = worker_make(&cast->world, 1);
    cast->two = worker_make(&cast->world, 2);
    cast->client = client_make(&cast->world, "client/1");
    open_slice(cast->client, 1, 4);
    compile(cast->client, 1, 1, text);
    add_program(cast->client, 1, program);
    say_put(cast->client, 1, 1, 1024, zeroes);
    expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
    hear_out(cast->one);
    hear_out(cast->two);
}

static uint64_t totals_bytes(const cast_t *cast)
{
    return tow_controller_totals(cast->world.controller).object_bytes;
}

/* -- Going well -------------------------------------------------------------------- */

static void a_run_is_one_grant_a_worker_and_one_answer(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    const tow_msg_grant_t *grant = HEAR(cast.one, GRANT, grant);
    assert_int_equal(grant->run, tow_key(cast.client->number, 1));
    assert_int_equal(grant->program, tow_key(cast.client->number, 1));
    assert_int_equal(grant->n_arguments, 1);
    assert_int_equal(grant->arguments[0], tow_key(cast.client->number, 1));
    assert_int_equal(grant->first_result, tow_key(cast.client->number, 10));
    uint64_t run = hear_grant(cast.two, cast.client, 1);
    assert_true(tow_controller_totals(cast.world.controller).reserved_bytes >
                0);
    say_done(cast.one, run);
    hear_nothing(cast.client); /* All have to report. */
    say_done(cast.two, run);
    hear_run_done(cast.client, 1);
    assert_int_equal(totals_bytes(&cast), 2 * 4 * 1024);
    assert_int_equal(
        tow_controller_totals(cast.world.controller).reserved_bytes, 0);
    say_release(cast.client, 10, 1);
    const tow_msg_release_t *release = HEAR(cast.one, RELEASE, release);
    assert_int_equal(release->firsts[0], tow_key(cast.client->number, 10));
    assert_int_equal(release->counts[0], 1);
    assert_int_equal(totals_bytes(&cast), 4 * 1024);
    world_close(&cast.world);
}

static void completions_of_one_turn_are_one_message(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    uint64_t runs[3];
    for (uint64_t i = 0; i < 3; i++)
        say_run(cast.client, 1 + i, 1, i == 0 ? 1 : 9 + i, 10 + i);
    uint64_t gang = 0;
    for (uint64_t i = 0; i < 3; i++) {
        runs[i] = hear_grant(cast.one, cast.client, 1 + i);
        const tow_msg_grant_t *grant = HEAR(cast.two, GRANT, grant);
        assert_true(grant->first_gang > gang); /* One order. */
        gang = grant->first_gang;
    }
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = runs;
    done.n_runs = 3;
    say(cast.one, TOW_MESSAGE_DONE, &done.base);
    say(cast.two, TOW_MESSAGE_DONE, &done.base);
    const tow_msg_runs_done_t *told = HEAR(cast.client, RUNS_DONE, runs_done);
    assert_int_equal(told->n_runs, 3);
    hear_nothing(cast.client);
    say_release(cast.client, 10, 3);
    const tow_msg_release_t *release = HEAR(cast.two, RELEASE, release);
    assert_int_equal(release->n_firsts, 1); /* One range. */
    assert_int_equal(release->counts[0], 3);
    world_close(&cast.world);
}

static void runs_wait_for_their_program_to_be_loaded(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    cast.two->keeps_loads = true;
    open_slice(cast.client, 2, 4);
    compile(cast.client, 2, 2, eat_text);
    add_program(cast.client, 2,
                "program \"late\" {\n"
                "  %0 = argument : u8[1024] on slice 1\n"
                "  %1 = compute \"A\" function 2 on slice 1 (%0)\n"
                "  %2 = result (%1)\n}\n");
    say_run(cast.client, 1, 2, 1, 10);
    say_run(cast.client, 2, 2, 1, 11);
    uint64_t executable = HEAR(cast.two, LOAD, load)->executable;
    HEAR(cast.two, PROGRAM_LOAD, program_load);
    hear_nothing(cast.two);
    answer_load(cast.two, executable, NULL);
    hear_grant(cast.two, cast.client, 1);
    hear_grant(cast.two, cast.client, 2);
    world_close(&cast.world);
}

static void a_program_that_cannot_be_loaded_fails_its_runs(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    cast.two->keeps_loads = true;
    compile(cast.client, 2, 1, eat_text);
    add_program(cast.client, 2,
                "program \"late\" {\n"
                "  %0 = argument : u8[1024] on slice 1\n"
                "  %1 = compute \"A\" function 2 on slice 1 (%0)\n"
                "  %2 = result (%1)\n}\n");
    say_run(cast.client, 1, 2, 1, 10);
    answer_load(cast.two, HEAR(cast.two, LOAD, load)->executable,
                "no room for code");
    hear_run_failed(cast.client, 1, TOW_INTERNAL, "no room for code");
    say_run(cast.client, 2, 2, 1, 11);
    hear_run_failed(cast.client, 2, TOW_INTERNAL, "worker/2");
    say_run(cast.client, 3, 1, 10, 12); /* uses a result of the failed one */
    hear_run_failed(cast.client, 3, TOW_INTERNAL, "no room for code");
    say_run(cast.client, 4, 1, 1, 13); /* Others go on. */
    say_done(cast.one, tow_key(cast.client->number, 4));
    say_done(cast.two, tow_key(cast.client->number, 4));
    world_close(&cast.world);
}

/* -- Wrong runs -------------------------------------------------------------------- */

static void a_wrong_run_fails_alone(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 77, 1, 10);
    hear_run_failed(cast.client, 1, TOW_NOT_FOUND, "program 77");
    say_run(cast.client, 2, 1, 55, 11);
    hear_run_failed(cast.client, 2, TOW_NOT_FOUND, "55");
    say_run(cast.client, 3, 1, 0, 12); /* without its argument */
    hear_run_failed(cast.client, 3, TOW_INVALID_ARGUMENT, "1 arguments");
    say_put(cast.client, 2, 1, 7, zeroes);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    say_run(cast.client, 4, 1, 2, 13);
    hear_run_failed(cast.client, 4, TOW_INVALID_ARGUMENT, "u8[7]");
    open_slice(cast.client, 2, 2);
    say_put(cast.client, 3, 2, 1024, zeroes);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    say_run(cast.client, 5, 1, 3, 14);
    hear_run_failed(cast.client, 5, TOW_INVALID_ARGUMENT, "other devices");
    say_run(cast.client, 6, 1, 11, 15); /* a result that never was */
    hear_run_failed(cast.client, 6, TOW_NOT_FOUND, "55");
    hear_out(cast.one);
    say_run(cast.client, 7, 1, 1, 16);
    hear_grant(cast.one, cast.client, 7);
    world_close(&cast.world);
}

static void runs_of_a_refused_program_fail_with_its_reason(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    refuse_program(cast.client, 2,
                   "program \"p\" {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 1\n"
                   "  %1 = compute \"A\" function 9 on slice 1 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "function 9");
    say_run(cast.client, 1, 2, 1, 10);
    hear_run_failed(cast.client, 1, TOW_INVALID_ARGUMENT, "function 9");
    say_get(cast.client, 1, 10, 0);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_INVALID_ARGUMENT, "function 9");
    say_run(cast.client, 2, 1, 10, 11); /* uses its result */
    hear_run_failed(cast.client, 2, TOW_INVALID_ARGUMENT, "function 9");
    say_release(cast.client, 10, 2);
    add_program(cast.client, 2, one_add); /* The id is free. */
    say_run(cast.client, 3, 2, 1, 12);
    hear_out(cast.one);
    assert_int_equal(tow_controller_totals(cast.world.controller).run_count, 1);
    world_close(&cast.world);
}

static void clients_cannot_name_each_others_things(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    peer_t *thief = client_make(&cast.world, "client/thief");
    open_slice(thief, 1, 4);
    compile(thief, 1, 1, add_text);
    add_program(thief, 1, one_add);
    say_run(thief, 1, 1, 1, 10);
    hear_run_failed(thief, 1, TOW_NOT_FOUND, "object 1");
    say_run(thief, 2, 1, tow_key(cast.client->number, 1), 11);
    hear_run_failed(thief, 2, TOW_NOT_FOUND, "object");
    say_get(thief, 1, tow_key(cast.client->number, 1), 0);
    expect_failure(HEAR(thief, GET_DONE, get_done)->failure,
                   TOW_INVALID_ARGUMENT, "range");
    say_release(thief, tow_key(cast.client->number, 1), 1);
    say_cancel(thief, tow_key(cast.client->number, 1));
    hear_nothing(thief);
    assert_int_equal(totals_bytes(&cast), 4 * 1024);
    /* Ids whose results would reach into another's. */
    say_run(thief, 3, 1, 1, UINT64_MAX);
    run_for(&cast.world, SECOND / 10);
    assert_int_equal(thief->gone_count, 1);
    expect_part(thief->gone_message, "out of range");
    world_close(&cast.world);
}

/* -- Failing ----------------------------------------------------------------------- */

static void a_failure_aborts_the_other_workers(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    hear_grant(cast.two, cast.client, 1);
    say_failed(cast.one, run, TOW_INTERNAL, "device 1 caught fire");
    const tow_msg_abort_t *abort = HEAR(cast.two, ABORT, abort);
    assert_int_equal(abort->run, run);
    expect_failure(abort->failure, TOW_INTERNAL, "caught fire");
    hear_nothing(cast.client);
    say_failed(cast.two, run, TOW_CANCELLED, "aborted");
    hear_run_failed(cast.client, 1, TOW_INTERNAL, "caught fire");
    hear_nothing(cast.one); /* It knows. */
    say_get(cast.client, 1, 10, 0);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure, TOW_INTERNAL,
                   "caught fire");
    say_run(cast.client, 2, 1, 10, 11); /* not granted at all */
    hear_run_failed(cast.client, 2, TOW_INTERNAL, "caught fire");
    hear_nothing(cast.one);
    world_close(&cast.world);
}

static void a_worker_gone_in_mid_run_fails_it(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    say_run(cast.client, 2, 1, 10, 11);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    hear_grant(cast.one, cast.client, 2);
    say_get(cast.client, 5, 10, 3); /* of a shard on worker 2 */
    run_for(&cast.world, SECOND / 100);
    peer_die(cast.two);
    assert_int_equal(HEAR(cast.one, ABORT, abort)->run, run);
    assert_int_equal(HEAR(cast.one, ABORT, abort)->run, run + 1);
    say_failed(cast.one, run, TOW_CANCELLED, "aborted");
    say_failed(cast.one, run + 1, TOW_CANCELLED, "aborted");
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    const tow_msg_runs_done_t *done = HEAR(cast.client, RUNS_DONE, runs_done);
    expect_failure(done->failures[0]->failure, TOW_UNAVAILABLE, "worker/2");
    HEAR(cast.client, RUNS_DONE, runs_done);
    say_run(cast.client, 3, 1, 1, 12); /* Its argument is lost. */
    hear_run_failed(cast.client, 3, TOW_UNAVAILABLE, "worker/2");
    world_close(&cast.world);
}

static void a_client_gone_in_mid_run_leaves_nothing(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    say_run(cast.client, 2, 1, 10, 11);
    say_put(cast.client, 20, 1, 4096, NULL);
    say_run(cast.client, 3, 1, 20, 12); /* waits for the put */
    say_get(cast.client, 1, 10, 0);
    say_get(cast.client, 2, 12, 0);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    peer_die(cast.client);
    assert_int_equal(tow_controller_totals(cast.world.controller).client_count,
                     0);
    hear_grant(cast.one, cast.client, 2);
    HEAR(cast.one, SHARD_PUT, shard_put);
    uint64_t request = HEAR(cast.one, SHARD_GET, shard_get)->request;
    assert_int_equal(HEAR(cast.one, ABORT, abort)->run, run);
    assert_int_equal(HEAR(cast.one, ABORT, abort)->run, run + 1);
    for (uint64_t i = 0; i < 2; i++) {
        say_failed(cast.one, run + i, TOW_CANCELLED, "aborted");
        say_failed(cast.two, run + i, TOW_CANCELLED, "aborted");
    }
    run_for(&cast.world, SECOND / 100);
    assert_int_equal(tow_controller_totals(cast.world.controller).run_count, 0);
    tow_msg_shard_get_done_t got = TOW_MSG_SHARD_GET_DONE_INIT;
    got.request = request;
    say(cast.one, TOW_MESSAGE_SHARD_GET_DONE, &got.base);
    run_for(&cast.world, SECOND / 100);
    expect_nothing(&cast.world);
    world_close(&cast.world);
}

static void a_run_fails_with_what_its_client_gave_it_up_for(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    failure.code = TOW_DEADLINE_EXCEEDED;
    failure.message = (char *)"it took too long";
    cancel.run = 1;
    cancel.failure = &failure;
    say(cast.client, TOW_MESSAGE_CANCEL, &cancel.base);
    expect_failure(HEAR(cast.one, ABORT, abort)->failure, TOW_DEADLINE_EXCEEDED,
                   "too long");
    say_failed(cast.one, run, TOW_DEADLINE_EXCEEDED, "aborted");
    say_done(cast.two, run);
    hear_run_failed(cast.client, 1, TOW_DEADLINE_EXCEEDED, "it took too long");
    say_run(cast.client, 2, 1, 10, 11);
    hear_run_failed(cast.client, 2, TOW_DEADLINE_EXCEEDED, "it took too long");
    world_close(&cast.world);
}

static void cancelled_runs_are_withdrawn_or_aborted(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    say_put(cast.client, 20, 1, 1024, NULL);
    say_run(cast.client, 2, 1, 20, 11); /* waits */
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    say_cancel(cast.client, 2);
    hear_run_failed(cast.client, 2, TOW_CANCELLED, "run 2 was cancelled");
    say_cancel(cast.client, 1);
    HEAR(cast.one, SHARD_PUT, shard_put);
    expect_failure(HEAR(cast.one, ABORT, abort)->failure, TOW_CANCELLED, "1");
    say_cancel(cast.client, 1); /* once is enough */
    say_cancel(cast.client, 99);
    hear_nothing(cast.one);
    say_failed(cast.one, run, TOW_CANCELLED, "aborted");
    say_done(cast.two, run); /* It was faster. */
    hear_run_failed(cast.client, 1, TOW_CANCELLED, "run 1 was cancelled");
    world_close(&cast.world);
}

/* -- Donation ---------------------------------------------------------------------- */

static void a_donated_argument_is_consumed(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, eat_text, donating);
    say_run(cast.client, 1, 1, 1, 10);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    say_run(cast.client, 2, 1, 1, 11);
    hear_run_failed(cast.client, 2, TOW_FAILED_PRECONDITION, "donated");
    say_get(cast.client, 1, 1, 0);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_FAILED_PRECONDITION, "donated");
    say_done(cast.one, run);
    say_done(cast.two, run);
    hear_run_done(cast.client, 1);
    assert_int_equal(totals_bytes(&cast), 4 * 1024);
    say_release(cast.client, 1, 1);
    say_run(cast.client, 3, 1, 10, 12);
    run = tow_key(cast.client->number, 3);
    run_for(&cast.world, SECOND / 100);
    say_failed(cast.one, run, TOW_INTERNAL, "broken"); /* consumed anyway */
    say_done(cast.two, run);
    hear_run_failed(cast.client, 3, TOW_INTERNAL, "broken");
    assert_int_equal(totals_bytes(&cast), 0);
    world_close(&cast.world);
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
    cast_t cast;
    cast_open(&cast, text, program);
    uint64_t arguments[] = {1, 1};
    tow_msg_run_t message = TOW_MSG_RUN_INIT;
    message.run = 1;
    message.program = 1;
    message.arguments = arguments;
    message.n_arguments = 2;
    message.first_result = 10;
    say(cast.client, TOW_MESSAGE_RUN, &message.base);
    hear_run_failed(cast.client, 1, TOW_INVALID_ARGUMENT, "one object");
    world_close(&cast.world);
}

/* -- Memory ------------------------------------------------------------------------ */

static void what_does_not_fit_waits_in_order(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, big_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    say_run(cast.client, 2, 1, 1, 11);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    hear_nothing(cast.one); /* Two do not fit. */
    say_done(cast.one, run);
    say_done(cast.two, run);
    hear_run_done(cast.client, 1);
    hear_grant(cast.one, cast.client, 2);
    world_close(&cast.world);
}

static void what_can_never_fit_is_refused(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, huge_text, one_add);
    say_run(cast.client, 1, 1, 1, 10);
    hear_run_failed(cast.client, 1, TOW_RESOURCE_EXHAUSTED, "bytes");
    say_put(cast.client, 2, 1, 2 * MEMORY_BYTES, NULL);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_RESOURCE_EXHAUSTED, "bytes");
    world_close(&cast.world);
}

TOW_TEST_MAIN(cmocka_unit_test(a_run_is_one_grant_a_worker_and_one_answer),
              cmocka_unit_test(completions_of_one_turn_are_one_message),
              cmocka_unit_test(runs_wait_for_their_program_to_be_loaded),
              cmocka_unit_test(a_program_that_cannot_be_loaded_fails_its_runs),
              cmocka_unit_test(a_wrong_run_fails_alone),
              cmocka_unit_test(runs_of_a_refused_program_fail_with_its_reason),
              cmocka_unit_test(clients_cannot_name_each_others_things),
              cmocka_unit_test(a_failure_aborts_the_other_workers),
              cmocka_unit_test(a_worker_gone_in_mid_run_fails_it),
              cmocka_unit_test(a_client_gone_in_mid_run_leaves_nothing),
              cmocka_unit_test(cancelled_runs_are_withdrawn_or_aborted),
              cmocka_unit_test(a_run_fails_with_what_its_client_gave_it_up_for),
              cmocka_unit_test(a_donated_argument_is_consumed),
              cmocka_unit_test(one_object_twice_cannot_be_donated),
              cmocka_unit_test(what_does_not_fit_waits_in_order),
              cmocka_unit_test(what_can_never_fit_is_refused))
