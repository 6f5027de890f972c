#include "session/ring.h"

#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "base/random.h"

static void push(tow_ring_t *ring, uint32_t number, uint32_t size)
{
    uint8_t *room = tow_ring_begin(ring, size + 5); /* more than is used */
    assert_non_null(room);
    assert_int_equal((uintptr_t)room % 8, 0);
    memset(room, (int)(number & 0xff), size);
    tow_ring_commit(ring, number, size);
}

static void check(const tow_ring_record_t *record, uint32_t number)
{
    assert_int_equal(record->type, number);
    for (uint32_t i = 0; i < record->size; i++)
        assert_int_equal(record->bytes[i], number & 0xff);
}

static void records_come_back_in_order(void **state)
{
    tow_ring_t ring = {0};
    assert_null(tow_ring_front(&ring));
    assert_null(tow_ring_next(&ring));
    for (uint32_t i = 0; i < 1000; i++)
        push(&ring, i, i % 70);
    for (uint32_t i = 0; i < 1000; i++) {
        check(tow_ring_next(&ring), i);
        tow_ring_advance(&ring);
    }
    assert_null(tow_ring_next(&ring));
    tow_ring_rewind(&ring);
    for (uint32_t i = 0; i < 1000; i++) {
        check(tow_ring_front(&ring), i);
        check(tow_ring_next(&ring), i);
        tow_ring_pop(&ring);
    }
    assert_int_equal(ring.used, 0);
    assert_true(ring.capacity > 4096);
    tow_ring_trim(&ring, 4096);
    assert_null(ring.bytes);
    assert_int_equal(tow_alloc_live_count(), 0);
}

/* Against a model of three counters: the oldest, the next, the newest. */
static void any_order_of_calls_keeps_the_order_of_records(void **state)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        tow_random_t random;
        tow_ring_t ring = {0};
        uint32_t oldest = 0, next = 0, newest = 0;
        tow_random_init(&random, seed);
        uint32_t size_max = 1 + (uint32_t)tow_random_below(&random, 900);
        for (int step = 0; step < 2000; step++) {
            uint64_t fate = tow_random_below(&random, 100);
            if (fate < 40) {
                push(&ring, newest++,
                     (uint32_t)tow_random_below(&random, size_max));
            } else if (fate < 70 && next < newest) {
                tow_ring_advance(&ring);
                next++;
            } else if (fate < 99 && oldest < newest) {
                tow_ring_pop(&ring);
                if (next == oldest) next++;
                oldest++;
            } else if (fate == 99) {
                tow_ring_rewind(&ring);
                next = oldest;
            }
            assert_int_equal(ring.count, newest - oldest);
            assert_int_equal(ring.waiting, newest - next);
            assert_int_equal(ring.used == 0, oldest == newest);
            if (oldest < newest) check(tow_ring_front(&ring), oldest);
            if (next < newest) check(tow_ring_next(&ring), next);
        }
        tow_ring_deinit(&ring);
    }
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void a_steady_flow_needs_no_more_memory(void **state)
{
    tow_ring_t ring = {0};
    for (uint32_t i = 0; i < 40; i++)
        push(&ring, i, 60);
    size_t capacity = ring.capacity;
    for (uint32_t i = 40; i < 5000; i++) {
        tow_ring_pop(&ring);
        push(&ring, i, 60);
        check(tow_ring_front(&ring), i - 39);
    }
    assert_int_equal(ring.capacity, capacity);
    tow_ring_deinit(&ring);
}

static tow_exhaust_result_t grow_twice(void *context)
{
    tow_ring_t ring = {0};
    bool failed = false;
    for (int i = 0; i < 3 && !failed; i++) {
        failed = tow_ring_begin(&ring, 4000) == NULL;
        if (!failed) tow_ring_commit(&ring, 1, 4000);
    }
    tow_ring_deinit(&ring);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void out_of_memory_is_reported(void **state)
{
    assert_int_equal(tow_test_exhaust(grow_twice, NULL), 3);
}

TOW_TEST_MAIN(cmocka_unit_test(records_come_back_in_order),
              cmocka_unit_test(any_order_of_calls_keeps_the_order_of_records),
              cmocka_unit_test(a_steady_flow_needs_no_more_memory),
              cmocka_unit_test(out_of_memory_is_reported))
