/* Transfers and collectives: added to the program under trace, or run as a
 * program of their own. */
#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- Shardings ------------------------------------------------------------- */

static tow_status_t split_in(const tow_split_t *split, const tow_shape_t *shape,
                             size_t device_count, tow_sharding_t *out)
{
    *out = (tow_sharding_t){.rank = shape->rank};
    if (split->mesh_rank > TOW_MESH_AXES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a mesh of rank %u; the highest is %u",
                         split->mesh_rank, TOW_MESH_AXES_MAX);
    uint64_t count = 1;
    for (uint32_t i = 0; i < TOW_ARRAY_RANK_MAX; i++) {
        const uint32_t parts = split->parts[i] > 0 ? split->parts[i] : 1;
        if (i >= shape->rank && parts > 1)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "dimension %u is cut into %u parts, but the array "
                             "has rank %u",
                             i, parts, shape->rank);
        if (i < shape->rank) out->parts[i] = parts;
        count *= parts;
        if (count > device_count) break;
    }
    if (count > device_count || device_count % count != 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%llu%s parts for %zu devices",
                         (unsigned long long)count,
                         count > device_count ? " or more" : "", device_count);
    out->replicas = (uint32_t)(device_count / count);
    out->mesh_rank = split->mesh_rank;
    memcpy(out->mesh_dims, split->mesh_dims, sizeof(split->mesh_dims));
    memcpy(out->mesh_axes, split->mesh_axes, sizeof(split->mesh_axes));
    return tow_sharding_check(out, device_count);
}

static tow_status_t shard_by_shard(const tow_array_t *array,
                                   const tow_slice_t *slice,
                                   tow_sharding_t *out)
{
    const size_t count = array->slice->device_count;
    if (slice->device_count != count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "from %zu devices to %zu: give the shardings of the "
                         "array, `from` and `to`",
                         count, slice->device_count);
    *out = tow_sharding_by_shard(array->shape.rank, count);
    return TOW_OK;
}

tow_status_t tow_array_shardings(const tow_array_t *array,
                                 const tow_slice_t *slice,
                                 const tow_transfer_options_t *options,
                                 tow_sharding_t *out_from,
                                 tow_sharding_t *out_to)
{
    if (options->from == NULL && options->to == NULL) {
        TOW_RETURN_IF_ERROR(shard_by_shard(array, slice, out_from));
        *out_to = *out_from;
        return TOW_OK;
    }
    if (options->from == NULL || options->to == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "give both `from` and `to`, or neither");
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(split_in(options->from, &array->shape,
                                     array->slice->device_count, out_from),
                            "from"));
    return tow_status_annotate(
        split_in(options->to, &array->shape, slice->device_count, out_to),
        "to");
}

/* -- Transfers ------------------------------------------------------------- */

static tow_status_t note_move(tow_program_t *program, tow_value_t value,
                              tow_slice_t *slice, const tow_sharding_t *from,
                              const tow_sharding_t *to,
                              const tow_shape_t *shape, tow_array_t **out_array)
{
    tow_value_t place = {0};
    TOW_RETURN_IF_ERROR(
        tow_program_add_transfer(program, value, slice, from, to, &place.node));
    return tow_program_placeholder(program, slice, shape, place, out_array);
}

/* A program of an argument, a transfer and a result. */
static tow_status_t trace_move(tow_program_t *program, tow_array_t *array,
                               tow_slice_t *slice, const tow_sharding_t *from,
                               const tow_sharding_t *to,
                               const tow_shape_t *shape)
{
    tow_value_t value;
    TOW_RETURN_IF_ERROR(tow_program_add_argument(program, array->slice,
                                                 &array->shape, false, &value));
    tow_value_t moved = {0};
    TOW_RETURN_IF_ERROR(
        tow_program_add_transfer(program, value, slice, from, to, &moved.node));
    return tow_program_add_result(program, moved, slice, shape);
}

/* The run holds the program until it has completed. */
static tow_status_t run_move(tow_array_t *array, tow_slice_t *slice,
                             const tow_sharding_t *from,
                             const tow_sharding_t *to, const tow_shape_t *shape,
                             tow_array_t **out_array)
{
    tow_program_t *program;
    TOW_RETURN_IF_ERROR(tow_program_begin(array->client, "transfer", &program));
    tow_status_t status = trace_move(program, array, slice, from, to, shape);
    if (status == TOW_OK) status = tow_program_send(program);
    if (status == TOW_OK)
        status = tow_program_start(program, &array, 1, out_array, 1);
    tow_program_release_locked(program);
    return status;
}

tow_status_t tow_array_move(tow_array_t *array, tow_slice_t *slice,
                            const tow_sharding_t *from,
                            const tow_sharding_t *to, tow_array_t **out_array)
{
    tow_shape_t whole, shard;
    TOW_RETURN_IF_ERROR(tow_sharding_whole(from, &array->shape, &whole));
    TOW_RETURN_IF_ERROR(tow_sharding_shard(to, &whole, &shard));
    if (array->program != NULL) {
        TOW_RETURN_IF_ERROR(note_move(array->program, array->place, slice, from,
                                      to, &shard, out_array));
        (*out_array)->bounds = array->bounds;
        return TOW_OK;
    }
    if (array->bounds != 0)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the size of the array is known only when its value "
                         "exists: transfer it in the program that makes it");
    return run_move(array, slice, from, to, &shard, out_array);
}

/* -- Collectives ----------------------------------------------------------- */

static tow_status_t note_combine(tow_array_t *const *arrays, size_t count,
                                 const tow_collective_t *collective,
                                 const tow_value_t *inputs,
                                 tow_array_t **results)
{
    tow_program_t *program = arrays[0]->program;
    tow_slice_t *slice = arrays[0]->slice;
    uint32_t node = 0;
    TOW_RETURN_IF_ERROR(tow_program_add_collective(program, slice, collective,
                                                   inputs, count, &node));
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < count && status == TOW_OK; i++) {
        status = tow_program_placeholder(program, slice, &arrays[i]->shape,
                                         (tow_value_t){node, (uint32_t)i},
                                         &results[i]);
        while (status != TOW_OK && i-- > 0)
            tow_array_release_locked(results[i]);
    }
    return status;
}

/* A program of arguments, a collective and results. */
static tow_status_t trace_combine(tow_program_t *program,
                                  tow_array_t *const *arrays, size_t count,
                                  const tow_collective_t *collective,
                                  tow_value_t *inputs)
{
    tow_slice_t *slice = arrays[0]->slice;
    uint32_t node = 0;
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(tow_program_add_argument(
            program, slice, &arrays[i]->shape, false, &inputs[i]));
    TOW_RETURN_IF_ERROR(tow_program_add_collective(program, slice, collective,
                                                   inputs, count, &node));
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(
            tow_program_add_result(program, (tow_value_t){node, (uint32_t)i},
                                   slice, &arrays[i]->shape));
    return TOW_OK;
}

static tow_status_t run_combine(tow_array_t *const *arrays, size_t count,
                                const tow_collective_t *collective,
                                tow_value_t *inputs, tow_array_t **results)
{
    tow_program_t *program;
    TOW_RETURN_IF_ERROR(
        tow_program_begin(arrays[0]->client, "all_reduce", &program));
    tow_status_t status =
        trace_combine(program, arrays, count, collective, inputs);
    if (status == TOW_OK) status = tow_program_send(program);
    if (status == TOW_OK)
        status = tow_program_start(program, arrays, count, results, count);
    tow_program_release_locked(program);
    return status;
}

tow_status_t tow_arrays_combine(tow_array_t *const *arrays, size_t count,
                                const tow_collective_t *collective,
                                tow_array_t **results)
{
    tow_value_t *inputs = tow_calloc(count, sizeof(*inputs));
    if (inputs == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        inputs[i] = arrays[i]->place;
    tow_status_t status =
        arrays[0]->program != NULL
            ? note_combine(arrays, count, collective, inputs, results)
            : run_combine(arrays, count, collective, inputs, results);
    tow_free(inputs);
    return status;
}
