/* Lanes between nets that are turned in one thread. */
#include "env/net/data_testing_impl.h"

static test_plan_t plan_of(const test_region_t *region, const void *bytes,
                           size_t size)
{
    return (test_plan_t){
        .bytes = bytes, .size = size, .key = tow_region_key(region->region)};
}

/* -- Datagrams ------------------------------------------------------------ */

static test_lane_t lane_back;
static test_node_t *node_back;

static void echo(test_node_t *node)
{
    if (lane_back.lane == NULL) test_lane_open(&lane_back, node, node_back);
    assert_int_equal(
        tow_lane_send(lane_back.lane, node->last_channel, "echo", 4),
        TOW_SEND_OK);
}

/* The lane back is opened, and used, within the callback. */
static void datagram_may_be_answered_in_its_callback(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_lane_t lane;
    lane_back = (test_lane_t){0};
    node_back = &world->nodes[0];
    world->nodes[1].arrived = echo;
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    for (uint64_t i = 1; i <= 100; i++) {
        assert_int_equal(tow_lane_send(lane.lane, i, "ping", 4), TOW_SEND_OK);
        TEST_UNTIL(world, world->nodes[0].datagram_count == i);
        assert_int_equal(world->nodes[0].last_channel, i);
    }
    test_world_destroy(world);
}

static void net_may_have_a_lane_to_itself(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(1);
    test_node_t *node = &world->nodes[0];
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(TEST_MIB);
    test_region_open(&region, node, TEST_MIB);
    test_lane_open(&lane, node, node);
    assert_int_equal(tow_lane_send(lane.lane, 3, "me", 2), TOW_SEND_OK);
    const test_plan_t plan = plan_of(&region, bytes, TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    assert_int_equal(node->datagram_count, 0);
    TEST_UNTIL(world, node->datagram_count == 1 && write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    assert_memory_equal(region.bytes, bytes, TEST_MIB);
    test_lane_close(world, &lane, TOW_LANE_CLOSE_FORCE);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

/* -- Back-pressure -------------------------------------------------------- */

#define FLOOD_COUNT_MAX 1000000

/* A peer that does not read costs a bounded amount of memory. */
static void stalled_peer_costs_bounded_memory(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_node_t *node = &world->nodes[0];
    test_lane_t lane;
    test_lane_open(&lane, node, &world->nodes[1]);
    TEST_UNTIL(world, world->nodes[1].data->inbound_count == 1);
    world->nodes[1].is_stalled = true;
    uint8_t bytes[TOW_DATAGRAM_SIZE_MAX] = {0};
    for (size_t size = 8; size <= sizeof(bytes); size *= 8) {
        int count = 0, full_count = 0;
        while (full_count < 3 && count < FLOOD_COUNT_MAX) {
            if (tow_lane_send(lane.lane, 1, bytes, size) == TOW_SEND_OK) {
                count++;
                continue;
            }
            full_count++; /* Full, and stays so, whatever the loop does. */
            for (int i = 0; i < 10; i++)
                test_turn(world);
        }
        assert_int_equal(full_count, 3);
    }
    const size_t op_bytes = sizeof(tow_data_op_t) + TOW_DATA_OP_SMALL_BYTES;
    assert_true(node->data->small_ops.made_count * op_bytes <=
                3 * TOW_NET_LANE_DATAGRAM_BYTES_MAX);
    assert_true(node->data->large_ops.made_count * TOW_DATAGRAM_SIZE_MAX <=
                3 * TOW_NET_LANE_DATAGRAM_BYTES_MAX);
    assert_int_equal(lane.writable_count, 0);
    world->nodes[1].is_stalled = false;
    TEST_UNTIL(world, lane.writable_count == 1);
    test_world_destroy(world);
}

/* Nothing moves, so the loop sleeps, and not for ever. */
static void loop_sleeps_while_a_peer_is_stalled(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(8 * TEST_MIB);
    test_region_open(&region, &world->nodes[1], 8 * TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    TEST_UNTIL(world, world->nodes[1].data->inbound_count == 1);
    const test_plan_t plan = plan_of(&region, bytes, 8 * TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    tow_net_t *net = world->nodes[0].net;
    /* Sleeps follow each other without a look between that finds something. */
    uint64_t slept = tow_net_stats(net).sleep_count;
    while (tow_net_stats(net).sleep_count < slept + 20)
        tow_net_turn(net, TOW_NS_PER_S);
    const tow_net_stats_t before = tow_net_stats(net);
    while (tow_net_stats(net).sleep_count < before.sleep_count + 20)
        tow_net_turn(net, TOW_NS_PER_S);
    assert_true(tow_net_stats(net).pass_count - before.pass_count < 20 * 10);
    TEST_UNTIL(world, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

#define QUEUE_COUNT 900

/* Full of writes and datagrams that nobody takes, then cut. */
static void force_close_ends_thousands_that_wait(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes = test_pattern(TEST_MIB);
    test_write_t *writes = calloc(QUEUE_COUNT, sizeof(*writes));
    test_region_open(&region, &world->nodes[1], TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    TEST_UNTIL(world, world->nodes[1].data->inbound_count == 1);
    world->nodes[1].is_stalled = true;
    for (size_t i = 0; i < QUEUE_COUNT; i++) {
        const test_plan_t plan =
            plan_of(&region, bytes, i % 3 == 0 ? TEST_MIB : 1 + i);
        assert_int_equal(test_write_start(&writes[i], &lane, &plan),
                         TOW_SEND_OK);
    }
    for (int i = 0; i < 50; i++)
        test_turn(world);
    while (tow_lane_send(lane.lane, 1, bytes, 8) == TOW_SEND_OK) {
    }
    test_lane_close(world, &lane, TOW_LANE_CLOSE_FORCE);
    size_t lost_count = 0;
    for (size_t i = 0; i < QUEUE_COUNT; i++) {
        assert_int_equal(writes[i].done_count, 1);
        lost_count += writes[i].code == TOW_UNAVAILABLE;
    }
    assert_true(lost_count > QUEUE_COUNT / 2);
    world->nodes[1].is_stalled = false;
    test_settle(world);
    test_world_destroy(world);
    free(writes);
    free(region.bytes);
    free(bytes);
}

/* -- Writes --------------------------------------------------------------- */

/* Many large ones are under way; a small one does not wait for them. */
static void small_write_overtakes_large_ones(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes = test_pattern(32 * TEST_MIB);
    test_write_t large[20], small;
    test_region_open(&region, &world->nodes[1], 32 * TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    const test_plan_t much = plan_of(&region, bytes, 32 * TEST_MIB);
    const test_plan_t little = plan_of(&region, bytes, 100);
    for (size_t i = 0; i < TOW_COUNT_OF(large); i++)
        assert_int_equal(test_write_start(&large[i], &lane, &much),
                         TOW_SEND_OK);
    for (int i = 0; i < 20; i++)
        test_turn(world);
    assert_int_equal(test_write_start(&small, &lane, &little), TOW_SEND_OK);
    TEST_UNTIL(world, small.done_count == 1);
    assert_int_equal(large[TOW_COUNT_OF(large) - 1].done_count, 0);
    for (size_t i = 0; i < TOW_COUNT_OF(large); i++)
        TEST_UNTIL(world, large[i].done_count == 1);
    assert_int_equal(large[0].code, TOW_CODE_OK);
    assert_int_equal(large[19].code, TOW_CODE_OK);
    assert_memory_equal(region.bytes, bytes, region.size);
    assert_int_equal(region.arrived_count, 21);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

static void expect_refusal(test_world_t *world, test_lane_t *lane,
                           const test_plan_t *plan, tow_code_t code)
{
    test_write_t write;
    assert_int_equal(test_write_start(&write, lane, plan), TOW_SEND_OK);
    TEST_UNTIL(world, write.done_count == 1);
    assert_int_equal(write.code, code);
    assert_non_null(strstr(write.cause, "peer refused a write"));
}

/* The rest of a refused write is not sent. */
static void refusal_stops_a_write(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes = test_pattern(64 * TEST_MIB);
    test_region_open(&region, &world->nodes[1], TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    test_plan_t plan = plan_of(&region, bytes, 64 * TEST_MIB);
    expect_refusal(world, &lane, &plan, TOW_OUT_OF_RANGE);
    plan.key.secret++;
    expect_refusal(world, &lane, &plan, TOW_PERMISSION_DENIED);
    plan.key.id += 100;
    expect_refusal(world, &lane, &plan, TOW_NOT_FOUND);
    test_settle(world);
    const uint64_t fragments =
        64 * TEST_MIB / test_data_lane(&lane)->fragment_bytes;
    assert_true(world->nodes[1].data->straggler_count < 3 * fragments / 2);
    assert_int_equal(region.arrived_count, 0);
    for (size_t i = 0; i < region.size; i++)
        assert_int_equal(region.bytes[i], 0);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

static void region_closed(void *context)
{
    ((test_region_t *)context)->closed_count++;
}

static void region_may_close_in_mid_write(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_node_t *target = &world->nodes[1];
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(64 * TEST_MIB);
    test_region_open(&region, target, 64 * TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], target);
    const test_plan_t plan = plan_of(&region, bytes, 64 * TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(world, region.bytes[1] != 0);
    tow_region_close(region.region,
                     (tow_closed_t){.run = region_closed, .context = &region});
    assert_int_equal(region.closed_count, 0);
    TEST_UNTIL(world, region.closed_count == 1);
    memset(region.bytes, 0, region.size); /* It is ours again. */
    TEST_UNTIL(world, write.done_count == 1);
    assert_int_equal(write.code, TOW_NOT_FOUND);
    test_settle(world);
    for (size_t i = 0; i < region.size; i += 4096)
        assert_int_equal(region.bytes[i + 1], 0);
    assert_int_equal(region.arrived_count, 0);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

static void damaged_write_is_sent_again(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_node_t *target = &world->nodes[1];
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(TEST_MIB);
    test_region_open(&region, target, TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], target);
    test_plan_t plan = plan_of(&region, bytes, TEST_MIB);
    plan.check = TOW_WRITE_CRC32C;
    for (size_t size = 1; size <= TEST_MIB; size *= 64) {
        plan.size = size;
        tow_net_data_damage(target->net, 1);
        assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
        TEST_UNTIL(world, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
        assert_memory_equal(region.bytes, bytes, size);
        assert_int_equal(target->data->damage_count, 0);
    }
    const int arrived_count = region.arrived_count;
    tow_net_data_damage(target->net, UINT32_MAX);
    expect_refusal(world, &lane, &plan, TOW_DATA_LOSS);
    assert_int_equal(region.arrived_count, arrived_count);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

/* -- Lanes that come in --------------------------------------------------- */

static void closed_lane_is_forgotten_by_its_target(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    const tow_data_t *target = world->nodes[1].data;
    for (int i = 0; i < 6; i++) {
        test_lane_t lane;
        test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
        TEST_UNTIL(world, target->inbound_count == 1);
        assert_int_equal(tow_lane_send(lane.lane, 1, "x", 1), TOW_SEND_OK);
        test_lane_close(world, &lane,
                        i % 2 ? TOW_LANE_CLOSE_FORCE : TOW_LANE_CLOSE_GRACEFUL);
        TEST_UNTIL(world, target->inbound_count == 0);
    }
    test_settle(world);
    assert_int_equal(world->nodes[1].datagram_count, 6);
    assert_true(tow_list_is_empty(&world->nodes[0].data->parked));
    assert_true(tow_list_is_empty(&world->nodes[1].data->parked));
    test_world_destroy(world);
}

static void exchange(test_world_t *world, test_lane_t *lane,
                     test_region_t *region)
{
    static const uint8_t bytes[40000] = {1, 2, 3};
    test_write_t write;
    const test_plan_t plan = plan_of(region, bytes, sizeof(bytes));
    assert_int_equal(test_write_start(&write, lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(world, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
}

/* UCX pairs endpoints by counting them on both sides; we must not depend on
 * that, for here the counts differ. */
static void lanes_open_and_close_in_any_order(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_region_t regions[2];
    test_lane_t lanes[2] = {0};
    for (size_t i = 0; i < 2; i++)
        test_region_open(&regions[i], &world->nodes[i], 40000);
    static const uint8_t script[] = {0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0};
    for (size_t i = 0; i < TOW_COUNT_OF(script); i++) {
        const size_t from = script[i];
        if (lanes[from].lane != NULL)
            test_lane_close(world, &lanes[from],
                            i % 3 ? TOW_LANE_CLOSE_FORCE
                                  : TOW_LANE_CLOSE_GRACEFUL);
        test_settle(world);
        test_lane_open(&lanes[from], &world->nodes[from],
                       &world->nodes[1 - from]);
        exchange(world, &lanes[from], &regions[1 - from]);
        test_lane_t *other = &lanes[1 - from];
        if (other->lane == NULL) continue;
        if (other->down_count == 0) {
            exchange(world, other, &regions[from]);
            continue;
        }
        /* Closing ours by force has ended theirs; they open it anew. */
        test_lane_close(world, other, TOW_LANE_CLOSE_GRACEFUL);
        test_lane_open(other, &world->nodes[1 - from], &world->nodes[from]);
        exchange(world, other, &regions[from]);
    }
    test_world_destroy(world);
    free(regions[0].bytes);
    free(regions[1].bytes);
}

/* Who closes by force has done with the peer in both directions; if the peer
 * lives, it hears of it. */
static void force_close_ends_what_comes_in_too(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_lane_t lane, back;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(64 * TEST_MIB);
    test_region_open(&region, &world->nodes[1], 64 * TEST_MIB);
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    test_lane_open(&back, &world->nodes[1], &world->nodes[0]);
    const test_plan_t plan = plan_of(&region, bytes, 64 * TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(world, region.bytes[1] != 0);
    tow_lane_close(back.lane, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    /* At once nothing gets in but the chunks that are being pulled. */
    TEST_UNTIL(world, world->nodes[1].data->inbound_count == 0);
    memset(region.bytes, 0, region.size);
    TEST_UNTIL(world, lane.down_count == 1);
    assert_int_equal(write.done_count, 1);
    assert_int_equal(write.code, TOW_UNAVAILABLE);
    assert_int_equal(tow_lane_send(lane.lane, 1, "x", 1), TOW_SEND_DOWN);
    test_settle(world);
    for (size_t i = 0; i < region.size; i += 4096)
        assert_int_equal(region.bytes[i + 1], 0);
    test_lane_close(world, &lane, TOW_LANE_CLOSE_GRACEFUL);
    test_lane_open(&lane, &world->nodes[0], &world->nodes[1]);
    exchange(world, &lane, &region);
    test_world_destroy(world);
    free(region.bytes);
    free(bytes);
}

/* -- Peers that talk nonsense --------------------------------------------- */

static void send_raw(test_world_t *world, test_lane_t *lane, tow_data_id_t id,
                     const void *header, size_t header_size, size_t size)
{
    static uint8_t bytes[4096];
    tow_data_port_t *port = test_data_lane(lane)->port;
    tow_data_op_t *op = tow_data_op_take(port, 4096);
    memcpy(&op->header, header, header_size);
    const tow_data_bytes_t payload = {.bytes = bytes, .size = size};
    assert_int_not_equal(tow_data_port_send(port, op, id, header_size, payload),
                         TOW_DATA_FAILED);
    test_settle(world);
}

static void send_bad_fragments(test_world_t *world, test_lane_t *lane,
                               const test_region_t *region)
{
    const tow_region_key_t key = tow_region_key(region->region);
    tow_data_fragment_t good = {.stream = test_data_lane(lane)->stream,
                                .write = 1000,
                                .region = key.id,
                                .secret = key.secret,
                                .total = 10};
    tow_data_fragment_t bad = good;
    send_raw(world, lane, TOW_DATA_FRAGMENT, &bad, 71, 1);
    bad.at = UINT64_MAX - 3;
    send_raw(world, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 8);
    bad = good;
    bad.stream++;
    send_raw(world, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 8);
    bad = good; /* In the middle of no write. */
    bad.at = 4;
    send_raw(world, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 1);
    /* One write in pieces that do not fit together. */
    send_raw(world, lane, TOW_DATA_FRAGMENT, &good, sizeof(good), 5);
    bad = good;
    bad.at = 5;
    bad.total = 1000;
    send_raw(world, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 5);
    /* More writes at once than a lane may have. */
    for (uint64_t i = 0; i < 3 * TOW_NET_LANE_LARGE_COUNT_MAX; i++) {
        good.write = 2000 + i;
        send_raw(world, lane, TOW_DATA_FRAGMENT, &good, sizeof(good), 5);
    }
}

static void send_bad_controls(test_world_t *world, test_lane_t *lane)
{
    const tow_data_control_t good = {.stream = test_data_lane(lane)->stream,
                                     .version = TOW_DATA_VERSION,
                                     .kind = TOW_DATA_ANSWER};
    tow_data_control_t bad = good;
    bad.version = 7;
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    bad = good;
    bad.kind = 99;
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    bad = good;
    bad.kind = TOW_DATA_HELLO; /* Without an address. */
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 100);
    bad.kind = TOW_DATA_BYE;
    bad.stream++; /* Of no lane: nothing happens. */
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    bad.kind = TOW_DATA_RESET;
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    send_raw(world, lane, TOW_DATA_CONTROL, &bad, 3, 0);
}

static void nonsense_is_refused_and_told(void **state)
{
    (void)state;
    test_world_t *world = test_world_create(2);
    test_node_t *target = &world->nodes[1];
    test_lane_t lane;
    test_region_t region;
    test_region_open(&region, target, 50000);
    test_lane_open(&lane, &world->nodes[0], target);
    exchange(world, &lane, &region);
    const tow_data_datagram_t datagram = {.stream = 1};
    send_raw(world, &lane, TOW_DATA_DATAGRAM, &datagram, 16, 8);
    send_raw(world, &lane, TOW_DATA_DATAGRAM, &datagram, 5, 8);
    send_bad_fragments(world, &lane, &region);
    send_bad_controls(world, &lane);
    assert_non_null(strstr(target->log, "lane message refused"));
    assert_non_null(strstr(target->log, "a datagram of no lane"));
    assert_non_null(strstr(target->log, "do not fit together"));
    assert_int_equal(target->datagram_count, 0);
    assert_int_equal(region.arrived_count, 1);
    assert_int_equal(target->data->inbound_count, 1);
    assert_int_equal(lane.down_count, 0);
    /* Another lane is as good as ever. */
    test_lane_t second;
    test_lane_open(&second, &world->nodes[0], target);
    exchange(world, &second, &region);
    test_world_destroy(world);
    free(region.bytes);
}

/* -- Starting ------------------------------------------------------------- */

static void unknown_device_is_told(void **state)
{
    (void)state;
    test_node_t node = {0};
    setenv("UCX_NET_DEVICES", "no-such-device0", 1);
    const tow_net_options_t options = test_options(&node);
    tow_net_t *net;
    tow_status_t status = tow_net_create(&options, &net);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(status), "no-such-device0"));
    tow_status_release(status);
}

static tow_exhaust_result_t open_and_close(void *context)
{
    (void)context;
    static test_node_t node;
    node = (test_node_t){0};
    const tow_net_options_t options = test_options(&node);
    tow_net_t *net;
    tow_status_t status = tow_net_create(&options, &net);
    if (status != TOW_OK) {
        tow_status_release(status);
        return TOW_EXHAUST_FAILED;
    }
    const void *address;
    size_t size;
    tow_env_lane_address(tow_net_env(net), &address, &size);
    const tow_lane_options_t lane_options = {
        .address = address, .address_size = size, .peer_name = "self"};
    tow_lane_t *lane;
    status = tow_env_lane_open(tow_net_env(net), &lane_options, &lane);
    tow_net_destroy(net);
    if (status == TOW_OK) return TOW_EXHAUST_SUCCEEDED;
    tow_status_release(status);
    return TOW_EXHAUST_FAILED;
}

static void data_plane_survives_want_of_memory(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(open_and_close, NULL) > 5);
}

static const struct CMUnitTest tests[] = {
    TEST_ON_ALL(datagram_may_be_answered_in_its_callback),
    TEST_ON_ALL(net_may_have_a_lane_to_itself),
    TEST_ON_ALL(stalled_peer_costs_bounded_memory),
    {"loop_sleeps_while_a_peer_is_stalled_on_rings",
     loop_sleeps_while_a_peer_is_stalled, test_use_rings, NULL, NULL},
    {"loop_sleeps_while_a_peer_is_stalled_on_tcp",
     loop_sleeps_while_a_peer_is_stalled, test_use_tcp, NULL, NULL},
    TEST_ON_ALL(force_close_ends_thousands_that_wait),
    TEST_ON_ALL(small_write_overtakes_large_ones),
    TEST_ON_ALL(refusal_stops_a_write),
    TEST_ON_ALL(region_may_close_in_mid_write),
    TEST_ON_ALL(damaged_write_is_sent_again),
    TEST_ON_ALL(closed_lane_is_forgotten_by_its_target),
    TEST_ON_ALL(lanes_open_and_close_in_any_order),
    TEST_ON_ALL(force_close_ends_what_comes_in_too),
    TEST_ON_ALL(nonsense_is_refused_and_told),
    TEST_ON_ALL(data_plane_survives_want_of_memory),
    {"unknown_device_is_told", unknown_device_is_told, test_use_tcp,
     test_use_shm, NULL},
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
