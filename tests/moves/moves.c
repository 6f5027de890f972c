/* Transfers between slices, through the C interface, on any cluster;
 * tests/integration/test_moves.py runs it.
 *
 *     moves check      all pairs of a list of layouts: values must be right
 *     moves refuse     impossible transfers are refused, and others work
 *     moves forever    16 MiB back and forth until an error, which it prints
 *
 * It needs 8 devices of one kind, on one island or four on each of two. Two
 * slices have four devices each; a third has three devices of the second. */
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

typedef struct fixture {
    tow_client_t *client;
    tow_slice_t *slices[3];
} fixture_t;

/* The sharding of an array of ROWS x COLUMNS numbers on one of the slices. */
typedef struct layout {
    size_t slice;
    const tow_split_t split;
} layout_t;

#define LAYOUT(at, ...)                         \
    {                                           \
        .slice = (at), .split = {               \
            .struct_size = sizeof(tow_split_t), \
            __VA_ARGS__                         \
        }                                       \
    }

static const layout_t layouts[] = {
    LAYOUT(0, .parts = {4, 1}),
    LAYOUT(0, .parts = {1, 4}),
    LAYOUT(0, .parts = {2, 2}),
    LAYOUT(0, .parts = {1, 1}),
    LAYOUT(0, .parts = {2, 1}),
    LAYOUT(0, .parts = {2, 2}, .mesh_rank = 2, .mesh_dims = {2, 2},
           .mesh_axes = {1, 0}),
    LAYOUT(1, .parts = {4, 1}),
    LAYOUT(1, .parts = {1, 4}),
    LAYOUT(1, .parts = {1, 2}),
    LAYOUT(1, .parts = {1, 1}),
    LAYOUT(2, .parts = {3, 1}),
    LAYOUT(2, .parts = {1, 1}),
};
#define LAYOUT_COUNT (sizeof(layouts) / sizeof(layouts[0]))

/* -- Slices ---------------------------------------------------------------- */

/* The devices with the least load: not those of earlier slices. */
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

static fixture_t open_fixture(void)
{
    fixture_t fixture;
    check(tow_client_open(NULL, &fixture.client));
    fixture.slices[0] = open_four(fixture.client);
    fixture.slices[1] = open_four(fixture.client);
    fixture.slices[2] = open_last_three(fixture.client, fixture.slices[1]);
    return fixture;
}

static void close_fixture(fixture_t *fixture)
{
    for (size_t i = 0; i < 3; i++)
        tow_slice_release(fixture->slices[i]);
    tow_client_release(fixture->client);
}

/* -- Bytes ----------------------------------------------------------------- */

/* The part that a device holds, computed independently of the code under
 * test. */
static void part_of(const layout_t *layout, size_t device_count, size_t device,
                    size_t part[2])
{
    const tow_split_t *split = &layout->split;
    const size_t parts = (size_t)split->parts[0] * split->parts[1];
    size_t place = device / (device_count / parts);
    if (split->mesh_rank == 2) /* The transpose of a square. */
        place = device % 2 * 2 + device / 2;
    part[0] = place / split->parts[1];
    part[1] = place % split->parts[1];
}

static size_t shard_rows(const layout_t *layout)
{
    return ROWS / layout->split.parts[0];
}

static size_t shard_columns(const layout_t *layout)
{
    return COLUMNS / layout->split.parts[1];
}

/* Element (row, column) of the whole array is its number. */
static void fill_shard(const layout_t *layout, size_t device_count,
                       size_t device, int32_t *out)
{
    size_t part[2];
    part_of(layout, device_count, device, part);
    for (size_t row = 0; row < shard_rows(layout); row++)
        for (size_t column = 0; column < shard_columns(layout); column++)
            *out++ = (int32_t)((part[0] * shard_rows(layout) + row) * COLUMNS +
                               part[1] * shard_columns(layout) + column);
}

static tow_array_t *upload_layout(const fixture_t *fixture,
                                  const layout_t *layout)
{
    tow_slice_t *slice = fixture->slices[layout->slice];
    const size_t count = tow_slice_device_count(slice);
    const size_t numbers = shard_rows(layout) * shard_columns(layout);
    int32_t bytes[DEVICES * ROWS * COLUMNS];
    tow_array_t *array;
    for (size_t i = 0; i < count; i++)
        fill_shard(layout, count, i, bytes + i * numbers);
    check(tow_array_upload(
        slice,
        TOW_WITH(tow_upload_options_t,
                 .type =
                     TOW_ARRAY_TYPE(TOW_TYPE_S32, (int64_t)shard_rows(layout),
                                    (int64_t)shard_columns(layout)),
                 .bytes = bytes, .size = count * numbers * sizeof(bytes[0])),
        &array));
    return array;
}

static void check_layout(const fixture_t *fixture, const layout_t *layout,
                         tow_array_t *array)
{
    const size_t count = tow_slice_device_count(fixture->slices[layout->slice]);
    const size_t size =
        shard_rows(layout) * shard_columns(layout) * sizeof(int32_t);
    for (size_t i = 0; i < count; i++) {
        int32_t wanted[ROWS * COLUMNS], got[ROWS * COLUMNS];
        fill_shard(layout, count, i, wanted);
        check(tow_array_download(array, i, got, size));
        if (memcmp(wanted, got, size) == 0) continue;
        fprintf(stderr, "moves: shard %zu is wrong\n", i);
        exit(1);
    }
}

/* -- Modes ----------------------------------------------------------------- */

static tow_status_t move_to(const fixture_t *fixture, tow_array_t *array,
                            const layout_t *from, const layout_t *to,
                            tow_array_t **out_array)
{
    return tow_array_transfer(array,
                              TOW_WITH(tow_transfer_options_t,
                                       .slice = fixture->slices[to->slice],
                                       .from = &from->split, .to = &to->split),
                              out_array);
}

static void check_all(const fixture_t *fixture)
{
    for (size_t i = 0; i < LAYOUT_COUNT; i++) {
        tow_array_t *source = upload_layout(fixture, &layouts[i]);
        for (size_t k = 0; k < LAYOUT_COUNT; k++) {
            tow_array_t *moved;
            check(move_to(fixture, source, &layouts[i], &layouts[k], &moved));
            check_layout(fixture, &layouts[k], moved);
            tow_array_release(moved);
        }
        tow_array_release(source);
    }
    printf("moves: %zu of %zu are right\n", LAYOUT_COUNT * LAYOUT_COUNT,
           LAYOUT_COUNT * LAYOUT_COUNT);
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

static void refuse(const fixture_t *fixture)
{
    const layout_t thirds = LAYOUT(2, .parts = {1, 3}),
                   fifths = LAYOUT(0, .parts = {5});
    tow_array_t *source = upload_layout(fixture, &layouts[0]), *moved = NULL;
    expect_refusal(move_to(fixture, source, &layouts[0], &thirds, &moved),
                   "8 columns in 3 parts");
    expect_refusal(move_to(fixture, source, &layouts[0], &fifths, &moved),
                   "5 parts on 4 devices");
    expect_refusal(tow_array_transfer(source,
                                      TOW_WITH(tow_transfer_options_t,
                                               .slice = fixture->slices[2]),
                                      &moved),
                   "4 shards to 3 devices");
    check(move_to(fixture, source, &layouts[0], &layouts[7], &moved));
    check_layout(fixture, &layouts[7], moved);
    tow_array_release(moved);
    tow_array_release(source);
}

static tow_array_t *upload_big(const fixture_t *fixture)
{
    tow_array_t *array;
    void *bytes = calloc(1, BIG_BYTES);
    check(tow_array_upload(
        fixture->slices[0],
        TOW_WITH(tow_upload_options_t,
                 .type = TOW_ARRAY_TYPE(TOW_TYPE_U8, BIG_BYTES / 4),
                 .bytes = bytes, .size = BIG_BYTES),
        &array));
    free(bytes);
    return array;
}

/* Ends with the first error, and prints it. */
static void forever(const fixture_t *fixture)
{
    tow_array_t *array = upload_big(fixture);
    tow_status_t status = tow_array_wait(array, -1);
    printf("moves: under way\n");
    fflush(stdout);
    for (size_t i = 1; status == TOW_OK; i++) {
        tow_array_t *moved = NULL;
        status = tow_array_transfer(
            array,
            TOW_WITH(tow_transfer_options_t, .slice = fixture->slices[i % 2]),
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
    fixture_t fixture = open_fixture();
    if (strcmp(mode, "check") == 0)
        check_all(&fixture);
    else if (strcmp(mode, "refuse") == 0)
        refuse(&fixture);
    else if (strcmp(mode, "forever") == 0)
        forever(&fixture);
    else
        fprintf(stderr, "usage: moves check|refuse|forever\n");
    close_fixture(&fixture);
    return 0;
}
