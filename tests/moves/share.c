/* Zero-copy sharing of shards between two workers of a host, through the C
 * interface; tests/integration/test_sharing.py runs it, on two workers with one
 * device each.
 *
 *     share check    values stay right while their sources are released and
 *                    consumed, and their memory is reused
 *     share fill     a shared value without other references does not count on
 *                    the device of its sender
 *     share hold     shares values, prints a line, and reads the number of the
 *                    worker that was killed meanwhile; the values of the other
 *                    worker must be right */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define NUMBERS (1 << 20) /* 4 MiB: more than a block */
#define BYTES   ((size_t)NUMBERS * sizeof(int32_t))
#define ROUNDS  8
#define HELD    4

#define ARRAY "tensor<1048576xi32>"
#define BODY                                             \
    "  %one = stablehlo.constant dense<1> : " ARRAY "\n" \
    "  %y = stablehlo.add %x, %one : " ARRAY "\n"        \
    "  return %y : " ARRAY "\n}\n"

static const char plus_text[] =
    "func.func @main(%x: " ARRAY ") -> " ARRAY " {\n" BODY;
/* The same, in the memory of its argument, which it consumes. */
static const char increment_text[] =
    "func.func @main(%x: " ARRAY " {tf.aliasing_output = 0 : i32}) -> " ARRAY
    " {\n" BODY;

typedef struct place {
    tow_slice_t *slice;
    tow_program_t *plus, *increment;
} place_t;

typedef struct fixture {
    tow_client_t *client;
    place_t places[2];
    int32_t *bytes;
} fixture_t;

/* -- Values ---------------------------------------------------------------- */

static int32_t number_at(uint32_t seed, size_t index)
{
    return (int32_t)(index * 2654435761u + seed * 40503u);
}

static tow_array_type_t type_of_all(void)
{
    return TOW_ARRAY_TYPE(TOW_TYPE_S32, NUMBERS);
}

static tow_array_t *upload(fixture_t *fixture, size_t place, uint32_t seed)
{
    tow_array_t *array;
    for (size_t i = 0; i < NUMBERS; i++)
        fixture->bytes[i] = number_at(seed, i);
    check(tow_array_upload(fixture->places[place].slice,
                           TOW_WITH(tow_upload_options_t, .type = type_of_all(),
                                    .bytes = fixture->bytes, .size = BYTES),
                           &array));
    return array;
}

/* The values must be those of `seed` plus `more`. */
static void expect(fixture_t *fixture, tow_array_t *array, uint32_t seed,
                   int32_t more, const char *what)
{
    check(tow_array_download(array, 0, fixture->bytes, BYTES));
    for (size_t i = 0; i < NUMBERS; i++) {
        const int32_t wanted =
            (int32_t)((uint32_t)number_at(seed, i) + (uint32_t)more);
        if (fixture->bytes[i] == wanted) continue;
        fprintf(stderr, "share: %s of %u: number %zu is %d instead of %d\n",
                what, seed, i, fixture->bytes[i], wanted);
        exit(1);
    }
}

static tow_array_t *run(tow_program_t *program, tow_array_t *array)
{
    tow_array_t *result;
    check(tow_program_run(program, &array, 1, &result, 1));
    return result;
}

static tow_array_t *move_to(const fixture_t *fixture, size_t place,
                            tow_array_t *array)
{
    tow_array_t *moved;
    check(tow_array_transfer(
        array,
        TOW_WITH(tow_transfer_options_t, .slice = fixture->places[place].slice),
        &moved));
    return moved;
}

/* Overwrites freed memory with other values. */
static void overwrite(fixture_t *fixture)
{
    for (uint32_t i = 0; i < 3; i++) {
        tow_array_t *noise = upload(fixture, 0, 999 + i);
        tow_array_t *more = run(fixture->places[0].plus, noise);
        check(tow_array_wait(more, -1));
        tow_array_release(more);
        tow_array_release(noise);
    }
}

/* -- The fixture ----------------------------------------------------------- */

static tow_program_t *make_program(const fixture_t *fixture, tow_slice_t *slice,
                                   const char *text, bool donates)
{
    tow_program_t *program;
    tow_function_t *function;
    tow_array_t *x, *y;
    const tow_array_type_t type = type_of_all();
    check(tow_program_create(fixture->client, "share", &program));
    check(tow_program_argument(program, slice, &type, donates, &x));
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    check(tow_function_call(function, slice, &x, 1, &y, 1));
    check(tow_program_result(program, y));
    check(tow_program_finish(program));
    tow_function_release(function);
    tow_array_release(x);
    tow_array_release(y);
    return program;
}

static void open_place(fixture_t *fixture, size_t index, int64_t device)
{
    place_t *place = &fixture->places[index];
    check(tow_slice_open(
        fixture->client,
        TOW_WITH(tow_slice_options_t, .devices = &device, .device_count = 1),
        &place->slice));
    place->plus = make_program(fixture, place->slice, plus_text, false);
    place->increment =
        make_program(fixture, place->slice, increment_text, true);
}

/* places[0] is the device of worker 0. */
static fixture_t open_fixture(void)
{
    fixture_t fixture = {.bytes = malloc(BYTES)};
    tow_slice_t *all;
    tow_device_t devices[2];
    check(tow_client_open(NULL, &fixture.client));
    check(tow_slice_open(fixture.client,
                         TOW_WITH(tow_slice_options_t, .dims = {2}), &all));
    for (size_t i = 0; i < 2; i++) {
        devices[i] = (tow_device_t){.struct_size = sizeof(devices[i])};
        check(tow_slice_device(all, i, &devices[i]));
    }
    const size_t first = devices[0].id < devices[1].id ? 0 : 1;
    for (size_t i = 0; i < 2; i++)
        open_place(&fixture, i, devices[(first + i) % 2].id);
    tow_slice_release(all);
    return fixture;
}

static void close_fixture(fixture_t *fixture)
{
    for (size_t i = 0; i < 2; i++) {
        tow_program_release(fixture->places[i].plus);
        tow_program_release(fixture->places[i].increment);
        tow_slice_release(fixture->places[i].slice);
    }
    tow_client_release(fixture->client);
    free(fixture->bytes);
}

/* -- Modes ----------------------------------------------------------------- */

/* A share of an uploaded array, which is released. */
static void check_put(fixture_t *fixture, uint32_t seed)
{
    tow_array_t *source = upload(fixture, 0, seed);
    tow_array_t *moved = move_to(fixture, 1, source);
    tow_array_release(source);
    overwrite(fixture);
    expect(fixture, moved, seed, 0, "a value whose source was released");
    tow_array_t *again = move_to(fixture, 0, moved); /* Its memory is shared. */
    tow_array_t *incremented = run(fixture->places[1].increment, moved);
    expect(fixture, incremented, seed, 1, "a shared value that was consumed");
    expect(fixture, again, seed, 0,
           "a shared value that was transferred again");
    tow_array_release(again);
    tow_array_release(incremented);
    tow_array_release(moved);
}

/* A share of a computed array, which is consumed during the share. */
static tow_array_t *check_result(fixture_t *fixture, uint32_t seed)
{
    tow_array_t *source = upload(fixture, 0, seed);
    tow_array_t *result = run(fixture->places[0].plus, source);
    tow_array_t *moved = move_to(fixture, 1, result);
    tow_array_t *incremented = run(fixture->places[0].increment, result);
    overwrite(fixture);
    expect(fixture, incremented, seed, 2, "a source that was consumed");
    expect(fixture, moved, seed, 1, "a value whose source was consumed");
    tow_array_release(incremented);
    tow_array_release(result);
    tow_array_release(source);
    return moved;
}

static void check_all(fixture_t *fixture)
{
    tow_array_t *kept[ROUNDS];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        check_put(fixture, round);
        kept[round] = check_result(fixture, 100 + round);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        expect(fixture, kept[round], 100 + round, 1, "a value that was kept");
        tow_array_release(kept[round]);
    }
    printf("share: all are right\n");
}

static tow_array_t *compute(fixture_t *fixture, uint32_t seed)
{
    tow_array_t *put = upload(fixture, 0, seed);
    tow_array_t *result = run(fixture->places[0].plus, put);
    tow_array_release(put);
    return result;
}

/* Twice the memory of one device: shared values count on the other device. */
static void fill(fixture_t *fixture)
{
    tow_array_t *moved[ROUNDS], *local[ROUNDS];
    tow_array_release(check_result(fixture, 1));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        tow_array_t *result = compute(fixture, i);
        moved[i] = move_to(fixture, 1, result);
        tow_array_release(result);
    }
    for (uint32_t i = 0; i < ROUNDS; i++)
        local[i] = compute(fixture, 50 + i);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        expect(fixture, moved[i], i, 1, "a shared value");
        expect(fixture, local[i], 50 + i, 1, "a value that is not shared");
        tow_array_release(moved[i]);
        tow_array_release(local[i]);
    }
    printf("share: all are right\n");
}

/* Results are shared only from the second transfer of their size on. */
static void hold(fixture_t *fixture)
{
    tow_array_t *sources[HELD], *moved[HELD];
    tow_array_release(check_result(fixture, 1));
    for (uint32_t i = 0; i < HELD; i++) {
        tow_array_t *put = upload(fixture, 0, i);
        sources[i] = i % 2 == 0 ? put : run(fixture->places[0].plus, put);
        if (sources[i] != put) tow_array_release(put);
        moved[i] = move_to(fixture, 1, sources[i]);
        check(tow_array_wait(moved[i], -1));
    }
    printf("share: held\n");
    fflush(stdout);
    int killed = -1;
    if (scanf("%d", &killed) != 1) exit(1);
    for (uint32_t i = 0; i < HELD; i++) {
        const int32_t more = i % 2 == 0 ? 0 : 1;
        if (killed == 0)
            expect(fixture, moved[i], i, more,
                   "a value whose sender was killed");
        if (killed == 1) {
            tow_array_t *incremented =
                run(fixture->places[0].increment, sources[i]);
            expect(fixture, incremented, i, more + 1,
                   "a value whose receiver was killed");
            tow_array_release(incremented);
        }
        tow_array_release(moved[i]);
        tow_array_release(sources[i]);
    }
    printf("share: all are right\n");
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    fixture_t fixture = open_fixture();
    if (strcmp(mode, "check") == 0)
        check_all(&fixture);
    else if (strcmp(mode, "fill") == 0)
        fill(&fixture);
    else if (strcmp(mode, "hold") == 0)
        hold(&fixture);
    else
        fprintf(stderr, "usage: share check|fill|hold\n");
    close_fixture(&fixture);
    return 0;
}
