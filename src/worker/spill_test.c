/* Idle objects that go to host memory and come back, against a controller that
 * the tests write themselves. */
#include "worker/world_testing_impl.h"

#define SMALL 16
#define LARGE 60000 /* devices take a while to read and to write it */

enum {
    OBJECT = 1,
    OTHER,
    COPY = 101,
    RUN_COPY = 201,
};

static const char copy_text[] = "towpath-cost 1\n"
                                "name copy\n"
                                "argument u8[16]\n"
                                "result u8[16] alias 0\n"
                                "duration 100\n";

static uint8_t bytes[LARGE];

static void open_with(world_t *world, size_t size)
{
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    *world = (world_t){0};
    world_join(world, (tow_worker_limits_t){.host_bytes_max = 10 * LARGE});
    say_put(world, OBJECT, size, bytes, size);
    run_for(world, SECOND / 10);
    assert_int_equal(world->heard.put_code, TOW_CODE_OK);
}

static void say_spill(world_t *world, uint64_t object, uint64_t number)
{
    tow_msg_spill_t spill = TOW_MSG_SPILL_INIT;
    spill.object = object;
    spill.spill = number;
    say(world, TOW_MESSAGE_SPILL, &spill.base);
}

static void say_unspill(world_t *world, uint64_t object, uint64_t number)
{
    tow_msg_unspill_t unspill = TOW_MSG_UNSPILL_INIT;
    unspill.object = object;
    unspill.spill = number;
    say(world, TOW_MESSAGE_UNSPILL, &unspill.base);
}

/* The answer to the last of them. */
static void expect_answer(world_t *world, uint64_t object, uint64_t number,
                          bool is_back, tow_code_t code)
{
    heard_t *heard = &world->heard;
    run_for(world, SECOND / 10);
    assert_int_equal(heard->spill_count, 1);
    if (heard->spill_code != code) fail_msg("%s", heard->spill_message);
    assert_int_equal(heard->spill_object, object);
    assert_int_equal(heard->spill_number, number);
    assert_int_equal(heard->spill_is_back, is_back);
    heard->spill_count = 0;
}

static void expect_away(const world_t *world, size_t size)
{
    const tow_worker_stats_t stats = tow_worker_stats(world->worker);
    assert_int_equal(stats.spill_bytes, DEVICES * size);
    assert_int_equal(stats.shelf.bytes, 0);
    assert_int_equal(tow_sim_device_counts(world->driver).buffers, 0);
}

static void expect_here(const world_t *world, size_t size)
{
    const tow_worker_stats_t stats = tow_worker_stats(world->worker);
    assert_int_equal(stats.spill_count, 0);
    assert_int_equal(stats.spill_bytes, 0);
    assert_int_equal(stats.shelf.bytes, DEVICES * size);
}

/* Neither on devices nor on the host. */
static void expect_nothing(const world_t *world)
{
    expect_here(world, 0);
    expect_empty(world);
}

static void expect_bytes(world_t *world)
{
    for (uint32_t shard = 0; shard < DEVICES; shard++) {
        world->heard.get_size = 0;
        say_get(world, 5, OBJECT, shard, false);
        run_for(world, SECOND / 10);
        assert_int_equal(world->heard.get_code, TOW_CODE_OK);
        assert_int_equal(world->heard.get_size, SMALL);
        assert_memory_equal(world->heard.get_bytes, bytes, SMALL);
    }
}

/* -- Going and coming ---------------------------------------------------------- */

static void an_object_goes_and_comes_back_with_its_bytes(void **state)
{
    (void)state;
    world_t world;
    open_with(&world, SMALL);
    for (uint64_t number = 1; number <= 3; number++) {
        say_spill(&world, OBJECT, number);
        expect_answer(&world, OBJECT, number, false, TOW_CODE_OK);
        expect_away(&world, SMALL);
        expect_bytes(&world); /* From the host. */
        say_unspill(&world, OBJECT, number);
        expect_answer(&world, OBJECT, number, true, TOW_CODE_OK);
        expect_here(&world, SMALL);
        expect_bytes(&world);
    }
    world_close(&world);
}

/* The bytes stay until the last get has them. */
static void a_get_goes_on_though_the_object_comes_back_and_goes(void **state)
{
    (void)state;
    world_t world;
    open_with(&world, LARGE);
    say_spill(&world, OBJECT, 1);
    expect_answer(&world, OBJECT, 1, false, TOW_CODE_OK);
    say_get(&world, 5, OBJECT, 1, true);
    say_unspill(&world, OBJECT, 1);
    say_release(&world, OBJECT, 1);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.get_count, 1);
    assert_int_equal(world.heard.get_code, TOW_CODE_OK);
    assert_int_equal(world.arrived_count, 1);
    assert_memory_equal(world.memory, bytes, LARGE);
    expect_here(&world, 0);
    assert_int_equal(tow_sim_device_counts(world.driver).buffers, 0);
    world_close(&world);
}

/* -- Refusals -------------------------------------------------------------------- */

static void what_cannot_be_spilled_is_refused_and_stays(void **state)
{
    (void)state;
    world_t world;
    open_with(&world, SMALL);
    say_spill(&world, 99, 1);
    expect_answer(&world, 99, 1, false, TOW_NOT_FOUND);
    say_regroup(&world, OTHER, (uint64_t[]){OBJECT, OBJECT}, 1);
    say_spill(&world, OBJECT, 1); /* Its memory would not be free. */
    expect_answer(&world, OBJECT, 1, false, TOW_FAILED_PRECONDITION);
    expect_part(world.heard.spill_message, "shares its memory");
    say_release(&world, OTHER, 1);
    say_spill(&world, OBJECT, 2);
    say_spill(&world, OBJECT, 3); /* It is on its way already. */
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.spill_count, 2);
    say_spill(&world, OBJECT, 4); /* It is away. */
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.spill_code, TOW_FAILED_PRECONDITION);
    expect_away(&world, SMALL);
    expect_bytes(&world);
    say_release(&world, OBJECT, 1);
    run_for(&world, SECOND / 10);
    expect_nothing(&world);
    world_close(&world);
}

static void what_a_spilled_object_is_asked_for_fails(void **state)
{
    (void)state;
    world_t world;
    open_with(&world, SMALL);
    say_load(&world, COPY, copy_text);
    say_program(&world, RUN_COPY, COPY);
    say_spill(&world, OBJECT, 1);
    expect_answer(&world, OBJECT, 1, false, TOW_CODE_OK);
    say_grant(&world, 1, RUN_COPY, OBJECT); /* The controller never would. */
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.failure_count, 1);
    assert_int_equal(world.heard.failures[0].code, TOW_FAILED_PRECONDITION);
    expect_part(world.heard.failures[0].message, "is in host memory");
    say_release(&world, OBJECT, 1);
    say_release(&world, 1000, 1);
    run_for(&world, SECOND / 10);
    expect_here(&world, 0);
    world_close(&world);
}

static void an_unspill_of_another_time_ends_the_session(void **state)
{
    (void)state;
    world_t world;
    open_with(&world, SMALL);
    say_unspill(&world, OBJECT, 7); /* It never went: all is well. */
    expect_answer(&world, OBJECT, 7, true, TOW_CODE_OK);
    say_spill(&world, OBJECT, 8);
    expect_answer(&world, OBJECT, 8, false, TOW_CODE_OK);
    say_unspill(&world, OBJECT, 7);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.gone_count, 1);
    expect_part(world.heard.gone_message, "is not spilled, or another time");
    run_for(&world, 10 * SECOND); /* It has joined anew, with nothing. */
    expect_nothing(&world);
    world_close(&world);
}

/* -- Ends in the midst of it ------------------------------------------------------- */

#define MOMENTS 40

/* So far into the way there and back, in steps that end after all of it. */
static void go_until(world_t *world, int moment)
{
    open_with(world, LARGE);
    say_spill(world, OBJECT, 1);
    if (moment >= MOMENTS / 2) {
        expect_answer(world, OBJECT, 1, false, TOW_CODE_OK);
        say_unspill(world, OBJECT, 1);
    }
    run_for(world, moment % (MOMENTS / 2) * 4000);
}

static void an_object_is_released_at_any_moment(void **state)
{
    (void)state;
    for (int moment = 0; moment < MOMENTS; moment++) {
        world_t world;
        go_until(&world, moment);
        say_release(&world, OBJECT, 1);
        run_for(&world, SECOND);
        expect_nothing(&world);
        world_close(&world);
    }
}

static void the_controller_dies_at_any_moment(void **state)
{
    (void)state;
    for (int moment = 0; moment < MOMENTS; moment++) {
        world_t world;
        go_until(&world, moment);
        tow_session_close(world.session, TOW_OK, (tow_closed_t){0});
        world.session = NULL;
        run_for(&world, 10 * SECOND);
        expect_nothing(&world);
        world_close(&world);
    }
}

static void a_worker_closes_at_any_moment(void **state)
{
    (void)state;
    for (int moment = 0; moment < MOMENTS; moment++) {
        world_t world;
        go_until(&world, moment);
        world_close(&world);
    }
}

static void a_worker_dies_at_any_moment(void **state)
{
    (void)state;
    for (int moment = 0; moment < MOMENTS; moment++) {
        world_t world;
        go_until(&world, moment);
        tow_sim_crash(world.worker_node);
        run_for(&world, SECOND);
        world_close(&world);
    }
}

TOW_TEST_MAIN(
    cmocka_unit_test(an_object_goes_and_comes_back_with_its_bytes),
    cmocka_unit_test(a_get_goes_on_though_the_object_comes_back_and_goes),
    cmocka_unit_test(what_cannot_be_spilled_is_refused_and_stays),
    cmocka_unit_test(what_a_spilled_object_is_asked_for_fails),
    cmocka_unit_test(an_unspill_of_another_time_ends_the_session),
    cmocka_unit_test(an_object_is_released_at_any_moment),
    cmocka_unit_test(the_controller_dies_at_any_moment),
    cmocka_unit_test(a_worker_closes_at_any_moment),
    cmocka_unit_test(a_worker_dies_at_any_moment))
