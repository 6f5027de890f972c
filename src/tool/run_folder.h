/* The folder of a cluster that `tow up` has started on this host:
 *
 *   lock           held as long as the cluster is there, by who supervises it
 *   cluster.json   its address, where its token is, and its size
 *   token          who has it may connect
 *   *.log          what each process said
 *   cluster.sock   the controller's socket, unless it listens elsewhere
 *
 * All of it is for one user only. */
#ifndef TOW_TOOL_RUN_FOLDER_H_
#define TOW_TOOL_RUN_FOLDER_H_

#include <limits.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

#define TOW_RUN_PATH_SIZE (PATH_MAX + 64)

typedef struct tow_run_folder {
    char path[PATH_MAX];
    int lock_fd; /* -1: not ours */
} tow_run_folder_t;

/* `path` NULL: the usual one. INVALID_ARGUMENT if it is too long. */
tow_status_t tow_run_folder_name(tow_run_folder_t *folder, const char *path)
    TOW_MUST_USE;
/* Makes it if it is not there, and takes the lock. FAILED_PRECONDITION: a
 * cluster is up there. PERMISSION_DENIED: others can write there. */
tow_status_t tow_run_folder_take(tow_run_folder_t *folder) TOW_MUST_USE;
/* Who has the lock; 0: nobody, no cluster is there. */
pid_t tow_run_folder_holder(const tow_run_folder_t *folder);
/* The path of a file in it. */
void tow_run_folder_file(const tow_run_folder_t *folder, const char *name,
                         char path[TOW_RUN_PATH_SIZE]);

typedef struct tow_run_state {
    pid_t pid; /* of who supervises */
    char address[TOW_ADDRESS_TEXT_MAX + 32];
    char token_file[TOW_RUN_PATH_SIZE];
    unsigned worker_count;
    unsigned device_count; /* of each */
} tow_run_state_t;

tow_status_t tow_run_folder_write(const tow_run_folder_t *folder,
                                  const tow_run_state_t *state) TOW_MUST_USE;
/* NOT_FOUND: no cluster is up there, and how to start one. */
tow_status_t tow_run_folder_read(const tow_run_folder_t *folder,
                                 tow_run_state_t *out_state) TOW_MUST_USE;
/* Removes what the next cluster there must not find, and gives up the lock. */
void tow_run_folder_leave(tow_run_folder_t *folder);

#endif /* TOW_TOOL_RUN_FOLDER_H_ */
