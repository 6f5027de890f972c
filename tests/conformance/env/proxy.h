/* A socket path that a test can cut: listens, dials the target for each
 * connection, and forwards bytes in pieces of random sizes, so that frames are
 * split at every place. Driven by the test's thread. */
#ifndef TOW_TESTS_CONFORMANCE_ENV_PROXY_H_
#define TOW_TESTS_CONFORMANCE_ENV_PROXY_H_

#include <stdbool.h>

#include "base/random.h"
#include "wire/address.h"

#define PROXY_PIPE_COUNT_MAX 64
#define PROXY_PIECE_SIZE_MAX 20000

typedef struct proxy_flow {
    char bytes[PROXY_PIECE_SIZE_MAX];
    size_t size; /* read and not yet written, from `at` on */
    size_t at;
    bool ended; /* the source has ended, and the sink was shut down */
} proxy_flow_t;

typedef struct proxy_pipe {
    int fds[2];            /* the dialler's, the target's */
    proxy_flow_t flows[2]; /* out of fds[i] into the other */
} proxy_pipe_t;

typedef struct proxy {
    tow_address_t target;
    char address[TOW_ADDRESS_TEXT_MAX + 32]; /* to dial instead of the target */
    int listen_fd;
    bool is_cut;
    tow_random_t random;
    proxy_pipe_t *pipes[PROXY_PIPE_COUNT_MAX]; /* owned; NULL: free */
} proxy_t;

/* `unix_path`: where to listen if the target is a Unix socket. Fails the test
 * on an error. */
void proxy_open(proxy_t *proxy, const char *target, const char *unix_path);
void proxy_close(proxy_t *proxy);
/* Returns whether anything happened. */
bool proxy_turn(proxy_t *proxy);
/* Resets all connections, and closes new ones immediately, until mended. */
void proxy_cut(proxy_t *proxy);
void proxy_mend(proxy_t *proxy);

#endif /* TOW_TESTS_CONFORMANCE_ENV_PROXY_H_ */
