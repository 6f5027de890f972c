#include "env/sim/fixture_testing_impl.h"

#include <pthread.h>

/* -- Timers --------------------------------------------------------------- */

typedef struct alarm {
    tow_timer_t timer;
    tow_env_t *env;
    int64_t period_ns; /* 0: once */
    int fired_count;
    int64_t fired_ns;
    int order;
    int *next_order;
} alarm_t;

static void on_alarm(tow_timer_t *timer)
{
    alarm_t *alarm = TOW_CONTAINER_OF(timer, alarm_t, timer);
    alarm->fired_count++;
    alarm->fired_ns = tow_env_now_ns(alarm->env);
    if (alarm->next_order != NULL) alarm->order = (*alarm->next_order)++;
    if (alarm->period_ns > 0)
        tow_env_timer_start(alarm->env, timer,
                            alarm->fired_ns + alarm->period_ns);
}

static void timers_fire_in_order_of_deadline_then_of_start(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    static const int64_t deadlines[] = {30, 10, 20, 10, 0, 30};
    static const int expected[] = {4, 1, 3, 2, 0, 5};
    int next = 0;
    alarm_t alarms[6];
    for (int i = 0; i < 6; i++) {
        alarms[i] = (alarm_t){
            .timer.fire = on_alarm, .env = pair.a_env, .next_order = &next};
        tow_env_timer_start(pair.a_env, &alarms[i].timer, deadlines[i]);
        assert_true(tow_timer_is_armed(&alarms[i].timer));
    }
    run_idle(pair.sim);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(alarms[expected[i]].order, i);
        assert_int_equal(alarms[i].fired_ns, deadlines[i]);
    }
    pair_close(&pair);
}

static void a_timer_that_moves_fires_once_at_its_last_deadline(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    static const int64_t deadlines[] = {100, 50, 200, 10, 150};
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env};
    for (size_t i = 0; i < TOW_COUNT_OF(deadlines); i++)
        tow_env_timer_start(pair.a_env, &alarm.timer, deadlines[i]);
    run_idle(pair.sim);
    assert_int_equal(alarm.fired_count, 1);
    assert_int_equal(alarm.fired_ns, 150);
    pair_close(&pair);
}

static void a_stopped_timer_does_not_fire(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env};
    tow_env_timer_stop(pair.a_env, &alarm.timer);
    tow_env_timer_start(pair.a_env, &alarm.timer, 100);
    tow_env_timer_stop(pair.a_env, &alarm.timer);
    run_idle(pair.sim);
    assert_int_equal(alarm.fired_count, 0);
    assert_int_equal(tow_sim_counts(pair.sim).turns, 0);
    pair_close(&pair);
}

static void a_periodic_timer_keeps_its_time(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env, .period_ns = 7};
    tow_env_timer_start(pair.a_env, &alarm.timer, 7);
    run_until(pair.sim, 7000);
    assert_int_equal(alarm.fired_count, 1000);
    assert_int_equal(tow_sim_now_ns(pair.sim), 7000);
    assert_int_equal(tow_env_now_ns(pair.b_env), 7000);
    pair_close(&pair);
}

static void a_timer_at_never_does_not_fire(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env};
    tow_env_timer_start(pair.a_env, &alarm.timer, TOW_TIME_NEVER);
    run_idle(pair.sim);
    assert_int_equal(alarm.fired_count, 0);
    pair_close(&pair);
}

/* -- Posts ---------------------------------------------------------------- */

typedef struct posted {
    tow_post_t post;
    int order;
    int *next_order;
    tow_env_t *env;
    struct posted *follower; /* posted by `run` */
} posted_t;

static void on_post(tow_post_t *post)
{
    posted_t *posted = TOW_CONTAINER_OF(post, posted_t, post);
    posted->order = ++*posted->next_order;
    if (posted->follower != NULL)
        tow_env_post(posted->env, &posted->follower->post);
}

static void posts_run_in_order_and_never_within_the_call(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    int next = 0;
    posted_t posts[3];
    for (int i = 0; i < 3; i++)
        posts[i] = (posted_t){
            .post.run = on_post, .next_order = &next, .env = pair.a_env};
    posts[0].follower = &posts[2];
    tow_env_post(pair.a_env, &posts[0].post);
    tow_env_post(pair.a_env, &posts[1].post);
    assert_int_equal(next, 0);
    run_idle(pair.sim);
    for (int i = 0; i < 3; i++)
        assert_int_equal(posts[i].order, i + 1);
    assert_int_equal(tow_sim_counts(pair.sim).turns, 3);
    pair_close(&pair);
}

static void *post_from_outside(void *context)
{
    posted_t *posted = context;
    tow_env_post(posted->env, &posted->post);
    return NULL;
}

static void other_threads_may_post(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    int next = 0;
    posted_t posts[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        posts[i] = (posted_t){.post.run = on_post,
                              .next_order = &next,
                              .env = i % 2 ? pair.a_env : pair.b_env};
        assert_int_equal(
            pthread_create(&threads[i], NULL, post_from_outside, &posts[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(next, 0);
    run_idle(pair.sim);
    assert_int_equal(next, 4);
    pair_close(&pair);
}

/* Nothing else is due within the run. */
static void a_post_from_outside_is_due_before_later_events(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env};
    tow_env_timer_start(pair.a_env, &alarm.timer, 100 * MS);
    run_until(pair.sim, MS);
    int next = 0;
    posted_t posted = {
        .post.run = on_post, .next_order = &next, .env = pair.b_env};
    tow_env_post(posted.env, &posted.post);
    run_until(pair.sim, 2 * MS);
    assert_int_equal(next, 1);
    assert_int_equal(alarm.fired_count, 0);
    assert_int_equal(tow_sim_now_ns(pair.sim), 2 * MS);
    pair_close(&pair);
}

/* -- Work ----------------------------------------------------------------- */

typedef struct labour {
    tow_work_t work;
    tow_env_t *env;
    int run_count;
    int done_count;
    tow_code_t code;
    int64_t done_ns;
} labour_t;

static tow_status_t labour_run(tow_work_t *work)
{
    TOW_CONTAINER_OF(work, labour_t, work)->run_count++;
    return TOW_ERROR(TOW_ABORTED, "as ordered");
}

static void labour_done(tow_work_t *work, tow_status_t take_status)
{
    labour_t *labour = TOW_CONTAINER_OF(work, labour_t, work);
    labour->done_count++;
    labour->code = tow_status_code(take_status);
    labour->done_ns = tow_env_now_ns(labour->env);
    tow_status_release(take_status);
}

static labour_t labour_for(tow_env_t *env)
{
    return (labour_t){
        .work = {.run = labour_run, .done = labour_done, .cost_ns = MS},
        .env = env};
}

static void work_takes_its_cost(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    labour_t labour = labour_for(pair.a_env);
    tow_env_work_start(pair.a_env, &labour.work);
    assert_int_equal(labour.run_count, 0);
    run_until(pair.sim, MS - 1);
    assert_int_equal(labour.run_count, 1);
    assert_int_equal(labour.done_count, 0);
    run_idle(pair.sim);
    assert_int_equal(labour.done_count, 1);
    assert_int_equal(labour.code, TOW_ABORTED);
    assert_int_equal(labour.done_ns, MS);
    pair_close(&pair);
}

static void work_is_cancelled_only_before_it_begins(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    labour_t early = labour_for(pair.a_env);
    labour_t late = labour_for(pair.a_env);
    tow_env_work_start(pair.a_env, &early.work);
    tow_env_work_cancel(pair.a_env, &early.work);
    assert_int_equal(early.done_count, 0);
    tow_env_work_start(pair.a_env, &late.work);
    run_until(pair.sim, MS / 2);
    tow_env_work_cancel(pair.a_env, &late.work);
    run_idle(pair.sim);
    assert_int_equal(early.run_count, 0);
    assert_int_equal(early.done_count, 1);
    assert_int_equal(early.code, TOW_CANCELLED);
    assert_int_equal(late.run_count, 1);
    assert_int_equal(late.done_count, 1);
    assert_int_equal(late.code, TOW_ABORTED);
    pair_close(&pair);
}

static void a_frozen_process_begins_no_work(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    labour_t labour = labour_for(pair.a_env);
    tow_env_work_start(pair.a_env, &labour.work);
    tow_sim_pause(pair.a);
    run_until(pair.sim, SECOND);
    assert_int_equal(labour.run_count, 0);
    tow_sim_resume(pair.a);
    run_idle(pair.sim);
    assert_int_equal(labour.done_ns, SECOND + MS);
    pair_close(&pair);
}

static void a_crash_discards_timers_posts_and_work(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, (tow_sim_options_t){0});
    int next = 0;
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env};
    posted_t posted = {.post.run = on_post, .next_order = &next};
    labour_t begun = labour_for(pair.a_env);
    labour_t waiting = labour_for(pair.a_env);
    tow_env_timer_start(pair.a_env, &alarm.timer, SECOND);
    tow_env_work_start(pair.a_env, &begun.work);
    run_until(pair.sim, 1);
    tow_env_work_start(pair.a_env, &waiting.work);
    tow_env_post(pair.a_env, &posted.post);
    tow_sim_crash(pair.a);
    memset(&alarm, 0xee, sizeof(alarm)); /* The machine's memory was freed. */
    memset(&begun.work, 0xee, sizeof(begun.work));
    memset(&waiting.work, 0xee, sizeof(waiting.work));
    tow_sim_restart(pair.a);
    run_idle(pair.sim);
    assert_int_equal(next, 0);
    assert_int_equal(begun.done_count + waiting.done_count, 0);
    assert_int_equal(waiting.run_count, 0);
    pair_close(&pair);
}

/* -- Closing an env ------------------------------------------------------- */

static void count_up(void *context)
{
    ++*(int *)context;
}

static void closing_an_env_closes_everything_then_runs_closed(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, (tow_sim_options_t){.remote_path.latency_ns = MS});
    int closed = 0;
    int next = 0;
    alarm_t alarm = {.timer.fire = on_alarm, .env = pair.a_env};
    posted_t posted = {.post.run = on_post, .next_order = &next};
    labour_t begun = labour_for(pair.a_env);
    labour_t waiting = labour_for(pair.a_env);
    tow_env_work_start(pair.a_env, &begun.work);
    run_for(pair.sim, 1);
    tow_env_timer_start(pair.a_env, &alarm.timer, 2 * SECOND);
    tow_env_work_start(pair.a_env, &waiting.work);
    tow_env_post(pair.a_env, &posted.post);
    int64_t close_ns = tow_sim_now_ns(pair.sim);
    tow_env_close(pair.a_env, (tow_closed_t){count_up, &closed});
    run_until(pair.sim, close_ns + MS / 2);
    assert_int_equal(closed, 0); /* Work that has started continues. */
    run_idle(pair.sim);
    assert_int_equal(closed, 1);
    assert_int_equal(begun.done_count, 1);
    assert_int_equal(waiting.code, TOW_CANCELLED);
    assert_int_equal(waiting.run_count, 0);
    assert_int_equal(next, 1);
    assert_int_equal(alarm.fired_count, 0);
    assert_int_equal(pair.dialled.down_count, 0);
    assert_int_equal(pair.accepted.down_count, 1);
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(
        pair.a_env,
        &(tow_listen_options_t){.address = "sim:late", .accept = end_accept},
        &listener);
    assert_int_equal(tow_status_code(status), TOW_FAILED_PRECONDITION);
    tow_status_release(status);
    tow_sim_crash(pair.a);
    tow_sim_restart(pair.a); /* A new incarnation is open again. */
    must(tow_env_listen(
        pair.a_env,
        &(tow_listen_options_t){.address = "sim:late", .accept = end_accept},
        &listener));
    pair_close(&pair);
}

TOW_TEST_MAIN(
    cmocka_unit_test(timers_fire_in_order_of_deadline_then_of_start),
    cmocka_unit_test(a_timer_that_moves_fires_once_at_its_last_deadline),
    cmocka_unit_test(a_stopped_timer_does_not_fire),
    cmocka_unit_test(a_periodic_timer_keeps_its_time),
    cmocka_unit_test(a_timer_at_never_does_not_fire),
    cmocka_unit_test(posts_run_in_order_and_never_within_the_call),
    cmocka_unit_test(other_threads_may_post),
    cmocka_unit_test(a_post_from_outside_is_due_before_later_events),
    cmocka_unit_test(work_takes_its_cost),
    cmocka_unit_test(work_is_cancelled_only_before_it_begins),
    cmocka_unit_test(a_frozen_process_begins_no_work),
    cmocka_unit_test(a_crash_discards_timers_posts_and_work),
    cmocka_unit_test(closing_an_env_closes_everything_then_runs_closed))
