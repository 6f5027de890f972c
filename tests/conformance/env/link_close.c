/* Closing links and listeners, at every moment. */
#include "probe.h"
#include "stream.h"

#include <stdlib.h>

/* -- What the peer sees --------------------------------------------------- */

static void expect_next(link_probe_t *probe, const tow_message_t *message)
{
    stream_expect(probe->context, message);
}

static void close_after(link_probe_t *sender, link_probe_t *receiver,
                        stream_t *in, world_t *world)
{
    stream_t out = *in;
    assert_int_equal(stream_pump(&out, sender->link, 1000), TOW_SEND_OK);
    link_probe_close(sender);
    assert_int_equal(tow_link_send(sender->link, 1, "x", 1), TOW_SEND_DOWN);
    WORLD_UNTIL(world, receiver->down_count == 1 && sender->closed.count == 1);
    assert_int_equal(in->next, 1000);
}

static void messages_queued_before_close_arrive_then_down(void **state)
{
    stream_t in = {.seed = 1, .size_max = 3000};
    pair_t pair = {
        .acceptor = {.hooks = {.message = expect_next}, .context = &in}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    close_after(&pair.dialler, pair.accepted, &in, pair.world);
    world_settle(pair.world);
    assert_int_equal(pair.accepted->down_count, 1);
    pair_destroy(&pair);
}

static void accepted_link_may_be_closed_the_same_way(void **state)
{
    stream_t in = {.seed = 2, .size_max = 3000};
    pair_t pair = {
        .dialler = {.hooks = {.message = expect_next}, .context = &in}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    close_after(pair.accepted, &pair.dialler, &in, pair.world);
    /* The dialler redials and is accepted again. */
    WORLD_UNTIL(pair.world, pair.dialler.up_count == 2);
    pair_destroy(&pair);
}

static void pump_on(link_probe_t *probe)
{
    stream_t *stream = probe->context;
    assert_int_equal(stream_pump(stream, probe->link, stream->next + 100000),
                     TOW_SEND_FULL);
}

/* The probe fails on any callback after close; the peer causes many events. */
static void no_callback_runs_after_close_but_closed(void **state)
{
    stream_t out = {.seed = 3, .size_max = 5000};
    stream_t other = {.seed = 4, .size_max = 5000};
    pair_t pair = {.dialler = {.context = &other},
                   .acceptor = {.hooks = {.up = pump_on, .writable = pump_on},
                                .context = &out}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    WORLD_UNTIL(pair.world, pair.dialler.message_count > 0);
    pump_on(&pair.dialler); /* FULL: `writable` is due too. */
    link_probe_close(&pair.dialler);
    WORLD_UNTIL(pair.world, pair.dialler.closed.count == 1 &&
                                pair.accepted->down_count == 1);
    world_settle(pair.world);
    assert_int_equal(pair.accepted->down_count, 1);
    pair_destroy(&pair);
}

static void both_sides_may_close_at_once(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    assert_int_equal(tow_link_send(pair.dialler.link, 1, "x", 1), TOW_SEND_OK);
    link_probe_close(&pair.dialler);
    link_probe_close(pair.accepted);
    WORLD_UNTIL(pair.world, pair.dialler.closed.count == 1 &&
                                pair.accepted->closed.count == 1);
    pair_destroy(&pair);
}

static void close_without_a_callback_is_allowed(void **state)
{
    pair_t pair = {0};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    pair.dialler.closing = true;
    tow_link_close(pair.dialler.link, closed_ignored());
    WORLD_UNTIL(pair.world, pair.accepted->down_count == 1);
    pair.accepted->closing = true;
    tow_link_close(pair.accepted->link, closed_ignored());
    tow_listener_close(pair.acceptor.listener, closed_ignored());
    world_settle(pair.world);
    pair_destroy(&pair);
}

/* "If the peer receives them soon": a hanging peer does not keep the link
 * open. */
static void close_does_not_wait_for_a_peer_that_hangs(void **state)
{
    stream_t out = {.seed = 5, .size_max = 100000};
    pair_t pair = {.dialler = {.context = &out}};
    world_t *world = world_create(2);
    pair_connect(&pair, world, PAIR_DIRECT);
    world_stall(world, 1);
    pump_on(&pair.dialler);
    link_probe_close(&pair.dialler);
    WORLD_UNTIL(world, pair.dialler.closed.count == 1);
    world_resume(world, 1);
    WORLD_UNTIL(world, pair.accepted->down_count == 1);
    pair_destroy(&pair);
}

/* -- Inside callbacks ----------------------------------------------------- */

static void close_in_message(link_probe_t *probe, const tow_message_t *message)
{
    link_probe_close(probe);
}

static void send_three(link_probe_t *probe)
{
    for (int i = 0; i < 3; i++)
        assert_int_equal(tow_link_send(probe->link, 1, "abc", 3), TOW_SEND_OK);
}

/* One side closes in its hooks; the other may or may not be up for a moment. */
static void dialler_closes_in(link_hooks_t hooks, link_hooks_t peer_hooks)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {.hooks = peer_hooks};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {.hooks = hooks};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    WORLD_UNTIL(world, link.closed.count == 1);
    world_settle(world);
    assert_int_equal(link.closed.count, 1);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void accepted_closes_in(link_hooks_t hooks, link_hooks_t peer_hooks)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {.hooks = hooks};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {.hooks = peer_hooks};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    WORLD_UNTIL(world, acceptor.accepted_count >= 2 &&
                           acceptor.accepted[0]->closed.count == 1 &&
                           acceptor.accepted[1]->closed.count == 1);
    assert_true(link.down_count >= 1);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

static void link_may_be_closed_in_up(void **state)
{
    dialler_closes_in((link_hooks_t){.up = link_probe_close},
                      (link_hooks_t){0});
    accepted_closes_in((link_hooks_t){.up = link_probe_close},
                       (link_hooks_t){.up = send_three});
}

static void link_may_be_closed_in_message(void **state)
{
    dialler_closes_in((link_hooks_t){.message = close_in_message},
                      (link_hooks_t){.up = send_three});
    accepted_closes_in((link_hooks_t){.message = close_in_message},
                       (link_hooks_t){.up = send_three});
}

static void close_peer(link_probe_t *probe)
{
    if (!probe->closing) link_probe_close(probe);
}

static void link_may_be_closed_in_down(void **state)
{
    dialler_closes_in((link_hooks_t){.down = link_probe_close},
                      (link_hooks_t){.up = close_peer});
}

static void close_finished(link_probe_t *probe)
{
    assert_int_equal(probe->link->state, TOW_LINK_FINISHED);
    link_probe_close(probe);
}

static void finished_link_may_be_closed_in_down_or_later(void **state)
{
    for (int in_down = 0; in_down < 2; in_down++) {
        pair_t pair = {0};
        if (in_down) pair.acceptor.hooks.down = close_finished;
        pair_connect(&pair, world_create(2), PAIR_DIRECT);
        link_probe_close(&pair.dialler);
        WORLD_UNTIL(pair.world, pair.accepted->down_count == 1);
        if (!in_down) link_probe_close(pair.accepted);
        WORLD_UNTIL(pair.world, pair.accepted->closed.count == 1);
        pair_destroy(&pair);
    }
}

static void link_may_be_closed_in_writable(void **state)
{
    stream_t out = {.seed = 6, .size_max = 3000};
    pair_t pair = {
        .dialler = {.hooks = {.writable = link_probe_close}, .context = &out}};
    pair_connect(&pair, world_create(2), PAIR_DIRECT);
    pump_on(&pair.dialler);
    WORLD_UNTIL(pair.world, pair.dialler.closed.count == 1 &&
                                pair.accepted->down_count == 1);
    assert_int_equal(pair.accepted->message_count, out.next);
    pair_destroy(&pair);
}

/* -- While dialling ------------------------------------------------------- */

static void link_may_be_closed_right_after_connect(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {0};
    link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
    link_probe_close(&link);
    WORLD_UNTIL(world, link.closed.count == 1);
    world_settle(world);
    assert_int_equal(link.up_count + link.down_count, 0);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

/* At each step from connect to the first message. */
static void link_may_be_closed_at_every_step_of_dialling(void **state)
{
    bool came_up = false;
    for (int steps = 1; steps < 200 && !came_up; steps++) {
        world_t *world = world_create(2);
        acceptor_t acceptor = {.hooks = {.up = send_three}};
        acceptor_listen(&acceptor, world, 1);
        link_probe_t link = {0};
        link_probe_dial(&link, world_env(world, 0), acceptor.listener->address);
        for (int i = 0; i < steps; i++)
            world_step(world);
        came_up = link.message_count == 3;
        link_probe_close(&link);
        WORLD_UNTIL(world, link.closed.count == 1);
        world_settle(world);
        if (acceptor.accepted_count > 0)
            assert_int_equal(acceptor.accepted[0]->up_count,
                             acceptor.accepted[0]->down_count);
        world_destroy(world);
        acceptor_deinit(&acceptor);
    }
    assert_true(came_up);
}

static void link_may_be_closed_between_two_dials(void **state)
{
    world_t *world = world_create(2);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 1);
    link_probe_t link = {0};
    link_probe_dial_expecting(&link, world_env(world, 0),
                              acceptor.listener->address, "somebody");
    WORLD_UNTIL(world, link.down_count == 1);
    link_probe_close(&link);
    WORLD_UNTIL(world, link.closed.count == 1);
    world_settle(world);
    world_destroy(world);
    acceptor_deinit(&acceptor);
}

/* -- Listeners ------------------------------------------------------------ */

static void listener_may_be_closed_at_once(void **state)
{
    world_t *world = world_create(1);
    acceptor_t acceptor = {0};
    acceptor_listen(&acceptor, world, 0);
    closed_probe_t closed = {0};
    call_enter();
    tow_listener_close(acceptor.listener,
                       closed_probe(&closed, world_env(world, 0)));
    call_leave();
    assert_int_equal(closed.count, 0);
    WORLD_UNTIL(world, closed.count == 1);
    world_destroy(world);
}

typedef struct one_guest {
    acceptor_t acceptor;
    closed_probe_t closed;
} one_guest_t;

static void close_listener(link_probe_t *probe)
{
    one_guest_t *host = probe->context;
    call_enter();
    tow_listener_close(host->acceptor.listener,
                       closed_probe(&host->closed, host->acceptor.env));
    call_leave();
}

static void listener_may_be_closed_in_up_of_its_link(void **state)
{
    world_t *world = world_create(2);
    one_guest_t host = {.acceptor.hooks = {.up = close_listener}};
    host.acceptor.context = &host;
    acceptor_listen(&host.acceptor, world, 1);
    link_probe_t link = {.hooks = {.up = send_three}};
    link_probe_dial(&link, world_env(world, 0),
                    host.acceptor.listener->address);
    WORLD_UNTIL(world, host.closed.count == 1 &&
                           host.acceptor.accepted[0]->message_count == 3);
    world_destroy(world);
    acceptor_deinit(&host.acceptor);
}

SUITE(link_close,
      CONFORMANCE_TEST(messages_queued_before_close_arrive_then_down),
      CONFORMANCE_TEST(accepted_link_may_be_closed_the_same_way),
      CONFORMANCE_TEST(no_callback_runs_after_close_but_closed),
      CONFORMANCE_TEST(both_sides_may_close_at_once),
      CONFORMANCE_TEST(close_without_a_callback_is_allowed),
      CONFORMANCE_TEST(close_does_not_wait_for_a_peer_that_hangs),
      CONFORMANCE_TEST(link_may_be_closed_in_up),
      CONFORMANCE_TEST(link_may_be_closed_in_message),
      CONFORMANCE_TEST(link_may_be_closed_in_down),
      CONFORMANCE_TEST(finished_link_may_be_closed_in_down_or_later),
      CONFORMANCE_TEST(link_may_be_closed_in_writable),
      CONFORMANCE_TEST(link_may_be_closed_right_after_connect),
      CONFORMANCE_TEST(link_may_be_closed_at_every_step_of_dialling),
      CONFORMANCE_TEST(link_may_be_closed_between_two_dials),
      CONFORMANCE_TEST(listener_may_be_closed_at_once),
      CONFORMANCE_TEST(listener_may_be_closed_in_up_of_its_link))
