#include "worker/block_cache.h"

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
    const tow_net_options_t options = {.name = "block_cache",
                                       .security = &security};
    assert_null(tow_net_create(&options, &net));
    return tow_net_env(net);
}

static void a_released_block_is_reused_for_its_size(void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    tow_block_cache_init(&block_cache, open_env());
    void *first = tow_block_cache_alloc(&block_cache, 4 * MIB);
    assert_int_equal((uintptr_t)first % TOW_WORKER_HUGE_PAGE_BYTES, 0);
    tow_block_cache_free(&block_cache, first, 4 * MIB);
    void *other = tow_block_cache_alloc(&block_cache, 16 * MIB);
    assert_ptr_not_equal(other, first);
    void *again = tow_block_cache_alloc(&block_cache, 4 * MIB - 100);
    assert_ptr_equal(again, first);
    assert_int_equal(block_cache.bytes, 0);
    tow_block_cache_free(&block_cache, other, 16 * MIB);
    tow_block_cache_free(&block_cache, again, 4 * MIB - 100);
    assert_int_equal(block_cache.bytes, 20 * MIB);
    tow_block_cache_deinit(&block_cache);
    tow_net_destroy(net);
}

static void small_blocks_are_not_cached(void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    tow_block_cache_init(&block_cache, open_env());
    void *bytes = tow_block_cache_alloc(&block_cache, 100);
    assert_int_equal((uintptr_t)bytes % TOW_WORKER_UPLOAD_ALIGNMENT, 0);
    tow_block_cache_free(&block_cache, bytes, 100);
    tow_block_cache_free(&block_cache, NULL, 4 * MIB);
    assert_int_equal(block_cache.bytes, 0);
    tow_block_cache_deinit(&block_cache);
    tow_net_destroy(net);
}

static void the_cache_is_bounded_and_evicts_the_oldest(void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    tow_block_cache_init(&block_cache, open_env());
    void *blocks[5];
    const size_t size = TOW_WORKER_BLOCK_CACHE_BYTES_MAX / 4;
    for (size_t i = 0; i < TOW_COUNT_OF(blocks); i++)
        blocks[i] = tow_block_cache_alloc(&block_cache, size);
    for (size_t i = 0; i < TOW_COUNT_OF(blocks); i++)
        tow_block_cache_free(&block_cache, blocks[i], size);
    assert_int_equal(block_cache.bytes, TOW_WORKER_BLOCK_CACHE_BYTES_MAX);
    for (size_t i = TOW_COUNT_OF(blocks); i-- > 1;) {
        void *taken = tow_block_cache_alloc(&block_cache, size);
        assert_ptr_equal(taken, blocks[i]);
        tow_free(taken);
    }
    assert_int_equal(block_cache.bytes, 0);
    void *large = tow_block_cache_alloc(&block_cache,
                                        2 * TOW_WORKER_BLOCK_CACHE_BYTES_MAX);
    tow_block_cache_free(&block_cache, large,
                         2 * TOW_WORKER_BLOCK_CACHE_BYTES_MAX);
    assert_int_equal(block_cache.bytes, 0);
    tow_block_cache_deinit(&block_cache);
    tow_net_destroy(net);
}

static void unused_blocks_expire(void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    tow_block_cache_init(&block_cache, open_env());
    tow_block_cache_free(&block_cache,
                         tow_block_cache_alloc(&block_cache, 4 * MIB), 4 * MIB);
    assert_int_equal(block_cache.bytes, 4 * MIB);
    while (block_cache.bytes > 0)
        tow_net_turn(net, TOW_TIME_NEVER);
    tow_block_cache_deinit(&block_cache);
    tow_net_destroy(net);
}

static bool is_shareable(const void *bytes, size_t size)
{
    tow_block_place_t place;
    return tow_block_find(bytes, size, &place);
}

/* With other processes on the host, which may map blocks. */
static void shared_blocks_can_be_mapped_and_quarantined_ones_are_freed(
    void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    security.has_token = true;
    const tow_net_options_t options = {.name = "block_cache",
                                       .security = &security,
                                       .data_plane = TOW_NET_DATA_UCX};
    assert_null(tow_net_create(&options, &net));
    tow_block_cache_init(&block_cache, tow_net_env(net));
    void *private = tow_block_cache_alloc(&block_cache, 4 * MIB);
    tow_block_cache_free(&block_cache, private, 4 * MIB);
    tow_block_cache_share(&block_cache);
    assert_int_equal(block_cache.bytes, 0); /* Private blocks are freed. */
    void *first = tow_block_cache_alloc(&block_cache, 4 * MIB);
    assert_true(is_shareable(first, 4 * MIB));
    tow_block_cache_free(&block_cache, first, 4 * MIB);
    assert_ptr_equal(tow_block_cache_alloc(&block_cache, 4 * MIB), first);
    tow_block_quarantine(first);
    tow_block_cache_free(&block_cache, first, 4 * MIB);
    assert_int_equal(block_cache.bytes, 0);
    assert_int_equal(tow_block_stats().count, 0);
    tow_block_cache_free(&block_cache,
                         tow_block_cache_alloc(&block_cache, 8 * MIB), 8 * MIB);
    assert_int_equal(tow_block_stats().count, 1);
    tow_block_cache_deinit(&block_cache);
    assert_int_equal(tow_block_stats().count, 0);
    tow_net_destroy(net);
}

static void without_sharing_in_the_env_blocks_are_private(void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    tow_block_cache_init(&block_cache, open_env());
    tow_block_cache_share(&block_cache);
    void *bytes = tow_block_cache_alloc(&block_cache, 4 * MIB);
    assert_false(is_shareable(bytes, 1));
    tow_block_cache_free(&block_cache, bytes, 4 * MIB);
    tow_block_cache_deinit(&block_cache);
    tow_net_destroy(net);
}

static void exhausted_memory_is_an_error(void **state)
{
    (void)state;
    tow_block_cache_t block_cache;
    tow_block_cache_init(&block_cache, open_env());
    assert_null(tow_block_cache_alloc(&block_cache, SIZE_MAX));
    assert_null(tow_block_cache_alloc(&block_cache, SIZE_MAX / 2));
    tow_block_cache_deinit(&block_cache);
    tow_net_destroy(net);
}

TOW_TEST_MAIN(cmocka_unit_test(a_released_block_is_reused_for_its_size),
              cmocka_unit_test(small_blocks_are_not_cached),
              cmocka_unit_test(the_cache_is_bounded_and_evicts_the_oldest),
              cmocka_unit_test(unused_blocks_expire),
              cmocka_unit_test(
                  shared_blocks_can_be_mapped_and_quarantined_ones_are_freed),
              cmocka_unit_test(without_sharing_in_the_env_blocks_are_private),
              cmocka_unit_test(exhausted_memory_is_an_error))
