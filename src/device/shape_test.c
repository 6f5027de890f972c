#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "device/device.h"

static tow_shape_t parsed(const char *text)
{
    tow_shape_t shape;
    tow_status_t status = tow_shape_parse(text, &shape);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return shape;
}

static uint64_t bytes_of(const char *text)
{
    const tow_shape_t shape = parsed(text);
    uint64_t bytes = 0;
    assert_null(tow_shape_bytes(&shape, &bytes));
    return bytes;
}

static void expect_code(tow_status_t take_status, tow_code_t code)
{
    assert_int_equal(tow_status_code(take_status), code);
    tow_status_release(take_status);
}

static void shape_text_parses_back(void **state)
{
    static const char *const texts[] = {"f32[]", "f32[2,3]", "pred[0]",
                                        "c128[1,1,1,1]",
                                        "s8[9223372036854775807]"};
    for (size_t i = 0; i < TOW_COUNT_OF(texts); i++) {
        const tow_shape_t shape = parsed(texts[i]);
        char text[TOW_SHAPE_TEXT_MAX];
        assert_string_equal(tow_shape_format(&shape, text), texts[i]);
    }
}

static void shape_that_is_malformed_is_refused(void **state)
{
    static const char *const texts[] = {
        "",         "f32",       "[2]",
        "f31[2]",   "f32[2",     "f32[2]x",
        "f32[,2]",  "f32[2,]",   "f32[-1]",
        "f32[ 2]",  "f32[2 ,3]", "f32[+2]",
        "f32[0x2]", "f32[2][]",  "f32[9223372036854775808]"};
    for (size_t i = 0; i < TOW_COUNT_OF(texts); i++) {
        tow_shape_t shape;
        tow_status_t status = tow_shape_parse(texts[i], &shape);
        assert_non_null(strstr(tow_status_message(status), "f32[2,3]"));
        expect_code(status, TOW_INVALID_ARGUMENT);
    }
}

static void shape_of_too_many_dimensions_is_refused(void **state)
{
    char dims[2 * TOW_RANK_MAX];
    for (int i = 0; i < TOW_RANK_MAX; i++) {
        dims[2 * i] = '1';
        dims[2 * i + 1] = ',';
    }
    char text[128];
    char past[128];
    snprintf(text, sizeof(text), "u8[%.*s]", 2 * TOW_RANK_MAX - 1, dims);
    snprintf(past, sizeof(past), "u8[%.*s1]", 2 * TOW_RANK_MAX, dims);
    assert_int_equal(parsed(text).rank, TOW_RANK_MAX);
    tow_shape_t shape;
    expect_code(tow_shape_parse(past, &shape), TOW_INVALID_ARGUMENT);
}

static void shape_bytes_are_those_of_the_host(void **state)
{
    assert_int_equal(bytes_of("f32[]"), 4);
    assert_int_equal(bytes_of("f32[2,3]"), 24);
    assert_int_equal(bytes_of("s4[3]"), 3);
    assert_int_equal(bytes_of("c128[2]"), 32);
    assert_int_equal(bytes_of("u8[9223372036854775807]"), INT64_MAX);
}

static void shape_with_an_empty_dimension_has_no_bytes(void **state)
{
    assert_int_equal(bytes_of("f64[9223372036854775807,9,0]"), 0);
}

static void shape_that_is_too_large_is_out_of_range(void **state)
{
    uint64_t bytes;
    tow_shape_t shape = parsed("f32[4611686018427387904]");
    expect_code(tow_shape_bytes(&shape, &bytes), TOW_OUT_OF_RANGE);
    shape = parsed("u8[4294967296,4294967296]");
    expect_code(tow_shape_bytes(&shape, &bytes), TOW_OUT_OF_RANGE);
    shape.dims[0] = -1;
    shape.dims[1] = 0;
    expect_code(tow_shape_bytes(&shape, &bytes), TOW_OUT_OF_RANGE);
}

static void shape_without_a_size_is_refused(void **state)
{
    uint64_t bytes;
    tow_shape_t shape = {.type = TOW_TYPE_TOKEN};
    expect_code(tow_shape_bytes(&shape, &bytes), TOW_INVALID_ARGUMENT);
    shape = (tow_shape_t){.type = TOW_TYPE_F32, .rank = TOW_RANK_MAX + 1};
    expect_code(tow_shape_bytes(&shape, &bytes), TOW_INVALID_ARGUMENT);
}

static void shapes_differ_by_type_rank_or_dimension(void **state)
{
    const tow_shape_t shape = parsed("f32[2,3]");
    static const char *const others[] = {"f64[2,3]", "f32[2]", "f32[2,3,1]",
                                         "f32[3,2]"};
    const tow_shape_t same = parsed("f32[2,3]");
    assert_true(tow_shape_equal(&shape, &same));
    for (size_t i = 0; i < TOW_COUNT_OF(others); i++) {
        const tow_shape_t other = parsed(others[i]);
        assert_false(tow_shape_equal(&shape, &other));
    }
}

static void shape_of_the_longest_text_fits(void **state)
{
    tow_shape_t shape = {.type = TOW_TYPE_F8E4M3B11FNUZ, .rank = TOW_RANK_MAX};
    for (int i = 0; i < TOW_RANK_MAX; i++)
        shape.dims[i] = INT64_MIN;
    char text[TOW_SHAPE_TEXT_MAX];
    assert_true(strlen(tow_shape_format(&shape, text)) < TOW_SHAPE_TEXT_MAX);
}

TOW_TEST_MAIN(cmocka_unit_test(shape_text_parses_back),
              cmocka_unit_test(shape_that_is_malformed_is_refused),
              cmocka_unit_test(shape_of_too_many_dimensions_is_refused),
              cmocka_unit_test(shape_bytes_are_those_of_the_host),
              cmocka_unit_test(shape_with_an_empty_dimension_has_no_bytes),
              cmocka_unit_test(shape_that_is_too_large_is_out_of_range),
              cmocka_unit_test(shape_without_a_size_is_refused),
              cmocka_unit_test(shapes_differ_by_type_rank_or_dimension),
              cmocka_unit_test(shape_of_the_longest_text_fits))
