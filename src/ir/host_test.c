/* Lowering of host functions and sequential steps. */
#include "ir/cluster_testing_impl.h"

#define HEAD "program { %0 = argument : f32[4] on slice 1 "

static tow_lowered_t *lowered_of(const char *text)
{
    ir_fixture_t fixture;
    tow_lowered_t *lowered;
    ir_fixture_init(&fixture, 2);
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_verify(program, &fixture.scope.program));
    must(tow_graph_lower(program, &fixture.scope, &lowered));
    tow_graph_destroy(program);
    return lowered;
}

static void refuses(const char *text, const char *message)
{
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 2);
    tow_graph_t *program = ir_program_of(text);
    must_fail(tow_graph_verify(program, &fixture.scope.program),
              TOW_INVALID_ARGUMENT, message);
    tow_graph_destroy(program);
}

static void text_and_bytes_keep_all_of_a_host_node(void **state)
{
    (void)state;
    static const char text[] =
        "program \"p\" sequential {\n"
        "  %0 = argument : f32[4] on slice 1\n"
        "  %1 = host \"h\" function 10 within 250 ms on slice 1 (%0)\n"
        "  %2 = host function 10 on slice 1 (%1)\n"
        "  %3 = result (%2)\n"
        "}\n";
    char *printed;
    void *bytes;
    size_t size;
    tow_graph_t *programs[2];
    programs[0] = ir_program_of(text);
    must(tow_graph_print(programs[0], &printed));
    assert_string_equal(printed, text);
    must(tow_graph_pack(programs[0], &bytes, &size));
    must(tow_graph_unpack(bytes, size, &programs[1]));
    ir_assert_same_program(programs[0], programs[1]);
    tow_free(bytes);
    tow_free(printed);
    tow_graph_destroy(programs[0]);
    tow_graph_destroy(programs[1]);
}

/* Sizes are known, so it is dispatched early, like a computation. */
static void a_regular_host_function_is_not_sequential(void **state)
{
    (void)state;
    tow_lowered_t *lowered = lowered_of(
        HEAD "%1 = host function 10 within 7 ms on slice 1 (%0) "
             "%2 = compute function 2 on slice 1 (%1) %3 = result (%2) }");
    assert_int_equal(lowered->step_count, 2);
    assert_true(lowered->steps[0].is_host && !lowered->steps[0].is_sequential);
    assert_int_equal(lowered->steps[0].time_limit_ms, 7);
    assert_int_equal(lowered->steps[0].executable.value, 1010);
    assert_false(lowered->steps[1].is_host || lowered->steps[1].is_sequential);
    tow_lowered_destroy(lowered);
}

static void only_what_touches_an_irregular_value_is_sequential(void **state)
{
    (void)state;
    tow_lowered_t *lowered = lowered_of(
        HEAD "%1 = host function 11 on slice 1 (%0) "
             "%2 = host function 12 on slice 1 (%1) "
             "%3 = compute function 2 on slice 1 (%2) %4 = result (%3) "
             "%5 = result (%1) }");
    static const bool wanted[] = {true, true, false};
    void *bytes;
    size_t size;
    tow_lowered_t *again;
    must(tow_lowered_pack(lowered, &bytes, &size));
    must(tow_lowered_unpack(bytes, size, &again));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(lowered->steps[i].is_sequential, wanted[i]);
        assert_int_equal(again->steps[i].is_sequential, wanted[i]);
        assert_int_equal(again->steps[i].is_host, i < 2);
    }
    tow_free(bytes);
    tow_lowered_destroy(again);
    tow_lowered_destroy(lowered);
}

static void all_of_a_sequential_program_is(void **state)
{
    (void)state;
    tow_lowered_t *lowered = lowered_of(
        "program sequential { %0 = argument : f32[4] on slice 1 "
        "%1 = compute function 2 on slice 1 (%0) %2 = result (%1) }");
    assert_true(lowered->steps[0].is_sequential);
    tow_lowered_destroy(lowered);
}

static void computations_and_host_functions_are_not_confused(void **state)
{
    (void)state;
    refuses(HEAD "%1 = compute function 10 on slice 1 (%0) %2 = result (%1) }",
            "node 1: function host is a host function, and the node a "
            "computation");
    refuses(HEAD "%1 = host function 2 on slice 1 (%0) %2 = result (%1) }",
            "node 1: function plain is a computation, and the node a host "
            "function");
}

static void a_computation_takes_no_irregular_value(void **state)
{
    (void)state;
    refuses(HEAD "%1 = host function 11 on slice 1 (%0) "
                 "%2 = compute function 2 on slice 1 (%1) %3 = result (%2) }",
            "node 2: input 0, of node 1: the size of its dimension 0 is known "
            "only at run time, and function plain takes a fixed size; pad it "
            "in a host function");
}

/* -- Over slices ----------------------------------------------------------- */

static tow_graph_t *inserted(const char *text, ir_cluster_t *cluster)
{
    tow_graph_t *out;
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_verify_loose(program, &cluster->scope.program));
    must(tow_graph_insert_transfers(program, &cluster->scope.program, &out));
    tow_graph_destroy(program);
    return out;
}

static void host_stage(ir_cluster_t *cluster)
{
    ir_cluster_init(cluster);
    for (size_t s = 1; s <= 2; s++) {
        cluster->slices[s].count = 2;
        for (uint32_t i = 0; i < 2; i++)
            cluster->slices[s].places[i] =
                (tow_place_t){.process = (uint32_t)s, .index = i, .device = i};
    }
    for (size_t i = 1; i <= 2; i++) {
        ir_cluster_function_t *function = &cluster->functions[i];
        const tow_array_info_t array = TEST_F4;
        function->arrays[0] = function->arrays[2] = array;
        function->arrays[i == 1 ? 2 : 0].bounds = 1;
        function->signature = (tow_signature_t){.name = "h",
                                                .replica_count = 1,
                                                .partition_count = 2,
                                                .argument_count = 1,
                                                .arguments = function->arrays,
                                                .result_count = 1,
                                                .results = &function->arrays[2],
                                                .is_host = true};
    }
}

static void an_irregular_value_goes_by_a_sequential_transfer(void **state)
{
    (void)state;
    ir_cluster_t *cluster = tow_calloc(1, sizeof(*cluster));
    host_stage(cluster);
    tow_graph_t *program =
        inserted(HEAD "%1 = host function 1 on slice 1 (%0) "
                      "%2 = host function 2 on slice 2 (%1) %3 = result (%2) }",
                 cluster);
    must(tow_graph_verify(program, &cluster->scope.program));
    tow_result_info_t info;
    must(tow_graph_result_info(program, &cluster->scope.program, 0, &info));
    assert_int_equal(info.bounds, 0);
    tow_lowered_t *lowered;
    cluster->scope.process = 1;
    must(tow_graph_lower(program, &cluster->scope, &lowered));
    assert_int_equal(lowered->step_count, 2);
    assert_true(lowered->steps[1].route != NULL);
    assert_true(lowered->steps[1].is_sequential);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
    tow_free(cluster);
}

static void an_irregular_value_is_not_cut_anew(void **state)
{
    (void)state;
    ir_cluster_t *cluster = tow_calloc(1, sizeof(*cluster));
    host_stage(cluster);
    tow_graph_t *program =
        ir_program_of(HEAD "%1 = host function 1 on slice 1 (%0) "
                           "%2 = transfer from 2 to slice 2 as 1*2 (%1) "
                           "%3 = result (%2) }");
    must_fail(
        tow_graph_verify(program, &cluster->scope.program),
        TOW_INVALID_ARGUMENT,
        "node 2: input 0, of node 1: its size is known only at run time, so it "
        "moves in whole shards and cannot be resharded from 2 to 1*2");
    tow_graph_destroy(program);
    tow_free(cluster);
}

static void a_result_tells_its_bounds(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    tow_result_info_t info;
    ir_fixture_init(&fixture, 2);
    tow_graph_t *program = ir_program_of(
        HEAD "%1 = host function 11 on slice 1 (%0) %2 = result (%1) }");
    must(tow_graph_result_info(program, &fixture.scope.program, 0, &info));
    assert_int_equal(info.bounds, 1);
    assert_int_equal(info.bytes, 16);
    tow_graph_destroy(program);
}

TOW_TEST_MAIN(
    cmocka_unit_test(text_and_bytes_keep_all_of_a_host_node),
    cmocka_unit_test(a_regular_host_function_is_not_sequential),
    cmocka_unit_test(only_what_touches_an_irregular_value_is_sequential),
    cmocka_unit_test(all_of_a_sequential_program_is),
    cmocka_unit_test(computations_and_host_functions_are_not_confused),
    cmocka_unit_test(a_computation_takes_no_irregular_value),
    cmocka_unit_test(an_irregular_value_goes_by_a_sequential_transfer),
    cmocka_unit_test(an_irregular_value_is_not_cut_anew),
    cmocka_unit_test(a_result_tells_its_bounds))
