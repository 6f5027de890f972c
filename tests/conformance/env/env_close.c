/* Closing an env with anything open. */
#include "lane_probe.h"
#include "stream.h"

#include <stdatomic.h>
#include <stdlib.h>

#define MS INT64_C(1000000)

static void fresh_env_closes(void **state)
{
    world_t *world = world_create(2);
    world_close_node(world, 0);
    world_close_node(world, 1);
    world_destroy(world);
}

/* -- Timers, posts, work -------------------------------------------------- */

typedef struct node_events {
    tow_env_t *env;
    world_t *world;
    bool closed;
    tow_timer_t timers[3];
    int fired_count;
    tow_post_t posts[100];
    int post_count;
    tow_work_t works[50];
    atomic_int run_count;
    int done_count;
    int cancelled_count;
} chores_t;

static chores_t node_events;

static void check_open(void)
{
    if (node_events.closed) fail_msg("a callback ran on a closed env");
}

static void note_fired(tow_timer_t *timer)
{
    check_open();
    node_events.fired_count++;
}

static void note_post(tow_post_t *post)
{
    turn_enter(node_events.env);
    check_open();
    node_events.post_count++;
    turn_leave(node_events.env);
}

static tow_status_t run_work(tow_work_t *work)
{
    atomic_fetch_add(&node_events.run_count, 1);
    return TOW_OK;
}

static void note_done(tow_work_t *work, tow_status_t take_status)
{
    turn_enter(node_events.env);
    check_open();
    node_events.done_count++;
    if (take_status != TOW_OK) {
        assert_int_equal(tow_status_code(take_status), TOW_CANCELLED);
        node_events.cancelled_count++;
    }
    tow_status_release(take_status);
    turn_leave(node_events.env);
}

static void chores_start(world_t *world, size_t node)
{
    memset(&node_events, 0, sizeof(node_events));
    node_events.env = world_env(world, node);
    node_events.world = world;
    static const int64_t delays_ns[] = {0, 5 * MS, INT64_C(3600000) * MS};
    for (size_t i = 0; i < TOW_COUNT_OF(node_events.timers); i++) {
        node_events.timers[i].fire = note_fired;
        tow_env_timer_start(node_events.env, &node_events.timers[i],
                            tow_env_now_ns(node_events.env) + delays_ns[i]);
    }
    for (size_t i = 0; i < TOW_COUNT_OF(node_events.posts); i++) {
        node_events.posts[i].run = note_post;
        tow_env_post(node_events.env, &node_events.posts[i]);
    }
    for (size_t i = 0; i < TOW_COUNT_OF(node_events.works); i++) {
        node_events.works[i] =
            (tow_work_t){.run = run_work, .done = note_done, .cost_ns = MS};
        tow_env_work_start(node_events.env, &node_events.works[i]);
    }
}

static void chores_check(void)
{
    assert_int_equal(node_events.post_count, TOW_COUNT_OF(node_events.posts));
    assert_int_equal(node_events.done_count, TOW_COUNT_OF(node_events.works));
    assert_int_equal(atomic_load(&node_events.run_count),
                     node_events.done_count - node_events.cancelled_count);
    assert_true(node_events.fired_count <= 2);
}

static void closing_env_completes_posts_and_work_once(void **state)
{
    world_t *world = world_create(2);
    chores_start(world, 0);
    world_close_node(world, 0);
    node_events.closed = true;
    chores_check();
    world_settle(world);
    world_destroy(world);
}

static void env_may_be_closed_with_node_events_pending(void **state)
{
    for (int step_count = 1; step_count < 40; step_count += 6) {
        world_t *world = world_create(2);
        chores_start(world, 0);
        for (int i = 0; i < step_count; i++)
            world_step(world);
        world_close_node(world, 0);
        node_events.closed = true;
        chores_check();
        world_destroy(world);
    }
}

/* -- Links ---------------------------------------------------------------- */

static void peer_of_a_closed_env_sees_down(void **state)
{
    for (size_t node = 0; node < 2; node++) {
        pair_t pair = {0};
        world_t *world = world_create(2);
        pair_connect(&pair, world, PAIR_DIRECT);
        world_close_node(world, node);
        link_probe_t *left = node == 0 ? pair.accepted : &pair.dialler;
        WORLD_UNTIL(world, left->down_count >= 1);
        pair_destroy(&pair);
    }
}

static void closing_env_silences_its_links(void **state)
{
    world_t *world = world_create(2);
    pair_t pair = {0};
    pair_connect(&pair, world, PAIR_DIRECT);
    link_probe_t waiting = {0}, closing = {0};
    link_probe_dial_expecting(&waiting, world_env(world, 0),
                              pair.acceptor.listener->address, "nobody");
    WORLD_UNTIL(world, waiting.down_count == 1);
    link_probe_dial(&closing, world_env(world, 0),
                    pair.acceptor.listener->address);
    WORLD_UNTIL(world, closing.up_count == 1);
    assert_int_equal(tow_link_send(closing.link, 1, "x", 1), TOW_SEND_OK);
    link_probe_close(&closing);
    world_begin_close(world, 0);
    assert_int_equal(tow_link_send(pair.dialler.link, 1, "x", 1),
                     TOW_SEND_DOWN);
    WORLD_UNTIL(world, world_is_closed(world, 0));
    assert_int_equal(closing.closed.count, 1);
    assert_true(pair.dialler.down_count <= 1);
    pair.dialler.closing = true; /* The probes now fail on any callback. */
    waiting.closing = true;
    world_settle(world);
    pair_destroy(&pair);
}

static void close_env_of(link_probe_t *probe)
{
    probe->closing = true;
    world_begin_close(probe->context, 0);
}

static void env_may_be_closed_in_a_callback_of_its_link(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {.hooks = {.up = close_env_of}, .context = world};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    WORLD_UNTIL(world, world_is_closed(world, 0));
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void env_closes_although_its_peer_hangs(void **state)
{
    world_t *world = world_create(2);
    pair_t pair = {0};
    pair_connect(&pair, world, PAIR_DIRECT);
    world_stall(world, 1);
    stream_t stream = {.seed = 1, .size_max = 100000};
    assert_int_equal(stream_pump(&stream, pair.dialler.link, 10000),
                     TOW_SEND_FULL);
    world_close_node(world, 0);
    world_resume(world, 1);
    WORLD_UNTIL(world, pair.accepted->down_count == 1);
    pair_destroy(&pair);
}

/* -- Lanes ---------------------------------------------------------------- */

#define MIB         (UINT64_C(1) << 20)
#define WRITE_COUNT 6

typedef enum side {
    SIDE_WRITER,
    SIDE_TARGET
} side_t;

/* Closes the env of one side with pending writes. The writer's are all done
 * when its env is closed; those to a closed target are done at the latest when
 * the writer closes its lane by force. */
static void close_side_with_writes_under_way(side_t side, int step_count)
{
    world_t *world = world_create_with_lanes(2);
    region_probe_t *region = calloc(1, sizeof(*region));
    region_probe_open(region, world_env(world, 1), WRITE_COUNT * 4 * MIB);
    lane_probe_t lane = {0};
    lane_probe_open(&lane, world_env(world, 0), world_env(world, 1));
    write_probe_t writes[WRITE_COUNT] = {0};
    for (size_t i = 0; i < WRITE_COUNT; i++) {
        write_plan_t plan = {.size = i % 2 ? 4 * MIB : 100,
                             .offset = i * 4 * MIB,
                             .key = region->region->key,
                             .tag = i};
        assert_int_equal(write_probe_start(&writes[i], &lane, &plan),
                         TOW_SEND_OK);
    }
    for (int i = 0; i < step_count; i++)
        world_step(world);
    if (side == SIDE_TARGET) {
        world_close_node(world, 1);
        region_probe_free(region);
        lane_probe_close(&lane, TOW_LANE_CLOSE_FORCE);
        WORLD_UNTIL(world, lane.closed.count == 1);
    } else {
        world_close_node(world, 0);
    }
    assert_int_equal(lane.pending_count, 0);
    world_destroy(world);
    region_probe_free(region);
    free(region);
    for (size_t i = 0; i < WRITE_COUNT; i++) {
        assert_int_equal(writes[i].done_count, 1);
        write_probe_free(&writes[i]);
    }
}

static void closing_env_completes_its_writes_once(void **state)
{
    for (int step_count = 0; step_count < 30; step_count += 5)
        close_side_with_writes_under_way(SIDE_WRITER, step_count);
}

static void env_with_regions_closes_under_writes(void **state)
{
    for (int step_count = 0; step_count < 30; step_count += 5)
        close_side_with_writes_under_way(SIDE_TARGET, step_count);
}

SUITE(env_close, CONFORMANCE_TEST(fresh_env_closes),
      CONFORMANCE_TEST(closing_env_completes_posts_and_work_once),
      CONFORMANCE_TEST(env_may_be_closed_with_node_events_pending),
      CONFORMANCE_TEST(peer_of_a_closed_env_sees_down),
      CONFORMANCE_TEST(closing_env_silences_its_links),
      CONFORMANCE_TEST(env_may_be_closed_in_a_callback_of_its_link),
      CONFORMANCE_TEST(env_closes_although_its_peer_hangs),
      CONFORMANCE_TEST(closing_env_completes_its_writes_once),
      CONFORMANCE_TEST(env_with_regions_closes_under_writes))
