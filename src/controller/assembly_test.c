/* Assemblies and copies, with scripted workers and clients. */
#include "controller/fixture_testing_impl.h"

static uint8_t zeros[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} fixture_t;

static const int64_t ids[] = {2048, 2049, 4096, 4097};

static void open_devices(peer_t *client, uint64_t slice, const int64_t *devices,
                         uint32_t count)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    open.devices = (int64_t *)devices;
    open.n_devices = count;
    send_message(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_success(EXPECT(client, SLICE_OPENED, slice_opened)->failure);
}

/* Slice 1 has all devices, slices 11 to 14 one each. */
static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_devices(fixture->client, 1, ids, 4);
    for (uint64_t i = 0; i < 4; i++)
        open_devices(fixture->client, 11 + i, &ids[i], 1);
}

static void send_assemble(peer_t *client, uint64_t object, uint64_t slice,
                          const uint64_t *sources, const uint32_t *shards,
                          size_t count)
{
    tow_msg_assemble_t assembly = TOW_MSG_ASSEMBLE_INIT;
    assembly.object = object;
    assembly.slice = slice;
    assembly.sources = (uint64_t *)sources;
    assembly.n_sources = count;
    assembly.shards = (uint32_t *)shards;
    assembly.n_shards = count;
    send_message(client, TOW_MESSAGE_ASSEMBLE, &assembly.base);
}

static void send_copy(peer_t *client, uint64_t object, uint64_t slice,
                      uint64_t source, uint32_t shard)
{
    tow_msg_copy_t copy = TOW_MSG_COPY_INIT;
    copy.object = object;
    copy.slice = slice;
    copy.source = source;
    copy.shard = shard;
    send_message(client, TOW_MESSAGE_COPY, &copy.base);
}

static void send_opened(peer_t *worker, uint64_t object)
{
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT, *list = &target;
    target.region_id = 77;
    tow_msg_shard_put_opened_t opened = TOW_MSG_SHARD_PUT_OPENED_INIT;
    opened.object = object;
    opened.targets = &list;
    opened.n_targets = 1;
    send_message(worker, TOW_MESSAGE_SHARD_PUT_OPENED, &opened.base);
}

static void send_arrived(peer_t *worker, uint64_t object)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    done.object = object;
    send_message(worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
}

static void send_fetch_done(peer_t *worker, uint64_t request, const char *why)
{
    tow_msg_shard_get_done_t done = TOW_MSG_SHARD_GET_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_DATA_LOSS;
    failure.message = (char *)why;
    done.request = request;
    if (why != NULL) done.failure = &failure;
    send_message(worker, TOW_MESSAGE_SHARD_GET_DONE, &done.base);
}

static uint64_t object_bytes(const fixture_t *fixture)
{
    return tow_controller_totals(fixture->cluster.controller).object_bytes;
}

/* Objects 1 to 4, one on each device, from small puts. */
static void put_four(fixture_t *fixture)
{
    for (uint64_t i = 0; i < 4; i++) {
        send_put(fixture->client, 1 + i, 11 + i, sizeof(zeros), zeros);
        expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    }
    discard_messages(fixture->one);
    discard_messages(fixture->two);
}

static const uint64_t four[] = {1, 2, 3, 4};
static const uint32_t firsts[] = {0, 0, 0, 0};

/* -- Assemblies ------------------------------------------------------------ */

static void four_arrays_are_assembled_and_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 1, 1, add_text);
    add_program(fixture.client, 1, one_add);
    put_four(&fixture);
    send_assemble(fixture.client, 9, 1, four, firsts, 4);
    send_release(fixture.client, 1, 4);
    send_run(fixture.client, 1, 1, 9, 10);
    const tow_msg_shard_assemble_t *part =
        EXPECT(fixture.two, SHARD_ASSEMBLE, shard_assemble);
    assert_int_equal(part->object, tow_key(fixture.client->number, 9));
    assert_int_equal(part->n_sources, 2);
    assert_int_equal(part->sources[0], tow_key(fixture.client->number, 3));
    assert_int_equal(part->sources[1], tow_key(fixture.client->number, 4));
    assert_int_equal(part->shards[1], 0);
    EXPECT(fixture.one, SHARD_ASSEMBLE, shard_assemble);
    EXPECT(fixture.one, RELEASE, release); /* of its sources */
    EXPECT(fixture.two, RELEASE, release);
    send_done(fixture.one, expect_grant(fixture.one, fixture.client, 1));
    send_done(fixture.two, expect_grant(fixture.two, fixture.client, 1));
    expect_run_done(fixture.client, 1);
    assert_int_equal(object_bytes(&fixture), 2 * 4 * sizeof(zeros));
    cluster_close(&fixture.cluster);
}

static void one_shard_of_an_array_is_used_alone(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 1, sizeof(zeros), zeros);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    discard_messages(fixture.two);
    send_assemble(fixture.client, 2, 14, &(uint64_t){1}, &(uint32_t){3}, 1);
    const tow_msg_shard_assemble_t *part =
        EXPECT(fixture.two, SHARD_ASSEMBLE, shard_assemble);
    assert_int_equal(part->n_sources, 1);
    assert_int_equal(part->shards[0], 1); /* of the worker's own */
    send_get(fixture.client, 1, 2, 0);
    const tow_msg_shard_get_t *get = EXPECT(fixture.two, SHARD_GET, shard_get);
    assert_int_equal(get->object, tow_key(fixture.client->number, 2));
    send_fetch_done(fixture.two, get->request, NULL);
    cluster_close(&fixture.cluster);
}

static void an_assembly_waits_for_arriving_sources(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 11, 100000, NULL);
    uint64_t object = EXPECT(fixture.one, SHARD_PUT, shard_put)->object;
    send_assemble(fixture.client, 2, 11, &(uint64_t){1}, &(uint32_t){0}, 1);
    send_get(fixture.client, 1, 1, 0);
    expect_no_message(fixture.one);
    send_arrived(fixture.one, object);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    /* It waited too. */
    send_fetch_done(fixture.one,
                    EXPECT(fixture.one, SHARD_GET, shard_get)->request, NULL);
    EXPECT(fixture.one, SHARD_ASSEMBLE, shard_assemble);
    cluster_close(&fixture.cluster);
}

static void invalid_sources_make_a_failed_object(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    put_four(&fixture);
    const uint64_t missing[] = {1, 2, 3, 55};
    const uint64_t twisted[] = {2, 1, 3, 4};
    send_assemble(fixture.client, 8, 1, missing, firsts, 4);
    send_assemble(fixture.client, 9, 1, twisted, firsts, 4);
    send_get(fixture.client, 1, 8, 0);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_NOT_FOUND, "no object 55");
    send_get(fixture.client, 2, 9, 0);
    expect_failure(EXPECT(fixture.client, GET_DONE, get_done)->failure,
                   TOW_INVALID_ARGUMENT, "not on 2048");
    expect_no_message(fixture.one);
    cluster_close(&fixture.cluster);
}

static void an_assembly_ends_when_its_client_disconnects(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_put(fixture.client, 1, 11, 100000, NULL);
    EXPECT(fixture.one, SHARD_PUT, shard_put);
    send_assemble(fixture.client, 2, 11, &(uint64_t){1}, &(uint32_t){0}, 1);
    expect_no_message(fixture.one);
    peer_crash(fixture.client);
    EXPECT(fixture.one, RELEASE, release);
    expect_nothing(&fixture.cluster);
    cluster_close(&fixture.cluster);
}

/* -- Copies -------------------------------------------------------------------- */

static void a_copy_goes_from_worker_to_worker(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    put_four(&fixture);
    send_copy(fixture.client, 9, 14, 1, 0);
    uint64_t object = EXPECT(fixture.two, SHARD_PUT, shard_put)->object;
    send_opened(fixture.two, object);
    const tow_msg_shard_get_t *get = EXPECT(fixture.one, SHARD_GET, shard_get);
    assert_int_equal(get->object, tow_key(fixture.client->number, 1));
    assert_int_equal(get->target->region_id, 77);
    send_fetch_done(fixture.one, get->request, NULL);
    expect_no_message(fixture.client);
    send_arrived(fixture.two, object);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    cluster_close(&fixture.cluster);
}

static void a_copy_that_cannot_be_fetched_fails(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    put_four(&fixture);
    send_copy(fixture.client, 9, 14, 1, 0);
    send_copy(fixture.client, 10, 13, 9, 0); /* of the copy */
    uint64_t object = EXPECT(fixture.two, SHARD_PUT, shard_put)->object;
    send_opened(fixture.two, EXPECT(fixture.two, SHARD_PUT, shard_put)->object);
    send_opened(fixture.two, object);
    send_fetch_done(fixture.one,
                    EXPECT(fixture.one, SHARD_GET, shard_get)->request,
                    "the disk of the device is full");
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_DATA_LOSS, "disk");
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_DATA_LOSS, "disk");
    cluster_close(&fixture.cluster);
}

static void a_run_that_consumes_a_source_waits_for_its_copies(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    compile(fixture.client, 1, 1, consuming_text);
    add_program(fixture.client, 1, donating);
    send_put(fixture.client, 1, 1, sizeof(zeros), zeros);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    discard_messages(fixture.one);
    discard_messages(fixture.two);
    send_copy(fixture.client, 2, 14, 1, 0);
    send_copy(fixture.client, 3, 13, 1, 1);
    send_run(fixture.client, 1, 1, 1, 10);
    uint64_t first = EXPECT(fixture.two, SHARD_PUT, shard_put)->object;
    uint64_t second = EXPECT(fixture.two, SHARD_PUT, shard_put)->object;
    expect_no_message(fixture.one); /* no grant */
    send_opened(fixture.two, first);
    send_opened(fixture.two, second);
    for (int i = 0; i < 2; i++)
        send_fetch_done(fixture.one,
                        EXPECT(fixture.one, SHARD_GET, shard_get)->request,
                        NULL);
    send_arrived(fixture.two, second);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    expect_no_message(fixture.one);
    send_arrived(fixture.two, first);
    expect_success(EXPECT(fixture.client, PUT_DONE, put_done)->failure);
    send_done(fixture.one, expect_grant(fixture.one, fixture.client, 1));
    send_done(fixture.two, expect_grant(fixture.two, fixture.client, 1));
    expect_run_done(fixture.client, 1);
    cluster_close(&fixture.cluster);
}

static void a_copy_fails_with_its_source(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    put_four(&fixture);
    send_copy(fixture.client, 9, 14, 1, 0);
    uint64_t object = EXPECT(fixture.two, SHARD_PUT, shard_put)->object;
    send_opened(fixture.two, object);
    EXPECT(fixture.one, SHARD_GET, shard_get);
    peer_crash(fixture.one);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/1");
    peer_crash(fixture.client);
    EXPECT(fixture.two, RELEASE, release);
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(four_arrays_are_assembled_and_run),
    cmocka_unit_test(one_shard_of_an_array_is_used_alone),
    cmocka_unit_test(an_assembly_waits_for_arriving_sources),
    cmocka_unit_test(invalid_sources_make_a_failed_object),
    cmocka_unit_test(an_assembly_ends_when_its_client_disconnects),
    cmocka_unit_test(a_copy_goes_from_worker_to_worker),
    cmocka_unit_test(a_copy_that_cannot_be_fetched_fails),
    cmocka_unit_test(a_run_that_consumes_a_source_waits_for_its_copies),
    cmocka_unit_test(a_copy_fails_with_its_source))
