/* Fault points mark branches that rarely run:
 *
 *     if (written < count || TOW_FAULT("store.spill_short_write")) ...
 *
 * Outside the simulator a point costs one thread-local load and never fires.
 * Inside, the run's seed decides. All points of the program are listed by name,
 * so that a run can report those that never fired. */
#ifndef TOW_BASE_FAULT_H_
#define TOW_BASE_FAULT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/random.h"

typedef struct tow_fault_point {
    const char *name;
    uint64_t reached_count; /* inside simulated runs only */
    uint64_t fired_count;
} tow_fault_point_t;

/* Decides in a simulated run. */
typedef struct tow_fault_plan {
    tow_random_t random;
    uint32_t chance_ppm; /* per reach of any point */
} tow_fault_plan_t;

extern _Thread_local tow_fault_plan_t *tow_fault_current;

/* Makes `plan` decide on this thread; NULL switches faults off. Returns the one
 * before. Only the simulator calls it. */
tow_fault_plan_t *tow_fault_attach(tow_fault_plan_t *plan);

bool tow_fault_decide(tow_fault_point_t *point);

/* Every fault point linked into the program, in link order. */
size_t tow_fault_point_count(void);
tow_fault_point_t *tow_fault_point_at(size_t index);

#define TOW_FAULT(fault_name)                                           \
    (__extension__({                                                    \
        static tow_fault_point_t fault_point_ = {.name = (fault_name)}; \
        static tow_fault_point_t *fault_entry_                          \
            __attribute__((section("tow_fault_points"), used)) =        \
                &fault_point_;                                          \
        TOW_UNLIKELY(tow_fault_current != NULL) &&                      \
            tow_fault_decide(&fault_point_);                            \
    }))

#endif /* TOW_BASE_FAULT_H_ */
