#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* A function holds the programs of its calls. They hold neither it nor the
 * slice, which outlive them. */
static void free_program(tow_program_t *program)
{
    for (size_t i = 0; !program->is_of_call && i < program->results.count; i++)
        tow_slice_release_locked(program->results.items[i].slice);
    for (size_t i = 0; i < program->functions.count; i++)
        tow_function_release_locked(program->functions.items[i]);
    for (size_t i = 0; i < program->slices.count; i++)
        tow_slice_release_locked(program->slices.items[i]);
    tow_vec_deinit(&program->functions);
    tow_vec_deinit(&program->slices);
    tow_vec_deinit(&program->results);
    tow_vec_deinit(&program->donated);
    tow_graph_destroy(program->graph);
    tow_status_release(program->adding.error);
    tow_free(program);
}

tow_status_t tow_program_begin(tow_client_t *client, const char *name,
                               tow_program_t **out_program)
{
    tow_program_t *program = tow_calloc(1, sizeof(*program));
    if (program == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    program->reference_count = 1;
    program->client = client;
    program->generation = tow_client_generation(client);
    tow_status_t status = tow_graph_create(name, &program->graph);
    if (status != TOW_OK) {
        tow_free(program);
        return status;
    }
    client->reference_count++;
    *out_program = program;
    return TOW_OK;
}

void tow_program_retain_locked(tow_program_t *program)
{
    program->reference_count++;
}

void tow_program_release_locked(tow_program_t *program)
{
    TOW_ASSERT(program->reference_count > 0);
    if (--program->reference_count > 0) return;
    tow_client_t *client = program->client;
    if (program->id != 0) {
        tow_map_remove(&client->programs, program->id);
        tow_msg_program_discard_t drop = TOW_MSG_PROGRAM_DISCARD_INIT;
        drop.program = program->id;
        if (program->generation == tow_client_generation(client))
            tow_status_ignore(tow_client_send(client,
                                              TOW_MESSAGE_PROGRAM_DISCARD,
                                              &drop.base),
                              "without a cluster there is nothing to release");
    }
    free_program(program);
    client->reference_count--;
}

/* -- Tracing ------------------------------------------------------------------- */

static tow_status_t check_open(const tow_program_t *program)
{
    if (program->graph != NULL && !program->is_finished) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "the program is finished: no more can be added to it");
}

/* The program holds what its graph names. */
static bool keep_slice(tow_program_t *program, tow_slice_t *slice)
{
    if (program->is_of_call) return true;
    for (size_t i = 0; i < program->slices.count; i++)
        if (program->slices.items[i] == slice) return true;
    if (!tow_vec_push(&program->slices, slice)) return false;
    tow_slice_retain_locked(slice);
    return true;
}

static bool keep_function(tow_program_t *program, tow_function_t *function)
{
    if (program->is_of_call) return true;
    for (size_t i = 0; i < program->functions.count; i++)
        if (program->functions.items[i] == function) return true;
    if (!tow_vec_push(&program->functions, function)) return false;
    tow_function_retain_locked(function);
    return true;
}

tow_status_t tow_program_make_sequential(tow_program_t *program)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    tow_graph_make_sequential(program->graph);
    return TOW_OK;
}

tow_status_t tow_program_add_argument(tow_program_t *program,
                                      tow_slice_t *slice,
                                      const tow_shape_t *shape, bool donated,
                                      tow_value_t *out_value)
{
    return tow_program_add_sharded_argument(program, slice, shape, NULL,
                                            donated, out_value);
}

tow_status_t tow_program_add_sharded_argument(
    tow_program_t *program, tow_slice_t *slice, const tow_shape_t *shape,
    const tow_sharding_t *sharding, bool donated, tow_value_t *out_value)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    if (!keep_slice(program, slice))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_node_t node = {.kind = TOW_NODE_ARGUMENT,
                       .name = "",
                       .slice = {slice->id},
                       .shape = *shape,
                       .to = sharding,
                       .donated = donated};
    *out_value = (tow_value_t){0};
    if (donated &&
        !tow_vec_push(&program->donated, (uint32_t)program->argument_count))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    program->argument_count++;
    return tow_graph_add(program->graph, &node, &out_value->node);
}

tow_status_t tow_program_add_call(tow_program_t *program,
                                  tow_function_t *function, tow_slice_t *slice,
                                  const tow_value_t *inputs, size_t count,
                                  uint32_t *out_node)
{
    const char *name =
        function->signature.name != NULL ? function->signature.name : "";
    return tow_program_add_named_call(program, function, slice, name, inputs,
                                      count, out_node);
}

tow_status_t tow_program_add_named_call(tow_program_t *program,
                                        tow_function_t *function,
                                        tow_slice_t *slice, const char *name,
                                        const tow_value_t *inputs, size_t count,
                                        uint32_t *out_node)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    if (!keep_slice(program, slice) || !keep_function(program, function))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_node_t node = {.kind = function->signature.is_host ? TOW_NODE_HOST
                                                           : TOW_NODE_COMPUTE,
                       .time_limit_ms = function->time_limit_ms,
                       .name = name,
                       .slice = {slice->id},
                       .function = {function->id},
                       .inputs = inputs,
                       .input_count = count};
    return tow_graph_add(program->graph, &node, out_node);
}

tow_status_t tow_program_add_transfer(tow_program_t *program, tow_value_t value,
                                      tow_slice_t *slice,
                                      const tow_sharding_t *from,
                                      const tow_sharding_t *to,
                                      uint32_t *out_node)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    if (!keep_slice(program, slice))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_node_t node = {.kind = TOW_NODE_TRANSFER,
                       .name = "",
                       .slice = {slice->id},
                       .from = from,
                       .to = to,
                       .inputs = &value,
                       .input_count = 1};
    return tow_graph_add(program->graph, &node, out_node);
}

tow_status_t tow_program_add_collective(tow_program_t *program,
                                        tow_slice_t *slice,
                                        const tow_collective_t *collective,
                                        const tow_value_t *inputs, size_t count,
                                        uint32_t *out_node)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    if (!keep_slice(program, slice))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_node_t node = {.kind = TOW_NODE_COLLECTIVE,
                       .name = "",
                       .slice = {slice->id},
                       .collective = collective,
                       .inputs = inputs,
                       .input_count = count};
    return tow_graph_add(program->graph, &node, out_node);
}

tow_status_t tow_program_add_result(tow_program_t *program, tow_value_t value,
                                    tow_slice_t *slice,
                                    const tow_shape_t *shape)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    program_result_t result = {.slice = slice, .shape = *shape};
    if (!tow_vec_push(&program->results, result))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (!program->is_of_call) tow_slice_retain_locked(slice);
    tow_node_t node = {.kind = TOW_NODE_RESULT,
                       .name = "",
                       .inputs = &value,
                       .input_count = 1};
    uint32_t index;
    return tow_graph_add(program->graph, &node, &index);
}

tow_status_t tow_program_placeholder(tow_program_t *program, tow_slice_t *slice,
                                     const tow_shape_t *shape,
                                     tow_value_t place, tow_array_t **out_array)
{
    TOW_RETURN_IF_ERROR(tow_array_make(slice, shape, out_array));
    (*out_array)->program = program;
    (*out_array)->place = place;
    tow_program_retain_locked(program);
    return TOW_OK;
}

/* -- Sending ------------------------------------------------------------------- */

/* Everything it names must be of the same generation. */
static tow_status_t check_generation(const tow_program_t *program)
{
    TOW_RETURN_IF_ERROR(
        tow_client_generation_status(program->client, program->generation));
    for (size_t i = 0; i < program->slices.count; i++)
        TOW_RETURN_IF_ERROR(
            tow_slice_generation_status(program->slices.items[i]));
    for (size_t i = 0; i < program->functions.count; i++)
        TOW_RETURN_IF_ERROR(
            tow_slice_generation_status(program->functions.items[i]->slice));
    return TOW_OK;
}

tow_status_t tow_program_send(tow_program_t *program)
{
    tow_client_t *client = program->client;
    TOW_RETURN_IF_ERROR(check_open(program));
    TOW_RETURN_IF_ERROR(check_generation(program));
    void *bytes;
    size_t size;
    TOW_RETURN_IF_ERROR(tow_graph_pack(program->graph, &bytes, &size));
    program->id = ++client->program_number;
    if (!tow_map_put(&client->programs, program->id, program)) {
        tow_free(bytes);
        program->id = 0;
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_graph_destroy(program->graph);
    program->graph = NULL;
    program->is_finished = true;
    tow_msg_program_add_t add = TOW_MSG_PROGRAM_ADD_INIT;
    add.program = program->id;
    add.graph_blob = tow_client_send_blob(client, bytes, size);
    return tow_client_send(client, TOW_MESSAGE_PROGRAM_ADD, &add.base);
}

const tow_completion_t *tow_program_adding(const tow_program_t *program)
{
    return &program->adding;
}

void tow_program_answered(tow_client_t *client,
                          const tow_msg_program_added_t *added)
{
    tow_program_t *program = tow_map_find(&client->programs, added->program);
    if (program != NULL)
        tow_completion_settle(client, &program->adding,
                              tow_failure_status(added->failure));
}
