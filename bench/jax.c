/* `tow bench jax`: JAX needs Python, so this process executes a script. */
#include "bench/benchmarks.h"
#include "bench/script.h"

#define SCRIPT "bench/jax/bench_jax.py"

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    return tow_bench_exec_script(SCRIPT, options);
}

static tow_status_t print_help(void)
{
    return tow_bench_exec_script_help(SCRIPT);
}

const tow_benchmark_t tow_bench_jax = {
    .name = "jax",
    .summary = "unmodified JAX programs on a cluster",
    .run = run_benchmark,
    .print_help = print_help,
};
