/* Controllers and workers as processes of a simulated world: the code that
 * production runs, with simulated devices. */
#ifndef TOW_TOOL_SIM_ROLES_H_
#define TOW_TOOL_SIM_ROLES_H_

#include "controller/controller.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "worker/worker.h"

/* What a node of either kind is told: lent, outlives the world. */
typedef struct tow_sim_role {
    const tow_sim_model_t *model;
    tow_sim_fabric_t *fabric;
    const char *controller; /* its address: "sim:NAME" */
    const char *host;
    const char *island;    /* NULL: the default one */
    uint32_t relay_fanout; /* a controller's */
    size_t device_count;
    uint64_t memory_bytes; /* of a device; 0: as the model says */
    uint64_t host_bytes;   /* of a worker, for what is spilled; 0: none */
    uint32_t jitter_ppm;
    /* Fails when a device gets gangs out of order; NULL: nobody looks. Lent. */
    tow_sim_t *watcher;
    /* Counts up with each life of a worker: process numbers are never used
     * again. */
    uint32_t *process_number;
} tow_sim_role_t;

extern const tow_sim_program_t tow_sim_controller_program;
extern const tow_sim_program_t tow_sim_worker_program;

/* NULL: it is not alive. Lent. */
tow_controller_t *tow_sim_controller_of(const tow_sim_node_t *node);
tow_worker_t *tow_sim_worker_of(const tow_sim_node_t *node);
tow_driver_t *tow_sim_driver_of(const tow_sim_node_t *node); /* a worker's */

#endif /* TOW_TOOL_SIM_ROLES_H_ */
