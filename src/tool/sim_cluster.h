/* A simulated cluster, made from one seed: a controller, workers with simulated
 * devices and clients that run random programs, while processes crash, freeze and
 * restart and the network loses and partitions. All of it is the code that
 * production runs. */
#ifndef TOW_TOOL_SIM_CLUSTER_H_
#define TOW_TOOL_SIM_CLUSTER_H_

#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"
#include "env/sim/sim.h"
#include "tool/scenario.h"

typedef struct tow_sim_cluster_options {
    uint64_t seed;
    uint32_t host_count; /* 0: the seed decides: mostly few, at times 512 */
    tow_scenario_faults_t faults;
    tow_log_t log;
    FILE *event_log; /* lent; NULL: none */
} tow_sim_cluster_options_t;

/* What clients did, over all their lives. */
typedef struct tow_sim_cluster_stats {
    uint64_t runs_started, runs_done, runs_failed;
    uint64_t uploads, downloads, moves, bytes_checked;
    uint64_t sessions;
    uint64_t comebacks; /* of clients that lost their controller */
    uint64_t spills;    /* of the last controller */
} tow_sim_cluster_stats_t;

typedef struct tow_sim_cluster_result {
    uint64_t digest;
    int64_t virtual_ns;
    size_t worker_count, device_count, client_count, island_count;
    size_t fault_count;
    tow_sim_counts_t counts;
    tow_sim_cluster_stats_t stats;
} tow_sim_cluster_result_t;

/* Runs it to its end. An error is a promise that did not hold: an invariant, a
 * future that never settles or settles wrongly, something that is left when all
 * clients have gone. The result is filled in either way. */
tow_status_t tow_sim_cluster_run(const tow_sim_cluster_options_t *options,
                                 tow_sim_cluster_result_t *out_result)
    TOW_MUST_USE;

#endif /* TOW_TOOL_SIM_CLUSTER_H_ */
