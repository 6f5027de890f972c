/* Zero-copy writes: which writes are shared, and what happens when either side
 * fails meanwhile. */
#include "env/net/data/data_testing_impl.h"

#include <unistd.h>

#include "base/block.h"

#define SHARED_BYTES (5 * TEST_MIB + 64)

typedef struct sharing {
    test_fixture_t *fixture;
    test_node_t *from;
    test_node_t *to;
    test_lane_t lane;
    test_region_t region;
    uint8_t *block; /* of blocks; NULL: given */
    uint8_t *same;  /* owned: a copy of its content */
    int shared_count;
    test_write_t write;
} sharing_t;

static sharing_t *current; /* for the callbacks */

static void count_shared(tow_write_t *write)
{
    assert_true(write->size > 0);
    current->shared_count++;
}

static void open_region(sharing_t *sharing, size_t size, bool may_share)
{
    test_region_t *region = &sharing->region;
    *region = (test_region_t){.bytes = calloc(1, size), .size = size};
    const tow_region_options_t options = {.bytes = region->bytes,
                                          .size = size,
                                          .may_share = may_share,
                                          .arrived = test_region_arrived,
                                          .context = region};
    assert_null(
        tow_env_region_open(sharing->to->env, &options, &region->region));
}

static void region_closed(void *context)
{
    ((test_region_t *)context)->closed_count++;
}

static void close_region(sharing_t *sharing)
{
    test_region_t *region = &sharing->region;
    tow_region_close(region->region,
                     (tow_closed_t){.run = region_closed, .context = region});
    TEST_UNTIL(sharing->fixture, region->closed_count == 1);
    free(region->bytes);
    region->bytes = NULL;
}

static void sharing_open(sharing_t *sharing)
{
    const tow_data_cross_read_t self = {.pid = getpid(), .pidfd = -1};
    uint64_t here = 5, there = 0;
    if (tow_data_cross_read_bytes(&self, &there, (uintptr_t)&here,
                                  sizeof(here)) != 0)
        tow_test_skip("the kernel refuses process_vm_readv");
    *sharing = (sharing_t){.fixture = test_fixture_create(2)};
    current = sharing;
    sharing->from = &sharing->fixture->nodes[0];
    sharing->to = &sharing->fixture->nodes[1];
    sharing->block = tow_block_alloc(SHARED_BYTES);
    assert_non_null(sharing->block);
    sharing->same = test_pattern(SHARED_BYTES);
    memcpy(sharing->block, sharing->same, SHARED_BYTES);
    open_region(sharing, SHARED_BYTES, true);
    test_lane_open(&sharing->lane, sharing->from, sharing->to);
}

static void sharing_close(sharing_t *sharing)
{
    test_fixture_destroy(sharing->fixture);
    if (sharing->block != NULL) tow_block_free(sharing->block);
    free(sharing->region.bytes);
    free(sharing->same);
}

static void start_as(sharing_t *sharing, test_write_t *test, const void *bytes,
                     size_t size)
{
    *test =
        (test_write_t){.write = {.bytes = bytes,
                                 .size = size,
                                 .key = tow_region_key(sharing->region.region),
                                 .shared = count_shared,
                                 .done = test_write_done}};
    assert_int_equal(tow_lane_write(sharing->lane.lane, &test->write),
                     TOW_SEND_OK);
}

static void start(sharing_t *sharing, const void *bytes, size_t size)
{
    start_as(sharing, &sharing->write, bytes, size);
}

static const tow_arrival_t *write_shared(sharing_t *sharing)
{
    const int before = sharing->shared_count;
    start(sharing, sharing->block, SHARED_BYTES);
    TEST_UNTIL(sharing->fixture, sharing->shared_count == before + 1);
    const tow_arrival_t *arrival = &sharing->region.last;
    assert_non_null(arrival->share);
    assert_ptr_not_equal(arrival->shared, sharing->block);
    assert_memory_equal(arrival->shared, sharing->same, SHARED_BYTES);
    return arrival;
}

/* Nothing is copied; the writer is notified when the target shares the bytes
 * and when it releases them. */
static void write_of_a_block_is_shared(void **state)
{
    (void)state;
    sharing_t sharing;
    sharing_open(&sharing);
    const void *seen = NULL;
    for (int i = 0; i < 3; i++) {
        const tow_arrival_t *arrival = write_shared(&sharing);
        if (seen != NULL) assert_ptr_equal(arrival->shared, seen); /* Mapped. */
        seen = arrival->shared;
        assert_int_equal(arrival->size, SHARED_BYTES);
        test_settle(sharing.fixture);
        assert_int_equal(sharing.write.done_count, 0);
        assert_int_equal(sharing.region.bytes[1], 0);
        assert_int_equal(sharing.to->data->share_count, 1);
        tow_share_release(sharing.to->env, arrival->share);
        TEST_UNTIL(sharing.fixture, sharing.write.done_count == 1);
        assert_int_equal(sharing.write.code, TOW_CODE_OK);
        assert_false(sharing.write.write.is_stranded);
    }
    assert_int_equal(sharing.to->data->shared_arrival_count, 3);
    assert_int_equal(sharing.to->data->pulled_count, 0);
    assert_int_equal(test_data_lane(&sharing.lane)->shared_count, 0);
    sharing_close(&sharing);
}

/* Each is copied, and arrives nevertheless. */
static void writes_that_may_not_be_shared_are_copied(void **state)
{
    (void)state;
    sharing_t sharing;
    sharing_open(&sharing);
    for (int i = 0; i < 4; i++) {
        size_t size = SHARED_BYTES;
        const uint8_t *bytes = sharing.block;
        if (i == 0) size -= 8;            /* Not the whole region. */
        if (i == 1) bytes = sharing.same; /* Not in a block. */
        if (i == 2) {                     /* The target wants a copy. */
            close_region(&sharing);
            open_region(&sharing, SHARED_BYTES, false);
        }
        if (i == 3) { /* The writer does. */
            close_region(&sharing);
            open_region(&sharing, SHARED_BYTES, true);
        }
        start(&sharing, bytes, size);
        if (i == 3) sharing.write.write.shared = NULL;
        TEST_UNTIL(sharing.fixture, sharing.write.done_count == 1);
        assert_int_equal(sharing.write.code, TOW_CODE_OK);
        assert_null(sharing.region.last.share);
        assert_memory_equal(sharing.region.bytes, sharing.same, size);
        memset(sharing.region.bytes, 0, SHARED_BYTES);
    }
    assert_int_equal(sharing.shared_count, 0);
    assert_int_equal(sharing.to->data->pulled_count, 4);
    assert_true(
        tow_block_is_preferred(SHARED_BYTES)); /* The next one may be. */
    sharing_close(&sharing);
}

/* The lane is cut. The writer must not touch the bytes, but may free them: the
 * target keeps the pages. */
static void lane_cut_while_shared_leaves_the_bytes(void **state)
{
    (void)state;
    sharing_t sharing;
    sharing_open(&sharing);
    const tow_arrival_t *arrival = write_shared(&sharing);
    test_lane_close(sharing.fixture, &sharing.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(sharing.write.done_count, 1);
    assert_int_equal(sharing.write.code, TOW_UNAVAILABLE);
    assert_true(sharing.write.write.is_stranded);
    tow_block_free(sharing.block);
    sharing.block = NULL;
    TEST_UNTIL(sharing.fixture, sharing.to->data->inbound_count == 0);
    assert_memory_equal(arrival->shared, sharing.same, SHARED_BYTES);
    tow_share_release(sharing.to->env, arrival->share);
    assert_int_equal(sharing.to->data->share_count, 0);
    sharing_close(&sharing);
}

/* Before the writer was notified of the share, and even before there is one. */
static void lane_cut_before_the_share_is_reported_strands_the_bytes(
    void **state)
{
    (void)state;
    sharing_t sharing;
    sharing_open(&sharing);
    TEST_UNTIL(sharing.fixture, test_data_lane(&sharing.lane)->cross_read !=
                                    TOW_DATA_CROSS_READ_REQUESTED);
    sharing.to->is_stalled = true;
    start(&sharing, sharing.block, SHARED_BYTES);
    test_settle(sharing.fixture);
    test_lane_close(sharing.fixture, &sharing.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(sharing.shared_count, 0);
    assert_true(sharing.write.write.is_stranded);
    sharing.to->is_stalled = false;
    TEST_UNTIL(sharing.fixture, sharing.to->data->inbound_count == 0);
    assert_int_equal(sharing.region.arrived_count,
                     0); /* Its guard is cleared. */
    sharing_close(&sharing);
}

/* The target disconnects the lane, and keeps its share. */
static void target_closes_the_lane_while_sharing(void **state)
{
    (void)state;
    sharing_t sharing;
    sharing_open(&sharing);
    const tow_arrival_t *arrival = write_shared(&sharing);
    tow_data_inbounds_disconnect_all(sharing.to->data);
    TEST_UNTIL(sharing.fixture, sharing.lane.down_count == 1);
    assert_int_equal(sharing.write.done_count, 1);
    assert_true(sharing.write.write.is_stranded);
    assert_memory_equal(arrival->shared, sharing.same, SHARED_BYTES);
    tow_share_release(sharing.to->env, arrival->share);
    sharing_close(&sharing);
}

/* As many as a lane may have; the next one is copied. */
static void shared_writes_of_a_lane_are_bounded(void **state)
{
    (void)state;
    sharing_t sharing;
    enum {
        COUNT = TOW_NET_LANE_SHARE_COUNT_MAX
    };
    static test_write_t writes[COUNT + 1];
    static tow_share_t *shares[COUNT];
    sharing_open(&sharing);
    for (int i = 0; i <= COUNT; i++) {
        start_as(&sharing, &writes[i], sharing.block, SHARED_BYTES);
        TEST_UNTIL(sharing.fixture, sharing.region.arrived_count == i + 1);
        TEST_UNTIL(sharing.fixture,
                   sharing.shared_count == i + 1 || writes[i].done_count == 1);
        if (i < COUNT) shares[i] = sharing.region.last.share;
    }
    assert_int_equal(sharing.shared_count, COUNT);
    assert_null(sharing.region.last.share);
    for (int i = COUNT; i-- > 0;)
        tow_share_release(sharing.to->env, shares[i]);
    for (int i = 0; i < COUNT; i++)
        TEST_UNTIL(sharing.fixture, writes[i].done_count == 1);
    assert_int_equal(test_data_lane(&sharing.lane)->shared_count, 0);
    sharing_close(&sharing);
}

/* False claims: there is no block, or another one, or the writer has withdrawn
 * the bytes. */
static void pull_with_false_block_claims_is_rejected(void **state)
{
    (void)state;
    sharing_t sharing;
    sharing_open(&sharing);
    TEST_UNTIL(sharing.fixture, test_data_lane(&sharing.lane)->cross_read !=
                                    TOW_DATA_CROSS_READ_REQUESTED);
    tow_data_inbound_t *inbound = TOW_CONTAINER_OF(
        sharing.to->data->inbounds.next, tow_data_inbound_t, all);
    const uint64_t guard = 77;
    const tow_region_key_t key = tow_region_key(sharing.region.region);
    tow_block_place_t place;
    assert_true(tow_block_find(sharing.block, SHARED_BYTES, &place));
    const tow_data_pull_t good = {.stream = inbound->stream,
                                  .write = 77,
                                  .region = key.id,
                                  .secret = key.secret,
                                  .total = SHARED_BYTES,
                                  .bytes = (uintptr_t)sharing.block,
                                  .guard_address = (uintptr_t)&guard,
                                  .block = place.number,
                                  .block_size = place.size,
                                  .block_fd = (uint32_t)place.fd,
                                  .flags = TOW_DATA_MAY_SHARE};
    for (int i = 0; i < 4; i++) {
        tow_data_pull_t bad = good;
        if (i == 0) bad.block_fd = 100000; /* Read instead. */
        if (i == 1) bad.block_fd = 0;      /* Not a block, whatever it is. */
        if (i == 2) bad.block_size += 4096;
        if (i == 3) bad.write = 78; /* Not the value of the guard. */
        tow_data_inbound_pull(inbound, &bad);
        TEST_UNTIL(sharing.fixture, inbound->pull_count == 0);
        assert_int_equal(sharing.region.arrived_count, i < 3 ? i + 1 : 3);
        assert_null(sharing.region.last.share);
        assert_int_equal(sharing.to->data->idle_view_count, 0);
    }
    tow_data_inbound_pull(inbound, &good);
    assert_int_equal(sharing.to->data->shared_arrival_count, 1);
    tow_share_t *share = sharing.region.last.share;
    assert_non_null(share);
    tow_data_pull_t other = good; /* Of a block that is mapped already. */
    other.block_size -= 4096;
    other.total = 4096;
    tow_data_inbound_pull(inbound, &other);
    TEST_UNTIL(sharing.fixture, inbound->pull_count == 0);
    assert_int_equal(sharing.to->data->shared_arrival_count, 1);
    tow_share_release(sharing.to->env, share);
    sharing_close(&sharing);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(write_of_a_block_is_shared, test_use_shm),
    cmocka_unit_test_setup(writes_that_may_not_be_shared_are_copied,
                           test_use_shm),
    cmocka_unit_test_setup(lane_cut_while_shared_leaves_the_bytes,
                           test_use_shm),
    cmocka_unit_test_setup(
        lane_cut_before_the_share_is_reported_strands_the_bytes, test_use_shm),
    cmocka_unit_test_setup(target_closes_the_lane_while_sharing, test_use_shm),
    cmocka_unit_test_setup(shared_writes_of_a_lane_are_bounded, test_use_shm),
    cmocka_unit_test_setup(pull_with_false_block_claims_is_rejected,
                           test_use_shm),
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
