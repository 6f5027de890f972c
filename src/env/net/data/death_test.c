/* Peers that die or hang in the middle of a write. The peer is this program
 * again, in a process of its own that a signal ends; the test then closes its
 * lane by force, as the control plane would. */
#include "env/net/data/data_testing_impl.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/block.h"

#define BULK_BYTES  (64 * TEST_MIB)
#define WRITE_COUNT 4
#define PEER_FD     3 /* in the peer: a socket to the test */

extern char **environ;

/* What each side must know of the other. */
typedef struct offer {
    tow_region_key_t key;
    size_t address_size;
    uint8_t address[TOW_DATA_ADDRESS_SIZE_MAX];
} offer_t;

static offer_t make_offer(tow_env_t *env, const tow_region_t *region)
{
    offer_t offer = {.address_size = 0};
    const void *address;
    tow_env_lane_address(env, &address, &offer.address_size);
    memcpy(offer.address, address, offer.address_size);
    if (region != NULL) offer.key = tow_region_key(region);
    return offer;
}

/* -- The peer ------------------------------------------------------------- */

static tow_lane_t *peer_lane;

static void keep_writing(tow_write_t *write, tow_status_t take_status)
{
    tow_status_release(take_status);
    (void)!tow_lane_write(peer_lane, write);
}

static void be_writer(test_node_t *node, const offer_t *target)
{
    static tow_write_t writes[2];
    const tow_lane_options_t options = {.address = target->address,
                                        .address_size = target->address_size,
                                        .peer_name = "survivor"};
    TOW_ASSERT(tow_env_lane_open(node->env, &options, &peer_lane) == TOW_OK);
    uint8_t *bytes = test_pattern(BULK_BYTES);
    for (size_t i = 0; i < TOW_COUNT_OF(writes); i++) {
        writes[i] = (tow_write_t){.bytes = bytes,
                                  .size = BULK_BYTES,
                                  .key = target->key,
                                  .done = keep_writing};
        TOW_ASSERT(tow_lane_write(peer_lane, &writes[i]) == TOW_SEND_OK);
    }
}

static void ignore_shared(tow_write_t *write)
{
    (void)write;
}

static void ignore_done(tow_write_t *write, tow_status_t take_status)
{
    (void)write;
    tow_status_release(take_status);
}

static void be_block_writer(test_node_t *node, const offer_t *target)
{
    static tow_write_t write;
    const tow_lane_options_t options = {.address = target->address,
                                        .address_size = target->address_size,
                                        .peer_name = "survivor"};
    TOW_ASSERT(tow_env_lane_open(node->env, &options, &peer_lane) == TOW_OK);
    uint8_t *bytes = tow_block_alloc(BULK_BYTES);
    uint8_t *same = test_pattern(BULK_BYTES);
    memcpy(bytes, same, BULK_BYTES);
    write = (tow_write_t){.bytes = bytes,
                          .size = BULK_BYTES,
                          .key = target->key,
                          .shared = ignore_shared,
                          .done = ignore_done};
    TOW_ASSERT(tow_lane_write(peer_lane, &write) == TOW_SEND_OK);
}

/* Never releases a share. */
static void keep_loan(void *context, tow_region_t *region,
                      const tow_arrival_t *arrival)
{
    (void)context;
    (void)region;
    (void)arrival;
}

static int peer_main(const char *role)
{
    static test_fixture_t fixture;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    test_node_t *node = test_add_node(&fixture, 0);
    const tow_region_options_t options = {.bytes = calloc(1, BULK_BYTES),
                                          .size = BULK_BYTES,
                                          .may_share =
                                              strcmp(role, "sharer") == 0,
                                          .arrived = keep_loan};
    tow_region_t *region;
    TOW_ASSERT(tow_env_region_open(node->env, &options, &region) == TOW_OK);
    offer_t offer = make_offer(node->env, region);
    TOW_ASSERT(write(PEER_FD, &offer, sizeof(offer)) == sizeof(offer));
    TOW_ASSERT(read(PEER_FD, &offer, sizeof(offer)) == sizeof(offer));
    if (strcmp(role, "writer") == 0) be_writer(node, &offer);
    if (strcmp(role, "block_writer") == 0) be_block_writer(node, &offer);
    tow_net_run(node->net); /* Until a signal ends it. */
    return 1;
}

/* -- The test's side ------------------------------------------------------ */

typedef struct peer {
    pid_t pid;
    int fd;
    offer_t offer;
} peer_t;

static void peer_start(peer_t *peer, const char *role, const offer_t *ours)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds),
                     0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], PEER_FD);
    char *arguments[] = {"data_death_test", "--peer", (char *)role, NULL};
    assert_int_equal(posix_spawn(&peer->pid, "/proc/self/exe", &actions, NULL,
                                 arguments, environ),
                     0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    peer->fd = fds[0];
    assert_int_equal(write(peer->fd, ours, sizeof(*ours)), sizeof(*ours));
    assert_int_equal(read(peer->fd, &peer->offer, sizeof(peer->offer)),
                     sizeof(peer->offer));
}

static void peer_kill(peer_t *peer)
{
    kill(peer->pid, SIGKILL);
    assert_int_equal(waitpid(peer->pid, NULL, 0), peer->pid);
    close(peer->fd);
}

static void peer_stop(const peer_t *peer)
{
    kill(peer->pid, SIGSTOP);
    assert_int_equal(waitpid(peer->pid, NULL, WUNTRACED), peer->pid);
}

static void open_lane_to(test_lane_t *lane, test_node_t *node,
                         const peer_t *peer)
{
    test_lane_open_at(lane, node, peer->offer.address,
                      peer->offer.address_size);
}

/* Whatever happened, a new peer works immediately. */
static void expect_fresh_peer_works(test_fixture_t *fixture)
{
    test_node_t *node = &fixture->nodes[0];
    const offer_t ours = make_offer(node->env, NULL);
    peer_t peer;
    test_lane_t lane;
    test_write_t write;
    uint8_t *bytes = test_pattern(BULK_BYTES);
    peer_start(&peer, "target", &ours);
    open_lane_to(&lane, node, &peer);
    const test_plan_t plan = {
        .bytes = bytes, .size = BULK_BYTES, .key = peer.offer.key};
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_GRACEFUL);
    peer_kill(&peer);
    free(bytes);
}

typedef struct mid_write {
    test_fixture_t *fixture;
    peer_t peer;
    test_lane_t lane;
    uint8_t *bytes; /* owned */
    test_write_t writes[WRITE_COUNT];
} mid_write_t;

/* Large writes to a target are in progress: the small one, sent between their
 * fragments, has been answered. */
static mid_write_t *mid_write_create(void)
{
    mid_write_t *mid = calloc(1, sizeof(*mid));
    mid->fixture = test_fixture_create(1);
    test_node_t *node = &mid->fixture->nodes[0];
    const offer_t ours = make_offer(node->env, NULL);
    peer_start(&mid->peer, "target", &ours);
    open_lane_to(&mid->lane, node, &mid->peer);
    mid->bytes = test_pattern(BULK_BYTES);
    test_plan_t plan = {
        .bytes = mid->bytes, .size = BULK_BYTES, .key = mid->peer.offer.key};
    for (size_t i = 0; i < WRITE_COUNT; i++)
        assert_int_equal(test_write_start(&mid->writes[i], &mid->lane, &plan),
                         TOW_SEND_OK);
    test_write_t small;
    plan.size = 100;
    assert_int_equal(test_write_start(&small, &mid->lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(mid->fixture, small.done_count == 1);
    return mid;
}

/* The control plane has detected the death. Every write ends, once, with an
 * error. */
static void mid_write_cut(mid_write_t *mid)
{
    test_lane_close(mid->fixture, &mid->lane, TOW_LANE_CLOSE_FORCE);
    for (size_t i = 0; i < WRITE_COUNT; i++) {
        assert_int_equal(mid->writes[i].done_count, 1);
        assert_int_equal(mid->writes[i].code, TOW_UNAVAILABLE);
    }
    /* The bytes are ours again. */
    memset(mid->bytes, 0xee, BULK_BYTES);
}

static void mid_write_destroy(mid_write_t *mid)
{
    expect_fresh_peer_works(mid->fixture);
    test_fixture_destroy(mid->fixture);
    free(mid->bytes);
    free(mid);
}

static void target_killed_in_mid_write(void **state)
{
    (void)state;
    mid_write_t *mid = mid_write_create();
    peer_kill(&mid->peer);
    for (int i = 0; i < 20; i++)
        test_turn(mid->fixture);
    mid_write_cut(mid);
    mid_write_destroy(mid);
}

/* The peer reads no more; UCX returns our memory all the same. Then the peer
 * dies, and its remains inside UCX must not harm us. */
static void target_stopped_in_mid_write_then_killed(void **state)
{
    (void)state;
    mid_write_t *mid = mid_write_create();
    peer_stop(&mid->peer);
    for (int i = 0; i < 20; i++)
        test_turn(mid->fixture);
    mid_write_cut(mid);
    peer_kill(&mid->peer);
    test_settle(mid->fixture);
    mid_write_destroy(mid);
}

static void target_stopped_in_mid_write_then_continues(void **state)
{
    (void)state;
    mid_write_t *mid = mid_write_create();
    peer_stop(&mid->peer);
    for (int i = 0; i < 20; i++)
        test_turn(mid->fixture);
    mid_write_cut(mid);
    kill(mid->peer.pid, SIGCONT);
    test_settle(mid->fixture);
    /* It works like any other peer again. */
    test_lane_t lane;
    test_write_t write;
    open_lane_to(&lane, &mid->fixture->nodes[0], &mid->peer);
    const test_plan_t plan = {.bytes = mid->bytes,
                              .size = TEST_MIB,
                              .key = mid->peer.offer.key,
                              .check = TOW_WRITE_CRC32C};
    assert_int_equal(test_write_start(&write, &lane, &plan), TOW_SEND_OK);
    TEST_UNTIL(mid->fixture, write.done_count == 1);
    assert_int_equal(write.code, TOW_CODE_OK);
    peer_kill(&mid->peer);
    test_lane_close(mid->fixture, &lane, TOW_LANE_CLOSE_FORCE);
    mid_write_destroy(mid);
}

static void region_closed(void *context)
{
    ((test_region_t *)context)->closed_count++;
}

/* The inbound lane is closed with its partial writes; the region may close and
 * its memory be freed. */
static void writer_ends_in_mid_write(void (*end)(test_fixture_t *fixture,
                                                 peer_t *peer))
{
    test_fixture_t *fixture = test_fixture_create(1);
    test_node_t *node = &fixture->nodes[0];
    test_region_t region;
    test_lane_t lane;
    peer_t peer;
    test_region_open(&region, node, BULK_BYTES);
    const offer_t ours = make_offer(node->env, region.region);
    peer_start(&peer, "writer", &ours);
    open_lane_to(&lane, node, &peer);
    TEST_UNTIL(fixture, region.bytes[1] != 0);
    end(fixture, &peer);
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_FORCE);
    /* At most for the time of the chunk that is being pulled. */
    TEST_UNTIL(fixture, node->data->inbound_count == 0);
    tow_region_close(region.region,
                     (tow_closed_t){.run = region_closed, .context = &region});
    TEST_UNTIL(fixture, region.closed_count == 1);
    free(region.bytes);
    test_settle(fixture);
    if (kill(peer.pid, 0) == 0) peer_kill(&peer);
    test_settle(fixture);
    expect_fresh_peer_works(fixture);
    test_fixture_destroy(fixture);
}

static void end_by_kill(test_fixture_t *fixture, peer_t *peer)
{
    peer_kill(peer);
    for (int i = 0; i < 20; i++)
        test_turn(fixture);
}

static void end_by_stop(test_fixture_t *fixture, peer_t *peer)
{
    peer_stop(peer);
    for (int i = 0; i < 20; i++)
        test_turn(fixture);
}

static void writer_killed_in_mid_write(void **state)
{
    (void)state;
    writer_ends_in_mid_write(end_by_kill);
}

static void writer_stopped_in_mid_write(void **state)
{
    (void)state;
    writer_ends_in_mid_write(end_by_stop);
}

/* -- Shared bytes --------------------------------------------------------- */

/* They stay valid: we hold its pages. */
static void writer_killed_while_shared_leaves_the_bytes(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(1);
    test_node_t *node = &fixture->nodes[0];
    test_region_t region = {.bytes = calloc(1, BULK_BYTES), .size = BULK_BYTES};
    const tow_region_options_t options = {.bytes = region.bytes,
                                          .size = BULK_BYTES,
                                          .may_share = true,
                                          .arrived = test_region_arrived,
                                          .context = &region};
    assert_null(tow_env_region_open(node->env, &options, &region.region));
    const offer_t ours = make_offer(node->env, region.region);
    peer_t peer;
    peer_start(&peer, "block_writer", &ours);
    TEST_UNTIL(fixture, region.arrived_count == 1);
    peer_kill(&peer);
    for (int i = 0; i < 20; i++)
        test_turn(fixture);
    uint8_t *same = test_pattern(BULK_BYTES);
    const void *seen =
        region.last.share != NULL ? region.last.shared : region.bytes;
    assert_memory_equal(seen, same, BULK_BYTES);
    if (region.last.share != NULL)
        tow_share_release(node->env, region.last.share);
    free(same);
    expect_fresh_peer_works(fixture);
    test_fixture_destroy(fixture);
    free(region.bytes);
}

static int shared_count;

static void count_shared(tow_write_t *write)
{
    (void)write;
    shared_count++;
}

static bool is_refused(const test_write_t *write)
{
    return write->done_count > 0;
}

/* The lane is not closed: the peer's cross-read endpoint shows that it is
 * dead. */
static void target_killed_while_sharing_ends_the_write(void **state)
{
    (void)state;
    test_fixture_t *fixture = test_fixture_create(1);
    test_node_t *node = &fixture->nodes[0];
    const offer_t ours = make_offer(node->env, NULL);
    peer_t peer;
    test_lane_t lane;
    peer_start(&peer, "sharer", &ours);
    open_lane_to(&lane, node, &peer);
    uint8_t *bytes = tow_block_alloc(BULK_BYTES);
    test_write_t write = {.write = {.bytes = bytes,
                                    .size = BULK_BYTES,
                                    .key = peer.offer.key,
                                    .shared = count_shared,
                                    .done = test_write_done}};
    shared_count = 0;
    assert_int_equal(tow_lane_write(lane.lane, &write.write), TOW_SEND_OK);
    TEST_UNTIL(fixture, shared_count == 1 || is_refused(&write));
    const bool was_lent = shared_count == 1;
    peer_kill(&peer);
    TEST_UNTIL(fixture, !was_lent || write.done_count == 1);
    assert_int_equal(write.write.is_stranded, was_lent);
    test_lane_close(fixture, &lane, TOW_LANE_CLOSE_FORCE);
    tow_block_free(bytes);
    expect_fresh_peer_works(fixture);
    test_fixture_destroy(fixture);
}

static const struct CMUnitTest tests[] = {
    TEST_ON_ALL(target_killed_in_mid_write),
    TEST_ON_ALL(target_stopped_in_mid_write_then_killed),
    TEST_ON_ALL(target_stopped_in_mid_write_then_continues),
    TEST_ON_ALL(writer_killed_in_mid_write),
    TEST_ON_ALL(writer_stopped_in_mid_write),
    TEST_ON_ALL(writer_killed_while_shared_leaves_the_bytes),
    TEST_ON_ALL(target_killed_while_sharing_ends_the_write),
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--peer") == 0) return peer_main(argv[2]);
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
