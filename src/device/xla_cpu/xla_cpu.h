/* What the XLA CPU adapter (libtow_xla_cpu.so) has beside PJRT's own table:
 * create options, the door through which collectives inside a computation come
 * out to us, and two extension nodes for what PJRT's C API has no words for.
 *
 * The adapter is loaded like any PJRT plugin: its one symbol is GetPjrtApi.
 * Options of PJRT_Client_Create, all int64, all optional:
 *
 *   process_id          this worker's incarnation number, never used again by
 *                       another; below TOW_XLA_PROCESS_COUNT_MAX. Devices are
 *                       numbered TOW_XLA_PROCESS_STRIDE * process_id + index.
 *   device_count        1 to TOW_XLA_DEVICE_COUNT_MAX; 1 unless given.
 *   memory_limit_bytes  of each device; an allocation beyond it fails with
 *                       RESOURCE_EXHAUSTED. No limit unless given.
 *   tow_collectives     address of a tow_xla_collectives_t that outlives the
 *                       client. Without it a collective fails, and names this
 *                       option; a gang of one needs none.
 *   tow_calls           address of a tow_xla_calls_t that outlives the client.
 *                       Without it calls of clients' functions fail.
 *   tow_blocks          address of a tow_xla_blocks_t, the same for all clients
 *                       of a process, that outlives it. Without it no memory of
 *                       ours can be shown to other processes.
 *
 * PJRT_Client_CreateUninitializedBuffer gives zeroes: what was in the memory
 * before may be another client's.
 *
 * Programs of the format mlir are StableHLO, text or bytecode; or the bytes of
 * TOW_XLA_HLO_MARK and an xla.HloModuleProto.
 *
 * Plain C on both sides; no XLA type crosses it. */
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

/* No text begins so, and no bytecode. */
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

/* XLA has no others: `and` and `or` of PRED arrive as MIN and MAX. */
typedef enum tow_xla_reduction {
    TOW_XLA_SUM = 1,
    TOW_XLA_PRODUCT,
    TOW_XLA_MIN,
    TOW_XLA_MAX,
} tow_xla_reduction_t;

/* How a member waits that shares its thread with other devices of its process.
 * Whoever waits without it keeps them from running, and may be waiting for just
 * them. */
typedef struct tow_xla_turns {
    size_t struct_size;
    void *context;
    /* Between two looks: lets others use the thread. `is_first`: we have done
     * something since the last call, and not only looked. Nonzero when all look
     * in vain and the thread is about to sleep: then look once more, ready to be
     * woken, and call `sleep`; what comes of it is not told until it returns. */
    int (*pass)(void *context, int is_first);
    /* Until *word is no longer `heard`, or somebody rings that futex, or one of
     * the others can go on; or for no reason. `is_shared`: it lies in memory that
     * processes share. `word` may be NULL: then for a fraction of a millisecond.
     */
    void (*sleep)(void *context, const uint32_t *word, uint32_t heard,
                  int is_shared);
} tow_xla_turns_t;

/* One member's part in one collective. Everything is lent for the call.
 *
 * Members match by (members, run_id, op_id, occurrence), which all of them
 * compute alike without a word between them: members by the executable's device
 * assignment, run_id from whoever started the gang, op_id and occurrence from
 * the program. Collectives of one execution come one after the other. */
typedef struct tow_xla_collective {
    size_t struct_size;
    tow_xla_collective_kind_t kind;
    /* The gang's run, as in tow_xla_execute_options_t. */
    uint64_t run_id;
    /* The channel of the operation, or 0 if it has none. (For those XLA gives a
     * number of the process that compiled it, so it is not passed on.) */
    uint64_t op_id;
    /* How many collectives with this op_id this member has met before in this
     * run with these members: operations in loops, operations of several
     * arrays, and those without a channel share an op_id. */
    uint64_t occurrence;
    const int64_t *members; /* global device ids, in rank order */
    size_t member_count;
    size_t rank;                   /* ours */
    int element_type;              /* PJRT_Buffer_Type */
    tow_xla_reduction_t reduction; /* all-reduce, reduce-scatter */
    /* Elements of one block. All-reduce, broadcast and permute: send and
     * receive are one block. All-gather: send is one, receive is one a member,
     * in rank order. Reduce-scatter: the other way round. All-to-all: one block
     * to and from each member. Barrier: none. */
    size_t element_count;
    size_t element_bytes;
    /* All-to-all: an array of a block a member; else an array of one. Send and
     * receive may be the same memory, except in a permute. */
    const void *const *send;
    void *const *receive;
    size_t root; /* broadcast */
    /* Permute: the rank that we receive from, or SIZE_MAX (then the adapter
     * clears `receive`), and those that we send to. Members that do neither
     * take part too. */
    size_t source;
    const size_t *targets;
    size_t target_count;
    /* NULL: the thread is ours alone. */
    const tow_xla_turns_t *turns;
} tow_xla_collective_t;

typedef struct tow_xla_collectives {
    size_t struct_size;
    void *context;
    /* Does the work on the calling thread, which may be any of XLA's, and
     * returns 0; or returns a tow_code_t and writes why, as a string, into
     * `error`. Then the execution fails with that code and message, and the
     * client stays usable. Must return with an error soon after the gang has
     * been aborted: the device stands still until it returns. */
    int (*run)(void *context, const tow_xla_collective_t *collective,
               char *error, size_t error_capacity);
    /* Nonzero: `run` waits as tow_xla_turns_t wants it. Otherwise every device
     * that comes to a collective has a thread of its own. */
    int takes_turns;
} tow_xla_collectives_t;

/* --- Functions of clients ------------------------------------------------- */

typedef struct tow_xla_room {
    void *data;
    size_t size;
} tow_xla_room_t;

/* A program calls a function that its client has: see callback.h. Everything is
 * lent for the call. */
typedef struct tow_xla_call {
    size_t struct_size;
    uint64_t run_id; /* as in tow_xla_execute_options_t */
    uint64_t function;
    int64_t device;                  /* global id */
    const tow_xla_room_t *arguments; /* to be read */
    size_t argument_count;
    const tow_xla_room_t *results; /* to be filled */
    size_t result_count;
} tow_xla_call_t;

#define TOW_XLA_CALL_ERROR_SIZE 2048

typedef struct tow_xla_calls {
    size_t struct_size;
    void *context;
    /* Fills the results and returns 0; or returns a tow_code_t and why. On a
     * thread of XLA's, which it may block. Must return with an error soon after
     * the gang has been aborted. */
    int (*run)(void *context, const tow_xla_call_t *call, char *error,
               size_t error_capacity);
} tow_xla_calls_t;

/* --- Functions of clients inside the compiler ------------------------------ */

typedef struct tow_xla_bytes {
    const char *data;
    size_t size;
} tow_xla_bytes_t;

/* What XLA's partitioner wants to know of a custom call that only the client can
 * divide among devices. */
typedef enum tow_xla_question_kind {
    /* What one device does: a program, and how it wants operands and result
     * sharded. */
    TOW_XLA_ASK_PARTITION = 1,
    /* How the result is sharded if operands are so. */
    TOW_XLA_ASK_RESULT,
    /* How it had better be if a user wants it like `result`. */
    TOW_XLA_ASK_USER,
    /* Nothing: the client only looks at how operand 0 is sharded. */
    TOW_XLA_ASK_LOOK,
} tow_xla_question_kind_t;

/* The two calls that ask, as JAX names them; the second looks. */
#define TOW_XLA_PARTITION_TARGET "CustomSPMDPartitioning"
#define TOW_XLA_INSPECT_TARGET   "InspectSharding"

typedef struct tow_xla_asked_value {
    tow_xla_bytes_t shape; /* a serialised xla.ShapeProto */
    /* A serialised xla.OpSharding; the data is NULL: there is none (yet). */
    tow_xla_bytes_t sharding;
} tow_xla_asked_value_t;

typedef struct tow_xla_question {
    tow_xla_question_kind_t kind;
    const char *target;     /* of the custom call */
    tow_xla_bytes_t config; /* its: which function of the client's */
    const tow_xla_asked_value_t *operands;
    size_t operand_count;
    tow_xla_asked_value_t result;
} tow_xla_question_t;

typedef struct tow_xla_answer {
    tow_xla_bytes_t program; /* StableHLO */
    const tow_xla_bytes_t *operand_shardings;
    size_t operand_count;
    tow_xla_bytes_t result_sharding; /* the data is NULL: it does not say */
} tow_xla_answer_t;

typedef struct tow_xla_asker {
    size_t struct_size;
    void *context;
    /* Returns 0; or a tow_code_t and why, with which the compilation ends. On a
     * thread of XLA's, which it may block; one question at a time. What the
     * answer points to is lent until the next one. */
    int (*ask)(void *context, const tow_xla_question_t *question,
               tow_xla_answer_t *out_answer, char *error,
               size_t error_capacity);
} tow_xla_asker_t;

/* --- Memory that other processes can be shown ------------------------------ */

/* Where memory for large arrays comes from if it is to be lent: see
 * base/block.h, whose functions these are. Any thread. */
typedef struct tow_xla_blocks {
    size_t struct_size;
    /* Is memory of this size to lie in a block? */
    int (*is_wanted)(size_t size);
    /* Zeroes, aligned to huge pages. NULL: there is none. */
    void *(*take)(size_t size);
    void (*give)(void *base);
    /* Somebody may look at the block that has these bytes for as long as he
     * likes: we write there no more. */
    int (*is_stranded)(const void *bytes);
} tow_xla_blocks_t;

/* --- Options of an execution --------------------------------------------- */

/* A node for PJRT_ExecuteOptions.extension_start; laid out as
 * PJRT_Extension_Base begins. */
#define TOW_XLA_EXECUTE_OPTIONS_TYPE 0x746f7702

/* Run on the calling thread if the device is idle, its queue is empty and all
 * inputs are ready; else as usual. Saves two hops between threads, at the price
 * that PJRT_LoadedExecutable_Execute takes as long as the computation. Has no
 * effect on an execution on several devices, or of a program that calls its client:
 * the calling thread may be who brings the answer. */
#define TOW_XLA_EXECUTE_INLINE 1u

/* The same on any number of devices, but only for a program that is light (see
 * light_impl.hh), and for no longer than TOW_XLA_GUESTS_NS: members of gangs wait
 * for others. What is not finished then belongs to the calling thread, which has
 * to call `turn` (below) now and then until that says 0; waiting for an event
 * does it, too. */
#define TOW_XLA_EXECUTE_HERE 2u

typedef struct tow_xla_execute_options {
    size_t struct_size;
    int type; /* TOW_XLA_EXECUTE_OPTIONS_TYPE */
    void *next;
    /* Names the gang's run: the same on all members, and on no other run that
     * can be under way. PJRT's launch_id has 32 bits, which is too few; without
     * this node it is used, as an unsigned number. */
    uint64_t run_id;
    uint32_t flags;
} tow_xla_execute_options_t;

/* --- What an executable is ------------------------------------------------ */

/* A node in PJRT_Api.extension_start; laid out as PJRT_Extension_Base begins.
 * PJRT 0.90 has no shardings, parameter shapes or aliases. */
#define TOW_XLA_EXTENSION_TYPE 0x746f7701

/* One array as one device sees it: dense and row by row. */
typedef struct tow_xla_array {
    int element_type; /* PJRT_Buffer_Type */
    const int64_t *dimensions;
    size_t dimension_count;
    size_t size_bytes;
    /* A serialised xla.OpSharding of the whole array. The data is NULL when
     * there is none, as in a program for one device; a replicated array has
     * one, of no bytes. */
    tow_xla_bytes_t sharding;
    /* Byte i: which dimension of the program's array dimensions[i] is. Empty: it
     * is dimension i. The sharding counts as the program does. */
    tow_xla_bytes_t order;
} tow_xla_array_t;

/* Output `output` reuses the memory of parameter `parameter`. */
typedef struct tow_xla_alias {
    size_t output;
    size_t parameter;
    /* Nonzero when the program insists; else an execution that is told not to
     * donate the parameter copies it. */
    int must;
} tow_xla_alias_t;

typedef struct tow_xla_signature {
    size_t struct_size;
    const tow_xla_array_t *parameters;
    size_t parameter_count;
    const tow_xla_array_t *outputs;
    size_t output_count;
    const tow_xla_alias_t *aliases; /* by output */
    size_t alias_count;
    /* Indices of the parameters that an execution consumes unless told
     * otherwise (non_donatable_input_indices), in order. */
    const size_t *donated;
    size_t donated_count;
} tow_xla_signature_t;

/* One execution on one device, as it was. Times are of CLOCK_MONOTONIC. */
typedef struct tow_xla_executed {
    int64_t start_ns; /* its inputs were there */
    int64_t end_ns;
    uint64_t run_id;
    char name[40]; /* of the program; cut off */
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
    /* Lends the signature for as long as `executable` lives. */
    struct PJRT_Error *(*signature)(struct PJRT_Executable *executable,
                                    const tow_xla_signature_t **out_signature);
    /* For benchmarks: how long XLA alone takes for `repetition_count`
     * executions, one after the other on the calling thread, without any of our
     * queues, events and checks. For a program on one device, which must be
     * idle; the arguments must be ready and are not donated. */
    struct PJRT_Error *(*time_directly)(
        struct PJRT_LoadedExecutable *executable,
        struct PJRT_Buffer *const *arguments, uint64_t repetition_count,
        uint64_t *out_ns);
    /* A buffer whose bytes are still to come. Executions and copies may be
     * enqueued behind it; exactly one of `fulfil` and `fail` must follow while
     * the handle lives, whether it was donated meanwhile or not. */
    struct PJRT_Error *(*promise)(struct PJRT_Device *device, int element_type,
                                  const int64_t *dimensions,
                                  size_t dimension_count,
                                  struct PJRT_Buffer **out_buffer);
    /* The bytes, dense and row major, with one of PJRT_HostBufferSemantics. The
     * event says when `data` is needed no more. An error leaves the promise as
     * it was: then it must `fail`. */
    struct PJRT_Error *(*fulfil)(struct PJRT_Buffer *buffer, const void *data,
                                 int host_buffer_semantics,
                                 struct PJRT_Event **out_done);
    void (*fail)(struct PJRT_Buffer *buffer, int code, const char *message,
                 size_t message_size);
    /* Goes on with what TOW_XLA_EXECUTE_HERE has left to the calling thread.
     * Nonzero while there is more. */
    int (*turn)(void);
    /* The memory of a buffer that someone refers to from outside is lent to
     * another process (`begins`), or no longer. While it is, and nobody else has
     * the buffer, its bytes count as that process's, not as ours. */
    void (*lend)(struct PJRT_Buffer *buffer, int begins);
    /* The last executions of a device, oldest first; returns how many. It begins
     * to remember them with the first call. One caller at a time. */
    size_t (*executed)(struct PJRT_Device *device, tow_xla_executed_t *out,
                       size_t capacity);
    /* Whom compilations of this process ask from now on, one compilation at a
     * time; without one programs that ask are refused. Lent for good. */
    void (*set_asker)(const tow_xla_asker_t *asker);
} tow_xla_extension_t;

#ifdef __cplusplus
}
#endif

#endif /* TOW_DEVICE_XLA_CPU_H_ */
