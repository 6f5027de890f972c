/* Programs and their executables on the workers.
 *
 * A program gets the transfers that it needs and is verified, then its functions
 * are loaded where they are not yet, then each worker gets its part. Runs wait here until the loads have been
 * answered, so a worker never has to wait for one. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "device/options.h"

/* -- Executables --------------------------------------------------------------- */

static void free_executable(executable_t *executable)
{
    tow_list_remove(&executable->node);
    tow_status_release(executable->error);
    tow_free(executable->is_loading);
    tow_code_release(executable->code);
    tow_mapping_release(executable->mapping);
    tow_free(executable);
}

static void release_executable(tow_controller_t *controller,
                               executable_t *executable)
{
    TOW_ASSERT(executable->reference_count > 0);
    if (--executable->reference_count > 0) return;
    tow_map_remove(&controller->executable_of, executable->id);
    tow_msg_unload_t unload = TOW_MSG_UNLOAD_INIT;
    unload.executable = executable->id;
    for (uint32_t i = 0; i < executable->mapping->part_count; i++)
        tow_worker_send(executable->mapping->parts[i].worker,
                        TOW_MESSAGE_UNLOAD, &unload.base);
    free_executable(executable);
}

static void release_code_blob(void *context)
{
    tow_code_release(context);
}

static void free_blob_bytes(void *context)
{
    tow_free(context);
}

/* A host function's options are its signature; its devices stand beside it. */
static tow_status_t host_options(const code_t *code, const mapping_part_t *part,
                                 tow_msg_load_t *load, void **out_options,
                                 size_t *out_size)
{
    *out_options = tow_malloc(code->options_size + 1);
    if (*out_options == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(*out_options, code->options, code->options_size);
    *out_size = code->options_size;
    load->host_devices = part->devices;
    load->host_shards = part->shards;
    load->n_host_devices = load->n_host_shards = part->count;
    return TOW_OK;
}

/* The code goes as it is; the options name the devices. */
static tow_status_t send_load(executable_t *executable, uint32_t part)
{
    const mapping_t *mapping = executable->mapping;
    code_t *code = executable->code;
    const tow_signature_t *signature = &code->compiled->signature;
    tow_session_t *session = mapping->parts[part].worker->session;
    tow_assignment_t assignment = {.replica_count = signature->replica_count,
                                   .partition_count =
                                       signature->partition_count,
                                   .device_ids = mapping->device_ids};
    void *options;
    size_t options_size;
    tow_msg_load_t load = TOW_MSG_LOAD_INIT;
    TOW_RETURN_IF_ERROR(
        signature->is_host
            ? host_options(code, &mapping->parts[part], &load, &options,
                           &options_size)
            : tow_compile_options_reassign(
                  (tow_bytes_t){code->options, code->options_size}, &assignment,
                  &options, &options_size));
    load.executable = executable->id;
    tow_code_retain(code);
    load.code_blob = tow_session_send_blob(
        session, &(tow_session_blob_t){.bytes = code->compiled->bytes,
                                       .size = code->compiled->size,
                                       .release = release_code_blob,
                                       .context = code});
    load.options_blob = tow_session_send_blob(
        session, &(tow_session_blob_t){.bytes = options,
                                       .size = options_size,
                                       .release = free_blob_bytes,
                                       .context = options});
    tow_worker_send(mapping->parts[part].worker, TOW_MESSAGE_LOAD, &load.base);
    return TOW_OK;
}

static tow_status_t load_everywhere(executable_t *executable)
{
    for (uint32_t i = 0; i < executable->mapping->part_count; i++) {
        TOW_RETURN_IF_ERROR(send_load(executable, i));
        executable->is_loading[i] = true;
        executable->loading_count++;
    }
    return TOW_OK;
}

static tow_status_t make_executable(tow_controller_t *controller, code_t *code,
                                    mapping_t *mapping,
                                    executable_t **out_executable)
{
    executable_t *executable = tow_calloc(1, sizeof(*executable));
    if (executable == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    executable->id = ++controller->executable_number;
    executable->reference_count = 1;
    executable->code = code;
    executable->mapping = mapping;
    tow_code_retain(code);
    tow_mapping_retain(mapping);
    tow_list_append(&mapping->executables, &executable->node);
    executable->is_loading = tow_calloc(mapping->part_count, sizeof(bool));
    tow_status_t status = TOW_OK;
    if (executable->is_loading == NULL ||
        !tow_map_put(&controller->executable_of, executable->id, executable))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) status = load_everywhere(executable);
    if (status != TOW_OK) {
        tow_map_remove(&controller->executable_of, executable->id);
        free_executable(executable);
        return status;
    }
    *out_executable = executable;
    return TOW_OK;
}

static tow_status_t executable_of(tow_controller_t *controller, code_t *code,
                                  mapping_t *mapping,
                                  executable_t **out_executable)
{
    for (tow_list_t *item = mapping->executables.next;
         item != &mapping->executables; item = item->next) {
        executable_t *executable = TOW_CONTAINER_OF(item, executable_t, node);
        if (executable->code != code || executable->error != TOW_OK) continue;
        executable->reference_count++;
        *out_executable = executable;
        return TOW_OK;
    }
    return make_executable(controller, code, mapping, out_executable);
}

/* -- Scope --------------------------------------------------------------------- */

/* What ids in a client's graph stand for, while it is taken in. */
typedef struct taking {
    client_t *client;
    tow_graph_t *graph;
    uint32_t client_node_count; /* the others are inserted transfers */
    resident_t *resident;
    tow_map_t slices;       /* whose cost has been counted: a set */
    const worker_t *worker; /* that we lower for */
} taking_t;

static const slice_t *slice_of(const taking_t *taking, tow_slice_id_t id)
{
    return tow_map_find(&taking->client->slices, id.value);
}

static code_t *code_of(const taking_t *taking, tow_function_id_t id)
{
    const function_t *function =
        tow_map_find(&taking->client->functions, id.value);
    return function != NULL && function->code->state == CODE_READY
               ? function->code
               : NULL;
}

static size_t scope_slice_devices(void *context, tow_slice_id_t id)
{
    const slice_t *slice = slice_of(context, id);
    return slice == NULL ? 0 : slice->device_count;
}

static const tow_signature_t *scope_function(void *context,
                                             tow_function_id_t id)
{
    const code_t *code = code_of(context, id);
    return code == NULL ? NULL : &code->compiled->signature;
}

static tow_executable_id_t scope_executable(void *context,
                                            tow_function_id_t function,
                                            tow_slice_id_t slice)
{
    const taking_t *taking = context;
    const code_t *code = code_of(taking, function);
    const mapping_t *mapping = slice_of(taking, slice)->mapping;
    const resident_t *resident = taking->resident;
    for (size_t i = 0; i < resident->executable_count; i++)
        if (resident->executables[i]->code == code &&
            resident->executables[i]->mapping == mapping)
            return (tow_executable_id_t){resident->executables[i]->id};
    TOW_UNREACHABLE();
}

static bool scope_slice_is_here(void *context, tow_slice_id_t slice)
{
    const taking_t *taking = context;
    const mapping_t *mapping = slice_of(taking, slice)->mapping;
    for (uint32_t i = 0; i < mapping->part_count; i++)
        if (mapping->parts[i].worker == taking->worker) return true;
    return false;
}

/* Hosts are told apart by their names. Should two have one number, bytes between
 * them only take another way. */
static uint32_t host_number(const worker_t *worker)
{
    const char *host = worker->peer.host;
    return host == NULL ? 0 : (uint32_t)tow_hash_bytes(host, strlen(host), 0);
}

static tow_place_t scope_place(void *context, tow_slice_id_t slice,
                               size_t shard)
{
    const mapping_t *mapping = slice_of(context, slice)->mapping;
    const mapping_part_t *part = &mapping->parts[mapping->part_of_shard[shard]];
    const uint32_t index = mapping->index_in_part[shard];
    return (tow_place_t){.process = part->worker->process,
                         .index = index,
                         .device = part->devices[index],
                         .host = host_number(part->worker)};
}

static tow_graph_scope_t scope_of(taking_t *taking)
{
    return (tow_graph_scope_t){.slice_devices = scope_slice_devices,
                               .function = scope_function,
                               .context = taking};
}

/* -- Taking in ----------------------------------------------------------------- */

static void free_resident(resident_t *resident)
{
    tow_list_remove(&resident->node);
    for (size_t i = 0; i < resident->executable_count; i++)
        release_executable(resident->controller, resident->executables[i]);
    for (size_t i = 0; i < resident->mapping_count; i++)
        tow_mapping_release(resident->mappings[i]);
    for (size_t i = 0; i < resident->worker_count; i++)
        tow_worker_release(resident->workers[i]);
    tow_status_release(resident->error);
    tow_free(resident->executables);
    tow_free(resident->mappings);
    tow_free(resident->workers);
    tow_free(resident->parts);
    tow_free(resident->arguments);
    tow_free(resident->results);
    tow_free(resident->name);
    tow_free(resident->graph.bytes);
    tow_free(resident);
}

void tow_resident_retain(resident_t *resident)
{
    resident->reference_count++;
}

void tow_resident_release(resident_t *resident)
{
    TOW_ASSERT(resident->reference_count > 0);
    if (--resident->reference_count > 0) return;
    tow_msg_program_unload_t unload = TOW_MSG_PROGRAM_UNLOAD_INIT;
    unload.program = resident->key;
    for (size_t i = 0; i < resident->worker_count; i++)
        tow_worker_send(resident->workers[i], TOW_MESSAGE_PROGRAM_UNLOAD,
                        &unload.base);
    free_resident(resident);
}

/* Kinds must agree: the verifier knows numbers only. And the slice is there. */
static tow_status_t check_nodes(taking_t *taking)
{
    for (size_t i = 0; i < tow_graph_node_count(taking->graph); i++) {
        const tow_node_t *node = tow_graph_node(taking->graph, (uint32_t)i);
        if (node->kind == TOW_NODE_RESULT) continue;
        const mapping_t *mapping = slice_of(taking, node->slice)->mapping;
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            tow_mapping_check(mapping), "node %zu '%s'", i, node->name));
        if (node->kind != TOW_NODE_COMPUTE && node->kind != TOW_NODE_HOST)
            continue;
        const code_t *code = code_of(taking, node->function);
        if (strcmp(code->kind, mapping->kind) != 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "node %zu '%s': its function is for devices of "
                             "kind %s, and slice %llu has %s",
                             i, node->name, code->kind,
                             (unsigned long long)node->slice.value,
                             mapping->kind);
    }
    return TOW_OK;
}

static bool add_worker(resident_t *resident, worker_t *worker)
{
    for (size_t i = 0; i < resident->worker_count; i++)
        if (resident->workers[i] == worker) return true;
    worker_t **grown = tow_realloc(
        resident->workers, (resident->worker_count + 1) * sizeof(*grown));
    if (grown == NULL) return false;
    resident->workers = grown;
    resident->workers[resident->worker_count++] = worker;
    tow_worker_retain(worker);
    return true;
}

/* What the program takes of a mapping: a row of its own for each. */
static tow_status_t part_of(resident_t *resident, mapping_t *mapping,
                            tow_ticket_part_t **out_part)
{
    for (size_t i = 0; i < resident->mapping_count; i++)
        if (resident->mappings[i] == mapping) {
            *out_part = &resident->parts[i];
            return TOW_OK;
        }
    const size_t count = resident->mapping_count + 1;
    mapping_t **mappings =
        tow_realloc(resident->mappings, count * sizeof(*mappings));
    if (mappings != NULL) resident->mappings = mappings;
    tow_ticket_part_t *parts =
        tow_realloc(resident->parts, count * sizeof(*parts));
    if (parts != NULL) resident->parts = parts;
    if (mappings == NULL || parts == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_part = &parts[count - 1];
    **out_part = (tow_ticket_part_t){.placement = mapping->placement};
    mappings[count - 1] = mapping;
    resident->mapping_count = count;
    tow_mapping_retain(mapping);
    for (uint32_t i = 0; i < mapping->part_count; i++)
        if (!add_worker(resident, mapping->parts[i].worker))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

/* Two slices may have the same devices: then both count. */
static tow_status_t add_slice(taking_t *taking, tow_slice_id_t slice)
{
    const tow_graph_scope_t scope = scope_of(taking);
    tow_ticket_part_t *part = NULL;
    tow_graph_cost_t cost;
    if (tow_map_find(&taking->slices, slice.value) != NULL) return TOW_OK;
    if (!tow_map_put(&taking->slices, slice.value, taking))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(tow_graph_cost(taking->graph, &scope, slice, &cost));
    TOW_RETURN_IF_ERROR(
        part_of(taking->resident, slice_of(taking, slice)->mapping, &part));
    if (__builtin_add_overflow(part->bytes, cost.peak_bytes, &part->bytes) ||
        __builtin_add_overflow(part->step_count, cost.step_count,
                               &part->step_count))
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "slices with the same devices together take more than "
                         "can be counted");
    return TOW_OK;
}

static tow_status_t add_executable(taking_t *taking, const tow_node_t *node)
{
    resident_t *resident = taking->resident;
    code_t *code = code_of(taking, node->function);
    mapping_t *mapping = slice_of(taking, node->slice)->mapping;
    for (size_t i = 0; i < resident->executable_count; i++)
        if (resident->executables[i]->code == code &&
            resident->executables[i]->mapping == mapping)
            return TOW_OK;
    executable_t **grown =
        tow_realloc(resident->executables,
                    (resident->executable_count + 1) * sizeof(*grown));
    if (grown == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    resident->executables = grown;
    executable_t *executable = NULL;
    TOW_RETURN_IF_ERROR(
        executable_of(resident->controller, code, mapping, &executable));
    grown[resident->executable_count++] = executable;
    if (executable->loading_count > 0) resident->loading_count++;
    return TOW_OK;
}

static tow_status_t fill_nodes(taking_t *taking)
{
    for (size_t i = 0; i < tow_graph_node_count(taking->graph); i++) {
        const tow_node_t *node = tow_graph_node(taking->graph, (uint32_t)i);
        if (node->kind == TOW_NODE_RESULT) continue;
        TOW_RETURN_IF_ERROR(add_slice(taking, node->slice));
        if (node->kind == TOW_NODE_ARGUMENT) continue;
        taking->resident->step_count++;
        if (node->kind == TOW_NODE_COMPUTE || node->kind == TOW_NODE_HOST)
            TOW_RETURN_IF_ERROR(add_executable(taking, node));
    }
    return TOW_OK;
}

static tow_status_t fill_arguments(taking_t *taking)
{
    resident_t *resident = taking->resident;
    const tow_graph_scope_t scope = scope_of(taking);
    resident->argument_count = tow_graph_argument_count(taking->graph);
    resident->arguments =
        tow_calloc(resident->argument_count + 1, sizeof(argument_t));
    if (resident->arguments == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    bool *consumed = tow_calloc(resident->argument_count + 1, sizeof(bool));
    if (consumed == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = tow_graph_consumed(taking->graph, &scope, consumed);
    for (size_t i = 0; i < resident->argument_count; i++) {
        const tow_node_t *node =
            tow_graph_node(taking->graph, tow_graph_argument(taking->graph, i));
        resident->arguments[i] =
            (argument_t){.mapping = slice_of(taking, node->slice)->mapping,
                         .shape = node->shape,
                         .consumed = consumed[i]};
    }
    tow_free(consumed);
    return status;
}

static tow_status_t fill_results(taking_t *taking)
{
    resident_t *resident = taking->resident;
    const tow_graph_scope_t scope = scope_of(taking);
    resident->result_count = tow_graph_result_count(taking->graph);
    resident->results =
        tow_calloc(resident->result_count + 1, sizeof(result_t));
    if (resident->results == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < resident->result_count; i++) {
        tow_result_info_t info;
        TOW_RETURN_IF_ERROR(
            tow_graph_result_info(taking->graph, &scope, i, &info));
        resident->results[i] =
            (result_t){.mapping = slice_of(taking, info.slice)->mapping,
                       .shape = info.shape,
                       .bytes = info.bytes,
                       .argument = info.argument};
    }
    return TOW_OK;
}

static tow_status_t send_part(taking_t *taking, worker_t *worker)
{
    taking->worker = worker;
    const tow_lower_scope_t scope = {.program = scope_of(taking),
                                     .executable = scope_executable,
                                     .slice_is_here = scope_slice_is_here,
                                     .place = scope_place,
                                     .process = worker->process,
                                     .client_node_count =
                                         taking->client_node_count,
                                     .context = taking};
    tow_lowered_t *lowered;
    TOW_RETURN_IF_ERROR(tow_graph_lower(taking->graph, &scope, &lowered));
    void *bytes;
    size_t size;
    tow_status_t status = tow_lowered_pack(lowered, &bytes, &size);
    tow_lowered_destroy(lowered);
    if (status != TOW_OK) return status;
    tow_msg_program_load_t load = TOW_MSG_PROGRAM_LOAD_INIT;
    load.program = taking->resident->key;
    load.lowered_blob = tow_session_send_blob(
        worker->session, &(tow_session_blob_t){.bytes = bytes,
                                               .size = size,
                                               .release = free_blob_bytes,
                                               .context = bytes});
    tow_worker_send(worker, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
    return TOW_OK;
}

static tow_status_t fill_resident(taking_t *taking)
{
    TOW_RETURN_IF_ERROR(fill_nodes(taking));
    TOW_RETURN_IF_ERROR(fill_arguments(taking));
    TOW_RETURN_IF_ERROR(fill_results(taking));
    for (size_t i = 0; i < taking->resident->worker_count; i++)
        TOW_RETURN_IF_ERROR(send_part(taking, taking->resident->workers[i]));
    return TOW_OK;
}

/* Nodes of the client's keep their numbers, so errors name those. */
static tow_status_t insert_transfers(taking_t *taking)
{
    const tow_graph_scope_t scope = scope_of(taking);
    tow_graph_t *complete;
    taking->client_node_count = (uint32_t)tow_graph_node_count(taking->graph);
    TOW_RETURN_IF_ERROR(tow_graph_verify_loose(taking->graph, &scope));
    TOW_RETURN_IF_ERROR(
        tow_graph_insert_transfers(taking->graph, &scope, &complete));
    tow_graph_destroy(taking->graph);
    taking->graph = complete;
    return tow_graph_verify(taking->graph, &scope);
}

static tow_status_t take_graph(taking_t *taking, uint64_t id)
{
    TOW_RETURN_IF_ERROR(insert_transfers(taking));
    TOW_RETURN_IF_ERROR(check_nodes(taking));
    resident_t *resident = tow_calloc(1, sizeof(*resident));
    if (resident == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    taking->resident = resident;
    resident->controller = taking->client->controller;
    resident->reference_count = 1;
    resident->key = tow_key(taking->client->number, id);
    tow_list_init(&resident->waiting);
    tow_list_append(&resident->controller->residents, &resident->node);
    resident->name = tow_strdup(tow_graph_name(taking->graph));
    tow_status_t status = resident->name == NULL
                              ? tow_status_bare(TOW_RESOURCE_EXHAUSTED)
                              : fill_resident(taking);
    if (status != TOW_OK) tow_resident_release(resident);
    return status;
}

resident_t *tow_resident_refuse(client_t *client, uint64_t id,
                                const blob_t *blob, tow_status_t cause)
{
    resident_t *resident = tow_calloc(1, sizeof(*resident));
    if (resident == NULL) return NULL;
    resident->controller = client->controller;
    resident->reference_count = 1;
    resident->key = tow_key(client->number, id);
    resident->is_refused = true;
    resident->error = tow_status_retain(cause);
    tow_list_init(&resident->waiting);
    tow_list_append(&resident->controller->residents, &resident->node);
    tow_graph_t *graph;
    tow_status_t status = tow_graph_unpack(blob->bytes, blob->size, &graph);
    if (status == TOW_OK) {
        resident->result_count = tow_graph_result_count(graph);
        tow_graph_destroy(graph);
    }
    tow_status_ignore(status, "then it has no results");
    return resident;
}

tow_status_t tow_resident_take(client_t *client, uint64_t id,
                               const blob_t *blob, resident_t **out_resident)
{
    taking_t taking = {.client = client};
    TOW_RETURN_IF_ERROR(
        tow_graph_unpack(blob->bytes, blob->size, &taking.graph));
    tow_status_t status = take_graph(&taking, id);
    tow_graph_destroy(taking.graph);
    tow_map_deinit(&taking.slices);
    if (status == TOW_OK) *out_resident = taking.resident;
    return status;
}

/* -- Loads --------------------------------------------------------------------- */

static void executable_settled(resident_t *resident, executable_t *executable)
{
    for (size_t i = 0; i < resident->executable_count; i++) {
        if (resident->executables[i] != executable) continue;
        TOW_ASSERT(resident->loading_count > 0);
        resident->loading_count--;
        if (executable->error != TOW_OK && resident->error == TOW_OK)
            resident->error = tow_status_retain(executable->error);
    }
    if (resident->loading_count > 0) return;
    while (!tow_list_is_empty(&resident->waiting))
        tow_run_unblock(
            TOW_CONTAINER_OF(resident->waiting.next, run_block_t, node));
}

/* A run that fails for it may be the last to hold its program. */
static void settle_executable(tow_controller_t *controller,
                              executable_t *executable)
{
    tow_list_t *item = controller->residents.next;
    while (item != &controller->residents) {
        resident_t *resident = TOW_CONTAINER_OF(item, resident_t, node);
        tow_resident_retain(resident);
        executable_settled(resident, executable);
        item = item->next;
        tow_resident_release(resident);
    }
}

static void part_settled(tow_controller_t *controller, executable_t *executable,
                         uint32_t part, tow_status_t take_status)
{
    TOW_ASSERT(executable->is_loading[part]);
    executable->is_loading[part] = false;
    if (take_status != TOW_OK && executable->error == TOW_OK)
        executable->error = tow_status_retain(take_status);
    tow_status_release(take_status);
    if (--executable->loading_count == 0)
        settle_executable(controller, executable);
}

void tow_executable_loaded(tow_controller_t *controller, worker_t *worker,
                           uint64_t id, tow_status_t take_status)
{
    executable_t *executable = tow_map_find(&controller->executable_of, id);
    for (uint32_t i = 0;
         executable != NULL && i < executable->mapping->part_count; i++)
        if (executable->mapping->parts[i].worker == worker &&
            executable->is_loading[i]) {
            if (take_status != TOW_OK)
                take_status = tow_status_annotate(
                    take_status, "loading %s on worker %s",
                    executable->code->compiled->signature.name, worker->name);
            part_settled(controller, executable, i, take_status);
            return;
        }
    tow_status_release(take_status); /* It was dropped meanwhile. */
}

void tow_executables_lose(tow_controller_t *controller, worker_t *worker,
                          tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->executable_of, &cursor, &key, &value)) {
        executable_t *executable = value;
        executable->reference_count++;
        for (uint32_t i = 0; i < executable->mapping->part_count; i++) {
            if (executable->mapping->parts[i].worker != worker) continue;
            if (executable->error == TOW_OK)
                executable->error = tow_status_retain(cause);
            if (executable->is_loading[i])
                part_settled(controller, executable, i,
                             tow_status_retain(cause));
        }
        release_executable(controller, executable);
    }
}
