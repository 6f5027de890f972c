/* More arrays than devices have memory for, through the C interface, on any
 * cluster; tests/integration/test_memory.py runs it.
 *
 *     memory keep COUNT       COUNT arrays and their results, all kept:
 *                             their values must be right
 *     memory pipeline COUNT   the same over two slices, a transfer between them
 *     memory loop COUNT       uploads and runs; nothing is kept or awaited
 *     memory small COUNT      the same with arrays that are sent in messages
 *     memory never            a run that no device has the memory for
 *
 * An array has 1 MiB per device. A mode that succeeds prints the memory of this
 * process: "peak N KiB". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define LARGE_COUNT (256u << 10) /* numbers of a shard: 1 MiB */
#define SMALL_COUNT (8u << 10)   /* 32 KiB: sent in a message */

typedef struct fixture {
    tow_client_t *client;
    tow_slice_t *slice;
    tow_function_t *twice;
    size_t count; /* numbers of a shard */
} fixture_t;

static tow_function_t *compile_twice(tow_slice_t *slice, size_t count)
{
    char text[512];
    tow_function_t *function;
    snprintf(text, sizeof(text),
             "func.func @main(%%x: tensor<%zuxf32>) -> tensor<%zuxf32> {\n"
             "  %%y = stablehlo.add %%x, %%x : tensor<%zuxf32>\n"
             "  return %%y : tensor<%zuxf32>\n}\n",
             count, count, count, count);
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

static tow_slice_t *open_devices(tow_client_t *client, int64_t count)
{
    tow_slice_t *slice;
    check(tow_slice_open(client, TOW_WITH(tow_slice_options_t, .dims = {count}),
                         &slice));
    return slice;
}

static fixture_t open_fixture(size_t count)
{
    fixture_t fixture = {.count = count};
    check(tow_client_open(NULL, &fixture.client));
    check(tow_slice_open(fixture.client, NULL,
                         &fixture.slice)); /* All devices. */
    fixture.twice = compile_twice(fixture.slice, count);
    return fixture;
}

static void close_fixture(fixture_t *fixture)
{
    struct rusage usage;
    tow_function_release(fixture->twice);
    tow_slice_release(fixture->slice);
    tow_client_release(fixture->client);
    getrusage(RUSAGE_SELF, &usage);
    printf("peak %ld KiB\n", usage.ru_maxrss);
}

/* -- Values ---------------------------------------------------------------- */

static float value_of(size_t array, size_t index)
{
    return (float)(array * 1000 + index % 1000);
}

static tow_array_t *upload(tow_slice_t *slice, size_t count, size_t number)
{
    static float values[LARGE_COUNT];
    tow_array_t *array;
    for (size_t i = 0; i < count; i++)
        values[i] = value_of(number, i);
    check(tow_array_upload(
        slice,
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, (int64_t)count),
                 .bytes = values, .size = count * sizeof(float),
                 .replicated = true),
        &array));
    return array;
}

static void expect(tow_array_t *array, size_t count, size_t number,
                   float factor)
{
    static float values[LARGE_COUNT];
    for (size_t shard = 0; shard < tow_array_shard_count(array); shard++) {
        check(tow_array_download(array, shard, values, count * sizeof(float)));
        for (size_t i = 0; i < count; i++) {
            if (values[i] == factor * value_of(number, i)) continue;
            fprintf(stderr, "array %zu, shard %zu, number %zu: %g, not %g\n",
                    number, shard, i, values[i], factor * value_of(number, i));
            exit(1);
        }
    }
}

static tow_array_t **make_list(size_t count)
{
    tow_array_t **list = calloc(count + 1, sizeof(*list));
    if (list == NULL) abort();
    return list;
}

static void release_list(tow_array_t **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tow_array_release(list[i]);
    free(list);
}

/* -- Modes ----------------------------------------------------------------- */

/* Uses all arrays in order, then every third one again, which must be
 * unspilled. */
static void keep(size_t count)
{
    fixture_t fixture = open_fixture(LARGE_COUNT);
    tow_array_t **inputs = make_list(count);
    tow_array_t **results = make_list(count);
    for (size_t i = 0; i < count; i++) {
        inputs[i] = upload(fixture.slice, fixture.count, i);
        check(tow_function_call(fixture.twice, fixture.slice, &inputs[i], 1,
                                &results[i], 1));
    }
    for (size_t i = 0; i < count; i += 3) {
        tow_array_t *again;
        check(tow_function_call(fixture.twice, fixture.slice, &results[i], 1,
                                &again, 1));
        expect(again, fixture.count, i, 4);
        tow_array_release(again);
    }
    for (size_t i = 0; i < count; i++) {
        expect(inputs[i], fixture.count, i, 1);
        expect(results[i], fixture.count, i, 2);
    }
    release_list(inputs, count);
    release_list(results, count);
    printf("memory: %zu arrays are right\n", 2 * count);
    close_fixture(&fixture);
}

static tow_program_t *trace_pipeline(tow_client_t *client, tow_slice_t *first,
                                     tow_slice_t *second)
{
    tow_program_t *program;
    tow_array_t *x, *y, *moved, *z;
    tow_function_t *one = compile_twice(first, LARGE_COUNT);
    tow_function_t *other = compile_twice(second, LARGE_COUNT);
    check(tow_program_create(client, "pipeline", &program));
    check(tow_program_argument(
        program, first, &TOW_ARRAY_TYPE(TOW_TYPE_F32, LARGE_COUNT), false, &x));
    check(tow_function_call(one, first, &x, 1, &y, 1));
    check(tow_array_transfer(
        y, TOW_WITH(tow_transfer_options_t, .slice = second), &moved));
    check(tow_function_call(other, second, &moved, 1, &z, 1));
    check(tow_program_result(program, z));
    check(tow_program_finish(program));
    tow_array_release(x);
    tow_array_release(y);
    tow_array_release(moved);
    tow_array_release(z);
    tow_function_release(one);
    tow_function_release(other);
    return program;
}

static void pipeline(size_t count)
{
    fixture_t fixture = open_fixture(LARGE_COUNT);
    tow_slice_t *first = open_devices(fixture.client, 1);
    tow_slice_t *second = open_devices(fixture.client, 1);
    tow_program_t *program = trace_pipeline(fixture.client, first, second);
    tow_array_t **inputs = make_list(count);
    tow_array_t **results = make_list(count);
    for (size_t i = 0; i < count; i++) {
        inputs[i] = upload(first, fixture.count, i);
        check(tow_program_run(program, &inputs[i], 1, &results[i], 1));
    }
    for (size_t i = 0; i < count; i++)
        expect(results[i], fixture.count, i, 4);
    release_list(inputs, count);
    release_list(results, count);
    tow_program_release(program);
    tow_slice_release(first);
    tow_slice_release(second);
    printf("memory: %zu arrays are right\n", count);
    close_fixture(&fixture);
}

static void loop(size_t count, size_t array_count)
{
    fixture_t fixture = open_fixture(array_count);
    tow_array_t *last = NULL;
    for (size_t i = 0; i < count; i++) {
        tow_array_t *inputs = upload(fixture.slice, fixture.count, i % 1000);
        if (last != NULL) tow_array_release(last);
        check(tow_function_call(fixture.twice, fixture.slice, &inputs, 1, &last,
                                1));
        tow_array_release(inputs);
    }
    expect(last, fixture.count, (count - 1) % 1000, 2);
    tow_array_release(last);
    printf("memory: %zu arrays went by\n", count);
    close_fixture(&fixture);
}

/* The result alone is larger than any device of the test; later operations
 * succeed. */
static void never(void)
{
    static const char text[] =
        "func.func @main(%x: tensor<f32>) -> tensor<67108864xf32> {\n"
        "  %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> "
        "tensor<67108864xf32>\n"
        "  return %y : tensor<67108864xf32>\n}\n";
    fixture_t fixture = open_fixture(LARGE_COUNT);
    tow_function_t *large;
    tow_array_t *number, *result;
    const float one = 1;
    check(tow_function_compile(
        fixture.slice,
        TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)), &large));
    check(tow_array_upload(
        fixture.slice,
        TOW_WITH(tow_upload_options_t,
                 .type = {.struct_size = sizeof(tow_array_type_t),
                          .type = TOW_TYPE_F32},
                 .bytes = &one, .size = sizeof(one), .replicated = true),
        &number));
    check(tow_function_call(large, fixture.slice, &number, 1, &result, 1));
    tow_status_t status = tow_array_wait(result, -1);
    printf("code %d: %s\n", (int)tow_status_code(status),
           tow_status_message(status));
    tow_status_release(status);
    tow_array_release(result);
    tow_array_release(number);
    tow_function_release(large);
    close_fixture(&fixture);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const size_t count = argc > 2 ? (size_t)atol(argv[2]) : 0;
    if (strcmp(mode, "keep") == 0)
        keep(count);
    else if (strcmp(mode, "pipeline") == 0)
        pipeline(count);
    else if (strcmp(mode, "loop") == 0)
        loop(count, LARGE_COUNT);
    else if (strcmp(mode, "small") == 0)
        loop(count, SMALL_COUNT);
    else if (strcmp(mode, "never") == 0)
        never();
    else
        return 2;
    return 0;
}
