/* Sending: records are retained in the ring and go to the link in order. */
#include <string.h>

#include "base/assert.h"
#include "session/session_impl.h"

/* -- Sending records over the link ----------------------------------------- */

static uint64_t part_count(const tow_ring_record_t *record)
{
    if (TOW_LIKELY(record->type != RECORD_BLOB)) return 1;
    const blob_t *blob = (const blob_t *)(const void *)record->bytes;
    uint64_t size = blob->source.size; /* an empty blob has one part */
    return size == 0 ? 1 : (size + TOW_BLOB_PART_MAX - 1) / TOW_BLOB_PART_MAX;
}

static tow_send_result_t send_part(tow_session_t *session,
                                   const tow_ring_record_t *record)
{
    const blob_t *blob = (const blob_t *)(const void *)record->bytes;
    tow_msg_blob_t part = TOW_MSG_BLOB_INIT;
    part.blob = blob->number;
    part.size = blob->source.size;
    part.offset = session->parts_sent * TOW_BLOB_PART_MAX;
    uint64_t rest = part.size - part.offset;
    part.part.len = rest < TOW_BLOB_PART_MAX ? rest : TOW_BLOB_PART_MAX;
    if (part.part.len > 0) /* protobuf-c does not write through it. */
        part.part.data = (uint8_t *)blob->source.bytes + part.offset;
    uint8_t *room = NULL;
    uint32_t size = (uint32_t)tow_message_size(&part.base);
    tow_send_result_t result = tow_link_begin(session->link, size, &room);
    if (result != TOW_SEND_OK) return result;
    tow_message_encode(&part.base, room);
    tow_link_commit(session->link, TOW_MESSAGE_BLOB, size);
    return TOW_SEND_OK;
}

static void note_sent(tow_session_t *session, const tow_ring_record_t *record)
{
    session->next++;
    if (TOW_LIKELY(session->next > session->sent))
        session->sent = session->next;
    else
        session->sent_again_count++;
    if (TOW_UNLIKELY(record->type == RECORD_BLOB)) {
        if (++session->parts_sent < part_count(record)) return;
        session->parts_sent = 0;
    }
    tow_ring_advance(&session->ring);
}

void tow_session_pump(tow_session_t *session)
{
    const tow_ring_record_t *record;
    if (!session->is_ready) return;
    while ((record = tow_ring_next(&session->ring)) != NULL) {
        tow_send_result_t result =
            TOW_LIKELY(record->type != RECORD_BLOB)
                ? tow_link_send(session->link, record->type, record->bytes,
                                record->size)
                : send_part(session, record);
        if (result != TOW_SEND_OK)
            return; /* Resumed by `writable` or a new epoch. */
        note_sent(session, record);
    }
}

void tow_session_rewind(tow_session_t *session)
{
    tow_ring_rewind(&session->ring);
    session->parts_sent = session->parts_acknowledged;
    session->next = session->acknowledged;
}

/* -- Discarding records ---------------------------------------------------- */

/* `release` may do anything, even close the session: it is called last. */
static void pop(tow_session_t *session)
{
    const tow_ring_record_t *record = tow_ring_front(&session->ring);
    blob_t blob = {0};
    if (record->type == RECORD_BLOB) memcpy(&blob, record->bytes, sizeof(blob));
    session->parts_acknowledged = 0;
    tow_ring_pop(&session->ring);
    if (blob.source.release != NULL) blob.source.release(blob.source.context);
}

void tow_session_discard_acknowledged(tow_session_t *session, uint64_t received)
{
    while (session->acknowledged < received && session_is_live(session)) {
        const tow_ring_record_t *record = tow_ring_front(&session->ring);
        TOW_ASSERT(record != NULL);
        uint64_t parts = part_count(record) - session->parts_acknowledged;
        uint64_t more = received - session->acknowledged;
        session->acknowledged += more < parts ? more : parts;
        if (more < parts)
            session->parts_acknowledged += more;
        else
            pop(session);
    }
}

void tow_session_discard_unacknowledged(tow_session_t *session)
{
    while (tow_ring_front(&session->ring) != NULL)
        pop(session);
}

void tow_session_notify_writable(tow_session_t *session)
{
    if (TOW_LIKELY(!session->wants_writable) ||
        session->ring.used > session->limits.retransmit_bytes_max / 2 ||
        session->state != SESSION_OPEN)
        return;
    session->wants_writable = false;
    if (session->handler->writable != NULL)
        session->handler->writable(session->context, session);
}

/* -- Acknowledgements ------------------------------------------------------ */

void tow_session_send_ack(tow_session_t *session)
{
    const int64_t now_ns = tow_env_now_ns(session->env);
    tow_msg_session_ack_t ack = TOW_MSG_SESSION_ACK_INIT;
    uint8_t *room = NULL;
    ack.received = session->received;
    ack.sent_ns = (uint64_t)now_ns;
    ack.echo_ns = session->echo_ns;
    if (ack.echo_ns != 0)
        ack.echo_age_ns = (uint64_t)(now_ns - session->echo_came_ns);
    uint32_t size = (uint32_t)tow_message_size(&ack.base);
    tow_send_result_t result = tow_link_begin(session->link, size, &room);
    session->ack_is_due = result == TOW_SEND_FULL;
    if (result != TOW_SEND_OK) return;
    tow_message_encode(&ack.base, room);
    tow_link_commit(session->link, TOW_MESSAGE_SESSION_ACK, size);
    session->unacknowledged_count = 0;
    session->unacknowledged_bytes = 0;
}

/* -- Functions for the owner ----------------------------------------------- */

static TOW_COLD tow_send_result_t out_of_memory(tow_session_t *session)
{
    tow_session_fail_soon(
        session,
        TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                  "out of memory for the messages to %s: %zu bytes are "
                  "unacknowledged",
                  tow_session_peer_name(session), session->ring.used));
    return TOW_SEND_DOWN;
}

/* When half of the bound is free any message fits, so that the largest message
 * passes the smallest bound. */
tow_send_result_t tow_session_begin(tow_session_t *session, uint32_t size_max,
                                    uint8_t **out_bytes)
{
    TOW_ASSERT(size_max <= TOW_MESSAGE_SIZE_MAX);
    if (TOW_UNLIKELY(session->state != SESSION_OPEN ||
                     session->pending_failure != TOW_OK))
        return TOW_SEND_DOWN;
    const size_t used = session->ring.used;
    const uint64_t bound = session->limits.retransmit_bytes_max;
    if (TOW_UNLIKELY(used > bound / 2 &&
                     used + tow_ring_bytes(size_max) > bound)) {
        session->wants_writable = true;
        return TOW_SEND_FULL;
    }
    *out_bytes = tow_ring_begin(&session->ring, size_max);
    return TOW_LIKELY(*out_bytes != NULL) ? TOW_SEND_OK
                                          : out_of_memory(session);
}

bool tow_session_has_room(tow_session_t *session)
{
    if (TOW_LIKELY(session->ring.used <=
                   session->limits.retransmit_bytes_max / 2))
        return true;
    session->wants_writable = true;
    return false;
}

void tow_session_commit(tow_session_t *session, uint32_t type, uint32_t size)
{
    TOW_ASSERT(type >= TOW_MESSAGE_SESSION_FIRST && type <= UINT16_MAX &&
               !session_owns_type(type));
    tow_ring_commit(&session->ring, type, size);
    /* If others wait, the link is full or down. */
    if (TOW_LIKELY(session->ring.waiting == 1)) tow_session_pump(session);
}

tow_send_result_t tow_session_send(tow_session_t *session, uint32_t type,
                                   const tow_body_t *body)
{
    uint8_t *room = NULL;
    const size_t size = tow_message_size(body);
    TOW_ASSERT(size <= TOW_MESSAGE_SIZE_MAX);
    tow_send_result_t result =
        tow_session_begin(session, (uint32_t)size, &room);
    if (TOW_UNLIKELY(result != TOW_SEND_OK)) return result;
    tow_message_encode(body, room);
    tow_session_commit(session, type, (uint32_t)size);
    return TOW_SEND_OK;
}

uint64_t tow_session_send_blob(tow_session_t *session,
                               const tow_session_blob_t *source)
{
    const blob_t blob = {.source = *source, .number = session->blob_last + 1};
    uint8_t *room = NULL;
    if (session->state == SESSION_OPEN && session->pending_failure == TOW_OK) {
        room = tow_ring_begin(&session->ring, sizeof(blob));
        if (room == NULL) (void)out_of_memory(session);
    }
    if (room == NULL) {
        if (source->release != NULL) source->release(source->context);
        return 0;
    }
    memcpy(room, &blob, sizeof(blob));
    session->blob_last++;
    tow_ring_commit(&session->ring, RECORD_BLOB, sizeof(blob));
    if (session->ring.waiting == 1) tow_session_pump(session);
    return blob.number;
}
