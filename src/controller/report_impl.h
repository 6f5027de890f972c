/* Reports: for `tow status` and traces, collected from the workers. */
#ifndef TOW_CONTROLLER_REPORT_IMPL_H_
#define TOW_CONTROLLER_REPORT_IMPL_H_

#include "base/list.h"
#include "controller/types_impl.h"
#include "env/env.h"

typedef struct tow_ctl_reports {
    tow_list_t list;   /* that wait for workers */
    tow_timer_t timer; /* runs while there are some with a deadline */
} tow_ctl_reports_t;

void tow_ctl_report_begin(tow_ctl_client_t *client,
                          const tow_msg_report_get_t *message);
void tow_ctl_report_answer(tow_ctl_worker_t *worker,
                           const tow_msg_report_t *message);
/* Asks the workers that have not reported the run which devices wait in a
 * collective; then calls tow_ctl_stall_notify. */
void tow_ctl_report_query_waits(tow_ctl_client_t *client,
                                const tow_ctl_run_t *run);
void tow_ctl_reports_on_disconnect(tow_controller_t *controller,
                                   tow_ctl_worker_t *worker,
                                   tow_ctl_client_t *client);
void tow_ctl_reports_on_timeout(tow_timer_t *timer);
void tow_ctl_reports_destroy(tow_controller_t *controller);
/* O(reports). */
void tow_ctl_reports_check(const tow_controller_t *controller);

#endif /* TOW_CONTROLLER_REPORT_IMPL_H_ */
