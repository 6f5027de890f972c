/* Posts, from the loop's own thread and from others. */
#include "probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct post_probe {
    tow_post_t post;
    tow_env_t *env;
    int run_count;
    int order;
    int *run_clock; /* lent: counts runs of all probes */
    void (*hook)(struct post_probe *probe);
    void *context;
} post_probe_t;

static void count_run(tow_post_t *post)
{
    post_probe_t *probe = TOW_CONTAINER_OF(post, post_probe_t, post);
    tow_env_t *env = probe->env;
    turn_enter(env);
    probe->run_count++;
    probe->order = (*probe->run_clock)++;
    if (probe->hook != NULL) probe->hook(probe);
    turn_leave(env);
}

static void post_probe_init(post_probe_t *probe, tow_env_t *env, int *run_clock)
{
    *probe = (post_probe_t){
        .post.run = count_run, .env = env, .run_clock = run_clock};
}

static void submit(post_probe_t *probe)
{
    int before = probe->run_count;
    call_enter();
    tow_env_post(probe->env, &probe->post);
    call_leave();
    assert_int_equal(probe->run_count, before);
}

static void post_runs_once_in_a_turn_of_its_own(void **state)
{
    world_t *world = world_create(1);
    post_probe_t probe;
    int run_clock = 0;
    post_probe_init(&probe, world_env(world, 0), &run_clock);
    submit(&probe);
    WORLD_UNTIL(world, probe.run_count == 1);
    world_settle(world);
    assert_int_equal(probe.run_count, 1);
    world_destroy(world);
}

static void posts_run_in_order_of_posting(void **state)
{
    world_t *world = world_create(1);
    static post_probe_t probes[5000];
    int run_clock = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++) {
        post_probe_init(&probes[i], world_env(world, 0), &run_clock);
        submit(&probes[i]);
    }
    WORLD_UNTIL(world, run_clock == TOW_COUNT_OF(probes));
    for (size_t i = 0; i < TOW_COUNT_OF(probes); i++)
        assert_int_equal(probes[i].order, i);
    world_destroy(world);
}

static void submit_the_other(post_probe_t *probe)
{
    submit(probe->context);
}

static void post_from_a_post_runs_after_those_before_it(void **state)
{
    world_t *world = world_create(1);
    post_probe_t first, second, third;
    int run_clock = 0;
    post_probe_init(&first, world_env(world, 0), &run_clock);
    post_probe_init(&second, world_env(world, 0), &run_clock);
    post_probe_init(&third, world_env(world, 0), &run_clock);
    first.hook = submit_the_other;
    first.context = &third;
    submit(&first);
    submit(&second);
    WORLD_UNTIL(world, run_clock == 3);
    assert_int_equal(first.order, 0);
    assert_int_equal(second.order, 1);
    assert_int_equal(third.order, 2);
    world_destroy(world);
}

static void submit_itself_until_100(post_probe_t *probe)
{
    if (probe->run_count < 100) submit(probe);
}

static void post_may_be_posted_again_when_it_runs(void **state)
{
    world_t *world = world_create(1);
    post_probe_t probe;
    int run_clock = 0;
    post_probe_init(&probe, world_env(world, 0), &run_clock);
    probe.hook = submit_itself_until_100;
    submit(&probe);
    WORLD_UNTIL(world, probe.run_count == 100);
    world_settle(world);
    assert_int_equal(probe.run_count, 100);
    world_destroy(world);
}

static void free_itself(post_probe_t *probe)
{
    memset(probe, 0xa5, sizeof(*probe));
    free(probe);
}

static void post_may_be_freed_when_it_runs(void **state)
{
    world_t *world = world_create(1);
    int run_clock = 0;
    for (int i = 0; i < 100; i++) {
        post_probe_t *probe = calloc(1, sizeof(*probe));
        post_probe_init(probe, world_env(world, 0), &run_clock);
        probe->hook = free_itself;
        submit(probe);
    }
    WORLD_UNTIL(world, run_clock == 100);
    world_destroy(world);
}

/* -- Other threads -------------------------------------------------------- */

#define THREAD_COUNT          4
#define POSTS_PER_THREAD      5000
#define THREAD_POST_COUNT_MAX (THREAD_COUNT * POSTS_PER_THREAD)

typedef struct poster {
    pthread_t thread;
    post_probe_t *probes; /* owned */
} poster_t;

static pthread_t loop_thread;

static void check_thread(post_probe_t *probe)
{
    assert_true(pthread_equal(loop_thread, pthread_self()));
}

static void *post_all(void *context)
{
    poster_t *poster = context;
    for (int i = 0; i < POSTS_PER_THREAD; i++)
        tow_env_post(poster->probes[i].env, &poster->probes[i].post);
    return NULL;
}

static void poster_start(poster_t *poster, tow_env_t *env, int *run_clock)
{
    poster->probes = calloc(POSTS_PER_THREAD, sizeof(*poster->probes));
    for (int i = 0; i < POSTS_PER_THREAD; i++) {
        post_probe_init(&poster->probes[i], env, run_clock);
        poster->probes[i].hook = check_thread;
    }
    assert_int_equal(pthread_create(&poster->thread, NULL, post_all, poster),
                     0);
}

static void poster_check_and_end(poster_t *poster)
{
    for (int i = 0; i < POSTS_PER_THREAD; i++) {
        assert_int_equal(poster->probes[i].run_count, 1);
        if (i > 0)
            assert_true(poster->probes[i].order > poster->probes[i - 1].order);
    }
    free(poster->probes);
}

static void join_all(poster_t *posters)
{
    for (int i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_join(posters[i].thread, NULL), 0);
}

/* With virtual time, events must not run out while the threads still post. */
static void posts_of_each_thread_run_in_order_on_the_loop(void **state)
{
    world_t *world = world_create(1);
    bool join_first = world_can(world, WORLD_VIRTUAL_TIME);
    loop_thread = pthread_self();
    poster_t posters[THREAD_COUNT];
    int run_clock = 0;
    for (int i = 0; i < THREAD_COUNT; i++)
        poster_start(&posters[i], world_env(world, 0), &run_clock);
    if (join_first) join_all(posters);
    WORLD_UNTIL(world, run_clock == THREAD_POST_COUNT_MAX);
    if (!join_first) join_all(posters);
    for (int i = 0; i < THREAD_COUNT; i++)
        poster_check_and_end(&posters[i]);
    world_destroy(world);
}

static void *post_one(void *context)
{
    post_probe_t *probe = context;
    tow_env_post(probe->env, &probe->post);
    return NULL;
}

static void post_from_another_thread_wakes_a_sleeping_env(void **state)
{
    world_t *world = world_create(1);
    world_require(world, WORLD_THREADS);
    for (int i = 0; i < 50; i++) {
        post_probe_t probe;
        int run_clock = 0;
        post_probe_init(&probe, world_env(world, 0), &run_clock);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, post_one, &probe), 0);
        while (probe.run_count == 0)
            world_sleep(world, 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    world_destroy(world);
}

SUITE(post, CONFORMANCE_TEST(post_runs_once_in_a_turn_of_its_own),
      CONFORMANCE_TEST(posts_run_in_order_of_posting),
      CONFORMANCE_TEST(post_from_a_post_runs_after_those_before_it),
      CONFORMANCE_TEST(post_may_be_posted_again_when_it_runs),
      CONFORMANCE_TEST(post_may_be_freed_when_it_runs),
      CONFORMANCE_TEST(posts_of_each_thread_run_in_order_on_the_loop),
      CONFORMANCE_TEST(post_from_another_thread_wakes_a_sleeping_env))
