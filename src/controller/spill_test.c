/* Spilling, with scripted workers and clients. Devices have 1 MiB each. */
#include "controller/fixture_testing_impl.h"

#define LARGE 600000 /* two do not fit on a device */

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *worker;
    peer_t *client;
} fixture_t;

static void fixture_open(fixture_t *fixture, uint64_t host_bytes)
{
    *fixture = (fixture_t){.cluster = {.host_bytes = host_bytes}};
    cluster_open(&fixture->cluster);
    fixture->worker = worker_make(&fixture->cluster, 1);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 1);
}

static void send_put_done(const fixture_t *fixture, uint64_t object)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    done.object = tow_key(fixture->client->number, object);
    send_message(fixture->worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
}

static void expect_put(const fixture_t *fixture, uint64_t object)
{
    assert_int_equal(EXPECT(fixture->worker, SHARD_PUT, shard_put)->object,
                     tow_key(fixture->client->number, object));
    send_put_done(fixture, object);
}

static uint64_t expect_spill(const fixture_t *fixture, uint64_t object)
{
    const tow_msg_spill_t *spill = EXPECT(fixture->worker, SPILL, spill);
    assert_int_equal(spill->object, tow_key(fixture->client->number, object));
    return spill->spill;
}

static void expect_unspill(const fixture_t *fixture, uint64_t object,
                           uint64_t spill)
{
    const tow_msg_unspill_t *unspill =
        EXPECT(fixture->worker, UNSPILL, unspill);
    assert_int_equal(unspill->object, tow_key(fixture->client->number, object));
    assert_int_equal(unspill->spill, spill);
}

static void send_spill_done(const fixture_t *fixture, uint64_t object,
                            uint64_t spill, const char *why)
{
    tow_msg_spill_done_t done = TOW_MSG_SPILL_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_FAILED_PRECONDITION;
    failure.message = (char *)why;
    done.object = tow_key(fixture->client->number, object);
    done.spill = spill;
    if (why != NULL) done.failure = &failure;
    send_message(fixture->worker, TOW_MESSAGE_SPILL_DONE, &done.base);
}

/* Two objects, with room for one: the first is spilled. */
static uint64_t put_two(const fixture_t *fixture)
{
    send_put(fixture->client, 1, 1, LARGE, NULL);
    expect_put(fixture, 1);
    send_put(fixture->client, 2, 1, LARGE, NULL);
    return expect_spill(fixture, 1);
}

static uint64_t spilled_bytes(const fixture_t *fixture)
{
    return tow_controller_totals(fixture->cluster.controller).spilled_bytes;
}

static void send_assemble(const peer_t *client, uint64_t object,
                          uint64_t source)
{
    tow_msg_assemble_t assembly = TOW_MSG_ASSEMBLE_INIT;
    uint32_t shard = 0;
    assembly.object = object;
    assembly.slice = 1;
    assembly.sources = &source;
    assembly.n_sources = 1;
    assembly.shards = &shard;
    assembly.n_shards = 1;
    send_message((peer_t *)client, TOW_MESSAGE_ASSEMBLE, &assembly.base);
}

static void an_idle_object_is_spilled_and_returns(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, MEMORY_BYTES * 4);
    const uint64_t first = put_two(&fixture);
    expect_no_message(fixture.worker); /* There is no room yet. */
    send_spill_done(&fixture, 1, first, NULL);
    expect_put(&fixture, 2);
    assert_int_equal(spilled_bytes(&fixture), LARGE);
    /* Gets do not need it on its device. */
    send_get(fixture.client, 1, 1, 0);
    const tow_msg_shard_get_t *get =
        EXPECT(fixture.worker, SHARD_GET, shard_get);
    tow_msg_shard_get_done_t got = TOW_MSG_SHARD_GET_DONE_INIT;
    got.request = get->request;
    send_message(fixture.worker, TOW_MESSAGE_SHARD_GET_DONE, &got.base);
    expect_success(EXPECT(fixture.client, GET_DONE, get_done)->failure);
    /* An assembly of its shard does: the other one is spilled. */
    send_assemble(fixture.client, 3, 1);
    const uint64_t second = expect_spill(&fixture, 2);
    assert_int_not_equal(first, second);
    send_spill_done(&fixture, 2, second, NULL);
    expect_unspill(&fixture, 1, first);
    (void)EXPECT(fixture.worker, SHARD_ASSEMBLE, shard_assemble);
    assert_int_equal(spilled_bytes(&fixture), 2 * LARGE);
    send_spill_done(&fixture, 1, first, NULL);
    run_for(&fixture.cluster, SECOND / 100);
    assert_int_equal(spilled_bytes(&fixture), LARGE);
    must(tow_controller_check(fixture.cluster.controller));
    cluster_close(&fixture.cluster);
}

static void a_put_waits_for_memory_that_a_get_reads(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, MEMORY_BYTES * 4);
    send_put(fixture.client, 1, 1, LARGE, NULL);
    expect_put(&fixture, 1);
    send_get(fixture.client, 1, 1, 0);
    tow_msg_shard_get_done_t got = TOW_MSG_SHARD_GET_DONE_INIT;
    got.request = EXPECT(fixture.worker, SHARD_GET, shard_get)->request;
    send_put(fixture.client, 2, 1, LARGE, NULL);
    expect_no_message(fixture.client); /* It is not refused. */
    expect_no_message(fixture.worker); /* The object is being read. */
    send_message(fixture.worker, TOW_MESSAGE_SHARD_GET_DONE, &got.base);
    expect_success(EXPECT(fixture.client, GET_DONE, get_done)->failure);
    const uint64_t spill = expect_spill(&fixture, 1);
    send_spill_done(&fixture, 1, spill, NULL);
    expect_put(&fixture, 2);
    must(tow_controller_check(fixture.cluster.controller));
    cluster_close(&fixture.cluster);
}

static void objects_that_share_memory_are_not_spilled(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, MEMORY_BYTES * 4);
    const uint64_t spill = put_two(&fixture);
    send_spill_done(&fixture, 1, spill, "shared");
    expect_unspill(&fixture, 1, spill);
    send_spill_done(&fixture, 1, spill, NULL);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_RESOURCE_EXHAUSTED, "do not fit on device");
    assert_int_equal(spilled_bytes(&fixture), 0);
    must(tow_controller_check(fixture.cluster.controller));
    cluster_close(&fixture.cluster);
}

static void without_host_memory_the_refusal_says_so(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, LARGE - 1);
    send_put(fixture.client, 1, 1, LARGE, NULL);
    expect_put(&fixture, 1);
    send_put(fixture.client, 2, 1, LARGE, NULL);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_RESOURCE_EXHAUSTED, "bytes of host memory");
    expect_no_message(fixture.worker);
    cluster_close(&fixture.cluster);
}

static void an_object_may_be_released_during_a_spill(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, MEMORY_BYTES * 4);
    const uint64_t spill = put_two(&fixture);
    send_release(fixture.client, 1, 1);
    expect_no_message(fixture.worker); /* Its device still has it. */
    assert_int_equal(spilled_bytes(&fixture), LARGE);
    send_spill_done(&fixture, 1, spill, NULL);
    (void)EXPECT(fixture.worker, RELEASE,
                 release); /* Before what needs the room. */
    expect_put(&fixture, 2);
    assert_int_equal(spilled_bytes(&fixture), 0);
    must(tow_controller_check(fixture.cluster.controller));
    cluster_close(&fixture.cluster);
}

static void a_worker_may_disconnect_during_a_spill(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, MEMORY_BYTES * 4);
    (void)put_two(&fixture);
    peer_crash(fixture.worker);
    run_for(&fixture.cluster, 10 * SECOND);
    expect_failure(EXPECT(fixture.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "is gone");
    assert_int_equal(spilled_bytes(&fixture), 0);
    must(tow_controller_check(fixture.cluster.controller));
    cluster_close(&fixture.cluster);
}

static void a_client_may_disconnect_during_a_spill(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, MEMORY_BYTES * 4);
    const uint64_t spill = put_two(&fixture);
    peer_leave(fixture.client);
    run_for(&fixture.cluster, SECOND);
    send_spill_done(&fixture, 1, spill, NULL);
    run_for(&fixture.cluster, SECOND);
    assert_int_equal(spilled_bytes(&fixture), 0);
    must(tow_controller_check(fixture.cluster.controller));
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(cmocka_unit_test(an_idle_object_is_spilled_and_returns),
              cmocka_unit_test(a_put_waits_for_memory_that_a_get_reads),
              cmocka_unit_test(objects_that_share_memory_are_not_spilled),
              cmocka_unit_test(without_host_memory_the_refusal_says_so),
              cmocka_unit_test(an_object_may_be_released_during_a_spill),
              cmocka_unit_test(a_worker_may_disconnect_during_a_spill),
              cmocka_unit_test(a_client_may_disconnect_during_a_spill))
