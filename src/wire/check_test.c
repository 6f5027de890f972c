/* The check runs before protobuf-c, so the tests encode messages by hand. Their
 * descriptors are made here, with all kinds of repeated and nested fields. */
#include "base/testing.h"

#include <stdbool.h>
#include <string.h>

#include "wire/check.h"
#include "wire/message.h"

/* message Inner { string text = 1; }
 * message Outer { repeated fixed64 wide = 1; repeated uint64 numbers = 2;
 *                 Inner inner = 3; repeated fixed32 narrow = 4; } */
static const ProtobufCFieldDescriptor inner_fields[] = {
    {.name = "text",
     .id = 1,
     .label = PROTOBUF_C_LABEL_NONE,
     .type = PROTOBUF_C_TYPE_STRING},
};
static const ProtobufCIntRange inner_ranges[] = {{1, 0}, {0, 1}};
static const ProtobufCMessageDescriptor inner_descriptor = {
    .magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
    .short_name = "Inner",
    .n_fields = 1,
    .fields = inner_fields,
    .n_field_ranges = 1,
    .field_ranges = inner_ranges,
};
static const ProtobufCFieldDescriptor outer_fields[] = {
    {.name = "wide",
     .id = 1,
     .label = PROTOBUF_C_LABEL_REPEATED,
     .type = PROTOBUF_C_TYPE_FIXED64},
    {.name = "numbers",
     .id = 2,
     .label = PROTOBUF_C_LABEL_REPEATED,
     .type = PROTOBUF_C_TYPE_UINT64},
    {.name = "inner",
     .id = 3,
     .label = PROTOBUF_C_LABEL_NONE,
     .type = PROTOBUF_C_TYPE_MESSAGE,
     .descriptor = &inner_descriptor},
    {.name = "narrow",
     .id = 4,
     .label = PROTOBUF_C_LABEL_REPEATED,
     .type = PROTOBUF_C_TYPE_FIXED32},
};
static const ProtobufCIntRange outer_ranges[] = {{1, 0}, {0, 4}};
static const ProtobufCMessageDescriptor outer_descriptor = {
    .magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
    .short_name = "Outer",
    .n_fields = 4,
    .fields = outer_fields,
    .n_field_ranges = 1,
    .field_ranges = outer_ranges,
};
static const tow_limits_t inner_limits = {
    .descriptor = &inner_descriptor,
    .fields = {{.bytes_max = 4}},
};
static const tow_limits_t outer_limits = {
    .descriptor = &outer_descriptor,
    .fields = {{.count_max = 2},
               {.count_max = 3},
               {.nested = &inner_limits},
               {.count_max = 1}},
};

#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1

static void accept(const uint8_t *bytes, size_t count)
{
    tow_check_fault_t fault = {0};
    if (!tow_check(&outer_limits, bytes, count, &fault))
        fail_msg("%s.%s: %s", fault.message, fault.field, fault.problem);
}

static void refuse(const char *field, const char *problem, const uint8_t *bytes,
                   size_t count)
{
    tow_check_fault_t fault = {0};
    assert_false(tow_check(&outer_limits, bytes, count, &fault));
    assert_string_equal(fault.problem, problem);
    if (field == NULL)
        assert_null(fault.field);
    else
        assert_string_equal(fault.field, field);
}

static void lists_within_their_limits_pass(void **state)
{
    accept(BYTES(""));
    accept(BYTES("\x0a\x10"
                 "AAAAAAAABBBBBBBB")); /* two packed */
    accept(BYTES("\x09"
                 "AAAAAAAA"
                 "\x09"
                 "BBBBBBBB")); /* two alone */
    accept(BYTES("\x12\x04\x01\x80\x01\x05"));
    accept(BYTES("\x25"
                 "AAAA"));
    accept(BYTES("\x1a\x06\x0a\x04"
                 "text"));
}

static void lists_past_their_limits_are_refused(void **state)
{
    refuse("wide", "too many elements",
           BYTES("\x0a\x18"
                 "AAAAAAAABBBBBBBBCCCCCCCC"));
    refuse("wide", "too many elements",
           BYTES("\x0a\x10"
                 "AAAAAAAABBBBBBBB"
                 "\x09"
                 "CCCCCCCC"));
    refuse("numbers", "too many elements", BYTES("\x12\x04\x01\x02\x03\x04"));
    refuse("narrow", "too many elements",
           BYTES("\x22\x08"
                 "AAAABBBB"));
    refuse("wide", "cut off",
           BYTES("\x0a\x09"
                 "AAAAAAAAB"));
    refuse("narrow", "cut off",
           BYTES("\x22\x05"
                 "AAAAB"));
    refuse("numbers", "cut off", BYTES("\x12\x02\x01\x80"));
}

static void nested_messages_are_held_to_their_own_limits(void **state)
{
    refuse("text", "too long",
           BYTES("\x1a\x07\x0a\x05"
                 "texts"));
    refuse("text", "zero byte in a string",
           BYTES("\x1a\x04\x0a\x02"
                 "\x00t"));
    refuse("inner", "too many elements", BYTES("\x1a\x00\x1a\x00"));
    refuse("text", "longer than the message",
           BYTES("\x1a\x03\x0a\x05"
                 "t"));
}

static void malformed_bytes_are_refused(void **state)
{
    refuse(NULL, "malformed key", BYTES("\x80"));
    refuse(NULL, "malformed key", BYTES("\x00"));
    refuse(NULL, "malformed key", BYTES("\x07"));
    refuse(NULL, "malformed key", BYTES("\xff\xff\xff\xff\x7f"));
    refuse(NULL, "malformed key", BYTES("\xff\xff\xff\xff\xff\x01"));
    refuse("wide", "cut off",
           BYTES("\x09"
                 "AAAAAAA"));
    refuse("wide", "wrong wire type", BYTES("\x08\x01"));
    refuse("inner", "wrong wire type", BYTES("\x18\x01"));
    refuse("numbers", "cut off", BYTES("\x10\x80\x80"));
    refuse("numbers", "cut off",
           BYTES("\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"));
    refuse("numbers", "malformed length", BYTES("\x12\x80"));
    refuse("numbers", "malformed length",
           BYTES("\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"));
    refuse("inner", "longer than the message", BYTES("\x1a\x01"));
    /* Groups and reserved wire types, known field or not. */
    refuse("wide", "wrong wire type", BYTES("\x0b"));
    refuse(NULL, "malformed unknown field", BYTES("\x2b"));
    refuse(NULL, "malformed unknown field", BYTES("\x2f"));
}

static void unknown_fields_pass_up_to_their_limit(void **state)
{
    uint8_t bytes[2 * (TOW_CHECK_UNKNOWN_MAX + 1)];
    for (size_t i = 0; i < TOW_COUNT_OF(bytes); i += 2) {
        bytes[i] = 0x28;
        bytes[i + 1] = 1;
    }
    accept(bytes, 2 * TOW_CHECK_UNKNOWN_MAX);
    refuse(NULL, "too many unknown fields", bytes, sizeof(bytes));
    accept(BYTES("\x2a\x03"
                 "any"
                 "\x2d"
                 "AAAA"
                 "\x29"
                 "AAAAAAAA"));
    refuse(NULL, "malformed unknown field",
           BYTES("\x2a\x04"
                 "any"));
}

static void limits_must_name_every_field_that_needs_one(void **state)
{
    assert_true(tow_limits_are_complete(&outer_limits));
    tow_limits_t limits = outer_limits;
    limits.fields[1].count_max = 0;
    assert_false(tow_limits_are_complete(&limits));
    limits = outer_limits;
    limits.fields[2].nested = NULL;
    assert_false(tow_limits_are_complete(&limits));
    limits = outer_limits;
    limits.fields[2].nested = &outer_limits;
    assert_false(tow_limits_are_complete(&limits));
    limits = outer_limits;
    limits.fields[4].bytes_max = 1; /* a field that is not there */
    assert_false(tow_limits_are_complete(&limits));
    limits = inner_limits;
    limits.fields[0].bytes_max = 0;
    assert_false(tow_limits_are_complete(&limits));
}

TOW_TEST_MAIN(cmocka_unit_test(lists_within_their_limits_pass),
              cmocka_unit_test(lists_past_their_limits_are_refused),
              cmocka_unit_test(nested_messages_are_held_to_their_own_limits),
              cmocka_unit_test(malformed_bytes_are_refused),
              cmocka_unit_test(unknown_fields_pass_up_to_their_limit),
              cmocka_unit_test(limits_must_name_every_field_that_needs_one))
