/* Relays: grants and completions of many workers, through a few of them. */
#ifndef TOW_CONTROLLER_RELAY_IMPL_H_
#define TOW_CONTROLLER_RELAY_IMPL_H_

#include "controller/piece_impl.h"
#include "controller/types_impl.h"

bool tow_ctl_relays_are_used(const tow_ctl_program_t *program);
void tow_ctl_relays_grant(tow_ctl_run_t *run, tow_ctl_piece_t *piece,
                          tow_msg_grant_t *grant);
void tow_ctl_relay_done(tow_ctl_worker_t *relay,
                        const tow_msg_relay_done_t *message);
/* The session between `worker` and that process has broken; one of them may be
 * the relay of the other. */
void tow_ctl_relay_link_down(tow_ctl_worker_t *worker, uint32_t process);
/* Resends all grants that it was to forward. */
void tow_ctl_relay_on_disconnect(tow_ctl_worker_t *relay);

#endif /* TOW_CONTROLLER_RELAY_IMPL_H_ */
