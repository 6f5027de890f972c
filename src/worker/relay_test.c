/* The worker's side of relays, with a scripted controller and a scripted second
 * worker: messages of both are executed in one order and reported once. */
#include "worker/worker_testing_impl.h"

#include "worker/tuning.h"

#define ADD       101
#define RUN_ADD   201
#define RUN_CHAIN 202
#define OTHER     2 /* the process of the other worker */
#define SPAN      (SECOND / 10)
/* The device time that the other worker reports of each run or piece. */
#define OTHER_BUSY_NS (10 * SECOND)
#define OTHER_WAIT_NS 5
#define LAST_NUMBER   5 /* of the last message that relay_fixture_open sends */

static const uint8_t sixteen[16] = "0123456789abcde";
static const char add_text[] = "towpath-cost 1\n"
                               "name add\n"
                               "argument u8[16]\n"
                               "result u8[16]\n"
                               "duration 100000\n";

/* The other worker, with one session in each direction. */
typedef struct relay {
    worker_fixture_t fixture;
    tow_sim_node_t *node;
    tow_session_port_t *port;
    tow_session_t *dialled, *received; /* to and from the worker under test */
    bool is_accepted;                  /* the dialled session */
    bool reports_done;                 /* to each forwarded grant, at once */
    uint64_t grant_runs[RECEIVED_MAX], grant_numbers[RECEIVED_MAX];
    size_t grant_count;
    uint64_t done_runs[RECEIVED_MAX];
    uint64_t done_busy_ns; /* sum, with that of progress */
    size_t done_count;
    uint32_t progress_end; /* the last that it was told */
} relay_fixture_t;

/* -- The other worker ------------------------------------------------------ */

static void other_send(relay_fixture_t *relay, uint32_t type,
                       const tow_body_t *body)
{
    assert_int_equal(tow_session_send(relay->dialled, type, body), TOW_SEND_OK);
}

static void send_peer_open(tow_session_t *session)
{
    tow_msg_peer_open_t open = TOW_MSG_PEER_OPEN_INIT;
    open.cluster = CLUSTER;
    open.process = OTHER;
    assert_int_equal(
        tow_session_send(session, TOW_MESSAGE_PEER_OPEN, &open.base),
        TOW_SEND_OK);
}

static void send_forwarded_done(relay_fixture_t *relay, uint64_t run)
{
    tow_msg_forwarded_done_t done = TOW_MSG_FORWARDED_DONE_INIT;
    uint64_t busy_ns = OTHER_BUSY_NS, wait_ns = OTHER_WAIT_NS;
    done.runs = &run;
    done.busy_ns = &busy_ns;
    done.wait_ns = &wait_ns;
    done.n_runs = done.n_busy_ns = done.n_wait_ns = 1;
    other_send(relay, TOW_MESSAGE_FORWARDED_DONE, &done.base);
}

static void on_forwarded_grant(relay_fixture_t *relay,
                               const tow_msg_forwarded_grant_t *message)
{
    relay->grant_runs[relay->grant_count] = message->grant->run;
    relay->grant_numbers[relay->grant_count++] = message->number;
    if (relay->reports_done) send_forwarded_done(relay, message->grant->run);
}

static void other_message(void *context, tow_session_t *session,
                          const tow_message_t *message)
{
    relay_fixture_t *relay = context;
    const tow_body_t *body;
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &arena, &body));
    if (message->type == TOW_MESSAGE_PEER_OPEN) {
        if (session == relay->dialled)
            relay->is_accepted = true;
        else
            send_peer_open(session);
    } else if (message->type == TOW_MESSAGE_FORWARDED_GRANT) {
        on_forwarded_grant(relay, (const tow_msg_forwarded_grant_t *)body);
    } else {
        assert_int_equal(message->type, TOW_MESSAGE_FORWARDED_DONE);
        const tow_msg_forwarded_done_t *done =
            (const tow_msg_forwarded_done_t *)body;
        assert_int_equal(done->n_busy_ns, done->n_runs);
        for (size_t i = 0; i < done->n_runs; i++) {
            relay->done_busy_ns += done->busy_ns[i];
            relay->done_runs[relay->done_count++] = done->runs[i];
        }
        if (done->n_progress_ends > 0)
            relay->progress_end = done->progress_ends[0];
        assert_int_equal(done->n_progress_busy_ns, done->n_progress_runs);
        for (size_t i = 0; i < done->n_progress_runs; i++)
            relay->done_busy_ns += done->progress_busy_ns[i];
    }
    tow_arena_deinit(&arena);
}

static void other_opened(void *context, tow_session_t *session)
{
    relay_fixture_t *relay = context;
    if (session == relay->dialled) send_peer_open(session);
}

static void other_disconnected(void *context, tow_session_t *session,
                               tow_status_t cause)
{
    relay_fixture_t *relay = context;
    (void)cause;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    if (session == relay->dialled) relay->dialled = NULL;
    if (session == relay->received) relay->received = NULL;
}

static const tow_session_handler_t other_handler = {.opened = other_opened,
                                                    .message = other_message,
                                                    .disconnected =
                                                        other_disconnected};

static void other_arrived(void *context, tow_session_t *session)
{
    relay_fixture_t *relay = context;
    relay->received = session;
    tow_session_accept(session, &other_handler, relay);
}

static void other_open(relay_fixture_t *relay)
{
    must(tow_sim_node_create(relay->fixture.sim,
                             &(tow_sim_node_options_t){.name = "worker/2"},
                             &relay->node));
    must(tow_session_listen(
        tow_sim_node_env(relay->node),
        &(tow_session_listen_options_t){
            .address = "sim:other", .arrived = other_arrived, .context = relay},
        &relay->port));
    must(tow_session_dial(
        tow_sim_node_env(relay->node),
        &(tow_session_dial_options_t){.address = "sim:listen",
                                      .expected_name = "worker/1",
                                      .handler = &other_handler,
                                      .context = relay},
        &relay->dialled));
}

static void other_crash(relay_fixture_t *relay)
{
    tow_sim_crash(relay->node);
    if (relay->dialled != NULL) tow_session_discard(relay->dialled);
    if (relay->received != NULL) tow_session_discard(relay->received);
    if (relay->port != NULL) tow_session_port_discard(relay->port);
    relay->dialled = relay->received = NULL;
    relay->port = NULL;
}

/* -- The fixture ----------------------------------------------------------- */

static void introduce_other(relay_fixture_t *relay)
{
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    peer.process = OTHER;
    peer.name = (char *)"worker/2";
    peer.host = (char *)"host-2";
    peer.device_count = DEVICES;
    peer.listen_address = (char *)"sim:other";
    worker_fixture_send(&relay->fixture, TOW_MESSAGE_PEER, &peer.base);
}

/* The worker knows the other one, and has a program and object 1. */
static void relay_fixture_open(relay_fixture_t *relay)
{
    *relay = (relay_fixture_t){.fixture.listen_address = "sim:listen"};
    worker_fixture_t *fixture = &relay->fixture;
    worker_fixture_join(fixture, (tow_worker_limits_t){0});
    worker_fixture_send_load(fixture, ADD, add_text);
    worker_fixture_send_program(fixture, RUN_ADD, ADD);
    worker_fixture_send_chain(fixture, RUN_CHAIN, ADD);
    worker_fixture_send_put(fixture, 1, 16, sixteen, 16);
    introduce_other(relay);
    other_open(relay);
    worker_fixture_run_for(fixture, SPAN);
    assert_int_equal(fixture->received.load_code, TOW_CODE_OK);
    assert_true(relay->is_accepted);
}

static void relay_fixture_close(relay_fixture_t *relay)
{
    assert_int_equal(tow_worker_stats(relay->fixture.worker).relay_count, 0);
    other_crash(relay);
    worker_fixture_close(&relay->fixture);
}

/* Numbers of reports received so far, without failures. */
static void expect_reports(const relay_fixture_t *relay, size_t done,
                           size_t complete, size_t part)
{
    const worker_received_t *received = &relay->fixture.received;
    assert_int_equal(received->failure_count, 0);
    assert_int_equal(received->run_count, done);
    assert_int_equal(received->complete_count, complete);
    assert_int_equal(received->part_count, part);
}

static uint64_t own_busy_ns(const relay_fixture_t *relay)
{
    return tow_sim_device_counts(relay->fixture.driver).busy_ns;
}

/* Our own time, and that of the other worker for so many runs. */
static void expect_time(const relay_fixture_t *relay, uint64_t other_count)
{
    const tow_device_time_t *time = &relay->fixture.received.time;
    assert_true(own_busy_ns(relay) > 0);
    assert_int_equal(time->busy_ns,
                     own_busy_ns(relay) + other_count * OTHER_BUSY_NS);
    assert_int_equal(time->wait_ns, other_count * OTHER_WAIT_NS);
    if (other_count > 0)
        assert_int_equal(time->longest_ns, OTHER_BUSY_NS + OTHER_WAIT_NS);
}

static tow_msg_grant_t grant_of(uint64_t run, uint64_t *argument)
{
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    grant.run = run;
    grant.program = RUN_ADD;
    grant.arguments = argument;
    grant.n_arguments = 1;
    grant.first_result = 1000 * run;
    grant.first_gang = 10 * run;
    return grant;
}

/* A piece of a run of three steps, which has the gangs 10 * run + step. */
static tow_msg_grant_t piece_of(uint64_t run, uint32_t first, uint32_t end,
                                uint64_t *argument)
{
    tow_msg_grant_t grant = grant_of(run, argument);
    grant.program = RUN_CHAIN;
    grant.first_step = first;
    grant.step_end = end;
    return grant;
}

static void send_piece_to_relay(relay_fixture_t *relay, uint64_t run,
                                uint32_t first, uint32_t end)
{
    uint64_t argument = 1, number = 100 + run + first;
    uint32_t process = OTHER;
    tow_msg_grant_t grant = piece_of(run, first, end, &argument);
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = &grant;
    message.processes = &process;
    message.numbers = &number;
    message.n_processes = message.n_numbers = 1;
    worker_fixture_send(&relay->fixture, TOW_MESSAGE_RELAY_GRANT,
                        &message.base);
    worker_fixture_run_for(&relay->fixture, SPAN);
}

static void send_other_progress(relay_fixture_t *relay, uint64_t run,
                                uint32_t end)
{
    tow_msg_forwarded_done_t done = TOW_MSG_FORWARDED_DONE_INIT;
    uint64_t busy_ns = OTHER_BUSY_NS, wait_ns = OTHER_WAIT_NS;
    done.progress_runs = &run;
    done.progress_ends = &end;
    done.progress_busy_ns = &busy_ns;
    done.progress_wait_ns = &wait_ns;
    done.n_progress_runs = done.n_progress_ends = 1;
    done.n_progress_busy_ns = done.n_progress_wait_ns = 1;
    other_send(relay, TOW_MESSAGE_FORWARDED_DONE, &done.base);
    worker_fixture_run_for(&relay->fixture, SPAN);
}

/* To the worker under test, as the relay of the other one. */
static void send_relay_grant(relay_fixture_t *relay, uint64_t run,
                             uint64_t number)
{
    uint64_t argument = 1;
    uint32_t process = OTHER;
    tow_msg_grant_t grant = grant_of(run, &argument);
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = &grant;
    message.processes = &process;
    message.numbers = &number;
    message.n_processes = message.n_numbers = 1;
    worker_fixture_send(&relay->fixture, TOW_MESSAGE_RELAY_GRANT,
                        &message.base);
}

typedef enum sender {
    FROM_RELAY,
    FROM_CONTROLLER, /* a grant sent again */
} sender_t;

static void send_forwarded_grant(relay_fixture_t *relay, sender_t by,
                                 uint64_t run, uint64_t number)
{
    uint64_t argument = 1;
    tow_msg_grant_t grant = grant_of(run, &argument);
    tow_msg_forwarded_grant_t message = TOW_MSG_FORWARDED_GRANT_INIT;
    message.grant = &grant;
    message.number = number;
    if (by == FROM_RELAY)
        other_send(relay, TOW_MESSAGE_FORWARDED_GRANT, &message.base);
    else
        worker_fixture_send(&relay->fixture, TOW_MESSAGE_FORWARDED_GRANT,
                            &message.base);
}

static void send_sequence(relay_fixture_t *relay, uint64_t next)
{
    tow_msg_sequence_t sequence = TOW_MSG_SEQUENCE_INIT;
    sequence.next = next;
    worker_fixture_send(&relay->fixture, TOW_MESSAGE_SEQUENCE, &sequence.base);
}

/* -- As a relay ------------------------------------------------------------ */

static void a_relay_forwards_grants_and_reports_once_for_all(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    relay.reports_done = true;
    send_relay_grant(&relay, 7, 11); /* Dials the session first. */
    worker_fixture_run_for(&relay.fixture, SPAN);
    send_relay_grant(&relay, 8, 12);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.grant_count, 2);
    assert_int_equal(relay.grant_runs[1], 8);
    assert_int_equal(relay.grant_numbers[0], 11);
    assert_int_equal(relay.grant_numbers[1], 12);
    expect_reports(&relay, 0, 2, 0);
    expect_time(&relay, 2);
    assert_int_equal(relay.fixture.received.complete_runs[1], 8);
    relay_fixture_close(&relay);
}

static void a_relay_reports_partially_when_others_are_slow(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_relay_grant(&relay, 7, 11);
    worker_fixture_run_for(&relay.fixture, SPAN);
    expect_reports(&relay, 0, 0, 1);
    expect_time(&relay, 0);
    assert_int_equal(relay.fixture.received.part_processes[0], 1);
    send_forwarded_done(&relay, 7);
    worker_fixture_run_for(&relay.fixture, SPAN);
    expect_reports(&relay, 0, 0, 2);
    expect_time(&relay, 1);
    assert_int_equal(relay.fixture.received.part_runs[1], 7);
    assert_int_equal(relay.fixture.received.part_processes[1], OTHER);
    relay_fixture_close(&relay);
}

static void a_relay_whose_own_part_fails_still_forwards_reports(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    relay.reports_done = true;
    worker_fixture_send_release(&relay.fixture, 1,
                                1); /* The argument is missing. */
    send_relay_grant(&relay, 7, 11);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.fixture.received.failure_count, 1);
    assert_int_equal(relay.fixture.received.failures[0].run, 7);
    assert_int_equal(relay.fixture.received.part_count, 1);
    assert_int_equal(relay.fixture.received.part_processes[0], OTHER);
    relay_fixture_close(&relay);
}

static void a_relay_reports_a_disconnected_member(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_relay_grant(&relay, 7, 11);
    worker_fixture_run_for(&relay.fixture, SPAN);
    other_crash(&relay);
    worker_fixture_run_for(&relay.fixture, 5 * SECOND);
    assert_int_equal(relay.fixture.received.relay_disconnected_count, 1);
    assert_int_equal(relay.fixture.received.relay_disconnected_process, OTHER);
    expect_reports(&relay, 0, 0, 1); /* Its own part. */
    relay_fixture_close(&relay);
}

static void expect_least(const relay_fixture_t *relay, uint32_t end, int count)
{
    const worker_received_t *received = &relay->fixture.received;
    assert_int_equal(received->least_count, count);
    if (count > 0) assert_int_equal(received->least_run, 7);
    assert_int_equal(received->least_end, end);
}

static void a_relay_reports_the_least_progress_of_its_group(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_piece_to_relay(&relay, 7, 0, 1);
    send_piece_to_relay(&relay, 7, 1, 2); /* Two pieces have ended here. */
    assert_int_equal(relay.grant_count, 2);
    expect_least(&relay, 0, 0);
    send_other_progress(&relay, 7, 1);
    expect_least(&relay, 1, 1);
    expect_time(&relay, 1);
    send_other_progress(&relay, 7, 2);
    expect_least(&relay, 2, 2);
    expect_time(&relay, 2);
    send_piece_to_relay(&relay, 7, 2, 3);
    expect_reports(&relay, 0, 0, 1);
    send_forwarded_done(&relay, 7);
    worker_fixture_run_for(&relay.fixture, SPAN);
    expect_reports(&relay, 0, 0, 2);
    expect_least(&relay, 2, 2);
    expect_time(&relay, 3);
    relay_fixture_close(&relay);
}

/* The other worker did not get as far: our own progress was not reported. */
static void progress_is_passed_on_when_the_relay_fails(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_piece_to_relay(&relay, 7, 0, 1);
    assert_int_equal(relay.fixture.received.time.busy_ns, 0);
    worker_fixture_send_abort(&relay.fixture, 7, "enough");
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.fixture.received.failure_count, 1);
    assert_int_equal(relay.fixture.received.part_count, 1);
    assert_int_equal(relay.fixture.received.part_ends[0], 1);
    expect_time(&relay, 0);
    send_other_progress(&relay, 7, 1);
    expect_time(&relay, 1);
    relay_fixture_close(&relay);
}

/* Its batch ends some time after its own report. */
static void a_relay_forwards_late_progress_by_itself(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_piece_to_relay(&relay, 7, 0, 1);
    send_piece_to_relay(&relay, 7, 1, 0);
    expect_reports(&relay, 0, 0, 1);
    send_other_progress(&relay, 7, 1);
    expect_reports(&relay, 0, 0, 2);
    assert_int_equal(relay.fixture.received.part_ends[0], 0);
    assert_int_equal(relay.fixture.received.part_ends[1], 1);
    assert_int_equal(relay.fixture.received.part_processes[1], OTHER);
    expect_time(&relay, 1);
    relay_fixture_close(&relay);
}

static void a_disconnected_member_does_not_hold_back_progress(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_piece_to_relay(&relay, 7, 0, 1);
    expect_least(&relay, 0, 0);
    other_crash(&relay);
    worker_fixture_run_for(&relay.fixture, 5 * SECOND);
    assert_int_equal(relay.fixture.received.relay_disconnected_count, 1);
    expect_least(&relay, 1, 1);
    expect_time(&relay, 0);
    worker_fixture_send_abort(&relay.fixture, 7, "a worker is gone");
    worker_fixture_run_for(&relay.fixture, SPAN);
    relay_fixture_close(&relay);
}

/* -- Behind a relay -------------------------------------------------------- */

static void send_forwarded_piece(relay_fixture_t *relay, sender_t by,
                                 uint32_t first, uint32_t end)
{
    uint64_t argument = 1;
    tow_msg_grant_t grant = piece_of(7, first, end, &argument);
    tow_msg_forwarded_grant_t message = TOW_MSG_FORWARDED_GRANT_INIT;
    message.grant = &grant;
    message.number = LAST_NUMBER + 1 + first;
    if (by == FROM_RELAY)
        other_send(relay, TOW_MESSAGE_FORWARDED_GRANT, &message.base);
    else
        worker_fixture_send(&relay->fixture, TOW_MESSAGE_FORWARDED_GRANT,
                            &message.base);
    worker_fixture_run_for(&relay->fixture, SPAN);
}

static void progress_is_reported_to_the_sender_of_the_piece(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    const worker_received_t *received = &relay.fixture.received;
    send_forwarded_piece(&relay, FROM_RELAY, 0, 1);
    assert_int_equal(relay.progress_end, 1);
    assert_int_equal(received->progress_count, 0);
    /* The report may be lost. */
    send_forwarded_piece(&relay, FROM_CONTROLLER, 0, 1);
    assert_int_equal(received->progress_end, 1);
    send_forwarded_piece(&relay, FROM_CONTROLLER, 1, 2);
    assert_int_equal(received->progress_end, 2);
    assert_int_equal(relay.progress_end, 1);
    uint64_t argument = 1;
    tow_msg_grant_t grant = piece_of(7, 2, 0, &argument);
    send_sequence(&relay, LAST_NUMBER + 3);
    worker_fixture_send(&relay.fixture, TOW_MESSAGE_GRANT, &grant.base);
    worker_fixture_run_for(&relay.fixture, SPAN);
    expect_reports(&relay, 1, 0, 0);
    assert_int_equal(tow_worker_stats(relay.fixture.worker).dataflow.granted,
                     1);
    /* The time of the first piece is the relay's, and is not sent twice. */
    assert_true(relay.done_busy_ns > 0);
    assert_int_equal(relay.done_busy_ns + received->time.busy_ns,
                     own_busy_ns(&relay));
    relay_fixture_close(&relay);
}

static void a_stale_piece_leaves_no_route(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_forwarded_piece(&relay, FROM_RELAY, 0, 1);
    send_sequence(&relay, LAST_NUMBER + 2);
    worker_fixture_send_abort(&relay.fixture, 7, "a client is gone");
    worker_fixture_run_for(&relay.fixture, SPAN);
    send_piece_to_relay(&relay, 7, 1, 2);
    assert_int_equal(relay.fixture.received.failure_count, 1);
    assert_int_equal(
        tow_worker_stats(relay.fixture.worker).dataflow.stale_count, 1);
    relay_fixture_close(&relay);
}

static void a_forwarded_grant_is_reported_to_its_relay(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_forwarded_grant(&relay, FROM_RELAY, 7, LAST_NUMBER + 1);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.done_count, 1);
    assert_int_equal(relay.done_runs[0], 7);
    assert_int_equal(relay.done_busy_ns, own_busy_ns(&relay));
    expect_reports(&relay, 0, 0, 0);
    relay_fixture_close(&relay);
}

static void an_early_forwarded_grant_waits_for_earlier_messages(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_forwarded_grant(&relay, FROM_RELAY, 7, LAST_NUMBER + 2);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.done_count, 0);
    worker_fixture_send_grant(&relay.fixture, 6, RUN_ADD, 1);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.done_count, 1);
    expect_reports(&relay, 1, 0, 0);
    assert_int_equal(relay.fixture.received.runs[0], 6);
    relay_fixture_close(&relay);
}

static void later_messages_wait_for_a_forwarded_grant(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_sequence(&relay, LAST_NUMBER + 2);
    worker_fixture_send_release(&relay.fixture, 1,
                                1); /* The grant's argument. */
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(
        tow_worker_stats(relay.fixture.worker).shard_store.object_count, 1);
    send_forwarded_grant(&relay, FROM_RELAY, 7, LAST_NUMBER + 1);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.done_count, 1);
    assert_int_equal(
        tow_worker_stats(relay.fixture.worker).shard_store.object_count, 1);
    worker_fixture_send_release(&relay.fixture, 7000, 1); /* Its result. */
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(
        tow_worker_stats(relay.fixture.worker).shard_store.object_count, 0);
    relay_fixture_close(&relay);
}

static void a_resent_grant_is_executed_once(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_forwarded_grant(&relay, FROM_RELAY, 7, LAST_NUMBER + 1);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.done_count, 1);
    /* The report may be lost: it is sent again, to the controller. */
    send_forwarded_grant(&relay, FROM_CONTROLLER, 7, LAST_NUMBER + 1);
    /* The relay's copy of this grant arrives later. */
    send_forwarded_grant(&relay, FROM_CONTROLLER, 8, LAST_NUMBER + 2);
    worker_fixture_run_for(&relay.fixture, SPAN);
    send_forwarded_grant(&relay, FROM_RELAY, 8, LAST_NUMBER + 2);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.done_count, 1);
    expect_reports(&relay, 2, 0, 0);
    assert_int_equal(relay.fixture.received.runs[0], 7);
    assert_int_equal(relay.fixture.received.runs[1], 8);
    assert_int_equal(tow_worker_stats(relay.fixture.worker).dataflow.granted,
                     2);
    relay_fixture_close(&relay);
}

static void a_run_is_reported_to_the_latest_sender_of_its_grant(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_forwarded_grant(&relay, FROM_RELAY, 8, LAST_NUMBER + 2);
    worker_fixture_run_for(&relay.fixture, SPAN);
    send_forwarded_grant(&relay, FROM_CONTROLLER, 7, LAST_NUMBER + 1);
    /* The run has just begun. */
    send_forwarded_grant(&relay, FROM_CONTROLLER, 8, LAST_NUMBER + 2);
    worker_fixture_run_for(&relay.fixture, SPAN);
    expect_reports(&relay, 2, 0, 0);
    send_forwarded_grant(&relay, FROM_RELAY, 10, LAST_NUMBER + 4);
    worker_fixture_run_for(&relay.fixture, SPAN);
    /* The run still waits. */
    send_forwarded_grant(&relay, FROM_CONTROLLER, 10, LAST_NUMBER + 4);
    send_forwarded_grant(&relay, FROM_CONTROLLER, 9, LAST_NUMBER + 3);
    worker_fixture_run_for(&relay.fixture, SPAN);
    expect_reports(&relay, 4, 0, 0);
    assert_int_equal(relay.done_count, 0);
    relay_fixture_close(&relay);
}

static void a_worker_reports_its_disconnected_relay(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_forwarded_grant(&relay, FROM_RELAY, 7, LAST_NUMBER + 1);
    worker_fixture_run_for(&relay.fixture, SPAN);
    other_crash(&relay);
    worker_fixture_run_for(&relay.fixture, 5 * SECOND);
    assert_int_equal(relay.fixture.received.relay_disconnected_count, 1);
    assert_int_equal(relay.fixture.received.relay_disconnected_process, OTHER);
    relay_fixture_close(&relay);
}

/* -- Protocol violations --------------------------------------------------- */

static void a_relay_grant_without_processes_ends_the_session(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    uint64_t argument = 1;
    tow_msg_grant_t grant = grant_of(7, &argument);
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = &grant;
    worker_fixture_send(&relay.fixture, TOW_MESSAGE_RELAY_GRANT, &message.base);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.fixture.received.session_end_count, 1);
    expect_part(relay.fixture.received.session_end_message, "0 processes");
    relay_fixture_close(&relay);
}

static void a_decreasing_number_ends_the_session(void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    send_sequence(&relay, LAST_NUMBER);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_int_equal(relay.fixture.received.session_end_count, 1);
    expect_part(relay.fixture.received.session_end_message,
                "number 5 after number 5");
    relay_fixture_close(&relay);
}

static void a_forwarded_grant_without_a_grant_ends_the_session_of_its_sender(
    void **state)
{
    (void)state;
    relay_fixture_t relay;
    relay_fixture_open(&relay);
    tow_msg_forwarded_grant_t message = TOW_MSG_FORWARDED_GRANT_INIT;
    message.number = LAST_NUMBER + 1;
    other_send(&relay, TOW_MESSAGE_FORWARDED_GRANT, &message.base);
    worker_fixture_run_for(&relay.fixture, SPAN);
    assert_null(relay.dialled);
    assert_int_equal(relay.fixture.received.session_end_count, 0);
    relay_fixture_close(&relay);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_relay_forwards_grants_and_reports_once_for_all),
    cmocka_unit_test(a_relay_reports_partially_when_others_are_slow),
    cmocka_unit_test(a_relay_whose_own_part_fails_still_forwards_reports),
    cmocka_unit_test(a_relay_reports_a_disconnected_member),
    cmocka_unit_test(a_relay_reports_the_least_progress_of_its_group),
    cmocka_unit_test(progress_is_passed_on_when_the_relay_fails),
    cmocka_unit_test(a_relay_forwards_late_progress_by_itself),
    cmocka_unit_test(a_disconnected_member_does_not_hold_back_progress),
    cmocka_unit_test(progress_is_reported_to_the_sender_of_the_piece),
    cmocka_unit_test(a_stale_piece_leaves_no_route),
    cmocka_unit_test(a_forwarded_grant_is_reported_to_its_relay),
    cmocka_unit_test(an_early_forwarded_grant_waits_for_earlier_messages),
    cmocka_unit_test(later_messages_wait_for_a_forwarded_grant),
    cmocka_unit_test(a_resent_grant_is_executed_once),
    cmocka_unit_test(a_run_is_reported_to_the_latest_sender_of_its_grant),
    cmocka_unit_test(a_worker_reports_its_disconnected_relay),
    cmocka_unit_test(a_relay_grant_without_processes_ends_the_session),
    cmocka_unit_test(a_decreasing_number_ends_the_session),
    cmocka_unit_test(
        a_forwarded_grant_without_a_grant_ends_the_session_of_its_sender))
