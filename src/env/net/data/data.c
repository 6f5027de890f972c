/* The data plane: creating and freeing, progress, incoming messages. */
#include "env/net/data/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/data/data_impl.h"

tow_data_t *tow_data_of(tow_env_t *env)
{
    return tow_net_of(env)->poller.context;
}

tow_status_t tow_data_random(uint64_t *out_number)
{
    do {
        TOW_RETURN_IF_ERROR(
            tow_net_system_random(out_number, sizeof(*out_number)));
    } while (*out_number == 0);
    return TOW_OK;
}

void tow_net_data_damage(tow_net_t *net, uint32_t count)
{
    tow_data_of(&net->env)->damage_count = count;
}

void tow_data_log_bad_peer(tow_data_t *data, uint64_t stream, const char *what)
{
    tow_net_t *net = data->net;
    if (!tow_log_enabled(&net->env.log, TOW_LOG_WARN)) return;
    char name[32];
    snprintf(name, sizeof(name), "stream %016llx", (unsigned long long)stream);
    tow_status_t cause = TOW_ERROR(TOW_INVALID_ARGUMENT, "%s", what);
    tow_net_log_limited(&data->log_limiter, &net->env.log, net->env.now_ns,
                        "lane message refused", name, cause);
    tow_status_release(cause);
}

/* -- Incoming messages ---------------------------------------------------- */

/* We never send by rendezvous, so this peer does not speak our protocol. */
static bool is_refused(tow_data_t *data, const ucp_am_recv_param_t *param)
{
    if (TOW_LIKELY(!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)))
        return data->is_gone;
    tow_data_log_bad_peer(data, 0, "a rendezvous message");
    return true;
}

void tow_data_receive_datagram(tow_data_t *data, tow_data_bytes_t header,
                               tow_data_bytes_t payload)
{
    tow_data_datagram_t datagram;
    const char *problem = tow_data_parse_datagram(header.bytes, header.size,
                                                  payload.size, &datagram);
    if (TOW_UNLIKELY(problem != NULL)) {
        tow_data_log_bad_peer(data, 0, problem);
        return;
    }
    if (TOW_UNLIKELY(tow_data_inbound_find(data, datagram.stream) == NULL)) {
        tow_data_log_bad_peer(data, datagram.stream,
                              "a datagram for an unknown lane");
        return;
    }
    if (data->datagram_arrived == NULL) return;
    tow_data_begin_turn(data);
    data->datagram_arrived(data->datagram_context, datagram.channel,
                           payload.bytes, payload.size);
}

static void dispatch_control(tow_data_t *data, tow_data_trunk_t *trunk,
                             const tow_data_control_t *control,
                             tow_data_bytes_t payload)
{
    if (control->kind == TOW_DATA_HELLO) {
        if (!data->is_closing)
            tow_data_inbound_hello(data, trunk, control, payload);
        return;
    }
    if (control->kind == TOW_DATA_IDLE) {
        if (trunk != NULL) tow_data_trunk_on_idle(trunk);
        return;
    }
    if (control->kind == TOW_DATA_BYE) {
        tow_data_inbound_t *inbound =
            tow_data_inbound_find(data, control->stream);
        if (inbound != NULL) tow_data_inbound_bye(inbound);
        return;
    }
    /* A lane that was closed by force may still receive an answer: not
     * logged. */
    tow_data_lane_t *lane =
        tow_map_find(&data->lanes_by_stream, control->stream);
    if (lane != NULL) tow_data_lane_on_control(lane, control);
}

void tow_data_receive_control(tow_data_t *data, tow_data_trunk_t *trunk,
                              tow_data_bytes_t header, tow_data_bytes_t payload)
{
    tow_data_control_t control;
    const char *problem = tow_data_parse_control(header.bytes, header.size,
                                                 payload.size, &control);
    if (problem == NULL)
        dispatch_control(data, trunk, &control, payload);
    else
        tow_data_log_bad_peer(data, 0, problem);
}

/* Those of UCX return UCS_OK: it asserts that an eager message is accepted. */
static ucs_status_t on_datagram(void *context, const void *header,
                                size_t header_size, void *payload, size_t size,
                                const ucp_am_recv_param_t *param)
{
    if (TOW_UNLIKELY(is_refused(context, param))) return UCS_OK;
    tow_data_receive_datagram(context, (tow_data_bytes_t){header, header_size},
                              (tow_data_bytes_t){payload, size});
    return UCS_OK;
}

static void receive_fragment(tow_data_t *data,
                             const tow_data_fragment_t *fragment,
                             const tow_data_ring_ref_t *ref,
                             const void *payload)
{
    tow_data_inbound_t *inbound = tow_data_inbound_find(data, fragment->stream);
    if (TOW_UNLIKELY(inbound == NULL)) {
        tow_data_log_bad_peer(data, fragment->stream,
                              "a fragment for an unknown lane");
        return;
    }
    const bool is_in_ring = fragment->flags & TOW_DATA_IN_RING;
    if (is_in_ring) payload = tow_data_inbound_ring_bytes(inbound, ref);
    if (payload == NULL) return;
    uint8_t *to = tow_data_inbound_begin_fragment(inbound, fragment);
    if (to != NULL) {
        memcpy(to, payload, ref->size);
        tow_data_inbound_end_fragment(inbound, fragment, ref->size);
    }
    if (is_in_ring) tow_data_ring_take(inbound->ring, ref);
}

static ucs_status_t on_fragment(void *context, const void *header,
                                size_t header_size, void *payload, size_t size,
                                const ucp_am_recv_param_t *param)
{
    tow_data_t *data = context;
    tow_data_fragment_t fragment;
    tow_data_ring_ref_t ref;
    if (TOW_UNLIKELY(is_refused(data, param))) return UCS_OK;
    const char *problem = tow_data_parse_fragment(header, header_size, payload,
                                                  size, &fragment, &ref);
    if (TOW_LIKELY(problem == NULL))
        receive_fragment(data, &fragment, &ref, payload);
    else
        tow_data_log_bad_peer(data, 0, problem);
    return UCS_OK;
}

static ucs_status_t on_pull(void *context, const void *header,
                            size_t header_size, void *payload, size_t size,
                            const ucp_am_recv_param_t *param)
{
    (void)payload;
    tow_data_t *data = context;
    tow_data_pull_t pull;
    if (TOW_UNLIKELY(is_refused(data, param))) return UCS_OK;
    const char *problem = tow_data_parse_pull(header, header_size, size, &pull);
    tow_data_inbound_t *inbound =
        problem == NULL ? tow_data_inbound_find(data, pull.stream) : NULL;
    if (inbound != NULL)
        tow_data_inbound_pull(inbound, &pull);
    else
        tow_data_log_bad_peer(
            data, 0, problem != NULL ? problem : "a pull for an unknown lane");
    return UCS_OK;
}

static ucs_status_t on_control(void *context, const void *header,
                               size_t header_size, void *payload, size_t size,
                               const ucp_am_recv_param_t *param)
{
    if (TOW_UNLIKELY(is_refused(context, param))) return UCS_OK;
    tow_data_receive_control(context, NULL,
                             (tow_data_bytes_t){header, header_size},
                             (tow_data_bytes_t){payload, size});
    return UCS_OK;
}

/* Before the address is given out: UCX crashes on a message that arrives
 * earlier. */
static tow_status_t set_handlers(tow_data_t *data)
{
    static const ucp_am_recv_callback_t handlers[TOW_DATA_ID_COUNT] = {
        [TOW_DATA_DATAGRAM] = on_datagram,
        [TOW_DATA_FRAGMENT] = on_fragment,
        [TOW_DATA_CONTROL] = on_control,
        [TOW_DATA_PULL] = on_pull,
    };
    for (unsigned id = 0; id < TOW_DATA_ID_COUNT; id++) {
        const ucp_am_handler_param_t param = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                          UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = id,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = handlers[id],
            .arg = data,
        };
        ucs_status_t result =
            ucp_worker_set_am_recv_handler(data->worker, &param);
        if (result != UCS_OK)
            return TOW_ERROR(TOW_INTERNAL, "UCX takes no message handler: %s",
                             ucs_status_string(result));
    }
    return TOW_OK;
}

/* -- The loop's poller ---------------------------------------------------- */

static bool has_waiting(const tow_data_t *data)
{
    return !tow_list_is_empty(&data->busy) ||
           !tow_list_is_empty(&data->outboxes);
}

static bool send_waiting(tow_data_t *data)
{
    bool any = tow_data_flush_outboxes(data);
    any |= tow_data_pump(data);
    data->is_stuck = !any;
    return any;
}

static bool progress(void *context)
{
    tow_data_t *data = context;
    data->clock_is_fresh = false;
    data->is_in_ucx = true;
    bool any = data->worker != NULL && ucp_worker_progress(data->worker) > 0;
    data->is_in_ucx = false;
    if (has_waiting(data)) any |= send_waiting(data);
    if (!tow_list_is_empty(&data->finished) ||
        !tow_list_is_empty(&data->shared)) {
        tow_data_finish_writes(data);
        any = true;
    }
    if (any) {
        data->arm_busy_count = 0;
        data->poll_ns = TOW_NET_SEND_POLL_MIN_NS;
    }
    return any;
}

/* Ends a sleep; the next pass calls progress. */
static void poll_fired(tow_timer_t *timer)
{
    (void)timer;
}

static void sleep_bounded(tow_data_t *data)
{
    tow_env_timer_start(&data->net->env, &data->poll_timer,
                        tow_net_clock_ns() + data->poll_ns);
    data->poll_ns *= 2;
    if (data->poll_ns > TOW_NET_SEND_POLL_MAX_NS)
        data->poll_ns = TOW_NET_SEND_POLL_MAX_NS;
}

static bool arm(void *context)
{
    tow_data_t *data = context;
    if (!tow_list_is_empty(&data->finished) ||
        !tow_list_is_empty(&data->shared))
        return false;
    if (has_waiting(data) && !data->is_stuck) return false;
    const bool is_busy =
        data->worker != NULL && ucp_worker_arm(data->worker) == UCS_ERR_BUSY;
    if (is_busy && ++data->arm_busy_count < TOW_NET_ARM_BUSY_COUNT_MAX)
        return false;
    if (is_busy || data->send_count > 0 || has_waiting(data))
        sleep_bounded(data);
    return true;
}

void tow_data_check_closed(tow_data_t *data)
{
    if (!data->is_closing || !data->retains_net) return;
    if (!tow_list_is_empty(&data->lanes) || data->inbound_count > 0 ||
        data->region_count > 0 || data->share_count > 0 ||
        tow_data_has_lingering(data))
        return;
    if (data->trunk_count > 0) { /* They have sent the last messages. */
        tow_data_trunks_end(data);
        return;
    }
    data->retains_net = false;
    tow_net_release(data->net);
}

static void close_all(void *context)
{
    tow_data_t *data = context;
    data->is_closing = true;
    tow_data_lanes_end(data);
    tow_data_inbounds_disconnect_all(data);
    tow_data_regions_end(data);
    tow_data_check_closed(data);
}

static void destroy(void *context)
{
    tow_data_t *data = context;
    data->is_gone = true;
    tow_env_timer_stop(&data->net->env, &data->poll_timer);
    tow_env_timer_stop(&data->net->env, &data->linger_timer);
    tow_data_views_end(data);
    tow_data_ucx_close(data);
    tow_data_cross_endpoint_close(&data->endpoint);
    if (data->event_fd >= 0) close(data->event_fd);
    tow_pool_deinit(&data->small_ops);
    tow_pool_deinit(&data->large_ops);
    tow_map_deinit(&data->lanes_by_stream);
    tow_map_deinit(&data->inbounds_by_stream);
    tow_map_deinit(&data->trunks_by_node);
    tow_map_deinit(&data->regions);
    tow_data_beacon_close(&data->beacon);
    tow_free(data->skipped_bytes);
    tow_free(data->former_address);
    tow_free(data->address);
    tow_free(data);
}

/* -- Creating and freeing ------------------------------------------------- */

static void lane_address(tow_env_t *env, const void **out_bytes,
                         size_t *out_size)
{
    tow_data_t *data = tow_data_of(env);
    *out_bytes = data->address;
    *out_size = data->address_size;
}

static void datagram_handler(tow_env_t *env,
                             void (*arrived)(void *context, uint64_t channel,
                                             const void *bytes, size_t size),
                             void *context)
{
    tow_data_t *data = tow_data_of(env);
    data->datagram_arrived = arrived;
    data->datagram_context = context;
}

static void add_entries(const tow_data_t *data, tow_env_ops_t *ops)
{
    ops->lane_address = lane_address;
    ops->lane_prepare = tow_data_lane_prepare;
    ops->datagram_handler = datagram_handler;
    ops->lane_open = tow_data_lane_open;
    ops->lane_send = tow_data_lane_send;
    ops->lane_write = tow_data_lane_write;
    ops->lane_close = tow_data_lane_close;
    ops->region_open = tow_data_region_open;
    ops->region_close = tow_data_region_close;
    if (data->beacon.segment >= 0) ops->share_release = tow_data_share_release;
}

static void init_data(tow_data_t *data, tow_net_t *net)
{
    data->net = net;
    data->poll_ns = TOW_NET_SEND_POLL_MIN_NS;
    data->poll_timer.fire = poll_fired;
    data->linger_timer.fire = tow_data_linger_fired;
    data->next_region = 1;
    data->endpoint.fd = data->event_fd = -1;
    data->beacon.segment = -1;
    tow_list_init(&data->trunks);
    tow_list_init(&data->awaiting);
    tow_list_init(&data->lanes);
    tow_list_init(&data->busy);
    tow_list_init(&data->finished);
    tow_list_init(&data->shared);
    tow_list_init(&data->views);
    tow_list_init(&data->idle_views);
    data->view_timer.fire = tow_data_views_fired;
    tow_list_init(&data->inbounds);
    tow_pool_init(&data->small_ops,
                  sizeof(tow_data_op_t) + TOW_DATA_OP_SMALL_BYTES, 0);
    tow_pool_init(&data->large_ops,
                  sizeof(tow_data_op_t) + TOW_DATA_OP_LARGE_BYTES, 0);
    tow_net_log_limiter_init(&data->log_limiter, net->env.now_ns);
    tow_list_init(&data->outboxes);
    tow_list_init(&data->parked);
    tow_list_init(&data->connecting);
    tow_net_task_init(&data->parked_task, tow_data_parked_work);
    tow_net_task_init(&data->connect_task, tow_data_connect_work);
    data->queue_param = (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    data->once_param = (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
}

/* Takes the place of the former address, which peers of ours may be reading. */
static tow_status_t replace_address(tow_data_t *data,
                                    const tow_data_address_t *address)
{
    const size_t size = tow_data_address_size(address);
    if (size > TOW_DATA_ADDRESS_SIZE_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "a lane address of %zu bytes is too large (limit %u): "
                         "name fewer devices in --data-trusted",
                         size, TOW_DATA_ADDRESS_SIZE_MAX);
    uint8_t *bytes = tow_malloc(size);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_free(data->former_address);
    data->former_address = data->address;
    data->address = bytes;
    data->address_size = tow_data_address_pack(address, bytes);
    return TOW_OK;
}

/* Our lane address, as far as it is known. */
static tow_status_t make_address(tow_data_t *data)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    ucs_status_t result =
        data->worker != NULL ? ucp_worker_query(data->worker, &attr) : UCS_OK;
    if (result != UCS_OK)
        return TOW_ERROR(TOW_INTERNAL, "UCX has no address: %s",
                         ucs_status_string(result));
    tow_data_address_t address = {.node = data->node,
                                  .proof = data->beacon.proof,
                                  .segment = data->beacon.segment,
                                  .trusts_network = data->trusts_network,
                                  .listens = data->listens,
                                  .listens_size = strlen(data->listens),
                                  .ucx = attr.address,
                                  .ucx_size = attr.address_length};
    snprintf(address.name, sizeof(address.name), "%s", data->net->name);
    tow_status_t status = replace_address(data, &address);
    if (data->worker != NULL)
        ucp_worker_release_address(data->worker, attr.address);
    return status;
}

tow_status_t tow_net_data_listens(tow_net_t *net, const char *address)
{
    tow_data_t *data = tow_data_of(&net->env);
    snprintf(data->listens, sizeof(data->listens), "%s", address);
    return make_address(data);
}

static bool is_off(const char *setting)
{
    const char *value = getenv(setting);
    return value != NULL && strcmp(value, "off") == 0;
}

/* What peers on this host need to recognise us as such, and to wake us. */
static tow_status_t open_beacon(tow_data_t *data)
{
    uint64_t proof;
    TOW_RETURN_IF_ERROR(tow_data_random(&proof));
    TOW_RETURN_IF_ERROR(tow_data_beacon_open(&data->beacon, proof));
    return tow_data_cross_endpoint_open(&data->endpoint, data->node);
}

/* UCX prints errors of its own, so it is not asked to use memory that is not
 * there. */
static tow_status_t open_host(tow_data_t *data)
{
    TOW_RETURN_IF_ERROR(open_beacon(data));
    TOW_RETURN_IF_ERROR(tow_data_ucx_open(data, NULL));
    return set_handlers(data);
}

static tow_status_t open_trusted(tow_data_t *data, const char *trusted)
{
    TOW_RETURN_IF_ERROR(tow_data_ucx_open(data, trusted));
    TOW_RETURN_IF_ERROR(set_handlers(data));
    return data->uses_shm && !is_off("TOW_SHARED_MEMORY") ? open_beacon(data)
                                                          : TOW_OK;
}

/* Without shared memory, data goes through sockets on this host, too. Only a
 * network that the operator calls trusted needs UCX. */
static tow_status_t open_memory(tow_data_t *data, const char *trusted)
{
    if (trusted == NULL) trusted = getenv("TOW_DATA_TRUSTED");
    data->may_cross_read = !is_off("TOW_REACH");
    if (trusted != NULL && trusted[0] != '\0')
        return open_trusted(data, trusted);
    if (is_off("TOW_SHARED_MEMORY")) return TOW_OK;
    tow_status_t status = open_host(data);
    if (status == TOW_OK) return TOW_OK;
    tow_data_beacon_close(&data->beacon);
    tow_data_ucx_close(data);
    tow_log(&data->net->env.log, TOW_LOG_WARN,
            "no shared memory: data of this host goes through sockets",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
    return TOW_OK;
}

bool tow_data_is_on_this_host(const tow_data_t *data,
                              const tow_data_address_t *address)
{
    if (data->beacon.segment < 0 || address->ucx_size == 0) return false;
    return address->node == data->node ||
           (tow_data_cross_endpoint_is_reachable(address->node) &&
            tow_data_beacon_is_visible(address));
}

/* Without UCX, only our own tasks and sockets wake the loop. */
static tow_status_t open_event_descriptor(tow_data_t *data, int *out_fd)
{
    if (data->worker == NULL) {
        *out_fd = data->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (*out_fd >= 0) return TOW_OK;
        return TOW_ERRNO(errno, "opening an event descriptor");
    }
    ucs_status_t result = ucp_worker_get_efd(data->worker, out_fd);
    if (result == UCS_OK) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "UCX has no event descriptor: %s",
                     ucs_status_string(result));
}

static tow_status_t join_loop(tow_data_t *data)
{
    tow_net_poller_t poller = {
        .context = data,
        .progress = progress,
        .arm = arm,
        .close = close_all,
        .destroy = destroy,
    };
    TOW_RETURN_IF_ERROR(open_event_descriptor(data, &poller.fd));
    return tow_net_poller_open(data->net, &poller);
}

tow_status_t tow_net_data_create(tow_net_t *net,
                                 const tow_net_options_t *options)
{
    tow_data_t *data = tow_calloc(1, sizeof(*data));
    if (data == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    init_data(data, net);
    data->skipped_bytes = tow_malloc(TOW_NET_READ_BYTES);
    tow_status_t status = data->skipped_bytes != NULL
                              ? tow_data_random(&data->node)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK)
        status =
            tow_data_count_subflows(options->data_streams, &data->subflow_max);
    if (status == TOW_OK) status = open_memory(data, options->data_trusted);
    if (status == TOW_OK) status = make_address(data);
    if (status == TOW_OK) status = join_loop(data);
    if (status != TOW_OK) {
        destroy(data);
        return tow_status_annotate(status, "%s: data plane", net->name);
    }
    add_entries(data, &net->ops);
    data->retains_net = true;
    tow_net_retain(net);
    return TOW_OK;
}
