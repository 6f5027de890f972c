/* Verification of programs: single nodes first, then edges, order, agreement of
 * values and users, then the whole program. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "ir/graph_impl.h"
#include "ir/lower.h"

typedef struct verify {
    const tow_graph_t *program;
    const tow_graph_scope_t *scope;
    const tow_signature_t **signatures; /* by node; lent by the scope */
    uint32_t *order;                    /* steps, each after its inputs */
    uint8_t *chains;  /* by node: length of its chain of moves */
    tow_map_t slices; /* with a computation or transfer */
    bool is_loose;
} verify_t;

/* An error about one node, prefixed by its label. */
#define NODE_ERROR(verify, index, ...) \
    node_error((verify), (index), TOW_ERROR(TOW_INVALID_ARGUMENT, __VA_ARGS__))

static TOW_COLD tow_status_t node_error(const verify_t *verify, uint32_t index,
                                        tow_status_t take_status)
{
    char label[TOW_LABEL_SIZE];
    return tow_status_annotate(take_status, "%s",
                               tow_node_label(verify->program, index, label));
}

/* -- Single nodes -------------------------------------------------------- */

static tow_status_t find_slice(const verify_t *verify, uint32_t index,
                               size_t *out_devices)
{
    const tow_slice_id_t slice = tow_graph_node(verify->program, index)->slice;
    *out_devices = verify->scope->slice_devices(verify->scope->context, slice);
    if (*out_devices > 0) return TOW_OK;
    return NODE_ERROR(verify, index,
                      "there is no slice %" PRIu64
                      "; it was never opened, or is closed",
                      slice.value);
}

static size_t device_count_of(const verify_t *verify, uint32_t index)
{
    return verify->scope->slice_devices(
        verify->scope->context, tow_graph_node(verify->program, index)->slice);
}

/* The sharding of an argument, if given. */
static tow_status_t check_layout(const verify_t *verify, uint32_t index,
                                 size_t devices)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    tow_shape_t whole;
    if (!tow_sharding_is_known(node->to)) return TOW_OK;
    tow_status_t status = tow_sharding_check(node->to, devices);
    if (status == TOW_OK)
        status = tow_sharding_whole(node->to, &node->shape, &whole);
    return status == TOW_OK ? TOW_OK : node_error(verify, index, status);
}

static tow_status_t check_argument(const verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    size_t devices;
    uint64_t bytes;
    if (node->input_count > 0)
        return NODE_ERROR(verify, index, "an argument has no inputs, not %zu",
                          node->input_count);
    if (node->shape.type == TOW_TYPE_INVALID)
        return NODE_ERROR(verify, index,
                          "an argument needs the shape of one shard");
    tow_status_t status = tow_shape_bytes(&node->shape, &bytes);
    if (status != TOW_OK) return node_error(verify, index, status);
    TOW_RETURN_IF_ERROR(find_slice(verify, index, &devices));
    return check_layout(verify, index, devices);
}

static tow_status_t check_function(verify_t *verify, uint32_t index,
                                   size_t devices)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    const tow_signature_t *signature =
        verify->scope->function(verify->scope->context, node->function);
    verify->signatures[index] = signature;
    if (signature == NULL)
        return NODE_ERROR(verify, index,
                          "there is no function %" PRIu64
                          "; it was never compiled, or has been discarded",
                          node->function.value);
    if (signature->argument_count == TOW_COUNT_UNKNOWN ||
        signature->result_count == TOW_COUNT_UNKNOWN)
        return NODE_ERROR(verify, index,
                          "the signature of function %s is unknown, so it "
                          "cannot be part of a program",
                          signature->name);
    if (signature->is_host != (node->kind == TOW_NODE_HOST))
        return NODE_ERROR(
            verify, index, "function %s is %s, and the node %s",
            signature->name,
            signature->is_host ? "a host function" : "a computation",
            signature->is_host ? "a computation" : "a host function");
    const size_t wanted = signature->replica_count * signature->partition_count;
    if (wanted != devices)
        return NODE_ERROR(verify, index,
                          "function %s is compiled for %zu devices, and slice "
                          "%" PRIu64 " has %zu",
                          signature->name, wanted, node->slice.value, devices);
    if (node->input_count != signature->argument_count)
        return NODE_ERROR(
            verify, index, "function %s takes %zu arguments, not %zu",
            signature->name, signature->argument_count, node->input_count);
    return TOW_OK;
}

static tow_status_t note_slice(verify_t *verify, tow_slice_id_t slice)
{
    /* The map is a set: any non-NULL value. */
    if (!tow_map_put(&verify->slices, slice.value, verify))
        return tow_ir_exhausted();
    return TOW_OK;
}

static tow_status_t check_compute(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    size_t devices;
    TOW_RETURN_IF_ERROR(find_slice(verify, index, &devices));
    TOW_RETURN_IF_ERROR(check_function(verify, index, devices));
    return note_slice(verify, node->slice);
}

static tow_status_t check_transfer(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    size_t devices;
    if (node->input_count != 1)
        return NODE_ERROR(verify, index, "a transfer is of one value, not %zu",
                          node->input_count);
    TOW_RETURN_IF_ERROR(find_slice(verify, index, &devices));
    TOW_RETURN_IF_ERROR(note_slice(verify, node->slice));
    if (verify->is_loose && devices == 1 && !tow_sharding_is_known(node->to))
        return TOW_OK;
    tow_status_t status = tow_sharding_check(node->to, devices);
    return status == TOW_OK ? TOW_OK : node_error(verify, index, status);
}

static tow_status_t check_collective(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    size_t devices;
    if (node->input_count == 0)
        return NODE_ERROR(verify, index, "a collective of no values");
    if (node->collective == NULL)
        return NODE_ERROR(verify, index,
                          "it does not say what is done with its values");
    TOW_RETURN_IF_ERROR(find_slice(verify, index, &devices));
    TOW_RETURN_IF_ERROR(note_slice(verify, node->slice));
    tow_status_t status = tow_collective_check(node->collective, devices);
    return status == TOW_OK ? TOW_OK : node_error(verify, index, status);
}

static tow_status_t check_node(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    switch (node->kind) {
    case TOW_NODE_ARGUMENT: return check_argument(verify, index);
    case TOW_NODE_COMPUTE:
    case TOW_NODE_HOST: return check_compute(verify, index);
    case TOW_NODE_TRANSFER: return check_transfer(verify, index);
    case TOW_NODE_COLLECTIVE: return check_collective(verify, index);
    case TOW_NODE_RESULT: break;
    }
    if (node->input_count != 1)
        return NODE_ERROR(verify, index, "a result is one value, not %zu",
                          node->input_count);
    return TOW_OK;
}

/* -- Edges ---------------------------------------------- */

static size_t output_count(const verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    if (tow_node_has_function(node))
        return verify->signatures[index]->result_count;
    return node->kind == TOW_NODE_COLLECTIVE ? node->input_count : 1;
}

static tow_status_t check_value(const verify_t *verify, uint32_t index,
                                size_t input)
{
    const tow_value_t value =
        tow_graph_node(verify->program, index)->inputs[input];
    char label[TOW_LABEL_SIZE];
    if (value.node >= verify->program->nodes.count)
        return NODE_ERROR(verify, index,
                          "input %zu is of node %u, and there are %zu nodes",
                          input, value.node, verify->program->nodes.count);
    const tow_node_t *producer = tow_graph_node(verify->program, value.node);
    if (producer->kind == TOW_NODE_RESULT)
        return NODE_ERROR(verify, index,
                          "input %zu is %s, a result; use the value that it "
                          "is of",
                          input,
                          tow_node_label(verify->program, value.node, label));
    const size_t outputs = output_count(verify, value.node);
    if (value.output >= outputs)
        return NODE_ERROR(
            verify, index, "input %zu is output %u of %s, which has %zu", input,
            value.output, tow_node_label(verify->program, value.node, label),
            outputs);
    return TOW_OK;
}

static tow_status_t check_values(const verify_t *verify, uint32_t index)
{
    const size_t count = tow_graph_node(verify->program, index)->input_count;
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(check_value(verify, index, i));
    return TOW_OK;
}

/* -- Agreement of values and users ----------------------------------------- */

/* An error about one input, named after the node. */
static TOW_COLD tow_status_t input_error(const verify_t *verify, uint32_t index,
                                         size_t input, tow_status_t take_status)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    char label[TOW_LABEL_SIZE];
    return node_error(
        verify, index,
        tow_status_annotate(
            take_status, "input %zu, of %s", input,
            tow_node_label(verify->program, node->inputs[input].node, label)));
}

#define INPUT_ERROR(verify, index, input, ...) \
    input_error((verify), (index), (input),    \
                TOW_ERROR(TOW_INVALID_ARGUMENT, __VA_ARGS__))

/* Two known shardings must be equal. */
static tow_status_t check_lies_as(const verify_t *verify, uint32_t index,
                                  size_t input, const tow_sharding_t *wanted)
{
    const tow_value_t value =
        tow_graph_node(verify->program, index)->inputs[input];
    char texts[2][TOW_SHARDING_TEXT_MAX];
    tow_sharding_t given;
    TOW_RETURN_IF_ERROR(tow_sharding_make_optional(
        tow_value_sharding(verify->program, verify->scope, value, &given)));
    if (!tow_sharding_is_known(&given) || !tow_sharding_is_known(wanted) ||
        tow_sharding_equal(&given, wanted))
        return TOW_OK;
    return INPUT_ERROR(
        verify, index, input,
        "its sharding is %s, but %s is expected; insert a transfer",
        tow_sharding_format(&given, texts[0]),
        tow_sharding_format(wanted, texts[1]));
}

/* Computations take arrays of fixed size; only a host function with bounds
 * takes irregular ones. */
static tow_status_t check_bounds(const verify_t *verify, uint32_t index,
                                 size_t input, const tow_array_info_t *wanted)
{
    const tow_value_t value =
        tow_graph_node(verify->program, index)->inputs[input];
    const uint32_t given =
        tow_value_bounds(verify->program, verify->scope, value);
    if ((given & ~wanted->bounds) == 0) return TOW_OK;
    return INPUT_ERROR(
        verify, index, input,
        "the size of its dimension %d is known only at run time, and function "
        "%s takes a fixed size; pad it in a host function",
        __builtin_ctz(given & ~wanted->bounds),
        verify->signatures[index]->name);
}

/* An irregular value cannot be split: it moves in whole shards. */
static tow_status_t check_whole_shards(const verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    char texts[2][TOW_SHARDING_TEXT_MAX];
    if (tow_value_bounds(verify->program, verify->scope, node->inputs[0]) == 0)
        return TOW_OK;
    const size_t bytes = node->from->rank * sizeof(node->from->parts[0]);
    if (memcmp(node->from->parts, node->to->parts, bytes) == 0) return TOW_OK;
    return INPUT_ERROR(verify, index, 0,
                       "its size is known only at run time, so it moves in "
                       "whole shards and cannot be resharded from %s to %s",
                       tow_sharding_format(node->from, texts[0]),
                       tow_sharding_format(node->to, texts[1]));
}

/* A computation and its input. */
static tow_status_t check_edge(const verify_t *verify, uint32_t index,
                               size_t input)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    const tow_value_t value = node->inputs[input];
    const tow_node_t *producer = tow_graph_node(verify->program, value.node);
    const tow_signature_t *signature = verify->signatures[index];
    const tow_array_info_t *wanted = &signature->arguments[input];
    tow_shape_t given;
    if (!tow_slice_id_equal(producer->slice, node->slice))
        return INPUT_ERROR(verify, index, input,
                           "it is on slice %" PRIu64
                           ", but the node runs on slice %" PRIu64
                           "; insert a transfer",
                           producer->slice.value, node->slice.value);
    tow_status_t status =
        tow_value_shape(verify->program, verify->scope, value, &given);
    if (status != TOW_OK) return input_error(verify, index, input, status);
    if (!tow_shape_equal(&wanted->shape, &given)) {
        char texts[2][TOW_SHAPE_TEXT_MAX];
        return INPUT_ERROR(verify, index, input,
                           "it is %s, but function %s takes %s",
                           tow_shape_format(&given, texts[0]), signature->name,
                           tow_shape_format(&wanted->shape, texts[1]));
    }
    TOW_RETURN_IF_ERROR(check_bounds(verify, index, input, wanted));
    if (tow_edge_is_plain(verify->program, verify->scope, value, wanted))
        return TOW_OK;
    tow_sharding_t sharding;
    TOW_RETURN_IF_ERROR(tow_sharding_make_optional(tow_array_sharding(
        signature, wanted, device_count_of(verify, index), &sharding)));
    return check_lies_as(verify, index, input, &sharding);
}

/* Shapes of moved values are computed along these chains. Steps come after
 * their inputs, so the lengths of those are known. */
static tow_status_t check_chain(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    uint8_t length = 0;
    if (tow_node_has_function(node)) return TOW_OK;
    for (size_t i = 0; i < node->input_count; i++)
        if (verify->chains[node->inputs[i].node] > length)
            length = verify->chains[node->inputs[i].node];
    if (length == TOW_TRANSFER_CHAIN_MAX)
        return NODE_ERROR(verify, index,
                          "it follows more than %d transfers or collectives in "
                          "a chain; move an earlier value",
                          TOW_TRANSFER_CHAIN_MAX - 1);
    verify->chains[index] = length + 1;
    return TOW_OK;
}

/* A collective and its input. */
static tow_status_t check_tensor(const verify_t *verify, uint32_t index,
                                 size_t input)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    const tow_value_t value = node->inputs[input];
    const tow_slice_id_t slice =
        tow_graph_node(verify->program, value.node)->slice;
    tow_shape_t shape;
    if (!tow_slice_id_equal(slice, node->slice))
        return INPUT_ERROR(verify, index, input,
                           "it is on slice %" PRIu64
                           ", but the collective is on slice %" PRIu64
                           "; move it there by a transfer",
                           slice.value, node->slice.value);
    tow_status_t status =
        tow_value_shape(verify->program, verify->scope, value, &shape);
    if (status != TOW_OK) return input_error(verify, index, input, status);
    if (tow_value_bounds(verify->program, verify->scope, value) != 0)
        return INPUT_ERROR(verify, index, input,
                           "its size is known only at run time, and a "
                           "collective needs a fixed size");
    if (tow_type_is_reducible(shape.type, node->collective->reduction))
        return TOW_OK;
    return INPUT_ERROR(verify, index, input, "there is no %s of %s",
                       tow_reduction_name(node->collective->reduction),
                       tow_type_name(shape.type));
}

/* A transfer and its input. */
static tow_status_t check_move(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    const uint32_t producer = node->inputs[0].node;
    tow_shape_t shape;
    tow_status_t status =
        tow_sharding_check(node->from, device_count_of(verify, producer));
    if (status != TOW_OK) return input_error(verify, index, 0, status);
    TOW_RETURN_IF_ERROR(check_lies_as(verify, index, 0, node->from));
    status = tow_value_shape(verify->program, verify->scope,
                             (tow_value_t){index, 0}, &shape);
    if (status != TOW_OK) return node_error(verify, index, status);
    TOW_RETURN_IF_ERROR(check_whole_shards(verify, index));
    return note_slice(verify, tow_graph_node(verify->program, producer)->slice);
}

static tow_status_t check_inputs(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    if (node->kind == TOW_NODE_TRANSFER) return check_move(verify, index);
    const bool is_collective = node->kind == TOW_NODE_COLLECTIVE;
    if (!tow_node_has_function(node) && !is_collective) return TOW_OK;
    for (size_t i = 0; i < node->input_count; i++)
        TOW_RETURN_IF_ERROR(is_collective ? check_tensor(verify, index, i)
                                          : check_edge(verify, index, i));
    return TOW_OK;
}

/* -- Whole program --------------------------------------------------------- */

/* A worker without a step gets no program, and would ignore the argument. */
static tow_status_t check_argument_slices(const verify_t *verify)
{
    for (size_t i = 0; i < verify->program->arguments.count; i++) {
        const uint32_t index = verify->program->arguments.items[i];
        const tow_slice_id_t slice =
            tow_graph_node(verify->program, index)->slice;
        if (tow_map_find(&verify->slices, slice.value) == NULL)
            return NODE_ERROR(
                verify, index,
                "the argument is on slice %" PRIu64
                ", which no computation or transfer of the program uses",
                slice.value);
    }
    return TOW_OK;
}

static tow_status_t check_slots(const verify_t *verify)
{
    uint64_t slots = verify->program->arguments.count;
    for (uint32_t i = 0; i < verify->program->nodes.count; i++) {
        if (!tow_node_is_step(tow_graph_node(verify->program, i))) continue;
        const size_t outputs = output_count(verify, i);
        if (outputs > TOW_SLOTS_MAX || slots + outputs > TOW_SLOTS_MAX)
            return NODE_ERROR(verify, i,
                              "with its outputs the program has more than %u "
                              "values; split it",
                              TOW_SLOTS_MAX);
        slots += outputs;
    }
    return TOW_OK;
}

static tow_status_t check_whole(const verify_t *verify)
{
    if (verify->program->results.count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the program has no result");
    if (!verify->is_loose) TOW_RETURN_IF_ERROR(check_argument_slices(verify));
    return check_slots(verify);
}

static tow_status_t check_program(verify_t *verify)
{
    const size_t count = verify->program->nodes.count;
    size_t step_count;
    for (uint32_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(check_node(verify, i));
    for (uint32_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(check_values(verify, i));
    TOW_RETURN_IF_ERROR(
        tow_graph_order(verify->program, verify->order, &step_count));
    for (size_t step = 0; step < step_count; step++)
        TOW_RETURN_IF_ERROR(check_chain(verify, verify->order[step]));
    for (uint32_t i = 0; i < count && !verify->is_loose; i++)
        TOW_RETURN_IF_ERROR(check_inputs(verify, i));
    return check_whole(verify);
}

static tow_status_t verify_program(const tow_graph_t *program,
                                   const tow_graph_scope_t *scope,
                                   bool is_loose)
{
    TOW_ASSERT(program != NULL && scope != NULL);
    const size_t count = program->nodes.count;
    verify_t verify = {
        .program = program, .scope = scope, .is_loose = is_loose};
    verify.signatures = tow_calloc(count + 1, sizeof(verify.signatures[0]) +
                                                  sizeof(verify.order[0]) +
                                                  sizeof(verify.chains[0]));
    if (verify.signatures == NULL) return tow_ir_exhausted();
    verify.order = (uint32_t *)(verify.signatures + count);
    verify.chains = (uint8_t *)(verify.order + count);
    tow_status_t status = check_program(&verify);
    tow_map_deinit(&verify.slices);
    tow_free(verify.signatures);
    return status;
}

tow_status_t tow_graph_verify(const tow_graph_t *program,
                              const tow_graph_scope_t *scope)
{
    return verify_program(program, scope, false);
}

tow_status_t tow_graph_verify_loose(const tow_graph_t *program,
                                    const tow_graph_scope_t *scope)
{
    return verify_program(program, scope, true);
}
