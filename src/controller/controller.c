/* Sessions come and go; the end of a turn. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- The end of a turn --------------------------------------------------------- */

static void tell_clients(tow_controller_t *controller)
{
    tow_list_t *item = controller->clients.next;
    while (item != &controller->clients) {
        client_t *client = TOW_CONTAINER_OF(item, client_t, node);
        item = item->next;
        tow_runs_tell(client);
        if (client->fault == TOW_OK) continue;
        tow_status_t fault = client->fault;
        client->fault = TOW_OK;
        tow_client_gone(client, fault);
        tow_status_release(fault);
    }
}

static void end_faulty_workers(tow_controller_t *controller)
{
    tow_list_t *item = controller->workers.next;
    while (item != &controller->workers) {
        worker_t *worker = TOW_CONTAINER_OF(item, worker_t, node);
        item = item->next;
        if (worker->fault != TOW_OK) tow_worker_gone(worker, worker->fault);
    }
}

/* Whatever a worker is sent, it hears of releases before: what is granted may need
 * their memory. Nothing that waits to be granted needs what was dropped, for it
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
        tow_sched_turn(controller->sched);
    } while (tow_runs_end_doomed(controller));
    tell_clients(controller);
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next)
        tow_worker_flush(TOW_CONTAINER_OF(item, worker_t, node));
}

void tow_controller_touch(tow_controller_t *controller)
{
    if (controller->turn_end_is_posted || controller->is_closing) return;
    controller->turn_end_is_posted = true;
    tow_env_post(controller->env, &controller->turn_end);
}

static void grant(void *context, tow_ticket_t *ticket)
{
    tow_controller_t *controller = context;
    unit_t *unit = TOW_CONTAINER_OF(ticket, unit_t, ticket);
    controller->granted_count++;
    if (unit->kind == UNIT_PUT)
        tow_put_grant(controller, TOW_CONTAINER_OF(unit, put_t, unit));
    else if (unit->kind == UNIT_REGROUP)
        tow_regroup_grant((regroup_t *)unit);
    else
        tow_run_grant(TOW_CONTAINER_OF(unit, run_t, unit));
}

static void refuse(void *context, tow_ticket_t *ticket,
                   tow_status_t take_status)
{
    tow_controller_t *controller = context;
    unit_t *unit = TOW_CONTAINER_OF(ticket, unit_t, ticket);
    take_status = tow_spill_explain(controller, take_status);
    if (unit->kind == UNIT_PUT)
        tow_put_refuse(controller, TOW_CONTAINER_OF(unit, put_t, unit),
                       take_status);
    else if (unit->kind == UNIT_REGROUP)
        tow_regroup_refuse((regroup_t *)unit, take_status);
    else
        tow_run_refuse(TOW_CONTAINER_OF(unit, run_t, unit), take_status);
}

/* -- Strangers ----------------------------------------------------------------- */

/* A session that has not said yet what it is. */
typedef struct stranger {
    tow_controller_t *controller;
    tow_session_t *session; /* owned */
    tow_list_t node;
} stranger_t;

static void forget_stranger(stranger_t *stranger)
{
    tow_list_remove(&stranger->node);
    tow_free(stranger);
}

static void stranger_gone(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    forget_stranger(context);
}

static void turn_away(stranger_t *stranger, tow_status_t take_status)
{
    tow_log(&stranger->controller->env->log, TOW_LOG_WARN, "turned away",
            TOW_F_STR("peer", tow_session_peer(stranger->session)->name),
            TOW_F_STR("why", tow_status_message(take_status)));
    tow_session_close(stranger->session, take_status, (tow_closed_t){0});
    tow_status_release(take_status);
    forget_stranger(stranger);
}

/* An answer that says why, so that the peer need not guess. */
static void refuse_client(stranger_t *stranger, tow_status_t take_status)
{
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    opened.failure = &failure;
    (void)!tow_session_send(stranger->session, TOW_MESSAGE_CLIENT_OPENED,
                            &opened.base);
    turn_away(stranger, take_status);
}

static void take_client(stranger_t *stranger, const tow_msg_client_open_t *open)
{
    tow_controller_t *controller = stranger->controller;
    client_t *client;
    tow_status_t status =
        tow_client_create(controller, stranger->session, open->name, &client);
    if (status != TOW_OK) {
        refuse_client(stranger, status);
        return;
    }
    forget_stranger(stranger);
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    opened.cluster = controller->cluster;
    opened.client = client->number;
    tow_tell_client(client, TOW_MESSAGE_CLIENT_OPENED, &opened.base);
}

static void refuse_worker(stranger_t *stranger, tow_status_t take_status)
{
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    joined.failure = &failure;
    (void)!tow_session_send(stranger->session, TOW_MESSAGE_WORKER_JOINED,
                            &joined.base);
    turn_away(stranger, take_status);
}

static void take_worker(stranger_t *stranger, const tow_msg_worker_join_t *join)
{
    tow_status_t status =
        tow_worker_join(stranger->controller, stranger->session, join);
    if (status == TOW_OK)
        forget_stranger(stranger);
    else
        refuse_worker(stranger, status);
}

static void stranger_message(void *context, tow_session_t *session,
                             const tow_message_t *message)
{
    stranger_t *stranger = context;
    tow_controller_t *controller = stranger->controller;
    const tow_body_t *body;
    tow_arena_reset(&controller->arena);
    tow_status_t status =
        tow_message_decode(message->type, message->bytes, message->size,
                           &controller->arena, &body);
    if (status != TOW_OK)
        turn_away(stranger, status);
    else if (message->type == TOW_MESSAGE_CLIENT_OPEN)
        take_client(stranger, (const tow_msg_client_open_t *)body);
    else if (message->type == TOW_MESSAGE_WORKER_JOIN)
        take_worker(stranger, (const tow_msg_worker_join_t *)body);
    else
        turn_away(stranger, TOW_ERROR(TOW_FAILED_PRECONDITION,
                                      "%s began with %s: a client begins with "
                                      "ClientOpen, a worker with WorkerJoin",
                                      tow_session_peer(session)->name,
                                      tow_message_type_name(message->type)));
}

static const tow_session_handler_t stranger_handler = {
    .message = stranger_message,
    .gone = stranger_gone,
};

static void arrived(void *context, tow_session_t *session)
{
    tow_controller_t *controller = context;
    stranger_t *stranger = tow_calloc(1, sizeof(*stranger));
    if (stranger == NULL || controller->is_closing) {
        tow_free(stranger);
        tow_status_t status =
            TOW_ERROR(TOW_UNAVAILABLE, "the controller %s",
                      stranger == NULL ? "has no memory" : "is closing");
        tow_session_close(session, status, (tow_closed_t){0});
        tow_status_release(status);
        return;
    }
    *stranger = (stranger_t){.controller = controller, .session = session};
    tow_list_append(&controller->strangers, &stranger->node);
    tow_session_accept(session, &stranger_handler, stranger);
}

/* -- Life ---------------------------------------------------------------------- */

static void init_lists(tow_controller_t *controller)
{
    tow_list_init(&controller->strangers);
    tow_list_init(&controller->workers);
    tow_list_init(&controller->clients);
    tow_list_init(&controller->residents);
    tow_list_init(&controller->codes);
    tow_list_init(&controller->runs);
    tow_list_init(&controller->doomed);
    tow_list_init(&controller->gathers);
    tow_list_init(&controller->regroups);
    tow_list_init(&controller->mappings);
    tow_arena_init(&controller->arena, TOW_MESSAGE_ARENA_BYTES);
    controller->turn_end.run = end_turn;
    controller->release_timer.fire = tow_workers_release;
    controller->late_timer.fire = tow_late_look;
    controller->patience_timer.fire = tow_reports_lose_patience;
}

static tow_status_t open_parts(tow_controller_t *controller)
{
    const tow_controller_options_t *options = &controller->options;
    TOW_RETURN_IF_ERROR(
        tow_ledger_create(&(tow_ledger_options_t){.dropped = tow_object_dropped,
                                                  .context = controller},
                          &controller->ledger));
    TOW_RETURN_IF_ERROR(
        tow_resource_create(controller->ledger, &controller->resource));
    TOW_RETURN_IF_ERROR(tow_sched_create(
        &(tow_sched_options_t){.run_ahead_max = options->run_ahead_max,
                               .grant = grant,
                               .refuse = refuse,
                               .weigh = tow_spill_weigh,
                               .make_room = tow_spill_make_room,
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
    *out_controller = controller;
    return TOW_OK;
}

const char *tow_controller_address(const tow_controller_t *controller)
{
    return tow_session_port_address(controller->port);
}

static void free_strangers(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->strangers)) {
        stranger_t *stranger =
            TOW_CONTAINER_OF(controller->strangers.next, stranger_t, node);
        tow_session_abandon(stranger->session);
        forget_stranger(stranger);
    }
}

void tow_controller_destroy(tow_controller_t *controller)
{
    if (controller == NULL) return;
    controller->is_closing = true;
    free_strangers(controller);
    tow_clients_abandon(controller);
    tow_workers_abandon(controller);
    tow_session_port_abandon(controller->port);
    tow_reports_destroy(controller);
    tow_callbacks_destroy(controller);
    tow_gets_destroy(controller); /* They stand in lists of what follows. */
    tow_regroups_destroy(controller);
    tow_puts_destroy(controller);
    tow_clients_destroy(controller);
    tow_runs_destroy(controller);
    tow_workers_destroy(controller);
    tow_codes_destroy(controller);
    tow_spills_destroy(controller);
    tow_sched_destroy(controller->sched);
    tow_mappings_destroy(controller);
    tow_resource_destroy(controller->resource);
    tow_ledger_destroy(controller->ledger);
    tow_map_deinit(&controller->run_of);
    tow_map_deinit(&controller->put_of);
    tow_map_deinit(&controller->get_of);
    tow_map_deinit(&controller->executable_of);
    tow_names_deinit(&controller->mapping_of);
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
    tow_env_timer_stop(controller->env, &controller->release_timer);
    tow_env_timer_stop(controller->env, &controller->late_timer);
    tow_env_timer_stop(controller->env, &controller->patience_timer);
    tow_status_t reason =
        TOW_ERROR(TOW_UNAVAILABLE, "the controller was told to end");
    if (controller->turn_end_is_posted) controller->closing_count++;
    for (tow_list_t *item = controller->strangers.next;
         item != &controller->strangers; item = item->next) {
        stranger_t *stranger = TOW_CONTAINER_OF(item, stranger_t, node);
        tow_session_close(stranger->session, reason,
                          tow_controller_closing(controller));
        stranger->session = NULL;
    }
    tow_clients_close(controller, reason);
    tow_workers_close(controller, reason);
    tow_codes_cancel(controller);
    tow_status_release(reason);
    tow_session_port_t *port = controller->port;
    controller->port = NULL;
    tow_session_port_close(port, tow_controller_closing(controller));
}

/* -- Telling ------------------------------------------------------------------- */

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
    tow_ledger_totals_t books = tow_ledger_totals(controller->ledger);
    tow_controller_totals_t totals = {
        .worker_count = count_list(&controller->workers),
        .client_count = count_list(&controller->clients),
        .run_count = tow_map_count(&controller->run_of),
        .object_count = books.object_count,
        .object_bytes = books.object_bytes,
        .reserved_bytes = books.reserved_bytes,
        .spilled_bytes = books.spilled_bytes,
        .spilled_count = controller->spilled_count,
        .granted_count = controller->granted_count,
        .granted_worker_count = controller->granted_worker_count,
        .grant_message_count = controller->grant_message_count,
        .done_message_count = controller->done_message_count,
        .abort_message_count = controller->abort_message_count,
        .again_message_count = controller->again_message_count,
    };
    for (const tow_list_t *item = controller->clients.next;
         item != &controller->clients; item = item->next) {
        const client_t *client = TOW_CONTAINER_OF(item, client_t, node);
        totals.slice_count += tow_map_count(&client->slices);
        totals.program_count += tow_map_count(&client->programs);
    }
    return totals;
}

tow_status_t tow_controller_check(const tow_controller_t *controller)
{
    TOW_RETURN_IF_ERROR(tow_ledger_check(controller->ledger));
    if (tow_list_is_empty(&controller->clients)) {
        tow_controller_totals_t totals = tow_controller_totals(controller);
        /* Gets and spills that are under way hold their objects until they are
         * answered. */
        if (totals.run_count == 0 && tow_map_count(&controller->get_of) == 0 &&
            tow_map_count(&controller->spill_of) == 0 &&
            (totals.object_count > 0 || totals.reserved_bytes > 0 ||
             totals.spilled_bytes > 0))
            return TOW_ERROR(TOW_INTERNAL,
                             "no client and no run, but %llu objects and %llu "
                             "reserved bytes",
                             (unsigned long long)totals.object_count,
                             (unsigned long long)totals.reserved_bytes);
    }
    return TOW_OK;
}
