/* The stall watchdog: stalled runs, and the devices and workers that it names.
 */
#include "controller/controller_impl.h"
#include "controller/fixture_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct fixture {
    cluster_fixture_t cluster;
    peer_t *one, *two; /* workers: devices 2048 and 2049, 4096 and 4097 */
    peer_t *client;
    uint64_t run;  /* the first of the client's, granted */
    uint64_t gang; /* its only one */
} fixture_t;

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    cluster_open(&fixture->cluster);
    fixture->one = worker_make(&fixture->cluster, 1);
    fixture->two = worker_make(&fixture->cluster, 2);
    fixture->client = client_make(&fixture->cluster, "client/1");
    open_slice(fixture->client, 1, 4);
    compile(fixture->client, 1, 1, add_text);
    add_program(fixture->client, 1, one_add);
    send_put(fixture->client, 1, 1, 1024, zeroes);
    expect_success(EXPECT(fixture->client, PUT_DONE, put_done)->failure);
    discard_messages(fixture->one);
    discard_messages(fixture->two);
    fixture->cluster.receives_stalls = true;
    send_run(fixture->client, 1, 1, 1, 10);
    const tow_msg_grant_t *grant = EXPECT(fixture->one, GRANT, grant);
    fixture->run = grant->run;
    fixture->gang = grant->first_gang;
    expect_grant(fixture->two, fixture->client, 1);
}

/* The next message, as soon as there is one. */
static void await_message(peer_t *peer)
{
    for (int i = 0; peer->cluster->receives_stalls && i < 300 &&
                    next_message(peer, 0) == NULL;
         i++)
        run_for(peer->cluster, SECOND / 100);
}

static tow_msg_report_t expect_query(peer_t *worker, tow_report_kind_t kind)
{
    tow_msg_report_t answer = TOW_MSG_REPORT_INIT;
    await_message(worker);
    const tow_msg_report_get_t *get;
    do
        get = EXPECT(worker, REPORT_GET, report_get);
    while (get->kind != kind);
    answer.request = get->request;
    return answer;
}

static void send_no_waits(peer_t *worker)
{
    tow_msg_report_t answer = expect_query(worker, TOW_REPORT_WAITS);
    send_message(worker, TOW_MESSAGE_REPORT, &answer.base);
}

/* `device` of the worker waits for `missing`. */
static void send_waits(peer_t *worker, uint64_t gang, int64_t device,
                       int64_t missing, tow_report_kind_t kind)
{
    tow_msg_report_t answer = expect_query(worker, kind);
    tow_msg_wait_t wait = TOW_MSG_WAIT_INIT, *list = &wait;
    wait.device = device;
    wait.gang = gang;
    wait.waited_ns = SECOND / 2;
    wait.missing = &missing;
    wait.n_missing = 1;
    answer.waits = &list;
    answer.n_waits = 1;
    send_message(worker, TOW_MESSAGE_REPORT, &answer.base);
}

static const tow_msg_run_stalled_t *expect_run_stalled(const fixture_t *fixture)
{
    await_message(fixture->client);
    return EXPECT(fixture->client, RUN_STALLED, run_stalled);
}

static void expect_no_part(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) fail_msg("'%s' has '%s'", text, part);
}

/* -- Runs ------------------------------------------------------------------------ */

static void a_stalled_run_names_workers_that_have_not_finished(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_run(fixture.client, 2, 1, 10, 11);
    uint64_t second = expect_grant(fixture.one, fixture.client, 2);
    expect_grant(fixture.two, fixture.client, 2);
    send_done(fixture.one, fixture.run);
    expect_no_message(fixture.client);
    for (int i = 1; i <= 3; i++) {
        send_no_waits(fixture.two);
        const tow_msg_run_stalled_t *late = expect_run_stalled(&fixture);
        assert_int_equal(late->run, 1); /* The other waits behind it. */
        assert_true(late->waited_ns >= (uint64_t)(i * TOW_STALL_NS));
        assert_true(late->waited_ns <
                    (uint64_t)(i * TOW_STALL_NS + 2 * TOW_STALL_PERIOD_NS));
        expect_part(late->text, "1 of 2 workers");
        expect_part(late->text, fixture.two->name);
        expect_no_part(late->text, fixture.one->name);
        expect_no_message(fixture.client);
    }
    send_done(fixture.two, fixture.run);
    expect_run_done(fixture.client, 1);
    send_done(fixture.one, second);
    send_done(fixture.two, second);
    expect_run_done(fixture.client, 2);
    run_for(&fixture.cluster, 2 * TOW_STALL_NS);
    expect_no_message(fixture.client);
    cluster_close(&fixture.cluster);
}

static void the_device_that_others_wait_for_is_named(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_waits(fixture.one, fixture.gang, 2048, 4097, TOW_REPORT_WAITS);
    send_no_waits(fixture.two);
    const tow_msg_run_stalled_t *late = expect_run_stalled(&fixture);
    expect_part(late->text,
                "late: device 4097 of worker/2 (host host, island ");
    expect_part(late->text, "1 other waits for it");
    expect_no_part(late->text, fixture.one->name);
    expect_no_part(late->text, "not finished on");
    cluster_close(&fixture.cluster);
}

static void waits_of_other_runs_are_ignored(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_waits(fixture.one, fixture.gang + 1, 2048, 4097, TOW_REPORT_WAITS);
    send_no_waits(fixture.two);
    expect_part(expect_run_stalled(&fixture)->text,
                "not finished on: worker/1");
    cluster_close(&fixture.cluster);
}

static void a_worker_that_does_not_answer_is_named(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_no_waits(fixture.one);
    const tow_msg_run_stalled_t *late = expect_run_stalled(&fixture);
    expect_part(late->text, "late: worker/2 (host host");
    expect_part(late->text, "does not answer");
    assert_true(late->waited_ns <
                (uint64_t)(TOW_STALL_NS + TOW_STALL_PERIOD_NS +
                           TOW_REPORT_TIMEOUT_NS + SECOND / 10));
    send_no_waits(fixture.two); /* After the deadline: no effect. */
    expect_query(fixture.one, TOW_REPORT_WAITS);
    cluster_close(&fixture.cluster); /* Before the answer. */
}

static void a_run_that_ends_during_the_query_is_not_reported(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    send_no_waits(fixture.one);
    send_done(fixture.one, fixture.run);
    send_done(fixture.two, fixture.run);
    expect_run_done(fixture.client, 1);
    run_for(&fixture.cluster, SECOND);
    expect_no_message(fixture.client);
    cluster_close(&fixture.cluster);
}

/* -- Status ---------------------------------------------------------------------- */

static void status_does_not_wait_for_silent_workers(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    run_for(&fixture.cluster, 3 * TOW_STALL_NS);
    fixture.cluster.receives_stalls = false;
    discard_messages(fixture.one);
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 3;
    get.kind = TOW_REPORT_STATUS;
    send_message(fixture.client, TOW_MESSAGE_REPORT_GET, &get.base);
    send_waits(fixture.one, fixture.gang, 2049, 4096, TOW_REPORT_STATUS);
    run_for(&fixture.cluster, TOW_REPORT_TIMEOUT_NS);
    assert_int_equal(EXPECT(fixture.client, REPORT, report)->request, 3);
    char *text = tow_calloc(1, fixture.client->blob_size + 1);
    memcpy(text, fixture.client->blob_bytes, fixture.client->blob_size);
    expect_part(text, "\"silent\":true");
    expect_part(text, "late: worker/2 (host host");
    expect_part(text, "late: device 4096 of worker/2");
    tow_free(text);
    cluster_close(&fixture.cluster);
}

/* -- The wait-for graph ---------------------------------------------------- */

static void add_wait(tow_ctl_wait_graph_t *waits, uint64_t gang, int64_t device,
                     int64_t missing)
{
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    tow_msg_wait_t wait = TOW_MSG_WAIT_INIT, *list = &wait;
    wait.device = device;
    wait.gang = gang;
    wait.waited_ns = (uint64_t)device;
    wait.missing = &missing;
    wait.n_missing = 1;
    report.waits = &list;
    report.n_waits = 1;
    tow_ctl_wait_graph_add(waits, &report);
}

/* Members wait for the leader of their host, which waits for the other leader,
 * which waits in another gang for a device that does not wait. */
static void chains_are_followed_to_their_ends(void **state)
{
    (void)state;
    tow_ctl_wait_graph_t waits = {0};
    add_wait(&waits, 7, 12, 11);
    add_wait(&waits, 7, 13, 11);
    add_wait(&waits, 7, 11, 21);
    add_wait(&waits, 6, 21, 22);
    add_wait(&waits, 6, 30, 31);  /* Unrelated. */
    for (int i = 0; i < 2; i++) { /* The search can be repeated. */
        const tow_ctl_stall_t late =
            tow_ctl_wait_graph_find_stall(&waits, 7, 1);
        assert_int_equal(late.device_count, 1);
        assert_int_equal(late.devices[0], 22);
        assert_int_equal(late.waiting_count, 4);
        assert_int_equal(late.waited_ns, 21);
        assert_false(late.has_more);
    }
    tow_ctl_wait_graph_deinit(&waits);
}

static void devices_in_a_wait_cycle_are_not_named(void **state)
{
    (void)state;
    tow_ctl_wait_graph_t waits = {0};
    add_wait(&waits, 7, 1, 2);
    add_wait(&waits, 7, 2, 3);
    add_wait(&waits, 7, 3, 1);
    const tow_ctl_stall_t late = tow_ctl_wait_graph_find_stall(&waits, 0, 100);
    assert_int_equal(late.device_count, 0);
    assert_int_equal(late.waiting_count, 3);
    tow_ctl_wait_graph_deinit(&waits);
}

static void at_most_a_few_devices_are_named(void **state)
{
    (void)state;
    tow_ctl_wait_graph_t waits = {0};
    for (int64_t i = 0; i < 2 * TOW_STALL_NAMES_MAX; i++)
        add_wait(&waits, 7, i, 100 + i);
    const tow_ctl_stall_t late = tow_ctl_wait_graph_find_stall(&waits, 7, 1);
    assert_int_equal(late.device_count, TOW_STALL_NAMES_MAX);
    assert_true(late.has_more);
    tow_ctl_wait_graph_deinit(&waits);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_stalled_run_names_workers_that_have_not_finished),
    cmocka_unit_test(the_device_that_others_wait_for_is_named),
    cmocka_unit_test(waits_of_other_runs_are_ignored),
    cmocka_unit_test(a_worker_that_does_not_answer_is_named),
    cmocka_unit_test(a_run_that_ends_during_the_query_is_not_reported),
    cmocka_unit_test(status_does_not_wait_for_silent_workers),
    cmocka_unit_test(chains_are_followed_to_their_ends),
    cmocka_unit_test(devices_in_a_wait_cycle_are_not_named),
    cmocka_unit_test(at_most_a_few_devices_are_named))
