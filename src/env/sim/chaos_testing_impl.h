/* A randomized simulation for tests: nodes dial each other, send messages and
 * datagrams, write into each other's memory, post, run work, close and reopen,
 * all at random, while hosts are partitioned and nodes crash, freeze and
 * restart. The nodes' programs assert the contract of env.h. */
#ifndef TOW_ENV_SIM_CHAOS_TESTING_IMPL_H_
#define TOW_ENV_SIM_CHAOS_TESTING_IMPL_H_

#include <stdio.h>

#include "env/sim/sim.h"

typedef struct tow_sim_chaos {
    tow_sim_t *sim;              /* owned by the caller */
    tow_random_t random;         /* for the failures */
    int64_t failure_interval_ns; /* mean */
} tow_sim_chaos_t;

/* Creates the simulation, in which something fails about every
 * `failure_interval_ns`; 0: nothing fails. Sets chaos->sim also on an error. */
tow_status_t tow_sim_chaos_open(tow_sim_chaos_t *chaos, uint64_t seed,
                                int64_t failure_interval_ns, FILE *event_log)
    TOW_MUST_USE;

#endif /* TOW_ENV_SIM_CHAOS_TESTING_IMPL_H_ */
