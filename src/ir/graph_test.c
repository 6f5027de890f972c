#include "ir/ir_testing_impl.h"

#include "wire/message.h"

static tow_node_t argument(const char *name)
{
    return (tow_node_t){.kind = TOW_NODE_ARGUMENT,
                        .name = name,
                        .slice = {1},
                        .shape = {.type = TOW_TYPE_F32}};
}

static void nodes_are_numbered_from_zero_and_copied(void **state)
{
    (void)state;
    char name[] = "x";
    tow_value_t input = {0, 0};
    tow_graph_t *program;
    uint32_t index;
    must(tow_graph_create("step", &program));
    assert_string_equal(tow_graph_name(program), "step");
    tow_node_t node = argument(name);
    must(tow_graph_add(program, &node, &index));
    assert_int_equal(index, 0);
    node = (tow_node_t){
        .kind = TOW_NODE_RESULT, .inputs = &input, .input_count = 1};
    must(tow_graph_add(program, &node, &index));
    assert_int_equal(index, 1);
    name[0] = '?';
    input.node = 77;
    assert_int_equal(tow_graph_node_count(program), 2);
    assert_string_equal(tow_graph_node(program, 0)->name, "x");
    assert_string_equal(tow_graph_node(program, 1)->name, "");
    assert_int_equal(tow_graph_node(program, 1)->inputs[0].node, 0);
    tow_graph_destroy(program);
}

static void arguments_and_results_are_in_the_order_of_their_nodes(void **state)
{
    (void)state;
    tow_graph_t *program = ir_program_of(
        "program { %0 = result (%3) %1 = argument : f32[] on slice 1"
        " %2 = compute function 1 on slice 1 (%1)"
        " %3 = argument : f32[] on slice 1 %4 = result (%2) }");
    assert_int_equal(tow_graph_argument_count(program), 2);
    assert_int_equal(tow_graph_argument(program, 0), 1);
    assert_int_equal(tow_graph_argument(program, 1), 3);
    assert_int_equal(tow_graph_result_count(program), 2);
    assert_int_equal(tow_graph_result(program, 0), 0);
    assert_int_equal(tow_graph_result(program, 1), 4);
    tow_graph_destroy(program);
}

static void fields_that_a_kind_does_not_have_are_ignored(void **state)
{
    (void)state;
    tow_graph_t *program;
    tow_node_t node = argument("x");
    node.function.value = 7;
    node.donated = true;
    const tow_sharding_t sharding = sharding_of("4");
    node.from = node.to = &sharding;
    must(tow_graph_create(NULL, &program));
    for (int kind = TOW_NODE_ARGUMENT; kind <= (int)TOW_NODE_KIND_LAST;
         kind++) {
        node.kind = (tow_node_kind_t)kind;
        must(tow_graph_add(program, &node, NULL));
    }
    const tow_node_t *added = tow_graph_node(program, 0);
    assert_true(added->donated && added->slice.value == 1);
    assert_true(added->function.value == 0);
    added = tow_graph_node(program, 1);
    assert_true(!added->donated && added->slice.value == 1);
    assert_true(added->function.value == 7);
    assert_int_equal(added->shape.type, TOW_TYPE_INVALID);
    added = tow_graph_node(program, 2);
    assert_true(added->slice.value == 0 && added->function.value == 0);
    assert_false(tow_sharding_is_known(added->to));
    added = tow_graph_node(program, 3);
    assert_true(added->slice.value == 1 && added->function.value == 0);
    assert_true(tow_sharding_is_known(added->from));
    assert_int_equal(added->shape.type, TOW_TYPE_INVALID);
    tow_graph_destroy(program);
}

static void what_passes_the_limits_of_the_wire_is_refused(void **state)
{
    (void)state;
    static tow_value_t inputs[TOW_VALUES_MAX + 1];
    char name[TOW_NAME_MAX + 2];
    tow_graph_t *program;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    must_fail(tow_graph_create(name, &program), TOW_INVALID_ARGUMENT,
              "creating a program: a name has more than 255 characters");
    assert_null(program);
    must(tow_graph_create("", &program));

    tow_node_t node = argument(name);
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 0: a name has more than 255 characters");
    node = argument("");
    node.shape.rank = TOW_RANK_MAX + 1;
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 0: rank 33 exceeds the limit of 32");
    node = argument("");
    node.kind = (tow_node_kind_t)99;
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 0: unknown node kind 99");
    node = argument("");
    node.to = &(tow_sharding_t){.rank = TOW_RANK_MAX + 1, .replicas = 1};
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 0: a sharding of rank 33 over a mesh of rank 0; the limits "
              "are 32 and 16");
    node = (tow_node_t){.kind = TOW_NODE_COMPUTE,
                        .inputs = inputs,
                        .input_count = TOW_VALUES_MAX + 1};
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 0: 16385 inputs, and a node has at most 16384");
    assert_int_equal(tow_graph_node_count(program), 0);

    node.input_count = TOW_VALUES_MAX;
    must(tow_graph_add(program, &node, NULL));
    tow_graph_destroy(program);
}

static void numbers_of_nodes_arguments_and_results_are_bounded(void **state)
{
    (void)state;
    tow_graph_t *program;
    tow_node_t node = argument("");
    must(tow_graph_create("", &program));
    for (size_t i = 0; i < TOW_VALUES_MAX; i++)
        must(tow_graph_add(program, &node, NULL));
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 16384: a program has at most 16384 arguments and 16384 "
              "results");
    node = (tow_node_t){.kind = TOW_NODE_RESULT};
    for (size_t i = 0; i < TOW_VALUES_MAX; i++)
        must(tow_graph_add(program, &node, NULL));
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 32768: a program has at most 16384 arguments and 16384 "
              "results");
    node = (tow_node_t){.kind = TOW_NODE_COMPUTE};
    while (tow_graph_node_count(program) < TOW_NODES_MAX)
        must(tow_graph_add(program, &node, NULL));
    must_fail(tow_graph_add(program, &node, NULL), TOW_INVALID_ARGUMENT,
              "node 65536: a program has at most 65536 nodes; split it");
    tow_graph_destroy(program);
}

TOW_TEST_MAIN(
    cmocka_unit_test(nodes_are_numbered_from_zero_and_copied),
    cmocka_unit_test(arguments_and_results_are_in_the_order_of_their_nodes),
    cmocka_unit_test(fields_that_a_kind_does_not_have_are_ignored),
    cmocka_unit_test(what_passes_the_limits_of_the_wire_is_refused),
    cmocka_unit_test(numbers_of_nodes_arguments_and_results_are_bounded))
