/* Internals of the transfer engine.
 *
 * A transfer has a job, and the job has parts: targets, copies, sources and
 * writes. Each part is a record of its own that may outlive the job: a transfer
 * that fails detaches all of them at once and ends, and each part is freed
 * after its last callback. A part whose `job` is NULL is detached. */
#ifndef TOW_DATAFLOW_TRANSFER_IMPL_H_
#define TOW_DATAFLOW_TRANSFER_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "dataflow/box_impl.h"
#include "dataflow/transfer.h"
#include "dataflow/tuning.h"

typedef struct job job_t;
typedef struct reduction reduction_t; /* transfer_reduce_impl.h */

/* Another worker that has sent us a message, or that we write to. */
typedef struct edge_peer {
    uint32_t process;
    uint32_t write_count; /* writes that use the address */
    uint32_t early_count;
    uint64_t early_bytes;
    uint8_t *address; /* owned; of its data plane; NULL: not known */
    size_t address_size;
    bool is_disconnected; /* freed after its last write */
    uint64_t reset_gang;  /* messages for gangs up to this may be lost */
} edge_peer_t;

/* A target shard that is made up of pieces. */
typedef struct target {
    tow_upload_t upload;
    tow_list_t in_engine;
    tow_transfer_engine_t *engine;
    job_t *job;   /* NULL: settled */
    void *bytes;  /* owned, until the device is done with it; NULL: none */
    void *packed; /* owned; where packed pieces are written; NULL: in `bytes` */
    tow_share_t *share; /* owned; the sender's memory, shared; or NULL */
    struct src *lender; /* our own source, whose memory it uses; or NULL */
    uint64_t size;
    int64_t counted_bytes; /* as the device's, until the driver counts them */
    tow_region_t *region;  /* NULL: none is open */
    uint64_t *arrived;     /* bits, by number: here_, or owned */
    uint64_t here_;
    uint32_t shard;
    uint32_t missing_count; /* pieces */
    size_t first_receive;   /* in the route */
    uint32_t receive_count;
    bool is_uploading; /* its callback is outstanding */
    bool is_closing;   /* the region */
    bool is_late;      /* `bytes` is counted in late_bytes */
    bool is_borrowed;  /* it has no memory, and will use that of its source */
} target_t;

/* A whole shard that the driver copies. */
typedef struct copy {
    tow_copy_t copy;
    tow_transfer_engine_t *engine;
    job_t *job;
    tow_list_t in_job;
} copy_t;

/* A borrowed source shard. */
typedef struct src {
    tow_buffer_share_t share;
    tow_transfer_engine_t *engine;
    job_t *job;
    uint32_t shard;
    uint32_t write_count;  /* under way, not shared */
    uint32_t shared_count; /* used by their receivers without a copy */
    uint64_t size;         /* of a sized transfer, once it is ready */
    bool is_ready;
    bool is_shared;  /* the driver keeps the buffer */
    bool is_serving; /* its pieces are being sent right now */
} source_t;

/* A large piece for another worker. */
typedef struct bulk {
    tow_transfer_write_t write;
    tow_msg_lane_target_t target;
    tow_list_t in_engine;
    tow_list_t in_job;
    tow_transfer_engine_t *engine;
    job_t *job;
    source_t *src;
    const tow_piece_t *piece; /* of the route, while there is a job */
    edge_peer_t *peer;        /* once it is offered */
    void *packed;             /* owned; NULL: the source's bytes */
    uint64_t packed_size;
    size_t packed_device; /* of the source, which `packed` counts for */
    bool is_writing;
    bool is_shared; /* detached from its job */
} bulk_t;

/* Small pieces for a worker without a connection yet. */
typedef struct hold {
    tow_list_t in_job;
    uint32_t process;
} hold_t;

struct job {
    tow_transfer_engine_t *engine;
    tow_transfer_t *transfer;
    const tow_route_t *route; /* lent by the transfer; NULL: a collective */
    const tow_collective_part_t
        *part; /* lent by the transfer; NULL: a transfer */
    uint64_t gang;
    tow_list_t in_engine; /* under way, or ended and not reported */
    tow_status_t error;   /* owned */
    uint32_t open_count;  /* parts that have not ended */
    bool is_listed;       /* by its gang */
    bool is_ended;
    bool is_held;           /* it has only targets, without memory */
    tow_buffer_t **held;    /* owned; of a held job: its sources, counted */
    bool *is_sized;         /* owned; by target shard; NULL: sizes are known */
    uint32_t unsized_count; /* targets */
    uint32_t target_count, source_count; /* of the tables */
    target_t **targets; /* by shard; NULL: the driver's copy, or settled */
    source_t **sources; /* by shard; NULL: not needed, or ended */
    tow_list_t copies;
    tow_list_t bulks;
    tow_list_t holds;
    target_t *targets_here[TOW_TRANSFER_INLINE_COUNT];
    source_t *sources_here[TOW_TRANSFER_INLINE_COUNT];
    uint32_t reduction_count;
    reduction_t **reductions; /* owned; by group, then tensor; NULL: settled */
};

/* A part of a chunk: our own shards, and the contributions of some members. */
typedef struct reduce_task {
    reduction_t *reduction;
    uint32_t chunk;
    uint32_t from, until; /* members */
    bool loads;           /* our shards too */
} reduce_task_t;

/* A large chunk for another worker. */
typedef struct reduce_post {
    tow_transfer_write_t write;
    tow_msg_lane_target_t target;
    tow_list_t in_engine;
    reduction_t *reduction;
    edge_peer_t *peer;
    uint32_t phase;
} reduce_post_t;

typedef enum early_kind {
    EARLY_PIECE,
    EARLY_OFFER,
    EARLY_SIZE,
} early_kind_t;

/* A message that arrived before its grant. */
typedef struct early {
    tow_list_t in_gang;
    early_kind_t kind;
    uint32_t process;
    uint32_t shard;
    uint32_t number;
    uint32_t size;
    tow_region_key_t key; /* of an offer */
    uint8_t *bytes;       /* `here`, or owned */
    uint8_t here[TOW_TRANSFER_EARLY_INLINE_BYTES];
} early_t;

typedef struct early_gang {
    uint64_t gang;
    tow_list_t in_order;
    tow_list_t items;
} early_gang_t;

/* A small free block; the link is stored in it. */
typedef struct spare {
    struct spare *next;
} spare_t;

struct tow_transfer_engine {
    tow_transfer_engine_options_t options;
    tow_driver_t *driver;   /* the options' */
    tow_env_t *env;         /* the driver's */
    tow_map_t jobs_by_gang; /* those with parts on other workers */
    tow_list_t jobs;        /* under way */
    tow_list_t ended;       /* to be reported */
    tow_post_t report;
    bool is_reporting;  /* the post is queued */
    uint32_t depth;     /* of calls that must not call back */
    tow_list_t targets; /* all records */
    tow_list_t bulks;   /* all records */
    tow_pool_t job_pool, target_pool, copy_pool, source_pool, bulk_pool,
        hold_pool;
    tow_map_t peers;         /* by process, of owned edge_peer_t */
    uint64_t reset_gang_max; /* of these peers and of former ones */
    /* -- Early messages. */
    tow_map_t early_by_gang;
    tow_list_t early_order; /* ascending */
    tow_pool_t early_pool, early_gang_pool;
    uint64_t last_gang; /* granted */
    /* -- Memory. */
    spare_t *spares;
    uint32_t spare_count;
    uint8_t
        *scratch; /* owned; TOW_TRANSFER_EAGER_BYTES, to pack small pieces */
    /* Process -> number of the target that was last offered to it. */
    tow_map_t offered;
    uintptr_t offer_number;
    /* -- Collectives. */
    tow_list_t reductions; /* all records */
    tow_list_t posts;      /* all records */
    tow_list_t ready;      /* reductions with chunks to combine, in order */
    tow_pool_t reduction_pool, post_pool;
    tow_work_t work; /* combines `tasks`, if there are any */
    uint32_t task_count;
    reduce_task_t tasks[TOW_REDUCE_BATCH_COUNT];
    /* -- Late transfers. */
    void (*freed)(void *context); /* NULL: nobody watches */
    void *freed_context;
    tow_transfer_engine_stats_t stats;
};

/* -- transfer.c ------------------------------------------------------------ */

/* A part has ended. After the last one the transfer ends: at once, or, within a
 * call of the owner, in a turn of its own. The job must not be used
 * afterwards. */
void transfer_part_ended(job_t *job);
/* Detaches all parts. The first error counts. */
void transfer_fail(job_t *job, tow_status_t take_cause);
/* From another worker, for a transfer or a collective. An error: it broke the
 * protocol. */
tow_status_t transfer_take_offer(job_t *job, edge_peer_t *peer, uint32_t shard,
                                 tow_region_key_t key) TOW_MUST_USE;
tow_status_t transfer_take_piece(job_t *job, uint32_t process, uint32_t shard,
                                 uint32_t number, const void *bytes,
                                 size_t size) TOW_MUST_USE;
/* Call after a part was freed: notifies the owner if it was the last. */
void transfer_check_quiet(tow_transfer_engine_t *engine);
edge_peer_t *transfer_peer(tow_transfer_engine_t *engine,
                           uint32_t process); /* NULL: no memory */
void transfer_peer_unused(tow_transfer_engine_t *engine, edge_peer_t *peer);

/* Both ends use the same limit. */
static inline bool is_large(uint64_t bytes)
{
    return bytes > TOW_TRANSFER_EAGER_BYTES;
}

/* A piece of a sized transfer is a whole shard, and its route has only the
 * bound. */
static inline uint64_t target_piece_bytes(const job_t *job,
                                          const target_t *target,
                                          const tow_piece_t *piece)
{
    return TOW_UNLIKELY(job->is_sized != NULL) ? target->size : piece->bytes;
}

static inline uint64_t source_piece_bytes(const job_t *job, const source_t *src,
                                          const tow_piece_t *piece)
{
    return TOW_UNLIKELY(job->is_sized != NULL) ? src->size : piece->bytes;
}

/* -- transfer_target.c ----------------------------------------------------- */

/* Starts all targets, without sending messages. */
tow_status_t transfer_targets_start(job_t *job) TOW_MUST_USE;
/* The same in two steps: buffers only, and the rest. */
tow_status_t transfer_targets_promise(job_t *job) TOW_MUST_USE;
tow_status_t transfer_targets_begin(job_t *job) TOW_MUST_USE;
void transfer_targets_offer(job_t *job);
/* The size of a shard that `process` will send, of a sized transfer. */
tow_status_t transfer_target_size(job_t *job, uint32_t process, uint32_t shard,
                                  const int64_t *dims, size_t rank)
    TOW_MUST_USE;
/* Poisons their buffers. */
void transfer_targets_fail(job_t *job, tow_status_t cause);
/* Copies the bytes of a piece, dense or laid out as in our own source shard, to
 * their place. */
void transfer_target_take(target_t *target, const tow_piece_t *piece,
                          const void *bytes, const box_side_t *from);
/* A piece that arrived in a message. An error: the sender broke the
 * protocol. */
tow_status_t transfer_target_piece(job_t *job, uint32_t process, uint32_t shard,
                                   uint32_t number, const void *bytes,
                                   size_t size) TOW_MUST_USE;
bool transfer_target_has(const target_t *target, uint32_t number);
/* The bytes of a piece are in place. */
void transfer_target_note(target_t *target, uint32_t number);
void transfer_targets_discard(tow_transfer_engine_t *engine);

/* -- transfer_source.c ----------------------------------------------------- */

tow_status_t transfer_sources_start(job_t *job) TOW_MUST_USE;
/* Keeps the sources of a held job. */
tow_status_t transfer_sources_hold(job_t *job) TOW_MUST_USE;
void transfer_sources_unhold(job_t *job);
/* The target uses the source's memory, or does not any more. */
void transfer_source_lend(source_t *src, target_t *target);
void transfer_source_return(source_t *src);
void transfer_sources_cancel(job_t *job);
/* The connection to that worker is open. */
void transfer_sources_release(job_t *job, uint32_t process);
tow_status_t transfer_source_offer(job_t *job, edge_peer_t *peer,
                                   uint32_t shard, tow_region_key_t key)
    TOW_MUST_USE;
void transfer_sources_discard(tow_transfer_engine_t *engine);

/* Keeps the transfer open until the connection to that worker is open. False:
 * no memory. */
bool transfer_hold(job_t *job, uint32_t process);

/* A copy of a buffer, which may still be a promise, as a part of the job. */
tow_status_t transfer_copy_start(job_t *job, tow_buffer_t *source,
                                 size_t device, tow_buffer_t **out_buffer)
    TOW_MUST_USE;

/* -- transfer_reduce*.c: collectives --------------------------------------- */

void transfer_reduce_init(tow_transfer_engine_t *engine);
tow_status_t transfer_reduce_start(job_t *job) TOW_MUST_USE;
void transfer_reduce_announce(job_t *job);
void transfer_reduce_fail(job_t *job, tow_status_t cause);
bool transfer_reduce_has_others(const tow_collective_part_t *part);
bool transfer_reduce_waits_for(const job_t *job, uint32_t process);
bool transfer_reduce_sends_to(const job_t *job, uint32_t process);
tow_status_t transfer_reduce_offer(job_t *job, edge_peer_t *peer, uint32_t name,
                                   tow_region_key_t key) TOW_MUST_USE;
tow_status_t transfer_reduce_piece(job_t *job, uint32_t process, uint32_t name,
                                   uint32_t chunk, const void *bytes,
                                   size_t size) TOW_MUST_USE;
void transfer_reduce_discard(tow_transfer_engine_t *engine);
void transfer_posts_discard(tow_transfer_engine_t *engine);

/* -- transfer_early.c ------------------------------------------------------ */

tow_status_t transfer_early_size(tow_transfer_engine_t *engine,
                                 edge_peer_t *peer,
                                 const tow_msg_edge_size_t *size) TOW_MUST_USE;
tow_status_t transfer_early_piece(tow_transfer_engine_t *engine,
                                  edge_peer_t *peer,
                                  const tow_msg_edge_piece_t *piece)
    TOW_MUST_USE;
tow_status_t transfer_early_offer(tow_transfer_engine_t *engine,
                                  edge_peer_t *peer, uint64_t gang,
                                  uint32_t shard, tow_region_key_t key)
    TOW_MUST_USE;
/* Delivers the early messages of this job. An error: a sender broke the
 * protocol. */
tow_status_t transfer_early_replay(job_t *job) TOW_MUST_USE;
void transfer_early_discard_until(tow_transfer_engine_t *engine,
                                  uint64_t last_gang);
/* Of an ended job that was held. */
void transfer_early_discard(tow_transfer_engine_t *engine, uint64_t gang);
void transfer_early_discard_from(tow_transfer_engine_t *engine,
                                 uint32_t process);
void transfer_early_clear(tow_transfer_engine_t *engine);

/* -- transfer_memory.c ----------------------------------------------------- */

/* Aligned, for devices and regions. NULL: exhausted. */
void *transfer_memory_alloc(tow_transfer_engine_t *engine, uint64_t size);
void transfer_memory_free(tow_transfer_engine_t *engine, void *bytes,
                          uint64_t size);
void transfer_memory_clear(tow_transfer_engine_t *engine);

#endif /* TOW_DATAFLOW_TRANSFER_IMPL_H_ */
