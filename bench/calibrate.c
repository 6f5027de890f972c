/* `tow bench calibrate`: CPU time per message, by role.
 *
 * A local cluster of real processes runs chained calls of a tiny computation.
 * The CPU time of each role's event loop, from the kernel's accounting, is
 * divided by the messages in and out of it, which the controller counts. It
 * includes everything that a message causes: decoding, bookkeeping, scheduling,
 * the device queue and system calls. `tow bench scale` charges this cost in
 * simulated time. */
#include "bench/calibrate.h"
#include "bench/benchmarks.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <towpath/towpath.h>

#include "bench/budget.h"

#define WORKER_COUNT 2
#define CHAIN        128
#define CHAINS_QUICK 100
#define CHAINS_FULL  400

typedef struct calibration {
    tow_client_t *client; /* owned, as the fields below */
    tow_slice_t *slice;
    tow_function_t *function;
    tow_array_t *value;
} calibration_t;

/* Messages so far, both ways, as the controller counts them. */
typedef struct message_count {
    double clients;
    double workers;
} message_count_t;

static const char text[] =
    "module @tiny attributes {mhlo.num_replicas = 2 : i32} {\n"
    "  func.func public @main(%x: tensor<f32>) -> tensor<f32> {\n"
    "    %one = stablehlo.constant dense<1.0> : tensor<f32>\n"
    "    %y = stablehlo.add %x, %one : tensor<f32>\n"
    "    return %y : tensor<f32>\n"
    "  }\n"
    "}\n";

/* -- Counting messages ---------------------------------------------------- */

static double sum_of(const json_t *report, const char *who)
{
    double sum = 0;
    size_t index;
    const json_t *one;
    json_array_foreach(json_object_get(report, who), index, one) sum +=
        json_number_value(json_object_get(one, "messages_sent")) +
        json_number_value(json_object_get(one, "messages_received"));
    return sum;
}

static tow_status_t count_messages(calibration_t *calibration,
                                   message_count_t *out_count)
{
    char *said = NULL;
    TOW_RETURN_IF_ERROR(tow_client_report(calibration->client, &said));
    json_t *report = json_loads(said, 0, NULL);
    tow_free_text(said);
    *out_count = (message_count_t){.clients = sum_of(report, "clients"),
                                   .workers = sum_of(report, "workers")};
    json_decref(report);
    if (out_count->clients > 0 && out_count->workers > 0) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL,
                     "the controller's report has no message counts");
}

/* -- Running calls -------------------------------------------------------- */

static tow_status_t step(calibration_t *calibration)
{
    tow_array_t *next = NULL;
    TOW_RETURN_IF_ERROR(tow_function_call(calibration->function,
                                          calibration->slice,
                                          &calibration->value, 1, &next, 1));
    tow_array_release(calibration->value);
    calibration->value = next;
    return TOW_OK;
}

static tow_status_t work(calibration_t *calibration, int chains)
{
    for (int i = 0; i < chains; i++) {
        for (int k = 0; k < CHAIN; k++)
            TOW_RETURN_IF_ERROR(step(calibration));
        TOW_RETURN_IF_ERROR(tow_array_wait(calibration->value, -1));
    }
    return TOW_OK;
}

static tow_status_t open_cluster(calibration_t *calibration)
{
    static const float zero = 0;
    tow_client_options_t client = {.struct_size = sizeof(client),
                                   .name = "bench",
                                   .worker_count = WORKER_COUNT,
                                   .devices_per_worker = 1};
    TOW_RETURN_IF_ERROR(tow_client_open(&client, &calibration->client));
    tow_slice_options_t slice = {.struct_size = sizeof(slice),
                                 .dims = {WORKER_COUNT}};
    TOW_RETURN_IF_ERROR(
        tow_slice_open(calibration->client, &slice, &calibration->slice));
    tow_source_t source = {
        .struct_size = sizeof(source), .bytes = text, .size = strlen(text)};
    TOW_RETURN_IF_ERROR(tow_function_compile(calibration->slice, &source,
                                             &calibration->function));
    tow_upload_options_t upload = {
        .struct_size = sizeof(upload),
        .type = {.struct_size = sizeof(tow_array_type_t), .type = TOW_TYPE_F32},
        .bytes = &zero,
        .size = sizeof(zero),
        .replicated = true};
    return tow_array_upload(calibration->slice, &upload, &calibration->value);
}

static void close_cluster(calibration_t *calibration)
{
    tow_array_release(calibration->value);
    tow_function_release(calibration->function);
    tow_slice_release(calibration->slice);
    tow_client_release(calibration->client);
}

/* -- Cost per message ----------------------------------------------------- */

/* Send and receive costs are equal by definition, and include the cost per
 * byte, because these messages are small. */
static tow_sim_costs_t costs_of(double seconds, double messages)
{
    const int64_t ns = (int64_t)(seconds * 1e9 / messages);
    return (tow_sim_costs_t){.receive_ns = ns, .send_ns = ns};
}

static tow_status_t measure(calibration_t *calibration, int chains,
                            tow_bench_costs_t *out_costs)
{
    tow_bench_budget_t before, after;
    message_count_t first, last;
    TOW_RETURN_IF_ERROR(open_cluster(calibration));
    TOW_RETURN_IF_ERROR(work(calibration, 4));
    TOW_RETURN_IF_ERROR(count_messages(calibration, &first));
    TOW_RETURN_IF_ERROR(tow_bench_budget_read(&before));
    TOW_RETURN_IF_ERROR(work(calibration, chains));
    TOW_RETURN_IF_ERROR(tow_bench_budget_read(&after));
    TOW_RETURN_IF_ERROR(count_messages(calibration, &last));
    const tow_bench_budget_t spent = tow_bench_budget_between(&before, &after);
    const double clients = last.clients - first.clients;
    const double workers = last.workers - first.workers;
    *out_costs = (tow_bench_costs_t){
        .client = costs_of(spent.client.all, clients),
        .controller = costs_of(spent.controller.all, clients + workers),
        .worker = costs_of(spent.worker.all, workers)};
    return TOW_OK;
}

tow_status_t tow_bench_measure_costs(const tow_bench_options_t *options,
                                     tow_bench_costs_t *out_costs)
{
    calibration_t calibration = {0};
    tow_status_t status = measure(
        &calibration, options->quick ? CHAINS_QUICK : CHAINS_FULL, out_costs);
    close_cluster(&calibration);
    return status;
}

/* -- Output --------------------------------------------------------------- */

static void print_cost(const char *role, int64_t ns,
                       const tow_bench_options_t *options)
{
    if (!options->json) {
        printf("calibrate: a message costs the %s %lld ns of CPU\n", role,
               (long long)ns);
        return;
    }
    json_t *line =
        json_pack("{ss, ss, sI, ss, ss, sn, sn, sb}", "bench", "calibrate",
                  "case", role, "value", (json_int_t)ns, "unit", "ns", "peer",
                  "none", "peer_value", "ratio", "simulated", 0);
    char *said = json_dumps(line, JSON_COMPACT);
    printf("%s\n", said);
    free(said);
    json_decref(line);
}

void tow_bench_print_costs(const tow_bench_costs_t *costs,
                           const tow_bench_options_t *options)
{
    print_cost("client", costs->client.send_ns, options);
    print_cost("controller", costs->controller.send_ns, options);
    print_cost("worker", costs->worker.send_ns, options);
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    tow_bench_costs_t costs;
    TOW_RETURN_IF_ERROR(tow_bench_measure_costs(options, &costs));
    tow_bench_print_costs(&costs, options);
    return TOW_OK;
}

const tow_benchmark_t tow_bench_calibrate = {
    .name = "calibrate",
    .summary = "CPU cost of a message on this host, for simulations",
    .run = run_benchmark,
};
