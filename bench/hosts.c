/* `tow bench hosts`: a cluster across two hosts.
 *
 * The hosts are namespaces of this machine, joined by a veth cable (netns.h).
 * Times of `put` and `move` include client, controller and both workers, as in
 * `tow bench transfer`. The peers run on the same two hosts, in the same run:
 * a program that does nothing but TLS 1.3 with the same cipher, and
 * ucx_perftest. The peer of the training step is a cluster on one host. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/hosts_cluster.h"
#include "bench/move.h"
#include "bench/net.h"
#include "bench/pair.h"
#include "bench/peer.h"
#include "bench/perftest.h"
#include "bench/responder.h"

/* The cipher that our connections negotiate (wire/tls_context.c). */
#define CIPHER "TLS_AES_128_GCM_SHA256"

#define QUICK_ROUNDS 3

typedef struct hosts_bench {
    const tow_bench_options_t *options; /* lent */
    tow_bench_hosts_t hosts;
    char pump[PATH_MAX]; /* bench/peers/tls_pump */
    tow_bench_cluster_t cluster;
    tow_bench_responder_t ours;        /* the client of the cluster */
    tow_bench_responder_t peer;        /* training on one host */
    const struct case_kind *open_kind; /* of the case for which these run */
    tow_bench_lane_t open_lane;
} hosts_bench_t;

typedef struct hosts_case {
    hosts_bench_t *bench; /* lent */
    const char *request;  /* "put", "move"; or the kind of net-measure */
    tow_bench_lane_t lane;
    uint64_t count; /* of a round */
} hosts_case_t;

static tow_bench_place_t on_host(const hosts_case_t *c, size_t index)
{
    return (tow_bench_place_t){.hosts = &c->bench->hosts, .index = index};
}

/* -- 64 MiB ---------------------------------------------------------------- */

/* hosts-client DESCRIPTOR: answers "put COUNT" and "move COUNT". */
static tow_status_t answer_client(void *context, const char *line,
                                  double *out_seconds)
{
    tow_bench_move_t *move = context;
    unsigned long long count = 0;
    if (sscanf(line, "put %llu", &count) == 1)
        return tow_bench_put_time(move, count, out_seconds);
    if (sscanf(line, "move %llu", &count) == 1)
        return tow_bench_move_time(move, count, out_seconds);
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "neither put nor move: '%s'", line);
}

static tow_status_t run_client(int argc, char **argv)
{
    const tow_client_options_t client = {.struct_size = sizeof(client),
                                         .name = "bench"};
    tow_bench_move_t move;
    if (argc != 2)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%d arguments, not 1", argc - 1);
    TOW_RETURN_IF_ERROR(tow_bench_move_open(&client, &move));
    tow_status_t status = tow_bench_respond(argv[1], answer_client, &move);
    tow_bench_move_close(&move);
    return status;
}

static tow_status_t open_client(const hosts_case_t *c)
{
    hosts_bench_t *bench = c->bench;
    const tow_bench_place_t place = on_host(c, 0);
    char *const argv[] = {bench->hosts.program, "bench", "hosts-client", NULL};
    TOW_RETURN_IF_ERROR(
        tow_bench_cluster_start(&bench->hosts, c->lane, &bench->cluster));
    return tow_bench_responder_start("the client", &place, argv,
                                     bench->cluster.client_environment,
                                     &bench->ours);
}

static tow_status_t our_gigabytes(void *context, double *out_value)
{
    const hosts_case_t *c = context;
    char line[64];
    double seconds = 0;
    snprintf(line, sizeof(line), "%s %llu\n", c->request,
             (unsigned long long)c->count);
    TOW_RETURN_IF_ERROR(
        tow_bench_responder_ask_seconds(&c->bench->ours, line, &seconds));
    *out_value = TOW_BENCH_MOVE_BYTES / seconds * 1e-9;
    return TOW_OK;
}

/* -- Peers: bare TLS, and UCX ---------------------------------------------- */

static tow_status_t run_pump(const hosts_case_t *c, char *mode,
                             double *out_value)
{
    char count[32], *pump = c->bench->pump,
                    *address = (char *)tow_bench_host_address(1);
    snprintf(count, sizeof(count), "%llu", (unsigned long long)c->count);
    char *const serve[] = {pump,
                           "serve",
                           address,
                           TOW_BENCH_KEYS_FOLDER "/cert.pem",
                           TOW_BENCH_KEYS_FOLDER "/key.pem",
                           CIPHER,
                           NULL};
    char *connections =
        c->lane == TOW_BENCH_LANE_STREAMS ? TOW_BENCH_STREAM_COUNT : "1";
    char *const measure[] = {pump,  mode,   address,     TOW_BENCH_SERVER_LINE,
                             count, CIPHER, connections, NULL};
    const tow_bench_pair_t pair = {.name = "tls_pump",
                                   .server_place = on_host(c, 1),
                                   .server_argv = serve,
                                   .measure_place = on_host(c, 0),
                                   .measure_argv = measure};
    return tow_bench_pair_run(&pair, out_value);
}

static tow_status_t pump_gigabytes(void *context, double *out_value)
{
    double seconds = 0;
    TOW_RETURN_IF_ERROR(run_pump(context, "pump", &seconds));
    *out_value = TOW_BENCH_MOVE_BYTES / seconds * 1e-9;
    return TOW_OK;
}

static tow_status_t pump_roundtrip(void *context, double *out_value)
{
    return run_pump(context, "roundtrip", out_value);
}

static char *const ucx_environment[] = {
    "UCX_TLS=tcp,self", "UCX_NET_DEVICES=" TOW_BENCH_HOST_DEVICE, NULL};

static tow_status_t perftest_gigabytes(void *context, double *out_value)
{
    const hosts_case_t *c = context;
    const tow_bench_perftest_t test = {.name = "ucp_am_bw",
                                       .environment = ucx_environment,
                                       .size = TOW_BENCH_MOVE_BYTES,
                                       .count = c->count,
                                       .handles_errors = true,
                                       .server_place = on_host(c, 1),
                                       .client_place = on_host(c, 0),
                                       .server_address =
                                           tow_bench_host_address(1)};
    tow_bench_perftest_result_t result;
    TOW_RETURN_IF_ERROR(tow_bench_perftest_run(&test, &result));
    *out_value = result.bytes_per_second * 1e-9;
    return TOW_OK;
}

/* -- Lanes between two processes, without a cluster ------------------------ */

static tow_status_t open_nothing(const hosts_case_t *c)
{
    (void)c;
    return TOW_OK;
}

/* As in `tow bench net`: seconds of an operation. */
static tow_status_t run_lane(const hosts_case_t *c, double *out_seconds)
{
    char address[64];
    snprintf(address, sizeof(address), "tls:%s:0", tow_bench_host_address(0));
    const tow_bench_net_pair_t pair = {.kind = c->request,
                                       .count = c->count,
                                       .address = address,
                                       .keys_folder = TOW_BENCH_KEYS_FOLDER,
                                       .environment =
                                           tow_bench_lane_environment(c->lane),
                                       .server_place = on_host(c, 0),
                                       .measure_place = on_host(c, 1)};
    return tow_bench_net_pair_run(&pair, out_seconds);
}

static tow_status_t lane_microseconds(void *context, double *out_value)
{
    TOW_RETURN_IF_ERROR(run_lane(context, out_value));
    *out_value *= 1e6;
    return TOW_OK;
}

static tow_status_t lane_gigabytes(void *context, double *out_value)
{
    TOW_RETURN_IF_ERROR(run_lane(context, out_value));
    *out_value = TOW_BENCH_BULK_SIZE / *out_value * 1e-9;
    return TOW_OK;
}

/* -- Training -------------------------------------------------------------- */

static tow_status_t start_training(const hosts_case_t *c,
                                   char *const *cluster_environment,
                                   tow_bench_responder_t *out_responder)
{
    const tow_bench_place_t place = on_host(c, 0);
    char python[PATH_MAX], script[PATH_MAX], library[PATH_MAX],
        setting[PATH_MAX + 32];
    TOW_RETURN_IF_ERROR(tow_bench_find_python(python));
    TOW_RETURN_IF_ERROR(tow_bench_find_built("bench/jax/child.py", script));
    TOW_RETURN_IF_ERROR(
        tow_bench_find_built("src/pjrt/libtowpath_pjrt.so", library));
    snprintf(setting, sizeof(setting), "TOW_PJRT_LIBRARY=%s", library);
    char *const argv[] = {python, script, NULL};
    char *environment[16] = {"JAX_PLATFORMS=towpath", "TOW_QUIET=1", setting};
    size_t count = 3;
    for (; *cluster_environment != NULL; cluster_environment++)
        environment[count++] = *cluster_environment;
    return tow_bench_responder_start("the process that trains", &place, argv,
                                     environment, out_responder);
}

static tow_status_t request_training(const hosts_case_t *c,
                                     tow_bench_responder_t *responder)
{
    char line[128];
    snprintf(line, sizeof(line),
             "{\"do\": \"run\", \"case\": \"train_10m_8\", \"count\": %llu}\n",
             (unsigned long long)c->count);
    return tow_bench_responder_send(responder, line);
}

/* Receives {"value": SECONDS, "loss": LOSS} or {"error": TEXT}. */
static tow_status_t take_training_ms(const hosts_case_t *c,
                                     tow_bench_responder_t *responder,
                                     double *out_value)
{
    char answer[1024];
    TOW_RETURN_IF_ERROR(
        tow_bench_responder_receive(responder, answer, sizeof(answer)));
    json_t *said = json_loads(answer, 0, NULL);
    const double seconds = json_number_value(json_object_get(said, "value"));
    json_decref(said);
    if (seconds <= 0)
        return TOW_ERROR(TOW_INTERNAL, "%s replied %s", responder->name,
                         answer);
    *out_value = seconds * 1e3 / (double)c->count;
    return TOW_OK;
}

/* Both compile at the same time. */
static tow_status_t open_training(const hosts_case_t *c)
{
    static char *const one_host[] = {
        "TOW_ADDRESS=", "TOW_LOCAL=workers=2,devices=4", NULL};
    hosts_bench_t *bench = c->bench;
    double ignored = 0;
    TOW_RETURN_IF_ERROR(
        tow_bench_cluster_start(&bench->hosts, c->lane, &bench->cluster));
    TOW_RETURN_IF_ERROR(
        start_training(c, bench->cluster.client_environment, &bench->ours));
    TOW_RETURN_IF_ERROR(request_training(c, &bench->ours));
    TOW_RETURN_IF_ERROR(start_training(c, one_host, &bench->peer));
    TOW_RETURN_IF_ERROR(request_training(c, &bench->peer));
    TOW_RETURN_IF_ERROR(take_training_ms(c, &bench->ours, &ignored));
    return take_training_ms(c, &bench->peer, &ignored);
}

static tow_status_t our_training(void *context, double *out_value)
{
    const hosts_case_t *c = context;
    TOW_RETURN_IF_ERROR(request_training(c, &c->bench->ours));
    return take_training_ms(c, &c->bench->ours, out_value);
}

static tow_status_t peer_training(void *context, double *out_value)
{
    const hosts_case_t *c = context;
    TOW_RETURN_IF_ERROR(request_training(c, &c->bench->peer));
    return take_training_ms(c, &c->bench->peer, out_value);
}

/* -- The cases ------------------------------------------------------------- */

/* What several cases have in common. */
typedef struct case_kind {
    const char *unit;
    tow_bench_better_t better;
    uint64_t count, quick_count; /* of a round */
    size_t rounds;
    size_t quick_rounds; /* 0: --quick leaves it out, unless it is named */
    tow_status_t (*open)(const hosts_case_t *c); /* before the first round */
    tow_status_t (*run)(void *context, double *out_value);
} case_kind_t;

static const case_kind_t bulk = {.unit = "GB/s",
                                 .better = TOW_BENCH_HIGHER_IS_BETTER,
                                 .count = 10,
                                 .quick_count = 3,
                                 .rounds = 9,
                                 .quick_rounds = QUICK_ROUNDS,
                                 .open = open_client,
                                 .run = our_gigabytes};
static const case_kind_t striped_bulk = {.unit = "GB/s",
                                         .better = TOW_BENCH_HIGHER_IS_BETTER,
                                         .count = 10,
                                         .quick_count = 3,
                                         .rounds = 9,
                                         .open = open_client,
                                         .run = our_gigabytes};
static const case_kind_t roundtrip = {.unit = "us",
                                      .better = TOW_BENCH_LOWER_IS_BETTER,
                                      .count = 20000,
                                      .quick_count = 5000,
                                      .rounds = 9,
                                      .quick_rounds = QUICK_ROUNDS,
                                      .open = open_nothing,
                                      .run = lane_microseconds};
static const case_kind_t lane_bulk = {.unit = "GB/s",
                                      .better = TOW_BENCH_HIGHER_IS_BETTER,
                                      .count = 20,
                                      .quick_count = 4,
                                      .rounds = 9,
                                      .open = open_nothing,
                                      .run = lane_gigabytes};
static const case_kind_t training = {.unit = "ms",
                                     .better = TOW_BENCH_LOWER_IS_BETTER,
                                     .count = 2,
                                     .quick_count = 1,
                                     .rounds = 9,
                                     .quick_rounds = 2,
                                     .open = open_training,
                                     .run = our_training};

typedef struct case_row {
    const char *name;
    const case_kind_t *kind;
    const char *request;
    tow_bench_lane_t lane;
    const char *peer;
    tow_status_t (*peer_run)(void *context, double *out_value);
    double bar;
} case_row_t;

static const char pump_name[] = "OpenSSL alone, " CIPHER;
static const char pumps_name[] =
    "OpenSSL alone, " TOW_BENCH_STREAM_COUNT " connections, " CIPHER;
static const char perftest_name[] = "ucx_perftest ucp_am_bw -e, same device";

/* A round trip takes at most 1.3 times as long as the peer's. */
static const case_row_t rows[] = {
    {"put_64MiB_tls", &bulk, "put", TOW_BENCH_LANE_TLS, pump_name,
     pump_gigabytes, 0.8},
    {"move_64MiB_tls", &bulk, "move", TOW_BENCH_LANE_TLS, pump_name,
     pump_gigabytes, 0.8},
    {"put_64MiB_tls_2_streams", &striped_bulk, "put", TOW_BENCH_LANE_STREAMS,
     pumps_name, pump_gigabytes, 0},
    {"move_64MiB_tls_2_streams", &striped_bulk, "move", TOW_BENCH_LANE_STREAMS,
     pumps_name, pump_gigabytes, 0},
    {"put_64MiB_trusted", &bulk, "put", TOW_BENCH_LANE_TRUSTED, perftest_name,
     perftest_gigabytes, 0.9},
    {"move_64MiB_trusted", &bulk, "move", TOW_BENCH_LANE_TRUSTED, perftest_name,
     perftest_gigabytes, 0.9},
    {"lane_64MiB_tls", &lane_bulk, "lane_bulk", TOW_BENCH_LANE_TLS, pump_name,
     pump_gigabytes, 0},
    {"lane_64MiB_tls_2_streams", &lane_bulk, "lane_bulk",
     TOW_BENCH_LANE_STREAMS, pumps_name, pump_gigabytes, 0},
    {"round_trip_8B_tls", &roundtrip, "lane_roundtrip", TOW_BENCH_LANE_TLS,
     pump_name, pump_roundtrip, 1 / 1.3},
    {"train_step_2x4", &training, NULL, TOW_BENCH_LANE_TLS,
     "2 workers on one host", peer_training, 0.9},
};

static size_t count_rounds(const case_kind_t *kind,
                           const tow_bench_options_t *options)
{
    if (!options->quick) return kind->rounds;
    return kind->quick_rounds == 0 && options->only != NULL
               ? QUICK_ROUNDS
               : kind->quick_rounds;
}

static void stop_all(hosts_bench_t *bench)
{
    tow_bench_responder_stop(&bench->ours);
    tow_bench_responder_stop(&bench->peer);
    tow_bench_cluster_stop(&bench->cluster);
    bench->open_kind = NULL;
}

/* Consecutive cases of one kind and lane use the same processes. */
static tow_status_t set_up(const hosts_case_t *c, const case_row_t *row)
{
    hosts_bench_t *bench = c->bench;
    if (bench->open_kind == row->kind && bench->open_lane == row->lane)
        return TOW_OK;
    stop_all(bench);
    TOW_RETURN_IF_ERROR(tow_status_annotate(row->kind->open(c),
                                            "setting up case %s", row->name));
    bench->open_kind = row->kind;
    bench->open_lane = row->lane;
    return TOW_OK;
}

static tow_status_t run_row(hosts_bench_t *bench, const case_row_t *row)
{
    const tow_bench_options_t *options = bench->options;
    const case_kind_t *kind = row->kind;
    const size_t rounds = count_rounds(kind, options);
    hosts_case_t measured = {.bench = bench,
                             .request = row->request,
                             .lane = row->lane,
                             .count = options->quick ? kind->quick_count
                                                     : kind->count};
    const tow_bench_case_t shown = {.bench = "hosts",
                                    .name = row->name,
                                    .unit = kind->unit,
                                    .peer = row->peer,
                                    .better = kind->better,
                                    .bar = row->bar,
                                    .run = kind->run,
                                    .peer_run = row->peer_run,
                                    .context = &measured};
    if (rounds == 0 || !tow_bench_is_chosen(&shown, options)) return TOW_OK;
    TOW_RETURN_IF_ERROR(set_up(&measured, row));
    return tow_bench_run_case(&shown, rounds, options);
}

static tow_status_t run_rows(hosts_bench_t *bench)
{
    TOW_RETURN_IF_ERROR(
        tow_bench_find_built("bench/peers/tls_pump", bench->pump));
    TOW_RETURN_IF_ERROR(tow_bench_make_keys());
    /* New, and for all clusters of this run. */
    if (setenv("TOW_COMPILE_CACHE", TOW_BENCH_HOST_FOLDER "/cache", 1) != 0)
        return TOW_ERRNO(errno, "setting TOW_COMPILE_CACHE");
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++)
        TOW_RETURN_IF_ERROR(run_row(bench, &rows[i]));
    return TOW_OK;
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    hosts_bench_t bench = {.options = options,
                           .cluster = TOW_BENCH_CLUSTER_NONE,
                           .ours = TOW_BENCH_RESPONDER_NONE,
                           .peer = TOW_BENCH_RESPONDER_NONE};
    tow_status_t status = tow_bench_hosts_open(&bench.hosts);
    if (tow_status_code(status) == TOW_PERMISSION_DENIED) {
        fprintf(stderr, "skipped: %s\n", tow_status_message(status));
        tow_status_release(status);
        return TOW_OK;
    }
    if (status == TOW_OK) status = run_rows(&bench);
    stop_all(&bench);
    tow_bench_hosts_close(&bench.hosts);
    return status;
}

static const tow_benchmark_child_t children[] = {
    {"host-hold", tow_bench_host_hold},
    {"host-enter", tow_bench_host_enter},
    {"hosts-client", run_client},
    {0},
};

static const char *const case_names[] = {"put_64MiB_tls",
                                         "move_64MiB_tls",
                                         "put_64MiB_tls_2_streams",
                                         "move_64MiB_tls_2_streams",
                                         "put_64MiB_trusted",
                                         "move_64MiB_trusted",
                                         "lane_64MiB_tls",
                                         "lane_64MiB_tls_2_streams",
                                         "round_trip_8B_tls",
                                         "train_step_2x4",
                                         NULL};

const tow_benchmark_t tow_bench_hosts = {
    .name = "hosts",
    .summary = "a cluster across two hosts, made of namespaces (needs root)",
    .cases = case_names,
    .run = run_benchmark,
    .children = children,
};
