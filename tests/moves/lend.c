/* Shards that one worker of a host lends to another, through the C interface;
 * tests/integration/test_lend.py runs it, on two workers of a device each.
 *
 *     lend check    values stay right while their sources are released,
 *                   consumed, and their memory is used again
 *     lend fill     what is lent and not held otherwise leaves its device's memory
 *                   to others
 *     lend hold     has values lent, says so, and waits for a line: the number of
 *                   the worker that was killed meanwhile. Then the other's values
 *                   must be right */
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
/* The same in the memory of its argument, which it consumes. */
static const char bump_text[] =
    "func.func @main(%x: " ARRAY " {tf.aliasing_output = 0 : i32}) -> " ARRAY
    " {\n" BODY;

typedef struct place {
    tow_slice_t *slice;
    tow_program_t *plus, *bump;
} place_t;

typedef struct world {
    tow_client_t *client;
    place_t places[2];
    int32_t *bytes;
} world_t;

/* -- Values ---------------------------------------------------------------------- */

static int32_t number_at(uint32_t seed, size_t index)
{
    return (int32_t)(index * 2654435761u + seed * 40503u);
}

static tow_array_type_t type_of_all(void)
{
    return TOW_ARRAY_TYPE(TOW_TYPE_S32, NUMBERS);
}

static tow_array_t *upload(world_t *world, size_t place, uint32_t seed)
{
    tow_array_t *array;
    for (size_t i = 0; i < NUMBERS; i++)
        world->bytes[i] = number_at(seed, i);
    check(tow_array_upload(world->places[place].slice,
                           TOW_WITH(tow_upload_options_t, .type = type_of_all(),
                                    .bytes = world->bytes, .size = BYTES),
                           &array));
    return array;
}

/* The numbers of `seed`, each more by `more`. */
static void expect(world_t *world, tow_array_t *array, uint32_t seed,
                   int32_t more, const char *what)
{
    check(tow_array_download(array, 0, world->bytes, BYTES));
    for (size_t i = 0; i < NUMBERS; i++) {
        const int32_t wanted =
            (int32_t)((uint32_t)number_at(seed, i) + (uint32_t)more);
        if (world->bytes[i] == wanted) continue;
        fprintf(stderr, "lend: %s of %u: number %zu is %d instead of %d\n",
                what, seed, i, world->bytes[i], wanted);
        exit(1);
    }
}

static tow_array_t *run(tow_program_t *program, tow_array_t *array)
{
    tow_array_t *result;
    check(tow_program_run(program, &array, 1, &result, 1));
    return result;
}

static tow_array_t *move_to(const world_t *world, size_t place,
                            tow_array_t *array)
{
    tow_array_t *moved;
    check(tow_array_transfer(
        array,
        TOW_WITH(tow_transfer_options_t, .slice = world->places[place].slice),
        &moved));
    return moved;
}

/* Fills memory that has come free with something else. */
static void overwrite(world_t *world)
{
    for (uint32_t i = 0; i < 3; i++) {
        tow_array_t *noise = upload(world, 0, 999 + i);
        tow_array_t *more = run(world->places[0].plus, noise);
        check(tow_array_wait(more, -1));
        tow_array_release(more);
        tow_array_release(noise);
    }
}

/* -- Opening ---------------------------------------------------------------------- */

static tow_program_t *make_program(const world_t *world, tow_slice_t *slice,
                                   const char *text, bool donates)
{
    tow_program_t *program;
    tow_function_t *function;
    tow_array_t *x, *y;
    const tow_array_type_t type = type_of_all();
    check(tow_program_create(world->client, "lend", &program));
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

static void open_place(world_t *world, size_t index, int64_t device)
{
    place_t *place = &world->places[index];
    check(tow_slice_open(
        world->client,
        TOW_WITH(tow_slice_options_t, .devices = &device, .device_count = 1),
        &place->slice));
    place->plus = make_program(world, place->slice, plus_text, false);
    place->bump = make_program(world, place->slice, bump_text, true);
}

/* The device of worker 0 first. */
static world_t open_world(void)
{
    world_t world = {.bytes = malloc(BYTES)};
    tow_slice_t *all;
    tow_device_t devices[2];
    check(tow_client_open(NULL, &world.client));
    check(tow_slice_open(world.client,
                         TOW_WITH(tow_slice_options_t, .dims = {2}), &all));
    for (size_t i = 0; i < 2; i++) {
        devices[i] = (tow_device_t){.struct_size = sizeof(devices[i])};
        check(tow_slice_device(all, i, &devices[i]));
    }
    const size_t first = devices[0].id < devices[1].id ? 0 : 1;
    for (size_t i = 0; i < 2; i++)
        open_place(&world, i, devices[(first + i) % 2].id);
    tow_slice_release(all);
    return world;
}

static void close_world(world_t *world)
{
    for (size_t i = 0; i < 2; i++) {
        tow_program_release(world->places[i].plus);
        tow_program_release(world->places[i].bump);
        tow_slice_release(world->places[i].slice);
    }
    tow_client_release(world->client);
    free(world->bytes);
}

/* -- The modes --------------------------------------------------------------------- */

/* Of an array that was put there, and is released. */
static void check_put(world_t *world, uint32_t seed)
{
    tow_array_t *source = upload(world, 0, seed);
    tow_array_t *moved = move_to(world, 1, source);
    tow_array_release(source);
    overwrite(world);
    expect(world, moved, seed, 0, "a value whose source was released");
    tow_array_t *again = move_to(world, 0, moved); /* It is not ours to lend. */
    tow_array_t *bumped = run(world->places[1].bump, moved);
    expect(world, bumped, seed, 1, "a lent value that was consumed");
    expect(world, again, seed, 0, "a lent value that was sent on");
    tow_array_release(again);
    tow_array_release(bumped);
    tow_array_release(moved);
}

/* Of one that was computed, and is consumed while it is lent. */
static tow_array_t *check_result(world_t *world, uint32_t seed)
{
    tow_array_t *source = upload(world, 0, seed);
    tow_array_t *result = run(world->places[0].plus, source);
    tow_array_t *moved = move_to(world, 1, result);
    tow_array_t *bumped = run(world->places[0].bump, result);
    overwrite(world);
    expect(world, bumped, seed, 2, "a source that was consumed");
    expect(world, moved, seed, 1, "a value whose source was consumed");
    tow_array_release(bumped);
    tow_array_release(result);
    tow_array_release(source);
    return moved;
}

static void check_all(world_t *world)
{
    tow_array_t *kept[ROUNDS];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        check_put(world, round);
        kept[round] = check_result(world, 100 + round);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        expect(world, kept[round], 100 + round, 1, "a value that was kept");
        tow_array_release(kept[round]);
    }
    printf("lend: all are right\n");
}

static tow_array_t *compute(world_t *world, uint32_t seed)
{
    tow_array_t *put = upload(world, 0, seed);
    tow_array_t *result = run(world->places[0].plus, put);
    tow_array_release(put);
    return result;
}

/* As much as one device has, twice: what is lent counts on the other. */
static void fill(world_t *world)
{
    tow_array_t *moved[ROUNDS], *ours[ROUNDS];
    tow_array_release(check_result(world, 1));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        tow_array_t *result = compute(world, i);
        moved[i] = move_to(world, 1, result);
        tow_array_release(result);
    }
    for (uint32_t i = 0; i < ROUNDS; i++)
        ours[i] = compute(world, 50 + i);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        expect(world, moved[i], i, 1, "a value that was lent");
        expect(world, ours[i], 50 + i, 1, "a value beside it");
        tow_array_release(moved[i]);
        tow_array_release(ours[i]);
    }
    printf("lend: all are right\n");
}

/* Results are lent from the second time on: sizes that travel are learnt. */
static void hold(world_t *world)
{
    tow_array_t *sources[HELD], *moved[HELD];
    tow_array_release(check_result(world, 1));
    for (uint32_t i = 0; i < HELD; i++) {
        tow_array_t *put = upload(world, 0, i);
        sources[i] = i % 2 == 0 ? put : run(world->places[0].plus, put);
        if (sources[i] != put) tow_array_release(put);
        moved[i] = move_to(world, 1, sources[i]);
        check(tow_array_wait(moved[i], -1));
    }
    printf("lend: held\n");
    fflush(stdout);
    int killed = -1;
    if (scanf("%d", &killed) != 1) exit(1);
    for (uint32_t i = 0; i < HELD; i++) {
        const int32_t more = i % 2 == 0 ? 0 : 1;
        if (killed == 0)
            expect(world, moved[i], i, more, "a value whose lender died");
        if (killed == 1) {
            tow_array_t *bumped = run(world->places[0].bump, sources[i]);
            expect(world, bumped, i, more + 1, "a value whose user died");
            tow_array_release(bumped);
        }
        tow_array_release(moved[i]);
        tow_array_release(sources[i]);
    }
    printf("lend: all are right\n");
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    world_t world = open_world();
    if (strcmp(mode, "check") == 0)
        check_all(&world);
    else if (strcmp(mode, "fill") == 0)
        fill(&world);
    else if (strcmp(mode, "hold") == 0)
        hold(&world);
    else
        fprintf(stderr, "usage: lend check|fill|hold\n");
    close_world(&world);
    return 0;
}
