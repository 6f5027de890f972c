/* Transfers between slices, through the C interface, on whatever cluster there
 * is; tests/integration/test_moves.py runs it.
 *
 *     moves check      all pairs of a list of ways to lie: bytes must be right
 *     moves refuse     what cannot be is refused, in words, and the rest goes on
 *     moves forever    16 MiB to and fro until something breaks; then says so
 *
 * It needs 8 devices of one kind, on one island or four on each of two. Two slices
 * have four each, and a third has three of those of the second. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define DEVICES   4 /* of a slice, at most */
#define ROWS      12
#define COLUMNS   8
#define BIG_BYTES (16u << 20)

typedef struct world {
    tow_client_t *client;
    tow_slice_t *slices[3];
} world_t;

/* How an array of ROWS x COLUMNS numbers may lie on one of the slices. */
typedef struct way {
    size_t slice;
    const tow_split_t split;
} way_t;

#define WAY(at, ...)                            \
    {                                           \
        .slice = (at), .split = {               \
            .struct_size = sizeof(tow_split_t), \
            __VA_ARGS__                         \
        }                                       \
    }

static const way_t ways[] = {
    WAY(0, .parts = {4, 1}),
    WAY(0, .parts = {1, 4}),
    WAY(0, .parts = {2, 2}),
    WAY(0, .parts = {1, 1}),
    WAY(0, .parts = {2, 1}),
    WAY(0, .parts = {2, 2}, .mesh_rank = 2, .mesh_dims = {2, 2},
        .mesh_axes = {1, 0}),
    WAY(1, .parts = {4, 1}),
    WAY(1, .parts = {1, 4}),
    WAY(1, .parts = {1, 2}),
    WAY(1, .parts = {1, 1}),
    WAY(2, .parts = {3, 1}),
    WAY(2, .parts = {1, 1}),
};
#define WAY_COUNT (sizeof(ways) / sizeof(ways[0]))

/* -- Slices --------------------------------------------------------------------- */

/* Those that have the least load: others than the slices before. */
static tow_slice_t *open_four(tow_client_t *client)
{
    tow_slice_t *slice;
    check(tow_slice_open(client, TOW_WITH(tow_slice_options_t, .dims = {4}),
                         &slice));
    return slice;
}

static tow_slice_t *open_last_three(tow_client_t *client, tow_slice_t *four)
{
    int64_t ids[3];
    tow_slice_t *slice;
    for (size_t i = 0; i < 3; i++) {
        tow_device_t device = {.struct_size = sizeof(device)};
        check(tow_slice_device(four, 1 + i, &device));
        ids[i] = device.id;
    }
    check(tow_slice_open(
        client,
        TOW_WITH(tow_slice_options_t, .devices = ids, .device_count = 3),
        &slice));
    return slice;
}

static world_t open_world(void)
{
    world_t world;
    check(tow_client_open(NULL, &world.client));
    world.slices[0] = open_four(world.client);
    world.slices[1] = open_four(world.client);
    world.slices[2] = open_last_three(world.client, world.slices[1]);
    return world;
}

static void close_world(world_t *world)
{
    for (size_t i = 0; i < 3; i++)
        tow_slice_release(world->slices[i]);
    tow_client_release(world->client);
}

/* -- Bytes ---------------------------------------------------------------------- */

/* Which part device `device` has: written down anew, not taken from the code that
 * is tested. */
static void part_of(const way_t *way, size_t device_count, size_t device,
                    size_t part[2])
{
    const tow_split_t *split = &way->split;
    const size_t parts = (size_t)split->parts[0] * split->parts[1];
    size_t place = device / (device_count / parts);
    if (split->mesh_rank == 2) /* The transpose of a square. */
        place = device % 2 * 2 + device / 2;
    part[0] = place / split->parts[1];
    part[1] = place % split->parts[1];
}

static size_t shard_rows(const way_t *way)
{
    return ROWS / way->split.parts[0];
}

static size_t shard_columns(const way_t *way)
{
    return COLUMNS / way->split.parts[1];
}

/* Element (row, column) of the whole array is its number. */
static void fill_shard(const way_t *way, size_t device_count, size_t device,
                       int32_t *out)
{
    size_t part[2];
    part_of(way, device_count, device, part);
    for (size_t row = 0; row < shard_rows(way); row++)
        for (size_t column = 0; column < shard_columns(way); column++)
            *out++ = (int32_t)((part[0] * shard_rows(way) + row) * COLUMNS +
                               part[1] * shard_columns(way) + column);
}

static tow_array_t *upload_way(const world_t *world, const way_t *way)
{
    tow_slice_t *slice = world->slices[way->slice];
    const size_t count = tow_slice_device_count(slice);
    const size_t numbers = shard_rows(way) * shard_columns(way);
    int32_t bytes[DEVICES * ROWS * COLUMNS];
    tow_array_t *array;
    for (size_t i = 0; i < count; i++)
        fill_shard(way, count, i, bytes + i * numbers);
    check(tow_array_upload(
        slice,
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(TOW_TYPE_S32, (int64_t)shard_rows(way),
                                        (int64_t)shard_columns(way)),
                 .bytes = bytes, .size = count * numbers * sizeof(bytes[0])),
        &array));
    return array;
}

static void check_way(const world_t *world, const way_t *way,
                      tow_array_t *array)
{
    const size_t count = tow_slice_device_count(world->slices[way->slice]);
    const size_t size = shard_rows(way) * shard_columns(way) * sizeof(int32_t);
    for (size_t i = 0; i < count; i++) {
        int32_t wanted[ROWS * COLUMNS], got[ROWS * COLUMNS];
        fill_shard(way, count, i, wanted);
        check(tow_array_download(array, i, got, size));
        if (memcmp(wanted, got, size) == 0) continue;
        fprintf(stderr, "moves: shard %zu is wrong\n", i);
        exit(1);
    }
}

/* -- The modes ------------------------------------------------------------------- */

static tow_status_t move_to(const world_t *world, tow_array_t *array,
                            const way_t *from, const way_t *to,
                            tow_array_t **out_array)
{
    return tow_array_transfer(array,
                              TOW_WITH(tow_transfer_options_t,
                                       .slice = world->slices[to->slice],
                                       .from = &from->split, .to = &to->split),
                              out_array);
}

static void check_all(const world_t *world)
{
    for (size_t i = 0; i < WAY_COUNT; i++) {
        tow_array_t *source = upload_way(world, &ways[i]);
        for (size_t k = 0; k < WAY_COUNT; k++) {
            tow_array_t *moved;
            check(move_to(world, source, &ways[i], &ways[k], &moved));
            check_way(world, &ways[k], moved);
            tow_array_release(moved);
        }
        tow_array_release(source);
    }
    printf("moves: %zu of %zu are right\n", WAY_COUNT * WAY_COUNT,
           WAY_COUNT * WAY_COUNT);
}

static void expect_refusal(tow_status_t status, const char *what)
{
    if (status == TOW_OK) {
        fprintf(stderr, "moves: %s was not refused\n", what);
        exit(1);
    }
    printf("%s: %s: %s\n", what, tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
}

static void refuse(const world_t *world)
{
    const way_t thirds = WAY(2, .parts = {1, 3}), fifths = WAY(0, .parts = {5});
    tow_array_t *source = upload_way(world, &ways[0]), *moved = NULL;
    expect_refusal(move_to(world, source, &ways[0], &thirds, &moved),
                   "8 columns in 3 parts");
    expect_refusal(move_to(world, source, &ways[0], &fifths, &moved),
                   "5 parts on 4 devices");
    expect_refusal(tow_array_transfer(source,
                                      TOW_WITH(tow_transfer_options_t,
                                               .slice = world->slices[2]),
                                      &moved),
                   "4 shards to 3 devices");
    check(move_to(world, source, &ways[0], &ways[7], &moved));
    check_way(world, &ways[7], moved);
    tow_array_release(moved);
    tow_array_release(source);
}

static tow_array_t *upload_big(const world_t *world)
{
    tow_array_t *array;
    void *bytes = calloc(1, BIG_BYTES);
    check(tow_array_upload(
        world->slices[0],
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(TOW_TYPE_U8, BIG_BYTES / 4),
                 .bytes = bytes, .size = BIG_BYTES),
        &array));
    free(bytes);
    return array;
}

/* Ends with the first error, which it tells. */
static void forever(const world_t *world)
{
    tow_array_t *array = upload_big(world);
    tow_status_t status = tow_array_wait(array, -1);
    printf("moves: under way\n");
    fflush(stdout);
    for (size_t i = 1; status == TOW_OK; i++) {
        tow_array_t *moved = NULL;
        status = tow_array_transfer(
            array,
            TOW_WITH(tow_transfer_options_t, .slice = world->slices[i % 2]),
            &moved);
        tow_array_release(array);
        array = moved;
        if (status == TOW_OK) status = tow_array_wait(array, -1);
    }
    printf("%s: %s\n", tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
    tow_array_release(array);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    world_t world = open_world();
    if (strcmp(mode, "check") == 0)
        check_all(&world);
    else if (strcmp(mode, "refuse") == 0)
        refuse(&world);
    else if (strcmp(mode, "forever") == 0)
        forever(&world);
    else
        fprintf(stderr, "usage: moves check|refuse|forever\n");
    close_world(&world);
    return 0;
}
