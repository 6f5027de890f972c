/* Sessions over real sockets, whose connections break repeatedly. */
#include "session/session_testing_impl.h"

#include <signal.h>
#include <sys/socket.h> /* tow-allow: breaks real connections */
#include <sys/wait.h>
#include <unistd.h>

#include "env/net/net.h"

/* A stuck test fails after so many event-loop turns, which wait for up to a
 * millisecond each. */
#define TURN_COUNT_MAX 60000
#define ROUND_COUNT    8

typedef struct duo {
    char folder[64];
    tow_security_t security;
    tow_net_t *listening;
    tow_net_t *dialling;
    tow_session_port_t *port;
    owner_t accepted;
    owner_t dialled;
    int port_closed_count;
    int64_t balance;
} duo_t;

static void turn(duo_t *duo)
{
    bool any = tow_net_turn(duo->listening, 0);
    any |= tow_net_turn(duo->dialling, 0);
    if (!any) tow_net_turn(duo->dialling, MS);
}

#define TURN_UNTIL(duo, condition)                            \
    do {                                                      \
        for (int turns_ = 0; !(condition); turns_++) {        \
            if (turns_ > TURN_COUNT_MAX)                      \
                fail_msg("stuck waiting for %s", #condition); \
            turn(duo);                                        \
        }                                                     \
    } while (0)

static tow_net_t *make_net(duo_t *duo, const char *name)
{
    tow_net_t *net;
    must(tow_net_create(&(tow_net_options_t){.name = name,
                                             .security = &duo->security,
                                             .log = {.level = TOW_LOG_OFF}},
                        &net));
    return net;
}

static void arrived(void *context, tow_session_t *session)
{
    duo_t *duo = context;
    assert_null(duo->accepted.session);
    duo->accepted.session = session;
    tow_session_accept(session, &owner_handler, &duo->accepted);
}

static void duo_open(duo_t *duo, bool is_unix)
{
    char address[128] = "tcp:127.0.0.1:0";
    *duo = (duo_t){.security = {.has_token = true}};
    snprintf(duo->folder, sizeof(duo->folder), "/tmp/tow-session-XXXXXX");
    assert_non_null(mkdtemp(duo->folder));
    if (is_unix)
        snprintf(address, sizeof(address), "unix:%s/socket", duo->folder);
    duo->listening = make_net(duo, "listener");
    duo->dialling = make_net(duo, "dialler");
    must(tow_session_listen(tow_net_env(duo->listening),
                            &(tow_session_listen_options_t){.address = address,
                                                            .arrived = arrived,
                                                            .context = duo},
                            &duo->port));
    must(tow_session_dial(tow_net_env(duo->dialling),
                          &(tow_session_dial_options_t){
                              .address = tow_session_port_address(duo->port),
                              .expected_name = "listener",
                              .connect_timeout_ns = 60 * SECOND,
                              .handler = &owner_handler,
                              .context = &duo->dialled},
                          &duo->dialled.session));
    TURN_UNTIL(duo, duo->dialled.opened_count == 1 &&
                        duo->accepted.opened_count == 1);
}

static void port_closed(void *context)
{
    ((duo_t *)context)->port_closed_count++;
}

static void duo_close(duo_t *duo)
{
    if (duo->dialled.session != NULL) owner_close(&duo->dialled, TOW_OK);
    TURN_UNTIL(duo, duo->accepted.session == NULL ||
                        duo->accepted.disconnected_count == 1);
    if (duo->accepted.session != NULL) owner_close(&duo->accepted, TOW_OK);
    tow_session_port_close(duo->port, (tow_closed_t){port_closed, duo});
    TURN_UNTIL(duo, duo->port_closed_count == 1 &&
                        duo->dialled.session == NULL &&
                        duo->accepted.session == NULL);
    tow_net_destroy(duo->dialling);
    tow_net_destroy(duo->listening);
    assert_int_equal(rmdir(duo->folder), 0);
    assert_int_equal(duo->balance, 0);
}

/* Every connected socket of this process. */
static void break_connections(void)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage peer;
        socklen_t size = sizeof(peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0)
            shutdown(fd, SHUT_RDWR);
    }
}

static void live_through_breaks(bool is_unix)
{
    duo_t duo;
    duo_open(&duo, is_unix);
    for (int round = 0; round < ROUND_COUNT; round++) {
        TURN_UNTIL(&duo, tow_session_is_connected(duo.dialled.session) &&
                             tow_session_is_connected(duo.accepted.session));
        for (int i = 0; i < 200; i++) {
            (void)owner_send(&duo.dialled);
            (void)owner_send(&duo.accepted);
        }
        owner_send_blob(&duo.dialled, &duo.balance, (size_t)round << 18);
        owner_send_blob(&duo.accepted, &duo.balance, 3000);
        for (int i = 0; i < round % 7; i++)
            turn(&duo);
        break_connections();
        turn(&duo);
    }
    TURN_UNTIL(&duo, duo.accepted.received == duo.dialled.sent &&
                         duo.dialled.received == duo.accepted.sent);
    TURN_UNTIL(&duo,
               tow_session_stats(duo.dialled.session).retransmit_bytes == 0 &&
                   tow_session_stats(duo.accepted.session).retransmit_bytes ==
                       0);
    tow_session_stats_t stats = tow_session_stats(duo.dialled.session);
    assert_true(stats.epochs >= ROUND_COUNT / 2 &&
                stats.messages_sent_again > 0);
    assert_int_equal(duo.accepted.blobs_received, ROUND_COUNT);
    print_message("%llu epochs, %llu sent, %llu of them again\n",
                  (unsigned long long)stats.epochs,
                  (unsigned long long)stats.messages_sent,
                  (unsigned long long)stats.messages_sent_again);
    duo_close(&duo);
}

static void broken_unix_sockets_lose_nothing(void **state)
{
    live_through_breaks(true);
}

static void broken_tcp_connections_lose_nothing(void **state)
{
    live_through_breaks(false);
}

/* The listener's event loop stops, as if the process were suspended. */
static void a_suspended_listener_disconnects(void **state)
{
    duo_t duo;
    duo_open(&duo, true);
    for (int i = 0; duo.dialled.disconnected_count == 0; i++) {
        assert_true(i < TURN_COUNT_MAX);
        tow_net_turn(duo.dialling, 100 * MS);
    }
    assert_int_equal(duo.dialled.disconnect_code, TOW_UNAVAILABLE);
    assert_non_null(
        strstr(duo.dialled.disconnect_message, "listener was silent for"));
    duo_close(&duo);
}

/* -- Other processes ------------------------------------------------------- */

/* In a child: dials, and lives until it is killed. */
TOW_NORETURN static void dial_for_ever(duo_t *duo)
{
    owner_t dialled = {0};
    tow_net_t *net = make_net(duo, "child");
    must(tow_session_dial(tow_net_env(net),
                          &(tow_session_dial_options_t){
                              .address = tow_session_port_address(duo->port),
                              .handler = &owner_handler,
                              .context = &dialled},
                          &dialled.session));
    for (;;)
        tow_net_turn(net, 100 * MS);
}

/* The system reports the death: no lease has to expire. */
static void a_killed_process_is_known_to_be_dead(void **state)
{
    duo_t duo;
    duo_open(&duo, true);
    owner_close(&duo.dialled, TOW_OK);
    TURN_UNTIL(&duo, duo.accepted.disconnected_count == 1);
    owner_close(&duo.accepted, TOW_OK);
    TURN_UNTIL(&duo, duo.accepted.session == NULL);
    duo.accepted = (owner_t){0};

    const pid_t child = fork(); /* tow-allow: a child to kill */
    if (child == 0) dial_for_ever(&duo);
    TURN_UNTIL(&duo, duo.accepted.opened_count == 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    TURN_UNTIL(&duo, duo.accepted.disconnected_count == 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(duo.accepted.disconnect_code, TOW_UNAVAILABLE);
    assert_non_null(strstr(duo.accepted.disconnect_message,
                           "child died: its process has ended"));
    duo_close(&duo);
}

/* Many small messages with back-pressure of the link and of the session. */
static void a_flood_arrives(void **state)
{
    enum {
        FLOOD = 200000
    };
    duo_t duo;
    duo_open(&duo, true);
    while (duo.accepted.received < FLOOD) {
        while (duo.dialled.sent < FLOOD &&
               owner_send(&duo.dialled) == TOW_SEND_OK)
            continue;
        turn(&duo);
    }
    assert_int_equal(duo.accepted.received, FLOOD);
    duo_close(&duo);
}

TOW_TEST_MAIN(cmocka_unit_test(broken_unix_sockets_lose_nothing),
              cmocka_unit_test(broken_tcp_connections_lose_nothing),
              cmocka_unit_test(a_suspended_listener_disconnects),
              cmocka_unit_test(a_killed_process_is_known_to_be_dead),
              cmocka_unit_test(a_flood_arrives))
