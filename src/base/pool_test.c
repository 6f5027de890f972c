#include "base/testing.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "base/random.h"
#include "base/tuning.h"

static void pool_objects_are_aligned_and_apart(void **state)
{
    enum {
        COUNT = 5000
    };
    static unsigned char *objects[COUNT];
    tow_pool_t pool;
    tow_pool_init(&pool, 40, 0);
    for (int i = 0; i < COUNT; i++) {
        objects[i] = tow_pool_take(&pool);
        assert_non_null(objects[i]);
        assert_int_equal((uintptr_t)objects[i] % _Alignof(max_align_t), 0);
        memset(objects[i], i & 0xff, 40);
    }
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < 40; k++)
            assert_int_equal(objects[i][k], i & 0xff);
    }
    assert_int_equal(pool.taken_count, COUNT);
    tow_pool_deinit(&pool);
}

static void pool_gives_again_what_came_back(void **state)
{
    tow_pool_t pool;
    tow_pool_init(&pool, 8, 0);
    void *first = tow_pool_take(&pool);
    void *second = tow_pool_take(&pool);
    tow_pool_give(&pool, first);
    assert_ptr_equal(tow_pool_take(&pool), first);
    tow_pool_give(&pool, second);
    tow_pool_give(&pool, first);
    assert_int_equal(pool.taken_count, 0);
    assert_int_equal(pool.made_count, 2);
    tow_pool_deinit(&pool);
}

static void pool_stops_at_its_limit(void **state)
{
    tow_pool_t pool;
    tow_pool_init(&pool, 100, 3);
    void *objects[3];
    for (int i = 0; i < 3; i++)
        assert_non_null(objects[i] = tow_pool_take(&pool));
    assert_null(tow_pool_take(&pool));
    tow_pool_give(&pool, objects[1]);
    assert_ptr_equal(tow_pool_take(&pool), objects[1]);
    assert_null(tow_pool_take(&pool));
    tow_pool_deinit(&pool);
}

static void pool_within_a_slab_leaves_the_heap_alone(void **state)
{
    int64_t live_before = tow_alloc_live_count();
    tow_pool_t pool;
    tow_pool_init(&pool, 64, 0);
    size_t count = pool.objects_per_slab;
    assert_true(count > 500);
    for (size_t i = 0; i < count; i++)
        assert_non_null(tow_pool_take(&pool));
    assert_int_equal(tow_alloc_live_count(), live_before + 1);
    assert_non_null(tow_pool_take(&pool));
    assert_int_equal(tow_alloc_live_count(), live_before + 2);
    tow_pool_deinit(&pool);
    assert_int_equal(tow_alloc_live_count(), live_before);
}

static void pool_of_objects_larger_than_a_slab_works(void **state)
{
    tow_pool_t pool;
    tow_pool_init(&pool, TOW_POOL_SLAB_BYTES * 3, 2);
    char *first = tow_pool_take(&pool);
    char *second = tow_pool_take(&pool);
    memset(first, 1, TOW_POOL_SLAB_BYTES * 3);
    memset(second, 2, TOW_POOL_SLAB_BYTES * 3);
    assert_int_equal(first[TOW_POOL_SLAB_BYTES * 3 - 1], 1);
    assert_null(tow_pool_take(&pool));
    tow_pool_deinit(&pool);
}

static void pool_never_lends_an_object_twice(void **state)
{
    enum {
        COUNT = 200
    };
    uint64_t *held[COUNT] = {NULL};
    tow_random_t random;
    tow_random_init(&random, 3);
    tow_pool_t pool;
    tow_pool_init(&pool, sizeof(uint64_t), COUNT / 2);
    for (int step = 0; step < 20000; step++) {
        size_t i = tow_random_below(&random, COUNT);
        if (held[i] != NULL) {
            assert_int_equal(*held[i], i);
            tow_pool_give(&pool, held[i]);
            held[i] = NULL;
        } else if ((held[i] = tow_pool_take(&pool)) != NULL) {
            *held[i] = i;
        } else {
            assert_int_equal(pool.taken_count, COUNT / 2);
        }
    }
    tow_pool_deinit(&pool);
}

static tow_exhaust_result_t take_many(void *context)
{
    tow_pool_t pool;
    tow_pool_init(&pool, 1000, 0);
    tow_exhaust_result_t result = TOW_EXHAUST_SUCCEEDED;
    for (int i = 0; i < 500; i++) {
        if (tow_pool_take(&pool) == NULL) result = TOW_EXHAUST_FAILED;
    }
    tow_pool_deinit(&pool);
    return result;
}

static void pool_survives_exhausted_memory(void **state)
{
    assert_true(tow_test_exhaust(take_many, NULL) > 2);
}

TOW_TEST_MAIN(cmocka_unit_test(pool_objects_are_aligned_and_apart),
              cmocka_unit_test(pool_gives_again_what_came_back),
              cmocka_unit_test(pool_stops_at_its_limit),
              cmocka_unit_test(pool_within_a_slab_leaves_the_heap_alone),
              cmocka_unit_test(pool_of_objects_larger_than_a_slab_works),
              cmocka_unit_test(pool_never_lends_an_object_twice),
              cmocka_unit_test(pool_survives_exhausted_memory))
