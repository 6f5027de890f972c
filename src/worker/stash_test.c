#include "worker/stash.h"

#include "base/alloc.h"
#include "base/block.h"
#include "base/testing.h"
#include "env/net/net.h"
#include "worker/tuning.h"

#define MIB ((size_t)1 << 20)

static tow_security_t security;
static tow_net_t *net;

static tow_env_t *open_env(void)
{
    security.has_token = true;
    const tow_net_options_t options = {.name = "stash", .security = &security};
    assert_null(tow_net_create(&options, &net));
    return tow_net_env(net);
}

static void block_comes_back_for_the_next_of_its_size(void **state)
{
    (void)state;
    tow_stash_t stash;
    tow_stash_init(&stash, open_env());
    void *first = tow_stash_take(&stash, 4 * MIB);
    assert_int_equal((uintptr_t)first % TOW_WORKER_HUGE_PAGE_BYTES, 0);
    tow_stash_give(&stash, first, 4 * MIB);
    void *other = tow_stash_take(&stash, 16 * MIB);
    assert_ptr_not_equal(other, first);
    void *again = tow_stash_take(&stash, 4 * MIB - 100);
    assert_ptr_equal(again, first);
    assert_int_equal(stash.bytes, 0);
    tow_stash_give(&stash, other, 16 * MIB);
    tow_stash_give(&stash, again, 4 * MIB - 100);
    assert_int_equal(stash.bytes, 20 * MIB);
    tow_stash_deinit(&stash);
    tow_net_destroy(net);
}

static void small_blocks_are_not_kept(void **state)
{
    (void)state;
    tow_stash_t stash;
    tow_stash_init(&stash, open_env());
    void *bytes = tow_stash_take(&stash, 100);
    assert_int_equal((uintptr_t)bytes % TOW_WORKER_UPLOAD_ALIGNMENT, 0);
    tow_stash_give(&stash, bytes, 100);
    tow_stash_give(&stash, NULL, 4 * MIB);
    assert_int_equal(stash.bytes, 0);
    tow_stash_deinit(&stash);
    tow_net_destroy(net);
}

static void what_is_kept_is_bounded_and_the_oldest_goes(void **state)
{
    (void)state;
    tow_stash_t stash;
    tow_stash_init(&stash, open_env());
    void *blocks[5];
    const size_t size = TOW_WORKER_STASH_BYTES_MAX / 4;
    for (size_t i = 0; i < TOW_COUNT_OF(blocks); i++)
        blocks[i] = tow_stash_take(&stash, size);
    for (size_t i = 0; i < TOW_COUNT_OF(blocks); i++)
        tow_stash_give(&stash, blocks[i], size);
    assert_int_equal(stash.bytes, TOW_WORKER_STASH_BYTES_MAX);
    for (size_t i = TOW_COUNT_OF(blocks); i-- > 1;) {
        void *taken = tow_stash_take(&stash, size);
        assert_ptr_equal(taken, blocks[i]);
        tow_free(taken);
    }
    assert_int_equal(stash.bytes, 0);
    void *large = tow_stash_take(&stash, 2 * TOW_WORKER_STASH_BYTES_MAX);
    tow_stash_give(&stash, large, 2 * TOW_WORKER_STASH_BYTES_MAX);
    assert_int_equal(stash.bytes, 0);
    tow_stash_deinit(&stash);
    tow_net_destroy(net);
}

static void what_is_kept_goes_when_nobody_needs_it(void **state)
{
    (void)state;
    tow_stash_t stash;
    tow_stash_init(&stash, open_env());
    tow_stash_give(&stash, tow_stash_take(&stash, 4 * MIB), 4 * MIB);
    assert_int_equal(stash.bytes, 4 * MIB);
    while (stash.bytes > 0)
        tow_net_turn(net, TOW_TIME_NEVER);
    tow_stash_deinit(&stash);
    tow_net_destroy(net);
}

static bool is_shown(const void *bytes, size_t size)
{
    tow_block_place_t place;
    return tow_block_find(bytes, size, &place);
}

/* With others on the host, who may look at what is out. */
static void shared_blocks_can_be_shown_and_stranded_ones_go(void **state)
{
    (void)state;
    tow_stash_t stash;
    security.has_token = true;
    const tow_net_options_t options = {
        .name = "stash", .security = &security, .data_plane = TOW_NET_DATA_UCX};
    assert_null(tow_net_create(&options, &net));
    tow_stash_init(&stash, tow_net_env(net));
    void *private = tow_stash_take(&stash, 4 * MIB);
    tow_stash_give(&stash, private, 4 * MIB);
    tow_stash_share(&stash);
    assert_int_equal(stash.bytes, 0); /* Those before could not be. */
    void *first = tow_stash_take(&stash, 4 * MIB);
    assert_true(is_shown(first, 4 * MIB));
    tow_stash_give(&stash, first, 4 * MIB);
    assert_ptr_equal(tow_stash_take(&stash, 4 * MIB), first);
    tow_block_strand(first);
    tow_stash_give(&stash, first, 4 * MIB);
    assert_int_equal(stash.bytes, 0);
    assert_int_equal(tow_block_stats().count, 0);
    tow_stash_give(&stash, tow_stash_take(&stash, 8 * MIB), 8 * MIB);
    assert_int_equal(tow_block_stats().count, 1);
    tow_stash_deinit(&stash);
    assert_int_equal(tow_block_stats().count, 0);
    tow_net_destroy(net);
}

static void an_env_that_lends_nothing_shares_nothing(void **state)
{
    (void)state;
    tow_stash_t stash;
    tow_stash_init(&stash, open_env());
    tow_stash_share(&stash);
    void *bytes = tow_stash_take(&stash, 4 * MIB);
    assert_false(is_shown(bytes, 1));
    tow_stash_give(&stash, bytes, 4 * MIB);
    tow_stash_deinit(&stash);
    tow_net_destroy(net);
}

static void exhausted_memory_is_told(void **state)
{
    (void)state;
    tow_stash_t stash;
    tow_stash_init(&stash, open_env());
    assert_null(tow_stash_take(&stash, SIZE_MAX));
    assert_null(tow_stash_take(&stash, SIZE_MAX / 2));
    tow_stash_deinit(&stash);
    tow_net_destroy(net);
}

TOW_TEST_MAIN(cmocka_unit_test(block_comes_back_for_the_next_of_its_size),
              cmocka_unit_test(small_blocks_are_not_kept),
              cmocka_unit_test(what_is_kept_is_bounded_and_the_oldest_goes),
              cmocka_unit_test(what_is_kept_goes_when_nobody_needs_it),
              cmocka_unit_test(shared_blocks_can_be_shown_and_stranded_ones_go),
              cmocka_unit_test(an_env_that_lends_nothing_shares_nothing),
              cmocka_unit_test(exhausted_memory_is_told))
