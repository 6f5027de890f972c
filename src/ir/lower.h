/* Lowering: from a program to the steps of each worker, in passes.
 *
 *   insert   adds transfers where a value is used on another slice, or with
 *            another sharding, than it has (tow_graph_insert_transfers)
 *   place    maps virtual devices to physical ones: the scope's executables and
 *            places
 *   split    gives each worker the steps of its devices, its pieces of each
 *            transfer with the processes at the other ends, and its groups of
 *            each collective with all their processes
 *
 * The controller lowers once per program and mapping of its slices. A lowered
 * program is a list of steps over slots: arguments are in the first slots, each
 * step reads some slots and fills others, results name some. Its size does not
 * depend on the number of workers or devices: the executables determine which
 * shards a worker has. A worker gets the steps of the slices that it has
 * devices of; the numbering of slots and steps is the same for all workers.
 * Pure. */
#ifndef TOW_IR_LOWER_H_
#define TOW_IR_LOWER_H_

#include "ir/graph.h"

TOW_ID_TYPE(tow_executable_id)

/* Arguments and outputs of all steps. A worker has a table of slots for each
 * active run. The verifier refuses programs with more. */
#define TOW_SLOTS_MAX ((uint32_t)1 << 22)

/* A box of one shard that is sent to one other shard. */
typedef struct tow_piece {
    uint32_t process;      /* of the worker at the other end; may be our own */
    uint32_t source_shard; /* local index at the source worker */
    uint32_t target_shard; /* local index at the target worker */
    uint32_t number;       /* among all pieces of that target shard, from 0 */
    uint64_t bytes;
    /* Of its first byte in the target shard's memory; in a packed route, in a
     * staging buffer of the same size with its pieces in sequence. */
    uint64_t offset;
    /* In elements, one per dimension. */
    int64_t source_start[TOW_RANK_MAX];
    int64_t target_start[TOW_RANK_MAX];
    int64_t extent[TOW_RANK_MAX];
} tow_piece_t;

/* One worker's part of a transfer. The pieces of a target shard cover it
 * exactly; both ends compute the same numbers and offsets. In the order of
 * their numbers, the pieces of a target shard are contiguous from offset 0 on,
 * packed or not. A shard without elements has none. A piece that stays on the
 * worker is in both lists. */
typedef struct tow_route {
    tow_shape_t source;       /* one shard */
    tow_shape_t target;       /* one shard */
    size_t source_count;      /* local shards of the value */
    const tow_piece_t *sends; /* from local shards; by target, then number */
    size_t send_count;
    const tow_piece_t *receives; /* to local shards; the same order */
    size_t receive_count;
    const uint32_t *target_devices; /* of local shards, in their order */
    size_t target_count;
    /* Some piece is not contiguous in its target: all pieces arrive packed and
     * are unpacked afterwards. */
    bool is_packed;
} tow_route_t;

typedef struct tow_lowered_step {
    /* One of three. A function, loaded for a mapping; 0 for the others. */
    tow_executable_id_t executable;
    const tow_route_t *route;                /* NULL: not a transfer */
    const tow_collective_part_t *collective; /* NULL: not a collective */
    /* Slots. A transfer has an input if this worker has shards of the value,
     * even if it sends none because other replicas are nearer, and an output if
     * it has target shards. */
    const uint32_t *inputs;
    size_t input_count;
    uint32_t first_output; /* slot; the other outputs follow */
    uint32_t output_count; /* results of the function */
    /* Inputs that must not be donated although the function would: they are
     * used later, or twice by this step, or are results, or are arguments that
     * the caller did not donate. Indices into inputs, ascending. */
    const uint32_t *non_donatable;
    size_t non_donatable_count;
    /* Slots with their last use in this step, each once, unused outputs
     * included. Never an argument unless the step consumes it, never a
     * result. */
    const uint32_t *freed;
    size_t freed_count;
    uint32_t node; /* of the client's program, for errors */
    /* Of the node, if the user gave it one that is not its function's; else
     * NULL. */
    const char *name;
    uint32_t index; /* among the steps of all workers */
    bool is_host;   /* the executable is a host function */
    /* The step starts only when its inputs are ready: it has a value whose size
     * is known only at run time, or the program is sequential. */
    bool is_sequential;
    uint32_t time_limit_ms; /* per call of a host function; 0: the default */
    bool is_late;           /* a large transfer: ir/late.c */
    /* Of a late transfer: 1 + the index of a computation. Memory for the target
     * is taken only when `memory_after` has ended on this worker; `sent_before`
     * starts only when this transfer has ended here. 0: no wait. */
    uint32_t memory_after;
    uint32_t sent_before;
} tow_lowered_step_t;

typedef struct tow_lowered {
    uint32_t slot_count;
    uint32_t argument_count;
    const uint32_t *results; /* slots */
    size_t result_count;
    const tow_lowered_step_t *steps;
    size_t step_count;       /* of this worker */
    uint32_t step_count_all; /* of all workers */
} tow_lowered_t;

typedef struct tow_place {
    uint32_t process;
    uint32_t index;  /* local index of the shard at its worker */
    uint32_t device; /* among the worker's devices */
    uint32_t host;   /* equal numbers: the same machine */
} tow_place_t;

typedef struct tow_lower_scope {
    tow_graph_scope_t program;
    /* The executable of a function on a slice. */
    tow_executable_id_t (*executable)(void *context, tow_function_id_t function,
                                      tow_slice_id_t slice);
    /* True if the target worker has devices of the slice. NULL: always. */
    bool (*slice_is_here)(void *context, tow_slice_id_t slice);
    /* The place of a shard. Called for slices of transfers and collectives
     * only, once per shard. The local indices of a worker ascend with its
     * shards. */
    tow_place_t (*place)(void *context, tow_slice_id_t slice, size_t shard);
    uint32_t process; /* of the target worker */
    /* Number of nodes of the client's program. Inserted nodes follow; their
     * steps have the number of the node whose value they move. 0: none
     * inserted. */
    uint32_t client_node_count;
    void *context;
} tow_lower_scope_t;

/* A copy of the program in which every value is used only with its own slice
 * and sharding: each producer gets one transfer for each other slice or
 * sharding that the signatures of its users' functions have. If both ends have
 * unknown shardings and equal numbers of shards of one shape, shard i goes to
 * shard i. The program has passed tow_graph_verify_loose. INVALID_ARGUMENT
 * names the node with an unknown or incompatible sharding. The original nodes
 * keep their numbers; transfers are appended. */
tow_status_t tow_graph_insert_transfers(const tow_graph_t *program,
                                        const tow_graph_scope_t *scope,
                                        tow_graph_t **out_program) TOW_MUST_USE;

/* Lowers the program for one worker. The topological order of the steps depends
 * on the graph alone (lowest node number first; small transfers as early as
 * possible, large ones directly before their first use), so it is the same for
 * all workers. The program has been verified
 * under the same scope. Still, INVALID_ARGUMENT if a function requires the
 * donation of an input that cannot be donated (a required alias), and
 * RESOURCE_EXHAUSTED if a transfer has more than TOW_PIECES_MAX pieces at this
 * worker. tow_lowered_destroy. O(n log n) in nodes and inputs, O(n) if every
 * node comes after its inputs; plus the shards of the slices of transfers, and
 * their pieces at this worker. */
tow_status_t tow_graph_lower(const tow_graph_t *program,
                             const tow_lower_scope_t *scope,
                             tow_lowered_t **out_lowered) TOW_MUST_USE;
void tow_lowered_destroy(tow_lowered_t *lowered);

/* A packed Lowered (towpath.proto), and back. Unpacking checks untrusted bytes:
 * every slot is in range, written once and before it is read, freed at most
 * once and not read after; no result is freed; boxes of pieces are within their
 * shards, and received pieces cover each target exactly. */
tow_status_t tow_lowered_pack(const tow_lowered_t *lowered, void **out_bytes,
                              size_t *out_size) TOW_MUST_USE;
tow_status_t tow_lowered_unpack(const void *bytes, size_t size,
                                tow_lowered_t **out_lowered) TOW_MUST_USE;

/* A step, in the order that all workers share. */
typedef struct tow_step_info {
    tow_slice_id_t slice; /* whose devices it keeps busy */
    bool is_computed;     /* else a transfer or a collective: it keeps none */
    uint32_t depth; /* computations on the longest path that ends with it */
} tow_step_info_t;
/* Writes all steps, in the order of tow_lowered_step_t.index. `out_steps` has
 * room for all nodes. */
tow_status_t tow_graph_steps(const tow_graph_t *program,
                             tow_step_info_t *out_steps, size_t *out_count)
    TOW_MUST_USE;

/* The memory that a run takes on each device of one slice, beside its
 * arguments, by simulating the steps in order. An output lives from its step to
 * its last use, a donated input returns its bytes, temporaries live while their
 * step runs. A late transfer (ir/late.c) takes memory for its output a few
 * computations before its first use, and its input is freed before the
 * computation that waits for it. Any other takes memory from the start of the
 * run, and its input stays until the end of the run. If a transfer arrives
 * packed, it takes as much again until its step. A host function counts like a
 * transfer that is not late.
 * A collective over several devices takes memory for its outputs, and at most
 * as much again for incoming bytes. A run adds result_bytes - donated_bytes. A
 * value that is two results counts once. OUT_OF_RANGE beyond 2^63 - 1 bytes. */
typedef struct tow_graph_cost {
    uint64_t peak_bytes;    /* results, intermediates and temporaries */
    uint64_t result_bytes;  /* of results that are not arguments */
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
    uint32_t bounds; /* bit i: shape.dims[i] is an upper bound */
    /* Index of the argument that is passed through as this result; UINT32_MAX:
     * none. */
    uint32_t argument;
} tow_result_info_t;
tow_status_t tow_graph_result_info(const tow_graph_t *program,
                                   const tow_graph_scope_t *scope, size_t index,
                                   tow_result_info_t *out_info) TOW_MUST_USE;

/* Sets one flag per argument: true if the run consumes it. It does if the node
 * is donated, the last step that uses it donates it (the function's alias), and
 * the argument is neither a result nor two inputs of that step. */
tow_status_t tow_graph_consumed(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                bool *out_consumed) TOW_MUST_USE;
/* The same for one argument, at the cost of all. Also false when memory is
 * exhausted: use tow_graph_consumed for accounting. */
bool tow_graph_consumes(const tow_graph_t *program,
                        const tow_graph_scope_t *scope, size_t index);

#endif /* TOW_IR_LOWER_H_ */
