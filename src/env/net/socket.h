/* Sockets of the control plane: opened nonblocking, close-on-exec, and with the
 * options that a link wants. */
#ifndef TOW_ENV_NET_SOCKET_H_
#define TOW_ENV_NET_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

/* A socket for dialling `address`. */
tow_status_t tow_net_socket_open(const struct sockaddr *address, int *out_fd)
    TOW_MUST_USE;
/* No delay, keepalive and timeout on a TCP socket; nothing on others. */
void tow_net_socket_tune(int fd);
/* Who is at the other end: "unix:PATH (process 12)", "tcp:127.0.0.1:4711".
 * `listening` is the address that it came to. */
void tow_net_socket_describe_peer(int fd, const tow_address_t *listening,
                                  char *text, size_t capacity);

/* A descriptor of the process at the other end of a Unix socket, readable when it
 * has ended; -1 if it is ourselves, or cannot be told. */
int tow_net_socket_peer_process(int fd);

/* A socket file that is ours to remove. */
typedef struct tow_net_socket_file {
    dev_t device;
    ino_t inode; /* 0: there is none */
} tow_net_socket_file_t;

/* Binds and listens. *address gets the port that the system chose. A Unix
 * socket is made with mode 0600; a file of one that nobody listens on any more
 * is replaced. ALREADY_EXISTS names an address in use. */
tow_status_t tow_net_socket_listen(tow_address_t *address, int *out_fd,
                                   tow_net_socket_file_t *out_file)
    TOW_MUST_USE;
/* Removes the file unless somebody has put another one in its place. */
void tow_net_socket_file_remove(const char *path,
                                const tow_net_socket_file_t *file);

#endif /* TOW_ENV_NET_SOCKET_H_ */
