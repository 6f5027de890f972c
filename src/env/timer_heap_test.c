#include "base/testing.h"

#include "env/timer_heap.h"

#define TIMER_COUNT 200

static void never(tow_timer_t *timer)
{
    (void)timer;
    fail_msg("a heap does not fire timers");
}

static void timers_leave_in_order_of_deadline(void **state)
{
    (void)state;
    static const int64_t deadlines[] = {50, 10, 40, 10, 30};
    tow_timer_t timers[TOW_COUNT_OF(deadlines)];
    tow_timer_heap_t heap = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(deadlines); i++) {
        timers[i] = (tow_timer_t){.fire = never, .deadline_ns = deadlines[i]};
        tow_timer_heap_arm(&heap, &timers[i], i);
    }
    static const size_t expected[] = {1, 3, 4, 2, 0};
    for (size_t i = 0; i < TOW_COUNT_OF(expected); i++) {
        tow_timer_t *first = tow_timer_heap_first(&heap);
        assert_ptr_equal(first, &timers[expected[i]]);
        tow_timer_heap_disarm(&heap, first);
        tow_timer_heap_check(&heap);
        assert_false(tow_timer_is_armed(first));
    }
    assert_null(tow_timer_heap_first(&heap));
}

static tow_timer_t *soonest_of(tow_timer_t *timers)
{
    tow_timer_t *best = NULL;
    for (size_t i = 0; i < TIMER_COUNT; i++) {
        tow_timer_t *timer = &timers[i];
        if (!tow_timer_is_armed(timer)) continue;
        if (best == NULL || timer->deadline_ns < best->deadline_ns ||
            (timer->deadline_ns == best->deadline_ns &&
             timer->private_.sequence < best->private_.sequence))
            best = timer;
    }
    return best;
}

static void random_arming_and_stopping_agrees_with_a_scan(void **state)
{
    (void)state;
    static tow_timer_t timers[TIMER_COUNT];
    tow_timer_heap_t heap = {0};
    tow_random_t random;
    tow_random_init(&random, 42);
    for (uint64_t step = 0; step < 20000; step++) {
        tow_timer_t *timer = &timers[tow_random_below(&random, TIMER_COUNT)];
        if (tow_random_below(&random, 3) > 0) {
            timer->fire = never;
            timer->deadline_ns = (int64_t)tow_random_below(&random, 64);
            tow_timer_heap_arm(&heap, timer, step);
        } else if (tow_timer_is_armed(timer)) {
            tow_timer_heap_disarm(&heap, timer);
        }
        assert_ptr_equal(tow_timer_heap_first(&heap), soonest_of(timers));
        tow_timer_heap_check(&heap);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(timers_leave_in_order_of_deadline),
              cmocka_unit_test(random_arming_and_stopping_agrees_with_a_scan))
