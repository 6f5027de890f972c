/* Limits the log lines about bad connections: a peer that can reach the port
 * must not be able to fill the disk. */
#ifndef TOW_ENV_NET_COMPLAINT_H_
#define TOW_ENV_NET_COMPLAINT_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

typedef struct tow_net_log_limiter {
    int64_t credit_ns; /* a line costs INTERVAL; at most BURST lines */
    int64_t last_ns;
    uint64_t suppressed_count; /* lines suppressed since the last one */
} tow_net_log_limiter_t;

void tow_net_log_limiter_init(tow_net_log_limiter_t *log_limiter,
                              int64_t now_ns);
/* Logs a warning about the peer at `address`, unless the limit is reached. */
void tow_net_log_limited(tow_net_log_limiter_t *log_limiter,
                         const tow_log_t *log, int64_t now_ns,
                         const char *event, const char *address,
                         tow_status_t cause);

#endif /* TOW_ENV_NET_COMPLAINT_H_ */
