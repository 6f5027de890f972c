/* Peers that have the token and violate the protocol: their session ends with
 * an error that names the violation; other sessions continue; nothing leaks. */
#include "session/session_testing_impl.h"

#define ID 0x1234

/* The hostile end: a bare link of node "a". */
typedef struct rogue {
    tow_link_t *link;
    uint64_t session; /* as sent by the victim */
    bool was_down;
    bool was_ended;
    char end_reason[256];
} rogue_t;

static void rogue_up(void *context, tow_link_t *link)
{
    rogue_t *rogue = context;
    rogue->link = link;
}

static void rogue_message(void *context, tow_link_t *link,
                          const tow_message_t *message)
{
    rogue_t *rogue = context;
    tow_arena_t arena;
    const tow_body_t *body;
    if (message->type != TOW_MESSAGE_SESSION_RESUME &&
        message->type != TOW_MESSAGE_SESSION_END)
        return;
    tow_arena_init(&arena, 1 << 20);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &arena, &body));
    if (message->type == TOW_MESSAGE_SESSION_RESUME)
        rogue->session = ((const tow_msg_session_resume_t *)body)->session;
    if (message->type == TOW_MESSAGE_SESSION_END && !rogue->was_ended) {
        rogue->was_ended = true;
        snprintf(rogue->end_reason, sizeof(rogue->end_reason), "%s",
                 ((const tow_msg_session_end_t *)body)->reason);
    }
    tow_arena_deinit(&arena);
}

static void rogue_down(void *context, tow_link_t *link, tow_status_t cause)
{
    rogue_t *rogue = context;
    rogue->was_down = true;
}

static const tow_link_handler_t rogue_handler = {
    .up = rogue_up,
    .message = rogue_message,
    .down = rogue_down,
};

static void say(rogue_t *rogue, uint32_t type, const tow_body_t *body)
{
    uint8_t bytes[1024];
    size_t size = tow_message_encode(body, bytes);
    tow_send_result_t result =
        tow_link_send(rogue->link, type, bytes, (uint32_t)size);
    assert_int_not_equal(result, TOW_SEND_FULL);
}

static void say_resume(rogue_t *rogue, uint64_t session, uint64_t received)
{
    tow_msg_session_resume_t resume = TOW_MSG_SESSION_RESUME_INIT;
    resume.session = session;
    resume.received = received;
    say(rogue, TOW_MESSAGE_SESSION_RESUME, &resume.base);
}

static void say_ack(rogue_t *rogue, uint64_t received)
{
    tow_msg_session_ack_t ack = TOW_MSG_SESSION_ACK_INIT;
    ack.received = received;
    ack.sent_ns = UINT64_MAX;
    ack.echo_ns = UINT64_MAX;
    ack.echo_age_ns = UINT64_MAX;
    say(rogue, TOW_MESSAGE_SESSION_ACK, &ack.base);
}

static void say_part(rogue_t *rogue, tow_msg_blob_t part, size_t length)
{
    static uint8_t bytes[64] = {1, 2, 3};
    part.part = (ProtobufCBinaryData){length, bytes};
    say(rogue, TOW_MESSAGE_BLOB, &part.base);
}

static tow_msg_blob_t part_of(uint64_t blob, uint64_t size, uint64_t offset)
{
    tow_msg_blob_t part = TOW_MSG_BLOB_INIT;
    part.blob = blob;
    part.size = size;
    part.offset = offset;
    return part;
}

/* -- Violations after a correct resume ------------------------------------- */

static void resume_twice(rogue_t *rogue)
{
    say_resume(rogue, rogue->session, 0);
}

static void acknowledge_too_much(rogue_t *rogue)
{
    say_ack(rogue, 6);
}

static void acknowledge_less_than_before(rogue_t *rogue)
{
    say_ack(rogue, 3);
    say_ack(rogue, 2);
}

static void speak_as_in_a_handshake(rogue_t *rogue)
{
    tow_msg_refuse_t refuse = TOW_MSG_REFUSE_INIT;
    refuse.reason = "go away";
    say(rogue, TOW_MESSAGE_REFUSE, &refuse.base);
}

static void speak_an_unknown_word(rogue_t *rogue)
{
    assert_int_equal(tow_link_send(rogue->link, 47, "", 0), TOW_SEND_OK);
}

static void speak_rubbish(rogue_t *rogue)
{
    assert_int_equal(
        tow_link_send(rogue->link, TOW_MESSAGE_SESSION_ACK, "\xff\xff", 2),
        TOW_SEND_OK);
}

static void skip_a_part(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 100, 0), 10);
    say_part(rogue, part_of(1, 100, 20), 10);
}

static void change_the_size(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 100, 0), 10);
    say_part(rogue, part_of(1, 1000, 10), 10);
}

static void overrun_the_size(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 9, 0), 10);
}

static void send_an_empty_part(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 9, 0), 0);
}

static void begin_in_the_middle(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 100, UINT64_MAX), 10);
}

static void repeat_a_blob(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 10, 0), 10);
    say_part(rogue, part_of(1, 10, 0), 10);
}

static void send_too_large_a_blob(rogue_t *rogue)
{
    say_part(rogue, part_of(1, UINT64_MAX, 0), 10);
}

static void talk_within_a_blob(rogue_t *rogue)
{
    say_part(rogue, part_of(1, 100, 0), 10);
    assert_int_equal(tow_link_send(rogue->link, TEST_TYPE, "", 0), TOW_SEND_OK);
}

static const struct {
    const char *name;
    void (*act)(rogue_t *rogue);
    const char *told; /* part of the victim's error */
} acts[] = {
    {"resume twice", resume_twice, "twice in one epoch"},
    {"too much", acknowledge_too_much, "6 messages; 5 were sent"},
    {"less", acknowledge_less_than_before, "it acknowledged 3 before"},
    {"handshake", speak_as_in_a_handshake, "type 4"},
    {"unknown", speak_an_unknown_word, "type 47"},
    {"rubbish", speak_rubbish, "message SessionAck"},
    {"skip", skip_a_part, "at offset 20 of 100 of blob 1; expected offset 10"},
    {"size", change_the_size, "at offset 10 of 1000"},
    {"overrun", overrun_the_size, "10 bytes at offset 0 of 9"},
    {"empty", send_an_empty_part, "0 bytes at offset 0 of 9"},
    {"middle", begin_in_the_middle, "at offset 18446744073709551615"},
    {"repeat", repeat_a_blob, "blob 1 came after 1"},
    {"large", send_too_large_a_blob, "18446744073709551615 bytes; the limit"},
    {"talk", talk_within_a_blob, "between the parts of blob 1"},
};

static void check_end(const owner_t *victim, const rogue_t *rogue,
                      const char *rogue_name, size_t index)
{
    if (victim->disconnected_count != 1 ||
        strstr(victim->disconnect_message, acts[index].told) == NULL ||
        strstr(victim->disconnect_message, rogue_name) == NULL)
        fail_msg("%s: %s", acts[index].name, victim->disconnect_message);
    assert_true(rogue->was_ended && rogue->was_down);
    assert_non_null(strstr(victim->disconnect_message, rogue->end_reason));
}

static void send_five(owner_t *owner)
{
    owner_send_many(owner, 5);
}

/* The victim listens; its other session is not affected. */
static void a_listener_ends_sessions_of_rogues(void **state)
{
    for (size_t i = 0; i < TOW_COUNT_OF(acts); i++) {
        pair_t pair = {0};
        rogue_t rogue = {0};
        pair_connect(&pair, (tow_sim_options_t){.seed = i});
        tow_sim_node_t *node;
        must(tow_sim_node_create(
            pair.sim, &(tow_sim_node_options_t){.name = "rogue"}, &node));
        must(tow_env_connect(tow_sim_node_env(node),
                             &(tow_connect_options_t){.address = "sim:b",
                                                      .handler = &rogue_handler,
                                                      .context = &rogue},
                             &rogue.link));
        pair_run(&pair, 100 * MS);
        say_resume(&rogue, ID, 0);
        pair_run(&pair, 100 * MS);
        assert_int_equal(rogue.session, ID);
        assert_int_equal(pair.arrived_count, 2);
        owner_t *victim = &pair.accepted[1];
        victim->keep_quiet = true;
        send_five(victim);
        pair_run(&pair, 100 * MS);
        acts[i].act(&rogue);
        pair_run(&pair, 100 * MS);
        check_end(victim, &rogue, "rogue", i);
        owner_send_many(&pair.dialled, 10);
        pair_run(&pair, SECOND);
        assert_int_equal(pair.accepted[0].received, 10);
        assert_int_equal(pair.accepted[0].disconnected_count, 0);
        pair_end(&pair);
        assert_int_equal(tow_alloc_live_count(), 0);
    }
}

static void rogue_accept(void *context, tow_link_t *link)
{
    link->handler = &rogue_handler;
    link->context = context;
}

/* The victim dials. */
static void a_dialler_ends_its_session_with_a_rogue(void **state)
{
    for (size_t i = 0; i < TOW_COUNT_OF(acts); i++) {
        pair_t pair = {0};
        rogue_t rogue = {0};
        tow_listener_t *listener;
        pair_open(&pair, (tow_sim_options_t){.seed = i});
        must(tow_env_listen(tow_sim_node_env(pair.b),
                            &(tow_listen_options_t){.address = "sim:b",
                                                    .accept = rogue_accept,
                                                    .context = &rogue},
                            &listener));
        must(pair_dial(&pair));
        pair_run(&pair, 100 * MS);
        assert_true(rogue.session != 0);
        say_resume(&rogue, rogue.session, 0);
        pair_run(&pair, 10 * MS);
        assert_int_equal(pair.dialled.opened_count, 1);
        pair.dialled.keep_quiet = true;
        send_five(&pair.dialled);
        pair_run(&pair, 10 * MS);
        acts[i].act(&rogue);
        pair_run(&pair, 100 * MS);
        check_end(&pair.dialled, &rogue, "b", i);
        pair_end(&pair);
        assert_int_equal(tow_alloc_live_count(), 0);
    }
}

/* -- Violations at the start ----------------------------------------------- */

static void begin_as(void (*act)(rogue_t *rogue), const char *told)
{
    pair_t pair = {0};
    rogue_t rogue = {0};
    pair_connect(&pair, (tow_sim_options_t){.seed = 1});
    tow_sim_node_t *node;
    must(tow_sim_node_create(
        pair.sim, &(tow_sim_node_options_t){.name = "rogue"}, &node));
    must(tow_env_connect(tow_sim_node_env(node),
                         &(tow_connect_options_t){.address = "sim:b",
                                                  .handler = &rogue_handler,
                                                  .context = &rogue},
                         &rogue.link));
    pair_run(&pair, 100 * MS);
    rogue.session = pair.dialled.session->id;
    if (act != NULL) act(&rogue);
    pair_run(&pair, 3 * SECOND);
    assert_true(rogue.was_down);
    if (strstr(rogue.end_reason, told) == NULL)
        fail_msg("%s", rogue.end_reason);
    assert_int_equal(pair.arrived_count, 1);
    owner_send_many(&pair.dialled, 10);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].received, 10);
    pair_end(&pair);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void talk_at_once(rogue_t *rogue)
{
    say_ack(rogue, 0);
}

static void resume_the_unknown(rogue_t *rogue)
{
    say_resume(rogue, ID, 1);
}

static void resume_rubbish(rogue_t *rogue)
{
    assert_int_equal(
        tow_link_send(rogue->link, TOW_MESSAGE_SESSION_RESUME, "\xff", 1),
        TOW_SEND_OK);
}

static void resume_of_somebody_else(rogue_t *rogue)
{
    say_resume(rogue, rogue->session, 0);
}

static void links_that_begin_badly_are_refused(void **state)
{
    begin_as(talk_at_once, "type 33 before SessionResume");
    begin_as(resume_the_unknown, "does not know this session of rogue");
    begin_as(resume_rubbish, "message SessionResume");
    begin_as(resume_of_somebody_else,
             "rogue tried to resume the session of another");
    begin_as(NULL, ""); /* It may retry. */
}

/* A listener that accepts links and sends nothing, or a wrong message. */
static void dial_to(void (*act)(rogue_t *rogue), const char *told)
{
    pair_t pair = {0};
    rogue_t rogue = {0};
    tow_listener_t *listener;
    pair_open(&pair, (tow_sim_options_t){.seed = 1});
    must(tow_env_listen(tow_sim_node_env(pair.b),
                        &(tow_listen_options_t){.address = "sim:b",
                                                .accept = rogue_accept,
                                                .context = &rogue},
                        &listener));
    must(pair_dial(&pair));
    pair_run(&pair, 100 * MS);
    if (act != NULL) act(&rogue);
    pair_run(&pair, 3 * SECOND);
    assert_int_equal(pair.dialled.disconnected_count, 1);
    if (strstr(pair.dialled.disconnect_message, told) == NULL)
        fail_msg("%s", pair.dialled.disconnect_message);
    pair_end(&pair);
    assert_int_equal(tow_alloc_live_count(), 0);
}

static void resume_another(rogue_t *rogue)
{
    say_resume(rogue, rogue->session + 1, 0);
}

static void resume_what_was_never_sent(rogue_t *rogue)
{
    say_resume(rogue, rogue->session, 1);
}

static void diallers_leave_listeners_that_begin_badly(void **state)
{
    dial_to(NULL, "no session with sim:b after 2500 ms");
    dial_to(talk_at_once, "type 33 before SessionResume");
    dial_to(resume_another, "resumed another session");
    dial_to(resume_what_was_never_sent,
            "it acknowledges 1 messages; 0 were sent");
}

static void unexpected_blobs_end_the_session(void **state)
{
    static tow_session_handler_t handler;
    pair_t pair = {0};
    int64_t balance = 0;
    handler = owner_handler;
    handler.blob = NULL;
    pair_open(&pair, (tow_sim_options_t){0});
    pair.accept_handler = &handler;
    must(pair_listen(&pair));
    must(pair_dial(&pair));
    pair_run(&pair, 100 * MS);
    owner_send_blob(&pair.dialled, &balance, 10);
    pair_run(&pair, 100 * MS);
    assert_non_null(
        strstr(pair.accepted[0].disconnect_message, "blobs are not accepted"));
    assert_int_equal(pair.dialled.disconnect_code, TOW_INVALID_ARGUMENT);
    assert_int_equal(balance, 0);
    pair_end(&pair);
}

/* Many silent links: each new one closes the oldest. */
static void silent_links_are_bounded(void **state)
{
    enum {
        LINK_COUNT = TOW_SESSION_PENDING_COUNT_MAX + 40
    };
    static rogue_t rogues[LINK_COUNT];
    pair_t pair = {0};
    memset(rogues, 0, sizeof(rogues));
    pair_connect(&pair, (tow_sim_options_t){0});
    for (int i = 0; i < LINK_COUNT; i++)
        must(tow_env_connect(tow_sim_node_env(pair.a),
                             &(tow_connect_options_t){.address = "sim:b",
                                                      .handler = &rogue_handler,
                                                      .context = &rogues[i]},
                             &rogues[i].link));
    pair_run(&pair, 100 * MS);
    int ended_count = 0;
    for (int i = 0; i < LINK_COUNT; i++)
        ended_count += rogues[i].was_down;
    assert_true(ended_count >= 40);
    owner_send_many(&pair.dialled, 10);
    pair_run(&pair, SECOND);
    assert_int_equal(pair.accepted[0].received, 10);
    pair_end(&pair);
    assert_int_equal(tow_alloc_live_count(), 0);
}

TOW_TEST_MAIN(cmocka_unit_test(a_listener_ends_sessions_of_rogues),
              cmocka_unit_test(a_dialler_ends_its_session_with_a_rogue),
              cmocka_unit_test(links_that_begin_badly_are_refused),
              cmocka_unit_test(diallers_leave_listeners_that_begin_badly),
              cmocka_unit_test(unexpected_blobs_end_the_session),
              cmocka_unit_test(silent_links_are_bounded))
