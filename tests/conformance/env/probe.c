#include "probe.h"

#include <stdio.h>
#include <stdlib.h>

/* -- Turns ---------------------------------------------------------------- */

#define CLOCK_COUNT_MAX 16

typedef struct clock_seen {
    const tow_env_t *env;
    int64_t now_ns;
} clock_seen_t;

static int turn_depth;
static int call_depth;
static clock_seen_t clocks[CLOCK_COUNT_MAX];
static size_t clock_count;

void turn_reset(void)
{
    turn_depth = 0;
    call_depth = 0;
    clock_count = 0;
}

static clock_seen_t *clock_of(const tow_env_t *env)
{
    for (size_t i = 0; i < clock_count; i++) {
        if (clocks[i].env == env) return &clocks[i];
    }
    assert_true(clock_count < CLOCK_COUNT_MAX);
    clocks[clock_count] = (clock_seen_t){env, INT64_MIN};
    return &clocks[clock_count++];
}

void turn_enter(tow_env_t *env)
{
    if (turn_depth != 0) fail_msg("a callback ran inside another callback");
    if (call_depth != 0) fail_msg("a callback ran inside the call before it");
    clock_seen_t *clock = clock_of(env);
    if (tow_env_now_ns(env) < clock->now_ns)
        fail_msg("time went back by %lld ns",
                 (long long)(clock->now_ns - tow_env_now_ns(env)));
    clock->now_ns = tow_env_now_ns(env);
    turn_depth++;
}

void turn_leave(tow_env_t *env)
{
    int64_t entered_ns = clock_of(env)->now_ns;
    if (tow_env_now_ns(env) != entered_ns)
        fail_msg("time moved by %lld ns within a turn",
                 (long long)(tow_env_now_ns(env) - entered_ns));
    turn_depth--;
}

void call_enter(void)
{
    call_depth++;
}

void call_leave(void)
{
    call_depth--;
}

/* -- Closed --------------------------------------------------------------- */

static void count_closed(void *context)
{
    closed_probe_t *probe = context;
    turn_enter(probe->env);
    probe->count++;
    if (probe->count > 1) fail_msg("closed ran %d times", probe->count);
    turn_leave(probe->env);
}

tow_closed_t closed_probe(closed_probe_t *probe, tow_env_t *env)
{
    probe->env = env;
    return (tow_closed_t){.run = count_closed, .context = probe};
}

/* -- Links ---------------------------------------------------------------- */

static link_probe_t *enter_link(void *context, tow_link_t *link,
                                const char *callback)
{
    link_probe_t *probe = context;
    turn_enter(link->env);
    if (probe->closing) fail_msg("%s ran after the link's close", callback);
    if (probe->link == NULL)
        fail_msg("%s ran before connect was done", callback);
    if (probe->link != link) fail_msg("%s ran for another link", callback);
    return probe;
}

/* The hook may have closed the link, which must then not be touched. */
static void leave_link(tow_env_t *env)
{
    turn_leave(env);
}

static void probe_up(void *context, tow_link_t *link)
{
    tow_env_t *env = link->env;
    link_probe_t *probe = enter_link(context, link, "up");
    if (probe->is_up) fail_msg("up ran twice without a down between");
    assert_int_equal(link->state, TOW_LINK_UP);
    const tow_peer_t *peer = tow_link_peer(link);
    if (probe->up_count > 0 && peer->epoch <= probe->peer.epoch)
        fail_msg("epoch %llu came after epoch %llu",
                 (unsigned long long)peer->epoch,
                 (unsigned long long)probe->peer.epoch);
    probe->peer = *peer;
    probe->is_up = true;
    probe->up_count++;
    probe->epoch_message_count = 0;
    if (probe->hooks.up != NULL) probe->hooks.up(probe);
    leave_link(env);
}

static void probe_message(void *context, tow_link_t *link,
                          const tow_message_t *message)
{
    tow_env_t *env = link->env;
    link_probe_t *probe = enter_link(context, link, "message");
    if (!probe->is_up) fail_msg("a message arrived outside an epoch");
    probe->message_count++;
    probe->epoch_message_count++;
    if (probe->hooks.message != NULL) probe->hooks.message(probe, message);
    leave_link(env);
}

static void probe_writable(void *context, tow_link_t *link)
{
    tow_env_t *env = link->env;
    link_probe_t *probe = enter_link(context, link, "writable");
    if (!probe->is_up) fail_msg("writable ran outside an epoch");
    probe->writable_count++;
    if (probe->hooks.writable != NULL) probe->hooks.writable(probe);
    leave_link(env);
}

static void probe_down(void *context, tow_link_t *link, tow_status_t cause)
{
    tow_env_t *env = link->env;
    link_probe_t *probe = enter_link(context, link, "down");
    if (probe->accepted && !probe->is_up)
        fail_msg("an accepted link went down without being up");
    assert_int_equal(link->state,
                     probe->accepted ? TOW_LINK_FINISHED : TOW_LINK_DIALLING);
    assert_true(cause != TOW_OK);
    probe->cause_code = tow_status_code(cause);
    snprintf(probe->cause, sizeof(probe->cause), "%s",
             tow_status_message(cause));
    probe->is_up = false;
    probe->down_count++;
    if (probe->hooks.down != NULL) probe->hooks.down(probe);
    leave_link(env);
}

const tow_link_handler_t link_probe_handler = {
    .up = probe_up,
    .message = probe_message,
    .writable = probe_writable,
    .down = probe_down,
};

void link_probe_dial_expecting(link_probe_t *probe, tow_env_t *env,
                               const char *address, const char *expected_name)
{
    tow_connect_options_t options = {
        .address = address,
        .expected_name = expected_name,
        .handler = &link_probe_handler,
        .context = probe,
    };
    call_enter();
    tow_status_t status = tow_env_connect(env, &options, &probe->link);
    call_leave();
    if (status != TOW_OK)
        fail_msg("dialling %s: %s", address, tow_status_message(status));
    assert_non_null(probe->link);
}

void link_probe_dial(link_probe_t *probe, tow_env_t *env, const char *address)
{
    link_probe_dial_expecting(probe, env, address, NULL);
}

void link_probe_close(link_probe_t *probe)
{
    assert_false(probe->closing);
    probe->closing = true;
    call_enter();
    tow_link_close(probe->link, closed_probe(&probe->closed, probe->link->env));
    call_leave();
}

/* -- Listeners ------------------------------------------------------------ */

static void accept_link(void *context, tow_link_t *link)
{
    acceptor_t *acceptor = context;
    turn_enter(acceptor->env);
    assert_ptr_equal(link->env, acceptor->env);
    assert_true(acceptor->accepted_count < ACCEPTED_COUNT_MAX);
    link_probe_t *probe = calloc(1, sizeof(*probe));
    probe->link = link;
    probe->accepted = true;
    probe->hooks = acceptor->hooks;
    probe->context = acceptor->context;
    acceptor->accepted[acceptor->accepted_count++] = probe;
    link->handler = &link_probe_handler;
    link->context = probe;
    if (acceptor->accepted_count <= acceptor->refuse_count)
        link_probe_close(probe);
    turn_leave(acceptor->env);
}

void acceptor_listen_at(acceptor_t *acceptor, tow_env_t *env,
                        const char *address)
{
    acceptor->env = env;
    tow_listen_options_t options = {
        .address = address, .accept = accept_link, .context = acceptor};
    call_enter();
    tow_status_t status = tow_env_listen(env, &options, &acceptor->listener);
    call_leave();
    if (status != TOW_OK)
        fail_msg("listening on %s: %s", address, tow_status_message(status));
    assert_non_null(acceptor->listener);
}

void acceptor_listen(acceptor_t *acceptor, world_t *world, size_t node)
{
    char address[WORLD_ADDRESS_SIZE];
    acceptor_listen_at(acceptor, world_env(world, node),
                       world_listen_address(world, node, address));
}

void acceptor_deinit(acceptor_t *acceptor)
{
    for (int i = 0; i < acceptor->accepted_count; i++)
        free(acceptor->accepted[i]);
    acceptor->accepted_count = 0;
}

link_probe_t *acceptor_last(acceptor_t *acceptor)
{
    assert_true(acceptor->accepted_count > 0);
    return acceptor->accepted[acceptor->accepted_count - 1];
}

/* -- Pairs ---------------------------------------------------------------- */

void pair_connect(pair_t *pair, world_t *world, pair_path_t path)
{
    pair->world = world;
    acceptor_listen(&pair->acceptor, world, 1);
    const char *address = pair->acceptor.listener->address;
    char route[WORLD_ADDRESS_SIZE];
    if (path == PAIR_BREAKABLE)
        address = world_route(world, 0, 1, address, route);
    link_probe_dial(&pair->dialler, world_env(world, 0), address);
    WORLD_UNTIL(world, pair->dialler.up_count == 1 &&
                           pair->acceptor.accepted_count == 1 &&
                           pair->acceptor.accepted[0]->up_count == 1);
    pair->accepted = pair->acceptor.accepted[0];
}

void pair_destroy(pair_t *pair)
{
    world_destroy(pair->world);
    acceptor_deinit(&pair->acceptor);
}

/* -- Content -------------------------------------------------------------- */

static uint64_t pattern_word(uint64_t seed, size_t index)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + index + 1;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
}

void pattern_fill(void *bytes, size_t size, uint64_t seed)
{
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word = pattern_word(seed, at);
        size_t count = size - at < sizeof(word) ? size - at : sizeof(word);
        memcpy((uint8_t *)bytes + at, &word, count);
    }
}

size_t pattern_check(const void *bytes, size_t size, uint64_t seed)
{
    const uint8_t *text = bytes;
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word = pattern_word(seed, at);
        size_t count = size - at < sizeof(word) ? size - at : sizeof(word);
        if (memcmp(text + at, &word, count) == 0) continue;
        while (text[at] == ((const uint8_t *)&word)[at % sizeof(word)])
            at++;
        return at;
    }
    return size;
}
