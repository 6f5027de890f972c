/* Lanes between nets that one thread drives. */
#include "env/net/data/data_testing_impl.h"

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

/* The lane back is opened, and used, inside the callback. */
static void datagram_may_be_answered_in_its_callback(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane;
    lane_back = (test_lane_t){0};
    node_back = &fixture->nodes[0];
    fixture->nodes[1].arrived = echo;
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    for (uint64_t i = 1; i <= 100; i++) {
        assert_int_equal(tow_lane_send(lane.lane, i, "ping", 4), TOW_SEND_OK);
        TEST_UNTIL(fixture, fixture->nodes[0].datagram_count == i);
        assert_int_equal(fixture->nodes[0].last_channel, i);
    }
    test_fixture_destroy(fixture);
}

static void net_may_have_a_lane_to_itself(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(1);
    test_node_t *node = &fixture->nodes[0];
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
    TEST_UNTIL(fixture, node->datagram_count == 1 && write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    assert_memory_equal(region.bytes, bytes, TEST_MIB);
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_FORCE);
    test_fixture_destroy(fixture);
    free(region.bytes);
    free(bytes);
}

/* -- Back-pressure -------------------------------------------------------- */

#define FLOOD_COUNT_MAX 1000000

/* A peer that does not read costs a bounded amount of memory. */
static void stalled_peer_costs_bounded_memory(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_node_t *node = &fixture->nodes[0];
    test_lane_t lane;
    test_lane_open(&lane, node, &fixture->nodes[1]);
    TEST_UNTIL(fixture, fixture->nodes[1].data->inbound_count == 1);
    fixture->nodes[1].is_stalled = true;
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
                test_turn(fixture);
        }
        assert_int_equal(full_count, 3);
    }
    const size_t op_bytes = sizeof(tow_data_op_t) + TOW_DATA_OP_SMALL_BYTES;
    assert_true(node->data->small_ops.made_count * op_bytes <=
                3 * TOW_NET_LANE_DATAGRAM_BYTES_MAX);
    assert_true(node->data->large_ops.made_count * TOW_DATAGRAM_SIZE_MAX <=
                3 * TOW_NET_LANE_DATAGRAM_BYTES_MAX);
    assert_int_equal(lane.writable_count, 0);
    fixture->nodes[1].is_stalled = false;
    TEST_UNTIL(fixture, lane.writable_count == 1);
    test_fixture_destroy(fixture);
}

/* Nothing moves, so the loop sleeps, but not for ever. */
static void loop_sleeps_while_a_peer_is_stalled(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(8 * TEST_MIB);
    test_region_open(&region, &fixture->nodes[1], 8 * TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    TEST_UNTIL(fixture, fixture->nodes[1].data->inbound_count == 1);
    const test_plan_t plan = plan_of(&region, bytes, 8 * TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    tow_net_t *net = fixture->nodes[0].net;
    /* The loop sleeps repeatedly without finding any activity. */
    uint64_t slept = tow_net_stats(net).sleep_count;
    while (tow_net_stats(net).sleep_count < slept + 20)
        tow_net_turn(net, TOW_NS_PER_S);
    const tow_net_stats_t before = tow_net_stats(net);
    while (tow_net_stats(net).sleep_count < before.sleep_count + 20)
        tow_net_turn(net, TOW_NS_PER_S);
    assert_true(tow_net_stats(net).pass_count - before.pass_count < 20 * 10);
    TEST_UNTIL(fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    test_fixture_destroy(fixture);
    free(region.bytes);
    free(bytes);
}

#define QUEUE_COUNT 900

/* Full of writes and datagrams that the target does not read, then cut. */
static void force_close_ends_thousands_of_pending_writes(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes = test_pattern(TEST_MIB);
    test_write_t *writes = calloc(QUEUE_COUNT, sizeof(*writes));
    test_region_open(&region, &fixture->nodes[1], TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    TEST_UNTIL(fixture, fixture->nodes[1].data->inbound_count == 1);
    fixture->nodes[1].is_stalled = true;
    for (size_t i = 0; i < QUEUE_COUNT; i++) {
        const test_plan_t plan =
            plan_of(&region, bytes, i % 3 == 0 ? TEST_MIB : 1 + i);
        assert_int_equal(test_write_start(&writes[i], &lane, &plan),
                         TOW_SEND_OK);
    }
    for (int i = 0; i < 50; i++)
        test_turn(fixture);
    while (tow_lane_send(lane.lane, 1, bytes, 8) == TOW_SEND_OK) {
    }
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_FORCE);
    size_t lost_count = 0;
    for (size_t i = 0; i < QUEUE_COUNT; i++) {
        assert_int_equal(writes[i].done_count, 1);
        lost_count += writes[i].code == TOW_UNAVAILABLE;
    }
    assert_true(lost_count > QUEUE_COUNT / 2);
    fixture->nodes[1].is_stalled = false;
    test_settle(fixture);
    test_fixture_destroy(fixture);
    free(writes);
    free(region.bytes);
    free(bytes);
}

/* -- Writes --------------------------------------------------------------- */

/* Many large writes are in progress; a small one does not wait for them. */
static void small_write_overtakes_large_ones(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes = test_pattern(32 * TEST_MIB);
    test_write_t large[20], small;
    test_region_open(&region, &fixture->nodes[1], 32 * TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    const test_plan_t much = plan_of(&region, bytes, 32 * TEST_MIB);
    const test_plan_t little = plan_of(&region, bytes, 100);
    for (size_t i = 0; i < TOW_COUNT_OF(large); i++)
        assert_int_equal(test_write_start(&large[i], &lane, &much),
                         TOW_SEND_OK);
    for (int i = 0; i < 20; i++)
        test_turn(fixture);
    assert_int_equal(test_write_start(&small, &lane, &little), TOW_SEND_OK);
    TEST_UNTIL(fixture, small.done_count == 1);
    assert_int_equal(large[TOW_COUNT_OF(large) - 1].done_count, 0);
    for (size_t i = 0; i < TOW_COUNT_OF(large); i++)
        TEST_UNTIL(fixture, large[i].done_count == 1);
    assert_int_equal(large[0].code, TOW_CODE_OK);
    assert_int_equal(large[19].code, TOW_CODE_OK);
    assert_memory_equal(region.bytes, bytes, region.size);
    assert_int_equal(region.arrived_count, 21);
    test_fixture_destroy(fixture);
    free(region.bytes);
    free(bytes);
}

static void expect_refusal(test_fixture_t *fixture, test_lane_t *lane,
                           const test_plan_t *plan, tow_code_t code)
{
    test_write_t write;
    assert_int_equal(test_write_start(&write, lane, plan), TOW_SEND_OK);
    TEST_UNTIL(fixture, write.done_count == 1);
    assert_int_equal(write.code, code);
    assert_non_null(strstr(write.cause, "node refused a write"));
}

/* The rest of a rejected write is not sent. */
static void rejection_stops_a_write(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes = test_pattern(64 * TEST_MIB);
    test_region_open(&region, &fixture->nodes[1], TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    test_plan_t plan = plan_of(&region, bytes, 64 * TEST_MIB);
    expect_refusal(fixture, &lane, &plan, TOW_OUT_OF_RANGE);
    plan.key.secret++;
    expect_refusal(fixture, &lane, &plan, TOW_PERMISSION_DENIED);
    plan.key.id += 100;
    expect_refusal(fixture, &lane, &plan, TOW_NOT_FOUND);
    test_settle(fixture);
    const uint64_t fragments =
        64 * TEST_MIB / test_data_lane(&lane)->fragment_bytes;
    assert_true(fixture->nodes[1].data->straggler_count < 3 * fragments / 2);
    assert_int_equal(region.arrived_count, 0);
    for (size_t i = 0; i < region.size; i++)
        assert_int_equal(region.bytes[i], 0);
    test_fixture_destroy(fixture);
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
    test_fixture_t *fixture = test_fixture_create(2);
    test_node_t *target = &fixture->nodes[1];
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(64 * TEST_MIB);
    test_region_open(&region, target, 64 * TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], target);
    const test_plan_t plan = plan_of(&region, bytes, 64 * TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(fixture, region.bytes[1] != 0);
    tow_region_close(region.region,
                     (tow_closed_t){.run = region_closed, .context = &region});
    assert_int_equal(region.closed_count, 0);
    TEST_UNTIL(fixture, region.closed_count == 1);
    memset(region.bytes, 0, region.size); /* It is ours again. */
    TEST_UNTIL(fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_NOT_FOUND);
    test_settle(fixture);
    for (size_t i = 0; i < region.size; i += 4096)
        assert_int_equal(region.bytes[i + 1], 0);
    assert_int_equal(region.arrived_count, 0);
    test_fixture_destroy(fixture);
    free(region.bytes);
    free(bytes);
}

static void damaged_write_is_sent_again(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_node_t *target = &fixture->nodes[1];
    test_lane_t lane;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(TEST_MIB);
    test_region_open(&region, target, TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], target);
    test_plan_t plan = plan_of(&region, bytes, TEST_MIB);
    plan.check = TOW_WRITE_CRC32C;
    for (size_t size = 1; size <= TEST_MIB; size *= 64) {
        plan.size = size;
        tow_net_data_damage(target->net, 1);
        assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
        TEST_UNTIL(fixture, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
        assert_memory_equal(region.bytes, bytes, size);
        assert_int_equal(target->data->damage_count, 0);
    }
    const int arrived_count = region.arrived_count;
    tow_net_data_damage(target->net, UINT32_MAX);
    expect_refusal(fixture, &lane, &plan, TOW_DATA_LOSS);
    assert_int_equal(region.arrived_count, arrived_count);
    test_fixture_destroy(fixture);
    free(region.bytes);
    free(bytes);
}

/* -- Inbound lanes -------------------------------------------------------- */

static void closed_lane_is_closed_at_its_target(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    const tow_data_t *target = fixture->nodes[1].data;
    for (int i = 0; i < 6; i++) {
        test_lane_t lane;
        test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
        TEST_UNTIL(fixture, target->inbound_count == 1);
        assert_int_equal(tow_lane_send(lane.lane, 1, "x", 1), TOW_SEND_OK);
        test_lane_close(fixture, &lane,
                        i % 2 ? TOW_LANE_CLOSE_FORCE : TOW_LANE_CLOSE_GRACEFUL);
        TEST_UNTIL(fixture, target->inbound_count == 0);
    }
    test_settle(fixture);
    assert_int_equal(fixture->nodes[1].datagram_count, 6);
    assert_true(tow_list_is_empty(&fixture->nodes[0].data->parked));
    assert_true(tow_list_is_empty(&fixture->nodes[1].data->parked));
    test_fixture_destroy(fixture);
}

static void exchange(test_fixture_t *fixture, test_lane_t *lane,
                     test_region_t *region)
{
    static const uint8_t bytes[40000] = {1, 2, 3};
    test_write_t write;
    const test_plan_t plan = plan_of(region, bytes, sizeof(bytes));
    assert_int_equal(test_write_start(&write, lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
}

/* UCX pairs endpoints by counting them on both sides; we must not depend on
 * that: here the counts differ. */
static void lanes_open_and_close_in_any_order(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_region_t regions[2];
    test_lane_t lanes[2] = {0};
    for (size_t i = 0; i < 2; i++)
        test_region_open(&regions[i], &fixture->nodes[i], 40000);
    static const uint8_t script[] = {0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0};
    for (size_t i = 0; i < TOW_COUNT_OF(script); i++) {
        const size_t from = script[i];
        if (lanes[from].lane != NULL)
            test_lane_close(fixture, &lanes[from],
                            i % 3 ? TOW_LANE_CLOSE_FORCE
                                  : TOW_LANE_CLOSE_GRACEFUL);
        test_settle(fixture);
        test_lane_open(&lanes[from], &fixture->nodes[from],
                       &fixture->nodes[1 - from]);
        exchange(fixture, &lanes[from], &regions[1 - from]);
        test_lane_t *other = &lanes[1 - from];
        if (other->lane == NULL) continue;
        if (other->down_count == 0) {
            exchange(fixture, other, &regions[from]);
            continue;
        }
        /* Closing ours by force has closed theirs; they reopen it. */
        test_lane_close(fixture, other, TOW_LANE_CLOSE_GRACEFUL);
        test_lane_open(other, &fixture->nodes[1 - from], &fixture->nodes[from]);
        exchange(fixture, other, &regions[from]);
    }
    test_fixture_destroy(fixture);
    free(regions[0].bytes);
    free(regions[1].bytes);
}

/* A close by force disconnects the peer in both directions; if the peer is
 * alive, it is notified. */
static void force_close_ends_inbound_writes_too(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane, back;
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(64 * TEST_MIB);
    test_region_open(&region, &fixture->nodes[1], 64 * TEST_MIB);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    test_lane_open(&back, &fixture->nodes[1], &fixture->nodes[0]);
    const test_plan_t plan = plan_of(&region, bytes, 64 * TEST_MIB);
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(fixture, region.bytes[1] != 0);
    tow_lane_close(back.lane, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    /* From now on nothing is written but the chunks that are being pulled. */
    TEST_UNTIL(fixture, fixture->nodes[1].data->inbound_count == 0);
    memset(region.bytes, 0, region.size);
    TEST_UNTIL(fixture, lane.down_count == 1);
    assert_int_equal(write.done_count, 1);
    assert_int_equal(write.code, TOW_UNAVAILABLE);
    assert_int_equal(tow_lane_send(lane.lane, 1, "x", 1), TOW_SEND_DOWN);
    test_settle(fixture);
    for (size_t i = 0; i < region.size; i += 4096)
        assert_int_equal(region.bytes[i + 1], 0);
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_GRACEFUL);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    exchange(fixture, &lane, &region);
    test_fixture_destroy(fixture);
    free(region.bytes);
    free(bytes);
}

/* -- Malformed messages --------------------------------------------------- */

static void send_raw(test_fixture_t *fixture, test_lane_t *lane,
                     tow_data_id_t id, const void *header, size_t header_size,
                     size_t size)
{
    static uint8_t bytes[4096];
    tow_data_port_t *port = test_data_lane(lane)->port;
    tow_data_op_t *op = tow_data_op_take(port, 4096);
    memcpy(&op->header, header, header_size);
    const tow_data_bytes_t payload = {.bytes = bytes, .size = size};
    assert_int_not_equal(tow_data_port_send(port, op, id, header_size, payload),
                         TOW_DATA_FAILED);
    test_settle(fixture);
}

static void send_bad_fragments(test_fixture_t *fixture, test_lane_t *lane,
                               const test_region_t *region)
{
    const tow_region_key_t key = tow_region_key(region->region);
    tow_data_fragment_t good = {.stream = test_data_lane(lane)->stream,
                                .write = 1000,
                                .region = key.id,
                                .secret = key.secret,
                                .total = 10};
    tow_data_fragment_t bad = good;
    send_raw(fixture, lane, TOW_DATA_FRAGMENT, &bad, 71, 1);
    bad.at = UINT64_MAX - 3;
    send_raw(fixture, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 8);
    bad = good;
    bad.stream++;
    send_raw(fixture, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 8);
    bad = good; /* Not the start of a write. */
    bad.at = 4;
    send_raw(fixture, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 1);
    /* The pieces of one write do not continue each other. */
    send_raw(fixture, lane, TOW_DATA_FRAGMENT, &good, sizeof(good), 5);
    bad = good;
    bad.at = 5;
    bad.total = 1000;
    send_raw(fixture, lane, TOW_DATA_FRAGMENT, &bad, sizeof(bad), 5);
    /* More concurrent writes than a lane may have. */
    for (uint64_t i = 0; i < 3 * TOW_NET_LANE_LARGE_COUNT_MAX; i++) {
        good.write = 2000 + i;
        send_raw(fixture, lane, TOW_DATA_FRAGMENT, &good, sizeof(good), 5);
    }
}

static void send_bad_controls(test_fixture_t *fixture, test_lane_t *lane)
{
    const tow_data_control_t good = {.stream = test_data_lane(lane)->stream,
                                     .version = TOW_DATA_VERSION,
                                     .kind = TOW_DATA_ANSWER};
    tow_data_control_t bad = good;
    bad.version = 7;
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    bad = good;
    bad.kind = 99;
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    bad = good;
    bad.kind = TOW_DATA_HELLO; /* Without an address. */
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 100);
    bad.kind = TOW_DATA_BYE;
    bad.stream++; /* Of an unknown lane: ignored. */
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    bad.kind = TOW_DATA_RESET;
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, sizeof(bad), 0);
    send_raw(fixture, lane, TOW_DATA_CONTROL, &bad, 3, 0);
}

static void malformed_messages_are_rejected_and_logged(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_node_t *target = &fixture->nodes[1];
    test_lane_t lane;
    test_region_t region;
    test_region_open(&region, target, 50000);
    test_lane_open(&lane, &fixture->nodes[0], target);
    exchange(fixture, &lane, &region);
    const tow_data_datagram_t datagram = {.stream = 1};
    send_raw(fixture, &lane, TOW_DATA_DATAGRAM, &datagram, 16, 8);
    send_raw(fixture, &lane, TOW_DATA_DATAGRAM, &datagram, 5, 8);
    send_bad_fragments(fixture, &lane, &region);
    send_bad_controls(fixture, &lane);
    assert_non_null(strstr(target->log, "lane message refused"));
    assert_non_null(strstr(target->log, "a datagram for an unknown lane"));
    assert_non_null(strstr(target->log, "do not continue each other"));
    assert_int_equal(target->datagram_count, 0);
    assert_int_equal(region.arrived_count, 1);
    assert_int_equal(target->data->inbound_count, 1);
    assert_int_equal(lane.down_count, 0);
    /* Another lane still works. */
    test_lane_t second;
    test_lane_open(&second, &fixture->nodes[0], target);
    exchange(fixture, &second, &region);
    test_fixture_destroy(fixture);
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

static void data_plane_survives_failed_allocations(void **state)
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
    TEST_ON_ALL(force_close_ends_thousands_of_pending_writes),
    TEST_ON_ALL(small_write_overtakes_large_ones),
    TEST_ON_ALL(rejection_stops_a_write),
    TEST_ON_ALL(region_may_close_in_mid_write),
    TEST_ON_ALL(damaged_write_is_sent_again),
    TEST_ON_ALL(closed_lane_is_closed_at_its_target),
    TEST_ON_ALL(lanes_open_and_close_in_any_order),
    TEST_ON_ALL(force_close_ends_inbound_writes_too),
    TEST_ON_UCX(malformed_messages_are_rejected_and_logged),
    TEST_ON_ALL(data_plane_survives_failed_allocations),
    {"unknown_device_is_told", unknown_device_is_told, test_use_tcp,
     test_use_shm, NULL},
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
