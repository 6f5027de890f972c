/* UCX endpoints and the messages on their way into UCX, or onto a trunk.
 *
 * UCX 1.13.1 crashes the process if an endpoint is closed by force at the wrong
 * time. Two rules avoid that:
 *
 *   Queued sends (shared memory). The first message that UCX itself sends on
 *   an endpoint that the peer connected, its reply to the connection request,
 *   must have left, or closing hits an assertion. Messages leave in order, so
 *   once one of ours has been sent, that reply has too: the port is settled.
 *   Until then UCX gets no memory of users.
 *
 *   Immediate sends (TCP). An endpoint that is closed with part of a message
 *   in the socket stays alive inside UCX, and is used after free when the peer
 *   sends to that socket again. So it is flushed first. And as messages are
 *   sent at once or not at all, UCX never asks the peer to connect back.
 *
 * A port without an owner that may not be closed yet is parked. Nor is an
 * endpoint created inside a callback: over TCP, UCX might connect to the very
 * socket that it is reading. Messages sent meanwhile wait in the outbox. */
#include <stdio.h>

#include "base/alloc.h"
#include "env/net/data/data_impl.h"

void tow_data_port_fail(tow_data_port_t *port, ucs_status_t failure,
                        tow_status_t cause)
{
    if (port->failure == UCS_OK) {
        port->failure = failure;
        port->cause = tow_status_retain(cause);
    }
    tow_net_defer(port->data->net,
                  port->is_parked ? &port->data->parked_task : port->task);
}

static void fail_port(tow_data_port_t *port, ucs_status_t failure)
{
    tow_data_port_fail(port, failure, TOW_OK);
}

/* Whether it can send at all. */
static bool is_connected(const tow_data_port_t *port)
{
    return port->ep != NULL ||
           (port->trunk != NULL && tow_data_trunk_is_up(port->trunk));
}

/* Whether it may become connected. */
static bool is_connecting(const tow_data_port_t *port)
{
    return port->ucx_address != NULL || (port->route == TOW_DATA_TRUNK &&
                                         !tow_list_is_empty(&port->in_trunk));
}

/* -- Operations ----------------------------------------------------------- */

tow_data_op_t *tow_data_op_take(tow_data_port_t *port, size_t payload_size)
{
    tow_data_t *data = port->data;
    const bool has_room = payload_size > TOW_DATA_OP_SMALL_BYTES;
    tow_data_op_t *op =
        tow_pool_take(has_room ? &data->large_ops : &data->small_ops);
    if (TOW_UNLIKELY(op == NULL)) return NULL;
    op->port = port;
    op->write = NULL;
    op->datagram_cost = 0;
    op->has_room = has_room;
    return op;
}

void tow_data_op_give(tow_data_op_t *op)
{
    tow_data_t *data = op->port->data;
    tow_pool_give(op->has_room ? &data->large_ops : &data->small_ops, op);
}

static void count_up(tow_data_port_t *port)
{
    port->send_count++;
    port->data->send_count++;
}

/* The op has left UCX or the outbox. */
static void complete_op(tow_data_op_t *op)
{
    tow_data_port_t *port = op->port;
    TOW_ASSERT(port->send_count > 0);
    port->send_count--;
    if (!port->is_parked) port->data->send_count--;
    if (port->sent != NULL) port->sent(port, op);
    tow_data_op_give(op);
}

/* -- Queued sends --------------------------------------------------------- */

void tow_data_port_note_sent(tow_data_op_t *op)
{
    tow_data_port_t *port = op->port;
    if (port->is_parked)
        tow_net_defer(port->data->net, &port->data->parked_task);
    complete_op(op);
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    tow_data_op_t *op = user_data;
    tow_data_port_t *port = op->port;
    if (status == UCS_OK) port->is_settled = true;
    if (TOW_UNLIKELY(status != UCS_OK) && port->ep != NULL)
        fail_port(port, status);
    tow_data_port_note_sent(op);
    ucp_request_free(request);
}

static tow_data_sent_t send_by_queue(tow_data_port_t *port, tow_data_op_t *op)
{
    tow_data_t *data = port->data;
    data->queue_param.cb.send = on_sent;
    data->queue_param.user_data = op;
    ucs_status_ptr_t request = ucp_am_send_nbx(
        port->ep, op->id, &op->header, op->header_size, op->payload.bytes,
        op->payload.size, &data->queue_param);
    if (TOW_LIKELY(request == NULL)) {
        port->is_settled = true;
        tow_data_op_give(op);
        return TOW_DATA_SENT;
    }
    if (UCS_PTR_IS_ERR(request)) {
        tow_data_op_give(op);
        fail_port(port, UCS_PTR_STATUS(request));
        return TOW_DATA_FAILED;
    }
    count_up(port);
    return TOW_DATA_QUEUED;
}

/* -- Immediate sends ------------------------------------------------------ */

static tow_data_sent_t try_once(tow_data_port_t *port, tow_data_id_t id,
                                tow_data_bytes_t header,
                                tow_data_bytes_t payload)
{
    if (port->route == TOW_DATA_TRUNK)
        return tow_data_trunk_try(port->trunk, id, header, payload);
    ucs_status_ptr_t result =
        ucp_am_send_nbx(port->ep, id, header.bytes, header.size, payload.bytes,
                        payload.size, &port->data->once_param);
    if (TOW_LIKELY(result == NULL)) {
        port->is_settled = true;
        return TOW_DATA_SENT;
    }
    if (UCS_PTR_STATUS(result) == UCS_ERR_NO_RESOURCE) return TOW_DATA_FULL;
    fail_port(port, UCS_PTR_STATUS(result));
    return TOW_DATA_FAILED;
}

static tow_data_sent_t try_op(tow_data_op_t *op)
{
    const tow_data_bytes_t header = {.bytes = &op->header,
                                     .size = op->header_size};
    return try_once(op->port, op->id, header, op->payload);
}

static tow_data_sent_t keep(tow_data_port_t *port, tow_data_op_t *op)
{
    if (tow_list_is_empty(&port->outbox))
        tow_list_append(&port->data->outboxes, &port->waiting);
    tow_list_append(&port->outbox, &op->list);
    port->data->is_stuck = false;
    count_up(port);
    return TOW_DATA_QUEUED;
}

static tow_data_sent_t send_or_keep(tow_data_port_t *port, tow_data_op_t *op)
{
    tow_data_sent_t result = TOW_DATA_FULL;
    if (tow_list_is_empty(&port->outbox)) result = try_op(op);
    if (result == TOW_DATA_FULL) return keep(port, op);
    tow_data_op_give(op);
    return result;
}

tow_data_sent_t tow_data_port_try(tow_data_port_t *port, tow_data_id_t id,
                                  tow_data_bytes_t header,
                                  tow_data_bytes_t payload)
{
    TOW_ASSERT(port->sends_at_once);
    if (!is_connected(port) || !tow_list_is_empty(&port->outbox))
        return TOW_DATA_FULL;
    return try_once(port, id, header, payload);
}

static bool flush_outbox(tow_data_port_t *port)
{
    bool any = false;
    if (!is_connected(port)) return false;
    while (!tow_list_is_empty(&port->outbox) && port->failure == UCS_OK) {
        tow_data_op_t *op =
            TOW_CONTAINER_OF(port->outbox.next, tow_data_op_t, list);
        if (try_op(op) != TOW_DATA_SENT) break;
        tow_list_remove(&op->list);
        complete_op(op);
        any = true;
    }
    if (any && port->is_parked)
        tow_net_defer(port->data->net, &port->data->parked_task);
    return any;
}

bool tow_data_flush_outboxes(tow_data_t *data)
{
    bool any = false;
    tow_list_t mark; /* Each port is tried once. */
    tow_list_append(&data->outboxes, &mark);
    while (data->outboxes.next != &mark) {
        tow_list_t *item = tow_list_pop_front(&data->outboxes);
        tow_data_port_t *port =
            TOW_CONTAINER_OF(item, tow_data_port_t, waiting);
        any |= flush_outbox(port);
        if (!tow_list_is_empty(&port->outbox) && port->failure == UCS_OK)
            tow_list_append(&data->outboxes, item);
    }
    tow_list_remove(&mark);
    return any;
}

static void discard_outbox(tow_data_port_t *port, bool controls_too)
{
    tow_list_t *item = port->outbox.next;
    while (item != &port->outbox) {
        tow_data_op_t *op = TOW_CONTAINER_OF(item, tow_data_op_t, list);
        item = item->next;
        if (op->id == TOW_DATA_CONTROL && !controls_too) continue;
        tow_list_remove(&op->list);
        complete_op(op);
    }
    if (tow_list_is_empty(&port->outbox)) tow_list_remove(&port->waiting);
}

/* -- Sending -------------------------------------------------------------- */

tow_data_sent_t tow_data_port_send(tow_data_port_t *port, tow_data_op_t *op,
                                   tow_data_id_t id, size_t header_size,
                                   tow_data_bytes_t payload)
{
    op->id = id;
    op->header_size = header_size;
    op->payload = payload;
    if (!is_connected(port)) return keep(port, op);
    if (!port->sends_at_once) return send_by_queue(port, op);
    /* A send that finds its socket dead ends the endpoint. Inside a callback,
     * UCX may hold an event for that endpoint, and hits an assertion. */
    return port->data->is_in_ucx && port->ep != NULL ? keep(port, op)
                                                     : send_or_keep(port, op);
}

tow_data_sent_t tow_data_port_stripe(tow_data_port_t *port, tow_data_op_t *op,
                                     tow_data_bytes_t payload)
{
    op->id = TOW_DATA_FRAGMENT;
    op->header_size = sizeof(op->header.fragment);
    op->payload = payload;
    if (port->trunk == NULL || !tow_data_trunk_stripe(port->trunk, op))
        return TOW_DATA_FULL;
    count_up(port);
    return TOW_DATA_QUEUED;
}

tow_data_sent_t tow_data_port_send_control(tow_data_port_t *port,
                                           const tow_data_control_t *control,
                                           tow_data_bytes_t payload)
{
    if (port->failure != UCS_OK) return TOW_DATA_FAILED;
    if (!is_connected(port) && !is_connecting(port)) return TOW_DATA_FAILED;
    tow_data_op_t *op = tow_data_op_take(port, payload.size);
    if (op == NULL) return TOW_DATA_FAILED;
    op->header.control = *control;
    op->header.control.version = TOW_DATA_VERSION;
    if (payload.size > 0) memcpy(op->room, payload.bytes, payload.size);
    payload.bytes = op->room;
    return tow_data_port_send(port, op, TOW_DATA_CONTROL, sizeof(*control),
                              payload);
}

/* -- Creating and freeing ------------------------------------------------- */

/* Runs inside progress. UCX calls it at most once; the endpoint must still be
 * closed. */
static void on_error(void *context, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    fail_port(context, status);
}

static ucs_status_t create_endpoint(tow_data_port_t *port,
                                    const void *ucx_address)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = ucx_address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = port},
    };
    ucs_status_t result = ucp_ep_create(port->data->worker, &params, &port->ep);
    if (result != UCS_OK) port->ep = NULL;
    return result;
}

/* Queued messages are sent now; the loop tries the others. */
static void hand_over_outbox(tow_data_port_t *port)
{
    if (port->sends_at_once) return;
    tow_list_remove(&port->waiting);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&port->outbox)) != NULL) {
        tow_data_op_t *op = TOW_CONTAINER_OF(item, tow_data_op_t, list);
        port->send_count--;
        port->data->send_count--;
        const uint32_t cost = op->datagram_cost;
        if (send_by_queue(port, op) != TOW_DATA_QUEUED && port->sent != NULL) {
            tow_data_op_t done = {.port = port, .datagram_cost = cost};
            port->sent(port, &done);
        }
    }
}

void tow_data_connect_work(tow_net_task_t *task)
{
    tow_data_t *data = TOW_CONTAINER_OF(task, tow_data_t, connect_task);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&data->connecting)) != NULL) {
        tow_data_port_t *port =
            TOW_CONTAINER_OF(item, tow_data_port_t, connecting);
        ucs_status_t result = create_endpoint(port, port->ucx_address);
        tow_free(port->ucx_address);
        port->ucx_address = NULL;
        if (result == UCS_OK)
            hand_over_outbox(port);
        else
            fail_port(port, result);
    }
}

static tow_status_t connect_later(tow_data_port_t *port,
                                  const tow_data_address_t *address)
{
    port->ucx_address = tow_malloc(address->ucx_size);
    if (port->ucx_address == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(port->ucx_address, address->ucx, address->ucx_size);
    tow_list_append(&port->data->connecting, &port->connecting);
    tow_net_defer(port->data->net, &port->data->connect_task);
    return TOW_OK;
}

static tow_status_t connect_now(tow_data_port_t *port,
                                const tow_data_address_t *address)
{
    ucs_status_t result = create_endpoint(port, address->ucx);
    if (result == UCS_OK) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "UCX cannot reach the peer: %s; compare UCX_TLS and "
                     "UCX_NET_DEVICES on both sides",
                     ucs_status_string(result));
}

tow_data_route_t tow_data_route_to(const tow_data_t *data,
                                   const tow_data_address_t *address)
{
    if (tow_data_is_on_this_host(data, address)) return TOW_DATA_MEMORY;
    if (data->trusts_network && address->trusts_network &&
        address->ucx_size > 0)
        return TOW_DATA_NETWORK;
    return TOW_DATA_TRUNK;
}

/* Finds, dials or awaits the trunk to the peer. */
static tow_status_t join_trunk(tow_data_port_t *port,
                               const tow_data_address_t *address,
                               tow_data_trunk_t *trunk)
{
    tow_data_t *data = port->data;
    if (trunk == NULL) trunk = tow_data_trunk_find(data, address);
    if (trunk == NULL && address->listens_size > 0)
        TOW_RETURN_IF_ERROR(tow_data_trunk_dial(data, address, &trunk));
    if (trunk != NULL)
        tow_data_trunk_attach(trunk, port);
    else
        tow_list_append(&data->awaiting, &port->in_trunk);
    return TOW_OK;
}

static tow_status_t connect_port(tow_data_port_t *port,
                                 const tow_data_port_options_t *options)
{
    if (port->route == TOW_DATA_TRUNK)
        return join_trunk(port, options->address, options->trunk);
    return port->data->is_in_ucx ? connect_later(port, options->address)
                                 : connect_now(port, options->address);
}

void tow_data_port_describe(const tow_data_port_t *port, char *text,
                            size_t capacity)
{
    if (port->route == TOW_DATA_MEMORY)
        snprintf(text, capacity,
                 "the process on this host does not answer: is it stopped?");
    else if (port->route == TOW_DATA_NETWORK)
        snprintf(text, capacity,
                 "no answer through UCX: compare --data-trusted, "
                 "TOW_DATA_TRUSTED, UCX_TLS and UCX_NET_DEVICES on both sides");
    else if (port->trunk == NULL)
        snprintf(text, capacity,
                 "it did not connect to %s within %lld s: can it reach that "
                 "address?",
                 port->data->listens[0] != '\0' ? port->data->listens : "us",
                 TOW_NET_LANE_OPEN_NS / TOW_NS_PER_S);
    else if (tow_data_trunk_is_up(port->trunk))
        snprintf(text, capacity, "no answer within %lld s: is it stopped?",
                 TOW_NET_LANE_OPEN_NS / TOW_NS_PER_S);
    else
        tow_data_trunk_describe(port->trunk, text, capacity);
}

tow_status_t tow_data_port_create(const tow_data_port_options_t *options,
                                  tow_data_port_t **out_port)
{
    tow_data_t *data = options->data;
    tow_data_port_t *port = tow_calloc(1, sizeof(*port));
    if (port == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    port->data = data;
    port->task = options->task;
    port->sent = options->sent;
    port->owner = options->owner;
    port->node = options->address->node;
    port->route = options->trunk != NULL
                      ? TOW_DATA_TRUNK
                      : tow_data_route_to(data, options->address);
    port->sends_at_once =
        port->route == TOW_DATA_TRUNK ||
        (port->route == TOW_DATA_NETWORK && data->may_send_at_once);
    tow_list_init(&port->in_trunk);
    tow_list_init(&port->parked);
    tow_list_init(&port->connecting);
    tow_list_init(&port->waiting);
    tow_list_init(&port->outbox);
    tow_status_t status = connect_port(port, options);
    if (status != TOW_OK) {
        tow_data_trunk_detach(port);
        tow_free(port);
        return status;
    }
    *out_port = port;
    return TOW_OK;
}

static void close_by_force(tow_data_port_t *port)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    ucp_ep_h ep = port->ep;
    port->ep = NULL; /* First: callbacks of sends run inside the call. */
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    /* Freed or, if still in progress, left to UCX. */
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    if (UCS_PTR_IS_ERR(request))
        tow_log(&port->data->net->env.log, TOW_LOG_ERROR,
                "ucx did not close an endpoint",
                TOW_F_STR("cause", ucs_status_string(UCS_PTR_STATUS(request))));
}

static void on_flushed(void *request, ucs_status_t status, void *user_data)
{
    (void)status; /* Sent, or the port has failed: it may be closed. */
    tow_data_port_t *port = user_data;
    port->flush = TOW_DATA_FLUSHED;
    tow_net_defer(port->data->net,
                  port->is_parked ? &port->data->parked_task : port->task);
    ucp_request_free(request);
}

static void flush(tow_data_port_t *port)
{
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_flushed,
        .user_data = port,
    };
    ucs_status_ptr_t request = ucp_ep_flush_nbx(port->ep, &param);
    port->flush =
        UCS_PTR_IS_PTR(request) ? TOW_DATA_FLUSHING : TOW_DATA_FLUSHED;
}

static bool may_be_closed(tow_data_port_t *port)
{
    if (port->failure != UCS_OK) return true; /* UCX has released it. */
    TOW_ASSERT(port->route != TOW_DATA_TRUNK);
    if (!port->sends_at_once) return port->is_settled || port->send_count == 0;
    if (!port->is_settled) return true;
    if (port->flush == TOW_DATA_NOT_FLUSHED) flush(port);
    return port->flush == TOW_DATA_FLUSHED;
}

void tow_data_port_close(tow_data_port_t *port)
{
    discard_outbox(port, false);
    tow_data_trunk_cancel_striped(port);
    if (port->ep != NULL && !port->sends_at_once && may_be_closed(port))
        close_by_force(port);
}

/* A last message to the peer is in flight, and its deadline has not passed. */
static bool is_lingering(const tow_data_port_t *port)
{
    return port->failure == UCS_OK && port->send_count > 0 &&
           (is_connected(port) || is_connecting(port)) &&
           port->data->net->env.now_ns < port->linger_ns;
}

static void discard_address(tow_data_port_t *port)
{
    if (port->ucx_address == NULL) return;
    tow_list_remove(&port->connecting);
    tow_free(port->ucx_address);
    port->ucx_address = NULL;
}

/* Frees the port if nothing of it is left. */
static void end_port(tow_data_port_t *port)
{
    if (is_lingering(port)) return;
    discard_address(port);
    tow_data_trunk_detach(port);
    discard_outbox(port, true);
    if (port->ep != NULL && may_be_closed(port)) close_by_force(port);
    if (port->ep != NULL || port->send_count > 0 ||
        port->flush == TOW_DATA_FLUSHING)
        return;
    tow_list_remove(&port->parked);
    tow_status_release(port->cause);
    tow_free(port);
}

void tow_data_port_release(tow_data_port_t *port)
{
    tow_data_t *data = port->data;
    port->task = NULL;
    port->sent = NULL;
    port->is_parked = true;
    port->linger_ns = data->net->env.now_ns + TOW_NET_LINGER_NS;
    data->send_count -= port->send_count;
    tow_list_append(&data->parked, &port->parked);
    tow_data_port_check(port);
    if (is_lingering(port) && !tow_timer_is_armed(&data->linger_timer))
        tow_env_timer_start(&data->net->env, &data->linger_timer,
                            port->linger_ns);
    end_port(port);
}

bool tow_data_has_lingering(const tow_data_t *data)
{
    const tow_list_t *item = data->parked.next;
    for (; item != &data->parked; item = item->next) {
        if (is_lingering(TOW_CONTAINER_OF(item, tow_data_port_t, parked)))
            return true;
    }
    return false;
}

/* Ports parked later get the next deadline. */
void tow_data_linger_fired(tow_timer_t *timer)
{
    tow_data_t *data = TOW_CONTAINER_OF(timer, tow_data_t, linger_timer);
    tow_net_defer(data->net, &data->parked_task);
    if (tow_data_has_lingering(data))
        tow_env_timer_start(&data->net->env, timer,
                            data->net->env.now_ns + TOW_NET_LINGER_NS);
}

void tow_data_parked_work(tow_net_task_t *task)
{
    tow_data_t *data = TOW_CONTAINER_OF(task, tow_data_t, parked_task);
    tow_list_t *item = data->parked.next;
    while (item != &data->parked) {
        tow_data_port_t *port = TOW_CONTAINER_OF(item, tow_data_port_t, parked);
        item = item->next;
        end_port(port);
    }
    tow_data_check_closed(data);
}

bool tow_data_parked_end(tow_data_t *data)
{
    bool is_safe = true;
    tow_list_t *item = data->parked.next;
    for (; item != &data->parked; item = item->next) {
        tow_data_port_t *port = TOW_CONTAINER_OF(item, tow_data_port_t, parked);
        if (port->ep == NULL) continue;
        /* No progress will follow, so TCP endpoints are harmless. */
        if (port->sends_at_once)
            close_by_force(port);
        else
            is_safe = false;
    }
    return is_safe;
}

void tow_data_parked_free(tow_data_t *data)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&data->parked)) != NULL) {
        tow_data_port_t *port = TOW_CONTAINER_OF(item, tow_data_port_t, parked);
        discard_address(port);
        tow_data_trunk_detach(port);
        tow_status_release(port->cause);
        tow_free(port);
    }
}
