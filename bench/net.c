/* `tow bench net`: the cases and their peers. */
#include "bench/net.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/peer.h"
#include "bench/perftest.h"
#include "supervisor/keys.h"
#include "supervisor/scratch_folder.h"
#include "supervisor/subprocess.h"

#define CHILD_TIMEOUT_NS INT64_C(30000000000)

/* UCX transports, the same for us and the peer. */
typedef enum fabric {
    FABRIC_SHARED_MEMORY,
    FABRIC_TCP
} fabric_t;

static char *const fabric_environment[][4] = {
    [FABRIC_SHARED_MEMORY] = {"UCX_TLS=posix,sysv,cma,self,tcp",
                              "UCX_NET_DEVICES=lo", "UCX_MM_ERROR_HANDLING=y",
                              NULL},
    [FABRIC_TCP] = {"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo", NULL},
};

typedef struct net_bench {
    char folder[PATH_MAX]; /* scratch: the socket and the token */
    char address[PATH_MAX + 16];
    char pingpong[PATH_MAX];
    tow_keys_t keys;
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

static tow_status_t parse_number(const char *program, const char *text,
                                 double *out_value)
{
    char *end = NULL;
    *out_value = strtod(text, &end);
    if (end == text || *out_value <= 0)
        return TOW_ERROR(TOW_INTERNAL, "%s printed '%s' instead of a number",
                         program, text);
    return TOW_OK;
}

static tow_status_t measure(const net_case_t *c, double *out_seconds)
{
    char count[32], text[4096];
    snprintf(count, sizeof(count), "%llu", (unsigned long long)c->count);
    char *address = (char *)c->bench->address,
         *token = (char *)c->bench->keys.token;
    char *const argv[] = {"tow", "bench", "net-measure", (char *)c->kind,
                          count, address, token,         NULL};
    tow_subprocess_t client = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(tow_subprocess_start_self(
        argv, fabric_environment[c->fabric], TOW_SUBPROCESS_PIPE, &client));
    TOW_RETURN_IF_ERROR(tow_subprocess_finish(&client, "the measuring process",
                                              CHILD_TIMEOUT_NS, text,
                                              sizeof(text)));
    return parse_number("the measuring process", text, out_seconds);
}

/* Ours: seconds per operation between two new processes. */
static tow_status_t run_ours(const net_case_t *c, double *out_seconds)
{
    char *address = (char *)c->bench->address,
         *token = (char *)c->bench->keys.token;
    char *const argv[] = {"tow", "bench", "net-serve", address, token, NULL};
    char ready[8], text[1024];
    tow_subprocess_t server = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(tow_subprocess_start_self(
        argv, fabric_environment[c->fabric], TOW_SUBPROCESS_PIPE, &server));
    tow_status_t status = TOW_OK;
    if (read(server.output_fd, ready, 6) != 6)
        status = TOW_ERROR(TOW_UNAVAILABLE, "the serving process is not ready");
    if (status == TOW_OK) status = measure(c, out_seconds);
    if (status == TOW_OK)
        status = tow_subprocess_finish(&server, "the serving process",
                                       CHILD_TIMEOUT_NS, text, sizeof(text));
    tow_subprocess_kill(&server);
    return status;
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
    char count[32], text[256];
    snprintf(count, sizeof(count), "%llu", (unsigned long long)c->count);
    char *program = (char *)c->bench->pingpong;
    char *const argv[] = {program, (char *)c->peer_test, count, NULL};
    tow_subprocess_t child = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(
        tow_subprocess_start(argv, NULL, TOW_SUBPROCESS_PIPE, &child));
    TOW_RETURN_IF_ERROR(tow_subprocess_finish(
        &child, "pingpong", CHILD_TIMEOUT_NS, text, sizeof(text)));
    return parse_number("pingpong", text, out_value);
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
    TOW_RETURN_IF_ERROR(
        tow_bench_find_built("bench/peers/pingpong", bench->pingpong));
    TOW_RETURN_IF_ERROR(tow_scratch_folder_create(bench->folder, PATH_MAX));
    snprintf(bench->address, sizeof(bench->address), "unix:%s/s",
             bench->folder);
    TOW_RETURN_IF_ERROR(tow_keys_in(bench->folder, &bench->keys));
    return tow_keys_make(&bench->keys, NULL);
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
