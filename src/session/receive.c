/* What arrives: messages for the owner, and those of the session's own. The
 * peer may be hostile: whatever it says is held against what can be. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "session/session_impl.h"

/* The peer has broken the rules: ends the session, and says how. */
#define VIOLATION(session, format, ...)                                 \
    tow_session_go((session),                                           \
                   TOW_ERROR(TOW_INVALID_ARGUMENT,                      \
                             "%s broke the rules of sessions: " format, \
                             tow_session_peer_name(session), __VA_ARGS__))

const tow_body_t *tow_session_decode(tow_session_t *session,
                                     const tow_message_t *message)
{
    const tow_body_t *body = NULL;
    tow_arena_reset(&session->arena);
    tow_status_t status = tow_message_decode(
        message->type, message->bytes, message->size, &session->arena, &body);
    if (status != TOW_OK)
        tow_session_go(session,
                       tow_status_annotate(status, "from %s",
                                           tow_session_peer_name(session)));
    return body;
}

bool tow_session_check_received(tow_session_t *session, uint64_t received,
                                uint64_t sent)
{
    if (received >= session->acknowledged && received <= sent) return true;
    VIOLATION(session,
              "it says that it has %" PRIu64 " messages; %" PRIu64
              " were sent, and of %" PRIu64 " it said so before",
              received, sent, session->acknowledged);
    return false;
}

static void take_ack(tow_session_t *session, const tow_msg_session_ack_t *ack)
{
    const int64_t now_ns = tow_env_now_ns(session->env);
    if (!tow_session_check_received(session, ack->received, session->next))
        return;
    tow_offset_add(&session->offset,
                   &(tow_offset_sample_t){.now_ns = now_ns,
                                          .sent_ns = ack->sent_ns,
                                          .echo_ns = ack->echo_ns,
                                          .echo_age_ns = ack->echo_age_ns});
    session->echo_ns = ack->sent_ns;
    session->echo_came_ns = now_ns;
    /* Its first: our answer tells it the time at once. */
    if (ack->echo_ns == 0 && ack->sent_ns != 0) tow_session_send_ack(session);
    tow_session_forget(session, ack->received);
    tow_session_tell_writable(session);
}

/* What a peer gives as a reason is shown, but moves no cursor. */
static void take_end(tow_session_t *session, const tow_msg_session_end_t *end)
{
    char reason[TOW_REFUSE_REASON_MAX + 1];
    snprintf(reason, sizeof(reason), "%s", end->reason);
    for (char *c = reason; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    const char *name = tow_session_peer_name(session);
    tow_code_t code =
        end->code <= TOW_UNAUTHENTICATED ? (tow_code_t)end->code : TOW_UNKNOWN;
    tow_session_go(
        session,
        code == TOW_CODE_OK
            ? TOW_ERROR(TOW_CANCELLED, "%s closed the session", name)
            : TOW_ERROR(code, "%s ended the session: %s", name, reason));
}

/* -- Blobs ----------------------------------------------------------------------- */

static bool begin_blob(tow_session_t *session, const tow_msg_blob_t *part)
{
    arrival_t *arrival = &session->arrival;
    if (session->handler->blob == NULL) {
        VIOLATION(session, "it sent blob %" PRIu64 ", and none is expected",
                  part->blob);
        return false;
    }
    if (part->blob <= arrival->number) {
        VIOLATION(session, "blob %" PRIu64 " came after %" PRIu64, part->blob,
                  arrival->number);
        return false;
    }
    if (part->size > session->limits.blob_bytes_max) {
        VIOLATION(session, "a blob of %" PRIu64 " bytes; the limit is %" PRIu64,
                  part->size, session->limits.blob_bytes_max);
        return false;
    }
    *arrival =
        (arrival_t){.is_open = true, .number = part->blob, .size = part->size};
    return true;
}

/* Memory follows what came: a size alone takes nothing. */
static bool grow_blob(tow_session_t *session, uint64_t wanted)
{
    arrival_t *arrival = &session->arrival;
    if (arrival->bytes != NULL && wanted <= arrival->capacity) return true;
    uint64_t capacity = arrival->capacity == 0 ? TOW_SESSION_BLOB_BYTES_FIRST
                                               : arrival->capacity * 2;
    if (capacity > arrival->size) capacity = arrival->size;
    uint8_t *bytes = tow_realloc(arrival->bytes, capacity + (capacity == 0));
    if (bytes == NULL) {
        tow_session_go(session, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                          "no memory for a blob of %" PRIu64
                                          " bytes from %s",
                                          arrival->size,
                                          tow_session_peer_name(session)));
        return false;
    }
    arrival->bytes = bytes;
    arrival->capacity = capacity;
    return true;
}

static bool check_part(tow_session_t *session, const tow_msg_blob_t *part)
{
    const arrival_t *arrival = &session->arrival;
    if (part->blob == arrival->number && part->size == arrival->size &&
        part->offset == arrival->got &&
        part->part.len <= arrival->size - arrival->got &&
        (part->part.len > 0 || arrival->size == 0))
        return true;
    VIOLATION(session,
              "a part of %zu bytes at %" PRIu64 " of %" PRIu64
              " of blob %" PRIu64 "; due was %" PRIu64 " of %" PRIu64
              " of blob %" PRIu64,
              part->part.len, part->offset, part->size, part->blob,
              arrival->got, arrival->size, arrival->number);
    return false;
}

static void finish_blob(tow_session_t *session)
{
    arrival_t *arrival = &session->arrival;
    void *bytes = arrival->bytes;
    arrival->bytes = NULL;
    arrival->is_open = false;
    tow_arena_deinit(&session->arena); /* It held a part: too large to keep. */
    session->handler->blob(session->context, session, arrival->number, bytes,
                           arrival->size);
}

static void take_part(tow_session_t *session, const tow_msg_blob_t *part)
{
    arrival_t *arrival = &session->arrival;
    if (!arrival->is_open && !begin_blob(session, part)) return;
    if (!check_part(session, part)) return;
    if (!grow_blob(session, arrival->got + part->part.len)) return;
    if (part->part.len > 0)
        memcpy(arrival->bytes + arrival->got, part->part.data, part->part.len);
    arrival->got += part->part.len;
    session->received++;
    session->unacknowledged_count++;
    session->unacknowledged_bytes += part->part.len;
    if (arrival->got == arrival->size) finish_blob(session);
}

/* -- All of them ------------------------------------------------------------------- */

static void acknowledge_if_due(tow_session_t *session)
{
    if (TOW_LIKELY(session->unacknowledged_count < TOW_SESSION_ACK_COUNT &&
                   session->unacknowledged_bytes < TOW_SESSION_ACK_BYTES))
        return;
    if (session->is_ready) tow_session_send_ack(session);
}

static void take_own(tow_session_t *session, const tow_message_t *message)
{
    if (message->type < TOW_MESSAGE_SESSION_RESUME ||
        message->type > TOW_MESSAGE_BLOB) {
        VIOLATION(session, "a message of type %u, which is none of a session's",
                  message->type);
        return;
    }
    const tow_body_t *body = tow_session_decode(session, message);
    if (body == NULL) return;
    switch (message->type) {
    case TOW_MESSAGE_SESSION_ACK:
        take_ack(session, (const tow_msg_session_ack_t *)body);
        break;
    case TOW_MESSAGE_BLOB:
        take_part(session, (const tow_msg_blob_t *)body);
        acknowledge_if_due(session);
        break;
    case TOW_MESSAGE_SESSION_END:
        take_end(session, (const tow_msg_session_end_t *)body);
        break;
    default: VIOLATION(session, "it resumed %s", "twice in one epoch"); break;
    }
}

void tow_session_take(tow_session_t *session, const tow_message_t *message)
{
    if (TOW_UNLIKELY(message->type < TOW_MESSAGE_SESSION_FIRST ||
                     session_owns_type(message->type))) {
        take_own(session, message);
        return;
    }
    if (TOW_UNLIKELY(session->arrival.is_open)) {
        VIOLATION(session, "a message in the middle of blob %" PRIu64,
                  session->arrival.number);
        return;
    }
    session->received++;
    session->unacknowledged_count++;
    session->unacknowledged_bytes += message->size;
    session->handler->message(session->context, session, message);
    acknowledge_if_due(session);
}
