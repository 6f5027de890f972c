/* The device driver interface: the runtime's view of accelerators.
 *
 * A driver represents one plugin, or one simulated host, and drives its local
 * devices for one owner, with whose tow_env it was opened. It is asynchronous:
 * the caller owns each operation, and the operation's `done` runs exactly once,
 * in a turn of the owner's env, never inside the call that started it. The
 * threads of drivers are not visible here.
 *
 * Buffers are promises. A run's results have handles at once, so the next run
 * can be enqueued without waiting for a value. A buffer whose producer failed
 * is poisoned: every operation that uses it fails with that first error.
 *
 * Order. Each device executes its runs one at a time, in the order in which
 * they were enqueued, and waits inside a collective until every member of the
 * gang has arrived. Two devices that see two gangs in different orders would
 * wait for each other for ever: the scheduler decides the order and the driver
 * keeps it.
 *
 * A driver does not support entries that are NULL in its table; the wrappers
 * then return UNIMPLEMENTED with the driver's name. All calls are for the
 * owner's loop. One suite, tests/conformance/device, runs on every driver. */
#ifndef TOW_DEVICE_DEVICE_H_
#define TOW_DEVICE_DEVICE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <towpath/types.h>

#include "base/status.h"
#include "env/env.h"

typedef struct tow_driver tow_driver_t;
typedef struct tow_driver_ops tow_driver_ops_t;
typedef struct tow_executable tow_executable_t;
typedef struct tow_buffer tow_buffer_t;
typedef struct tow_compile tow_compile_t;
typedef struct tow_upload tow_upload_t;
typedef struct tow_download tow_download_t;
typedef struct tow_buffer_share tow_buffer_share_t;
typedef struct tow_copy tow_copy_t;
typedef struct tow_run tow_run_t;

#define TOW_RANK_MAX 32

/* -- Arrays ----------------------------------------------------------------- */

/* Bits of one element; 0 for a token and for an unknown number. */
uint32_t tow_type_bits(tow_type_t type);
/* "f32", "pred"; "?" for an unknown number. Static. */
const char *tow_type_name(tow_type_t type);
/* The reverse; TOW_TYPE_INVALID for an unknown name. */
tow_type_t tow_type_parse(const char *name);

/* True if arrays of the type can be reduced so. Complex numbers have no order;
 * types smaller than a byte and 8-bit floats are not summed. */
bool tow_type_is_reducible(tow_type_t type, tow_reduction_t reduction);
/* "sum", "product", "min", "max"; "?" for an unknown number. Static. */
const char *tow_reduction_name(tow_reduction_t reduction);
/* The reverse; 0 for an unknown name. */
tow_reduction_t tow_reduction_parse(const char *name);

/* One array on one device. Dense, row major. */
typedef struct tow_shape {
    tow_type_t type;
    uint32_t rank;
    int64_t dims[TOW_RANK_MAX];
} tow_shape_t;

/* Bytes of the dense array in host memory, where elements smaller than a byte
 * take one byte each. OUT_OF_RANGE when a dimension is negative or the product
 * passes 2^63 - 1; INVALID_ARGUMENT for a type without a size, or a rank above
 * TOW_RANK_MAX. */
tow_status_t tow_shape_bytes(const tow_shape_t *shape, uint64_t *out_bytes)
    TOW_MUST_USE;
bool tow_shape_equal(const tow_shape_t *a, const tow_shape_t *b);
#define TOW_SHAPE_TEXT_MAX 768
/* "f32[2,3]" into `text`; returns `text`. */
const char *tow_shape_format(const tow_shape_t *shape,
                             char text[TOW_SHAPE_TEXT_MAX]);
/* The reverse. INVALID_ARGUMENT shows the right form. */
tow_status_t tow_shape_parse(const char *text, tow_shape_t *out_shape)
    TOW_MUST_USE;

/* -- Devices ---------------------------------------------------------------- */

/* A memory that the device can address. Buffers are in the default one. */
typedef struct tow_memory_info {
    int64_t id;
    const char *kind; /* "device", "pinned_host", "unpinned_host" */
    bool is_default;
} tow_memory_info_t;

typedef struct tow_device_info {
    int64_t id;       /* as in programs' device assignments */
    const char *kind; /* "cpu", "TPU v4": programs are compiled for a kind */
    const char *name; /* for people */
    uint64_t memory_bytes;             /* 0: the driver does not say */
    const tow_memory_info_t *memories; /* owned by the driver */
    size_t memory_count;               /* 0: the driver does not say */
} tow_device_info_t;

typedef struct tow_memory_stats {
    uint64_t bytes_in_use;
    uint64_t bytes_peak;
    uint64_t bytes_limit; /* 0: none is known */
} tow_memory_stats_t;

struct tow_driver { /* first member of each driver's struct */
    const tow_driver_ops_t *ops;
    tow_env_t *env;       /* lent, outlives the driver */
    const char *name;     /* "pjrt", "sim", "null" */
    const char *platform; /* "cpu", "cuda", "tpu", ...; as the plugin says */
    const char *version;  /* of the plugin, for people */
    /* Newest version of StableHLO that its compiler reads, "1.13.7"; NULL: it
     * does not say. */
    const char *stablehlo;
    const tow_device_info_t *devices; /* owned by the driver */
    size_t device_count;
    bool simulated; /* every output of ours says so */
    /* A deferred upload without bytes takes no memory of the device before it
     * is settled. */
    bool has_free_promises;
};

/* A completed run on one device: times of CLOCK_MONOTONIC, its name
 * truncated. */
typedef struct tow_executed {
    int64_t start_ns;
    int64_t end_ns;
    uint64_t gang_id;
    char name[40];
} tow_executed_t;

/* -- Executables ------------------------------------------------------------ */

typedef enum tow_program_format {
    TOW_PROGRAM_MLIR, /* StableHLO: text, or a portable artifact */
    TOW_PROGRAM_COST, /* a cost model of a program: src/device/sim/cost.h */
    TOW_PROGRAM_HOST, /* a shared object for hosts: include/towpath/host.h */
} tow_program_format_t;

typedef struct tow_bytes {
    const void *data;
    size_t size;
} tow_bytes_t;

/* Where the program wants a result. A driver may have only one memory. */
typedef enum tow_memory_kind {
    TOW_MEMORY_DEVICE,
    TOW_MEMORY_PINNED_HOST,
    TOW_MEMORY_UNPINNED_HOST,
    TOW_MEMORY_KIND_COUNT,
} tow_memory_kind_t;

/* One argument or result on one device: dense, row major. */
typedef struct tow_array_info {
    tow_shape_t shape;
    uint64_t bytes; /* on the device */
    /* An xla.OpSharding. The data is NULL if it is unknown or absent; a
     * replicated array's has no bytes. */
    tow_bytes_t sharding;
    /* Bit i: shape.dims[i] is an upper bound; the actual size is known when the
     * array is ready. Of host functions only. */
    uint32_t bounds;
    tow_memory_kind_t memory; /* of a result */
    /* Byte i: the dimension in the program that shape.dims[i] is; the sharding
     * counts dimensions as the program does. Empty: dimension i. */
    tow_bytes_t order;
} tow_array_info_t;

typedef struct tow_alias {
    size_t result;
    size_t argument;
    bool required; /* otherwise an argument that is not donated is copied */
} tow_alias_t;

/* An executable's interface. Lent by the executable. */
typedef struct tow_signature {
    const char *name;
    size_t replica_count;
    size_t partition_count;
    /* TOW_COUNT_UNKNOWN if the driver does not know; then the aliases are
     * unknown, too. */
    size_t argument_count;
    const tow_array_info_t *arguments;
    size_t result_count;
    const tow_array_info_t *results;
    size_t alias_count;
    const tow_alias_t *aliases;
    uint64_t code_bytes;      /* 0: unknown */
    uint64_t temporary_bytes; /* while it runs, per device; 0: unknown */
    /* Of one execution on one device, as the compiler estimates; 0: unknown. */
    double flops;
    double bytes_accessed;
    double transcendentals;
    bool is_host; /* a host function: runs on the worker's host, shard by shard;
                     its name is the symbol */
} tow_signature_t;

#define TOW_COUNT_UNKNOWN SIZE_MAX

struct tow_executable { /* first member of each driver's struct; counted */
    tow_driver_t *driver;
    tow_signature_t signature;
    /* Indices into driver->devices, in the order of the run's arrays. */
    const size_t *local_devices;
    size_t local_device_count;
};

/* Owned by the caller until `done`. */
struct tow_compile {
    tow_program_format_t format;
    tow_bytes_t program; /* lent until done */
    /* A serialised CompileOptionsProto; size 0: one device, the driver's
     * first. */
    tow_bytes_t options; /* lent until done */
    /* On TOW_OK the caller gets one reference. An error has the compiler's
     * message. */
    void (*done)(tow_compile_t *compile, tow_status_t take_status,
                 tow_executable_t *take_executable);
    void *private_[6];
};

/* -- Buffers ---------------------------------------------------------------- */

struct tow_buffer { /* first member of each driver's struct; counted */
    tow_driver_t *driver;
    size_t device; /* index into driver->devices */
    tow_shape_t shape;
    uint64_t bytes;
    uint64_t mark_; /* belongs to tow_driver_run */
    /* Belongs to store/shard_store.h: objects that it is a shard of. */
    uint32_t shelf_count_;
};

typedef enum tow_buffer_state {
    TOW_BUFFER_PENDING,
    TOW_BUFFER_READY,
    TOW_BUFFER_FAILED,
    TOW_BUFFER_DONATED, /* consumed by a run; no longer usable */
} tow_buffer_state_t;

/* Owned by the caller until `done`. */
struct tow_upload {
    size_t device;
    tow_shape_t shape;
    const void *bytes; /* lent until done; dense, row major */
    /* One reference for the caller, valid once the call returns TOW_OK. */
    tow_buffer_t *buffer;
    /* The driver no longer needs `bytes`. If it uses the caller's memory
     * without a copy, this is when the buffer is freed. */
    void (*done)(tow_upload_t *upload, tow_status_t take_status);
    /* The driver may use the caller's memory until the buffer is freed. */
    bool may_alias;
    /* With may_alias: a run that the buffer is donated to may overwrite that
     * memory with its result. Read when the bytes are handed over. */
    bool may_overwrite;
    /* A deferred upload: the bytes are not there yet. The buffer is PENDING,
     * runs that use it may be enqueued, and the driver reads `bytes` only after
     * tow_upload_settle: until then it may be NULL. */
    bool is_deferred;
    void *private_[6];
};

/* Owned by the caller until `done`. Waits for the buffer's producer. */
struct tow_download {
    tow_buffer_t *buffer; /* lent until done */
    void *bytes;
    size_t size; /* at least tow_shape_bytes of its shape */
    void (*done)(tow_download_t *download, tow_status_t take_status);
    void *private_[6];
};

/* Owned by the caller until `done` reports an error, or until
 * tow_buffer_share_end. Waits for the buffer's producer, then shares the
 * buffer's bytes in host memory: without a copy where the host can address
 * them. Until the share ends no later run destroys them: a run that would
 * consume the buffer waits, or works on a copy. */
struct tow_buffer_share {
    tow_buffer_t *buffer; /* lent until the share ends */
    /* On TOW_OK: dense, row major, valid until tow_buffer_share_end. */
    const void *bytes;
    void (*done)(tow_buffer_share_t *share, tow_status_t take_status);
    void *private_[9];
};

/* Owned by the caller until `done`. Copies a buffer, which may be PENDING, to
 * another device of the driver, or to the same. */
struct tow_copy {
    tow_buffer_t *source; /* lent for the call */
    size_t device;
    /* One reference for the caller, valid once the call returns TOW_OK.
     * Poisoned if the source is. */
    tow_buffer_t *buffer;
    /* Its completion may be reported together with those of runs in progress,
     * as in tow_run_t: for one of many copies. */
    bool may_coalesce;
    /* The value is ready, or has failed. */
    void (*done)(tow_copy_t *copy, tow_status_t take_status);
    void *private_[8];
};

/* -- Runs ------------------------------------------------------------------- */

/* How long runs kept their devices. */
typedef struct tow_device_time {
    uint64_t busy_ns; /* sum over devices, without waits in collectives */
    uint64_t wait_ns; /* sum over devices: waits for other members of a gang */
    uint64_t longest_ns; /* busy and waiting, of the device kept longest */
} tow_device_time_t;

/* Adds the time of one more device. */
static inline void tow_device_time_add(tow_device_time_t *time,
                                       uint64_t busy_ns, uint64_t wait_ns)
{
    const uint64_t kept_ns = busy_ns + wait_ns;
    time->busy_ns += busy_ns;
    time->wait_ns += wait_ns;
    if (kept_ns > time->longest_ns) time->longest_ns = kept_ns;
}

/* Adds the time of other devices. */
static inline void tow_device_time_merge(tow_device_time_t *time,
                                         const tow_device_time_t *other)
{
    time->busy_ns += other->busy_ns;
    time->wait_ns += other->wait_ns;
    if (other->longest_ns > time->longest_ns)
        time->longest_ns = other->longest_ns;
}

/* One execution of one executable on its local devices: this host's part of a
 * gang. Owned by the caller until `done`. */
struct tow_run {
    tow_executable_t *executable; /* lent for the call */
    /* The same on all hosts of the gang, and different for all other runs in
     * progress. */
    uint64_t gang_id;
    /* Device by device: arguments[d * argument_count + i]. Lent for the call:
     * the driver keeps its own references. */
    tow_buffer_t *const *arguments;
    size_t argument_count;
    /* Arguments that must not be donated although the program donates them. */
    const size_t *non_donatable_arguments; /* lent for the call */
    size_t non_donatable_argument_count;
    /* Space for local_device_count * result_count handles. The call fills them
     * in, one reference each, also if the run fails later. */
    tow_buffer_t **results;
    /* The driver may compute on the caller's thread, within the call: for
     * programs so small that a hand-over to a thread costs more, and that do
     * not wait for other runs. */
    bool may_block;
    /* The driver may start the computation on the caller's thread, for a
     * fraction of a millisecond within the call, and continue it in later turns
     * of the loop. For a run whose latency matters while the loop is otherwise
     * idle. */
    bool may_start_inline;
    /* Its completion may be reported together with those of other runs in
     * progress, a fraction of a millisecond later: for one of many runs. */
    bool may_coalesce;
    /* The first local shard has failed and others still run: at most once,
     * before `done`. They may wait for the failed one in a collective for ever:
     * the caller aborts the gang. `cause` is lent. May be NULL. */
    void (*failed)(tow_run_t *run, tow_status_t cause);
    /* All local shards have finished. The status is the first error, which
     * names the device. */
    void (*done)(tow_run_t *run, tow_status_t take_status);
    /* Valid in `done`: the time of the local devices, also of a run that failed
     * or was aborted. A driver that cannot tell waits apart counts them as
     * busy. Zero: the run did not reach a device, or the driver does not
     * know. */
    tow_device_time_t time;
    void *private_[8];
};

/* -- The table -------------------------------------------------------------- */

/* Only `close` is required; a driver that makes buffers or executables also has
 * their retain and release, and buffer_state. Drivers need not repeat the
 * checks of the wrappers: see the calls. */
struct tow_driver_ops {
    void (*close)(tow_driver_t *driver, tow_closed_t closed);
    tow_status_t (*memory_stats)(tow_driver_t *driver, size_t device,
                                 tow_memory_stats_t *out_stats);
    /* NULL: the driver does not measure it. */
    uint64_t (*recent_peak)(tow_driver_t *driver, size_t device);
    /* NULL: the driver counts all memory that its devices use by itself. */
    void (*borrow)(tow_driver_t *driver, size_t device, int64_t bytes);
    size_t (*executed)(tow_driver_t *driver, size_t device, tow_executed_t *out,
                       size_t capacity);
    tow_status_t (*compile)(tow_driver_t *driver, tow_compile_t *compile);
    tow_status_t (*load)(tow_driver_t *driver, tow_compile_t *load);
    tow_status_t (*serialize)(tow_executable_t *executable, void **out_bytes,
                              size_t *out_size);
    void (*executable_retain)(tow_executable_t *executable);
    void (*executable_release)(tow_executable_t *executable);
    tow_status_t (*allocate)(tow_driver_t *driver, size_t device,
                             const tow_shape_t *shape,
                             tow_buffer_t **out_buffer);
    tow_status_t (*upload)(tow_driver_t *driver, tow_upload_t *upload);
    /* NULL: the driver has no deferred uploads. */
    void (*upload_settle)(tow_driver_t *driver, tow_upload_t *upload,
                          tow_status_t take_status);
    tow_status_t (*download)(tow_driver_t *driver, tow_download_t *download);
    tow_status_t (*share)(tow_driver_t *driver, tow_buffer_share_t *share);
    void (*share_end)(tow_driver_t *driver, tow_buffer_share_t *share);
    /* NULL: exporting makes no difference to the driver. */
    bool (*share_export)(tow_driver_t *driver, tow_buffer_share_t *share);
    tow_status_t (*copy)(tow_driver_t *driver, tow_copy_t *copy);
    tow_buffer_state_t (*buffer_state)(tow_buffer_t *buffer);
    tow_status_t (*buffer_error)(tow_buffer_t *buffer);
    tow_status_t (*buffer_address)(tow_buffer_t *buffer, void **out_address);
    void (*buffer_retain)(tow_buffer_t *buffer);
    void (*buffer_release)(tow_buffer_t *buffer);
    tow_status_t (*run)(tow_driver_t *driver, tow_run_t *run);
    void (*abort)(tow_driver_t *driver, uint64_t gang_id, tow_status_t cause);
};

/* -- Calls ------------------------------------------------------------------ */

/* Refuses new work, waits for operations in progress and for the owner to
 * release its buffers and executables, frees the driver, and calls `closed`, in
 * a turn of its own. */
void tow_driver_close(tow_driver_t *driver, tow_closed_t closed);

tow_status_t tow_driver_memory_stats(tow_driver_t *driver, size_t device,
                                     tow_memory_stats_t *out_stats)
    TOW_MUST_USE;

/* The peak of bytes_in_use since the last call; 0: the driver does not know. */
uint64_t tow_driver_recent_peak(tow_driver_t *driver, size_t device);

/* Counts memory of the caller that belongs to a device but was not uploaded yet:
 * receive buffers. Negative when it no longer does. It is part of bytes_in_use
 * and of the peaks, but not limited. The driver counts aliased uploads by
 * itself. */
void tow_driver_borrow(tow_driver_t *driver, size_t device, int64_t bytes);

/* The last runs of a device, oldest first, for traces; returns how many. A
 * driver may record them only after the first call, or never. */
size_t tow_driver_executed(tow_driver_t *driver, size_t device,
                           tow_executed_t *out, size_t capacity);

/* Compiles for the devices that the options assign. If some belong to other
 * hosts, the result can only be serialised. */
tow_status_t tow_driver_compile(tow_driver_t *driver, tow_compile_t *compile)
    TOW_MUST_USE;
/* Takes serialised bytes as `program` and loads them under the device
 * assignment of `options`, without compiling. */
tow_status_t tow_driver_load(tow_driver_t *driver, tow_compile_t *load)
    TOW_MUST_USE;
/* The bytes are the caller's; tow_free. */
tow_status_t tow_executable_serialize(tow_executable_t *executable,
                                      void **out_bytes, size_t *out_size)
    TOW_MUST_USE;
void tow_executable_retain(tow_executable_t *executable);
void tow_executable_release(tow_executable_t *executable);

/* Memory filled with zeroes: earlier content may be another tenant's. READY, or
 * PENDING until the driver has cleared it. RESOURCE_EXHAUSTED names the bytes
 * requested and available. */
tow_status_t tow_driver_allocate(tow_driver_t *driver, size_t device,
                                 const tow_shape_t *shape,
                                 tow_buffer_t **out_buffer) TOW_MUST_USE;
tow_status_t tow_driver_upload(tow_driver_t *driver, tow_upload_t *upload)
    TOW_MUST_USE;
tow_status_t tow_driver_download(tow_driver_t *driver, tow_download_t *download)
    TOW_MUST_USE;
/* Of a deferred upload, once: its bytes are in place; or an error, which
 * poisons the buffer. `done` follows as for any upload. A driver that closes
 * waits for all deferred uploads to be settled. */
void tow_upload_settle(tow_driver_t *driver, tow_upload_t *upload,
                       tow_status_t take_status);
tow_status_t tow_driver_share(tow_driver_t *driver, tow_buffer_share_t *share)
    TOW_MUST_USE;
void tow_buffer_share_end(tow_driver_t *driver, tow_buffer_share_t *share);
/* Another process uses the shared bytes in place until the share ends; once per
 * share, after a good `done`. True: the driver has taken the caller's reference
 * to the buffer, and when it is the last one the bytes no longer count against
 * this device's memory limit: the other process's device accounts for them.
 * False: it makes no difference to this driver. */
bool tow_buffer_share_export(tow_driver_t *driver, tow_buffer_share_t *share);
tow_status_t tow_driver_copy(tow_driver_t *driver, tow_copy_t *copy)
    TOW_MUST_USE;
tow_buffer_state_t tow_buffer_state(tow_buffer_t *buffer);
/* The error of a FAILED buffer; the caller gets a reference. TOW_OK
 * otherwise. */
tow_status_t tow_buffer_error(tow_buffer_t *buffer) TOW_MUST_USE;
/* The address of a READY buffer's bytes, if the host can address device memory.
 * UNIMPLEMENTED otherwise. */
tow_status_t tow_buffer_address(tow_buffer_t *buffer, void **out_address)
    TOW_MUST_USE;
void tow_buffer_retain(tow_buffer_t *buffer);
/* The memory is freed after the last reference and the device's last use. */
void tow_buffer_release(tow_buffer_t *buffer);

/* Enqueues a run. Errors of the call: wrong counts, shapes, types or devices,
 * buffers that were donated, or one that is donated and passed twice; or
 * RESOURCE_EXHAUSTED, if the driver sees at once that the results do not fit.
 * Then nothing was enqueued, and `done` does not run. Later errors fail the run
 * and its results, and its donated arguments are consumed. */
tow_status_t tow_driver_run(tow_driver_t *driver, tow_run_t *run) TOW_MUST_USE;
/* Aborts the local members of the gang: they fail with `cause` (lent) as soon
 * as the device can. Harmless for a gang that does not run here. The worker of
 * a driver that cannot abort must be ended instead. */
bool tow_driver_can_abort(const tow_driver_t *driver);
void tow_driver_abort(tow_driver_t *driver, uint64_t gang_id,
                      tow_status_t cause);

#endif /* TOW_DEVICE_DEVICE_H_ */
