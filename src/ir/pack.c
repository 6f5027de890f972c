/* Programs as bytes: the message Graph of towpath.proto. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/graph_impl.h"
#include "wire/message.h"

/* Beside its struct a node takes a few small blocks, each rounded up, and up to
 * 96 bytes of protobuf-c's decoding state, which the arena does not free. */
#define NODE_SLACK_BYTES ((size_t)384)

/* Memory to decode a message of `size` bytes. There are at most TOW_NODES_MAX
 * nodes; each other byte becomes at most 16, as inputs or as dims. */
static size_t decoded_bytes_max(size_t size)
{
    const size_t node_bytes =
        sizeof(tow_msg_graph_node_t) + sizeof(tow_msg_array_type_t) +
        2 * sizeof(tow_msg_sharding_t) + sizeof(tow_msg_collective_t) +
        sizeof(tow_collective_t) + 2 * sizeof(tow_sharding_t) +
        NODE_SLACK_BYTES;
    const size_t node_count =
        size / 2 < TOW_NODES_MAX ? size / 2 : TOW_NODES_MAX;
    return 4096 + node_count * node_bytes + 16 * size;
}

/* -- Packing --------------------------------------------------------------- */

static bool pack_inputs(const tow_node_t *node, tow_arena_t *arena,
                        tow_msg_graph_node_t *message)
{
    const size_t count = node->input_count;
    if (count == 0) return true;
    uint32_t *numbers = tow_arena_alloc(arena, 2 * count * sizeof(*numbers));
    if (numbers == NULL) return false;
    message->n_input_nodes = message->n_input_outputs = count;
    message->input_nodes = numbers;
    message->input_outputs = numbers + count;
    for (size_t i = 0; i < count; i++) {
        message->input_nodes[i] = node->inputs[i].node;
        message->input_outputs[i] = node->inputs[i].output;
    }
    return true;
}

static bool pack_shape(const tow_shape_t *shape, tow_arena_t *arena,
                       tow_msg_graph_node_t *message)
{
    const size_t dims_bytes = shape->rank * sizeof(shape->dims[0]);
    tow_msg_array_type_t *type =
        tow_arena_alloc(arena, sizeof(*type) + dims_bytes);
    if (type == NULL) return false;
    *type = (tow_msg_array_type_t)TOW_MSG_ARRAY_TYPE_INIT;
    type->type = (uint32_t)shape->type;
    type->n_dims = shape->rank;
    type->dims = (int64_t *)(type + 1);
    memcpy(type->dims, shape->dims, dims_bytes);
    message->type = type;
    return true;
}

/* NULL for an unknown one. protobuf-c only reads the lent pointers. */
static bool pack_sharding(const tow_sharding_t *sharding, tow_arena_t *arena,
                          tow_msg_sharding_t **out_message)
{
    if (!tow_sharding_is_known(sharding)) return true;
    tow_msg_sharding_t *message = tow_arena_alloc(arena, sizeof(*message));
    if (message == NULL) return false;
    *message = (tow_msg_sharding_t)TOW_MSG_SHARDING_INIT;
    message->parts = (uint32_t *)sharding->parts;
    message->n_parts = sharding->rank;
    message->replicas = sharding->replicas;
    message->mesh_dims = (uint32_t *)sharding->mesh_dims;
    message->n_mesh_dims = sharding->mesh_rank;
    message->mesh_axes = (uint32_t *)sharding->mesh_axes;
    message->n_mesh_axes = sharding->mesh_rank;
    *out_message = message;
    return true;
}

static bool pack_collective(const tow_collective_t *collective,
                            tow_arena_t *arena,
                            tow_msg_collective_t **out_message)
{
    if (collective == NULL) return true;
    tow_msg_collective_t *message = tow_arena_alloc(arena, sizeof(*message));
    if (message == NULL) return false;
    *message = (tow_msg_collective_t)TOW_MSG_COLLECTIVE_INIT;
    message->kind = (uint32_t)collective->kind;
    message->reduction = (uint32_t)collective->reduction;
    message->mesh_dims = (uint32_t *)collective->mesh_dims;
    message->n_mesh_dims = collective->mesh_rank;
    message->axes = (uint32_t *)collective->axes;
    message->n_axes = collective->axis_count;
    *out_message = message;
    return true;
}

static bool pack_node(const tow_node_t *node, tow_arena_t *arena,
                      tow_msg_graph_node_t *message)
{
    *message = (tow_msg_graph_node_t)TOW_MSG_GRAPH_NODE_INIT;
    message->kind = (uint32_t)node->kind;
    message->name = (char *)node->name; /* only read */
    message->function = node->function.value;
    message->slice = node->slice.value;
    message->donated = node->donated;
    message->time_limit_ms = node->time_limit_ms;
    return pack_inputs(node, arena, message) &&
           pack_sharding(node->from, arena, &message->from) &&
           pack_sharding(node->to, arena, &message->to) &&
           pack_collective(node->collective, arena, &message->collective) &&
           (node->kind != TOW_NODE_ARGUMENT ||
            pack_shape(&node->shape, arena, message));
}

/* The message with all its pointers in the arena; NULL without memory. */
static tow_msg_graph_t *make_message(const tow_graph_t *program,
                                     tow_arena_t *arena)
{
    const size_t count = program->nodes.count;
    tow_msg_graph_t *graph = tow_arena_alloc(arena, sizeof(*graph));
    tow_msg_graph_node_t **pointers =
        tow_arena_calloc(arena, count + 1, sizeof(*pointers));
    tow_msg_graph_node_t *nodes =
        tow_arena_calloc(arena, count + 1, sizeof(*nodes));
    if (graph == NULL || pointers == NULL || nodes == NULL) return NULL;
    *graph = (tow_msg_graph_t)TOW_MSG_GRAPH_INIT;
    graph->name = (char *)program->name; /* only read */
    graph->sequential = program->is_sequential;
    graph->n_nodes = count;
    graph->nodes = pointers;
    for (size_t i = 0; i < count; i++) {
        pointers[i] = &nodes[i];
        if (!pack_node(&program->nodes.items[i], arena, &nodes[i])) return NULL;
    }
    return graph;
}

tow_status_t tow_graph_pack(const tow_graph_t *program, void **out_bytes,
                            size_t *out_size)
{
    TOW_ASSERT(program != NULL && out_bytes != NULL && out_size != NULL);
    tow_arena_t arena;
    *out_bytes = NULL;
    *out_size = 0;
    tow_arena_init(&arena, 0);
    tow_msg_graph_t *graph = make_message(program, &arena);
    if (graph != NULL) {
        *out_size = tow_message_size(&graph->base);
        *out_bytes = tow_malloc(*out_size + 1); /* not zero bytes */
    }
    if (*out_bytes != NULL) tow_message_encode(&graph->base, *out_bytes);
    tow_arena_deinit(&arena);
    return *out_bytes != NULL ? TOW_OK : tow_ir_exhausted();
}

/* -- Unpacking ------------------------------------------------------------- */

static tow_status_t check_message(const tow_msg_graph_node_t *message)
{
    if (!tow_node_kind_is_known(message->kind))
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "kind %u is not known to this version", message->kind);
    if (message->n_input_nodes != message->n_input_outputs)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu nodes and %zu outputs as inputs",
                         message->n_input_nodes, message->n_input_outputs);
    return TOW_OK;
}

static void unpack_shape(const tow_msg_array_type_t *type, tow_shape_t *shape)
{
    if (type == NULL) return;
    TOW_ASSERT(type->n_dims <= TOW_RANK_MAX); /* the wire's limit */
    shape->type = (tow_type_t)type->type;
    shape->rank = (uint32_t)type->n_dims;
    if (type->n_dims > 0)
        memcpy(shape->dims, type->dims, type->n_dims * sizeof(type->dims[0]));
}

static void copy_numbers(uint32_t *to, const uint32_t *from, size_t count)
{
    if (count > 0) memcpy(to, from, count * sizeof(*to));
}

/* Counts are within the wire's limits. */
static tow_status_t unpack_sharding(const tow_msg_sharding_t *message,
                                    tow_arena_t *arena,
                                    const tow_sharding_t **out_sharding)
{
    if (message == NULL) return TOW_OK;
    if (message->n_mesh_dims != message->n_mesh_axes || message->replicas == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a sharding with %u replicas over a mesh of %zu "
                         "dimensions and %zu axes",
                         message->replicas, message->n_mesh_dims,
                         message->n_mesh_axes);
    tow_sharding_t *sharding = tow_arena_calloc(arena, 1, sizeof(*sharding));
    if (sharding == NULL) return tow_ir_exhausted();
    *out_sharding = sharding;
    sharding->rank = (uint32_t)message->n_parts;
    sharding->replicas = message->replicas;
    sharding->mesh_rank = (uint32_t)message->n_mesh_dims;
    copy_numbers(sharding->parts, message->parts, message->n_parts);
    copy_numbers(sharding->mesh_dims, message->mesh_dims, message->n_mesh_dims);
    copy_numbers(sharding->mesh_axes, message->mesh_axes, message->n_mesh_axes);
    return TOW_OK;
}

/* Counts are within the wire's limits. */
static tow_status_t unpack_collective(const tow_msg_collective_t *message,
                                      tow_arena_t *arena,
                                      const tow_collective_t **out_collective)
{
    if (message == NULL) return TOW_OK;
    tow_collective_t *collective =
        tow_arena_calloc(arena, 1, sizeof(*collective));
    if (collective == NULL) return tow_ir_exhausted();
    *out_collective = collective;
    collective->kind = (tow_collective_kind_t)message->kind;
    collective->reduction = (tow_reduction_t)message->reduction;
    collective->mesh_rank = (uint32_t)message->n_mesh_dims;
    collective->axis_count = (uint32_t)message->n_axes;
    copy_numbers(collective->mesh_dims, message->mesh_dims,
                 message->n_mesh_dims);
    copy_numbers(collective->axes, message->axes, message->n_axes);
    return TOW_OK;
}

static tow_status_t unpack_node(const tow_msg_graph_node_t *message,
                                tow_arena_t *arena, tow_graph_t *program)
{
    TOW_RETURN_IF_ERROR(check_message(message));
    const size_t count = message->n_input_nodes;
    tow_value_t *inputs = tow_arena_alloc(arena, (count + 1) * sizeof(*inputs));
    if (inputs == NULL) return tow_ir_exhausted();
    for (size_t i = 0; i < count; i++) {
        inputs[i].node = message->input_nodes[i];
        inputs[i].output = message->input_outputs[i];
    }
    tow_node_t node = {
        .kind = (tow_node_kind_t)message->kind,
        .name = message->name,
        .slice = {message->slice},
        .function = {message->function},
        .donated = message->donated,
        .time_limit_ms = message->time_limit_ms,
        .inputs = inputs,
        .input_count = count,
    };
    unpack_shape(message->type, &node.shape);
    TOW_RETURN_IF_ERROR(unpack_sharding(message->from, arena, &node.from));
    TOW_RETURN_IF_ERROR(unpack_sharding(message->to, arena, &node.to));
    TOW_RETURN_IF_ERROR(
        unpack_collective(message->collective, arena, &node.collective));
    return tow_graph_add(program, &node, NULL);
}

static tow_status_t unpack_nodes(const tow_msg_graph_t *graph,
                                 tow_arena_t *arena, tow_graph_t *program)
{
    for (size_t i = 0; i < graph->n_nodes; i++) {
        tow_status_t status = unpack_node(graph->nodes[i], arena, program);
        if (status != TOW_OK)
            return tow_status_annotate(status, "graph, node %zu", i);
    }
    return TOW_OK;
}

tow_status_t tow_graph_unpack(const void *bytes, size_t size,
                              tow_graph_t **out_program)
{
    TOW_ASSERT(out_program != NULL);
    *out_program = NULL;
    tow_arena_t arena;
    const tow_body_t *body = NULL;
    tow_graph_t *program = NULL;
    tow_arena_init(&arena, decoded_bytes_max(size));
    tow_status_t status =
        tow_message_decode(TOW_MESSAGE_GRAPH, bytes, size, &arena, &body);
    const tow_msg_graph_t *graph = (const tow_msg_graph_t *)body;
    if (status == TOW_OK) status = tow_graph_create(graph->name, &program);
    if (status == TOW_OK) {
        program->is_sequential = graph->sequential;
        status = unpack_nodes(graph, &arena, program);
    }
    tow_arena_deinit(&arena);
    if (status != TOW_OK) {
        tow_graph_destroy(program);
        return status;
    }
    *out_program = program;
    return TOW_OK;
}
