/* Communication between the members of real gangs, for a worker whose driver is
 * XLA on the CPU: within a host through a shared-memory arena
 * (collective/intra_host), between hosts over lanes (collective/multi_host).
 * Simulated workers have a fabric instead.
 *
 *     status = tow_gang_comm_open(&options, &comm);
 *     ... open the driver with tow_gang_comm_collectives(comm) ...
 *     worker_options.mail = tow_gang_comm_mail(comm);
 *     worker_options.memory = tow_gang_comm_memory(comm);
 *     worker_options.hooks = tow_gang_comm_hooks(comm);
 *     ... the worker runs ...
 *     ... the worker has closed, then the driver ...
 *     tow_gang_comm_close(comm, closed);
 *
 * All functions are for the env's loop. Threads of XLA call the collectives
 * themselves and block in them; like collective/, they are exempt from the rule
 * of the state machines. */
#ifndef TOW_WORKER_GANG_COMM_H_
#define TOW_WORKER_GANG_COMM_H_

#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/xla_cpu/xla_cpu.h"
#include "env/env.h"
#include "worker/worker.h"

typedef struct tow_gang_comm tow_gang_comm_t;

typedef struct tow_gang_comm_options {
    tow_env_t *env; /* lent, outlives this object */
    /* A text that all workers of the cluster on this host share, and no other
     * cluster there: the controller's address. (The cluster's number is known
     * only after joining.) */
    const char *cluster;
    /* Workers of one name share an arena if they share memory: the arena's
     * random number tells (tow_gang_comm_memory). */
    const char *host;
    uint32_t process;
    uint32_t device_count;
    /* Whether bytes between hosts carry our checksum. */
    tow_write_check_t check;
} tow_gang_comm_options_t;

/* Creates the arena if we are the first on this host, after removing what
 * killed workers have left. Without a data plane there are no gangs across
 * hosts. */
tow_status_t tow_gang_comm_open(const tow_gang_comm_options_t *options,
                                tow_gang_comm_t **out_comm) TOW_MUST_USE;
/* No collective may be in progress: the driver has closed. Removes the arena if
 * we are the last; frees the object, then calls `closed`. */
void tow_gang_comm_close(tow_gang_comm_t *comm, tow_closed_t closed);
/* Before the process ends without closing it: removes the arena if nobody else of
 * this host uses it. Nothing else is released. */
void tow_gang_comm_abandon(tow_gang_comm_t *comm);

/* For the option tow_collectives of the adapter. Lent until close. */
const tow_xla_collectives_t *tow_gang_comm_collectives(
    const tow_gang_comm_t *comm);
/* For tow_worker_options_t. */
tow_region_key_t tow_gang_comm_mail(const tow_gang_comm_t *comm);
uint64_t tow_gang_comm_memory(const tow_gang_comm_t *comm);
tow_worker_hooks_t tow_gang_comm_hooks(tow_gang_comm_t *comm);

/* Killed workers cannot remove their shared memory: the process that has seen
 * all of them end does. No effect while one of them is alive. */
void tow_gang_comm_sweep(const char *cluster, const char *host);

/* The name of a cluster's arena on a host, as tow_gang_comm_open creates it. */
#define TOW_GANG_COMM_ARENA_NAME_SIZE 48
const char *tow_gang_comm_arena_name(const char *cluster, const char *host,
                                     char name[TOW_GANG_COMM_ARENA_NAME_SIZE]);

#endif /* TOW_WORKER_GANG_COMM_H_ */
