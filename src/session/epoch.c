/* The epochs of a session: dialling, resuming and redialling links, heartbeats,
 * and the lease. */
#include <string.h>

#include "base/assert.h"
#include "session/session_impl.h"

static const tow_link_handler_t link_handler;

static bool dials(const tow_session_t *session)
{
    return session->address != NULL;
}

/* -- Timers ---------------------------------------------------------------- */

static int64_t later(int64_t a_ns, int64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

static int64_t sooner(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

static bool is_connecting(const tow_session_t *session)
{
    return dials(session) && session->state == SESSION_NEW;
}

/* The lease expires at this time unless a message is received. */
static int64_t expiry_ns(const tow_session_t *session)
{
    if (is_connecting(session)) return session->connect_deadline_ns;
    return session->heard_ns + session->limits.lease_ns;
}

/* The dialler replaces this link by a new one at this time: after some silence,
 * and then repeatedly, because a link dialled during a network partition does
 * not come up when that heals. Before the first answer, the env's own growing
 * delays apply. */
static int64_t redial_ns(const tow_session_t *session)
{
    const int64_t lease_ns = session->limits.lease_ns;
    if (!dials(session)) return TOW_TIME_NEVER;
    if (is_connecting(session) && session->link->state != TOW_LINK_UP)
        return TOW_TIME_NEVER;
    return later(session->heard_ns + lease_ns / TOW_SESSION_STALLS_PER_LEASE,
                 session->attempted_ns +
                     lease_ns / TOW_SESSION_REDIALS_PER_LEASE);
}

void tow_session_schedule(tow_session_t *session)
{
    int64_t next_ns = sooner(expiry_ns(session), redial_ns(session));
    if (session->is_ready) next_ns = sooner(next_ns, session->heartbeat_ns);
    tow_env_timer_start(session->env, &session->timer, next_ns);
}

static void send_heartbeat(tow_session_t *session, int64_t now_ns)
{
    tow_session_send_ack(session);
    tow_ring_trim(&session->ring, TOW_SESSION_RING_BYTES_KEEP);
    session->heartbeat_ns =
        now_ns + session->limits.lease_ns / TOW_SESSION_HEARTBEATS_PER_LEASE;
}

static tow_status_t silence_error(const tow_session_t *session)
{
    const char *last = tow_status_message(session->down_cause);
    if (is_connecting(session))
        return TOW_ERROR(
            TOW_UNAVAILABLE, "no session with %s after %lld ms: %s",
            session->address,
            (long long)(session->connect_timeout_ns / TOW_NS_PER_MS),
            *last != '\0' ? last : "it does not answer; is it running?");
    return TOW_ERROR(
        TOW_UNAVAILABLE,
        "%s was silent for %lld ms: it died, hangs or is unreachable%s%s",
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
        tow_session_fail(session,
                         tow_status_annotate(status, "dialling %s again",
                                             tow_session_peer_name(session)));
}

/* A late timer means that this process was suspended or busy, and that messages
 * of the peer may be unread. True once: read them before the lease is
 * judged. */
static bool was_blocked(tow_session_t *session, int64_t now_ns)
{
    bool timer_was_late =
        now_ns - session->timer.deadline_ns > TOW_SESSION_LATE_NS;
    session->timer_was_late = timer_was_late && !session->timer_was_late;
    return session->timer_was_late;
}

void tow_session_on_timer(tow_timer_t *timer)
{
    tow_session_t *session = TOW_CONTAINER_OF(timer, tow_session_t, timer);
    const int64_t now_ns = tow_env_now_ns(session->env);
    const bool timer_was_late = was_blocked(session, now_ns);
    tow_session_enter(session);
    if (!timer_was_late && now_ns >= expiry_ns(session))
        tow_session_fail(session, silence_error(session));
    else if (!timer_was_late && now_ns >= redial_ns(session))
        redial(session);
    else if (session->is_ready && now_ns >= session->heartbeat_ns)
        send_heartbeat(session, now_ns);
    if (timer_was_late)
        tow_env_timer_start(session->env, timer, now_ns + TOW_SESSION_LATE_NS);
    else if (session_is_live(session))
        tow_session_schedule(session);
    tow_session_check(session);
    tow_session_leave(session);
}

/* -- Starting an epoch ----------------------------------------------------- */

static void notify_opened(tow_session_t *session)
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
    if (session->pending_failure != TOW_OK) {
        tow_status_t pending_failure = session->pending_failure;
        session->pending_failure = TOW_OK;
        tow_session_fail(session, pending_failure);
    } else if (session->is_opened_due) {
        notify_opened(session);
    }
    tow_session_check(session);
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
    /* The first message of an epoch: only a link that is about to go down has
     * no room for it. */
    if (tow_link_begin(session->link, size, &room) != TOW_SEND_OK) return;
    tow_message_encode(&resume.base, room);
    tow_link_commit(session->link, TOW_MESSAGE_SESSION_RESUME, size);
}

/* Both sides have resumed. `opened` runs before any message. */
static void begin_epoch(tow_session_t *session, uint64_t received)
{
    session->peer = *tow_link_peer(session->link);
    session->is_ready = true;
    session->epoch_count++;
    tow_session_discard_acknowledged(session, received);
    if (!session->is_ready) return;
    tow_session_rewind(session);
    send_heartbeat(session, tow_env_now_ns(session->env));
    tow_session_schedule(session);
    if (is_connecting(session)) notify_opened(session);
    tow_session_pump(session);
    tow_session_notify_writable(session);
}

static void receive_resume(tow_session_t *session, const tow_message_t *message)
{
    const tow_body_t *body = tow_session_decode(session, message);
    if (body == NULL) return;
    const tow_msg_session_resume_t *resume =
        (const tow_msg_session_resume_t *)body;
    if (resume->session != session->id) {
        tow_session_fail(
            session, TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "%s violated the session protocol: it resumed "
                               "another session",
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
    tow_session_check(session);
    tow_session_leave(session);
}

/* -- Callbacks of the link ------------------------------------------------- */

static bool is_same_peer(const tow_session_t *session, const tow_peer_t *peer)
{
    return session->peer.incarnation == peer->incarnation &&
           strcmp(session->peer.name, peer->name) == 0;
}

/* For diallers only: an accepted link is up before it is attached. */
static void on_up(void *context, tow_link_t *link)
{
    tow_session_t *session = context;
    TOW_ASSERT(session->link == link);
    tow_session_enter(session);
    session->attempted_ns = tow_env_now_ns(session->env);
    if (session->state == SESSION_NEW || is_same_peer(session, &link->peer)) {
        send_resume(session);
        tow_session_schedule(session);
    } else {
        tow_session_fail(
            session,
            TOW_ERROR(TOW_ABORTED,
                      "%s restarted: the process at %s is %s with another "
                      "incarnation",
                      session->peer.name, session->address, link->peer.name));
    }
    tow_session_check(session);
    tow_session_leave(session);
}

static TOW_COLD void receive_before_resume(tow_session_t *session,
                                           const tow_message_t *message)
{
    if (message->type == TOW_MESSAGE_SESSION_RESUME)
        receive_resume(session, message);
    else if (message->type == TOW_MESSAGE_SESSION_END)
        tow_session_receive(session, message);
    else
        tow_session_fail(
            session, TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "%s violated the session protocol: a message of "
                               "type %u before SessionResume",
                               tow_session_peer_name(session), message->type));
}

static void on_message(void *context, tow_link_t *link,
                       const tow_message_t *message)
{
    tow_session_t *session = context;
    tow_session_enter(session);
    session->heard_ns = tow_env_now_ns(session->env);
    if (TOW_UNLIKELY(session->is_opened_due)) notify_opened(session);
    if (TOW_LIKELY(session->is_ready))
        tow_session_receive(session, message);
    else if (session->link == link)
        receive_before_resume(session, message);
    tow_session_leave(session);
}

static void on_writable(void *context, tow_link_t *link)
{
    (void)link;
    tow_session_t *session = context;
    if (session->is_ready && session->ack_is_due) tow_session_send_ack(session);
    tow_session_pump(session);
}

/* The process at the address has another token, version or protocol: redialling
 * does not help. */
static bool is_permanent(tow_status_t cause)
{
    switch (tow_status_code(cause)) {
    case TOW_UNAUTHENTICATED:
    case TOW_FAILED_PRECONDITION:
    case TOW_INVALID_ARGUMENT: return true;
    default: return false;
    }
}

static void fail_if_refused(tow_session_t *session, tow_status_t cause)
{
    if (!is_connecting(session) || !is_permanent(cause)) return;
    tow_session_fail_soon(session, tow_status_annotate(tow_status_retain(cause),
                                                       "no session with %s",
                                                       session->address));
}

static void fail_if_dead(tow_session_t *session, const tow_link_t *link,
                         tow_status_t cause)
{
    if (!link->peer.is_dead) return;
    tow_session_fail_soon(
        session,
        TOW_ERROR(TOW_UNAVAILABLE, "%s died: its process has ended: %s",
                  tow_session_peer_name(session), tow_status_message(cause)));
}

static void on_down(void *context, tow_link_t *link, tow_status_t cause)
{
    tow_session_t *session = context;
    session->is_ready = false;
    session->attempted_ns = tow_env_now_ns(session->env);
    tow_status_release(session->down_cause);
    session->down_cause = tow_status_retain(cause);
    fail_if_dead(session, link, cause);
    if (dials(session)) { /* The env redials. */
        fail_if_refused(session, cause);
        return;
    }
    session->link = NULL;
    tow_link_close(link, (tow_closed_t){0});
    tow_session_check(session);
}

static const tow_link_handler_t link_handler = {
    .up = on_up,
    .message = on_message,
    .writable = on_writable,
    .down = on_down,
};

tow_status_t tow_session_connect(tow_session_t *session)
{
    session->attempted_ns = tow_env_now_ns(session->env);
    return tow_env_connect(
        session->env,
        &(tow_connect_options_t){.address = session->address,
                                 .expected_name = session->expected_name,
                                 .is_announced = session->is_announced,
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
