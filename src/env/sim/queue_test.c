#include "base/testing.h"

#include "base/alloc.h"
#include "base/random.h"
#include "env/sim/queue_impl.h"

/* The queue never looks into a source: any address will do. */
static source_t *number(uintptr_t n)
{
    return (source_t *)(n * 16 + 16);
}

static void push(queue_t *queue, int64_t time_ns, uintptr_t n)
{
    assert_true(tow_sim_queue_push(queue, time_ns, number(n)));
}

static void expect_first(const queue_t *queue, int64_t time_ns, uintptr_t n)
{
    assert_int_equal(tow_sim_queue_first(queue)->time_ns, time_ns);
    assert_ptr_equal(tow_sim_queue_first(queue)->source, number(n));
}

static void equal_times_leave_in_order_of_entry(void **state)
{
    (void)state;
    queue_t queue = {0};
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

static void a_postponed_entry_stands_behind_its_equals(void **state)
{
    (void)state;
    queue_t queue = {0};
    push(&queue, 1, 0);
    push(&queue, 2, 1);
    push(&queue, 2, 2);
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
    queue_t queue = {0};
    tow_random_t random;
    tow_random_init(&random, 1);
    int64_t now_ns = 0;
    uint64_t last_sequence = 0;
    push(&queue, 0, 0);
    for (int step = 0; step < 20000 && queue.count > 0; step++) {
        const queue_entry_t *first = tow_sim_queue_first(&queue);
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
    }
    tow_sim_queue_deinit(&queue);
}

static void a_push_without_memory_changes_nothing(void **state)
{
    (void)state;
    queue_t queue = {0};
    tow_alloc_fail_after(0);
    assert_false(tow_sim_queue_push(&queue, 1, number(0)));
    tow_alloc_fail_after(UINT64_MAX);
    assert_null(tow_sim_queue_first(&queue));
    push(&queue, 1, 0);
    tow_sim_queue_deinit(&queue);
}

TOW_TEST_MAIN(cmocka_unit_test(equal_times_leave_in_order_of_entry),
              cmocka_unit_test(a_postponed_entry_stands_behind_its_equals),
              cmocka_unit_test(times_never_go_back_in_a_random_run),
              cmocka_unit_test(a_push_without_memory_changes_nothing))
