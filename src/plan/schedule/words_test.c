#include "plan/schedule/words.h"

#include "base/alloc.h"
#include "plan/schedule/nodes_testing_impl.h"

#define CSV    "0F0,0F1,0B0,0B1,0AR,0U\n1F0,1B0,1F1,1I1,1W1,1AR,1U\n"
#define STAGES 2

typedef struct words {
    uint32_t items[512];
    size_t count;
} words_t;

static void put(words_t *words, uint32_t word)
{
    assert_true(words->count < TOW_COUNT_OF(words->items));
    words->items[words->count++] = word;
}

static void put_fragment(words_t *words, const tow_plan_fragment_t *fragment)
{
    put(words, fragment != NULL);
    if (fragment == NULL) return;
    put(words, fragment->function);
    put(words, fragment->result_count);
    put(words, fragment->input_count);
    for (uint32_t i = 0; i < fragment->input_count; i++) {
        put(words, fragment->inputs[i].source);
        put(words, fragment->inputs[i].index);
    }
}

static void put_stage(words_t *words, const tow_plan_stage_t *stage)
{
    put(words, stage->argument_count);
    put(words, stage->batch_count);
    put(words, stage->gradient_count);
    put(words, stage->backward_gradient);
    put(words, stage->weight_gradient);
    put(words, stage->output_count);
    for (uint32_t i = 0; i < stage->output_count; i++)
        put(words, stage->outputs[i]);
    for (int kind = 0; kind < TOW_PLAN_FRAGMENT_KIND_COUNT; kind++)
        put_fragment(words, stage->fragments[kind]);
}

static void put_pipeline(words_t *words, const tow_plan_pipeline_t *pipeline)
{
    words->count = 0;
    put(words, STAGES);
    for (uint32_t i = 0; i < STAGES; i++)
        put_stage(words, &pipeline->stages[i]);
    put(words, (uint32_t)pipeline->edge_count);
    for (size_t i = 0; i < pipeline->edge_count; i++) {
        const tow_plan_edge_t *edge = &pipeline->edges[i];
        put(words, edge->from_stage);
        put(words, edge->to_stage);
        put(words, edge->is_forward_only);
        put(words, edge->result);
        put(words, edge->cotangent);
    }
}

static void print(const tow_plan_pipeline_t *pipeline, uint32_t **out_words,
                  size_t *out_count)
{
    tow_plan_schedule_t schedule = tow_test_parse(CSV);
    tow_plan_nodes_t nodes;
    tow_test_must(tow_plan_nodes_init(&nodes, &schedule, pipeline));
    tow_test_must(tow_plan_words_print(&nodes, out_words, out_count));
    tow_plan_nodes_deinit(&nodes);
    tow_plan_schedule_deinit(&schedule);
}

static void a_pipeline_of_words_gives_the_same_nodes(void **state)
{
    static tow_test_pipeline_t pipeline;
    static words_t words;
    tow_plan_words_pipeline_t read;
    uint32_t *expected, *actual;
    size_t expected_count, actual_count;
    tow_test_pipeline_fill(&pipeline, STAGES);
    put_pipeline(&words, &pipeline.pipeline);
    tow_test_must(tow_plan_words_read(words.items, words.count, STAGES, &read));
    print(&pipeline.pipeline, &expected, &expected_count);
    print(&read.pipeline, &actual, &actual_count);
    assert_int_equal(actual_count, expected_count);
    assert_memory_equal(actual, expected, actual_count * sizeof(*actual));
    tow_free(expected);
    tow_free(actual);
    tow_plan_words_deinit(&read);
}

static void words_that_end_early_or_late_are_refused(void **state)
{
    static tow_test_pipeline_t pipeline;
    static words_t words;
    tow_plan_words_pipeline_t read;
    tow_test_pipeline_fill(&pipeline, STAGES);
    put_pipeline(&words, &pipeline.pipeline);
    for (size_t count = 0; count <= words.count + 1; count++) {
        tow_status_t status =
            tow_plan_words_read(words.items, count, STAGES, &read);
        assert_int_equal(tow_status_code(status),
                         count == words.count ? 0 : TOW_INVALID_ARGUMENT);
        tow_status_release(status);
        tow_plan_words_deinit(&read);
    }
}

static void counts_beyond_the_input_are_refused(void **state)
{
    tow_plan_words_pipeline_t read;
    const uint32_t many[] = {2, 0, 0, 0, 0, 0, UINT32_MAX, 0};
    tow_status_t status = tow_plan_words_read(many, 8, 2, &read);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
    status = tow_plan_words_read(many, 8, 3, &read);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_of_words_gives_the_same_nodes),
        cmocka_unit_test(words_that_end_early_or_late_are_refused),
        cmocka_unit_test(counts_beyond_the_input_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
