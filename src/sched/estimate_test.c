#include "sched/estimate.h"

#include "base/testing.h"

#define HOUR_NS (UINT64_C(3600) * 1000000000)

static tow_estimate_t estimate_of(uint64_t first_ns)
{
    tow_estimate_t estimate = {0};
    tow_estimate_add(&estimate, first_ns);
    assert_int_equal(tow_estimate_ns(&estimate), first_ns);
    return estimate;
}

static void estimate_is_unknown_before_the_first_measurement(void **state)
{
    const tow_estimate_t estimate = {0};
    assert_int_equal(tow_estimate_ns(&estimate), -1);
}

static void estimate_moves_down_faster_than_up(void **state)
{
    tow_estimate_t estimate = estimate_of(8000);
    tow_estimate_add(&estimate, 4000);
    assert_int_equal(tow_estimate_ns(&estimate), 7500);
    tow_estimate_add(&estimate, 7500);
    assert_int_equal(tow_estimate_ns(&estimate), 7500);
    estimate = estimate_of(8000);
    tow_estimate_add(&estimate, 12000);
    assert_int_equal(tow_estimate_ns(&estimate), 8125);
}

static void estimate_counts_a_long_one_as_twice(void **state)
{
    tow_estimate_t estimate = estimate_of(3200);
    tow_estimate_add(&estimate, 6400);
    assert_int_equal(tow_estimate_ns(&estimate), 3300);
    estimate = estimate_of(3200);
    tow_estimate_add(&estimate, 1000000);
    assert_int_equal(tow_estimate_ns(&estimate), 3300);
}

static void estimate_moves_by_half_when_five_in_succession_are_far(void **state)
{
    tow_estimate_t estimate = estimate_of(3200);
    for (int i = 0; i < 4; i++)
        tow_estimate_add(&estimate, 1000000);
    const int64_t before_ns = tow_estimate_ns(&estimate);
    assert_in_range(before_ns, 3201, 3700);
    tow_estimate_add(&estimate, 1000000);
    assert_int_equal(tow_estimate_ns(&estimate),
                     before_ns + (1000000 - before_ns) / 2);
}

static void estimate_moves_by_half_after_a_far_shorter_one(void **state)
{
    tow_estimate_t estimate = estimate_of(101000);
    tow_estimate_add(&estimate, 1000);
    assert_int_equal(tow_estimate_ns(&estimate), 51000);
}

/* Half of them are ten times as long, up to four in succession. */
static void estimate_follows_the_shorter_ones(void **state)
{
    tow_estimate_t estimate = estimate_of(1000);
    for (int i = 0; i < 800; i++) {
        tow_estimate_add(&estimate, i % 8 < 4 ? 10000 : 1000);
        assert_in_range(tow_estimate_ns(&estimate), 1000, 1500);
    }
}

static void estimate_follows_a_change(void **state)
{
    tow_estimate_t estimate = estimate_of(1000000);
    for (int i = 0; i < 40; i++)
        tow_estimate_add(&estimate, 1000);
    assert_in_range(tow_estimate_ns(&estimate), 1000, 1100);
    for (int i = 0; i < 20; i++)
        tow_estimate_add(&estimate, 1000000);
    assert_in_range(tow_estimate_ns(&estimate), 500000, 1000000);
    for (int i = 0; i < 200; i++)
        tow_estimate_add(&estimate, 1000000);
    assert_in_range(tow_estimate_ns(&estimate), 990000, 1000000);
}

static void estimate_ignores_absurd_measurements(void **state)
{
    tow_estimate_t estimate = {0};
    tow_estimate_add(&estimate, 0);
    tow_estimate_add(&estimate, HOUR_NS + 1);
    tow_estimate_add(&estimate, UINT64_MAX);
    assert_int_equal(tow_estimate_ns(&estimate), -1);
    assert_int_equal(estimate.ignored_count, 3);
    tow_estimate_add(&estimate, HOUR_NS);
    assert_int_equal(tow_estimate_ns(&estimate), HOUR_NS);
    tow_estimate_add(&estimate, 0);
    assert_int_equal(tow_estimate_ns(&estimate), HOUR_NS);
    assert_int_equal(estimate.count, 1);
}

static void estimate_never_becomes_zero(void **state)
{
    tow_estimate_t estimate = estimate_of(1);
    tow_estimate_add(&estimate, 1000000);
    for (int i = 0; i < 1000; i++)
        tow_estimate_add(&estimate, 1);
    assert_true(tow_estimate_ns(&estimate) > 0);
}

TOW_TEST_MAIN(
    cmocka_unit_test(estimate_is_unknown_before_the_first_measurement),
    cmocka_unit_test(estimate_moves_down_faster_than_up),
    cmocka_unit_test(estimate_counts_a_long_one_as_twice),
    cmocka_unit_test(estimate_moves_by_half_when_five_in_succession_are_far),
    cmocka_unit_test(estimate_moves_by_half_after_a_far_shorter_one),
    cmocka_unit_test(estimate_follows_the_shorter_ones),
    cmocka_unit_test(estimate_follows_a_change),
    cmocka_unit_test(estimate_ignores_absurd_measurements),
    cmocka_unit_test(estimate_never_becomes_zero))
