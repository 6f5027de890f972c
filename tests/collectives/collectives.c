/* Collectives between computations, through the public C API, on the cluster of
 * the environment; tests/integration/test_collectives.py runs it.
 *
 *     collectives check     all types, reductions, groups: bytes must be right
 *     collectives refuse    invalid collectives are refused with a message
 *     collectives release   a small result is used before large ones arrive
 *     collectives forever   16 MiB repeatedly until an error
 *     collectives bench     4 x 16 MiB, and the same inside a computation */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define BIG_BYTES   ((int64_t)16 << 20)
#define DEVICES_MAX 64

typedef struct fixture {
    tow_client_t *client;
    tow_slice_t *slice; /* all devices */
    size_t count;
} fixture_t;

/* -- Numbers --------------------------------------------------------------- */

typedef struct type_row {
    tow_type_t type;
    size_t size;
    enum {
        INTEGER,
        FLOAT,
        HALF,
        BRAIN,
        PREDICATE
    } form;
    bool is_complex;
} type_row_t;

static const type_row_t types[] = {
    {TOW_TYPE_PRED, 1, PREDICATE, false}, {TOW_TYPE_S8, 1, INTEGER, false},
    {TOW_TYPE_S16, 2, INTEGER, false},    {TOW_TYPE_S32, 4, INTEGER, false},
    {TOW_TYPE_S64, 8, INTEGER, false},    {TOW_TYPE_U8, 1, INTEGER, false},
    {TOW_TYPE_U16, 2, INTEGER, false},    {TOW_TYPE_U32, 4, INTEGER, false},
    {TOW_TYPE_U64, 8, INTEGER, false},    {TOW_TYPE_F16, 2, HALF, false},
    {TOW_TYPE_F32, 4, FLOAT, false},      {TOW_TYPE_F64, 8, FLOAT, false},
    {TOW_TYPE_BF16, 2, BRAIN, false},     {TOW_TYPE_C64, 8, FLOAT, true},
    {TOW_TYPE_C128, 16, FLOAT, true},
};
#define TYPE_COUNT (sizeof(types) / sizeof(types[0]))

/* A small integer, exactly, in that type. */
static void encode(const type_row_t *row, uint64_t number, uint8_t *out)
{
    const float as_float = (float)number;
    const double as_double = (double)number;
    uint32_t bits;
    memset(out, 0, row->size);
    memcpy(&bits, &as_float, sizeof(bits));
    switch (row->form) {
    case PREDICATE: out[0] = number > 0; break;
    case INTEGER: memcpy(out, &number, row->size); break; /* Little-endian. */
    case BRAIN: memcpy(out, (uint8_t *)&bits + 2, 2); break;
    case HALF:
        if (number > 0) {
            const uint16_t half = (uint16_t)(((bits >> 23) - 127 + 15) << 10 |
                                             (bits >> 13 & 0x3ff));
            memcpy(out, &half, 2);
        }
        break;
    case FLOAT:
        if (row->size == (row->is_complex ? 8 : 4))
            memcpy(out, &as_float, 4);
        else
            memcpy(out, &as_double, 8);
    }
}

/* Element `at` of a shard, before the collective. */
static uint64_t number_of(const type_row_t *row, size_t shard, size_t at)
{
    const uint64_t small = (shard * 7 + at * 3 + at / 5) % 2;
    return row->form == PREDICATE ? small : 1 + small;
}

static uint64_t combine(tow_reduction_t how, const type_row_t *row, uint64_t a,
                        uint64_t b)
{
    const bool is_pred = row->form == PREDICATE;
    switch (how) {
    case TOW_REDUCE_SUM: return is_pred ? (a | b) : a + b;
    case TOW_REDUCE_PRODUCT: return a * b;
    case TOW_REDUCE_MIN: return a < b ? a : b;
    default: return a > b ? a : b;
    }
}

/* -- Fixture --------------------------------------------------------------- */

static fixture_t fixture_open(void)
{
    fixture_t fixture;
    check(tow_client_open(NULL, &fixture.client));
    check(tow_slice_open(
        fixture.client,
        TOW_WITH(tow_slice_options_t, .island = TOW_ISLAND_EVERY),
        &fixture.slice));
    fixture.count = tow_slice_device_count(fixture.slice);
    return fixture;
}

static void fixture_close(fixture_t *fixture)
{
    tow_slice_release(fixture->slice);
    tow_client_release(fixture->client);
}

/* NULL groups: all. Otherwise rows or columns of two rows. */
typedef enum groups {
    ALL,
    ROWS,
    COLUMNS,
    GROUPS_COUNT
} groups_t;

static bool is_together(groups_t groups, size_t count, size_t a, size_t b)
{
    const size_t columns = count / 2;
    return groups == ALL || (groups == ROWS ? a / columns == b / columns
                                            : a % columns == b % columns);
}

static tow_all_reduce_options_t options_of(groups_t groups, size_t count,
                                           tow_reduction_t how)
{
    tow_all_reduce_options_t options = {.struct_size = sizeof(options),
                                        .reduction = how};
    if (groups == ALL) return options;
    options.mesh_rank = 2;
    options.mesh_dims[0] = 2;
    options.mesh_dims[1] = (uint32_t)count / 2;
    options.axis_count = 1;
    options.axes[0] = groups == ROWS;
    return options;
}

/* -- Check ----------------------------------------------------------------- */

static tow_array_t *upload(const fixture_t *fixture, const type_row_t *row,
                           size_t numbers)
{
    const size_t size = fixture->count * numbers * row->size;
    uint8_t *bytes = malloc(size);
    tow_array_t *array;
    for (size_t i = 0; i < fixture->count * numbers; i++)
        encode(row, number_of(row, i / numbers, i % numbers),
               bytes + i * row->size);
    check(tow_array_upload(
        fixture->slice,
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(row->type, (int64_t)numbers),
                 .bytes = bytes, .size = size),
        &array));
    free(bytes);
    return array;
}

static void check_result(const fixture_t *fixture, const type_row_t *row,
                         tow_reduction_t how, groups_t groups, size_t numbers,
                         tow_array_t *array)
{
    uint8_t *got = malloc(numbers * row->size);
    for (size_t shard = 0; shard < fixture->count; shard++) {
        check(tow_array_download(array, shard, got, numbers * row->size));
        for (size_t i = 0; i < numbers; i++) {
            uint64_t wanted = UINT64_MAX;
            uint8_t bytes[16];
            for (size_t k = 0; k < fixture->count; k++) {
                if (!is_together(groups, fixture->count, shard, k)) continue;
                const uint64_t number = number_of(row, k, i);
                wanted = wanted == UINT64_MAX
                             ? number
                             : combine(how, row, wanted, number);
            }
            encode(row, wanted, bytes);
            if (memcmp(bytes, got + i * row->size, row->size) == 0) continue;
            fprintf(stderr,
                    "collectives: type %d, reduction %d, groups %d, "
                    "element %zu of shard %zu is wrong\n",
                    (int)row->type, (int)how, (int)groups, i, shard);
            exit(1);
        }
    }
    free(got);
}

/* Three tensors of one type in one collective: one small enough to be sent from
 * each device to all, one with several owners, one with many chunks (f64). */
static size_t check_type(const fixture_t *fixture, const type_row_t *row,
                         tow_reduction_t how, groups_t groups)
{
    const size_t numbers[3] = {3, 20000, row->size == 8 ? 700000 : 30000};
    const tow_all_reduce_options_t options =
        options_of(groups, fixture->count, how);
    tow_array_t *arrays[3], *results[3];
    for (size_t i = 0; i < 3; i++)
        arrays[i] = upload(fixture, row, numbers[i]);
    check(tow_arrays_all_reduce(arrays, 3, &options, results));
    for (size_t i = 0; i < 3; i++) {
        check_result(fixture, row, how, groups, numbers[i], results[i]);
        tow_array_release(results[i]);
        tow_array_release(arrays[i]);
    }
    return 3;
}

static void check_all(const fixture_t *fixture)
{
    size_t count = 0;
    const int groups_end = fixture->count % 2 == 0 ? GROUPS_COUNT : ROWS;
    for (size_t i = 0; i < TYPE_COUNT; i++)
        for (int how = TOW_REDUCE_SUM; how <= TOW_REDUCE_MAX; how++)
            for (int groups = 0; groups < groups_end; groups++) {
                const bool is_few = groups != ALL && types[i].size != 4;
                if (types[i].is_complex && how > TOW_REDUCE_PRODUCT) continue;
                if (is_few) continue; /* Groups do not depend on types. */
                count += check_type(fixture, &types[i], (tow_reduction_t)how,
                                    (groups_t)groups);
            }
    printf("collectives: %zu tensors on %zu devices are right\n", count,
           fixture->count);
}

/* -- Refuse ---------------------------------------------------------------- */

static void expect_refusal(tow_status_t status, const char *what)
{
    if (status == TOW_OK) {
        fprintf(stderr, "collectives: %s was not refused\n", what);
        exit(1);
    }
    printf("%s: %s: %s\n", what, tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
}

static void refuse(const fixture_t *fixture)
{
    const type_row_t *complex_row = &types[13], *float_row = &types[10];
    tow_array_t *complex_array = upload(fixture, complex_row, 3);
    tow_array_t *array = upload(fixture, float_row, 3), *result = NULL;
    tow_slice_t *one;
    check(tow_slice_open(fixture->client,
                         TOW_WITH(tow_slice_options_t, .dims = {1}), &one));
    const fixture_t small = {fixture->client, one, 1};
    tow_array_t *other = upload(&small, float_row, 3), *results[2];
    tow_all_reduce_options_t options = options_of(ROWS, 2, TOW_REDUCE_SUM);
    options.mesh_dims[0] = 5000;
    expect_refusal(tow_arrays_all_reduce(&array, 1, &options, &result),
                   "a mesh of another size");
    options = options_of(ALL, 2, TOW_REDUCE_MAX);
    expect_refusal(tow_arrays_all_reduce(&complex_array, 1, &options, &result),
                   "the largest of complex numbers");
    expect_refusal(tow_arrays_all_reduce((tow_array_t *[]){array, other}, 2,
                                         NULL, results),
                   "arrays of two slices");
    check_type(fixture, float_row, TOW_REDUCE_SUM, ALL);
    tow_array_release(other);
    tow_array_release(array);
    tow_array_release(complex_array);
    tow_slice_release(one);
}

/* -- Release --------------------------------------------------------------- */

static const char double_text[] =
    "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n"
    "  %y = stablehlo.add %x, %x : tensor<3xf32>\n"
    "  return %y : tensor<3xf32>\n"
    "}\n";

static tow_array_t *upload_big(const fixture_t *fixture)
{
    tow_array_t *array;
    void *bytes = calloc(1, (size_t)BIG_BYTES);
    check(tow_array_upload(
        fixture->slice,
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, BIG_BYTES / 4),
                 .bytes = bytes, .size = (size_t)BIG_BYTES, .replicated = true),
        &array));
    free(bytes);
    return array;
}

/* Arguments and values: the small tensor, then the large ones. */
static tow_program_t *trace_release(const fixture_t *fixture, size_t large)
{
    tow_function_t *twice;
    tow_program_t *program;
    tow_array_t *values[5], *summed[5], *used;
    check(tow_function_compile(fixture->slice,
                               TOW_WITH(tow_source_t, .bytes = double_text,
                                        .size = strlen(double_text)),
                               &twice));
    check(tow_program_create(fixture->client, "release", &program));
    for (size_t i = 0; i <= large; i++) {
        const tow_array_type_t type =
            TOW_ARRAY_TYPE(TOW_TYPE_F32, i == 0 ? 3 : BIG_BYTES / 4);
        check(tow_program_argument(program, fixture->slice, &type, false,
                                   &values[i]));
    }
    check(tow_arrays_all_reduce(values, 1 + large, NULL, summed));
    check(tow_function_call(twice, fixture->slice, summed, 1, &used, 1));
    check(tow_program_result(program, used));
    for (size_t i = 1; i <= large; i++)
        check(tow_program_result(program, summed[i]));
    check(tow_program_finish(program));
    for (size_t i = 0; i <= large; i++) {
        tow_array_release(values[i]);
        tow_array_release(summed[i]);
    }
    tow_array_release(used);
    tow_function_release(twice);
    return program;
}

/* Whether the result that uses the small tensor is ready before the large ones.
 * A run has ended when all of it has. */
static bool was_first(const fixture_t *fixture, tow_program_t *program,
                      tow_array_t *const *arguments, size_t large)
{
    tow_array_t *results[5];
    float values[3];
    check(tow_program_run(program, arguments, 1 + large, results, 1 + large));
    check(tow_array_download(results[0], fixture->count - 1, values,
                             sizeof(values)));
    const bool is_first = !tow_array_is_ready(results[large]);
    for (size_t i = 0; i <= large; i++) {
        check(tow_array_wait(results[i], -1));
        tow_array_release(results[i]);
    }
    return is_first;
}

static void release(const fixture_t *fixture)
{
    enum {
        LARGE = 4,
        TRIES = 20
    };
    tow_program_t *program = trace_release(fixture, LARGE);
    tow_array_t *arguments[1 + LARGE] = {upload(fixture, &types[10], 3)};
    bool is_first = false;
    for (size_t i = 1; i <= LARGE; i++)
        arguments[i] = upload_big(fixture);
    for (int i = 0; i < TRIES && !is_first; i++)
        is_first = was_first(fixture, program, arguments, LARGE);
    printf("collectives: the small tensor was %s\n",
           is_first ? "used before the large ones were there" : "not first");
    for (size_t i = 0; i <= LARGE; i++)
        tow_array_release(arguments[i]);
    tow_program_release(program);
}

/* -- Forever, bench -------------------------------------------------------- */

/* Ends with the first error, which it prints. */
static void forever(const fixture_t *fixture)
{
    tow_array_t *array = upload_big(fixture);
    tow_status_t status = tow_array_wait(array, -1);
    printf("collectives: under way\n");
    fflush(stdout);
    while (status == TOW_OK) {
        tow_array_t *result = NULL;
        status = tow_arrays_all_reduce(&array, 1, NULL, &result);
        if (status == TOW_OK) status = tow_array_wait(result, -1);
        if (result != NULL) tow_array_release(result);
    }
    printf("%s: %s\n", tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
    tow_array_release(array);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double run_ms(tow_program_t *program, tow_array_t *const *arguments)
{
    tow_array_t *results[4];
    const double start = now_ms();
    check(tow_program_run(program, arguments, 4, results, 4));
    check(tow_array_wait(results[3], -1));
    const double span = now_ms() - start;
    for (size_t i = 0; i < 4; i++)
        tow_array_release(results[i]);
    return span;
}

#define BIG "tensor<4194304xf32>"
#define SUM(to, from)                                      \
    "  %" to " = \"stablehlo.all_reduce\"(%" from ") ({\n" \
    "  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"          \
    "    %z = stablehlo.add %x, %y : tensor<f32>\n"        \
    "    \"stablehlo.return\"(%z) : (tensor<f32>) -> ()\n" \
    "  }) {replica_groups = dense<> : tensor<0x0xi64>}"    \
    " : (" BIG ") -> " BIG "\n"

static const char inside_text[] =
    "func.func @main(%a: " BIG ", %b: " BIG ", %c: " BIG ", %d: " BIG
    ") -> (" BIG ", " BIG ", " BIG ", " BIG ") {\n" SUM("e", "a") SUM("f", "b")
        SUM("g", "c") SUM("h", "d") "  return %e, %f, %g, %h : " BIG ", " BIG
                                    ", " BIG ", " BIG "\n}\n";

static tow_program_t *trace_bench(const fixture_t *fixture, bool is_inside)
{
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_F32, BIG_BYTES / 4);
    tow_program_t *program;
    tow_array_t *values[4], *summed[4];
    check(tow_program_create(fixture->client, "bench", &program));
    for (size_t i = 0; i < 4; i++)
        check(tow_program_argument(program, fixture->slice, &type, false,
                                   &values[i]));
    if (is_inside) {
        tow_function_t *inside;
        check(tow_function_compile(fixture->slice,
                                   TOW_WITH(tow_source_t, .bytes = inside_text,
                                            .size = strlen(inside_text)),
                                   &inside));
        check(tow_function_call(inside, fixture->slice, values, 4, summed, 4));
        tow_function_release(inside);
    } else {
        check(tow_arrays_all_reduce(values, 4, NULL, summed));
    }
    for (size_t i = 0; i < 4; i++)
        check(tow_program_result(program, summed[i]));
    check(tow_program_finish(program));
    for (size_t i = 0; i < 4; i++) {
        tow_array_release(values[i]);
        tow_array_release(summed[i]);
    }
    return program;
}

static void bench(const fixture_t *fixture)
{
    enum {
        ROUNDS = 15
    };
    tow_program_t *programs[2] = {trace_bench(fixture, false),
                                  trace_bench(fixture, true)};
    tow_array_t *arguments[4];
    double spans[2][ROUNDS];
    for (size_t i = 0; i < 4; i++)
        arguments[i] = upload_big(fixture);
    for (size_t round = 0; round < 2 + ROUNDS; round++)
        for (size_t i = 0; i < 2; i++) {
            const double span = run_ms(programs[i], arguments);
            if (round >= 2) spans[i][round - 2] = span;
        }
    for (size_t i = 0; i < 2; i++) {
        qsort(spans[i], ROUNDS, sizeof(double), by_size);
        printf("4 x 16 MiB on %zu devices, %s: %.1f ms [%.1f-%.1f]\n",
               fixture->count,
               i == 0 ? "between computations" : "inside of one",
               spans[i][ROUNDS / 2], spans[i][0], spans[i][ROUNDS - 1]);
        tow_program_release(programs[i]);
    }
    for (size_t i = 0; i < 4; i++)
        tow_array_release(arguments[i]);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    fixture_t fixture = fixture_open();
    if (strcmp(mode, "check") == 0)
        check_all(&fixture);
    else if (strcmp(mode, "refuse") == 0)
        refuse(&fixture);
    else if (strcmp(mode, "release") == 0)
        release(&fixture);
    else if (strcmp(mode, "forever") == 0)
        forever(&fixture);
    else if (strcmp(mode, "bench") == 0)
        bench(&fixture);
    else
        fprintf(stderr,
                "usage: collectives check|refuse|release|forever|bench\n");
    fixture_close(&fixture);
    return 0;
}
