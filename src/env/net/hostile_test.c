/* Peers that are broken, foreign or hostile: each gets one clear log line and a
 * closed connection, and no other peer notices. */
#include "env/net/net_testing_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "env/net/connection.h"
#include "wire/frame.h"
#include "wire/handshake.h"

/* -- A hand-made peer ----------------------------------------------------- */

static struct sockaddr_un unix_name(const test_fixture_t *fixture)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/socket",
             fixture->folder);
    return name;
}

static int raw_connect(const test_fixture_t *fixture)
{
    const struct sockaddr_un name = unix_name(fixture);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&name, sizeof(name)),
                     0);
    return fd;
}

static void raw_send(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

/* Reads until the other side closes; returns the number of bytes received. */
static size_t raw_read_to_end(test_fixture_t *fixture, int fd)
{
    const int64_t start_ns = tow_net_clock_ns();
    size_t total = 0;
    for (;;) {
        char bytes[4096];
        ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
        if (count > 0) {
            total += (size_t)count;
            continue;
        }
        if (count == 0 || errno != EAGAIN) break;
        if (tow_net_clock_ns() - start_ns > TEST_TIMEOUT_NS)
            fail_msg("the connection is not closed");
        test_turn_all(fixture);
    }
    close(fd);
    return total;
}

/* A dialler's whole handshake, hand-made. */
static void raw_handshake(test_fixture_t *fixture, int fd)
{
    const tow_handshake_options_t options = {
        .side = TOW_SIDE_DIALLER,
        .self = {.name = "raw", .incarnation = 1, .software = "test"},
        .security = &fixture->security,
        .peer_address = "raw",
    };
    tow_handshake_t *handshake;
    tow_status_t status = tow_handshake_create(&options, &handshake);
    assert_int_equal(tow_status_code(status), TOW_CODE_OK);
    tow_handshake_state_t state = TOW_HANDSHAKE_MORE;
    while (state == TOW_HANDSHAKE_MORE) {
        const uint8_t *output;
        size_t count;
        tow_handshake_take_output(handshake, &output, &count);
        if (count > 0) raw_send(fd, output, count);
        test_turn_all(fixture);
        uint8_t input[4096];
        ssize_t got = recv(fd, input, sizeof(input), 0);
        assert_true(got > 0 || (got < 0 && errno == EAGAIN));
        size_t consumed;
        if (got > 0)
            state =
                tow_handshake_feed(handshake, input, (size_t)got, &consumed);
    }
    assert_int_equal(state, TOW_HANDSHAKE_DONE);
    tow_handshake_destroy(handshake);
}

/* -- A server, and a good peer that must not notice anything -------------- */

typedef struct stage {
    test_fixture_t *fixture;
    test_peer_t *server;
    test_end_t server_end; /* of all accepted links */
    test_end_t good_end;
    tow_link_t *good;
} stage_t;

static void stage_up(void **state, stage_t *stage)
{
    *stage = (stage_t){.fixture = *state};
    stage->server = test_add_peer(*state, 0, "controller");
    test_listen(stage->server, stage->fixture->address, &stage->server_end);
    test_peer_t *client = test_add_peer(*state, 1, "worker/1");
    stage->good =
        test_connect(client, stage->fixture->address, &stage->good_end);
    TEST_TURN_UNTIL(stage->fixture,
                    stage->good_end.up_count && stage->server_end.up_count);
}

/* The good peer's link still works, and nothing is left of the bad one. */
static void check_nobody_noticed(stage_t *stage)
{
    const uint64_t before = stage->server_end.message_count;
    assert_int_equal(test_send(stage->good, before), TOW_SEND_OK);
    TEST_TURN_UNTIL(stage->fixture, stage->server_end.message_count > before);
    assert_int_equal(stage->good_end.down_count, 0);
    TEST_TURN_UNTIL(stage->fixture,
                    tow_net_stats(stage->server->net).half_open_count == 0);
}

static void check_logged(const stage_t *stage, const char *text)
{
    if (strstr(stage->server->log, text) == NULL)
        fail_msg("\"%s\" is not in the log: %s", text, stage->server->log);
}

static void speak_and_be_refused(void **state, const void *bytes, size_t count,
                                 const char *words)
{
    stage_t stage;
    stage_up(state, &stage);
    int fd = raw_connect(stage.fixture);
    raw_send(fd, bytes, count);
    raw_read_to_end(stage.fixture, fd);
    check_logged(&stage, "connection refused");
    check_logged(&stage, stage.fixture->address);
    check_logged(&stage, words);
    assert_int_equal(stage.server_end.up_count, 1);
    check_nobody_noticed(&stage);
}

static void an_http_request_is_refused(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    speak_and_be_refused(state, request, sizeof(request) - 1,
                         "INVALID_ARGUMENT");
}

static void another_version_is_refused_by_its_number(void **state)
{
    speak_and_be_refused(state, "TOWPATH\x02", 8, "FAILED_PRECONDITION");
}

static void garbage_is_refused(void **state)
{
    speak_and_be_refused(state, "\x16\x03\x01garbage", 10, "INVALID_ARGUMENT");
}

static void a_peer_that_dies_in_the_handshake_is_reported(void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    int fd = raw_connect(stage.fixture);
    raw_send(fd, "TOWPATH\x01", 8);
    close(fd);
    TEST_TURN_UNTIL(stage.fixture, stage.server->log_size > 0);
    check_logged(&stage, "connection refused");
    check_nobody_noticed(&stage);
}

static void a_probe_connection_is_not_logged_as_a_warning(void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    close(raw_connect(stage.fixture));
    TEST_TURN_UNTIL(stage.fixture,
                    tow_net_stats(stage.server->net).refused_count == 1);
    assert_int_equal(stage.server->log_size, 0);
    check_nobody_noticed(&stage);
}

static void a_thousand_bad_connections_get_few_log_lines(void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    tow_random_t random;
    tow_random_init(&random, 11);
    for (int i = 0; i < 1000; i++) {
        uint8_t bytes[300];
        for (size_t j = 0; j < sizeof(bytes); j++)
            bytes[j] = (uint8_t)tow_random_next(&random);
        /* Some pass the preface. */
        if (i % 2 == 0) memcpy(bytes, "TOWPATH\x01", 8);
        int fd = raw_connect(stage.fixture);
        raw_send(fd, bytes, 1 + tow_random_below(&random, sizeof(bytes)));
        close(fd);
        test_turn_all(stage.fixture);
    }
    check_nobody_noticed(&stage);
    size_t line_count = 0;
    for (const char *at = stage.server->log; *at != '\0'; at++)
        line_count += *at == '\n';
    assert_true(line_count >= TOW_NET_LOG_BURST);
    assert_true(line_count < 500);
    assert_int_equal(stage.server_end.up_count, 1);
}

/* -- Frames --------------------------------------------------------------- */

/* An authenticated peer sends `bytes`: its link goes down with `words` in the
 * cause. */
static void send_after_handshake(void **state, const void *bytes, size_t count,
                                 const char *words)
{
    stage_t stage;
    stage_up(state, &stage);
    int fd = raw_connect(stage.fixture);
    raw_handshake(stage.fixture, fd);
    TEST_TURN_UNTIL(stage.fixture, stage.server_end.up_count == 2);
    raw_send(fd, bytes, count);
    shutdown(fd, SHUT_WR);
    TEST_TURN_UNTIL(stage.fixture, stage.server_end.down_count == 1);
    if (strstr(stage.server_end.cause, words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, stage.server_end.cause);
    assert_non_null(strstr(stage.server_end.cause, stage.fixture->address));
    assert_int_equal(stage.server_end.message_count, 0);
    raw_read_to_end(stage.fixture, fd);
    stage.server_end.message_count = 0;
    check_nobody_noticed(&stage);
}

static void a_peer_that_dies_in_the_middle_of_a_frame_is_reported(void **state)
{
    uint8_t frame[TOW_FRAME_HEADER_SIZE + 100] = {0};
    tow_frame_seal(frame, 1, 100);
    send_after_handshake(state, frame, 50, "in the middle of a frame (50 of");
}

static void a_peer_that_dies_in_the_middle_of_a_header_is_reported(void **state)
{
    uint8_t frame[TOW_FRAME_HEADER_SIZE + 100] = {0};
    tow_frame_seal(frame, 1, 100);
    send_after_handshake(state, frame, 5, "in the middle of a frame (5 of");
}

static void a_frame_that_is_too_large_ends_the_link(void **state)
{
    uint8_t *frame = calloc(1, TOW_FRAME_HEADER_SIZE + 5 * 1024 * 1024);
    tow_frame_seal(frame, 1, 5 * 1024 * 1024);
    send_after_handshake(state, frame, TOW_FRAME_HEADER_SIZE, "5242880");
    free(frame);
}

static void an_altered_frame_ends_the_link(void **state)
{
    uint8_t frame[TOW_FRAME_HEADER_SIZE + 100] = {0};
    tow_frame_seal(frame, 1, 100);
    frame[TOW_FRAME_HEADER_SIZE + 7] ^= 4;
    send_after_handshake(state, frame, sizeof(frame), "checksum");
}

static void writing_to_a_disconnected_peer_brings_its_link_down(void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    int fd = raw_connect(stage.fixture);
    raw_handshake(stage.fixture, fd);
    TEST_TURN_UNTIL(stage.fixture, stage.server_end.up_count == 2);
    tow_link_t *link = stage.server_end.link;
    close(fd);
    for (uint64_t i = 0; i < 100000; i++) /* More than is sent immediately. */
        if (test_send(link, i) != TOW_SEND_OK) break;
    assert_int_equal(stage.server_end.down_count, 0);
    TEST_TURN_UNTIL(stage.fixture, stage.server_end.down_count == 1);
    assert_int_equal(link->state, TOW_LINK_FINISHED);
    check_nobody_noticed(&stage);
}

/* -- Slow and numerous connections ---------------------------------------- */

static void end_patience(test_peer_t *peer)
{
    for (tow_list_t *item = peer->net->links.next; item != &peer->net->links;
         item = item->next) {
        tow_net_link_t *link = TOW_CONTAINER_OF(item, tow_net_link_t, all);
        if (link->phase == TOW_NET_HANDSHAKE || link->phase == TOW_NET_TLS)
            tow_env_timer_start(peer->env, &link->timer,
                                tow_env_now_ns(peer->env));
    }
}

static void a_slow_handshake_times_out(void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    int fd = raw_connect(stage.fixture);
    for (int i = 0; i < 5; i++) {
        raw_send(fd, &"TOWPA"[i], 1);
        test_turn_all(stage.fixture);
    }
    TEST_TURN_UNTIL(stage.fixture,
                    tow_net_stats(stage.server->net).half_open_count == 1);
    end_patience(stage.server);
    raw_read_to_end(stage.fixture, fd);
    check_logged(&stage, "in the handshake: waited 5 s for");
    check_nobody_noticed(&stage);
}

static void half_open_connections_are_bounded_and_the_oldest_is_closed(
    void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    enum {
        COUNT = TOW_NET_HALF_OPEN_MAX + 20
    };
    static int fds[COUNT];
    for (int i = 0; i < COUNT; i++) {
        fds[i] = raw_connect(stage.fixture);
        test_turn_all(stage.fixture);
        assert_true(tow_net_stats(stage.server->net).half_open_count <=
                    TOW_NET_HALF_OPEN_MAX);
    }
    raw_read_to_end(stage.fixture, fds[0]); /* The oldest has been closed. */
    check_logged(&stage, "have not authenticated");
    /* And a genuine peer is still accepted, though no other left by itself. */
    raw_handshake(stage.fixture, fds[COUNT - 1]);
    TEST_TURN_UNTIL(stage.fixture, stage.server_end.up_count == 2);
    for (int i = 1; i < COUNT; i++)
        close(fds[i]);
    check_nobody_noticed(&stage);
}

static void running_out_of_descriptors_is_logged_and_temporary(void **state)
{
    stage_t stage;
    stage_up(state, &stage);
    int fd = raw_connect(stage.fixture);
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    int next = dup(fd);
    close(next);
    const struct rlimit tight = {.rlim_cur = (rlim_t)next,
                                 .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    TEST_TURN_UNTIL(stage.fixture, stage.server->log_size > 0);
    check_logged(&stage, "cannot accept");
    check_logged(&stage, "ulimit -n");
    /* It waits for its timer instead of retrying immediately. */
    while (tow_net_turn(stage.server->net, 0)) {
    }
    const uint64_t pass_count = tow_net_stats(stage.server->net).pass_count;
    tow_net_turn(stage.server->net, TOW_NET_ACCEPT_RETRY_NS / 4);
    assert_true(tow_net_stats(stage.server->net).pass_count <=
                pass_count + 1000);
    setrlimit(RLIMIT_NOFILE, &before);
    raw_handshake(stage.fixture, fd);
    TEST_TURN_UNTIL(stage.fixture, stage.server_end.up_count == 2);
    close(fd);
    check_nobody_noticed(&stage);
}

/* -- A listener of another program ---------------------------------------- */

typedef struct foreign {
    test_fixture_t *fixture;
    test_peer_t *client;
    test_end_t end;
    int listener_fd;
    char address[64];
} foreign_t;

static void foreign_up(void **state, foreign_t *foreign)
{
    *foreign = (foreign_t){.fixture = *state};
    foreign->listener_fd =
        socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(name);
    assert_int_equal(bind(foreign->listener_fd, (struct sockaddr *)&name, size),
                     0);
    assert_int_equal(listen(foreign->listener_fd, 16), 0);
    getsockname(foreign->listener_fd, (struct sockaddr *)&name, &size);
    snprintf(foreign->address, sizeof(foreign->address), "tcp:127.0.0.1:%u",
             ntohs(name.sin_port));
    foreign->client = test_add_peer(*state, 0, "worker/1");
    test_connect(foreign->client, foreign->address, &foreign->end);
}

static int foreign_accept(foreign_t *foreign)
{
    for (;;) {
        int fd = accept4(foreign->listener_fd, NULL, NULL,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) return fd;
        test_turn_all(foreign->fixture);
    }
}

static void foreign_check_down(foreign_t *foreign, const char *words)
{
    TEST_TURN_UNTIL(foreign->fixture, foreign->end.down_count >= 1);
    assert_int_equal(foreign->end.up_count, 0);
    assert_non_null(strstr(foreign->end.cause, foreign->address));
    if (strstr(foreign->end.cause, words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, foreign->end.cause);
    close(foreign->listener_fd);
}

static void dialling_another_protocol_is_reported(void **state)
{
    foreign_t foreign;
    foreign_up(state, &foreign);
    int fd = foreign_accept(&foreign);
    raw_send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    foreign_check_down(&foreign, "HTTP");
    close(fd);
}

static void dialling_a_peer_that_hangs_up_is_reported(void **state)
{
    foreign_t foreign;
    foreign_up(state, &foreign);
    close(foreign_accept(&foreign));
    foreign_check_down(&foreign, "");
}

static void dialling_a_silent_peer_times_out(void **state)
{
    foreign_t foreign;
    foreign_up(state, &foreign);
    int fd = foreign_accept(&foreign);
    TEST_TURN_UNTIL(
        foreign.fixture,
        TOW_CONTAINER_OF(foreign.client->net->links.next, tow_net_link_t, all)
                ->phase == TOW_NET_HANDSHAKE);
    end_patience(foreign.client);
    foreign_check_down(&foreign, "waited 5 s for");
    assert_int_equal(foreign.end.cause_code, TOW_DEADLINE_EXCEEDED);
    close(fd);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, test_fixture_up, test_fixture_down)

TOW_TEST_MAIN(TEST(an_http_request_is_refused),
              TEST(another_version_is_refused_by_its_number),
              TEST(garbage_is_refused),
              TEST(a_peer_that_dies_in_the_handshake_is_reported),
              TEST(a_probe_connection_is_not_logged_as_a_warning),
              TEST(a_thousand_bad_connections_get_few_log_lines),
              TEST(a_peer_that_dies_in_the_middle_of_a_frame_is_reported),
              TEST(a_peer_that_dies_in_the_middle_of_a_header_is_reported),
              TEST(a_frame_that_is_too_large_ends_the_link),
              TEST(an_altered_frame_ends_the_link),
              TEST(writing_to_a_disconnected_peer_brings_its_link_down),
              TEST(a_slow_handshake_times_out),
              TEST(half_open_connections_are_bounded_and_the_oldest_is_closed),
              TEST(running_out_of_descriptors_is_logged_and_temporary),
              TEST(dialling_another_protocol_is_reported),
              TEST(dialling_a_peer_that_hangs_up_is_reported),
              TEST(dialling_a_silent_peer_times_out))
