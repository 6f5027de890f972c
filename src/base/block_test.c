#include "base/block.h"

#include "base/testing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/tuning.h"

#define MIB ((size_t)1 << 20)

static void block_is_zeroes_and_aligned(void **state)
{
    (void)state;
    const tow_block_stats_t before = tow_block_stats();
    char *base = tow_block_alloc(3 * MIB);
    assert_non_null(base);
    assert_int_equal((uintptr_t)base % TOW_BLOCK_HUGE_BYTES, 0);
    for (size_t i = 0; i < 3 * MIB; i += 4096)
        assert_int_equal(base[i], 0);
    assert_int_equal(tow_block_stats().count, before.count + 1);
    assert_int_equal(tow_block_stats().bytes, before.bytes + 4 * MIB);
    tow_block_free(base);
    assert_int_equal(tow_block_stats().count, before.count);
    assert_int_equal(tow_block_stats().bytes, before.bytes);
}

static void small_block_is_not_rounded_to_a_huge_page(void **state)
{
    (void)state;
    const tow_block_stats_t before = tow_block_stats();
    char *base = tow_block_alloc(MIB);
    assert_non_null(base);
    base[MIB - 1] = 1;
    assert_int_equal(tow_block_stats().bytes, before.bytes + MIB);
    tow_block_free(base);
    base = tow_block_alloc(MIB + 1);
    assert_int_equal(tow_block_stats().bytes,
                     before.bytes + MIB + TOW_BLOCK_STEP_BYTES);
    tow_block_free(base);
    assert_int_equal(tow_block_stats().bytes, before.bytes);
}

static void bytes_are_found_in_their_block(void **state)
{
    (void)state;
    char *first = tow_block_alloc(2 * MIB);
    char *second = tow_block_alloc(4 * MIB);
    tow_block_place_t place, other;
    assert_true(tow_block_find(second + 64, 100, &place));
    assert_int_equal(place.offset, 64);
    assert_int_equal(place.size, 4 * MIB);
    assert_true(tow_block_find(first, 2 * MIB, &other));
    assert_int_not_equal(place.number, other.number);
    assert_false(tow_block_find(first + 1, 2 * MIB, &other));
    assert_false(tow_block_find(&place, sizeof(place), &other));
    tow_block_free(first);
    assert_false(tow_block_find(first, 1, &other));
    char *third = tow_block_alloc(2 * MIB);
    assert_true(tow_block_find(third, 1, &other));
    assert_true(other.number > place.number); /* Numbers are never reused. */
    tow_block_free(third);
    tow_block_free(second);
}

/* The contents survive for another process after the owner frees the block. */
static void who_has_it_mapped_keeps_the_bytes(void **state)
{
    (void)state;
    char *base = tow_block_alloc(2 * MIB);
    tow_block_place_t place;
    memset(base, 7, 2 * MIB);
    assert_true(tow_block_find(base, 2 * MIB, &place));
    assert_int_equal(ftruncate(place.fd, 4096), -1); /* Sealed. */
    const char *seen = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, place.fd, 0);
    assert_true(seen != MAP_FAILED);
    tow_block_free(base);
    char *next = tow_block_alloc(2 * MIB);
    memset(next, 9, 2 * MIB);
    for (size_t i = 0; i < 2 * MIB; i++)
        assert_int_equal(seen[i], 7);
    tow_block_free(next);
    munmap((void *)seen, 2 * MIB);
}

static void stranded_is_said_once_and_goes_with_the_block(void **state)
{
    (void)state;
    char *base = tow_block_alloc(2 * MIB);
    assert_false(tow_block_is_quarantined(base));
    tow_block_quarantine(base + 5);
    tow_block_quarantine(base);
    tow_block_quarantine(&base); /* Not in a block. */
    assert_true(tow_block_is_quarantined(base));
    assert_int_equal(tow_block_stats().quarantined_count, 1);
    tow_block_free(base);
    assert_int_equal(tow_block_stats().quarantined_count, 0);
}

static void beyond_the_bound_there_is_none(void **state)
{
    (void)state;
    static void *blocks[TOW_BLOCK_COUNT_MAX];
    size_t count = 0;
    while (count < TOW_BLOCK_COUNT_MAX &&
           (blocks[count] = tow_block_alloc(1)) != NULL)
        count++;
    assert_true(count > 0);
    assert_null(tow_block_alloc(1));
    assert_null(tow_block_alloc(SIZE_MAX));
    assert_null(tow_block_alloc(0));
    for (size_t i = 0; i < count; i++)
        tow_block_free(blocks[i]);
    assert_int_equal(tow_block_stats().count, 0);
}

static void sizes_that_travelled_are_wanted_until_others_did(void **state)
{
    (void)state;
    assert_false(tow_block_is_preferred(4 * MIB));
    tow_block_prefer(4 * MIB - 1);
    assert_true(tow_block_is_preferred(4 * MIB));
    assert_true(tow_block_is_preferred(3 * MIB));
    assert_false(tow_block_is_preferred(4 * MIB + 1));
    tow_block_prefer(100); /* Too small for a block. */
    assert_false(tow_block_is_preferred(100));
    tow_block_prefer(TOW_BLOCK_BYTES_MIN);
    assert_true(tow_block_is_preferred(TOW_BLOCK_BYTES_MIN));
    assert_false(tow_block_is_preferred(TOW_BLOCK_BYTES_MIN - 1));
    assert_false(tow_block_is_preferred(TOW_BLOCK_BYTES_MIN + 1));
    for (size_t i = 0; i < TOW_BLOCK_PREFERRED_COUNT; i++)
        tow_block_prefer((10 + 2 * i) * MIB);
    assert_false(tow_block_is_preferred(4 * MIB));
}

TOW_TEST_MAIN(
    cmocka_unit_test(block_is_zeroes_and_aligned),
    cmocka_unit_test(small_block_is_not_rounded_to_a_huge_page),
    cmocka_unit_test(bytes_are_found_in_their_block),
    cmocka_unit_test(who_has_it_mapped_keeps_the_bytes),
    cmocka_unit_test(stranded_is_said_once_and_goes_with_the_block),
    cmocka_unit_test(beyond_the_bound_there_is_none),
    cmocka_unit_test(sizes_that_travelled_are_wanted_until_others_did))
