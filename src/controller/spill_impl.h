/* Spills: idle objects in host memory, and on their way there and back. */
#ifndef TOW_CONTROLLER_SPILL_IMPL_H_
#define TOW_CONTROLLER_SPILL_IMPL_H_

#include "base/map.h"
#include "controller/types_impl.h"
#include "sched/sched.h"

typedef struct tow_ctl_spills {
    tow_map_t by_key; /* object key -> tow_ctl_spill_t */
    uint64_t number;
    uint64_t total_count; /* objects spilled, ever */
    size_t pinned_count;  /* at least so many objects are marked `pinned` */
    size_t weighed_count; /* units that have parts of their own */
    size_t spilling_count[TOW_ISLANDS_MAX];
    size_t returning_count[TOW_ISLANDS_MAX];
    bool awaits_gets; /* a ticket lacks memory of objects that gets read */
    tow_status_t room_error; /* owned: why idle objects could not be spilled */
} tow_ctl_spills_t;

/* For the scheduler. */
bool tow_ctl_spill_weigh(void *controller, tow_ticket_t *ticket);
bool tow_ctl_spill_make_room(void *controller, tow_ticket_t *ticket);
/* Adds to a refusal why there was no room, if that is known. */
tow_status_t tow_ctl_spill_explain(tow_controller_t *controller,
                                   tow_status_t take_refusal) TOW_MUST_USE;
/* The unit is granted and about to be sent: brings back the objects it needs.
 */
void tow_ctl_spill_bring_back(tow_controller_t *controller,
                              tow_ctl_unit_t *unit);
/* The unit ends, or its objects are all on their devices. */
void tow_ctl_spill_unweigh(tow_controller_t *controller, tow_ctl_unit_t *unit);
void tow_ctl_spill_done(tow_ctl_worker_t *worker,
                        const tow_msg_spill_done_t *message);
/* A get has ended, which may have kept an object on its devices. */
void tow_ctl_spill_on_get_end(tow_controller_t *controller);
void tow_ctl_spill_object_discarded(tow_controller_t *controller,
                                    tow_object_t *object);
void tow_ctl_spills_on_disconnect(tow_controller_t *controller,
                                  tow_ctl_worker_t *worker);
void tow_ctl_spills_destroy(tow_controller_t *controller);
/* O(spills). */
void tow_ctl_spills_check(const tow_controller_t *controller);

#endif /* TOW_CONTROLLER_SPILL_IMPL_H_ */
