/* Reconnecting after the controller has disconnected, with a scripted
 * controller. */
#include "client/client_impl.h"
#include "client/fixture_testing_impl.h"

static void expect_disconnected(tow_status_t take_status)
{
    expect_error(take_status, TOW_UNAVAILABLE, "restarted without it");
    tow_status_release(take_status);
}

/* Handles: a slice, a function, its program and an array, all answered. */
typedef struct handles {
    tow_slice_t *slice;
    tow_function_t *function;
    tow_program_t *program;
    tow_array_t *x;
} handles_t;

static handles_t make_handles(fixture_t *fixture)
{
    handles_t handles = {.slice = open_slice(fixture)};
    handles.function = compile(fixture, handles.slice);
    handles.x = make_array(fixture, handles.slice);
    handles.program = call_of(fixture, handles.function, handles.slice);
    return handles;
}

static void release_handles(handles_t *handles)
{
    tow_array_release_locked(handles->x);
    tow_function_release_locked(handles->function);
    tow_slice_release_locked(handles->slice);
}

static void expect_run_works(fixture_t *fixture, const handles_t *handles)
{
    tow_array_t *y;
    must(tow_program_start(handles->program, (tow_array_t *const *)&handles->x,
                           1, &y, 1));
    send_done(fixture, EXPECT(fixture, RUN, run)->run);
    expect_settled(tow_array_value(y));
    tow_array_release_locked(y);
    EXPECT(fixture, RELEASE, release);
}

/* -- After a reconnect ----------------------------------------------------- */

static void new_handles_work_after_a_reconnect(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    handles_t old = make_handles(&fixture);
    assert_int_equal(tow_client_generation(fixture.client), 0);
    fixture_disconnect(&fixture);
    expect_error(tow_client_disconnect_cause(fixture.client), TOW_UNAVAILABLE,
                 "gone");
    fixture_reconnect(&fixture);
    assert_int_equal(tow_client_generation(fixture.client), 1);
    handles_t now = make_handles(&fixture);
    assert_true(now.slice->id > old.slice->id);
    assert_true(now.function->id > old.function->id);
    assert_true(now.program->id > old.program->id);
    assert_true(now.x->id > old.x->id);
    expect_run_works(&fixture, &now);
    release_handles(&old);
    expect_no_message(&fixture);
    release_handles(&now);
    fixture_close(&fixture);
}

static void a_client_reconnects_repeatedly(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    for (uint32_t generation = 0; generation < 3; generation++) {
        handles_t handles = make_handles(&fixture);
        expect_run_works(&fixture, &handles);
        fixture_disconnect(&fixture);
        fixture_reconnect(&fixture);
        assert_int_equal(tow_client_generation(fixture.client), generation + 1);
        expect_disconnected(tow_slice_generation_status(handles.slice));
        release_handles(&handles);
        expect_no_message(&fixture);
    }
    fixture_close(&fixture);
}

/* -- Handles of earlier generations ---------------------------------------- */

static void expect_uses_refused(handles_t *old)
{
    tow_array_t *array;
    tow_function_t *function;
    tow_program_t *program;
    uint8_t bytes[16];
    tow_completion_t answer = {0};
    const uint32_t shards[] = {0, 0};
    tow_array_t *const sources[] = {old->x, old->x};
    const tow_source_t source = {
        .struct_size = sizeof(source), .bytes = "text", .size = 4};
    expect_disconnected(tow_program_start(old->program, &old->x, 1, &array, 1));
    expect_disconnected(start_upload(old->slice, "x", 1, &array));
    expect_disconnected(start_upload(old->slice, large, sizeof(large), &array));
    expect_disconnected(tow_copy_start(old->slice, old->x, 0, &array));
    expect_disconnected(
        tow_assemble_start(old->slice, sources, shards, &array));
    expect_disconnected(
        tow_download_start(old->x, 0, bytes, 16, &answer, NULL));
    expect_disconnected(
        tow_function_compile_start(old->slice, &source, &function));
    must(tow_function_program(old->function, old->slice, &program));
    expect_disconnected(tow_program_start(program, &old->x, 1, &array, 1));
    expect_disconnected(tow_array_outcome(old->x));
    assert_null(tow_array_cached_value(old->x, 0));
    char *text;
    const report_wish_t wish = {.kind = TOW_REPORT_CODE,
                                .function = old->function};
    expect_disconnected(tow_client_report_start(old->slice->client, &wish,
                                                &text, NULL, &answer));
}

static void handles_of_an_earlier_generation_are_refused_and_never_sent(
    void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    handles_t old = make_handles(&fixture);
    fixture_disconnect(&fixture);
    fixture_reconnect(&fixture);
    expect_uses_refused(&old);
    release_handles(&old);
    run_for(&fixture, SECOND);
    expect_no_message(&fixture);
    fixture_close(&fixture);
}

static void handles_of_two_generations_do_not_mix(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    handles_t old = make_handles(&fixture);
    tow_program_t *traced;
    must(tow_program_begin(fixture.client, "traced", &traced));
    fixture_disconnect(&fixture);
    fixture_reconnect(&fixture);
    handles_t now = make_handles(&fixture);
    tow_array_t *array;
    tow_value_t value;
    const uint32_t shards[] = {0, 0};
    tow_array_t *const sources[] = {now.x, old.x};
    expect_disconnected(tow_program_start(now.program, &old.x, 1, &array, 1));
    expect_disconnected(tow_copy_start(now.slice, old.x, 0, &array));
    expect_disconnected(tow_assemble_start(now.slice, sources, shards, &array));
    tow_program_t *program;
    expect_disconnected(
        tow_function_program(old.function, now.slice, &program));
    expect_disconnected(
        tow_function_program(now.function, old.slice, &program));
    must(tow_program_begin(fixture.client, "mixed", &program));
    must(tow_program_add_argument(program, old.slice, &row, false, &value));
    expect_disconnected(tow_program_send(program));
    expect_disconnected(tow_program_send(traced));
    tow_program_release_locked(program);
    tow_program_release_locked(traced);
    expect_no_message(&fixture);
    release_handles(&old);
    release_handles(&now);
    fixture_close(&fixture);
}

static void operations_under_way_fail_once_on_disconnect(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    operations_t operations;
    start_operations(&fixture, &operations);
    tow_array_t *short_lived;
    must(start_upload(operations.slice, "x", 1, &short_lived));
    tow_array_release_locked(short_lived); /* Its release is sent soon. */
    fixture_disconnect(&fixture);
    expect_notified(&operations, TOW_UNAVAILABLE);
    fixture_reconnect(&fixture);
    assert_int_equal(tow_client_run_count(fixture.client), 0);
    assert_true(tow_client_has_room_for(fixture.client, sizeof(large)));
    send_done(&fixture, 1); /* Ids of an earlier generation name nothing. */
    send_put_done(&fixture, operations.upload->id, NULL);
    expect_notified(&operations, TOW_UNAVAILABLE);
    release_operations(&operations);
    expect_no_message(&fixture);
    fixture_close(&fixture);
    tow_free(operations.bytes);
}

static void note_request(void *context, tow_callback_call_t *take_request)
{
    *(tow_callback_call_t **)context = take_request;
}

static void an_answer_to_an_earlier_generation_is_discarded(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_callback_call_t *request = NULL;
    tow_client_set_callback_server(
        fixture.client, &(tow_callback_server_t){note_request, &request});
    tow_msg_callback_t call = TOW_MSG_CALLBACK_INIT;
    call.call = 1;
    send_message(&fixture, TOW_MESSAGE_CALLBACK, &call.base);
    soon(&fixture);
    assert_non_null(request);
    fixture_disconnect(&fixture);
    fixture_reconnect(&fixture);
    tow_client_callback_reply(fixture.client, request, NULL, TOW_OK);
    expect_no_message(&fixture);
    fixture_close(&fixture);
}

/* -- While disconnected ---------------------------------------------------- */

static void a_controller_that_refuses_is_redialled(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    tow_slice_t *slice;
    const tow_slice_options_t options = {.struct_size = sizeof(options),
                                         .dims = {2}};
    fixture_disconnect(&fixture);
    tow_status_t status =
        tow_slice_open_start(fixture.client, &options, &slice);
    expect_error(status, TOW_UNAVAILABLE, "reconnecting has failed");
    tow_status_release(status);
    fixture_restart(&fixture);
    send_refused(&fixture);
    expect_error(tow_client_disconnect_cause(fixture.client), TOW_UNAVAILABLE,
                 "reconnecting has failed: no more numbers");
    run_for(&fixture, 3 * SECOND);
    send_opened(&fixture);
    must(tow_client_disconnect_cause(fixture.client));
    assert_int_equal(tow_client_generation(fixture.client), 1);
    fixture_close(&fixture);
}

static tow_status_t ended_for_good(void *context)
{
    ++*(int *)context;
    return TOW_ERROR(TOW_UNAVAILABLE, "ended for good");
}

static void a_cluster_that_has_ended_is_not_redialled(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_connect(&fixture);
    int count = 0;
    fixture.client->monitor = (tow_cluster_monitor_t){ended_for_good, &count};
    fixture_disconnect(&fixture);
    expect_error(tow_client_disconnect_cause(fixture.client), TOW_UNAVAILABLE,
                 "for good");
    fixture_restart(&fixture);
    expect_no_message(&fixture);
    assert_null(fixture.session);
    assert_int_equal(count, 1);
    fixture_close(&fixture);
}

/* Their controller disconnected a while ago. */
static handles_t disconnect_handles(fixture_t *fixture, int64_t wait_ms)
{
    fixture_connect(fixture);
    handles_t handles = make_handles(fixture);
    fixture_disconnect(fixture);
    run_for(fixture, wait_ms * SECOND / 1000);
    return handles;
}

static void a_client_may_close_at_any_point_of_a_reconnect(void **state)
{
    (void)state;
    for (int64_t wait_ms = 0; wait_ms < 2600; wait_ms += 97) {
        fixture_t fixture;
        handles_t old = disconnect_handles(&fixture, wait_ms);
        if (wait_ms % 2 == 0) fixture_restart(&fixture);
        release_handles(&old);
        fixture_close(&fixture);
    }
}

static void a_client_may_crash_at_any_point_of_a_reconnect(void **state)
{
    (void)state;
    for (int64_t wait_ms = 0; wait_ms < 2600; wait_ms += 97) {
        fixture_t fixture;
        handles_t old = disconnect_handles(&fixture, wait_ms);
        tow_sim_crash(fixture.client_node);
        tow_client_discard(fixture.client);
        release_handles(&old);
        tow_client_free(fixture.client);
        fixture_free(&fixture);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(new_handles_work_after_a_reconnect),
              cmocka_unit_test(a_client_reconnects_repeatedly),
              cmocka_unit_test(
                  handles_of_an_earlier_generation_are_refused_and_never_sent),
              cmocka_unit_test(handles_of_two_generations_do_not_mix),
              cmocka_unit_test(operations_under_way_fail_once_on_disconnect),
              cmocka_unit_test(an_answer_to_an_earlier_generation_is_discarded),
              cmocka_unit_test(a_controller_that_refuses_is_redialled),
              cmocka_unit_test(a_cluster_that_has_ended_is_not_redialled),
              cmocka_unit_test(a_client_may_close_at_any_point_of_a_reconnect),
              cmocka_unit_test(a_client_may_crash_at_any_point_of_a_reconnect))
