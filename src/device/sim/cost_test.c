#include "device/sim/device_testing_impl.h"

#include "device/sim/cost.h"

static const char full[] = "towpath-cost 1\n"
                           "name train/step-1.x_y\n"
                           "argument f32[1024,1024]\n"
                           "argument bf16[8,1024]\n"
                           "argument f32[]\n"
                           "result f32[1024,1024] alias 0\n"
                           "result f32[] must_alias 2\n"
                           "result pred[3]\n"
                           "temporary 1048576\n"
                           "compute flops 16777216 bf16 bytes 4194304\n"
                           "compute bytes 0\n"
                           "all_reduce 4194304 group 8 stride 2\n"
                           "barrier group 2\n"
                           "barrier\n"
                           "permute 7\n"
                           "duration 1500\n";

static void a_program_is_read(void **state)
{
    (void)state;
    tow_sim_cost_t cost;
    must(tow_sim_cost_parse(full, strlen(full), &cost));
    assert_string_equal(cost.name, "train/step-1.x_y");
    assert_int_equal(cost.argument_count, 3);
    assert_int_equal(cost.arguments[0].bytes, 4 << 20);
    assert_int_equal(cost.result_count, 3);
    assert_int_equal(cost.alias_count, 2);
    assert_false(cost.aliases[0].required);
    assert_true(cost.aliases[1].required);
    assert_int_equal(cost.aliases[1].argument, 2);
    assert_int_equal(cost.temporary_bytes, 1048576);
    assert_int_equal(cost.step_count, 7);
    assert_int_equal(cost.steps[0].type, TOW_TYPE_BF16);
    assert_int_equal(cost.steps[2].collective, TOW_SIM_ALL_REDUCE);
    assert_int_equal(cost.steps[2].group_size, 8);
    assert_int_equal(cost.steps[2].stride, 2);
    assert_int_equal(cost.steps[6].ns, 1500);
    tow_sim_cost_deinit(&cost);
}

static void what_is_printed_is_read_back_the_same(void **state)
{
    (void)state;
    const char *texts[] = {
        full,
        "towpath-cost 1\n\n# comment\n  duration   1\nname a\n"
        "result s8[2] alias 0\nargument u8[2]\ntemporary 0\n"
        "compute flops 0 f32\nall_gather 1 group 2 stride 1",
    };
    for (size_t i = 0; i < TOW_COUNT_OF(texts); i++) {
        tow_sim_cost_t cost, again;
        char *text, *text_again;
        size_t size, size_again;
        must(tow_sim_cost_parse(texts[i], strlen(texts[i]), &cost));
        must(tow_sim_cost_print(&cost, &text, &size));
        if (i == 0) {
            assert_int_equal(size, strlen(full));
            assert_memory_equal(text, full, size);
        }
        must(tow_sim_cost_parse(text, size, &again));
        must(tow_sim_cost_print(&again, &text_again, &size_again));
        assert_int_equal(size, size_again);
        assert_memory_equal(text, text_again, size);
        tow_free(text);
        tow_free(text_again);
        tow_sim_cost_deinit(&cost);
        tow_sim_cost_deinit(&again);
    }
}

static void expect_refused(const char *lines, const char *words)
{
    char text[4096];
    tow_sim_cost_t cost;
    snprintf(text, sizeof(text), "towpath-cost 1\nname x\n%s", lines);
    expect_error(tow_sim_cost_parse(text, strlen(text), &cost),
                 TOW_INVALID_ARGUMENT, words);
}

static void bad_lines_are_refused_with_their_number(void **state)
{
    (void)state;
    expect_refused("colour red\n", "cost program, line 3: no line begins with "
                                   "\"colour\"");
    expect_refused("name y\n", "line 3: a second name");
    expect_refused("\nargument\n", "line 4: a shape is missing");
    expect_refused("argument f32[2\n", "line 3");
    expect_refused("argument f32[2] f32[3]\n", "line 3: unexpected \"f32[3]\"");
    expect_refused("result f32[2] like 0\n", "line 3: after a result's shape");
    expect_refused("result f32[2] alias\n",
                   "line 3: the argument must be a whole number");
    expect_refused("result f32[2] alias 0\n",
                   "result 0 is an alias of argument 0, and there are 0");
    expect_refused("argument f32[3]\nresult f32[2] alias 0\n",
                   "of another size");
    expect_refused("argument u8[1]\nresult u8[1] alias 0\n"
                   "result u8[1] alias 0\n",
                   "two results are aliases of argument 0");
    expect_refused("temporary -1\n", "bytes must be a whole number below 2^63, "
                                     "not \"-1\"");
    expect_refused("temporary 1\ntemporary 1\n", "line 4: a second");
    expect_refused("compute\n", "line 3: the form is \"compute flops");
    expect_refused("compute flops 1\n", "line 3: flops need an element type");
    expect_refused("compute flops 1 f33\n", "not \"f33\"");
    expect_refused("compute bytes 9223372036854775808\n", "line 3: bytes must");
    expect_refused("duration 9223372036854775807\n", "a duration is at most");
    expect_refused("all_reduce\n", "line 3: bytes must be");
    expect_refused("all_reduce 1 all\n", "line 3: after the bytes comes");
    expect_refused("all_reduce 1 group 0\n", "a group's size must be 1 to");
    expect_refused("all_reduce 1 group 2 step 1\n", "\"stride N\"");
    expect_refused("barrier 1\n", "line 3: after the bytes comes nothing");
    expect_refused("\x01\xff\n", "no line begins with \"??\"");
}

static void bad_wholes_are_refused(void **state)
{
    (void)state;
    tow_sim_cost_t cost;
    const char *huge = "towpath-cost 1\nname x\n"
                       "argument f32[4294967296,4294967296]\n";
    expect_error(tow_sim_cost_parse(huge, strlen(huge), &cost),
                 TOW_OUT_OF_RANGE, "cost program, line 3: f32[");
    expect_error(tow_sim_cost_parse(NULL, 0, &cost), TOW_INVALID_ARGUMENT,
                 "the first line must be \"towpath-cost 1\"");
    expect_error(tow_sim_cost_parse("towpath-cost 2\n", 15, &cost),
                 TOW_INVALID_ARGUMENT, "line 1: the first line must be");
    expect_error(tow_sim_cost_parse("towpath-cost 1\n", 15, &cost),
                 TOW_INVALID_ARGUMENT, "it has no name");
    expect_error(tow_sim_cost_parse("towpath-cost 1\nname a b\n", 24, &cost),
                 TOW_INVALID_ARGUMENT, "line 2: unexpected \"b\"");
    size_t size = TOW_SIM_COST_TEXT_BYTES_MAX + 1;
    char *text = test_malloc(size);
    memset(text, '\n', size);
    expect_error(tow_sim_cost_parse(text, size, &cost), TOW_INVALID_ARGUMENT,
                 "1048577 bytes; 1048576 are allowed");
    test_free(text);
}

static void too_many_steps_are_refused(void **state)
{
    (void)state;
    tow_sim_cost_t cost;
    const char head[] = "towpath-cost 1\nname x\n";
    const char line[] = "barrier\n";
    size_t length = strlen(head) + (TOW_SIM_COST_STEPS_MAX + 1) * strlen(line);
    char *text = test_malloc(length + 1);
    memcpy(text, head, strlen(head));
    for (size_t i = 0; i <= TOW_SIM_COST_STEPS_MAX; i++)
        memcpy(text + strlen(head) + i * strlen(line), line, strlen(line));
    expect_error(tow_sim_cost_parse(text, length, &cost), TOW_INVALID_ARGUMENT,
                 "line 4099: more than 4096 steps");
    test_free(text);
}

static tow_exhaust_result_t read_and_print(void *context)
{
    tow_sim_cost_t cost;
    char *text = NULL;
    size_t size;
    (void)context;
    tow_status_t status = tow_sim_cost_parse(full, strlen(full), &cost);
    if (status == TOW_OK) {
        status = tow_sim_cost_print(&cost, &text, &size);
        tow_sim_cost_deinit(&cost);
    }
    tow_free(text);
    if (status == TOW_OK) return TOW_EXHAUST_SUCCEEDED;
    tow_status_release(status);
    return TOW_EXHAUST_FAILED;
}

static void without_memory_nothing_leaks(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(read_and_print, NULL) > 5);
}

TOW_TEST_MAIN(cmocka_unit_test(a_program_is_read),
              cmocka_unit_test(what_is_printed_is_read_back_the_same),
              cmocka_unit_test(bad_lines_are_refused_with_their_number),
              cmocka_unit_test(bad_wholes_are_refused),
              cmocka_unit_test(too_many_steps_are_refused),
              cmocka_unit_test(without_memory_nothing_leaks))
