/* A simulated cluster, determined by one seed: a controller, workers with
 * simulated devices and clients that run random programs, while processes
 * crash, freeze and restart and the network drops, corrupts and partitions.
 * Controller, workers and clients are the production code. */
#ifndef TOW_SIMCLUSTER_SIMCLUSTER_H_
#define TOW_SIMCLUSTER_SIMCLUSTER_H_

#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"
#include "env/sim/sim.h"

/* The controller, at least one client and at least one worker. */
#define TOW_SIMCLUSTER_HOST_COUNT_MIN 3
/* Every worker is connected to every other: 512 take seconds to simulate. */
#define TOW_SIMCLUSTER_HOST_COUNT_MAX 512

typedef enum tow_simcluster_faults {
    TOW_SIMCLUSTER_FAULTY, /* crashes, freezes, partitions, loss, corruption */
    TOW_SIMCLUSTER_CALM,   /* none */
} tow_simcluster_faults_t;

typedef struct tow_simcluster_options {
    uint64_t seed;
    uint32_t host_count; /* 0: chosen by the seed */
    tow_simcluster_faults_t faults;
    tow_log_t log;
    FILE *event_log; /* lent; NULL: none */
} tow_simcluster_options_t;

/* Operations of all clients, summed over their restarts. */
typedef struct tow_simcluster_stats {
    uint64_t runs_started, runs_done, runs_failed;
    uint64_t uploads, downloads, moves;
    /* Downloads of results of runs, and bytes of all downloads, that were
     * compared with those that the client had worked out. */
    uint64_t results_checked, bytes_checked;
    uint64_t giants_refused; /* runs that need more memory than a device has */
    uint64_t sessions;
    uint64_t reconnections; /* of clients after they lost the controller */
    uint64_t spills;        /* of the last controller */
} tow_simcluster_stats_t;

typedef struct tow_simcluster_result {
    uint64_t digest;
    int64_t virtual_ns;
    size_t worker_count, device_count, client_count, island_count;
    size_t fault_count;
    tow_sim_counts_t counts;
    tow_simcluster_stats_t stats;
} tow_simcluster_result_t;

/* Runs the simulation to its end. An error is a violated invariant, a future
 * that never settles or settles wrongly, or state that remains after the last
 * client. The result is filled in either way. */
tow_status_t tow_simcluster_run(const tow_simcluster_options_t *options,
                                tow_simcluster_result_t *out_result)
    TOW_MUST_USE;

#endif /* TOW_SIMCLUSTER_SIMCLUSTER_H_ */
