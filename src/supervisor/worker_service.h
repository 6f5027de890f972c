/* A worker of a cluster as a process: its devices, its collectives, and
 * optionally the cluster's controller in the same process. */
#ifndef TOW_SUPERVISOR_WORKER_SERVICE_H_
#define TOW_SUPERVISOR_WORKER_SERVICE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/macros.h"
#include "base/status.h"

/* follow_fd: none. */
#define TOW_WORKER_SERVICE_FOLLOW_NONE UINT64_MAX
/* host_bytes: one in TOW_WORKER_HOST_SHARE of this host's memory. */
#define TOW_WORKER_SERVICE_HOST_BYTES_DEFAULT UINT64_MAX

typedef struct tow_worker_service_options {
    const char *controller; /* its address */
    const char *name;       /* NULL: the controller chooses it */
    tow_log_t log;          /* its source becomes the name */
    const char *host;       /* NULL: this host's name */
    const char *island;     /* NULL: the default */
    const char *keys;       /* folder of `tow keys`; NULL: see daemon.h */
    const char *plugin;     /* NULL: XLA on the CPU, or `model` */
    const char *model;      /* simulated devices; NULL: real ones */
    const char *data; /* interface or address for data; NULL: the route's */
    const char *data_trusted; /* as in tow_net_options_t; may be NULL */
    const char *data_streams; /* the same */
    /* On which other workers connect; NULL: derived from the controller's. */
    const char *listen;
    uint64_t device_count;
    bool has_process; /* false: the controller chooses the number */
    uint64_t process;
    /* Name and number are given, and the controller keeps them for us: it is not
     * asked. See tow_controller_options_t.own_worker_count. */
    bool is_assigned;
    uint64_t memory_bytes; /* of each device; 0: no limit */
    uint64_t host_bytes;   /* for spilled objects */
    uint64_t ready_fd;     /* gets one line when the worker has joined */
    uint64_t follow_fd;    /* its end of file ends the worker; see below */
    bool host_functions;   /* run those of clients */
    /* The cluster's controller runs in this process, the only worker. */
    bool has_controller;
    bool use_compile_cache;  /* of that controller */
    uint64_t fork_server_fd; /* of that controller; 0: none */
    uint64_t idle_timeout_s; /* of that controller; 0: never */
} tow_worker_service_options_t;

/* Runs until a signal, or the end of file of `follow_fd`, ends the process. An
 * error: the worker could not open its devices, or the controller refused it.
 *
 * The worker ends in order: it tells the controller, which fails its runs at
 * once, closes its devices and its children, and removes its shared memory. If
 * its devices are still busy after TOW_WORKER_SERVICE_STOP_NS, this function ends
 * the process.
 *
 * *out_is_superseded: the controller has refused the worker, because another one
 * has its name or number. */
#define TOW_WORKER_SERVICE_STOP_NS (3 * TOW_NS_PER_S)
tow_status_t tow_worker_service_run(const tow_worker_service_options_t *options,
                                    bool *out_is_superseded) TOW_MUST_USE;

#endif /* TOW_SUPERVISOR_WORKER_SERVICE_H_ */
