/* Peers that die without notice: in `net` by SIGKILL. */
#include <stdlib.h>

#include "probe.h"
#include "roles.h"

static void death_of_a_dialler_is_seen_as_down(void **state)
{
    world_t *world = world_create(1);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 0);
    world_spawn(world, "quiet", acceptor.listener->address);
    WORLD_UNTIL(world, acceptor.accepted_count == 1 &&
                           acceptor.accepted[0]->up_count == 1);
    assert_string_equal(acceptor.accepted[0]->peer.name, VICTIM_NAME);
    assert_int_equal(acceptor.accepted[0]->down_count, 0);
    world_kill(world);
    WORLD_UNTIL(world, acceptor.accepted[0]->down_count == 1);
    world_settle(world);
    assert_int_equal(acceptor.accepted[0]->down_count, 1);
    assert_int_equal(acceptor.accepted_count, 1);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void reopened_node_has_another_incarnation(void **state)
{
    world_t *world = world_create(1);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 0);
    uint64_t incarnations[3];
    for (int life = 0; life < 3; life++) {
        world_spawn(world, "quiet", acceptor.listener->address);
        WORLD_UNTIL(world, acceptor.accepted_count == life + 1 &&
                               acceptor.accepted[life]->up_count == 1);
        incarnations[life] = acceptor.accepted[life]->peer.incarnation;
        world_kill(world);
        WORLD_UNTIL(world, acceptor.accepted[life]->down_count == 1);
    }
    assert_true(incarnations[0] != incarnations[1]);
    assert_true(incarnations[0] != incarnations[2]);
    assert_true(incarnations[1] != incarnations[2]);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void expect_next(link_probe_t *probe, const tow_message_t *message)
{
    stream_expect(probe->context, message);
}

/* In the middle of a frame, usually: the flood never pauses. */
static void messages_of_a_dying_peer_arrive_as_a_prefix(void **state)
{
    world_t *world = world_create(1);
    for (uint64_t life = 1; life <= 4; life++) {
        stream_t in = FLOOD_STREAM;
        acceptor_t acceptor = {.hooks = {.message = expect_next},
                               .context = &in};
        acceptor_listen(&acceptor, world, 0);
        world_spawn(world, "flood", acceptor.listener->address);
        WORLD_UNTIL(world, in.next > life * 97);
        world_kill(world);
        WORLD_UNTIL(world, acceptor.accepted[0]->down_count == 1);
        closed_probe_t closed = {0};
        tow_listener_close(acceptor.listener,
                           closed_probe(&closed, world_env(world, 0)));
        link_probe_close(acceptor.accepted[0]);
        WORLD_UNTIL(world, closed.count == 1 &&
                               acceptor.accepted[0]->closed.count == 1);
        acceptor_deinit(&acceptor);
    }
    world_destroy(world);
}

static void dial_back(link_probe_t *probe, const tow_message_t *message)
{
    assert_int_equal(message->type, HOST_ADDRESS);
    char address[WORLD_ADDRESS_SIZE] = {0};
    assert_true(message->size < sizeof(address));
    memcpy(address, message->bytes, message->size);
    link_probe_t *back = probe->context;
    link_probe_dial(back, probe->link->env, address);
}

static void death_of_a_listener_takes_its_dialler_down(void **state)
{
    world_t *world = world_create(1);
    link_probe_t back = {0};
    acceptor_t acceptor = {.hooks = {.message = dial_back}, .context = &back};
    acceptor_listen(&acceptor, world, 0);
    world_spawn(world, "host", acceptor.listener->address);
    WORLD_UNTIL(world, back.up_count == 1);
    assert_string_equal(back.peer.name, VICTIM_NAME);
    world_kill(world);
    WORLD_UNTIL(world,
                back.down_count >= 1 && acceptor.accepted[0]->down_count == 1);
    assert_int_equal(back.link->state, TOW_LINK_DIALLING);
    /* It redials, and each attempt fails. */
    WORLD_UNTIL(world, back.down_count >= 3);
    assert_int_equal(back.up_count, 1);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void dialler_finds_the_next_incarnation_of_its_listener(void **state)
{
    world_t *world = world_create(2);
    char address[WORLD_ADDRESS_SIZE];
    acceptor_t first = {0}, second = {0};
    acceptor_listen(&first, world, 1);
    memcpy(address, first.listener->address,
           strlen(first.listener->address) + 1);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), address);
    WORLD_UNTIL(world, link.up_count == 1);
    uint64_t incarnation = link.peer.incarnation;
    world_close_node(world, 1);
    WORLD_UNTIL(world, link.down_count >= 1);
    world_revive_node(world, 1);
    acceptor_listen_at(&second, world_env(world, 1), address);
    WORLD_UNTIL(world, link.up_count == 2);
    assert_true(link.peer.incarnation != incarnation);
    assert_string_equal(link.peer.name, world_node_name(1));
    world_destroy(world);
    acceptor_deinit(&first);
    acceptor_deinit(&second);
}

SUITE(death, CONFORMANCE_TEST(death_of_a_dialler_is_seen_as_down),
      CONFORMANCE_TEST(reopened_node_has_another_incarnation),
      CONFORMANCE_TEST(messages_of_a_dying_peer_arrive_as_a_prefix),
      CONFORMANCE_TEST(death_of_a_listener_takes_its_dialler_down),
      CONFORMANCE_TEST(dialler_finds_the_next_incarnation_of_its_listener))
