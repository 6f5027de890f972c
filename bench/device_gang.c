/* Gangs: steps per second of scalar add and all-reduce. Each step is a separate
 * execution whose argument is the result of the one before.
 *
 * Ours runs in two processes for all rounds. JAX is a child process that
 * performs rounds on command; its devices are in one process, where it is
 * fastest. MPI_Allreduce has no computation and no executions: it shows the
 * limit of shared memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "bench/device.h"
#include "bench/gang.h"
#include "bench/peer.h"

#define PROGRAM_SIZE  1024
#define CHECKED_STEPS 5

typedef struct gang_size {
    size_t process_count;
    size_t device_count; /* of each */
    /* Of a quick round: about a fifth of a second. */
    uint64_t step_count;
    uint64_t jax_step_count;
    uint64_t mpi_count;
} gang_size_t;

typedef struct gang_bench {
    const gang_size_t *size; /* lent */
    uint64_t factor;         /* of the counts */
    tow_bench_gang_t *gang;  /* owned */
    tow_bench_responder_t jax;
} gang_bench_t;

static size_t replica_count(const gang_size_t *size)
{
    return size->process_count * size->device_count;
}

/* -- Ours ------------------------------------------------------------------- */

static void write_program(size_t count, char program[PROGRAM_SIZE])
{
    char group[256] = "0";
    for (size_t i = 1; i < count; i++)
        snprintf(group + strlen(group), sizeof(group) - strlen(group), ", %zu",
                 i);
    snprintf(program, PROGRAM_SIZE,
             "module @step attributes {mhlo.num_replicas = %zu : i32, "
             "mhlo.num_partitions = 1 : i32} {\n"
             "  func.func public @main(%%x: tensor<f32>) -> tensor<f32> {\n"
             "    %%one = stablehlo.constant dense<1.0> : tensor<f32>\n"
             "    %%y = stablehlo.add %%x, %%one : tensor<f32>\n"
             "    %%z = \"stablehlo.all_reduce\"(%%y) ({\n"
             "    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
             "      %%c = stablehlo.add %%a, %%b : tensor<f32>\n"
             "      stablehlo.return %%c : tensor<f32>\n"
             "    }) {replica_groups = dense<[[%s]]> : tensor<1x%zuxi64>, "
             "channel_handle = #stablehlo.channel_handle<handle = 1, type = "
             "0>} : (tensor<f32>) -> tensor<f32>\n"
             "    return %%z : tensor<f32>\n"
             "  }\n"
             "}\n",
             count, group, count);
}

/* With one device per process, the step runs on the thread that enqueues it. */
static tow_status_t run_steps(gang_bench_t *bench, uint64_t count,
                              double *out_seconds)
{
    tow_bench_gang_run_t run = {.count = count,
                                .in_flight = TOW_BENCH_GANG_IN_FLIGHT_MAX,
                                .may_block = bench->size->device_count == 1};
    return tow_bench_gang_run(bench->gang, &run, out_seconds);
}

/* Starting at 0, each step maps x to N (x + 1) on every device. */
static tow_status_t check_steps(gang_bench_t *bench)
{
    const gang_size_t *size = bench->size;
    double expected = 0, seconds = 0;
    for (int i = 0; i < CHECKED_STEPS; i++)
        expected = (double)replica_count(size) * (expected + 1);
    TOW_RETURN_IF_ERROR(run_steps(bench, CHECKED_STEPS, &seconds));
    for (size_t i = 0; i < replica_count(size); i++) {
        float value = 0;
        TOW_RETURN_IF_ERROR(
            tow_bench_gang_value(bench->gang, i / size->device_count,
                                 i % size->device_count, &value));
        if ((double)value != expected)
            return TOW_ERROR(TOW_DATA_LOSS,
                             "device %zu has %g after %d steps instead of %g",
                             i, (double)value, CHECKED_STEPS, expected);
    }
    return TOW_OK;
}

static tow_status_t open_gang(gang_bench_t *bench)
{
    const gang_size_t *size = bench->size;
    char program[PROGRAM_SIZE];
    write_program(replica_count(size), program);
    tow_bench_gang_options_t options = {.process_count = size->process_count,
                                        .device_count = size->device_count,
                                        .program = {program, strlen(program)}};
    double seconds = 0;
    TOW_RETURN_IF_ERROR(tow_bench_gang_open(&options, &bench->gang));
    TOW_RETURN_IF_ERROR(check_steps(bench));
    return run_steps(bench, size->step_count / 10, &seconds);
}

static tow_status_t our_rate(void *context, double *out_rate)
{
    gang_bench_t *bench = context;
    const uint64_t count = bench->size->step_count * bench->factor;
    double seconds = 0;
    TOW_RETURN_IF_ERROR(run_steps(bench, count, &seconds));
    *out_rate = (double)count / seconds;
    return TOW_OK;
}

/* -- Peers ------------------------------------------------------------------ */

static tow_status_t jax_rate(void *context, double *out_rate)
{
    gang_bench_t *bench = context;
    const uint64_t count = bench->size->jax_step_count * bench->factor;
    char line[64];
    double seconds = 0;
    snprintf(line, sizeof(line), "%llu\n", (unsigned long long)count);
    TOW_RETURN_IF_ERROR(
        tow_bench_responder_ask_seconds(&bench->jax, line, &seconds));
    *out_rate = (double)count / seconds;
    return TOW_OK;
}

static tow_status_t mpi_rate(void *context, double *out_rate)
{
    const gang_bench_t *bench = context;
    return tow_bench_mpi_rate(replica_count(bench->size),
                              bench->size->mpi_count * bench->factor, out_rate);
}

/* -- The cases -------------------------------------------------------------- */

static tow_status_t run_beside_jax(gang_bench_t *bench,
                                   const tow_bench_case_t *shown,
                                   const tow_bench_options_t *options)
{
    if (!tow_bench_is_chosen(shown, options)) return TOW_OK;
    tow_status_t status = tow_bench_jax_start(
        "bench/peers/jax_gang.py", replica_count(bench->size), &bench->jax);
    if (status == TOW_OK)
        status = tow_bench_run_case(shown, options->quick ? 3 : 11, options);
    tow_bench_responder_stop(&bench->jax);
    return status;
}

static tow_status_t run_beside_mpi(const tow_bench_case_t *shown,
                                   const tow_bench_options_t *options)
{
    if (!tow_bench_is_chosen(shown, options)) return TOW_OK;
    if (tow_bench_can_run_mpi())
        return tow_bench_run_case(shown, options->quick ? 3 : 11, options);
    fprintf(
        stderr,
        "tow bench device: %s skipped: Open MPI is not installed (Debian: openmpi-bin and libopenmpi-dev; then rebuild)\n",
        shown->name);
    return TOW_OK;
}

typedef struct gang_row {
    gang_size_t size;
    tow_bench_case_t beside_jax;
    tow_bench_case_t beside_mpi;
} gang_row_t;

/* Targets: 10 times JAX's rate with two devices, 5 times with eight. */
static const gang_row_t rows[] = {
    {.size = {.process_count = 2,
              .device_count = 1,
              .step_count = 30000,
              .jax_step_count = 2000,
              .mpi_count = 200000},
     .beside_jax = {.name = "gang_2x1",
                    .peer = "JAX's CPU backend, 2 devices",
                    .bar = 10},
     .beside_mpi = {.name = "gang_2x1_mpi",
                    .peer = "MPI_Allreduce alone (no computation), 2 ranks"}},
    {.size = {.process_count = 2,
              .device_count = 4,
              .step_count = 6000,
              .jax_step_count = 800,
              .mpi_count = 10000},
     .beside_jax = {.name = "gang_2x4",
                    .peer = "JAX's CPU backend, 8 devices",
                    .bar = 5},
     .beside_mpi = {.name = "gang_2x4_mpi",
                    .peer = "MPI_Allreduce alone (no computation), 8 ranks"}},
};

static tow_bench_case_t complete_case(const tow_bench_case_t *given,
                                      gang_bench_t *bench)
{
    tow_bench_case_t shown = *given;
    shown.bench = "device";
    shown.unit = "1/s";
    shown.better = TOW_BENCH_HIGHER_IS_BETTER;
    shown.run = our_rate;
    shown.context = bench;
    return shown;
}

static tow_status_t run_row(const gang_row_t *row,
                            const tow_bench_options_t *options)
{
    gang_bench_t bench = {.size = &row->size,
                          .factor = options->quick ? 1 : 4,
                          .jax = TOW_BENCH_RESPONDER_NONE};
    tow_bench_case_t jax = complete_case(&row->beside_jax, &bench),
                     mpi = complete_case(&row->beside_mpi, &bench);
    jax.peer_run = jax_rate;
    mpi.peer_run = mpi_rate;
    if (!tow_bench_is_chosen(&jax, options) &&
        !tow_bench_is_chosen(&mpi, options))
        return TOW_OK;
    tow_status_t status = open_gang(&bench);
    if (status == TOW_OK) status = run_beside_jax(&bench, &jax, options);
    if (status == TOW_OK) status = run_beside_mpi(&mpi, options);
    tow_bench_gang_close(bench.gang);
    return status;
}

tow_status_t tow_bench_device_gangs(const tow_bench_options_t *options)
{
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++)
        TOW_RETURN_IF_ERROR(run_row(&rows[i], options));
    return TOW_OK;
}
