/* Values that are here before they are asked for, against a controller that the
 * tests write themselves. */
#include "client/client_impl.h"
#include "client/world_testing_impl.h"

/* A program of one argument and one result, of two shards of 16 bytes. */
typedef struct play {
    world_t world;
    tow_slice_t *slice;
    tow_function_t *function;
    tow_program_t *program;
    tow_array_t *x;
    uint64_t run; /* the last that was heard */
} play_t;

static void open_play(play_t *play)
{
    world_connect(&play->world);
    play->slice = open_slice(&play->world);
    play->function = compile(&play->world, play->slice);
    play->program = call_of(&play->world, play->function, play->slice);
    play->x = make_array(&play->world, play->slice);
}

static void drop_play(play_t *play)
{
    tow_array_drop(play->x);
    tow_function_drop(play->function);
    tow_slice_drop(play->slice);
}

static void close_play(play_t *play)
{
    drop_play(play);
    world_close(&play->world);
}

static tow_array_t *call(play_t *play)
{
    tow_array_t *y;
    must(tow_program_start(play->program, &play->x, 1, &y, 1));
    play->run = HEAR(&play->world, RUN, run)->run;
    return y;
}

/* Looks at a shard that must be asked for, and hears the question. */
static void look(play_t *play, tow_array_t *array, size_t shard)
{
    uint8_t bytes[16];
    tow_settling_t answer = {0};
    must(tow_download_start(array, shard, bytes, 16, &answer, NULL));
    const tow_msg_get_t *get = HEAR(&play->world, GET, get);
    assert_int_equal(get->shard, shard);
    say_got(&play->world, get->request, "the first answer", 16, NULL);
    expect_settled(&answer);
    assert_memory_equal(bytes, "the first answer", 16);
}

/* ... that is here. */
static void look_here(play_t *play, tow_array_t *array, size_t shard,
                      const char *expected)
{
    uint8_t bytes[16];
    tow_settling_t answer = {0};
    must(tow_download_start(array, shard, bytes, 16, &answer, NULL));
    assert_true(answer.settled);
    must(answer.error);
    assert_memory_equal(bytes, expected, 16);
    hear_nothing(&play->world);
}

/* So that the next results are fetched. */
static void learn(play_t *play)
{
    tow_array_t *y = call(play);
    say_done(&play->world, play->run);
    look(play, y, 0);
    tow_array_drop(y);
    soon(&play->world);
    HEAR(&play->world, RELEASE, release);
}

/* -- Uploads ------------------------------------------------------------------------ */

static void few_bytes_that_were_uploaded_are_here(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    look_here(&play, play.x, 0, "0123456789abcde");
    look_here(&play, play.x, 1, "0123456789abcde"); /* It is replicated. */
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(play.x, 0, bytes, 16, NULL, make_callback(&calls)));
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_OK);
    close_play(&play);
}

static void what_is_kept_outlives_its_array(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    tow_array_t *array = make_array(&play.world, play.slice);
    tow_kept_t *kept = tow_array_kept(array, 1);
    assert_non_null(kept);
    assert_int_equal((uintptr_t)kept->bytes % 16, 0);
    tow_kept_retain(kept);
    tow_array_drop(array);
    assert_memory_equal(kept->bytes, "0123456789abcde", 16);
    tow_kept_release(kept);
    close_play(&play);
}

static void an_upload_that_failed_is_not_here(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    tow_array_t *array;
    must(start_upload(play.slice, "0123456789abcde", 16, &array));
    tow_msg_failure_t failure = failure_of(TOW_UNAVAILABLE, "worker/1 is gone");
    say_put_done(&play.world, HEAR(&play.world, PUT, put)->object, &failure);
    assert_null(tow_array_kept(array, 0));
    tow_array_drop(array);
    close_play(&play);
}

static void many_bytes_are_not_kept(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    static const uint8_t many[TOW_CLIENT_KEPT_BYTES_MAX + 1];
    tow_array_t *array;
    must(start_upload(play.slice, many, sizeof(many), &array));
    assert_null(tow_array_kept(array, 0));
    tow_array_drop(array);
    close_play(&play);
}

static void what_a_run_consumes_is_nobodys_to_look_at(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    tow_program_t *program;
    tow_value_t value;
    uint32_t node;
    must(tow_program_begin(play.world.client, "consumes", &program));
    must(tow_program_add_argument(program, play.slice, &row, true, &value));
    must(tow_program_add_call(program, play.function, play.slice, &value, 1,
                              &node));
    must(tow_program_add_result(program, (tow_value_t){.node = node},
                                play.slice, &row));
    must(tow_program_send(program));
    HEAR(&play.world, PROGRAM_ADD, program_add);
    assert_non_null(tow_array_kept(play.x, 0));
    tow_array_t *y;
    must(tow_program_start(program, &play.x, 1, &y, 1));
    assert_null(tow_array_kept(play.x, 0));
    tow_array_drop(y);
    tow_program_drop(program);
    close_play(&play);
}

/* -- Results ------------------------------------------------------------------------ */

static void what_was_looked_at_is_fetched_with_the_next_run(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    for (int i = 0; i < 3; i++) {
        tow_array_t *y = call(&play);
        const tow_msg_get_t *get = HEAR(&play.world, GET, get);
        assert_int_equal(get->object, y->id);
        assert_int_equal(get->shard, 0);
        assert_null(tow_array_kept(y, 0));
        say_got(&play.world, get->request, "that was fetched", 16, NULL);
        say_done(&play.world, play.run);
        look_here(&play, y, 0, "that was fetched");
        tow_array_drop(y);
        HEAR(&play.world, RELEASE, release);
    }
    close_play(&play);
}

static void who_asks_meanwhile_asks_nobody_again(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    tow_array_t *y = call(&play);
    const uint64_t request = HEAR(&play.world, GET, get)->request;
    uint8_t one[16], other[16];
    tow_settling_t answer = {0};
    calls_t calls = {0};
    must(tow_download_start(y, 0, one, 16, &answer, NULL));
    must(tow_download_start(y, 0, other, 16, NULL, make_callback(&calls)));
    hear_nothing(&play.world);
    assert_false(answer.settled);
    tow_array_drop(y); /* They wait without it, as they would for any get. */
    say_got(&play.world, request, "that was fetched", 16, NULL);
    expect_settled(&answer);
    assert_int_equal(calls.count, 1);
    assert_memory_equal(one, "that was fetched", 16);
    assert_memory_equal(other, "that was fetched", 16);
    close_play(&play);
}

static void what_nobody_looks_at_is_not_fetched_for_long(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    tow_array_t *y = call(&play);
    say_got(&play.world, HEAR(&play.world, GET, get)->request,
            "that was fetched", 16, NULL);
    tow_array_drop(y);
    soon(&play.world);
    HEAR(&play.world, RELEASE, release);
    y = call(&play);
    hear_nothing(&play.world);
    look(&play, y, 0); /* Until somebody does. */
    tow_array_drop(y);
    HEAR(&play.world, RELEASE, release);
    y = call(&play);
    HEAR(&play.world, GET, get);
    tow_array_drop(y); /* While it is on its way. */
    close_play(&play);
}

static void who_looks_at_all_shards_gets_all(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    tow_array_t *y = call(&play);
    look(&play, y, 0);
    look(&play, y, 1);
    tow_array_drop(y);
    soon(&play.world);
    HEAR(&play.world, RELEASE, release);
    y = call(&play);
    uint64_t first = HEAR(&play.world, GET, get)->request;
    const tow_msg_get_t *second = HEAR(&play.world, GET, get);
    assert_int_equal(second->shard, 1);
    say_got(&play.world, second->request, "the other shard.", 16, NULL);
    say_got(&play.world, first, "the first shard.", 16, NULL);
    look_here(&play, y, 0, "the first shard.");
    look_here(&play, y, 1, "the other shard.");
    tow_array_drop(y);
    close_play(&play);
}

static void a_fetch_that_fails_fails_who_waits_for_it(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    tow_array_t *y = call(&play);
    uint64_t request = HEAR(&play.world, GET, get)->request;
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(y, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_msg_failure_t failure = failure_of(TOW_DATA_LOSS, "gone");
    say_got(&play.world, request, NULL, 0, &failure);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_DATA_LOSS);
    look(&play, y, 0); /* The next one asks for itself. */
    tow_array_drop(y);
    soon(&play.world);
    HEAR(&play.world, RELEASE, release);
    y = call(&play);
    request = HEAR(&play.world, GET, get)->request;
    say_got(&play.world, request, "short", 5, NULL);
    assert_null(tow_array_kept(y, 0));
    tow_array_drop(y);
    close_play(&play);
}

static void a_result_that_failed_is_not_here(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    tow_array_t *y = call(&play);
    say_got(&play.world, HEAR(&play.world, GET, get)->request,
            "that was fetched", 16, NULL);
    assert_non_null(tow_array_kept(y, 0));
    say_failed(&play.world, play.run, TOW_ABORTED, "on another worker");
    assert_null(tow_array_kept(y, 0));
    tow_array_drop(y);
    close_play(&play);
}

/* -- The end ------------------------------------------------------------------------ */

static void who_waits_is_told_when_the_controller_is_gone(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    tow_array_t *y = call(&play);
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(y, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_sim_crash(play.world.controller_node);
    run_for(&play.world, 5 * SECOND);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_UNAVAILABLE);
    tow_array_drop(y);
    close_play(&play);
}

static void a_dead_client_leaves_no_memory(void **state)
{
    (void)state;
    play_t play;
    open_play(&play);
    learn(&play);
    tow_array_t *y = call(&play);
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(y, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_sim_crash(play.world.client_node);
    tow_client_abandon(play.world.client);
    assert_int_equal(calls.count, 0);
    tow_array_drop(y);
    drop_play(&play);
    tow_client_free(play.world.client);
    run_for(&play.world, 5 * SECOND);
    world_free(&play.world);
}

TOW_TEST_MAIN(cmocka_unit_test(few_bytes_that_were_uploaded_are_here),
              cmocka_unit_test(what_is_kept_outlives_its_array),
              cmocka_unit_test(an_upload_that_failed_is_not_here),
              cmocka_unit_test(many_bytes_are_not_kept),
              cmocka_unit_test(what_a_run_consumes_is_nobodys_to_look_at),
              cmocka_unit_test(what_was_looked_at_is_fetched_with_the_next_run),
              cmocka_unit_test(who_asks_meanwhile_asks_nobody_again),
              cmocka_unit_test(what_nobody_looks_at_is_not_fetched_for_long),
              cmocka_unit_test(who_looks_at_all_shards_gets_all),
              cmocka_unit_test(a_fetch_that_fails_fails_who_waits_for_it),
              cmocka_unit_test(a_result_that_failed_is_not_here),
              cmocka_unit_test(who_waits_is_told_when_the_controller_is_gone),
              cmocka_unit_test(a_dead_client_leaves_no_memory))
