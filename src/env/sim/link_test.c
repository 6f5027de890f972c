#include "env/sim/world_testing_impl.h"

static void messages_arrive_in_order_after_the_latency(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, (tow_sim_options_t){.remote_path.latency_ns = 5 * US});
    int64_t sent_ns = tow_sim_now_ns(pair.sim);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(send_counter(&pair.dialled, i), TOW_SEND_OK);
    assert_int_equal(pair.accepted.message_count, 0);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.message_count, 100);
    assert_true(pair.accepted.in_order);
    assert_int_equal(pair.accepted.last_ns, sent_ns + 5 * US);
    assert_string_equal(tow_link_peer(pair.accepted.link)->name, "a");
    assert_string_equal(tow_link_peer(pair.dialled.link)->name, "b");
    pair_close(&pair);
}

static void closing_delivers_what_was_sent_and_then_the_end(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, (tow_sim_options_t){.remote_path.latency_ns = 5 * US});
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    tow_link_close(pair.dialled.link, tell_end(&pair.dialled));
    assert_int_equal(pair.dialled.closed_count, 0);
    run_idle(pair.sim);
    assert_int_equal(pair.dialled.closed_count, 1);
    assert_int_equal(pair.dialled.down_count, 0);
    assert_int_equal(pair.accepted.message_count, 1);
    assert_int_equal(pair.accepted.down_count, 1);
    assert_int_equal(pair.accepted.last_cause, TOW_UNAVAILABLE);
    pair_close(&pair);
}

TOW_TEST_MAIN(cmocka_unit_test(messages_arrive_in_order_after_the_latency),
              cmocka_unit_test(closing_delivers_what_was_sent_and_then_the_end))
