/* Is it a program that can run? Nodes by themselves first, then what they give
 * each other, then the whole. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "ir/graph_impl.h"
#include "ir/lower.h"

typedef struct verify {
    const tow_graph_t *program;
    const tow_graph_scope_t *scope;
    const tow_signature_t **signatures; /* by node; lent by the scope */
    uint32_t *order;                    /* by node; scratch */
    tow_map_t slices;                   /* that a computation is on */
} verify_t;

/* An error about one node, which it begins with. */
#define NODE_ERROR(verify, index, ...) \
    node_error((verify), (index), TOW_ERROR(TOW_INVALID_ARGUMENT, __VA_ARGS__))

static TOW_COLD tow_status_t node_error(const verify_t *verify, uint32_t index,
                                        tow_status_t take_status)
{
    char label[TOW_LABEL_SIZE];
    return tow_status_annotate(take_status, "%s",
                               tow_node_label(verify->program, index, label));
}

/* -- A node by itself -------------------------------------------------------- */

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
    return find_slice(verify, index, &devices);
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
                          "; it was never compiled, or is dropped",
                          node->function.value);
    if (signature->argument_count == TOW_COUNT_UNKNOWN ||
        signature->result_count == TOW_COUNT_UNKNOWN)
        return NODE_ERROR(verify, index,
                          "what function %s takes and gives is not known, so "
                          "it cannot be part of a program",
                          signature->name);
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

static tow_status_t check_compute(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    size_t devices;
    TOW_RETURN_IF_ERROR(find_slice(verify, index, &devices));
    TOW_RETURN_IF_ERROR(check_function(verify, index, devices));
    /* Any value that is not NULL: it is used as a set. */
    if (!tow_map_put(&verify->slices, node->slice.value, verify))
        return tow_ir_exhausted();
    return TOW_OK;
}

static tow_status_t check_node(verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    switch (node->kind) {
    case TOW_NODE_ARGUMENT: return check_argument(verify, index);
    case TOW_NODE_COMPUTE: return check_compute(verify, index);
    case TOW_NODE_TRANSFER:
        return NODE_ERROR(verify, index, "transfers are not built yet");
    case TOW_NODE_RESULT: break;
    }
    if (node->input_count != 1)
        return NODE_ERROR(verify, index, "a result is one value, not %zu",
                          node->input_count);
    return TOW_OK;
}

/* -- What nodes give each other ---------------------------------------------- */

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
    const size_t outputs = producer->kind == TOW_NODE_ARGUMENT
                               ? 1
                               : verify->signatures[value.node]->result_count;
    if (value.output >= outputs)
        return NODE_ERROR(
            verify, index, "input %zu is output %u of %s, which has %zu", input,
            value.output, tow_node_label(verify->program, value.node, label),
            outputs);
    return TOW_OK;
}

static const tow_shape_t *shape_of(const verify_t *verify, tow_value_t value)
{
    const tow_node_t *producer = tow_graph_node(verify->program, value.node);
    if (producer->kind == TOW_NODE_ARGUMENT) return &producer->shape;
    return &verify->signatures[value.node]->results[value.output].shape;
}

/* A computation and the value that it is given. */
static tow_status_t check_edge(const verify_t *verify, uint32_t index,
                               size_t input)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    const tow_value_t value = node->inputs[input];
    const tow_node_t *producer = tow_graph_node(verify->program, value.node);
    const tow_signature_t *signature = verify->signatures[index];
    const tow_shape_t *wanted = &signature->arguments[input].shape;
    const tow_shape_t *given = shape_of(verify, value);
    char label[TOW_LABEL_SIZE];
    if (!tow_slice_id_equal(producer->slice, node->slice))
        return NODE_ERROR(
            verify, index,
            "input %zu, of %s, lives on slice %" PRIu64
            ", and the node runs on slice %" PRIu64 "; put both on one slice",
            input, tow_node_label(verify->program, value.node, label),
            producer->slice.value, node->slice.value);
    if (tow_shape_equal(wanted, given)) return TOW_OK;
    char texts[2][TOW_SHAPE_TEXT_MAX];
    return NODE_ERROR(verify, index,
                      "input %zu, of %s, is %s, and function %s takes %s",
                      input, tow_node_label(verify->program, value.node, label),
                      tow_shape_format(given, texts[0]), signature->name,
                      tow_shape_format(wanted, texts[1]));
}

static tow_status_t check_inputs(const verify_t *verify, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(verify->program, index);
    for (size_t i = 0; i < node->input_count; i++) {
        TOW_RETURN_IF_ERROR(check_value(verify, index, i));
        if (node->kind == TOW_NODE_COMPUTE)
            TOW_RETURN_IF_ERROR(check_edge(verify, index, i));
    }
    return TOW_OK;
}

/* -- The whole --------------------------------------------------------------- */

/* Who has no computation gets no program, and would never see the argument. */
static tow_status_t check_argument_slices(const verify_t *verify)
{
    for (size_t i = 0; i < verify->program->arguments.count; i++) {
        const uint32_t index = verify->program->arguments.items[i];
        const tow_slice_id_t slice =
            tow_graph_node(verify->program, index)->slice;
        if (tow_map_find(&verify->slices, slice.value) == NULL)
            return NODE_ERROR(verify, index,
                              "the argument is on slice %" PRIu64
                              ", where no computation of the program is",
                              slice.value);
    }
    return TOW_OK;
}

static tow_status_t check_slots(const verify_t *verify)
{
    uint64_t slots = verify->program->arguments.count;
    for (uint32_t i = 0; i < verify->program->nodes.count; i++) {
        if (verify->signatures[i] == NULL) continue;
        const size_t outputs = verify->signatures[i]->result_count;
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
    size_t step_count;
    if (verify->program->results.count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "no node is a result, so a run would leave nothing");
    TOW_RETURN_IF_ERROR(check_argument_slices(verify));
    TOW_RETURN_IF_ERROR(check_slots(verify));
    return tow_graph_order(verify->program, verify->order, &step_count);
}

static tow_status_t check_program(verify_t *verify)
{
    const size_t count = verify->program->nodes.count;
    for (uint32_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(check_node(verify, i));
    for (uint32_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(check_inputs(verify, i));
    return check_whole(verify);
}

tow_status_t tow_graph_verify(const tow_graph_t *program,
                              const tow_graph_scope_t *scope)
{
    TOW_ASSERT(program != NULL && scope != NULL);
    const size_t count = program->nodes.count;
    verify_t verify = {.program = program, .scope = scope};
    verify.signatures = tow_calloc(count + 1, sizeof(verify.signatures[0]) +
                                                  sizeof(verify.order[0]));
    if (verify.signatures == NULL) return tow_ir_exhausted();
    verify.order = (uint32_t *)(verify.signatures + count);
    tow_status_t status = check_program(&verify);
    tow_map_deinit(&verify.slices);
    tow_free(verify.signatures);
    return status;
}
