/* Large blocks of memory that another process of this host can be shown.
 *
 * Each block is a file without a name (memfd). Who is told its descriptor and may
 * take it from us maps the very same pages, so nothing is copied. They live until
 * the last process has let go: should the owner free its block, or die, whoever
 * has it mapped keeps what is there. What must not happen is that the owner
 * writes to them meanwhile; so a block of which it is not known who still looks
 * is *stranded*, and never used for anything else again.
 *
 * One table for the process, as the heap is. Any thread. */
#ifndef TOW_BASE_BLOCK_H_
#define TOW_BASE_BLOCK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a block's bytes are for others. */
typedef struct tow_block_place {
    int fd; /* lent: the block's */
    /* Of the block: its own in this process, and never another's. Above 0. */
    uint64_t number;
    uint64_t size;   /* of the whole block */
    uint64_t offset; /* of the bytes in it */
} tow_block_place_t;

/* Zeroes, aligned to huge pages. NULL: there is no more, of blocks or of memory;
 * the caller has other memory to fall back on. */
void *tow_block_take(size_t size);
/* Our mapping and our descriptor go. `base` is what tow_block_take gave. */
void tow_block_give(void *base);
/* False: these bytes do not lie in one block. */
bool tow_block_find(const void *bytes, size_t size,
                    tow_block_place_t *out_place);

/* Somebody may look at the block that has these bytes, nobody knows for how long.
 * Harmless elsewhere. */
void tow_block_strand(const void *bytes);
/* Has that been said of the block that has these bytes? Then it is to be given
 * when it is free, not kept. */
bool tow_block_is_stranded(const void *bytes);

/* Bytes of this size were sent to another process of this host out of other
 * memory: the next ones had better lie in a block. Blocks consist of small pages
 * where the system is set so, and fresh ones cost several times what fresh huge
 * pages do; so they are for sizes that do travel. */
void tow_block_want(size_t size);
bool tow_block_is_wanted(size_t size);

typedef struct tow_block_stats {
    uint32_t count; /* of blocks that we have */
    uint32_t stranded_count;
    uint64_t bytes;
} tow_block_stats_t;
tow_block_stats_t tow_block_stats(void);

#endif /* TOW_BASE_BLOCK_H_ */
