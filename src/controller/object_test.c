/* Puts, gets, releases, and invalid messages, with scripted workers and
 * clients. */
#include "controller/fixture_testing_impl.h"

static uint8_t counted[4096];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} fixture_t;

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    for (size_t i = 0; i < sizeof(counted); i++)
        counted[i] = (uint8_t)(i / 16);
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 4);
}

static void send_put_done(peer_t *worker, uint64_t object, const char *failure)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    tow_msg_failure_t cause = TOW_MSG_FAILURE_INIT;
    cause.code = TOW_DATA_LOSS;
    cause.message = (char *)failure;
    done.object = object;
    if (failure != NULL) done.failure = &cause;
    send_message(worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
}

static void send_put_opened(peer_t *worker, uint64_t object, size_t count)
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
    send_message(worker, TOW_MESSAGE_SHARD_PUT_OPENED, &opened.base);
}

static void send_get_done(peer_t *worker, uint64_t request, const void *bytes,
                          size_t size)
{
    tow_msg_shard_get_done_t done = TOW_MSG_SHARD_GET_DONE_INIT;
    done.request = request;
    done.bytes = (ProtobufCBinaryData){size, (uint8_t *)bytes};
    send_message(worker, TOW_MESSAGE_SHARD_GET_DONE, &done.base);
}

/* -- Puts -------------------------------------------------------------------------- */

static void small_puts_carry_their_bytes(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
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
    send_message(fixture.client, TOW_MESSAGE_PUT, &put.base);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    const tow_msg_shard_put_t *shards =
        EXPECT(fixture.two, SHARD_PUT, shard_put);
    assert_true(shards->inlined);
    assert_int_equal(shards->n_devices, 2);
    assert_int_equal(shards->bytes.len, 32);
    assert_int_equal(shards->bytes.data[0], 2); /* shards 2 and 3 */
    assert_int_equal(shards->bytes.data[31], 3);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).object_bytes, 4 * 16);
    cluster_close(&fixture.cluster);
}

static void runs_wait_for_large_puts(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 1, 100000, NULL);
    uint64_t object = EXPECT(fixture.one, SHARD_PUT, shard_put)->object;
    assert_false(EXPECT(fixture.two, SHARD_PUT, shard_put)->inlined);
    send_put_opened(fixture.two, object, 2);
    const tow_msg_put_opened_t *opened =
        EXPECT(fixture.client, PUT_OPENED, put_opened);
    assert_int_equal(opened->object, 1);
    assert_int_equal(opened->first_shard, 2);
    assert_int_equal(opened->n_targets, 2);
    assert_int_equal(opened->targets[1]->region_id, 101);
    send_put_opened(fixture.one, object, 2);
    assert_int_equal(
        EXPECT(fixture.client, PUT_OPENED, put_opened)->first_shard, 0);
    send_put_done(fixture.one, object, NULL);
    expect_no_message(fixture.client);
    send_put_done(fixture.two, object, NULL);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    send_put_done(fixture.two, object, NULL); /* unsolicited */
    expect_no_message(fixture.client);
    assert_int_equal(fixture.two->disconnect_count, 0);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).object_bytes,
        4 * 100000);
    cluster_close(&fixture.cluster);
}

static void a_put_that_fails_fails_its_object(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 1, 1, add_text);
    add_program(fixture.client, 1, one_add);
    send_put(fixture.client, 1, 1, 1024, NULL);
    send_run(fixture.client, 1, 1, 1, 10);
    send_get(fixture.client, 1, 10, 0);
    uint64_t object = tow_key(fixture.client->number, 1);
    discard_messages(fixture.one);
    send_put_done(fixture.one, object, "damaged on its way");
    send_put_done(fixture.two, object, NULL);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_DATA_LOSS, "damaged");
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_DATA_LOSS, "damaged");
    expect_run_failed(fixture.client, 1, TOW_DATA_LOSS, "damaged");
    cluster_close(&fixture.cluster);
}

static void a_client_can_cancel_its_put(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 1, 1, add_text);
    add_program(fixture.client, 1, one_add);
    send_put(fixture.client, 1, 1, 1024, NULL);
    send_run(fixture.client, 1, 1, 1, 10);
    discard_messages(fixture.one);
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_UNAVAILABLE;
    failure.message = (char *)"the lane is down";
    done.object = 1;
    done.failure = &failure;
    send_message(fixture.client, TOW_MESSAGE_PUT_DONE, &done.base);
    send_message(fixture.client, TOW_MESSAGE_PUT_DONE,
                 &done.base); /* the second has no effect */
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "lane is down");
    expect_run_failed(fixture.client, 1, TOW_UNAVAILABLE, "lane is down");
    send_release(fixture.client, 1, 1);
    EXPECT(fixture.one, RELEASE, release); /* which ends it there */
    send_put_done(fixture.one, tow_key(fixture.client->number, 1), NULL);
    expect_no_message(fixture.client);
    cluster_close(&fixture.cluster);
}

static void a_put_fails_when_its_worker_disconnects(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 1, 1024, NULL);
    EXPECT(fixture.one, SHARD_PUT, shard_put);
    send_put_done(fixture.one, tow_key(fixture.client->number, 1), NULL);
    peer_crash(fixture.two);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    send_put(fixture.client, 2, 1, 1024,
             counted); /* The slice is disconnected. */
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/2");
    cluster_close(&fixture.cluster);
}

static void a_put_ends_when_its_client_disconnects(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 1, 1024, NULL);
    uint64_t object = EXPECT(fixture.one, SHARD_PUT, shard_put)->object;
    peer_crash(fixture.client);
    const tow_msg_release_t *release = EXPECT(fixture.one, RELEASE, release);
    assert_int_equal(release->firsts[0], object);
    expect_nothing(&fixture.cluster);
    send_put_opened(fixture.one, object, 2);
    send_put_done(fixture.one, object, NULL);
    run_for(&fixture.cluster, SECOND / 10);
    assert_int_equal(fixture.one->disconnect_count, 0);
    cluster_close(&fixture.cluster);
}

/* -- Gets -------------------------------------------------------------------------- */

static void gets_go_to_the_worker_that_has_the_shard(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 1, 16, counted);
    send_get(fixture.client, 7, 1, 3);
    EXPECT(fixture.client, PUT_DONE, put_done);
    EXPECT(fixture.two, SHARD_PUT, shard_put);
    const tow_msg_shard_get_t *get = EXPECT(fixture.two, SHARD_GET, shard_get);
    assert_int_equal(get->object, tow_key(fixture.client->number, 1));
    assert_int_equal(get->shard, 1);
    uint64_t request = get->request;
    send_get_done(fixture.one, request, counted,
                  16); /* not the worker with the shard */
    expect_no_message(fixture.client);
    send_release(fixture.client, 1, 1); /* held by the get */
    expect_no_message(fixture.two);
    send_get_done(fixture.two, request, counted, 16);
    const tow_msg_get_done_t *done = EXPECT(fixture.client, GET_DONE, get_done);
    expect_success(done->failure);
    assert_int_equal(done->request, 7);
    assert_int_equal(done->bytes.len, 16);
    EXPECT(fixture.two, RELEASE, release);
    send_get(fixture.client, 8, 1, 3);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_NOT_FOUND, "object 1");
    cluster_close(&fixture.cluster);
}

static void gets_of_results_wait_for_the_grant(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 1, 1, add_text);
    add_program(fixture.client, 1, one_add);
    send_put(fixture.client, 1, 1, 1024, NULL);
    send_run(fixture.client, 1, 1, 1, 10);
    send_get(fixture.client, 1, 10, 0);
    send_get(fixture.client, 2, 10, 9);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_OUT_OF_RANGE, "4 shards");
    EXPECT(fixture.one, PROGRAM_LOAD, program_load);
    uint64_t object = EXPECT(fixture.one, SHARD_PUT, shard_put)->object;
    expect_no_message(fixture.one);
    send_put_done(fixture.one, object, NULL);
    send_put_done(fixture.two, object, NULL);
    uint64_t run = expect_grant(fixture.one, fixture.client, 1);
    uint64_t request = EXPECT(fixture.one, SHARD_GET, shard_get)->request;
    send_get_done(fixture.one, request, counted, 1024);
    send_done(fixture.one, run);
    send_done(fixture.two, run);
    EXPECT(fixture.client, PUT_DONE, put_done);
    expect_success(EXPECT(fixture.client, GET_DONE, get_done)->failure);
    expect_run_done(fixture.client, 1);
    cluster_close(&fixture.cluster);
}

/* The mapping of a closed slice lives as long as its objects. */
static void objects_outlive_their_slice_but_not_their_client(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 1, 16, counted);
    send_get(fixture.client, 7, 1, 0);
    tow_msg_slice_close_t close = TOW_MSG_SLICE_CLOSE_INIT;
    close.slice = 1;
    send_message(fixture.client, TOW_MESSAGE_SLICE_CLOSE, &close.base);
    EXPECT(fixture.one, SHARD_PUT, shard_put);
    uint64_t request = EXPECT(fixture.one, SHARD_GET, shard_get)->request;
    expect_no_message(fixture.one);
    /* Its worker may write to a crashed client for long: the accounts do not
     * wait. */
    peer_crash(fixture.client);
    EXPECT(fixture.one, RELEASE, release);
    expect_nothing(&fixture.cluster);
    send_get_done(fixture.one, request, counted, 16);
    expect_no_message(fixture.one);
    cluster_close(&fixture.cluster);
}

/* -- Invalid messages ------------------------------------------------------ */

static void expect_only(fixture_t *fixture, peer_t *culprit, const char *part)
{
    run_for(&fixture->cluster, SECOND / 10);
    peer_t *peers[] = {fixture->one, fixture->two, fixture->client};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(peers[i]->disconnect_count, peers[i] == culprit);
    if (culprit->disconnect_count != 1)
        fail_msg("%s is still there", culprit->name);
    expect_part(culprit->disconnect_message, part);
}

static void protocol_violations_end_the_session_of_a_client(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    peer_t *bad = client_make(&fixture.cluster, "bad/1");
    send_put(bad, 1, 9, 16, counted);
    expect_only(&fixture, bad, "slice 9");
    bad = client_make(&fixture.cluster, "bad/2");
    open_slice(bad, 1, 4);
    send_put(bad, 1, 1, 16, counted);
    send_put(bad, 1, 1, 16, counted);
    expect_only(&fixture, bad, "1");
    bad = client_make(&fixture.cluster, "bad/3");
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    uint64_t firsts[] = {1, 2};
    uint32_t counts[] = {UINT32_MAX};
    release.firsts = firsts;
    release.n_firsts = 2;
    send_message(bad, TOW_MESSAGE_RELEASE, &release.base);
    expect_only(&fixture, bad, "2 ranges");
    bad = client_make(&fixture.cluster, "bad/4");
    release.n_firsts = 1;
    release.counts = counts;
    release.n_counts = 1;
    send_message(bad, TOW_MESSAGE_RELEASE,
                 &release.base); /* would take a minute */
    expect_only(&fixture, bad, "at once");
    bad = client_make(&fixture.cluster, "bad/5");
    tow_msg_report_get_t report = TOW_MSG_REPORT_GET_INIT;
    report.kind = 77;
    send_message(bad, TOW_MESSAGE_REPORT_GET, &report.base);
    expect_only(&fixture, bad, "kind 77");
    cluster_close(&fixture.cluster);
}

static void messages_of_workers_end_the_session_of_a_client(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    peer_t *bad = client_make(&fixture.cluster, "bad/1");
    send_done(bad, 1);
    expect_only(&fixture, bad, "Done");
    bad = client_make(&fixture.cluster, "bad/2");
    uint8_t *room;
    assert_int_equal(tow_session_begin(bad->session, 5, &room), TOW_SEND_OK);
    memset(room, 0xff, 5);
    tow_session_commit(bad->session, TOW_MESSAGE_RUN, 5);
    expect_only(&fixture, bad, "");
    bad = client_make(&fixture.cluster, "bad/3");
    tow_msg_program_add_t add = TOW_MSG_PROGRAM_ADD_INIT;
    add.program = 1;
    add.graph_blob = 9;
    send_message(bad, TOW_MESSAGE_PROGRAM_ADD, &add.base);
    expect_only(&fixture, bad, "blob 9");
    bad = client_make(&fixture.cluster, "bad/4");
    for (int i = 0; i < 100; i++)
        send_blob(bad, "x", 1);
    expect_only(&fixture, bad, "blobs");
    cluster_close(&fixture.cluster);
}

static void protocol_violations_end_the_session_of_a_worker(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_done(fixture.one, tow_key(9, 9)); /* Possibly a run that has ended. */
    answer_load(fixture.one, 77, NULL);
    send_get_done(fixture.one, 55, NULL, 0);
    send_put_opened(fixture.one, 5, 1);
    run_for(&fixture.cluster, SECOND / 10);
    assert_int_equal(fixture.one->disconnect_count, 0);
    send_put(fixture.client, 1, 1, 1024, NULL);
    run_for(&fixture.cluster, SECOND / 100);
    send_put_opened(fixture.one, tow_key(fixture.client->number, 1), 1);
    expect_only(&fixture, fixture.one, "1 of 2 shards");
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    send_message(fixture.two, TOW_MESSAGE_CANCEL, &cancel.base);
    run_for(&fixture.cluster, SECOND / 10);
    assert_int_equal(fixture.two->disconnect_count, 1);
    expect_part(fixture.two->disconnect_message, "Cancel");
    assert_int_equal(fixture.client->disconnect_count, 0);
    cluster_close(&fixture.cluster);
}

/* A report for a run that it was never granted. */
static void workers_cannot_end_runs_that_wait(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 1, 1, add_text);
    add_program(fixture.client, 1, one_add);
    send_put(fixture.client, 1, 1, 1024, NULL);
    send_run(fixture.client, 1, 1, 1, 10);
    run_for(&fixture.cluster, SECOND / 100);
    send_done(fixture.one, tow_key(fixture.client->number, 1));
    send_done(fixture.one, tow_key(fixture.client->number, 1));
    expect_no_message(fixture.client);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).run_count, 1);
    cluster_close(&fixture.cluster);
}

/* -- Reports ----------------------------------------------------------------------- */

static void a_report_waits_for_workers_or_their_disconnection(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 3;
    get.kind = TOW_REPORT_STATUS;
    send_message(fixture.client, TOW_MESSAGE_REPORT_GET, &get.base);
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    report.request = EXPECT(fixture.one, REPORT_GET, report_get)->request;
    report.blob = send_blob(fixture.one, "{\"shelf\": 5}", 12);
    send_message(fixture.one, TOW_MESSAGE_REPORT, &report.base);
    expect_no_message(fixture.client);
    peer_crash(fixture.two);
    assert_int_equal(EXPECT(fixture.client, REPORT, report)->request, 3);
    char *text = tow_calloc(1, fixture.client->blob_size + 1);
    memcpy(text, fixture.client->blob_bytes, fixture.client->blob_size);
    expect_part(text, "\"report\":{\"shelf\":5}");
    tow_free(text);
    report.blob = send_blob(fixture.one, "not json", 8); /* unsolicited */
    report.blob++;
    send_message(fixture.one, TOW_MESSAGE_REPORT, &report.base);
    send_message(fixture.client, TOW_MESSAGE_REPORT_GET, &get.base);
    run_for(&fixture.cluster, SECOND / 100);
    cluster_close(
        &fixture.cluster); /* The client disconnects before the answer. */
}

TOW_TEST_MAIN(
    cmocka_unit_test(small_puts_carry_their_bytes),
    cmocka_unit_test(runs_wait_for_large_puts),
    cmocka_unit_test(a_put_that_fails_fails_its_object),
    cmocka_unit_test(a_client_can_cancel_its_put),
    cmocka_unit_test(a_put_fails_when_its_worker_disconnects),
    cmocka_unit_test(a_put_ends_when_its_client_disconnects),
    cmocka_unit_test(gets_go_to_the_worker_that_has_the_shard),
    cmocka_unit_test(gets_of_results_wait_for_the_grant),
    cmocka_unit_test(objects_outlive_their_slice_but_not_their_client),
    cmocka_unit_test(protocol_violations_end_the_session_of_a_client),
    cmocka_unit_test(messages_of_workers_end_the_session_of_a_client),
    cmocka_unit_test(protocol_violations_end_the_session_of_a_worker),
    cmocka_unit_test(workers_cannot_end_runs_that_wait),
    cmocka_unit_test(a_report_waits_for_workers_or_their_disconnection))
