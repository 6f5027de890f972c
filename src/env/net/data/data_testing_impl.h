/* Fixture for the tests of the data plane: nets that one thread drives, and
 * lanes, regions and writes that count. Each test runs six times: on shared
 * memory with pulls of large writes, with all writes through rings, on UCX over
 * TCP, and on trunks over Unix sockets, over TLS, and over TLS with subflows.
 * For tests only. */
#ifndef TOW_ENV_NET_DATA_TESTING_IMPL_H_
#define TOW_ENV_NET_DATA_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "env/net/data/data_impl.h"

/* Only prevents a hang: a stuck test fails after this. */
#define TEST_TIMEOUT_NS     (60 * TOW_NS_PER_S)
#define TEST_NODE_COUNT_MAX 4
#define TEST_MIB            ((size_t)1 << 20)

typedef struct test_node {
    tow_net_t *net; /* NULL: none */
    tow_env_t *env;
    tow_data_t *data;
    bool is_stalled;
    char log[16384];
    size_t log_size;
    uint64_t datagram_count;
    uint64_t last_channel;
    size_t last_size;
    void (*arrived)(struct test_node *node); /* in the datagram's callback */
} test_node_t;

typedef struct test_fixture {
    test_node_t nodes[TEST_NODE_COUNT_MAX];
    int64_t live_before;
} test_fixture_t;

static tow_security_t test_security;
/* In the environment, for child processes: "unix" or "tls" if nodes use trunks
 * over such sockets. */
#define TEST_TRUNKS "TOW_TEST_TRUNKS"

/* -- Nodes ---------------------------------------------------------------- */

static inline void test_log(void *context, const char *line, size_t length)
{
    test_node_t *node = context;
    if (node->log_size + length >= sizeof(node->log)) return;
    memcpy(node->log + node->log_size, line, length);
    node->log_size += length;
    node->log[node->log_size] = '\0';
}

static inline void test_datagram(void *context, uint64_t channel,
                                 const void *bytes, size_t size)
{
    (void)bytes;
    test_node_t *node = context;
    node->datagram_count++;
    node->last_channel = channel;
    node->last_size = size;
    if (node->arrived != NULL) node->arrived(node);
}

/* Once, for all nodes. */
static inline void test_make_tls(void)
{
    const char *trunks = getenv(TEST_TRUNKS);
    const tow_tls_options_t options = {.makes_certificate = true};
    if (test_security.tls == NULL && trunks != NULL &&
        strcmp(trunks, "tls") == 0)
        assert_null(tow_tls_context_create(&options, &test_security.tls));
}

static inline tow_net_options_t test_options(test_node_t *node)
{
    test_security.has_token = true;
    test_make_tls();
    return (tow_net_options_t){
        .name = "node",
        .security = &test_security,
        .log = {.level = TOW_LOG_INFO, .sink = test_log, .sink_context = node},
        .data_plane = TOW_NET_DATA_UCX,
    };
}

static inline void test_accept(void *context, tow_link_t *link)
{
    (void)context;
    tow_link_close(link, (tow_closed_t){0});
}

/* No two of these nodes find each other in shared memory. */
static inline void test_listen(test_node_t *node)
{
    static unsigned count;
    char address[128] = "tls:127.0.0.1:0";
    if (strcmp(getenv(TEST_TRUNKS), "unix") == 0)
        snprintf(address, sizeof(address), "unix:/tmp/tow-data-%d-%u.sock",
                 (int)getpid(), count++);
    const tow_listen_options_t options = {
        .address = address, .carries_lanes = true, .accept = test_accept};
    tow_listener_t *listener;
    node->data->beacon.segment = -1;
    tow_status_t status = tow_env_listen(node->env, &options, &listener);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline test_node_t *test_add_node(test_fixture_t *fixture, size_t index)
{
    test_node_t *node = &fixture->nodes[index];
    assert_null(node->net);
    *node = (test_node_t){0};
    const tow_net_options_t options = test_options(node);
    tow_status_t status = tow_net_create(&options, &node->net);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    node->env = tow_net_env(node->net);
    node->data = tow_data_of(node->env);
    if (getenv(TEST_TRUNKS) != NULL) test_listen(node);
    tow_env_datagram_handler(node->env, test_datagram, node);
    return node;
}

static inline void test_remove_node(test_fixture_t *fixture, size_t index)
{
    tow_net_destroy(fixture->nodes[index].net);
    fixture->nodes[index].net = NULL;
}

static inline test_fixture_t *test_fixture_create(size_t node_count)
{
    test_fixture_t *fixture = calloc(1, sizeof(*fixture));
    fixture->live_before = tow_alloc_live_count();
    for (size_t i = 0; i < node_count; i++)
        test_add_node(fixture, i);
    return fixture;
}

static inline void test_fixture_destroy(test_fixture_t *fixture)
{
    for (size_t i = 0; i < TEST_NODE_COUNT_MAX; i++)
        test_remove_node(fixture, i);
    const int64_t leaked = tow_alloc_live_count() - fixture->live_before;
    free(fixture);
    if (leaked != 0) fail_msg("%lld blocks leaked", (long long)leaked);
}

static inline bool test_turn(test_fixture_t *fixture)
{
    bool any = false;
    test_node_t *last = NULL;
    for (size_t i = 0; i < TEST_NODE_COUNT_MAX; i++) {
        test_node_t *node = &fixture->nodes[i];
        if (node->net == NULL || node->is_stalled) continue;
        last = node;
        any |= tow_net_turn(node->net, 0);
        tow_net_check(node->net);
        tow_data_check(node->data);
    }
    if (!any && last != NULL) tow_net_turn(last->net, TOW_NS_PER_MS / 5);
    return any;
}

#define TEST_UNTIL(fixture, condition)                            \
    do {                                                          \
        const int64_t start_ns_ = tow_net_clock_ns();             \
        while (!(condition)) {                                    \
            if (tow_net_clock_ns() - start_ns_ > TEST_TIMEOUT_NS) \
                fail_msg("stuck waiting for %s", #condition);     \
            test_turn(fixture);                                   \
        }                                                         \
    } while (0)

/* Drives the nodes until there was no activity for a while. */
static inline void test_settle(test_fixture_t *fixture)
{
    for (int idle_count = 0; idle_count < 20;)
        idle_count = test_turn(fixture) ? 0 : idle_count + 1;
}

/* -- Lanes ---------------------------------------------------------------- */

typedef struct test_lane {
    tow_lane_t *lane;
    int down_count;
    int writable_count;
    int closed_count;
    char cause[256];
} test_lane_t;

static inline void test_lane_down(void *context, tow_lane_t *lane,
                                  tow_status_t cause)
{
    test_lane_t *test = context;
    assert_ptr_equal(lane, test->lane);
    assert_int_equal(test->closed_count, 0);
    test->down_count++;
    snprintf(test->cause, sizeof(test->cause), "%s", tow_status_message(cause));
}

static inline void test_lane_writable(void *context, tow_lane_t *lane)
{
    (void)lane;
    ((test_lane_t *)context)->writable_count++;
}

static inline void test_lane_closed(void *context)
{
    ((test_lane_t *)context)->closed_count++;
}

static inline void test_lane_open_at(test_lane_t *test, test_node_t *from,
                                     const void *address, size_t size)
{
    *test = (test_lane_t){0};
    const tow_lane_options_t options = {.address = address,
                                        .address_size = size,
                                        .peer_name = "peer",
                                        .down = test_lane_down,
                                        .writable = test_lane_writable,
                                        .context = test};
    tow_status_t status = tow_env_lane_open(from->env, &options, &test->lane);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline void test_lane_open(test_lane_t *test, test_node_t *from,
                                  test_node_t *to)
{
    const void *address;
    size_t size;
    tow_env_lane_address(to->env, &address, &size);
    test_lane_open_at(test, from, address, size);
}

static inline void test_lane_close(test_fixture_t *fixture, test_lane_t *test,
                                   tow_lane_close_mode_t mode)
{
    tow_lane_close(test->lane, mode,
                   (tow_closed_t){.run = test_lane_closed, .context = test});
    assert_int_equal(test->closed_count, 0);
    TEST_UNTIL(fixture, test->closed_count == 1);
}

static inline tow_data_lane_t *test_data_lane(const test_lane_t *test)
{
    return TOW_CONTAINER_OF(test->lane, tow_data_lane_t, lane);
}

/* -- Regions and writes --------------------------------------------------- */

typedef struct test_region {
    tow_region_t *region;
    uint8_t *bytes; /* owned */
    size_t size;
    int arrived_count;
    int closed_count;
    tow_arrival_t last;
} test_region_t;

static inline void test_region_arrived(void *context, tow_region_t *region,
                                       const tow_arrival_t *arrival)
{
    test_region_t *test = context;
    assert_ptr_equal(region, test->region);
    assert_int_equal(test->closed_count, 0);
    test->arrived_count++;
    test->last = *arrival;
}

static inline void test_region_open(test_region_t *test, test_node_t *node,
                                    size_t size)
{
    *test = (test_region_t){.bytes = calloc(1, size), .size = size};
    const tow_region_options_t options = {.bytes = test->bytes,
                                          .size = size,
                                          .arrived = test_region_arrived,
                                          .context = test};
    assert_null(tow_env_region_open(node->env, &options, &test->region));
}

typedef struct test_write {
    tow_write_t write;
    int done_count;
    int order; /* how many were done before it */
    tow_code_t code;
    char cause[256];
} test_write_t;

static int test_done_count;

static inline void test_write_done(tow_write_t *write, tow_status_t take_status)
{
    test_write_t *test = TOW_CONTAINER_OF(write, test_write_t, write);
    test->done_count++;
    test->order = test_done_count++;
    test->code = tow_status_code(take_status);
    snprintf(test->cause, sizeof(test->cause), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
}

typedef struct test_plan {
    const void *bytes;
    size_t size;
    tow_region_key_t key;
    uint64_t offset;
    tow_write_check_t check;
} test_plan_t;

static inline tow_send_result_t test_write_start(test_write_t *test,
                                                 test_lane_t *lane,
                                                 const test_plan_t *plan)
{
    *test = (test_write_t){.write = {.bytes = plan->bytes,
                                     .size = plan->size,
                                     .key = plan->key,
                                     .offset = plan->offset,
                                     .tag = 7,
                                     .check = plan->check,
                                     .done = test_write_done}};
    return tow_lane_write(lane->lane, &test->write);
}

/* Bytes that encode their position. */
static inline uint8_t *test_pattern(size_t size)
{
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + (i >> 16));
    return bytes;
}

/* -- All transports ------------------------------------------------------- */

static inline int test_use_shm(void **state)
{
    (void)state;
    unsetenv(TEST_TRUNKS);
    unsetenv("TOW_REACH");
    unsetenv("TOW_DATA_TRUSTED");
    unsetenv("UCX_TLS");
    setenv("TOW_DATA_STREAMS", "0", 1); /* Whatever this machine has. */
    return 0;
}

static inline int test_use_rings(void **state)
{
    (void)test_use_shm(state);
    setenv("TOW_REACH", "off", 1);
    return 0;
}

static inline int test_use_tcp(void **state)
{
    (void)test_use_shm(state);
    setenv("TOW_DATA_TRUSTED", "lo", 1);
    setenv("UCX_TLS", "tcp,self", 1);
    return 0;
}

static inline int test_use_unix_trunks(void **state)
{
    (void)test_use_shm(state);
    setenv(TEST_TRUNKS, "unix", 1);
    return 0;
}

static inline int test_use_tls_trunks(void **state)
{
    (void)test_use_shm(state);
    setenv(TEST_TRUNKS, "tls", 1);
    test_make_tls(); /* Before the fixture counts allocations. */
    return 0;
}

static inline int test_use_subflows(void **state)
{
    (void)test_use_tls_trunks(state);
    setenv("TOW_DATA_STREAMS", "2", 1);
    return 0;
}

/* clang-format off */
#define TEST_ON_TRUNKS(test)                                          \
    {#test "_on_unix_trunks", test, test_use_unix_trunks, NULL, NULL}, \
    {#test "_on_tls_trunks", test, test_use_tls_trunks, NULL, NULL},   \
    {#test "_on_subflows", test, test_use_subflows, NULL, NULL}

#define TEST_ON_UCX(test)                                  \
    {#test "_on_shm", test, test_use_shm, NULL, NULL},     \
    {#test "_on_rings", test, test_use_rings, NULL, NULL}, \
    {#test "_on_tcp", test, test_use_tcp, NULL, NULL}

#define TEST_ON_ALL(test) TEST_ON_UCX(test), TEST_ON_TRUNKS(test)
/* clang-format on */

#endif /* TOW_ENV_NET_DATA_TESTING_IMPL_H_ */
