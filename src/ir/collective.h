/* Collectives between computations: which devices of a slice combine what.
 *
 * The devices of the slice, 0, 1, 2, ..., are laid out row by row in a mesh of
 * mesh_dims. A group is those that differ only along `axes`: of a mesh 2x4, axis
 * 1 makes two groups, its rows, and axis 0 four, its columns. mesh_rank 0: all
 * devices are one group. As large for 2,048 devices as for two. Pure values. */
#ifndef TOW_IR_COLLECTIVE_H_
#define TOW_IR_COLLECTIVE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "wire/message.h"

/* Scattered and gathered results will be further kinds. */
typedef enum tow_collective_kind {
    TOW_COLLECTIVE_ALL_REDUCE = 1, /* all of a group get what all have made */
} tow_collective_kind_t;

typedef struct tow_collective {
    tow_collective_kind_t kind;
    tow_reduction_t reduction;
    uint32_t mesh_rank;
    uint32_t mesh_dims[TOW_MESH_RANK_MAX];
    uint32_t axis_count;
    uint32_t axes[TOW_MESH_RANK_MAX]; /* ascending */
} tow_collective_t;

/* Does it say who combines what, and how, for this many devices?
 * INVALID_ARGUMENT in words. */
tow_status_t tow_collective_check(const tow_collective_t *collective,
                                  size_t device_count) TOW_MUST_USE;
/* Of one that has been checked. Groups are numbered from 0, in the order of
 * their first devices. O(mesh_rank). */
size_t tow_collective_group_count(const tow_collective_t *collective);
size_t tow_collective_group_of(const tow_collective_t *collective,
                               size_t device);

/* -- One worker's part ---------------------------------------------------------- */

/* The workers that have shards of one group. */
typedef struct tow_members {
    uint32_t group; /* among all of the slice */
    /* In the order of their first shards. All have the same list. */
    const uint32_t *processes;
    size_t process_count;
    size_t self;            /* which of them we are */
    const uint32_t *shards; /* ours, ascending, among our own of the slice */
    size_t shard_count;
} tow_members_t;

/* Tensors are combined each by itself, in chunks, and each is complete by
 * itself; their order is that in which they are worked on where there is a
 * choice. Fusion, partition and priorities are changes of what stands here. */
typedef struct tow_collective_part {
    tow_collective_kind_t kind;
    tow_reduction_t reduction;
    const tow_shape_t *tensors; /* one shard each: inputs, and outputs alike */
    size_t tensor_count;
    const uint32_t *devices; /* of ours, in the order of the shards */
    size_t shard_count;
    const tow_members_t *groups; /* that we have shards of, ascending */
    size_t group_count;
    uint64_t chunk_bytes; /* most that is combined, and sent, at once */
} tow_collective_part_t;

/* What lowering says now. With 1 MiB a tensor of 16 MiB between two workers is
 * sent while it is combined; docs/architecture.md has what was measured. */
#define TOW_COLLECTIVE_CHUNK_BYTES (UINT64_C(1) << 20)
/* Chunks are whole elements, whatever their type, and whole cache lines. */
#define TOW_COLLECTIVE_CHUNK_ALIGNMENT 64u
#define TOW_COLLECTIVE_CHUNK_BYTES_MAX (UINT64_C(1) << 30)

#endif /* TOW_IR_COLLECTIVE_H_ */
