#include "store/shelf.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/pool.h"

struct tow_shelf {
    tow_map_t objects; /* by key; from the pool */
    tow_pool_t pool;
    size_t shard_count_max;
    size_t object_count_max;
    tow_shelf_totals_t totals;
};

tow_status_t tow_shelf_create(const tow_shelf_options_t *options,
                              tow_shelf_t **out_shelf)
{
    TOW_ASSERT(options->shard_count_max > 0);
    *out_shelf = NULL;
    tow_shelf_t *shelf = tow_calloc(1, sizeof(*shelf));
    if (shelf == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    shelf->shard_count_max = options->shard_count_max;
    shelf->object_count_max = options->object_count_max != 0
                                  ? options->object_count_max
                                  : TOW_SHELF_OBJECT_COUNT_MAX;
    tow_pool_init(&shelf->pool,
                  sizeof(tow_shelf_object_t) +
                      options->shard_count_max * sizeof(tow_buffer_t *),
                  shelf->object_count_max);
    *out_shelf = shelf;
    return TOW_OK;
}

static void free_tables(tow_shelf_t *shelf)
{
    tow_map_deinit(&shelf->objects);
    tow_pool_deinit(&shelf->pool);
    tow_free(shelf);
}

void tow_shelf_destroy(tow_shelf_t *shelf)
{
    if (shelf == NULL) return;
    tow_shelf_clear(shelf);
    free_tables(shelf);
}

void tow_shelf_forget(tow_shelf_t *shelf)
{
    if (shelf == NULL) return;
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&shelf->objects, &cursor, &key, &value))
        tow_status_release(((tow_shelf_object_t *)value)->error);
    free_tables(shelf);
}

/* -- Coming ----------------------------------------------------------------- */

static tow_status_t TOW_COLD refuse(const tow_shelf_t *shelf, uint64_t key)
{
    if (tow_map_find(&shelf->objects, key) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "object %" PRIu64 " is on the shelf already", key);
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "no place for object %" PRIu64 ": %zu are on the shelf, "
                     "which has %zu places",
                     key, tow_map_count(&shelf->objects),
                     shelf->object_count_max);
}

/* A place without shards. */
static tow_status_t add(tow_shelf_t *shelf, uint64_t key,
                        tow_shelf_object_t **out_object)
{
    if (TOW_UNLIKELY(tow_map_find(&shelf->objects, key) != NULL))
        return refuse(shelf, key);
    tow_shelf_object_t *object = tow_pool_take(&shelf->pool);
    if (TOW_UNLIKELY(object == NULL)) return refuse(shelf, key);
    if (TOW_UNLIKELY(!tow_map_put(&shelf->objects, key, object))) {
        tow_pool_give(&shelf->pool, object);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    object->key = key;
    object->bytes = 0;
    object->shard_count = 0;
    object->error = TOW_OK;
    shelf->totals.object_count++;
    *out_object = object;
    return TOW_OK;
}

tow_status_t tow_shelf_put(tow_shelf_t *shelf, uint64_t key,
                           const tow_shard_list_t *take_shards)
{
    TOW_ASSERT(take_shards->count > 0 &&
               take_shards->count <= shelf->shard_count_max);
    tow_shelf_object_t *object;
    TOW_RETURN_IF_ERROR(add(shelf, key, &object));
    for (size_t i = 0; i < take_shards->count; i++) {
        tow_buffer_t *shard = take_shards->first[i * take_shards->stride];
        object->shards[i] = shard;
        shard->shelf_count_++;
        object->bytes += shard->bytes;
    }
    object->shard_count = (uint32_t)take_shards->count;
    shelf->totals.shard_count += object->shard_count;
    shelf->totals.bytes += object->bytes;
    return TOW_OK;
}

tow_status_t tow_shelf_put_failed(tow_shelf_t *shelf, uint64_t key,
                                  tow_status_t cause)
{
    tow_shelf_object_t *object;
    TOW_RETURN_IF_ERROR(add(shelf, key, &object));
    tow_shelf_fail(shelf, object, cause);
    return TOW_OK;
}

bool tow_shelf_is_shared(const tow_shelf_object_t *object)
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

tow_shelf_object_t *tow_shelf_find(const tow_shelf_t *shelf, uint64_t key)
{
    return tow_map_find(&shelf->objects, key);
}

/* -- Going ------------------------------------------------------------------ */

static void drop_shards(tow_shelf_t *shelf, tow_shelf_object_t *object)
{
    TOW_ASSERT(shelf->totals.bytes >= object->bytes &&
               shelf->totals.shard_count >= object->shard_count);
    shelf->totals.bytes -= object->bytes;
    shelf->totals.shard_count -= object->shard_count;
    for (size_t i = 0; i < object->shard_count; i++) {
        TOW_ASSERT(object->shards[i]->shelf_count_ > 0);
        object->shards[i]->shelf_count_--;
        tow_buffer_release(object->shards[i]);
    }
    object->bytes = 0;
    object->shard_count = 0;
}

void tow_shelf_fail(tow_shelf_t *shelf, tow_shelf_object_t *object,
                    tow_status_t cause)
{
    TOW_ASSERT(cause != TOW_OK);
    if (object->error != TOW_OK) return;
    drop_shards(shelf, object);
    object->error = tow_status_retain(cause);
    shelf->totals.failed_count++;
}

static void drop(tow_shelf_t *shelf, tow_shelf_object_t *object)
{
    drop_shards(shelf, object);
    if (object->error != TOW_OK) shelf->totals.failed_count--;
    tow_status_release(object->error);
    shelf->totals.object_count--;
    tow_pool_give(&shelf->pool, object);
}

bool tow_shelf_remove(tow_shelf_t *shelf, uint64_t key)
{
    tow_shelf_object_t *object = tow_map_remove(&shelf->objects, key);
    if (object == NULL) return false;
    drop(shelf, object);
    return true;
}

void tow_shelf_clear(tow_shelf_t *shelf)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&shelf->objects, &cursor, &key, &value)) {
        tow_map_remove(&shelf->objects, key);
        drop(shelf, value);
    }
    TOW_ASSERT(shelf->totals.object_count == 0 && shelf->totals.bytes == 0);
}

tow_shelf_totals_t tow_shelf_totals(const tow_shelf_t *shelf)
{
    return shelf->totals;
}
