/* Shapes and shardings of the values of a program. */
#include <string.h>

#include "base/assert.h"
#include "ir/graph_impl.h"

static const tow_node_t *producer_of(const tow_graph_t *program,
                                     tow_value_t value)
{
    return tow_graph_node(program, value.node);
}

tow_value_t tow_value_origin(const tow_graph_t *program, tow_value_t value)
{
    for (;;) {
        const tow_node_t *producer = producer_of(program, value);
        if (producer->kind == TOW_NODE_TRANSFER)
            value = producer->inputs[0];
        else if (producer->kind == TOW_NODE_COLLECTIVE)
            value = producer->inputs[value.output];
        else
            return value;
    }
}

static const tow_array_info_t *result_of(const tow_graph_t *program,
                                         const tow_graph_scope_t *scope,
                                         tow_value_t value,
                                         const tow_signature_t **out_signature)
{
    const tow_signature_t *signature =
        scope->function(scope->context, producer_of(program, value)->function);
    TOW_ASSERT(signature != NULL && value.output < signature->result_count);
    *out_signature = signature;
    return &signature->results[value.output];
}

/* -- Shardings ------------------------------------------------------------- */

tow_status_t tow_array_sharding(const tow_signature_t *signature,
                                const tow_array_info_t *array,
                                size_t device_count,
                                tow_sharding_t *out_sharding)
{
    *out_sharding = (tow_sharding_t){0};
    if (device_count == 1) {
        *out_sharding = tow_sharding_replicated(array->shape.rank, 1);
        return TOW_OK;
    }
    /* A sharding of another rank is treated as unknown. */
    if (array->sharding.data == NULL || array->order.size > 0) return TOW_OK;
    if (signature->replica_count > 1)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "function %s has %zu replicas, each with values of "
                         "its own; compile it with partitions only",
                         signature->name, signature->replica_count);
    return tow_sharding_from_xla(array->sharding, array->shape.rank,
                                 device_count, out_sharding);
}

static uint32_t rank_of(const tow_graph_t *program,
                        const tow_graph_scope_t *scope, tow_value_t value)
{
    const tow_signature_t *signature;
    value = tow_value_origin(program, value);
    const tow_node_t *producer = producer_of(program, value);
    if (producer->kind == TOW_NODE_ARGUMENT) return producer->shape.rank;
    return result_of(program, scope, value, &signature)->shape.rank;
}

tow_status_t tow_value_sharding(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                tow_value_t value, tow_sharding_t *out_sharding)
{
    const tow_node_t *producer = producer_of(program, value);
    const size_t device_count =
        scope->slice_devices(scope->context, producer->slice);
    if (tow_node_has_function(producer)) {
        const tow_signature_t *signature;
        const tow_array_info_t *result =
            result_of(program, scope, value, &signature);
        return tow_array_sharding(signature, result, device_count,
                                  out_sharding);
    }
    *out_sharding = producer->to != NULL ? *producer->to : (tow_sharding_t){0};
    if (!tow_sharding_is_known(out_sharding) && device_count == 1)
        *out_sharding =
            tow_sharding_replicated(rank_of(program, scope, value), 1);
    return TOW_OK;
}

tow_status_t tow_sharding_make_optional(tow_status_t take_status)
{
    if (tow_status_code(take_status) == TOW_RESOURCE_EXHAUSTED)
        return take_status;
    tow_status_ignore(take_status, "what is not understood is not known");
    return TOW_OK;
}

bool tow_edge_is_plain(const tow_graph_t *program,
                       const tow_graph_scope_t *scope, tow_value_t value,
                       const tow_array_info_t *wanted)
{
    const tow_signature_t *signature;
    if (wanted->sharding.data == NULL) return true;
    if (!tow_node_has_function(producer_of(program, value))) return false;
    const tow_bytes_t given =
        result_of(program, scope, value, &signature)->sharding;
    return given.data != NULL && given.size == wanted->sharding.size &&
           memcmp(given.data, wanted->sharding.data, given.size) == 0;
}

/* -- Shapes ---------------------------------------------------------------- */

/* All transfers of a chain move one array, whose shape follows from the first
 * of them and its input. */
static tow_status_t whole_shape(const tow_graph_t *program,
                                const tow_graph_scope_t *scope,
                                tow_value_t value, tow_shape_t *out_whole)
{
    const tow_node_t *transfer = producer_of(program, value);
    tow_sharding_t from = {0};
    tow_shape_t shard;
    while (producer_of(program, transfer->inputs[0])->kind == TOW_NODE_TRANSFER)
        transfer = producer_of(program, transfer->inputs[0]);
    if (tow_sharding_is_known(transfer->from))
        from = *transfer->from;
    else
        TOW_RETURN_IF_ERROR(
            tow_value_sharding(program, scope, transfer->inputs[0], &from));
    if (!tow_sharding_is_known(&from))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "its sharding is unknown");
    TOW_RETURN_IF_ERROR(
        tow_value_shape(program, scope, transfer->inputs[0], &shard));
    return tow_sharding_whole(&from, &shard, out_whole);
}

tow_status_t tow_value_shape(const tow_graph_t *program,
                             const tow_graph_scope_t *scope, tow_value_t value,
                             tow_shape_t *out_shape)
{
    const tow_node_t *producer = producer_of(program, value);
    const tow_signature_t *signature;
    if (producer->kind == TOW_NODE_ARGUMENT) {
        *out_shape = producer->shape;
        return TOW_OK;
    }
    if (tow_node_has_function(producer)) {
        *out_shape = result_of(program, scope, value, &signature)->shape;
        return TOW_OK;
    }
    if (producer->kind == TOW_NODE_COLLECTIVE)
        return tow_value_shape(program, scope, producer->inputs[value.output],
                               out_shape);
    tow_shape_t whole;
    tow_sharding_t to;
    TOW_RETURN_IF_ERROR(whole_shape(program, scope, value, &whole));
    TOW_RETURN_IF_ERROR(tow_value_sharding(program, scope, value, &to));
    return tow_sharding_shard(&to, &whole, out_shape);
}

/* -- Irregular values ------------------------------------------- */

uint32_t tow_value_bounds(const tow_graph_t *program,
                          const tow_graph_scope_t *scope, tow_value_t value)
{
    const tow_signature_t *signature;
    value = tow_value_origin(program, value);
    if (producer_of(program, value)->kind != TOW_NODE_HOST) return 0;
    return result_of(program, scope, value, &signature)->bounds;
}

bool tow_node_is_irregular(const tow_graph_t *program,
                           const tow_graph_scope_t *scope, uint32_t index)
{
    const tow_node_t *node = tow_graph_node(program, index);
    for (size_t i = 0; i < node->input_count; i++)
        if (tow_value_bounds(program, scope, node->inputs[i]) != 0) return true;
    if (node->kind != TOW_NODE_HOST) return false;
    const tow_signature_t *signature =
        scope->function(scope->context, node->function);
    for (size_t i = 0; i < signature->result_count; i++)
        if (signature->results[i].bounds != 0) return true;
    return false;
}
