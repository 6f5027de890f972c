/* The client's state machine with a scripted controller. */
#include "client/client_impl.h"
#include "client/fixture_testing_impl.h"

/* -- Connecting ------------------------------------------------------------------- */

static void a_client_opens_and_leaves(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    must(tow_client_disconnect_cause(fixture.client));
    fixture_close(&fixture);
}

static void a_refused_client_reports_the_reason(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_refused(&fixture);
    expect_failed(tow_client_opening(fixture.client), TOW_RESOURCE_EXHAUSTED,
                  "no more numbers");
    fixture_close(&fixture);
}

static void a_client_without_a_controller_gives_up(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    tow_sim_crash(fixture.controller_node);
    run_for(&fixture, 10 * SECOND);
    expect_failed(tow_client_opening(fixture.client), TOW_UNAVAILABLE,
                  "nobody listens");
    fixture_close(&fixture);
}

static void an_invalid_message_disconnects_the_controller(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_array_t *array = make_array(&fixture, slice);
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    send_message(&fixture, TOW_MESSAGE_GRANT, &grant.base);
    soon(&fixture);
    expect_error(tow_client_disconnect_cause(fixture.client), TOW_INTERNAL,
                 "Grant");
    tow_array_t *other;
    tow_status_t status = start_upload(slice, "x", 1, &other);
    expect_error(status, TOW_INTERNAL, "Grant");
    tow_status_release(status);
    tow_array_release_locked(array);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

/* -- Slices, functions, programs ------------------------------------------- */

static void answers_settle_completions(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture), *second;
    tow_slice_options_t options = {
        .struct_size = sizeof(options), .dims = {4, 2}, .island = "east"};
    tow_device_t device = {.struct_size = sizeof(device)};
    must(tow_slice_device(slice, 1, &device));
    assert_string_equal(device.island, "west");
    must(tow_slice_open_start(fixture.client, &options, &second));
    const tow_msg_slice_open_t *open = EXPECT(&fixture, SLICE_OPEN, slice_open);
    assert_int_equal(open->n_dims, 2);
    assert_string_equal(open->island, "east");
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    tow_msg_failure_t failure = failure_of(TOW_NOT_FOUND, "no such devices");
    opened.slice = open->slice;
    opened.failure = &failure;
    send_message(&fixture, TOW_MESSAGE_SLICE_OPENED, &opened.base);
    soon(&fixture);
    expect_failed(tow_slice_opening(second), TOW_NOT_FOUND, "no such devices");
    send_slice(&fixture, opened.slice, 2); /* the second has no effect */
    send_slice(&fixture, 99, 2);           /* and this is unsolicited */
    tow_function_t *function = compile(&fixture, slice);
    send_compiled(&fixture, 77);
    tow_function_release_locked(function);
    assert_int_equal(
        EXPECT(&fixture, FUNCTION_DISCARD, function_discard)->function, 1);
    tow_slice_release_locked(second);
    tow_slice_release_locked(slice);
    assert_int_equal(EXPECT(&fixture, SLICE_CLOSE, slice_close)->slice, 2);
    assert_int_equal(EXPECT(&fixture, SLICE_CLOSE, slice_close)->slice, 1);
    fixture_close(&fixture);
}

static void an_invalid_signature_fails_the_function(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_function_t *function;
    tow_source_t source = {
        .struct_size = sizeof(source), .bytes = "text", .size = 4};
    must(tow_function_compile_start(slice, &source, &function));
    tow_msg_compile_done_t done = TOW_MSG_COMPILE_DONE_INIT;
    done.function = EXPECT(&fixture, COMPILE, compile)->function;
    uint8_t garbage[] = {0xff, 0xff, 0xff};
    done.signature = (ProtobufCBinaryData){3, garbage};
    send_message(&fixture, TOW_MESSAGE_COMPILE_DONE, &done.base);
    soon(&fixture);
    assert_true(tow_function_compiling(function)->settled);
    assert_true(tow_function_compiling(function)->error != TOW_OK);
    tow_function_release_locked(function);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

/* -- Runs -------------------------------------------------------------------------- */

static void a_run_is_one_message_and_settles_its_results(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_function_t *function = compile(&fixture, slice);
    tow_array_t *x = make_array(&fixture, slice), *y, *z;
    tow_program_t *program = call_of(&fixture, function, slice);
    must(tow_program_start(program, &x, 1, &y, 1));
    must(tow_program_start(program, &y, 1, &z, 1)); /* before the answer */
    const tow_msg_run_t *run = EXPECT(&fixture, RUN, run);
    assert_int_equal(run->n_arguments, 1);
    assert_int_equal(run->arguments[0], 1);
    assert_int_equal(run->first_result, 2);
    assert_int_equal(EXPECT(&fixture, RUN, run)->arguments[0], 2);
    calls_t calls = {0};
    tow_array_call_when_ready(y, make_callback(&calls));
    expect_no_message(&fixture);
    assert_false(tow_array_value(y)->settled);
    send_done(&fixture, 1);
    expect_settled(tow_array_value(y));
    assert_int_equal(calls.count, 1);
    send_done(&fixture, 1); /* the second has no effect */
    assert_int_equal(calls.count, 1);
    send_failed(&fixture, 2, TOW_INTERNAL, "device on fire");
    expect_failed(tow_array_value(z), TOW_INTERNAL, "on fire");
    tow_array_call_when_ready(z, make_callback(&calls));
    assert_int_equal(calls.count, 2);
    assert_int_equal(calls.code, TOW_INTERNAL);
    assert_int_equal(tow_client_run_count(fixture.client), 0);
    tow_array_release_locked(y);
    tow_array_release_locked(z);
    const tow_msg_release_t *release = EXPECT(&fixture, RELEASE, release);
    assert_int_equal(release->n_firsts, 1); /* one range */
    assert_int_equal(release->firsts[0], 2);
    assert_int_equal(release->counts[0], 2);
    tow_array_release_locked(x);
    tow_function_release_locked(function);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

static void an_invalid_run_is_refused_locally(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_function_t *function = compile(&fixture, slice);
    tow_program_t *program = call_of(&fixture, function, slice);
    tow_array_t *none = NULL, *result;
    tow_status_t status = tow_program_start(program, &none, 1, &result, 1);
    expect_error(status, TOW_INVALID_ARGUMENT, "argument 0");
    tow_status_release(status);
    status = tow_program_start(program, NULL, 0, &result, 1);
    expect_error(status, TOW_INVALID_ARGUMENT, "0 arguments");
    tow_status_release(status);
    expect_no_message(&fixture);
    tow_function_release_locked(function);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

static void runs_of_a_refused_program_report_the_reason(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_function_t *function = compile(&fixture, slice);
    tow_array_t *x = make_array(&fixture, slice), *y;
    tow_program_t *program = call_of(&fixture, function, slice);
    must(tow_program_start(program, &x, 1, &y, 1));
    tow_msg_program_added_t added = TOW_MSG_PROGRAM_ADDED_INIT;
    tow_msg_failure_t failure =
        failure_of(TOW_UNAVAILABLE, "the slice is lost");
    added.program = 1;
    added.failure = &failure;
    send_message(&fixture, TOW_MESSAGE_PROGRAM_ADDED, &added.base);
    send_failed(&fixture, 1, TOW_NOT_FOUND, "there is no program 1");
    expect_failed(tow_program_adding(program), TOW_UNAVAILABLE, "lost");
    expect_failed(tow_array_value(y), TOW_UNAVAILABLE, "lost");
    tow_array_release_locked(x);
    tow_array_release_locked(y);
    tow_function_release_locked(function);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

static void results_may_be_released_before_their_run_completes(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_function_t *function = compile(&fixture, slice);
    tow_array_t *x = make_array(&fixture, slice), *y;
    tow_program_t *program = call_of(&fixture, function, slice);
    must(tow_program_start(program, &x, 1, &y, 1));
    tow_array_release_locked(x);
    tow_array_release_locked(y);
    tow_function_release_locked(function);
    tow_slice_release_locked(slice);
    send_done(&fixture, 1);
    assert_int_equal(tow_client_run_count(fixture.client), 0);
    fixture_close(&fixture);
}

/* -- Transfers ---------------------------------------------------------------------- */

static void large_uploads_are_written_to_their_targets(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_array_t *array;
    memset(large, 0x5a, sizeof(large));
    must(start_upload(slice, large, sizeof(large), &array));
    assert_false(EXPECT(&fixture, PUT, put)->inlined);
    send_put_opened(&fixture, 1);
    run_for(&fixture, SECOND);
    assert_int_equal(fixture.arrived_count, 2);
    assert_memory_equal(fixture.memory, large, sizeof(large));
    assert_false(tow_array_value(array)->settled);
    send_put_done(&fixture, 1, NULL);
    expect_settled(tow_array_value(array));
    tow_array_release_locked(array);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

static void uploads_under_way_are_limited_in_total(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_array_t *array;
    const uint64_t most = TOW_CLIENT_UPLOAD_BYTES_MAX;
    /* A single upload may be larger than that. */
    assert_true(tow_client_has_room_for(fixture.client, most + 1));
    must(start_upload(slice, large, sizeof(large), &array));
    EXPECT(&fixture, PUT, put);
    assert_true(tow_client_has_room_for(fixture.client, most - sizeof(large)));
    assert_false(
        tow_client_has_room_for(fixture.client, most - sizeof(large) + 1));
    assert_true(tow_client_has_room(fixture.client)); /* For runs. */
    send_put_done(&fixture, 1, NULL);
    expect_settled(tow_array_value(array));
    assert_true(tow_client_has_room_for(fixture.client, most));
    tow_array_release_locked(array);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

static void a_failed_upload_is_reported_to_the_controller(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_array_t *array;
    must(start_upload(slice, large, sizeof(large), &array));
    EXPECT(&fixture, PUT, put);
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    tow_msg_lane_target_t *list[] = {&target, &target};
    uint8_t nowhere[] = {1, 2, 3};
    target.lane_address = (ProtobufCBinaryData){3, nowhere};
    tow_msg_put_opened_t opened = TOW_MSG_PUT_OPENED_INIT;
    opened.object = 1;
    opened.targets = list;
    opened.n_targets = 2;
    send_message(&fixture, TOW_MESSAGE_PUT_OPENED, &opened.base);
    run_for(&fixture, 10 * SECOND);
    const tow_msg_put_done_t *done = EXPECT(&fixture, PUT_DONE, put_done);
    assert_int_equal(done->object, 1);
    assert_non_null(done->failure);
    expect_no_message(&fixture); /* once */
    assert_false(tow_array_value(array)->settled);
    tow_msg_failure_t failure = failure_of(TOW_UNAVAILABLE, "worker/1 is gone");
    send_put_done(&fixture, 1, &failure);
    expect_failed(tow_array_value(array), TOW_UNAVAILABLE, "worker/1");
    tow_array_release_locked(array);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

static void small_downloads_come_in_the_answer(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice = open_slice(&fixture);
    tow_function_t *function = compile(&fixture, slice);
    tow_array_t *x = make_array(&fixture, slice), *array;
    tow_program_t *program = call_of(&fixture, function, slice);
    must(tow_program_start(program, &x, 1, &array, 1));
    EXPECT(&fixture, RUN, run);
    uint8_t bytes[16] = {0};
    tow_completion_t answer = {0};
    must(tow_download_start(array, 1, bytes, 16, &answer, NULL));
    const tow_msg_get_t *get = EXPECT(&fixture, GET, get);
    assert_int_equal(get->shard, 1);
    assert_null(get->target);
    send_get_done(&fixture, get->request, "fedcba987654321", 16, NULL);
    expect_settled(&answer);
    assert_memory_equal(bytes, "fedcba987654321", 16);
    answer = (tow_completion_t){0};
    must(tow_download_start(array, 0, bytes, 16, &answer, NULL));
    uint64_t request = EXPECT(&fixture, GET, get)->request;
    send_get_done(&fixture, request, "short", 5, NULL);
    expect_failed(&answer, TOW_INTERNAL, "5 bytes");
    tow_status_release(answer.error);
    send_get_done(&fixture, request, "short", 5,
                  NULL); /* nothing waits for it any more */
    tow_status_t status =
        tow_download_start(array, 2, bytes, 16, &answer, NULL);
    expect_error(status, TOW_OUT_OF_RANGE, "shard 2");
    tow_status_release(status);
    calls_t calls = {0};
    must(tow_download_start(array, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_msg_failure_t failure = failure_of(TOW_DATA_LOSS, "gone");
    send_get_done(&fixture, EXPECT(&fixture, GET, get)->request, NULL, 0,
                  &failure);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_DATA_LOSS);
    tow_array_release_locked(x);
    tow_array_release_locked(array);
    tow_function_release_locked(function);
    tow_slice_release_locked(slice);
    fixture_close(&fixture);
}

/* -- Closing and disconnecting --------------------------------------------- */

static void all_operations_fail_when_the_controller_disconnects(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    operations_t operations;
    start_operations(&fixture, &operations);
    tow_sim_crash(fixture.controller_node);
    run_for(&fixture, 5 * SECOND);
    expect_notified(&operations, TOW_UNAVAILABLE);
    expect_error(tow_client_disconnect_cause(fixture.client), TOW_UNAVAILABLE,
                 "gone");
    release_operations(&operations);
    fixture_close(&fixture);
    tow_free(operations.bytes);
}

static void closing_a_client_cancels_all_operations(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    operations_t operations;
    start_operations(&fixture, &operations);
    tow_client_shut(fixture.client);
    run_for(&fixture, SECOND);
    expect_notified(&operations, TOW_CANCELLED);
    release_operations(&operations);
    fixture_close(&fixture);
    tow_free(operations.bytes);
}

static void a_crashed_client_leaks_nothing(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    operations_t operations;
    start_operations(&fixture, &operations);
    tow_sim_crash(fixture.client_node);
    tow_client_discard(fixture.client);
    assert_int_equal(operations.run.count + operations.small.count +
                         operations.large_get.count,
                     0);
    release_operations(&operations);
    tow_client_free(fixture.client);
    run_for(&fixture, 5 * SECOND);
    assert_int_equal(fixture.disconnect_count, 1);
    fixture_free(&fixture);
    tow_free(operations.bytes);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_client_opens_and_leaves),
    cmocka_unit_test(a_refused_client_reports_the_reason),
    cmocka_unit_test(a_client_without_a_controller_gives_up),
    cmocka_unit_test(an_invalid_message_disconnects_the_controller),
    cmocka_unit_test(answers_settle_completions),
    cmocka_unit_test(an_invalid_signature_fails_the_function),
    cmocka_unit_test(a_run_is_one_message_and_settles_its_results),
    cmocka_unit_test(an_invalid_run_is_refused_locally),
    cmocka_unit_test(runs_of_a_refused_program_report_the_reason),
    cmocka_unit_test(results_may_be_released_before_their_run_completes),
    cmocka_unit_test(large_uploads_are_written_to_their_targets),
    cmocka_unit_test(uploads_under_way_are_limited_in_total),
    cmocka_unit_test(a_failed_upload_is_reported_to_the_controller),
    cmocka_unit_test(small_downloads_come_in_the_answer),
    cmocka_unit_test(all_operations_fail_when_the_controller_disconnects),
    cmocka_unit_test(closing_a_client_cancels_all_operations),
    cmocka_unit_test(a_crashed_client_leaks_nothing))
