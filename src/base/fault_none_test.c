/* A program without a single fault point must link, and know of none. */
#include "base/testing.h"

#include "base/fault.h"

static void program_without_points_has_none(void **state)
{
    assert_int_equal(tow_fault_point_count(), 0);
}

TOW_TEST_MAIN(cmocka_unit_test(program_without_points_has_none))
