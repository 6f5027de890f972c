/* Bulk writes into regions. */
#include "lane_probe.h"

#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)

typedef struct bulk {
    world_t *world;
    lane_probe_t lane; /* from node 0 to node 1 */
    region_probe_t region;
} bulk_t;

static bulk_t *bulk_create_in(world_t *world, size_t region_size)
{
    bulk_t *bulk = calloc(1, sizeof(*bulk));
    bulk->world = world;
    region_probe_open(&bulk->region, world_env(bulk->world, 1), region_size);
    lane_probe_open(&bulk->lane, world_env(bulk->world, 0),
                    world_env(bulk->world, 1));
    return bulk;
}

static bulk_t *bulk_create(size_t node_count, size_t region_size)
{
    return bulk_create_in(world_create_with_lanes(node_count), region_size);
}

static void bulk_destroy(bulk_t *bulk)
{
    world_destroy(bulk->world);
    region_probe_free(&bulk->region);
    free(bulk);
}

static void write_and_wait(bulk_t *bulk, const write_plan_t *plan,
                           tow_code_t expected)
{
    write_probe_t write = {0};
    assert_int_equal(write_probe_start(&write, &bulk->lane, plan), TOW_SEND_OK);
    assert_int_equal(write.done_count, 0);
    WORLD_UNTIL(bulk->world, write.done_count == 1);
    if (write.code != expected)
        fail_msg("the write ended with %s: %s", tow_code_name(write.code),
                 write.cause);
    write_probe_free(&write);
}

static bool is_untouched(const uint8_t *bytes, size_t size)
{
    return size == 0 ||
           (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

/* -- Bytes in place ------------------------------------------------------- */

static void check_in_place(region_probe_t *probe, const tow_arrival_t *arrival)
{
    size_t good = pattern_check(probe->bytes + arrival->offset, arrival->size,
                                arrival->tag);
    if (good != arrival->size)
        fail_msg("at `arrived`, byte %zu of %zu is wrong", good,
                 (size_t)arrival->size);
}

static void write_one(uint64_t size, uint64_t offset, tow_write_check_t check)
{
    bulk_t *bulk = bulk_create(2, size + 2 * offset);
    bulk->region.arrived = check_in_place;
    write_and_wait(bulk,
                   &(write_plan_t){.size = size,
                                   .key = tow_region_key(bulk->region.region),
                                   .offset = offset,
                                   .tag = 0xfedcba9876543210u ^ size,
                                   .check = check},
                   TOW_CODE_OK);
    WORLD_UNTIL(bulk->world, bulk->region.arrived_count >= 1);
    assert_true(bulk->region.arrivals[0].offset == offset);
    assert_true(bulk->region.arrivals[0].size == size);
    assert_true(bulk->region.arrivals[0].tag == (0xfedcba9876543210u ^ size));
    assert_true(is_untouched(bulk->region.bytes, offset));
    assert_true(is_untouched(bulk->region.bytes + offset + size, offset));
    world_settle(bulk->world);
    assert_int_equal(bulk->region.arrived_count, 1);
    assert_int_equal(bulk->lane.down_count, 0);
    bulk_destroy(bulk);
}

static void write_puts_its_bytes_in_place_and_arrives_once(void **state)
{
    static const uint64_t sizes[] = {1,    7,     8,      100,    4096,
                                     8191, 65536, 300001, MIB + 3};
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        write_one(sizes[i], 0, TOW_WRITE_UNCHECKED);
        write_one(sizes[i], 13, TOW_WRITE_UNCHECKED);
    }
}

static void checked_write_puts_its_bytes_in_place(void **state)
{
    static const uint64_t sizes[] = {1, 4096, MIB + 3};
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++)
        write_one(sizes[i], 5, TOW_WRITE_CRC32C);
}

static void large_write_puts_its_bytes_in_place(void **state)
{
    write_one(64 * MIB, 1, TOW_WRITE_UNCHECKED);
    write_one(64 * MIB, 0, TOW_WRITE_CRC32C);
}

/* The last byte of a region can be written. */
static void write_may_fill_the_whole_region(void **state)
{
    bulk_t *bulk = bulk_create(2, 5000);
    tow_region_key_t key = tow_region_key(bulk->region.region);
    write_and_wait(bulk, &(write_plan_t){.size = 5000, .key = key, .tag = 1},
                   TOW_CODE_OK);
    write_and_wait(
        bulk, &(write_plan_t){.size = 1, .key = key, .offset = 4999, .tag = 2},
        TOW_CODE_OK);
    WORLD_UNTIL(bulk->world, bulk->region.arrived_count == 2);
    bulk_destroy(bulk);
}

static void writes_both_ways_at_once(void **state)
{
    bulk_t *bulk = bulk_create(2, 4 * MIB);
    region_probe_t *back_region = calloc(1, sizeof(*back_region));
    region_probe_open(back_region, world_env(bulk->world, 0), 4 * MIB);
    lane_probe_t back = {0};
    lane_probe_open(&back, world_env(bulk->world, 1),
                    world_env(bulk->world, 0));
    write_probe_t there = {0}, here = {0};
    assert_int_equal(
        write_probe_start(&there, &bulk->lane,
                          &(write_plan_t){.size = 4 * MIB,
                                          .key = bulk->region.region->key,
                                          .tag = 1}),
        TOW_SEND_OK);
    assert_int_equal(
        write_probe_start(&here, &back,
                          &(write_plan_t){.size = 4 * MIB,
                                          .key = back_region->region->key,
                                          .tag = 2}),
        TOW_SEND_OK);
    WORLD_UNTIL(bulk->world, there.done_count == 1 && here.done_count == 1 &&
                                 bulk->region.arrived_count == 1 &&
                                 back_region->arrived_count == 1);
    assert_int_equal(there.code, TOW_CODE_OK);
    assert_int_equal(here.code, TOW_CODE_OK);
    assert_int_equal(pattern_check(bulk->region.bytes, 4 * MIB, 1), 4 * MIB);
    assert_int_equal(pattern_check(back_region->bytes, 4 * MIB, 2), 4 * MIB);
    bulk_destroy(bulk);
    region_probe_free(back_region);
    free(back_region);
    write_probe_free(&there);
    write_probe_free(&here);
}

/* -- Many at once --------------------------------------------------------- */

#define WRITER_COUNT 2
#define PIECE_COUNT  24 /* of each writer */

static size_t piece_size(size_t piece)
{
    static const size_t sizes[] = {1, 100, 5000, 70000, 300000};
    return sizes[piece % TOW_COUNT_OF(sizes)];
}

#define PIECE_STRIDE 300000

static void start_pieces(write_probe_t *writes, lane_probe_t *lane,
                         tow_region_key_t key, size_t writer)
{
    for (size_t piece = 0; piece < PIECE_COUNT; piece++) {
        size_t slot = writer * PIECE_COUNT + piece;
        write_plan_t plan = {.size = piece_size(piece),
                             .key = key,
                             .offset = slot * PIECE_STRIDE,
                             .tag = 100 + slot,
                             .check = piece % 2 ? TOW_WRITE_CRC32C
                                                : TOW_WRITE_UNCHECKED};
        assert_int_equal(write_probe_start(&writes[slot], lane, &plan),
                         TOW_SEND_OK);
    }
}

static int done_among(const write_probe_t *writes, size_t count)
{
    int done_count = 0;
    for (size_t i = 0; i < count; i++)
        done_count += writes[i].done_count;
    return done_count;
}

static void check_pieces(const region_probe_t *region,
                         const write_probe_t *writes)
{
    bool told[WRITER_COUNT * PIECE_COUNT] = {false};
    for (size_t slot = 0; slot < TOW_COUNT_OF(told); slot++) {
        const tow_arrival_t *arrival = &region->arrivals[slot];
        size_t told_slot = arrival->tag - 100;
        assert_true(told_slot < TOW_COUNT_OF(told) && !told[told_slot]);
        told[told_slot] = true;
        assert_true(arrival->offset == told_slot * PIECE_STRIDE);
        size_t size = piece_size(slot % PIECE_COUNT);
        const uint8_t *bytes = region->bytes + slot * PIECE_STRIDE;
        assert_int_equal(writes[slot].code, TOW_CODE_OK);
        assert_int_equal(pattern_check(bytes, size, 100 + slot), size);
        assert_true(is_untouched(bytes + size, PIECE_STRIDE - size));
    }
}

static void writers_may_share_a_region(void **state)
{
    size_t piece_count = WRITER_COUNT * PIECE_COUNT;
    bulk_t *bulk = bulk_create(3, piece_count * PIECE_STRIDE);
    lane_probe_t second = {0};
    lane_probe_open(&second, world_env(bulk->world, 2),
                    world_env(bulk->world, 1));
    tow_region_key_t key = tow_region_key(bulk->region.region);
    write_probe_t *writes = calloc(piece_count, sizeof(*writes));
    start_pieces(writes, &bulk->lane, key, 0);
    start_pieces(writes, &second, key, 1);
    WORLD_UNTIL(bulk->world,
                done_among(writes, piece_count) == (int)piece_count &&
                    bulk->region.arrived_count >= (int)piece_count);
    world_settle(bulk->world);
    assert_int_equal(bulk->region.arrived_count, piece_count);
    check_pieces(&bulk->region, writes);
    bulk_destroy(bulk);
    for (size_t i = 0; i < piece_count; i++)
        write_probe_free(&writes[i]);
    free(writes);
}

/* Nothing can complete within one turn, so the bound must be reached. */
#define FLOOD_COUNT_MAX 20000

static void writes_beyond_the_bound_are_full_until_writable(void **state)
{
    bulk_t *bulk = bulk_create(2, 64);
    write_plan_t plan = {.size = 64, .key = bulk->region.region->key, .tag = 9};
    write_probe_t *writes = calloc(FLOOD_COUNT_MAX, sizeof(*writes));
    size_t count = 0;
    while (count < FLOOD_COUNT_MAX) {
        tow_send_result_t result =
            write_probe_start(&writes[count], &bulk->lane, &plan);
        if (result == TOW_SEND_FULL) break;
        assert_int_equal(result, TOW_SEND_OK);
        count++;
    }
    if (count == FLOOD_COUNT_MAX)
        fail_msg("a lane took %zu writes in one turn and was not full", count);
    WORLD_UNTIL(bulk->world, bulk->lane.writable_count >= 1);
    /* The rejected write stayed with the caller, and is accepted now. */
    assert_int_equal(write_probe_submit(&writes[count], &bulk->lane),
                     TOW_SEND_OK);
    WORLD_UNTIL(bulk->world, done_among(writes, count + 1) == (int)count + 1);
    for (size_t i = 0; i <= count; i++)
        assert_int_equal(writes[i].code, TOW_CODE_OK);
    WORLD_UNTIL(bulk->world, bulk->region.arrived_count == (int)count + 1);
    bulk_destroy(bulk);
    for (size_t i = 0; i <= count; i++)
        write_probe_free(&writes[i]);
    free(writes);
}

static void start_next(write_probe_t *probe)
{
    write_probe_t *next = probe->context;
    if (next == NULL) return;
    write_plan_t plan = {.size = probe->write.size,
                         .key = probe->write.key,
                         .tag = probe->write.tag + 1};
    assert_int_equal(write_probe_start(next, probe->lane, &plan), TOW_SEND_OK);
}

static void write_may_follow_in_done_of_another(void **state)
{
    bulk_t *bulk = bulk_create(2, 10000);
    write_probe_t writes[20] = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++) {
        writes[i].done = start_next;
        writes[i].context =
            i + 1 < TOW_COUNT_OF(writes) ? &writes[i + 1] : NULL;
    }
    write_plan_t plan = {
        .size = 10000, .key = bulk->region.region->key, .tag = 1};
    assert_int_equal(write_probe_start(&writes[0], &bulk->lane, &plan),
                     TOW_SEND_OK);
    WORLD_UNTIL(bulk->world,
                writes[19].done_count == 1 && bulk->region.arrived_count == 20);
    assert_int_equal(pattern_check(bulk->region.bytes, 10000, 20), 10000);
    bulk_destroy(bulk);
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++)
        write_probe_free(&writes[i]);
}

/* -- Rejected writes ------------------------------------------------------ */

static void expect_refusal(const write_plan_t *changes, tow_code_t expected)
{
    static const uint64_t sizes[] = {1, 3000, MIB};
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        bulk_t *bulk = bulk_create(2, MIB);
        write_plan_t plan = *changes;
        plan.size = sizes[i];
        if (changes->size > 0) plan.size = changes->size;
        plan.key.id ^= bulk->region.region->key.id;
        plan.key.secret ^= bulk->region.region->key.secret;
        plan.tag = 1;
        write_and_wait(bulk, &plan, expected);
        world_settle(bulk->world);
        assert_int_equal(bulk->region.arrived_count, 0);
        assert_true(is_untouched(bulk->region.bytes, bulk->region.size));
        /* The lane still works. */
        plan = (write_plan_t){
            .size = 10, .key = bulk->region.region->key, .tag = 2};
        write_and_wait(bulk, &plan, TOW_CODE_OK);
        bulk_destroy(bulk);
    }
}

static void write_to_no_region_is_not_found(void **state)
{
    expect_refusal(&(write_plan_t){.key = {.id = UINT64_C(1) << 40}},
                   TOW_NOT_FOUND);
}

static void write_with_a_wrong_secret_is_denied(void **state)
{
    expect_refusal(&(write_plan_t){.key = {.secret = 1}},
                   TOW_PERMISSION_DENIED);
    expect_refusal(&(write_plan_t){.key = {.secret = UINT64_C(1) << 63}},
                   TOW_PERMISSION_DENIED);
}

static void write_beyond_the_region_is_out_of_range(void **state)
{
    expect_refusal(&(write_plan_t){.offset = MIB}, TOW_OUT_OF_RANGE);
    expect_refusal(&(write_plan_t){.offset = MIB + 1}, TOW_OUT_OF_RANGE);
    expect_refusal(&(write_plan_t){.size = 2, .offset = MIB - 1},
                   TOW_OUT_OF_RANGE);
    expect_refusal(&(write_plan_t){.size = MIB + 1}, TOW_OUT_OF_RANGE);
}

static void write_whose_end_overflows_is_out_of_range(void **state)
{
    expect_refusal(&(write_plan_t){.offset = UINT64_MAX}, TOW_OUT_OF_RANGE);
    expect_refusal(&(write_plan_t){.size = 4096, .offset = UINT64_MAX - 4095},
                   TOW_OUT_OF_RANGE);
}

/* One bit in some fragments is flipped: a checked write succeeds with the right
 * bytes, or reports an error. */
static void checked_write_is_never_silently_wrong(void **state)
{
    world_t *world = world_create_with_lanes(2);
    world_require(world, WORLD_CORRUPTION);
    bulk_t *bulk = bulk_create_in(world, MIB);
    bulk->region.arrived = check_in_place;
    int ok_count = 0, lost_count = 0;
    for (uint64_t i = 0; i < 60; i++) {
        world_corrupt(bulk->world, (uint32_t)(i * i * 250));
        write_probe_t write = {0};
        write_plan_t plan = {.size = i % 2 ? MIB : 5000,
                             .key = bulk->region.region->key,
                             .tag = 1000 + i,
                             .check = TOW_WRITE_CRC32C};
        assert_int_equal(write_probe_start(&write, &bulk->lane, &plan),
                         TOW_SEND_OK);
        WORLD_UNTIL(bulk->world, write.done_count == 1);
        if (write.code == TOW_CODE_OK) {
            ok_count++;
            assert_int_equal(
                pattern_check(bulk->region.bytes, plan.size, plan.tag),
                plan.size);
        } else {
            assert_int_equal(write.code, TOW_DATA_LOSS);
            lost_count++;
        }
        write_probe_free(&write);
    }
    assert_true(ok_count > 0 && lost_count > 0);
    bulk_destroy(bulk);
}

static void regions_have_keys_of_their_own(void **state)
{
    bulk_t *bulk = bulk_create(2, 100);
    region_probe_t *second = calloc(1, sizeof(*second));
    region_probe_open(second, world_env(bulk->world, 1), 100);
    tow_region_key_t a = bulk->region.region->key, b = second->region->key;
    assert_true(a.id != b.id);
    assert_true(a.secret != b.secret);
    /* One region's secret does not grant access to the other. */
    write_and_wait(
        bulk, &(write_plan_t){.size = 10, .key = {a.id, b.secret}, .tag = 1},
        TOW_PERMISSION_DENIED);
    write_and_wait(bulk, &(write_plan_t){.size = 10, .key = b, .tag = 1},
                   TOW_CODE_OK);
    WORLD_UNTIL(bulk->world, second->arrived_count == 1);
    assert_int_equal(bulk->region.arrived_count, 0);
    bulk_destroy(bulk);
    region_probe_free(second);
    free(second);
}

SUITE(bulk, CONFORMANCE_TEST(write_puts_its_bytes_in_place_and_arrives_once),
      CONFORMANCE_TEST(checked_write_puts_its_bytes_in_place),
      CONFORMANCE_TEST(large_write_puts_its_bytes_in_place),
      CONFORMANCE_TEST(write_may_fill_the_whole_region),
      CONFORMANCE_TEST(writes_both_ways_at_once),
      CONFORMANCE_TEST(writers_may_share_a_region),
      CONFORMANCE_TEST(writes_beyond_the_bound_are_full_until_writable),
      CONFORMANCE_TEST(write_may_follow_in_done_of_another),
      CONFORMANCE_TEST(write_to_no_region_is_not_found),
      CONFORMANCE_TEST(write_with_a_wrong_secret_is_denied),
      CONFORMANCE_TEST(write_beyond_the_region_is_out_of_range),
      CONFORMANCE_TEST(write_whose_end_overflows_is_out_of_range),
      CONFORMANCE_TEST(checked_write_is_never_silently_wrong),
      CONFORMANCE_TEST(regions_have_keys_of_their_own))
