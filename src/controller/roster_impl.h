/* The roster: which worker has which name and process number.
 *
 * A *place* is a name with the host and the process number of the worker that
 * has it, or had it. A worker that enrols reserves a place before it opens its
 * devices, for as long as the session lives over which it asked; then it joins.
 * When it has left, the place is kept: the next worker of the host that asks for
 * no name gets it, so that a restarted worker has its name again.
 *
 * Process numbers are not reused while there are unused ones: a device id must
 * not name another device. */
#ifndef TOW_CONTROLLER_ROSTER_IMPL_H_
#define TOW_CONTROLLER_ROSTER_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/types_impl.h"
#include "device/xla_cpu/xla_cpu.h"

/* Process numbers of workers are below this; the last one is the compilers'. */
#define TOW_PLACE_PROCESS_COUNT_MAX (TOW_XLA_PROCESS_COUNT_MAX - 1u)

struct tow_ctl_place {
    char *name; /* owned */
    char *host; /* owned */
    uint32_t process;
    /* Only a worker that asks for the name gets it. */
    bool is_named;
    tow_ctl_worker_t *worker; /* borrowed; NULL: none has joined */
    /* Over which it was reserved; borrowed; NULL: it is not reserved. */
    tow_session_t *holder;
    tow_list_t node;
};

typedef struct tow_ctl_roster {
    tow_names_t by_name; /* of tow_ctl_place_t, owned */
    tow_list_t taken;    /* joined or reserved */
    tow_list_t left;     /* the others; the one that left first is first */
    size_t left_count;
    uint32_t process_next; /* no number from here on was given */
    tow_map_t processes;   /* numbers above that workers chose themselves */
} tow_ctl_roster_t;

void tow_ctl_roster_init(tow_controller_t *controller);
void tow_ctl_roster_deinit(tow_controller_t *controller);

/* ALREADY_EXISTS: another worker has the name or the number. UNAVAILABLE: a
 * worker of the host has lost its connection, and it is not known yet whether it
 * lives: ask again. INVALID_ARGUMENT: no valid name or number.
 * RESOURCE_EXHAUSTED: all numbers were used. */
tow_status_t tow_ctl_place_reserve(tow_controller_t *controller,
                                   const tow_msg_worker_enrol_t *enrol,
                                   tow_session_t *holder,
                                   tow_ctl_place_t **out_place) TOW_MUST_USE;
/* The session over which it was reserved has ended. */
void tow_ctl_place_release(tow_controller_t *controller,
                           tow_ctl_place_t *place);

/* ALREADY_EXISTS: the name or the number is reserved for another process. */
tow_status_t tow_ctl_roster_check_join(const tow_controller_t *controller,
                                       const char *name, uint32_t process,
                                       const tow_peer_t *peer) TOW_MUST_USE;
/* The worker has joined, with or without a reservation. */
tow_status_t tow_ctl_roster_join(tow_ctl_worker_t *worker,
                                 const tow_msg_worker_join_t *join)
    TOW_MUST_USE;
void tow_ctl_roster_leave(tow_ctl_worker_t *worker);
void tow_ctl_roster_check(const tow_controller_t *controller);

#endif /* TOW_CONTROLLER_ROSTER_IMPL_H_ */
