/* The plugin's objects, and who owns what.
 *
 *   table.c      GetPjrtApi: the table, errors, attributes, the extension
 *   client.c     clients, devices, memories
 *   topology.c   the devices as something to compile for
 *   slice.c      sets of devices that executables run on
 *   compile.c    executables and what is known of them
 *   bytecode.c   types in programs that the cluster's XLA knows by name only
 *   save.c       executables as bytes, and their fingerprints
 *   saved.c      those bytes
 *   hlo.c        what is known of an executable, for older versions of JAX
 *   execute.c    one call, one run: the hot path
 *   regroup.c    shards of several arrays that are to be one
 *   buffer.c     shards, as JAX sees them
 *   transfer.c   to and from the user's memory, and between devices
 *   event.c      completions
 *   callback.c   functions of the user's that computations call
 *   partitioner.c  functions of the user's that compilers ask
 *   late.c       steps that take long
 *   layout.c     in which order the dimensions of a shard lie in memory
 *   strided.c    arrays turned from one such order to another
 *   profiler.c   our part of JAX's traces
 *   xspace.c     that as bytes
 *   absent.c     what there is not: an error for each
 *
 * Handles are counted with atomics, so that most of what JAX does with them
 * takes no lock. What touches the client's machine happens inside its shared net
 * (env/net/shared.h): one entry a call. */
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
#include "base/vec.h"
#include "client/client.h"
#include "env/net/shared.h"
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

PJRT_Error *tow_pjrt_unimplemented(const char *what);

/* What JAX is to write programs in, "1.13.7", unless the environment says. JAX asks
 * when Client_Create has returned. A text that is no version changes nothing. */
void tow_pjrt_set_stablehlo(const char *version);

/* -- Events --------------------------------------------------------------------- */

typedef struct waiter waiter_t;

/* Something that will be; counted. The device events of one execution and the
 * ready events of all its results are one and the same. */
struct PJRT_Event {
    atomic_uint reference_count;
    /* Pushed by any thread; taken whole, and closed, by whoever completes. */
    _Atomic(waiter_t *) waiters;
    tow_status_t error;         /* owned; set before it is closed */
    struct PJRT_Client *client; /* lent; NULL: it is completed without one */
    atomic_bool is_hurried;     /* somebody wants it soon */
    bool is_expected;           /* inside: the keeper was told */
    tow_callback_t callback;    /* inside; lent to the client's machine */
};

/* One reference. NULL: no memory. */
PJRT_Event *tow_event_create(struct PJRT_Client *client);
/* One that has been, well; one reference. */
PJRT_Event *tow_event_done(void);
void tow_event_retain(PJRT_Event *event);
void tow_event_release(PJRT_Event *event);
bool tow_event_is_ready(PJRT_Event *event);
/* Not inside. Calls those who wait, and gives up the caller's reference. */
void tow_event_complete(PJRT_Event *take_event, tow_status_t take_status);
/* Inside: what completes it, once. Whoever is given it has a reference. */
tow_callback_t *tow_event_callback(PJRT_Event *event);
/* Called once it has been, on this thread if it has been already. Takes the error;
 * not called if the event is given up. */
tow_status_t tow_event_call_when_ready(PJRT_Event *event,
                                       PJRT_Event_OnReadyCallback call,
                                       void *context) TOW_MUST_USE;
/* Inside: completes with the array. Takes a reference of its own. */
void tow_event_follow(PJRT_Event *event, tow_array_t *array);
/* Not inside. Somebody waits: this thread looks out for what completes it, for a
 * moment, and then the keeper. */
void tow_event_hurry(PJRT_Event *event);
/* The same inside; `may_linger`: its answer is on the way. */
void tow_event_hurry_inside(PJRT_Event *event, bool may_linger);

/* -- Clients --------------------------------------------------------------------- */

#define TOW_PJRT_PLATFORM "towpath"

typedef struct slice_entry slice_entry_t;
typedef struct callbacks callbacks_t;

/* What a user calls so. All three are the memory of the worker that has the
 * device, as its driver gives it out, and are counted there together. */
struct PJRT_Memory {
    PJRT_Device *device; /* lent by the client */
    tow_memory_kind_t kind;
    int id;
    char text[80];
};

/* "device", "pinned_host", "unpinned_host". */
const char *tow_pjrt_memory_kind_name(tow_memory_kind_t kind);

struct PJRT_DeviceDescription {
    int id;
    const char *kind; /* lent by the slice of all */
    char text[160];
    PJRT_NamedValue attributes[6];
    int64_t coordinates[2]; /* in its island: of its worker, and there */
};

struct PJRT_Device {
    struct PJRT_Client *client; /* lent */
    PJRT_DeviceDescription description;
    PJRT_Memory memory_storage[TOW_MEMORY_KIND_COUNT];
    PJRT_Memory *memories[TOW_MEMORY_KIND_COUNT];
    int local_index;
    _Atomic(slice_entry_t *) slice; /* lent by the client; NULL: not asked */
    /* Inside. What the cluster calls it: a worker that was lost and came again has
     * other ids. JAX is never told: description.id is the first. */
    int64_t cluster_id;
    bool is_gone; /* inside: with its worker, when we last looked */
};

/* What has been said of a step that takes long. Inside. */
typedef struct late_watch {
    uint64_t warn_s;  /* 0: never */
    uint64_t limit_s; /* 0: none */
    uint64_t run;     /* the last one that was told of */
    uint64_t next_s;
} late_watch_t;

struct PJRT_Client {
    tow_client_t *tow;           /* counted */
    tow_slice_t *all;            /* counted: every device */
    PJRT_Device *device_storage; /* owned */
    PJRT_Device **devices;       /* owned */
    PJRT_Memory **memories;      /* owned */
    size_t device_count;
    PJRT_TopologyDescription *topology; /* owned */
    TOW_VEC(slice_entry_t *) slices;    /* inside; owned */
    atomic_uint heard_alarm_count;      /* when we last looked who is there */
    atomic_uint heard_life;     /* then, too: of `tow`. Ids are of that life */
    uint32_t linger_skip_count; /* inside: so often the keeper waits */
    callbacks_t *callbacks;     /* inside; owned; NULL: no program calls back */
    late_watch_t late;
    char version[64];
};

/* A copy of what the client knows of its devices. NULL: no memory. */
PJRT_TopologyDescription *tow_pjrt_topology_create(const PJRT_Client *client);
/* NULL is fine. */
void tow_pjrt_topology_destroy(PJRT_TopologyDescription *topology);

/* Not inside. */
void tow_pjrt_watch_late(PJRT_Client *client);

/* What programs say to call a function of the user's: how both names end. */
#define TOW_PJRT_CALLBACK_TARGET "_python_cpu_callback"
/* Not inside. Looks whether the program calls back. */
tow_status_t tow_pjrt_expect_callbacks(PJRT_Client *client, const char *program,
                                       size_t size) TOW_MUST_USE;
void tow_pjrt_callbacks_close(PJRT_Client *client);

/* Does its compiler ask functions of the user's? */
bool tow_pjrt_program_asks(tow_bytes_t program);
/* As tow_function_compile, for one that does. Not inside. */
tow_status_t tow_pjrt_compile_asking(tow_slice_t *slice,
                                     const tow_source_t *source,
                                     tow_function_t **out_function)
    TOW_MUST_USE;
PJRT_Extension_Base *tow_pjrt_partitioner_extension(PJRT_Extension_Base *next);

/* Lent; NULL: there is none. Profilers know of no client, and there is one. */
extern _Atomic(PJRT_Client *) tow_pjrt_latest_client;

/* A process that was forked has none of our threads: all calls fail there. */
extern atomic_bool tow_pjrt_is_forked;
tow_status_t tow_pjrt_check_fork(void) TOW_MUST_USE;

static inline void client_enter(PJRT_Client *client)
{
    tow_shared_net_enter(tow_client_shared(client->tow));
}

/* What was sent goes out now. */
static inline void client_leave(PJRT_Client *client)
{
    tow_shared_net_leave(tow_client_shared(client->tow), TOW_LEAVE_FLUSH);
}

/* It may wait for the next call. */
static inline void client_leave_quietly(PJRT_Client *client)
{
    tow_shared_net_leave(tow_client_shared(client->tow), TOW_LEAVE_LAZY);
}

/* -- Slices ----------------------------------------------------------------------- */

/* Devices in order. One for each order that was asked for, so that two are the
 * same if their pointers are. */
struct slice_entry {
    tow_slice_t *slice;    /* inside; counted */
    PJRT_Device **devices; /* owned array, lent devices */
    size_t count;
    /* Inside: how often it was opened anew. What was made for it before is of no
     * use: arrays are lost, programs are made again. */
    uint32_t generation;
    atomic_bool is_lost; /* a worker of it was lost: it is to be opened anew */
};

/* Something was UNAVAILABLE: a worker may be lost, or have come again. Counted,
 * for all clients of the process. */
extern atomic_uint tow_pjrt_alarm_count;

/* Not inside. Looks who is there if something has changed: then it waits. */
tow_status_t tow_pjrt_attend(PJRT_Client *client) TOW_MUST_USE;

/* Lent for the client's life. Not inside: the first time it waits, and the first
 * time after a worker was lost. */
tow_status_t tow_pjrt_slice(PJRT_Client *client, PJRT_Device *const *devices,
                            size_t count, slice_entry_t **out_entry)
    TOW_MUST_USE;
/* Not inside. UNAVAILABLE: a device of it is gone. Waits only after an alarm. */
tow_status_t tow_pjrt_slice_check(slice_entry_t *entry) TOW_MUST_USE;
tow_status_t tow_pjrt_device_slice(PJRT_Device *device,
                                   slice_entry_t **out_entry) TOW_MUST_USE;
PJRT_Device *tow_pjrt_find_device(const PJRT_Client *client, int64_t id);

/* -- Buffers ---------------------------------------------------------------------- */

/* In which order the dimensions of a shard lie in memory. The cluster knows nothing
 * of it: there a shard is what its bytes are, row by row, with the dimensions in
 * this order. */
typedef struct layout {
    uint32_t rank; /* 0: in order, row by row; what follows has no meaning */
    int64_t minor_to_major[TOW_RANK_MAX]; /* from the innermost on */
} layout_t;

static inline bool layout_is_plain(const layout_t *layout)
{
    return layout->rank == 0;
}

bool tow_layout_equal(const layout_t *a, const layout_t *b);
/* `given` may be NULL: row by row. UNIMPLEMENTED for one with tiles or gaps. */
tow_status_t tow_layout_read(const PJRT_Buffer_MemoryLayout *given,
                             const tow_shape_t *shape, layout_t *out_layout)
    TOW_MUST_USE;
/* Of an argument or result: as the program has it, not as it is in memory. */
layout_t tow_layout_of(const tow_array_info_t *array);
tow_shape_t tow_layout_program_shape(const tow_array_info_t *array);
/* As it is in memory. */
tow_shape_t tow_layout_stored_shape(const layout_t *layout,
                                    const tow_shape_t *shape);
/* The shape's dimensions from the outermost on: TOW_RANK_MAX of room. */
void tow_layout_order(const layout_t *layout, uint32_t rank,
                      uint8_t *out_order);
/* In host memory, where elements of less than a byte take one each. */
size_t tow_pjrt_element_bytes(const tow_shape_t *shape);
/* Lent for ever, or as long as the layout. */
const int64_t *tow_layout_minor_to_major(const layout_t *layout, size_t rank);

/* What can be said of a shard before it has a value. Counted. */
typedef struct shard_type {
    atomic_uint reference_count;
    tow_shape_t shape; /* as the user sees it */
    size_t bytes;
    tow_memory_kind_t memory;
    layout_t layout;
} shard_type_t;

/* NULL: no memory. */
shard_type_t *tow_shard_type_create(const tow_shape_t *shape, size_t bytes,
                                    tow_memory_kind_t memory,
                                    const layout_t *layout);
void tow_shard_type_retain(shard_type_t *type);
void tow_shard_type_release(shard_type_t *type);

/* An array of the cluster, held by those of its shards that are here. */
typedef struct group {
    atomic_uint reference_count;
    PJRT_Client *client;        /* lent */
    tow_array_t *array;         /* counted */
    const slice_entry_t *slice; /* lent by the client */
    uint32_t generation;        /* of the slice, when it was made */
} group_t;

/* Inside: its devices are those of a worker that was lost. */
static inline bool group_is_lost(const group_t *group)
{
    return group->generation != group->slice->generation;
}

/* Takes the array, also if there is no memory: then NULL. Inside. */
group_t *tow_group_create(PJRT_Client *client, const slice_entry_t *slice,
                          tow_array_t *take_array);
void tow_group_retain(group_t *group);
/* Not inside. NULL is fine. */
void tow_group_release(group_t *group);
/* The same inside. */
void tow_group_release_inside(group_t *group);

/* One shard. */
struct PJRT_Buffer {
    PJRT_Device *device; /* lent */
    shard_type_t *type;  /* counted */
    PJRT_Event *ready;   /* counted */
    /* Inside; NULL: deleted, or it never was, and `ready` says why. Where its
     * value is, and where else it is too, since it was an argument with others. */
    group_t *group; /* counted */
    group_t *other; /* counted */
    uint32_t shard;
    uint32_t other_shard;
    atomic_bool is_deleted;
    bool is_turned; /* its layout is not plain: said here for speed */
    /* Counted: its bytes in this process, lent to whoever asks for its address; or
     * TOW_PJRT_ELSEWHERE: they are not. NULL: nobody has asked. Set once. */
    _Atomic(tow_kept_t *) kept;
};
#define TOW_PJRT_ELSEWHERE ((tow_kept_t *)-1)

/* Retains all it is given. Without a group `ready` has been, with an error. NULL:
 * no memory. */
PJRT_Buffer *tow_pjrt_buffer_make(PJRT_Device *device, shard_type_t *type,
                                  PJRT_Event *ready, group_t *group,
                                  uint32_t shard);
/* Not inside. */
void tow_pjrt_buffer_free(PJRT_Buffer *buffer);
/* Inside: if its bytes are here they are its own from now on. */
void tow_pjrt_buffer_keep(PJRT_Buffer *buffer);
/* Inside: its value is not its own any more. */
void tow_pjrt_buffer_forget(PJRT_Buffer *buffer);
/* Inside: has it a group? If not, why. */
tow_status_t tow_pjrt_buffer_check(const PJRT_Buffer *buffer) TOW_MUST_USE;

/* Inside. The array whose shards are these buffers, in order, on the slice: one
 * that there is, or a new one. Lent by the buffers. */
tow_status_t tow_pjrt_regroup(const slice_entry_t *slice,
                              PJRT_Buffer *const *const *lists, size_t argument,
                              tow_array_t **out_array) TOW_MUST_USE;

/* -- Executables -------------------------------------------------------------------- */

/* The program of an executable on a slice, for one set of donated arguments. */
typedef struct variant {
    const slice_entry_t *slice; /* lent by the client */
    uint32_t generation;        /* of the slice, when it was made */
    tow_program_t *program;     /* counted */
    bool *is_donated;           /* owned: by argument */
} variant_t;

struct PJRT_Executable {
    atomic_uint reference_count;
    PJRT_Client *client;              /* lent */
    tow_function_t *first;            /* counted: as it was compiled first */
    const tow_signature_t *signature; /* lent by that one */
    tow_function_t *function;         /* inside; counted: as it is now */
    atomic_uint life;                 /* of the client, that `function` is of */
    slice_entry_t *slice;             /* lent by the client */
    shard_type_t **result_types;      /* owned array, counted types */
    PJRT_Buffer_Type *result_elements; /* owned, and all arrays below */
    int64_t *result_dims;              /* one after the other */
    size_t *result_ranks;
    const char **memory_kinds;
    size_t *memory_kind_sizes;
    const char **sharding_bytes; /* of results, then of arguments */
    size_t *sharding_sizes;
    bool has_result_shardings, has_argument_shardings;
    PJRT_Layouts_MemoryLayout *layouts;      /* of results, then of arguments */
    PJRT_Layouts_MemoryLayout **layout_list; /* the same */
    bool has_turned_arguments;               /* one of them is not plain */
    bool *may_donate; /* by argument: an alias names it */
    size_t donor_count;
    void *assignment; /* a DeviceAssignmentProto */
    size_t assignment_size;
    void *program; /* owned, as the options: what it was compiled from */
    size_t program_size;
    void *options;
    size_t options_size;
    char fingerprint[40];
    PJRT_NamedValue costs[3];
    size_t cost_count;
    /* JAX has asked for shardings by the extension: what it wants of the optimised
     * program is the program. */
    atomic_bool knows_shardings;
    char
        *code; /* inside; owned: what the compiler wrote; NULL: not asked yet */
    size_t code_size;
    TOW_VEC(variant_t) variants; /* inside */
    atomic_bool is_deleted;
};

struct PJRT_LoadedExecutable {
    PJRT_Executable executable; /* first: both handles are this */
};

/* Not inside: it waits. The devices are those that the options name. */
tow_status_t tow_pjrt_compile(PJRT_Client *client, const tow_saved_t *source,
                              PJRT_LoadedExecutable **out_loaded) TOW_MUST_USE;
/* Not inside: if the cluster was lost since, waits until it has compiled it again,
 * for that slice. */
tow_status_t tow_pjrt_executable_renew(PJRT_Executable *executable,
                                       const slice_entry_t *slice) TOW_MUST_USE;
/* The same for a program in any of the formats that frameworks write. */
tow_status_t tow_pjrt_compile_program(PJRT_Client *client,
                                      const PJRT_Program *program,
                                      tow_bytes_t options,
                                      PJRT_LoadedExecutable **out_loaded)
    TOW_MUST_USE;
/* The same for the same program, options and kind of device, wherever it is. */
tow_status_t tow_pjrt_fill_fingerprint(PJRT_Executable *executable)
    TOW_MUST_USE;
/* False: no memory. */
bool tow_pjrt_fill_layouts(PJRT_Executable *executable);
/* The argument has the layout that the executable was compiled for. */
tow_status_t tow_pjrt_check_layout(const PJRT_Executable *executable,
                                   const PJRT_Buffer *buffer, size_t argument)
    TOW_MUST_USE;
/* A serialised xla.HloModuleProtoWithConfig; tow_free. */
tow_status_t tow_pjrt_describe(const PJRT_Executable *executable,
                               void **out_bytes, size_t *out_size) TOW_MUST_USE;
/* The same of the program as it was compiled. Lent by the executable. Size 0: the
 * compiler's bytes do not show it. Not inside: the first time it waits. */
tow_status_t tow_pjrt_optimized(PJRT_Executable *executable,
                                tow_bytes_t *out_module) TOW_MUST_USE;
void tow_pjrt_executable_retain(PJRT_Executable *executable);
void tow_pjrt_executable_release(PJRT_Executable *executable);

/* -- The table's functions ------------------------------------------------------------ */

/* `next` follows it. */
PJRT_Extension_Base *tow_pjrt_profiler_extension(PJRT_Extension_Base *next);
PJRT_Extension_Base *tow_pjrt_layouts_extension(PJRT_Extension_Base *next);
void tow_pjrt_fill_events(PJRT_Api *api);
void tow_pjrt_fill_client(PJRT_Api *api);
void tow_pjrt_fill_executable(PJRT_Api *api);
void tow_pjrt_fill_save(PJRT_Api *api);
void tow_pjrt_fill_buffer(PJRT_Api *api);
void tow_pjrt_fill_transfer(PJRT_Api *api);
void tow_pjrt_fill_execute(PJRT_Api *api);
void tow_pjrt_fill_topology(PJRT_Api *api);
void tow_pjrt_fill_absent(PJRT_Api *api);

#endif /* TOW_PJRT_PLUGIN_IMPL_H_ */
