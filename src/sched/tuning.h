/* Tunable constants of the scheduler. */
#ifndef TOW_SCHED_TUNING_H_
#define TOW_SCHED_TUNING_H_

#include <stdint.h>

/* Steps under way on a device. The queue must outlast a round trip from the
 * worker's report to the next grant, some 60 us where threads are woken, with
 * steps of 2 to 7 us (a scalar add, and a gang of two with an all-reduce): 30
 * steps. The rest is for passes that are delayed. Too small, and devices idle
 * between grants; too large, and a cancelled or urgent run waits behind the
 * queue, and a disconnected worker fails more runs. */
#define TOW_SCHED_RUN_AHEAD_MAX 256u

/* Estimates of device time (estimate.h). A measurement moves the estimate by
 * 1 / TOW_ESTIMATE_DIVISOR of the difference: times of equal runs on a busy
 * host vary by a factor of two, and one slow run must not count as the rule.
 * After a change by more than TOW_ESTIMATE_FAR_FACTOR, which variation does not
 * explain, it moves by half, and is right within a few runs. */
#define TOW_ESTIMATE_DIVISOR     8
#define TOW_ESTIMATE_FAR_FACTOR  4u
#define TOW_ESTIMATE_FAR_DIVISOR 2
/* An hour. A longer run of one program is a stuck one, or a wrong clock. */
#define TOW_ESTIMATE_NS_MAX (UINT64_C(3600) * 1000000000)

#endif /* TOW_SCHED_TUNING_H_ */
