#include "ir/collective.h"

#include "base/assert.h"

static tow_status_t check_words(const tow_collective_t *collective)
{
    if (collective->kind != TOW_COLLECTIVE_ALL_REDUCE)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "collective %d is not known to this version",
                         (int)collective->kind);
    if (collective->reduction < TOW_REDUCE_SUM ||
        collective->reduction > TOW_REDUCE_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "reduction %d is not sum, product, min or max",
                         (int)collective->reduction);
    return TOW_OK;
}

static tow_status_t check_axes(const tow_collective_t *collective)
{
    if (collective->axis_count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "its groups extend along no axis of the mesh; leave "
                         "the mesh out for one group of all devices");
    for (uint32_t i = 0; i < collective->axis_count; i++)
        if (collective->axes[i] >= collective->mesh_rank ||
            (i > 0 && collective->axes[i] <= collective->axes[i - 1]))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "axis %u of a mesh of rank %u; axes are given "
                             "once each, ascending",
                             collective->axes[i], collective->mesh_rank);
    return TOW_OK;
}

tow_status_t tow_collective_check(const tow_collective_t *collective,
                                  size_t device_count)
{
    TOW_RETURN_IF_ERROR(check_words(collective));
    if (collective->mesh_rank > TOW_MESH_RANK_MAX ||
        collective->axis_count > collective->mesh_rank)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%u axes of a mesh of rank %u; the limit is %u",
                         collective->axis_count, collective->mesh_rank,
                         TOW_MESH_RANK_MAX);
    if (collective->mesh_rank == 0) return TOW_OK;
    uint64_t product = 1; /* below 2^64: a product of two 32-bit numbers */
    for (uint32_t i = 0; i < collective->mesh_rank; i++)
        if (product <= device_count) product *= collective->mesh_dims[i];
    if (product != device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "its mesh is not of the %zu devices of the slice",
                         device_count);
    return check_axes(collective);
}

static bool is_along(const tow_collective_t *collective, uint32_t axis)
{
    for (uint32_t i = 0; i < collective->axis_count; i++)
        if (collective->axes[i] == axis) return true;
    return false;
}

size_t tow_collective_group_count(const tow_collective_t *collective)
{
    size_t count = 1;
    for (uint32_t i = 0; i < collective->mesh_rank; i++)
        if (!is_along(collective, i)) count *= collective->mesh_dims[i];
    return count;
}

size_t tow_collective_group_of(const tow_collective_t *collective,
                               size_t device)
{
    size_t group = 0, stride = 1;
    for (uint32_t i = collective->mesh_rank; i-- > 0;) {
        const uint32_t dim = collective->mesh_dims[i];
        if (!is_along(collective, i)) {
            group += device % dim * stride;
            stride *= dim;
        }
        device /= dim;
    }
    return group;
}
