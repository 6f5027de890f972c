/* One clear line about each bad connection, and a bound on how many: whoever
 * can reach the port must not be able to fill the disk. */
#ifndef TOW_ENV_NET_COMPLAINT_H_
#define TOW_ENV_NET_COMPLAINT_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

typedef struct tow_net_complaints {
    int64_t credit_ns; /* INTERVAL of it buys a line; BURST lines at most */
    int64_t last_ns;
    uint64_t dropped_count; /* since the last line */
} tow_net_complaints_t;

void tow_net_complaints_init(tow_net_complaints_t *complaints, int64_t now_ns);
/* Writes a warning about the peer at `address`, unless there were too many. */
void tow_net_complain(tow_net_complaints_t *complaints, const tow_log_t *log,
                      int64_t now_ns, const char *event, const char *address,
                      tow_status_t cause);

#endif /* TOW_ENV_NET_COMPLAINT_H_ */
