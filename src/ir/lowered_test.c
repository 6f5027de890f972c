#include "ir/ir_testing_impl.h"

#include "wire/message.h"

static void assert_same_numbers(const uint32_t *a, size_t a_count,
                                const uint32_t *b, size_t b_count)
{
    assert_int_equal(a_count, b_count);
    for (size_t i = 0; i < a_count; i++)
        assert_int_equal(a[i], b[i]);
}

static void assert_same_step(const tow_lowered_step_t *a,
                             const tow_lowered_step_t *b)
{
    assert_true(a->executable.value == b->executable.value);
    assert_same_numbers(a->inputs, a->input_count, b->inputs, b->input_count);
    assert_same_numbers(a->non_donatable, a->non_donatable_count,
                        b->non_donatable, b->non_donatable_count);
    assert_same_numbers(a->freed, a->freed_count, b->freed, b->freed_count);
    assert_int_equal(a->first_output, b->first_output);
    assert_int_equal(a->output_count, b->output_count);
    assert_int_equal(a->node, b->node);
    assert_int_equal(a->name != NULL, b->name != NULL);
    if (a->name != NULL) assert_string_equal(a->name, b->name);
    assert_int_equal(a->index, b->index);
}

static void assert_same_lowered(const tow_lowered_t *a, const tow_lowered_t *b)
{
    assert_int_equal(a->slot_count, b->slot_count);
    assert_int_equal(a->argument_count, b->argument_count);
    assert_int_equal(a->step_count_all, b->step_count_all);
    assert_same_numbers(a->results, a->result_count, b->results,
                        b->result_count);
    assert_int_equal(a->step_count, b->step_count);
    for (size_t i = 0; i < a->step_count; i++)
        assert_same_step(&a->steps[i], &b->steps[i]);
}

static tow_lowered_t *random_lowered(tow_random_t *random)
{
    ir_fixture_t fixture;
    tow_lowered_t *lowered;
    ir_fixture_init(&fixture, 4);
    fixture.here.value = tow_random_below(random, 3);
    tow_graph_t *program = ir_random_program(random);
    must(tow_graph_lower(program, &fixture.scope, &lowered));
    tow_graph_destroy(program);
    return lowered;
}

static void lowered_programs_survive_packing(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 11);
    for (int i = 0; i < 2000; i++) {
        void *bytes;
        size_t size;
        tow_lowered_t *again;
        tow_lowered_t *lowered = random_lowered(&random);
        must(tow_lowered_pack(lowered, &bytes, &size));
        must(tow_lowered_unpack(bytes, size, &again));
        assert_same_lowered(lowered, again);
        tow_free(bytes);
        tow_lowered_destroy(again);
        tow_lowered_destroy(lowered);
    }
}

static void spoilt_bytes_are_refused_or_harmless(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 12);
    for (int i = 0; i < 3000; i++) {
        void *bytes;
        size_t size;
        tow_lowered_t *again;
        tow_lowered_t *lowered = random_lowered(&random);
        must(tow_lowered_pack(lowered, &bytes, &size));
        for (uint64_t k = 0; k < 1 + tow_random_below(&random, 4); k++)
            ((uint8_t *)bytes)[tow_random_below(&random, size)] ^=
                (uint8_t)(1u << tow_random_below(&random, 8));
        if (i % 3 == 0) size = tow_random_below(&random, size);
        tow_status_t status = tow_lowered_unpack(bytes, size, &again);
        assert_true((status == TOW_OK) == (again != NULL));
        tow_status_release(status);
        tow_free(bytes);
        tow_lowered_destroy(again);
        tow_lowered_destroy(lowered);
    }
}

/* -- One error at a time --------------------------------------------- */

/* Two steps over two arguments: 0(0 1)->2, which frees 0; 1(1 2)->3, which
 * frees 2; result 3. */
typedef struct sample {
    uint32_t inputs[2][2];
    uint32_t non_donatable[2];
    uint32_t freed[2][1];
    uint32_t results[1];
    tow_lowered_step_t steps[2];
    tow_lowered_t lowered;
} sample_t;

static void sample_init(sample_t *sample)
{
    *sample = (sample_t){.inputs = {{0, 1}, {1, 2}},
                         .non_donatable = {0, 1},
                         .freed = {{0}, {2}},
                         .results = {3}};
    for (uint32_t i = 0; i < 2; i++)
        sample->steps[i] = (tow_lowered_step_t){
            .executable = {7},
            .inputs = sample->inputs[i],
            .input_count = 2,
            .first_output = 2 + i,
            .output_count = 1,
            .non_donatable = sample->non_donatable,
            .non_donatable_count = i == 1 ? 2 : 0,
            .freed = sample->freed[i],
            .freed_count = 1,
            .node = 10 + i,
            .index = i,
        };
    sample->lowered = (tow_lowered_t){
        .slot_count = 4,
        .argument_count = 2,
        .results = sample->results,
        .result_count = 1,
        .steps = sample->steps,
        .step_count = 2,
        .step_count_all = 2,
    };
}

static tow_status_t unpack_sample(const sample_t *sample)
{
    void *bytes;
    size_t size;
    tow_lowered_t *lowered;
    must(tow_lowered_pack(&sample->lowered, &bytes, &size));
    tow_status_t status = tow_lowered_unpack(bytes, size, &lowered);
    assert_true((status == TOW_OK) == (lowered != NULL));
    tow_lowered_destroy(lowered);
    tow_free(bytes);
    return status;
}

#define REFUSES(change, message)                                \
    do {                                                        \
        sample_t sample;                                        \
        sample_init(&sample);                                   \
        change;                                                 \
        must_fail(unpack_sample(&sample), TOW_INVALID_ARGUMENT, \
                  "lowered program: " message);                 \
    } while (0)

static void the_sample_is_right(void **state)
{
    (void)state;
    sample_t sample;
    sample_init(&sample);
    must(unpack_sample(&sample));
}

static void slots_out_of_range_are_refused(void **state)
{
    (void)state;
    REFUSES(sample.inputs[0][1] = 4, "step 0, of node 10: there is no slot 4");
    REFUSES(sample.freed[1][0] = 4, "step 1, of node 11: there is no slot 4");
    REFUSES(sample.results[0] = 4, "result 0: there is no slot 4");
    REFUSES(sample.steps[1].first_output = UINT32_MAX,
            "step 1, of node 11: its 1 outputs from slot 4294967295 on pass "
            "the last slot");
    REFUSES(sample.steps[1].output_count = UINT32_MAX,
            "step 1, of node 11: its 4294967295 outputs from slot 3 on pass "
            "the last slot");
    REFUSES(sample.non_donatable[1] = 2,
            "step 1, of node 11: non-donatable input 2 of 2; they must ascend");
    REFUSES(sample.non_donatable[1] = 0,
            "step 1, of node 11: non-donatable input 0 of 2; they must ascend");
}

static void slots_are_written_once_and_before_they_are_read(void **state)
{
    (void)state;
    REFUSES(sample.inputs[0][0] = 3,
            "step 0, of node 10: slot 3 is read before it is written");
    REFUSES(sample.inputs[0][0] = 2,
            "step 0, of node 10: slot 2 is read before it is written");
    REFUSES(sample.steps[0].first_output = 1,
            "step 0, of node 10: slot 1 is written a second time");
    REFUSES(sample.steps[1].first_output = 2,
            "step 1, of node 11: slot 2 is written a second time");
    REFUSES(sample.steps[1].output_count = 0,
            "result 0: slot 3 is never written");
}

static void slots_are_freed_once_where_used_and_not_read_after(void **state)
{
    (void)state;
    REFUSES(sample.inputs[1][0] = 0,
            "step 1, of node 11: slot 0 is read after it was freed");
    REFUSES(sample.freed[1][0] = 0,
            "step 1, of node 11: slot 0 is freed a second time");
    REFUSES(sample.freed[0][0] = 3,
            "step 0, of node 10: slot 3 is freed where it is not used");
    REFUSES((sample.freed[0][0] = 2, sample.inputs[1][1] = 1,
             sample.freed[1][0] = 3),
            "result 0: slot 3 is freed");
    REFUSES((sample.inputs[0][0] = 1, sample.freed[1][0] = 0),
            "step 0, of node 10: slot 0 is freed where it is not used");
}

static void numbers_of_steps_and_slots_are_bounded(void **state)
{
    (void)state;
    REFUSES(sample.lowered.slot_count = TOW_SLOTS_MAX + 1,
            "4194305 slots, and there may be 4194304");
    REFUSES(sample.lowered.argument_count = 5,
            "5 arguments, with 4 slots; there may be 16384");
    REFUSES(sample.lowered.step_count_all = 1,
            "2 steps of 1; there may be 65536");
    REFUSES(sample.lowered.step_count_all = TOW_NODES_MAX + 1,
            "2 steps of 65537; there may be 65536");
    REFUSES(sample.steps[1].index = 0,
            "step 1, of node 11: its index is 0 of 2; indices must ascend");
    REFUSES(sample.steps[1].index = 2,
            "step 1, of node 11: its index is 2 of 2; indices must ascend");
    REFUSES(sample.steps[1].node = TOW_NODES_MAX,
            "step 1, of node 65536: invalid node 65536");
    REFUSES(sample.steps[0].executable.value = 0,
            "step 0, of node 10: it is not one of a computation, a "
            "transfer and a collective");
}

static void a_result_may_be_of_a_step_that_is_left_out(void **state)
{
    (void)state;
    sample_t sample;
    sample_init(&sample);
    sample.lowered.step_count = 1;
    must(unpack_sample(&sample));
}

TOW_TEST_MAIN(
    cmocka_unit_test(lowered_programs_survive_packing),
    cmocka_unit_test(spoilt_bytes_are_refused_or_harmless),
    cmocka_unit_test(the_sample_is_right),
    cmocka_unit_test(slots_out_of_range_are_refused),
    cmocka_unit_test(slots_are_written_once_and_before_they_are_read),
    cmocka_unit_test(slots_are_freed_once_where_used_and_not_read_after),
    cmocka_unit_test(numbers_of_steps_and_slots_are_bounded),
    cmocka_unit_test(a_result_may_be_of_a_step_that_is_left_out))
