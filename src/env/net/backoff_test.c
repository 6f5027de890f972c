#include "base/testing.h"

#include "env/net/backoff.h"

static void delays_grow_to_a_bound_and_differ(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 1);
    int64_t full_ns = TOW_DIAL_DELAY_MIN_NS;
    for (uint32_t failures = 1; failures < 100; failures++) {
        int64_t least_ns = INT64_MAX, most_ns = 0;
        for (int i = 0; i < 100; i++) {
            int64_t delay_ns = tow_net_backoff_ns(failures, &random);
            if (delay_ns < least_ns) least_ns = delay_ns;
            if (delay_ns > most_ns) most_ns = delay_ns;
        }
        assert_true(least_ns >= full_ns / 2 && most_ns < full_ns);
        assert_true(least_ns < most_ns);
        full_ns *= 2;
        if (full_ns > TOW_DIAL_DELAY_MAX_NS) full_ns = TOW_DIAL_DELAY_MAX_NS;
    }
}

static void delays_stay_bounded_after_many_failures(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 1);
    assert_true(tow_net_backoff_ns(UINT32_MAX, &random) <=
                TOW_DIAL_DELAY_MAX_NS);
}

TOW_TEST_MAIN(cmocka_unit_test(delays_grow_to_a_bound_and_differ),
              cmocka_unit_test(delays_stay_bounded_after_many_failures))
