/* Requests to a fork server: a process that has the children's plugin loaded
 * and forks them, so that they start without loading it.
 *
 * A client (the compiler in a controller) sends over a socket that it shares
 * with the fork server (`tow up`): the child's arguments, its descriptors,
 * and one end of a control socket. Over the control socket the server
 * reports what became of the child; the server ends the child when the
 * client closes it. Both sockets keep message boundaries (SOCK_SEQPACKET).
 * Any thread may send. */
#ifndef TOW_DEVICE_CHILD_FORK_REQUEST_H_
#define TOW_DEVICE_CHILD_FORK_REQUEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A child's arguments, each with its NUL, in one message. */
#define TOW_FORK_REQUEST_BYTES_MAX ((size_t)8 << 10)
#define TOW_FORK_REQUEST_ARGC_MAX  ((size_t)64)

/* -- For clients ------------------------------------------------------------ */

/* `socket_fd` and `error_fd` become the child's, and are lent. Waits for the
 * server's report. False: there is no such server, or it has no plugin loaded,
 * or no room: start a program instead. Otherwise the caller owns the control
 * socket and the process descriptor. */
bool tow_fork_request_send(int fork_server_fd, char *const argv[],
                           int socket_fd, int error_fd, pid_t *out_pid,
                           int *out_pid_fd, int *out_control_fd);
/* Ends the child and its process group, and closes the control socket. Returns
 * the wait status. */
int tow_fork_end_child(int take_control_fd);

/* -- For fork servers ------------------------------------------------------- */

typedef struct tow_fork_request {
    char bytes[TOW_FORK_REQUEST_BYTES_MAX];
    char *argv[TOW_FORK_REQUEST_ARGC_MAX + 1]; /* NULL after the last */
    size_t argc;
    int socket_fd, error_fd, control_fd; /* owned */
} tow_fork_request_t;

typedef enum tow_fork_received {
    TOW_FORK_NOTHING,
    TOW_FORK_REQUESTED,
    TOW_FORK_DISCONNECTED, /* the client has closed the socket */
} tow_fork_received_t;

/* Does not wait. Discards an invalid request and closes its descriptors. */
tow_fork_received_t tow_fork_request_receive(int fd,
                                             tow_fork_request_t *out_launch);
/* Closes the descriptors of a request. */
void tow_fork_request_close(tow_fork_request_t *launch);
/* The child runs. */
void tow_fork_report_started(int control_fd, pid_t pid, int pid_fd);
/* The child was not started; the child has ended. */
void tow_fork_report_refused(int control_fd);
void tow_fork_report_ended(int control_fd, int wait_status);

#endif /* TOW_DEVICE_CHILD_FORK_REQUEST_H_ */
