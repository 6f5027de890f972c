/* Several islands: slices within one, programs over several. */
#include "controller/world_testing_impl.h"

#include <jansson.h>

static uint8_t zeroes[1024];

typedef struct cast {
    world_t world;
    peer_t *west, *east; /* workers of two devices, an island each */
    peer_t *one, *two;   /* clients */
} cast_t;

static void say_slice_on(peer_t *client, uint64_t slice, const char *island)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    uint32_t count = 2;
    open.slice = slice;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.island = (char *)island;
    say(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
}

static void open_slice_on(peer_t *client, uint64_t slice, const char *island)
{
    say_slice_on(client, slice, island);
    const tow_msg_slice_opened_t *opened =
        HEAR(client, SLICE_OPENED, slice_opened);
    expect_well(opened->failure);
    assert_int_equal(opened->n_devices, 2);
    assert_string_equal(opened->devices[0]->island, island);
}

/* Slices 1 and 2 are the west and the east, functions 1 and 2 are `text` there;
 * objects 1 and 2 are on them. */
static peer_t *make_client(cast_t *cast, const char *name, const char *text)
{
    peer_t *client = client_make(&cast->world, name);
    open_slice_on(client, 1, "west");
    open_slice_on(client, 2, "east");
    compile(client, 1, 1, text);
    compile(client, 2, 2, text);
    for (uint64_t i = 1; i <= 2; i++) {
        say_put(client, i, i, 1024, zeroes);
        expect_well(HEAR(client, PUT_DONE, put_done)->failure);
    }
    return client;
}

static void cast_open(cast_t *cast, const char *text)
{
    *cast = (cast_t){0};
    world_open(&cast->world);
    cast->west = worker_make_on(&cast->world, 1, "west");
    cast->east = worker_make_on(&cast->world, 2, "east");
    cast->one = make_client(cast, "client/1", text);
    cast->two = make_client(cast, "client/2", text);
}

static void hear_out_all(cast_t *cast)
{
    hear_out(cast->west);
    hear_out(cast->east);
    hear_out(cast->one);
    hear_out(cast->two);
}

static void finish(cast_t *cast, uint64_t run)
{
    say_done(cast->west, run);
    say_done(cast->east, run);
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

/* A on X -> B on Y and C on Y -> D on X: both workers are granted the two in one
 * order, and where memory is for one only, that one has it on both islands. */
static void programs_that_cross_are_granted_in_one_order(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, big_text);
    add_program(cast.one, 1, west_to_east);
    add_program(cast.two, 1, east_to_west);
    hear_out_all(&cast);
    say_run(cast.one, 1, 1, 1, 10);
    say_run(cast.two, 1, 1, 2, 10);
    const tow_msg_grant_t *grant = HEAR(cast.west, GRANT, grant);
    const uint64_t first = grant->run, gang = grant->first_gang;
    grant = HEAR(cast.east, GRANT, grant);
    assert_int_equal(grant->run, first);
    assert_int_equal(grant->first_gang, gang);
    hear_nothing(cast.west);
    hear_nothing(cast.east);
    finish(&cast, first);
    grant = HEAR(cast.west, GRANT, grant);
    const uint64_t second = grant->run;
    assert_true(second != first && grant->first_gang > gang);
    assert_int_equal(HEAR(cast.east, GRANT, grant)->run, second);
    finish(&cast, second);
    (void)HEAR(cast.one, RUNS_DONE, runs_done);
    (void)HEAR(cast.two, RUNS_DONE, runs_done);
    world_close(&cast.world);
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

static json_t *hear_status(peer_t *asker, peer_t *const *workers, size_t count)
{
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 1;
    get.kind = TOW_REPORT_STATUS;
    say(asker, TOW_MESSAGE_REPORT_GET, &get.base);
    for (size_t i = 0; i < count; i++) {
        tow_msg_report_t answer = TOW_MSG_REPORT_INIT;
        answer.request = HEAR(workers[i], REPORT_GET, report_get)->request;
        answer.blob = say_blob(workers[i], "{}", 2);
        say(workers[i], TOW_MESSAGE_REPORT, &answer.base);
    }
    expect_well(HEAR(asker, REPORT, report)->failure);
    json_t *told = json_loadb(asker->blob_bytes, asker->blob_size, 0, NULL);
    assert_non_null(told);
    return told;
}

static json_int_t number_of(const json_t *islands, size_t index,
                            const char *key)
{
    return json_integer_value(
        json_object_get(json_array_get(islands, index), key));
}

static void an_island_short_of_memory_is_shown_and_holds_up_no_other(
    void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, big_text);
    add_program(cast.one, 1, in_the_west);
    add_program(cast.one, 2, in_the_east);
    add_program(cast.two, 1, in_the_west);
    hear_out_all(&cast);
    say_run(cast.one, 1, 1, 1, 10);
    const uint64_t held = hear_grant(cast.west, cast.one, 1);
    say_run(cast.two, 1, 1, 1, 10); /* The west is short now. */
    run_for(&cast.world, SECOND / 100);
    say_run(cast.one, 2, 1, 1, 11); /* It waits behind that. */
    say_run(cast.one, 3, 2, 2, 12);
    const uint64_t eastern = hear_grant(cast.east, cast.one, 3);
    hear_nothing(cast.west);
    json_t *told = hear_status(cast.two, (peer_t *[]){cast.west, cast.east}, 2);
    const json_t *islands = json_object_get(told, "islands");
    assert_int_equal(json_array_size(islands), 2);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(islands, 0), "name")),
        "west");
    assert_int_equal(number_of(islands, 0, "waiting_for_memory"),
                     cast.two->number);
    assert_int_equal(number_of(islands, 0, "runs_queued"), 2);
    assert_int_equal(number_of(islands, 0, "runs_under_way"), 1);
    assert_int_equal(number_of(islands, 0, "devices"), 2);
    assert_int_equal(number_of(islands, 0, "memory_bytes"), 2 * MEMORY_BYTES);
    assert_true(number_of(islands, 0, "reserved_bytes") > 2 * 600000);
    assert_true(json_is_null(
        json_object_get(json_array_get(islands, 1), "waiting_for_memory")));
    assert_int_equal(number_of(islands, 1, "runs_queued"), 0);
    json_decref(told);
    say_done(cast.west, held);
    say_done(cast.east, eastern);
    say_done(cast.west, hear_grant(cast.west, cast.two, 1));
    say_done(cast.west, hear_grant(cast.west, cast.one, 2));
    hear_out_all(&cast);
    world_close(&cast.world);
}

/* A copy from the west to the east takes no memory in the east before its source's
 * run has been granted in the west: that one might wait for the copy otherwise. */
static void a_copy_between_islands_comes_after_its_source(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, big_text);
    add_program(cast.one, 1, in_the_west);
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    uint32_t count = 1;
    open.slice = 3;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.island = (char *)"east";
    say(cast.one, TOW_MESSAGE_SLICE_OPEN, &open.base);
    hear_out_all(&cast);
    say_run(cast.one, 1, 1, 1, 10);
    const uint64_t held = hear_grant(cast.west, cast.one, 1);
    say_run(cast.one, 2, 1, 1, 11); /* There is no memory for it yet. */
    tow_msg_copy_t copy = TOW_MSG_COPY_INIT;
    copy.object = 20;
    copy.slice = 3;
    copy.source = 11;
    say(cast.one, TOW_MESSAGE_COPY, &copy.base);
    hear_nothing(cast.east);
    say_done(cast.west, held);
    hear_grant(cast.west, cast.one, 2);
    (void)HEAR(cast.east, SHARD_PUT, shard_put);
    say_done(cast.west, tow_key(cast.one->number, 2));
    hear_out_all(&cast);
    world_close(&cast.world);
}

static void open_slice_over_both(peer_t *client, uint64_t slice)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice;
    open.kind = (char *)"";
    open.island = (char *)"*";
    say(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    const tow_msg_slice_opened_t *opened =
        HEAR(client, SLICE_OPENED, slice_opened);
    expect_well(opened->failure);
    assert_int_equal(opened->n_devices, 4);
    assert_string_equal(opened->devices[0]->island, "east");
    assert_string_equal(opened->devices[3]->island, "west");
    assert_string_equal(opened->stablehlo, "1.9.0"); /* The older of both. */
    assert_int_equal(opened->devices[3]->place, 0);
    assert_int_equal(opened->devices[3]->index, 1);
}

static const char on_both[] =
    "program \"both\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 3 as 4\n"
    "  %1 = compute \"A\" function 3 on slice 3 (%0)\n"
    "  %2 = result \"y\" (%1)\n"
    "}\n";

/* A gang over two islands is one gang: a put, a regroup and a run on it take their
 * turn on both, and who comes later waits for them there. */
static void one_gang_may_be_of_two_islands(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, big_text);
    open_slice_over_both(cast.one, 3);
    compile(cast.one, 3, 3, big_text);
    add_program(cast.one, 3, on_both);
    add_program(cast.two, 1, in_the_west);
    say_put(cast.one, 3, 3, 1024, zeroes);
    expect_well(HEAR(cast.one, PUT_DONE, put_done)->failure);
    hear_out_all(&cast);
    tow_msg_regroup_t regroup = TOW_MSG_REGROUP_INIT;
    regroup.object = 4;
    regroup.slice = 3;
    regroup.sources = (uint64_t[]){2, 2, 1, 1};
    regroup.n_sources = 4;
    regroup.shards = (uint32_t[]){0, 1, 0, 1};
    regroup.n_shards = 4;
    say(cast.one, TOW_MESSAGE_REGROUP, &regroup.base);
    assert_int_equal(HEAR(cast.west, SHARD_REGROUP, shard_regroup)->n_sources,
                     2);
    assert_int_equal(HEAR(cast.east, SHARD_REGROUP, shard_regroup)->n_sources,
                     2);
    say_run(cast.two, 1, 1, 1, 10); /* It has the west's memory. */
    const uint64_t western = hear_grant(cast.west, cast.two, 1);
    say_run(cast.one, 3, 3, 4, 11);
    hear_nothing(cast.east);
    say_done(cast.west, western);
    const tow_msg_grant_t *grant = HEAR(cast.west, GRANT, grant);
    const uint64_t run = grant->run, gang = grant->first_gang;
    grant = HEAR(cast.east, GRANT, grant);
    assert_int_equal(grant->run, run);
    assert_int_equal(grant->first_gang, gang);
    finish(&cast, run);
    hear_run_done(cast.one, 3);
    peer_die(cast.east);
    say_run(cast.one, 4, 3, 3, 12);
    hear_run_failed(cast.one, 4, TOW_UNAVAILABLE, "worker/2");
    world_close(&cast.world);
}

static void slices_on_islands_that_are_not_there_are_refused(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text);
    say_slice_on(cast.one, 3, "north");
    expect_failure(HEAR(cast.one, SLICE_OPENED, slice_opened)->failure,
                   TOW_NOT_FOUND, "no island 'north'");
    say_slice(cast.one, 4, 4); /* Each has two devices. */
    expect_failure(HEAR(cast.one, SLICE_OPENED, slice_opened)->failure,
                   TOW_RESOURCE_EXHAUSTED, "largest island has 2");
    world_close(&cast.world);
}

/* A worker that is lost takes its island's runs with it, and programs that span
 * islands; the other island goes on. */
static void losing_an_island_fails_what_was_there(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, add_text);
    add_program(cast.one, 1, west_to_east);
    add_program(cast.two, 1, in_the_west);
    hear_out_all(&cast);
    cast.west->obeys = true;
    say_run(cast.one, 1, 1, 1, 10);
    hear_grant(cast.west, cast.one, 1);
    peer_die(cast.east);
    hear_run_failed(cast.one, 1, TOW_UNAVAILABLE, "worker/2");
    say_run(cast.one, 2, 1, 1, 11);
    hear_run_failed(cast.one, 2, TOW_UNAVAILABLE, "worker/2");
    say_run(cast.two, 1, 1, 1, 10);
    hear_out(cast.west);
    say_done(cast.west, tow_key(cast.two->number, 1));
    hear_run_done(cast.two, 1);
    world_close(&cast.world);
}

TOW_TEST_MAIN(
    cmocka_unit_test(programs_that_cross_are_granted_in_one_order),
    cmocka_unit_test(an_island_short_of_memory_is_shown_and_holds_up_no_other),
    cmocka_unit_test(a_copy_between_islands_comes_after_its_source),
    cmocka_unit_test(one_gang_may_be_of_two_islands),
    cmocka_unit_test(slices_on_islands_that_are_not_there_are_refused),
    cmocka_unit_test(losing_an_island_fails_what_was_there))
