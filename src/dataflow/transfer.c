#include "dataflow/transfer.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "dataflow/transfer_impl.h"

/* -- Peers ----------------------------------------------------------------- */

edge_peer_t *transfer_peer(tow_transfer_engine_t *engine, uint32_t process)
{
    edge_peer_t *peer = tow_map_find(&engine->peers, process);
    if (TOW_LIKELY(peer != NULL)) return peer;
    peer = tow_calloc(1, sizeof(*peer));
    if (peer == NULL) return NULL;
    peer->process = process;
    if (tow_map_put(&engine->peers, process, peer)) return peer;
    tow_free(peer);
    return NULL;
}

static void free_peer(edge_peer_t *peer)
{
    tow_free(peer->address);
    tow_free(peer);
}

void transfer_peer_unused(tow_transfer_engine_t *engine, edge_peer_t *peer)
{
    (void)engine;
    if (peer->is_disconnected && peer->write_count == 0) free_peer(peer);
}

static void discard_peer(tow_transfer_engine_t *engine, edge_peer_t *peer)
{
    transfer_early_discard_from(engine, peer->process);
    tow_map_remove(&engine->peers, peer->process);
    peer->is_disconnected = true;
    transfer_peer_unused(engine, peer);
}

static void discard_peers(tow_transfer_engine_t *engine)
{
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&engine->peers, &cursor, &process, &value))
        discard_peer(engine, value);
}

/* A worker has the same data plane address until it ends. */
static tow_status_t learn_address(edge_peer_t *peer,
                                  const tow_msg_lane_target_t *target)
{
    const size_t size = target != NULL ? target->lane_address.len : 0;
    if (peer->address == NULL && size > 0) {
        peer->address = tow_malloc(size);
        if (peer->address == NULL)
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        memcpy(peer->address, target->lane_address.data, size);
        peer->address_size = size;
    }
    if (size > 0 && size == peer->address_size &&
        memcmp(peer->address, target->lane_address.data, size) == 0)
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "process %u offers a region %s",
                     peer->process,
                     size == 0 ? "without an address"
                               : "at another data plane address than before");
}

/* -- Ending a transfer ----------------------------------------------------- */

bool tow_transfer_engine_is_quiet(const tow_transfer_engine_t *engine)
{
    return tow_list_is_empty(&engine->jobs) &&
           tow_list_is_empty(&engine->ended) && !engine->is_reporting &&
           engine->target_pool.taken_count == 0 &&
           engine->copy_pool.taken_count == 0 &&
           engine->source_pool.taken_count == 0 &&
           engine->bulk_pool.taken_count == 0 &&
           engine->reduction_pool.taken_count == 0 && engine->task_count == 0;
}

void transfer_check_quiet(tow_transfer_engine_t *engine)
{
    if (engine->options.quiet != NULL && engine->depth == 0 &&
        tow_transfer_engine_is_quiet(engine))
        engine->options.quiet(engine->options.context);
}

static void free_job(job_t *job)
{
    tow_transfer_engine_t *engine = job->engine;
    if (job->targets != job->targets_here) tow_free(job->targets);
    if (job->sources != job->sources_here) tow_free(job->sources);
    tow_free(job->is_sized);
    tow_free(job->reductions);
    tow_free(job->held);
    tow_list_remove(&job->in_engine);
    tow_pool_give(&engine->job_pool, job);
}

static void report_one(job_t *job)
{
    tow_transfer_t *transfer = job->transfer;
    tow_status_t error = job->error;
    transfer->private_[0] = NULL;
    free_job(job);
    transfer->done(transfer, error);
}

static void report_ended(tow_transfer_engine_t *engine)
{
    while (!tow_list_is_empty(&engine->ended))
        report_one(TOW_CONTAINER_OF(engine->ended.next, job_t, in_engine));
    transfer_check_quiet(engine);
}

static void on_report(tow_post_t *post)
{
    tow_transfer_engine_t *engine =
        TOW_CONTAINER_OF(post, tow_transfer_engine_t, report);
    engine->is_reporting = false;
    report_ended(engine);
}

/* Called before its targets are poisoned: the owner learns of the failed
 * transfer before that of a poisoned target. */
static void end_job(job_t *job, tow_status_t take_error)
{
    tow_transfer_engine_t *engine = job->engine;
    TOW_ASSERT(!job->is_ended && engine->stats.transfer_count > 0);
    job->is_ended = true;
    job->error = take_error;
    if (job->is_listed) tow_map_remove(&engine->jobs_by_gang, job->gang);
    if (TOW_UNLIKELY(job->is_held)) transfer_early_discard(engine, job->gang);
    tow_list_remove(&job->in_engine);
    tow_list_append(&engine->ended, &job->in_engine);
    engine->stats.transfer_count--;
    if (engine->depth == 0 || engine->is_reporting) return;
    engine->is_reporting = true;
    tow_env_post(engine->env, &engine->report);
}

void transfer_part_ended(job_t *job)
{
    tow_transfer_engine_t *engine = job->engine;
    TOW_ASSERT(job->open_count > 0);
    if (--job->open_count > 0 || job->is_ended) return;
    end_job(job, TOW_OK);
    if (engine->depth == 0) report_ended(engine);
}

static void detach_parts(job_t *job, tow_status_t cause)
{
    transfer_targets_fail(job, cause);
    transfer_reduce_fail(job, cause);
    transfer_sources_cancel(job);
}

void TOW_COLD transfer_fail(job_t *job, tow_status_t take_cause)
{
    tow_transfer_engine_t *engine = job->engine;
    TOW_ASSERT(take_cause != TOW_OK);
    if (job->is_ended) {
        tow_status_ignore(take_cause, "the transfer has ended");
        return;
    }
    end_job(job, take_cause);
    engine->depth++; /* No callback before all parts are detached. */
    detach_parts(job, take_cause);
    engine->depth--;
    if (engine->depth == 0) report_ended(engine);
}

/* -- Starting a transfer --------------------------------------------------- */

static bool make_tables(job_t *job)
{
    job->targets = job->targets_here;
    job->sources = job->sources_here;
    if (TOW_UNLIKELY(job->target_count > TOW_TRANSFER_INLINE_COUNT)) {
        job->targets = tow_calloc(job->target_count, sizeof(*job->targets));
        if (job->targets == NULL) return false;
    } else {
        memset(job->targets_here, 0, sizeof(job->targets_here));
    }
    if (TOW_UNLIKELY(job->source_count > TOW_TRANSFER_INLINE_COUNT)) {
        job->sources = tow_calloc(job->source_count, sizeof(*job->sources));
        if (job->sources == NULL) return false;
    } else {
        memset(job->sources_here, 0, sizeof(job->sources_here));
    }
    if (TOW_LIKELY(!job->transfer->is_sized)) return true;
    job->is_sized = tow_calloc(job->target_count + 1, sizeof(bool));
    return job->is_sized != NULL;
}

static job_t *make_job(tow_transfer_engine_t *engine, tow_transfer_t *transfer)
{
    job_t *job = tow_pool_take(&engine->job_pool);
    if (job == NULL) return NULL;
    job->engine = engine;
    job->transfer = transfer;
    job->route = transfer->route;
    job->part = transfer->part;
    job->gang = transfer->gang;
    job->error = TOW_OK;
    job->open_count = 0;
    job->is_listed = job->is_ended = false;
    job->is_held = transfer->is_held;
    job->held = NULL;
    job->is_sized = NULL;
    job->unsized_count = 0;
    job->target_count = job->source_count = job->reduction_count = 0;
    job->reductions = NULL;
    if (transfer->route != NULL) {
        job->target_count = (uint32_t)transfer->route->target_count;
        job->source_count = (uint32_t)transfer->route->source_count;
    }
    tow_list_init(&job->copies);
    tow_list_init(&job->bulks);
    tow_list_init(&job->holds);
    tow_list_append(&engine->jobs, &job->in_engine);
    if (make_tables(job)) return job;
    free_job(job);
    return NULL;
}

static bool has_others(const tow_transfer_engine_t *engine,
                       const tow_route_t *route)
{
    for (size_t i = 0; i < route->send_count; i++)
        if (route->sends[i].process != engine->options.process) return true;
    for (size_t i = 0; i < route->receive_count; i++)
        if (route->receives[i].process != engine->options.process) return true;
    return false;
}

static tow_status_t list_by_gang(job_t *job)
{
    tow_transfer_engine_t *engine = job->engine;
    if (!(job->part != NULL ? transfer_reduce_has_others(job->part)
                            : has_others(engine, job->route)))
        return TOW_OK;
    if (TOW_UNLIKELY(tow_map_find(&engine->jobs_by_gang, job->gang) != NULL))
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "a transfer or collective of gang %" PRIu64
                         " is under way",
                         job->gang);
    if (!tow_map_put(&engine->jobs_by_gang, job->gang, job))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    job->is_listed = true;
    return TOW_OK;
}

static tow_status_t check_driver(const tow_transfer_engine_t *engine)
{
    const tow_driver_ops_t *ops = engine->driver->ops;
    if (TOW_LIKELY(ops->upload_settle != NULL && ops->share != NULL))
        return TOW_OK;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "the %s driver lacks late uploads or borrowing, which "
                     "transfers need",
                     engine->driver->name);
}

static tow_status_t start(job_t *job)
{
    TOW_RETURN_IF_ERROR(list_by_gang(job));
    if (job->part != NULL) return transfer_reduce_start(job);
    if (TOW_UNLIKELY(job->is_held)) {
        TOW_RETURN_IF_ERROR(transfer_sources_hold(job));
        return transfer_targets_promise(job);
    }
    TOW_RETURN_IF_ERROR(transfer_targets_start(job));
    return transfer_sources_start(job);
}

static size_t count_targets(const job_t *job)
{
    if (job->part != NULL)
        return job->part->shard_count * job->part->tensor_count;
    return job->target_count;
}

static void undo(job_t *job, tow_status_t cause)
{
    tow_transfer_engine_t *engine = job->engine;
    tow_transfer_t *transfer = job->transfer;
    detach_parts(job, cause);
    for (size_t i = 0; i < count_targets(job); i++) {
        if (transfer->targets[i] != NULL)
            tow_buffer_release(transfer->targets[i]);
        transfer->targets[i] = NULL;
    }
    if (job->is_listed) tow_map_remove(&engine->jobs_by_gang, job->gang);
    free_job(job);
}

static const char *kind_of(const job_t *job)
{
    return job->part != NULL ? "collective" : "transfer";
}

/* Does it still have to send us a piece? */
static bool waits_for(const job_t *job, uint32_t process)
{
    if (job->part != NULL) return transfer_reduce_waits_for(job, process);
    for (size_t i = 0; i < job->route->receive_count; i++) {
        const tow_piece_t *piece = &job->route->receives[i];
        const target_t *target = job->targets[piece->target_shard];
        const bool is_to_be_sized =
            job->is_sized != NULL && !job->is_sized[piece->target_shard];
        if (piece->process == process &&
            (is_to_be_sized ||
             (target != NULL && !transfer_target_has(target, piece->number))))
            return true;
    }
    return false;
}

static void TOW_COLD fail_reset(job_t *job, uint32_t process)
{
    transfer_fail(job,
                  TOW_ERROR(TOW_UNAVAILABLE,
                            "%s from process %u: the connection broke, and "
                            "pieces were lost",
                            kind_of(job), process));
}

/* Has a peer sent us a piece of it that was lost? */
static void check_reset(job_t *job)
{
    tow_transfer_engine_t *engine = job->engine;
    size_t cursor = 0;
    uint64_t process;
    void *value;
    if (TOW_LIKELY(job->gang > engine->reset_gang_max)) return;
    while (tow_map_next(&engine->peers, &cursor, &process, &value)) {
        const edge_peer_t *peer = value;
        if (job->gang > peer->reset_gang || !waits_for(job, peer->process))
            continue;
        fail_reset(job, peer->process);
        return;
    }
}

/* From here on nothing can be refused. Early messages may have ended the
 * job. */
static void announce(job_t *job)
{
    transfer_targets_offer(job);
    transfer_reduce_announce(job);
    if (!job->is_listed) return;
    tow_status_t status = transfer_early_replay(job);
    if (TOW_UNLIKELY(status != TOW_OK))
        transfer_fail(job, tow_status_annotate(status, "%s", kind_of(job)));
    else
        check_reset(job);
}

tow_status_t tow_transfer_start(tow_transfer_engine_t *engine,
                                tow_transfer_t *transfer)
{
    TOW_TRACE("transfer.start");
    TOW_ASSERT(transfer->done != NULL);
    TOW_ASSERT(!transfer->is_held ||
               (transfer->route != NULL && !transfer->is_sized));
    TOW_RETURN_IF_ERROR(check_driver(engine));
    job_t *job = make_job(engine, transfer);
    if (job == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count_targets(job); i++)
        transfer->targets[i] = NULL;
    engine->depth++;
    job->open_count =
        1; /* Our own hold: it does not end before it has started. */
    tow_status_t status = start(job);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        undo(job, status);
        engine->depth--;
        return status;
    }
    transfer->private_[0] = job;
    engine->stats.transfer_count++;
    if (TOW_LIKELY(!job->is_held)) {
        announce(job);
        transfer_part_ended(job);
    }
    engine->depth--;
    return TOW_OK;
}

static tow_status_t begin(job_t *job)
{
    TOW_RETURN_IF_ERROR(transfer_targets_begin(job));
    tow_status_t status = transfer_sources_start(job);
    transfer_sources_unhold(job);
    return status;
}

void tow_transfer_begin(tow_transfer_engine_t *engine, tow_transfer_t *transfer)
{
    TOW_TRACE("transfer.begin");
    job_t *job = transfer->private_[0];
    if (job == NULL || job->is_ended) return; /* It has failed meanwhile. */
    TOW_ASSERT(job->is_held);
    engine->depth++;
    job->is_held = false;
    tow_status_t status = begin(job);
    if (TOW_LIKELY(status == TOW_OK))
        announce(job);
    else
        transfer_fail(job, status);
    transfer_part_ended(job);
    engine->depth--;
}

void tow_transfer_abort(tow_transfer_engine_t *engine, tow_transfer_t *transfer,
                        tow_status_t cause)
{
    job_t *job = transfer->private_[0];
    if (job == NULL) return;
    engine->depth++;
    transfer_fail(job, tow_status_retain(cause));
    engine->depth--;
}

void tow_transfer_engine_granted(tow_transfer_engine_t *engine,
                                 uint64_t last_gang)
{
    if (last_gang > engine->last_gang) engine->last_gang = last_gang;
    transfer_early_discard_until(engine, engine->last_gang);
}

/* -- Messages of other workers --------------------------------------------- */

tow_status_t transfer_take_offer(job_t *job, edge_peer_t *peer, uint32_t shard,
                                 tow_region_key_t key)
{
    return job->part != NULL ? transfer_reduce_offer(job, peer, shard, key)
                             : transfer_source_offer(job, peer, shard, key);
}

tow_status_t transfer_take_piece(job_t *job, uint32_t process, uint32_t shard,
                                 uint32_t number, const void *bytes,
                                 size_t size)
{
    return job->part != NULL
               ? transfer_reduce_piece(job, process, shard, number, bytes, size)
               : transfer_target_piece(job, process, shard, number, bytes,
                                       size);
}

/* It is kept until the job has begun. */
static bool is_early(const job_t *job)
{
    return job == NULL || TOW_UNLIKELY(job->is_held);
}

static bool is_stale(const tow_transfer_engine_t *engine, const job_t *job,
                     uint64_t gang)
{
    return job == NULL && gang <= engine->last_gang;
}

tow_status_t tow_transfer_engine_on_offer(tow_transfer_engine_t *engine,
                                          uint32_t process,
                                          const tow_msg_edge_offer_t *offer)
{
    job_t *job = tow_map_find(&engine->jobs_by_gang, offer->gang);
    if (is_stale(engine, job, offer->gang)) return TOW_OK;
    edge_peer_t *peer = transfer_peer(engine, process);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(learn_address(peer, offer->target));
    const tow_region_key_t key = {offer->target->region_id,
                                  offer->target->region_secret};
    if (is_early(job))
        return transfer_early_offer(engine, peer, offer->gang, offer->shard,
                                    key);
    engine->depth++;
    tow_status_t status = transfer_take_offer(job, peer, offer->shard, key);
    engine->depth--;
    return status;
}

tow_status_t tow_transfer_engine_on_piece(tow_transfer_engine_t *engine,
                                          uint32_t process,
                                          const tow_msg_edge_piece_t *piece)
{
    job_t *job = tow_map_find(&engine->jobs_by_gang, piece->gang);
    if (TOW_LIKELY(!is_early(job))) {
        engine->depth++;
        tow_status_t status =
            transfer_take_piece(job, process, piece->shard, piece->number,
                                piece->bytes.data, piece->bytes.len);
        engine->depth--;
        return status;
    }
    if (is_stale(engine, job, piece->gang)) return TOW_OK;
    edge_peer_t *peer = transfer_peer(engine, process);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return transfer_early_piece(engine, peer, piece);
}

tow_status_t tow_transfer_engine_on_size(tow_transfer_engine_t *engine,
                                         uint32_t process,
                                         const tow_msg_edge_size_t *size)
{
    job_t *job = tow_map_find(&engine->jobs_by_gang, size->gang);
    if (TOW_LIKELY(!is_early(job))) {
        engine->depth++;
        tow_status_t status = transfer_target_size(job, process, size->shard,
                                                   size->dims, size->n_dims);
        engine->depth--;
        return status;
    }
    if (is_stale(engine, job, size->gang)) return TOW_OK;
    edge_peer_t *peer = transfer_peer(engine, process);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return transfer_early_size(engine, peer, size);
}

/* Do we still have to send it a piece? A source ends with its last piece. */
static bool sends_to(const job_t *job, uint32_t process)
{
    const tow_list_t *head = &job->bulks;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        if (TOW_CONTAINER_OF(at, bulk_t, in_job)->piece->process == process)
            return true;
    head = &job->holds;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        if (TOW_CONTAINER_OF(at, hold_t, in_job)->process == process)
            return true;
    if (job->part != NULL) return transfer_reduce_sends_to(job, process);
    for (size_t i = 0; i < job->route->send_count; i++) {
        const tow_piece_t *piece = &job->route->sends[i];
        const source_t *src = job->sources[piece->source_shard];
        if (piece->process == process && src != NULL && !src->is_ready)
            return true;
    }
    return false;
}

void tow_transfer_engine_on_peer_ready(tow_transfer_engine_t *engine,
                                       uint32_t process)
{
    const tow_list_t *head = &engine->jobs;
    engine->depth++;
    for (tow_list_t *at = head->next; at != head;) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_engine);
        at = at->next;
        transfer_sources_release(job, process);
    }
    engine->depth--;
}

void tow_transfer_engine_on_peer_reconnect(tow_transfer_engine_t *engine,
                                           uint32_t process, uint64_t last_gang)
{
    const tow_list_t *head = &engine->jobs;
    edge_peer_t *peer = transfer_peer(engine, process);
    if (peer != NULL) peer->reset_gang = last_gang;
    if (last_gang > engine->reset_gang_max) engine->reset_gang_max = last_gang;
    engine->depth++;
    for (tow_list_t *at = head->next; at != head;) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_engine);
        at = at->next;
        if (job->gang <= last_gang && waits_for(job, process))
            fail_reset(job, process);
    }
    engine->depth--;
}

void tow_transfer_engine_on_peer_disconnect(tow_transfer_engine_t *engine,
                                            uint32_t process,
                                            tow_status_t cause)
{
    const tow_list_t *head = &engine->jobs;
    engine->depth++;
    for (tow_list_t *at = head->next; at != head;) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_engine);
        at = at->next;
        const bool is_from = waits_for(job, process);
        if (!is_from && !sends_to(job, process)) continue;
        transfer_fail(job, tow_status_annotate(
                               tow_status_retain(cause), "%s %s process %u",
                               kind_of(job), is_from ? "from" : "to", process));
    }
    edge_peer_t *peer = tow_map_find(&engine->peers, process);
    if (peer != NULL) discard_peer(engine, peer);
    engine->depth--;
}

void tow_transfer_engine_clear(tow_transfer_engine_t *engine)
{
    transfer_early_clear(engine);
    discard_peers(engine);
    engine->last_gang = 0;
    engine->reset_gang_max = 0;
}

tow_transfer_engine_stats_t tow_transfer_engine_stats(
    const tow_transfer_engine_t *engine)
{
    return engine->stats;
}

/* -- Creating and destroying ----------------------------------------------- */

static void init_pools(tow_transfer_engine_t *engine)
{
    tow_pool_init(&engine->job_pool, sizeof(job_t), 0);
    tow_pool_init(&engine->target_pool, sizeof(target_t), 0);
    tow_pool_init(&engine->copy_pool, sizeof(copy_t), 0);
    tow_pool_init(&engine->source_pool, sizeof(source_t), 0);
    tow_pool_init(&engine->bulk_pool, sizeof(bulk_t), 0);
    tow_pool_init(&engine->hold_pool, sizeof(hold_t), 0);
    tow_pool_init(&engine->early_pool, sizeof(early_t), 0);
    tow_pool_init(&engine->early_gang_pool, sizeof(early_gang_t), 0);
}

tow_status_t tow_transfer_engine_create(
    const tow_transfer_engine_options_t *options,
    tow_transfer_engine_t **out_mover)
{
    TOW_ASSERT(options->driver != NULL && options->send != NULL &&
               options->write != NULL);
    TOW_ASSERT((options->memory_take == NULL) ==
               (options->memory_give == NULL));
    *out_mover = NULL;
    tow_transfer_engine_t *engine = tow_calloc(1, sizeof(*engine));
    if (engine == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    engine->scratch = tow_malloc(TOW_TRANSFER_EAGER_BYTES);
    if (engine->scratch == NULL) {
        tow_free(engine);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    engine->options = *options;
    engine->driver = options->driver;
    engine->env = options->driver->env;
    engine->report.run = on_report;
    tow_list_init(&engine->jobs);
    tow_list_init(&engine->ended);
    tow_list_init(&engine->targets);
    tow_list_init(&engine->bulks);
    tow_list_init(&engine->early_order);
    tow_list_init(&engine->posts);
    transfer_reduce_init(engine);
    init_pools(engine);
    *out_mover = engine;
    return TOW_OK;
}

static void free_tables(tow_transfer_engine_t *engine)
{
    tow_transfer_engine_clear(engine);
    transfer_memory_clear(engine);
    tow_map_deinit(&engine->jobs_by_gang);
    tow_map_deinit(&engine->peers);
    tow_map_deinit(&engine->early_by_gang);
    tow_map_deinit(&engine->offered);
    tow_pool_deinit(&engine->job_pool);
    tow_pool_deinit(&engine->target_pool);
    tow_pool_deinit(&engine->copy_pool);
    tow_pool_deinit(&engine->source_pool);
    tow_pool_deinit(&engine->bulk_pool);
    tow_pool_deinit(&engine->hold_pool);
    tow_pool_deinit(&engine->early_pool);
    tow_pool_deinit(&engine->early_gang_pool);
    tow_pool_deinit(&engine->reduction_pool);
    tow_pool_deinit(&engine->post_pool);
    tow_free(engine->scratch);
    tow_free(engine);
}

void tow_transfer_engine_destroy(tow_transfer_engine_t *engine)
{
    if (engine == NULL) return;
    TOW_ASSERT(tow_transfer_engine_is_quiet(engine));
    free_tables(engine);
}

static void discard_jobs(tow_list_t *jobs)
{
    while (!tow_list_is_empty(jobs)) {
        job_t *job = TOW_CONTAINER_OF(jobs->next, job_t, in_engine);
        tow_status_release(job->error);
        free_job(job);
    }
}

void tow_transfer_engine_discard(tow_transfer_engine_t *engine)
{
    if (engine == NULL) return;
    transfer_targets_discard(engine);
    transfer_sources_discard(engine);
    transfer_posts_discard(engine);
    transfer_reduce_discard(engine);
    discard_jobs(&engine->jobs);
    discard_jobs(&engine->ended);
    free_tables(engine);
}
