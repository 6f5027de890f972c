/* The invariants of the transfer engine: see tow_transfer_engine_check. */
#include "base/invariant.h"
#include "dataflow/transfer_impl.h"
#include "dataflow/transfer_reduce_impl.h"

static tow_status_t check_job(const tow_transfer_engine_t *engine,
                              const job_t *job)
{
    TOW_INVARIANT(job->engine == engine);
    TOW_INVARIANT((job->route != NULL) != (job->part != NULL));
    TOW_INVARIANT(!job->is_listed ||
                  tow_map_find(&engine->jobs_by_gang, job->gang) == job);
    for (uint32_t i = 0; i < job->target_count; i++) {
        const target_t *target = job->targets[i];
        TOW_INVARIANT(target == NULL ||
                      (target->job == job && target->shard == i));
    }
    for (uint32_t i = 0; i < job->source_count; i++) {
        const source_t *src = job->sources[i];
        TOW_INVARIANT(src == NULL || (src->job == job && src->shard == i));
        TOW_INVARIANT(src == NULL || !src->is_serving);
    }
    for (uint32_t i = 0; i < job->reduction_count; i++)
        TOW_INVARIANT(job->reductions[i] == NULL ||
                      job->reductions[i]->job == job);
    return TOW_OK;
}

static tow_status_t check_jobs(const tow_transfer_engine_t *engine)
{
    size_t count = 0, listed_count = 0;
    for (const tow_list_t *at = engine->jobs.next; at != &engine->jobs;
         at = at->next) {
        const job_t *job = TOW_CONTAINER_OF(at, job_t, in_engine);
        TOW_RETURN_IF_ERROR(check_job(engine, job));
        TOW_INVARIANT(!job->is_ended && job->open_count > 0);
        TOW_INVARIANT(!job->is_held || tow_list_is_empty(&job->bulks));
        TOW_INVARIANT(job->is_held || job->held == NULL);
        TOW_INVARIANT(job->transfer->private_[0] == job);
        listed_count += job->is_listed;
        count++;
    }
    for (const tow_list_t *at = engine->ended.next; at != &engine->ended;
         at = at->next)
        TOW_INVARIANT(TOW_CONTAINER_OF(at, job_t, in_engine)->is_ended);
    TOW_INVARIANT(count == engine->stats.transfer_count);
    TOW_INVARIANT(listed_count == tow_map_count(&engine->jobs_by_gang));
    TOW_INVARIANT(tow_list_is_empty(&engine->ended) || engine->is_reporting);
    return TOW_OK;
}

static tow_status_t check_target(const tow_transfer_engine_t *engine,
                                 const target_t *target)
{
    TOW_INVARIANT(target->engine == engine);
    TOW_INVARIANT(target->region != NULL || !target->is_closing);
    TOW_INVARIANT(target->missing_count <= target->receive_count);
    if (target->job != NULL) {
        TOW_INVARIANT(target->job->targets[target->shard] == target);
        TOW_INVARIANT(target->is_uploading);
        TOW_INVARIANT(target->missing_count > 0 || target->is_closing);
    } else {
        TOW_INVARIANT(target->region == NULL || target->is_closing);
        TOW_INVARIANT(target->region != NULL || target->is_uploading);
    }
    return TOW_OK;
}

/* All memory that peers may write to. */
static tow_status_t check_targets(const tow_transfer_engine_t *engine)
{
    uint64_t bytes = 0, late_bytes = 0;
    for (const tow_list_t *at = engine->targets.next; at != &engine->targets;
         at = at->next) {
        const target_t *target = TOW_CONTAINER_OF(at, target_t, in_engine);
        TOW_RETURN_IF_ERROR(check_target(engine, target));
        if (target->job != NULL) bytes += target->size;
        if (target->is_late && target->bytes != NULL)
            late_bytes += target->size;
    }
    TOW_INVARIANT(late_bytes == engine->stats.late_bytes);
    for (const tow_list_t *at = engine->reductions.next;
         at != &engine->reductions; at = at->next) {
        const reduction_t *it = TOW_CONTAINER_OF(at, reduction_t, in_engine);
        TOW_INVARIANT(it->pin_count == 0);
        if (it->job != NULL) bytes += it->plan.size + it->inbox_size;
    }
    TOW_INVARIANT(bytes == engine->stats.receive_bytes);
    TOW_INVARIANT(tow_list_length(&engine->targets) ==
                  engine->target_pool.taken_count);
    TOW_INVARIANT(tow_list_length(&engine->reductions) ==
                  engine->reduction_pool.taken_count);
    return TOW_OK;
}

static tow_status_t check_bulks(const tow_transfer_engine_t *engine)
{
    uint64_t count = 0, bytes = 0;
    for (const tow_list_t *at = engine->bulks.next; at != &engine->bulks;
         at = at->next) {
        const bulk_t *bulk = TOW_CONTAINER_OF(at, bulk_t, in_engine);
        TOW_INVARIANT(bulk->engine == engine && bulk->src != NULL);
        TOW_INVARIANT((bulk->job != NULL) == (bulk->piece != NULL));
        TOW_INVARIANT(bulk->job != NULL || bulk->is_writing);
        TOW_INVARIANT(!bulk->is_writing || bulk->peer->write_count > 0);
        if (!bulk->is_shared) continue;
        TOW_INVARIANT(bulk->job == NULL && bulk->src->shared_count > 0);
        bytes += bulk->write.write.size;
        count++;
    }
    TOW_INVARIANT(count == engine->stats.shared_count);
    TOW_INVARIANT(bytes == engine->stats.shared_bytes);
    TOW_INVARIANT(tow_list_length(&engine->bulks) ==
                  engine->bulk_pool.taken_count);
    TOW_INVARIANT(tow_list_length(&engine->posts) ==
                  engine->post_pool.taken_count);
    return TOW_OK;
}

static tow_status_t check_early(const tow_transfer_engine_t *engine)
{
    uint64_t last = 0, bytes = 0, process;
    size_t count = 0, cursor = 0;
    void *value;
    for (const tow_list_t *at = engine->early_order.next;
         at != &engine->early_order; at = at->next) {
        const early_gang_t *gang = TOW_CONTAINER_OF(at, early_gang_t, in_order);
        const job_t *job = tow_map_find(&engine->jobs_by_gang, gang->gang);
        TOW_INVARIANT(gang->gang > last);
        TOW_INVARIANT(gang->gang > engine->last_gang ||
                      (job != NULL && job->is_held));
        TOW_INVARIANT(tow_map_find(&engine->early_by_gang, gang->gang) == gang);
        last = gang->gang;
        count += tow_list_length(&gang->items);
    }
    TOW_INVARIANT(count == engine->stats.early_count);
    TOW_INVARIANT(tow_list_length(&engine->early_order) ==
                  tow_map_count(&engine->early_by_gang));
    count = 0;
    while (tow_map_next(&engine->peers, &cursor, &process, &value)) {
        const edge_peer_t *peer = value;
        TOW_INVARIANT(peer->process == process && !peer->is_disconnected);
        TOW_INVARIANT(peer->reset_gang <= engine->reset_gang_max);
        TOW_INVARIANT(peer->early_count <= TOW_TRANSFER_EARLY_COUNT_MAX);
        count += peer->early_count;
        bytes += peer->early_bytes;
    }
    TOW_INVARIANT(count == engine->stats.early_count);
    TOW_INVARIANT(bytes == engine->stats.early_bytes);
    return TOW_OK;
}

tow_status_t tow_transfer_engine_check(const tow_transfer_engine_t *engine)
{
    uint32_t spare_count = 0;
    for (const spare_t *at = engine->spares; at != NULL; at = at->next)
        spare_count++;
    TOW_INVARIANT(spare_count == engine->spare_count);
    TOW_INVARIANT(spare_count <= TOW_TRANSFER_SMALL_SPARE_COUNT);
    TOW_INVARIANT(engine->task_count <= TOW_REDUCE_BATCH_COUNT);
    TOW_INVARIANT(engine->depth == 0);
    TOW_RETURN_IF_ERROR(check_jobs(engine));
    TOW_RETURN_IF_ERROR(check_targets(engine));
    TOW_RETURN_IF_ERROR(check_bulks(engine));
    return check_early(engine);
}
