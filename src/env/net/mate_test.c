/* A net that dials itself. */
#include "env/net/net_testing_impl.h"

typedef struct pair {
    test_peer_t *peer;
    tow_listener_t *listener;
    tow_link_t *link; /* the dialling one */
    test_end_t accepted;
    test_end_t dialled;
} pair_t;

static void pair_up(test_world_t *world, pair_t *pair, const char *address)
{
    *pair = (pair_t){.peer = test_add_peer(world, 0, "both")};
    pair->listener = test_listen(pair->peer, address, &pair->accepted);
    pair->link =
        test_connect(pair->peer, pair->listener->address, &pair->dialled);
    TEST_TURN_UNTIL(world, pair->accepted.up_count && pair->dialled.up_count);
}

static void messages_go_both_ways_without_a_socket(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    assert_string_equal(tow_link_peer(pair.link)->name, "both");
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
        assert_int_equal(test_send(pair.accepted.link, i), TOW_SEND_OK);
    }
    TEST_TURN_UNTIL(world, pair.accepted.message_count == 100 &&
                               pair.dialled.message_count == 100);
    assert_true(pair.accepted.is_in_order && pair.dialled.is_in_order);
    assert_int_equal(tow_net_stats(pair.peer->net).bytes_written, 0);
}

static void tcp_addresses_are_found_too(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, "tcp:127.0.0.1:0");
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    TEST_TURN_UNTIL(world, pair.accepted.message_count == 1);
    assert_int_equal(tow_net_stats(pair.peer->net).bytes_written, 0);
}

static void what_was_sent_before_a_close_arrives(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
    tow_link_close(pair.link, test_closed(&pair.dialled));
    TEST_TURN_UNTIL(world,
                    pair.dialled.closed_count && pair.accepted.down_count);
    assert_int_equal(pair.accepted.message_count, 10);
    assert_int_equal(pair.accepted.cause_code, TOW_UNAVAILABLE);
    assert_int_equal(pair.dialled.down_count, 0);
}

static void both_ends_may_close_at_once(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    assert_int_equal(test_send(pair.accepted.link, 0), TOW_SEND_OK);
    tow_link_close(pair.accepted.link, test_closed(&pair.accepted));
    tow_link_close(pair.link, test_closed(&pair.dialled));
    TEST_TURN_UNTIL(world,
                    pair.dialled.closed_count && pair.accepted.closed_count);
}

static void an_end_that_is_closed_is_dialled_again(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    tow_link_close(pair.accepted.link, test_closed(&pair.accepted));
    TEST_TURN_UNTIL(world,
                    pair.dialled.down_count && pair.dialled.up_count == 2);
    assert_int_equal(tow_link_peer(pair.link)->epoch, 2);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    TEST_TURN_UNTIL(world, pair.accepted.message_count == 1);
}

/* Fills the queue, and is told when there is room again. */
static void a_full_queue_has_room_when_it_was_read(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    static const uint8_t bytes[1u << 20];
    uint64_t sent = 0;
    tow_send_result_t result;
    while ((result = tow_link_send(pair.link, 1, bytes, sizeof(bytes))) ==
           TOW_SEND_OK)
        sent++;
    assert_int_equal(result, TOW_SEND_FULL);
    TEST_TURN_UNTIL(world, pair.dialled.writable_count == 1);
    assert_int_equal(tow_link_send(pair.link, 1, bytes, sizeof(bytes)),
                     TOW_SEND_OK);
    TEST_TURN_UNTIL(world, pair.accepted.message_count == sent + 1);
}

/* A stranger's name is refused as it would be over a socket. */
static void the_handshake_is_as_elsewhere(void **state)
{
    test_world_t *world = *state;
    test_end_t accepted = {0}, dialled = {0};
    test_peer_t *peer = test_add_peer(world, 0, "both");
    tow_listener_t *listener = test_listen(peer, world->address, &accepted);
    const tow_connect_options_t options = {.address = listener->address,
                                           .expected_name = "another",
                                           .handler = &test_handler,
                                           .context = &dialled};
    tow_link_t *link;
    assert_true(tow_env_connect(tow_net_env(peer->net), &options, &link) ==
                TOW_OK);
    TEST_TURN_UNTIL(world, dialled.down_count > 0);
    assert_int_equal(dialled.up_count, 0);
}

/* Also with messages under way. */
static void a_net_with_a_pair_closes(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    assert_int_equal(test_send(pair.accepted.link, 0), TOW_SEND_OK);
}

static void close_own(test_end_t *end)
{
    end->then = NULL;
    tow_link_close(end->link, test_closed(end));
}

/* In the midst of what the other has sent: the rest is lost. */
static void a_handler_may_close_its_own_link(void **state)
{
    test_world_t *world = *state;
    pair_t pair;
    pair_up(world, &pair, world->address);
    pair.accepted.then = close_own;
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
    TEST_TURN_UNTIL(world,
                    pair.accepted.closed_count && pair.dialled.down_count);
    assert_int_equal(pair.accepted.message_count, 1);
}

static bool dial_itself(const test_world_t *world, test_end_t *accepted,
                        test_end_t *dialled, tow_link_t **out_link)
{
    tow_env_t *env = world->peers[0].env;
    const tow_listen_options_t listen = {
        .address = world->address, .accept = test_accept, .context = accepted};
    const tow_connect_options_t connect = {.address = world->address,
                                           .handler = &test_handler,
                                           .context = dialled};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(env, &listen, &listener);
    if (status == TOW_OK) status = tow_env_connect(env, &connect, out_link);
    tow_status_release(status);
    return status == TOW_OK;
}

/* Whatever allocation fails, the pair comes up in the end or an error is told,
 * and nothing leaks. */
static tow_exhaust_result_t meet_and_part(void *context)
{
    test_world_t *world = context;
    test_end_t accepted = {0}, dialled = {0};
    tow_link_t *link;
    const tow_net_options_t options = {
        .name = "both",
        .security = &world->security,
        .log = {.level = TOW_LOG_OFF, .source = "test"}};
    tow_status_t status = tow_net_create(&options, &world->peers[0].net);
    tow_status_release(status);
    if (status != TOW_OK) return TOW_EXHAUST_FAILED;
    world->peers[0].env = tow_net_env(world->peers[0].net);
    const bool is_dialled = dial_itself(world, &accepted, &dialled, &link);
    while (is_dialled && accepted.message_count == 0) {
        if (link->state == TOW_LINK_UP) (void)!test_send(link, 0);
        test_turn_all(world);
    }
    test_remove_peer(world, 0);
    return is_dialled ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void pairs_survive_without_memory(void **state)
{
    assert_true(tow_test_exhaust(meet_and_part, *state) > 10);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, test_world_up, test_world_down)

TOW_TEST_MAIN(TEST(messages_go_both_ways_without_a_socket),
              TEST(tcp_addresses_are_found_too),
              TEST(what_was_sent_before_a_close_arrives),
              TEST(both_ends_may_close_at_once),
              TEST(an_end_that_is_closed_is_dialled_again),
              TEST(a_full_queue_has_room_when_it_was_read),
              TEST(the_handshake_is_as_elsewhere),
              TEST(a_net_with_a_pair_closes),
              TEST(a_handler_may_close_its_own_link),
              TEST(pairs_survive_without_memory))
