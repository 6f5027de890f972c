/* Links that stay up: the peer's identity, delivery, and back-pressure. */
#include "probe.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>

/* -- Coming up ------------------------------------------------------------ */

static void link_comes_up_on_both_sides_with_the_right_peer(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    assert_string_equal(pair.dialler.peer.name, world_node_name(1));
    assert_string_equal(pair.accepted->peer.name, world_node_name(0));
    assert_int_equal(pair.dialler.down_count, 0);
    world_settle(pair.world);
    assert_int_equal(pair.dialler.up_count, 1);
    assert_int_equal(pair.accepted->up_count, 1);
    pair_destroy(&pair);
}

static void peers_agree_on_the_features_that_both_have(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair,
                 world_create_with(&(world_options_t){
                     .node_count = 2,
                     .features = {0x4000000000000006u, 0x400000000000000cu}}),
                 PAIR_DIRECT);
    assert_true(pair.dialler.peer.features == 0x4000000000000004u);
    assert_true(pair.accepted->peer.features == 0x4000000000000004u);
    pair_destroy(&pair);
}

static void sending_before_up_returns_down(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    assert_int_equal(link.link->state, TOW_LINK_DIALLING);
    assert_int_equal(tow_link_send(link.link, 1, "x", 1), TOW_SEND_DOWN);
    WORLD_UNTIL(world, link.up_count == 1);
    assert_int_equal(tow_link_send(link.link, 1, "y", 1), TOW_SEND_OK);
    WORLD_UNTIL(world, acceptor.accepted_count == 1 &&
                           acceptor.accepted[0]->message_count == 1);
    world_settle(world);
    assert_int_equal(acceptor.accepted[0]->message_count, 1);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void listener_reports_its_bound_address(void **state)
{
    world_t *world = world_create(1);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 0);
    tow_address_t address;
    assert_true(tow_address_parse(acceptor.listener->address, &address) ==
                TOW_OK);
    if (address.kind == TOW_ADDRESS_TCP || address.kind == TOW_ADDRESS_TLS)
        assert_true(address.port != 0);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void malformed_address_is_refused(void **state)
{
    world_t *world = world_create(1);
    static const char *const addresses[] = {"", "nonsense",
                                            "tcp:", "carrier-pigeon:home"};
    for (size_t i = 0; i < TOW_COUNT_OF(addresses); i++) {
        link_probe_t probe = {0};
        tow_connect_options_t connect = {.address = addresses[i],
                                         .handler = &link_probe_handler,
                                         .context = &probe};
        tow_link_t *link = (tow_link_t *)world;
        tow_status_t status =
            tow_env_connect(world_env(world, 0), &connect, &link);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        assert_non_null(strstr(tow_status_message(status), addresses[i]));
        assert_null(link);
        tow_status_release(status);
    }
    world_settle(world);
    world_destroy(world);
}

static void never_accept(void *context, tow_link_t *link)
{
    fail_msg("a listener that was refused accepts");
}

static void address_in_use_is_refused_by_name(void **state)
{
    world_t *world = world_create(2);
    acceptor_t first = {0}, second = {0};
    acceptor_listen(&first, world, 0);
    const char *address = first.listener->address;
    tow_listen_options_t options = {
        .address = address, .accept = never_accept, .context = &second};
    tow_status_t status =
        tow_env_listen(world_env(world, 0), &options, &second.listener);
    assert_true(status != TOW_OK);
    assert_null(second.listener);
    if (strstr(tow_status_message(status), address) == NULL)
        fail_msg("\"%s\" does not name %s", tow_status_message(status),
                 address);
    tow_status_release(status);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 1), address);
    WORLD_UNTIL(world, link.up_count == 1);
    world_destroy(world);
    acceptor_deinit(&first);
}

/* -- Delivery ------------------------------------------------------------- */

typedef struct talker {
    stream_t out;
    stream_t in;
    uint64_t end; /* of both */
} talker_t;

static void talk(link_probe_t *probe)
{
    talker_t *talker = probe->context;
    tow_send_result_t result =
        stream_pump(&talker->out, probe->link, talker->end);
    assert_int_not_equal(result, TOW_SEND_DOWN);
}

static void listen_in_order(link_probe_t *probe, const tow_message_t *message)
{
    talker_t *talker = probe->context;
    stream_expect(&talker->in, message);
}

static const link_hooks_t talker_hooks = {.up = talk,
                                          .message = listen_in_order,
                                          .writable = talk};

/* Both ends send continuously from `up` on; both must receive everything. */
static void talk_both_ways(uint64_t message_count, uint32_t size_max)
{
    talker_t dialler = {.out = {.seed = 1, .size_max = size_max},
                        .in = {.seed = 2, .size_max = size_max},
                        .end = message_count};
    talker_t accepted = {
        .out = dialler.in, .in = dialler.out, .end = message_count};
    pair_t pair = {.dialler = {.hooks = talker_hooks, .context = &dialler},
                   .acceptor = {.hooks = talker_hooks, .context = &accepted}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    WORLD_UNTIL(pair.world, dialler.in.next == message_count &&
                                accepted.in.next == message_count);
    world_settle(pair.world);
    assert_int_equal(pair.dialler.message_count, message_count);
    assert_int_equal(pair.accepted->message_count, message_count);
    assert_int_equal(pair.dialler.down_count + pair.accepted->down_count, 0);
    pair_destroy(&pair);
}

static void small_messages_arrive_in_order_and_unaltered(void **state)
{
    talk_both_ways(50000, 200);
}

static void messages_of_mixed_sizes_arrive_in_order_and_unaltered(void **state)
{
    talk_both_ways(3000, 100000);
}

/* Far more than both queues and all buffers in between hold: two sides that
 * prefer writing over reading would deadlock here. */
static void floods_of_large_messages_pass_each_other(void **state)
{
    talk_both_ways(300, TOW_MESSAGE_SIZE_MAX);
}

typedef struct sizes {
    const uint32_t *sizes;
    size_t count;
    size_t arrived_count;
} sizes_t;

static void expect_size(link_probe_t *probe, const tow_message_t *message)
{
    sizes_t *expected = probe->context;
    assert_true(expected->arrived_count < expected->count);
    uint32_t size = expected->sizes[expected->arrived_count++];
    assert_int_equal(message->size, size);
    assert_int_equal(pattern_check(message->bytes, size, size), size);
}

static void every_size_up_to_the_largest_arrives(void **state)
{
    static const uint32_t list[] = {0,
                                    1,
                                    2,
                                    7,
                                    8,
                                    255,
                                    256,
                                    4095,
                                    4096,
                                    65535,
                                    65536,
                                    65537,
                                    0,
                                    0,
                                    1 << 20,
                                    0,
                                    (1u << 20) + 1,
                                    TOW_MESSAGE_SIZE_MAX - 1,
                                    TOW_MESSAGE_SIZE_MAX,
                                    3};
    sizes_t expected = {.sizes = list, .count = TOW_COUNT_OF(list)};
    pair_t pair = {
        .acceptor = {.hooks = {.message = expect_size}, .context = &expected}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    uint8_t *bytes = malloc(TOW_MESSAGE_SIZE_MAX);
    for (size_t i = 0; i < TOW_COUNT_OF(list); i++) {
        pattern_fill(bytes, list[i], list[i]);
        WORLD_UNTIL(pair.world, tow_link_send(pair.dialler.link, 1, bytes,
                                              list[i]) == TOW_SEND_OK);
        memset(bytes, 0, list[i]); /* It was copied. */
    }
    WORLD_UNTIL(pair.world, expected.arrived_count == expected.count);
    free(bytes);
    pair_destroy(&pair);
}

typedef struct types {
    uint32_t types[3];
    size_t count;
} types_t;

static void note_type(link_probe_t *probe, const tow_message_t *message)
{
    types_t *seen = probe->context;
    assert_true(seen->count < TOW_COUNT_OF(seen->types));
    seen->types[seen->count++] = message->type;
}

static void types_arrive_unaltered(void **state)
{
    types_t seen = {0};
    pair_t pair = {
        .acceptor = {.hooks = {.message = note_type}, .context = &seen}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    static const uint32_t types[] = {0, 65535, 256};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(tow_link_send(pair.dialler.link, types[i], "t", 1),
                         TOW_SEND_OK);
    WORLD_UNTIL(pair.world, seen.count == 3);
    assert_memory_equal(seen.types, types, sizeof(types));
    pair_destroy(&pair);
}

/* Reserving more than needed must have no visible effect. */
static void message_may_be_smaller_than_its_reservation(void **state)
{
    static const uint32_t rooms[] = {
        16, 1, 4096, 100000, 8, TOW_MESSAGE_SIZE_MAX, 70000};
    static const uint32_t list[] = {5, 0, 4095, 3, 8, 12, 0};
    sizes_t expected = {.sizes = list, .count = TOW_COUNT_OF(list)};
    pair_t pair = {
        .acceptor = {.hooks = {.message = expect_size}, .context = &expected}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    for (size_t i = 0; i < TOW_COUNT_OF(list); i++) {
        uint8_t *room = NULL;
        WORLD_UNTIL(pair.world, tow_link_begin(pair.dialler.link, rooms[i],
                                               &room) == TOW_SEND_OK);
        memset(room, 0xee, rooms[i]);
        pattern_fill(room, list[i], list[i]);
        tow_link_commit(pair.dialler.link, 1, list[i]);
    }
    WORLD_UNTIL(pair.world, expected.arrived_count == expected.count);
    pair_destroy(&pair);
}

/* -- Replying ------------------------------------------------------------- */

#define ROUND_COUNT 2000

static void answer(link_probe_t *probe, const tow_message_t *message)
{
    uint32_t round = message->type;
    assert_int_equal(message->size, sizeof(round));
    if (round == ROUND_COUNT) return;
    round++;
    assert_int_equal(tow_link_send(probe->link, round, &round, sizeof(round)),
                     TOW_SEND_OK);
}

static void begin_rounds(link_probe_t *probe)
{
    uint32_t round = 1;
    assert_int_equal(tow_link_send(probe->link, round, &round, sizeof(round)),
                     TOW_SEND_OK);
}

static void message_may_be_answered_in_its_callback(void **state)
{
    pair_t pair = {
        .dialler = {.hooks = {.up = begin_rounds, .message = answer}},
        .acceptor = {.hooks = {.message = answer}}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    WORLD_UNTIL(pair.world,
                pair.dialler.message_count + pair.accepted->message_count ==
                    ROUND_COUNT);
    pair_destroy(&pair);
}

/* -- Back-pressure -------------------------------------------------------- */

#define BURST_COUNT_MAX 100000

/* Nothing is read within this call, so a bounded queue must fill up. */
static uint64_t send_until_full(stream_t *stream, tow_link_t *link)
{
    uint64_t before = stream->next;
    tow_send_result_t result =
        stream_pump(stream, link, before + BURST_COUNT_MAX);
    if (result == TOW_SEND_OK)
        fail_msg("a link took %d messages in one turn and was not full",
                 BURST_COUNT_MAX);
    assert_int_equal(result, TOW_SEND_FULL);
    return stream->next - before;
}

static void fill_again(link_probe_t *probe)
{
    talker_t *talker = probe->context;
    if (talker->out.next >= talker->end) return;
    assert_true(send_until_full(&talker->out, probe->link) > 0);
}

static void full_link_returns_full_and_becomes_writable(void **state)
{
    talker_t sender = {.out = {.seed = 5, .size_max = 300000}, .end = 3000};
    talker_t receiver = {.in = sender.out};
    pair_t pair = {
        .dialler = {.hooks = {.writable = fill_again}, .context = &sender},
        .acceptor = {.hooks = {.message = listen_in_order},
                     .context = &receiver}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    send_until_full(&sender.out, pair.dialler.link);
    assert_int_equal(pair.dialler.writable_count, 0);
    WORLD_UNTIL(pair.world, sender.out.next >= sender.end &&
                                receiver.in.next == sender.out.next);
    assert_true(pair.dialler.writable_count > 0);
    assert_true(pair.dialler.link->state == TOW_LINK_UP);
    pair_destroy(&pair);
}

/* A queue holds at least one message of the maximal size, so half of that fits
 * when half of the queue is free. */
static void take_half_of_the_largest(link_probe_t *probe)
{
    uint8_t *room = NULL;
    assert_int_equal(
        tow_link_begin(probe->link, TOW_MESSAGE_SIZE_MAX / 2, &room),
        TOW_SEND_OK);
    tow_link_commit(probe->link, 9, 0);
}

static void at_writable_half_of_the_queue_is_free(void **state)
{
    stream_t stream = {.seed = 6, .size_max = 1000};
    pair_t pair = {.dialler.hooks = {.writable = take_half_of_the_largest}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    send_until_full(&stream, pair.dialler.link);
    WORLD_UNTIL(pair.world,
                pair.dialler.writable_count == 1 &&
                    pair.accepted->message_count == stream.next + 1);
    pair_destroy(&pair);
}

static void writable_runs_only_after_full(void **state)
{
    stream_t stream = {.seed = 7, .size_max = 1000};
    pair_t pair = {0};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    assert_int_equal(stream_pump(&stream, pair.dialler.link, 100), TOW_SEND_OK);
    WORLD_UNTIL(pair.world, pair.accepted->message_count == 100);
    world_settle(pair.world);
    assert_int_equal(pair.dialler.writable_count, 0);
    send_until_full(&stream, pair.dialler.link);
    WORLD_UNTIL(pair.world, pair.accepted->message_count == stream.next);
    world_settle(pair.world);
    assert_int_equal(pair.dialler.writable_count, 1);
    assert_int_equal(pair.accepted->writable_count, 0);
    pair_destroy(&pair);
}

static void note_up(void *context, tow_link_t *link)
{
    *(bool *)context = true;
}

static void ignore_message(void *context, tow_link_t *link,
                           const tow_message_t *message)
{
}

static void ignore_down(void *context, tow_link_t *link, tow_status_t cause) {}

static void handler_may_do_without_writable(void **state)
{
    static const tow_link_handler_t handler = {
        .up = note_up, .message = ignore_message, .down = ignore_down};
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    bool is_up = false;
    tow_connect_options_t options = {.address = acceptor.listener->address,
                                     .handler = &handler,
                                     .context = &is_up};
    tow_link_t *link;
    assert_true(tow_env_connect(world_env(world, 0), &options, &link) ==
                TOW_OK);
    WORLD_UNTIL(world, is_up);
    stream_t stream = {.seed = 8, .size_max = 1000};
    send_until_full(&stream, link);
    WORLD_UNTIL(world, acceptor.accepted_count == 1 &&
                           acceptor.accepted[0]->message_count == stream.next);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

/* A peer that does not read blocks its own link, and no other. */
static void full_link_blocks_no_other(void **state)
{
    world_t *world = world_create(3);
    acceptor_t acceptors[2] = {0};
    link_probe_t links[2] = {0};
    for (size_t i = 0; i < 2; i++) {
        acceptor_listen(&acceptors[i], world, 1 + i);
        link_probe_dial(&links[i], world_env(world, 0),
                        acceptors[i].listener->address);
        WORLD_UNTIL(world, links[i].up_count == 1);
    }
    world_stall(world, 1);
    stream_t stuck = {.seed = 9, .size_max = 100000};
    send_until_full(&stuck, links[0].link);
    stream_t flowing = {.seed = 10, .size_max = 100};
    assert_int_equal(stream_pump(&flowing, links[1].link, 100), TOW_SEND_OK);
    WORLD_UNTIL(world, acceptors[1].accepted[0]->message_count == 100);
    world_resume(world, 1);
    WORLD_UNTIL(world, acceptors[0].accepted[0]->message_count == stuck.next);
    world_destroy(world);
    acceptor_deinit(&acceptors[0]);
    acceptor_deinit(&acceptors[1]);
}

/* -- Several links -------------------------------------------------------- */

static void two_links_between_the_same_peers_are_two(void **state)
{
    pair_t pair = {0};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_DIRECT);
    link_probe_t second = {0};
    link_probe_dial(&second, world_env(world, 0),
                    pair.acceptor.listener->address);
    WORLD_UNTIL(world, second.up_count == 1 &&
                           pair.acceptor.accepted_count == 2 &&
                           pair.acceptor.accepted[1]->up_count == 1);
    assert_true(second.peer.incarnation == pair.dialler.peer.incarnation);
    assert_int_equal(tow_link_send(second.link, 1, "b", 1), TOW_SEND_OK);
    WORLD_UNTIL(world, pair.acceptor.accepted[1]->message_count == 1);
    link_probe_close(&pair.dialler);
    WORLD_UNTIL(world, pair.accepted->down_count == 1 &&
                           pair.dialler.closed.count == 1);
    assert_int_equal(tow_link_send(second.link, 1, "b", 1), TOW_SEND_OK);
    WORLD_UNTIL(world, pair.acceptor.accepted[1]->message_count == 2);
    assert_int_equal(pair.accepted->message_count, 0);
    assert_int_equal(second.down_count, 0);
    pair_destroy(&pair);
}

static void peers_may_dial_each_other_at_once(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptors[2] = {0};
    link_probe_t links[2] = {0};
    acceptor_listen(&acceptors[0], world, 0);
    acceptor_listen(&acceptors[1], world, 1);
    for (size_t i = 0; i < 2; i++)
        link_probe_dial(&links[i], world_env(world, i),
                        acceptors[1 - i].listener->address);
    WORLD_UNTIL(world, links[0].up_count == 1 && links[1].up_count == 1 &&
                           acceptors[0].accepted_count == 1 &&
                           acceptors[1].accepted_count == 1);
    world_destroy(world);
    acceptor_deinit(&acceptors[0]);
    acceptor_deinit(&acceptors[1]);
}

#define MANY_COUNT 200

static void note_index(link_probe_t *probe, const tow_message_t *message)
{
    probe->context = (void *)(uintptr_t)message->type;
}

static bool all_got_one(const acceptor_t *acceptor)
{
    if (acceptor->accepted_count < MANY_COUNT) return false;
    for (int i = 0; i < MANY_COUNT; i++) {
        if (acceptor->accepted[i]->message_count != 1) return false;
    }
    return true;
}

static void echo(link_probe_t *probe, const tow_message_t *message)
{
    assert_int_equal(tow_link_send(probe->link, message->type, message->bytes,
                                   message->size),
                     TOW_SEND_OK);
}

/* Two independent state machines in one process. */
static void env_may_dial_itself(void **state)
{
    enum {
        COUNT = 100
    };
    world_t *world = world_create(1);
    acceptor_t acceptor = {.hooks = {.message = echo}};
    acceptor_listen(&acceptor, world, 0);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    WORLD_UNTIL(world, link.up_count == 1 && acceptor.accepted_count == 1 &&
                           acceptor.accepted[0]->up_count == 1);
    assert_string_equal(link.peer.name, world_node_name(0));
    assert_true(link.peer.incarnation ==
                acceptor.accepted[0]->peer.incarnation);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(tow_link_send(link.link, 1, "x", 1), TOW_SEND_OK);
    WORLD_UNTIL(world, link.message_count == COUNT);
    link_probe_close(&link);
    WORLD_UNTIL(world, link.closed.count == 1 &&
                           acceptor.accepted[0]->down_count == 1);
    assert_int_equal(acceptor.accepted[0]->message_count, COUNT);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void hundreds_of_links_each_carry_their_own_messages(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {.hooks = {.message = note_index}};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t *links = calloc(MANY_COUNT, sizeof(*links));
    for (int i = 0; i < MANY_COUNT; i++)
        link_probe_dial(&links[i], world_env(world, 0),
                        acceptor.listener->address);
    for (int i = 0; i < MANY_COUNT; i++) {
        WORLD_UNTIL(world, links[i].up_count == 1);
        assert_int_equal(tow_link_send(links[i].link, i, "m", 1), TOW_SEND_OK);
    }
    WORLD_UNTIL(world, all_got_one(&acceptor));
    bool seen[MANY_COUNT] = {false};
    for (int i = 0; i < MANY_COUNT; i++) {
        uintptr_t index = (uintptr_t)acceptor.accepted[i]->context;
        assert_false(seen[index]);
        seen[index] = true;
    }
    world_destroy(world);
    acceptor_deinit(&acceptor);
    free(links);
}

SUITE(link, CONFORMANCE_TEST(link_comes_up_on_both_sides_with_the_right_peer),
      CONFORMANCE_TEST(peers_agree_on_the_features_that_both_have),
      CONFORMANCE_TEST(sending_before_up_returns_down),
      CONFORMANCE_TEST(listener_reports_its_bound_address),
      CONFORMANCE_TEST(malformed_address_is_refused),
      CONFORMANCE_TEST(address_in_use_is_refused_by_name),
      CONFORMANCE_TEST(small_messages_arrive_in_order_and_unaltered),
      CONFORMANCE_TEST(messages_of_mixed_sizes_arrive_in_order_and_unaltered),
      CONFORMANCE_TEST(floods_of_large_messages_pass_each_other),
      CONFORMANCE_TEST(every_size_up_to_the_largest_arrives),
      CONFORMANCE_TEST(types_arrive_unaltered),
      CONFORMANCE_TEST(message_may_be_smaller_than_its_reservation),
      CONFORMANCE_TEST(message_may_be_answered_in_its_callback),
      CONFORMANCE_TEST(full_link_returns_full_and_becomes_writable),
      CONFORMANCE_TEST(at_writable_half_of_the_queue_is_free),
      CONFORMANCE_TEST(writable_runs_only_after_full),
      CONFORMANCE_TEST(handler_may_do_without_writable),
      CONFORMANCE_TEST(full_link_blocks_no_other),
      CONFORMANCE_TEST(two_links_between_the_same_peers_are_two),
      CONFORMANCE_TEST(peers_may_dial_each_other_at_once),
      CONFORMANCE_TEST(env_may_dial_itself),
      CONFORMANCE_TEST(hundreds_of_links_each_carry_their_own_messages))
