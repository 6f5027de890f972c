#include "base/testing.h"

#include "base/random.h"
#include "sched/sched_impl.h"

#define CLIENT_COUNT 100

static void ready_list_stays_in_order_of_arrival_from_any_seed(void **state)
{
    (void)state;
    static tow_ticket_t clients[CLIENT_COUNT];
    bool is_in[CLIENT_COUNT] = {false};
    ready_list_t ready_list = {0};
    tow_random_t random;
    tow_random_init(&random, 1);
    assert_true(tow_ready_list_reserve(&ready_list, CLIENT_COUNT));
    uint64_t newest = 0;
    for (size_t step = 0; step < 50000; step++) {
        size_t index = tow_random_below(&random, CLIENT_COUNT);
        if (is_in[index]) {
            tow_ready_list_remove(&ready_list, &clients[index]);
        } else {
            /* Mostly the newest of all; else one between others. */
            newest += 1000;
            clients[index].arrival_ =
                newest - 1 - tow_random_below(&random, 3) * (newest / 4) -
                index;
            tow_ready_list_add(&ready_list, &clients[index]);
        }
        is_in[index] = !is_in[index];
        size_t count = 0;
        for (size_t i = 0; i < CLIENT_COUNT; i++)
            count += is_in[i];
        assert_int_equal(ready_list.count, count);
        for (size_t i = 1; i < count; i++)
            assert_true(tow_ready_list_tickets(&ready_list)[i - 1]->arrival_ <
                        tow_ready_list_tickets(&ready_list)[i]->arrival_);
    }
    tow_ready_list_deinit(&ready_list);
}

static void ready_list_takes_and_adds_within_its_reservation(void **state)
{
    (void)state;
    tow_ticket_t clients[3] = {{.arrival_ = 1}, {.arrival_ = 2}};
    ready_list_t ready_list = {0};
    assert_true(tow_ready_list_reserve(&ready_list, 3));
    tow_ready_list_add(&ready_list, &clients[0]);
    tow_ready_list_add(&ready_list, &clients[1]);
    for (size_t i = 2; i < 1000; i++) {
        clients[i % 3].arrival_ = i + 1;
        tow_ready_list_add(&ready_list, &clients[i % 3]);
        assert_ptr_equal(tow_ready_list_tickets(&ready_list)[0],
                         &clients[(i + 1) % 3]);
        tow_ready_list_take(&ready_list, 0);
    }
    tow_ready_list_deinit(&ready_list);
}

TOW_TEST_MAIN(
    cmocka_unit_test(ready_list_stays_in_order_of_arrival_from_any_seed),
    cmocka_unit_test(ready_list_takes_and_adds_within_its_reservation))
