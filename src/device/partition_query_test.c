#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "device/partition_query.h"
#include "wire/message.h"

#define ARENA_BYTES_MAX ((size_t)64 << 20)
#define BYTES(text)     ((tow_xla_bytes_t){text, sizeof(text) - 1})

static const tow_xla_partition_value_t operands[] = {
    {.shape = {"shape\0a", 7}, .sharding = {"sharding", 8}},
    {.shape = {"shape b", 7}, .sharding = {"", 0}},
    {.shape = {"shape c", 7}},
};

static tow_xla_partition_query_t sample_query(void)
{
    return (tow_xla_partition_query_t){.kind = TOW_XLA_QUERY_PARTITION,
                                       .target = TOW_XLA_PARTITION_TARGET,
                                       .config = {"\0\x7f config", 9},
                                       .operands = operands,
                                       .operand_count = 3,
                                       .result = operands[0]};
}

static const tow_xla_bytes_t shardings[] = {{"one", 3}, {"", 0}};

static tow_xla_partition_reply_t sample_answer(void)
{
    return (tow_xla_partition_reply_t){.program = BYTES("module {}"),
                                       .operand_shardings = shardings,
                                       .operand_count = 2,
                                       .result_sharding = {"", 0}};
}

static int set_up(void **state)
{
    static tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    *state = &arena;
    return 0;
}

static int tear_down(void **state)
{
    tow_arena_deinit(*state);
    return 0;
}

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void expect(tow_status_t status, tow_code_t code, const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static void expect_bytes(tow_xla_bytes_t got, tow_xla_bytes_t wanted)
{
    assert_int_equal(got.data == NULL, wanted.data == NULL);
    assert_int_equal(got.size, wanted.size);
    assert_memory_equal(got.data, wanted.data, wanted.size);
}

static void queries_round_trip(void **state)
{
    const tow_xla_partition_query_t sent = sample_query();
    tow_xla_partition_query_t got;
    void *bytes;
    size_t size;
    must(tow_partition_query_pack(&sent, &bytes, &size));
    must(tow_partition_query_unpack((tow_bytes_t){bytes, size}, *state, &got));
    tow_free(bytes);
    assert_int_equal(got.kind, sent.kind);
    assert_string_equal(got.target, sent.target);
    expect_bytes(got.config, sent.config);
    assert_int_equal(got.operand_count, 3);
    for (size_t i = 0; i < 3; i++) {
        expect_bytes(got.operands[i].shape, operands[i].shape);
        expect_bytes(got.operands[i].sharding, operands[i].sharding);
    }
    expect_bytes(got.result.shape, sent.result.shape);
    expect_bytes(got.result.sharding, sent.result.sharding);
}

static void replies_round_trip(void **state)
{
    tow_xla_partition_reply_t sent = sample_answer(), got;
    void *bytes;
    size_t size;
    must(tow_partition_reply_pack(&sent, &bytes, &size));
    must(tow_partition_reply_unpack((tow_bytes_t){bytes, size}, *state, &got));
    tow_free(bytes);
    expect_bytes(got.program, sent.program);
    expect_bytes(got.result_sharding, sent.result_sharding);
    assert_int_equal(got.operand_count, 2);
    for (size_t i = 0; i < 2; i++)
        expect_bytes(got.operand_shardings[i], shardings[i]);

    sent.result_sharding = (tow_xla_bytes_t){0};
    must(tow_partition_reply_pack(&sent, &bytes, &size));
    must(tow_partition_reply_unpack((tow_bytes_t){bytes, size}, *state, &got));
    tow_free(bytes);
    assert_null(got.result_sharding.data);
}

static void query_of_an_unknown_kind_is_refused(void **state)
{
    tow_xla_partition_query_t query = sample_query();
    void *bytes;
    size_t size;
    query.kind = (tow_xla_partition_query_kind_t)9;
    must(tow_partition_query_pack(&query, &bytes, &size));
    expect(
        tow_partition_query_unpack((tow_bytes_t){bytes, size}, *state, &query),
        TOW_INVALID_ARGUMENT, "kind 9");
    tow_free(bytes);
}

static void what_is_too_large_is_refused(void **state)
{
    (void)state;
    tow_xla_partition_query_t query = sample_query();
    tow_xla_partition_reply_t reply = sample_answer();
    void *bytes;
    size_t size;
    query.config.size = TOW_PARTITION_CONFIG_MAX + 1;
    expect(tow_partition_query_pack(&query, &bytes, &size), TOW_OUT_OF_RANGE,
           "configuration");
    query = sample_query();
    query.operand_count = TOW_VALUES_MAX + 1;
    expect(tow_partition_query_pack(&query, &bytes, &size), TOW_OUT_OF_RANGE,
           "operands");
    reply.program.size = TOW_PARTITION_PROGRAM_MAX + 1;
    expect(tow_partition_reply_pack(&reply, &bytes, &size), TOW_OUT_OF_RANGE,
           "program");
}

static void garbage_is_refused(void **state)
{
    tow_xla_partition_query_t query;
    tow_xla_partition_reply_t reply;
    const tow_bytes_t garbage = {"\xff\xff\xff", 3};
    expect(tow_partition_query_unpack(garbage, *state, &query),
           TOW_INVALID_ARGUMENT, "PartitionQueryContent");
    expect(tow_partition_reply_unpack(garbage, *state, &reply),
           TOW_INVALID_ARGUMENT, "PartitionReplyContent");
}

static void every_field_has_a_limit(void **state)
{
    (void)state;
    assert_true(tow_limits_are_complete(&tow_partition_query_content_limits));
    assert_true(tow_limits_are_complete(&tow_partition_reply_content_limits));
}

#define WITH_ARENA(test) \
    cmocka_unit_test_setup_teardown(test, set_up, tear_down)

TOW_TEST_MAIN(WITH_ARENA(queries_round_trip), WITH_ARENA(replies_round_trip),
              WITH_ARENA(query_of_an_unknown_kind_is_refused),
              WITH_ARENA(what_is_too_large_is_refused),
              WITH_ARENA(garbage_is_refused),
              WITH_ARENA(every_field_has_a_limit))
