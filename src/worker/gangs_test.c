/* Where gangs meet: who makes and removes the arena, and who is told what. The
 * collectives have their own tests. */
#include "base/testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective/host/host.h"
#include "env/sim/sim.h"
#include "worker/gangs.h"

typedef struct fixture {
    tow_sim_t *sim;
    tow_env_t *env;
    char cluster[64]; /* of this process alone */
    int closed_count;
} fixture_t;

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void expect_error(tow_status_t status, tow_code_t code)
{
    assert_int_equal(tow_status_code(status), code);
    tow_status_release(status);
}

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    tow_sim_options_t options = {.seed = 3};
    options.log.level = TOW_LOG_OFF;
    tow_sim_node_t *node;
    must(tow_sim_create(&options, &fixture->sim));
    must(tow_sim_node_create(
        fixture->sim, &(tow_sim_node_options_t){.name = "worker"}, &node));
    fixture->env = tow_sim_node_env(node);
    snprintf(fixture->cluster, sizeof(fixture->cluster), "unix:/test/%d",
             (int)getpid());
}

static void count_closed(void *context)
{
    ((fixture_t *)context)->closed_count++;
}

static void close_gangs(fixture_t *fixture, tow_gangs_t *gangs)
{
    const int before = fixture->closed_count;
    tow_gangs_close(gangs, (tow_closed_t){count_closed, fixture});
    must(tow_sim_run(
        fixture->sim,
        &(tow_sim_run_options_t){.until_ns = tow_sim_now_ns(fixture->sim) +
                                             1000000000}));
    assert_int_equal(fixture->closed_count, before + 1);
}

static tow_status_t open_gangs(fixture_t *fixture, uint32_t process,
                               tow_gangs_t **out_gangs)
{
    return tow_gangs_open(&(tow_gangs_options_t){.env = fixture->env,
                                                 .cluster = fixture->cluster,
                                                 .host = "here",
                                                 .process = process,
                                                 .device_count = 2},
                          out_gangs);
}

static bool has_shared_memory(const fixture_t *fixture, const char *ending)
{
    char arena[TOW_GANGS_ARENA_NAME_SIZE];
    char name[TOW_GANGS_ARENA_NAME_SIZE + 16];
    tow_gangs_arena_name(fixture->cluster, "here", arena);
    snprintf(name, sizeof(name), "%s%s", arena, ending);
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void the_first_makes_the_arena_and_the_last_removes_it(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gangs_t *first, *second;
    fixture_open(&fixture);
    must(open_gangs(&fixture, 1, &first));
    must(open_gangs(&fixture, 2, &second));
    assert_true(has_shared_memory(&fixture, ""));
    close_gangs(&fixture, first);
    assert_true(has_shared_memory(&fixture, ""));
    must(open_gangs(&fixture, 3, &first));
    close_gangs(&fixture, second);
    assert_true(has_shared_memory(&fixture, ""));
    close_gangs(&fixture, first);
    assert_false(has_shared_memory(&fixture, ""));
    assert_false(has_shared_memory(&fixture, ".lock"));
    tow_sim_destroy(fixture.sim);
}

static void what_the_killed_left_is_swept_out(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gangs_t *gangs;
    char arena[TOW_GANGS_ARENA_NAME_SIZE];
    fixture_open(&fixture);
    tow_gangs_arena_name(fixture.cluster, "here", arena);
    /* Not even an arena: its maker was killed in the middle. */
    int fd = shm_open(arena, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    must(open_gangs(&fixture, 1, &gangs));
    close_gangs(&fixture, gangs);
    assert_false(has_shared_memory(&fixture, ""));
    tow_sim_destroy(fixture.sim);
}

static void a_sweep_waits_until_nobody_is_in(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gangs_t *gangs;
    char arena[TOW_GANGS_ARENA_NAME_SIZE];
    fixture_open(&fixture);
    must(open_gangs(&fixture, 1, &gangs));
    tow_gangs_sweep(fixture.cluster, "here");
    assert_true(has_shared_memory(&fixture, ""));
    assert_true(has_shared_memory(&fixture, ".lock"));
    close_gangs(&fixture, gangs);
    tow_gangs_arena_name(fixture.cluster, "here", arena);
    must(tow_host_arena_create(arena)); /* as one that was killed leaves it */
    tow_gangs_sweep(fixture.cluster, "here");
    assert_false(has_shared_memory(&fixture, ""));
    assert_false(has_shared_memory(&fixture, ".lock"));
    tow_sim_destroy(fixture.sim);
}

static void two_clusters_and_two_hosts_do_not_meet(void **state)
{
    (void)state;
    char a[TOW_GANGS_ARENA_NAME_SIZE], b[TOW_GANGS_ARENA_NAME_SIZE];
    assert_string_not_equal(tow_gangs_arena_name("tcp:a:1", "x", a),
                            tow_gangs_arena_name("tcp:a:2", "x", b));
    assert_string_not_equal(tow_gangs_arena_name("tcp:a:1", "x", a),
                            tow_gangs_arena_name("tcp:a:1", "y", b));
    assert_string_equal(tow_gangs_arena_name("tcp:a:1", "x", a),
                        tow_gangs_arena_name("tcp:a:1", "x", b));
}

static void a_device_is_claimed_once(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gangs_t *gangs, *other;
    fixture_open(&fixture);
    must(open_gangs(&fixture, 1, &gangs));
    expect_error(open_gangs(&fixture, 1, &other), TOW_ALREADY_EXISTS);
    assert_true(has_shared_memory(&fixture, ""));
    close_gangs(&fixture, gangs);
    assert_false(has_shared_memory(&fixture, ""));
    tow_sim_destroy(fixture.sim);
}

static void senseless_options_are_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gangs_t *gangs;
    fixture_open(&fixture);
    tow_gangs_options_t options = {
        .env = fixture.env, .cluster = "c", .host = "h", .process = 1};
    expect_error(tow_gangs_open(&options, &gangs), TOW_INVALID_ARGUMENT);
    options.device_count = TOW_XLA_DEVICE_COUNT_MAX + 1;
    expect_error(tow_gangs_open(&options, &gangs), TOW_INVALID_ARGUMENT);
    options.device_count = 1;
    options.process = TOW_XLA_PROCESS_COUNT_MAX;
    expect_error(tow_gangs_open(&options, &gangs), TOW_INVALID_ARGUMENT);
    tow_sim_destroy(fixture.sim);
}

/* A barrier with one member: the way is there. */
static int meet_alone(const tow_gangs_t *gangs, uint64_t run_id)
{
    const tow_xla_collectives_t *collectives = tow_gangs_collectives(gangs);
    const int64_t member = TOW_XLA_PROCESS_STRIDE;
    char error[256];
    const tow_xla_collective_t barrier = {.struct_size = sizeof(barrier),
                                          .kind = TOW_XLA_BARRIER,
                                          .run_id = run_id,
                                          .members = &member,
                                          .member_count = 1};
    return collectives->run(collectives->context, &barrier, error,
                            sizeof(error));
}

static void peers_and_aborts_pass_through(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gangs_t *gangs;
    fixture_open(&fixture);
    must(open_gangs(&fixture, 1, &gangs));
    assert_true(tow_gangs_mail(gangs).id != 0);
    tow_worker_hooks_t hooks = tow_gangs_hooks(gangs);
    const void *address;
    tow_worker_peer_t peer = {.process = 7,
                              .device_count = 2,
                              .name = "worker/7",
                              .host = "there",
                              .mail = {5, 6}};
    hooks.peer_added(hooks.context, &peer); /* without an address: nothing */
    tow_env_lane_address(fixture.env, &address, &peer.lane_address_size);
    peer.lane_address = address;
    hooks.peer_added(hooks.context, &peer);
    hooks.peer_added(hooks.context, &peer); /* is logged */
    assert_int_equal(meet_alone(gangs, 10), 0);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "no more");
    hooks.abort_gang(hooks.context, 11, cause);
    hooks.peer_gone(hooks.context, 7, cause);
    tow_status_release(cause);
    close_gangs(&fixture, gangs);
    tow_sim_destroy(fixture.sim);
}

TOW_TEST_MAIN(
    cmocka_unit_test(the_first_makes_the_arena_and_the_last_removes_it),
    cmocka_unit_test(what_the_killed_left_is_swept_out),
    cmocka_unit_test(a_sweep_waits_until_nobody_is_in),
    cmocka_unit_test(two_clusters_and_two_hosts_do_not_meet),
    cmocka_unit_test(a_device_is_claimed_once),
    cmocka_unit_test(senseless_options_are_refused),
    cmocka_unit_test(peers_and_aborts_pass_through))
