/* The collectives, built on mailboxes: a member publishes its bytes and reads
 * those of the others.
 *
 * A collective that does not fit into a mailbox runs in chunks. Each
 * publication has a step number, which writer and readers compute
 * independently. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "collective/intra_host/intra_host_impl.h"
#include "collective/reduce.h"

typedef struct job {
    member_op_t op;
    size_t rank;
    size_t count; /* of members */
    size_t element_bytes;
    uint64_t step;
} job_t;

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements of a chunk when `parts` blocks share a stage. */
static size_t chunk_elements(const job_t *job, size_t parts)
{
    TOW_ASSERT(parts > 0 && job->element_bytes > 0);
    return TOW_INTRA_HOST_STAGE_BYTES / parts / job->element_bytes;
}

static mailbox_readers_t all_others(const job_t *job)
{
    const int64_t *members = job->op.collective->members;
    return (mailbox_readers_t){.count = (uint32_t)(job->count - 1),
                               .only = job->count == 2 ? members[1 - job->rank]
                                                       : -1};
}

static tow_status_t put(job_t *job, const void *bytes, size_t size)
{
    uint8_t *stage = NULL;
    TOW_RETURN_IF_ERROR(mailbox_prepare(&job->op, &stage));
    if (size > 0) memcpy(stage, bytes, size);
    mailbox_publish(&job->op, job->step, all_others(job));
    return TOW_OK;
}

/* Processes the bytes of one member. */
typedef void (*consumer_t)(job_t *job, size_t from, const uint8_t *bytes,
                           void *context);

/* Calls `consumer` with the bytes of all members in rank order, including ours
 * (`own`), and advances to the next step. */
static tow_status_t consume_all(job_t *job, const uint8_t *own,
                                consumer_t consumer, void *context)
{
    TOW_RETURN_IF_ERROR(mailbox_await_all(&job->op, job->step));
    for (size_t from = 0; from < job->count; from++) {
        if (from == job->rank) {
            consumer(job, from, own, context);
            continue;
        }
        mailbox_message_t message;
        TOW_RETURN_IF_ERROR(mailbox_fetch(&job->op, from, job->step, &message));
        consumer(job, from, message.bytes, context);
        TOW_RETURN_IF_ERROR(mailbox_release(&job->op, from, &message));
    }
    job->step++;
    return TOW_OK;
}

static const uint8_t *own_stage(const job_t *job)
{
    const mailbox_t *box = member_op_mailbox(&job->op, job->rank);
    return box->stage[box->last_half];
}

/* -- Reductions ------------------------------------------------------------ */

typedef struct reduce_part {
    uint8_t *into;
    size_t offset; /* in the bytes of each member */
    size_t element_count;
} reduce_part_t;

static void consume_and_reduce(job_t *job, size_t from, const uint8_t *bytes,
                               void *context)
{
    const reduce_part_t *part = context;
    const tow_xla_collective_t *collective = job->op.collective;
    if (part->element_count == 0) return;
    if (from == 0)
        memcpy(part->into, bytes + part->offset,
               part->element_count * job->element_bytes);
    else
        tow_reduce(part->into, bytes + part->offset, part->element_count,
                   (tow_type_t)collective->element_type,
                   (tow_reduction_t)collective->reduction);
}

static tow_status_t all_reduce_whole(job_t *job, const uint8_t *send,
                                     uint8_t *receive, size_t element_count)
{
    TOW_RETURN_IF_ERROR(put(job, send, element_count * job->element_bytes));
    /* Our own bytes from the stage, because `receive` may overlap `send`. */
    reduce_part_t part = {receive, 0, element_count};
    return consume_all(job, own_stage(job), consume_and_reduce, &part);
}

/* Member `rank` reduces elements [slice_begin(rank), slice_begin(rank + 1)) of
 * a chunk. */
static size_t slice_begin(const job_t *job, size_t rank, size_t element_count)
{
    return element_count * rank / job->count;
}

typedef struct gather_slices {
    uint8_t *chunk;
    size_t element_count; /* of the chunk */
} gather_slices_t;

static void consume_slice(job_t *job, size_t from, const uint8_t *bytes,
                          void *context)
{
    const gather_slices_t *gather = context;
    if (from == job->rank) return; /* Already in place. */
    const size_t begin = slice_begin(job, from, gather->element_count);
    const size_t end = slice_begin(job, from + 1, gather->element_count);
    memcpy(gather->chunk + begin * job->element_bytes, bytes,
           (end - begin) * job->element_bytes);
}

/* Each member reduces a slice of the chunk, then all gather the slices. */
static tow_status_t all_reduce_sliced(job_t *job, const uint8_t *send,
                                      uint8_t *receive, size_t element_count)
{
    const size_t begin = slice_begin(job, job->rank, element_count);
    const size_t end = slice_begin(job, job->rank + 1, element_count);
    TOW_RETURN_IF_ERROR(put(job, send, element_count * job->element_bytes));
    uint8_t *slice = receive + begin * job->element_bytes;
    reduce_part_t part = {slice, begin * job->element_bytes, end - begin};
    TOW_RETURN_IF_ERROR(
        consume_all(job, own_stage(job), consume_and_reduce, &part));
    TOW_RETURN_IF_ERROR(put(job, slice, (end - begin) * job->element_bytes));
    gather_slices_t gather = {receive, element_count};
    return consume_all(job, own_stage(job), consume_slice, &gather);
}

static tow_status_t all_reduce(job_t *job)
{
    const tow_xla_collective_t *collective = job->op.collective;
    const uint8_t *send = collective->send[0];
    uint8_t *receive = collective->receive[0];
    const size_t limit = chunk_elements(job, 1);
    for (size_t at = 0; at < collective->element_count; at += limit) {
        const size_t elements = smaller(limit, collective->element_count - at);
        const size_t offset = at * job->element_bytes;
        const bool whole =
            elements * job->element_bytes <= TOW_INTRA_HOST_WHOLE_BYTES_MAX;
        TOW_RETURN_IF_ERROR(whole ? all_reduce_whole(job, send + offset,
                                                     receive + offset, elements)
                                  : all_reduce_sliced(job, send + offset,
                                                      receive + offset,
                                                      elements));
    }
    return TOW_OK;
}

/* -- Reduce-scatter and all-to-all: a block for each member ---------------- */

/* The block for member `to`: in all-to-all each has its own pointer, in
 * reduce-scatter they are contiguous. */
static const uint8_t *block_for(const job_t *job, size_t to)
{
    const tow_xla_collective_t *collective = job->op.collective;
    if (collective->kind == TOW_XLA_ALL_TO_ALL) return collective->send[to];
    return (const uint8_t *)collective->send[0] +
           to * collective->element_count * job->element_bytes;
}

/* Publishes elements [at, at + elements) of each block, one after another. */
static tow_status_t put_blocks(job_t *job, size_t at, size_t elements)
{
    uint8_t *stage = NULL;
    TOW_RETURN_IF_ERROR(mailbox_prepare(&job->op, &stage));
    const size_t size = elements * job->element_bytes;
    for (size_t to = 0; to < job->count; to++)
        memcpy(stage + to * size, block_for(job, to) + at * job->element_bytes,
               size);
    mailbox_publish(&job->op, job->step, all_others(job));
    return TOW_OK;
}

typedef struct scatter_part {
    uint8_t *const *receive; /* by rank */
    size_t at;
    size_t elements;
} scatter_part_t;

static void consume_block(job_t *job, size_t from, const uint8_t *bytes,
                          void *context)
{
    const scatter_part_t *part = context;
    const size_t size = part->elements * job->element_bytes;
    memcpy(part->receive[from] + part->at * job->element_bytes,
           bytes + job->rank * size, size);
}

static tow_status_t reduce_scatter(job_t *job)
{
    const tow_xla_collective_t *collective = job->op.collective;
    uint8_t *receive = collective->receive[0];
    const size_t limit = chunk_elements(job, job->count);
    for (size_t at = 0; at < collective->element_count; at += limit) {
        const size_t elements = smaller(limit, collective->element_count - at);
        TOW_RETURN_IF_ERROR(put_blocks(job, at, elements));
        reduce_part_t part = {receive + at * job->element_bytes,
                              job->rank * elements * job->element_bytes,
                              elements};
        TOW_RETURN_IF_ERROR(
            consume_all(job, own_stage(job), consume_and_reduce, &part));
    }
    return TOW_OK;
}

static tow_status_t all_to_all(job_t *job)
{
    const tow_xla_collective_t *collective = job->op.collective;
    const size_t limit = chunk_elements(job, job->count);
    for (size_t at = 0; at < collective->element_count; at += limit) {
        const size_t elements = smaller(limit, collective->element_count - at);
        TOW_RETURN_IF_ERROR(put_blocks(job, at, elements));
        scatter_part_t part = {(uint8_t *const *)collective->receive, at,
                               elements};
        TOW_RETURN_IF_ERROR(
            consume_all(job, own_stage(job), consume_block, &part));
    }
    return TOW_OK;
}

/* -- All-gather, broadcast, permute, barrier ------------------------------- */

typedef struct gather_part {
    uint8_t *receive;
    size_t block_bytes;
    size_t offset;
    size_t size;
} gather_part_t;

static void consume_gathered(job_t *job, size_t from, const uint8_t *bytes,
                             void *context)
{
    (void)job;
    const gather_part_t *part = context;
    memcpy(part->receive + from * part->block_bytes + part->offset, bytes,
           part->size);
}

static tow_status_t all_gather(job_t *job)
{
    const tow_xla_collective_t *collective = job->op.collective;
    const uint8_t *send = collective->send[0];
    const size_t block_bytes = collective->element_count * job->element_bytes;
    for (size_t offset = 0; offset < block_bytes;
         offset += TOW_INTRA_HOST_STAGE_BYTES) {
        gather_part_t part = {
            collective->receive[0], block_bytes, offset,
            smaller(TOW_INTRA_HOST_STAGE_BYTES, block_bytes - offset)};
        TOW_RETURN_IF_ERROR(put(job, send + offset, part.size));
        TOW_RETURN_IF_ERROR(
            consume_all(job, own_stage(job), consume_gathered, &part));
    }
    return TOW_OK;
}

/* Moves one block from `source` to us and from us to `readers`. */
static tow_status_t forward(job_t *job, size_t source,
                            mailbox_readers_t readers)
{
    const tow_xla_collective_t *collective = job->op.collective;
    const size_t bytes = collective->element_count * job->element_bytes;
    const uint8_t *send = collective->send[0];
    uint8_t *receive = collective->receive[0];
    if (source == job->rank && receive != send) memmove(receive, send, bytes);
    for (size_t offset = 0; offset < bytes;
         offset += TOW_INTRA_HOST_STAGE_BYTES) {
        const size_t size = smaller(TOW_INTRA_HOST_STAGE_BYTES, bytes - offset);
        if (readers.count > 0) {
            uint8_t *stage = NULL;
            TOW_RETURN_IF_ERROR(mailbox_prepare(&job->op, &stage));
            memcpy(stage, send + offset, size);
            mailbox_publish(&job->op, job->step, readers);
        }
        if (source != job->rank && source != SIZE_MAX) {
            mailbox_message_t message;
            TOW_RETURN_IF_ERROR(
                mailbox_fetch(&job->op, source, job->step, &message));
            memcpy(receive + offset, message.bytes, size);
            TOW_RETURN_IF_ERROR(mailbox_release(&job->op, source, &message));
        }
        job->step++;
    }
    return TOW_OK;
}

static tow_status_t broadcast(job_t *job)
{
    const size_t root = job->op.collective->root;
    return forward(job, root,
                   root == job->rank ? all_others(job)
                                     : (mailbox_readers_t){0});
}

static tow_status_t permute(job_t *job)
{
    const tow_xla_collective_t *collective = job->op.collective;
    mailbox_readers_t readers = {0};
    for (size_t i = 0; i < collective->target_count; i++) {
        if (collective->targets[i] == job->rank) continue;
        readers.only = readers.count++ == 0
                           ? collective->members[collective->targets[i]]
                           : -1;
    }
    return forward(job, collective->source, readers);
}

static void consume_nothing(job_t *job, size_t from, const uint8_t *bytes,
                            void *context)
{
    (void)job, (void)from, (void)bytes, (void)context;
}

static tow_status_t barrier(job_t *job)
{
    TOW_RETURN_IF_ERROR(put(job, NULL, 0));
    return consume_all(job, own_stage(job), consume_nothing, NULL);
}

/* -- Entry point ----------------------------------------------------------- */

static tow_status_t check(const tow_xla_collective_t *c)
{
    if (c->member_count == 0 ||
        c->member_count > TOW_INTRA_HOST_DEVICE_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a collective of %zu members; the limit is %d",
                         c->member_count, TOW_INTRA_HOST_DEVICE_COUNT_MAX);
    if (c->rank >= c->member_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "rank %zu of %zu members",
                         c->rank, c->member_count);
    if (c->kind != TOW_XLA_BARRIER && c->element_bytes == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a collective of elements of 0 bytes");
    if ((c->kind == TOW_XLA_ALL_REDUCE || c->kind == TOW_XLA_REDUCE_SCATTER) &&
        !tow_reduce_is_supported((tow_type_t)c->element_type,
                                 (tow_reduction_t)c->reduction))
        return TOW_ERROR(
            TOW_UNIMPLEMENTED,
            "reduction %d of element type %s (%d) is not supported",
            (int)c->reduction, tow_type_name((tow_type_t)c->element_type),
            c->element_type);
    return TOW_OK;
}

static tow_status_t perform(job_t *job)
{
    TOW_RETURN_IF_ERROR(member_op_begin(&job->op));
    switch (job->op.collective->kind) {
    case TOW_XLA_ALL_REDUCE: return all_reduce(job);
    case TOW_XLA_REDUCE_SCATTER: return reduce_scatter(job);
    case TOW_XLA_ALL_GATHER: return all_gather(job);
    case TOW_XLA_ALL_TO_ALL: return all_to_all(job);
    case TOW_XLA_PERMUTE: return permute(job);
    case TOW_XLA_BROADCAST: return broadcast(job);
    case TOW_XLA_BARRIER: return barrier(job);
    }
    return TOW_ERROR(TOW_UNIMPLEMENTED, "collective kind %d is not supported",
                     (int)job->op.collective->kind);
}

/* A member that fails aborts the run: the others would wait for ever. */
static int fail_collective(tow_intra_host_t *host, uint64_t run_id,
                           tow_status_t take_status, char *error,
                           size_t error_capacity)
{
    const tow_code_t code = tow_status_code(take_status);
    snprintf(error, error_capacity, "%s", tow_status_message(take_status));
    tow_status_t known = intra_host_abort_of(host, run_id);
    if (known == TOW_OK)
        tow_intra_host_abort(host, run_id, code,
                             tow_status_message(take_status));
    tow_status_ignore(known, "only whether it is known matters");
    tow_status_ignore(take_status, "passed on as text");
    return (int)code;
}

int tow_intra_host_collective(void *host,
                              const tow_xla_collective_t *collective,
                              char *error, size_t error_capacity)
{
    job_t job;
    job.op.host = host;
    job.op.collective = collective;
    job.rank = collective->rank;
    job.count = collective->member_count;
    job.element_bytes = collective->element_bytes;
    job.step = 0;
    tow_status_t status = check(collective);
    if (status == TOW_OK) status = perform(&job);
    if (TOW_LIKELY(status == TOW_OK)) return 0;
    return fail_collective(host, collective->run_id, status, error,
                           error_capacity);
}
