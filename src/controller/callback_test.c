/* Callbacks, between scripted workers and clients. */
#include "controller/fixture_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *worker;
    peer_t *client, *other;
    uint64_t run; /* its key; under way */
} fixture_t;

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->worker = worker_make(&fixture->cluster, 1);
    fixture->client = client_make(&fixture->cluster, "client/1");
    fixture->other = client_make(&fixture->cluster, "client/2");
    open_slice(fixture->client, 1, 2);
    compile(fixture->client, 1, 1, add_text);
    add_program(fixture->client, 1, one_add);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->worker);
    send_run(fixture->client, 7, 1, 1, 10);
    fixture->run = expect_grant(fixture->worker, fixture->client, 7);
}

static void send_call(const fixture_t *fixture, uint64_t run, uint64_t call,
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
        message.blob = send_blob(fixture->worker, bytes, size);
    send_message(fixture->worker, TOW_MESSAGE_CALLBACK, &message.base);
}

static void send_answer(peer_t *client, uint64_t call, const char *why)
{
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_UNKNOWN;
    failure.message = (char *)why;
    done.call = call;
    done.bytes = (ProtobufCBinaryData){3, (uint8_t *)"yes"};
    if (why != NULL) done.failure = &failure;
    send_message(client, TOW_MESSAGE_CALLBACK_DONE, &done.base);
}

static const tow_msg_callback_done_t *expect_answer(const fixture_t *fixture,
                                                    uint64_t call)
{
    const tow_msg_callback_done_t *done =
        EXPECT(fixture->worker, CALLBACK_DONE, callback_done);
    assert_int_equal(done->call, call);
    return done;
}

static void fixture_close(fixture_t *fixture)
{
    send_done(fixture->worker, fixture->run);
    expect_run_done(fixture->client, 7);
    cluster_close(&fixture->cluster);
}

static void a_callback_goes_to_the_client_of_the_run_and_back(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_call(&fixture, fixture.run, 40, "arguments", 9);
    const tow_msg_callback_t *asked =
        EXPECT(fixture.client, CALLBACK, callback);
    assert_int_equal(asked->run, 7);
    assert_int_equal(asked->function, 5);
    assert_int_equal(asked->device, 2049);
    assert_int_equal(asked->result_bytes, 3);
    assert_memory_equal(asked->bytes.data, "arguments", 9);
    expect_no_message(fixture.other);
    send_answer(fixture.client, asked->call, NULL);
    const tow_msg_callback_done_t *done = expect_answer(&fixture, 40);
    expect_success(done->failure);
    assert_memory_equal(done->bytes.data, "yes", 3);
    fixture_close(&fixture);
}

static void an_error_is_forwarded_unchanged(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_call(&fixture, fixture.run, 1, "", 0);
    send_answer(fixture.client,
                EXPECT(fixture.client, CALLBACK, callback)->call,
                "Traceback: no");
    expect_failure(expect_answer(&fixture, 1)->failure, TOW_UNKNOWN,
                   "Traceback: no");
    fixture_close(&fixture);
}

static void large_arguments_and_results_travel_as_blobs(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    static uint8_t large[TOW_INLINE_BYTES_MAX + 1];
    large[sizeof(large) - 1] = 9;
    send_call(&fixture, fixture.run, 1, large, sizeof(large));
    const tow_msg_callback_t *asked =
        EXPECT(fixture.client, CALLBACK, callback);
    assert_int_equal(asked->blob, fixture.client->blob);
    assert_int_equal(fixture.client->blob_size, sizeof(large));
    assert_memory_equal(fixture.client->blob_bytes, large, sizeof(large));
    tow_msg_callback_done_t done = TOW_MSG_CALLBACK_DONE_INIT;
    done.call = asked->call;
    done.blob = send_blob(fixture.client, large, sizeof(large));
    send_message(fixture.client, TOW_MESSAGE_CALLBACK_DONE, &done.base);
    const tow_msg_callback_done_t *answer = expect_answer(&fixture, 1);
    assert_int_equal(answer->blob, fixture.worker->blob);
    assert_int_equal(fixture.worker->blob_size, sizeof(large));
    fixture_close(&fixture);
}

static void only_the_client_of_the_run_may_answer(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_call(&fixture, fixture.run, 1, "", 0);
    uint64_t call = EXPECT(fixture.client, CALLBACK, callback)->call;
    send_answer(fixture.other, call, NULL);
    send_answer(fixture.client, call + 1, NULL);
    expect_no_message(fixture.worker);
    send_answer(fixture.client, call, NULL);
    expect_success(expect_answer(&fixture, 1)->failure);
    send_answer(fixture.client, call, NULL); /* Twice. */
    expect_no_message(fixture.worker);
    fixture_close(&fixture);
}

static void a_callback_of_an_unknown_run_is_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_call(&fixture, fixture.run + 1, 1, "", 0);
    expect_failure(expect_answer(&fixture, 1)->failure, TOW_CANCELLED,
                   "client of the run has disconnected");
    fixture_close(&fixture);
}

static void a_callback_fails_when_its_client_disconnects(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_call(&fixture, fixture.run, 1, "", 0);
    EXPECT(fixture.client, CALLBACK, callback);
    peer_leave(fixture.client);
    EXPECT(fixture.worker, ABORT, abort);
    expect_failure(expect_answer(&fixture, 1)->failure, TOW_CANCELLED,
                   "disconnected before it answered");
    send_done(fixture.worker, fixture.run);
    cluster_close(&fixture.cluster);
}

static void an_answer_for_a_disconnected_worker_is_discarded(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_call(&fixture, fixture.run, 1, "", 0);
    uint64_t call = EXPECT(fixture.client, CALLBACK, callback)->call;
    peer_leave(fixture.worker);
    expect_run_failed(fixture.client, 7, TOW_UNAVAILABLE, "left");
    send_answer(fixture.client, call, NULL);
    cluster_close(&fixture.cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_callback_goes_to_the_client_of_the_run_and_back),
    cmocka_unit_test(an_error_is_forwarded_unchanged),
    cmocka_unit_test(large_arguments_and_results_travel_as_blobs),
    cmocka_unit_test(only_the_client_of_the_run_may_answer),
    cmocka_unit_test(a_callback_of_an_unknown_run_is_refused),
    cmocka_unit_test(a_callback_fails_when_its_client_disconnects),
    cmocka_unit_test(an_answer_for_a_disconnected_worker_is_discarded))
