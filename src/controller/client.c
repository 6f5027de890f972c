/* Clients: what they say, and being gone. A mistake of a client costs it the
 * operation where that can be told apart, and else its session; never others
 * anything. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"

void tow_tell_client(client_t *client, uint32_t type, const tow_body_t *body)
{
    if (client->session == NULL || client->fault != TOW_OK) return;
    if (tow_session_send(client->session, type, body) != TOW_SEND_FULL) return;
    tow_client_fault(client, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                       "client %s takes no messages: its queue "
                                       "is full",
                                       client->name));
}

void tow_client_fault(client_t *client, tow_status_t take_status)
{
    if (client->fault != TOW_OK) {
        tow_status_release(take_status);
        return;
    }
    client->fault = take_status;
    tow_controller_touch(client->controller);
}

/* -- Blobs --------------------------------------------------------------------- */

void tow_blob_free(blob_t *blob)
{
    if (blob == NULL) return;
    tow_free(blob->bytes);
    tow_free(blob);
}

uint64_t tow_blob_send(tow_session_t *session, blob_t *take_blob)
{
    const tow_session_blob_t blob = {.bytes = take_blob->bytes,
                                     .size = take_blob->size,
                                     .release = tow_free,
                                     .context = take_blob->bytes};
    tow_free(take_blob);
    return tow_session_send_blob(session, &blob);
}

bool tow_blob_keep(tow_map_t *blobs, size_t count_max, uint64_t number,
                   void *take_bytes, size_t size)
{
    blob_t *blob = tow_calloc(1, sizeof(*blob));
    if (blob != NULL && tow_map_count(blobs) < count_max &&
        tow_map_put(blobs, number, blob)) {
        *blob = (blob_t){take_bytes, size};
        return true;
    }
    tow_free(blob);
    tow_free(take_bytes);
    return false;
}

void tow_blobs_deinit(tow_map_t *blobs)
{
    size_t cursor = 0;
    uint64_t number;
    void *blob;
    while (tow_map_next(blobs, &cursor, &number, &blob))
        tow_blob_free(blob);
    tow_map_deinit(blobs);
}

void tow_client_blob(client_t *client, uint64_t number, void *take_bytes,
                     size_t size)
{
    if (!tow_blob_keep(&client->blobs, TOW_CLIENT_BLOBS_MAX, number, take_bytes,
                       size))
        tow_client_fault(client,
                         TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                   "client %s sent more than %u blobs that no "
                                   "message names",
                                   client->name, TOW_CLIENT_BLOBS_MAX));
}

/* The caller's from now on; NULL and a fault when it is not there. */
static blob_t *take_blob(client_t *client, uint64_t number, const char *what)
{
    blob_t *blob = tow_map_remove(&client->blobs, number);
    if (blob == NULL)
        tow_client_fault(client, TOW_ERROR(TOW_INVALID_ARGUMENT,
                                           "client %s names blob %llu as %s, "
                                           "and never sent it",
                                           client->name,
                                           (unsigned long long)number, what));
    return blob;
}

/* -- Slices -------------------------------------------------------------------- */

static void free_slice(client_t *client, slice_t *slice)
{
    if (slice->mapping != NULL) tow_mapping_release(slice->mapping);
    tow_resource_give_back(client->controller->resource, slice->devices,
                           slice->device_count);
    tow_free(slice->devices);
    tow_free(slice->island);
    tow_free(slice);
}

/* Kept for when it is mapped anew. */
static tow_status_t keep_request(slice_t *slice,
                                 const tow_msg_slice_open_t *open)
{
    slice->is_named = open->n_devices > 0;
    slice->island = tow_strdup(open->island);
    if (slice->island == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_ASSERT(open->n_dims <= TOW_SLICE_RANK_MAX);
    slice->dim_count = open->n_dims;
    for (size_t i = 0; i < open->n_dims; i++)
        slice->dims[i] = open->dims[i];
    return TOW_OK;
}

static tow_status_t make_slice(client_t *client,
                               const tow_msg_slice_open_t *open,
                               slice_t **out_slice)
{
    tow_controller_t *controller = client->controller;
    if (tow_map_count(&client->slices) >= TOW_CLIENT_SLICES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "a client has at most %u slices: close some",
                         TOW_CLIENT_SLICES_MAX);
    slice_t *slice = tow_calloc(1, sizeof(*slice));
    if (slice == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_slice_request_t request = {.kind = open->kind,
                                   .dims = open->dims,
                                   .dim_count = open->n_dims,
                                   .island = open->island,
                                   .device_ids = open->devices,
                                   .device_id_count = open->n_devices};
    tow_status_t status = keep_request(slice, open);
    if (status == TOW_OK)
        status = tow_resource_take(controller->resource, &request,
                                   &slice->devices, &slice->device_count);
    if (status == TOW_OK)
        status = tow_mapping_of(controller, slice->devices, slice->device_count,
                                &slice->mapping);
    if (status == TOW_OK && !tow_map_put(&client->slices, open->slice, slice))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        free_slice(client, slice);
        return status;
    }
    *out_slice = slice;
    return TOW_OK;
}

static tow_msg_device_t describe(const tow_device_entry_t *device)
{
    tow_msg_device_t told = TOW_MSG_DEVICE_INIT;
    told.id = device->id;
    told.kind = device->kind;
    told.name = device->name;
    told.memory_bytes = device->memory_bytes;
    told.worker = device->worker->name;
    told.host = device->worker->host;
    told.island = device->worker->island->name;
    told.place = device->worker->place;
    told.index = device->index;
    return told;
}

static void tell_slice(client_t *client, uint64_t id, const slice_t *slice)
{
    tow_arena_t *arena = &client->controller->arena;
    const size_t count = slice->device_count;
    tow_msg_device_t *devices =
        tow_arena_calloc(arena, count, sizeof(*devices));
    tow_msg_device_t **list = tow_arena_calloc(arena, count, sizeof(*list));
    if (devices == NULL || list == NULL) {
        tow_client_fault(client, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        devices[i] = describe(slice->devices[i]);
        list[i] = &devices[i];
    }
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    opened.slice = id;
    opened.devices = list;
    opened.n_devices = count;
    opened.stablehlo =
        (char *)tow_resource_stablehlo(slice->devices, slice->device_count);
    tow_tell_client(client, TOW_MESSAGE_SLICE_OPENED, &opened.base);
}

static bool check_new(client_t *client, uint64_t id, bool is_taken,
                      const char *what)
{
    if (id != 0 && id <= TOW_CLIENT_ID_MAX && !is_taken) return true;
    tow_client_fault(client,
                     TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "client %s gives a new %s the id %llu, which is "
                               "%s",
                               client->name, what, (unsigned long long)id,
                               is_taken ? "in use" : "out of range"));
    return false;
}

static void open_slice(client_t *client, const tow_msg_slice_open_t *open)
{
    if (!check_new(client, open->slice,
                   tow_map_find(&client->slices, open->slice) != NULL, "slice"))
        return;
    slice_t *slice = NULL;
    tow_status_t status = make_slice(client, open, &slice);
    if (status == TOW_OK) {
        tell_slice(client, open->slice, slice);
        return;
    }
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    opened.slice = open->slice;
    opened.failure = &failure;
    tow_tell_client(client, TOW_MESSAGE_SLICE_OPENED, &opened.base);
    tow_status_release(status);
}

static void close_slice(client_t *client, uint64_t id)
{
    slice_t *slice = tow_map_remove(&client->slices, id);
    if (slice != NULL) free_slice(client, slice);
}

/* -- Programs ------------------------------------------------------------------ */

static void drop_program(client_t *client, uint64_t id)
{
    resident_t *resident = tow_map_remove(&client->programs, id);
    if (resident != NULL) tow_resident_release(resident);
}

static void add_program(client_t *client, const tow_msg_program_add_t *add)
{
    blob_t *blob = take_blob(client, add->graph_blob, "a program's graph");
    const resident_t *there = tow_map_find(&client->programs, add->program);
    /* Out of range, like 0: those above are ours. */
    const uint64_t id = add->program > TOW_PROGRAM_ID_MAX ? 0 : add->program;
    if (blob == NULL ||
        !check_new(client, id, there != NULL && !there->is_refused,
                   "program")) {
        tow_blob_free(blob);
        return;
    }
    resident_t *resident = NULL;
    tow_status_t status =
        tow_map_count(&client->programs) >= TOW_CLIENT_PROGRAMS_MAX
            ? TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                        "a client has at most %u programs: drop some",
                        TOW_CLIENT_PROGRAMS_MAX)
            : tow_resident_take(client, add->program, blob, &resident);
    if (status != TOW_OK)
        resident = tow_resident_refuse(client, add->program, blob, status);
    if (resident != NULL) {
        resident->graph = *blob;
        blob->bytes = NULL;
    }
    tow_blob_free(blob);
    drop_program(client, add->program);
    if (resident != NULL &&
        !tow_map_put(&client->programs, add->program, resident)) {
        tow_resident_release(resident);
        if (status == TOW_OK) status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_msg_program_added_t added = TOW_MSG_PROGRAM_ADDED_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    added.program = add->program;
    if (status != TOW_OK) added.failure = &failure;
    tow_tell_client(client, TOW_MESSAGE_PROGRAM_ADDED, &added.base);
    tow_status_release(status);
}

static void drop_function(client_t *client, uint64_t id)
{
    function_t *function = tow_map_remove(&client->functions, id);
    if (function != NULL) tow_function_forget(client, function);
}

static void compile(client_t *client, const tow_msg_compile_t *message)
{
    blob_t *program = take_blob(client, message->program_blob, "a program");
    blob_t *options = message->options_blob == 0
                          ? NULL
                          : take_blob(client, message->options_blob, "options");
    bool is_there =
        program != NULL && (message->options_blob == 0 || options != NULL);
    if (is_there &&
        check_new(client, message->function,
                  tow_map_find(&client->functions, message->function) != NULL,
                  "function"))
        tow_code_compile(client, message, program, options);
    tow_blob_free(program);
    tow_blob_free(options);
}

/* -- Dispatch ------------------------------------------------------------------ */

static tow_status_t handle(client_t *client, uint32_t type,
                           const tow_body_t *body)
{
#define AS(name) ((const tow_msg_##name##_t *)body)
    switch (type) {
    case TOW_MESSAGE_RUN: tow_run_begin(client, AS(run)); break;
    case TOW_MESSAGE_RELEASE: tow_release_handles(client, AS(release)); break;
    case TOW_MESSAGE_PUT: tow_put_begin(client, AS(put)); break;
    case TOW_MESSAGE_PUT_DONE: tow_put_give_up(client, AS(put_done)); break;
    case TOW_MESSAGE_GET: tow_get_begin(client, AS(get)); break;
    case TOW_MESSAGE_REGROUP: tow_regroup_begin(client, AS(regroup)); break;
    case TOW_MESSAGE_COPY: tow_copy_begin(client, AS(copy)); break;
    case TOW_MESSAGE_CANCEL: tow_run_cancel(client, AS(cancel)); break;
    case TOW_MESSAGE_CALLBACK_DONE:
        tow_callback_done(client, AS(callback_done));
        break;
    case TOW_MESSAGE_SLICE_OPEN: open_slice(client, AS(slice_open)); break;
    case TOW_MESSAGE_SLICE_CLOSE:
        close_slice(client, AS(slice_close)->slice);
        break;
    case TOW_MESSAGE_COMPILE: compile(client, AS(compile)); break;
    case TOW_MESSAGE_ANSWER: tow_code_answered(client, AS(answer)); break;
    case TOW_MESSAGE_FUNCTION_DROP:
        drop_function(client, AS(function_drop)->function);
        break;
    case TOW_MESSAGE_PROGRAM_ADD: add_program(client, AS(program_add)); break;
    case TOW_MESSAGE_PROGRAM_DROP:
        drop_program(client, AS(program_drop)->program);
        break;
    case TOW_MESSAGE_REPORT_GET:
        tow_report_begin(client, AS(report_get));
        break;
    default:
        return TOW_ERROR(TOW_FAILED_PRECONDITION, "client %s sent %s",
                         client->name, tow_message_type_name(type));
    }
#undef AS
    return TOW_OK;
}

void tow_client_message(client_t *client, const tow_message_t *message)
{
    tow_controller_t *controller = client->controller;
    if (client->fault != TOW_OK) return;
    const tow_body_t *body;
    tow_arena_reset(&controller->arena);
    tow_status_t status =
        tow_message_decode(message->type, message->bytes, message->size,
                           &controller->arena, &body);
    tow_slices_revive(client);
    if (status == TOW_OK) status = handle(client, message->type, body);
    if (status != TOW_OK) tow_client_fault(client, status);
    tow_controller_touch(controller);
}

/* -- Life ---------------------------------------------------------------------- */

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    TOW_TRACE(tow_message_type_name(message->type));
    tow_client_message(context, message);
}

static void on_blob(void *context, tow_session_t *session, uint64_t blob,
                    void *take_bytes, size_t size)
{
    tow_client_blob(context, blob, take_bytes, size);
}

static void on_gone(void *context, tow_session_t *session, tow_status_t cause)
{
    tow_client_gone(context, cause);
}

static const tow_session_handler_t client_handler = {
    .message = on_message,
    .blob = on_blob,
    .gone = on_gone,
};

tow_status_t tow_client_create(tow_controller_t *controller,
                               tow_session_t *session, const char *name,
                               client_t **out_client)
{
    *out_client = NULL;
    if (controller->client_number >= TOW_CLIENT_NUMBER_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "this controller has had %u clients, and has no more "
                         "numbers: start it again",
                         TOW_CLIENT_NUMBER_MAX);
    client_t *client = tow_calloc(1, sizeof(*client));
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client->controller = controller;
    client->session = session;
    client->number = controller->client_number + 1;
    client->membership_seen = controller->membership_number;
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
    controller->client_number++;
    tow_list_append(&controller->clients, &client->node);
    tow_session_accept(session, &client_handler, client);
    *out_client = client;
    return TOW_OK;
}

static void drop_everything(client_t *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->programs, &cursor, &key, &value))
        tow_resident_release(value);
    for (cursor = 0; tow_map_next(&client->functions, &cursor, &key, &value);)
        tow_function_forget(client, value);
    for (cursor = 0; tow_map_next(&client->slices, &cursor, &key, &value);)
        free_slice(client, value);
    tow_map_deinit(&client->programs);
    tow_map_deinit(&client->functions);
    tow_map_deinit(&client->slices);
    tow_blobs_deinit(&client->blobs);
}

static void free_client(client_t *client)
{
    drop_everything(client);
    for (size_t i = 0; i < client->failed_runs.count; i++)
        tow_run_free(client->failed_runs.items[i]);
    tow_vec_deinit(&client->failed_runs);
    tow_vec_deinit(&client->done_runs);
    tow_status_release(client->fault);
    tow_free(client->name);
    tow_free(client);
}

void tow_client_gone(client_t *client, tow_status_t cause)
{
    tow_controller_t *controller = client->controller;
    if (controller->is_closing) return;
    tow_log(&controller->env->log, TOW_LOG_INFO, "client gone",
            TOW_F_STR("client", client->name),
            TOW_F_STR("why", tow_status_message(cause)));
    tow_session_close(client->session, cause, (tow_closed_t){0});
    client->session = NULL;
    tow_list_remove(&client->node);
    tow_runs_forsake(client);
    tow_regroups_lose(client, cause);
    tow_puts_lose(controller, NULL, client, cause);
    tow_gets_lose(controller, NULL, client, cause);
    tow_reports_lose(controller, NULL, client);
    tow_callbacks_lose(controller, NULL, client);
    tow_sched_remove_client(controller->sched, client->number);
    tow_ledger_release_client(controller->ledger, client->number);
    free_client(client);
    tow_sched_poke(controller->sched, NULL);
    tow_controller_touch(controller);
}

void tow_clients_close(tow_controller_t *controller, tow_status_t reason)
{
    for (tow_list_t *item = controller->clients.next;
         item != &controller->clients; item = item->next) {
        client_t *client = TOW_CONTAINER_OF(item, client_t, node);
        tow_session_close(client->session, reason,
                          tow_controller_closing(controller));
        client->session = NULL;
    }
}

void tow_clients_abandon(tow_controller_t *controller)
{
    for (tow_list_t *item = controller->clients.next;
         item != &controller->clients; item = item->next) {
        client_t *client = TOW_CONTAINER_OF(item, client_t, node);
        tow_session_abandon(client->session);
        client->session = NULL;
    }
}

void tow_clients_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->clients)) {
        tow_list_t *item = tow_list_pop_front(&controller->clients);
        free_client(TOW_CONTAINER_OF(item, client_t, node));
    }
}
