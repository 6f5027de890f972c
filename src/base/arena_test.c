#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/random.h"
#include "base/tuning.h"

static void arena_memory_is_aligned_for_any_type(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    for (size_t bytes = 0; bytes < 100; bytes++) {
        void *memory = tow_arena_alloc(&arena, bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % _Alignof(max_align_t), 0);
    }
    tow_arena_deinit(&arena);
}

/* Every allocation is filled with a byte of its own; none may change another.
 */
static void arena_allocations_do_not_overlap(void **state)
{
    enum {
        COUNT = 2000
    };
    static unsigned char *memory[COUNT];
    static size_t bytes[COUNT];
    tow_random_t random;
    tow_random_init(&random, 1);
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            bool is_large = tow_random_below(&random, 50) == 0;
            bytes[i] = tow_random_below(&random, is_large ? 20000 : 200);
            memory[i] = tow_arena_alloc(&arena, bytes[i]);
            assert_non_null(memory[i]);
            memset(memory[i], i & 0xff, bytes[i]);
        }
        for (int i = 0; i < COUNT; i++) {
            for (size_t k = 0; k < bytes[i]; k++)
                assert_int_equal(memory[i][k], i & 0xff);
        }
        tow_arena_reset(&arena);
    }
    tow_arena_deinit(&arena);
}

static void arena_stops_at_its_limit(void **state)
{
    int64_t live_before = tow_alloc_live_count();
    tow_arena_t arena;
    tow_arena_init(&arena, 1000);
    assert_null(tow_arena_alloc(&arena, 1001));
    assert_non_null(tow_arena_alloc(&arena, 500));
    assert_null(tow_arena_alloc(&arena, 500)); /* 512 are used. */
    assert_non_null(tow_arena_alloc(&arena, 480));
    assert_null(tow_arena_alloc(&arena, 1));
    assert_int_equal(arena.bytes_used, 992);
    tow_arena_reset(&arena);
    assert_non_null(tow_arena_alloc(&arena, 900));
    tow_arena_deinit(&arena);
    assert_int_equal(tow_alloc_live_count(), live_before);
}

static void arena_reset_keeps_only_the_largest_block(void **state)
{
    int64_t live_before = tow_alloc_live_count();
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    for (int i = 0; i < 100; i++)
        assert_non_null(tow_arena_alloc(&arena, 1000));
    assert_non_null(tow_arena_alloc(&arena, TOW_ARENA_BLOCK_BYTES_MAX * 2));
    tow_arena_reset(&arena);
    assert_int_equal(tow_alloc_live_count(), live_before + 1);
    tow_alloc_fail_after(0); /* The retained block must suffice. */
    assert_non_null(tow_arena_alloc(&arena, TOW_ARENA_BLOCK_BYTES_MAX * 2));
    tow_alloc_fail_after(UINT64_MAX);
    tow_arena_deinit(&arena);
    assert_int_equal(tow_alloc_live_count(), live_before);
}

static void arena_large_request_keeps_the_current_block(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    char *before = tow_arena_alloc(&arena, 16);
    assert_non_null(tow_arena_alloc(&arena, TOW_ARENA_BLOCK_BYTES_MAX * 4));
    char *after = tow_arena_alloc(&arena, 16);
    assert_ptr_equal(after, before + 16);
    tow_arena_deinit(&arena);
}

static void arena_calloc_zeroes_and_refuses_overflow(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    memset(tow_arena_alloc(&arena, 256), 0xff, 256);
    tow_arena_reset(&arena);
    const char *zeroes = tow_arena_calloc(&arena, 16, 16);
    for (int i = 0; i < 256; i++)
        assert_int_equal(zeroes[i], 0);
    assert_null(tow_arena_calloc(&arena, SIZE_MAX / 2, 4));
    assert_null(tow_arena_alloc(&arena, SIZE_MAX - 3));
    assert_null(tow_arena_alloc(&arena, SIZE_MAX / 2));
    tow_arena_deinit(&arena);
}

static void arena_strndup_stops_at_length_or_end(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    assert_string_equal(tow_arena_strndup(&arena, "towpath", 3), "tow");
    assert_string_equal(tow_arena_strndup(&arena, "tow", 100), "tow");
    assert_string_equal(tow_arena_strndup(&arena, "tow", 0), "");
    tow_arena_deinit(&arena);
}

static tow_exhaust_result_t fill_arena(void *context)
{
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    tow_exhaust_result_t result = TOW_EXHAUST_SUCCEEDED;
    for (int i = 0; i < 100; i++) {
        if (tow_arena_alloc(&arena, 777) == NULL) result = TOW_EXHAUST_FAILED;
    }
    tow_arena_deinit(&arena);
    return result;
}

static void arena_survives_exhausted_memory(void **state)
{
    assert_true(tow_test_exhaust(fill_arena, NULL) > 2);
}

TOW_TEST_MAIN(cmocka_unit_test(arena_memory_is_aligned_for_any_type),
              cmocka_unit_test(arena_allocations_do_not_overlap),
              cmocka_unit_test(arena_stops_at_its_limit),
              cmocka_unit_test(arena_reset_keeps_only_the_largest_block),
              cmocka_unit_test(arena_large_request_keeps_the_current_block),
              cmocka_unit_test(arena_calloc_zeroes_and_refuses_overflow),
              cmocka_unit_test(arena_strndup_stops_at_length_or_end),
              cmocka_unit_test(arena_survives_exhausted_memory))
