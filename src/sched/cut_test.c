#include "base/testing.h"

#include <string.h>

#include "base/random.h"
#include "sched/cut.h"
#include "sched/tuning.h"

#define NONE TOW_CUT_NO_PART

static void cut_grants_short_runs_whole(void **state)
{
    (void)state;
    tow_cut_t cut = {.step_count = 100, .part_count = 1, .step_ns = 19999};
    assert_true(tow_cut_is_whole(&cut, 100)); /* 1.9999 ms */
    cut.step_ns = 20000;
    assert_false(tow_cut_is_whole(&cut, 100));
    cut.step_ns = UINT64_MAX;
    assert_false(tow_cut_is_whole(&cut, 100));
    assert_true(tow_cut_is_whole(&cut, 1)); /* It cannot be cut. */
    cut.step_ns = 0;
    assert_true(tow_cut_is_whole(&cut, TOW_CUT_WHOLE_STEPS));
    assert_false(tow_cut_is_whole(&cut, TOW_CUT_WHOLE_STEPS + 1));
}

static void cut_ends_a_piece_when_a_part_is_busy_for_a_millisecond(void **state)
{
    (void)state;
    static const uint32_t parts[] = {0, 1, 0, 1, 0, 0, 1};
    const tow_cut_t cut = {
        .parts = parts, .step_count = 7, .part_count = 2, .step_ns = 400000};
    uint32_t counts[2];
    assert_int_equal(tow_cut_next(&cut, 0, counts), 5);
    assert_int_equal(counts[0], 3);
    assert_int_equal(counts[1], 2);
    assert_int_equal(tow_cut_next(&cut, 5, counts), 7);
    assert_int_equal(counts[0], 1);
    assert_int_equal(counts[1], 1);
}

static void cut_gives_transfers_to_the_piece_before_them(void **state)
{
    (void)state;
    static const uint32_t parts[] = {NONE, 0, NONE, NONE, 0, NONE};
    const tow_cut_t cut = {.parts = parts,
                           .step_count = 6,
                           .part_count = 1,
                           .step_ns = TOW_CUT_PIECE_NS};
    uint32_t counts[1];
    assert_int_equal(tow_cut_next(&cut, 0, counts), 4);
    assert_int_equal(counts[0], 1);
    assert_int_equal(tow_cut_next(&cut, 4, counts), 6);
}

static void cut_bounds_the_steps_of_a_piece_whatever_the_estimate(void **state)
{
    (void)state;
    static const uint32_t parts[3 * TOW_CUT_PIECE_STEPS_MAX];
    tow_cut_t cut = {.parts = parts,
                     .step_count = 3 * TOW_CUT_PIECE_STEPS_MAX,
                     .part_count = 1,
                     .step_ns = 1};
    uint32_t counts[1];
    assert_int_equal(tow_cut_next(&cut, 0, counts), TOW_CUT_PIECE_STEPS_MAX);
    cut.step_ns = 0;
    assert_int_equal(tow_cut_next(&cut, 0, counts), TOW_CUT_PIECE_STEPS);
    cut.step_ns = UINT64_MAX;
    assert_int_equal(tow_cut_next(&cut, 0, counts), 1);
}

static void cut_pieces_cover_each_step_once_from_any_seed(void **state)
{
    (void)state;
    static uint32_t parts[500];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        tow_random_t random;
        tow_random_init(&random, seed);
        tow_cut_t cut = {.parts = parts, .part_count = 3};
        cut.step_count = (uint32_t)(1 + tow_random_below(&random, 500));
        cut.step_ns = tow_random_below(&random, 2000000);
        uint32_t totals[3] = {0}, sums[3] = {0}, counts[3];
        for (uint32_t i = 0; i < cut.step_count; i++) {
            const uint64_t part = tow_random_below(&random, 4);
            parts[i] = part < 3 ? (uint32_t)part : NONE;
            if (part < 3) totals[part]++;
        }
        for (uint32_t at = 0; at < cut.step_count;) {
            const uint32_t end = tow_cut_next(&cut, at, counts);
            assert_true(end > at && end <= cut.step_count);
            for (size_t p = 0; p < 3; p++)
                sums[p] += counts[p];
            at = end;
        }
        assert_memory_equal(sums, totals, sizeof(sums));
    }
}

static uint64_t counted(uint64_t step_ns, uint32_t lag_count)
{
    return tow_cut_counted_ns(&(tow_cut_t){.step_ns = step_ns}, lag_count,
                              1000000);
}

static void cut_counts_stages_so_that_all_of_them_have_work(void **state)
{
    (void)state;
    assert_int_equal(counted(1000000, 0), 1000000);
    assert_int_equal(counted(1000000, 15), 1000000 / 16); /* 16 runs fit. */
    assert_int_equal(counted(1000, 1000), 500);
    assert_int_equal(counted(0, 15), 0);
}

static void cut_counts_a_step_of_known_duration_as_something(void **state)
{
    (void)state;
    assert_int_equal(counted(1, UINT32_MAX), 1);
    assert_int_equal(counted(UINT64_MAX, UINT32_MAX), 1000000);
    assert_int_equal(counted(UINT64_MAX / 2, 2), 499999);
}

TOW_TEST_MAIN(
    cmocka_unit_test(cut_grants_short_runs_whole),
    cmocka_unit_test(cut_ends_a_piece_when_a_part_is_busy_for_a_millisecond),
    cmocka_unit_test(cut_gives_transfers_to_the_piece_before_them),
    cmocka_unit_test(cut_counts_stages_so_that_all_of_them_have_work),
    cmocka_unit_test(cut_counts_a_step_of_known_duration_as_something),
    cmocka_unit_test(cut_bounds_the_steps_of_a_piece_whatever_the_estimate),
    cmocka_unit_test(cut_pieces_cover_each_step_once_from_any_seed))
