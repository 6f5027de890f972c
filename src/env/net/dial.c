/* How a dialling link gets its socket, and redials. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "env/net/backoff.h"
#include "env/net/connection.h"
#include "env/net/socket.h"

/* A hint for the user, where we have one. */
static tow_status_t describe_failure(const tow_net_link_t *link, int error)
{
    switch (error) {
    case ENOENT:
    case ECONNREFUSED:
        return TOW_ERROR(
            TOW_UNAVAILABLE,
            "%s: connecting: nothing listens there%s: is the cluster up? try "
            "`tow status`",
            link->address, error == ENOENT ? " (no such file)" : "");
    case EAGAIN: /* Unix sockets: the listener's backlog is full. */
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "%s: connecting: the listener is too busy to accept",
                         link->address);
    case EACCES:
    case EPERM:
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "%s: connecting: not allowed: the socket belongs to "
                         "another user, or a firewall forbids it",
                         link->address);
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ETIMEDOUT:
        return TOW_ERRNO(error,
                         "%s: connecting: there is no way to that address: is "
                         "the network up, and is there a route%s?",
                         link->address,
                         link->trunk != NULL
                             ? " (TOW_DATA and --data name an interface)"
                             : "");
    default: return TOW_ERRNO(error, "%s: connecting", link->address);
    }
}

/* Starts to connect to one address. */
static tow_status_t try_address(tow_net_link_t *link, size_t index)
{
    const struct sockaddr *address =
        (const struct sockaddr *)&link->addresses.items[index].storage;
    TOW_RETURN_IF_ERROR(tow_net_socket_open(address, &link->source.fd));
    if (link->trunk != NULL && link->net->data_source != NULL)
        TOW_RETURN_IF_ERROR(tow_net_socket_use_source(
            link->source.fd, address->sa_family, link->net->data_source));
    int result =
        connect(link->source.fd, address, link->addresses.items[index].size);
    if (result != 0 && errno != EINPROGRESS)
        return describe_failure(link, errno);
    link->phase = TOW_NET_CONNECTING;
    const uint32_t events = EPOLLIN | EPOLLRDHUP | (result == 0 ? 0 : EPOLLOUT);
    TOW_RETURN_IF_ERROR(tow_net_source_open(link->net, &link->source, events));
    if (result == 0) tow_net_connection_start(link);
    return TOW_OK;
}

/* Tries the addresses from address_index on; `take_cause` is the failure of the
 * last one. */
static void try_rest(tow_net_link_t *link, tow_status_t take_cause)
{
    while (link->address_index < link->addresses.count) {
        tow_status_release(take_cause);
        take_cause = try_address(link, link->address_index++);
        if (take_cause == TOW_OK) return;
        tow_net_source_close(link->net, &link->source);
    }
    tow_net_connection_fail(link, take_cause);
}

static void start_connecting(tow_net_link_t *link)
{
    link->address_index = 0;
    link->phase = TOW_NET_CONNECTING;
    tow_env_timer_start(&link->net->env, &link->timer,
                        link->net->env.now_ns + TOW_NET_HANDSHAKE_NS);
    try_rest(link, TOW_OK);
}

/* If nobody listens on the port that it dials, the system may assign a dialling
 * socket that very port: it is then connected to itself, and occupies the port
 * that the listener will need. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
    return getsockname(fd, (struct sockaddr *)&own, &own_size) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0 &&
           own.ss_family != AF_UNIX && own_size == peer_size &&
           memcmp(&own, &peer, own_size) == 0;
}

void tow_net_dial_connected(tow_net_link_t *link)
{
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(link->source.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error == 0 && is_connected_to_itself(link->source.fd))
        error = ECONNREFUSED;
    if (error != 0) {
        tow_net_source_close(link->net, &link->source);
        try_rest(link, describe_failure(link, error));
        return;
    }
    tow_net_source_change(link->net, &link->source, EPOLLIN | EPOLLRDHUP);
    tow_net_connection_start(link);
}

static void resolved(void *context, tow_net_resolve_t *resolve,
                     tow_status_t take_status)
{
    tow_net_link_t *link = context;
    TOW_ASSERT(link->phase == TOW_NET_RESOLVING && link->resolve == resolve);
    link->addresses = resolve->addresses;
    tow_free(resolve);
    link->resolve = NULL;
    link->phase = TOW_NET_IDLE;
    if (link->link.state == TOW_LINK_CLOSING) {
        tow_status_ignore(take_status, "the link was closed meanwhile");
        tow_net_link_finish(link);
    } else if (take_status != TOW_OK) {
        tow_net_connection_fail(
            link, tow_status_annotate(take_status, "%s", link->address));
    } else {
        start_connecting(link);
    }
}

static void start_resolving(tow_net_link_t *link)
{
    tow_net_resolve_t *resolve = tow_calloc(1, sizeof(*resolve));
    if (resolve == NULL) {
        tow_net_connection_fail(link, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    resolve->address = link->target;
    resolve->done = resolved;
    resolve->context = link;
    link->resolve = resolve;
    link->phase = TOW_NET_RESOLVING;
    tow_net_resolve_start(&link->net->env, resolve);
}

void tow_net_dial(tow_net_link_t *link)
{
    TOW_ASSERT(link->phase == TOW_NET_IDLE);
    tow_status_t error = TOW_OK;
    if (tow_net_loopback_dial(link)) return;
    switch (tow_net_resolve_inline(&link->target, &link->addresses, &error)) {
    case TOW_NET_RESOLVED: start_connecting(link); return;
    case TOW_NET_RESOLVE_NAME: start_resolving(link); return;
    case TOW_NET_RESOLVE_BAD: tow_net_connection_fail(link, error); return;
    }
}

void tow_net_dial_later(tow_net_link_t *link)
{
    tow_env_t *env = &link->net->env;
    tow_env_timer_start(
        env, &link->timer,
        env->now_ns + tow_net_backoff_ns(link->failure_count, &env->random));
}

bool tow_net_dial_cancel(tow_net_link_t *link)
{
    if (link->phase != TOW_NET_RESOLVING) return false;
    tow_env_work_cancel(&link->net->env, &link->resolve->work);
    return true;
}

/* Rejects a malformed address, or one that we may not dial. */
static tow_status_t check_target(const tow_net_t *net, const char *text,
                                 tow_address_t *out_target)
{
    TOW_RETURN_IF_ERROR(tow_address_parse(text, out_target));
    TOW_RETURN_IF_ERROR(tow_security_check_dial(net->security, out_target));
    tow_net_addresses_t addresses;
    tow_status_t error = TOW_OK;
    (void)tow_net_resolve_inline(out_target, &addresses, &error);
    return error;
}

tow_status_t tow_net_connect(tow_env_t *env,
                             const tow_connect_options_t *options,
                             tow_link_t **out_link)
{
    tow_net_t *net = tow_net_of(env);
    TOW_ASSERT(options->handler->up != NULL && options->handler->down != NULL &&
               options->handler->message != NULL);
    if (net->is_closing)
        return TOW_ERROR(TOW_FAILED_PRECONDITION, "%s is closing", net->name);
    tow_address_t target;
    TOW_RETURN_IF_ERROR(check_target(net, options->address, &target));
    tow_net_link_t *link =
        tow_net_link_create(net, TOW_SIDE_DIALLER, options->address);
    if (link == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    link->target = target;
    link->is_announced = options->is_announced;
    link->is_exposed = true;
    link->link.handler = options->handler;
    link->link.context = options->context;
    if (options->expected_name != NULL) {
        link->expected_name = tow_strdup(options->expected_name);
        if (link->expected_name == NULL) {
            tow_net_link_discard(link);
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        }
    }
    /* Deferred to the loop: a failure must not be reported inside this call. */
    tow_env_timer_start(env, &link->timer, env->now_ns);
    *out_link = &link->link;
    return TOW_OK;
}
