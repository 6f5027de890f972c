/* Functions of clients, between workers and clients that the tests write
 * themselves. */
#include "controller/world_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct cast {
    world_t world;
    peer_t *worker;
    peer_t *client, *other;
    uint64_t run; /* as the worker knows it: under way */
} cast_t;

static void cast_open(cast_t *cast)
{
    *cast = (cast_t){0};
    world_open(&cast->world);
    cast->worker = worker_make(&cast->world, 1);
    cast->client = client_make(&cast->world, "client/1");
    cast->other = client_make(&cast->world, "client/2");
    open_slice(cast->client, 1, 2);
    compile(cast->client, 1, 1, add_text);
    add_program(cast->client, 1, one_add);
    say_put(cast->client, 1, 1, 1024, zeroes);
    expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
    hear_out(cast->worker);
    say_run(cast->client, 7, 1, 1, 10);
    cast->run = hear_grant(cast->worker, cast->client, 7);
}

static void say_call(const cast_t *cast, uint64_t run, uint64_t call,
                     const void *bytes, size_t size)
{
    tow_msg_callback_t message = TOW_MSG_CALLBACK_INIT;
    message.run = run;
    message.call = call;
    message.function = 5;
    message.device = 2049;
    message.result_bytes = 3;
    if (size <= TOW_INLINE_BYTES_MAX)
        message.bytes = (ProtobufCBinaryData){size, (uint8_t *)bytes};
    else
        message.blob = say_blob(cast->worker, bytes, size);
    say(cast->worker, TOW_MESSAGE_CALLBACK, &message.base);
}

static void say_answer(peer_t *client, uint64_t call, const char *why)
{
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_UNKNOWN;
    failure.message = (char *)why;
    done.call = call;
    done.bytes = (ProtobufCBinaryData){3, (uint8_t *)"yes"};
    if (why != NULL) done.failure = &failure;
    say(client, TOW_MESSAGE_CALLBACK_DONE, &done.base);
}

static const tow_msg_callback_done_t *hear_answer(const cast_t *cast,
                                                  uint64_t call)
{
    const tow_msg_callback_done_t *done =
        HEAR(cast->worker, CALLBACK_DONE, callback_done);
    assert_int_equal(done->call, call);
    return done;
}

static void cast_close(cast_t *cast)
{
    say_done(cast->worker, cast->run);
    hear_run_done(cast->client, 7);
    world_close(&cast->world);
}

static void the_client_of_the_run_is_asked_and_its_answer_goes_back(
    void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_call(&cast, cast.run, 40, "arguments", 9);
    const tow_msg_callback_t *asked = HEAR(cast.client, CALLBACK, callback);
    assert_int_equal(asked->run, 7);
    assert_int_equal(asked->function, 5);
    assert_int_equal(asked->device, 2049);
    assert_int_equal(asked->result_bytes, 3);
    assert_memory_equal(asked->bytes.data, "arguments", 9);
    hear_nothing(cast.other);
    say_answer(cast.client, asked->call, NULL);
    const tow_msg_callback_done_t *done = hear_answer(&cast, 40);
    expect_well(done->failure);
    assert_memory_equal(done->bytes.data, "yes", 3);
    cast_close(&cast);
}

static void an_error_keeps_its_words(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_call(&cast, cast.run, 1, "", 0);
    say_answer(cast.client, HEAR(cast.client, CALLBACK, callback)->call,
               "Traceback: no");
    expect_failure(hear_answer(&cast, 1)->failure, TOW_UNKNOWN,
                   "Traceback: no");
    cast_close(&cast);
}

static void what_is_too_large_for_a_message_goes_as_a_blob(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    static uint8_t large[TOW_INLINE_BYTES_MAX + 1];
    large[sizeof(large) - 1] = 9;
    say_call(&cast, cast.run, 1, large, sizeof(large));
    const tow_msg_callback_t *asked = HEAR(cast.client, CALLBACK, callback);
    assert_int_equal(asked->blob, cast.client->blob);
    assert_int_equal(cast.client->blob_size, sizeof(large));
    assert_memory_equal(cast.client->blob_bytes, large, sizeof(large));
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    done.call = asked->call;
    done.blob = say_blob(cast.client, large, sizeof(large));
    say(cast.client, TOW_MESSAGE_CALLBACK_DONE, &done.base);
    const tow_msg_callback_done_t *answer = hear_answer(&cast, 1);
    assert_int_equal(answer->blob, cast.worker->blob);
    assert_int_equal(cast.worker->blob_size, sizeof(large));
    cast_close(&cast);
}

static void nobody_answers_for_another(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_call(&cast, cast.run, 1, "", 0);
    uint64_t call = HEAR(cast.client, CALLBACK, callback)->call;
    say_answer(cast.other, call, NULL);
    say_answer(cast.client, call + 1, NULL);
    hear_nothing(cast.worker);
    say_answer(cast.client, call, NULL);
    expect_well(hear_answer(&cast, 1)->failure);
    say_answer(cast.client, call, NULL); /* Twice. */
    hear_nothing(cast.worker);
    cast_close(&cast);
}

static void a_run_that_is_none_has_no_client(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_call(&cast, cast.run + 1, 1, "", 0);
    expect_failure(hear_answer(&cast, 1)->failure, TOW_CANCELLED,
                   "client of the run is gone");
    cast_close(&cast);
}

static void a_client_that_goes_leaves_no_worker_waiting(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_call(&cast, cast.run, 1, "", 0);
    HEAR(cast.client, CALLBACK, callback);
    peer_leave(cast.client);
    HEAR(cast.worker, ABORT, abort);
    expect_failure(hear_answer(&cast, 1)->failure, TOW_CANCELLED,
                   "went before it answered");
    say_done(cast.worker, cast.run);
    world_close(&cast.world);
}

static void a_worker_that_goes_is_answered_no_more(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_call(&cast, cast.run, 1, "", 0);
    uint64_t call = HEAR(cast.client, CALLBACK, callback)->call;
    peer_leave(cast.worker);
    hear_run_failed(cast.client, 7, TOW_UNAVAILABLE, "gone");
    say_answer(cast.client, call, NULL);
    world_close(&cast.world);
}

TOW_TEST_MAIN(
    cmocka_unit_test(the_client_of_the_run_is_asked_and_its_answer_goes_back),
    cmocka_unit_test(an_error_keeps_its_words),
    cmocka_unit_test(what_is_too_large_for_a_message_goes_as_a_blob),
    cmocka_unit_test(nobody_answers_for_another),
    cmocka_unit_test(a_run_that_is_none_has_no_client),
    cmocka_unit_test(a_client_that_goes_leaves_no_worker_waiting),
    cmocka_unit_test(a_worker_that_goes_is_answered_no_more))
