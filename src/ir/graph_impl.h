/* What the files of this folder share: the body of a program, its order, and
 * words about its nodes. */
#ifndef TOW_IR_GRAPH_IMPL_H_
#define TOW_IR_GRAPH_IMPL_H_

#include "base/arena.h"
#include "base/vec.h"
#include "ir/graph.h"

struct tow_graph {
    tow_arena_t arena; /* names and inputs */
    const char *name;  /* in the arena */
    TOW_VEC(tow_node_t) nodes;
    TOW_VEC(uint32_t) arguments; /* nodes, ascending */
    TOW_VEC(uint32_t) results;   /* nodes, ascending */
    size_t input_count;          /* of all nodes */
    bool in_order;               /* every node stands behind its inputs */
};

/* Writes the compute nodes in the order in which they run: each behind its
 * inputs, the least number first where there is a choice. `out_nodes` has room
 * for all nodes. Every input names a node. INVALID_ARGUMENT shows a cycle.
 * Takes no memory when the program is in order. */
tow_status_t tow_graph_order(const tow_graph_t *program, uint32_t *out_nodes,
                             size_t *out_count) TOW_MUST_USE;

/* The safe form of one byte of a name inside of double quotes; returns its
 * length. */
#define TOW_ESCAPED_SIZE 5
size_t tow_name_escape(char byte, char out[TOW_ESCAPED_SIZE]);

/* `node 3 "name"`, cut where it is long. Returns `label`. */
#define TOW_LABEL_SIZE 96
const char *tow_node_label(const tow_graph_t *program, uint32_t index,
                           char label[TOW_LABEL_SIZE]);

/* Short of memory. */
static inline tow_status_t tow_ir_exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

#endif /* TOW_IR_GRAPH_IMPL_H_ */
