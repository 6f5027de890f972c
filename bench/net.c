/* `tow bench net`: the cases and their peers. */
#include "bench/net.h"

#include <limits.h>
#include <stdio.h>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/pair.h"
#include "bench/peer.h"
#include "bench/perftest.h"
#include "supervisor/keys.h"
#include "supervisor/scratch_folder.h"

/* UCX transports, the same for us and the peer. */
typedef enum fabric {
    FABRIC_SHARED_MEMORY,
    FABRIC_TCP
} fabric_t;

static char *const fabric_environment[][4] = {
    [FABRIC_SHARED_MEMORY] = {"UCX_TLS=posix,sysv,cma,self,tcp",
                              "UCX_NET_DEVICES=lo", "UCX_MM_ERROR_HANDLING=y",
                              NULL},
    [FABRIC_TCP] = {"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo",
                    "TOW_DATA_TRUSTED=lo", NULL},
};

typedef struct net_bench {
    char folder[PATH_MAX]; /* scratch: the socket and the token */
    char address[PATH_MAX + 16];
    char pingpong[PATH_MAX];
} net_bench_t;

typedef struct net_case {
    const net_bench_t *bench; /* lent */
    const char *kind;         /* of net-measure */
    fabric_t fabric;
    uint64_t count;
    const char *peer_test; /* of ucx_perftest, or pingpong's mode */
    uint64_t peer_size;
    /* The peer's endpoints handle errors, as ours always do. */
    bool peer_handles_errors;
} net_case_t;

tow_status_t tow_bench_net_pair_run(const tow_bench_net_pair_t *pair,
                                    double *out_seconds)
{
    char program[PATH_MAX], count[32];
    char *address = (char *)pair->address, *folder = (char *)pair->keys_folder;
    TOW_RETURN_IF_ERROR(tow_bench_find_built("tow", program));
    snprintf(count, sizeof(count), "%llu", (unsigned long long)pair->count);
    char *const serve[] = {program, "bench", "net-serve",
                           address, folder,  NULL};
    char *const measure[] = {program,       "bench",
                             "net-measure", (char *)pair->kind,
                             count,         TOW_BENCH_SERVER_LINE,
                             folder,        NULL};
    const tow_bench_pair_t processes = {.name = pair->kind,
                                        .server_place = pair->server_place,
                                        .server_argv = serve,
                                        .measure_place = pair->measure_place,
                                        .measure_argv = measure,
                                        .environment = pair->environment};
    return tow_bench_pair_run(&processes, out_seconds);
}

static tow_status_t run_ours(const net_case_t *c, double *out_seconds)
{
    const tow_bench_net_pair_t pair = {.kind = c->kind,
                                       .count = c->count,
                                       .address = c->bench->address,
                                       .keys_folder = c->bench->folder,
                                       .environment =
                                           fabric_environment[c->fabric]};
    return tow_bench_net_pair_run(&pair, out_seconds);
}

static tow_status_t ours_microseconds(void *context, double *out_value)
{
    TOW_RETURN_IF_ERROR(run_ours(context, out_value));
    *out_value *= 1e6;
    return TOW_OK;
}

static tow_status_t ours_per_second(void *context, double *out_value)
{
    TOW_RETURN_IF_ERROR(run_ours(context, out_value));
    *out_value = 1 / *out_value;
    return TOW_OK;
}

static tow_status_t ours_gigabytes(void *context, double *out_value)
{
    TOW_RETURN_IF_ERROR(run_ours(context, out_value));
    *out_value = TOW_BENCH_BULK_SIZE / *out_value * 1e-9;
    return TOW_OK;
}

static tow_status_t run_pingpong(void *context, double *out_value)
{
    const net_case_t *c = context;
    char count[32];
    snprintf(count, sizeof(count), "%llu", (unsigned long long)c->count);
    char *program = (char *)c->bench->pingpong;
    char *const argv[] = {program, (char *)c->peer_test, count, NULL};
    return tow_bench_run_for_number(&(tow_bench_place_t){0}, "pingpong", argv,
                                    NULL, out_value);
}

static tow_bench_perftest_t perftest_of(const net_case_t *c)
{
    return (tow_bench_perftest_t){.name = c->peer_test,
                                  .environment = fabric_environment[c->fabric],
                                  .size = c->peer_size,
                                  .count = c->count,
                                  .handles_errors = c->peer_handles_errors};
}

static tow_status_t perftest_roundtrip(void *context, double *out_value)
{
    const tow_bench_perftest_t test = perftest_of(context);
    tow_bench_perftest_result_t result;
    TOW_RETURN_IF_ERROR(tow_bench_perftest_run(&test, &result));
    *out_value = 2 * result.latency_us; /* ucx_perftest reports one way. */
    return TOW_OK;
}

static tow_status_t perftest_gigabytes(void *context, double *out_value)
{
    const tow_bench_perftest_t test = perftest_of(context);
    tow_bench_perftest_result_t result;
    TOW_RETURN_IF_ERROR(tow_bench_perftest_run(&test, &result));
    *out_value = result.bytes_per_second * 1e-9;
    return TOW_OK;
}

static tow_status_t open_bench(net_bench_t *bench)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(
        tow_bench_find_built("bench/peers/pingpong", bench->pingpong));
    TOW_RETURN_IF_ERROR(tow_scratch_folder_create(bench->folder, PATH_MAX));
    snprintf(bench->address, sizeof(bench->address), "unix:%s/s",
             bench->folder);
    TOW_RETURN_IF_ERROR(tow_keys_in(bench->folder, &keys));
    return tow_keys_make(&keys, NULL);
}

typedef struct case_row {
    tow_bench_case_t shown;
    net_case_t measured;
} case_row_t;

static tow_status_t run_row(const net_bench_t *bench, const case_row_t *row,
                            const tow_bench_options_t *options)
{
    net_case_t measured = row->measured;
    measured.bench = bench;
    if (options->quick) measured.count = (measured.count + 5) / 6;
    tow_bench_case_t shown = row->shown;
    shown.bench = "net";
    shown.context = &measured;
    return tow_bench_run_case(&shown, options->quick ? 3 : 11, options);
}

/* Targets: a round trip takes at most 1.5 and 1.3 times the peer's, bandwidth
 * is at least 0.9 of the peer's, and a million small messages per second. */
static const case_row_t rows[] = {
    {{.name = "lane_roundtrip_8B",
      .unit = "us",
      .peer = "ucx_perftest ucp_am_lat, shared memory",
      .better = TOW_BENCH_LOWER_IS_BETTER,
      .bar = 1 / 1.5,
      .run = ours_microseconds,
      .peer_run = perftest_roundtrip},
     {.kind = "lane_roundtrip",
      .fabric = FABRIC_SHARED_MEMORY,
      .count = 400000,
      .peer_test = "ucp_am_lat",
      .peer_size = 8}},
    {{.name = "link_roundtrip_8B",
      .unit = "us",
      .peer = "bare blocking ping-pong, Unix socket",
      .better = TOW_BENCH_LOWER_IS_BETTER,
      .bar = 1 / 1.3,
      .run = ours_microseconds,
      .peer_run = run_pingpong},
     {.kind = "link_roundtrip", .count = 80000, .peer_test = "roundtrip"}},
    {{.name = "link_oneway_8B",
      .unit = "1/s",
      .peer = "1 M messages/s asked for",
      .better = TOW_BENCH_HIGHER_IS_BETTER,
      .bar = 1,
      .run = ours_per_second,
      .limit = 1e6},
     {.kind = "link_oneway", .count = 4000000}},
    {{.name = "bulk_64MiB_shm",
      .unit = "GB/s",
      .peer = "ucx_perftest ucp_am_bw, shared memory",
      .better = TOW_BENCH_HIGHER_IS_BETTER,
      .bar = 0.9,
      .run = ours_gigabytes,
      .peer_run = perftest_gigabytes},
     {.kind = "lane_bulk",
      .fabric = FABRIC_SHARED_MEMORY,
      .count = 80,
      .peer_test = "ucp_am_bw",
      .peer_size = TOW_BENCH_BULK_SIZE}},
    {{.name = "bulk_64MiB_shm_e",
      .unit = "GB/s",
      .peer = "ucx_perftest ucp_am_bw -e, shared memory",
      .better = TOW_BENCH_HIGHER_IS_BETTER,
      .bar = 0.9,
      .run = ours_gigabytes,
      .peer_run = perftest_gigabytes},
     {.kind = "lane_bulk",
      .fabric = FABRIC_SHARED_MEMORY,
      .count = 80,
      .peer_test = "ucp_am_bw",
      .peer_size = TOW_BENCH_BULK_SIZE,
      .peer_handles_errors = true}},
    {{.name = "bulk_64MiB_tcp",
      .unit = "GB/s",
      .peer = "ucx_perftest ucp_am_bw, TCP on loopback",
      .better = TOW_BENCH_HIGHER_IS_BETTER,
      .bar = 0.9,
      .run = ours_gigabytes,
      .peer_run = perftest_gigabytes},
     {.kind = "lane_bulk",
      .fabric = FABRIC_TCP,
      .count = 60,
      .peer_test = "ucp_am_bw",
      .peer_size = TOW_BENCH_BULK_SIZE}},
    {{.name = "bulk_64MiB_tcp_e",
      .unit = "GB/s",
      .peer = "ucx_perftest ucp_am_bw -e, TCP on loopback",
      .better = TOW_BENCH_HIGHER_IS_BETTER,
      .bar = 0.9,
      .run = ours_gigabytes,
      .peer_run = perftest_gigabytes},
     {.kind = "lane_bulk",
      .fabric = FABRIC_TCP,
      .count = 60,
      .peer_test = "ucp_am_bw",
      .peer_size = TOW_BENCH_BULK_SIZE,
      .peer_handles_errors = true}},
};

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    net_bench_t bench = {0};
    tow_status_t status = open_bench(&bench);
    for (size_t i = 0; status == TOW_OK && i < TOW_COUNT_OF(rows); i++)
        status = run_row(&bench, &rows[i], options);
    if (bench.folder[0] != '\0') tow_scratch_folder_remove(bench.folder);
    return status;
}

static const tow_benchmark_child_t children[] = {
    {"net-serve", tow_bench_net_serve},
    {"net-measure", tow_bench_net_measure},
    {0},
};

static const char *const case_names[] = {
    "lane_roundtrip_8B", "link_roundtrip_8B",
    "link_oneway_8B",    "bulk_64MiB_shm",
    "bulk_64MiB_shm_e",  "bulk_64MiB_tcp",
    "bulk_64MiB_tcp_e",  NULL};

const tow_benchmark_t tow_bench_net = {
    .name = "net",
    .summary = "messages and bulk data between two processes",
    .cases = case_names,
    .run = run_benchmark,
    .children = children,
};
