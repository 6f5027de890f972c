/* Work on helper threads. `run` may be on another thread, so the state it
 * shares with the test is atomic. */
#include "probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Blocks work, on its own thread, until the test opens the gate. In a world
 * with one thread it must be open. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool open;
} gate_t;

typedef struct work_probe {
    tow_work_t work;
    tow_env_t *env;
    gate_t *gate;     /* lent; may be NULL */
    tow_code_t gives; /* the result of run */
    atomic_int begin_count;
    atomic_int run_count;
    int done_count;
    tow_code_t done_code;
    void (*hook)(struct work_probe *probe);
    void *context;
} work_probe_t;

static void gate_init(gate_t *gate)
{
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->opened, NULL);
    gate->open = false;
}

static void gate_open(gate_t *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->open = true;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->mutex);
}

static void gate_pass(gate_t *gate)
{
    pthread_mutex_lock(&gate->mutex);
    while (!gate->open)
        pthread_cond_wait(&gate->opened, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

/* A bare code: memory allocated on one thread and freed on another would
 * falsify the count of live blocks. */
static tow_status_t run_work(tow_work_t *work)
{
    work_probe_t *probe = TOW_CONTAINER_OF(work, work_probe_t, work);
    atomic_fetch_add(&probe->begin_count, 1);
    if (probe->gate != NULL) gate_pass(probe->gate);
    atomic_fetch_add(&probe->run_count, 1);
    return probe->gives == TOW_CODE_OK ? TOW_OK : tow_status_bare(probe->gives);
}

static void work_done(tow_work_t *work, tow_status_t take_status)
{
    work_probe_t *probe = TOW_CONTAINER_OF(work, work_probe_t, work);
    tow_env_t *env = probe->env;
    turn_enter(env);
    probe->done_count++;
    probe->done_code = tow_status_code(take_status);
    tow_status_release(take_status);
    if (probe->hook != NULL) probe->hook(probe);
    turn_leave(env);
}

static void work_probe_init(work_probe_t *probe, tow_env_t *env)
{
    memset(probe, 0, sizeof(*probe));
    probe->work.run = run_work;
    probe->work.done = work_done;
    probe->work.cost_ns = 1000;
    probe->env = env;
}

static void start(work_probe_t *probe)
{
    call_enter();
    tow_env_work_start(probe->env, &probe->work);
    call_leave();
}

static void cancel(work_probe_t *probe)
{
    int before = probe->done_count;
    call_enter();
    tow_env_work_cancel(probe->env, &probe->work);
    call_leave();
    assert_int_equal(probe->done_count, before);
}

static void work_runs_and_is_done_once(void **state)
{
    world_t *world = world_create(1);
    work_probe_t probe;
    work_probe_init(&probe, world_env(world, 0));
    start(&probe);
    assert_int_equal(probe.done_count, 0);
    WORLD_UNTIL(world, probe.done_count == 1);
    assert_int_equal(probe.done_code, TOW_CODE_OK);
    assert_int_equal(atomic_load(&probe.run_count), 1);
    world_settle(world);
    assert_int_equal(probe.done_count, 1);
    assert_int_equal(atomic_load(&probe.run_count), 1);
    world_destroy(world);
}

static void error_of_work_reaches_done(void **state)
{
    world_t *world = world_create(1);
    work_probe_t probe;
    work_probe_init(&probe, world_env(world, 0));
    probe.gives = TOW_DATA_LOSS;
    start(&probe);
    WORLD_UNTIL(world, probe.done_count == 1);
    assert_int_equal(probe.done_code, TOW_DATA_LOSS);
    world_destroy(world);
}

static void work_takes_its_cost_in_virtual_time(void **state)
{
    world_t *world = world_create(1);
    world_require(world, WORLD_VIRTUAL_TIME);
    work_probe_t probe;
    work_probe_init(&probe, world_env(world, 0));
    probe.work.cost_ns = INT64_C(3000000000);
    int64_t begin_ns = tow_env_now_ns(probe.env);
    start(&probe);
    WORLD_UNTIL(world, probe.done_count == 1);
    assert_true(tow_env_now_ns(probe.env) - begin_ns >= probe.work.cost_ns);
    world_destroy(world);
}

static void check_thread(work_probe_t *probe)
{
    assert_true(pthread_equal(*(pthread_t *)probe->context, pthread_self()));
}

static void thousand_works_are_each_done_once_on_the_loop(void **state)
{
    world_t *world = world_create(1);
    pthread_t loop_thread = pthread_self();
    work_probe_t *probes = calloc(1000, sizeof(*probes));
    for (int i = 0; i < 1000; i++) {
        work_probe_init(&probes[i], world_env(world, 0));
        probes[i].hook = check_thread;
        probes[i].context = &loop_thread;
        start(&probes[i]);
    }
    for (int i = 0; i < 1000; i++)
        WORLD_UNTIL(world, probes[i].done_count == 1);
    world_settle(world);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(probes[i].done_count, 1);
        assert_int_equal(atomic_load(&probes[i].run_count), 1);
    }
    world_destroy(world);
    free(probes);
}

static void start_again_until_10(work_probe_t *probe)
{
    if (probe->done_count < 10) start(probe);
}

static void work_may_be_started_again_when_it_is_done(void **state)
{
    world_t *world = world_create(1);
    work_probe_t probe;
    work_probe_init(&probe, world_env(world, 0));
    probe.hook = start_again_until_10;
    start(&probe);
    WORLD_UNTIL(world, probe.done_count == 10);
    assert_int_equal(atomic_load(&probe.run_count), 10);
    world_destroy(world);
}

static void free_itself(work_probe_t *probe)
{
    (*(int *)probe->context)++;
    memset(&probe->work, 0xa5, sizeof(probe->work));
    free(probe);
}

static void work_may_be_freed_when_it_is_done(void **state)
{
    world_t *world = world_create(1);
    int freed_count = 0;
    for (int i = 0; i < 100; i++) {
        work_probe_t *probe = calloc(1, sizeof(*probe));
        work_probe_init(probe, world_env(world, 0));
        probe->hook = free_itself;
        probe->context = &freed_count;
        start(probe);
    }
    WORLD_UNTIL(world, freed_count == 100);
    world_destroy(world);
}

/* -- Cancelling ----------------------------------------------------------- */

#define QUEUE_COUNT 200

static int begun_among(work_probe_t *probes, int count)
{
    int begun_count = 0;
    for (int i = 0; i < count; i++)
        begun_count += atomic_load(&probes[i].begin_count);
    return begun_count;
}

/* With threads, the jobs before it hold every helper at the gate; without, none
 * starts before this turn ends. */
static void work_cancelled_before_it_begins_never_runs(void **state)
{
    world_t *world = world_create(1);
    gate_t gate;
    gate_init(&gate);
    work_probe_t *probes = calloc(QUEUE_COUNT, sizeof(*probes));
    for (int i = 0; i < QUEUE_COUNT; i++) {
        work_probe_init(&probes[i], world_env(world, 0));
        if (world_can(world, WORLD_THREADS)) probes[i].gate = &gate;
        start(&probes[i]);
    }
    work_probe_t *last = &probes[QUEUE_COUNT - 1];
    cancel(last);
    gate_open(&gate);
    for (int i = 0; i < QUEUE_COUNT; i++)
        WORLD_UNTIL(world, probes[i].done_count == 1);
    assert_int_equal(last->done_code, TOW_CANCELLED);
    assert_int_equal(atomic_load(&last->begin_count), 0);
    assert_int_equal(begun_among(probes, QUEUE_COUNT), QUEUE_COUNT - 1);
    world_settle(world);
    assert_int_equal(last->done_count, 1);
    world_destroy(world);
    free(probes);
}

static void work_cancelled_after_it_begins_ends_as_it_would_have(void **state)
{
    world_t *world = world_create(1);
    gate_t gate;
    gate_init(&gate);
    work_probe_t probe;
    work_probe_init(&probe, world_env(world, 0));
    if (world_can(world, WORLD_THREADS)) probe.gate = &gate;
    probe.gives = TOW_OUT_OF_RANGE;
    probe.work.cost_ns = 1000000;
    start(&probe);
    WORLD_UNTIL(world, atomic_load(&probe.begin_count) == 1);
    if (probe.done_count == 0) cancel(&probe);
    gate_open(&gate);
    WORLD_UNTIL(world, probe.done_count == 1);
    assert_int_equal(probe.done_code, TOW_OUT_OF_RANGE);
    assert_int_equal(atomic_load(&probe.run_count), 1);
    world_settle(world);
    assert_int_equal(probe.done_count, 1);
    world_destroy(world);
}

/* Whether the job has started is a race between helpers; that `done` agrees
 * with it is not. */
static void work_cancelled_at_once_either_runs_or_is_cancelled(void **state)
{
    world_t *world = world_create(1);
    int cancelled_count = 0;
    for (int i = 0; i < 200; i++) {
        work_probe_t probe;
        work_probe_init(&probe, world_env(world, 0));
        start(&probe);
        cancel(&probe);
        if (i % 2 == 0) cancel(&probe);
        WORLD_UNTIL(world, probe.done_count == 1);
        bool cancelled = probe.done_code == TOW_CANCELLED;
        assert_int_equal(atomic_load(&probe.run_count), cancelled ? 0 : 1);
        if (!cancelled) assert_int_equal(probe.done_code, TOW_CODE_OK);
        cancelled_count += cancelled;
    }
    if (world_can(world, WORLD_VIRTUAL_TIME))
        assert_int_equal(cancelled_count, 200);
    world_destroy(world);
}

SUITE(work, CONFORMANCE_TEST(work_runs_and_is_done_once),
      CONFORMANCE_TEST(error_of_work_reaches_done),
      CONFORMANCE_TEST(work_takes_its_cost_in_virtual_time),
      CONFORMANCE_TEST(thousand_works_are_each_done_once_on_the_loop),
      CONFORMANCE_TEST(work_may_be_started_again_when_it_is_done),
      CONFORMANCE_TEST(work_may_be_freed_when_it_is_done),
      CONFORMANCE_TEST(work_cancelled_before_it_begins_never_runs),
      CONFORMANCE_TEST(work_cancelled_after_it_begins_ends_as_it_would_have),
      CONFORMANCE_TEST(work_cancelled_at_once_either_runs_or_is_cancelled))
