#include "dataflow/mover.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "dataflow/mover_impl.h"

/* -- Peers ----------------------------------------------------------------------- */

edge_peer_t *mover_peer(tow_mover_t *mover, uint32_t process)
{
    edge_peer_t *peer = tow_map_find(&mover->peers, process);
    if (TOW_LIKELY(peer != NULL)) return peer;
    peer = tow_calloc(1, sizeof(*peer));
    if (peer == NULL) return NULL;
    peer->process = process;
    if (tow_map_put(&mover->peers, process, peer)) return peer;
    tow_free(peer);
    return NULL;
}

static void free_peer(edge_peer_t *peer)
{
    tow_free(peer->address);
    tow_free(peer);
}

void mover_peer_unused(tow_mover_t *mover, edge_peer_t *peer)
{
    (void)mover;
    if (peer->is_gone && peer->write_count == 0) free_peer(peer);
}

static void forget_peer(tow_mover_t *mover, edge_peer_t *peer)
{
    mover_early_drop_from(mover, peer->process);
    tow_map_remove(&mover->peers, peer->process);
    peer->is_gone = true;
    mover_peer_unused(mover, peer);
}

static void forget_peers(tow_mover_t *mover)
{
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&mover->peers, &cursor, &process, &value))
        forget_peer(mover, value);
}

/* A worker has one data plane, as long as it lives. */
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
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "process %u offers room %s",
                     peer->process,
                     size == 0 ? "and does not say where"
                               : "at another data plane than before");
}

/* -- The end of a move ------------------------------------------------------------- */

bool tow_mover_is_quiet(const tow_mover_t *mover)
{
    return tow_list_is_empty(&mover->jobs) &&
           tow_list_is_empty(&mover->ended) && !mover->is_telling &&
           mover->target_pool.taken_count == 0 &&
           mover->copy_pool.taken_count == 0 &&
           mover->loan_pool.taken_count == 0 &&
           mover->bulk_pool.taken_count == 0 &&
           mover->reduction_pool.taken_count == 0 && mover->task_count == 0;
}

void mover_look_quiet(tow_mover_t *mover)
{
    if (mover->options.quiet != NULL && mover->depth == 0 &&
        tow_mover_is_quiet(mover))
        mover->options.quiet(mover->options.context);
}

static void free_job(job_t *job)
{
    tow_mover_t *mover = job->mover;
    if (job->targets != job->targets_here) tow_free(job->targets);
    if (job->loans != job->loans_here) tow_free(job->loans);
    tow_free(job->is_sized);
    tow_free(job->reductions);
    tow_list_remove(&job->in_mover);
    tow_pool_give(&mover->job_pool, job);
}

static void tell_one(job_t *job)
{
    tow_move_t *move = job->move;
    tow_status_t error = job->error;
    move->private_[0] = NULL;
    free_job(job);
    move->done(move, error);
}

static void tell_ended(tow_mover_t *mover)
{
    while (!tow_list_is_empty(&mover->ended))
        tell_one(TOW_CONTAINER_OF(mover->ended.next, job_t, in_mover));
    mover_look_quiet(mover);
}

static void on_tell(tow_post_t *post)
{
    tow_mover_t *mover = TOW_CONTAINER_OF(post, tow_mover_t, tell);
    mover->is_telling = false;
    tell_ended(mover);
}

/* Before its targets are poisoned: who waits for the move hears of it before
 * who waits for a target does. */
static void end_job(job_t *job, tow_status_t take_error)
{
    tow_mover_t *mover = job->mover;
    job->is_ended = true;
    job->error = take_error;
    if (job->is_listed) tow_map_remove(&mover->jobs_by_gang, job->gang);
    tow_list_remove(&job->in_mover);
    tow_list_append(&mover->ended, &job->in_mover);
    mover->stats.move_count--;
    if (mover->depth == 0 || mover->is_telling) return;
    mover->is_telling = true;
    tow_env_post(mover->env, &mover->tell);
}

void mover_part_ended(job_t *job)
{
    tow_mover_t *mover = job->mover;
    TOW_ASSERT(job->open_count > 0);
    if (--job->open_count > 0 || job->is_ended) return;
    end_job(job, TOW_OK);
    if (mover->depth == 0) tell_ended(mover);
}

static void let_go(job_t *job, tow_status_t cause)
{
    mover_targets_fail(job, cause);
    mover_reduce_fail(job, cause);
    mover_sources_drop(job);
}

void TOW_COLD mover_fail(job_t *job, tow_status_t take_cause)
{
    tow_mover_t *mover = job->mover;
    TOW_ASSERT(take_cause != TOW_OK);
    if (job->is_ended) {
        tow_status_ignore(take_cause, "the move has ended");
        return;
    }
    end_job(job, take_cause);
    mover->depth++; /* Nobody is told before all is let go. */
    let_go(job, take_cause);
    mover->depth--;
    if (mover->depth == 0) tell_ended(mover);
}

/* -- The beginning of a move ---------------------------------------------------------- */

static bool make_tables(job_t *job)
{
    job->targets = job->targets_here;
    job->loans = job->loans_here;
    if (TOW_UNLIKELY(job->target_count > TOW_MOVER_INLINE_COUNT)) {
        job->targets = tow_calloc(job->target_count, sizeof(*job->targets));
        if (job->targets == NULL) return false;
    } else {
        memset(job->targets_here, 0, sizeof(job->targets_here));
    }
    if (TOW_UNLIKELY(job->loan_count > TOW_MOVER_INLINE_COUNT)) {
        job->loans = tow_calloc(job->loan_count, sizeof(*job->loans));
        if (job->loans == NULL) return false;
    } else {
        memset(job->loans_here, 0, sizeof(job->loans_here));
    }
    if (TOW_LIKELY(!job->move->is_sized)) return true;
    job->is_sized = tow_calloc(job->target_count + 1, sizeof(bool));
    return job->is_sized != NULL;
}

static job_t *make_job(tow_mover_t *mover, tow_move_t *move)
{
    job_t *job = tow_pool_take(&mover->job_pool);
    if (job == NULL) return NULL;
    job->mover = mover;
    job->move = move;
    job->route = move->route;
    job->part = move->part;
    job->gang = move->gang;
    job->error = TOW_OK;
    job->open_count = 0;
    job->is_listed = job->is_ended = false;
    job->is_sized = NULL;
    job->unsized_count = 0;
    job->target_count = job->loan_count = job->reduction_count = 0;
    job->reductions = NULL;
    if (move->route != NULL) {
        job->target_count = (uint32_t)move->route->target_count;
        job->loan_count = (uint32_t)move->route->source_count;
    }
    tow_list_init(&job->copies);
    tow_list_init(&job->bulks);
    tow_list_init(&job->holds);
    tow_list_append(&mover->jobs, &job->in_mover);
    if (make_tables(job)) return job;
    free_job(job);
    return NULL;
}

static bool has_others(const tow_mover_t *mover, const tow_route_t *route)
{
    for (size_t i = 0; i < route->send_count; i++)
        if (route->sends[i].process != mover->options.process) return true;
    for (size_t i = 0; i < route->receive_count; i++)
        if (route->receives[i].process != mover->options.process) return true;
    return false;
}

static tow_status_t list_by_gang(job_t *job)
{
    tow_mover_t *mover = job->mover;
    if (!(job->part != NULL ? mover_reduce_has_others(job->part)
                            : has_others(mover, job->route)))
        return TOW_OK;
    if (TOW_UNLIKELY(tow_map_find(&mover->jobs_by_gang, job->gang) != NULL))
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "a transfer or collective of gang %" PRIu64
                         " is under way",
                         job->gang);
    if (!tow_map_put(&mover->jobs_by_gang, job->gang, job))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    job->is_listed = true;
    return TOW_OK;
}

static tow_status_t check_driver(const tow_mover_t *mover)
{
    const tow_driver_ops_t *ops = mover->driver->ops;
    if (TOW_LIKELY(ops->upload_settle != NULL && ops->borrow != NULL))
        return TOW_OK;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "the %s driver has neither late uploads nor loans, which "
                     "transfers need",
                     mover->driver->name);
}

static tow_status_t start(job_t *job)
{
    TOW_RETURN_IF_ERROR(list_by_gang(job));
    if (job->part != NULL) return mover_reduce_start(job);
    TOW_RETURN_IF_ERROR(mover_targets_start(job));
    return mover_sources_start(job);
}

static size_t count_targets(const job_t *job)
{
    if (job->part != NULL)
        return job->part->shard_count * job->part->tensor_count;
    return job->target_count;
}

static void undo(job_t *job, tow_status_t cause)
{
    tow_mover_t *mover = job->mover;
    tow_move_t *move = job->move;
    let_go(job, cause);
    for (size_t i = 0; i < count_targets(job); i++) {
        if (move->targets[i] != NULL) tow_buffer_release(move->targets[i]);
        move->targets[i] = NULL;
    }
    if (job->is_listed) tow_map_remove(&mover->jobs_by_gang, job->gang);
    free_job(job);
}

static const char *kind_of(const job_t *job)
{
    return job->part != NULL ? "collective" : "transfer";
}

/* Does it still send us something? */
static bool waits_for(const job_t *job, uint32_t process)
{
    if (job->part != NULL) return mover_reduce_waits_for(job, process);
    for (size_t i = 0; i < job->route->receive_count; i++) {
        const tow_piece_t *piece = &job->route->receives[i];
        const target_t *target = job->targets[piece->target_shard];
        const bool is_to_be_sized =
            job->is_sized != NULL && !job->is_sized[piece->target_shard];
        if (piece->process == process &&
            (is_to_be_sized ||
             (target != NULL && !mover_target_has(target, piece->number))))
            return true;
    }
    return false;
}

static void TOW_COLD fail_lost(job_t *job, uint32_t process)
{
    mover_fail(job, TOW_ERROR(TOW_UNAVAILABLE,
                              "%s from process %u: the connection broke, and "
                              "pieces with it",
                              kind_of(job), process));
}

/* Has somebody sent us a piece of it that never came? */
static void check_lost(job_t *job)
{
    tow_mover_t *mover = job->mover;
    size_t cursor = 0;
    uint64_t process;
    void *value;
    if (TOW_LIKELY(job->gang > mover->lost_gang_max)) return;
    while (tow_map_next(&mover->peers, &cursor, &process, &value)) {
        const edge_peer_t *peer = value;
        if (job->gang > peer->lost_gang || !waits_for(job, peer->process))
            continue;
        fail_lost(job, peer->process);
        return;
    }
}

/* Nothing can be refused any more. The job may have ended by what had come
 * early. */
static void announce(job_t *job)
{
    mover_targets_offer(job);
    mover_reduce_announce(job);
    if (!job->is_listed) return;
    tow_status_t status = mover_early_replay(job);
    if (TOW_UNLIKELY(status != TOW_OK))
        mover_fail(job, tow_status_annotate(status, "%s", kind_of(job)));
    else
        check_lost(job);
}

tow_status_t tow_mover_start(tow_mover_t *mover, tow_move_t *move)
{
    TOW_TRACE("mover.start");
    TOW_ASSERT(move->done != NULL);
    TOW_RETURN_IF_ERROR(check_driver(mover));
    job_t *job = make_job(mover, move);
    if (job == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count_targets(job); i++)
        move->targets[i] = NULL;
    mover->depth++;
    job->open_count = 1; /* Ours: it does not end before it has begun. */
    tow_status_t status = start(job);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        undo(job, status);
        mover->depth--;
        return status;
    }
    move->private_[0] = job;
    mover->stats.move_count++;
    announce(job);
    mover_part_ended(job);
    mover->depth--;
    return TOW_OK;
}

void tow_mover_abort(tow_mover_t *mover, tow_move_t *move, tow_status_t cause)
{
    job_t *job = move->private_[0];
    if (job == NULL) return;
    mover->depth++;
    mover_fail(job, tow_status_retain(cause));
    mover->depth--;
}

void tow_mover_granted(tow_mover_t *mover, uint64_t last_gang)
{
    if (last_gang > mover->last_gang) mover->last_gang = last_gang;
    mover_early_drop_until(mover, mover->last_gang);
}

/* -- What other workers say ------------------------------------------------------------- */

tow_status_t mover_take_offer(job_t *job, edge_peer_t *peer, uint32_t shard,
                              tow_region_key_t key)
{
    return job->part != NULL ? mover_reduce_offer(job, peer, shard, key)
                             : mover_source_offer(job, peer, shard, key);
}

tow_status_t mover_take_piece(job_t *job, uint32_t process, uint32_t shard,
                              uint32_t number, const void *bytes, size_t size)
{
    return job->part != NULL
               ? mover_reduce_piece(job, process, shard, number, bytes, size)
               : mover_target_piece(job, process, shard, number, bytes, size);
}

tow_status_t tow_mover_offer(tow_mover_t *mover, uint32_t process,
                             const tow_msg_edge_offer_t *offer)
{
    job_t *job = tow_map_find(&mover->jobs_by_gang, offer->gang);
    if (TOW_UNLIKELY(job == NULL) && offer->gang <= mover->last_gang)
        return TOW_OK; /* Stale. */
    edge_peer_t *peer = mover_peer(mover, process);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(learn_address(peer, offer->target));
    const tow_region_key_t key = {offer->target->region_id,
                                  offer->target->region_secret};
    if (job == NULL)
        return mover_early_offer(mover, peer, offer->gang, offer->shard, key);
    mover->depth++;
    tow_status_t status = mover_take_offer(job, peer, offer->shard, key);
    mover->depth--;
    return status;
}

tow_status_t tow_mover_piece(tow_mover_t *mover, uint32_t process,
                             const tow_msg_edge_piece_t *piece)
{
    job_t *job = tow_map_find(&mover->jobs_by_gang, piece->gang);
    if (TOW_LIKELY(job != NULL)) {
        mover->depth++;
        tow_status_t status =
            mover_take_piece(job, process, piece->shard, piece->number,
                             piece->bytes.data, piece->bytes.len);
        mover->depth--;
        return status;
    }
    if (piece->gang <= mover->last_gang) return TOW_OK; /* Stale. */
    edge_peer_t *peer = mover_peer(mover, process);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return mover_early_piece(mover, peer, piece);
}

tow_status_t tow_mover_size(tow_mover_t *mover, uint32_t process,
                            const tow_msg_edge_size_t *size)
{
    job_t *job = tow_map_find(&mover->jobs_by_gang, size->gang);
    if (TOW_LIKELY(job != NULL)) {
        mover->depth++;
        tow_status_t status = mover_target_size(job, process, size->shard,
                                                size->dims, size->n_dims);
        mover->depth--;
        return status;
    }
    if (size->gang <= mover->last_gang) return TOW_OK; /* Stale. */
    edge_peer_t *peer = mover_peer(mover, process);
    if (peer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return mover_early_size(mover, peer, size);
}

/* Do we still send it something? A loan goes with its last piece. */
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
    if (job->part != NULL) return mover_reduce_sends_to(job, process);
    for (size_t i = 0; i < job->route->send_count; i++) {
        const tow_piece_t *piece = &job->route->sends[i];
        const loan_t *loan = job->loans[piece->source_shard];
        if (piece->process == process && loan != NULL && !loan->is_ready)
            return true;
    }
    return false;
}

void tow_mover_peer_ready(tow_mover_t *mover, uint32_t process)
{
    const tow_list_t *head = &mover->jobs;
    mover->depth++;
    for (tow_list_t *at = head->next; at != head;) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_mover);
        at = at->next;
        mover_sources_release(job, process);
    }
    mover->depth--;
}

void tow_mover_peer_lost(tow_mover_t *mover, uint32_t process,
                         uint64_t last_gang)
{
    const tow_list_t *head = &mover->jobs;
    edge_peer_t *peer = mover_peer(mover, process);
    if (peer != NULL) peer->lost_gang = last_gang;
    if (last_gang > mover->lost_gang_max) mover->lost_gang_max = last_gang;
    mover->depth++;
    for (tow_list_t *at = head->next; at != head;) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_mover);
        at = at->next;
        if (job->gang <= last_gang && waits_for(job, process))
            fail_lost(job, process);
    }
    mover->depth--;
}

void tow_mover_peer_gone(tow_mover_t *mover, uint32_t process,
                         tow_status_t cause)
{
    const tow_list_t *head = &mover->jobs;
    mover->depth++;
    for (tow_list_t *at = head->next; at != head;) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_mover);
        at = at->next;
        const bool is_from = waits_for(job, process);
        if (!is_from && !sends_to(job, process)) continue;
        mover_fail(job, tow_status_annotate(tow_status_retain(cause),
                                            "%s %s process %u", kind_of(job),
                                            is_from ? "from" : "to", process));
    }
    edge_peer_t *peer = tow_map_find(&mover->peers, process);
    if (peer != NULL) forget_peer(mover, peer);
    mover->depth--;
}

void tow_mover_clear(tow_mover_t *mover)
{
    mover_early_clear(mover);
    forget_peers(mover);
    mover->last_gang = 0;
    mover->lost_gang_max = 0;
}

tow_mover_stats_t tow_mover_stats(const tow_mover_t *mover)
{
    return mover->stats;
}

/* -- Life ---------------------------------------------------------------------------------- */

static void init_pools(tow_mover_t *mover)
{
    tow_pool_init(&mover->job_pool, sizeof(job_t), 0);
    tow_pool_init(&mover->target_pool, sizeof(target_t), 0);
    tow_pool_init(&mover->copy_pool, sizeof(copy_t), 0);
    tow_pool_init(&mover->loan_pool, sizeof(loan_t), 0);
    tow_pool_init(&mover->bulk_pool, sizeof(bulk_t), 0);
    tow_pool_init(&mover->hold_pool, sizeof(hold_t), 0);
    tow_pool_init(&mover->early_pool, sizeof(early_t), 0);
    tow_pool_init(&mover->early_gang_pool, sizeof(early_gang_t), 0);
}

tow_status_t tow_mover_create(const tow_mover_options_t *options,
                              tow_mover_t **out_mover)
{
    TOW_ASSERT(options->driver != NULL && options->send != NULL &&
               options->write != NULL);
    TOW_ASSERT((options->memory_take == NULL) ==
               (options->memory_give == NULL));
    *out_mover = NULL;
    tow_mover_t *mover = tow_calloc(1, sizeof(*mover));
    if (mover == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    mover->scratch = tow_malloc(TOW_MOVER_EAGER_BYTES);
    if (mover->scratch == NULL) {
        tow_free(mover);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    mover->options = *options;
    mover->driver = options->driver;
    mover->env = options->driver->env;
    mover->tell.run = on_tell;
    tow_list_init(&mover->jobs);
    tow_list_init(&mover->ended);
    tow_list_init(&mover->targets);
    tow_list_init(&mover->bulks);
    tow_list_init(&mover->early_order);
    tow_list_init(&mover->posts);
    mover_reduce_init(mover);
    init_pools(mover);
    *out_mover = mover;
    return TOW_OK;
}

static void free_tables(tow_mover_t *mover)
{
    tow_mover_clear(mover);
    mover_memory_clear(mover);
    tow_map_deinit(&mover->jobs_by_gang);
    tow_map_deinit(&mover->peers);
    tow_map_deinit(&mover->early_by_gang);
    tow_map_deinit(&mover->offered);
    tow_pool_deinit(&mover->job_pool);
    tow_pool_deinit(&mover->target_pool);
    tow_pool_deinit(&mover->copy_pool);
    tow_pool_deinit(&mover->loan_pool);
    tow_pool_deinit(&mover->bulk_pool);
    tow_pool_deinit(&mover->hold_pool);
    tow_pool_deinit(&mover->early_pool);
    tow_pool_deinit(&mover->early_gang_pool);
    tow_pool_deinit(&mover->reduction_pool);
    tow_pool_deinit(&mover->post_pool);
    tow_free(mover->scratch);
    tow_free(mover);
}

void tow_mover_destroy(tow_mover_t *mover)
{
    if (mover == NULL) return;
    TOW_ASSERT(tow_mover_is_quiet(mover));
    free_tables(mover);
}

static void forget_jobs(tow_list_t *jobs)
{
    while (!tow_list_is_empty(jobs)) {
        job_t *job = TOW_CONTAINER_OF(jobs->next, job_t, in_mover);
        tow_status_release(job->error);
        free_job(job);
    }
}

void tow_mover_forget(tow_mover_t *mover)
{
    if (mover == NULL) return;
    mover_targets_forget(mover);
    mover_sources_forget(mover);
    mover_posts_forget(mover);
    mover_reduce_forget(mover);
    forget_jobs(&mover->jobs);
    forget_jobs(&mover->ended);
    free_tables(mover);
}
