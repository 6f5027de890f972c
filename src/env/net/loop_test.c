/* Timers, sleeping, and the poller interface of the data plane. */
#include "env/net/net_testing_impl.h"

#include <pthread.h>
#include <sys/eventfd.h>

typedef struct clockwork {
    tow_timer_t timer;
    tow_env_t *env;
    int fire_count;
    int64_t fired_ns;
    int repeat_count;
} clockwork_t;

static int fire_order;

static void fire(tow_timer_t *timer)
{
    clockwork_t *clockwork = TOW_CONTAINER_OF(timer, clockwork_t, timer);
    clockwork->fire_count = ++fire_order;
    clockwork->fired_ns = tow_env_now_ns(clockwork->env);
    if (clockwork->repeat_count-- > 0)
        tow_env_timer_start(clockwork->env, timer,
                            tow_env_now_ns(clockwork->env));
}

static void timers_fire_in_order_and_never_early(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    const int64_t start_ns = tow_env_now_ns(peer->env);
    clockwork_t clockworks[4];
    memset(clockworks, 0, sizeof(clockworks));
    static const int64_t delays_ns[] = {300000, 100000, 200000, 100000};
    static const int expected[] = {4, 1, 3, 2};
    fire_order = 0;
    for (int i = 0; i < 4; i++) {
        clockworks[i].timer.fire = fire;
        clockworks[i].env = peer->env;
        tow_env_timer_start(peer->env, &clockworks[i].timer,
                            start_ns + delays_ns[i]);
    }
    while (fire_order < 4)
        tow_net_turn(peer->net, TOW_TIME_NEVER);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(clockworks[i].fire_count, expected[i]);
        assert_true(clockworks[i].fired_ns >= start_ns + delays_ns[i]);
    }
}

static void a_timer_that_rearms_for_now_starves_no_other_event(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    clockwork_t clockwork = {
        .timer.fire = fire, .env = peer->env, .repeat_count = 100};
    fire_order = 0;
    tow_env_timer_start(peer->env, &clockwork.timer, 0);
    for (int i = 1; i <= 10; i++) {
        tow_net_turn(peer->net, 0);
        assert_int_equal(fire_order, i);
    }
    tow_env_timer_stop(peer->env, &clockwork.timer);
    tow_env_timer_stop(peer->env, &clockwork.timer);
    tow_net_turn(peer->net, 0);
    assert_int_equal(fire_order, 10);
}

static void *wake_later(void *argument)
{
    tow_net_stop(argument);
    return NULL;
}

/* An idle loop sleeps once, however long: it has no periodic wakeup. */
static void an_idle_loop_does_not_wake(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    test_end_t end = {0};
    test_listen(peer, fixture->address, &end);
    while (tow_net_turn(peer->net, 0)) {
    }
    const tow_net_stats_t before = tow_net_stats(peer->net);
    assert_false(tow_net_turn(peer->net, 300 * TOW_NS_PER_MS));
    const tow_net_stats_t after = tow_net_stats(peer->net);
    assert_int_equal(after.sleep_count - before.sleep_count, 1);
    assert_true(after.pass_count - before.pass_count <= 1);

    pthread_t thread;
    pthread_create(&thread, NULL, wake_later, peer->net);
    tow_net_run(peer->net); /* Returns immediately or when it is woken. */
    pthread_join(thread, NULL);
}

/* -- A fake data plane ---------------------------------------------------- */

typedef struct fake_plane {
    tow_net_t *net;
    int fd;
    uint64_t progress_count;
    uint64_t arm_count;
    uint64_t arm_refused_count;
    int event_count; /* calls of progress that report activity */
    bool is_closed;
    bool is_destroyed;
} fake_plane_t;

static bool plane_progress(void *context)
{
    fake_plane_t *plane = context;
    plane->progress_count++;
    if (plane->event_count == 0) return false;
    plane->event_count--;
    tow_net_refresh_clock(plane->net);
    return true;
}

static bool plane_arm(void *context)
{
    fake_plane_t *plane = context;
    plane->arm_count++;
    uint64_t drained;
    if (read(plane->fd, &drained, sizeof(drained)) > 0)
        plane->arm_refused_count++;
    else
        return true;
    return false;
}

static void plane_close(void *context)
{
    fake_plane_t *plane = context;
    plane->is_closed = true;
    tow_net_release(plane->net);
}

static void plane_destroy(void *context)
{
    fake_plane_t *plane = context;
    plane->is_destroyed = true;
    close(plane->fd);
}

static void the_data_plane_is_progressed_armed_and_closed(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    static fake_plane_t plane;
    plane = (fake_plane_t){.net = peer->net,
                           .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    const tow_net_poller_t poller = {.context = &plane,
                                     .progress = plane_progress,
                                     .fd = plane.fd,
                                     .arm = plane_arm,
                                     .close = plane_close,
                                     .destroy = plane_destroy};
    tow_net_retain(peer->net);
    assert_int_equal(tow_status_code(tow_net_poller_open(peer->net, &poller)),
                     0);

    /* Busy: many turns, few polls of the other sources. */
    const uint64_t pass_count = tow_net_stats(peer->net).pass_count;
    plane.event_count = 10000;
    while (plane.event_count > 0)
        assert_true(tow_net_turn(peer->net, TOW_TIME_NEVER));
    assert_true(tow_net_stats(peer->net).pass_count - pass_count < 10000);
    assert_int_equal(plane.arm_count, 0);

    /* Idle: it is armed once, and sleeps. */
    const uint64_t sleep_count = tow_net_stats(peer->net).sleep_count;
    while (tow_net_stats(peer->net).sleep_count == sleep_count)
        tow_net_turn(peer->net, 5 * TOW_NS_PER_MS);
    assert_int_equal(plane.arm_count, 1);

    /* Its descriptor ends the sleep, and the loop never sleeps on it
     * undrained. */
    const uint64_t one = 1;
    assert_int_equal(write(plane.fd, &one, sizeof(one)), sizeof(one));
    plane.event_count = 1;
    while (plane.event_count > 0)
        tow_net_turn(peer->net, TOW_TIME_NEVER);
    while (plane.arm_refused_count == 0)
        tow_net_turn(peer->net, 5 * TOW_NS_PER_MS);

    test_remove_peer(fixture, 0);
    assert_true(plane.is_closed && plane.is_destroyed);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, test_fixture_up, test_fixture_down)

TOW_TEST_MAIN(TEST(timers_fire_in_order_and_never_early),
              TEST(a_timer_that_rearms_for_now_starves_no_other_event),
              TEST(an_idle_loop_does_not_wake),
              TEST(the_data_plane_is_progressed_armed_and_closed))
