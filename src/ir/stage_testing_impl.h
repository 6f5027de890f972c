/* A world for tests of transfers: slices with devices on processes, functions
 * with shardings. For test programs only. */
#ifndef TOW_IR_STAGE_TESTING_IMPL_H_
#define TOW_IR_STAGE_TESTING_IMPL_H_

#include "ir/ir_testing_impl.h"

#define STAGE_SLICES    4 /* 1 to 3 */
#define STAGE_FUNCTIONS 12
#define STAGE_DEVICES   2048

/* A function of one to two arguments and one result, written as
 * "f32[2] as 4 -> f32[8] as *4", for as many devices as its shardings say. */
typedef struct stage_function {
    tow_signature_t signature;
    tow_array_info_t arrays[3]; /* arguments, then the result */
    uint8_t bytes[3][TOW_SHARDING_XLA_MAX];
    tow_alias_t alias;
    char name[8];
} stage_function_t;

typedef struct stage_slice {
    size_t count;
    tow_place_t places[STAGE_DEVICES];
} stage_slice_t;

typedef struct stage {
    stage_slice_t slices[STAGE_SLICES];
    stage_function_t functions[STAGE_FUNCTIONS]; /* from 1 on */
    tow_lower_scope_t scope;
} stage_t;

static inline size_t stage_slice_devices(void *context, tow_slice_id_t slice)
{
    const stage_t *stage = context;
    return slice.value < STAGE_SLICES ? stage->slices[slice.value].count : 0;
}

static inline const tow_signature_t *stage_function(void *context,
                                                    tow_function_id_t function)
{
    const stage_t *stage = context;
    if (function.value >= STAGE_FUNCTIONS) return NULL;
    const tow_signature_t *signature =
        &stage->functions[function.value].signature;
    return signature->name != NULL ? signature : NULL;
}

static inline tow_executable_id_t stage_executable(void *context,
                                                   tow_function_id_t function,
                                                   tow_slice_id_t slice)
{
    (void)context;
    return (tow_executable_id_t){1000 * slice.value + function.value};
}

static inline bool stage_slice_is_here(void *context, tow_slice_id_t slice)
{
    const stage_t *stage = context;
    const stage_slice_t *it = &stage->slices[slice.value];
    for (size_t i = 0; i < it->count; i++)
        if (it->places[i].process == stage->scope.process) return true;
    return false;
}

static inline tow_place_t stage_place(void *context, tow_slice_id_t slice,
                                      size_t shard)
{
    const stage_t *stage = context;
    assert_true(shard < stage->slices[slice.value].count);
    return stage->slices[slice.value].places[shard];
}

static inline void stage_init(stage_t *stage)
{
    memset(stage, 0, sizeof(*stage));
    stage->scope = (tow_lower_scope_t){
        .program = {.slice_devices = stage_slice_devices,
                    .function = stage_function,
                    .context = stage},
        .executable = stage_executable,
        .slice_is_here = stage_slice_is_here,
        .place = stage_place,
        .context = stage,
    };
}

/* A slice of `count` devices: `each` on every process from `process` on, which
 * are hosts of their own. */
static inline void stage_open(stage_t *stage, uint64_t slice, size_t count,
                              uint32_t process, uint32_t each)
{
    stage_slice_t *it = &stage->slices[slice];
    it->count = count;
    for (uint32_t i = 0; i < count; i++)
        it->places[i] = (tow_place_t){.process = process + i / each,
                                      .index = i % each,
                                      .device = i % each,
                                      .host = process + i / each};
}

/* "f32[2] as 4", into array `at` of the function. */
static inline void stage_array(stage_function_t *function, size_t at,
                               const char *text, size_t size)
{
    tow_array_info_t *array = &function->arrays[at];
    char shape[64];
    const char *as = memmem(text, size, " as ", 4);
    const size_t shape_size = as != NULL ? (size_t)(as - text) : size;
    snprintf(shape, sizeof(shape), "%.*s", (int)shape_size, text);
    array->shape = shape_of(shape);
    must(tow_shape_bytes(&array->shape, &array->bytes));
    if (as == NULL) return;
    tow_sharding_t sharding;
    must(tow_sharding_parse(as + 4, size - shape_size - 4, &sharding));
    if (!tow_sharding_is_known(&sharding)) return;
    array->sharding.data = function->bytes[at];
    array->sharding.size = tow_sharding_to_xla(&sharding, function->bytes[at]);
}

static inline stage_function_t *stage_define(stage_t *stage, uint64_t number,
                                             size_t device_count,
                                             const char *text)
{
    stage_function_t *function = &stage->functions[number];
    const char *arrow = strstr(text, " -> ");
    size_t count = 0;
    memset(function, 0, sizeof(*function));
    while (text < arrow) {
        const char *end = memmem(text, (size_t)(arrow - text), ", ", 2);
        if (end == NULL) end = arrow;
        stage_array(function, count++, text, (size_t)(end - text));
        text = end == arrow ? arrow : end + 2;
    }
    stage_array(function, count, arrow + 4, strlen(arrow + 4));
    snprintf(function->name, sizeof(function->name), "f%u", (unsigned)number);
    function->signature =
        (tow_signature_t){.name = function->name,
                          .replica_count = 1,
                          .partition_count = device_count,
                          .argument_count = count,
                          .arguments = function->arrays,
                          .result_count = 1,
                          .results = &function->arrays[count]};
    return function;
}

/* Through the passes up to the last but one; the caller destroys it. */
static inline tow_graph_t *stage_insert(stage_t *stage, const char *text)
{
    tow_graph_t *program = program_of(text);
    tow_graph_t *complete;
    must(tow_graph_verify_loose(program, &stage->scope.program));
    must(tow_graph_insert_transfers(program, &stage->scope.program, &complete));
    must(tow_graph_verify(complete, &stage->scope.program));
    stage->scope.client_node_count = (uint32_t)tow_graph_node_count(program);
    tow_graph_destroy(program);
    return complete;
}

static inline tow_lowered_t *stage_lower(stage_t *stage,
                                         const tow_graph_t *program,
                                         uint32_t process)
{
    tow_lowered_t *lowered;
    stage->scope.process = process;
    must(tow_graph_lower(program, &stage->scope, &lowered));
    return lowered;
}

#endif /* TOW_IR_STAGE_TESTING_IMPL_H_ */
