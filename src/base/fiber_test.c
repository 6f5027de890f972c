#include "base/testing.h"

#include <pthread.h>
#include <string.h>

#include "base/fiber.h"

#define STACK_BYTES (256u << 10)

static int fiber_set_up(void **state)
{
    (void)state;
    if (!tow_fiber_is_supported()) {
        print_message("skipped: no fibers on this machine\n");
        skip();
    }
    return 0;
}

typedef struct counter {
    int count;
    int end;
} counter_t;

static void count_and_pass(void *argument)
{
    counter_t *counter = argument;
    while (counter->count < counter->end) {
        counter->count++;
        tow_fiber_yield();
    }
}

static void fiber_goes_on_where_it_passed(void **state)
{
    tow_fiber_t *fiber = tow_fiber_create(STACK_BYTES);
    assert_non_null(fiber);
    counter_t counter = {.end = 1000};
    tow_fiber_start(fiber, count_and_pass, &counter);
    for (int i = 1; i <= 1000; i++) {
        assert_false(tow_fiber_resume(fiber));
        assert_int_equal(counter.count, i);
    }
    assert_true(tow_fiber_resume(fiber));
    tow_fiber_destroy(fiber);
}

static void fiber_that_has_ended_may_start_again(void **state)
{
    tow_fiber_t *fiber = tow_fiber_create(STACK_BYTES);
    for (int i = 0; i < 1000; i++) {
        counter_t counter = {.end = i % 3};
        tow_fiber_start(fiber, count_and_pass, &counter);
        int resumed = 1;
        while (!tow_fiber_resume(fiber))
            resumed++;
        assert_int_equal(resumed, i % 3 + 1);
    }
    tow_fiber_destroy(fiber);
}

static void fibers_take_turns(void **state)
{
    enum {
        COUNT = 64
    };
    tow_fiber_t *fibers[COUNT];
    counter_t counters[COUNT];
    for (int i = 0; i < COUNT; i++) {
        fibers[i] = tow_fiber_create(STACK_BYTES);
        assert_non_null(fibers[i]);
        counters[i] = (counter_t){.end = i};
        tow_fiber_start(fibers[i], count_and_pass, &counters[i]);
    }
    for (int round = 0; round <= COUNT; round++)
        for (int i = 0; i < COUNT; i++)
            if (round <= i)
                assert_int_equal(tow_fiber_resume(fibers[i]), round == i);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(counters[i].count, i);
        tow_fiber_destroy(fibers[i]);
    }
}

static void note_current(void *argument)
{
    tow_fiber_t **noted = argument;
    *noted = tow_fiber_current();
    tow_fiber_yield();
    assert_ptr_equal(tow_fiber_current(), *noted);
}

static void fiber_knows_itself(void **state)
{
    tow_fiber_t *fiber = tow_fiber_create(STACK_BYTES);
    tow_fiber_t *noted = NULL;
    assert_null(tow_fiber_current());
    tow_fiber_start(fiber, note_current, &noted);
    assert_false(tow_fiber_resume(fiber));
    assert_ptr_equal(noted, fiber);
    assert_null(tow_fiber_current());
    assert_true(tow_fiber_resume(fiber));
    tow_fiber_destroy(fiber);
}

static void resume_another(void *argument)
{
    tow_fiber_t *inner = argument;
    tow_fiber_t *self = tow_fiber_current();
    while (!tow_fiber_resume(inner)) {
        assert_ptr_equal(tow_fiber_current(), self);
        tow_fiber_yield();
    }
}

static void fiber_resumes_another(void **state)
{
    tow_fiber_t *outer = tow_fiber_create(STACK_BYTES);
    tow_fiber_t *inner = tow_fiber_create(STACK_BYTES);
    counter_t counter = {.end = 5};
    tow_fiber_start(inner, count_and_pass, &counter);
    tow_fiber_start(outer, resume_another, inner);
    int resumed = 1;
    while (!tow_fiber_resume(outer))
        resumed++;
    assert_int_equal(resumed, 6);
    assert_int_equal(counter.count, 5);
    tow_fiber_destroy(inner);
    tow_fiber_destroy(outer);
}

/* -- Floating point -------------------------------------------------------- */

#if defined(__x86_64__)
#define FLUSH_TO_ZERO 0x8000u

static unsigned get_control(void)
{
    return __builtin_ia32_stmxcsr();
}

static void set_control(unsigned control)
{
    __builtin_ia32_ldmxcsr(control);
}
#else
#define FLUSH_TO_ZERO (1u << 24)

static unsigned get_control(void)
{
    unsigned long control = 0;
#if defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
#endif
    return (unsigned)control;
}

static void set_control(unsigned control)
{
#if defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((unsigned long)control));
#else
    (void)control;
#endif
}
#endif

/* XLA computes with denormals flushed, and others on the thread do not. */
static void flush_denormals(void *argument)
{
    (void)argument;
    const unsigned before = get_control();
    set_control(before | FLUSH_TO_ZERO);
    tow_fiber_yield();
    assert_int_equal(get_control(), before | FLUSH_TO_ZERO);
}

static void fiber_has_its_own_floating_point_control(void **state)
{
    tow_fiber_t *fiber = tow_fiber_create(STACK_BYTES);
    const unsigned before = get_control();
    tow_fiber_start(fiber, flush_denormals, NULL);
    assert_false(tow_fiber_resume(fiber));
    assert_int_equal(get_control(), before);
    assert_true(tow_fiber_resume(fiber));
    assert_int_equal(get_control(), before);
    tow_fiber_destroy(fiber);
}

static void use_much_stack(void *argument)
{
    volatile char bytes[STACK_BYTES / 2];
    memset((void *)bytes, 7, sizeof(bytes));
    tow_fiber_yield();
    long sum = 0;
    for (size_t i = 0; i < sizeof(bytes); i++)
        sum += bytes[i];
    *(long *)argument = sum;
}

static void fiber_keeps_its_stack(void **state)
{
    tow_fiber_t *fibers[2];
    long sums[2] = {0};
    for (int i = 0; i < 2; i++) {
        fibers[i] = tow_fiber_create(STACK_BYTES);
        tow_fiber_start(fibers[i], use_much_stack, &sums[i]);
        assert_false(tow_fiber_resume(fibers[i]));
    }
    for (int i = 0; i < 2; i++) {
        assert_true(tow_fiber_resume(fibers[i]));
        assert_int_equal(sums[i], 7l * (STACK_BYTES / 2));
        tow_fiber_destroy(fibers[i]);
    }
}

static void *run_whole(void *argument)
{
    tow_fiber_t *fiber = argument;
    counter_t counter = {.end = 3};
    tow_fiber_start(fiber, count_and_pass, &counter);
    while (!tow_fiber_resume(fiber)) {
    }
    assert_int_equal(counter.count, 3);
    return NULL;
}

static void fiber_starts_on_another_thread_than_before(void **state)
{
    tow_fiber_t *fiber = tow_fiber_create(STACK_BYTES);
    run_whole(fiber);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_whole, fiber), 0);
    pthread_join(thread, NULL);
    tow_fiber_destroy(fiber);
}

static void fiber_destroy_accepts_null(void **state)
{
    tow_fiber_destroy(NULL);
}

TOW_TEST_MAIN(cmocka_unit_test_setup(fiber_goes_on_where_it_passed,
                                     fiber_set_up),
              cmocka_unit_test_setup(fiber_that_has_ended_may_start_again,
                                     fiber_set_up),
              cmocka_unit_test_setup(fibers_take_turns, fiber_set_up),
              cmocka_unit_test_setup(fiber_knows_itself, fiber_set_up),
              cmocka_unit_test_setup(fiber_resumes_another, fiber_set_up),
              cmocka_unit_test_setup(fiber_has_its_own_floating_point_control,
                                     fiber_set_up),
              cmocka_unit_test_setup(fiber_keeps_its_stack, fiber_set_up),
              cmocka_unit_test_setup(fiber_starts_on_another_thread_than_before,
                                     fiber_set_up),
              cmocka_unit_test(fiber_destroy_accepts_null))
