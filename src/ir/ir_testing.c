#include "ir/ir_testing_impl.h"

#include "ir/graph_impl.h"

/* -- Random shardings ------------------------------------------------------ */

/* Returns a number of devices, and its factors. */
static size_t random_factors(tow_random_t *random, uint32_t count,
                             uint32_t *factors)
{
    size_t product = 1;
    for (uint32_t i = 0; i < count; i++) {
        factors[i] = (uint32_t)(1 + tow_random_below(random, 4));
        if (product * factors[i] > 200) factors[i] = 1;
        product *= factors[i];
    }
    return product;
}

static void random_order(tow_random_t *random, uint32_t count, uint32_t *axes)
{
    for (uint32_t i = 0; i < count; i++)
        axes[i] = i;
    for (uint32_t i = count; i-- > 1;) {
        const uint32_t other = (uint32_t)tow_random_below(random, i + 1);
        const uint32_t old = axes[i];
        axes[i] = axes[other];
        axes[other] = old;
    }
}

/* A random mesh of that many devices. */
static void random_mesh(tow_random_t *random, size_t device_count,
                        tow_sharding_t *sharding)
{
    uint32_t rank = 0;
    for (uint32_t factor = 2; device_count > 1; factor++)
        while (device_count % factor == 0) {
            device_count /= factor;
            if (rank > 0 && (rank == 8 || tow_random_below(random, 2) == 0))
                sharding->mesh_dims[rank - 1] *= factor;
            else
                sharding->mesh_dims[rank++] = factor;
        }
    sharding->mesh_rank = rank;
    random_order(random, rank, sharding->mesh_axes);
}

tow_sharding_t ir_random_sharding_of(tow_random_t *random, uint32_t rank,
                                     size_t *out_devices)
{
    tow_sharding_t sharding = {.rank = rank};
    *out_devices = random_factors(random, sharding.rank, sharding.parts);
    sharding.replicas = (uint32_t)(1 + tow_random_below(random, 4));
    *out_devices *= sharding.replicas;
    if (tow_random_below(random, 3) > 0)
        random_mesh(random, *out_devices, &sharding);
    return sharding;
}

tow_sharding_t ir_random_sharding(tow_random_t *random, size_t *out_devices)
{
    return ir_random_sharding_of(random, (uint32_t)tow_random_below(random, 5),
                                 out_devices);
}

/* -- Fixture --------------------------------------------------------------- */

const tow_signature_t *ir_test_signature(size_t function)
{
    static const tow_array_info_t arrays[] = {TEST_F4, TEST_F4};
    static const tow_array_info_t split[] = {TEST_F4,
                                             TEST_ARRAY(TOW_TYPE_S32, 2, 4)};
    static const tow_array_info_t huge[] = {
        {.shape = {.type = TOW_TYPE_S8}, .bytes = INT64_MAX}};
    static const tow_array_info_t bounded[] = {
        {.shape = {.type = TOW_TYPE_F32, .rank = 1, .dims = {4}},
         .bytes = 16,
         .bounds = 1}};
    static const tow_alias_t aliases[] = {{0, 0, false}, {1, 1, false}};
    static const tow_alias_t insistent[] = {{0, 0, true}};
    static const tow_signature_t signatures[TEST_FUNCTION_COUNT] = {
        [TEST_INCREMENT] = {.name = "increment",
                            .argument_count = 1,
                            .arguments = arrays,
                            .result_count = 1,
                            .results = arrays,
                            .alias_count = 1,
                            .aliases = aliases},
        [TEST_PLAIN] = {.name = "plain",
                        .argument_count = 1,
                        .arguments = arrays,
                        .result_count = 1,
                        .results = arrays,
                        .temporary_bytes = 100},
        [TEST_ADD] = {.name = "add",
                      .argument_count = 2,
                      .arguments = arrays,
                      .result_count = 1,
                      .results = arrays},
        [TEST_SPLIT] = {.name = "split",
                        .argument_count = 1,
                        .arguments = arrays,
                        .result_count = 2,
                        .results = split},
        [TEST_INSIST] = {.name = "insist",
                         .argument_count = 1,
                         .arguments = arrays,
                         .result_count = 1,
                         .results = arrays,
                         .alias_count = 1,
                         .aliases = insistent},
        [TEST_SOURCE] = {.name = "source",
                         .result_count = 1,
                         .results = arrays},
        [TEST_SWAP] = {.name = "swap",
                       .argument_count = 2,
                       .arguments = arrays,
                       .result_count = 2,
                       .results = arrays,
                       .alias_count = 2,
                       .aliases = aliases},
        [TEST_UNKNOWN] = {.name = "unknown",
                          .argument_count = TOW_COUNT_UNKNOWN,
                          .result_count = 1,
                          .results = arrays},
        [TEST_HUGE] = {.name = "huge", .result_count = 1, .results = huge},
        [TEST_HOST] = {.name = "host",
                       .argument_count = 1,
                       .arguments = arrays,
                       .result_count = 1,
                       .results = arrays,
                       .is_host = true},
        [TEST_FILTER] = {.name = "filter",
                         .argument_count = 1,
                         .arguments = arrays,
                         .result_count = 1,
                         .results = bounded,
                         .is_host = true},
        [TEST_PAD] = {.name = "pad",
                      .argument_count = 1,
                      .arguments = bounded,
                      .result_count = 1,
                      .results = arrays,
                      .is_host = true},
    };
    return &signatures[function];
}

static size_t fixture_slice_devices(void *context, tow_slice_id_t slice)
{
    const ir_fixture_t *fixture = context;
    return slice.value == 1 || slice.value == 2 ? fixture->device_count : 0;
}

static const tow_signature_t *fixture_function(void *context,
                                               tow_function_id_t function)
{
    const ir_fixture_t *fixture = context;
    if (function.value == 0 || function.value >= TEST_FUNCTION_COUNT)
        return NULL;
    return &fixture->functions[function.value];
}

static tow_executable_id_t fixture_executable(void *context,
                                              tow_function_id_t function,
                                              tow_slice_id_t slice)
{
    (void)context;
    return (tow_executable_id_t){1000 * slice.value + function.value};
}

static bool fixture_slice_is_here(void *context, tow_slice_id_t slice)
{
    const ir_fixture_t *fixture = context;
    return tow_slice_id_is_none(fixture->here) ||
           tow_slice_id_equal(slice, fixture->here);
}

static tow_place_t fixture_place(void *context, tow_slice_id_t slice,
                                 size_t shard)
{
    const uint32_t process = fixture_slice_is_here(context, slice) ? 0 : 1;
    return (tow_place_t){.process = process,
                         .index = (uint32_t)shard,
                         .device = (uint32_t)shard,
                         .host = process};
}

void ir_fixture_init(ir_fixture_t *fixture, size_t device_count)
{
    *fixture = (ir_fixture_t){.device_count = device_count};
    for (size_t i = 1; i < TEST_FUNCTION_COUNT; i++) {
        fixture->functions[i] = *ir_test_signature(i);
        fixture->functions[i].replica_count = 1;
        fixture->functions[i].partition_count = device_count;
    }
    fixture->scope = (tow_lower_scope_t){
        .program = {.slice_devices = fixture_slice_devices,
                    .function = fixture_function,
                    .context = fixture},
        .executable = fixture_executable,
        .slice_is_here = fixture_slice_is_here,
        .place = fixture_place,
        .context = fixture,
    };
}

/* -- Programs -------------------------------------------------------------- */

tow_graph_t *ir_program_of(const char *text)
{
    tow_graph_t *program;
    must(tow_graph_parse(text, strlen(text), &program));
    return program;
}

static void assert_same_sharding(const tow_sharding_t *a,
                                 const tow_sharding_t *b)
{
    assert_true((a == NULL) == (b == NULL));
    if (a != NULL) assert_memory_equal(a, b, sizeof(*a));
}

static void assert_same_node(const tow_node_t *a, const tow_node_t *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_string_equal(a->name, b->name);
    assert_true(a->slice.value == b->slice.value);
    assert_true(a->function.value == b->function.value);
    assert_true(tow_shape_equal(&a->shape, &b->shape));
    assert_int_equal(a->donated, b->donated);
    assert_int_equal(a->time_limit_ms, b->time_limit_ms);
    assert_same_sharding(a->from, b->from);
    assert_same_sharding(a->to, b->to);
    assert_true((a->collective == NULL) == (b->collective == NULL));
    if (a->collective != NULL)
        assert_memory_equal(a->collective, b->collective,
                            sizeof(*a->collective));
    assert_int_equal(a->input_count, b->input_count);
    for (size_t i = 0; i < a->input_count; i++) {
        assert_int_equal(a->inputs[i].node, b->inputs[i].node);
        assert_int_equal(a->inputs[i].output, b->inputs[i].output);
    }
}

void ir_assert_same_program(const tow_graph_t *a, const tow_graph_t *b)
{
    tow_graph_check(a);
    tow_graph_check(b);
    assert_string_equal(tow_graph_name(a), tow_graph_name(b));
    assert_int_equal(tow_graph_is_sequential(a), tow_graph_is_sequential(b));
    assert_int_equal(tow_graph_node_count(a), tow_graph_node_count(b));
    for (uint32_t i = 0; i < tow_graph_node_count(a); i++)
        assert_same_node(tow_graph_node(a, i), tow_graph_node(b, i));
    assert_int_equal(tow_graph_argument_count(a), tow_graph_argument_count(b));
    assert_int_equal(tow_graph_result_count(a), tow_graph_result_count(b));
}

static void random_name(tow_random_t *random, char name[16])
{
    const size_t length = tow_random_below(random, 12);
    for (size_t i = 0; i < length; i++)
        name[i] = (char)(1 + tow_random_below(random, 255));
    name[length] = '\0';
}

static void random_shape(tow_random_t *random, tow_shape_t *shape)
{
    shape->type = (tow_type_t)tow_random_below(random, 40);
    shape->rank = (uint32_t)tow_random_below(random, TOW_RANK_MAX + 1);
    for (uint32_t i = 0; i < shape->rank; i++)
        shape->dims[i] =
            (int64_t)(tow_random_next(random) >> tow_random_below(random, 64));
}

static tow_collective_t random_collective(tow_random_t *random)
{
    tow_collective_t collective = {
        .kind = (tow_collective_kind_t)(1 + tow_random_below(random, 2)),
        .reduction = (tow_reduction_t)tow_random_below(random, 6),
        .mesh_rank = (uint32_t)tow_random_below(random, TOW_MESH_RANK_MAX + 1),
        .axis_count = (uint32_t)tow_random_below(random, TOW_MESH_RANK_MAX + 1),
    };
    for (uint32_t i = 0; i < collective.mesh_rank; i++)
        collective.mesh_dims[i] = (uint32_t)tow_random_next(random);
    for (uint32_t i = 0; i < collective.axis_count; i++)
        collective.axes[i] = (uint32_t)tow_random_next(random);
    return collective;
}

tow_graph_t *ir_random_malformed(tow_random_t *random)
{
    char name[16];
    tow_graph_t *program;
    random_name(random, name);
    must(tow_graph_create(name, &program));
    if (tow_random_below(random, 4) == 0) tow_graph_make_sequential(program);
    const size_t count = tow_random_below(random, 20);
    for (size_t i = 0; i < count; i++) {
        tow_value_t inputs[4];
        tow_sharding_t shardings[2];
        tow_node_t node = {.name = name, .inputs = inputs};
        random_name(random, name);
        node.kind =
            (tow_node_kind_t)(1 + tow_random_below(random, TOW_NODE_KIND_LAST));
        node.time_limit_ms = (uint32_t)tow_random_below(random, 3);
        const tow_collective_t collective = random_collective(random);
        if (tow_random_below(random, 4) > 0) node.collective = &collective;
        if (tow_random_below(random, 2) == 0) node.from = &shardings[0];
        if (tow_random_below(random, 2) == 0) node.to = &shardings[1];
        shardings[0] = ir_random_sharding(random, &(size_t){0});
        shardings[1] = ir_random_sharding(random, &(size_t){0});
        node.slice.value = tow_random_next(random);
        node.function.value = tow_random_next(random);
        node.donated = tow_random_below(random, 2);
        node.input_count = tow_random_below(random, 5);
        random_shape(random, &node.shape);
        for (size_t k = 0; k < node.input_count; k++)
            inputs[k] = (tow_value_t){(uint32_t)tow_random_next(random),
                                      (uint32_t)tow_random_below(random, 3)};
        must(tow_graph_add(program, &node, NULL));
    }
    return program;
}

/* -- Random valid programs ------------------------------------------------- */

typedef struct random_program {
    tow_random_t *random;
    size_t count;
    tow_node_t nodes[RANDOM_NODES_MAX];
    tow_value_t inputs[RANDOM_NODES_MAX][2];
} random_program_t;

static tow_value_t random_value(random_program_t *made, uint64_t slice)
{
    for (;;) {
        const uint32_t node =
            (uint32_t)tow_random_below(made->random, made->count);
        const tow_node_t *it = &made->nodes[node];
        if (it->kind == TOW_NODE_RESULT || it->slice.value != slice) continue;
        const bool is_two =
            it->function.value == TEST_SWAP ||
            (it->kind == TOW_NODE_COLLECTIVE && it->input_count == 2);
        return (tow_value_t){
            node, is_two ? (uint32_t)tow_random_below(made->random, 2) : 0};
    }
}

static void random_node(random_program_t *made, tow_node_kind_t kind,
                        uint64_t slice)
{
    static const uint64_t functions[] = {TEST_INCREMENT, TEST_PLAIN,
                                         TEST_ADD,       TEST_SPLIT,
                                         TEST_SOURCE,    TEST_SWAP};
    tow_node_t node = {.kind = kind,
                       .inputs = made->inputs[made->count],
                       .slice = {slice},
                       .donated = tow_random_below(made->random, 2)};
    if (kind == TOW_NODE_ARGUMENT)
        node.shape = ir_test_signature(TEST_ADD)->arguments[0].shape;
    static const tow_collective_t collective = {
        .kind = TOW_COLLECTIVE_ALL_REDUCE, .reduction = TOW_REDUCE_MAX};
    if (kind == TOW_NODE_RESULT) node.input_count = 1;
    if (kind == TOW_NODE_COLLECTIVE) {
        node.collective = &collective;
        node.input_count = 1 + tow_random_below(made->random, 2);
    }
    if (kind == TOW_NODE_COMPUTE) {
        node.function.value =
            functions[tow_random_below(made->random, TOW_COUNT_OF(functions))];
        node.input_count =
            ir_test_signature(node.function.value)->argument_count;
    }
    if (kind == TOW_NODE_HOST) {
        node.function.value = TEST_HOST;
        node.time_limit_ms = (uint32_t)tow_random_below(made->random, 2);
        node.input_count = 1;
    }
    for (size_t i = 0; i < node.input_count; i++)
        made->inputs[made->count][i] = random_value(made, slice);
    made->nodes[made->count++] = node;
}

static tow_graph_t *random_shuffled(random_program_t *made)
{
    uint32_t place[RANDOM_NODES_MAX]; /* by node as made */
    uint32_t maker[RANDOM_NODES_MAX]; /* the reverse */
    tow_graph_t *program;
    for (uint32_t i = 0; i < made->count; i++)
        maker[i] = i;
    for (size_t i = made->count; i-- > 1;) {
        const size_t other = tow_random_below(made->random, i + 1);
        const uint32_t old = maker[i];
        maker[i] = maker[other];
        maker[other] = old;
    }
    for (uint32_t i = 0; i < made->count; i++)
        place[maker[i]] = i;
    must(tow_graph_create("random", &program));
    for (uint32_t i = 0; i < made->count; i++) {
        tow_node_t *node = &made->nodes[maker[i]];
        for (size_t k = 0; k < node->input_count; k++) {
            tow_value_t *value = &made->inputs[maker[i]][k];
            value->node = place[value->node];
        }
        must(tow_graph_add(program, node, NULL));
    }
    return program;
}

tow_graph_t *ir_random_program(tow_random_t *random)
{
    random_program_t made = {.random = random};
    for (uint64_t slice = 1; slice <= 2; slice++) {
        random_node(&made, TOW_NODE_ARGUMENT, slice);
        random_node(&made, TOW_NODE_COMPUTE, slice);
    }
    const size_t more = tow_random_below(random, RANDOM_NODES_MAX - 5);
    for (size_t i = 0; i < more; i++) {
        const uint64_t kind = tow_random_below(random, 9);
        random_node(&made,
                    kind == 0   ? TOW_NODE_ARGUMENT
                    : kind == 1 ? TOW_NODE_RESULT
                    : kind == 2 ? TOW_NODE_HOST
                    : kind == 3 ? TOW_NODE_COLLECTIVE
                                : TOW_NODE_COMPUTE,
                    1 + tow_random_below(random, 2));
    }
    random_node(&made, TOW_NODE_RESULT, 1);
    return random_shuffled(&made);
}
