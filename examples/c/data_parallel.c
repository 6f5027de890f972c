/* Data-parallel training: every device has the whole model and a part of the
 * data. One step is one program:
 *
 *     gradients:  of a small bias and a large weight, on each device's own data
 *     all-reduce: of both gradients, as one node of the program
 *     update:     of the bias and of the weight; the bias does not wait for the
 *                 sum of the weight's gradients
 *
 * Without TOW_ADDRESS the program starts a cluster of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "check.h"

#define WEIGHTS 4096

/* Gradients of a model that adds: the data itself, and four times the data. */
static const char gradients_text[] =
    "func.func @main(%x: tensor<f32>) -> (tensor<f32>, tensor<4096xf32>) {\n"
    "  %four = stablehlo.constant dense<4.0> : tensor<f32>\n"
    "  %y = stablehlo.multiply %x, %four : tensor<f32>\n"
    "  %w = stablehlo.broadcast_in_dim %y, dims = [] : (tensor<f32>)"
    " -> tensor<4096xf32>\n"
    "  return %x, %w : tensor<f32>, tensor<4096xf32>\n"
    "}\n";

#define UPDATE(type)                                              \
    "func.func @main(%p: " type ", %g: " type ") -> " type " {\n" \
    "  %rate = stablehlo.constant dense<0.5> : " type "\n"        \
    "  %s = stablehlo.multiply %g, %rate : " type "\n"            \
    "  %q = stablehlo.subtract %p, %s : " type "\n"               \
    "  return %q : " type "\n"                                    \
    "}\n"

typedef struct model {
    tow_array_t *bias;
    tow_array_t *weight;
} model_t;

static tow_function_t *compile(tow_slice_t *slice, const char *text)
{
    tow_function_t *function;
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

static tow_array_t *update(tow_slice_t *slice, const char *text,
                           tow_array_t *parameter, tow_array_t *gradient)
{
    tow_function_t *function = compile(slice, text);
    tow_array_t *result;
    check(tow_function_call(function, slice,
                            (tow_array_t *[]){parameter, gradient}, 2, &result,
                            1));
    tow_function_release(function);
    return result;
}

/* Arguments: data, bias, weight. Results: the new bias and weight. */
static tow_program_t *trace(tow_client_t *client, tow_slice_t *slice)
{
    const tow_array_type_t scalar = TOW_ARRAY_TYPE(TOW_TYPE_F32);
    const tow_array_type_t vector = TOW_ARRAY_TYPE(TOW_TYPE_F32, WEIGHTS);
    tow_function_t *gradients = compile(slice, gradients_text);
    tow_program_t *program;
    tow_array_t *data, *bias, *weight, *own[2], *summed[2];
    check(tow_program_create(client, "step", &program));
    check(tow_program_argument(program, slice, &scalar, false, &data));
    check(tow_program_argument(program, slice, &scalar, false, &bias));
    check(tow_program_argument(program, slice, &vector, false, &weight));
    check(tow_function_call(gradients, slice, &data, 1, own, 2));
    check(tow_arrays_all_reduce(own, 2, NULL, summed));
    tow_array_t *new_bias =
        update(slice, UPDATE("tensor<f32>"), bias, summed[0]);
    tow_array_t *new_weight =
        update(slice, UPDATE("tensor<4096xf32>"), weight, summed[1]);
    check(tow_program_result(program, new_bias));
    check(tow_program_result(program, new_weight));
    check(tow_program_finish(program));
    tow_array_t *const arrays[] = {data,      bias,     weight,
                                   own[0],    own[1],   summed[0],
                                   summed[1], new_bias, new_weight};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        tow_array_release(arrays[i]);
    tow_function_release(gradients);
    return program;
}

static tow_array_t *upload(tow_slice_t *slice, tow_array_type_t type,
                           const void *bytes, size_t size, bool is_replicated)
{
    tow_array_t *array;
    check(tow_array_upload(slice,
                           TOW_WITH(tow_upload_options_t, .type = type,
                                    .bytes = bytes, .size = size,
                                    .replicated = is_replicated),
                           &array));
    return array;
}

static void step(tow_program_t *program, tow_array_t *data, model_t *model)
{
    tow_array_t *results[2];
    check(tow_program_run(program,
                          (tow_array_t *[]){data, model->bias, model->weight},
                          3, results, 2));
    tow_array_release(model->bias);
    tow_array_release(model->weight);
    *model = (model_t){results[0], results[1]};
}

/* Device i has the data i + 1: a step subtracts half the sum from the bias, and
 * twice the sum from each weight. */
static bool is_right(const model_t *model, size_t device_count, int steps)
{
    const float sum = (float)(device_count * (device_count + 1) / 2);
    for (size_t i = 0; i < device_count; i++) {
        float bias, weight[WEIGHTS];
        check(tow_array_download(model->bias, i, &bias, sizeof(bias)));
        check(tow_array_download(model->weight, i, weight, sizeof(weight)));
        if (bias != -0.5f * sum * (float)steps) return false;
        for (size_t k = 0; k < WEIGHTS; k++)
            if (weight[k] != -2.0f * sum * (float)steps) return false;
    }
    return true;
}

int main(void)
{
    enum {
        STEPS = 100
    };
    static const float zeros[WEIGHTS];
    tow_client_t *client;
    tow_slice_t *slice;
    check(tow_client_open(NULL, &client));
    check(tow_slice_open(client, NULL, &slice)); /* All devices. */
    const size_t count = tow_slice_device_count(slice);
    tow_program_t *program = trace(client, slice);
    float *own = malloc(count * sizeof(*own));
    if (own == NULL) return 1;
    for (size_t i = 0; i < count; i++)
        own[i] = (float)(i + 1);
    tow_array_t *data =
        upload(slice, (tow_array_type_t)TOW_ARRAY_TYPE(TOW_TYPE_F32), own,
               count * sizeof(*own), false);
    model_t model = {
        upload(slice, (tow_array_type_t)TOW_ARRAY_TYPE(TOW_TYPE_F32), zeros,
               sizeof(float), true),
        upload(slice, (tow_array_type_t)TOW_ARRAY_TYPE(TOW_TYPE_F32, WEIGHTS),
               zeros, sizeof(zeros), true)};
    for (int i = 0; i < STEPS; i++) /* No step waits. */
        step(program, data, &model);
    const bool ok = is_right(&model, count, STEPS);
    printf("%d steps on %zu devices: %s\n", STEPS, count,
           ok ? "the model is correct" : "the model is WRONG");

    tow_array_release(model.bias);
    tow_array_release(model.weight);
    tow_array_release(data);
    free(own);
    tow_program_release(program);
    tow_slice_release(slice);
    tow_client_release(client);
    return ok ? 0 : 1;
}
