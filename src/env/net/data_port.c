/* Endpoints of UCX and the operations inside it. */
#include "base/alloc.h"
#include "env/net/data_impl.h"

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

void tow_data_op_give(tow_data_t *data, tow_data_op_t *op)
{
    tow_pool_give(op->has_room ? &data->large_ops : &data->small_ops, op);
}

static void fail_port(tow_data_port_t *port, ucs_status_t failure)
{
    if (port->failure == UCS_OK) port->failure = failure;
    tow_net_defer(port->data->net, &port->task);
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    tow_data_op_t *op = user_data;
    tow_data_port_t *port = op->port;
    tow_data_t *data = port->data;
    TOW_ASSERT(port->send_count > 0 && data->send_count > 0);
    port->send_count--;
    data->send_count--;
    if (TOW_UNLIKELY(status != UCS_OK) && port->ep != NULL)
        fail_port(port, status);
    port->sent(port, op);
    tow_data_op_give(data, op);
    ucp_request_free(request);
}

tow_data_sent_t tow_data_port_send(tow_data_port_t *port, tow_data_op_t *op,
                                   unsigned id, size_t header_size,
                                   tow_data_bytes_t payload)
{
    tow_data_t *data = port->data;
    data->send_param.cb.send = on_sent;
    data->send_param.user_data = op;
    ucs_status_ptr_t request =
        ucp_am_send_nbx(port->ep, id, &op->header, header_size, payload.bytes,
                        payload.size, &data->send_param);
    if (TOW_LIKELY(request == NULL)) {
        tow_data_op_give(data, op);
        return TOW_DATA_SENT;
    }
    if (UCS_PTR_IS_ERR(request)) {
        tow_data_op_give(data, op);
        fail_port(port, UCS_PTR_STATUS(request));
        return TOW_DATA_FAILED;
    }
    port->send_count++;
    data->send_count++;
    return TOW_DATA_QUEUED;
}

tow_data_sent_t tow_data_port_tell(tow_data_port_t *port,
                                   const tow_data_control_t *control,
                                   tow_data_bytes_t payload)
{
    if (port->ep == NULL || port->failure != UCS_OK) return TOW_DATA_FAILED;
    tow_data_op_t *op = tow_data_op_take(port, payload.size);
    if (op == NULL) return TOW_DATA_FAILED;
    op->header.control = *control;
    op->header.control.version = TOW_DATA_VERSION;
    if (payload.size > 0) memcpy(op->payload, payload.bytes, payload.size);
    payload.bytes = op->payload;
    port->has_sent = true;
    return tow_data_port_send(port, op, TOW_DATA_CONTROL, sizeof(*control),
                              payload);
}

/* -- Endpoints ------------------------------------------------------------ */

/* Inside progress. UCX calls it at most once; the endpoint must still be
 * closed. */
static void on_error(void *context, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    fail_port(context, status);
}

tow_status_t tow_data_port_open(tow_data_port_t *port, const void *ucx_address)
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
    if (result == UCS_OK) return TOW_OK;
    port->ep = NULL;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "UCX cannot reach the peer: %s; compare UCX_TLS and "
                     "UCX_NET_DEVICES on both sides",
                     ucs_status_string(result));
}

void tow_data_port_close(tow_data_port_t *port)
{
    if (port->ep == NULL) return;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    ucp_ep_h ep = port->ep;
    port->ep = NULL; /* First: callbacks of sends run inside the call. */
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    /* Freed or, if it is still under way, given up to UCX. */
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    if (UCS_PTR_IS_ERR(request))
        tow_log(&port->data->net->env.log, TOW_LOG_ERROR,
                "ucx did not close an endpoint",
                TOW_F_STR("cause", ucs_status_string(UCS_PTR_STATUS(request))));
}
