#include "ir/graph_impl.h"
#include "ir/ir_testing_impl.h"

static tow_lowered_t *lower(ir_fixture_t *fixture, const tow_graph_t *program)
{
    tow_lowered_t *lowered;
    must(tow_graph_verify(program, &fixture->scope.program));
    must(tow_graph_lower(program, &fixture->scope, &lowered));
    return lowered;
}

/* "node(inputs)->first+count keeps(indices) frees(slots)", one step after the
 * other, then the results: enough to see all of a small program at once. */
typedef struct shown {
    size_t used;
    char text[2048];
} shown_t;

static void say(shown_t *shown, const char *format, ...) TOW_PRINTF(2, 3);
static void say(shown_t *shown, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    shown->used +=
        (size_t)vsnprintf(shown->text + shown->used,
                          sizeof(shown->text) - shown->used, format, arguments);
    va_end(arguments);
    assert_true(shown->used < sizeof(shown->text));
}

static void say_numbers(shown_t *shown, const char *head,
                        const uint32_t *numbers, size_t count)
{
    say(shown, "%s(", head);
    for (size_t i = 0; i < count; i++)
        say(shown, "%s%u", i > 0 ? " " : "", numbers[i]);
    say(shown, ")");
}

static const char *show(const tow_lowered_t *lowered, shown_t *shown)
{
    shown->used = 0;
    for (size_t i = 0; i < lowered->step_count; i++) {
        const tow_lowered_step_t *step = &lowered->steps[i];
        say(shown, "%u", step->node);
        say_numbers(shown, "", step->inputs, step->input_count);
        say(shown, "->%u+%u", step->first_output, step->output_count);
        if (step->non_donatable_count > 0)
            say_numbers(shown, " keeps", step->non_donatable,
                        step->non_donatable_count);
        if (step->freed_count > 0)
            say_numbers(shown, " frees", step->freed, step->freed_count);
        say(shown, "; ");
    }
    say_numbers(shown, "results", lowered->results, lowered->result_count);
    return shown->text;
}

static void lowers_to(const char *program_text, const char *wanted)
{
    ir_fixture_t fixture;
    shown_t shown;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program = ir_program_of(program_text);
    tow_lowered_t *lowered = lower(&fixture, program);
    assert_string_equal(show(lowered, &shown), wanted);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

#define X         "%0 = argument \"x\" : f32[4] on slice 1 "
#define X_DONATED "%0 = argument \"x\" : f32[4] on slice 1 donated "

/* -- Order and slots ------------------------------------------------------- */

static void arguments_fill_the_first_slots_and_outputs_follow(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program =
        ir_program_of("program {" X "%1 = compute function 4 on slice 1 (%0)"
                      "%2 = argument : f32[4] on slice 1"
                      "%3 = compute function 3 on slice 1 (%2, %1)"
                      "%4 = result (%3) %5 = result (%1:1) }");
    tow_lowered_t *lowered = lower(&fixture, program);
    shown_t shown;
    assert_string_equal(show(lowered, &shown),
                        "1(0)->2+2; 3(1 2)->4+1 frees(2); results(4 3)");
    assert_int_equal(lowered->slot_count, 5);
    assert_int_equal(lowered->argument_count, 2);
    assert_int_equal(lowered->step_count_all, 2);
    assert_true(lowered->steps[0].executable.value == 1004);
    assert_true(lowered->steps[1].executable.value == 1003);
    assert_int_equal(lowered->steps[1].index, 1);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void the_least_node_that_is_ready_comes_first(void **state)
{
    (void)state;
    /* 0 depends on 5; of 2, 3 and 5, which are ready, 2 is the lowest. */
    lowers_to("program { %0 = compute function 1 on slice 1 (%5)"
              "%1 = result (%0)"
              "%2 = compute function 6 on slice 1 ()"
              "%3 = compute function 6 on slice 1 ()"
              "%4 = compute function 1 on slice 1 (%3)"
              "%5 = compute function 6 on slice 1 () }",
              "2()->0+1 frees(0); 3()->1+1; 4(1)->2+1 frees(1 2); 5()->3+1; "
              "0(3)->4+1 frees(3); results(4)");
}

/* A reference order: repeatedly the lowest node whose inputs are ready,
 * collectives first; a program in order keeps its order. */
static void assert_order_is_greedy(const tow_graph_t *program,
                                   const tow_lowered_t *lowered)
{
    bool is_out[RANDOM_NODES_MAX] = {false};
    for (size_t step = 0; step < lowered->step_count; step++) {
        uint32_t least = UINT32_MAX;
        bool is_computed = true;
        for (uint32_t n = 0; n < tow_graph_node_count(program); n++) {
            const tow_node_t *node = tow_graph_node(program, n);
            const bool is_compute =
                program->in_order || tow_node_has_function(node);
            bool is_ready = tow_node_is_step(node) && !is_out[n];
            for (size_t i = 0; i < node->input_count; i++) {
                const uint32_t input = node->inputs[i].node;
                is_ready &=
                    is_out[input] ||
                    tow_graph_node(program, input)->kind == TOW_NODE_ARGUMENT;
            }
            if (!is_ready || is_compute > is_computed ||
                (is_compute == is_computed && n > least))
                continue;
            least = n;
            is_computed = is_compute;
        }
        assert_int_equal(lowered->steps[step].node, least);
        assert_int_equal(lowered->steps[step].index, step);
        is_out[lowered->steps[step].node] = true;
    }
}

static void the_order_depends_on_the_graph_alone(void **state)
{
    (void)state;
    tow_random_t random;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    tow_random_init(&random, 4);
    for (int i = 0; i < 500; i++) {
        tow_graph_t *program = ir_random_program(&random);
        tow_lowered_t *lowered = lower(&fixture, program);
        assert_order_is_greedy(program, lowered);
        tow_lowered_destroy(lowered);
        tow_graph_destroy(program);
    }
}

/* -- Donation and freeing ------------------------------------------------- */

static void a_value_is_donated_at_its_last_use_and_goes(void **state)
{
    (void)state;
    lowers_to("program {" X_DONATED "%1 = compute function 1 on slice 1 (%0)"
              "%2 = compute function 1 on slice 1 (%1) %3 = result (%2) }",
              "1(0)->1+1 frees(0); 2(1)->2+1 frees(1); results(2)");
}

static void an_argument_without_donation_is_not_consumed(void **state)
{
    (void)state;
    lowers_to("program {" X "%1 = compute function 1 on slice 1 (%0)"
              "%2 = result (%1) }",
              "1(0)->1+1 keeps(0); results(1)");
}

static void an_argument_goes_only_by_donation(void **state)
{
    (void)state;
    /* Marked, but the function does not donate: the caller keeps it. */
    lowers_to("program {" X_DONATED
              "%1 = compute function 2 on slice 1 (%0) %2 = result (%1) }",
              "1(0)->1+1; results(1)");
    /* The first would donate it; the last, which could, does not. */
    lowers_to("program {" X_DONATED "%1 = compute function 1 on slice 1 (%0)"
              "%2 = compute function 2 on slice 1 (%0)"
              "%3 = result (%1) %4 = result (%2) }",
              "1(0)->1+1 keeps(0); 2(0)->2+1; results(1 2)");
}

static void a_value_used_later_is_not_donated(void **state)
{
    (void)state;
    lowers_to("program {" X_DONATED "%1 = compute function 1 on slice 1 (%0)"
              "%2 = compute function 1 on slice 1 (%1)"
              "%3 = compute function 1 on slice 1 (%1)"
              "%4 = result (%2) %5 = result (%3) }",
              "1(0)->1+1 frees(0); 2(1)->2+1 keeps(0); 3(1)->3+1 frees(1); "
              "results(2 3)");
}

static void a_value_that_is_two_inputs_of_a_step_is_not_donated(void **state)
{
    (void)state;
    lowers_to("program {" X_DONATED "%1 = compute function 2 on slice 1 (%0)"
              "%2 = compute function 7 on slice 1 (%1, %1)"
              "%3 = compute function 7 on slice 1 (%0, %2)"
              "%4 = compute function 7 on slice 1 (%0, %0)"
              "%5 = result (%3) }",
              "1(0)->1+1; 2(1 1)->2+2 keeps(0 1) frees(1 3); "
              "3(0 2)->4+2 keeps(0) frees(2 5); "
              "4(0 0)->6+2 keeps(0 1) frees(6 7); results(4)");
}

static void a_result_is_not_donated(void **state)
{
    (void)state;
    lowers_to("program {" X_DONATED
              "%1 = compute function 1 on slice 1 (%0) %2 = result (%1)"
              "%3 = compute function 1 on slice 1 (%1) %4 = result (%3) }",
              "1(0)->1+1 frees(0); 3(1)->2+1 keeps(0); results(1 2)");
}

static void an_argument_that_is_a_result_is_passed_through(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    tow_result_info_t info;
    ir_fixture_init(&fixture, 4);
    const char text[] = "program { %0 = argument : f32[4] on slice 1"
                        "%1 = argument : f32[4] on slice 1 donated"
                        "%2 = compute function 1 on slice 1 (%1)"
                        "%3 = result (%1) %4 = result (%2) }";
    lowers_to(text, "2(1)->2+1 keeps(0); results(1 2)");
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_result_info(program, &fixture.scope.program, 0, &info));
    assert_int_equal(info.argument, 1);
    assert_int_equal(info.bytes, 16);
    assert_false(tow_graph_consumes(program, &fixture.scope.program, 1));
    must(tow_graph_result_info(program, &fixture.scope.program, 1, &info));
    assert_int_equal(info.argument, UINT32_MAX);
    tow_graph_destroy(program);
}

static void an_output_that_nobody_uses_goes_with_its_step(void **state)
{
    (void)state;
    lowers_to("program {" X "%1 = compute function 4 on slice 1 (%0)"
              "%2 = result (%1) }",
              "1(0)->1+2 frees(2); results(1)");
}

static void a_required_alias_that_cannot_be_donated_is_refused(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"program {" X "%1 = compute \"A\" function 5 on slice 1 (%0)"
         "%2 = result (%1) }",
         "node 1 \"A\": function insist requires the donation of input 0, "
         "which is not possible: the program's argument is not marked as "
         "donated"},
        {"program {" X_DONATED "%1 = compute \"A\" function 5 on slice 1 (%0)"
         "%2 = result (%0) }",
         "node 1 \"A\": function insist requires the donation of input 0, "
         "which is not possible: it is a result of the program too"},
        {"program {" X_DONATED "%1 = compute \"A\" function 5 on slice 1 (%0)"
         "%2 = compute \"B\" function 2 on slice 1 (%0) %3 = result (%1) }",
         "node 1 \"A\": function insist requires the donation of input 0, "
         "which is not possible: a later computation uses it"},
    };
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    for (size_t i = 0; i < TOW_COUNT_OF(cases); i++) {
        tow_lowered_t *lowered;
        tow_graph_t *program = ir_program_of(cases[i].text);
        must(tow_graph_verify(program, &fixture.scope.program));
        must_fail(tow_graph_lower(program, &fixture.scope, &lowered),
                  TOW_INVALID_ARGUMENT, cases[i].message);
        assert_null(lowered);
        tow_graph_destroy(program);
    }
    lowers_to("program {" X_DONATED "%1 = compute function 5 on slice 1 (%0)"
              "%2 = result (%1) }",
              "1(0)->1+1 frees(0); results(1)");
}

/* -- Reference implementation of the rules --------------------------------- */

typedef struct uses {
    size_t after;  /* inputs of later steps */
    size_t within; /* inputs of this step */
    bool is_result;
    bool is_callers; /* an argument that is not marked as donated */
} uses_t;

static uses_t count_uses(const tow_graph_t *program,
                         const tow_lowered_t *lowered, size_t at, uint32_t slot)
{
    uses_t uses = {0};
    for (size_t s = at; s < lowered->step_count; s++)
        for (size_t i = 0; i < lowered->steps[s].input_count; i++)
            if (lowered->steps[s].inputs[i] == slot)
                *(s == at ? &uses.within : &uses.after) += 1;
    for (size_t i = 0; i < lowered->result_count; i++)
        uses.is_result |= lowered->results[i] == slot;
    if (slot < lowered->argument_count)
        uses.is_callers =
            !tow_graph_node(program, tow_graph_argument(program, slot))
                 ->donated;
    return uses;
}

static bool contains(const uint32_t *numbers, size_t count, uint32_t number)
{
    for (size_t i = 0; i < count; i++)
        if (numbers[i] == number) return true;
    return false;
}

static void assert_step_is_right(const ir_fixture_t *fixture,
                                 const tow_graph_t *program,
                                 const tow_lowered_t *lowered, size_t at,
                                 size_t *frees)
{
    const tow_lowered_step_t *step = &lowered->steps[at];
    const tow_signature_t *signature =
        &fixture->functions[step->executable.value % 1000];
    for (uint32_t i = 0; i < step->input_count; i++) {
        const uint32_t slot = step->inputs[i];
        const uses_t uses = count_uses(program, lowered, at, slot);
        const bool has_other = uses.after > 0 || uses.within > 1 ||
                               uses.is_result || uses.is_callers;
        bool donates = false;
        for (size_t a = 0; a < signature->alias_count; a++)
            donates |= signature->aliases[a].argument == i;
        assert_int_equal(
            contains(step->non_donatable, step->non_donatable_count, i),
            donates && has_other);
        const bool goes = slot < lowered->argument_count
                              ? donates && !has_other
                              : uses.after == 0 && !uses.is_result;
        assert_int_equal(contains(step->freed, step->freed_count, slot), goes);
    }
    for (size_t i = 0; i < step->freed_count; i++)
        frees[step->freed[i]]++;
}

static void random_programs_follow_the_rules(void **state)
{
    (void)state;
    tow_random_t random;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    tow_random_init(&random, 5);
    for (int round = 0; round < 1000; round++) {
        size_t frees[RANDOM_NODES_MAX * 2] = {0};
        tow_graph_t *program = ir_random_program(&random);
        tow_lowered_t *lowered = lower(&fixture, program);
        for (size_t at = 0; at < lowered->step_count; at++)
            assert_step_is_right(&fixture, program, lowered, at, frees);
        for (uint32_t slot = 0; slot < lowered->slot_count; slot++) {
            const bool is_result =
                contains(lowered->results, lowered->result_count, slot);
            if (slot < lowered->argument_count)
                assert_int_equal(
                    frees[slot],
                    tow_graph_consumes(program, &fixture.scope.program, slot));
            else
                assert_int_equal(frees[slot], is_result ? 0 : 1);
        }
        tow_lowered_destroy(lowered);
        tow_graph_destroy(program);
    }
}

/* -- Workers --------------------------------------------------------------- */

static void a_worker_gets_the_steps_of_its_slices_with_common_numbers(
    void **state)
{
    (void)state;
    ir_fixture_t fixture;
    shown_t shown;
    ir_fixture_init(&fixture, 4);
    tow_graph_t *program =
        ir_program_of("program {" X "%1 = compute function 2 on slice 1 (%0)"
                      "%2 = compute function 6 on slice 2 ()"
                      "%3 = compute function 2 on slice 1 (%1)"
                      "%4 = compute function 2 on slice 2 (%2)"
                      "%5 = result (%3) %6 = result (%4) }");
    fixture.here.value = 2;
    tow_lowered_t *lowered = lower(&fixture, program);
    assert_string_equal(show(lowered, &shown),
                        "2()->2+1; 4(2)->4+1 frees(2); results(3 4)");
    assert_int_equal(lowered->steps[0].index, 1);
    assert_int_equal(lowered->steps[1].index, 3);
    assert_int_equal(lowered->step_count_all, 4);
    tow_lowered_destroy(lowered);
    fixture.scope.slice_is_here = NULL;
    lowered = lower(&fixture, program);
    assert_int_equal(lowered->step_count, 4);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void a_program_is_as_small_for_2048_devices_as_for_one(void **state)
{
    (void)state;
    static const size_t device_counts[] = {1, 2, 8, 128, 2048};
    size_t graph_size = 0;
    size_t lowered_size = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(device_counts); i++) {
        ir_fixture_t fixture;
        void *bytes;
        size_t size;
        ir_fixture_init(&fixture, device_counts[i]);
        tow_graph_t *program = ir_program_of(
            "program \"AB\" {" X "%1 = compute \"A\" function 2 on slice 1 (%0)"
            "%2 = compute \"B\" function 2 on slice 1 (%1)"
            "%3 = result \"y\" (%2) }");
        tow_lowered_t *lowered = lower(&fixture, program);
        assert_int_equal(tow_graph_node_count(program), 4);

        must(tow_graph_pack(program, &bytes, &size));
        if (i == 0) graph_size = size;
        assert_int_equal(size, graph_size);
        tow_free(bytes);

        must(tow_lowered_pack(lowered, &bytes, &size));
        if (i == 0) lowered_size = size;
        assert_int_equal(size, lowered_size);
        tow_free(bytes);
        tow_lowered_destroy(lowered);
        tow_graph_destroy(program);
    }
    assert_in_range(graph_size, 1, 120);
    assert_in_range(lowered_size, 1, 70); /* with the names of two nodes */
}

/* -- Size ------------------------------------------------------------------ */

typedef enum chain_order {
    CHAIN_FORWARD,
    CHAIN_BACKWARD
} chain_order_t;

/* 65,534 computations, each of the one before. */
static tow_graph_t *make_chain(chain_order_t order)
{
    const uint32_t count = 65534;
    tow_graph_t *program;
    must(tow_graph_create("chain", &program));
    tow_node_t node = {.kind = TOW_NODE_ARGUMENT,
                       .slice = {1},
                       .shape =
                           ir_test_signature(TEST_ADD)->arguments[0].shape};
    must(tow_graph_add(program, &node, NULL));
    for (uint32_t i = 1; i <= count; i++) {
        tow_value_t input = {i - 1, 0};
        if (order == CHAIN_BACKWARD) input.node = i < count ? i + 1 : 0;
        node = (tow_node_t){.kind = TOW_NODE_COMPUTE,
                            .slice = {1},
                            .function = {TEST_INCREMENT},
                            .inputs = &input,
                            .input_count = 1};
        must(tow_graph_add(program, &node, NULL));
    }
    tow_value_t last = {order == CHAIN_BACKWARD ? 1 : count, 0};
    node = (tow_node_t){
        .kind = TOW_NODE_RESULT, .inputs = &last, .input_count = 1};
    must(tow_graph_add(program, &node, NULL));
    return program;
}

/* Anything quadratic would take the test past its time. */
static void the_largest_programs_are_lowered(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    for (int order = CHAIN_FORWARD; order <= CHAIN_BACKWARD; order++) {
        void *bytes;
        size_t size;
        tow_lowered_t *again;
        tow_graph_cost_t cost;
        tow_graph_t *program = make_chain((chain_order_t)order);
        tow_lowered_t *lowered = lower(&fixture, program);
        assert_int_equal(lowered->step_count, 65534);
        assert_int_equal(lowered->steps[0].node,
                         order == CHAIN_FORWARD ? 1 : 65534);
        must(tow_lowered_pack(lowered, &bytes, &size));
        must(tow_lowered_unpack(bytes, size, &again));
        assert_int_equal(again->step_count, 65534);
        must(tow_graph_cost(program, &fixture.scope.program,
                            (tow_slice_id_t){1}, &cost));
        assert_int_equal(cost.peak_bytes, 16);
        tow_free(bytes);
        tow_lowered_destroy(again);
        tow_lowered_destroy(lowered);
        tow_graph_destroy(program);
    }
}

/* -- Memory ---------------------------------------------------------------- */

typedef struct journey {
    tow_graph_t *programs[2];
    tow_lowered_t *lowered[2];
    void *bytes[2];
    char *text;
} journey_t;

static tow_status_t travel(journey_t *journey, ir_fixture_t *fixture)
{
    static const char text[] =
        "program \"p\" { %0 = compute \"B\" function 1 on slice 1 (%3)"
        "%1 = result \"y\" (%0) %2 = argument \"x\" : f32[4] on slice 1 donated"
        "%3 = compute \"A\" function 1 on slice 1 (%2) }";
    size_t size;
    bool consumed[1];
    tow_graph_cost_t cost;
    TOW_RETURN_IF_ERROR(
        tow_graph_parse(text, strlen(text), &journey->programs[0]));
    TOW_RETURN_IF_ERROR(
        tow_graph_verify(journey->programs[0], &fixture->scope.program));
    TOW_RETURN_IF_ERROR(
        tow_graph_pack(journey->programs[0], &journey->bytes[0], &size));
    TOW_RETURN_IF_ERROR(
        tow_graph_unpack(journey->bytes[0], size, &journey->programs[1]));
    TOW_RETURN_IF_ERROR(tow_graph_print(journey->programs[1], &journey->text));
    TOW_RETURN_IF_ERROR(tow_graph_lower(journey->programs[1], &fixture->scope,
                                        &journey->lowered[0]));
    TOW_RETURN_IF_ERROR(
        tow_lowered_pack(journey->lowered[0], &journey->bytes[1], &size));
    TOW_RETURN_IF_ERROR(
        tow_lowered_unpack(journey->bytes[1], size, &journey->lowered[1]));
    TOW_RETURN_IF_ERROR(tow_graph_consumed(journey->programs[1],
                                           &fixture->scope.program, consumed));
    return tow_graph_cost(journey->programs[1], &fixture->scope.program,
                          (tow_slice_id_t){1}, &cost);
}

static tow_exhaust_result_t travel_and_return(void *context)
{
    journey_t journey = {0};
    tow_status_t status = travel(&journey, context);
    for (size_t i = 0; i < 2; i++) {
        tow_graph_destroy(journey.programs[i]);
        tow_lowered_destroy(journey.lowered[i]);
        tow_free(journey.bytes[i]);
    }
    tow_free(journey.text);
    if (status == TOW_OK) return TOW_EXHAUST_SUCCEEDED;
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    return TOW_EXHAUST_FAILED;
}

static void exhausted_memory_is_an_error_at_every_place(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    assert_in_range(tow_test_exhaust(travel_and_return, &fixture), 20, 200);
}

static void steps_have_the_names_that_are_not_their_functions(void **state)
{
    (void)state;
    ir_fixture_t fixture;
    ir_fixture_init(&fixture, 4);
    fixture.functions[TEST_PLAIN].name = "plain";
    tow_graph_t *program = ir_program_of("program {\n"
                                         "%0 = argument : f32[4] on slice 1\n"
                                         "%1 = compute \"first train.py:41\" "
                                         "function 2 on slice 1 (%0)\n"
                                         "%2 = compute \"plain\" function 2 "
                                         "on slice 1 (%1)\n"
                                         "%3 = compute function 2 on slice 1 "
                                         "(%2)\n"
                                         "%4 = result (%3)\n}");
    tow_lowered_t *lowered = lower(&fixture, program);
    assert_int_equal(lowered->step_count, 3);
    assert_string_equal(lowered->steps[0].name, "first train.py:41");
    assert_null(lowered->steps[1].name);
    assert_null(lowered->steps[2].name);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

TOW_TEST_MAIN(
    cmocka_unit_test(steps_have_the_names_that_are_not_their_functions),
    cmocka_unit_test(arguments_fill_the_first_slots_and_outputs_follow),
    cmocka_unit_test(the_least_node_that_is_ready_comes_first),
    cmocka_unit_test(the_order_depends_on_the_graph_alone),
    cmocka_unit_test(a_value_is_donated_at_its_last_use_and_goes),
    cmocka_unit_test(an_argument_without_donation_is_not_consumed),
    cmocka_unit_test(an_argument_goes_only_by_donation),
    cmocka_unit_test(a_value_used_later_is_not_donated),
    cmocka_unit_test(a_value_that_is_two_inputs_of_a_step_is_not_donated),
    cmocka_unit_test(a_result_is_not_donated),
    cmocka_unit_test(an_argument_that_is_a_result_is_passed_through),
    cmocka_unit_test(an_output_that_nobody_uses_goes_with_its_step),
    cmocka_unit_test(a_required_alias_that_cannot_be_donated_is_refused),
    cmocka_unit_test(random_programs_follow_the_rules),
    cmocka_unit_test(a_worker_gets_the_steps_of_its_slices_with_common_numbers),
    cmocka_unit_test(a_program_is_as_small_for_2048_devices_as_for_one),
    cmocka_unit_test(the_largest_programs_are_lowered),
    cmocka_unit_test(exhausted_memory_is_an_error_at_every_place))
