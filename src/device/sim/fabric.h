/* The fabric: the interconnect over which simulated devices of a whole cluster
 * do collectives.
 *
 * Drivers of many simulated hosts, or of one process in real time, share a
 * fabric. It matches members of a collective by (gang, index of the collective
 * in the program, group); when the last one arrives the collective takes its
 * modelled time and all continue. Until then they wait, as on hardware: a
 * member that was aborted, or whose host has died, never arrives, and the
 * others stay blocked until they are aborted, too.
 *
 * Unlike hardware, the fabric detects at once that gangs wait for each other's
 * devices, and names them.
 *
 * No thread and no lock: one thread runs all drivers of a fabric, and their
 * envs have one clock. */
#ifndef TOW_DEVICE_SIM_FABRIC_H_
#define TOW_DEVICE_SIM_FABRIC_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/sim/model.h"

typedef struct tow_sim_fabric tow_sim_fabric_t;

typedef struct tow_sim_fabric_options {
    /* Gangs wait for each other in a cycle. The status (lent,
     * FAILED_PRECONDITION) names gangs and devices. Runs once per cycle, in the
     * turn of the device that closed it; may only read the fabric and call
     * tow_sim_fail. NULL: no report, but tow_sim_fabric_deadlock. */
    void (*deadlock)(void *context, tow_status_t status);
    void *context; /* lent */
} tow_sim_fabric_options_t;

/* `options` may be NULL. */
tow_status_t tow_sim_fabric_create(const tow_sim_fabric_options_t *options,
                                   tow_sim_fabric_t **out_fabric) TOW_MUST_USE;
/* After all its drivers were freed. NULL is fine. */
void tow_sim_fabric_destroy(tow_sim_fabric_t *fabric);

/* The first deadlock that was detected, or TOW_OK. Lent. */
tow_status_t tow_sim_fabric_deadlock(const tow_sim_fabric_t *fabric);

/* A device that has arrived in a collective and waits for others. */
typedef struct tow_sim_stuck {
    int64_t device_id;
    uint64_t gang_id;
    size_t collective; /* of the program, from 0 */
    tow_sim_collective_kind_t kind;
    int64_t since_ns; /* of the env's clock */
    size_t member_count;
    size_t present_count; /* members that have arrived */
} tow_sim_stuck_t;

/* The devices that are stuck: oldest collectives first, then in order of
 * arrival. Fills in up to `capacity` and returns how many there are. */
size_t tow_sim_fabric_stuck(const tow_sim_fabric_t *fabric,
                            tow_sim_stuck_t *out_stuck, size_t capacity);
/* The same as text: a line per collective, with the missing devices and where
 * they wait instead. Truncated to `capacity`; returns `text`. */
const char *tow_sim_fabric_explain(const tow_sim_fabric_t *fabric, char *text,
                                   size_t capacity);

typedef struct tow_sim_fabric_counts {
    size_t devices;
    uint64_t collectives; /* that were completed */
    uint64_t deadlocks;
} tow_sim_fabric_counts_t;

tow_sim_fabric_counts_t tow_sim_fabric_counts(const tow_sim_fabric_t *fabric);

#endif /* TOW_DEVICE_SIM_FABRIC_H_ */
