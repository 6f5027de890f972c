/* Remapping of slices that lose devices. */
#include "controller/fixture_testing_impl.h"

static uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} fixture_t;

/* Slice 1 has all four devices, function 1 adds, program 1 is one_add, object
 * 1 is on the slice. */
static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 4);
    compile(fixture->client, 1, 1, add_text);
    add_program(fixture->client, 1, one_add);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->one);
    discard_messages(fixture->two);
}

static void a_remapped_slice_keeps_its_programs(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    peer_crash(fixture.two);
    /* While there are too few devices, every use fails. */
    send_put(fixture.client, 2, 1, 1024, zeroes);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    send_run(fixture.client, 1, 1, 1, 10);
    expect_run_failed(fixture.client, 1, TOW_UNAVAILABLE, "worker/2");
    peer_t *three = worker_make(&fixture.cluster, 3);
    discard_messages(fixture.one);
    /* Earlier objects stay lost. */
    send_run(fixture.client, 2, 1, 1, 11);
    expect_run_failed(fixture.client, 2, TOW_UNAVAILABLE, "worker/2");
    send_put(fixture.client, 3, 1, 1024, zeroes);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    send_run(fixture.client, 3, 1, 3, 12);
    (void)EXPECT(three, PROGRAM_LOAD, program_load);
    (void)EXPECT(three, SHARD_PUT, shard_put);
    const tow_msg_grant_t *grant = EXPECT(three, GRANT, grant);
    assert_int_equal(grant->run, tow_key(fixture.client->number, 3));
    /* Under a new key: runs of the old one may still be under way. */
    assert_true(grant->program != tow_key(fixture.client->number, 1));
    discard_messages(fixture.one);
    send_done(fixture.one, tow_key(fixture.client->number, 3));
    send_done(three, tow_key(fixture.client->number, 3));
    expect_run_done(fixture.client, 3);
    /* Nothing was compiled again: the function is good for the new devices. */
    send_run(fixture.client, 4, 1, 12, 13);
    expect_grant(three, fixture.client, 4);
    send_done(fixture.one, tow_key(fixture.client->number, 4));
    send_done(three, tow_key(fixture.client->number, 4));
    expect_run_done(fixture.client, 4);
    cluster_close(&fixture.cluster);
}

static void a_slice_of_named_devices_is_not_remapped(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    int64_t devices[] = {4096, 4097};
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = 2;
    open.kind = (char *)"";
    open.devices = devices;
    open.n_devices = 2;
    send_message(fixture.client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_success(EXPECT(fixture.client, SLICE_OPENED, slice_opened)->failure);
    peer_crash(fixture.two);
    worker_make(&fixture.cluster, 3);
    send_put(fixture.client, 2, 2, 1024, zeroes);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    send_put(fixture.client, 3, 1, 1024, zeroes);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    cluster_close(&fixture.cluster);
}

static void a_slice_stays_on_the_island_that_it_named(void **state)
{
    (void)state;
    fixture_t fixture = {0};
    cluster_open(&fixture.cluster);
    fixture.one = worker_make_on(&fixture.cluster, 1, "west");
    fixture.two = worker_make_on(&fixture.cluster, 2, "east");
    fixture.client = client_make(&fixture.cluster, "client/1");
    uint32_t count = 2;
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = 1;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.island = (char *)"west";
    send_message(fixture.client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_success(EXPECT(fixture.client, SLICE_OPENED, slice_opened)->failure);
    peer_crash(fixture.one);
    send_put(fixture.client, 1, 1, 1024, zeroes);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/1");
    worker_make_on(&fixture.cluster, 3, "west");
    send_put(fixture.client, 2, 1, 1024, zeroes);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    cluster_close(&fixture.cluster);
}

/* A program that was refused because its slice was disconnected, and one whose
 * function was released, after the slice is remapped. */
static void programs_are_lowered_again_if_possible(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    peer_crash(fixture.two);
    refuse_program(fixture.client, 2, one_add, TOW_UNAVAILABLE, "worker/2");
    worker_make(&fixture.cluster, 3);
    send_put(fixture.client, 2, 1, 1024, zeroes);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    send_run(fixture.client, 1, 2, 2, 10);
    discard_messages(fixture.one);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).run_count, 1);
    tow_msg_function_discard_t drop = TOW_MSG_FUNCTION_DISCARD_INIT;
    drop.function = 1;
    send_message(fixture.client, TOW_MESSAGE_FUNCTION_DISCARD, &drop.base);
    send_run(fixture.client, 2, 1, 2,
             11); /* Program 1 cannot be lowered again. */
    const tow_msg_runs_done_t *done =
        EXPECT(fixture.client, RUNS_DONE, runs_done);
    assert_int_equal(done->n_failures, 1);
    assert_int_equal(done->failures[0]->run, 2);
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(cmocka_unit_test(a_remapped_slice_keeps_its_programs),
              cmocka_unit_test(a_slice_of_named_devices_is_not_remapped),
              cmocka_unit_test(a_slice_stays_on_the_island_that_it_named),
              cmocka_unit_test(programs_are_lowered_again_if_possible))
