/* Listeners: accepting connections, and bounding those that have not yet
 * authenticated. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/connection.h"
#include "env/net/data/data.h"
#include "env/net/socket.h"

struct tow_net_listener {
    tow_listener_t listener; /* first */
    tow_net_t *net;          /* lent, outlives us */
    tow_list_t all;
    tow_net_source_t source;
    tow_timer_t retry;    /* accept again after an error */
    tow_net_task_t again; /* there may be more to accept */
    tow_net_task_t free_task;
    void (*accept)(void *context, tow_link_t *link);
    void *accept_context;
    tow_address_t address;
    tow_net_socket_file_t file;
    tow_closed_t closed;
    bool carries_lanes;
    bool is_closing;
    char text[TOW_ADDRESS_TEXT_MAX + 32]; /* listener.address */
};

static void evict_oldest(tow_net_t *net)
{
    tow_list_t *item = net->half_open.next;
    tow_net_link_t *oldest = TOW_CONTAINER_OF(item, tow_net_link_t, half_open);
    tow_net_connection_fail(
        oldest, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                          "%s: ended while %s: more than %d connections have "
                          "not authenticated",
                          oldest->address, tow_net_phase_name(oldest->phase),
                          TOW_NET_HALF_OPEN_MAX));
}

tow_net_link_t *tow_net_listener_add_link(tow_net_listener_t *listener,
                                          const char *peer_address)
{
    tow_net_t *net = listener->net;
    if (net->stats.half_open_count >= TOW_NET_HALF_OPEN_MAX) evict_oldest(net);
    tow_net_link_t *link =
        tow_net_link_create(net, TOW_SIDE_LISTENER, peer_address);
    if (link == NULL) return NULL;
    link->listener = listener;
    link->target = listener->address;
    tow_list_append(&net->half_open, &link->half_open);
    net->stats.half_open_count++;
    return link;
}

/* Accepts a connection. Takes `fd`. */
static void accept_connection(tow_net_listener_t *listener, int fd)
{
    tow_net_t *net = listener->net;
    char peer[TOW_ADDRESS_TEXT_MAX + 64];
    tow_net_socket_describe_peer(fd, &listener->address, peer, sizeof(peer));
    tow_net_link_t *link = tow_net_listener_add_link(listener, peer);
    if (link == NULL) {
        close(fd); /* The peer redials. */
        return;
    }
    tow_net_socket_tune(fd);
    link->source.fd = fd;
    tow_status_t status =
        tow_net_source_open(net, &link->source, EPOLLIN | EPOLLRDHUP);
    if (status == TOW_OK)
        tow_net_connection_start(link);
    else
        tow_net_connection_fail(link, status);
}

/* Errors of a single connection that died in the backlog, not of the
 * listener. */
static bool is_passing(int error)
{
    return error == EINTR || error == ECONNABORTED || error == EPROTO ||
           error == ENETDOWN || error == EHOSTUNREACH || error == ENETUNREACH;
}

/* Most likely out of descriptors or memory. An immediate retry would spin: the
 * connection stays in the backlog and the socket readable. */
static void pause_accepting(tow_net_listener_t *listener, int error)
{
    tow_net_t *net = listener->net;
    tow_status_t cause =
        TOW_ERRNO(error, "accepting: close something, or raise the limit "
                         "(`ulimit -n`); trying again");
    tow_net_log_limited(&net->log_limiter, &net->env.log, net->env.now_ns,
                        "cannot accept", listener->text, cause);
    tow_status_release(cause);
    tow_env_timer_start(&net->env, &listener->retry,
                        net->env.now_ns + TOW_NET_ACCEPT_RETRY_NS);
}

static bool accept_some(tow_net_listener_t *listener)
{
    bool any = false;
    for (int i = 0; i < TOW_NET_ACCEPT_COUNT_MAX; i++) {
        int fd = accept4(listener->source.fd, NULL, NULL,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accept_connection(listener, fd);
            any = true;
        } else if (errno == EAGAIN) {
            return any;
        } else if (!is_passing(errno)) {
            pause_accepting(listener, errno);
            return any;
        }
    }
    tow_net_defer(listener->net, &listener->again);
    return any;
}

static bool on_ready(tow_net_source_t *source, uint32_t events)
{
    (void)events;
    tow_net_listener_t *listener =
        TOW_CONTAINER_OF(source, tow_net_listener_t, source);
    /* During the pause, the timer retries. */
    return !tow_timer_is_armed(&listener->retry) && accept_some(listener);
}

static void on_retry(tow_timer_t *timer)
{
    (void)accept_some(TOW_CONTAINER_OF(timer, tow_net_listener_t, retry));
}

static void on_again(tow_net_task_t *task)
{
    (void)accept_some(TOW_CONTAINER_OF(task, tow_net_listener_t, again));
}

void tow_net_listener_hand_over(tow_net_link_t *link)
{
    tow_net_listener_t *listener = link->listener;
    link->listener = NULL;
    link->is_exposed = true;
    listener->accept(listener->accept_context, &link->link);
    TOW_ASSERT(link->link.state == TOW_LINK_CLOSING ||
               link->link.handler != NULL);
}

bool tow_net_listener_carries_lanes(const tow_net_listener_t *listener)
{
    return listener->carries_lanes;
}

tow_net_listener_t *tow_net_listener_find(tow_net_t *net,
                                          const tow_address_t *address)
{
    tow_list_t *item = net->listeners.next;
    for (; item != &net->listeners; item = item->next) {
        tow_net_listener_t *listener =
            TOW_CONTAINER_OF(item, tow_net_listener_t, all);
        if (tow_address_is_same(&listener->address, address)) return listener;
    }
    return NULL;
}

static void run_free_task(tow_net_task_t *task)
{
    tow_net_listener_t *listener =
        TOW_CONTAINER_OF(task, tow_net_listener_t, free_task);
    tow_net_t *net = listener->net;
    const tow_closed_t closed = listener->closed;
    tow_free(listener);
    if (closed.run != NULL) closed.run(closed.context);
    tow_net_release(net);
}

static tow_status_t start_listening(tow_net_listener_t *listener,
                                    const tow_listen_options_t *options)
{
    tow_net_t *net = listener->net;
    TOW_RETURN_IF_ERROR(tow_net_socket_listen(
        &listener->address, &listener->source.fd, &listener->file));
    TOW_RETURN_IF_ERROR(tow_net_source_open(net, &listener->source, EPOLLIN));
    tow_address_format(&listener->address, listener->text,
                       sizeof(listener->text));
    listener->carries_lanes =
        options->carries_lanes && net->poller.progress != NULL;
    return listener->carries_lanes ? tow_net_data_listens(net, listener->text)
                                   : TOW_OK;
}

tow_status_t tow_net_listen(tow_env_t *env, const tow_listen_options_t *options,
                            tow_listener_t **out_listener)
{
    tow_net_t *net = tow_net_of(env);
    if (net->is_closing)
        return TOW_ERROR(TOW_FAILED_PRECONDITION, "%s is closing", net->name);
    tow_address_t address;
    TOW_RETURN_IF_ERROR(tow_address_parse(options->address, &address));
    TOW_RETURN_IF_ERROR(tow_security_check_listen(net->security, &address));
    tow_net_listener_t *listener = tow_calloc(1, sizeof(*listener));
    if (listener == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    listener->source = (tow_net_source_t){.fd = -1, .ready = on_ready};
    listener->net = net;
    listener->address = address;
    tow_status_t status = start_listening(listener, options);
    if (status != TOW_OK) {
        tow_net_source_close(net, &listener->source);
        tow_net_socket_file_remove(address.host, &listener->file);
        tow_free(listener);
        return status;
    }
    listener->listener =
        (tow_listener_t){.env = env, .address = listener->text};
    listener->accept = options->accept;
    listener->accept_context = options->context;
    listener->retry.fire = on_retry;
    tow_net_task_init(&listener->again, on_again);
    tow_net_task_init(&listener->free_task, run_free_task);
    tow_list_append(&net->listeners, &listener->all);
    tow_net_retain(net);
    *out_listener = &listener->listener;
    return TOW_OK;
}

/* Its half-open connections are closed with it. */
static void close_half_open(tow_net_listener_t *listener)
{
    tow_list_t *item = listener->net->half_open.next;
    while (item != &listener->net->half_open) {
        tow_net_link_t *link =
            TOW_CONTAINER_OF(item, tow_net_link_t, half_open);
        item = item->next;
        if (link->listener != listener) continue;
        tow_net_connection_discard(link);
        tow_net_link_finish(link);
    }
}

void tow_net_listener_close(tow_listener_t *base, tow_closed_t closed)
{
    tow_net_listener_t *listener = (tow_net_listener_t *)base;
    tow_net_t *net = listener->net;
    TOW_ASSERT(!listener->is_closing);
    listener->is_closing = true;
    listener->closed = closed;
    tow_net_socket_file_remove(listener->address.host, &listener->file);
    tow_net_source_close(net, &listener->source);
    tow_env_timer_stop(&net->env, &listener->retry);
    tow_list_remove(&listener->again.list);
    tow_list_remove(&listener->all);
    close_half_open(listener);
    tow_net_defer(net, &listener->free_task);
}

void tow_net_listeners_close(tow_net_t *net)
{
    while (!tow_list_is_empty(&net->listeners)) {
        tow_net_listener_t *listener =
            TOW_CONTAINER_OF(net->listeners.next, tow_net_listener_t, all);
        tow_net_listener_close(&listener->listener, (tow_closed_t){0});
    }
}
