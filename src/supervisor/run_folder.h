/* The folder of a cluster that `tow up` has started on this host:
 *
 *   lock           held by the supervisor while the cluster runs
 *   cluster.json   the address, the path of the token, and the size
 *   cluster.env    address and token for clients (client/running_cluster.h)
 *   token          the secret that clients present
 *   *.log          output of each process
 *   cluster.sock   the controller's socket, unless it listens elsewhere
 *
 * Only its owner can access it. */
#ifndef TOW_SUPERVISOR_RUN_FOLDER_H_
#define TOW_SUPERVISOR_RUN_FOLDER_H_

#include <limits.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

#define TOW_RUN_PATH_SIZE (PATH_MAX + 64)

typedef struct tow_run_folder {
    char path[PATH_MAX];
    int lock_fd; /* -1: not locked by us */
} tow_run_folder_t;

/* `path` NULL: the default. INVALID_ARGUMENT: it is too long. */
tow_status_t tow_run_folder_name(tow_run_folder_t *folder, const char *path)
    TOW_MUST_USE;
/* Creates the folder if needed and takes the lock. FAILED_PRECONDITION: a
 * cluster is running there. PERMISSION_DENIED: other users can access it. */
tow_status_t tow_run_folder_take(tow_run_folder_t *folder) TOW_MUST_USE;
/* The process that holds the lock; 0: none, no cluster is running. */
pid_t tow_run_folder_holder(const tow_run_folder_t *folder);
/* The path of a file in it. */
void tow_run_folder_file(const tow_run_folder_t *folder, const char *name,
                         char path[TOW_RUN_PATH_SIZE]);

typedef struct tow_run_state {
    pid_t pid; /* of the supervisor */
    char address[TOW_ADDRESS_TEXT_MAX + 32];
    char token_file[TOW_RUN_PATH_SIZE];
    unsigned worker_count;
    unsigned device_count; /* of each */
} tow_run_state_t;

tow_status_t tow_run_folder_write(const tow_run_folder_t *folder,
                                  const tow_run_state_t *state) TOW_MUST_USE;
/* NOT_FOUND: no cluster is running there; says how to start one. */
tow_status_t tow_run_folder_read(const tow_run_folder_t *folder,
                                 tow_run_state_t *out_state) TOW_MUST_USE;
/* Removes state and token and releases the lock. */
void tow_run_folder_leave(tow_run_folder_t *folder);

#endif /* TOW_SUPERVISOR_RUN_FOLDER_H_ */
