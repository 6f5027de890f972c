#include "device/signature.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "device/options.h"
#include "wire/message.h"

_Static_assert(TOW_VALUES_MAX < UINT32_MAX, "indices of arrays are 32 bits");

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Packing ---------------------------------------------------------------- */

/* The message points into the signature, and is only for encoding. */
typedef struct packing {
    const tow_signature_t *signature;
    tow_arena_t arena;
    tow_msg_executable_signature_t message;
} packing_t;

static tow_status_t too_many(const packing_t *packing, const char *what,
                             size_t count, size_t count_max)
{
    return TOW_ERROR(TOW_OUT_OF_RANGE,
                     "%s: %zu %s; a signature has at most %zu",
                     packing->signature->name, count, what, count_max);
}

static tow_status_t pack_array(packing_t *packing, const tow_array_info_t *info,
                               tow_msg_signature_array_t *out)
{
    *out = (tow_msg_signature_array_t)TOW_MSG_SIGNATURE_ARRAY_INIT;
    if (info->sharding.size > TOW_SHARDING_BYTES_MAX)
        return too_many(packing, "bytes of a sharding", info->sharding.size,
                        TOW_SHARDING_BYTES_MAX);
    out->type = (uint32_t)info->shape.type;
    out->n_dims = info->shape.rank;
    out->dims = (int64_t *)info->shape.dims; /* The encoder only reads. */
    out->bytes = info->bytes;
    out->bounds = info->bounds;
    out->memory = (uint32_t)info->memory;
    out->has_sharding = info->sharding.data != NULL;
    out->sharding.data = (uint8_t *)info->sharding.data;
    out->sharding.len = info->sharding.data != NULL ? info->sharding.size : 0;
    out->order.data = (uint8_t *)info->order.data;
    out->order.len = info->order.size;
    return TOW_OK;
}

static tow_status_t pack_arrays(packing_t *packing, const char *what,
                                const tow_array_info_t *infos, size_t count,
                                tow_msg_signature_array_t ***out)
{
    if (count > TOW_VALUES_MAX)
        return too_many(packing, what, count, TOW_VALUES_MAX);
    tow_msg_signature_array_t **list =
        tow_arena_calloc(&packing->arena, count + 1, sizeof(list[0]));
    tow_msg_signature_array_t *arrays =
        tow_arena_calloc(&packing->arena, count + 1, sizeof(arrays[0]));
    if (list == NULL || arrays == NULL) return exhausted();
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(pack_array(packing, &infos[i], &arrays[i]));
        list[i] = &arrays[i];
    }
    *out = list;
    return TOW_OK;
}

static tow_status_t pack_aliases(packing_t *packing)
{
    const size_t count = packing->signature->alias_count;
    if (count > TOW_VALUES_MAX)
        return too_many(packing, "aliases", count, TOW_VALUES_MAX);
    tow_msg_signature_alias_t **list =
        tow_arena_calloc(&packing->arena, count + 1, sizeof(list[0]));
    tow_msg_signature_alias_t *aliases =
        tow_arena_calloc(&packing->arena, count + 1, sizeof(aliases[0]));
    if (list == NULL || aliases == NULL) return exhausted();
    for (size_t i = 0; i < count; i++) {
        const tow_alias_t *alias = &packing->signature->aliases[i];
        aliases[i] = (tow_msg_signature_alias_t)TOW_MSG_SIGNATURE_ALIAS_INIT;
        aliases[i].result = (uint32_t)alias->result;
        aliases[i].argument = (uint32_t)alias->argument;
        aliases[i].required = alias->required;
        list[i] = &aliases[i];
    }
    packing->message.aliases = list;
    packing->message.n_aliases = count;
    return TOW_OK;
}

static tow_status_t pack_message(packing_t *packing)
{
    const tow_signature_t *signature = packing->signature;
    tow_msg_executable_signature_t *message = &packing->message;
    message->name = tow_arena_strndup(&packing->arena, signature->name,
                                      strnlen(signature->name, TOW_NAME_MAX));
    if (message->name == NULL) return exhausted();
    message->replica_count = (uint32_t)signature->replica_count;
    message->partition_count = (uint32_t)signature->partition_count;
    message->code_bytes = signature->code_bytes;
    message->temporary_bytes = signature->temporary_bytes;
    message->flops = signature->flops;
    message->bytes_accessed = signature->bytes_accessed;
    message->transcendentals = signature->transcendentals;
    message->host = signature->is_host;
    message->n_results = signature->result_count;
    TOW_RETURN_IF_ERROR(pack_arrays(packing, "results", signature->results,
                                    signature->result_count,
                                    &message->results));
    if (signature->argument_count == TOW_COUNT_UNKNOWN) return TOW_OK;
    message->has_arguments = true;
    message->n_arguments = signature->argument_count;
    TOW_RETURN_IF_ERROR(pack_arrays(packing, "arguments", signature->arguments,
                                    signature->argument_count,
                                    &message->arguments));
    return pack_aliases(packing);
}

static tow_status_t encode(packing_t *packing, void **out_bytes,
                           size_t *out_size)
{
    const size_t size = tow_message_size(&packing->message.base);
    if (size > TOW_SIGNATURE_BYTES_MAX)
        return too_many(packing, "bytes", size, TOW_SIGNATURE_BYTES_MAX);
    void *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return exhausted();
    *out_size = tow_message_encode(&packing->message.base, bytes);
    *out_bytes = bytes;
    return TOW_OK;
}

tow_status_t tow_signature_pack(const tow_signature_t *signature,
                                void **out_bytes, size_t *out_size)
{
    packing_t packing = {.signature = signature,
                         .message = TOW_MSG_EXECUTABLE_SIGNATURE_INIT};
    *out_bytes = NULL;
    *out_size = 0;
    tow_arena_init(&packing.arena, 0);
    tow_status_t status = pack_message(&packing);
    if (status == TOW_OK) status = encode(&packing, out_bytes, out_size);
    tow_arena_deinit(&packing.arena);
    return status;
}

/* -- Unpacking -------------------------------------------------------------- */

/* True for no order, or one that names each dimension once. */
static bool is_order(const tow_msg_signature_array_t *array)
{
    uint32_t named = 0;
    if (array->order.len == 0) return true;
    if (array->order.len != array->n_dims) return false;
    for (size_t i = 0; i < array->order.len; i++) {
        if (array->order.data[i] >= array->n_dims) return false;
        named |= 1u << array->order.data[i];
    }
    return (size_t)__builtin_popcount(named) == array->n_dims;
}

static tow_status_t unpack_array(const tow_msg_signature_array_t *array,
                                 const char *what, size_t index,
                                 tow_array_info_t *out)
{
    if (array->n_dims > TOW_RANK_MAX) /* The message's limits forbid it. */
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "signature, %s %zu: rank %zu",
                         what, index, array->n_dims);
    out->shape = (tow_shape_t){.type = (tow_type_t)array->type,
                               .rank = (uint32_t)array->n_dims};
    if (array->n_dims > 0)
        memcpy(out->shape.dims, array->dims,
               array->n_dims * sizeof(array->dims[0]));
    out->bytes = array->bytes;
    out->bounds = array->bounds;
    if (array->n_dims < 32 && array->bounds >> array->n_dims != 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "signature, %s %zu: bounds %#x of %zu dimensions",
                         what, index, array->bounds, array->n_dims);
    if (array->memory >= TOW_MEMORY_KIND_COUNT)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "signature, %s %zu: memory of kind %u", what, index,
                         array->memory);
    out->memory = (tow_memory_kind_t)array->memory;
    if (!is_order(array))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "signature, %s %zu: an invalid order of %zu "
                         "dimensions",
                         what, index, array->n_dims);
    out->order = (tow_bytes_t){array->order.data, array->order.len};
    if (array->has_sharding)
        out->sharding = (tow_bytes_t){
            array->sharding.len > 0 ? (void *)array->sharding.data : "",
            array->sharding.len};
    /* Tokens and types that we do not know have no size, and are accepted. */
    uint64_t bytes;
    if (tow_type_bits(out->shape.type) == 0) return TOW_OK;
    return tow_status_annotate(tow_shape_bytes(&out->shape, &bytes),
                               "signature, %s %zu", what, index);
}

static tow_status_t unpack_arrays(tow_arena_t *arena, const char *what,
                                  tow_msg_signature_array_t *const *arrays,
                                  size_t count, const tow_array_info_t **out)
{
    tow_array_info_t *infos =
        tow_arena_calloc(arena, count + 1, sizeof(infos[0]));
    if (infos == NULL) return exhausted();
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(unpack_array(arrays[i], what, i, &infos[i]));
    *out = infos;
    return TOW_OK;
}

static tow_status_t unpack_aliases(
    tow_arena_t *arena, const tow_msg_executable_signature_t *message,
    tow_signature_t *out)
{
    const size_t count = message->n_aliases;
    tow_alias_t *aliases =
        tow_arena_calloc(arena, count + 1, sizeof(aliases[0]));
    if (aliases == NULL) return exhausted();
    for (size_t i = 0; i < count; i++) {
        const tow_msg_signature_alias_t *alias = message->aliases[i];
        if (alias->result >= message->n_results ||
            alias->argument >= message->n_arguments)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "signature, alias %zu: result %u of %zu, argument "
                             "%u of %zu",
                             i, alias->result, message->n_results,
                             alias->argument, message->n_arguments);
        aliases[i] = (tow_alias_t){.result = alias->result,
                                   .argument = alias->argument,
                                   .required = alias->required};
    }
    out->aliases = aliases;
    out->alias_count = count;
    return TOW_OK;
}

static bool is_cost(double value)
{
    return isfinite(value) && value >= 0;
}

static tow_status_t check_numbers(const tow_msg_executable_signature_t *message)
{
    if (message->replica_count == 0 || message->partition_count == 0 ||
        message->partition_count >
            TOW_ASSIGNED_DEVICE_COUNT_MAX / message->replica_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "signature: %u replicas of %u partitions",
                         message->replica_count, message->partition_count);
    if (!is_cost(message->flops) || !is_cost(message->bytes_accessed) ||
        !is_cost(message->transcendentals))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "signature: %g flops, %g bytes accessed, %g "
                         "transcendentals",
                         message->flops, message->bytes_accessed,
                         message->transcendentals);
    if (!message->has_arguments && message->n_arguments > 0)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "signature: %zu arguments, but their number is unknown",
            message->n_arguments);
    return TOW_OK;
}

tow_status_t tow_signature_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                  tow_signature_t *out_signature)
{
    const tow_body_t *body;
    *out_signature = (tow_signature_t){0};
    if (bytes.size > TOW_SIGNATURE_BYTES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "signature of %zu bytes: the limit is %u", bytes.size,
                         TOW_SIGNATURE_BYTES_MAX);
    TOW_RETURN_IF_ERROR(tow_body_decode(&tow_executable_signature_limits,
                                        bytes.data, bytes.size, arena, &body));
    const tow_msg_executable_signature_t *message =
        (const tow_msg_executable_signature_t *)body;
    TOW_RETURN_IF_ERROR(check_numbers(message));
    tow_signature_t signature = {
        .name = message->name,
        .replica_count = message->replica_count,
        .partition_count = message->partition_count,
        .argument_count =
            message->has_arguments ? message->n_arguments : TOW_COUNT_UNKNOWN,
        .result_count = message->n_results,
        .code_bytes = message->code_bytes,
        .temporary_bytes = message->temporary_bytes,
        .flops = message->flops,
        .bytes_accessed = message->bytes_accessed,
        .transcendentals = message->transcendentals,
        .is_host = message->host,
    };
    TOW_RETURN_IF_ERROR(unpack_arrays(arena, "argument", message->arguments,
                                      message->n_arguments,
                                      &signature.arguments));
    TOW_RETURN_IF_ERROR(unpack_arrays(arena, "result", message->results,
                                      message->n_results, &signature.results));
    TOW_RETURN_IF_ERROR(unpack_aliases(arena, message, &signature));
    *out_signature = signature;
    return TOW_OK;
}
