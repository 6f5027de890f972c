/* Units: what the scheduler orders. Runs, puts and assemblies begin with one.
 */
#ifndef TOW_CONTROLLER_UNIT_IMPL_H_
#define TOW_CONTROLLER_UNIT_IMPL_H_

#include "base/list.h"
#include "controller/types_impl.h"
#include "sched/sched.h"

typedef enum tow_ctl_unit_kind {
    UNIT_RUN,
    UNIT_PUT,
    UNIT_ASSEMBLY,
} tow_ctl_unit_kind_t;

struct tow_ctl_unit { /* first member of each */
    tow_ticket_t ticket;
    tow_ctl_unit_kind_t kind;
    /* Owned: its parts, and those of spilled objects that it needs; or NULL. */
    tow_ticket_part_t *weighed;
};

/* Blocks the ticket of a unit until a put has completed, a copy has, or the
 * loads of its program have. */
struct tow_ctl_block {
    tow_list_t node;
    tow_controller_t *controller; /* set while it blocks */
    tow_ticket_t *ticket;
    /* What the unit will consume, so that copies from it must complete before;
     * or NULL. Held by the unit. */
    const tow_object_t *consumed;
};

void tow_ctl_unit_block(tow_controller_t *controller, tow_ticket_t *ticket,
                        tow_ctl_block_t *block, tow_list_t *waiting);
void tow_ctl_unit_unblock(tow_ctl_block_t *block);

#endif /* TOW_CONTROLLER_UNIT_IMPL_H_ */
