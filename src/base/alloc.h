/* Heap allocation. All code allocates through these functions, so that tests
 * can count blocks and fail the nth request. */
#ifndef TOW_BASE_ALLOC_H_
#define TOW_BASE_ALLOC_H_

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

/* Larger requests are refused: such a size is an overflow or a forged
 * length. */
#define TOW_ALLOC_BYTES_MAX ((size_t)1 << 39)

/* All return NULL when memory is exhausted. */
void *tow_malloc(size_t bytes);
void *tow_calloc(size_t count, size_t bytes);
void *tow_realloc(void *memory, size_t bytes);
void *tow_aligned_alloc(size_t alignment, size_t bytes);
char *tow_strdup(const char *text);
void tow_free(void *memory);

/* For tests, per thread. After `nth` more successful requests the next one
 * fails, once; UINT64_MAX switches it off. */
void tow_alloc_fail_after(uint64_t nth);
/* Whether the failure asked for above has happened. */
int tow_alloc_has_failed(void);
/* Blocks that this thread allocated minus those that it freed. Meaningful where
 * one thread does both. */
int64_t tow_alloc_live_count(void);

#endif /* TOW_BASE_ALLOC_H_ */
