/* Datagrams. They may be lost, duplicated and reordered, so these tests resend
 * until something arrives, and verify its content. */
#include "lane_probe.h"

#include <stdlib.h>

typedef struct inbox {
    tow_env_t *env;
    uint64_t channel; /* all must be for it */
    uint64_t arrived_count;
    uint64_t seen[64]; /* bit per number below 4,096 */
    size_t distinct_count;
} inbox_t;

/* A datagram's first eight bytes are its number, which is also the seed of the
 * rest and determines the size. */
#define NUMBER_MAX 4096

static size_t size_of_number(uint64_t number)
{
    static const size_t sizes[] = {8, 9, 64, 1000, 4095, TOW_DATAGRAM_SIZE_MAX};
    return sizes[number % TOW_COUNT_OF(sizes)];
}

static void fill_number(uint8_t *bytes, uint64_t number)
{
    pattern_fill(bytes, size_of_number(number), number);
    memcpy(bytes, &number, sizeof(number));
}

static void datagram_arrived(void *context, uint64_t channel, const void *bytes,
                             size_t size)
{
    inbox_t *inbox = context;
    turn_enter(inbox->env);
    assert_true(channel == inbox->channel);
    uint64_t number;
    assert_true(size >= sizeof(number));
    memcpy(&number, bytes, sizeof(number));
    assert_true(number < NUMBER_MAX);
    assert_int_equal(size, size_of_number(number));
    uint8_t expected[TOW_DATAGRAM_SIZE_MAX];
    fill_number(expected, number);
    assert_memory_equal(bytes, expected, size);
    inbox->arrived_count++;
    uint64_t bit = UINT64_C(1) << (number % 64);
    if ((inbox->seen[number / 64] & bit) == 0) inbox->distinct_count++;
    inbox->seen[number / 64] |= bit;
    turn_leave(inbox->env);
}

static void inbox_open(inbox_t *inbox, tow_env_t *env, uint64_t channel)
{
    inbox->env = env;
    inbox->channel = channel;
    tow_env_datagram_handler(env, datagram_arrived, inbox);
}

static tow_send_result_t send_number(lane_probe_t *lane, uint64_t channel,
                                     uint64_t number)
{
    uint8_t bytes[TOW_DATAGRAM_SIZE_MAX];
    fill_number(bytes, number);
    call_enter();
    tow_send_result_t result =
        tow_lane_send(lane->lane, channel, bytes, size_of_number(number));
    call_leave();
    memset(bytes, 0xcc, sizeof(bytes)); /* It was copied. */
    assert_int_not_equal(result, TOW_SEND_DOWN);
    return result;
}

/* Rounds of resending what has not arrived. A tenth is lost in a lossy world,
 * and a full lane takes the rest in the next round. */
#define ROUND_COUNT_MAX 200

static bool has_arrived(const inbox_t *inbox, uint64_t number)
{
    return (inbox->seen[number / 64] >> (number % 64) & 1) != 0;
}

static void send_until_all_arrived(world_t *world, lane_probe_t *lane,
                                   inbox_t *inbox, size_t count)
{
    for (int round = 0; round < ROUND_COUNT_MAX; round++) {
        for (uint64_t number = 0; number < count; number++) {
            if (has_arrived(inbox, number)) continue;
            if (send_number(lane, inbox->channel, number) != TOW_SEND_OK) break;
        }
        world_settle(world);
        if (inbox->distinct_count == count) return;
    }
    fail_msg("%zu of %zu datagrams arrived", inbox->distinct_count, count);
}

static void lane_address_is_constant(void **state)
{
    world_t *world = world_create_with_lanes(2);
    const void *first, *second, *other;
    size_t first_size, second_size, other_size;
    tow_env_lane_address(world_env(world, 0), &first, &first_size);
    tow_env_lane_address(world_env(world, 1), &other, &other_size);
    assert_true(first_size > 0);
    world_settle(world);
    tow_env_lane_address(world_env(world, 0), &second, &second_size);
    assert_ptr_equal(first, second);
    assert_int_equal(first_size, second_size);
    assert_true(first_size != other_size ||
                memcmp(first, other, first_size) != 0);
    world_destroy(world);
}

static void datagrams_arrive_unaltered_both_ways(void **state)
{
    world_t *world = world_create_with(
        &(world_options_t){.node_count = 2, .lanes = true, .lossy = true});
    inbox_t inboxes[2] = {0};
    lane_probe_t lanes[2] = {0};
    for (size_t i = 0; i < 2; i++) {
        inbox_open(&inboxes[i], world_env(world, i), 40 + i);
        lane_probe_open(&lanes[i], world_env(world, 1 - i),
                        world_env(world, i));
    }
    for (size_t i = 0; i < 2; i++)
        send_until_all_arrived(world, &lanes[i], &inboxes[i], 500);
    world_destroy(world);
}

static void channel_number_arrives_unaltered(void **state)
{
    static const uint64_t channels[] = {0, 1, UINT64_C(0x123456789abcdef0),
                                        UINT64_MAX};
    world_t *world = world_create_with_lanes(2);
    lane_probe_t lane = {0};
    lane_probe_open(&lane, world_env(world, 0), world_env(world, 1));
    for (size_t i = 0; i < TOW_COUNT_OF(channels); i++) {
        inbox_t inbox = {0};
        inbox_open(&inbox, world_env(world, 1), channels[i]);
        send_until_all_arrived(world, &lane, &inbox, 10);
        world_settle(world); /* No duplicates of this channel are in flight. */
    }
    world_destroy(world);
}

typedef struct lengths {
    tow_env_t *env;
    bool seen[9];
} lengths_t;

static void note_length(void *context, uint64_t channel, const void *bytes,
                        size_t size)
{
    lengths_t *lengths = context;
    turn_enter(lengths->env);
    assert_true(size < 9);
    assert_memory_equal(bytes, "12345678", size);
    lengths->seen[size] = true;
    turn_leave(lengths->env);
}

static void smallest_datagrams_arrive(void **state)
{
    world_t *world = world_create_with_lanes(2);
    lane_probe_t lane = {0};
    lane_probe_open(&lane, world_env(world, 0), world_env(world, 1));
    lengths_t lengths = {.env = world_env(world, 1)};
    tow_env_datagram_handler(world_env(world, 1), note_length, &lengths);
    for (size_t size = 0; size <= 8; size++) {
        for (int i = 0; i < ROUND_COUNT_MAX && !lengths.seen[size]; i++) {
            assert_int_equal(tow_lane_send(lane.lane, 1, "12345678", size),
                             TOW_SEND_OK);
            world_settle(world);
        }
        assert_true(lengths.seen[size]);
    }
    world_destroy(world);
}

#define BURST_COUNT_MAX 100000

static void full_lane_returns_full_and_becomes_writable(void **state)
{
    world_t *world = world_create_with_lanes(2);
    inbox_t inbox = {0};
    inbox_open(&inbox, world_env(world, 1), 7);
    lane_probe_t lane = {0};
    lane_probe_open(&lane, world_env(world, 0), world_env(world, 1));
    int sent_count = 0;
    while (sent_count < BURST_COUNT_MAX &&
           send_number(&lane, 7, 5) == TOW_SEND_OK)
        sent_count++;
    if (sent_count == BURST_COUNT_MAX)
        fail_msg("a lane took %d datagrams in one turn and was not full",
                 sent_count);
    assert_int_equal(lane.writable_count, 0);
    WORLD_UNTIL(world, lane.writable_count == 1);
    assert_int_equal(send_number(&lane, 7, 5), TOW_SEND_OK);
    assert_true(inbox.arrived_count <= (uint64_t)sent_count * 2 + 2);
    world_destroy(world);
}

static void datagram_without_a_handler_is_dropped(void **state)
{
    world_t *world = world_create_with_lanes(2);
    lane_probe_t lane = {0};
    lane_probe_open(&lane, world_env(world, 0), world_env(world, 1));
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(send_number(&lane, 7, i), TOW_SEND_OK);
    world_settle(world);
    inbox_t inbox = {0};
    inbox_open(&inbox, world_env(world, 1), 7);
    send_until_all_arrived(world, &lane, &inbox, 10);
    world_destroy(world);
}

/* Addresses come from peers: a malformed one is an error of theirs, not a bug
 * of ours. */
static void open_and_abandon(world_t *world, const void *address, size_t size)
{
    lane_probe_t probe = {0};
    tow_status_t status =
        lane_probe_try_open(&probe, world_env(world, 0), address, size);
    if (status == TOW_OK) {
        lane_probe_close(&probe, TOW_LANE_CLOSE_FORCE);
        WORLD_UNTIL(world, probe.closed.count == 1);
        return;
    }
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(status), "the-peer"));
    tow_status_release(status);
}

static void malformed_lane_address_is_survived(void **state)
{
    world_t *world = world_create_with_lanes(2);
    const void *good;
    size_t size;
    tow_env_lane_address(world_env(world, 1), &good, &size);
    uint8_t *bad = malloc(size);
    memcpy(bad, good, size);
    open_and_abandon(world, bad, 0);
    open_and_abandon(world, bad, 1);
    open_and_abandon(world, bad, size / 2);
    open_and_abandon(world, bad, size - 1);
    for (size_t i = 0; i < size; i += 1 + size / 16) {
        bad[i] ^= 0x40;
        open_and_abandon(world, bad, size);
        bad[i] ^= 0x40;
    }
    memset(bad, 0xff, size);
    open_and_abandon(world, bad, size);
    free(bad);
    world_destroy(world);
}

SUITE(datagram, CONFORMANCE_TEST(lane_address_is_constant),
      CONFORMANCE_TEST(datagrams_arrive_unaltered_both_ways),
      CONFORMANCE_TEST(channel_number_arrives_unaltered),
      CONFORMANCE_TEST(smallest_datagrams_arrive),
      CONFORMANCE_TEST(full_lane_returns_full_and_becomes_writable),
      CONFORMANCE_TEST(datagram_without_a_handler_is_dropped),
      CONFORMANCE_TEST(malformed_lane_address_is_survived))
