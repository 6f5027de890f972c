/* The steps of a program, in the order that all workers share. */
#include "base/alloc.h"
#include "ir/graph_impl.h"
#include "ir/lower.h"

/* Of its inputs, which come before it in the order. */
static uint32_t depth_of_inputs(const tow_node_t *node, const uint32_t *depths)
{
    uint32_t deepest = 0;
    for (size_t i = 0; i < node->input_count; i++)
        if (depths[node->inputs[i].node] > deepest)
            deepest = depths[node->inputs[i].node];
    return deepest;
}

tow_status_t tow_graph_steps(const tow_graph_t *program,
                             tow_step_info_t *out_steps, size_t *out_count)
{
    *out_count = 0;
    const size_t capacity = program->nodes.count + 1;
    uint32_t *nodes = tow_calloc(2 * capacity, sizeof(*nodes));
    if (nodes == NULL) return tow_ir_exhausted();
    uint32_t *depths = nodes + capacity; /* by node */
    tow_status_t status = tow_graph_order(program, nodes, out_count);
    for (size_t i = 0; status == TOW_OK && i < *out_count; i++) {
        const tow_node_t *node = &program->nodes.items[nodes[i]];
        const bool is_computed = tow_node_has_function(node);
        depths[nodes[i]] = depth_of_inputs(node, depths) + is_computed;
        out_steps[i] =
            (tow_step_info_t){node->slice, is_computed, depths[nodes[i]]};
    }
    tow_free(nodes);
    return status;
}
