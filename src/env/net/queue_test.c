#include "base/testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "env/net/queue.h"
#include "env/tuning.h"
#include "wire/frame.h"

typedef struct fixture {
    tow_net_chunks_t chunks;
    tow_net_queue_t queue;
} fixture_t;

static fixture_t make(void)
{
    return (fixture_t){0};
}

static void unmake(fixture_t *fixture)
{
    tow_net_queue_clear(&fixture->queue);
    tow_net_chunks_deinit(&fixture->chunks);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static size_t memory_of(const tow_net_queue_t *queue)
{
    size_t bytes = 0;
    for (tow_net_chunk_t *chunk = queue->first; chunk; chunk = chunk->next)
        bytes += sizeof(*chunk) + chunk->capacity;
    return bytes;
}

static void send_text(tow_net_queue_t *queue, const char *text)
{
    uint8_t *payload;
    uint32_t size = (uint32_t)strlen(text);
    assert_int_equal(tow_net_queue_begin(queue, size, &payload),
                     TOW_NET_QUEUE_OK);
    memcpy(payload, text, size);
    tow_net_queue_commit(queue, 9, size);
}

static void frames_leave_as_they_were_committed(void **state)
{
    (void)state;
    fixture_t fixture = make();
    fixture.queue.chunks = &fixture.chunks;
    send_text(&fixture.queue, "one");
    send_text(&fixture.queue, "");
    send_text(&fixture.queue, "three");
    struct iovec piece;
    assert_int_equal(tow_net_queue_peek(&fixture.queue, &piece, 1), 1);
    assert_int_equal(piece.iov_len, 3 * TOW_FRAME_HEADER_SIZE + 8);
    const uint8_t *bytes = piece.iov_base;
    size_t left = piece.iov_len;
    static const char *const expected[] = {"one", "", "three"};
    for (int i = 0; i < 3; i++) {
        tow_frame_t frame;
        size_t needed;
        tow_status_t error;
        assert_int_equal(
            tow_frame_parse(bytes, left, 100, &frame, &needed, &error),
            TOW_FRAME_READY);
        assert_int_equal(frame.type, 9);
        assert_int_equal(frame.size, strlen(expected[i]));
        assert_memory_equal(frame.payload, expected[i], frame.size);
        bytes += TOW_FRAME_HEADER_SIZE + frame.size;
        left -= TOW_FRAME_HEADER_SIZE + frame.size;
    }
    unmake(&fixture);
}

/* Output equals input, however begin and consume split it. */
static void random_traffic_comes_out_in_order(void **state)
{
    (void)state;
    fixture_t fixture = make();
    fixture.queue.chunks = &fixture.chunks;
    tow_random_t random;
    tow_random_init(&random, 3);
    uint8_t *in = malloc(64u << 20), *out = malloc(64u << 20);
    size_t in_count = 0, out_count = 0;
    for (int step = 0; step < 3000; step++) {
        uint32_t size_max = (uint32_t)tow_random_below(
            &random, tow_random_below(&random, 9) == 0 ? 200000 : 3000);
        uint32_t size = (uint32_t)tow_random_below(&random, size_max + 1);
        uint8_t *payload;
        if (tow_net_queue_begin(&fixture.queue, size_max, &payload) ==
            TOW_NET_QUEUE_OK) {
            memset(payload, step, size);
            tow_net_queue_commit(&fixture.queue, 1, size);
            uint8_t *frame = in + in_count;
            memset(frame + TOW_FRAME_HEADER_SIZE, step, size);
            tow_frame_seal(frame, 1, size);
            in_count += TOW_FRAME_HEADER_SIZE + size;
        }
        struct iovec pieces[4];
        size_t count = tow_net_queue_peek(&fixture.queue, pieces, 4);
        size_t budget = tow_random_below(&random, 60000), taken = 0;
        for (size_t i = 0; i < count && taken < budget; i++) {
            size_t part = pieces[i].iov_len;
            if (part > budget - taken) part = budget - taken;
            memcpy(out + out_count, pieces[i].iov_base, part);
            out_count += part;
            taken += part;
        }
        tow_net_queue_consume(&fixture.queue, taken);
        tow_net_queue_check(&fixture.queue);
        assert_int_equal(fixture.queue.bytes, in_count - out_count);
    }
    assert_memory_equal(in, out, out_count);
    free(in);
    free(out);
    unmake(&fixture);
}

static void queue_is_full_at_its_bound_and_takes_the_largest_when_empty(
    void **state)
{
    (void)state;
    fixture_t fixture = make();
    fixture.queue.chunks = &fixture.chunks;
    uint8_t *payload;
    for (int i = 0; i < 2; i++) {
        size_t count = 0;
        while (tow_net_queue_begin(&fixture.queue, TOW_MESSAGE_SIZE_MAX,
                                   &payload) == TOW_NET_QUEUE_OK) {
            tow_net_queue_commit(&fixture.queue, 1, TOW_MESSAGE_SIZE_MAX);
            count++;
        }
        assert_true(count >= 1);
        assert_true(fixture.queue.bytes <= TOW_LINK_QUEUE_BYTES_MAX);
        tow_net_queue_consume(&fixture.queue, fixture.queue.bytes);
        assert_null(fixture.queue.first);
    }
    unmake(&fixture);
}

static void oversized_reservations_hold_no_memory(void **state)
{
    (void)state;
    fixture_t fixture = make();
    fixture.queue.chunks = &fixture.chunks;
    static const uint32_t sizes_max[] = {TOW_MESSAGE_SIZE_MAX, 65524, 65525,
                                         40000};
    for (int i = 0; i < 4000; i++) {
        uint8_t *payload;
        tow_net_queue_result_t result =
            tow_net_queue_begin(&fixture.queue, sizes_max[i % 4], &payload);
        if (result == TOW_NET_QUEUE_FULL) break;
        assert_int_equal(result, TOW_NET_QUEUE_OK);
        tow_net_queue_commit(&fixture.queue, 1, (uint32_t)i % 300);
        assert_true(memory_of(&fixture.queue) <=
                    2 * fixture.queue.bytes + 2 * TOW_NET_CHUNK_BYTES);
    }
    unmake(&fixture);
}

static tow_exhaust_result_t send_three(void *context)
{
    (void)context;
    fixture_t fixture = make();
    fixture.queue.chunks = &fixture.chunks;
    tow_exhaust_result_t outcome = TOW_EXHAUST_SUCCEEDED;
    static const uint32_t sizes[] = {100, 100000, 70000};
    for (int i = 0; i < 3; i++) {
        uint8_t *payload;
        tow_net_queue_result_t result =
            tow_net_queue_begin(&fixture.queue, sizes[i], &payload);
        if (result == TOW_NET_QUEUE_NO_MEMORY)
            outcome = TOW_EXHAUST_FAILED;
        else
            tow_net_queue_commit(&fixture.queue, 1, i == 2 ? 1 : sizes[i]);
    }
    unmake(&fixture);
    return outcome;
}

static void queue_survives_without_memory(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(send_three, NULL) >= 2);
}

TOW_TEST_MAIN(cmocka_unit_test(frames_leave_as_they_were_committed),
              cmocka_unit_test(random_traffic_comes_out_in_order),
              cmocka_unit_test(
                  queue_is_full_at_its_bound_and_takes_the_largest_when_empty),
              cmocka_unit_test(oversized_reservations_hold_no_memory),
              cmocka_unit_test(queue_survives_without_memory))
