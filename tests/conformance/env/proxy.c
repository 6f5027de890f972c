#include "base/testing.h"

#include "proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"

typedef union socket_address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_un un;
} socket_address_t;

static socklen_t loopback_address(uint16_t port, socket_address_t *address)
{
    memset(address, 0, sizeof(*address));
    address->in.sin_family = AF_INET;
    address->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address->in.sin_port = htons(port);
    return sizeof(address->in);
}

static socklen_t unix_address(const char *path, socket_address_t *address)
{
    memset(address, 0, sizeof(*address));
    address->un.sun_family = AF_UNIX;
    assert_true(strlen(path) < sizeof(address->un.sun_path));
    memcpy(address->un.sun_path, path, strlen(path) + 1);
    return sizeof(address->un);
}

static int open_socket(const tow_address_t *kind)
{
    int family = kind->kind == TOW_ADDRESS_UNIX ? AF_UNIX : AF_INET;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}

static void set_nonblocking(int fd)
{
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

void proxy_open(proxy_t *proxy, const char *target, const char *unix_path)
{
    memset(proxy, 0, sizeof(*proxy));
    assert_true(tow_address_parse(target, &proxy->target) == TOW_OK);
    tow_random_init(&proxy->random, 42);
    proxy->listen_fd = open_socket(&proxy->target);
    socket_address_t address;
    bool is_unix = proxy->target.kind == TOW_ADDRESS_UNIX;
    socklen_t size = is_unix ? unix_address(unix_path, &address)
                             : loopback_address(0, &address);
    assert_int_equal(bind(proxy->listen_fd, &address.any, size), 0);
    assert_int_equal(listen(proxy->listen_fd, 64), 0);
    assert_int_equal(getsockname(proxy->listen_fd, &address.any, &size), 0);
    set_nonblocking(proxy->listen_fd);
    tow_address_t own = proxy->target;
    if (is_unix)
        snprintf(own.host, sizeof(own.host), "%s", unix_path);
    else
        own.port = ntohs(address.in.sin_port);
    tow_address_format(&own, proxy->address, sizeof(proxy->address));
}

static void pipe_destroy(proxy_pipe_t **pipe)
{
    if (*pipe == NULL) return;
    for (int i = 0; i < 2; i++)
        close((*pipe)->fds[i]);
    free(*pipe);
    *pipe = NULL;
}

void proxy_close(proxy_t *proxy)
{
    for (size_t i = 0; i < PROXY_PIPE_COUNT_MAX; i++)
        pipe_destroy(&proxy->pipes[i]);
    close(proxy->listen_fd);
}

/* Loopback and Unix sockets connect at once, or not at all. */
static int dial_target(const proxy_t *proxy)
{
    socket_address_t address;
    socklen_t size = proxy->target.kind == TOW_ADDRESS_UNIX
                         ? unix_address(proxy->target.host, &address)
                         : loopback_address(proxy->target.port, &address);
    int fd = open_socket(&proxy->target);
    if (connect(fd, &address.any, size) == 0) {
        set_nonblocking(fd);
        return fd;
    }
    close(fd);
    return -1;
}

static bool take_connection(proxy_t *proxy)
{
    int fd =
        accept4(proxy->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return false;
    int target_fd = proxy->is_cut ? -1 : dial_target(proxy);
    if (target_fd < 0) {
        close(fd);
        return true;
    }
    for (size_t i = 0; i < PROXY_PIPE_COUNT_MAX; i++) {
        if (proxy->pipes[i] != NULL) continue;
        proxy->pipes[i] = calloc(1, sizeof(*proxy->pipes[i]));
        proxy->pipes[i]->fds[0] = fd;
        proxy->pipes[i]->fds[1] = target_fd;
        return true;
    }
    fail_msg("more than %d connections through one proxy",
             PROXY_PIPE_COUNT_MAX);
    return false;
}

/* -- Bytes ---------------------------------------------------------------- */

typedef enum flow_result {
    FLOW_IDLE,
    FLOW_MOVED,
    FLOW_BROKEN
} flow_result_t;

static bool would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static flow_result_t flow_read(proxy_flow_t *flow, int source, int sink,
                               tow_random_t *random)
{
    size_t room = 1 + tow_random_below(random, PROXY_PIECE_SIZE_MAX);
    ssize_t count = recv(source, flow->bytes, room, 0);
    if (count < 0) return would_block() ? FLOW_IDLE : FLOW_BROKEN;
    flow->at = 0;
    flow->size = (size_t)count;
    if (count > 0) return FLOW_MOVED;
    flow->ended = true;
    shutdown(sink, SHUT_WR);
    return FLOW_MOVED;
}

static flow_result_t flow_write(proxy_flow_t *flow, int sink)
{
    ssize_t count =
        send(sink, flow->bytes + flow->at, flow->size, MSG_NOSIGNAL);
    if (count < 0) return would_block() ? FLOW_IDLE : FLOW_BROKEN;
    flow->at += (size_t)count;
    flow->size -= (size_t)count;
    return FLOW_MOVED;
}

static flow_result_t flow_turn(proxy_flow_t *flow, int source, int sink,
                               tow_random_t *random)
{
    if (flow->size > 0) return flow_write(flow, sink);
    if (flow->ended) return FLOW_IDLE;
    return flow_read(flow, source, sink, random);
}

/* A connection that one side ended is ended on the other side in the same way:
 * in order after its last byte, or by a reset. */
static bool pipe_turn(proxy_pipe_t **slot, tow_random_t *random)
{
    proxy_pipe_t *pipe = *slot;
    bool moved = false, broken = false;
    for (int i = 0; i < 2; i++) {
        flow_result_t result =
            flow_turn(&pipe->flows[i], pipe->fds[i], pipe->fds[1 - i], random);
        moved |= result == FLOW_MOVED;
        broken |= result == FLOW_BROKEN;
    }
    bool done = pipe->flows[0].ended && pipe->flows[1].ended;
    if (broken || done) pipe_destroy(slot);
    return moved || broken || done;
}

bool proxy_turn(proxy_t *proxy)
{
    bool moved = take_connection(proxy);
    for (size_t i = 0; i < PROXY_PIPE_COUNT_MAX; i++) {
        if (proxy->pipes[i] != NULL)
            moved |= pipe_turn(&proxy->pipes[i], &proxy->random);
    }
    return moved;
}

void proxy_cut(proxy_t *proxy)
{
    proxy->is_cut = true;
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    for (size_t i = 0; i < PROXY_PIPE_COUNT_MAX; i++) {
        if (proxy->pipes[i] == NULL) continue;
        for (int j = 0; j < 2; j++)
            setsockopt(proxy->pipes[i]->fds[j], SOL_SOCKET, SO_LINGER, &reset,
                       sizeof(reset));
        pipe_destroy(&proxy->pipes[i]);
    }
}

void proxy_mend(proxy_t *proxy)
{
    proxy->is_cut = false;
}
