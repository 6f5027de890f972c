/* The listening side: links arrive, say which session they are for, and are
 * given to it. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "session/session_impl.h"

struct tow_session_port {
    tow_env_t *env;
    tow_listener_t *listener; /* ours to close */
    tow_session_limits_t limits;
    uint32_t session_count_max;
    void (*arrived)(void *context, tow_session_t *session);
    void *context;        /* lent */
    tow_map_t by_id;      /* lent sessions that live */
    tow_list_t sessions;  /* the same, in order of arrival */
    tow_list_t greetings; /* owned, in order of arrival */
    uint32_t greeting_count;
    tow_timer_t timer; /* for the oldest greeting */
    tow_arena_t arena;
    uint32_t depth;
    bool is_closed;
};

/* A link that has not said which session it is for. */
typedef struct greeting {
    tow_list_t list;
    tow_session_port_t *port; /* lent */
    tow_link_t *link;         /* ours to close */
    int64_t deadline_ns;
} greeting_t;

/* -- Memory --------------------------------------------------------------------- */

static void greeting_free(greeting_t *greeting)
{
    greeting->port->greeting_count--;
    tow_list_remove(&greeting->list);
    tow_free(greeting);
}

static greeting_t *oldest_greeting(tow_session_port_t *port)
{
    if (tow_list_is_empty(&port->greetings)) return NULL;
    return TOW_CONTAINER_OF(port->greetings.next, greeting_t, list);
}

static void destroy(tow_session_port_t *port)
{
    while (!tow_list_is_empty(&port->greetings))
        greeting_free(oldest_greeting(port));
    while (!tow_list_is_empty(&port->sessions)) {
        tow_session_t *session =
            TOW_CONTAINER_OF(port->sessions.next, tow_session_t, by_port);
        tow_session_unlist(session);
    }
    tow_map_deinit(&port->by_id);
    tow_arena_deinit(&port->arena);
    tow_free(port);
}

static void enter(tow_session_port_t *port)
{
    port->depth++;
}

static void leave(tow_session_port_t *port)
{
    port->depth--;
    if (port->depth == 0 && port->is_closed) destroy(port);
}

void tow_session_unlist(tow_session_t *session)
{
    if (session->port == NULL) return;
    tow_map_remove(&session->port->by_id, session->id);
    tow_list_remove(&session->by_port);
    session->port = NULL;
}

/* -- Refusing --------------------------------------------------------------------- */

/* Closes the link. Whoever greets too late may be an honest peer that was frozen:
 * it dials again, and its session lives. */
static void turn_away(greeting_t *greeting, tow_status_t take_reason)
{
    tow_log(&greeting->port->env->log, TOW_LOG_WARN, "session refused",
            TOW_F_STR("peer", greeting->link->peer.name),
            TOW_F_STATUS("reason", take_reason));
    tow_link_close(greeting->link, (tow_closed_t){0});
    greeting_free(greeting);
    tow_status_release(take_reason);
}

/* The same for one whose session there is not, or shall not be. */
static void refuse(greeting_t *greeting, tow_status_t take_reason)
{
    tow_session_send_end(greeting->link, take_reason);
    turn_away(greeting, take_reason);
}

static void watch_oldest(tow_session_port_t *port)
{
    greeting_t *oldest = oldest_greeting(port);
    if (oldest != NULL)
        tow_env_timer_start(port->env, &port->timer, oldest->deadline_ns);
}

static void on_timer(tow_timer_t *timer)
{
    tow_session_port_t *port =
        TOW_CONTAINER_OF(timer, tow_session_port_t, timer);
    greeting_t *oldest = oldest_greeting(port);
    while (oldest != NULL && oldest->deadline_ns <= tow_env_now_ns(port->env)) {
        turn_away(oldest, TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                                    "%s did not say which session it is for",
                                    oldest->link->peer.name));
        oldest = oldest_greeting(port);
    }
    watch_oldest(port);
}

/* -- Letting in --------------------------------------------------------------------- */

/* Older sessions of that name belong to a process that is no more. Costs a look
 * at every session; new ones are rare. The owner may close any of them in
 * `gone`, so each search begins anew. */
static tow_session_t *find_former_life(tow_session_port_t *port,
                                       const tow_peer_t *peer)
{
    for (tow_list_t *item = port->sessions.next; item != &port->sessions;
         item = item->next) {
        tow_session_t *session = TOW_CONTAINER_OF(item, tow_session_t, by_port);
        if (session->peer.incarnation != peer->incarnation &&
            strcmp(session->peer.name, peer->name) == 0)
            return session;
    }
    return NULL;
}

static void end_former_lives(tow_session_port_t *port, const tow_peer_t *peer)
{
    tow_session_t *former;
    while ((former = find_former_life(port, peer)) != NULL)
        tow_session_go(former,
                       TOW_ERROR(TOW_ABORTED,
                                 "%s restarted: its incarnation was %016" PRIx64
                                 " and is %016" PRIx64,
                                 peer->name, former->peer.incarnation,
                                 peer->incarnation));
}

static tow_session_t *create_session(tow_session_port_t *port, uint64_t id)
{
    tow_session_t *session = tow_session_create(port->env, &port->limits);
    if (session == NULL) return NULL;
    session->id = id;
    if (!tow_map_put(&port->by_id, id, session)) {
        tow_session_abandon(session);
        return NULL;
    }
    session->port = port;
    tow_list_append(&port->sessions, &session->by_port);
    return session;
}

static void welcome(greeting_t *greeting, uint64_t id)
{
    tow_session_port_t *port = greeting->port;
    tow_link_t *link = greeting->link;
    end_former_lives(port, &link->peer);
    if (port->is_closed) return; /* In `gone`, by the owner: all is closed. */
    if (tow_map_count(&port->by_id) >= port->session_count_max) {
        refuse(greeting,
               TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%s has %u sessions, the most it takes; end some, or "
                         "raise its limit",
                         port->env->name, port->session_count_max));
        return;
    }
    tow_session_t *session = create_session(port, id);
    if (session == NULL) {
        refuse(greeting, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    greeting_free(greeting);
    tow_session_enter(session);
    tow_session_adopt(session, link);
    port->arrived(port->context, session);
    TOW_ASSERT(session->handler != NULL || session->state == SESSION_CLOSED);
    if (session_is_live(session)) tow_session_answer(session, 0);
    tow_session_leave(session);
}

static void resume_session(greeting_t *greeting, tow_session_t *session,
                           uint64_t received)
{
    tow_link_t *link = greeting->link;
    if (session->peer.incarnation != link->peer.incarnation ||
        strcmp(session->peer.name, link->peer.name) != 0) {
        refuse(greeting, TOW_ERROR(TOW_PERMISSION_DENIED,
                                   "%s asked for a session of somebody else",
                                   link->peer.name));
        return;
    }
    greeting_free(greeting);
    tow_session_adopt(session, link);
    tow_session_answer(session, received);
}

static void take_resume(greeting_t *greeting,
                        const tow_msg_session_resume_t *resume)
{
    tow_session_port_t *port = greeting->port;
    tow_session_t *session = tow_map_find(&port->by_id, resume->session);
    if (session != NULL)
        resume_session(greeting, session, resume->received);
    else if (resume->opened || resume->received > 0)
        refuse(greeting,
               TOW_ERROR(TOW_NOT_FOUND,
                         "%s does not know this session of %s any more: it "
                         "was ended here",
                         port->env->name, greeting->link->peer.name));
    else
        welcome(greeting, resume->session);
}

/* -- The links that greet --------------------------------------------------------------- */

static void on_up(void *context, tow_link_t *link)
{
    (void)context;
    (void)link;
}

static void on_down(void *context, tow_link_t *link, tow_status_t cause)
{
    (void)cause;
    greeting_free(context);
    tow_link_close(link, (tow_closed_t){0});
}

static void on_message(void *context, tow_link_t *link,
                       const tow_message_t *message)
{
    greeting_t *greeting = context;
    tow_session_port_t *port = greeting->port;
    const tow_body_t *body = NULL;
    tow_status_t status = TOW_OK;
    enter(port);
    tow_arena_reset(&port->arena);
    if (message->type != TOW_MESSAGE_SESSION_RESUME)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                           "%s sent a message of type %u before it said which "
                           "session it is for",
                           link->peer.name, message->type);
    else
        status = tow_message_decode(message->type, message->bytes,
                                    message->size, &port->arena, &body);
    if (status != TOW_OK)
        refuse(greeting,
               tow_status_annotate(status, "from %s", link->peer.name));
    else
        take_resume(greeting, (const tow_msg_session_resume_t *)body);
    leave(port);
}

static const tow_link_handler_t greeting_handler = {
    .up = on_up,
    .message = on_message,
    .down = on_down,
};

static void on_accept(void *context, tow_link_t *link)
{
    tow_session_port_t *port = context;
    greeting_t *greeting = tow_calloc(1, sizeof(*greeting));
    if (greeting == NULL) {
        tow_link_close(link, (tow_closed_t){0});
        return;
    }
    greeting->port = port;
    greeting->link = link;
    greeting->deadline_ns = tow_env_now_ns(port->env) + port->limits.lease_ns;
    link->handler = &greeting_handler;
    link->context = greeting;
    tow_list_append(&port->greetings, &greeting->list);
    if (++port->greeting_count > TOW_SESSION_GREETING_COUNT_MAX)
        turn_away(
            oldest_greeting(port),
            TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                      "more than %d links of %s have not said which session "
                      "they are for",
                      TOW_SESSION_GREETING_COUNT_MAX, port->env->name));
    watch_oldest(port);
}

/* -- What the owner calls --------------------------------------------------------------- */

tow_status_t tow_session_listen(tow_env_t *env,
                                const tow_session_listen_options_t *options,
                                tow_session_port_t **out_port)
{
    TOW_ASSERT(options->arrived != NULL);
    *out_port = NULL;
    tow_session_port_t *port = tow_calloc(1, sizeof(*port));
    if (port == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    port->env = env;
    port->limits = options->limits;
    if (port->limits.lease_ns == 0)
        port->limits.lease_ns = TOW_SESSION_LEASE_NS;
    port->session_count_max = options->session_count_max != 0
                                  ? options->session_count_max
                                  : TOW_SESSION_COUNT_MAX;
    port->arrived = options->arrived;
    port->context = options->context;
    port->timer.fire = on_timer;
    tow_list_init(&port->sessions);
    tow_list_init(&port->greetings);
    tow_arena_init(&port->arena, TOW_SESSION_ARENA_BYTES_MAX);
    tow_status_t status = tow_env_listen(
        env,
        &(tow_listen_options_t){
            .address = options->address, .accept = on_accept, .context = port},
        &port->listener);
    if (status != TOW_OK) {
        destroy(port);
        return status;
    }
    *out_port = port;
    return TOW_OK;
}

const char *tow_session_port_address(const tow_session_port_t *port)
{
    return port->listener->address;
}

void tow_session_port_close(tow_session_port_t *port, tow_closed_t closed)
{
    TOW_ASSERT(!port->is_closed);
    enter(port);
    port->is_closed = true;
    tow_env_timer_stop(port->env, &port->timer);
    while (!tow_list_is_empty(&port->greetings)) {
        greeting_t *greeting = oldest_greeting(port);
        tow_link_close(greeting->link, (tow_closed_t){0});
        greeting_free(greeting);
    }
    tow_listener_close(port->listener, closed);
    leave(port);
}

void tow_session_port_abandon(tow_session_port_t *port)
{
    if (port != NULL) destroy(port);
}
