/* The steps of a program, in the order that all workers share. */
#include "base/alloc.h"
#include "ir/graph_impl.h"
#include "ir/lower.h"

tow_status_t tow_graph_steps(const tow_graph_t *program,
                             tow_step_info_t *out_steps, size_t *out_count)
{
    *out_count = 0;
    uint32_t *nodes = tow_calloc(program->nodes.count + 1, sizeof(*nodes));
    if (nodes == NULL) return tow_ir_exhausted();
    tow_status_t status = tow_graph_order(program, nodes, out_count);
    for (size_t i = 0; status == TOW_OK && i < *out_count; i++) {
        const tow_node_t *node = &program->nodes.items[nodes[i]];
        out_steps[i] =
            (tow_step_info_t){node->slice, tow_node_has_function(node)};
    }
    tow_free(nodes);
    return status;
}
