/* Programs: 'g' and the bytes of a graph, 'l' and those of a lowered program,
 * or text. A program that decodes survives printing and packing; one that
 * verifies, with transfers inserted, can be lowered for each worker, and the
 * other side accepts the result. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "fuzz.h"
#include "ir/lower.h"

/* -- A scope with two slices and six functions ------------------------- */

#define F4                                                                   \
    {                                                                        \
        .shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {4}}, .bytes = 16 \
    }

static const tow_array_info_t arrays[] = {F4, F4};
/* f32[8] in two halves, and replicated: arguments and results of functions 5
 * and 6. */
static const uint8_t halves[] = {8, 3, 26, 1, 2, 74, 1, 2, 82, 1, 0};
static const tow_array_info_t cut[] = {
    {.shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {4}},
     .bytes = 16,
     .sharding = {halves, sizeof(halves)}},
    {.shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {8}},
     .bytes = 32,
     .sharding = {halves, 0}}};
static const tow_alias_t aliases[] = {{0, 0, false}, {1, 1, false}};
static const tow_alias_t required[] = {{0, 0, true}};

#define FUNCTION(takes, gives, ...)                                          \
    {                                                                        \
        .name = "f", .replica_count = 1, .partition_count = 2,               \
        .argument_count = takes, .arguments = arrays, .result_count = gives, \
        .results = arrays, .temporary_bytes = 7, __VA_ARGS__                 \
    }

static const tow_signature_t functions[] = {
    FUNCTION(1, 1, .alias_count = 1, .aliases = aliases),
    FUNCTION(2, 2, .alias_count = 2, .aliases = aliases),
    FUNCTION(0, 2, .alias_count = 0),
    FUNCTION(1, 1, .alias_count = 1, .aliases = required),
    {.name = "gather",
     .replica_count = 1,
     .partition_count = 2,
     .argument_count = 1,
     .arguments = &cut[0],
     .result_count = 1,
     .results = &cut[1]},
    {.name = "scatter",
     .replica_count = 1,
     .partition_count = 2,
     .argument_count = 1,
     .arguments = &cut[1],
     .result_count = 1,
     .results = &cut[0]},
};

static size_t slice_devices(void *context, tow_slice_id_t slice)
{
    return slice.value == 1 || slice.value == 2 ? 2 : 0;
}

static const tow_signature_t *find_function(void *context,
                                            tow_function_id_t function)
{
    const uint64_t index = function.value - 1;
    return index < TOW_COUNT_OF(functions) ? &functions[index] : NULL;
}

static tow_executable_id_t find_executable(void *context,
                                           tow_function_id_t function,
                                           tow_slice_id_t slice)
{
    return (tow_executable_id_t){10 * slice.value + function.value};
}

/* Slice 1 is on worker 0; slice 2 has one device on each of two workers; worker
 * 2 has none. */
static tow_place_t place_of(void *context, tow_slice_id_t slice, size_t shard)
{
    if (slice.value == 1)
        return (tow_place_t){0, (uint32_t)shard, (uint32_t)shard, 0};
    return (tow_place_t){(uint32_t)shard, 0, 1, (uint32_t)shard};
}

static bool is_here(void *context, tow_slice_id_t slice)
{
    const tow_lower_scope_t *scope = context;
    return scope->process < (slice.value == 1 ? 1u : 2u);
}

static tow_lower_scope_t scope = {
    .program = {.slice_devices = slice_devices, .function = find_function},
    .executable = find_executable,
    .slice_is_here = is_here,
    .place = place_of,
    .context = &scope,
};

/* -- Checks ---------------------------------------------------------------- */

static void check_message(tow_status_t status)
{
    TOW_ASSERT(strchr(tow_status_message(status), '\n') == NULL);
    tow_status_release(status);
}

static void check_lowered(const tow_lowered_t *lowered)
{
    void *bytes, *bytes_again;
    size_t size, size_again;
    tow_lowered_t *again;
    TOW_ASSERT(tow_lowered_pack(lowered, &bytes, &size) == TOW_OK);
    TOW_ASSERT(tow_lowered_unpack(bytes, size, &again) == TOW_OK);
    TOW_ASSERT(tow_lowered_pack(again, &bytes_again, &size_again) == TOW_OK);
    TOW_ASSERT(size == size_again && memcmp(bytes, bytes_again, size) == 0);
    tow_lowered_destroy(again);
    tow_free(bytes);
    tow_free(bytes_again);
}

/* Only transfers make a program larger than its numbers. */
static void check_costs(const tow_graph_t *program)
{
    tow_graph_cost_t cost;
    tow_result_info_t info;
    for (uint64_t slice = 1; slice <= 2; slice++) {
        tow_status_t status = tow_graph_cost(program, &scope.program,
                                             (tow_slice_id_t){slice}, &cost);
        TOW_ASSERT(status == TOW_OK ||
                   tow_status_code(status) == TOW_OUT_OF_RANGE);
        check_message(status);
    }
    for (size_t i = 0; i < tow_graph_result_count(program); i++)
        TOW_ASSERT(tow_graph_result_info(program, &scope.program, i, &info) ==
                   TOW_OK);
}

static void check_verified(const tow_graph_t *program)
{
    tow_lowered_t *lowered;
    tow_status_t status = tow_graph_verify(program, &scope.program);
    if (status != TOW_OK) {
        check_message(status);
        return;
    }
    check_costs(program);
    for (scope.process = 0; scope.process <= 2; scope.process++) {
        status = tow_graph_lower(program, &scope, &lowered);
        if (status == TOW_OK) check_lowered(lowered);
        tow_lowered_destroy(lowered);
        check_message(status);
    }
}

static void check_meaning(const tow_graph_t *program)
{
    tow_graph_t *complete;
    check_verified(program);
    tow_status_t status = tow_graph_verify_loose(program, &scope.program);
    if (status != TOW_OK) {
        check_message(status);
        return;
    }
    status = tow_graph_insert_transfers(program, &scope.program, &complete);
    if (status == TOW_OK) check_verified(complete);
    tow_graph_destroy(complete);
    check_message(status);
}

static void check_program(const tow_graph_t *program)
{
    char *text, *text_again;
    void *bytes;
    size_t size;
    tow_graph_t *parsed, *unpacked;
    TOW_ASSERT(tow_graph_print(program, &text) == TOW_OK);
    TOW_ASSERT(tow_graph_parse(text, strlen(text), &parsed) == TOW_OK);
    TOW_ASSERT(tow_graph_pack(parsed, &bytes, &size) == TOW_OK);
    TOW_ASSERT(tow_graph_unpack(bytes, size, &unpacked) == TOW_OK);
    TOW_ASSERT(tow_graph_print(unpacked, &text_again) == TOW_OK);
    TOW_ASSERT(strcmp(text, text_again) == 0);
    check_meaning(program);
    tow_graph_destroy(parsed);
    tow_graph_destroy(unpacked);
    tow_free(bytes);
    tow_free(text);
    tow_free(text_again);
}

static void try_lowered(const uint8_t *bytes, size_t count)
{
    tow_lowered_t *lowered;
    tow_status_t status = tow_lowered_unpack(bytes, count, &lowered);
    if (status == TOW_OK) check_lowered(lowered);
    tow_lowered_destroy(lowered);
    check_message(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_graph_t *program = NULL;
    if (count > 0 && bytes[0] == 'l') {
        try_lowered(bytes + 1, count - 1);
        return 0;
    }
    tow_status_t status =
        count > 0 && bytes[0] == 'g'
            ? tow_graph_unpack(bytes + 1, count - 1, &program)
            : tow_graph_parse((const char *)bytes, count, &program);
    if (status == TOW_OK) check_program(program);
    tow_graph_destroy(program);
    check_message(status);
    return 0;
}
