/* Fixture for the tests of net: a folder, peers that one thread drives,
 * handlers that count, and a log kept in memory. For tests only. */
#ifndef TOW_ENV_NET_NET_TESTING_IMPL_H_
#define TOW_ENV_NET_NET_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "env/net/net.h"
#include "env/net/net_impl.h"

/* Only prevents a hang: a stuck test fails after this. */
#define TEST_TIMEOUT_NS     (60 * TOW_NS_PER_S)
#define TEST_PEER_COUNT_MAX 4

typedef struct test_peer {
    tow_net_t *net;
    tow_env_t *env;
    char log[8192];
    size_t log_size;
} test_peer_t;

typedef struct test_fixture {
    char folder[64];
    char address[96]; /* unix:FOLDER/socket */
    tow_security_t security;
    test_peer_t peers[TEST_PEER_COUNT_MAX];
} test_fixture_t;

static inline void test_keep_line(void *context, const char *line,
                                  size_t length)
{
    test_peer_t *peer = context;
    if (peer->log_size + length >= sizeof(peer->log)) return;
    memcpy(peer->log + peer->log_size, line, length);
    peer->log_size += length;
    peer->log[peer->log_size] = '\0';
}

static inline test_peer_t *test_add_peer_with(test_fixture_t *fixture,
                                              size_t index, const char *name,
                                              const tow_security_t *security)
{
    test_peer_t *peer = &fixture->peers[index];
    assert_null(peer->net);
    const tow_net_options_t options = {
        .name = name,
        .security = security,
        .log = {.level = TOW_LOG_INFO,
                .sink = test_keep_line,
                .sink_context = peer},
    };
    tow_status_t status = tow_net_create(&options, &peer->net);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    peer->env = tow_net_env(peer->net);
    peer->log_size = 0;
    peer->log[0] = '\0';
    return peer;
}

static inline test_peer_t *test_add_peer(test_fixture_t *fixture, size_t index,
                                         const char *name)
{
    return test_add_peer_with(fixture, index, name, &fixture->security);
}

static inline void test_remove_peer(test_fixture_t *fixture, size_t index)
{
    tow_net_destroy(fixture->peers[index].net);
    fixture->peers[index].net = NULL;
}

static inline int test_fixture_up(void **state)
{
    test_fixture_t *fixture = calloc(1, sizeof(*fixture));
    if (fixture == NULL) return -1;
    snprintf(fixture->folder, sizeof(fixture->folder), "/tmp/tow-net-XXXXXX");
    if (mkdtemp(fixture->folder) == NULL) {
        free(fixture);
        return -1;
    }
    snprintf(fixture->address, sizeof(fixture->address), "unix:%s/socket",
             fixture->folder);
    fixture->security.has_token = true;
    memset(fixture->security.token.bytes, 7, TOW_TOKEN_SIZE);
    *state = fixture;
    return 0;
}

static inline void test_turn_all(test_fixture_t *fixture)
{
    bool any = false;
    test_peer_t *last = NULL;
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++) {
        if (fixture->peers[i].net == NULL) continue;
        last = &fixture->peers[i];
        any |= tow_net_turn(last->net, 0);
        tow_net_check(last->net);
    }
    if (!any && last != NULL) tow_net_turn(last->net, TOW_NS_PER_MS / 5);
}

/* Drives all peers until `condition` holds. */
#define TEST_TURN_UNTIL(fixture, condition)                       \
    do {                                                          \
        const int64_t start_ns_ = tow_net_clock_ns();             \
        while (!(condition)) {                                    \
            if (tow_net_clock_ns() - start_ns_ > TEST_TIMEOUT_NS) \
                fail_msg("stuck waiting for %s", #condition);     \
            test_turn_all(fixture);                               \
        }                                                         \
    } while (0)

/* Closes all before it destroys any, so that none waits for another that is no
 * longer driven. */
static inline int test_fixture_down(void **state)
{
    test_fixture_t *fixture = *state;
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++) {
        test_peer_t *peer = &fixture->peers[i];
        if (peer->net != NULL && !peer->net->is_closing)
            tow_env_close(peer->env, (tow_closed_t){0});
    }
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        if (fixture->peers[i].net != NULL)
            TEST_TURN_UNTIL(fixture, tow_net_is_closed(fixture->peers[i].net));
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        test_remove_peer(fixture, i);
    /* Closed listeners leave no files, so the folder is empty. */
    int result = rmdir(fixture->folder);
    free(fixture);
    return result;
}

/* -- A handler that counts ------------------------------------------------ */

typedef struct test_end {
    tow_link_t *link; /* of the last up or accept */
    int up_count;
    int down_count;
    int writable_count;
    int closed_count;
    uint64_t message_count;
    uint64_t byte_count;
    uint64_t next_number; /* messages carry 0, 1, 2, ... in their first bytes */
    bool is_in_order;
    uint32_t last_type;
    tow_code_t cause_code;
    char cause[1024];
    /* Called at the end of a callback when set. */
    void (*then)(struct test_end *end);
} test_end_t;

static inline void test_end_up(void *context, tow_link_t *link)
{
    test_end_t *end = context;
    end->link = link;
    end->up_count++;
    end->is_in_order = true;
    end->next_number = 0;
    assert_int_equal(link->state, TOW_LINK_UP);
}

static inline void test_end_message(void *context, tow_link_t *link,
                                    const tow_message_t *message)
{
    test_end_t *end = context;
    assert_int_equal(link->state, TOW_LINK_UP);
    uint64_t number = 0;
    memcpy(&number, message->bytes,
           message->size < sizeof(number) ? message->size : sizeof(number));
    end->is_in_order &= number == end->next_number;
    end->next_number++;
    end->message_count++;
    end->byte_count += message->size;
    end->last_type = message->type;
    if (end->then != NULL) end->then(end);
}

static inline void test_end_writable(void *context, tow_link_t *link)
{
    (void)link;
    ((test_end_t *)context)->writable_count++;
}

static inline void test_end_down(void *context, tow_link_t *link,
                                 tow_status_t cause)
{
    (void)link;
    test_end_t *end = context;
    end->down_count++;
    end->cause_code = tow_status_code(cause);
    snprintf(end->cause, sizeof(end->cause), "%s", tow_status_message(cause));
}

static inline void test_end_closed(void *context)
{
    ((test_end_t *)context)->closed_count++;
}

static const tow_link_handler_t test_handler = {
    .up = test_end_up,
    .message = test_end_message,
    .writable = test_end_writable,
    .down = test_end_down,
};

static inline tow_closed_t test_closed(test_end_t *end)
{
    return (tow_closed_t){.run = test_end_closed, .context = end};
}

static inline void test_accept(void *context, tow_link_t *link)
{
    link->handler = &test_handler;
    link->context = context;
    ((test_end_t *)context)->link = link;
}

static inline tow_listener_t *test_listen(test_peer_t *peer,
                                          const char *address, test_end_t *end)
{
    const tow_listen_options_t options = {
        .address = address, .accept = test_accept, .context = end};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(peer->env, &options, &listener);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return listener;
}

static inline tow_link_t *test_connect(test_peer_t *peer, const char *address,
                                       test_end_t *end)
{
    const tow_connect_options_t options = {
        .address = address, .handler = &test_handler, .context = end};
    tow_link_t *link;
    tow_status_t status = tow_env_connect(peer->env, &options, &link);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return link;
}

static inline tow_send_result_t test_send(tow_link_t *link, uint64_t number)
{
    return tow_link_send(link, 5, &number, sizeof(number));
}

#endif /* TOW_ENV_NET_NET_TESTING_IMPL_H_ */
