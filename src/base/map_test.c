#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map_impl.h"
#include "base/random.h"

/* A value that says which key and which put it belongs to. */
static void *value_of(uint64_t key, uint64_t generation)
{
    return (void *)(uintptr_t)((key % 1000003 + 1) << 20 | (generation + 1));
}

static void empty_map_finds_and_removes_nothing(void **state)
{
    tow_map_t map = {0};
    size_t cursor = 0;
    uint64_t key;
    void *value;
    assert_null(tow_map_find(&map, 1));
    assert_null(tow_map_remove(&map, 1));
    assert_false(tow_map_next(&map, &cursor, &key, &value));
    assert_int_equal(tow_map_count(&map), 0);
    tow_map_deinit(&map);
}

static void map_finds_any_key(void **state)
{
    static const uint64_t keys[] = {0, 1, UINT64_MAX, (uint64_t)1 << 63, 42};
    tow_map_t map = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(keys); i++)
        assert_true(tow_map_put(&map, keys[i], value_of(keys[i], i)));
    for (size_t i = 0; i < TOW_COUNT_OF(keys); i++)
        assert_ptr_equal(tow_map_find(&map, keys[i]), value_of(keys[i], i));
    assert_null(tow_map_find(&map, 2));
    tow_map_deinit(&map);
}

static void map_iterates_in_insertion_order(void **state)
{
    tow_map_t map = {0};
    tow_random_t random;
    tow_random_init(&random, 1);
    enum {
        COUNT = 1000
    };
    static uint64_t keys[COUNT];
    for (int i = 0; i < COUNT; i++) {
        keys[i] = tow_random_next(&random);
        assert_true(tow_map_put(&map, keys[i], value_of(keys[i], 0)));
    }
    size_t cursor = 0;
    uint64_t key;
    void *value;
    for (int i = 0; i < COUNT; i++) {
        assert_true(tow_map_next(&map, &cursor, &key, &value));
        assert_true(key == keys[i]);
        assert_ptr_equal(value, value_of(key, 0));
    }
    assert_false(tow_map_next(&map, &cursor, &key, &value));
    tow_map_deinit(&map);
}

static void map_replaces_in_place_and_reinserts_at_the_end(void **state)
{
    static const uint64_t expected[] = {1, 3, 2};
    tow_map_t map = {0};
    for (uint64_t key = 1; key <= 3; key++)
        assert_true(tow_map_put(&map, key, value_of(key, 0)));
    assert_true(tow_map_put(&map, 1, value_of(1, 7)));
    assert_ptr_equal(tow_map_remove(&map, 2), value_of(2, 0));
    assert_true(tow_map_put(&map, 2, value_of(2, 8)));
    size_t cursor = 0;
    uint64_t key;
    void *value;
    for (size_t i = 0; i < TOW_COUNT_OF(expected); i++) {
        assert_true(tow_map_next(&map, &cursor, &key, &value));
        assert_int_equal(key, expected[i]);
    }
    assert_int_equal(tow_map_count(&map), 3);
    assert_ptr_equal(tow_map_find(&map, 1), value_of(1, 7));
    tow_map_deinit(&map);
}

static void map_allows_removal_while_iterating(void **state)
{
    tow_map_t map = {0};
    for (uint64_t key = 0; key < 100; key++)
        assert_true(tow_map_put(&map, key, value_of(key, 0)));
    size_t cursor = 0;
    uint64_t key, visited = 0;
    void *value;
    while (tow_map_next(&map, &cursor, &key, &value)) {
        assert_int_equal(key, visited++);
        assert_non_null(tow_map_remove(&map, key));
        if (key == 50) /* Also what comes later, and the last. */
            assert_non_null(tow_map_remove(&map, 99));
    }
    assert_int_equal(visited, 99);
    assert_int_equal(tow_map_count(&map), 0);
    tow_map_deinit(&map);
}

static void map_used_as_a_queue_stays_small(void **state)
{
    tow_map_t map = {0};
    for (uint64_t key = 0; key < 100000; key++) {
        assert_true(tow_map_put(&map, key, value_of(key, 0)));
        if (key >= 10)
            assert_ptr_equal(tow_map_remove(&map, key - 10),
                             value_of(key - 10, 0));
    }
    assert_int_equal(tow_map_count(&map), 10);
    assert_true(map.slot_count <= 64);
    tow_map_deinit(&map);
}

static void map_shrinks_after_a_burst(void **state)
{
    tow_map_t map = {0};
    for (uint64_t key = 0; key < 10000; key++)
        assert_true(tow_map_put(&map, key, value_of(key, 0)));
    for (uint64_t key = 0; key < 9999; key++)
        assert_non_null(tow_map_remove(&map, key));
    assert_true(tow_map_put(&map, 10000, value_of(10000, 0)));
    assert_int_equal(map.entry_count, 2);
    assert_true(map.slot_count <= 64);
    tow_map_deinit(&map);
}

static void map_full_of_holes_needs_no_memory(void **state)
{
    tow_map_t map = {0};
    uint64_t key = 0;
    do {
        assert_true(tow_map_put(&map, key, value_of(key, 0)));
        key++;
    } while (map.entry_count < map.slot_count / 2);
    assert_non_null(tow_map_remove(&map, 0)); /* One hole, not at the end. */
    tow_alloc_fail_after(0);
    assert_true(tow_map_put(&map, key, value_of(key, 0)));
    tow_alloc_fail_after(0);
    assert_false(tow_map_put(&map, key + 1, value_of(key + 1, 0)));
    assert_true(tow_map_put(&map, key, value_of(key, 1))); /* Replaces. */
    tow_alloc_fail_after(UINT64_MAX);
    for (uint64_t k = 1; k < key; k++)
        assert_ptr_equal(tow_map_find(&map, k), value_of(k, 0));
    assert_null(tow_map_find(&map, key + 1));
    tow_map_deinit(&map);
}

/* The naive model: a list in insertion order, searched from the start. */
typedef struct model {
    uint64_t keys[512];
    void *values[512];
    size_t count;
} model_t;

static size_t model_index(const model_t *model, uint64_t key)
{
    size_t i = 0;
    while (i < model->count && model->keys[i] != key)
        i++;
    return i;
}

static void model_put(model_t *model, uint64_t key, void *value)
{
    size_t i = model_index(model, key);
    if (i == model->count) model->keys[model->count++] = key;
    model->values[i] = value;
}

static void *model_remove(model_t *model, uint64_t key)
{
    size_t i = model_index(model, key);
    if (i == model->count) return NULL;
    void *value = model->values[i];
    size_t after = model->count - i - 1;
    memmove(&model->keys[i], &model->keys[i + 1], after * sizeof(uint64_t));
    memmove(&model->values[i], &model->values[i + 1], after * sizeof(void *));
    model->count--;
    return value;
}

static void assert_map_equals_model(const tow_map_t *map, const model_t *model)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    for (size_t i = 0; i < model->count; i++) {
        assert_true(tow_map_next(map, &cursor, &key, &value));
        assert_true(key == model->keys[i]);
        assert_ptr_equal(value, model->values[i]);
        assert_ptr_equal(tow_map_find(map, key), value);
    }
    assert_false(tow_map_next(map, &cursor, &key, &value));
    assert_int_equal(tow_map_count(map), model->count);
    tow_map_check(map);
}

typedef struct walk {
    uint64_t seed;
    uint64_t key_count;  /* keys to choose from */
    uint64_t key_stride; /* distance between them */
    uint64_t refuse_ppm; /* how often memory is exhausted */
} walk_t;

static void walk_map_and_model(const walk_t *walk)
{
    static model_t model;
    model.count = 0;
    tow_map_t map = {0};
    tow_random_t random;
    tow_random_init(&random, walk->seed);
    uint32_t put_parts = 600000;
    for (uint64_t step = 0; step < 6000; step++) {
        if (step % 500 == 0) /* Phases that grow and phases that shrink. */
            put_parts = (uint32_t)tow_random_below(&random, 1000001);
        uint64_t key =
            tow_random_below(&random, walk->key_count) * walk->key_stride;
        if (tow_random_chance_ppm(&random, put_parts)) {
            void *value = value_of(key, step);
            if (tow_random_below(&random, 1000000) < walk->refuse_ppm)
                tow_alloc_fail_after(0);
            if (tow_map_put(&map, key, value)) model_put(&model, key, value);
            tow_alloc_fail_after(UINT64_MAX);
        } else {
            assert_ptr_equal(tow_map_remove(&map, key),
                             model_remove(&model, key));
        }
        if (step % 50 == 0) assert_map_equals_model(&map, &model);
    }
    assert_map_equals_model(&map, &model);
    tow_map_deinit(&map);
}

static void map_agrees_with_a_naive_model(void **state)
{
    static const uint64_t strides[] = {1, 16, (uint64_t)1 << 32,
                                       0x9e3779b97f4a7c15u};
    for (uint64_t seed = 0; seed < 40; seed++)
        walk_map_and_model(
            &(walk_t){.seed = seed,
                      .key_count = (uint64_t)8 << seed % 7, /* 8 to 512 */
                      .key_stride = strides[seed % 4],
                      .refuse_ppm = seed % 3 == 0 ? 300000 : 0});
}

static tow_exhaust_result_t fill_map(void *context)
{
    tow_map_t map = {0};
    tow_exhaust_result_t result = TOW_EXHAUST_SUCCEEDED;
    for (uint64_t key = 0; key < 200; key++) {
        if (!tow_map_put(&map, key, value_of(key, 0))) {
            result = TOW_EXHAUST_FAILED;
            assert_null(tow_map_find(&map, key));
            assert_int_equal(tow_map_count(&map), key);
            break;
        }
    }
    tow_map_deinit(&map);
    return result;
}

static void map_survives_exhausted_memory(void **state)
{
    assert_true(tow_test_exhaust(fill_map, NULL) >= 8);
}

static void names_copy_their_keys(void **state)
{
    tow_names_t names = {0};
    char name[32];
    static int values[1000];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "worker/%d", i);
        assert_true(tow_names_put(&names, name, &values[i]));
    }
    assert_int_equal(tow_names_count(&names), 1000);
    assert_ptr_equal(tow_names_find(&names, "worker/567"), &values[567]);
    assert_null(tow_names_find(&names, "worker/1000"));
    assert_null(tow_names_find(&names, ""));
    assert_true(tow_names_put(&names, "worker/3", &values[0]));
    assert_ptr_equal(tow_names_remove(&names, "worker/3"), &values[0]);
    assert_null(tow_names_remove(&names, "worker/3"));
    assert_int_equal(tow_names_count(&names), 999);
    tow_names_deinit(&names);
    assert_int_equal(tow_names_count(&names), 0);
}

static void names_with_equal_hashes_stay_apart(void **state)
{
    static const char *const words[] = {"horse", "barge", "lock", "rope"};
    static int values[4];
    for (size_t gone = 0; gone < 4; gone++) {
        tow_names_t names = {0};
        for (size_t i = 0; i < 4; i++)
            assert_true(tow_names_put_hashed(&names, 7, words[i], &values[i]));
        assert_ptr_equal(tow_names_remove_hashed(&names, 7, words[gone]),
                         &values[gone]);
        assert_null(tow_names_remove_hashed(&names, 7, words[gone]));
        for (size_t i = 0; i < 4; i++)
            assert_ptr_equal(tow_names_find_hashed(&names, 7, words[i]),
                             i == gone ? NULL : &values[i]);
        assert_int_equal(tow_names_count(&names), 3);
        tow_names_deinit(&names);
    }
}

static tow_exhaust_result_t fill_names(void *context)
{
    tow_names_t names = {0};
    tow_exhaust_result_t result = TOW_EXHAUST_SUCCEEDED;
    char name[8] = "aa";
    for (int i = 0; i < 20; i++) {
        name[0] = (char)('a' + i);
        if (tow_names_put(&names, name, &names)) continue;
        result = TOW_EXHAUST_FAILED;
        assert_int_equal(tow_names_count(&names), i);
        assert_null(tow_names_find(&names, name));
        break;
    }
    tow_names_deinit(&names);
    return result;
}

static void names_survive_exhausted_memory(void **state)
{
    assert_true(tow_test_exhaust(fill_names, NULL) >= 22);
}

TOW_TEST_MAIN(cmocka_unit_test(empty_map_finds_and_removes_nothing),
              cmocka_unit_test(map_finds_any_key),
              cmocka_unit_test(map_iterates_in_insertion_order),
              cmocka_unit_test(map_replaces_in_place_and_reinserts_at_the_end),
              cmocka_unit_test(map_allows_removal_while_iterating),
              cmocka_unit_test(map_used_as_a_queue_stays_small),
              cmocka_unit_test(map_shrinks_after_a_burst),
              cmocka_unit_test(map_full_of_holes_needs_no_memory),
              cmocka_unit_test(map_agrees_with_a_naive_model),
              cmocka_unit_test(map_survives_exhausted_memory),
              cmocka_unit_test(names_copy_their_keys),
              cmocka_unit_test(names_with_equal_hashes_stay_apart),
              cmocka_unit_test(names_survive_exhausted_memory))
