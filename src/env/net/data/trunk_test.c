/* What only trunks have: peers that cannot be dialled, that nobody answers for,
 * or that are not who they were; and how processes of one host recognise each
 * other. */
#include "env/net/data/data_testing_impl.h"
#include "env/net/data/trunk_impl.h"

#include <sys/socket.h>
#include <sys/un.h>

static void set_address(const tow_data_address_t *address, uint8_t *bytes,
                        size_t *out_size)
{
    assert_true(tow_data_address_size(address) <= TOW_DATA_ADDRESS_SIZE_MAX);
    *out_size = tow_data_address_pack(address, bytes);
}

static tow_data_address_t address_of(const test_node_t *node)
{
    tow_data_address_t address;
    assert_null(tow_data_address_parse(node->data->address,
                                       node->data->address_size, &address));
    return address;
}

static void expect_down(test_fixture_t *fixture, test_lane_t *lane,
                        const char *part)
{
    TEST_UNTIL(fixture, lane->down_count == 1);
    if (strstr(lane->cause, part) == NULL)
        fail_msg("\"%s\" instead of \"%s\"", lane->cause, part);
    assert_non_null(strstr(lane->cause, "lane from node to node: "));
    test_lane_close(fixture, lane, TOW_LANE_CLOSE_FORCE);
}

static void write_once(test_fixture_t *fixture, test_lane_t *lane,
                       test_node_t *to)
{
    test_region_t region;
    test_write_t write;
    uint8_t *bytes = test_pattern(TEST_MIB);
    test_region_open(&region, to, TEST_MIB);
    const test_plan_t plan = {.bytes = bytes,
                              .size = TEST_MIB,
                              .key = tow_region_key(region.region),
                              .check = TOW_WRITE_CRC32C};
    assert_int_equal(test_write_start(&write, lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    assert_memory_equal(region.bytes, bytes, TEST_MIB);
    tow_region_close(region.region, (tow_closed_t){0});
    test_settle(fixture);
    free(region.bytes);
    free(bytes);
}

/* Node 1 does not listen, as a client. */
static test_fixture_t *create_with_client(void)
{
    test_fixture_t *fixture = test_fixture_create(1);
    char *kind = strdup(getenv(TEST_TRUNKS));
    unsetenv(TEST_TRUNKS);
    test_add_node(fixture, 1)->data->beacon.segment = -1;
    setenv(TEST_TRUNKS, kind, 1);
    free(kind);
    return fixture;
}

static void prepare(test_fixture_t *fixture)
{
    const void *address;
    size_t size;
    tow_env_lane_address(fixture->nodes[0].env, &address, &size);
    tow_env_lane_prepare(fixture->nodes[1].env, address, size);
}

static void lane_to_a_peer_that_dials_waits_for_it(void **state)
{
    (void)state;
    test_fixture_t *fixture = create_with_client();
    test_lane_t lane;
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    prepare(fixture);
    write_once(fixture, &lane, &fixture->nodes[1]);
    /* And the other direction takes the same trunk. */
    test_lane_t back;
    test_lane_open(&back, &fixture->nodes[1], &fixture->nodes[0]);
    write_once(fixture, &back, &fixture->nodes[0]);
    assert_int_equal(fixture->nodes[0].data->trunk_count, 1);
    assert_int_equal(fixture->nodes[1].data->trunk_count, 1);
    test_fixture_destroy(fixture);
}

static void prepared_peer_is_dialled_once(void **state)
{
    (void)state;
    test_fixture_t *fixture = create_with_client();
    test_lane_t lane;
    prepare(fixture);
    prepare(fixture);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    write_once(fixture, &lane, &fixture->nodes[1]);
    prepare(fixture);
    test_settle(fixture);
    assert_int_equal(fixture->nodes[1].data->trunk_count, 1);
    test_fixture_destroy(fixture);
}

/* As if it had carried no lane for long. */
static void propose_end(const test_node_t *node)
{
    tow_data_trunk_t *trunk =
        TOW_CONTAINER_OF(node->data->trunks.next, tow_data_trunk_t, all);
    assert_true(trunk->is_dialled && trunk->state == TRUNK_UP);
    trunk->timer.fire(&trunk->timer);
}

static void idle_trunk_is_ended_by_the_listener(void **state)
{
    (void)state;
    test_fixture_t *fixture = create_with_client();
    test_lane_t lane;
    test_lane_open(&lane, &fixture->nodes[1], &fixture->nodes[0]);
    write_once(fixture, &lane, &fixture->nodes[0]);
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_GRACEFUL);
    propose_end(&fixture->nodes[1]);
    TEST_UNTIL(fixture, fixture->nodes[0].data->trunk_count == 0 &&
                            fixture->nodes[1].data->trunk_count == 0);
    test_fixture_destroy(fixture);
}

static void idle_trunk_stays_for_a_lane_that_the_listener_has_opened(
    void **state)
{
    (void)state;
    test_fixture_t *fixture = create_with_client();
    test_lane_t lane;
    prepare(fixture);
    TEST_UNTIL(fixture, fixture->nodes[0].data->trunk_count == 1);
    test_settle(fixture);
    /* Its HELLO and the proposal cross. */
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    propose_end(&fixture->nodes[1]);
    write_once(fixture, &lane, &fixture->nodes[1]);
    assert_int_equal(lane.down_count, 0);
    test_fixture_destroy(fixture);
}

static void lane_to_a_peer_that_does_not_dial_fails(void **state)
{
    (void)state;
    test_fixture_t *fixture = create_with_client();
    test_lane_t lane;
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    expect_down(fixture, &lane, "it did not connect to ");
    test_fixture_destroy(fixture);
}

static void lane_to_an_address_without_listener_fails(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    uint8_t bytes[TOW_DATA_ADDRESS_SIZE_MAX];
    size_t size;
    tow_data_address_t address = address_of(&fixture->nodes[1]);
    address.listens = "unix:/tmp/tow-nobody.sock";
    address.listens_size = strlen(address.listens);
    set_address(&address, bytes, &size);
    test_lane_t lane;
    test_lane_open_at(&lane, &fixture->nodes[0], bytes, size);
    expect_down(fixture, &lane, "unix:/tmp/tow-nobody.sock: connecting");
    test_fixture_destroy(fixture);
}

static void lane_to_a_silent_listener_fails(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "/tmp/tow-silent-%d.sock",
             (int)getpid());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(fd, 4), 0);
    char text[128];
    snprintf(text, sizeof(text), "unix:%s", name.sun_path);
    uint8_t bytes[TOW_DATA_ADDRESS_SIZE_MAX];
    size_t size;
    tow_data_address_t address = address_of(&fixture->nodes[1]);
    address.listens = text;
    address.listens_size = strlen(text);
    set_address(&address, bytes, &size);
    test_lane_t lane;
    test_lane_open_at(&lane, &fixture->nodes[0], bytes, size);
    expect_down(fixture, &lane, "no connection to unix:/tmp/tow-silent-");
    close(fd);
    unlink(name.sun_path);
    test_fixture_destroy(fixture);
}

/* The process there has the token, but is another one than announced. */
static void lane_to_another_process_fails(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    uint8_t bytes[TOW_DATA_ADDRESS_SIZE_MAX];
    size_t size;
    tow_data_address_t address = address_of(&fixture->nodes[1]);
    address.node ^= 1;
    set_address(&address, bytes, &size);
    test_lane_t lane;
    test_lane_open_at(&lane, &fixture->nodes[0], bytes, size);
    expect_down(fixture, &lane, "");
    test_fixture_destroy(fixture);
}

static void lane_ends_with_its_peer_and_can_be_opened_again(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    test_lane_t lane;
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    write_once(fixture, &lane, &fixture->nodes[1]);
    test_remove_node(fixture, 1);
    expect_down(fixture, &lane, "");
    test_add_node(fixture, 1);
    test_lane_open(&lane, &fixture->nodes[0], &fixture->nodes[1]);
    write_once(fixture, &lane, &fixture->nodes[1]);
    test_fixture_destroy(fixture);
}

/* -- Processes of one host ------------------------------------------------- */

static void node_sees_another_of_its_host(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(2);
    const tow_data_t *data = fixture->nodes[0].data;
    const tow_data_address_t good = address_of(&fixture->nodes[1]);
    assert_true(tow_data_is_on_this_host(data, &good));
    tow_data_address_t bad = good;
    bad.proof ^= 1; /* Another number is in that segment. */
    assert_false(tow_data_is_on_this_host(data, &bad));
    bad = good;
    bad.segment = -1;
    assert_false(tow_data_is_on_this_host(data, &bad));
    bad = good;
    bad.node ^= 1; /* No socket has that name: another network namespace. */
    assert_false(tow_data_is_on_this_host(data, &bad));
    test_remove_node(fixture, 1);
    assert_false(tow_data_is_on_this_host(data, &good));
    test_fixture_destroy(fixture);
}

/* Segments of others are neither mapped nor compared. */
static void segment_that_is_no_beacon_is_not_visible(void **state)
{
    (void)state;
    const tow_data_address_t absent = {.segment = 1 << 30, .proof = 1};
    assert_false(tow_data_beacon_is_visible(&absent));
    tow_data_ring_t *ring;
    assert_null(tow_data_ring_create(&ring));
    const tow_data_address_t other = {.segment = tow_data_ring_id(ring)};
    assert_false(tow_data_beacon_is_visible(&other));
    tow_data_ring_destroy(ring);
}

static const struct CMUnitTest tests[] = {
    TEST_ON_TRUNKS(lane_to_a_peer_that_dials_waits_for_it),
    TEST_ON_TRUNKS(prepared_peer_is_dialled_once),
    TEST_ON_TRUNKS(idle_trunk_is_ended_by_the_listener),
    TEST_ON_TRUNKS(idle_trunk_stays_for_a_lane_that_the_listener_has_opened),
    TEST_ON_TRUNKS(lane_to_an_address_without_listener_fails),
    TEST_ON_TRUNKS(lane_to_another_process_fails),
    TEST_ON_TRUNKS(lane_ends_with_its_peer_and_can_be_opened_again),
    {"lane_to_a_peer_that_does_not_dial_fails",
     lane_to_a_peer_that_does_not_dial_fails, test_use_unix_trunks, NULL, NULL},
    {"lane_to_a_silent_listener_fails", lane_to_a_silent_listener_fails,
     test_use_unix_trunks, NULL, NULL},
    {"node_sees_another_of_its_host", node_sees_another_of_its_host,
     test_use_shm, NULL, NULL},
    {"segment_that_is_no_beacon_is_not_visible",
     segment_that_is_no_beacon_is_not_visible, test_use_shm, NULL, NULL},
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
