/* Large blocks of memory that can be shared with other processes of this host.
 *
 * Each block is an anonymous file (memfd). A process that receives its
 * descriptor maps the same pages, so nothing is copied. The pages live until
 * the last process unmaps them: if the owner frees its block, or dies, the
 * others keep the contents. The owner must not write to pages that another
 * process still reads; so a block whose readers are unknown is *quarantined*:
 * it is freed, and never reused.
 *
 * One table per process, like the heap. Any thread may call. */
#ifndef TOW_BASE_BLOCK_H_
#define TOW_BASE_BLOCK_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The location of bytes in a block, for other processes. */
typedef struct tow_block_place {
    int fd; /* lent: the block's */
    /* Unique among all blocks that this process ever has. Above 0. */
    uint64_t number;
    uint64_t size;   /* of the whole block */
    uint64_t offset; /* of the bytes in it */
} tow_block_place_t;

/* Zeroed, aligned to huge pages; smaller than one, if the size is. NULL: no free block or no memory; the caller
 * falls back on the heap. */
void *tow_block_alloc(size_t size);
/* Unmaps the block and closes its descriptor. `base` is the result of
 * tow_block_alloc. */
void tow_block_free(void *base);
/* False: the bytes are not within one block. */
bool tow_block_find(const void *bytes, size_t size,
                    tow_block_place_t *out_place);

/* Another process may read the block of these bytes for an unknown time.
 * Ignored for bytes outside of blocks. */
void tow_block_quarantine(const void *bytes);
/* True for a quarantined block: free it, do not reuse it. */
bool tow_block_is_quarantined(const void *bytes);

/* Bytes of this size, outside of blocks, were sent to another process of this
 * host: the next buffer of this size should be a block. Depending on the
 * system, blocks consist of small pages, and fresh ones cost several times as
 * much as fresh huge pages; so blocks are used only for sizes that are sent. */
void tow_block_prefer(size_t size);
bool tow_block_is_preferred(size_t size);

typedef struct tow_block_stats {
    uint32_t count; /* of blocks */
    uint32_t quarantined_count;
    uint64_t bytes;
} tow_block_stats_t;
tow_block_stats_t tow_block_stats(void);

#endif /* TOW_BASE_BLOCK_H_ */
