#include "device/partition_query.h"

#include <string.h>

#include "base/alloc.h"
#include "wire/message.h"

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t check_size(const char *what, size_t size, size_t size_max)
{
    if (size <= size_max) return TOW_OK;
    return TOW_ERROR(
        TOW_OUT_OF_RANGE,
        "%s of a partition query or reply has %zu bytes: the limit "
        "is %zu",
        what, size, size_max);
}

static tow_status_t check_count(const char *what, size_t count)
{
    if (count <= TOW_VALUES_MAX) return TOW_OK;
    return TOW_ERROR(TOW_OUT_OF_RANGE, "%s: %zu operands: the limit is %u",
                     what, count, TOW_VALUES_MAX);
}

/* The encoder only reads. */
static ProtobufCBinaryData binary(tow_xla_bytes_t bytes)
{
    return (ProtobufCBinaryData){bytes.data != NULL ? bytes.size : 0,
                                 (uint8_t *)bytes.data};
}

/* Not NULL, also for no bytes. */
static tow_xla_bytes_t bytes_of(ProtobufCBinaryData binary)
{
    return (tow_xla_bytes_t){
        binary.data != NULL ? (const char *)binary.data : "", binary.len};
}

static tow_status_t encode(const tow_body_t *body, const char *what,
                           size_t size_max, void **out_bytes, size_t *out_size)
{
    const size_t size = tow_message_size(body);
    TOW_RETURN_IF_ERROR(check_size(what, size, size_max));
    void *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return exhausted();
    *out_size = tow_message_encode(body, bytes);
    *out_bytes = bytes;
    return TOW_OK;
}

/* -- Queries ---------------------------------------------------------------- */

static tow_status_t pack_value(const tow_xla_partition_value_t *value,
                               tow_msg_partition_value_t *out)
{
    *out = (tow_msg_partition_value_t)TOW_MSG_PARTITION_VALUE_INIT;
    TOW_RETURN_IF_ERROR(
        check_size("a shape", value->shape.size, TOW_SHARDING_BYTES_MAX));
    TOW_RETURN_IF_ERROR(
        check_size("a sharding", value->sharding.size, TOW_SHARDING_BYTES_MAX));
    out->shape = binary(value->shape);
    out->sharding = binary(value->sharding);
    out->has_sharding = value->sharding.data != NULL;
    return TOW_OK;
}

static tow_status_t pack_operands(const tow_xla_partition_query_t *query,
                                  tow_arena_t *arena,
                                  tow_msg_partition_query_content_t *message)
{
    const size_t count = query->operand_count;
    TOW_RETURN_IF_ERROR(check_count(query->target, count));
    tow_msg_partition_value_t *values =
        tow_arena_calloc(arena, count + 1, sizeof(values[0]));
    message->operands =
        tow_arena_calloc(arena, count + 1, sizeof(message->operands[0]));
    if (values == NULL || message->operands == NULL) return exhausted();
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(pack_value(&query->operands[i], &values[i]));
        message->operands[i] = &values[i];
    }
    message->n_operands = count;
    return TOW_OK;
}

tow_status_t tow_partition_query_pack(const tow_xla_partition_query_t *query,
                                      void **out_bytes, size_t *out_size)
{
    tow_msg_partition_query_content_t message =
        TOW_MSG_PARTITION_QUERY_CONTENT_INIT;
    tow_msg_partition_value_t result;
    tow_arena_t arena;
    message.kind = (uint32_t)query->kind;
    message.target = (char *)query->target;
    message.config = binary(query->config);
    message.result = &result;
    TOW_RETURN_IF_ERROR(pack_value(&query->result, &result));
    TOW_RETURN_IF_ERROR(check_size("the name of a custom call",
                                   strlen(query->target), TOW_NAME_MAX));
    TOW_RETURN_IF_ERROR(check_size("the configuration of a custom call",
                                   query->config.size,
                                   TOW_PARTITION_CONFIG_MAX));
    tow_arena_init(&arena, 0);
    tow_status_t status = pack_operands(query, &arena, &message);
    if (status == TOW_OK)
        status = encode(&message.base, "the message",
                        TOW_PARTITION_QUERY_BYTES_MAX, out_bytes, out_size);
    tow_arena_deinit(&arena);
    return status;
}

static tow_xla_partition_value_t unpack_value(
    const tow_msg_partition_value_t *message)
{
    if (message == NULL) return (tow_xla_partition_value_t){0};
    tow_xla_partition_value_t value = {.shape = bytes_of(message->shape)};
    if (message->has_sharding) value.sharding = bytes_of(message->sharding);
    return value;
}

tow_status_t tow_partition_query_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                        tow_xla_partition_query_t *out_query)
{
    const tow_body_t *body;
    *out_query = (tow_xla_partition_query_t){0};
    TOW_RETURN_IF_ERROR(
        check_size("the message", bytes.size, TOW_PARTITION_QUERY_BYTES_MAX));
    TOW_RETURN_IF_ERROR(tow_body_decode(&tow_partition_query_content_limits,
                                        bytes.data, bytes.size, arena, &body));
    const tow_msg_partition_query_content_t *message =
        (const tow_msg_partition_query_content_t *)body;
    if (message->kind < TOW_XLA_QUERY_PARTITION ||
        message->kind > TOW_XLA_QUERY_INSPECT)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a partition query of unknown kind %u", message->kind);
    tow_xla_partition_value_t *operands =
        tow_arena_calloc(arena, message->n_operands + 1, sizeof(operands[0]));
    if (operands == NULL) return exhausted();
    for (size_t i = 0; i < message->n_operands; i++)
        operands[i] = unpack_value(message->operands[i]);
    *out_query = (tow_xla_partition_query_t){
        .kind = (tow_xla_partition_query_kind_t)message->kind,
        .target = message->target,
        .config = bytes_of(message->config),
        .operands = operands,
        .operand_count = message->n_operands,
        .result = unpack_value(message->result)};
    return TOW_OK;
}

/* -- Replies ---------------------------------------------------------------- */

static tow_status_t pack_shardings(const tow_xla_partition_reply_t *reply,
                                   tow_arena_t *arena,
                                   tow_msg_partition_reply_content_t *message)
{
    const size_t count = reply->operand_count;
    TOW_RETURN_IF_ERROR(check_count("the message", count));
    ProtobufCBinaryData *list =
        tow_arena_calloc(arena, count + 1, sizeof(list[0]));
    if (list == NULL) return exhausted();
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(check_size("a sharding",
                                       reply->operand_shardings[i].size,
                                       TOW_SHARDING_BYTES_MAX));
        list[i] = binary(reply->operand_shardings[i]);
    }
    message->operand_shardings = list;
    message->n_operand_shardings = count;
    return TOW_OK;
}

tow_status_t tow_partition_reply_pack(const tow_xla_partition_reply_t *reply,
                                      void **out_bytes, size_t *out_size)
{
    tow_msg_partition_reply_content_t message =
        TOW_MSG_PARTITION_REPLY_CONTENT_INIT;
    tow_arena_t arena;
    TOW_RETURN_IF_ERROR(check_size("a program for one device",
                                   reply->program.size,
                                   TOW_PARTITION_PROGRAM_MAX));
    TOW_RETURN_IF_ERROR(check_size("a sharding", reply->result_sharding.size,
                                   TOW_SHARDING_BYTES_MAX));
    message.program = binary(reply->program);
    message.result_sharding = binary(reply->result_sharding);
    message.has_result_sharding = reply->result_sharding.data != NULL;
    tow_arena_init(&arena, 0);
    tow_status_t status = pack_shardings(reply, &arena, &message);
    if (status == TOW_OK)
        status = encode(&message.base, "the message",
                        TOW_PARTITION_REPLY_BYTES_MAX, out_bytes, out_size);
    tow_arena_deinit(&arena);
    return status;
}

tow_status_t tow_partition_reply_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                        tow_xla_partition_reply_t *out_reply)
{
    const tow_body_t *body;
    *out_reply = (tow_xla_partition_reply_t){0};
    TOW_RETURN_IF_ERROR(
        check_size("the message", bytes.size, TOW_PARTITION_REPLY_BYTES_MAX));
    TOW_RETURN_IF_ERROR(tow_body_decode(&tow_partition_reply_content_limits,
                                        bytes.data, bytes.size, arena, &body));
    const tow_msg_partition_reply_content_t *message =
        (const tow_msg_partition_reply_content_t *)body;
    const size_t count = message->n_operand_shardings;
    tow_xla_bytes_t *shardings =
        tow_arena_calloc(arena, count + 1, sizeof(shardings[0]));
    if (shardings == NULL) return exhausted();
    for (size_t i = 0; i < count; i++)
        shardings[i] = bytes_of(message->operand_shardings[i]);
    *out_reply =
        (tow_xla_partition_reply_t){.program = bytes_of(message->program),
                                    .operand_shardings = shardings,
                                    .operand_count = count};
    if (message->has_result_sharding)
        out_reply->result_sharding = bytes_of(message->result_sharding);
    return TOW_OK;
}
