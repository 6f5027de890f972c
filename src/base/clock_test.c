#include "base/testing.h"

#include <stdbool.h>
#include <time.h>

#include "base/clock.h"
#include "base/tuning.h"

static int64_t kernel_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The reading lies between two of the kernel's, so a pause anywhere does no
 * harm; the slack is for the rate's error, and is a thousand times of what was
 * seen. */
static void check_against_kernel(tow_fast_clock_t *clock, int64_t *last_ns)
{
    const int64_t slack_ns = 1000000;
    int64_t before_ns = kernel_now_ns();
    int64_t now_ns = tow_fast_clock_now_ns(clock);
    int64_t after_ns = kernel_now_ns();
    assert_true(now_ns >= *last_ns);
    assert_true(now_ns >= before_ns - slack_ns);
    assert_true(now_ns <= after_ns + slack_ns);
    *last_ns = now_ns;
}

static void check_for_windows(tow_fast_clock_t *clock, int64_t *last_ns,
                              int window_count)
{
    int64_t end_ns =
        kernel_now_ns() + window_count * (int64_t)TOW_TRACE_ANCHOR_WINDOW_NS;
    while (kernel_now_ns() < end_ns)
        check_against_kernel(clock, last_ns);
}

static void fast_clock_follows_the_kernel_and_never_steps_back(void **state)
{
    tow_fast_clock_t clock;
    tow_fast_clock_init(&clock);
    int64_t last_ns = 0;
    check_for_windows(&clock, &last_ns, 5);
}

static void fast_clock_without_ticks_asks_the_kernel(void **state)
{
    tow_fast_clock_t clock;
    tow_fast_clock_init(&clock);
    clock.uses_ticks = false;
    int64_t last_ns = 0;
    for (int i = 0; i < 100; i++)
        check_against_kernel(&clock, &last_ns);
}

/* As when the machine slept, or moved to one whose counter began elsewhere. */
static void fast_clock_survives_a_counter_that_jumped(void **state)
{
    tow_fast_clock_t clock;
    tow_fast_clock_init(&clock);
    int64_t last_ns = 0;
    clock.anchor_ticks += (uint64_t)1 << 60; /* Before the rate is known. */
    check_for_windows(&clock, &last_ns, 3);
    clock.anchor_ticks += (uint64_t)1 << 60;
    check_for_windows(&clock, &last_ns, 3);
    clock.anchor_ticks -= (uint64_t)1 << 40;
    check_for_windows(&clock, &last_ns, 3);
}

TOW_TEST_MAIN(
    cmocka_unit_test(fast_clock_follows_the_kernel_and_never_steps_back),
    cmocka_unit_test(fast_clock_without_ticks_asks_the_kernel),
    cmocka_unit_test(fast_clock_survives_a_counter_that_jumped))
