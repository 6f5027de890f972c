/* Compilers for the controller of a cluster on this host, forked from the
 * supervisor, which has XLA loaded (preload.h). launch.h is the talk. */
#ifndef TOW_TOOL_LAUNCHER_H_
#define TOW_TOOL_LAUNCHER_H_

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "device/compiler/tuning.h"

/* Twice: one that ends may still be there when the next is asked for. */
#define TOW_LAUNCHER_COUNT_MAX (2 * TOW_COMPILER_CHILD_COUNT_MAX)
#define TOW_LAUNCHER_POLL_MAX  (1 + TOW_LAUNCHER_COUNT_MAX)

typedef struct tow_launcher {
    int fd; /* ours; the controller has the other end. -1: nobody asks */
    size_t count;
    struct {
        pid_t pid;
        int leash_fd;
    } children[TOW_LAUNCHER_COUNT_MAX];
} tow_launcher_t;

void tow_launcher_init(tow_launcher_t *launcher);
/* Another controller: all of the last one's end. Returns its end of the socket,
 * to be passed on and closed; -1: there are no sockets, and no launcher. */
int tow_launcher_open(tow_launcher_t *launcher);
/* What to wait for; returns how many. */
size_t tow_launcher_polls(const tow_launcher_t *launcher,
                          struct pollfd polls[TOW_LAUNCHER_POLL_MAX]);
/* Handles what came of it. `can_launch` is whether XLA is loaded. */
void tow_launcher_mind(tow_launcher_t *launcher, const struct pollfd *polls,
                       size_t count, bool can_launch);
/* After SIGCHLD: takes note of those that have ended. */
void tow_launcher_reap(tow_launcher_t *launcher);
/* Ends all, and waits for them. */
void tow_launcher_close(tow_launcher_t *launcher);

#endif /* TOW_TOOL_LAUNCHER_H_ */
