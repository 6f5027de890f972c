/* Threads that use one net. An answering thread stands for the peers: it takes
 * requests and posts the replies. */
#include "env/net/net_testing_impl.h"

#include <pthread.h>
#include <semaphore.h>

#include "env/net/locked_net.h"

#define THREAD_COUNT 6
#define ROUND_COUNT  400
#define SOON_NS      (200 * TOW_NS_PER_US)

typedef struct fixture {
    tow_security_t security;
    tow_locked_net_t *locked;
} fixture_t;

static int set_up(void **state)
{
    fixture_t *fixture = calloc(1, sizeof(*fixture));
    tow_net_options_t options = {.name = "client",
                                 .security = &fixture->security,
                                 .log = {.level = TOW_LOG_ERROR}};
    if (tow_locked_net_create(&options, &fixture->locked) != TOW_OK) return -1;
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    tow_locked_net_destroy(fixture->locked);
    free(fixture);
    return 0;
}

/* Something that a thread waits for: a post or a timer sets it. */
typedef struct question {
    tow_post_t post;
    tow_timer_t timer;
    tow_locked_net_t *locked;
    bool done;
    sem_t called;
} question_t;

static void answer(question_t *question)
{
    question->done = true;
    tow_locked_net_notify(question->locked);
    sem_post(&question->called);
}

static void answer_by_post(tow_post_t *post)
{
    answer(TOW_CONTAINER_OF(post, question_t, post));
}

static void answer_by_timer(tow_timer_t *timer)
{
    answer(TOW_CONTAINER_OF(timer, question_t, timer));
}

static void question_init(question_t *question, tow_locked_net_t *locked)
{
    *question = (question_t){.post.run = answer_by_post,
                             .timer.fire = answer_by_timer,
                             .locked = locked};
    sem_init(&question->called, 0, 0);
}

static void ask_timer(question_t *question, int64_t after_ns)
{
    tow_env_t *env = tow_locked_net_env(question->locked);
    tow_env_timer_start(env, &question->timer, tow_env_now_ns(env) + after_ns);
}

static void *post_answer(void *argument)
{
    question_t *question = argument;
    tow_env_post(tow_locked_net_env(question->locked), &question->post);
    return NULL;
}

static void waiter_gets_what_a_timer_sets(void **state)
{
    fixture_t *fixture = *state;
    question_t question;
    question_init(&question, fixture->locked);
    tow_locked_net_enter(fixture->locked);
    ask_timer(&question, SOON_NS);
    assert_true(
        tow_locked_net_wait(fixture->locked, &question.done, TOW_TIME_NEVER));
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_FLUSH);
}

static void waiter_asleep_is_woken_by_a_post(void **state)
{
    fixture_t *fixture = *state;
    for (int i = 0; i < 50; i++) {
        question_t question;
        question_init(&question, fixture->locked);
        pthread_t thread;
        tow_locked_net_enter(fixture->locked);
        pthread_create(&thread, NULL, post_answer, &question);
        assert_true(tow_locked_net_wait(fixture->locked, &question.done,
                                        TOW_TIME_NEVER));
        tow_locked_net_leave(fixture->locked, TOW_LEAVE_FLUSH);
        pthread_join(thread, NULL);
    }
}

static void deadline_ends_a_wait(void **state)
{
    fixture_t *fixture = *state;
    const bool never = false;
    tow_locked_net_enter(fixture->locked);
    tow_env_t *env = tow_locked_net_env(fixture->locked);
    assert_false(tow_locked_net_wait(fixture->locked, &never,
                                     tow_env_now_ns(env) + SOON_NS));
    assert_false(tow_locked_net_wait(fixture->locked, &never, 0));
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_FLUSH);
}

static void *wait_many_times(void *argument)
{
    fixture_t *fixture = argument;
    for (int i = 0; i < ROUND_COUNT; i++) {
        question_t question;
        question_init(&question, fixture->locked);
        tow_locked_net_enter(fixture->locked);
        if (i % 3 == 0)
            ask_timer(&question, (i % 7) * 30 * TOW_NS_PER_US);
        else
            tow_env_post(tow_locked_net_env(fixture->locked), &question.post);
        if (!tow_locked_net_wait(fixture->locked, &question.done,
                                 TOW_TIME_NEVER))
            return "a wait without end has ended";
        tow_locked_net_leave(fixture->locked,
                             i % 2 == 0 ? TOW_LEAVE_FLUSH : TOW_LEAVE_LAZY);
    }
    return NULL;
}

static void every_thread_gets_its_own_answer(void **state)
{
    pthread_t threads[THREAD_COUNT];
    for (int i = 0; i < THREAD_COUNT; i++)
        pthread_create(&threads[i], NULL, wait_many_times, *state);
    for (int i = 0; i < THREAD_COUNT; i++) {
        void *complaint;
        pthread_join(threads[i], &complaint);
        assert_null(complaint);
    }
}

static void keeper_runs_callbacks_that_are_expected(void **state)
{
    fixture_t *fixture = *state;
    question_t question;
    question_init(&question, fixture->locked);
    tow_locked_net_enter(fixture->locked);
    tow_locked_net_expect(fixture->locked, true);
    ask_timer(&question, SOON_NS);
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_LAZY);
    sem_wait(&question.called);
    tow_locked_net_enter(fixture->locked);
    tow_locked_net_expect(fixture->locked, false);
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_LAZY);
}

static void keeper_looks_after_what_nobody_expects(void **state)
{
    fixture_t *fixture = *state;
    question_t question;
    question_init(&question, fixture->locked);
    tow_locked_net_enter(fixture->locked);
    ask_timer(&question, 0);
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_LAZY);
    sem_wait(&question.called);
    assert_true(question.done);
}

static void waiters_take_over_from_the_keeper(void **state)
{
    fixture_t *fixture = *state;
    tow_locked_net_enter(fixture->locked);
    tow_locked_net_expect(fixture->locked, true);
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_FLUSH);
    every_thread_gets_its_own_answer(state);
    tow_locked_net_enter(fixture->locked);
    tow_locked_net_expect(fixture->locked, false);
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_FLUSH);
}

typedef struct outside {
    tow_locked_net_t *locked; /* lent */
    pthread_t thread;         /* that ran it last */
    bool was_calling;
    sem_t ran;
} outside_t;

static void note_thread(void *context)
{
    outside_t *outside = context;
    outside->thread = pthread_self();
    outside->was_calling = tow_locked_net_is_in_callback(outside->locked);
    sem_post(&outside->ran);
}

static void call_and_leave(outside_t *outside, tow_leave_t how)
{
    tow_locked_net_enter(outside->locked);
    tow_locked_net_request_callback(outside->locked);
    tow_locked_net_leave(outside->locked, how);
    sem_wait(&outside->ran);
    assert_true(outside->was_calling);
    assert_false(tow_locked_net_is_in_callback(outside->locked));
}

static void leavers_run_outside_when_they_may_and_flush(void **state)
{
    fixture_t *fixture = *state;
    outside_t outside = {.locked = fixture->locked};
    sem_init(&outside.ran, 0, 0);
    tow_locked_net_set_unlocked_callback(fixture->locked, note_thread,
                                         &outside);
    call_and_leave(&outside, TOW_LEAVE_FLUSH);
    assert_false(pthread_equal(outside.thread, pthread_self()));
    tow_locked_net_enter(fixture->locked);
    tow_locked_net_run_callback_on_leave(fixture->locked);
    tow_locked_net_leave(fixture->locked, TOW_LEAVE_LAZY);
    call_and_leave(&outside, TOW_LEAVE_FLUSH);
    assert_true(pthread_equal(outside.thread, pthread_self()));
    call_and_leave(&outside, TOW_LEAVE_LAZY);
    assert_false(pthread_equal(outside.thread, pthread_self()));
    sem_destroy(&outside.ran);
}

#define WITH_NET(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

TOW_TEST_MAIN(WITH_NET(waiter_gets_what_a_timer_sets),
              WITH_NET(waiter_asleep_is_woken_by_a_post),
              WITH_NET(deadline_ends_a_wait),
              WITH_NET(every_thread_gets_its_own_answer),
              WITH_NET(keeper_runs_callbacks_that_are_expected),
              WITH_NET(keeper_looks_after_what_nobody_expects),
              WITH_NET(waiters_take_over_from_the_keeper),
              WITH_NET(leavers_run_outside_when_they_may_and_flush))
