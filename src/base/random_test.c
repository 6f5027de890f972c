#include "base/testing.h"

#include <stdbool.h>
#include <string.h>

#include "base/random.h"

static void random_is_the_published_xoshiro256starstar(void **state)
{
    static const uint64_t expected[] = {
        11520,
        0,
        1509978240,
        1215971899390074240,
        1216172134540287360,
        607988272756665600,
        16172922978634559625u,
        8476171486693032832,
    };
    tow_random_t random = {.state = {1, 2, 3, 4}};
    for (size_t i = 0; i < TOW_COUNT_OF(expected); i++)
        assert_true(tow_random_next(&random) == expected[i]);
}

static void random_is_seeded_by_the_published_splitmix64(void **state)
{
    tow_random_t random;
    tow_random_init(&random, 0);
    assert_true(random.state[0] == 0xe220a8397b1dcdafu);
    assert_true(random.state[1] == 0x6e789e6aa1b965f4u);
    assert_true(random.state[2] == 0x06c45d188009454fu);
    assert_true(random.state[3] == 0xf88bb8a8724c81ecu);
}

static void below_stays_below_and_reaches_all(void **state)
{
    tow_random_t random;
    tow_random_init(&random, 42);
    for (uint64_t bound = 1; bound < 40; bound++) {
        uint64_t seen = 0;
        for (int i = 0; i < 2000; i++) {
            uint64_t number = tow_random_below(&random, bound);
            assert_true(number < bound);
            seen |= (uint64_t)1 << number;
        }
        assert_true(seen == ((uint64_t)1 << bound) - 1);
    }
}

/* With a bound of 3/4 of 2^64 a plain modulo, or a product without rejection,
 * would favour a third of the answers two to one. */
static void below_has_no_bias_for_large_bounds(void **state)
{
    uint64_t bound = (uint64_t)3 << 62;
    enum {
        DRAW_COUNT = 30000,
        BAND_COUNT = 3
    };
    int count_in_band[BAND_COUNT] = {0};
    tow_random_t random;
    tow_random_init(&random, 7);
    for (int i = 0; i < DRAW_COUNT; i++)
        count_in_band[tow_random_below(&random, bound) / (bound / 3)]++;
    for (int band = 0; band < BAND_COUNT; band++)
        assert_in_range(count_in_band[band], 9500, 10500);

    int odd_count = 0;
    for (int i = 0; i < DRAW_COUNT; i++)
        odd_count += tow_random_below(&random, bound) % 3 == 0;
    assert_in_range(odd_count, 9500, 10500);
}

static void chance_is_exact_at_its_ends_and_near_between(void **state)
{
    tow_random_t random;
    tow_random_init(&random, 9);
    int hit_count = 0;
    for (int i = 0; i < 20000; i++) {
        assert_false(tow_random_chance_ppm(&random, 0));
        assert_true(tow_random_chance_ppm(&random, 1000000));
        hit_count += tow_random_chance_ppm(&random, 250000);
    }
    assert_in_range(hit_count, 4700, 5300);
}

static void chance_draws_whatever_the_odds(void **state)
{
    tow_random_t never, always;
    tow_random_init(&never, 5);
    tow_random_init(&always, 5);
    tow_random_chance_ppm(&never, 0);
    tow_random_chance_ppm(&always, 1000000);
    assert_true(tow_random_next(&never) == tow_random_next(&always));
}

static void fork_does_not_depend_on_its_parents_later_draws(void **state)
{
    tow_random_t a, b;
    tow_random_init(&a, 11);
    tow_random_init(&b, 11);
    tow_random_t fork_a = tow_random_fork(&a);
    tow_random_t fork_b = tow_random_fork(&b);
    tow_random_next(&b);
    assert_memory_equal(&fork_a, &fork_b, sizeof(fork_a));
    assert_true(tow_random_next(&fork_a) != tow_random_next(&a));
    tow_random_t second = tow_random_fork(&a);
    assert_memory_not_equal(&second, &fork_b, sizeof(second));
}

TOW_TEST_MAIN(cmocka_unit_test(random_is_the_published_xoshiro256starstar),
              cmocka_unit_test(random_is_seeded_by_the_published_splitmix64),
              cmocka_unit_test(below_stays_below_and_reaches_all),
              cmocka_unit_test(below_has_no_bias_for_large_bounds),
              cmocka_unit_test(chance_is_exact_at_its_ends_and_near_between),
              cmocka_unit_test(chance_draws_whatever_the_odds),
              cmocka_unit_test(fork_does_not_depend_on_its_parents_later_draws))
