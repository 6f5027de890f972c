/* Random lives: peers come and go, links are dialled, flooded, starved and closed
 * in any order and from any callback. Whatever happens, messages of an epoch
 * arrive in order without a gap, and all that is closed is closed once. */
#include "env/net/net_testing_impl.h"

#define SEED_COUNT    5
#define STEP_COUNT    1500
#define ENDS_MAX      64
#define SIZE_MAX_     20000
#define LIFE_NAME_MAX 16

typedef struct life_end {
    test_end_t end; /* first: the handler's context */
    struct life *life;
    uint64_t sent; /* in this epoch */
    bool is_used;
    bool is_closing;
} life_end_t;

typedef struct life {
    test_world_t *world;
    tow_random_t random;
    life_end_t ends[TEST_PEER_COUNT_MAX]
                   [ENDS_MAX]; /* by the peer they are on */
    char addresses[TEST_PEER_COUNT_MAX][96];
    int closing_count;
    int closed_count;
    uint64_t message_count;
    uint64_t full_count;
} life_t;

static uint64_t draw(life_t *life, uint64_t bound)
{
    return tow_random_below(&life->random, bound);
}

static void life_closed(void *context)
{
    life_end_t *end = context;
    assert_true(end->is_used && end->is_closing);
    end->life->closed_count++;
    *end = (life_end_t){.life = end->life};
}

static void close_end(life_end_t *end)
{
    if (!end->is_used || end->is_closing || end->end.link == NULL) return;
    end->is_closing = true;
    end->life->closing_count++;
    tow_link_close(end->end.link,
                   (tow_closed_t){.run = life_closed, .context = end});
}

static void life_up(void *context, tow_link_t *link)
{
    test_end_up(context, link);
    ((life_end_t *)context)->sent = 0;
}

static void send_some(life_end_t *end, uint64_t count)
{
    static uint8_t bytes[SIZE_MAX_];
    if (!end->is_used || end->is_closing || end->end.link == NULL) return;
    while (count-- > 0) {
        uint32_t size = 8 + (uint32_t)draw(end->life, 8);
        if (draw(end->life, 10) == 0)
            size += (uint32_t)draw(end->life, SIZE_MAX_ - 16);
        memcpy(bytes, &end->sent, sizeof(end->sent));
        tow_send_result_t result = tow_link_send(end->end.link, 5, bytes, size);
        end->life->full_count += result == TOW_SEND_FULL;
        if (result != TOW_SEND_OK) return;
        end->sent++;
    }
}

static void life_message(void *context, tow_link_t *link,
                         const tow_message_t *message)
{
    life_end_t *end = context;
    assert_false(end->is_closing);
    test_end_message(context, link, message);
    assert_true(end->end.is_in_order);
    end->life->message_count++;
    const uint64_t fate = draw(end->life, 400);
    if (fate == 0) close_end(end);
    if (fate < 40) send_some(end, fate);
}

static void life_writable(void *context, tow_link_t *link)
{
    (void)link;
    send_some(context, 5);
}

static void life_down(void *context, tow_link_t *link, tow_status_t cause)
{
    life_end_t *end = context;
    assert_false(end->is_closing);
    test_end_down(context, link, cause);
    if (link->state == TOW_LINK_FINISHED || draw(end->life, 4) == 0)
        close_end(end);
}

static const tow_link_handler_t life_handler = {
    .up = life_up,
    .message = life_message,
    .writable = life_writable,
    .down = life_down,
};

static life_end_t *free_end(life_t *life, size_t peer)
{
    for (size_t i = 0; i < ENDS_MAX; i++) {
        life_end_t *end = &life->ends[peer][i];
        if (end->is_used) continue;
        *end = (life_end_t){.life = life, .is_used = true};
        return end;
    }
    return NULL;
}

static void life_accept(void *context, tow_link_t *link)
{
    life_t *life = context;
    size_t peer = 0;
    while (life->world->peers[peer].env != link->env)
        peer++;
    life_end_t *end = free_end(life, peer);
    if (end == NULL || draw(life, 20) == 0) {
        if (end != NULL) end->is_used = false;
        tow_link_close(link, (tow_closed_t){0});
        return;
    }
    end->end.link = link;
    link->handler = &life_handler;
    link->context = end;
}

static void be_born(life_t *life, size_t index)
{
    char name[LIFE_NAME_MAX];
    snprintf(name, sizeof(name), "peer/%zu", index);
    test_peer_t *peer = test_add_peer(life->world, index, name);
    char address[96] = "tcp:127.0.0.1:0";
    if (draw(life, 2) == 0)
        snprintf(address, sizeof(address), "unix:%s/%zu", life->world->folder,
                 index);
    const tow_listen_options_t options = {
        .address = address, .accept = life_accept, .context = life};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(peer->env, &options, &listener);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    snprintf(life->addresses[index], sizeof(life->addresses[index]), "%s",
             listener->address);
}

/* A death that nobody foresaw: its links are closed by its env. */
static void die(life_t *life, size_t index)
{
    test_peer_t *peer = &life->world->peers[index];
    tow_env_close(peer->env, (tow_closed_t){0});
    TEST_TURN_UNTIL(life->world, tow_net_is_closed(peer->net));
    test_remove_peer(life->world, index);
    for (size_t i = 0; i < ENDS_MAX; i++)
        life->ends[index][i] = (life_end_t){.life = life};
}

static void dial(life_t *life, size_t from, size_t to)
{
    life_end_t *end = free_end(life, from);
    if (end == NULL) return;
    const tow_connect_options_t options = {.address = life->addresses[to],
                                           .handler = &life_handler,
                                           .context = end};
    tow_status_t status =
        tow_env_connect(life->world->peers[from].env, &options, &end->end.link);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void step(life_t *life)
{
    const size_t peer = draw(life, TEST_PEER_COUNT_MAX);
    const uint64_t fate = draw(life, 1000);
    life_end_t *end = &life->ends[peer][draw(life, ENDS_MAX)];
    if (fate < 4) {
        die(life, peer);
        be_born(life, peer);
    } else if (fate < 60) {
        dial(life, peer, draw(life, TEST_PEER_COUNT_MAX));
    } else if (fate < 90) {
        close_end(end);
    } else if (fate < 110) {
        for (size_t i = 0; i < ENDS_MAX; i++) /* Until they are full. */
            if (life->ends[peer][i].is_used && draw(life, 8) == 0)
                send_some(&life->ends[peer][i], 20000);
    } else if (fate < 400) {
        for (size_t i = 0; i < ENDS_MAX; i++)
            send_some(&life->ends[peer][i], draw(life, 50));
    } else {
        tow_net_turn(life->world->peers[peer].net, 0);
    }
}

static void live(test_world_t *world, uint64_t seed)
{
    life_t *life = calloc(1, sizeof(*life));
    assert_non_null(life);
    life->world = world;
    tow_random_init(&life->random, seed);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        be_born(life, i);
    for (int i = 0; i < STEP_COUNT; i++)
        step(life);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        for (size_t j = 0; j < ENDS_MAX; j++)
            close_end(&life->ends[i][j]);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        for (size_t j = 0; j < ENDS_MAX; j++)
            TEST_TURN_UNTIL(world, !life->ends[i][j].is_closing);
    assert_true(life->closed_count <= life->closing_count);
    print_message(
        "seed %llu: %llu messages, %d links closed, full %llu times\n",
        (unsigned long long)seed, (unsigned long long)life->message_count,
        life->closed_count, (unsigned long long)life->full_count);
    assert_true(life->message_count > 0 && life->closed_count > 0);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        die(life, i);
    free(life);
}

static void random_lives_keep_the_promises(void **state)
{
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++)
        live(*state, seed);
}

TOW_TEST_MAIN(cmocka_unit_test_setup_teardown(random_lives_keep_the_promises,
                                              test_world_up, test_world_down))
