/* `tow bench pipeline`: a chain of S stages on S devices, as in Figure 7 of the
 * Pathways paper.
 *
 * Each stage adds one to a number and hands it to the next, on a local cluster of
 * two worker processes through the C interface. A chain is one program; hundreds
 * of runs are in flight. The first half of the stages is on one worker, the other
 * half on the other; in `cross` each stage is on the other worker than the one
 * before. JAX runs the same on its own CPU backend, in one process, with
 * device_put between stages.
 *
 * `dispatch` compares with the same program under sequential dispatch, where a
 * worker does nothing of a stage before its input is there. */
#include <stdio.h>
#include <string.h>
#include <towpath/towpath.h>

#include "base/alloc.h"
#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "bench/peer.h"

#define STAGES_MAX   16
#define WORKER_COUNT 2
#define IN_FLIGHT    256

typedef enum stage_order {
    STAGES_IN_HALVES,
    STAGES_CROSSING,
} stage_order_t;

typedef struct pipeline_bench pipeline_bench_t;

/* A chain of stages. */
typedef struct chain {
    pipeline_bench_t *bench;
    size_t stage_count;
    stage_order_t order;
    uint64_t run_count, peer_count; /* of a quick round */
    tow_dispatch_t dispatch;
    tow_program_t *program; /* owned */
} chain_t;

struct pipeline_bench {
    uint64_t factor;
    tow_client_t *client;            /* owned, as the fields below */
    tow_slice_t *slices[STAGES_MAX]; /* of one device each */
    tow_function_t *function;
    tow_bench_responder_t jax;
};

static const char stage_text[] =
    "module @stage {\n"
    "  func.func public @main(%x: tensor<1xf32>) -> tensor<1xf32> {\n"
    "    %one = stablehlo.constant dense<1.0> : tensor<1xf32>\n"
    "    %y = stablehlo.add %x, %one : tensor<1xf32>\n"
    "    return %y : tensor<1xf32>\n"
    "  }\n"
    "}\n";

static const tow_array_type_t number = {.struct_size = sizeof(tow_array_type_t),
                                        .type = TOW_TYPE_F32,
                                        .rank = 1,
                                        .dims = {1}};

/* -- The chain ------------------------------------------------------------------ */

/* Slices are ordered by worker: the first half belongs to the first worker. */
static tow_slice_t *slice_of(const chain_t *chain, size_t stage)
{
    const size_t half = STAGES_MAX / WORKER_COUNT;
    const size_t count = chain->stage_count;
    if (chain->order == STAGES_CROSSING)
        return chain->bench->slices[stage % 2 * half + stage / 2];
    const bool is_first = stage < count / 2;
    return chain->bench->slices[is_first ? stage : half + stage - count / 2];
}

/* Adds a call to the program; the cluster transfers values between slices. */
static tow_status_t add_stage(chain_t *chain, size_t stage, tow_array_t **value)
{
    tow_slice_t *slice = slice_of(chain, stage);
    tow_array_t *moved = NULL, *next = NULL;
    tow_transfer_options_t options = {.struct_size = sizeof(options),
                                      .slice = slice};
    tow_status_t status = TOW_OK;
    if (stage > 0) {
        status = tow_array_transfer(*value, &options, &moved);
        tow_array_release(*value);
        *value = moved;
    }
    if (status == TOW_OK)
        status = tow_function_call(chain->bench->function, slice, value, 1,
                                   &next, 1);
    tow_array_release(*value);
    *value = next;
    return status;
}

static tow_status_t trace(chain_t *chain)
{
    tow_array_t *value = NULL;
    TOW_RETURN_IF_ERROR(
        tow_program_create(chain->bench->client, "pipeline", &chain->program));
    TOW_RETURN_IF_ERROR(tow_program_dispatch(chain->program, chain->dispatch));
    TOW_RETURN_IF_ERROR(tow_program_argument(chain->program, slice_of(chain, 0),
                                             &number, false, &value));
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < chain->stage_count && status == TOW_OK; i++)
        status = add_stage(chain, i, &value);
    if (status == TOW_OK) status = tow_program_result(chain->program, value);
    tow_array_release(value);
    TOW_RETURN_IF_ERROR(status);
    return tow_program_finish(chain->program);
}

static tow_status_t upload_zero(const chain_t *chain, tow_array_t **out)
{
    static const float zero = 0;
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .type = number,
                                    .bytes = &zero,
                                    .size = sizeof(zero)};
    return tow_array_upload(slice_of(chain, 0), &options, out);
}

/* -- Ours ------------------------------------------------------------------------ */

static tow_status_t check_value(const chain_t *chain, tow_array_t *result)
{
    float got = 0;
    TOW_RETURN_IF_ERROR(tow_array_download(result, 0, &got, sizeof(got)));
    if (got == (float)chain->stage_count) return TOW_OK;
    return TOW_ERROR(TOW_DATA_LOSS, "%zu stages returned %g",
                     chain->stage_count, (double)got);
}

/* Starts `count` runs and does not wait for the last IN_FLIGHT, which `recent`
 * holds. */
static tow_status_t start_runs(const chain_t *chain, tow_array_t *zero,
                               uint64_t count, tow_array_t **recent)
{
    for (uint64_t i = 0; i < count; i++) {
        tow_array_t **place = &recent[i % IN_FLIGHT];
        if (*place != NULL) TOW_RETURN_IF_ERROR(tow_array_wait(*place, -1));
        tow_array_release(*place);
        *place = NULL;
        TOW_RETURN_IF_ERROR(
            tow_program_run(chain->program, &zero, 1, place, 1));
    }
    return check_value(chain, recent[(count - 1) % IN_FLIGHT]);
}

static tow_status_t time_runs(const chain_t *chain, uint64_t count,
                              double *out_seconds)
{
    tow_array_t *zero = NULL;
    tow_array_t *recent[IN_FLIGHT] = {0};
    TOW_RETURN_IF_ERROR(upload_zero(chain, &zero));
    tow_status_t status = tow_array_wait(zero, -1);
    const int64_t start_ns = tow_bench_now_ns();
    if (status == TOW_OK) status = start_runs(chain, zero, count, recent);
    *out_seconds = (double)(tow_bench_now_ns() - start_ns) * 1e-9;
    for (size_t i = 0; i < IN_FLIGHT; i++)
        tow_array_release(recent[i]);
    tow_array_release(zero);
    return status;
}

static tow_status_t our_rate(void *context, double *out_rate)
{
    chain_t *chain = context;
    const uint64_t count = chain->run_count * chain->bench->factor;
    double seconds = 0;
    TOW_RETURN_IF_ERROR(time_runs(chain, count, &seconds));
    *out_rate = (double)(count * chain->stage_count) / seconds;
    return TOW_OK;
}

static tow_status_t our_us(void *context, double *out_us)
{
    double rate;
    TOW_RETURN_IF_ERROR(our_rate(context, &rate));
    *out_us = 1e6 / rate;
    return TOW_OK;
}

static tow_status_t jax_rate(void *context, double *out_rate)
{
    chain_t *chain = context;
    pipeline_bench_t *bench = chain->bench;
    const uint64_t count = chain->peer_count * bench->factor;
    char line[64];
    double seconds = 0;
    if (bench->jax.socket < 0)
        TOW_RETURN_IF_ERROR(tow_bench_jax_start("bench/peers/jax_pipeline.py",
                                                STAGES_MAX, &bench->jax));
    snprintf(line, sizeof(line), "%zu %llu\n", chain->stage_count,
             (unsigned long long)count);
    TOW_RETURN_IF_ERROR(
        tow_bench_responder_ask_seconds(&bench->jax, line, &seconds));
    *out_rate = (double)(count * chain->stage_count) / seconds;
    return TOW_OK;
}

/* -- Opening and closing -------------------------------------------------- */

static tow_status_t open_stage(pipeline_bench_t *bench, tow_slice_t *all,
                               size_t index)
{
    tow_device_t device = {.struct_size = sizeof(device)};
    TOW_RETURN_IF_ERROR(tow_slice_device(all, index, &device));
    tow_slice_options_t options = {.struct_size = sizeof(options),
                                   .devices = &device.id,
                                   .device_count = 1};
    return tow_slice_open(bench->client, &options, &bench->slices[index]);
}

static tow_status_t open_stages(pipeline_bench_t *bench)
{
    tow_slice_t *all = NULL;
    tow_slice_options_t options = {.struct_size = sizeof(options),
                                   .dims = {STAGES_MAX}};
    TOW_RETURN_IF_ERROR(tow_slice_open(bench->client, &options, &all));
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < STAGES_MAX && status == TOW_OK; i++)
        status = open_stage(bench, all, i);
    tow_slice_release(all);
    return status;
}

static tow_status_t open_cluster(pipeline_bench_t *bench)
{
    tow_client_options_t client = {.struct_size = sizeof(client),
                                   .name = "bench",
                                   .worker_count = WORKER_COUNT,
                                   .devices_per_worker =
                                       STAGES_MAX / WORKER_COUNT};
    TOW_RETURN_IF_ERROR(tow_client_open(&client, &bench->client));
    TOW_RETURN_IF_ERROR(open_stages(bench));
    tow_source_t source = {.struct_size = sizeof(source),
                           .bytes = stage_text,
                           .size = strlen(stage_text)};
    return tow_function_compile(bench->slices[0], &source, &bench->function);
}

static void close_cluster(pipeline_bench_t *bench)
{
    tow_bench_responder_stop(&bench->jax);
    tow_function_release(bench->function);
    for (size_t i = 0; i < STAGES_MAX; i++)
        tow_slice_release(bench->slices[i]);
    tow_client_release(bench->client);
}

/* -- The cases -------------------------------------------------------------------- */

#define JAX_PEER "JAX, device_put between stages"

static tow_status_t run_case(pipeline_bench_t *bench, tow_bench_case_t shown,
                             chain_t *chain, const tow_bench_options_t *options)
{
    chain->bench = bench;
    shown.bench = "pipeline";
    shown.context = chain;
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    tow_status_t status = trace(chain);
    double seconds;
    if (status == TOW_OK) status = time_runs(chain, IN_FLIGHT, &seconds);
    if (status == TOW_OK)
        status = tow_bench_run_case(&shown, options->quick ? 3 : 9, options);
    tow_program_release(chain->program);
    chain->program = NULL;
    return status;
}

typedef struct pipeline_row {
    const char *name;
    size_t stage_count;
    stage_order_t order;
    uint64_t run_count, peer_count; /* peer_count: runs of the peer */
    double bar;
} pipeline_row_t;

static const pipeline_row_t rows[] = {
    {"stages_2", 2, STAGES_IN_HALVES, 8000, 1000, 0},
    {"stages_4", 4, STAGES_IN_HALVES, 4000, 500, 0},
    {"stages_8", 8, STAGES_IN_HALVES, 2000, 250, 5},
    {"stages_16", 16, STAGES_IN_HALVES, 1000, 125, 0},
    {"stages_8_cross", 8, STAGES_CROSSING, 2000, 250, 0},
    {"stages_16_cross", 16, STAGES_CROSSING, 1000, 125, 0},
};

static tow_status_t run_beside_jax(pipeline_bench_t *bench,
                                   const tow_bench_options_t *options)
{
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        chain_t chain = {.stage_count = rows[i].stage_count,
                         .order = rows[i].order,
                         .run_count = rows[i].run_count,
                         .peer_count = rows[i].peer_count};
        tow_bench_case_t shown = {.name = rows[i].name,
                                  .unit = "stages/s",
                                  .peer = JAX_PEER,
                                  .better = TOW_BENCH_HIGHER_IS_BETTER,
                                  .bar = rows[i].bar,
                                  .run = our_rate,
                                  .peer_run = jax_rate};
        TOW_RETURN_IF_ERROR(run_case(bench, shown, &chain, options));
    }
    return TOW_OK;
}

/* One chain against another. */
typedef struct pair {
    chain_t ours, other;
} pair_t;

static tow_status_t ours_us(void *context, double *out_us)
{
    return our_us(&((pair_t *)context)->ours, out_us);
}

static tow_status_t other_us(void *context, double *out_us)
{
    return our_us(&((pair_t *)context)->other, out_us);
}

static tow_status_t ours_rate(void *context, double *out_rate)
{
    return our_rate(&((pair_t *)context)->ours, out_rate);
}

static tow_status_t other_rate(void *context, double *out_rate)
{
    return our_rate(&((pair_t *)context)->other, out_rate);
}

/* Warm up both. */
static tow_status_t run_pair(pipeline_bench_t *bench, tow_bench_case_t shown,
                             pair_t *pair, const tow_bench_options_t *options)
{
    double seconds;
    shown.bench = "pipeline";
    shown.context = pair;
    pair->ours.bench = pair->other.bench = bench;
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    tow_status_t status = trace(&pair->ours);
    if (status == TOW_OK) status = trace(&pair->other);
    if (status == TOW_OK) status = time_runs(&pair->ours, IN_FLIGHT, &seconds);
    if (status == TOW_OK) status = time_runs(&pair->other, 16, &seconds);
    if (status == TOW_OK)
        status = tow_bench_run_case(&shown, options->quick ? 3 : 9, options);
    tow_program_release(pair->ours.program);
    tow_program_release(pair->other.program);
    return status;
}

/* Cost per stage of a long chain against a short one. */
static tow_status_t run_flatness(pipeline_bench_t *bench,
                                 const tow_bench_options_t *options)
{
    pair_t pair = {.ours = {.stage_count = 16, .run_count = 1000},
                   .other = {.stage_count = 2, .run_count = 8000}};
    const tow_bench_case_t shown = {.name = "flat_16_to_2",
                                    .unit = "us/stage",
                                    .peer = "the same with 2 stages",
                                    .better = TOW_BENCH_LOWER_IS_BETTER,
                                    .bar = 1 / 1.3,
                                    .run = ours_us,
                                    .peer_run = other_us};
    return run_pair(bench, shown, &pair, options);
}

/* Gain of doing host-side work before the data arrives. */
static tow_status_t run_dispatch(pipeline_bench_t *bench,
                                 const tow_bench_options_t *options)
{
    static const pipeline_row_t pairs[] = {
        {"dispatch_2", 2, STAGES_IN_HALVES, 4000, 400, 0},
        {"dispatch_4", 4, STAGES_IN_HALVES, 2000, 200, 0},
        {"dispatch_8", 8, STAGES_IN_HALVES, 1000, 100, 0},
        {"dispatch_16", 16, STAGES_IN_HALVES, 500, 50, 3},
        {"dispatch_16_cross", 16, STAGES_CROSSING, 500, 50, 0},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(pairs); i++) {
        const pipeline_row_t *row = &pairs[i];
        const chain_t chain = {.stage_count = row->stage_count,
                               .order = row->order,
                               .run_count = row->run_count};
        pair_t pair = {.ours = chain, .other = chain};
        pair.other.dispatch = TOW_DISPATCH_SEQUENTIAL;
        pair.other.run_count = row->peer_count;
        const tow_bench_case_t shown = {.name = row->name,
                                        .unit = "stages/s",
                                        .peer = "sequential dispatch",
                                        .better = TOW_BENCH_HIGHER_IS_BETTER,
                                        .bar = row->bar,
                                        .run = ours_rate,
                                        .peer_run = other_rate};
        TOW_RETURN_IF_ERROR(run_pair(bench, shown, &pair, options));
    }
    return TOW_OK;
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    pipeline_bench_t bench = {.factor = options->quick ? 1 : 4,
                              .jax = TOW_BENCH_RESPONDER_NONE};
    tow_status_t status = open_cluster(&bench);
    if (status == TOW_OK) status = run_beside_jax(&bench, options);
    if (status == TOW_OK) status = run_flatness(&bench, options);
    if (status == TOW_OK) status = run_dispatch(&bench, options);
    close_cluster(&bench);
    return status;
}

static const char *const case_names[] = {"stages_2",
                                         "stages_4",
                                         "stages_8",
                                         "stages_16",
                                         "stages_8_cross",
                                         "stages_16_cross",
                                         "flat_16_to_2",
                                         "dispatch_2",
                                         "dispatch_4",
                                         "dispatch_8",
                                         "dispatch_16",
                                         "dispatch_16_cross",
                                         NULL};

const tow_benchmark_t tow_bench_pipeline = {
    .name = "pipeline",
    .summary = "stages on separate devices, hundreds of computations in flight",
    .cases = case_names,
    .run = run_benchmark,
};
