/* What parent and child say to each other: an order and a reply of fixed size
 * over a socket, and the arrays in memory that both have. What a child says, and
 * what it leaves in that memory, is checked: it may have lost its mind. */
#ifndef TOW_DEVICE_HOST_TALK_IMPL_H_
#define TOW_DEVICE_HOST_TALK_IMPL_H_

#include "device/compiler/process.h"
#include "device/host/host.h"
#include "device/host/tuning.h"
#include "wire/message.h"

#define ORDER_MAGIC 0x48574f54u

/* Where arrays begin: as devices' memory would. */
#define PAGE_ALIGNMENT ((uint64_t)64)

/* To the child. Descriptors that are new to it come with it, the memory's
 * first. */
typedef struct host_order {
    uint32_t magic;
    bool has_memory, has_code, is_probe;
    uint64_t memory_size;
    uint64_t code; /* its number */
    char symbol[TOW_NAME_MAX + 1];
} host_order_t;

typedef enum host_verdict {
    HOST_CALLED = 1,
    HOST_NO_OBJECT, /* the text is the loader's */
    HOST_NO_SYMBOL,
    HOST_REFUSED, /* the order made no sense to it */
} host_verdict_t;

typedef struct host_reply {
    uint32_t magic;
    uint32_t verdict;
    int32_t result; /* the function's */
    char text[TOW_HOST_ERROR_BYTES_MAX];
} host_reply_t;

typedef struct host_page_array {
    uint32_t type, rank;
    int64_t dims[TOW_RANK_MAX];
    uint64_t offset, size;
} host_page_array_t;

/* The beginning of the memory; bytes of arrays follow. */
typedef struct host_page {
    uint32_t input_count, output_count, shard, shard_count;
    host_page_array_t arrays[TOW_HOST_ARRAY_COUNT_MAX]; /* in, then out */
} host_page_t;

#endif /* TOW_DEVICE_HOST_TALK_IMPL_H_ */
