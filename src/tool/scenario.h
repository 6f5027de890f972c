/* A simulated cluster that runs the exchange, made from one seed: how many
 * nodes, who talks to whom, how bad the network is, and what breaks when. */
#ifndef TOW_TOOL_SCENARIO_H_
#define TOW_TOOL_SCENARIO_H_

#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/status.h"
#include "env/sim/sim.h"
#include "tool/exchange.h"

typedef enum tow_scenario_faults {
    TOW_SCENARIO_FAULTY, /* crashes, partitions, pauses, loss, damage */
    TOW_SCENARIO_CALM,
} tow_scenario_faults_t;

typedef struct tow_scenario_options {
    uint64_t seed;
    uint32_t node_count;    /* 0: the seed decides, 2 to 12 */
    uint64_t message_count; /* of each stream; 0: the seed decides */
    uint64_t block_count;
    tow_scenario_faults_t faults;
    tow_log_t log;
    FILE *event_log; /* lent; NULL: none */
} tow_scenario_options_t;

typedef struct tow_scenario_result {
    uint64_t digest;
    int64_t virtual_ns;
    size_t node_count;
    size_t fault_count; /* scheduled crashes, cuts, pauses, path changes */
    tow_sim_counts_t counts;
    tow_exchange_stats_t stats; /* of all lives of all nodes, summed */
} tow_scenario_result_t;

/* Runs it to its end. An error is a promise of env.h or of the exchange that
 * did not hold, or streams that did not finish after the last fault. The result
 * is filled in either way. */
tow_status_t tow_scenario_run(const tow_scenario_options_t *options,
                              tow_scenario_result_t *out_result) TOW_MUST_USE;

#endif /* TOW_TOOL_SCENARIO_H_ */
