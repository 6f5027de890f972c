/* The collectives in three phases: the members of a host combine their data in
 * shared memory, their leader exchanges it with the other leaders, and the host
 * distributes the result.
 *
 * All members of a host run the same intra-host collectives ("meetings") in the
 * same order. Each handles at most one stage of data, so memory is bounded; an
 * all-reduce of a host with one member works in the caller's memory alone. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "collective/intra_host/tuning.h"
#include "collective/multi_host/multi_host_impl.h"

/* C128. */
#define ELEMENT_BYTES_MAX 16

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* -- Collectives within our host ------------------------------------------- */

/* One member's part in a collective within its host. */
typedef struct meeting {
    tow_xla_collective_kind_t kind;
    const void *send;
    void *receive;
    size_t element_count;
    size_t element_bytes;
    size_t root; /* of a broadcast: a place */
} meeting_t;

/* With a key distinct from collectives of these members alone. */
static uint64_t meeting_op_id(job_t *job)
{
    return tow_mix64(job->collective->op_id ^
                     tow_mix64(job->gang->members + job->meeting_count++));
}

static tow_status_t meet(job_t *job, const meeting_t *meeting)
{
    const tow_xla_collective_t *whole = job->collective;
    const tow_xla_collective_t part = {
        .struct_size = sizeof(part),
        .kind = meeting->kind,
        .run_id = whole->run_id,
        .op_id = meeting_op_id(job),
        .occurrence = whole->occurrence,
        .members = job->gang->locals,
        .member_count = gang_here(job->gang)->count,
        .rank = job->gang->place,
        .element_type = whole->element_type,
        .reduction = whole->reduction,
        .element_count = meeting->element_count,
        .element_bytes = meeting->element_bytes,
        .send = &meeting->send,
        .receive = &meeting->receive,
        .root = meeting->root,
        .source = SIZE_MAX,
        .fiber_ops = whole->fiber_ops,
        .wait_ns = whole->wait_ns,
    };
    char error[TOW_INTRA_HOST_REASON_BYTES] = "";
    const int code = tow_intra_host_collective(job->span->options.host, &part,
                                               error, sizeof(error));
    return code == 0 ? TOW_OK : TOW_ERROR((tow_code_t)code, "%s", error);
}

static bool is_alone(const job_t *job)
{
    return gang_here(job->gang)->count == 1;
}

/* Broadcasts the data of member `root` to all members of the host. */
static tow_status_t share(job_t *job, void *bytes, size_t size, size_t root)
{
    if (is_alone(job)) return TOW_OK;
    return meet(job, &(meeting_t){.kind = TOW_XLA_BROADCAST,
                                  .send = bytes,
                                  .receive = bytes,
                                  .element_count = size,
                                  .element_bytes = 1,
                                  .root = root});
}

/* Gathers `size` bytes of each member of the host into `receive`. */
static tow_status_t gather(job_t *job, const void *send, size_t size,
                           void *receive)
{
    if (is_alone(job)) {
        memmove(receive, send, size);
        return TOW_OK;
    }
    return meet(job, &(meeting_t){.kind = TOW_XLA_ALL_GATHER,
                                  .send = send,
                                  .receive = receive,
                                  .element_count = size,
                                  .element_bytes = 1});
}

static tow_status_t reduce_here(job_t *job, const void *send, void *receive,
                                size_t element_count)
{
    const size_t element_bytes = job->collective->element_bytes;
    if (is_alone(job)) {
        if (send != receive)
            memmove(receive, send, element_count * element_bytes);
        return TOW_OK;
    }
    return meet(job, &(meeting_t){.kind = TOW_XLA_ALL_REDUCE,
                                  .send = send,
                                  .receive = receive,
                                  .element_count = element_count,
                                  .element_bytes = element_bytes});
}

/* -- All-reduce, broadcast, barrier ---------------------------------------- */

static tow_status_t all_reduce(job_t *job)
{
    const tow_xla_collective_t *c = job->collective;
    const size_t limit = is_alone(job) && job->gang->local_max == 1
                             ? c->element_count
                             : TOW_MULTI_HOST_CHUNK_BYTES / c->element_bytes;
    const uint8_t *send = c->send[0];
    uint8_t *receive = c->receive[0];
    for (size_t at = 0; at < c->element_count; at += limit) {
        const size_t count = smaller(limit, c->element_count - at);
        const size_t offset = at * c->element_bytes;
        TOW_RETURN_IF_ERROR(
            reduce_here(job, send + offset, receive + offset, count));
        if (gang_leads(job->gang))
            TOW_RETURN_IF_ERROR(leaders_reduce(job, receive + offset, count));
        TOW_RETURN_IF_ERROR(
            share(job, receive + offset, count * c->element_bytes, 0));
    }
    return TOW_OK;
}

/* The host of a rank, and its place there. */
static void locate(const gang_t *gang, size_t rank, size_t *out_host,
                   size_t *out_place)
{
    for (size_t i = 0; i < gang->host_count; i++)
        for (size_t k = 0; k < gang->hosts[i].count; k++)
            if (gang->order[gang->hosts[i].first + k] == rank) {
                *out_host = i;
                *out_place = k;
                return;
            }
}

static tow_status_t broadcast(job_t *job)
{
    const tow_xla_collective_t *c = job->collective;
    const size_t size = c->element_count * c->element_bytes;
    uint8_t *receive = c->receive[0];
    size_t host = 0, place = 0;
    locate(job->gang, c->root, &host, &place);
    const bool is_here = host == job->gang->here;
    if (c->rank == c->root && c->send[0] != receive)
        memmove(receive, c->send[0], size);
    if (is_here) TOW_RETURN_IF_ERROR(share(job, receive, size, place));
    if (gang_leads(job->gang))
        TOW_RETURN_IF_ERROR(leaders_broadcast(job, host, receive, size));
    return is_here ? TOW_OK : share(job, receive, size, 0);
}

static tow_status_t barrier(job_t *job)
{
    const meeting_t here = {.kind = TOW_XLA_BARRIER};
    if (!is_alone(job)) TOW_RETURN_IF_ERROR(meet(job, &here));
    if (gang_leads(job->gang))
        TOW_RETURN_IF_ERROR(leaders_reduce(job, NULL, 0));
    return is_alone(job) ? TOW_OK : meet(job, &here);
}

/* -- Blocks ---------------------------------------------------------------- */

/* Memory for one chunk of a collective of blocks. */
typedef struct stage {
    uint8_t *own;                /* what this member gives */
    uint8_t *in;                 /* what the host has gathered */
    uint8_t *out;                /* what the host gets */
    parcel_t *parcels;           /* one a host; the leader's */
    const struct routes *routes; /* lent; a permute's */
} stage_t;

static void stage_close(stage_t *stage)
{
    tow_free(stage->own);
    tow_free(stage->in);
    tow_free(stage->out);
    tow_free(stage->parcels);
}

static tow_status_t stage_open(const job_t *job, stage_t *stage,
                               size_t own_bytes, size_t in_bytes,
                               size_t out_bytes)
{
    stage->own = tow_malloc(own_bytes + 1);
    stage->in = tow_malloc(in_bytes + 1);
    stage->out = tow_malloc(out_bytes + 1);
    stage->parcels = tow_calloc(job->gang->host_count, sizeof(*stage->parcels));
    if (stage->own != NULL && stage->in != NULL && stage->out != NULL &&
        stage->parcels != NULL)
        return TOW_OK;
    stage_close(stage);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* Elements [at, at + count) of each block. */
typedef struct chunk {
    size_t at;
    size_t count;
    size_t size; /* bytes of one block's part */
    stage_t *stage;
} chunk_t;

typedef tow_status_t (*chunk_worker_t)(job_t *job, const chunk_t *chunk);

/* Iterates over the blocks so that `parts` of them fit a stage. Every host
 * computes the same steps. */
static tow_status_t for_chunks(job_t *job, stage_t *stage, size_t limit,
                               chunk_worker_t worker)
{
    const tow_xla_collective_t *c = job->collective;
    tow_status_t status = TOW_OK;
    for (size_t at = 0; at < c->element_count && status == TOW_OK;
         at += limit) {
        const size_t count = smaller(limit, c->element_count - at);
        status = worker(job, &(chunk_t){.at = at,
                                        .count = count,
                                        .size = count * c->element_bytes,
                                        .stage = stage});
    }
    stage_close(stage);
    return status;
}

static size_t chunk_limit(const job_t *job, size_t parts)
{
    const tow_xla_collective_t *c = job->collective;
    const size_t limit = TOW_MULTI_HOST_STAGE_BYTES / parts / c->element_bytes;
    return limit == 0 ? 1 : smaller(limit, c->element_count);
}

/* -- All-gather ------------------------------------------------------------ */

static tow_status_t exchange_gathered(job_t *job, const chunk_t *chunk)
{
    const gang_t *gang = job->gang;
    stage_t *stage = chunk->stage;
    for (size_t i = 0; i < gang->host_count; i++) {
        const gang_host_t *host = &gang->hosts[i];
        stage->parcels[i] = (parcel_t){
            .send = stage->in,
            .send_size = gang_here(gang)->count * chunk->size,
            .receive = stage->out + host->first * chunk->size,
            .receive_size = host->count * chunk->size,
        };
    }
    const parcel_t *own = &stage->parcels[gang->here];
    memcpy(own->receive, own->send, own->send_size);
    return leaders_exchange(job, stage->parcels);
}

static tow_status_t all_gather_chunk(job_t *job, const chunk_t *chunk)
{
    const tow_xla_collective_t *c = job->collective;
    const gang_t *gang = job->gang;
    stage_t *stage = chunk->stage;
    const uint8_t *send = c->send[0];
    TOW_RETURN_IF_ERROR(gather(job, send + chunk->at * c->element_bytes,
                               chunk->size, stage->in));
    if (gang_leads(gang)) TOW_RETURN_IF_ERROR(exchange_gathered(job, chunk));
    TOW_RETURN_IF_ERROR(
        share(job, stage->out, gang->member_count * chunk->size, 0));
    for (size_t k = 0; k < gang->member_count; k++)
        memcpy((uint8_t *)c->receive[0] +
                   (gang->order[k] * c->element_count + chunk->at) *
                       c->element_bytes,
               stage->out + k * chunk->size, chunk->size);
    return TOW_OK;
}

static tow_status_t all_gather(job_t *job)
{
    const size_t members = job->gang->member_count;
    const size_t limit = chunk_limit(job, members);
    const size_t part = limit * job->collective->element_bytes;
    stage_t stage = {0};
    TOW_RETURN_IF_ERROR(stage_open(
        job, &stage, 0, gang_here(job->gang)->count * part, members * part));
    return for_chunks(job, &stage, limit, all_gather_chunk);
}

/* -- Reduce-scatter -------------------------------------------------------- */

/* The blocks that we send, host after host. */
static void lay_out_blocks(job_t *job, const chunk_t *chunk)
{
    const tow_xla_collective_t *c = job->collective;
    const gang_t *gang = job->gang;
    for (size_t k = 0; k < gang->member_count; k++) {
        const size_t to = gang->order[k];
        const uint8_t *block =
            c->kind == TOW_XLA_ALL_TO_ALL
                ? c->send[to]
                : (const uint8_t *)c->send[0] +
                      to * c->element_count * c->element_bytes;
        memcpy(chunk->stage->own + k * chunk->size,
               block + chunk->at * c->element_bytes, chunk->size);
    }
}

static tow_status_t reduce_scatter_chunk(job_t *job, const chunk_t *chunk)
{
    const tow_xla_collective_t *c = job->collective;
    const gang_t *gang = job->gang;
    const gang_host_t *here = gang_here(gang);
    stage_t *stage = chunk->stage;
    lay_out_blocks(job, chunk);
    TOW_RETURN_IF_ERROR(reduce_here(job, stage->own, stage->in,
                                    gang->member_count * chunk->count));
    uint8_t *result = stage->in + here->first * chunk->size;
    for (size_t i = 0; i < gang->host_count; i++)
        stage->parcels[i] = (parcel_t){
            .send = stage->in + gang->hosts[i].first * chunk->size,
            .send_size = gang->hosts[i].count * chunk->size,
            .receive = result,
            .receive_size = here->count * chunk->size,
        };
    if (gang_leads(gang))
        TOW_RETURN_IF_ERROR(leaders_scatter(job, stage->parcels));
    TOW_RETURN_IF_ERROR(share(job, result, here->count * chunk->size, 0));
    memcpy((uint8_t *)c->receive[0] + chunk->at * c->element_bytes,
           result + gang->place * chunk->size, chunk->size);
    return TOW_OK;
}

static tow_status_t reduce_scatter(job_t *job)
{
    const size_t members = job->gang->member_count;
    const size_t limit = chunk_limit(job, members);
    const size_t part = limit * job->collective->element_bytes;
    stage_t stage = {0};
    TOW_RETURN_IF_ERROR(
        stage_open(job, &stage, members * part, members * part, 0));
    return for_chunks(job, &stage, limit, reduce_scatter_chunk);
}

/* -- All-to-all ------------------------------------------------------------ */

/* The blocks that our host sends, ordered by destination host: for each of its
 * members, a block of each of ours. */
static void sort_by_target(job_t *job, const chunk_t *chunk)
{
    const gang_t *gang = job->gang;
    const size_t locals = gang_here(gang)->count;
    uint8_t *to = chunk->stage->out;
    for (size_t k = 0; k < gang->member_count; k++)
        for (size_t i = 0; i < locals; i++, to += chunk->size)
            memcpy(to,
                   chunk->stage->in +
                       (i * gang->member_count + k) * chunk->size,
                   chunk->size);
}

/* The blocks that our host receives: host after host, a block of each of its
 * members for our first member, then for the second, and so on. */
static tow_status_t exchange_blocks(job_t *job, const chunk_t *chunk)
{
    const gang_t *gang = job->gang;
    const size_t locals = gang_here(gang)->count;
    stage_t *stage = chunk->stage;
    sort_by_target(job, chunk);
    for (size_t i = 0; i < gang->host_count; i++) {
        const gang_host_t *host = &gang->hosts[i];
        const size_t offset = host->first * locals * chunk->size;
        const size_t size = host->count * locals * chunk->size;
        stage->parcels[i] = (parcel_t){.send = stage->out + offset,
                                       .send_size = size,
                                       .receive = stage->in + offset,
                                       .receive_size = size};
    }
    const parcel_t *own = &stage->parcels[gang->here];
    memcpy(own->receive, own->send, own->send_size);
    return leaders_exchange(job, stage->parcels);
}

static tow_status_t all_to_all_chunk(job_t *job, const chunk_t *chunk)
{
    const tow_xla_collective_t *c = job->collective;
    const gang_t *gang = job->gang;
    const size_t locals = gang_here(gang)->count;
    stage_t *stage = chunk->stage;
    lay_out_blocks(job, chunk);
    TOW_RETURN_IF_ERROR(
        gather(job, stage->own, gang->member_count * chunk->size, stage->in));
    if (gang_leads(gang)) TOW_RETURN_IF_ERROR(exchange_blocks(job, chunk));
    TOW_RETURN_IF_ERROR(
        share(job, stage->in, locals * gang->member_count * chunk->size, 0));
    for (size_t i = 0; i < gang->host_count; i++) {
        const gang_host_t *host = &gang->hosts[i];
        const uint8_t *rows =
            stage->in +
            (host->first * locals + gang->place * host->count) * chunk->size;
        for (size_t k = 0; k < host->count; k++)
            memcpy((uint8_t *)c->receive[gang->order[host->first + k]] +
                       chunk->at * c->element_bytes,
                   rows + k * chunk->size, chunk->size);
    }
    return TOW_OK;
}

static tow_status_t all_to_all(job_t *job)
{
    const size_t members = job->gang->member_count;
    const size_t limit = chunk_limit(job, members * job->gang->local_max);
    const size_t part = limit * job->collective->element_bytes;
    const size_t whole = gang_here(job->gang)->count * members * part;
    stage_t stage = {0};
    TOW_RETURN_IF_ERROR(stage_open(job, &stage, members * part, whole, whole));
    return for_chunks(job, &stage, limit, all_to_all_chunk);
}

/* -- Permute --------------------------------------------------------------- */

/* The destinations of a member's block, and the source of the block it
 * receives. */
typedef struct routes {
    size_t row_bytes;
    uint8_t *rows;   /* of the host's members: source, then a bit a target */
    size_t *host_of; /* of each rank */
} routes_t;

static uint64_t route_source(const routes_t *routes, size_t place)
{
    uint64_t source;
    memcpy(&source, routes->rows + place * routes->row_bytes, sizeof(source));
    return source;
}

static bool route_targets(const routes_t *routes, size_t place, size_t rank)
{
    return (routes->rows[place * routes->row_bytes + 8 + rank / 8] >> rank % 8 &
            1) != 0;
}

static tow_status_t check_routes(const tow_xla_collective_t *c)
{
    if (c->source != SIZE_MAX && c->source >= c->member_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a permute from rank %zu of %zu members", c->source,
                         c->member_count);
    for (size_t i = 0; i < c->target_count; i++)
        if (c->targets[i] >= c->member_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "a permute to rank %zu of %zu members",
                             c->targets[i], c->member_count);
    return TOW_OK;
}

static void fill_route(const tow_xla_collective_t *c, uint8_t *row)
{
    const uint64_t source = c->source == SIZE_MAX ? UINT64_MAX : c->source;
    memcpy(row, &source, sizeof(source));
    for (size_t i = 0; i < c->target_count; i++)
        row[8 + c->targets[i] / 8] |= (uint8_t)(1 << c->targets[i] % 8);
}

static void routes_close(routes_t *routes)
{
    tow_free(routes->rows);
    tow_free(routes->host_of);
}

/* Each member knows its own; the host gathers them. */
static tow_status_t routes_open(job_t *job, routes_t *routes)
{
    const gang_t *gang = job->gang;
    TOW_RETURN_IF_ERROR(check_routes(job->collective));
    routes->row_bytes = 8 + (gang->member_count + 7) / 8;
    routes->rows = tow_calloc(gang_here(gang)->count, routes->row_bytes);
    routes->host_of = tow_calloc(gang->member_count, sizeof(size_t));
    uint8_t *own = tow_calloc(1, routes->row_bytes);
    tow_status_t status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (routes->rows != NULL && routes->host_of != NULL && own != NULL) {
        for (size_t i = 0; i < gang->host_count; i++)
            for (size_t k = 0; k < gang->hosts[i].count; k++)
                routes->host_of[gang->order[gang->hosts[i].first + k]] = i;
        fill_route(job->collective, own);
        status = gather(job, own, routes->row_bytes, routes->rows);
    }
    tow_free(own);
    if (status != TOW_OK) routes_close(routes);
    return status;
}

/* Blocks for members of another host, in the order of their receivers. */
static size_t pack_for(const job_t *job, const routes_t *routes,
                       const chunk_t *chunk, size_t host, uint8_t *to)
{
    const gang_t *gang = job->gang;
    const gang_host_t *there = &gang->hosts[host];
    size_t size = 0;
    for (size_t k = 0; k < there->count; k++)
        for (size_t i = 0; i < gang_here(gang)->count; i++) {
            if (!route_targets(routes, i, gang->order[there->first + k]))
                continue;
            memcpy(to + size, chunk->stage->in + i * chunk->size, chunk->size);
            size += chunk->size;
        }
    return size;
}

/* The place of a rank of our host. */
static size_t place_of(const gang_t *gang, size_t rank)
{
    size_t place = 0;
    while (gang->order[gang_here(gang)->first + place] != rank)
        place++;
    return place;
}

/* How many members of our host receive from `host`. */
static size_t count_from(const job_t *job, const routes_t *routes, size_t host,
                         size_t member_count)
{
    size_t count = 0;
    for (size_t i = 0; i < member_count; i++) {
        const uint64_t source = route_source(routes, i);
        if (source != UINT64_MAX && routes->host_of[source] == host) count++;
    }
    return count;
}

/* Delivers received and local blocks to their receivers. The blocks from a host
 * are in the order of their receivers. */
static void deliver(const job_t *job, const chunk_t *chunk)
{
    const gang_t *gang = job->gang;
    const routes_t *routes = chunk->stage->routes;
    uint8_t *to = chunk->stage->out;
    for (size_t i = 0; i < gang_here(gang)->count; i++, to += chunk->size) {
        const uint64_t source = route_source(routes, i);
        if (source == UINT64_MAX) continue;
        const size_t host = routes->host_of[source];
        const uint8_t *from =
            host == gang->here
                ? chunk->stage->in + place_of(gang, source) * chunk->size
                : chunk->stage->parcels[host].receive +
                      count_from(job, routes, host, i) * chunk->size;
        memcpy(to, from, chunk->size);
    }
}

static tow_status_t exchange_routed(job_t *job, const chunk_t *chunk)
{
    const gang_t *gang = job->gang;
    stage_t *stage = chunk->stage;
    const size_t locals = gang_here(gang)->count;
    uint8_t *pack = stage->own;
    uint8_t *land = stage->out + locals * chunk->size;
    for (size_t i = 0; i < gang->host_count; i++) {
        if (i == gang->here) continue;
        parcel_t *parcel = &stage->parcels[i];
        parcel->send = pack;
        parcel->send_size = pack_for(job, stage->routes, chunk, i, pack);
        parcel->receive = land;
        parcel->receive_size =
            count_from(job, stage->routes, i, locals) * chunk->size;
        pack += parcel->send_size;
        land += parcel->receive_size;
    }
    TOW_RETURN_IF_ERROR(leaders_exchange(job, stage->parcels));
    deliver(job, chunk);
    return TOW_OK;
}

static tow_status_t permute_chunk(job_t *job, const chunk_t *chunk)
{
    const tow_xla_collective_t *c = job->collective;
    const gang_t *gang = job->gang;
    stage_t *stage = chunk->stage;
    const size_t offset = chunk->at * c->element_bytes;
    TOW_RETURN_IF_ERROR(gather(job, (const uint8_t *)c->send[0] + offset,
                               chunk->size, stage->in));
    if (gang_leads(gang)) TOW_RETURN_IF_ERROR(exchange_routed(job, chunk));
    TOW_RETURN_IF_ERROR(
        share(job, stage->out, gang_here(gang)->count * chunk->size, 0));
    if (c->source != SIZE_MAX)
        memcpy((uint8_t *)c->receive[0] + offset,
               stage->out + gang->place * chunk->size, chunk->size);
    return TOW_OK;
}

static tow_status_t permute(job_t *job)
{
    const size_t locals = gang_here(job->gang)->count;
    const size_t members = job->gang->member_count;
    const size_t limit = chunk_limit(job, members);
    const size_t part = limit * job->collective->element_bytes;
    routes_t routes = {0};
    TOW_RETURN_IF_ERROR(routes_open(job, &routes));
    stage_t stage = {.routes = &routes};
    /* Each member receives at most one block; ours may go to all. */
    tow_status_t status = stage_open(job, &stage, members * part, locals * part,
                                     2 * locals * part);
    if (status == TOW_OK)
        status = for_chunks(job, &stage, limit, permute_chunk);
    routes_close(&routes);
    return status;
}

/* -- Entry point ----------------------------------------------------------- */

static tow_status_t check(const tow_xla_collective_t *c)
{
    if (c->member_count == 0 || c->member_count > TOW_XLA_GANG_SIZE_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "a collective of %zu members",
                         c->member_count);
    if (c->rank >= c->member_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "rank %zu of %zu members",
                         c->rank, c->member_count);
    if (c->kind == TOW_XLA_BROADCAST && c->root >= c->member_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a broadcast from rank %zu of %zu members", c->root,
                         c->member_count);
    if (c->kind != TOW_XLA_BARRIER &&
        (c->element_bytes == 0 || c->element_bytes > ELEMENT_BYTES_MAX))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "elements of %zu bytes",
                         c->element_bytes);
    if ((c->kind == TOW_XLA_ALL_REDUCE || c->kind == TOW_XLA_REDUCE_SCATTER) &&
        !tow_reduce_is_supported((tow_type_t)c->element_type,
                                 (tow_reduction_t)c->reduction))
        return TOW_ERROR(
            TOW_UNIMPLEMENTED, "reduction %d of element type %s (%d)",
            (int)c->reduction, tow_type_name((tow_type_t)c->element_type),
            c->element_type);
    return TOW_OK;
}

/* The leader uses the slots of its device at its peers. */
static tow_status_t check_device(const tow_multi_host_t *span,
                                 const tow_xla_collective_t *c)
{
    const int64_t device = c->members[c->rank];
    const int64_t first =
        (int64_t)span->options.process_id * TOW_XLA_PROCESS_STRIDE;
    if (device >= first && device - first < span->options.device_count)
        return TOW_OK;
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT,
        "device %" PRId64 " is not one of the %" PRIu32 " of process %" PRIu32,
        device, span->options.device_count, span->options.process_id);
}

static tow_status_t perform(job_t *job)
{
    switch (job->collective->kind) {
    case TOW_XLA_ALL_REDUCE: return all_reduce(job);
    case TOW_XLA_REDUCE_SCATTER: return reduce_scatter(job);
    case TOW_XLA_ALL_GATHER: return all_gather(job);
    case TOW_XLA_ALL_TO_ALL: return all_to_all(job);
    case TOW_XLA_PERMUTE: return permute(job);
    case TOW_XLA_BROADCAST: return broadcast(job);
    case TOW_XLA_BARRIER: return barrier(job);
    }
    return TOW_ERROR(TOW_UNIMPLEMENTED, "a collective of kind %d",
                     (int)job->collective->kind);
}

static tow_status_t perform_across(job_t *job)
{
    const tow_xla_collective_t *c = job->collective;
    TOW_RETURN_IF_ERROR(check_device(job->span, c));
    TOW_RETURN_IF_ERROR(
        tow_intra_host_check(job->span->options.host, c->run_id));
    if (c->kind != TOW_XLA_BARRIER && c->element_count == 0) return TOW_OK;
    if (gang_leads(job->gang))
        TOW_RETURN_IF_ERROR(
            errand_begin(job->span, c, job->gang, &job->errand));
    tow_status_t status = perform(job);
    if (job->errand != NULL) errand_leave(job->errand);
    return status;
}

/* A member that fails aborts the run: the others would wait for ever. */
static int refuse(tow_multi_host_t *span, uint64_t run_id,
                  tow_status_t take_status, char *error, size_t error_capacity)
{
    const tow_code_t code = tow_status_code(take_status);
    snprintf(error, error_capacity, "%s", tow_status_message(take_status));
    tow_multi_host_abort(span, run_id, code, tow_status_message(take_status));
    tow_status_ignore(take_status, "passed on as text");
    return (int)code;
}

int tow_multi_host_collective(void *context,
                              const tow_xla_collective_t *collective,
                              char *error, size_t error_capacity)
{
    tow_multi_host_t *span = context;
    job_t job = {.span = span, .collective = collective};
    tow_status_t status = check(collective);
    if (status == TOW_OK) status = gang_open(span, collective, &job.gang);
    if (TOW_UNLIKELY(status != TOW_OK))
        return refuse(span, collective->run_id, status, error, error_capacity);
    if (job.gang->host_count == 1) {
        gang_close(span, job.gang);
        return tow_intra_host_collective(span->options.host, collective, error,
                                         error_capacity);
    }
    status = perform_across(&job);
    gang_close(span, job.gang);
    if (TOW_LIKELY(status == TOW_OK)) return 0;
    return refuse(span, collective->run_id, status, error, error_capacity);
}
