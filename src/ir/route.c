/* Routes as bytes: the message Route of towpath.proto. */
#include <string.h>

#include "base/assert.h"
#include "ir/graph_impl.h"
#include "ir/lowered_impl.h"
#include "ir/reshard.h"
#include "wire/message.h"

/* -- Packing --------------------------------------------------------------- */

tow_msg_array_type_t *tow_shape_pack(const tow_shape_t *shape,
                                     tow_arena_t *arena)
{
    tow_msg_array_type_t *type = tow_arena_alloc(arena, sizeof(*type));
    if (type == NULL) return NULL;
    *type = (tow_msg_array_type_t)TOW_MSG_ARRAY_TYPE_INIT;
    type->type = (uint32_t)shape->type;
    type->n_dims = shape->rank;
    type->dims = (int64_t *)shape->dims; /* only read */
    return type;
}

/* The whole source shard, and the whole target shard. */
static bool is_whole(const tow_route_t *route, const tow_piece_t *piece)
{
    for (uint32_t i = 0; i < route->target.rank; i++)
        if (piece->extent[i] != route->source.dims[i] ||
            piece->extent[i] != route->target.dims[i])
            return false;
    return true;
}

/* protobuf-c only reads these, but its pointers are not const. */
static void pack_piece(const tow_route_t *route, const tow_piece_t *piece,
                       tow_msg_piece_t *message)
{
    *message = (tow_msg_piece_t)TOW_MSG_PIECE_INIT;
    message->process = piece->process;
    message->source_shard = piece->source_shard;
    message->target_shard = piece->target_shard;
    message->number = piece->number;
    message->offset = piece->offset;
    if (is_whole(route, piece)) return;
    const size_t rank = route->target.rank;
    message->n_source_start = message->n_target_start = rank;
    message->n_extent = rank;
    message->source_start = (uint64_t *)piece->source_start;
    message->target_start = (uint64_t *)piece->target_start;
    message->extent = (uint64_t *)piece->extent;
}

static tow_msg_piece_t **pack_pieces(const tow_route_t *route,
                                     const tow_piece_t *pieces, size_t count,
                                     tow_arena_t *arena)
{
    tow_msg_piece_t *messages =
        tow_arena_alloc(arena, (count + 1) * sizeof(*messages));
    tow_msg_piece_t **pointers =
        tow_arena_alloc(arena, (count + 1) * sizeof(*pointers));
    if (messages == NULL || pointers == NULL) return NULL;
    for (size_t i = 0; i < count; i++) {
        pack_piece(route, &pieces[i], &messages[i]);
        pointers[i] = &messages[i];
    }
    return pointers;
}

tow_msg_route_t *tow_route_pack(const tow_route_t *route, tow_arena_t *arena)
{
    tow_msg_route_t *message = tow_arena_alloc(arena, sizeof(*message));
    if (message == NULL) return NULL;
    *message = (tow_msg_route_t)TOW_MSG_ROUTE_INIT;
    message->source = tow_shape_pack(&route->source, arena);
    message->target = tow_shape_pack(&route->target, arena);
    message->sends = pack_pieces(route, route->sends, route->send_count, arena);
    message->receives =
        pack_pieces(route, route->receives, route->receive_count, arena);
    if (message->source == NULL || message->target == NULL ||
        message->sends == NULL || message->receives == NULL)
        return NULL;
    message->n_sends = route->send_count;
    message->n_receives = route->receive_count;
    message->target_devices = (uint32_t *)route->target_devices;
    message->n_target_devices = route->target_count;
    message->packed = route->is_packed;
    message->source_count = (uint32_t)route->source_count;
    return message;
}

/* -- Unpacking ------------------------------------------------------------- */

/* A route during unpacking, with known shapes. */
typedef struct reading {
    const tow_msg_route_t *message;
    tow_route_t *route;
    uint64_t element_bytes;
    uint64_t target_bytes; /* of one shard */
} reading_t;

tow_status_t tow_shape_unpack(const tow_msg_array_type_t *type,
                              tow_shape_t *shape, uint64_t *out_bytes)
{
    if (type == NULL) return TOW_ERROR(TOW_INVALID_ARGUMENT, "without a shape");
    *shape = (tow_shape_t){.type = (tow_type_t)type->type,
                           .rank = (uint32_t)type->n_dims};
    if (type->n_dims > 0)
        memcpy(shape->dims, type->dims, type->n_dims * sizeof(type->dims[0]));
    return tow_shape_bytes(shape, out_bytes);
}

static tow_status_t read_shapes(reading_t *reading)
{
    tow_route_t *route = reading->route;
    uint64_t source_bytes;
    TOW_RETURN_IF_ERROR(tow_shape_unpack(reading->message->source,
                                         &route->source, &source_bytes));
    TOW_RETURN_IF_ERROR(tow_shape_unpack(
        reading->message->target, &route->target, &reading->target_bytes));
    reading->element_bytes = (tow_type_bits(route->source.type) + 7) / 8;
    if (route->source.type == route->target.type &&
        route->source.rank == route->target.rank)
        return TOW_OK;
    char texts[2][TOW_SHAPE_TEXT_MAX];
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s cannot be made of %s",
                     tow_shape_format(&route->target, texts[0]),
                     tow_shape_format(&route->source, texts[1]));
}

tow_status_t tow_devices_unpack(const uint32_t *numbers, size_t count,
                                tow_arena_t *arena,
                                const uint32_t **out_devices)
{
    bool taken[TOW_WORKER_DEVICES_MAX] = {false};
    uint32_t *devices = tow_arena_alloc(arena, (count + 1) * sizeof(*devices));
    if (devices == NULL) return tow_ir_exhausted();
    for (size_t i = 0; i < count; i++) {
        devices[i] = numbers[i];
        if (devices[i] >= TOW_WORKER_DEVICES_MAX || taken[devices[i]])
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "device %u is invalid, or has two target shards",
                             devices[i]);
        taken[devices[i]] = true;
    }
    *out_devices = devices;
    return TOW_OK;
}

/* -- Pieces ---------------------------------------------------------------- */

static tow_status_t bad_box(void)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "its box is not inside of a shard");
}

/* One dimension of a box. */
static bool fits(uint64_t start, uint64_t extent, int64_t dim)
{
    return extent > 0 && extent <= (uint64_t)dim &&
           start <= (uint64_t)dim - extent;
}

static tow_status_t read_box(const reading_t *reading,
                             const tow_msg_piece_t *message, tow_piece_t *piece)
{
    const tow_route_t *route = reading->route;
    const uint32_t rank = route->target.rank;
    const bool is_short = message->n_extent == 0;
    const size_t wanted = is_short ? 0 : rank;
    if (message->n_extent != wanted || message->n_source_start != wanted ||
        message->n_target_start != wanted)
        return bad_box();
    if (is_short && !tow_shape_equal(&route->source, &route->target))
        return bad_box();
    uint64_t count = 1; /* at most the size of a shard */
    for (uint32_t i = 0; i < rank; i++) {
        const int64_t dim = route->target.dims[i];
        const uint64_t extent = is_short ? (uint64_t)dim : message->extent[i];
        const uint64_t source = is_short ? 0 : message->source_start[i];
        const uint64_t target = is_short ? 0 : message->target_start[i];
        if (!fits(source, extent, route->source.dims[i]) ||
            !fits(target, extent, dim))
            return bad_box();
        piece->source_start[i] = (int64_t)source;
        piece->target_start[i] = (int64_t)target;
        piece->extent[i] = (int64_t)extent;
        count *= extent;
    }
    piece->bytes = count * reading->element_bytes;
    return TOW_OK;
}

/* The offset of a box in its target, if it is contiguous there. */
static bool find_row(const reading_t *reading, const tow_piece_t *piece,
                     uint64_t *out_offset)
{
    const tow_shape_t *target = &reading->route->target;
    bool is_long = false, is_one_row = true;
    uint64_t element = 0;
    for (uint32_t i = 0; i < target->rank; i++) {
        element = element * (uint64_t)target->dims[i] +
                  (uint64_t)piece->target_start[i];
        is_one_row &= !is_long || piece->extent[i] == target->dims[i];
        is_long |= piece->extent[i] > 1;
    }
    *out_offset = element * reading->element_bytes;
    return is_one_row;
}

static tow_status_t read_piece(const reading_t *reading,
                               const tow_msg_piece_t *message,
                               tow_piece_t *piece)
{
    uint64_t row;
    *piece = (tow_piece_t){.process = message->process,
                           .source_shard = message->source_shard,
                           .target_shard = message->target_shard,
                           .number = message->number,
                           .offset = message->offset};
    TOW_RETURN_IF_ERROR(read_box(reading, message, piece));
    if (piece->source_shard >= TOW_WORKER_DEVICES_MAX ||
        piece->target_shard >= TOW_WORKER_DEVICES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "from shard %u to %u, and a worker has at most %u",
                         piece->source_shard, piece->target_shard,
                         TOW_WORKER_DEVICES_MAX);
    if (piece->offset > reading->target_bytes ||
        piece->bytes > reading->target_bytes - piece->offset)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "it ends behind its target");
    if (!reading->route->is_packed &&
        (!find_row(reading, piece, &row) || row != piece->offset))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "it is not one row of bytes at its offset");
    return TOW_OK;
}

static tow_status_t read_pieces(const reading_t *reading,
                                tow_msg_piece_t *const *messages, size_t count,
                                tow_arena_t *arena,
                                const tow_piece_t **out_pieces)
{
    tow_piece_t *pieces = tow_arena_alloc(arena, (count + 1) * sizeof(*pieces));
    if (pieces == NULL) return tow_ir_exhausted();
    for (size_t i = 0; i < count; i++) {
        tow_status_t status = read_piece(reading, messages[i], &pieces[i]);
        if (status != TOW_OK)
            return tow_status_annotate(status, "piece %zu", i);
    }
    *out_pieces = pieces;
    return TOW_OK;
}

/* -- Sends and receives ---------------------------------------------------- */

static tow_status_t check_sends(const tow_route_t *route)
{
    for (size_t i = 0; i < route->send_count; i++)
        if (route->sends[i].source_shard >= route->source_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "piece %zu is of shard %u, and the worker has %zu",
                             i, route->sends[i].source_shard,
                             route->source_count);
    return TOW_OK;
}

/* The pieces of each target cover it from its first byte to its last. */
static tow_status_t check_receives(const reading_t *reading)
{
    const tow_route_t *route = reading->route;
    size_t at = 0;
    for (uint32_t shard = 0; shard < route->target_count; shard++) {
        uint64_t end = 0;
        for (uint32_t number = 0; end < reading->target_bytes; number++) {
            const tow_piece_t *piece = &route->receives[at];
            if (at == route->receive_count || piece->target_shard != shard ||
                piece->number != number || piece->offset != end)
                return TOW_ERROR(TOW_INVALID_ARGUMENT,
                                 "target shard %u is not covered from byte "
                                 "%llu on",
                                 shard, (unsigned long long)end);
            end += piece->bytes;
            at++;
        }
    }
    if (at == route->receive_count) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%zu pieces are received, and %zu are wanted",
                     route->receive_count, at);
}

/* Slots and shards must match. */
static tow_status_t check_ends(const tow_route_t *route,
                               const tow_msg_lowered_step_t *step)
{
    if (step->n_inputs > 1 || step->output_count > 1 ||
        step->n_non_donatable > 0 || step->n_inputs + step->output_count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a transfer with %zu inputs, %u outputs and %zu "
                         "non-donatable inputs",
                         step->n_inputs, step->output_count,
                         step->n_non_donatable);
    if ((route->source_count > 0) != (step->n_inputs > 0) ||
        (route->target_count > 0) != (step->output_count > 0))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu shards for %zu inputs, %zu for %u outputs",
                         route->source_count, step->n_inputs,
                         route->target_count, step->output_count);
    if (route->source_count > TOW_WORKER_DEVICES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu shards, and a worker has at most %u",
                         route->source_count, TOW_WORKER_DEVICES_MAX);
    return TOW_OK;
}

static tow_status_t read_route(reading_t *reading,
                               const tow_msg_lowered_step_t *step,
                               tow_arena_t *arena)
{
    const tow_msg_route_t *message = reading->message;
    tow_route_t *route = reading->route;
    TOW_RETURN_IF_ERROR(read_shapes(reading));
    TOW_RETURN_IF_ERROR(tow_devices_unpack(message->target_devices,
                                           message->n_target_devices, arena,
                                           &route->target_devices));
    route->target_count = message->n_target_devices;
    TOW_RETURN_IF_ERROR(check_ends(route, step));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(read_pieces(reading, message->sends,
                                        message->n_sends, arena, &route->sends),
                            "sends"));
    TOW_RETURN_IF_ERROR(tow_status_annotate(
        read_pieces(reading, message->receives, message->n_receives, arena,
                    &route->receives),
        "receives"));
    TOW_RETURN_IF_ERROR(check_sends(route));
    return check_receives(reading);
}

tow_status_t tow_route_unpack(const tow_msg_lowered_step_t *step,
                              tow_arena_t *arena, const tow_route_t **out_route)
{
    tow_route_t *route = tow_arena_calloc(arena, 1, sizeof(*route));
    if (route == NULL) return tow_ir_exhausted();
    const tow_msg_route_t *message = step->route;
    reading_t reading = {.message = message, .route = route};
    route->is_packed = message->packed;
    route->source_count = message->source_count;
    route->send_count = message->n_sends;
    route->receive_count = message->n_receives;
    *out_route = route;
    return read_route(&reading, step, arena);
}
