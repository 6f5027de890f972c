#include "ir/ir_testing_impl.h"

#define X         "%0 = argument \"x\" : f32[4] on slice 1 "
#define X_DONATED "%0 = argument \"x\" : f32[4] on slice 1 donated "

static void costs(const char *text, uint64_t slice, tow_graph_cost_t wanted)
{
    ir_fixture_t fixture;
    tow_graph_cost_t cost;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_verify(program, &fixture.scope.program));
    must(tow_graph_cost(program, &fixture.scope.program,
                        (tow_slice_id_t){slice}, &cost));
    assert_int_equal(cost.peak_bytes, wanted.peak_bytes);
    assert_int_equal(cost.result_bytes, wanted.result_bytes);
    assert_int_equal(cost.donated_bytes, wanted.donated_bytes);
    assert_int_equal(cost.step_count, wanted.step_count);
    tow_graph_destroy(program);
}

static void temporaries_count_while_a_step_runs(void **state)
{
    (void)state;
    /* Two results of 16 bytes, and the second step's 100 on top. */
    costs("program {" X "%1 = compute function 3 on slice 1 (%0, %0)"
          "%2 = compute function 2 on slice 1 (%0)"
          "%3 = result (%1) %4 = result (%2) }",
          1, (tow_graph_cost_t){132, 32, 0, 2});
}

static void an_intermediate_lives_until_its_last_use(void **state)
{
    (void)state;
    /* A + B, then B + C; A is freed before C is made. */
    costs("program {" X "%1 = compute function 3 on slice 1 (%0, %0)"
          "%2 = compute function 3 on slice 1 (%1, %1)"
          "%3 = compute function 3 on slice 1 (%2, %2) %4 = result (%3) }",
          1, (tow_graph_cost_t){32, 16, 0, 3});
    /* The last step uses A: all three are live at once. */
    costs("program {" X "%1 = compute function 3 on slice 1 (%0, %0)"
          "%2 = compute function 3 on slice 1 (%1, %1)"
          "%3 = compute function 3 on slice 1 (%2, %1) %4 = result (%3) }",
          1, (tow_graph_cost_t){48, 16, 0, 3});
}

static void an_output_that_nobody_uses_counts_while_its_step_runs(void **state)
{
    (void)state;
    costs("program {" X "%1 = compute function 4 on slice 1 (%0)"
          "%2 = result (%1) }",
          1, (tow_graph_cost_t){24, 16, 0, 1});
}

static void a_donated_intermediate_gives_its_bytes_back(void **state)
{
    (void)state;
    costs("program { %0 = compute function 6 on slice 1 ()"
          "%1 = compute function 1 on slice 1 (%0)"
          "%2 = compute function 1 on slice 1 (%1) %3 = result (%2) }",
          1, (tow_graph_cost_t){16, 16, 0, 3});
    /* It is used later, so the function makes a copy. */
    costs("program { %0 = compute function 6 on slice 1 ()"
          "%1 = compute function 1 on slice 1 (%0)"
          "%2 = compute function 3 on slice 1 (%1, %0) %3 = result (%2) }",
          1, (tow_graph_cost_t){48, 16, 0, 3});
}

static void a_consumed_argument_pays_for_what_follows(void **state)
{
    (void)state;
    costs("program {" X_DONATED "%1 = compute function 1 on slice 1 (%0)"
          "%2 = result (%1) }",
          1, (tow_graph_cost_t){0, 16, 16, 1});
    costs("program {" X_DONATED "%1 = compute function 1 on slice 1 (%0)"
          "%2 = compute function 3 on slice 1 (%1, %1) %3 = result (%2) }",
          1, (tow_graph_cost_t){16, 16, 16, 2});
    /* Not donated: copied. */
    costs("program {" X "%1 = compute function 1 on slice 1 (%0)"
          "%2 = result (%1) }",
          1, (tow_graph_cost_t){16, 16, 0, 1});
}

static void results_count_once_and_arguments_not_at_all(void **state)
{
    (void)state;
    costs("program {" X "%1 = compute function 3 on slice 1 (%0, %0)"
          "%2 = result (%1) %3 = result (%1) %4 = result (%0) }",
          1, (tow_graph_cost_t){16, 16, 0, 1});
}

static void each_slice_has_its_own_cost(void **state)
{
    (void)state;
    static const char text[] =
        "program {" X "%1 = compute function 2 on slice 1 (%0)"
        "%2 = compute function 6 on slice 2 ()"
        "%3 = compute function 3 on slice 2 (%2, %2)"
        "%4 = result (%1) %5 = result (%2) %6 = result (%3) }";
    costs(text, 1, (tow_graph_cost_t){116, 16, 0, 1});
    costs(text, 2, (tow_graph_cost_t){32, 32, 0, 2});
    costs(text, 3, (tow_graph_cost_t){0, 0, 0, 0});
}

static void what_transfers_bring_counts_from_the_beginning(void **state)
{
    (void)state;
    /* Both are live when the first step of slice 2 runs, though it uses one. */
    static const char text[] =
        "program {" X "%1 = compute function 3 on slice 1 (%0, %0)"
        "%2 = transfer from 4 to slice 2 as 4 (%0)"
        "%3 = compute function 3 on slice 2 (%2, %2)"
        "%4 = transfer from 4 to slice 2 as 4 (%1)"
        "%5 = compute function 3 on slice 2 (%3, %4) %6 = result (%5) }";
    costs(text, 2, (tow_graph_cost_t){48, 16, 0, 2});
}

static void what_transfers_read_stays_until_the_end(void **state)
{
    (void)state;
    /* %1 is sent while the two after it are made. */
    static const char text[] =
        "program {" X "%1 = compute function 3 on slice 1 (%0, %0)"
        "%2 = transfer from 4 to slice 2 as 4 (%1)"
        "%3 = compute function 3 on slice 1 (%0, %0)"
        "%4 = compute function 3 on slice 1 (%3, %3)"
        "%5 = result (%2) %6 = result (%4) }";
    costs(text, 1, (tow_graph_cost_t){48, 16, 0, 3});
    /* Donated after it was sent: it may be copied. */
    costs("program {" X_DONATED "%1 = transfer from 4 to slice 2 as 4 (%0)"
          "%2 = compute function 1 on slice 1 (%0)"
          "%3 = result (%1) %4 = result (%2) }",
          1, (tow_graph_cost_t){16, 16, 16, 1});
}

static void more_bytes_than_can_be_counted_are_refused(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    tow_graph_cost_t cost;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program =
        ir_program_of("program { %0 = compute \"A\" function 9 on slice 1 ()"
                      "%1 = compute \"B\" function 9 on slice 1 ()"
                      "%2 = result (%0) }");
    must_fail(tow_graph_cost(program, &fixture.scope.program,
                             (tow_slice_id_t){1}, &cost),
              TOW_OUT_OF_RANGE,
              "node 1 \"B\": up to here the program takes more than 2^63 - 1 "
              "bytes of a device");
    tow_graph_destroy(program);
}

/* -- The same, from the lowered program ------------------------------------ */

static bool is_in(const uint32_t *numbers, size_t count, uint32_t number)
{
    for (size_t i = 0; i < count; i++)
        if (numbers[i] == number) return true;
    return false;
}

/* All arrays have 16 bytes, but for SPLIT's second result, which has 8. */
static int64_t walk_lowered(const ir_fixture_t *fixture,
                            const tow_lowered_t *lowered, int64_t *out_end)
{
    int64_t live = 0;
    int64_t peak = 0;
    int64_t lent = 0; /* of what is freed: it stays until the run ends */
    bool is_gone[RANDOM_NODES_MAX * 2] = {false};
    bool is_lent[RANDOM_NODES_MAX * 2] = {false};
    for (size_t s = 0; s < lowered->step_count; s++)
        if (lowered->steps[s].collective != NULL)
            live += 2 * 16 * lowered->steps[s].output_count;
        else if (lowered->steps[s].is_host)
            live += 16;
    peak = live;
    for (size_t s = 0; s < lowered->step_count; s++) {
        const tow_lowered_step_t *step = &lowered->steps[s];
        const tow_signature_t *function =
            &fixture->functions[step->executable.value % 1000];
        const int64_t reduced =
            step->collective != NULL ? 16 * step->output_count : 0;
        live -= reduced;
        for (size_t i = 0; i < step->input_count; i++)
            is_lent[step->inputs[i]] |= reduced > 0 || step->is_host;
        for (uint32_t i = 0; i < step->output_count; i++)
            is_lent[step->first_output + i] = reduced > 0;
        for (size_t i = 0; i < function->result_count && !step->is_host; i++)
            live += (int64_t)function->results[i].bytes;
        for (size_t i = 0; i < function->alias_count; i++) {
            const uint32_t input = (uint32_t)function->aliases[i].argument;
            if (is_in(step->non_donatable, step->non_donatable_count, input))
                continue;
            *(is_lent[step->inputs[input]] ? &lent : &live) -= 16;
            is_gone[step->inputs[input]] = true;
        }
        const int64_t now = live + (int64_t)function->temporary_bytes;
        if (now > peak) peak = now;
        for (size_t i = 0; i < step->freed_count; i++) {
            const uint32_t slot = step->freed[i];
            const bool is_small = function->result_count == 2 &&
                                  function->alias_count == 0 &&
                                  slot == step->first_output + 1;
            if (!is_gone[slot])
                *(is_lent[slot] ? &lent : &live) -= is_small ? 8 : 16;
        }
    }
    *out_end = live + lent;
    return peak;
}

static size_t count_computations(const tow_lowered_t *lowered)
{
    size_t count = 0;
    for (size_t i = 0; i < lowered->step_count; i++)
        count += lowered->steps[i].collective == NULL;
    return count;
}

static void costs_agree_with_the_lowered_program(void **state)
{
    (void)state;
    tow_random_t random;
    ir_fixture_t fixture;
    tow_random_init(&random, 21);
    ir_fixture_init(&fixture, 4);
    for (int i = 0; i < 1000; i++) {
        tow_graph_t *program = ir_random_program(&random);
        for (uint64_t slice = 1; slice <= 2; slice++) {
            tow_lowered_t *lowered;
            tow_graph_cost_t cost;
            int64_t end;
            fixture.here.value = slice;
            must(tow_graph_lower(program, &fixture.scope, &lowered));
            must(tow_graph_cost(program, &fixture.scope.program, fixture.here,
                                &cost));
            assert_int_equal(cost.peak_bytes,
                             walk_lowered(&fixture, lowered, &end));
            assert_int_equal(cost.result_bytes - cost.donated_bytes, end);
            assert_int_equal(cost.step_count, count_computations(lowered));
            tow_lowered_destroy(lowered);
        }
        tow_graph_destroy(program);
    }
}

/* -- Results and arguments ------------------------------------------------- */

static void results_have_the_shape_bytes_and_slice_of_their_value(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    tow_result_info_t info;
    char text[TOW_SHAPE_TEXT_MAX];
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program =
        ir_program_of("program { %0 = compute function 6 on slice 2 ()"
                      "%1 = compute function 4 on slice 2 (%0)"
                      "%2 = result (%1:1) }");
    must(tow_graph_result_info(program, &fixture.scope.program, 0, &info));
    assert_string_equal(tow_shape_format(&info.shape, text), "s32[2]");
    assert_int_equal(info.bytes, 8);
    assert_true(info.slice.value == 2);
    assert_int_equal(info.argument, UINT32_MAX);
    must_fail(tow_graph_result_info(program, &fixture.scope.program, 1, &info),
              TOW_OUT_OF_RANGE, "result 1 of a program that has 1");
    tow_graph_destroy(program);
}

static void consumed_arguments_are_marked_and_donated_by_their_last_step(
    void **state)
{
    (void)state;
    ir_fixture_t fixture;
    bool consumed[5];
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program = ir_program_of(
        "program { %0 = argument \"ends\" : f32[4] on slice 1 donated"
        "%1 = argument \"unmarked\" : f32[4] on slice 1"
        "%2 = argument \"result\" : f32[4] on slice 1 donated"
        "%3 = argument \"unused\" : f32[4] on slice 1 donated"
        "%4 = argument \"twice\" : f32[4] on slice 1 donated"
        "%5 = compute function 7 on slice 1 (%0, %1)"
        "%6 = compute function 7 on slice 1 (%0, %2)"
        "%7 = compute function 7 on slice 1 (%4, %4)"
        "%8 = result (%2) }");
    must(tow_graph_consumed(program, &fixture.scope.program, consumed));
    for (size_t i = 0; i < TOW_COUNT_OF(consumed); i++) {
        assert_int_equal(consumed[i], i == 0);
        assert_int_equal(tow_graph_consumes(program, &fixture.scope.program, i),
                         i == 0);
    }
    tow_graph_destroy(program);
}

TOW_TEST_MAIN(
    cmocka_unit_test(temporaries_count_while_a_step_runs),
    cmocka_unit_test(an_intermediate_lives_until_its_last_use),
    cmocka_unit_test(an_output_that_nobody_uses_counts_while_its_step_runs),
    cmocka_unit_test(a_donated_intermediate_gives_its_bytes_back),
    cmocka_unit_test(a_consumed_argument_pays_for_what_follows),
    cmocka_unit_test(results_count_once_and_arguments_not_at_all),
    cmocka_unit_test(each_slice_has_its_own_cost),
    cmocka_unit_test(what_transfers_bring_counts_from_the_beginning),
    cmocka_unit_test(what_transfers_read_stays_until_the_end),
    cmocka_unit_test(more_bytes_than_can_be_counted_are_refused),
    cmocka_unit_test(costs_agree_with_the_lowered_program),
    cmocka_unit_test(results_have_the_shape_bytes_and_slice_of_their_value),
    cmocka_unit_test(
        consumed_arguments_are_marked_and_donated_by_their_last_step))
