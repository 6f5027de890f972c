/* Programs that are granted in pieces, on real devices.
 *
 *     pieces check      long runs in flight, with short calls between them
 *     pieces forever    long runs until an error, which it prints
 *
 * It needs 8 devices of one kind. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <towpath/towpath.h>

#include "../../examples/c/check.h"

#define DEVICES   8
#define STEPS     300 /* more than are granted at once while nothing is known */
#define IN_FLIGHT 6
#define ROUNDS    4

static const char add_one[] =
    "module @add { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {"
    "  %one = stablehlo.constant dense<1.0> : tensor<4xf32>"
    "  %y = stablehlo.add %x, %one : tensor<4xf32>"
    "  return %y : tensor<4xf32> } }";

static const tow_array_type_t vector = {.struct_size = sizeof(vector),
                                        .type = TOW_TYPE_F32,
                                        .rank = 1,
                                        .dims = {4}};

typedef struct fixture {
    tow_client_t *client;
    tow_slice_t *slice;
    tow_function_t *add;
    tow_program_t *program; /* STEPS calls of it */
    tow_array_t *zero;
} fixture_t;

static void trace(fixture_t *fixture)
{
    tow_array_t *value = NULL, *next = NULL;
    check(tow_program_create(fixture->client, "long", &fixture->program));
    check(tow_program_argument(fixture->program, fixture->slice, &vector, false,
                               &value));
    for (size_t i = 0; i < STEPS; i++) {
        check(tow_function_call(fixture->add, fixture->slice, &value, 1, &next,
                                1));
        tow_array_release(value);
        value = next;
    }
    check(tow_program_result(fixture->program, value));
    tow_array_release(value);
    check(tow_program_finish(fixture->program));
}

static fixture_t open_fixture(void)
{
    static const float zeroes[DEVICES * 4];
    fixture_t fixture = {0};
    check(tow_client_open(NULL, &fixture.client));
    check(tow_slice_open(fixture.client,
                         TOW_WITH(tow_slice_options_t, .dims = {DEVICES}),
                         &fixture.slice));
    check(tow_function_compile(
        fixture.slice,
        TOW_WITH(tow_source_t, .bytes = add_one, .size = strlen(add_one)),
        &fixture.add));
    check(tow_array_upload(fixture.slice,
                           TOW_WITH(tow_upload_options_t, .type = vector,
                                    .bytes = zeroes, .size = sizeof(zeroes)),
                           &fixture.zero));
    trace(&fixture);
    return fixture;
}

static void close_fixture(fixture_t *fixture)
{
    tow_array_release(fixture->zero);
    tow_program_release(fixture->program);
    tow_function_release(fixture->add);
    tow_slice_release(fixture->slice);
    tow_client_release(fixture->client);
}

/* Whether each shard has this number. */
static size_t count_right(tow_array_t *array, float wanted)
{
    size_t right_count = 0;
    for (size_t shard = 0; shard < DEVICES; shard++) {
        float got[4] = {0};
        check(tow_array_download(array, shard, got, sizeof(got)));
        right_count += got[0] == wanted && got[3] == wanted;
    }
    return right_count;
}

/* A long run and a short call of its result, IN_FLIGHT times. */
static size_t run_round(const fixture_t *fixture)
{
    tow_array_t *longs[IN_FLIGHT], *shorts[IN_FLIGHT];
    size_t right_count = 0;
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        check(
            tow_program_run(fixture->program, &fixture->zero, 1, &longs[i], 1));
        check(tow_function_call(fixture->add, fixture->slice, &longs[i], 1,
                                &shorts[i], 1));
    }
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        right_count += count_right(longs[i], STEPS);
        right_count += count_right(shorts[i], STEPS + 1);
        tow_array_release(longs[i]);
        tow_array_release(shorts[i]);
    }
    return right_count;
}

static void check_all(const fixture_t *fixture)
{
    size_t right_count = 0;
    for (size_t i = 0; i < ROUNDS; i++)
        right_count += run_round(fixture);
    printf("pieces: %zu of %d are right\n", right_count,
           ROUNDS * IN_FLIGHT * 2 * DEVICES);
}

static void forever(const fixture_t *fixture)
{
    tow_status_t status = TOW_OK;
    for (size_t i = 0; status == TOW_OK; i++) {
        tow_array_t *result = NULL;
        status =
            tow_program_run(fixture->program, &fixture->zero, 1, &result, 1);
        if (status == TOW_OK) status = tow_array_wait(result, -1);
        tow_array_release(result);
        if (i == 0) printf("pieces: under way\n");
        fflush(stdout);
    }
    printf("%s: %s\n", tow_code_name(tow_status_code(status)),
           tow_status_message(status));
    tow_status_release(status);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    fixture_t fixture = open_fixture();
    if (strcmp(mode, "check") == 0)
        check_all(&fixture);
    else if (strcmp(mode, "forever") == 0)
        forever(&fixture);
    else
        fprintf(stderr, "usage: pieces check|forever\n");
    close_fixture(&fixture);
    return 0;
}
