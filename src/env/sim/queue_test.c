#include "base/testing.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/random.h"
#include "env/sim/queue_impl.h"

/* The queue never dereferences a source: any address will do. */
static tow_sim_source_t *number(uintptr_t n)
{
    return (tow_sim_source_t *)(n * 16 + 16);
}

static void push(tow_sim_queue_t *queue, int64_t time_ns, uintptr_t n)
{
    assert_true(tow_sim_queue_push(queue, time_ns, number(n)));
}

static void expect_first(tow_sim_queue_t *queue, int64_t time_ns, uintptr_t n)
{
    assert_int_equal(tow_sim_queue_first(queue)->time_ns, time_ns);
    assert_ptr_equal(tow_sim_queue_first(queue)->source, number(n));
}

static void equal_times_leave_in_order_of_entry(void **state)
{
    (void)state;
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    for (uintptr_t i = 0; i < 100; i++)
        push(&queue, 5, i);
    push(&queue, 4, 100);
    expect_first(&queue, 4, 100);
    tow_sim_queue_pop(&queue);
    for (uintptr_t i = 0; i < 100; i++) {
        expect_first(&queue, 5, i);
        tow_sim_queue_pop(&queue);
    }
    assert_null(tow_sim_queue_first(&queue));
    tow_sim_queue_deinit(&queue);
}

static void a_postponed_entry_is_behind_entries_of_equal_time(void **state)
{
    (void)state;
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    push(&queue, 1, 0);
    push(&queue, 2, 1);
    push(&queue, 2, 2);
    expect_first(&queue, 1, 0);
    tow_sim_queue_postpone(&queue, 2);
    static const uintptr_t expected[] = {1, 2, 0};
    for (size_t i = 0; i < TOW_COUNT_OF(expected); i++) {
        expect_first(&queue, 2, expected[i]);
        tow_sim_queue_pop(&queue);
    }
    tow_sim_queue_deinit(&queue);
}

static void times_never_go_back_in_a_random_run(void **state)
{
    (void)state;
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    tow_random_t random;
    tow_random_init(&random, 1);
    int64_t now_ns = 0;
    uint64_t last_sequence = 0;
    push(&queue, 0, 0);
    for (int step = 0; step < 20000 && queue.count > 0; step++) {
        const tow_sim_queue_entry_t *first = tow_sim_queue_first(&queue);
        assert_true(first->time_ns >= now_ns);
        if (first->time_ns == now_ns && step > 0)
            assert_true(first->sequence > last_sequence);
        now_ns = first->time_ns;
        last_sequence = first->sequence;
        int64_t later_ns = now_ns + (int64_t)tow_random_below(&random, 50);
        for (uint64_t n = tow_random_below(&random, 3); n > 0; n--)
            push(&queue, now_ns + (int64_t)tow_random_below(&random, 50), n);
        if (tow_random_below(&random, 2) == 0)
            tow_sim_queue_postpone(&queue, later_ns);
        else
            tow_sim_queue_pop(&queue);
        if (step % 64 == 0) tow_sim_queue_check(&queue);
    }
    tow_sim_queue_deinit(&queue);
}

typedef struct expectation {
    int64_t time_ns;
    uintptr_t n;
} expectation_t;

static int by_time_then_entry(const void *left, const void *right)
{
    const expectation_t *a = left;
    const expectation_t *b = right;
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns ? -1 : 1;
    return a->n < b->n ? -1 : a->n > b->n;
}

static int64_t random_time(tow_random_t *random)
{
    /* All scales: the same instant, near days, far days, years. */
    uint64_t bits = tow_random_below(random, 56);
    return (int64_t)tow_random_below(random, UINT64_C(1) << bits);
}

static void times_of_all_scales_leave_in_order(void **state)
{
    (void)state;
    static expectation_t expected[5000];
    size_t count = TOW_COUNT_OF(expected);
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    tow_random_t random;
    tow_random_init(&random, 9);
    for (size_t i = 0; i < count; i++) {
        expected[i] = (expectation_t){random_time(&random), i};
        push(&queue, expected[i].time_ns, i);
    }
    qsort(expected, count, sizeof(expected[0]), by_time_then_entry);
    for (size_t i = 0; i < count; i++) {
        expect_first(&queue, expected[i].time_ns, expected[i].n);
        tow_sim_queue_pop(&queue);
    }
    assert_null(tow_sim_queue_first(&queue));
    assert_true(tow_sim_queue_bytes(&queue) >=
                count * sizeof(tow_sim_queue_entry_t));
    tow_sim_queue_deinit(&queue);
}

static void an_entry_before_the_refilled_day_is_first(void **state)
{
    (void)state;
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    push(&queue, INT64_C(1) << 40, 0);
    expect_first(&queue, INT64_C(1) << 40, 0);
    push(&queue, 5, 1);
    push(&queue, (INT64_C(1) << 40) + 1000000, 2);
    push(&queue, 4, 3);
    expect_first(&queue, 4, 3);
    tow_sim_queue_pop(&queue);
    expect_first(&queue, 5, 1);
    tow_sim_queue_postpone(&queue, (INT64_C(1) << 40) + 2000000);
    static const uintptr_t expected[] = {0, 2, 1};
    for (size_t i = 0; i < TOW_COUNT_OF(expected); i++) {
        assert_ptr_equal(tow_sim_queue_first(&queue)->source,
                         number(expected[i]));
        tow_sim_queue_pop(&queue);
    }
    tow_sim_queue_deinit(&queue);
}

static void the_order_holds_without_memory_for_days(void **state)
{
    (void)state;
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    push(&queue, 10000, 0); /* Allocates both heaps, and one chunk. */
    tow_alloc_fail_after(0);
    push(&queue, 9000, 1); /* Another day of the same slab. */
    tow_alloc_fail_after(UINT64_MAX);
    queue.chunks.object_count_max = queue.chunks.made_count;
    push(&queue, 30000, 2);
    push(&queue, 20000, 3);
    static const uintptr_t expected[] = {1, 0, 3, 2};
    for (size_t i = 0; i < TOW_COUNT_OF(expected); i++) {
        assert_ptr_equal(tow_sim_queue_first(&queue)->source,
                         number(expected[i]));
        tow_sim_queue_pop(&queue);
    }
    tow_sim_queue_deinit(&queue);
}

static void a_push_without_memory_changes_nothing(void **state)
{
    (void)state;
    tow_sim_queue_t queue;
    tow_sim_queue_init(&queue);
    tow_alloc_fail_after(0);
    assert_false(tow_sim_queue_push(&queue, 1, number(0)));
    tow_alloc_fail_after(UINT64_MAX);
    assert_null(tow_sim_queue_first(&queue));
    push(&queue, 1, 0);
    tow_sim_queue_deinit(&queue);
}

TOW_TEST_MAIN(
    cmocka_unit_test(equal_times_leave_in_order_of_entry),
    cmocka_unit_test(a_postponed_entry_is_behind_entries_of_equal_time),
    cmocka_unit_test(times_never_go_back_in_a_random_run),
    cmocka_unit_test(times_of_all_scales_leave_in_order),
    cmocka_unit_test(an_entry_before_the_refilled_day_is_first),
    cmocka_unit_test(the_order_holds_without_memory_for_days),
    cmocka_unit_test(a_push_without_memory_changes_nothing))
