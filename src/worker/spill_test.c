/* Spilling of idle objects to host memory and back, with a scripted
 * controller. */
#include "worker/worker_testing_impl.h"

#define SMALL 16
#define LARGE 60000 /* large enough for transfers to take time */

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

static void open_with(worker_fixture_t *fixture, size_t size)
{
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    *fixture = (worker_fixture_t){0};
    worker_fixture_join(fixture,
                        (tow_worker_limits_t){.host_bytes_max = 10 * LARGE});
    worker_fixture_send_put(fixture, OBJECT, size, bytes, size);
    worker_fixture_run_for(fixture, SECOND / 10);
    assert_int_equal(fixture->received.put_code, TOW_CODE_OK);
}

static void send_spill(worker_fixture_t *fixture, uint64_t object,
                       uint64_t number)
{
    tow_msg_spill_t spill = TOW_MSG_SPILL_INIT;
    spill.object = object;
    spill.spill = number;
    worker_fixture_send(fixture, TOW_MESSAGE_SPILL, &spill.base);
}

static void send_unspill(worker_fixture_t *fixture, uint64_t object,
                         uint64_t number)
{
    tow_msg_unspill_t unspill = TOW_MSG_UNSPILL_INIT;
    unspill.object = object;
    unspill.spill = number;
    worker_fixture_send(fixture, TOW_MESSAGE_UNSPILL, &unspill.base);
}

/* The reply to the latest request. */
static void expect_reply(worker_fixture_t *fixture, uint64_t object,
                         uint64_t number, bool is_back, tow_code_t code)
{
    worker_received_t *received = &fixture->received;
    worker_fixture_run_for(fixture, SECOND / 10);
    assert_int_equal(received->spill_count, 1);
    if (received->spill_code != code) fail_msg("%s", received->spill_message);
    assert_int_equal(received->spill_object, object);
    assert_int_equal(received->spill_number, number);
    assert_int_equal(received->spill_is_back, is_back);
    received->spill_count = 0;
}

static void expect_on_host(const worker_fixture_t *fixture, size_t size)
{
    const tow_worker_stats_t stats = tow_worker_stats(fixture->worker);
    assert_int_equal(stats.spill_bytes, DEVICES * size);
    assert_int_equal(stats.shard_store.bytes, 0);
    assert_int_equal(tow_sim_device_counts(fixture->driver).buffers, 0);
}

static void expect_on_devices(const worker_fixture_t *fixture, size_t size)
{
    const tow_worker_stats_t stats = tow_worker_stats(fixture->worker);
    assert_int_equal(stats.spill_count, 0);
    assert_int_equal(stats.spill_bytes, 0);
    assert_int_equal(stats.shard_store.bytes, DEVICES * size);
}

/* Neither on devices nor on the host. */
static void expect_nothing(const worker_fixture_t *fixture)
{
    expect_on_devices(fixture, 0);
    worker_fixture_expect_empty(fixture);
}

static void expect_bytes(worker_fixture_t *fixture)
{
    for (uint32_t shard = 0; shard < DEVICES; shard++) {
        fixture->received.get_size = 0;
        worker_fixture_send_get(fixture, 5, OBJECT, shard, false);
        worker_fixture_run_for(fixture, SECOND / 10);
        assert_int_equal(fixture->received.get_code, TOW_CODE_OK);
        assert_int_equal(fixture->received.get_size, SMALL);
        assert_memory_equal(fixture->received.get_bytes, bytes, SMALL);
    }
}

/* -- Spilling and unspilling ----------------------------------------------- */

static void a_spilled_object_returns_with_its_bytes(void **state)
{
    (void)state;
    worker_fixture_t fixture;
    open_with(&fixture, SMALL);
    for (uint64_t number = 1; number <= 3; number++) {
        send_spill(&fixture, OBJECT, number);
        expect_reply(&fixture, OBJECT, number, false, TOW_CODE_OK);
        expect_on_host(&fixture, SMALL);
        expect_bytes(&fixture); /* From host memory. */
        send_unspill(&fixture, OBJECT, number);
        expect_reply(&fixture, OBJECT, number, true, TOW_CODE_OK);
        expect_on_devices(&fixture, SMALL);
        expect_bytes(&fixture);
    }
    worker_fixture_close(&fixture);
}

/* The bytes on the host stay until the last get has completed. */
static void a_get_survives_unspill_and_release(void **state)
{
    (void)state;
    worker_fixture_t fixture;
    open_with(&fixture, LARGE);
    send_spill(&fixture, OBJECT, 1);
    expect_reply(&fixture, OBJECT, 1, false, TOW_CODE_OK);
    worker_fixture_send_get(&fixture, 5, OBJECT, 1, true);
    send_unspill(&fixture, OBJECT, 1);
    worker_fixture_send_release(&fixture, OBJECT, 1);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.get_count, 1);
    assert_int_equal(fixture.received.get_code, TOW_CODE_OK);
    assert_int_equal(fixture.arrived_count, 1);
    assert_memory_equal(fixture.memory, bytes, LARGE);
    expect_on_devices(&fixture, 0);
    assert_int_equal(tow_sim_device_counts(fixture.driver).buffers, 0);
    worker_fixture_close(&fixture);
}

/* -- Refusals -------------------------------------------------------------- */

static void objects_that_cannot_be_spilled_stay_on_devices(void **state)
{
    (void)state;
    worker_fixture_t fixture;
    open_with(&fixture, SMALL);
    send_spill(&fixture, 99, 1);
    expect_reply(&fixture, 99, 1, false, TOW_NOT_FOUND);
    worker_fixture_send_assemble(&fixture, OTHER, (uint64_t[]){OBJECT, OBJECT},
                                 1);
    send_spill(&fixture, OBJECT, 1); /* Its memory would not be free. */
    expect_reply(&fixture, OBJECT, 1, false, TOW_FAILED_PRECONDITION);
    expect_part(fixture.received.spill_message, "shares its memory");
    worker_fixture_send_release(&fixture, OTHER, 1);
    send_spill(&fixture, OBJECT, 2);
    send_spill(&fixture, OBJECT, 3); /* It is being spilled. */
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.spill_count, 2);
    send_spill(&fixture, OBJECT, 4); /* It is spilled already. */
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.spill_code, TOW_FAILED_PRECONDITION);
    expect_on_host(&fixture, SMALL);
    expect_bytes(&fixture);
    worker_fixture_send_release(&fixture, OBJECT, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    expect_nothing(&fixture);
    worker_fixture_close(&fixture);
}

static void a_run_on_a_spilled_object_fails(void **state)
{
    (void)state;
    worker_fixture_t fixture;
    open_with(&fixture, SMALL);
    worker_fixture_send_load(&fixture, COPY, copy_text);
    worker_fixture_send_program(&fixture, RUN_COPY, COPY);
    send_spill(&fixture, OBJECT, 1);
    expect_reply(&fixture, OBJECT, 1, false, TOW_CODE_OK);
    worker_fixture_send_grant(&fixture, 1, RUN_COPY,
                              OBJECT); /* A correct controller does not. */
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.failure_count, 1);
    assert_int_equal(fixture.received.failures[0].code,
                     TOW_FAILED_PRECONDITION);
    expect_part(fixture.received.failures[0].message, "is in host memory");
    worker_fixture_send_release(&fixture, OBJECT, 1);
    worker_fixture_send_release(&fixture, 1000, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    expect_on_devices(&fixture, 0);
    worker_fixture_close(&fixture);
}

static void an_unspill_with_a_wrong_number_ends_the_session(void **state)
{
    (void)state;
    worker_fixture_t fixture;
    open_with(&fixture, SMALL);
    send_unspill(&fixture, OBJECT, 7); /* Not spilled: succeeds. */
    expect_reply(&fixture, OBJECT, 7, true, TOW_CODE_OK);
    send_spill(&fixture, OBJECT, 8);
    expect_reply(&fixture, OBJECT, 8, false, TOW_CODE_OK);
    send_unspill(&fixture, OBJECT, 7);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.session_end_count, 1);
    expect_part(fixture.received.session_end_message,
                "is not spilled, or by another request");
    worker_fixture_run_for(&fixture, 10 * SECOND); /* The worker joins again. */
    expect_nothing(&fixture);
    worker_fixture_close(&fixture);
}

/* -- Interruptions --------------------------------------------------------- */

#define STEPS 40

/* Spills, and in the second half of the steps unspills, up to a step. The last
 * step of each half is after its completion. */
static void open_at_step(worker_fixture_t *fixture, int step)
{
    open_with(fixture, LARGE);
    send_spill(fixture, OBJECT, 1);
    if (step >= STEPS / 2) {
        expect_reply(fixture, OBJECT, 1, false, TOW_CODE_OK);
        send_unspill(fixture, OBJECT, 1);
    }
    worker_fixture_run_for(fixture, step % (STEPS / 2) * 4000);
}

static void an_object_may_be_released_at_any_step(void **state)
{
    (void)state;
    for (int step = 0; step < STEPS; step++) {
        worker_fixture_t fixture;
        open_at_step(&fixture, step);
        worker_fixture_send_release(&fixture, OBJECT, 1);
        worker_fixture_run_for(&fixture, SECOND);
        expect_nothing(&fixture);
        worker_fixture_close(&fixture);
    }
}

static void the_controller_may_disconnect_at_any_step(void **state)
{
    (void)state;
    for (int step = 0; step < STEPS; step++) {
        worker_fixture_t fixture;
        open_at_step(&fixture, step);
        tow_session_close(fixture.session, TOW_OK, (tow_closed_t){0});
        fixture.session = NULL;
        worker_fixture_run_for(&fixture, 10 * SECOND);
        expect_nothing(&fixture);
        worker_fixture_close(&fixture);
    }
}

static void a_worker_may_close_at_any_step(void **state)
{
    (void)state;
    for (int step = 0; step < STEPS; step++) {
        worker_fixture_t fixture;
        open_at_step(&fixture, step);
        worker_fixture_close(&fixture);
    }
}

static void a_worker_may_crash_at_any_step(void **state)
{
    (void)state;
    for (int step = 0; step < STEPS; step++) {
        worker_fixture_t fixture;
        open_at_step(&fixture, step);
        tow_sim_crash(fixture.worker_node);
        worker_fixture_run_for(&fixture, SECOND);
        worker_fixture_close(&fixture);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(a_spilled_object_returns_with_its_bytes),
              cmocka_unit_test(a_get_survives_unspill_and_release),
              cmocka_unit_test(objects_that_cannot_be_spilled_stay_on_devices),
              cmocka_unit_test(a_run_on_a_spilled_object_fails),
              cmocka_unit_test(an_unspill_with_a_wrong_number_ends_the_session),
              cmocka_unit_test(an_object_may_be_released_at_any_step),
              cmocka_unit_test(the_controller_may_disconnect_at_any_step),
              cmocka_unit_test(a_worker_may_close_at_any_step),
              cmocka_unit_test(a_worker_may_crash_at_any_step))
