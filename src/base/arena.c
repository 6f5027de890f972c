/* A bump pointer through a list of blocks. The head of the list is the block
 * that the pointer is in; blocks made for one large request go behind it, so
 * that what is left of the head is not lost. */
#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/sanitizer_impl.h"
#include "base/tuning.h"

#define ALIGNMENT _Alignof(max_align_t)

struct tow_arena_block {
    tow_arena_block_t *older; /* owned */
    size_t bytes;             /* of `data` */
    _Alignas(ALIGNMENT) char data[];
};

void tow_arena_init(tow_arena_t *arena, size_t bytes_max)
{
    *arena = (tow_arena_t){.bytes_max = bytes_max};
}

static void free_block(tow_arena_block_t *block)
{
    unpoison(block->data, block->bytes);
    tow_free(block);
}

void tow_arena_deinit(tow_arena_t *arena)
{
    while (arena->blocks != NULL) {
        tow_arena_block_t *older = arena->blocks->older;
        free_block(arena->blocks);
        arena->blocks = older;
    }
    *arena = (tow_arena_t){.bytes_max = arena->bytes_max};
}

static void bump_from(tow_arena_t *arena, tow_arena_block_t *block)
{
    arena->next = block->data;
    arena->end = block->data + block->bytes;
    poison(block->data, block->bytes);
}

void tow_arena_reset(tow_arena_t *arena)
{
    tow_arena_block_t *largest = arena->blocks;
    if (largest == NULL) return;
    for (tow_arena_block_t *b = largest->older; b != NULL; b = b->older) {
        if (b->bytes > largest->bytes) largest = b;
    }
    while (arena->blocks != NULL) {
        tow_arena_block_t *older = arena->blocks->older;
        if (arena->blocks != largest) free_block(arena->blocks);
        arena->blocks = older;
    }
    largest->older = NULL;
    arena->blocks = largest;
    arena->bytes_used = 0;
    bump_from(arena, largest);
}

static tow_arena_block_t *make_block(size_t bytes)
{
    if (bytes > SIZE_MAX - sizeof(tow_arena_block_t)) return NULL;
    tow_arena_block_t *block = tow_malloc(sizeof(*block) + bytes);
    if (block == NULL) return NULL;
    block->older = NULL;
    block->bytes = bytes;
    return block;
}

/* The next block doubles the newest, within the tuned bounds, but takes no more
 * than the arena may still hand out. */
static size_t ordinary_block_bytes(const tow_arena_t *arena)
{
    size_t bytes = TOW_ARENA_BLOCK_BYTES_MIN;
    if (arena->blocks != NULL && arena->blocks->bytes >= bytes)
        bytes = arena->blocks->bytes * 2;
    if (bytes > TOW_ARENA_BLOCK_BYTES_MAX) bytes = TOW_ARENA_BLOCK_BYTES_MAX;
    if (arena->bytes_max != 0 && bytes > arena->bytes_max - arena->bytes_used)
        bytes = arena->bytes_max - arena->bytes_used;
    return bytes;
}

static char *take_from_new_block(tow_arena_t *arena, size_t rounded)
{
    size_t ordinary = ordinary_block_bytes(arena);
    bool has_own_block = rounded > ordinary / 2 && arena->blocks != NULL;
    tow_arena_block_t *block =
        make_block(has_own_block || rounded > ordinary ? rounded : ordinary);
    if (block == NULL) return NULL;
    if (has_own_block) {
        block->older = arena->blocks->older;
        arena->blocks->older = block;
        poison(block->data, block->bytes);
        return block->data;
    }
    block->older = arena->blocks;
    arena->blocks = block;
    bump_from(arena, block);
    arena->next += rounded;
    return block->data;
}

void *tow_arena_alloc(tow_arena_t *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (rounded == 0)
        rounded = ALIGNMENT; /* Every result is a distinct address. */
    TOW_ASSERT(arena->bytes_max == 0 || arena->bytes_used <= arena->bytes_max);
    if (arena->bytes_max != 0 && rounded > arena->bytes_max - arena->bytes_used)
        return NULL;

    char *memory = arena->next;
    if (TOW_LIKELY(rounded <= (size_t)(arena->end - arena->next)))
        arena->next += rounded;
    else
        memory = take_from_new_block(arena, rounded);
    if (memory == NULL) return NULL;
    arena->bytes_used += rounded;
    unpoison(memory, bytes);
    return memory;
}

void *tow_arena_calloc(tow_arena_t *arena, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
    void *memory = tow_arena_alloc(arena, total);
    if (memory != NULL) memset(memory, 0, total);
    return memory;
}

char *tow_arena_strndup(tow_arena_t *arena, const char *text, size_t length)
{
    length = strnlen(text, length);
    char *copy = tow_arena_alloc(arena, length + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}
