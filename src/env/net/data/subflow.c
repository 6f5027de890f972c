/* Subflows of trunks: opening and ending them, and handing them to threads. All
 * of this runs on the loop, except where it says otherwise.
 *
 * A subflow is used either by the loop or, while a job runs, by one thread. A
 * job lasts until the socket has been full or empty for a while, so a peer that
 * stalls does not keep a thread: the loop then waits for the socket. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/data/trunk_impl.h"

/* -- How many -------------------------------------------------------------- */

static uint32_t default_count(void)
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 0;
    const uint32_t count = (uint32_t)CPU_COUNT(&cores);
    if (count < TOW_NET_SUBFLOW_CORES_MIN) return 0;
    return count / TOW_NET_SUBFLOW_CORES_PER < TOW_NET_SUBFLOW_DEFAULT_MAX
               ? count / TOW_NET_SUBFLOW_CORES_PER
               : TOW_NET_SUBFLOW_DEFAULT_MAX;
}

tow_status_t tow_data_count_subflows(const char *text, uint32_t *out_count)
{
    if (text == NULL) text = getenv("TOW_DATA_STREAMS");
    if (text == NULL || text[0] == '\0') {
        *out_count = default_count();
        return TOW_OK;
    }
    char *end;
    const unsigned long count = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' ||
        count > TOW_NET_SUBFLOW_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "'%s' streams (TOW_DATA_STREAMS, --data-streams): "
                         "expected a number from 0 to %d",
                         text, TOW_NET_SUBFLOW_COUNT_MAX);
    *out_count = (uint32_t)count;
    return TOW_OK;
}

/* -- Opening --------------------------------------------------------------- */

static void dial(tow_data_trunk_t *trunk, tow_data_connection_kind_t kind,
                 uint32_t count)
{
    tow_status_t status = TOW_OK;
    for (uint32_t i = 0; i < count && status == TOW_OK; i++)
        status = trunk_dial_subflow(trunk, kind);
    if (status == TOW_OK) return;
    tow_log(&trunk->data->net->env.log, TOW_LOG_WARN,
            "cannot dial one more connection of a trunk",
            TOW_F_STR("address", trunk->link->address),
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

bool tow_data_trunk_may_stripe(tow_data_trunk_t *trunk)
{
    if (trunk->state != TRUNK_UP || trunk->subflow_max == 0) return false;
    if (trunk->has_opened) return trunk->sending_count > 0;
    trunk->has_opened = true;
    const tow_data_subflows_t request = {.count = trunk->subflow_max};
    if (trunk->is_dialled)
        dial(trunk, TOW_DATA_IS_SUBFLOW, trunk->subflow_max);
    else
        trunk_send(trunk, TOW_DATA_SUBFLOWS,
                   (tow_data_bytes_t){&request, sizeof(request)},
                   (tow_data_bytes_t){0});
    return false;
}

void subflows_on_request(tow_data_trunk_t *trunk,
                         const tow_data_subflows_t *request)
{
    if (!trunk->is_dialled || trunk->was_asked ||
        request->count > trunk->subflow_max) {
        trunk_refuse(trunk, "a request for subflows that was not agreed");
        return;
    }
    trunk->was_asked = true;
    dial(trunk, TOW_DATA_IS_REVERSE_SUBFLOW, request->count);
}

static void free_subflow(subflow_t *subflow)
{
    tow_data_trunk_t *trunk = subflow->trunk;
    TOW_ASSERT(subflow->phase != SUBFLOW_RUNNING);
    tow_list_remove(&subflow->list);
    tow_net_source_close(trunk->data->net, &subflow->source);
    tow_tls_destroy(subflow->tls);
    tow_free(subflow);
}

static uint32_t events_of(const subflow_t *subflow);
static bool on_ready(tow_net_source_t *source, uint32_t events);
static tow_status_t run_job(tow_work_t *work);
static void job_done(tow_work_t *work, tow_status_t take_status);

static subflow_t *create_subflow(tow_data_trunk_t *trunk, bool sends)
{
    subflow_t *subflow = tow_calloc(1, sizeof(*subflow));
    if (subflow == NULL) return NULL;
    subflow->trunk = trunk;
    subflow->sends = sends;
    subflow->source = (tow_net_source_t){.fd = -1, .ready = on_ready};
    tow_list_init(&subflow->in_arriving);
    subflow->work.run = run_job;
    subflow->work.done = job_done;
    tow_list_append(&trunk->subflows, &subflow->list);
    return subflow;
}

/* Our greeting must have left: only threads send from now on. */
static const char *take_connection(subflow_t *subflow,
                                   tow_data_trunk_t *connection)
{
    tow_data_t *data = subflow->trunk->data;
    tow_net_link_t *link = connection->link;
    tow_net_connection_flush(link);
    if (link->tls == NULL || link->queue.bytes > 0 ||
        tow_tls_drain_pending(link->tls) > 0 || link->failure != TOW_OK)
        return "the greeting of a subflow cannot be sent";
    connection->state = TRUNK_ENDING;
    tow_env_timer_stop(&data->net->env, &connection->timer);
    tow_net_link_take_connection(
        link, (tow_closed_t){trunk_on_link_closed, connection},
        &subflow->source.fd, &subflow->tls);
    tow_tls_expect_bulk(subflow->tls,
                        (tow_tls_source_t){subflow_receive_cipher, subflow});
    tow_status_t status =
        tow_net_source_open(data->net, &subflow->source, events_of(subflow));
    if (status == TOW_OK) return NULL;
    tow_status_ignore(status, "the trunk ends");
    close(subflow->source.fd);
    subflow->source.fd = -1;
    return "a subflow cannot be watched";
}

void subflow_adopt(tow_data_trunk_t *connection, tow_data_trunk_t *trunk,
                   tow_data_connection_kind_t kind)
{
    const bool sends = trunk->is_dialled == (kind == TOW_DATA_IS_SUBFLOW);
    uint32_t *count = sends ? &trunk->sending_count : &trunk->receiving_count;
    if (*count >= trunk->subflow_max || (sends && !trunk->has_opened)) {
        trunk_refuse(connection, "more subflows than agreed");
        return;
    }
    subflow_t *subflow = create_subflow(trunk, sends);
    if (subflow == NULL) {
        trunk_refuse(connection, "no memory for a subflow");
        return;
    }
    const char *problem = take_connection(subflow, connection);
    if (problem != NULL) {
        const bool is_half_taken = connection->state == TRUNK_ENDING;
        free_subflow(subflow);
        trunk_refuse(is_half_taken ? trunk : connection, problem);
        return;
    }
    (*count)++;
    if (sends)
        subflows_pump(trunk);
    else
        subflow_start(subflow); /* TLS may hold bytes already. */
}

/* -- Ending ---------------------------------------------------------------- */

void subflows_stop(tow_data_trunk_t *trunk)
{
    const tow_list_t *head = &trunk->subflows;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        atomic_store(&TOW_CONTAINER_OF(at, subflow_t, list)->is_stopped, true);
    outgoing_end_all(trunk);
}

void subflows_free(tow_data_trunk_t *trunk)
{
    tow_list_t *item = trunk->subflows.next;
    while (item != &trunk->subflows) {
        subflow_t *subflow = TOW_CONTAINER_OF(item, subflow_t, list);
        item = item->next;
        if (subflow->phase != SUBFLOW_RUNNING) free_subflow(subflow);
    }
}

static void end_broken(subflow_t *subflow, const char *problem)
{
    tow_data_trunk_t *trunk = subflow->trunk;
    if (trunk->state == TRUNK_ENDING) return;
    tow_status_t cause =
        TOW_ERROR(TOW_UNAVAILABLE, "%s: one of the connections: %s",
                  trunk->link->address, problem);
    trunk_end(trunk, cause);
    tow_status_release(cause);
}

/* -- Jobs ------------------------------------------------------------------ */

/* On a thread. */
static tow_status_t run_job(tow_work_t *work)
{
    subflow_t *subflow = TOW_CONTAINER_OF(work, subflow_t, work);
    subflow->result = SUBFLOW_AGAIN;
    subflow->turn_end_ns = tow_net_clock_ns() + TOW_NET_SUBFLOW_TURN_NS;
    if (subflow->sends)
        subflow_send(subflow);
    else
        subflow_receive(subflow);
    return TOW_OK;
}

/* A running one needs no events: the thread reads and writes by itself. */
static uint32_t events_of(const subflow_t *subflow)
{
    const bool is_waiting = subflow->phase == SUBFLOW_WAITING;
    if (subflow->sends) return EPOLLRDHUP | (is_waiting ? EPOLLOUT : 0);
    return is_waiting ? EPOLLIN | EPOLLRDHUP : 0;
}

static void set_phase(subflow_t *subflow, subflow_phase_t phase)
{
    const uint32_t before = events_of(subflow);
    subflow->phase = phase;
    if (events_of(subflow) != before)
        tow_net_source_change(subflow->trunk->data->net, &subflow->source,
                              events_of(subflow));
}

void subflow_start(subflow_t *subflow)
{
    const tow_data_t *data = subflow->trunk->data;
    set_phase(subflow, SUBFLOW_RUNNING);
    subflow->result = SUBFLOW_BROKEN; /* If it does not run at all. */
    snprintf(subflow->problem, sizeof(subflow->problem),
             "no thread could be started");
    tow_net_cipher_start(data->net, &subflow->work, 2 * data->subflow_max);
}

static void receive_again(subflow_t *subflow)
{
    const char *problem = subflow_find_arriving(subflow);
    if (problem == NULL)
        subflow_start(subflow);
    else
        trunk_refuse(subflow->trunk, problem);
}

/* The job has returned everything but the subflow itself. */
static void go_on(subflow_t *subflow)
{
    if (subflow->result == SUBFLOW_BROKEN)
        end_broken(subflow, subflow->problem);
    else if (subflow->result == SUBFLOW_REFUSED)
        trunk_refuse(subflow->trunk, subflow->problem);
    else if (subflow->sends && subflow->has_hung_up)
        end_broken(subflow, "the peer closed it");
    else if (subflow->result == SUBFLOW_BLOCKED)
        set_phase(subflow, SUBFLOW_WAITING);
    else if (subflow->sends)
        subflows_pump(subflow->trunk);
    else
        receive_again(subflow);
}

static void job_done(tow_work_t *work, tow_status_t take_status)
{
    subflow_t *subflow = TOW_CONTAINER_OF(work, subflow_t, work);
    tow_data_trunk_t *trunk = subflow->trunk;
    tow_status_ignore(take_status, "the result says it");
    subflow->phase = SUBFLOW_IDLE;
    if (subflow->sends)
        subflow_sent(subflow);
    else
        subflow_received(subflow);
    /* Callbacks of users may have ended the trunk. */
    if (trunk->state != TRUNK_ENDING) go_on(subflow);
    if (trunk->state == TRUNK_ENDING) trunk_try_free(trunk);
}

static bool on_ready(tow_net_source_t *source, uint32_t events)
{
    subflow_t *subflow = TOW_CONTAINER_OF(source, subflow_t, source);
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        subflow->has_hung_up = true;
    /* A thread finds out by itself. */
    if (subflow->phase == SUBFLOW_RUNNING ||
        subflow->trunk->state == TRUNK_ENDING)
        return false;
    if (subflow->sends && subflow->has_hung_up)
        end_broken(subflow, "the peer closed it");
    else if (!subflow->sends)
        receive_again(subflow);
    else if (subflow->phase == SUBFLOW_WAITING)
        subflow_start(subflow); /* Sends the rest; another job goes on. */
    return true;
}

/* -- On threads ------------------------------------------------------------ */

bool subflow_wait(subflow_t *subflow, short events)
{
    struct pollfd descriptor = {.fd = subflow->source.fd, .events = events};
    int count = 0;
    if (!atomic_load(&subflow->is_stopped) &&
        tow_net_clock_ns() < subflow->turn_end_ns)
        count = poll(&descriptor, 1, TOW_NET_SUBFLOW_WAIT_MS);
    if (count > 0 || (count < 0 && errno == EINTR))
        return !atomic_load(&subflow->is_stopped);
    subflow->result = SUBFLOW_BLOCKED;
    return false;
}

void subflow_break(subflow_t *subflow, const char *problem)
{
    snprintf(subflow->problem, sizeof(subflow->problem), "%s", problem);
    subflow->result = SUBFLOW_BROKEN;
}

void subflow_refuse(subflow_t *subflow, const char *problem)
{
    subflow_break(subflow, problem);
    subflow->result = SUBFLOW_REFUSED;
}

void subflow_break_status(subflow_t *subflow, tow_status_t take_status)
{
    subflow_break(subflow, tow_status_message(take_status));
    tow_status_release(take_status);
}

/* -- For tests ------------------------------------------------------------- */

bool tow_data_trunk_inject_striped(tow_data_trunk_t *trunk, const void *bytes,
                                   size_t size)
{
    const tow_list_t *head = &trunk->subflows;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        subflow_t *subflow = TOW_CONTAINER_OF(at, subflow_t, list);
        if (!subflow->sends || subflow->phase != SUBFLOW_IDLE) continue;
        tow_status_t status = tow_tls_write(subflow->tls, bytes, size);
        TOW_ASSERT(status == TOW_OK);
        subflow_start(subflow);
        return true;
    }
    return false;
}
