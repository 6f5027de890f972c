/* Starting and ending reductions; see transfer_reduce_impl.h. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/transfer_reduce_impl.h"

/* -- Plans ----------------------------------------------------------------- */

static uint64_t align(uint64_t bytes)
{
    const uint64_t unit = TOW_COLLECTIVE_CHUNK_ALIGNMENT;
    return (bytes + unit - 1) / unit * unit;
}

reduce_plan_t reduce_plan_make(uint64_t size, uint64_t chunk_bytes,
                               size_t member_count, uint64_t turn)
{
    reduce_plan_t plan = {.size = size,
                          .chunk_bytes = align(size / member_count + 1),
                          .member_count = (uint32_t)member_count,
                          .first_owner = (uint32_t)(turn % member_count)};
    plan.is_shared = member_count > 1 && size > 0 &&
                     member_count <= TOW_REDUCE_SHARED_MEMBERS_MAX &&
                     size <= TOW_REDUCE_SHARED_BYTES;
    if (plan.chunk_bytes < TOW_REDUCE_CHUNK_BYTES_MIN || plan.is_shared)
        plan.chunk_bytes = TOW_REDUCE_CHUNK_BYTES_MIN;
    if (plan.chunk_bytes > chunk_bytes) plan.chunk_bytes = chunk_bytes;
    if (size / TOW_REDUCE_CHUNK_COUNT_MAX >= plan.chunk_bytes)
        plan.chunk_bytes = align(size / TOW_REDUCE_CHUNK_COUNT_MAX + 1);
    if (plan.is_shared || plan.chunk_bytes > align(size + 1))
        plan.chunk_bytes = align(size + 1);
    plan.chunk_count =
        (uint32_t)((size + plan.chunk_bytes - 1) / plan.chunk_bytes);
    return plan;
}

uint32_t reduce_owned(const reduce_plan_t *plan, uint32_t member,
                      bool *out_is_large)
{
    uint32_t count = 0;
    *out_is_large = false;
    for (uint32_t i = 0; i < plan->chunk_count; i++) {
        if (!reduce_owns(plan, member, i)) continue;
        count++;
        *out_is_large |= reduce_length(plan, i) > TOW_TRANSFER_EAGER_BYTES;
    }
    return count;
}

/* -- Ending ---------------------------------------------------------------- */

static void count_bytes(reduction_t *it, int64_t bytes)
{
    it->counted_bytes += bytes;
    tow_driver_borrow(it->engine->driver, it->upload.device, bytes);
}

/* Frees all but the memory that the device may use. */
static void free_parts(reduction_t *it)
{
    if (it->counted_bytes > 0) count_bytes(it, -it->counted_bytes);
    transfer_memory_free(it->engine, it->inbox, it->inbox_size);
    it->inbox = NULL;
    tow_free(it->sources);
    it->sources = NULL;
    it->chunks = NULL;
}

static void free_when_idle(reduction_t *it)
{
    tow_transfer_engine_t *engine = it->engine;
    if (it->job != NULL || it->pin_count > 0 || it->write_count > 0 ||
        it->work_count > 0 || it->borrow_count > 0 ||
        it->own_regions[PHASE_CONTRIBUTION].region != NULL ||
        it->own_regions[PHASE_RESULT].region != NULL)
        return;
    free_parts(it);
    if (it->is_uploading) return;
    transfer_memory_free(engine, it->bytes, it->plan.size);
    tow_list_remove(&it->in_engine);
    tow_pool_give(&engine->reduction_pool, it);
    transfer_check_quiet(engine);
}

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    reduction_t *it = TOW_CONTAINER_OF(upload, reduction_t, upload);
    tow_status_ignore(take_status, "the buffer reports the same error");
    it->is_uploading = false;
    free_when_idle(it);
}

static void look_done(reduction_t *it);

static void region_closed(void *context)
{
    reduce_region_t *own_region = context;
    reduction_t *it = own_region->reduction;
    own_region->region = NULL;
    own_region->is_closing = false;
    reduce_pin(it);
    reduce_unpin(it);
}

static void close_region(reduce_region_t *own_region)
{
    if (own_region->region == NULL || own_region->is_closing) return;
    own_region->is_closing = true;
    tow_region_close(own_region->region,
                     (tow_closed_t){region_closed, own_region});
}

static void give_back(reduce_source_t *source)
{
    reduction_t *it = source->reduction;
    if (!source->is_ready || source->is_ended) return;
    source->is_ended = true;
    tow_buffer_share_end(it->engine->driver, &source->share);
    tow_buffer_release(source->share.buffer);
    it->borrow_count--;
}

static void return_sources(reduction_t *it)
{
    for (uint32_t i = 0; i < it->source_count; i++)
        give_back(&it->sources[i]);
}

void reduce_look_at_sources(reduction_t *it)
{
    if (it->ready_count == it->source_count && it->contribution_count == 0 &&
        it->load_count == 0)
        return_sources(it);
}

/* Detaches it from its job. */
static void settle(reduction_t *it, tow_status_t take_status)
{
    tow_transfer_engine_t *engine = it->engine;
    job_t *job = it->job;
    it->job = NULL;
    job->reductions[it->order] = NULL;
    engine->stats.receive_bytes -= it->plan.size + it->inbox_size;
    it->is_settled = true;
    if (!it->is_uploading) {
        tow_status_release(take_status);
        return;
    }
    count_bytes(it, -(int64_t)it->plan.size);
    tow_upload_settle(engine->driver, &it->upload, take_status);
}

static bool is_complete(const reduction_t *it)
{
    return it->ready_count == it->source_count && it->load_count == 0 &&
           it->combine_count == 0 && it->missing_count == 0 &&
           it->contribution_count == 0 && it->result_count == 0 &&
           it->write_count == 0 && it->work_count == 0;
}

/* Others may write to a region until it is closed, and a later run may write to
 * the memory once the device has it: so it is handed over when nobody else
 * reads or writes it. */
static void look_done(reduction_t *it)
{
    job_t *job = it->job;
    if (job == NULL || !is_complete(it)) return;
    return_sources(it);
    close_region(&it->own_regions[PHASE_CONTRIBUTION]);
    close_region(&it->own_regions[PHASE_RESULT]);
    if (it->own_regions[PHASE_CONTRIBUTION].region != NULL ||
        it->own_regions[PHASE_RESULT].region != NULL)
        return;
    it->engine->stats.reduced++;
    settle(it, TOW_OK);
    transfer_part_ended(job);
}

void reduce_unpin(reduction_t *it)
{
    TOW_ASSERT(it->pin_count > 0);
    if (it->pin_count == 1) look_done(it);
    it->pin_count--;
    if (it->job == NULL && it->write_count == 0 && it->work_count == 0 &&
        it->sources != NULL)
        return_sources(it);
    free_when_idle(it);
}

/* Operations under way continue, in memory that stays allocated for them. */
static void give_up(reduction_t *it, tow_status_t cause)
{
    reduce_pin(it);
    settle(it, tow_status_retain(cause));
    reduce_unqueue(it);
    close_region(&it->own_regions[PHASE_CONTRIBUTION]);
    close_region(&it->own_regions[PHASE_RESULT]);
    reduce_unpin(it);
}

void transfer_reduce_fail(job_t *job, tow_status_t cause)
{
    for (uint32_t i = 0; i < job->reduction_count; i++)
        if (job->reductions[i] != NULL) give_up(job->reductions[i], cause);
}

void transfer_reduce_discard(tow_transfer_engine_t *engine)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&engine->reductions)) != NULL) {
        reduction_t *it = TOW_CONTAINER_OF(item, reduction_t, in_engine);
        tow_free(it->bytes);
        tow_free(it->inbox);
        tow_free(it->sources);
    }
}

/* -- Sources --------------------------------------------------------------- */

/* Our shards are all ready. If there is only one, its bytes are sent as they
 * are. */
static void load(reduction_t *it)
{
    for (uint32_t i = 0; i < it->plan.chunk_count && it->job != NULL; i++) {
        if (it->source_count == 1 &&
            (it->plan.is_shared || !reduce_owns(&it->plan, it->self, i)))
            reduce_send_contribution(it, i);
        if (it->job != NULL) reduce_advance(it, i);
    }
}

static void borrowed(tow_buffer_share_t *share, tow_status_t take_status)
{
    reduce_source_t *source = TOW_CONTAINER_OF(share, reduce_source_t, share);
    reduction_t *it = source->reduction;
    reduce_pin(it);
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        source->is_ended = true;
        tow_buffer_release(share->buffer);
        it->borrow_count--;
        if (it->job != NULL)
            transfer_fail(it->job, take_status);
        else
            tow_status_ignore(take_status, "the collective has ended");
    } else {
        source->is_ready = true;
        it->ready_count++;
        if (it->job == NULL)
            give_back(source);
        else if (it->ready_count == it->source_count)
            load(it);
    }
    reduce_unpin(it);
}

static tow_status_t share(reduction_t *it, uint32_t index, tow_buffer_t *buffer)
{
    reduce_source_t *source = &it->sources[index];
    source->reduction = it;
    source->share.buffer = buffer;
    source->share.done = borrowed;
    tow_buffer_retain(buffer);
    tow_status_t status = tow_driver_share(it->engine->driver, &source->share);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_buffer_release(buffer);
        return status;
    }
    it->borrow_count++;
    return TOW_OK;
}

/* -- Starting -------------------------------------------------------------- */

/* One block for everything that is needed while it is under way. */
static bool make_tables(reduction_t *it)
{
    const reduce_plan_t *plan = &it->plan;
    const size_t words =
        ((uint64_t)plan->chunk_count * plan->member_count + 63) / 64;
    const size_t rooms = (size_t)plan->member_count * PHASE_COUNT;
    uint8_t *block = tow_calloc(
        1, it->source_count * sizeof(reduce_source_t) +
               2 * words * sizeof(uint64_t) + rooms * sizeof(reduce_room_t) +
               plan->chunk_count * sizeof(reduce_chunk_t));
    if (block == NULL) return false;
    it->sources = (reduce_source_t *)block;
    it->arrived = (uint64_t *)(it->sources + it->source_count);
    it->sent = it->arrived + words;
    it->rooms = (reduce_room_t *)(it->sent + words);
    it->chunks = (reduce_chunk_t *)(it->rooms + rooms);
    return true;
}

static void count_what_is_left(reduction_t *it)
{
    const reduce_plan_t *plan = &it->plan;
    const uint32_t others = plan->member_count - 1;
    bool is_large;
    const uint32_t owned = reduce_owned(plan, it->self, &is_large);
    it->combine_count = owned;
    it->arrival_count = owned * others;
    it->missing_count = plan->chunk_count - owned;
    it->load_count = it->source_count > 1 ? plan->chunk_count : owned;
    it->contribution_count =
        plan->is_shared ? others : plan->chunk_count - owned;
    it->result_count = plan->is_shared ? 0 : owned * others;
    it->inbox_size = it->arrival_count * plan->chunk_bytes;
}

static tow_status_t make_memory(reduction_t *it)
{
    tow_transfer_engine_t *engine = it->engine;
    it->bytes = transfer_memory_alloc(engine, it->plan.size);
    if (it->bytes != NULL) count_bytes(it, (int64_t)it->plan.size);
    if (it->inbox_size > 0)
        it->inbox = transfer_memory_alloc(engine, it->inbox_size);
    if (it->inbox != NULL) count_bytes(it, (int64_t)it->inbox_size);
    if (it->bytes != NULL && (it->inbox_size == 0 || it->inbox != NULL))
        return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "collective: cannot allocate %" PRIu64
                     " bytes for a tensor and %" PRIu64 " for contributions",
                     it->plan.size, it->inbox_size);
}

static tow_status_t open_region(reduction_t *it, reduce_phase_t phase,
                                void *bytes, uint64_t size)
{
    if (!tow_env_has_lanes(it->engine->env))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "collective: this worker has no data plane");
    const tow_region_options_t options = {.bytes = bytes,
                                          .size = (size_t)size,
                                          .arrived = reduce_written,
                                          .context = &it->own_regions[phase]};
    return tow_env_region_open(it->engine->env, &options,
                               &it->own_regions[phase].region);
}

/* Only where peers write: small chunks arrive in messages. */
static tow_status_t open_regions(reduction_t *it)
{
    bool is_large = false, is_owner_large = false;
    for (uint32_t member = 0; member < it->plan.member_count; member++) {
        reduce_owned(&it->plan, member, &is_owner_large);
        is_large |= member != it->self && is_owner_large;
    }
    reduce_owned(&it->plan, it->self, &is_owner_large);
    it->own_regions[PHASE_CONTRIBUTION].reduction = it;
    it->own_regions[PHASE_RESULT].reduction = it;
    if (is_owner_large && it->inbox_size > 0)
        TOW_RETURN_IF_ERROR(
            open_region(it, PHASE_CONTRIBUTION, it->inbox, it->inbox_size));
    if (!is_large) return TOW_OK;
    return open_region(it, PHASE_RESULT, it->bytes, it->plan.size);
}

static tow_status_t upload(reduction_t *it, const tow_shape_t *shape,
                           uint32_t device)
{
    it->upload.device = device;
    it->upload.shape = *shape;
    it->upload.bytes = it->bytes;
    it->upload.buffer = NULL;
    it->upload.done = uploaded;
    it->upload.may_alias = true;
    it->upload.may_overwrite = true;
    it->upload.is_deferred = true;
    TOW_RETURN_IF_ERROR(tow_driver_upload(it->engine->driver, &it->upload));
    it->is_uploading = true;
    return TOW_OK;
}

static reduction_t *make(job_t *job, uint32_t group, uint32_t tensor,
                         uint64_t size)
{
    tow_transfer_engine_t *engine = job->engine;
    const tow_collective_part_t *part = job->part;
    const tow_members_t *members = &part->groups[group];
    reduction_t *it = tow_pool_take(&engine->reduction_pool);
    if (it == NULL) return NULL;
    memset(it, 0, sizeof(*it));
    it->engine = engine;
    it->job = job;
    it->members = members;
    it->gang = job->gang;
    it->order = group * (uint32_t)part->tensor_count + tensor;
    it->name = members->group * (uint32_t)part->tensor_count + tensor;
    it->self = (uint32_t)members->self;
    it->type = part->tensors[tensor].type;
    it->how = part->reduction;
    it->element_bytes = (uint32_t)box_element_bytes(&part->tensors[tensor]);
    it->source_count = (uint32_t)members->shard_count;
    it->upload.device = part->devices[members->shards[0]];
    it->plan = reduce_plan_make(size, part->chunk_bytes, members->process_count,
                                job->gang + it->name);
    it->first_ready = it->last_ready = TOW_REDUCE_NONE;
    count_what_is_left(it);
    tow_list_init(&it->in_ready);
    tow_list_append(&engine->reductions, &it->in_engine);
    job->reductions[it->order] = it;
    job->open_count++;
    engine->stats.receive_bytes += size + it->inbox_size;
    return it;
}

/* The first of our shards is the late upload, the others are copies of it. */
static tow_status_t fill_targets(reduction_t *it, uint32_t tensor)
{
    job_t *job = it->job;
    const tow_collective_part_t *part = job->part;
    const tow_members_t *members = it->members;
    tow_buffer_t **targets = job->transfer->targets + tensor;
    TOW_RETURN_IF_ERROR(
        upload(it, &part->tensors[tensor], part->devices[members->shards[0]]));
    targets[members->shards[0] * part->tensor_count] = it->upload.buffer;
    for (size_t i = 1; i < members->shard_count; i++)
        TOW_RETURN_IF_ERROR(transfer_copy_start(
            job, it->upload.buffer, part->devices[members->shards[i]],
            &targets[members->shards[i] * part->tensor_count]));
    return TOW_OK;
}

static tow_status_t start(reduction_t *it, uint32_t tensor)
{
    const job_t *job = it->job;
    const tow_members_t *members = it->members;
    if (!make_tables(it)) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(make_memory(it));
    TOW_RETURN_IF_ERROR(open_regions(it));
    TOW_RETURN_IF_ERROR(fill_targets(it, tensor));
    for (uint32_t i = 0; i < it->source_count; i++)
        TOW_RETURN_IF_ERROR(share(
            it, i,
            job->transfer
                ->sources[members->shards[i] * job->transfer->source_stride +
                          tensor]));
    return TOW_OK;
}

static tow_status_t check_driver(const job_t *job)
{
    const tow_driver_t *driver = job->engine->driver;
    for (size_t i = 0; i < job->part->group_count; i++)
        if (job->part->groups[i].shard_count > 1 && driver->ops->copy == NULL)
            return TOW_ERROR(TOW_UNIMPLEMENTED,
                             "the %s driver has no copies, which collectives "
                             "over several devices of a worker need",
                             driver->name);
    return TOW_OK;
}

tow_status_t transfer_reduce_start(job_t *job)
{
    const tow_collective_part_t *part = job->part;
    TOW_RETURN_IF_ERROR(check_driver(job));
    job->reductions = tow_calloc(part->group_count * part->tensor_count,
                                 sizeof(job->reductions[0]));
    if (job->reductions == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    job->reduction_count = (uint32_t)(part->group_count * part->tensor_count);
    for (uint32_t tensor = 0; tensor < part->tensor_count; tensor++) {
        uint64_t size = 0;
        TOW_RETURN_IF_ERROR(tow_shape_bytes(&part->tensors[tensor], &size));
        for (uint32_t group = 0; group < part->group_count; group++) {
            reduction_t *it = make(job, group, tensor, size);
            if (it == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
            TOW_RETURN_IF_ERROR(start(it, tensor));
        }
    }
    return TOW_OK;
}

void transfer_reduce_announce(job_t *job)
{
    for (uint32_t i = 0; i < job->reduction_count; i++)
        if (job->reductions[i] != NULL) reduce_offer(job->reductions[i]);
}

/* -- Peers ----------------------------------------------------------------- */

bool transfer_reduce_has_others(const tow_collective_part_t *part)
{
    for (size_t i = 0; i < part->group_count; i++)
        if (part->groups[i].process_count > 1) return true;
    return false;
}

/* The member number of the process; the member count if it is none. */
static uint32_t member_of(const reduction_t *it, uint32_t process)
{
    uint32_t member = 0;
    while (member < it->plan.member_count &&
           it->members->processes[member] != process)
        member++;
    return member;
}

/* Does it still have to send us a chunk? */
static bool waits_for(const reduction_t *it, uint32_t member)
{
    for (uint32_t i = 0; i < it->plan.chunk_count; i++) {
        const bool is_expected = reduce_owns(&it->plan, it->self, i) ||
                                 reduce_owns(&it->plan, member, i);
        if (is_expected && !reduce_bit(it->arrived, it, i, member)) return true;
    }
    return false;
}

/* Do we still have to send it a chunk? Writes under way count too. */
static bool sends_to(const reduction_t *it, uint32_t member)
{
    for (uint32_t i = 0; i < it->plan.chunk_count; i++) {
        const bool is_wanted = reduce_owns(&it->plan, it->self, i) ||
                               reduce_owns(&it->plan, member, i);
        if (is_wanted && !reduce_bit(it->sent, it, i, member)) return true;
    }
    return it->write_count > 0;
}

typedef bool (*question_t)(const reduction_t *it, uint32_t member);

static bool asks(const job_t *job, uint32_t process, question_t question)
{
    for (uint32_t i = 0; i < job->reduction_count; i++) {
        const reduction_t *it = job->reductions[i];
        if (it == NULL) continue;
        const uint32_t member = member_of(it, process);
        if (member < it->plan.member_count && member != it->self &&
            question(it, member))
            return true;
    }
    return false;
}

bool transfer_reduce_waits_for(const job_t *job, uint32_t process)
{
    return asks(job, process, waits_for);
}

bool transfer_reduce_sends_to(const job_t *job, uint32_t process)
{
    return asks(job, process, sends_to);
}

/* -- Parts of programs ----------------------------------------------------- */

tow_status_t tow_part_check(const tow_collective_part_t *part, uint32_t process,
                            size_t device_count)
{
    for (size_t i = 0; i < part->shard_count; i++)
        if (part->devices[i] >= device_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "shard %zu is on device %u of %zu", i,
                             part->devices[i], device_count);
    for (size_t i = 0; i < part->group_count; i++) {
        const tow_members_t *members = &part->groups[i];
        if (members->processes[members->self] != process)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "group %u: the part is of process %u, not of this "
                             "process %u",
                             members->group, members->processes[members->self],
                             process);
    }
    for (size_t i = 0; i < part->tensor_count; i++) {
        uint64_t size;
        TOW_RETURN_IF_ERROR(tow_shape_bytes(&part->tensors[i], &size));
        if (size > TOW_ALLOC_BYTES_MAX / 2)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "tensor %zu has %" PRIu64 " bytes", i, size);
    }
    return TOW_OK;
}
