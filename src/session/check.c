#include "base/assert.h"
#include "session/session_impl.h"

static void check_sending(const tow_session_t *session)
{
    TOW_ASSERT(session->acknowledged <= session->next);
    TOW_ASSERT(session->next <= session->sent);
    tow_ring_check(&session->ring);
    if (session->ring.count == 0)
        TOW_ASSERT(session->parts_acknowledged == 0 &&
                   session->parts_sent == 0);
}

static void check_receiving(const tow_session_t *session)
{
    const incoming_blob_t *incoming = &session->incoming;
    TOW_ASSERT(session->unacknowledged_count <= session->received);
    TOW_ASSERT(incoming->is_open || incoming->bytes == NULL);
    if (incoming->is_open)
        TOW_ASSERT(incoming->got <= incoming->size &&
                   incoming->capacity <= incoming->size);
}

void tow_session_check(const tow_session_t *session)
{
    const bool is_live = session_is_live(session);
    /* Only a live session has an epoch, records and a place in its port. */
    TOW_ASSERT(!session->is_ready || (is_live && session->link != NULL));
    TOW_ASSERT(is_live || session->link == NULL);
    TOW_ASSERT(is_live || session->port == NULL);
    TOW_ASSERT(is_live || session->ring.count == 0);
    TOW_ASSERT(!session->is_opened_due || session->state == SESSION_NEW);
    /* A session is dialled or accepted. */
    TOW_ASSERT(session->address == NULL || session->port == NULL);
    if (!is_live) return;
    check_sending(session);
    check_receiving(session);
}
