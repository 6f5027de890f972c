/* host_calls FILE SYMBOL COUNT [RUNS]: programs with a host function of FILE.
 *
 * Two halves of the devices. On the first: y = x + 1, then SYMBOL, whose output
 * may have any size; on the second, after a transfer: `widen`, and z = w + 1.
 * COUNT elements per shard, RUNS runs in flight. Prints how many elements each
 * shard kept, checks all, and prints errors as "CODE: text". Exits with 0
 * unless a value is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#define DEVICES  2 /* of each half */
#define RUNS_MAX 64
#define LIMIT_MS 500

typedef struct test {
    const char *file, *symbol;
    int64_t count;
    tow_client_t *client;
    tow_slice_t *halves[2];
    tow_program_t *program;
} test_t;

/* False: the error was printed. */
static bool try(tow_status_t status)
{
    if (status == TOW_OK) return true;
    printf("%s: %s\n", tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
    return false;
}

static void must(tow_status_t status)
{
    if (try(status)) return;
    fflush(stdout);
    exit(1);
}

static tow_array_type_t type_of(const test_t *test)
{
    return TOW_ARRAY_TYPE(TOW_TYPE_F32, test->count);
}

static tow_function_t *add_one(const test_t *test, size_t half)
{
    char text[512];
    const long long n = (long long)test->count;
    tow_function_t *function;
    snprintf(text, sizeof(text),
             "func.func @main(%%x: tensor<%lldxf32>) -> tensor<%lldxf32> {\n"
             "  %%one = stablehlo.constant dense<1.0> : tensor<%lldxf32>\n"
             "  %%y = stablehlo.add %%x, %%one : tensor<%lldxf32>\n"
             "  return %%y : tensor<%lldxf32>\n"
             "}\n",
             n, n, n, n, n);
    must(tow_function_compile(
        test->halves[half],
        TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

static bool load(const test_t *test, size_t half, const char *symbol,
                 uint32_t bounds_in, uint32_t bounds_out, tow_function_t **out)
{
    const tow_host_type_t in = {type_of(test), bounds_in};
    const tow_host_type_t result = {type_of(test), bounds_out};
    return try(tow_host_function_load(
        test->halves[half],
        TOW_WITH(tow_host_function_options_t, .path = test->file,
                 .symbol = symbol, .arguments = &in, .argument_count = 1,
                 .results = &result, .result_count = 1,
                 .time_limit_ms = LIMIT_MS),
        out));
}

static tow_array_t *call(const test_t *test, size_t half,
                         tow_function_t *take_function, tow_array_t *take_input)
{
    tow_array_t *output;
    must(tow_function_call(take_function, test->halves[half], &take_input, 1,
                           &output, 1));
    tow_function_release(take_function);
    tow_array_release(take_input);
    return output;
}

static bool trace(test_t *test)
{
    tow_function_t *function, *widen;
    tow_array_t *x, *moved;
    if (!load(test, 0, test->symbol, 0, 1, &function)) return false;
    if (!load(test, 1, "widen", 1, 0, &widen)) return false;
    must(tow_program_create(test->client, "host", &test->program));
    const tow_array_type_t type = type_of(test);
    must(
        tow_program_argument(test->program, test->halves[0], &type, false, &x));
    tow_array_t *kept =
        call(test, 0, function, call(test, 0, add_one(test, 0), x));
    must(tow_program_result(test->program, kept));
    must(tow_array_transfer(
        kept, TOW_WITH(tow_transfer_options_t, .slice = test->halves[1]),
        &moved));
    tow_array_release(kept);
    must(tow_program_result(test->program, moved));
    tow_array_t *z =
        call(test, 1, add_one(test, 1), call(test, 1, widen, moved));
    must(tow_program_result(test->program, z));
    tow_array_release(z);
    return try(tow_program_finish(test->program));
}

/* Element i of shard s of run r, as uploaded: the first, plus one, is the
 * number of elements to keep. */
static float given(const test_t *test, size_t run, size_t shard, int64_t i)
{
    const int64_t kept =
        ((int64_t)run * 7 + (int64_t)shard * 3) % (test->count + 1);
    return i == 0 ? (float)(kept - 1) : (float)(i % 97);
}

static tow_array_t *upload(const test_t *test, size_t run)
{
    tow_array_t *array;
    const size_t count = (size_t)test->count * DEVICES;
    float *values = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = given(test, run, i / (size_t)test->count,
                          (int64_t)(i % (size_t)test->count));
    must(tow_array_upload(test->halves[0],
                          TOW_WITH(tow_upload_options_t, .type = type_of(test),
                                   .bytes = values,
                                   .size = count * sizeof(float)),
                          &array));
    free(values);
    return array;
}

/* The number of elements of result `which` in a shard, or -1 for none. */
static bool check_shard(const test_t *test, size_t run, size_t which,
                        tow_array_t *array, size_t shard, float *room)
{
    tow_array_type_t type = {.struct_size = sizeof(type)};
    size_t size;
    if (!try(tow_array_download_sized(
            array, shard, room, tow_array_shard_size(array), &type, &size)))
        return false;
    const int64_t kept = (int64_t)given(test, run, shard, 0) + 1;
    const int64_t wanted = which < 2 ? kept : test->count;
    bool is_right =
        type.dims[0] == wanted && size == (size_t)wanted * sizeof(float);
    for (int64_t i = 0; is_right && i < wanted; i++) {
        const float value = i < kept ? given(test, run, shard, i) + 1 : 0.0F;
        is_right = room[i] == value + (which == 2 ? 1 : 0);
    }
    if (is_right) return true;
    printf("run %zu, result %zu, shard %zu is wrong: %lld elements\n", run,
           which, shard, (long long)type.dims[0]);
    exit(1);
}

static size_t check_run(const test_t *test, size_t run, tow_array_t **results)
{
    size_t right = 0;
    float *room = malloc((size_t)test->count * sizeof(float) + 1);
    for (size_t which = 0; which < 3; which++) {
        bool is_right = true;
        for (size_t shard = 0; shard < DEVICES && is_right; shard++)
            is_right =
                check_shard(test, run, which, results[which], shard, room);
        right += is_right;
        tow_array_release(results[which]);
    }
    free(room);
    return right;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    test_t test = {.file = argv[1], .symbol = argv[2], .count = atoll(argv[3])};
    const size_t runs = argc > 4 ? (size_t)atoll(argv[4]) : 1;
    if (test.count < 1 || runs > RUNS_MAX) return 2;
    must(tow_client_open(NULL, &test.client));
    for (size_t i = 0; i < 2; i++)
        must(tow_slice_open(test.client,
                            TOW_WITH(tow_slice_options_t, .dims = {DEVICES}),
                            &test.halves[i]));
    tow_array_t *results[RUNS_MAX][3];
    size_t right = 0;
    if (trace(&test)) {
        for (size_t i = 0; i < runs; i++) {
            tow_array_t *x = upload(&test, i);
            must(tow_program_run(test.program, &x, 1, results[i], 3));
            tow_array_release(x);
        }
        for (size_t i = 0; i < runs; i++)
            right += check_run(&test, i, results[i]);
    }
    printf("%zu of %zu results are right\n", right, 3 * runs);
    tow_program_release(test.program);
    for (size_t i = 0; i < 2; i++)
        tow_slice_release(test.halves[i]);
    tow_client_release(test.client);
    return 0;
}
