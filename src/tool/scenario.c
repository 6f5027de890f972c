#include "tool/scenario.h"

#include "base/alloc.h"
#include "base/vec.h"

#define MILLISECOND_NS 1000000
#define SECOND_NS      1000000000

/* Faults are over by then; what is not finished a minute later never will. */
#define FAULTS_END_NS (INT64_C(4) * SECOND_NS)
#define FINISH_BY_NS  (FAULTS_END_NS + INT64_C(60) * SECOND_NS)
/* Of each reach of a fault point: some fire in most runs, none in all. */
#define FAULT_POINT_PPM 5000
#define NODE_COUNT_MAX  4096
#define NAME_SIZE       32

typedef struct scenario_node {
    char name[NAME_SIZE];
    char address[NAME_SIZE + 8];
    const char **dial_addresses; /* owned; the texts are other nodes' */
    size_t dial_count;
    struct scenario *scenario; /* lent */
    tow_sim_node_t *node;      /* lent by the world */
    tow_sim_host_t *host;      /* lent by the world */
} scenario_node_t;

typedef struct scenario {
    const tow_scenario_options_t *options; /* lent */
    tow_random_t random;
    tow_sim_t *sim;         /* owned */
    scenario_node_t *nodes; /* owned */
    size_t node_count;
    size_t fault_count;
    uint64_t message_count;
    uint32_t payload_size;
    uint64_t block_count;
    size_t block_size;
    tow_exchange_stats_t stats; /* of all lives that have ended */
} scenario_t;

static tow_status_t start_exchange(tow_env_t *env, void *argument,
                                   void **out_machine)
{
    const scenario_node_t *node = argument;
    const scenario_t *scenario = node->scenario;
    tow_exchange_options_t options = {
        .listen_address = node->address,
        .dial_addresses = node->dial_addresses,
        .dial_count = node->dial_count,
        .message_count = scenario->message_count,
        .payload_size = scenario->payload_size,
        .block_count = scenario->block_count,
        .block_size = scenario->block_size,
        .context = node->scenario,
    };
    tow_exchange_t *exchange = NULL;
    TOW_RETURN_IF_ERROR(tow_exchange_create(env, &options, &exchange));
    *out_machine = exchange;
    return TOW_OK;
}

static void add_stats(tow_exchange_stats_t *sum,
                      const tow_exchange_stats_t *one)
{
    sum->messages_sent += one->messages_sent;
    sum->messages_resent += one->messages_resent;
    sum->messages_taken += one->messages_taken;
    sum->duplicates_dropped += one->duplicates_dropped;
    sum->blocks_written += one->blocks_written;
    sum->blocks_repeated += one->blocks_repeated;
    sum->blocks_taken += one->blocks_taken;
    sum->epochs += one->epochs;
    sum->breaks += one->breaks;
}

/* The end of a life, by a crash or with the world. */
static void destroy_exchange(void *machine)
{
    scenario_t *scenario = tow_exchange_context(machine);
    add_stats(&scenario->stats, tow_exchange_stats(machine));
    tow_exchange_destroy(machine);
}

static const tow_sim_program_t exchange_program = {
    .start = start_exchange,
    .destroy = destroy_exchange,
};

static void check_all(void *context, tow_sim_t *sim)
{
    scenario_t *scenario = context;
    for (size_t i = 0; i < scenario->node_count; i++) {
        const tow_exchange_t *exchange =
            tow_sim_node_machine(scenario->nodes[i].node);
        if (exchange == NULL) continue;
        tow_status_t status = tow_exchange_check(exchange);
        if (status == TOW_OK) continue;
        tow_sim_fail(sim, tow_status_annotate(status, "node %s",
                                              scenario->nodes[i].name));
        return;
    }
}

static bool all_finished(void *context)
{
    const scenario_t *scenario = context;
    if (scenario->options->faults == TOW_SCENARIO_FAULTY &&
        tow_sim_now_ns(scenario->sim) < FAULTS_END_NS)
        return false;
    for (size_t i = 0; i < scenario->node_count; i++) {
        const tow_exchange_t *exchange =
            tow_sim_node_machine(scenario->nodes[i].node);
        if (exchange == NULL || !tow_exchange_is_finished(exchange))
            return false;
    }
    return true;
}

static uint64_t below(scenario_t *scenario, uint64_t bound)
{
    return tow_random_below(&scenario->random, bound);
}

static tow_sim_path_t random_path(scenario_t *scenario)
{
    tow_sim_path_t path = {
        .latency_ns = (int64_t)(1000 + below(scenario, 2 * MILLISECOND_NS)),
        .jitter_ns = (int64_t)below(scenario, 500000),
        .bandwidth_bytes_per_second = 1000000 + below(scenario, 1000000000),
    };
    if (scenario->options->faults == TOW_SCENARIO_CALM) return path;
    path.loss_ppm = (uint32_t)below(scenario, 2000);
    path.corrupt_ppm = (uint32_t)below(scenario, 2000);
    path.duplicate_ppm = (uint32_t)below(scenario, 50000);
    path.reorder_ppm = (uint32_t)below(scenario, 50000);
    return path;
}

/* Loss and damage end with the faults: a path that goes on breaking every
 * thousandth message may never let a long stream through. */
static tow_sim_path_t without_damage(tow_sim_path_t path)
{
    path.loss_ppm = path.corrupt_ppm = 0;
    return path;
}

static tow_status_t make_world(scenario_t *scenario)
{
    const tow_scenario_options_t *options = scenario->options;
    tow_sim_options_t world = {
        .seed = tow_random_next(&scenario->random),
        .fault_chance_ppm =
            options->faults == TOW_SCENARIO_FAULTY ? FAULT_POINT_PPM : 0,
        .remote_path = random_path(scenario),
        .log = options->log,
        .event_log = options->event_log,
        .after_event = check_all,
        .after_event_context = scenario,
    };
    return tow_sim_create(&world, &scenario->sim);
}

static void choose_sizes(scenario_t *scenario)
{
    const tow_scenario_options_t *options = scenario->options;
    scenario->node_count = options->node_count != 0
                               ? options->node_count
                               : 2 + (size_t)below(scenario, 11);
    scenario->message_count = options->message_count != 0
                                  ? options->message_count
                                  : 1 + below(scenario, 2000);
    scenario->payload_size = 16 + (uint32_t)below(scenario, 200);
    scenario->block_count =
        options->block_count != 0 ? options->block_count : below(scenario, 6);
    scenario->block_size = 16 + (size_t)below(scenario, 200000);
}

/* Every node but the first dials one to three earlier ones, so all are
 * connected and nobody dials itself. */
static tow_status_t choose_peers(scenario_t *scenario, size_t index)
{
    scenario_node_t *node = &scenario->nodes[index];
    if (index == 0) return TOW_OK;
    size_t count = 1 + (size_t)below(scenario, 3);
    node->dial_addresses = tow_calloc(count, sizeof(*node->dial_addresses));
    if (node->dial_addresses == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    node->dial_count = count;
    for (size_t i = 0; i < count; i++)
        node->dial_addresses[i] =
            scenario->nodes[below(scenario, index)].address;
    return TOW_OK;
}

static tow_status_t make_node(scenario_t *scenario, size_t index)
{
    scenario_node_t *node = &scenario->nodes[index];
    node->scenario = scenario;
    snprintf(node->name, sizeof(node->name), "node/%zu", index);
    snprintf(node->address, sizeof(node->address), "sim:%s", node->name);
    TOW_RETURN_IF_ERROR(choose_peers(scenario, index));
    tow_sim_host_options_t host = {
        .core_count = 1 + (uint32_t)below(scenario, 4),
        .costs = {.turn_ns = 200,
                  .receive_ns = (int64_t)below(scenario, 3000),
                  .receive_ns_per_kib = 50,
                  .send_ns = (int64_t)below(scenario, 3000),
                  .send_ns_per_kib = 50},
    };
    TOW_RETURN_IF_ERROR(tow_sim_host_create(scenario->sim, &host, &node->host));
    tow_sim_node_options_t options = {.name = node->name,
                                      .host = node->host,
                                      .program = &exchange_program,
                                      .argument = node};
    return tow_sim_node_create(scenario->sim, &options, &node->node);
}

static int64_t random_time(scenario_t *scenario)
{
    return (int64_t)below(scenario, FAULTS_END_NS);
}

static int64_t random_time_after(scenario_t *scenario, int64_t time_ns)
{
    return time_ns +
           (int64_t)below(scenario, (uint64_t)(FAULTS_END_NS - time_ns));
}

/* Breaks one node by `kind` and mends it by `mend` before the faults end. */
static tow_status_t schedule_pair(scenario_t *scenario,
                                  tow_sim_action_kind_t kind,
                                  tow_sim_action_kind_t mend)
{
    tow_sim_node_t *node =
        scenario->nodes[below(scenario, scenario->node_count)].node;
    int64_t start_ns = random_time(scenario);
    tow_sim_action_t action = {.kind = kind, .node = node};
    TOW_RETURN_IF_ERROR(
        tow_sim_schedule(scenario->sim, start_ns, &action, NULL));
    action.kind = mend;
    return tow_sim_schedule(
        scenario->sim, random_time_after(scenario, start_ns), &action, NULL);
}

static tow_status_t schedule_cut(scenario_t *scenario)
{
    tow_sim_host_t *lonely =
        scenario->nodes[below(scenario, scenario->node_count)].host;
    tow_sim_action_t action = {.kind = TOW_SIM_PARTITION,
                               .cut = {.a = &lonely,
                                       .a_count = 1,
                                       .direction = below(scenario, 2) == 0
                                                        ? TOW_SIM_BOTH_WAYS
                                                        : TOW_SIM_ONE_WAY}};
    int64_t start_ns = random_time(scenario);
    uint64_t cut_id = 0;
    TOW_RETURN_IF_ERROR(
        tow_sim_schedule(scenario->sim, start_ns, &action, &cut_id));
    tow_sim_action_t heal = {.kind = TOW_SIM_HEAL, .cut_id = cut_id};
    return tow_sim_schedule(scenario->sim,
                            random_time_after(scenario, start_ns), &heal, NULL);
}

static tow_status_t schedule_one_fault(scenario_t *scenario)
{
    scenario->fault_count++;
    switch (below(scenario, 3)) {
    case 0: return schedule_pair(scenario, TOW_SIM_CRASH, TOW_SIM_RESTART);
    case 1: return schedule_pair(scenario, TOW_SIM_PAUSE, TOW_SIM_RESUME);
    default: return schedule_cut(scenario);
    }
}

/* At the end everything is mended, whatever the pairs above left behind: two
 * crashes of one node may overlap. */
static void mend_everything(void *context, tow_sim_t *sim)
{
    scenario_t *scenario = context;
    tow_sim_path_t clean = without_damage(random_path(scenario));
    tow_sim_heal(sim, 0);
    for (size_t i = 0; i < scenario->node_count; i++) {
        tow_sim_restart(scenario->nodes[i].node);
        tow_sim_resume(scenario->nodes[i].node);
        for (size_t j = 0; j < i; j++) {
            tow_status_t status = tow_sim_set_path(sim, scenario->nodes[i].host,
                                                   scenario->nodes[j].host,
                                                   TOW_SIM_BOTH_WAYS, &clean);
            if (status != TOW_OK) tow_sim_fail(sim, status);
        }
    }
}

static tow_status_t schedule_faults(scenario_t *scenario)
{
    if (scenario->options->faults == TOW_SCENARIO_CALM) return TOW_OK;
    size_t count = 1 + (size_t)below(scenario, 3 * scenario->node_count);
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(schedule_one_fault(scenario));
    tow_sim_action_t mend = {
        .kind = TOW_SIM_CALL, .call = mend_everything, .context = scenario};
    return tow_sim_schedule(scenario->sim, FAULTS_END_NS, &mend, NULL);
}

static tow_status_t set_up(scenario_t *scenario)
{
    choose_sizes(scenario);
    if (scenario->node_count < 2 || scenario->node_count > NODE_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu nodes: 2 to %d are allowed",
                         scenario->node_count, NODE_COUNT_MAX);
    scenario->nodes =
        tow_calloc(scenario->node_count, sizeof(*scenario->nodes));
    if (scenario->nodes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(make_world(scenario));
    for (size_t i = 0; i < scenario->node_count; i++)
        TOW_RETURN_IF_ERROR(make_node(scenario, i));
    return schedule_faults(scenario);
}

static void collect(const scenario_t *scenario, tow_scenario_result_t *result)
{
    result->digest = tow_sim_digest(scenario->sim);
    result->virtual_ns = tow_sim_now_ns(scenario->sim);
    result->node_count = scenario->node_count;
    result->fault_count = scenario->fault_count;
    result->counts = tow_sim_counts(scenario->sim);
}

static void tear_down(scenario_t *scenario)
{
    tow_sim_destroy(scenario->sim);
    for (size_t i = 0; scenario->nodes != NULL && i < scenario->node_count; i++)
        tow_free(scenario->nodes[i].dial_addresses);
    tow_free(scenario->nodes);
}

tow_status_t tow_scenario_run(const tow_scenario_options_t *options,
                              tow_scenario_result_t *out_result)
{
    *out_result = (tow_scenario_result_t){0};
    scenario_t scenario = {.options = options};
    tow_random_init(&scenario.random, options->seed);
    tow_status_t status = set_up(&scenario);
    if (status == TOW_OK) {
        tow_sim_run_options_t run = {.until_ns = FINISH_BY_NS,
                                     .until = all_finished,
                                     .context = &scenario};
        status = tow_sim_run(scenario.sim, &run);
        if (tow_status_code(status) == TOW_DEADLINE_EXCEEDED)
            status = tow_status_annotate(
                status, "streams did not finish within a minute of the last "
                        "fault");
        collect(&scenario, out_result);
    }
    tear_down(&scenario);
    out_result->stats = scenario.stats;
    return status;
}
