/* Callbacks: functions of clients that computations on workers call. */
#ifndef TOW_CONTROLLER_CALLBACK_IMPL_H_
#define TOW_CONTROLLER_CALLBACK_IMPL_H_

#include <stdio.h>

#include "base/map.h"
#include "controller/types_impl.h"

typedef struct tow_ctl_callbacks {
    tow_map_t by_number; /* -> callback_t, owned */
    uint64_t number;     /* of the last */
} tow_ctl_callbacks_t;

/* A computation on a worker calls, and its client answers. */
void tow_ctl_callback_begin(tow_ctl_worker_t *worker,
                            const tow_msg_callback_t *message);
void tow_ctl_callback_done(tow_ctl_client_t *client,
                           const tow_msg_callback_done_t *message);
/* One of the two has disconnected; the other is NULL. */
void tow_ctl_callbacks_on_disconnect(tow_controller_t *controller,
                                     const tow_ctl_worker_t *worker,
                                     const tow_ctl_client_t *client);
void tow_ctl_callbacks_destroy(tow_controller_t *controller);
/* Describes the oldest that the run waits for, if any: "; device 3 of ...". */
void tow_ctl_callbacks_describe(FILE *out, const tow_ctl_run_t *run);
/* O(callbacks). */
void tow_ctl_callbacks_check(const tow_controller_t *controller);

#endif /* TOW_CONTROLLER_CALLBACK_IMPL_H_ */
