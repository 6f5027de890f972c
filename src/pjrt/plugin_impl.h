/* The plugin's objects and their ownership.
 *
 *   table.c          GetPjrtApi: the table, errors, attributes, the extension
 *   client.c         clients, devices, memories
 *   topology.c       the devices as a compilation target
 *   slice.c          sets of devices that executables run on
 *   compile.c        executables and their attributes
 *   bytecode.c       types that the cluster's XLA knows by name only
 *   save.c           serialised executables, and fingerprints
 *   saved.c          their format
 *   hlo.c            the optimised program of an executable
 *   execute.c        one call, one run: the hot path
 *   program.c        programs of several computations, made in Python
 *   host_call.c      host functions in them
 *   program_text.c   the same as text
 *   port.c           calls of such programs: the other hot path
 *   python_api.c     the functions that Python calls
 *   assemble.c       one argument from shards of several arrays
 *   buffer.c         shards, as JAX sees them
 *   transfer.c       to and from the user's memory, and between devices
 *   event.c          completions
 *   callback.c       functions of the user that computations call
 *   partitioner.c    functions of the user that compilers query
 *   stall.c          warnings about steps that take long
 *   layout.c         the order of a shard's dimensions in memory
 *   strided.c        arrays copied from one such order to another
 *   profiler.c       the plugin's part of JAX's traces
 *   xspace.c         their format
 *   unimplemented.c  an error for each missing function
 *   check.c          invariants of all records
 *
 * Handles are counted with atomics, so most operations of JAX on them take no
 * lock. The client's machine is used only with its lock held (env/net/
 * locked_net.h), taken once a call; "Locked" says so below. */
#ifndef TOW_PJRT_PLUGIN_IMPL_H_
#define TOW_PJRT_PLUGIN_IMPL_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <towpath/towpath.h>
#include <xla/pjrt/c/pjrt_c_api.h>
#include <xla/pjrt/c/pjrt_c_api_layouts_extension.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/vec.h"
#include "client/client.h"
#include "env/net/locked_net.h"
#include "pjrt/saved.h"

/* -- Errors ------------------------------------------------------------------- */

/* A PJRT_Error is a tow_status_t: codes are the same by design. */
static inline PJRT_Error *take_error(tow_status_t take_status)
{
    return (PJRT_Error *)take_status;
}

#define RETURN_IF_ERROR(expression)                                      \
    do {                                                                 \
        tow_status_t status_ = (expression);                             \
        if (TOW_UNLIKELY(status_ != TOW_OK)) return take_error(status_); \
    } while (0)

PJRT_Error *tow_plugin_unimplemented(const char *what);

/* Sets the StableHLO version of programs, "1.13.7", unless the environment
 * does. JAX reads it after Client_Create. Ignores a text that is not a
 * version. */
void tow_plugin_set_stablehlo(const char *version);

/* -- Events --------------------------------------------------------------------- */

typedef struct waiter waiter_t;

/* A completion; counted. The device events of one execution and the ready
 * events of all its results are the same event. */
struct PJRT_Event {
    atomic_uint reference_count;
    /* Pushed by any thread; the completing thread takes all, and closes it. */
    _Atomic(waiter_t *) waiters;
    tow_status_t error;         /* owned; set before it is closed */
    struct PJRT_Client *client; /* borrowed; NULL: completed without one */
    atomic_bool is_awaited;     /* a thread waits for it */
    bool is_expected;           /* locked: the progress thread polls for it */
    tow_callback_t callback;    /* locked; the client's machine borrows it */
};

/* One reference. NULL: no memory. */
PJRT_Event *tow_plugin_event_create(struct PJRT_Client *client);
/* A completed event without an error; one reference. */
PJRT_Event *tow_plugin_event_done(void);
void tow_plugin_event_retain(PJRT_Event *event);
void tow_plugin_event_release(PJRT_Event *event);
bool tow_plugin_event_is_ready(PJRT_Event *event);
/* Not locked. Calls the waiters, and releases the caller's reference. */
void tow_plugin_event_complete(PJRT_Event *take_event,
                               tow_status_t take_status);
/* Locked: the callback that completes it, once. Its holder has a reference. */
tow_callback_t *tow_plugin_event_callback(PJRT_Event *event);
/* Calls back on completion, on this thread if it has completed. Takes the
 * error; not called if the event is freed before. */
tow_status_t tow_plugin_event_call_when_ready(PJRT_Event *event,
                                              PJRT_Event_OnReadyCallback call,
                                              void *context) TOW_MUST_USE;
/* Locked: completes with the array. Takes a reference of its own. */
void tow_plugin_event_follow(PJRT_Event *event, tow_array_t *array);
/* Not locked. The caller waits next: this thread polls for the completion for
 * a moment, then the progress thread does. */
void tow_plugin_event_progress(PJRT_Event *event);
/* The same, locked; `may_poll`: it completes soon. */
void tow_plugin_event_progress_locked(PJRT_Event *event, bool may_poll);

/* -- Clients --------------------------------------------------------------------- */

#define TOW_PLUGIN_PLATFORM "towpath"

typedef struct slice_entry slice_entry_t;
typedef struct callbacks callbacks_t;

/* A kind of memory by name. All kinds are the same memory on the device's
 * worker, and are accounted together. */
struct PJRT_Memory {
    PJRT_Device *device; /* borrowed from the client */
    tow_memory_kind_t kind;
    int id;
    char text[80];
};

/* "device", "pinned_host", "unpinned_host". */
const char *tow_plugin_memory_kind_name(tow_memory_kind_t kind);

struct PJRT_DeviceDescription {
    int id;
    const char *kind; /* borrowed from the slice of all devices */
    char text[160];
    PJRT_NamedValue attributes[6];
    int64_t coordinates[2]; /* in its island: its worker's, and within that */
};

struct PJRT_Device {
    struct PJRT_Client *client; /* borrowed */
    PJRT_DeviceDescription description;
    PJRT_Memory memory_storage[TOW_MEMORY_KIND_COUNT];
    PJRT_Memory *memories[TOW_MEMORY_KIND_COUNT];
    int local_index;
    _Atomic(slice_entry_t *)
        slice; /* borrowed from the client; NULL: not opened yet */
    /* Locked. The cluster's id: a worker that rejoins has other ids. JAX never
     * sees it: description.id stays the first. */
    int64_t cluster_id;
    bool is_disconnected; /* locked: with its worker, at the last refresh */
};

/* Warnings about a step that takes long. Locked. */
typedef struct stall_watch {
    uint64_t warn_s;  /* 0: never */
    uint64_t limit_s; /* 0: none */
    uint64_t run;     /* the last one reported */
    uint64_t next_s;
} stall_watch_t;

struct PJRT_Client {
    tow_client_t *tow;           /* counted */
    tow_slice_t *all;            /* counted: every device */
    PJRT_Device *device_storage; /* owned */
    PJRT_Device **devices;       /* owned */
    PJRT_Memory **memories;      /* owned */
    size_t device_count;
    PJRT_TopologyDescription *topology; /* owned */
    TOW_VEC(slice_entry_t *) slices;    /* locked; owned */
    atomic_uint seen_unavailable_count; /* at the last refresh of devices */
    atomic_uint seen_client_generation; /* likewise, of `tow` */
    uint32_t poll_skip_count;           /* locked: calls that do not poll */
    callbacks_t *callbacks; /* locked; owned; NULL: no program calls back */
    stall_watch_t stall_watch;
    /* Locked. Address -> executable, borrowed: those that are alive. */
    tow_map_t executables;
    /* Locked; owned: slices and programs of Python, by their numbers. */
    tow_map_t python_slices;
    tow_map_t python_programs;
    uint64_t python_number;
    uint64_t port_call_number; /* locked: of the last call through ports */
    char version[64];
};

/* A copy of the client's device descriptions. NULL: no memory. */
PJRT_TopologyDescription *tow_plugin_topology_create(const PJRT_Client *client);
/* NULL is fine. */
void tow_plugin_topology_destroy(PJRT_TopologyDescription *topology);

/* Not locked. */
void tow_plugin_watch_stalls(PJRT_Client *client);

/* The suffix of both custom call names for callbacks. */
#define TOW_PLUGIN_CALLBACK_TARGET "_python_cpu_callback"
/* Not locked. Enables callbacks if the program calls back. */
tow_status_t tow_plugin_enable_callbacks(PJRT_Client *client,
                                         const char *program, size_t size)
    TOW_MUST_USE;
void tow_plugin_callbacks_close(PJRT_Client *client);

/* Its compiler sends partition queries. */
bool tow_plugin_program_has_queries(tow_bytes_t program);
/* As tow_function_compile, for such a program. Not locked. */
tow_status_t tow_plugin_compile_with_queries(tow_slice_t *slice,
                                             const tow_source_t *source,
                                             tow_function_t **out_function)
    TOW_MUST_USE;
PJRT_Extension_Base *tow_plugin_partitioner_extension(
    PJRT_Extension_Base *next);

/* Borrowed; NULL: there is none. Profilers do not name a client, but there is
 * only one. */
extern _Atomic(PJRT_Client *) tow_plugin_latest_client;

/* A process that was forked has none of our threads: all calls fail there. */
extern atomic_bool tow_plugin_is_forked;
tow_status_t tow_plugin_check_fork(void) TOW_MUST_USE;

static inline void client_enter(PJRT_Client *client)
{
    tow_locked_net_enter(tow_client_locked_net(client->tow));
}

/* Flushes messages now. */
static inline void client_leave(PJRT_Client *client)
{
    tow_locked_net_leave(tow_client_locked_net(client->tow), TOW_LEAVE_FLUSH);
}

/* Messages may wait for the next call. */
static inline void client_leave_lazily(PJRT_Client *client)
{
    tow_locked_net_leave(tow_client_locked_net(client->tow), TOW_LEAVE_LAZY);
}

/* -- Slices ----------------------------------------------------------------------- */

/* An ordered set of devices. There is one entry for each, so entries are equal
 * if their pointers are. */
struct slice_entry {
    tow_slice_t *slice;    /* locked; counted */
    PJRT_Device **devices; /* owned array, borrowed devices */
    size_t count;
    /* Locked: how often it was reopened. Arrays of an earlier generation are
     * lost, programs are made again. */
    uint32_t generation;
    atomic_bool is_stale; /* a worker of it disconnected: it must be reopened */
};

/* Counts UNAVAILABLE errors of all clients of the process: a worker may have
 * disconnected or rejoined. */
extern atomic_uint tow_plugin_unavailable_count;

/* Not locked. Lists the devices, and waits for that, if something has changed.
 */
tow_status_t tow_plugin_refresh_devices(PJRT_Client *client) TOW_MUST_USE;
/* The same in any case. */
tow_status_t tow_plugin_list_devices(PJRT_Client *client) TOW_MUST_USE;
/* On any thread: no device has disconnected since the last refresh, as far as
 * is known. */
bool tow_plugin_devices_are_fresh(const PJRT_Client *client);

/* Borrowed from the client. Not locked: waits the first time, and the first
 * time after a worker disconnected. */
tow_status_t tow_plugin_slice(PJRT_Client *client, PJRT_Device *const *devices,
                              size_t count, slice_entry_t **out_entry)
    TOW_MUST_USE;
/* Not locked. UNAVAILABLE: a device of it is disconnected. Waits only after an
 * UNAVAILABLE error. */
tow_status_t tow_plugin_slice_refresh(slice_entry_t *entry) TOW_MUST_USE;
tow_status_t tow_plugin_device_slice(PJRT_Device *device,
                                     slice_entry_t **out_entry) TOW_MUST_USE;
PJRT_Device *tow_plugin_find_device(const PJRT_Client *client, int64_t id);

/* -- Buffers ---------------------------------------------------------------------- */

/* The order of a shard's dimensions in memory. The cluster does not know it:
 * there a shard is row-major, with the dimensions in this order. */
typedef struct layout {
    uint32_t rank; /* 0: row-major; then the rest is unused */
    int64_t minor_to_major[TOW_RANK_MAX]; /* innermost first */
} layout_t;

static inline bool layout_is_plain(const layout_t *layout)
{
    return layout->rank == 0;
}

bool tow_plugin_layout_equal(const layout_t *a, const layout_t *b);
/* `given` may be NULL: row-major. UNIMPLEMENTED for tiles or gaps. */
tow_status_t tow_plugin_layout_read(const PJRT_Buffer_MemoryLayout *given,
                                    const tow_shape_t *shape,
                                    layout_t *out_layout) TOW_MUST_USE;
/* Of an argument or result: as the program has it, not as it is in memory. */
layout_t tow_plugin_layout_of(const tow_array_info_t *array);
tow_shape_t tow_plugin_layout_program_shape(const tow_array_info_t *array);
/* As it is in memory. */
tow_shape_t tow_plugin_layout_stored_shape(const layout_t *layout,
                                           const tow_shape_t *shape);
/* The shape's dimensions, outermost first; room for TOW_RANK_MAX. */
void tow_plugin_layout_order(const layout_t *layout, uint32_t rank,
                             uint8_t *out_order);
/* In host memory, where smaller elements take a byte each. */
size_t tow_plugin_element_bytes(const tow_shape_t *shape);
/* Borrowed, from a constant or from the layout. */
const int64_t *tow_plugin_layout_minor_to_major(const layout_t *layout,
                                                size_t rank);

/* The type of a shard, known before its value. Counted. */
typedef struct shard_type {
    atomic_uint reference_count;
    tow_shape_t shape; /* as the user sees it */
    size_t bytes;
    tow_memory_kind_t memory;
    layout_t layout;
} shard_type_t;

/* NULL: no memory. */
shard_type_t *tow_plugin_shard_type_create(const tow_shape_t *shape,
                                           size_t bytes,
                                           tow_memory_kind_t memory,
                                           const layout_t *layout);
void tow_plugin_shard_type_retain(shard_type_t *type);
void tow_plugin_shard_type_release(shard_type_t *type);

/* An array of the cluster, referenced by the buffers of its shards. */
typedef struct shard_group {
    atomic_uint reference_count;
    PJRT_Client *client;        /* borrowed */
    tow_array_t *array;         /* counted */
    const slice_entry_t *slice; /* borrowed from the client */
    uint32_t generation;        /* of the slice, at its creation */
} shard_group_t;

/* Locked: the slice was reopened since, so its value is lost. */
static inline bool shard_group_is_stale(const shard_group_t *group)
{
    return group->generation != group->slice->generation;
}

/* Takes the array, even if there is no memory: then NULL. Locked. */
shard_group_t *tow_plugin_shard_group_create(PJRT_Client *client,
                                             const slice_entry_t *slice,
                                             tow_array_t *take_array);
void tow_plugin_shard_group_retain(shard_group_t *group);
/* Not locked. NULL is fine. */
void tow_plugin_shard_group_release(shard_group_t *group);
/* The same, locked. */
void tow_plugin_shard_group_release_locked(shard_group_t *group);

/* One shard. Counted: by JAX, and by a call that may consume it. */
struct PJRT_Buffer {
    atomic_uint reference_count;
    PJRT_Device *device; /* borrowed */
    shard_type_t *type;  /* counted */
    PJRT_Event *ready;   /* counted */
    /* Locked; NULL: deleted, or it never had a value, and `ready` has the
     * error. The array with its value, and a second one that was assembled
     * with it. */
    shard_group_t *group; /* counted */
    shard_group_t *other; /* counted */
    uint32_t shard;
    uint32_t other_shard;
    atomic_bool is_deleted;
    bool is_permuted; /* its layout is not plain; a copy, for speed */
    /* Locked. The last call of a program that got it, and whether that call
     * consumes it. */
    bool is_donated;
    uint64_t port_call;
    /* Counted: its bytes in this process, whose address JAX may have; or
     * TOW_PLUGIN_NOT_CACHED. NULL: not asked for yet. Set once. */
    _Atomic(tow_cached_value_t *) cached;
};
#define TOW_PLUGIN_NOT_CACHED ((tow_cached_value_t *)-1)

/* Retains its arguments. Without a group `ready` has completed with an error.
 * NULL: no memory. */
PJRT_Buffer *tow_plugin_buffer_make(PJRT_Device *device, shard_type_t *type,
                                    PJRT_Event *ready, shard_group_t *group,
                                    uint32_t shard);
void tow_plugin_buffer_retain(PJRT_Buffer *buffer);
/* Not locked. NULL is fine. */
void tow_plugin_buffer_release(PJRT_Buffer *buffer);
/* The same, locked. */
void tow_plugin_buffer_release_locked(PJRT_Buffer *buffer);
/* Locked: takes a reference to its cached bytes, if there are any. */
void tow_plugin_buffer_cache(PJRT_Buffer *buffer);
/* Locked: releases its value. */
void tow_plugin_buffer_discard(PJRT_Buffer *buffer);
/* Locked: TOW_OK if it has a value, else why not. */
tow_status_t tow_plugin_buffer_status(const PJRT_Buffer *buffer) TOW_MUST_USE;

/* Locked. The array on the slice whose shards are these buffers, in order: an
 * existing or a new one. Borrowed from the buffers. */
tow_status_t tow_plugin_assemble(const slice_entry_t *slice,
                                 PJRT_Buffer *const *const *lists,
                                 size_t argument, tow_array_t **out_array)
    TOW_MUST_USE;

/* -- Executables -------------------------------------------------------------------- */

/* The program of an executable on a slice, for one set of donated arguments. */
typedef struct variant {
    const slice_entry_t *slice; /* borrowed from the client */
    uint32_t generation;        /* of the slice, at its creation */
    tow_program_t *program;     /* counted */
    bool *is_donated;           /* owned: by argument */
} variant_t;

struct PJRT_Executable {
    atomic_uint reference_count;
    PJRT_Client *client;              /* borrowed */
    tow_function_t *first;            /* counted: of the first compilation */
    const tow_signature_t *signature; /* borrowed from that one */
    tow_function_t *function; /* locked; counted: of the latest compilation */
    atomic_uint client_generation;     /* of the client, for `function` */
    slice_entry_t *slice;              /* borrowed from the client */
    shard_type_t **result_types;       /* owned array, counted types */
    PJRT_Buffer_Type *result_elements; /* owned, and all arrays below */
    int64_t *result_dims;              /* concatenated */
    size_t *result_ranks;
    const char **memory_kinds;
    size_t *memory_kind_sizes;
    const char **sharding_bytes; /* of results, then of arguments */
    size_t *sharding_sizes;
    bool has_result_shardings, has_argument_shardings;
    PJRT_Layouts_MemoryLayout *layouts;      /* of results, then of arguments */
    PJRT_Layouts_MemoryLayout **layout_list; /* the same */
    bool has_permuted_arguments;             /* at least one is not plain */
    bool *may_donate; /* by argument: an alias names it */
    size_t donor_count;
    void *assignment; /* a DeviceAssignmentProto */
    size_t assignment_size;
    void *program; /* owned, like the options: its source */
    size_t program_size;
    void *options;
    size_t options_size;
    char fingerprint[40];
    PJRT_NamedValue costs[3];
    size_t cost_count;
    /* JAX uses the Shardings extension, so it reads the optimised program only
     * for its text. */
    atomic_bool knows_shardings;
    char *code; /* locked; owned: compiler output, or NULL */
    size_t code_size;
    TOW_VEC(variant_t) variants; /* locked */
    atomic_bool is_deleted;
    char *given_name;    /* owned: compile option "towpath_name"; or NULL */
    atomic_bool is_port; /* of a program: its own computation never runs */
    /* Locked; borrowed from the program, which holds this executable. NULL: not
     * a port, or the program has been released. */
    struct plugin_port *port;
};

struct PJRT_LoadedExecutable {
    PJRT_Executable executable; /* first: both handles are this object */
};

/* Not locked: it waits. For the devices that the options name. */
tow_status_t tow_plugin_compile(PJRT_Client *client, const tow_saved_t *source,
                                PJRT_LoadedExecutable **out_loaded)
    TOW_MUST_USE;
/* Not locked: if the cluster has disconnected since, recompiles it for that
 * slice, and waits. */
tow_status_t tow_plugin_executable_recompile(PJRT_Executable *executable,
                                             const slice_entry_t *slice)
    TOW_MUST_USE;
/* The same for a program in any format of frameworks. */
tow_status_t tow_plugin_compile_program(PJRT_Client *client,
                                        const PJRT_Program *program,
                                        tow_bytes_t options,
                                        PJRT_LoadedExecutable **out_loaded)
    TOW_MUST_USE;
/* Equal for equal programs, options and kinds of devices. */
tow_status_t tow_plugin_fill_fingerprint(PJRT_Executable *executable)
    TOW_MUST_USE;
/* False: no memory. */
bool tow_plugin_fill_layouts(PJRT_Executable *executable);
/* Checks that the argument has the layout that the executable expects. */
tow_status_t tow_plugin_check_layout(const PJRT_Executable *executable,
                                     const PJRT_Buffer *buffer, size_t argument)
    TOW_MUST_USE;
/* A serialised xla.HloModuleProtoWithConfig; tow_free. */
tow_status_t tow_plugin_describe(const PJRT_Executable *executable,
                                 void **out_bytes, size_t *out_size)
    TOW_MUST_USE;
/* The same for the optimised program. Borrowed from the executable. Size 0:
 * the compiler's output does not contain it. Not locked: waits the first time.
 */
tow_status_t tow_plugin_optimized(PJRT_Executable *executable,
                                  tow_bytes_t *out_module) TOW_MUST_USE;
void tow_plugin_executable_retain(PJRT_Executable *executable);
void tow_plugin_executable_release(PJRT_Executable *executable);
/* Locked. One reference to the executable at this address, which comes from
 * Python. NULL: there is none. */
PJRT_Executable *tow_plugin_executable_find(PJRT_Client *client,
                                            const void *address);

/* -- Programs of Python ---------------------------------------------------- */

/* Execute of a port; the arguments have been checked. */
tow_status_t tow_plugin_port_execute(
    PJRT_Executable *stub, const PJRT_LoadedExecutable_Execute_Args *args)
    TOW_MUST_USE;
/* Not locked: the client is being destroyed. */
void tow_plugin_python_close(PJRT_Client *client);

/* -- Invariants: check.c -------------------------------------------------------------- */

/* O(1). Locked. */
void tow_plugin_buffer_check(const PJRT_Buffer *buffer);
void tow_plugin_shard_group_check(const shard_group_t *group);
/* O(devices), O(arguments and results). */
void tow_plugin_slice_check(const slice_entry_t *entry);
void tow_plugin_executable_check(const PJRT_Executable *executable);

/* -- Functions of the PJRT table ------------------------------------------------------------ */

/* `next` follows it. */
PJRT_Extension_Base *tow_plugin_profiler_extension(PJRT_Extension_Base *next);
PJRT_Extension_Base *tow_plugin_layouts_extension(PJRT_Extension_Base *next);
void tow_plugin_fill_events(PJRT_Api *api);
void tow_plugin_fill_client(PJRT_Api *api);
void tow_plugin_fill_executable(PJRT_Api *api);
void tow_plugin_fill_save(PJRT_Api *api);
void tow_plugin_fill_buffer(PJRT_Api *api);
void tow_plugin_fill_transfer(PJRT_Api *api);
void tow_plugin_fill_execute(PJRT_Api *api);
void tow_plugin_fill_topology(PJRT_Api *api);
void tow_plugin_fill_unimplemented(PJRT_Api *api);

#endif /* TOW_PJRT_PLUGIN_IMPL_H_ */
