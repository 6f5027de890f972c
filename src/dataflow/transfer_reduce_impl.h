/* Collectives in the transfer engine: tensors that the workers of a group
 * combine.
 *
 * A job of a collective has a reduction for each tensor in each group that we
 * have shards of. A tensor is cut into chunks, which the members own in turn.
 * For each chunk a member combines its own shards and sends the sum to the
 * owner. The owner combines the contributions in the order of the members, so
 * that all get the same bits, and sends the result to all. The result is in the
 * memory of a late upload, which is settled when its last chunk is complete:
 * each tensor by itself. The driver copies it to our other shards of the group.
 *
 * A small tensor goes from each member to all others, and each combines all of
 * it: one message delay instead of two.
 *
 * Everything starts when the run is granted: a member offers memory to those
 * that will write to it; small messages need none. No member waits for memory
 * or for its turn, so no two collectives can wait for each other, in whatever
 * order their inputs arrive. */
#ifndef TOW_DATAFLOW_TRANSFER_REDUCE_IMPL_H_
#define TOW_DATAFLOW_TRANSFER_REDUCE_IMPL_H_

#include "dataflow/transfer_impl.h"

/* -- Ownership of chunks: the same at all members -------------------------- */

typedef struct reduce_plan {
    uint64_t size;        /* of the tensor, in bytes */
    uint64_t chunk_bytes; /* of every chunk but the last */
    uint32_t chunk_count;
    uint32_t member_count;
    uint32_t first_owner; /* of chunk 0; the others take turns */
    bool is_shared;       /* each member combines the only chunk by itself */
} reduce_plan_t;

/* `turn` selects the owner of the first chunk. */
reduce_plan_t reduce_plan_make(uint64_t size, uint64_t chunk_bytes,
                               size_t member_count, uint64_t turn);

static inline bool reduce_owns(const reduce_plan_t *plan, uint32_t member,
                               uint32_t chunk)
{
    TOW_ASSERT(plan->member_count > 0);
    return plan->is_shared ||
           (plan->first_owner + chunk) % plan->member_count == member;
}

static inline uint64_t reduce_offset(const reduce_plan_t *plan, uint32_t chunk)
{
    return chunk * plan->chunk_bytes;
}

static inline uint64_t reduce_length(const reduce_plan_t *plan, uint32_t chunk)
{
    const uint64_t left = plan->size - reduce_offset(plan, chunk);
    return left < plan->chunk_bytes ? left : plan->chunk_bytes;
}

/* How many chunks a member owns, and whether one of them is written. */
uint32_t reduce_owned(const reduce_plan_t *plan, uint32_t member,
                      bool *out_is_large);

/* -- Reductions ------------------------------------------------------------ */

/* Each is a region of the receiver, and part of the name of the message. */
typedef enum reduce_phase {
    PHASE_CONTRIBUTION, /* a member's part, for the owner's inbox */
    PHASE_RESULT,       /* the owner's result, for a member's memory */
    PHASE_COUNT,
} reduce_phase_t;

typedef struct reduction reduction_t;

/* One of our shards. */
typedef struct reduce_source {
    tow_buffer_share_t share;
    reduction_t *reduction;
    bool is_ended; /* returned, or it never arrived */
    bool is_ready;
} reduce_source_t;

/* A region that we opened for other members. */
typedef struct reduce_region {
    reduction_t *reduction;
    tow_region_t *region; /* NULL: none is open */
    bool is_closing;
} reduce_region_t;

/* A region that another member opened for us. */
typedef struct reduce_room {
    tow_region_key_t key;
    bool is_open;
} reduce_room_t;

typedef struct reduce_chunk {
    uint32_t next_member; /* the next contribution to combine, if it is ours */
    uint32_t next_ready;  /* in the reduction's queue */
    bool is_loaded;       /* our own shards have been combined */
    bool is_queued;
    bool is_working;
} reduce_chunk_t;

/* One tensor in one group. */
struct reduction {
    tow_upload_t upload;
    tow_list_t in_engine;
    tow_list_t in_ready; /* while it has chunks in its queue */
    tow_transfer_engine_t *engine;
    job_t *job;                   /* NULL: it has ended */
    const tow_members_t *members; /* lent by the job's part */
    reduce_plan_t plan;
    uint64_t gang;
    uint32_t order; /* among the reductions of its job */
    uint32_t name;  /* the same at all members */
    uint32_t self;
    tow_type_t type;
    tow_reduction_t how;
    uint32_t element_bytes;
    /* -- Memory; all but `bytes` is freed when nothing is under way any
     * more. */
    uint8_t *bytes; /* the result, and before that our own part */
    uint8_t *inbox; /* contributions to our chunks; NULL: none */
    uint64_t inbox_size;
    int64_t counted_bytes; /* as the device's, until the driver counts them */
    reduce_source_t *sources; /* owned, with all that follows */
    reduce_chunk_t *chunks;
    reduce_room_t *rooms; /* by phase, then member */
    uint64_t *arrived;    /* bits, by chunk, then member */
    uint64_t *sent;       /* bits, by chunk, then member */
    reduce_region_t own_regions[PHASE_COUNT];
    /* -- Remaining work. */
    uint32_t source_count;
    uint32_t ready_count;        /* sources that are ready */
    uint32_t contribution_count; /* of ours that their owners do not have */
    uint32_t load_count;         /* chunks without our shards yet */
    uint32_t combine_count;      /* chunks of ours that are incomplete */
    uint32_t missing_count;      /* results that others still send */
    uint32_t result_count;       /* of ours that some member does not have */
    uint32_t arrival_count;      /* contributions that others still send */
    /* -- What is under way. */
    uint32_t write_count;
    uint32_t work_count; /* chunks that are being combined */
    uint32_t borrow_count;
    uint32_t pin_count; /* calls in progress */
    bool is_uploading;
    bool is_settled;
    uint32_t first_ready, last_ready; /* chunks; TOW_REDUCE_NONE: none */
};
#define TOW_REDUCE_NONE UINT32_MAX

static inline bool reduce_bit(const uint64_t *bits, const reduction_t *it,
                              uint32_t chunk, uint32_t member)
{
    const uint64_t at = (uint64_t)chunk * it->plan.member_count + member;
    return (bits[at / 64] >> (at % 64) & 1) != 0;
}

static inline void reduce_set(uint64_t *bits, const reduction_t *it,
                              uint32_t chunk, uint32_t member)
{
    const uint64_t at = (uint64_t)chunk * it->plan.member_count + member;
    bits[at / 64] |= UINT64_C(1) << (at % 64);
}

/* The offset of a member's contribution to a chunk of ours. */
static inline uint64_t reduce_slot(const reduction_t *it, uint32_t chunk,
                                   uint32_t member)
{
    const uint64_t row = chunk / it->plan.member_count;
    const uint64_t place = member - (member > it->self ? 1 : 0);
    return (row * (it->plan.member_count - 1) + place) * it->plan.chunk_bytes;
}

/* While pinned it is not freed and does not end. */
static inline void reduce_pin(reduction_t *it)
{
    it->pin_count++;
}
void reduce_unpin(reduction_t *it);

/* -- transfer_reduce.c ----------------------------------------------------- */

/* Returns our shards if nothing needs them any more, also before all is
 * combined. */
void reduce_look_at_sources(reduction_t *it);

/* -- transfer_reduce_work.c ------------------------------------------------ */

/* An input of a chunk has arrived: combines what is ready, here or off the
 * loop. */
void reduce_advance(reduction_t *it, uint32_t chunk);
/* Removes a failed reduction from the queue. */
void reduce_unqueue(reduction_t *it);

/* -- transfer_reduce_send.c ------------------------------------------------ */

/* Our part of a chunk is complete: sends it to the owner, or to all. */
void reduce_send_contribution(reduction_t *it, uint32_t chunk);
/* A chunk of ours is complete: sends it to all others. */
void reduce_send_result(reduction_t *it, uint32_t chunk);
void reduce_offer(const reduction_t *it);
/* A write to a region of ours has arrived. */
void reduce_written(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival);

#endif /* TOW_DATAFLOW_TRANSFER_REDUCE_IMPL_H_ */
