#include "env/sim/fixture_testing_impl.h"

#define NODE_COUNT 4

/* Four nodes on hosts of their own; each has a lane to each other, and counts
 * incoming datagrams. Datagrams show immediately whether a path is cut. */
typedef struct star {
    tow_sim_t *sim;
    tow_sim_node_t *nodes[NODE_COUNT];
    tow_sim_host_t *hosts[NODE_COUNT];
    tow_lane_t *lanes[NODE_COUNT][NODE_COUNT];
    unsigned heard[NODE_COUNT]; /* a bit per sender */
} star_t;

static void hear(void *context, uint64_t channel, const void *bytes,
                 size_t size)
{
    (void)bytes;
    (void)size;
    *(unsigned *)context |= 1u << channel;
}

static void open_lanes(star_t *star)
{
    for (int to = 0; to < NODE_COUNT; to++) {
        tow_lane_options_t options = {0};
        tow_env_lane_address(tow_sim_node_env(star->nodes[to]),
                             &options.address, &options.address_size);
        for (int from = 0; from < NODE_COUNT; from++)
            must(tow_env_lane_open(tow_sim_node_env(star->nodes[from]),
                                   &options, &star->lanes[from][to]));
    }
}

static void star_open(star_t *star)
{
    *star = (star_t){0};
    must(tow_sim_create(&(tow_sim_options_t){.log.level = TOW_LOG_OFF},
                        &star->sim));
    for (int i = 0; i < NODE_COUNT; i++) {
        char name[] = {(char)('a' + i), 0};
        star->nodes[i] = make_node(star->sim, name);
        star->hosts[i] = tow_sim_node_host(star->nodes[i]);
        tow_env_datagram_handler(tow_sim_node_env(star->nodes[i]), hear,
                                 &star->heard[i]);
    }
}

/* Every node sends to every node: the result has four bits per receiver, the
 * lowest for node 0. */
static unsigned who_hears_whom(star_t *star)
{
    for (int from = 0; from < NODE_COUNT; from++) {
        star->heard[from] = 0;
        for (int to = 0; to < NODE_COUNT; to++)
            assert_int_equal(
                tow_lane_send(star->lanes[from][to], (uint64_t)from, "x", 1),
                TOW_SEND_OK);
    }
    run_idle(star->sim);
    unsigned all = 0;
    for (int to = 0; to < NODE_COUNT; to++)
        all |= star->heard[to] << (4 * to);
    return all;
}

static void a_cut_separates_two_sets_and_no_other_hosts(void **state)
{
    (void)state;
    star_t star;
    star_open(&star);
    open_lanes(&star);
    assert_int_equal(who_hears_whom(&star), 0xffff);
    uint64_t id;
    must(tow_sim_partition(star.sim,
                           &(tow_sim_cut_t){.a = &star.hosts[0],
                                            .a_count = 1,
                                            .b = &star.hosts[2],
                                            .b_count = 2},
                           &id));
    /* 0 is cut off from 2 and 3. */
    assert_int_equal(who_hears_whom(&star), 0xeef3);
    tow_sim_heal(star.sim, id);
    assert_int_equal(who_hears_whom(&star), 0xffff);
    tow_sim_destroy(star.sim);
}

static void a_single_set_is_cut_off_from_all_other_hosts(void **state)
{
    (void)state;
    star_t star;
    star_open(&star);
    open_lanes(&star);
    must(tow_sim_partition(
        star.sim, &(tow_sim_cut_t){.a = star.hosts, .a_count = 2}, NULL));
    assert_int_equal(who_hears_whom(&star), 0xcc33);
    tow_sim_heal(star.sim, 0);
    assert_int_equal(who_hears_whom(&star), 0xffff);
    tow_sim_destroy(star.sim);
}

static void a_one_way_cut_silences_one_direction(void **state)
{
    (void)state;
    star_t star;
    star_open(&star);
    open_lanes(&star);
    must(tow_sim_partition(star.sim,
                           &(tow_sim_cut_t){.a = star.hosts,
                                            .a_count = 1,
                                            .direction = TOW_SIM_ONE_WAY},
                           NULL));
    assert_int_equal(who_hears_whom(&star), 0xeeef);
    tow_sim_destroy(star.sim);
}

static void a_path_cut_twice_needs_two_healings(void **state)
{
    (void)state;
    star_t star;
    star_open(&star);
    open_lanes(&star);
    uint64_t ids[2];
    for (int i = 0; i < 2; i++)
        must(tow_sim_partition(
            star.sim, &(tow_sim_cut_t){.a = &star.hosts[i], .a_count = 1},
            &ids[i]));
    assert_int_equal(who_hears_whom(&star), 0xcc21);
    tow_sim_heal(star.sim, ids[0]);
    assert_int_equal(who_hears_whom(&star), 0xdd2d);
    tow_sim_heal(star.sim, ids[1]);
    assert_int_equal(who_hears_whom(&star), 0xffff);
    tow_sim_destroy(star.sim);
}

static void a_path_first_used_during_a_cut_is_cut(void **state)
{
    (void)state;
    star_t star;
    star_open(&star);
    must(tow_sim_partition(
        star.sim, &(tow_sim_cut_t){.a = star.hosts, .a_count = 1}, NULL));
    open_lanes(&star);
    assert_int_equal(who_hears_whom(&star), 0xeee1);
    tow_sim_heal(star.sim, 0);
    assert_int_equal(who_hears_whom(&star), 0xffff);
    tow_sim_destroy(star.sim);
}

static void a_host_may_be_cut_off_from_itself(void **state)
{
    (void)state;
    star_t star;
    star_open(&star);
    open_lanes(&star);
    must(tow_sim_partition(
        star.sim,
        &(tow_sim_cut_t){
            .a = star.hosts, .a_count = 1, .b = star.hosts, .b_count = 1},
        NULL));
    assert_int_equal(who_hears_whom(&star), 0xfffe);
    tow_sim_heal(star.sim, 0);
    assert_int_equal(who_hears_whom(&star), 0xffff);
    tow_sim_destroy(star.sim);
}

TOW_TEST_MAIN(cmocka_unit_test(a_cut_separates_two_sets_and_no_other_hosts),
              cmocka_unit_test(a_single_set_is_cut_off_from_all_other_hosts),
              cmocka_unit_test(a_one_way_cut_silences_one_direction),
              cmocka_unit_test(a_path_cut_twice_needs_two_healings),
              cmocka_unit_test(a_path_first_used_during_a_cut_is_cut),
              cmocka_unit_test(a_host_may_be_cut_off_from_itself))
