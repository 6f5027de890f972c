#include "ir/graph.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/graph_impl.h"
#include "wire/message.h"

/* -- Building programs ----------------------------------------------------- */

static tow_status_t copy_name(tow_graph_t *program, const char *name,
                              const char **out_name)
{
    if (name == NULL) name = "";
    const size_t length = strnlen(name, TOW_NAME_MAX + 1);
    if (length > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a name has more than %u characters", TOW_NAME_MAX);
    /* A literal needs no copy; most nodes of a trace have no name. */
    *out_name =
        length == 0 ? "" : tow_arena_strndup(&program->arena, name, length);
    return *out_name != NULL ? TOW_OK : tow_ir_exhausted();
}

tow_status_t tow_graph_create(const char *name, tow_graph_t **out_program)
{
    TOW_ASSERT(out_program != NULL);
    *out_program = NULL;
    tow_graph_t *program = tow_calloc(1, sizeof(*program));
    if (program == NULL) return tow_ir_exhausted();
    tow_arena_init(&program->arena, 0);
    program->in_order = true;
    tow_status_t status = copy_name(program, name, &program->name);
    if (status != TOW_OK) {
        tow_graph_destroy(program);
        return tow_status_annotate(status, "creating a program");
    }
    *out_program = program;
    return TOW_OK;
}

void tow_graph_destroy(tow_graph_t *program)
{
    if (program == NULL) return;
    tow_vec_deinit(&program->nodes);
    tow_vec_deinit(&program->arguments);
    tow_vec_deinit(&program->results);
    tow_arena_deinit(&program->arena);
    tow_free(program);
}

static tow_status_t check_sharding(const tow_sharding_t *sharding)
{
    if (!tow_sharding_is_known(sharding) ||
        (sharding->rank <= TOW_RANK_MAX &&
         sharding->mesh_rank <= TOW_MESH_RANK_MAX))
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "a sharding of rank %u over a mesh of rank %u; the limits "
                     "are %d and %u",
                     sharding->rank, sharding->mesh_rank, TOW_RANK_MAX,
                     TOW_MESH_RANK_MAX);
}

static tow_status_t check_mesh(const tow_collective_t *collective)
{
    if (collective == NULL || (collective->mesh_rank <= TOW_MESH_RANK_MAX &&
                               collective->axis_count <= TOW_MESH_RANK_MAX))
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%u axes of a mesh of rank %u; the limit of both is %u",
                     collective->axis_count, collective->mesh_rank,
                     TOW_MESH_RANK_MAX);
}

/* The wire's limits are checked here, where the error reaches the client. */
static tow_status_t check_limits(const tow_graph_t *program,
                                 const tow_node_t *node)
{
    if (program->nodes.count >= TOW_NODES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a program has at most %u nodes; split it",
                         TOW_NODES_MAX);
    if (!tow_node_kind_is_known((uint32_t)node->kind))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "unknown node kind %d",
                         (int)node->kind);
    if (node->input_count > TOW_VALUES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu inputs, and a node has at most %u",
                         node->input_count, TOW_VALUES_MAX);
    if (node->kind == TOW_NODE_ARGUMENT && node->shape.rank > TOW_RANK_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "rank %u exceeds the limit of %d", node->shape.rank,
                         TOW_RANK_MAX);
    if (node->kind == TOW_NODE_TRANSFER)
        TOW_RETURN_IF_ERROR(check_sharding(node->from));
    if (node->kind == TOW_NODE_TRANSFER || node->kind == TOW_NODE_ARGUMENT)
        TOW_RETURN_IF_ERROR(check_sharding(node->to));
    if (node->kind == TOW_NODE_COLLECTIVE)
        TOW_RETURN_IF_ERROR(check_mesh(node->collective));
    if ((node->kind == TOW_NODE_ARGUMENT &&
         program->arguments.count >= TOW_VALUES_MAX) ||
        (node->kind == TOW_NODE_RESULT &&
         program->results.count >= TOW_VALUES_MAX))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a program has at most %u arguments and %u results",
                         TOW_VALUES_MAX, TOW_VALUES_MAX);
    return TOW_OK;
}

static void copy_shape(const tow_shape_t *from, tow_shape_t *to)
{
    to->type = from->type;
    to->rank = from->rank;
    memcpy(to->dims, from->dims, from->rank * sizeof(from->dims[0]));
}

/* A separate allocation, because few nodes have one. Zero beyond its ranks. */
static tow_status_t copy_sharding(tow_graph_t *program,
                                  const tow_sharding_t *from,
                                  const tow_sharding_t **out)
{
    if (!tow_sharding_is_known(from)) return TOW_OK;
    tow_sharding_t *to = tow_arena_calloc(&program->arena, 1, sizeof(*to));
    if (to == NULL) return tow_ir_exhausted();
    to->rank = from->rank;
    to->replicas = from->replicas;
    to->mesh_rank = from->mesh_rank;
    memcpy(to->parts, from->parts, from->rank * sizeof(from->parts[0]));
    memcpy(to->mesh_dims, from->mesh_dims,
           from->mesh_rank * sizeof(from->mesh_dims[0]));
    memcpy(to->mesh_axes, from->mesh_axes,
           from->mesh_rank * sizeof(from->mesh_axes[0]));
    *out = to;
    return TOW_OK;
}

static tow_status_t copy_shardings(tow_graph_t *program, const tow_node_t *from,
                                   tow_node_t *to)
{
    if (from->kind == TOW_NODE_TRANSFER)
        TOW_RETURN_IF_ERROR(copy_sharding(program, from->from, &to->from));
    if (from->kind == TOW_NODE_TRANSFER || from->kind == TOW_NODE_ARGUMENT)
        TOW_RETURN_IF_ERROR(copy_sharding(program, from->to, &to->to));
    return TOW_OK;
}

/* Zero beyond its ranks. */
static tow_status_t copy_collective(tow_graph_t *program,
                                    const tow_node_t *node, tow_node_t *copy)
{
    const tow_collective_t *from = node->collective;
    if (node->kind != TOW_NODE_COLLECTIVE || from == NULL) return TOW_OK;
    tow_collective_t *to = tow_arena_calloc(&program->arena, 1, sizeof(*to));
    if (to == NULL) return tow_ir_exhausted();
    to->kind = from->kind;
    to->reduction = from->reduction;
    to->mesh_rank = from->mesh_rank;
    to->axis_count = from->axis_count;
    memcpy(to->mesh_dims, from->mesh_dims,
           from->mesh_rank * sizeof(from->mesh_dims[0]));
    memcpy(to->axes, from->axes, from->axis_count * sizeof(from->axes[0]));
    copy->collective = to;
    return TOW_OK;
}

/* Only the fields that the kind has. */
static void copy_fields(const tow_node_t *from, tow_node_t *to)
{
    *to = (tow_node_t){.kind = from->kind};
    if (from->kind == TOW_NODE_RESULT) return;
    to->slice = from->slice;
    if (from->kind == TOW_NODE_HOST) to->time_limit_ms = from->time_limit_ms;
    if (tow_node_has_function(from)) {
        to->function = from->function;
        return;
    }
    if (from->kind != TOW_NODE_ARGUMENT) return;
    to->donated = from->donated;
    copy_shape(&from->shape, &to->shape);
}

static tow_status_t copy_inputs(tow_graph_t *program, const tow_node_t *from,
                                tow_node_t *to)
{
    if (from->input_count == 0) return TOW_OK;
    const size_t bytes = from->input_count * sizeof(from->inputs[0]);
    tow_value_t *inputs = tow_arena_alloc(&program->arena, bytes);
    if (inputs == NULL) return tow_ir_exhausted();
    memcpy(inputs, from->inputs, bytes);
    to->inputs = inputs;
    to->input_count = from->input_count;
    return TOW_OK;
}

static bool comes_after_inputs(const tow_node_t *node, uint32_t index)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i].node >= index) return false;
    return true;
}

static bool reserve_one(tow_graph_t *program)
{
    return tow_vec_reserve(&program->nodes, program->nodes.count + 1) &&
           tow_vec_reserve(&program->arguments, program->arguments.count + 1) &&
           tow_vec_reserve(&program->results, program->results.count + 1);
}

static tow_status_t add_node(tow_graph_t *program, const tow_node_t *node)
{
    const uint32_t index = (uint32_t)program->nodes.count;
    TOW_RETURN_IF_ERROR(check_limits(program, node));
    if (!reserve_one(program)) return tow_ir_exhausted();
    tow_node_t *copy = &program->nodes.items[index];
    copy_fields(node, copy);
    TOW_RETURN_IF_ERROR(copy_name(program, node->name, &copy->name));
    TOW_RETURN_IF_ERROR(copy_shardings(program, node, copy));
    TOW_RETURN_IF_ERROR(copy_collective(program, node, copy));
    TOW_RETURN_IF_ERROR(copy_inputs(program, node, copy));

    program->nodes.count++;
    if (node->kind == TOW_NODE_ARGUMENT)
        program->arguments.items[program->arguments.count++] = index;
    if (node->kind == TOW_NODE_RESULT)
        program->results.items[program->results.count++] = index;
    program->input_count += node->input_count;
    program->in_order &= comes_after_inputs(copy, index);
    return TOW_OK;
}

tow_status_t tow_graph_add(tow_graph_t *program, const tow_node_t *node,
                           uint32_t *out_index)
{
    TOW_ASSERT(program != NULL && node != NULL);
    TOW_ASSERT(node->input_count == 0 || node->inputs != NULL);
    const uint32_t index = (uint32_t)program->nodes.count;
    tow_status_t status = add_node(program, node);
    if (TOW_UNLIKELY(status != TOW_OK))
        return tow_status_annotate(status, "node %u", index);
    if (out_index != NULL) *out_index = index;
    return TOW_OK;
}

void tow_graph_check(const tow_graph_t *program)
{
    size_t argument_count = 0, result_count = 0, input_count = 0;
    bool in_order = true;
    for (uint32_t i = 0; i < program->nodes.count; i++) {
        const tow_node_t *node = &program->nodes.items[i];
        TOW_ASSERT(tow_node_kind_is_known(node->kind) && node->name != NULL);
        if (node->kind == TOW_NODE_ARGUMENT)
            TOW_ASSERT(program->arguments.items[argument_count++] == i);
        if (node->kind == TOW_NODE_RESULT)
            TOW_ASSERT(program->results.items[result_count++] == i);
        input_count += node->input_count;
        in_order &= comes_after_inputs(node, i);
    }
    TOW_ASSERT(argument_count == program->arguments.count);
    TOW_ASSERT(result_count == program->results.count);
    TOW_ASSERT(input_count == program->input_count);
    TOW_ASSERT(in_order == program->in_order);
}

/* -- Queries --------------------------------------------------------------- */

const char *tow_graph_name(const tow_graph_t *program)
{
    return program->name;
}

void tow_graph_make_sequential(tow_graph_t *program)
{
    program->is_sequential = true;
}

bool tow_graph_is_sequential(const tow_graph_t *program)
{
    return program->is_sequential;
}

size_t tow_graph_node_count(const tow_graph_t *program)
{
    return program->nodes.count;
}

const tow_node_t *tow_graph_node(const tow_graph_t *program, uint32_t index)
{
    TOW_ASSERT(index < program->nodes.count);
    return &program->nodes.items[index];
}

size_t tow_graph_argument_count(const tow_graph_t *program)
{
    return program->arguments.count;
}

size_t tow_graph_result_count(const tow_graph_t *program)
{
    return program->results.count;
}

uint32_t tow_graph_argument(const tow_graph_t *program, size_t index)
{
    TOW_ASSERT(index < program->arguments.count);
    return program->arguments.items[index];
}

uint32_t tow_graph_result(const tow_graph_t *program, size_t index)
{
    TOW_ASSERT(index < program->results.count);
    return program->results.items[index];
}

/* -- Labels for errors ----------------------------------------------------- */

size_t tow_name_escape(char byte, char out[TOW_ESCAPED_SIZE])
{
    if (byte == '"' || byte == '\\')
        return (size_t)snprintf(out, TOW_ESCAPED_SIZE, "\\%c", byte);
    const bool is_plain = byte >= 0x20 && byte < 0x7f;
    return (size_t)snprintf(out, TOW_ESCAPED_SIZE, is_plain ? "%c" : "\\x%02x",
                            (unsigned char)byte);
}

const char *tow_node_label(const tow_graph_t *program, uint32_t index,
                           char label[TOW_LABEL_SIZE])
{
    const char *name = tow_graph_node(program, index)->name;
    size_t used = (size_t)snprintf(label, TOW_LABEL_SIZE, "node %u", index);
    if (*name == '\0') return label;
    memcpy(label + used, " \"", 2);
    used += 2;
    for (; *name != '\0'; name++) {
        char escaped[TOW_ESCAPED_SIZE];
        const size_t more = tow_name_escape(*name, escaped);
        /* Leaves room for the dots, the quote and the NUL. */
        if (used + more + 5 > TOW_LABEL_SIZE) {
            memcpy(label + used, "...", 3);
            used += 3;
            break;
        }
        memcpy(label + used, escaped, more);
        used += more;
    }
    memcpy(label + used, "\"", 2);
    return label;
}
