/* Starts the processes of a cluster on this host, a controller and its
 * workers, and supervises them. They end when the calling process ends for
 * any reason. */
#ifndef TOW_SUPERVISOR_SUPERVISOR_H_
#define TOW_SUPERVISOR_SUPERVISOR_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "supervisor/hosts_file.h"
#include "supervisor/run_folder.h"

#define TOW_CLUSTER_WORKER_COUNT_MAX 64
/* The workers together use one in SHARE of the host's memory for spilled
 * objects. */
#define TOW_CLUSTER_HOST_SHARE 4u

typedef struct tow_supervisor_options {
    tow_run_folder_t *folder; /* lent; locked by the caller */
    const char *address;      /* on which the controller listens */
    const char *keys;         /* folder with the token */
    /* The workers run there, over ssh; lent; NULL: on this host. */
    const tow_hosts_t *hosts;
    uint64_t worker_count;
    uint64_t device_count; /* of each worker */
    uint64_t island_count; /* workers are split evenly; 0: one, the default */
    const char *model;     /* simulated devices; NULL: real ones */
    const char *plugin;    /* NULL: XLA on the CPU */
    uint64_t memory_bytes; /* of each device; 0: no limit */
    bool host_functions;   /* workers run clients' host functions */
    /* Host memory of each worker for spilled objects; 0: none. */
    uint64_t host_bytes;
    /* As for `tow controller`; 0: its defaults. */
    uint64_t relay_above, relay_group;
    bool use_compile_cache; /* of the controller, on disk */
    /* The cluster stops when it has had no client for this long; 0: never. */
    uint64_t idle_timeout_s;
    /* The only worker runs the controller in its process: faster, but the death
     * of the worker ends all sessions. */
    bool is_joint;
    bool is_unbound; /* workers use all cores, not a share each */
    /* main() of `tow worker`: forked workers that share a loaded XLA call it. */
    int (*worker_main)(int argc, char **argv);
    int follow_fd; /* end of file stops the cluster; -1: none */
    int ready_fd;  /* gets the address in one line; -1: none */
    /* Reports the progress of workers on other hosts; NULL: nobody listens. */
    void (*progress)(void *context, const char *line);
    void *context;
} tow_supervisor_options_t;

/* Starts the cluster, reports that it is ready, supervises it until SIGTERM,
 * SIGINT, SIGHUP, the end of follow_fd or the idle timeout, and stops it. A process that dies is
 * restarted after a delay: a worker with a new process number, the controller
 * on the same address. An error: the cluster did not start. */
tow_status_t tow_supervisor_run(const tow_supervisor_options_t *options)
    TOW_MUST_USE;

/* Stops the child of a supervisor that was interrupted while it started; 0:
 * none. */
void tow_supervisor_end_child(pid_t child);

#endif /* TOW_SUPERVISOR_SUPERVISOR_H_ */
