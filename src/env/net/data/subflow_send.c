/* Striped writes that we send. Each thread takes the next fragment of the write
 * and encrypts all of it before it looks at anything else; cipher bytes that
 * the socket does not take wait in the memory of TLS. So a thread uses the
 * user's bytes for one fragment at a time, and a cancelled write is over after
 * that. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "env/net/data/trunk_impl.h"

/* -- On threads ------------------------------------------------------------ */

/* False if the socket has failed. */
static bool flush(subflow_t *subflow)
{
    const uint8_t *cipher;
    size_t count;
    while ((count = tow_tls_peek(subflow->tls, &cipher)) > 0) {
        const ssize_t sent = send(subflow->source.fd, cipher, count,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) tow_tls_drained(subflow->tls, (size_t)sent);
        if (sent >= 0 || errno == EINTR) continue;
        if (errno == EAGAIN) return true;
        subflow_break(subflow, strerrordesc_np(errno));
        return false;
    }
    return true;
}

/* Sends until fewer than `limit` bytes wait. False: the job has ended. */
static bool drain(subflow_t *subflow, size_t limit)
{
    for (;;) {
        if (!flush(subflow)) return false;
        if (tow_tls_drain_pending(subflow->tls) < limit) return true;
        if (!subflow_wait(subflow, POLLOUT)) return false;
    }
}

static bool is_claimed(outgoing_t *outgoing)
{
    return atomic_load(&outgoing->next) >= outgoing->op->payload.size;
}

/* The next fragment; false when there is none. */
static bool claim(outgoing_t *outgoing, uint64_t *out_at, size_t *out_size)
{
    if (outgoing == NULL || atomic_load(&outgoing->is_cancelled) ||
        is_claimed(outgoing))
        return false;
    const size_t total = outgoing->op->payload.size;
    *out_at = atomic_fetch_add(&outgoing->next, TOW_NET_FRAGMENT_TRUNK_BYTES);
    if (*out_at >= total) return false;
    *out_size = total - *out_at < TOW_NET_FRAGMENT_TRUNK_BYTES
                    ? total - *out_at
                    : TOW_NET_FRAGMENT_TRUNK_BYTES;
    return true;
}

static void make_head(const outgoing_t *outgoing, uint64_t at, size_t size,
                      uint8_t head[SUBFLOW_HEAD_SIZE])
{
    const tow_data_frame_t frame = {.id = TOW_DATA_FRAGMENT,
                                    .header_size = sizeof(tow_data_fragment_t),
                                    .payload_size = (uint32_t)size};
    tow_data_fragment_t fragment = outgoing->op->header.fragment;
    const uint8_t *bytes = outgoing->op->payload.bytes;
    fragment.at = at;
    if (at + size == fragment.total) fragment.flags |= TOW_DATA_LAST;
    if (fragment.flags & TOW_DATA_CHECKED)
        fragment.crc = tow_crc32c(0, bytes + at, size);
    memcpy(head, &frame, sizeof(frame));
    memcpy(head + sizeof(frame), &fragment, sizeof(fragment));
}

static bool send_fragment(subflow_t *subflow, uint64_t at, size_t size)
{
    const outgoing_t *outgoing = subflow->outgoing;
    const uint8_t *bytes = (const uint8_t *)outgoing->op->payload.bytes + at;
    uint8_t head[SUBFLOW_HEAD_SIZE];
    make_head(outgoing, at, size, head);
    tow_status_t status = tow_tls_write(subflow->tls, head, sizeof(head));
    while (status == TOW_OK && size > 0) {
        const size_t slice =
            size < TOW_NET_TRUNK_BATCH_BYTES ? size : TOW_NET_TRUNK_BATCH_BYTES;
        status = tow_tls_write(subflow->tls, bytes, slice);
        bytes += slice;
        size -= slice;
        /* While the cipher bytes are in the processor's cache. */
        if (status == TOW_OK && !flush(subflow)) return false;
    }
    if (status == TOW_OK) return true;
    subflow_break_status(subflow, status);
    return false;
}

void subflow_send(subflow_t *subflow)
{
    uint64_t at = 0;
    size_t size = 0;
    for (size_t sent = 0; sent < TOW_NET_SUBFLOW_TURN_BYTES; sent += size) {
        if (!drain(subflow, TOW_NET_TRUNK_BATCH_BYTES)) return;
        if (!claim(subflow->outgoing, &at, &size)) break;
        if (!send_fragment(subflow, at, size)) return;
    }
    (void)drain(subflow, 1);
}

/* -- On the loop ----------------------------------------------------------- */

static void end_outgoing(outgoing_t *outgoing)
{
    TOW_ASSERT(outgoing->job_count == 0);
    tow_data_op_t *op = outgoing->op;
    tow_list_remove(&outgoing->list);
    tow_free(outgoing);
    tow_data_port_note_sent(op);
}

static void end_if_over(outgoing_t *outgoing)
{
    if (outgoing->job_count == 0 &&
        (atomic_load(&outgoing->is_cancelled) || is_claimed(outgoing)))
        end_outgoing(outgoing);
}

void subflow_sent(subflow_t *subflow)
{
    outgoing_t *outgoing = subflow->outgoing;
    if (outgoing == NULL) return;
    subflow->outgoing = NULL;
    outgoing->job_count--;
    end_if_over(outgoing);
}

static outgoing_t *next_outgoing(tow_data_trunk_t *trunk)
{
    const tow_list_t *head = &trunk->outgoing;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        outgoing_t *outgoing = TOW_CONTAINER_OF(at, outgoing_t, list);
        if (!atomic_load(&outgoing->is_cancelled) && !is_claimed(outgoing))
            return outgoing;
    }
    return NULL;
}

void subflows_pump(tow_data_trunk_t *trunk)
{
    const tow_list_t *head = &trunk->subflows;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        subflow_t *subflow = TOW_CONTAINER_OF(at, subflow_t, list);
        if (!subflow->sends || subflow->phase != SUBFLOW_IDLE) continue;
        outgoing_t *outgoing = next_outgoing(trunk);
        if (outgoing == NULL) return;
        outgoing->job_count++;
        subflow->outgoing = outgoing;
        tow_list_remove(&outgoing->list); /* To the end: round robin. */
        tow_list_append(&trunk->outgoing, &outgoing->list);
        subflow_start(subflow);
    }
}

bool tow_data_trunk_stripe(tow_data_trunk_t *trunk, tow_data_op_t *op)
{
    TOW_ASSERT(op->payload.size > 0);
    if (trunk->state != TRUNK_UP || trunk->sending_count == 0) return false;
    outgoing_t *outgoing = tow_calloc(1, sizeof(*outgoing));
    if (outgoing == NULL) return false;
    outgoing->op = op;
    tow_list_append(&trunk->outgoing, &outgoing->list);
    subflows_pump(trunk);
    return true;
}

/* Of one port, or of all: NULL. */
static void cancel(tow_data_trunk_t *trunk, const tow_data_port_t *port)
{
    tow_list_t *item = trunk->outgoing.next;
    while (item != &trunk->outgoing) {
        outgoing_t *outgoing = TOW_CONTAINER_OF(item, outgoing_t, list);
        item = item->next;
        if (port != NULL && outgoing->op->port != port) continue;
        atomic_store(&outgoing->is_cancelled, true);
        end_if_over(outgoing);
    }
}

void outgoing_end_all(tow_data_trunk_t *trunk)
{
    cancel(trunk, NULL);
}

void tow_data_trunk_cancel_striped(tow_data_port_t *port)
{
    if (port->trunk != NULL) cancel(port->trunk, port);
}
