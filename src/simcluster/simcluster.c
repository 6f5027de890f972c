/* The simulated cluster: processes, faults and invariants. */
#include "simcluster/simcluster.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "simcluster/simcluster_impl.h"

/* No faults after FAULTS_END_NS; a client that has not finished a minute later
 * is stuck. */
#define FAULTS_END_NS (INT64_C(3) * SIM_SECOND_NS)
#define FINISH_BY_NS  (FAULTS_END_NS + INT64_C(60) * SIM_SECOND_NS)
/* Longer than a lease and the clean-up after it expires. */
#define PATIENCE_NS (INT64_C(10) * SIM_SECOND_NS)
/* Chance that a fault point fires each time it is reached. */
#define FAULT_POINT_PPM 2000
#define DEVICES_MAX     4 /* of a worker */
#define HOSTS_LARGE     32
/* Fanouts from 1 (no relays) to this: most programs are small. */
#define RELAY_FANOUT_MAX 6
/* One seed in LARGE_EVERY has a large cluster. One in HUGE_EVERY of those may
 * have any size up to the limit, the others up to a quarter of it: every worker
 * is connected to every other, and 512 take seconds to simulate. */
#define LARGE_EVERY 40
#define HUGE_EVERY  8
/* Workers that report the same host: one may get the name of another. */
#define WORKERS_PER_HOST 2
/* One seed in this many injects no faults: then every error is a bug. */
#define CALM_EVERY 6
/* A large cluster is checked less often: after this many events per worker. */
#define LARGE_CHECK_EVERY 4
/* The records of all processes are checked in one of so many checks. */
#define RECORDS_CHECK_EVERY 16

/* One seed in LONG_EVERY has long programs, and one in ODD_EVERY each of the
 * other kinds of bad behaviour. */
#define LONG_EVERY     16
#define ODD_EVERY      6
#define LONG_NODES_MIN 1000
#define LONG_NODES_MAX 5000
/* With long programs, and with floods, there are many records to check and many
 * events. */
#define LONG_CHECK_EVERY  16
#define FLOOD_CHECK_EVERY 4
#define LONG_PIECE_MAX    64 /* steps */
/* Computations take up to 1,000 times longer than the last ones. */
#define ERRATIC_PPM 1000000000
#define JITTER_PPM  100000
/* Grants between two crashes of workers. */
#define HUNT_GRANTS_MAX 500

static uint64_t below(simcluster_t *cluster, uint64_t bound)
{
    return sim_below(&cluster->random, bound);
}

/* -- Invariants ----------------------------------------------------------- */

/* A gang whose member could not start (its device had no memory) is aborted
 * when the controller learns of it; until then it may form a cycle with the
 * next gang. A cycle that lasts means gangs out of order. */
static void on_deadlock(void *context, tow_status_t status)
{
    simcluster_t *cluster = context;
    if (cluster->deadlock != TOW_OK) return;
    cluster->deadlock = tow_status_retain(status);
    cluster->deadlock_ns = tow_sim_now_ns(cluster->sim);
}

static void check_deadlock(simcluster_t *cluster)
{
    if (cluster->deadlock == TOW_OK ||
        tow_sim_now_ns(cluster->sim) < cluster->deadlock_ns + PATIENCE_NS)
        return;
    tow_sim_stuck_t oldest;
    if (tow_sim_fabric_stuck(cluster->fabric, &oldest, 1) > 0 &&
        oldest.since_ns <= cluster->deadlock_ns)
        tow_sim_fail(cluster->sim,
                     tow_status_annotate(tow_status_retain(cluster->deadlock),
                                         "gangs run in different orders"));
    tow_status_release(cluster->deadlock);
    cluster->deadlock = TOW_OK;
}

/* Measured on the devices: the object table counts shards that two objects
 * share twice. */
static tow_status_t check_memory(const sim_process_t *process)
{
    tow_driver_t *driver = tow_simcluster_driver_of(process->node);
    if (driver == NULL) return TOW_OK;
    for (size_t i = 0; i < driver->device_count; i++) {
        tow_memory_stats_t stats;
        TOW_RETURN_IF_ERROR(tow_driver_memory_stats(driver, i, &stats));
        if (stats.bytes_peak > process->cluster->memory_bytes)
            return TOW_ERROR(TOW_INTERNAL,
                             "%s has used %" PRIu64 " bytes on device %zu",
                             process->name, stats.bytes_peak, i);
    }
    return TOW_OK;
}

/* Messages per run are linear in workers and pieces, not in shards: for each
 * worker a grant and a report for each piece, at most an abort, and the report
 * of that, early and again at the end. */
static tow_status_t check_messages(const tow_controller_t *controller)
{
    const tow_controller_totals_t totals = tow_controller_totals(controller);
    const uint64_t bound = totals.granted_worker_count;
    if (totals.grant_message_count <= bound &&
        totals.done_message_count <= bound + totals.again_message_count +
                                         2 * totals.abort_message_count &&
        totals.abort_message_count <= bound)
        return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL,
                     "runs on %" PRIu64 " workers took %" PRIu64
                     " grants, %" PRIu64 " reports and %" PRIu64 " aborts",
                     bound, totals.grant_message_count,
                     totals.done_message_count, totals.abort_message_count);
}

static void check_sizes(const simcluster_t *cluster)
{
    const tow_simcluster_stats_t *stats = &cluster->stats;
    TOW_ASSERT(cluster->worker_count > 0 && cluster->client_count > 0);
    TOW_ASSERT(cluster->island_count > 0 &&
               cluster->island_count <= cluster->worker_count);
    TOW_ASSERT(!cluster->is_spilling ||
               (cluster->is_calm && cluster->is_tight));
    TOW_ASSERT(cluster->fault_count == 0 || !cluster->is_calm);
    TOW_ASSERT(stats->runs_done + stats->runs_failed <= stats->runs_started);
}

static tow_status_t check_worker(const sim_process_t *process)
{
    const tow_worker_t *worker = tow_simcluster_worker_of(process->node);
    return worker == NULL ? TOW_OK : tow_worker_check(worker);
}

/* The invariants of every record of every live process, and of the simulator:
 * O(records), so not after every event. */
static void check_records(simcluster_t *cluster)
{
    tow_sim_check(cluster->sim);
    const tow_controller_t *controller =
        tow_simcluster_controller_of(cluster->controller.node);
    if (controller != NULL) {
        tow_status_t status = tow_controller_check_records(controller);
        if (status != TOW_OK)
            tow_sim_fail(cluster->sim,
                         tow_status_annotate(status, "the controller"));
    }
    for (size_t i = 0; i < cluster->client_count; i++)
        tow_simcluster_client_check(
            tow_sim_node_machine(cluster->clients[i].node));
    for (size_t i = 0; i < cluster->worker_count; i++) {
        tow_status_t status = check_worker(&cluster->workers[i]);
        if (status != TOW_OK)
            tow_sim_fail(
                cluster->sim,
                tow_status_annotate(status, "%s", cluster->workers[i].name));
    }
}

/* Crashes a worker when the controller has sent so many grants: while runs are
 * under way, some of them between two pieces. */
static void hunt(simcluster_t *cluster, const tow_controller_t *controller)
{
    const int64_t now_ns = tow_sim_now_ns(cluster->sim);
    if (controller == NULL || now_ns >= FAULTS_END_NS / 2 ||
        tow_controller_totals(controller).grant_message_count <
            cluster->hunt_at)
        return;
    cluster->hunt_at += 1 + below(cluster, HUNT_GRANTS_MAX);
    cluster->fault_count++;
    tow_sim_action_t action = {
        .kind = TOW_SIM_CRASH,
        .node = cluster->workers[below(cluster, cluster->worker_count)].node};
    const int64_t end_ns =
        now_ns + (int64_t)below(cluster, 300) * SIM_MILLISECOND_NS;
    tow_status_t status = tow_sim_schedule(cluster->sim, now_ns, &action, NULL);
    action.kind = TOW_SIM_RESTART;
    if (status == TOW_OK)
        status = tow_sim_schedule(cluster->sim, end_ns, &action, NULL);
    if (status != TOW_OK) tow_sim_fail(cluster->sim, status);
}

static void check_all(void *context, tow_sim_t *sim)
{
    simcluster_t *cluster = context;
    check_sizes(cluster);
    check_deadlock(cluster);
    if (cluster->is_hunting)
        hunt(cluster, tow_simcluster_controller_of(cluster->controller.node));
    const uint64_t events = tow_sim_counts(sim).events;
    if (events % cluster->check_every != 0) return;
    if (events % (RECORDS_CHECK_EVERY * cluster->check_every) == 0)
        check_records(cluster);
    const tow_controller_t *controller =
        tow_simcluster_controller_of(cluster->controller.node);
    if (controller == NULL) return;
    tow_status_t status = tow_controller_check(controller);
    if (status == TOW_OK) status = check_messages(controller);
    if (status != TOW_OK)
        tow_sim_fail(sim, tow_status_annotate(status, "the controller"));
    for (size_t i = 0; i < cluster->worker_count; i++) {
        status = check_memory(&cluster->workers[i]);
        if (status != TOW_OK) tow_sim_fail(sim, status);
    }
}

/* -- State after the last client ------------------------------------------ */

static tow_status_t expect_zero(const char *who, const char *what,
                                uint64_t count)
{
    if (count == 0) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "%s still has %" PRIu64 " %s", who, count,
                     what);
}

static tow_status_t expect_idle_controller(const simcluster_t *cluster)
{
    const tow_controller_t *controller =
        tow_simcluster_controller_of(cluster->controller.node);
    if (controller == NULL)
        return TOW_ERROR(TOW_INTERNAL, "there is no controller");
    const tow_controller_totals_t totals = tow_controller_totals(controller);
    const char *who = "the controller";
    TOW_RETURN_IF_ERROR(expect_zero(who, "clients", totals.client_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "slices", totals.slice_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "programs", totals.program_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "runs", totals.run_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "objects", totals.object_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "bytes", totals.object_bytes));
    TOW_RETURN_IF_ERROR(
        expect_zero(who, "bytes reserved", totals.reserved_bytes));
    TOW_RETURN_IF_ERROR(
        expect_zero(who, "bytes spilled", totals.spilled_bytes));
    return expect_zero(who, "workers too few",
                       cluster->worker_count - totals.worker_count);
}

/* A worker writes to a dead client until the lane times out, which takes longer
 * than a lease. It reads from host memory, not from devices. */
typedef enum sim_gets {
    SIM_GETS_MAY_LAST,
    SIM_GETS_ARE_OVER,
} sim_gets_t;

static tow_status_t expect_idle_worker(const sim_process_t *process,
                                       sim_gets_t gets)
{
    const tow_worker_t *worker = tow_simcluster_worker_of(process->node);
    if (worker == NULL)
        return TOW_ERROR(TOW_INTERNAL, "%s is down", process->name);
    const tow_worker_stats_t stats = tow_worker_stats(worker);
    const tow_sim_device_counts_t counts =
        tow_sim_device_counts(tow_simcluster_driver_of(process->node));
    const char *who = process->name;
    if (stats.state != TOW_WORKER_JOINED)
        return TOW_ERROR(TOW_INTERNAL, "%s is %s", who,
                         tow_worker_state_name(stats.state));
    TOW_RETURN_IF_ERROR(
        expect_zero(who, "objects", stats.shard_store.object_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "bytes", stats.shard_store.bytes));
    TOW_RETURN_IF_ERROR(expect_zero(who, "runs", stats.dataflow.run_count));
    TOW_RETURN_IF_ERROR(
        expect_zero(who, "programs", stats.dataflow.program_count));
    TOW_RETURN_IF_ERROR(
        expect_zero(who, "executables", stats.dataflow.executable_count));
    TOW_RETURN_IF_ERROR(
        expect_zero(who, "loads and puts", stats.load_count + stats.put_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "runs by relays", stats.relay_count));
    TOW_RETURN_IF_ERROR(expect_zero(who, "objects spilled", stats.spill_count));
    if (gets == SIM_GETS_ARE_OVER) {
        TOW_RETURN_IF_ERROR(expect_zero(who, "gets", stats.get_count));
        TOW_RETURN_IF_ERROR(
            expect_zero(who, "bytes spilled", stats.spill_bytes));
    }
    TOW_RETURN_IF_ERROR(expect_zero(who, "buffers", counts.buffers));
    return expect_zero(who, "executables of its driver", counts.executables);
}

/* Device time that all devices ever counted, also those of dead workers. */
static tow_device_time_t counted_time(const simcluster_t *cluster)
{
    tow_device_time_t sum = cluster->lost_time;
    for (size_t i = 0; i < cluster->worker_count; i++) {
        const tow_driver_t *driver =
            tow_simcluster_driver_of(cluster->workers[i].node);
        if (driver == NULL) continue;
        const tow_sim_device_counts_t counts = tow_sim_device_counts(driver);
        tow_device_time_add(&sum, counts.busy_ns, counts.wait_ns);
    }
    return sum;
}

/* Without faults the controller knows exactly the time that the devices
 * counted, by all clients. With faults it knows at most that: reports are lost
 * with workers, with relays and with earlier controllers, and none is counted
 * twice. */
static tow_status_t expect_all_time(const simcluster_t *cluster)
{
    const tow_controller_totals_t totals = tow_controller_totals(
        tow_simcluster_controller_of(cluster->controller.node));
    const tow_device_time_t counted = counted_time(cluster);
    if (totals.device_ns == counted.busy_ns &&
        totals.wait_ns == counted.wait_ns)
        return TOW_OK;
    if (!cluster->is_calm && totals.device_ns <= counted.busy_ns &&
        totals.wait_ns <= counted.wait_ns)
        return TOW_OK;
    return TOW_ERROR(
        TOW_INTERNAL,
        "the controller knows of %" PRIu64 " ns of device time and "
        "%" PRIu64 " ns of waits; the devices counted %" PRIu64 " and %" PRIu64,
        totals.device_ns, totals.wait_ns, counted.busy_ns, counted.wait_ns);
}

static tow_status_t expect_idle_clients(const simcluster_t *cluster)
{
    for (size_t i = 0; i < cluster->client_count; i++)
        if (!cluster->clients[i].is_done)
            return TOW_ERROR(TOW_INTERNAL,
                             "%s is not done: %u operations are left, and it "
                             "waits for %s",
                             cluster->clients[i].name,
                             cluster->clients[i].operations_left,
                             tow_simcluster_client_awaits(tow_sim_node_machine(
                                 cluster->clients[i].node)));
    return TOW_OK;
}

static tow_status_t expect_idle(const simcluster_t *cluster, sim_gets_t gets)
{
    TOW_RETURN_IF_ERROR(expect_idle_clients(cluster));
    TOW_RETURN_IF_ERROR(expect_idle_controller(cluster));
    for (size_t i = 0; i < cluster->worker_count; i++)
        TOW_RETURN_IF_ERROR(expect_idle_worker(&cluster->workers[i], gets));
    return expect_all_time(cluster);
}

static bool is_over(void *context)
{
    simcluster_t *cluster = context;
    if (!cluster->is_calm && tow_sim_now_ns(cluster->sim) < FAULTS_END_NS)
        return false;
    for (size_t i = 0; i < cluster->client_count; i++)
        if (!cluster->clients[i].is_done) return false;
    tow_status_t status = expect_idle(cluster, SIM_GETS_ARE_OVER);
    tow_status_release(status);
    if (status == TOW_OK) return true;
    /* The controller discards what a dead client left within a lease. */
    const int64_t now_ns = tow_sim_now_ns(cluster->sim);
    if (cluster->idle_ns == 0) cluster->idle_ns = now_ns;
    if (now_ns < cluster->idle_ns + PATIENCE_NS) return false;
    status = expect_idle(cluster, SIM_GETS_MAY_LAST);
    if (status != TOW_OK)
        tow_sim_fail(cluster->sim,
                     tow_status_annotate(status, "long after the last client"));
    return false;
}

/* -- Building the cluster ------------------------------------------------- */

static tow_sim_path_t random_path(simcluster_t *cluster)
{
    tow_sim_path_t path = {
        .latency_ns = (int64_t)(1000 + below(cluster, SIM_MILLISECOND_NS)),
        .jitter_ns = (int64_t)below(cluster, 200000),
        .bandwidth_bytes_per_second = 10000000 + below(cluster, 1000000000),
    };
    if (cluster->is_calm) return path;
    path.loss_ppm = (uint32_t)below(cluster, 1000);
    if (cluster->is_damaging) path.corrupt_ppm = (uint32_t)below(cluster, 1000);
    path.duplicate_ppm = (uint32_t)below(cluster, 50000);
    path.reorder_ppm = (uint32_t)below(cluster, 50000);
    return path;
}

static tow_status_t make_simulation(simcluster_t *cluster)
{
    const tow_simcluster_options_t *options = cluster->options;
    tow_sim_options_t world = {
        .seed = tow_random_next(&cluster->random),
        .fault_chance_ppm = cluster->is_calm ? 0 : FAULT_POINT_PPM,
        .remote_path = random_path(cluster),
        .log = options->log,
        .event_log = options->event_log,
        .after_event = check_all,
        .after_event_context = cluster,
    };
    TOW_RETURN_IF_ERROR(tow_sim_create(&world, &cluster->sim));
    return tow_sim_fabric_create(
        &(tow_sim_fabric_options_t){.deadlock = on_deadlock,
                                    .context = cluster},
        &cluster->fabric);
}

static size_t choose_host_count(simcluster_t *cluster)
{
    if (cluster->options->host_count != 0) return cluster->options->host_count;
    if (below(cluster, LARGE_EVERY) > 0) return 3 + below(cluster, 8);
    const size_t most = below(cluster, HUGE_EVERY) == 0
                            ? TOW_SIMCLUSTER_HOST_COUNT_MAX
                            : TOW_SIMCLUSTER_HOST_COUNT_MAX / 4;
    return HOSTS_LARGE + below(cluster, most - HOSTS_LARGE + 1);
}

static void choose_long(simcluster_t *cluster, tow_random_t *random)
{
    cluster->long_nodes =
        LONG_NODES_MIN +
        (uint32_t)sim_below(random, LONG_NODES_MAX - LONG_NODES_MIN + 1);
    cluster->long_runs_left = 2 + (uint32_t)sim_below(random, 3);
    cluster->check_every = LONG_CHECK_EVERY;
    /* Often as in production: by the estimated time. */
    cluster->piece_steps = 0;
    if (sim_below(random, 2) == 0)
        cluster->piece_steps = 1 + (uint32_t)sim_below(random, LONG_PIECE_MAX);
}

static bool is_odd(tow_random_t *random)
{
    return sim_below(random, ODD_EVERY) == 0;
}

/* Long programs and bad behaviour, from random numbers of their own. */
static void choose_oddities(simcluster_t *cluster, size_t host_count)
{
    tow_random_t random;
    tow_random_init(&random, tow_mix64(cluster->options->seed + 1));
    cluster->jitter_ppm = JITTER_PPM;
    if (sim_below(&random, LONG_EVERY) == 0 && host_count < HOSTS_LARGE)
        choose_long(cluster, &random);
    if (is_odd(&random))
        cluster->clock =
            (tow_sim_device_clock_t)sim_below(&random, TOW_SIM_CLOCK_COUNT);
    cluster->is_cancelling = is_odd(&random);
    cluster->has_giants = is_odd(&random);
    cluster->is_flooding = is_odd(&random) && host_count < HOSTS_LARGE;
    if (cluster->is_flooding && cluster->long_nodes == 0)
        cluster->check_every = FLOOD_CHECK_EVERY;
    cluster->is_hunting = is_odd(&random) && !cluster->is_calm;
    /* Many computations would take minutes. */
    if (is_odd(&random) && cluster->long_nodes == 0 && !cluster->is_flooding)
        cluster->jitter_ppm = ERRATIC_PPM;
    cluster->hunt_at = 1 + sim_below(&random, HUNT_GRANTS_MAX);
}

static tow_status_t choose_sizes(simcluster_t *cluster)
{
    const size_t hosts = choose_host_count(cluster);
    if (hosts < TOW_SIMCLUSTER_HOST_COUNT_MIN ||
        hosts > TOW_SIMCLUSTER_HOST_COUNT_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT, "%zu hosts: the limits are %d and %d", hosts,
            TOW_SIMCLUSTER_HOST_COUNT_MIN, TOW_SIMCLUSTER_HOST_COUNT_MAX);
    cluster->client_count = 1 + below(cluster, hosts > 4 ? 3 : 1);
    cluster->worker_count = hosts - 1 - cluster->client_count;
    cluster->devices_per_worker = 1 + below(cluster, DEVICES_MAX);
    cluster->island_count = 1 + below(cluster, SIM_ISLANDS_MAX);
    if (cluster->island_count > cluster->worker_count)
        cluster->island_count = cluster->worker_count;
    cluster->is_calm = below(cluster, CALM_EVERY) == 0 ||
                       cluster->options->faults == TOW_SIMCLUSTER_CALM;
    cluster->is_tight = below(cluster, 4) == 0;
    cluster->is_damaging = below(cluster, 4) == 0;
    cluster->relay_fanout = 1 + (uint32_t)below(cluster, RELAY_FANOUT_MAX);
    /* Often all transfers are late, and wait for single values. */
    cluster->late_shift = cluster->options->seed % 3 == 0 ? 0 : 12;
    /* Mostly several runs are granted in part at the same time. */
    cluster->piece_steps = (uint32_t)(cluster->options->seed / 3 % 4);
    cluster->is_spilling = cluster->is_calm && cluster->is_tight;
    cluster->memory_bytes = cluster->is_spilling ? 1250000
                            : cluster->is_tight  ? 1000000
                                                 : 256000000;
    cluster->host_bytes = cluster->is_spilling ? 256000000 : 500000;
    cluster->check_every =
        hosts < HOSTS_LARGE ? 1 : LARGE_CHECK_EVERY * (uint32_t)hosts;
    choose_oddities(cluster, hosts);
    cluster->workers = tow_calloc(cluster->worker_count, sizeof(sim_process_t));
    cluster->clients = tow_calloc(cluster->client_count, sizeof(sim_process_t));
    cluster->pattern = tow_malloc(SIM_PATTERN_BYTES);
    if (cluster->workers == NULL || cluster->clients == NULL ||
        cluster->pattern == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < SIM_PATTERN_BYTES; i += 8) {
        uint64_t word = tow_mix64(i + 1);
        memcpy(cluster->pattern + i, &word, sizeof(word));
    }
    return tow_sim_model_find("tpu_v4", &cluster->model);
}

/* `argument` is passed to the program. */
static tow_status_t make_process(simcluster_t *cluster, sim_process_t *process,
                                 const tow_sim_program_t *program,
                                 void *argument)
{
    process->cluster = cluster;
    tow_sim_host_options_t host = {
        .core_count = 1 + (uint32_t)below(cluster, 4),
        .costs = {.turn_ns = 200,
                  .receive_ns = (int64_t)below(cluster, 3000),
                  .receive_ns_per_kib = 50,
                  .send_ns = (int64_t)below(cluster, 3000),
                  .send_ns_per_kib = 50},
    };
    TOW_RETURN_IF_ERROR(
        tow_sim_host_create(cluster->sim, &host, &process->host));
    return tow_sim_node_create(cluster->sim,
                               &(tow_sim_node_options_t){.name = process->name,
                                                         .host = process->host,
                                                         .program = program,
                                                         .argument = argument},
                               &process->node);
}

static tow_status_t make_controller(simcluster_t *cluster)
{
    sim_process_t *controller = &cluster->controller;
    snprintf(controller->name, SIM_NAME_SIZE, "controller");
    controller->role =
        (tow_simcluster_role_t){.model = &cluster->model,
                                .relay_fanout = cluster->relay_fanout,
                                .piece_steps = cluster->piece_steps,
                                .late_shift = cluster->late_shift,
                                .start_count = &cluster->controller_start_count,
                                .controller = "sim:controller"};
    return make_process(cluster, controller, &tow_simcluster_controller_program,
                        &controller->role);
}

static tow_status_t make_worker(simcluster_t *cluster, size_t index)
{
    sim_process_t *worker = &cluster->workers[index];
    worker->index = index;
    snprintf(worker->name, SIM_NAME_SIZE, "worker/%zu", index);
    snprintf(worker->host_name, SIM_NAME_SIZE, "host/%zu",
             index / WORKERS_PER_HOST);
    worker->role = (tow_simcluster_role_t){
        .model = &cluster->model,
        .fabric = cluster->fabric,
        .controller = "sim:controller",
        .host = worker->host_name,
        .island = cluster->islands[index % cluster->island_count],
        .device_count = cluster->devices_per_worker,
        .memory_bytes = cluster->memory_bytes,
        .host_bytes = cluster->host_bytes,
        .jitter_ppm = cluster->jitter_ppm,
        .clock = cluster->clock,
        .checker = cluster->sim,
        .lost_time = &cluster->lost_time};
    return make_process(cluster, worker, &tow_simcluster_worker_program,
                        &worker->role);
}

static tow_status_t make_client(simcluster_t *cluster, size_t index)
{
    sim_process_t *client = &cluster->clients[index];
    client->index = index;
    client->operations_left = 10 + (uint32_t)below(cluster, 250);
    snprintf(client->name, SIM_NAME_SIZE, "client/%zu", index);
    return make_process(cluster, client, &tow_simcluster_client_program,
                        client);
}

static tow_status_t make_processes(simcluster_t *cluster)
{
    for (size_t i = 0; i < cluster->island_count; i++)
        sim_island_name(i, cluster->islands[i]);
    TOW_RETURN_IF_ERROR(make_controller(cluster));
    for (size_t i = 0; i < cluster->worker_count; i++)
        TOW_RETURN_IF_ERROR(make_worker(cluster, i));
    for (size_t i = 0; i < cluster->client_count; i++)
        TOW_RETURN_IF_ERROR(make_client(cluster, i));
    return TOW_OK;
}

/* -- Faults ----------------------------------------------------------------------- */

static size_t process_count(const simcluster_t *cluster)
{
    return 1 + cluster->worker_count + cluster->client_count;
}

static sim_process_t *process_at(simcluster_t *cluster, size_t index)
{
    if (index == 0) return &cluster->controller;
    if (index <= cluster->worker_count) return &cluster->workers[index - 1];
    return &cluster->clients[index - 1 - cluster->worker_count];
}

/* The controller fails as often as any other process. */
static sim_process_t *random_process(simcluster_t *cluster)
{
    return process_at(cluster, below(cluster, process_count(cluster)));
}

static int64_t random_time_after(simcluster_t *cluster, int64_t time_ns)
{
    return time_ns +
           (int64_t)below(cluster, (uint64_t)(FAULTS_END_NS - time_ns));
}

/* Breaks one process and repairs it, half of the time within 200 ms. */
static tow_status_t schedule_break_and_repair(simcluster_t *cluster,
                                              tow_sim_action_kind_t kind,
                                              tow_sim_action_kind_t repair)
{
    int64_t start_ns = random_time_after(cluster, 0);
    int64_t end_ns = below(cluster, 2) == 0
                         ? start_ns + (int64_t)below(cluster, 200000000)
                         : random_time_after(cluster, start_ns);
    tow_sim_action_t action = {.kind = kind,
                               .node = random_process(cluster)->node};
    TOW_RETURN_IF_ERROR(
        tow_sim_schedule(cluster->sim, start_ns, &action, NULL));
    action.kind = repair;
    return tow_sim_schedule(cluster->sim, end_ns, &action, NULL);
}

static tow_status_t schedule_cut(simcluster_t *cluster)
{
    tow_sim_host_t *isolated = random_process(cluster)->host;
    tow_sim_host_t *other = random_process(cluster)->host;
    tow_sim_action_t action = {.kind = TOW_SIM_PARTITION,
                               .cut = {.a = &isolated,
                                       .a_count = 1,
                                       .direction = below(cluster, 2) == 0
                                                        ? TOW_SIM_BOTH_WAYS
                                                        : TOW_SIM_ONE_WAY}};
    if (other != isolated && below(cluster, 2) == 0)
        action.cut.b = &other, action.cut.b_count = 1;
    int64_t start_ns = random_time_after(cluster, 0);
    uint64_t cut_id = 0;
    TOW_RETURN_IF_ERROR(
        tow_sim_schedule(cluster->sim, start_ns, &action, &cut_id));
    tow_sim_action_t heal = {.kind = TOW_SIM_HEAL, .cut_id = cut_id};
    return tow_sim_schedule(cluster->sim, random_time_after(cluster, start_ns),
                            &heal, NULL);
}

/* A slow path between two hosts. */
static tow_status_t schedule_slow_path(simcluster_t *cluster)
{
    tow_sim_host_t *slow = random_process(cluster)->host;
    tow_sim_host_t *other = random_process(cluster)->host;
    tow_sim_action_t action = {
        .kind = TOW_SIM_SET_PATH,
        .cut = {.a = &slow, .a_count = 1, .b = &other, .b_count = 1},
        .path = random_path(cluster)};
    action.path.latency_ns *= 50;
    action.path.bandwidth_bytes_per_second /= 10;
    return tow_sim_schedule(cluster->sim, random_time_after(cluster, 0),
                            &action, NULL);
}

static tow_status_t schedule_one_fault(simcluster_t *cluster)
{
    cluster->fault_count++;
    switch (below(cluster, 4)) {
    case 0:
        return schedule_break_and_repair(cluster, TOW_SIM_CRASH,
                                         TOW_SIM_RESTART);
    case 1:
        return schedule_break_and_repair(cluster, TOW_SIM_PAUSE,
                                         TOW_SIM_RESUME);
    case 2: return schedule_slow_path(cluster);
    default: return schedule_cut(cluster);
    }
}

/* Ends all faults, also those that overlapping pairs left behind. */
static void repair_everything(void *context, tow_sim_t *sim)
{
    simcluster_t *cluster = context;
    tow_sim_path_t clean = random_path(cluster);
    clean.loss_ppm = clean.corrupt_ppm = 0;
    tow_sim_heal(sim, 0);
    for (size_t i = 0; i < process_count(cluster); i++) {
        sim_process_t *process = process_at(cluster, i);
        tow_sim_restart(process->node);
        tow_sim_resume(process->node);
        for (size_t j = 0; j < i; j++) {
            tow_status_t status = tow_sim_set_path(sim, process->host,
                                                   process_at(cluster, j)->host,
                                                   TOW_SIM_BOTH_WAYS, &clean);
            if (status != TOW_OK) tow_sim_fail(sim, status);
        }
    }
}

static tow_status_t schedule_faults(simcluster_t *cluster)
{
    if (cluster->is_calm) return TOW_OK;
    size_t most = process_count(cluster) < 16 ? process_count(cluster) : 16;
    for (size_t count = below(cluster, 2 * most); count > 0; count--)
        TOW_RETURN_IF_ERROR(schedule_one_fault(cluster));
    tow_sim_action_t repair = {
        .kind = TOW_SIM_CALL, .call = repair_everything, .context = cluster};
    return tow_sim_schedule(cluster->sim, FAULTS_END_NS, &repair, NULL);
}

/* -- Running ---------------------------------------------------------------------- */

static tow_status_t set_up(simcluster_t *cluster)
{
    TOW_RETURN_IF_ERROR(choose_sizes(cluster));
    TOW_RETURN_IF_ERROR(make_simulation(cluster));
    TOW_RETURN_IF_ERROR(make_processes(cluster));
    return schedule_faults(cluster);
}

static tow_status_t run(simcluster_t *cluster)
{
    tow_sim_run_options_t options = {
        .until_ns = FINISH_BY_NS, .until = is_over, .context = cluster};
    tow_status_t status = tow_sim_run(cluster->sim, &options);
    if (tow_status_code(status) != TOW_DEADLINE_EXCEEDED) return status;
    tow_status_release(status);
    char stuck[512];
    status = expect_idle(cluster, SIM_GETS_ARE_OVER);
    if (status == TOW_OK) return TOW_OK;
    return tow_status_annotate(
        status, "a minute after the last fault (waiting collectives: %s)",
        tow_sim_fabric_explain(cluster->fabric, stuck, sizeof(stuck)));
}

static void collect(const simcluster_t *cluster,
                    tow_simcluster_result_t *result)
{
    result->worker_count = cluster->worker_count;
    result->island_count = cluster->island_count;
    result->device_count = cluster->worker_count * cluster->devices_per_worker;
    result->client_count = cluster->client_count;
    result->fault_count = cluster->fault_count;
    result->stats = cluster->stats;
    if (cluster->sim == NULL) return;
    result->digest = tow_sim_digest(cluster->sim);
    result->virtual_ns = tow_sim_now_ns(cluster->sim);
    result->counts = tow_sim_counts(cluster->sim);
    const tow_controller_t *controller =
        tow_simcluster_controller_of(cluster->controller.node);
    if (controller != NULL)
        result->stats.spills = tow_controller_totals(controller).spilled_count;
}

tow_status_t tow_simcluster_run(const tow_simcluster_options_t *options,
                                tow_simcluster_result_t *out_result)
{
    *out_result = (tow_simcluster_result_t){0};
    simcluster_t cluster = {.options = options};
    tow_random_init(&cluster.random, options->seed);
    tow_status_t status = set_up(&cluster);
    if (status == TOW_OK) status = run(&cluster);
    collect(&cluster, out_result);
    if (cluster.sim != NULL) tow_sim_destroy(cluster.sim);
    tow_sim_fabric_destroy(cluster.fabric);
    tow_status_release(cluster.deadlock);
    tow_free(cluster.workers);
    tow_free(cluster.clients);
    tow_free(cluster.pattern);
    return status;
}
