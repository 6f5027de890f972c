/* Programs over two slices: both workers get their part, and their pieces
 * match. */
#include "controller/fixture_testing_impl.h"

static uint8_t zeros[1024];

/* Slice 1 is worker 1's, slice 2 worker 2's; function 1 and 2 are "add" there.
 * Slices 3 and 4 are a device of each. */
typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two;
    peer_t *client;
} fixture_t;

static const char wide_text[] = "towpath-cost 1\n"
                                "name wide\n"
                                "argument u8[2048]\n"
                                "result u8[2048]\n"
                                "duration 1000\n";

static void open_devices(peer_t *client, uint64_t slice, int64_t first,
                         uint32_t count)
{
    int64_t devices[] = {first, first + 1};
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.devices = devices;
    open.n_devices = count;
    send_message(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_success(EXPECT(client, SLICE_OPENED, slice_opened)->failure);
}

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_devices(fixture->client, 1, 2048, 2);
    open_devices(fixture->client, 2, 4096, 2);
    open_devices(fixture->client, 3, 2048, 1);
    open_devices(fixture->client, 4, 4096, 1);
    compile(fixture->client, 1, 1, add_text);
    compile(fixture->client, 2, 2, wide_text);
    compile(fixture->client, 3, 3, add_text);
    compile(fixture->client, 4, 4, add_text);
}

static void fixture_close(fixture_t *fixture)
{
    cluster_close(&fixture->cluster);
}

/* The worker's part of the program that was added last. */
static tow_lowered_t *expect_lowered(peer_t *worker)
{
    tow_lowered_t *lowered;
    (void)EXPECT(worker, PROGRAM_LOAD, program_load);
    must(tow_lowered_unpack(worker->blob_bytes, worker->blob_size, &lowered));
    return lowered;
}

/* Halves of slice 1 make up the whole on each device of slice 2. */
static const char gathering[] =
    "program \"gathering\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 1 as 2\n"
    "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
    "  %2 = transfer \"T\" from 2 to slice 2 as 1*2 (%1)\n"
    "  %3 = compute \"B\" function 2 on slice 2 (%2)\n"
    "  %4 = result \"y\" (%3)\n"
    "}\n";

static void assert_same_piece(const tow_piece_t *sent,
                              const tow_piece_t *received)
{
    assert_int_equal(sent->source_shard, received->source_shard);
    assert_int_equal(sent->target_shard, received->target_shard);
    assert_int_equal(sent->number, received->number);
    assert_int_equal(sent->offset, received->offset);
    assert_int_equal(sent->bytes, received->bytes);
}

static void both_workers_get_matching_pieces(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_program(fixture.client, 1, gathering);
    tow_lowered_t *one = expect_lowered(fixture.one);
    tow_lowered_t *two = expect_lowered(fixture.two);
    assert_int_equal(one->step_count, 2);
    assert_int_equal(two->step_count, 2);
    assert_int_equal(one->step_count_all, 3);
    const tow_lowered_step_t *source = &one->steps[1];
    const tow_lowered_step_t *target = &two->steps[0];
    assert_true(source->index == 1 && target->index == 1);
    assert_true(source->node == 2 && target->node == 2);
    assert_true(source->input_count == 1 && source->output_count == 0);
    assert_true(target->input_count == 0 && target->output_count == 1);
    assert_int_equal(source->route->source_count, 2);
    assert_int_equal(target->route->target_count, 2);
    assert_int_equal(source->route->send_count, 4);
    assert_int_equal(target->route->receive_count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(source->route->sends[i].process, 2);
        assert_int_equal(target->route->receives[i].process, 1);
        assert_same_piece(&source->route->sends[i],
                          &target->route->receives[i]);
    }
    tow_lowered_destroy(one);
    tow_lowered_destroy(two);
    fixture_close(&fixture);
}

/* Between slices of one device no sharding is needed. */
static const char chain[] = "program \"chain\" {\n"
                            "  %0 = argument \"x\" : u8[1024] on slice 3\n"
                            "  %1 = compute \"A\" function 3 on slice 3 (%0)\n"
                            "  %2 = compute \"B\" function 4 on slice 4 (%1)\n"
                            "  %3 = result \"y\" (%2)\n"
                            "}\n";

static void inserted_transfers_have_the_number_of_their_value(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_program(fixture.client, 1, chain);
    tow_lowered_t *one = expect_lowered(fixture.one);
    tow_lowered_t *two = expect_lowered(fixture.two);
    assert_int_equal(one->step_count, 2);
    assert_int_equal(two->step_count, 2);
    assert_true(one->steps[1].route != NULL && one->steps[1].node == 1);
    assert_true(two->steps[0].route != NULL && two->steps[0].node == 1);
    assert_int_equal(two->steps[0].route->target_devices[0], 0);
    assert_int_equal(two->steps[1].node, 2);
    tow_lowered_destroy(one);
    tow_lowered_destroy(two);
    fixture_close(&fixture);
}

static void a_run_is_granted_to_both_with_a_gang_for_the_transfer(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_program(fixture.client, 1, chain);
    discard_messages(fixture.one);
    discard_messages(fixture.two);
    send_put(fixture.client, 100, 3, sizeof(zeros), zeros);
    (void)EXPECT(fixture.one, SHARD_PUT, shard_put);
    (void)EXPECT(fixture.client, PUT_DONE, put_done);
    uint64_t first_gang = 0;
    for (uint64_t run = 1; run <= 2; run++) {
        send_run(fixture.client, run, 1, 100, 200 + run);
        const tow_msg_grant_t *grant = EXPECT(fixture.one, GRANT, grant);
        const uint64_t gang = grant->first_gang;
        assert_int_equal(EXPECT(fixture.two, GRANT, grant)->first_gang, gang);
        /* Two computations and a transfer. */
        if (run == 2) assert_int_equal(gang - first_gang, 3);
        first_gang = gang;
    }
    for (uint64_t run = 1; run <= 2; run++) {
        send_done(fixture.one, tow_key(fixture.client->number, run));
        send_done(fixture.two, tow_key(fixture.client->number, run));
        expect_run_done(fixture.client, run);
    }
    fixture_close(&fixture);
}

static void send_time(peer_t *worker, uint64_t run, uint64_t busy_ns)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = &run;
    done.busy_ns = &busy_ns;
    done.n_runs = done.n_busy_ns = 1;
    send_message(worker, TOW_MESSAGE_DONE, &done.base);
}

/* Of 400 us each: two fill the run-ahead of a device, and a third one is in the
 * other stage meanwhile. */
static void stages_have_room_for_the_runs_in_other_stages(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_program(fixture.client, 1, chain);
    send_put(fixture.client, 100, 3, sizeof(zeros), zeros);
    (void)EXPECT(fixture.client, PUT_DONE, put_done);
    discard_messages(fixture.one);
    discard_messages(fixture.two);
    send_run(fixture.client, 1, 1, 100, 201);
    const uint64_t key = expect_grant(fixture.one, fixture.client, 1);
    expect_grant(fixture.two, fixture.client, 1);
    send_time(fixture.one, key, 400000);
    send_time(fixture.two, key, 400000);
    expect_run_done(fixture.client, 1);
    for (uint64_t run = 2; run <= 5; run++)
        send_run(fixture.client, run, 1, 100, 200 + run);
    for (uint64_t run = 2; run <= 4; run++)
        expect_grant(fixture.one, fixture.client, run);
    expect_no_message(fixture.one);
    fixture_close(&fixture);
}

/* An argument that is only moved: its worker has no computation. */
static void the_worker_of_a_transfer_source_gets_its_part(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_program(fixture.client, 1,
                "program \"move\" {\n"
                "  %0 = argument \"x\" : u8[1024] on slice 3\n"
                "  %1 = compute \"B\" function 4 on slice 4 (%0)\n"
                "  %2 = result \"y\" (%1)\n"
                "}\n");
    tow_lowered_t *one = expect_lowered(fixture.one);
    assert_int_equal(one->step_count, 1);
    assert_true(one->steps[0].route != NULL && one->steps[0].node == 0);
    assert_int_equal(one->steps[0].freed_count, 0);
    tow_lowered_destroy(one);
    fixture_close(&fixture);
}

static void impossible_transfers_are_refused_by_node(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    refuse_program(fixture.client, 1,
                   "program {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 1\n"
                   "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
                   "  %2 = compute \"B\" function 2 on slice 2 (%1)\n"
                   "  %3 = result \"y\" (%2)\n"
                   "}\n",
                   TOW_INVALID_ARGUMENT,
                   "node 2 \"B\": input 0, of node 1 \"A\": it goes from slice "
                   "1 to slice 2, where its sharding is unknown; move it by a "
                   "transfer with shardings");
    refuse_program(fixture.client, 2,
                   "program {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 3\n"
                   "  %1 = compute \"A\" function 4 on slice 9 (%0)\n"
                   "  %2 = result \"y\" (%1)\n"
                   "}\n",
                   TOW_INVALID_ARGUMENT, "node 1 \"A\": there is no slice 9");
    fixture_close(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(both_workers_get_matching_pieces),
    cmocka_unit_test(inserted_transfers_have_the_number_of_their_value),
    cmocka_unit_test(a_run_is_granted_to_both_with_a_gang_for_the_transfer),
    cmocka_unit_test(stages_have_room_for_the_runs_in_other_stages),
    cmocka_unit_test(the_worker_of_a_transfer_source_gets_its_part),
    cmocka_unit_test(impossible_transfers_are_refused_by_node))
