#include "env/sim/fixture_testing_impl.h"

#include "wire/frame.h"

/* A simulation with costs: both nodes on hosts of their own, or on one. */
typedef struct costly {
    pair_t pair;
    tow_sim_host_t *a_host;
    tow_sim_host_t *b_host;
} costly_t;

static tow_sim_node_t *node_on(tow_sim_t *sim, const char *name,
                               tow_sim_host_t *host)
{
    tow_sim_node_t *node = NULL;
    must(tow_sim_node_create(
        sim, &(tow_sim_node_options_t){.name = name, .host = host}, &node));
    return node;
}

static void costly_open(costly_t *costly, tow_sim_options_t options,
                        tow_sim_host_options_t host)
{
    *costly = (costly_t){0};
    pair_t *pair = &costly->pair;
    options.log.level = TOW_LOG_OFF;
    must(tow_sim_create(&options, &pair->sim));
    must(tow_sim_host_create(pair->sim, &host, &costly->a_host));
    must(tow_sim_host_create(pair->sim, &host, &costly->b_host));
    pair->a = node_on(pair->sim, "a", costly->a_host);
    pair->b = node_on(pair->sim, "b", costly->b_host);
    pair->a_env = tow_sim_node_env(pair->a);
    pair->b_env = tow_sim_node_env(pair->b);
    listen_as_b(pair);
    dial_from_a(pair);
    run_idle(pair->sim);
    assert_int_equal(pair->accepted.up_count, 1);
}

static void turns_of_one_node_queue_up(void **state)
{
    (void)state;
    costly_t costly;
    costly_open(&costly, (tow_sim_options_t){.remote_path.latency_ns = MS},
                (tow_sim_host_options_t){.costs.receive_ns = 10 * US});
    pair_t *pair = &costly.pair;
    int64_t sent_ns = tow_sim_now_ns(pair->sim);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(send_counter(&pair->dialled, i), TOW_SEND_OK);
    run_idle(pair->sim);
    assert_int_equal(pair->accepted.message_count, 5);
    assert_true(pair->accepted.in_order);
    /* The fifth starts when four have been charged. */
    assert_int_equal(pair->accepted.last_ns, sent_ns + MS + 4 * 10 * US);
    assert_int_equal(tow_sim_now_ns(pair->sim), sent_ns + MS + 5 * 10 * US);
    pair_close(pair);
}

static void echo(end_t *end, const tow_message_t *message)
{
    assert_int_equal(
        tow_link_send(end->link, message->type, message->bytes, message->size),
        TOW_SEND_OK);
}

static void output_of_a_turn_leaves_when_the_turn_is_charged(void **state)
{
    (void)state;
    costly_t costly;
    costly_open(&costly, (tow_sim_options_t){.remote_path.latency_ns = MS},
                (tow_sim_host_options_t){.costs = {.turn_ns = 100,
                                                   .receive_ns = 2000,
                                                   .receive_ns_per_kib = 1024,
                                                   .send_ns = 30000,
                                                   .send_ns_per_kib = 2048}});
    pair_t *pair = &costly.pair;
    pair->accepted.on_message = echo;
    int64_t sent_ns = tow_sim_now_ns(pair->sim);
    uint8_t bytes[500] = {0};
    assert_int_equal(tow_link_send(pair->dialled.link, 1, bytes, 500),
                     TOW_SEND_OK);
    run_idle(pair->sim);
    int64_t turn_ns = 100 + 2000 + 500 + 30000 + 1000;
    assert_int_equal(pair->accepted.last_ns, sent_ns + MS);
    assert_int_equal(pair->dialled.last_ns, sent_ns + MS + turn_ns + MS);
    pair_close(pair);
}

static void a_crash_in_mid_turn_discards_its_output(void **state)
{
    (void)state;
    costly_t costly;
    costly_open(&costly, (tow_sim_options_t){.remote_path.latency_ns = MS},
                (tow_sim_host_options_t){.costs.receive_ns = SECOND});
    pair_t *pair = &costly.pair;
    pair->accepted.on_message = echo;
    assert_int_equal(send_counter(&pair->dialled, 0), TOW_SEND_OK);
    run_for(pair->sim, 2 * MS);
    assert_int_equal(pair->accepted.message_count, 1);
    tow_sim_crash(pair->b);
    run_for(pair->sim, 3 * SECOND);
    assert_int_equal(pair->dialled.message_count, 0);
    assert_true(pair->dialled.down_count >= 1);
    pair_close(pair);
}

static void a_close_in_a_crashed_turn_is_still_noticed(void **state)
{
    (void)state;
    costly_t costly;
    costly_open(&costly, (tow_sim_options_t){.remote_path.latency_ns = MS},
                (tow_sim_host_options_t){.costs.receive_ns = SECOND});
    pair_t *pair = &costly.pair;
    pair->accepted.close_on_message = true;
    assert_int_equal(send_counter(&pair->dialled, 0), TOW_SEND_OK);
    run_for(pair->sim, 2 * MS);
    tow_sim_crash(pair->b);
    run_for(pair->sim, 2 * MS);
    assert_int_equal(pair->dialled.down_count, 1);
    assert_int_equal(pair->accepted.closed_count, 0);
    pair_close(pair);
}

/* -- Cores ---------------------------------------------------------------- */

typedef struct clocked {
    tow_timer_t timer;
    tow_env_t *env;
    int64_t fired_ns;
} clocked_t;

static void note_time(tow_timer_t *timer)
{
    clocked_t *clocked = TOW_CONTAINER_OF(timer, clocked_t, timer);
    clocked->fired_ns = tow_env_now_ns(clocked->env);
}

static void nodes_wait_in_order_for_a_core(void **state)
{
    (void)state;
    for (uint32_t cores = 1; cores <= 4; cores++) {
        tow_sim_t *sim;
        tow_sim_host_t *host;
        clocked_t clocked[8];
        must(tow_sim_create(&(tow_sim_options_t){.log.level = TOW_LOG_OFF},
                            &sim));
        must(tow_sim_host_create(
            sim,
            &(tow_sim_host_options_t){.core_count = cores, .costs.turn_ns = MS},
            &host));
        for (int i = 0; i < 8; i++) {
            char name[] = {(char)('a' + i), 0};
            tow_sim_node_t *node = node_on(sim, name, host);
            clocked[i] = (clocked_t){.timer.fire = note_time,
                                     .env = tow_sim_node_env(node)};
            tow_env_timer_start(clocked[i].env, &clocked[i].timer, SECOND);
        }
        run_idle(sim);
        for (int i = 0; i < 8; i++)
            assert_int_equal(clocked[i].fired_ns, SECOND + i / (int)cores * MS);
        tow_sim_destroy(sim);
    }
}

static void a_crashed_node_gives_its_core_back(void **state)
{
    (void)state;
    tow_sim_t *sim;
    tow_sim_host_t *host;
    clocked_t clocked[3];
    tow_sim_node_t *nodes[3];
    must(tow_sim_create(&(tow_sim_options_t){.log.level = TOW_LOG_OFF}, &sim));
    must(tow_sim_host_create(
        sim, &(tow_sim_host_options_t){.costs.turn_ns = SECOND}, &host));
    for (int i = 0; i < 3; i++) {
        char name[] = {(char)('a' + i), 0};
        nodes[i] = node_on(sim, name, host);
        clocked[i] = (clocked_t){.timer.fire = note_time,
                                 .env = tow_sim_node_env(nodes[i])};
        tow_env_timer_start(clocked[i].env, &clocked[i].timer, MS);
    }
    run_until(sim, 2 * MS);
    tow_sim_crash(nodes[0]); /* holds the core */
    tow_sim_crash(nodes[1]); /* was just given it */
    run_idle(sim);
    assert_int_equal(clocked[0].fired_ns, MS);
    assert_int_equal(clocked[1].fired_ns, 0);
    assert_int_equal(clocked[2].fired_ns, 2 * MS);
    tow_sim_destroy(sim);
}

static void a_waiting_node_that_crashes_leaves_the_core_queue(void **state)
{
    (void)state;
    tow_sim_t *sim;
    tow_sim_host_t *host;
    clocked_t clocked[5];
    tow_sim_node_t *nodes[5];
    must(tow_sim_create(&(tow_sim_options_t){.log.level = TOW_LOG_OFF}, &sim));
    must(tow_sim_host_create(
        sim, &(tow_sim_host_options_t){.costs.turn_ns = SECOND}, &host));
    for (int i = 0; i < 5; i++) {
        char name[] = {(char)('a' + i), 0};
        nodes[i] = node_on(sim, name, host);
        clocked[i] = (clocked_t){.timer.fire = note_time,
                                 .env = tow_sim_node_env(nodes[i])};
        tow_env_timer_start(clocked[i].env, &clocked[i].timer, MS);
    }
    run_until(sim, 2 * MS);
    tow_sim_crash(nodes[1]); /* the first in the queue */
    tow_sim_crash(nodes[3]); /* in the middle of it */
    run_idle(sim);
    assert_int_equal(clocked[1].fired_ns + clocked[3].fired_ns, 0);
    assert_int_equal(clocked[2].fired_ns, SECOND + MS);
    assert_int_equal(clocked[4].fired_ns, 2 * SECOND + MS);
    tow_sim_destroy(sim);
}

static void a_restarted_node_is_not_busy_with_its_old_turn(void **state)
{
    (void)state;
    costly_t costly;
    costly_open(&costly, (tow_sim_options_t){0},
                (tow_sim_host_options_t){.costs.turn_ns = SECOND});
    pair_t *pair = &costly.pair;
    run_for(pair->sim, 10 * SECOND);
    int64_t start_ns = tow_sim_now_ns(pair->sim);
    clocked_t clocked = {.timer.fire = note_time, .env = pair->a_env};
    tow_env_timer_start(pair->a_env, &clocked.timer, start_ns);
    run_for(pair->sim, MS);
    assert_int_equal(clocked.fired_ns, start_ns);
    tow_sim_crash(pair->a);
    tow_sim_restart(pair->a);
    clocked = (clocked_t){.timer.fire = note_time, .env = pair->a_env};
    tow_env_timer_start(pair->a_env, &clocked.timer, start_ns + 2 * MS);
    run_for(pair->sim, 2 * MS);
    assert_int_equal(clocked.fired_ns, start_ns + 2 * MS);
    pair_close(pair);
}

/* -- Pausing -------------------------------------------------------------- */

static void a_paused_node_takes_its_turns_later(void **state)
{
    (void)state;
    for (int64_t cost_ns = 0; cost_ns <= 10; cost_ns += 10) {
        costly_t costly;
        costly_open(&costly, (tow_sim_options_t){.remote_path.latency_ns = MS},
                    (tow_sim_host_options_t){.costs.turn_ns = cost_ns});
        pair_t *pair = &costly.pair;
        clocked_t clocked = {.timer.fire = note_time, .env = pair->b_env};
        int64_t paused_ns = tow_sim_now_ns(pair->sim);
        tow_env_timer_start(pair->b_env, &clocked.timer, paused_ns + MS);
        tow_sim_pause(pair->b);
        assert_true(tow_sim_node_is_paused(pair->b));
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(send_counter(&pair->dialled, i), TOW_SEND_OK);
        run_for(pair->sim, SECOND);
        assert_int_equal(pair->accepted.message_count, 0);
        assert_int_equal(clocked.fired_ns, 0);
        tow_sim_resume(pair->b);
        int64_t resumed_ns = tow_sim_now_ns(pair->sim);
        run_idle(pair->sim);
        assert_int_equal(pair->accepted.message_count, 3);
        assert_true(pair->accepted.in_order);
        assert_in_range(clocked.fired_ns, resumed_ns, resumed_ns + 4 * cost_ns);
        pair_close(pair);
    }
}

static void a_paused_node_can_crash_and_restart(void **state)
{
    (void)state;
    pair_t pair;
    pair_connect(&pair, (tow_sim_options_t){.remote_path.latency_ns = MS});
    tow_sim_pause(pair.b);
    assert_int_equal(send_counter(&pair.dialled, 0), TOW_SEND_OK);
    run_for(pair.sim, SECOND);
    tow_sim_crash(pair.b);
    tow_sim_restart(pair.b);
    assert_false(tow_sim_node_is_paused(pair.b));
    listen_as_b(&pair);
    run_for(pair.sim, SECOND);
    assert_int_equal(pair.accepted.message_count, 0);
    assert_int_equal(pair.dialled.up_count, 2);
    assert_int_equal(tow_link_peer(pair.dialled.link)->incarnation, 2);
    pair_close(&pair);
}

TOW_TEST_MAIN(
    cmocka_unit_test(turns_of_one_node_queue_up),
    cmocka_unit_test(output_of_a_turn_leaves_when_the_turn_is_charged),
    cmocka_unit_test(a_crash_in_mid_turn_discards_its_output),
    cmocka_unit_test(a_close_in_a_crashed_turn_is_still_noticed),
    cmocka_unit_test(nodes_wait_in_order_for_a_core),
    cmocka_unit_test(a_crashed_node_gives_its_core_back),
    cmocka_unit_test(a_waiting_node_that_crashes_leaves_the_core_queue),
    cmocka_unit_test(a_restarted_node_is_not_busy_with_its_old_turn),
    cmocka_unit_test(a_paused_node_takes_its_turns_later),
    cmocka_unit_test(a_paused_node_can_crash_and_restart))
