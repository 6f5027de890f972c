/* Every benchmark, for the registry. */
#ifndef TOW_BENCH_BENCHMARKS_H_
#define TOW_BENCH_BENCHMARKS_H_

#include "bench/registry.h"

extern const tow_benchmark_t tow_bench_calibrate;
extern const tow_benchmark_t tow_bench_device;
extern const tow_benchmark_t tow_bench_dispatch;
extern const tow_benchmark_t tow_bench_hosts;
extern const tow_benchmark_t tow_bench_jax;
extern const tow_benchmark_t tow_bench_net;
extern const tow_benchmark_t tow_bench_pieces;
extern const tow_benchmark_t tow_bench_pipeline;
extern const tow_benchmark_t tow_bench_program;
extern const tow_benchmark_t tow_bench_scale;
extern const tow_benchmark_t tow_bench_sim;
extern const tow_benchmark_t tow_bench_transfer;

#endif /* TOW_BENCH_BENCHMARKS_H_ */
