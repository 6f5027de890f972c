/* A child process: its start, its socket, its output, its end. Belongs to the
 * thread that started it, and ends with that thread. */
#ifndef TOW_DEVICE_CHILD_PROCESS_H_
#define TOW_DEVICE_CHILD_PROCESS_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"
#include "device/child/tuning.h"

typedef struct process {
    pid_t pid; /* 0: there is none */
    int pid_fd;
    int control_fd; /* of one that a fork server forked; -1: it is our child */
    int socket_fd;  /* ours; does not block */
    int error_fd;   /* its standard output and error; does not block */
    int wait_status;
    size_t last_output_size;
    char last_output[TOW_CHILD_LAST_OUTPUT_BYTES_MAX + 1];
} tow_child_process_t;

/* The descriptor of the child's end of the socket. */
#define TOW_CHILD_SOCKET_FD 3

/* Asserts the invariants. */
void tow_child_process_check(const tow_child_process_t *process);
/* No process. */
void tow_child_process_init(tow_child_process_t *process);
/* argv[0] is the program. It gets its end of the socket as TOW_CHILD_SOCKET_FD,
 * a pipe as standard output and error, and no other descriptor. */
tow_status_t tow_child_process_start(tow_child_process_t *process, char **argv)
    TOW_MUST_USE;
/* The same, forked by a fork server (fork_request.h) if there is one and it
 * can; 0: there is none. */
tow_status_t tow_child_process_launch(tow_child_process_t *process, char **argv,
                                      int fork_server_fd) TOW_MUST_USE;
/* Kills the process and its process group unless it has ended, waits for it,
 * and keeps wait_status and the last output. */
void tow_child_process_end(tow_child_process_t *process);

/* True if it has ended by itself; tow_child_process_end then learns how. */
bool tow_child_process_has_ended(const tow_child_process_t *process);

/* How it ended, after tow_child_process_end: "signal 11 (Segmentation
 * fault)". */
typedef struct tow_child_process_end_text {
    char text[96];
} tow_child_process_end_text_t;
tow_child_process_end_text_t tow_child_process_end_text(
    const tow_child_process_t *process);

/* Reads its output and keeps the end. False when the pipe is closed. */
bool tow_child_process_read_output(tow_child_process_t *process);
/* The end of its output as one line, for an error; "nothing" if it is empty. */
const char *tow_child_process_last_output(tow_child_process_t *process);

/* In the child, before anything else: it ends with the process `parent`, dumps
 * no core, and has at most `memory` bytes of private memory; "0" is no limit.
 * Both are arguments of its command. */
void tow_child_process_enter(const char *parent, const char *memory);

/* Finds the program `name` of children: the environment variable names it, or
 * it is in the build folder beside this program, or where `make install` put
 * it. NOT_FOUND says how to get it. */
tow_status_t tow_child_process_find(const char *name, const char *variable,
                                    char *path, size_t capacity) TOW_MUST_USE;

#endif /* TOW_DEVICE_CHILD_PROCESS_H_ */
