/* Writes that their target uses where they are, and who may do what meanwhile. */
#include "env/net/data_testing_impl.h"

#include <unistd.h>

#include "base/block.h"

#define LENT_BYTES (5 * TEST_MIB + 64)

typedef struct lending {
    test_world_t *world;
    test_node_t *from;
    test_node_t *to;
    test_lane_t lane;
    test_region_t region;
    uint8_t *block; /* of blocks; NULL: given */
    uint8_t *same;  /* owned: what is in it */
    int lent_count;
    test_write_t write;
} lending_t;

static lending_t *current; /* whose writes are lent */

static void count_lent(tow_write_t *write)
{
    assert_true(write->size > 0);
    current->lent_count++;
}

static void open_region(lending_t *lending, size_t size, bool may_borrow)
{
    test_region_t *region = &lending->region;
    *region = (test_region_t){.bytes = calloc(1, size), .size = size};
    const tow_region_options_t options = {.bytes = region->bytes,
                                          .size = size,
                                          .may_borrow = may_borrow,
                                          .arrived = test_region_arrived,
                                          .context = region};
    assert_null(
        tow_env_region_open(lending->to->env, &options, &region->region));
}

static void region_closed(void *context)
{
    ((test_region_t *)context)->closed_count++;
}

static void close_region(lending_t *lending)
{
    test_region_t *region = &lending->region;
    tow_region_close(region->region,
                     (tow_closed_t){.run = region_closed, .context = region});
    TEST_UNTIL(lending->world, region->closed_count == 1);
    free(region->bytes);
    region->bytes = NULL;
}

static void lending_open(lending_t *lending)
{
    const tow_data_reach_t self = {.pid = getpid(), .pidfd = -1};
    uint64_t here = 5, there = 0;
    if (tow_data_reach_read(&self, &there, (uintptr_t)&here, sizeof(here)) != 0)
        tow_test_skip("the kernel refuses process_vm_readv");
    *lending = (lending_t){.world = test_world_create(2)};
    current = lending;
    lending->from = &lending->world->nodes[0];
    lending->to = &lending->world->nodes[1];
    lending->block = tow_block_take(LENT_BYTES);
    assert_non_null(lending->block);
    lending->same = test_pattern(LENT_BYTES);
    memcpy(lending->block, lending->same, LENT_BYTES);
    open_region(lending, LENT_BYTES, true);
    test_lane_open(&lending->lane, lending->from, lending->to);
}

static void lending_close(lending_t *lending)
{
    test_world_destroy(lending->world);
    if (lending->block != NULL) tow_block_give(lending->block);
    free(lending->region.bytes);
    free(lending->same);
}

static void start_as(lending_t *lending, test_write_t *test, const void *bytes,
                     size_t size)
{
    *test =
        (test_write_t){.write = {.bytes = bytes,
                                 .size = size,
                                 .key = tow_region_key(lending->region.region),
                                 .lent = count_lent,
                                 .done = test_write_done}};
    assert_int_equal(tow_lane_write(lending->lane.lane, &test->write),
                     TOW_SEND_OK);
}

static void start(lending_t *lending, const void *bytes, size_t size)
{
    start_as(lending, &lending->write, bytes, size);
}

static const tow_arrival_t *lend(lending_t *lending)
{
    const int before = lending->lent_count;
    start(lending, lending->block, LENT_BYTES);
    TEST_UNTIL(lending->world, lending->lent_count == before + 1);
    const tow_arrival_t *arrival = &lending->region.last;
    assert_non_null(arrival->loan);
    assert_ptr_not_equal(arrival->lent, lending->block);
    assert_memory_equal(arrival->lent, lending->same, LENT_BYTES);
    return arrival;
}

/* Nothing is copied; the writer hears when it is taken and when it is free. */
static void write_of_a_block_is_lent(void **state)
{
    (void)state;
    lending_t lending;
    lending_open(&lending);
    const void *seen = NULL;
    for (int i = 0; i < 3; i++) {
        const tow_arrival_t *arrival = lend(&lending);
        if (seen != NULL) assert_ptr_equal(arrival->lent, seen); /* Mapped. */
        seen = arrival->lent;
        assert_int_equal(arrival->size, LENT_BYTES);
        test_settle(lending.world);
        assert_int_equal(lending.write.done_count, 0);
        assert_int_equal(lending.region.bytes[1], 0);
        assert_int_equal(lending.to->data->loan_count, 1);
        tow_loan_end(lending.to->env, arrival->loan);
        TEST_UNTIL(lending.world, lending.write.done_count == 1);
        assert_int_equal(lending.write.code, TOW_CODE_OK);
        assert_false(lending.write.write.is_adrift);
    }
    assert_int_equal(lending.to->data->borrowed_count, 3);
    assert_int_equal(lending.to->data->pulled_count, 0);
    assert_int_equal(test_data_lane(&lending.lane)->lent_count, 0);
    lending_close(&lending);
}

/* Each is copied, and arrives all the same. */
static void what_may_not_be_lent_is_copied(void **state)
{
    (void)state;
    lending_t lending;
    lending_open(&lending);
    for (int i = 0; i < 4; i++) {
        size_t size = LENT_BYTES;
        const uint8_t *bytes = lending.block;
        if (i == 0) size -= 8;            /* Not all of the region. */
        if (i == 1) bytes = lending.same; /* In no block. */
        if (i == 2) { /* The target wants it in its own memory. */
            close_region(&lending);
            open_region(&lending, LENT_BYTES, false);
        }
        if (i == 3) { /* The writer does. */
            close_region(&lending);
            open_region(&lending, LENT_BYTES, true);
        }
        start(&lending, bytes, size);
        if (i == 3) lending.write.write.lent = NULL;
        TEST_UNTIL(lending.world, lending.write.done_count == 1);
        assert_int_equal(lending.write.code, TOW_CODE_OK);
        assert_null(lending.region.last.loan);
        assert_memory_equal(lending.region.bytes, lending.same, size);
        memset(lending.region.bytes, 0, LENT_BYTES);
    }
    assert_int_equal(lending.lent_count, 0);
    assert_int_equal(lending.to->data->pulled_count, 4);
    assert_true(tow_block_is_wanted(LENT_BYTES)); /* The next one may be. */
    lending_close(&lending);
}

/* The lane is cut. The writer must not touch the bytes, but may free them: who has
 * them keeps them. */
static void lane_cut_while_lent_leaves_the_bytes(void **state)
{
    (void)state;
    lending_t lending;
    lending_open(&lending);
    const tow_arrival_t *arrival = lend(&lending);
    test_lane_close(lending.world, &lending.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(lending.write.done_count, 1);
    assert_int_equal(lending.write.code, TOW_UNAVAILABLE);
    assert_true(lending.write.write.is_adrift);
    tow_block_give(lending.block);
    lending.block = NULL;
    TEST_UNTIL(lending.world, lending.to->data->inbound_count == 0);
    assert_memory_equal(arrival->lent, lending.same, LENT_BYTES);
    tow_loan_end(lending.to->env, arrival->loan);
    assert_int_equal(lending.to->data->loan_count, 0);
    lending_close(&lending);
}

/* Before the writer has heard that it is lent, and even before it is. */
static void lane_cut_before_the_target_says_so_is_adrift_too(void **state)
{
    (void)state;
    lending_t lending;
    lending_open(&lending);
    TEST_UNTIL(lending.world,
               test_data_lane(&lending.lane)->reach != TOW_DATA_REACH_ASKED);
    lending.to->is_stalled = true;
    start(&lending, lending.block, LENT_BYTES);
    test_settle(lending.world);
    test_lane_close(lending.world, &lending.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(lending.lent_count, 0);
    assert_true(lending.write.write.is_adrift);
    lending.to->is_stalled = false;
    TEST_UNTIL(lending.world, lending.to->data->inbound_count == 0);
    assert_int_equal(lending.region.arrived_count, 0); /* Its word is gone. */
    lending_close(&lending);
}

/* The target throws the lane out, and goes on with what it was lent. */
static void target_ends_the_lane_while_lent(void **state)
{
    (void)state;
    lending_t lending;
    lending_open(&lending);
    const tow_arrival_t *arrival = lend(&lending);
    tow_data_inbounds_drop_all(lending.to->data);
    TEST_UNTIL(lending.world, lending.lane.down_count == 1);
    assert_int_equal(lending.write.done_count, 1);
    assert_true(lending.write.write.is_adrift);
    assert_memory_equal(arrival->lent, lending.same, LENT_BYTES);
    tow_loan_end(lending.to->env, arrival->loan);
    lending_close(&lending);
}

/* As many as a lane may have; the next one is copied. */
static void lent_writes_of_a_lane_are_bounded(void **state)
{
    (void)state;
    lending_t lending;
    enum {
        COUNT = TOW_NET_LANE_LENT_COUNT_MAX
    };
    static test_write_t writes[COUNT + 1];
    static tow_loan_t *loans[COUNT];
    lending_open(&lending);
    for (int i = 0; i <= COUNT; i++) {
        start_as(&lending, &writes[i], lending.block, LENT_BYTES);
        TEST_UNTIL(lending.world, lending.region.arrived_count == i + 1);
        TEST_UNTIL(lending.world,
                   lending.lent_count == i + 1 || writes[i].done_count == 1);
        if (i < COUNT) loans[i] = lending.region.last.loan;
    }
    assert_int_equal(lending.lent_count, COUNT);
    assert_null(lending.region.last.loan);
    for (int i = COUNT; i-- > 0;)
        tow_loan_end(lending.to->env, loans[i]);
    for (int i = 0; i < COUNT; i++)
        TEST_UNTIL(lending.world, writes[i].done_count == 1);
    assert_int_equal(test_data_lane(&lending.lane)->lent_count, 0);
    lending_close(&lending);
}

/* Numbers that lie: no block is there, or another, or the writer has taken the
 * bytes back. */
static void pull_that_lies_about_its_block(void **state)
{
    (void)state;
    lending_t lending;
    lending_open(&lending);
    TEST_UNTIL(lending.world,
               test_data_lane(&lending.lane)->reach != TOW_DATA_REACH_ASKED);
    tow_data_inbound_t *inbound = TOW_CONTAINER_OF(
        lending.to->data->inbounds.next, tow_data_inbound_t, all);
    const uint64_t word = 77;
    const tow_region_key_t key = tow_region_key(lending.region.region);
    tow_block_place_t place;
    assert_true(tow_block_find(lending.block, LENT_BYTES, &place));
    const tow_data_pull_t good = {.stream = inbound->stream,
                                  .write = 77,
                                  .region = key.id,
                                  .secret = key.secret,
                                  .total = LENT_BYTES,
                                  .bytes = (uintptr_t)lending.block,
                                  .word = (uintptr_t)&word,
                                  .block = place.number,
                                  .block_size = place.size,
                                  .block_fd = (uint32_t)place.fd,
                                  .flags = TOW_DATA_LENDS};
    for (int i = 0; i < 4; i++) {
        tow_data_pull_t bad = good;
        if (i == 0) bad.block_fd = 100000; /* Read instead. */
        if (i == 1) bad.block_fd = 0;      /* No block, whatever it is. */
        if (i == 2) bad.block_size += 4096;
        if (i == 3) bad.write = 78; /* Not what stands there. */
        tow_data_inbound_pull(inbound, &bad);
        TEST_UNTIL(lending.world, inbound->pull_count == 0);
        assert_int_equal(lending.region.arrived_count, i < 3 ? i + 1 : 3);
        assert_null(lending.region.last.loan);
        assert_int_equal(lending.to->data->idle_view_count, 0);
    }
    tow_data_inbound_pull(inbound, &good);
    assert_int_equal(lending.to->data->borrowed_count, 1);
    tow_loan_t *loan = lending.region.last.loan;
    assert_non_null(loan);
    tow_data_pull_t other = good; /* Of a block that is mapped already. */
    other.block_size -= 4096;
    other.total = 4096;
    tow_data_inbound_pull(inbound, &other);
    TEST_UNTIL(lending.world, inbound->pull_count == 0);
    assert_int_equal(lending.to->data->borrowed_count, 1);
    tow_loan_end(lending.to->env, loan);
    lending_close(&lending);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(write_of_a_block_is_lent, test_use_shm),
    cmocka_unit_test_setup(what_may_not_be_lent_is_copied, test_use_shm),
    cmocka_unit_test_setup(lane_cut_while_lent_leaves_the_bytes, test_use_shm),
    cmocka_unit_test_setup(lane_cut_before_the_target_says_so_is_adrift_too,
                           test_use_shm),
    cmocka_unit_test_setup(target_ends_the_lane_while_lent, test_use_shm),
    cmocka_unit_test_setup(lent_writes_of_a_lane_are_bounded, test_use_shm),
    cmocka_unit_test_setup(pull_that_lies_about_its_block, test_use_shm),
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
