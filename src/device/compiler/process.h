/* A child process: its socket, its last words, its end. Belongs to the thread
 * that started it, and ends with that thread. Compilers and host functions run in
 * such. */
#ifndef TOW_DEVICE_COMPILER_PROCESS_H_
#define TOW_DEVICE_COMPILER_PROCESS_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"
#include "device/compiler/tuning.h"

typedef struct process {
    pid_t pid; /* 0: there is none */
    int pid_fd;
    int leash_fd;  /* of one that a launcher has forked; -1: it is our child */
    int socket_fd; /* ours; does not block */
    int error_fd;  /* what it says, beside its answers; does not block */
    int wait_status;
    size_t last_size;
    char last_words[TOW_COMPILER_LAST_WORDS_BYTES_MAX + 1];
} child_process_t;

/* The descriptor of the child's end of the socket. */
#define TOW_CHILD_TALK_FD 3

/* There is none. */
void tow_child_process_init(child_process_t *process);
/* words[0] is the program. It gets its end of the socket as
 * TOW_CHILD_TALK_FD, a pipe as
 * standard output and error, and nothing else. */
tow_status_t tow_child_process_start(child_process_t *process, char **words)
    TOW_MUST_USE;
/* The same by a launcher (launch.h), if there is one and it can: 0 is none. */
tow_status_t tow_child_process_launch(child_process_t *process, char **words,
                                      int launcher_fd) TOW_MUST_USE;
/* Ends it, if it has not ended, with all that it started, and takes note of
 * wait_status and the last words. There is none afterwards. */
void tow_child_process_end(child_process_t *process);

/* Has it ended by itself? Then tow_child_process_end finds out how. */
bool tow_child_process_has_ended(const child_process_t *process);

/* How it ended, once tow_child_process_end has seen it. */
typedef struct tow_child_process_end_text {
    char text[96];
} tow_child_process_end_text_t;
tow_child_process_end_text_t tow_child_process_how_it_ended(
    const child_process_t *process);

/* Reads what it says and keeps the end of it. False when that is over. */
bool tow_child_process_listen(child_process_t *process);
/* One line, for a status; "nothing" if there was none. */
const char *tow_child_process_last_words(child_process_t *process);

/* For the child, first of all: it ends with `parent`, leaves no core, and takes
 * at most so much private memory; 0 is no bound. Both are words. */
void tow_child_process_behave(const char *parent, const char *memory);

/* Where a program of children is: `variable` of the environment names it, or it
 * is beside this program in a build folder, or where `make install` puts it.
 * NOT_FOUND says how to get it. */
tow_status_t tow_child_process_find(const char *name, const char *variable,
                                    char *path, size_t capacity) TOW_MUST_USE;

#endif /* TOW_DEVICE_COMPILER_PROCESS_H_ */
