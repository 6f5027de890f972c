/* Shardings: the placement of an array on the devices of a slice.
 *
 * The array is split into equal parts along each dimension, and each part is on
 * `replicas` devices. Devices 0, 1, 2, ... are laid out row-major in a mesh of
 * mesh_dims, whose axes are then permuted to the order mesh_axes; read
 * row-major, that gives the devices of part 0 (its replicas), part 1, and so
 * on, parts in row-major order too. mesh_rank 0: devices in their order. XLA
 * calls this an iota tile assignment; its size does not depend on the number of
 * devices. Pure values. */
#ifndef TOW_IR_SHARDING_H_
#define TOW_IR_SHARDING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "wire/message.h"

typedef struct tow_sharding {
    uint32_t rank;                /* of the array */
    uint32_t parts[TOW_RANK_MAX]; /* along each dimension, 1 or more */
    uint32_t replicas;            /* 1 or more; 0: the sharding is unknown */
    uint32_t mesh_rank;
    uint32_t mesh_dims[TOW_MESH_RANK_MAX];
    uint32_t mesh_axes[TOW_MESH_RANK_MAX];
} tow_sharding_t;

/* NULL is an unknown sharding, too. */
static inline bool tow_sharding_is_known(const tow_sharding_t *sharding)
{
    return sharding != NULL && sharding->replicas > 0;
}

/* The whole array on each of `device_count` devices. */
tow_sharding_t tow_sharding_replicated(uint32_t rank, size_t device_count);
/* One part per device along the first dimension; of a scalar, one replica per
 * device. */
tow_sharding_t tow_sharding_by_shard(uint32_t rank, size_t device_count);
/* True for the same parts on the same devices, even if written differently.
 * Both have been checked, or are unknown; an unknown one equals none. */
bool tow_sharding_equal(const tow_sharding_t *a, const tow_sharding_t *b);

/* Checks that it places every part, for this many devices. INVALID_ARGUMENT
 * describes the problem. */
tow_status_t tow_sharding_check(const tow_sharding_t *sharding,
                                size_t device_count) TOW_MUST_USE;
/* The whole array's shape from one shard's, and back. INVALID_ARGUMENT: another
 * rank, or the parts do not divide a dimension; OUT_OF_RANGE: overflow. */
tow_status_t tow_sharding_whole(const tow_sharding_t *sharding,
                                const tow_shape_t *shard,
                                tow_shape_t *out_whole) TOW_MUST_USE;
tow_status_t tow_sharding_shard(const tow_sharding_t *sharding,
                                const tow_shape_t *whole,
                                tow_shape_t *out_shard) TOW_MUST_USE;
/* The index of the part on `device` in the grid of parts; returns its replica
 * number. O(mesh_rank + rank). The sharding has been checked. */
uint32_t tow_sharding_part_of(const tow_sharding_t *sharding, size_t device,
                              uint32_t out_index[TOW_RANK_MAX]);
/* The reverse: the device of that replica of that part. */
size_t tow_sharding_device_of(const tow_sharding_t *sharding,
                              const uint32_t *index, uint32_t replica);

/* From an xla.OpSharding (untrusted bytes; none: replicated). UNIMPLEMENTED for
 * shardings that we cannot represent, such as a list of devices in no regular
 * order or a manual subgroup; INVALID_ARGUMENT for malformed ones. `rank` is
 * the array's. */
tow_status_t tow_sharding_from_xla(tow_bytes_t op_sharding, uint32_t rank,
                                   size_t device_count,
                                   tow_sharding_t *out_sharding) TOW_MUST_USE;

/* As an xla.OpSharding. Returns its size. The sharding is known. */
#define TOW_SHARDING_XLA_MAX 512
size_t tow_sharding_to_xla(const tow_sharding_t *sharding,
                           uint8_t op_sharding[TOW_SHARDING_XLA_MAX]);

/* Readable text, and back: "2x4", "2x4*2" (two replicas of each part), "2x4*2
 * mesh 4x2x2 axes 1,0,2"; "*8" for a scalar; "?" for an unknown one. Parsing
 * checks the syntax only, tow_sharding_check the meaning. */
#define TOW_SHARDING_TEXT_MAX 768
const char *tow_sharding_format(const tow_sharding_t *sharding,
                                char text[TOW_SHARDING_TEXT_MAX]);
tow_status_t tow_sharding_parse(const char *text, size_t size,
                                tow_sharding_t *out_sharding) TOW_MUST_USE;

#endif /* TOW_IR_SHARDING_H_ */
