/* Collectives between computations: operations over groups of devices of a
 * slice.
 *
 * The devices of the slice, 0, 1, 2, ..., are laid out row-major in a mesh of
 * mesh_dims. A group is the set of devices that differ only along `axes`: in a
 * mesh 2x4, axis 1 gives two groups, its rows, and axis 0 four, its columns.
 * mesh_rank 0: all devices are one group. The size does not depend on the
 * number of devices. Pure values. */
#ifndef TOW_IR_COLLECTIVE_H_
#define TOW_IR_COLLECTIVE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "wire/message.h"

/* Reduce-scatter and all-gather will be further kinds. */
typedef enum tow_collective_kind {
    TOW_COLLECTIVE_ALL_REDUCE = 1, /* every member gets the reduction of all */
} tow_collective_kind_t;

typedef struct tow_collective {
    tow_collective_kind_t kind;
    tow_reduction_t reduction;
    uint32_t mesh_rank;
    uint32_t mesh_dims[TOW_MESH_RANK_MAX];
    uint32_t axis_count;
    uint32_t axes[TOW_MESH_RANK_MAX]; /* ascending */
} tow_collective_t;

/* Checks it for this many devices. INVALID_ARGUMENT describes the problem. */
tow_status_t tow_collective_check(const tow_collective_t *collective,
                                  size_t device_count) TOW_MUST_USE;
/* The collective has been checked. Groups are numbered from 0, in the order of
 * their first devices. O(mesh_rank). */
size_t tow_collective_group_count(const tow_collective_t *collective);
size_t tow_collective_group_of(const tow_collective_t *collective,
                               size_t device);

/* -- One worker's part ----------------------------------------------------- */

/* The workers with shards of one group. */
typedef struct tow_members {
    uint32_t group; /* index among all groups of the slice */
    /* In the order of their first shards; the same list on all workers. */
    const uint32_t *processes;
    size_t process_count;
    size_t self;            /* index of this worker */
    const uint32_t *shards; /* local indices, ascending */
    size_t shard_count;
} tow_members_t;

/* Tensors are reduced independently, in chunks, and complete independently;
 * earlier ones have priority. Fusion, partition and priorities are changes of
 * this struct. */
typedef struct tow_collective_part {
    tow_collective_kind_t kind;
    tow_reduction_t reduction;
    const tow_shape_t *tensors; /* of one shard; same for input and output */
    size_t tensor_count;
    const uint32_t *devices; /* of local shards, in their order */
    size_t shard_count;
    const tow_members_t *groups; /* with local shards, ascending */
    size_t group_count;
    uint64_t chunk_bytes; /* largest chunk that is reduced and sent */
} tow_collective_part_t;

/* Chosen by lowering. With 1 MiB, sending and reducing a tensor of 16 MiB
 * between two workers overlap; docs/architecture.md has measurements. */
#define TOW_COLLECTIVE_CHUNK_BYTES (UINT64_C(1) << 20)
/* Chunks are whole elements of any type, and whole cache lines. */
#define TOW_COLLECTIVE_CHUNK_ALIGNMENT 64u
#define TOW_COLLECTIVE_CHUNK_BYTES_MAX (UINT64_C(1) << 30)

#endif /* TOW_IR_COLLECTIVE_H_ */
