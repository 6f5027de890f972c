/* Many large values from one slice to another in one program, through the C
 * interface; tests/integration/test_late.py runs it, on two workers with one
 * device each.
 *
 *     late ORDER RUNS
 *
 * 64 values of 1 MiB are computed on the first device, each from the one
 * before, and added up on the second. ORDER: in-turn (each is added before the
 * next is computed), after (all are computed first) or reversed (the last one is
 * added first). Prints the time of a run: the fastest of RUNS. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define VALUES  64
#define NUMBERS (1 << 18)
#define BYTES   ((size_t)NUMBERS * sizeof(int32_t))

#define ARRAY "tensor<262144xi32>"
static const char plus_text[] =
    "func.func @main(%x: " ARRAY ") -> " ARRAY " {\n"
    "  %one = stablehlo.constant dense<1> : " ARRAY "\n"
    "  %y = stablehlo.add %x, %one : " ARRAY "\n"
    "  return %y : " ARRAY "\n}\n";
static const char add_text[] =
    "func.func @main(%x: " ARRAY ", %y: " ARRAY ") -> " ARRAY " {\n"
    "  %z = stablehlo.add %x, %y : " ARRAY "\n"
    "  return %z : " ARRAY "\n}\n";

typedef struct fixture {
    tow_client_t *client;
    tow_slice_t *slices[2];
    tow_function_t *plus, *add;
    tow_array_t *arguments[2]; /* on the first and on the second slice */
    int32_t *bytes;
} fixture_t;

/* -- The program ------------------------------------------------------------ */

typedef struct builder {
    const fixture_t *fixture;
    tow_array_t *values[VALUES + 1]; /* 0: the argument */
    tow_array_t *sum;
} builder_t;

static void compute(builder_t *builder, size_t index)
{
    check(tow_function_call(builder->fixture->plus, builder->fixture->slices[0],
                            &builder->values[index], 1,
                            &builder->values[index + 1], 1));
}

static void add(builder_t *builder, size_t index)
{
    tow_array_t *inputs[] = {builder->sum, builder->values[index + 1]};
    check(tow_function_call(builder->fixture->add, builder->fixture->slices[1],
                            inputs, 2, &builder->sum, 1));
    tow_array_release(inputs[0]);
}

static void add_nodes(builder_t *builder, const char *order)
{
    const bool is_in_turn = strcmp(order, "in-turn") == 0;
    const bool is_reversed = strcmp(order, "reversed") == 0;
    for (size_t i = 0; i < VALUES; i++) {
        compute(builder, i);
        if (is_in_turn) add(builder, i);
    }
    for (size_t i = 0; !is_in_turn && i < VALUES; i++)
        add(builder, is_reversed ? VALUES - 1 - i : i);
}

static tow_program_t *make_program(const fixture_t *fixture, const char *order)
{
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_S32, NUMBERS);
    builder_t builder = {.fixture = fixture};
    tow_program_t *program;
    check(tow_program_create(fixture->client, "late", &program));
    check(tow_program_argument(program, fixture->slices[0], &type, false,
                               &builder.values[0]));
    check(tow_program_argument(program, fixture->slices[1], &type, false,
                               &builder.sum));
    add_nodes(&builder, order);
    check(tow_program_result(program, builder.sum));
    check(tow_program_finish(program));
    for (size_t i = 0; i <= VALUES; i++)
        tow_array_release(builder.values[i]);
    tow_array_release(builder.sum);
    return program;
}

/* -- The fixture ------------------------------------------------------------ */

static tow_function_t *compile(tow_slice_t *slice, const char *text)
{
    tow_function_t *function;
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

static tow_array_t *upload(fixture_t *fixture, tow_slice_t *slice)
{
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_S32, NUMBERS);
    tow_array_t *array;
    for (size_t i = 0; i < NUMBERS; i++)
        fixture->bytes[i] = (int32_t)i;
    check(tow_array_upload(slice,
                           TOW_WITH(tow_upload_options_t, .type = type,
                                    .bytes = fixture->bytes, .size = BYTES),
                           &array));
    return array;
}

static fixture_t open_fixture(void)
{
    fixture_t fixture = {.bytes = malloc(BYTES)};
    tow_slice_t *all;
    check(tow_client_open(NULL, &fixture.client));
    check(tow_slice_open(fixture.client,
                         TOW_WITH(tow_slice_options_t, .dims = {2}), &all));
    for (size_t i = 0; i < 2; i++) {
        tow_device_t device = {.struct_size = sizeof(device)};
        check(tow_slice_device(all, i, &device));
        check(tow_slice_open(fixture.client,
                             TOW_WITH(tow_slice_options_t,
                                      .devices = &device.id, .device_count = 1),
                             &fixture.slices[i]));
        fixture.arguments[i] = upload(&fixture, fixture.slices[i]);
    }
    fixture.plus = compile(fixture.slices[0], plus_text);
    fixture.add = compile(fixture.slices[1], add_text);
    tow_slice_release(all);
    return fixture;
}

static void close_fixture(fixture_t *fixture)
{
    for (size_t i = 0; i < 2; i++) {
        tow_array_release(fixture->arguments[i]);
        tow_slice_release(fixture->slices[i]);
    }
    tow_function_release(fixture->plus);
    tow_function_release(fixture->add);
    tow_client_release(fixture->client);
    free(fixture->bytes);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int64_t run(fixture_t *fixture, tow_program_t *program)
{
    tow_array_t *result;
    const int64_t start_ns = now_ns();
    check(tow_program_run(program, fixture->arguments, 2, &result, 1));
    check(tow_array_wait(result, -1));
    const int64_t span_ns = now_ns() - start_ns;
    check(tow_array_download(result, 0, fixture->bytes, BYTES));
    for (int32_t i = 0; i < NUMBERS; i++) {
        const int32_t wanted = i + VALUES * i + VALUES * (VALUES + 1) / 2;
        if (fixture->bytes[i] == wanted) continue;
        fprintf(stderr, "late: number %d is %d instead of %d\n", i,
                fixture->bytes[i], wanted);
        exit(1);
    }
    tow_array_release(result);
    return span_ns;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: late in-turn|after|reversed RUNS\n");
        return 2;
    }
    fixture_t fixture = open_fixture();
    tow_program_t *program = make_program(&fixture, argv[1]);
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < atoi(argv[2]); i++) {
        const int64_t span_ns = run(&fixture, program);
        if (span_ns < best_ns) best_ns = span_ns;
    }
    printf("late: all are right, %lld us\n", (long long)(best_ns / 1000));
    tow_program_release(program);
    close_fixture(&fixture);
    return 0;
}
