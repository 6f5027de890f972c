/* Sockets of the control plane: nonblocking, close-on-exec, and with the
 * options of a link. */
#ifndef TOW_ENV_NET_SOCKET_H_
#define TOW_ENV_NET_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

/* Opens a socket for dialling `address`. */
tow_status_t tow_net_socket_open(const struct sockaddr *address, int *out_fd)
    TOW_MUST_USE;
/* Sets TCP_NODELAY, keepalive and the user timeout on a TCP socket; does
 * nothing to others. */
void tow_net_socket_tune(int fd);
/* Connects from this interface, or this address of the host. No effect on Unix
 * sockets. */
tow_status_t tow_net_socket_use_source(int fd, int family, const char *source)
    TOW_MUST_USE;
/* Describes the other end: "unix:PATH (process 12)", "tcp:127.0.0.1:4711".
 * `listening` is the address at which it was accepted. */
void tow_net_socket_describe_peer(int fd, const tow_address_t *listening,
                                  char *text, size_t capacity);

/* A pidfd of the process at the other end of a Unix socket, readable when that
 * process has exited; -1 if it is this process, or unknown. */
int tow_net_socket_peer_process(int fd);

/* Identifies a socket file that we must remove. */
typedef struct tow_net_socket_file {
    dev_t device;
    ino_t inode; /* 0: none */
} tow_net_socket_file_t;

/* Binds and listens. *address receives the port that the system chose. A Unix
 * socket is created with mode 0600; a stale socket file, on which no process
 * listens, is replaced. ALREADY_EXISTS for an address in use. */
tow_status_t tow_net_socket_listen(tow_address_t *address, int *out_fd,
                                   tow_net_socket_file_t *out_file)
    TOW_MUST_USE;
/* Removes the file unless another one has replaced it. */
void tow_net_socket_file_remove(const char *path,
                                const tow_net_socket_file_t *file);

#endif /* TOW_ENV_NET_SOCKET_H_ */
