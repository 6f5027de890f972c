/* The driver's objects. All of it belongs to the owner's loop, except where a
 * field says otherwise. */
#ifndef TOW_DEVICE_PJRT_PJRT_IMPL_H_
#define TOW_DEVICE_PJRT_PJRT_IMPL_H_

#include <stdatomic.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/pool.h"
#include "base/vec.h"
#include "device/pjrt/pjrt.h"
#include "device/pjrt/plugin.h"
#include "device/pjrt/tuning.h"

typedef struct pjrt_driver pjrt_driver_t;
typedef struct pjrt_completion pjrt_completion_t;
typedef struct pjrt_executable pjrt_executable_t;
typedef struct pjrt_buffer pjrt_buffer_t;
typedef struct pjrt_shard pjrt_shard_t;
typedef struct pjrt_run pjrt_run_t;

/* -- Completions ------------------------------------------------------------ */

/* Runs `finish` on the loop once an event of the plugin is ready. Part of the
 * operation that it completes, so that none is allocated. */
struct pjrt_completion {
    pjrt_completion_t *next; /* of the queue or list that it is in */
    void (*finish)(pjrt_completion_t *completion);
    pjrt_driver_t *driver;
    PJRT_Event *event; /* owned */
    /* Owned. Written by the plugin's thread before it pushes the completion,
     * read by the loop after it has popped it. */
    PJRT_Error *error;
    bool is_shard;     /* of a run, or a copy that counts as one */
    bool is_of_run;    /* part of a pjrt_shard_t */
    bool may_coalesce; /* as in its run */
};

/* Takes the event (NULL: it is ready); `finish` runs in a turn of its own once
 * it is ready. */
void tow_pjrt_watch(pjrt_completion_t *completion, PJRT_Event *take_event);
/* `finish` runs in a turn of its own, as soon as possible. */
void tow_pjrt_complete_soon(pjrt_completion_t *completion,
                            PJRT_Error *take_error);
/* Appends completions that waited for a buffer to those that finish before this
 * turn ends. Only from within a `finish`. */
void tow_pjrt_resume(pjrt_driver_t *driver, pjrt_completion_t *first);
void tow_pjrt_completions_init(pjrt_driver_t *driver);
/* CLOCK_MONOTONIC. Any thread. */
int64_t tow_pjrt_clock_ns(void);
/* On the loop, before a run of `count` shards reaches the plugin. */
void tow_pjrt_expect_shards(pjrt_driver_t *driver, size_t count);
/* Continues executions that the plugin started on the loop's thread, now and in
 * later turns until they have ended. */
void tow_pjrt_continue_inline(pjrt_driver_t *driver);
/* When no operation is in progress: waits until the last thread that posted has
 * returned from that, which takes a few instructions. */
void tow_pjrt_await_posters(pjrt_driver_t *driver);

/* -- Driver ----------------------------------------------------------------- */

struct pjrt_driver {
    tow_driver_t driver;
    tow_driver_ops_t ops; /* without entries that the plugin lacks */
    pjrt_plugin_t plugin;
    PJRT_Client *client;     /* owned */
    tow_arena_t arena;       /* infos, names, the path */
    PJRT_Device **devices;   /* in the arena; lent by the client */
    int64_t *completed_ns;   /* in the arena: by device, of its last shard */
    bool has_device_times;   /* the plugin measures them */
    tow_pjrt_table_t *table; /* lent, may be NULL */

    /* A stack: pushed by threads of the plugin and by the loop, taken whole by
     * the loop. A push posts `drain` unless it is posted already; coalesced
     * completions wait for the next post or for the timer: see completion.c. */
    _Atomic(pjrt_completion_t *) completed;
    tow_post_t drain;
    tow_timer_t coalesce_timer;
    tow_timer_t
        inline_timer; /* armed while executions continue on our thread */
    atomic_bool is_posted;
    _Atomic(int64_t) drained_ns;      /* the last time that the loop drained */
    _Atomic(uint64_t) shard_count;    /* of runs that have not completed */
    _Atomic(uint64_t) started_count;  /* posts that threads have started */
    _Atomic(uint64_t) returned_count; /* posts that have returned */
    /* Popped, in order, not yet finished. */
    pjrt_completion_t *ready_first;
    pjrt_completion_t *ready_last;

    tow_pool_t buffers;
    size_t buffer_count;
    size_t executable_count;
    size_t operation_count;
    bool is_closing;
    bool is_destroying;
    tow_closed_t closed;
    tow_work_t destroying;

    /* The arrays of one Execute call. */
    struct {
        TOW_VEC(PJRT_Buffer *) arguments;
        TOW_VEC(PJRT_Buffer *const *) argument_lists;
        TOW_VEC(PJRT_Buffer *) results;
        TOW_VEC(PJRT_Buffer **) result_lists;
        TOW_VEC(PJRT_Event *) events;
        TOW_VEC(int64_t) non_donatable;
    } scratch;
};

static inline pjrt_driver_t *pjrt_driver_of(tow_driver_t *driver)
{
    return TOW_CONTAINER_OF(driver, pjrt_driver_t, driver);
}

/* NULL if the plugin does not report it. */
PJRT_Memory *tow_pjrt_default_memory(const pjrt_driver_t *driver,
                                     PJRT_Device *device);
/* FAILED_PRECONDITION if the driver is closing. */
tow_status_t tow_pjrt_check_open(const pjrt_driver_t *driver) TOW_MUST_USE;
/* Asserts the invariants. O(1). */
void tow_pjrt_driver_check(const pjrt_driver_t *driver);
/* An operation has ended: the last call in `finish`. */
void tow_pjrt_end(pjrt_driver_t *driver);
/* Continues closing if nothing is left. */
void tow_pjrt_check_closed(pjrt_driver_t *driver);
/* An error of the plugin on one device. */
tow_status_t tow_pjrt_device_status(const pjrt_driver_t *driver,
                                    PJRT_Error *take_error, size_t device)
    TOW_MUST_USE;

/* -- Buffers ---------------------------------------------------------------- */

struct pjrt_buffer {
    tow_buffer_t buffer;
    PJRT_Buffer *handle; /* owned; NULL: its run failed before it was made */
    size_t reference_count;
    uint32_t exported_count; /* of them, shares that were exported */
    uint32_t record_count;   /* of them, operations that need no value */
    bool is_resolved;        /* its producer has finished or failed */
    bool is_donated;
    bool is_unsettled;           /* a deferred upload without bytes yet */
    tow_status_t error;          /* owned; the producer's */
    tow_status_t deferred_error; /* owned; of a deferred upload */
    int64_t ready_ns;            /* 0: before it was first used, or unknown */
    /* Completions that wait for the producer. */
    pjrt_completion_t *dependents;
    pjrt_completion_t ready; /* of an upload */
};

static inline pjrt_buffer_t *pjrt_buffer_of(tow_buffer_t *buffer)
{
    return TOW_CONTAINER_OF(buffer, pjrt_buffer_t, buffer);
}

/* One reference for the caller. NULL when memory is exhausted. */
pjrt_buffer_t *tow_pjrt_buffer_make(pjrt_driver_t *driver, size_t device,
                                    const tow_shape_t *shape, uint64_t bytes);
/* Asserts the invariants. O(1). */
void tow_pjrt_buffer_check(const pjrt_buffer_t *buffer);
/* The producer has finished. Only from within a `finish`, except for a buffer
 * that was just made. */
void tow_pjrt_buffer_resolve(pjrt_buffer_t *buffer, tow_status_t take_error);
/* True: the buffer is not resolved, and `completion` runs again when it is. */
bool tow_pjrt_buffer_await(pjrt_buffer_t *buffer,
                           pjrt_completion_t *completion);
void tow_pjrt_buffer_retain(tow_buffer_t *buffer);
void tow_pjrt_buffer_release(tow_buffer_t *buffer);
/* Keep the record but not its value: for operations of ours. */
void tow_pjrt_record_retain(pjrt_buffer_t *buffer);
void tow_pjrt_record_release(pjrt_buffer_t *buffer);
tow_buffer_state_t tow_pjrt_buffer_state(tow_buffer_t *buffer);
tow_status_t tow_pjrt_buffer_error(tow_buffer_t *buffer);
tow_status_t tow_pjrt_buffer_address(tow_buffer_t *buffer, void **out_address);
tow_status_t tow_pjrt_allocate(tow_driver_t *driver, size_t device,
                               const tow_shape_t *shape,
                               tow_buffer_t **out_buffer);
/* The plugin keeps the memory while the device uses it. */
void tow_pjrt_handle_destroy(pjrt_driver_t *driver, PJRT_Buffer *handle);
/* Resolves the buffer when its ready event fires. */
void tow_pjrt_watch_ready(pjrt_driver_t *driver, pjrt_buffer_t *buffer);
/* Reads the value into `bytes`, which is large enough; the completion
 * follows. */
void tow_pjrt_read(pjrt_buffer_t *buffer, void *bytes, uint64_t size,
                   pjrt_completion_t *completion);
PJRT_HostBufferSemantics tow_pjrt_semantics_of(const pjrt_driver_t *driver,
                                               const tow_upload_t *upload,
                                               uint64_t bytes);
tow_status_t tow_pjrt_upload(tow_driver_t *driver, tow_upload_t *upload);
/* The part of tow_pjrt_upload for deferred uploads. */
tow_status_t tow_pjrt_upload_deferred(pjrt_driver_t *driver,
                                      tow_upload_t *upload, uint64_t bytes)
    TOW_MUST_USE;
void tow_pjrt_upload_settle(tow_driver_t *driver, tow_upload_t *upload,
                            tow_status_t take_status);
bool tow_pjrt_can_defer(const pjrt_driver_t *driver);
tow_status_t tow_pjrt_share(tow_driver_t *driver, tow_buffer_share_t *share);
void tow_pjrt_share_end(tow_driver_t *driver, tow_buffer_share_t *share);
bool tow_pjrt_share_export(tow_driver_t *driver, tow_buffer_share_t *share);
tow_status_t tow_pjrt_copy(tow_driver_t *driver, tow_copy_t *copy);
tow_status_t tow_pjrt_download(tow_driver_t *driver, tow_download_t *download);

/* -- Executables ------------------------------------------------------------ */

struct pjrt_executable {
    tow_executable_t executable;
    PJRT_LoadedExecutable *loaded; /* owned */
    PJRT_Executable *handle;       /* owned */
    size_t reference_count;
    tow_arena_t arena; /* the signature */
    /* Arguments that a run consumes, if the plugin reports them; otherwise each
     * run checks each argument. */
    bool is_donation_known;
    const size_t *donated;
    size_t donated_count;
    pjrt_run_t *free_runs; /* owned, for reuse */
};

static inline pjrt_executable_t *pjrt_executable_of(
    tow_executable_t *executable)
{
    return TOW_CONTAINER_OF(executable, pjrt_executable_t, executable);
}

tow_status_t tow_pjrt_compile(tow_driver_t *driver, tow_compile_t *compile);
tow_status_t tow_pjrt_load(tow_driver_t *driver, tow_compile_t *load);
tow_status_t tow_pjrt_serialize(tow_executable_t *executable, void **out_bytes,
                                size_t *out_size);
void tow_pjrt_executable_retain(tow_executable_t *executable);
void tow_pjrt_executable_release(tow_executable_t *executable);
/* Fills the signature and the local devices. Any thread. */
tow_status_t tow_pjrt_signature_read(pjrt_executable_t *executable)
    TOW_MUST_USE;

/* -- Runs ------------------------------------------------------------------- */

/* One device's part of a run. */
struct pjrt_shard {
    pjrt_completion_t completion;
    pjrt_run_t *run;
    size_t local;    /* index into the executable's local devices */
    size_t held_end; /* of this shard's part of run->held */
    /* Its completion, unless the plugin has device times. Written like the
     * completion's error. */
    int64_t ready_ns;
};

struct pjrt_run {
    pjrt_run_t *next;              /* free ones */
    pjrt_executable_t *executable; /* counted while in use */
    tow_run_t *run;                /* the caller's */
    size_t unfinished_count;       /* shards */
    int64_t enqueued_ns;           /* unless the plugin has device times */
    bool has_reached_plugin;
    tow_status_t status;  /* owned: the first error */
    tow_status_t refusal; /* owned: the error of the Execute call */
    /* Arguments that were still promises, shard by shard; counted. */
    TOW_VEC(pjrt_buffer_t *) held;
    pjrt_buffer_t **results; /* counted; as in tow_run */
    pjrt_shard_t shards[];
};

/* time.c: adds the shard's time to that of its run, as the plugin measured it.
 * Before its event is destroyed. */
void tow_pjrt_time_read(const pjrt_shard_t *shard);
/* The same for a plugin that does not measure it. `inputs`: those that were
 * promises when the run was enqueued. */
void tow_pjrt_time_infer(const pjrt_shard_t *shard, pjrt_buffer_t **inputs,
                         size_t input_count);
tow_status_t tow_pjrt_run(tow_driver_t *driver, tow_run_t *run);
void tow_pjrt_abort(tow_driver_t *driver, uint64_t gang_id, tow_status_t cause);
void tow_pjrt_runs_free(pjrt_executable_t *executable);

#endif /* TOW_DEVICE_PJRT_PJRT_IMPL_H_ */
