/* Slices that lose devices and get others. */
#include "controller/world_testing_impl.h"

static uint8_t zeroes[1024];

typedef struct cast {
    world_t world;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} cast_t;

/* Slice 1 has all four devices, function 1 adds, program 1 is one_add, object 1 is
 * on the slice. */
static void cast_open(cast_t *cast)
{
    *cast = (cast_t){0};
    world_open(&cast->world);
    cast->one = worker_make(&cast->world, 1);
    cast->two = worker_make(&cast->world, 2);
    cast->client = client_make(&cast->world, "client/1");
    open_slice(cast->client, 1, 4);
    compile(cast->client, 1, 1, add_text);
    add_program(cast->client, 1, one_add);
    say_put(cast->client, 1, 1, 1024, zeroes);
    expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
    hear_out(cast->one);
    hear_out(cast->two);
}

static void a_slice_gets_other_devices_and_programs_go_on(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    peer_die(cast.two);
    /* While there are too few, every use says so. */
    say_put(cast.client, 2, 1, 1024, zeroes);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    say_run(cast.client, 1, 1, 1, 10);
    hear_run_failed(cast.client, 1, TOW_UNAVAILABLE, "worker/2");
    peer_t *three = worker_make(&cast.world, 3);
    hear_out(cast.one);
    /* What was there is lost, whatever comes. */
    say_run(cast.client, 2, 1, 1, 11);
    hear_run_failed(cast.client, 2, TOW_UNAVAILABLE, "worker/2");
    say_put(cast.client, 3, 1, 1024, zeroes);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    say_run(cast.client, 3, 1, 3, 12);
    (void)HEAR(three, PROGRAM_LOAD, program_load);
    (void)HEAR(three, SHARD_PUT, shard_put);
    const tow_msg_grant_t *grant = HEAR(three, GRANT, grant);
    assert_int_equal(grant->run, tow_key(cast.client->number, 3));
    /* Under a name of its own: runs of the old one may still be under way. */
    assert_true(grant->program != tow_key(cast.client->number, 1));
    hear_out(cast.one);
    say_done(cast.one, tow_key(cast.client->number, 3));
    say_done(three, tow_key(cast.client->number, 3));
    hear_run_done(cast.client, 3);
    /* Nothing was compiled again: the function is good for the new devices. */
    say_run(cast.client, 4, 1, 12, 13);
    hear_grant(three, cast.client, 4);
    say_done(cast.one, tow_key(cast.client->number, 4));
    say_done(three, tow_key(cast.client->number, 4));
    hear_run_done(cast.client, 4);
    world_close(&cast.world);
}

static void a_slice_of_named_devices_stays_lost(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    int64_t devices[] = {4096, 4097};
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = 2;
    open.kind = (char *)"";
    open.devices = devices;
    open.n_devices = 2;
    say(cast.client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_well(HEAR(cast.client, SLICE_OPENED, slice_opened)->failure);
    peer_die(cast.two);
    worker_make(&cast.world, 3);
    say_put(cast.client, 2, 2, 1024, zeroes);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    say_put(cast.client, 3, 1, 1024, zeroes);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    world_close(&cast.world);
}

static void a_slice_stays_on_the_island_that_it_named(void **state)
{
    (void)state;
    cast_t cast = {0};
    world_open(&cast.world);
    cast.one = worker_make_on(&cast.world, 1, "west");
    cast.two = worker_make_on(&cast.world, 2, "east");
    cast.client = client_make(&cast.world, "client/1");
    uint32_t count = 2;
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = 1;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.island = (char *)"west";
    say(cast.client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_well(HEAR(cast.client, SLICE_OPENED, slice_opened)->failure);
    peer_die(cast.one);
    say_put(cast.client, 1, 1, 1024, zeroes);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/1");
    worker_make_on(&cast.world, 3, "west");
    say_put(cast.client, 2, 1, 1024, zeroes);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    world_close(&cast.world);
}

/* A program that was refused because its slice was lost, and one whose function is
 * gone, when the slice is there again. */
static void programs_are_lowered_again_where_that_can_be(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    peer_die(cast.two);
    refuse_program(cast.client, 2, one_add, TOW_UNAVAILABLE, "worker/2");
    worker_make(&cast.world, 3);
    say_put(cast.client, 2, 1, 1024, zeroes);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    say_run(cast.client, 1, 2, 2, 10);
    hear_out(cast.one);
    assert_int_equal(tow_controller_totals(cast.world.controller).run_count, 1);
    tow_msg_function_drop_t drop = TOW_MSG_FUNCTION_DROP_INIT;
    drop.function = 1;
    say(cast.client, TOW_MESSAGE_FUNCTION_DROP, &drop.base);
    say_run(cast.client, 2, 1, 2, 11); /* Program 1 cannot be lowered again. */
    const tow_msg_runs_done_t *done = HEAR(cast.client, RUNS_DONE, runs_done);
    assert_int_equal(done->n_failures, 1);
    assert_int_equal(done->failures[0]->run, 2);
    world_close(&cast.world);
}

TOW_TEST_MAIN(cmocka_unit_test(a_slice_gets_other_devices_and_programs_go_on),
              cmocka_unit_test(a_slice_of_named_devices_stays_lost),
              cmocka_unit_test(a_slice_stays_on_the_island_that_it_named),
              cmocka_unit_test(programs_are_lowered_again_where_that_can_be))
