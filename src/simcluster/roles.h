/* Controllers and workers as programs of simulated processes: production code
 * with simulated devices. */
#ifndef TOW_SIMCLUSTER_ROLES_H_
#define TOW_SIMCLUSTER_ROLES_H_

#include "controller/controller.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "worker/worker.h"

/* Settings of a controller or worker; lent, outlives the simulation. */
typedef struct tow_simcluster_role {
    const tow_sim_model_t *model;
    tow_sim_fabric_t *fabric;
    const char *controller; /* its address: "sim:NAME" */
    const char *host;
    const char *island;    /* NULL: the default one */
    uint32_t relay_fanout; /* controller only */
    uint32_t piece_steps;  /* likewise */
    uint32_t late_shift;   /* the same; tow_graph_scope_t */
    size_t device_count;
    uint64_t memory_bytes; /* of a device; 0: as in the model */
    uint64_t host_bytes;   /* of a worker, for spilled objects; 0: none */
    uint32_t jitter_ppm;
    tow_sim_device_clock_t clock;
    /* Fails when a device gets gangs out of order; lent; NULL: not checked. */
    tow_sim_t *checker;
    /* Incremented at each start of a worker, which does not enrol: process numbers
     * are not reused. NULL: the controller gives the numbers. */
    uint32_t *process_number;
    /* Of a controller: incremented at each start; lent; may be NULL. */
    uint32_t *start_count;
    /* Of a worker: its process adds the device time that its devices counted
     * when it dies; lent; may be NULL. */
    tow_device_time_t *lost_time;
} tow_simcluster_role_t;

extern const tow_sim_program_t tow_simcluster_controller_program;
extern const tow_sim_program_t tow_simcluster_worker_program;

/* Lent; NULL: the process is down. */
tow_controller_t *tow_simcluster_controller_of(const tow_sim_node_t *node);
tow_worker_t *tow_simcluster_worker_of(const tow_sim_node_t *node);
tow_driver_t *tow_simcluster_driver_of(
    const tow_sim_node_t *node); /* of a worker */

#endif /* TOW_SIMCLUSTER_ROLES_H_ */
