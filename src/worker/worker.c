/* The sessions of a worker with its controller, one after the other.
 *
 *     WAITING -> DIALLING -> JOINING -> JOINED -> DRAINING -> WAITING ...
 *
 * DRAINING lasts until no callback of the old session is outstanding, so that
 * the next one starts with no state. */
#include "worker/worker.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "worker/worker_impl.h"

/* A message that waits for space in the session. */
typedef struct queued {
    tow_list_t in_outbox;
    uint32_t type;
    uint32_t size;
    uint8_t bytes[];
} queued_t;

static void dial(tow_worker_t *worker);

/* -- Sending --------------------------------------------------------------- */

static void discard_outbox(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->outbox)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, queued_t, in_outbox));
    worker->outbox_bytes = 0;
}

static void queue_message(tow_worker_t *worker, uint32_t type,
                          const tow_body_t *body)
{
    const size_t size = tow_message_size(body);
    queued_t *queued = NULL;
    if (worker->outbox_bytes + size <= TOW_WORKER_OUTBOX_BYTES_MAX)
        queued = tow_malloc(sizeof(*queued) + size);
    if (queued == NULL) {
        worker_end_session_soon(
            worker,
            TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                      "send queue to the controller is full: %zu bytes "
                      "queued and %zu more, limit %u",
                      worker->outbox_bytes, size, TOW_WORKER_OUTBOX_BYTES_MAX));
        return;
    }
    queued->type = type;
    queued->size = (uint32_t)size;
    tow_message_encode(body, queued->bytes);
    tow_list_append(&worker->outbox, &queued->in_outbox);
    worker->outbox_bytes += size;
}

void worker_send(tow_worker_t *worker, uint32_t type, const tow_body_t *body)
{
    if (TOW_UNLIKELY(worker->session == NULL || worker->end_cause != TOW_OK))
        return;
    if (TOW_LIKELY(tow_list_is_empty(&worker->outbox)) &&
        TOW_LIKELY(tow_session_send(worker->session, type, body) !=
                   TOW_SEND_FULL))
        return; /* Sent; or down: an event follows. */
    queue_message(worker, type, body);
}

static bool send_queued(tow_worker_t *worker, queued_t *queued)
{
    uint8_t *room;
    const tow_send_result_t result =
        tow_session_begin(worker->session, queued->size, &room);
    if (result == TOW_SEND_FULL) return false;
    if (result == TOW_SEND_OK) {
        if (queued->size > 0) memcpy(room, queued->bytes, queued->size);
        tow_session_commit(worker->session, queued->type, queued->size);
    }
    TOW_ASSERT(worker->outbox_bytes >= queued->size);
    worker->outbox_bytes -= queued->size;
    tow_list_remove(&queued->in_outbox);
    tow_free(queued);
    return true;
}

static void on_writable(void *context, tow_session_t *session)
{
    (void)session;
    tow_worker_t *worker = context;
    while (!tow_list_is_empty(&worker->outbox))
        if (!send_queued(worker, TOW_CONTAINER_OF(worker->outbox.next, queued_t,
                                                  in_outbox)))
            return;
}

/* -- Ending a session ------------------------------------------------------ */

static bool is_quiet(const tow_worker_t *worker)
{
    return worker->session == NULL && tow_dataflow_is_quiet(worker->dataflow) &&
           worker->load_count == 0 && worker->put_count == 0 &&
           worker->get_count == 0 && worker->spill_count == 0 &&
           worker->lane_count == 0 && worker->peer_session_count == 0 &&
           !worker->is_port_closing &&
           tow_transfer_engine_is_quiet(worker->transfer_engine);
}

static void free_tables(tow_worker_t *worker)
{
    discard_outbox(worker);
    tow_status_release(worker->end_cause);
    worker_peers_free(worker);
    worker_relay_free(worker);
    tow_map_deinit(&worker->peers);
    tow_map_deinit(&worker->blobs);
    tow_map_deinit(&worker->puts_by_object);
    tow_map_deinit(&worker->spills_by_object);
    tow_arena_deinit(&worker->arena);
    tow_block_cache_discard(&worker->block_cache);
    tow_free((char *)worker->options.controller);
    tow_free((char *)worker->options.controller_name);
    tow_free((char *)worker->options.name);
    tow_free((char *)worker->options.host);
    tow_free((char *)worker->options.island);
    tow_free(worker);
}

static void destroy(tow_worker_t *worker)
{
    if (worker->port != NULL) /* It never opened. */
        tow_session_port_close(worker->port, (tow_closed_t){0});
    tow_dataflow_destroy(worker->dataflow);
    tow_transfer_engine_destroy(worker->transfer_engine);
    tow_shard_store_destroy(worker->shard_store);
    tow_block_cache_deinit(&worker->block_cache);
    free_tables(worker);
}

static void report_closed(tow_post_t *post)
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
    TOW_ASSERT(worker->session == NULL && !worker->is_closing);
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
    TOW_ASSERT(tow_shard_store_totals(worker->shard_store).object_count == 0);
    if (!worker->is_closing) {
        wait_to_dial(worker);
    } else if (worker->closing.run == NULL) {
        worker->closing.run = report_closed;
        tow_env_post(worker->env, &worker->closing);
    }
}

static void on_session_closed(void *context)
{
    tow_worker_t *worker = context;
    TOW_ASSERT(worker->session != NULL && worker->is_session_closing);
    worker->session = NULL;
    worker->is_session_closing = false;
    worker_settle(worker);
}

/* Discards all state of the session. `reason` is sent to the controller, if it
 * is connected; `cause` goes to the owner. */
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
    discard_outbox(worker);
    tow_env_timer_stop(worker->env, &worker->end_timer);
    tow_status_release(worker->end_cause);
    worker->end_cause = TOW_OK;
    worker_peers_on_disconnect(worker, cause);
    worker_relay_on_disconnect(worker);
    worker_callbacks_on_disconnect(worker, cause);
    tow_dataflow_clear(worker->dataflow, cause);
    tow_transfer_engine_clear(worker->transfer_engine);
    worker_loads_on_disconnect(worker);
    worker_puts_on_disconnect(worker);
    worker_gets_on_disconnect(worker);
    worker_spills_on_disconnect(worker);
    worker_lanes_on_disconnect(worker);
    tow_shard_store_clear(worker->shard_store);
    if (was_joined && worker->options.hooks.disconnected != NULL)
        worker->options.hooks.disconnected(worker->options.hooks.context,
                                           cause);
    worker_settle(worker);
}

/* A session that never opened: logs the current reason now and then. */
static void log_refusal(tow_worker_t *worker, tow_status_t cause)
{
    const int64_t now_ns = tow_env_now_ns(worker->env);
    if (worker->refusal_logged_ns != 0 &&
        now_ns - worker->refusal_logged_ns < TOW_WORKER_REFUSAL_LOG_NS)
        return;
    worker->refusal_logged_ns = now_ns;
    tow_log(&worker->env->log, TOW_LOG_WARN, "not in a cluster",
            TOW_F_STR("controller", worker->options.controller),
            TOW_F_STR("state", tow_worker_state_name(worker->state)),
            TOW_F_STATUS("cause", cause));
}

bool tow_worker_is_refusal(tow_status_t cause)
{
    switch (tow_status_code(cause)) {
    case TOW_ALREADY_EXISTS:
    case TOW_FAILED_PRECONDITION:
    case TOW_INVALID_ARGUMENT:
    case TOW_UNAUTHENTICATED: return true;
    default: return false;
    }
}

static void report_refused(const tow_worker_t *worker, tow_status_t cause)
{
    const tow_worker_hooks_t *hooks = &worker->options.hooks;
    if (hooks->refused != NULL && tow_worker_is_refusal(cause))
        hooks->refused(hooks->context, cause);
}

/* `reason` is sent to the controller. */
static void disconnect_session(tow_worker_t *worker, tow_status_t reason,
                               tow_status_t cause)
{
    if (worker_is_joined(worker)) {
        /* An owner with this hook logs it itself. */
        if (reason != TOW_OK || worker->options.hooks.disconnected == NULL)
            tow_log(&worker->env->log, TOW_LOG_WARN, "session ended",
                    TOW_F_STR("controller", worker->options.controller),
                    TOW_F_STATUS("cause", cause));
    } else {
        log_refusal(worker, cause);
        report_refused(worker, cause);
    }
    end_session(worker, reason, cause);
}

static void on_gone(void *context, tow_session_t *session, tow_status_t cause)
{
    (void)session;
    disconnect_session(context, TOW_OK, cause);
}

static void fail_session(tow_worker_t *worker, tow_status_t take_cause)
{
    disconnect_session(worker, take_cause, take_cause);
    tow_status_release(take_cause);
}

static void on_end_session(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, end_timer);
    tow_status_t cause = worker->end_cause;
    worker->end_cause = TOW_OK;
    fail_session(worker, cause);
}

void worker_end_session_soon(tow_worker_t *worker, tow_status_t take_cause)
{
    if (worker->end_cause != TOW_OK || worker->session == NULL ||
        worker->is_session_closing) {
        tow_status_ignore(take_cause, "it ends for another reason");
        return;
    }
    worker->end_cause = take_cause;
    tow_env_timer_start(worker->env, &worker->end_timer,
                        tow_env_now_ns(worker->env));
}

/* -- Starting a session ---------------------------------------------------- */

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
    message.name = (char *)worker->options.name;
    message.is_name_assigned = worker->options.is_name_assigned;
    message.host = (char *)worker->options.host;
    message.island = (char *)worker->options.island;
    message.listen_address = (char *)worker_peers_listen_address(worker);
    message.platform = (char *)driver->platform;
    message.version = (char *)driver->version;
    if (driver->stablehlo != NULL)
        message.stablehlo = (char *)driver->stablehlo;
    message.simulated = driver->simulated;
    message.host_bytes = worker->options.limits.host_bytes_max;
    message.devices = pointers;
    message.n_devices = driver->device_count;
    message.memory = worker->options.memory;
    if (tow_env_has_lanes(worker->env)) {
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
    if (TOW_UNLIKELY(worker->end_cause != TOW_OK)) return;
    tow_status_t status = worker_handle_message(worker, message);
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
    if (status != TOW_OK) worker_end_session_soon(worker, status);
}

static const tow_session_handler_t session_handler = {
    .opened = on_opened,
    .message = on_message,
    .blob = on_blob,
    .writable = on_writable,
    .disconnected = on_gone,
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

/* The address was valid the first time, so memory is exhausted. */
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

/* -- Opening and closing --------------------------------------------------- */

static void abort_gang(void *context, uint64_t gang_id, tow_status_t cause)
{
    tow_worker_t *worker = context;
    const tow_worker_hooks_t *hooks = &worker->options.hooks;
    worker_callbacks_abort(worker, gang_id, cause);
    if (hooks->abort_gang != NULL)
        hooks->abort_gang(hooks->context, gang_id, cause);
}

static void *take_memory(void *context, size_t size)
{
    return tow_block_cache_alloc(&((tow_worker_t *)context)->block_cache, size);
}

static void give_memory(void *context, void *bytes, size_t size)
{
    tow_block_cache_free(&((tow_worker_t *)context)->block_cache, bytes, size);
}

static void transfers_quiet(void *context)
{
    worker_settle(context);
}

static tow_status_t copy_options(tow_worker_t *worker,
                                 const tow_worker_options_t *options)
{
    worker->options = *options;
    worker->options.controller = tow_strdup(options->controller);
    worker->options.name =
        tow_strdup(options->name != NULL ? options->name : worker->env->name);
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
    if (worker->options.controller == NULL || worker->options.name == NULL ||
        worker->options.host == NULL || worker->options.island == NULL ||
        (options->controller_name != NULL &&
         worker->options.controller_name == NULL))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static tow_status_t set_up(tow_worker_t *worker,
                           const tow_worker_options_t *options)
{
    TOW_RETURN_IF_ERROR(copy_options(worker, options));
    const tow_shard_store_options_t shard_store = {
        .shard_count_max = options->driver->device_count,
        .object_count_max = options->limits.object_count_max};
    TOW_RETURN_IF_ERROR(
        tow_shard_store_create(&shard_store, &worker->shard_store));
    const tow_transfer_engine_options_t transfer_engine = {
        .driver = options->driver,
        .process = options->process,
        .send = worker_peer_send,
        .write = worker_peer_write,
        .memory_take = take_memory,
        .memory_give = give_memory,
        .quiet = transfers_quiet,
        .context = worker};
    TOW_RETURN_IF_ERROR(
        tow_transfer_engine_create(&transfer_engine, &worker->transfer_engine));
    const tow_dataflow_options_t dataflow = {
        .driver = options->driver,
        .shard_store = worker->shard_store,
        .engine = worker->transfer_engine,
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
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(worker_peers_open(worker, options->listen_address),
                            "its listening address"));
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
    if (options->name != NULL && strlen(options->name) > TOW_WORKER_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the worker's name has more than %u bytes",
                         TOW_WORKER_NAME_MAX);
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
    worker->end_timer.fire = on_end_session;
    tow_arena_init(&worker->arena, TOW_WORKER_ARENA_BYTES_MAX);
    tow_block_cache_init(&worker->block_cache, env);
    tow_list_init(&worker->loads);
    tow_list_init(&worker->puts);
    tow_list_init(&worker->gets);
    tow_list_init(&worker->spills);
    tow_list_init(&worker->waiting_gets);
    tow_list_init(&worker->calls);
    tow_list_init(&worker->lanes);
    tow_list_init(&worker->outbox);
    tow_list_init(&worker->peer_sessions);
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
    worker_peer_sessions_on_disconnect(worker, reason);
    worker_settle(worker);
}

void tow_worker_discard(tow_worker_t *worker)
{
    if (worker == NULL) return;
    tow_session_discard(worker->session);
    worker_loads_discard(worker);
    worker_puts_discard(worker);
    worker_gets_discard(worker);
    worker_spills_discard(worker);
    worker_lanes_discard(worker);
    worker_peers_discard(worker);
    tow_dataflow_discard(worker->dataflow);
    tow_transfer_engine_discard(worker->transfer_engine);
    tow_shard_store_discard(worker->shard_store);
    free_tables(worker);
}

/* -- State and statistics -------------------------------------------------- */

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
        .shard_store = tow_shard_store_totals(worker->shard_store),
        .dataflow = tow_dataflow_stats(worker->dataflow),
        .transfer_engine = tow_transfer_engine_stats(worker->transfer_engine),
        .peer_session_count = worker->peer_session_count,
        .relay_count = worker_relay_count(worker),
        .load_count = worker->load_count,
        .put_count = worker->put_count,
        .get_count = worker->get_count,
        .put_bytes = worker->put_bytes,
        .get_bytes = worker->get_bytes,
        .put_bytes_total = worker->put_bytes_total,
        .get_bytes_total = worker->get_bytes_total,
        .spill_count = worker->spill_count,
        .spill_bytes = worker->spill_bytes,
        .lane_count = worker->lane_count,
        .peer_count = tow_map_count(&worker->peers),
        .blob_count = tow_map_count(&worker->blobs),
        .outbox_bytes = worker->outbox_bytes,
    };
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_state(const tow_worker_t *worker)
{
    const bool has_session =
        worker->session != NULL && !worker->is_session_closing;
    switch (worker->state) {
    case TOW_WORKER_WAITING:
        /* Peers may connect meanwhile. */
        TOW_INVARIANT(worker->session == NULL);
        TOW_INVARIANT(tow_dataflow_is_quiet(worker->dataflow));
        TOW_INVARIANT(tow_transfer_engine_is_quiet(worker->transfer_engine));
        TOW_INVARIANT(tow_timer_is_armed(&worker->redial));
        break;
    case TOW_WORKER_DIALLING:
    case TOW_WORKER_JOINING:
    case TOW_WORKER_JOINED: TOW_INVARIANT(has_session); break;
    case TOW_WORKER_DRAINING: TOW_INVARIANT(!is_quiet(worker)); break;
    case TOW_WORKER_CLOSING: break;
    }
    TOW_INVARIANT(worker->is_closing == (worker->state == TOW_WORKER_CLOSING));
    TOW_INVARIANT(worker->session != NULL || !worker->is_session_closing);
    TOW_INVARIANT(worker->end_cause == TOW_OK || has_session);
    TOW_INVARIANT((worker->end_cause != TOW_OK) ==
                  tow_timer_is_armed(&worker->end_timer));
    return TOW_OK;
}

static tow_status_t check_outbox(const tow_worker_t *worker)
{
    size_t bytes = 0;
    const tow_list_t *head = &worker->outbox;
    for (const tow_list_t *at = head->next; at != head; at = at->next)
        bytes += TOW_CONTAINER_OF(at, queued_t, in_outbox)->size;
    TOW_INVARIANT(bytes == worker->outbox_bytes);
    TOW_INVARIANT(bytes <= TOW_WORKER_OUTBOX_BYTES_MAX);
    TOW_INVARIANT(bytes == 0 || worker->session != NULL);
    return TOW_OK;
}

tow_status_t tow_worker_check(const tow_worker_t *worker)
{
    TOW_RETURN_IF_ERROR(check_state(worker));
    TOW_RETURN_IF_ERROR(check_outbox(worker));
    TOW_RETURN_IF_ERROR(worker_relay_check(worker));
    TOW_RETURN_IF_ERROR(worker_peers_check(worker));
    TOW_RETURN_IF_ERROR(worker_callbacks_check(worker));
    TOW_RETURN_IF_ERROR(worker_loads_check(worker));
    TOW_RETURN_IF_ERROR(worker_puts_check(worker));
    TOW_RETURN_IF_ERROR(worker_gets_check(worker));
    TOW_RETURN_IF_ERROR(worker_spills_check(worker));
    TOW_RETURN_IF_ERROR(worker_lanes_check(worker));
    TOW_RETURN_IF_ERROR(tow_block_cache_check(&worker->block_cache));
    TOW_RETURN_IF_ERROR(tow_shard_store_check(worker->shard_store));
    TOW_RETURN_IF_ERROR(tow_dataflow_check(worker->dataflow));
    return tow_transfer_engine_check(worker->transfer_engine);
}
