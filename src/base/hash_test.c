#include "base/testing.h"

#include <string.h>
#include <sys/mman.h>

#include "base/hash.h"
#include "base/random.h"
#include "base/tuning.h"

/* The definition, one bit at a time. */
static uint32_t reference_crc32c(uint32_t crc, const uint8_t *bytes,
                                 size_t count)
{
    uint32_t register_ = ~crc;
    for (size_t i = 0; i < count; i++) {
        register_ ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            register_ = register_ >> 1 ^ (register_ & 1 ? 0x82f63b78u : 0);
    }
    return ~register_;
}

static void crc32c_has_the_standard_check_values(void **state)
{
    uint8_t bytes[32];
    assert_int_equal(tow_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(tow_crc32c(0, "", 0), 0);
    /* RFC 3720, B.4. */
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(tow_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(tow_crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(tow_crc32c(0, bytes, 32), 0x46dd794e);
}

static void fill(uint8_t *bytes, size_t count, uint64_t seed)
{
    tow_random_t random;
    tow_random_init(&random, seed);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)tow_random_next(&random);
}

static void crc32c_equals_the_reference_at_every_length(void **state)
{
    static uint8_t bytes[2100];
    fill(bytes, sizeof(bytes), 1);
    for (size_t offset = 0; offset < 9; offset++) {
        for (size_t count = 0; count <= 600; count++)
            assert_int_equal(tow_crc32c(0, bytes + offset, count),
                             reference_crc32c(0, bytes + offset, count));
    }
    for (size_t count = 600; count <= 2048; count += 31)
        assert_int_equal(tow_crc32c(7, bytes, count),
                         reference_crc32c(7, bytes, count));
}

static void crc32c_continues_across_any_split(void **state)
{
    static uint8_t bytes[2 * TOW_CRC32C_SMALL_BYTES_MAX + 100];
    fill(bytes, sizeof(bytes), 2);
    uint32_t whole = tow_crc32c(0, bytes, sizeof(bytes));
    for (size_t split = 0; split <= sizeof(bytes); split++) {
        uint32_t crc = tow_crc32c(0, bytes, split);
        crc = tow_crc32c(crc, bytes + split, sizeof(bytes) - split);
        assert_int_equal(crc, whole);
    }
}

/* More than an int can count. The memory is never written, so all of its pages
 * are the one page of zeroes. */
static void crc32c_counts_past_two_gibibytes(void **state)
{
    size_t piece = (size_t)16 << 20;
    size_t count = ((size_t)2 << 30) + piece + 5;
    const uint8_t *zeroes =
        mmap(NULL, count, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeroes == MAP_FAILED) tow_test_skip("no room for 2 GiB of addresses");
    uint32_t expected = 0;
    for (size_t done = 0; done < count;) {
        size_t now = count - done < piece ? count - done : piece;
        expected = tow_crc32c(expected, zeroes, now); /* Zeroes are alike. */
        done += now;
    }
    assert_int_equal(tow_crc32c(0, zeroes, count), expected);
    munmap((void *)zeroes, count);
}

static void hash_bytes_is_the_published_xxh3(void **state)
{
    assert_true(tow_hash_bytes("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(tow_hash_bytes("towpath", 7, 0) !=
                tow_hash_bytes("towpath", 7, 1));
}

static void mix64_maps_neighbours_far_apart_in_low_bits(void **state)
{
    /* 4096 keys that differ only above bit 32 spread over 4096 buckets about
     * as chance would: 63% of them are hit. */
    static uint8_t hit[4096];
    int hit_count = 0;
    for (uint64_t i = 0; i < 4096; i++) {
        uint64_t bucket = tow_mix64(i << 32) & 4095;
        if (!hit[bucket]) hit_count++;
        hit[bucket] = 1;
    }
    assert_in_range(hit_count, 2400, 2800);
}

TOW_TEST_MAIN(cmocka_unit_test(crc32c_has_the_standard_check_values),
              cmocka_unit_test(crc32c_equals_the_reference_at_every_length),
              cmocka_unit_test(crc32c_continues_across_any_split),
              cmocka_unit_test(crc32c_counts_past_two_gibibytes),
              cmocka_unit_test(hash_bytes_is_the_published_xxh3),
              cmocka_unit_test(mix64_maps_neighbours_far_apart_in_low_bits))
