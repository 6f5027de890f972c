/* `tow sim`: runs simulated clusters, one per seed. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fault.h"
#include "bench/harness.h"
#include "simcluster/simcluster.h"
#include "supervisor/log_environment.h"
#include "tool/command.h"
#include "tool/version.h"

/* Between two lines of progress. */
#define PROGRESS_NS INT64_C(100000000)
/* Of `--seed random`: short enough to type again. */
#define RANDOM_SEED_END UINT64_C(1000000000000)

typedef struct sim_arguments {
    uint64_t seed;
    uint64_t seed_count;
    bool json;
    const char *event_log_path;
    tow_simcluster_options_t cluster;
    int64_t last_progress_ns;
} sim_arguments_t;

enum {
    OPTION_SEEDS = 256,
    OPTION_EVENTS,
    OPTION_CALM,
    OPTION_SCENARIO,
};

static uint64_t parse_seed(const struct argp_state *state, const char *text)
{
    uint64_t seed = 0;
    if (strcmp(text, "random") != 0)
        return tow_command_number(state, "seed", text, 0, UINT64_MAX);
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        argp_failure(state, TOW_EXIT_FAILED, errno,
                     "cannot draw a random seed");
    return seed % RANDOM_SEED_END;
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
        arguments->cluster.host_count = (uint32_t)tow_command_number(
            state, "nodes", argument, TOW_SIMCLUSTER_HOST_COUNT_MIN,
            TOW_SIMCLUSTER_HOST_COUNT_MAX);
        return 0;
    case OPTION_SCENARIO:
        if (strcmp(argument, "cluster") != 0)
            argp_error(state, "--scenario %s: the only scenario is 'cluster'",
                       argument);
        return 0;
    case OPTION_CALM: arguments->cluster.faults = TOW_SIMCLUSTER_CALM; return 0;
    case OPTION_EVENTS: arguments->event_log_path = argument; return 0;
    case 'j': arguments->json = true; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* -- Output ----------------------------------------------------------------- */

static void print_replay(const sim_arguments_t *arguments, uint64_t seed)
{
    fprintf(stderr, "replay: tow sim --seed %" PRIu64, seed);
    if (arguments->cluster.host_count != 0)
        fprintf(stderr, " --nodes %u", arguments->cluster.host_count);
    if (arguments->cluster.faults == TOW_SIMCLUSTER_CALM)
        fprintf(stderr, " --calm");
    fprintf(stderr, "   (commit %s)\n", tow_version_commit());
}

static void print_json(uint64_t seed, const tow_simcluster_result_t *result,
                       tow_status_t status)
{
    char digest[17];
    snprintf(digest, sizeof(digest), "%016" PRIx64, result->digest);
    json_t *object = json_pack(
        "{s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:b, s:b, s:s}",
        "seed", (json_int_t)seed, "digest", digest, "commit",
        tow_version_commit(), "islands", (json_int_t)result->island_count,
        "workers", (json_int_t)result->worker_count, "devices",
        (json_int_t)result->device_count, "clients",
        (json_int_t)result->client_count, "faults",
        (json_int_t)result->fault_count, "events",
        (json_int_t)result->counts.events, "virtual_ns",
        (json_int_t)result->virtual_ns, "runs_done",
        (json_int_t)result->stats.runs_done, "runs_failed",
        (json_int_t)result->stats.runs_failed, "results_compared",
        (json_int_t)result->stats.results_checked, "simulated", 1, "ok",
        status == TOW_OK, "error", tow_status_message(status));
    if (object == NULL) return;
    json_dumpf(object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(object);
}

static void print_text(uint64_t seed, const tow_simcluster_result_t *result)
{
    const tow_simcluster_stats_t *stats = &result->stats;
    printf("seed %" PRIu64 " digest %016" PRIx64
           " (simulated: %zu islands, %zu workers, %zu devices, %zu clients, "
           "%zu faults, %.3f virtual s, %" PRIu64 " events, %" PRIu64
           " runs done and %" PRIu64 " failed, %" PRIu64 " uploads, %" PRIu64
           " downloads, %" PRIu64 " results compared, %" PRIu64
           " spills, %" PRIu64 " client sessions, %" PRIu64 " reconnections)\n",
           seed, result->digest, result->island_count, result->worker_count,
           result->device_count, result->client_count, result->fault_count,
           (double)result->virtual_ns * 1e-9, result->counts.events,
           stats->runs_done, stats->runs_failed, stats->uploads,
           stats->downloads, stats->results_checked, stats->spills,
           stats->sessions, stats->reconnections);
}

static void show_progress(sim_arguments_t *arguments, uint64_t done,
                          uint64_t failed)
{
    const int64_t now_ns = tow_bench_now_ns();
    const bool is_last = done == arguments->seed_count;
    if (!isatty(STDERR_FILENO) || arguments->seed_count == 1) return;
    if (!is_last && now_ns - arguments->last_progress_ns < PROGRESS_NS) return;
    arguments->last_progress_ns = now_ns;
    fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " seeds, %" PRIu64 " failed%s",
            done, arguments->seed_count, failed, is_last ? "\n" : " ");
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

/* -- Running ---------------------------------------------------------------- */

/* True if every invariant held. */
static bool run_seed(sim_arguments_t *arguments, uint64_t seed)
{
    tow_simcluster_result_t result;
    arguments->cluster.seed = seed;
    tow_status_t status = tow_simcluster_run(&arguments->cluster, &result);
    if (arguments->json)
        print_json(seed, &result, status);
    else if (arguments->seed_count == 1)
        print_text(seed, &result);
    const bool ok = status == TOW_OK;
    if (!ok) {
        fprintf(stderr, "seed %" PRIu64 " failed at %.6f virtual s: %s\n", seed,
                (double)result.virtual_ns * 1e-9, tow_status_message(status));
        print_replay(arguments, seed);
    }
    tow_status_release(status);
    return ok;
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
        {"seed", 's', "N", 0, "The first seed, or `random` (default 1)", 0},
        {"seeds", OPTION_SEEDS, "N", 0,
         "Run N consecutive seeds; print each one that fails and the command "
         "that replays it",
         0},
        {"nodes", 'n', "N", 0,
         "Hosts of the cluster, 3 to 512 (default: chosen by the seed)", 0},
        {"calm", OPTION_CALM, NULL, 0, "Inject no faults", 0},
        {"events", OPTION_EVENTS, "FILE", 0,
         "Write one line per event, for comparing two runs", 0},
        {"json", 'j', NULL, 0, "Print one JSON object per seed", 0},
        {"scenario", OPTION_SCENARIO, "NAME", OPTION_HIDDEN, NULL, 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Runs simulated clusters in virtual time: a controller, workers "
            "with simulated devices, and clients that run random programs, "
            "while processes crash, freeze and restart and the network drops, "
            "corrupts and partitions. The seed determines everything: the same "
            "seed and commit give the same digest.\vFor example:\n"
            "  tow sim --seed 42             one run, with its digest\n"
            "  tow sim --seeds 500           search for failing seeds\n"
            "  tow sim --seed random --seeds 500\n"
            "Exit status: 0 if every invariant held, 1 if a seed failed.",
    };
    sim_arguments_t arguments = {.seed = 1,
                                 .seed_count = 1,
                                 .cluster.log =
                                     tow_log_from_environment("sim")};
    /* Lost sessions are what the faults are for: no warnings by default. */
    if (getenv("TOW_LOG") == NULL) arguments.cluster.log.level = TOW_LOG_OFF;
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    if (arguments.event_log_path != NULL) {
        arguments.cluster.event_log = fopen(arguments.event_log_path, "w");
        if (arguments.cluster.event_log == NULL)
            return tow_command_finish("sim",
                                      TOW_ERRNO(errno, "opening event log %s",
                                                arguments.event_log_path));
    }
    int result = run_all(&arguments);
    if (arguments.cluster.event_log != NULL)
        fclose(arguments.cluster.event_log);
    return result;
}
