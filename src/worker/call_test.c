/* Functions of clients that a computation calls, in a simulated world. */
#include "worker/world_testing_impl.h"

static const char slow_text[] = "towpath-cost 1\n"
                                "name slow\n"
                                "argument u8[4]\n"
                                "result u8[4]\n"
                                "duration 5000000000\n";

typedef struct caller {
    tow_client_call_t call;
    tow_bytes_t arguments[2];
    char results[2][5];
    tow_room_t rooms[2];
    int done_count;
    tow_status_t status; /* owned */
} caller_t;

static void on_done(tow_client_call_t *call, tow_status_t take_status)
{
    caller_t *caller = TOW_CONTAINER_OF(call, caller_t, call);
    caller->done_count++;
    caller->status = take_status;
}

/* Run 3, whose gang is 30, is under way. */
static void begin(world_t *world)
{
    world_join(world, (tow_worker_limits_t){0});
    say_load(world, 1, slow_text);
    say_program(world, 1, 1);
    say_put(world, 1, 4, "abcd", 4);
    say_grant(world, 3, 1, 1);
    run_for(world, SECOND / 10);
    assert_int_equal(world->heard.done_count, 0);
}

static void call(world_t *world, caller_t *caller, uint64_t gang)
{
    *caller =
        (caller_t){.arguments = {{"one", 3}, {"two", 3}},
                   .rooms = {{caller->results[0], 2}, {caller->results[1], 4}}};
    caller->call = (tow_client_call_t){.gang_id = gang,
                                       .function = 9,
                                       .device = FIRST_ID,
                                       .arguments = caller->arguments,
                                       .argument_count = 2,
                                       .results = caller->rooms,
                                       .result_count = 2,
                                       .done = on_done};
    tow_worker_call_client(world->worker, &caller->call);
    run_for(world, SECOND / 10);
}

static void answer(world_t *world, uint64_t number, const char *bytes,
                   const char *why)
{
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_UNKNOWN;
    failure.message = (char *)why;
    done.call = number;
    if (why != NULL) done.failure = &failure;
    done.bytes = (ProtobufCBinaryData){strlen(bytes), (uint8_t *)bytes};
    say(world, TOW_MESSAGE_CALLBACK_DONE, &done.base);
    run_for(world, SECOND / 10);
}

static void expect_end(caller_t *caller, tow_code_t code, const char *part)
{
    assert_int_equal(caller->done_count, 1);
    assert_int_equal(tow_status_code(caller->status), code);
    expect_part(tow_status_message(caller->status), part);
    tow_status_release(caller->status);
}

static void the_client_is_asked_and_its_answer_fills_the_results(void **state)
{
    (void)state;
    world_t world = {0};
    caller_t caller;
    begin(&world);
    call(&world, &caller, 30);
    assert_int_equal(world.heard.callback_count, 1);
    assert_int_equal(world.heard.callback_run, 3);
    assert_int_equal(world.heard.callback_function, 9);
    assert_string_equal(world.heard.callback_text, "onetwo");
    answer(&world, world.heard.callback_call + 1, "nobody", NULL);
    assert_int_equal(caller.done_count, 0);
    answer(&world, world.heard.callback_call, "yes it", NULL);
    assert_int_equal(caller.done_count, 1);
    assert_int_equal(caller.status, TOW_OK);
    assert_memory_equal(caller.results[0], "ye", 2);
    assert_memory_equal(caller.results[1], "s it", 4);
    answer(&world, world.heard.callback_call, "yes it", NULL); /* Stale. */
    assert_int_equal(caller.done_count, 1);
    world_close(&world);
}

static void what_is_wrong_fails_the_call_alone(void **state)
{
    (void)state;
    world_t world = {0};
    caller_t caller;
    begin(&world);
    call(&world, &caller, 31);
    assert_int_equal(world.heard.callback_count, 0);
    expect_end(&caller, TOW_CANCELLED, "has ended");
    call(&world, &caller, 30);
    answer(&world, world.heard.callback_call, "short", NULL);
    expect_end(&caller, TOW_INVALID_ARGUMENT,
               "5 bytes, and the program wants 6");
    call(&world, &caller, 30);
    answer(&world, world.heard.callback_call, "", "ValueError: no");
    expect_end(&caller, TOW_UNKNOWN, "ValueError: no");
    assert_int_equal(world.heard.gone_count, 0);
    world_close(&world);
}

static void a_call_ends_with_its_gang(void **state)
{
    (void)state;
    world_t world = {0};
    caller_t caller;
    begin(&world);
    call(&world, &caller, 30);
    say_abort(&world, 3, "enough");
    run_for(&world, SECOND / 10);
    expect_end(&caller, TOW_CANCELLED, "enough");
    world_close(&world);
}

static void a_call_ends_with_the_session(void **state)
{
    (void)state;
    world_t world = {0};
    caller_t caller;
    begin(&world);
    call(&world, &caller, 30);
    tow_session_close(world.session, TOW_OK, (tow_closed_t){0});
    world.session = NULL;
    run_for(&world, SECOND);
    assert_int_equal(caller.done_count, 1);
    assert_true(tow_status_code(caller.status) != TOW_CODE_OK);
    tow_status_release(caller.status);
    world_close(&world);
}

/* Else neither would ever end: the sequential run waits for the one that asks. */
static void an_answer_reaches_a_worker_that_is_blocked(void **state)
{
    (void)state;
    world_t world = {0};
    caller_t caller;
    begin(&world);
    say_step(&world, 2, 1, SEQUENTIAL);
    say_grant(&world, 4, 2, 3000);
    call(&world, &caller, 30);
    answer(&world, world.heard.callback_call, "yes it", NULL);
    assert_int_equal(world.heard.done_count, 0);
    assert_int_equal(caller.done_count, 1);
    assert_int_equal(caller.status, TOW_OK);
    run_for(&world, 20 * SECOND);
    assert_int_equal(world.heard.done_count, 2);
    world_close(&world);
}

TOW_TEST_MAIN(
    cmocka_unit_test(an_answer_reaches_a_worker_that_is_blocked),
    cmocka_unit_test(the_client_is_asked_and_its_answer_fills_the_results),
    cmocka_unit_test(what_is_wrong_fails_the_call_alone),
    cmocka_unit_test(a_call_ends_with_its_gang),
    cmocka_unit_test(a_call_ends_with_the_session))
