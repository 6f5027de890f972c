/* Large writes that their target reads out of the writer's memory, and the
 * claims of a writer that it must not trust. */
#include "env/net/data/data_testing_impl.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define BULK_BYTES (32 * TEST_MIB)

typedef struct pair {
    test_fixture_t *fixture;
    test_node_t *from;
    test_node_t *to;
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes; /* owned */
} pair_t;

/* Some sandboxes forbid processes to read even their own memory this way. */
static void skip_unless_readable(void)
{
    const tow_data_cross_read_t self = {.pid = getpid(), .pidfd = -1};
    uint64_t here = 5, there = 0;
    if (tow_data_cross_read_bytes(&self, &there, (uintptr_t)&here,
                                  sizeof(here)) == 0)
        return;
    printf("# skipped: the kernel refuses process_vm_readv\n");
    skip();
}

static void pair_open(pair_t *pair, size_t size)
{
    skip_unless_readable();
    *pair = (pair_t){.fixture = test_fixture_create(2)};
    pair->from = &pair->fixture->nodes[0];
    pair->to = &pair->fixture->nodes[1];
    pair->bytes = test_pattern(size);
    test_region_open(&pair->region, pair->to, size);
    test_lane_open(&pair->lane, pair->from, pair->to);
}

static void pair_close(pair_t *pair)
{
    test_fixture_destroy(pair->fixture);
    free(pair->region.bytes);
    free(pair->bytes);
}

static test_plan_t pair_plan(const pair_t *pair, size_t size)
{
    return (test_plan_t){.bytes = pair->bytes,
                         .size = size,
                         .key = tow_region_key(pair->region.region)};
}

static void pair_write(pair_t *pair, test_write_t *write, size_t size)
{
    const test_plan_t plan = pair_plan(pair, size);
    assert_int_equal(test_write_start(write, &pair->lane, &plan), TOW_SEND_OK);
}

static tow_data_inbound_t *pair_inbound(const pair_t *pair)
{
    assert_int_equal(pair->to->data->inbound_count, 1);
    return TOW_CONTAINER_OF(pair->to->data->inbounds.next, tow_data_inbound_t,
                            all);
}

static void await_greeting(pair_t *pair)
{
    TEST_UNTIL(pair->fixture, test_data_lane(&pair->lane)->cross_read !=
                                  TOW_DATA_CROSS_READ_REQUESTED);
}

/* Sizes around every bound, at unaligned places. */
static void large_writes_are_pulled_whole(void **state)
{
    (void)state;
    static const size_t sizes[] = {TOW_NET_PULL_BYTES_MIN,
                                   TOW_NET_PULL_AT_ONCE_BYTES,
                                   TOW_NET_PULL_AT_ONCE_BYTES + 1,
                                   TOW_NET_PULL_CHUNK_BYTES - 1,
                                   TOW_NET_PULL_CHUNK_BYTES,
                                   5 * TEST_MIB + 123,
                                   BULK_BYTES - 1000};
    pair_t pair;
    pair_open(&pair, BULK_BYTES);
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        test_write_t write;
        test_plan_t plan = pair_plan(&pair, sizes[i]);
        plan.offset = 7 * i;
        memset(pair.region.bytes, 0, BULK_BYTES);
        assert_int_equal(test_write_start(&write, &pair.lane, &plan),
                         TOW_SEND_OK);
        TEST_UNTIL(pair.fixture, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
        assert_int_equal(pair.to->data->pulled_count, i + 1);
        assert_int_equal(pair.region.last.offset, plan.offset);
        assert_int_equal(pair.region.last.size, sizes[i]);
        assert_memory_equal(pair.region.bytes + plan.offset, pair.bytes,
                            sizes[i]);
        assert_int_equal(pair.region.bytes[plan.offset + sizes[i]], 0);
    }
    pair_close(&pair);
}

static void small_and_checked_writes_are_not_pulled(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t small, checked;
    pair_open(&pair, TEST_MIB);
    test_plan_t plan = pair_plan(&pair, TEST_MIB);
    plan.check = TOW_WRITE_CRC32C;
    pair_write(&pair, &small, TOW_NET_PULL_BYTES_MIN - 1);
    assert_int_equal(test_write_start(&checked, &pair.lane, &plan),
                     TOW_SEND_OK);
    TEST_UNTIL(pair.fixture, small.done_count == 1 && checked.done_count == 1);
    assert_int_equal(pair.region.arrived_count, 2);
    assert_int_equal(pair.to->data->pulled_count, 0);
    pair_close(&pair);
}

/* The lane is cut and its bytes change before the target has read them. */
static void withdrawn_bytes_never_arrive(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    pair_open(&pair, BULK_BYTES);
    await_greeting(&pair);
    pair.to->is_stalled = true;
    pair_write(&pair, &write, BULK_BYTES);
    test_settle(pair.fixture);
    assert_int_equal(write.done_count, 0);
    test_lane_close(pair.fixture, &pair.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(write.code, TOW_UNAVAILABLE);
    memset(pair.bytes, 0xee, BULK_BYTES);
    memset(&write, 0xee, sizeof(write));
    pair.to->is_stalled = false;
    TEST_UNTIL(pair.fixture, pair.to->data->inbound_count == 0);
    assert_int_equal(pair.region.arrived_count, 0);
    pair_close(&pair);
}

/* The bytes are all there, but the writer has cleared the guard. */
static void pull_without_its_guard_is_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, TEST_MIB);
    await_greeting(&pair);
    const uint64_t guard = 77;
    const tow_region_key_t key = tow_region_key(pair.region.region);
    tow_data_pull_t pull = {.stream = test_data_lane(&pair.lane)->stream,
                            .write = 78,
                            .region = key.id,
                            .secret = key.secret,
                            .total = TOW_NET_PULL_BYTES_MIN,
                            .bytes = (uintptr_t)pair.bytes,
                            .guard_address = (uintptr_t)&guard};
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.total = TEST_MIB;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.write = 77;
    pull.guard_address = 8; /* Unmapped. */
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.guard_address = (uintptr_t)&guard;
    pull.secret++;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.secret--;
    pull.place = 1;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.place = 0;
    pull.bytes = 4096; /* Unmapped too. */
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    TEST_UNTIL(pair.fixture, pair_inbound(&pair)->pull_count == 0);
    assert_int_equal(pair.region.arrived_count, 0);
    pull.bytes = (uintptr_t)pair.bytes;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    TEST_UNTIL(pair.fixture, pair.region.arrived_count == 1);
    pair_close(&pair);
}

static void too_many_pulls_of_one_lane_are_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, BULK_BYTES);
    await_greeting(&pair);
    const uint64_t guard = 77;
    const tow_region_key_t key = tow_region_key(pair.region.region);
    const tow_data_pull_t pull = {.stream = test_data_lane(&pair.lane)->stream,
                                  .write = 77,
                                  .region = key.id,
                                  .secret = key.secret,
                                  .total = BULK_BYTES,
                                  .bytes = (uintptr_t)pair.bytes,
                                  .guard_address = (uintptr_t)&guard};
    for (uint32_t i = 0; i < 2 * TOW_NET_LANE_PULL_COUNT_MAX; i++)
        tow_data_inbound_pull(pair_inbound(&pair), &pull);
    assert_int_equal(pair_inbound(&pair)->pull_count,
                     TOW_NET_LANE_PULL_COUNT_MAX);
    TEST_UNTIL(pair.fixture, pair_inbound(&pair)->pull_count == 0);
    assert_int_equal(pair.region.arrived_count, TOW_NET_LANE_PULL_COUNT_MAX);
    pair_close(&pair);
}

static pid_t dead_process(void)
{
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

/* The kernel permitted it at first and then does not: the bytes go through the
 * ring. */
static void write_that_cannot_be_pulled_is_sent_as_fragments(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t writes[3];
    pair_open(&pair, BULK_BYTES);
    await_greeting(&pair);
    pair_inbound(&pair)->cross_read.pid = dead_process();
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++)
        pair_write(&pair, &writes[i], BULK_BYTES);
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++) {
        TEST_UNTIL(pair.fixture, writes[i].done_count == 1);
        assert_int_equal(writes[i].code, TOW_CODE_OK);
    }
    assert_int_equal(pair.region.arrived_count, 3);
    assert_int_equal(pair.to->data->pulled_count, 0);
    assert_memory_equal(pair.region.bytes, pair.bytes, BULK_BYTES);
    pair_close(&pair);
}

/* Cross-reads are switched off at the writer, or at the target. */
static void without_cross_reads_writes_go_through_the_ring(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        pair_t pair;
        test_write_t write;
        pair = (pair_t){.fixture = test_fixture_create(2)};
        pair.from = &pair.fixture->nodes[0];
        pair.to = &pair.fixture->nodes[1];
        pair.fixture->nodes[side].data->may_cross_read = false;
        pair.bytes = test_pattern(TEST_MIB);
        test_region_open(&pair.region, pair.to, TEST_MIB);
        test_lane_open(&pair.lane, pair.from, pair.to);
        pair_write(&pair, &write, TEST_MIB);
        TEST_UNTIL(pair.fixture, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
        assert_int_equal(pair.to->data->pulled_count, 0);
        pair_close(&pair);
    }
}

/* -- Bad announcements ---------------------------------------------------- */

static void knock_with(uint64_t node, const void *bytes, size_t size)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int length =
        snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1,
                 "towpath-door-%016llx", (unsigned long long)node);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    (void)!sendto(fd, bytes, size, MSG_DONTWAIT, (struct sockaddr *)&name,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                              (size_t)length));
    close(fd);
}

/* More than the endpoint keeps, all malformed or for other streams. */
static void bad_announcements_do_no_harm(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    skip_unless_readable();
    pair = (pair_t){.fixture = test_fixture_create(2)};
    pair.from = &pair.fixture->nodes[0];
    pair.to = &pair.fixture->nodes[1];
    tow_data_offer_t offer = {
        .magic = TOW_DATA_OFFER_MAGIC, .guard_address = 8, .value = 1};
    for (uint64_t i = 0; i < 2000; i++) {
        offer.stream = i;
        knock_with(pair.to->data->node, &offer,
                   i % 3 == 0 ? sizeof(offer) : i % 40);
    }
    pair.bytes = test_pattern(TEST_MIB);
    test_region_open(&pair.region, pair.to, TEST_MIB);
    for (uint64_t i = 0; i < 2;
         i++) { /* The first may find the endpoint full. */
        test_lane_open(&pair.lane, pair.from, pair.to);
        pair_write(&pair, &write, TEST_MIB);
        TEST_UNTIL(pair.fixture, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
    }
    assert_true(pair.to->data->pulled_count >= 1);
    pair_close(&pair);
}

/* A process that announces the guard of another process is not read in its
 * place. */
static void announcing_process_is_identified_by_the_kernel(void **state)
{
    (void)state;
    skip_unless_readable();
    tow_data_cross_endpoint_t endpoint = {.fd = -1};
    assert_null(tow_data_cross_endpoint_open(&endpoint, 0x1234567));
    static uint64_t guard;
    guard = 0x5555;
    const tow_data_offer_t offer = {.magic = TOW_DATA_OFFER_MAGIC,
                                    .stream = 5,
                                    .guard_address = (uintptr_t)&guard,
                                    .value = 0x5555};
    const pid_t pid = fork();
    if (pid == 0) { /* Its own guard differs; then it exits. */
        guard = 0x6666;
        knock_with(0x1234567, &offer, sizeof(offer));
        pause();
    }
    tow_data_cross_read_t cross_read;
    tow_status_t status;
    do {
        status = tow_data_cross_endpoint_accept(&endpoint, 5, &cross_read);
        if (tow_status_code(status) != TOW_NOT_FOUND) break;
        tow_status_release(status);
    } while (true);
    assert_int_equal(tow_status_code(status), TOW_UNAUTHENTICATED);
    assert_false(tow_data_cross_read_is_open(&cross_read));
    tow_status_release(status);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    knock_with(0x1234567, &offer, sizeof(offer));
    assert_null(tow_data_cross_endpoint_accept(&endpoint, 5, &cross_read));
    assert_int_equal(cross_read.pid, getpid());
    assert_true(tow_data_cross_read_guard_holds(&cross_read,
                                                offer.guard_address, 0x5555));
    guard = 0;
    assert_false(tow_data_cross_read_guard_holds(&cross_read,
                                                 offer.guard_address, 0x5555));
    tow_data_cross_read_close(&cross_read);
    assert_true(tow_data_cross_endpoint_exists(0x1234567));
    tow_data_cross_endpoint_close(&endpoint);
    assert_false(tow_data_cross_endpoint_exists(0x1234567));
}

/* Not even by a privileged process, which the kernel would permit. */
static void another_user_is_not_read(void **state)
{
    (void)state;
    if (getuid() != 0) skip(); /* Only root can change its user. */
    tow_data_cross_endpoint_t endpoint = {.fd = -1};
    assert_null(tow_data_cross_endpoint_open(&endpoint, 0x1234568));
    static uint64_t guard = 0x5555;
    const tow_data_offer_t offer = {.magic = TOW_DATA_OFFER_MAGIC,
                                    .stream = 5,
                                    .guard_address = (uintptr_t)&guard,
                                    .value = 0x5555};
    const pid_t pid = fork();
    if (pid == 0) {
        if (setuid(65534) != 0) _exit(1);
        knock_with(0x1234568, &offer, sizeof(offer));
        pause();
    }
    tow_data_cross_read_t cross_read;
    tow_status_t status;
    do {
        status = tow_data_cross_endpoint_accept(&endpoint, 5, &cross_read);
        if (tow_status_code(status) != TOW_NOT_FOUND) break;
        tow_status_release(status);
    } while (true);
    assert_int_equal(tow_status_code(status), TOW_PERMISSION_DENIED);
    tow_status_release(status);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    tow_data_cross_endpoint_close(&endpoint);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(large_writes_are_pulled_whole, test_use_shm),
    cmocka_unit_test_setup(small_and_checked_writes_are_not_pulled,
                           test_use_shm),
    cmocka_unit_test_setup(withdrawn_bytes_never_arrive, test_use_shm),
    cmocka_unit_test_setup(pull_without_its_guard_is_refused, test_use_shm),
    cmocka_unit_test_setup(too_many_pulls_of_one_lane_are_refused,
                           test_use_shm),
    cmocka_unit_test_setup(write_that_cannot_be_pulled_is_sent_as_fragments,
                           test_use_shm),
    cmocka_unit_test_setup(without_cross_reads_writes_go_through_the_ring,
                           test_use_shm),
    cmocka_unit_test_setup(bad_announcements_do_no_harm, test_use_shm),
    cmocka_unit_test_setup(announcing_process_is_identified_by_the_kernel,
                           test_use_shm),
    cmocka_unit_test_setup(another_user_is_not_read, test_use_shm),
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
