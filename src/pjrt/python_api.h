/* Functions of libtowpath_pjrt.so that the Python package calls through ctypes:
 * slices of the resource manager, and programs of several computations whose
 * arguments and results are JAX's arrays.
 *
 * All of them work on the session of the JAX client that this process has
 * opened (jax.devices() opens it). They may be called from any thread. Each
 * returns NULL on success, else a text "CODE: message", which
 * towpath_text_free frees. Slices and programs are numbers that are never
 * reused: a closed or released one gives an error. Executables are pointers
 * that JAX has; one that JAX has freed, and no program holds, gives an error.
 *
 * A program is called through its *ports*: executables that JAX compiled
 * (stubs), whose Execute does not run the stub but passes arguments to the
 * program and hands out its results. Executing port 0, 1, ..., n-1 in this
 * order on one thread is one call; the last one sends one Run message.
 * Results are promises from their port on. Several threads may call one
 * program at once.
 *
 *     program = begin("step")
 *     port = port(program, stub)                    // 0
 *     x = argument(program, port, 0, donated=0)     // for every argument
 *     y = call(program, f, "f train.py:41", [(x, 0)])
 *     result(program, port, 0, y, 0)                // for every result
 *     finish(program)
 *     stub(array)                                   // a call, in JAX
 *
 * A call that was begun with port 0 and not completed is abandoned by the next
 * port 0 on the same thread, by towpath_program_abandon, or by an argument
 * that is refused: its results fail, and no argument is consumed. */
#ifndef TOW_PJRT_PYTHON_API_H_
#define TOW_PJRT_PYTHON_API_H_

#include <stddef.h>
#include <stdint.h>

#define TOWPATH_EXPORT __attribute__((visibility("default")))

/* NULL is fine. */
TOWPATH_EXPORT void towpath_text_free(char *text);

/* -- Slices ---------------------------------------------------------------- */

/* Asks the resource manager for devices: `dims` as in tow_slice_options_t, a 0
 * ends them; {0}: all devices of one kind and island. `kind` and `island` may
 * be NULL: any. Gives the ids that JAX knows, in the slice's order, at most
 * `capacity` of them; *out_count is their number, whatever the capacity.
 * Devices of this client's open slices are given only if there are too few
 * others. RESOURCE_EXHAUSTED, NOT_FOUND: there are fewer devices, or none of
 * that kind or island. Waits. */
TOWPATH_EXPORT char *towpath_slice_open(const uint32_t dims[3],
                                        const char *kind, const char *island,
                                        uint64_t *out_slice, int64_t *out_ids,
                                        size_t capacity, size_t *out_count);
/* Other slices may get its devices. Programs and arrays keep theirs. */
TOWPATH_EXPORT char *towpath_slice_close(uint64_t slice);

/* -- Programs -------------------------------------------------------------- */

TOWPATH_EXPORT char *towpath_program_begin(const char *name,
                                           uint64_t *out_program);
/* The next port: 0, 1, ... The stub is the port's from now on, and its
 * computation never runs. INVALID_ARGUMENT: it is a port already. */
TOWPATH_EXPORT char *towpath_program_port(uint64_t program, void *stub,
                                          uint32_t *out_port);
/* An argument of the stub as a value of the program, on the stub's devices with
 * the stub's sharding. Every argument of every port once. `donated`: a call
 * consumes it. */
TOWPATH_EXPORT char *towpath_program_argument(uint64_t program, uint32_t port,
                                              uint32_t argument, int donated,
                                              uint32_t *out_node);
/* A call of a function that JAX compiled, on its devices. `inputs` are pairs of
 * a node and one of its outputs, one for each argument; values of other devices
 * or with other shardings are transferred. `name` is the node's name in errors
 * and reports; NULL: the function's. */
TOWPATH_EXPORT char *towpath_program_call(uint64_t program, void *executable,
                                          const char *name,
                                          const uint32_t (*inputs)[2],
                                          size_t count, uint32_t *out_node);
/* An array of one shard, as a host function has it. */
typedef struct towpath_host_type {
    uint32_t type; /* a tow_type_t, which has PJRT's numbers */
    uint32_t rank;
    uint32_t bounds; /* bit i: dims[i] is an upper bound */
    int64_t dims[32];
} towpath_host_type_t;

/* A C function in a shared object (<towpath/host.h>). */
typedef struct towpath_host_call {
    size_t struct_size; /* new fields go last */
    const char *path;   /* of the shared object, on this host */
    const char *symbol;
    const int64_t *devices; /* ids that JAX knows: it runs on their hosts */
    size_t device_count;
    const towpath_host_type_t *arguments;
    size_t argument_count;
    const towpath_host_type_t *results;
    size_t result_count;
    uint32_t time_limit_ms; /* of each call; 0: 30 s */
    const char *name;       /* as of towpath_program_call; may be NULL */
} towpath_host_call_t;

/* A call of a host function, once for each shard; `inputs` as above. Its
 * shardings are unknown, so on several devices its inputs come from the same
 * devices, with the shards that they have there. Results with bounds can only
 * be inputs of host functions. Waits until the function is loaded. Workers must
 * allow it (`tow worker --host-functions`). */
TOWPATH_EXPORT char *towpath_program_host_call(uint64_t program,
                                               const towpath_host_call_t *call,
                                               const uint32_t (*inputs)[2],
                                               size_t count,
                                               uint32_t *out_node);
/* The value of a result of the stub. Every result of every port once. A value
 * of other devices, or with another sharding, than the stub's result is
 * transferred. */
TOWPATH_EXPORT char *towpath_program_result(uint64_t program, uint32_t port,
                                            uint32_t result, uint32_t node,
                                            uint32_t output);
/* Sends the program, and waits until the cluster has verified it: errors name
 * the node. After an error the program can only be released. */
TOWPATH_EXPORT char *towpath_program_finish(uint64_t program);
/* Abandons this thread's call that is not complete, if there is one: results
 * that were handed out fail with CANCELLED, and no argument is consumed. */
TOWPATH_EXPORT char *towpath_program_abandon(uint64_t program);
/* Runs under way continue; executing a port is an error from now on. */
TOWPATH_EXPORT char *towpath_program_release(uint64_t program);
/* The program with its slices and functions, in the form that `tow lower`
 * reads. towpath_text_free. */
TOWPATH_EXPORT char *towpath_program_text(uint64_t program, char **out_text);

/* -- Executables ----------------------------------------------------------- */

/* The latest executable that was compiled with the compile option
 * "towpath_name" of this value, and that JAX still has: for versions of JAX
 * that do not tell the address. The option reaches neither XLA nor
 * fingerprints. NOT_FOUND: there is none. Borrowed. */
TOWPATH_EXPORT char *towpath_executable_named(const char *name,
                                              void **out_executable);

#endif /* TOW_PJRT_PYTHON_API_H_ */
