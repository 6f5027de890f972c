/* A program of three computations, traced once and run as a whole.
 *
 *     weigh:      y = x * w
 *     total:      s = the sum of y over all devices
 *     normalise:  z = y / s
 *
 * A run is one small message, for any number of computations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "check.h"

#define VECTOR "tensor<4xf32>"

static const char weigh_text[] =
    "func.func @main(%x: " VECTOR ", %w: " VECTOR ") -> " VECTOR " {\n"
    "  %y = stablehlo.multiply %x, %w : " VECTOR "\n"
    "  return %y : " VECTOR "\n"
    "}\n";

static const char total_text[] =
    "func.func @main(%y: " VECTOR ") -> " VECTOR " {\n"
    "  %s = \"stablehlo.all_reduce\"(%y) ({\n"
    "  ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n"
    "    %c = stablehlo.add %a, %b : tensor<f32>\n"
    "    \"stablehlo.return\"(%c) : (tensor<f32>) -> ()\n"
    "  }) {replica_groups = dense<> : tensor<0x0xi64>}"
    " : (" VECTOR ") -> " VECTOR "\n"
    "  return %s : " VECTOR "\n"
    "}\n";

static const char normalise_text[] =
    "func.func @main(%y: " VECTOR ", %s: " VECTOR ") -> " VECTOR " {\n"
    "  %z = stablehlo.divide %y, %s : " VECTOR "\n"
    "  return %z : " VECTOR "\n"
    "}\n";

static tow_function_t *compile(tow_slice_t *slice, const char *text)
{
    tow_function_t *function;
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

/* Calls a function with one result. */
static tow_array_t *call(tow_function_t *function, tow_slice_t *slice,
                         tow_array_t *const *arguments, size_t count)
{
    tow_array_t *result;
    check(tow_function_call(function, slice, arguments, count, &result, 1));
    return result;
}

/* Calls on a program's arrays are traced, not run. */
static tow_program_t *trace(tow_client_t *client, tow_slice_t *slice)
{
    tow_function_t *weigh = compile(slice, weigh_text);
    tow_function_t *total = compile(slice, total_text);
    tow_function_t *normalise = compile(slice, normalise_text);
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 4);
    tow_program_t *program;
    tow_array_t *x, *w;
    check(tow_program_create(client, "softened", &program));
    check(tow_program_argument(program, slice, &type, false, &x));
    check(tow_program_argument(program, slice, &type, false, &w));

    tow_array_t *y = call(weigh, slice, (tow_array_t *[]){x, w}, 2);
    tow_array_t *s = call(total, slice, &y, 1);
    tow_array_t *z = call(normalise, slice, (tow_array_t *[]){y, s}, 2);
    check(tow_program_result(program, z));
    check(tow_program_finish(program));

    tow_array_t *const arrays[] = {x, w, y, s, z};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        tow_array_release(arrays[i]);
    tow_function_release(weigh);
    tow_function_release(total);
    tow_function_release(normalise);
    return program;
}

/* The same four numbers for every device. */
static tow_array_t *upload(tow_slice_t *slice, const float values[4])
{
    tow_array_t *array;
    check(tow_array_upload(slice,
                           TOW_WITH(tow_upload_options_t,
                                    .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 4),
                                    .bytes = values, .size = 4 * sizeof(float),
                                    .replicated = true),
                           &array));
    return array;
}

int main(void)
{
    tow_client_t *client;
    tow_slice_t *slice;
    check(tow_client_open(NULL, &client));
    check(tow_slice_open(client, NULL, &slice)); /* All devices. */
    tow_program_t *program = trace(client, slice);

    tow_array_t *arguments[2] = {upload(slice, (float[]){1, 2, 3, 4}),
                                 upload(slice, (float[]){1, 1, 2, 2})};
    tow_array_t *result;
    check(tow_program_run(program, arguments, 2, &result, 1));
    for (size_t i = 0; i < tow_array_shard_count(result); i++) {
        float values[4];
        check(tow_array_download(result, i, values, sizeof(values)));
        printf("shard %zu: %g %g %g %g\n", i, values[0], values[1], values[2],
               values[3]);
    }

    tow_array_release(result);
    tow_array_release(arguments[0]);
    tow_array_release(arguments[1]);
    tow_program_release(program);
    tow_slice_release(slice);
    tow_client_release(client);
    return 0;
}
