#include "base/testing.h"

#include <complex.h>
#include <math.h>
#include <string.h>

#include "collective/reduce.h"

static uint16_t reduce_half(uint16_t a, uint16_t b, tow_type_t type,
                            tow_reduction_t reduction)
{
    tow_reduce(&a, &b, 1, type, reduction);
    return a;
}

static void integers_wrap(void **state)
{
    (void)state;
    int8_t a[] = {127, -128, 100}, b[] = {1, -1, 3};
    tow_reduce(a, b, 3, TOW_TYPE_S8, TOW_REDUCE_SUM);
    assert_int_equal(a[0], -128);
    assert_int_equal(a[1], 127);
    uint16_t c = 65535, d = 65535;
    tow_reduce(&c, &d, 1, TOW_TYPE_U16, TOW_REDUCE_PRODUCT);
    assert_int_equal(c, 1);
    int64_t e = INT64_MAX, f = 1;
    tow_reduce(&e, &f, 1, TOW_TYPE_S64, TOW_REDUCE_SUM);
    assert_true(e == INT64_MIN);
}

static void signed_and_unsigned_are_ordered_differently(void **state)
{
    (void)state;
    uint32_t a = 0xffffffffu, b = 1;
    tow_reduce(&a, &b, 1, TOW_TYPE_U32, TOW_REDUCE_MIN);
    assert_int_equal(a, 1);
    a = 0xffffffffu;
    tow_reduce(&a, &b, 1, TOW_TYPE_S32, TOW_REDUCE_MIN);
    assert_int_equal(a, 0xffffffffu);
}

static void nan_wins_in_min_and_max(void **state)
{
    (void)state;
    static const tow_reduction_t both[] = {TOW_REDUCE_MIN, TOW_REDUCE_MAX};
    for (size_t i = 0; i < 2; i++) {
        float a[] = {NAN, 1}, b[] = {1, NAN};
        tow_reduce(a, b, 2, TOW_TYPE_F32, both[i]);
        assert_true(isnan(a[0]) && isnan(a[1]));
        double c[] = {NAN, 1}, d[] = {1, NAN};
        tow_reduce(c, d, 2, TOW_TYPE_F64, both[i]);
        assert_true(isnan(c[0]) && isnan(c[1]));
        /* 0x7e00 is a NaN, 0x3c00 is 1, as f16; 0x7fc0 and 0x3f80 as bf16. */
        assert_true(reduce_half(0x7e00, 0x3c00, TOW_TYPE_F16, both[i]) >
                    0x7c00);
        assert_true(reduce_half(0x3c00, 0x7e00, TOW_TYPE_F16, both[i]) >
                    0x7c00);
        assert_true(reduce_half(0x3f80, 0x7fc0, TOW_TYPE_BF16, both[i]) >
                    0x7f80);
    }
}

static void predicates_are_or_and_and(void **state)
{
    (void)state;
    uint8_t a[] = {0, 0, 1, 2}, b[] = {0, 1, 0, 4};
    tow_reduce(a, b, 4, TOW_TYPE_PRED, TOW_REDUCE_SUM);
    const uint8_t either[] = {0, 1, 1, 1};
    assert_memory_equal(a, either, 4);
    tow_reduce(a, b, 4, TOW_TYPE_PRED, TOW_REDUCE_PRODUCT);
    const uint8_t both[] = {0, 1, 0, 1};
    assert_memory_equal(a, both, 4);
}

static void complex_numbers_multiply_and_have_no_order(void **state)
{
    (void)state;
    float complex a = 1 + 2 * I, b = 3 - 1 * I;
    tow_reduce(&a, &b, 1, TOW_TYPE_C64, TOW_REDUCE_PRODUCT);
    assert_true(crealf(a) == 5 && cimagf(a) == 5);
    assert_false(tow_reduce_is_supported(TOW_TYPE_C128, TOW_REDUCE_MIN));
    assert_true(tow_reduce_is_supported(TOW_TYPE_C128, TOW_REDUCE_SUM));
    assert_false(tow_reduce_is_supported((tow_type_t)99, TOW_REDUCE_SUM));
}

/* Adding zero must give every half back, through f32 and rounding. */
static void every_half_survives_the_way_through_float(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits;
        bool f16_nan = (half & 0x7fff) > 0x7c00;
        bool bf16_nan = (half & 0x7fff) > 0x7f80;
        if (!f16_nan && half != 0x8000)
            assert_int_equal(reduce_half(half, 0, TOW_TYPE_F16, TOW_REDUCE_SUM),
                             half);
        if (!bf16_nan && half != 0x8000)
            assert_int_equal(
                reduce_half(half, 0, TOW_TYPE_BF16, TOW_REDUCE_SUM), half);
    }
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    /* 2048 + 1 lies between 2048 and 2050; 2050 + 1 between 2050 and 2052. */
    assert_int_equal(reduce_half(0x6800, 0x3c00, TOW_TYPE_F16, TOW_REDUCE_SUM),
                     0x6800);
    assert_int_equal(reduce_half(0x6801, 0x3c00, TOW_TYPE_F16, TOW_REDUCE_SUM),
                     0x6802);
    /* 65504 + 32 is past the largest: infinity. */
    assert_int_equal(reduce_half(0x7bff, 0x5000, TOW_TYPE_F16, TOW_REDUCE_SUM),
                     0x7c00);
    /* The smallest half times a half rounds to zero, to even. */
    assert_int_equal(
        reduce_half(0x0001, 0x3800, TOW_TYPE_F16, TOW_REDUCE_PRODUCT), 0);
    /* 256 + 1 in bf16: between 256 and 258. */
    assert_int_equal(reduce_half(0x4380, 0x3f80, TOW_TYPE_BF16, TOW_REDUCE_SUM),
                     0x4380);
}

static void the_verifier_knows_what_can_be_reduced(void **state)
{
    (void)state;
    for (int type = 0; type < 40; type++)
        for (int reduction = 0; reduction < 6; reduction++)
            assert_int_equal(tow_type_is_reducible((tow_type_t)type,
                                                   (tow_reduction_t)reduction),
                             tow_reduce_is_supported(
                                 (tow_type_t)type, (tow_reduction_t)reduction));
}

TOW_TEST_MAIN(cmocka_unit_test(integers_wrap),
              cmocka_unit_test(signed_and_unsigned_are_ordered_differently),
              cmocka_unit_test(nan_wins_in_min_and_max),
              cmocka_unit_test(predicates_are_or_and_and),
              cmocka_unit_test(complex_numbers_multiply_and_have_no_order),
              cmocka_unit_test(every_half_survives_the_way_through_float),
              cmocka_unit_test(halves_round_to_nearest_even),
              cmocka_unit_test(the_verifier_knows_what_can_be_reduced))
