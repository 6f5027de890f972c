/* Relays: three workers in groups of two, so the first is the second's relay and
 * the third has none. */
#include "controller/world_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct cast {
    world_t world;
    peer_t *relay, *child, *lone;
    peer_t *client;
} cast_t;

static void cast_open(cast_t *cast)
{
    *cast = (cast_t){.world.options.relay_fanout = 2};
    world_open(&cast->world);
    cast->relay = worker_make(&cast->world, 1);
    cast->child = worker_make(&cast->world, 2);
    cast->lone = worker_make(&cast->world, 3);
    cast->client = client_make(&cast->world, "client/1");
    open_slice(cast->client, 1, 6);
    compile(cast->client, 1, 1, add_text);
    add_program(cast->client, 1, one_add);
    say_put(cast->client, 1, 1, 1024, zeroes);
    expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
    hear_out(cast->relay);
    hear_out(cast->child);
    hear_out(cast->lone);
}

/* The number that the child shall have it by. */
static uint64_t hear_relay_grant(cast_t *cast, uint64_t run)
{
    const tow_msg_relay_grant_t *grant =
        HEAR(cast->relay, RELAY_GRANT, relay_grant);
    assert_int_equal(grant->grant->run, tow_key(cast->client->number, run));
    assert_int_equal(grant->n_processes, 1);
    assert_int_equal(grant->n_numbers, 1);
    assert_int_equal(grant->processes[0], 2);
    return grant->numbers[0];
}

static void say_all_done(cast_t *cast, uint64_t run)
{
    uint64_t key = tow_key(cast->client->number, run);
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.runs = &key;
    done.n_runs = 1;
    say(cast->relay, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void say_one_done(cast_t *cast, uint64_t run, uint32_t process)
{
    uint64_t key = tow_key(cast->client->number, run);
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.part_runs = &key;
    done.part_processes = &process;
    done.n_part_runs = done.n_part_processes = 1;
    say(cast->relay, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void say_lost(peer_t *worker, uint32_t process)
{
    tow_msg_relay_lost_t lost = TOW_MSG_RELAY_LOST_INIT;
    lost.process = process;
    say(worker, TOW_MESSAGE_RELAY_LOST, &lost.base);
}

static void a_relay_is_granted_and_reports_for_its_group(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 1, 1, 1, 10);
    hear_relay_grant(&cast, 1);
    const uint64_t run = hear_grant(cast.lone, cast.client, 1);
    hear_nothing(cast.child);
    say_done(cast.lone, run);
    hear_nothing(cast.client);
    say_all_done(&cast, 1);
    hear_run_done(cast.client, 1);
    world_close(&cast.world);
}

static void reports_one_by_one_add_up(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 1, 1, 1, 10);
    hear_relay_grant(&cast, 1);
    say_done(cast.lone, hear_grant(cast.lone, cast.client, 1));
    say_one_done(&cast, 1, 2);
    say_one_done(&cast, 1, 2); /* Twice is once. */
    say_one_done(&cast, 1, 3); /* Not of its group. */
    hear_nothing(cast.client);
    say_one_done(&cast, 1, 1);
    hear_run_done(cast.client, 1);
    say_all_done(&cast, 1); /* Of a run that is over. */
    hear_nothing(cast.client);
    world_close(&cast.world);
}

static void what_follows_says_its_number(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 1, 1, 1, 10);
    say_run(cast.client, 2, 1, 10, 11);
    const uint64_t first = hear_relay_grant(&cast, 1);
    assert_int_equal(hear_relay_grant(&cast, 2), first + 1);
    say_all_done(&cast, 1);
    say_done(cast.lone, hear_grant(cast.lone, cast.client, 1));
    hear_run_done(cast.client, 1);
    say_release(cast.client, 10, 1);
    say_all_done(&cast, 2);
    say_done(cast.lone, hear_grant(cast.lone, cast.client, 2));
    hear_run_done(cast.client, 2);
    assert_int_equal(HEAR(cast.child, SEQUENCE, sequence)->next, first + 2);
    (void)HEAR(cast.child, RELEASE, release);
    world_close(&cast.world);
}

static void what_a_relay_lost_is_sent_again_directly(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 1, 1, 1, 10);
    const uint64_t number = hear_relay_grant(&cast, 1);
    const uint64_t run = hear_grant(cast.lone, cast.client, 1);
    say_lost(cast.relay, 2);
    const tow_msg_passed_grant_t *again =
        HEAR(cast.child, PASSED_GRANT, passed_grant);
    assert_int_equal(again->number, number);
    assert_int_equal(again->grant->run, run);
    assert_int_equal(again->grant->arguments[0],
                     tow_key(cast.client->number, 1));
    say_done(cast.child, run);
    say_done(cast.lone, run);
    say_one_done(&cast, 1, 1);
    hear_run_done(cast.client, 1);
    /* From now on without it. */
    say_run(cast.client, 2, 1, 1, 20);
    assert_int_equal(HEAR(cast.child, SEQUENCE, sequence)->next, number + 1);
    say_done(cast.child, hear_grant(cast.child, cast.client, 2));
    say_done(cast.relay, hear_grant(cast.relay, cast.client, 2));
    say_done(cast.lone, hear_grant(cast.lone, cast.client, 2));
    hear_run_done(cast.client, 2);
    world_close(&cast.world);
}

static void who_was_lost_may_say_so_too(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 1, 1, 1, 10);
    const uint64_t number = hear_relay_grant(&cast, 1);
    say_lost(cast.child, 1);
    assert_int_equal(HEAR(cast.child, PASSED_GRANT, passed_grant)->number,
                     number);
    say_lost(cast.child, 77); /* Nobody. */
    hear_nothing(cast.child);
    say_done(cast.child, tow_key(cast.client->number, 1));
    say_done(cast.lone, hear_grant(cast.lone, cast.client, 1));
    say_one_done(&cast, 1, 1);
    hear_run_done(cast.client, 1);
    world_close(&cast.world);
}

/* All or nothing: who has not got the grant gets it, and then the abort. */
static void a_relay_that_dies_with_half_a_gang_granted(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 1, 1, 1, 10);
    const uint64_t number = hear_relay_grant(&cast, 1);
    const uint64_t run = hear_grant(cast.lone, cast.client, 1);
    peer_die(cast.relay);
    /* Meanwhile it was asked what the run waits for. */
    assert_int_equal(HEAR(cast.child, SEQUENCE, sequence)->next, number + 1);
    assert_int_equal(HEAR(cast.child, PASSED_GRANT, passed_grant)->number,
                     number);
    assert_int_equal(HEAR(cast.child, ABORT, abort)->run, run);
    assert_int_equal(HEAR(cast.lone, ABORT, abort)->run, run);
    hear_nothing(cast.client); /* Until all have given up. */
    say_failed(cast.child, run, TOW_UNAVAILABLE, "aborted");
    say_failed(cast.lone, run, TOW_UNAVAILABLE, "aborted");
    hear_run_failed(cast.client, 1, TOW_UNAVAILABLE, "worker/1");
    world_close(&cast.world);
}

TOW_TEST_MAIN(cmocka_unit_test(a_relay_is_granted_and_reports_for_its_group),
              cmocka_unit_test(reports_one_by_one_add_up),
              cmocka_unit_test(what_follows_says_its_number),
              cmocka_unit_test(what_a_relay_lost_is_sent_again_directly),
              cmocka_unit_test(who_was_lost_may_say_so_too),
              cmocka_unit_test(a_relay_that_dies_with_half_a_gang_granted))
