/* The simulated device driver. Prefix: tow_sim_device_; tow_sim_fabric_,
 * tow_sim_model_, tow_sim_cost_ for its parts.
 *
 * Runs cost programs (cost.h) in the time that a device model (model.h) gives,
 * on the clock of its env: virtual in simulation, real on `net`. It computes
 * nothing. It behaves as hardware does: limited memory, strict order, waiting
 * for inputs, collectives that block until all members have arrived (fabric.h).
 * README.md defines the simulated values of results.
 *
 *     tow_sim_model_t model;
 *     status = tow_sim_model_find("tpu_v4", &model);
 *     status = tow_sim_device_driver_create(
 *         env, &(tow_sim_device_options_t){.model = &model, .device_count = 4,
 *         .first_id = 2048, .fabric = fabric}, &driver); */
#ifndef TOW_DEVICE_SIM_SIM_DEVICE_H_
#define TOW_DEVICE_SIM_SIM_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "device/sim/fabric.h"
#include "device/sim/model.h"
#include "env/env.h"

/* What the devices report of the time that runs kept them; they always take the
 * right time. */
typedef enum tow_sim_device_clock {
    TOW_SIM_CLOCK_RIGHT,
    TOW_SIM_CLOCK_ZERO,   /* none */
    TOW_SIM_CLOCK_SLOW,   /* 1,000 times too little */
    TOW_SIM_CLOCK_FAST,   /* 1,000 times too much */
    TOW_SIM_CLOCK_ABSURD, /* hours, at random */
    TOW_SIM_CLOCK_COUNT,
} tow_sim_device_clock_t;

typedef struct tow_sim_device_options {
    const tow_sim_model_t *model; /* copied */
    size_t device_count;          /* 0: 1 */
    int64_t first_id;             /* the devices' ids count up from it */
    /* Lent, outlives the driver. NULL: its own, for these devices only. */
    tow_sim_fabric_t *fabric;
    uint64_t memory_bytes; /* of each device; 0: as the model says */
    uint32_t speedup;      /* all times are divided by it; 0: 1 */
    /* Each computation takes up to this much longer, at random. Collectives and
     * transfers do not. */
    uint32_t jitter_ppm;
    tow_sim_device_clock_t clock;
} tow_sim_device_options_t;

tow_status_t tow_sim_device_driver_create(
    tow_env_t *env, const tow_sim_device_options_t *options,
    tow_driver_t **out_driver) TOW_MUST_USE;

/* For the `destroy` of a simulated process that has died: frees the driver with
 * all its buffers and executables at once, without calling its env or any
 * callback. Its devices leave the fabric; members on other hosts stay blocked
 * until they are aborted. NULL is fine. */
void tow_sim_device_driver_crash(tow_driver_t *driver);

typedef struct tow_sim_device_counts {
    uint64_t runs;      /* that ended, with or without an error */
    uint64_t transfers; /* uploads, downloads, copies that ended */
    uint64_t turns;     /* of the env, that this driver used */
    uint64_t busy_ns;   /* of all devices, of runs that ended, as reported */
    uint64_t wait_ns;   /* the same: waits in collectives */
    size_t buffers;     /* alive */
    size_t executables;
    size_t memory_bytes; /* of the host: the driver and its devices */
} tow_sim_device_counts_t;

tow_sim_device_counts_t tow_sim_device_counts(const tow_driver_t *driver);

#endif /* TOW_DEVICE_SIM_SIM_DEVICE_H_ */
