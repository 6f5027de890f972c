/* The records of the simulated driver.
 *
 * Calls change queues and flags and request a turn (tow_sim_driver_kick);
 * devices advance only in turns of the env: that post, the timers of devices,
 * and the timers of their host links. So nothing completes within a call, and
 * calls from within completions are safe. */
#ifndef TOW_DEVICE_SIM_DRIVER_IMPL_H_
#define TOW_DEVICE_SIM_DRIVER_IMPL_H_

#include "base/list.h"
#include "device/sim/cost.h"
#include "device/sim/fabric_impl.h"
#include "device/sim/sim_device.h"

typedef struct driver driver_t;
typedef struct device device_t;
typedef struct job job_t;

/* Waits for a buffer: until it is ready or has failed and, to consume it, until
 * no operation reads it. */
typedef struct waiter {
    tow_list_t link;
    void (*wake)(struct waiter *waiter);
} waiter_t;

/* -- Buffers --------------------------------------------------------------- */

typedef struct buffer {
    tow_buffer_t base;
    uint32_t reference_count;
    uint32_t reader_count;    /* downloads, shares and copies in progress */
    tow_buffer_state_t state; /* PENDING, READY, FAILED */
    bool is_donated;
    bool is_cleared; /* shows zeroes, whatever the value is */
    uint64_t value;
    void *content;         /* owned; NULL: the value determines it */
    void *shared;          /* owned; bytes that show the value, while shared */
    uint32_t share_count;  /* of `shared` */
    tow_status_t error;    /* counted; when FAILED */
    uint64_t memory_bytes; /* of the device, that it occupies */
    bool has_memory;       /* of a result: its run has started */
    int64_t ready_ns;      /* on the time line of its device; 0: always was */
    int64_t unread_ns;     /* the last operation that read it has ended */
    tow_list_t waiters;
    tow_list_t in_driver;
} buffer_t;

/* A buffer with memory of the device, PENDING, one reference. */
tow_status_t tow_sim_buffer_make(driver_t *driver, size_t device,
                                 const tow_shape_t *shape,
                                 buffer_t **out_buffer) TOW_MUST_USE;
/* The same without memory: a deferred upload, which takes it when it is
 * settled. */
tow_status_t tow_sim_buffer_make_promise(driver_t *driver, size_t device,
                                         const tow_shape_t *shape,
                                         buffer_t **out_buffer) TOW_MUST_USE;
/* No effect if it has its memory. */
tow_status_t tow_sim_buffer_take_memory(buffer_t *buffer) TOW_MUST_USE;
/* The same without memory: a result, whose run allocates it. NULL when the
 * host's memory is exhausted. */
buffer_t *tow_sim_buffer_make_bare(driver_t *driver, size_t device,
                                   const tow_array_info_t *array);
void tow_sim_buffer_unref(buffer_t *buffer);
void tow_sim_buffer_ready(buffer_t *buffer, int64_t ready_ns);
void tow_sim_buffer_fail(buffer_t *buffer, tow_status_t cause);
void tow_sim_buffer_wait(buffer_t *buffer, waiter_t *waiter);
void tow_sim_buffer_wake(buffer_t *buffer);
/* Asserts the invariants, as the other _check functions (check.c). */
void tow_sim_buffer_check(const buffer_t *buffer);
/* Frees it whatever its reference count. */
void tow_sim_buffer_free(buffer_t *buffer);

tow_status_t tow_sim_allocate(tow_driver_t *driver, size_t device,
                              const tow_shape_t *shape,
                              tow_buffer_t **out_buffer);
tow_buffer_state_t tow_sim_buffer_state(tow_buffer_t *buffer);
tow_status_t tow_sim_buffer_error(tow_buffer_t *buffer);
void tow_sim_buffer_retain(tow_buffer_t *buffer);
void tow_sim_buffer_release(tow_buffer_t *buffer);

/* -- Transfers ------------------------------------------------------------- */

typedef enum lane_kind {
    LANE_UPLOADS,
    LANE_DOWNLOADS, /* and shares */
    LANE_COPIES,    /* out of the device to others, or within it */
    LANE_COUNT,
} lane_kind_t;

/* One direction of a device's host link, or its link to other devices: one
 * transfer after the other. */
typedef struct lane {
    tow_timer_t timer;
    tow_list_t transfers;
    uint32_t count; /* including those that wait for their buffer */
    bool is_busy;
    lane_kind_t kind;
    device_t *device;
} lane_t;

tow_status_t tow_sim_upload(tow_driver_t *driver, tow_upload_t *upload);
tow_status_t tow_sim_download(tow_driver_t *driver, tow_download_t *download);
void tow_sim_upload_settle(tow_driver_t *driver, tow_upload_t *upload,
                           tow_status_t take_status);
tow_status_t tow_sim_share(tow_driver_t *driver, tow_buffer_share_t *share);
void tow_sim_share_end(tow_driver_t *driver, tow_buffer_share_t *share);
tow_status_t tow_sim_copy(tow_driver_t *driver, tow_copy_t *copy);
void tow_sim_lane_init(lane_t *lane, device_t *device, lane_kind_t kind);
/* Starts the first transfer if none is in progress; if the driver is closing,
 * cancels them all. */
void tow_sim_lane_advance(lane_t *lane);
void tow_sim_lane_check(const lane_t *lane);

/* -- Executables ----------------------------------------------------------- */

/* A part of an execution on the model: a pause, then a collective. */
typedef struct stage {
    uint64_t pause_ns; /* computing */
    bool has_collective;
    tow_sim_collective_kind_t kind;
    uint32_t group_size;
    uint32_t stride;
    uint64_t bytes;
    uint64_t duration_ns; /* of the collective */
} stage_t;

typedef struct executable {
    tow_executable_t base;
    uint32_t reference_count;
    tow_sim_cost_t cost;
    uint64_t value; /* of the program's name */
    stage_t *stages;
    size_t stage_count;
    assignment_t *assignment; /* counted */
    size_t *local_devices;
    uint32_t *local_positions; /* in the assignment */
    tow_list_t in_driver;
} executable_t;

tow_status_t tow_sim_compile(tow_driver_t *driver, tow_compile_t *compile);
tow_status_t tow_sim_load(tow_driver_t *driver, tow_compile_t *load);
tow_status_t tow_sim_serialize(tow_executable_t *executable, void **out_bytes,
                               size_t *out_size);
void tow_sim_executable_retain(tow_executable_t *executable);
void tow_sim_executable_release(tow_executable_t *executable);
void tow_sim_executable_unref(executable_t *executable);
void tow_sim_executable_free(executable_t *executable);
/* Runs `done` of compiles and loads. */
void tow_sim_compiles_finish(driver_t *driver);
/* The process has died: no `done` runs. */
void tow_sim_compiles_discard(driver_t *driver);

/* The device assignment of a serialised CompileOptionsProto. */
typedef struct compile_options {
    uint32_t replica_count;
    uint32_t partition_count;
    int64_t *ids; /* owned; replica by replica; NULL: none is given */
} compile_options_t;

tow_status_t tow_sim_compile_options_read(tow_bytes_t bytes,
                                          compile_options_t *out_options)
    TOW_MUST_USE;

/* -- Runs ------------------------------------------------------------------ */

/* One device's part of a run. */
typedef struct shard {
    tow_list_t in_queue;
    job_t *job;
    uint32_t local; /* index into the executable's local devices */
} shard_t;

/* One run. */
struct job {
    tow_run_t *run;
    driver_t *driver;
    executable_t *executable; /* counted */
    uint64_t gang_id;
    int64_t enqueued_ns;
    uint32_t unfinished_count;
    tow_status_t error; /* counted; the first one */
    tow_status_t abort; /* counted; the cause of its abort */
    tow_list_t in_driver;
    buffer_t **arguments; /* counted, device by device */
    buffer_t **results;   /* counted, device by device */
    bool *is_consumed;    /* by argument */
    shard_t shards[];
};

typedef enum device_stage {
    DEVICE_IDLE,
    DEVICE_WAITING,       /* for an input of the first shard */
    DEVICE_COMPUTING,     /* until the timer */
    DEVICE_IN_COLLECTIVE, /* in a collective, until the timer */
} device_stage_t;

struct device {
    driver_t *driver;
    size_t index;
    tow_list_t queue; /* shards; the first one runs */
    uint32_t queued_count;
    device_stage_t stage;
    size_t stage_index; /* of the executable */
    uint64_t value;     /* of the first shard so far */
    uint64_t temporary_bytes;
    /* The device's own time: when its stage is due to end, or when it arrived
     * in the collective; if it is idle, when its last run ended. Timers may
     * fire later. */
    int64_t at_ns;
    uint64_t busy_ns; /* of the first shard, until at_ns */
    uint64_t wait_ns;
    tow_timer_t timer;
    waiter_t waiter;
    member_t member;
    lane_t lanes[LANE_COUNT];
    tow_memory_stats_t memory;
    tow_list_t in_dirty; /* or in touched, or in neither */
};

tow_status_t tow_sim_run_enqueue(tow_driver_t *driver, tow_run_t *run);
void tow_sim_abort(tow_driver_t *driver, uint64_t gang_id, tow_status_t cause);
void tow_sim_device_init(device_t *device);
/* Advances as far as possible, to the next wait. */
void tow_sim_device_advance(device_t *device);
/* Between advances. */
void tow_sim_device_check(const device_t *device);
/* Frees its memory; not the buffers and executables that it refers to. */
void tow_sim_job_free(job_t *job);

/* RESOURCE_EXHAUSTED names the bytes requested and available. */
tow_status_t tow_sim_memory_take(device_t *device, uint64_t bytes,
                                 const char *what) TOW_MUST_USE;
void tow_sim_memory_give(device_t *device, uint64_t bytes);

/* -- The driver ------------------------------------------------------------ */

struct driver {
    tow_driver_t base;
    tow_sim_model_t model;
    tow_sim_fabric_t *fabric;
    tow_sim_fabric_t *own_fabric; /* owned, or NULL */
    uint32_t speedup;
    uint32_t jitter_ppm;
    tow_sim_device_clock_t clock;
    tow_random_t random;
    device_t *devices;
    tow_device_info_t *infos;
    char *names;
    tow_list_t buffers;
    tow_list_t executables;
    tow_list_t jobs;
    tow_list_t touched;      /* devices to advance in the next kick */
    tow_list_t dirty;        /* devices to advance before this turn ends */
    tow_compile_t *compiles; /* whose `done` is to run; by private_[0] */
    tow_compile_t *compiles_last;
    tow_post_t kick;
    bool is_kicked;
    bool is_closing;
    tow_closed_t closed;
    tow_sim_device_counts_t counts;
};

static inline driver_t *tow_sim_driver_of(tow_driver_t *driver)
{
    return (driver_t *)driver;
}

/* From a call: requests a turn in which the device advances. */
void tow_sim_device_touch(device_t *device);
/* From a turn: the device advances before it ends. */
void tow_sim_device_mark(device_t *device);
void tow_sim_driver_kick(driver_t *driver);
/* At the end of every turn: advances the devices that were marked. */
void tow_sim_driver_process_marked(driver_t *driver);
tow_status_t tow_sim_check_open_driver(const driver_t *driver) TOW_MUST_USE;
/* Divides by the driver's speed-up. */
uint64_t tow_sim_scale_ns(const driver_t *driver, uint64_t ns);

#endif /* TOW_DEVICE_SIM_DRIVER_IMPL_H_ */
