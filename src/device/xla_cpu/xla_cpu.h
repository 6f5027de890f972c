/* The contract between the XLA CPU adapter (libtow_xla_cpu.so, C++) and its
 * users (C): everything that PJRT's own C API cannot express. Plain C types
 * only; no XLA type crosses this border.
 *
 * The adapter is loaded like any PJRT plugin, through GetPjrtApi. On top of the
 * PJRT table it takes
 *   - options of PJRT_Client_Create (below),
 *   - tow_xla_execute_options_t, an extension of PJRT_ExecuteOptions,
 * and offers tow_xla_extension_t, an extension of PJRT_Api. A change of this
 * file also changes the number in abi.h, by which the driver refuses an adapter
 * that was built from another version.
 *
 * Options of PJRT_Client_Create, all int64, all optional:
 *
 *   process_id          incarnation number of the worker process, never reused;
 *                       below TOW_XLA_PROCESS_COUNT_MAX. The id of a device is
 *                       TOW_XLA_PROCESS_STRIDE * process_id + index.
 *   device_count        1 to TOW_XLA_DEVICE_COUNT_MAX; default 1.
 *   memory_limit_bytes  of each device; an allocation beyond it fails with
 *                       RESOURCE_EXHAUSTED. Default: no limit.
 *   tow_collectives     address of a tow_xla_collectives_t that outlives the
 *                       client. Without it, collectives of more than one member
 *                       fail with an error that names this option.
 *   tow_calls           address of a tow_xla_calls_t that outlives the client.
 *                       Without it, calls of client functions fail.
 *   tow_blocks          address of a tow_xla_blocks_t, the same for all clients
 *                       of the process, that outlives them. Without it, device
 *                       memory cannot be shared with other processes.
 *
 * PJRT_Client_CreateUninitializedBuffer returns zeroes, because the memory may
 * hold data of another client.
 *
 * A program of format "mlir" is StableHLO (text or bytecode), or the bytes of
 * TOW_XLA_HLO_MARK followed by a serialised xla.HloModuleProto. */
#ifndef TOW_DEVICE_XLA_CPU_H_
#define TOW_DEVICE_XLA_CPU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOW_XLA_PROCESS_STRIDE    2048
#define TOW_XLA_PROCESS_COUNT_MAX (1 << 20)
#define TOW_XLA_DEVICE_COUNT_MAX  256
#define TOW_XLA_GANG_SIZE_MAX     (1 << 20)

/* The prefix of a serialised xla.HloModuleProto. Neither StableHLO text nor
 * MLIR bytecode begins with these bytes. */
#define TOW_XLA_HLO_MARK "\xefHLO\r\n"

/* --- Collectives --------------------------------------------------------- */

typedef enum tow_xla_collective_kind {
    TOW_XLA_ALL_REDUCE = 1,
    TOW_XLA_REDUCE_SCATTER,
    TOW_XLA_ALL_GATHER,
    TOW_XLA_ALL_TO_ALL,
    TOW_XLA_PERMUTE,
    TOW_XLA_BROADCAST,
    TOW_XLA_BARRIER,
} tow_xla_collective_kind_t;

/* XLA's CPU compiler emits no others; it lowers `and` and `or` of PRED to MIN
 * and MAX. */
typedef enum tow_xla_reduction {
    TOW_XLA_SUM = 1,
    TOW_XLA_PRODUCT,
    TOW_XLA_MIN,
    TOW_XLA_MAX,
} tow_xla_reduction_t;

/* How a collective waits when it runs on a fiber, that is, when its thread also
 * runs the executions of other devices. It must not block the thread, because
 * the member that it waits for may be a fiber of the same thread. */
typedef struct tow_xla_fiber_ops {
    size_t struct_size;
    void *context;
    /* Runs the other fibers of this thread; call it between two polls.
     * `is_first` is nonzero if the caller has made progress since the previous
     * call. Returns nonzero when no fiber of the thread has made progress and
     * the thread is about to sleep: the caller must then register as a waiter,
     * poll once more, and call `sleep`. */
    int (*yield)(void *context, int is_first);
    /* Sleeps while the futex *word equals `expected`. Returns when the futex is
     * woken, when another fiber of the thread can continue, or spuriously.
     * `is_shared`: the futex lies in memory shared between processes. `word`
     * may be NULL: sleeps for a fraction of a millisecond. */
    void (*sleep)(void *context, const uint32_t *word, uint32_t expected,
                  int is_shared);
} tow_xla_fiber_ops_t;

/* One member's part in one collective. All pointers are valid during the call
 * only.
 *
 * Members match each other by (members, run_id, op_id, occurrence). Every
 * member computes this key locally: `members` comes from the executable's
 * device assignment, `run_id` from the execute options, `op_id` and
 * `occurrence` from the program. The collectives of one execution come one
 * after another. */
typedef struct tow_xla_collective {
    size_t struct_size;
    tow_xla_collective_kind_t kind;
    uint64_t run_id; /* of the gang's run: see tow_xla_execute_options_t */
    /* Channel of the operation; 0 if it has none. (XLA numbers operations
     * without a channel per compiling process, so that number is of no use.) */
    uint64_t op_id;
    /* How many collectives with this op_id and these members this member has
     * run before in this run. Operations in loops, operations on several arrays
     * and operations without a channel share an op_id. */
    uint64_t occurrence;
    const int64_t *members; /* global device ids, in rank order */
    size_t member_count;
    size_t rank;                   /* of this member */
    int element_type;              /* PJRT_Buffer_Type */
    tow_xla_reduction_t reduction; /* all-reduce, reduce-scatter */
    /* Elements of one block. All-reduce, broadcast and permute send one block
     * and receive one. All-gather sends one and receives one per member, in
     * rank order. Reduce-scatter sends one per member and receives one.
     * All-to-all sends one block to each member and receives one from each. A
     * barrier carries no data. */
    size_t element_count;
    size_t element_bytes;
    /* All-to-all: one pointer per member. All others: one pointer. Send and
     * receive may be the same memory, except in a permute. */
    const void *const *send;
    void *const *receive;
    size_t root; /* broadcast */
    /* Permute: the rank to receive from, or SIZE_MAX for none (the adapter then
     * clears `receive`), and the ranks to send to. A member that neither sends
     * nor receives takes part too. */
    size_t source;
    const size_t *targets;
    size_t target_count;
    /* NULL: the collective may block its thread. */
    const tow_xla_fiber_ops_t *fiber_ops;
    /* May be NULL. `run` adds the time in which this member waited for others;
     * time in which its thread ran other fibers is part of that. */
    uint64_t *wait_ns;
} tow_xla_collective_t;

typedef struct tow_xla_collectives {
    size_t struct_size;
    void *context;
    /* Runs this member's part on the calling thread, which may be any thread of
     * XLA's. Returns 0; or a tow_code_t, with a message in `error`, with which
     * the execution fails while the client stays usable. Must return an error
     * soon after the run has been aborted: the device is blocked until then. */
    int (*run)(void *context, const tow_xla_collective_t *collective,
               char *error, size_t error_capacity);
    /* Nonzero: `run` honours tow_xla_fiber_ops_t. Otherwise programs with
     * collectives never run on fibers. */
    int supports_fibers;
} tow_xla_collectives_t;

/* --- Client functions called by programs ---------------------------------- */

/* The memory of one argument or result. */
typedef struct tow_xla_call_array {
    void *data;
    size_t size;
} tow_xla_call_array_t;

/* One call of a client function by a program (callback.h). All pointers are
 * valid during the call only. */
typedef struct tow_xla_call {
    size_t struct_size;
    uint64_t run_id; /* see tow_xla_execute_options_t */
    uint64_t function;
    int64_t device;                        /* global id */
    const tow_xla_call_array_t *arguments; /* read by the callee */
    size_t argument_count;
    const tow_xla_call_array_t *results; /* filled by the callee */
    size_t result_count;
} tow_xla_call_t;

#define TOW_XLA_CALL_ERROR_SIZE 2048

typedef struct tow_xla_calls {
    size_t struct_size;
    void *context;
    /* Fills the results and returns 0; or returns a tow_code_t, with a message
     * in `error`. Called on a thread of XLA's, which it may block. Must return
     * an error soon after the run has been aborted. */
    int (*run)(void *context, const tow_xla_call_t *call, char *error,
               size_t error_capacity);
} tow_xla_calls_t;

/* --- Partition queries ---------------------------------------------------- */

typedef struct tow_xla_bytes {
    const char *data;
    size_t size;
} tow_xla_bytes_t;

/* Custom calls that only the client knows how to partition among devices
 * (jax.experimental.custom_partitioning). During compilation XLA's partitioner
 * sends the client a query about each, and the client replies. */
typedef enum tow_xla_partition_query_kind {
    /* The program that one device runs, and the shardings of the operands and
     * of the result that this program needs. */
    TOW_XLA_QUERY_PARTITION = 1,
    /* The sharding of the result, given the shardings of the operands. */
    TOW_XLA_QUERY_RESULT_SHARDING,
    /* The preferred sharding of the result, given that an operation which uses
     * it wants `result.sharding`. */
    TOW_XLA_QUERY_USER_SHARDING,
    /* Shows the client the sharding of operand 0; the reply is empty. */
    TOW_XLA_QUERY_INSPECT,
} tow_xla_partition_query_kind_t;

/* The targets of these custom calls, named by JAX. Calls of the second send
 * TOW_XLA_QUERY_INSPECT only. */
#define TOW_XLA_PARTITION_TARGET "CustomSPMDPartitioning"
#define TOW_XLA_INSPECT_TARGET   "InspectSharding"

typedef struct tow_xla_partition_value {
    tow_xla_bytes_t shape; /* a serialised xla.ShapeProto */
    /* A serialised xla.OpSharding; `data` is NULL if there is none (yet). */
    tow_xla_bytes_t sharding;
} tow_xla_partition_value_t;

typedef struct tow_xla_partition_query {
    tow_xla_partition_query_kind_t kind;
    const char *target;     /* of the custom call */
    tow_xla_bytes_t config; /* of the custom call: names the client function */
    const tow_xla_partition_value_t *operands;
    size_t operand_count;
    tow_xla_partition_value_t result;
} tow_xla_partition_query_t;

typedef struct tow_xla_partition_reply {
    tow_xla_bytes_t program; /* StableHLO */
    const tow_xla_bytes_t *operand_shardings;
    size_t operand_count;
    tow_xla_bytes_t result_sharding; /* `data` is NULL: no preference */
} tow_xla_partition_reply_t;

typedef struct tow_xla_query_handler {
    size_t struct_size;
    void *context;
    /* Replies to a query and returns 0; or returns a tow_code_t, with a message
     * in `error`, with which the compilation fails. Called on a thread of
     * XLA's, which it may block; one query at a time. The reply's pointers stay
     * valid until the next query. */
    int (*query)(void *context, const tow_xla_partition_query_t *question,
                 tow_xla_partition_reply_t *out_answer, char *error,
                 size_t error_capacity);
} tow_xla_query_handler_t;

/* --- Memory shared with other processes ----------------------------------- */

/* The allocator of large arrays whose memory can be mapped by other processes
 * of the host without a copy: the functions of base/block.h. Any thread. */
typedef struct tow_xla_blocks {
    size_t struct_size;
    /* Nonzero: allocate memory of this size here rather than privately. */
    int (*is_preferred)(size_t size);
    /* Zeroed, aligned to huge pages. NULL: no block is left. */
    void *(*alloc)(size_t size);
    void (*free)(void *base);
    /* Nonzero: another process may keep the block at this address mapped for an
     * unknown time, so it must never be written to or reused. */
    int (*is_quarantined)(const void *bytes);
} tow_xla_blocks_t;

/* --- Options of an execution --------------------------------------------- */

/* Type of a node in PJRT_ExecuteOptions.extension_start. The node begins like
 * PJRT_Extension_Base. */
#define TOW_XLA_EXECUTE_OPTIONS_TYPE 0x746f7702

/* Run to completion on the calling thread if the program runs on one device,
 * the device is idle and all inputs are ready; otherwise enqueue as usual.
 * Saves two thread switches, at the price that PJRT_LoadedExecutable_Execute
 * takes as long as the computation. Ignored for programs that call client
 * functions, because the calling thread may be the one that delivers the reply.
 */
#define TOW_XLA_EXECUTE_INLINE 1u

/* Run as fibers on the calling thread, one per device, if the program is safe
 * to run on fibers (fiber_safety_impl.hh), all its devices are idle and all
 * inputs are ready; otherwise enqueue as usual. The call returns after at most
 * TOW_XLA_INLINE_LIMIT_NS, because members of a gang wait for each other.
 * Unfinished fibers stay on the calling thread, which must call `progress`
 * (below) until it returns 0; waiting for an event does so too. */
#define TOW_XLA_EXECUTE_INLINE_FIBERS 2u

typedef struct tow_xla_execute_options {
    size_t struct_size;
    int type; /* TOW_XLA_EXECUTE_OPTIONS_TYPE */
    void *next;
    /* Identifies the gang's run: the same on all members, and unique among runs
     * in flight. Without this node the adapter uses PJRT's launch_id, unsigned,
     * whose 32 bits are too few for a long-lived cluster. */
    uint64_t run_id;
    uint32_t flags;
} tow_xla_execute_options_t;

/* --- The signature of an executable --------------------------------------- */

/* PJRT 0.90 reports neither shardings nor parameter shapes nor aliases. */

/* One parameter or output on one device: dense, row-major. */
typedef struct tow_xla_array {
    int element_type; /* PJRT_Buffer_Type */
    const int64_t *dimensions;
    size_t dimension_count;
    size_t size_bytes;
    /* A serialised xla.OpSharding of the whole array. `data` is NULL if there
     * is none, as in a program for one device; a replicated array has one of
     * zero bytes. */
    tow_xla_bytes_t sharding;
    /* For a layout other than row-major: dimensions[i] is dimension order[i] of
     * the program's array. Empty: dimensions are in the program's order. The
     * sharding always uses the program's order. */
    tow_xla_bytes_t order;
} tow_xla_array_t;

/* Output `output` reuses the memory of parameter `parameter`. */
typedef struct tow_xla_alias {
    size_t output;
    size_t parameter;
    /* Nonzero: the alias is mandatory. Zero: an execution that must not donate
     * the parameter copies it instead. */
    int must;
} tow_xla_alias_t;

typedef struct tow_xla_signature {
    size_t struct_size;
    const tow_xla_array_t *parameters;
    size_t parameter_count;
    const tow_xla_array_t *outputs;
    size_t output_count;
    const tow_xla_alias_t *aliases; /* ordered by output */
    size_t alias_count;
    /* Indices of the parameters that an execution donates unless they are in
     * non_donatable_input_indices, in ascending order. */
    const size_t *donated;
    size_t donated_count;
} tow_xla_signature_t;

/* --- The extension of PJRT_Api -------------------------------------------- */

/* Type of a node in PJRT_Api.extension_start. The node begins like
 * PJRT_Extension_Base. */
#define TOW_XLA_EXTENSION_TYPE 0x746f7701

/* A finished execution on one device, for traces. Times are CLOCK_MONOTONIC. */
typedef struct tow_xla_executed {
    int64_t start_ns; /* all inputs were ready */
    int64_t end_ns;
    uint64_t run_id;
    char name[40]; /* of the program; truncated */
} tow_xla_executed_t;

struct PJRT_Buffer;
struct PJRT_Device;
struct PJRT_Error;
struct PJRT_Event;
struct PJRT_Executable;
struct PJRT_LoadedExecutable;

typedef struct tow_xla_extension {
    size_t struct_size;
    int type; /* TOW_XLA_EXTENSION_TYPE */
    void *next;
    /* The signature stays valid as long as `executable` lives. */
    struct PJRT_Error *(*signature)(struct PJRT_Executable *executable,
                                    const tow_xla_signature_t **out_signature);
    /* For benchmarks: the time that XLA alone takes for `repetition_count`
     * executions in a row on the calling thread, without the adapter's queues,
     * events and checks. The program must run on one device, which must be
     * idle; the arguments must be ready and are not donated. */
    struct PJRT_Error *(*time_directly)(
        struct PJRT_LoadedExecutable *executable,
        struct PJRT_Buffer *const *arguments, uint64_t repetition_count,
        uint64_t *out_ns);
    /* Creates a buffer whose value arrives later. Executions and copies that
     * use it may be enqueued at once. Exactly one of `fulfil` and `fail` must
     * follow before the handle is destroyed, even if the buffer has been
     * donated. */
    struct PJRT_Error *(*promise)(struct PJRT_Device *device, int element_type,
                                  const int64_t *dimensions,
                                  size_t dimension_count,
                                  struct PJRT_Buffer **out_buffer);
    /* Supplies the value: dense, row-major, with one of
     * PJRT_HostBufferSemantics. `out_done` becomes ready when `data` is no
     * longer read. After an error the caller must call `fail`. */
    struct PJRT_Error *(*fulfil)(struct PJRT_Buffer *buffer, const void *data,
                                 int host_buffer_semantics,
                                 struct PJRT_Event **out_done);
    void (*fail)(struct PJRT_Buffer *buffer, int code, const char *message,
                 size_t message_size);
    /* Runs the unfinished fibers that executions with
     * TOW_XLA_EXECUTE_INLINE_FIBERS have left on the calling thread. Nonzero
     * while any remains. */
    int (*progress)(void);
    /* Notes that another process begins (`begins` nonzero) or ends to share the
     * memory of `buffer`, which the caller holds by an external reference. A
     * buffer that is only held for such shares is not charged to its device. */
    void (*share)(struct PJRT_Buffer *buffer, int begins);
    /* Copies the latest executions of a device, oldest first, and returns how
     * many. The first call starts the recording. One caller at a time. */
    size_t (*executed)(struct PJRT_Device *device, tow_xla_executed_t *out,
                       size_t capacity);
    /* Sets the handler of partition queries for all later compilations of this
     * process; the caller must compile one program at a time. Without a
     * handler, programs that need one are refused. `handler` must stay valid
     * until the process ends. */
    void (*set_query_handler)(const tow_xla_query_handler_t *handler);
    /* For tests: how many graphs of library fusions were built in this process,
     * each under a lock (library_graphs.cc). */
    uint64_t (*library_graph_count)(void);
    /* How long an execution kept its device: computing, and waiting in
     * collectives. Zero for one that did not start. `event` is one of
     * device_complete_events, and ready. */
    void (*device_time)(const struct PJRT_Event *event, uint64_t *out_busy_ns,
                        uint64_t *out_wait_ns);
    /* Counts memory of the caller as the device's, in bytes_in_use and in the
     * peaks but not against the limit; negative when it no longer is. Memory
     * that a buffer uses without a copy is counted anyway. */
    void (*borrow)(struct PJRT_Device *device, int64_t bytes);
    /* The peak of bytes_in_use since the last call. */
    int64_t (*recent_peak)(struct PJRT_Device *device);
} tow_xla_extension_t;

#ifdef __cplusplus
}
#endif

#endif /* TOW_DEVICE_XLA_CPU_H_ */
