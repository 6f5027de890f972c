/* Messages and writes between members of a group: contributions to the owners
 * of chunks, and results to all. Small ones travel in messages, large ones are
 * written into offered regions. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/transfer_reduce_impl.h"

/* The name of a region or a message: the same reduction at all members. */
static uint32_t name_of(const reduction_t *it, reduce_phase_t phase)
{
    return it->name * PHASE_COUNT + phase;
}

/* -- Sending --------------------------------------------------------------- */

static void write_ended(reduction_t *it, reduce_phase_t phase)
{
    if (phase == PHASE_RESULT) {
        it->result_count--;
        return;
    }
    it->contribution_count--;
    reduce_look_at_sources(it);
}

/* A region closes when all chunks have arrived, or when that end has failed:
 * see transfer_source.c. */
static void written(tow_transfer_write_t *write, tow_status_t take_status)
{
    reduce_post_t *post = TOW_CONTAINER_OF(write, reduce_post_t, write);
    reduction_t *it = post->reduction;
    tow_transfer_engine_t *engine = it->engine;
    const reduce_phase_t phase = post->phase;
    const uint32_t process = write->process;
    post->peer->write_count--;
    transfer_peer_unused(engine, post->peer);
    tow_list_remove(&post->in_engine);
    tow_pool_give(&engine->post_pool, post);
    reduce_pin(it);
    it->write_count--;
    if (tow_status_code(take_status) == TOW_NOT_FOUND) {
        tow_status_release(take_status);
        take_status = TOW_OK;
    }
    if (it->job == NULL)
        tow_status_ignore(take_status, "the collective has ended");
    else if (take_status != TOW_OK)
        transfer_fail(it->job, tow_status_annotate(take_status,
                                                   "collective with process %u",
                                                   process));
    else
        write_ended(it, phase);
    reduce_unpin(it);
    transfer_check_quiet(engine);
}

static tow_status_t post(reduction_t *it, reduce_phase_t phase, uint32_t chunk,
                         uint32_t member, const void *bytes)
{
    tow_transfer_engine_t *engine = it->engine;
    const reduce_plan_t *plan = &it->plan;
    const bool is_result = phase == PHASE_RESULT;
    const uint32_t process = it->members->processes[member];
    edge_peer_t *peer = transfer_peer(engine, process);
    reduce_post_t *post = tow_pool_take(&engine->post_pool);
    if (peer == NULL || post == NULL) {
        if (post != NULL) tow_pool_give(&engine->post_pool, post);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    const tow_region_key_t key =
        it->rooms[phase * plan->member_count + member].key;
    /* The position of our contribution in that member's inbox. */
    const uint64_t row = chunk / plan->member_count;
    const uint64_t place = it->self - (it->self > member ? 1 : 0);
    *post = (reduce_post_t){.reduction = it, .phase = phase, .peer = peer};
    post->target = (tow_msg_lane_target_t)TOW_MSG_LANE_TARGET_INIT;
    post->target.lane_address.data = peer->address;
    post->target.lane_address.len = peer->address_size;
    post->target.region_id = key.id;
    post->target.region_secret = key.secret;
    post->write = (tow_transfer_write_t){
        .write = {.bytes = bytes,
                  .size = (size_t)reduce_length(plan, chunk),
                  .offset = is_result
                                ? reduce_offset(plan, chunk)
                                : (row * (plan->member_count - 1) + place) *
                                      plan->chunk_bytes,
                  .tag = is_result
                             ? chunk
                             : (uint64_t)chunk * plan->member_count + it->self},
        .target = &post->target,
        .process = process,
        .done = written};
    tow_status_t status =
        engine->options.write(engine->options.context, &post->write);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_pool_give(&engine->post_pool, post);
        return status;
    }
    peer->write_count++;
    it->write_count++;
    tow_list_append(&engine->posts, &post->in_engine);
    engine->stats.sent_large++;
    return TOW_OK;
}

static tow_status_t send_small(reduction_t *it, reduce_phase_t phase,
                               uint32_t chunk, uint32_t member,
                               const void *bytes)
{
    tow_transfer_engine_t *engine = it->engine;
    const uint32_t process = it->members->processes[member];
    tow_msg_edge_piece_t message = TOW_MSG_EDGE_PIECE_INIT;
    message.gang = it->gang;
    message.shard = name_of(it, phase);
    message.number = chunk;
    message.bytes.data = (uint8_t *)bytes;
    message.bytes.len = (size_t)reduce_length(&it->plan, chunk);
    engine->stats.sent_small++;
    const tow_transfer_sent_t sent =
        engine->options.send(engine->options.context, process,
                             TOW_MESSAGE_EDGE_PIECE, &message.base);
    if (TOW_UNLIKELY(sent != TOW_TRANSFER_SENT) &&
        !transfer_hold(it->job, process))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    write_ended(it, phase);
    return TOW_OK;
}

/* Once, and if the region is known. The job may have failed afterwards. */
static void send(reduction_t *it, reduce_phase_t phase, uint32_t chunk,
                 uint32_t member, const void *bytes)
{
    const reduce_plan_t *plan = &it->plan;
    const uint64_t length = reduce_length(plan, chunk);
    const bool is_small = length <= TOW_TRANSFER_EAGER_BYTES;
    const reduce_room_t *room = &it->rooms[phase * plan->member_count + member];
    if (reduce_bit(it->sent, it, chunk, member) ||
        (!is_small && !room->is_open))
        return;
    reduce_set(it->sent, it, chunk, member);
    it->engine->stats.bytes_sent += length;
    tow_status_t status = is_small ? send_small(it, phase, chunk, member, bytes)
                                   : post(it, phase, chunk, member, bytes);
    if (TOW_UNLIKELY(status != TOW_OK))
        transfer_fail(it->job,
                      tow_status_annotate(status, "collective with process %u",
                                          it->members->processes[member]));
}

/* Our part of a chunk, if it is ready: one shard as it is, or several
 * combined. */
static const void *own_part(const reduction_t *it, uint32_t chunk)
{
    const uint64_t offset = reduce_offset(&it->plan, chunk);
    if (it->source_count > 1)
        return it->chunks[chunk].is_loaded ? it->bytes + offset : NULL;
    if (it->ready_count == 0) return NULL;
    return (const uint8_t *)it->sources[0].share.bytes + offset;
}

void reduce_send_contribution(reduction_t *it, uint32_t chunk)
{
    const void *bytes = own_part(it, chunk);
    if (bytes == NULL) return;
    for (uint32_t member = 0; member < it->plan.member_count && it->job != NULL;
         member++)
        if (member != it->self && reduce_owns(&it->plan, member, chunk))
            send(it, PHASE_CONTRIBUTION, chunk, member, bytes);
}

void reduce_send_result(reduction_t *it, uint32_t chunk)
{
    const void *bytes = it->bytes + reduce_offset(&it->plan, chunk);
    for (uint32_t i = 1; i < it->plan.member_count && it->job != NULL; i++)
        send(it, PHASE_RESULT, chunk, (it->self + i) % it->plan.member_count,
             bytes);
}

/* -- Offers ---------------------------------------------------------------- */

static void offer_to(const reduction_t *it, reduce_phase_t phase,
                     uint32_t member)
{
    tow_transfer_engine_t *engine = it->engine;
    tow_msg_edge_offer_t message = TOW_MSG_EDGE_OFFER_INIT;
    tow_msg_lane_target_t room = TOW_MSG_LANE_TARGET_INIT;
    const tow_region_key_t key = tow_region_key(it->own_regions[phase].region);
    const void *address;
    tow_env_lane_address(engine->env, &address, &room.lane_address.len);
    room.lane_address.data = (uint8_t *)address;
    room.region_id = key.id;
    room.region_secret = key.secret;
    message.gang = it->gang;
    message.shard = name_of(it, phase);
    message.target = &room;
    engine->options.send(engine->options.context,
                         it->members->processes[member], TOW_MESSAGE_EDGE_OFFER,
                         &message.base);
}

/* Our inbox to all members, and the region for results to owners of large
 * chunks. */
void reduce_offer(const reduction_t *it)
{
    for (uint32_t member = 0; member < it->plan.member_count; member++) {
        bool is_large;
        if (member == it->self) continue;
        if (it->own_regions[PHASE_CONTRIBUTION].region != NULL)
            offer_to(it, PHASE_CONTRIBUTION, member);
        reduce_owned(&it->plan, member, &is_large);
        if (is_large) offer_to(it, PHASE_RESULT, member);
    }
}

/* -- Receiving ------------------------------------------------------------- */

/* The reduction of a name. NULL: none of ours. */
static reduction_t *find(const job_t *job, uint32_t process, uint32_t name,
                         reduce_phase_t *out_phase, uint32_t *out_member)
{
    const tow_collective_part_t *part = job->part;
    const uint32_t number = name / PHASE_COUNT;
    const uint32_t tensors = (uint32_t)part->tensor_count;
    *out_phase = (reduce_phase_t)(name % PHASE_COUNT);
    size_t group = 0;
    while (group < part->group_count &&
           part->groups[group].group != number / tensors)
        group++;
    if (group == part->group_count) return NULL;
    const tow_members_t *members = &part->groups[group];
    size_t member = 0;
    while (member < members->process_count &&
           members->processes[member] != process)
        member++;
    *out_member = (uint32_t)member;
    if (member == members->process_count || member == members->self)
        return NULL;
    return job->reductions[group * tensors + number % tensors];
}

static tow_status_t TOW_COLD wrong_room(const job_t *job, uint32_t process,
                                        uint32_t name)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "process %u offers region %u of the collective %" PRIu64
                     ", which takes no large chunk, or was offered before",
                     process, name, job->gang);
}

tow_status_t transfer_reduce_offer(job_t *job, edge_peer_t *peer, uint32_t name,
                                   tow_region_key_t key)
{
    reduce_phase_t phase;
    uint32_t member;
    bool is_large;
    reduction_t *it = find(job, peer->process, name, &phase, &member);
    if (it == NULL) return wrong_room(job, peer->process, name);
    reduce_room_t *room = &it->rooms[phase * it->plan.member_count + member];
    reduce_owned(&it->plan, phase == PHASE_RESULT ? it->self : member,
                 &is_large);
    if (room->is_open || !is_large) return wrong_room(job, peer->process, name);
    *room = (reduce_room_t){.key = key, .is_open = true};
    reduce_pin(it);
    for (uint32_t i = 0; i < it->plan.chunk_count && it->job != NULL; i++) {
        if (phase == PHASE_CONTRIBUTION && reduce_owns(&it->plan, member, i))
            reduce_send_contribution(it, i);
        if (phase == PHASE_RESULT && reduce_owns(&it->plan, it->self, i) &&
            it->chunks[i].next_member == it->plan.member_count)
            reduce_send_result(it, i);
    }
    reduce_unpin(it);
    return TOW_OK;
}

/* It is expected, and has not arrived yet. */
static bool is_due(const reduction_t *it, reduce_phase_t phase, uint32_t member,
                   uint64_t chunk, uint64_t size)
{
    return chunk < it->plan.chunk_count && member != it->self &&
           member < it->plan.member_count &&
           reduce_owns(&it->plan,
                       phase == PHASE_CONTRIBUTION ? it->self : member,
                       (uint32_t)chunk) &&
           (phase == PHASE_CONTRIBUTION || !it->plan.is_shared) &&
           size == reduce_length(&it->plan, (uint32_t)chunk) &&
           !reduce_bit(it->arrived, it, (uint32_t)chunk, member);
}

static void arrived(reduction_t *it, reduce_phase_t phase, uint32_t member,
                    uint32_t chunk)
{
    reduce_set(it->arrived, it, chunk, member);
    if (phase == PHASE_RESULT) {
        it->missing_count--;
        return;
    }
    it->arrival_count--;
    reduce_advance(it, chunk);
}

tow_status_t transfer_reduce_piece(job_t *job, uint32_t process, uint32_t name,
                                   uint32_t chunk, const void *bytes,
                                   size_t size)
{
    reduce_phase_t phase;
    uint32_t member;
    reduction_t *it = find(job, process, name, &phase, &member);
    if (TOW_UNLIKELY(it == NULL || !is_due(it, phase, member, chunk, size) ||
                     size > TOW_TRANSFER_EAGER_BYTES))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "process %u sent chunk %u, %zu bytes, as %u of the "
                         "collective %" PRIu64
                         ", which is not expected from it",
                         process, chunk, size, name, job->gang);
    reduce_pin(it);
    memcpy(phase == PHASE_RESULT ? it->bytes + reduce_offset(&it->plan, chunk)
                                 : it->inbox + reduce_slot(it, chunk, member),
           bytes, size);
    arrived(it, phase, member, chunk);
    reduce_unpin(it);
    return TOW_OK;
}

/* A region does not know which peer has written: the tag and the offset
 * tell. */
void reduce_written(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival)
{
    (void)region;
    const reduce_region_t *own_region = context;
    reduction_t *it = own_region->reduction;
    const reduce_phase_t phase = (reduce_phase_t)(own_region - it->own_regions);
    const uint32_t count = it->plan.member_count;
    if (it->job == NULL || own_region->is_closing) return;
    const bool is_result = phase == PHASE_RESULT;
    const uint64_t chunk = is_result ? arrival->tag : arrival->tag / count;
    const uint32_t member =
        is_result ? (uint32_t)((it->plan.first_owner + chunk) % count)
                  : (uint32_t)(arrival->tag % count);
    reduce_pin(it);
    if (!is_due(it, phase, member, chunk, arrival->size) ||
        arrival->offset != (is_result
                                ? reduce_offset(&it->plan, (uint32_t)chunk)
                                : reduce_slot(it, (uint32_t)chunk, member)))
        transfer_fail(it->job,
                      TOW_ERROR(TOW_INVALID_ARGUMENT,
                                "collective: %" PRIu64 " bytes were written at "
                                "%" PRIu64 " as %" PRIu64
                                ", where no such chunk is expected",
                                arrival->size, arrival->offset, arrival->tag));
    else
        arrived(it, phase, member, (uint32_t)chunk);
    reduce_unpin(it);
}

void transfer_posts_discard(tow_transfer_engine_t *engine)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&engine->posts)) != NULL) {
        reduce_post_t *it = TOW_CONTAINER_OF(item, reduce_post_t, in_engine);
        it->peer->write_count--;
        transfer_peer_unused(engine, it->peer);
    }
}
