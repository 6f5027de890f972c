#include "store/shard_store.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/invariant.h"
#include "base/map.h"
#include "base/pool.h"

struct tow_shard_store {
    tow_map_t objects; /* by key; from the pool */
    tow_pool_t pool;
    size_t shard_count_max;
    size_t object_count_max;
    tow_shard_store_totals_t totals;
};

tow_status_t tow_shard_store_create(const tow_shard_store_options_t *options,
                                    tow_shard_store_t **out_shelf)
{
    TOW_ASSERT(options->shard_count_max > 0);
    *out_shelf = NULL;
    tow_shard_store_t *shard_store = tow_calloc(1, sizeof(*shard_store));
    if (shard_store == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    shard_store->shard_count_max = options->shard_count_max;
    shard_store->object_count_max = options->object_count_max != 0
                                        ? options->object_count_max
                                        : TOW_SHARD_STORE_OBJECT_COUNT_MAX;
    tow_pool_init(&shard_store->pool,
                  sizeof(tow_shard_store_object_t) +
                      options->shard_count_max * sizeof(tow_buffer_t *),
                  shard_store->object_count_max);
    *out_shelf = shard_store;
    return TOW_OK;
}

static void free_tables(tow_shard_store_t *shard_store)
{
    tow_map_deinit(&shard_store->objects);
    tow_pool_deinit(&shard_store->pool);
    tow_free(shard_store);
}

void tow_shard_store_destroy(tow_shard_store_t *shard_store)
{
    if (shard_store == NULL) return;
    tow_shard_store_clear(shard_store);
    free_tables(shard_store);
}

void tow_shard_store_discard(tow_shard_store_t *shard_store)
{
    if (shard_store == NULL) return;
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&shard_store->objects, &cursor, &key, &value))
        tow_status_release(((tow_shard_store_object_t *)value)->error);
    free_tables(shard_store);
}

/* -- Adding ---------------------------------------------------------------- */

static tow_status_t TOW_COLD refuse(const tow_shard_store_t *shard_store,
                                    uint64_t key)
{
    if (tow_map_find(&shard_store->objects, key) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "object %" PRIu64 " exists on this worker already",
                         key);
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "object %" PRIu64 ": the worker has %zu objects, and its "
                     "limit is %zu; release some",
                     key, tow_map_count(&shard_store->objects),
                     shard_store->object_count_max);
}

/* An object without shards. */
static tow_status_t add(tow_shard_store_t *shard_store, uint64_t key,
                        tow_shard_store_object_t **out_object)
{
    if (TOW_UNLIKELY(tow_map_find(&shard_store->objects, key) != NULL))
        return refuse(shard_store, key);
    tow_shard_store_object_t *object = tow_pool_take(&shard_store->pool);
    if (TOW_UNLIKELY(object == NULL)) return refuse(shard_store, key);
    if (TOW_UNLIKELY(!tow_map_put(&shard_store->objects, key, object))) {
        tow_pool_give(&shard_store->pool, object);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    object->key = key;
    object->bytes = 0;
    object->shard_count = 0;
    object->error = TOW_OK;
    shard_store->totals.object_count++;
    *out_object = object;
    return TOW_OK;
}

tow_status_t tow_shard_store_put(tow_shard_store_t *shard_store, uint64_t key,
                                 const tow_shard_list_t *take_shards)
{
    TOW_ASSERT(take_shards->count > 0 &&
               take_shards->count <= shard_store->shard_count_max);
    tow_shard_store_object_t *object;
    TOW_RETURN_IF_ERROR(add(shard_store, key, &object));
    for (size_t i = 0; i < take_shards->count; i++) {
        tow_buffer_t *shard = take_shards->first[i * take_shards->stride];
        object->shards[i] = shard;
        shard->shelf_count_++;
        object->bytes += shard->bytes;
    }
    object->shard_count = (uint32_t)take_shards->count;
    shard_store->totals.shard_count += object->shard_count;
    shard_store->totals.bytes += object->bytes;
    return TOW_OK;
}

tow_status_t tow_shard_store_put_failed(tow_shard_store_t *shard_store,
                                        uint64_t key, tow_status_t cause)
{
    tow_shard_store_object_t *object;
    TOW_RETURN_IF_ERROR(add(shard_store, key, &object));
    tow_shard_store_fail(shard_store, object, cause);
    return TOW_OK;
}

bool tow_shard_store_is_shared(const tow_shard_store_object_t *object)
{
    for (uint32_t i = 0; i < object->shard_count; i++)
        if (object->shards[i]->shelf_count_ > 1) return true;
    return false;
}

void tow_shard_share(tow_buffer_t *shard)
{
    shard->shelf_count_++;
}

void tow_shard_unshare(tow_buffer_t *shard)
{
    TOW_ASSERT(shard->shelf_count_ > 0);
    shard->shelf_count_--;
}

tow_shard_store_object_t *tow_shard_store_find(
    const tow_shard_store_t *shard_store, uint64_t key)
{
    return tow_map_find(&shard_store->objects, key);
}

/* -- Removing -------------------------------------------------------------- */

static void drop_shards(tow_shard_store_t *shard_store,
                        tow_shard_store_object_t *object)
{
    TOW_ASSERT(shard_store->totals.bytes >= object->bytes &&
               shard_store->totals.shard_count >= object->shard_count);
    shard_store->totals.bytes -= object->bytes;
    shard_store->totals.shard_count -= object->shard_count;
    for (size_t i = 0; i < object->shard_count; i++) {
        TOW_ASSERT(object->shards[i]->shelf_count_ > 0);
        object->shards[i]->shelf_count_--;
        tow_buffer_release(object->shards[i]);
    }
    object->bytes = 0;
    object->shard_count = 0;
}

void tow_shard_store_fail(tow_shard_store_t *shard_store,
                          tow_shard_store_object_t *object, tow_status_t cause)
{
    TOW_ASSERT(cause != TOW_OK);
    if (object->error != TOW_OK) return;
    drop_shards(shard_store, object);
    object->error = tow_status_retain(cause);
    shard_store->totals.failed_count++;
}

static void drop(tow_shard_store_t *shard_store,
                 tow_shard_store_object_t *object)
{
    drop_shards(shard_store, object);
    if (object->error != TOW_OK) shard_store->totals.failed_count--;
    tow_status_release(object->error);
    shard_store->totals.object_count--;
    tow_pool_give(&shard_store->pool, object);
}

bool tow_shard_store_remove(tow_shard_store_t *shard_store, uint64_t key)
{
    tow_shard_store_object_t *object =
        tow_map_remove(&shard_store->objects, key);
    if (object == NULL) return false;
    drop(shard_store, object);
    return true;
}

void tow_shard_store_clear(tow_shard_store_t *shard_store)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&shard_store->objects, &cursor, &key, &value)) {
        tow_map_remove(&shard_store->objects, key);
        drop(shard_store, value);
    }
    TOW_ASSERT(shard_store->totals.object_count == 0 &&
               shard_store->totals.bytes == 0);
}

tow_shard_store_totals_t tow_shard_store_totals(
    const tow_shard_store_t *shard_store)
{
    return shard_store->totals;
}

tow_status_t tow_shard_store_check(const tow_shard_store_t *shard_store)
{
    tow_shard_store_totals_t totals = {0};
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&shard_store->objects, &cursor, &key, &value)) {
        const tow_shard_store_object_t *object = value;
        TOW_INVARIANT(object->key == key);
        TOW_INVARIANT((object->error != TOW_OK) == (object->shard_count == 0));
        TOW_INVARIANT(object->shard_count <= shard_store->shard_count_max);
        for (uint32_t i = 0; i < object->shard_count; i++)
            TOW_INVARIANT(object->shards[i]->shelf_count_ > 0);
        totals.object_count++;
        totals.failed_count += object->error != TOW_OK;
        totals.shard_count += object->shard_count;
        totals.bytes += object->bytes;
    }
    TOW_INVARIANT(totals.object_count == shard_store->totals.object_count);
    TOW_INVARIANT(totals.failed_count == shard_store->totals.failed_count);
    TOW_INVARIANT(totals.shard_count == shard_store->totals.shard_count);
    TOW_INVARIANT(totals.bytes == shard_store->totals.bytes);
    TOW_INVARIANT(totals.object_count == shard_store->pool.taken_count);
    return TOW_OK;
}
