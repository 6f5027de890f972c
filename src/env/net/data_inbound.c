/* Lanes that others opened to us: putting their writes together and answering.
 *
 * Nothing here trusts a header further than the parser has checked it. What is
 * kept for each peer is bounded: so many partial writes, so many answers that
 * it does not read, so many inbounds in all. */
#include "base/alloc.h"
#include "base/hash.h"
#include "env/net/data_impl.h"

/* -- Life ----------------------------------------------------------------- */

static void free_inbound(tow_data_inbound_t *inbound)
{
    tow_data_t *data = inbound->data;
    if (inbound->port != NULL) tow_data_port_release(inbound->port);
    tow_list_remove(&inbound->task.list);
    tow_list_remove(&inbound->all);
    tow_data_ring_destroy(inbound->ring);
    tow_data_reach_close(&inbound->reach);
    data->inbound_count--;
    tow_free(inbound);
    tow_data_check_closed(data);
}

/* From here on nobody finds it; its task does the rest. */
static void end_inbound(tow_data_inbound_t *inbound)
{
    if (inbound->state == TOW_DATA_INBOUND_ENDING) return;
    tow_data_t *data = inbound->data;
    inbound->state = TOW_DATA_INBOUND_ENDING;
    if (data->last_inbound == inbound) data->last_inbound = NULL;
    tow_map_remove(&data->inbounds_by_stream, inbound->stream);
    tow_data_pulls_cancel_of_inbound(inbound);
    tow_data_loans_detach(inbound);
    tow_net_defer(data->net, &inbound->task);
}

/* Ends it, and tells the peer if that is possible at once. A peer that is dead
 * does not care; one that was thought dead learns what happened to its lane. */
static void drop_inbound(tow_data_inbound_t *inbound)
{
    if (inbound->state == TOW_DATA_INBOUND_OPEN && inbound->port != NULL) {
        const tow_data_control_t reset = {.stream = inbound->stream,
                                          .kind = TOW_DATA_RESET};
        (void)!tow_data_port_tell(inbound->port, &reset, (tow_data_bytes_t){0});
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
    tow_list_init(&inbound->loans);
    tow_net_task_init(&inbound->task, inbound_work);
    if (!tow_map_put(&data->inbounds_by_stream, stream, inbound)) {
        tow_free(inbound);
        return NULL;
    }
    tow_list_append(&data->inbounds, &inbound->all);
    data->inbound_count++;
    return inbound;
}

/* May we read the memory of who says HELLO? */
static bool reach_peer(tow_data_inbound_t *inbound)
{
    tow_data_t *data = inbound->data;
    if (!inbound->port->is_local) return false;
    tow_status_t status =
        tow_data_door_answer(&data->door, inbound->stream, &inbound->reach);
    if (status == TOW_OK) return true;
    tow_log(&data->net->env.log, TOW_LOG_DEBUG,
            "large writes of a peer come through its ring",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
    return false;
}

static tow_status_t connect_inbound(tow_data_inbound_t *inbound,
                                    const tow_data_address_t *address)
{
    const tow_data_port_options_t options = {.data = inbound->data,
                                             .address = address,
                                             .task = &inbound->task,
                                             .sent = inbound_sent,
                                             .owner = inbound};
    TOW_RETURN_IF_ERROR(tow_data_port_create(&options, &inbound->port));
    /* The first message settles the port; see data_port.c. */
    const tow_data_control_t back = {.stream = inbound->stream,
                                     .write = reach_peer(inbound),
                                     .kind = TOW_DATA_HELLO_BACK};
    if (tow_data_port_tell(inbound->port, &back, (tow_data_bytes_t){0}) ==
        TOW_DATA_FAILED)
        return TOW_ERROR(TOW_UNAVAILABLE, "UCX cannot send to the peer");
    return TOW_OK;
}

static void make_room(tow_data_t *data)
{
    if (data->inbound_count < TOW_NET_INBOUND_COUNT_MAX) return;
    tow_data_inbound_t *oldest =
        TOW_CONTAINER_OF(data->inbounds.next, tow_data_inbound_t, all);
    tow_data_complain(data, oldest->stream,
                      "too many lanes come in: the oldest is ended");
    drop_inbound(oldest);
}

void tow_data_inbound_hello(tow_data_t *data, const tow_data_control_t *control,
                            tow_data_bytes_t bytes)
{
    tow_data_address_t address;
    tow_status_t status =
        tow_data_address_parse(bytes.bytes, bytes.size, &address);
    if (status != TOW_OK) {
        tow_data_complain(data, control->stream, tow_status_message(status));
        tow_status_release(status);
        return;
    }
    if (tow_map_find(&data->inbounds_by_stream, control->stream) != NULL) {
        tow_data_complain(data, control->stream, "a stream begins twice");
        return;
    }
    make_room(data);
    tow_data_inbound_t *inbound =
        create_inbound(data, control->stream, address.node);
    if (inbound == NULL) {
        tow_data_complain(data, control->stream, "no memory for a lane");
        return;
    }
    status = connect_inbound(inbound, &address);
    if (status == TOW_OK) return;
    tow_data_complain(data, control->stream, tow_status_message(status));
    tow_status_release(status);
    end_inbound(inbound);
}

void tow_data_inbound_bye(tow_data_inbound_t *inbound)
{
    const tow_data_control_t back = {.stream = inbound->stream,
                                     .kind = TOW_DATA_BYE_BACK};
    inbound->state = TOW_DATA_INBOUND_LEAVING;
    (void)!tow_data_port_tell(inbound->port, &back, (tow_data_bytes_t){0});
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

void tow_data_inbounds_drop_of(tow_data_t *data, uint64_t node)
{
    tow_list_t *item = data->inbounds.next;
    for (; item != &data->inbounds; item = item->next) {
        tow_data_inbound_t *inbound =
            TOW_CONTAINER_OF(item, tow_data_inbound_t, all);
        if (inbound->node == node) drop_inbound(inbound);
    }
}

void tow_data_inbounds_drop_all(tow_data_t *data)
{
    tow_list_t *item = data->inbounds.next;
    for (; item != &data->inbounds; item = item->next)
        drop_inbound(TOW_CONTAINER_OF(item, tow_data_inbound_t, all));
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

static void forget_partial(tow_data_inbound_t *inbound,
                           tow_data_partial_t *partial)
{
    if (partial == NULL) return;
    *partial = inbound->partials[--inbound->partial_count];
}

static void tell(tow_data_inbound_t *inbound, const tow_data_control_t *control)
{
    if (inbound->port->send_count >= TOW_NET_INBOUND_ANSWER_COUNT_MAX) {
        tow_data_complain(inbound->data, inbound->stream,
                          "a peer does not read its answers");
        end_inbound(inbound);
        return;
    }
    /* When it fails the port has failed, or there is no memory for 24 bytes:
     * either way the lane is of no use to the peer any more. */
    if (tow_data_port_tell(inbound->port, control, (tow_data_bytes_t){0}) ==
        TOW_DATA_FAILED)
        end_inbound(inbound);
}

void tow_data_inbound_answer(tow_data_inbound_t *inbound, uint64_t write,
                             tow_code_t code)
{
    const tow_data_control_t control = {.stream = inbound->stream,
                                        .write = write,
                                        .kind = TOW_DATA_ANSWER,
                                        .code = (uint8_t)code};
    tell(inbound, &control);
}

void tow_data_inbound_tell_lent(tow_data_inbound_t *inbound, uint64_t write)
{
    const tow_data_control_t control = {
        .stream = inbound->stream, .write = write, .kind = TOW_DATA_LENT};
    tell(inbound, &control);
}

/* -- Fragments ------------------------------------------------------------ */

const void *tow_data_inbound_look(tow_data_inbound_t *inbound,
                                  const tow_data_ring_ref_t *ref)
{
    tow_status_t status = TOW_OK;
    if (inbound->ring == NULL)
        status = tow_data_ring_attach(ref->ring, &inbound->ring);
    else if (tow_data_ring_id(inbound->ring) != ref->ring)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT, "a lane changes its ring");
    if (status == TOW_OK) return tow_data_ring_get(inbound->ring, ref);
    tow_data_complain(inbound->data, inbound->stream,
                      tow_status_message(status));
    tow_status_release(status);
    drop_inbound(inbound);
    return NULL;
}

static void place(tow_data_t *data, tow_data_region_t *region,
                  tow_data_partial_t *partial,
                  const tow_data_fragment_t *fragment, tow_data_bytes_t payload)
{
    uint8_t *target = region->bytes + fragment->place + fragment->at;
    memcpy(target, payload.bytes, payload.size);
    if (TOW_UNLIKELY(data->damage_count > 0)) {
        data->damage_count--;
        target[payload.size / 2] ^= 1;
    }
    /* Over what lies in the region now, not over what came: end to end. */
    if (fragment->flags & TOW_DATA_CHECKED)
        partial->crc = tow_crc32c(partial->crc, target, payload.size);
    partial->received += payload.size;
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

/* The state of the write that this fragment belongs to, which is `fresh` if it
 * is the first; NULL if there is nothing to do. */
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
        /* Its write was refused when these were already on their way. */
        inbound->data->straggler_count++;
        return NULL;
    }
    if (tow_data_partial_continues(partial, fragment)) return partial;
    tow_data_complain(inbound->data, inbound->stream,
                      "fragments of one write do not fit together");
    forget_partial(inbound, partial);
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
    tow_data_complain(inbound->data, inbound->stream,
                      "too many writes at once on one lane");
    tow_data_inbound_answer(inbound, partial->first.write,
                            TOW_RESOURCE_EXHAUSTED);
}

void tow_data_inbound_fragment(tow_data_inbound_t *inbound,
                               const tow_data_fragment_t *fragment,
                               tow_data_bytes_t payload)
{
    tow_data_t *data = inbound->data;
    tow_data_partial_t fresh;
    tow_data_partial_t *partial = partial_of(inbound, fragment, &fresh);
    if (partial == NULL) return;
    tow_data_partial_t *kept = partial == &fresh ? NULL : partial;
    tow_data_region_t *region = NULL;
    const tow_data_span_t span = tow_data_span_of(fragment);
    const tow_code_t code = tow_data_region_find(data, &span, &region);
    if (code != TOW_CODE_OK) {
        forget_partial(inbound, kept);
        tow_data_inbound_answer(inbound, fragment->write, code);
        return;
    }
    place(data, region, partial, fragment, payload);
    if (fragment->flags & TOW_DATA_LAST) {
        fresh = *partial;
        forget_partial(inbound, kept);
        complete(inbound, region, &fresh, fragment);
    } else if (kept == NULL) {
        keep_partial(inbound, &fresh);
    }
}
