/* `tow sim`: runs simulated clusters, one a seed. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fault.h"
#include "tool/bench.h"
#include "tool/command.h"
#include "tool/scenario.h"
#include "tool/sim_cluster.h"
#include "tool/version.h"

typedef enum sim_kind {
    SIM_EXCHANGE,
    SIM_CLUSTER,
} sim_kind_t;

typedef struct sim_arguments {
    sim_kind_t kind;
    uint64_t seed;
    uint64_t seed_count;
    bool json;
    const char *event_log_path;
    tow_scenario_options_t scenario;
    int64_t last_progress_ns;
} sim_arguments_t;

enum {
    OPTION_SEEDS = 256,
    OPTION_EVENTS,
    OPTION_CALM,
    OPTION_MESSAGES,
    OPTION_SCENARIO
};

static uint64_t parse_seed(const struct argp_state *state, const char *text)
{
    uint64_t seed = 0;
    if (strcmp(text, "random") != 0)
        return tow_command_number(state, "seed", text, 0, UINT64_MAX);
    /* Small enough to type again; large enough not to meet the same twice. */
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        argp_failure(state, TOW_EXIT_FAILED, 0, "no random seed to be had");
    return seed % 1000000000000;
}

static sim_kind_t parse_kind(const struct argp_state *state, const char *text)
{
    if (strcmp(text, "exchange") == 0) return SIM_EXCHANGE;
    if (strcmp(text, "cluster") != 0)
        argp_error(state, "scenario '%s': there are exchange and cluster",
                   text);
    return SIM_CLUSTER;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    sim_arguments_t *arguments = state->input;
    switch (key) {
    case 's': arguments->seed = parse_seed(state, argument); return 0;
    case OPTION_SEEDS:
        arguments->seed_count =
            tow_command_number(state, "seeds", argument, 1, 1000000000);
        return 0;
    case 'n':
        arguments->scenario.node_count =
            (uint32_t)tow_command_number(state, "nodes", argument, 2, 4096);
        return 0;
    case OPTION_MESSAGES:
        arguments->scenario.message_count =
            tow_command_number(state, "messages", argument, 1, 1000000000);
        return 0;
    case OPTION_SCENARIO:
        arguments->kind = parse_kind(state, argument);
        return 0;
    case OPTION_CALM: arguments->scenario.faults = TOW_SCENARIO_CALM; return 0;
    case OPTION_EVENTS: arguments->event_log_path = argument; return 0;
    case 'j': arguments->json = true; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected word '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_replay(const sim_arguments_t *arguments, uint64_t seed)
{
    fprintf(stderr, "replay: tow sim%s --seed %" PRIu64,
            arguments->kind == SIM_CLUSTER ? " --scenario cluster" : "", seed);
    if (arguments->scenario.node_count != 0)
        fprintf(stderr, " --nodes %u", arguments->scenario.node_count);
    if (arguments->scenario.message_count != 0)
        fprintf(stderr, " --messages %" PRIu64,
                arguments->scenario.message_count);
    if (arguments->scenario.faults == TOW_SCENARIO_CALM)
        fprintf(stderr, " --calm");
    fprintf(stderr, "   (commit %s)\n", tow_version_commit());
}

static void print_json(uint64_t seed, const tow_scenario_result_t *result,
                       tow_status_t status)
{
    char digest[17];
    snprintf(digest, sizeof(digest), "%016" PRIx64, result->digest);
    json_t *object = json_pack(
        "{s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s}",
        "seed", (json_int_t)seed, "digest", digest, "commit",
        tow_version_commit(), "nodes", (json_int_t)result->node_count, "faults",
        (json_int_t)result->fault_count, "events",
        (json_int_t)result->counts.events, "virtual_ns",
        (json_int_t)result->virtual_ns, "messages_taken",
        (json_int_t)result->stats.messages_taken, "blocks_taken",
        (json_int_t)result->stats.blocks_taken, "epochs_broken",
        (json_int_t)result->counts.epochs_broken, "simulated", 1, "ok",
        status == TOW_OK, "error", tow_status_message(status));
    if (object == NULL) return;
    json_dumpf(object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(object);
}

static void print_text(uint64_t seed, const tow_scenario_result_t *result)
{
    printf("seed %" PRIu64 " digest %016" PRIx64
           " (simulated: %zu nodes, %zu faults, %.3f virtual s, %" PRIu64
           " events, %" PRIu64 " messages and %" PRIu64
           " blocks taken, %" PRIu64 " epochs broken)\n",
           seed, result->digest, result->node_count, result->fault_count,
           (double)result->virtual_ns * 1e-9, result->counts.events,
           result->stats.messages_taken, result->stats.blocks_taken,
           result->counts.epochs_broken);
}

static void show_progress(sim_arguments_t *arguments, uint64_t done,
                          uint64_t failed)
{
    int64_t now_ns = tow_bench_now_ns();
    bool last = done == arguments->seed_count;
    if (!isatty(STDERR_FILENO) || arguments->seed_count == 1) return;
    if (!last && now_ns - arguments->last_progress_ns < 100000000) return;
    arguments->last_progress_ns = now_ns;
    fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " seeds, %" PRIu64 " failed%s",
            done, arguments->seed_count, failed, last ? "\n" : " ");
}

static void print_cluster_json(uint64_t seed,
                               const tow_sim_cluster_result_t *result,
                               tow_status_t status)
{
    char digest[17];
    snprintf(digest, sizeof(digest), "%016" PRIx64, result->digest);
    json_t *object = json_pack(
        "{s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, "
        "s:b, s:s}",
        "seed", (json_int_t)seed, "digest", digest, "commit",
        tow_version_commit(), "islands", (json_int_t)result->island_count,
        "workers", (json_int_t)result->worker_count, "devices",
        (json_int_t)result->device_count, "clients",
        (json_int_t)result->client_count, "faults",
        (json_int_t)result->fault_count, "events",
        (json_int_t)result->counts.events, "virtual_ns",
        (json_int_t)result->virtual_ns, "runs_done",
        (json_int_t)result->stats.runs_done, "runs_failed",
        (json_int_t)result->stats.runs_failed, "simulated", 1, "ok",
        status == TOW_OK, "error", tow_status_message(status));
    if (object == NULL) return;
    json_dumpf(object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(object);
}

static void print_cluster_text(uint64_t seed,
                               const tow_sim_cluster_result_t *result)
{
    printf("seed %" PRIu64 " digest %016" PRIx64
           " (simulated: %zu islands, %zu workers, %zu devices, %zu clients, "
           "%zu faults, "
           "%.3f virtual s, %" PRIu64 " events, %" PRIu64 " runs done and "
           "%" PRIu64 " failed, %" PRIu64 " uploads, %" PRIu64
           " downloads, %" PRIu64 " spills, %" PRIu64
           " client sessions, %" PRIu64 " comebacks)\n",
           seed, result->digest, result->island_count, result->worker_count,
           result->device_count, result->client_count, result->fault_count,
           (double)result->virtual_ns * 1e-9, result->counts.events,
           result->stats.runs_done, result->stats.runs_failed,
           result->stats.uploads, result->stats.downloads, result->stats.spills,
           result->stats.sessions, result->stats.comebacks);
}

static tow_status_t run_exchange(sim_arguments_t *arguments, uint64_t seed,
                                 int64_t *out_virtual_ns)
{
    tow_scenario_result_t result;
    arguments->scenario.seed = seed;
    tow_status_t status = tow_scenario_run(&arguments->scenario, &result);
    if (arguments->json)
        print_json(seed, &result, status);
    else if (arguments->seed_count == 1)
        print_text(seed, &result);
    *out_virtual_ns = result.virtual_ns;
    return status;
}

static tow_status_t run_cluster(sim_arguments_t *arguments, uint64_t seed,
                                int64_t *out_virtual_ns)
{
    const tow_scenario_options_t *scenario = &arguments->scenario;
    tow_sim_cluster_options_t options = {.seed = seed,
                                         .host_count = scenario->node_count,
                                         .faults = scenario->faults,
                                         .log = scenario->log,
                                         .event_log = scenario->event_log};
    /* Sessions that end are what is wanted here. */
    if (getenv("TOW_LOG") == NULL) options.log.level = TOW_LOG_OFF;
    tow_sim_cluster_result_t result;
    tow_status_t status = tow_sim_cluster_run(&options, &result);
    if (arguments->json)
        print_cluster_json(seed, &result, status);
    else if (arguments->seed_count == 1)
        print_cluster_text(seed, &result);
    *out_virtual_ns = result.virtual_ns;
    return status;
}

/* One seed. True if every promise held. */
static bool run_seed(sim_arguments_t *arguments, uint64_t seed)
{
    int64_t virtual_ns = 0;
    tow_status_t status = arguments->kind == SIM_CLUSTER
                              ? run_cluster(arguments, seed, &virtual_ns)
                              : run_exchange(arguments, seed, &virtual_ns);
    bool ok = status == TOW_OK;
    if (!ok) {
        fprintf(stderr, "seed %" PRIu64 " failed at %.6f virtual s: %s\n", seed,
                (double)virtual_ns * 1e-9, tow_status_message(status));
        print_replay(arguments, seed);
    }
    tow_status_release(status);
    return ok;
}

static void report_fault_points(const sim_arguments_t *arguments)
{
    if (arguments->json || arguments->seed_count == 1) return;
    for (size_t i = 0; i < tow_fault_point_count(); i++) {
        const tow_fault_point_t *point = tow_fault_point_at(i);
        if (point->fired_count == 0)
            printf("fault point %s never fired (reached %" PRIu64 " times)\n",
                   point->name, point->reached_count);
    }
}

static int run_all(sim_arguments_t *arguments)
{
    uint64_t failed = 0;
    for (uint64_t i = 0; i < arguments->seed_count; i++) {
        if (!run_seed(arguments, arguments->seed + i)) failed++;
        show_progress(arguments, i + 1, failed);
    }
    report_fault_points(arguments);
    if (arguments->seed_count > 1 && !arguments->json)
        printf("seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " passed, %" PRIu64
               " failed (simulated)\n",
               arguments->seed, arguments->seed + arguments->seed_count - 1,
               arguments->seed_count - failed, failed);
    return failed == 0 ? TOW_EXIT_OK : TOW_EXIT_FAILED;
}

int tow_command_sim(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"seed", 's', "N", 0, "The (first) seed, or `random` (default 1)", 0},
        {"seeds", OPTION_SEEDS, "N", 0,
         "Run N seeds, counting up; print those that fail and how to replay "
         "them",
         0},
        {"scenario", OPTION_SCENARIO, "NAME", 0,
         "`exchange` (the default): messages and bulk data; `cluster`: a "
         "controller, workers with simulated devices, and clients that run "
         "random programs",
         0},
        {"nodes", 'n', "N", 0, "Nodes (default: the seed decides, 2 to 12)", 0},
        {"messages", OPTION_MESSAGES, "N", 0,
         "Messages in each stream (default: the seed decides)", 0},
        {"calm", OPTION_CALM, NULL, 0, "Without any fault", 0},
        {"events", OPTION_EVENTS, "FILE", 0,
         "Write one line an event, to compare two runs", 0},
        {"json", 'j', NULL, 0, "One JSON object a seed", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Runs simulated clusters in virtual time: nodes exchange messages "
            "and bulk data while processes crash, freeze and restart and the "
            "network loses, damages and partitions. Everything comes from the "
            "seed: same seed and commit, same digest.\vFor example:\n"
            "  tow sim --seed 42             one run, with its digest\n"
            "  tow sim --seeds 500           search; failing seeds are named\n"
            "  tow sim --scenario cluster --seeds 500\n"
            "  tow sim --seed random --seeds 500\n"
            "Exit status: 0 all promises held, 1 some seed failed.",
    };
    sim_arguments_t arguments = {
        .seed = 1, .seed_count = 1, .scenario.log = tow_command_log("sim")};
    if (getenv("TOW_LOG") == NULL) arguments.scenario.log.level = TOW_LOG_ERROR;
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    if (arguments.event_log_path != NULL) {
        arguments.scenario.event_log = fopen(arguments.event_log_path, "w");
        if (arguments.scenario.event_log == NULL)
            return tow_command_finish(
                "sim", TOW_ERRNO(errno, "opening %s for the events",
                                 arguments.event_log_path));
    }
    int result = run_all(&arguments);
    if (arguments.scenario.event_log != NULL)
        fclose(arguments.scenario.event_log);
    return result;
}
