/* The command lines with which a shell script runs on another host: `ssh`, or the
 * program in TOW_SSH, which takes the same arguments. */
#ifndef TOW_SUPERVISOR_SSH_H_
#define TOW_SUPERVISOR_SSH_H_

#include <stddef.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "supervisor/hosts_file.h"

#define TOW_SSH_SCRIPT_SIZE 4096

typedef struct tow_ssh_command {
    char *items[32]; /* NULL-terminated; items[0] is the program */
    char port[16];
    char script[TOW_SSH_SCRIPT_SIZE];
} tow_ssh_command_t;

/* NOT_FOUND: it is not installed; says how to proceed. */
tow_status_t tow_ssh_find(void) TOW_MUST_USE;

/* `script` is for sh, without single quotes, and comes from us alone: it is on the
 * command line of a process there, which every user of that host can read. Asks
 * for no password, and gives up a host that does not answer. */
void tow_ssh_command(const tow_host_t *host, const char *script,
                     tow_ssh_command_t *out_command);

/* Standard input, output and error of ssh. */
typedef struct tow_ssh_streams {
    int input_fd, output_fd, error_fd;
} tow_ssh_streams_t;

/* Runs in a child after fork, whose parent has one thread: becomes ssh, which the
 * kernel kills when the process `parent` dies. */
TOW_NORETURN void tow_ssh_become(const tow_ssh_command_t *command,
                                 const tow_ssh_streams_t *streams,
                                 pid_t parent);

#endif /* TOW_SUPERVISOR_SSH_H_ */
