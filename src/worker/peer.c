/* Other workers: sessions for what movers say to each other, and lanes for what
 * they write.
 *
 * Each direction has a session of its own, dialled by who has something to say,
 * at the door that the controller told it of. So two that begin at the same
 * moment need no rule for who gives way. Both sides begin with PeerOpen; until
 * the other has answered, messages wait. A peer that is gone, or does not read,
 * or breaks the rules loses both directions, the writes to it end, and the mover
 * fails what needs it. Whether the worker itself is gone is the controller's to
 * say: until it does, both dial again, and say up to which gang what they sent may
 * have been lost. The other may not even have been granted it yet. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "worker/worker_impl.h"

/* A message that waits. */
typedef struct peer_letter {
    tow_list_t in_outbox;
    uint32_t type;
    uint32_t size;
    uint8_t bytes[];
} peer_letter_t;

/* A session with another worker, until it is closed. */
typedef struct line {
    tow_list_t in_worker;
    tow_worker_t *worker;
    tow_session_t *session;
    uint32_t process; /* of the other */
    uint64_t cluster; /* as the other says */
    uint64_t lost;    /* as the other says: gangs */
    bool is_ours;     /* we dialled it, to speak; otherwise we listen */
    bool has_spoken;  /* the other has said who it is */
    bool is_let_in;   /* and is the right one */
    bool is_closing;
} line_t;

/* A worker that the controller told us of. */
struct peer {
    uint32_t process;
    line_t *line; /* to speak; NULL: none yet */
    tow_list_t outbox;
    size_t outbox_bytes;
    tow_status_t doom;  /* owned; why it will be lost, in a turn of its own */
    uint64_t last_gang; /* that we had a piece for */
    uint64_t lost_gang; /* the same, when a line broke */
    bool is_broken;     /* a line broke, and ours does not stand again */
    int64_t redial_ns;  /* when to try */
    char *door;         /* owned; "": it has none */
    char name[];
};

/* A large piece on its way to another worker. */
typedef struct peer_write {
    delivery_t delivery;
    tow_list_t in_worker;
    tow_worker_t *worker;
    tow_mover_write_t *write;
} peer_write_t;

static peer_t *find_peer(const tow_worker_t *worker, uint32_t process)
{
    return tow_map_find(&worker->peers, process);
}

/* -- Lines ------------------------------------------------------------------------ */

static void line_closed(void *context)
{
    line_t *line = context;
    tow_worker_t *worker = line->worker;
    tow_list_remove(&line->in_worker);
    worker->line_count--;
    tow_free(line);
    worker_settle(worker);
}

static void close_line(line_t *line, tow_status_t reason)
{
    if (line->is_closing) return;
    line->is_closing = true;
    if (line->is_ours) {
        peer_t *peer = find_peer(line->worker, line->process);
        if (peer != NULL && peer->line == line) peer->line = NULL;
    }
    tow_session_close(line->session, reason, (tow_closed_t){line_closed, line});
}

static line_t *make_line(tow_worker_t *worker)
{
    line_t *line = tow_calloc(1, sizeof(*line));
    if (line == NULL) return NULL;
    line->worker = worker;
    tow_list_append(&worker->lines, &line->in_worker);
    worker->line_count++;
    return line;
}

static void unmake_line(line_t *line)
{
    tow_list_remove(&line->in_worker);
    line->worker->line_count--;
    tow_free(line);
}

/* -- Losing a peer ------------------------------------------------------------------ */

static void drop_letters(peer_t *peer)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&peer->outbox)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, peer_letter_t, in_outbox));
    peer->outbox_bytes = 0;
}

static void close_lines(tow_worker_t *worker, uint32_t process,
                        tow_status_t reason)
{
    const tow_list_t *head = &worker->lines;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        line_t *line = TOW_CONTAINER_OF(at, line_t, in_worker);
        if (line->process == process && (line->is_ours || line->has_spoken))
            close_line(line, reason);
    }
}

static void cut_writes(tow_worker_t *worker, uint32_t process)
{
    const tow_list_t *head = &worker->peer_writes;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        const tow_mover_write_t *write =
            TOW_CONTAINER_OF(at, peer_write_t, in_worker)->write;
        if (write->process == process)
            worker_lane_cut(worker, &write->target->lane_address);
    }
}

static bool has_open_line(const tow_worker_t *worker, uint32_t process)
{
    const tow_list_t *head = &worker->lines;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        const line_t *line = TOW_CONTAINER_OF(at, line_t, in_worker);
        if (line->process == process && line->is_let_in && !line->is_closing)
            return true;
    }
    return false;
}

/* What was on its way is lost, and the other must hear of it. */
static void redial_later(tow_worker_t *worker, peer_t *peer)
{
    if (has_open_line(worker, peer->process) && peer->door[0] != '\0') {
        peer->is_broken = true;
        peer->lost_gang = peer->last_gang;
    }
    if (!peer->is_broken) return;
    peer->redial_ns = tow_env_now_ns(worker->env) + TOW_WORKER_PEER_REDIAL_NS;
    if (!tow_timer_is_armed(&worker->peer_redial))
        tow_env_timer_start(worker->env, &worker->peer_redial, peer->redial_ns);
}

/* Why a session ended is a matter between the two: it was ended before (NOT_FOUND),
 * or the other may not come in any more (ALREADY_EXISTS). To those who need the
 * other it is not there now. */
static tow_status_t loss_of(tow_status_t cause)
{
    switch (tow_status_code(cause)) {
    case TOW_ABORTED:
    case TOW_CANCELLED:
    case TOW_DATA_LOSS:
    case TOW_UNAVAILABLE: return tow_status_retain(cause);
    default: return TOW_ERROR(TOW_UNAVAILABLE, "%s", tow_status_message(cause));
    }
}

/* Everything that is under way with it ends. */
static void lose(tow_worker_t *worker, uint32_t process, tow_status_t cause)
{
    peer_t *peer = find_peer(worker, process);
    tow_status_t told = loss_of(cause);
    if (peer != NULL) {
        drop_letters(peer);
        tow_status_release(peer->doom);
        peer->doom = TOW_OK;
        redial_later(worker, peer);
        told = tow_status_annotate(told, "worker %s", peer->name);
    }
    tow_log(&worker->env->log, TOW_LOG_INFO, "worker lost",
            TOW_F_U64("process", process), TOW_F_STATUS("cause", told));
    close_lines(worker, process, cause);
    cut_writes(worker, process);
    tow_mover_peer_gone(worker->mover, process, told);
    tow_status_release(told);
    worker_relay_lost(worker, process);
}

static void on_peer_timer(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, peer_timer);
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        peer_t *peer = value;
        if (peer->doom == TOW_OK) continue;
        tow_status_t cause = tow_status_retain(peer->doom);
        lose(worker, peer->process, cause);
        tow_status_release(cause);
    }
    for (size_t i = 0; i < worker->strangers.count; i++) {
        tow_status_t cause =
            TOW_ERROR(TOW_NOT_FOUND, "it is no worker of this cluster");
        tow_mover_peer_gone(worker->mover, worker->strangers.items[i], cause);
        worker_relay_lost(worker, worker->strangers.items[i]);
        tow_status_release(cause);
    }
    worker->strangers.count = 0;
}

static void wake_soon(tow_worker_t *worker)
{
    if (!tow_timer_is_armed(&worker->peer_timer))
        tow_env_timer_start(worker->env, &worker->peer_timer,
                            tow_env_now_ns(worker->env));
}

/* The mover is told in a turn of its own: it may be speaking right now. */
static void doom(tow_worker_t *worker, peer_t *peer, tow_status_t take_cause)
{
    if (peer->doom != TOW_OK) {
        tow_status_ignore(take_cause, "it is lost for another reason");
        return;
    }
    peer->doom = take_cause;
    wake_soon(worker);
}

static void doom_stranger(tow_worker_t *worker, uint32_t process)
{
    const size_t count = worker->strangers.count;
    if (count > 0 && worker->strangers.items[count - 1] == process) return;
    if (!tow_vec_push(&worker->strangers, process))
        worker_end_soon(worker, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    wake_soon(worker);
}

/* -- What leaves ---------------------------------------------------------------------- */

static void keep_letter(tow_worker_t *worker, peer_t *peer, uint32_t type,
                        const tow_body_t *body)
{
    const size_t size = tow_message_size(body);
    peer_letter_t *letter = NULL;
    if (peer->outbox_bytes + size <= TOW_WORKER_PEER_OUTBOX_BYTES_MAX)
        letter = tow_malloc(sizeof(*letter) + size);
    if (letter == NULL) {
        doom(worker, peer,
             TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                       "it does not read: %zu bytes wait for it, and %zu more",
                       peer->outbox_bytes, size));
        return;
    }
    letter->type = type;
    letter->size = (uint32_t)size;
    tow_message_encode(body, letter->bytes);
    tow_list_append(&peer->outbox, &letter->in_outbox);
    peer->outbox_bytes += size;
}

/* False: there is no room for it now. */
static bool send_letter(peer_t *peer, peer_letter_t *letter)
{
    uint8_t *room;
    tow_session_t *session = peer->line->session;
    const tow_send_result_t result =
        tow_session_begin(session, letter->size, &room);
    if (result != TOW_SEND_OK) return false; /* Down: we shall be told. */
    if (letter->size > 0) memcpy(room, letter->bytes, letter->size);
    tow_session_commit(session, letter->type, letter->size);
    peer->outbox_bytes -= letter->size;
    tow_list_remove(&letter->in_outbox);
    tow_free(letter);
    return true;
}

static void flush(peer_t *peer)
{
    while (!tow_list_is_empty(&peer->outbox))
        if (!send_letter(peer, TOW_CONTAINER_OF(peer->outbox.next,
                                                peer_letter_t, in_outbox)))
            return;
}

static void say_who(line_t *line)
{
    tow_msg_peer_open_t open = TOW_MSG_PEER_OPEN_INIT;
    open.cluster = line->worker->cluster;
    open.process = line->worker->options.process;
    if (line->is_ours)
        open.lost = find_peer(line->worker, line->process)->lost_gang;
    const tow_send_result_t result =
        tow_session_send(line->session, TOW_MESSAGE_PEER_OPEN, &open.base);
    TOW_ASSERT(result != TOW_SEND_FULL); /* It is the first. */
}

static const tow_session_handler_t line_handler;

static tow_status_t dial(tow_worker_t *worker, peer_t *peer)
{
    if (peer->door[0] == '\0')
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "it has no address for other workers");
    line_t *line = make_line(worker);
    if (line == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    line->process = peer->process;
    line->is_ours = true;
    const tow_session_dial_options_t options = {
        .address = peer->door,
        .expected_name = peer->name,
        .limits = worker->options.limits.session,
        .handler = &line_handler,
        .context = line,
    };
    tow_status_t status =
        tow_session_dial(worker->env, &options, &line->session);
    if (status != TOW_OK) {
        unmake_line(line);
        return status;
    }
    peer->line = line;
    return TOW_OK;
}

static void on_peer_redial(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, peer_redial);
    const int64_t now_ns = tow_env_now_ns(worker->env);
    int64_t next_ns = TOW_TIME_NEVER;
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        peer_t *peer = value;
        if (!peer->is_broken || peer->line != NULL) continue;
        if (peer->redial_ns > now_ns) {
            if (peer->redial_ns < next_ns) next_ns = peer->redial_ns;
            continue;
        }
        tow_status_t status = dial(worker, peer);
        if (status != TOW_OK) doom(worker, peer, status);
    }
    if (next_ns != TOW_TIME_NEVER)
        tow_env_timer_start(worker->env, &worker->peer_redial, next_ns);
}

/* Once a line is let in the other would be told of its end, and fail what waits
 * for us; before, only we know. */
tow_mover_sent_t worker_peer_send(void *context, uint32_t process,
                                  uint32_t type, const tow_body_t *body)
{
    tow_worker_t *worker = context;
    peer_t *peer = find_peer(worker, process);
    if (TOW_UNLIKELY(peer == NULL)) {
        doom_stranger(worker, process);
        return TOW_MOVER_WAITS;
    }
    if (TOW_UNLIKELY(peer->doom != TOW_OK)) return TOW_MOVER_WAITS;
    if (TOW_LIKELY(type == TOW_MESSAGE_EDGE_PIECE)) {
        const uint64_t gang = ((const tow_msg_edge_piece_t *)body)->gang;
        if (gang > peer->last_gang) peer->last_gang = gang;
    } else if (type == TOW_MESSAGE_EDGE_SIZE) {
        const uint64_t gang = ((const tow_msg_edge_size_t *)body)->gang;
        if (gang > peer->last_gang) peer->last_gang = gang;
    }
    const line_t *line = peer->line;
    const bool is_open = line != NULL && line->is_let_in;
    if (TOW_LIKELY(is_open) && TOW_LIKELY(tow_list_is_empty(&peer->outbox)) &&
        TOW_LIKELY(tow_session_send(line->session, type, body) !=
                   TOW_SEND_FULL))
        return TOW_MOVER_SENT; /* Or gone, as we shall be told. */
    keep_letter(worker, peer, type, body);
    if (is_open) return TOW_MOVER_SENT;
    if (peer->line != NULL || peer->doom != TOW_OK) return TOW_MOVER_WAITS;
    tow_status_t status = dial(worker, peer);
    if (status != TOW_OK) doom(worker, peer, status);
    return TOW_MOVER_WAITS;
}

/* -- Who is there ----------------------------------------------------------------------- */

static tow_status_t check_who(const line_t *line)
{
    const tow_worker_t *worker = line->worker;
    if (line->cluster != worker->cluster)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "process %u is of cluster %016" PRIx64
                         ", and process %u of %016" PRIx64,
                         line->process, line->cluster, worker->options.process,
                         worker->cluster);
    if (line->process == worker->options.process)
        return TOW_ERROR(TOW_ALREADY_EXISTS, "two workers are process %u",
                         line->process);
    return TOW_OK;
}

/* It may be one that the controller has not told us of yet. */
static void admit(line_t *line)
{
    tow_worker_t *worker = line->worker;
    tow_status_t status = check_who(line);
    if (status != TOW_OK) {
        tow_log(&worker->env->log, TOW_LOG_WARN, "worker refused",
                TOW_F_STR("peer", tow_session_peer(line->session)->name),
                TOW_F_STATUS("cause", status));
        close_line(line, status);
        tow_status_release(status);
        return;
    }
    const tow_list_t *head = &worker->lines;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        line_t *older = TOW_CONTAINER_OF(at, line_t, in_worker);
        if (older->is_ours || !older->is_let_in || older->is_closing ||
            older->process != line->process)
            continue;
        /* It has lost us, and we did not know. */
        line->has_spoken = false; /* Not this one. */
        tow_status_t lost = TOW_ERROR(TOW_ABORTED, "it dialled again");
        lose(worker, line->process, lost);
        tow_status_release(lost);
        line->has_spoken = true;
        break;
    }
    line->is_let_in = true;
    if (line->lost > 0)
        tow_mover_peer_lost(worker->mover, line->process, line->lost);
    say_who(line);
}

static tow_status_t take_open(line_t *line, const tow_msg_peer_open_t *open)
{
    tow_worker_t *worker = line->worker;
    if (line->has_spoken)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "a second time");
    line->has_spoken = true;
    line->cluster = open->cluster;
    line->lost = open->lost;
    if (!line->is_ours) {
        line->process = open->process;
        if (worker_is_joined(worker)) admit(line); /* Or when we are. */
        return TOW_OK;
    }
    if (open->process != line->process)
        return TOW_ERROR(TOW_ABORTED,
                         "at its address is process %u, not process %u",
                         open->process, line->process);
    TOW_RETURN_IF_ERROR(check_who(line));
    line->is_let_in = true;
    find_peer(worker, line->process)->is_broken = false;
    flush(find_peer(worker, line->process));
    tow_mover_peer_ready(worker->mover, line->process);
    return TOW_OK;
}

static tow_status_t take_message(line_t *line, const tow_message_t *message)
{
    tow_worker_t *worker = line->worker;
    const tow_body_t *body;
    tow_arena_reset(&worker->arena);
    TOW_RETURN_IF_ERROR(tow_message_decode(
        message->type, message->bytes, message->size, &worker->arena, &body));
    if (message->type == TOW_MESSAGE_PEER_OPEN)
        return take_open(line, (const tow_msg_peer_open_t *)body);
    if (line->is_let_in && !line->is_ours) {
        if (TOW_LIKELY(message->type == TOW_MESSAGE_EDGE_PIECE))
            return tow_mover_piece(worker->mover, line->process,
                                   (const tow_msg_edge_piece_t *)body);
        if (message->type == TOW_MESSAGE_EDGE_SIZE)
            return tow_mover_size(worker->mover, line->process,
                                  (const tow_msg_edge_size_t *)body);
        if (message->type == TOW_MESSAGE_EDGE_OFFER)
            return tow_mover_offer(worker->mover, line->process,
                                   (const tow_msg_edge_offer_t *)body);
        if (message->type == TOW_MESSAGE_PASSED_GRANT)
            return worker_relay_passed(worker, line->process,
                                       (const tow_msg_passed_grant_t *)body);
        if (message->type == TOW_MESSAGE_PASSED_DONE)
            return worker_relay_passed_done(
                worker, line->process, (const tow_msg_passed_done_t *)body);
    }
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "no message for a worker, or not now");
}

/* -- What sessions tell ------------------------------------------------------------------- */

static void end_line(line_t *line, tow_status_t cause)
{
    if (line->is_closing) return;
    if (line->is_ours || line->is_let_in)
        lose(line->worker, line->process, cause);
    close_line(line, cause);
}

static void on_line_message(void *context, tow_session_t *session,
                            const tow_message_t *message)
{
    (void)session;
    TOW_TRACE(tow_message_type_name(message->type));
    line_t *line = context;
    tow_status_t status = take_message(line, message);
    if (TOW_LIKELY(status == TOW_OK)) return;
    status =
        tow_status_annotate(status, "%s", tow_message_type_name(message->type));
    end_line(line, status);
    tow_status_release(status);
}

static void on_line_opened(void *context, tow_session_t *session)
{
    (void)session;
    line_t *line = context;
    if (line->is_ours) say_who(line);
}

static void on_line_writable(void *context, tow_session_t *session)
{
    (void)session;
    line_t *line = context;
    peer_t *peer = find_peer(line->worker, line->process);
    if (peer != NULL && peer->line == line && line->is_let_in) flush(peer);
}

static void on_line_gone(void *context, tow_session_t *session,
                         tow_status_t cause)
{
    (void)session;
    end_line(context, cause);
}

static const tow_session_handler_t line_handler = {
    .opened = on_line_opened,
    .message = on_line_message,
    .writable = on_line_writable,
    .gone = on_line_gone,
};

static void on_arrived(void *context, tow_session_t *session)
{
    tow_worker_t *worker = context;
    line_t *line = worker->state != TOW_WORKER_DRAINING && !worker->is_closing
                       ? make_line(worker)
                       : NULL;
    if (line == NULL) {
        tow_status_t status =
            TOW_ERROR(TOW_UNAVAILABLE, "this worker is in no cluster now");
        tow_session_close(session, status, (tow_closed_t){0});
        tow_status_release(status);
        return;
    }
    line->session = session;
    tow_session_accept(session, &line_handler, line);
}

/* -- Writing ----------------------------------------------------------------------------------- */

static void delivered(delivery_t *delivery, tow_status_t take_status)
{
    peer_write_t *peer_write =
        TOW_CONTAINER_OF(delivery, peer_write_t, delivery);
    tow_worker_t *worker = peer_write->worker;
    tow_mover_write_t *write = peer_write->write;
    write->write.is_adrift = delivery->write.is_adrift;
    tow_list_remove(&peer_write->in_worker);
    tow_pool_give(&worker->peer_write_pool, peer_write);
    write->done(write, take_status);
}

static void lent(tow_write_t *write)
{
    const delivery_t *delivery = TOW_CONTAINER_OF(write, delivery_t, write);
    tow_mover_write_t *of_mover =
        TOW_CONTAINER_OF(delivery, peer_write_t, delivery)->write;
    of_mover->lent(of_mover);
}

tow_status_t worker_peer_write(void *context, tow_mover_write_t *write)
{
    tow_worker_t *worker = context;
    peer_write_t *peer_write = tow_pool_take(&worker->peer_write_pool);
    if (peer_write == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    peer_write->delivery =
        (delivery_t){.write = write->write, .done = delivered};
    peer_write->delivery.write.check = worker->options.check;
    if (write->lent != NULL) peer_write->delivery.write.lent = lent;
    peer_write->worker = worker;
    peer_write->write = write;
    tow_list_append(&worker->peer_writes, &peer_write->in_worker);
    tow_status_t status =
        worker_deliver(worker, write->target, &peer_write->delivery);
    if (status != TOW_OK) {
        tow_list_remove(&peer_write->in_worker);
        tow_pool_give(&worker->peer_write_pool, peer_write);
    }
    return status;
}

/* -- What the controller tells --------------------------------------------------------------------- */

tow_status_t worker_peer_add(tow_worker_t *worker,
                             const tow_msg_peer_t *message)
{
    const size_t name_size = strlen(message->name) + 1;
    peer_t *peer = tow_calloc(1, sizeof(*peer) + name_size);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    peer->process = message->process;
    tow_list_init(&peer->outbox);
    memcpy(peer->name, message->name, name_size);
    peer->door = tow_strdup(message->door);
    if (peer->door != NULL && tow_map_put(&worker->peers, peer->process, peer))
        return TOW_OK;
    tow_free(peer->door);
    tow_free(peer);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static void free_peer(peer_t *peer)
{
    drop_letters(peer);
    tow_status_release(peer->doom);
    tow_free(peer->door);
    tow_free(peer);
}

bool worker_peer_remove(tow_worker_t *worker, uint32_t process,
                        tow_status_t cause)
{
    peer_t *peer = find_peer(worker, process);
    if (peer == NULL) return false;
    lose(worker, process, cause);
    tow_map_remove(&worker->peers, process);
    free_peer(peer);
    return true;
}

void worker_peers_joined(tow_worker_t *worker)
{
    const tow_list_t *head = &worker->lines;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        line_t *line = TOW_CONTAINER_OF(at, line_t, in_worker);
        if (line->has_spoken && !line->is_closing) admit(line);
    }
}

/* -- Life --------------------------------------------------------------------------------------------- */

tow_status_t worker_peers_open(tow_worker_t *worker, const char *door)
{
    tow_list_init(&worker->lines);
    tow_list_init(&worker->peer_writes);
    tow_pool_init(&worker->peer_write_pool, sizeof(peer_write_t), 0);
    worker->peer_timer.fire = on_peer_timer;
    worker->peer_redial.fire = on_peer_redial;
    if (door == NULL) return TOW_OK;
    return tow_session_listen(worker->env,
                              &(tow_session_listen_options_t){
                                  .address = door,
                                  .limits = worker->options.limits.session,
                                  .arrived = on_arrived,
                                  .context = worker},
                              &worker->port);
}

const char *worker_peers_door(const tow_worker_t *worker)
{
    return worker->port != NULL ? tow_session_port_address(worker->port) : "";
}

/* The session with the controller is over. Moves are aborted by their runs. */
void worker_peer_sessions_drop(tow_worker_t *worker, tow_status_t cause)
{
    tow_env_timer_stop(worker->env, &worker->peer_timer);
    tow_env_timer_stop(worker->env, &worker->peer_redial);
    worker->strangers.count = 0;
    const tow_list_t *head = &worker->lines;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        close_line(TOW_CONTAINER_OF(at, line_t, in_worker), cause);
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value)) {
        tow_map_remove(&worker->peers, process);
        free_peer(value);
    }
}

static void port_closed(void *context)
{
    tow_worker_t *worker = context;
    worker->is_port_closing = false;
    worker_settle(worker);
}

void worker_peers_close(tow_worker_t *worker)
{
    if (worker->port == NULL) return;
    tow_session_port_t *port = worker->port;
    worker->port = NULL;
    worker->is_port_closing = true;
    tow_session_port_close(port, (tow_closed_t){port_closed, worker});
}

void worker_peers_forget(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->lines)) != NULL) {
        line_t *line = TOW_CONTAINER_OF(item, line_t, in_worker);
        tow_session_abandon(line->session);
        tow_free(line);
    }
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value))
        free_peer(value);
    tow_session_port_abandon(worker->port);
    worker->port = NULL;
}

void worker_peers_free(tow_worker_t *worker)
{
    tow_vec_deinit(&worker->strangers);
    tow_pool_deinit(&worker->peer_write_pool);
}
