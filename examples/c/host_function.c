/* A C function between two computations, on the hosts of the devices.
 *
 *     y = 2 x - 8                  on 4 devices
 *     z = elements of y above 0    on their hosts: the count is not known before
 *     w = z, padded with zeros     on the hosts: the size is fixed again
 *     v = w + 1                    on the devices
 *
 * The functions are in filter.c, a shared object beside this program (or at the
 * path in the first argument); the client sends it to the workers. A cluster
 * that this program does not start itself must allow host functions:
 * `tow up --host-functions`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "check.h"

#define DEVICES 4
#define COUNT   8 /* elements of a shard */
#define TYPE    "tensor<8xf32>"

static const char first_text[] =
    "func.func @main(%x: " TYPE ") -> " TYPE " {\n"
    "  %eight = stablehlo.constant dense<8.0> : " TYPE "\n"
    "  %y = stablehlo.add %x, %x : " TYPE "\n"
    "  %z = stablehlo.subtract %y, %eight : " TYPE "\n"
    "  return %z : " TYPE "\n"
    "}\n";

static const char last_text[] =
    "func.func @main(%w: " TYPE ") -> " TYPE " {\n"
    "  %one = stablehlo.constant dense<1.0> : " TYPE "\n"
    "  %v = stablehlo.add %w, %one : " TYPE "\n"
    "  return %v : " TYPE "\n"
    "}\n";

static tow_function_t *compile(tow_slice_t *slice, const char *text)
{
    tow_function_t *function;
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

/* One argument and one result, of at most COUNT elements each. */
static tow_function_t *load(tow_slice_t *slice, const char *path,
                            const char *symbol, uint32_t bounds_in,
                            uint32_t bounds_out)
{
    tow_function_t *function;
    const tow_host_type_t in = {TOW_ARRAY_TYPE(TOW_TYPE_F32, COUNT), bounds_in};
    const tow_host_type_t out = {TOW_ARRAY_TYPE(TOW_TYPE_F32, COUNT),
                                 bounds_out};
    check(tow_host_function_load(
        slice,
        TOW_WITH(tow_host_function_options_t, .path = path, .symbol = symbol,
                 .arguments = &in, .argument_count = 1, .results = &out,
                 .result_count = 1, .time_limit_ms = 5000),
        &function));
    return function;
}

/* Traces a call; the program holds its functions. */
static tow_array_t *call(tow_function_t *function, tow_slice_t *slice,
                         tow_array_t *take_input)
{
    tow_array_t *output;
    check(tow_function_call(function, slice, &take_input, 1, &output, 1));
    tow_function_release(function);
    tow_array_release(take_input);
    return output;
}

static tow_program_t *trace(tow_client_t *client, tow_slice_t *slice,
                            const char *path)
{
    tow_program_t *program;
    tow_array_t *x;
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_F32, COUNT);
    check(tow_program_create(client, "filter", &program));
    check(tow_program_argument(program, slice, &type, false, &x));
    tow_array_t *y = call(compile(slice, first_text), slice, x);
    tow_array_t *z = call(load(slice, path, "keep_positive", 0, 1), slice, y);
    check(tow_program_result(program, z)); /* of unknown size */
    tow_array_t *w = call(load(slice, path, "pad", 1, 0), slice, z);
    tow_array_t *v = call(compile(slice, last_text), slice, w);
    check(tow_program_result(program, v));
    tow_array_release(v);
    check(tow_program_finish(program));
    return program;
}

static void show(tow_array_t *array, const char *name)
{
    for (size_t shard = 0; shard < DEVICES; shard++) {
        float values[COUNT];
        tow_array_type_t type = {.struct_size = sizeof(type)};
        size_t size;
        check(tow_array_download_sized(array, shard, values, sizeof(values),
                                       &type, &size));
        printf("%s, shard %zu: %lld of %d:", name, shard,
               (long long)type.dims[0], COUNT);
        for (size_t i = 0; i < size / sizeof(float); i++)
            printf(" %g", (double)values[i]);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    tow_client_t *client;
    tow_slice_t *slice;
    tow_array_t *x, *results[2];
    char path[4096];
    float values[DEVICES * COUNT];
    snprintf(path, sizeof(path), "%s", argc > 1 ? argv[1] : argv[0]);
    char *end = strrchr(path, '/');
    if (argc <= 1 && end != NULL)
        snprintf(end, sizeof(path) - (size_t)(end - path), "/filter.so");

    check(tow_client_open(NULL, &client));
    check(tow_slice_open(
        client, TOW_WITH(tow_slice_options_t, .dims = {DEVICES}), &slice));
    tow_program_t *program = trace(client, slice, path);
    for (int i = 0; i < DEVICES * COUNT; i++)
        values[i] = (float)(i % COUNT) + (float)(i / COUNT) - 2;
    check(tow_array_upload(slice,
                           TOW_WITH(tow_upload_options_t,
                                    .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, COUNT),
                                    .bytes = values, .size = sizeof(values)),
                           &x));
    check(tow_program_run(program, &x, 1, results, 2));
    show(results[0], "kept");
    show(results[1], "padded, and 1");

    tow_array_release(results[0]);
    tow_array_release(results[1]);
    tow_array_release(x);
    tow_program_release(program);
    tow_slice_release(slice);
    tow_client_release(client);
    return 0;
}
