/* Puts, gets and releases, and messages that are wrong on purpose, against
 * workers and clients that the tests write themselves. */
#include "controller/world_testing_impl.h"

static uint8_t counted[4096];

typedef struct cast {
    world_t world;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} cast_t;

static void cast_open(cast_t *cast)
{
    *cast = (cast_t){0};
    for (size_t i = 0; i < sizeof(counted); i++)
        counted[i] = (uint8_t)(i / 16);
    world_open(&cast->world);
    cast->one = worker_make(&cast->world, 1);
    cast->two = worker_make(&cast->world, 2);
    cast->client = client_make(&cast->world, "client/1");
    open_slice(cast->client, 1, 4);
}

static void say_put_done(peer_t *worker, uint64_t object, const char *failure)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    tow_msg_failure_t told = TOW_MSG_FAILURE_INIT;
    told.code = TOW_DATA_LOSS;
    told.message = (char *)failure;
    done.object = object;
    if (failure != NULL) done.failure = &told;
    say(worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
}

static void say_put_opened(peer_t *worker, uint64_t object, size_t count)
{
    tow_msg_lane_target_t targets[4], *list[4];
    for (size_t i = 0; i < count; i++) {
        targets[i] = (tow_msg_lane_target_t)TOW_MSG_LANE_TARGET_INIT;
        targets[i].region_id = 100 + i;
        list[i] = &targets[i];
    }
    tow_msg_shard_put_opened_t opened = TOW_MSG_SHARD_PUT_OPENED_INIT;
    opened.object = object;
    opened.targets = list;
    opened.n_targets = count;
    say(worker, TOW_MESSAGE_SHARD_PUT_OPENED, &opened.base);
}

static void say_got(peer_t *worker, uint64_t request, const void *bytes,
                    size_t size)
{
    tow_msg_shard_get_done_t done = TOW_MSG_SHARD_GET_DONE_INIT;
    done.request = request;
    done.bytes = (ProtobufCBinaryData){size, (uint8_t *)bytes};
    say(worker, TOW_MESSAGE_SHARD_GET_DONE, &done.base);
}

/* -- Puts -------------------------------------------------------------------------- */

static void small_puts_go_with_their_bytes(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    int64_t dims[] = {16};
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    tow_msg_put_t put = TOW_MSG_PUT_INIT;
    type.type = TOW_TYPE_U8;
    type.dims = dims;
    type.n_dims = 1;
    put.object = 1;
    put.slice = 1;
    put.type = &type;
    put.inlined = true;
    put.bytes = (ProtobufCBinaryData){4 * 16, counted};
    say(cast.client, TOW_MESSAGE_PUT, &put.base);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    const tow_msg_shard_put_t *shards = HEAR(cast.two, SHARD_PUT, shard_put);
    assert_true(shards->inlined);
    assert_int_equal(shards->n_devices, 2);
    assert_int_equal(shards->bytes.len, 32);
    assert_int_equal(shards->bytes.data[0], 2); /* shards 2 and 3 */
    assert_int_equal(shards->bytes.data[31], 3);
    assert_int_equal(tow_controller_totals(cast.world.controller).object_bytes,
                     4 * 16);
    world_close(&cast.world);
}

static void large_puts_are_opened_and_awaited(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 1, 100000, NULL);
    uint64_t object = HEAR(cast.one, SHARD_PUT, shard_put)->object;
    assert_false(HEAR(cast.two, SHARD_PUT, shard_put)->inlined);
    say_put_opened(cast.two, object, 2);
    const tow_msg_put_opened_t *opened =
        HEAR(cast.client, PUT_OPENED, put_opened);
    assert_int_equal(opened->object, 1);
    assert_int_equal(opened->first_shard, 2);
    assert_int_equal(opened->n_targets, 2);
    assert_int_equal(opened->targets[1]->region_id, 101);
    say_put_opened(cast.one, object, 2);
    assert_int_equal(HEAR(cast.client, PUT_OPENED, put_opened)->first_shard, 0);
    say_put_done(cast.one, object, NULL);
    hear_nothing(cast.client);
    say_put_done(cast.two, object, NULL);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    say_put_done(cast.two, object, NULL); /* nobody asked */
    hear_nothing(cast.client);
    assert_int_equal(cast.two->gone_count, 0);
    assert_int_equal(tow_controller_totals(cast.world.controller).object_bytes,
                     4 * 100000);
    world_close(&cast.world);
}

static void a_put_that_fails_fails_its_object(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    compile(cast.client, 1, 1, add_text);
    add_program(cast.client, 1, one_add);
    say_put(cast.client, 1, 1, 1024, NULL);
    say_run(cast.client, 1, 1, 1, 10);
    say_get(cast.client, 1, 10, 0);
    uint64_t object = tow_key(cast.client->number, 1);
    hear_out(cast.one);
    say_put_done(cast.one, object, "damaged on its way");
    say_put_done(cast.two, object, NULL);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_DATA_LOSS, "damaged");
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_DATA_LOSS, "damaged");
    hear_run_failed(cast.client, 1, TOW_DATA_LOSS, "damaged");
    world_close(&cast.world);
}

static void a_put_that_its_client_gives_up_is_over(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    compile(cast.client, 1, 1, add_text);
    add_program(cast.client, 1, one_add);
    say_put(cast.client, 1, 1, 1024, NULL);
    say_run(cast.client, 1, 1, 1, 10);
    hear_out(cast.one);
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_UNAVAILABLE;
    failure.message = (char *)"the lane is down";
    done.object = 1;
    done.failure = &failure;
    say(cast.client, TOW_MESSAGE_PUT_DONE, &done.base);
    say(cast.client, TOW_MESSAGE_PUT_DONE, &done.base); /* once is enough */
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "lane is down");
    hear_run_failed(cast.client, 1, TOW_UNAVAILABLE, "lane is down");
    say_release(cast.client, 1, 1);
    HEAR(cast.one, RELEASE, release); /* which ends it there */
    say_put_done(cast.one, tow_key(cast.client->number, 1), NULL);
    hear_nothing(cast.client);
    world_close(&cast.world);
}

static void a_put_loses_its_worker(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 1, 1024, NULL);
    HEAR(cast.one, SHARD_PUT, shard_put);
    say_put_done(cast.one, tow_key(cast.client->number, 1), NULL);
    peer_die(cast.two);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    say_put(cast.client, 2, 1, 1024, counted); /* The slice is lost. */
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    world_close(&cast.world);
}

static void a_put_loses_its_client(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 1, 1024, NULL);
    uint64_t object = HEAR(cast.one, SHARD_PUT, shard_put)->object;
    peer_die(cast.client);
    const tow_msg_release_t *release = HEAR(cast.one, RELEASE, release);
    assert_int_equal(release->firsts[0], object);
    expect_nothing(&cast.world);
    say_put_opened(cast.one, object, 2);
    say_put_done(cast.one, object, NULL);
    run_for(&cast.world, SECOND / 10);
    assert_int_equal(cast.one->gone_count, 0);
    world_close(&cast.world);
}

/* -- Gets -------------------------------------------------------------------------- */

static void gets_go_to_the_worker_that_has_the_shard(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 1, 16, counted);
    say_get(cast.client, 7, 1, 3);
    HEAR(cast.client, PUT_DONE, put_done);
    HEAR(cast.two, SHARD_PUT, shard_put);
    const tow_msg_shard_get_t *get = HEAR(cast.two, SHARD_GET, shard_get);
    assert_int_equal(get->object, tow_key(cast.client->number, 1));
    assert_int_equal(get->shard, 1);
    uint64_t request = get->request;
    say_got(cast.one, request, counted, 16); /* not the one that was asked */
    hear_nothing(cast.client);
    say_release(cast.client, 1, 1); /* held by the get */
    hear_nothing(cast.two);
    say_got(cast.two, request, counted, 16);
    const tow_msg_get_done_t *done = HEAR(cast.client, GET_DONE, get_done);
    expect_well(done->failure);
    assert_int_equal(done->request, 7);
    assert_int_equal(done->bytes.len, 16);
    HEAR(cast.two, RELEASE, release);
    say_get(cast.client, 8, 1, 3);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_NOT_FOUND, "object 1");
    world_close(&cast.world);
}

static void gets_of_what_is_not_granted_wait(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    compile(cast.client, 1, 1, add_text);
    add_program(cast.client, 1, one_add);
    say_put(cast.client, 1, 1, 1024, NULL);
    say_run(cast.client, 1, 1, 1, 10);
    say_get(cast.client, 1, 10, 0);
    say_get(cast.client, 2, 10, 9);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_OUT_OF_RANGE, "4 shards");
    HEAR(cast.one, PROGRAM_LOAD, program_load);
    uint64_t object = HEAR(cast.one, SHARD_PUT, shard_put)->object;
    hear_nothing(cast.one);
    say_put_done(cast.one, object, NULL);
    say_put_done(cast.two, object, NULL);
    uint64_t run = hear_grant(cast.one, cast.client, 1);
    uint64_t request = HEAR(cast.one, SHARD_GET, shard_get)->request;
    say_got(cast.one, request, counted, 1024);
    say_done(cast.one, run);
    say_done(cast.two, run);
    HEAR(cast.client, PUT_DONE, put_done);
    expect_well(HEAR(cast.client, GET_DONE, get_done)->failure);
    hear_run_done(cast.client, 1);
    world_close(&cast.world);
}

/* The mapping of a slice that is closed lives as long as what lies on it. */
static void objects_outlive_their_slice_but_not_their_client(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 1, 16, counted);
    say_get(cast.client, 7, 1, 0);
    tow_msg_slice_close_t close = TOW_MSG_SLICE_CLOSE_INIT;
    close.slice = 1;
    say(cast.client, TOW_MESSAGE_SLICE_CLOSE, &close.base);
    HEAR(cast.one, SHARD_PUT, shard_put);
    uint64_t request = HEAR(cast.one, SHARD_GET, shard_get)->request;
    hear_nothing(cast.one);
    /* Its worker may write to a dead client for long: the books do not wait. */
    peer_die(cast.client);
    HEAR(cast.one, RELEASE, release);
    expect_nothing(&cast.world);
    say_got(cast.one, request, counted, 16);
    hear_nothing(cast.one);
    world_close(&cast.world);
}

/* -- Wrong on purpose -------------------------------------------------------------- */

static void expect_only(cast_t *cast, peer_t *culprit, const char *part)
{
    run_for(&cast->world, SECOND / 10);
    peer_t *peers[] = {cast->one, cast->two, cast->client};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(peers[i]->gone_count, peers[i] == culprit);
    if (culprit->gone_count != 1) fail_msg("%s is still there", culprit->name);
    expect_part(culprit->gone_message, part);
}

static void clients_that_break_the_rules_are_ended(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    peer_t *bad = client_make(&cast.world, "bad/1");
    say_put(bad, 1, 9, 16, counted);
    expect_only(&cast, bad, "slice 9");
    bad = client_make(&cast.world, "bad/2");
    open_slice(bad, 1, 4);
    say_put(bad, 1, 1, 16, counted);
    say_put(bad, 1, 1, 16, counted);
    expect_only(&cast, bad, "1");
    bad = client_make(&cast.world, "bad/3");
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    uint64_t firsts[] = {1, 2};
    uint32_t counts[] = {UINT32_MAX};
    release.firsts = firsts;
    release.n_firsts = 2;
    say(bad, TOW_MESSAGE_RELEASE, &release.base);
    expect_only(&cast, bad, "2 ranges");
    bad = client_make(&cast.world, "bad/4");
    release.n_firsts = 1;
    release.counts = counts;
    release.n_counts = 1;
    say(bad, TOW_MESSAGE_RELEASE, &release.base); /* would take a minute */
    expect_only(&cast, bad, "at once");
    bad = client_make(&cast.world, "bad/5");
    tow_msg_report_get_t report = TOW_MSG_REPORT_GET_INIT;
    report.kind = 77;
    say(bad, TOW_MESSAGE_REPORT_GET, &report.base);
    expect_only(&cast, bad, "kind 77");
    world_close(&cast.world);
}

static void clients_that_say_what_workers_say_are_ended(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    peer_t *bad = client_make(&cast.world, "bad/1");
    say_done(bad, 1);
    expect_only(&cast, bad, "Done");
    bad = client_make(&cast.world, "bad/2");
    uint8_t *room;
    assert_int_equal(tow_session_begin(bad->session, 5, &room), TOW_SEND_OK);
    memset(room, 0xff, 5);
    tow_session_commit(bad->session, TOW_MESSAGE_RUN, 5);
    expect_only(&cast, bad, "");
    bad = client_make(&cast.world, "bad/3");
    tow_msg_program_add_t add = TOW_MSG_PROGRAM_ADD_INIT;
    add.program = 1;
    add.graph_blob = 9;
    say(bad, TOW_MESSAGE_PROGRAM_ADD, &add.base);
    expect_only(&cast, bad, "blob 9");
    bad = client_make(&cast.world, "bad/4");
    for (int i = 0; i < 100; i++)
        say_blob(bad, "x", 1);
    expect_only(&cast, bad, "blobs");
    world_close(&cast.world);
}

static void workers_that_break_the_rules_are_ended(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_done(cast.one, tow_key(9, 9)); /* A run that was given up, maybe. */
    answer_load(cast.one, 77, NULL);
    say_got(cast.one, 55, NULL, 0);
    say_put_opened(cast.one, 5, 1);
    run_for(&cast.world, SECOND / 10);
    assert_int_equal(cast.one->gone_count, 0);
    say_put(cast.client, 1, 1, 1024, NULL);
    run_for(&cast.world, SECOND / 100);
    say_put_opened(cast.one, tow_key(cast.client->number, 1), 1);
    expect_only(&cast, cast.one, "1 of 2 shards");
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    say(cast.two, TOW_MESSAGE_CANCEL, &cancel.base);
    run_for(&cast.world, SECOND / 10);
    assert_int_equal(cast.two->gone_count, 1);
    expect_part(cast.two->gone_message, "Cancel");
    assert_int_equal(cast.client->gone_count, 0);
    world_close(&cast.world);
}

/* A report for a run that it was never granted. */
static void workers_cannot_end_runs_that_wait(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    compile(cast.client, 1, 1, add_text);
    add_program(cast.client, 1, one_add);
    say_put(cast.client, 1, 1, 1024, NULL);
    say_run(cast.client, 1, 1, 1, 10);
    run_for(&cast.world, SECOND / 100);
    say_done(cast.one, tow_key(cast.client->number, 1));
    say_done(cast.one, tow_key(cast.client->number, 1));
    hear_nothing(cast.client);
    assert_int_equal(tow_controller_totals(cast.world.controller).run_count, 1);
    world_close(&cast.world);
}

/* -- Reports ----------------------------------------------------------------------- */

static void a_report_waits_for_workers_or_their_end(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 3;
    get.kind = TOW_REPORT_STATUS;
    say(cast.client, TOW_MESSAGE_REPORT_GET, &get.base);
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    report.request = HEAR(cast.one, REPORT_GET, report_get)->request;
    report.blob = say_blob(cast.one, "{\"shelf\": 5}", 12);
    say(cast.one, TOW_MESSAGE_REPORT, &report.base);
    hear_nothing(cast.client);
    peer_die(cast.two);
    assert_int_equal(HEAR(cast.client, REPORT, report)->request, 3);
    char *text = tow_calloc(1, cast.client->blob_size + 1);
    memcpy(text, cast.client->blob_bytes, cast.client->blob_size);
    expect_part(text, "\"report\":{\"shelf\":5}");
    tow_free(text);
    report.blob = say_blob(cast.one, "not json", 8); /* nobody asked */
    report.blob++;
    say(cast.one, TOW_MESSAGE_REPORT, &report.base);
    say(cast.client, TOW_MESSAGE_REPORT_GET, &get.base);
    run_for(&cast.world, SECOND / 100);
    world_close(&cast.world); /* The client goes before the answer. */
}

TOW_TEST_MAIN(
    cmocka_unit_test(small_puts_go_with_their_bytes),
    cmocka_unit_test(large_puts_are_opened_and_awaited),
    cmocka_unit_test(a_put_that_fails_fails_its_object),
    cmocka_unit_test(a_put_that_its_client_gives_up_is_over),
    cmocka_unit_test(a_put_loses_its_worker),
    cmocka_unit_test(a_put_loses_its_client),
    cmocka_unit_test(gets_go_to_the_worker_that_has_the_shard),
    cmocka_unit_test(gets_of_what_is_not_granted_wait),
    cmocka_unit_test(objects_outlive_their_slice_but_not_their_client),
    cmocka_unit_test(clients_that_break_the_rules_are_ended),
    cmocka_unit_test(clients_that_say_what_workers_say_are_ended),
    cmocka_unit_test(workers_that_break_the_rules_are_ended),
    cmocka_unit_test(workers_cannot_end_runs_that_wait),
    cmocka_unit_test(a_report_waits_for_workers_or_their_end))
