/* The worker's side of relays, against a controller and another worker that the
 * tests play: what comes on two ways is done in one order and reported once. */
#include "worker/world_testing_impl.h"

#include "worker/tuning.h"

#define ADD       101
#define RUN_ADD   201
#define OTHER     2 /* the process of the other worker */
#define SPAN      (SECOND / 10)
#define TOLD_LAST 4 /* the number of the last thing that `stage_open` says */

static const uint8_t sixteen[16] = "0123456789abcde";
static const char add_text[] = "towpath-cost 1\n"
                               "name add\n"
                               "argument u8[16]\n"
                               "result u8[16]\n"
                               "duration 100000\n";

/* The other worker, with one session in each direction. */
typedef struct stage {
    world_t world;
    tow_sim_node_t *node;
    tow_session_port_t *port;
    tow_session_t *spoken, *heard; /* ours to it; its to us */
    bool is_let_in;                /* ours */
    bool answers;                  /* reports what it is passed, at once */
    uint64_t grant_runs[HEARD_MAX], grant_numbers[HEARD_MAX];
    size_t grant_count;
    uint64_t done_runs[HEARD_MAX];
    size_t done_count;
} stage_t;

/* -- The other worker ------------------------------------------------------------ */

static void other_say(stage_t *stage, uint32_t type, const tow_body_t *body)
{
    assert_int_equal(tow_session_send(stage->spoken, type, body), TOW_SEND_OK);
}

static void say_who(tow_session_t *session)
{
    tow_msg_peer_open_t open = TOW_MSG_PEER_OPEN_INIT;
    open.cluster = CLUSTER;
    open.process = OTHER;
    assert_int_equal(
        tow_session_send(session, TOW_MESSAGE_PEER_OPEN, &open.base),
        TOW_SEND_OK);
}

static void say_passed_done(stage_t *stage, uint64_t run)
{
    tow_msg_passed_done_t done = TOW_MSG_PASSED_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    other_say(stage, TOW_MESSAGE_PASSED_DONE, &done.base);
}

static void hear_passed_grant(stage_t *stage,
                              const tow_msg_passed_grant_t *message)
{
    stage->grant_runs[stage->grant_count] = message->grant->run;
    stage->grant_numbers[stage->grant_count++] = message->number;
    if (stage->answers) say_passed_done(stage, message->grant->run);
}

static void other_message(void *context, tow_session_t *session,
                          const tow_message_t *message)
{
    stage_t *stage = context;
    const tow_body_t *body;
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &arena, &body));
    if (message->type == TOW_MESSAGE_PEER_OPEN) {
        if (session == stage->spoken)
            stage->is_let_in = true;
        else
            say_who(session);
    } else if (message->type == TOW_MESSAGE_PASSED_GRANT) {
        hear_passed_grant(stage, (const tow_msg_passed_grant_t *)body);
    } else {
        assert_int_equal(message->type, TOW_MESSAGE_PASSED_DONE);
        const tow_msg_passed_done_t *done = (const tow_msg_passed_done_t *)body;
        for (size_t i = 0; i < done->n_runs; i++)
            stage->done_runs[stage->done_count++] = done->runs[i];
    }
    tow_arena_deinit(&arena);
}

static void other_opened(void *context, tow_session_t *session)
{
    stage_t *stage = context;
    if (session == stage->spoken) say_who(session);
}

static void other_gone(void *context, tow_session_t *session,
                       tow_status_t cause)
{
    stage_t *stage = context;
    (void)cause;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    if (session == stage->spoken) stage->spoken = NULL;
    if (session == stage->heard) stage->heard = NULL;
}

static const tow_session_handler_t other_handler = {.opened = other_opened,
                                                    .message = other_message,
                                                    .gone = other_gone};

static void other_arrived(void *context, tow_session_t *session)
{
    stage_t *stage = context;
    stage->heard = session;
    tow_session_accept(session, &other_handler, stage);
}

static void other_open(stage_t *stage)
{
    must(tow_sim_node_create(stage->world.sim,
                             &(tow_sim_node_options_t){.name = "worker/2"},
                             &stage->node));
    must(tow_session_listen(
        tow_sim_node_env(stage->node),
        &(tow_session_listen_options_t){
            .address = "sim:other", .arrived = other_arrived, .context = stage},
        &stage->port));
    must(tow_session_dial(
        tow_sim_node_env(stage->node),
        &(tow_session_dial_options_t){.address = "sim:door",
                                      .expected_name = "worker/1",
                                      .handler = &other_handler,
                                      .context = stage},
        &stage->spoken));
}

static void other_crash(stage_t *stage)
{
    tow_sim_crash(stage->node);
    if (stage->spoken != NULL) tow_session_abandon(stage->spoken);
    if (stage->heard != NULL) tow_session_abandon(stage->heard);
    if (stage->port != NULL) tow_session_port_abandon(stage->port);
    stage->spoken = stage->heard = NULL;
    stage->port = NULL;
}

/* -- The stage --------------------------------------------------------------------- */

static void introduce_other(stage_t *stage)
{
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    peer.process = OTHER;
    peer.name = (char *)"worker/2";
    peer.host = (char *)"host-2";
    peer.device_count = DEVICES;
    peer.door = (char *)"sim:other";
    say(&stage->world, TOW_MESSAGE_PEER, &peer.base);
}

/* A worker that knows the other, with a program and object 1. */
static void stage_open(stage_t *stage)
{
    *stage = (stage_t){.world.door = "sim:door"};
    world_t *world = &stage->world;
    world_join(world, (tow_worker_limits_t){0});
    say_load(world, ADD, add_text);
    say_program(world, RUN_ADD, ADD);
    say_put(world, 1, 16, sixteen, 16);
    introduce_other(stage);
    other_open(stage);
    run_for(world, SPAN);
    assert_int_equal(world->heard.load_code, TOW_CODE_OK);
    assert_true(stage->is_let_in);
}

static void stage_close(stage_t *stage)
{
    assert_int_equal(tow_worker_stats(stage->world.worker).relay_count, 0);
    other_crash(stage);
    world_close(&stage->world);
}

/* Nothing that a run left behind, and nothing that was said twice. */
static void expect_heard(const stage_t *stage, size_t done, size_t whole,
                         size_t part)
{
    const heard_t *heard = &stage->world.heard;
    assert_int_equal(heard->failure_count, 0);
    assert_int_equal(heard->run_count, done);
    assert_int_equal(heard->whole_count, whole);
    assert_int_equal(heard->part_count, part);
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

/* From the controller to the worker, which is the other's relay. */
static void say_relay_grant(stage_t *stage, uint64_t run, uint64_t number)
{
    uint64_t argument = 1;
    uint32_t process = OTHER;
    tow_msg_grant_t grant = grant_of(run, &argument);
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = &grant;
    message.processes = &process;
    message.numbers = &number;
    message.n_processes = message.n_numbers = 1;
    say(&stage->world, TOW_MESSAGE_RELAY_GRANT, &message.base);
}

typedef enum speaker {
    BY_RELAY,
    BY_CONTROLLER, /* that does not know whether the relay did */
} speaker_t;

static void say_passed_grant(stage_t *stage, speaker_t by, uint64_t run,
                             uint64_t number)
{
    uint64_t argument = 1;
    tow_msg_grant_t grant = grant_of(run, &argument);
    tow_msg_passed_grant_t message = TOW_MSG_PASSED_GRANT_INIT;
    message.grant = &grant;
    message.number = number;
    if (by == BY_RELAY)
        other_say(stage, TOW_MESSAGE_PASSED_GRANT, &message.base);
    else
        say(&stage->world, TOW_MESSAGE_PASSED_GRANT, &message.base);
}

static void say_sequence(stage_t *stage, uint64_t next)
{
    tow_msg_sequence_t sequence = TOW_MSG_SEQUENCE_INIT;
    sequence.next = next;
    say(&stage->world, TOW_MESSAGE_SEQUENCE, &sequence.base);
}

/* -- As a relay ---------------------------------------------------------------------- */

static void a_relay_passes_a_grant_on_and_reports_once_for_all(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    stage.answers = true;
    say_relay_grant(&stage, 7, 11); /* Its session has to be dialled. */
    run_for(&stage.world, SPAN);
    say_relay_grant(&stage, 8, 12);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.grant_count, 2);
    assert_int_equal(stage.grant_runs[1], 8);
    assert_int_equal(stage.grant_numbers[0], 11);
    assert_int_equal(stage.grant_numbers[1], 12);
    expect_heard(&stage, 0, 2, 0);
    assert_int_equal(stage.world.heard.whole_runs[1], 8);
    stage_close(&stage);
}

static void a_relay_waits_for_the_others_only_for_a_while(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_relay_grant(&stage, 7, 11);
    run_for(&stage.world, SPAN);
    expect_heard(&stage, 0, 0, 1);
    assert_int_equal(stage.world.heard.part_processes[0], 1);
    say_passed_done(&stage, 7);
    run_for(&stage.world, SPAN);
    expect_heard(&stage, 0, 0, 2);
    assert_int_equal(stage.world.heard.part_runs[1], 7);
    assert_int_equal(stage.world.heard.part_processes[1], OTHER);
    stage_close(&stage);
}

static void a_relay_whose_own_part_fails_still_passes_others_reports(
    void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    stage.answers = true;
    say_release(&stage.world, 1, 1); /* Nothing is there to run on. */
    say_relay_grant(&stage, 7, 11);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.world.heard.failure_count, 1);
    assert_int_equal(stage.world.heard.failures[0].run, 7);
    assert_int_equal(stage.world.heard.part_count, 1);
    assert_int_equal(stage.world.heard.part_processes[0], OTHER);
    stage_close(&stage);
}

static void a_relay_says_whom_it_lost(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_relay_grant(&stage, 7, 11);
    run_for(&stage.world, SPAN);
    other_crash(&stage);
    run_for(&stage.world, 5 * SECOND);
    assert_int_equal(stage.world.heard.relay_lost_count, 1);
    assert_int_equal(stage.world.heard.relay_lost_process, OTHER);
    expect_heard(&stage, 0, 0, 1); /* Its own part was told. */
    stage_close(&stage);
}

/* -- As one who has a relay ------------------------------------------------------------ */

static void a_passed_grant_is_reported_to_who_passed_it(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_passed_grant(&stage, BY_RELAY, 7, TOLD_LAST + 1);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.done_count, 1);
    assert_int_equal(stage.done_runs[0], 7);
    expect_heard(&stage, 0, 0, 0);
    stage_close(&stage);
}

static void a_passed_grant_that_comes_early_waits_for_what_is_before(
    void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_passed_grant(&stage, BY_RELAY, 7, TOLD_LAST + 2);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.done_count, 0);
    say_grant(&stage.world, 6, RUN_ADD, 1);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.done_count, 1);
    expect_heard(&stage, 1, 0, 0);
    assert_int_equal(stage.world.heard.runs[0], 6);
    stage_close(&stage);
}

static void what_the_controller_says_later_waits_for_the_passed_grant(
    void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_sequence(&stage, TOLD_LAST + 2);
    say_release(&stage.world, 1, 1); /* The grant's argument. */
    run_for(&stage.world, SPAN);
    assert_int_equal(tow_worker_stats(stage.world.worker).shelf.object_count,
                     1);
    say_passed_grant(&stage, BY_RELAY, 7, TOLD_LAST + 1);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.done_count, 1);
    assert_int_equal(tow_worker_stats(stage.world.worker).shelf.object_count,
                     1);
    say_release(&stage.world, 7000, 1); /* Its result. */
    run_for(&stage.world, SPAN);
    assert_int_equal(tow_worker_stats(stage.world.worker).shelf.object_count,
                     0);
    stage_close(&stage);
}

static void a_grant_that_is_sent_again_is_done_once(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_passed_grant(&stage, BY_RELAY, 7, TOLD_LAST + 1);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.done_count, 1);
    /* The report may be lost: it is told again, to the controller. */
    say_passed_grant(&stage, BY_CONTROLLER, 7, TOLD_LAST + 1);
    /* This one had not come, and comes late by the relay. */
    say_passed_grant(&stage, BY_CONTROLLER, 8, TOLD_LAST + 2);
    run_for(&stage.world, SPAN);
    say_passed_grant(&stage, BY_RELAY, 8, TOLD_LAST + 2);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.done_count, 1);
    expect_heard(&stage, 2, 0, 0);
    assert_int_equal(stage.world.heard.runs[0], 7);
    assert_int_equal(stage.world.heard.runs[1], 8);
    assert_int_equal(tow_worker_stats(stage.world.worker).dataflow.granted, 2);
    stage_close(&stage);
}

static void a_run_is_reported_to_who_spoke_of_it_last(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_passed_grant(&stage, BY_RELAY, 8, TOLD_LAST + 2);
    run_for(&stage.world, SPAN);
    say_passed_grant(&stage, BY_CONTROLLER, 7, TOLD_LAST + 1);
    /* It has begun just now. */
    say_passed_grant(&stage, BY_CONTROLLER, 8, TOLD_LAST + 2);
    run_for(&stage.world, SPAN);
    expect_heard(&stage, 2, 0, 0);
    say_passed_grant(&stage, BY_RELAY, 10, TOLD_LAST + 4);
    run_for(&stage.world, SPAN);
    /* And this one still waits. */
    say_passed_grant(&stage, BY_CONTROLLER, 10, TOLD_LAST + 4);
    say_passed_grant(&stage, BY_CONTROLLER, 9, TOLD_LAST + 3);
    run_for(&stage.world, SPAN);
    expect_heard(&stage, 4, 0, 0);
    assert_int_equal(stage.done_count, 0);
    stage_close(&stage);
}

static void one_whose_relay_is_lost_says_so(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_passed_grant(&stage, BY_RELAY, 7, TOLD_LAST + 1);
    run_for(&stage.world, SPAN);
    other_crash(&stage);
    run_for(&stage.world, 5 * SECOND);
    assert_int_equal(stage.world.heard.relay_lost_count, 1);
    assert_int_equal(stage.world.heard.relay_lost_process, OTHER);
    stage_close(&stage);
}

/* -- Against the rules ------------------------------------------------------------------- */

static void a_relay_grant_for_nobody_ends_the_session(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    uint64_t argument = 1;
    tow_msg_grant_t grant = grant_of(7, &argument);
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = &grant;
    say(&stage.world, TOW_MESSAGE_RELAY_GRANT, &message.base);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.world.heard.gone_count, 1);
    expect_part(stage.world.heard.gone_message, "0 processes");
    stage_close(&stage);
}

static void numbers_that_go_back_end_the_session(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    say_sequence(&stage, TOLD_LAST);
    run_for(&stage.world, SPAN);
    assert_int_equal(stage.world.heard.gone_count, 1);
    expect_part(stage.world.heard.gone_message, "number 4 after number 4");
    stage_close(&stage);
}

static void a_passed_grant_without_one_costs_its_sender_the_session(
    void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    tow_msg_passed_grant_t message = TOW_MSG_PASSED_GRANT_INIT;
    message.number = TOLD_LAST + 1;
    other_say(&stage, TOW_MESSAGE_PASSED_GRANT, &message.base);
    run_for(&stage.world, SPAN);
    assert_null(stage.spoken);
    assert_int_equal(stage.world.heard.gone_count, 0);
    stage_close(&stage);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_relay_passes_a_grant_on_and_reports_once_for_all),
    cmocka_unit_test(a_relay_waits_for_the_others_only_for_a_while),
    cmocka_unit_test(a_relay_whose_own_part_fails_still_passes_others_reports),
    cmocka_unit_test(a_relay_says_whom_it_lost),
    cmocka_unit_test(a_passed_grant_is_reported_to_who_passed_it),
    cmocka_unit_test(a_passed_grant_that_comes_early_waits_for_what_is_before),
    cmocka_unit_test(what_the_controller_says_later_waits_for_the_passed_grant),
    cmocka_unit_test(a_grant_that_is_sent_again_is_done_once),
    cmocka_unit_test(a_run_is_reported_to_who_spoke_of_it_last),
    cmocka_unit_test(one_whose_relay_is_lost_says_so),
    cmocka_unit_test(a_relay_grant_for_nobody_ends_the_session),
    cmocka_unit_test(numbers_that_go_back_end_the_session),
    cmocka_unit_test(a_passed_grant_without_one_costs_its_sender_the_session))
