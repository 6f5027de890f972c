/* Benchmarks that are Python scripts: this process executes the script. */
#ifndef TOW_BENCH_SCRIPT_H_
#define TOW_BENCH_SCRIPT_H_

#include "base/macros.h"
#include "base/status.h"
#include "bench/harness.h"

/* Replaces this process by the script of the build folder,
 * "bench/jax/bench_jax.py", with the options. Returns only with an error. */
tow_status_t tow_bench_exec_script(const char *script,
                                   const tow_bench_options_t *options)
    TOW_MUST_USE;
/* The same with --help. */
tow_status_t tow_bench_exec_script_help(const char *script) TOW_MUST_USE;

#endif /* TOW_BENCH_SCRIPT_H_ */
