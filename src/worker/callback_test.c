/* Callbacks from computations into clients, in a simulated cluster. */
#include "worker/worker_testing_impl.h"

static const char slow_text[] = "towpath-cost 1\n"
                                "name slow\n"
                                "argument u8[4]\n"
                                "result u8[4]\n"
                                "duration 5000000000\n";

typedef struct caller {
    tow_worker_callback_t call;
    tow_bytes_t arguments[2];
    char results[2][5];
    tow_mutable_bytes_t result_spans[2];
    int done_count;
    tow_status_t status; /* owned */
} caller_t;

static void on_done(tow_worker_callback_t *call, tow_status_t take_status)
{
    caller_t *caller = TOW_CONTAINER_OF(call, caller_t, call);
    caller->done_count++;
    caller->status = take_status;
}

/* Run 3, whose gang is 30, is under way. */
static void open_with_run(worker_fixture_t *fixture)
{
    worker_fixture_join(fixture, (tow_worker_limits_t){0});
    worker_fixture_send_load(fixture, 1, slow_text);
    worker_fixture_send_program(fixture, 1, 1);
    worker_fixture_send_put(fixture, 1, 4, "abcd", 4);
    worker_fixture_send_grant(fixture, 3, 1, 1);
    worker_fixture_run_for(fixture, SECOND / 10);
    assert_int_equal(fixture->received.done_count, 0);
}

static void call(worker_fixture_t *fixture, caller_t *caller, uint64_t gang)
{
    *caller = (caller_t){
        .arguments = {{"one", 3}, {"two", 3}},
        .result_spans = {{caller->results[0], 2}, {caller->results[1], 4}}};
    caller->call = (tow_worker_callback_t){.gang_id = gang,
                                           .function = 9,
                                           .device = FIRST_ID,
                                           .arguments = caller->arguments,
                                           .argument_count = 2,
                                           .results = caller->result_spans,
                                           .result_count = 2,
                                           .done = on_done};
    tow_worker_call_client(fixture->worker, &caller->call);
    worker_fixture_run_for(fixture, SECOND / 10);
}

static void send_answer(worker_fixture_t *fixture, uint64_t number,
                        const char *bytes, const char *why)
{
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_UNKNOWN;
    failure.message = (char *)why;
    done.call = number;
    if (why != NULL) done.failure = &failure;
    done.bytes = (ProtobufCBinaryData){strlen(bytes), (uint8_t *)bytes};
    worker_fixture_send(fixture, TOW_MESSAGE_CALLBACK_DONE, &done.base);
    worker_fixture_run_for(fixture, SECOND / 10);
}

static void expect_failure(caller_t *caller, tow_code_t code, const char *part)
{
    assert_int_equal(caller->done_count, 1);
    assert_int_equal(tow_status_code(caller->status), code);
    expect_part(tow_status_message(caller->status), part);
    tow_status_release(caller->status);
}

static void the_answer_of_the_client_fills_the_results(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    caller_t caller;
    open_with_run(&fixture);
    call(&fixture, &caller, 30);
    assert_int_equal(fixture.received.callback_count, 1);
    assert_int_equal(fixture.received.callback_run, 3);
    assert_int_equal(fixture.received.callback_function, 9);
    assert_string_equal(fixture.received.callback_text, "onetwo");
    send_answer(&fixture, fixture.received.callback_call + 1, "nobody", NULL);
    assert_int_equal(caller.done_count, 0);
    send_answer(&fixture, fixture.received.callback_call, "yes it", NULL);
    assert_int_equal(caller.done_count, 1);
    assert_int_equal(caller.status, TOW_OK);
    assert_memory_equal(caller.results[0], "ye", 2);
    assert_memory_equal(caller.results[1], "s it", 4);
    send_answer(&fixture, fixture.received.callback_call, "yes it",
                NULL); /* Stale. */
    assert_int_equal(caller.done_count, 1);
    worker_fixture_close(&fixture);
}

static void an_invalid_call_or_answer_fails_only_the_call(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    caller_t caller;
    open_with_run(&fixture);
    call(&fixture, &caller, 31);
    assert_int_equal(fixture.received.callback_count, 0);
    expect_failure(&caller, TOW_CANCELLED, "has ended");
    call(&fixture, &caller, 30);
    send_answer(&fixture, fixture.received.callback_call, "short", NULL);
    expect_failure(&caller, TOW_INVALID_ARGUMENT,
                   "5 bytes, the program expects 6");
    call(&fixture, &caller, 30);
    send_answer(&fixture, fixture.received.callback_call, "", "ValueError: no");
    expect_failure(&caller, TOW_UNKNOWN, "ValueError: no");
    assert_int_equal(fixture.received.session_end_count, 0);
    worker_fixture_close(&fixture);
}

static void a_call_ends_with_its_gang(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    caller_t caller;
    open_with_run(&fixture);
    call(&fixture, &caller, 30);
    worker_fixture_send_abort(&fixture, 3, "enough");
    worker_fixture_run_for(&fixture, SECOND / 10);
    expect_failure(&caller, TOW_CANCELLED, "enough");
    worker_fixture_close(&fixture);
}

static void a_call_ends_with_the_session(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    caller_t caller;
    open_with_run(&fixture);
    call(&fixture, &caller, 30);
    tow_session_close(fixture.session, TOW_OK, (tow_closed_t){0});
    fixture.session = NULL;
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(caller.done_count, 1);
    assert_true(tow_status_code(caller.status) != TOW_CODE_OK);
    tow_status_release(caller.status);
    worker_fixture_close(&fixture);
}

/* Otherwise there would be a deadlock: the sequential run waits for the run
 * that waits for the answer. */
static void an_answer_arrives_while_a_sequential_run_waits(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    caller_t caller;
    open_with_run(&fixture);
    worker_fixture_send_step(&fixture, 2, 1, SEQUENTIAL);
    worker_fixture_send_grant(&fixture, 4, 2, 3000);
    call(&fixture, &caller, 30);
    send_answer(&fixture, fixture.received.callback_call, "yes it", NULL);
    assert_int_equal(fixture.received.done_count, 0);
    assert_int_equal(caller.done_count, 1);
    assert_int_equal(caller.status, TOW_OK);
    worker_fixture_run_for(&fixture, 20 * SECOND);
    assert_int_equal(fixture.received.done_count, 2);
    worker_fixture_close(&fixture);
}

TOW_TEST_MAIN(cmocka_unit_test(an_answer_arrives_while_a_sequential_run_waits),
              cmocka_unit_test(the_answer_of_the_client_fills_the_results),
              cmocka_unit_test(an_invalid_call_or_answer_fails_only_the_call),
              cmocka_unit_test(a_call_ends_with_its_gang),
              cmocka_unit_test(a_call_ends_with_the_session))
