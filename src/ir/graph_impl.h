/* Internals shared by the files of this folder: the struct of a program, its
 * order, queries about values, and labels for errors. */
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
    bool in_order;               /* every node comes after its inputs */
    bool is_sequential;
};

/* Asserts that the lists and sums agree with the nodes. O(n): for tests. */
void tow_graph_check(const tow_graph_t *program);

static inline bool tow_node_kind_is_known(uint32_t kind)
{
    return kind >= TOW_NODE_ARGUMENT && kind <= TOW_NODE_KIND_LAST;
}

/* True if a function's signature determines its inputs and outputs. */
static inline bool tow_node_has_function(const tow_node_t *node)
{
    return node->kind == TOW_NODE_COMPUTE || node->kind == TOW_NODE_HOST;
}

/* Steps: computations, host functions, transfers and collectives. */
static inline bool tow_node_is_step(const tow_node_t *node)
{
    return tow_node_has_function(node) || node->kind == TOW_NODE_TRANSFER ||
           node->kind == TOW_NODE_COLLECTIVE;
}

/* Writes the steps in execution order: each after its inputs. Where there is a
 * choice, transfers and collectives come as early as possible, so that they do
 * not change the order of the computations; of those the lowest number comes
 * first. `out_nodes` has room for all nodes. Every input names a node.
 * INVALID_ARGUMENT shows a cycle. A program that is in order keeps its order,
 * without memory. */
tow_status_t tow_graph_order(const tow_graph_t *program, uint32_t *out_nodes,
                             size_t *out_count) TOW_MUST_USE;

/* -- Values (value.c) ------------------------------------------------------ */

/* The first input of the chain of transfers and collectives that ends with
 * `value`; `value` itself if there is no chain. The program has no cycles. */
tow_value_t tow_value_origin(const tow_graph_t *program, tow_value_t value);
/* The sharding of an argument or a result of a function on a slice of that many
 * devices. TOW_OK and unknown if the signature has none; an error if it has one
 * that we cannot represent. */
tow_status_t tow_array_sharding(const tow_signature_t *signature,
                                const tow_array_info_t *array,
                                size_t device_count,
                                tow_sharding_t *out_sharding) TOW_MUST_USE;
/* The same for a value. The inputs of nodes have been checked. */
tow_status_t tow_value_sharding(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                tow_value_t value, tow_sharding_t *out_sharding)
    TOW_MUST_USE;
/* The shape of one shard. For a transfer it follows from its shardings, which
 * may be invalid in an unverified program. */
tow_status_t tow_value_shape(const tow_graph_t *program,
                             const tow_graph_scope_t *scope, tow_value_t value,
                             tow_shape_t *out_shape) TOW_MUST_USE;
/* Bit i: dims[i] of a shard is an upper bound. 0: a regular value. */
uint32_t tow_value_bounds(const tow_graph_t *program,
                          const tow_graph_scope_t *scope, tow_value_t value);
/* True if an input or output of the step has a size known only at run time. */
bool tow_node_is_irregular(const tow_graph_t *program,
                           const tow_graph_scope_t *scope, uint32_t index);
/* For callers that can proceed without the sharding: keeps only the error
 * RESOURCE_EXHAUSTED. */
tow_status_t tow_sharding_make_optional(tow_status_t take_status) TOW_MUST_USE;
/* For a value and a function on one slice: true if their shardings need no
 * comparison, because the function has none for its argument, or the producer
 * has the same bytes. */
bool tow_edge_is_plain(const tow_graph_t *program,
                       const tow_graph_scope_t *scope, tow_value_t value,
                       const tow_array_info_t *wanted);

/* -- Labels for errors ----------------------------------------------------- */

/* Escapes one byte of a name for use inside double quotes; returns the
 * length. */
#define TOW_ESCAPED_SIZE 5
size_t tow_name_escape(char byte, char out[TOW_ESCAPED_SIZE]);

/* `node 3 "name"`, truncated if long. Returns `label`. */
#define TOW_LABEL_SIZE 96
const char *tow_node_label(const tow_graph_t *program, uint32_t index,
                           char label[TOW_LABEL_SIZE]);

static inline tow_status_t tow_ir_exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

#endif /* TOW_IR_GRAPH_IMPL_H_ */
