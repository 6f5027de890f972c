/* What messages cost on this machine, for simulations of larger ones. */
#ifndef TOW_TOOL_BENCH_CALIBRATE_H_
#define TOW_TOOL_BENCH_CALIBRATE_H_

#include "env/sim/sim.h"
#include "tool/bench.h"

typedef struct tow_bench_costs {
    tow_sim_costs_t client, controller, worker;
} tow_bench_costs_t;

/* On a local cluster of real processes, a few seconds. */
tow_status_t tow_bench_measure_costs(const tow_bench_options_t *options,
                                     tow_bench_costs_t *out_costs) TOW_MUST_USE;
void tow_bench_print_costs(const tow_bench_costs_t *costs,
                           const tow_bench_options_t *options);

#endif /* TOW_TOOL_BENCH_CALIBRATE_H_ */
