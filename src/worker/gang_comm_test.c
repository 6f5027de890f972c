/* The gang communicator: creation and removal of the arena, and forwarding of
 * events to the collectives, which have their own tests. */
#include "base/testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective/intra_host/intra_host.h"
#include "env/sim/sim.h"
#include "worker/gang_comm.h"

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

static void close_comm(fixture_t *fixture, tow_gang_comm_t *comm)
{
    const int before = fixture->closed_count;
    tow_gang_comm_close(comm, (tow_closed_t){count_closed, fixture});
    must(tow_sim_run(
        fixture->sim,
        &(tow_sim_run_options_t){.until_ns = tow_sim_now_ns(fixture->sim) +
                                             1000000000}));
    assert_int_equal(fixture->closed_count, before + 1);
}

static tow_status_t open_comm(fixture_t *fixture, uint32_t process,
                              tow_gang_comm_t **out_comm)
{
    return tow_gang_comm_open(
        &(tow_gang_comm_options_t){.env = fixture->env,
                                   .cluster = fixture->cluster,
                                   .host = "here",
                                   .process = process,
                                   .device_count = 2},
        out_comm);
}

static bool has_shared_memory(const fixture_t *fixture, const char *ending)
{
    char arena[TOW_GANG_COMM_ARENA_NAME_SIZE];
    char name[TOW_GANG_COMM_ARENA_NAME_SIZE + 16];
    tow_gang_comm_arena_name(fixture->cluster, "here", arena);
    snprintf(name, sizeof(name), "%s%s", arena, ending);
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void the_first_process_creates_the_arena_and_the_last_removes_it(
    void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gang_comm_t *first, *second;
    fixture_open(&fixture);
    must(open_comm(&fixture, 1, &first));
    must(open_comm(&fixture, 2, &second));
    assert_true(has_shared_memory(&fixture, ""));
    close_comm(&fixture, first);
    assert_true(has_shared_memory(&fixture, ""));
    must(open_comm(&fixture, 3, &first));
    close_comm(&fixture, second);
    assert_true(has_shared_memory(&fixture, ""));
    close_comm(&fixture, first);
    assert_false(has_shared_memory(&fixture, ""));
    assert_false(has_shared_memory(&fixture, ".lock"));
    tow_sim_destroy(fixture.sim);
}

static void an_arena_left_by_a_killed_process_is_replaced(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gang_comm_t *comm;
    char arena[TOW_GANG_COMM_ARENA_NAME_SIZE];
    fixture_open(&fixture);
    tow_gang_comm_arena_name(fixture.cluster, "here", arena);
    /* Empty: its creator was killed before it wrote anything. */
    int fd = shm_open(arena, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    must(open_comm(&fixture, 1, &comm));
    close_comm(&fixture, comm);
    assert_false(has_shared_memory(&fixture, ""));
    tow_sim_destroy(fixture.sim);
}

static void a_sweep_removes_only_unused_arenas(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gang_comm_t *comm;
    char arena[TOW_GANG_COMM_ARENA_NAME_SIZE];
    fixture_open(&fixture);
    must(open_comm(&fixture, 1, &comm));
    tow_gang_comm_sweep(fixture.cluster, "here");
    assert_true(has_shared_memory(&fixture, ""));
    assert_true(has_shared_memory(&fixture, ".lock"));
    close_comm(&fixture, comm);
    tow_gang_comm_arena_name(fixture.cluster, "here", arena);
    must(
        tow_intra_host_arena_create(arena)); /* as a killed process leaves it */
    tow_gang_comm_sweep(fixture.cluster, "here");
    assert_false(has_shared_memory(&fixture, ""));
    assert_false(has_shared_memory(&fixture, ".lock"));
    tow_sim_destroy(fixture.sim);
}

static void clusters_and_hosts_have_distinct_arenas(void **state)
{
    (void)state;
    char a[TOW_GANG_COMM_ARENA_NAME_SIZE], b[TOW_GANG_COMM_ARENA_NAME_SIZE];
    assert_string_not_equal(tow_gang_comm_arena_name("tcp:a:1", "x", a),
                            tow_gang_comm_arena_name("tcp:a:2", "x", b));
    assert_string_not_equal(tow_gang_comm_arena_name("tcp:a:1", "x", a),
                            tow_gang_comm_arena_name("tcp:a:1", "y", b));
    assert_string_equal(tow_gang_comm_arena_name("tcp:a:1", "x", a),
                        tow_gang_comm_arena_name("tcp:a:1", "x", b));
}

static void a_device_is_claimed_once(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gang_comm_t *comm, *other;
    fixture_open(&fixture);
    must(open_comm(&fixture, 1, &comm));
    expect_error(open_comm(&fixture, 1, &other), TOW_ALREADY_EXISTS);
    assert_true(has_shared_memory(&fixture, ""));
    close_comm(&fixture, comm);
    assert_false(has_shared_memory(&fixture, ""));
    tow_sim_destroy(fixture.sim);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gang_comm_t *comm;
    fixture_open(&fixture);
    tow_gang_comm_options_t options = {
        .env = fixture.env, .cluster = "c", .host = "h", .process = 1};
    expect_error(tow_gang_comm_open(&options, &comm), TOW_INVALID_ARGUMENT);
    options.device_count = TOW_XLA_DEVICE_COUNT_MAX + 1;
    expect_error(tow_gang_comm_open(&options, &comm), TOW_INVALID_ARGUMENT);
    options.device_count = 1;
    options.process = TOW_XLA_PROCESS_COUNT_MAX;
    expect_error(tow_gang_comm_open(&options, &comm), TOW_INVALID_ARGUMENT);
    tow_sim_destroy(fixture.sim);
}

/* A barrier with one member: the gang works. */
static int barrier_of_one(const tow_gang_comm_t *comm, uint64_t run_id)
{
    const tow_xla_collectives_t *collectives = tow_gang_comm_collectives(comm);
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

static void peers_and_aborts_reach_the_collectives(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_gang_comm_t *comm;
    fixture_open(&fixture);
    must(open_comm(&fixture, 1, &comm));
    assert_true(tow_gang_comm_mail(comm).id != 0);
    tow_worker_hooks_t hooks = tow_gang_comm_hooks(comm);
    const void *address;
    tow_worker_peer_t peer = {.process = 7,
                              .device_count = 2,
                              .name = "worker/7",
                              .memory = 1,
                              .mail = {5, 6}};
    hooks.peer_added(hooks.context, &peer); /* no address: ignored */
    tow_env_lane_address(fixture.env, &address, &peer.lane_address_size);
    peer.lane_address = address;
    hooks.peer_added(hooks.context, &peer);
    hooks.peer_added(hooks.context, &peer); /* is logged */
    assert_int_equal(barrier_of_one(comm, 10), 0);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "no more");
    hooks.abort_gang(hooks.context, 11, cause);
    hooks.peer_disconnected(hooks.context, 7, cause);
    tow_status_release(cause);
    close_comm(&fixture, comm);
    tow_sim_destroy(fixture.sim);
}

TOW_TEST_MAIN(cmocka_unit_test(
                  the_first_process_creates_the_arena_and_the_last_removes_it),
              cmocka_unit_test(an_arena_left_by_a_killed_process_is_replaced),
              cmocka_unit_test(a_sweep_removes_only_unused_arenas),
              cmocka_unit_test(clusters_and_hosts_have_distinct_arenas),
              cmocka_unit_test(a_device_is_claimed_once),
              cmocka_unit_test(invalid_options_are_refused),
              cmocka_unit_test(peers_and_aborts_reach_the_collectives))
