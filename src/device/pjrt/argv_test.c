#include "base/testing.h"

#include <math.h>
#include <string.h>

#include "device/pjrt/argv.h"

static const int64_t list[] = {INT64_MIN, 0, INT64_MAX};
static const tow_pjrt_value_t values[] = {
    {.name = "text", .type = TOW_PJRT_STRING, .string = "a,b c"},
    {.name = "number", .type = TOW_PJRT_INT64, .int64 = INT64_MIN},
    {.name = "list",
     .type = TOW_PJRT_INT64_LIST,
     .int64_list = list,
     .count = 3},
    {.name = "none", .type = TOW_PJRT_INT64_LIST, .int64_list = list},
    {.name = "real", .type = TOW_PJRT_FLOAT, .float_ = 0.1f},
    {.name = "yes", .type = TOW_PJRT_BOOL, .bool_ = true},
    {.name = "no", .type = TOW_PJRT_BOOL, .bool_ = false},
};

static void expect_same(const tow_pjrt_value_t *got,
                        const tow_pjrt_value_t *wanted)
{
    assert_string_equal(got->name, wanted->name);
    assert_int_equal(got->type, wanted->type);
    assert_int_equal(got->count, wanted->count);
    switch (wanted->type) {
    case TOW_PJRT_STRING:
        assert_string_equal(got->string, wanted->string);
        break;
    case TOW_PJRT_INT64: assert_true(got->int64 == wanted->int64); break;
    case TOW_PJRT_INT64_LIST:
        assert_memory_equal(got->int64_list, wanted->int64_list,
                            wanted->count * sizeof(list[0]));
        break;
    case TOW_PJRT_FLOAT: assert_true(got->float_ == wanted->float_); break;
    case TOW_PJRT_BOOL: assert_true(got->bool_ == wanted->bool_); break;
    }
}

static void values_of_all_types_round_trip(void **state)
{
    enum {
        COUNT = TOW_COUNT_OF(values)
    };
    char *argv[COUNT * TOW_PJRT_ARGS_PER_VALUE];
    tow_arena_t arena;
    size_t count = 0;
    tow_arena_init(&arena, 0);
    assert_true(tow_pjrt_argv_write(&arena, values, COUNT, argv));
    const tow_pjrt_value_t *got =
        tow_pjrt_argv_read(&arena, argv, TOW_COUNT_OF(argv), &count);
    assert_non_null(got);
    assert_int_equal(count, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        expect_same(&got[i], &values[i]);
    tow_arena_deinit(&arena);
}

static void words_that_are_no_whole_value_are_left_out(void **state)
{
    char *argv[] = {"a", "1", "7", "b", "1"};
    tow_arena_t arena;
    size_t count = 0;
    tow_arena_init(&arena, 0);
    const tow_pjrt_value_t *got =
        tow_pjrt_argv_read(&arena, argv, TOW_COUNT_OF(argv), &count);
    assert_non_null(got);
    assert_int_equal(count, 1);
    assert_int_equal(got[0].int64, 7);
    tow_arena_deinit(&arena);
}

TOW_TEST_MAIN(cmocka_unit_test(values_of_all_types_round_trip),
              cmocka_unit_test(words_that_are_no_whole_value_are_left_out))
