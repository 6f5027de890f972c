#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "env/net/data/trunk_impl.h"

/* -- Ending ---------------------------------------------------------------- */

void trunk_try_free(tow_data_trunk_t *trunk)
{
    tow_data_t *data = trunk->data;
    if (trunk->link != NULL) return;
    subflows_free(trunk);
    if (!tow_list_is_empty(&trunk->subflows)) return;
    tow_list_remove(&trunk->all);
    data->trunk_count--;
    tow_free(trunk);
    tow_data_check_closed(data);
}

/* Subflows are closed after their trunk: a peer that saw their end first would
 * not read the last messages on the trunk. */
void trunk_on_link_closed(void *context)
{
    tow_data_trunk_t *trunk = context;
    trunk->link = NULL;
    trunk_try_free(trunk);
}

static void fail_ports(tow_data_trunk_t *trunk, tow_status_t cause)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&trunk->ports)) != NULL) {
        tow_data_port_t *port =
            TOW_CONTAINER_OF(item, tow_data_port_t, in_trunk);
        port->trunk = NULL;
        tow_data_port_fail(port, UCS_ERR_CONNECTION_RESET, cause);
    }
}

/* Of the subflows that it is opening. */
static void end_children(tow_data_trunk_t *trunk, tow_status_t cause)
{
    const tow_list_t *head = &trunk->data->trunks;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        tow_data_trunk_t *child = TOW_CONTAINER_OF(at, tow_data_trunk_t, all);
        if (child->parent != trunk) continue;
        child->parent = NULL;
        trunk_end(child, cause);
    }
}

/* A subflow could not be opened: the trunk works without it. */
static void report_to_parent(tow_data_trunk_t *trunk, tow_status_t cause)
{
    if (trunk->parent == NULL) return;
    trunk->parent = NULL;
    tow_log(&trunk->data->net->env.log, TOW_LOG_WARN,
            "cannot open one more connection of a trunk: large writes use "
            "those that there are",
            TOW_F_STR("address", trunk->link->address),
            TOW_F_STATUS("cause", cause));
}

static void forget_node(tow_data_trunk_t *trunk)
{
    tow_map_t *trunks = &trunk->data->trunks_by_node;
    if (trunk->node != 0 && tow_map_find(trunks, trunk->node) == trunk)
        tow_map_remove(trunks, trunk->node);
}

void trunk_end(tow_data_trunk_t *trunk, tow_status_t cause)
{
    tow_data_t *data = trunk->data;
    if (trunk->state == TRUNK_ENDING) return;
    trunk->state = TRUNK_ENDING;
    report_to_parent(trunk, cause);
    if (trunk->has_opened || trunk->was_asked) end_children(trunk, cause);
    subflows_stop(trunk);
    forget_node(trunk);
    tow_env_timer_stop(&data->net->env, &trunk->timer);
    fail_ports(trunk, cause);
    tow_net_link_close(&trunk->link->link,
                       (tow_closed_t){trunk_on_link_closed, trunk});
}

void trunk_refuse(tow_data_trunk_t *trunk, const char *what)
{
    if (trunk->state == TRUNK_ENDING) return;
    tow_status_t cause =
        TOW_ERROR(TOW_INVALID_ARGUMENT, "%s: %s", trunk->link->address, what);
    tow_data_log_bad_peer(trunk->data, trunk->node, what);
    trunk_end(trunk, cause);
    tow_status_release(cause);
}

void tow_data_trunks_end(tow_data_t *data)
{
    tow_status_t cause =
        TOW_ERROR(TOW_UNAVAILABLE, "%s is closing", data->net->name);
    const tow_list_t *head = &data->trunks;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        trunk_end(TOW_CONTAINER_OF(at, tow_data_trunk_t, all), cause);
    tow_status_release(cause);
}

/* -- Greetings ------------------------------------------------------------- */

/* Without TLS, one thread sends as fast as several. */
static uint32_t own_subflow_max(const tow_data_trunk_t *trunk)
{
    return trunk->link->tls != NULL ? trunk->data->subflow_max : 0;
}

static void greet(tow_data_trunk_t *trunk, uint64_t expected)
{
    const tow_data_greeting_t greeting = {
        .magic = TOW_DATA_MAGIC,
        .version = TOW_DATA_VERSION,
        .kind = (uint8_t)trunk->kind,
        .subflow_count = (uint8_t)own_subflow_max(trunk),
        .node = trunk->data->node,
        .expected = expected,
        .trunk = trunk->parent != NULL ? trunk->parent->number : trunk->number};
    trunk_send(trunk, TOW_DATA_GREETING,
               (tow_data_bytes_t){&greeting, sizeof(greeting)},
               (tow_data_bytes_t){0});
}

static void start_idle_timer(tow_data_trunk_t *trunk)
{
    tow_env_t *env = &trunk->data->net->env;
    if (trunk->is_dialled && tow_list_is_empty(&trunk->ports))
        tow_env_timer_start(env, &trunk->timer,
                            tow_env_now_ns(env) + TOW_NET_TRUNK_IDLE_NS);
    else
        tow_env_timer_stop(env, &trunk->timer);
}

/* Lanes to a peer that cannot be dialled wait until it dials. */
static void attach_awaiting(tow_data_trunk_t *trunk)
{
    tow_data_t *data = trunk->data;
    tow_list_t *item = data->awaiting.next;
    while (item != &data->awaiting) {
        tow_data_port_t *port =
            TOW_CONTAINER_OF(item, tow_data_port_t, in_trunk);
        item = item->next;
        if (port->node == trunk->node) tow_data_trunk_attach(trunk, port);
    }
}

static void become_up(tow_data_trunk_t *trunk,
                      const tow_data_greeting_t *greeting)
{
    const uint32_t own = own_subflow_max(trunk);
    trunk->state = TRUNK_UP;
    trunk->subflow_max =
        greeting->subflow_count < own ? greeting->subflow_count : own;
    attach_awaiting(trunk);
    start_idle_timer(trunk);
    trunk_wake_senders(trunk);
}

/* The listener has answered. */
static void on_answer(tow_data_trunk_t *trunk,
                      const tow_data_greeting_t *greeting)
{
    tow_data_trunk_t *parent = trunk->parent;
    if (greeting->node != trunk->node) {
        trunk_refuse(trunk, "another process answers there: it was restarted");
    } else if (greeting->kind != trunk->kind ||
               (parent != NULL && greeting->trunk != parent->number)) {
        trunk_refuse(trunk, "the answer to another greeting");
    } else if (parent != NULL) {
        trunk->parent = NULL;
        subflow_adopt(trunk, parent, trunk->kind);
    } else {
        trunk->number = greeting->trunk;
        become_up(trunk, greeting);
    }
}

static void accept_trunk(tow_data_trunk_t *trunk,
                         const tow_data_greeting_t *greeting)
{
    tow_data_t *data = trunk->data;
    tow_status_t status = tow_data_random(&trunk->number);
    trunk->node = greeting->node;
    tow_map_remove(&data->trunks_by_node, trunk->node);
    if (status != TOW_OK ||
        !tow_map_put(&data->trunks_by_node, trunk->node, trunk)) {
        tow_status_ignore(status, "refused below");
        trunk_refuse(trunk, "out of memory");
        return;
    }
    greet(trunk, greeting->node);
    become_up(trunk, greeting);
}

/* O(trunks): a process may have two to the same peer, so its node does not
 * identify one. */
static tow_data_trunk_t *find_by_number(tow_data_t *data,
                                        const tow_data_greeting_t *greeting)
{
    const tow_list_t *head = &data->trunks;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        tow_data_trunk_t *trunk = TOW_CONTAINER_OF(at, tow_data_trunk_t, all);
        if (trunk->state == TRUNK_UP && !trunk->is_dialled &&
            trunk->number == greeting->trunk && trunk->node == greeting->node)
            return trunk;
    }
    return NULL;
}

static void accept_subflow(tow_data_trunk_t *trunk,
                           const tow_data_greeting_t *greeting)
{
    tow_data_trunk_t *parent = find_by_number(trunk->data, greeting);
    if (parent == NULL) {
        trunk_refuse(trunk, "a subflow of an unknown trunk");
        return;
    }
    trunk->kind = (tow_data_connection_kind_t)greeting->kind;
    trunk->number = greeting->trunk;
    greet(trunk, greeting->node);
    subflow_adopt(trunk, parent, trunk->kind);
}

void trunk_on_greeting(tow_data_trunk_t *trunk,
                       const tow_data_greeting_t *greeting)
{
    if (trunk->state != TRUNK_GREETING)
        trunk_refuse(trunk, "a second greeting");
    else if (trunk->is_dialled)
        on_answer(trunk, greeting);
    else if (greeting->expected != trunk->data->node)
        trunk_refuse(trunk, "the peer expects another process here");
    else if (greeting->kind == TOW_DATA_IS_TRUNK)
        accept_trunk(trunk, greeting);
    else
        accept_subflow(trunk, greeting);
}

/* -- Opening --------------------------------------------------------------- */

/* Fails on Unix sockets, which lose nothing. */
static void set_tcp_option(const tow_net_link_t *link, int option, int value)
{
    (void)setsockopt(link->source.fd, IPPROTO_TCP, option, &value,
                     sizeof(value));
}

/* Both ends of an idle trunk notice a cut, too: a lane that is opened after the
 * repair must not take a trunk of which the other side knows nothing. */
static void set_timeout(const tow_net_link_t *link)
{
    set_tcp_option(link, TCP_USER_TIMEOUT, TOW_NET_TRUNK_TIMEOUT_MS);
    set_tcp_option(link, TCP_KEEPIDLE, 1);
    set_tcp_option(link, TCP_KEEPINTVL, 1);
    set_tcp_option(link, TCP_KEEPCNT, 2);
}

static void on_up(void *context, tow_link_t *base)
{
    tow_data_trunk_t *trunk = context;
    tow_net_link_t *link = tow_net_link_of(base);
    if (!(base->peer.features & TOW_FEATURE_LANES)) {
        trunk_refuse(trunk, "the process there has no data plane");
        return;
    }
    set_timeout(link);
    if (link->tls != NULL)
        tow_tls_expect_bulk(link->tls,
                            (tow_tls_source_t){trunk_receive_cipher, trunk});
    trunk->state = TRUNK_GREETING;
    if (trunk->is_dialled) greet(trunk, trunk->node);
}

static void on_down(void *context, tow_link_t *link, tow_status_t cause)
{
    (void)link;
    trunk_end(context, cause);
}

static void on_message(void *context, tow_link_t *link,
                       const tow_message_t *message)
{
    (void)context, (void)link, (void)message;
    TOW_UNREACHABLE(); /* The link passes bytes to us, not messages. */
}

static const tow_link_handler_t link_handler = {.up = on_up,
                                                .message = on_message,
                                                .down = on_down};

/* Only the listener ends an idle trunk: it may have opened a lane on it in the
 * meantime. From here on our own lanes take another. */
static void offer_end(tow_data_trunk_t *trunk)
{
    const tow_data_control_t idle = {.version = TOW_DATA_VERSION,
                                     .kind = TOW_DATA_IDLE};
    forget_node(trunk);
    trunk_send(trunk, TOW_DATA_CONTROL, (tow_data_bytes_t){&idle, sizeof(idle)},
               (tow_data_bytes_t){0});
}

void tow_data_trunk_on_idle(tow_data_trunk_t *trunk)
{
    if (trunk->is_dialled || !tow_list_is_empty(&trunk->ports)) return;
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "the trunk was idle");
    trunk_end(trunk, cause);
    tow_status_release(cause);
}

static void on_timer(tow_timer_t *timer)
{
    tow_data_trunk_t *trunk = TOW_CONTAINER_OF(timer, tow_data_trunk_t, timer);
    if (trunk->state == TRUNK_UP) {
        offer_end(trunk);
        return;
    }
    char text[256];
    tow_data_trunk_describe(trunk, text, sizeof(text));
    tow_status_t cause = TOW_ERROR(TOW_DEADLINE_EXCEEDED, "%s", text);
    trunk_end(trunk, cause);
    tow_status_release(cause);
}

void tow_data_trunk_describe(const tow_data_trunk_t *trunk, char *text,
                             size_t capacity)
{
    const char *phase = trunk->state == TRUNK_CONNECTING
                            ? tow_net_phase_name(trunk->link->phase)
                            : "waiting for the peer's greeting";
    snprintf(text, capacity,
             "no connection to %s within %lld s (%s): is there a route to it, "
             "and does a firewall drop packets to that port?",
             trunk->link->address, TOW_NET_LANE_OPEN_NS / TOW_NS_PER_S, phase);
}

static tow_data_trunk_t *create_trunk(tow_data_t *data)
{
    if (data->trunk_count >= TOW_NET_TRUNK_COUNT_MAX) return NULL;
    tow_data_trunk_t *trunk = tow_calloc(1, sizeof(*trunk));
    if (trunk == NULL) return NULL;
    trunk->data = data;
    trunk->timer.fire = on_timer;
    tow_list_init(&trunk->ports);
    tow_list_init(&trunk->subflows);
    tow_list_init(&trunk->outgoing);
    tow_list_append(&data->trunks, &trunk->all);
    data->trunk_count++;
    tow_env_timer_start(&data->net->env, &trunk->timer,
                        tow_env_now_ns(&data->net->env) + TOW_NET_LANE_OPEN_NS);
    return trunk;
}

static void discard_trunk(tow_data_trunk_t *trunk)
{
    tow_data_t *data = trunk->data;
    tow_env_timer_stop(&data->net->env, &trunk->timer);
    tow_list_remove(&trunk->all);
    data->trunk_count--;
    tow_free(trunk);
}

static tow_status_t connect_trunk(tow_data_trunk_t *trunk, const char *address)
{
    tow_env_t *env = &trunk->data->net->env;
    const tow_connect_options_t options = {.address = address,
                                           .is_announced = true,
                                           .handler = &link_handler,
                                           .context = trunk};
    tow_link_t *link;
    TOW_RETURN_IF_ERROR(tow_env_connect(env, &options, &link));
    trunk->link = tow_net_link_of(link);
    trunk->link->trunk = trunk;
    return TOW_OK;
}

tow_status_t tow_data_trunk_dial(tow_data_t *data,
                                 const tow_data_address_t *address,
                                 tow_data_trunk_t **out_trunk)
{
    char text[TOW_ADDRESS_TEXT_MAX + 32];
    snprintf(text, sizeof(text), "%.*s", (int)address->listens_size,
             address->listens);
    tow_data_trunk_t *trunk = create_trunk(data);
    if (trunk == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    trunk->is_dialled = true;
    trunk->node = address->node;
    tow_map_remove(&data->trunks_by_node, trunk->node);
    tow_status_t status = tow_map_put(&data->trunks_by_node, trunk->node, trunk)
                              ? connect_trunk(trunk, text)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_map_remove(&data->trunks_by_node, trunk->node);
        discard_trunk(trunk);
        return status;
    }
    *out_trunk = trunk;
    return TOW_OK;
}

tow_status_t trunk_dial_subflow(tow_data_trunk_t *parent,
                                tow_data_connection_kind_t kind)
{
    tow_data_trunk_t *trunk = create_trunk(parent->data);
    if (trunk == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    trunk->is_dialled = true;
    trunk->node = parent->node;
    trunk->kind = kind;
    tow_status_t status = connect_trunk(trunk, parent->link->address);
    if (status == TOW_OK)
        trunk->parent = parent;
    else
        discard_trunk(trunk);
    return status;
}

void tow_data_trunk_accept(tow_net_link_t *link)
{
    tow_data_t *data = link->net->poller.context;
    link->listener = NULL;
    link->is_exposed = true;
    tow_data_trunk_t *trunk = create_trunk(data);
    if (trunk == NULL) {
        tow_data_log_bad_peer(data, 0, "too many trunks");
        tow_net_link_close(&link->link, (tow_closed_t){0});
        return;
    }
    trunk->link = link;
    link->trunk = trunk;
    link->link.handler = &link_handler;
    link->link.context = trunk;
}

/* -- Ports ----------------------------------------------------------------- */

tow_data_trunk_t *tow_data_trunk_find(tow_data_t *data,
                                      const tow_data_address_t *address)
{
    tow_data_trunk_t *trunk =
        tow_map_find(&data->trunks_by_node, address->node);
    if (trunk != NULL && trunk->state == TRUNK_UP) start_idle_timer(trunk);
    return trunk;
}

bool tow_data_trunk_is_up(const tow_data_trunk_t *trunk)
{
    return trunk->state == TRUNK_UP;
}

bool tow_data_trunk_inject(tow_data_trunk_t *trunk, const void *bytes,
                           size_t size)
{
    tow_net_link_t *link = trunk->link;
    if (trunk->state != TRUNK_UP || link->phase != TOW_NET_UP) return false;
    const bool is_queued =
        tow_net_queue_append(&link->queue, bytes, size) == TOW_NET_QUEUE_OK;
    tow_net_connection_mark_dirty(link);
    return is_queued;
}

void tow_data_trunk_attach(tow_data_trunk_t *trunk, tow_data_port_t *port)
{
    TOW_ASSERT(port->trunk == NULL && trunk->state != TRUNK_ENDING);
    tow_list_remove(&port->in_trunk); /* It may have been waiting. */
    port->trunk = trunk;
    tow_list_append(&trunk->ports, &port->in_trunk);
    if (trunk->state == TRUNK_UP) start_idle_timer(trunk);
}

void tow_data_trunk_detach(tow_data_port_t *port)
{
    tow_data_trunk_t *trunk = port->trunk;
    tow_list_remove(&port->in_trunk);
    port->trunk = NULL;
    if (trunk != NULL && trunk->state == TRUNK_UP) start_idle_timer(trunk);
}
