/* How the members of real gangs meet, for a worker whose driver is XLA on the CPU:
 * in the arena of their host (collective/host), and between hosts over lanes
 * (collective/span). Simulated workers have a fabric instead.
 *
 *     status = tow_gangs_open(&options, &gangs);
 *     ... open the driver with tow_gangs_collectives(gangs) ...
 *     worker_options.mail = tow_gangs_mail(gangs);
 *     worker_options.hooks = tow_gangs_hooks(gangs);
 *     ... the worker's life ...
 *     ... the worker has closed, then the driver ...
 *     tow_gangs_close(gangs, closed);
 *
 * All functions are for the env's loop; the collectives themselves come on
 * threads of XLA's, block there, and are exempt from the rule of the state
 * machines as collective/ is. */
#ifndef TOW_WORKER_GANGS_H_
#define TOW_WORKER_GANGS_H_

#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/xla_cpu/xla_cpu.h"
#include "env/env.h"
#include "worker/worker.h"

typedef struct tow_gangs tow_gangs_t;

typedef struct tow_gangs_options {
    tow_env_t *env; /* lent, outlives the gangs */
    /* What all workers of the cluster on this host say alike, and no other
     * cluster there does: the controller's address. (The cluster's number would
     * come too late, after joining.) */
    const char *cluster;
    const char *host; /* as the worker says it; the same name, the same arena */
    uint32_t process;
    uint32_t device_count;
    /* Whether bytes between hosts carry a checksum of ours. */
    tow_write_check_t check;
} tow_gangs_options_t;

/* Makes the arena if we are the first on this host, and what others left who were
 * killed is removed before. Without a data plane there are no gangs across
 * hosts. */
tow_status_t tow_gangs_open(const tow_gangs_options_t *options,
                            tow_gangs_t **out_gangs) TOW_MUST_USE;
/* No collective may be inside: the driver has closed. Removes the arena if we are
 * the last; frees the gangs, then calls `closed`. */
void tow_gangs_close(tow_gangs_t *gangs, tow_closed_t closed);

/* For the option tow_collectives of the adapter. Lent until close. */
const tow_xla_collectives_t *tow_gangs_collectives(const tow_gangs_t *gangs);
/* For tow_worker_options_t. */
tow_region_key_t tow_gangs_mail(const tow_gangs_t *gangs);
tow_worker_hooks_t tow_gangs_hooks(tow_gangs_t *gangs);

/* Workers that are killed cannot remove what they shared: whoever has seen them
 * all end does. Nothing happens while one of them is there. */
void tow_gangs_sweep(const char *cluster, const char *host);

/* The arena's name of a cluster on a host, as tow_gangs_open makes it. */
#define TOW_GANGS_ARENA_NAME_SIZE 48
const char *tow_gangs_arena_name(const char *cluster, const char *host,
                                 char name[TOW_GANGS_ARENA_NAME_SIZE]);

#endif /* TOW_WORKER_GANGS_H_ */
