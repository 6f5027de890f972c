/* `tow bench program`: programs in Python. A script, which this process
 * executes, and the same program in C, as a process beside it. */
#include <stdlib.h>

#include "bench/benchmarks.h"
#include "bench/chain.h"
#include "bench/harness.h"
#include "bench/responder.h"
#include "bench/script.h"

#define SCRIPT "bench/program/bench_program.py"

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    return tow_bench_exec_script(SCRIPT, options);
}

static tow_status_t print_help(void)
{
    return tow_bench_exec_script_help(SCRIPT);
}

/* -- The program in C -------------------------------------------------------- */

static tow_status_t run_programs(tow_bench_chain_t *chain, uint64_t count,
                                 tow_array_t **value, double *out_seconds)
{
    TOW_RETURN_IF_ERROR(tow_array_wait(*value, -1));
    const int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(tow_bench_chain_run(chain, value));
    TOW_RETURN_IF_ERROR(tow_array_wait(*value, -1));
    *out_seconds = (double)(tow_bench_now_ns() - start_ns) * 1e-9;
    return TOW_OK;
}

/* A line is the number of runs. */
static tow_status_t answer(void *context, const char *line, double *out_seconds)
{
    tow_bench_chain_t *chain = context;
    tow_array_t *value = NULL;
    TOW_RETURN_IF_ERROR(tow_bench_chain_begin(chain, &value));
    tow_status_t status =
        run_programs(chain, strtoull(line, NULL, 10), &value, out_seconds);
    tow_array_release(value);
    return status;
}

/* WORKERS DEVICES DESCRIPTOR */
static tow_status_t run_chain(int argc, char **argv)
{
    if (argc != 4)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: takes workers, devices and a descriptor",
                         argv[0]);
    const tow_bench_chain_options_t options = {
        .worker_count = (uint32_t)strtoul(argv[1], NULL, 10),
        .devices_per_worker = (uint32_t)strtoul(argv[2], NULL, 10)};
    tow_bench_chain_t chain;
    tow_status_t status = tow_bench_chain_open(&options, &chain);
    if (status == TOW_OK) status = tow_bench_respond(argv[3], answer, &chain);
    tow_bench_chain_close(&chain);
    return status;
}

static const tow_benchmark_child_t children[] = {{"program_chain", run_chain},
                                                 {0}};

const tow_benchmark_t tow_bench_program = {
    .name = "program",
    .summary = "programs in Python over slices of a cluster",
    .run = run_benchmark,
    .print_help = print_help,
    .children = children,
};
