/* Workers on other hosts, started over ssh (ssh.h).
 *
 * A worker there ends when its standard input ends, so it never outlives the ssh
 * connection, and with it this process. The credential of the cluster goes through
 * standard input, never through a command line, into a new private folder there,
 * which is removed when the worker has ended. */
#ifndef TOW_SUPERVISOR_REMOTE_WORKER_H_
#define TOW_SUPERVISOR_REMOTE_WORKER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "supervisor/hosts_file.h"
#include "supervisor/ssh.h"

/* -- Checking the hosts ----------------------------------------------------- */

typedef struct tow_remote_check {
    const tow_hosts_t *hosts;
    /* What `tow version` prints in its first line: the same on all hosts. */
    const char *version;
    /* Progress: one line about a host that has been checked. */
    void (*report)(void *context, const char *line);
    void *context;
} tow_remote_check_t;

#define TOW_REMOTE_ADDRESS_SIZE 64

/* Checks over ssh, on all hosts at the same time, that tow is there in the same
 * version. `out_address` is the address of this host as the first of them sees it;
 * "" if that is unknown. An error has one line for each host that failed: ssh does
 * not reach it, there is no tow, or another version. Takes at most
 * TOW_REMOTE_CHECK_NS; no process is left. */
#define TOW_REMOTE_CHECK_NS 20000000000ll
tow_status_t tow_remote_check(const tow_remote_check_t *check,
                              char out_address[TOW_REMOTE_ADDRESS_SIZE])
    TOW_MUST_USE;

/* -- Starting a worker ------------------------------------------------------ */

/* The files that a worker needs to authenticate itself. */
typedef struct tow_credential {
    char bytes[32 << 10]; /* of all files, one after the other */
    size_t size;
    char script[512]; /* reads them from standard input, into the folder $d */
} tow_credential_t;

tow_status_t tow_credential_load(const char *keys_folder,
                                 tow_credential_t *out_credential) TOW_MUST_USE;

typedef struct tow_remote_worker {
    const tow_host_t *host;
    const char *controller; /* its address */
    const char *name;       /* of the worker */
    const char *model;      /* simulated devices; NULL: real ones */
    const char *plugin;     /* a path there; NULL: XLA on the CPU */
    uint64_t device_count;
    uint64_t memory_bytes; /* of each device; 0: no limit */
    bool host_functions;
} tow_remote_worker_t;

/* The process writes its name to standard output in one line when it has joined,
 * and its log to standard error. Write the credential to its standard input, and
 * close that to end the worker. INVALID_ARGUMENT: a model or plugin that cannot
 * be passed on. */
tow_status_t tow_remote_worker_command(const tow_remote_worker_t *worker,
                                       const tow_credential_t *credential,
                                       tow_ssh_command_t *out_command)
    TOW_MUST_USE;

typedef struct tow_remote_process {
    pid_t pid;     /* of ssh */
    int follow_fd; /* its standard input: close it to end the worker */
} tow_remote_process_t;

/* Runs the command. Its standard output is `ready_fd`, its standard error the file
 * `log`. The kernel kills it when this process dies. */
tow_status_t tow_remote_worker_start(const tow_ssh_command_t *command,
                                     const tow_credential_t *credential,
                                     const char *log, int ready_fd,
                                     tow_remote_process_t *out_process)
    TOW_MUST_USE;

#endif /* TOW_SUPERVISOR_REMOTE_WORKER_H_ */
