#include "base/testing.h"

#include "base/vec.h"

typedef TOW_VEC(int) int_vec_t;

static void vec_keeps_what_is_pushed(void **state)
{
    int_vec_t numbers = {0};
    for (int i = 0; i < 10000; i++)
        assert_true(tow_vec_push(&numbers, i));
    assert_int_equal(numbers.count, 10000);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(numbers.items[i], i);
    tow_vec_deinit(&numbers);
    assert_null(numbers.items);
    assert_int_equal(numbers.capacity, 0);
}

static void vec_grows_rarely(void **state)
{
    int_vec_t numbers = {0};
    int growth_count = 0;
    for (int i = 0; i < 1000000; i++) {
        size_t capacity_before = numbers.capacity;
        assert_true(tow_vec_push(&numbers, i));
        growth_count += numbers.capacity != capacity_before;
    }
    assert_true(growth_count < 40);
    tow_vec_deinit(&numbers);
}

static void vec_reserve_makes_pushes_certain(void **state)
{
    int_vec_t numbers = {0};
    assert_true(tow_vec_reserve(&numbers, 100));
    tow_alloc_fail_after(0);
    for (int i = 0; i < 100; i++)
        assert_true(tow_vec_push(&numbers, i));
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
    tow_vec_deinit(&numbers);
}

static void vec_swap_remove_moves_the_last_item(void **state)
{
    int_vec_t numbers = {0};
    for (int i = 0; i < 4; i++)
        assert_true(tow_vec_push(&numbers, i));
    tow_vec_swap_remove(&numbers, 1);
    assert_int_equal(numbers.count, 3);
    assert_int_equal(numbers.items[1], 3);
    tow_vec_swap_remove(&numbers, 2); /* The last itself. */
    assert_int_equal(numbers.count, 2);
    assert_int_equal(numbers.items[0], 0);
    tow_vec_deinit(&numbers);
}

static void vec_refused_growth_changes_nothing(void **state)
{
    int_vec_t numbers = {0};
    assert_true(tow_vec_push(&numbers, 41));
    int *items_before = numbers.items;
    size_t capacity_before = numbers.capacity;
    assert_false(tow_vec_reserve(&numbers, SIZE_MAX / 2));
    assert_false(tow_vec_reserve(&numbers, SIZE_MAX));
    tow_alloc_fail_after(0);
    assert_false(tow_vec_reserve(&numbers, 100));
    tow_alloc_fail_after(UINT64_MAX);
    assert_ptr_equal(numbers.items, items_before);
    assert_int_equal(numbers.capacity, capacity_before);
    assert_int_equal(numbers.items[0], 41);
    tow_vec_deinit(&numbers);
}

static tow_exhaust_result_t push_many(void *context)
{
    int_vec_t numbers = {0};
    tow_exhaust_result_t result = TOW_EXHAUST_SUCCEEDED;
    for (int i = 0; i < 1000; i++) {
        if (!tow_vec_push(&numbers, i)) result = TOW_EXHAUST_FAILED;
    }
    tow_vec_deinit(&numbers);
    return result;
}

static void vec_survives_exhausted_memory(void **state)
{
    assert_true(tow_test_exhaust(push_many, NULL) > 5);
}

TOW_TEST_MAIN(cmocka_unit_test(vec_keeps_what_is_pushed),
              cmocka_unit_test(vec_grows_rarely),
              cmocka_unit_test(vec_reserve_makes_pushes_certain),
              cmocka_unit_test(vec_swap_remove_moves_the_last_item),
              cmocka_unit_test(vec_refused_growth_changes_nothing),
              cmocka_unit_test(vec_survives_exhausted_memory))
