#include "worker/stash.h"

#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/block.h"
#include "worker/tuning.h"

/* Lies in the block while it is free. */
typedef struct block {
    tow_list_t list;
    size_t size;
} block_t;

static bool is_large(size_t size)
{
    return size >= TOW_WORKER_STASH_BLOCK_BYTES_MIN && size <= SIZE_MAX / 2;
}

/* So that sizes that differ little share blocks. */
static size_t rounded(size_t size)
{
    const size_t step = TOW_WORKER_STASH_STEP_BYTES;
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
        tow_block_give(bytes);
    else
        tow_free(bytes);
}

void tow_stash_forget(tow_stash_t *stash)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&stash->blocks)) != NULL) {
        block_t *block = TOW_CONTAINER_OF(item, block_t, list);
        free_bytes(block, block->size);
    }
    stash->bytes = 0;
}

/* Those that are kept cannot be shown. */
void tow_stash_share(tow_stash_t *stash)
{
    if (stash->shares || !tow_env_can_lend(stash->env)) return;
    stash->shares = true;
    tow_stash_forget(stash);
}

static void expire(tow_timer_t *timer)
{
    tow_stash_forget(TOW_CONTAINER_OF(timer, tow_stash_t, timer));
}

void tow_stash_init(tow_stash_t *stash, tow_env_t *env)
{
    *stash = (tow_stash_t){.env = env, .timer = {.fire = expire}};
    tow_list_init(&stash->blocks);
}

void tow_stash_deinit(tow_stash_t *stash)
{
    tow_env_timer_stop(stash->env, &stash->timer);
    tow_stash_forget(stash);
}

/* One that is much larger would be lost for whoever needs it. */
static void *find(tow_stash_t *stash, size_t size)
{
    tow_list_t *head = &stash->blocks;
    for (tow_list_t *at = head->previous; at != head; at = at->previous) {
        block_t *block = TOW_CONTAINER_OF(at, block_t, list);
        if (block->size != size) continue;
        tow_list_remove(at);
        stash->bytes -= size;
        return block;
    }
    return NULL;
}

void *tow_stash_take(tow_stash_t *stash, size_t size)
{
    if (!is_large(size))
        return tow_aligned_alloc(TOW_WORKER_UPLOAD_ALIGNMENT, size);
    const size_t whole = rounded(size);
    void *bytes = find(stash, whole);
    if (bytes != NULL) return bytes;
    if (stash->shares) bytes = tow_block_take(whole);
    if (bytes != NULL) return bytes;
    bytes = tow_aligned_alloc(TOW_WORKER_HUGE_PAGE_BYTES, whole);
    /* Where there are no huge pages it is only slower. */
    if (bytes != NULL) (void)!madvise(bytes, whole, MADV_HUGEPAGE);
    return bytes;
}

void tow_stash_give(tow_stash_t *stash, void *bytes, size_t size)
{
    if (bytes == NULL) return;
    const size_t whole = is_large(size) ? rounded(size) : 0;
    if (whole == 0 || whole > TOW_WORKER_STASH_BYTES_MAX ||
        tow_block_is_stranded(bytes)) {
        free_bytes(bytes, size);
        return;
    }
    while (stash->bytes > TOW_WORKER_STASH_BYTES_MAX - whole) {
        block_t *oldest = TOW_CONTAINER_OF(stash->blocks.next, block_t, list);
        tow_list_remove(&oldest->list);
        stash->bytes -= oldest->size;
        free_bytes(oldest, oldest->size);
    }
    block_t *block = bytes;
    *block = (block_t){.size = whole};
    tow_list_init(&block->list);
    tow_list_append(&stash->blocks, &block->list);
    stash->bytes += whole;
    tow_env_timer_start(stash->env, &stash->timer,
                        tow_env_now_ns(stash->env) + TOW_WORKER_STASH_NS);
}
