/* Several islands: slices within one, programs over several. */
#include "controller/fixture_testing_impl.h"

#include <jansson.h>

static uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *west, *east; /* workers of two devices, an island each */
    peer_t *one, *two;   /* clients */
} fixture_t;

static void send_slice_on(peer_t *client, uint64_t slice, const char *island)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    uint32_t count = 2;
    open.slice = slice;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.island = (char *)island;
    send_message(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
}

static void open_slice_on(peer_t *client, uint64_t slice, const char *island)
{
    send_slice_on(client, slice, island);
    const tow_msg_slice_opened_t *opened =
        EXPECT(client, SLICE_OPENED, slice_opened);
    expect_success(opened->failure);
    assert_int_equal(opened->n_devices, 2);
    assert_string_equal(opened->devices[0]->island, island);
}

/* Slices 1 and 2 are the west and the east, functions 1 and 2 are `text` there;
 * objects 1 and 2 are on them. */
static peer_t *make_client(fixture_t *fixture, const char *name,
                           const char *text)
{
    peer_t *client = client_make(&fixture->cluster, name);
    open_slice_on(client, 1, "west");
    open_slice_on(client, 2, "east");
    compile(client, 1, 1, text);
    compile(client, 2, 2, text);
    for (uint64_t i = 1; i <= 2; i++) {
        send_put(client, i, i, 1024, zeroes);
        expect_success(EXPECT(client, PUT_DONE, put_done)->failure);
    }
    return client;
}

static void fixture_open(fixture_t *fixture, const char *text)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->west = worker_make_on(&fixture->cluster, 1, "west");
    fixture->east = worker_make_on(&fixture->cluster, 2, "east");
    fixture->one = make_client(fixture, "client/1", text);
    fixture->two = make_client(fixture, "client/2", text);
}

static void discard_all_messages(fixture_t *fixture)
{
    discard_messages(fixture->west);
    discard_messages(fixture->east);
    discard_messages(fixture->one);
    discard_messages(fixture->two);
}

static void finish(fixture_t *fixture, uint64_t run)
{
    send_done(fixture->west, run);
    send_done(fixture->east, run);
}

static const char west_to_east[] =
    "program \"A-B\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 1 as 2\n"
    "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
    "  %2 = transfer \"T\" from 2 to slice 2 as 2 (%1)\n"
    "  %3 = compute \"B\" function 2 on slice 2 (%2)\n"
    "  %4 = result \"y\" (%3)\n"
    "}\n";
static const char east_to_west[] =
    "program \"C-D\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 2 as 2\n"
    "  %1 = compute \"C\" function 2 on slice 2 (%0)\n"
    "  %2 = transfer \"T\" from 2 to slice 1 as 2 (%1)\n"
    "  %3 = compute \"D\" function 1 on slice 1 (%2)\n"
    "  %4 = result \"y\" (%3)\n"
    "}\n";

/* A on X -> B on Y and C on Y -> D on X: both workers get the two grants in
 * one order, and if there is memory for one only, the same one has it on both
 * islands. */
static void crossing_programs_are_granted_in_one_order(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, big_text);
    add_program(fixture.one, 1, west_to_east);
    add_program(fixture.two, 1, east_to_west);
    discard_all_messages(&fixture);
    send_run(fixture.one, 1, 1, 1, 10);
    send_run(fixture.two, 1, 1, 2, 10);
    const tow_msg_grant_t *grant = EXPECT(fixture.west, GRANT, grant);
    const uint64_t first = grant->run, gang = grant->first_gang;
    grant = EXPECT(fixture.east, GRANT, grant);
    assert_int_equal(grant->run, first);
    assert_int_equal(grant->first_gang, gang);
    expect_no_message(fixture.west);
    expect_no_message(fixture.east);
    finish(&fixture, first);
    grant = EXPECT(fixture.west, GRANT, grant);
    const uint64_t second = grant->run;
    assert_true(second != first && grant->first_gang > gang);
    assert_int_equal(EXPECT(fixture.east, GRANT, grant)->run, second);
    finish(&fixture, second);
    (void)EXPECT(fixture.one, RUNS_DONE, runs_done);
    (void)EXPECT(fixture.two, RUNS_DONE, runs_done);
    cluster_close(&fixture.cluster);
}

static const char in_the_west[] =
    "program \"west\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 1\n"
    "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
    "  %2 = result \"y\" (%1)\n"
    "}\n";
static const char in_the_east[] =
    "program \"east\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 2\n"
    "  %1 = compute \"B\" function 2 on slice 2 (%0)\n"
    "  %2 = result \"y\" (%1)\n"
    "}\n";

static json_t *expect_status(peer_t *client, peer_t *const *workers,
                             size_t count)
{
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 1;
    get.kind = TOW_REPORT_STATUS;
    send_message(client, TOW_MESSAGE_REPORT_GET, &get.base);
    for (size_t i = 0; i < count; i++) {
        tow_msg_report_t answer = TOW_MSG_REPORT_INIT;
        answer.request = EXPECT(workers[i], REPORT_GET, report_get)->request;
        answer.blob = send_blob(workers[i], "{}", 2);
        send_message(workers[i], TOW_MESSAGE_REPORT, &answer.base);
    }
    expect_success(EXPECT(client, REPORT, report)->failure);
    json_t *status = json_loadb(client->blob_bytes, client->blob_size, 0, NULL);
    assert_non_null(status);
    return status;
}

static json_int_t number_of(const json_t *islands, size_t index,
                            const char *key)
{
    return json_integer_value(
        json_object_get(json_array_get(islands, index), key));
}

static void an_island_short_of_memory_delays_no_other_and_is_reported(
    void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, big_text);
    add_program(fixture.one, 1, in_the_west);
    add_program(fixture.one, 2, in_the_east);
    add_program(fixture.two, 1, in_the_west);
    discard_all_messages(&fixture);
    send_run(fixture.one, 1, 1, 1, 10);
    const uint64_t held = expect_grant(fixture.west, fixture.one, 1);
    send_run(fixture.two, 1, 1, 1, 10); /* The west is short now. */
    run_for(&fixture.cluster, SECOND / 100);
    send_run(fixture.one, 2, 1, 1, 11); /* It waits behind that. */
    send_run(fixture.one, 3, 2, 2, 12);
    const uint64_t eastern = expect_grant(fixture.east, fixture.one, 3);
    expect_no_message(fixture.west);
    json_t *status =
        expect_status(fixture.two, (peer_t *[]){fixture.west, fixture.east}, 2);
    const json_t *islands = json_object_get(status, "islands");
    assert_int_equal(json_array_size(islands), 2);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(islands, 0), "name")),
        "west");
    assert_int_equal(number_of(islands, 0, "waiting_for_memory"),
                     fixture.two->number);
    assert_int_equal(number_of(islands, 0, "runs_queued"), 2);
    assert_int_equal(number_of(islands, 0, "runs_under_way"), 1);
    assert_int_equal(number_of(islands, 0, "devices"), 2);
    assert_int_equal(number_of(islands, 0, "memory_bytes"), 2 * MEMORY_BYTES);
    assert_true(number_of(islands, 0, "reserved_bytes") > 2 * 600000);
    assert_true(json_is_null(
        json_object_get(json_array_get(islands, 1), "waiting_for_memory")));
    assert_int_equal(number_of(islands, 1, "runs_queued"), 0);
    json_decref(status);
    send_done(fixture.west, held);
    send_done(fixture.east, eastern);
    send_done(fixture.west, expect_grant(fixture.west, fixture.two, 1));
    send_done(fixture.west, expect_grant(fixture.west, fixture.one, 2));
    discard_all_messages(&fixture);
    cluster_close(&fixture.cluster);
}

/* A copy from west to east reserves no memory in the east before its source's
 * run has been granted in the west, which might otherwise wait for the copy. */
static void a_copy_between_islands_is_granted_after_its_source(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, big_text);
    add_program(fixture.one, 1, in_the_west);
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    uint32_t count = 1;
    open.slice = 3;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.island = (char *)"east";
    send_message(fixture.one, TOW_MESSAGE_SLICE_OPEN, &open.base);
    discard_all_messages(&fixture);
    send_run(fixture.one, 1, 1, 1, 10);
    const uint64_t held = expect_grant(fixture.west, fixture.one, 1);
    send_run(fixture.one, 2, 1, 1, 11); /* There is no memory for it yet. */
    tow_msg_copy_t copy = TOW_MSG_COPY_INIT;
    copy.object = 20;
    copy.slice = 3;
    copy.source = 11;
    send_message(fixture.one, TOW_MESSAGE_COPY, &copy.base);
    expect_no_message(fixture.east);
    send_done(fixture.west, held);
    expect_grant(fixture.west, fixture.one, 2);
    (void)EXPECT(fixture.east, SHARD_PUT, shard_put);
    send_done(fixture.west, tow_key(fixture.one->number, 2));
    discard_all_messages(&fixture);
    cluster_close(&fixture.cluster);
}

static void open_slice_over_both(peer_t *client, uint64_t slice)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice;
    open.kind = (char *)"";
    open.island = (char *)"*";
    send_message(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    const tow_msg_slice_opened_t *opened =
        EXPECT(client, SLICE_OPENED, slice_opened);
    expect_success(opened->failure);
    assert_int_equal(opened->n_devices, 4);
    assert_string_equal(opened->devices[0]->island, "east");
    assert_string_equal(opened->devices[3]->island, "west");
    assert_string_equal(opened->stablehlo, "1.9.0"); /* The older of the two. */
    assert_int_equal(opened->devices[3]->place, 0);
    assert_int_equal(opened->devices[3]->index, 1);
}

static const char on_both[] =
    "program \"both\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 3 as 4\n"
    "  %1 = compute \"A\" function 3 on slice 3 (%0)\n"
    "  %2 = result \"y\" (%1)\n"
    "}\n";

/* A gang over two islands is one gang: a put, an assembly and a run on it are
 * scheduled on both, and later work waits behind them there. */
static void a_gang_may_span_two_islands(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, big_text);
    open_slice_over_both(fixture.one, 3);
    compile(fixture.one, 3, 3, big_text);
    add_program(fixture.one, 3, on_both);
    add_program(fixture.two, 1, in_the_west);
    send_put(fixture.one, 3, 3, 1024, zeroes);
    expect_success(EXPECT(fixture.one, PUT_DONE, put_done)->failure);
    discard_all_messages(&fixture);
    tow_msg_assemble_t assembly = TOW_MSG_ASSEMBLE_INIT;
    assembly.object = 4;
    assembly.slice = 3;
    assembly.sources = (uint64_t[]){2, 2, 1, 1};
    assembly.n_sources = 4;
    assembly.shards = (uint32_t[]){0, 1, 0, 1};
    assembly.n_shards = 4;
    send_message(fixture.one, TOW_MESSAGE_ASSEMBLE, &assembly.base);
    assert_int_equal(
        EXPECT(fixture.west, SHARD_ASSEMBLE, shard_assemble)->n_sources, 2);
    assert_int_equal(
        EXPECT(fixture.east, SHARD_ASSEMBLE, shard_assemble)->n_sources, 2);
    send_run(fixture.two, 1, 1, 1, 10); /* It has the west's memory. */
    const uint64_t western = expect_grant(fixture.west, fixture.two, 1);
    send_run(fixture.one, 3, 3, 4, 11);
    expect_no_message(fixture.east);
    send_done(fixture.west, western);
    const tow_msg_grant_t *grant = EXPECT(fixture.west, GRANT, grant);
    const uint64_t run = grant->run, gang = grant->first_gang;
    grant = EXPECT(fixture.east, GRANT, grant);
    assert_int_equal(grant->run, run);
    assert_int_equal(grant->first_gang, gang);
    finish(&fixture, run);
    expect_run_done(fixture.one, 3);
    peer_crash(fixture.east);
    send_run(fixture.one, 4, 3, 3, 12);
    expect_run_failed(fixture.one, 4, TOW_UNAVAILABLE, "worker/2");
    cluster_close(&fixture.cluster);
}

static void slices_on_unknown_islands_are_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text);
    send_slice_on(fixture.one, 3, "north");
    expect_failure(EXPECT(fixture.one, SLICE_OPENED, slice_opened)->failure,
                   TOW_NOT_FOUND, "no island 'north'");
    send_slice(fixture.one, 4, 4); /* Each has two devices. */
    expect_failure(EXPECT(fixture.one, SLICE_OPENED, slice_opened)->failure,
                   TOW_RESOURCE_EXHAUSTED, "largest island has 2");
    cluster_close(&fixture.cluster);
}

/* When a worker disconnects, runs of its island and of programs that span
 * islands fail; the other island continues. */
static void work_on_a_disconnected_island_fails(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, add_text);
    add_program(fixture.one, 1, west_to_east);
    add_program(fixture.two, 1, in_the_west);
    discard_all_messages(&fixture);
    fixture.west->answers_aborts = true;
    send_run(fixture.one, 1, 1, 1, 10);
    expect_grant(fixture.west, fixture.one, 1);
    peer_crash(fixture.east);
    expect_run_failed(fixture.one, 1, TOW_UNAVAILABLE, "worker/2");
    send_run(fixture.one, 2, 1, 1, 11);
    expect_run_failed(fixture.one, 2, TOW_UNAVAILABLE, "worker/2");
    send_run(fixture.two, 1, 1, 1, 10);
    discard_messages(fixture.west);
    send_done(fixture.west, tow_key(fixture.two->number, 1));
    expect_run_done(fixture.two, 1);
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(crossing_programs_are_granted_in_one_order),
    cmocka_unit_test(an_island_short_of_memory_delays_no_other_and_is_reported),
    cmocka_unit_test(a_copy_between_islands_is_granted_after_its_source),
    cmocka_unit_test(a_gang_may_span_two_islands),
    cmocka_unit_test(slices_on_unknown_islands_are_refused),
    cmocka_unit_test(work_on_a_disconnected_island_fails))
