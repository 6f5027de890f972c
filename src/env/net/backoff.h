/* The delay before a dialling link redials. */
#ifndef TOW_ENV_NET_BACKOFF_H_
#define TOW_ENV_NET_BACKOFF_H_

#include <stdint.h>

#include "base/random.h"
#include "env/tuning.h"

/* The delay after `failure_count` consecutive failures (from 1): one half is
 * fixed, the other random. */
static inline int64_t tow_net_backoff_ns(uint32_t failure_count,
                                         tow_random_t *random)
{
    int64_t delay_ns = TOW_DIAL_DELAY_MIN_NS;
    for (uint32_t i = 1; i < failure_count && delay_ns < TOW_DIAL_DELAY_MAX_NS;
         i++)
        delay_ns *= 2;
    if (delay_ns > TOW_DIAL_DELAY_MAX_NS) delay_ns = TOW_DIAL_DELAY_MAX_NS;
    int64_t half_ns = delay_ns / 2;
    return half_ns + (int64_t)tow_random_below(random, (uint64_t)half_ns);
}

#endif /* TOW_ENV_NET_BACKOFF_H_ */
