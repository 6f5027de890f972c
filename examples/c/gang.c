/* A gang on all devices of the cluster: each computes the mean over all.
 *
 *     tow up --workers 2 --devices 2
 *     TOW_ADDRESS=unix:... ./gang [STEPS]
 *
 * Every step is a collective of all devices. The program starts one step after
 * another without waiting; each takes the result of the step before, which may
 * not exist yet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <towpath/towpath.h>

#include "check.h"

/* The mean of all shards, so that every step does the same work. %count is the
 * number of devices. */
static const char step_format[] =
    "func.func @main(%%x: tensor<2xf32>) -> tensor<2xf32> {\n"
    "  %%sum = \"stablehlo.all_reduce\"(%%x) ({\n"
    "  ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):\n"
    "    %%c = stablehlo.add %%a, %%b : tensor<f32>\n"
    "    \"stablehlo.return\"(%%c) : (tensor<f32>) -> ()\n"
    "  }) {replica_groups = dense<> : tensor<0x0xi64>}"
    " : (tensor<2xf32>) -> tensor<2xf32>\n"
    "  %%count = stablehlo.constant dense<%zu.0> : tensor<2xf32>\n"
    "  %%mean = stablehlo.divide %%sum, %%count : tensor<2xf32>\n"
    "  return %%mean : tensor<2xf32>\n"
    "}\n";

static tow_function_t *compile_step(tow_slice_t *slice)
{
    char text[1024];
    tow_function_t *step;
    snprintf(text, sizeof(text), step_format, tow_slice_device_count(slice));
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &step));
    return step;
}

/* Device i has {i, 1}. */
static tow_array_t *upload_shards(tow_slice_t *slice)
{
    const size_t count = tow_slice_device_count(slice);
    float *values = calloc(count, 2 * sizeof(float));
    if (values == NULL) abort();
    for (size_t i = 0; i < count; i++) {
        values[2 * i] = (float)i;
        values[2 * i + 1] = 1;
    }
    tow_array_t *array;
    check(tow_array_upload(
        slice,
        TOW_WITH(tow_upload_options_t, .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 2),
                 .bytes = values, .size = count * 2 * sizeof(float)),
        &array));
    free(values);
    return array;
}

static tow_array_t *run_steps(tow_function_t *step, tow_slice_t *slice,
                              tow_array_t *take_array, long count)
{
    tow_array_t *array = take_array;
    for (long i = 0; i < count; i++) {
        tow_array_t *next;
        check(tow_function_call(step, slice, &array, 1, &next, 1));
        tow_array_release(array);
        array = next;
    }
    return array;
}

static void print_shards(tow_slice_t *slice, tow_array_t *array)
{
    for (size_t i = 0; i < tow_array_shard_count(array); i++) {
        float values[2];
        tow_device_t device = {.struct_size = sizeof(device)};
        check(tow_slice_device(slice, i, &device));
        check(tow_array_download(array, i, values, sizeof(values)));
        printf("device %-5lld of %-10s has %g %g\n", (long long)device.id,
               device.worker, values[0], values[1]);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    const long count = argc > 1 ? atol(argv[1]) : 1000;
    tow_client_t *client;
    tow_slice_t *slice;
    check(tow_client_open(NULL, &client));
    check(tow_slice_open(client, NULL, &slice)); /* All devices. */
    tow_function_t *step = compile_step(slice);
    tow_array_t *array = upload_shards(slice);

    array = run_steps(step, slice, array, 1); /* Workers load the function. */
    check(tow_array_wait(array, -1));
    const double start = seconds();
    array = run_steps(step, slice, array, count);
    check(tow_array_wait(array, -1));
    printf("%ld steps of a gang of %zu in %.1f ms\n", count,
           tow_slice_device_count(slice), 1e3 * (seconds() - start));
    print_shards(slice, array);

    tow_array_release(array);
    tow_function_release(step);
    tow_slice_release(slice);
    tow_client_release(client);
    return 0;
}
