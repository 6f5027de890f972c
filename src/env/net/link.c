/* Creating and freeing links, and the calls of their owners. */
#include <string.h>
#include <sys/epoll.h>

#include "base/alloc.h"
#include "env/net/connection.h"

static void fail_timed_out(tow_net_link_t *link)
{
    const char *due = link->handshake != NULL
                          ? tow_handshake_waits_for(link->handshake)
                          : "an answer";
    tow_net_connection_fail(
        link,
        TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                  "%s: %s: waited %lld s for %s: does a towpath process listen "
                  "there, and is the network up?",
                  link->address, tow_net_phase_name(link->phase),
                  TOW_NET_HANDSHAKE_NS / TOW_NS_PER_S, due));
}

static void on_timer(tow_timer_t *timer)
{
    tow_net_link_t *link = TOW_CONTAINER_OF(timer, tow_net_link_t, timer);
    switch (link->phase) {
    case TOW_NET_IDLE: tow_net_dial(link); return;
    case TOW_NET_CONNECTING:
    case TOW_NET_TLS:
    case TOW_NET_HANDSHAKE: fail_timed_out(link); return;
    case TOW_NET_LINGERING: tow_net_connection_fail(link, TOW_OK); return;
    case TOW_NET_AWAITING_EXIT:
        tow_net_connection_exit_checked(link, false);
        return;
    case TOW_NET_RESOLVING:
    case TOW_NET_UP: break;
    }
    TOW_UNREACHABLE();
}

static void on_again(tow_net_task_t *task)
{
    (void)tow_net_connection_read(
        TOW_CONTAINER_OF(task, tow_net_link_t, again));
}

static bool on_ready(tow_net_source_t *source, uint32_t events)
{
    tow_net_link_t *link = TOW_CONTAINER_OF(source, tow_net_link_t, source);
    if (link->phase == TOW_NET_CONNECTING) {
        tow_net_dial_connected(link);
        return true;
    }
    if (link->phase == TOW_NET_AWAITING_EXIT) {
        tow_net_connection_exit_checked(link, true);
        return true;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) link->has_hung_up = true;
    bool any = false;
    if ((events & EPOLLOUT) && link->waits_for_room) {
        link->waits_for_room = false;
        tow_net_connection_mark_dirty(link);
        any = true;
    }
    if (events & ~(uint32_t)EPOLLOUT) any |= tow_net_connection_read(link);
    return any;
}

static void link_free(tow_net_link_t *link)
{
    tow_free(link->address);
    tow_free(link->expected_name);
    tow_free(link);
}

static void run_free_task(tow_net_task_t *task)
{
    tow_net_link_t *link = TOW_CONTAINER_OF(task, tow_net_link_t, free_task);
    TOW_ASSERT(link->phase == TOW_NET_IDLE && link->resolve == NULL);
    tow_net_t *net = link->net;
    const tow_closed_t closed = link->closed;
    tow_list_remove(&link->all);
    link_free(link);
    if (closed.run != NULL) closed.run(closed.context);
    tow_net_release(net);
}

tow_net_link_t *tow_net_link_create(tow_net_t *net, tow_side_t side,
                                    const char *address)
{
    tow_net_link_t *link = tow_calloc(1, sizeof(*link));
    if (link == NULL) return NULL;
    link->address = tow_strdup(address);
    if (link->address == NULL) {
        tow_free(link);
        return NULL;
    }
    link->link.env = &net->env;
    link->link.state = TOW_LINK_DIALLING;
    link->net = net;
    link->side = side;
    link->source = (tow_net_source_t){.fd = -1, .ready = on_ready};
    link->peer_fd = -1;
    link->timer.fire = on_timer;
    link->queue.chunks = &net->chunks;
    tow_net_task_init(&link->again, on_again);
    tow_net_task_init(&link->free_task, run_free_task);
    tow_list_init(&link->dirty);
    tow_list_init(&link->half_open);
    tow_list_append(&net->links, &link->all);
    tow_net_retain(net);
    return link;
}

void tow_net_link_discard(tow_net_link_t *link)
{
    tow_net_connection_discard(link);
    tow_list_remove(&link->all);
    tow_net_release(link->net);
    link_free(link);
}

void tow_net_link_finish(tow_net_link_t *link)
{
    link->link.state = TOW_LINK_CLOSING;
    tow_net_link_check(link);
    tow_net_defer(link->net, &link->free_task);
}

tow_send_result_t tow_net_link_begin(tow_link_t *base, uint32_t size_max,
                                     uint8_t **out_bytes)
{
    tow_net_link_t *link = tow_net_link_of(base);
    switch (tow_net_queue_begin(&link->queue, size_max, out_bytes)) {
    case TOW_NET_QUEUE_OK: return TOW_SEND_OK;
    case TOW_NET_QUEUE_FULL: link->was_full = true; return TOW_SEND_FULL;
    case TOW_NET_QUEUE_NO_MEMORY: break;
    }
    tow_net_connection_break(link,
                             TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                       "%s: no memory to send", link->address));
    return TOW_SEND_DOWN;
}

void tow_net_link_commit(tow_link_t *base, uint32_t type, uint32_t size)
{
    tow_net_link_t *link = tow_net_link_of(base);
    tow_net_queue_commit(&link->queue, (uint16_t)type, size);
    tow_net_connection_mark_dirty(link);
    if (link->queue.bytes >= TOW_NET_CHUNK_BYTES)
        tow_net_connection_flush(link);
}

void tow_net_link_take_connection(tow_net_link_t *link, tow_closed_t closed,
                                  int *out_fd, tow_tls_t **out_tls)
{
    TOW_ASSERT(link->phase == TOW_NET_UP &&
               link->link.state != TOW_LINK_CLOSING && link->queue.bytes == 0);
    *out_fd = tow_net_source_take(link->net, &link->source);
    *out_tls = link->tls;
    link->tls = NULL;
    link->link.state = TOW_LINK_CLOSING;
    link->closed = closed;
    tow_net_connection_discard(link);
    tow_net_link_finish(link);
}

void tow_net_link_close(tow_link_t *base, tow_closed_t closed)
{
    tow_net_link_t *link = tow_net_link_of(base);
    TOW_ASSERT(link->link.state != TOW_LINK_CLOSING);
    link->link.state = TOW_LINK_CLOSING;
    link->closed = closed;
    if (link->phase == TOW_NET_UP) {
        tow_net_connection_linger(link);
        return;
    }
    if (tow_net_dial_cancel(link)) return;
    tow_net_connection_discard(link);
    tow_net_link_finish(link);
}
