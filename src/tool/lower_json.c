/* JSON output of `tow lower`. */
#include <jansson.h>
#include <stdio.h>

#include "tool/lower_print.h"

static void put(json_t *object, const char *key, json_t *take_value)
{
    json_object_set_new(object, key, take_value);
}

static json_t *number_of(uint64_t number)
{
    return json_integer((json_int_t)number);
}

static void print_line(json_t *take_object)
{
    json_dumpf(take_object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(take_object);
}

static json_t *numbers_of(const uint32_t *numbers, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(numbers[i]));
    return array;
}

static json_t *dims_of(const int64_t *dims, uint32_t rank)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < rank; i++)
        json_array_append_new(array, json_integer((json_int_t)dims[i]));
    return array;
}

static json_t *shape_of(const tow_shape_t *shape)
{
    char text[TOW_SHAPE_TEXT_MAX];
    return json_string(tow_shape_format(shape, text));
}

static json_t *sharding_of(const tow_sharding_t *sharding)
{
    char text[TOW_SHARDING_TEXT_MAX];
    if (!tow_sharding_is_known(sharding)) return json_null();
    return json_string(tow_sharding_format(sharding, text));
}

/* -- Programs ------------------------------------------------------------------- */

static json_t *inputs_of(const tow_node_t *node)
{
    json_t *array = json_array();
    for (size_t i = 0; i < node->input_count; i++)
        json_array_append_new(array,
                              json_pack("[i, i]", (int)node->inputs[i].node,
                                        (int)node->inputs[i].output));
    return array;
}

static void put_collective(json_t *object, const tow_collective_t *collective)
{
    put(object, "reduction",
        json_string(tow_reduction_name(collective->reduction)));
    put(object, "mesh",
        numbers_of(collective->mesh_dims, collective->mesh_rank));
    put(object, "axes", numbers_of(collective->axes, collective->axis_count));
}

static json_t *node_of(const tow_node_t *node)
{
    static const char *const kinds[] = {
        [TOW_NODE_ARGUMENT] = "argument",     [TOW_NODE_COMPUTE] = "compute",
        [TOW_NODE_RESULT] = "result",         [TOW_NODE_TRANSFER] = "transfer",
        [TOW_NODE_COLLECTIVE] = "all_reduce", [TOW_NODE_HOST] = "host",
    };
    json_t *object = json_object();
    put(object, "kind", json_string(kinds[node->kind]));
    /* Names are arbitrary bytes; those that are not UTF-8 are left out. */
    json_t *name = json_string(node->name);
    put(object, "name", name != NULL ? name : json_null());
    if (node->kind != TOW_NODE_RESULT)
        put(object, "slice", number_of(node->slice.value));
    if (node->kind == TOW_NODE_COMPUTE || node->kind == TOW_NODE_HOST)
        put(object, "function", number_of(node->function.value));
    if (node->kind == TOW_NODE_TRANSFER)
        put(object, "from", sharding_of(node->from));
    if (node->kind == TOW_NODE_TRANSFER || node->kind == TOW_NODE_ARGUMENT)
        put(object, "to", sharding_of(node->to));
    if (node->kind == TOW_NODE_ARGUMENT) {
        put(object, "shape", shape_of(&node->shape));
        put(object, "donated", json_boolean(node->donated));
    }
    if (node->kind == TOW_NODE_HOST && node->time_limit_ms > 0)
        put(object, "time_limit_ms", number_of(node->time_limit_ms));
    if (node->collective != NULL) put_collective(object, node->collective);
    put(object, "inputs", inputs_of(node));
    return object;
}

static json_t *places_of(const tow_lower_header_t *header)
{
    json_t *array = json_array();
    for (size_t i = 0; i < header->slices.count; i++) {
        const tow_lower_slice_t *slice = &header->slices.items[i];
        json_t *devices = json_array();
        for (size_t k = 0; k < slice->places.count; k++)
            json_array_append_new(
                devices,
                json_pack("[i, i]", (int)slice->places.items[k].process,
                          (int)slice->places.items[k].device));
        json_t *object = json_object();
        put(object, "slice", number_of(slice->id.value));
        put(object, "devices", devices);
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *executables_of(const tow_lower_header_t *header)
{
    json_t *array = json_array();
    for (size_t i = 0; i < header->executables.count; i++) {
        json_t *object = json_object();
        put(object, "function",
            number_of(header->executables.items[i].function.value));
        put(object, "slice",
            number_of(header->executables.items[i].slice.value));
        json_array_append_new(array, object);
    }
    return array;
}

void tow_lower_json_program(const tow_lower_header_t *header, const char *pass,
                            const tow_graph_t *program)
{
    json_t *object = json_object();
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < tow_graph_node_count(program); i++)
        json_array_append_new(nodes, node_of(tow_graph_node(program, i)));
    put(object, "after", json_string(pass));
    put(object, "program", json_string(tow_graph_name(program)));
    put(object, "sequential", json_boolean(tow_graph_is_sequential(program)));
    put(object, "nodes", nodes);
    if (header->executables.count > 0) {
        put(object, "slices", places_of(header));
        put(object, "executables", executables_of(header));
    }
    print_line(object);
}

/* -- Workers --------------------------------------------------------------------- */

static json_t *pieces_of(const tow_piece_t *pieces, size_t count, uint32_t rank)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        const tow_piece_t *piece = &pieces[i];
        json_t *object = json_object();
        put(object, "worker", number_of(piece->process));
        put(object, "source_shard", number_of(piece->source_shard));
        put(object, "target_shard", number_of(piece->target_shard));
        put(object, "number", number_of(piece->number));
        put(object, "bytes", number_of(piece->bytes));
        put(object, "offset", number_of(piece->offset));
        put(object, "source_start", dims_of(piece->source_start, rank));
        put(object, "target_start", dims_of(piece->target_start, rank));
        put(object, "extent", dims_of(piece->extent, rank));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *route_of(const tow_route_t *route)
{
    const uint32_t rank = route->target.rank;
    json_t *object = json_object();
    put(object, "source", shape_of(&route->source));
    put(object, "target", shape_of(&route->target));
    put(object, "source_count", number_of(route->source_count));
    put(object, "target_devices",
        numbers_of(route->target_devices, route->target_count));
    put(object, "packed", json_boolean(route->is_packed));
    put(object, "sends", pieces_of(route->sends, route->send_count, rank));
    put(object, "receives",
        pieces_of(route->receives, route->receive_count, rank));
    return object;
}

static json_t *groups_of(const tow_collective_part_t *part)
{
    json_t *array = json_array();
    for (size_t i = 0; i < part->group_count; i++) {
        const tow_members_t *members = &part->groups[i];
        json_t *object = json_object();
        put(object, "group", number_of(members->group));
        put(object, "workers",
            numbers_of(members->processes, members->process_count));
        put(object, "self", number_of(members->self));
        put(object, "shards",
            numbers_of(members->shards, members->shard_count));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *part_of(const tow_collective_part_t *part)
{
    json_t *object = json_object();
    json_t *tensors = json_array();
    for (size_t i = 0; i < part->tensor_count; i++)
        json_array_append_new(tensors, shape_of(&part->tensors[i]));
    put(object, "reduction", json_string(tow_reduction_name(part->reduction)));
    put(object, "tensors", tensors);
    put(object, "devices", numbers_of(part->devices, part->shard_count));
    put(object, "chunk_bytes", number_of(part->chunk_bytes));
    put(object, "groups", groups_of(part));
    return object;
}

static json_t *step_of(const tow_lowered_step_t *step)
{
    json_t *object = json_object();
    put(object, "index", number_of(step->index));
    put(object, "node", number_of(step->node));
    if (step->executable.value != 0)
        put(object, "executable", number_of(step->executable.value));
    put(object, "host", json_boolean(step->is_host));
    put(object, "sequential", json_boolean(step->is_sequential));
    if (step->time_limit_ms > 0)
        put(object, "time_limit_ms", number_of(step->time_limit_ms));
    put(object, "inputs", numbers_of(step->inputs, step->input_count));
    put(object, "first_output", number_of(step->first_output));
    put(object, "output_count", number_of(step->output_count));
    put(object, "kept",
        numbers_of(step->non_donatable, step->non_donatable_count));
    put(object, "freed", numbers_of(step->freed, step->freed_count));
    if (step->route != NULL) put(object, "route", route_of(step->route));
    if (step->collective != NULL)
        put(object, "collective", part_of(step->collective));
    return object;
}

void tow_lower_json_worker(const tow_lower_header_t *header,
                           const tow_graph_t *program,
                           const tow_lowered_t *lowered)
{
    json_t *object = json_object();
    json_t *steps = json_array();
    for (size_t i = 0; i < lowered->step_count; i++)
        json_array_append_new(steps, step_of(&lowered->steps[i]));
    put(object, "after", json_string("split"));
    put(object, "program", json_string(tow_graph_name(program)));
    put(object, "worker", number_of(header->scope.process));
    put(object, "slot_count", number_of(lowered->slot_count));
    put(object, "step_count_all", number_of(lowered->step_count_all));
    put(object, "results", numbers_of(lowered->results, lowered->result_count));
    put(object, "steps", steps);
    print_line(object);
}
