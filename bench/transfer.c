/* `tow bench transfer`: 64 MiB from the device of one worker to that of
 * another.
 *
 * A program of one transfer on a local cluster of two worker processes. The
 * time from the start of the run until the result is ready includes client,
 * controller and both workers. On one host the memory is shared without a copy
 * (docs/decisions/0007-zero-copy-sharing.md): its first reader pays 2 ms for page tables.
 * The peer is memcpy of as much into memory that has been written before; over
 * TCP (loopback, without shared memory) it is ucx_perftest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/move.h"
#include "bench/perftest.h"

#define QUICK_COUNT 5
#define FULL_COUNT  20

typedef struct transfer_bench {
    uint64_t count; /* of a round */
    tow_bench_move_t move;
} transfer_bench_t;

static char *const tcp_environment[] = {
    "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo", "TOW_DATA_TRUSTED=lo", NULL};

/* -- Ours ------------------------------------------------------------------------- */

static tow_status_t our_gigabytes(void *context, double *out_value)
{
    transfer_bench_t *bench = context;
    double seconds = 0;
    TOW_RETURN_IF_ERROR(
        tow_bench_move_time(&bench->move, bench->count, &seconds));
    *out_value = TOW_BENCH_MOVE_BYTES / seconds * 1e-9;
    return TOW_OK;
}

/* -- Peers ------------------------------------------------------------------------ */

static tow_status_t memcpy_gigabytes(void *context, double *out_value)
{
    transfer_bench_t *bench = context;
    const int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < bench->count; i++) {
        memcpy(bench->move.copy, bench->move.bytes, TOW_BENCH_MOVE_BYTES);
        __asm__ volatile("" ::: "memory"); /* Each copy counts. */
    }
    const double ns = (double)(tow_bench_now_ns() - start_ns);
    *out_value = (double)TOW_BENCH_MOVE_BYTES * (double)bench->count / ns;
    return TOW_OK;
}

static tow_status_t perftest_gigabytes(void *context, double *out_value)
{
    const transfer_bench_t *bench = context;
    const tow_bench_perftest_t test = {.name = "ucp_am_bw",
                                       .environment = tcp_environment,
                                       .size = TOW_BENCH_MOVE_BYTES,
                                       .count = bench->count,
                                       .handles_errors = true};
    tow_bench_perftest_result_t result;
    TOW_RETURN_IF_ERROR(tow_bench_perftest_run(&test, &result));
    *out_value = result.bytes_per_second * 1e-9;
    return TOW_OK;
}

/* -- The cases -------------------------------------------------------------------- */

/* Sets the environment of processes that are started later. */
static void use_tcp(bool only)
{
    if (!only) {
        unsetenv("UCX_TLS");
        unsetenv("UCX_NET_DEVICES");
        unsetenv("TOW_DATA_TRUSTED");
        return;
    }
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    setenv("TOW_DATA_TRUSTED", "lo", 1);
}

static tow_status_t run_case(tow_bench_case_t shown,
                             const tow_bench_options_t *options)
{
    transfer_bench_t bench = {.count =
                                  options->quick ? QUICK_COUNT : FULL_COUNT};
    shown.bench = "transfer";
    shown.unit = "GB/s";
    shown.better = TOW_BENCH_HIGHER_IS_BETTER;
    shown.run = our_gigabytes;
    shown.context = &bench;
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    const tow_client_options_t client = {.struct_size = sizeof(client),
                                         .name = "bench",
                                         .worker_count = 2,
                                         .devices_per_worker = 1};
    tow_status_t status = tow_bench_move_open(&client, &bench.move);
    if (status == TOW_OK)
        status = tow_bench_run_case(&shown, options->quick ? 3 : 9, options);
    tow_bench_move_close(&bench.move);
    return status;
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    TOW_RETURN_IF_ERROR(
        run_case((tow_bench_case_t){.name = "one_host_64MiB",
                                    .peer = "memcpy, warm",
                                    .bar = 1.0,
                                    .peer_run = memcpy_gigabytes},
                 options));
    use_tcp(true);
    tow_status_t status =
        run_case((tow_bench_case_t){.name = "tcp_64MiB",
                                    .peer = "ucx_perftest ucp_am_bw -e, TCP",
                                    .bar = 0.9,
                                    .peer_run = perftest_gigabytes},
                 options);
    use_tcp(false);
    return status;
}

static const char *const case_names[] = {"one_host_64MiB", "tcp_64MiB", NULL};

const tow_benchmark_t tow_bench_transfer = {
    .name = "transfer",
    .summary = "64 MiB from worker to worker",
    .cases = case_names,
    .run = run_benchmark,
};
