/* Where calls of clients' functions come out of XLA, on threads of its own, and
 * are handed to the worker's loop, which asks the client. The thread waits. */
#ifndef TOW_TOOL_CLIENT_CALLS_H_
#define TOW_TOOL_CLIENT_CALLS_H_

#include "device/xla_cpu/xla_cpu.h"
#include "env/env.h"
#include "worker/worker.h"

typedef struct tow_client_calls {
    tow_env_t *env;
    tow_worker_t *worker; /* lent; the loop's; NULL: there is none (any more) */
    tow_xla_calls_t table;
} tow_client_calls_t;

/* Of a process whose worker is opened later and closed earlier. */
void tow_client_calls_init(tow_client_calls_t *calls, tow_env_t *env);

#endif /* TOW_TOOL_CLIENT_CALLS_H_ */
