/* Receiving: messages for the owner, and the session's own. The peer may be
 * hostile: everything that it sends is validated. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "session/session_impl.h"

/* Ends the session with a description of the peer's protocol violation. */
#define VIOLATION(session, format, ...)                                     \
    tow_session_fail((session),                                             \
                     TOW_ERROR(TOW_INVALID_ARGUMENT,                        \
                               "%s violated the session protocol: " format, \
                               tow_session_peer_name(session), __VA_ARGS__))

const tow_body_t *tow_session_decode(tow_session_t *session,
                                     const tow_message_t *message)
{
    const tow_body_t *body = NULL;
    tow_arena_reset(&session->arena);
    tow_status_t status = tow_message_decode(
        message->type, message->bytes, message->size, &session->arena, &body);
    if (status != TOW_OK)
        tow_session_fail(session,
                         tow_status_annotate(status, "from %s",
                                             tow_session_peer_name(session)));
    return body;
}

bool tow_session_check_received(tow_session_t *session, uint64_t received,
                                uint64_t sent)
{
    if (received >= session->acknowledged && received <= sent) return true;
    VIOLATION(session,
              "it acknowledges %" PRIu64 " messages; %" PRIu64
              " were sent, and it acknowledged %" PRIu64 " before",
              received, sent, session->acknowledged);
    return false;
}

static void receive_ack(tow_session_t *session,
                        const tow_msg_session_ack_t *ack)
{
    const int64_t now_ns = tow_env_now_ns(session->env);
    if (!tow_session_check_received(session, ack->received, session->next))
        return;
    tow_clock_offset_add(
        &session->offset,
        &(tow_clock_offset_sample_t){.now_ns = now_ns,
                                     .sent_ns = ack->sent_ns,
                                     .echo_ns = ack->echo_ns,
                                     .echo_age_ns = ack->echo_age_ns});
    session->echo_ns = ack->sent_ns;
    session->echo_came_ns = now_ns;
    /* Its first acknowledgement: reply at once, so that it learns our clock. */
    if (ack->echo_ns == 0 && ack->sent_ns != 0) tow_session_send_ack(session);
    tow_session_discard_acknowledged(session, ack->received);
    tow_session_notify_writable(session);
    tow_session_check(session);
}

/* Control characters in the peer's reason are replaced. */
static void receive_end(tow_session_t *session,
                        const tow_msg_session_end_t *end)
{
    char reason[TOW_REFUSE_REASON_MAX + 1];
    snprintf(reason, sizeof(reason), "%s", end->reason);
    for (char *c = reason; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    const char *name = tow_session_peer_name(session);
    tow_code_t code =
        end->code <= TOW_UNAUTHENTICATED ? (tow_code_t)end->code : TOW_UNKNOWN;
    tow_session_fail(
        session,
        code == TOW_CODE_OK
            ? TOW_ERROR(TOW_CANCELLED, "%s closed the session", name)
            : TOW_ERROR(code, "%s ended the session: %s", name, reason));
}

/* -- Blobs ----------------------------------------------------------------- */

static bool begin_blob(tow_session_t *session, const tow_msg_blob_t *part)
{
    incoming_blob_t *incoming = &session->incoming;
    if (session->handler->blob == NULL) {
        VIOLATION(session,
                  "it sent blob %" PRIu64 ", but blobs are not accepted",
                  part->blob);
        return false;
    }
    if (part->blob <= incoming->number) {
        VIOLATION(session, "blob %" PRIu64 " came after %" PRIu64, part->blob,
                  incoming->number);
        return false;
    }
    if (part->size > session->limits.blob_bytes_max) {
        VIOLATION(session, "a blob of %" PRIu64 " bytes; the limit is %" PRIu64,
                  part->size, session->limits.blob_bytes_max);
        return false;
    }
    *incoming = (incoming_blob_t){
        .is_open = true, .number = part->blob, .size = part->size};
    return true;
}

/* Memory grows with the bytes received, not with the announced size. */
static bool grow_blob(tow_session_t *session, uint64_t wanted)
{
    incoming_blob_t *incoming = &session->incoming;
    if (incoming->bytes != NULL && wanted <= incoming->capacity) return true;
    uint64_t capacity = incoming->capacity == 0 ? TOW_SESSION_BLOB_BYTES_FIRST
                                                : incoming->capacity * 2;
    if (capacity > incoming->size) capacity = incoming->size;
    uint8_t *bytes = tow_realloc(incoming->bytes, capacity + (capacity == 0));
    if (bytes == NULL) {
        tow_session_fail(
            session,
            TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                      "out of memory for a blob of %" PRIu64 " bytes from %s",
                      incoming->size, tow_session_peer_name(session)));
        return false;
    }
    incoming->bytes = bytes;
    incoming->capacity = capacity;
    return true;
}

static bool check_part(tow_session_t *session, const tow_msg_blob_t *part)
{
    const incoming_blob_t *incoming = &session->incoming;
    if (part->blob == incoming->number && part->size == incoming->size &&
        part->offset == incoming->got &&
        part->part.len <= incoming->size - incoming->got &&
        (part->part.len > 0 || incoming->size == 0))
        return true;
    VIOLATION(session,
              "a part of %zu bytes at offset %" PRIu64 " of %" PRIu64
              " of blob %" PRIu64 "; expected offset %" PRIu64 " of %" PRIu64
              " of blob %" PRIu64,
              part->part.len, part->offset, part->size, part->blob,
              incoming->got, incoming->size, incoming->number);
    return false;
}

static void finish_blob(tow_session_t *session)
{
    incoming_blob_t *incoming = &session->incoming;
    void *bytes = incoming->bytes;
    incoming->bytes = NULL;
    incoming->is_open = false;
    tow_arena_deinit(&session->arena); /* It held a part, which is large. */
    session->handler->blob(session->context, session, incoming->number, bytes,
                           incoming->size);
}

static void receive_part(tow_session_t *session, const tow_msg_blob_t *part)
{
    incoming_blob_t *incoming = &session->incoming;
    if (!incoming->is_open && !begin_blob(session, part)) return;
    if (!check_part(session, part)) return;
    if (!grow_blob(session, incoming->got + part->part.len)) return;
    if (part->part.len > 0)
        memcpy(incoming->bytes + incoming->got, part->part.data,
               part->part.len);
    incoming->got += part->part.len;
    session->received++;
    session->unacknowledged_count++;
    session->unacknowledged_bytes += part->part.len;
    if (incoming->got == incoming->size) finish_blob(session);
}

/* -- Dispatch -------------------------------------------------------------- */

static void acknowledge_if_due(tow_session_t *session)
{
    if (TOW_LIKELY(session->unacknowledged_count < TOW_SESSION_ACK_COUNT &&
                   session->unacknowledged_bytes < TOW_SESSION_ACK_BYTES))
        return;
    if (session->is_ready) tow_session_send_ack(session);
}

static void receive_own(tow_session_t *session, const tow_message_t *message)
{
    if (message->type < TOW_MESSAGE_SESSION_RESUME ||
        message->type > TOW_MESSAGE_BLOB) {
        VIOLATION(session, "a message of type %u, which sessions do not have",
                  message->type);
        return;
    }
    const tow_body_t *body = tow_session_decode(session, message);
    if (body == NULL) return;
    switch (message->type) {
    case TOW_MESSAGE_SESSION_ACK:
        receive_ack(session, (const tow_msg_session_ack_t *)body);
        break;
    case TOW_MESSAGE_BLOB:
        receive_part(session, (const tow_msg_blob_t *)body);
        acknowledge_if_due(session);
        break;
    case TOW_MESSAGE_SESSION_END:
        receive_end(session, (const tow_msg_session_end_t *)body);
        break;
    default:
        VIOLATION(session, "it sent %s", "SessionResume twice in one epoch");
        break;
    }
}

void tow_session_receive(tow_session_t *session, const tow_message_t *message)
{
    if (TOW_UNLIKELY(message->type < TOW_MESSAGE_SESSION_FIRST ||
                     session_owns_type(message->type))) {
        receive_own(session, message);
        return;
    }
    if (TOW_UNLIKELY(session->incoming.is_open)) {
        VIOLATION(session, "a message between the parts of blob %" PRIu64,
                  session->incoming.number);
        return;
    }
    session->received++;
    session->unacknowledged_count++;
    session->unacknowledged_bytes += message->size;
    session->handler->message(session->context, session, message);
    acknowledge_if_due(session);
}
