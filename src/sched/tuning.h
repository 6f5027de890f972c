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

#endif /* TOW_SCHED_TUNING_H_ */
