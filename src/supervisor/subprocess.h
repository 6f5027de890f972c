/* Child processes of commands and benchmarks. The kernel kills a child when its
 * parent dies. */
#ifndef TOW_SUPERVISOR_SUBPROCESS_H_
#define TOW_SUPERVISOR_SUBPROCESS_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"

typedef struct tow_subprocess {
    pid_t pid;     /* 0: none */
    int output_fd; /* its standard output; -1: none */
} tow_subprocess_t;

typedef enum tow_subprocess_output {
    TOW_SUBPROCESS_INHERIT,
    TOW_SUBPROCESS_PIPE,
} tow_subprocess_output_t;

/* Starts argv[0] (found through PATH) with the environment of this process and
 * the NAME=VALUE pairs of `extra` (NULL-terminated, may be NULL). */
tow_status_t tow_subprocess_start(char *const argv[], char *const extra[],
                                  tow_subprocess_output_t output,
                                  tow_subprocess_t *out_process) TOW_MUST_USE;
/* Starts this program with other arguments; argv[0] is only displayed. */
tow_status_t tow_subprocess_start_self(char *const argv[], char *const extra[],
                                       tow_subprocess_output_t output,
                                       tow_subprocess_t *out_process)
    TOW_MUST_USE;
/* Reads standard output into `text` (truncated to capacity - 1, terminated) and
 * waits for the process. After the timeout the process is killed and the status
 * is DEADLINE_EXCEEDED. A failing exit is an error that names the program and
 * quotes the end of its output. */
tow_status_t tow_subprocess_finish(tow_subprocess_t *process, const char *name,
                                   int64_t timeout_ns, char *text,
                                   size_t capacity) TOW_MUST_USE;
/* Kills the process if it is running, and waits. May be called twice. */
void tow_subprocess_kill(tow_subprocess_t *process);

#endif /* TOW_SUPERVISOR_SUBPROCESS_H_ */
