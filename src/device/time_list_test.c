#include "device/time_list.h"

#include "base/testing.h"

static void expect_same(const tow_device_time_t *a, const tow_device_time_t *b)
{
    assert_int_equal(a->busy_ns, b->busy_ns);
    assert_int_equal(a->wait_ns, b->wait_ns);
    assert_int_equal(a->longest_ns, b->longest_ns);
}

static tow_time_list_t pack_and_read(const tow_device_time_t *times,
                                     size_t count, uint64_t *scratch)
{
    tow_time_list_t list = tow_time_list_pack(times, count, scratch);
    assert_null(tow_time_list_check(&list, count));
    for (size_t i = 0; i < count; i++) {
        const tow_device_time_t time = tow_time_list_at(&list, i);
        expect_same(&time, &times[i]);
    }
    return list;
}

static void times_come_back(void **state)
{
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(3)];
    const tow_device_time_t times[] = {
        {7, 5, 9}, {0}, {UINT64_MAX, 0, UINT64_MAX}};
    const tow_time_list_t list = pack_and_read(times, 3, scratch);
    assert_int_equal(list.longest_count, 3);
}

static void lists_that_follow_from_others_are_empty(void **state)
{
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(2)];
    const tow_device_time_t alone[] = {{7, 0, 7}, {3, 0, 3}};
    tow_time_list_t list = pack_and_read(alone, 2, scratch);
    assert_int_equal(list.busy_count, 2);
    assert_int_equal(list.wait_count, 0);
    assert_int_equal(list.longest_count, 0);
    const tow_device_time_t nothing[2] = {{0}};
    list = pack_and_read(nothing, 2, scratch);
    assert_int_equal(list.busy_count, 0);
}

static void lists_of_another_length_are_refused(void **state)
{
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(2)] = {0};
    tow_time_list_t list = {
        .busy_ns = scratch, .wait_ns = scratch, .longest_ns = scratch};
    size_t *const counts[] = {&list.busy_count, &list.wait_count,
                              &list.longest_count};
    for (size_t i = 0; i < TOW_COUNT_OF(counts); i++) {
        *counts[i] = 1;
        tow_status_t status = tow_time_list_check(&list, 2);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
        *counts[i] = 2;
        assert_null(tow_time_list_check(&list, 2));
    }
}

static void device_times_add_up(void **state)
{
    tow_device_time_t time = {0};
    tow_device_time_add(&time, 10, 1);
    tow_device_time_add(&time, 4, 9);
    expect_same(&time, &(tow_device_time_t){14, 10, 13});
    tow_device_time_merge(&time, &(tow_device_time_t){1, 1, 2});
    tow_device_time_merge(&time, &(tow_device_time_t){20, 0, 20});
    expect_same(&time, &(tow_device_time_t){35, 11, 20});
}

TOW_TEST_MAIN(cmocka_unit_test(times_come_back),
              cmocka_unit_test(lists_that_follow_from_others_are_empty),
              cmocka_unit_test(lists_of_another_length_are_refused),
              cmocka_unit_test(device_times_add_up))
