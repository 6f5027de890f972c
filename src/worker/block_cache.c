#include "worker/block_cache.h"

#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/block.h"
#include "base/invariant.h"
#include "worker/tuning.h"

/* In the free block itself. */
typedef struct block {
    tow_list_t list;
    size_t size;
} block_t;

static bool is_large(size_t size)
{
    return size >= TOW_WORKER_BLOCK_CACHE_BLOCK_BYTES_MIN &&
           size <= SIZE_MAX / 2;
}

/* So that similar sizes share blocks. */
static size_t rounded(size_t size)
{
    const size_t step = TOW_WORKER_BLOCK_CACHE_STEP_BYTES;
    return (size + step - 1) / step * step;
}

static bool is_shown(const void *bytes)
{
    tow_block_place_t place;
    return tow_block_find(bytes, 1, &place);
}

static void free_bytes(void *bytes, size_t size)
{
    if (is_large(size) && is_shown(bytes))
        tow_block_free(bytes);
    else
        tow_free(bytes);
}

void tow_block_cache_discard(tow_block_cache_t *block_cache)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&block_cache->blocks)) != NULL) {
        block_t *block = TOW_CONTAINER_OF(item, block_t, list);
        free_bytes(block, block->size);
    }
    block_cache->bytes = 0;
}

/* Cached blocks cannot be shared. */
void tow_block_cache_share(tow_block_cache_t *block_cache)
{
    if (block_cache->shares || !tow_env_can_share(block_cache->env)) return;
    block_cache->shares = true;
    tow_block_cache_discard(block_cache);
}

static void expire(tow_timer_t *timer)
{
    tow_block_cache_discard(TOW_CONTAINER_OF(timer, tow_block_cache_t, timer));
}

void tow_block_cache_init(tow_block_cache_t *block_cache, tow_env_t *env)
{
    *block_cache = (tow_block_cache_t){.env = env, .timer = {.fire = expire}};
    tow_list_init(&block_cache->blocks);
}

void tow_block_cache_deinit(tow_block_cache_t *block_cache)
{
    tow_env_timer_stop(block_cache->env, &block_cache->timer);
    tow_block_cache_discard(block_cache);
}

/* A much larger block is left for a larger shard. */
static void *find(tow_block_cache_t *block_cache, size_t size)
{
    tow_list_t *head = &block_cache->blocks;
    for (tow_list_t *at = head->previous; at != head; at = at->previous) {
        block_t *block = TOW_CONTAINER_OF(at, block_t, list);
        if (block->size != size) continue;
        tow_list_remove(at);
        block_cache->bytes -= size;
        return block;
    }
    return NULL;
}

void *tow_block_cache_alloc(tow_block_cache_t *block_cache, size_t size)
{
    if (!is_large(size))
        return tow_aligned_alloc(TOW_WORKER_UPLOAD_ALIGNMENT, size);
    const size_t whole = rounded(size);
    void *bytes = find(block_cache, whole);
    if (bytes != NULL) return bytes;
    if (block_cache->shares) bytes = tow_block_alloc(whole);
    if (bytes != NULL) return bytes;
    bytes = tow_aligned_alloc(TOW_WORKER_HUGE_PAGE_BYTES, whole);
    /* Without huge pages it is only slower. */
    if (bytes != NULL) (void)!madvise(bytes, whole, MADV_HUGEPAGE);
    return bytes;
}

void tow_block_cache_free(tow_block_cache_t *block_cache, void *bytes,
                          size_t size)
{
    if (bytes == NULL) return;
    const size_t whole = is_large(size) ? rounded(size) : 0;
    if (whole == 0 || whole > TOW_WORKER_BLOCK_CACHE_BYTES_MAX ||
        tow_block_is_quarantined(bytes)) {
        free_bytes(bytes, size);
        return;
    }
    while (block_cache->bytes > TOW_WORKER_BLOCK_CACHE_BYTES_MAX - whole) {
        block_t *oldest =
            TOW_CONTAINER_OF(block_cache->blocks.next, block_t, list);
        tow_list_remove(&oldest->list);
        block_cache->bytes -= oldest->size;
        free_bytes(oldest, oldest->size);
    }
    block_t *block = bytes;
    *block = (block_t){.size = whole};
    tow_list_init(&block->list);
    tow_list_append(&block_cache->blocks, &block->list);
    block_cache->bytes += whole;
    tow_env_timer_start(block_cache->env, &block_cache->timer,
                        tow_env_now_ns(block_cache->env) +
                            TOW_WORKER_BLOCK_CACHE_NS);
}

tow_status_t tow_block_cache_check(const tow_block_cache_t *block_cache)
{
    uint64_t bytes = 0;
    const tow_list_t *head = &block_cache->blocks;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const block_t *block = TOW_CONTAINER_OF(at, block_t, list);
        TOW_INVARIANT(is_large(block->size));
        TOW_INVARIANT(block->size == rounded(block->size));
        bytes += block->size;
    }
    TOW_INVARIANT(bytes == block_cache->bytes);
    TOW_INVARIANT(bytes <= TOW_WORKER_BLOCK_CACHE_BYTES_MAX);
    TOW_INVARIANT(bytes == 0 || tow_timer_is_armed(&block_cache->timer));
    return TOW_OK;
}
