/* Slabs of equal objects. Objects given back form a list through their own
 * memory; new ones are carved from the newest slab when the list is empty, so
 * taking never walks a slab. */
#include "base/pool.h"

#include <stdint.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/sanitizer_impl.h"
#include "base/tuning.h"

#define ALIGNMENT _Alignof(max_align_t)

struct tow_pool_slab {
    tow_pool_slab_t *older; /* owned */
    _Alignas(ALIGNMENT) char objects[];
};

typedef struct free_object {
    struct free_object *next;
} free_object_t;

void tow_pool_init(tow_pool_t *pool, size_t object_bytes,
                   size_t object_count_max)
{
    TOW_ASSERT(object_bytes > 0 && object_bytes <= SIZE_MAX / 2);
    size_t rounded = (object_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t per_slab = (TOW_POOL_SLAB_BYTES - sizeof(tow_pool_slab_t)) / rounded;
    if (per_slab == 0) per_slab = 1;
    if (object_count_max != 0 && per_slab > object_count_max)
        per_slab = object_count_max;
    *pool = (tow_pool_t){.object_bytes = rounded,
                         .objects_per_slab = per_slab,
                         .object_count_max = object_count_max};
}

/* O(1): called after every change. */
static inline void check(const tow_pool_t *pool)
{
    TOW_ASSERT(pool->taken_count <= pool->made_count);
    TOW_ASSERT(pool->object_count_max == 0 ||
               pool->made_count <= pool->object_count_max);
    TOW_ASSERT((pool->free_list == NULL) ==
               (pool->taken_count == pool->made_count));
}

static size_t slab_bytes(const tow_pool_t *pool)
{
    return sizeof(tow_pool_slab_t) +
           pool->objects_per_slab * pool->object_bytes;
}

void tow_pool_deinit(tow_pool_t *pool)
{
    while (pool->slabs != NULL) {
        tow_pool_slab_t *older = pool->slabs->older;
        unpoison(pool->slabs, slab_bytes(pool));
        tow_free(pool->slabs);
        pool->slabs = older;
    }
    pool->free_list = NULL;
    pool->taken_count = pool->made_count = 0;
}

static void *carve(tow_pool_t *pool)
{
    if (pool->made_count == pool->object_count_max &&
        pool->object_count_max != 0)
        return NULL;
    size_t index = pool->made_count % pool->objects_per_slab;
    if (index == 0) {
        tow_pool_slab_t *slab = tow_malloc(slab_bytes(pool));
        if (slab == NULL) return NULL;
        poison(slab->objects, slab_bytes(pool) - sizeof(*slab));
        slab->older = pool->slabs;
        pool->slabs = slab;
    }
    pool->made_count++;
    return pool->slabs->objects + index * pool->object_bytes;
}

void *tow_pool_take(tow_pool_t *pool)
{
    void *object = pool->free_list;
    if (TOW_LIKELY(object != NULL)) {
        unpoison(object, pool->object_bytes);
        pool->free_list = ((free_object_t *)object)->next;
    } else {
        object = carve(pool);
        if (object == NULL) return NULL;
        unpoison(object, pool->object_bytes);
    }
    pool->taken_count++;
    check(pool);
    return object;
}

void tow_pool_give(tow_pool_t *pool, void *object)
{
    TOW_ASSERT(object != NULL);
    TOW_ASSERT(pool->taken_count > 0);
    free_object_t *freed =
        object; /* A double release is reported here by ASan. */
    freed->next = pool->free_list;
    pool->free_list = freed;
    pool->taken_count--;
    check(pool);
    poison(object, pool->object_bytes);
}
