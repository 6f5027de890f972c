/* Adds two vectors on one device.
 *
 *     cc hello.c $(pkg-config --cflags --libs towpath) -o hello && ./hello
 *
 * Without TOW_ADDRESS the program starts a cluster, which ends with it. */
#include <stdio.h>
#include <string.h>
#include <towpath/towpath.h>

#include "check.h"

static const char add_text[] =
    "func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %sum = stablehlo.add %x, %y : tensor<4xf32>\n"
    "  return %sum : tensor<4xf32>\n"
    "}\n";

static tow_array_t *upload(tow_slice_t *slice, const float values[4])
{
    tow_array_t *array;
    check(tow_array_upload(slice,
                           TOW_WITH(tow_upload_options_t,
                                    .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 4),
                                    .bytes = values, .size = 4 * sizeof(float)),
                           &array));
    return array;
}

int main(void)
{
    tow_client_t *client;
    tow_slice_t *slice;
    tow_function_t *add;
    check(tow_client_open(NULL, &client));
    check(tow_slice_open(client, TOW_WITH(tow_slice_options_t, .dims = {1}),
                         &slice));
    check(tow_function_compile(
        slice,
        TOW_WITH(tow_source_t, .bytes = add_text, .size = strlen(add_text)),
        &add));

    tow_array_t *arguments[2] = {
        upload(slice, (float[]){1, 2, 3, 4}),
        upload(slice, (float[]){10, 20, 30, 40}),
    };
    tow_array_t *sum;
    float values[4];
    check(tow_function_call(add, slice, arguments, 2, &sum, 1));
    check(tow_array_download(sum, 0, values, sizeof(values)));
    printf("%g %g %g %g\n", values[0], values[1], values[2], values[3]);

    tow_array_release(sum);
    tow_array_release(arguments[0]);
    tow_array_release(arguments[1]);
    tow_function_release(add);
    tow_slice_release(slice);
    tow_client_release(client);
    return 0;
}
