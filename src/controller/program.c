/* Programs and their executables on the workers.
 *
 * The controller inserts the transfers that a program needs and verifies it,
 * loads its functions on workers that do not have them, and sends each worker
 * its part. Runs wait here until the loads have been answered, so a worker
 * never waits for one. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "controller/blob_impl.h"
#include "controller/slice_impl.h"
#include "device/options.h"
#include "ir/lower.h"
#include "sched/cut.h"

/* -- Executables --------------------------------------------------------------- */

static void free_executable(tow_ctl_executable_t *executable)
{
    tow_list_remove(&executable->node);
    tow_status_release(executable->error);
    tow_free(executable->is_loading);
    tow_ctl_code_release(executable->code);
    tow_ctl_mapping_release(executable->mapping);
    tow_free(executable);
}

static void release_executable(tow_controller_t *controller,
                               tow_ctl_executable_t *executable)
{
    TOW_ASSERT(executable->reference_count > 0);
    if (--executable->reference_count > 0) return;
    tow_map_remove(&controller->programs.executable_by_id, executable->id);
    tow_msg_unload_t unload = TOW_MSG_UNLOAD_INIT;
    unload.executable = executable->id;
    for (uint32_t i = 0; i < executable->mapping->part_count; i++)
        tow_ctl_worker_send(executable->mapping->parts[i].worker,
                            TOW_MESSAGE_UNLOAD, &unload.base);
    free_executable(executable);
}

static void release_code_blob(void *context)
{
    tow_ctl_code_release(context);
}

static void free_blob_bytes(void *context)
{
    tow_free(context);
}

/* The options of a host function are its signature; the message names its
 * devices. */
static tow_status_t host_options(const tow_ctl_code_t *code,
                                 const tow_ctl_mapping_part_t *part,
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

/* The code is the same for all workers; the options name the devices. */
static tow_status_t send_load(tow_ctl_executable_t *executable, uint32_t part)
{
    const tow_ctl_mapping_t *mapping = executable->mapping;
    tow_ctl_code_t *code = executable->code;
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
    tow_ctl_code_retain(code);
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
    tow_ctl_worker_send(mapping->parts[part].worker, TOW_MESSAGE_LOAD,
                        &load.base);
    return TOW_OK;
}

static tow_status_t load_everywhere(tow_ctl_executable_t *executable)
{
    for (uint32_t i = 0; i < executable->mapping->part_count; i++) {
        TOW_RETURN_IF_ERROR(send_load(executable, i));
        executable->is_loading[i] = true;
        executable->loading_count++;
    }
    return TOW_OK;
}

static tow_status_t make_executable(tow_controller_t *controller,
                                    tow_ctl_code_t *code,
                                    tow_ctl_mapping_t *mapping,
                                    tow_ctl_executable_t **out_executable)
{
    tow_ctl_executable_t *executable = tow_calloc(1, sizeof(*executable));
    if (executable == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    executable->id = ++controller->programs.executable_number;
    executable->reference_count = 1;
    executable->code = code;
    executable->mapping = mapping;
    tow_ctl_code_retain(code);
    tow_ctl_mapping_retain(mapping);
    tow_list_append(&mapping->executables, &executable->node);
    executable->is_loading = tow_calloc(mapping->part_count, sizeof(bool));
    tow_status_t status = TOW_OK;
    if (executable->is_loading == NULL ||
        !tow_map_put(&controller->programs.executable_by_id, executable->id,
                     executable))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) status = load_everywhere(executable);
    if (status != TOW_OK) {
        tow_map_remove(&controller->programs.executable_by_id, executable->id);
        free_executable(executable);
        return status;
    }
    *out_executable = executable;
    return TOW_OK;
}

static tow_status_t executable_of(tow_controller_t *controller,
                                  tow_ctl_code_t *code,
                                  tow_ctl_mapping_t *mapping,
                                  tow_ctl_executable_t **out_executable)
{
    for (tow_list_t *item = mapping->executables.next;
         item != &mapping->executables; item = item->next) {
        tow_ctl_executable_t *executable =
            TOW_CONTAINER_OF(item, tow_ctl_executable_t, node);
        if (executable->code != code || executable->error != TOW_OK) continue;
        executable->reference_count++;
        *out_executable = executable;
        return TOW_OK;
    }
    return make_executable(controller, code, mapping, out_executable);
}

/* -- Resolving the ids of a graph ------------------------------------------ */

/* A client's graph while it is loaded: resolves its ids. */
typedef struct taking {
    tow_ctl_client_t *client;
    tow_graph_t *graph;
    uint32_t client_node_count; /* the others are inserted transfers */
    tow_ctl_program_t *program;
    tow_map_t slices; /* set of those whose cost has been counted */
    const tow_ctl_worker_t *worker; /* that the graph is lowered for */
} taking_t;

static const tow_ctl_slice_t *slice_of(const taking_t *taking,
                                       tow_slice_id_t id)
{
    return tow_map_find(&taking->client->slices, id.value);
}

static tow_ctl_code_t *code_of(const taking_t *taking, tow_function_id_t id)
{
    const tow_ctl_function_t *function =
        tow_map_find(&taking->client->functions, id.value);
    return function != NULL && function->code->state == CODE_READY
               ? function->code
               : NULL;
}

static size_t scope_slice_devices(void *context, tow_slice_id_t id)
{
    const tow_ctl_slice_t *slice = slice_of(context, id);
    return slice == NULL ? 0 : slice->device_count;
}

static const tow_signature_t *scope_function(void *context,
                                             tow_function_id_t id)
{
    const tow_ctl_code_t *code = code_of(context, id);
    return code == NULL ? NULL : &code->compiled->signature;
}

static tow_executable_id_t scope_executable(void *context,
                                            tow_function_id_t function,
                                            tow_slice_id_t slice)
{
    const taking_t *taking = context;
    const tow_ctl_code_t *code = code_of(taking, function);
    const tow_ctl_mapping_t *mapping = slice_of(taking, slice)->mapping;
    const tow_ctl_program_t *program = taking->program;
    for (size_t i = 0; i < program->executable_count; i++)
        if (program->executables[i]->code == code &&
            program->executables[i]->mapping == mapping)
            return (tow_executable_id_t){program->executables[i]->id};
    TOW_UNREACHABLE();
}

static bool scope_slice_is_here(void *context, tow_slice_id_t slice)
{
    const taking_t *taking = context;
    const tow_ctl_mapping_t *mapping = slice_of(taking, slice)->mapping;
    for (uint32_t i = 0; i < mapping->part_count; i++)
        if (mapping->parts[i].worker == taking->worker) return true;
    return false;
}

/* Hosts are distinguished by name. If two hash to the same number, bytes
 * between them only take a slower path. */
static uint32_t host_number(const tow_ctl_worker_t *worker)
{
    const char *host = worker->peer.host;
    return host == NULL ? 0 : (uint32_t)tow_hash_bytes(host, strlen(host), 0);
}

static tow_place_t scope_place(void *context, tow_slice_id_t slice,
                               size_t shard)
{
    const tow_ctl_mapping_t *mapping = slice_of(context, slice)->mapping;
    const tow_ctl_mapping_part_t *part =
        &mapping->parts[mapping->part_of_shard[shard]];
    const uint32_t index = mapping->index_in_part[shard];
    return (tow_place_t){.process = part->worker->process,
                         .index = index,
                         .device = part->devices[index],
                         .host = host_number(part->worker)};
}

static tow_graph_scope_t scope_of(taking_t *taking)
{
    return (tow_graph_scope_t){
        .slice_devices = scope_slice_devices,
        .function = scope_function,
        .context = taking,
        .late_shift = taking->client->controller->options.late_shift};
}

/* -- Loading a program ----------------------------------------------------- */

static void free_program(tow_ctl_program_t *program)
{
    tow_list_remove(&program->node);
    for (size_t i = 0; i < program->executable_count; i++)
        release_executable(program->controller, program->executables[i]);
    for (size_t i = 0; i < program->mapping_count; i++)
        tow_ctl_mapping_release(program->mappings[i]);
    for (size_t i = 0; i < program->worker_count; i++)
        tow_ctl_worker_release(program->workers[i]);
    tow_status_release(program->error);
    tow_free(program->executables);
    tow_free(program->mappings);
    tow_free(program->workers);
    tow_free(program->parts);
    tow_free(program->step_parts);
    tow_free(program->arguments);
    tow_free(program->results);
    tow_free(program->name);
    tow_free(program->graph.bytes);
    tow_free(program);
}

void tow_ctl_program_retain(tow_ctl_program_t *program)
{
    program->reference_count++;
}

void tow_ctl_program_release(tow_ctl_program_t *program)
{
    TOW_ASSERT(program->reference_count > 0);
    if (--program->reference_count > 0) return;
    tow_msg_program_unload_t unload = TOW_MSG_PROGRAM_UNLOAD_INIT;
    unload.program = program->key;
    for (size_t i = 0; i < program->worker_count; i++)
        tow_ctl_worker_send(program->workers[i], TOW_MESSAGE_PROGRAM_UNLOAD,
                            &unload.base);
    free_program(program);
}

/* The kinds of devices must agree, which the verifier does not check, and the
 * slices must be available. */
static tow_status_t check_nodes(taking_t *taking)
{
    for (size_t i = 0; i < tow_graph_node_count(taking->graph); i++) {
        const tow_node_t *node = tow_graph_node(taking->graph, (uint32_t)i);
        if (node->kind == TOW_NODE_RESULT) continue;
        const tow_ctl_mapping_t *mapping =
            slice_of(taking, node->slice)->mapping;
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            tow_ctl_mapping_status(mapping), "node %zu '%s'", i, node->name));
        if (node->kind != TOW_NODE_COMPUTE && node->kind != TOW_NODE_HOST)
            continue;
        const tow_ctl_code_t *code = code_of(taking, node->function);
        if (strcmp(code->kind, mapping->kind) != 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "node %zu '%s': its function is for devices of "
                             "kind %s, but slice %llu has %s",
                             i, node->name, code->kind,
                             (unsigned long long)node->slice.value,
                             mapping->kind);
    }
    return TOW_OK;
}

static bool add_worker(tow_ctl_program_t *program, tow_ctl_worker_t *worker)
{
    for (size_t i = 0; i < program->worker_count; i++)
        if (program->workers[i] == worker) return true;
    tow_ctl_worker_t **grown = tow_realloc(
        program->workers, (program->worker_count + 1) * sizeof(*grown));
    if (grown == NULL) return false;
    program->workers = grown;
    program->workers[program->worker_count++] = worker;
    tow_ctl_worker_retain(worker);
    return true;
}

/* The part of the program's ticket for a mapping. */
static tow_status_t part_of(tow_ctl_program_t *program,
                            tow_ctl_mapping_t *mapping,
                            tow_ticket_part_t **out_part)
{
    for (size_t i = 0; i < program->mapping_count; i++)
        if (program->mappings[i] == mapping) {
            *out_part = &program->parts[i];
            return TOW_OK;
        }
    const size_t count = program->mapping_count + 1;
    tow_ctl_mapping_t **mappings =
        tow_realloc(program->mappings, count * sizeof(*mappings));
    if (mappings != NULL) program->mappings = mappings;
    tow_ticket_part_t *parts =
        tow_realloc(program->parts, count * sizeof(*parts));
    if (parts != NULL) program->parts = parts;
    if (mappings == NULL || parts == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_part = &parts[count - 1];
    **out_part = (tow_ticket_part_t){.placement = mapping->placement};
    mappings[count - 1] = mapping;
    program->mapping_count = count;
    tow_ctl_mapping_retain(mapping);
    for (uint32_t i = 0; i < mapping->part_count; i++)
        if (!add_worker(program, mapping->parts[i].worker))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

/* Slices with the same devices add up. */
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
        part_of(taking->program, slice_of(taking, slice)->mapping, &part));
    if (__builtin_add_overflow(part->bytes, cost.peak_bytes, &part->bytes) ||
        __builtin_add_overflow(part->step_count, cost.step_count,
                               &part->step_count))
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "slices with the same devices together need more than "
                         "2^64 bytes or 2^32 steps");
    return TOW_OK;
}

static tow_status_t add_executable(taking_t *taking, const tow_node_t *node)
{
    tow_ctl_program_t *program = taking->program;
    tow_ctl_code_t *code = code_of(taking, node->function);
    tow_ctl_mapping_t *mapping = slice_of(taking, node->slice)->mapping;
    for (size_t i = 0; i < program->executable_count; i++)
        if (program->executables[i]->code == code &&
            program->executables[i]->mapping == mapping)
            return TOW_OK;
    tow_ctl_executable_t **grown = tow_realloc(
        program->executables, (program->executable_count + 1) * sizeof(*grown));
    if (grown == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    program->executables = grown;
    tow_ctl_executable_t *executable = NULL;
    TOW_RETURN_IF_ERROR(
        executable_of(program->controller, code, mapping, &executable));
    grown[program->executable_count++] = executable;
    if (executable->loading_count > 0) program->loading_count++;
    return TOW_OK;
}

static tow_status_t fill_nodes(taking_t *taking)
{
    for (size_t i = 0; i < tow_graph_node_count(taking->graph); i++) {
        const tow_node_t *node = tow_graph_node(taking->graph, (uint32_t)i);
        if (node->kind == TOW_NODE_RESULT) continue;
        TOW_RETURN_IF_ERROR(add_slice(taking, node->slice));
        if (node->kind == TOW_NODE_ARGUMENT) continue;
        taking->program->step_count++;
        if (node->kind == TOW_NODE_COMPUTE || node->kind == TOW_NODE_HOST)
            TOW_RETURN_IF_ERROR(add_executable(taking, node));
    }
    return TOW_OK;
}

static uint32_t part_index(const tow_ctl_program_t *program,
                           const tow_ctl_mapping_t *mapping)
{
    uint32_t index = 0;
    while (program->mappings[index] != mapping)
        index++;
    return index;
}

/* Which part each step keeps busy, for cutting runs into pieces. */
static tow_status_t fill_steps(taking_t *taking)
{
    tow_ctl_program_t *program = taking->program;
    const size_t capacity = tow_graph_node_count(taking->graph) + 1;
    size_t count;
    tow_step_info_t *steps = tow_calloc(capacity, sizeof(*steps));
    program->step_parts = tow_calloc(capacity, sizeof(*program->step_parts));
    tow_status_t status = steps != NULL && program->step_parts != NULL
                              ? tow_graph_steps(taking->graph, steps, &count)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) {
        TOW_ASSERT(count == program->step_count);
        for (size_t i = 0; i < count; i++)
            program->step_parts[i] =
                steps[i].is_computed
                    ? part_index(program,
                                 slice_of(taking, steps[i].slice)->mapping)
                    : TOW_CUT_NO_PART;
        for (size_t i = 0; i < program->mapping_count; i++)
            if (program->parts[i].step_count > program->busiest_step_count)
                program->busiest_step_count = program->parts[i].step_count;
        for (size_t i = 0; i < count; i++)
            if (steps[i].depth >
                program->busiest_step_count + program->lag_step_count)
                program->lag_step_count =
                    steps[i].depth - program->busiest_step_count;
    }
    tow_free(steps);
    return status;
}

static tow_status_t fill_arguments(taking_t *taking)
{
    tow_ctl_program_t *program = taking->program;
    const tow_graph_scope_t scope = scope_of(taking);
    program->argument_count = tow_graph_argument_count(taking->graph);
    program->arguments =
        tow_calloc(program->argument_count + 1, sizeof(tow_ctl_argument_t));
    if (program->arguments == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    bool *consumed = tow_calloc(program->argument_count + 1, sizeof(bool));
    if (consumed == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = tow_graph_consumed(taking->graph, &scope, consumed);
    for (size_t i = 0; i < program->argument_count; i++) {
        const tow_node_t *node =
            tow_graph_node(taking->graph, tow_graph_argument(taking->graph, i));
        program->arguments[i] = (tow_ctl_argument_t){
            .mapping = slice_of(taking, node->slice)->mapping,
            .shape = node->shape,
            .consumed = consumed[i]};
    }
    tow_free(consumed);
    return status;
}

static tow_status_t fill_results(taking_t *taking)
{
    tow_ctl_program_t *program = taking->program;
    const tow_graph_scope_t scope = scope_of(taking);
    program->result_count = tow_graph_result_count(taking->graph);
    program->results =
        tow_calloc(program->result_count + 1, sizeof(tow_ctl_result_t));
    if (program->results == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < program->result_count; i++) {
        tow_result_info_t info;
        TOW_RETURN_IF_ERROR(
            tow_graph_result_info(taking->graph, &scope, i, &info));
        program->results[i] =
            (tow_ctl_result_t){.mapping = slice_of(taking, info.slice)->mapping,
                               .shape = info.shape,
                               .bytes = info.bytes,
                               .argument = info.argument};
    }
    return TOW_OK;
}

static tow_status_t send_part(taking_t *taking, tow_ctl_worker_t *worker)
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
    load.program = taking->program->key;
    load.lowered_blob = tow_session_send_blob(
        worker->session, &(tow_session_blob_t){.bytes = bytes,
                                               .size = size,
                                               .release = free_blob_bytes,
                                               .context = bytes});
    tow_ctl_worker_send(worker, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
    return TOW_OK;
}

static tow_status_t fill_program(taking_t *taking)
{
    TOW_RETURN_IF_ERROR(fill_nodes(taking));
    TOW_RETURN_IF_ERROR(fill_steps(taking));
    TOW_RETURN_IF_ERROR(fill_arguments(taking));
    TOW_RETURN_IF_ERROR(fill_results(taking));
    for (size_t i = 0; i < taking->program->worker_count; i++)
        TOW_RETURN_IF_ERROR(send_part(taking, taking->program->workers[i]));
    return TOW_OK;
}

/* The client's nodes keep their numbers, so errors name those. */
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
    tow_ctl_program_t *program = tow_calloc(1, sizeof(*program));
    if (program == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    taking->program = program;
    program->controller = taking->client->controller;
    program->reference_count = 1;
    program->key = tow_key(taking->client->number, id);
    tow_list_init(&program->waiting);
    tow_list_append(&program->controller->programs.list, &program->node);
    program->name = tow_strdup(tow_graph_name(taking->graph));
    tow_status_t status = program->name == NULL
                              ? tow_status_bare(TOW_RESOURCE_EXHAUSTED)
                              : fill_program(taking);
    if (status != TOW_OK) tow_ctl_program_release(program);
    return status;
}

tow_ctl_program_t *tow_ctl_program_refuse(tow_ctl_client_t *client, uint64_t id,
                                          const tow_ctl_blob_t *blob,
                                          tow_status_t cause)
{
    tow_ctl_program_t *program = tow_calloc(1, sizeof(*program));
    if (program == NULL) return NULL;
    program->controller = client->controller;
    program->reference_count = 1;
    program->key = tow_key(client->number, id);
    program->is_refused = true;
    program->error = tow_status_retain(cause);
    tow_list_init(&program->waiting);
    tow_list_append(&program->controller->programs.list, &program->node);
    tow_graph_t *graph;
    tow_status_t status = tow_graph_unpack(blob->bytes, blob->size, &graph);
    if (status == TOW_OK) {
        program->result_count = tow_graph_result_count(graph);
        tow_graph_destroy(graph);
    }
    tow_status_ignore(status, "then it has no results");
    return program;
}

tow_status_t tow_ctl_program_load(tow_ctl_client_t *client, uint64_t id,
                                  const tow_ctl_blob_t *blob,
                                  tow_ctl_program_t **out_program)
{
    taking_t taking = {.client = client};
    TOW_RETURN_IF_ERROR(
        tow_graph_unpack(blob->bytes, blob->size, &taking.graph));
    tow_status_t status = take_graph(&taking, id);
    tow_graph_destroy(taking.graph);
    tow_map_deinit(&taking.slices);
    if (status == TOW_OK) {
        tow_ctl_program_check(taking.program);
        *out_program = taking.program;
    }
    return status;
}

/* -- Load answers ---------------------------------------------------------- */

static void executable_settled(tow_ctl_program_t *program,
                               tow_ctl_executable_t *executable)
{
    for (size_t i = 0; i < program->executable_count; i++) {
        if (program->executables[i] != executable) continue;
        TOW_ASSERT(program->loading_count > 0);
        program->loading_count--;
        if (executable->error != TOW_OK && program->error == TOW_OK)
            program->error = tow_status_retain(executable->error);
    }
    if (program->loading_count > 0) return;
    while (!tow_list_is_empty(&program->waiting))
        tow_ctl_unit_unblock(
            TOW_CONTAINER_OF(program->waiting.next, tow_ctl_block_t, node));
}

/* A run that fails because of it may have the last reference to its program. */
static void settle_executable(tow_controller_t *controller,
                              tow_ctl_executable_t *executable)
{
    tow_list_t *item = controller->programs.list.next;
    while (item != &controller->programs.list) {
        tow_ctl_program_t *program =
            TOW_CONTAINER_OF(item, tow_ctl_program_t, node);
        tow_ctl_program_retain(program);
        executable_settled(program, executable);
        tow_ctl_program_check(program);
        item = item->next;
        tow_ctl_program_release(program);
    }
}

static void part_settled(tow_controller_t *controller,
                         tow_ctl_executable_t *executable, uint32_t part,
                         tow_status_t take_status)
{
    TOW_ASSERT(executable->is_loading[part]);
    executable->is_loading[part] = false;
    if (take_status != TOW_OK && executable->error == TOW_OK)
        executable->error = tow_status_retain(take_status);
    tow_status_release(take_status);
    executable->loading_count--;
    tow_ctl_executable_check(executable);
    if (executable->loading_count == 0)
        settle_executable(controller, executable);
}

void tow_ctl_executable_loaded(tow_controller_t *controller,
                               tow_ctl_worker_t *worker, uint64_t id,
                               tow_status_t take_status)
{
    tow_ctl_executable_t *executable =
        tow_map_find(&controller->programs.executable_by_id, id);
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
    tow_status_release(take_status); /* It was released in the meantime. */
}

void tow_ctl_executables_on_disconnect(tow_controller_t *controller,
                                       tow_ctl_worker_t *worker,
                                       tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->programs.executable_by_id, &cursor, &key,
                        &value)) {
        tow_ctl_executable_t *executable = value;
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
