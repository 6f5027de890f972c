#include "env/sim/fixture_testing_impl.h"

#include "env/sim/tuning.h"

#define REGION_BYTES (1u << 20)

/* Two nodes, a lane from a to b, and a region at b. */
typedef struct lanes {
    pair_t pair;
    tow_lane_t *lane;
    tow_region_t *region;
    uint8_t *memory;
    uint8_t *source;
    tow_write_t write;
    int done_count;
    tow_code_t done_code;
    int64_t done_ns;
    int arrived_count;
    tow_arrival_t arrival;
    int datagram_count;
    uint64_t last_channel;
    uint8_t last_byte;
    int overtaken_count;
    int down_count;
    int writable_count;
    int lane_closed_count;
    int region_closed_count;
} lanes_t;

static void on_done(tow_write_t *write, tow_status_t take_status)
{
    lanes_t *lanes = TOW_CONTAINER_OF(write, lanes_t, write);
    lanes->done_count++;
    lanes->done_code = tow_status_code(take_status);
    lanes->done_ns = tow_env_now_ns(lanes->pair.a_env);
    tow_status_release(take_status);
}

static void on_arrived(void *context, tow_region_t *region,
                       const tow_arrival_t *arrival)
{
    (void)region;
    lanes_t *lanes = context;
    lanes->arrived_count++;
    lanes->arrival = *arrival;
}

static void on_datagram(void *context, uint64_t channel, const void *bytes,
                        size_t size)
{
    lanes_t *lanes = context;
    uint8_t byte = size > 0 ? *(const uint8_t *)bytes : 0;
    if (lanes->datagram_count > 0 && byte < lanes->last_byte)
        lanes->overtaken_count++;
    lanes->datagram_count++;
    lanes->last_channel = channel;
    lanes->last_byte = byte;
}

static void on_lane_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    (void)lane;
    assert_int_equal(tow_status_code(cause), TOW_UNAVAILABLE);
    ((lanes_t *)context)->down_count++;
}

static void on_lane_writable(void *context, tow_lane_t *lane)
{
    (void)lane;
    ((lanes_t *)context)->writable_count++;
}

static void count_up(void *context)
{
    ++*(int *)context;
}

static tow_closed_t counting(int *count)
{
    return (tow_closed_t){count_up, count};
}

static tow_lane_t *open_lane(lanes_t *lanes, tow_env_t *from, tow_env_t *to)
{
    tow_lane_options_t options = {.peer_name = to->name,
                                  .down = on_lane_down,
                                  .writable = on_lane_writable,
                                  .context = lanes};
    tow_env_lane_address(to, &options.address, &options.address_size);
    tow_lane_t *lane = NULL;
    must(tow_env_lane_open(from, &options, &lane));
    return lane;
}

static void lanes_open(lanes_t *lanes, tow_sim_options_t options)
{
    *lanes = (lanes_t){0};
    pair_open(&lanes->pair, options);
    lanes->memory = test_calloc(1, REGION_BYTES);
    lanes->source = test_calloc(1, REGION_BYTES);
    for (size_t i = 0; i < REGION_BYTES; i++)
        lanes->source[i] = (uint8_t)(i * 7 + i / 251);
    must(tow_env_region_open(lanes->pair.b_env,
                             &(tow_region_options_t){.bytes = lanes->memory,
                                                     .size = REGION_BYTES,
                                                     .arrived = on_arrived,
                                                     .context = lanes},
                             &lanes->region));
    tow_env_datagram_handler(lanes->pair.b_env, on_datagram, lanes);
    lanes->lane = open_lane(lanes, lanes->pair.a_env, lanes->pair.b_env);
    lanes->write = (tow_write_t){.bytes = lanes->source,
                                 .size = REGION_BYTES,
                                 .key = tow_region_key(lanes->region),
                                 .tag = 99,
                                 .done = on_done};
}

static void lanes_close(lanes_t *lanes)
{
    pair_close(&lanes->pair);
    test_free(lanes->memory);
    test_free(lanes->source);
}

static void begin_write(lanes_t *lanes)
{
    assert_int_equal(tow_lane_write(lanes->lane, &lanes->write), TOW_SEND_OK);
    assert_int_equal(lanes->done_count, 0);
}

static bool memory_is_right(const lanes_t *lanes)
{
    return memcmp(lanes->memory, lanes->source, REGION_BYTES) == 0;
}

/* -- Writes --------------------------------------------------------------- */

static void a_write_takes_bandwidth_there_and_latency_both_ways(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes,
               (tow_sim_options_t){.remote_path = {.latency_ns = 5 * US,
                                                   .bandwidth_bytes_per_second =
                                                       REGION_BYTES}});
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_count, 1);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_int_equal(lanes.done_ns, SECOND + 2 * 5 * US);
    assert_int_equal(lanes.arrived_count, 1);
    assert_int_equal(lanes.arrival.size, REGION_BYTES);
    assert_int_equal(lanes.arrival.tag, 99);
    assert_true(memory_is_right(&lanes));
    lanes_close(&lanes);
}

static void bytes_arrive_fragment_by_fragment(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes,
               (tow_sim_options_t){.remote_path.bandwidth_bytes_per_second =
                                       REGION_BYTES});
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2 + 1);
    assert_memory_equal(lanes.memory, lanes.source, REGION_BYTES / 2);
    assert_int_equal(lanes.memory[REGION_BYTES - 1], 0);
    assert_int_equal(lanes.done_count, 0);
    lanes_close(&lanes);
}

static void a_message_overtakes_a_long_write(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes,
               (tow_sim_options_t){.remote_path.bandwidth_bytes_per_second =
                                       REGION_BYTES});
    pair_t *pair = &lanes.pair;
    listen_as_b(pair);
    dial_from_a(pair);
    run_idle(pair->sim);
    begin_write(&lanes);
    run_for(pair->sim, 1);
    int64_t sent_ns = tow_sim_now_ns(pair->sim);
    assert_int_equal(send_counter(&pair->dialled, 0), TOW_SEND_OK);
    run_idle(pair->sim);
    assert_true(pair->accepted.last_ns - sent_ns < SECOND / 2);
    assert_true(lanes.done_ns - sent_ns > SECOND / 2);
    lanes_close(&lanes);
}

static void bad_keys_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        uint64_t id_change;
        uint64_t secret_change;
        uint64_t offset;
        tow_code_t expected;
    } cases[] = {{1, 0, 0, TOW_NOT_FOUND},
                 {0, 1, 0, TOW_PERMISSION_DENIED},
                 {0, 0, 1, TOW_OUT_OF_RANGE},
                 {0, 0, UINT64_MAX, TOW_OUT_OF_RANGE}};
    for (size_t i = 0; i < TOW_COUNT_OF(cases); i++) {
        lanes_t lanes;
        lanes_open(&lanes, (tow_sim_options_t){0});
        lanes.write.key.id += cases[i].id_change;
        lanes.write.key.secret += cases[i].secret_change;
        lanes.write.offset = cases[i].offset;
        begin_write(&lanes);
        run_idle(lanes.pair.sim);
        assert_int_equal(lanes.done_count, 1);
        assert_int_equal(lanes.done_code, cases[i].expected);
        assert_int_equal(lanes.arrived_count, 0);
        assert_int_equal(lanes.memory[0], 0);
        lanes_close(&lanes);
    }
}

static void damage_is_undetected_without_a_checksum(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, (tow_sim_options_t){.remote_path.corrupt_ppm = 1000000});
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_int_equal(lanes.arrived_count, 1);
    assert_false(memory_is_right(&lanes));
    lanes_close(&lanes);
}

static void damage_is_detected_with_a_checksum(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, (tow_sim_options_t){.remote_path.corrupt_ppm = 1000000});
    lanes.write.check = TOW_WRITE_CRC32C;
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_DATA_LOSS);
    assert_int_equal(lanes.arrived_count, 0);
    lanes_close(&lanes);
}

static void a_damaged_write_is_sent_again(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes,
               (tow_sim_options_t){
                   .remote_path = {.corrupt_ppm = 1000000, .latency_ns = MS}});
    lanes.write.check = TOW_WRITE_CRC32C;
    begin_write(&lanes);
    run_until(lanes.pair.sim, MS / 2);
    must(tow_sim_set_path(lanes.pair.sim, tow_sim_node_host(lanes.pair.a),
                          tow_sim_node_host(lanes.pair.b), TOW_SIM_BOTH_WAYS,
                          &(tow_sim_path_t){.latency_ns = MS}));
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_int_equal(lanes.done_ns, 4 * MS);
    assert_int_equal(lanes.arrived_count, 1);
    assert_true(memory_is_right(&lanes));
    lanes_close(&lanes);
}

static void a_lost_fragment_arrives_late(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes,
               (tow_sim_options_t){.seed = 3, .remote_path.loss_ppm = 500000});
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_int_equal(lanes.done_ns % TOW_SIM_RETRANSMIT_NS, 0);
    assert_true(memory_is_right(&lanes));
    lanes_close(&lanes);
}

static void fragments_arrive_in_order_despite_loss(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        lanes_t lanes;
        lanes_open(&lanes, (tow_sim_options_t){
                               .seed = seed,
                               .remote_path = {.loss_ppm = 500000,
                                               .jitter_ns = MS,
                                               .bandwidth_bytes_per_second =
                                                   1000 * REGION_BYTES}});
        begin_write(&lanes);
        run_idle(lanes.pair.sim);
        assert_int_equal(lanes.done_code, TOW_CODE_OK);
        assert_true(memory_is_right(&lanes));
        lanes_close(&lanes);
    }
}

static void count_done(tow_write_t *write, tow_status_t take_status)
{
    (void)write;
    tow_status_release(take_status);
}

static void writes_are_bounded(void **state)
{
    (void)state;
    static tow_write_t writes[TOW_SIM_LANE_WRITE_COUNT_MAX + 1];
    lanes_t lanes;
    lanes_open(&lanes, (tow_sim_options_t){.remote_path.latency_ns = MS});
    for (int i = 0; i <= TOW_SIM_LANE_WRITE_COUNT_MAX; i++) {
        writes[i] = lanes.write;
        writes[i].size = 1;
        writes[i].done = count_done;
        assert_int_equal(tow_lane_write(lanes.lane, &writes[i]),
                         i < TOW_SIM_LANE_WRITE_COUNT_MAX ? TOW_SEND_OK
                                                          : TOW_SEND_FULL);
    }
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.arrived_count, TOW_SIM_LANE_WRITE_COUNT_MAX);
    assert_int_equal(lanes.writable_count, 1);
    begin_write(&lanes);
    lanes_close(&lanes);
}

static void a_path_that_loses_everything_breaks_the_lane(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, (tow_sim_options_t){.remote_path.loss_ppm = 1000000});
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
    assert_int_equal(lanes.down_count, 1);
    assert_int_equal(tow_lane_write(lanes.lane, &lanes.write), TOW_SEND_DOWN);
    lanes_close(&lanes);
}

/* -- Death and closing ---------------------------------------------------- */

static tow_sim_options_t slow(void)
{
    return (tow_sim_options_t){
        .remote_path = {.latency_ns = MS,
                        .bandwidth_bytes_per_second = REGION_BYTES},
        .timeouts.lane_ns = 3 * SECOND};
}

static void a_dead_target_is_detected_by_silence(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_sim_crash(lanes.pair.b);
    memset(lanes.memory, 0, REGION_BYTES);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_count, 1);
    assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
    assert_true(lanes.done_ns > 3 * SECOND && lanes.done_ns < 5 * SECOND);
    assert_int_equal(lanes.down_count, 1);
    assert_int_equal(lanes.memory[0], 0);
    lanes_close(&lanes);
}

static void a_new_incarnation_does_not_get_writes_to_the_old_one(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    tow_sim_crash(lanes.pair.b);
    tow_sim_restart(lanes.pair.b);
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
    assert_int_equal(lanes.arrived_count, 0);
    lanes_close(&lanes);
}

static void closing_by_force_fails_pending_writes_immediately(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_sim_crash(lanes.pair.b);
    tow_lane_close(lanes.lane, TOW_LANE_CLOSE_FORCE,
                   counting(&lanes.lane_closed_count));
    assert_int_equal(lanes.done_count, 0);
    run_for(lanes.pair.sim, 1);
    assert_int_equal(lanes.done_count, 1);
    assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
    assert_int_equal(lanes.lane_closed_count, 1);
    assert_int_equal(lanes.down_count, 0);
    lanes_close(&lanes);
}

static void closing_gracefully_waits_for_pending_writes(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    tow_lane_close(lanes.lane, TOW_LANE_CLOSE_GRACEFUL,
                   counting(&lanes.lane_closed_count));
    assert_int_equal(tow_lane_write(lanes.lane, &lanes.write), TOW_SEND_DOWN);
    run_until(lanes.pair.sim, SECOND / 2);
    assert_int_equal(lanes.lane_closed_count, 0);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_int_equal(lanes.lane_closed_count, 1);
    lanes_close(&lanes);
}

static void a_region_closes_when_nothing_is_under_way(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_region_close(lanes.region, counting(&lanes.region_closed_count));
    run_for(lanes.pair.sim, MS);
    assert_int_equal(lanes.region_closed_count, 0);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.region_closed_count, 1);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_int_equal(lanes.arrived_count, 1);
    lanes_close(&lanes);
}

static void a_closing_region_refuses_new_writes(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    tow_region_close(lanes.region, counting(&lanes.region_closed_count));
    begin_write(&lanes);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.region_closed_count, 1);
    assert_int_equal(lanes.done_code, TOW_NOT_FOUND);
    lanes_close(&lanes);
}

static void a_dead_writer_holds_a_region_until_the_lane_is_forced(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    tow_lane_t *back = open_lane(&lanes, lanes.pair.b_env, lanes.pair.a_env);
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_sim_crash(lanes.pair.a);
    memset(lanes.source, 0xee, REGION_BYTES); /* Its memory was freed. */
    tow_region_close(lanes.region, counting(&lanes.region_closed_count));
    run_for(lanes.pair.sim, SECOND);
    assert_int_equal(lanes.region_closed_count, 0);
    tow_lane_close(back, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    run_for(lanes.pair.sim, 1);
    assert_int_equal(lanes.region_closed_count, 1);
    assert_int_equal(lanes.done_count, 0);
    assert_int_not_equal(lanes.memory[0], 0xee);
    lanes_close(&lanes);
}

static void a_dead_writer_releases_a_region_after_a_timeout(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_sim_crash(lanes.pair.a);
    tow_region_close(lanes.region, counting(&lanes.region_closed_count));
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.region_closed_count, 1);
    lanes_close(&lanes);
}

static void a_forced_close_at_the_target_fails_the_writers_writes(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    tow_lane_t *back = open_lane(&lanes, lanes.pair.b_env, lanes.pair.a_env);
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_lane_close(back, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_count, 1);
    assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
    assert_int_equal(lanes.arrived_count, 0);
    lanes_close(&lanes);
}

static void a_forced_close_at_the_target_ends_a_stalled_write(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    tow_lane_t *back = open_lane(&lanes, lanes.pair.b_env, lanes.pair.a_env);
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_sim_host_t *a_host = tow_sim_node_host(lanes.pair.a);
    must(tow_sim_partition(lanes.pair.sim,
                           &(tow_sim_cut_t){.a = &a_host,
                                            .a_count = 1,
                                            .direction = TOW_SIM_ONE_WAY},
                           NULL));
    run_for(lanes.pair.sim, SECOND);
    assert_int_equal(lanes.done_count, 0);
    tow_lane_close(back, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    run_for(lanes.pair.sim, MS);
    assert_int_equal(lanes.done_count, 1);
    assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
    lanes_close(&lanes);
}

static void closing_the_env_of_either_side_ends_a_write(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        lanes_t lanes;
        lanes_open(&lanes, slow());
        begin_write(&lanes);
        run_until(lanes.pair.sim, SECOND / 2);
        int closed = 0;
        tow_env_close(side ? lanes.pair.b_env : lanes.pair.a_env,
                      counting(&closed));
        run_for(lanes.pair.sim, 2 * MS);
        assert_int_equal(closed, 1);
        assert_int_equal(lanes.done_count, 1);
        assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
        assert_int_equal(lanes.down_count, 0);
        lanes_close(&lanes);
    }
}

static void closing_the_env_forces_a_graceful_close(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    tow_lane_close(lanes.lane, TOW_LANE_CLOSE_GRACEFUL,
                   counting(&lanes.lane_closed_count));
    run_until(lanes.pair.sim, SECOND / 2);
    int closed = 0;
    tow_env_close(lanes.pair.a_env, counting(&closed));
    run_for(lanes.pair.sim, 1);
    assert_int_equal(lanes.done_count, 1);
    assert_int_equal(lanes.lane_closed_count, 1);
    assert_int_equal(closed, 1);
    lanes_close(&lanes);
}

static void a_write_continues_when_a_cut_heals(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    begin_write(&lanes);
    run_until(lanes.pair.sim, SECOND / 2);
    tow_sim_host_t *a_host = tow_sim_node_host(lanes.pair.a);
    must(tow_sim_partition(lanes.pair.sim,
                           &(tow_sim_cut_t){.a = &a_host, .a_count = 1}, NULL));
    run_for(lanes.pair.sim, SECOND);
    tow_sim_heal(lanes.pair.sim, 0);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.done_code, TOW_CODE_OK);
    assert_true(lanes.done_ns > 3 * SECOND / 2 && lanes.done_ns < 2 * SECOND);
    assert_true(memory_is_right(&lanes));
    assert_int_equal(lanes.down_count, 0);
    lanes_close(&lanes);
}

static void a_long_cut_breaks_the_lane(void **state)
{
    (void)state;
    for (tow_sim_direction_t way = TOW_SIM_BOTH_WAYS; way <= TOW_SIM_ONE_WAY;
         way++) {
        lanes_t lanes;
        lanes_open(&lanes, slow());
        begin_write(&lanes);
        run_until(lanes.pair.sim, SECOND / 2);
        tow_sim_host_t *a_host = tow_sim_node_host(lanes.pair.a);
        must(tow_sim_partition(
            lanes.pair.sim,
            &(tow_sim_cut_t){.a = &a_host, .a_count = 1, .direction = way},
            NULL));
        run_idle(lanes.pair.sim);
        assert_int_equal(lanes.done_code, TOW_UNAVAILABLE);
        assert_int_equal(lanes.down_count, 1);
        lanes_close(&lanes);
    }
}

/* -- Datagrams ------------------------------------------------------------ */

static void send_datagrams(lanes_t *lanes, int count)
{
    for (int i = 0; i < count; i++) {
        uint8_t byte = (uint8_t)i;
        assert_int_equal(tow_lane_send(lanes->lane, 5, &byte, 1), TOW_SEND_OK);
    }
    run_idle(lanes->pair.sim);
}

static void datagrams_arrive(void **state)
{
    (void)state;
    lanes_t lanes;
    lanes_open(&lanes, slow());
    send_datagrams(&lanes, 200);
    assert_int_equal(lanes.datagram_count, 200);
    assert_int_equal(lanes.overtaken_count, 0);
    assert_int_equal(lanes.last_channel, 5);
    lanes_close(&lanes);
}

static void datagrams_are_lost_duplicated_and_reordered(void **state)
{
    (void)state;
    static const tow_sim_path_t paths[] = {
        {.loss_ppm = 500000},
        {.corrupt_ppm = 500000},
        {.duplicate_ppm = 500000},
        {.reorder_ppm = 500000},
    };
    int counts[TOW_COUNT_OF(paths)];
    int overtaken[TOW_COUNT_OF(paths)];
    for (size_t i = 0; i < TOW_COUNT_OF(paths); i++) {
        lanes_t lanes;
        lanes_open(&lanes, (tow_sim_options_t){.remote_path = paths[i]});
        send_datagrams(&lanes, 200);
        counts[i] = lanes.datagram_count;
        overtaken[i] = lanes.overtaken_count;
        tow_sim_counts_t total = tow_sim_counts(lanes.pair.sim);
        assert_int_equal(total.datagrams_delivered, lanes.datagram_count);
        lanes_close(&lanes);
    }
    assert_in_range(counts[0], 50, 150);
    assert_in_range(counts[1], 50, 150);
    assert_in_range(counts[2], 250, 350);
    assert_int_equal(counts[3], 200);
    assert_int_equal(overtaken[0] + overtaken[1], 0);
    assert_true(overtaken[3] > 10);
}

static void a_full_lane_becomes_writable(void **state)
{
    (void)state;
    lanes_t lanes;
    tow_sim_options_t options = slow();
    options.lane_bytes_max = 4096;
    lanes_open(&lanes, options);
    uint8_t bytes[1000] = {0};
    int sent = 0;
    while (tow_lane_send(lanes.lane, 1, bytes, sizeof(bytes)) == TOW_SEND_OK)
        sent++;
    assert_int_equal(sent, 4);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.datagram_count, 4);
    assert_int_equal(lanes.writable_count, 1);
    assert_int_equal(tow_lane_send(lanes.lane, 1, bytes, 1), TOW_SEND_OK);
    lanes_close(&lanes);
}

static void a_frozen_target_fills_the_lane(void **state)
{
    (void)state;
    lanes_t lanes;
    tow_sim_options_t options = slow();
    options.lane_bytes_max = 4096;
    lanes_open(&lanes, options);
    tow_sim_pause(lanes.pair.b);
    uint8_t bytes[1000] = {0};
    while (tow_lane_send(lanes.lane, 1, bytes, sizeof(bytes)) == TOW_SEND_OK)
        ;
    run_for(lanes.pair.sim, SECOND);
    assert_int_equal(lanes.datagram_count, 0);
    assert_int_equal(tow_lane_send(lanes.lane, 1, bytes, sizeof(bytes)),
                     TOW_SEND_FULL);
    tow_sim_resume(lanes.pair.b);
    run_idle(lanes.pair.sim);
    assert_int_equal(lanes.datagram_count, 4);
    assert_int_equal(lanes.writable_count, 1);
    lanes_close(&lanes);
}

static void a_malformed_address_is_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    uint8_t junk[16] = {1, 2, 3};
    tow_lane_t *lane;
    static const size_t sizes[] = {0, 3, 16};
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        tow_status_t status = tow_env_lane_open(
            pair.a_env,
            &(tow_lane_options_t){.address = junk, .address_size = sizes[i]},
            &lane);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
    }
    pair_close(&pair);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_write_takes_bandwidth_there_and_latency_both_ways),
    cmocka_unit_test(bytes_arrive_fragment_by_fragment),
    cmocka_unit_test(a_message_overtakes_a_long_write),
    cmocka_unit_test(bad_keys_are_refused_with_the_reason),
    cmocka_unit_test(damage_is_undetected_without_a_checksum),
    cmocka_unit_test(damage_is_detected_with_a_checksum),
    cmocka_unit_test(a_damaged_write_is_sent_again),
    cmocka_unit_test(a_lost_fragment_arrives_late),
    cmocka_unit_test(fragments_arrive_in_order_despite_loss),
    cmocka_unit_test(writes_are_bounded),
    cmocka_unit_test(a_path_that_loses_everything_breaks_the_lane),
    cmocka_unit_test(a_dead_target_is_detected_by_silence),
    cmocka_unit_test(a_new_incarnation_does_not_get_writes_to_the_old_one),
    cmocka_unit_test(closing_by_force_fails_pending_writes_immediately),
    cmocka_unit_test(closing_gracefully_waits_for_pending_writes),
    cmocka_unit_test(a_region_closes_when_nothing_is_under_way),
    cmocka_unit_test(a_closing_region_refuses_new_writes),
    cmocka_unit_test(a_dead_writer_holds_a_region_until_the_lane_is_forced),
    cmocka_unit_test(a_dead_writer_releases_a_region_after_a_timeout),
    cmocka_unit_test(a_forced_close_at_the_target_fails_the_writers_writes),
    cmocka_unit_test(a_forced_close_at_the_target_ends_a_stalled_write),
    cmocka_unit_test(closing_the_env_of_either_side_ends_a_write),
    cmocka_unit_test(closing_the_env_forces_a_graceful_close),
    cmocka_unit_test(a_write_continues_when_a_cut_heals),
    cmocka_unit_test(a_long_cut_breaks_the_lane),
    cmocka_unit_test(datagrams_arrive),
    cmocka_unit_test(datagrams_are_lost_duplicated_and_reordered),
    cmocka_unit_test(a_full_lane_becomes_writable),
    cmocka_unit_test(a_frozen_target_fills_the_lane),
    cmocka_unit_test(a_malformed_address_is_refused))
