/* Pools: objects of one size, taken and given back in O(1) without the heap.
 * A pool grows by whole slabs up to its limit and shrinks only at deinit. */
#ifndef TOW_BASE_POOL_H_
#define TOW_BASE_POOL_H_

#include <stddef.h>

#include "base/macros.h"

typedef struct tow_pool_slab tow_pool_slab_t;

typedef struct tow_pool {
    size_t object_bytes;
    size_t objects_per_slab;
    size_t object_count_max; /* 0: no limit */
    size_t taken_count;
    size_t made_count;
    void *free_list;
    tow_pool_slab_t *slabs; /* owned */
} tow_pool_t;

void tow_pool_init(tow_pool_t *pool, size_t object_bytes,
                   size_t object_count_max);
/* Frees all slabs, objects that are still taken included. */
void tow_pool_deinit(tow_pool_t *pool);

/* Not zeroed. NULL when memory or the limit is exhausted. */
void *tow_pool_take(tow_pool_t *pool);
void tow_pool_give(tow_pool_t *pool, void *object);

#endif /* TOW_BASE_POOL_H_ */
