#include "base/testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/signature.h"
#include "wire/message.h"

#define ARENA_BYTES_MAX ((size_t)64 << 20)

static const tow_array_info_t arguments[] = {
    {.shape = {.type = TOW_TYPE_F32, .rank = 2, .dims = {2, 3}},
     .bytes = 24,
     .sharding = {"\x08\x03", 2},
     .order = {"\x01\x00", 2}},
    {.shape = {.type = TOW_TYPE_PRED}, .bytes = 1, .sharding = {"", 0}},
};
static const tow_array_info_t results[] = {
    {.shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {0}},
     .memory = TOW_MEMORY_PINNED_HOST},
    {.shape = {.type = TOW_TYPE_TOKEN}},
};
static const tow_alias_t aliases[] = {
    {.result = 1, .argument = 0, .required = true}};

static tow_signature_t sample(void)
{
    return (tow_signature_t){.name = "jit_step",
                             .replica_count = 2,
                             .partition_count = 4,
                             .argument_count = 2,
                             .arguments = arguments,
                             .result_count = 2,
                             .results = results,
                             .alias_count = 1,
                             .aliases = aliases,
                             .code_bytes = 4096,
                             .temporary_bytes = 77,
                             .flops = 1.5e9,
                             .bytes_accessed = 4e6,
                             .transcendentals = 7};
}

static tow_bytes_t pack(const tow_signature_t *signature)
{
    void *bytes;
    size_t size;
    tow_status_t status = tow_signature_pack(signature, &bytes, &size);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return (tow_bytes_t){bytes, size};
}

static void expect_array(const tow_array_info_t *got,
                         const tow_array_info_t *wanted)
{
    assert_true(tow_shape_equal(&got->shape, &wanted->shape));
    assert_int_equal(got->bytes, wanted->bytes);
    assert_int_equal(got->memory, wanted->memory);
    assert_int_equal(got->sharding.size, wanted->sharding.size);
    assert_true((got->sharding.data == NULL) ==
                (wanted->sharding.data == NULL));
    assert_int_equal(got->order.size, wanted->order.size);
    if (wanted->order.size > 0)
        assert_memory_equal(got->order.data, wanted->order.data,
                            wanted->order.size);
    if (wanted->sharding.size > 0)
        assert_memory_equal(got->sharding.data, wanted->sharding.data,
                            wanted->sharding.size);
}

static void signature_round_trips(void **state)
{
    const tow_signature_t before = sample();
    tow_signature_t after;
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_bytes_t bytes = pack(&before);
    assert_null(tow_signature_unpack(bytes, &arena, &after));
    tow_free((void *)bytes.data); /* Nothing points into it. */
    assert_string_equal(after.name, "jit_step");
    assert_int_equal(after.replica_count, 2);
    assert_int_equal(after.partition_count, 4);
    assert_int_equal(after.argument_count, 2);
    assert_int_equal(after.result_count, 2);
    for (size_t i = 0; i < 2; i++) {
        expect_array(&after.arguments[i], &arguments[i]);
        expect_array(&after.results[i], &results[i]);
    }
    assert_int_equal(after.alias_count, 1);
    assert_int_equal(after.aliases[0].result, 1);
    assert_int_equal(after.aliases[0].argument, 0);
    assert_true(after.aliases[0].required);
    assert_int_equal(after.code_bytes, 4096);
    assert_int_equal(after.temporary_bytes, 77);
    assert_true(after.flops == 1.5e9);
    assert_true(after.bytes_accessed == 4e6 && after.transcendentals == 7);
    tow_arena_deinit(&arena);
}

static void unknown_arguments_stay_unknown(void **state)
{
    tow_signature_t before = sample();
    before.argument_count = TOW_COUNT_UNKNOWN;
    before.arguments = NULL;
    tow_signature_t after;
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_bytes_t bytes = pack(&before);
    assert_null(tow_signature_unpack(bytes, &arena, &after));
    assert_true(after.argument_count == TOW_COUNT_UNKNOWN);
    assert_int_equal(after.alias_count, 0);
    tow_free((void *)bytes.data);
    tow_arena_deinit(&arena);
}

static void long_names_are_cut_off(void **state)
{
    char name[TOW_NAME_MAX * 2];
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    tow_signature_t before = sample(), after;
    before.name = name;
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_bytes_t bytes = pack(&before);
    assert_null(tow_signature_unpack(bytes, &arena, &after));
    assert_int_equal(strlen(after.name), TOW_NAME_MAX);
    tow_free((void *)bytes.data);
    tow_arena_deinit(&arena);
}

static void expect(tow_status_t status, tow_code_t code, const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static void what_does_not_fit_is_refused(void **state)
{
    void *bytes;
    size_t size;
    tow_signature_t large = sample();
    large.result_count = TOW_VALUES_MAX + 1;
    expect(tow_signature_pack(&large, &bytes, &size), TOW_OUT_OF_RANGE,
           "jit_step: 16385 results");
    assert_null(bytes);
    tow_array_info_t array = {.sharding = {"", TOW_SHARDING_BYTES_MAX + 1}};
    large = sample();
    large.arguments = &array;
    large.argument_count = 1;
    expect(tow_signature_pack(&large, &bytes, &size), TOW_OUT_OF_RANGE,
           "bytes of a sharding");
}

static void expect_refused(const tow_signature_t *signature, const char *words)
{
    tow_signature_t after;
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_bytes_t bytes = pack(signature);
    expect(tow_signature_unpack(bytes, &arena, &after), TOW_INVALID_ARGUMENT,
           words);
    tow_free((void *)bytes.data);
    tow_arena_deinit(&arena);
}

/* A process that compiles may have corrupted memory. */
static void numbers_that_make_no_sense_are_refused(void **state)
{
    tow_signature_t wrong = sample();
    wrong.replica_count = 0;
    expect_refused(&wrong, "0 replicas");
    wrong = sample();
    wrong.replica_count = wrong.partition_count = 65536;
    expect_refused(&wrong, "65536 replicas of 65536 partitions");
    wrong = sample();
    wrong.flops = NAN;
    expect_refused(&wrong, "flops");
    wrong.flops = 1;
    wrong.transcendentals = -1;
    expect_refused(&wrong, "transcendentals");
    const tow_alias_t alias = {.result = 2};
    wrong = sample();
    wrong.aliases = &alias;
    expect_refused(&wrong, "alias 0: result 2 of 2");
}

static void shapes_that_make_no_sense_are_refused(void **state)
{
    tow_array_info_t array = {
        .shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {-1}}};
    tow_signature_t wrong = sample();
    wrong.results = &array;
    wrong.result_count = 1;
    wrong.alias_count = 0;
    tow_signature_t after;
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_bytes_t bytes = pack(&wrong);
    expect(tow_signature_unpack(bytes, &arena, &after), TOW_OUT_OF_RANGE,
           "signature, result 0");
    tow_free((void *)bytes.data);
    tow_arena_deinit(&arena);
}

static void orders_name_each_dimension_once(void **state)
{
    static const tow_bytes_t orders[] = {
        {"\x00", 1}, {"\x00\x00", 2}, {"\x00\x02", 2}};
    for (size_t i = 0; i < TOW_COUNT_OF(orders); i++) {
        tow_array_info_t array = arguments[0];
        array.order = orders[i];
        tow_signature_t wrong = sample();
        wrong.arguments = &array;
        wrong.argument_count = 1;
        wrong.alias_count = 0;
        expect_refused(&wrong, "argument 0: an invalid order of 2 dimensions");
    }
}

static void limits_are_complete(void **state)
{
    assert_true(tow_limits_are_complete(&tow_executable_signature_limits));
}

static tow_exhaust_result_t trip(void *context)
{
    const tow_signature_t before = sample();
    tow_signature_t after;
    tow_arena_t arena;
    void *bytes;
    size_t size;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_status_t status = tow_signature_pack(&before, &bytes, &size);
    if (status == TOW_OK)
        status =
            tow_signature_unpack((tow_bytes_t){bytes, size}, &arena, &after);
    const bool is_done = status == TOW_OK;
    tow_status_release(status);
    tow_free(bytes);
    tow_arena_deinit(&arena);
    return is_done ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void memory_that_runs_out_is_survived(void **state)
{
    assert_true(tow_test_exhaust(trip, NULL) > 0);
}

TOW_TEST_MAIN(cmocka_unit_test(signature_round_trips),
              cmocka_unit_test(unknown_arguments_stay_unknown),
              cmocka_unit_test(long_names_are_cut_off),
              cmocka_unit_test(what_does_not_fit_is_refused),
              cmocka_unit_test(numbers_that_make_no_sense_are_refused),
              cmocka_unit_test(shapes_that_make_no_sense_are_refused),
              cmocka_unit_test(orders_name_each_dimension_once),
              cmocka_unit_test(limits_are_complete),
              cmocka_unit_test(memory_that_runs_out_is_survived))
