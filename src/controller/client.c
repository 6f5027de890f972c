/* Clients: messages and disconnection. An invalid request of a client fails
 * that operation, or, if that cannot be attributed, its session. It never
 * affects other clients. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "controller/blob_impl.h"
#include "controller/object_impl.h"
#include "controller/slice_impl.h"
#include "env/tuning.h"

void tow_ctl_client_send(tow_ctl_client_t *client, uint32_t type,
                         const tow_body_t *body)
{
    if (client->session == NULL || client->fault != TOW_OK) return;
    if (tow_session_send(client->session, type, body) != TOW_SEND_FULL) return;
    tow_ctl_client_fault(client,
                         TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                   "the send queue to client %s is full: the "
                                   "client does not receive",
                                   client->name));
}

void tow_ctl_client_fault(tow_ctl_client_t *client, tow_status_t take_status)
{
    if (client->fault != TOW_OK) {
        tow_status_release(take_status);
        return;
    }
    client->fault = take_status;
    tow_controller_touch(client->controller);
}

/* -- Blobs and ids ------------------------------------------------------------- */

void tow_ctl_client_blob(tow_ctl_client_t *client, uint64_t number,
                         void *take_bytes, size_t size)
{
    if (!tow_ctl_blob_add(&client->blobs, TOW_CLIENT_BLOBS_MAX, number,
                          take_bytes, size))
        tow_ctl_client_fault(
            client, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                              "client %s sent more than %u blobs that no "
                              "message names",
                              client->name, TOW_CLIENT_BLOBS_MAX));
}

/* The caller owns it; NULL and a fault if it has not arrived. */
static tow_ctl_blob_t *take_blob(tow_ctl_client_t *client, uint64_t number,
                                 const char *what)
{
    tow_ctl_blob_t *blob = tow_map_remove(&client->blobs, number);
    if (blob == NULL)
        tow_ctl_client_fault(
            client, TOW_ERROR(TOW_INVALID_ARGUMENT,
                              "client %s names blob %llu as %s, "
                              "but has not sent it",
                              client->name, (unsigned long long)number, what));
    return blob;
}

bool tow_ctl_client_check_id(tow_ctl_client_t *client, uint64_t id,
                             bool is_taken, const char *what)
{
    if (id != 0 && id <= TOW_CLIENT_ID_MAX && !is_taken) return true;
    tow_ctl_client_fault(
        client, TOW_ERROR(TOW_INVALID_ARGUMENT,
                          "client %s gives a new %s the id %llu, which is "
                          "%s",
                          client->name, what, (unsigned long long)id,
                          is_taken ? "in use" : "out of range"));
    return false;
}

/* -- Programs ------------------------------------------------------------------ */

static void discard_program(tow_ctl_client_t *client, uint64_t id)
{
    tow_ctl_program_t *program = tow_map_remove(&client->programs, id);
    if (program != NULL) tow_ctl_program_release(program);
}

static void add_program(tow_ctl_client_t *client,
                        const tow_msg_program_add_t *add)
{
    tow_ctl_blob_t *blob =
        take_blob(client, add->graph_blob, "a program's graph");
    const tow_ctl_program_t *there =
        tow_map_find(&client->programs, add->program);
    /* Ids above the limit are the controller's: out of range, like 0. */
    const uint64_t id = add->program > TOW_PROGRAM_ID_MAX ? 0 : add->program;
    if (blob == NULL ||
        !tow_ctl_client_check_id(
            client, id, there != NULL && !there->is_refused, "program")) {
        tow_ctl_blob_free(blob);
        return;
    }
    tow_ctl_program_t *program = NULL;
    tow_status_t status =
        tow_map_count(&client->programs) >= TOW_CLIENT_PROGRAMS_MAX
            ? TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                        "a client has at most %u programs: release some",
                        TOW_CLIENT_PROGRAMS_MAX)
            : tow_ctl_program_load(client, add->program, blob, &program);
    if (status != TOW_OK)
        program = tow_ctl_program_refuse(client, add->program, blob, status);
    if (program != NULL) {
        program->graph = *blob;
        blob->bytes = NULL;
    }
    tow_ctl_blob_free(blob);
    discard_program(client, add->program);
    if (program != NULL &&
        !tow_map_put(&client->programs, add->program, program)) {
        tow_ctl_program_release(program);
        if (status == TOW_OK) status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_msg_program_added_t added = TOW_MSG_PROGRAM_ADDED_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    added.program = add->program;
    if (status != TOW_OK) added.failure = &failure;
    tow_ctl_client_send(client, TOW_MESSAGE_PROGRAM_ADDED, &added.base);
    tow_status_release(status);
}

static void discard_function(tow_ctl_client_t *client, uint64_t id)
{
    tow_ctl_function_t *function = tow_map_remove(&client->functions, id);
    if (function != NULL) tow_ctl_function_discard(client, function);
}

static void compile(tow_ctl_client_t *client, const tow_msg_compile_t *message)
{
    tow_ctl_blob_t *program =
        take_blob(client, message->program_blob, "a program");
    tow_ctl_blob_t *options =
        message->options_blob == 0
            ? NULL
            : take_blob(client, message->options_blob, "options");
    bool is_there =
        program != NULL && (message->options_blob == 0 || options != NULL);
    if (is_there &&
        tow_ctl_client_check_id(
            client, message->function,
            tow_map_find(&client->functions, message->function) != NULL,
            "function"))
        tow_ctl_code_compile(client, message, program, options);
    tow_ctl_blob_free(program);
    tow_ctl_blob_free(options);
}

/* -- Messages from clients ------------------------------------------------- */

static tow_status_t handle(tow_ctl_client_t *client, uint32_t type,
                           const tow_body_t *body)
{
#define AS(name) ((const tow_msg_##name##_t *)body)
    switch (type) {
    case TOW_MESSAGE_RUN: tow_ctl_run_begin(client, AS(run)); break;
    case TOW_MESSAGE_RELEASE:
        tow_ctl_release_handles(client, AS(release));
        break;
    case TOW_MESSAGE_PUT: tow_ctl_put_begin(client, AS(put)); break;
    case TOW_MESSAGE_PUT_DONE: tow_ctl_put_cancel(client, AS(put_done)); break;
    case TOW_MESSAGE_GET: tow_ctl_get_begin(client, AS(get)); break;
    case TOW_MESSAGE_ASSEMBLE:
        tow_ctl_assembly_begin(client, AS(assemble));
        break;
    case TOW_MESSAGE_COPY: tow_ctl_copy_begin(client, AS(copy)); break;
    case TOW_MESSAGE_CANCEL: tow_ctl_run_cancel(client, AS(cancel)); break;
    case TOW_MESSAGE_CALLBACK_DONE:
        tow_ctl_callback_done(client, AS(callback_done));
        break;
    case TOW_MESSAGE_SLICE_OPEN:
        tow_ctl_slice_open(client, AS(slice_open));
        break;
    case TOW_MESSAGE_SLICE_CLOSE:
        tow_ctl_slice_close(client, AS(slice_close)->slice);
        break;
    case TOW_MESSAGE_COMPILE: compile(client, AS(compile)); break;
    case TOW_MESSAGE_PARTITION_REPLY:
        tow_ctl_code_partition_reply(client, AS(partition_reply));
        break;
    case TOW_MESSAGE_FUNCTION_DISCARD:
        discard_function(client, AS(function_discard)->function);
        break;
    case TOW_MESSAGE_PROGRAM_ADD: add_program(client, AS(program_add)); break;
    case TOW_MESSAGE_PROGRAM_DISCARD:
        discard_program(client, AS(program_discard)->program);
        break;
    case TOW_MESSAGE_REPORT_GET:
        tow_ctl_report_begin(client, AS(report_get));
        break;
    default:
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "client %s sent %s, which clients do not send",
                         client->name, tow_message_type_name(type));
    }
#undef AS
    return TOW_OK;
}

void tow_ctl_client_message(tow_ctl_client_t *client,
                            const tow_message_t *message)
{
    tow_controller_t *controller = client->controller;
    if (client->fault != TOW_OK) return;
    const tow_body_t *body;
    tow_arena_reset(&controller->arena);
    tow_status_t status =
        tow_message_decode(message->type, message->bytes, message->size,
                           &controller->arena, &body);
    tow_ctl_slices_remap(client);
    if (status == TOW_OK) status = handle(client, message->type, body);
    if (status != TOW_OK) tow_ctl_client_fault(client, status);
    tow_controller_touch(controller);
}

/* -- Opening and disconnection --------------------------------------------- */

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    TOW_TRACE(tow_message_type_name(message->type));
    tow_ctl_client_message(context, message);
}

static void on_blob(void *context, tow_session_t *session, uint64_t blob,
                    void *take_bytes, size_t size)
{
    tow_ctl_client_blob(context, blob, take_bytes, size);
}

static void on_disconnect(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    tow_ctl_client_on_disconnect(context, cause);
}

static const tow_session_handler_t client_handler = {
    .message = on_message,
    .blob = on_blob,
    .disconnected = on_disconnect,
};

tow_status_t tow_ctl_client_create(tow_controller_t *controller,
                                   tow_session_t *session, const char *name,
                                   tow_ctl_client_t **out_client)
{
    *out_client = NULL;
    if (controller->clients.number >= TOW_CLIENT_NUMBER_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "this controller has had %u clients, the most that "
                         "it can number: restart it",
                         TOW_CLIENT_NUMBER_MAX);
    tow_ctl_client_t *client = tow_calloc(1, sizeof(*client));
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client->controller = controller;
    client->session = session;
    client->number = controller->clients.number + 1;
    client->membership_seen = controller->workers.membership_number;
    client->name =
        tow_strdup(name[0] != '\0' ? name : tow_session_peer(session)->name);
    tow_status_t status =
        client->name == NULL
            ? tow_status_bare(TOW_RESOURCE_EXHAUSTED)
            : tow_sched_add_client(controller->sched, client->number);
    if (status != TOW_OK) {
        tow_free(client->name);
        tow_free(client);
        return status;
    }
    controller->clients.number++;
    tow_list_append(&controller->clients.list, &client->node);
    tow_session_accept(session, &client_handler, client);
    tow_ctl_clients_watch_idle(controller);
    *out_client = client;
    return TOW_OK;
}

static void discard_everything(tow_ctl_client_t *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->programs, &cursor, &key, &value))
        tow_ctl_program_release(value);
    for (cursor = 0; tow_map_next(&client->functions, &cursor, &key, &value);)
        tow_ctl_function_discard(client, value);
    for (cursor = 0; tow_map_next(&client->slices, &cursor, &key, &value);)
        tow_ctl_slice_destroy(client, value);
    tow_map_deinit(&client->programs);
    tow_map_deinit(&client->functions);
    tow_map_deinit(&client->slices);
    tow_ctl_blobs_deinit(&client->blobs);
}

static void free_client(tow_ctl_client_t *client)
{
    discard_everything(client);
    for (size_t i = 0; i < client->failed_runs.count; i++)
        tow_ctl_run_free(client->failed_runs.items[i]);
    tow_vec_deinit(&client->failed_runs);
    tow_vec_deinit(&client->done_runs);
    tow_status_release(client->fault);
    tow_free(client->name);
    tow_free(client);
}

void tow_ctl_client_on_disconnect(tow_ctl_client_t *client, tow_status_t cause)
{
    tow_controller_t *controller = client->controller;
    if (controller->is_closing) return;
    tow_log(&controller->env->log, TOW_LOG_INFO, "client disconnected",
            TOW_F_STR("client", client->name),
            TOW_F_STR("why", tow_status_message(cause)));
    tow_session_close(client->session, cause, (tow_closed_t){0});
    client->session = NULL;
    tow_list_remove(&client->node);
    tow_ctl_runs_on_client_disconnect(client);
    tow_device_time_merge(&controller->clients.disconnected_time,
                          &client->time);
    tow_ctl_assemblies_on_disconnect(client, cause);
    tow_ctl_puts_on_disconnect(controller, NULL, client, cause);
    tow_ctl_gets_on_disconnect(controller, NULL, client, cause);
    tow_ctl_reports_on_disconnect(controller, NULL, client);
    tow_ctl_callbacks_on_disconnect(controller, NULL, client);
    tow_sched_remove_client(controller->sched, client->number);
    tow_object_table_release_client(controller->object_table, client->number);
    free_client(client);
    tow_ctl_clients_watch_idle(controller);
    tow_sched_notify(controller->sched, NULL);
    tow_controller_touch(controller);
}

void tow_ctl_clients_watch_idle(tow_controller_t *controller)
{
    const tow_controller_options_t *options = &controller->options;
    tow_timer_t *timer = &controller->clients.idle_timer;
    if (options->idle_timeout_ns == 0) return;
    if (!tow_list_is_empty(&controller->clients.list))
        tow_env_timer_stop(controller->env, timer);
    else
        tow_env_timer_start(controller->env, timer,
                            tow_env_now_ns(controller->env) +
                                options->idle_timeout_ns);
}

void tow_ctl_clients_on_idle_timer(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, clients.idle_timer);
    TOW_ASSERT(tow_list_is_empty(&controller->clients.list));
    tow_log(&controller->env->log, TOW_LOG_INFO, "no client: the cluster ends",
            TOW_F_I64("idle_s",
                      controller->options.idle_timeout_ns / TOW_NS_PER_S));
    controller->options.idle(controller->options.context);
}

void tow_ctl_clients_close(tow_controller_t *controller, tow_status_t reason)
{
    for (tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next) {
        tow_ctl_client_t *client =
            TOW_CONTAINER_OF(item, tow_ctl_client_t, node);
        tow_session_close(client->session, reason,
                          tow_controller_closing(controller));
        client->session = NULL;
    }
}

void tow_ctl_clients_discard(tow_controller_t *controller)
{
    for (tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next) {
        tow_ctl_client_t *client =
            TOW_CONTAINER_OF(item, tow_ctl_client_t, node);
        tow_session_discard(client->session);
        client->session = NULL;
    }
}

void tow_ctl_clients_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->clients.list)) {
        tow_list_t *item = tow_list_pop_front(&controller->clients.list);
        free_client(TOW_CONTAINER_OF(item, tow_ctl_client_t, node));
    }
}
