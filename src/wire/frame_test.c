#include "base/testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "wire/frame.h"

#define PAYLOAD_SIZE  29u
#define FRAME_SIZE    (TOW_FRAME_HEADER_SIZE + PAYLOAD_SIZE)
#define SIZE_MAX_HERE 4096u

typedef struct parsed {
    tow_frame_result_t result;
    tow_frame_t frame;
    size_t needed;
    tow_status_t error; /* owned */
} parsed_t;

/* Parses a copy that ends where the heap block ends, so that a read beyond
 * `available` is found by the address sanitizer. */
static parsed_t parse(const uint8_t *bytes, size_t available)
{
    parsed_t parsed = {0};
    uint8_t *exact = malloc(available > 0 ? available : 1);
    assert_non_null(exact);
    memcpy(exact, bytes, available);
    parsed.result =
        tow_frame_parse(exact, available, SIZE_MAX_HERE, &parsed.frame,
                        &parsed.needed, &parsed.error);
    free(exact);
    return parsed;
}

static void make_frame(uint8_t frame[FRAME_SIZE])
{
    for (uint8_t i = 0; i < PAYLOAD_SIZE; i++)
        frame[TOW_FRAME_HEADER_SIZE + i] = (uint8_t)(i * 7 + 1);
    tow_frame_seal(frame, 0x1234, PAYLOAD_SIZE);
}

static void sealed_frame_parses_back(void **state)
{
    uint8_t frame[FRAME_SIZE];
    make_frame(frame);
    tow_frame_t out;
    size_t needed;
    tow_status_t error;
    assert_int_equal(tow_frame_parse(frame, sizeof(frame), SIZE_MAX_HERE, &out,
                                     &needed, &error),
                     TOW_FRAME_READY);
    assert_int_equal(out.type, 0x1234);
    assert_int_equal(out.size, PAYLOAD_SIZE);
    assert_ptr_equal(out.payload, frame + TOW_FRAME_HEADER_SIZE);
}

static void frame_lies_on_the_wire_as_documented(void **state)
{
    uint8_t frame[TOW_FRAME_HEADER_SIZE + 2] = {[12] = 'h', [13] = 'i'};
    tow_frame_seal(frame, 0x0210, 2);
    const uint8_t head[] = {2, 0, 0, 0, 0x10, 0x02, 0, 0};
    assert_memory_equal(frame, head, sizeof(head));
    const uint8_t covered[] = {2, 0, 0, 0, 0x10, 0x02, 0, 0, 'h', 'i'};
    uint32_t crc = tow_crc32c(0, covered, sizeof(covered));
    for (int i = 0; i < 4; i++)
        assert_int_equal(frame[8 + i], (uint8_t)(crc >> (8 * i)));
}

static void empty_frame_parses(void **state)
{
    uint8_t frame[TOW_FRAME_HEADER_SIZE];
    tow_frame_seal(frame, 3, 0);
    parsed_t parsed = parse(frame, sizeof(frame));
    assert_int_equal(parsed.result, TOW_FRAME_READY);
    assert_int_equal(parsed.frame.size, 0);
}

static void every_truncation_is_partial_and_says_what_is_needed(void **state)
{
    uint8_t frame[FRAME_SIZE];
    make_frame(frame);
    for (size_t available = 0; available < FRAME_SIZE; available++) {
        parsed_t parsed = parse(frame, available);
        assert_int_equal(parsed.result, TOW_FRAME_PARTIAL);
        /* The size is in the first four bytes. */
        assert_int_equal(parsed.needed,
                         available < 4 ? TOW_FRAME_HEADER_SIZE : FRAME_SIZE);
    }
}

/* A flipped bit in the size makes the frame longer or shorter: what follows it
 * in the stream is given too, as it would come. */
static void every_flipped_bit_is_found(void **state)
{
    uint8_t stream[SIZE_MAX_HERE + TOW_FRAME_HEADER_SIZE] = {0};
    make_frame(stream);
    make_frame(stream + FRAME_SIZE);
    for (size_t bit = 0; bit < FRAME_SIZE * 8; bit++) {
        stream[bit / 8] ^= (uint8_t)(1u << bit % 8);
        parsed_t parsed = parse(stream, sizeof(stream));
        assert_int_equal(parsed.result, TOW_FRAME_BAD);
        assert_non_null(parsed.error);
        tow_status_release(parsed.error);
        stream[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(parse(stream, sizeof(stream)).result, TOW_FRAME_READY);
}

static void oversize_is_refused_from_four_bytes(void **state)
{
    uint8_t frame[TOW_FRAME_HEADER_SIZE] = {0};
    tow_frame_seal(frame, 9, 0);
    frame[0] = 0x01; /* 4,097 */
    frame[1] = 0x10;
    for (size_t available = 4; available <= sizeof(frame); available++) {
        parsed_t parsed = parse(frame, available);
        assert_int_equal(parsed.result, TOW_FRAME_BAD);
        assert_int_equal(tow_status_code(parsed.error), TOW_INVALID_ARGUMENT);
        assert_non_null(strstr(tow_status_message(parsed.error), "4097"));
        assert_non_null(strstr(tow_status_message(parsed.error), "4096"));
        tow_status_release(parsed.error);
    }
}

static void largest_size_is_taken_and_none_overflows(void **state)
{
    uint8_t *frame = calloc(1, TOW_FRAME_HEADER_SIZE + SIZE_MAX_HERE);
    assert_non_null(frame);
    tow_frame_seal(frame, 1, SIZE_MAX_HERE);
    parsed_t parsed = parse(frame, TOW_FRAME_HEADER_SIZE + SIZE_MAX_HERE);
    assert_int_equal(parsed.result, TOW_FRAME_READY);
    memset(frame, 0xff, 4);
    size_t needed = 0;
    tow_frame_t out;
    tow_status_t error;
    /* With no limit at all the sum of header and size must not wrap. */
    memset(frame + 4, 0, 8);
    assert_int_equal(
        tow_frame_parse(frame, 12, UINT32_MAX, &out, &needed, &error),
        TOW_FRAME_PARTIAL);
    assert_true(needed == (size_t)UINT32_MAX + TOW_FRAME_HEADER_SIZE);
    free(frame);
}

static void unknown_flags_are_refused_before_the_payload_comes(void **state)
{
    uint8_t frame[FRAME_SIZE];
    make_frame(frame);
    frame[6] = 4;
    parsed_t parsed = parse(frame, TOW_FRAME_HEADER_SIZE);
    assert_int_equal(parsed.result, TOW_FRAME_BAD);
    assert_int_equal(tow_status_code(parsed.error), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(parsed.error), "0x0004"));
    tow_status_release(parsed.error);
}

static void damage_is_data_loss(void **state)
{
    uint8_t frame[FRAME_SIZE];
    make_frame(frame);
    frame[FRAME_SIZE - 1] ^= 1;
    parsed_t parsed = parse(frame, FRAME_SIZE);
    assert_int_equal(parsed.result, TOW_FRAME_BAD);
    assert_int_equal(tow_status_code(parsed.error), TOW_DATA_LOSS);
    tow_status_release(parsed.error);
}

TOW_TEST_MAIN(
    cmocka_unit_test(sealed_frame_parses_back),
    cmocka_unit_test(frame_lies_on_the_wire_as_documented),
    cmocka_unit_test(empty_frame_parses),
    cmocka_unit_test(every_truncation_is_partial_and_says_what_is_needed),
    cmocka_unit_test(every_flipped_bit_is_found),
    cmocka_unit_test(oversize_is_refused_from_four_bytes),
    cmocka_unit_test(largest_size_is_taken_and_none_overflows),
    cmocka_unit_test(unknown_flags_are_refused_before_the_payload_comes),
    cmocka_unit_test(damage_is_data_loss))
