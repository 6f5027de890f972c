/* The stall watchdog: notifies clients of runs that take long. */
#ifndef TOW_CONTROLLER_STALL_IMPL_H_
#define TOW_CONTROLLER_STALL_IMPL_H_

#include "controller/types_impl.h"
#include "controller/wait_graph_impl.h"
#include "env/env.h"

typedef struct tow_ctl_stalls {
    tow_timer_t timer; /* runs while there are runs: see TOW_STALL_NS */
    uint64_t tick;     /* how often it has fired */
} tow_ctl_stalls_t;

/* What workers answered about waiting devices. Borrowed for the call. */
typedef struct tow_ctl_wait_report {
    tow_ctl_wait_graph_t *waits;
    tow_ctl_worker_t *const *silent; /* those that have not answered */
    size_t silent_count;
} tow_ctl_wait_report_t;

/* A run has been granted: starts the timer. */
void tow_ctl_stall_watch(tow_controller_t *controller);
void tow_ctl_stall_on_timer(tow_timer_t *timer);
/* Describes the client's oldest run; false: none takes long. */
bool tow_ctl_stall_describe(const tow_ctl_client_t *client,
                            const tow_ctl_wait_report_t *wait_report,
                            char text[TOW_STALL_TEXT_MAX]);
/* The workers of the run with this key have answered, or not in time. */
void tow_ctl_stall_notify(tow_ctl_client_t *client, uint64_t key,
                          const tow_ctl_wait_report_t *wait_report);

#endif /* TOW_CONTROLLER_STALL_IMPL_H_ */
