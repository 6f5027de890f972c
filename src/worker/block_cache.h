/* A cache of memory blocks for large shards. A page that was never touched
 * costs as much as the bytes written to it: a fault, and clearing it. So large
 * blocks consist of huge pages, and freed blocks are cached for the next shard,
 * as long as shards are created and freed.
 *
 * With other workers on this host, blocks are memory that can be mapped there
 * (base/block.h), as long as there is any, so that a shard is shared without a
 * copy. A block that another process may still have mapped is not cached. */
#ifndef TOW_WORKER_BLOCK_CACHE_H_
#define TOW_WORKER_BLOCK_CACHE_H_

#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "env/env.h"

typedef struct tow_block_cache {
    tow_env_t *env;    /* lent */
    tow_list_t blocks; /* free blocks, linked in themselves; last freed last */
    uint64_t bytes;    /* of the free blocks */
    bool shares;       /* new blocks may be shared with other processes */
    tow_timer_t timer; /* frees them */
} tow_block_cache_t;

void tow_block_cache_init(tow_block_cache_t *block_cache, tow_env_t *env);
/* From now on there are other processes to share blocks with. */
void tow_block_cache_share(tow_block_cache_t *block_cache);
/* Frees the cached blocks; blocks in use may be passed to tow_free. */
void tow_block_cache_deinit(tow_block_cache_t *block_cache);
/* The same after a simulated crash, at any moment: makes no calls. */
void tow_block_cache_discard(tow_block_cache_t *block_cache);
/* NULL when memory is exhausted. Not cleared. Aligned to
 * TOW_WORKER_UPLOAD_ALIGNMENT at least. */
void *tow_block_cache_alloc(tow_block_cache_t *block_cache, size_t size);
/* `size` as it was requested. NULL is harmless. */
void tow_block_cache_free(tow_block_cache_t *block_cache, void *bytes,
                          size_t size);
/* Verifies the invariants. O(blocks): for tests and simulation. */
tow_status_t tow_block_cache_check(const tow_block_cache_t *block_cache)
    TOW_MUST_USE;

#endif /* TOW_WORKER_BLOCK_CACHE_H_ */
