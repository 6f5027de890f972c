/* The client's state machine against a controller that the tests write
 * themselves. */
#include "client/client_impl.h"
#include "client/world_testing_impl.h"

/* -- Connecting ------------------------------------------------------------------- */

static void a_client_opens_and_leaves(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    must(tow_client_lost(world.client));
    world_close(&world);
}

static void a_client_that_is_refused_knows_why(void **state)
{
    (void)state;
    world_t world;
    world_open(&world);
    say_refused(&world);
    expect_failed(tow_client_opening(world.client), TOW_RESOURCE_EXHAUSTED,
                  "no more numbers");
    world_close(&world);
}

static void a_client_without_a_controller_gives_up(void **state)
{
    (void)state;
    world_t world;
    world_open(&world);
    tow_sim_crash(world.controller_node);
    run_for(&world, 10 * SECOND);
    expect_failed(tow_client_opening(world.client), TOW_UNAVAILABLE,
                  "nobody listens");
    world_close(&world);
}

static void nonsense_of_the_controller_loses_the_cluster(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_array_t *array = make_array(&world, slice);
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    say(&world, TOW_MESSAGE_GRANT, &grant.base);
    soon(&world);
    expect_error(tow_client_lost(world.client), TOW_INTERNAL, "Grant");
    tow_array_t *other;
    tow_status_t status = start_upload(slice, "x", 1, &other);
    expect_error(status, TOW_INTERNAL, "Grant");
    tow_status_release(status);
    tow_array_drop(array);
    tow_slice_drop(slice);
    world_close(&world);
}

/* -- Things ------------------------------------------------------------------------ */

static void answers_settle_what_was_asked(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world), *second;
    tow_slice_options_t options = {
        .struct_size = sizeof(options), .dims = {4, 2}, .island = "east"};
    tow_device_t device = {.struct_size = sizeof(device)};
    must(tow_slice_device(slice, 1, &device));
    assert_string_equal(device.island, "west");
    must(tow_slice_ask(world.client, &options, &second));
    const tow_msg_slice_open_t *open = HEAR(&world, SLICE_OPEN, slice_open);
    assert_int_equal(open->n_dims, 2);
    assert_string_equal(open->island, "east");
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    tow_msg_failure_t failure = failure_of(TOW_NOT_FOUND, "no such devices");
    opened.slice = open->slice;
    opened.failure = &failure;
    say(&world, TOW_MESSAGE_SLICE_OPENED, &opened.base);
    soon(&world);
    expect_failed(tow_slice_opening(second), TOW_NOT_FOUND, "no such devices");
    say_slice(&world, opened.slice, 2); /* once is enough */
    say_slice(&world, 99, 2);           /* and nobody asked for this */
    tow_function_t *function = compile(&world, slice);
    say_compiled(&world, 77);
    tow_function_drop(function);
    assert_int_equal(HEAR(&world, FUNCTION_DROP, function_drop)->function, 1);
    tow_slice_drop(second);
    tow_slice_drop(slice);
    assert_int_equal(HEAR(&world, SLICE_CLOSE, slice_close)->slice, 2);
    assert_int_equal(HEAR(&world, SLICE_CLOSE, slice_close)->slice, 1);
    world_close(&world);
}

static void a_signature_that_makes_no_sense_fails_the_function(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_function_t *function;
    tow_source_t source = {
        .struct_size = sizeof(source), .bytes = "text", .size = 4};
    must(tow_function_ask(slice, &source, &function));
    tow_msg_compile_done_t done = TOW_MSG_COMPILE_DONE_INIT;
    done.function = HEAR(&world, COMPILE, compile)->function;
    uint8_t garbage[] = {0xff, 0xff, 0xff};
    done.signature = (ProtobufCBinaryData){3, garbage};
    say(&world, TOW_MESSAGE_COMPILE_DONE, &done.base);
    soon(&world);
    assert_true(tow_function_compiling(function)->settled);
    assert_true(tow_function_compiling(function)->error != TOW_OK);
    tow_function_drop(function);
    tow_slice_drop(slice);
    world_close(&world);
}

/* -- Runs -------------------------------------------------------------------------- */

static void a_run_is_one_message_and_settles_its_results(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_function_t *function = compile(&world, slice);
    tow_array_t *x = make_array(&world, slice), *y, *z;
    tow_program_t *program = call_of(&world, function, slice);
    must(tow_program_start(program, &x, 1, &y, 1));
    must(tow_program_start(program, &y, 1, &z, 1)); /* ahead of the answer */
    const tow_msg_run_t *run = HEAR(&world, RUN, run);
    assert_int_equal(run->n_arguments, 1);
    assert_int_equal(run->arguments[0], 1);
    assert_int_equal(run->first_result, 2);
    assert_int_equal(HEAR(&world, RUN, run)->arguments[0], 2);
    calls_t calls = {0};
    tow_array_call_when_ready(y, make_callback(&calls));
    hear_nothing(&world);
    assert_false(tow_array_value(y)->settled);
    say_done(&world, 1);
    expect_settled(tow_array_value(y));
    assert_int_equal(calls.count, 1);
    say_done(&world, 1); /* nothing happens twice */
    assert_int_equal(calls.count, 1);
    say_failed(&world, 2, TOW_INTERNAL, "device on fire");
    expect_failed(tow_array_value(z), TOW_INTERNAL, "on fire");
    tow_array_call_when_ready(z, make_callback(&calls));
    assert_int_equal(calls.count, 2);
    assert_int_equal(calls.code, TOW_INTERNAL);
    assert_int_equal(tow_client_run_count(world.client), 0);
    tow_array_drop(y);
    tow_array_drop(z);
    const tow_msg_release_t *release = HEAR(&world, RELEASE, release);
    assert_int_equal(release->n_firsts, 1); /* one range */
    assert_int_equal(release->firsts[0], 2);
    assert_int_equal(release->counts[0], 2);
    tow_array_drop(x);
    tow_function_drop(function);
    tow_slice_drop(slice);
    world_close(&world);
}

static void a_wrong_run_is_refused_here(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_function_t *function = compile(&world, slice);
    tow_program_t *program = call_of(&world, function, slice);
    tow_array_t *none = NULL, *result;
    tow_status_t status = tow_program_start(program, &none, 1, &result, 1);
    expect_error(status, TOW_INVALID_ARGUMENT, "argument 0");
    tow_status_release(status);
    status = tow_program_start(program, NULL, 0, &result, 1);
    expect_error(status, TOW_INVALID_ARGUMENT, "0 arguments");
    tow_status_release(status);
    hear_nothing(&world);
    tow_function_drop(function);
    tow_slice_drop(slice);
    world_close(&world);
}

static void runs_of_a_refused_program_say_why(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_function_t *function = compile(&world, slice);
    tow_array_t *x = make_array(&world, slice), *y;
    tow_program_t *program = call_of(&world, function, slice);
    must(tow_program_start(program, &x, 1, &y, 1));
    tow_msg_program_added_t added = TOW_MSG_PROGRAM_ADDED_INIT;
    tow_msg_failure_t failure =
        failure_of(TOW_UNAVAILABLE, "the slice is lost");
    added.program = 1;
    added.failure = &failure;
    say(&world, TOW_MESSAGE_PROGRAM_ADDED, &added.base);
    say_failed(&world, 1, TOW_NOT_FOUND, "there is no program 1");
    expect_failed(tow_program_adding(program), TOW_UNAVAILABLE, "lost");
    expect_failed(tow_array_value(y), TOW_UNAVAILABLE, "lost");
    tow_array_drop(x);
    tow_array_drop(y);
    tow_function_drop(function);
    tow_slice_drop(slice);
    world_close(&world);
}

static void results_may_go_before_their_run_is_done(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_function_t *function = compile(&world, slice);
    tow_array_t *x = make_array(&world, slice), *y;
    tow_program_t *program = call_of(&world, function, slice);
    must(tow_program_start(program, &x, 1, &y, 1));
    tow_array_drop(x);
    tow_array_drop(y);
    tow_function_drop(function);
    tow_slice_drop(slice);
    say_done(&world, 1);
    assert_int_equal(tow_client_run_count(world.client), 0);
    world_close(&world);
}

/* -- Transfers ---------------------------------------------------------------------- */

static void large_uploads_are_written_where_they_are_told(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_array_t *array;
    memset(large, 0x5a, sizeof(large));
    must(start_upload(slice, large, sizeof(large), &array));
    assert_false(HEAR(&world, PUT, put)->inlined);
    say_put_opened(&world, 1);
    run_for(&world, SECOND);
    assert_int_equal(world.arrived_count, 2);
    assert_memory_equal(world.memory, large, sizeof(large));
    assert_false(tow_array_value(array)->settled);
    say_put_done(&world, 1, NULL);
    expect_settled(tow_array_value(array));
    tow_array_drop(array);
    tow_slice_drop(slice);
    world_close(&world);
}

static void uploads_under_way_have_a_bound_together(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_array_t *array;
    const uint64_t most = TOW_CLIENT_UPLOAD_BYTES_MAX;
    /* Alone it may be larger than that. */
    assert_true(tow_client_has_room_for(world.client, most + 1));
    must(start_upload(slice, large, sizeof(large), &array));
    HEAR(&world, PUT, put);
    assert_true(tow_client_has_room_for(world.client, most - sizeof(large)));
    assert_false(
        tow_client_has_room_for(world.client, most - sizeof(large) + 1));
    assert_true(tow_client_has_room(world.client)); /* For runs. */
    say_put_done(&world, 1, NULL);
    expect_settled(tow_array_value(array));
    assert_true(tow_client_has_room_for(world.client, most));
    tow_array_drop(array);
    tow_slice_drop(slice);
    world_close(&world);
}

static void an_upload_that_cannot_arrive_is_told(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_array_t *array;
    must(start_upload(slice, large, sizeof(large), &array));
    HEAR(&world, PUT, put);
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    tow_msg_lane_target_t *list[] = {&target, &target};
    uint8_t nowhere[] = {1, 2, 3};
    target.lane_address = (ProtobufCBinaryData){3, nowhere};
    tow_msg_put_opened_t opened = TOW_MSG_PUT_OPENED_INIT;
    opened.object = 1;
    opened.targets = list;
    opened.n_targets = 2;
    say(&world, TOW_MESSAGE_PUT_OPENED, &opened.base);
    run_for(&world, 10 * SECOND);
    const tow_msg_put_done_t *told = HEAR(&world, PUT_DONE, put_done);
    assert_int_equal(told->object, 1);
    assert_non_null(told->failure);
    hear_nothing(&world); /* once */
    assert_false(tow_array_value(array)->settled);
    tow_msg_failure_t failure = failure_of(TOW_UNAVAILABLE, "worker/1 is gone");
    say_put_done(&world, 1, &failure);
    expect_failed(tow_array_value(array), TOW_UNAVAILABLE, "worker/1");
    tow_array_drop(array);
    tow_slice_drop(slice);
    world_close(&world);
}

static void small_downloads_come_in_the_answer(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice = open_slice(&world);
    tow_function_t *function = compile(&world, slice);
    tow_array_t *x = make_array(&world, slice), *array;
    tow_program_t *program = call_of(&world, function, slice);
    must(tow_program_start(program, &x, 1, &array, 1));
    HEAR(&world, RUN, run);
    uint8_t bytes[16] = {0};
    tow_settling_t answer = {0};
    must(tow_download_start(array, 1, bytes, 16, &answer, NULL));
    const tow_msg_get_t *get = HEAR(&world, GET, get);
    assert_int_equal(get->shard, 1);
    assert_null(get->target);
    say_got(&world, get->request, "fedcba987654321", 16, NULL);
    expect_settled(&answer);
    assert_memory_equal(bytes, "fedcba987654321", 16);
    answer = (tow_settling_t){0};
    must(tow_download_start(array, 0, bytes, 16, &answer, NULL));
    uint64_t request = HEAR(&world, GET, get)->request;
    say_got(&world, request, "short", 5, NULL);
    expect_failed(&answer, TOW_INTERNAL, "5 bytes");
    tow_status_release(answer.error);
    say_got(&world, request, "short", 5, NULL); /* nobody waits any more */
    tow_status_t status =
        tow_download_start(array, 2, bytes, 16, &answer, NULL);
    expect_error(status, TOW_OUT_OF_RANGE, "shard 2");
    tow_status_release(status);
    calls_t calls = {0};
    must(tow_download_start(array, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_msg_failure_t failure = failure_of(TOW_DATA_LOSS, "gone");
    say_got(&world, HEAR(&world, GET, get)->request, NULL, 0, &failure);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_DATA_LOSS);
    tow_array_drop(x);
    tow_array_drop(array);
    tow_function_drop(function);
    tow_slice_drop(slice);
    world_close(&world);
}

/* -- The end ------------------------------------------------------------------------ */

static void all_futures_fail_when_the_controller_is_gone(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    busy_t busy;
    make_busy(&world, &busy);
    tow_sim_crash(world.controller_node);
    run_for(&world, 5 * SECOND);
    expect_told(&busy, TOW_UNAVAILABLE);
    expect_error(tow_client_lost(world.client), TOW_UNAVAILABLE, "gone");
    drop_busy(&busy);
    world_close(&world);
    tow_free(busy.bytes);
}

static void all_futures_are_cancelled_when_the_client_leaves(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    busy_t busy;
    make_busy(&world, &busy);
    tow_client_shut(world.client);
    run_for(&world, SECOND);
    expect_told(&busy, TOW_CANCELLED);
    drop_busy(&busy);
    world_close(&world);
    tow_free(busy.bytes);
}

static void a_dead_client_leaves_no_memory(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    busy_t busy;
    make_busy(&world, &busy);
    tow_sim_crash(world.client_node);
    tow_client_abandon(world.client);
    assert_int_equal(busy.run.count + busy.small.count + busy.large_get.count,
                     0);
    drop_busy(&busy);
    tow_client_free(world.client);
    run_for(&world, 5 * SECOND);
    assert_int_equal(world.gone_count, 1);
    world_free(&world);
    tow_free(busy.bytes);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_client_opens_and_leaves),
    cmocka_unit_test(a_client_that_is_refused_knows_why),
    cmocka_unit_test(a_client_without_a_controller_gives_up),
    cmocka_unit_test(nonsense_of_the_controller_loses_the_cluster),
    cmocka_unit_test(answers_settle_what_was_asked),
    cmocka_unit_test(a_signature_that_makes_no_sense_fails_the_function),
    cmocka_unit_test(a_run_is_one_message_and_settles_its_results),
    cmocka_unit_test(a_wrong_run_is_refused_here),
    cmocka_unit_test(runs_of_a_refused_program_say_why),
    cmocka_unit_test(results_may_go_before_their_run_is_done),
    cmocka_unit_test(large_uploads_are_written_where_they_are_told),
    cmocka_unit_test(uploads_under_way_have_a_bound_together),
    cmocka_unit_test(an_upload_that_cannot_arrive_is_told),
    cmocka_unit_test(small_downloads_come_in_the_answer),
    cmocka_unit_test(all_futures_fail_when_the_controller_is_gone),
    cmocka_unit_test(all_futures_are_cancelled_when_the_client_leaves),
    cmocka_unit_test(a_dead_client_leaves_no_memory))
