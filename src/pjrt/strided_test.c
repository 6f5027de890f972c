#include "pjrt/strided.h"

#include <string.h>

#include "base/testing.h"

/* As it is said: one element after the other. */
static void copy_plainly(const tow_strided_t *array, uint8_t *to)
{
    int64_t index[TOW_RANK_MAX] = {0};
    size_t count = 1;
    for (uint32_t i = 0; i < array->rank; i++)
        count *= (size_t)array->dims[i];
    for (size_t n = 0; n < count; n++) {
        const uint8_t *from = array->data;
        for (uint32_t i = 0; i < array->rank; i++)
            from += index[i] * array->strides[i];
        memcpy(to + n * array->element_bytes, from, array->element_bytes);
        for (uint32_t i = array->rank; i-- > 0;) {
            if (++index[i] < array->dims[i]) break;
            index[i] = 0;
        }
    }
}

static uint8_t data[16 * 70 * 40 * 3];

static void fill(void)
{
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof(data); i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (uint8_t)(seed >> 24);
    }
}

static void expect_copied(const tow_strided_t *array)
{
    static uint8_t wanted[sizeof(data)], got[sizeof(data)];
    memset(wanted, 0, sizeof(wanted));
    memset(got, 0, sizeof(got));
    copy_plainly(array, wanted);
    tow_strided_copy(array, got);
    assert_memory_equal(got, wanted, sizeof(wanted));
}

static tow_strided_t make(size_t element_bytes, uint32_t rank,
                          const int64_t *dims)
{
    tow_strided_t array = {
        .data = data, .element_bytes = element_bytes, .rank = rank};
    for (uint32_t i = 0; i < rank; i++)
        array.dims[i] = dims[i];
    tow_strided_set_dense(&array);
    return array;
}

static void orders_of_all_kinds_are_copied(void **state)
{
    static const int64_t shapes[][3] = {{70, 40, 3}, {3, 70, 40}, {1, 33, 1},
                                        {1, 1, 1},   {2, 1, 64},  {5, 0, 2}};
    static const uint8_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const size_t sizes[] = {1, 2, 3, 4, 8, 16};
    fill();
    for (size_t s = 0; s < TOW_COUNT_OF(shapes); s++)
        for (size_t o = 0; o < TOW_COUNT_OF(orders); o++)
            for (size_t e = 0; e < TOW_COUNT_OF(sizes); e++) {
                const tow_strided_t array = make(sizes[e], 3, shapes[s]);
                const tow_strided_t permuted =
                    tow_strided_permuted(&array, orders[o]);
                expect_copied(&permuted);
            }
}

static void scalars_and_rows_are_copied(void **state)
{
    fill();
    const tow_strided_t scalar = make(4, 0, NULL);
    expect_copied(&scalar);
    tow_strided_t row = make(4, 1, (const int64_t[]){100});
    row.strides[0] = 12;
    expect_copied(&row);
}

static void strides_may_go_back_or_stand_still(void **state)
{
    fill();
    tow_strided_t array = make(2, 2, (const int64_t[]){50, 60});
    array.data = data + 2 * (50 * 60 - 1);
    array.strides[0] = -120;
    array.strides[1] = -2;
    expect_copied(&array);
    array.data = data;
    array.strides[0] = 0;
    array.strides[1] = 2;
    expect_copied(&array);
}

static void dense_is_what_lies_row_by_row(void **state)
{
    tow_strided_t array = make(4, 2, (const int64_t[]){3, 5});
    assert_true(tow_strided_is_dense(&array));
    const tow_strided_t turned =
        tow_strided_permuted(&array, (const uint8_t[]){1, 0});
    assert_false(tow_strided_is_dense(&turned));
    /* How far it is to an element that is not there does not matter. */
    array = make(4, 2, (const int64_t[]){1, 5});
    array.strides[0] = 999;
    assert_true(tow_strided_is_dense(&array));
    array = make(4, 2, (const int64_t[]){0, 5});
    array.strides[1] = 999;
    assert_true(tow_strided_is_dense(&array));
}

TOW_TEST_MAIN(cmocka_unit_test(orders_of_all_kinds_are_copied),
              cmocka_unit_test(scalars_and_rows_are_copied),
              cmocka_unit_test(strides_may_go_back_or_stand_still),
              cmocka_unit_test(dense_is_what_lies_row_by_row))
