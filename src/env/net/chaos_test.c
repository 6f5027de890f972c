/* Random traffic: peers start and stop, links are dialled, flooded, starved and
 * closed in any order and from any callback. Whatever happens, messages of an
 * epoch arrive in order without a gap, and every close completes once. */
#include "env/net/net_testing_impl.h"

#define SEED_COUNT    5
#define STEP_COUNT    1500
#define ENDS_MAX      64
#define SIZE_MAX_     20000
#define LIFE_NAME_MAX 16

typedef struct chaos_end {
    test_end_t end; /* first: the handler's context */
    struct chaos *chaos;
    uint64_t sent; /* in this epoch */
    bool is_used;
    bool is_closing;
} chaos_end_t;

typedef struct chaos {
    test_fixture_t *fixture;
    tow_random_t random;
    chaos_end_t ends[TEST_PEER_COUNT_MAX]
                    [ENDS_MAX]; /* by the peer they are on */
    char addresses[TEST_PEER_COUNT_MAX][96];
    int closing_count;
    int closed_count;
    uint64_t message_count;
    uint64_t full_count;
} chaos_t;

static uint64_t draw(chaos_t *chaos, uint64_t bound)
{
    return tow_random_below(&chaos->random, bound);
}

static void life_closed(void *context)
{
    chaos_end_t *end = context;
    assert_true(end->is_used && end->is_closing);
    end->chaos->closed_count++;
    *end = (chaos_end_t){.chaos = end->chaos};
}

static void close_end(chaos_end_t *end)
{
    if (!end->is_used || end->is_closing || end->end.link == NULL) return;
    end->is_closing = true;
    end->chaos->closing_count++;
    tow_link_close(end->end.link,
                   (tow_closed_t){.run = life_closed, .context = end});
}

static void life_up(void *context, tow_link_t *link)
{
    test_end_up(context, link);
    ((chaos_end_t *)context)->sent = 0;
}

static void send_some(chaos_end_t *end, uint64_t count)
{
    static uint8_t bytes[SIZE_MAX_];
    if (!end->is_used || end->is_closing || end->end.link == NULL) return;
    while (count-- > 0) {
        uint32_t size = 8 + (uint32_t)draw(end->chaos, 8);
        if (draw(end->chaos, 10) == 0)
            size += (uint32_t)draw(end->chaos, SIZE_MAX_ - 16);
        memcpy(bytes, &end->sent, sizeof(end->sent));
        tow_send_result_t result = tow_link_send(end->end.link, 5, bytes, size);
        end->chaos->full_count += result == TOW_SEND_FULL;
        if (result != TOW_SEND_OK) return;
        end->sent++;
    }
}

static void life_message(void *context, tow_link_t *link,
                         const tow_message_t *message)
{
    chaos_end_t *end = context;
    assert_false(end->is_closing);
    test_end_message(context, link, message);
    assert_true(end->end.is_in_order);
    end->chaos->message_count++;
    const uint64_t choice = draw(end->chaos, 400);
    if (choice == 0) close_end(end);
    if (choice < 40) send_some(end, choice);
}

static void life_writable(void *context, tow_link_t *link)
{
    (void)link;
    send_some(context, 5);
}

static void life_down(void *context, tow_link_t *link, tow_status_t cause)
{
    chaos_end_t *end = context;
    assert_false(end->is_closing);
    test_end_down(context, link, cause);
    if (link->state == TOW_LINK_FINISHED || draw(end->chaos, 4) == 0)
        close_end(end);
}

static const tow_link_handler_t life_handler = {
    .up = life_up,
    .message = life_message,
    .writable = life_writable,
    .down = life_down,
};

static chaos_end_t *free_end(chaos_t *chaos, size_t peer)
{
    for (size_t i = 0; i < ENDS_MAX; i++) {
        chaos_end_t *end = &chaos->ends[peer][i];
        if (end->is_used) continue;
        *end = (chaos_end_t){.chaos = chaos, .is_used = true};
        return end;
    }
    return NULL;
}

static void chaos_accept(void *context, tow_link_t *link)
{
    chaos_t *chaos = context;
    size_t peer = 0;
    while (chaos->fixture->peers[peer].env != link->env)
        peer++;
    chaos_end_t *end = free_end(chaos, peer);
    if (end == NULL || draw(chaos, 20) == 0) {
        if (end != NULL) end->is_used = false;
        tow_link_close(link, (tow_closed_t){0});
        return;
    }
    end->end.link = link;
    link->handler = &life_handler;
    link->context = end;
}

static void start_peer(chaos_t *chaos, size_t index)
{
    char name[LIFE_NAME_MAX];
    snprintf(name, sizeof(name), "peer/%zu", index);
    test_peer_t *peer = test_add_peer(chaos->fixture, index, name);
    char address[96] = "tcp:127.0.0.1:0";
    if (draw(chaos, 2) == 0)
        snprintf(address, sizeof(address), "unix:%s/%zu",
                 chaos->fixture->folder, index);
    const tow_listen_options_t options = {
        .address = address, .accept = chaos_accept, .context = chaos};
    tow_listener_t *listener;
    tow_status_t status = tow_env_listen(peer->env, &options, &listener);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    snprintf(chaos->addresses[index], sizeof(chaos->addresses[index]), "%s",
             listener->address);
}

/* An unannounced death: its env closes its links. */
static void stop_peer(chaos_t *chaos, size_t index)
{
    test_peer_t *peer = &chaos->fixture->peers[index];
    tow_env_close(peer->env, (tow_closed_t){0});
    TEST_TURN_UNTIL(chaos->fixture, tow_net_is_closed(peer->net));
    test_remove_peer(chaos->fixture, index);
    for (size_t i = 0; i < ENDS_MAX; i++)
        chaos->ends[index][i] = (chaos_end_t){.chaos = chaos};
}

static void dial(chaos_t *chaos, size_t from, size_t to)
{
    chaos_end_t *end = free_end(chaos, from);
    if (end == NULL) return;
    const tow_connect_options_t options = {.address = chaos->addresses[to],
                                           .handler = &life_handler,
                                           .context = end};
    tow_status_t status = tow_env_connect(chaos->fixture->peers[from].env,
                                          &options, &end->end.link);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void step(chaos_t *chaos)
{
    const size_t peer = draw(chaos, TEST_PEER_COUNT_MAX);
    const uint64_t choice = draw(chaos, 1000);
    chaos_end_t *end = &chaos->ends[peer][draw(chaos, ENDS_MAX)];
    if (choice < 4) {
        stop_peer(chaos, peer);
        start_peer(chaos, peer);
    } else if (choice < 60) {
        dial(chaos, peer, draw(chaos, TEST_PEER_COUNT_MAX));
    } else if (choice < 90) {
        close_end(end);
    } else if (choice < 110) {
        for (size_t i = 0; i < ENDS_MAX; i++) /* Until they are full. */
            if (chaos->ends[peer][i].is_used && draw(chaos, 8) == 0)
                send_some(&chaos->ends[peer][i], 20000);
    } else if (choice < 400) {
        for (size_t i = 0; i < ENDS_MAX; i++)
            send_some(&chaos->ends[peer][i], draw(chaos, 50));
    } else {
        tow_net_turn(chaos->fixture->peers[peer].net, 0);
    }
}

static void live(test_fixture_t *fixture, uint64_t seed)
{
    chaos_t *chaos = calloc(1, sizeof(*chaos));
    assert_non_null(chaos);
    chaos->fixture = fixture;
    tow_random_init(&chaos->random, seed);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        start_peer(chaos, i);
    for (int i = 0; i < STEP_COUNT; i++)
        step(chaos);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        for (size_t j = 0; j < ENDS_MAX; j++)
            close_end(&chaos->ends[i][j]);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        for (size_t j = 0; j < ENDS_MAX; j++)
            TEST_TURN_UNTIL(fixture, !chaos->ends[i][j].is_closing);
    assert_true(chaos->closed_count <= chaos->closing_count);
    print_message(
        "seed %llu: %llu messages, %d links closed, full %llu times\n",
        (unsigned long long)seed, (unsigned long long)chaos->message_count,
        chaos->closed_count, (unsigned long long)chaos->full_count);
    assert_true(chaos->message_count > 0 && chaos->closed_count > 0);
    for (size_t i = 0; i < TEST_PEER_COUNT_MAX; i++)
        stop_peer(chaos, i);
    free(chaos);
}

static void random_traffic_keeps_the_guarantees(void **state)
{
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++)
        live(*state, seed);
}

TOW_TEST_MAIN(cmocka_unit_test_setup_teardown(
    random_traffic_keeps_the_guarantees, test_fixture_up, test_fixture_down))
