/* The fabric: where simulated devices of a whole cluster meet in collectives.
 *
 * One fabric stands for the interconnect of all devices whose drivers were lent
 * it: drivers of many nodes of one simulated world, or of one process in real
 * time. Members of a collective are matched by (gang, which collective of the
 * program, group); when the last one arrives the collective takes its modelled
 * time and all go on. Until then they wait, for ever if need be: a member that
 * was aborted, or whose node has died, never arrives, and the others stay
 * blocked until somebody aborts them too, as on hardware.
 *
 * The fabric sees what hardware cannot: when two gangs wait for each other's
 * devices it says so at once, with their names.
 *
 * No thread and no lock: all drivers of a fabric are turned by one thread, and
 * their envs read one clock. */
#ifndef TOW_DEVICE_SIM_FABRIC_H_
#define TOW_DEVICE_SIM_FABRIC_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/sim/model.h"

typedef struct tow_sim_fabric tow_sim_fabric_t;

typedef struct tow_sim_fabric_options {
    /* Gangs wait for each other in a circle. The status (lent,
     * FAILED_PRECONDITION) names gangs and devices. Runs once a circle, within
     * the turn of the device that closed it; may look at the fabric and call
     * tow_sim_fail, no more. NULL: nobody is told, tow_sim_fabric_deadlock
     * still knows. */
    void (*deadlock)(void *context, tow_status_t status);
    void *context; /* lent */
} tow_sim_fabric_options_t;

/* `options` may be NULL. */
tow_status_t tow_sim_fabric_create(const tow_sim_fabric_options_t *options,
                                   tow_sim_fabric_t **out_fabric) TOW_MUST_USE;
/* After all its drivers have gone. NULL is harmless. */
void tow_sim_fabric_destroy(tow_sim_fabric_t *fabric);

/* The first deadlock that was seen, or TOW_OK. Lent. */
tow_status_t tow_sim_fabric_deadlock(const tow_sim_fabric_t *fabric);

/* A device that has arrived in a collective and waits for others. */
typedef struct tow_sim_stuck {
    int64_t device_id;
    uint64_t gang_id;
    size_t collective; /* of the program, from 0 */
    tow_sim_collective_kind_t kind;
    int64_t since_ns; /* of the env's clock */
    size_t member_count;
    size_t present_count; /* members that are there */
} tow_sim_stuck_t;

/* Who is stuck where, since when: the oldest collectives first, then in order
 * of arrival. Fills in up to `capacity` and returns how many there are. */
size_t tow_sim_fabric_stuck(const tow_sim_fabric_t *fabric,
                            tow_sim_stuck_t *out_stuck, size_t capacity);
/* The same for people: a line a collective, with the devices that are missing
 * and where they are instead. Cut to `capacity`; returns `text`. */
const char *tow_sim_fabric_explain(const tow_sim_fabric_t *fabric, char *text,
                                   size_t capacity);

typedef struct tow_sim_fabric_counts {
    size_t devices;
    uint64_t collectives; /* that were completed */
    uint64_t deadlocks;
} tow_sim_fabric_counts_t;

tow_sim_fabric_counts_t tow_sim_fabric_counts(const tow_sim_fabric_t *fabric);

#endif /* TOW_DEVICE_SIM_FABRIC_H_ */
