#include "ir/ir_testing_impl.h"

#include "wire/message.h"

static void random_programs_survive_packing(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 2);
    for (int i = 0; i < 3000; i++) {
        void *bytes;
        size_t size;
        tow_graph_t *again;
        tow_graph_t *program = i % 2 == 0 ? ir_random_malformed(&random)
                                          : ir_random_program(&random);
        must(tow_graph_pack(program, &bytes, &size));
        must(tow_graph_unpack(bytes, size, &again));
        ir_assert_same_program(program, again);
        tow_graph_destroy(program);
        tow_graph_destroy(again);
        tow_free(bytes);
    }
}

/* Flipped bits, cut ends: an error or a program, never a crash. */
static void spoilt_bytes_are_refused_or_harmless(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 3);
    for (int i = 0; i < 3000; i++) {
        void *bytes;
        size_t size;
        tow_graph_t *again;
        tow_graph_t *program = ir_random_program(&random);
        must(tow_graph_pack(program, &bytes, &size));
        for (uint64_t k = 0; k < 1 + tow_random_below(&random, 4); k++)
            ((uint8_t *)bytes)[tow_random_below(&random, size)] ^=
                (uint8_t)(1u << tow_random_below(&random, 8));
        if (i % 3 == 0) size = tow_random_below(&random, size);
        tow_status_t status = tow_graph_unpack(bytes, size, &again);
        assert_true((status == TOW_OK) == (again != NULL));
        tow_status_release(status);
        tow_graph_destroy(again);
        tow_graph_destroy(program);
        tow_free(bytes);
    }
}

static void refuses(tow_msg_graph_node_t *node, tow_code_t code,
                    const char *message)
{
    tow_msg_graph_t graph = TOW_MSG_GRAPH_INIT;
    uint8_t bytes[256];
    tow_graph_t *program;
    graph.nodes = &node;
    graph.n_nodes = 1;
    assert_true(tow_message_size(&graph.base) <= sizeof(bytes));
    const size_t size = tow_message_encode(&graph.base, bytes);
    must_fail(tow_graph_unpack(bytes, size, &program), code, message);
    assert_null(program);
}

static void malformed_nodes_are_refused_with_their_number(void **state)
{
    (void)state;
    uint32_t numbers[3] = {0, 0, 0};
    tow_msg_graph_node_t node = TOW_MSG_GRAPH_NODE_INIT;
    node.kind = 99;
    refuses(&node, TOW_UNIMPLEMENTED,
            "graph, node 0: kind 99 is not known to this version");
    node.kind = TOW_NODE_COMPUTE;
    node.input_nodes = numbers;
    node.n_input_nodes = 3;
    node.input_outputs = numbers;
    node.n_input_outputs = 2;
    refuses(&node, TOW_INVALID_ARGUMENT,
            "graph, node 0: 3 nodes and 2 outputs as inputs");
}

static void no_bytes_are_a_program_without_nodes(void **state)
{
    (void)state;
    tow_graph_t *program;
    must(tow_graph_unpack("", 0, &program));
    assert_int_equal(tow_graph_node_count(program), 0);
    assert_string_equal(tow_graph_name(program), "");
    tow_graph_destroy(program);
}

static void an_argument_without_a_type_has_no_shape(void **state)
{
    (void)state;
    tow_msg_graph_t graph = TOW_MSG_GRAPH_INIT;
    tow_msg_graph_node_t node = TOW_MSG_GRAPH_NODE_INIT;
    tow_msg_graph_node_t *nodes[] = {&node};
    uint8_t bytes[64];
    tow_graph_t *program;
    node.kind = TOW_NODE_ARGUMENT;
    graph.nodes = nodes;
    graph.n_nodes = 1;
    must(tow_graph_unpack(bytes, tow_message_encode(&graph.base, bytes),
                          &program));
    assert_int_equal(tow_graph_node(program, 0)->shape.type, TOW_TYPE_INVALID);
    tow_graph_destroy(program);
}

/* The fewest bytes for the most nodes: memory stays within bounds. */
static void as_many_nodes_as_there_may_be_are_unpacked(void **state)
{
    (void)state;
    void *bytes;
    size_t size;
    tow_graph_t *program, *again;
    const tow_node_t node = {.kind = TOW_NODE_COMPUTE};
    must(tow_graph_create("", &program));
    for (size_t i = 0; i < TOW_NODES_MAX; i++)
        must(tow_graph_add(program, &node, NULL));
    must(tow_graph_pack(program, &bytes, &size));
    assert_int_equal(size, 4 * TOW_NODES_MAX);
    must(tow_graph_unpack(bytes, size, &again));
    assert_int_equal(tow_graph_node_count(again), TOW_NODES_MAX);
    tow_free(bytes);
    tow_graph_destroy(program);
    tow_graph_destroy(again);
}

TOW_TEST_MAIN(cmocka_unit_test(random_programs_survive_packing),
              cmocka_unit_test(spoilt_bytes_are_refused_or_harmless),
              cmocka_unit_test(malformed_nodes_are_refused_with_their_number),
              cmocka_unit_test(as_many_nodes_as_there_may_be_are_unpacked),
              cmocka_unit_test(no_bytes_are_a_program_without_nodes),
              cmocka_unit_test(an_argument_without_a_type_has_no_shape))
