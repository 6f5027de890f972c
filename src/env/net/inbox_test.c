#include "base/testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "env/net/inbox.h"
#include "env/tuning.h"

#define SIZE_MAX_ (1u << 20)

static size_t put_frame(uint8_t *at, uint32_t number, uint32_t size)
{
    memset(at + TOW_FRAME_HEADER_SIZE, (int)(number & 255), size);
    tow_frame_seal(at, (uint16_t)number, size);
    return TOW_FRAME_HEADER_SIZE + size;
}

static void feed(tow_net_inbox_t *inbox, const uint8_t *bytes, size_t count,
                 uint32_t *next)
{
    tow_net_input_t input = {.bytes = bytes, .count = count};
    tow_frame_t frame;
    tow_status_t error = TOW_OK;
    tow_frame_result_t result;
    while ((result = tow_net_inbox_next(inbox, &input, SIZE_MAX_, &frame,
                                        &error)) == TOW_FRAME_READY) {
        assert_int_equal(frame.type, *next);
        for (uint32_t i = 0; i < frame.size; i++)
            assert_int_equal(frame.payload[i], *next & 255);
        ++*next;
    }
    assert_int_equal(result, TOW_FRAME_PARTIAL);
    assert_int_equal(input.count, 0);
}

static void frames_come_out_whole_however_they_are_cut(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 5);
    static uint8_t stream[4u << 20];
    size_t count = 0;
    uint32_t sent = 0, got = 0;
    while (count < sizeof(stream) - 210000) {
        uint32_t size = (uint32_t)tow_random_below(
            &random, tow_random_below(&random, 20) == 0 ? 200000 : 300);
        count += put_frame(stream + count, sent++, size);
    }
    tow_net_inbox_t inbox = {0};
    for (size_t at = 0; at < count;) {
        size_t part =
            1 + tow_random_below(&random,
                                 tow_random_below(&random, 2) ? 40 : 65536);
        if (part > count - at) part = count - at;
        uint8_t *room_at;
        size_t room = tow_net_inbox_room(&inbox, &room_at);
        if (room > 0) {
            if (part > room) part = room;
            memcpy(room_at, stream + at, part);
            tow_net_inbox_added(&inbox, part);
            feed(&inbox, NULL, 0, &got);
        } else {
            feed(&inbox, stream + at, part, &got);
        }
        at += part;
    }
    assert_int_equal(got, sent);
    tow_net_inbox_clear(&inbox);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void announcing_a_large_frame_takes_little_memory(void **state)
{
    (void)state;
    static uint8_t frame[TOW_FRAME_HEADER_SIZE + SIZE_MAX_];
    put_frame(frame, 0, SIZE_MAX_);
    tow_net_inbox_t inbox = {0};
    uint32_t got = 0;
    feed(&inbox, frame, 100, &got);
    assert_true(inbox.capacity <= TOW_NET_INBOX_KEEP_BYTES);
    assert_int_equal(tow_net_inbox_held(&inbox), 100);
    feed(&inbox, frame + 100, 10000, &got);
    assert_true(inbox.capacity <= 2 * 10100);
    feed(&inbox, frame + 10100, sizeof(frame) - 10100, &got);
    assert_int_equal(got, 1);
    assert_int_equal(tow_net_inbox_held(&inbox), 0);
    assert_true(inbox.capacity <= TOW_NET_INBOX_KEEP_BYTES);
    tow_net_inbox_clear(&inbox);
}

static void a_frame_above_the_limit_is_refused_at_its_header(void **state)
{
    (void)state;
    static uint8_t frame[TOW_FRAME_HEADER_SIZE + SIZE_MAX_ + 1];
    put_frame(frame, 0, SIZE_MAX_ + 1);
    tow_net_inbox_t inbox = {0};
    tow_net_input_t input = {.bytes = frame, .count = TOW_FRAME_HEADER_SIZE};
    tow_frame_t out;
    tow_status_t error = TOW_OK;
    assert_int_equal(
        tow_net_inbox_next(&inbox, &input, SIZE_MAX_, &out, &error),
        TOW_FRAME_BAD);
    assert_int_not_equal(tow_status_code(error), TOW_CODE_OK);
    assert_null(inbox.bytes);
    tow_status_release(error);
}

static tow_exhaust_result_t take_in_pieces(void *context)
{
    const uint8_t *frame = context;
    tow_net_inbox_t inbox = {0};
    tow_frame_result_t result = TOW_FRAME_PARTIAL;
    for (size_t at = 0; at < 30000 && result != TOW_FRAME_BAD; at += 5000) {
        tow_net_input_t input = {.bytes = frame + at, .count = 5000};
        tow_frame_t out;
        tow_status_t error = TOW_OK;
        result = tow_net_inbox_next(&inbox, &input, SIZE_MAX_, &out, &error);
        tow_status_release(error);
    }
    tow_net_inbox_clear(&inbox);
    return result == TOW_FRAME_BAD ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void inbox_survives_without_memory(void **state)
{
    (void)state;
    uint8_t *frame = malloc(40012);
    put_frame(frame, 0, 40000);
    assert_true(tow_test_exhaust(take_in_pieces, frame) >= 1);
    free(frame);
}

TOW_TEST_MAIN(
    cmocka_unit_test(frames_come_out_whole_however_they_are_cut),
    cmocka_unit_test(announcing_a_large_frame_takes_little_memory),
    cmocka_unit_test(a_frame_above_the_limit_is_refused_at_its_header),
    cmocka_unit_test(inbox_survives_without_memory))
