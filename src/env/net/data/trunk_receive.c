/* Bytes from the socket of a trunk: a state machine over the message that is
 * being received, whose payload is read to its place. */
#include <errno.h>
#include <sys/socket.h>

#include "env/net/data/trunk_impl.h"

/* The header is complete: decides what happens to the payload. */
static void begin_payload(tow_data_trunk_t *trunk)
{
    incoming_t *incoming = &trunk->incoming;
    tow_data_ring_ref_t ref;
    incoming->payload_count = 0;
    incoming->is_skipped = false;
    if (incoming->frame.id != TOW_DATA_GREETING && trunk->state != TRUNK_UP) {
        trunk_refuse(trunk, "a message before the greeting");
        return;
    }
    if (incoming->frame.id != TOW_DATA_FRAGMENT) return;
    memcpy(&incoming->fragment, incoming->header, sizeof(incoming->fragment));
    const char *problem =
        incoming->fragment.flags & TOW_DATA_IN_RING
            ? "a fragment in a ring, from another host"
            : tow_data_parse_fragment(
                  incoming->header, incoming->frame.header_size, NULL,
                  incoming->frame.payload_size, &incoming->fragment, &ref);
    if (problem != NULL) trunk_refuse(trunk, problem);
}

static void finish_message(tow_data_trunk_t *trunk)
{
    incoming_t *incoming = &trunk->incoming;
    tow_data_t *data = trunk->data;
    const tow_data_bytes_t header = {incoming->header,
                                     incoming->frame.header_size};
    const tow_data_bytes_t payload = {incoming->payload,
                                      incoming->frame.payload_size};
    incoming->head_count = 0;
    tow_data_inbound_t *inbound;
    tow_data_greeting_t greeting;
    tow_data_subflows_t request;
    const char *problem;
    switch ((tow_data_id_t)incoming->frame.id) {
    case TOW_DATA_FRAGMENT:
        if (incoming->is_skipped) return;
        inbound = tow_data_inbound_find(data, incoming->fragment.stream);
        if (inbound != NULL)
            tow_data_inbound_end_fragment(inbound, &incoming->fragment,
                                          payload.size);
        return;
    case TOW_DATA_DATAGRAM:
        tow_data_receive_datagram(data, header, payload);
        return;
    case TOW_DATA_CONTROL:
        tow_data_receive_control(data, trunk, header, payload);
        return;
    case TOW_DATA_GREETING:
        problem = tow_data_parse_greeting(header.bytes, header.size, &greeting);
        if (problem != NULL)
            trunk_refuse(trunk, problem);
        else
            trunk_on_greeting(trunk, &greeting);
        return;
    case TOW_DATA_SUBFLOWS:
        problem = tow_data_parse_subflows(header.bytes, header.size, &request);
        if (problem != NULL)
            trunk_refuse(trunk, problem);
        else
            subflows_on_request(trunk, &request);
        return;
    case TOW_DATA_PULL: break;
    }
    TOW_UNREACHABLE();
}

static uint8_t *fragment_room(tow_data_trunk_t *trunk)
{
    incoming_t *incoming = &trunk->incoming;
    if (incoming->is_skipped) return NULL;
    tow_data_inbound_t *inbound =
        tow_data_inbound_find(trunk->data, incoming->fragment.stream);
    uint8_t *bytes =
        inbound != NULL
            ? tow_data_inbound_begin_fragment(inbound, &incoming->fragment)
            : NULL;
    incoming->is_skipped = bytes == NULL;
    return bytes != NULL ? bytes + incoming->payload_count : NULL;
}

/* Where the next bytes go, at most *out_size. Valid until the next callback. */
static uint8_t *next_room(tow_data_trunk_t *trunk, size_t *out_size)
{
    incoming_t *incoming = &trunk->incoming;
    const size_t at = incoming->head_count;
    const size_t frame_size = sizeof(incoming->frame);
    if (at < frame_size) {
        *out_size = frame_size - at;
        return (uint8_t *)&incoming->frame + at;
    }
    const size_t head_size = frame_size + incoming->frame.header_size;
    if (at < head_size) {
        *out_size = head_size - at;
        return incoming->header + (at - frame_size);
    }
    *out_size = incoming->frame.payload_size - incoming->payload_count;
    if (incoming->frame.id != TOW_DATA_FRAGMENT)
        return incoming->payload + incoming->payload_count;
    uint8_t *bytes = fragment_room(trunk);
    if (bytes != NULL) return bytes;
    if (*out_size > TOW_NET_READ_BYTES) *out_size = TOW_NET_READ_BYTES;
    return trunk->data->skipped_bytes;
}

/* `count` bytes are where next_room said. */
static void advance(tow_data_trunk_t *trunk, size_t count)
{
    incoming_t *incoming = &trunk->incoming;
    const size_t frame_size = sizeof(incoming->frame);
    const bool was_in_frame = incoming->head_count < frame_size;
    size_t head_size = frame_size + incoming->frame.header_size;
    if (was_in_frame || incoming->head_count < head_size) {
        incoming->head_count += count;
        if (incoming->head_count < frame_size) return;
        if (was_in_frame) {
            const char *problem = tow_data_check_frame(&incoming->frame);
            if (problem != NULL) {
                trunk_refuse(trunk, problem);
                return;
            }
            head_size = frame_size + incoming->frame.header_size;
        }
        if (incoming->head_count < head_size) return;
        begin_payload(trunk);
    } else {
        incoming->payload_count += (uint32_t)count;
    }
    if (trunk->state != TRUNK_ENDING &&
        incoming->payload_count == incoming->frame.payload_size)
        finish_message(trunk);
}

static bool is_reading(const tow_data_trunk_t *trunk)
{
    return trunk->state != TRUNK_ENDING && trunk->link->phase == TOW_NET_UP;
}

void tow_data_trunk_take(tow_data_trunk_t *trunk, tow_net_input_t input)
{
    while (input.count > 0 && is_reading(trunk)) {
        size_t size;
        uint8_t *room = next_room(trunk, &size);
        if (size > input.count) size = input.count;
        memcpy(room, input.bytes, size);
        input.bytes += size;
        input.count -= size;
        advance(trunk, size);
    }
}

static void take_decrypted(tow_data_trunk_t *trunk)
{
    tow_net_link_t *link = trunk->link;
    while (is_reading(trunk)) {
        size_t size, count = 0;
        bool is_closed = false;
        uint8_t *room = next_room(trunk, &size);
        tow_status_t status =
            tow_tls_read(link->tls, room, size, &count, &is_closed);
        if (status != TOW_OK)
            tow_net_connection_fail(
                link, tow_status_annotate(status, "%s", link->address));
        else if (count > 0)
            advance(trunk, count);
        else if (is_closed)
            tow_net_connection_read_end(link);
        else
            return;
    }
}

/* Inside OpenSSL: what the result means for the connection is handled after
 * it has returned. */
size_t trunk_receive_cipher(void *context, void *bytes, size_t capacity)
{
    tow_data_trunk_t *trunk = context;
    tow_net_link_t *link = trunk->link;
    if (trunk->unread_bytes == 0) return 0;
    const ssize_t count = recv(link->source.fd, bytes, capacity, 0);
    trunk->receive_error = count < 0 ? errno : 0;
    trunk->has_ended = count == 0;
    if (count <= 0) return 0;
    tow_net_connection_note_received(link, (size_t)count, capacity);
    trunk->unread_bytes -= (size_t)count < trunk->unread_bytes
                               ? (size_t)count
                               : trunk->unread_bytes;
    return (size_t)count;
}

static bool read_encrypted(tow_data_trunk_t *trunk)
{
    tow_net_link_t *link = trunk->link;
    trunk->unread_bytes = TOW_NET_TRUNK_READ_BYTES;
    trunk->receive_error = 0;
    trunk->has_ended = false;
    take_decrypted(trunk);
    const bool any = trunk->unread_bytes < TOW_NET_TRUNK_READ_BYTES;
    if (!is_reading(trunk)) return true;
    if (trunk->has_ended)
        tow_net_connection_read_end(link);
    else if (trunk->receive_error != 0)
        tow_net_connection_read_failed(link, trunk->receive_error);
    else /* There may be more, after the other sockets had their turn. */
        tow_net_defer(link->net, &link->again);
    return any;
}

/* A large payload is read to its place; what follows it, and small messages,
 * through the buffer of the net. */
static bool read_plain(tow_data_trunk_t *trunk)
{
    tow_net_link_t *link = trunk->link;
    uint8_t *through = link->net->read_bytes;
    size_t size;
    uint8_t *room = next_room(trunk, &size);
    const bool is_direct = size >= TOW_NET_DIRECT_READ_BYTES;
    if (!is_direct) {
        room = through;
        size = TOW_NET_READ_BYTES;
    }
    const ssize_t count = tow_net_connection_receive(link, room, size);
    if (count <= 0) return count == 0;
    if (is_direct) {
        advance(trunk, (size_t)count);
        /* The rest of the socket is a message of its own. */
        if (is_reading(trunk)) tow_net_defer(link->net, &link->again);
    } else {
        tow_data_trunk_take(trunk, (tow_net_input_t){through, (size_t)count});
    }
    return true;
}

bool tow_data_trunk_read(tow_data_trunk_t *trunk)
{
    if (trunk->state == TRUNK_ENDING) return false;
    trunk->data->clock_is_fresh = true; /* The pass has read it. */
    return trunk->link->tls != NULL ? read_encrypted(trunk) : read_plain(trunk);
}
