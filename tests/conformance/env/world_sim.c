/* `sim`: every node is on a host of its own, all in virtual time. WORLD_VARIANT
 * is "ideal" (nothing takes time) or "rough" (latency, jitter, bandwidth, CPU
 * costs; datagrams duplicated and reordered). */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "env/sim/sim.h"
#include "probe.h"

#define NS_PER_S INT64_C(1000000000)

#define WAIT_NS_MAX    (600 * NS_PER_S)
#define WAIT_EVENT_MAX 20000000
#define SETTLE_NS      (3 * NS_PER_S)

struct world {
    tow_sim_t *sim;
    tow_sim_path_t path;
    size_t node_count;
    tow_sim_node_t *nodes[WORLD_NODE_COUNT_MAX];
    bool is_closing[WORLD_NODE_COUNT_MAX];
    closed_probe_t closed[WORLD_NODE_COUNT_MAX];
    uint64_t cut_id;
    int64_t live_before;
    int64_t wait_end_ns;
    uint64_t wait_event_count;
    tow_sim_node_t *victim; /* NULL until the first incarnation */
    const victim_role_t *role;
    char address[WORLD_ADDRESS_SIZE]; /* given to the victim */
};

static world_t *current;

static bool is_rough(void)
{
    return strcmp(WORLD_VARIANT, "rough") == 0;
}

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

/* -- Creating and destroying ---------------------------------------------- */

static tow_sim_path_t path_for(const world_options_t *options)
{
    tow_sim_path_t path = {0};
    if (is_rough()) {
        path.latency_ns = 20000;
        path.jitter_ns = 15000;
        path.bandwidth_bytes_per_second = UINT64_C(4000000000);
        path.duplicate_ppm = 50000;
        path.reorder_ppm = 50000;
    }
    if (options->lossy) {
        path.loss_ppm = 100000;
        path.duplicate_ppm = 100000;
        path.reorder_ppm = 200000;
    }
    return path;
}

static tow_sim_host_t *host_create(world_t *world)
{
    tow_sim_host_options_t options = {.core_count = 1};
    if (is_rough())
        options.costs = (tow_sim_costs_t){.turn_ns = 300,
                                          .receive_ns = 500,
                                          .receive_ns_per_kib = 40,
                                          .send_ns = 400,
                                          .send_ns_per_kib = 40};
    tow_sim_host_t *host = NULL;
    must(tow_sim_host_create(world->sim, &options, &host));
    return host;
}

static void nodes_create(world_t *world, const world_options_t *options)
{
    assert_true(options->node_count <= WORLD_NODE_COUNT_MAX);
    world->node_count = options->node_count;
    for (size_t i = 0; i < world->node_count; i++) {
        tow_sim_node_options_t node = {.name = world_node_name(i),
                                       .host = host_create(world),
                                       .features = options->features[i]};
        must(tow_sim_node_create(world->sim, &node, &world->nodes[i]));
    }
}

world_t *world_create_with(const world_options_t *options)
{
    assert_null(current);
    world_t *world = calloc(1, sizeof(*world));
    current = world;
    turn_reset();
    world->live_before = tow_alloc_live_count();
    world->path = path_for(options);
    tow_sim_options_t sim = {.seed = 20261115,
                             .remote_path = world->path,
                             .local_path = world->path,
                             .log = {.level = TOW_LOG_OFF}};
    must(tow_sim_create(&sim, &world->sim));
    nodes_create(world, options);
    if (options->lanes && !tow_env_has_lanes(world_env(world, 0))) {
        world_destroy(world);
        tow_test_skip("no data plane");
    }
    return world;
}

void world_destroy(world_t *world)
{
    tow_sim_heal(world->sim, 0);
    for (size_t i = 0; i < world->node_count; i++) {
        tow_sim_resume(world->nodes[i]);
        if (world->is_closing[i]) continue;
        world_begin_close(world, i);
    }
    for (size_t i = 0; i < world->node_count; i++)
        WORLD_UNTIL(world, world_is_closed(world, i));
    tow_sim_destroy(world->sim);
    int64_t leaked = tow_alloc_live_count() - world->live_before;
    free(world);
    current = NULL;
    if (leaked != 0) fail_msg("%lld blocks leaked", (long long)leaked);
}

int world_tear_down(void **state)
{
    current = NULL;
    turn_reset();
    return 0;
}

bool world_can(const world_t *world, world_ability_t ability)
{
    return ability != WORLD_THREADS;
}

void world_require(world_t *world, world_ability_t ability)
{
    if (world_can(world, ability)) return;
    world_destroy(world);
    tow_test_skip("the simulator has one thread");
}

/* -- Nodes ---------------------------------------------------------------- */

tow_env_t *world_env(world_t *world, size_t node)
{
    return tow_sim_node_env(world->nodes[node]);
}

void world_begin_close(world_t *world, size_t node)
{
    tow_env_t *env = world_env(world, node);
    world->is_closing[node] = true;
    call_enter();
    tow_env_close(env, closed_probe(&world->closed[node], env));
    call_leave();
}

bool world_is_closed(const world_t *world, size_t node)
{
    return world->closed[node].count == 1;
}

void world_close_node(world_t *world, size_t node)
{
    world_begin_close(world, node);
    WORLD_UNTIL(world, world_is_closed(world, node));
}

void world_revive_node(world_t *world, size_t node)
{
    assert_true(world_is_closed(world, node));
    tow_sim_crash(world->nodes[node]);
    tow_sim_restart(world->nodes[node]);
    world->is_closing[node] = false;
    world->closed[node] = (closed_probe_t){0};
}

void world_stall(world_t *world, size_t node)
{
    tow_sim_pause(world->nodes[node]);
}

void world_resume(world_t *world, size_t node)
{
    tow_sim_resume(world->nodes[node]);
}

/* -- Driving the nodes ---------------------------------------------------- */

void world_wait_begin(world_t *world)
{
    world->wait_end_ns = tow_sim_now_ns(world->sim) + WAIT_NS_MAX;
    world->wait_event_count = 0;
}

void world_wait_step(world_t *world, const char *condition, const char *file,
                     int line)
{
    const char *why = NULL;
    if (!tow_sim_step(world->sim))
        why = "no event is left";
    else if (tow_sim_now_ns(world->sim) > world->wait_end_ns)
        why = "too much virtual time has passed";
    else if (++world->wait_event_count > WAIT_EVENT_MAX)
        why = "too many events have passed";
    if (why != NULL)
        fail_msg("%s:%d: waiting for \"%s\": %s", file, line, condition, why);
}

void world_step(world_t *world)
{
    tow_sim_step(world->sim);
}

void world_settle(world_t *world)
{
    must(tow_sim_run(world->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(world->sim) + SETTLE_NS,
                         .event_count_max = WAIT_EVENT_MAX}));
}

void world_sleep(world_t *world, size_t node)
{
    fail_msg("the simulator does not sleep");
}

/* -- Paths ---------------------------------------------------------------- */

const char *world_listen_address(world_t *world, size_t node,
                                 char address[WORLD_ADDRESS_SIZE])
{
    snprintf(address, WORLD_ADDRESS_SIZE, "sim:%s", world_node_name(node));
    return address;
}

const char *world_route(world_t *world, size_t from, size_t to,
                        const char *target, char address[WORLD_ADDRESS_SIZE])
{
    snprintf(address, WORLD_ADDRESS_SIZE, "%s", target);
    return address;
}

void world_break(world_t *world, size_t from, size_t to)
{
    tow_sim_host_t *a = tow_sim_node_host(world->nodes[from]);
    tow_sim_host_t *b = tow_sim_node_host(world->nodes[to]);
    tow_sim_cut_t cut = {.a = &a, .a_count = 1, .b = &b, .b_count = 1};
    must(tow_sim_partition(world->sim, &cut, &world->cut_id));
}

void world_mend(world_t *world, size_t from, size_t to)
{
    tow_sim_heal(world->sim, world->cut_id);
}

void world_corrupt(world_t *world, uint32_t parts_per_million)
{
    world->path.corrupt_ppm = parts_per_million;
    for (size_t a = 0; a < world->node_count; a++) {
        for (size_t b = 0; b < a; b++)
            must(tow_sim_set_path(world->sim,
                                  tow_sim_node_host(world->nodes[a]),
                                  tow_sim_node_host(world->nodes[b]),
                                  TOW_SIM_BOTH_WAYS, &world->path));
    }
}

/* -- Victims -------------------------------------------------------------- */

static tow_status_t victim_start(tow_env_t *env, void *argument,
                                 void **out_machine)
{
    world_t *world = argument;
    world->role->boot(env, world->address);
    return TOW_OK;
}

void world_spawn(world_t *world, const char *role, const char *address)
{
    static const tow_sim_program_t program = {.start = victim_start};
    world->role = victim_role_find(role);
    snprintf(world->address, sizeof(world->address), "%s", address);
    if (world->victim != NULL) {
        tow_sim_restart(world->victim);
        return;
    }
    tow_sim_node_options_t node = {.name = VICTIM_NAME,
                                   .host = host_create(world),
                                   .program = &program,
                                   .argument = world};
    must(tow_sim_node_create(world->sim, &node, &world->victim));
}

void world_kill(world_t *world)
{
    tow_sim_crash(world->victim);
}

int main(int argc, char **argv)
{
    return conformance_main(argc, argv);
}
