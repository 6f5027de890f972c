/* The processes of a cluster on this host: a controller and its workers, minded
 * by the process that calls. All of them end with it, however it ends. */
#ifndef TOW_TOOL_SUPERVISOR_H_
#define TOW_TOOL_SUPERVISOR_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "tool/run_folder.h"

#define TOW_CLUSTER_WORKER_COUNT_MAX 64
/* Workers together offer one in SHARE of their host's memory for objects that
 * their devices have no room for. */
#define TOW_CLUSTER_HOST_SHARE 4u

typedef struct tow_supervisor_options {
    tow_run_folder_t *folder; /* lent; taken */
    const char *address;      /* where the controller listens */
    const char *keys;         /* folder with the token */
    uint64_t worker_count;
    uint64_t device_count; /* of each */
    uint64_t island_count; /* workers are split evenly; 0: one, unnamed */
    const char *model;     /* simulated devices; NULL: real ones */
    const char *plugin;    /* NULL: XLA on the CPU */
    uint64_t memory_bytes; /* of each device; 0: no limit */
    bool host_functions;   /* workers run those of clients */
    /* Of each worker, for what its devices have no room for; 0: none. */
    uint64_t host_bytes;
    /* As `tow controller` takes them; 0: its defaults. */
    uint64_t relay_above, relay_group;
    bool keeps_compiled; /* programs, on disk, for clusters to come */
    /* Its only worker has the controller within: fewer processes and messages
     * between them, and a worker that dies takes all sessions along. */
    bool is_joint;
    bool is_unbound; /* workers may use all cores, not a share each */
    int follow_fd;   /* its end ends the cluster; -1: none */
    int ready_fd;    /* gets the address, in one line; -1: nobody does */
} tow_supervisor_options_t;

/* Starts the cluster, says that it is ready, minds it until SIGTERM, SIGINT, SIGHUP
 * or the end of follow_fd, and ends it. A process that dies is started again
 * after a while: a worker as another incarnation, the controller at the same
 * address. An error: it never got ready, and why. */
tow_status_t tow_supervise(const tow_supervisor_options_t *options)
    TOW_MUST_USE;

/* Of one that was told to end before it was there: ends the child that it had
 * started; 0: none. */
void tow_supervise_end(pid_t child);

#endif /* TOW_TOOL_SUPERVISOR_H_ */
