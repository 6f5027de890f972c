#include "simcluster/simcluster.h"

#include "base/testing.h"

static tow_simcluster_result_t run_seed(uint64_t seed,
                                        tow_simcluster_faults_t faults)
{
    const tow_simcluster_options_t options = {.seed = seed,
                                              .host_count = 5,
                                              .faults = faults,
                                              .log.level = TOW_LOG_OFF};
    tow_simcluster_result_t result;
    tow_status_t status = tow_simcluster_run(&options, &result);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return result;
}

static void a_seed_determines_the_digest(void **state)
{
    const tow_simcluster_result_t first = run_seed(7, TOW_SIMCLUSTER_FAULTY);
    const tow_simcluster_result_t again = run_seed(7, TOW_SIMCLUSTER_FAULTY);
    const tow_simcluster_result_t other = run_seed(8, TOW_SIMCLUSTER_FAULTY);
    assert_int_equal(first.digest, again.digest);
    assert_int_equal(first.counts.events, again.counts.events);
    assert_int_not_equal(first.digest, other.digest);
}

static void a_calm_cluster_injects_no_faults_and_loses_no_session(void **state)
{
    const tow_simcluster_result_t result = run_seed(3, TOW_SIMCLUSTER_CALM);
    assert_int_equal(result.fault_count, 0);
    assert_int_equal(result.stats.reconnections, 0);
    assert_true(result.stats.runs_done > 0);
    assert_int_equal(result.worker_count + result.client_count, 4);
}

static void results_of_runs_are_compared(void **state)
{
    uint64_t checked = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const tow_simcluster_result_t result =
            run_seed(seed, TOW_SIMCLUSTER_CALM);
        checked += result.stats.results_checked;
        refused += result.stats.giants_refused;
    }
    assert_true(checked > 100);
    assert_true(refused > 0);
}

static void a_host_count_beyond_the_limits_is_refused(void **state)
{
    const tow_simcluster_options_t options = {
        .host_count = TOW_SIMCLUSTER_HOST_COUNT_MAX + 1,
        .log.level = TOW_LOG_OFF};
    tow_simcluster_result_t result;
    tow_status_t status = tow_simcluster_run(&options, &result);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_seed_determines_the_digest),
    cmocka_unit_test(a_calm_cluster_injects_no_faults_and_loses_no_session),
    cmocka_unit_test(results_of_runs_are_compared),
    cmocka_unit_test(a_host_count_beyond_the_limits_is_refused))
