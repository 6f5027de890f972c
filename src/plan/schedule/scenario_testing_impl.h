/* Random pipelines, each from a seed, for the randomised tests. */
#ifndef TOW_PLAN_SCHEDULE_SCENARIO_TESTING_IMPL_H_
#define TOW_PLAN_SCHEDULE_SCENARIO_TESTING_IMPL_H_

#include <inttypes.h>

#include "base/random.h"
#include "plan/schedule/schedule_testing_impl.h"

#define TOW_TEST_CASE_COUNT 400

typedef struct tow_test_scenario {
    tow_random_t random;
    tow_plan_generate_options_t options;
    tow_plan_schedule_t schedule;
    tow_test_costs_t costs;
    tow_plan_edge_t edges[2 * TOW_TEST_STAGE_COUNT_MAX];
} tow_test_scenario_t;

static inline uint32_t tow_test_below(tow_test_scenario_t *it, uint32_t bound)
{
    return (uint32_t)tow_random_below(&it->random, bound);
}

static inline bool tow_test_coin(tow_test_scenario_t *it)
{
    return tow_test_below(it, 2) == 1;
}

/* One draw per statement: compilers order the parts of an initialiser as they
 * like. */
static inline void tow_test_draw_options(tow_test_scenario_t *it)
{
    tow_plan_generate_options_t *options = &it->options;
    *options = (tow_plan_generate_options_t){0};
    options->generator =
        (tow_plan_generator_t)tow_test_below(it, TOW_PLAN_GENERATOR_COUNT);
    options->device_count = 1 + tow_test_below(it, 8);
    options->microbatch_count = 1 + tow_test_below(it, 24);
    options->extras.recompute = tow_test_coin(it);
    options->extras.sends = tow_test_coin(it);
    options->extras.all_reduce = tow_test_coin(it);
    options->extras.update = tow_test_coin(it);
    if (options->generator == TOW_PLAN_INTERLEAVED) {
        options->chunk_count = 1 + tow_test_below(it, 4);
        options->microbatch_count =
            options->device_count * (1 + tow_test_below(it, 4));
    }
    if (options->generator == TOW_PLAN_1F1B) {
        options->warmup = (tow_plan_warmup_t)tow_test_below(it, 2);
        options->in_flight_max = tow_test_below(it, 5);
    }
}

/* A chain, and without sends, which are made for a chain, some skips. */
static inline void tow_test_draw_edges(tow_test_scenario_t *it)
{
    const uint32_t stages = it->schedule.shape.stage_count;
    size_t count = stages - 1;
    if (!it->options.extras.sends && stages > 1)
        count += tow_test_below(it, stages);
    for (uint32_t i = 0; i < count; i++) {
        tow_plan_edge_t *edge = &it->edges[i];
        *edge = (tow_plan_edge_t){.from_stage = i, .to_stage = i + 1};
        if (i + 1 >= stages) {
            edge->from_stage = tow_test_below(it, stages - 1);
            edge->to_stage =
                stages - 1 - tow_test_below(it, stages - 1 - edge->from_stage);
            edge->is_forward_only = tow_test_coin(it);
        }
        edge->bytes = tow_test_below(it, 5000);
        edge->bytes_per_s = UINT64_C(1) << 36;
        edge->latency_ns = tow_test_below(it, 50);
    }
    it->costs.costs.edges = it->edges;
    it->costs.costs.edge_count = count;
}

static inline void tow_test_draw_costs(tow_test_scenario_t *it)
{
    for (uint32_t s = 0; s < it->schedule.shape.stage_count; s++) {
        tow_plan_stage_cost_t *cost = &it->costs.stages[s];
        cost->forward_ns = tow_test_below(it, 100);
        cost->input_grad_ns = tow_test_below(it, 100);
        cost->weight_grad_ns = tow_test_below(it, 100);
        cost->backward_ns = tow_test_below(it, 200);
        cost->recompute_ns = tow_test_below(it, 100);
        cost->all_reduce_ns = tow_test_below(it, 500);
        cost->update_ns = tow_test_below(it, 50);
        cost->activation_bytes = tow_test_below(it, 1000);
        cost->stash_bytes = tow_test_below(it, 1000);
        cost->input_bytes = tow_test_below(it, 100);
        cost->parameter_bytes = tow_test_below(it, 10000);
    }
    it->costs.costs = (tow_plan_costs_t){.stages = it->costs.stages};
    if (tow_test_coin(it)) tow_test_draw_edges(it);
}

static inline void tow_test_draw(tow_test_scenario_t *it, uint64_t seed)
{
    tow_random_init(&it->random, seed);
    tow_test_draw_options(it);
    tow_test_must(tow_plan_generate(&it->options, &it->schedule));
    tow_test_draw_costs(it);
}

static inline void tow_test_for_all(void (*claim)(tow_test_scenario_t *it))
{
    static tow_test_scenario_t scenario;
    for (uint64_t seed = 1; seed <= TOW_TEST_CASE_COUNT; seed++) {
        tow_test_draw(&scenario, seed);
        print_message("seed %" PRIu64 ": %s, %" PRIu32 " devices, %" PRIu32
                      " microbatches\n",
                      seed, tow_plan_generator_name(scenario.options.generator),
                      scenario.options.device_count,
                      scenario.options.microbatch_count);
        claim(&scenario);
        tow_plan_schedule_deinit(&scenario.schedule);
    }
}

#endif /* TOW_PLAN_SCHEDULE_SCENARIO_TESTING_IMPL_H_ */
