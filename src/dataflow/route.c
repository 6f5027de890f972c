/* Checks of routes that unpacking cannot do. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/macros.h"
#include "dataflow/box_impl.h"
#include "dataflow/transfer.h"

static tow_status_t check_box(const tow_shape_t *shape, const int64_t *start,
                              const int64_t *extent, const char *what)
{
    for (uint32_t i = 0; i < shape->rank; i++)
        if (start[i] < 0 || extent[i] < 0 || start[i] > shape->dims[i] ||
            extent[i] > shape->dims[i] - start[i])
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "dimension %u of the %s: %" PRId64
                             " elements from %" PRId64 " on, of %" PRId64,
                             i, what, extent[i], start[i], shape->dims[i]);
    return TOW_OK;
}

static tow_status_t check_piece(const tow_route_t *route,
                                const tow_piece_t *piece, uint64_t target_bytes)
{
    const uint64_t element_bytes = box_element_bytes(&route->source);
    uint64_t bytes = element_bytes;
    TOW_RETURN_IF_ERROR(check_box(&route->source, piece->source_start,
                                  piece->extent, "source"));
    TOW_RETURN_IF_ERROR(check_box(&route->target, piece->target_start,
                                  piece->extent, "target"));
    for (uint32_t i = 0; i < route->source.rank; i++)
        bytes *= (uint64_t)piece->extent[i];
    if (bytes != piece->bytes || piece->offset > target_bytes ||
        bytes > target_bytes - piece->offset)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%" PRIu64 " bytes, but its box has %" PRIu64
                         ", at offset %" PRIu64 " of %" PRIu64,
                         piece->bytes, bytes, piece->offset, target_bytes);
    if (route->is_packed) return TOW_OK;
    uint64_t offset = 0;
    const box_side_t side = {route->target.dims, piece->target_start};
    if ((!box_is_row(&side, piece->extent, route->target.rank, element_bytes,
                     &offset) ||
         offset != piece->offset) &&
        bytes > 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "it is not contiguous at offset %" PRIu64
                         " of its target",
                         piece->offset);
    return TOW_OK;
}

/* Ordered by target shard; within each, numbered from 0. */
static tow_status_t check_order(const tow_route_t *route, size_t index,
                                uint32_t process)
{
    TOW_ASSERT(route->receives != NULL && index < route->receive_count);
    const tow_piece_t *piece = &route->receives[index];
    const tow_piece_t *last = index > 0 ? piece - 1 : NULL;
    const bool is_next = last != NULL &&
                         piece->target_shard == last->target_shard &&
                         piece->number == last->number + 1;
    const bool is_first =
        piece->number == 0 &&
        (last == NULL || piece->target_shard > last->target_shard);
    if (piece->process == process && piece->source_shard >= route->source_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "piece %u of target shard %u comes from source shard "
                         "%u of %zu",
                         piece->number, piece->target_shard,
                         piece->source_shard, route->source_count);
    if (piece->target_shard < route->target_count && (is_next || is_first))
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "piece %u of target shard %u, of %zu, is out of order",
                     piece->number, piece->target_shard, route->target_count);
}

static tow_status_t check_cover(const tow_route_t *route, uint64_t target_bytes)
{
    size_t at = 0;
    for (size_t shard = 0; shard < route->target_count; shard++) {
        uint64_t bytes = 0;
        for (; at < route->receive_count &&
               route->receives[at].target_shard == shard;
             at++)
            bytes += route->receives[at].bytes;
        if (bytes != target_bytes)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "target shard %zu has %" PRIu64
                             " bytes, but its pieces have %" PRIu64,
                             shard, target_bytes, bytes);
    }
    return TOW_OK;
}

static tow_status_t check_devices(const tow_route_t *route, size_t device_count)
{
    for (size_t i = 0; i < route->target_count; i++)
        if (route->target_devices[i] >= device_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "target shard %zu is for device %u of %zu", i,
                             route->target_devices[i], device_count);
    return TOW_OK;
}

static tow_status_t check_shapes(const tow_route_t *route,
                                 uint64_t *out_target_bytes)
{
    uint64_t source_bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&route->source, &source_bytes));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&route->target, out_target_bytes));
    if (route->source.type != route->target.type ||
        route->source.rank != route->target.rank ||
        *out_target_bytes > TOW_ALLOC_BYTES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "shards of %s and rank %u cannot become shards "
                         "of %s and rank %u",
                         tow_type_name(route->source.type), route->source.rank,
                         tow_type_name(route->target.type), route->target.rank);
    return TOW_OK;
}

tow_status_t tow_route_check(const tow_route_t *route, uint32_t process,
                             size_t device_count)
{
    uint64_t target_bytes = 0;
    TOW_RETURN_IF_ERROR(check_shapes(route, &target_bytes));
    TOW_RETURN_IF_ERROR(check_devices(route, device_count));
    for (size_t i = 0; i < route->receive_count; i++) {
        TOW_RETURN_IF_ERROR(check_order(route, i, process));
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            check_piece(route, &route->receives[i], target_bytes),
            "received piece %zu", i));
    }
    TOW_RETURN_IF_ERROR(check_cover(route, target_bytes));
    for (size_t i = 0; i < route->send_count; i++) {
        const tow_piece_t *piece = &route->sends[i];
        if (piece->source_shard >= route->source_count ||
            (piece->process == process &&
             piece->target_shard >= route->target_count))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "piece %zu goes from source shard %u of %zu to "
                             "target shard %u of %zu",
                             i, piece->source_shard, route->source_count,
                             piece->target_shard, route->target_count);
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            check_piece(route, piece, target_bytes), "sent piece %zu", i));
    }
    return TOW_OK;
}
