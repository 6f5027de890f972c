#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local uint64_t fail_countdown = UINT64_MAX;
static _Thread_local int has_failed;
static _Thread_local int64_t live_count;

static int refuse(size_t bytes)
{
    if (TOW_UNLIKELY(bytes > TOW_ALLOC_BYTES_MAX)) return 1;
    if (TOW_LIKELY(fail_countdown == UINT64_MAX)) return 0;
    if (fail_countdown-- > 0) return 0;
    fail_countdown = UINT64_MAX;
    has_failed = 1;
    return 1;
}

static void *counted(void *memory)
{
    if (memory != NULL) live_count++;
    return memory;
}

void *tow_malloc(size_t bytes)
{
    if (refuse(bytes)) return NULL;
    return counted(malloc(bytes));
}

void *tow_calloc(size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
    if (refuse(total)) return NULL;
    return counted(calloc(count, bytes));
}

void *tow_realloc(void *memory, size_t bytes)
{
    if (refuse(bytes)) return NULL;
    /* realloc(memory, 0) may free and return NULL: avoid it. */
    void *moved = realloc(memory, bytes == 0 ? 1 : bytes);
    if (memory == NULL && moved != NULL) live_count++;
    return moved;
}

void *tow_aligned_alloc(size_t alignment, size_t bytes)
{
    if (refuse(bytes)) return NULL;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    return counted(aligned_alloc(alignment, rounded));
}

char *tow_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tow_malloc(bytes);
    if (copy != NULL) memcpy(copy, text, bytes);
    return copy;
}

void tow_free(void *memory)
{
    if (memory == NULL) return;
    live_count--;
    free(memory);
}

void tow_alloc_fail_after(uint64_t nth)
{
    fail_countdown = nth;
    has_failed = 0;
}

int tow_alloc_has_failed(void)
{
    return has_failed;
}

int64_t tow_alloc_live_count(void)
{
    return live_count;
}
