#include "env/sim/fixture_testing_impl.h"

#include "env/sim/tuning.h"
#include "wire/frame.h"

static tow_sim_options_t with_latency(int64_t latency_ns)
{
    return (tow_sim_options_t){.remote_path.latency_ns = latency_ns,
                               .timeouts.link_ns = 2 * SECOND,
                               .timeouts.dial_ns = SECOND};
}

static void cut_from_a(pair_t *pair, tow_sim_direction_t direction)
{
    tow_sim_host_t *host = tow_sim_node_host(pair->a);
    must(tow_sim_partition(
        pair->sim,
        &(tow_sim_cut_t){.a = &host, .a_count = 1, .direction = direction},
        NULL));
}

static void cut_from_b(pair_t *pair, tow_sim_direction_t direction)
{
    tow_sim_host_t *host = tow_sim_node_host(pair->b);
    must(tow_sim_partition(
        pair->sim,
        &(tow_sim_cut_t){.a = &host, .a_count = 1, .direction = direction},
        NULL));
}

/* -- Sending -------------------------------------------------------------- */

static void messages_arrive_in_order_after_the_latency(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(5 * US));
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
    assert_int_equal(tow_link_peer(pair.dialled.link)->incarnation, 1);
    assert_int_equal(tow_link_peer(pair.dialled.link)->epoch, 1);
    pair_close(&pair);
}

static void bytes_queue_for_the_bandwidth(void **state)
{
    (void)state;
    pair_t pair;
    tow_sim_options_t options = with_latency(MS);
    options.remote_path.bandwidth_bytes_per_second = 1000000;
    pair_connect(&pair, options);
    run_for(pair.sim, SECOND);
    int64_t sent_ns = tow_sim_now_ns(pair.sim);
    uint8_t bytes[988] = {0};
    for (int i = 0; i < 10; i++)
        assert_int_equal(
            tow_link_send(pair.dialled.link, 1, bytes, sizeof(bytes)),
            TOW_SEND_OK);
    run_for(pair.sim, 5 * MS + MS);
    assert_int_equal(pair.accepted.message_count, 5);
    run_idle(pair.sim);
    int64_t on_path_ns = 10 * (988 + TOW_FRAME_HEADER_SIZE) * US;
    assert_int_equal(pair.accepted.last_ns, sent_ns + on_path_ns + MS);
    pair_close(&pair);
}

static void the_two_directions_do_not_share_bandwidth(void **state)
{
    (void)state;
    pair_t pair;
    tow_sim_options_t options = with_latency(0);
    options.remote_path.bandwidth_bytes_per_second = 1000;
    pair_connect(&pair, options);
    run_for(pair.sim, SECOND);
    int64_t sent_ns = tow_sim_now_ns(pair.sim);
    uint8_t bytes[988] = {0};
    assert_int_equal(tow_link_send(pair.dialled.link, 1, bytes, 988),
                     TOW_SEND_OK);
    assert_int_equal(tow_link_send(pair.accepted.link, 1, bytes, 988),
                     TOW_SEND_OK);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.last_ns, sent_ns + SECOND);
    assert_int_equal(pair.dialled.last_ns, sent_ns + SECOND);
    pair_close(&pair);
}

static void jitter_delays_but_never_reorders(void **state)
{
    (void)state;
    pair_t pair;
    tow_sim_options_t options = with_latency(5 * US);
    options.remote_path.jitter_ns = MS;
    pair_connect(&pair, options);
    int64_t sent_ns = tow_sim_now_ns(pair.sim);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(send_counter(&pair.dialled, i), TOW_SEND_OK);
    run_idle(pair.sim);
    assert_true(pair.accepted.in_order);
    assert_true(pair.accepted.last_ns > sent_ns + 5 * US);
    assert_true(pair.accepted.last_ns <= sent_ns + 5 * US + MS);
    pair_close(&pair);
}

static void large_and_empty_messages_arrive_whole(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(0));
    uint8_t *bytes = test_malloc(TOW_MESSAGE_SIZE_MAX);
    memset(bytes, 0xa5, TOW_MESSAGE_SIZE_MAX);
    assert_int_equal(
        tow_link_send(pair.dialled.link, 1, bytes, TOW_MESSAGE_SIZE_MAX),
        TOW_SEND_OK);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.last_size, TOW_MESSAGE_SIZE_MAX);
    assert_int_equal(pair.accepted.last_first_byte, 0xa5);
    assert_int_equal(tow_link_send(pair.dialled.link, 2, NULL, 0), TOW_SEND_OK);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.last_size, 0);
    assert_int_equal(pair.accepted.message_count, 2);
    test_free(bytes);
    pair_close(&pair);
}

/* -- Back-pressure -------------------------------------------------------- */

static int fill(end_t *end)
{
    uint8_t bytes[1000] = {0};
    int count = 0;
    while (tow_link_send(end->link, 1, bytes, sizeof(bytes)) == TOW_SEND_OK)
        count++;
    return count;
}

static void a_frozen_peer_fills_the_link(void **state)
{
    (void)state;
    pair_t pair;
    tow_sim_options_t options = with_latency(MS);
    options.link_bytes_max = 64 << 10;
    pair_connect(&pair, options);
    tow_sim_pause(pair.b);
    int sent = fill(&pair.dialled);
    assert_int_equal(sent, (64 << 10) / (1000 + TOW_FRAME_HEADER_SIZE));
    run_for(pair.sim, 10 * SECOND);
    assert_int_equal(pair.accepted.message_count, 0);
    assert_int_equal(pair.dialled.down_count,
                     0); /* Its kernel still acknowledges. */
    assert_int_equal(fill(&pair.dialled), 0);
    tow_sim_resume(pair.b);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.message_count, sent);
    assert_int_equal(pair.dialled.writable_count, 1);
    assert_true(fill(&pair.dialled) > sent / 2);
    pair_close(&pair);
}

static void a_message_of_the_largest_size_fits_when_half_is_free(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(MS));
    uint8_t *room;
    int count = 0;
    while (tow_link_begin(pair.dialled.link, TOW_MESSAGE_SIZE_MAX, &room) ==
           TOW_SEND_OK) {
        memset(room, 1, 1);
        tow_link_commit(pair.dialled.link, 1, TOW_MESSAGE_SIZE_MAX);
        count++;
    }
    assert_in_range(count, 1, 2);
    run_idle(pair.sim);
    assert_int_equal(pair.dialled.writable_count, 1);
    assert_int_equal(
        tow_link_begin(pair.dialled.link, TOW_MESSAGE_SIZE_MAX, &room),
        TOW_SEND_OK);
    tow_link_commit(pair.dialled.link, 1, 0);
    pair_close(&pair);
}

/* -- The end of an epoch -------------------------------------------------- */

static void closing_delivers_sent_messages_then_the_end(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(5 * US));
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    tow_link_close(pair.dialled.link, tell_end(&pair.dialled));
    assert_int_equal(pair.dialled.closed_count, 0);
    run_idle(pair.sim);
    assert_int_equal(pair.dialled.closed_count, 1);
    assert_int_equal(pair.dialled.down_count, 0);
    assert_int_equal(pair.accepted.message_count, 1);
    assert_int_equal(pair.accepted.down_count, 1);
    assert_int_equal(pair.accepted.last_cause, TOW_UNAVAILABLE);
    assert_int_equal(send_counter(&pair.accepted, 0), TOW_SEND_DOWN);
    tow_link_close(pair.accepted.link, tell_end(&pair.accepted));
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.closed_count, 1);
    pair_close(&pair);
}

static void no_callback_follows_a_close(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(5 * US));
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(send_counter(&pair.dialled, i), TOW_SEND_OK);
    pair.accepted.close_on_message = true;
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.accepted.message_count, 1);
    assert_int_equal(pair.accepted.closed_count, 1);
    assert_int_equal(pair.accepted.down_count, 0);
    /* The dialler has noticed and is connected again. */
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.dialled.up_count, 2);
    pair_close(&pair);
}

static void a_lost_message_breaks_the_epoch_on_both_sides(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(MS));
    must(tow_sim_set_path(
        pair.sim, tow_sim_node_host(pair.a), tow_sim_node_host(pair.b),
        TOW_SIM_ONE_WAY,
        &(tow_sim_path_t){.latency_ns = MS, .loss_ppm = 1000000}));
    int64_t sent_ns = tow_sim_now_ns(pair.sim);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    must(tow_sim_set_path(pair.sim, tow_sim_node_host(pair.a),
                          tow_sim_node_host(pair.b), TOW_SIM_ONE_WAY,
                          &(tow_sim_path_t){.latency_ns = MS}));
    assert_int_equal(send_counter(&pair.dialled, 1), TOW_SEND_OK);
    run_until(pair.sim, sent_ns + 2 * SECOND + MS);
    assert_int_equal(pair.accepted.message_count, 0);
    assert_int_equal(pair.accepted.down_count, 1);
    assert_int_equal(pair.accepted.last_cause, TOW_UNAVAILABLE);
    assert_int_equal(pair.accepted.last_ns, sent_ns + 2 * SECOND + MS);
    assert_int_equal(pair.dialled.down_count, 1);
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.dialled.up_count, 2);
    assert_int_equal(tow_link_peer(pair.dialled.link)->epoch, 2);
    assert_int_equal(tow_sim_counts(pair.sim).messages_lost, 2);
    pair_close(&pair);
}

static void a_damaged_message_is_noticed_by_the_receiver(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 4, 60, 5000};
    for (uint64_t seed = 0; seed < 40; seed++) {
        pair_t pair;
        tow_sim_options_t options = with_latency(MS);
        options.seed = seed;
        options.remote_path.corrupt_ppm = 1000000;
        pair_connect(&pair, options);
        uint8_t bytes[5000] = {0};
        uint32_t size = sizes[seed % TOW_COUNT_OF(sizes)];
        assert_int_equal(tow_link_send(pair.dialled.link, 3, bytes, size),
                         TOW_SEND_OK);
        run_for(pair.sim, 2 * MS);
        assert_int_equal(pair.accepted.message_count, 0);
        assert_int_equal(pair.accepted.down_count, 1);
        assert_int_equal(pair.accepted.last_cause, TOW_DATA_LOSS);
        assert_int_equal(pair.dialled.down_count, 1);
        assert_int_equal(pair.dialled.last_cause, TOW_UNAVAILABLE);
        pair_close(&pair);
    }
}

/* -- Dialling ------------------------------------------------------------- */

static void missing_listener_is_reported_and_redialled(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    dial_from_a(&pair);
    run_until(pair.sim, 3 * MS);
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.dialled.last_cause, TOW_UNAVAILABLE);
    assert_int_equal(pair.dialled.last_ns, 2 * MS);
    run_until(pair.sim, 30 * SECOND);
    /* 10 ms, doubling, to 5 s: seven attempts below a second, then slower. */
    assert_in_range(pair.dialled.down_count, 10, 25);
    listen_as_b(&pair);
    run_for(pair.sim, 6 * SECOND);
    assert_int_equal(pair.dialled.up_count, 1);
    pair_close(&pair);
}

static void an_unknown_name_fails_too(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    must(tow_env_connect(pair.a_env,
                         &(tow_connect_options_t){.address = "sim:nowhere",
                                                  .handler = &end_handler,
                                                  .context = &pair.dialled},
                         &pair.dialled.link));
    run_for(pair.sim, 2 * MS);
    assert_int_equal(pair.dialled.down_count, 1);
    pair_close(&pair);
}

static void addresses_of_other_envs_are_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    static const char *const texts[] = {"tcp:127.0.0.1:80", "sim:", "nonsense",
                                        "unix:/somewhere"};
    for (size_t i = 0; i < TOW_COUNT_OF(texts); i++) {
        tow_link_t *link;
        tow_status_t status =
            tow_env_connect(pair.a_env,
                            &(tow_connect_options_t){.address = texts[i],
                                                     .handler = &end_handler},
                            &link);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
    }
    pair_close(&pair);
}

static void an_address_has_one_listener_at_a_time(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    listen_as_b(&pair);
    const tow_listen_options_t options = {.address = "sim:b",
                                          .accept = end_accept};
    tow_listener_t *second;
    tow_status_t status = tow_env_listen(pair.a_env, &options, &second);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
    tow_listener_close(pair.listener, (tow_closed_t){0});
    must(tow_env_listen(pair.a_env, &options, &second));
    assert_string_equal(second->address, "sim:b");
    pair_close(&pair);
}

static void a_peer_with_an_unexpected_name_is_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    listen_as_b(&pair);
    must(tow_env_connect(pair.a_env,
                         &(tow_connect_options_t){.address = "sim:b",
                                                  .expected_name = "c",
                                                  .handler = &end_handler,
                                                  .context = &pair.dialled},
                         &pair.dialled.link));
    run_for(pair.sim, 5 * MS);
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.dialled.last_cause, TOW_FAILED_PRECONDITION);
    assert_null(pair.accepted.link);
    pair_close(&pair);
}

static void refuse(void *context, tow_link_t *link)
{
    tow_link_close(link, tell_end(context));
}

static void closing_in_accept_refuses_the_peer(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    must(tow_env_listen(pair.b_env,
                        &(tow_listen_options_t){.address = "sim:b",
                                                .accept = refuse,
                                                .context = &pair.accepted},
                        &pair.listener));
    dial_from_a(&pair);
    run_for(pair.sim, 7 * MS);
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.accepted.closed_count, 1);
    assert_int_equal(pair.accepted.up_count, 0);
    pair_close(&pair);
}

static void a_frozen_listener_does_not_answer(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    listen_as_b(&pair);
    tow_sim_pause(pair.b);
    dial_from_a(&pair);
    run_until(pair.sim, SECOND);
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.dialled.last_ns, SECOND);
    assert_int_equal(pair.dialled.last_cause, TOW_DEADLINE_EXCEEDED);
    tow_sim_resume(pair.b);
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.dialled.up_count, 1);
    pair_close(&pair);
}

/* -- Partitions ----------------------------------------------------------- */

static void a_short_cut_only_delays(void **state)
{
    (void)state;
    for (tow_sim_direction_t way = TOW_SIM_BOTH_WAYS; way <= TOW_SIM_ONE_WAY;
         way++) {
        pair_t pair;
        pair_connect(&pair, with_latency(MS));
        cut_from_a(&pair, way);
        for (uint32_t i = 0; i < 10; i++)
            assert_int_equal(send_counter(&pair.dialled, i), TOW_SEND_OK);
        run_for(pair.sim, SECOND);
        assert_int_equal(pair.accepted.message_count, 0);
        tow_sim_heal(pair.sim, 0);
        int64_t healed_ns = tow_sim_now_ns(pair.sim);
        run_idle(pair.sim);
        assert_int_equal(pair.accepted.message_count, 10);
        assert_true(pair.accepted.in_order);
        assert_int_equal(pair.accepted.last_ns, healed_ns + MS);
        assert_int_equal(pair.dialled.down_count, 0);
        pair_close(&pair);
    }
}

static void messages_in_flight_before_the_cut_arrive(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(MS));
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    cut_from_a(&pair, TOW_SIM_BOTH_WAYS);
    run_for(pair.sim, MS);
    assert_int_equal(pair.accepted.message_count, 1);
    pair_close(&pair);
}

static void a_one_way_cut_lets_the_other_way_through(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(MS));
    cut_from_a(&pair, TOW_SIM_ONE_WAY);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    assert_int_equal(send_counter(&pair.accepted, 0), TOW_SEND_OK);
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.accepted.message_count, 0);
    assert_int_equal(pair.dialled.message_count, 1);
    pair_close(&pair);
}

static void a_long_cut_ends_the_epoch_on_both_sides(void **state)
{
    (void)state;
    for (tow_sim_direction_t way = TOW_SIM_BOTH_WAYS; way <= TOW_SIM_ONE_WAY;
         way++) {
        pair_t pair;
        pair_connect(&pair, with_latency(MS));
        int64_t cut_ns = tow_sim_now_ns(pair.sim);
        cut_from_a(&pair, way);
        assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
        run_until(pair.sim, cut_ns + 2 * SECOND - 1);
        assert_int_equal(pair.dialled.down_count, 0);
        run_for(pair.sim, SECOND);
        assert_true(pair.dialled.down_count >= 1);
        assert_int_equal(pair.accepted.down_count, 1);
        /* Attempts into the cut get no reply. */
        assert_int_equal(pair.dialled.up_count, 1);
        tow_sim_heal(pair.sim, 0);
        run_for(pair.sim, 10 * SECOND);
        assert_int_equal(pair.dialled.up_count, 2);
        assert_int_equal(pair.accepted.message_count, 0);
        pair_close(&pair);
    }
}

static void a_cut_in_mid_handshake_times_out(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, with_latency(MS));
    listen_as_b(&pair);
    dial_from_a(&pair);
    run_until(pair.sim, 2 * MS);
    cut_from_b(&pair, TOW_SIM_ONE_WAY);
    run_until(pair.sim, SECOND);
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.dialled.up_count, 0);
    assert_null(pair.accepted.link);
    pair_close(&pair);
}

static void a_death_behind_a_cut_is_noticed_when_it_heals(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(MS));
    cut_from_a(&pair, TOW_SIM_BOTH_WAYS);
    run_for(pair.sim, MS);
    tow_sim_crash(pair.a);
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.accepted.down_count, 0);
    tow_sim_heal(pair.sim, 0);
    run_for(pair.sim, 2 * MS);
    assert_int_equal(pair.accepted.down_count, 1);
    pair_close(&pair);
}

static void a_close_behind_a_cut_is_noticed_when_it_heals(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, with_latency(MS));
    cut_from_a(&pair, TOW_SIM_BOTH_WAYS);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    tow_link_close(pair.dialled.link, tell_end(&pair.dialled));
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.dialled.closed_count, 1);
    tow_sim_heal(pair.sim, 0);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.message_count, 1);
    assert_int_equal(pair.accepted.down_count, 1);
    pair_close(&pair);
}

static void credit_stalled_by_a_cut_arrives_when_it_heals(void **state)
{
    (void)state;
    pair_t pair;
    tow_sim_options_t options = with_latency(MS);
    options.link_bytes_max = 64 << 10;
    pair_connect(&pair, options);
    int sent = fill(&pair.dialled);
    cut_from_b(&pair, TOW_SIM_ONE_WAY);
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.accepted.message_count, sent);
    assert_int_equal(pair.dialled.writable_count, 0);
    tow_sim_heal(pair.sim, 0);
    run_idle(pair.sim);
    assert_int_equal(pair.dialled.writable_count, 1);
    pair_close(&pair);
}

TOW_TEST_MAIN(
    cmocka_unit_test(messages_arrive_in_order_after_the_latency),
    cmocka_unit_test(bytes_queue_for_the_bandwidth),
    cmocka_unit_test(the_two_directions_do_not_share_bandwidth),
    cmocka_unit_test(jitter_delays_but_never_reorders),
    cmocka_unit_test(large_and_empty_messages_arrive_whole),
    cmocka_unit_test(a_frozen_peer_fills_the_link),
    cmocka_unit_test(a_message_of_the_largest_size_fits_when_half_is_free),
    cmocka_unit_test(closing_delivers_sent_messages_then_the_end),
    cmocka_unit_test(no_callback_follows_a_close),
    cmocka_unit_test(a_lost_message_breaks_the_epoch_on_both_sides),
    cmocka_unit_test(a_damaged_message_is_noticed_by_the_receiver),
    cmocka_unit_test(missing_listener_is_reported_and_redialled),
    cmocka_unit_test(an_unknown_name_fails_too),
    cmocka_unit_test(addresses_of_other_envs_are_refused),
    cmocka_unit_test(an_address_has_one_listener_at_a_time),
    cmocka_unit_test(a_peer_with_an_unexpected_name_is_refused),
    cmocka_unit_test(closing_in_accept_refuses_the_peer),
    cmocka_unit_test(a_frozen_listener_does_not_answer),
    cmocka_unit_test(a_short_cut_only_delays),
    cmocka_unit_test(messages_in_flight_before_the_cut_arrive),
    cmocka_unit_test(a_one_way_cut_lets_the_other_way_through),
    cmocka_unit_test(a_long_cut_ends_the_epoch_on_both_sides),
    cmocka_unit_test(a_cut_in_mid_handshake_times_out),
    cmocka_unit_test(a_death_behind_a_cut_is_noticed_when_it_heals),
    cmocka_unit_test(a_close_behind_a_cut_is_noticed_when_it_heals),
    cmocka_unit_test(credit_stalled_by_a_cut_arrives_when_it_heals))
