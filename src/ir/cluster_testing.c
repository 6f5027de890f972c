#include "ir/cluster_testing_impl.h"

#include "ir/graph_impl.h"

static size_t cluster_slice_devices(void *context, tow_slice_id_t slice)
{
    const ir_cluster_t *cluster = context;
    return slice.value < IR_CLUSTER_SLICES ? cluster->slices[slice.value].count
                                           : 0;
}

static const tow_signature_t *cluster_function(void *context,
                                               tow_function_id_t function)
{
    const ir_cluster_t *cluster = context;
    if (function.value >= IR_CLUSTER_FUNCTIONS) return NULL;
    const tow_signature_t *signature =
        &cluster->functions[function.value].signature;
    return signature->name != NULL ? signature : NULL;
}

static tow_executable_id_t cluster_executable(void *context,
                                              tow_function_id_t function,
                                              tow_slice_id_t slice)
{
    (void)context;
    return (tow_executable_id_t){1000 * slice.value + function.value};
}

static bool cluster_slice_is_here(void *context, tow_slice_id_t slice)
{
    const ir_cluster_t *cluster = context;
    const ir_cluster_slice_t *it = &cluster->slices[slice.value];
    for (size_t i = 0; i < it->count; i++)
        if (it->places[i].process == cluster->scope.process) return true;
    return false;
}

static tow_place_t cluster_place(void *context, tow_slice_id_t slice,
                                 size_t shard)
{
    const ir_cluster_t *cluster = context;
    assert_true(shard < cluster->slices[slice.value].count);
    return cluster->slices[slice.value].places[shard];
}

void ir_cluster_init(ir_cluster_t *cluster)
{
    memset(cluster, 0, sizeof(*cluster));
    cluster->scope = (tow_lower_scope_t){
        .program = {.slice_devices = cluster_slice_devices,
                    .function = cluster_function,
                    .context = cluster},
        .executable = cluster_executable,
        .slice_is_here = cluster_slice_is_here,
        .place = cluster_place,
        .context = cluster,
    };
}

void ir_cluster_open_slice(ir_cluster_t *cluster, uint64_t slice, size_t count,
                           uint32_t process, uint32_t each)
{
    ir_cluster_slice_t *it = &cluster->slices[slice];
    it->count = count;
    for (uint32_t i = 0; i < count; i++)
        it->places[i] = (tow_place_t){.process = process + i / each,
                                      .index = i % each,
                                      .device = i % each,
                                      .host = process + i / each};
}

/* "f32[2] as 4", into array `at` of the function. */
static void cluster_array(ir_cluster_function_t *function, size_t at,
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

ir_cluster_function_t *ir_cluster_define(ir_cluster_t *cluster, uint64_t number,
                                         size_t device_count, const char *text)
{
    ir_cluster_function_t *function = &cluster->functions[number];
    const char *arrow = strstr(text, " -> ");
    size_t count = 0;
    memset(function, 0, sizeof(*function));
    while (text < arrow) {
        const char *end = memmem(text, (size_t)(arrow - text), ", ", 2);
        if (end == NULL) end = arrow;
        cluster_array(function, count++, text, (size_t)(end - text));
        text = end == arrow ? arrow : end + 2;
    }
    cluster_array(function, count, arrow + 4, strlen(arrow + 4));
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

tow_graph_t *ir_cluster_insert(ir_cluster_t *cluster, const char *text)
{
    tow_graph_t *program = ir_program_of(text);
    tow_graph_t *complete;
    must(tow_graph_verify_loose(program, &cluster->scope.program));
    must(tow_graph_insert_transfers(program, &cluster->scope.program,
                                    &complete));
    tow_graph_check(complete);
    must(tow_graph_verify(complete, &cluster->scope.program));
    cluster->scope.client_node_count = (uint32_t)tow_graph_node_count(program);
    tow_graph_destroy(program);
    return complete;
}

tow_lowered_t *ir_cluster_lower(ir_cluster_t *cluster,
                                const tow_graph_t *program, uint32_t process)
{
    tow_lowered_t *lowered;
    cluster->scope.process = process;
    must(tow_graph_lower(program, &cluster->scope, &lowered));
    return lowered;
}
