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
 * examples/c has whole programs.
 *
 * Rules that hold throughout
 * - Calls that start work return at once. What they make is a promise: an array
 *   may be used before it has a value. An error of the work reaches whoever
 *   waits for the array, or for anything computed from it: the first error,
 *   with its origin.
 * - A program may start more than the cluster can take: past a bound of runs, or
 *   of bytes that are uploaded, a call waits until there is room; in a callback
 *   it fails with FAILED_PRECONDITION instead. Work that lacks device memory
 *   waits in order; what could never fit fails with RESOURCE_EXHAUSTED.
 * - Every function may be called from any thread. Waiting in one thread does not
 *   keep others out. No thread is woken per call.
 * - Objects are counted: `retain` and `release`. Those that others need stay
 *   alive by themselves: an array keeps its client, a function its slice.
 *   Nothing waits in `release`.
 * - Structs of options begin with struct_size (sizeof of it), which TOW_WITH
 *   fills in; a field that is zero means the default. New fields go last.
 * - A status that is not TOW_OK is the caller's; tow_status_release. */
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

/* What the library has for others; all else in it is hidden. */
#pragma GCC visibility push(default)

#define TOW_VERSION_MAJOR 0
#define TOW_VERSION_MINOR 1
#define TOW_VERSION_PATCH 0

/* "0.1.0": the version of the library that is loaded, which may differ from
 * the TOW_VERSION_* that a program was compiled with. */
const char *tow_version(void);

#ifndef __cplusplus
/* The address of a struct of options with these fields; it lives as long as the
 * block that it stands in. */
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

/* -- Clients -------------------------------------------------------------------- */

typedef struct tow_client_options {
    size_t struct_size;
    /* "unix:PATH", "tcp:HOST:PORT", "tls:HOST:PORT". NULL: TOW_ADDRESS of the
     * environment; if that is not set either, a local cluster is started, of
     * processes that end with this one, also when it is killed. "": a local
     * cluster, whatever the environment says. */
    const char *address;
    const char *name; /* for people, in `tow status`; NULL: the program's */
    const char *token_file; /* NULL: as for `tow` */
    /* Of a local cluster; 0: TOW_LOCAL ("workers=2,devices=4"), or 1 worker
     * with 8 devices. */
    uint32_t worker_count;
    uint32_t devices_per_worker;
    /* Model of simulated devices; NULL: real ones (XLA on the CPU). */
    const char *simulated;
    int64_t timeout_ns; /* to connect; 0: 10 s, 60 s for a local cluster */
} tow_client_options_t;

/* Waits until the cluster answers. UNAVAILABLE: nobody is there, and why.
 * `options` may be NULL. Several clients in one process are fine. */
tow_status_t tow_client_open(const tow_client_options_t *options,
                             tow_client_t **out_client);
void tow_client_retain(tow_client_t *client);
/* With the last reference the cluster forgets all that was this client's. */
void tow_client_release(tow_client_t *client);
/* TOW_OK while the cluster is there, or why it is not. Then all that waits fails,
 * and every call at once, with UNAVAILABLE, until the controller has come again
 * at the same address: it is dialled for as long as the client is open. What was
 * made before is lost with it, and can only be released. */
tow_status_t tow_client_status(tow_client_t *client);
/* All that was started before has finished, well or not. */
tow_status_t tow_client_wait_idle(tow_client_t *client);
/* What the cluster has to say of itself, as JSON; tow_free_text. */
tow_status_t tow_client_report(tow_client_t *client, char **out_text);
/* The trace events of all its processes, as a file that Perfetto opens. */
tow_status_t tow_client_trace(tow_client_t *client, char **out_text);
void tow_free_text(char *text);

/* -- Slices --------------------------------------------------------------------- */

#define TOW_SLICE_DIMS_MAX 3
/* For tow_slice_options_t.island: devices of all islands. */
#define TOW_ISLAND_EVERY "*"

typedef struct tow_slice_options {
    size_t struct_size;
    uint32_t dims[TOW_SLICE_DIMS_MAX]; /* {8}, {2, 4}: a 0 ends them; {0}: all
                                          devices of one kind and island */
    const char *kind;                  /* "cpu", "TPU v4"; NULL: any one kind */
    /* These devices in this order, as tow_device_t.id; 0 of them: any. */
    const int64_t *devices;
    size_t device_count;
    /* A slice lies within one island, NULL: any; unless it names its devices, or
     * this is TOW_ISLAND_EVERY. A program may use slices of several. */
    const char *island;
} tow_slice_options_t;

typedef struct tow_device {
    size_t struct_size;
    int64_t id;
    const char *kind; /* lent by the slice */
    const char *name;
    const char *worker;
    const char *host;
    uint64_t memory_bytes; /* 0: not known */
    const char *island;
    /* Its coordinates there: of its worker, in the order of workers' names, and
     * among its worker's devices. */
    uint32_t place;
    uint32_t index;
} tow_device_t;

/* Waits for the answer. RESOURCE_EXHAUSTED: there are not so many, and what
 * there is. */
tow_status_t tow_slice_open(tow_client_t *client,
                            const tow_slice_options_t *options,
                            tow_slice_t **out_slice);
void tow_slice_retain(tow_slice_t *slice);
void tow_slice_release(tow_slice_t *slice);
size_t tow_slice_device_count(const tow_slice_t *slice);
/* Fills what fits into out_device->struct_size. */
tow_status_t tow_slice_device(const tow_slice_t *slice, size_t index,
                              tow_device_t *out_device);

/* -- Functions ------------------------------------------------------------------ */

typedef enum tow_source_format {
    TOW_SOURCE_STABLEHLO = 0, /* text, or a portable artifact */
    TOW_SOURCE_COST = 1,      /* of simulated devices */
} tow_source_format_t;

typedef struct tow_source {
    size_t struct_size;
    tow_source_format_t format;
    const void *bytes;
    size_t size;
    /* An xla.CompileOptionsProto; its device assignment is replaced by the
     * slice's. Size 0: replicas, one a device. */
    const void *options;
    size_t options_size;
} tow_source_t;

/* Compiles for the slice's kind and number of devices, in the cluster, once for
 * all who ask for the same. Waits. The error carries the compiler's words. */
tow_status_t tow_function_compile(tow_slice_t *slice,
                                  const tow_source_t *source,
                                  tow_function_t **out_function);
void tow_function_retain(tow_function_t *function);
void tow_function_release(tow_function_t *function);
size_t tow_function_argument_count(const tow_function_t *function);
size_t tow_function_result_count(const tow_function_t *function);

/* An array's shard. */
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

/* -- Host functions -------------------------------------------------------------- */

typedef struct tow_host_type {
    tow_array_type_t type; /* of one shard */
    /* Bit i: dims[i] is the most that it can be; how large it is is known when
     * the function has run. */
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

/* A function that runs on the hosts of the slice's devices, once for each shard,
 * in a process of its own; <towpath/host.h> says how one is written. It is called
 * as any other is, in traced programs too; its bytes go to the workers. Waits.
 *
 * What it gives may be irregular (`bounds`): such an array is used by host
 * functions that declare the same bounds, moved shard by shard, or fetched by
 * tow_array_download_sized. Computations take arrays of one size: let a host
 * function pad. While a program waits for a size, what was granted after it waits
 * on those workers too.
 *
 * Workers must allow it (`tow worker --host-functions`), or programs that use it
 * fail with PERMISSION_DENIED. INVALID_ARGUMENT: no shared object; NOT_FOUND: it
 * has no such symbol, which the first run tells. A call that returns an error
 * fails its run with ABORTED and the function's own text; one that crashes or
 * exits, INTERNAL; one past its limit, DEADLINE_EXCEEDED. */
tow_status_t tow_host_function_load(tow_slice_t *slice,
                                    const tow_host_function_options_t *options,
                                    tow_function_t **out_function);

/* -- Calls --------------------------------------------------------------------- */

/* Starts one gang. Fills `results` with `result_count` arrays, one reference
 * each; result_count is the function's. Errors here are of the call. */
tow_status_t tow_function_call(tow_function_t *function, tow_slice_t *slice,
                               tow_array_t *const *arguments,
                               size_t argument_count, tow_array_t **results,
                               size_t result_count);

/* -- Arrays --------------------------------------------------------------------- */

typedef struct tow_upload_options {
    size_t struct_size;
    tow_array_type_t type; /* of one shard */
    const void *bytes;     /* all shards, in the slice's order; or one */
    size_t size;
    bool replicated; /* `bytes` is one shard, for every device */
    /* The bytes are used no more. NULL: the call copies them, or waits until
     * they are used no more. Runs on a thread of the library. */
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
/* The same of an array that may be irregular, as host functions give them: room
 * for tow_array_shard_size, by the bounds; its true type and bytes are told.
 * Both may be NULL. */
tow_status_t tow_array_download_sized(tow_array_t *array, size_t shard,
                                      void *bytes, size_t capacity,
                                      tow_array_type_t *out_type,
                                      size_t *out_size);
/* The same without waiting; `done` runs on a thread of the library, once, with a
 * status that is its own. */
tow_status_t tow_array_download_async(
    tow_array_t *array, size_t shard, void *bytes, size_t size,
    void (*done)(void *context, tow_status_t take_status), void *context);
/* Waits until the array has its value: TOW_OK, or why it has none.
 * DEADLINE_EXCEEDED after timeout_ns (negative: no limit; 0: just look). */
tow_status_t tow_array_wait(tow_array_t *array, int64_t timeout_ns);
bool tow_array_is_ready(tow_array_t *array); /* has a value, or never will */
/* `done` runs on a thread of the library when the array is ready; soon, if it is
 * already. The status is its own. */
tow_status_t tow_array_on_ready(tow_array_t *array,
                                void (*done)(void *context,
                                             tow_status_t take_status),
                                void *context);

/* -- Transfers ------------------------------------------------------------------ */

/* How an array is cut over the devices of a slice: into equal parts along each
 * dimension; each part lies on as many devices as there are devices for it.
 * Devices have the parts in order, row by row, unless a mesh says otherwise: then
 * they are laid out row by row in mesh_dims, its axes put in the order mesh_axes
 * and read row by row. TOW_SPLIT(2, 4) cuts the first dimension in two and the
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
    /* To these devices, of any island; NULL: those that it is on. */
    tow_slice_t *slice;
    /* How it lies there now, and how it shall. Both NULL: shard by shard, from
     * the first device to the first, for slices of equal size. */
    const tow_split_t *from;
    const tow_split_t *to;
} tow_transfer_options_t;

/* The array's value on other devices, or cut another way. The workers see to it
 * among themselves; nothing comes here. Of an array of a program that is traced
 * it is noted, as a call is; otherwise it starts at once, and is a small program
 * that the cluster lowers each time: in a loop, trace it.
 *
 * Calls in a traced program may use values of other slices as they are: the
 * cluster inserts such transfers, from what the functions say of their shardings.
 * INVALID_ARGUMENT: the parts do not divide the array, or do not fit the
 * devices. */
tow_status_t tow_array_transfer(tow_array_t *array,
                                const tow_transfer_options_t *options,
                                tow_array_t **out_array);

/* -- Collectives ---------------------------------------------------------------- */

typedef struct tow_all_reduce_options {
    size_t struct_size;
    tow_reduction_t reduction; /* 0: TOW_REDUCE_SUM */
    /* Which devices combine their shards: all of the slice, or, if there is a
     * mesh, those that differ only along its `axes`. The devices are laid out in
     * it row by row. */
    uint32_t mesh_rank; /* 0: no mesh */
    uint32_t mesh_dims[TOW_MESH_AXES_MAX];
    uint32_t axis_count;
    uint32_t axes[TOW_MESH_AXES_MAX]; /* ascending */
} tow_all_reduce_options_t;

/* Each array, which all lie on one slice, with the shards of each group of
 * devices combined, as new arrays in `results`. The workers see to it among
 * themselves. Each result is there by itself: what uses the first goes on while
 * the others are on their way; so put those first that are wanted first. Of
 * arrays of a program that is traced it is noted, as a call is; otherwise it
 * starts at once, and is a small program that the cluster lowers each time: in a
 * loop, trace it. NULL options: the sum over all devices. INVALID_ARGUMENT: a
 * type that cannot be combined, a mesh of another size, arrays of two slices. */
tow_status_t tow_arrays_all_reduce(tow_array_t *const *arrays, size_t count,
                                   const tow_all_reduce_options_t *options,
                                   tow_array_t **results);

/* -- Programs ------------------------------------------------------------------- */

/* A program is traced: calls on its arrays are noted, not run. Then it runs as
 * one, with one message, any number of times.
 *
 *     tow_program_create(client, "step", &program);
 *     tow_program_argument(program, slice, &type, false, &x);
 *     tow_function_call(f, slice, &x, 1, &y, 1);   // noted
 *     tow_program_result(program, y);
 *     tow_program_finish(program);                 // checked, sent
 *     tow_program_run(program, &a, 1, &b, 1);
 */
tow_status_t tow_program_create(tow_client_t *client, const char *name,
                                tow_program_t **out_program);
typedef enum tow_dispatch {
    TOW_DISPATCH_PARALLEL = 0, /* ahead of the data, wherever sizes are known */
    /* Every step only when its inputs are there: to measure what that costs, and
     * to see who is to blame when something hangs. */
    TOW_DISPATCH_SEQUENTIAL = 1,
} tow_dispatch_t;
/* While it is traced. */
tow_status_t tow_program_dispatch(tow_program_t *program,
                                  tow_dispatch_t dispatch);
void tow_program_retain(tow_program_t *program);
void tow_program_release(tow_program_t *program);
/* An array that stands for an argument. `donated`: a run may consume it. */
tow_status_t tow_program_argument(tow_program_t *program, tow_slice_t *slice,
                                  const tow_array_type_t *type, bool donated,
                                  tow_array_t **out_array);
tow_status_t tow_program_result(tow_program_t *program, tow_array_t *array);
/* No more calls are noted. Waits for the cluster's word that it is sound: errors
 * name the node. */
tow_status_t tow_program_finish(tow_program_t *program);
tow_status_t tow_program_run(tow_program_t *program,
                             tow_array_t *const *arguments,
                             size_t argument_count, tow_array_t **results,
                             size_t result_count);
/* The run that made this array need not go on: it, and what depends on it,
 * fails with CANCELLED unless it was too late. */
void tow_array_cancel(tow_array_t *array);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_TOWPATH_H_ */
