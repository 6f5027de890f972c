/* Posts and work: how other threads use a loop. */
#include "env/net/net_testing_impl.h"

#include <pthread.h>
#include <semaphore.h>

#define THREAD_COUNT 4
#define POST_COUNT   20000
#define WORK_COUNT   50

typedef struct numbered_post {
    tow_post_t post;
    int thread;
    int number;
    struct flood *flood;
} numbered_post_t;

typedef struct flood {
    tow_env_t *env;
    tow_net_t *net;
    int next[THREAD_COUNT];
    int ran_count;
    bool is_in_order;
} flood_t;

typedef struct poster {
    flood_t *flood;
    int thread;
} poster_t;

static void run_numbered(tow_post_t *post)
{
    numbered_post_t *numbered = TOW_CONTAINER_OF(post, numbered_post_t, post);
    flood_t *flood = numbered->flood;
    flood->is_in_order &= flood->next[numbered->thread]++ == numbered->number;
    if (++flood->ran_count == THREAD_COUNT * POST_COUNT)
        tow_net_stop(flood->net);
    free(numbered);
}

static void *post_many(void *argument)
{
    poster_t *poster = argument;
    for (int i = 0; i < POST_COUNT; i++) {
        numbered_post_t *numbered = malloc(sizeof(*numbered));
        *numbered = (numbered_post_t){.post.run = run_numbered,
                                      .thread = poster->thread,
                                      .number = i,
                                      .flood = poster->flood};
        tow_env_post(poster->flood->env, &numbered->post);
        if (i % 1000 == 0) usleep(100); /* Lets the loop fall asleep. */
    }
    return NULL;
}

static void posts_of_each_thread_run_in_order(void **state)
{
    test_peer_t *peer = test_add_peer(*state, 0, "a");
    flood_t flood = {.env = peer->env, .net = peer->net, .is_in_order = true};
    pthread_t threads[THREAD_COUNT];
    poster_t posters[THREAD_COUNT];
    for (int i = 0; i < THREAD_COUNT; i++) {
        posters[i] = (poster_t){.flood = &flood, .thread = i};
        assert_int_equal(
            pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
    }
    tow_net_run(peer->net);
    for (int i = 0; i < THREAD_COUNT; i++)
        pthread_join(threads[i], NULL);
    assert_true(flood.is_in_order);
    assert_int_equal(flood.ran_count, THREAD_COUNT * POST_COUNT);
}

static int self_post_count;

static void post_again(tow_post_t *post)
{
    if (++self_post_count < 10) tow_env_post(*(tow_env_t **)(post + 1), post);
}

static void a_post_from_a_post_runs_in_a_later_pass(void **state)
{
    test_peer_t *peer = test_add_peer(*state, 0, "a");
    struct {
        tow_post_t post;
        tow_env_t *env;
    } own = {.post.run = post_again, .env = peer->env};
    tow_env_post(peer->env, &own.post);
    assert_int_equal(self_post_count, 0);
    for (int i = 1; i <= 10; i++) {
        assert_true(tow_net_turn(peer->net, 0));
        assert_int_equal(self_post_count, i);
    }
}

/* -- Work ----------------------------------------------------------------- */

typedef struct job {
    tow_work_t work;
    pthread_t ran_on;
    int run_count;
    int done_count;
    tow_code_t code;
    sem_t *gate; /* `run` waits for it */
} job_t;

static tow_status_t run_job(tow_work_t *work)
{
    job_t *job = TOW_CONTAINER_OF(work, job_t, work);
    job->run_count++;
    job->ran_on = pthread_self();
    if (job->gate != NULL) sem_wait(job->gate);
    return TOW_ERROR(TOW_ABORTED, "as ordered");
}

static void job_done(tow_work_t *work, tow_status_t take_status)
{
    job_t *job = TOW_CONTAINER_OF(work, job_t, work);
    job->done_count++;
    job->code = tow_status_code(take_status);
    tow_status_release(take_status);
}

static void start_job(test_peer_t *peer, job_t *job, sem_t *gate)
{
    *job = (job_t){.work = {.run = run_job, .done = job_done}, .gate = gate};
    tow_env_work_start(peer->env, &job->work);
    assert_int_equal(job->done_count, 0);
}

static void work_runs_on_another_thread_and_ends_on_the_loop(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    static job_t jobs[WORK_COUNT];
    int done_count = 0;
    for (int i = 0; i < WORK_COUNT; i++)
        start_job(peer, &jobs[i], NULL);
    while (done_count < WORK_COUNT) {
        tow_net_turn(peer->net, TOW_TIME_NEVER);
        done_count = 0;
        for (int i = 0; i < WORK_COUNT; i++)
            done_count += jobs[i].done_count;
    }
    for (int i = 0; i < WORK_COUNT; i++) {
        assert_int_equal(jobs[i].run_count, 1);
        assert_int_equal(jobs[i].done_count, 1);
        assert_int_equal(jobs[i].code, TOW_ABORTED);
        assert_false(pthread_equal(jobs[i].ran_on, pthread_self()));
    }
}

static void cancelled_work_ends_once_either_way(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    sem_t gate;
    sem_init(&gate, 0, 0);
    static job_t jobs[10];
    for (int i = 0; i < 10; i++)
        start_job(peer, &jobs[i], &gate);
    for (int i = 0; i < 10; i++) {
        tow_env_work_cancel(peer->env, &jobs[i].work);
        assert_int_equal(jobs[i].done_count, 0);
    }
    for (int i = 0; i < 10; i++)
        sem_post(&gate);
    TEST_TURN_UNTIL(fixture, jobs[9].done_count);
    int ran_count = 0;
    for (int i = 0; i < 10; i++) {
        TEST_TURN_UNTIL(fixture, jobs[i].done_count);
        assert_int_equal(jobs[i].code,
                         jobs[i].run_count ? TOW_ABORTED : TOW_CANCELLED);
        ran_count += jobs[i].run_count;
    }
    assert_true(ran_count <= TOW_NET_HELPER_COUNT_DEFAULT);
    sem_destroy(&gate);
}

static void closing_waits_for_work_that_runs(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    sem_t gate;
    sem_init(&gate, 0, 0);
    static job_t jobs[4];
    for (int i = 0; i < 4; i++)
        start_job(peer, &jobs[i], &gate);
    test_end_t end = {0};
    tow_env_close(peer->env, test_closed(&end));
    for (int i = 0; i < 4; i++)
        sem_post(&gate);
    TEST_TURN_UNTIL(fixture, end.closed_count);
    for (int i = 0; i < 4; i++)
        assert_int_equal(jobs[i].done_count, 1);
    sem_destroy(&gate);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, test_fixture_up, test_fixture_down)

TOW_TEST_MAIN(TEST(posts_of_each_thread_run_in_order),
              TEST(a_post_from_a_post_runs_in_a_later_pass),
              TEST(work_runs_on_another_thread_and_ends_on_the_loop),
              TEST(cancelled_work_ends_once_either_way),
              TEST(closing_waits_for_work_that_runs))
