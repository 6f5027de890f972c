/* The life of a worker: sessions with its controller, one after the other.
 *
 *     WAITING -> DIALLING -> JOINING -> JOINED -> DRAINING -> WAITING ...
 *
 * DRAINING lasts until nothing of the old session has a callback outstanding, so
 * the next one begins with nothing. */
#include "worker/worker.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "worker/worker_impl.h"

/* A message that waits for room in the session. */
typedef struct letter {
    tow_list_t in_outbox;
    uint32_t type;
    uint32_t size;
    uint8_t bytes[];
} letter_t;

static void dial(tow_worker_t *worker);

/* -- What leaves -------------------------------------------------------------- */

static void drop_outbox(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->outbox)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, letter_t, in_outbox));
    worker->outbox_bytes = 0;
}

static void keep(tow_worker_t *worker, uint32_t type, const tow_body_t *body)
{
    const size_t size = tow_message_size(body);
    letter_t *letter = NULL;
    if (worker->outbox_bytes + size <= TOW_WORKER_OUTBOX_BYTES_MAX)
        letter = tow_malloc(sizeof(*letter) + size);
    if (letter == NULL) {
        worker_end_soon(worker,
                        TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                  "the controller does not read: %zu bytes "
                                  "wait for it, and %zu more",
                                  worker->outbox_bytes, size));
        return;
    }
    letter->type = type;
    letter->size = (uint32_t)size;
    tow_message_encode(body, letter->bytes);
    tow_list_append(&worker->outbox, &letter->in_outbox);
    worker->outbox_bytes += size;
}

void worker_send(tow_worker_t *worker, uint32_t type, const tow_body_t *body)
{
    if (TOW_UNLIKELY(worker->session == NULL || worker->doom != TOW_OK)) return;
    if (TOW_LIKELY(tow_list_is_empty(&worker->outbox)) &&
        TOW_LIKELY(tow_session_send(worker->session, type, body) !=
                   TOW_SEND_FULL))
        return; /* Taken; or gone, as we shall be told. */
    keep(worker, type, body);
}

static bool send_letter(tow_worker_t *worker, letter_t *letter)
{
    uint8_t *room;
    const tow_send_result_t result =
        tow_session_begin(worker->session, letter->size, &room);
    if (result == TOW_SEND_FULL) return false;
    if (result == TOW_SEND_OK) {
        if (letter->size > 0) memcpy(room, letter->bytes, letter->size);
        tow_session_commit(worker->session, letter->type, letter->size);
    }
    worker->outbox_bytes -= letter->size;
    tow_list_remove(&letter->in_outbox);
    tow_free(letter);
    return true;
}

static void on_writable(void *context, tow_session_t *session)
{
    (void)session;
    tow_worker_t *worker = context;
    while (!tow_list_is_empty(&worker->outbox))
        if (!send_letter(worker, TOW_CONTAINER_OF(worker->outbox.next, letter_t,
                                                  in_outbox)))
            return;
}

/* -- The end of a session ------------------------------------------------------ */

static bool is_quiet(const tow_worker_t *worker)
{
    return worker->session == NULL && tow_dataflow_is_quiet(worker->dataflow) &&
           worker->load_count == 0 && worker->put_count == 0 &&
           worker->get_count == 0 && worker->spill_count == 0 &&
           worker->lane_count == 0 && worker->line_count == 0 &&
           !worker->is_port_closing && tow_mover_is_quiet(worker->mover);
}

static void free_tables(tow_worker_t *worker)
{
    drop_outbox(worker);
    tow_status_release(worker->doom);
    worker_peers_free(worker);
    worker_relay_free(worker);
    tow_map_deinit(&worker->peers);
    tow_map_deinit(&worker->blobs);
    tow_map_deinit(&worker->puts_by_object);
    tow_map_deinit(&worker->spills_by_object);
    tow_arena_deinit(&worker->arena);
    tow_stash_forget(&worker->stash);
    tow_free((char *)worker->options.controller);
    tow_free((char *)worker->options.controller_name);
    tow_free((char *)worker->options.host);
    tow_free((char *)worker->options.island);
    tow_free(worker);
}

static void destroy(tow_worker_t *worker)
{
    if (worker->port != NULL) /* It never began. */
        tow_session_port_close(worker->port, (tow_closed_t){0});
    tow_dataflow_destroy(worker->dataflow);
    tow_mover_destroy(worker->mover);
    tow_shelf_destroy(worker->shelf);
    tow_stash_deinit(&worker->stash);
    free_tables(worker);
}

static void tell_closed(tow_post_t *post)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(post, tow_worker_t, closing);
    const tow_closed_t closed = worker->closed;
    destroy(worker);
    if (closed.run != NULL) closed.run(closed.context);
}

static void wait_to_dial(tow_worker_t *worker)
{
    const int64_t delay_ns = worker->redial_delay_ns;
    const uint64_t half_ns = (uint64_t)delay_ns / 2;
    const uint64_t more_ns =
        tow_random_below(tow_env_random(worker->env), half_ns + 1);
    worker->state = TOW_WORKER_WAITING;
    tow_env_timer_start(worker->env, &worker->redial,
                        tow_env_now_ns(worker->env) +
                            (int64_t)(half_ns + more_ns));
    worker->redial_delay_ns = 2 * delay_ns < TOW_WORKER_REDIAL_MAX_NS
                                  ? 2 * delay_ns
                                  : TOW_WORKER_REDIAL_MAX_NS;
}

void worker_settle(tow_worker_t *worker)
{
    const bool is_leaving = worker->state == TOW_WORKER_DRAINING ||
                            worker->state == TOW_WORKER_CLOSING;
    if (TOW_LIKELY(!is_leaving) || !is_quiet(worker)) return;
    TOW_ASSERT(tow_shelf_totals(worker->shelf).object_count == 0);
    if (!worker->is_closing) {
        wait_to_dial(worker);
    } else if (worker->closing.run == NULL) {
        worker->closing.run = tell_closed;
        tow_env_post(worker->env, &worker->closing);
    }
}

static void on_session_closed(void *context)
{
    tow_worker_t *worker = context;
    worker->session = NULL;
    worker->is_session_closing = false;
    worker_settle(worker);
}

/* Drops all that the session has brought. `reason` is what the controller is
 * told, if it is there; `cause` is what the owner is. */
static void end_session(tow_worker_t *worker, tow_status_t reason,
                        tow_status_t cause)
{
    TOW_ASSERT(worker->session != NULL && !worker->is_session_closing);
    const bool was_joined = worker_is_joined(worker);
    worker->state =
        worker->is_closing ? TOW_WORKER_CLOSING : TOW_WORKER_DRAINING;
    worker->is_session_closing = true;
    tow_session_close(worker->session, reason,
                      (tow_closed_t){on_session_closed, worker});
    drop_outbox(worker);
    tow_env_timer_stop(worker->env, &worker->doom_timer);
    tow_status_release(worker->doom);
    worker->doom = TOW_OK;
    worker_peers_drop(worker, cause);
    worker_relay_drop(worker);
    worker_calls_drop(worker, cause);
    tow_dataflow_clear(worker->dataflow, cause);
    tow_mover_clear(worker->mover);
    worker_loads_drop(worker);
    worker_puts_drop(worker);
    worker_gets_drop(worker);
    worker_spills_drop(worker);
    worker_lanes_drop(worker);
    tow_shelf_clear(worker->shelf);
    if (was_joined && worker->options.hooks.lost != NULL)
        worker->options.hooks.lost(worker->options.hooks.context, cause);
    worker_settle(worker);
}

/* A session that never was: a line now and then, whatever the reason is now. */
static void complain(tow_worker_t *worker, tow_status_t cause)
{
    const int64_t now_ns = tow_env_now_ns(worker->env);
    if (worker->complained_ns != 0 &&
        now_ns - worker->complained_ns < TOW_WORKER_COMPLAINT_NS)
        return;
    worker->complained_ns = now_ns;
    tow_log(&worker->env->log, TOW_LOG_WARN, "not in the cluster",
            TOW_F_STR("controller", worker->options.controller),
            TOW_F_STR("state", tow_worker_state_name(worker->state)),
            TOW_F_STATUS("cause", cause));
}

/* Somebody answered, and said no. */
static bool is_refusal(tow_status_t cause)
{
    switch (tow_status_code(cause)) {
    case TOW_ALREADY_EXISTS:
    case TOW_FAILED_PRECONDITION:
    case TOW_INVALID_ARGUMENT:
    case TOW_UNAUTHENTICATED: return true;
    default: return false;
    }
}

static void tell_refused(const tow_worker_t *worker, tow_status_t cause)
{
    const tow_worker_hooks_t *hooks = &worker->options.hooks;
    if (hooks->refused != NULL && is_refusal(cause))
        hooks->refused(hooks->context, cause);
}

/* `reason` is what the controller is told. */
static void lose_session(tow_worker_t *worker, tow_status_t reason,
                         tow_status_t cause)
{
    if (worker_is_joined(worker)) {
        /* An owner that is told of the loss says so itself. */
        if (reason != TOW_OK || worker->options.hooks.lost == NULL)
            tow_log(&worker->env->log, TOW_LOG_WARN, "session ended",
                    TOW_F_STR("controller", worker->options.controller),
                    TOW_F_STATUS("cause", cause));
    } else {
        complain(worker, cause);
        tell_refused(worker, cause);
    }
    end_session(worker, reason, cause);
}

static void on_gone(void *context, tow_session_t *session, tow_status_t cause)
{
    (void)session;
    lose_session(context, TOW_OK, cause);
}

static void fail_session(tow_worker_t *worker, tow_status_t take_cause)
{
    lose_session(worker, take_cause, take_cause);
    tow_status_release(take_cause);
}

static void on_doom(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, doom_timer);
    tow_status_t cause = worker->doom;
    worker->doom = TOW_OK;
    fail_session(worker, cause);
}

void worker_end_soon(tow_worker_t *worker, tow_status_t take_cause)
{
    if (worker->doom != TOW_OK || worker->session == NULL ||
        worker->is_session_closing) {
        tow_status_ignore(take_cause, "it ends for another reason");
        return;
    }
    worker->doom = take_cause;
    tow_env_timer_start(worker->env, &worker->doom_timer,
                        tow_env_now_ns(worker->env));
}

/* -- The beginning of a session ------------------------------------------------- */

static void describe_device(const tow_driver_t *driver, size_t index,
                            tow_msg_device_t *device)
{
    const tow_device_info_t *info = &driver->devices[index];
    *device = (tow_msg_device_t)TOW_MSG_DEVICE_INIT;
    device->id = info->id;
    device->kind = (char *)info->kind;
    device->name = (char *)info->name;
    device->memory_bytes = info->memory_bytes;
}

static void join(tow_worker_t *worker)
{
    const tow_driver_t *driver = worker->options.driver;
    tow_msg_worker_join_t message = TOW_MSG_WORKER_JOIN_INIT;
    tow_msg_lane_target_t mail = TOW_MSG_LANE_TARGET_INIT;
    tow_msg_device_t devices[TOW_WORKER_DEVICES_MAX];
    tow_msg_device_t *pointers[TOW_WORKER_DEVICES_MAX];
    for (size_t i = 0; i < driver->device_count; i++) {
        describe_device(driver, i, &devices[i]);
        pointers[i] = &devices[i];
    }
    message.process = worker->options.process;
    message.host = (char *)worker->options.host;
    message.island = (char *)worker->options.island;
    message.door = (char *)worker_peers_door(worker);
    message.platform = (char *)driver->platform;
    message.version = (char *)driver->version;
    if (driver->stablehlo != NULL)
        message.stablehlo = (char *)driver->stablehlo;
    message.simulated = driver->simulated;
    message.host_bytes = worker->options.limits.host_bytes_max;
    message.devices = pointers;
    message.n_devices = driver->device_count;
    if (worker->options.mail.id != 0 && tow_env_has_lanes(worker->env)) {
        const void *address;
        tow_env_lane_address(worker->env, &address, &mail.lane_address.len);
        mail.lane_address.data = (uint8_t *)address;
        mail.region_id = worker->options.mail.id;
        mail.region_secret = worker->options.mail.secret;
        message.mail = &mail;
    }
    worker_send(worker, TOW_MESSAGE_WORKER_JOIN, &message.base);
}

static void on_opened(void *context, tow_session_t *session)
{
    (void)session;
    tow_worker_t *worker = context;
    worker->state = TOW_WORKER_JOINING;
    join(worker);
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    (void)session;
    TOW_TRACE(tow_message_type_name(message->type));
    tow_worker_t *worker = context;
    if (TOW_UNLIKELY(worker->doom != TOW_OK)) return;
    tow_status_t status = worker_serve(worker, message);
    if (TOW_LIKELY(status == TOW_OK)) return;
    fail_session(worker,
                 tow_status_annotate(status, "%s",
                                     tow_message_type_name(message->type)));
}

static void on_blob(void *context, tow_session_t *session, uint64_t number,
                    void *take_bytes, size_t size)
{
    (void)session;
    tow_worker_t *worker = context;
    tow_status_t status = worker_take_blob(worker, number, take_bytes, size);
    if (status != TOW_OK) worker_end_soon(worker, status);
}

static const tow_session_handler_t session_handler = {
    .opened = on_opened,
    .message = on_message,
    .blob = on_blob,
    .writable = on_writable,
    .gone = on_gone,
};

static tow_status_t try_dial(tow_worker_t *worker)
{
    const tow_session_dial_options_t options = {
        .address = worker->options.controller,
        .expected_name = worker->options.controller_name,
        .limits = worker->options.limits.session,
        .handler = &session_handler,
        .context = worker,
    };
    TOW_RETURN_IF_ERROR(
        tow_session_dial(worker->env, &options, &worker->session));
    worker->state = TOW_WORKER_DIALLING;
    return TOW_OK;
}

/* The address was good the first time, so this is for want of memory. */
static void dial(tow_worker_t *worker)
{
    tow_status_t status = try_dial(worker);
    if (status == TOW_OK) return;
    tow_log(&worker->env->log, TOW_LOG_ERROR, "cannot dial",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
    wait_to_dial(worker);
}

static void on_redial(tow_timer_t *timer)
{
    dial(TOW_CONTAINER_OF(timer, tow_worker_t, redial));
}

/* -- Opening and closing --------------------------------------------------------- */

static void abort_gang(void *context, uint64_t gang_id, tow_status_t cause)
{
    tow_worker_t *worker = context;
    const tow_worker_hooks_t *hooks = &worker->options.hooks;
    worker_calls_abort(worker, gang_id, cause);
    if (hooks->abort_gang != NULL)
        hooks->abort_gang(hooks->context, gang_id, cause);
}

static void *take_memory(void *context, size_t size)
{
    return tow_stash_take(&((tow_worker_t *)context)->stash, size);
}

static void give_memory(void *context, void *bytes, size_t size)
{
    tow_stash_give(&((tow_worker_t *)context)->stash, bytes, size);
}

static void mover_quiet(void *context)
{
    worker_settle(context);
}

static tow_status_t copy_options(tow_worker_t *worker,
                                 const tow_worker_options_t *options)
{
    worker->options = *options;
    worker->options.controller = tow_strdup(options->controller);
    worker->options.host = tow_strdup(options->host);
    worker->options.island =
        tow_strdup(options->island != NULL ? options->island : "");
    worker->options.controller_name = options->controller_name != NULL
                                          ? tow_strdup(options->controller_name)
                                          : NULL;
    tow_worker_limits_t *limits = &worker->options.limits;
    if (limits->put_bytes_max == 0)
        limits->put_bytes_max = TOW_WORKER_PUT_BYTES_MAX;
    if (limits->get_bytes_max == 0)
        limits->get_bytes_max = TOW_WORKER_GET_BYTES_MAX;
    if (worker->options.controller == NULL || worker->options.host == NULL ||
        worker->options.island == NULL ||
        (options->controller_name != NULL &&
         worker->options.controller_name == NULL))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static tow_status_t set_up(tow_worker_t *worker,
                           const tow_worker_options_t *options)
{
    TOW_RETURN_IF_ERROR(copy_options(worker, options));
    const tow_shelf_options_t shelf = {
        .shard_count_max = options->driver->device_count,
        .object_count_max = options->limits.object_count_max};
    TOW_RETURN_IF_ERROR(tow_shelf_create(&shelf, &worker->shelf));
    const tow_mover_options_t mover = {.driver = options->driver,
                                       .process = options->process,
                                       .send = worker_peer_send,
                                       .write = worker_peer_write,
                                       .memory_take = take_memory,
                                       .memory_give = give_memory,
                                       .quiet = mover_quiet,
                                       .context = worker};
    TOW_RETURN_IF_ERROR(tow_mover_create(&mover, &worker->mover));
    const tow_dataflow_options_t dataflow = {
        .driver = options->driver,
        .shelf = worker->shelf,
        .mover = worker->mover,
        .process = options->process,
        .finished = worker_report_finished,
        .abort_gang = abort_gang,
        .context = worker,
        .host_runner = options->host_runner,
        .unblocked = worker_relay_unblocked,
        .run_count_max = options->limits.run_count_max,
        .step_count_max = options->limits.step_count_max,
        .may_run_inline = options->may_run_inline,
        .may_linger_always = options->may_linger_always};
    TOW_RETURN_IF_ERROR(tow_dataflow_create(&dataflow, &worker->dataflow));
    TOW_RETURN_IF_ERROR(tow_status_annotate(
        worker_peers_open(worker, options->door), "its door"));
    return try_dial(worker);
}

static tow_status_t check_options(const tow_worker_options_t *options)
{
    TOW_ASSERT(options->controller != NULL && options->host != NULL &&
               options->driver != NULL);
    if (options->driver->device_count == 0 ||
        options->driver->device_count > TOW_WORKER_DEVICES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a worker has 1 to %u devices; the driver has %zu",
                         TOW_WORKER_DEVICES_MAX, options->driver->device_count);
    if (strlen(options->host) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the host's name has more than %u bytes",
                         TOW_NAME_MAX);
    if (options->island != NULL && strlen(options->island) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the island's name has more than %u bytes",
                         TOW_NAME_MAX);
    return TOW_OK;
}

tow_status_t tow_worker_open(tow_env_t *env,
                             const tow_worker_options_t *options,
                             tow_worker_t **out_worker)
{
    *out_worker = NULL;
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_worker_t *worker = tow_calloc(1, sizeof(*worker));
    if (worker == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    worker->env = env;
    worker->redial.fire = on_redial;
    worker->redial_delay_ns = TOW_WORKER_REDIAL_MIN_NS;
    worker->doom_timer.fire = on_doom;
    tow_arena_init(&worker->arena, TOW_WORKER_ARENA_BYTES_MAX);
    tow_stash_init(&worker->stash, env);
    tow_list_init(&worker->loads);
    tow_list_init(&worker->puts);
    tow_list_init(&worker->gets);
    tow_list_init(&worker->spills);
    tow_list_init(&worker->waiting_gets);
    tow_list_init(&worker->calls);
    tow_list_init(&worker->lanes);
    tow_list_init(&worker->outbox);
    tow_list_init(&worker->lines);
    tow_list_init(&worker->peer_writes);
    worker_relay_open(worker);
    tow_status_t status = set_up(worker, options);
    if (status != TOW_OK) {
        destroy(worker);
        return tow_status_annotate(status, "opening a worker for %s",
                                   options->controller);
    }
    *out_worker = worker;
    return TOW_OK;
}

void tow_worker_close(tow_worker_t *worker, tow_status_t reason,
                      tow_closed_t closed)
{
    TOW_ASSERT(!worker->is_closing);
    worker->is_closing = true;
    worker->closed = closed;
    tow_env_timer_stop(worker->env, &worker->redial);
    worker_peers_close(worker);
    if (worker->session != NULL && !worker->is_session_closing) {
        tow_status_t cause = reason != TOW_OK
                                 ? tow_status_retain(reason)
                                 : TOW_ERROR(TOW_CANCELLED, "the worker ends");
        end_session(worker, reason, cause);
        tow_status_release(cause);
        return;
    }
    worker->state = TOW_WORKER_CLOSING;
    worker_peer_sessions_drop(worker, reason);
    worker_settle(worker);
}

void tow_worker_abandon(tow_worker_t *worker)
{
    if (worker == NULL) return;
    tow_session_abandon(worker->session);
    worker_loads_forget(worker);
    worker_puts_forget(worker);
    worker_gets_forget(worker);
    worker_spills_forget(worker);
    worker_lanes_forget(worker);
    worker_peers_forget(worker);
    tow_dataflow_forget(worker->dataflow);
    tow_mover_forget(worker->mover);
    tow_shelf_forget(worker->shelf);
    free_tables(worker);
}

/* -- Telling ----------------------------------------------------------------------- */

const char *tow_worker_state_name(tow_worker_state_t state)
{
    static const char *const names[] = {"waiting", "dialling", "joining",
                                        "joined",  "draining", "closing"};
    return names[state];
}

tow_worker_stats_t tow_worker_stats(const tow_worker_t *worker)
{
    return (tow_worker_stats_t){
        .state = worker->state,
        .cluster = worker->cluster,
        .session_count = worker->session_count,
        .shelf = tow_shelf_totals(worker->shelf),
        .dataflow = tow_dataflow_stats(worker->dataflow),
        .mover = tow_mover_stats(worker->mover),
        .line_count = worker->line_count,
        .relay_count = worker_relay_count(worker),
        .load_count = worker->load_count,
        .put_count = worker->put_count,
        .get_count = worker->get_count,
        .put_bytes = worker->put_bytes,
        .get_bytes = worker->get_bytes,
        .spill_count = worker->spill_count,
        .spill_bytes = worker->spill_bytes,
        .lane_count = worker->lane_count,
        .peer_count = tow_map_count(&worker->peers),
        .blob_count = tow_map_count(&worker->blobs),
        .outbox_bytes = worker->outbox_bytes,
    };
}
