/* Messages to the socket of a trunk: encrypted, or copied by the kernel, as a
 * whole or not at all. */
#include <sys/socket.h>

#include "env/net/data/trunk_impl.h"

static size_t bytes_waiting(const tow_net_link_t *link)
{
    const size_t cipher =
        link->tls != NULL ? tow_tls_drain_pending(link->tls) : 0;
    return link->queue.bytes + cipher;
}

/* Whether a message may be sent now. Bytes of the handshake go first. */
static bool has_room(tow_data_trunk_t *trunk)
{
    tow_net_link_t *link = trunk->link;
    if (bytes_waiting(link) >= TOW_NET_TRUNK_QUEUE_BYTES ||
        link->queue.bytes > 0)
        tow_net_connection_flush(link);
    if (bytes_waiting(link) < TOW_NET_TRUNK_QUEUE_BYTES &&
        (link->tls == NULL || link->queue.bytes == 0))
        return true;
    trunk->has_waiters = true;
    return false;
}

/* What the socket does not take is queued. */
static void send_plain(tow_net_link_t *link, struct iovec pieces[2])
{
    size_t sent = 0;
    if (link->queue.bytes == 0 && !link->waits_for_room) {
        const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
        const ssize_t result =
            sendmsg(link->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (tow_net_connection_note_sent(link, result) && result > 0)
            sent = (size_t)result;
        if (link->failure != TOW_OK) return;
    }
    for (size_t i = 0; i < 2; i++) {
        const size_t size = pieces[i].iov_len;
        const size_t done = sent < size ? sent : size;
        sent -= done;
        if (done == size) continue;
        if (tow_net_queue_append(&link->queue,
                                 (const uint8_t *)pieces[i].iov_base + done,
                                 size - done) == TOW_NET_QUEUE_OK)
            continue;
        tow_net_connection_break(link, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
}

/* Messages of up to this size are one TLS record, with their header. */
#define ONE_RECORD_BYTES 1024

static void send_encrypted(tow_net_link_t *link, struct iovec pieces[2])
{
    uint8_t record[sizeof(tow_data_frame_t) + TOW_DATA_TRUNK_HEADER_SIZE_MAX +
                   ONE_RECORD_BYTES];
    size_t count = pieces[0].iov_len;
    memcpy(record, pieces[0].iov_base, count);
    if (pieces[1].iov_len > 0 && pieces[1].iov_len <= ONE_RECORD_BYTES) {
        memcpy(record + count, pieces[1].iov_base, pieces[1].iov_len);
        count += pieces[1].iov_len;
        pieces[1].iov_len = 0;
    }
    tow_status_t status = tow_tls_write(link->tls, record, count);
    const uint8_t *bytes = pieces[1].iov_base;
    size_t left = pieces[1].iov_len;
    while (status == TOW_OK && left > 0) {
        const size_t size =
            left < TOW_NET_TRUNK_BATCH_BYTES ? left : TOW_NET_TRUNK_BATCH_BYTES;
        status = tow_tls_write(link->tls, bytes, size);
        bytes += size;
        left -= size;
        /* While the cipher bytes are in the processor's cache. */
        if (status == TOW_OK && left > 0) tow_net_connection_flush(link);
    }
    if (status != TOW_OK) tow_net_connection_break(link, status);
}

void trunk_send(tow_data_trunk_t *trunk, tow_data_id_t id,
                tow_data_bytes_t header, tow_data_bytes_t payload)
{
    tow_net_link_t *link = trunk->link;
    uint8_t head[sizeof(tow_data_frame_t) + TOW_DATA_TRUNK_HEADER_SIZE_MAX];
    const tow_data_frame_t frame = {.id = (uint8_t)id,
                                    .header_size = (uint16_t)header.size,
                                    .payload_size = (uint32_t)payload.size};
    TOW_ASSERT(tow_data_check_frame(&frame) == NULL);
    memcpy(head, &frame, sizeof(frame));
    memcpy(head + sizeof(frame), header.bytes, header.size);
    struct iovec pieces[2] = {{head, sizeof(frame) + header.size},
                              {(void *)payload.bytes, payload.size}};
    if (link->tls != NULL)
        send_encrypted(link, pieces);
    else
        send_plain(link, pieces);
    tow_net_connection_mark_dirty(link);
    if (bytes_waiting(link) >= TOW_NET_TRUNK_BATCH_BYTES)
        tow_net_connection_flush(link);
}

tow_data_sent_t tow_data_trunk_try(tow_data_trunk_t *trunk, tow_data_id_t id,
                                   tow_data_bytes_t header,
                                   tow_data_bytes_t payload)
{
    /* A broken trunk fails its ports soon. */
    if (trunk->state != TRUNK_UP || trunk->link->failure != TOW_OK ||
        !has_room(trunk))
        return TOW_DATA_FULL;
    trunk_send(trunk, id, header, payload);
    return TOW_DATA_SENT;
}

void trunk_wake_senders(tow_data_trunk_t *trunk)
{
    trunk->has_waiters = false;
    trunk->data->is_stuck = false;
}

void tow_data_trunk_writable(tow_data_trunk_t *trunk)
{
    if (trunk->has_waiters &&
        bytes_waiting(trunk->link) < TOW_NET_TRUNK_QUEUE_BYTES / 2)
        trunk_wake_senders(trunk);
}
