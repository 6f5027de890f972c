/* The worker with a scripted controller. */
#include "worker/worker_testing_impl.h"

#include "worker/tuning.h"

static const char add_text[] = "towpath-cost 1\n"
                               "name add\n"
                               "argument u8[16]\n"
                               "result u8[16]\n"
                               "duration 100000\n"
                               "all_reduce 16\n";
static const char slow_text[] = "towpath-cost 1\n"
                                "name slow\n"
                                "argument u8[16]\n"
                                "result u8[16]\n"
                                "duration 60000000000\n";
static const char greedy_text[] = "towpath-cost 1\n"
                                  "name greedy\n"
                                  "argument u8[16]\n"
                                  "result u8[16]\n"
                                  "temporary 100000000\n"
                                  "all_reduce 16\n";

static const char consuming_text[] = "towpath-cost 1\n"
                                     "name consuming\n"
                                     "argument u8[60000]\n"
                                     "result u8[60000] alias 0\n"
                                     "duration 100000\n";

enum {
    ADD = 101,
    SLOW,
    GREEDY,
};
enum {
    RUN_ADD = 201,
    RUN_SLOW,
    RUN_GREEDY,
};

static const uint8_t sixteen[16] = "0123456789abcde";

/* Executables, programs and object 1. */
static void send_contents(worker_fixture_t *fixture)
{
    fixture->received.load_count = 0;
    worker_fixture_send_load(fixture, ADD, add_text);
    worker_fixture_send_load(fixture, SLOW, slow_text);
    worker_fixture_send_load(fixture, GREEDY, greedy_text);
    worker_fixture_send_program(fixture, RUN_ADD, ADD);
    worker_fixture_send_program(fixture, RUN_SLOW, SLOW);
    worker_fixture_send_program(fixture, RUN_GREEDY, GREEDY);
    worker_fixture_send_put(fixture, 1, 16, sixteen, 16);
    worker_fixture_run_for(fixture, SECOND / 10);
    assert_int_equal(fixture->received.load_count, 3);
    assert_int_equal(fixture->received.load_code, TOW_CODE_OK);
    assert_int_equal(fixture->received.put_object, 1);
    assert_int_equal(fixture->received.put_code, TOW_CODE_OK);
}

static void open_with_contents(worker_fixture_t *fixture)
{
    worker_fixture_join(fixture, (tow_worker_limits_t){0});
    send_contents(fixture);
}

static tow_worker_stats_t stats_of(const worker_fixture_t *fixture)
{
    return tow_worker_stats(fixture->worker);
}

/* -- Joining --------------------------------------------------------------- */

static void a_worker_reports_its_host_and_devices(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    assert_int_equal(fixture.received.join_count, 1);
    assert_int_equal(fixture.received.join_process, 1);
    assert_int_equal(fixture.received.join_devices, DEVICES);
    assert_string_equal(fixture.received.join_host, "host-1");
    assert_string_equal(tow_session_peer(fixture.session)->name, "worker/1");
    worker_fixture_expect_empty(&fixture);
    worker_fixture_close(&fixture);
}

static void a_worker_dials_until_the_controller_answers(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_open(&fixture, (tow_worker_limits_t){0});
    worker_fixture_run_for(&fixture, 30 * SECOND);
    assert_int_equal(fixture.received.joined_count, 0);
    worker_fixture_listen(&fixture);
    worker_fixture_run_for(&fixture, 10 * SECOND);
    assert_int_equal(fixture.received.joined_count, 1);
    worker_fixture_close(&fixture);
}

static void a_refused_worker_retries(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_open(&fixture, (tow_worker_limits_t){0});
    fixture.refuses = true;
    worker_fixture_listen(&fixture);
    worker_fixture_run_for(&fixture, 10 * SECOND);
    assert_true(fixture.received.join_count > 3 &&
                fixture.received.join_count < 30);
    assert_int_equal(
        fixture.received.joined_count + fixture.received.disconnected_count, 0);
    expect_part(fixture.received.session_end_message, "process 1 is taken");
    fixture.refuses = false;
    worker_fixture_run_for(&fixture, 10 * SECOND);
    assert_int_equal(fixture.received.joined_count, 1);
    worker_fixture_close(&fixture);
}

static void a_worker_may_close_at_any_point(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_open(&fixture,
                        (tow_worker_limits_t){0}); /* not started yet */
    worker_fixture_run_for(&fixture, 1);
    worker_fixture_close(&fixture); /* dialling */
    worker_fixture_open(&fixture, (tow_worker_limits_t){0});
    worker_fixture_run_for(&fixture, 5 * SECOND);
    worker_fixture_close(&fixture); /* between two attempts, or in one */
    worker_fixture_open(&fixture, (tow_worker_limits_t){0});
    fixture.is_silent = true;
    worker_fixture_listen(&fixture);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(stats_of(&fixture).state, TOW_WORKER_JOINING);
    worker_fixture_close(&fixture);
    open_with_contents(&fixture);
    worker_fixture_send_grant(&fixture, 1, RUN_SLOW, 1);
    worker_fixture_send_get(&fixture, 1, 1000, 0, true);
    worker_fixture_send_put(&fixture, 5, 100000, NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 100);
    assert_int_equal(stats_of(&fixture).dataflow.run_count, 1);
    worker_fixture_close(&fixture);
}

static void peers_are_added_and_disconnected(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    tow_msg_lane_target_t mail = TOW_MSG_LANE_TARGET_INIT;
    mail.lane_address.data = (uint8_t *)"there";
    mail.lane_address.len = 5;
    mail.region_id = 8;
    mail.region_secret = 9;
    peer.name = (char *)"worker/2";
    peer.host = (char *)"host-2";
    peer.device_count = 4;
    peer.mail = &mail;
    for (uint32_t process = 2; process < 5; process++) {
        peer.process = process;
        worker_fixture_send(&fixture, TOW_MESSAGE_PEER, &peer.base);
    }
    tow_msg_peer_disconnected_t disconnected = TOW_MSG_PEER_DISCONNECTED_INIT;
    disconnected.process = 3;
    worker_fixture_send(&fixture, TOW_MESSAGE_PEER_DISCONNECTED,
                        &disconnected.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.peer_added_count, 3);
    assert_int_equal(fixture.received.peer.process, 4);
    assert_int_equal(fixture.received.peer.device_count, 4);
    assert_int_equal(fixture.received.peer.lane_address_size, 5);
    assert_int_equal(fixture.received.peer.mail.secret, 9);
    assert_int_equal(fixture.received.peer_disconnected_count, 1);
    assert_int_equal(stats_of(&fixture).peer_count, 2);
    worker_fixture_close(&fixture);
    assert_int_equal(fixture.received.peer_disconnected_count, 3);
}

/* -- Runs ------------------------------------------------------------------ */

/* All the time that the devices counted has been reported. */
static void expect_time_of_devices(const worker_fixture_t *fixture)
{
    const tow_sim_device_counts_t counts =
        tow_sim_device_counts(fixture->driver);
    assert_true(counts.busy_ns > 0);
    assert_int_equal(fixture->received.time.busy_ns, counts.busy_ns);
    assert_int_equal(fixture->received.time.wait_ns, counts.wait_ns);
    assert_int_equal(stats_of(fixture).dataflow.device_ns, counts.busy_ns);
}

static void unawaited_grants_run_in_order(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    worker_fixture_send_grant(&fixture, 1, RUN_ADD, 1);
    for (uint64_t run = 2; run <= 30; run++)
        worker_fixture_send_grant(&fixture, run, RUN_ADD, 1000 * (run - 1));
    worker_fixture_send_get(&fixture, 9, 30000, 1, false);
    worker_fixture_send_release(&fixture, 1000, 29001); /* all but the last */
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.run_count, 30);
    expect_time_of_devices(&fixture);
    for (uint64_t run = 1; run <= 30; run++)
        assert_int_equal(fixture.received.runs[run - 1], run);
    assert_int_equal(fixture.received.get_code, TOW_CODE_OK);
    assert_int_equal(fixture.received.get_size, 16);
    /* An all-reduce: both devices have the same result. */
    uint8_t shard_1[16];
    memcpy(shard_1, fixture.received.get_bytes, 16);
    worker_fixture_send_grant(&fixture, 31, RUN_ADD, 1);
    worker_fixture_send_get(&fixture, 10, 31000, 0, false);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.get_count, 2);
    assert_memory_not_equal(shard_1, fixture.received.get_bytes, 16);
    worker_fixture_send_release(&fixture, 1, 1);
    worker_fixture_send_release(&fixture, 31000, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(stats_of(&fixture).shard_store.bytes, 0);
    worker_fixture_close(&fixture);
}

static void a_failure_has_node_device_and_cause(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    worker_fixture_send_grant(&fixture, 1, RUN_GREEDY, 1);
    worker_fixture_send_grant(&fixture, 2, RUN_ADD, 1000);
    worker_fixture_send_grant(&fixture, 3, 999, 1);
    worker_fixture_send_grant(&fixture, 4, RUN_ADD, 1);
    worker_fixture_send_get(&fixture, 1, 2000, 0, false);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.run_count, 1);
    assert_int_equal(fixture.received.runs[0], 4);
    assert_int_equal(fixture.received.failure_count, 3);
    for (size_t i = 0; i < 3; i++) {
        if (fixture.received.failures[i].run == 3) {
            assert_int_equal(fixture.received.failures[i].code, TOW_NOT_FOUND);
            continue;
        }
        assert_int_equal(fixture.received.failures[i].code,
                         TOW_RESOURCE_EXHAUSTED);
        assert_int_equal(fixture.received.failures[i].node, 1);
        expect_part(fixture.received.failures[i].message, "run 1, node 1");
        expect_part(fixture.received.failures[i].message,
                    "device 2048, greedy");
    }
    assert_int_equal(fixture.received.get_code, TOW_RESOURCE_EXHAUSTED);
    expect_part(fixture.received.get_message, "greedy");
    worker_fixture_close(&fixture);
}

static void an_abort_ends_a_run(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    worker_fixture_send_grant(&fixture, 1, RUN_SLOW, 1);
    worker_fixture_send_grant(&fixture, 2, RUN_ADD, 1000);
    worker_fixture_send_grant(&fixture, 3, RUN_ADD, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.done_count, 0);
    worker_fixture_send_abort(&fixture, 1, "enough");
    worker_fixture_send_abort(&fixture, 77, "of nothing");
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.run_count, 1);
    assert_int_equal(fixture.received.failure_count, 2);
    assert_int_equal(fixture.received.failures[0].run, 1);
    assert_int_equal(fixture.received.failures[0].code, TOW_CANCELLED);
    assert_int_equal(fixture.received.failures[1].code, TOW_CANCELLED);
    expect_part(fixture.received.failures[1].message, "enough");
    expect_time_of_devices(&fixture);
    /* Until the abort. */
    assert_true(fixture.received.time.longest_ns >= SECOND / 10 / 2);
    worker_fixture_close(&fixture);
}

static void completions_of_one_turn_are_one_message(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    worker_fixture_send_grant(&fixture, 1, RUN_SLOW, 1);
    for (uint64_t run = 2; run <= 20; run++)
        worker_fixture_send_grant(&fixture, run, RUN_ADD, 1000);
    worker_fixture_run_for(&fixture, SECOND / 10);
    worker_fixture_send_abort(&fixture, 1, "and all that depend on it");
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.failure_count, 20);
    assert_int_equal(fixture.received.done_count, 1);
    worker_fixture_close(&fixture);
}

/* -- Loads ----------------------------------------------------------------- */

static void a_failed_load_reports_the_cause(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    worker_fixture_send_load(&fixture, 500, "nonsense");
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.load_executable, 500);
    assert_int_equal(fixture.received.load_code, TOW_INVALID_ARGUMENT);
    worker_fixture_send_load(&fixture, ADD, add_text);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.load_code, TOW_ALREADY_EXISTS);
    worker_fixture_close(&fixture);
}

static void unloaded_executables_are_freed(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    tow_msg_unload_t unload = TOW_MSG_UNLOAD_INIT;
    tow_msg_program_unload_t program = TOW_MSG_PROGRAM_UNLOAD_INIT;
    worker_fixture_send_grant(&fixture, 1, RUN_ADD, 1);
    unload.executable = ADD;
    worker_fixture_send(&fixture, TOW_MESSAGE_UNLOAD, &unload.base);
    program.program = RUN_ADD;
    worker_fixture_send(&fixture, TOW_MESSAGE_PROGRAM_UNLOAD, &program.base);
    worker_fixture_send_grant(&fixture, 2, RUN_ADD, 1);
    /* During its load. */
    worker_fixture_send_load(&fixture, 600, add_text);
    unload.executable = 600;
    worker_fixture_send(&fixture, TOW_MESSAGE_UNLOAD, &unload.base);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.run_count, 1);
    assert_int_equal(fixture.received.failures[0].code, TOW_NOT_FOUND);
    assert_int_equal(fixture.received.session_end_count, 0);
    assert_int_equal(stats_of(&fixture).dataflow.executable_count, 2);
    assert_int_equal(tow_sim_device_counts(fixture.driver).executables, 2);
    worker_fixture_close(&fixture);
}

/* -- Puts and gets --------------------------------------------------------- */

static void small_arrays_are_inlined_in_messages(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    uint8_t bytes[DEVICES * 8];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 3 + 1);
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    worker_fixture_send_put(&fixture, 1, 8, bytes, sizeof(bytes));
    worker_fixture_send_get(&fixture, 1, 1, 1, false);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.put_count, 1);
    assert_int_equal(fixture.received.get_size, 8);
    assert_memory_equal(fixture.received.get_bytes, bytes + 8, 8);
    /* Of no bytes. */
    worker_fixture_send_put(&fixture, 2, 0, bytes, 0);
    worker_fixture_send_get(&fixture, 2, 2, 0, false);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.get_count, 2);
    assert_int_equal(fixture.received.get_code, TOW_CODE_OK);
    assert_int_equal(fixture.received.get_size, 0);
    assert_int_equal(stats_of(&fixture).put_bytes, 0);
    assert_int_equal(stats_of(&fixture).put_bytes_total, sizeof(bytes));
    assert_int_equal(stats_of(&fixture).get_bytes_total, 8);
    worker_fixture_close(&fixture);
}

static void large_arrays_are_written_over_lanes(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[DEVICES][50000];
    for (size_t d = 0; d < DEVICES; d++)
        for (size_t i = 0; i < sizeof(bytes[d]); i++)
            bytes[d][i] = (uint8_t)(i * (d + 3) + i / 251);
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    worker_fixture_send_put(&fixture, 1, sizeof(bytes[0]), NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.opened_count, 1);
    assert_int_equal(fixture.received.target_count, DEVICES);
    worker_fixture_client_write(&fixture, 1, bytes[1], sizeof(bytes[1]), 0);
    assert_int_equal(fixture.received.put_count, 0);
    worker_fixture_client_write(&fixture, 0, bytes[0], sizeof(bytes[0]), 0);
    assert_int_equal(fixture.received.put_count, 1);
    assert_int_equal(fixture.received.put_code, TOW_CODE_OK);
    /* The region is closed. */
    worker_fixture_client_write(&fixture, 0, bytes[1], sizeof(bytes[1]), 0);
    assert_int_equal(fixture.write_code, TOW_NOT_FOUND);
    for (uint32_t shard = 0; shard < DEVICES; shard++) {
        worker_fixture_send_get(&fixture, 10 + shard, 1, shard, true);
        worker_fixture_run_for(&fixture, SECOND / 10);
        assert_int_equal(fixture.received.get_count, (int)shard + 1);
        assert_int_equal(fixture.received.get_code, TOW_CODE_OK);
        assert_int_equal(fixture.arrived_count, (int)shard + 1);
        assert_int_equal(fixture.arrival.size, sizeof(bytes[shard]));
        assert_memory_equal(fixture.memory, bytes[shard], sizeof(bytes[shard]));
    }
    assert_int_equal(stats_of(&fixture).lane_count, 1);
    assert_int_equal(stats_of(&fixture).get_bytes, 0);
    worker_fixture_close(&fixture);
}

/* They are sent from device memory, which is held until they have arrived.
 * Simulated devices keep no values of this size, so bytes are not compared. */
static void large_gets_share_device_memory(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[TOW_WORKER_BORROW_BYTES_MIN + 1000];
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    worker_fixture_send_put(&fixture, 1, sizeof(bytes), NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    worker_fixture_client_write(&fixture, 0, bytes, sizeof(bytes), 0);
    worker_fixture_client_write(&fixture, 1, bytes, sizeof(bytes), 0);
    assert_int_equal(fixture.received.put_code, TOW_CODE_OK);
    worker_fixture_send_get(&fixture, 1, 1, 0, true);
    worker_fixture_send_get(&fixture, 2, 1, 1, true);
    worker_fixture_send_release(&fixture, 1, 1); /* The gets hold references. */
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.get_count, 2);
    assert_int_equal(fixture.received.get_code, TOW_CODE_OK);
    assert_int_equal(fixture.arrived_count, 2);
    assert_int_equal(fixture.arrival.size, sizeof(bytes));
    assert_int_equal(stats_of(&fixture).get_bytes, 0);
    assert_int_equal(tow_sim_device_counts(fixture.driver).buffers, 0);
    worker_fixture_close(&fixture);
}

/* A session that ends during a get returns the memory to the device. */
static void shared_gets_end_with_the_session(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[TOW_WORKER_BORROW_BYTES_MIN];
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    worker_fixture_send_put(&fixture, 1, sizeof(bytes), NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    worker_fixture_client_write(&fixture, 0, bytes, sizeof(bytes), 0);
    worker_fixture_client_write(&fixture, 1, bytes, sizeof(bytes), 0);
    worker_fixture_send_get(&fixture, 1, 1, 0, true);
    worker_fixture_run_for(&fixture, 25000);
    assert_int_equal(stats_of(&fixture).get_count, 1);
    worker_fixture_close(&fixture); /* Checks for leaks. */
}

static void a_partial_write_of_a_shard_is_refused(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[1000];
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    worker_fixture_send_put(&fixture, 1, sizeof(bytes), NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    worker_fixture_client_write(&fixture, 0, bytes, 500, 0);
    assert_int_equal(fixture.received.put_code, TOW_INVALID_ARGUMENT);
    expect_part(fixture.received.put_message, "written whole");
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(stats_of(&fixture).put_count, 0);
    worker_fixture_send_get(&fixture, 1, 1, 0, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_code, TOW_INVALID_ARGUMENT);
    worker_fixture_close(&fixture);
}

static void a_released_put_is_discarded(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[1000];
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    worker_fixture_send_put(&fixture, 1, sizeof(bytes), NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    worker_fixture_client_write(&fixture, 0, bytes, sizeof(bytes), 0);
    assert_int_equal(stats_of(&fixture).put_count, 1);
    worker_fixture_send_release(&fixture, 1, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.put_count, 0);
    expect_part(tow_worker_state_name(stats_of(&fixture).state), "joined");
    assert_int_equal(stats_of(&fixture).put_count, 0);
    assert_int_equal(stats_of(&fixture).put_bytes, 0);
    assert_int_equal(tow_sim_device_counts(fixture.driver).buffers, 0);
    worker_fixture_close(&fixture);
}

static void an_invalid_put_fails_only_itself(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_join(&fixture,
                        (tow_worker_limits_t){.put_bytes_max = 10000});
    worker_fixture_send_put(&fixture, 1, 16, sixteen, 15);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.put_code, TOW_INVALID_ARGUMENT);
    expect_part(fixture.received.put_message, "15 arrived");
    worker_fixture_send_put(&fixture, 2, 100000, NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.put_code, TOW_RESOURCE_EXHAUSTED);
    worker_fixture_send_put(&fixture, 3, 0, NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.put_code, TOW_INVALID_ARGUMENT);
    worker_fixture_send_put(&fixture, 4, 16, sixteen, 16);
    worker_fixture_send_put(&fixture, 4, 16, sixteen, 16);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.put_code, TOW_ALREADY_EXISTS);
    uint32_t devices[] = {0, 0};
    tow_msg_shard_put_t put = TOW_MSG_SHARD_PUT_INIT;
    put.object = 5;
    put.devices = devices;
    put.n_devices = 2;
    worker_fixture_send(&fixture, TOW_MESSAGE_SHARD_PUT, &put.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    expect_part(fixture.received.put_message, "each may be used once");
    devices[1] = 1;
    worker_fixture_send(&fixture, TOW_MESSAGE_SHARD_PUT, &put.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    expect_part(fixture.received.put_message, "no shape");
    assert_int_equal(fixture.received.session_end_count, 0);
    worker_fixture_close(&fixture);
}

static void a_device_without_memory_refuses_a_put(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_join(&fixture, (tow_worker_limits_t){0});
    static uint8_t bytes[1000];
    tow_buffer_t *ballast;
    must(tow_driver_allocate(fixture.driver, 1,
                             &(tow_shape_t){.type = TOW_TYPE_U8,
                                            .rank = 1,
                                            .dims = {MEMORY_BYTES - 500}},
                             &ballast));
    worker_fixture_send_put(&fixture, 1, 1000, bytes, 1000);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.put_code, TOW_RESOURCE_EXHAUSTED);
    worker_fixture_send_put(&fixture, 2, 1000, NULL, 0);
    worker_fixture_run_for(&fixture, SECOND / 10);
    worker_fixture_client_write(&fixture, 0, bytes, 1000, 0);
    worker_fixture_client_write(&fixture, 1, bytes, 1000, 0);
    assert_int_equal(fixture.received.put_object, 2);
    assert_int_equal(fixture.received.put_code, TOW_RESOURCE_EXHAUSTED);
    worker_fixture_send_release(&fixture, 1, 2);
    worker_fixture_run_for(&fixture, SECOND / 10);
    tow_buffer_release(ballast);
    assert_int_equal(tow_sim_device_counts(fixture.driver).buffers, 0);
    worker_fixture_close(&fixture);
}

static void an_invalid_get_fails_only_itself(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    worker_fixture_send_get(&fixture, 1, 99, 0, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_code, TOW_NOT_FOUND);
    worker_fixture_send_get(&fixture, 2, 1, DEVICES, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_code, TOW_OUT_OF_RANGE);
    tow_region_close(fixture.region, (tow_closed_t){0});
    worker_fixture_run_for(&fixture, SECOND / 10);
    tow_msg_shard_get_t get = TOW_MSG_SHARD_GET_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    get.request = 3;
    get.object = 1;
    get.target = &target;
    worker_fixture_send(&fixture, TOW_MESSAGE_SHARD_GET, &get.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_code, TOW_INVALID_ARGUMENT);
    const void *address;
    tow_env_lane_address(fixture.client_env, &address,
                         &target.lane_address.len);
    target.lane_address.data = (uint8_t *)address;
    target.region_id = 12345;
    get.request = 4;
    worker_fixture_send(&fixture, TOW_MESSAGE_SHARD_GET, &get.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_count, 4);
    assert_int_equal(fixture.received.get_code, TOW_NOT_FOUND);
    assert_int_equal(fixture.received.session_end_count, 0);
    worker_fixture_close(&fixture);
}

static void gets_beyond_the_memory_limit_wait_in_order(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[60000];
    worker_fixture_join(&fixture,
                        (tow_worker_limits_t){.get_bytes_max = 100000});
    worker_fixture_send_put(&fixture, 1, sizeof(bytes), bytes, sizeof(bytes));
    for (uint64_t request = 1; request <= 5; request++)
        worker_fixture_send_get(&fixture, request, 1, 0, true);
    worker_fixture_run_for(&fixture, 25000);
    assert_int_equal(stats_of(&fixture).get_count, 5);
    assert_int_equal(stats_of(&fixture).get_bytes, sizeof(bytes));
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.get_count, 5);
    assert_int_equal(fixture.received.get_request, 5);
    assert_int_equal(fixture.arrived_count, 5);
    worker_fixture_close(&fixture);
}

static void waiting_gets_keep_a_value_that_a_run_consumes(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    static uint8_t bytes[60000];
    worker_fixture_join(&fixture,
                        (tow_worker_limits_t){.get_bytes_max = 100000});
    worker_fixture_send_load(&fixture, ADD, consuming_text);
    worker_fixture_send_step(&fixture, RUN_ADD, ADD, CONSUMES_ARGUMENT);
    worker_fixture_send_put(&fixture, 1, sizeof(bytes), bytes, sizeof(bytes));
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.load_code, TOW_CODE_OK);
    worker_fixture_send_get(&fixture, 1, 1, 0, true);
    worker_fixture_send_get(&fixture, 2, 1, 0, true); /* Waits for memory. */
    worker_fixture_send_grant(&fixture, 1, RUN_ADD, 1);
    worker_fixture_run_for(&fixture, SECOND);
    assert_int_equal(fixture.received.run_count, 1);
    assert_int_equal(fixture.received.get_count, 2);
    assert_int_equal(fixture.received.get_request, 2);
    assert_int_equal(fixture.received.get_code, TOW_CODE_OK);
    assert_int_equal(fixture.arrived_count, 2);
    worker_fixture_send_release(&fixture, 1, 1);
    worker_fixture_send_release(&fixture, 1000, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(tow_sim_device_counts(fixture.driver).buffers, 0);
    worker_fixture_close(&fixture);
}

static void shards_are_assembled_into_an_object(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    uint8_t bytes[DEVICES * 16] = "the first shard.the second shard";
    const uint64_t sources[] = {1, 2};
    open_with_contents(&fixture);
    worker_fixture_send_put(&fixture, 2, 16, bytes, sizeof(bytes));
    worker_fixture_send_assemble(&fixture, 3, sources, 1);
    worker_fixture_send_release(&fixture, 1, 2);
    worker_fixture_send_grant(&fixture, 1, RUN_ADD, 3);
    worker_fixture_send_get(&fixture, 1, 3, 0, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_memory_equal(fixture.received.get_bytes, sixteen, 16);
    worker_fixture_send_get(&fixture, 2, 3, 1, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_memory_equal(fixture.received.get_bytes, bytes + 16, 16);
    assert_int_equal(fixture.received.run_count, 1);
    worker_fixture_send_release(&fixture, 3, 1);
    worker_fixture_send_release(&fixture, 1000, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(tow_sim_device_counts(fixture.driver).buffers, 0);
    worker_fixture_close(&fixture);
}

static void an_assembly_of_missing_shards_fails(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    const uint64_t absent[] = {1, 99}, there[] = {1, 1};
    open_with_contents(&fixture);
    worker_fixture_send_assemble(&fixture, 2, absent, 1);
    worker_fixture_send_get(&fixture, 1, 2, 0, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_code, TOW_NOT_FOUND);
    expect_part(fixture.received.get_message, "object 99");
    worker_fixture_send_assemble(&fixture, 3, there, DEVICES);
    worker_fixture_send_grant(&fixture, 1, RUN_ADD, 3);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.failures[0].code, TOW_OUT_OF_RANGE);
    worker_fixture_send_grant(&fixture, 2, RUN_GREEDY, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    const uint64_t failed[] = {1, 2000};
    worker_fixture_send_assemble(&fixture, 4, failed, 1);
    worker_fixture_send_get(&fixture, 2, 4, 0, false);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.get_code, TOW_RESOURCE_EXHAUSTED);
    assert_int_equal(fixture.received.session_end_count, 0);
    worker_fixture_close(&fixture);
}

/* -- Reports --------------------------------------------------------------- */

static void reports_describe_the_worker(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 1;
    get.kind = TOW_REPORT_STATUS;
    worker_fixture_send(&fixture, TOW_MESSAGE_REPORT_GET, &get.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.report_count, 1);
    expect_part(fixture.received.report_text, "\"worker\":\"worker/1\"");
    expect_part(fixture.received.report_text, "\"simulated\":true");
    expect_part(fixture.received.report_text,
                "\"shelf\":{\"objects\":1,\"failed\":0,\"shards\":2,"
                "\"bytes\":32}");
    expect_part(fixture.received.report_text, "\"bytes_in_use\":16");
    get.kind = TOW_REPORT_TRACE;
    worker_fixture_send(&fixture, TOW_MESSAGE_REPORT_GET, &get.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.report_count, 2);
    expect_part(fixture.received.report_text, "traceEvents");
    get.kind = TOW_REPORT_WAITS;
    worker_fixture_send(&fixture, TOW_MESSAGE_REPORT_GET, &get.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.report_count, 3);
    assert_int_equal(fixture.received.report_code, TOW_CODE_OK);
    assert_int_equal(fixture.received.wait_count, 1);
    assert_int_equal(fixture.received.wait_gang, 77);
    assert_int_equal(fixture.received.wait_missing_count, 2);
    get.kind = 55;
    worker_fixture_send(&fixture, TOW_MESSAGE_REPORT_GET, &get.base);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.report_code, TOW_UNIMPLEMENTED);
    worker_fixture_close(&fixture);
}

/* -- Crashes --------------------------------------------------------------- */

/* Operations of every kind are under way. */
static void make_busy(worker_fixture_t *fixture)
{
    static uint8_t bytes[200000];
    worker_fixture_send_load(fixture, 700, slow_text);
    worker_fixture_send_grant(fixture, 1, RUN_ADD, 1);
    worker_fixture_send_grant(fixture, 2, RUN_SLOW, 1000);
    worker_fixture_send_grant(fixture, 3, RUN_ADD, 2000);
    worker_fixture_send_get(fixture, 1, 2000, 0, true);
    worker_fixture_send_get(fixture, 2, 1, 0, true);
    worker_fixture_send_put(fixture, 5, sizeof(bytes), NULL, 0);
    worker_fixture_run_for(fixture, SECOND / 10);
    worker_fixture_client_write(fixture, 0, bytes, sizeof(bytes), 0);
    worker_fixture_send_blob(fixture, "nobody asks for it", 18);
    worker_fixture_run_for(fixture, SECOND / 100);
    const tow_worker_stats_t stats = stats_of(fixture);
    assert_int_equal(stats.dataflow.run_count, 2);
    assert_int_equal(stats.put_count, 1);
    assert_int_equal(stats.get_count, 1);
    assert_int_equal(stats.blob_count, 1);
}

static void a_worker_rejoins_after_the_controller_crashes(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    make_busy(&fixture);
    tow_sim_crash(fixture.controller);
    tow_session_discard(fixture.session);
    tow_session_port_discard(fixture.port);
    fixture.session = NULL;
    fixture.port = NULL;
    worker_fixture_run_for(&fixture, 5 * SECOND);
    assert_int_equal(fixture.received.disconnected_count, 1);
    worker_fixture_expect_empty(&fixture);
    tow_sim_restart(fixture.controller);
    worker_fixture_listen(&fixture);
    worker_fixture_run_for(&fixture, 10 * SECOND);
    assert_int_equal(fixture.received.joined_count, 2);
    assert_int_equal(stats_of(&fixture).session_count, 2);
    worker_fixture_expect_empty(&fixture);
    /* Nothing of the earlier session is left. */
    const size_t before = fixture.received.failure_count;
    worker_fixture_send_grant(&fixture, 1, RUN_ADD, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.failure_count, before + 1);
    send_contents(&fixture);
    worker_fixture_send_grant(&fixture, 2, RUN_ADD, 1);
    worker_fixture_run_for(&fixture, SECOND / 10);
    assert_int_equal(fixture.received.runs[fixture.received.run_count - 1], 2);
    worker_fixture_close(&fixture);
}

static void a_worker_rejoins_after_it_crashes(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    make_busy(&fixture);
    tow_sim_crash(fixture.worker_node);
    worker_fixture_run_for(&fixture, 5 * SECOND);
    assert_int_equal(fixture.received.session_end_count, 1);
    tow_sim_restart(fixture.worker_node);
    worker_fixture_run_for(&fixture, 5 * SECOND);
    assert_int_equal(fixture.received.joined_count, 2);
    worker_fixture_expect_empty(&fixture);
    worker_fixture_close(&fixture);
}

/* -- Protocol violations --------------------------------------------------- */

typedef void (*violation_t)(worker_fixture_t *fixture);

static void send_garbage(worker_fixture_t *fixture)
{
    uint8_t *room;
    assert_int_equal(tow_session_begin(fixture->session, 8, &room),
                     TOW_SEND_OK);
    memset(room, 0xff, 8);
    tow_session_commit(fixture->session, TOW_MESSAGE_GRANT, 8);
}

static void send_unknown_type(worker_fixture_t *fixture)
{
    uint8_t *room;
    assert_int_equal(tow_session_begin(fixture->session, 8, &room),
                     TOW_SEND_OK);
    memset(room, 0, 8);
    tow_session_commit(fixture->session, 9999, 8);
}

static void send_client_message(worker_fixture_t *fixture)
{
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    worker_fixture_send(fixture, TOW_MESSAGE_PUT_DONE, &done.base);
}

static void send_joined_again(worker_fixture_t *fixture)
{
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    worker_fixture_send(fixture, TOW_MESSAGE_WORKER_JOINED, &joined.base);
}

static void name_missing_blob(worker_fixture_t *fixture)
{
    tow_msg_load_t load = TOW_MSG_LOAD_INIT;
    load.executable = 1;
    load.code_blob = 4711;
    worker_fixture_send(fixture, TOW_MESSAGE_LOAD, &load.base);
}

static void send_garbage_program(worker_fixture_t *fixture)
{
    tow_msg_program_load_t load = TOW_MSG_PROGRAM_LOAD_INIT;
    load.program = 5;
    load.lowered_blob = worker_fixture_send_blob(fixture, "\xff\xff\xff", 3);
    worker_fixture_send(fixture, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
}

static void send_program_again(worker_fixture_t *fixture)
{
    worker_fixture_send_program(fixture, RUN_ADD, ADD);
}

static void grant_again(worker_fixture_t *fixture)
{
    worker_fixture_send_grant(fixture, 1, RUN_SLOW, 1);
    worker_fixture_send_grant(fixture, 1, RUN_SLOW, 1);
}

static void abort_without_a_cause(worker_fixture_t *fixture)
{
    worker_fixture_send_abort(fixture, 1, NULL);
}

static void release_too_many(worker_fixture_t *fixture)
{
    worker_fixture_send_release(fixture, 1, UINT32_MAX);
}

static void release_mismatched(worker_fixture_t *fixture)
{
    uint64_t firsts[] = {1, 2};
    uint32_t counts[] = {1};
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = firsts;
    release.n_firsts = 2;
    release.counts = counts;
    release.n_counts = 1;
    worker_fixture_send(fixture, TOW_MESSAGE_RELEASE, &release.base);
}

static void introduce_worker_to_itself(worker_fixture_t *fixture)
{
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    peer.process = 1;
    worker_fixture_send(fixture, TOW_MESSAGE_PEER, &peer.base);
}

static void disconnect_unknown_peer(worker_fixture_t *fixture)
{
    tow_msg_peer_disconnected_t disconnected = TOW_MSG_PEER_DISCONNECTED_INIT;
    disconnected.process = 9;
    worker_fixture_send(fixture, TOW_MESSAGE_PEER_DISCONNECTED,
                        &disconnected.base);
}

static void send_unnamed_blobs(worker_fixture_t *fixture)
{
    for (size_t i = 0; i <= TOW_WORKER_BLOB_COUNT_MAX; i++)
        worker_fixture_send_blob(fixture, "x", 1);
}

static void assemble_nothing(worker_fixture_t *fixture)
{
    tow_msg_shard_assemble_t assemble = TOW_MSG_SHARD_ASSEMBLE_INIT;
    assemble.object = 50;
    worker_fixture_send(fixture, TOW_MESSAGE_SHARD_ASSEMBLE, &assemble.base);
}

static const struct {
    violation_t act;
    const char *answer;
} violations[] = {
    {send_garbage, "Grant"},
    {send_unknown_type, "9999"},
    {send_client_message, "PutDone: not a message for a worker"},
    {send_joined_again, "WorkerJoined: a second time"},
    {name_missing_blob, "Load: no blob 4711"},
    {send_garbage_program, "ProgramLoad: program 5"},
    {send_program_again, "exists on this worker already"},
    {grant_again, "granted a second time"},
    {abort_without_a_cause, "no cause"},
    {release_too_many, "objects in one message"},
    {release_mismatched, "2 firsts and 1 counts"},
    {assemble_nothing, "ShardAssemble: 0 sources"},
    {introduce_worker_to_itself, "known already"},
    {disconnect_unknown_peer, "process 9 is not known"},
    {send_unnamed_blobs, "wait for a message that names them"},
};

static void protocol_violations_end_only_the_session(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    open_with_contents(&fixture);
    for (size_t i = 0; i < TOW_COUNT_OF(violations); i++) {
        make_busy(&fixture);
        violations[i].act(&fixture);
        worker_fixture_run_for(&fixture, 10 * SECOND);
        assert_int_equal(fixture.received.session_end_count, (int)i + 1);
        expect_part(fixture.received.session_end_message, violations[i].answer);
        assert_int_equal(fixture.received.joined_count, (int)i + 2);
        worker_fixture_expect_empty(&fixture);
        send_contents(&fixture);
    }
    worker_fixture_close(&fixture);
}

static void messages_before_joining_end_the_session(void **state)
{
    (void)state;
    worker_fixture_t fixture = {0};
    worker_fixture_open(&fixture, (tow_worker_limits_t){0});
    fixture.is_silent = true;
    worker_fixture_listen(&fixture);
    worker_fixture_run_for(&fixture, SECOND);
    worker_fixture_send_put(&fixture, 1, 16, sixteen, 16);
    fixture.is_silent = false;
    worker_fixture_run_for(&fixture, 5 * SECOND);
    assert_int_equal(fixture.received.put_count, 0);
    expect_part(fixture.received.session_end_message,
                "before the controller accepted this worker");
    assert_int_equal(fixture.received.joined_count, 1);
    worker_fixture_close(&fixture);
}

TOW_TEST_MAIN(cmocka_unit_test(a_worker_reports_its_host_and_devices),
              cmocka_unit_test(a_worker_dials_until_the_controller_answers),
              cmocka_unit_test(a_refused_worker_retries),
              cmocka_unit_test(a_worker_may_close_at_any_point),
              cmocka_unit_test(peers_are_added_and_disconnected),
              cmocka_unit_test(unawaited_grants_run_in_order),
              cmocka_unit_test(a_failure_has_node_device_and_cause),
              cmocka_unit_test(an_abort_ends_a_run),
              cmocka_unit_test(completions_of_one_turn_are_one_message),
              cmocka_unit_test(a_failed_load_reports_the_cause),
              cmocka_unit_test(unloaded_executables_are_freed),
              cmocka_unit_test(small_arrays_are_inlined_in_messages),
              cmocka_unit_test(large_gets_share_device_memory),
              cmocka_unit_test(shared_gets_end_with_the_session),
              cmocka_unit_test(large_arrays_are_written_over_lanes),
              cmocka_unit_test(a_partial_write_of_a_shard_is_refused),
              cmocka_unit_test(a_released_put_is_discarded),
              cmocka_unit_test(an_invalid_put_fails_only_itself),
              cmocka_unit_test(a_device_without_memory_refuses_a_put),
              cmocka_unit_test(an_invalid_get_fails_only_itself),
              cmocka_unit_test(gets_beyond_the_memory_limit_wait_in_order),
              cmocka_unit_test(waiting_gets_keep_a_value_that_a_run_consumes),
              cmocka_unit_test(shards_are_assembled_into_an_object),
              cmocka_unit_test(an_assembly_of_missing_shards_fails),
              cmocka_unit_test(reports_describe_the_worker),
              cmocka_unit_test(a_worker_rejoins_after_the_controller_crashes),
              cmocka_unit_test(a_worker_rejoins_after_it_crashes),
              cmocka_unit_test(protocol_violations_end_only_the_session),
              cmocka_unit_test(messages_before_joining_end_the_session))
