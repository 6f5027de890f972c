/* Shardings in XLA's form: the message OpSharding of xla_data.proto, read and
 * written field by field. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/proto.h"
#include "ir/graph_impl.h"
#include "ir/sharding.h"

enum {
    FIELD_TYPE = 1,
    FIELD_TILE_DIMS = 3,
    FIELD_DEVICES = 4,
    FIELD_REPLICATE_ON_LAST = 6,
    FIELD_LAST_TILE_DIMS = 8,
    FIELD_RESHAPE_DIMS = 9,
    FIELD_TRANSPOSE_PERM = 10,
};

enum {
    TYPE_REPLICATED = 0,
    TYPE_MAXIMAL = 1,
    TYPE_TUPLE = 2,
    TYPE_OTHER = 3,
    TYPE_MANUAL = 4,
};

/* Replicated dimensions follow those of the array. */
#define TILE_RANK_MAX (TOW_RANK_MAX + TOW_MESH_RANK_MAX)

typedef struct numbers {
    uint64_t *items;
    size_t count;
    size_t max;
    bool overflowed;
} numbers_t;

typedef struct op {
    uint64_t type;
    uint64_t tile_dims[TILE_RANK_MAX];
    uint64_t last_tile_dims[TOW_MESH_RANK_MAX];
    uint64_t reshape_dims[TOW_MESH_RANK_MAX];
    uint64_t transpose_perm[TOW_MESH_RANK_MAX];
    numbers_t tile, last, reshape, transpose, devices;
    bool replicates_on_last;
} op_t;

/* -- Reading --------------------------------------------------------------- */

static void add_number(numbers_t *numbers, uint64_t number)
{
    if (numbers->count == numbers->max)
        numbers->overflowed = true;
    else
        numbers->items[numbers->count++] = number;
}

/* A repeated number, packed or not. */
static bool read_numbers(const proto_field_t *field, numbers_t *numbers)
{
    tow_bytes_t rest = field->bytes;
    uint64_t number;
    if (field->kind == PROTO_VARINT) {
        add_number(numbers, field->value);
        return true;
    }
    if (field->kind != PROTO_BYTES) return false;
    while (rest.size > 0) {
        if (!proto_read_varint(&rest, &number)) return false;
        add_number(numbers, number);
    }
    return true;
}

static bool read_op_field(const proto_field_t *field, op_t *op)
{
    switch (field->number) {
    case FIELD_TYPE: op->type = field->value; return true;
    case FIELD_TILE_DIMS: return read_numbers(field, &op->tile);
    case FIELD_DEVICES: return read_numbers(field, &op->devices);
    case FIELD_REPLICATE_ON_LAST:
        op->replicates_on_last = field->value != 0;
        return true;
    case FIELD_LAST_TILE_DIMS: return read_numbers(field, &op->last);
    case FIELD_RESHAPE_DIMS: return read_numbers(field, &op->reshape);
    case FIELD_TRANSPOSE_PERM: return read_numbers(field, &op->transpose);
    default: return true; /* Metadata, groups: not about placement. */
    }
}

static tow_status_t read_op(tow_bytes_t bytes, op_t *op)
{
    proto_field_t field;
    while (bytes.size > 0)
        if (!proto_read_field(&bytes, &field) || !read_op_field(&field, op))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "the bytes are not an xla.OpSharding");
    if (op->tile.overflowed || op->last.overflowed || op->reshape.overflowed ||
        op->transpose.overflowed || op->devices.overflowed)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "a tiling of more dimensions or devices than there "
                         "can be");
    return TOW_OK;
}

/* -- Parts ----------------------------------------------------------------- */

/* The number of replicated dimensions of the tiling. */
static tow_status_t count_replica_dims(const op_t *op, size_t *out_count)
{
    *out_count = op->replicates_on_last ? 1 : op->last.count;
    for (size_t i = 0; i < op->last.count; i++)
        if (op->last.items[i] != TYPE_REPLICATED)
            return TOW_ERROR(TOW_UNIMPLEMENTED,
                             "a manual subgroup: what its members hold is "
                             "known to the function alone");
    return TOW_OK;
}

static tow_status_t read_parts(const op_t *op, uint32_t rank,
                               tow_sharding_t *sharding)
{
    size_t replica_dims;
    uint64_t replicas = 1;
    TOW_RETURN_IF_ERROR(count_replica_dims(op, &replica_dims));
    if (op->tile.count != rank + replica_dims)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a tiling of %zu dimensions, of an array of %u",
                         op->tile.count - (op->tile.count < replica_dims
                                               ? op->tile.count
                                               : replica_dims),
                         rank);
    for (size_t i = 0; i < op->tile.count; i++) {
        const uint64_t count = op->tile.items[i];
        if (count == 0 || count > TOW_DEVICES_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "a dimension cut into %llu parts",
                             (unsigned long long)count);
        if (i < rank)
            sharding->parts[i] = (uint32_t)count;
        else
            replicas *= count;
        if (replicas > TOW_DEVICES_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT, "too many replicas");
    }
    sharding->rank = rank;
    sharding->replicas = (uint32_t)replicas;
    return TOW_OK;
}

/* -- The order of devices -------------------------------------------------- */

static tow_status_t read_iota(const op_t *op, tow_sharding_t *sharding)
{
    if (op->reshape.count != op->transpose.count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a mesh of %zu dimensions with %zu axes",
                         op->reshape.count, op->transpose.count);
    for (size_t i = 0; i < op->reshape.count; i++) {
        if (op->reshape.items[i] > TOW_DEVICES_MAX ||
            op->transpose.items[i] >= TOW_MESH_RANK_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT, "an invalid mesh");
        sharding->mesh_dims[i] = (uint32_t)op->reshape.items[i];
        sharding->mesh_axes[i] = (uint32_t)op->transpose.items[i];
    }
    /* One axis: devices in their order. */
    sharding->mesh_rank =
        op->reshape.count > 1 ? (uint32_t)op->reshape.count : 0;
    return TOW_OK;
}

/* An axis of a list of devices: each step along it adds `stride` to the
 * device. */
typedef struct axis {
    uint64_t size;
    uint64_t stride;
    uint32_t order; /* from the innermost */
} axis_t;

/* Extracts axes from the list, the innermost first, each as long as possible.
 * False if the list is not regular. */
static bool find_axes(const numbers_t *devices, axis_t *axes, uint32_t *count)
{
    const size_t total = devices->count;
    *count = 0;
    if (devices->items[0] != 0) return false;
    for (size_t block = 1; block < total;) {
        const uint64_t stride = devices->items[block];
        uint64_t size = 1;
        while (block * size < total &&
               devices->items[block * size] == size * stride)
            size++;
        if (*count == TOW_MESH_RANK_MAX || size < 2 ||
            total % (block * size) != 0)
            return false;
        axes[*count] = (axis_t){size, stride, *count};
        ++*count;
        block *= size;
    }
    return true;
}

static int by_stride(const void *a, const void *b)
{
    const axis_t *x = a, *y = b;
    return x->stride < y->stride ? 1 : x->stride > y->stride ? -1 : 0;
}

/* The mesh has the axes by descending stride; mesh_axes permutes them to the
 * order of the list. */
static bool make_mesh(axis_t *axes, uint32_t count, tow_sharding_t *sharding)
{
    uint64_t stride = 1;
    qsort(axes, count, sizeof(*axes), by_stride);
    for (uint32_t i = count; i-- > 0;) {
        if (axes[i].stride != stride) return false;
        stride *= axes[i].size;
        sharding->mesh_dims[i] = (uint32_t)axes[i].size;
        sharding->mesh_axes[count - 1 - axes[i].order] = i;
    }
    sharding->mesh_rank = count > 1 ? count : 0;
    return true;
}

static bool says_the_list(const tow_sharding_t *sharding,
                          const numbers_t *devices)
{
    const tow_sharding_t flat = {.rank = 1,
                                 .parts = {(uint32_t)devices->count},
                                 .replicas = 1,
                                 .mesh_rank = sharding->mesh_rank};
    tow_sharding_t mesh = flat;
    memcpy(mesh.mesh_dims, sharding->mesh_dims, sizeof(mesh.mesh_dims));
    memcpy(mesh.mesh_axes, sharding->mesh_axes, sizeof(mesh.mesh_axes));
    for (uint32_t i = 0; i < devices->count; i++)
        if (tow_sharding_device_of(&mesh, &i, 0) != devices->items[i])
            return false;
    return true;
}

/* A list of devices, as older versions write it: mostly regular. */
static tow_status_t read_list(const op_t *op, tow_sharding_t *sharding)
{
    axis_t axes[TOW_MESH_RANK_MAX];
    uint32_t count;
    if (find_axes(&op->devices, axes, &count) &&
        make_mesh(axes, count, sharding) &&
        says_the_list(sharding, &op->devices))
        return TOW_OK;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "its devices are in no regular order; use a mesh whose "
                     "devices are in the slice's order, or a transpose of it");
}

/* -- Entry point ----------------------------------------------------------- */

static tow_status_t read_tiling(const op_t *op, uint32_t rank,
                                size_t device_count, tow_sharding_t *sharding)
{
    TOW_RETURN_IF_ERROR(read_parts(op, rank, sharding));
    if (op->devices.count > 0 && op->devices.count != device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a list of %zu devices, and there are %zu",
                         op->devices.count, device_count);
    TOW_RETURN_IF_ERROR(op->devices.count > 0 ? read_list(op, sharding)
                                              : read_iota(op, sharding));
    /* One axis needs no mesh. */
    if (sharding->mesh_rank == 0)
        sharding->mesh_dims[0] = sharding->mesh_axes[0] = 0;
    return tow_sharding_check(sharding, device_count);
}

static tow_status_t read_sharding(const op_t *op, uint32_t rank,
                                  size_t device_count, tow_sharding_t *sharding)
{
    switch (op->type) {
    case TYPE_REPLICATED:
        *sharding = tow_sharding_replicated(rank, device_count);
        return TOW_OK;
    case TYPE_MAXIMAL:
        *sharding = tow_sharding_replicated(rank, device_count);
        if (device_count == 1) return TOW_OK;
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "all of it is on one of %zu devices", device_count);
    case TYPE_OTHER: return read_tiling(op, rank, device_count, sharding);
    case TYPE_MANUAL:
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "a manual sharding: what each device holds is known "
                         "to the function alone");
    case TYPE_TUPLE:
        return TOW_ERROR(TOW_UNIMPLEMENTED, "the sharding of a tuple");
    default:
        return TOW_ERROR(TOW_UNIMPLEMENTED, "a sharding of type %llu",
                         (unsigned long long)op->type);
    }
}

tow_status_t tow_sharding_from_xla(tow_bytes_t op_sharding, uint32_t rank,
                                   size_t device_count,
                                   tow_sharding_t *out_sharding)
{
    TOW_ASSERT(rank <= TOW_RANK_MAX && device_count > 0);
    TOW_ASSERT(device_count <= UINT32_MAX);
    op_t op = {.tile = {op.tile_dims, 0, TILE_RANK_MAX, false},
               .last = {op.last_tile_dims, 0, TOW_MESH_RANK_MAX, false},
               .reshape = {op.reshape_dims, 0, TOW_MESH_RANK_MAX, false},
               .transpose = {op.transpose_perm, 0, TOW_MESH_RANK_MAX, false},
               .devices = {NULL, 0, device_count, false}};
    op.devices.items = tow_calloc(device_count, sizeof(*op.devices.items));
    if (op.devices.items == NULL) return tow_ir_exhausted();
    tow_sharding_t sharding = {0};
    tow_status_t status = read_op(op_sharding, &op);
    if (status == TOW_OK)
        status = read_sharding(&op, rank, device_count, &sharding);
    tow_free(op.devices.items);
    *out_sharding = status == TOW_OK ? sharding : (tow_sharding_t){0};
    return status;
}

/* -- Writing --------------------------------------------------------------- */

static uint8_t *write_numbers(uint8_t *at, uint32_t field,
                              const uint32_t *numbers, uint32_t count)
{
    size_t size = 0;
    for (uint32_t i = 0; i < count; i++)
        size += proto_varint_size(numbers[i]);
    at = proto_write_length(at, field, size);
    for (uint32_t i = 0; i < count; i++)
        at = proto_write_varint(at, numbers[i]);
    return at;
}

/* At most 65 numbers of 5 bytes, and a few headers. */
size_t tow_sharding_to_xla(const tow_sharding_t *sharding,
                           uint8_t op_sharding[TOW_SHARDING_XLA_MAX])
{
    TOW_ASSERT(tow_sharding_is_known(sharding));
    uint8_t *at = op_sharding;
    uint32_t tile[TOW_RANK_MAX + 1];
    uint32_t rank = sharding->rank;
    uint32_t dims[1] = {1};
    const uint32_t axes[1] = {0};
    for (uint32_t i = 0; i < rank; i++) {
        tile[i] = sharding->parts[i];
        dims[0] *= tile[i];
    }
    if (dims[0] == 1) return 0; /* Replicated. */
    dims[0] *= sharding->replicas;
    if (sharding->replicas > 1) tile[rank++] = sharding->replicas;
    at = proto_write_number(at, FIELD_TYPE, TYPE_OTHER);
    at = write_numbers(at, FIELD_TILE_DIMS, tile, rank);
    if (sharding->replicas > 1)
        at = proto_write_number(at, FIELD_REPLICATE_ON_LAST, 1);
    const bool has_mesh = sharding->mesh_rank > 0;
    const uint32_t mesh_rank = has_mesh ? sharding->mesh_rank : 1;
    at = write_numbers(at, FIELD_RESHAPE_DIMS,
                       has_mesh ? sharding->mesh_dims : dims, mesh_rank);
    at = write_numbers(at, FIELD_TRANSPOSE_PERM,
                       has_mesh ? sharding->mesh_axes : axes, mesh_rank);
    return (size_t)(at - op_sharding);
}
