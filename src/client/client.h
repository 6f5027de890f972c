/* For sibling modules: the client's state machine on an env of their own, as
 * simulations drive it. Programs use include/towpath/towpath.h.
 *
 * The functions here are for the one thread that turns the env, or for a
 * thread that holds the client's lock (env/net/locked_net.h); "Locked" says so
 * below. None of them waits: an operation that has an answer has a
 * tow_completion_t that its answer settles. In a simulation callbacks run at
 * once, in the turn that has the answer. */
#ifndef TOW_CLIENT_CLIENT_H_
#define TOW_CLIENT_CLIENT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <towpath/towpath.h>

#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "env/env.h"
#include "ir/graph.h"

/* The completion of an operation; settled once. */
typedef struct tow_completion {
    bool settled;
    tow_status_t error; /* owned */
} tow_completion_t;

/* A callback of the user's. From tow_calloc; the function that takes it frees
 * it. */
typedef struct tow_callback {
    tow_list_t node;
    void (*done)(void *context, tow_status_t take_status); /* or NULL: */
    void (*plain)(void *context);
    void *context;
    tow_status_t status; /* owned */
    /* It may be delayed: no thread needs to poll for it. */
    bool is_patient;
    bool is_lent; /* it is embedded in an object, which its call may free */
    bool is_due;  /* locked: it is about to be called */
} tow_callback_t;

/* Supervises the cluster, and knows whether it has ended for good. */
typedef struct tow_cluster_monitor {
    /* Locked; called before each redial. An error: the cluster will not come
     * back, and why. NULL: unknown. */
    tow_status_t (*check)(void *context);
    void *context; /* borrowed */
} tow_cluster_monitor_t;

typedef struct tow_client_dial_options {
    const char *address;
    const char *name; /* for display; NULL: the env's, which is unique */
    int64_t connect_timeout_ns; /* for the first connection */
    tow_cluster_monitor_t monitor;
    struct tow_locked_net *net; /* NULL in a simulation */
} tow_client_dial_options_t;

/* Dials; tow_client_opening settles. If the controller disconnects later, the
 * client redials for as long as it is open. */
tow_status_t tow_client_dial(tow_env_t *env,
                             const tow_client_dial_options_t *options,
                             tow_client_t **out_client) TOW_MUST_USE;
/* Ends the session: all operations under way settle with CANCELLED. */
void tow_client_shut(tow_client_t *client);
/* After tow_client_shut: nothing is under way any more. */
bool tow_client_is_quiet(const tow_client_t *client);
/* For a simulated process that has crashed: calls neither the env nor any
 * callback. The user releases its references after this. */
void tow_client_discard(tow_client_t *client);
/* When it is quiet or discarded, and everything made from it has been
 * released. */
void tow_client_free(tow_client_t *client);

const tow_completion_t *tow_client_opening(const tow_client_t *client);
/* TOW_OK, or why there is no cluster now. Borrowed. */
tow_status_t tow_client_disconnect_cause(const tow_client_t *client);
/* Counts disconnections from the cluster. Everything made in an earlier
 * generation is lost: every use is UNAVAILABLE. On any thread. */
uint32_t tow_client_generation(const tow_client_t *client);
/* Checks the invariants of all records. O(everything). */
void tow_client_check(const tow_client_t *client);
/* Runs that have not completed. */
size_t tow_client_run_count(const tow_client_t *client);

tow_status_t tow_slice_open_start(tow_client_t *client,
                                  const tow_slice_options_t *options,
                                  tow_slice_t **out_slice) TOW_MUST_USE;
const tow_completion_t *tow_slice_opening(const tow_slice_t *slice);
/* The newest version of StableHLO that the compilers for all its devices
 * accept, "1.13.7"; "": unknown. Borrowed from the slice, which is open. */
const char *tow_slice_stablehlo(const tow_slice_t *slice);
void tow_slice_retain_locked(tow_slice_t *slice);
void tow_slice_release_locked(tow_slice_t *slice);

tow_status_t tow_function_compile_start(tow_slice_t *slice,
                                        const tow_source_t *source,
                                        tow_function_t **out_function)
    TOW_MUST_USE;
/* The same for a program whose compiler sends partition queries. The code is
 * for this function only. */
tow_status_t tow_function_compile_start_with_queries(
    tow_slice_t *slice, const tow_source_t *source,
    tow_function_t **out_function) TOW_MUST_USE;
/* Settles when there is a query (device/partition_query.h), or when
 * tow_function_compiling has settled. */
const tow_completion_t *tow_function_query_completion(
    const tow_function_t *function);
/* The caller owns it (tow_free), and replies. NULL: there is none.
 * tow_function_query_completion may settle again after it. */
void *tow_function_take_partition_query(tow_function_t *function,
                                        size_t *out_size);
/* Takes the bytes; or an error, with which the compilation fails. */
void tow_function_partition_reply(tow_function_t *function, void *take_bytes,
                                  size_t size, tow_status_t take_status);
/* A host function: `bytes` is a shared object, `signature` its declaration. */
tow_status_t tow_host_function_load_start(tow_slice_t *slice, tow_bytes_t bytes,
                                          const tow_signature_t *signature,
                                          uint32_t time_limit_ms,
                                          tow_function_t **out_function)
    TOW_MUST_USE;
const tow_completion_t *tow_function_compiling(const tow_function_t *function);
void tow_function_retain_locked(tow_function_t *function);
void tow_function_release_locked(tow_function_t *function);
/* The program of a call, made at the first call. Borrowed. */
tow_status_t tow_function_program(tow_function_t *function, tow_slice_t *slice,
                                  tow_program_t **out_program) TOW_MUST_USE;

tow_status_t tow_program_begin(tow_client_t *client, const char *name,
                               tow_program_t **out_program) TOW_MUST_USE;
/* During tracing: no step of the program starts before its data exists. */
tow_status_t tow_program_make_sequential(tow_program_t *program) TOW_MUST_USE;
void tow_program_retain_locked(tow_program_t *program);
void tow_program_release_locked(tow_program_t *program);
tow_status_t tow_program_add_argument(tow_program_t *program,
                                      tow_slice_t *slice,
                                      const tow_shape_t *shape, bool donated,
                                      tow_value_t *out_value) TOW_MUST_USE;
/* The same for an argument with a known sharding: calls on other slices can use
 * it. NULL: unknown. */
tow_status_t tow_program_add_sharded_argument(
    tow_program_t *program, tow_slice_t *slice, const tow_shape_t *shape,
    const tow_sharding_t *sharding, bool donated, tow_value_t *out_value)
    TOW_MUST_USE;
tow_status_t tow_program_add_call(tow_program_t *program,
                                  tow_function_t *function, tow_slice_t *slice,
                                  const tow_value_t *inputs, size_t count,
                                  uint32_t *out_node) TOW_MUST_USE;
/* The same for a node with a name of its own; at most TOW_NAME_MAX bytes. */
tow_status_t tow_program_add_named_call(tow_program_t *program,
                                        tow_function_t *function,
                                        tow_slice_t *slice, const char *name,
                                        const tow_value_t *inputs, size_t count,
                                        uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_program_add_transfer(tow_program_t *program, tow_value_t value,
                                      tow_slice_t *slice,
                                      const tow_sharding_t *from,
                                      const tow_sharding_t *to,
                                      uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_program_add_collective(tow_program_t *program,
                                        tow_slice_t *slice,
                                        const tow_collective_t *collective,
                                        const tow_value_t *inputs, size_t count,
                                        uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_program_add_result(tow_program_t *program, tow_value_t value,
                                    tow_slice_t *slice,
                                    const tow_shape_t *shape) TOW_MUST_USE;
/* The complete shardings that the options describe; INVALID_ARGUMENT. */
tow_status_t tow_array_shardings(const tow_array_t *array,
                                 const tow_slice_t *slice,
                                 const tow_transfer_options_t *options,
                                 tow_sharding_t *out_from,
                                 tow_sharding_t *out_to) TOW_MUST_USE;
/* The value of an array on `slice`: added to the program if the array is being
 * traced, else run at once. */
tow_status_t tow_array_move(tow_array_t *array, tow_slice_t *slice,
                            const tow_sharding_t *from,
                            const tow_sharding_t *to, tow_array_t **out_array)
    TOW_MUST_USE;
/* Combines each array over the devices of their common slice: added to the
 * program if they are being traced, else run at once. */
tow_status_t tow_arrays_combine(tow_array_t *const *arrays, size_t count,
                                const tow_collective_t *collective,
                                tow_array_t **results) TOW_MUST_USE;
/* A value of a program under trace. */
tow_status_t tow_program_placeholder(tow_program_t *program, tow_slice_t *slice,
                                     const tow_shape_t *shape,
                                     tow_value_t place, tow_array_t **out_array)
    TOW_MUST_USE;
/* Sends it; tow_program_adding settles. */
tow_status_t tow_program_send(tow_program_t *program) TOW_MUST_USE;
const tow_completion_t *tow_program_adding(const tow_program_t *program);
tow_status_t tow_program_start(tow_program_t *program,
                               tow_array_t *const *arguments,
                               size_t argument_count, tow_array_t **results,
                               size_t result_count) TOW_MUST_USE;

/* The same in two steps. First the array of one result, one reference: a
 * promise, which can be waited for, but not be used before the run has started.
 */
tow_status_t tow_program_promise(tow_program_t *program, size_t result,
                                 tow_array_t **out_array) TOW_MUST_USE;
/* Then the run that makes the promises of all results, in order. On an error
 * they are still promises, and it may be repeated. */
tow_status_t tow_program_start_promised(tow_program_t *program,
                                        tow_array_t *const *arguments,
                                        size_t argument_count,
                                        tow_array_t *const *promises,
                                        size_t result_count) TOW_MUST_USE;
/* No run will make it: it fails. */
void tow_program_break_promise(tow_array_t *promise, tow_status_t take_status);

void tow_array_retain_locked(tow_array_t *array);
void tow_array_release_locked(tow_array_t *array);
/* As tow_array_cancel. */
void tow_array_cancel_locked(tow_array_t *array);
const tow_completion_t *tow_array_value(const tow_array_t *array);
/* Takes the callback. */
void tow_array_call_when_ready(tow_array_t *array,
                               tow_callback_t *take_callback);

/* With inlined bytes `bytes_free` settles at once. */
tow_status_t tow_upload_start(tow_slice_t *slice,
                              const tow_upload_options_t *options,
                              const tow_shape_t *shape, uint64_t shard_bytes,
                              tow_completion_t *bytes_free,
                              tow_array_t **out_array) TOW_MUST_USE;
/* One of `answer` and `take_callback`, which is taken only on success. */
tow_status_t tow_download_start(tow_array_t *array, size_t shard, void *bytes,
                                size_t size, tow_completion_t *answer,
                                tow_callback_t *take_callback) TOW_MUST_USE;

/* The same for a shard that may be smaller than the room; also returns its
 * shape. */
tow_status_t tow_download_sized_start(tow_array_t *array, size_t shard,
                                      void *bytes, size_t size,
                                      tow_shape_t *out_shape,
                                      tow_completion_t *answer) TOW_MUST_USE;

/* -- Cached values --------------------------------------------------------- */

/* The bytes of a shard that this process has: of a small upload, or of a small
 * result that was prefetched. They never change. Counted, on any thread. */
typedef struct tow_cached_value {
    atomic_uint reference_count;
    uint32_t shard; /* TOW_CACHED_EVERY_SHARD: they are all the same */
    struct tow_cached_value *next; /* locked: of the same array */
    size_t size;
    _Alignas(16) uint8_t bytes[];
} tow_cached_value_t;
#define TOW_CACHED_EVERY_SHARD UINT32_MAX

void tow_cached_value_retain(tow_cached_value_t *cached);
/* NULL is harmless. */
void tow_cached_value_release(tow_cached_value_t *cached);
/* Locked. Counts as a read of the shard. Borrowed from the array; NULL: not
 * cached. */
tow_cached_value_t *tow_array_cached_value(tow_array_t *array, size_t shard);
/* Locked: a prefetch of it is under way, so a small download completes soon. */
bool tow_array_is_prefetched(const tow_array_t *array);

/* -- Assembling and copying shards ----------------------------------------- */

/* A new array whose shard i is shard shards[i] of sources[i], on the same
 * device, which is device i of the slice. They share memory. It is ready when
 * its sources are. */
tow_status_t tow_assemble_start(tow_slice_t *slice, tow_array_t *const *sources,
                                const uint32_t *shards, tow_array_t **out_array)
    TOW_MUST_USE;
/* A new array with the value of one shard, on a slice of one device. */
tow_status_t tow_copy_start(tow_slice_t *slice, tow_array_t *source,
                            uint32_t shard, tow_array_t **out_array)
    TOW_MUST_USE;

/* -- Callbacks of computations --------------------------------------------- */

/* A computation of this client calls a function, and waits for the answer. */
typedef struct tow_callback_call {
    uint64_t number;
    uint32_t generation; /* locked: of the client, when it arrived */
    uint64_t function;   /* as the program names it */
    int64_t device;      /* the caller */
    void *bytes;         /* owned: all arguments, concatenated */
    size_t size;
    size_t result_size; /* expected bytes of results */
    tow_list_t node;    /* for the use of its holder */
} tow_callback_call_t;

typedef struct tow_callback_server {
    /* Locked, once a call. The callee answers it later, on any thread that
     * holds the lock. */
    void (*called)(void *context, tow_callback_call_t *take_request);
    void *context; /* borrowed */
} tow_callback_server_t;

/* Copied. Without a server programs that call back fail. */
void tow_client_set_callback_server(
    tow_client_t *client, const tow_callback_server_t *callback_server);
/* A run that takes long. Borrowed for the call. */
typedef struct tow_stalled_run {
    uint64_t run; /* its number, among those of this client */
    uint64_t waited_ns;
    const char *text; /* for display: which run, how long, what stalls it */
} tow_stalled_run_t;

typedef struct tow_stall_watcher {
    /* Locked; called repeatedly for the oldest run. True: cancels it; it fails
     * with DEADLINE_EXCEEDED and the same text. */
    bool (*stalled)(void *context, const tow_stalled_run_t *run);
    void *context; /* borrowed */
} tow_stall_watcher_t;

/* Locked. Copied. */
void tow_client_set_stall_watcher(tow_client_t *client,
                                  const tow_stall_watcher_t *stall_watcher);
/* `results`: `result_size` bytes, borrowed for the call; ignored if the status
 * is an error, with which the run then fails. */
void tow_client_callback_reply(tow_client_t *client,
                               tow_callback_call_t *take_request,
                               const void *results, tow_status_t take_status);

/* -- For siblings that lock the net themselves ----------------------------- */

/* Borrowed; NULL in a simulation. See env/net/locked_net.h. */
struct tow_locked_net *tow_client_locked_net(const tow_client_t *client);
/* Locked: waits until another run may be started. FAILED_PRECONDITION in
 * callbacks. */
tow_status_t tow_client_await_room(tow_client_t *client) TOW_MUST_USE;
/* The same for an upload of so many bytes. */
tow_status_t tow_client_await_upload(tow_client_t *client, size_t size)
    TOW_MUST_USE;
/* Unlocks after a call that started an operation; flushes at once, or with the
 * next calls. */
void tow_client_leave_after_call(tow_client_t *client);
/* The same after an upload of so many bytes. */
void tow_client_leave_after_upload(tow_client_t *client, size_t size);
/* Unlocks after a release; closes the client if that was the last reference. */
void tow_client_leave_maybe_last(tow_client_t *client);
/* Not locked: it waits. The controller's memory accounts of all devices
 * (TOW_REPORT_MEMORY of wire/message.h); tow_free_text. */
tow_status_t tow_client_memory(tow_client_t *client, char **out_text)
    TOW_MUST_USE;
/* What all processes of the cluster did in the last `window_ns`, in lines
 * (TOW_REPORT_SPANS); tow_free_text. Devices begin to remember what they did
 * with the first such query. */
tow_status_t tow_client_trace_spans(tow_client_t *client, uint64_t window_ns,
                                    char **out_text) TOW_MUST_USE;
/* Add this to times of the cluster (the controller's clock) to get
 * CLOCK_MONOTONIC here. 0 if the clocks may be the same. */
int64_t tow_client_clock_shift_ns(tow_client_t *client);
/* Replies to partition queries, on the thread that waits for the function, not
 * locked: it may use the client, even compile. The bytes are from tow_malloc,
 * and taken. */
typedef struct tow_partition_responder {
    tow_status_t (*answer)(void *context, tow_bytes_t query, void **out_bytes,
                           size_t *out_size);
    void *context; /* borrowed for the call */
} tow_partition_responder_t;

/* As tow_function_compile, for a program whose compiler sends partition
 * queries. */
tow_status_t tow_function_compile_with_queries(
    tow_slice_t *slice, const tow_source_t *source,
    const tow_partition_responder_t *responder, tow_function_t **out_function)
    TOW_MUST_USE;
/* The output of the compiler; tow_free_text. */
tow_status_t tow_function_code(tow_function_t *function, char **out_bytes,
                               size_t *out_size) TOW_MUST_USE;
/* The generation of the client in which it was compiled. */
uint32_t tow_function_generation(const tow_function_t *function);
/* Borrowed. The signature from the compilation. */
const tow_signature_t *tow_function_signature(const tow_function_t *function);

#endif /* TOW_CLIENT_CLIENT_H_ */
