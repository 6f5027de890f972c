#include "base/block.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/tuning.h"

typedef struct block {
    char *base; /* NULL: none */
    size_t size;
    uint64_t number;
    int fd; /* owned */
    bool is_quarantined;
} block_t;

/* Blocks are few and large: a linear search costs less than mapping one. */
static struct {
    pthread_mutex_t lock; /* guards all below */
    block_t blocks[TOW_BLOCK_COUNT_MAX];
    size_t used_count; /* entries from here on were never used */
    uint64_t next_number;
    size_t preferred
        [TOW_BLOCK_PREFERRED_COUNT]; /* rounded sizes; the oldest is replaced */
    uint32_t next_preferred;
    tow_block_stats_t stats;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_number = 1};

static size_t round_up(size_t size, size_t step)
{
    return (size + step - 1) / step * step;
}

static size_t rounded(size_t size)
{
    return round_up(size, size < TOW_BLOCK_HUGE_BYTES ? TOW_BLOCK_STEP_BYTES
                                                      : TOW_BLOCK_HUGE_BYTES);
}

/* -- Pages ----------------------------------------------------------------- */

/* Sealed: no process can shrink it under another's mapping. */
static int make_file(size_t size)
{
    const int fd = memfd_create("towpath", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)size) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Aligned for huge pages, where the system has them for such files. */
static char *map_file(int fd, size_t size)
{
    const size_t step = TOW_BLOCK_HUGE_BYTES;
    char *room = mmap(NULL, size + step, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    const size_t before = round_up((uintptr_t)room, step) - (uintptr_t)room;
    char *base = room + before;
    if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             0) == MAP_FAILED) {
        munmap(room, size + step);
        return NULL;
    }
    if (before > 0) munmap(room, before);
    if (before < step) munmap(base + size, step - before);
    (void)!madvise(base, size, MADV_HUGEPAGE);
    return base;
}

/* -- Table of blocks ------------------------------------------------------- */

/* The statistics are the sums over the table, and numbers are unique. */
static void check_table(void)
{
    tow_block_stats_t sums = {0};
    for (size_t i = 0; i < table.used_count; i++) {
        const block_t *block = &table.blocks[i];
        if (block->base == NULL) continue;
        TOW_ASSERT(block->number > 0 && block->number < table.next_number);
        TOW_ASSERT(block->size > 0 && block->size == rounded(block->size));
        sums.count++;
        sums.bytes += block->size;
        sums.quarantined_count += block->is_quarantined;
    }
    TOW_ASSERT(sums.count == table.stats.count);
    TOW_ASSERT(sums.bytes == table.stats.bytes);
    TOW_ASSERT(sums.quarantined_count == table.stats.quarantined_count);
}

static block_t *find_free(void)
{
    for (size_t i = 0; i < table.used_count; i++)
        if (table.blocks[i].base == NULL) return &table.blocks[i];
    if (table.used_count == TOW_BLOCK_COUNT_MAX) return NULL;
    return &table.blocks[table.used_count++];
}

static block_t *find_block(const void *bytes)
{
    const char *at = bytes;
    for (size_t i = 0; i < table.used_count; i++) {
        block_t *block = &table.blocks[i];
        if (block->base != NULL && at >= block->base &&
            (size_t)(at - block->base) < block->size)
            return block;
    }
    return NULL;
}

static bool list_block(char *base, size_t size, int fd)
{
    pthread_mutex_lock(&table.lock);
    block_t *block = find_free();
    if (block != NULL) {
        *block = (block_t){.base = base,
                           .size = size,
                           .number = table.next_number++,
                           .fd = fd};
        table.stats.count++;
        table.stats.bytes += size;
        check_table();
    }
    pthread_mutex_unlock(&table.lock);
    return block != NULL;
}

void *tow_block_alloc(size_t size)
{
    if (size == 0 || size > SIZE_MAX / 4) return NULL;
    const size_t whole = rounded(size);
    const int fd = make_file(whole);
    if (fd < 0) return NULL;
    char *base = map_file(fd, whole);
    if (base != NULL && list_block(base, whole, fd)) return base;
    if (base != NULL) munmap(base, whole);
    close(fd);
    return NULL;
}

void tow_block_free(void *base)
{
    pthread_mutex_lock(&table.lock);
    block_t *block = find_block(base);
    TOW_ASSERT(block != NULL && block->base == base);
    const block_t freed = *block;
    *block = (block_t){0};
    table.stats.count--;
    table.stats.quarantined_count -= freed.is_quarantined;
    table.stats.bytes -= freed.size;
    check_table();
    pthread_mutex_unlock(&table.lock);
    munmap(freed.base, freed.size);
    close(freed.fd);
}

bool tow_block_find(const void *bytes, size_t size,
                    tow_block_place_t *out_place)
{
    pthread_mutex_lock(&table.lock);
    const block_t *block = find_block(bytes);
    if (block != NULL) {
        const size_t offset = (size_t)((const char *)bytes - block->base);
        *out_place = (tow_block_place_t){.fd = block->fd,
                                         .number = block->number,
                                         .size = block->size,
                                         .offset = offset};
        if (size > block->size - offset) block = NULL;
    }
    pthread_mutex_unlock(&table.lock);
    return block != NULL;
}

void tow_block_quarantine(const void *bytes)
{
    pthread_mutex_lock(&table.lock);
    block_t *block = find_block(bytes);
    if (block != NULL && !block->is_quarantined) {
        block->is_quarantined = true;
        table.stats.quarantined_count++;
        check_table();
    }
    pthread_mutex_unlock(&table.lock);
}

bool tow_block_is_quarantined(const void *bytes)
{
    pthread_mutex_lock(&table.lock);
    const block_t *block = find_block(bytes);
    const bool is_quarantined = block != NULL && block->is_quarantined;
    pthread_mutex_unlock(&table.lock);
    return is_quarantined;
}

/* -- Sizes ----------------------------------------------------------------- */

static bool is_listed(size_t whole)
{
    for (size_t i = 0; i < TOW_BLOCK_PREFERRED_COUNT; i++)
        if (table.preferred[i] == whole) return true;
    return false;
}

void tow_block_prefer(size_t size)
{
    if (size < TOW_BLOCK_BYTES_MIN || size > SIZE_MAX / 4) return;
    const size_t whole = rounded(size);
    pthread_mutex_lock(&table.lock);
    if (!is_listed(whole))
        table.preferred[table.next_preferred++ % TOW_BLOCK_PREFERRED_COUNT] =
            whole;
    pthread_mutex_unlock(&table.lock);
}

bool tow_block_is_preferred(size_t size)
{
    if (size < TOW_BLOCK_BYTES_MIN || size > SIZE_MAX / 4) return false;
    pthread_mutex_lock(&table.lock);
    const bool is_preferred = is_listed(rounded(size));
    pthread_mutex_unlock(&table.lock);
    return is_preferred;
}

tow_block_stats_t tow_block_stats(void)
{
    pthread_mutex_lock(&table.lock);
    const tow_block_stats_t stats = table.stats;
    pthread_mutex_unlock(&table.lock);
    return stats;
}
