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
    bool is_sequential;
};

static inline bool tow_node_kind_is_known(uint32_t kind)
{
    return kind >= TOW_NODE_ARGUMENT && kind <= TOW_NODE_KIND_LAST;
}

/* Does it have a function, whose signature says all of its values? */
static inline bool tow_node_calls(const tow_node_t *node)
{
    return node->kind == TOW_NODE_COMPUTE || node->kind == TOW_NODE_HOST;
}

/* What runs: a computation, a host function, a transfer or a collective. */
static inline bool tow_node_is_step(const tow_node_t *node)
{
    return tow_node_calls(node) || node->kind == TOW_NODE_TRANSFER ||
           node->kind == TOW_NODE_COLLECTIVE;
}

/* Writes the steps in the order in which they run: each behind its inputs. Where
 * there is a choice a transfer or a collective comes as soon as it can, so that computations keep
 * the order that they would have without; of those the least number is first.
 * `out_nodes` has room for all nodes. Every input names a node. INVALID_ARGUMENT
 * shows a cycle. A program in order keeps its own, and takes no memory. */
tow_status_t tow_graph_order(const tow_graph_t *program, uint32_t *out_nodes,
                             size_t *out_count) TOW_MUST_USE;

/* -- Values (value.c) --------------------------------------------------------- */

/* The value that a chain of transfers and collectives began with; `value` itself
 * if it is of none. The program has no cycles. */
tow_value_t tow_value_origin(const tow_graph_t *program, tow_value_t value);
/* How an argument or a result of a function lies on a slice of that many
 * devices. TOW_OK with one that is not known if nobody says; an error if it is
 * said but not understood. */
tow_status_t tow_array_sharding(const tow_signature_t *signature,
                                const tow_array_info_t *array,
                                size_t device_count,
                                tow_sharding_t *out_sharding) TOW_MUST_USE;
/* The same of a value. Inputs of nodes have been checked. */
tow_status_t tow_value_sharding(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                tow_value_t value, tow_sharding_t *out_sharding)
    TOW_MUST_USE;
/* The shape of one shard. Of a transfer it follows from its shardings, which may
 * not fit; in a program that has been verified they do. */
tow_status_t tow_value_shape(const tow_graph_t *program,
                             const tow_graph_scope_t *scope, tow_value_t value,
                             tow_shape_t *out_shape) TOW_MUST_USE;
/* Which dimensions of a shard are bounds: bit i is dims[i]. 0: regular. */
uint32_t tow_value_bounds(const tow_graph_t *program,
                          const tow_graph_scope_t *scope, tow_value_t value);
/* Does the step have to do with a value whose size is not known ahead? */
bool tow_node_is_irregular(const tow_graph_t *program,
                           const tow_graph_scope_t *scope, uint32_t index);
/* For who can do without the sharding: passes on only that memory is short. */
tow_status_t tow_sharding_forgive(tow_status_t take_status) TOW_MUST_USE;
/* For a value and a function on one slice: is there nothing to compare? So it is
 * where the function does not say how it takes it, and where its maker says the
 * same, byte by byte. */
bool tow_edge_is_plain(const tow_graph_t *program,
                       const tow_graph_scope_t *scope, tow_value_t value,
                       const tow_array_info_t *wanted);

/* -- Words -------------------------------------------------------------------- */

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
