/* Forks compilers from the supervisor, which has XLA loaded (preload.h), on
 * request of the controller. device/child/fork_request.h is the protocol. */
#ifndef TOW_SUPERVISOR_FORK_SERVER_H_
#define TOW_SUPERVISOR_FORK_SERVER_H_

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "device/compiler/tuning.h"

/* Twice: a compiler may still be exiting when the next is requested. */
#define TOW_FORK_SERVER_COUNT_MAX (2 * TOW_COMPILER_CHILD_COUNT_MAX)
#define TOW_FORK_SERVER_POLL_MAX  (1 + TOW_FORK_SERVER_COUNT_MAX)

typedef struct tow_fork_server {
    int fd; /* the controller has the other end; -1: none */
    size_t count;
    struct {
        pid_t pid;
        int control_fd;
    } children[TOW_FORK_SERVER_COUNT_MAX];
} tow_fork_server_t;

void tow_fork_server_init(tow_fork_server_t *server);
/* For a new controller: kills the children of the last one. Returns the
 * controller's end of the socket, which the caller passes on and closes; -1: no
 * socket can be made. */
int tow_fork_server_open(tow_fork_server_t *server);
/* Fills in the descriptors to poll; returns their number. */
size_t tow_fork_server_polls(const tow_fork_server_t *server,
                             struct pollfd polls[TOW_FORK_SERVER_POLL_MAX]);
/* Handles the result of poll. `can_fork`: XLA is loaded. */
void tow_fork_server_handle(tow_fork_server_t *server,
                            const struct pollfd *polls, size_t count,
                            bool can_fork);
/* After SIGCHLD: collects children that have exited. */
void tow_fork_server_reap(tow_fork_server_t *server);
/* Kills all children and waits for them. */
void tow_fork_server_close(tow_fork_server_t *server);

#endif /* TOW_SUPERVISOR_FORK_SERVER_H_ */
