/* Source shards: borrowed until all their pieces are on their way.
 *
 * Pieces for our own targets and small ones for others go as soon as the bytes
 * are there. A large one waits for its offer too, and keeps the loan while it is
 * written, unless it had to be packed. One that is the whole shard, here and
 * there, may be lent to a worker of this host: then the move has ended, and the
 * loan stays until that worker has let go. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/block.h"
#include "dataflow/mover_impl.h"

static void finish_when_idle(loan_t *loan);
static tow_status_t start_bulk(job_t *job, const tow_piece_t *piece);

/* -- Bytes of pieces -------------------------------------------------------------- */

/* Where they lie in the source, or NULL: they are not one row there. */
static const void *find_row(const job_t *job, const loan_t *loan,
                            const tow_piece_t *piece)
{
    const tow_shape_t *shape = &job->route->source;
    const box_side_t side = {shape->dims, piece->source_start};
    uint64_t offset = 0;
    if (TOW_UNLIKELY(job->is_sized != NULL)) return loan->borrow.bytes;
    if (!box_is_row(&side, piece->extent, shape->rank, box_element_bytes(shape),
                    &offset))
        return NULL;
    return (const char *)loan->borrow.bytes + offset;
}

static void pack(const job_t *job, const loan_t *loan, const tow_piece_t *piece,
                 void *to)
{
    const tow_shape_t *shape = &job->route->source;
    const box_side_t from = {shape->dims, piece->source_start};
    const box_side_t dense = {piece->extent, NULL};
    box_copy(&dense, to, &from, loan->borrow.bytes, piece->extent, shape->rank,
             box_element_bytes(shape));
}

/* -- Small pieces, and our own ------------------------------------------------------ */

static hold_t *find_hold(const job_t *job, uint32_t process)
{
    const tow_list_t *head = &job->holds;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        hold_t *hold = TOW_CONTAINER_OF(at, hold_t, in_job);
        if (hold->process == process) return hold;
    }
    return NULL;
}

/* Or that worker would not hear of a connection that breaks. */
bool mover_hold(job_t *job, uint32_t process)
{
    if (find_hold(job, process) != NULL) return true;
    hold_t *record = tow_pool_take(&job->mover->hold_pool);
    if (record == NULL) return false;
    record->process = process;
    tow_list_append(&job->holds, &record->in_job);
    job->open_count++;
    return true;
}

static void free_hold(job_t *job, hold_t *record)
{
    tow_list_remove(&record->in_job);
    tow_pool_give(&job->mover->hold_pool, record);
}

void mover_sources_release(job_t *job, uint32_t process)
{
    hold_t *record = find_hold(job, process);
    if (record == NULL) return;
    free_hold(job, record);
    mover_part_ended(job);
}

/* False: no memory to wait for it. */
static bool send_small(job_t *job, const loan_t *loan, const tow_piece_t *piece)
{
    tow_mover_t *mover = job->mover;
    tow_msg_edge_piece_t message = TOW_MSG_EDGE_PIECE_INIT;
    const void *bytes = find_row(job, loan, piece);
    if (TOW_UNLIKELY(bytes == NULL)) {
        pack(job, loan, piece, mover->scratch);
        bytes = mover->scratch;
    }
    message.gang = job->gang;
    message.shard = piece->target_shard;
    message.number = piece->number;
    message.bytes.data = (uint8_t *)bytes;
    message.bytes.len = (size_t)loan_piece_bytes(job, loan, piece);
    mover->stats.sent_small++;
    mover->stats.bytes_sent += message.bytes.len;
    const tow_mover_sent_t sent =
        mover->options.send(mover->options.context, piece->process,
                            TOW_MESSAGE_EDGE_PIECE, &message.base);
    return TOW_LIKELY(sent == TOW_MOVER_SENT) ||
           mover_hold(job, piece->process);
}

static void lay_out_here(const job_t *job, const loan_t *loan,
                         const tow_piece_t *piece)
{
    target_t *target = job->targets[piece->target_shard];
    if (target == NULL) return; /* The driver copies it. */
    const box_side_t from = {job->route->source.dims, piece->source_start};
    const void *row = find_row(job, loan, piece);
    const bool is_plain = row != NULL && !job->route->is_packed;
    job->mover->stats.copied++;
    mover_target_take(target, piece, is_plain ? row : loan->borrow.bytes,
                      is_plain ? NULL : &from);
}

/* -- Large pieces --------------------------------------------------------------------- */

static void free_bulk(bulk_t *bulk)
{
    tow_mover_t *mover = bulk->mover;
    mover_memory_give(mover, bulk->packed, bulk->packed_size);
    tow_list_remove(&bulk->in_job);
    tow_list_remove(&bulk->in_mover);
    if (bulk->peer != NULL) {
        bulk->peer->write_count--;
        mover_peer_unused(mover, bulk->peer);
    }
    tow_pool_give(&mover->bulk_pool, bulk);
}

/* A target closes its region when all has come, or when it has given up. A write
 * that was sent again finds none then: either all is well, or that end says what
 * is not. */
static bool was_taken(tow_status_t status)
{
    return tow_status_code(status) == TOW_NOT_FOUND;
}

/* The move is done with it; the loan is not. */
static void bulk_lent(tow_mover_write_t *write)
{
    bulk_t *bulk = TOW_CONTAINER_OF(write, bulk_t, write);
    loan_t *loan = bulk->loan;
    tow_mover_stats_t *stats = &bulk->mover->stats;
    TOW_ASSERT(!bulk->is_lent && loan->write_count > 0);
    bulk->is_lent = true;
    stats->sent_lent++;
    stats->lent_count++;
    stats->lent_bytes += write->write.size;
    tow_list_remove(&bulk->in_job);
    bulk->job = NULL;
    bulk->piece = NULL;
    loan->write_count--;
    loan->lent_count++;
    if (!loan->is_lent)
        loan->is_lent = tow_borrow_lend(bulk->mover->driver, &loan->borrow);
    finish_when_idle(loan);
}

static void end_lent(bulk_t *bulk)
{
    tow_mover_stats_t *stats = &bulk->mover->stats;
    stats->lent_count--;
    stats->lent_bytes -= bulk->write.write.size;
    TOW_ASSERT(bulk->loan->lent_count > 0);
    bulk->loan->lent_count--;
}

static void bulk_written(tow_mover_write_t *write, tow_status_t take_status)
{
    bulk_t *bulk = TOW_CONTAINER_OF(write, bulk_t, write);
    loan_t *loan = bulk->loan;
    job_t *job = bulk->job;
    const uint32_t process = write->process;
    const bool was_lent = bulk->is_lent;
    if (TOW_UNLIKELY(write->write.is_adrift))
        tow_block_strand(write->write.bytes);
    if (was_lent) end_lent(bulk);
    free_bulk(bulk);
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        if (was_taken(take_status))
            tow_status_release(take_status);
        else if (job != NULL)
            mover_fail(job,
                       tow_status_annotate(take_status,
                                           "transfer to process %u", process));
        else
            tow_status_ignore(take_status, "the move has ended");
    }
    if (!was_lent) {
        TOW_ASSERT(loan->write_count > 0);
        loan->write_count--; /* Only now: failing drops idle loans. */
    }
    finish_when_idle(loan);
}

/* All of the source's memory, for all of the target's: else it would be kept for
 * the sake of a part. */
static bool may_lend(const bulk_t *bulk)
{
    const tow_route_t *route = bulk->job->route;
    uint64_t source = 0, target = 0;
    tow_status_ignore(tow_shape_bytes(&route->source, &source),
                      "not lent then");
    tow_status_ignore(tow_shape_bytes(&route->target, &target),
                      "not lent then");
    return !route->is_packed && bulk->packed == NULL &&
           bulk->piece->bytes == source && bulk->piece->bytes == target &&
           tow_env_can_lend(bulk->mover->env);
}

static tow_status_t start_write(bulk_t *bulk)
{
    tow_mover_t *mover = bulk->mover;
    const tow_piece_t *piece = bulk->piece;
    const void *bytes = find_row(bulk->job, bulk->loan, piece);
    const uint64_t size = loan_piece_bytes(bulk->job, bulk->loan, piece);
    if (bytes == NULL) {
        bulk->packed = mover_memory_take(mover, piece->bytes);
        bulk->packed_size = piece->bytes;
        if (bulk->packed == NULL)
            return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                             "%" PRIu64 " bytes to pack a piece", piece->bytes);
        pack(bulk->job, bulk->loan, piece, bulk->packed);
        bytes = bulk->packed;
    }
    bulk->write = (tow_mover_write_t){.write = {.bytes = bytes,
                                                .size = (size_t)size,
                                                .offset = piece->offset,
                                                .tag = piece->number},
                                      .target = &bulk->target,
                                      .process = piece->process,
                                      .lent = may_lend(bulk) ? bulk_lent : NULL,
                                      .done = bulk_written};
    TOW_RETURN_IF_ERROR(
        mover->options.write(mover->options.context, &bulk->write));
    bulk->is_writing = true;
    mover->stats.sent_large++;
    mover->stats.bytes_sent += size;
    return TOW_OK;
}

/* Both the bytes and the room are there. False: the job has failed. */
static bool try_write(bulk_t *bulk)
{
    job_t *job = bulk->job;
    const uint32_t process = bulk->piece->process;
    tow_status_t status = start_write(bulk);
    if (TOW_LIKELY(status == TOW_OK)) return true;
    mover_fail(job,
               tow_status_annotate(status, "transfer to process %u", process));
    return false;
}

static bool write_offered(job_t *job, const loan_t *loan)
{
    const tow_list_t *head = &job->bulks;
    for (tow_list_t *at = head->next; at != head;) {
        bulk_t *bulk = TOW_CONTAINER_OF(at, bulk_t, in_job);
        at = at->next;
        if (bulk->loan == loan && bulk->peer != NULL && !bulk->is_writing &&
            !try_write(bulk))
            return false;
    }
    return true;
}

static void take_offer(bulk_t *bulk, edge_peer_t *peer, tow_region_key_t key)
{
    bulk->peer = peer;
    peer->write_count++;
    bulk->target = (tow_msg_lane_target_t)TOW_MSG_LANE_TARGET_INIT;
    bulk->target.lane_address.data = peer->address;
    bulk->target.lane_address.len = peer->address_size;
    bulk->target.region_id = key.id;
    bulk->target.region_secret = key.secret;
}

tow_status_t mover_source_offer(job_t *job, edge_peer_t *peer, uint32_t shard,
                                tow_region_key_t key)
{
    bool is_wanted = false;
    const tow_list_t *head = &job->bulks;
    for (tow_list_t *at = head->next; at != head;) {
        bulk_t *bulk = TOW_CONTAINER_OF(at, bulk_t, in_job);
        at = at->next;
        if (bulk->piece->process != peer->process ||
            bulk->piece->target_shard != shard || bulk->peer != NULL)
            continue;
        is_wanted = true;
        take_offer(bulk, peer, key);
        if (bulk->loan->is_ready && !try_write(bulk)) return TOW_OK;
    }
    if (TOW_LIKELY(is_wanted)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "process %u offers room for shard %u of gang %" PRIu64
                     ", where nothing large goes, or not again",
                     peer->process, shard, job->gang);
}

/* -- Loans ----------------------------------------------------------------------------- */

static void free_loan(loan_t *loan)
{
    tow_mover_t *mover = loan->mover;
    if (!loan->is_lent) tow_buffer_release(loan->borrow.buffer);
    tow_pool_give(&mover->loan_pool, loan);
}

static void finish_when_idle(loan_t *loan)
{
    tow_mover_t *mover = loan->mover;
    job_t *job = loan->job;
    if (!loan->is_ready || loan->is_serving || loan->write_count > 0) return;
    if (job != NULL) job->loans[loan->shard] = NULL;
    loan->job = NULL;
    if (loan->lent_count == 0) {
        tow_borrow_give_back(mover->driver, &loan->borrow);
        free_loan(loan);
    }
    if (job != NULL)
        mover_part_ended(job);
    else
        mover_look_quiet(mover);
}

/* False: no memory to wait for it. */
static bool send_size(job_t *job, const tow_shape_t *shape,
                      const tow_piece_t *piece)
{
    tow_mover_t *mover = job->mover;
    tow_msg_edge_size_t message = TOW_MSG_EDGE_SIZE_INIT;
    message.gang = job->gang;
    message.shard = piece->target_shard;
    message.dims = (int64_t *)shape->dims;
    message.n_dims = shape->rank;
    const tow_mover_sent_t sent =
        mover->options.send(mover->options.context, piece->process,
                            TOW_MESSAGE_EDGE_SIZE, &message.base);
    return TOW_LIKELY(sent == TOW_MOVER_SENT) ||
           mover_hold(job, piece->process);
}

static tow_status_t serve_sized_piece(job_t *job, loan_t *loan,
                                      const tow_piece_t *piece)
{
    const tow_shape_t *shape = &loan->borrow.buffer->shape;
    const tow_status_t no_memory = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (piece->process == job->mover->options.process) {
        TOW_RETURN_IF_ERROR(mover_target_size(job, piece->process,
                                              piece->target_shard, shape->dims,
                                              shape->rank));
        if (job->is_ended) return TOW_OK;
        job->mover->stats.copied++;
        mover_target_take(job->targets[piece->target_shard], piece,
                          loan->borrow.bytes, NULL);
        return TOW_OK;
    }
    if (!send_size(job, shape, piece)) return no_memory;
    if (is_large(loan->size)) return start_bulk(job, piece);
    return send_small(job, loan, piece) ? TOW_OK : no_memory;
}

/* Now that the size is known. */
static void serve_sized(job_t *job, loan_t *loan)
{
    const tow_route_t *route = job->route;
    tow_mover_t *mover = job->mover;
    tow_status_t status =
        tow_shape_bytes(&loan->borrow.buffer->shape, &loan->size);
    mover->depth++; /* It may end in here, and is told of later. */
    for (size_t i = 0; i < route->send_count; i++)
        if (route->sends[i].source_shard == loan->shard && status == TOW_OK &&
            !job->is_ended)
            status = serve_sized_piece(job, loan, &route->sends[i]);
    if (TOW_UNLIKELY(status != TOW_OK)) mover_fail(job, status);
    mover->depth--;
}

/* All that can go goes. */
static void serve(job_t *job, loan_t *loan)
{
    const tow_route_t *route = job->route;
    const uint32_t self = job->mover->options.process;
    bool is_kept = true;
    for (size_t i = 0; i < route->send_count; i++) {
        const tow_piece_t *piece = &route->sends[i];
        if (piece->source_shard != loan->shard) continue;
        if (piece->process == self)
            lay_out_here(job, loan, piece);
        else if (!is_large(piece->bytes))
            is_kept &= send_small(job, loan, piece);
    }
    if (TOW_UNLIKELY(!is_kept))
        mover_fail(job, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    else if (!tow_list_is_empty(&job->bulks))
        write_offered(job, loan);
}

static void borrowed(tow_borrow_t *borrow, tow_status_t take_status)
{
    loan_t *loan = TOW_CONTAINER_OF(borrow, loan_t, borrow);
    tow_mover_t *mover = loan->mover;
    job_t *job = loan->job;
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        if (job != NULL)
            mover_fail(job, take_status); /* Which lets go of the loan. */
        else
            tow_status_ignore(take_status, "the move has ended");
        free_loan(loan);
        mover_look_quiet(mover);
        return;
    }
    loan->is_ready = true;
    if (TOW_LIKELY(job != NULL)) {
        loan->is_serving = true;
        if (TOW_UNLIKELY(job->is_sized != NULL))
            serve_sized(job, loan);
        else
            serve(job, loan);
        loan->is_serving = false;
    }
    finish_when_idle(loan);
}

/* -- The beginning ------------------------------------------------------------------------ */

static tow_status_t start_loan(job_t *job, uint32_t shard)
{
    tow_mover_t *mover = job->mover;
    loan_t *loan = tow_pool_take(&mover->loan_pool);
    if (loan == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_buffer_t *source = job->move->sources[shard * job->move->source_stride];
    loan->borrow.buffer = source;
    loan->borrow.bytes = NULL;
    loan->borrow.done = borrowed;
    loan->mover = mover;
    loan->job = NULL;
    loan->shard = shard;
    loan->write_count = loan->lent_count = 0;
    loan->is_ready = loan->is_serving = loan->is_lent = false;
    tow_buffer_retain(source);
    tow_status_t status = tow_driver_borrow(mover->driver, &loan->borrow);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        free_loan(loan);
        return status;
    }
    loan->job = job;
    job->loans[shard] = loan;
    job->open_count++;
    return TOW_OK;
}

static tow_status_t start_bulk(job_t *job, const tow_piece_t *piece)
{
    tow_mover_t *mover = job->mover;
    bulk_t *bulk = tow_pool_take(&mover->bulk_pool);
    if (bulk == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    bulk->mover = mover;
    bulk->job = job;
    bulk->loan = job->loans[piece->source_shard];
    bulk->loan->write_count++;
    bulk->piece = piece;
    bulk->peer = NULL;
    bulk->packed = NULL;
    bulk->packed_size = 0;
    bulk->is_writing = bulk->is_lent = false;
    tow_list_append(&mover->bulks, &bulk->in_mover);
    tow_list_append(&job->bulks, &bulk->in_job);
    return TOW_OK;
}

/* Does a piece of our own go by the driver's copy? */
static bool is_copied(const job_t *job, const tow_piece_t *piece)
{
    return piece->process == job->mover->options.process &&
           job->targets[piece->target_shard] == NULL;
}

tow_status_t mover_sources_start(job_t *job)
{
    const tow_route_t *route = job->route;
    const uint32_t self = job->mover->options.process;
    for (size_t i = 0; i < route->send_count; i++) {
        const tow_piece_t *piece = &route->sends[i];
        if (job->is_sized == NULL && is_copied(job, piece)) continue;
        if (job->loans[piece->source_shard] == NULL)
            TOW_RETURN_IF_ERROR(start_loan(job, piece->source_shard));
        if (is_large(piece->bytes) && piece->process != self &&
            job->is_sized == NULL)
            TOW_RETURN_IF_ERROR(start_bulk(job, piece));
    }
    return TOW_OK;
}

/* -- The end -------------------------------------------------------------------------------- */

void mover_sources_drop(job_t *job)
{
    tow_list_t *item;
    while (!tow_list_is_empty(&job->holds))
        free_hold(job, TOW_CONTAINER_OF(job->holds.next, hold_t, in_job));
    while ((item = tow_list_pop_front(&job->bulks)) != NULL) {
        bulk_t *bulk = TOW_CONTAINER_OF(item, bulk_t, in_job);
        bulk->job = NULL;
        bulk->piece = NULL;
        if (bulk->is_writing) continue;
        bulk->loan->write_count--;
        free_bulk(bulk);
    }
    for (uint32_t i = 0; i < job->loan_count; i++) {
        loan_t *loan = job->loans[i];
        if (loan == NULL) continue;
        job->loans[i] = NULL;
        loan->job = NULL;
        finish_when_idle(loan);
    }
}

/* Buffers and loans are the driver's business. */
void mover_sources_forget(tow_mover_t *mover)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&mover->bulks)) != NULL) {
        bulk_t *bulk = TOW_CONTAINER_OF(item, bulk_t, in_mover);
        tow_free(bulk->packed);
        if (bulk->peer == NULL) continue;
        bulk->peer->write_count--;
        mover_peer_unused(mover, bulk->peer);
    }
}
