/* Arenas: many small allocations, freed together. */
#ifndef TOW_BASE_ARENA_H_
#define TOW_BASE_ARENA_H_

#include <stddef.h>

#include "base/macros.h"

typedef struct tow_arena_block tow_arena_block_t;

typedef struct tow_arena {
    tow_arena_block_t *blocks; /* owned, newest first */
    char *next;
    char *end;
    size_t bytes_used;
    size_t bytes_max; /* 0: no limit */
} tow_arena_t;

void tow_arena_init(tow_arena_t *arena, size_t bytes_max);
void tow_arena_deinit(tow_arena_t *arena);
/* Frees all allocations; keeps the largest block for reuse. */
void tow_arena_reset(tow_arena_t *arena);

/* Aligned for any type. NULL when memory or the arena's limit is exhausted. */
void *tow_arena_alloc(tow_arena_t *arena, size_t bytes);
void *tow_arena_calloc(tow_arena_t *arena, size_t count, size_t bytes);
char *tow_arena_strndup(tow_arena_t *arena, const char *text, size_t length);

#endif /* TOW_BASE_ARENA_H_ */
