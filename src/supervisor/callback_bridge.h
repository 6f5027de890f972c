/* Passes calls of clients' functions, which XLA makes on its own threads, to the
 * worker's event loop. The XLA thread blocks until the client has replied. */
#ifndef TOW_SUPERVISOR_CALLBACK_BRIDGE_H_
#define TOW_SUPERVISOR_CALLBACK_BRIDGE_H_

#include "device/xla_cpu/xla_cpu.h"
#include "env/env.h"
#include "worker/worker.h"

typedef struct tow_callback_bridge {
    tow_env_t *env;
    tow_worker_t *worker;  /* lent; of the event loop; NULL: not open */
    tow_xla_calls_t table; /* for the adapter */
} tow_callback_bridge_t;

/* The worker may be opened later and closed earlier; calls without one fail. */
void tow_callback_bridge_init(tow_callback_bridge_t *bridge, tow_env_t *env);

#endif /* TOW_SUPERVISOR_CALLBACK_BRIDGE_H_ */
