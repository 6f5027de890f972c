/* Source shards: borrowed until all their pieces have been sent.
 *
 * Pieces for our own targets and small ones for other workers are sent as soon
 * as the bytes are ready. A large piece also waits for its offer, and keeps the
 * source borrowed while it is written, unless it had to be packed. A piece that
 * is a whole shard on both sides may be shared with a worker of this host
 * without a copy: then the transfer has ended, and the source stays borrowed
 * until that worker releases it. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/block.h"
#include "dataflow/transfer_impl.h"

static void finish_when_idle(source_t *src);
static tow_status_t start_bulk(job_t *job, const tow_piece_t *piece);

/* -- Bytes of pieces ------------------------------------------------------- */

/* Their address in the source, or NULL: they are not contiguous there. */
static const void *find_row(const job_t *job, const source_t *src,
                            const tow_piece_t *piece)
{
    const tow_shape_t *shape = &job->route->source;
    const box_side_t side = {shape->dims, piece->source_start};
    uint64_t offset = 0;
    if (TOW_UNLIKELY(job->is_sized != NULL)) return src->share.bytes;
    if (!box_is_row(&side, piece->extent, shape->rank, box_element_bytes(shape),
                    &offset))
        return NULL;
    return (const char *)src->share.bytes + offset;
}

static void pack(const job_t *job, const source_t *src,
                 const tow_piece_t *piece, void *to)
{
    const tow_shape_t *shape = &job->route->source;
    const box_side_t from = {shape->dims, piece->source_start};
    const box_side_t dense = {piece->extent, NULL};
    box_copy(&dense, to, &from, src->share.bytes, piece->extent, shape->rank,
             box_element_bytes(shape));
}

/* -- Small pieces, and pieces for our own targets -------------------------- */

static hold_t *find_hold(const job_t *job, uint32_t process)
{
    const tow_list_t *head = &job->holds;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        hold_t *hold = TOW_CONTAINER_OF(at, hold_t, in_job);
        if (hold->process == process) return hold;
    }
    return NULL;
}

/* Otherwise that worker would not learn of a connection that breaks. */
bool transfer_hold(job_t *job, uint32_t process)
{
    if (find_hold(job, process) != NULL) return true;
    hold_t *record = tow_pool_take(&job->engine->hold_pool);
    if (record == NULL) return false;
    record->process = process;
    tow_list_append(&job->holds, &record->in_job);
    job->open_count++;
    return true;
}

static void free_hold(job_t *job, hold_t *record)
{
    tow_list_remove(&record->in_job);
    tow_pool_give(&job->engine->hold_pool, record);
}

void transfer_sources_release(job_t *job, uint32_t process)
{
    hold_t *record = find_hold(job, process);
    if (record == NULL) return;
    free_hold(job, record);
    transfer_part_ended(job);
}

/* False: no memory for the hold. */
static bool send_small(job_t *job, const source_t *src,
                       const tow_piece_t *piece)
{
    tow_transfer_engine_t *engine = job->engine;
    tow_msg_edge_piece_t message = TOW_MSG_EDGE_PIECE_INIT;
    const void *bytes = find_row(job, src, piece);
    if (TOW_UNLIKELY(bytes == NULL)) {
        pack(job, src, piece, engine->scratch);
        bytes = engine->scratch;
    }
    message.gang = job->gang;
    message.shard = piece->target_shard;
    message.number = piece->number;
    message.bytes.data = (uint8_t *)bytes;
    message.bytes.len = (size_t)source_piece_bytes(job, src, piece);
    engine->stats.sent_small++;
    engine->stats.bytes_sent += message.bytes.len;
    const tow_transfer_sent_t sent =
        engine->options.send(engine->options.context, piece->process,
                             TOW_MESSAGE_EDGE_PIECE, &message.base);
    return TOW_LIKELY(sent == TOW_TRANSFER_SENT) ||
           transfer_hold(job, piece->process);
}

static void lay_out_here(const job_t *job, source_t *src,
                         const tow_piece_t *piece)
{
    target_t *target = job->targets[piece->target_shard];
    if (target == NULL) return; /* The driver copies it. */
    if (target->is_borrowed) {
        job->engine->stats.copied++;
        transfer_source_lend(src, target);
        transfer_target_note(target, piece->number);
        return;
    }
    const box_side_t from = {job->route->source.dims, piece->source_start};
    const void *row = find_row(job, src, piece);
    const bool is_plain = row != NULL && !job->route->is_packed;
    job->engine->stats.copied++;
    transfer_target_take(target, piece, is_plain ? row : src->share.bytes,
                         is_plain ? NULL : &from);
}

/* -- Large pieces ---------------------------------------------------------- */

static void free_bulk(bulk_t *bulk)
{
    tow_transfer_engine_t *engine = bulk->engine;
    if (bulk->packed != NULL)
        tow_driver_borrow(engine->driver, bulk->packed_device,
                          -(int64_t)bulk->packed_size);
    transfer_memory_free(engine, bulk->packed, bulk->packed_size);
    tow_list_remove(&bulk->in_job);
    tow_list_remove(&bulk->in_engine);
    if (bulk->peer != NULL) {
        TOW_ASSERT(bulk->peer->write_count > 0);
        bulk->peer->write_count--;
        transfer_peer_unused(engine, bulk->peer);
    }
    tow_pool_give(&engine->bulk_pool, bulk);
}

/* A target closes its region when all pieces have arrived, or when it has
 * failed. A repeated write then finds no region: either all is well, or the
 * other end reports the error. */
static bool was_taken(tow_status_t status)
{
    return tow_status_code(status) == TOW_NOT_FOUND;
}

/* The transfer is done with it; the source stays borrowed. */
static void bulk_shared(tow_transfer_write_t *write)
{
    bulk_t *bulk = TOW_CONTAINER_OF(write, bulk_t, write);
    source_t *src = bulk->src;
    tow_transfer_engine_stats_t *stats = &bulk->engine->stats;
    TOW_ASSERT(!bulk->is_shared && src->write_count > 0);
    bulk->is_shared = true;
    stats->sent_shared++;
    stats->shared_count++;
    stats->shared_bytes += write->write.size;
    tow_list_remove(&bulk->in_job);
    bulk->job = NULL;
    bulk->piece = NULL;
    src->write_count--;
    src->shared_count++;
    if (!src->is_shared)
        src->is_shared =
            tow_buffer_share_export(bulk->engine->driver, &src->share);
    finish_when_idle(src);
}

static void end_shared(bulk_t *bulk)
{
    tow_transfer_engine_stats_t *stats = &bulk->engine->stats;
    TOW_ASSERT(bulk->is_shared && stats->shared_count > 0 &&
               stats->shared_bytes >= bulk->write.write.size);
    stats->shared_count--;
    stats->shared_bytes -= bulk->write.write.size;
    TOW_ASSERT(bulk->src->shared_count > 0);
    bulk->src->shared_count--;
}

static void bulk_written(tow_transfer_write_t *write, tow_status_t take_status)
{
    bulk_t *bulk = TOW_CONTAINER_OF(write, bulk_t, write);
    source_t *src = bulk->src;
    job_t *job = bulk->job;
    const uint32_t process = write->process;
    const bool was_shared = bulk->is_shared;
    if (TOW_UNLIKELY(write->write.is_stranded))
        tow_block_quarantine(write->write.bytes);
    if (was_shared) end_shared(bulk);
    free_bulk(bulk);
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        if (was_taken(take_status))
            tow_status_release(take_status);
        else if (job != NULL)
            transfer_fail(job, tow_status_annotate(take_status,
                                                   "transfer to process %u",
                                                   process));
        else
            tow_status_ignore(take_status, "the transfer has ended");
    }
    if (!was_shared) {
        TOW_ASSERT(src->write_count > 0);
        src->write_count--; /* Not earlier: failing frees idle sources. */
    }
    finish_when_idle(src);
}

/* Only if it is the whole source and the whole target: otherwise a part would
 * keep all of the memory in use. */
static bool may_share(const bulk_t *bulk)
{
    const tow_route_t *route = bulk->job->route;
    uint64_t source = 0, target = 0;
    tow_status_ignore(tow_shape_bytes(&route->source, &source),
                      "not shared then");
    tow_status_ignore(tow_shape_bytes(&route->target, &target),
                      "not shared then");
    return !route->is_packed && bulk->packed == NULL &&
           bulk->piece->bytes == source && bulk->piece->bytes == target &&
           tow_env_can_share(bulk->engine->env);
}

static tow_status_t start_write(bulk_t *bulk)
{
    tow_transfer_engine_t *engine = bulk->engine;
    const tow_piece_t *piece = bulk->piece;
    const void *bytes = find_row(bulk->job, bulk->src, piece);
    const uint64_t size = source_piece_bytes(bulk->job, bulk->src, piece);
    if (bytes == NULL) {
        bulk->packed = transfer_memory_alloc(engine, piece->bytes);
        bulk->packed_size = piece->bytes;
        if (bulk->packed == NULL)
            return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                             "cannot allocate %" PRIu64
                             " bytes to pack a piece",
                             piece->bytes);
        bulk->packed_device = bulk->src->share.buffer->device;
        tow_driver_borrow(engine->driver, bulk->packed_device,
                          (int64_t)piece->bytes);
        pack(bulk->job, bulk->src, piece, bulk->packed);
        bytes = bulk->packed;
    }
    bulk->write =
        (tow_transfer_write_t){.write = {.bytes = bytes,
                                         .size = (size_t)size,
                                         .offset = piece->offset,
                                         .tag = piece->number},
                               .target = &bulk->target,
                               .process = piece->process,
                               .shared = may_share(bulk) ? bulk_shared : NULL,
                               .done = bulk_written};
    TOW_RETURN_IF_ERROR(
        engine->options.write(engine->options.context, &bulk->write));
    bulk->is_writing = true;
    engine->stats.sent_large++;
    engine->stats.bytes_sent += size;
    return TOW_OK;
}

/* Both the bytes and the region are ready. False: the job has failed. */
static bool try_write(bulk_t *bulk)
{
    job_t *job = bulk->job;
    const uint32_t process = bulk->piece->process;
    tow_status_t status = start_write(bulk);
    if (TOW_LIKELY(status == TOW_OK)) return true;
    transfer_fail(
        job, tow_status_annotate(status, "transfer to process %u", process));
    return false;
}

static bool write_offered(job_t *job, const source_t *src)
{
    const tow_list_t *head = &job->bulks;
    for (tow_list_t *at = head->next; at != head;) {
        bulk_t *bulk = TOW_CONTAINER_OF(at, bulk_t, in_job);
        at = at->next;
        if (bulk->src == src && bulk->peer != NULL && !bulk->is_writing &&
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

tow_status_t transfer_source_offer(job_t *job, edge_peer_t *peer,
                                   uint32_t shard, tow_region_key_t key)
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
        if (bulk->src->is_ready && !try_write(bulk)) return TOW_OK;
    }
    if (TOW_LIKELY(is_wanted)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "process %u offers a region for shard %u of gang %" PRIu64
                     ", which takes no large piece, or was offered before",
                     peer->process, shard, job->gang);
}

/* -- Sources --------------------------------------------------------------- */

static void free_source(source_t *src)
{
    tow_transfer_engine_t *engine = src->engine;
    if (!src->is_shared) tow_buffer_release(src->share.buffer);
    tow_pool_give(&engine->source_pool, src);
}

static void finish_when_idle(source_t *src)
{
    tow_transfer_engine_t *engine = src->engine;
    job_t *job = src->job;
    if (!src->is_ready || src->is_serving || src->write_count > 0) return;
    if (job != NULL) job->sources[src->shard] = NULL;
    src->job = NULL;
    if (src->shared_count == 0) {
        tow_buffer_share_end(engine->driver, &src->share);
        free_source(src);
    }
    if (job != NULL)
        transfer_part_ended(job);
    else
        transfer_check_quiet(engine);
}

/* False: no memory for the hold. */
static bool send_size(job_t *job, const tow_shape_t *shape,
                      const tow_piece_t *piece)
{
    tow_transfer_engine_t *engine = job->engine;
    tow_msg_edge_size_t message = TOW_MSG_EDGE_SIZE_INIT;
    message.gang = job->gang;
    message.shard = piece->target_shard;
    message.dims = (int64_t *)shape->dims;
    message.n_dims = shape->rank;
    const tow_transfer_sent_t sent =
        engine->options.send(engine->options.context, piece->process,
                             TOW_MESSAGE_EDGE_SIZE, &message.base);
    return TOW_LIKELY(sent == TOW_TRANSFER_SENT) ||
           transfer_hold(job, piece->process);
}

static tow_status_t serve_sized_piece(job_t *job, source_t *src,
                                      const tow_piece_t *piece)
{
    const tow_shape_t *shape = &src->share.buffer->shape;
    const tow_status_t no_memory = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (piece->process == job->engine->options.process) {
        TOW_RETURN_IF_ERROR(transfer_target_size(job, piece->process,
                                                 piece->target_shard,
                                                 shape->dims, shape->rank));
        if (job->is_ended) return TOW_OK;
        job->engine->stats.copied++;
        transfer_target_take(job->targets[piece->target_shard], piece,
                             src->share.bytes, NULL);
        return TOW_OK;
    }
    if (!send_size(job, shape, piece)) return no_memory;
    if (is_large(src->size)) return start_bulk(job, piece);
    return send_small(job, src, piece) ? TOW_OK : no_memory;
}

/* Called once the size is known. */
static void serve_sized(job_t *job, source_t *src)
{
    const tow_route_t *route = job->route;
    tow_transfer_engine_t *engine = job->engine;
    tow_status_t status =
        tow_shape_bytes(&src->share.buffer->shape, &src->size);
    engine->depth++; /* It may end in here; the report follows later. */
    for (size_t i = 0; i < route->send_count; i++)
        if (route->sends[i].source_shard == src->shard && status == TOW_OK &&
            !job->is_ended)
            status = serve_sized_piece(job, src, &route->sends[i]);
    if (TOW_UNLIKELY(status != TOW_OK)) transfer_fail(job, status);
    engine->depth--;
}

/* Sends every piece that can be sent. */
static void serve(job_t *job, source_t *src)
{
    const tow_route_t *route = job->route;
    const uint32_t self = job->engine->options.process;
    bool is_kept = true;
    for (size_t i = 0; i < route->send_count; i++) {
        const tow_piece_t *piece = &route->sends[i];
        if (piece->source_shard != src->shard) continue;
        if (piece->process == self)
            lay_out_here(job, src, piece);
        else if (!is_large(piece->bytes))
            is_kept &= send_small(job, src, piece);
    }
    if (TOW_UNLIKELY(!is_kept))
        transfer_fail(job, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    else if (!tow_list_is_empty(&job->bulks))
        write_offered(job, src);
}

static void borrowed(tow_buffer_share_t *share, tow_status_t take_status)
{
    source_t *src = TOW_CONTAINER_OF(share, source_t, share);
    tow_transfer_engine_t *engine = src->engine;
    job_t *job = src->job;
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        if (job != NULL)
            transfer_fail(job, take_status); /* Which detaches the source. */
        else
            tow_status_ignore(take_status, "the transfer has ended");
        free_source(src);
        transfer_check_quiet(engine);
        return;
    }
    src->is_ready = true;
    if (TOW_LIKELY(job != NULL)) {
        src->is_serving = true;
        if (TOW_UNLIKELY(job->is_sized != NULL))
            serve_sized(job, src);
        else
            serve(job, src);
        src->is_serving = false;
    }
    finish_when_idle(src);
}

/* -- Our own targets that use its memory ------------------------------------ */

void transfer_source_lend(source_t *src, target_t *target)
{
    target->upload.bytes = src->share.bytes;
    target->lender = src;
    src->shared_count++;
}

void transfer_source_return(source_t *src)
{
    TOW_ASSERT(src->shared_count > 0);
    src->shared_count--;
    finish_when_idle(src);
}

/* -- Starting -------------------------------------------------------------- */

tow_status_t transfer_sources_hold(job_t *job)
{
    tow_transfer_t *transfer = job->transfer;
    if (job->source_count == 0) return TOW_OK;
    job->held = tow_malloc(job->source_count * sizeof(*job->held));
    if (job->held == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; i < job->source_count; i++) {
        job->held[i] = transfer->sources[i * transfer->source_stride];
        tow_buffer_retain(job->held[i]);
    }
    transfer->sources = job->held;
    transfer->source_stride = 1;
    return TOW_OK;
}

void transfer_sources_unhold(job_t *job)
{
    if (TOW_LIKELY(job->held == NULL)) return;
    for (uint32_t i = 0; i < job->source_count; i++)
        tow_buffer_release(job->held[i]);
    tow_free(job->held);
    job->held = NULL;
}

static tow_status_t start_source(job_t *job, uint32_t shard)
{
    tow_transfer_engine_t *engine = job->engine;
    source_t *src = tow_pool_take(&engine->source_pool);
    if (src == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_buffer_t *source =
        job->transfer->sources[shard * job->transfer->source_stride];
    src->share.buffer = source;
    src->share.bytes = NULL;
    src->share.done = borrowed;
    src->engine = engine;
    src->job = NULL;
    src->shard = shard;
    src->write_count = src->shared_count = 0;
    src->is_ready = src->is_serving = src->is_shared = false;
    tow_buffer_retain(source);
    tow_status_t status = tow_driver_share(engine->driver, &src->share);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        free_source(src);
        return status;
    }
    src->job = job;
    job->sources[shard] = src;
    job->open_count++;
    return TOW_OK;
}

static tow_status_t start_bulk(job_t *job, const tow_piece_t *piece)
{
    tow_transfer_engine_t *engine = job->engine;
    bulk_t *bulk = tow_pool_take(&engine->bulk_pool);
    if (bulk == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    bulk->engine = engine;
    bulk->job = job;
    bulk->src = job->sources[piece->source_shard];
    bulk->src->write_count++;
    bulk->piece = piece;
    bulk->peer = NULL;
    bulk->packed = NULL;
    bulk->packed_size = 0;
    bulk->is_writing = bulk->is_shared = false;
    tow_list_append(&engine->bulks, &bulk->in_engine);
    tow_list_append(&job->bulks, &bulk->in_job);
    return TOW_OK;
}

/* Does the driver copy this piece of our own? */
static bool is_copied(const job_t *job, const tow_piece_t *piece)
{
    return piece->process == job->engine->options.process &&
           job->targets[piece->target_shard] == NULL;
}

tow_status_t transfer_sources_start(job_t *job)
{
    const tow_route_t *route = job->route;
    const uint32_t self = job->engine->options.process;
    for (size_t i = 0; i < route->send_count; i++) {
        const tow_piece_t *piece = &route->sends[i];
        if (job->is_sized == NULL && is_copied(job, piece)) continue;
        if (job->sources[piece->source_shard] == NULL)
            TOW_RETURN_IF_ERROR(start_source(job, piece->source_shard));
        if (is_large(piece->bytes) && piece->process != self &&
            job->is_sized == NULL)
            TOW_RETURN_IF_ERROR(start_bulk(job, piece));
    }
    return TOW_OK;
}

/* -- Ending ---------------------------------------------------------------- */

void transfer_sources_cancel(job_t *job)
{
    tow_list_t *item;
    transfer_sources_unhold(job);
    while (!tow_list_is_empty(&job->holds))
        free_hold(job, TOW_CONTAINER_OF(job->holds.next, hold_t, in_job));
    while ((item = tow_list_pop_front(&job->bulks)) != NULL) {
        bulk_t *bulk = TOW_CONTAINER_OF(item, bulk_t, in_job);
        bulk->job = NULL;
        bulk->piece = NULL;
        if (bulk->is_writing) continue;
        bulk->src->write_count--;
        free_bulk(bulk);
    }
    for (uint32_t i = 0; i < job->source_count; i++) {
        source_t *src = job->sources[i];
        if (src == NULL) continue;
        job->sources[i] = NULL;
        src->job = NULL;
        finish_when_idle(src);
    }
}

/* The driver frees buffers and borrowed memory. */
void transfer_sources_discard(tow_transfer_engine_t *engine)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&engine->bulks)) != NULL) {
        bulk_t *bulk = TOW_CONTAINER_OF(item, bulk_t, in_engine);
        tow_free(bulk->packed);
        if (bulk->peer == NULL) continue;
        bulk->peer->write_count--;
        transfer_peer_unused(engine, bulk->peer);
    }
}
