#include "ir/ir_testing_impl.h"

static void refuses_with(tow_code_t code, const char *text, const char *message)
{
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program = ir_program_of(text);
    must_fail(tow_graph_verify(program, &fixture.scope.program), code, message);
    tow_graph_destroy(program);
}

static void refuses(const char *text, const char *message)
{
    refuses_with(TOW_INVALID_ARGUMENT, text, message);
}

static void accepts(const char *text)
{
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_verify(program, &fixture.scope.program));
    tow_graph_destroy(program);
}

#define X "%0 = argument \"x\" : f32[4] on slice 1 "

static void programs_that_can_run_are_accepted(void **state)
{
    (void)state;
    accepts("program {" X "%1 = compute \"A\" function 3 on slice 1 (%0, %0)"
            "%2 = result (%1) }");
    /* No argument; an output that nobody uses; a value that is two results. */
    accepts("program { %0 = compute function 6 on slice 2 ()"
            "%1 = compute function 4 on slice 2 (%0)"
            "%2 = result (%1) %3 = result (%1) }");
    /* Passed through, as long as its slice has work. */
    accepts("program {" X "%1 = compute function 1 on slice 1 (%0)"
            "%2 = result (%0) }");
    /* Nodes may stand before their inputs. */
    accepts("program { %0 = result (%1) %1 = compute function 1 on slice 1 (%3)"
            "%2 = argument : f32[4] on slice 1"
            "%3 = compute function 1 on slice 1 (%2) }");
}

static void programs_made_by_chance_to_be_right_are_accepted(void **state)
{
    (void)state;
    tow_random_t random;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 3);
    tow_random_init(&random, 7);
    for (int i = 0; i < 500; i++) {
        tow_graph_t *program = ir_random_program(&random);
        must(tow_graph_verify(program, &fixture.scope.program));
        tow_graph_destroy(program);
    }
}

static void nonsense_is_refused_and_never_crashes(void **state)
{
    (void)state;
    tow_random_t random;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 3);
    tow_random_init(&random, 8);
    for (int i = 0; i < 2000; i++) {
        tow_graph_t *program = ir_random_malformed(&random);
        tow_status_t status = tow_graph_verify(program, &fixture.scope.program);
        assert_true(status != TOW_OK);
        tow_status_release(status);
        tow_graph_destroy(program);
    }
}

static void an_input_that_names_no_node_is_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = compute \"A\" function 1 on slice 1 (%7)"
            "%2 = result (%1) }",
            "node 1 \"A\": input 0 is of node 7, and there are 3 nodes");
    refuses("program {" X "%1 = compute \"A\" function 1 on slice 1 (%0)"
            "%2 = result \"y\" (%3) }",
            "node 2 \"y\": input 0 is of node 3, and there are 3 nodes");
}

static void an_input_that_names_no_output_is_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = compute \"A\" function 3 on slice 1 (%0, %0:1)"
            "%2 = result (%1) }",
            "node 1 \"A\": input 1 is output 1 of node 0 \"x\", which has 1");
    refuses("program {" X "%1 = compute \"A\" function 4 on slice 1 (%0)"
            "%2 = result (%1:2) }",
            "node 2: input 0 is output 2 of node 1 \"A\", which has 2");
}

static void a_result_that_is_used_is_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = result \"y\" (%0)"
            "%2 = compute \"A\" function 1 on slice 1 (%1) %3 = result (%2) }",
            "node 2 \"A\": input 0 is node 1 \"y\", a result; use the value "
            "that it is of");
    refuses("program {" X "%1 = compute function 1 on slice 1 (%0)"
            "%2 = result \"y\" (%2) }",
            "node 2 \"y\": input 0 is node 2 \"y\", a result; use the value "
            "that it is of");
}

static void unknown_slices_and_functions_are_refused(void **state)
{
    (void)state;
    refuses("program { %0 = argument \"x\" : f32[4] on slice 9"
            "%1 = result (%0) }",
            "node 0 \"x\": there is no slice 9; it was never opened, or is "
            "closed");
    refuses("program {" X "%1 = compute \"A\" function 1 on slice 0 (%0)"
            "%2 = result (%1) }",
            "node 1 \"A\": there is no slice 0; it was never opened, or is "
            "closed");
    refuses("program {" X "%1 = compute \"A\" function 77 on slice 1 (%0)"
            "%2 = result (%1) }",
            "node 1 \"A\": there is no function 77; it was never compiled, or "
            "has been discarded");
    refuses("program {" X "%1 = compute \"A\" function 8 on slice 1 (%0)"
            "%2 = result (%1) }",
            "node 1 \"A\": the signature of function unknown is unknown, so it "
            "cannot be part of a program");
}

static void a_function_for_another_number_of_devices_is_refused(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    fixture.functions[TEST_INCREMENT].replica_count = 2;
    tow_graph_t *program = ir_program_of(
        "program {" X "%1 = compute \"A\" function 1 on slice 1 (%0)"
        "%2 = result (%1) }");
    must_fail(tow_graph_verify(program, &fixture.scope.program),
              TOW_INVALID_ARGUMENT,
              "node 1 \"A\": function increment is compiled for 8 devices, and "
              "slice 1 has 4");
    tow_graph_destroy(program);
}

static void wrong_argument_counts_are_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = compute \"A\" function 3 on slice 1 (%0)"
            "%2 = result (%1) }",
            "node 1 \"A\": function add takes 2 arguments, not 1");
    refuses("program {" X "%1 = compute \"A\" function 1 on slice 1 (%0)"
            "%2 = result \"y\" (%1, %1) }",
            "node 2 \"y\": a result is one value, not 2");
    refuses("program {" X "%1 = result \"y\" () }",
            "node 1 \"y\": a result is one value, not 0");
    refuses("program { %0 = argument \"x\" : f32[4] on slice 1 (%0, %0) }",
            "node 0 \"x\": an argument has no inputs, not 2");
}

static void wrong_shapes_and_types_are_refused(void **state)
{
    (void)state;
    refuses("program { %0 = argument \"x\" : f32[4,1] on slice 1 "
            "%1 = compute \"A\" function 1 on slice 1 (%0) %2 = result (%1) }",
            "node 1 \"A\": input 0, of node 0 \"x\": it is f32[4,1], but "
            "function increment takes f32[4]");
    refuses("program {" X "%1 = compute \"A\" function 4 on slice 1 (%0)"
            "%2 = compute \"B\" function 3 on slice 1 (%1, %1:1)"
            "%3 = result (%2) }",
            "node 2 \"B\": input 1, of node 1 \"A\": it is s32[2], but "
            "function add takes f32[4]");
}

static void a_value_used_on_another_slice_is_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = compute \"A\" function 1 on slice 2 (%0)"
            "%2 = result (%1) }",
            "node 1 \"A\": input 0, of node 0 \"x\": it is on slice 1, but the "
            "node runs on slice 2; insert a transfer");
}

static void an_argument_without_a_shape_that_has_bytes_is_refused(void **state)
{
    (void)state;
    refuses(
        "program { %0 = argument \"x\" : #0[] on slice 1 %1 = result (%0) }",
        "node 0 \"x\": an argument needs the shape of one shard");
    refuses_with(TOW_OUT_OF_RANGE,
                 "program { %0 = argument \"x\" : f32[-1] on slice 1 }",
                 "node 0 \"x\": f32[-1]: dimension 0 is negative");
    refuses_with(
        TOW_OUT_OF_RANGE,
        "program { %0 = argument \"x\" : "
        "f32[9223372036854775807] on slice 1 }",
        "node 0 \"x\": f32[9223372036854775807]: more than 2^63 - 1 bytes");
}

static void a_program_without_a_result_is_refused(void **state)
{
    (void)state;
    refuses("program { }", "the program has no result");
    refuses("program {" X "%1 = compute function 1 on slice 1 (%0) }",
            "the program has no result");
}

static void an_argument_of_a_slice_without_computation_is_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = argument \"z\" : f32[4] on slice 2 "
            "%2 = compute function 1 on slice 1 (%0) %3 = result (%1) }",
            "node 1 \"z\": the argument is on slice 2, which no computation or "
            "transfer of the program uses");
}

static void too_many_values_are_refused(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    fixture.functions[TEST_SOURCE].result_count = TOW_SLOTS_MAX / 2 + 1;
    tow_graph_t *program =
        ir_program_of("program { %0 = compute \"A\" function 6 on slice 1 ()"
                      "%1 = compute \"B\" function 6 on slice 1 ()"
                      "%2 = result (%0) }");
    must_fail(tow_graph_verify(program, &fixture.scope.program),
              TOW_INVALID_ARGUMENT,
              "node 1 \"B\": with its outputs the program has more than "
              "4194304 values; split it");
    tow_graph_destroy(program);
}

static void a_cycle_is_refused_and_its_nodes_are_listed(void **state)
{
    (void)state;
    refuses("program {" X "%1 = compute \"A\" function 3 on slice 1 (%0, %3)"
            "%2 = compute \"B\" function 1 on slice 1 (%1)"
            "%3 = compute \"C\" function 1 on slice 1 (%2)"
            "%4 = result (%3) }",
            "node 1 \"A\" depends on itself, in a cycle of 3: node 1 \"A\" -> "
            "node 2 \"B\" -> node 3 \"C\" -> node 1 \"A\"");
    refuses("program { %0 = compute \"A\" function 1 on slice 1 (%0)"
            "%1 = result (%0) }",
            "node 0 \"A\" depends on itself, in a cycle of 1: node 0 \"A\" -> "
            "node 0 \"A\"");
}

static void nodes_behind_a_cycle_are_not_listed(void **state)
{
    (void)state;
    refuses("program { %0 = compute \"D\" function 1 on slice 1 (%2)"
            "%1 = compute \"A\" function 1 on slice 1 (%2)"
            "%2 = compute \"B\" function 1 on slice 1 (%1)"
            "%3 = compute \"E\" function 1 on slice 1 (%0)"
            "%4 = result (%3) }",
            "node 2 \"B\" depends on itself, in a cycle of 2: node 2 \"B\" -> "
            "node 1 \"A\" -> node 2 \"B\"");
}

static void a_long_cycle_is_listed_in_part(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    tow_graph_t *program;
    ir_fixture_init(&fixture, 1);
    must(tow_graph_create("", &program));
    const uint32_t count = 10000;
    for (uint32_t i = 0; i < count; i++) {
        tow_value_t input = {(i + count - 1) % count, 0};
        tow_node_t node = {.kind = TOW_NODE_COMPUTE,
                           .slice = {1},
                           .function = {TEST_INCREMENT},
                           .inputs = &input,
                           .input_count = 1};
        must(tow_graph_add(program, &node, NULL));
    }
    tow_value_t last = {0, 0};
    tow_node_t result = {
        .kind = TOW_NODE_RESULT, .inputs = &last, .input_count = 1};
    must(tow_graph_add(program, &result, NULL));
    must_fail(tow_graph_verify(program, &fixture.scope.program),
              TOW_INVALID_ARGUMENT,
              "node 0 depends on itself, in a cycle of 10000: node 0 -> node 1 "
              "-> node 2 -> node 3 -> node 4 -> node 5 -> node 6 -> node 7 -> "
              "9992 more -> node 0");
    tow_graph_destroy(program);
}

static void names_in_errors_are_safe_and_short(void **state)
{
    (void)state;
    refuses("program { %0 = result \"a\\x0a\\x1b[2J\\\"\" () }",
            "node 0 \"a\\x0a\\x1b[2J\\\"\": a result is one value, not 0");
    char text[512];
    char name[201];
    memset(name, 'n', 200);
    name[200] = '\0';
    snprintf(text, sizeof(text), "program { %%0 = result \"%s\" () }", name);
    refuses(text,
            "node 0 \"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
            "nnnnnnnnnnnnnnnnnnnnnnnnnnn...\": a result is one value, not 0");
}

TOW_TEST_MAIN(
    cmocka_unit_test(programs_that_can_run_are_accepted),
    cmocka_unit_test(programs_made_by_chance_to_be_right_are_accepted),
    cmocka_unit_test(nonsense_is_refused_and_never_crashes),
    cmocka_unit_test(an_input_that_names_no_node_is_refused),
    cmocka_unit_test(an_input_that_names_no_output_is_refused),
    cmocka_unit_test(a_result_that_is_used_is_refused),
    cmocka_unit_test(unknown_slices_and_functions_are_refused),
    cmocka_unit_test(a_function_for_another_number_of_devices_is_refused),
    cmocka_unit_test(wrong_argument_counts_are_refused),
    cmocka_unit_test(wrong_shapes_and_types_are_refused),
    cmocka_unit_test(a_value_used_on_another_slice_is_refused),
    cmocka_unit_test(an_argument_without_a_shape_that_has_bytes_is_refused),
    cmocka_unit_test(a_program_without_a_result_is_refused),
    cmocka_unit_test(an_argument_of_a_slice_without_computation_is_refused),
    cmocka_unit_test(too_many_values_are_refused),
    cmocka_unit_test(a_cycle_is_refused_and_its_nodes_are_listed),
    cmocka_unit_test(nodes_behind_a_cycle_are_not_listed),
    cmocka_unit_test(a_long_cycle_is_listed_in_part),
    cmocka_unit_test(names_in_errors_are_safe_and_short))
