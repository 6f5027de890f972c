/* The controller: arriving sessions, and the end of an event-loop turn. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"

/* -- The end of a turn --------------------------------------------------------- */

static void notify_clients(tow_controller_t *controller)
{
    tow_list_t *item = controller->clients.list.next;
    while (item != &controller->clients.list) {
        tow_ctl_client_t *client =
            TOW_CONTAINER_OF(item, tow_ctl_client_t, node);
        item = item->next;
        tow_ctl_runs_notify(client);
        tow_ctl_client_check(client);
        if (client->fault == TOW_OK) continue;
        tow_status_t fault = client->fault;
        client->fault = TOW_OK;
        tow_ctl_client_on_disconnect(client, fault);
        tow_status_release(fault);
    }
}

static void end_faulty_workers(tow_controller_t *controller)
{
    tow_list_t *item = controller->workers.list.next;
    while (item != &controller->workers.list) {
        tow_ctl_worker_t *worker =
            TOW_CONTAINER_OF(item, tow_ctl_worker_t, node);
        item = item->next;
        if (worker->fault != TOW_OK)
            tow_ctl_worker_on_disconnect(worker, worker->fault);
    }
}

/* A worker gets its releases before anything else, because a grant may need
 * their memory. Nothing that waits to be granted needs a released object: it
 * would hold it. */
static void end_turn(tow_post_t *post)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(post, tow_controller_t, turn_end);
    controller->turn_end_is_posted = false;
    if (controller->is_closing) {
        tow_controller_part_closed(controller);
        return;
    }
    end_faulty_workers(controller);
    do {
        tow_sched_pass(controller->sched);
    } while (tow_ctl_runs_end_unsendable(controller));
    notify_clients(controller);
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next)
        tow_ctl_worker_flush(TOW_CONTAINER_OF(item, tow_ctl_worker_t, node));
}

void tow_controller_touch(tow_controller_t *controller)
{
    if (controller->turn_end_is_posted || controller->is_closing) return;
    controller->turn_end_is_posted = true;
    tow_env_post(controller->env, &controller->turn_end);
}

static void prepare(void *context, tow_ticket_t *ticket)
{
    (void)context;
    tow_ctl_unit_t *unit = TOW_CONTAINER_OF(ticket, tow_ctl_unit_t, ticket);
    if (unit->kind == UNIT_RUN) tow_ctl_pieces_prepare((tow_ctl_run_t *)unit);
}

static bool is_held(void *context, const tow_ticket_t *ticket)
{
    (void)context;
    return tow_ctl_pieces_hold(
        TOW_CONTAINER_OF(ticket, const tow_ctl_unit_t, ticket));
}

static void grant(void *context, tow_ticket_t *ticket)
{
    tow_controller_t *controller = context;
    tow_ctl_unit_t *unit = TOW_CONTAINER_OF(ticket, tow_ctl_unit_t, ticket);
    controller->runs.granted_count++;
    if (unit->kind == UNIT_PUT)
        tow_ctl_put_grant(controller,
                          TOW_CONTAINER_OF(unit, tow_ctl_put_t, unit));
    else if (unit->kind == UNIT_ASSEMBLY)
        tow_ctl_assembly_grant((tow_ctl_assembly_t *)unit);
    else
        tow_ctl_run_grant(TOW_CONTAINER_OF(unit, tow_ctl_run_t, unit));
}

static void refuse(void *context, tow_ticket_t *ticket,
                   tow_status_t take_status)
{
    tow_controller_t *controller = context;
    tow_ctl_unit_t *unit = TOW_CONTAINER_OF(ticket, tow_ctl_unit_t, ticket);
    take_status = tow_ctl_spill_explain(controller, take_status);
    if (unit->kind == UNIT_PUT)
        tow_ctl_put_refuse(controller,
                           TOW_CONTAINER_OF(unit, tow_ctl_put_t, unit),
                           take_status);
    else if (unit->kind == UNIT_ASSEMBLY)
        tow_ctl_assembly_refuse((tow_ctl_assembly_t *)unit, take_status);
    else
        tow_ctl_run_refuse(TOW_CONTAINER_OF(unit, tow_ctl_run_t, unit),
                           take_status);
}

/* -- Sessions that have not identified themselves -------------------------- */

/* A session that has sent neither ClientOpen nor WorkerJoin yet. */
typedef struct pending {
    tow_controller_t *controller;
    tow_session_t *session; /* owned */
    /* Reserved for the worker that will join; NULL: none. Borrowed. */
    tow_ctl_place_t *place;
    tow_list_t node;
} pending_session_t;

static void free_pending(pending_session_t *pending)
{
    if (pending->place != NULL)
        tow_ctl_place_release(pending->controller, pending->place);
    tow_list_remove(&pending->node);
    tow_free(pending);
}

static void on_pending_disconnect(void *context, tow_session_t *session,
                                  tow_status_t cause)
{
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    free_pending(context);
}

static void reject_session(pending_session_t *pending, tow_status_t take_status)
{
    tow_log(&pending->controller->env->log, TOW_LOG_WARN, "session rejected",
            TOW_F_STR("peer", tow_session_peer(pending->session)->name),
            TOW_F_STR("why", tow_status_message(take_status)));
    tow_session_close(pending->session, take_status, (tow_closed_t){0});
    tow_status_release(take_status);
    free_pending(pending);
}

/* The answer tells the peer the reason. */
static void refuse_client(pending_session_t *pending, tow_status_t take_status)
{
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    opened.failure = &failure;
    (void)!tow_session_send(pending->session, TOW_MESSAGE_CLIENT_OPENED,
                            &opened.base);
    reject_session(pending, take_status);
}

static void take_client(pending_session_t *pending,
                        const tow_msg_client_open_t *open)
{
    tow_controller_t *controller = pending->controller;
    tow_ctl_client_t *client;
    tow_status_t status = tow_ctl_client_create(controller, pending->session,
                                                open->name, &client);
    if (status != TOW_OK) {
        refuse_client(pending, status);
        return;
    }
    free_pending(pending);
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    opened.cluster = controller->cluster;
    opened.client = client->number;
    tow_ctl_client_send(client, TOW_MESSAGE_CLIENT_OPENED, &opened.base);
}

static void refuse_worker(pending_session_t *pending, tow_status_t take_status)
{
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    joined.failure = &failure;
    (void)!tow_session_send(pending->session, TOW_MESSAGE_WORKER_JOINED,
                            &joined.base);
    reject_session(pending, take_status);
}

static void take_worker(pending_session_t *pending,
                        const tow_msg_worker_join_t *join)
{
    tow_status_t status =
        tow_ctl_worker_join(pending->controller, pending->session, join);
    if (status == TOW_OK)
        free_pending(pending);
    else
        refuse_worker(pending, status);
}

/* The session stays open while the worker opens its devices, and holds the
 * reservation. */
static void enrol_worker(pending_session_t *pending,
                         const tow_msg_worker_enrol_t *enrol)
{
    tow_controller_t *controller = pending->controller;
    tow_msg_worker_enrol_t answer = TOW_MSG_WORKER_ENROL_INIT;
    tow_status_t status = tow_ctl_place_reserve(
        controller, enrol, pending->session, &pending->place);
    tow_msg_failure_t failure = tow_failure_of(status);
    if (status == TOW_OK) {
        answer.host = pending->place->host;
        answer.name = pending->place->name;
        answer.has_process = true;
        answer.process = pending->place->process;
    } else {
        answer.failure = &failure;
    }
    (void)!tow_session_send(pending->session, TOW_MESSAGE_WORKER_ENROL,
                            &answer.base);
    if (status != TOW_OK) reject_session(pending, status);
}

static void on_pending_message(void *context, tow_session_t *session,
                               const tow_message_t *message)
{
    pending_session_t *pending = context;
    tow_controller_t *controller = pending->controller;
    const tow_body_t *body;
    tow_arena_reset(&controller->arena);
    tow_status_t status =
        tow_message_decode(message->type, message->bytes, message->size,
                           &controller->arena, &body);
    if (status != TOW_OK)
        reject_session(pending, status);
    else if (message->type == TOW_MESSAGE_CLIENT_OPEN)
        take_client(pending, (const tow_msg_client_open_t *)body);
    else if (message->type == TOW_MESSAGE_WORKER_JOIN)
        take_worker(pending, (const tow_msg_worker_join_t *)body);
    else if (message->type == TOW_MESSAGE_WORKER_ENROL &&
             pending->place == NULL)
        enrol_worker(pending, (const tow_msg_worker_enrol_t *)body);
    else
        reject_session(pending,
                       TOW_ERROR(TOW_FAILED_PRECONDITION,
                                 "the first message of %s is %s: a client "
                                 "sends ClientOpen first, a worker "
                                 "WorkerEnrol or WorkerJoin",
                                 tow_session_peer(session)->name,
                                 tow_message_type_name(message->type)));
}

static const tow_session_handler_t pending_handler = {
    .message = on_pending_message,
    .disconnected = on_pending_disconnect,
};

static void arrived(void *context, tow_session_t *session)
{
    tow_controller_t *controller = context;
    pending_session_t *pending = tow_calloc(1, sizeof(*pending));
    if (pending == NULL || controller->is_closing) {
        tow_free(pending);
        tow_status_t status =
            TOW_ERROR(TOW_UNAVAILABLE, "the controller %s",
                      pending == NULL ? "is out of memory" : "is closing");
        tow_session_close(session, status, (tow_closed_t){0});
        tow_status_release(status);
        return;
    }
    *pending =
        (pending_session_t){.controller = controller, .session = session};
    tow_list_append(&controller->pending_sessions, &pending->node);
    tow_session_accept(session, &pending_handler, pending);
}

/* -- Opening and closing --------------------------------------------------- */

static void init_lists(tow_controller_t *controller)
{
    tow_list_init(&controller->pending_sessions);
    tow_list_init(&controller->workers.list);
    tow_ctl_roster_init(controller);
    tow_list_init(&controller->clients.list);
    tow_list_init(&controller->programs.list);
    tow_list_init(&controller->codes.list);
    tow_list_init(&controller->runs.list);
    tow_list_init(&controller->runs.unsendable);
    tow_list_init(&controller->reports.list);
    tow_list_init(&controller->assemblies.list);
    tow_list_init(&controller->mappings.list);
    tow_arena_init(&controller->arena, TOW_MESSAGE_ARENA_BYTES);
    controller->turn_end.run = end_turn;
    controller->workers.release_timer.fire = tow_ctl_workers_on_release_timer;
    controller->stalls.timer.fire = tow_ctl_stall_on_timer;
    controller->reports.timer.fire = tow_ctl_reports_on_timeout;
    controller->clients.idle_timer.fire = tow_ctl_clients_on_idle_timer;
}

static tow_status_t open_parts(tow_controller_t *controller)
{
    const tow_controller_options_t *options = &controller->options;
    TOW_RETURN_IF_ERROR(tow_object_table_create(
        &(tow_object_table_options_t){.discarded = tow_ctl_object_discarded,
                                      .context = controller},
        &controller->object_table));
    TOW_RETURN_IF_ERROR(
        tow_resource_create(controller->object_table, &controller->resource));
    TOW_RETURN_IF_ERROR(tow_sched_create(
        &(tow_sched_options_t){.run_ahead_ns = options->run_ahead_ns,
                               .grant = grant,
                               .prepare = prepare,
                               .is_held = is_held,
                               .refuse = refuse,
                               .update_parts = tow_ctl_spill_weigh,
                               .make_room = tow_ctl_spill_make_room,
                               .context = controller},
        &controller->sched));
    return tow_session_listen(
        controller->env,
        &(tow_session_listen_options_t){.address = options->address,
                                        .limits = options->limits,
                                        .arrived = arrived,
                                        .context = controller},
        &controller->port);
}

static void fill_options(tow_controller_options_t *options)
{
    uint32_t *above = &options->relay_above, *fanout = &options->relay_fanout;
    if (*above == 0) *above = *fanout == 0 ? TOW_RELAY_WORKERS_MIN : *fanout;
    if (*fanout == 0) *fanout = TOW_RELAY_FANOUT;
    if (*fanout == 1) *above = UINT32_MAX;
    if (*fanout > TOW_RELAY_FANOUT_MAX) *fanout = TOW_RELAY_FANOUT_MAX;
    if (options->code_bytes_max == 0)
        options->code_bytes_max = TOW_CODE_BYTES_MAX;
}

tow_status_t tow_controller_open(tow_env_t *env,
                                 const tow_controller_options_t *options,
                                 tow_controller_t **out_controller)
{
    TOW_ASSERT(options->address != NULL && options->compiler != NULL);
    TOW_ASSERT(options->idle_timeout_ns == 0 || options->idle != NULL);
    *out_controller = NULL;
    tow_controller_t *controller = tow_calloc(1, sizeof(*controller));
    if (controller == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    controller->env = env;
    controller->options = *options;
    fill_options(&controller->options);
    controller->cluster = tow_random_next(tow_env_random(env)) | 1;
    init_lists(controller);
    tow_status_t status = open_parts(controller);
    if (status != TOW_OK) {
        tow_controller_destroy(controller);
        return tow_status_annotate(status, "opening the controller at %s",
                                   options->address);
    }
    tow_ctl_clients_watch_idle(controller);
    *out_controller = controller;
    return TOW_OK;
}

const char *tow_controller_address(const tow_controller_t *controller)
{
    return tow_session_port_address(controller->port);
}

static void discard_pending(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->pending_sessions)) {
        pending_session_t *pending = TOW_CONTAINER_OF(
            controller->pending_sessions.next, pending_session_t, node);
        tow_session_discard(pending->session);
        free_pending(pending);
    }
}

void tow_controller_destroy(tow_controller_t *controller)
{
    if (controller == NULL) return;
    controller->is_closing = true;
    discard_pending(controller);
    tow_ctl_clients_discard(controller);
    tow_ctl_workers_discard(controller);
    tow_session_port_discard(controller->port);
    tow_ctl_reports_destroy(controller);
    tow_ctl_callbacks_destroy(controller);
    tow_ctl_gets_destroy(
        controller); /* They are in lists of the records below. */
    tow_ctl_assemblies_destroy(controller);
    tow_ctl_puts_destroy(controller);
    tow_ctl_clients_destroy(controller);
    tow_ctl_runs_destroy(controller);
    tow_ctl_workers_destroy(controller);
    tow_ctl_codes_destroy(controller);
    tow_ctl_spills_destroy(controller);
    tow_sched_destroy(controller->sched);
    tow_ctl_mappings_destroy(controller);
    tow_resource_destroy(controller->resource);
    tow_object_table_destroy(controller->object_table);
    tow_map_deinit(&controller->runs.by_key);
    tow_map_deinit(&controller->puts.by_key);
    tow_map_deinit(&controller->gets.by_number);
    tow_map_deinit(&controller->programs.executable_by_id);
    tow_names_deinit(&controller->mappings.by_key);
    tow_ctl_roster_deinit(controller);
    tow_arena_deinit(&controller->arena);
    tow_free(controller);
}

void tow_controller_part_closed(void *context)
{
    tow_controller_t *controller = context;
    TOW_ASSERT(controller->closing_count > 0);
    if (--controller->closing_count > 0) return;
    tow_closed_t closed = controller->closed;
    tow_controller_destroy(controller);
    if (closed.run != NULL) closed.run(closed.context);
}

tow_closed_t tow_controller_closing(tow_controller_t *controller)
{
    controller->closing_count++;
    return (tow_closed_t){tow_controller_part_closed, controller};
}

void tow_controller_close(tow_controller_t *controller, tow_closed_t closed)
{
    TOW_ASSERT(!controller->is_closing);
    controller->is_closing = true;
    controller->closed = closed;
    tow_env_timer_stop(controller->env, &controller->workers.release_timer);
    tow_env_timer_stop(controller->env, &controller->stalls.timer);
    tow_env_timer_stop(controller->env, &controller->reports.timer);
    tow_env_timer_stop(controller->env, &controller->clients.idle_timer);
    tow_status_t reason =
        TOW_ERROR(TOW_UNAVAILABLE, "the controller is shutting down");
    if (controller->turn_end_is_posted) controller->closing_count++;
    for (tow_list_t *item = controller->pending_sessions.next;
         item != &controller->pending_sessions; item = item->next) {
        pending_session_t *pending =
            TOW_CONTAINER_OF(item, pending_session_t, node);
        tow_session_close(pending->session, reason,
                          tow_controller_closing(controller));
        pending->session = NULL;
    }
    tow_ctl_clients_close(controller, reason);
    tow_ctl_workers_close(controller, reason);
    tow_ctl_codes_cancel(controller);
    tow_status_release(reason);
    tow_session_port_t *port = controller->port;
    controller->port = NULL;
    tow_session_port_close(port, tow_controller_closing(controller));
}

/* -- Totals ---------------------------------------------------------------- */

static size_t count_list(const tow_list_t *list)
{
    size_t count = 0;
    for (const tow_list_t *item = list->next; item != list; item = item->next)
        count++;
    return count;
}

tow_controller_totals_t tow_controller_totals(
    const tow_controller_t *controller)
{
    tow_object_table_totals_t objects =
        tow_object_table_totals(controller->object_table);
    tow_controller_totals_t totals = {
        .worker_count = count_list(&controller->workers.list),
        .client_count = count_list(&controller->clients.list),
        .run_count = tow_map_count(&controller->runs.by_key),
        .object_count = objects.object_count,
        .object_bytes = objects.object_bytes,
        .reserved_bytes = objects.reserved_bytes,
        .spilled_bytes = objects.spilled_bytes,
        .spilled_count = controller->spills.total_count,
        .granted_count = controller->runs.granted_count,
        .granted_worker_count = controller->runs.granted_worker_count,
        .grant_message_count = controller->runs.grant_message_count,
        .done_message_count = controller->runs.done_message_count,
        .abort_message_count = controller->runs.abort_message_count,
        .again_message_count = controller->runs.again_message_count,
        .device_ns = controller->runs.time.busy_ns,
        .wait_ns = controller->runs.time.wait_ns,
    };
    for (const tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next) {
        const tow_ctl_client_t *client =
            TOW_CONTAINER_OF(item, tow_ctl_client_t, node);
        totals.slice_count += tow_map_count(&client->slices);
        totals.program_count += tow_map_count(&client->programs);
    }
    return totals;
}
