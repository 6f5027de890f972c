/* Lowering: from a program to what each worker runs, in passes over one form.
 *
 *   insert   transfers where a value is used on another slice, or with another
 *            sharding, than it has (tow_graph_insert_transfers)
 *   place    virtual devices become physical ones: the scope's executables and
 *            places
 *   split    each worker gets the steps of its devices, and its part of each
 *            transfer as pieces with the process at the other end, and of each
 *            collective as its groups with all their processes
 *
 * The controller lowers once per program and mapping of its slices. A lowered
 * program is a list of steps over slots: arguments fill the first slots, each
 * step reads some and fills others, results name some. All workers of a slice
 * get the same bytes, whatever their number and that of the devices: which
 * shards a worker has is known from the executables. A worker gets the steps of
 * the slices that it has devices of; numbering of slots and steps is common to
 * all, so messages about them mean the same everywhere. Pure. */
#ifndef TOW_IR_LOWER_H_
#define TOW_IR_LOWER_H_

#include "ir/graph.h"

TOW_ID_TYPE(tow_executable_id)

/* Arguments and outputs of all steps. A worker has a table of them for each run
 * that is under way. The verifier refuses programs with more. */
#define TOW_SLOTS_MAX ((uint32_t)1 << 22)

/* A box of one shard that goes to one other shard. */
typedef struct tow_piece {
    uint32_t process;      /* of the worker at the other end; may be our own */
    uint32_t source_shard; /* among the source worker's own, of the value */
    uint32_t target_shard; /* among the target worker's own */
    uint32_t number;       /* among all that go to that target shard, from 0 */
    uint64_t bytes;
    /* Of its first byte in the target shard's memory; in a packed route, in a
     * memory of the same size where its pieces lie one after the other. */
    uint64_t offset;
    /* In elements, a number a dimension. */
    int64_t source_start[TOW_RANK_MAX];
    int64_t target_start[TOW_RANK_MAX];
    int64_t extent[TOW_RANK_MAX];
} tow_piece_t;

/* One worker's part of a transfer. Every target shard is covered by its pieces
 * exactly; both ends have worked out the same numbers and offsets. In order of
 * their numbers, the pieces of a target shard lie one behind the other from
 * offset 0 on, packed or not. A shard without elements has none. A piece that
 * stays on the worker is in both lists. */
typedef struct tow_route {
    tow_shape_t source;       /* one shard */
    tow_shape_t target;       /* one shard */
    size_t source_count;      /* shards of the value that are ours */
    const tow_piece_t *sends; /* of our source shards; by target, then number */
    size_t send_count;
    const tow_piece_t *receives; /* of our target shards; the same order */
    size_t receive_count;
    const uint32_t *target_devices; /* of ours, in the order of the shards */
    size_t target_count;
    /* Some piece is not one row of bytes in its target: all arrive packed, and
     * are laid out when they are there. */
    bool is_packed;
} tow_route_t;

typedef struct tow_lowered_step {
    /* One of three. A function, loaded for a mapping; none (0) of the others. */
    tow_executable_id_t executable;
    const tow_route_t *route;                /* NULL: no transfer */
    const tow_collective_part_t *collective; /* NULL: no collective */
    /* Slots. A transfer has one if this worker has shards of the value, and an
     * output if it has some of the target: also where it sends none of them,
     * because replicas elsewhere are nearer. */
    const uint32_t *inputs;
    size_t input_count;
    uint32_t first_output; /* slot; the others follow */
    uint32_t output_count; /* results of the function */
    /* Which inputs must not be donated although the function would: they are
     * used later, or twice by this step, or are results, or belong to an
     * argument that the caller keeps. Indices into inputs, ascending. */
    const uint32_t *kept;
    size_t kept_count;
    /* Slots whose last use this step is, each once; an output that nobody uses
     * is one. Never an argument unless the step consumes it, never a result. */
    const uint32_t *freed;
    size_t freed_count;
    uint32_t node;  /* of the client's program, for messages */
    uint32_t index; /* among the steps of all workers */
    bool is_host;   /* the executable is a host function */
    /* Nothing of it is done ahead of its data: it has to do with a value whose
     * size is known only when it is there, or the program says so. */
    bool is_sequential;
    uint32_t time_limit_ms; /* of a call of a host function; 0: the default */
} tow_lowered_step_t;

typedef struct tow_lowered {
    uint32_t slot_count;
    uint32_t argument_count;
    const uint32_t *results; /* slots */
    size_t result_count;
    const tow_lowered_step_t *steps;
    size_t step_count; /* with steps of other workers left out */
    uint32_t step_count_all;
} tow_lowered_t;

typedef struct tow_place {
    uint32_t process;
    uint32_t index;  /* among the shards of that slice on that worker */
    uint32_t device; /* among the worker's devices */
    uint32_t host;   /* the same number: the same machine */
} tow_place_t;

typedef struct tow_lower_scope {
    tow_graph_scope_t program;
    /* The executable of a function on a slice. */
    tow_executable_id_t (*executable)(void *context, tow_function_id_t function,
                                      tow_slice_id_t slice);
    /* Is this slice on the worker that we lower for? NULL: all are. */
    bool (*slice_is_here)(void *context, tow_slice_id_t slice);
    /* Where shard `shard` of a slice lies. Asked for transfers and collectives
     * only, once a shard of their slices. A worker's own numbers rise with its shards. */
    tow_place_t (*place)(void *context, tow_slice_id_t slice, size_t shard);
    uint32_t process; /* of the worker that we lower for */
    /* Nodes of the client's program. The others were inserted, and their steps
     * bear the number of the node whose value they move. 0: none were. */
    uint32_t client_node_count;
    void *context;
} tow_lower_scope_t;

/* A copy of the program in which every value is used only where it lies: behind
 * each producer one transfer for each other slice, or sharding, that its users
 * have, from the shardings of their functions' signatures. Where neither end says
 * how a value lies, and both have as many shards of one shape, it goes shard by
 * shard. The program has been verified but for that (tow_graph_verify_loose).
 * INVALID_ARGUMENT names the node whose sharding is not known or does not fit. Node numbers of the original
 * stay; transfers stand at the end. */
tow_status_t tow_graph_insert_transfers(const tow_graph_t *program,
                                        const tow_graph_scope_t *scope,
                                        tow_graph_t **out_program) TOW_MUST_USE;

/* Puts the steps in a topological order that depends on the graph alone (least
 * node number first, and transfers as soon as they can), so all who lower it
 * agree. The program has been verified under the same scope; all the same,
 * INVALID_ARGUMENT when a function insists on an input that it may not have (a
 * required alias), and RESOURCE_EXHAUSTED when a transfer has more pieces at this
 * worker than TOW_PIECES_MAX. tow_lowered_destroy. O(n log n) in nodes and
 * inputs, O(n) when every node stands behind its inputs; and the shards of the
 * slices that transfers go between, and their pieces here. */
tow_status_t tow_graph_lower(const tow_graph_t *program,
                             const tow_lower_scope_t *scope,
                             tow_lowered_t **out_lowered) TOW_MUST_USE;
void tow_lowered_destroy(tow_lowered_t *lowered);

/* A packed Lowered (towpath.proto), and back, from bytes that are not trusted:
 * every slot is in range, written before it is read, written once, freed once
 * and not read after, and no result is freed; boxes of pieces are inside of their
 * shards, and what is received covers each target from its first byte to its
 * last. */
tow_status_t tow_lowered_pack(const tow_lowered_t *lowered, void **out_bytes,
                              size_t *out_size) TOW_MUST_USE;
tow_status_t tow_lowered_unpack(const void *bytes, size_t size,
                                tow_lowered_t **out_lowered) TOW_MUST_USE;

/* What a run of the program takes of each device of one slice, beside its
 * arguments, walking the steps in order: outputs live from their step to their
 * last use, a donated input gives its bytes back, temporaries while a step runs.
 * A transfer takes its output, where it goes to, from the beginning of the run,
 * and as much again until its step if it arrives packed. What it reads stays
 * until the end of the run. So it is with a host function. A collective takes its outputs, and at most as much
 * again for what arrives of others, if it is over several devices.
 * When it has ended, result_bytes - donated_bytes is what it added. A value that
 * is two results counts once. OUT_OF_RANGE past 2^63 - 1 bytes. */
typedef struct tow_graph_cost {
    uint64_t peak_bytes;    /* results, intermediates and temporaries */
    uint64_t result_bytes;  /* what stays: results that are not arguments */
    uint64_t donated_bytes; /* of arguments that it consumes */
    uint32_t step_count;    /* computations on this slice */
} tow_graph_cost_t;
tow_status_t tow_graph_cost(const tow_graph_t *program,
                            const tow_graph_scope_t *scope,
                            tow_slice_id_t slice, tow_graph_cost_t *out_cost)
    TOW_MUST_USE;

/* The shape of each result's shard and the slice it lives on. OUT_OF_RANGE if
 * there is no such result. */
typedef struct tow_result_info {
    tow_shape_t shape;
    uint64_t bytes;
    tow_slice_id_t slice;
    uint32_t bounds; /* bit i: shape.dims[i] is the most that it can be */
    /* Index of the argument that this result is, passed through; UINT32_MAX:
     * none. */
    uint32_t argument;
} tow_result_info_t;
tow_status_t tow_graph_result_info(const tow_graph_t *program,
                                   const tow_graph_scope_t *scope, size_t index,
                                   tow_result_info_t *out_info) TOW_MUST_USE;

/* Which arguments does the run consume? Only one whose node says donated, and
 * which the last step that uses it donates (the function's alias), and which is
 * no result too, nor two inputs of that step. Fills one flag an argument. */
tow_status_t tow_graph_consumed(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                bool *out_consumed) TOW_MUST_USE;
/* The same for one argument, at the cost of all. False also when memory is
 * exhausted: who keeps books asks the other. */
bool tow_graph_consumes(const tow_graph_t *program,
                        const tow_graph_scope_t *scope, size_t index);

#endif /* TOW_IR_LOWER_H_ */
