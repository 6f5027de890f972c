#include "sched/estimate.h"

#include <stdbool.h>

#include "base/assert.h"
#include "sched/tuning.h"

static bool is_far(uint64_t old_ns, uint64_t measured_ns)
{
    return measured_ns > TOW_ESTIMATE_FAR_FACTOR * old_ns ||
           old_ns > TOW_ESTIMATE_FAR_FACTOR * measured_ns;
}

void tow_estimate_add(tow_estimate_t *estimate, uint64_t measured_ns)
{
    if (measured_ns == 0 || measured_ns > TOW_ESTIMATE_NS_MAX) {
        estimate->ignored_count++;
        return;
    }
    const int64_t old_ns = (int64_t)estimate->ns;
    const int64_t change_ns = (int64_t)measured_ns - old_ns;
    const int64_t divisor = is_far(estimate->ns, measured_ns)
                                ? TOW_ESTIMATE_FAR_DIVISOR
                                : TOW_ESTIMATE_DIVISOR;
    estimate->ns = estimate->count++ == 0
                       ? measured_ns
                       : (uint64_t)(old_ns + change_ns / divisor);
    TOW_ASSERT(estimate->ns > 0 && estimate->ns <= TOW_ESTIMATE_NS_MAX);
}

int64_t tow_estimate_ns(const tow_estimate_t *estimate)
{
    return estimate->count == 0 ? -1 : (int64_t)estimate->ns;
}
