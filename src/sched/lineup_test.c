#include "base/testing.h"

#include "base/random.h"
#include "sched/sched_impl.h"

#define CLIENT_COUNT 100

static void lineup_stays_in_order_of_arrival_from_any_seed(void **state)
{
    (void)state;
    static tow_sched_client_t clients[CLIENT_COUNT];
    bool is_in[CLIENT_COUNT] = {false};
    lineup_t lineup = {0};
    tow_random_t random;
    tow_random_init(&random, 1);
    assert_true(tow_lineup_reserve(&lineup, CLIENT_COUNT));
    uint64_t newest = 0;
    for (size_t step = 0; step < 50000; step++) {
        size_t index = tow_random_below(&random, CLIENT_COUNT);
        if (is_in[index]) {
            tow_lineup_remove(&lineup, &clients[index]);
        } else {
            /* Mostly the newest of all; else one between others. */
            newest += 1000;
            clients[index].arrival =
                newest - 1 - tow_random_below(&random, 3) * (newest / 4) -
                index;
            tow_lineup_add(&lineup, &clients[index]);
        }
        is_in[index] = !is_in[index];
        size_t count = 0;
        for (size_t i = 0; i < CLIENT_COUNT; i++)
            count += is_in[i];
        assert_int_equal(lineup.count, count);
        for (size_t i = 1; i < count; i++)
            assert_true(tow_lineup_clients(&lineup)[i - 1]->arrival <
                        tow_lineup_clients(&lineup)[i]->arrival);
    }
    tow_lineup_deinit(&lineup);
}

static void lineup_takes_the_first_and_adds_the_last_without_end(void **state)
{
    (void)state;
    tow_sched_client_t clients[3] = {{.arrival = 1}, {.arrival = 2}};
    lineup_t lineup = {0};
    assert_true(tow_lineup_reserve(&lineup, 3));
    tow_lineup_add(&lineup, &clients[0]);
    tow_lineup_add(&lineup, &clients[1]);
    for (size_t i = 2; i < 1000; i++) {
        clients[i % 3].arrival = i + 1;
        tow_lineup_add(&lineup, &clients[i % 3]);
        assert_ptr_equal(tow_lineup_take(&lineup, 0), &clients[(i + 1) % 3]);
    }
    tow_lineup_deinit(&lineup);
}

TOW_TEST_MAIN(
    cmocka_unit_test(lineup_stays_in_order_of_arrival_from_any_seed),
    cmocka_unit_test(lineup_takes_the_first_and_adds_the_last_without_end))
