/* Programs: graphs of computations over slices.
 *
 * A node represents all its shards, an edge the whole exchange between two
 * sharded nodes. So the size of a program does not depend on the number of
 * devices. Nodes are arguments, computations, host functions, transfers,
 * collectives between computations, and results.
 *
 * A program is built node by node, by the client library, or decoded from
 * bytes. It refers to functions and slices by id; a tow_graph_scope_t resolves
 * the ids for the verifier and the passes. Pure: no I/O, no clock, no
 * globals. */
#ifndef TOW_IR_GRAPH_H_
#define TOW_IR_GRAPH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "ir/collective.h"
#include "ir/sharding.h"

TOW_ID_TYPE(tow_slice_id)
TOW_ID_TYPE(tow_function_id)

typedef struct tow_graph tow_graph_t;

typedef enum tow_node_kind {
    TOW_NODE_ARGUMENT = 1,
    TOW_NODE_COMPUTE,
    TOW_NODE_RESULT,
    TOW_NODE_TRANSFER,
    TOW_NODE_COLLECTIVE,
    TOW_NODE_HOST, /* a function that runs on the hosts, shard by shard */
} tow_node_kind_t;
#define TOW_NODE_KIND_LAST TOW_NODE_HOST

/* Output `output` of node `node`. */
typedef struct tow_value {
    uint32_t node;
    uint32_t output;
} tow_value_t;

typedef struct tow_node {
    tow_node_kind_t kind;
    const char *name; /* owned by the program; may be empty */
    /* ARGUMENT, COMPUTE, HOST, COLLECTIVE: its slice; TRANSFER: its target. */
    tow_slice_id_t slice;
    /* COMPUTE, HOST. */
    tow_function_id_t function;
    /* HOST: per call; 0: the default of the workers. */
    uint32_t time_limit_ms;
    /* ARGUMENT: of one shard. */
    tow_shape_t shape;
    /* ARGUMENT: a run may consume the object, if a function donates it. */
    bool donated;
    /* TRANSFER: the sharding of its input on the source slice, and of its
     * output on `slice`; the shapes of shards follow from these. ARGUMENT: `to`
     * may give its sharding; without it a computation on another slice cannot
     * use the argument. NULL: unknown. */
    const tow_sharding_t *from, *to; /* owned by the program */
    /* COLLECTIVE: the operation on each of its inputs, which are all on
     * `slice`. Output i has the shape of input i. Its sharding is unknown:
     * users on the slice take it with the sharding that they expect. */
    const tow_collective_t *collective; /* owned by the program */
    /* COMPUTE, HOST: in the order of the function's arguments; COLLECTIVE: one
     * or more, the most urgent first; TRANSFER and RESULT: exactly one. */
    const tow_value_t *inputs; /* owned by the program */
    size_t input_count;
} tow_node_t;

tow_status_t tow_graph_create(const char *name, tow_graph_t **out_program)
    TOW_MUST_USE;
void tow_graph_destroy(tow_graph_t *program);
const char *tow_graph_name(const tow_graph_t *program);
/* No step starts before its inputs are ready: to measure the cost of that, and
 * to find the step that hangs. */
void tow_graph_make_sequential(tow_graph_t *program);
bool tow_graph_is_sequential(const tow_graph_t *program);
/* Copies all that `node` points to; ignores fields that its kind does not have.
 * INVALID_ARGUMENT beyond the wire's limits or for an undefined kind; the
 * verifier checks the rest. Nodes are numbered from 0. */
tow_status_t tow_graph_add(tow_graph_t *program, const tow_node_t *node,
                           uint32_t *out_index) TOW_MUST_USE;
size_t tow_graph_node_count(const tow_graph_t *program);
/* Lent until the next node is added. */
const tow_node_t *tow_graph_node(const tow_graph_t *program, uint32_t index);
/* Arguments and results in the order of their nodes. */
size_t tow_graph_argument_count(const tow_graph_t *program);
size_t tow_graph_result_count(const tow_graph_t *program);
uint32_t tow_graph_argument(const tow_graph_t *program, size_t index);
uint32_t tow_graph_result(const tow_graph_t *program, size_t index);

/* -- Verification ---------------------------------------------------------- */

/* Resolves ids. Unknown ids give 0 and NULL. */
typedef struct tow_graph_scope {
    /* Number of devices of a slice. */
    size_t (*slice_devices)(void *context, tow_slice_id_t slice);
    /* Lent for as long as the scope is used. Counts are known. */
    const tow_signature_t *(*function)(void *context,
                                       tow_function_id_t function);
    void *context;
    /* Bytes in ir/tuning.h are divided by 2 to this power: 0, except in
     * simulations, which have small values. */
    uint32_t late_shift;
} tow_graph_scope_t;

/* Checks that the program can run. Errors name the node by number and name, the
 * problem and the remedy: an input that names no node or no output; a cycle
 * (its nodes are listed); unknown slices or functions; a function of N devices
 * on a slice of M; argument counts, shapes or types; a value used on another
 * slice, or with another sharding, than it has (tow_graph_insert_transfers
 * resolves that); a transfer with invalid shardings, or in too long a chain; a
 * result that is used; an argument without shape; no result; arguments on
 * slices without a computation or transfer; more values than TOW_SLOTS_MAX; a
 * host function in place of a computation, or the reverse; a value of irregular
 * size (an output of a host function) as the input of a computation or a
 * collective, or resharded; a collective over another mesh than its slice, or
 * of a type that cannot be reduced. */
tow_status_t tow_graph_verify(const tow_graph_t *program,
                              const tow_graph_scope_t *scope) TOW_MUST_USE;
/* The same without the agreement of values with their users in slices,
 * shardings and shapes of shards, which is checked after transfers have been
 * inserted. A transfer may omit `from`, and `to` if its slice has one
 * device. */
tow_status_t tow_graph_verify_loose(const tow_graph_t *program,
                                    const tow_graph_scope_t *scope)
    TOW_MUST_USE;

/* Longest chain of transfers and collectives. */
#define TOW_TRANSFER_CHAIN_MAX 16

/* -- Bytes and text -------------------------------------------------------- */

/* A packed Graph (towpath.proto). The bytes are the caller's; tow_free. */
tow_status_t tow_graph_pack(const tow_graph_t *program, void **out_bytes,
                            size_t *out_size) TOW_MUST_USE;
/* Untrusted bytes. The result is well formed, but not verified. */
tow_status_t tow_graph_unpack(const void *bytes, size_t size,
                              tow_graph_t **out_program) TOW_MUST_USE;

/* A readable text, one line per node, which parses to the same program:
 *
 *     program "step" {
 *       %0 = argument "x" : f32[4,8] on slice 1 donated
 *       %1 = compute "A" function 3 on slice 1 (%0)
 *       %2 = compute "B" function 4 on slice 1 (%1, %1:1)
 *       %3 = transfer from 2x4 to slice 2 as 8x1 (%2) // "%2" is short for "%2:0"
 *       %4 = host "filter" function 5 within 2000 ms on slice 2 (%3)
 *       %5 = all_reduce sum on slice 2 over 2x4 axes 1 (%3)
 *       %6 = result "y" (%5)
 *     }
 *
 * `sequential` follows the name of a sequential program. The known sharding of
 * an argument follows its slice: `on slice 1 as 2x4 donated`; `?` is an unknown
 * one. A collective over all devices of its slice has no mesh. Names are
 * printable ASCII, other bytes \xNN; an empty name is omitted. A type without a
 * name is a number, as in #77[2]. */
tow_status_t tow_graph_print(const tow_graph_t *program, char **out_text)
    TOW_MUST_USE;
/* INVALID_ARGUMENT names line and column. */
tow_status_t tow_graph_parse(const char *text, size_t size,
                             tow_graph_t **out_program) TOW_MUST_USE;

#endif /* TOW_IR_GRAPH_H_ */
