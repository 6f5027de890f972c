/* A child process: its socket, its last words, its end. Belongs to the thread
 * that started it, and ends with that thread. */
#ifndef TOW_DEVICE_COMPILER_PROCESS_IMPL_H_
#define TOW_DEVICE_COMPILER_PROCESS_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"
#include "device/compiler/tuning.h"

typedef struct process {
    pid_t pid; /* 0: there is none */
    int pid_fd;
    int socket_fd; /* ours; does not block */
    int error_fd;  /* what it says, beside its answers; does not block */
    int wait_status;
    size_t last_size;
    char last_words[TOW_COMPILER_LAST_WORDS_BYTES_MAX + 1];
} child_process_t;

/* There is none. */
void tow_child_process_init(child_process_t *process);
/* words[0] is the program. It gets our end of the socket as TALK_FD, a pipe as
 * standard output and error, and nothing else. */
tow_status_t tow_child_process_start(child_process_t *process, char **words)
    TOW_MUST_USE;
/* Ends it, if it has not ended, with all that it started, and takes note of
 * wait_status and the last words. There is none afterwards. */
void tow_child_process_end(child_process_t *process);

/* Reads what it says and keeps the end of it. False when that is over. */
bool tow_child_process_listen(child_process_t *process);
/* One line, for a status; "nothing" if there was none. */
const char *tow_child_process_last_words(child_process_t *process);

#endif /* TOW_DEVICE_COMPILER_PROCESS_IMPL_H_ */
