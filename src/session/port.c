/* The listening side: accepted links name their session in SessionResume and
 * are attached to it. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "session/session_impl.h"

struct tow_session_port {
    tow_env_t *env;
    tow_listener_t *listener; /* owned */
    tow_session_limits_t limits;
    uint32_t session_count_max;
    void (*arrived)(void *context, tow_session_t *session);
    void *context;            /* lent */
    tow_map_t by_id;          /* live sessions; lent */
    tow_list_t sessions;      /* the same, in order of arrival */
    tow_list_t pending_links; /* owned, in order of arrival */
    uint32_t pending_count;
    tow_timer_t timer; /* for the oldest pending link */
    tow_arena_t arena;
    uint32_t depth;
    bool is_closed;
};

/* A link that has not yet named its session. */
typedef struct pending_link {
    tow_list_t list;
    tow_session_port_t *port; /* lent */
    tow_link_t *link;         /* owned */
    int64_t deadline_ns;
} pending_link_t;

/* -- Allocation ------------------------------------------------------------ */

static void pending_free(pending_link_t *pending)
{
    pending->port->pending_count--;
    tow_list_remove(&pending->list);
    tow_free(pending);
}

static pending_link_t *oldest_pending(tow_session_port_t *port)
{
    if (tow_list_is_empty(&port->pending_links)) return NULL;
    return TOW_CONTAINER_OF(port->pending_links.next, pending_link_t, list);
}

static void destroy(tow_session_port_t *port)
{
    while (!tow_list_is_empty(&port->pending_links))
        pending_free(oldest_pending(port));
    while (!tow_list_is_empty(&port->sessions)) {
        tow_session_t *session =
            TOW_CONTAINER_OF(port->sessions.next, tow_session_t, by_port);
        tow_session_unlist(session);
    }
    tow_map_deinit(&port->by_id);
    tow_arena_deinit(&port->arena);
    tow_free(port);
}

/* O(1): called whenever a callback returns. */
static void check(const tow_session_port_t *port)
{
    TOW_ASSERT(tow_list_is_empty(&port->pending_links) ==
               (port->pending_count == 0));
    TOW_ASSERT(tow_list_is_empty(&port->sessions) ==
               (tow_map_count(&port->by_id) == 0));
    TOW_ASSERT(port->pending_count <= TOW_SESSION_PENDING_COUNT_MAX);
    TOW_ASSERT(!port->is_closed || port->pending_count == 0);
}

static void enter(tow_session_port_t *port)
{
    port->depth++;
}

static void leave(tow_session_port_t *port)
{
    TOW_ASSERT(port->depth > 0);
    port->depth--;
    check(port);
    if (port->depth == 0 && port->is_closed) destroy(port);
}

void tow_session_unlist(tow_session_t *session)
{
    if (session->port == NULL) return;
    tow_map_remove(&session->port->by_id, session->id);
    tow_list_remove(&session->by_port);
    session->port = NULL;
}

/* -- Refusing links -------------------------------------------------------- */

/* Closes the link without ending its session: the peer may just be slow, and
 * redials. */
static void close_pending(pending_link_t *pending, tow_status_t take_reason)
{
    tow_log(&pending->port->env->log, TOW_LOG_WARN, "session refused",
            TOW_F_STR("peer", pending->link->peer.name),
            TOW_F_STATUS("reason", take_reason));
    tow_link_close(pending->link, (tow_closed_t){0});
    pending_free(pending);
    tow_status_release(take_reason);
}

/* Closes the link and ends its session, which is unknown or refused. */
static void refuse(pending_link_t *pending, tow_status_t take_reason)
{
    tow_session_send_end(pending->link, take_reason);
    close_pending(pending, take_reason);
}

static void watch_oldest(tow_session_port_t *port)
{
    pending_link_t *oldest = oldest_pending(port);
    if (oldest != NULL)
        tow_env_timer_start(port->env, &port->timer, oldest->deadline_ns);
}

static void on_timer(tow_timer_t *timer)
{
    tow_session_port_t *port =
        TOW_CONTAINER_OF(timer, tow_session_port_t, timer);
    pending_link_t *oldest = oldest_pending(port);
    while (oldest != NULL && oldest->deadline_ns <= tow_env_now_ns(port->env)) {
        close_pending(oldest, TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                                        "%s did not name its session in time",
                                        oldest->link->peer.name));
        oldest = oldest_pending(port);
    }
    watch_oldest(port);
}

/* -- Accepting sessions ---------------------------------------------------- */

/* Sessions of the same name with another incarnation belong to a process that
 * has ended. A linear search, but new sessions are rare. The owner may close
 * any of them in `disconnected`, so each search starts over. */
static tow_session_t *find_previous_incarnation(tow_session_port_t *port,
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

static void end_previous_incarnations(tow_session_port_t *port,
                                      const tow_peer_t *peer)
{
    tow_session_t *previous;
    while ((previous = find_previous_incarnation(port, peer)) != NULL)
        tow_session_fail(
            previous, TOW_ERROR(TOW_ABORTED,
                                "%s restarted: its incarnation was %016" PRIx64
                                " and is %016" PRIx64,
                                peer->name, previous->peer.incarnation,
                                peer->incarnation));
}

static tow_session_t *create_session(tow_session_port_t *port, uint64_t id)
{
    tow_session_t *session = tow_session_create(port->env, &port->limits);
    if (session == NULL) return NULL;
    session->id = id;
    if (!tow_map_put(&port->by_id, id, session)) {
        tow_session_discard(session);
        return NULL;
    }
    session->port = port;
    tow_list_append(&port->sessions, &session->by_port);
    return session;
}

static void welcome(pending_link_t *pending, uint64_t id)
{
    tow_session_port_t *port = pending->port;
    tow_link_t *link = pending->link;
    end_previous_incarnations(port, &link->peer);
    if (port->is_closed)
        return; /* By the owner, in `disconnected`: all is closed. */
    if (tow_map_count(&port->by_id) >= port->session_count_max) {
        refuse(pending,
               TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%s has reached its limit of %u sessions; close some, "
                         "or raise the limit",
                         port->env->name, port->session_count_max));
        return;
    }
    tow_session_t *session = create_session(port, id);
    if (session == NULL) {
        refuse(pending, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    pending_free(pending);
    tow_session_enter(session);
    tow_session_adopt(session, link);
    port->arrived(port->context, session);
    TOW_ASSERT(session->handler != NULL || session->state == SESSION_CLOSED);
    if (session_is_live(session)) tow_session_answer(session, 0);
    tow_session_leave(session);
}

static void resume_session(pending_link_t *pending, tow_session_t *session,
                           uint64_t received)
{
    tow_link_t *link = pending->link;
    if (session->peer.incarnation != link->peer.incarnation ||
        strcmp(session->peer.name, link->peer.name) != 0) {
        refuse(pending,
               TOW_ERROR(TOW_PERMISSION_DENIED,
                         "%s tried to resume the session of another peer",
                         link->peer.name));
        return;
    }
    pending_free(pending);
    tow_session_adopt(session, link);
    tow_session_answer(session, received);
}

static void receive_resume(pending_link_t *pending,
                           const tow_msg_session_resume_t *resume)
{
    tow_session_port_t *port = pending->port;
    tow_session_t *session = tow_map_find(&port->by_id, resume->session);
    if (session != NULL)
        resume_session(pending, session, resume->received);
    else if (resume->opened || resume->received > 0)
        refuse(pending,
               TOW_ERROR(TOW_NOT_FOUND,
                         "%s does not know this session of %s: it has been "
                         "ended",
                         port->env->name, pending->link->peer.name));
    else
        welcome(pending, resume->session);
}

/* -- Callbacks of pending links -------------------------------------------- */

static void on_up(void *context, tow_link_t *link)
{
    (void)context;
    (void)link;
}

static void on_down(void *context, tow_link_t *link, tow_status_t cause)
{
    (void)cause;
    pending_free(context);
    tow_link_close(link, (tow_closed_t){0});
}

static void on_message(void *context, tow_link_t *link,
                       const tow_message_t *message)
{
    pending_link_t *pending = context;
    tow_session_port_t *port = pending->port;
    const tow_body_t *body = NULL;
    tow_status_t status = TOW_OK;
    enter(port);
    tow_arena_reset(&port->arena);
    if (message->type != TOW_MESSAGE_SESSION_RESUME)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                           "%s sent a message of type %u before SessionResume",
                           link->peer.name, message->type);
    else
        status = tow_message_decode(message->type, message->bytes,
                                    message->size, &port->arena, &body);
    if (status != TOW_OK)
        refuse(pending,
               tow_status_annotate(status, "from %s", link->peer.name));
    else
        receive_resume(pending, (const tow_msg_session_resume_t *)body);
    leave(port);
}

static const tow_link_handler_t pending_handler = {
    .up = on_up,
    .message = on_message,
    .down = on_down,
};

static void on_accept(void *context, tow_link_t *link)
{
    tow_session_port_t *port = context;
    pending_link_t *pending = tow_calloc(1, sizeof(*pending));
    if (pending == NULL) {
        tow_link_close(link, (tow_closed_t){0});
        return;
    }
    pending->port = port;
    pending->link = link;
    pending->deadline_ns = tow_env_now_ns(port->env) + port->limits.lease_ns;
    link->handler = &pending_handler;
    link->context = pending;
    tow_list_append(&port->pending_links, &pending->list);
    if (++port->pending_count > TOW_SESSION_PENDING_COUNT_MAX)
        close_pending(oldest_pending(port),
                      TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                "more than %d links of %s have not named their "
                                "session",
                                TOW_SESSION_PENDING_COUNT_MAX,
                                port->env->name));
    watch_oldest(port);
}

/* -- Functions for the owner ----------------------------------------------- */

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
    tow_list_init(&port->pending_links);
    tow_arena_init(&port->arena, TOW_SESSION_ARENA_BYTES_MAX);
    tow_status_t status = tow_env_listen(
        env,
        &(tow_listen_options_t){.address = options->address,
                                .carries_lanes = options->carries_lanes,
                                .accept = on_accept,
                                .context = port},
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
    while (!tow_list_is_empty(&port->pending_links)) {
        pending_link_t *pending = oldest_pending(port);
        tow_link_close(pending->link, (tow_closed_t){0});
        pending_free(pending);
    }
    tow_listener_close(port->listener, closed);
    leave(port);
}

void tow_session_port_discard(tow_session_port_t *port)
{
    if (port != NULL) destroy(port);
}
