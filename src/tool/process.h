/* Child processes and scratch folders for commands that need them. Every child
 * is ended by its id, and ends by itself when its parent dies. */
#ifndef TOW_TOOL_PROCESS_H_
#define TOW_TOOL_PROCESS_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"

typedef struct tow_process {
    pid_t pid;     /* 0: none */
    int output_fd; /* its standard output; -1: none */
} tow_process_t;

typedef enum tow_process_output {
    TOW_OUTPUT_INHERIT,
    TOW_OUTPUT_PIPE,
} tow_process_output_t;

/* Starts argv[0] (found through PATH) with the environment of this process and
 * the NAME=VALUE pairs of `extra` (NULL-terminated, may be NULL). */
tow_status_t tow_process_start(char *const argv[], char *const extra[],
                               tow_process_output_t output,
                               tow_process_t *out_process) TOW_MUST_USE;
/* This program again, with other arguments. argv[0] is for show. */
tow_status_t tow_process_start_self(char *const argv[], char *const extra[],
                                    tow_process_output_t output,
                                    tow_process_t *out_process) TOW_MUST_USE;
/* Reads standard output to its end into `text` (cut at capacity - 1, always
 * terminated) and waits for the process. Past the deadline it is killed and the
 * status is DEADLINE_EXCEEDED. A bad exit is an error that names the program
 * and quotes the end of its output. */
tow_status_t tow_process_finish(tow_process_t *process, const char *name,
                                int64_t timeout_ns, char *text, size_t capacity)
    TOW_MUST_USE;
/* Kills it if it is still there, and waits. Harmless twice. */
void tow_process_kill(tow_process_t *process);

/* A folder of mode 0700 under TMPDIR, and its removal with all in it. */
tow_status_t tow_scratch_create(char *path, size_t capacity) TOW_MUST_USE;
void tow_scratch_remove(const char *path);

/* A TCP port on loopback that was free a moment ago. */
tow_status_t tow_free_port(uint16_t *out_port) TOW_MUST_USE;

#endif /* TOW_TOOL_PROCESS_H_ */
