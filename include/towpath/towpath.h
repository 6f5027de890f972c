/* Towpath: one program drives the accelerators of many hosts.
 *
 *     tow_client_open(NULL, &client);            // or a cluster's address
 *     tow_slice_open(client, TOW_WITH(tow_slice_options_t, .dims = {4}), &slice);
 *     tow_function_compile(slice, TOW_WITH(tow_source_t, .bytes = text,
 *                                          .size = strlen(text)), &function);
 *     tow_array_upload(slice, TOW_WITH(tow_upload_options_t,
 *                                      .type = TOW_ARRAY_TYPE(TOW_TYPE_F32, 8),
 *                                      .bytes = x, .size = sizeof(x)), &a);
 *     tow_function_call(function, slice, &a, 1, &b, 1);   // returns at once
 *     tow_array_download(b, 0, bytes, size);              // waits
 *
 * examples/c has complete programs.
 *
 * Rules for the whole interface
 * - Calls that start work return at once. Arrays are futures: they may be used
 *   before they have a value. An error of the work is reported by every wait
 *   for the array, or for anything computed from it: the first error, with its
 *   origin.
 * - Queues are bounded: beyond a number of runs, or of bytes being uploaded, a
 *   call blocks until there is room; in a callback it fails with
 *   FAILED_PRECONDITION instead. Work that lacks device memory waits in order;
 *   work that can never fit fails with RESOURCE_EXHAUSTED.
 * - Every function may be called from any thread. A thread that waits does not
 *   block the others. No thread is woken per call.
 * - Objects are reference-counted: `retain` and `release`. An object holds
 *   references to those that it needs: an array to its client, a function to
 *   its slice. `release` never blocks.
 * - Structs of options begin with struct_size, the size of the struct, which
 *   TOW_WITH sets; a zero field means the default. New fields go last.
 * - The caller owns every status that is not TOW_OK; tow_status_release. */
#ifndef TOWPATH_TOWPATH_H_
#define TOWPATH_TOWPATH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <towpath/status.h>
#include <towpath/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exported symbols; all others of the library are hidden. */
#pragma GCC visibility push(default)

#define TOW_VERSION_MAJOR 0
#define TOW_VERSION_MINOR 1
#define TOW_VERSION_PATCH 0

/* "0.1.0": the version of the loaded library, which may differ from the
 * TOW_VERSION_* that the program was compiled with. */
const char *tow_version(void);

#ifndef __cplusplus
/* A pointer to a struct of options with these fields, valid until the end of
 * the enclosing block. */
#define TOW_WITH(type, ...) (&(type){.struct_size = sizeof(type), __VA_ARGS__})
/* A tow_array_type_t: TOW_ARRAY_TYPE(TOW_TYPE_F32, 2, 3) is f32[2,3]. */
#define TOW_ARRAY_TYPE(element, ...)                               \
    ((tow_array_type_t){.struct_size = sizeof(tow_array_type_t),   \
                        .type = (element),                         \
                        .rank = sizeof((int64_t[]){__VA_ARGS__}) / \
                                sizeof(int64_t),                   \
                        .dims = {__VA_ARGS__}})
#endif

typedef struct tow_client tow_client_t;
typedef struct tow_slice tow_slice_t;
typedef struct tow_function tow_function_t;
typedef struct tow_array tow_array_t;
typedef struct tow_program tow_program_t;

/* -- Clients --------------------------------------------------------------- */

typedef struct tow_client_options {
    size_t struct_size;
    /* "unix:PATH", "tcp:HOST:PORT", "tls:HOST:PORT". NULL: the environment
     * variable TOW_ADDRESS; if that is not set either, the cluster that this
     * user has started on this host with `tow up`. Without one, or with the
     * size of a local cluster, below or in TOW_LOCAL, the call starts a local
     * cluster, whose processes end with this one, even if it is killed. "": a
     * local cluster in any case. */
    const char *address;
    /* What runs, the last part of the name user@host:pid:script of this client
     * in `tow status`, logs and errors; NULL: the name of the script or
     * program. */
    const char *name;
    const char *token_file; /* NULL: the default of `tow` */
    /* Of a local cluster; 0: TOW_LOCAL ("workers=2,devices=4"), or 1 worker
     * with 8 devices. */
    uint32_t worker_count;
    uint32_t devices_per_worker;
    /* Model of simulated devices; NULL: real ones (XLA on the CPU). */
    const char *simulated;
    int64_t timeout_ns; /* to connect; 0: 10 s, 60 s for a local cluster */
} tow_client_options_t;

/* Connects; waits until the cluster replies. UNAVAILABLE: it is not reachable,
 * and why. `options` may be NULL. A process may have several clients. */
tow_status_t tow_client_open(const tow_client_options_t *options,
                             tow_client_t **out_client);
/* Where the client connected. Borrowed. */
const char *tow_client_address(const tow_client_t *client);
/* Whether the cluster is a local one, which ends with this process. */
bool tow_client_is_local(const tow_client_t *client);
void tow_client_retain(tow_client_t *client);
/* With the last reference the cluster discards all state of this client. */
void tow_client_release(tow_client_t *client);
/* TOW_OK while connected, otherwise the reason. While disconnected, all pending
 * work and every call fail with UNAVAILABLE. The client redials the same
 * address for as long as it is open. Objects made before the disconnection are
 * lost and can only be released. */
tow_status_t tow_client_status(tow_client_t *client);
/* Waits until all work started before has finished or failed. */
tow_status_t tow_client_wait_idle(tow_client_t *client);
/* The status of the cluster as JSON; tow_free_text. */
tow_status_t tow_client_report(tow_client_t *client, char **out_text);
/* The trace events of all its processes, as JSON for Perfetto. */
tow_status_t tow_client_trace(tow_client_t *client, char **out_text);
void tow_free_text(char *text);

/* -- Slices ---------------------------------------------------------------- */

#define TOW_SLICE_DIMS_MAX 3
/* For tow_slice_options_t.island: devices of all islands. */
#define TOW_ISLAND_EVERY "*"

typedef struct tow_slice_options {
    size_t struct_size;
    uint32_t dims[TOW_SLICE_DIMS_MAX]; /* {8}, {2, 4}: a 0 ends them; {0}: all
                                          devices of one kind and island */
    const char *kind;                  /* "cpu", "TPU v4"; NULL: any one kind */
    /* Exactly these devices (tow_device_t.id), in this order; none: any. */
    const int64_t *devices;
    size_t device_count;
    /* The island of the slice; NULL: any. A slice spans several islands only if
     * it names its devices, or with TOW_ISLAND_EVERY. A program may use slices
     * of several islands. */
    const char *island;
} tow_slice_options_t;

typedef struct tow_device {
    size_t struct_size;
    int64_t id;
    const char *kind; /* lent by the slice */
    const char *name;
    const char *worker;
    const char *host;
    uint64_t memory_bytes; /* 0: unknown */
    const char *island;
    /* Its coordinates in the island: index of its worker, in the order of the
     * workers' names, and index among its worker's devices. */
    uint32_t place;
    uint32_t index;
} tow_device_t;

/* Waits for the reply. RESOURCE_EXHAUSTED: not enough devices; the message
 * lists those available. */
tow_status_t tow_slice_open(tow_client_t *client,
                            const tow_slice_options_t *options,
                            tow_slice_t **out_slice);
void tow_slice_retain(tow_slice_t *slice);
void tow_slice_release(tow_slice_t *slice);
size_t tow_slice_device_count(const tow_slice_t *slice);
/* Fills the first out_device->struct_size bytes. */
tow_status_t tow_slice_device(const tow_slice_t *slice, size_t index,
                              tow_device_t *out_device);

/* -- Functions ------------------------------------------------------------- */

typedef enum tow_source_format {
    TOW_SOURCE_STABLEHLO = 0, /* text, or a portable artifact */
    TOW_SOURCE_COST = 1,      /* a cost model, for simulated devices */
} tow_source_format_t;

typedef struct tow_source {
    size_t struct_size;
    tow_source_format_t format;
    const void *bytes;
    size_t size;
    /* An xla.CompileOptionsProto; its device assignment is replaced by the
     * slice's. Size 0: one replica per device. */
    const void *options;
    size_t options_size;
} tow_source_t;

/* Compiles for the slice's kind and number of devices, in the cluster, which
 * shares the result among equal requests. Waits. The error includes the
 * compiler's message. */
tow_status_t tow_function_compile(tow_slice_t *slice,
                                  const tow_source_t *source,
                                  tow_function_t **out_function);
void tow_function_retain(tow_function_t *function);
void tow_function_release(tow_function_t *function);
size_t tow_function_argument_count(const tow_function_t *function);
size_t tow_function_result_count(const tow_function_t *function);

/* The type of one shard of an array. */
#define TOW_ARRAY_RANK_MAX 32
typedef struct tow_array_type {
    size_t struct_size;
    uint32_t type; /* a tow_type_t */
    uint32_t rank;
    int64_t dims[TOW_ARRAY_RANK_MAX];
} tow_array_type_t;
tow_status_t tow_function_argument_type(const tow_function_t *function,
                                        size_t index,
                                        tow_array_type_t *out_type);
tow_status_t tow_function_result_type(const tow_function_t *function,
                                      size_t index, tow_array_type_t *out_type);

/* -- Host functions -------------------------------------------------------- */

typedef struct tow_host_type {
    tow_array_type_t type; /* of one shard */
    /* Bit i: dims[i] is an upper bound; the actual size is known when the
     * function has run. */
    uint32_t bounds;
} tow_host_type_t;

typedef struct tow_host_function_options {
    size_t struct_size;
    const char *path;   /* of a shared object (ELF), on this host */
    const char *symbol; /* a tow_host_entry_t of <towpath/host.h> */
    const tow_host_type_t *arguments;
    size_t argument_count;
    const tow_host_type_t *results;
    size_t result_count;
    uint32_t time_limit_ms; /* of each call; 0: 30 s */
} tow_host_function_options_t;

/* Loads a function that runs on the hosts of the slice's devices, once for each
 * shard, in a child process; <towpath/host.h> describes how to write one. It is
 * called like any other function, in traced programs too. Its bytes are sent to
 * the workers. Waits.
 *
 * Its results may be irregular (`bounds`). Such an array can be passed to host
 * functions that declare the same bounds, moved shard by shard, or fetched with
 * tow_array_download_sized. Computations take arrays of fixed size: pad in a
 * host function. While a program waits for an irregular size, later work on the
 * same workers waits too.
 *
 * Workers must allow it (`tow worker --host-functions`); otherwise programs
 * that use it fail with PERMISSION_DENIED. INVALID_ARGUMENT: not a shared
 * object; NOT_FOUND, reported by the first run: no such symbol. A call that
 * returns an error fails its run with ABORTED and the function's message; one
 * that crashes or exits, with INTERNAL; one beyond its time limit, with
 * DEADLINE_EXCEEDED. */
tow_status_t tow_host_function_load(tow_slice_t *slice,
                                    const tow_host_function_options_t *options,
                                    tow_function_t **out_function);

/* -- Calls ----------------------------------------------------------------- */

/* Starts one gang. Fills `results` with `result_count` arrays, the number of
 * the function's results, one reference each. The status reports errors of the
 * call itself. */
tow_status_t tow_function_call(tow_function_t *function, tow_slice_t *slice,
                               tow_array_t *const *arguments,
                               size_t argument_count, tow_array_t **results,
                               size_t result_count);

/* -- Arrays ---------------------------------------------------------------- */

typedef struct tow_upload_options {
    size_t struct_size;
    tow_array_type_t type; /* of one shard */
    const void *bytes;     /* all shards, in the slice's order; or one */
    size_t size;
    bool replicated; /* `bytes` is one shard, for every device */
    /* Called on a thread of the library when the bytes are no longer used.
     * NULL: the call copies the bytes, or blocks until they are no longer
     * used. */
    void (*done_with_bytes)(void *context);
    void *context;
} tow_upload_options_t;

tow_status_t tow_array_upload(tow_slice_t *slice,
                              const tow_upload_options_t *options,
                              tow_array_t **out_array);
void tow_array_retain(tow_array_t *array);
void tow_array_release(tow_array_t *array);
tow_status_t tow_array_type(const tow_array_t *array,
                            tow_array_type_t *out_type);
size_t tow_array_shard_count(const tow_array_t *array);
size_t tow_array_shard_size(const tow_array_t *array); /* bytes, dense */

/* Waits for the value of one shard and copies it. OUT_OF_RANGE: no such shard,
 * or `size` is not tow_array_shard_size. */
tow_status_t tow_array_download(tow_array_t *array, size_t shard, void *bytes,
                                size_t size);
/* The same for an array that may be irregular, a result of a host function.
 * `capacity` is at least tow_array_shard_size, which follows from the bounds;
 * *out_type and *out_size are the actual ones. Both may be NULL. */
tow_status_t tow_array_download_sized(tow_array_t *array, size_t shard,
                                      void *bytes, size_t capacity,
                                      tow_array_type_t *out_type,
                                      size_t *out_size);
/* The same without waiting. `done` runs once, on a thread of the library, and
 * owns its status. */
tow_status_t tow_array_download_async(
    tow_array_t *array, size_t shard, void *bytes, size_t size,
    void (*done)(void *context, tow_status_t take_status), void *context);
/* Waits until the array has its value, or returns the error that it failed
 * with. DEADLINE_EXCEEDED after timeout_ns (negative: no limit; 0: poll). */
tow_status_t tow_array_wait(tow_array_t *array, int64_t timeout_ns);
bool tow_array_is_ready(tow_array_t *array); /* has a value, or failed */
/* `done` runs on a thread of the library when the array is ready, or soon if it
 * is already. It owns its status. */
tow_status_t tow_array_on_ready(tow_array_t *array,
                                void (*done)(void *context,
                                             tow_status_t take_status),
                                void *context);

/* -- Transfers ------------------------------------------------------------- */

/* The sharding of an array over the devices of a slice: equal parts along each
 * dimension, each replicated on an equal number of devices. Devices have the
 * parts in row-major order. With a mesh, the devices are laid out row-major in
 * mesh_dims, its axes are permuted to the order mesh_axes, and the result is
 * read row-major. TOW_SPLIT(2, 4) splits the first dimension in two and the
 * second in four. */
#define TOW_MESH_AXES_MAX 16
typedef struct tow_split {
    size_t struct_size;
    uint32_t parts[TOW_ARRAY_RANK_MAX]; /* 0 means 1 */
    uint32_t mesh_rank;                 /* 0: no mesh */
    uint32_t mesh_dims[TOW_MESH_AXES_MAX];
    uint32_t mesh_axes[TOW_MESH_AXES_MAX];
} tow_split_t;

#ifndef __cplusplus
#define TOW_SPLIT(...) \
    (&(tow_split_t){.struct_size = sizeof(tow_split_t), .parts = {__VA_ARGS__}})
#endif

typedef struct tow_transfer_options {
    size_t struct_size;
    /* Target devices, of any island; NULL: the array's own. */
    tow_slice_t *slice;
    /* The current and the new sharding. Both NULL: shard i goes to device i,
     * for slices of equal size. */
    const tow_split_t *from;
    const tow_split_t *to;
} tow_transfer_options_t;

/* Copies the array to other devices, or reshards it. The bytes move between the
 * workers and do not pass through the client. On an array of a traced program
 * the transfer is recorded, like a call; otherwise it starts at once, as a
 * small program that the cluster lowers each time: in a loop, trace it.
 *
 * Calls in a traced program may use values of other slices directly: the
 * cluster inserts transfers according to the functions' shardings.
 * INVALID_ARGUMENT: the parts do not divide the array, or do not match the
 * devices. */
tow_status_t tow_array_transfer(tow_array_t *array,
                                const tow_transfer_options_t *options,
                                tow_array_t **out_array);

/* -- Collectives ----------------------------------------------------------- */

typedef struct tow_all_reduce_options {
    size_t struct_size;
    tow_reduction_t reduction; /* 0: TOW_REDUCE_SUM */
    /* The groups of devices that reduce their shards: all devices of the slice,
     * or, with a mesh, those that differ only along its `axes`. The mesh is
     * row-major. */
    uint32_t mesh_rank; /* 0: no mesh */
    uint32_t mesh_dims[TOW_MESH_AXES_MAX];
    uint32_t axis_count;
    uint32_t axes[TOW_MESH_AXES_MAX]; /* ascending */
} tow_all_reduce_options_t;

/* Reduces the shards of each array, all on one slice, over each group of
 * devices, into new arrays in `results`. Each result is ready independently of
 * the others, and earlier arrays are reduced first, so put the most urgent
 * first. On arrays of a traced program the reduction is recorded, like a call;
 * otherwise it starts at once, as a small program that the cluster lowers each
 * time: in a loop, trace it. NULL options: the sum over all devices.
 * INVALID_ARGUMENT: a type that cannot be reduced, a mesh of another size,
 * arrays of two slices. */
tow_status_t tow_arrays_all_reduce(tow_array_t *const *arrays, size_t count,
                                   const tow_all_reduce_options_t *options,
                                   tow_array_t **results);

/* -- Programs -------------------------------------------------------------- */

/* A program is traced: calls on its arrays are recorded, not run. The finished
 * program runs any number of times, with one message each.
 *
 *     tow_program_create(client, "step", &program);
 *     tow_program_argument(program, slice, &type, false, &x);
 *     tow_function_call(f, slice, &x, 1, &y, 1);   // recorded
 *     tow_program_result(program, y);
 *     tow_program_finish(program);                 // checked, sent
 *     tow_program_run(program, &a, 1, &b, 1);
 */
tow_status_t tow_program_create(tow_client_t *client, const char *name,
                                tow_program_t **out_program);
typedef enum tow_dispatch {
    TOW_DISPATCH_PARALLEL = 0, /* early, wherever sizes are known */
    /* Each step only when its inputs are ready: to measure the cost of that,
     * and to find the step that hangs. */
    TOW_DISPATCH_SEQUENTIAL = 1,
} tow_dispatch_t;
/* Before tow_program_finish. */
tow_status_t tow_program_dispatch(tow_program_t *program,
                                  tow_dispatch_t dispatch);
void tow_program_retain(tow_program_t *program);
void tow_program_release(tow_program_t *program);
/* An array that represents an argument. `donated`: a run may consume it. */
tow_status_t tow_program_argument(tow_program_t *program, tow_slice_t *slice,
                                  const tow_array_type_t *type, bool donated,
                                  tow_array_t **out_array);
tow_status_t tow_program_result(tow_program_t *program, tow_array_t *array);
/* Ends the recording. Waits until the cluster has verified the program: errors
 * name the node. */
tow_status_t tow_program_finish(tow_program_t *program);
tow_status_t tow_program_run(tow_program_t *program,
                             tow_array_t *const *arguments,
                             size_t argument_count, tow_array_t **results,
                             size_t result_count);
/* Cancels the run that makes this array: it, and all that depends on it, fails
 * with CANCELLED unless it has finished. */
void tow_array_cancel(tow_array_t *array);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_TOWPATH_H_ */
