/* The two halves of `tow bench device`: what one process does, and gangs. */
#ifndef TOW_TOOL_BENCH_DEVICE_H_
#define TOW_TOOL_BENCH_DEVICE_H_

#include "tool/bench.h"

/* Scalar add + all-reduce in a gang of processes, beside JAX and Open MPI. */
tow_status_t tow_bench_device_gangs(const tow_bench_options_t *options)
    TOW_MUST_USE;

#endif /* TOW_TOOL_BENCH_DEVICE_H_ */
