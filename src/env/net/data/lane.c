/* Lanes that we opened: opening and closing, datagrams, back-pressure. Their
 * writes are in write.c. */
#include "base/alloc.h"
#include "env/net/data/data_impl.h"

static tow_data_lane_t *lane_of(tow_lane_t *lane)
{
    return TOW_CONTAINER_OF(lane, tow_data_lane_t, lane);
}

static void wake_lane(tow_data_lane_t *lane)
{
    tow_net_defer(lane->data->net, &lane->task);
}

/* -- Back-pressure -------------------------------------------------------- */

static bool is_half_free(const tow_data_lane_t *lane)
{
    return lane->datagram_bytes <= TOW_NET_LANE_DATAGRAM_BYTES_MAX / 2 &&
           lane->write_count <= TOW_NET_LANE_WRITE_COUNT_MAX / 2;
}

tow_send_result_t tow_data_lane_refuse(tow_data_lane_t *lane)
{
    lane->wants_writable = true;
    /* Only memory was short: no completion will wake the lane. */
    if (is_half_free(lane)) wake_lane(lane);
    return TOW_SEND_FULL;
}

void tow_data_lane_note_progress(tow_data_lane_t *lane)
{
    if (lane->wants_writable && is_half_free(lane)) wake_lane(lane);
    if (lane->state != TOW_DATA_LANE_OPEN && lane->port->send_count == 0)
        wake_lane(lane);
}

/* -- Datagrams ------------------------------------------------------------ */

tow_send_result_t tow_data_lane_send(tow_lane_t *base, uint64_t channel,
                                     const void *bytes, size_t size)
{
    tow_data_lane_t *lane = lane_of(base);
    if (TOW_UNLIKELY(!tow_data_lane_takes_sends(lane))) return TOW_SEND_DOWN;
    const uint32_t cost = TOW_NET_LANE_DATAGRAM_COST + (uint32_t)size;
    if (TOW_UNLIKELY(lane->datagram_bytes + cost >
                     TOW_NET_LANE_DATAGRAM_BYTES_MAX))
        return tow_data_lane_refuse(lane);
    tow_data_op_t *op = tow_data_op_take(lane->port, size);
    if (TOW_UNLIKELY(op == NULL)) return tow_data_lane_refuse(lane);
    op->header.datagram =
        (tow_data_datagram_t){.stream = lane->stream, .channel = channel};
    op->datagram_cost = cost;
    if (size > 0) memcpy(op->room, bytes, size);
    const tow_data_bytes_t payload = {.bytes = op->room, .size = size};
    switch (tow_data_port_send(lane->port, op, TOW_DATA_DATAGRAM,
                               sizeof(op->header.datagram), payload)) {
    case TOW_DATA_SENT: return TOW_SEND_OK;
    case TOW_DATA_QUEUED: lane->datagram_bytes += cost; return TOW_SEND_OK;
    case TOW_DATA_FULL:
    case TOW_DATA_FAILED: break;
    }
    return TOW_SEND_DOWN;
}

static void lane_sent(tow_data_port_t *port, tow_data_op_t *op)
{
    tow_data_lane_t *lane = port->owner;
    lane->datagram_bytes -= op->datagram_cost;
    if (op->write != NULL) tow_data_write_sent(op);
    tow_data_lane_mark_busy(lane);
    tow_data_lane_note_progress(lane);
}

void tow_data_lane_on_control(tow_data_lane_t *lane,
                              const tow_data_control_t *control)
{
    switch ((tow_data_control_kind_t)control->kind) {
    case TOW_DATA_ANSWER: tow_data_write_on_answer(lane, control); break;
    case TOW_DATA_SHARED: tow_data_write_on_shared(lane, control); break;
    case TOW_DATA_RESET:
        if (lane->port->failure == UCS_OK)
            lane->port->failure = UCS_ERR_CONNECTION_RESET;
        wake_lane(lane);
        break;
    case TOW_DATA_BYE_BACK:
        lane->bye_is_back = true;
        wake_lane(lane);
        break;
    case TOW_DATA_HELLO_BACK:
        tow_env_timer_stop(lane->lane.env, &lane->opening);
        tow_data_lane_on_cross_read_reply(lane, control->write == 1);
        break;
    default: TOW_UNREACHABLE(); /* Not sent to lanes. */
    }
}

/* -- Closing -------------------------------------------------------------- */

/* Closes the endpoint and ends all writes. `done` runs before this returns,
 * unless UCX does not return the bytes, or threads of subflows use them. */
static void cut_lane(tow_data_lane_t *lane, tow_status_t cause)
{
    tow_data_port_t *port = lane->port;
    if (lane->is_cut) return;
    lane->is_cut = true;
    tow_list_remove(&lane->busy);
    tow_map_remove(&lane->data->lanes_by_stream, lane->stream);
    if (port == NULL) return; /* It was never created. */
    if (lane->state == TOW_DATA_LANE_ENDING && !lane->bye_is_back) {
        /* If it arrives, the target closes its side immediately. */
        const tow_data_control_t bye = {.stream = lane->stream,
                                        .kind = TOW_DATA_BYE};
        (void)!tow_data_port_send_control(port, &bye, (tow_data_bytes_t){0});
    }
    tow_data_port_close(port);
    tow_data_writes_end(lane, cause);
    if (lane->fragment_count > 0 && port->route != TOW_DATA_TRUNK)
        tow_log(&port->data->net->env.log, TOW_LOG_ERROR,
                "ucx holds fragments of a closed lane",
                TOW_F_STR("peer", lane->peer_name),
                TOW_F_U64("count", lane->fragment_count));
    TOW_ASSERT(lane->large_count + lane->whole_count + lane->shared_count == 0);
    tow_data_finish_writes(port->data);
}

static const char *failure_text(const tow_data_port_t *port)
{
    if (port->cause != TOW_OK) return tow_status_message(port->cause);
    return port->failure == UCS_ERR_CONNECTION_RESET
               ? "closed by the peer"
               : ucs_status_string(port->failure);
}

static void break_lane(tow_data_lane_t *lane)
{
    lane->cause = TOW_ERROR(TOW_UNAVAILABLE, "lane from %s to %s: %s",
                            lane->lane.env->name, lane->peer_name,
                            failure_text(lane->port));
    cut_lane(lane, lane->cause);
    if (lane->state == TOW_DATA_LANE_OPEN) {
        lane->state = TOW_DATA_LANE_BROKEN;
        if (lane->down != NULL)
            lane->down(lane->context, &lane->lane, lane->cause);
    } else if (lane->state != TOW_DATA_LANE_BROKEN) {
        lane->state = TOW_DATA_LANE_ENDING;
    }
}

static void send_bye(tow_data_lane_t *lane)
{
    const tow_data_control_t bye = {.stream = lane->stream,
                                    .kind = TOW_DATA_BYE};
    (void)!tow_data_port_send_control(lane->port, &bye, (tow_data_bytes_t){0});
    lane->state = TOW_DATA_LANE_LEAVING;
    tow_env_timer_start(lane->lane.env, &lane->linger,
                        tow_env_now_ns(lane->lane.env) + TOW_NET_LINGER_NS);
}

static void free_lane(tow_data_lane_t *lane)
{
    tow_data_t *data = lane->data;
    const tow_closed_t closed = lane->closed;
    TOW_ASSERT(lane->write_count == 0 && lane->fragment_count == 0);
    if (lane->port != NULL) tow_data_port_release(lane->port);
    tow_env_timer_stop(lane->lane.env, &lane->opening);
    tow_env_timer_stop(lane->lane.env, &lane->linger);
    tow_env_timer_stop(lane->lane.env, &lane->watch);
    tow_list_remove(&lane->task.list);
    tow_list_remove(&lane->all);
    tow_map_deinit(&lane->writes);
    tow_data_ring_destroy(lane->ring);
    tow_status_release(lane->cause);
    tow_free(lane);
    if (closed.run != NULL) closed.run(closed.context);
    tow_data_check_closed(data);
}

static void end_lane(tow_data_lane_t *lane)
{
    if (!lane->is_cut) {
        tow_status_t cause =
            TOW_ERROR(TOW_UNAVAILABLE, "the lane to %s was closed by force",
                      lane->peer_name);
        cut_lane(lane, cause);
        tow_status_release(cause);
    }
    if (lane->write_count == 0 && lane->fragment_count == 0) free_lane(lane);
}

static void notify_writable(tow_data_lane_t *lane)
{
    if (!lane->wants_writable || !is_half_free(lane)) return;
    lane->wants_writable = false;
    if (lane->writable != NULL) lane->writable(lane->context, &lane->lane);
}

/* Does all pending work of a lane, outside of callbacks. */
static void lane_work(tow_net_task_t *task)
{
    tow_data_lane_t *lane = TOW_CONTAINER_OF(task, tow_data_lane_t, task);
    tow_data_begin_turn(lane->data);
    if (!lane->is_cut && lane->port != NULL && lane->port->failure != UCS_OK)
        break_lane(lane);
    switch (lane->state) {
    case TOW_DATA_LANE_OPEN: notify_writable(lane); break;
    case TOW_DATA_LANE_DRAINING:
        TOW_ASSERT(lane->port != NULL); /* Only discarded ones have none. */
        if (lane->write_count == 0 && lane->port->send_count == 0)
            send_bye(lane);
        break;
    case TOW_DATA_LANE_LEAVING:
        if (!lane->bye_is_back) break;
        lane->state = TOW_DATA_LANE_ENDING;
        end_lane(lane);
        break;
    case TOW_DATA_LANE_BROKEN: break;
    case TOW_DATA_LANE_ENDING: end_lane(lane); break;
    }
}

/* Nothing waits without a bound for a lane that does not come up. */
static void opening_fired(tow_timer_t *timer)
{
    tow_data_lane_t *lane = TOW_CONTAINER_OF(timer, tow_data_lane_t, opening);
    char text[512];
    if (lane->is_cut || lane->port == NULL) return;
    tow_data_port_describe(lane->port, text, sizeof(text));
    tow_status_t cause = TOW_ERROR(TOW_DEADLINE_EXCEEDED, "%s", text);
    tow_data_port_fail(lane->port, UCS_ERR_TIMED_OUT, cause);
    tow_status_release(cause);
}

static void linger_fired(tow_timer_t *timer)
{
    tow_data_lane_t *lane = TOW_CONTAINER_OF(timer, tow_data_lane_t, linger);
    lane->state = TOW_DATA_LANE_ENDING;
    wake_lane(lane);
}

/* Shared memory does not signal that a process has died. Its cross-read
 * endpoint does: without this check, a write would wait until the lane is
 * closed. */
void tow_data_lane_watch(tow_data_lane_t *lane)
{
    if (!lane->sees_endpoint || tow_timer_is_armed(&lane->watch)) return;
    tow_env_timer_start(lane->lane.env, &lane->watch,
                        tow_env_now_ns(lane->lane.env) + TOW_NET_LANE_WATCH_NS);
}

static void watch_fired(tow_timer_t *timer)
{
    tow_data_lane_t *lane = TOW_CONTAINER_OF(timer, tow_data_lane_t, watch);
    if (lane->write_count == 0 || lane->is_cut) return;
    if (tow_data_cross_endpoint_exists(lane->node)) {
        tow_data_lane_watch(lane);
        return;
    }
    if (lane->port->failure == UCS_OK)
        lane->port->failure = UCS_ERR_CONNECTION_RESET;
    wake_lane(lane);
}

void tow_data_lane_close(tow_lane_t *base, tow_lane_close_mode_t mode,
                         tow_closed_t closed)
{
    tow_data_lane_t *lane = lane_of(base);
    TOW_ASSERT(lane->state == TOW_DATA_LANE_OPEN ||
               lane->state == TOW_DATA_LANE_BROKEN); /* Closed once. */
    lane->closed = closed;
    lane->wants_writable = false;
    if (mode == TOW_LANE_CLOSE_FORCE) {
        tow_data_inbounds_disconnect_node(lane->data, lane->node);
        lane->state = TOW_DATA_LANE_ENDING;
    } else {
        lane->state =
            lane->is_cut ? TOW_DATA_LANE_ENDING : TOW_DATA_LANE_DRAINING;
    }
    wake_lane(lane);
}

void tow_data_lanes_end(tow_data_t *data)
{
    tow_list_t *item = data->lanes.next;
    for (; item != &data->lanes; item = item->next) {
        tow_data_lane_t *lane = TOW_CONTAINER_OF(item, tow_data_lane_t, all);
        lane->state = TOW_DATA_LANE_ENDING;
        wake_lane(lane);
    }
}

/* -- Opening -------------------------------------------------------------- */

static void init_lane(tow_data_lane_t *lane, tow_data_t *data,
                      const tow_lane_options_t *options)
{
    lane->lane.env = &data->net->env;
    lane->data = data;
    tow_net_task_init(&lane->task, lane_work);
    lane->opening.fire = opening_fired;
    lane->linger.fire = linger_fired;
    lane->watch.fire = watch_fired;
    tow_list_init(&lane->all);
    tow_list_init(&lane->busy);
    tow_list_init(&lane->ready);
    tow_list_init(&lane->waiting);
    tow_list_init(&lane->whole_waiting);
    tow_list_init(&lane->sent);
    tow_list_init(&lane->shared);
    tow_list_init(&lane->ending);
    lane->down = options->down;
    lane->writable = options->writable;
    lane->context = options->context;
    const char *name = options->peer_name != NULL ? options->peer_name : "";
    size_t length = strnlen(name, TOW_PEER_NAME_MAX);
    memcpy(lane->peer_name, name, length);
}

/* Write numbers start at a random value: a target that pulls identifies a write
 * by its number, which must not occur elsewhere in our memory. */
static tow_status_t draw_numbers(tow_data_lane_t *lane)
{
    TOW_RETURN_IF_ERROR(tow_data_random(&lane->stream));
    TOW_RETURN_IF_ERROR(tow_data_random(&lane->cross_read_proof));
    TOW_RETURN_IF_ERROR(tow_data_random(&lane->next_write));
    lane->next_write >>= 1;
    lane->next_write++;
    return TOW_OK;
}

/* Sent before HELLO, on which the target looks for it. */
static void offer_cross_read(tow_data_lane_t *lane)
{
    const tow_data_offer_t offer = {.magic = TOW_DATA_OFFER_MAGIC,
                                    .stream = lane->stream,
                                    .guard_address =
                                        (uintptr_t)&lane->cross_read_proof,
                                    .value = lane->cross_read_proof};
    if (lane->data->may_cross_read && tow_data_port_is_local(lane->port) &&
        tow_data_cross_endpoint_announce(&lane->data->endpoint, lane->node,
                                         &offer)) {
        lane->cross_read = TOW_DATA_CROSS_READ_REQUESTED;
        lane->sees_endpoint = true;
    }
}

static tow_status_t connect_lane(tow_data_lane_t *lane,
                                 const tow_data_address_t *address)
{
    tow_data_t *data = lane->data;
    const tow_data_port_options_t options = {.data = data,
                                             .address = address,
                                             .task = &lane->task,
                                             .sent = lane_sent,
                                             .owner = lane};
    lane->node = address->node;
    if (address->name[0] != '\0')
        memcpy(lane->peer_name, address->name, sizeof(lane->peer_name));
    TOW_RETURN_IF_ERROR(draw_numbers(lane));
    if (!tow_map_put(&data->lanes_by_stream, lane->stream, lane))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(tow_data_port_create(&options, &lane->port));
    if (lane->port->route == TOW_DATA_NETWORK)
        lane->fragment_bytes = TOW_NET_FRAGMENT_TCP_BYTES;
    if (lane->port->route == TOW_DATA_TRUNK)
        lane->fragment_bytes = TOW_NET_FRAGMENT_TRUNK_BYTES;
    tow_env_timer_start(lane->lane.env, &lane->opening,
                        tow_env_now_ns(lane->lane.env) + TOW_NET_LANE_OPEN_NS);
    offer_cross_read(lane);
    const tow_data_control_t hello = {.stream = lane->stream,
                                      .kind = TOW_DATA_HELLO};
    const tow_data_bytes_t ours = {.bytes = data->address,
                                   .size = data->address_size};
    if (tow_data_port_send_control(lane->port, &hello, ours) != TOW_DATA_FAILED)
        return TOW_OK;
    if (lane->port->failure == UCS_OK)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_ERROR(TOW_UNAVAILABLE, "UCX cannot send: %s",
                     ucs_status_string(lane->port->failure));
}

/* Undoes a lane that the caller has not seen. */
static void discard_lane(tow_data_lane_t *lane)
{
    tow_map_remove(&lane->data->lanes_by_stream, lane->stream);
    tow_list_append(&lane->data->lanes, &lane->all);
    lane->state = TOW_DATA_LANE_ENDING;
    wake_lane(lane); /* An endpoint is closed in a task only. */
}

bool tow_net_data_inject(tow_lane_t *base, const void *bytes, size_t size)
{
    const tow_data_lane_t *lane = lane_of(base);
    return lane->port->trunk != NULL &&
           tow_data_trunk_inject(lane->port->trunk, bytes, size);
}

bool tow_net_data_may_stripe(tow_lane_t *base)
{
    const tow_data_lane_t *lane = lane_of(base);
    return lane->port->trunk != NULL &&
           tow_data_trunk_may_stripe(lane->port->trunk);
}

bool tow_net_data_inject_striped(tow_lane_t *base, const void *bytes,
                                 size_t size)
{
    const tow_data_lane_t *lane = lane_of(base);
    return lane->port->trunk != NULL &&
           tow_data_trunk_inject_striped(lane->port->trunk, bytes, size);
}

bool tow_net_data_is_answered(const tow_lane_t *base, uint64_t *out_stream)
{
    const tow_data_lane_t *lane =
        TOW_CONTAINER_OF(base, const tow_data_lane_t, lane);
    *out_stream = lane->stream;
    return !tow_timer_is_armed(&lane->opening);
}

void tow_data_lane_prepare(tow_env_t *env, const void *bytes, size_t size)
{
    tow_data_t *data = tow_data_of(env);
    tow_data_address_t address;
    tow_data_trunk_t *trunk;
    if (data->is_closing) return;
    tow_status_t status = tow_data_address_parse(bytes, size, &address);
    if (status == TOW_OK && address.listens_size > 0 &&
        tow_data_route_to(data, &address) == TOW_DATA_TRUNK &&
        tow_data_trunk_find(data, &address) == NULL)
        status = tow_data_trunk_dial(data, &address, &trunk);
    if (status == TOW_OK) return;
    tow_log(&env->log, TOW_LOG_WARN, "cannot prepare for a peer's lane",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

tow_status_t tow_data_lane_open(tow_env_t *env,
                                const tow_lane_options_t *options,
                                tow_lane_t **out_lane)
{
    tow_data_t *data = tow_data_of(env);
    const char *name = options->peer_name != NULL ? options->peer_name : "";
    if (data->is_closing)
        return TOW_ERROR(TOW_UNAVAILABLE, "%s is closing", env->name);
    tow_data_address_t address;
    tow_status_t status = tow_data_address_parse(
        options->address, options->address_size, &address);
    if (status != TOW_OK)
        return tow_status_annotate(status, "opening a lane to %s", name);
    tow_data_lane_t *lane = tow_calloc(1, sizeof(*lane));
    if (lane == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    init_lane(lane, data, options);
    status = connect_lane(lane, &address);
    if (status != TOW_OK) {
        discard_lane(lane);
        return tow_status_annotate(status, "opening a lane to %s", name);
    }
    tow_list_append(&data->lanes, &lane->all);
    *out_lane = &lane->lane;
    return TOW_OK;
}
