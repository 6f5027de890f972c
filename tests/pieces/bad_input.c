/* Clients that are hard on the scheduler, on real devices;
 * tests/integration/test_bad_input.py runs it.
 *
 *     bad_input slow      one computation of seconds, on the first device
 *     bad_input brief     many short calls, on the last device
 *     bad_input fickle    runs that take 1,000 times as long as those before,
 *                         and then a thousandth again
 *     bad_input cancel    a run that is cancelled between two of its pieces
 *     bad_input flood     thousands of runs at once, whose results are dropped
 *     bad_input large     a run that needs 64 MiB of a device
 *
 * All but `brief` use the first device. A mode that succeeds ends with "right".
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define STEPS        40 /* more than are granted at once while nothing is known */
#define SLOW_COUNT   10000000
#define FICKLE_COUNT 20000
#define CANCEL_COUNT 40000
#define BRIEF_CALLS  200
#define FLOOD_RUNS   3000
#define LARGE_VALUES 64
#define CANCEL_NS    200000000

/* n numbers of a random sequence that begins with x: nothing to optimise. */
#define NUMBERS 4096
#define STATE   "tensor<4096xi32>"
static const char count_text[] =
    "func.func @main(%x: " STATE ", %n: tensor<i32>) -> " STATE " {\n"
    "  %zero = stablehlo.constant dense<0> : tensor<i32>\n"
    "  %one = stablehlo.constant dense<1> : tensor<i32>\n"
    "  %a = stablehlo.constant dense<1664525> : " STATE "\n"
    "  %b = stablehlo.constant dense<1013904223> : " STATE "\n"
    "  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, " STATE "\n"
    "    cond {\n"
    "      %c = stablehlo.compare LT, %i, %n :"
    " (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
    "      stablehlo.return %c : tensor<i1>\n"
    "    } do {\n"
    "      %j = stablehlo.add %i, %one : tensor<i32>\n"
    "      %w = stablehlo.multiply %v, %a : " STATE "\n"
    "      %u = stablehlo.add %w, %b : " STATE "\n"
    "      stablehlo.return %j, %u : tensor<i32>, " STATE "\n"
    "    }\n"
    "  return %r#1 : " STATE "\n}\n";

static uint32_t advance(uint32_t number, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        number = number * 1664525u + 1013904223u;
    return number;
}

#define ARRAY "tensor<262144xi32>"
static const char add_text[] =
    "func.func @main(%x: " ARRAY ", %y: " ARRAY ") -> " ARRAY " {\n"
    "  %z = stablehlo.add %x, %y : " ARRAY "\n"
    "  return %z : " ARRAY "\n}\n";

static const tow_array_type_t scalar = {.struct_size = sizeof(scalar),
                                        .type = TOW_TYPE_S32};
static const tow_array_type_t state = {.struct_size = sizeof(state),
                                       .type = TOW_TYPE_S32,
                                       .rank = 1,
                                       .dims = {NUMBERS}};

typedef struct fixture {
    tow_client_t *client;
    tow_slice_t *slice;
    tow_function_t *count;
    tow_program_t *program; /* STEPS calls of it */
} fixture_t;

/* -- The fixture ------------------------------------------------------------ */

static tow_function_t *compile(tow_slice_t *slice, const char *text)
{
    tow_function_t *function;
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

static void open_slice(fixture_t *fixture, bool is_last)
{
    tow_slice_t *all;
    tow_device_t device = {.struct_size = sizeof(device)};
    check(tow_slice_open(fixture->client, NULL, &all));
    check(tow_slice_device(all, is_last ? tow_slice_device_count(all) - 1 : 0,
                           &device));
    check(tow_slice_open(
        fixture->client,
        TOW_WITH(tow_slice_options_t, .devices = &device.id, .device_count = 1),
        &fixture->slice));
    tow_slice_release(all);
}

static void trace(fixture_t *fixture)
{
    tow_array_t *inputs[2], *next;
    check(tow_program_create(fixture->client, "count", &fixture->program));
    for (size_t i = 0; i < 2; i++)
        check(tow_program_argument(fixture->program, fixture->slice,
                                   i == 0 ? &state : &scalar, false,
                                   &inputs[i]));
    for (size_t i = 0; i < STEPS; i++) {
        check(tow_function_call(fixture->count, fixture->slice, inputs, 2,
                                &next, 1));
        tow_array_release(inputs[0]);
        inputs[0] = next;
    }
    check(tow_program_result(fixture->program, inputs[0]));
    check(tow_program_finish(fixture->program));
    tow_array_release(inputs[0]);
    tow_array_release(inputs[1]);
}

static fixture_t open_fixture(bool is_last)
{
    fixture_t fixture = {0};
    check(tow_client_open(NULL, &fixture.client));
    open_slice(&fixture, is_last);
    fixture.count = compile(fixture.slice, count_text);
    trace(&fixture);
    return fixture;
}

static void close_fixture(fixture_t *fixture)
{
    tow_program_release(fixture->program);
    tow_function_release(fixture->count);
    tow_slice_release(fixture->slice);
    tow_client_release(fixture->client);
}

static tow_array_t *upload(const fixture_t *fixture,
                           const tow_array_type_t *type, int32_t number)
{
    static int32_t numbers[NUMBERS];
    const size_t size = type->rank == 0 ? sizeof(number) : sizeof(numbers);
    tow_array_t *array;
    for (size_t i = 0; i < NUMBERS; i++)
        numbers[i] = number;
    check(tow_array_upload(fixture->slice,
                           TOW_WITH(tow_upload_options_t, .type = *type,
                                    .bytes = numbers, .size = size),
                           &array));
    return array;
}

/* The sequence advanced by this many numbers. Releases the array. */
static void expect(tow_array_t *array, uint64_t count)
{
    uint32_t got[NUMBERS] = {0};
    const uint32_t wanted = advance(0, count);
    check(tow_array_download(array, 0, got, sizeof(got)));
    tow_array_release(array);
    if (got[0] == wanted && got[NUMBERS - 1] == wanted) return;
    fprintf(stderr, "bad_input: %u and %u instead of %u\n", got[0],
            got[NUMBERS - 1], wanted);
    exit(1);
}

/* The program, or one call, from 0 on; a step advances by `count`. */
static tow_array_t *start(const fixture_t *fixture, int32_t count, bool is_call)
{
    tow_array_t *inputs[] = {upload(fixture, &state, 0),
                             upload(fixture, &scalar, count)};
    tow_array_t *result;
    if (is_call)
        check(tow_function_call(fixture->count, fixture->slice, inputs, 2,
                                &result, 1));
    else
        check(tow_program_run(fixture->program, inputs, 2, &result, 1));
    tow_array_release(inputs[0]);
    tow_array_release(inputs[1]);
    return result;
}

static void tell(const char *text)
{
    puts(text);
    fflush(stdout);
}

/* -- Modes ------------------------------------------------------------------- */

static void slow(const fixture_t *fixture)
{
    tow_array_t *result = start(fixture, SLOW_COUNT, true);
    tell("under way");
    expect(result, SLOW_COUNT);
}

static void brief(const fixture_t *fixture)
{
    for (size_t i = 0; i < BRIEF_CALLS; i++)
        expect(start(fixture, 1, true), 1);
}

static void fickle(const fixture_t *fixture)
{
    static const int32_t counts[] = {1, 1, 1, FICKLE_COUNT, FICKLE_COUNT, 1, 1};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        expect(start(fixture, counts[i], false), STEPS * (uint64_t)counts[i]);
        if (i == 2) tell("under way");
    }
}

/* A wait that ends without a result: pieces have been granted, and are not
 * done. */
static void cancel(const fixture_t *fixture)
{
    tow_array_t *result = start(fixture, CANCEL_COUNT, false);
    tow_status_t status = tow_array_wait(result, CANCEL_NS);
    printf("%s\n", tow_code_name(tow_status_code(status)));
    tow_status_release(status);
    tow_array_cancel(result);
    status = tow_array_wait(result, -1);
    printf("%s\n", tow_code_name(tow_status_code(status)));
    tow_status_release(status);
    tow_array_release(result);
    expect(start(fixture, 1, false), STEPS);
}

static void flood(const fixture_t *fixture)
{
    for (size_t i = 0; i < FLOOD_RUNS; i++) {
        tow_array_release(start(fixture, 1, false));
        if (i == 0) tell("under way");
    }
    expect(start(fixture, 1, false), STEPS);
}

/* Sums of two neighbours, then all of them from the last to the first: so all
 * values exist at once. */
static tow_program_t *trace_large(const fixture_t *fixture, tow_function_t *add)
{
    const tow_array_type_t type = TOW_ARRAY_TYPE(TOW_TYPE_S32, 1 << 18);
    tow_array_t *values[LARGE_VALUES + 1], *sum;
    tow_program_t *program;
    check(tow_program_create(fixture->client, "large", &program));
    check(tow_program_argument(program, fixture->slice, &type, false,
                               &values[0]));
    for (size_t i = 0; i < LARGE_VALUES; i++) {
        tow_array_t *inputs[] = {values[i], values[0]};
        check(tow_function_call(add, fixture->slice, inputs, 2, &values[i + 1],
                                1));
    }
    sum = values[LARGE_VALUES];
    for (size_t i = LARGE_VALUES; i-- > 0;) {
        tow_array_t *inputs[] = {sum, values[i]};
        check(tow_function_call(add, fixture->slice, inputs, 2, &sum, 1));
        tow_array_release(inputs[0]);
    }
    for (size_t i = 0; i < LARGE_VALUES; i++)
        tow_array_release(values[i]);
    check(tow_program_result(program, sum));
    check(tow_program_finish(program));
    tow_array_release(sum);
    return program;
}

static void large(const fixture_t *fixture)
{
    static const int32_t zeroes[1 << 18];
    tow_function_t *add = compile(fixture->slice, add_text);
    tow_program_t *program = trace_large(fixture, add);
    tow_array_t *argument, *result;
    check(
        tow_array_upload(fixture->slice,
                         TOW_WITH(tow_upload_options_t,
                                  .type = TOW_ARRAY_TYPE(TOW_TYPE_S32, 1 << 18),
                                  .bytes = zeroes, .size = sizeof(zeroes)),
                         &argument));
    check(tow_program_run(program, &argument, 1, &result, 1));
    tow_status_t status = tow_array_wait(result, -1);
    printf("%s: %s\n", tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
    tow_array_release(result);
    tow_array_release(argument);
    tow_program_release(program);
    tow_function_release(add);
    expect(start(fixture, 1, false), STEPS);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const fixture_t *fixture);
    } modes[] = {{"slow", slow},     {"brief", brief}, {"fickle", fickle},
                 {"cancel", cancel}, {"flood", flood}, {"large", large}};
    for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) != 0) continue;
        fixture_t fixture = open_fixture(modes[i].run == brief);
        modes[i].run(&fixture);
        close_fixture(&fixture);
        tell("right");
        return 0;
    }
    fprintf(stderr, "usage: bad_input slow|brief|fickle|cancel|flood|large\n");
    return 2;
}
