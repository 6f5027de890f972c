/* Links that break, and redialling. */
#include "probe.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>

/* -- Breaking ------------------------------------------------------------- */

static void broken_link_goes_down_once_on_both_sides(void **state)
{
    pair_t pair = {0};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_BREAKABLE);
    world_break(world, 0, 1);
    WORLD_UNTIL(world,
                pair.dialler.down_count >= 1 && pair.accepted->down_count >= 1);
    assert_int_equal(pair.accepted->link->state, TOW_LINK_FINISHED);
    assert_int_equal(tow_link_send(pair.accepted->link, 1, "x", 1),
                     TOW_SEND_DOWN);
    assert_true(pair.dialler.cause[0] != '\0');
    assert_true(pair.accepted->cause[0] != '\0');
    world_settle(world);
    assert_int_equal(pair.dialler.up_count, 1);
    assert_int_equal(pair.accepted->down_count, 1);
    assert_string_equal(tow_link_peer(pair.dialler.link)->name,
                        world_node_name(1));
    assert_string_equal(tow_link_peer(pair.accepted->link)->name,
                        world_node_name(0));
    pair_destroy(&pair);
}

/* The probe checks that the new epoch's number is higher. */
static void dialler_reconnects_in_a_new_epoch(void **state)
{
    pair_t pair = {0};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_BREAKABLE);
    for (int round = 1; round <= 3; round++) {
        link_probe_t *before = acceptor_last(&pair.acceptor);
        world_break(world, 0, 1);
        WORLD_UNTIL(world, !pair.dialler.is_up && !before->is_up);
        world_mend(world, 0, 1);
        WORLD_UNTIL(world, pair.dialler.is_up &&
                               acceptor_last(&pair.acceptor) != before &&
                               acceptor_last(&pair.acceptor)->is_up);
        assert_int_equal(pair.dialler.up_count, 1 + round);
        assert_string_equal(pair.dialler.peer.name, world_node_name(1));
        assert_int_equal(before->down_count, 1);
        assert_int_equal(tow_link_send(pair.dialler.link, 1, "x", 1),
                         TOW_SEND_OK);
        WORLD_UNTIL(world, acceptor_last(&pair.acceptor)->message_count == 1);
        assert_int_equal(before->link->state, TOW_LINK_FINISHED);
    }
    assert_int_equal(pair.accepted->message_count, 0);
    pair_destroy(&pair);
}

static void send_when_down(link_probe_t *probe)
{
    uint8_t *room = NULL;
    assert_int_equal(tow_link_begin(probe->link, 1, &room), TOW_SEND_DOWN);
}

static void sending_in_down_returns_down(void **state)
{
    pair_t pair = {.dialler.hooks = {.down = send_when_down},
                   .acceptor.hooks = {.down = send_when_down}};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_BREAKABLE);
    world_break(world, 0, 1);
    WORLD_UNTIL(world,
                pair.dialler.down_count >= 1 && pair.accepted->down_count == 1);
    pair_destroy(&pair);
}

/* -- Messages of a broken epoch ------------------------------------------- */

/* The dialler sends one stream per epoch and identifies it in its first
 * message; each accepted link must receive a prefix of one stream. */
#define ANNOUNCEMENT   65535
#define EPOCH_SIZE_MAX 20000

typedef struct epoch_sender {
    stream_t stream;
    uint64_t sent[64]; /* in each epoch, announcement included */
    uint64_t epoch_count;
    uint64_t full_count;
} epoch_sender_t;

typedef struct epoch_receiver {
    stream_t stream;
    uint64_t epoch; /* as announced; counts from 1 */
} epoch_receiver_t;

static void send_more(link_probe_t *probe)
{
    epoch_sender_t *sender = probe->context;
    tow_send_result_t result =
        stream_pump(&sender->stream, probe->link, sender->stream.next + 2000);
    if (result == TOW_SEND_FULL) sender->full_count++;
    sender->sent[sender->epoch_count] = sender->stream.next;
}

static void announce_epoch(link_probe_t *probe)
{
    epoch_sender_t *sender = probe->context;
    sender->epoch_count++;
    assert_true(sender->epoch_count < TOW_COUNT_OF(sender->sent));
    sender->stream =
        (stream_t){.seed = sender->epoch_count, .size_max = EPOCH_SIZE_MAX};
    assert_int_equal(tow_link_send(probe->link, ANNOUNCEMENT,
                                   &sender->epoch_count,
                                   sizeof(sender->epoch_count)),
                     TOW_SEND_OK);
    send_more(probe);
}

static void begin_receiving(link_probe_t *probe)
{
    probe->context = calloc(1, sizeof(epoch_receiver_t));
}

static void receive_in_epoch(link_probe_t *probe, const tow_message_t *message)
{
    epoch_receiver_t *receiver = probe->context;
    if (receiver->epoch == 0) {
        if (message->type != ANNOUNCEMENT)
            fail_msg("an epoch began with message %u", message->type);
        memcpy(&receiver->epoch, message->bytes, sizeof(receiver->epoch));
        receiver->stream =
            (stream_t){.seed = receiver->epoch, .size_max = EPOCH_SIZE_MAX};
        return;
    }
    stream_expect(&receiver->stream, message);
}

/* No two accepted links share an epoch, later links have later epochs, and none
 * received more than was sent. Returns the number of messages received. */
static uint64_t check_epochs(const acceptor_t *acceptor,
                             const epoch_sender_t *sender)
{
    uint64_t epoch = 0, arrived_count = 0;
    for (int i = 0; i < acceptor->accepted_count; i++) {
        epoch_receiver_t *receiver = acceptor->accepted[i]->context;
        if (receiver == NULL || receiver->epoch == 0) continue;
        assert_true(receiver->epoch > epoch);
        epoch = receiver->epoch;
        assert_true(epoch <= sender->epoch_count);
        assert_true(receiver->stream.next <= sender->sent[epoch]);
        arrived_count += receiver->stream.next;
    }
    return arrived_count;
}

static void free_receivers(const acceptor_t *acceptor)
{
    for (int i = 0; i < acceptor->accepted_count; i++)
        free(acceptor->accepted[i]->context);
}

typedef enum mend_when {
    MEND_WHEN_SEEN,
    MEND_AT_ONCE
} mend_when_t;

/* Few, because the redial delay grows after each short epoch. */
#define BREAK_COUNT 4
#define SEED_COUNT  6

static void break_at_random_points(uint64_t seed, mend_when_t mend_when)
{
    epoch_sender_t sender = {0};
    pair_t pair = {
        .dialler = {.hooks = {.up = announce_epoch, .writable = send_more},
                    .context = &sender},
        .acceptor = {
            .hooks = {.up = begin_receiving, .message = receive_in_epoch}}};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_BREAKABLE);
    tow_random_t random;
    tow_random_init(&random, seed);
    for (int round = 0; round < BREAK_COUNT; round++) {
        WORLD_UNTIL(world, pair.dialler.is_up);
        uint64_t step_count = tow_random_below(&random, 400);
        for (uint64_t i = 0; i < step_count; i++) {
            world_step(world);
            if (pair.dialler.is_up && i % 64 == 0) send_more(&pair.dialler);
        }
        world_break(world, 0, 1);
        if (pair.dialler.is_up) send_more(&pair.dialler);
        if (mend_when == MEND_WHEN_SEEN)
            WORLD_UNTIL(world, !pair.dialler.is_up);
        world_mend(world, 0, 1);
    }
    world_settle(world);
    assert_true(check_epochs(&pair.acceptor, &sender) > 0);
    world_destroy(world);
    free_receivers(&pair.acceptor);
    acceptor_deinit(&pair.acceptor);
}

static void messages_of_a_broken_epoch_arrive_as_a_prefix(void **state)
{
    for (uint64_t seed = 0; seed < SEED_COUNT; seed++)
        break_at_random_points(seed, MEND_WHEN_SEEN);
}

/* The path is restored before either side may have noticed: messages lost in
 * between must still end the epoch. */
static void gap_in_the_path_is_never_a_gap_in_an_epoch(void **state)
{
    for (uint64_t seed = 0; seed < SEED_COUNT; seed++)
        break_at_random_points(seed, MEND_AT_ONCE);
}

static void full_queue_of_a_broken_epoch_is_empty_in_the_next(void **state)
{
    epoch_sender_t sender = {0};
    pair_t pair = {
        .dialler = {.hooks = {.up = announce_epoch}, .context = &sender},
        .acceptor = {
            .hooks = {.up = begin_receiving, .message = receive_in_epoch}}};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_BREAKABLE);
    for (int i = 0; i < 100 && sender.full_count == 0; i++)
        send_more(&pair.dialler);
    assert_int_equal(sender.full_count, 1);
    world_break(world, 0, 1);
    WORLD_UNTIL(world, pair.dialler.down_count >= 1);
    world_mend(world, 0, 1);
    WORLD_UNTIL(world, pair.dialler.up_count == 2 &&
                           pair.acceptor.accepted_count >= 2 &&
                           acceptor_last(&pair.acceptor)->message_count ==
                               sender.sent[2] + 1);
    check_epochs(&pair.acceptor, &sender);
    world_destroy(world);
    free_receivers(&pair.acceptor);
    acceptor_deinit(&pair.acceptor);
}

/* -- No listener ---------------------------------------------------------- */

/* An address that was valid a moment ago, so that nothing listens there now. */
static void forsaken_address(world_t *world, size_t node,
                             char address[WORLD_ADDRESS_SIZE])
{
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, node);
    snprintf(address, WORLD_ADDRESS_SIZE, "%s", acceptor.listener->address);
    closed_probe_t closed = {0};
    call_enter();
    tow_listener_close(acceptor.listener,
                       closed_probe(&closed, world_env(world, node)));
    call_leave();
    WORLD_UNTIL(world, closed.count == 1);
}

static void dialling_without_a_listener_reports_the_address(void **state)
{
    world_t *world = world_create(2);
    char address[WORLD_ADDRESS_SIZE];
    forsaken_address(world, 1, address);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), address);
    assert_int_equal(link.down_count, 0);
    WORLD_UNTIL(world, link.down_count == 2);
    assert_int_equal(link.up_count, 0);
    assert_int_equal(link.link->state, TOW_LINK_DIALLING);
    if (strstr(link.cause, address) == NULL)
        fail_msg("\"%s\" does not name %s", link.cause, address);
    world_destroy(world);
}

static void dialler_comes_up_when_the_listener_appears(void **state)
{
    world_t *world = world_create(2);
    char address[WORLD_ADDRESS_SIZE];
    forsaken_address(world, 1, address);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), address);
    WORLD_UNTIL(world, link.down_count == 2);
    acceptor_t acceptor = {0};
    acceptor_listen_at(&acceptor, world_env(world, 1), address);
    WORLD_UNTIL(world, link.up_count == 1);
    assert_string_equal(link.peer.name, world_node_name(1));
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

#define ATTEMPT_COUNT 7

typedef struct attempts {
    int64_t ended_ns[ATTEMPT_COUNT];
    int count;
} attempts_t;

static void note_attempt(link_probe_t *probe)
{
    attempts_t *attempts = probe->context;
    if (attempts->count < ATTEMPT_COUNT)
        attempts->ended_ns[attempts->count++] =
            tow_env_now_ns(probe->link->env);
}

/* Delays double, so the sixth is longer than the first whatever the random
 * part. */
static void delays_between_dials_grow(void **state)
{
    world_t *world = world_create(2);
    char address[WORLD_ADDRESS_SIZE];
    forsaken_address(world, 1, address);
    attempts_t attempts = {0};
    link_probe_t link = {.hooks = {.down = note_attempt}, .context = &attempts};
    link_probe_dial(&link, world_env(world, 0), address);
    WORLD_UNTIL(world, attempts.count == ATTEMPT_COUNT);
    int64_t first_ns = attempts.ended_ns[1] - attempts.ended_ns[0];
    int64_t last_ns = attempts.ended_ns[ATTEMPT_COUNT - 1] -
                      attempts.ended_ns[ATTEMPT_COUNT - 2];
    assert_true(first_ns > 0);
    assert_true(last_ns > first_ns);
    world_destroy(world);
}

/* -- Rejected peers ------------------------------------------------------- */

static void refused_dialler_goes_down_and_may_redial(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {.refuse_count = 2};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    WORLD_UNTIL(world, acceptor.accepted_count == 3 && link.is_up &&
                           acceptor.accepted[2]->is_up);
    assert_int_equal(link.down_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(acceptor.accepted[i]->up_count, 0);
        assert_int_equal(acceptor.accepted[i]->closed.count, 1);
    }
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void peer_with_another_name_is_refused(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {0};
    link_probe_dial_expecting(&link, world_env(world, 0),
                              acceptor.listener->address, "somebody");
    WORLD_UNTIL(world, link.down_count == 2);
    assert_int_equal(link.up_count, 0);
    assert_non_null(strstr(link.cause, "somebody"));
    assert_non_null(strstr(link.cause, world_node_name(1)));
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void peer_with_the_expected_name_is_accepted(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {0};
    link_probe_dial_expecting(&link, world_env(world, 0),
                              acceptor.listener->address, world_node_name(1));
    WORLD_UNTIL(world, link.up_count == 1);
    assert_int_equal(link.down_count, 0);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void closed_listener_keeps_its_links_and_accepts_no_more(void **state)
{
    pair_t pair = {0};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_DIRECT);
    char address[WORLD_ADDRESS_SIZE];
    snprintf(address, sizeof(address), "%s", pair.acceptor.listener->address);
    closed_probe_t closed = {0};
    call_enter();
    tow_listener_close(pair.acceptor.listener,
                       closed_probe(&closed, world_env(world, 1)));
    call_leave();
    WORLD_UNTIL(world, closed.count == 1);
    link_probe_t late = {0};
    link_probe_dial(&late, world_env(world, 0), address);
    WORLD_UNTIL(world, late.down_count == 2);
    assert_int_equal(late.up_count, 0);
    assert_int_equal(tow_link_send(pair.dialler.link, 1, "x", 1), TOW_SEND_OK);
    assert_int_equal(tow_link_send(pair.accepted->link, 1, "x", 1),
                     TOW_SEND_OK);
    WORLD_UNTIL(world, pair.accepted->message_count == 1 &&
                           pair.dialler.message_count == 1);
    assert_int_equal(pair.acceptor.accepted_count, 1);
    pair_destroy(&pair);
}

SUITE(break, CONFORMANCE_TEST(broken_link_goes_down_once_on_both_sides),
      CONFORMANCE_TEST(dialler_reconnects_in_a_new_epoch),
      CONFORMANCE_TEST(sending_in_down_returns_down),
      CONFORMANCE_TEST(messages_of_a_broken_epoch_arrive_as_a_prefix),
      CONFORMANCE_TEST(gap_in_the_path_is_never_a_gap_in_an_epoch),
      CONFORMANCE_TEST(full_queue_of_a_broken_epoch_is_empty_in_the_next),
      CONFORMANCE_TEST(dialling_without_a_listener_reports_the_address),
      CONFORMANCE_TEST(dialler_comes_up_when_the_listener_appears),
      CONFORMANCE_TEST(delays_between_dials_grow),
      CONFORMANCE_TEST(refused_dialler_goes_down_and_may_redial),
      CONFORMANCE_TEST(peer_with_another_name_is_refused),
      CONFORMANCE_TEST(peer_with_the_expected_name_is_accepted),
      CONFORMANCE_TEST(closed_listener_keeps_its_links_and_accepts_no_more))
