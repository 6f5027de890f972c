/* Links between nets that one thread drives. */
#include "env/net/net_testing_impl.h"

#define NUMBER_MAX 200000u

/* Sends the numbers from *next on until the queue is full; false if it is. */
static bool send_numbers(tow_link_t *link, uint64_t *next, uint32_t size)
{
    for (;;) {
        uint8_t *bytes;
        tow_send_result_t result = tow_link_begin(link, size, &bytes);
        if (result != TOW_SEND_OK) {
            assert_int_equal(result, TOW_SEND_FULL);
            return false;
        }
        memset(bytes, 0, size);
        memcpy(bytes, next, size < sizeof(*next) ? size : sizeof(*next));
        tow_link_commit(link, 5, size);
        ++*next;
    }
}

/* Two peers and a link that is up. */
typedef struct pair {
    test_peer_t *server;
    test_peer_t *client;
    tow_listener_t *listener;
    tow_link_t *link; /* the client's */
    test_end_t server_end;
    test_end_t client_end;
} pair_t;

static void pair_up(test_fixture_t *fixture, pair_t *pair, const char *address)
{
    *pair = (pair_t){.server = test_add_peer(fixture, 0, "controller"),
                     .client = test_add_peer(fixture, 1, "worker/1")};
    pair->listener = test_listen(pair->server, address, &pair->server_end);
    pair->link =
        test_connect(pair->client, pair->listener->address, &pair->client_end);
    TEST_TURN_UNTIL(fixture,
                    pair->server_end.up_count && pair->client_end.up_count);
}

static void peers_exchange_messages_over(test_fixture_t *fixture,
                                         const char *address)
{
    pair_t pair;
    pair_up(fixture, &pair, address);
    assert_string_equal(tow_link_peer(pair.link)->name, "controller");
    assert_string_equal(tow_link_peer(pair.server_end.link)->name, "worker/1");
    assert_int_equal(tow_link_peer(pair.link)->epoch, 1);
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
        assert_int_equal(test_send(pair.server_end.link, i), TOW_SEND_OK);
    }
    TEST_TURN_UNTIL(fixture, pair.server_end.message_count == 100 &&
                                 pair.client_end.message_count == 100);
    assert_true(pair.server_end.is_in_order && pair.client_end.is_in_order);
    assert_int_equal(pair.client_end.last_type, 5);

    tow_link_close(pair.link, test_closed(&pair.client_end));
    assert_int_equal(pair.client_end.closed_count, 0);
    TEST_TURN_UNTIL(fixture,
                    pair.client_end.closed_count && pair.server_end.down_count);
    assert_int_equal(pair.server_end.link->state, TOW_LINK_FINISHED);
    assert_int_equal(pair.server_end.cause_code, TOW_UNAVAILABLE);
    assert_int_equal(pair.client_end.down_count, 0);
}

static void peers_exchange_messages_over_unix_sockets(void **state)
{
    test_fixture_t *fixture = *state;
    peers_exchange_messages_over(fixture, fixture->address);
}

static void peers_exchange_messages_over_tcp(void **state)
{
    peers_exchange_messages_over(*state, "tcp:127.0.0.1:0");
}

static void peers_exchange_messages_over_localhost(void **state)
{
    peers_exchange_messages_over(*state, "tcp:localhost:0");
}

/* -- TLS ------------------------------------------------------------------ */

static void give_certificates(test_fixture_t *fixture)
{
    char certificate[128], key[128];
    snprintf(certificate, sizeof(certificate), "%s/cert", fixture->folder);
    snprintf(key, sizeof(key), "%s/key", fixture->folder);
    tow_status_t status =
        tow_tls_make_self_signed(certificate, key, "127.0.0.1");
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    const tow_tls_options_t options = {.certificate_path = certificate,
                                       .key_path = key,
                                       .authority_path = certificate};
    status = tow_tls_context_create(&options, &fixture->security.tls);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    unlink(certificate);
    unlink(key);
}

static int fixture_down_with_tls(void **state)
{
    tow_tls_context_t *tls = ((test_fixture_t *)*state)->security.tls;
    int result = test_fixture_down(state);
    tow_tls_context_destroy(tls);
    return result;
}

static void peers_exchange_messages_over_tls(void **state)
{
    test_fixture_t *fixture = *state;
    give_certificates(fixture);
    peers_exchange_messages_over(fixture, "tls:127.0.0.1:0");
}

/* -- Many and large messages ---------------------------------------------- */

static void large_messages_arrive_over(test_fixture_t *fixture,
                                       const char *address)
{
    pair_t pair;
    pair_up(fixture, &pair, address);
    static const uint32_t sizes[] = {
        TOW_MESSAGE_SIZE_MAX,     0,     1,     65524,
        TOW_MESSAGE_SIZE_MAX - 1, 65525, 100000};
    static uint8_t payload[TOW_MESSAGE_SIZE_MAX];
    uint64_t byte_count = 0;
    for (uint64_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
            memset(payload, (int)i, sizes[i]);
            tow_send_result_t result;
            while ((result = tow_link_send(pair.link, 1, payload, sizes[i])) ==
                   TOW_SEND_FULL)
                test_turn_all(fixture);
            assert_int_equal(result, TOW_SEND_OK);
            byte_count += sizes[i];
        }
    }
    TEST_TURN_UNTIL(fixture,
                    pair.server_end.message_count == 3 * TOW_COUNT_OF(sizes));
    assert_int_equal(pair.server_end.byte_count, byte_count);
    assert_int_equal(pair.server_end.down_count, 0);
}

static void large_messages_arrive(void **state)
{
    test_fixture_t *fixture = *state;
    large_messages_arrive_over(fixture, fixture->address);
}

static void large_messages_arrive_over_tls(void **state)
{
    test_fixture_t *fixture = *state;
    give_certificates(fixture);
    large_messages_arrive_over(fixture, "tls:127.0.0.1:0");
}

static void a_peer_that_does_not_read_fills_the_queue(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    uint64_t sent = 0;
    assert_false(send_numbers(pair.link, &sent, 1000));
    /* The peer is not driven: nothing moves, and nothing grows. */
    for (int i = 0; i < 100; i++)
        tow_net_turn(pair.client->net, 0);
    uint64_t more = sent;
    assert_false(send_numbers(pair.link, &more, 1000));
    assert_int_equal(pair.client_end.writable_count, 0);
    assert_true(more * 1000 < 2 * TOW_LINK_QUEUE_BYTES_MAX);

    TEST_TURN_UNTIL(fixture, pair.client_end.writable_count == 1);
    TEST_TURN_UNTIL(fixture, pair.server_end.message_count == more);
    assert_true(pair.server_end.is_in_order);
    assert_int_equal(pair.client_end.writable_count, 1);
}

/* Both directions at once, each as fast as the other allows. */
static void floods_in_both_directions_stay_in_order(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, "tcp:127.0.0.1:0");
    uint64_t forth = 0, back = 0;
    while (forth < NUMBER_MAX || back < NUMBER_MAX) {
        send_numbers(pair.link, &forth, 64);
        send_numbers(pair.server_end.link, &back, 8);
        test_turn_all(fixture);
    }
    TEST_TURN_UNTIL(fixture, pair.server_end.message_count == forth &&
                                 pair.client_end.message_count == back);
    assert_true(pair.server_end.is_in_order && pair.client_end.is_in_order);
}

/* -- Closing -------------------------------------------------------------- */

static void queued_messages_arrive_before_the_close(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, "tcp:127.0.0.1:0");
    uint64_t sent = 0;
    send_numbers(pair.link, &sent, 50000);
    /* Unread bytes of the peer must not turn the close into a reset. */
    assert_int_equal(test_send(pair.server_end.link, 0), TOW_SEND_OK);
    tow_link_close(pair.link, test_closed(&pair.client_end));
    TEST_TURN_UNTIL(fixture,
                    pair.client_end.closed_count && pair.server_end.down_count);
    assert_int_equal(pair.server_end.message_count, sent);
    assert_int_equal(pair.client_end.message_count, 0);
}

static void a_peer_that_never_reads_cannot_hold_up_a_close(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    uint64_t sent = 0;
    send_numbers(pair.link, &sent, 50000);
    tow_link_close(pair.link, test_closed(&pair.client_end));
    while (pair.client_end.closed_count == 0)
        tow_net_turn(pair.client->net, TOW_TIME_NEVER);
    TEST_TURN_UNTIL(fixture, pair.server_end.down_count);
    assert_true(pair.server_end.is_in_order);
    assert_non_null(strstr(pair.server_end.cause, "in the middle of a frame"));
}

static void both_sides_may_close_at_once(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    tow_link_close(pair.link, test_closed(&pair.client_end));
    tow_link_close(pair.server_end.link, test_closed(&pair.server_end));
    TEST_TURN_UNTIL(fixture, pair.client_end.closed_count &&
                                 pair.server_end.closed_count);
    assert_int_equal(pair.client_end.down_count + pair.server_end.down_count,
                     0);
}

static tow_link_t *link_to_close;

static void close_it(test_end_t *end)
{
    end->then = NULL;
    tow_link_close(link_to_close, test_closed(end));
}

static void a_handler_may_close_its_own_link(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(test_send(pair.link, i), TOW_SEND_OK);
    link_to_close = pair.server_end.link;
    pair.server_end.then = close_it;
    TEST_TURN_UNTIL(fixture, pair.server_end.closed_count);
    assert_int_equal(pair.server_end.message_count, 1);
    assert_int_equal(pair.server_end.down_count, 0);
    TEST_TURN_UNTIL(fixture, pair.client_end.down_count);
}

static void a_handler_may_close_another_link(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    test_end_t second_end = {0};
    tow_link_t *first_accepted = pair.server_end.link;
    tow_link_t *second =
        test_connect(pair.client, pair.listener->address, &second_end);
    TEST_TURN_UNTIL(fixture,
                    second_end.up_count && pair.server_end.up_count == 2);
    link_to_close = first_accepted;
    pair.server_end.then = close_it;
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    assert_int_equal(test_send(second, 0), TOW_SEND_OK);
    TEST_TURN_UNTIL(fixture, pair.server_end.closed_count);
    TEST_TURN_UNTIL(fixture, pair.client_end.down_count);
    assert_int_equal(second_end.down_count, 0);
}

static void refuse(void *context, tow_link_t *link)
{
    tow_link_close(link, test_closed(context));
}

static void a_listener_may_refuse_in_accept(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *server = test_add_peer(fixture, 0, "controller");
    test_peer_t *client = test_add_peer(fixture, 1, "worker/1");
    test_end_t server_end = {0}, client_end = {0};
    const tow_listen_options_t options = {
        .address = fixture->address, .accept = refuse, .context = &server_end};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(server->env, &options, &listener);
    assert_int_equal(tow_status_code(status), TOW_CODE_OK);
    test_connect(client, fixture->address, &client_end);
    TEST_TURN_UNTIL(fixture,
                    server_end.closed_count >= 2 && client_end.down_count >= 2);
    assert_int_equal(server_end.up_count, 0);
}

static void links_stay_open_when_their_listener_closes(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    test_end_t listener_end = {0};
    tow_listener_close(pair.listener, test_closed(&listener_end));
    assert_int_equal(listener_end.closed_count, 0);
    TEST_TURN_UNTIL(fixture, listener_end.closed_count);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_OK);
    TEST_TURN_UNTIL(fixture, pair.server_end.message_count);
    test_end_t late_end = {0};
    test_connect(pair.client, fixture->address, &late_end);
    TEST_TURN_UNTIL(fixture, late_end.down_count);
    assert_non_null(strstr(late_end.cause, "nothing listens there"));
    assert_non_null(strstr(late_end.cause, fixture->address));
}

static void closing_an_env_closes_all_that_is_open(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    test_end_t nowhere = {0};
    test_connect(pair.client, "tcp:127.0.0.1:1", &nowhere);
    test_turn_all(fixture);
    test_end_t env_end = {0};
    tow_env_close(pair.client->env, test_closed(&env_end));
    assert_int_equal(env_end.closed_count, 0);
    TEST_TURN_UNTIL(fixture,
                    env_end.closed_count && pair.server_end.down_count);
    assert_true(tow_net_is_closed(pair.client->net));
    tow_net_run(pair.client->net); /* Returns immediately. */
    assert_int_equal(pair.client_end.down_count, 0);
}

/* -- Dialling ------------------------------------------------------------- */

static void a_dialling_link_reconnects_in_a_new_epoch(void **state)
{
    test_fixture_t *fixture = *state;
    pair_t pair;
    pair_up(fixture, &pair, fixture->address);
    const uint64_t first_life = tow_link_peer(pair.link)->incarnation;
    test_remove_peer(fixture, 0);
    TEST_TURN_UNTIL(fixture, pair.client_end.down_count >= 3);
    assert_int_equal(pair.link->state, TOW_LINK_DIALLING);
    assert_int_equal(test_send(pair.link, 0), TOW_SEND_DOWN);
    test_end_t again_end = {0};
    test_listen(test_add_peer(fixture, 0, "controller"), fixture->address,
                &again_end);
    TEST_TURN_UNTIL(fixture, pair.client_end.up_count == 2);
    assert_int_equal(tow_link_peer(pair.link)->epoch, 2);
    assert_int_not_equal(tow_link_peer(pair.link)->incarnation, first_life);
}

static void dial_until_down(test_fixture_t *fixture, test_peer_t *client,
                            const char *expected_name, const char *address,
                            test_end_t *end)
{
    *end = (test_end_t){0};
    const tow_connect_options_t options = {.address = address,
                                           .expected_name = expected_name,
                                           .handler = &test_handler,
                                           .context = end};
    tow_link_t *link;
    tow_status_t status = tow_env_connect(client->env, &options, &link);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    assert_int_equal(end->down_count, 0);
    TEST_TURN_UNTIL(fixture, end->down_count);
    assert_int_equal(end->up_count, 0);
    assert_non_null(strstr(end->cause, address));
    tow_link_close(link, test_closed(end));
    TEST_TURN_UNTIL(fixture, end->closed_count);
}

static void failed_attempts_report_address_and_cause(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *server = test_add_peer(fixture, 0, "controller");
    test_peer_t *client = test_add_peer(fixture, 1, "worker/1");
    test_end_t server_end = {0}, end;
    test_listen(server, fixture->address, &server_end);
    dial_until_down(fixture, client, NULL, "unix:/nowhere/at/all", &end);
    assert_int_equal(end.cause_code, TOW_UNAVAILABLE);
    assert_non_null(strstr(end.cause, "tow status"));
    dial_until_down(fixture, client, NULL, "tcp:127.0.0.1:1", &end);
    assert_int_equal(end.cause_code, TOW_UNAVAILABLE);
    dial_until_down(fixture, client, "scheduler", fixture->address, &end);
    assert_non_null(strstr(end.cause, "scheduler"));
    assert_non_null(strstr(end.cause, "controller"));
    assert_int_equal(server_end.up_count, 0);
}

static void another_token_is_refused_on_both_sides(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *server = test_add_peer(fixture, 0, "controller");
    tow_security_t other = fixture->security;
    other.token.bytes[0] ^= 1;
    test_peer_t *client = test_add_peer_with(fixture, 1, "worker/1", &other);
    test_end_t server_end = {0}, end;
    test_listen(server, fixture->address, &server_end);
    dial_until_down(fixture, client, NULL, fixture->address, &end);
    assert_true(end.cause_code == TOW_UNAUTHENTICATED ||
                end.cause_code == TOW_PERMISSION_DENIED);
    TEST_TURN_UNTIL(fixture, server->log_size > 0);
    assert_non_null(strstr(server->log, "connection refused"));
    assert_int_equal(server_end.up_count, 0);
    test_remove_peer(fixture, 1);
}

static void an_unresolvable_name_is_reported(void **state)
{
    test_fixture_t *fixture = *state;
    give_certificates(fixture);
    test_peer_t *client = test_add_peer(fixture, 0, "worker/1");
    test_end_t end;
    dial_until_down(fixture, client, NULL, "tls:no-such-host.invalid:7000",
                    &end);
    assert_non_null(strstr(end.cause, "no-such-host.invalid"));
}

static void a_link_may_be_closed_while_its_name_is_resolved(void **state)
{
    test_fixture_t *fixture = *state;
    give_certificates(fixture);
    test_peer_t *client = test_add_peer(fixture, 0, "worker/1");
    test_end_t ends[8];
    memset(ends, 0, sizeof(ends));
    for (int i = 0; i < 8; i++) {
        tow_link_t *link =
            test_connect(client, "tls:no-such-host.invalid:7000", &ends[i]);
        for (int j = 0; j < i; j++)
            tow_net_turn(client->net, 0);
        if (link->state == TOW_LINK_DIALLING)
            tow_link_close(link, test_closed(&ends[i]));
    }
    for (int i = 0; i < 8; i++)
        TEST_TURN_UNTIL(fixture, ends[i].closed_count);
}

static void malformed_addresses_are_refused_immediately(void **state)
{
    test_fixture_t *fixture = *state;
    test_peer_t *peer = test_add_peer(fixture, 0, "a");
    static const char *const addresses[] = {
        "",
        "controller",
        "tcp:127.0.0.1",
        "tcp:127.0.0.1:99999",
        "tcp:192.0.2.1:7000",
        "tls:192.0.2.1:7000",
        "sim:controller",
        ("unix:/a/path/that/is/much/too/long/to/stand/in/the/hundred/and/eight/"
         "bytes/that/the/system/has/for/the/name/of/a/socket"),
    };
    for (size_t i = 0; i < TOW_COUNT_OF(addresses); i++) {
        test_end_t end = {0};
        const tow_connect_options_t options = {
            .address = addresses[i], .handler = &test_handler, .context = &end};
        tow_link_t *link;
        tow_status_t status = tow_env_connect(peer->env, &options, &link);
        assert_non_null(status);
        assert_null(link);
        assert_true(strlen(tow_status_message(status)) > 10);
        tow_status_release(status);
        const tow_listen_options_t listen = {
            .address = addresses[i], .accept = test_accept, .context = &end};
        tow_listener_t *listener;
        status = tow_env_listen(peer->env, &listen, &listener);
        assert_non_null(status);
        tow_status_release(status);
    }
}

/* -- Memory --------------------------------------------------------------- */

/* Whichever allocation fails, the links come up in the end or an error is
 * reported, and nothing leaks. */
static tow_exhaust_result_t meet_and_part(void *context)
{
    test_fixture_t *fixture = context;
    tow_exhaust_result_t outcome = TOW_EXHAUST_FAILED;
    test_end_t server_end = {0}, client_end = {0};
    for (size_t i = 0; i < 2; i++) {
        const tow_net_options_t options = {
            .name = i == 0 ? "a" : "b",
            .security = &fixture->security,
            .log = {.level = TOW_LOG_OFF, .source = "test"}};
        tow_status_t status = tow_net_create(&options, &fixture->peers[i].net);
        tow_status_release(status);
        if (status != TOW_OK) goto out;
        fixture->peers[i].env = tow_net_env(fixture->peers[i].net);
    }
    const tow_listen_options_t listen = {.address = fixture->address,
                                         .accept = test_accept,
                                         .context = &server_end};
    tow_listener_t *listener;
    tow_status_t status =
        tow_env_listen(fixture->peers[0].env, &listen, &listener);
    tow_status_release(status);
    if (status != TOW_OK) goto out;
    const tow_connect_options_t connect = {.address = fixture->address,
                                           .handler = &test_handler,
                                           .context = &client_end};
    tow_link_t *link;
    status = tow_env_connect(fixture->peers[1].env, &connect, &link);
    tow_status_release(status);
    if (status != TOW_OK) goto out;
    while (server_end.message_count == 0) {
        if (link->state == TOW_LINK_UP)
            (void)!test_send(link, server_end.next_number);
        test_turn_all(fixture);
    }
    outcome = TOW_EXHAUST_SUCCEEDED;
out:
    test_remove_peer(fixture, 1);
    test_remove_peer(fixture, 0);
    return outcome;
}

static void links_survive_without_memory(void **state)
{
    assert_true(tow_test_exhaust(meet_and_part, *state) > 10);
}

#define TEST(name)                                         \
    cmocka_unit_test_setup_teardown(name, test_fixture_up, \
                                    fixture_down_with_tls)

TOW_TEST_MAIN(TEST(peers_exchange_messages_over_unix_sockets),
              TEST(peers_exchange_messages_over_tcp),
              TEST(peers_exchange_messages_over_localhost),
              TEST(peers_exchange_messages_over_tls),
              TEST(large_messages_arrive), TEST(large_messages_arrive_over_tls),
              TEST(a_peer_that_does_not_read_fills_the_queue),
              TEST(floods_in_both_directions_stay_in_order),
              TEST(queued_messages_arrive_before_the_close),
              TEST(a_peer_that_never_reads_cannot_hold_up_a_close),
              TEST(both_sides_may_close_at_once),
              TEST(a_handler_may_close_its_own_link),
              TEST(a_handler_may_close_another_link),
              TEST(a_listener_may_refuse_in_accept),
              TEST(links_stay_open_when_their_listener_closes),
              TEST(closing_an_env_closes_all_that_is_open),
              TEST(a_dialling_link_reconnects_in_a_new_epoch),
              TEST(failed_attempts_report_address_and_cause),
              TEST(another_token_is_refused_on_both_sides),
              TEST(an_unresolvable_name_is_reported),
              TEST(a_link_may_be_closed_while_its_name_is_resolved),
              TEST(malformed_addresses_are_refused_immediately),
              TEST(links_survive_without_memory))
