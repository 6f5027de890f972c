#include "wire/message.h"

#include <stdbool.h>

#include "wire/handshake.h"

/* Limits by field number. Every field that a peer can make long is here. */
#define FIELD(number) [(number)-1]

static const tow_limits_t hello_limits = {
    .descriptor = &tow__hello__descriptor,
    .fields = {FIELD(1) = {.bytes_max = TOW_NONCE_SIZE},
               FIELD(2) = {.bytes_max = TOW_IDENTITY_NAME_MAX},
               FIELD(5) = {.bytes_max = TOW_SOFTWARE_MAX},
               FIELD(6) = {.bytes_max = TOW_PROOF_SIZE}},
};

static const tow_limits_t proof_limits = {
    .descriptor = &tow__proof__descriptor,
    .fields = {FIELD(1) = {.bytes_max = TOW_PROOF_SIZE}},
};

static const tow_limits_t welcome_limits = {
    .descriptor = &tow__welcome__descriptor,
};

static const tow_limits_t refuse_limits = {
    .descriptor = &tow__refuse__descriptor,
    .fields = {FIELD(2) = {.bytes_max = TOW_REFUSE_REASON_MAX}},
};

static const tow_limits_t exchange_limits = {
    .descriptor = &tow__exchange__descriptor,
    .fields = {FIELD(3) = {.bytes_max = TOW_EXCHANGE_PAYLOAD_MAX}},
};

static const tow_limits_t exchange_ack_limits = {
    .descriptor = &tow__exchange_ack__descriptor,
};

static const tow_limits_t lane_offer_limits = {
    .descriptor = &tow__lane_offer__descriptor,
    .fields = {FIELD(1) = {.bytes_max = TOW_LANE_ADDRESS_MAX}},
};

static const tow_limits_t lane_result_limits = {
    .descriptor = &tow__lane_result__descriptor,
};

static const tow_limits_t *const limits_of[TOW_MESSAGE_TYPE_COUNT] = {
    [TOW_MESSAGE_HELLO] = &hello_limits,
    [TOW_MESSAGE_PROOF] = &proof_limits,
    [TOW_MESSAGE_WELCOME] = &welcome_limits,
    [TOW_MESSAGE_REFUSE] = &refuse_limits,
    [TOW_MESSAGE_EXCHANGE] = &exchange_limits,
    [TOW_MESSAGE_EXCHANGE_ACK] = &exchange_ack_limits,
    [TOW_MESSAGE_LANE_OFFER] = &lane_offer_limits,
    [TOW_MESSAGE_LANE_RESULT] = &lane_result_limits,
};

/* The schema and the header say the same numbers. */
#define SAME_NUMBER(name)                                           \
    _Static_assert((int)TOW_MESSAGE_##name ==                       \
                       (int)TOW__MESSAGE_TYPE__MESSAGE_TYPE_##name, \
                   #name " has two numbers")
SAME_NUMBER(HELLO);
SAME_NUMBER(PROOF);
SAME_NUMBER(WELCOME);
SAME_NUMBER(REFUSE);
SAME_NUMBER(EXCHANGE);
SAME_NUMBER(EXCHANGE_ACK);
SAME_NUMBER(LANE_OFFER);
SAME_NUMBER(LANE_RESULT);

const tow_limits_t *tow_message_limits(uint32_t type)
{
    return type < TOW_MESSAGE_TYPE_COUNT ? limits_of[type] : NULL;
}

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

/* What protobuf-c sees as its heap. */
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

tow_status_t tow_message_decode(uint32_t type, const uint8_t *bytes,
                                size_t count, tow_arena_t *arena,
                                const tow_body_t **out_body)
{
    *out_body = NULL;
    const tow_limits_t *limits = tow_message_limits(type);
    if (TOW_UNLIKELY(limits == NULL))
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "message type %u is not known to this version", type);
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
