#include "simcluster/content_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/tuning.h"
#include "device/sim/value.h"

struct sim_bytes {
    uint32_t reference_count;
    uint8_t bytes[];
};

/* -- Shards ---------------------------------------------------------------- */

sim_shard_t sim_shard_of_value(uint64_t value, uint32_t size)
{
    return (sim_shard_t){.value = tow_sim_value_fit(value, size), .size = size};
}

/* Large arrays keep only the value that they show. */
sim_shard_t sim_shard_of_bytes(const void *bytes, uint32_t size)
{
    sim_shard_t shard = {.size = size};
    if (size == 0) return shard;
    shard.value = tow_sim_value_read(bytes, size);
    if (size > TOW_SIM_CONTENT_BYTES_MAX) return shard;
    shard.bytes = tow_malloc(sizeof(*shard.bytes) + size);
    TOW_ASSERT(shard.bytes != NULL);
    shard.bytes->reference_count = 1;
    memcpy(shard.bytes->bytes, bytes, size);
    return shard;
}

sim_shard_t sim_shard_retain(const sim_shard_t *shard)
{
    if (shard->bytes != NULL) shard->bytes->reference_count++;
    return *shard;
}

void sim_shard_release(sim_shard_t *shard)
{
    if (shard->bytes != NULL && --shard->bytes->reference_count == 0)
        tow_free(shard->bytes);
    shard->bytes = NULL;
}

void sim_shard_show(const sim_shard_t *shard, uint8_t *bytes)
{
    if (shard->bytes != NULL)
        memcpy(bytes, shard->bytes->bytes, shard->size);
    else
        tow_sim_value_show(shard->value, bytes, shard->size);
}

/* The value is a hash of bytes that show none. */
bool sim_shard_equal(const sim_shard_t *a, const sim_shard_t *b)
{
    return a->size == b->size && a->value == b->value;
}

/* -- Contents -------------------------------------------------------------- */

sim_contents_t *sim_contents_create(uint32_t device_count,
                                    uint32_t distinct_count)
{
    TOW_ASSERT(distinct_count == 1 || distinct_count == device_count);
    sim_contents_t *contents = tow_calloc(
        1, sizeof(*contents) + distinct_count * sizeof(contents->shards[0]));
    TOW_ASSERT(contents != NULL);
    contents->reference_count = 1;
    contents->device_count = device_count;
    contents->distinct_count = distinct_count;
    return contents;
}

sim_contents_t *sim_contents_retain(sim_contents_t *contents)
{
    contents->reference_count++;
    return contents;
}

void sim_contents_release(sim_contents_t *contents)
{
    if (contents == NULL || --contents->reference_count > 0) return;
    for (uint32_t i = 0; i < contents->distinct_count; i++)
        sim_shard_release(&contents->shards[i]);
    tow_free(contents);
}

const sim_shard_t *sim_contents_shard(const sim_contents_t *contents,
                                      size_t device)
{
    TOW_ASSERT(device < contents->device_count);
    return &contents->shards[contents->distinct_count == 1 ? 0 : device];
}

sim_contents_t *sim_contents_upload(const uint8_t *bytes, uint32_t size,
                                    uint32_t part_count, uint32_t device_count)
{
    const uint32_t distinct_count = part_count == 1 ? 1 : device_count;
    sim_contents_t *contents =
        sim_contents_create(device_count, distinct_count);
    const uint32_t replicas = distinct_count / part_count;
    for (uint32_t i = 0; i < distinct_count; i++)
        contents->shards[i] =
            sim_shard_of_bytes(bytes + (size_t)(i / replicas) * size, size);
    return contents;
}

/* -- Resharding ------------------------------------------------------------ */

/* Of rank 1. */
static uint32_t part_of(const tow_sharding_t *sharding, size_t device)
{
    uint32_t index[TOW_RANK_MAX];
    tow_sharding_part_of(sharding, device, index);
    return index[0];
}

/* The shard of each part; lent. */
static const sim_shard_t **find_parts(const sim_contents_t *contents,
                                      const tow_sharding_t *sharding)
{
    const sim_shard_t **parts =
        tow_calloc(sharding->parts[0], sizeof(const sim_shard_t *));
    TOW_ASSERT(parts != NULL);
    for (size_t i = 0; i < contents->device_count; i++) {
        const sim_shard_t *shard = sim_contents_shard(contents, i);
        const sim_shard_t **part = &parts[part_of(sharding, i)];
        if (*part == NULL) *part = shard;
        TOW_ASSERT(sim_shard_equal(*part, shard));
    }
    return parts;
}

static uint8_t *join_parts(const sim_shard_t *const *parts, uint32_t count)
{
    const size_t size = parts[0]->size;
    uint8_t *whole = tow_malloc(size * count);
    TOW_ASSERT(whole != NULL);
    for (uint32_t i = 0; i < count; i++)
        sim_shard_show(parts[i], whole + i * size);
    return whole;
}

static sim_contents_t *place(const sim_shard_t *parts, const tow_sharding_t *to,
                             uint32_t device_count)
{
    const uint32_t distinct_count = to->parts[0] == 1 ? 1 : device_count;
    sim_contents_t *contents =
        sim_contents_create(device_count, distinct_count);
    for (uint32_t i = 0; i < distinct_count; i++)
        contents->shards[i] = sim_shard_retain(&parts[part_of(to, i)]);
    return contents;
}

/* Cuts the joined array anew. */
static void cut(const sim_shard_t *const *from, uint32_t from_count,
                sim_shard_t *parts, uint32_t count)
{
    const uint32_t size =
        (uint32_t)((uint64_t)from[0]->size * from_count / count);
    uint8_t *whole = join_parts(from, from_count);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = sim_shard_of_bytes(whole + (size_t)i * size, size);
    tow_free(whole);
}

sim_contents_t *sim_contents_reshard(const sim_contents_t *contents,
                                     const tow_sharding_t *from,
                                     const tow_sharding_t *to,
                                     uint32_t device_count)
{
    const sim_shard_t **sources = find_parts(contents, from);
    const uint32_t count = to->parts[0];
    sim_shard_t *parts = tow_calloc(count, sizeof(*parts));
    TOW_ASSERT(parts != NULL);
    if (count == from->parts[0])
        for (uint32_t i = 0; i < count; i++)
            parts[i] = sim_shard_retain(sources[i]);
    else
        cut(sources, from->parts[0], parts, count);
    sim_contents_t *result = place(parts, to, device_count);
    for (uint32_t i = 0; i < count; i++)
        sim_shard_release(&parts[i]);
    tow_free(parts);
    tow_free(sources);
    return result;
}

/* -- Collectives ----------------------------------------------------------- */

static uint8_t reduce(uint8_t a, uint8_t b, tow_reduction_t reduction)
{
    switch (reduction) {
    case TOW_REDUCE_SUM: return (uint8_t)(a + b);
    case TOW_REDUCE_PRODUCT: return (uint8_t)(a * b);
    case TOW_REDUCE_MIN: return a < b ? a : b;
    case TOW_REDUCE_MAX: return a > b ? a : b;
    }
    TOW_UNREACHABLE();
}

/* The reduction over one group. */
static sim_shard_t reduce_group(const sim_contents_t *contents,
                                const tow_collective_t *collective,
                                size_t group)
{
    const uint32_t size = contents->shards[0].size;
    uint8_t *sum = tow_malloc(size), *next = tow_malloc(size);
    TOW_ASSERT(sum != NULL && next != NULL);
    bool is_first = true;
    for (size_t i = 0; i < contents->device_count; i++) {
        if (tow_collective_group_of(collective, i) != group) continue;
        sim_shard_show(sim_contents_shard(contents, i), is_first ? sum : next);
        for (uint32_t k = 0; k < size && !is_first; k++)
            sum[k] = reduce(sum[k], next[k], collective->reduction);
        is_first = false;
    }
    const sim_shard_t shard = sim_shard_of_bytes(sum, size);
    tow_free(sum);
    tow_free(next);
    return shard;
}

sim_contents_t *sim_contents_all_reduce(const sim_contents_t *contents,
                                        const tow_collective_t *collective)
{
    const size_t group_count = tow_collective_group_count(collective);
    const uint32_t distinct_count =
        group_count == 1 ? 1 : contents->device_count;
    sim_shard_t *groups = tow_calloc(group_count, sizeof(*groups));
    TOW_ASSERT(groups != NULL);
    for (size_t i = 0; i < group_count; i++)
        groups[i] = reduce_group(contents, collective, i);
    sim_contents_t *result =
        sim_contents_create(contents->device_count, distinct_count);
    for (uint32_t i = 0; i < distinct_count; i++)
        result->shards[i] =
            sim_shard_retain(&groups[tow_collective_group_of(collective, i)]);
    for (size_t i = 0; i < group_count; i++)
        sim_shard_release(&groups[i]);
    tow_free(groups);
    return result;
}
