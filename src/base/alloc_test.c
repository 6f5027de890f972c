#include "base/testing.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

static void alloc_counts_what_is_live(void **state)
{
    int64_t before = tow_alloc_live_count();
    void *a = tow_malloc(1);
    void *b = tow_calloc(3, 5);
    void *c = tow_realloc(NULL, 7);
    void *d = tow_aligned_alloc(64, 100);
    char *e = tow_strdup("towpath");
    assert_int_equal(tow_alloc_live_count(), before + 5);
    c = tow_realloc(c, 7000);
    assert_int_equal(tow_alloc_live_count(), before + 5);
    tow_free(a);
    tow_free(b);
    tow_free(c);
    tow_free(d);
    tow_free(e);
    tow_free(NULL);
    assert_int_equal(tow_alloc_live_count(), before);
}

static void alloc_aligns_and_copies(void **state)
{
    void *aligned = tow_aligned_alloc(4096, 1);
    assert_non_null(aligned);
    assert_int_equal((uintptr_t)aligned % 4096, 0);
    tow_free(aligned);
    char *copy = tow_strdup("barge");
    assert_string_equal(copy, "barge");
    tow_free(copy);
}

static void alloc_fails_the_nth_request_once(void **state)
{
    tow_alloc_fail_after(2);
    void *first = tow_malloc(8);
    void *second = tow_malloc(8);
    assert_false(tow_alloc_has_failed());
    assert_null(tow_malloc(8));
    assert_true(tow_alloc_has_failed());
    void *fourth = tow_malloc(8);
    assert_non_null(first);
    assert_non_null(second);
    assert_non_null(fourth);
    tow_alloc_fail_after(UINT64_MAX);
    assert_false(tow_alloc_has_failed());
    tow_free(first);
    tow_free(second);
    tow_free(fourth);
}

static void refused_realloc_keeps_the_old_block(void **state)
{
    char *text = tow_strdup("kept");
    tow_alloc_fail_after(0);
    assert_null(tow_realloc(text, 1000));
    tow_alloc_fail_after(UINT64_MAX);
    assert_string_equal(text, "kept");
    tow_free(text);
}

static void realloc_to_nothing_still_owns_a_block(void **state)
{
    int64_t before = tow_alloc_live_count();
    void *memory = tow_realloc(tow_malloc(10), 0);
    assert_non_null(memory);
    assert_int_equal(tow_alloc_live_count(), before + 1);
    tow_free(memory);
    assert_int_equal(tow_alloc_live_count(), before);
}

/* Volatile, so that compilers do not warn about what the test is about. */
static volatile size_t all_of_memory = SIZE_MAX;

static void impossible_sizes_are_refused(void **state)
{
    assert_null(tow_aligned_alloc(64, all_of_memory - 8));
    assert_null(tow_calloc(all_of_memory / 2, 3));
}

typedef struct visit {
    int call_count;
    bool saw_both_granted;
} visit_t;

static tow_exhaust_result_t take_two(void *context)
{
    visit_t *visit = context;
    visit->call_count++;
    void *first = tow_malloc(1);
    void *second = first == NULL ? NULL : tow_malloc(1);
    visit->saw_both_granted = second != NULL;
    tow_free(first);
    tow_free(second);
    return visit->saw_both_granted ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void exhaust_refuses_each_allocation_in_turn(void **state)
{
    visit_t visit = {0};
    assert_int_equal(tow_test_exhaust(take_two, &visit), 2);
    assert_int_equal(visit.call_count, 3);
    assert_true(visit.saw_both_granted);
}

TOW_TEST_MAIN(cmocka_unit_test(alloc_counts_what_is_live),
              cmocka_unit_test(alloc_aligns_and_copies),
              cmocka_unit_test(alloc_fails_the_nth_request_once),
              cmocka_unit_test(refused_realloc_keeps_the_old_block),
              cmocka_unit_test(realloc_to_nothing_still_owns_a_block),
              cmocka_unit_test(impossible_sizes_are_refused),
              cmocka_unit_test(exhaust_refuses_each_allocation_in_turn))
