/* Regroups and copies, against workers and clients that the tests write
 * themselves. */
#include "controller/world_testing_impl.h"

static uint8_t zeros[1024];

typedef struct cast {
    world_t world;
    peer_t *one, *two; /* workers of two devices each */
    peer_t *client;
} cast_t;

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
    say(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
    expect_well(HEAR(client, SLICE_OPENED, slice_opened)->failure);
}

/* Slice 1 has all devices, slices 11 to 14 one each. */
static void cast_open(cast_t *cast)
{
    *cast = (cast_t){0};
    world_open(&cast->world);
    cast->one = worker_make(&cast->world, 1);
    cast->two = worker_make(&cast->world, 2);
    cast->client = client_make(&cast->world, "client/1");
    open_devices(cast->client, 1, ids, 4);
    for (uint64_t i = 0; i < 4; i++)
        open_devices(cast->client, 11 + i, &ids[i], 1);
}

static void say_regroup(peer_t *client, uint64_t object, uint64_t slice,
                        const uint64_t *sources, const uint32_t *shards,
                        size_t count)
{
    tow_msg_regroup_t regroup = TOW_MSG_REGROUP_INIT;
    regroup.object = object;
    regroup.slice = slice;
    regroup.sources = (uint64_t *)sources;
    regroup.n_sources = count;
    regroup.shards = (uint32_t *)shards;
    regroup.n_shards = count;
    say(client, TOW_MESSAGE_REGROUP, &regroup.base);
}

static void say_copy(peer_t *client, uint64_t object, uint64_t slice,
                     uint64_t source, uint32_t shard)
{
    tow_msg_copy_t copy = TOW_MSG_COPY_INIT;
    copy.object = object;
    copy.slice = slice;
    copy.source = source;
    copy.shard = shard;
    say(client, TOW_MESSAGE_COPY, &copy.base);
}

static void say_opened(peer_t *worker, uint64_t object)
{
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT, *list = &target;
    target.region_id = 77;
    tow_msg_shard_put_opened_t opened = TOW_MSG_SHARD_PUT_OPENED_INIT;
    opened.object = object;
    opened.targets = &list;
    opened.n_targets = 1;
    say(worker, TOW_MESSAGE_SHARD_PUT_OPENED, &opened.base);
}

static void say_arrived(peer_t *worker, uint64_t object)
{
    tow_msg_shard_put_done_t done = TOW_MSG_SHARD_PUT_DONE_INIT;
    done.object = object;
    say(worker, TOW_MESSAGE_SHARD_PUT_DONE, &done.base);
}

static void say_fetched(peer_t *worker, uint64_t request, const char *why)
{
    tow_msg_shard_get_done_t done = TOW_MSG_SHARD_GET_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_DATA_LOSS;
    failure.message = (char *)why;
    done.request = request;
    if (why != NULL) done.failure = &failure;
    say(worker, TOW_MESSAGE_SHARD_GET_DONE, &done.base);
}

static uint64_t object_bytes(const cast_t *cast)
{
    return tow_controller_totals(cast->world.controller).object_bytes;
}

/* Objects 1 to 4, one on each device, from small puts. */
static void put_four(cast_t *cast)
{
    for (uint64_t i = 0; i < 4; i++) {
        say_put(cast->client, 1 + i, 11 + i, sizeof(zeros), zeros);
        expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
    }
    hear_out(cast->one);
    hear_out(cast->two);
}

static const uint64_t four[] = {1, 2, 3, 4};
static const uint32_t firsts[] = {0, 0, 0, 0};

/* -- Regroups ------------------------------------------------------------------ */

static void four_arrays_become_one_and_run(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    compile(cast.client, 1, 1, add_text);
    add_program(cast.client, 1, one_add);
    put_four(&cast);
    say_regroup(cast.client, 9, 1, four, firsts, 4);
    say_release(cast.client, 1, 4);
    say_run(cast.client, 1, 1, 9, 10);
    const tow_msg_shard_regroup_t *part =
        HEAR(cast.two, SHARD_REGROUP, shard_regroup);
    assert_int_equal(part->object, tow_key(cast.client->number, 9));
    assert_int_equal(part->n_sources, 2);
    assert_int_equal(part->sources[0], tow_key(cast.client->number, 3));
    assert_int_equal(part->sources[1], tow_key(cast.client->number, 4));
    assert_int_equal(part->shards[1], 0);
    HEAR(cast.one, SHARD_REGROUP, shard_regroup);
    HEAR(cast.one, RELEASE, release); /* of what it was made of */
    HEAR(cast.two, RELEASE, release);
    say_done(cast.one, hear_grant(cast.one, cast.client, 1));
    say_done(cast.two, hear_grant(cast.two, cast.client, 1));
    hear_run_done(cast.client, 1);
    assert_int_equal(object_bytes(&cast), 2 * 4 * sizeof(zeros));
    world_close(&cast.world);
}

static void one_shard_of_an_array_is_used_alone(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 1, sizeof(zeros), zeros);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    hear_out(cast.two);
    say_regroup(cast.client, 2, 14, &(uint64_t){1}, &(uint32_t){3}, 1);
    const tow_msg_shard_regroup_t *part =
        HEAR(cast.two, SHARD_REGROUP, shard_regroup);
    assert_int_equal(part->n_sources, 1);
    assert_int_equal(part->shards[0], 1); /* of the worker's own */
    say_get(cast.client, 1, 2, 0);
    const tow_msg_shard_get_t *get = HEAR(cast.two, SHARD_GET, shard_get);
    assert_int_equal(get->object, tow_key(cast.client->number, 2));
    say_fetched(cast.two, get->request, NULL);
    world_close(&cast.world);
}

static void a_regroup_waits_for_bytes_on_their_way(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 11, 100000, NULL);
    uint64_t object = HEAR(cast.one, SHARD_PUT, shard_put)->object;
    say_regroup(cast.client, 2, 11, &(uint64_t){1}, &(uint32_t){0}, 1);
    say_get(cast.client, 1, 1, 0);
    hear_nothing(cast.one);
    say_arrived(cast.one, object);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    /* Which waited too. */
    say_fetched(cast.one, HEAR(cast.one, SHARD_GET, shard_get)->request, NULL);
    HEAR(cast.one, SHARD_REGROUP, shard_regroup);
    world_close(&cast.world);
}

static void sources_that_are_wrong_make_a_failed_object(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    put_four(&cast);
    const uint64_t missing[] = {1, 2, 3, 55};
    const uint64_t twisted[] = {2, 1, 3, 4};
    say_regroup(cast.client, 8, 1, missing, firsts, 4);
    say_regroup(cast.client, 9, 1, twisted, firsts, 4);
    say_get(cast.client, 1, 8, 0);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_NOT_FOUND, "no object 55");
    say_get(cast.client, 2, 9, 0);
    expect_failure(HEAR(cast.client, GET_DONE, get_done)->failure,
                   TOW_INVALID_ARGUMENT, "is to be on");
    hear_nothing(cast.one);
    world_close(&cast.world);
}

static void a_regroup_loses_its_client(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_put(cast.client, 1, 11, 100000, NULL);
    HEAR(cast.one, SHARD_PUT, shard_put);
    say_regroup(cast.client, 2, 11, &(uint64_t){1}, &(uint32_t){0}, 1);
    hear_nothing(cast.one);
    peer_die(cast.client);
    HEAR(cast.one, RELEASE, release);
    expect_nothing(&cast.world);
    world_close(&cast.world);
}

/* -- Copies -------------------------------------------------------------------- */

static void a_copy_goes_from_worker_to_worker(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    put_four(&cast);
    say_copy(cast.client, 9, 14, 1, 0);
    uint64_t object = HEAR(cast.two, SHARD_PUT, shard_put)->object;
    say_opened(cast.two, object);
    const tow_msg_shard_get_t *get = HEAR(cast.one, SHARD_GET, shard_get);
    assert_int_equal(get->object, tow_key(cast.client->number, 1));
    assert_int_equal(get->target->region_id, 77);
    say_fetched(cast.one, get->request, NULL);
    hear_nothing(cast.client);
    say_arrived(cast.two, object);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    world_close(&cast.world);
}

static void a_copy_that_cannot_be_fetched_fails(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    put_four(&cast);
    say_copy(cast.client, 9, 14, 1, 0);
    say_copy(cast.client, 10, 13, 9, 0); /* of the copy */
    uint64_t object = HEAR(cast.two, SHARD_PUT, shard_put)->object;
    say_opened(cast.two, HEAR(cast.two, SHARD_PUT, shard_put)->object);
    say_opened(cast.two, object);
    say_fetched(cast.one, HEAR(cast.one, SHARD_GET, shard_get)->request,
                "the disk of the device is full");
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_DATA_LOSS, "disk");
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_DATA_LOSS, "disk");
    world_close(&cast.world);
}

static void what_is_copied_is_not_consumed_before(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    compile(cast.client, 1, 1, eat_text);
    add_program(cast.client, 1, donating);
    say_put(cast.client, 1, 1, sizeof(zeros), zeros);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    hear_out(cast.one);
    hear_out(cast.two);
    say_copy(cast.client, 2, 14, 1, 0);
    say_copy(cast.client, 3, 13, 1, 1);
    say_run(cast.client, 1, 1, 1, 10);
    uint64_t first = HEAR(cast.two, SHARD_PUT, shard_put)->object;
    uint64_t second = HEAR(cast.two, SHARD_PUT, shard_put)->object;
    hear_nothing(cast.one); /* no grant */
    say_opened(cast.two, first);
    say_opened(cast.two, second);
    for (int i = 0; i < 2; i++)
        say_fetched(cast.one, HEAR(cast.one, SHARD_GET, shard_get)->request,
                    NULL);
    say_arrived(cast.two, second);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    hear_nothing(cast.one);
    say_arrived(cast.two, first);
    expect_well(HEAR(cast.client, PUT_DONE, put_done)->failure);
    say_done(cast.one, hear_grant(cast.one, cast.client, 1));
    say_done(cast.two, hear_grant(cast.two, cast.client, 1));
    hear_run_done(cast.client, 1);
    world_close(&cast.world);
}

static void a_copy_loses_its_source(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    put_four(&cast);
    say_copy(cast.client, 9, 14, 1, 0);
    uint64_t object = HEAR(cast.two, SHARD_PUT, shard_put)->object;
    say_opened(cast.two, object);
    HEAR(cast.one, SHARD_GET, shard_get);
    peer_die(cast.one);
    expect_failure(HEAR(cast.client, PUT_DONE, put_done)->failure,
                   TOW_UNAVAILABLE, "worker/1");
    peer_die(cast.client);
    HEAR(cast.two, RELEASE, release);
    world_close(&cast.world);
}

TOW_TEST_MAIN(cmocka_unit_test(four_arrays_become_one_and_run),
              cmocka_unit_test(one_shard_of_an_array_is_used_alone),
              cmocka_unit_test(a_regroup_waits_for_bytes_on_their_way),
              cmocka_unit_test(sources_that_are_wrong_make_a_failed_object),
              cmocka_unit_test(a_regroup_loses_its_client),
              cmocka_unit_test(a_copy_goes_from_worker_to_worker),
              cmocka_unit_test(a_copy_that_cannot_be_fetched_fails),
              cmocka_unit_test(what_is_copied_is_not_consumed_before),
              cmocka_unit_test(a_copy_loses_its_source))
