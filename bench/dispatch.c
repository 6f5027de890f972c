/* `tow bench dispatch`: the cost of dispatching a small computation.
 *
 * The computation is a scalar add and an all-reduce over all devices, as in
 * Figure 5 of the Pathways paper, on a local cluster of real processes, through
 * the C API:
 *
 *   opbyop   one call at a time, each waited for
 *   chained  128 calls without waiting, each with the last result
 *   program  one program of 128 computations, run repeatedly
 *   fused    one computation of 128 adds and all-reduces
 *
 * JAX runs the same on its own CPU backend, in one process. It has no programs:
 * that case is compared with its chained calls. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <towpath/towpath.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "bench/benchmarks.h"
#include "bench/budget.h"
#include "bench/chain.h"
#include "bench/harness.h"
#include "bench/peer.h"

#define CHAIN         TOW_BENCH_CHAIN_LENGTH
#define SUBMIT_COUNT  16 /* programs in flight while submission is timed */
#define SUBMIT_US_MAX 20.0

typedef struct cluster_size {
    uint32_t worker_count;
    uint32_t device_count; /* of each */
    /* Computations of a quick round: about a fifth of a second. */
    uint64_t opbyop, chained, program, fused;
    uint64_t jax_opbyop, jax_chained, jax_fused;
    unsigned long long mpi_count;
} cluster_size_t;

typedef struct dispatch_bench {
    const cluster_size_t *size; /* lent */
    uint64_t factor;            /* of the counts */
    tow_bench_chain_t chain;    /* owned, as the fields below */
    tow_function_t *many;
    tow_bench_responder_t jax;
} dispatch_bench_t;

static size_t replicas(const cluster_size_t *size)
{
    return (size_t)size->worker_count * size->device_count;
}

/* -- Ours --------------------------------------------------------------------- */

static tow_status_t do_opbyop(dispatch_bench_t *bench, tow_array_t **value)
{
    TOW_RETURN_IF_ERROR(
        tow_bench_chain_call(&bench->chain, bench->chain.one, value));
    return tow_array_wait(*value, -1);
}

static tow_status_t do_chain(dispatch_bench_t *bench, tow_array_t **value)
{
    for (int i = 0; i < CHAIN; i++)
        TOW_RETURN_IF_ERROR(
            tow_bench_chain_call(&bench->chain, bench->chain.one, value));
    return tow_array_wait(*value, -1);
}

static tow_status_t do_program(dispatch_bench_t *bench, tow_array_t **value)
{
    return tow_bench_chain_run(&bench->chain, value);
}

static tow_status_t do_fused(dispatch_bench_t *bench, tow_array_t **value)
{
    TOW_RETURN_IF_ERROR(
        tow_bench_chain_call(&bench->chain, bench->many, value));
    return tow_array_wait(*value, -1);
}

typedef tow_status_t (*unit_t)(dispatch_bench_t *bench, tow_array_t **value);

static tow_status_t time_units(dispatch_bench_t *bench, unit_t unit,
                               uint64_t count, double *out_seconds)
{
    tow_array_t *value = NULL;
    TOW_RETURN_IF_ERROR(tow_bench_chain_begin(&bench->chain, &value));
    tow_status_t status = tow_array_wait(value, -1);
    int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < count && status == TOW_OK; i++)
        status = unit(bench, &value);
    if (status == TOW_OK) status = tow_array_wait(value, -1);
    *out_seconds = (double)(tow_bench_now_ns() - start_ns) * 1e-9;
    tow_array_release(value);
    return status;
}

static tow_status_t rate_of(dispatch_bench_t *bench, unit_t unit,
                            uint64_t computations, uint64_t each,
                            double *out_rate)
{
    uint64_t count = computations * bench->factor / each;
    if (count == 0) count = 1;
    double seconds = 0;
    TOW_RETURN_IF_ERROR(time_units(bench, unit, count, &seconds));
    *out_rate = (double)(count * each) / seconds;
    return TOW_OK;
}

static tow_status_t our_opbyop(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return rate_of(bench, do_opbyop, bench->size->opbyop, 1, out_rate);
}

static tow_status_t our_chained(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return rate_of(bench, do_chain, bench->size->chained, CHAIN, out_rate);
}

static tow_status_t our_program(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return rate_of(bench, do_program, bench->size->program, CHAIN, out_rate);
}

static tow_status_t our_fused(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return rate_of(bench, do_fused, bench->size->fused, CHAIN, out_rate);
}

/* Submission: time of the user's thread per program of 128 computations. */
static tow_status_t our_submit(void *context, double *out_us)
{
    dispatch_bench_t *bench = context;
    tow_array_t *values[SUBMIT_COUNT + 1] = {0};
    TOW_RETURN_IF_ERROR(tow_bench_chain_begin(&bench->chain, &values[0]));
    tow_status_t status = tow_array_wait(values[0], -1);
    const int64_t start_ns = tow_bench_now_ns();
    for (int i = 0; i < SUBMIT_COUNT && status == TOW_OK; i++)
        status = tow_program_run(bench->chain.program, &values[i], 1,
                                 &values[i + 1], 1);
    *out_us = (double)(tow_bench_now_ns() - start_ns) * 1e-3 / SUBMIT_COUNT;
    if (status == TOW_OK) status = tow_array_wait(values[SUBMIT_COUNT], -1);
    for (int i = 0; i <= SUBMIT_COUNT; i++)
        tow_array_release(values[i]);
    return status;
}

/* -- Peers --------------------------------------------------------------------- */

static tow_status_t jax_rate(dispatch_bench_t *bench, const char *variant,
                             uint64_t computations, double *out_rate)
{
    char line[64];
    const uint64_t count =
        (computations * bench->factor + CHAIN - 1) / CHAIN * CHAIN;
    snprintf(line, sizeof(line), "%s %llu\n", variant,
             (unsigned long long)count);
    double seconds = 0;
    TOW_RETURN_IF_ERROR(
        tow_bench_responder_ask_seconds(&bench->jax, line, &seconds));
    *out_rate = (double)count / seconds;
    return TOW_OK;
}

static tow_status_t jax_opbyop(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return jax_rate(bench, "opbyop", bench->size->jax_opbyop, out_rate);
}

static tow_status_t jax_chained(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return jax_rate(bench, "chained", bench->size->jax_chained, out_rate);
}

static tow_status_t jax_fused(void *context, double *out_rate)
{
    dispatch_bench_t *bench = context;
    return jax_rate(bench, "fused", bench->size->jax_fused, out_rate);
}

static tow_status_t mpi_rate(void *context, double *out_rate)
{
    const dispatch_bench_t *bench = context;
    return tow_bench_mpi_rate(replicas(bench->size),
                              bench->size->mpi_count * bench->factor, out_rate);
}

/* -- CPU budget ----------------------------------------------------------- */

/* CPU time without the `wire` part. */
static double own(tow_bench_budget_part_t part)
{
    return part.all - part.wire;
}

static void print_budget(const char *name, const tow_bench_budget_t *spent,
                         double seconds, double count,
                         const tow_bench_options_t *options)
{
    const double us = 1e6 / count;
    const double all = spent->client.all + spent->controller.all +
                       spent->worker.all + spent->device.all;
    if (!options->json) {
        printf("dispatch %s: us of CPU per computation: client %.2f, wire "
               "%.2f, controller %.2f, wire %.2f, worker %.2f, wire %.2f, "
               "device %.2f; all %.2f in %.2f of time%s\n",
               name, own(spent->client) * us, spent->client.wire * us,
               own(spent->controller) * us, spent->controller.wire * us,
               own(spent->worker) * us, spent->worker.wire * us,
               spent->device.all * us, all * us, seconds * us,
               spent->controller.all > 0
                   ? ""
                   : " (the controller runs in the worker)");
        return;
    }
    json_t *line = json_pack(
        "{ss, ss, sf, ss, ss, sf, sf, sb, sf, sf, sf, sf, sf, sf, sf}", "bench",
        "dispatch", "case", name, "value", all * us, "unit", "us", "peer",
        "time of one computation", "peer_value", seconds * us, "ratio",
        seconds / all, "simulated", 0, "client_us", own(spent->client) * us,
        "client_wire_us", spent->client.wire * us, "controller_us",
        own(spent->controller) * us, "controller_wire_us",
        spent->controller.wire * us, "worker_us", own(spent->worker) * us,
        "worker_wire_us", spent->worker.wire * us, "device_us",
        spent->device.all * us);
    char *text = json_dumps(line, JSON_COMPACT);
    printf("%s\n", text);
    free(text);
    json_decref(line);
}

static tow_status_t show_budget(dispatch_bench_t *bench, const char *name,
                                unit_t unit, uint64_t computations,
                                uint64_t each,
                                const tow_bench_options_t *options)
{
    tow_bench_case_t shown = {.bench = "dispatch", .name = name};
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    const uint64_t count = computations * bench->factor / each + 1;
    tow_bench_budget_t before, after;
    double seconds = 0;
    TOW_RETURN_IF_ERROR(tow_bench_budget_read(&before));
    TOW_RETURN_IF_ERROR(time_units(bench, unit, count, &seconds));
    TOW_RETURN_IF_ERROR(tow_bench_budget_read(&after));
    tow_bench_budget_t spent = tow_bench_budget_between(&before, &after);
    print_budget(name, &spent, seconds, (double)(count * each), options);
    return TOW_OK;
}

/* -- Opening and closing -------------------------------------------------- */

static tow_status_t open_cluster(dispatch_bench_t *bench)
{
    const tow_bench_chain_options_t options = {
        .worker_count = bench->size->worker_count,
        .devices_per_worker = bench->size->device_count};
    TOW_RETURN_IF_ERROR(tow_bench_chain_open(&options, &bench->chain));
    return tow_bench_chain_compile(&bench->chain, CHAIN, &bench->many);
}

static void close_cluster(dispatch_bench_t *bench)
{
    tow_bench_responder_stop(&bench->jax);
    tow_function_release(bench->many);
    tow_bench_chain_close(&bench->chain);
}

/* -- The cases ------------------------------------------------------------------ */

typedef struct dispatch_row {
    cluster_size_t size;
    tow_bench_case_t cases[4];
    const char *submit_name;
    const char *mpi_name;
    const char *chained_budget;
    const char *program_budget;
} dispatch_row_t;

static const dispatch_row_t rows[] = {
    {.size = {.worker_count = 1,
              .device_count = 1,
              .opbyop = 4000,
              .chained = 20000,
              .program = 40000,
              .fused = 200000,
              .jax_opbyop = 20000,
              .jax_chained = 20000,
              .jax_fused = 400000},
     .cases =
         {{.name = "opbyop_1", .peer = "JAX, opbyop, 1 device"},
          {.name = "chained_1", .peer = "JAX, chained, 1 device", .bar = 1.0},
          {.name = "program_1", .peer = "JAX, chained, 1 device", .bar = 2.0},
          {.name = "fused_1", .peer = "JAX, fused, 1 device"}},
     .submit_name = "submit_1",
     .chained_budget = "budget_chained_1",
     .program_budget = "budget_program_1"},
    {.size = {.worker_count = 2,
              .device_count = 4,
              .opbyop = 1000,
              .chained = 2560,
              .program = 5120,
              .fused = 5120,
              .jax_opbyop = 384,
              .jax_chained = 384,
              .jax_fused = 640,
              .mpi_count = 10000},
     .cases =
         {{.name = "opbyop_8", .peer = "JAX, opbyop, 8 devices", .bar = 3.0},
          {.name = "chained_8", .peer = "JAX, chained, 8 devices", .bar = 3.0},
          {.name = "program_8", .peer = "JAX, chained, 8 devices", .bar = 5.0},
          {.name = "fused_8", .peer = "JAX, fused, 8 devices"}},
     .submit_name = "submit_8",
     .mpi_name = "program_8_mpi",
     .chained_budget = "budget_chained_8",
     .program_budget = "budget_program_8"},
};

static tow_status_t run_beside_jax(dispatch_bench_t *bench,
                                   const dispatch_row_t *row,
                                   const tow_bench_options_t *options)
{
    static tow_status_t (*const ours[])(void *, double *) = {
        our_opbyop, our_chained, our_program, our_fused};
    static tow_status_t (*const theirs[])(void *, double *) = {
        jax_opbyop, jax_chained, jax_chained, jax_fused};
    for (size_t i = 0; i < TOW_COUNT_OF(row->cases); i++) {
        tow_bench_case_t shown = row->cases[i];
        shown.bench = "dispatch";
        shown.unit = "1/s";
        shown.better = TOW_BENCH_HIGHER_IS_BETTER;
        shown.run = ours[i];
        shown.peer_run = theirs[i];
        shown.context = bench;
        if (!tow_bench_is_chosen(&shown, options)) continue;
        if (bench->jax.socket < 0)
            TOW_RETURN_IF_ERROR(
                tow_bench_jax_start("bench/peers/jax_dispatch.py",
                                    replicas(bench->size), &bench->jax));
        TOW_RETURN_IF_ERROR(
            tow_bench_run_case(&shown, options->quick ? 3 : 9, options));
    }
    return TOW_OK;
}

static tow_status_t run_beside_mpi(dispatch_bench_t *bench,
                                   const dispatch_row_t *row,
                                   const tow_bench_options_t *options)
{
    if (row->mpi_name == NULL) return TOW_OK;
    tow_bench_case_t shown = {
        .bench = "dispatch",
        .name = row->mpi_name,
        .unit = "1/s",
        .peer = "MPI_Allreduce alone (no computation), 8 ranks",
        .better = TOW_BENCH_HIGHER_IS_BETTER,
        .run = our_program,
        .peer_run = mpi_rate,
        .context = bench};
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    if (tow_bench_can_run_mpi())
        return tow_bench_run_case(&shown, options->quick ? 3 : 9, options);
    fprintf(
        stderr,
        "tow bench dispatch: %s skipped: Open MPI is not installed (Debian: openmpi-bin and libopenmpi-dev; then rebuild)\n",
        shown.name);
    return TOW_OK;
}

static tow_status_t run_submit(dispatch_bench_t *bench,
                               const dispatch_row_t *row,
                               const tow_bench_options_t *options)
{
    tow_bench_case_t shown = {.bench = "dispatch",
                              .name = row->submit_name,
                              .unit = "us",
                              .peer = "limit",
                              .better = TOW_BENCH_LOWER_IS_BETTER,
                              .bar = 1.0,
                              .limit = SUBMIT_US_MAX,
                              .run = our_submit,
                              .context = bench};
    return tow_bench_run_case(&shown, options->quick ? 5 : 15, options);
}

static tow_status_t run_cases(dispatch_bench_t *bench,
                              const dispatch_row_t *row,
                              const tow_bench_options_t *options)
{
    const cluster_size_t *size = bench->size;
    TOW_RETURN_IF_ERROR(open_cluster(bench));
    TOW_RETURN_IF_ERROR(run_beside_jax(bench, row, options));
    tow_bench_responder_stop(&bench->jax);
    TOW_RETURN_IF_ERROR(run_beside_mpi(bench, row, options));
    TOW_RETURN_IF_ERROR(run_submit(bench, row, options));
    TOW_RETURN_IF_ERROR(show_budget(bench, row->chained_budget, do_chain,
                                    size->chained, CHAIN, options));
    return show_budget(bench, row->program_budget, do_program, size->program,
                       CHAIN, options);
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        dispatch_bench_t bench = {.size = &rows[i].size,
                                  .factor = options->quick ? 1 : 4,
                                  .jax = TOW_BENCH_RESPONDER_NONE};
        tow_status_t status = run_cases(&bench, &rows[i], options);
        close_cluster(&bench);
        TOW_RETURN_IF_ERROR(status);
    }
    return TOW_OK;
}

static const char *const case_names[] = {
    "opbyop_1",      "chained_1",        "program_1",        "fused_1",
    "submit_1",      "budget_chained_1", "budget_program_1", "opbyop_8",
    "chained_8",     "program_8",        "fused_8",          "submit_8",
    "program_8_mpi", "budget_chained_8", "budget_program_8", NULL};

const tow_benchmark_t tow_bench_dispatch = {
    .name = "dispatch",
    .summary = "small computations on a cluster of real processes",
    .cases = case_names,
    .run = run_benchmark,
};
