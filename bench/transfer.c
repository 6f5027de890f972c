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
#include <towpath/towpath.h>

#include "base/alloc.h"
#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/perftest.h"

#define TRANSFER_BYTES (64u << 20)
#define QUICK_COUNT    5
#define FULL_COUNT     20

typedef struct transfer_bench {
    uint64_t count;       /* of a round */
    tow_client_t *client; /* owned, as the fields below */
    tow_slice_t *slices[2];
    tow_program_t *program;
    tow_array_t *array;
    uint8_t *bytes, *copy;
} transfer_bench_t;

static char *const tcp_environment[] = {"UCX_TLS=tcp,self",
                                        "UCX_NET_DEVICES=lo", NULL};

/* -- Ours ------------------------------------------------------------------------- */

static tow_array_type_t type_of_all(void)
{
    return (tow_array_type_t){.struct_size = sizeof(tow_array_type_t),
                              .type = TOW_TYPE_U8,
                              .rank = 1,
                              .dims = {TRANSFER_BYTES}};
}

static tow_status_t transfer_once(transfer_bench_t *bench,
                                  tow_array_t **out_array)
{
    TOW_RETURN_IF_ERROR(
        tow_program_run(bench->program, &bench->array, 1, out_array, 1));
    return tow_array_wait(*out_array, -1);
}

static tow_status_t our_gigabytes(void *context, double *out_value)
{
    transfer_bench_t *bench = context;
    tow_status_t status = TOW_OK;
    const int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < bench->count && status == TOW_OK; i++) {
        tow_array_t *moved = NULL;
        status = transfer_once(bench, &moved);
        tow_array_release(moved);
    }
    const double ns = (double)(tow_bench_now_ns() - start_ns);
    *out_value = (double)TRANSFER_BYTES * (double)bench->count / ns;
    return status;
}

static tow_status_t check(transfer_bench_t *bench)
{
    tow_array_t *moved = NULL;
    tow_status_t status = transfer_once(bench, &moved);
    if (status == TOW_OK)
        status = tow_array_download(moved, 0, bench->copy, TRANSFER_BYTES);
    tow_array_release(moved);
    TOW_RETURN_IF_ERROR(status);
    if (memcmp(bench->bytes, bench->copy, TRANSFER_BYTES) == 0) return TOW_OK;
    return TOW_ERROR(TOW_DATA_LOSS, "received bytes differ from the sent ones");
}

/* -- Peers ------------------------------------------------------------------------ */

static tow_status_t memcpy_gigabytes(void *context, double *out_value)
{
    transfer_bench_t *bench = context;
    const int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < bench->count; i++) {
        memcpy(bench->copy, bench->bytes, TRANSFER_BYTES);
        __asm__ volatile("" ::: "memory"); /* Each copy counts. */
    }
    const double ns = (double)(tow_bench_now_ns() - start_ns);
    *out_value = (double)TRANSFER_BYTES * (double)bench->count / ns;
    return TOW_OK;
}

static tow_status_t perftest_gigabytes(void *context, double *out_value)
{
    const transfer_bench_t *bench = context;
    const tow_bench_perftest_t test = {.name = "ucp_am_bw",
                                       .environment = tcp_environment,
                                       .size = TRANSFER_BYTES,
                                       .count = bench->count,
                                       .handles_errors = true};
    tow_bench_perftest_result_t result;
    TOW_RETURN_IF_ERROR(tow_bench_perftest_run(&test, &result));
    *out_value = result.bytes_per_second * 1e-9;
    return TOW_OK;
}

/* -- Opening and closing -------------------------------------------------- */

static tow_status_t open_slices(transfer_bench_t *bench)
{
    tow_slice_t *all = NULL;
    tow_slice_options_t options = {.struct_size = sizeof(options), .dims = {2}};
    TOW_RETURN_IF_ERROR(tow_slice_open(bench->client, &options, &all));
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < 2 && status == TOW_OK; i++) {
        tow_device_t device = {.struct_size = sizeof(device)};
        status = tow_slice_device(all, i, &device);
        tow_slice_options_t one = {.struct_size = sizeof(one),
                                   .devices = &device.id,
                                   .device_count = 1};
        if (status == TOW_OK)
            status = tow_slice_open(bench->client, &one, &bench->slices[i]);
    }
    tow_slice_release(all);
    return status;
}

static tow_status_t trace(transfer_bench_t *bench)
{
    const tow_array_type_t type = type_of_all();
    tow_array_t *array = NULL, *moved = NULL;
    TOW_RETURN_IF_ERROR(
        tow_program_create(bench->client, "transfer", &bench->program));
    TOW_RETURN_IF_ERROR(tow_program_argument(bench->program, bench->slices[0],
                                             &type, false, &array));
    tow_transfer_options_t options = {.struct_size = sizeof(options),
                                      .slice = bench->slices[1]};
    tow_status_t status = tow_array_transfer(array, &options, &moved);
    if (status == TOW_OK) status = tow_program_result(bench->program, moved);
    tow_array_release(moved);
    tow_array_release(array);
    TOW_RETURN_IF_ERROR(status);
    return tow_program_finish(bench->program);
}

static tow_status_t make_bytes(transfer_bench_t *bench)
{
    bench->bytes = tow_malloc(TRANSFER_BYTES);
    bench->copy = tow_malloc(TRANSFER_BYTES);
    if (bench->bytes == NULL || bench->copy == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < TRANSFER_BYTES; i++)
        bench->bytes[i] = (uint8_t)(i * 167 + (i >> 12));
    memset(bench->copy, 0, TRANSFER_BYTES);
    return TOW_OK;
}

static tow_status_t open_bench(transfer_bench_t *bench)
{
    tow_client_options_t client = {.struct_size = sizeof(client),
                                   .name = "bench",
                                   .worker_count = 2,
                                   .devices_per_worker = 1};
    TOW_RETURN_IF_ERROR(make_bytes(bench));
    TOW_RETURN_IF_ERROR(tow_client_open(&client, &bench->client));
    TOW_RETURN_IF_ERROR(open_slices(bench));
    TOW_RETURN_IF_ERROR(trace(bench));
    tow_upload_options_t upload = {.struct_size = sizeof(upload),
                                   .type = type_of_all(),
                                   .bytes = bench->bytes,
                                   .size = TRANSFER_BYTES};
    TOW_RETURN_IF_ERROR(
        tow_array_upload(bench->slices[0], &upload, &bench->array));
    return check(bench);
}

static void close_bench(transfer_bench_t *bench)
{
    tow_array_release(bench->array);
    tow_program_release(bench->program);
    tow_slice_release(bench->slices[0]);
    tow_slice_release(bench->slices[1]);
    tow_client_release(bench->client);
    tow_free(bench->bytes);
    tow_free(bench->copy);
}

/* -- The cases -------------------------------------------------------------------- */

/* Sets the environment of processes that are started later. */
static void use_tcp(bool only)
{
    if (!only) {
        unsetenv("UCX_TLS");
        unsetenv("UCX_NET_DEVICES");
        unsetenv("TOW_REACH");
        return;
    }
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    setenv("TOW_REACH", "0", 1);
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
    tow_status_t status = open_bench(&bench);
    if (status == TOW_OK)
        status = tow_bench_run_case(&shown, options->quick ? 3 : 9, options);
    close_bench(&bench);
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
