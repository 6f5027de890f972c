/* Names and process numbers of workers, with scripted workers. */
#include "controller/fixture_testing_impl.h"

#include <string.h>

#define ANY UINT32_MAX

static void send_enrol(peer_t *peer, const char *host, const char *name,
                       uint32_t process)
{
    tow_msg_worker_enrol_t enrol = TOW_MSG_WORKER_ENROL_INIT;
    enrol.host = (char *)host;
    enrol.name = (char *)name;
    enrol.has_process = process != ANY;
    enrol.process = process != ANY ? process : 0;
    send_message(peer, TOW_MESSAGE_WORKER_ENROL, &enrol.base);
}

/* Enrols, and expects this place. */
static void enrol(peer_t *peer, const char *host, const char *name,
                  uint32_t process)
{
    send_enrol(peer, host, "", ANY);
    const tow_msg_worker_enrol_t *answer =
        EXPECT(peer, WORKER_ENROL, worker_enrol);
    expect_success(answer->failure);
    assert_string_equal(answer->name, name);
    assert_true(answer->has_process);
    assert_int_equal(answer->process, process);
}

static void expect_refused(peer_t *peer, tow_code_t code, const char *part)
{
    expect_failure(EXPECT(peer, WORKER_ENROL, worker_enrol)->failure, code,
                   part);
    run_for(peer->cluster, SECOND / 10);
    assert_int_equal(peer->disconnect_count, 1);
}

static void send_named_join(peer_t *peer, const char *host, const char *name,
                            uint32_t process)
{
    tow_msg_device_t device = TOW_MSG_DEVICE_INIT;
    tow_msg_device_t *list = &device;
    device.id = 2048 * (int64_t)process;
    device.kind = (char *)peer->cluster->driver->devices[0].kind;
    device.name = (char *)"device";
    tow_msg_worker_join_t join = TOW_MSG_WORKER_JOIN_INIT;
    join.process = process;
    join.host = (char *)host;
    join.name = (char *)name;
    join.is_name_assigned = true;
    join.platform = (char *)"sim";
    join.version = (char *)"1";
    join.devices = &list;
    join.n_devices = 1;
    send_message(peer, TOW_MESSAGE_WORKER_JOIN, &join.base);
}

static void join(peer_t *peer, const char *host, const char *name,
                 uint32_t process)
{
    send_named_join(peer, host, name, process);
    expect_success(EXPECT(peer, WORKER_JOINED, worker_joined)->failure);
}

static void workers_that_ask_for_nothing_get_names_and_numbers(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    peer_t *second = peer_make(&cluster, "p2");
    enrol(first, "a", "worker-0", 0);
    enrol(second, "a", "worker-1", 1);
    join(second, "a", "worker-1", 1);
    join(first, "a", "worker-0", 0);
    /* A later peer sees the name, and the name in handshakes. */
    peer_t *third = peer_make(&cluster, "p3");
    enrol(third, "b", "worker-2", 2);
    join(third, "b", "worker-2", 2);
    const tow_msg_peer_t *peer = EXPECT(third, PEER, peer);
    assert_string_equal(peer->name, "worker-1");
    assert_string_equal(peer->handshake_name, "p2");
    cluster_close(&cluster);
}

static void a_worker_that_returns_gets_its_name_and_a_new_number(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    peer_t *second = peer_make(&cluster, "p2");
    enrol(first, "a", "worker-0", 0);
    join(first, "a", "worker-0", 0);
    enrol(second, "b", "worker-1", 1);
    join(second, "b", "worker-1", 1);
    peer_crash(first);
    peer_t *other = peer_make(&cluster, "p3");
    enrol(other, "b", "worker-2", 2); /* Of another host. */
    peer_t *again = peer_make(&cluster, "p4");
    enrol(again, "a", "worker-0", 3);
    join(again, "a", "worker-0", 3);
    cluster_close(&cluster);
}

static void a_reservation_ends_with_its_session(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    enrol(first, "a", "worker-0", 0);
    peer_leave(first);
    peer_t *again = peer_make(&cluster, "p2");
    enrol(again, "a", "worker-0", 1);
    cluster_close(&cluster);
}

static void a_reserved_place_is_refused_to_other_processes(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    enrol(first, "a", "worker-0", 0);
    peer_t *other = peer_make(&cluster, "p2");
    send_named_join(other, "b", "worker-0", 7);
    expect_failure(EXPECT(other, WORKER_JOINED, worker_joined)->failure,
                   TOW_ALREADY_EXISTS, "worker-0");
    peer_t *third = peer_make(&cluster, "p3");
    send_named_join(third, "b", "third", 0);
    expect_failure(EXPECT(third, WORKER_JOINED, worker_joined)->failure,
                   TOW_ALREADY_EXISTS,
                   "process number 0 is taken by worker worker-0");
    /* Nor may the process itself use its number twice. */
    send_named_join(first, "a", "elsewhere", 0);
    expect_failure(EXPECT(first, WORKER_JOINED, worker_joined)->failure,
                   TOW_ALREADY_EXISTS, "process number 0");
    cluster_close(&cluster);
}

static void taken_names_and_numbers_are_refused_with_their_holder(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    send_enrol(first, "a", "trainer", 4);
    expect_success(EXPECT(first, WORKER_ENROL, worker_enrol)->failure);
    join(first, "a", "trainer", 4);
    peer_t *second = peer_make(&cluster, "p2");
    send_enrol(second, "b", "trainer", ANY);
    expect_refused(second, TOW_ALREADY_EXISTS,
                   "a worker named trainer is there already, on host a");
    peer_t *third = peer_make(&cluster, "p3");
    send_enrol(third, "b", "", 4);
    expect_refused(third, TOW_ALREADY_EXISTS,
                   "process number 4 is taken by worker trainer on host a");
    peer_t *fourth = peer_make(&cluster, "p4");
    send_enrol(fourth, "b", "two words", ANY);
    expect_refused(fourth, TOW_INVALID_ARGUMENT, "letters, digits");
    peer_t *fifth = peer_make(&cluster, "p5");
    send_enrol(fifth, "b", "", 1u << 20);
    expect_refused(fifth, TOW_INVALID_ARGUMENT, "1048576");
    assert_int_equal(first->disconnect_count, 0);
    cluster_close(&cluster);
}

static void a_name_that_was_asked_for_is_kept_for_who_asks(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    send_enrol(first, "a", "trainer", ANY);
    expect_success(EXPECT(first, WORKER_ENROL, worker_enrol)->failure);
    join(first, "a", "trainer", 0);
    peer_crash(first);
    peer_t *second = peer_make(&cluster, "p2");
    enrol(second, "a", "worker-0", 1);
    peer_t *third = peer_make(&cluster, "p3");
    send_enrol(third, "a", "trainer", ANY);
    expect_success(EXPECT(third, WORKER_ENROL, worker_enrol)->failure);
    cluster_close(&cluster);
}

/* Numbers that workers chose are skipped, and those of `tow up`. */
static void numbers_are_never_used_twice(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {.options = {.own_worker_count = 2}};
    cluster_open(&cluster);
    peer_t *own = peer_make(&cluster, "worker-0");
    send_join(own, 0, DEVICES);
    expect_success(EXPECT(own, WORKER_JOINED, worker_joined)->failure);
    peer_t *chosen = peer_make(&cluster, "worker-2");
    send_join(chosen, 3, DEVICES);
    expect_success(EXPECT(chosen, WORKER_JOINED, worker_joined)->failure);
    peer_crash(chosen);
    enrol(peer_make(&cluster, "p1"), "host", "worker-3", 2);
    enrol(peer_make(&cluster, "p2"), "host", "worker-4", 4);
    cluster_close(&cluster);
}

/* It may be the one that returns: its name is not decided before its session has
 * ended. */
static void a_worker_of_a_host_with_a_silent_worker_is_asked_to_wait(
    void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = peer_make(&cluster, "p1");
    enrol(first, "a", "worker-0", 0);
    join(first, "a", "worker-0", 0);
    tow_session_t *session = first->session;
    first->session = NULL;
    tow_sim_crash(first->node);
    tow_session_discard(session);
    peer_t *early = peer_make(&cluster, "p2");
    send_enrol(early, "a", "", ANY);
    expect_refused(early, TOW_UNAVAILABLE, "worker-0");
    peer_t *elsewhere = peer_make(&cluster, "p3");
    enrol(elsewhere, "b", "worker-1", 1);
    run_for(&cluster, 4 * SECOND);
    peer_t *again = peer_make(&cluster, "p4");
    enrol(again, "a", "worker-0", 2);
    cluster_close(&cluster);
}

TOW_TEST_MAIN(
    cmocka_unit_test(workers_that_ask_for_nothing_get_names_and_numbers),
    cmocka_unit_test(a_worker_that_returns_gets_its_name_and_a_new_number),
    cmocka_unit_test(a_reservation_ends_with_its_session),
    cmocka_unit_test(a_reserved_place_is_refused_to_other_processes),
    cmocka_unit_test(taken_names_and_numbers_are_refused_with_their_holder),
    cmocka_unit_test(a_name_that_was_asked_for_is_kept_for_who_asks),
    cmocka_unit_test(numbers_are_never_used_twice),
    cmocka_unit_test(a_worker_of_a_host_with_a_silent_worker_is_asked_to_wait))
