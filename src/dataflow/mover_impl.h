/* The insides of the mover.
 *
 * A move has a job, and the job has parts: targets, copies, loans and writes. Each
 * part is a record of its own that outlives the job if it must: when a move
 * fails it lets go of all of them at once and ends, and each goes when its last
 * callback has come. A part whose `job` is NULL belongs to nobody any more. */
#ifndef TOW_DATAFLOW_MOVER_IMPL_H_
#define TOW_DATAFLOW_MOVER_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "dataflow/box_impl.h"
#include "dataflow/mover.h"
#include "dataflow/tuning.h"

typedef struct job job_t;
typedef struct reduction reduction_t; /* mover_reduce_impl.h */

/* Another worker, as far as we have heard of it. */
typedef struct edge_peer {
    uint32_t process;
    uint32_t write_count; /* writes that use the address */
    uint32_t early_count;
    uint64_t early_bytes;
    uint8_t *address; /* owned; of its data plane; NULL: not known */
    size_t address_size;
    bool is_gone; /* goes with its last write */
    uint64_t
        lost_gang; /* what it sent for gangs up to this may not have come */
} edge_peer_t;

/* A target shard that pieces make up. */
typedef struct target {
    tow_upload_t upload;
    tow_list_t in_mover;
    tow_mover_t *mover;
    job_t *job;   /* NULL: settled */
    void *bytes;  /* owned, until the device is done with it; NULL: none */
    void *packed; /* owned; where packed pieces are written; NULL: in `bytes` */
    tow_loan_t *loan; /* owned; the sender's memory, used instead; or NULL */
    uint64_t size;
    tow_region_t *region; /* NULL: none is open */
    uint64_t *arrived;    /* bits, by number: here_, or owned */
    uint64_t here_;
    uint32_t shard;
    uint32_t missing_count; /* pieces */
    size_t first_receive;   /* in the route */
    uint32_t receive_count;
    bool is_uploading; /* its callback is outstanding */
    bool is_closing;   /* the region */
} target_t;

/* A whole shard that the driver copies. */
typedef struct copy {
    tow_copy_t copy;
    tow_mover_t *mover;
    job_t *job;
    tow_list_t in_job;
} copy_t;

/* The bytes of a source shard. */
typedef struct loan {
    tow_borrow_t borrow;
    tow_mover_t *mover;
    job_t *job;
    uint32_t shard;
    uint32_t write_count; /* not ended, nor lent */
    uint32_t lent_count;  /* used by their receivers where they are */
    uint64_t size;        /* of a sized move, once it is ready */
    bool is_ready;
    bool is_lent;    /* on, and the buffer is the driver's to keep */
    bool is_serving; /* its pieces are on their way right now */
} loan_t;

/* A large piece for another worker. */
typedef struct bulk {
    tow_mover_write_t write;
    tow_msg_lane_target_t target;
    tow_list_t in_mover;
    tow_list_t in_job;
    tow_mover_t *mover;
    job_t *job;
    loan_t *loan;
    const tow_piece_t *piece; /* of the route, while there is a job */
    edge_peer_t *peer;        /* once it is offered */
    void *packed;             /* owned; NULL: from the loan */
    uint64_t packed_size;
    bool is_writing;
    bool is_lent; /* and of no job any more */
} bulk_t;

/* Small pieces that wait for a connection. */
typedef struct hold {
    tow_list_t in_job;
    uint32_t process;
} hold_t;

struct job {
    tow_mover_t *mover;
    tow_move_t *move;
    const tow_route_t *route; /* lent by the move; NULL: a collective */
    const tow_collective_part_t *part; /* lent by the move; NULL: a transfer */
    uint64_t gang;
    tow_list_t in_mover; /* under way, or ended and not told */
    tow_status_t error;  /* owned */
    uint32_t open_count; /* parts that have not ended */
    bool is_listed;      /* by its gang */
    bool is_ended;
    bool *is_sized;         /* owned; by target shard; NULL: sizes are known */
    uint32_t unsized_count; /* targets */
    uint32_t target_count, loan_count; /* of the tables */
    target_t **targets; /* by shard; NULL: the driver's copy, or settled */
    loan_t **loans;     /* by shard; NULL: not needed, or ended */
    tow_list_t copies;
    tow_list_t bulks;
    tow_list_t holds;
    target_t *targets_here[TOW_MOVER_INLINE_COUNT];
    loan_t *loans_here[TOW_MOVER_INLINE_COUNT];
    uint32_t reduction_count;
    reduction_t **reductions; /* owned; by group, then tensor; NULL: settled */
};

/* Some of a chunk: our own shards, and the contributions of some members. */
typedef struct reduce_task {
    reduction_t *reduction;
    uint32_t chunk;
    uint32_t from, until; /* members */
    bool loads;           /* our shards too */
} reduce_task_t;

/* A large chunk for another worker. */
typedef struct reduce_post {
    tow_mover_write_t write;
    tow_msg_lane_target_t target;
    tow_list_t in_mover;
    reduction_t *reduction;
    edge_peer_t *peer;
    uint32_t phase;
} reduce_post_t;

typedef enum early_kind {
    EARLY_PIECE,
    EARLY_OFFER,
    EARLY_SIZE,
} early_kind_t;

/* What came before its grant. */
typedef struct early {
    tow_list_t in_gang;
    early_kind_t kind;
    uint32_t process;
    uint32_t shard;
    uint32_t number;
    uint32_t size;
    tow_region_key_t key; /* of an offer */
    uint8_t *bytes;       /* `here`, or owned */
    uint8_t here[TOW_MOVER_EARLY_INLINE_BYTES];
} early_t;

typedef struct early_gang {
    uint64_t gang;
    tow_list_t in_order;
    tow_list_t items;
} early_gang_t;

/* A small block that waits for its next user; lies in it. */
typedef struct spare {
    struct spare *next;
} spare_t;

struct tow_mover {
    tow_mover_options_t options;
    tow_driver_t *driver;   /* the options' */
    tow_env_t *env;         /* the driver's */
    tow_map_t jobs_by_gang; /* those that other workers are part of */
    tow_list_t jobs;        /* under way */
    tow_list_t ended;       /* to be told */
    tow_post_t tell;
    bool is_telling;    /* the post is on its way */
    uint32_t depth;     /* of calls that must not call back */
    tow_list_t targets; /* all records */
    tow_list_t bulks;   /* all records */
    tow_pool_t job_pool, target_pool, copy_pool, loan_pool, bulk_pool,
        hold_pool;
    tow_map_t peers;        /* by process, of owned edge_peer_t */
    uint64_t lost_gang_max; /* of them, or of those that were */
    /* -- Early. */
    tow_map_t early_by_gang;
    tow_list_t early_order; /* ascending */
    tow_pool_t early_pool, early_gang_pool;
    uint64_t last_gang; /* granted */
    /* -- Memory. */
    spare_t *spares;
    uint32_t spare_count;
    uint8_t *scratch; /* owned; TOW_MOVER_EAGER_BYTES, to pack small pieces */
    tow_map_t
        offered; /* process -> the number of the target it was asked for */
    uintptr_t offer_number;
    /* -- Collectives. */
    tow_list_t reductions; /* all records */
    tow_list_t posts;      /* all records */
    tow_list_t ready;      /* reductions with chunks to combine, in order */
    tow_pool_t reduction_pool, post_pool;
    tow_work_t work; /* combines `tasks`, if there are any */
    uint32_t task_count;
    reduce_task_t tasks[TOW_REDUCE_BATCH_COUNT];
    tow_mover_stats_t stats;
};

/* -- mover.c ------------------------------------------------------------------- */

/* A part of it has ended. When none is left the move ends: at once, or, within
 * a call of the owner, in a turn of its own. Do not touch the job after it. */
void mover_part_ended(job_t *job);
/* Lets go of all parts. The first error counts. */
void mover_fail(job_t *job, tow_status_t take_cause);
/* From another worker, for a transfer or a collective. An error: it broke the
 * rules. */
tow_status_t mover_take_offer(job_t *job, edge_peer_t *peer, uint32_t shard,
                              tow_region_key_t key) TOW_MUST_USE;
tow_status_t mover_take_piece(job_t *job, uint32_t process, uint32_t shard,
                              uint32_t number, const void *bytes, size_t size)
    TOW_MUST_USE;
/* After something of it went: tells the owner if that was the last. */
void mover_look_quiet(tow_mover_t *mover);
edge_peer_t *mover_peer(tow_mover_t *mover,
                        uint32_t process); /* NULL: no memory */
void mover_peer_unused(tow_mover_t *mover, edge_peer_t *peer);

/* Both ends go by the same number. */
static inline bool is_large(uint64_t bytes)
{
    return bytes > TOW_MOVER_EAGER_BYTES;
}

/* Of a sized move, where a piece is a whole shard, its route knows only the
 * bound. */
static inline uint64_t target_piece_bytes(const job_t *job,
                                          const target_t *target,
                                          const tow_piece_t *piece)
{
    return TOW_UNLIKELY(job->is_sized != NULL) ? target->size : piece->bytes;
}

static inline uint64_t loan_piece_bytes(const job_t *job, const loan_t *loan,
                                        const tow_piece_t *piece)
{
    return TOW_UNLIKELY(job->is_sized != NULL) ? loan->size : piece->bytes;
}

/* -- mover_target.c --------------------------------------------------------------- */

/* Begins all targets, without a word to anybody. */
tow_status_t mover_targets_start(job_t *job) TOW_MUST_USE;
void mover_targets_offer(job_t *job);
/* A shard that `process` is to send, of a sized move, is so large. */
tow_status_t mover_target_size(job_t *job, uint32_t process, uint32_t shard,
                               const int64_t *dims, size_t rank) TOW_MUST_USE;
/* They are not to be: their buffers are poisoned. */
void mover_targets_fail(job_t *job, tow_status_t cause);
/* Bytes of a piece, dense or as they lie in our own source shard, are put where
 * they belong. */
void mover_target_take(target_t *target, const tow_piece_t *piece,
                       const void *bytes, const box_side_t *from);
/* A piece that came in a message. An error: it broke the rules. */
tow_status_t mover_target_piece(job_t *job, uint32_t process, uint32_t shard,
                                uint32_t number, const void *bytes, size_t size)
    TOW_MUST_USE;
bool mover_target_has(const target_t *target, uint32_t number);
void mover_targets_forget(tow_mover_t *mover);

/* -- mover_source.c --------------------------------------------------------------- */

tow_status_t mover_sources_start(job_t *job) TOW_MUST_USE;
void mover_sources_drop(job_t *job);
/* The connection to that worker stands. */
void mover_sources_release(job_t *job, uint32_t process);
tow_status_t mover_source_offer(job_t *job, edge_peer_t *peer, uint32_t shard,
                                tow_region_key_t key) TOW_MUST_USE;
void mover_sources_forget(tow_mover_t *mover);

/* The move stays until the connection to that worker stands. False: no memory. */
bool mover_hold(job_t *job, uint32_t process);

/* A copy of a buffer, which may still be a promise, as a part of the job. */
tow_status_t mover_copy_start(job_t *job, tow_buffer_t *source, size_t device,
                              tow_buffer_t **out_buffer) TOW_MUST_USE;

/* -- mover_reduce*.c: collectives ------------------------------------------------ */

void mover_reduce_init(tow_mover_t *mover);
tow_status_t mover_reduce_start(job_t *job) TOW_MUST_USE;
void mover_reduce_announce(job_t *job);
void mover_reduce_fail(job_t *job, tow_status_t cause);
bool mover_reduce_has_others(const tow_collective_part_t *part);
bool mover_reduce_waits_for(const job_t *job, uint32_t process);
bool mover_reduce_sends_to(const job_t *job, uint32_t process);
tow_status_t mover_reduce_offer(job_t *job, edge_peer_t *peer, uint32_t name,
                                tow_region_key_t key) TOW_MUST_USE;
tow_status_t mover_reduce_piece(job_t *job, uint32_t process, uint32_t name,
                                uint32_t chunk, const void *bytes, size_t size)
    TOW_MUST_USE;
void mover_reduce_forget(tow_mover_t *mover);
void mover_posts_forget(tow_mover_t *mover);

/* -- mover_early.c ---------------------------------------------------------------- */

tow_status_t mover_early_size(tow_mover_t *mover, edge_peer_t *peer,
                              const tow_msg_edge_size_t *size) TOW_MUST_USE;
tow_status_t mover_early_piece(tow_mover_t *mover, edge_peer_t *peer,
                               const tow_msg_edge_piece_t *piece) TOW_MUST_USE;
tow_status_t mover_early_offer(tow_mover_t *mover, edge_peer_t *peer,
                               uint64_t gang, uint32_t shard,
                               tow_region_key_t key) TOW_MUST_USE;
/* What waited for this job; the error of who broke the rules. */
tow_status_t mover_early_replay(job_t *job) TOW_MUST_USE;
void mover_early_drop_until(tow_mover_t *mover, uint64_t last_gang);
void mover_early_drop_from(tow_mover_t *mover, uint32_t process);
void mover_early_clear(tow_mover_t *mover);

/* -- mover_memory.c --------------------------------------------------------------- */

/* Aligned, for devices and regions. NULL: exhausted. */
void *mover_memory_take(tow_mover_t *mover, uint64_t size);
void mover_memory_give(tow_mover_t *mover, void *bytes, uint64_t size);
void mover_memory_clear(tow_mover_t *mover);

#endif /* TOW_DATAFLOW_MOVER_IMPL_H_ */
