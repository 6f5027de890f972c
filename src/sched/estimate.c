#include "sched/estimate.h"

#include <stdbool.h>

#include "base/assert.h"
#include "sched/tuning.h"

static bool is_far(uint64_t shorter_ns, uint64_t longer_ns)
{
    return longer_ns / TOW_ESTIMATE_FAR_FACTOR > shorter_ns;
}

/* Of a run that took longer: only that it did counts, not by how much, unless
 * those before it were far above, too. */
static uint64_t increase(tow_estimate_t *estimate, uint64_t more_ns)
{
    if (!is_far(estimate->ns, estimate->ns + more_ns))
        estimate->far_count = 0;
    else if (++estimate->far_count >= TOW_ESTIMATE_FAR_COUNT)
        return more_ns / TOW_ESTIMATE_FAR_DIVISOR;
    const uint64_t counted_ns = more_ns < estimate->ns ? more_ns : estimate->ns;
    return counted_ns / TOW_ESTIMATE_UP_DIVISOR;
}

static uint64_t corrected(tow_estimate_t *estimate, uint64_t measured_ns)
{
    const uint64_t old_ns = estimate->ns;
    if (measured_ns > old_ns)
        return old_ns + increase(estimate, measured_ns - old_ns);
    estimate->far_count = 0;
    return old_ns - (old_ns - measured_ns) / (is_far(measured_ns, old_ns)
                                                  ? TOW_ESTIMATE_FAR_DIVISOR
                                                  : TOW_ESTIMATE_DOWN_DIVISOR);
}

void tow_estimate_add(tow_estimate_t *estimate, uint64_t measured_ns)
{
    if (measured_ns == 0 || measured_ns > TOW_ESTIMATE_NS_MAX) {
        estimate->ignored_count++;
        return;
    }
    estimate->ns =
        estimate->count++ == 0 ? measured_ns : corrected(estimate, measured_ns);
    TOW_ASSERT(estimate->ns > 0 && estimate->ns <= TOW_ESTIMATE_NS_MAX);
}

int64_t tow_estimate_ns(const tow_estimate_t *estimate)
{
    return estimate->count == 0 ? -1 : (int64_t)estimate->ns;
}
