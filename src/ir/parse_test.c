#include "ir/ir_testing_impl.h"

static const char example[] =
    "program \"step\" {\n"
    "  %0 = argument \"x\" : f32[4,8] on slice 1 donated\n"
    "  %1 = compute \"A\" function 3 on slice 1 (%0)\n"
    "  %2 = compute \"B\" function 4 on slice 1 (%1, %1:1)\n"
    "  %3 = result \"y\" (%2)\n"
    "}\n";

static void what_is_read_is_printed_the_same(void **state)
{
    (void)state;
    char *text;
    tow_graph_t *program = ir_program_of(example);
    must(tow_graph_print(program, &text));
    assert_string_equal(text, example);
    tow_free(text);
    tow_graph_destroy(program);
}

static void the_example_means_what_it_says(void **state)
{
    (void)state;
    tow_graph_t *program = ir_program_of(example);
    assert_string_equal(tow_graph_name(program), "step");
    assert_int_equal(tow_graph_node_count(program), 4);
    const tow_node_t *node = tow_graph_node(program, 0);
    assert_int_equal(node->kind, TOW_NODE_ARGUMENT);
    assert_true(node->donated && node->slice.value == 1);
    assert_int_equal(node->shape.rank, 2);
    assert_int_equal(node->shape.dims[1], 8);
    node = tow_graph_node(program, 2);
    assert_int_equal(node->kind, TOW_NODE_COMPUTE);
    assert_string_equal(node->name, "B");
    assert_true(node->function.value == 4);
    assert_int_equal(node->input_count, 2);
    assert_int_equal(node->inputs[1].node, 1);
    assert_int_equal(node->inputs[1].output, 1);
    tow_graph_destroy(program);
}

static void blanks_comments_and_missing_names_are_fine(void **state)
{
    (void)state;
    char *text;
    tow_graph_t *program = ir_program_of(
        "// first\r\nprogram{%0=argument:f32[ ]on slice 18446744073"
        "709551615%1=result(%0:0)//last\n}// end");
    must(tow_graph_print(program, &text));
    assert_string_equal(text, "program {\n"
                              "  %0 = argument : f32[] on slice "
                              "18446744073709551615\n"
                              "  %1 = result (%0)\n"
                              "}\n");
    tow_free(text);
    tow_graph_destroy(program);
}

static void random_programs_survive_text(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 1);
    for (int i = 0; i < 3000; i++) {
        char *text;
        tow_graph_t *again;
        tow_graph_t *program = i % 2 == 0 ? ir_random_malformed(&random)
                                          : ir_random_program(&random);
        must(tow_graph_print(program, &text));
        must(tow_graph_parse(text, strlen(text), &again));
        ir_assert_same_program(program, again);
        tow_graph_destroy(program);
        tow_graph_destroy(again);
        tow_free(text);
    }
}

static void refuses(const char *text, const char *message)
{
    tow_graph_t *program;
    must_fail(tow_graph_parse(text, strlen(text), &program),
              TOW_INVALID_ARGUMENT, message);
    assert_null(program);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    refuses("", "line 1, column 1: expected \"program\"");
    refuses("program \"x", "line 1, column 11: the name has no end; it needs a "
                           "'\"'");
    refuses("program \"\\q\" {}",
            "line 1, column 11: a backslash must be followed by a quote, a "
            "backslash or xNN, not x00");
    refuses("program \"\\x00\" {}",
            "line 1, column 14: a backslash must be followed by a quote, a "
            "backslash or xNN, not x00");
    refuses("program", "line 1, column 8: expected '{'");
    refuses("program {\n  %1 = result (%0)\n}",
            "line 2, column 5: node 1 found where node 0 is expected; nodes "
            "are numbered from 0");
    refuses("program {\n\n  %0 = widget\n}",
            "line 3, column 8: a node is an argument, compute, host, transfer, "
            "all_reduce or result");
    refuses("program {\n  %0 = argument : f33[2] on slice 1\n}",
            "line 2, column 19: expected a shape, such as f32[2,3]");
    refuses("program {\n  %0 = argument : f32[2 on slice 1\n}",
            "line 2, column 25: expected ']'");
    refuses("program {\n  %0 = argument : f32[2] slice 1\n}",
            "line 2, column 26: expected \"on\"");
    refuses("program {\n  %0 = compute function 1 on slice "
            "18446744073709551616 ()\n}",
            "line 2, column 36: the number exceeds 18446744073709551615");
    refuses("program {\n  %0 = result (%4294967296)\n}",
            "line 2, column 17: the number exceeds 4294967295");
    refuses("program {\n  %0 = result (%)\n}",
            "line 2, column 17: expected a number");
    refuses("program {\n  %0 = result (%1 %2)\n}",
            "line 2, column 19: expected ')'");
    refuses("program { } x",
            "line 1, column 13: unexpected text after the end of the program");
    refuses("program {", "line 1, column 10: expected '%'");
}

static void limits_hold_for_text_too(void **state)
{
    (void)state;
    char text[512];
    char name[257];
    char dims[65];
    memset(name, 'n', 256);
    name[256] = '\0';
    snprintf(text, sizeof(text), "program \"%s\" {}", name);
    refuses(text, "line 1, column 265: a name has at most 255 characters");
    for (size_t i = 0; i < 64; i++)
        dims[i] = i % 2 == 0 ? '1' : ',';
    dims[64] = '\0';
    snprintf(text, sizeof(text), "program { %%0 = argument : f32[%s1] on",
             dims);
    refuses(text, "line 1, column 95: a shape has at most 32 dimensions");
}

static void text_ends_where_its_size_says(void **state)
{
    (void)state;
    const size_t size = strlen(example);
    for (size_t cut = 0; cut < size - 2; cut++) {
        tow_graph_t *program;
        char *copy = tow_malloc(cut + 1);
        assert_non_null(copy);
        memcpy(copy, example, cut);
        tow_status_t status = tow_graph_parse(copy, cut, &program);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
        tow_free(copy);
    }
    tow_graph_t *program;
    must_fail(tow_graph_parse("program \0{}", 11, &program),
              TOW_INVALID_ARGUMENT, "line 1, column 9: expected '{'");
}

TOW_TEST_MAIN(cmocka_unit_test(what_is_read_is_printed_the_same),
              cmocka_unit_test(the_example_means_what_it_says),
              cmocka_unit_test(blanks_comments_and_missing_names_are_fine),
              cmocka_unit_test(random_programs_survive_text),
              cmocka_unit_test(errors_name_line_and_column),
              cmocka_unit_test(limits_hold_for_text_too),
              cmocka_unit_test(text_ends_where_its_size_says))
