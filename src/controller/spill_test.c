/* Objects that give way to others, against workers and clients that the tests
 * write themselves. Devices have 1 MiB each. */
#include "controller/world_testing_impl.h"

#define LARGE 600000 /* two do not fit on a device */

typedef struct cast {
    world_t world;
    peer_t *worker;
    peer_t *client;
} cast_t;

static void cast_open(cast_t *cast, uint64_t host_bytes)
{
    *cast = (cast_t){.world = {.host_bytes = host_bytes}};
    world_open(&cast->world);
    cast->worker = worker_make(&cast->world, 1);
    cast->client = client_make(&cast->world, "client/1");
    open_slice(cast->client, 1, 1);
}

static void say_put_done(const cast_t *cast, uint64_t object)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    done.object = tow_key(cast->client->number, object);
    say(cast->worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
    expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
}

static void hear_put(const cast_t *cast, uint64_t object)
{
    assert_int_equal(HEAR(cast->worker, SHARD_PUT, shard_put)->object,
                     tow_key(cast->client->number, object));
    say_put_done(cast, object);
}

static uint64_t hear_spill(const cast_t *cast, uint64_t object)
{
    const tow_msg_spill_t *spill = HEAR(cast->worker, SPILL, spill);
    assert_int_equal(spill->object, tow_key(cast->client->number, object));
    return spill->spill;
}

static void hear_unspill(const cast_t *cast, uint64_t object, uint64_t spill)
{
    const tow_msg_unspill_t *unspill = HEAR(cast->worker, UNSPILL, unspill);
    assert_int_equal(unspill->object, tow_key(cast->client->number, object));
    assert_int_equal(unspill->spill, spill);
}

static void say_spill_done(const cast_t *cast, uint64_t object, uint64_t spill,
                           const char *why)
{
    tow_msg_spill_done_t done = TOW_MSG_SPILL_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_FAILED_PRECONDITION;
    failure.message = (char *)why;
    done.object = tow_key(cast->client->number, object);
    done.spill = spill;
    if (why != NULL) done.failure = &failure;
    say(cast->worker, TOW_MESSAGE_SPILL_DONE, &done.base);
}

/* Two objects of which one has room, and the first of them gives way. */
static uint64_t put_two(const cast_t *cast)
{
    say_put(cast->client, 1, 1, LARGE, NULL);
    hear_put(cast, 1);
    say_put(cast->client, 2, 1, LARGE, NULL);
    return hear_spill(cast, 1);
}

static uint64_t spilled_bytes(const cast_t *cast)
{
    return tow_controller_totals(cast->world.controller).spilled_bytes;
}

static void say_regroup(const peer_t *client, uint64_t object, uint64_t source)
{
    tow_msg_regroup_t regroup = TOW_MSG_REGROUP_INIT;
    uint32_t shard = 0;
    regroup.object = object;
    regroup.slice = 1;
    regroup.sources = &source;
    regroup.n_sources = 1;
    regroup.shards = &shard;
    regroup.n_shards = 1;
    say((peer_t *)client, TOW_MESSAGE_REGROUP, &regroup.base);
}

static void an_idle_object_makes_room_and_comes_back(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, MEMORY_BYTES * 4);
    const uint64_t first = put_two(&cast);
    hear_nothing(cast.worker); /* There is no room yet. */
    say_spill_done(&cast, 1, first, NULL);
    hear_put(&cast, 2);
    assert_int_equal(spilled_bytes(&cast), LARGE);
    /* Gets do not need it on its device. */
    say_get(cast.client, 1, 1, 0);
    const tow_msg_shard_get_t *get = HEAR(cast.worker, SHARD_GET, shard_get);
    tow_msg_shard_get_done_t got = TOW_MSG_SHARD_GET_DONE_INIT;
    got.request = get->request;
    say(cast.worker, TOW_MESSAGE_SHARD_GET_DONE, &got.base);
    expect_well(HEAR(cast.client, GET_DONE, get_done)->failure);
    /* A new object of its shard does: the other one gives way. */
    say_regroup(cast.client, 3, 1);
    const uint64_t second = hear_spill(&cast, 2);
    assert_int_not_equal(first, second);
    say_spill_done(&cast, 2, second, NULL);
    hear_unspill(&cast, 1, first);
    (void)HEAR(cast.worker, SHARD_REGROUP, shard_regroup);
    assert_int_equal(spilled_bytes(&cast), 2 * LARGE);
    say_spill_done(&cast, 1, first, NULL);
    run_for(&cast.world, SECOND / 100);
    assert_int_equal(spilled_bytes(&cast), LARGE);
    must(tow_controller_check(cast.world.controller));
    world_close(&cast.world);
}

static void what_shares_its_memory_stays_and_the_new_one_is_refused(
    void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, MEMORY_BYTES * 4);
    const uint64_t spill = put_two(&cast);
    say_spill_done(&cast, 1, spill, "shared");
    hear_unspill(&cast, 1, spill);
    say_spill_done(&cast, 1, spill, NULL);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_RESOURCE_EXHAUSTED, "do not fit on device");
    assert_int_equal(spilled_bytes(&cast), 0);
    must(tow_controller_check(cast.world.controller));
    world_close(&cast.world);
}

static void without_host_memory_it_is_refused_in_words(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, LARGE - 1);
    say_put(cast.client, 1, 1, LARGE, NULL);
    hear_put(&cast, 1);
    say_put(cast.client, 2, 1, LARGE, NULL);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_RESOURCE_EXHAUSTED, "bytes of host memory");
    hear_nothing(cast.worker);
    world_close(&cast.world);
}

static void an_object_is_released_while_it_is_spilled(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, MEMORY_BYTES * 4);
    const uint64_t spill = put_two(&cast);
    say_release(cast.client, 1, 1);
    hear_nothing(cast.worker); /* Its device still has it. */
    assert_int_equal(spilled_bytes(&cast), LARGE);
    say_spill_done(&cast, 1, spill, NULL);
    (void)HEAR(cast.worker, RELEASE, release); /* Before what needs the room. */
    hear_put(&cast, 2);
    assert_int_equal(spilled_bytes(&cast), 0);
    must(tow_controller_check(cast.world.controller));
    world_close(&cast.world);
}

static void a_worker_dies_while_it_spills(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, MEMORY_BYTES * 4);
    (void)put_two(&cast);
    peer_die(cast.worker);
    run_for(&cast.world, 10 * SECOND);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "is gone");
    assert_int_equal(spilled_bytes(&cast), 0);
    must(tow_controller_check(cast.world.controller));
    world_close(&cast.world);
}

static void a_client_leaves_while_its_object_is_spilled(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast, MEMORY_BYTES * 4);
    const uint64_t spill = put_two(&cast);
    peer_leave(cast.client);
    run_for(&cast.world, SECOND);
    say_spill_done(&cast, 1, spill, NULL);
    run_for(&cast.world, SECOND);
    assert_int_equal(spilled_bytes(&cast), 0);
    must(tow_controller_check(cast.world.controller));
    world_close(&cast.world);
}

TOW_TEST_MAIN(
    cmocka_unit_test(an_idle_object_makes_room_and_comes_back),
    cmocka_unit_test(what_shares_its_memory_stays_and_the_new_one_is_refused),
    cmocka_unit_test(without_host_memory_it_is_refused_in_words),
    cmocka_unit_test(an_object_is_released_while_it_is_spilled),
    cmocka_unit_test(a_worker_dies_while_it_spills),
    cmocka_unit_test(a_client_leaves_while_its_object_is_spilled))
