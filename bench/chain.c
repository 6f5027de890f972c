#include "bench/chain.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#define TEXT_BYTES    65536
#define CHECKED_STEPS 3

static const tow_array_type_t scalar = {.struct_size = sizeof(tow_array_type_t),
                                        .type = 11 /* f32 */,
                                        .rank = 0};

/* -- The computation --------------------------------------------------------- */

static size_t add_step(char *text, size_t capacity, int from, int to,
                       const char *group, size_t count)
{
    return (size_t)snprintf(
        text, capacity,
        "    %%y%d = stablehlo.add %%x%d, %%one : tensor<f32>\n"
        "    %%s%d = \"stablehlo.all_reduce\"(%%y%d) ({\n"
        "    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
        "      %%c = stablehlo.add %%a, %%b : tensor<f32>\n"
        "      stablehlo.return %%c : tensor<f32>\n"
        "    }) {replica_groups = dense<[[%s]]> : tensor<1x%zuxi64>, "
        "channel_handle = #stablehlo.channel_handle<handle = %d, type = 0>} "
        ": (tensor<f32>) -> tensor<f32>\n"
        "    %%x%d = stablehlo.divide %%s%d, %%count : tensor<f32>\n",
        to, from, to, to, group, count, to, to, to);
}

/* Adds one and takes the mean over all devices, `length` times. */
static void write_computation(char text[TEXT_BYTES], size_t count, int length)
{
    char group[256] = "0";
    for (size_t i = 1; i < count; i++)
        snprintf(group + strlen(group), sizeof(group) - strlen(group), ", %zu",
                 i);
    size_t at = (size_t)snprintf(
        text, TEXT_BYTES,
        "module @step attributes {mhlo.num_replicas = %zu : i32, "
        "mhlo.num_partitions = 1 : i32} {\n"
        "  func.func public @main(%%x0: tensor<f32>) -> tensor<f32> {\n"
        "    %%one = stablehlo.constant dense<1.0> : tensor<f32>\n"
        "    %%count = stablehlo.constant dense<%zu.0> : tensor<f32>\n",
        count, count);
    for (int i = 0; i < length; i++)
        at += add_step(text + at, TEXT_BYTES - at, i, i + 1, group, count);
    snprintf(text + at, TEXT_BYTES - at,
             "    return %%x%d : tensor<f32>\n  }\n}\n", length);
}

tow_status_t tow_bench_chain_compile(tow_bench_chain_t *chain, int length,
                                     tow_function_t **out_function)
{
    char *text = tow_malloc(TEXT_BYTES);
    if (text == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    write_computation(text, chain->device_count, length);
    tow_source_t source = {
        .struct_size = sizeof(source), .bytes = text, .size = strlen(text)};
    tow_status_t status =
        tow_function_compile(chain->slice, &source, out_function);
    tow_free(text);
    return status;
}

static tow_status_t trace_program(tow_bench_chain_t *chain)
{
    tow_array_t *value = NULL;
    TOW_RETURN_IF_ERROR(
        tow_program_create(chain->client, "chain", &chain->program));
    TOW_RETURN_IF_ERROR(tow_program_argument(chain->program, chain->slice,
                                             &scalar, false, &value));
    tow_status_t status = TOW_OK;
    for (int i = 0; i < TOW_BENCH_CHAIN_LENGTH && status == TOW_OK; i++) {
        tow_array_t *next = NULL;
        status =
            tow_function_call(chain->one, chain->slice, &value, 1, &next, 1);
        tow_array_release(value);
        value = next;
    }
    if (status == TOW_OK) status = tow_program_result(chain->program, value);
    tow_array_release(value);
    TOW_RETURN_IF_ERROR(status);
    return tow_program_finish(chain->program);
}

/* -- Calls ------------------------------------------------------------------- */

tow_status_t tow_bench_chain_begin(tow_bench_chain_t *chain,
                                   tow_array_t **out_value)
{
    static const float zero = 0;
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .type = scalar,
                                    .bytes = &zero,
                                    .size = sizeof(zero),
                                    .replicated = true};
    return tow_array_upload(chain->slice, &options, out_value);
}

tow_status_t tow_bench_chain_call(tow_bench_chain_t *chain,
                                  tow_function_t *function, tow_array_t **value)
{
    tow_array_t *next = NULL;
    TOW_RETURN_IF_ERROR(
        tow_function_call(function, chain->slice, value, 1, &next, 1));
    tow_array_release(*value);
    *value = next;
    return TOW_OK;
}

tow_status_t tow_bench_chain_run(tow_bench_chain_t *chain, tow_array_t **value)
{
    tow_array_t *next = NULL;
    TOW_RETURN_IF_ERROR(tow_program_run(chain->program, value, 1, &next, 1));
    tow_status_t status = tow_array_wait(*value, -1);
    tow_array_release(*value);
    *value = next;
    return status;
}

/* -- Opening and closing ------------------------------------------------------ */

/* Starting at 0, each step adds 1. */
static tow_status_t check(tow_bench_chain_t *chain)
{
    tow_array_t *value = NULL;
    TOW_RETURN_IF_ERROR(tow_bench_chain_begin(chain, &value));
    tow_status_t status = TOW_OK;
    for (int i = 0; i < CHECKED_STEPS && status == TOW_OK; i++)
        status = tow_bench_chain_call(chain, chain->one, &value);
    for (size_t i = 0; i < chain->device_count && status == TOW_OK; i++) {
        float got = 0;
        status = tow_array_download(value, i, &got, sizeof(got));
        if (status == TOW_OK && got != CHECKED_STEPS)
            status =
                TOW_ERROR(TOW_DATA_LOSS, "device %zu has %g after %d steps", i,
                          (double)got, CHECKED_STEPS);
    }
    tow_array_release(value);
    return status;
}

static tow_status_t open_cluster(tow_bench_chain_t *chain,
                                 const tow_bench_chain_options_t *options)
{
    tow_client_options_t client = {.struct_size = sizeof(client),
                                   .name = "bench",
                                   .worker_count = options->worker_count,
                                   .devices_per_worker =
                                       options->devices_per_worker};
    TOW_RETURN_IF_ERROR(tow_client_open(&client, &chain->client));
    tow_slice_options_t slice = {.struct_size = sizeof(slice),
                                 .dims = {(uint32_t)chain->device_count}};
    return tow_slice_open(chain->client, &slice, &chain->slice);
}

tow_status_t tow_bench_chain_open(const tow_bench_chain_options_t *options,
                                  tow_bench_chain_t *out_chain)
{
    *out_chain =
        (tow_bench_chain_t){.device_count = (size_t)options->worker_count *
                                            options->devices_per_worker};
    TOW_RETURN_IF_ERROR(open_cluster(out_chain, options));
    TOW_RETURN_IF_ERROR(tow_bench_chain_compile(out_chain, 1, &out_chain->one));
    TOW_RETURN_IF_ERROR(trace_program(out_chain));
    return check(out_chain);
}

void tow_bench_chain_close(tow_bench_chain_t *chain)
{
    tow_program_release(chain->program);
    tow_function_release(chain->one);
    tow_slice_release(chain->slice);
    tow_client_release(chain->client);
}
