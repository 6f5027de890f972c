/* Every TOW_FAULT puts the address of its point into one linker section, whose
 * start and end are linker symbols. They are weak: a program without points has
 * neither. The section has addresses instead of structs because the alignment
 * of structs in a section depends on the compiler. */
#include "base/fault.h"

#include "base/assert.h"

extern tow_fault_point_t *__start_tow_fault_points[]
    __attribute__((weak, visibility("hidden")));
extern tow_fault_point_t *__stop_tow_fault_points[]
    __attribute__((weak, visibility("hidden")));

_Thread_local tow_fault_plan_t *tow_fault_current;

tow_fault_plan_t *tow_fault_attach(tow_fault_plan_t *plan)
{
    tow_fault_plan_t *before = tow_fault_current;
    tow_fault_current = plan;
    return before;
}

bool tow_fault_decide(tow_fault_point_t *point)
{
    tow_fault_plan_t *plan = tow_fault_current;
    TOW_ASSERT(plan != NULL);
    bool fires = tow_random_chance_ppm(&plan->random, plan->chance_ppm);
    /* Simulations of several seeds may run in threads of one process. */
    __atomic_fetch_add(&point->reached_count, 1, __ATOMIC_RELAXED);
    if (fires) __atomic_fetch_add(&point->fired_count, 1, __ATOMIC_RELAXED);
    return fires;
}

size_t tow_fault_point_count(void)
{
    /* Compared as numbers: in C these are unrelated arrays. */
    uintptr_t bytes = (uintptr_t)__stop_tow_fault_points -
                      (uintptr_t)__start_tow_fault_points;
    return bytes / sizeof(__start_tow_fault_points[0]);
}

tow_fault_point_t *tow_fault_point_at(size_t index)
{
    TOW_ASSERT(index < tow_fault_point_count());
    return __start_tow_fault_points[index];
}
