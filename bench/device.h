/* The two parts of `tow bench device`: one process, and gangs of processes. */
#ifndef TOW_BENCH_DEVICE_H_
#define TOW_BENCH_DEVICE_H_

#include "bench/harness.h"

/* Scalar add and all-reduce in a gang of processes, against JAX and Open
 * MPI. */
tow_status_t tow_bench_device_gangs(const tow_bench_options_t *options)
    TOW_MUST_USE;

#endif /* TOW_BENCH_DEVICE_H_ */
