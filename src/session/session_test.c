/* Sessions without faults, or with one chosen fault. */
#include "session/session_testing_impl.h"

static const tow_sim_options_t lan = {
    .seed = 3,
    .remote_path = {.latency_ns = 50 * TOW_NS_PER_US}};

/* -- Delivery -------------------------------------------------------------- */

static void messages_arrive_both_ways_in_order(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    assert_string_equal(tow_session_peer(pair.dialled.session)->name, "b");
    assert_string_equal(tow_session_peer(pair.accepted[0].session)->name, "a");
    owner_send_many(&pair.dialled, 1000);
    owner_send_many(&pair.accepted[0], 700);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].received, 1000);
    assert_int_equal(pair.dialled.received, 700);
    tow_session_stats_t stats = tow_session_stats(pair.dialled.session);
    assert_int_equal(stats.retransmit_bytes, 0);
    assert_int_equal(stats.messages_sent, 1000);
    assert_int_equal(stats.messages_received, 700);
    assert_int_equal(stats.messages_sent_again, 0);
    assert_int_equal(stats.epochs, 1);
    pair_end(&pair);
}

static void bodies_arrive_encoded(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    pair.accepted[0].keep_quiet = true;
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    cancel.run = 77;
    assert_int_equal(tow_session_send(pair.dialled.session, TOW_MESSAGE_CANCEL,
                                      &cancel.base),
                     TOW_SEND_OK);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].received, 1);
    pair_end(&pair);
}

static void nothing_is_sent_before_opened_or_after_disconnected(void **state)
{
    pair_t pair = {0};
    pair_open(&pair, lan);
    must(pair_dial(&pair));
    assert_int_equal(owner_send(&pair.dialled), TOW_SEND_DOWN);
    int64_t balance = 0;
    assert_int_equal(owner_send_blob(&pair.dialled, &balance, 10), 0);
    assert_int_equal(balance, 0);
    pair_run(&pair, 3 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    assert_int_equal(pair.dialled.disconnect_code, TOW_UNAVAILABLE);
    assert_non_null(strstr(pair.dialled.disconnect_message, "nobody listens"));
    assert_int_equal(owner_send(&pair.dialled), TOW_SEND_DOWN);
    pair_end(&pair);
}

static void a_bound_is_full_and_becomes_writable(void **state)
{
    pair_t pair = {.limits = {.retransmit_bytes_max = 10000}};
    pair_connect(&pair, lan);
    while (owner_send(&pair.dialled) == TOW_SEND_OK)
        continue;
    assert_true(tow_session_stats(pair.dialled.session).retransmit_bytes <=
                10000);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.dialled.writable_count, 1);
    assert_int_equal(pair.accepted[0].received, pair.dialled.sent);
    /* The largest message passes the smallest bound when half is free. */
    uint8_t *room;
    assert_int_equal(
        tow_session_begin(pair.dialled.session, TOW_MESSAGE_SIZE_MAX, &room),
        TOW_SEND_OK);
    tow_session_commit(pair.dialled.session, TEST_TYPE, 0);
    pair_end(&pair);
}

/* -- Blobs ----------------------------------------------------------------- */

static void blobs_arrive_whole_between_messages(void **state)
{
    static const size_t sizes[] = {0, 1, TOW_BLOB_PART_MAX,
                                   TOW_BLOB_PART_MAX + 1, (30u << 20) + 5};
    pair_t pair = {0};
    int64_t balance = 0;
    tow_sim_options_t slow = lan;
    slow.remote_path.bandwidth_bytes_per_second = 100u << 20;
    pair_connect(&pair, slow);
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        owner_send_many(&pair.dialled, 3);
        assert_int_equal(owner_send_blob(&pair.dialled, &balance, sizes[i]),
                         i + 1);
    }
    owner_send_many(&pair.dialled, 3);
    pair_run(&pair, 3 * SECOND);
    assert_int_equal(pair.accepted[0].blobs_received, TOW_COUNT_OF(sizes));
    assert_int_equal(pair.accepted[0].received, pair.dialled.sent);
    assert_int_equal(balance, 0);
    pair_end(&pair);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void a_blob_continues_after_a_break(void **state)
{
    pair_t pair = {0};
    int64_t balance = 0;
    tow_sim_options_t slow = lan;
    slow.remote_path.bandwidth_bytes_per_second = 20u << 20;
    pair_connect(&pair, slow);
    owner_send_blob(&pair.dialled, &balance, 20u << 20);
    owner_send_many(&pair.dialled, 5);
    pair_run(&pair, 300 * MS);
    /* One message is lost, and with it the epoch. */
    tow_sim_path_t lossy = slow.remote_path;
    lossy.loss_ppm = 1000000;
    tow_sim_host_t *a = tow_sim_node_host(pair.a);
    tow_sim_host_t *b = tow_sim_node_host(pair.b);
    must(tow_sim_set_path(pair.sim, a, b, TOW_SIM_BOTH_WAYS, &lossy));
    pair_run(&pair, 600 * MS);
    assert_int_equal(pair.accepted[0].blobs_received, 0);
    must(
        tow_sim_set_path(pair.sim, a, b, TOW_SIM_BOTH_WAYS, &slow.remote_path));
    pair_run(&pair, 4 * SECOND);
    assert_int_equal(pair.accepted[0].received, pair.dialled.sent);
    tow_session_stats_t stats = tow_session_stats(pair.dialled.session);
    assert_true(stats.epochs > 1);
    /* Received parts are not sent again. */
    assert_true(stats.messages_sent_again < 60);
    assert_int_equal(balance, 0);
    pair_end(&pair);
}

static void lost_messages_are_sent_again(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    tow_sim_path_t lossy = {.loss_ppm = 1000000};
    tow_sim_host_t *a = tow_sim_node_host(pair.a);
    tow_sim_host_t *b = tow_sim_node_host(pair.b);
    must(tow_sim_set_path(pair.sim, a, b, TOW_SIM_BOTH_WAYS, &lossy));
    owner_send_many(&pair.dialled, 5);
    owner_send_many(&pair.accepted[0], 6);
    pair_run(&pair, 600 * MS);
    must(tow_sim_set_path(pair.sim, a, b, TOW_SIM_BOTH_WAYS, &lan.remote_path));
    owner_send_many(&pair.dialled, 5);
    pair_run(&pair, 2 * SECOND);
    assert_int_equal(pair.accepted[0].received, 10);
    assert_int_equal(pair.dialled.received, 6);
    tow_session_stats_t stats = tow_session_stats(pair.dialled.session);
    assert_true(stats.epochs == 2 && stats.messages_sent_again >= 5);
    assert_int_equal(stats.messages_sent, 10);
    assert_int_equal(stats.retransmit_bytes, 0);
    pair_end(&pair);
}

static void blobs_of_an_ended_session_are_released(void **state)
{
    pair_t pair = {0};
    int64_t balance = 0;
    pair_connect(&pair, lan);
    owner_send_blob(&pair.dialled, &balance, 50u << 20);
    tow_sim_crash(pair.b);
    pair_run(&pair, 3 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    assert_int_equal(balance, 0);
    pair_end(&pair);
}

/* -- Disconnection and close ----------------------------------------------- */

static void a_close_reports_its_reason(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    tow_status_t reason = TOW_ERROR(TOW_PERMISSION_DENIED, "bad\nbehaviour");
    owner_close(&pair.dialled, reason);
    tow_status_release(reason);
    pair_run(&pair, 100 * MS);
    assert_int_equal(pair.dialled.closed_count, 1);
    assert_int_equal(pair.dialled.disconnected_count, 0);
    assert_int_equal(pair.accepted[0].disconnect_code, TOW_PERMISSION_DENIED);
    assert_string_equal(pair.accepted[0].disconnect_message,
                        "a ended the session: bad?behaviour");
    owner_close(&pair.accepted[0], TOW_OK);
    pair_run(&pair, 100 * MS);
    assert_int_equal(pair.accepted[0].closed_count, 1);
    pair_end(&pair);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void a_close_without_a_reason_is_a_cancellation(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    owner_close(&pair.accepted[0], TOW_OK);
    pair_run(&pair, 100 * MS);
    assert_int_equal(pair.dialled.disconnect_code, TOW_CANCELLED);
    assert_string_equal(pair.dialled.disconnect_message,
                        "b closed the session");
    pair_end(&pair);
}

static void a_refused_session_gets_the_reason(void **state)
{
    pair_t pair = {0};
    pair_open(&pair, lan);
    must(pair_listen(&pair));
    pair.refuse = true;
    must(pair_dial(&pair));
    pair_run(&pair, 100 * MS);
    assert_int_equal(pair.dialled.opened_count, 0);
    assert_int_equal(pair.dialled.disconnect_code, TOW_FAILED_PRECONDITION);
    assert_non_null(strstr(pair.dialled.disconnect_message, "not today"));
    pair_end(&pair);
}

static void too_many_sessions_are_refused(void **state)
{
    pair_t pair = {0};
    owner_t owners[5] = {0};
    pair_open(&pair, lan);
    must(pair_listen(&pair));
    for (int i = 0; i < 5; i++)
        must(tow_session_dial(
            tow_sim_node_env(pair.a),
            &(tow_session_dial_options_t){.address = "sim:b",
                                          .handler = &owner_handler,
                                          .context = &owners[i]},
            &owners[i].session));
    pair_run(&pair, 100 * MS);
    int open_count = 0;
    for (int i = 0; i < 5; i++) {
        open_count += owners[i].opened_count;
        if (owners[i].opened_count == 0)
            assert_int_equal(owners[i].disconnect_code, TOW_RESOURCE_EXHAUSTED);
    }
    assert_int_equal(open_count, 4);
    for (int i = 0; i < 5; i++)
        owner_close(&owners[i], TOW_OK);
    pair_run(&pair, 100 * MS);
    pair_end(&pair);
}

static void a_silent_peer_disconnects_within_three_seconds(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    int64_t then_ns = tow_sim_now_ns(pair.sim);
    tow_sim_pause(pair.a);
    pair_run(&pair, 10 * SECOND);
    assert_int_equal(pair.accepted[0].disconnected_count, 1);
    assert_true(pair.accepted[0].disconnected_ns - then_ns <= 3 * SECOND);
    assert_non_null(
        strstr(pair.accepted[0].disconnect_message, "a was silent for"));
    tow_sim_resume(pair.a);
    pair_run(&pair, 10 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    pair_end(&pair);
}

static void a_short_pause_or_partition_is_harmless(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    tow_sim_pause(pair.b);
    owner_send_many(&pair.dialled, 100);
    pair_run(&pair, SECOND);
    tow_sim_resume(pair.b);
    pair_run(&pair, SECOND);
    tow_sim_host_t *host = tow_sim_node_host(pair.a);
    must(tow_sim_partition(pair.sim, &(tow_sim_cut_t){.a = &host, .a_count = 1},
                           NULL));
    owner_send_many(&pair.dialled, 100);
    owner_send_many(&pair.accepted[0], 100);
    pair_run(&pair, 2 * SECOND);
    tow_sim_heal(pair.sim, 0);
    pair_run(&pair, 2 * SECOND);
    assert_int_equal(pair.accepted[0].received, 200);
    assert_int_equal(pair.dialled.received, 100);
    pair_end(&pair);
}

/* Suspended until its own lease has expired, but not the peer's: the peer's
 * heartbeats wait to be read. */
static void a_suspended_process_reads_before_it_disconnects(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    pair_run(&pair, 290 * MS); /* just before the next heartbeats */
    owner_send_many(&pair.dialled, 1);
    pair_run(&pair, 5 * MS);
    tow_sim_pause(pair.a);
    pair_run(&pair, 2300 * MS);
    tow_sim_resume(pair.a);
    pair_run(&pair, 5 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 0);
    assert_int_equal(pair.accepted[0].disconnected_count, 0);
    assert_int_equal(pair.accepted[0].received, 1);
    pair_end(&pair);
}

static void a_long_partition_disconnects_both_sides(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    int64_t then_ns = tow_sim_now_ns(pair.sim);
    tow_sim_host_t *host = tow_sim_node_host(pair.a);
    must(tow_sim_partition(pair.sim, &(tow_sim_cut_t){.a = &host, .a_count = 1},
                           NULL));
    pair_run(&pair, 3 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    assert_int_equal(pair.accepted[0].disconnected_count, 1);
    assert_true(pair.dialled.disconnected_ns - then_ns <= 3 * SECOND);
    assert_true(pair.accepted[0].disconnected_ns - then_ns <= 3 * SECOND);
    pair_end(&pair);
}

static void an_ended_session_cannot_be_resumed(void **state)
{
    pair_t pair = {.limits = {.lease_ns = 2500 * MS}};
    pair_connect(&pair, lan);
    owner_send_many(&pair.dialled, 1);
    pair_run(&pair, SECOND);
    /* b ends it without a message: only messages from b are lost. */
    tow_sim_host_t *a = tow_sim_node_host(pair.a);
    tow_sim_host_t *b = tow_sim_node_host(pair.b);
    must(tow_sim_partition(pair.sim,
                           &(tow_sim_cut_t){.a = &b,
                                            .a_count = 1,
                                            .b = &a,
                                            .b_count = 1,
                                            .direction = TOW_SIM_ONE_WAY},
                           NULL));
    owner_close(&pair.accepted[0], TOW_OK);
    pair_run(&pair, 1500 * MS); /* a redials during the partition */
    tow_sim_heal(pair.sim, 0);
    pair_run(&pair, 4 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    assert_int_equal(pair.arrived_count, 1);
    pair_end(&pair);
}

static void a_restarted_dialler_opens_a_new_session(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    tow_sim_crash(pair.a);
    tow_session_discard(pair.dialled.session);
    pair.dialled = (owner_t){0};
    pair_run(&pair, 50 * MS);
    assert_int_equal(pair.accepted[0].disconnected_count, 0);
    tow_sim_restart(pair.a);
    pair_run(&pair, 1 * MS);
    must(pair_dial(&pair));
    pair_run(&pair, 50 * MS);
    assert_int_equal(pair.accepted[0].disconnect_code, TOW_ABORTED);
    assert_non_null(strstr(pair.accepted[0].disconnect_message, "a restarted"));
    assert_int_equal(pair.arrived_count, 2);
    owner_send_many(&pair.dialled, 5);
    pair_run(&pair, 50 * MS);
    assert_int_equal(pair.accepted[1].received, 5);
    pair_end(&pair);
}

static void a_restarted_listener_disconnects(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    tow_sim_crash(pair.b);
    tow_session_discard(pair.accepted[0].session);
    tow_session_port_discard(pair.port);
    pair.accepted[0] = (owner_t){0};
    pair.port = NULL;
    tow_sim_restart(pair.b);
    pair_run(&pair, 1 * MS);
    must(pair_listen(&pair));
    pair_run(&pair, SECOND);
    assert_int_equal(pair.dialled.disconnect_code, TOW_ABORTED);
    assert_non_null(strstr(pair.dialled.disconnect_message, "b restarted"));
    assert_int_equal(pair.arrived_count, 1);
    pair_end(&pair);
}

static void dialling_waits_for_a_listener(void **state)
{
    pair_t pair = {0};
    pair_open(&pair, lan);
    must(tow_session_dial(
        tow_sim_node_env(pair.a),
        &(tow_session_dial_options_t){.address = "sim:b",
                                      .connect_timeout_ns = 60 * SECOND,
                                      .handler = &owner_handler,
                                      .context = &pair.dialled},
        &pair.dialled.session));
    pair_run(&pair, 30 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 0);
    must(pair_listen(&pair));
    pair_run(&pair, 10 * SECOND);
    assert_int_equal(pair.dialled.opened_count, 1);
    pair_end(&pair);
}

static void close_in_callback(owner_t *owner, const tow_message_t *message)
{
    tow_session_t *session = owner->session;
    owner->session = NULL;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
}

static void a_session_may_be_closed_in_a_callback(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    pair.accepted[0].on_message = close_in_callback;
    pair.dialled.close_on_disconnect = true;
    owner_send_many(&pair.dialled, 10);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].received, 1);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    tow_session_port_close(pair.port, (tow_closed_t){0});
    pair.port = NULL;
    pair_run(&pair, SECOND);
    pair_end(&pair);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void hand_over(owner_t *owner, const tow_message_t *message)
{
    owner_t *heir = owner + 1;
    *heir = (owner_t){.session = owner->session,
                      .opened_count = 1,
                      .received = owner->received};
    tow_session_accept(owner->session, &owner_handler, heir);
    owner->session = NULL;
}

static void a_session_may_change_owners_in_a_callback(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, lan);
    pair.accepted[0].on_message = hand_over;
    owner_send_many(&pair.dialled, 10);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].received, 1);
    assert_int_equal(pair.accepted[1].received, 10);
    owner_close(&pair.dialled, TOW_OK);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].disconnected_count, 0);
    assert_int_equal(pair.accepted[1].disconnected_count, 1);
    pair_end(&pair);
}

static void clocks_are_compared(void **state)
{
    pair_t pair = {0};
    int64_t offset_ns, error_ns;
    pair_open(&pair, lan);
    must(pair_listen(&pair));
    pair_run(&pair, SECOND); /* Time 0 is ignored. */
    must(pair_dial(&pair));
    assert_false(
        tow_session_clock_offset(pair.dialled.session, &offset_ns, &error_ns));
    pair_run(&pair, 700 * MS);
    for (int i = 0; i < 2; i++) {
        const tow_session_t *session =
            i == 0 ? pair.dialled.session : pair.accepted[0].session;
        assert_true(tow_session_clock_offset(session, &offset_ns, &error_ns));
        assert_true(error_ns < 200 * TOW_NS_PER_US);
        assert_true(offset_ns <= error_ns && offset_ns >= -error_ns);
    }
    pair_end(&pair);
}

static void failures_travel_as_statuses(void **state)
{
    tow_status_t status = TOW_ERROR(TOW_DATA_LOSS, "page %d", 7);
    tow_msg_failure_t failure = tow_failure_of(status);
    tow_status_t again = tow_failure_status(&failure);
    assert_int_equal(tow_status_code(again), TOW_DATA_LOSS);
    assert_string_equal(tow_status_message(again), "page 7");
    tow_status_release(again);
    tow_status_release(status);
    assert_null(tow_failure_status(NULL));
    failure = tow_failure_of(TOW_OK);
    assert_null(tow_failure_status(&failure));
    char text[3000];
    memset(text, 'x', sizeof(text));
    snprintf(text + 2990, 10, "the end");
    status = TOW_ERROR(TOW_INTERNAL, "%s", text);
    failure = tow_failure_of(status);
    assert_true(strlen(failure.message) <= TOW_FAILURE_MESSAGE_MAX);
    assert_non_null(strstr(failure.message, "the end"));
    tow_status_release(status);
    failure.code = 4711;
    failure.message = "?";
    status = tow_failure_status(&failure);
    assert_int_equal(tow_status_code(status), TOW_UNKNOWN);
    tow_status_release(status);
}

/* -- Failing allocations --------------------------------------------------- */

static tow_exhaust_result_t live_and_end(void *context)
{
    pair_t pair = {.accept_handler = &owner_handler};
    int64_t balance = 0;
    tow_sim_options_t options = lan;
    options.log.level = TOW_LOG_OFF;
    const tow_sim_run_options_t run = {.until_ns = 300 * MS};
    const tow_sim_run_options_t rest = {.until_ns = 6 * SECOND};
    tow_status_t status = tow_sim_create(&options, &pair.sim);
    if (status == TOW_OK)
        status = tow_sim_node_create(
            pair.sim, &(tow_sim_node_options_t){.name = "a"}, &pair.a);
    if (status == TOW_OK)
        status = tow_sim_node_create(
            pair.sim, &(tow_sim_node_options_t){.name = "b"}, &pair.b);
    if (status == TOW_OK) status = pair_listen(&pair);
    if (status == TOW_OK) status = pair_dial(&pair);
    if (status == TOW_OK) status = tow_sim_run(pair.sim, &run);
    bool worked = status == TOW_OK && pair.dialled.opened_count == 1;
    if (worked) {
        for (int i = 0; i < 100; i++)
            (void)owner_send(&pair.dialled);
        (void)owner_send_blob(&pair.dialled, &balance, 400u << 10);
        status = tow_sim_run(pair.sim, &rest);
        worked = status == TOW_OK && pair.accepted[0].received == 101;
        assert_true(worked || status != TOW_OK ||
                    pair.dialled.disconnected_count == 1 || balance == 0);
    }
    tow_status_release(status);
    if (pair.sim != NULL) pair_end(&pair);
    assert_int_equal(balance, 0);
    return worked ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void memory_that_runs_out_ends_sessions_and_leaks_nothing(void **state)
{
    assert_true(tow_test_exhaust(live_and_end, NULL) > 20);
}

TOW_TEST_MAIN(
    cmocka_unit_test(messages_arrive_both_ways_in_order),
    cmocka_unit_test(bodies_arrive_encoded),
    cmocka_unit_test(nothing_is_sent_before_opened_or_after_disconnected),
    cmocka_unit_test(a_bound_is_full_and_becomes_writable),
    cmocka_unit_test(blobs_arrive_whole_between_messages),
    cmocka_unit_test(a_blob_continues_after_a_break),
    cmocka_unit_test(lost_messages_are_sent_again),
    cmocka_unit_test(blobs_of_an_ended_session_are_released),
    cmocka_unit_test(a_close_reports_its_reason),
    cmocka_unit_test(a_close_without_a_reason_is_a_cancellation),
    cmocka_unit_test(a_refused_session_gets_the_reason),
    cmocka_unit_test(too_many_sessions_are_refused),
    cmocka_unit_test(a_silent_peer_disconnects_within_three_seconds),
    cmocka_unit_test(a_short_pause_or_partition_is_harmless),
    cmocka_unit_test(a_suspended_process_reads_before_it_disconnects),
    cmocka_unit_test(a_long_partition_disconnects_both_sides),
    cmocka_unit_test(an_ended_session_cannot_be_resumed),
    cmocka_unit_test(a_restarted_dialler_opens_a_new_session),
    cmocka_unit_test(a_restarted_listener_disconnects),
    cmocka_unit_test(dialling_waits_for_a_listener),
    cmocka_unit_test(a_session_may_be_closed_in_a_callback),
    cmocka_unit_test(a_session_may_change_owners_in_a_callback),
    cmocka_unit_test(clocks_are_compared),
    cmocka_unit_test(failures_travel_as_statuses),
    cmocka_unit_test(memory_that_runs_out_ends_sessions_and_leaks_nothing))
