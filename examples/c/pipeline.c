/* A pipeline of two stages, each on its own devices; on a cluster of two
 * islands each stage has an island (`tow up --workers 2 --islands 2`).
 *
 *     first stage:   y = 2 x      on 4 devices, each with 2 rows
 *     second stage:  z = y + 1    on 4 other devices, each with 2 columns
 *
 * Between the stages the workers transfer and reshard the array: each device of
 * the second stage gets a part from each device of the first. Many runs are in
 * flight, so that both stages are always busy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "check.h"

#define DEVICES 4 /* of each stage */
#define RUNS    16
#define SIDE    8 /* the array is 8 x 8 */

#define ROWS    "tensor<2x8xf32>"
#define COLUMNS "tensor<8x2xf32>"

static const char first_text[] = "func.func @main(%x: " ROWS ") -> " ROWS " {\n"
                                 "  %y = stablehlo.add %x, %x : " ROWS "\n"
                                 "  return %y : " ROWS "\n"
                                 "}\n";

static const char second_text[] =
    "func.func @main(%y: " COLUMNS ") -> " COLUMNS " {\n"
    "  %one = stablehlo.constant dense<1.0> : " COLUMNS "\n"
    "  %z = stablehlo.add %y, %one : " COLUMNS "\n"
    "  return %z : " COLUMNS "\n"
    "}\n";

static tow_array_t *call(tow_slice_t *slice, const char *text, tow_array_t *x)
{
    tow_function_t *function;
    tow_array_t *y;
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    check(tow_function_call(function, slice, &x, 1, &y, 1));
    tow_function_release(function);
    return y;
}

static tow_program_t *trace(tow_client_t *client, tow_slice_t *first,
                            tow_slice_t *second)
{
    tow_program_t *program;
    tow_array_t *x, *moved;
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 2, SIDE);
    check(tow_program_create(client, "pipeline", &program));
    check(tow_program_argument(program, first, &type, false, &x));
    tow_array_t *y = call(first, first_text, x);
    check(tow_array_transfer(y,
                             TOW_WITH(tow_transfer_options_t, .slice = second,
                                      .from = TOW_SPLIT(DEVICES, 1),
                                      .to = TOW_SPLIT(1, DEVICES)),
                             &moved));
    tow_array_t *z = call(second, second_text, moved);
    check(tow_program_result(program, z));
    check(tow_program_finish(program));
    tow_array_t *const arrays[] = {x, y, moved, z};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        tow_array_release(arrays[i]);
    return program;
}

/* The cluster prefers devices that no other slice uses. */
static tow_slice_t *open_stage(tow_client_t *client)
{
    tow_slice_t *slice;
    check(tow_slice_open(
        client, TOW_WITH(tow_slice_options_t, .dims = {DEVICES}), &slice));
    return slice;
}

static tow_array_t *upload(tow_slice_t *slice, float start)
{
    float values[SIDE * SIDE];
    tow_array_t *array;
    for (size_t i = 0; i < SIDE * SIDE; i++)
        values[i] = start + (float)i;
    check(
        tow_array_upload(slice,
                         TOW_WITH(tow_upload_options_t,
                                  .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 2, SIDE),
                                  .bytes = values, .size = sizeof(values)),
                         &array));
    return array;
}

/* Shard p has the columns 2 p and 2 p + 1. */
static void show(tow_array_t *result, int run)
{
    float last[SIDE][2];
    check(tow_array_download(result, DEVICES - 1, last, sizeof(last)));
    printf("run %2d: the last element is %g\n", run, last[SIDE - 1][1]);
    if (last[SIDE - 1][1] != 2.0f * ((float)run + SIDE * SIDE - 1) + 1) {
        fprintf(stderr, "pipeline: expected %g\n",
                2.0f * ((float)run + SIDE * SIDE - 1) + 1);
        exit(1);
    }
}

int main(void)
{
    tow_client_t *client;
    check(tow_client_open(TOW_WITH(tow_client_options_t, .worker_count = 2,
                                   .devices_per_worker = DEVICES),
                          &client));
    tow_slice_t *first = open_stage(client);
    tow_slice_t *second = open_stage(client);
    tow_program_t *program = trace(client, first, second);

    tow_array_t *results[RUNS];
    for (int i = 0; i < RUNS; i++) {
        tow_array_t *x = upload(first, (float)i);
        check(tow_program_run(program, &x, 1, &results[i], 1));
        tow_array_release(x);
    }
    for (int i = 0; i < RUNS; i++) {
        show(results[i], i);
        tow_array_release(results[i]);
    }

    tow_program_release(program);
    tow_slice_release(first);
    tow_slice_release(second);
    tow_client_release(client);
    return 0;
}
