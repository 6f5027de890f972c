/* Creation and end of sessions, and the functions that their owner calls. */
#include "session/session_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- Allocation ------------------------------------------------------------ */

static tow_session_limits_t fill_limits(const tow_session_limits_t *limits)
{
    tow_session_limits_t filled = *limits;
    if (filled.lease_ns == 0) filled.lease_ns = TOW_SESSION_LEASE_NS;
    if (filled.retransmit_bytes_max == 0)
        filled.retransmit_bytes_max = TOW_SESSION_RETRANSMIT_BYTES_MAX;
    if (filled.blob_bytes_max == 0)
        filled.blob_bytes_max = TOW_SESSION_BLOB_BYTES_MAX;
    return filled;
}

tow_session_t *tow_session_create(tow_env_t *env,
                                  const tow_session_limits_t *limits)
{
    tow_session_t *session = tow_calloc(1, sizeof(*session));
    if (session == NULL) return NULL;
    session->env = env;
    session->limits = fill_limits(limits);
    session->heard_ns = session->attempted_ns = tow_env_now_ns(env);
    session->timer.fire = tow_session_on_timer;
    session->soon.fire = tow_session_on_soon;
    tow_list_init(&session->by_port);
    tow_arena_init(&session->arena, TOW_SESSION_ARENA_BYTES_MAX);
    return session;
}

/* Frees the memory that a session does not need after its end. */
static void free_contents(tow_session_t *session)
{
    tow_session_discard_unacknowledged(session);
    tow_ring_deinit(&session->ring);
    tow_free(session->incoming.bytes);
    session->incoming.bytes = NULL;
    tow_arena_deinit(&session->arena);
}

static void destroy(tow_session_t *session)
{
    TOW_ASSERT(session->depth == 0);
    free_contents(session);
    tow_status_release(session->down_cause);
    tow_status_release(session->pending_failure);
    tow_free(session->address);
    tow_free(session->expected_name);
    tow_free(session);
}

void tow_session_leave(tow_session_t *session)
{
    TOW_ASSERT(session->depth > 0);
    session->depth--;
    if (session->depth == 0 && session->state == SESSION_CLOSED &&
        session->closed.run == NULL)
        destroy(session);
}

void tow_session_discard(tow_session_t *session)
{
    if (session == NULL) return;
    tow_session_unlist(session);
    session->depth = 0; /* The process died inside a callback. */
    destroy(session);
}

/* -- Ending a session ------------------------------------------------------ */

const char *tow_session_peer_name(const tow_session_t *session)
{
    if (session->peer.name[0] != '\0') return session->peer.name;
    if (session->link != NULL && session->link->peer.name[0] != '\0')
        return session->link->peer.name;
    return session->address != NULL ? session->address : "?";
}

void tow_session_send_end(tow_link_t *link, tow_status_t reason)
{
    char text[TOW_REFUSE_REASON_MAX + 1];
    tow_msg_session_end_t end = TOW_MSG_SESSION_END_INIT;
    snprintf(text, sizeof(text), "%s", tow_status_message(reason));
    end.code = tow_status_code(reason);
    end.reason = text;
    uint8_t *room = NULL;
    uint32_t size = (uint32_t)tow_message_size(&end.base);
    /* If the link is down or full the peer finds out later: its resume is
     * refused because the session is unknown, or its lease expires. */
    if (tow_link_begin(link, size, &room) != TOW_SEND_OK) return;
    tow_message_encode(&end.base, room);
    tow_link_commit(link, TOW_MESSAGE_SESSION_END, size);
}

/* Stops messages, timers and epochs; the caller closes the link. */
static void stop(tow_session_t *session, session_state_t state)
{
    session->state = state;
    session->is_ready = false;
    session->is_opened_due = false;
    tow_env_timer_stop(session->env, &session->timer);
    tow_env_timer_stop(session->env, &session->soon);
    tow_session_unlist(session);
}

void tow_session_fail(tow_session_t *session, tow_status_t take_cause)
{
    if (!session_is_live(session)) {
        tow_status_release(take_cause);
        return;
    }
    tow_session_enter(session);
    stop(session, SESSION_DISCONNECTED);
    if (session->link != NULL) {
        tow_session_send_end(session->link, take_cause);
        tow_link_close(session->link, (tow_closed_t){0});
        session->link = NULL;
    }
    free_contents(session);
    if (session->state == SESSION_DISCONNECTED)
        session->handler->disconnected(session->context, session, take_cause);
    tow_status_release(take_cause);
    tow_session_check(session);
    tow_session_leave(session);
}

void tow_session_fail_soon(tow_session_t *session, tow_status_t take_cause)
{
    if (session->pending_failure != TOW_OK || !session_is_live(session)) {
        tow_status_release(take_cause);
        return;
    }
    session->pending_failure = take_cause;
    tow_env_timer_start(session->env, &session->soon,
                        tow_env_now_ns(session->env));
}

static void notify_closed(tow_session_t *session)
{
    const tow_closed_t closed = session->closed;
    destroy(session);
    closed.run(closed.context);
}

static void on_link_closed(void *context)
{
    notify_closed(context);
}

static void on_post(tow_post_t *post)
{
    notify_closed(TOW_CONTAINER_OF(post, tow_session_t, post));
}

void tow_session_close(tow_session_t *session, tow_status_t reason,
                       tow_closed_t closed)
{
    TOW_ASSERT(session->state != SESSION_CLOSED);
    tow_session_enter(session);
    stop(session, SESSION_CLOSED);
    session->closed = closed;
    tow_link_t *link = session->link;
    session->link = NULL;
    if (link != NULL) {
        tow_closed_t link_closed = {0};
        if (closed.run != NULL)
            link_closed = (tow_closed_t){on_link_closed, session};
        tow_session_send_end(link, reason);
        tow_link_close(link, link_closed);
    } else if (closed.run != NULL) {
        session->post.run = on_post;
        tow_env_post(session->env, &session->post);
    }
    free_contents(session);
    tow_session_check(session);
    tow_session_leave(session);
}

/* -- Dialling and accepting ------------------------------------------------ */

static tow_status_t copy_texts(tow_session_t *session,
                               const tow_session_dial_options_t *options)
{
    session->address = tow_strdup(options->address);
    if (session->address == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    session->is_announced = options->is_announced;
    if (options->expected_name == NULL) return TOW_OK;
    session->expected_name = tow_strdup(options->expected_name);
    if (session->expected_name == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

tow_status_t tow_session_dial(tow_env_t *env,
                              const tow_session_dial_options_t *options,
                              tow_session_t **out_session)
{
    TOW_ASSERT(options->handler != NULL && options->address != NULL);
    *out_session = NULL;
    tow_session_t *session = tow_session_create(env, &options->limits);
    if (session == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    session->handler = options->handler;
    session->context = options->context;
    session->id = tow_random_next(tow_env_random(env));
    session->connect_timeout_ns = options->connect_timeout_ns != 0
                                      ? options->connect_timeout_ns
                                      : session->limits.lease_ns;
    session->connect_deadline_ns =
        tow_env_now_ns(env) + session->connect_timeout_ns;
    tow_status_t status = copy_texts(session, options);
    if (status == TOW_OK) status = tow_session_connect(session);
    if (status != TOW_OK) {
        destroy(session);
        return tow_status_annotate(status, "dialling a session");
    }
    tow_session_schedule(session);
    *out_session = session;
    return TOW_OK;
}

void tow_session_accept(tow_session_t *session,
                        const tow_session_handler_t *handler, void *context)
{
    TOW_ASSERT(handler != NULL);
    TOW_ASSERT(handler->message != NULL && handler->disconnected != NULL);
    session->handler = handler;
    session->context = context;
}

/* -- Queries ---------------------------------------------------------- */

const tow_peer_t *tow_session_peer(const tow_session_t *session)
{
    return &session->peer;
}

bool tow_session_is_open(const tow_session_t *session)
{
    return session->state == SESSION_OPEN;
}

bool tow_session_is_connected(const tow_session_t *session)
{
    return session->is_ready;
}

bool tow_session_clock_offset(const tow_session_t *session, int64_t *out_ns,
                              int64_t *out_error_ns)
{
    *out_ns = session->offset.offset_ns;
    *out_error_ns = tow_clock_offset_error_ns(&session->offset,
                                              tow_env_now_ns(session->env));
    return session->offset.is_known;
}

tow_session_stats_t tow_session_stats(const tow_session_t *session)
{
    return (tow_session_stats_t){
        .messages_sent = session->sent,
        .messages_received = session->received,
        .messages_sent_again = session->sent_again_count,
        .epochs = session->epoch_count,
        .retransmit_bytes = session->ring.used,
    };
}
