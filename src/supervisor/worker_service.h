/* A worker of a cluster as a process: its devices, its collectives, and
 * optionally the cluster's controller in the same process. */
#ifndef TOW_SUPERVISOR_WORKER_SERVICE_H_
#define TOW_SUPERVISOR_WORKER_SERVICE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/macros.h"
#include "base/status.h"

/* host_bytes: one in TOW_WORKER_HOST_SHARE of this host's memory. */
#define TOW_WORKER_SERVICE_HOST_BYTES_DEFAULT UINT64_MAX

typedef struct tow_worker_service_options {
    const char *controller; /* its address */
    const char *name;
    tow_log_t log;
    const char *host;         /* NULL: this host's name */
    const char *island;       /* NULL: the default */
    const char *keys;         /* folder of `tow keys`; NULL: see daemon.h */
    const char *plugin;       /* NULL: XLA on the CPU, or `model` */
    const char *model;        /* simulated devices; NULL: real ones */
    const char *data_devices; /* network interfaces; NULL: this host only */
    /* On which other workers connect; NULL: derived from the controller's. */
    const char *listen;
    uint64_t device_count;
    uint64_t process;
    uint64_t memory_bytes; /* of each device; 0: no limit */
    uint64_t host_bytes;   /* for spilled objects */
    uint64_t ready_fd;     /* gets one line when the worker has joined */
    bool host_functions;   /* run those of clients */
    /* The cluster's controller runs in this process, the only worker. */
    bool has_controller;
    bool use_compile_cache;  /* of that controller */
    uint64_t fork_server_fd; /* of that controller; 0: none */
    uint64_t idle_timeout_s; /* of that controller; 0: never */
} tow_worker_service_options_t;

/* Runs until a signal ends the process. An error: the worker could not open its
 * devices, or the controller refused it. */
tow_status_t tow_worker_service_run(const tow_worker_service_options_t *options)
    TOW_MUST_USE;

#endif /* TOW_SUPERVISOR_WORKER_SERVICE_H_ */
