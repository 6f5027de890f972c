/* Subflows: large writes over the extra connections of a trunk, and what can
 * happen to these while threads use them. */
#include "env/net/data/data_testing_impl.h"

#include <sys/socket.h>

#include "env/net/data/trunk_impl.h"

#define SUBFLOW_COUNT 2

/* Two nodes, and a lane whose trunk has its subflows. */
typedef struct pair {
    test_fixture_t *fixture;
    test_node_t *from;
    test_node_t *to;
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes; /* owned */
    size_t size;
} pair_t;

static tow_data_trunk_t *trunk_of(const pair_t *pair)
{
    return test_data_lane(&pair->lane)->port->trunk;
}

static subflow_t *subflow_at(tow_data_trunk_t *trunk, bool sends, size_t index)
{
    const tow_list_t *head = &trunk->subflows;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        subflow_t *subflow = TOW_CONTAINER_OF(at, subflow_t, list);
        if (subflow->sends == sends && index-- == 0) return subflow;
    }
    fail_msg("no such subflow");
    return NULL;
}

/* The other end of the pair's trunk. */
static tow_data_trunk_t *far_trunk(const pair_t *pair)
{
    const tow_list_t *head = &pair->to->data->trunks;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        tow_data_trunk_t *trunk = TOW_CONTAINER_OF(at, tow_data_trunk_t, all);
        if (trunk->number == trunk_of(pair)->number) return trunk;
    }
    fail_msg("the peer has no such trunk");
    return NULL;
}

static void start_part(pair_t *pair, test_write_t *write, size_t offset,
                       size_t size, tow_write_check_t check)
{
    const test_plan_t plan = {.bytes = pair->bytes + offset,
                              .size = size,
                              .offset = offset,
                              .key = tow_region_key(pair->region.region),
                              .check = check};
    if (test_write_start(write, &pair->lane, &plan) != TOW_SEND_OK)
        fail_msg("the lane is down: %s", pair->lane.cause);
}

static void start(pair_t *pair, test_write_t *write, tow_write_check_t check)
{
    start_part(pair, write, 0, pair->size, check);
}

static void write_once(pair_t *pair)
{
    test_write_t write;
    memset(pair->region.bytes, 0, pair->size);
    start(pair, &write, TOW_WRITE_CRC32C);
    TEST_UNTIL(pair->fixture, write.done_count == 1);
    if (write.code != TOW_CODE_OK) fail_msg("%s", write.cause);
    assert_memory_equal(pair->region.bytes, pair->bytes, pair->size);
}

static void open_lane(pair_t *pair)
{
    test_lane_open(&pair->lane, pair->from, pair->to);
    const tow_data_lane_t *lane = test_data_lane(&pair->lane);
    TEST_UNTIL(pair->fixture, !tow_timer_is_armed(&lane->opening));
    write_once(pair); /* Opens the subflows. */
    TEST_UNTIL(pair->fixture, trunk_of(pair)->sending_count == SUBFLOW_COUNT);
}

/* Its period is a multiple neither of fragments nor of TLS records. Quick, even
 * with a sanitizer: no deadline of a net passes meanwhile. */
static uint8_t *make_bytes(size_t size)
{
    const size_t period = 1000003;
    uint8_t *pattern = test_pattern(period);
    uint8_t *bytes = malloc(size);
    for (size_t at = 0; at < size; at += period)
        memcpy(bytes + at, pattern, size - at < period ? size - at : period);
    free(pattern);
    return bytes;
}

static void open_pair_in(pair_t *pair, test_fixture_t *fixture, size_t from,
                         size_t size)
{
    *pair = (pair_t){.fixture = fixture,
                     .from = &fixture->nodes[from],
                     .to = &fixture->nodes[1 - from],
                     .bytes = make_bytes(size),
                     .size = size};
    test_region_open(&pair->region, pair->to, size);
    open_lane(pair);
}

static void open_pair(pair_t *pair, size_t size)
{
    open_pair_in(pair, test_fixture_create(2), 0, size);
}

static void close_pair(pair_t *pair)
{
    test_fixture_destroy(pair->fixture);
    free(pair->region.bytes);
    free(pair->bytes);
}

static void count_closed(void *context)
{
    ((test_region_t *)context)->closed_count++;
}

/* After this, sanitizers see whether a thread still writes there. */
static void close_region(pair_t *pair)
{
    tow_region_close(pair->region.region,
                     (tow_closed_t){count_closed, &pair->region});
    TEST_UNTIL(pair->fixture, pair->region.closed_count == 1);
    memset(pair->region.bytes, 1, pair->size);
    free(pair->region.bytes);
}

/* Threads may still be receiving what was sent on a former lane, so it has a
 * region of its own. */
static void open_another_lane(pair_t *pair)
{
    close_region(pair);
    test_region_open(&pair->region, pair->to, pair->size);
    open_lane(pair);
}

/* After a trunk has ended. */
static void open_again(pair_t *pair)
{
    test_lane_close(pair->fixture, &pair->lane, TOW_LANE_CLOSE_FORCE);
    open_another_lane(pair);
    write_once(pair);
}

/* -- Writes ---------------------------------------------------------------- */

static void large_writes_are_striped(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 5 * TEST_MIB + 12345);
    const uint64_t before = pair.to->data->striped_count;
    write_once(&pair);
    assert_int_equal(pair.to->data->striped_count, before + 1);
    assert_int_equal(pair.region.last.size, pair.size);
    assert_int_equal(pair.region.last.tag, 7);
    close_pair(&pair);
}

static void small_writes_are_not_striped(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, TEST_MIB);
    const uint64_t before = pair.to->data->striped_count;
    pair.size = TEST_MIB - 1;
    write_once(&pair);
    assert_int_equal(pair.to->data->striped_count, before);
    close_pair(&pair);
}

/* The listener of a trunk asks its dialler for subflows. */
static void both_sides_of_a_trunk_send(void **state)
{
    (void)state;
    pair_t there, back;
    test_fixture_t *fixture = test_fixture_create(2);
    open_pair_in(&there, fixture, 0, 3 * TEST_MIB);
    open_pair_in(&back, fixture, 1, 3 * TEST_MIB);
    assert_ptr_equal(trunk_of(&back), far_trunk(&there));
    assert_int_equal(trunk_of(&back)->receiving_count, SUBFLOW_COUNT);
    for (int i = 0; i < 4; i++) {
        write_once(&there);
        write_once(&back);
    }
    assert_true(fixture->nodes[0].data->striped_count >= 4);
    assert_true(fixture->nodes[1].data->striped_count >= 4);
    test_fixture_destroy(fixture);
    free(there.region.bytes);
    free(back.region.bytes);
    free(there.bytes);
    free(back.bytes);
}

static void many_writes_at_once_all_arrive(void **state)
{
    (void)state;
    enum {
        COUNT = 3 * TOW_NET_LANE_STRIPED_COUNT_MAX
    };
    const size_t size = 2 * TEST_MIB + 1;
    pair_t pair;
    test_write_t writes[COUNT];
    open_pair(&pair, COUNT * size);
    const int before = pair.region.arrived_count;
    memset(pair.region.bytes, 0, pair.size);
    for (size_t i = 0; i < COUNT; i++)
        start_part(&pair, &writes[i], i * size, size,
                   i % 2 ? TOW_WRITE_CRC32C : TOW_WRITE_UNCHECKED);
    for (size_t i = 0; i < COUNT; i++) {
        TEST_UNTIL(pair.fixture, writes[i].done_count == 1);
        assert_int_equal(writes[i].code, TOW_CODE_OK);
    }
    assert_int_equal(pair.region.arrived_count, before + COUNT);
    assert_memory_equal(pair.region.bytes, pair.bytes, pair.size);
    close_pair(&pair);
}

static void damaged_write_is_sent_again(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 3 * TEST_MIB);
    const int before = pair.region.arrived_count;
    tow_net_data_damage(pair.to->net, 1);
    write_once(&pair);
    assert_int_equal(pair.region.arrived_count, before + 1);
    assert_int_equal(pair.to->data->damage_count, 0);
    close_pair(&pair);
}

static void expect_refused(pair_t *pair, const test_plan_t *plan,
                           tow_code_t code)
{
    test_write_t write;
    assert_int_equal(test_write_start(&write, &pair->lane, plan), TOW_SEND_OK);
    TEST_UNTIL(pair->fixture, write.done_count == 1);
    assert_int_equal(write.code, code);
}

static void write_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    test_plan_t plan = {.bytes = pair.bytes,
                        .size = pair.size,
                        .offset = 1,
                        .key = tow_region_key(pair.region.region)};
    expect_refused(&pair, &plan, TOW_OUT_OF_RANGE);
    plan.offset = 0;
    plan.key.secret ^= 1;
    expect_refused(&pair, &plan, TOW_PERMISSION_DENIED);
    plan.key.id += 100;
    expect_refused(&pair, &plan, TOW_NOT_FOUND);
    write_once(&pair);
    close_pair(&pair);
}

/* -- Closing in the middle of a write --------------------------------------- */

static bool is_arriving(const pair_t *pair)
{
    const tow_data_t *data = pair->to->data;
    const tow_list_t *head = &data->inbounds;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const tow_data_inbound_t *inbound =
            TOW_CONTAINER_OF(at, const tow_data_inbound_t, all);
        if (inbound->arriving_count > 0) return true;
    }
    return false;
}

static void region_closes_during_a_write(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    open_pair(&pair, 64 * TEST_MIB);
    const int before = pair.region.arrived_count;
    start(&pair, &write, TOW_WRITE_UNCHECKED);
    TEST_UNTIL(pair.fixture, is_arriving(&pair));
    close_region(&pair);
    TEST_UNTIL(pair.fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_NOT_FOUND);
    assert_int_equal(pair.region.arrived_count, before);
    test_region_open(&pair.region, pair.to, pair.size);
    write_once(&pair);
    close_pair(&pair);
}

static bool all_wait(tow_data_trunk_t *trunk)
{
    for (size_t i = 0; i < SUBFLOW_COUNT; i++)
        if (subflow_at(trunk, true, i)->phase != SUBFLOW_WAITING) return false;
    return true;
}

/* A peer that stalls keeps neither a thread nor the memory of a user. */
static void lane_to_a_stalled_peer_closes_by_force(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    open_pair(&pair, 64 * TEST_MIB);
    pair.to->is_stalled = true;
    start(&pair, &write, TOW_WRITE_UNCHECKED);
    TEST_UNTIL(pair.fixture, all_wait(trunk_of(&pair)));
    test_lane_close(pair.fixture, &pair.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(write.done_count, 1);
    assert_int_equal(write.code, TOW_UNAVAILABLE);
    memset(pair.bytes, 1, pair.size); /* It is ours again. */
    pair.to->is_stalled = false;
    open_another_lane(&pair); /* On the same trunk, which is still in step. */
    write_once(&pair);
    assert_int_equal(pair.from->data->trunk_count, 1);
    close_pair(&pair);
}

static void lane_closes_by_force_during_a_write(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 32 * TEST_MIB);
    for (int i = 0; i < 8; i++) {
        test_write_t write;
        start(&pair, &write, TOW_WRITE_UNCHECKED);
        TEST_UNTIL(pair.fixture, is_arriving(&pair) || write.done_count == 1);
        for (int turn = 0; turn < i; turn++)
            test_turn(pair.fixture);
        test_lane_close(pair.fixture, &pair.lane, TOW_LANE_CLOSE_FORCE);
        assert_int_equal(write.done_count, 1);
        open_another_lane(&pair);
    }
    close_pair(&pair);
}

static void stalled_peer_does_not_delay_others(void **state)
{
    (void)state;
    pair_t stalled, other;
    test_write_t writes[4];
    test_fixture_t *fixture = test_fixture_create(3);
    open_pair_in(&stalled, fixture, 0, 64 * TEST_MIB);
    other = (pair_t){.fixture = fixture,
                     .from = &fixture->nodes[0],
                     .to = &fixture->nodes[2],
                     .bytes = make_bytes(4 * TEST_MIB),
                     .size = 4 * TEST_MIB};
    stalled.to->is_stalled = true;
    for (int i = 0; i < 4; i++)
        start_part(&stalled, &writes[i], (size_t)i * 16 * TEST_MIB,
                   16 * TEST_MIB, TOW_WRITE_UNCHECKED);
    test_region_open(&other.region, other.to, other.size);
    open_lane(&other);
    for (int i = 0; i < 4; i++)
        write_once(&other);
    assert_int_equal(writes[0].done_count, 0);
    stalled.to->is_stalled = false;
    for (int i = 0; i < 4; i++)
        TEST_UNTIL(fixture, writes[i].done_count == 1);
    test_fixture_destroy(fixture);
    free(stalled.region.bytes);
    free(other.region.bytes);
    free(stalled.bytes);
    free(other.bytes);
}

static void net_is_destroyed_during_a_write(void **state)
{
    (void)state;
    for (size_t victim = 0; victim < 2; victim++) {
        pair_t pair;
        test_write_t write;
        open_pair(&pair, 32 * TEST_MIB);
        start(&pair, &write, TOW_WRITE_UNCHECKED);
        TEST_UNTIL(pair.fixture, is_arriving(&pair));
        test_remove_node(pair.fixture, victim);
        if (victim == 1) TEST_UNTIL(pair.fixture, write.done_count == 1);
        assert_int_equal(write.done_count, 1);
        assert_int_equal(write.code, TOW_UNAVAILABLE);
        close_pair(&pair);
    }
}

/* -- Connections that break -------------------------------------------------- */

static void expect_down(pair_t *pair, test_write_t *write)
{
    TEST_UNTIL(pair->fixture, pair->lane.down_count == 1);
    assert_non_null(strstr(pair->lane.cause, "tls:127.0.0.1:"));
    TEST_UNTIL(pair->fixture, write->done_count == 1);
    assert_int_equal(write->code, TOW_UNAVAILABLE);
}

static void trunk_ends_with_a_subflow_of_the_sender(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    open_pair(&pair, 32 * TEST_MIB);
    start(&pair, &write, TOW_WRITE_UNCHECKED);
    TEST_UNTIL(pair.fixture, is_arriving(&pair));
    shutdown(subflow_at(trunk_of(&pair), true, 1)->source.fd, SHUT_RDWR);
    expect_down(&pair, &write);
    open_again(&pair);
    close_pair(&pair);
}

static void trunk_ends_with_a_subflow_of_the_receiver(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    open_pair(&pair, 32 * TEST_MIB);
    start(&pair, &write, TOW_WRITE_UNCHECKED);
    TEST_UNTIL(pair.fixture, is_arriving(&pair));
    shutdown(subflow_at(far_trunk(&pair), false, 0)->source.fd, SHUT_RDWR);
    TEST_UNTIL(pair.fixture, pair.lane.down_count == 1);
    TEST_UNTIL(pair.fixture, write.done_count == 1);
    open_again(&pair);
    close_pair(&pair);
}

static void trunk_ends_with_an_idle_subflow(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    test_settle(pair.fixture);
    shutdown(subflow_at(far_trunk(&pair), false, 0)->source.fd, SHUT_RDWR);
    TEST_UNTIL(pair.fixture, pair.lane.down_count == 1);
    open_again(&pair);
    close_pair(&pair);
}

/* -- Peers that break the protocol ------------------------------------------- */

typedef struct message {
    tow_data_frame_t frame;
    tow_data_fragment_t fragment;
} message_t;

static message_t make_message(const pair_t *pair, uint64_t write)
{
    const tow_region_key_t key = tow_region_key(pair->region.region);
    return (message_t){
        .frame = {.id = TOW_DATA_FRAGMENT,
                  .header_size = sizeof(tow_data_fragment_t),
                  .payload_size = 64},
        .fragment = {.stream = test_data_lane(&pair->lane)->stream,
                     .write = write,
                     .region = key.id,
                     .secret = key.secret,
                     .place = TEST_MIB + 256 * write,
                     .total = 256},
    };
}

/* On the first subflow, unless the peer has ended the trunk. */
static void inject(pair_t *pair, const message_t *message)
{
    uint8_t bytes[sizeof(*message) + 64] = {0};
    memcpy(bytes, message, sizeof(*message));
    TEST_UNTIL(pair->fixture,
               pair->lane.down_count == 1 ||
                   subflow_at(trunk_of(pair), true, 0)->phase == SUBFLOW_IDLE);
    if (pair->lane.down_count == 1) return;
    assert_true(
        tow_data_trunk_inject_striped(trunk_of(pair), bytes, sizeof(bytes)));
}

static void expect_refusal(pair_t *pair, const char *reason)
{
    TEST_UNTIL(pair->fixture, pair->lane.down_count == 1);
    if (strstr(pair->to->log, reason) == NULL)
        fail_msg("no \"%s\" in %s", reason, pair->to->log);
    pair->to->log_size = 0;
    open_again(pair);
}

static void hostile_heads_end_the_trunk(void **state)
{
    (void)state;
    static const char *const reasons[] = {
        "no fragment on a subflow", "a message is too large",
        "header has a wrong size",  "goes beyond its write",
        "a fragment in a ring",     "wrong LAST flag",
    };
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    for (size_t i = 0; i < TOW_COUNT_OF(reasons); i++) {
        message_t message = make_message(&pair, 1);
        switch (i) {
        case 0: message.frame.id = TOW_DATA_CONTROL; break;
        case 1: message.frame.payload_size = UINT32_MAX; break;
        case 2: message.frame.header_size = 1; break;
        case 3: message.fragment.total = 63; break;
        case 4: message.fragment.flags = TOW_DATA_IN_RING; break;
        case 5: message.fragment.flags = TOW_DATA_LAST; break;
        }
        inject(&pair, &message);
        expect_refusal(&pair, reasons[i]);
    }
    close_pair(&pair);
}

static void contradicting_fragments_end_the_trunk(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    message_t message = make_message(&pair, 1);
    inject(&pair, &message);
    message.fragment.place = 1;
    inject(&pair, &message);
    expect_refusal(&pair, "contradict each other");
    close_pair(&pair);
}

static void too_many_writes_end_the_trunk(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    for (uint64_t i = 0; i <= TOW_NET_LANE_STRIPED_COUNT_MAX; i++) {
        const message_t message = make_message(&pair, 1 + i);
        inject(&pair, &message);
    }
    expect_refusal(&pair, "too many striped writes");
    close_pair(&pair);
}

/* The same fragment again and again: the write completes, without the bytes
 * that never came, and the next fragment begins another. */
static void repeated_fragments_are_harmless(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    for (int i = 0; i < 10; i++) {
        const message_t message = make_message(&pair, 1);
        inject(&pair, &message);
    }
    pair.size = TEST_MIB; /* Not where those go. */
    write_once(&pair);
    assert_int_equal(pair.lane.down_count, 0);
    close_pair(&pair);
}

static void fragments_of_unknown_lanes_are_ignored(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    message_t message = make_message(&pair, 1);
    message.fragment.stream ^= 1;
    inject(&pair, &message);
    write_once(&pair);
    assert_int_equal(pair.lane.down_count, 0);
    close_pair(&pair);
}

/* A half fragment, and then nothing: the peer closes what it likes. */
static void half_a_fragment_keeps_nothing(void **state)
{
    (void)state;
    pair_t pair;
    open_pair(&pair, 2 * TEST_MIB);
    message_t message = make_message(&pair, 1);
    message.frame.payload_size = 128;
    inject(&pair, &message);
    TEST_UNTIL(pair.fixture, is_arriving(&pair));
    close_region(&pair);
    pair.region.bytes = NULL;
    close_pair(&pair);
}

/* -- Opening ----------------------------------------------------------------- */

/* The trunk goes on without subflows. */
static void subflow_of_an_unknown_trunk_is_refused(void **state)
{
    (void)state;
    pair_t pair = {.fixture = test_fixture_create(2),
                   .bytes = make_bytes(2 * TEST_MIB),
                   .size = 2 * TEST_MIB};
    pair.from = &pair.fixture->nodes[0];
    pair.to = &pair.fixture->nodes[1];
    test_region_open(&pair.region, pair.to, pair.size);
    test_lane_open(&pair.lane, pair.from, pair.to);
    const tow_data_lane_t *lane = test_data_lane(&pair.lane);
    TEST_UNTIL(pair.fixture, !tow_timer_is_armed(&lane->opening));
    trunk_of(&pair)->number ^= 1;
    write_once(&pair);
    TEST_UNTIL(pair.fixture, pair.from->data->trunk_count == 1 &&
                                 pair.to->data->trunk_count == 1);
    assert_non_null(strstr(pair.to->log, "a subflow of an unknown trunk"));
    write_once(&pair);
    assert_int_equal(trunk_of(&pair)->sending_count, 0);
    assert_int_equal(pair.lane.down_count, 0);
    close_pair(&pair);
}

static void side_without_subflows_gets_none(void **state)
{
    (void)state;
    pair_t pair = {.fixture = test_fixture_create(1),
                   .bytes = make_bytes(2 * TEST_MIB),
                   .size = 2 * TEST_MIB};
    setenv("TOW_DATA_STREAMS", "0", 1);
    pair.to = test_add_node(pair.fixture, 1);
    pair.from = &pair.fixture->nodes[0];
    test_region_open(&pair.region, pair.to, pair.size);
    test_lane_open(&pair.lane, pair.from, pair.to);
    const tow_data_lane_t *lane = test_data_lane(&pair.lane);
    TEST_UNTIL(pair.fixture, !tow_timer_is_armed(&lane->opening));
    write_once(&pair);
    write_once(&pair);
    assert_int_equal(pair.to->data->striped_count, 0);
    assert_int_equal(pair.to->data->trunk_count, 1);
    close_pair(&pair);
}

static void number_of_subflows_is_checked(void **state)
{
    (void)state;
    uint32_t count;
    assert_null(tow_data_count_subflows("3", &count));
    assert_int_equal(count, 3);
    assert_null(tow_data_count_subflows(NULL, &count)); /* TOW_DATA_STREAMS */
    assert_int_equal(count, SUBFLOW_COUNT);
    assert_null(tow_data_count_subflows("", &count)); /* by cores */
    assert_true(count <= TOW_NET_SUBFLOW_DEFAULT_MAX);
    static const char *const bad[] = {"17", "-1", "2x", "two", " 2"};
    for (size_t i = 0; i < TOW_COUNT_OF(bad); i++) {
        tow_status_t status = tow_data_count_subflows(bad[i], &count);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
    }
}

#define TEST(test) cmocka_unit_test_setup(test, test_use_subflows)

static const struct CMUnitTest tests[] = {
    TEST(large_writes_are_striped),
    TEST(small_writes_are_not_striped),
    TEST(both_sides_of_a_trunk_send),
    TEST(many_writes_at_once_all_arrive),
    TEST(damaged_write_is_sent_again),
    TEST(write_that_does_not_fit_is_refused),
    TEST(region_closes_during_a_write),
    TEST(lane_to_a_stalled_peer_closes_by_force),
    TEST(lane_closes_by_force_during_a_write),
    TEST(stalled_peer_does_not_delay_others),
    TEST(net_is_destroyed_during_a_write),
    TEST(trunk_ends_with_a_subflow_of_the_sender),
    TEST(trunk_ends_with_a_subflow_of_the_receiver),
    TEST(trunk_ends_with_an_idle_subflow),
    TEST(hostile_heads_end_the_trunk),
    TEST(contradicting_fragments_end_the_trunk),
    TEST(too_many_writes_end_the_trunk),
    TEST(repeated_fragments_are_harmless),
    TEST(fragments_of_unknown_lanes_are_ignored),
    TEST(half_a_fragment_keeps_nothing),
    TEST(subflow_of_an_unknown_trunk_is_refused),
    TEST(side_without_subflows_gets_none),
    TEST(number_of_subflows_is_checked),
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
