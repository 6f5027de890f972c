/* The device driver interface: what the runtime asks of accelerators.
 *
 * A driver stands for one plugin, or one simulated host, and drives its local
 * devices for one owner, whose tow_env it was opened with. It is asynchronous
 * throughout: what takes time is an operation that the caller owns, and its
 * `done` runs in a turn of the owner's env, exactly once, never inside the call
 * that started it. Drivers have threads of their own; they are not seen here.
 *
 * Buffers are promises. What a run will produce has a handle at once, so the
 * next run can be enqueued behind it without waiting for a value. A buffer whose
 * producer failed is poisoned: whatever uses it fails with that first error.
 *
 * Order. Each device does its runs in the order in which they were enqueued, one
 * at a time, and waits inside a collective until every member of the gang has
 * arrived. So two devices that see two gangs in different orders wait for each
 * other for ever: the order is the scheduler's business, and the driver keeps
 * it.
 *
 * Entries that are NULL in the table are things that the driver cannot do; the
 * wrappers then answer UNIMPLEMENTED with the driver's name. All calls are for
 * the owner's loop. One suite, tests/conformance/device, runs on every driver. */
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
typedef struct tow_borrow tow_borrow_t;
typedef struct tow_copy tow_copy_t;
typedef struct tow_run tow_run_t;

#define TOW_RANK_MAX 32

/* -- Arrays ----------------------------------------------------------------- */

/* Bits of one element; 0 for a token and for a number that we do not know. */
uint32_t tow_type_bits(tow_type_t type);
/* "f32", "pred"; "?" for a number that we do not know. Static. */
const char *tow_type_name(tow_type_t type);
/* The reverse; TOW_TYPE_INVALID for a name that is none. */
tow_type_t tow_type_parse(const char *name);

/* Can arrays of that type be reduced so? Complex numbers have no order, and what
 * is smaller than a byte, or an 8-bit float, is not summed. */
bool tow_type_is_reducible(tow_type_t type, tow_reduction_t reduction);
/* "sum", "product", "min", "max"; "?" for none of them. Static. */
const char *tow_reduction_name(tow_reduction_t reduction);
/* The reverse; 0 for a name that is none. */
tow_reduction_t tow_reduction_parse(const char *name);

/* One array on one device. Dense, row major. */
typedef struct tow_shape {
    tow_type_t type;
    uint32_t rank;
    int64_t dims[TOW_RANK_MAX];
} tow_shape_t;

/* Bytes of the dense array in host memory, where elements of less than a byte
 * take one each. OUT_OF_RANGE when a dimension is negative or the product passes
 * 2^63 - 1; INVALID_ARGUMENT for a type that has no size, or a rank past
 * TOW_RANK_MAX. */
tow_status_t tow_shape_bytes(const tow_shape_t *shape, uint64_t *out_bytes)
    TOW_MUST_USE;
bool tow_shape_equal(const tow_shape_t *a, const tow_shape_t *b);
#define TOW_SHAPE_TEXT_MAX 768
/* "f32[2,3]" into `text`; returns `text`. */
const char *tow_shape_format(const tow_shape_t *shape,
                             char text[TOW_SHAPE_TEXT_MAX]);
/* The reverse of it. INVALID_ARGUMENT shows the right form. */
tow_status_t tow_shape_parse(const char *text, tow_shape_t *out_shape)
    TOW_MUST_USE;

/* -- Devices ---------------------------------------------------------------- */

/* A memory that the device can reach. Buffers are made in the default one. */
typedef struct tow_memory_info {
    int64_t id;
    const char *kind; /* "device", "pinned_host", "unpinned_host" */
    bool is_default;
} tow_memory_info_t;

typedef struct tow_device_info {
    int64_t id;       /* known to programs' device assignments */
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
    /* Newest version of StableHLO that its compiler reads, "1.13.7"; NULL: it does
     * not say. */
    const char *stablehlo;
    const tow_device_info_t *devices; /* owned by the driver */
    size_t device_count;
    bool simulated; /* every output of ours says so */
};

/* One run on one device, as it was: of CLOCK_MONOTONIC, and its name cut off. */
typedef struct tow_executed {
    int64_t start_ns;
    int64_t end_ns;
    uint64_t gang_id;
    char name[40];
} tow_executed_t;

/* -- Executables ------------------------------------------------------------ */

typedef enum tow_program_format {
    TOW_PROGRAM_MLIR, /* StableHLO: text, or a portable artifact */
    TOW_PROGRAM_COST, /* what it costs: src/device/sim/cost.h */
    TOW_PROGRAM_HOST, /* a shared object for hosts: include/towpath/host.h */
} tow_program_format_t;

typedef struct tow_bytes {
    const void *data;
    size_t size;
} tow_bytes_t;

/* Where the program wants a result. A driver may have one memory for them all. */
typedef enum tow_memory_kind {
    TOW_MEMORY_DEVICE,
    TOW_MEMORY_PINNED_HOST,
    TOW_MEMORY_UNPINNED_HOST,
    TOW_MEMORY_KIND_COUNT,
} tow_memory_kind_t;

/* One argument or result, as one device sees it: dense, row by row. */
typedef struct tow_array_info {
    tow_shape_t shape;
    uint64_t bytes; /* on the device */
    /* An xla.OpSharding. The data is NULL where it is not known or there is
     * none; that of a replicated array has no bytes. */
    tow_bytes_t sharding;
    /* Bit i: shape.dims[i] is the most that it can be, and what it is is known
     * when the array is there. Of host functions only. */
    uint32_t bounds;
    tow_memory_kind_t memory; /* of a result */
    /* Byte i: which dimension of the array in the program shape.dims[i] is; the
     * sharding counts as the program does. Empty: it is dimension i. */
    tow_bytes_t order;
} tow_array_info_t;

typedef struct tow_alias {
    size_t result;
    size_t argument;
    bool required; /* else an argument that may not be donated is copied */
} tow_alias_t;

/* What an executable is. Lent by it. */
typedef struct tow_signature {
    const char *name;
    size_t replica_count;
    size_t partition_count;
    /* Known only where the driver can tell: TOW_COUNT_UNKNOWN otherwise, and
     * then the aliases are not known either. */
    size_t argument_count;
    const tow_array_info_t *arguments;
    size_t result_count;
    const tow_array_info_t *results;
    size_t alias_count;
    const tow_alias_t *aliases;
    uint64_t code_bytes;      /* 0: not known */
    uint64_t temporary_bytes; /* while it runs, per device; 0: not known */
    /* Of one execution on one device, as the compiler reckons; 0: not known. */
    double flops;
    double bytes_accessed;
    double transcendentals;
    bool is_host; /* runs on the worker's host, shard by shard; its name is the
                     symbol */
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
    /* On TOW_OK the caller gets one reference. An error carries the compiler's
     * own words. */
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
    /* Belongs to store/shelf.h: objects that it is a shard of. */
    uint32_t shelf_count_;
};

typedef enum tow_buffer_state {
    TOW_BUFFER_PENDING,
    TOW_BUFFER_READY,
    TOW_BUFFER_FAILED,
    TOW_BUFFER_DONATED, /* given to a run; not usable any more */
} tow_buffer_state_t;

/* Owned by the caller until `done`. */
struct tow_upload {
    size_t device;
    tow_shape_t shape;
    const void *bytes; /* lent until done; dense, row major */
    /* One reference for the caller, there as soon as the call returns TOW_OK. */
    tow_buffer_t *buffer;
    /* The driver needs `bytes` no more. That may be only when the buffer is
     * freed, if it uses the caller's memory without a copy. */
    void (*done)(tow_upload_t *upload, tow_status_t take_status);
    /* May the driver use the caller's memory for the life of the buffer? */
    bool may_alias;
    /* The bytes are still to come: the buffer is PENDING, runs may be enqueued
     * behind it, and the driver looks at `bytes` only after
     * tow_upload_settle. */
    bool is_late;
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

/* Owned by the caller until `done` has told an error, or until it was given back.
 * Waits for the buffer's producer, then lends its bytes in host memory: without
 * a copy where the host can address them. Until they are given back no later run
 * destroys them: one that would consume the buffer waits, or works on a copy. */
struct tow_borrow {
    tow_buffer_t *buffer; /* lent until given back */
    /* On TOW_OK: dense, row major, lent until tow_borrow_give_back. */
    const void *bytes;
    void (*done)(tow_borrow_t *borrow, tow_status_t take_status);
    void *private_[9];
};

/* Owned by the caller until `done`. The value of a buffer on another device of
 * the driver, or on the same; also of one that is PENDING. */
struct tow_copy {
    tow_buffer_t *source; /* lent for the call */
    size_t device;
    /* One reference for the caller, there as soon as the call returns TOW_OK. It
     * is poisoned if the source is. */
    tow_buffer_t *buffer;
    /* While runs are under way its end may be told with theirs, as tow_run_t
     * says: for one of many, whose end nobody waits for. */
    bool may_be_late;
    /* The value is there, or will never be. */
    void (*done)(tow_copy_t *copy, tow_status_t take_status);
    void *private_[8];
};

/* -- Runs ------------------------------------------------------------------- */

/* One execution of one executable on its local devices: this host's part of a
 * gang. Owned by the caller until `done`. */
struct tow_run {
    tow_executable_t *executable; /* lent for the call */
    /* The same on all hosts of the gang, and on no other run that can be under
     * way. */
    uint64_t gang_id;
    /* Device by device: arguments[d * argument_count + i]. Lent for the call:
     * the driver keeps its own references. */
    tow_buffer_t *const *arguments;
    size_t argument_count;
    /* Arguments that must not be donated although the program would. */
    const size_t *kept_arguments; /* lent for the call */
    size_t kept_argument_count;
    /* Room for local_device_count * result_count handles. Filled in by the
     * call, one reference each, also when the run will fail. */
    tow_buffer_t **results;
    /* The call may take as long as the computation, where the driver can do it
     * on the caller's thread: for programs so small that handing them over
     * costs more, and that surely end by themselves. */
    bool may_block;
    /* The call may begin the computation on the caller's thread and take a
     * fraction of a millisecond for it; what is left then goes on in turns of
     * the loop. For a run that somebody waits for, with nothing else to do
     * here. */
    bool may_linger;
    /* While other runs are under way its end may be told with theirs, a fraction
     * of a millisecond late: for one of many, whose end nobody waits for. */
    bool may_be_late;
    /* A local shard has failed and others are still under way: at most once, for
     * the first, and before `done`. They may wait for the failed one in a
     * collective, for ever: whoever started the gang aborts it. `cause` is lent.
     * May be NULL. */
    void (*failed)(tow_run_t *run, tow_status_t cause);
    /* All local shards have finished. The error is the first one, and names the
     * device. */
    void (*done)(tow_run_t *run, tow_status_t take_status);
    void *private_[8];
};

/* -- The table -------------------------------------------------------------- */

/* Only `close` must be there; whoever can make a buffer or an executable also has
 * its retain and release, and buffer_state. What the wrappers have checked a
 * driver need not check again: see the calls. */
struct tow_driver_ops {
    void (*close)(tow_driver_t *driver, tow_closed_t closed);
    tow_status_t (*memory_stats)(tow_driver_t *driver, size_t device,
                                 tow_memory_stats_t *out_stats);
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
    /* Late uploads are for drivers that have this. */
    void (*upload_settle)(tow_driver_t *driver, tow_upload_t *upload,
                          tow_status_t take_status);
    tow_status_t (*download)(tow_driver_t *driver, tow_download_t *download);
    tow_status_t (*borrow)(tow_driver_t *driver, tow_borrow_t *borrow);
    void (*borrow_give_back)(tow_driver_t *driver, tow_borrow_t *borrow);
    /* NULL where it makes no difference. */
    bool (*borrow_lend)(tow_driver_t *driver, tow_borrow_t *borrow);
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

/* Refuses new work, waits for what is under way, and for the owner to release
 * its buffers and executables; then calls `closed`, in a turn of its own, and
 * the driver is gone. */
void tow_driver_close(tow_driver_t *driver, tow_closed_t closed);

tow_status_t tow_driver_memory_stats(tow_driver_t *driver, size_t device,
                                     tow_memory_stats_t *out_stats)
    TOW_MUST_USE;

/* The last runs of a device, oldest first, for traces; returns how many. A driver
 * may begin to remember them with the first call, and many never do. */
size_t tow_driver_executed(tow_driver_t *driver, size_t device,
                           tow_executed_t *out, size_t capacity);

/* Compiles for the devices that the options assign. A device that is not ours
 * is another member's: then the result serves to be serialised. */
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

/* Memory that holds zeroes, never what was there before: that may have been
 * another tenant's. READY, or PENDING until the driver has cleared it.
 * RESOURCE_EXHAUSTED says what was asked for and what there is. */
tow_status_t tow_driver_allocate(tow_driver_t *driver, size_t device,
                                 const tow_shape_t *shape,
                                 tow_buffer_t **out_buffer) TOW_MUST_USE;
tow_status_t tow_driver_upload(tow_driver_t *driver, tow_upload_t *upload)
    TOW_MUST_USE;
tow_status_t tow_driver_download(tow_driver_t *driver, tow_download_t *download)
    TOW_MUST_USE;
/* Of a late upload, once: its bytes are in place, or (an error) will never come,
 * and the buffer is poisoned with that. `done` follows as for any upload. A driver
 * that closes waits for it: whoever closes settles what is late, before or after. */
void tow_upload_settle(tow_driver_t *driver, tow_upload_t *upload,
                       tow_status_t take_status);
tow_status_t tow_driver_borrow(tow_driver_t *driver, tow_borrow_t *borrow)
    TOW_MUST_USE;
void tow_borrow_give_back(tow_driver_t *driver, tow_borrow_t *borrow);
/* Of one whose bytes are here and are not lent yet: until they are given back another
 * process uses them where they are. True: the driver has taken the caller's
 * reference to the buffer, and once nobody else has one the bytes no longer count
 * as in use here, nor against the device's limit: that process's device is
 * charged for them. False: it makes no difference to this driver. */
bool tow_borrow_lend(tow_driver_t *driver, tow_borrow_t *borrow);
tow_status_t tow_driver_copy(tow_driver_t *driver, tow_copy_t *copy)
    TOW_MUST_USE;
tow_buffer_state_t tow_buffer_state(tow_buffer_t *buffer);
/* Why it failed; the caller gets a reference. TOW_OK in other states. */
tow_status_t tow_buffer_error(tow_buffer_t *buffer) TOW_MUST_USE;
/* Where the bytes are, for hosts that can address device memory. UNIMPLEMENTED
 * otherwise. Only for a buffer that is READY. */
tow_status_t tow_buffer_address(tow_buffer_t *buffer, void **out_address)
    TOW_MUST_USE;
void tow_buffer_retain(tow_buffer_t *buffer);
/* The memory goes when the last reference and the last use by the device have
 * gone. */
void tow_buffer_release(tow_buffer_t *buffer);

/* Enqueues. Errors here are of the call: wrong counts, shapes, types, devices,
 * buffers that were donated, one that is donated and given twice; or
 * RESOURCE_EXHAUSTED, from a driver that sees at once that the results will not
 * fit. Nothing was enqueued then, and `done` will not run. What goes wrong after
 * that is an error of the run: it fails, its results too, and what it was to
 * consume is consumed. */
tow_status_t tow_driver_run(tow_driver_t *driver, tow_run_t *run) TOW_MUST_USE;
/* Makes our members of the gang give up: they fail with `cause` (lent) as soon
 * as the device can. Harmless for a gang that is not under way. A driver that
 * cannot abort has NULL here; its worker must be ended instead. */
bool tow_driver_can_abort(const tow_driver_t *driver);
void tow_driver_abort(tow_driver_t *driver, uint64_t gang_id,
                      tow_status_t cause);

#endif /* TOW_DEVICE_DEVICE_H_ */
