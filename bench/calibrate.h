/* CPU cost of messages on this host, for simulations of larger clusters. */
#ifndef TOW_BENCH_CALIBRATE_H_
#define TOW_BENCH_CALIBRATE_H_

#include "bench/harness.h"
#include "env/sim/sim.h"

typedef struct tow_bench_costs {
    tow_sim_costs_t client, controller, worker;
} tow_bench_costs_t;

/* Measures on a local cluster of real processes; takes a few seconds. */
tow_status_t tow_bench_measure_costs(const tow_bench_options_t *options,
                                     tow_bench_costs_t *out_costs) TOW_MUST_USE;
void tow_bench_print_costs(const tow_bench_costs_t *costs,
                           const tow_bench_options_t *options);

#endif /* TOW_BENCH_CALIBRATE_H_ */
