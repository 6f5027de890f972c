/* Inserting transfers: a value that is used on another slice, or with another
 * sharding, than it has gets one transfer for each slice and sharding of its
 * users. */
#include <inttypes.h>

#include "base/assert.h"
#include "base/map.h"
#include "base/vec.h"
#include "ir/graph_impl.h"
#include "ir/lower.h"

#define NONE UINT32_MAX

/* An inserted transfer, after all nodes of the original. */
typedef struct moved {
    tow_value_t value;
    tow_slice_id_t slice;
    tow_sharding_t from, to;
    uint32_t next; /* the next transfer of the same value; or NONE */
} moved_t;

typedef struct insertion {
    const tow_graph_t *program;
    const tow_graph_scope_t *scope;
    tow_graph_t *out; /* owned until returned */
    TOW_VEC(moved_t) moved;
    tow_map_t first_moved; /* value -> 1 + its first transfer, as a pointer */
    TOW_VEC(tow_value_t) inputs; /* of the current node */
    tow_sharding_t from, to;     /* of the current node */
} insertion_t;

/* -- Errors ---------------------------------------------------------------- */

static TOW_COLD tow_status_t input_error(const insertion_t *insertion,
                                         uint32_t index, size_t input,
                                         tow_status_t take_status)
{
    const tow_graph_t *program = insertion->program;
    const tow_value_t value = tow_graph_node(program, index)->inputs[input];
    char labels[2][TOW_LABEL_SIZE];
    return tow_status_annotate(take_status, "%s: input %zu, of %s",
                               tow_node_label(program, index, labels[0]), input,
                               tow_node_label(program, value.node, labels[1]));
}

#define INPUT_ERROR(insertion, index, input, ...) \
    input_error((insertion), (index), (input),    \
                TOW_ERROR(TOW_INVALID_ARGUMENT, __VA_ARGS__))

static const char *advice(const tow_node_t *producer)
{
    return producer->kind == TOW_NODE_ARGUMENT
               ? "give it in the argument's node"
               : "move it by a transfer with shardings";
}

/* -- Transfers of a value -------------------------------------------------- */

static void *as_pointer(uint32_t index)
{
    return (void *)((uintptr_t)index + 1);
}

static uint32_t first_of(const insertion_t *insertion, uint64_t key)
{
    const void *found = tow_map_find(&insertion->first_moved, key);
    return found == NULL ? NONE : (uint32_t)((uintptr_t)found - 1);
}

/* The transfer of a value to a slice and sharding: an existing one, or a new
 * one. */
static tow_status_t move_value(insertion_t *insertion, const moved_t *wanted,
                               tow_value_t *out_value)
{
    const uint64_t key =
        (uint64_t)wanted->value.node << 32 | wanted->value.output;
    const uint32_t first = first_of(insertion, key);
    uint32_t at = first;
    for (; at != NONE; at = insertion->moved.items[at].next) {
        const moved_t *other = &insertion->moved.items[at];
        if (tow_slice_id_equal(other->slice, wanted->slice) &&
            tow_sharding_equal(&other->to, &wanted->to))
            break;
    }
    if (at == NONE) {
        at = (uint32_t)insertion->moved.count;
        moved_t made = *wanted;
        made.next = first;
        if (!tow_vec_push(&insertion->moved, made) ||
            !tow_map_put(&insertion->first_moved, key, as_pointer(at)))
            return tow_ir_exhausted();
    }
    *out_value =
        (tow_value_t){(uint32_t)insertion->program->nodes.count + at, 0};
    return TOW_OK;
}

/* -- Edges ----------------------------------------------------------------- */

/* Checks that both are shards of one array. */
static tow_status_t check_wholes(const insertion_t *insertion, uint32_t index,
                                 size_t input, const moved_t *moved,
                                 const tow_shape_t *wanted)
{
    tow_shape_t given, wholes[2];
    tow_status_t status = tow_value_shape(insertion->program, insertion->scope,
                                          moved->value, &given);
    if (status == TOW_OK)
        status = tow_sharding_whole(&moved->from, &given, &wholes[0]);
    if (status == TOW_OK)
        status = tow_sharding_whole(&moved->to, wanted, &wholes[1]);
    if (status != TOW_OK) return input_error(insertion, index, input, status);
    if (tow_shape_equal(&wholes[0], &wholes[1])) return TOW_OK;
    char texts[2][TOW_SHAPE_TEXT_MAX];
    return INPUT_ERROR(insertion, index, input,
                       "the whole array is %s, but the function takes %s",
                       tow_shape_format(&wholes[0], texts[0]),
                       tow_shape_format(&wholes[1], texts[1]));
}

/* A value that moves needs a known sharding at both ends. */
static tow_status_t check_known(const insertion_t *insertion, uint32_t index,
                                size_t input, const moved_t *moved)
{
    const tow_node_t *producer =
        tow_graph_node(insertion->program, moved->value.node);
    if (!tow_sharding_is_known(&moved->from))
        return INPUT_ERROR(insertion, index, input,
                           "it goes from slice %" PRIu64 " to slice %" PRIu64
                           ", where its sharding is unknown; %s",
                           producer->slice.value, moved->slice.value,
                           advice(producer));
    if (!tow_sharding_is_known(&moved->to))
        return INPUT_ERROR(insertion, index, input,
                           "it goes from slice %" PRIu64 " to slice %" PRIu64
                           ", and the function's sharding for it is unknown; "
                           "move it by a transfer with shardings",
                           producer->slice.value, moved->slice.value);
    return TOW_OK;
}

static tow_status_t find_shardings(const insertion_t *insertion, uint32_t index,
                                   size_t input, moved_t *moved)
{
    const tow_graph_scope_t *scope = insertion->scope;
    const tow_node_t *node = tow_graph_node(insertion->program, index);
    const tow_signature_t *signature =
        scope->function(scope->context, node->function);
    TOW_RETURN_IF_ERROR(tow_value_sharding(insertion->program, scope,
                                           moved->value, &moved->from));
    return tow_array_sharding(signature, &signature->arguments[input],
                              scope->slice_devices(scope->context, node->slice),
                              &moved->to);
}

/* With unknown shardings on both slices, shard i goes to shard i: the transfer
 * is written as that of an array split along its first dimension. */
static tow_status_t guess_shardings(const insertion_t *insertion,
                                    uint32_t index, size_t input,
                                    moved_t *moved)
{
    const tow_graph_t *program = insertion->program;
    const tow_graph_scope_t *scope = insertion->scope;
    const tow_node_t *node = tow_graph_node(program, index);
    const tow_shape_t *wanted = &scope->function(scope->context, node->function)
                                     ->arguments[input]
                                     .shape;
    const size_t count = scope->slice_devices(scope->context, node->slice);
    tow_shape_t given;
    if (tow_sharding_is_known(&moved->from) ||
        tow_sharding_is_known(&moved->to) ||
        count != scope->slice_devices(
                     scope->context,
                     tow_graph_node(program, moved->value.node)->slice))
        return TOW_OK;
    tow_status_t status = tow_value_shape(program, scope, moved->value, &given);
    if (status != TOW_OK) return input_error(insertion, index, input, status);
    if (!tow_shape_equal(&given, wanted)) return TOW_OK;
    moved->from = moved->to = tow_sharding_by_shard(given.rank, count);
    return TOW_OK;
}

/* On one slice an unknown sharding is assumed to match; the verifier still
 * compares shapes. */
static tow_status_t connect(insertion_t *insertion, uint32_t index,
                            size_t input, tow_value_t *value)
{
    const tow_graph_scope_t *scope = insertion->scope;
    const tow_node_t *node = tow_graph_node(insertion->program, index);
    const tow_array_info_t *wanted =
        &scope->function(scope->context, node->function)->arguments[input];
    const bool is_near = tow_slice_id_equal(
        tow_graph_node(insertion->program, value->node)->slice, node->slice);
    if (is_near && tow_edge_is_plain(insertion->program, scope, *value, wanted))
        return TOW_OK;
    moved_t moved = {.value = *value, .slice = node->slice};
    tow_status_t status = find_shardings(insertion, index, input, &moved);
    if (is_near) status = tow_sharding_make_optional(status);
    if (status != TOW_OK) return input_error(insertion, index, input, status);
    if (is_near && (!tow_sharding_is_known(&moved.from) ||
                    !tow_sharding_is_known(&moved.to) ||
                    tow_sharding_equal(&moved.from, &moved.to)))
        return TOW_OK;
    TOW_RETURN_IF_ERROR(guess_shardings(insertion, index, input, &moved));
    TOW_RETURN_IF_ERROR(check_known(insertion, index, input, &moved));
    TOW_RETURN_IF_ERROR(
        check_wholes(insertion, index, input, &moved, &wanted->shape));
    return move_value(insertion, &moved, value);
}

/* -- Nodes ----------------------------------------------------------------- */

/* Completes a transfer of the client. */
static tow_status_t complete(insertion_t *insertion, uint32_t index,
                             tow_node_t *node)
{
    const tow_graph_t *program = insertion->program;
    tow_status_t status = TOW_OK;
    if (!tow_sharding_is_known(node->from)) {
        status = tow_value_sharding(program, insertion->scope, node->inputs[0],
                                    &insertion->from);
        node->from = &insertion->from;
    }
    if (status != TOW_OK) return input_error(insertion, index, 0, status);
    if (!tow_sharding_is_known(node->from))
        return INPUT_ERROR(
            insertion, index, 0, "its sharding is unknown; %s",
            tow_graph_node(program, node->inputs[0].node)->kind ==
                    TOW_NODE_ARGUMENT
                ? "give it in the argument's node or in the transfer"
                : "give it in the transfer");
    node->to = &insertion->to;
    return tow_value_sharding(program, insertion->scope,
                              (tow_value_t){index, 0}, &insertion->to);
}

static tow_status_t copy_node(insertion_t *insertion, uint32_t index)
{
    tow_node_t node = *tow_graph_node(insertion->program, index);
    insertion->inputs.count = 0;
    for (size_t i = 0; i < node.input_count; i++) {
        tow_value_t value = node.inputs[i];
        if (tow_node_has_function(&node))
            TOW_RETURN_IF_ERROR(connect(insertion, index, i, &value));
        if (!tow_vec_push(&insertion->inputs, value)) return tow_ir_exhausted();
    }
    if (node.kind == TOW_NODE_TRANSFER)
        TOW_RETURN_IF_ERROR(complete(insertion, index, &node));
    node.inputs = insertion->inputs.items;
    return tow_graph_add(insertion->out, &node, NULL);
}

static tow_status_t add_moved(insertion_t *insertion, const moved_t *moved)
{
    const tow_node_t node = {.kind = TOW_NODE_TRANSFER,
                             .slice = moved->slice,
                             .from = &moved->from,
                             .to = &moved->to,
                             .inputs = &moved->value,
                             .input_count = 1};
    return tow_graph_add(insertion->out, &node, NULL);
}

static tow_status_t insert(insertion_t *insertion)
{
    const tow_graph_t *program = insertion->program;
    TOW_RETURN_IF_ERROR(tow_graph_create(program->name, &insertion->out));
    insertion->out->is_sequential = program->is_sequential;
    for (uint32_t i = 0; i < program->nodes.count; i++)
        TOW_RETURN_IF_ERROR(copy_node(insertion, i));
    for (size_t i = 0; i < insertion->moved.count; i++)
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            add_moved(insertion, &insertion->moved.items[i]),
            "inserting transfers"));
    return TOW_OK;
}

tow_status_t tow_graph_insert_transfers(const tow_graph_t *program,
                                        const tow_graph_scope_t *scope,
                                        tow_graph_t **out_program)
{
    TOW_ASSERT(program != NULL && scope != NULL && out_program != NULL);
    insertion_t insertion = {.program = program, .scope = scope};
    tow_status_t status = insert(&insertion);
    tow_vec_deinit(&insertion.moved);
    tow_vec_deinit(&insertion.inputs);
    tow_map_deinit(&insertion.first_moved);
    if (status != TOW_OK) {
        tow_graph_destroy(insertion.out);
        insertion.out = NULL;
    }
    *out_program = insertion.out;
    return status;
}
