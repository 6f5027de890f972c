/* Creating, closing and freeing a net, and its tow_env_ops_t. */
#include "env/net/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "env/net/connection.h"
#include "env/net/data/data.h"
#include "env/net/net_impl.h"

/* -- Closing -------------------------------------------------------------- */

void tow_net_retain(tow_net_t *net)
{
    net->hold_count++;
}

void tow_net_release(tow_net_t *net)
{
    TOW_ASSERT(net->hold_count > 0);
    if (--net->hold_count == 0) tow_net_defer(net, &net->closed_task);
}

static void on_closed(tow_net_task_t *task)
{
    tow_net_t *net = TOW_CONTAINER_OF(task, tow_net_t, closed_task);
    if (net->hold_count > 0) return; /* Something was opened meanwhile. */
    TOW_ASSERT(net->is_closing && !net->is_closed);
    net->is_closed = true;
    if (net->closed.run != NULL) net->closed.run(net->closed.context);
}

static void close_links(tow_net_t *net)
{
    tow_list_t *item = net->links.next;
    while (item != &net->links) {
        tow_net_link_t *link = TOW_CONTAINER_OF(item, tow_net_link_t, all);
        item = item->next; /* Links are freed by tasks, not by closing. */
        /* The data plane closes trunks after its last messages. */
        if (link->link.state != TOW_LINK_CLOSING && link->trunk == NULL)
            tow_net_link_close(&link->link, (tow_closed_t){0});
    }
}

static void net_close(tow_env_t *env, tow_closed_t closed)
{
    tow_net_t *net = tow_net_of(env);
    TOW_ASSERT(!net->is_closing);
    net->is_closing = true;
    net->closed = closed;
    tow_net_listeners_close(net);
    close_links(net);
    tow_net_work_cancel_all(net);
    if (net->poller.close != NULL) net->poller.close(net->poller.context);
    tow_net_release(net); /* The reference that the open net itself holds. */
}

/* -- The ops table -------------------------------------------------------- */

static const tow_env_ops_t net_ops = {
    .name = "net",
    .timer_start = tow_net_timer_start,
    .timer_stop = tow_net_timer_stop,
    .post = tow_net_post,
    .work_start = tow_net_work_start,
    .work_cancel = tow_net_work_cancel,
    .listen = tow_net_listen,
    .listener_close = tow_net_listener_close,
    .connect = tow_net_connect,
    .link_begin = tow_net_link_begin,
    .link_commit = tow_net_link_commit,
    .link_close = tow_net_link_close,
    .close = net_close,
};

/* -- Creating and freeing ------------------------------------------------- */

tow_status_t tow_net_system_random(void *bytes, size_t count)
{
    TOW_ASSERT(count <= 256); /* The system returns up to 256 in one call. */
    ssize_t got;
    do {
        got = getrandom(bytes, count, 0);
    } while (got < 0 && errno == EINTR);
    if (got == (ssize_t)count) return TOW_OK;
    return TOW_ERRNO(errno, "asking the system for random numbers");
}

static tow_status_t set_identity(tow_net_t *net,
                                 const tow_net_options_t *options)
{
    const size_t length = options->name != NULL ? strlen(options->name) : 0;
    if (length == 0 || length > TOW_PEER_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a peer's name has 1 to %d bytes, not %zu",
                         TOW_PEER_NAME_MAX, length);
    memcpy(net->name, options->name, length + 1);
    tow_identity_t *self = &net->identity;
    memcpy(self->name, options->name, length + 1);
    self->features = options->features & ~TOW_FEATURE_LANES;
    self->incarnation = options->incarnation;
    snprintf(self->software, sizeof(self->software), "towpath");
    while (self->incarnation == 0)
        TOW_RETURN_IF_ERROR(tow_net_system_random(&self->incarnation,
                                                  sizeof(self->incarnation)));
    return TOW_OK;
}

/* Reports a name that every peer would reject here, rather than in their
 * logs. */
static tow_status_t check_identity(const tow_net_t *net)
{
    if (!net->security->has_token) return TOW_OK; /* Dialling reports it. */
    const tow_handshake_options_t options = {
        .self = net->identity,
        .security = net->security,
        .peer_address = "",
    };
    tow_handshake_t *handshake = NULL;
    tow_status_t status = tow_handshake_create(&options, &handshake);
    tow_handshake_destroy(handshake);
    return status;
}

static tow_status_t set_random(tow_net_t *net)
{
    uint64_t seed;
    TOW_RETURN_IF_ERROR(tow_net_system_random(&seed, sizeof(seed)));
    tow_random_init(&net->env.random, seed);
    return TOW_OK;
}

static tow_log_t log_of(const tow_net_t *net, const tow_net_options_t *options)
{
    static const tow_log_t none = {0};
    tow_log_t log = options->log;
    if (memcmp(&log, &none, sizeof(log)) == 0) log.level = TOW_LOG_WARN;
    if (log.source == NULL) log.source = net->name;
    return log;
}

static void init_lists(tow_net_t *net)
{
    tow_list_init(&net->tasks);
    tow_list_init(&net->links);
    tow_list_init(&net->listeners);
    tow_list_init(&net->half_open);
    tow_list_init(&net->dirty);
    tow_net_task_init(&net->closed_task, on_closed);
}

static tow_status_t start_data_plane(tow_net_t *net,
                                     const tow_net_options_t *options)
{
    if (options->data_plane == TOW_NET_DATA_OFF) return TOW_OK;
    const char *source = options->data_source;
    if (source == NULL) source = getenv("TOW_DATA");
    if (source != NULL && source[0] != '\0') {
        net->data_source = tow_strdup(source);
        if (net->data_source == NULL)
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return tow_net_data_create(net, options);
}

static void limit_options(tow_net_t *net, const tow_net_options_t *options)
{
    net->spin_ns = options->spin_ns != 0 ? options->spin_ns : TOW_NET_SPIN_NS;
    net->helper_count_max = options->helper_count_max;
    if (net->helper_count_max == 0)
        net->helper_count_max = TOW_NET_HELPER_COUNT_DEFAULT;
    if (net->helper_count_max > TOW_NET_HELPER_COUNT_MAX)
        net->helper_count_max = TOW_NET_HELPER_COUNT_MAX;
}

tow_status_t tow_net_create(const tow_net_options_t *options,
                            tow_net_t **out_net)
{
    TOW_ASSERT(options->security != NULL);
    *out_net = NULL;
    tow_net_t *net = tow_calloc(1, sizeof(*net));
    if (net == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    net->epoll_fd = net->wake_source.fd = -1;
    net->ops = net_ops;
    net->env.ops = &net->ops;
    net->env.name = net->name;
    net->security = options->security;
    net->hold_count = 1;
    limit_options(net, options);
    init_lists(net);

    tow_status_t status = set_identity(net, options);
    if (status != TOW_OK) goto fail;
    net->env.log = log_of(net, options);
    status = check_identity(net);
    if (status != TOW_OK) goto fail;
    status = set_random(net);
    if (status != TOW_OK) goto fail;
    status = tow_net_loop_init(net);
    if (status != TOW_OK) goto fail;
    tow_net_log_limiter_init(&net->log_limiter, net->env.now_ns);
    net->read_bytes = tow_malloc(TOW_NET_READ_BYTES);
    if (net->read_bytes == NULL) {
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        goto fail;
    }
    status = start_data_plane(net, options);
    if (status != TOW_OK) goto fail;
    *out_net = net;
    return TOW_OK;

fail:
    tow_net_destroy(net); /* Accepts half-built: fields start at zero. */
    return status;
}

void tow_net_destroy(tow_net_t *net)
{
    if (net == NULL) return;
    if (!net->is_closing) net_close(&net->env, (tow_closed_t){0});
    while (!net->is_closed && net->epoll_fd >= 0)
        tow_net_turn(net, TOW_TIME_NEVER);
    tow_net_helpers_destroy(net);
    if (net->poller.destroy != NULL) net->poller.destroy(net->poller.context);
    tow_net_loop_deinit(net);
    tow_net_chunks_deinit(&net->chunks);
    tow_free(net->read_bytes);
    tow_free(net->plain_bytes);
    tow_free(net->data_source);
    tow_free(net);
}

tow_env_t *tow_net_env(tow_net_t *net)
{
    return &net->env;
}

bool tow_net_is_closed(const tow_net_t *net)
{
    return net->is_closed;
}

tow_net_stats_t tow_net_stats(const tow_net_t *net)
{
    return net->stats;
}
