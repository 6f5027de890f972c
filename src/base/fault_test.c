#include "base/testing.h"

#include <string.h>

#include "base/fault.h"

static bool reach_short_write(void)
{
    return TOW_FAULT("fault_test.short_write");
}

static bool reach_lost_grant(void)
{
    return TOW_FAULT("fault_test.lost_grant");
}

static tow_fault_plan_t make_plan(uint64_t seed, uint32_t chance_ppm)
{
    tow_fault_plan_t plan = {.chance_ppm = chance_ppm};
    tow_random_init(&plan.random, seed);
    return plan;
}

static tow_fault_point_t *point_named(const char *name)
{
    for (size_t i = 0; i < tow_fault_point_count(); i++) {
        if (strcmp(tow_fault_point_at(i)->name, name) == 0)
            return tow_fault_point_at(i);
    }
    return NULL;
}

static void points_are_known_before_they_are_reached(void **state)
{
    assert_int_equal(tow_fault_point_count(), 2);
    assert_non_null(point_named("fault_test.short_write"));
    assert_non_null(point_named("fault_test.lost_grant"));
    assert_int_equal(point_named("fault_test.lost_grant")->reached_count, 0);
}

static void point_without_a_plan_never_fires_nor_counts(void **state)
{
    tow_fault_point_t *point = point_named("fault_test.short_write");
    uint64_t reached_before = point->reached_count;
    for (int i = 0; i < 1000; i++)
        assert_false(reach_short_write());
    assert_int_equal(point->reached_count, reached_before);
    assert_int_equal(point->fired_count, 0);
}

static void point_with_a_certain_plan_fires_and_counts(void **state)
{
    tow_fault_plan_t plan = make_plan(1, 1000000);
    tow_fault_point_t *point = point_named("fault_test.lost_grant");
    uint64_t reached_before = point->reached_count;
    uint64_t fired_before = point->fired_count;
    assert_null(tow_fault_attach(&plan));
    assert_true(reach_lost_grant());
    plan.chance_ppm = 0;
    assert_false(reach_lost_grant());
    assert_ptr_equal(tow_fault_attach(NULL), &plan);
    assert_false(reach_lost_grant());
    assert_int_equal(point->reached_count, reached_before + 2);
    assert_int_equal(point->fired_count, fired_before + 1);
}

/* One bit for each of 64 reaches. */
static uint64_t firing_pattern(uint64_t seed)
{
    tow_fault_plan_t plan = make_plan(seed, 250000);
    tow_fault_attach(&plan);
    uint64_t pattern = 0;
    for (int i = 0; i < 32; i++) {
        pattern = pattern << 1 | reach_short_write();
        pattern = pattern << 1 | reach_lost_grant();
    }
    tow_fault_attach(NULL);
    return pattern;
}

static void same_seed_fires_the_same_reaches(void **state)
{
    for (uint64_t seed = 0; seed < 100; seed++) {
        assert_int_equal(firing_pattern(seed), firing_pattern(seed));
        assert_int_not_equal(firing_pattern(seed), firing_pattern(seed + 1));
    }
}

TOW_TEST_MAIN(cmocka_unit_test(points_are_known_before_they_are_reached),
              cmocka_unit_test(point_without_a_plan_never_fires_nor_counts),
              cmocka_unit_test(point_with_a_certain_plan_fires_and_counts),
              cmocka_unit_test(same_seed_fires_the_same_reaches))
