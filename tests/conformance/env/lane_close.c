/* Closing lanes and regions with pending writes, and peers that die
 * meanwhile. */
#include "lane_probe.h"
#include "roles.h"

#include <stdlib.h>

#define MIB         (UINT64_C(1) << 20)
#define WRITE_COUNT 12

typedef struct traffic {
    world_t *world;
    lane_probe_t lane; /* from node 0 to node 1 */
    region_probe_t region;
    write_probe_t writes[WRITE_COUNT];
} traffic_t;

/* Small and large ones, so that each underlying protocol has pending ones. */
static size_t write_size(size_t index)
{
    static const size_t sizes[] = {8 * MIB, 10, 4096, 100000};
    return sizes[index % TOW_COUNT_OF(sizes)];
}

/* Each has a place of its own: several threads may receive at once. */
static size_t write_offset(size_t index)
{
    size_t offset = 0;
    for (size_t i = 0; i < index; i++)
        offset += write_size(i);
    return offset;
}

static traffic_t *traffic_create(void)
{
    world_t *world = world_create_with_lanes(2);
    traffic_t *traffic = calloc(1, sizeof(*traffic));
    traffic->world = world;
    region_probe_open(&traffic->region, world_env(traffic->world, 1),
                      write_offset(WRITE_COUNT) + MIB);
    lane_probe_open(&traffic->lane, world_env(traffic->world, 0),
                    world_env(traffic->world, 1));
    return traffic;
}

static void traffic_start(traffic_t *traffic)
{
    for (size_t i = 0; i < WRITE_COUNT; i++) {
        write_plan_t plan = {.size = write_size(i),
                             .offset = write_offset(i),
                             .key = traffic->region.region->key,
                             .tag = i,
                             .check = i % 3 ? TOW_WRITE_UNCHECKED
                                            : TOW_WRITE_CRC32C};
        assert_int_equal(
            write_probe_start(&traffic->writes[i], &traffic->lane, &plan),
            TOW_SEND_OK);
    }
}

static int done_count(const traffic_t *traffic)
{
    int count = 0;
    for (size_t i = 0; i < WRITE_COUNT; i++)
        count += traffic->writes[i].done_count;
    return count;
}

static void traffic_destroy(traffic_t *traffic)
{
    world_destroy(traffic->world);
    for (size_t i = 0; i < WRITE_COUNT; i++)
        write_probe_free(&traffic->writes[i]);
    region_probe_free(&traffic->region);
    free(traffic);
}

/* -- Lanes ---------------------------------------------------------------- */

static void idle_lane_closes_either_way(void **state)
{
    world_t *world = world_create_with_lanes(2);
    for (int mode = 0; mode < 2; mode++) {
        lane_probe_t lane = {0};
        lane_probe_open(&lane, world_env(world, 0), world_env(world, 1));
        lane_probe_close(&lane, mode == 0 ? TOW_LANE_CLOSE_GRACEFUL
                                          : TOW_LANE_CLOSE_FORCE);
        WORLD_UNTIL(world, lane.closed.count == 1);
    }
    world_destroy(world);
}

static void graceful_close_completes_pending_writes(void **state)
{
    traffic_t *traffic = traffic_create();
    traffic_start(traffic);
    lane_probe_close(&traffic->lane, TOW_LANE_CLOSE_GRACEFUL);
    assert_int_equal(tow_lane_send(traffic->lane.lane, 1, "x", 1),
                     TOW_SEND_DOWN);
    WORLD_UNTIL(traffic->world, traffic->lane.closed.count == 1);
    for (size_t i = 0; i < WRITE_COUNT; i++)
        assert_int_equal(traffic->writes[i].code, TOW_CODE_OK);
    WORLD_UNTIL(traffic->world, traffic->region.arrived_count == WRITE_COUNT);
    traffic_destroy(traffic);
}

/* The probe checks that all writes are done, once, when the lane is closed. */
static void force_close_after_steps(int step_count)
{
    traffic_t *traffic = traffic_create();
    traffic_start(traffic);
    for (int i = 0; i < step_count; i++)
        world_step(traffic->world);
    lane_probe_close(&traffic->lane, TOW_LANE_CLOSE_FORCE);
    write_probe_t late = {0};
    write_plan_t plan = {.size = 1, .key = traffic->region.region->key};
    assert_int_equal(write_probe_start(&late, &traffic->lane, &plan),
                     TOW_SEND_DOWN);
    WORLD_UNTIL(traffic->world, traffic->lane.closed.count == 1);
    assert_int_equal(done_count(traffic), WRITE_COUNT);
    /* None of them occupies the target's region. */
    region_probe_close(&traffic->region);
    WORLD_UNTIL(traffic->world, traffic->region.closed.count == 1);
    traffic_destroy(traffic);
    write_probe_free(&late);
}

static void force_close_ends_all_pending_writes(void **state)
{
    for (int step_count = 0; step_count < 40; step_count += 3)
        force_close_after_steps(step_count);
}

static void force_close_does_not_wait_for_a_peer_that_hangs(void **state)
{
    traffic_t *traffic = traffic_create();
    world_step(traffic->world);
    world_stall(traffic->world, 1);
    traffic_start(traffic);
    for (int i = 0; i < 20; i++)
        world_step(traffic->world);
    lane_probe_close(&traffic->lane, TOW_LANE_CLOSE_FORCE);
    WORLD_UNTIL(traffic->world, traffic->lane.closed.count == 1);
    assert_int_equal(done_count(traffic), WRITE_COUNT);
    world_resume(traffic->world, 1);
    world_settle(traffic->world);
    traffic_destroy(traffic);
}

/* "In both directions": the target closes its own lane back, and writes in
 * progress from that peer, which is alive after all, must not stay pending. */
static void force_close_fails_inbound_writes_of_that_peer(void **state)
{
    traffic_t *traffic = traffic_create();
    lane_probe_t back = {0};
    lane_probe_open(&back, world_env(traffic->world, 1),
                    world_env(traffic->world, 0));
    world_settle(traffic->world);
    traffic_start(traffic);
    for (int i = 0; i < 3; i++)
        world_step(traffic->world);
    lane_probe_close(&back, TOW_LANE_CLOSE_FORCE);
    WORLD_UNTIL(traffic->world,
                back.closed.count == 1 && done_count(traffic) == WRITE_COUNT);
    traffic_destroy(traffic);
}

static void lane_may_be_reopened_after_force_close(void **state)
{
    traffic_t *traffic = traffic_create();
    traffic_start(traffic);
    lane_probe_close(&traffic->lane, TOW_LANE_CLOSE_FORCE);
    WORLD_UNTIL(traffic->world, traffic->lane.closed.count == 1);
    lane_probe_t second = {0};
    lane_probe_open(&second, world_env(traffic->world, 0),
                    world_env(traffic->world, 1));
    write_probe_t write = {0};
    write_plan_t plan = {.size = MIB,
                         .offset = write_offset(WRITE_COUNT),
                         .key = traffic->region.region->key,
                         .tag = 99};
    assert_int_equal(write_probe_start(&write, &second, &plan), TOW_SEND_OK);
    WORLD_UNTIL(traffic->world, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    traffic_destroy(traffic);
    write_probe_free(&write);
}

static void close_lane_in_done(write_probe_t *probe)
{
    if (!probe->lane->closing)
        lane_probe_close(probe->lane, TOW_LANE_CLOSE_FORCE);
}

static void lane_may_be_closed_in_done_of_a_write(void **state)
{
    traffic_t *traffic = traffic_create();
    for (size_t i = 0; i < WRITE_COUNT; i++)
        traffic->writes[i].done = close_lane_in_done;
    traffic_start(traffic);
    WORLD_UNTIL(traffic->world, traffic->lane.closed.count == 1);
    assert_int_equal(done_count(traffic), WRITE_COUNT);
    traffic_destroy(traffic);
}

/* -- Regions -------------------------------------------------------------- */

static void closed_region_is_not_found(void **state)
{
    traffic_t *traffic = traffic_create();
    tow_region_key_t key = traffic->region.region->key;
    region_probe_close(&traffic->region);
    WORLD_UNTIL(traffic->world, traffic->region.closed.count == 1);
    region_probe_free(&traffic->region);
    write_probe_t write = {0};
    write_plan_t plan = {.size = 100, .key = key, .tag = 1};
    assert_int_equal(write_probe_start(&write, &traffic->lane, &plan),
                     TOW_SEND_OK);
    WORLD_UNTIL(traffic->world, write.done_count == 1);
    assert_int_equal(write.code, TOW_NOT_FOUND);
    traffic_destroy(traffic);
    write_probe_free(&write);
}

/* The memory is freed as soon as `closed` has run: the sanitizer, and the guard
 * of the next block, detect any later write. */
static void close_region_after_steps(int step_count)
{
    traffic_t *traffic = traffic_create();
    traffic_start(traffic);
    for (int i = 0; i < step_count; i++)
        world_step(traffic->world);
    region_probe_close(&traffic->region);
    WORLD_UNTIL(traffic->world, traffic->region.closed.count == 1);
    region_probe_free(&traffic->region);
    WORLD_UNTIL(traffic->world, done_count(traffic) == WRITE_COUNT);
    for (size_t i = 0; i < WRITE_COUNT; i++)
        assert_true(traffic->writes[i].code == TOW_CODE_OK ||
                    traffic->writes[i].code == TOW_NOT_FOUND);
    traffic_destroy(traffic);
}

static void closing_region_waits_for_writes_in_progress(void **state)
{
    for (int step_count = 0; step_count < 40; step_count += 3)
        close_region_after_steps(step_count);
}

static void close_when_arrived(region_probe_t *probe,
                               const tow_arrival_t *arrival)
{
    if (!probe->closing) region_probe_close(probe);
}

static void region_may_be_closed_in_arrived(void **state)
{
    traffic_t *traffic = traffic_create();
    traffic->region.arrived = close_when_arrived;
    traffic_start(traffic);
    WORLD_UNTIL(traffic->world, traffic->region.closed.count == 1 &&
                                    done_count(traffic) == WRITE_COUNT);
    traffic_destroy(traffic);
}

/* -- Peers that die ------------------------------------------------------- */

static void note_target(link_probe_t *probe, const tow_message_t *message)
{
    if (message->type != LANE_TARGET) return;
    assert_int_equal(message->size, sizeof(lane_target_t));
    memcpy(probe->context, message->bytes, message->size);
}

/* The control plane detects the death; then the lane is closed by force. */
static void kill_target_after(int step_count)
{
    world_t *world = world_create_with_lanes(1);
    lane_target_t target = {0};
    acceptor_t acceptor = {.hooks = {.message = note_target},
                           .context = &target};
    acceptor_listen(&acceptor, world, 0);
    world_spawn(world, "target", acceptor.listener->address);
    WORLD_UNTIL(world, target.address_size > 0);
    lane_probe_t lane = {0};
    lane_probe_open_at(&lane, world_env(world, 0), target.address,
                       target.address_size);
    write_probe_t writes[4] = {0};
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++) {
        write_plan_t plan = {.size = TARGET_SIZE, .key = target.key, .tag = i};
        assert_int_equal(write_probe_start(&writes[i], &lane, &plan),
                         TOW_SEND_OK);
    }
    for (int i = 0; i < step_count; i++)
        world_step(world);
    world_kill(world);
    WORLD_UNTIL(world, acceptor.accepted[0]->down_count == 1);
    lane_probe_close(&lane, TOW_LANE_CLOSE_FORCE);
    WORLD_UNTIL(world, lane.closed.count == 1);
    assert_int_equal(lane.pending_count, 0);
    world_destroy(world);
    acceptor_deinit(&acceptor);
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++) {
        assert_int_equal(writes[i].done_count, 1);
        write_probe_free(&writes[i]);
    }
}

static void target_that_dies_in_mid_write_leaves_nothing(void **state)
{
    kill_target_after(0);
    kill_target_after(5);
    kill_target_after(50);
}

typedef struct survivor {
    world_t *world;
    acceptor_t acceptor;
    region_probe_t region;
    lane_target_t target; /* ours, for the writer */
    lane_target_t writer; /* its lane address; zero until received */
    lane_probe_t lane;    /* to the writer */
} survivor_t;

static void tell_target(link_probe_t *probe)
{
    survivor_t *survivor = probe->context;
    assert_int_equal(tow_link_send(probe->link, LANE_TARGET, &survivor->target,
                                   sizeof(survivor->target)),
                     TOW_SEND_OK);
}

static void note_writer(link_probe_t *probe, const tow_message_t *message)
{
    survivor_t *survivor = probe->context;
    assert_int_equal(message->type, LANE_TARGET);
    assert_int_equal(message->size, sizeof(survivor->writer));
    memcpy(&survivor->writer, message->bytes, message->size);
}

static survivor_t *survivor_create(void)
{
    world_t *world = world_create_with_lanes(1);
    survivor_t *survivor = calloc(1, sizeof(*survivor));
    survivor->world = world;
    survivor->acceptor.hooks =
        (link_hooks_t){.up = tell_target, .message = note_writer};
    survivor->acceptor.context = survivor;
    region_probe_open(&survivor->region, world_env(world, 0), TARGET_SIZE);
    lane_target_of(world_env(world, 0), survivor->region.region->key,
                   TARGET_SIZE, &survivor->target);
    acceptor_listen(&survivor->acceptor, world, 0);
    return survivor;
}

/* Closing its own lane to the writer by force also ends the writer's transfers;
 * then none is in progress in the region. */
static void kill_writer_after(int arrival_count, int step_count)
{
    survivor_t *survivor = survivor_create();
    world_t *world = survivor->world;
    world_spawn(world, "writer", survivor->acceptor.listener->address);
    WORLD_UNTIL(world, survivor->writer.address_size > 0);
    lane_probe_open_at(&survivor->lane, world_env(world, 0),
                       survivor->writer.address, survivor->writer.address_size);
    WORLD_UNTIL(world, survivor->region.arrived_count >= arrival_count);
    for (int i = 0; i < step_count; i++)
        world_step(world);
    world_kill(world);
    WORLD_UNTIL(world, survivor->acceptor.accepted[0]->down_count == 1);
    lane_probe_close(&survivor->lane, TOW_LANE_CLOSE_FORCE);
    region_probe_close(&survivor->region);
    WORLD_UNTIL(world, survivor->region.closed.count == 1 &&
                           survivor->lane.closed.count == 1);
    region_probe_free(&survivor->region);
    world_destroy(world);
    acceptor_deinit(&survivor->acceptor);
    free(survivor);
}

static void writer_that_dies_in_mid_write_leaves_nothing(void **state)
{
    kill_writer_after(1, 0);
    kill_writer_after(1, 20);
    kill_writer_after(3, 7);
}

SUITE(lane_close, CONFORMANCE_TEST(idle_lane_closes_either_way),
      CONFORMANCE_TEST(graceful_close_completes_pending_writes),
      CONFORMANCE_TEST(force_close_ends_all_pending_writes),
      CONFORMANCE_TEST(force_close_does_not_wait_for_a_peer_that_hangs),
      CONFORMANCE_TEST(force_close_fails_inbound_writes_of_that_peer),
      CONFORMANCE_TEST(lane_may_be_reopened_after_force_close),
      CONFORMANCE_TEST(lane_may_be_closed_in_done_of_a_write),
      CONFORMANCE_TEST(closed_region_is_not_found),
      CONFORMANCE_TEST(closing_region_waits_for_writes_in_progress),
      CONFORMANCE_TEST(region_may_be_closed_in_arrived),
      CONFORMANCE_TEST(target_that_dies_in_mid_write_leaves_nothing),
      CONFORMANCE_TEST(writer_that_dies_in_mid_write_leaves_nothing))
