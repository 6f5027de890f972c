/* Device time: reports of scripted workers, and the sums and estimates that the
 * controller makes of them. Three workers in groups of two: with relays, the
 * first is the second's relay and the third has none. */
#include "controller/controller_impl.h"
#include "controller/fixture_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two, *three;
    peer_t *client;
} fixture_t;

/* Program 1 runs on two or, with relays, all three workers. */
static void fixture_open(fixture_t *fixture, uint32_t relay_fanout)
{
    *fixture = (fixture_t){.cluster.options.relay_fanout = relay_fanout};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    if (relay_fanout > 0) fixture->three = worker_make(&fixture->cluster, 3);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, relay_fanout > 0 ? 6 : 4);
    compile(fixture->client, 1, 1, add_text);
    add_program(fixture->client, 1, one_add);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->one);
    discard_messages(fixture->two);
    if (fixture->three != NULL) discard_messages(fixture->three);
}

static tow_ctl_client_t *client_of(const fixture_t *fixture)
{
    const tow_list_t *list = &fixture->cluster.controller->clients.list;
    assert_false(tow_list_is_empty(list));
    return TOW_CONTAINER_OF(list->next, tow_ctl_client_t, node);
}

static const tow_estimate_t *estimate_of(const fixture_t *fixture)
{
    const tow_ctl_program_t *program =
        tow_map_find(&client_of(fixture)->programs, 1);
    return &program->estimate;
}

static void expect_sums(const fixture_t *fixture, uint64_t busy_ns,
                        uint64_t wait_ns)
{
    const tow_controller_totals_t totals =
        tow_controller_totals(fixture->cluster.controller);
    const tow_ctl_client_t *client = client_of(fixture);
    assert_int_equal(client->time.busy_ns, busy_ns);
    assert_int_equal(client->time.wait_ns, wait_ns);
    assert_int_equal(totals.device_ns, busy_ns);
    assert_int_equal(totals.wait_ns, wait_ns);
}

/* Lists of one entry; longest_ns 0: not sent. */
static void send_time(peer_t *worker, uint64_t run, tow_device_time_t time)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = &run;
    done.busy_ns = &time.busy_ns;
    done.wait_ns = &time.wait_ns;
    done.longest_ns = &time.longest_ns;
    done.n_runs = done.n_busy_ns = done.n_wait_ns = 1;
    done.n_longest_ns = time.longest_ns != 0;
    send_message(worker, TOW_MESSAGE_DONE, &done.base);
}

static void send_progress(peer_t *worker, uint64_t run, uint64_t busy_ns)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    uint32_t end = 1;
    done.progress_runs = &run;
    done.progress_ends = &end;
    done.progress_busy_ns = &busy_ns;
    done.n_progress_runs = done.n_progress_ends = done.n_progress_busy_ns = 1;
    send_message(worker, TOW_MESSAGE_DONE, &done.base);
}

static uint64_t start_run(fixture_t *fixture, uint64_t id)
{
    send_run(fixture->client, id, 1, 1, 9 + id);
    expect_grant(fixture->two, fixture->client, id);
    return expect_grant(fixture->one, fixture->client, id);
}

/* -- Sums and estimates ---------------------------------------------------- */

static void times_of_workers_add_up_by_client(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    assert_int_equal(tow_estimate_ns(estimate_of(&fixture)), -1);
    const uint64_t run = start_run(&fixture, 1);
    send_time(fixture.one, run, (tow_device_time_t){700, 100, 450});
    expect_no_message(fixture.client);
    expect_sums(&fixture, 700, 100);
    const tow_ctl_run_t *record =
        tow_map_find(&fixture.cluster.controller->runs.by_key, run);
    assert_int_equal(record->time.longest_ns, 450);
    send_time(fixture.two, run, (tow_device_time_t){500, 0, 0});
    expect_run_done(fixture.client, 1);
    expect_sums(&fixture, 1200, 100);
    assert_int_equal(tow_estimate_ns(estimate_of(&fixture)), 500);
    assert_int_equal(client_of(&fixture)->ended_run_count, 1);
    cluster_close(&fixture.cluster);
}

static void time_of_progress_belongs_to_the_run(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    const uint64_t run = start_run(&fixture, 1);
    send_progress(fixture.one, run, 30);
    send_progress(fixture.two, run, 4);
    expect_no_message(fixture.client);
    expect_sums(&fixture, 34, 0);
    send_time(fixture.one, run, (tow_device_time_t){100, 0, 0});
    send_time(fixture.two, run, (tow_device_time_t){200, 0, 0});
    expect_run_done(fixture.client, 1);
    expect_sums(&fixture, 334, 0);
    cluster_close(&fixture.cluster);
}

static void estimate_is_corrected_by_later_runs(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    const uint64_t measured_ns[] = {8000, 4000, 0};
    const int64_t estimates_ns[] = {8000, 7500, 7500};
    for (size_t i = 0; i < TOW_COUNT_OF(measured_ns); i++) {
        const uint64_t run = start_run(&fixture, 1 + i);
        send_done(fixture.one, run);
        send_time(fixture.two, run, (tow_device_time_t){measured_ns[i], 0, 0});
        expect_run_done(fixture.client, 1 + i);
        assert_int_equal(tow_estimate_ns(estimate_of(&fixture)),
                         estimates_ns[i]);
    }
    assert_int_equal(estimate_of(&fixture)->ignored_count, 1);
    cluster_close(&fixture.cluster);
}

static void failed_run_counts_but_does_not_change_the_estimate(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    const uint64_t run = start_run(&fixture, 1);
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    tow_msg_run_failure_t entry = TOW_MSG_RUN_FAILURE_INIT;
    tow_msg_run_failure_t *list = &entry;
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    failure.code = TOW_INTERNAL;
    entry.run = run;
    entry.failure = &failure;
    entry.busy_ns = 30;
    entry.wait_ns = 4;
    done.failures = &list;
    done.n_failures = 1;
    send_message(fixture.one, TOW_MESSAGE_DONE, &done.base);
    EXPECT(fixture.two, ABORT, abort);
    send_message(fixture.two, TOW_MESSAGE_DONE, &done.base);
    expect_run_failed(fixture.client, 1, TOW_INTERNAL, "");
    expect_sums(&fixture, 60, 8);
    assert_int_equal(tow_estimate_ns(estimate_of(&fixture)), -1);
    cluster_close(&fixture.cluster);
}

static void time_of_a_client_that_left_stays_in_the_total(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    const uint64_t run = start_run(&fixture, 1);
    send_time(fixture.one, run, (tow_device_time_t){100, 0, 0});
    expect_no_message(fixture.client);
    peer_leave(fixture.client);
    EXPECT(fixture.two, ABORT, abort);
    send_time(fixture.two, run, (tow_device_time_t){20, 0, 0});
    run_for(&fixture.cluster, SECOND);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).device_ns, 120);
    cluster_close(&fixture.cluster);
}

/* -- Relays ---------------------------------------------------------------- */

static uint64_t start_relayed_run(fixture_t *fixture)
{
    send_run(fixture->client, 1, 1, 1, 10);
    EXPECT(fixture->one, RELAY_GRANT, relay_grant);
    return expect_grant(fixture->three, fixture->client, 1);
}

static void relay_reports_the_time_of_its_group(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 2);
    uint64_t run = start_relayed_run(&fixture);
    send_time(fixture.three, run, (tow_device_time_t){300, 0, 0});
    uint64_t busy_ns = 1000, wait_ns = 50, longest_ns = 600;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.runs = &run;
    done.busy_ns = &busy_ns;
    done.wait_ns = &wait_ns;
    done.longest_ns = &longest_ns;
    done.n_runs = done.n_busy_ns = done.n_wait_ns = done.n_longest_ns = 1;
    send_message(fixture.one, TOW_MESSAGE_RELAY_DONE, &done.base);
    expect_run_done(fixture.client, 1);
    expect_sums(&fixture, 1300, 50);
    assert_int_equal(tow_estimate_ns(estimate_of(&fixture)), 600);
    cluster_close(&fixture.cluster);
}

static void part_is_counted_once(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 2);
    uint64_t run = start_relayed_run(&fixture);
    uint64_t busy_ns = 70;
    uint32_t process = 2;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.part_runs = &run;
    done.part_processes = &process;
    done.part_busy_ns = &busy_ns;
    done.n_part_runs = done.n_part_processes = done.n_part_busy_ns = 1;
    send_message(fixture.one, TOW_MESSAGE_RELAY_DONE, &done.base);
    send_message(fixture.one, TOW_MESSAGE_RELAY_DONE, &done.base);
    expect_no_message(fixture.client);
    expect_sums(&fixture, 70, 0);
    process = 1;
    send_message(fixture.one, TOW_MESSAGE_RELAY_DONE, &done.base);
    send_done(fixture.three, run);
    expect_run_done(fixture.client, 1);
    expect_sums(&fixture, 140, 0);
    cluster_close(&fixture.cluster);
}

static void send_relayed_progress(fixture_t *fixture, uint64_t run,
                                  uint64_t busy_ns)
{
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    uint32_t end = 1;
    done.progress_runs = &run;
    done.progress_ends = &end;
    done.progress_busy_ns = &busy_ns;
    done.n_progress_runs = done.n_progress_ends = done.n_progress_busy_ns = 1;
    send_message(fixture->one, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void send_part_progress(fixture_t *fixture, uint64_t run,
                               uint64_t busy_ns)
{
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    uint32_t process = 2, end = 1;
    done.part_runs = &run;
    done.part_processes = &process;
    done.part_ends = &end;
    done.part_busy_ns = &busy_ns;
    done.n_part_runs = done.n_part_processes = 1;
    done.n_part_ends = done.n_part_busy_ns = 1;
    send_message(fixture->one, TOW_MESSAGE_RELAY_DONE, &done.base);
}

/* Progress of a part is not the end of the part; and it counts after the run
 * has ended, while its client is there and when it has left. */
static void relay_reports_the_time_of_progress(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 2);
    uint64_t run = start_relayed_run(&fixture);
    send_relayed_progress(&fixture, run, 1000);
    send_part_progress(&fixture, run, 200);
    send_done(fixture.three, run);
    expect_no_message(fixture.client);
    expect_sums(&fixture, 1200, 0);
    uint64_t busy_ns = 30;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.runs = &run;
    done.busy_ns = &busy_ns;
    done.n_runs = done.n_busy_ns = 1;
    send_message(fixture.one, TOW_MESSAGE_RELAY_DONE, &done.base);
    expect_run_done(fixture.client, 1);
    send_part_progress(&fixture, run, 4);
    run_for(&fixture.cluster, SECOND);
    expect_sums(&fixture, 1234, 0);
    peer_leave(fixture.client);
    run_for(&fixture.cluster, SECOND);
    send_relayed_progress(&fixture, run, 5000);
    run_for(&fixture.cluster, SECOND);
    assert_int_equal(
        tow_controller_totals(fixture.cluster.controller).device_ns, 6234);
    cluster_close(&fixture.cluster);
}

/* -- Lengths --------------------------------------------------------------- */

static void expect_fault(fixture_t *fixture)
{
    run_for(&fixture->cluster, SECOND);
    assert_int_equal(fixture->one->disconnect_count, 1);
    expect_part(fixture->one->disconnect_message, "wait and");
    cluster_close(&fixture->cluster);
}

static void lists_of_wrong_length_end_the_session(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    fixture.two->answers_aborts = true;
    uint64_t run = start_run(&fixture, 1);
    uint64_t times_ns[2] = {1, 2};
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    done.wait_ns = times_ns;
    done.n_wait_ns = 2;
    send_message(fixture.one, TOW_MESSAGE_DONE, &done.base);
    expect_fault(&fixture);
}

static void progress_times_of_wrong_length_end_the_session(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 0);
    fixture.two->answers_aborts = true;
    uint64_t run = start_run(&fixture, 1);
    uint64_t times_ns[2] = {1, 2};
    uint32_t end = 1;
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.progress_runs = &run;
    done.progress_ends = &end;
    done.n_progress_runs = done.n_progress_ends = 1;
    done.progress_longest_ns = times_ns;
    done.n_progress_longest_ns = 2;
    send_message(fixture.one, TOW_MESSAGE_DONE, &done.base);
    expect_fault(&fixture);
}

static void lists_of_wrong_length_end_the_session_of_a_relay(void **state)
{
    fixture_t fixture;
    fixture_open(&fixture, 2);
    fixture.two->answers_aborts = fixture.three->answers_aborts = true;
    uint64_t run = start_relayed_run(&fixture);
    uint64_t times_ns[2] = {1, 2};
    uint32_t process = 2;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.part_runs = &run;
    done.part_processes = &process;
    done.n_part_runs = done.n_part_processes = 1;
    done.part_longest_ns = times_ns;
    done.n_part_longest_ns = 2;
    send_message(fixture.one, TOW_MESSAGE_RELAY_DONE, &done.base);
    expect_fault(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(times_of_workers_add_up_by_client),
    cmocka_unit_test(time_of_progress_belongs_to_the_run),
    cmocka_unit_test(estimate_is_corrected_by_later_runs),
    cmocka_unit_test(failed_run_counts_but_does_not_change_the_estimate),
    cmocka_unit_test(time_of_a_client_that_left_stays_in_the_total),
    cmocka_unit_test(relay_reports_the_time_of_its_group),
    cmocka_unit_test(part_is_counted_once),
    cmocka_unit_test(relay_reports_the_time_of_progress),
    cmocka_unit_test(lists_of_wrong_length_end_the_session),
    cmocka_unit_test(progress_times_of_wrong_length_end_the_session),
    cmocka_unit_test(lists_of_wrong_length_end_the_session_of_a_relay))
