/* Links between nets that are turned in one thread. */
#include "env/net/net_testing_impl.h"

static void peers_exchange_messages_over(test_world_t *world,
                                         const char *address)
{
    test_peer_t *server = test_add_peer(world, 0, "controller");
    test_peer_t *client = test_add_peer(world, 1, "worker/1");
    test_end_t server_end = {0}, client_end = {0};
    tow_listener_t *listener = test_listen(server, address, &server_end);
    tow_link_t *link = test_connect(client, listener->address, &client_end);
    assert_int_equal(test_send(link, 0), TOW_SEND_DOWN);
    TEST_TURN_UNTIL(world, server_end.up_count && client_end.up_count);
    assert_string_equal(tow_link_peer(link)->name, "controller");
    assert_string_equal(tow_link_peer(server_end.link)->name, "worker/1");
    assert_int_equal(tow_link_peer(link)->epoch, 1);

    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(test_send(link, i), TOW_SEND_OK);
        assert_int_equal(test_send(server_end.link, i), TOW_SEND_OK);
    }
    TEST_TURN_UNTIL(world, server_end.message_count == 100 &&
                               client_end.message_count == 100);
    assert_true(server_end.is_in_order && client_end.is_in_order);
    assert_int_equal(client_end.last_type, 5);

    tow_link_close(link, test_closed(&client_end));
    assert_int_equal(client_end.closed_count, 0);
    TEST_TURN_UNTIL(world, client_end.closed_count && server_end.down_count);
    assert_int_equal(server_end.link->state, TOW_LINK_FINISHED);
    assert_int_equal(server_end.cause_code, TOW_UNAVAILABLE);
    assert_int_equal(client_end.down_count, 0);
}

static void peers_exchange_messages_over_unix_sockets(void **state)
{
    test_world_t *world = *state;
    peers_exchange_messages_over(world, world->address);
}

static void peers_exchange_messages_over_tcp(void **state)
{
    peers_exchange_messages_over(*state, "tcp:127.0.0.1:0");
}

TOW_TEST_MAIN(
    cmocka_unit_test_setup_teardown(peers_exchange_messages_over_unix_sockets,
                                    test_world_up, test_world_down),
    cmocka_unit_test_setup_teardown(peers_exchange_messages_over_tcp,
                                    test_world_up, test_world_down))
