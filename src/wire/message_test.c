#include "base/testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "wire/handshake.h"
#include "wire/message.h"

#define ARENA_BYTES_MAX ((size_t)1 << 20)
#define BINARY(bytes)   ((ProtobufCBinaryData){sizeof(bytes), (bytes)})

/* An encoded message, in a block of exactly its size. */
typedef struct wire {
    size_t size;
    uint8_t *bytes; /* owned */
} wire_t;

static wire_t encode(const tow_body_t *body)
{
    wire_t wire = {.size = tow_message_size(body)};
    wire.bytes = malloc(wire.size > 0 ? wire.size : 1);
    assert_non_null(wire.bytes);
    assert_int_equal(tow_message_encode(body, wire.bytes), wire.size);
    return wire;
}

static const tow_body_t *decode(uint32_t type, wire_t wire, tow_arena_t *arena)
{
    const tow_body_t *body;
    tow_status_t status =
        tow_message_decode(type, wire.bytes, wire.size, arena, &body);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return body;
}

static void expect(tow_status_t status, tow_code_t code, const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static void hello_and_refuse_round_trip(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    uint8_t nonce[TOW_NONCE_SIZE] = {1, 2}, proof[TOW_PROOF_SIZE] = {9};
    tow_msg_hello_t hello = TOW_MSG_HELLO_INIT;
    hello.nonce = BINARY(nonce);
    hello.name = "worker/3";
    hello.incarnation = UINT64_MAX;
    hello.features = 5;
    hello.software = "towpath 9";
    hello.proof = BINARY(proof);
    wire_t wire = encode(&hello.base);
    const tow_msg_hello_t *got =
        (const tow_msg_hello_t *)decode(TOW_MESSAGE_HELLO, wire, &arena);
    assert_memory_equal(got->nonce.data, nonce, sizeof(nonce));
    assert_memory_equal(got->proof.data, proof, sizeof(proof));
    assert_string_equal(got->name, "worker/3");
    assert_string_equal(got->software, "towpath 9");
    assert_true(got->incarnation == UINT64_MAX && got->features == 5);
    free(wire.bytes);

    tow_msg_refuse_t refuse = TOW_MSG_REFUSE_INIT;
    refuse.code = 16;
    refuse.reason = "no";
    wire = encode(&refuse.base);
    const tow_msg_refuse_t *refused =
        (const tow_msg_refuse_t *)decode(TOW_MESSAGE_REFUSE, wire, &arena);
    assert_int_equal(refused->code, 16);
    assert_string_equal(refused->reason, "no");
    free(wire.bytes);
    tow_arena_deinit(&arena);
}

static void bytes_and_nested_messages_round_trip(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    uint8_t payload[] = {0, 1, 255};
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.gang = UINT64_MAX;
    piece.number = 3;
    piece.bytes = BINARY(payload);
    wire_t wire = encode(&piece.base);
    const tow_msg_edge_piece_t *p = (const tow_msg_edge_piece_t *)decode(
        TOW_MESSAGE_EDGE_PIECE, wire, &arena);
    assert_true(p->gang == UINT64_MAX && p->number == 3 && p->shard == 0);
    assert_int_equal(p->bytes.len, 3);
    assert_memory_equal(p->bytes.data, payload, 3);
    free(wire.bytes);

    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    target.lane_address = BINARY(payload);
    target.region_secret = 0x0102030405060708;
    tow_msg_edge_offer_t offer = TOW_MSG_EDGE_OFFER_INIT;
    offer.shard = 4;
    offer.target = &target;
    wire = encode(&offer.base);
    const tow_msg_edge_offer_t *o = (const tow_msg_edge_offer_t *)decode(
        TOW_MESSAGE_EDGE_OFFER, wire, &arena);
    assert_int_equal(o->shard, 4);
    assert_true(o->target->region_secret == 0x0102030405060708);
    assert_int_equal(o->target->lane_address.len, 3);
    free(wire.bytes);
    tow_arena_deinit(&arena);
}

static void messages_of_no_bytes_have_defaults(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    wire_t nothing = {.bytes = malloc(1)};
    for (uint32_t type = 0; type < TOW_MESSAGE_TYPE_COUNT; type++) {
        if (tow_message_limits(type) != NULL) decode(type, nothing, &arena);
    }
    const tow_msg_hello_t *hello =
        (const tow_msg_hello_t *)decode(TOW_MESSAGE_HELLO, nothing, &arena);
    assert_string_equal(hello->name, "");
    assert_int_equal(hello->nonce.len, 0);
    free(nothing.bytes);
    tow_arena_deinit(&arena);
}

static void encoding_is_that_of_protobuf(void **state)
{
    uint8_t payload[] = {'h', 'i'};
    tow_msg_blob_t blob = TOW_MSG_BLOB_INIT;
    blob.blob = 1;
    blob.size = 300;
    blob.part = BINARY(payload);
    wire_t wire = encode(&blob.base);
    const uint8_t expected[] = {0x08, 1, 0x10, 0xac, 0x02, 0x22, 2, 'h', 'i'};
    assert_int_equal(wire.size, sizeof(expected));
    assert_memory_equal(wire.bytes, expected, sizeof(expected));
    free(wire.bytes);
}

static void limits_name_every_field_of_every_message(void **state)
{
    size_t known = 0;
    for (uint32_t type = 0; type < TOW_MESSAGE_TYPE_COUNT; type++) {
        const tow_limits_t *limits = tow_message_limits(type);
        if (limits == NULL) continue;
        known++;
        if (!tow_limits_are_complete(limits))
            fail_msg("limits of %s", tow_message_type_name(type));
        /* FIELD() in limits.c relies on numbers without gaps. */
        for (unsigned i = 0; i < limits->descriptor->n_fields; i++)
            assert_int_equal(limits->descriptor->fields[i].id, i + 1);
    }
    /* Every type of the schema but NONE has limits. */
    assert_int_equal(known, tow__message_type__descriptor.n_values - 1);
}

static void field_at_its_limit_passes_and_one_byte_more_does_not(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    uint8_t *payload = calloc(1, TOW_INLINE_BYTES_MAX + 1);
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.bytes = (ProtobufCBinaryData){TOW_INLINE_BYTES_MAX, payload};
    wire_t wire = encode(&piece.base);
    decode(TOW_MESSAGE_EDGE_PIECE, wire, &arena);
    free(wire.bytes);
    piece.bytes.len++;
    wire = encode(&piece.base);
    const tow_body_t *body;
    size_t used = arena.bytes_used;
    expect(tow_message_decode(TOW_MESSAGE_EDGE_PIECE, wire.bytes, wire.size,
                              &arena, &body),
           TOW_INVALID_ARGUMENT, "message EdgePiece, field bytes: too long");
    assert_null(body);
    assert_int_equal(arena.bytes_used, used);
    free(wire.bytes);
    free(payload);
    tow_arena_deinit(&arena);
}

static void every_truncation_is_refused_or_decodes_less(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    uint8_t nonce[TOW_NONCE_SIZE] = {1};
    tow_msg_hello_t hello = TOW_MSG_HELLO_INIT;
    hello.nonce = BINARY(nonce);
    hello.name = "worker";
    hello.incarnation = 1;
    wire_t wire = encode(&hello.base);
    for (size_t size = 0; size < wire.size; size++) {
        uint8_t *exact = malloc(size > 0 ? size : 1);
        memcpy(exact, wire.bytes, size);
        const tow_body_t *body;
        tow_status_t status =
            tow_message_decode(TOW_MESSAGE_HELLO, exact, size, &arena, &body);
        assert_true((status == TOW_OK) == (body != NULL));
        tow_status_release(status);
        free(exact);
        tow_arena_reset(&arena);
    }
    free(wire.bytes);
    tow_arena_deinit(&arena);
}

static void unknown_fields_are_skipped(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    uint8_t later[] = {0x08, 7,    0xa2, 0x06, 3,    'n', 'e',
                       'w',  0x10, 8,    0xa8, 0x06, 1};
    const tow_msg_blob_t *blob = (const tow_msg_blob_t *)decode(
        TOW_MESSAGE_BLOB, (wire_t){sizeof(later), later}, &arena);
    assert_true(blob->blob == 7 && blob->size == 8);
    tow_arena_deinit(&arena);
}

static void unknown_types_are_named(void **state)
{
    static const uint32_t types[] = {
        0, 5, 15, 16, 19, TOW_MESSAGE_TYPE_COUNT, 65535, UINT32_MAX};
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    for (size_t i = 0; i < TOW_COUNT_OF(types); i++) {
        const tow_body_t *body;
        expect(
            tow_message_decode(types[i], (const uint8_t *)"", 0, &arena, &body),
            TOW_UNIMPLEMENTED, "unknown message type");
        assert_null(body);
        assert_string_equal(tow_message_type_name(types[i]), "?");
    }
    assert_string_equal(tow_message_type_name(TOW_MESSAGE_EDGE_OFFER),
                        "EdgeOffer");
    tow_arena_deinit(&arena);
}

static void arena_at_its_end_is_resource_exhausted(void **state)
{
    uint8_t payload[2000] = {0};
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.bytes = BINARY(payload);
    wire_t wire = encode(&piece.base);
    for (size_t bytes_max = 1; bytes_max < 2000; bytes_max += 100) {
        tow_arena_t arena;
        const tow_body_t *body;
        tow_arena_init(&arena, bytes_max);
        expect(tow_message_decode(TOW_MESSAGE_EDGE_PIECE, wire.bytes, wire.size,
                                  &arena, &body),
               TOW_RESOURCE_EXHAUSTED, "no memory");
        tow_arena_deinit(&arena);
    }
    free(wire.bytes);
}

static tow_exhaust_result_t decode_with_little_memory(void *context)
{
    wire_t *wire = context;
    tow_arena_t arena;
    const tow_body_t *body;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_status_t status = tow_message_decode(
        TOW_MESSAGE_EDGE_PIECE, wire->bytes, wire->size, &arena, &body);
    tow_exhaust_result_t result = TOW_EXHAUST_SUCCEEDED;
    if (status != TOW_OK) {
        assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
        result = TOW_EXHAUST_FAILED;
    }
    tow_status_release(status);
    tow_arena_deinit(&arena);
    return result;
}

static void refused_memory_is_reported_and_nothing_leaks(void **state)
{
    uint8_t payload[9000] = {0};
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.bytes = BINARY(payload);
    wire_t wire = encode(&piece.base);
    assert_true(tow_test_exhaust(decode_with_little_memory, &wire) >= 1);
    free(wire.bytes);
}

static void decoding_into_a_warm_arena_takes_nothing_from_the_heap(void **state)
{
    tow_arena_t arena;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    uint8_t payload[100] = {0};
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.bytes = BINARY(payload);
    wire_t wire = encode(&piece.base);
    decode(TOW_MESSAGE_EDGE_PIECE, wire, &arena);
    tow_alloc_fail_after(0);
    for (int i = 0; i < 1000; i++) {
        tow_arena_reset(&arena);
        decode(TOW_MESSAGE_EDGE_PIECE, wire, &arena);
    }
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
    free(wire.bytes);
    tow_arena_deinit(&arena);
}

TOW_TEST_MAIN(
    cmocka_unit_test(hello_and_refuse_round_trip),
    cmocka_unit_test(bytes_and_nested_messages_round_trip),
    cmocka_unit_test(messages_of_no_bytes_have_defaults),
    cmocka_unit_test(encoding_is_that_of_protobuf),
    cmocka_unit_test(limits_name_every_field_of_every_message),
    cmocka_unit_test(field_at_its_limit_passes_and_one_byte_more_does_not),
    cmocka_unit_test(every_truncation_is_refused_or_decodes_less),
    cmocka_unit_test(unknown_fields_are_skipped),
    cmocka_unit_test(unknown_types_are_named),
    cmocka_unit_test(arena_at_its_end_is_resource_exhausted),
    cmocka_unit_test(refused_memory_is_reported_and_nothing_leaks),
    cmocka_unit_test(decoding_into_a_warm_arena_takes_nothing_from_the_heap))
