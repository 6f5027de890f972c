/* Shorthand for the tests of this folder. */
#ifndef TOW_PLAN_SCHEDULE_SCHEDULE_TESTING_IMPL_H_
#define TOW_PLAN_SCHEDULE_SCHEDULE_TESTING_IMPL_H_

#include <string.h>

#include "base/alloc.h"
#include "base/testing.h"
#include "plan/schedule/check.h"
#include "plan/schedule/csv.h"
#include "plan/schedule/generate.h"
#include "plan/schedule/simulate.h"

#define TOW_TEST_STAGE_COUNT_MAX 64

static inline void tow_test_must(tow_status_t take_status)
{
    if (take_status != TOW_OK)
        print_error("%s\n", tow_status_message(take_status));
    assert_null(take_status);
}

/* Fails the test unless the status has this code and its message has both
 * texts; the second may be NULL. */
static inline void tow_test_refused(tow_status_t take_status, tow_code_t code,
                                    const char *text, const char *other)
{
    assert_non_null(take_status);
    const char *message = tow_status_message(take_status);
    assert_int_equal(tow_status_code(take_status), code);
    if (strstr(message, text) == NULL)
        fail_msg("'%s' is not in '%s'", text, message);
    if (other != NULL && strstr(message, other) == NULL)
        fail_msg("'%s' is not in '%s'", other, message);
    tow_status_release(take_status);
}

static inline tow_plan_schedule_t tow_test_generate(
    tow_plan_generator_t generator, uint32_t devices, uint32_t microbatches)
{
    const tow_plan_generate_options_t options = {
        .generator = generator,
        .device_count = devices,
        .microbatch_count = microbatches,
    };
    tow_plan_schedule_t schedule;
    tow_test_must(tow_plan_generate(&options, &schedule));
    return schedule;
}

static inline tow_plan_schedule_t tow_test_parse(const char *text)
{
    tow_plan_schedule_t schedule;
    tow_test_must(tow_plan_csv_parse(text, strlen(text), &schedule));
    return schedule;
}

/* Takes the schedule. */
static inline void tow_test_print_is(tow_plan_schedule_t schedule,
                                     const char *expected)
{
    char *text;
    size_t size;
    tow_test_must(tow_plan_csv_print(&schedule, &text, &size));
    assert_string_equal(text, expected);
    assert_int_equal(strlen(text), size);
    tow_free(text);
    tow_plan_schedule_deinit(&schedule);
}

/* Equal stages. */
typedef struct tow_test_costs {
    tow_plan_stage_cost_t stages[TOW_TEST_STAGE_COUNT_MAX];
    tow_plan_costs_t costs;
} tow_test_costs_t;

static inline void tow_test_costs_fill(tow_test_costs_t *costs,
                                       tow_plan_stage_cost_t each)
{
    for (size_t i = 0; i < TOW_TEST_STAGE_COUNT_MAX; i++)
        costs->stages[i] = each;
    costs->costs = (tow_plan_costs_t){.stages = costs->stages};
}

/* f, b, w: forward, input gradient, weight gradient; B takes b + w. */
static inline void tow_test_costs_set(tow_test_costs_t *costs, int64_t f,
                                      int64_t b, int64_t w)
{
    tow_test_costs_fill(costs, (tow_plan_stage_cost_t){.forward_ns = f,
                                                       .backward_ns = b + w,
                                                       .input_grad_ns = b,
                                                       .weight_grad_ns = w});
}

#endif /* TOW_PLAN_SCHEDULE_SCHEDULE_TESTING_IMPL_H_ */
