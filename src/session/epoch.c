/* Links come and go; the session stays, until it has heard nothing for too
 * long. */
#include <string.h>

#include "base/assert.h"
#include "session/session_impl.h"

static const tow_link_handler_t link_handler;

static bool dials(const tow_session_t *session)
{
    return session->address != NULL;
}

/* -- Time ------------------------------------------------------------------------ */

static int64_t later(int64_t a_ns, int64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

static int64_t sooner(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

static bool is_unanswered(const tow_session_t *session)
{
    return dials(session) && session->state == SESSION_NEW;
}

/* When it ends unless something is heard before. */
static int64_t end_ns(const tow_session_t *session)
{
    if (is_unanswered(session)) return session->patience_end_ns;
    return session->heard_ns + session->limits.lease_ns;
}

/* When the dialler gives up this link for a new one: after some silence, and
 * then again and again, for a link that is dialled into a cut does not come up
 * when that heals. Where nobody has answered yet, the env's own delays are kept
 * to: they grow. */
static int64_t stall_ns(const tow_session_t *session)
{
    const int64_t lease_ns = session->limits.lease_ns;
    if (!dials(session)) return TOW_TIME_NEVER;
    if (is_unanswered(session) && session->link->state != TOW_LINK_UP)
        return TOW_TIME_NEVER;
    return later(session->heard_ns + lease_ns / TOW_SESSION_STALLS_PER_LEASE,
                 session->tried_ns + lease_ns / TOW_SESSION_TRIES_PER_LEASE);
}

void tow_session_schedule(tow_session_t *session)
{
    int64_t next_ns = sooner(end_ns(session), stall_ns(session));
    if (session->is_ready) next_ns = sooner(next_ns, session->beat_ns);
    tow_env_timer_start(session->env, &session->timer, next_ns);
}

static void beat(tow_session_t *session, int64_t now_ns)
{
    tow_session_send_ack(session);
    tow_ring_trim(&session->ring, TOW_SESSION_RING_BYTES_KEEP);
    session->beat_ns =
        now_ns + session->limits.lease_ns / TOW_SESSION_BEATS_PER_LEASE;
}

static tow_status_t describe_silence(const tow_session_t *session)
{
    const char *last = tow_status_message(session->down_cause);
    if (is_unanswered(session))
        return TOW_ERROR(
            TOW_UNAVAILABLE, "no session with %s after %lld ms: %s",
            session->address, (long long)(session->patience_ns / TOW_NS_PER_MS),
            *last != '\0' ? last : "it does not answer; is it running?");
    return TOW_ERROR(
        TOW_UNAVAILABLE,
        "nothing was heard of %s for %lld ms: it died, froze or was cut off%s%s",
        tow_session_peer_name(session),
        (long long)(session->limits.lease_ns / TOW_NS_PER_MS),
        *last != '\0' ? "; its last connection ended: " : "", last);
}

static void redial(tow_session_t *session)
{
    session->is_ready = false;
    tow_link_close(session->link, (tow_closed_t){0});
    session->link = NULL;
    tow_status_t status = tow_session_connect(session);
    if (status != TOW_OK)
        tow_session_go(session,
                       tow_status_annotate(status, "dialling %s again",
                                           tow_session_peer_name(session)));
}

/* The timer is late: this process was frozen or busy, and what the peer said
 * meanwhile is not read yet. Once, the silence is taken for our own. */
static bool is_own_silence(tow_session_t *session, int64_t now_ns)
{
    bool is_late = now_ns - session->timer.deadline_ns > TOW_SESSION_LATE_NS;
    session->is_late = is_late && !session->is_late;
    return session->is_late;
}

void tow_session_on_timer(tow_timer_t *timer)
{
    tow_session_t *session = TOW_CONTAINER_OF(timer, tow_session_t, timer);
    const int64_t now_ns = tow_env_now_ns(session->env);
    const bool is_late = is_own_silence(session, now_ns);
    tow_session_enter(session);
    if (!is_late && now_ns >= end_ns(session))
        tow_session_go(session, describe_silence(session));
    else if (!is_late && now_ns >= stall_ns(session))
        redial(session);
    else if (session->is_ready && now_ns >= session->beat_ns)
        beat(session, now_ns);
    if (is_late)
        tow_env_timer_start(session->env, timer, now_ns + TOW_SESSION_LATE_NS);
    else if (session_is_live(session))
        tow_session_schedule(session);
    tow_session_leave(session);
}

/* -- The beginning of an epoch ------------------------------------------------------ */

static void tell_opened(tow_session_t *session)
{
    session->is_opened_due = false;
    session->state = SESSION_OPEN;
    if (session->handler->opened != NULL)
        session->handler->opened(session->context, session);
}

void tow_session_on_soon(tow_timer_t *timer)
{
    tow_session_t *session = TOW_CONTAINER_OF(timer, tow_session_t, soon);
    tow_session_enter(session);
    if (session->doom != TOW_OK) {
        tow_status_t doom = session->doom;
        session->doom = TOW_OK;
        tow_session_go(session, doom);
    } else if (session->is_opened_due) {
        tell_opened(session);
    }
    tow_session_leave(session);
}

static void send_resume(tow_session_t *session)
{
    tow_msg_session_resume_t resume = TOW_MSG_SESSION_RESUME_INIT;
    uint8_t *room = NULL;
    resume.session = session->id;
    resume.received = session->received;
    resume.opened = session->state == SESSION_OPEN;
    uint32_t size = (uint32_t)tow_message_size(&resume.base);
    /* The first message of an epoch: only a link that is about to break has no
     * room, and it will say so. */
    if (tow_link_begin(session->link, size, &room) != TOW_SEND_OK) return;
    tow_message_encode(&resume.base, room);
    tow_link_commit(session->link, TOW_MESSAGE_SESSION_RESUME, size);
}

/* Both know what the other has. The owner hears of it before any message. */
static void begin_epoch(tow_session_t *session, uint64_t received)
{
    session->peer = *tow_link_peer(session->link);
    session->is_ready = true;
    session->epoch_count++;
    tow_session_forget(session, received);
    if (!session->is_ready) return;
    tow_session_rewind(session);
    beat(session, tow_env_now_ns(session->env));
    tow_session_schedule(session);
    if (is_unanswered(session)) tell_opened(session);
    tow_session_pump(session);
    tow_session_tell_writable(session);
}

static void take_resume(tow_session_t *session, const tow_message_t *message)
{
    const tow_body_t *body = tow_session_decode(session, message);
    if (body == NULL) return;
    const tow_msg_session_resume_t *resume =
        (const tow_msg_session_resume_t *)body;
    if (resume->session != session->id) {
        tow_session_go(session,
                       TOW_ERROR(TOW_INVALID_ARGUMENT,
                                 "%s broke the rules of sessions: it resumed "
                                 "another one",
                                 tow_session_peer_name(session)));
        return;
    }
    const uint64_t received = resume->received;
    if (tow_session_check_received(session, received, session->sent))
        begin_epoch(session, received);
}

void tow_session_answer(tow_session_t *session, uint64_t received)
{
    tow_session_enter(session);
    session->heard_ns = tow_env_now_ns(session->env);
    if (tow_session_check_received(session, received, session->sent)) {
        send_resume(session);
        if (session->state == SESSION_NEW) {
            session->is_opened_due = true;
            tow_env_timer_start(session->env, &session->soon,
                                session->heard_ns);
        }
        begin_epoch(session, received);
    }
    tow_session_leave(session);
}

/* -- The link's callbacks ---------------------------------------------------------------- */

static bool is_same_peer(const tow_session_t *session, const tow_peer_t *peer)
{
    return session->peer.incarnation == peer->incarnation &&
           strcmp(session->peer.name, peer->name) == 0;
}

/* Of the dialler alone: an accepted link is up before it is ours. */
static void on_up(void *context, tow_link_t *link)
{
    tow_session_t *session = context;
    TOW_ASSERT(session->link == link);
    tow_session_enter(session);
    session->tried_ns = tow_env_now_ns(session->env);
    if (session->state == SESSION_NEW || is_same_peer(session, &link->peer)) {
        send_resume(session);
        tow_session_schedule(session);
    } else {
        tow_session_go(session,
                       TOW_ERROR(TOW_ABORTED,
                                 "%s restarted: what answers at %s is %s in "
                                 "another life",
                                 session->peer.name, session->address,
                                 link->peer.name));
    }
    tow_session_leave(session);
}

static TOW_COLD void take_before_resume(tow_session_t *session,
                                        const tow_message_t *message)
{
    if (message->type == TOW_MESSAGE_SESSION_RESUME)
        take_resume(session, message);
    else if (message->type == TOW_MESSAGE_SESSION_END)
        tow_session_take(session, message);
    else
        tow_session_go(
            session, TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "%s broke the rules of sessions: a message of "
                               "type %u before it resumed",
                               tow_session_peer_name(session), message->type));
}

static void on_message(void *context, tow_link_t *link,
                       const tow_message_t *message)
{
    tow_session_t *session = context;
    tow_session_enter(session);
    session->heard_ns = tow_env_now_ns(session->env);
    if (TOW_UNLIKELY(session->is_opened_due)) tell_opened(session);
    if (TOW_LIKELY(session->is_ready))
        tow_session_take(session, message);
    else if (session->link == link)
        take_before_resume(session, message);
    tow_session_leave(session);
}

static void on_writable(void *context, tow_link_t *link)
{
    (void)link;
    tow_session_t *session = context;
    if (session->is_ready && session->owes_ack) tow_session_send_ack(session);
    tow_session_pump(session);
}

/* Whoever answers there has another token than we, speaks another version or
 * another protocol, and will the next time too: no patience helps. */
static bool is_for_good(tow_status_t cause)
{
    switch (tow_status_code(cause)) {
    case TOW_UNAUTHENTICATED:
    case TOW_FAILED_PRECONDITION:
    case TOW_INVALID_ARGUMENT: return true;
    default: return false;
    }
}

static void give_up_if_refused(tow_session_t *session, tow_status_t cause)
{
    if (!is_unanswered(session) || !is_for_good(cause)) return;
    tow_session_go_soon(session, tow_status_annotate(tow_status_retain(cause),
                                                     "no session with %s",
                                                     session->address));
}

static void give_up_if_dead(tow_session_t *session, const tow_link_t *link,
                            tow_status_t cause)
{
    if (!link->peer.is_dead) return;
    tow_session_go_soon(session, TOW_ERROR(TOW_UNAVAILABLE,
                                           "%s died: its process has ended: %s",
                                           tow_session_peer_name(session),
                                           tow_status_message(cause)));
}

static void on_down(void *context, tow_link_t *link, tow_status_t cause)
{
    tow_session_t *session = context;
    session->is_ready = false;
    session->tried_ns = tow_env_now_ns(session->env);
    tow_status_release(session->down_cause);
    session->down_cause = tow_status_retain(cause);
    give_up_if_dead(session, link, cause);
    if (dials(session)) { /* The env dials again. */
        give_up_if_refused(session, cause);
        return;
    }
    session->link = NULL;
    tow_link_close(link, (tow_closed_t){0});
}

static const tow_link_handler_t link_handler = {
    .up = on_up,
    .message = on_message,
    .writable = on_writable,
    .down = on_down,
};

tow_status_t tow_session_connect(tow_session_t *session)
{
    session->tried_ns = tow_env_now_ns(session->env);
    return tow_env_connect(
        session->env,
        &(tow_connect_options_t){.address = session->address,
                                 .expected_name = session->expected_name,
                                 .handler = &link_handler,
                                 .context = session},
        &session->link);
}

void tow_session_adopt(tow_session_t *session, tow_link_t *link)
{
    if (session->link != NULL) tow_link_close(session->link, (tow_closed_t){0});
    session->is_ready = false;
    session->link = link;
    session->peer = *tow_link_peer(link);
    link->handler = &link_handler;
    link->context = session;
}
