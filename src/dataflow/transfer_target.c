/* Target shards: promises that are filled with pieces.
 *
 * The driver copies a shard that comes whole from our own process. Any other
 * target is a late upload over memory of ours: pieces are copied into it as
 * they arrive, and after the last it is handed to the device. Other workers
 * write large pieces themselves, through a region that is closed before the
 * device sees the memory: over the shard itself, or, where pieces arrive
 * packed, over a second buffer from which they are unpacked. A shard that is
 * one piece of another worker of this host may be shared with us: the device
 * then uses that worker's memory instead of ours. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/transfer_impl.h"

/* -- Ending ---------------------------------------------------------------- */

static void free_arrived(target_t *target)
{
    if (target->arrived != &target->here_) tow_free(target->arrived);
}

static void free_bytes(target_t *target)
{
    tow_transfer_engine_t *engine = target->engine;
    const bool was_late = target->is_late && target->bytes != NULL;
    transfer_memory_free(engine, target->bytes, target->size);
    target->bytes = NULL;
    if (!was_late) return;
    TOW_ASSERT(engine->stats.late_bytes >= target->size);
    engine->stats.late_bytes -= target->size;
    if (engine->freed != NULL) engine->freed(engine->freed_context);
}

static void count_bytes(target_t *target, int64_t bytes)
{
    target->counted_bytes += bytes;
    tow_driver_borrow(target->engine->driver, target->upload.device, bytes);
}

static void free_packed(target_t *target)
{
    transfer_memory_free(target->engine, target->packed, target->size);
    target->packed = NULL;
}

static void free_when_idle(target_t *target)
{
    tow_transfer_engine_t *engine = target->engine;
    if (target->job != NULL || target->is_uploading || target->region != NULL)
        return;
    if (target->counted_bytes > 0) count_bytes(target, -target->counted_bytes);
    free_bytes(target);
    free_packed(target);
    if (target->share != NULL) tow_share_release(engine->env, target->share);
    free_arrived(target);
    tow_list_remove(&target->in_engine);
    tow_pool_give(&engine->target_pool, target);
    transfer_check_quiet(engine);
}

/* The device does not need the memory any more. If the upload failed, the
 * buffer has failed and reports that to its users. */
static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    target_t *target = TOW_CONTAINER_OF(upload, target_t, upload);
    tow_status_ignore(take_status, "the buffer reports the same error");
    TOW_ASSERT(target->is_uploading && target->job == NULL);
    target->is_uploading = false;
    source_t *lender = target->lender;
    target->lender = NULL;
    free_when_idle(target);
    if (TOW_UNLIKELY(lender != NULL)) transfer_source_return(lender);
}

static void region_closed(void *context);

static void close_region(target_t *target)
{
    if (target->region == NULL || target->is_closing) return;
    target->is_closing = true;
    tow_region_close(target->region, (tow_closed_t){region_closed, target});
}

/* Detaches it from its job. The driver's callback may free it. */
static void settle(target_t *target, tow_status_t take_status)
{
    tow_transfer_engine_t *engine = target->engine;
    target->job->targets[target->shard] = NULL;
    target->job = NULL;
    TOW_ASSERT(engine->stats.receive_bytes >= target->size);
    engine->stats.receive_bytes -= target->size;
    close_region(target);
    count_bytes(target, -target->counted_bytes);
    tow_upload_settle(engine->driver, &target->upload, take_status);
}

static void complete(target_t *target)
{
    job_t *job = target->job;
    if (target->share != NULL)
        free_bytes(target); /* It cannot be written any more. */
    free_packed(target);
    settle(target, TOW_OK);
    transfer_part_ended(job);
}

/* The memory cannot be written any more. */
static void region_closed(void *context)
{
    target_t *target = context;
    TOW_ASSERT(target->is_closing);
    target->region = NULL;
    target->is_closing = false;
    if (target->job != NULL)
        complete(target);
    else
        free_when_idle(target);
}

void transfer_targets_fail(job_t *job, tow_status_t cause)
{
    for (uint32_t i = 0; i < job->target_count; i++)
        if (job->targets[i] != NULL)
            settle(job->targets[i], tow_status_retain(cause));
    tow_list_t *item;
    while ((item = tow_list_pop_front(&job->copies)) != NULL)
        TOW_CONTAINER_OF(item, copy_t, in_job)->job = NULL;
}

void transfer_targets_discard(tow_transfer_engine_t *engine)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&engine->targets)) != NULL) {
        target_t *target = TOW_CONTAINER_OF(item, target_t, in_engine);
        tow_free(target->bytes);
        tow_free(target->packed);
        free_arrived(target);
    }
}

/* -- Pieces ---------------------------------------------------------------- */

bool transfer_target_has(const target_t *target, uint32_t number)
{
    return (target->arrived[number / 64] >> (number % 64) & 1) != 0;
}

void transfer_target_note(target_t *target, uint32_t number)
{
    target->arrived[number / 64] |= UINT64_C(1) << (number % 64);
    TOW_ASSERT(target->missing_count > 0);
    if (--target->missing_count > 0) return;
    if (target->region != NULL)
        close_region(target);
    else
        complete(target);
}

static void lay_out(target_t *target, const tow_piece_t *piece,
                    const void *bytes, const box_side_t *from)
{
    const tow_shape_t *shape = &target->job->route->target;
    const box_side_t to = {shape->dims, piece->target_start};
    box_copy(&to, target->bytes, from, bytes, piece->extent, shape->rank,
             box_element_bytes(shape));
}

void transfer_target_take(target_t *target, const tow_piece_t *piece,
                          const void *bytes, const box_side_t *from)
{
    if (TOW_LIKELY(from == NULL) && !target->job->route->is_packed) {
        const uint64_t size = target_piece_bytes(target->job, target, piece);
        if (size > 0)
            memcpy((char *)target->bytes + piece->offset, bytes, size);
    } else {
        const box_side_t dense = {piece->extent, NULL};
        lay_out(target, piece, bytes, from != NULL ? from : &dense);
    }
    transfer_target_note(target, piece->number);
}

static tow_status_t TOW_COLD wrong_piece(const job_t *job, uint32_t process,
                                         uint32_t shard, uint32_t number,
                                         uint64_t size)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "process %u sent piece %u of shard %u of gang %" PRIu64
                     ", %" PRIu64 " bytes, which is not expected from it",
                     process, number, shard, job->gang, size);
}

tow_status_t transfer_target_piece(job_t *job, uint32_t process, uint32_t shard,
                                   uint32_t number, const void *bytes,
                                   size_t size)
{
    target_t *target = shard < job->target_count ? job->targets[shard] : NULL;
    if (TOW_UNLIKELY(target == NULL || number >= target->receive_count))
        return wrong_piece(job, process, shard, number, size);
    const tow_piece_t *piece =
        &job->route->receives[target->first_receive + number];
    if (TOW_UNLIKELY(piece->process != process ||
                     target_piece_bytes(job, target, piece) != size ||
                     process == job->engine->options.process ||
                     transfer_target_has(target, number)))
        return wrong_piece(job, process, shard, number, size);
    transfer_target_take(target, piece, bytes, NULL);
    return TOW_OK;
}

/* A peer has written a large piece, or shared it. A region does not know which
 * peer. */
static void written(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival)
{
    (void)region;
    target_t *target = context;
    job_t *job = target->job;
    if (job == NULL || target->is_closing) {
        if (arrival->share != NULL)
            tow_share_release(target->engine->env, arrival->share);
        return;
    }
    const tow_piece_t *piece =
        arrival->tag < target->receive_count
            ? &job->route->receives[target->first_receive + arrival->tag]
            : NULL;
    target->share =
        arrival->share; /* It is the whole shard: there is no other piece. */
    if (piece == NULL || arrival->offset != piece->offset ||
        arrival->size != target_piece_bytes(job, target, piece) ||
        transfer_target_has(target, piece->number)) {
        transfer_fail(job,
                      TOW_ERROR(TOW_INVALID_ARGUMENT,
                                "transfer: %" PRIu64 " bytes were written "
                                "at %" PRIu64 " as piece %" PRIu64
                                ", where no such piece is expected",
                                arrival->size, arrival->offset, arrival->tag));
        return;
    }
    if (arrival->share != NULL) {
        target->upload.bytes = arrival->shared;
        target->upload.may_overwrite = false;
    }
    if (target->packed != NULL) {
        const box_side_t dense = {piece->extent, NULL};
        lay_out(target, piece, (const char *)target->packed + piece->offset,
                &dense);
    }
    transfer_target_note(target, piece->number);
}

/* -- Starting -------------------------------------------------------------- */

static void copied(tow_copy_t *driver_copy, tow_status_t take_status)
{
    copy_t *copy = TOW_CONTAINER_OF(driver_copy, copy_t, copy);
    tow_transfer_engine_t *engine = copy->engine;
    job_t *job = copy->job;
    tow_list_remove(&copy->in_job);
    tow_pool_give(&engine->copy_pool, copy);
    if (TOW_UNLIKELY(job == NULL)) {
        tow_status_ignore(take_status, "the transfer has ended");
        transfer_check_quiet(engine);
        return;
    }
    if (TOW_UNLIKELY(take_status != TOW_OK))
        transfer_fail(job, take_status);
    else
        transfer_part_ended(job);
}

tow_status_t transfer_copy_start(job_t *job, tow_buffer_t *source,
                                 size_t device, tow_buffer_t **out_buffer)
{
    tow_transfer_engine_t *engine = job->engine;
    copy_t *copy = tow_pool_take(&engine->copy_pool);
    if (copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    copy->copy.source = source;
    copy->copy.device = device;
    copy->copy.buffer = NULL;
    copy->copy.done = copied;
    copy->engine = engine;
    copy->job = job;
    tow_status_t status = tow_driver_copy(engine->driver, &copy->copy);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&engine->copy_pool, copy);
        return status;
    }
    tow_list_append(&job->copies, &copy->in_job);
    *out_buffer = copy->copy.buffer;
    job->open_count++;
    engine->stats.copied++;
    return TOW_OK;
}

static tow_status_t start_copy(job_t *job, uint32_t shard,
                               const tow_piece_t *piece)
{
    const tow_transfer_t *transfer = job->transfer;
    return transfer_copy_start(
        job, transfer->sources[piece->source_shard * transfer->source_stride],
        job->route->target_devices[shard], &transfer->targets[shard]);
}

static bool is_written(const job_t *job, const target_t *target,
                       const tow_piece_t *piece)
{
    return is_large(target_piece_bytes(job, target, piece)) &&
           piece->process != job->engine->options.process;
}

static bool needs_region(const job_t *job, const target_t *target)
{
    const tow_piece_t *pieces = &job->route->receives[target->first_receive];
    for (uint32_t i = 0; i < target->receive_count; i++)
        if (is_written(job, target, &pieces[i])) return true;
    return false;
}

/* So that the later offer cannot fail. */
static tow_status_t reserve_offers(job_t *job, const target_t *target)
{
    tow_transfer_engine_t *engine = job->engine;
    const tow_piece_t *pieces = &job->route->receives[target->first_receive];
    for (uint32_t i = 0; i < target->receive_count; i++)
        if (is_written(job, target, &pieces[i]) &&
            tow_map_find(&engine->offered, pieces[i].process) == NULL &&
            !tow_map_put(&engine->offered, pieces[i].process, engine))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static bool may_be_lent(const job_t *job, const target_t *target)
{
    return !job->transfer->is_consumed && target->receive_count == 1 &&
           target->packed == NULL &&
           target_piece_bytes(job, target,
                              &job->route->receives[target->first_receive]) ==
               target->size;
}

static tow_status_t open_region(job_t *job, target_t *target)
{
    tow_transfer_engine_t *engine = job->engine;
    if (!tow_env_has_lanes(engine->env))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "transfer: this worker has no data plane");
    TOW_RETURN_IF_ERROR(reserve_offers(job, target));
    if (job->route->is_packed) {
        target->packed = transfer_memory_alloc(engine, target->size);
        if (target->packed == NULL)
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        count_bytes(target, (int64_t)target->size);
    }
    const tow_region_options_t options = {
        .bytes = target->packed != NULL ? target->packed : target->bytes,
        .size = (size_t)target->size,
        .may_share = may_be_lent(job, target),
        .arrived = written,
        .context = target};
    return tow_env_region_open(engine->env, &options, &target->region);
}

static tow_status_t make_arrived(target_t *target)
{
    const size_t words = (target->receive_count + 63) / 64;
    target->here_ = 0;
    target->arrived = &target->here_;
    if (TOW_LIKELY(words <= 1)) return TOW_OK;
    uint64_t *table = tow_calloc(words, sizeof(*table));
    if (table == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    target->arrived = table;
    return TOW_OK;
}

static tow_status_t take_memory(job_t *job, target_t *target)
{
    tow_transfer_engine_t *engine = job->engine;
    target->bytes = transfer_memory_alloc(engine, target->size);
    if (target->bytes == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "transfer: cannot allocate %" PRIu64
                         " bytes for a shard",
                         target->size);
    target->upload.device = job->route->target_devices[target->shard];
    count_bytes(target, (int64_t)target->size);
    target->is_late = job->transfer->is_late;
    if (target->is_late) engine->stats.late_bytes += target->size;
    target->upload.bytes = target->bytes;
    return needs_region(job, target) ? open_region(job, target) : TOW_OK;
}

static tow_status_t upload_late(job_t *job, target_t *target,
                                const tow_shape_t *shape)
{
    tow_transfer_engine_t *engine = job->engine;
    target->upload.device = job->route->target_devices[target->shard];
    target->upload.shape = *shape;
    target->upload.buffer = NULL;
    target->upload.done = uploaded;
    target->upload.may_alias = true;
    target->upload.may_overwrite = true;
    target->upload.is_deferred = true;
    TOW_RETURN_IF_ERROR(tow_driver_upload(engine->driver, &target->upload));
    target->is_uploading = true;
    return TOW_OK;
}

static target_t *make_target(tow_transfer_engine_t *engine, uint32_t shard,
                             uint64_t size)
{
    target_t *target = tow_pool_take(&engine->target_pool);
    if (target == NULL) return NULL;
    target->engine = engine;
    target->job = NULL;
    target->bytes = target->packed = NULL;
    target->upload.bytes = NULL;
    target->share = NULL;
    target->lender = NULL;
    target->size = size;
    target->counted_bytes = 0;
    target->region = NULL;
    target->shard = shard;
    target->is_uploading = target->is_closing = target->is_late = false;
    target->is_borrowed = false;
    tow_list_append(&engine->targets, &target->in_engine);
    return target;
}

/* The pieces of a target: a range of the route. */
typedef struct range {
    size_t first;
    uint32_t count;
} range_t;

/* NULL memory: a promise. */
static tow_status_t make_ready(job_t *job, target_t *target, range_t pieces,
                               const tow_shape_t *shape)
{
    target->missing_count = target->receive_count = pieces.count;
    target->first_receive = pieces.first;
    TOW_RETURN_IF_ERROR(make_arrived(target));
    if (!job->is_held) TOW_RETURN_IF_ERROR(take_memory(job, target));
    return upload_late(job, target, shape);
}

static tow_status_t start_target(job_t *job, uint32_t shard, range_t pieces,
                                 const tow_shape_t *shape)
{
    tow_transfer_engine_t *engine = job->engine;
    uint64_t size;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &size));
    target_t *target = make_target(engine, shard, size);
    if (target == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = make_ready(job, target, pieces, shape);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        close_region(target);
        free_when_idle(target);
        return status;
    }
    target->job = job;
    job->targets[shard] = target;
    job->open_count++;
    job->transfer->targets[shard] = target->upload.buffer;
    engine->stats.receive_bytes += size;
    if (TOW_UNLIKELY(pieces.count == 0) && !job->is_held)
        complete(target); /* An empty array. */
    return TOW_OK;
}

/* A copy of the driver may share memory with its source. */
static bool is_copy(const tow_transfer_engine_t *engine,
                    const tow_route_t *route, const tow_piece_t *piece,
                    uint32_t count, uint64_t size)
{
    return count == 1 && piece->process == engine->options.process &&
           piece->bytes == size &&
           tow_shape_equal(&route->source, &route->target) &&
           engine->driver->ops->copy != NULL;
}

/* The pieces of the next shard, from `at` on. */
static uint32_t count_pieces(const tow_route_t *route, size_t at,
                             uint32_t shard)
{
    const size_t first = at;
    while (at < route->receive_count &&
           route->receives[at].target_shard == shard)
        at++;
    return (uint32_t)(at - first);
}

uint64_t tow_transfer_memory(const tow_transfer_engine_t *engine,
                             const tow_route_t *route, bool is_consumed)
{
    uint64_t size = 0, bytes = 0;
    size_t at = 0;
    tow_status_ignore(tow_shape_bytes(&route->target, &size),
                      "the route has been checked");
    for (uint32_t shard = 0; shard < route->target_count; shard++) {
        const uint32_t count = count_pieces(route, at, shard);
        if (is_consumed ||
            !is_copy(engine, route, &route->receives[at], count, size))
            bytes += size;
        at += count;
    }
    return bytes;
}

void tow_transfer_engine_watch(tow_transfer_engine_t *engine,
                               void (*freed)(void *context), void *context)
{
    engine->freed = freed;
    engine->freed_context = context;
}

tow_status_t transfer_targets_start(job_t *job)
{
    const tow_route_t *route = job->route;
    uint64_t size = 0;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&route->target, &size));
    size_t at = 0;
    for (uint32_t shard = 0; shard < job->target_count; shard++) {
        const size_t first = at;
        const uint32_t count = count_pieces(route, first, shard);
        const tow_piece_t *piece = &route->receives[first];
        at += count;
        if (TOW_UNLIKELY(job->is_sized != NULL) && count > 0) {
            job->open_count++; /* Until it is sized. */
            job->unsized_count++;
            continue;
        }
        TOW_RETURN_IF_ERROR(
            !job->transfer->is_consumed &&
                    is_copy(job->engine, route, piece, count, size)
                ? start_copy(job, shard, piece)
                : start_target(job, shard, (range_t){first, count},
                               &route->target));
        if (job->is_sized != NULL) job->is_sized[shard] = true;
    }
    return TOW_OK;
}

/* -- Held transfers -------------------------------------------------------- */

tow_status_t transfer_targets_promise(job_t *job)
{
    const tow_route_t *route = job->route;
    uint64_t size = 0;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&route->target, &size));
    size_t at = 0;
    for (uint32_t shard = 0; shard < job->target_count; shard++) {
        const range_t pieces = {at, count_pieces(route, at, shard)};
        at += pieces.count;
        TOW_RETURN_IF_ERROR(start_target(job, shard, pieces, &route->target));
        target_t *target = job->targets[shard];
        target->is_borrowed =
            !job->transfer->is_consumed &&
            is_copy(job->engine, route, &route->receives[pieces.first],
                    pieces.count, size);
        target->upload.may_overwrite = !target->is_borrowed;
    }
    return TOW_OK;
}

tow_status_t transfer_targets_begin(job_t *job)
{
    for (uint32_t shard = 0; shard < job->target_count; shard++) {
        target_t *target = job->targets[shard];
        if (target->receive_count == 0) /* An empty array. */
            complete(target);
        else if (!target->is_borrowed)
            TOW_RETURN_IF_ERROR(take_memory(job, target));
    }
    return TOW_OK;
}

/* -- Offers ---------------------------------------------------------------- */

static void offer(job_t *job, const target_t *target, uint32_t process)
{
    tow_transfer_engine_t *engine = job->engine;
    tow_msg_edge_offer_t message = TOW_MSG_EDGE_OFFER_INIT;
    tow_msg_lane_target_t room = TOW_MSG_LANE_TARGET_INIT;
    const tow_region_key_t key = tow_region_key(target->region);
    const void *address;
    tow_env_lane_address(engine->env, &address, &room.lane_address.len);
    room.lane_address.data = (uint8_t *)address;
    room.region_id = key.id;
    room.region_secret = key.secret;
    message.gang = job->gang;
    message.shard = target->shard;
    message.target = &room;
    engine->options.send(engine->options.context, process,
                         TOW_MESSAGE_EDGE_OFFER, &message.base);
}

/* One offer to each worker that has a large piece of it. */
static void offer_target(job_t *job, const target_t *target)
{
    tow_transfer_engine_t *engine = job->engine;
    const tow_piece_t *pieces = &job->route->receives[target->first_receive];
    void *mark = (void *)++engine->offer_number;
    for (uint32_t i = 0; i < target->receive_count; i++) {
        const uint32_t process = pieces[i].process;
        if (!is_written(job, target, &pieces[i]) ||
            tow_map_find(&engine->offered, process) == mark)
            continue;
        const bool is_kept = tow_map_put(&engine->offered, process, mark);
        TOW_ASSERT(is_kept); /* The entry exists already. */
        offer(job, target, process);
    }
}

void transfer_targets_offer(job_t *job)
{
    for (uint32_t i = 0; i < job->target_count; i++)
        if (job->targets[i] != NULL && job->targets[i]->region != NULL)
            offer_target(job, job->targets[i]);
}

/* -- Sizes ----------------------------------------------------------------- */

static const tow_piece_t *find_piece(const job_t *job, uint32_t shard)
{
    for (size_t i = 0; i < job->route->receive_count; i++)
        if (job->route->receives[i].target_shard == shard)
            return &job->route->receives[i];
    return NULL;
}

static bool is_within(const tow_shape_t *bound, const int64_t *dims,
                      size_t rank)
{
    if (rank != bound->rank) return false;
    for (size_t i = 0; i < rank; i++)
        if (dims[i] < 0 || dims[i] > bound->dims[i]) return false;
    return true;
}

tow_status_t transfer_target_size(job_t *job, uint32_t process, uint32_t shard,
                                  const int64_t *dims, size_t rank)
{
    const tow_route_t *route = job->route;
    const tow_piece_t *piece = job->is_sized != NULL &&
                                       shard < job->target_count &&
                                       !job->is_sized[shard]
                                   ? find_piece(job, shard)
                                   : NULL;
    if (piece == NULL || piece->process != process ||
        !is_within(&route->target, dims, rank))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "process %u sent the size of shard %u of gang %" PRIu64
                         ", which is not expected from it, or is too large",
                         process, shard, job->gang);
    tow_shape_t shape = route->target;
    if (rank > 0) memcpy(shape.dims, dims, rank * sizeof(dims[0]));
    tow_status_t status = start_target(
        job, shard, (range_t){(size_t)(piece - route->receives), 1}, &shape);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        transfer_fail(job, status);
        return TOW_OK;
    }
    job->is_sized[shard] = true;
    if (job->targets[shard]->region != NULL)
        offer_target(job, job->targets[shard]);
    if (--job->unsized_count == 0) job->transfer->sized(job->transfer);
    transfer_part_ended(job); /* The part that stood for its unknown size. */
    return TOW_OK;
}
