/* The worker against a controller that the tests write themselves. */
#include "worker/world_testing_impl.h"

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
static void fill(world_t *world)
{
    world->heard.load_count = 0;
    say_load(world, ADD, add_text);
    say_load(world, SLOW, slow_text);
    say_load(world, GREEDY, greedy_text);
    say_program(world, RUN_ADD, ADD);
    say_program(world, RUN_SLOW, SLOW);
    say_program(world, RUN_GREEDY, GREEDY);
    say_put(world, 1, 16, sixteen, 16);
    run_for(world, SECOND / 10);
    assert_int_equal(world->heard.load_count, 3);
    assert_int_equal(world->heard.load_code, TOW_CODE_OK);
    assert_int_equal(world->heard.put_object, 1);
    assert_int_equal(world->heard.put_code, TOW_CODE_OK);
}

static void world_fill(world_t *world)
{
    world_join(world, (tow_worker_limits_t){0});
    fill(world);
}

static tow_worker_stats_t stats_of(const world_t *world)
{
    return tow_worker_stats(world->worker);
}

/* -- Joining --------------------------------------------------------------------- */

static void a_worker_says_what_it_has(void **state)
{
    (void)state;
    world_t world = {0};
    world_join(&world, (tow_worker_limits_t){0});
    assert_int_equal(world.heard.join_count, 1);
    assert_int_equal(world.heard.join_process, 1);
    assert_int_equal(world.heard.join_devices, DEVICES);
    assert_string_equal(world.heard.join_host, "host-1");
    assert_string_equal(tow_session_peer(world.session)->name, "worker/1");
    expect_empty(&world);
    world_close(&world);
}

static void a_worker_dials_until_somebody_answers(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world, (tow_worker_limits_t){0});
    run_for(&world, 30 * SECOND);
    assert_int_equal(world.heard.joined_count, 0);
    controller_listen(&world);
    run_for(&world, 10 * SECOND);
    assert_int_equal(world.heard.joined_count, 1);
    world_close(&world);
}

static void a_worker_that_is_refused_tries_again(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world, (tow_worker_limits_t){0});
    world.refuses = true;
    controller_listen(&world);
    run_for(&world, 10 * SECOND);
    assert_true(world.heard.join_count > 3 && world.heard.join_count < 30);
    assert_int_equal(world.heard.joined_count + world.heard.lost_count, 0);
    expect_part(world.heard.gone_message, "process 1 is taken");
    world.refuses = false;
    run_for(&world, 10 * SECOND);
    assert_int_equal(world.heard.joined_count, 1);
    world_close(&world);
}

static void a_worker_closes_at_any_moment(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world, (tow_worker_limits_t){0}); /* not even started */
    run_for(&world, 1);
    world_close(&world); /* dialling */
    world_open(&world, (tow_worker_limits_t){0});
    run_for(&world, 5 * SECOND);
    world_close(&world); /* between two attempts, or in one */
    world_open(&world, (tow_worker_limits_t){0});
    world.is_silent = true;
    controller_listen(&world);
    run_for(&world, SECOND);
    assert_int_equal(stats_of(&world).state, TOW_WORKER_JOINING);
    world_close(&world);
    world_fill(&world);
    say_grant(&world, 1, RUN_SLOW, 1);
    say_get(&world, 1, 1000, 0, true);
    say_put(&world, 5, 100000, NULL, 0);
    run_for(&world, SECOND / 100);
    assert_int_equal(stats_of(&world).dataflow.run_count, 1);
    world_close(&world);
}

static void peers_come_and_go(void **state)
{
    (void)state;
    world_t world = {0};
    world_join(&world, (tow_worker_limits_t){0});
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
        say(&world, TOW_MESSAGE_PEER, &peer.base);
    }
    tow_msg_peer_gone_t gone = TOW_MSG_PEER_GONE_INIT;
    gone.process = 3;
    say(&world, TOW_MESSAGE_PEER_GONE, &gone.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.peer_added_count, 3);
    assert_int_equal(world.heard.peer.process, 4);
    assert_int_equal(world.heard.peer.device_count, 4);
    assert_int_equal(world.heard.peer.lane_address_size, 5);
    assert_int_equal(world.heard.peer.mail.secret, 9);
    assert_int_equal(world.heard.peer_gone_count, 1);
    assert_int_equal(stats_of(&world).peer_count, 2);
    world_close(&world);
    assert_int_equal(world.heard.peer_gone_count, 3);
}

/* -- Runs -------------------------------------------------------------------------- */

static void unawaited_grants_run_in_order(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    say_grant(&world, 1, RUN_ADD, 1);
    for (uint64_t run = 2; run <= 30; run++)
        say_grant(&world, run, RUN_ADD, 1000 * (run - 1));
    say_get(&world, 9, 30000, 1, false);
    say_release(&world, 1000, 29001); /* all but the last */
    run_for(&world, SECOND);
    assert_int_equal(world.heard.run_count, 30);
    for (uint64_t run = 1; run <= 30; run++)
        assert_int_equal(world.heard.runs[run - 1], run);
    assert_int_equal(world.heard.get_code, TOW_CODE_OK);
    assert_int_equal(world.heard.get_size, 16);
    /* All reduced alike: both devices have the same. */
    uint8_t shard_1[16];
    memcpy(shard_1, world.heard.get_bytes, 16);
    say_grant(&world, 31, RUN_ADD, 1);
    say_get(&world, 10, 31000, 0, false);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.get_count, 2);
    assert_memory_not_equal(shard_1, world.heard.get_bytes, 16);
    say_release(&world, 1, 1);
    say_release(&world, 31000, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(stats_of(&world).shelf.bytes, 0);
    world_close(&world);
}

static void a_failure_has_node_device_and_cause(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    say_grant(&world, 1, RUN_GREEDY, 1);
    say_grant(&world, 2, RUN_ADD, 1000);
    say_grant(&world, 3, 999, 1);
    say_grant(&world, 4, RUN_ADD, 1);
    say_get(&world, 1, 2000, 0, false);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.run_count, 1);
    assert_int_equal(world.heard.runs[0], 4);
    assert_int_equal(world.heard.failure_count, 3);
    for (size_t i = 0; i < 3; i++) {
        if (world.heard.failures[i].run == 3) {
            assert_int_equal(world.heard.failures[i].code, TOW_NOT_FOUND);
            continue;
        }
        assert_int_equal(world.heard.failures[i].code, TOW_RESOURCE_EXHAUSTED);
        assert_int_equal(world.heard.failures[i].node, 1);
        expect_part(world.heard.failures[i].message, "run 1, node 1");
        expect_part(world.heard.failures[i].message, "device 2048, greedy");
    }
    assert_int_equal(world.heard.get_code, TOW_RESOURCE_EXHAUSTED);
    expect_part(world.heard.get_message, "greedy");
    world_close(&world);
}

static void an_abort_ends_a_run(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    say_grant(&world, 1, RUN_SLOW, 1);
    say_grant(&world, 2, RUN_ADD, 1000);
    say_grant(&world, 3, RUN_ADD, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.done_count, 0);
    say_abort(&world, 1, "enough");
    say_abort(&world, 77, "of nothing");
    run_for(&world, SECOND);
    assert_int_equal(world.heard.run_count, 1);
    assert_int_equal(world.heard.failure_count, 2);
    assert_int_equal(world.heard.failures[0].run, 1);
    assert_int_equal(world.heard.failures[0].code, TOW_CANCELLED);
    assert_int_equal(world.heard.failures[1].code, TOW_CANCELLED);
    expect_part(world.heard.failures[1].message, "enough");
    world_close(&world);
}

static void completions_of_one_turn_are_one_message(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    say_grant(&world, 1, RUN_SLOW, 1);
    for (uint64_t run = 2; run <= 20; run++)
        say_grant(&world, run, RUN_ADD, 1000);
    run_for(&world, SECOND / 10);
    say_abort(&world, 1, "and all that depend on it");
    run_for(&world, SECOND);
    assert_int_equal(world.heard.failure_count, 20);
    assert_int_equal(world.heard.done_count, 1);
    world_close(&world);
}

/* -- Loads ------------------------------------------------------------------------- */

static void a_load_that_fails_says_why(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    say_load(&world, 500, "nonsense");
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.load_executable, 500);
    assert_int_equal(world.heard.load_code, TOW_INVALID_ARGUMENT);
    say_load(&world, ADD, add_text);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.load_code, TOW_ALREADY_EXISTS);
    world_close(&world);
}

static void what_is_unloaded_is_gone(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    tow_msg_unload_t unload = TOW_MSG_UNLOAD_INIT;
    tow_msg_program_unload_t program = TOW_MSG_PROGRAM_UNLOAD_INIT;
    say_grant(&world, 1, RUN_ADD, 1);
    unload.executable = ADD;
    say(&world, TOW_MESSAGE_UNLOAD, &unload.base);
    program.program = RUN_ADD;
    say(&world, TOW_MESSAGE_PROGRAM_UNLOAD, &program.base);
    say_grant(&world, 2, RUN_ADD, 1);
    /* One that is on its way. */
    say_load(&world, 600, add_text);
    unload.executable = 600;
    say(&world, TOW_MESSAGE_UNLOAD, &unload.base);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.run_count, 1);
    assert_int_equal(world.heard.failures[0].code, TOW_NOT_FOUND);
    assert_int_equal(world.heard.gone_count, 0);
    assert_int_equal(stats_of(&world).dataflow.executable_count, 2);
    assert_int_equal(tow_sim_device_counts(world.driver).executables, 2);
    world_close(&world);
}

/* -- Puts and gets --------------------------------------------------------------------- */

static void small_arrays_travel_inside_messages(void **state)
{
    (void)state;
    world_t world = {0};
    uint8_t bytes[DEVICES * 8];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 3 + 1);
    world_join(&world, (tow_worker_limits_t){0});
    say_put(&world, 1, 8, bytes, sizeof(bytes));
    say_get(&world, 1, 1, 1, false);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.put_count, 1);
    assert_int_equal(world.heard.get_size, 8);
    assert_memory_equal(world.heard.get_bytes, bytes + 8, 8);
    /* Of no bytes. */
    say_put(&world, 2, 0, bytes, 0);
    say_get(&world, 2, 2, 0, false);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.get_count, 2);
    assert_int_equal(world.heard.get_code, TOW_CODE_OK);
    assert_int_equal(world.heard.get_size, 0);
    assert_int_equal(stats_of(&world).put_bytes, 0);
    world_close(&world);
}

static void large_arrays_travel_over_lanes(void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[DEVICES][50000];
    for (size_t d = 0; d < DEVICES; d++)
        for (size_t i = 0; i < sizeof(bytes[d]); i++)
            bytes[d][i] = (uint8_t)(i * (d + 3) + i / 251);
    world_join(&world, (tow_worker_limits_t){0});
    say_put(&world, 1, sizeof(bytes[0]), NULL, 0);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.opened_count, 1);
    assert_int_equal(world.heard.target_count, DEVICES);
    client_write(&world, 1, bytes[1], sizeof(bytes[1]), 0);
    assert_int_equal(world.heard.put_count, 0);
    client_write(&world, 0, bytes[0], sizeof(bytes[0]), 0);
    assert_int_equal(world.heard.put_count, 1);
    assert_int_equal(world.heard.put_code, TOW_CODE_OK);
    /* It cannot be written any more. */
    client_write(&world, 0, bytes[1], sizeof(bytes[1]), 0);
    assert_int_equal(world.write_code, TOW_NOT_FOUND);
    for (uint32_t shard = 0; shard < DEVICES; shard++) {
        say_get(&world, 10 + shard, 1, shard, true);
        run_for(&world, SECOND / 10);
        assert_int_equal(world.heard.get_count, (int)shard + 1);
        assert_int_equal(world.heard.get_code, TOW_CODE_OK);
        assert_int_equal(world.arrived_count, (int)shard + 1);
        assert_int_equal(world.arrival.size, sizeof(bytes[shard]));
        assert_memory_equal(world.memory, bytes[shard], sizeof(bytes[shard]));
    }
    assert_int_equal(stats_of(&world).lane_count, 1);
    assert_int_equal(stats_of(&world).get_bytes, 0);
    world_close(&world);
}

/* From the device's memory, which is held until they have arrived. Simulated
 * devices keep no values of this size, so what arrives says nothing. */
static void large_gets_are_borrowed(void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[TOW_WORKER_BORROW_BYTES_MIN + 1000];
    world_join(&world, (tow_worker_limits_t){0});
    say_put(&world, 1, sizeof(bytes), NULL, 0);
    run_for(&world, SECOND / 10);
    client_write(&world, 0, bytes, sizeof(bytes), 0);
    client_write(&world, 1, bytes, sizeof(bytes), 0);
    assert_int_equal(world.heard.put_code, TOW_CODE_OK);
    say_get(&world, 1, 1, 0, true);
    say_get(&world, 2, 1, 1, true);
    say_release(&world, 1, 1); /* The gets hold what they need. */
    run_for(&world, SECOND);
    assert_int_equal(world.heard.get_count, 2);
    assert_int_equal(world.heard.get_code, TOW_CODE_OK);
    assert_int_equal(world.arrived_count, 2);
    assert_int_equal(world.arrival.size, sizeof(bytes));
    assert_int_equal(stats_of(&world).get_bytes, 0);
    assert_int_equal(tow_sim_device_counts(world.driver).buffers, 0);
    world_close(&world);
}

/* The session ends with a get under way: the device has its memory back. */
static void borrowed_gets_end_with_the_session(void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[TOW_WORKER_BORROW_BYTES_MIN];
    world_join(&world, (tow_worker_limits_t){0});
    say_put(&world, 1, sizeof(bytes), NULL, 0);
    run_for(&world, SECOND / 10);
    client_write(&world, 0, bytes, sizeof(bytes), 0);
    client_write(&world, 1, bytes, sizeof(bytes), 0);
    say_get(&world, 1, 1, 0, true);
    run_for(&world, 25000);
    assert_int_equal(stats_of(&world).get_count, 1);
    world_close(&world); /* Finds whatever is left. */
}

static void a_shard_that_is_not_written_whole_is_refused(void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[1000];
    world_join(&world, (tow_worker_limits_t){0});
    say_put(&world, 1, sizeof(bytes), NULL, 0);
    run_for(&world, SECOND / 10);
    client_write(&world, 0, bytes, 500, 0);
    assert_int_equal(world.heard.put_code, TOW_INVALID_ARGUMENT);
    expect_part(world.heard.put_message, "written whole");
    run_for(&world, SECOND);
    assert_int_equal(stats_of(&world).put_count, 0);
    say_get(&world, 1, 1, 0, false);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_code, TOW_INVALID_ARGUMENT);
    world_close(&world);
}

static void a_put_is_undone_when_it_is_released(void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[1000];
    world_join(&world, (tow_worker_limits_t){0});
    say_put(&world, 1, sizeof(bytes), NULL, 0);
    run_for(&world, SECOND / 10);
    client_write(&world, 0, bytes, sizeof(bytes), 0);
    assert_int_equal(stats_of(&world).put_count, 1);
    say_release(&world, 1, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.put_count, 0);
    expect_part(tow_worker_state_name(stats_of(&world).state), "joined");
    assert_int_equal(stats_of(&world).put_count, 0);
    assert_int_equal(stats_of(&world).put_bytes, 0);
    assert_int_equal(tow_sim_device_counts(world.driver).buffers, 0);
    world_close(&world);
}

static void a_wrong_put_fails_alone(void **state)
{
    (void)state;
    world_t world = {0};
    world_join(&world, (tow_worker_limits_t){.put_bytes_max = 10000});
    say_put(&world, 1, 16, sixteen, 15);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.put_code, TOW_INVALID_ARGUMENT);
    expect_part(world.heard.put_message, "15 came");
    say_put(&world, 2, 100000, NULL, 0);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.put_code, TOW_RESOURCE_EXHAUSTED);
    say_put(&world, 3, 0, NULL, 0);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.put_code, TOW_INVALID_ARGUMENT);
    say_put(&world, 4, 16, sixteen, 16);
    say_put(&world, 4, 16, sixteen, 16);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.put_code, TOW_ALREADY_EXISTS);
    uint32_t devices[] = {0, 0};
    tow_msg_shard_put_t put = TOW_MSG_SHARD_PUT_INIT;
    put.object = 5;
    put.devices = devices;
    put.n_devices = 2;
    say(&world, TOW_MESSAGE_SHARD_PUT, &put.base);
    run_for(&world, SECOND / 10);
    expect_part(world.heard.put_message, "each once");
    devices[1] = 1;
    say(&world, TOW_MESSAGE_SHARD_PUT, &put.base);
    run_for(&world, SECOND / 10);
    expect_part(world.heard.put_message, "no shape");
    assert_int_equal(world.heard.gone_count, 0);
    world_close(&world);
}

static void a_device_without_memory_refuses_a_put(void **state)
{
    (void)state;
    world_t world = {0};
    world_join(&world, (tow_worker_limits_t){0});
    static uint8_t bytes[1000];
    tow_buffer_t *ballast;
    must(tow_driver_allocate(world.driver, 1,
                             &(tow_shape_t){.type = TOW_TYPE_U8,
                                            .rank = 1,
                                            .dims = {MEMORY_BYTES - 500}},
                             &ballast));
    say_put(&world, 1, 1000, bytes, 1000);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.put_code, TOW_RESOURCE_EXHAUSTED);
    say_put(&world, 2, 1000, NULL, 0);
    run_for(&world, SECOND / 10);
    client_write(&world, 0, bytes, 1000, 0);
    client_write(&world, 1, bytes, 1000, 0);
    assert_int_equal(world.heard.put_object, 2);
    assert_int_equal(world.heard.put_code, TOW_RESOURCE_EXHAUSTED);
    say_release(&world, 1, 2);
    run_for(&world, SECOND / 10);
    tow_buffer_release(ballast);
    assert_int_equal(tow_sim_device_counts(world.driver).buffers, 0);
    world_close(&world);
}

static void a_wrong_get_fails_alone(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    say_get(&world, 1, 99, 0, false);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_code, TOW_NOT_FOUND);
    say_get(&world, 2, 1, DEVICES, false);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_code, TOW_OUT_OF_RANGE);
    tow_region_close(world.region, (tow_closed_t){0});
    run_for(&world, SECOND / 10);
    tow_msg_shard_get_t get = TOW_MSG_SHARD_GET_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    get.request = 3;
    get.object = 1;
    get.target = &target;
    say(&world, TOW_MESSAGE_SHARD_GET, &get.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_code, TOW_INVALID_ARGUMENT);
    const void *address;
    tow_env_lane_address(world.client_env, &address, &target.lane_address.len);
    target.lane_address.data = (uint8_t *)address;
    target.region_id = 12345;
    get.request = 4;
    say(&world, TOW_MESSAGE_SHARD_GET, &get.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_count, 4);
    assert_int_equal(world.heard.get_code, TOW_NOT_FOUND);
    assert_int_equal(world.heard.gone_count, 0);
    world_close(&world);
}

static void gets_beyond_the_memory_wait_in_order(void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[60000];
    world_join(&world, (tow_worker_limits_t){.get_bytes_max = 100000});
    say_put(&world, 1, sizeof(bytes), bytes, sizeof(bytes));
    for (uint64_t request = 1; request <= 5; request++)
        say_get(&world, request, 1, 0, true);
    run_for(&world, 25000);
    assert_int_equal(stats_of(&world).get_count, 5);
    assert_int_equal(stats_of(&world).get_bytes, sizeof(bytes));
    run_for(&world, SECOND);
    assert_int_equal(world.heard.get_count, 5);
    assert_int_equal(world.heard.get_request, 5);
    assert_int_equal(world.arrived_count, 5);
    world_close(&world);
}

static void gets_that_wait_have_their_value_though_a_run_consumes_it(
    void **state)
{
    (void)state;
    world_t world = {0};
    static uint8_t bytes[60000];
    world_join(&world, (tow_worker_limits_t){.get_bytes_max = 100000});
    say_load(&world, ADD, consuming_text);
    say_step(&world, RUN_ADD, ADD, CONSUMES_ARGUMENT);
    say_put(&world, 1, sizeof(bytes), bytes, sizeof(bytes));
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.load_code, TOW_CODE_OK);
    say_get(&world, 1, 1, 0, true);
    say_get(&world, 2, 1, 0, true); /* Waits for memory. */
    say_grant(&world, 1, RUN_ADD, 1);
    run_for(&world, SECOND);
    assert_int_equal(world.heard.run_count, 1);
    assert_int_equal(world.heard.get_count, 2);
    assert_int_equal(world.heard.get_request, 2);
    assert_int_equal(world.heard.get_code, TOW_CODE_OK);
    assert_int_equal(world.arrived_count, 2);
    say_release(&world, 1, 1);
    say_release(&world, 1000, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(tow_sim_device_counts(world.driver).buffers, 0);
    world_close(&world);
}

static void shards_become_a_new_object(void **state)
{
    (void)state;
    world_t world = {0};
    uint8_t bytes[DEVICES * 16] = "the first shard.the second shard";
    const uint64_t sources[] = {1, 2};
    world_fill(&world);
    say_put(&world, 2, 16, bytes, sizeof(bytes));
    say_regroup(&world, 3, sources, 1);
    say_release(&world, 1, 2);
    say_grant(&world, 1, RUN_ADD, 3);
    say_get(&world, 1, 3, 0, false);
    run_for(&world, SECOND / 10);
    assert_memory_equal(world.heard.get_bytes, sixteen, 16);
    say_get(&world, 2, 3, 1, false);
    run_for(&world, SECOND / 10);
    assert_memory_equal(world.heard.get_bytes, bytes + 16, 16);
    assert_int_equal(world.heard.run_count, 1);
    say_release(&world, 3, 1);
    say_release(&world, 1000, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(tow_sim_device_counts(world.driver).buffers, 0);
    world_close(&world);
}

static void a_regroup_of_what_is_not_there_has_failed(void **state)
{
    (void)state;
    world_t world = {0};
    const uint64_t absent[] = {1, 99}, there[] = {1, 1};
    world_fill(&world);
    say_regroup(&world, 2, absent, 1);
    say_get(&world, 1, 2, 0, false);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_code, TOW_NOT_FOUND);
    expect_part(world.heard.get_message, "object 99");
    say_regroup(&world, 3, there, DEVICES);
    say_grant(&world, 1, RUN_ADD, 3);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.failures[0].code, TOW_OUT_OF_RANGE);
    say_grant(&world, 2, RUN_GREEDY, 1);
    run_for(&world, SECOND / 10);
    const uint64_t failed[] = {1, 2000};
    say_regroup(&world, 4, failed, 1);
    say_get(&world, 2, 4, 0, false);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.get_code, TOW_RESOURCE_EXHAUSTED);
    assert_int_equal(world.heard.gone_count, 0);
    world_close(&world);
}

/* -- Reports -------------------------------------------------------------------------- */

static void reports_say_what_there_is(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 1;
    get.kind = TOW_REPORT_STATUS;
    say(&world, TOW_MESSAGE_REPORT_GET, &get.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.report_count, 1);
    expect_part(world.heard.report_text, "\"worker\":\"worker/1\"");
    expect_part(world.heard.report_text, "\"simulated\":true");
    expect_part(world.heard.report_text,
                "\"shelf\":{\"objects\":1,\"failed\":0,\"shards\":2,"
                "\"bytes\":32}");
    expect_part(world.heard.report_text, "\"bytes_in_use\":16");
    get.kind = TOW_REPORT_TRACE;
    say(&world, TOW_MESSAGE_REPORT_GET, &get.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.report_count, 2);
    expect_part(world.heard.report_text, "traceEvents");
    get.kind = TOW_REPORT_WAITS;
    say(&world, TOW_MESSAGE_REPORT_GET, &get.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.report_count, 3);
    assert_int_equal(world.heard.report_code, TOW_CODE_OK);
    assert_int_equal(world.heard.wait_count, 1);
    assert_int_equal(world.heard.wait_gang, 77);
    assert_int_equal(world.heard.wait_missing_count, 2);
    get.kind = 55;
    say(&world, TOW_MESSAGE_REPORT_GET, &get.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.report_code, TOW_UNIMPLEMENTED);
    world_close(&world);
}

/* -- The controller goes ---------------------------------------------------------------- */

/* Everything that can be under way, is. */
static void make_busy(world_t *world)
{
    static uint8_t bytes[200000];
    say_load(world, 700, slow_text);
    say_grant(world, 1, RUN_ADD, 1);
    say_grant(world, 2, RUN_SLOW, 1000);
    say_grant(world, 3, RUN_ADD, 2000);
    say_get(world, 1, 2000, 0, true);
    say_get(world, 2, 1, 0, true);
    say_put(world, 5, sizeof(bytes), NULL, 0);
    run_for(world, SECOND / 10);
    client_write(world, 0, bytes, sizeof(bytes), 0);
    say_blob(world, "nobody asks for it", 18);
    run_for(world, SECOND / 100);
    const tow_worker_stats_t stats = stats_of(world);
    assert_int_equal(stats.dataflow.run_count, 2);
    assert_int_equal(stats.put_count, 1);
    assert_int_equal(stats.get_count, 1);
    assert_int_equal(stats.blob_count, 1);
}

static void the_controller_dies_and_comes_back(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    make_busy(&world);
    tow_sim_crash(world.controller);
    tow_session_abandon(world.session);
    tow_session_port_abandon(world.port);
    world.session = NULL;
    world.port = NULL;
    run_for(&world, 5 * SECOND);
    assert_int_equal(world.heard.lost_count, 1);
    expect_empty(&world);
    tow_sim_restart(world.controller);
    controller_listen(&world);
    run_for(&world, 10 * SECOND);
    assert_int_equal(world.heard.joined_count, 2);
    assert_int_equal(stats_of(&world).session_count, 2);
    expect_empty(&world);
    /* It knows nothing of its former life. */
    const size_t before = world.heard.failure_count;
    say_grant(&world, 1, RUN_ADD, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.failure_count, before + 1);
    fill(&world);
    say_grant(&world, 2, RUN_ADD, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(world.heard.runs[world.heard.run_count - 1], 2);
    world_close(&world);
}

static void the_worker_dies_in_the_middle(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    make_busy(&world);
    tow_sim_crash(world.worker_node);
    run_for(&world, 5 * SECOND);
    assert_int_equal(world.heard.gone_count, 1);
    tow_sim_restart(world.worker_node);
    run_for(&world, 5 * SECOND);
    assert_int_equal(world.heard.joined_count, 2);
    expect_empty(&world);
    world_close(&world);
}

/* -- What cannot be understood ------------------------------------------------------------ */

typedef void (*malice_t)(world_t *world);

static void say_garbage(world_t *world)
{
    uint8_t *room;
    assert_int_equal(tow_session_begin(world->session, 8, &room), TOW_SEND_OK);
    memset(room, 0xff, 8);
    tow_session_commit(world->session, TOW_MESSAGE_GRANT, 8);
}

static void say_unknown(world_t *world)
{
    uint8_t *room;
    assert_int_equal(tow_session_begin(world->session, 8, &room), TOW_SEND_OK);
    memset(room, 0, 8);
    tow_session_commit(world->session, 9999, 8);
}

static void say_what_is_for_clients(world_t *world)
{
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    say(world, TOW_MESSAGE_PUT_DONE, &done.base);
}

static void say_joined_again(world_t *world)
{
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    say(world, TOW_MESSAGE_WORKER_JOINED, &joined.base);
}

static void name_no_blob(world_t *world)
{
    tow_msg_load_t load = TOW_MSG_LOAD_INIT;
    load.executable = 1;
    load.code_blob = 4711;
    say(world, TOW_MESSAGE_LOAD, &load.base);
}

static void say_program_of_garbage(world_t *world)
{
    tow_msg_program_load_t load = TOW_MSG_PROGRAM_LOAD_INIT;
    load.program = 5;
    load.lowered_blob = say_blob(world, "\xff\xff\xff", 3);
    say(world, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
}

static void say_program_again(world_t *world)
{
    say_program(world, RUN_ADD, ADD);
}

static void grant_again(world_t *world)
{
    say_grant(world, 1, RUN_SLOW, 1);
    say_grant(world, 1, RUN_SLOW, 1);
}

static void abort_without_a_cause(world_t *world)
{
    say_abort(world, 1, NULL);
}

static void release_the_world(world_t *world)
{
    say_release(world, 1, UINT32_MAX);
}

static void release_in_halves(world_t *world)
{
    uint64_t firsts[] = {1, 2};
    uint32_t counts[] = {1};
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = firsts;
    release.n_firsts = 2;
    release.counts = counts;
    release.n_counts = 1;
    say(world, TOW_MESSAGE_RELEASE, &release.base);
}

static void introduce_itself_to_itself(world_t *world)
{
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    peer.process = 1;
    say(world, TOW_MESSAGE_PEER, &peer.base);
}

static void lose_nobody(world_t *world)
{
    tow_msg_peer_gone_t gone = TOW_MSG_PEER_GONE_INIT;
    gone.process = 9;
    say(world, TOW_MESSAGE_PEER_GONE, &gone.base);
}

static void send_blobs_for_nobody(world_t *world)
{
    for (size_t i = 0; i <= TOW_WORKER_BLOB_COUNT_MAX; i++)
        say_blob(world, "x", 1);
}

static void regroup_nothing(world_t *world)
{
    tow_msg_shard_regroup_t regroup = TOW_MSG_SHARD_REGROUP_INIT;
    regroup.object = 50;
    say(world, TOW_MESSAGE_SHARD_REGROUP, &regroup.base);
}

static const struct {
    malice_t act;
    const char *answer;
} malices[] = {
    {say_garbage, "Grant"},
    {say_unknown, "9999"},
    {say_what_is_for_clients, "PutDone: no message for a worker"},
    {say_joined_again, "WorkerJoined: a second time"},
    {name_no_blob, "Load: there is no blob 4711"},
    {say_program_of_garbage, "ProgramLoad: program 5"},
    {say_program_again, "is here already"},
    {grant_again, "granted a second time"},
    {abort_without_a_cause, "no cause"},
    {release_the_world, "objects in one message"},
    {release_in_halves, "2 firsts and 1 counts"},
    {regroup_nothing, "ShardRegroup: 0 sources"},
    {introduce_itself_to_itself, "known already"},
    {lose_nobody, "process 9 is not known"},
    {send_blobs_for_nobody, "wait for a message that names them"},
};

static void what_cannot_be_understood_ends_the_session_alone(void **state)
{
    (void)state;
    world_t world = {0};
    world_fill(&world);
    for (size_t i = 0; i < TOW_COUNT_OF(malices); i++) {
        make_busy(&world);
        malices[i].act(&world);
        run_for(&world, 10 * SECOND);
        assert_int_equal(world.heard.gone_count, (int)i + 1);
        expect_part(world.heard.gone_message, malices[i].answer);
        assert_int_equal(world.heard.joined_count, (int)i + 2);
        expect_empty(&world);
        fill(&world);
    }
    world_close(&world);
}

static void nothing_is_done_before_it_has_joined(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world, (tow_worker_limits_t){0});
    world.is_silent = true;
    controller_listen(&world);
    run_for(&world, SECOND);
    say_put(&world, 1, 16, sixteen, 16);
    world.is_silent = false;
    run_for(&world, 5 * SECOND);
    assert_int_equal(world.heard.put_count, 0);
    expect_part(world.heard.gone_message, "before we were let in");
    assert_int_equal(world.heard.joined_count, 1);
    world_close(&world);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_worker_says_what_it_has),
    cmocka_unit_test(a_worker_dials_until_somebody_answers),
    cmocka_unit_test(a_worker_that_is_refused_tries_again),
    cmocka_unit_test(a_worker_closes_at_any_moment),
    cmocka_unit_test(peers_come_and_go),
    cmocka_unit_test(unawaited_grants_run_in_order),
    cmocka_unit_test(a_failure_has_node_device_and_cause),
    cmocka_unit_test(an_abort_ends_a_run),
    cmocka_unit_test(completions_of_one_turn_are_one_message),
    cmocka_unit_test(a_load_that_fails_says_why),
    cmocka_unit_test(what_is_unloaded_is_gone),
    cmocka_unit_test(small_arrays_travel_inside_messages),
    cmocka_unit_test(large_gets_are_borrowed),
    cmocka_unit_test(borrowed_gets_end_with_the_session),
    cmocka_unit_test(large_arrays_travel_over_lanes),
    cmocka_unit_test(a_shard_that_is_not_written_whole_is_refused),
    cmocka_unit_test(a_put_is_undone_when_it_is_released),
    cmocka_unit_test(a_wrong_put_fails_alone),
    cmocka_unit_test(a_device_without_memory_refuses_a_put),
    cmocka_unit_test(a_wrong_get_fails_alone),
    cmocka_unit_test(gets_beyond_the_memory_wait_in_order),
    cmocka_unit_test(gets_that_wait_have_their_value_though_a_run_consumes_it),
    cmocka_unit_test(shards_become_a_new_object),
    cmocka_unit_test(a_regroup_of_what_is_not_there_has_failed),
    cmocka_unit_test(reports_say_what_there_is),
    cmocka_unit_test(the_controller_dies_and_comes_back),
    cmocka_unit_test(the_worker_dies_in_the_middle),
    cmocka_unit_test(what_cannot_be_understood_ends_the_session_alone),
    cmocka_unit_test(nothing_is_done_before_it_has_joined))
