#include "wire/message.h"

#include <stdbool.h>

const char *tow_message_type_name(uint32_t type)
{
    const tow_limits_t *limits = tow_message_limits(type);
    return limits == NULL ? "?" : limits->descriptor->short_name;
}

size_t tow_message_size(const tow_body_t *body)
{
    return protobuf_c_message_get_packed_size(body);
}

size_t tow_message_encode(const tow_body_t *body, uint8_t *bytes)
{
    return protobuf_c_message_pack(body, bytes);
}

/* Context of the allocator that protobuf-c uses. */
typedef struct unpacking {
    tow_arena_t *arena;
    bool exhausted;
} unpacking_t;

static void *take_from_arena(void *context, size_t count)
{
    unpacking_t *unpacking = context;
    void *memory = tow_arena_alloc(unpacking->arena, count);
    if (memory == NULL) unpacking->exhausted = true;
    return memory;
}

static void leave_in_arena(void *context, void *memory) {}

static TOW_COLD tow_status_t refuse_fault(const tow_check_fault_t *fault)
{
    if (fault->field == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "message %s: %s", fault->message,
                         fault->problem);
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "message %s, field %s: %s",
                     fault->message, fault->field, fault->problem);
}

static TOW_COLD tow_status_t refuse_unpacked(const tow_limits_t *limits,
                                             size_t count, bool exhausted)
{
    const char *name = limits->descriptor->short_name;
    if (exhausted)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "no memory to decode message %s of %zu bytes", name,
                         count);
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "message %s: malformed", name);
}

tow_status_t tow_body_decode(const tow_limits_t *limits, const uint8_t *bytes,
                             size_t count, tow_arena_t *arena,
                             const tow_body_t **out_body)
{
    *out_body = NULL;
    tow_check_fault_t fault;
    if (TOW_UNLIKELY(!tow_check(limits, bytes, count, &fault)))
        return refuse_fault(&fault);
    unpacking_t unpacking = {.arena = arena};
    ProtobufCAllocator allocator = {
        .alloc = take_from_arena,
        .free = leave_in_arena,
        .allocator_data = &unpacking,
    };
    *out_body =
        protobuf_c_message_unpack(limits->descriptor, &allocator, count, bytes);
    if (TOW_UNLIKELY(*out_body == NULL))
        return refuse_unpacked(limits, count, unpacking.exhausted);
    return TOW_OK;
}

tow_status_t tow_message_decode(uint32_t type, const uint8_t *bytes,
                                size_t count, tow_arena_t *arena,
                                const tow_body_t **out_body)
{
    *out_body = NULL;
    const tow_limits_t *limits = tow_message_limits(type);
    if (TOW_UNLIKELY(limits == NULL))
        return TOW_ERROR(
            TOW_UNIMPLEMENTED,
            "unknown message type %u; is the peer a newer version?", type);
    return tow_body_decode(limits, bytes, count, arena, out_body);
}
