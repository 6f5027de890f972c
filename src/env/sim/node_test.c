#include "env/sim/fixture_testing_impl.h"

/* Latency is 1 ms: a dial leaves at 0, reaches the listener at 1 ms, is
 * authenticated at 5 ms, and is up at the dialler at 6 ms. */
#define LATENCY_NS MS

static tow_sim_options_t options_with_latency(void)
{
    return (tow_sim_options_t){
        .remote_path.latency_ns = LATENCY_NS,
        .timeouts = {.link_ns = SECOND, .lane_ns = SECOND, .dial_ns = SECOND}};
}

static void dial_until(pair_t *pair, int64_t until_ns)
{
    pair_open(pair, options_with_latency());
    listen_as_b(pair);
    dial_from_a(pair);
    if (until_ns > 0) run_until(pair->sim, until_ns);
}

static const int64_t phases_ns[] = {0,
                                    LATENCY_NS / 2,
                                    3 * LATENCY_NS,
                                    5 * LATENCY_NS,
                                    11 * LATENCY_NS / 2,
                                    8 * LATENCY_NS};

/* -- Crashes in every phase of a link ------------------------------------- */

static void a_dialler_may_die_in_any_phase(void **state)
{
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(phases_ns); i++) {
        pair_t pair;
        dial_until(&pair, phases_ns[i]);
        int64_t crash_ns = tow_sim_now_ns(pair.sim);
        int calls = pair.dialled.up_count + pair.dialled.down_count;
        tow_sim_crash(pair.a);
        run_until(pair.sim, 3 * SECOND);
        /* A dead node gets no callback. */
        assert_int_equal(pair.dialled.up_count + pair.dialled.down_count,
                         calls);
        /* A listener that had accepted it is notified once, in its own time. */
        assert_int_equal(pair.accepted.down_count, pair.accepted.up_count);
        assert_int_equal(pair.accepted.up_count,
                         phases_ns[i] >= 5 * LATENCY_NS);
        if (pair.accepted.down_count > 0)
            assert_int_equal(pair.accepted.last_ns, crash_ns + LATENCY_NS);
        pair_close(&pair);
    }
}

static void a_listener_may_die_in_any_phase(void **state)
{
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(phases_ns); i++) {
        pair_t pair;
        dial_until(&pair, phases_ns[i]);
        tow_sim_crash(pair.b);
        int calls = pair.accepted.up_count;
        run_for(pair.sim, SECOND);
        assert_int_equal(pair.accepted.up_count, calls);
        assert_true(pair.dialled.down_count > 0);
        assert_int_equal(pair.dialled.last_cause, TOW_UNAVAILABLE);
        tow_sim_restart(pair.b);
        listen_as_b(&pair);
        int ups = pair.dialled.up_count;
        run_for(pair.sim, 10 * SECOND);
        assert_int_equal(pair.dialled.up_count, ups + 1);
        assert_int_equal(tow_link_peer(pair.dialled.link)->incarnation, 2);
        pair_close(&pair);
    }
}

static void a_listener_restarted_in_mid_handshake_refuses_the_dial(void **state)
{
    (void)state;
    pair_t pair;
    dial_until(&pair, 3 * LATENCY_NS);
    tow_sim_crash(pair.b);
    tow_sim_restart(pair.b);
    listen_as_b(&pair);
    run_until(pair.sim, 6 * LATENCY_NS);
    assert_int_equal(pair.dialled.down_count, 1);
    assert_int_equal(pair.dialled.up_count, 0);
    pair_close(&pair);
}

static void a_dialling_link_may_be_closed_in_any_phase(void **state)
{
    (void)state;
    for (size_t i = 0; i < TOW_COUNT_OF(phases_ns); i++) {
        pair_t pair;
        dial_until(&pair, phases_ns[i]);
        int ups = pair.dialled.up_count;
        tow_link_close(pair.dialled.link, tell_end(&pair.dialled));
        run_until(pair.sim, 3 * SECOND);
        assert_int_equal(pair.dialled.closed_count, 1);
        assert_int_equal(pair.dialled.up_count, ups);
        assert_int_equal(pair.dialled.down_count, 0);
        assert_int_equal(pair.accepted.down_count, pair.accepted.up_count);
        pair_close(&pair);
    }
}

static void a_node_that_dies_while_closing_gets_no_callback(void **state)
{
    (void)state;
    pair_t pair;
    dial_until(&pair, 8 * LATENCY_NS);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    tow_link_close(pair.dialled.link, tell_end(&pair.dialled));
    tow_listener_close(pair.listener, tell_end(&pair.accepted));
    tow_sim_crash(pair.a);
    tow_sim_crash(pair.b);
    run_until(pair.sim, 3 * SECOND);
    assert_int_equal(pair.dialled.closed_count, 0);
    assert_int_equal(pair.accepted.closed_count, 0);
    assert_int_equal(pair.accepted.message_count, 0);
    pair_close(&pair);
}

static void messages_sent_before_a_crash_arrive_before_the_end(void **state)
{
    (void)state;
    pair_t pair;
    dial_until(&pair, 8 * LATENCY_NS);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(send_counter(&pair.dialled, i), TOW_SEND_OK);
    tow_sim_crash(pair.a);
    run_for(pair.sim, LATENCY_NS);
    assert_int_equal(pair.accepted.message_count, 5);
    assert_true(pair.accepted.in_order);
    assert_int_equal(pair.accepted.down_count, 1);
    pair_close(&pair);
}

/* -- Programs ------------------------------------------------------------- */

typedef struct life {
    int started;
    int destroyed;
    uint64_t first_random;
    bool fails;
} life_t;

static tow_status_t life_start(tow_env_t *env, void *argument,
                               void **out_machine)
{
    life_t *life = argument;
    life->started++;
    life->first_random = tow_random_next(tow_env_random(env));
    if (life->fails) return TOW_ERROR(TOW_INTERNAL, "no will to live");
    *out_machine = life;
    return TOW_OK;
}

static void life_destroy(void *machine)
{
    ((life_t *)machine)->destroyed++;
}

static const tow_sim_program_t life_program = {.start = life_start,
                                               .destroy = life_destroy};

static tow_sim_node_t *start_incarnation(tow_sim_t *sim, const char *name,
                                         life_t *life)
{
    tow_sim_node_t *node;
    must(tow_sim_node_create(sim,
                             &(tow_sim_node_options_t){.name = name,
                                                       .program = &life_program,
                                                       .argument = life},
                             &node));
    return node;
}

static void each_incarnation_is_started_and_destroyed_once(void **state)
{
    (void)state;
    life_t life = {0};
    pair_t pair;
    pair_open(&pair, options_with_latency());
    tow_sim_node_t *node = start_incarnation(pair.sim, "lives", &life);
    assert_int_equal(life.started, 0);
    run_idle(pair.sim);
    assert_int_equal(life.started, 1);
    assert_ptr_equal(tow_sim_node_machine(node), &life);
    uint64_t first = life.first_random;
    tow_sim_crash(node);
    tow_sim_crash(node);
    assert_int_equal(life.destroyed, 1);
    assert_null(tow_sim_node_machine(node));
    tow_sim_restart(node);
    tow_sim_restart(node);
    tow_sim_crash(node); /* Before it could start. */
    tow_sim_restart(node);
    run_idle(pair.sim);
    assert_int_equal(life.started, 2);
    assert_int_not_equal(life.first_random, first);
    assert_int_equal(tow_sim_node_incarnation(node), 3);
    assert_ptr_equal(tow_sim_node_find(pair.sim, "lives"), node);
    pair_close(&pair);
    assert_int_equal(life.destroyed, 2);
}

static void a_program_that_cannot_start_ends_the_run(void **state)
{
    (void)state;
    life_t life = {.fails = true};
    pair_t pair;
    pair_open(&pair, options_with_latency());
    start_incarnation(pair.sim, "unwilling", &life);
    tow_status_t status = tow_sim_run(pair.sim, &(tow_sim_run_options_t){0});
    assert_int_equal(tow_status_code(status), TOW_INTERNAL);
    assert_string_equal(tow_status_message(status),
                        "starting node unwilling: no will to live");
    tow_status_release(status);
    pair_close(&pair);
    assert_int_equal(life.destroyed, 0);
}

static void nodes_draw_from_generators_of_their_own(void **state)
{
    (void)state;
    uint64_t firsts[2][2];
    for (int run = 0; run < 2; run++) {
        life_t lives[2] = {{0}, {0}};
        tow_sim_t *sim;
        must(tow_sim_create(
            &(tow_sim_options_t){.seed = 4, .log.level = TOW_LOG_OFF}, &sim));
        start_incarnation(sim, "x", &lives[0]);
        start_incarnation(sim, "y", &lives[1]);
        run_idle(sim);
        firsts[run][0] = lives[0].first_random;
        firsts[run][1] = lives[1].first_random;
        tow_sim_destroy(sim);
    }
    assert_int_not_equal(firsts[0][0], firsts[0][1]);
    assert_int_equal(firsts[0][0], firsts[1][0]);
    assert_int_equal(firsts[0][1], firsts[1][1]);
}

static void features_are_those_that_both_have(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, options_with_latency());
    tow_sim_node_t *nodes[2];
    static const uint64_t features[] = {6, 3};
    for (int i = 0; i < 2; i++)
        must(tow_sim_node_create(
            pair.sim,
            &(tow_sim_node_options_t){.name = i ? "d" : "c",
                                      .features = features[i]},
            &nodes[i]));
    pair.a_env = tow_sim_node_env(nodes[0]);
    pair.b_env = tow_sim_node_env(nodes[1]);
    listen_as_b(&pair);
    dial_from_a(&pair);
    run_idle(pair.sim);
    assert_int_equal(tow_link_peer(pair.dialled.link)->features, 2);
    assert_int_equal(tow_link_peer(pair.accepted.link)->features, 2);
    pair_close(&pair);
}

static void keep_line(void *context, const char *line, size_t length)
{
    snprintf(context, 200, "%.*s", (int)length, line);
}

static void a_node_logs_its_name_and_virtual_time(void **state)
{
    (void)state;
    char line[200] = "";
    tow_sim_t *sim;
    must(tow_sim_create(
        &(tow_sim_options_t){.log = {.sink = keep_line, .sink_context = line}},
        &sim));
    tow_sim_node_t *node = make_node(sim, "talker");
    run_until(sim, 90 * SECOND);
    tow_log(&tow_sim_node_env(node)->log, TOW_LOG_INFO, "hello",
            TOW_F_U64("answer", 42));
    assert_string_equal(line, "1970-01-01T00:01:30.000000Z info talker hello "
                              "answer 42\n");
    assert_string_equal(tow_sim_node_name(node), "talker");
    tow_sim_destroy(sim);
}

static void memory_count_grows_with_the_records(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, options_with_latency());
    size_t two_nodes = tow_sim_memory_bytes(pair.sim);
    make_node(pair.sim, "third");
    size_t three_nodes = tow_sim_memory_bytes(pair.sim);
    assert_in_range(three_nodes - two_nodes, 100, 2000);
    listen_as_b(&pair);
    dial_from_a(&pair);
    run_idle(pair.sim);
    uint8_t bytes[50000] = {0};
    size_t before = tow_sim_memory_bytes(pair.sim);
    assert_int_equal(tow_link_send(pair.dialled.link, 1, bytes, 50000),
                     TOW_SEND_OK);
    assert_true(tow_sim_memory_bytes(pair.sim) >= before + 50000);
    run_idle(pair.sim);
    assert_true(tow_sim_memory_bytes(pair.sim) < before + 50000);
    pair_close(&pair);
}

static void two_nodes_of_one_host_talk_over_the_local_path(void **state)
{
    (void)state;
    pair_t pair = {0};
    must(tow_sim_create(&(tow_sim_options_t){.remote_path.latency_ns = SECOND,
                                             .local_path.latency_ns = 3 * US,
                                             .log.level = TOW_LOG_OFF},
                        &pair.sim));
    pair.a = make_node(pair.sim, "a");
    must(
        tow_sim_node_create(pair.sim,
                            &(tow_sim_node_options_t){
                                .name = "b", .host = tow_sim_node_host(pair.a)},
                            &pair.b));
    pair.a_env = tow_sim_node_env(pair.a);
    pair.b_env = tow_sim_node_env(pair.b);
    listen_as_b(&pair);
    dial_from_a(&pair);
    run_idle(pair.sim);
    int64_t sent_ns = tow_sim_now_ns(pair.sim);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    run_idle(pair.sim);
    assert_int_equal(pair.accepted.last_ns, sent_ns + 3 * US);
    pair_close(&pair);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_dialler_may_die_in_any_phase),
    cmocka_unit_test(a_listener_may_die_in_any_phase),
    cmocka_unit_test(a_listener_restarted_in_mid_handshake_refuses_the_dial),
    cmocka_unit_test(a_dialling_link_may_be_closed_in_any_phase),
    cmocka_unit_test(a_node_that_dies_while_closing_gets_no_callback),
    cmocka_unit_test(messages_sent_before_a_crash_arrive_before_the_end),
    cmocka_unit_test(each_incarnation_is_started_and_destroyed_once),
    cmocka_unit_test(a_program_that_cannot_start_ends_the_run),
    cmocka_unit_test(nodes_draw_from_generators_of_their_own),
    cmocka_unit_test(features_are_those_that_both_have),
    cmocka_unit_test(a_node_logs_its_name_and_virtual_time),
    cmocka_unit_test(memory_count_grows_with_the_records),
    cmocka_unit_test(two_nodes_of_one_host_talk_over_the_local_path))
