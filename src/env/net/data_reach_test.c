/* Large writes that their target fetches, and what it must not believe. */
#include "env/net/data_testing_impl.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define BULK_BYTES (32 * TEST_MIB)

typedef struct pair {
    test_world_t *world;
    test_node_t *from;
    test_node_t *to;
    test_lane_t lane;
    test_region_t region;
    uint8_t *bytes; /* owned */
} pair_t;

/* Some sandboxes keep processes from reading even themselves. */
static void skip_unless_readable(void)
{
    const tow_data_reach_t self = {.pid = getpid(), .pidfd = -1};
    uint64_t here = 5, there = 0;
    if (tow_data_reach_read(&self, &there, (uintptr_t)&here, sizeof(here)) == 0)
        return;
    printf("# skipped: the kernel refuses process_vm_readv\n");
    skip();
}

static void pair_open(pair_t *pair, size_t size)
{
    skip_unless_readable();
    *pair = (pair_t){.world = test_world_create(2)};
    pair->from = &pair->world->nodes[0];
    pair->to = &pair->world->nodes[1];
    pair->bytes = test_pattern(size);
    test_region_open(&pair->region, pair->to, size);
    test_lane_open(&pair->lane, pair->from, pair->to);
}

static void pair_close(pair_t *pair)
{
    test_world_destroy(pair->world);
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
    TEST_UNTIL(pair->world,
               test_data_lane(&pair->lane)->reach != TOW_DATA_REACH_ASKED);
}

/* Sizes around every bound, at places that begin nowhere in particular. */
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
        TEST_UNTIL(pair.world, write.done_count == 1);
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
    TEST_UNTIL(pair.world, small.done_count == 1 && checked.done_count == 1);
    assert_int_equal(pair.region.arrived_count, 2);
    assert_int_equal(pair.to->data->pulled_count, 0);
    pair_close(&pair);
}

/* The lane is cut and its bytes change before the target has looked at them. */
static void bytes_that_were_taken_back_never_arrive(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    pair_open(&pair, BULK_BYTES);
    await_greeting(&pair);
    pair.to->is_stalled = true;
    pair_write(&pair, &write, BULK_BYTES);
    test_settle(pair.world);
    assert_int_equal(write.done_count, 0);
    test_lane_close(pair.world, &pair.lane, TOW_LANE_CLOSE_FORCE);
    assert_int_equal(write.code, TOW_UNAVAILABLE);
    memset(pair.bytes, 0xee, BULK_BYTES);
    memset(&write, 0xee, sizeof(write));
    pair.to->is_stalled = false;
    TEST_UNTIL(pair.world, pair.to->data->inbound_count == 0);
    assert_int_equal(pair.region.arrived_count, 0);
    pair_close(&pair);
}

/* The bytes are all there, but their writer no longer stands by them. */
static void pull_without_its_word_is_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, TEST_MIB);
    await_greeting(&pair);
    const uint64_t word = 77;
    const tow_region_key_t key = tow_region_key(pair.region.region);
    tow_data_pull_t pull = {.stream = test_data_lane(&pair.lane)->stream,
                            .write = 78,
                            .region = key.id,
                            .secret = key.secret,
                            .total = TOW_NET_PULL_BYTES_MIN,
                            .bytes = (uintptr_t)pair.bytes,
                            .word = (uintptr_t)&word};
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.total = TEST_MIB;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.write = 77;
    pull.word = 8; /* Nothing is there. */
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.word = (uintptr_t)&word;
    pull.secret++;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.secret--;
    pull.place = 1;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    pull.place = 0;
    pull.bytes = 4096; /* Nor there. */
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    TEST_UNTIL(pair.world, pair_inbound(&pair)->pull_count == 0);
    assert_int_equal(pair.region.arrived_count, 0);
    pull.bytes = (uintptr_t)pair.bytes;
    tow_data_inbound_pull(pair_inbound(&pair), &pull);
    TEST_UNTIL(pair.world, pair.region.arrived_count == 1);
    pair_close(&pair);
}

static void too_many_pulls_of_one_lane_are_refused(void **state)
{
    (void)state;
    pair_t pair;
    pair_open(&pair, BULK_BYTES);
    await_greeting(&pair);
    const uint64_t word = 77;
    const tow_region_key_t key = tow_region_key(pair.region.region);
    const tow_data_pull_t pull = {.stream = test_data_lane(&pair.lane)->stream,
                                  .write = 77,
                                  .region = key.id,
                                  .secret = key.secret,
                                  .total = BULK_BYTES,
                                  .bytes = (uintptr_t)pair.bytes,
                                  .word = (uintptr_t)&word};
    for (uint32_t i = 0; i < 2 * TOW_NET_LANE_PULL_COUNT_MAX; i++)
        tow_data_inbound_pull(pair_inbound(&pair), &pull);
    assert_int_equal(pair_inbound(&pair)->pull_count,
                     TOW_NET_LANE_PULL_COUNT_MAX);
    TEST_UNTIL(pair.world, pair_inbound(&pair)->pull_count == 0);
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

/* The kernel had agreed and does so no more: the bytes go through the ring. */
static void write_that_cannot_be_pulled_goes_another_way(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t writes[3];
    pair_open(&pair, BULK_BYTES);
    await_greeting(&pair);
    pair_inbound(&pair)->reach.pid = dead_process();
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++)
        pair_write(&pair, &writes[i], BULK_BYTES);
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++) {
        TEST_UNTIL(pair.world, writes[i].done_count == 1);
        assert_int_equal(writes[i].code, TOW_CODE_OK);
    }
    assert_int_equal(pair.region.arrived_count, 3);
    assert_int_equal(pair.to->data->pulled_count, 0);
    assert_memory_equal(pair.region.bytes, pair.bytes, BULK_BYTES);
    pair_close(&pair);
}

/* A target without a door, or one that is switched off. */
static void without_a_door_writes_go_through_the_ring(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        pair_t pair;
        test_write_t write;
        pair = (pair_t){.world = test_world_create(2)};
        pair.from = &pair.world->nodes[0];
        pair.to = &pair.world->nodes[1];
        tow_data_door_close(&pair.world->nodes[side].data->door);
        pair.bytes = test_pattern(TEST_MIB);
        test_region_open(&pair.region, pair.to, TEST_MIB);
        test_lane_open(&pair.lane, pair.from, pair.to);
        pair_write(&pair, &write, TEST_MIB);
        TEST_UNTIL(pair.world, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
        assert_int_equal(pair.to->data->pulled_count, 0);
        pair_close(&pair);
    }
}

/* -- Strangers at the door ------------------------------------------------- */

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

/* More than the door keeps, and none of it makes sense or is for us. */
static void strangers_at_the_door_do_no_harm(void **state)
{
    (void)state;
    pair_t pair;
    test_write_t write;
    skip_unless_readable();
    pair = (pair_t){.world = test_world_create(2)};
    pair.from = &pair.world->nodes[0];
    pair.to = &pair.world->nodes[1];
    tow_data_offer_t offer = {
        .magic = TOW_DATA_OFFER_MAGIC, .word = 8, .value = 1};
    for (uint64_t i = 0; i < 2000; i++) {
        offer.stream = i;
        knock_with(pair.to->data->node, &offer,
                   i % 3 == 0 ? sizeof(offer) : i % 40);
    }
    pair.bytes = test_pattern(TEST_MIB);
    test_region_open(&pair.region, pair.to, TEST_MIB);
    for (uint64_t i = 0; i < 2; i++) { /* The first may find the door full. */
        test_lane_open(&pair.lane, pair.from, pair.to);
        pair_write(&pair, &write, TEST_MIB);
        TEST_UNTIL(pair.world, write.done_count == 1);
        assert_int_equal(write.code, TOW_CODE_OK);
    }
    assert_true(pair.to->data->pulled_count >= 1);
    pair_close(&pair);
}

/* A process that shows somebody else's word cannot be read in its stead. */
static void caller_is_who_the_kernel_says(void **state)
{
    (void)state;
    skip_unless_readable();
    tow_data_door_t door = {.fd = -1};
    assert_null(tow_data_door_open(&door, 0x1234567));
    static uint64_t word;
    word = 0x5555;
    const tow_data_offer_t offer = {.magic = TOW_DATA_OFFER_MAGIC,
                                    .stream = 5,
                                    .word = (uintptr_t)&word,
                                    .value = 0x5555};
    const pid_t pid = fork();
    if (pid == 0) { /* Its own word is another; then it dies. */
        word = 0x6666;
        knock_with(0x1234567, &offer, sizeof(offer));
        pause();
    }
    tow_data_reach_t reach;
    tow_status_t status;
    do {
        status = tow_data_door_answer(&door, 5, &reach);
        if (tow_status_code(status) != TOW_NOT_FOUND) break;
        tow_status_release(status);
    } while (true);
    assert_int_equal(tow_status_code(status), TOW_UNAUTHENTICATED);
    assert_false(tow_data_reach_is_open(&reach));
    tow_status_release(status);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    knock_with(0x1234567, &offer, sizeof(offer));
    assert_null(tow_data_door_answer(&door, 5, &reach));
    assert_int_equal(reach.pid, getpid());
    assert_true(tow_data_reach_holds(&reach, offer.word, 0x5555));
    word = 0;
    assert_false(tow_data_reach_holds(&reach, offer.word, 0x5555));
    tow_data_reach_close(&reach);
    assert_true(tow_data_door_is_there(0x1234567));
    tow_data_door_close(&door);
    assert_false(tow_data_door_is_there(0x1234567));
}

/* Also by a privileged process, which the kernel would let. */
static void another_user_is_not_read(void **state)
{
    (void)state;
    if (getuid() != 0) skip(); /* Only root can become somebody else. */
    tow_data_door_t door = {.fd = -1};
    assert_null(tow_data_door_open(&door, 0x1234568));
    static uint64_t word = 0x5555;
    const tow_data_offer_t offer = {.magic = TOW_DATA_OFFER_MAGIC,
                                    .stream = 5,
                                    .word = (uintptr_t)&word,
                                    .value = 0x5555};
    const pid_t pid = fork();
    if (pid == 0) {
        if (setuid(65534) != 0) _exit(1);
        knock_with(0x1234568, &offer, sizeof(offer));
        pause();
    }
    tow_data_reach_t reach;
    tow_status_t status;
    do {
        status = tow_data_door_answer(&door, 5, &reach);
        if (tow_status_code(status) != TOW_NOT_FOUND) break;
        tow_status_release(status);
    } while (true);
    assert_int_equal(tow_status_code(status), TOW_PERMISSION_DENIED);
    tow_status_release(status);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    tow_data_door_close(&door);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(large_writes_are_pulled_whole, test_use_shm),
    cmocka_unit_test_setup(small_and_checked_writes_are_not_pulled,
                           test_use_shm),
    cmocka_unit_test_setup(bytes_that_were_taken_back_never_arrive,
                           test_use_shm),
    cmocka_unit_test_setup(pull_without_its_word_is_refused, test_use_shm),
    cmocka_unit_test_setup(too_many_pulls_of_one_lane_are_refused,
                           test_use_shm),
    cmocka_unit_test_setup(write_that_cannot_be_pulled_goes_another_way,
                           test_use_shm),
    cmocka_unit_test_setup(without_a_door_writes_go_through_the_ring,
                           test_use_shm),
    cmocka_unit_test_setup(strangers_at_the_door_do_no_harm, test_use_shm),
    cmocka_unit_test_setup(caller_is_who_the_kernel_says, test_use_shm),
    cmocka_unit_test_setup(another_user_is_not_read, test_use_shm),
};

int main(int argc, char **argv)
{
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
