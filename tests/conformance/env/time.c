/* The clock and its timers. */
#include "probe.h"

#include <stdlib.h>
#include <time.h>

#define MS INT64_C(1000000)

typedef struct timer_probe {
    tow_timer_t timer;
    tow_env_t *env;
    int fire_count;
    int order; /* of the last fire, among all probes of the log */
    int64_t fired_ns;
    int *fire_clock; /* lent: counts fires of all probes */
    void (*hook)(struct timer_probe *probe);
    void *context;
} timer_probe_t;

static void count_fire(tow_timer_t *timer)
{
    timer_probe_t *probe = TOW_CONTAINER_OF(timer, timer_probe_t, timer);
    tow_env_t *env = probe->env;
    turn_enter(env);
    if (tow_timer_is_armed(timer)) fail_msg("a timer is armed while it fires");
    if (tow_env_now_ns(env) < timer->deadline_ns)
        fail_msg("a timer fired %lld ns early",
                 (long long)(timer->deadline_ns - tow_env_now_ns(env)));
    probe->fire_count++;
    probe->fired_ns = tow_env_now_ns(env);
    probe->order = (*probe->fire_clock)++;
    if (probe->hook != NULL) probe->hook(probe);
    turn_leave(env);
}

static void timer_probe_init(timer_probe_t *probe, tow_env_t *env,
                             int *fire_clock)
{
    *probe = (timer_probe_t){
        .timer.fire = count_fire, .env = env, .fire_clock = fire_clock};
}

static void start_in(timer_probe_t *probe, int64_t delay_ns)
{
    call_enter();
    tow_env_timer_start(probe->env, &probe->timer,
                        tow_env_now_ns(probe->env) + delay_ns);
    call_leave();
    assert_true(tow_timer_is_armed(&probe->timer));
}

static void stop(timer_probe_t *probe)
{
    call_enter();
    tow_env_timer_stop(probe->env, &probe->timer);
    call_leave();
    assert_false(tow_timer_is_armed(&probe->timer));
}

static void waste_time(timer_probe_t *probe)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 * MS +
                 (now.tv_nsec - begin.tv_nsec) <
             3 * MS);
}

/* turn_leave, called after the hook, checks this. */
static void time_stands_still_within_a_turn(void **state)
{
    world_t *world = world_create(1);
    int fire_clock = 0;
    timer_probe_t probe;
    timer_probe_init(&probe, world_env(world, 0), &fire_clock);
    probe.hook = waste_time;
    start_in(&probe, MS);
    WORLD_UNTIL(world, probe.fire_count == 1);
    world_destroy(world);
}

static void start_again_in_1_ms(timer_probe_t *probe)
{
    start_in(probe, MS);
}

/* turn_enter, in each fire, checks that it does not go back. */
static void time_moves_on_between_turns(void **state)
{
    world_t *world = world_create(2);
    int fire_clock = 0;
    timer_probe_t probes[2];
    int64_t begin_ns[2];
    for (size_t i = 0; i < 2; i++) {
        timer_probe_init(&probes[i], world_env(world, i), &fire_clock);
        probes[i].hook = start_again_in_1_ms;
        begin_ns[i] = tow_env_now_ns(probes[i].env);
        start_in(&probes[i], MS);
    }
    WORLD_UNTIL(world,
                probes[0].fire_count >= 20 && probes[1].fire_count >= 20);
    for (size_t i = 0; i < 2; i++) {
        assert_true(probes[i].fired_ns - begin_ns[i] >= 20 * MS);
        stop(&probes[i]);
    }
    world_destroy(world);
}

static void timers_fire_in_order_of_deadline(void **state)
{
    world_t *world = world_create(1);
    static const int64_t delays_ms[] = {7, 1, 5, 3, 0, 6, 2, 4};
    timer_probe_t probes[TOW_COUNT_OF(delays_ms)];
    int fire_clock = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++) {
        timer_probe_init(&probes[i], world_env(world, 0), &fire_clock);
        start_in(&probes[i], delays_ms[i] * MS);
    }
    WORLD_UNTIL(world, fire_clock == TOW_COUNT_OF(probes));
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++)
        assert_int_equal(probes[i].order, delays_ms[i]);
    world_destroy(world);
}

static void equal_deadlines_fire_in_order_of_start(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t probes[100];
    int fire_clock = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++) {
        timer_probe_init(&probes[i], world_env(world, 0), &fire_clock);
        start_in(&probes[i], MS);
    }
    WORLD_UNTIL(world, fire_clock == TOW_COUNT_OF(probes));
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++)
        assert_int_equal(probes[i].order, i);
    world_destroy(world);
}

static void rearmed_timer_is_the_last_of_its_deadline(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t probes[3];
    int fire_clock = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++) {
        timer_probe_init(&probes[i], world_env(world, 0), &fire_clock);
        start_in(&probes[i], MS);
    }
    start_in(&probes[0], MS);
    WORLD_UNTIL(world, fire_clock == TOW_COUNT_OF(probes));
    assert_int_equal(probes[1].order, 0);
    assert_int_equal(probes[2].order, 1);
    assert_int_equal(probes[0].order, 2);
    world_destroy(world);
}

static void rearmed_timer_fires_once_at_the_new_deadline(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t later, sooner, mark;
    int fire_clock = 0;
    timer_probe_init(&later, world_env(world, 0), &fire_clock);
    timer_probe_init(&sooner, world_env(world, 0), &fire_clock);
    timer_probe_init(&mark, world_env(world, 0), &fire_clock);
    start_in(&later, MS);
    start_in(&sooner, 60000 * MS);
    start_in(&mark, 4 * MS);
    start_in(&later, 8 * MS);
    start_in(&sooner, 2 * MS);
    WORLD_UNTIL(world, fire_clock == 3);
    assert_int_equal(sooner.order, 0);
    assert_int_equal(mark.order, 1);
    assert_int_equal(later.order, 2);
    world_settle(world);
    assert_int_equal(fire_clock, 3);
    world_destroy(world);
}

static void stopped_timer_never_fires(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t stopped, mark, never_started;
    int fire_clock = 0;
    timer_probe_init(&stopped, world_env(world, 0), &fire_clock);
    timer_probe_init(&mark, world_env(world, 0), &fire_clock);
    timer_probe_init(&never_started, world_env(world, 0), &fire_clock);
    start_in(&stopped, MS);
    start_in(&mark, 3 * MS);
    stop(&stopped);
    stop(&stopped);
    stop(&never_started);
    WORLD_UNTIL(world, mark.fire_count == 1);
    assert_int_equal(stopped.fire_count, 0);
    assert_int_equal(never_started.fire_count, 0);
    world_destroy(world);
}

static void stop_the_other(timer_probe_t *probe)
{
    stop(probe->context);
}

/* Both are due at once, so an env that first collects due timers and then fires
 * them fails here. */
static void due_timer_stopped_by_a_callback_does_not_fire(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t first, second, mark;
    int fire_clock = 0;
    timer_probe_init(&first, world_env(world, 0), &fire_clock);
    timer_probe_init(&second, world_env(world, 0), &fire_clock);
    timer_probe_init(&mark, world_env(world, 0), &fire_clock);
    first.hook = stop_the_other;
    first.context = &second;
    start_in(&first, MS);
    start_in(&second, MS);
    start_in(&mark, MS);
    WORLD_UNTIL(world, mark.fire_count == 1);
    assert_int_equal(first.fire_count, 1);
    assert_int_equal(second.fire_count, 0);
    world_destroy(world);
}

static void passed_deadline_fires_in_the_next_turn(void **state)
{
    world_t *world = world_create(1);
    tow_env_t *env = world_env(world, 0);
    int64_t deadlines_ns[] = {INT64_MIN, -1, 0, tow_env_now_ns(env) - MS,
                              tow_env_now_ns(env)};
    timer_probe_t probes[TOW_COUNT_OF(deadlines_ns)];
    int fire_clock = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++) {
        timer_probe_init(&probes[i], env, &fire_clock);
        call_enter();
        tow_env_timer_start(env, &probes[i].timer, deadlines_ns[i]);
        call_leave();
        assert_int_equal(probes[i].fire_count, 0);
    }
    WORLD_UNTIL(world, fire_clock == TOW_COUNT_OF(probes));
    world_destroy(world);
}

static void start_the_other_now(timer_probe_t *probe)
{
    timer_probe_t *other = probe->context;
    start_in(other, 0);
    assert_int_equal(other->fire_count, 0);
}

static void timer_started_for_now_in_a_callback_fires_after_it(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t first, second;
    int fire_clock = 0;
    timer_probe_init(&first, world_env(world, 0), &fire_clock);
    timer_probe_init(&second, world_env(world, 0), &fire_clock);
    first.hook = start_the_other_now;
    first.context = &second;
    start_in(&first, MS);
    WORLD_UNTIL(world, second.fire_count == 1);
    world_destroy(world);
}

static void timer_at_never_does_not_fire(void **state)
{
    world_t *world = world_create(1);
    timer_probe_t never, mark;
    int fire_clock = 0;
    timer_probe_init(&never, world_env(world, 0), &fire_clock);
    timer_probe_init(&mark, world_env(world, 0), &fire_clock);
    call_enter();
    tow_env_timer_start(never.env, &never.timer, TOW_TIME_NEVER);
    call_leave();
    start_in(&mark, 5 * MS);
    WORLD_UNTIL(world, mark.fire_count == 1);
    assert_int_equal(never.fire_count, 0);
    assert_true(tow_timer_is_armed(&never.timer));
    stop(&never);
    world_destroy(world);
}

typedef struct self_freeing {
    tow_timer_t timer;
    tow_env_t *env;
    int *freed_count;
} self_freeing_t;

static void free_itself(tow_timer_t *timer)
{
    self_freeing_t *self = TOW_CONTAINER_OF(timer, self_freeing_t, timer);
    tow_env_t *env = self->env;
    turn_enter(env);
    (*self->freed_count)++;
    memset(self, 0xa5, sizeof(*self));
    free(self);
    turn_leave(env);
}

static void timer_may_be_freed_when_it_fires(void **state)
{
    world_t *world = world_create(1);
    int freed_count = 0;
    for (int i = 0; i < 100; i++) {
        self_freeing_t *self = calloc(1, sizeof(*self));
        self->timer.fire = free_itself;
        self->env = world_env(world, 0);
        self->freed_count = &freed_count;
        tow_env_timer_start(self->env, &self->timer,
                            tow_env_now_ns(self->env) + i % 3 * MS);
    }
    WORLD_UNTIL(world, freed_count == 100);
    world_destroy(world);
}

static void start_again_now(timer_probe_t *probe)
{
    start_in(probe, 0);
}

static void timer_that_is_always_due_starves_no_other_event(void **state)
{
    world_t *world = world_create(2);
    timer_probe_t busy, patient;
    int fire_clock = 0;
    timer_probe_init(&busy, world_env(world, 0), &fire_clock);
    timer_probe_init(&patient, world_env(world, 0), &fire_clock);
    busy.hook = start_again_now;
    if (world_can(world, WORLD_VIRTUAL_TIME)) busy.hook = start_again_in_1_ms;
    start_in(&busy, 0);
    start_in(&patient, 5 * MS);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 0);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 1), acceptor.listener->address);
    WORLD_UNTIL(world, link.up_count == 1 && patient.fire_count == 1);
    stop(&busy);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

/* -- Many timers against a model ------------------------------------------ */

#define MANY_COUNT 20000

static int by_deadline_then_start(const void *left, const void *right)
{
    const timer_probe_t *a = *(timer_probe_t *const *)left;
    const timer_probe_t *b = *(timer_probe_t *const *)right;
    if (a->timer.deadline_ns != b->timer.deadline_ns)
        return a->timer.deadline_ns < b->timer.deadline_ns ? -1 : 1;
    intptr_t a_start = (intptr_t)a->context, b_start = (intptr_t)b->context;
    return a_start < b_start ? -1 : a_start > b_start;
}

static void start_stop_and_restart(timer_probe_t *probes, tow_env_t *env,
                                   tow_random_t *random)
{
    intptr_t start_clock = 0;
    for (int i = 0; i < 3 * MANY_COUNT; i++) {
        timer_probe_t *probe = &probes[tow_random_below(random, MANY_COUNT)];
        if (tow_random_below(random, 4) == 0) {
            tow_env_timer_stop(env, &probe->timer);
            continue;
        }
        int64_t delay_ns = (int64_t)tow_random_below(random, 500) * MS / 25;
        tow_env_timer_start(env, &probe->timer, tow_env_now_ns(env) + delay_ns);
        probe->context = (void *)start_clock++;
    }
}

static void thousands_of_timers_fire_in_order(void **state)
{
    world_t *world = world_create(1);
    tow_env_t *env = world_env(world, 0);
    tow_random_t random;
    tow_random_init(&random, 3);
    timer_probe_t *probes = calloc(MANY_COUNT, sizeof(*probes));
    timer_probe_t **armed = calloc(MANY_COUNT, sizeof(timer_probe_t *));
    int fire_clock = 0;
    for (int i = 0; i < MANY_COUNT; i++)
        timer_probe_init(&probes[i], env, &fire_clock);
    start_stop_and_restart(probes, env, &random);
    int armed_count = 0;
    for (int i = 0; i < MANY_COUNT; i++) {
        if (tow_timer_is_armed(&probes[i].timer))
            armed[armed_count++] = &probes[i];
    }
    qsort(armed, armed_count, sizeof(timer_probe_t *), by_deadline_then_start);
    assert_true(armed_count > MANY_COUNT / 2);
    WORLD_UNTIL(world, fire_clock >= armed_count);
    world_settle(world);
    assert_int_equal(fire_clock, armed_count);
    for (int i = 0; i < armed_count; i++)
        assert_int_equal(armed[i]->order, i);
    world_destroy(world);
    free(armed);
    free(probes);
}

/* -- Random numbers and names --------------------------------------------- */

static void nodes_draw_different_random_numbers(void **state)
{
    world_t *world = world_create(2);
    uint64_t first = tow_random_next(tow_env_random(world_env(world, 0)));
    uint64_t second = tow_random_next(tow_env_random(world_env(world, 1)));
    assert_true(first != second);
    assert_true(first != tow_random_next(tow_env_random(world_env(world, 0))));
    world_destroy(world);
}

static void env_knows_its_name(void **state)
{
    world_t *world = world_create(2);
    assert_string_equal(world_env(world, 0)->name, world_node_name(0));
    assert_string_equal(world_env(world, 1)->name, world_node_name(1));
    world_destroy(world);
}

SUITE(time, CONFORMANCE_TEST(time_stands_still_within_a_turn),
      CONFORMANCE_TEST(time_moves_on_between_turns),
      CONFORMANCE_TEST(timers_fire_in_order_of_deadline),
      CONFORMANCE_TEST(equal_deadlines_fire_in_order_of_start),
      CONFORMANCE_TEST(rearmed_timer_is_the_last_of_its_deadline),
      CONFORMANCE_TEST(rearmed_timer_fires_once_at_the_new_deadline),
      CONFORMANCE_TEST(stopped_timer_never_fires),
      CONFORMANCE_TEST(due_timer_stopped_by_a_callback_does_not_fire),
      CONFORMANCE_TEST(passed_deadline_fires_in_the_next_turn),
      CONFORMANCE_TEST(timer_started_for_now_in_a_callback_fires_after_it),
      CONFORMANCE_TEST(timer_at_never_does_not_fire),
      CONFORMANCE_TEST(timer_may_be_freed_when_it_fires),
      CONFORMANCE_TEST(timer_that_is_always_due_starves_no_other_event),
      CONFORMANCE_TEST(thousands_of_timers_fire_in_order),
      CONFORMANCE_TEST(nodes_draw_different_random_numbers),
      CONFORMANCE_TEST(env_knows_its_name))
