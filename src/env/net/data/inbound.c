/* Inbound lanes, opened by peers: reassembles their writes and answers.
 *
 * No code here trusts a header beyond what the parser has checked. The state
 * kept for a peer is bounded: the number of partial writes, of answers that it
 * does not read, and of inbound lanes in total. */
#include "base/alloc.h"
#include "base/hash.h"
#include "env/net/data/data_impl.h"

/* -- Opening and closing -------------------------------------------------- */

static void free_inbound(tow_data_inbound_t *inbound)
{
    tow_data_t *data = inbound->data;
    if (inbound->port != NULL) tow_data_port_release(inbound->port);
    tow_list_remove(&inbound->task.list);
    tow_list_remove(&inbound->all);
    tow_data_ring_destroy(inbound->ring);
    tow_data_cross_read_close(&inbound->cross_read);
    data->inbound_count--;
    tow_free(inbound);
    tow_data_check_closed(data);
}

/* From here on no lookup finds it; its task does the rest. */
static void end_inbound(tow_data_inbound_t *inbound)
{
    if (inbound->state == TOW_DATA_INBOUND_ENDING) return;
    tow_data_t *data = inbound->data;
    inbound->state = TOW_DATA_INBOUND_ENDING;
    if (data->last_inbound == inbound) data->last_inbound = NULL;
    tow_map_remove(&data->inbounds_by_stream, inbound->stream);
    tow_data_pulls_cancel_of_inbound(inbound);
    tow_data_arriving_cancel_of_inbound(inbound);
    tow_data_shares_detach(inbound);
    tow_net_defer(data->net, &inbound->task);
}

/* Closes it, and notifies the peer if that is possible now. A peer that was
 * only presumed dead learns that its lane has ended. */
static void disconnect_inbound(tow_data_inbound_t *inbound)
{
    if (inbound->state == TOW_DATA_INBOUND_OPEN && inbound->port != NULL) {
        const tow_data_control_t reset = {.stream = inbound->stream,
                                          .kind = TOW_DATA_RESET};
        (void)!tow_data_port_send_control(inbound->port, &reset,
                                          (tow_data_bytes_t){0});
    }
    end_inbound(inbound);
}

static void inbound_sent(tow_data_port_t *port, tow_data_op_t *op)
{
    (void)op;
    tow_data_inbound_t *inbound = port->owner;
    if (inbound->state == TOW_DATA_INBOUND_LEAVING && port->send_count == 0)
        tow_net_defer(port->data->net, &inbound->task);
}

static void inbound_work(tow_net_task_t *task)
{
    tow_data_inbound_t *inbound =
        TOW_CONTAINER_OF(task, tow_data_inbound_t, task);
    const tow_data_port_t *port = inbound->port;
    if (port == NULL || port->failure != UCS_OK ||
        (inbound->state == TOW_DATA_INBOUND_LEAVING && port->send_count == 0))
        end_inbound(inbound);
    if (inbound->state == TOW_DATA_INBOUND_ENDING && inbound->pull_count == 0)
        free_inbound(inbound);
}

void tow_data_inbound_release(tow_data_inbound_t *inbound)
{
    TOW_ASSERT(inbound->pull_count > 0);
    if (--inbound->pull_count == 0 && inbound->state == TOW_DATA_INBOUND_ENDING)
        tow_net_defer(inbound->data->net, &inbound->task);
    tow_data_inbound_check(inbound);
}

static tow_data_inbound_t *create_inbound(tow_data_t *data, uint64_t stream,
                                          uint64_t node)
{
    tow_data_inbound_t *inbound = tow_calloc(1, sizeof(*inbound));
    if (inbound == NULL) return NULL;
    inbound->data = data;
    inbound->stream = stream;
    inbound->node = node;
    tow_list_init(&inbound->pulls);
    tow_list_init(&inbound->arriving);
    tow_list_init(&inbound->shares);
    tow_net_task_init(&inbound->task, inbound_work);
    if (!tow_map_put(&data->inbounds_by_stream, stream, inbound)) {
        tow_free(inbound);
        return NULL;
    }
    tow_list_append(&data->inbounds, &inbound->all);
    data->inbound_count++;
    return inbound;
}

/* Whether we may read the memory of the process that sent HELLO. */
static bool accept_cross_read(tow_data_inbound_t *inbound)
{
    tow_data_t *data = inbound->data;
    if (!data->may_cross_read || !tow_data_port_is_local(inbound->port))
        return false;
    tow_status_t status = tow_data_cross_endpoint_accept(
        &data->endpoint, inbound->stream, &inbound->cross_read);
    if (status == TOW_OK) return true;
    tow_log(&data->net->env.log, TOW_LOG_DEBUG,
            "large writes of a peer come through its ring, with two copies",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
    return false;
}

static tow_status_t connect_inbound(tow_data_inbound_t *inbound,
                                    const tow_data_address_t *address,
                                    tow_data_trunk_t *trunk)
{
    const tow_data_port_options_t options = {.data = inbound->data,
                                             .address = address,
                                             .trunk = trunk,
                                             .task = &inbound->task,
                                             .sent = inbound_sent,
                                             .owner = inbound};
    TOW_RETURN_IF_ERROR(tow_data_port_create(&options, &inbound->port));
    /* The first message settles the port; see port.c. */
    const tow_data_control_t back = {.stream = inbound->stream,
                                     .write = accept_cross_read(inbound),
                                     .kind = TOW_DATA_HELLO_BACK};
    if (tow_data_port_send_control(inbound->port, &back,
                                   (tow_data_bytes_t){0}) == TOW_DATA_FAILED)
        return TOW_ERROR(TOW_UNAVAILABLE, "cannot send to the peer");
    return TOW_OK;
}

static void make_room(tow_data_t *data)
{
    if (data->inbound_count < TOW_NET_INBOUND_COUNT_MAX) return;
    tow_data_inbound_t *oldest =
        TOW_CONTAINER_OF(data->inbounds.next, tow_data_inbound_t, all);
    tow_data_log_bad_peer(data, oldest->stream,
                          "too many inbound lanes: closing the oldest");
    disconnect_inbound(oldest);
}

void tow_data_inbound_hello(tow_data_t *data, tow_data_trunk_t *trunk,
                            const tow_data_control_t *control,
                            tow_data_bytes_t bytes)
{
    tow_data_address_t address;
    tow_status_t status =
        tow_data_address_parse(bytes.bytes, bytes.size, &address);
    if (status != TOW_OK) {
        tow_data_log_bad_peer(data, control->stream,
                              tow_status_message(status));
        tow_status_release(status);
        return;
    }
    if (tow_map_find(&data->inbounds_by_stream, control->stream) != NULL) {
        tow_data_log_bad_peer(data, control->stream,
                              "a second HELLO for the same stream");
        return;
    }
    make_room(data);
    tow_data_inbound_t *inbound =
        create_inbound(data, control->stream, address.node);
    if (inbound == NULL) {
        tow_data_log_bad_peer(data, control->stream, "no memory for a lane");
        return;
    }
    status = connect_inbound(inbound, &address, trunk);
    if (status == TOW_OK) return;
    tow_data_log_bad_peer(data, control->stream, tow_status_message(status));
    tow_status_release(status);
    end_inbound(inbound);
}

void tow_data_inbound_bye(tow_data_inbound_t *inbound)
{
    const tow_data_control_t back = {.stream = inbound->stream,
                                     .kind = TOW_DATA_BYE_BACK};
    inbound->state = TOW_DATA_INBOUND_LEAVING;
    (void)!tow_data_port_send_control(inbound->port, &back,
                                      (tow_data_bytes_t){0});
    tow_net_defer(inbound->data->net, &inbound->task);
}

tow_data_inbound_t *tow_data_inbound_find(tow_data_t *data, uint64_t stream)
{
    tow_data_inbound_t *inbound = data->last_inbound;
    if (TOW_UNLIKELY(inbound == NULL || inbound->stream != stream)) {
        inbound = tow_map_find(&data->inbounds_by_stream, stream);
        if (inbound == NULL) return NULL;
        data->last_inbound = inbound;
    }
    return inbound->state == TOW_DATA_INBOUND_OPEN ? inbound : NULL;
}

void tow_data_inbounds_disconnect_node(tow_data_t *data, uint64_t node)
{
    tow_list_t *item = data->inbounds.next;
    for (; item != &data->inbounds; item = item->next) {
        tow_data_inbound_t *inbound =
            TOW_CONTAINER_OF(item, tow_data_inbound_t, all);
        if (inbound->node == node) disconnect_inbound(inbound);
    }
}

void tow_data_inbounds_disconnect_all(tow_data_t *data)
{
    tow_list_t *item = data->inbounds.next;
    for (; item != &data->inbounds; item = item->next)
        disconnect_inbound(TOW_CONTAINER_OF(item, tow_data_inbound_t, all));
}

/* -- Partial writes ------------------------------------------------------- */

static tow_data_partial_t *find_partial(tow_data_inbound_t *inbound,
                                        uint64_t write)
{
    for (uint32_t i = 0; i < inbound->partial_count; i++) {
        if (inbound->partials[i].first.write == write)
            return &inbound->partials[i];
    }
    return NULL;
}

static void discard_partial(tow_data_inbound_t *inbound,
                            tow_data_partial_t *partial)
{
    if (partial == NULL) return;
    *partial = inbound->partials[--inbound->partial_count];
}

static void send_control(tow_data_inbound_t *inbound,
                         const tow_data_control_t *control)
{
    if (inbound->port->send_count >= TOW_NET_INBOUND_ANSWER_COUNT_MAX) {
        tow_data_log_bad_peer(inbound->data, inbound->stream,
                              "the peer does not read its answers");
        end_inbound(inbound);
        return;
    }
    /* If this fails, the port has failed or 24 bytes cannot be allocated:
     * either way the peer cannot use the lane any more. */
    if (tow_data_port_send_control(inbound->port, control,
                                   (tow_data_bytes_t){0}) == TOW_DATA_FAILED)
        end_inbound(inbound);
}

void tow_data_inbound_answer(tow_data_inbound_t *inbound, uint64_t write,
                             tow_code_t code)
{
    const tow_data_control_t control = {.stream = inbound->stream,
                                        .write = write,
                                        .kind = TOW_DATA_ANSWER,
                                        .code = (uint8_t)code};
    send_control(inbound, &control);
}

void tow_data_inbound_send_shared(tow_data_inbound_t *inbound, uint64_t write)
{
    const tow_data_control_t control = {
        .stream = inbound->stream, .write = write, .kind = TOW_DATA_SHARED};
    send_control(inbound, &control);
}

/* -- Fragments ------------------------------------------------------------ */

const void *tow_data_inbound_ring_bytes(tow_data_inbound_t *inbound,
                                        const tow_data_ring_ref_t *ref)
{
    tow_status_t status = TOW_OK;
    if (inbound->ring == NULL)
        status = tow_data_ring_attach(ref->ring, &inbound->ring);
    else if (tow_data_ring_id(inbound->ring) != ref->ring)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT, "a lane changes its ring");
    if (status == TOW_OK) return tow_data_ring_get(inbound->ring, ref);
    tow_data_log_bad_peer(inbound->data, inbound->stream,
                          tow_status_message(status));
    tow_status_release(status);
    disconnect_inbound(inbound);
    return NULL;
}

void tow_data_inbound_arrived(tow_data_inbound_t *inbound,
                              tow_data_region_t *region, uint64_t write,
                              const tow_arrival_t *arrival)
{
    tow_data_inbound_answer(inbound, write, TOW_CODE_OK);
    if (region->arrived == NULL) return;
    tow_data_begin_turn(inbound->data);
    region->arrived(region->context, &region->region, arrival);
}

static void complete(tow_data_inbound_t *inbound, tow_data_region_t *region,
                     const tow_data_partial_t *partial,
                     const tow_data_fragment_t *last)
{
    if ((last->flags & TOW_DATA_CHECKED) && partial->crc != last->crc) {
        tow_data_inbound_answer(inbound, last->write, TOW_DATA_LOSS);
        return;
    }
    const tow_arrival_t arrival = {
        .offset = last->place, .size = last->total, .tag = last->tag};
    tow_data_inbound_arrived(inbound, region, last->write, &arrival);
}

/* The state of the write of this fragment, `fresh` for the first one; NULL if
 * the fragment is to be ignored. */
static tow_data_partial_t *partial_of(tow_data_inbound_t *inbound,
                                      const tow_data_fragment_t *fragment,
                                      tow_data_partial_t *fresh)
{
    tow_data_partial_t *partial = find_partial(inbound, fragment->write);
    if (partial == NULL && fragment->at == 0) {
        *fresh = (tow_data_partial_t){.first = *fragment};
        return fresh;
    }
    if (partial == NULL) {
        /* These were in flight when their write was rejected. */
        inbound->data->straggler_count++;
        return NULL;
    }
    if (tow_data_partial_continues(partial, fragment)) return partial;
    tow_data_log_bad_peer(inbound->data, inbound->stream,
                          "fragments of one write do not continue each other");
    discard_partial(inbound, partial);
    tow_data_inbound_answer(inbound, fragment->write, TOW_DATA_LOSS);
    return NULL;
}

static void keep_partial(tow_data_inbound_t *inbound,
                         const tow_data_partial_t *partial)
{
    if (inbound->partial_count < TOW_NET_LANE_LARGE_COUNT_MAX) {
        inbound->partials[inbound->partial_count++] = *partial;
        return;
    }
    tow_data_log_bad_peer(inbound->data, inbound->stream,
                          "too many writes at once on one lane");
    tow_data_inbound_answer(inbound, partial->first.write,
                            TOW_RESOURCE_EXHAUSTED);
}

/* The region that the fragment is for; NULL if there is none, and the write has
 * been answered. */
static tow_data_region_t *region_of(tow_data_inbound_t *inbound,
                                    const tow_data_fragment_t *fragment,
                                    tow_data_partial_t *stored)
{
    tow_data_region_t *region = NULL;
    const tow_data_extent_t span = tow_data_extent_of(fragment);
    const tow_code_t code = tow_data_region_find(inbound->data, &span, &region);
    if (code == TOW_CODE_OK) return region;
    discard_partial(inbound, stored);
    tow_data_inbound_answer(inbound, fragment->write, code);
    return NULL;
}

uint8_t *tow_data_inbound_begin_fragment(tow_data_inbound_t *inbound,
                                         const tow_data_fragment_t *fragment)
{
    tow_data_partial_t fresh;
    tow_data_partial_t *partial = partial_of(inbound, fragment, &fresh);
    if (partial == NULL) return NULL;
    tow_data_region_t *region =
        region_of(inbound, fragment, partial == &fresh ? NULL : partial);
    if (region == NULL) return NULL;
    return region->bytes + fragment->place + fragment->at;
}

/* Over the bytes in the region, not over those received: end to end. */
static void check_bytes(tow_data_t *data, tow_data_partial_t *partial,
                        const tow_data_fragment_t *fragment, uint8_t *bytes,
                        size_t size)
{
    if (TOW_UNLIKELY(data->damage_count > 0)) {
        data->damage_count--;
        bytes[size / 2] ^= 1;
    }
    if (fragment->flags & TOW_DATA_CHECKED)
        partial->crc = tow_crc32c(partial->crc, bytes, size);
    partial->received += size;
}

void tow_data_inbound_end_fragment(tow_data_inbound_t *inbound,
                                   const tow_data_fragment_t *fragment,
                                   size_t size)
{
    tow_data_partial_t fresh;
    tow_data_partial_t *partial = partial_of(inbound, fragment, &fresh);
    if (partial == NULL) return;
    tow_data_partial_t *stored = partial == &fresh ? NULL : partial;
    tow_data_region_t *region = region_of(inbound, fragment, stored);
    if (region == NULL) return;
    check_bytes(inbound->data, partial, fragment,
                region->bytes + fragment->place + fragment->at, size);
    if (fragment->flags & TOW_DATA_LAST) {
        fresh = *partial;
        discard_partial(inbound, stored);
        complete(inbound, region, &fresh, fragment);
    } else if (stored == NULL) {
        keep_partial(inbound, &fresh);
    }
}
