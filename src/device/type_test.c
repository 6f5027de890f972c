#include "base/testing.h"

#include "device/device.h"

static void types_have_names_that_parse_back(void **state)
{
    size_t named_count = 0;
    for (int i = 0; i < 64; i++) {
        const char *name = tow_type_name((tow_type_t)i);
        if (name[0] == '?') continue;
        named_count++;
        assert_int_equal(tow_type_parse(name), i);
    }
    assert_int_equal(named_count, 29);
}

static void types_have_the_bits_of_one_element(void **state)
{
    assert_int_equal(tow_type_bits(TOW_TYPE_PRED), 8);
    assert_int_equal(tow_type_bits(TOW_TYPE_S4), 4);
    assert_int_equal(tow_type_bits(TOW_TYPE_BF16), 16);
    assert_int_equal(tow_type_bits(TOW_TYPE_C128), 128);
    assert_int_equal(tow_type_bits(TOW_TYPE_TOKEN), 0);
}

static void types_that_are_unknown_have_no_size_and_no_name(void **state)
{
    assert_int_equal(tow_type_bits((tow_type_t)1000), 0);
    assert_int_equal(tow_type_bits((tow_type_t)-1), 0);
    assert_string_equal(tow_type_name((tow_type_t)1000), "?");
    assert_string_equal(tow_type_name((tow_type_t)-1), "?");
    assert_int_equal(tow_type_parse("F32"), TOW_TYPE_INVALID);
    assert_int_equal(tow_type_parse(""), TOW_TYPE_INVALID);
}

TOW_TEST_MAIN(cmocka_unit_test(types_have_names_that_parse_back),
              cmocka_unit_test(types_have_the_bits_of_one_element),
              cmocka_unit_test(types_that_are_unknown_have_no_size_and_no_name))
