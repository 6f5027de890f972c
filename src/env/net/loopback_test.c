/* A net that dials itself. */
#include "env/net/net_testing_impl.h"

typedef struct pair {
    test_peer_t *peer;
    tow_listener_t *listener;
    tow_link_t *link; /* the dialling one */
    test_end_t accepted;
    test_end_t dialled;
} pair_t;

static void pair_up(test_fixture_t *fixture, pair_t *pair, const char *address)
{
    *pair = (pair_t){.peer = test_add_peer(fixture, 0, "both")};
    pair->listener = test_listen(pair->peer, address, &pair->accepted);
    pair->link =
        test_connect(pair->peer, pair->listener->address, &pair->dialled);
    TEST_TURN_UNTIL(fixture, pair->accepted.up_count && pair->dialled.up_count);
}

static void messages_go_both_ways_without_a_socket(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    assert_string_equal(tow_link_peer(pair.link)->name, "both");
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
        assert_int_equal(test_send(pair.accepted.link, i), TOW_SEND_OK);
    }
    TEST_TURN_UNTIL(fixture, pair.accepted.message_count == 100 &&
                                 pair.dialled.message_count == 100);
    assert_true(pair.accepted.is_in_order && pair.dialled.is_in_order);
    assert_int_equal(tow_net_stats(pair.peer->net).bytes_written, 0);
}

static void tcp_addresses_are_found_too(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, "tcp:127.0.0.1:0");
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    TEST_TURN_UNTIL(fixture, pair.accepted.message_count == 1);
    assert_int_equal(tow_net_stats(pair.peer->net).bytes_written, 0);
}

static void messages_sent_before_a_close_arrive(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
    tow_link_close(pair.link, test_closed(&pair.dialled));
    TEST_TURN_UNTIL(fixture,
                    pair.dialled.closed_count && pair.accepted.down_count);
    assert_int_equal(pair.accepted.message_count, 10);
    assert_int_equal(pair.accepted.cause_code, TOW_UNAVAILABLE);
    assert_int_equal(pair.dialled.down_count, 0);
}

static void both_ends_may_close_at_once(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    assert_int_equal(test_send(pair.accepted.link, 0), TOW_SEND_OK);
    tow_link_close(pair.accepted.link, test_closed(&pair.accepted));
    tow_link_close(pair.link, test_closed(&pair.dialled));
    TEST_TURN_UNTIL(fixture,
                    pair.dialled.closed_count && pair.accepted.closed_count);
}

static void a_closed_loopback_end_is_redialled(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    tow_link_close(pair.accepted.link, test_closed(&pair.accepted));
    TEST_TURN_UNTIL(fixture,
                    pair.dialled.down_count && pair.dialled.up_count == 2);
    assert_int_equal(tow_link_peer(pair.link)->epoch, 2);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    TEST_TURN_UNTIL(fixture, pair.accepted.message_count == 1);
}

/* Fills the queue, and gets `writable` when there is space again. */
static void a_full_queue_has_space_after_it_was_read(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    static const uint8_t bytes[1u << 20];
    uint64_t sent = 0;
    tow_send_result_t result;
    while ((result = tow_link_send(pair.link, 1, bytes, sizeof(bytes))) ==
           TOW_SEND_OK)
        sent++;
    assert_int_equal(result, TOW_SEND_FULL);
    TEST_TURN_UNTIL(fixture, pair.dialled.writable_count == 1);
    assert_int_equal(tow_link_send(pair.link, 1, bytes, sizeof(bytes)),
                     TOW_SEND_OK);
    TEST_TURN_UNTIL(fixture, pair.accepted.message_count == sent + 1);
}

/* An unexpected name is refused as it would be over a socket. */
static void loopback_connections_run_the_full_handshake(void **state)
{
    test_fixture_t *fixture = *state;
    test_end_t accepted = {0}, dialled = {0};
    test_peer_t *peer = test_add_peer(fixture, 0, "both");
    tow_listener_t *listener = test_listen(peer, fixture->address, &accepted);
    const tow_connect_options_t options = {.address = listener->address,
                                           .expected_name = "another",
                                           .handler = &test_handler,
                                           .context = &dialled};
    tow_link_t *link;
    assert_true(tow_env_connect(tow_net_env(peer->net), &options, &link) ==
                TOW_OK);
    TEST_TURN_UNTIL(fixture, dialled.down_count > 0);
    assert_int_equal(dialled.up_count, 0);
}

/* Also with messages in the queue. */
static void a_net_with_a_pair_closes(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    assert_int_equal(test_send(pair.accepted.link, 0), TOW_SEND_OK);
}

static void close_own(test_end_t *end)
{
    end->then = NULL;
    tow_link_close(end->link, test_closed(end));
}

/* In the middle of the other end's messages: the rest is lost. */
static void a_handler_may_close_its_own_link(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    pair.accepted.then = close_own;
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
    TEST_TURN_UNTIL(fixture,
                    pair.accepted.closed_count && pair.dialled.down_count);
    assert_int_equal(pair.accepted.message_count, 1);
}

static bool dial_itself(const test_fixture_t *fixture, test_end_t *accepted,
                        test_end_t *dialled, tow_link_t **out_link)
{
    tow_env_t *env = fixture->peers[0].env;
    const tow_listen_options_t listen = {.address = fixture->address,
                                         .accept = test_accept,
                                         .context = accepted};
    const tow_connect_options_t connect = {.address = fixture->address,
                                           .handler = &test_handler,
                                           .context = dialled};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(env, &listen, &listener);
    if (status == TOW_OK) status = tow_env_connect(env, &connect, out_link);
    tow_status_release(status);
    return status == TOW_OK;
}

/* Whichever allocation fails, the pair comes up in the end or an error is
 * reported, and nothing leaks. */
static tow_exhaust_result_t meet_and_part(void *context)
{
    test_fixture_t *fixture = context;
    test_end_t accepted = {0}, dialled = {0};
    tow_link_t *link;
    const tow_net_options_t options = {
        .name = "both",
        .security = &fixture->security,
        .log = {.level = TOW_LOG_OFF, .source = "test"}};
    tow_status_t status = tow_net_create(&options, &fixture->peers[0].net);
    tow_status_release(status);
    if (status != TOW_OK) return TOW_EXHAUST_FAILED;
    fixture->peers[0].env = tow_net_env(fixture->peers[0].net);
    const bool is_dialled = dial_itself(fixture, &accepted, &dialled, &link);
    while (is_dialled && accepted.message_count == 0) {
        if (link->state == TOW_LINK_UP) (void)!test_send(link, 0);
        test_turn_all(fixture);
    }
    test_remove_peer(fixture, 0);
    return is_dialled ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void pairs_survive_without_memory(void **state)
{
    assert_true(tow_test_exhaust(meet_and_part, *state) > 10);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, test_fixture_up, test_fixture_down)

TOW_TEST_MAIN(TEST(messages_go_both_ways_without_a_socket),
              TEST(tcp_addresses_are_found_too),
              TEST(messages_sent_before_a_close_arrive),
              TEST(both_ends_may_close_at_once),
              TEST(a_closed_loopback_end_is_redialled),
              TEST(a_full_queue_has_space_after_it_was_read),
              TEST(loopback_connections_run_the_full_handshake),
              TEST(a_net_with_a_pair_closes),
              TEST(a_handler_may_close_its_own_link),
              TEST(pairs_survive_without_memory))
