/* The protocol between a runner of host functions and its children
 * (device/child): a CALL and its RESULT over the socket, the arrays in shared
 * memory. The parent trusts neither a child's messages nor the memory. */
#ifndef TOW_DEVICE_HOST_PROTOCOL_IMPL_H_
#define TOW_DEVICE_HOST_PROTOCOL_IMPL_H_

#include "device/child/message.h"
#include "device/host/host.h"
#include "device/host/tuning.h"
#include "wire/message.h"

/* Where arrays begin, as in devices' memory. */
#define HOST_ARRAY_ALIGNMENT ((uint64_t)64)

enum {
    HOST_CALL = 1, /* part 0: host_call_t */
    HOST_RESULT,   /* value: host_outcome_t; code: of the function; part 0: its
                      text, or the loader's */
    HOST_TYPE_COUNT
};

/* Descriptors that the child does not have yet come with it: the memory's, then
 * the code's. */
typedef struct host_call {
    bool has_memory, has_code, is_probe;
    uint64_t memory_size;
    uint64_t code; /* its number */
    char symbol[TOW_NAME_MAX + 1];
} host_call_t;

typedef enum host_outcome {
    HOST_CALLED = 1,
    HOST_NO_OBJECT, /* the loader refused the shared object */
    HOST_NO_SYMBOL,
    HOST_REFUSED, /* the call was invalid */
} host_outcome_t;

typedef struct host_layout_array {
    uint32_t type, rank;
    int64_t dims[TOW_RANK_MAX];
    uint64_t offset, size;
} host_layout_array_t;

/* The beginning of the shared memory; the arrays' bytes follow. */
typedef struct host_layout {
    uint32_t input_count, output_count, shard, shard_count;
    host_layout_array_t arrays[TOW_HOST_ARRAY_COUNT_MAX]; /* in, then out */
} host_layout_t;

extern const tow_child_protocol_t tow_host_protocol;

#endif /* TOW_DEVICE_HOST_PROTOCOL_IMPL_H_ */
