#include "env/sim/chaos_testing_impl.h"

#include <stdio.h>

#include "env/sim/fixture_testing_impl.h"

#define CHAOS_NODE_COUNT   8
#define CHAOS_PEER_COUNT   3 /* that one node dials */
#define CHAOS_REGION_BYTES (256u << 10)
#define CHAOS_WRITE_COUNT  4

typedef struct chaos_machine chaos_machine_t;

/* A message: its number in the epoch, and what a peer needs to write to us. */
typedef struct chaos_greeting {
    uint32_t counter;
    uint32_t reserved;
    tow_region_key_t key;
    uint8_t lane_address[32];
    uint64_t lane_address_size;
} chaos_greeting_t;

typedef struct chaos_peer {
    chaos_machine_t *machine;
    tow_link_t *link; /* NULL: closed */
    tow_lane_t *lane; /* NULL: none */
    bool closing;
    bool up;
    uint32_t sent;
    uint32_t received;
    tow_region_key_t key;
    struct chaos_peer *next; /* of accepted ones; owned */
} chaos_peer_t;

typedef struct chaos_write {
    tow_write_t write;
    chaos_machine_t *machine;
    bool pending;
} chaos_write_t;

struct chaos_machine {
    tow_env_t *env;
    tow_timer_t timer;
    tow_post_t post;
    tow_work_t work;
    bool posted;
    bool working;
    bool env_closing;
    chaos_peer_t dialled[CHAOS_PEER_COUNT];
    chaos_peer_t *accepted; /* owned list, including closed ones */
    tow_region_t *region;
    bool region_closing;
    chaos_write_t writes[CHAOS_WRITE_COUNT];
    uint8_t *memory; /* owned */
    uint8_t *source; /* owned */
};

static uint64_t chaos_random(chaos_machine_t *machine, uint64_t bound)
{
    return tow_random_below(tow_env_random(machine->env), bound);
}

/* -- Links ---------------------------------------------------------------- */

static void chaos_send(chaos_peer_t *peer)
{
    chaos_machine_t *machine = peer->machine;
    uint8_t bytes[3000] = {0};
    chaos_greeting_t greeting = {.counter = peer->sent};
    if (machine->region != NULL && !machine->region_closing)
        greeting.key = tow_region_key(machine->region);
    const void *address;
    size_t size;
    tow_env_lane_address(machine->env, &address, &size);
    assert_true(size <= sizeof(greeting.lane_address));
    memcpy(greeting.lane_address, address, size);
    greeting.lane_address_size = size;
    memcpy(bytes, &greeting, sizeof(greeting));
    uint32_t length =
        (uint32_t)(sizeof(greeting) + (chaos_random(machine, 4) ? 0 : 2000));
    tow_send_result_t result = tow_link_send(peer->link, 9, bytes, length);
    if (result == TOW_SEND_OK) peer->sent++;
    if (!peer->up) assert_int_equal(result, TOW_SEND_DOWN);
    /* A link that is up is DOWN only if memory was exhausted. */
    if (peer->up && result == TOW_SEND_DOWN)
        assert_true(tow_alloc_has_failed());
}

static void chaos_lane_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    chaos_peer_t *peer = context;
    assert_ptr_equal(peer->lane, lane);
    assert_non_null(tow_status_message(cause));
    peer->lane = NULL;
    tow_lane_close(lane, TOW_LANE_CLOSE_GRACEFUL, (tow_closed_t){0});
}

static void chaos_open_lane(chaos_peer_t *peer,
                            const chaos_greeting_t *greeting)
{
    peer->key = greeting->key;
    if (peer->lane != NULL) return;
    tow_status_t status = tow_env_lane_open(
        peer->machine->env,
        &(tow_lane_options_t){.address = greeting->lane_address,
                              .address_size = greeting->lane_address_size,
                              .peer_name = tow_link_peer(peer->link)->name,
                              .down = chaos_lane_down,
                              .context = peer},
        &peer->lane);
    tow_status_ignore(status, "memory may be exhausted");
}

static void chaos_up(void *context, tow_link_t *link)
{
    chaos_peer_t *peer = context;
    assert_false(peer->up || peer->closing || peer->machine->env_closing);
    peer->link = link;
    peer->up = true;
    peer->sent = peer->received = 0;
    chaos_send(peer);
}

static void chaos_message(void *context, tow_link_t *link,
                          const tow_message_t *message)
{
    chaos_peer_t *peer = context;
    assert_true(peer->up && !peer->closing && !peer->machine->env_closing);
    assert_ptr_equal(peer->link, link);
    chaos_greeting_t greeting;
    assert_true(message->type == 9 && message->size >= sizeof(greeting));
    memcpy(&greeting, message->bytes, sizeof(greeting));
    assert_int_equal(greeting.counter, peer->received++);
    chaos_open_lane(peer, &greeting);
    if (chaos_random(peer->machine, 2)) chaos_send(peer);
}

static void chaos_writable(void *context, tow_link_t *link)
{
    chaos_peer_t *peer = context;
    assert_true(peer->up && peer->link == link);
    chaos_send(peer);
}

static void chaos_close_lane(chaos_peer_t *peer)
{
    if (peer->lane == NULL) return;
    tow_lane_close(peer->lane, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    peer->lane = NULL;
}

static void chaos_link_closed(void *context)
{
    chaos_peer_t *peer = context;
    assert_true(peer->closing);
    peer->closing = false;
    peer->link = NULL;
}

static void chaos_close(chaos_peer_t *peer)
{
    if (peer->link == NULL || peer->closing) return;
    peer->closing = true;
    peer->up = false;
    chaos_close_lane(peer);
    tow_link_close(peer->link, (tow_closed_t){chaos_link_closed, peer});
}

static void chaos_down(void *context, tow_link_t *link, tow_status_t cause)
{
    chaos_peer_t *peer = context;
    assert_false(peer->closing);
    assert_int_not_equal(tow_status_code(cause), TOW_CODE_OK);
    peer->link = link;
    peer->up = false;
    chaos_close_lane(peer);
    if (link->state == TOW_LINK_FINISHED ||
        chaos_random(peer->machine, 20) == 0)
        chaos_close(peer);
}

static const tow_link_handler_t chaos_handler = {
    .up = chaos_up,
    .message = chaos_message,
    .writable = chaos_writable,
    .down = chaos_down,
};

static void chaos_accept(void *context, tow_link_t *link)
{
    chaos_machine_t *machine = context;
    chaos_peer_t *peer = tow_calloc(1, sizeof(*peer));
    if (peer == NULL || chaos_random(machine, 30) == 0) {
        tow_free(peer);
        tow_link_close(link, (tow_closed_t){0});
        return;
    }
    peer->machine = machine;
    peer->link = link;
    peer->next = machine->accepted;
    machine->accepted = peer;
    link->handler = &chaos_handler;
    link->context = peer;
}

static void chaos_dial(chaos_peer_t *peer)
{
    if (peer->link != NULL) return;
    char address[32];
    snprintf(address, sizeof(address), "sim:node/%d",
             (int)chaos_random(peer->machine, CHAOS_NODE_COUNT));
    tow_status_ignore(
        tow_env_connect(peer->machine->env,
                        &(tow_connect_options_t){.address = address,
                                                 .handler = &chaos_handler,
                                                 .context = peer},
                        &peer->link),
        "memory may be exhausted");
}

/* -- Memory --------------------------------------------------------------- */

static void chaos_arrived(void *context, tow_region_t *region,
                          const tow_arrival_t *arrival)
{
    chaos_machine_t *machine = context;
    assert_ptr_equal(machine->region, region);
    assert_true(arrival->offset + arrival->size <= CHAOS_REGION_BYTES);
}

static void chaos_open_region(chaos_machine_t *machine)
{
    tow_status_ignore(
        tow_env_region_open(machine->env,
                            &(tow_region_options_t){.bytes = machine->memory,
                                                    .size = CHAOS_REGION_BYTES,
                                                    .arrived = chaos_arrived,
                                                    .context = machine},
                            &machine->region),
        "memory may be exhausted");
}

static void chaos_region_closed(void *context)
{
    chaos_machine_t *machine = context;
    machine->region_closing = false;
    machine->region = NULL;
}

static void chaos_swap_region(chaos_machine_t *machine)
{
    if (machine->region_closing) return;
    if (machine->region == NULL) {
        chaos_open_region(machine);
        return;
    }
    machine->region_closing = true;
    tow_region_close(machine->region,
                     (tow_closed_t){chaos_region_closed, machine});
}

static void chaos_write_done(tow_write_t *write, tow_status_t take_status)
{
    chaos_write_t *slot = TOW_CONTAINER_OF(write, chaos_write_t, write);
    assert_true(slot->pending);
    slot->pending = false;
    tow_status_ignore(take_status, "anything may happen");
}

static void chaos_write(chaos_peer_t *peer)
{
    chaos_machine_t *machine = peer->machine;
    if (peer->lane == NULL) return;
    chaos_write_t *slot =
        &machine->writes[chaos_random(machine, CHAOS_WRITE_COUNT)];
    if (slot->pending) return;
    size_t size = 1 + chaos_random(machine, CHAOS_REGION_BYTES);
    uint64_t offset = chaos_random(machine, CHAOS_REGION_BYTES - size + 2);
    bool checked = chaos_random(machine, 2);
    slot->machine = machine;
    slot->write =
        (tow_write_t){.bytes = machine->source,
                      .size = size,
                      .key = peer->key,
                      .offset = offset,
                      .check = checked ? TOW_WRITE_CRC32C : TOW_WRITE_UNCHECKED,
                      .done = chaos_write_done};
    slot->pending = tow_lane_write(peer->lane, &slot->write) == TOW_SEND_OK;
}

static void chaos_datagram(chaos_peer_t *peer)
{
    uint8_t bytes[512] = {1};
    if (peer->lane == NULL) return;
    (void)!tow_lane_send(peer->lane, 4, bytes,
                         chaos_random(peer->machine, sizeof(bytes)));
}

static void chaos_datagram_arrived(void *context, uint64_t channel,
                                   const void *bytes, size_t size)
{
    (void)context;
    assert_int_equal(channel, 4);
    if (size > 0) assert_int_equal(*(const uint8_t *)bytes, 1);
}

/* -- The machine ---------------------------------------------------------- */

static void chaos_posted(tow_post_t *post)
{
    TOW_CONTAINER_OF(post, chaos_machine_t, post)->posted = false;
}

static tow_status_t chaos_work_run(tow_work_t *work)
{
    (void)work;
    return TOW_OK;
}

static void chaos_work_done(tow_work_t *work, tow_status_t take_status)
{
    chaos_machine_t *machine = TOW_CONTAINER_OF(work, chaos_machine_t, work);
    assert_true(machine->working);
    machine->working = false;
    tow_status_ignore(take_status, "it may be cancelled");
}

static void chaos_toggle_work(chaos_machine_t *machine)
{
    if (machine->working) {
        tow_env_work_cancel(machine->env, &machine->work);
        return;
    }
    machine->working = true;
    machine->work = (tow_work_t){
        .run = chaos_work_run, .done = chaos_work_done, .cost_ns = MS};
    tow_env_work_start(machine->env, &machine->work);
}

static void chaos_post(chaos_machine_t *machine)
{
    if (machine->posted) return;
    machine->posted = true;
    machine->post.run = chaos_posted;
    tow_env_post(machine->env, &machine->post);
}

static chaos_peer_t *chaos_pick(chaos_machine_t *machine)
{
    chaos_peer_t *peer = machine->accepted;
    if (peer == NULL || chaos_random(machine, 2))
        return &machine->dialled[chaos_random(machine, CHAOS_PEER_COUNT)];
    while (peer->next != NULL && chaos_random(machine, 2))
        peer = peer->next;
    return peer;
}

static void chaos_env_closed(void *context)
{
    chaos_machine_t *machine = context;
    assert_false(machine->working || machine->region_closing);
    for (int i = 0; i < CHAOS_WRITE_COUNT; i++)
        assert_false(machine->writes[i].pending);
    for (int i = 0; i < CHAOS_PEER_COUNT; i++)
        assert_false(machine->dialled[i].closing);
}

/* The process closes its env and is idle until it is killed. */
static void chaos_close_env(chaos_machine_t *machine)
{
    machine->env_closing = true;
    tow_env_close(machine->env, (tow_closed_t){chaos_env_closed, machine});
}

static void chaos_tick(tow_timer_t *timer)
{
    chaos_machine_t *machine = TOW_CONTAINER_OF(timer, chaos_machine_t, timer);
    assert_false(machine->env_closing);
    if (chaos_random(machine, 200) == 0) {
        chaos_close_env(machine);
        return;
    }
    chaos_peer_t *peer = chaos_pick(machine);
    switch (chaos_random(machine, 20)) {
    case 0: chaos_close(peer); break;
    case 1: chaos_toggle_work(machine); break;
    case 2: chaos_post(machine); break;
    case 3: chaos_swap_region(machine); break;
    case 4: chaos_close_lane(peer); break;
    case 5:
    case 6:
    case 7: chaos_write(peer); break;
    case 8:
    case 9: chaos_datagram(peer); break;
    default:
        if (peer->up) chaos_send(peer);
        break;
    }
    for (int i = 0; i < CHAOS_PEER_COUNT; i++)
        chaos_dial(&machine->dialled[i]);
    tow_env_timer_start(machine->env, timer,
                        tow_env_now_ns(machine->env) +
                            (int64_t)chaos_random(machine, 4 * MS));
}

static void chaos_destroy(void *context)
{
    chaos_machine_t *machine = context;
    while (machine->accepted != NULL) {
        chaos_peer_t *next = machine->accepted->next;
        tow_free(machine->accepted);
        machine->accepted = next;
    }
    tow_free(machine->memory);
    tow_free(machine->source);
    tow_free(machine);
}

static tow_status_t chaos_start(tow_env_t *env, void *argument,
                                void **out_machine)
{
    (void)argument;
    chaos_machine_t *machine = tow_calloc(1, sizeof(*machine));
    if (machine == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_machine = machine;
    machine->env = env;
    machine->memory = tow_calloc(1, CHAOS_REGION_BYTES);
    machine->source = tow_calloc(1, CHAOS_REGION_BYTES);
    if (machine->memory == NULL || machine->source == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (int i = 0; i < CHAOS_PEER_COUNT; i++)
        machine->dialled[i].machine = machine;
    tow_env_datagram_handler(env, chaos_datagram_arrived, machine);
    chaos_open_region(machine);
    char address[80];
    snprintf(address, sizeof(address), "sim:%s", env->name);
    tow_listener_t *listener;
    TOW_RETURN_IF_ERROR(tow_env_listen(
        env,
        &(tow_listen_options_t){
            .address = address, .accept = chaos_accept, .context = machine},
        &listener));
    machine->timer.fire = chaos_tick;
    tow_env_timer_start(env, &machine->timer, tow_env_now_ns(env) + MS);
    return TOW_OK;
}

static const tow_sim_program_t chaos_program = {.start = chaos_start,
                                                .destroy = chaos_destroy};

/* -- Injected failures ---------------------------------------------------- */

static tow_sim_host_t *chaos_host(tow_sim_chaos_t *chaos)
{
    size_t count = tow_sim_node_count(chaos->sim);
    return tow_sim_node_host(
        tow_sim_node_at(chaos->sim, tow_random_below(&chaos->random, count)));
}

static tow_status_t chaos_cut(tow_sim_chaos_t *chaos)
{
    /* One draw per statement, here and below: within one, each compiler has
     * its own order. */
    tow_sim_host_t *a[2];
    a[0] = chaos_host(chaos);
    a[1] = chaos_host(chaos);
    size_t count = 1 + tow_random_below(&chaos->random, 2);
    tow_sim_direction_t way =
        (tow_sim_direction_t)tow_random_below(&chaos->random, 2);
    tow_sim_cut_t cut = {.a = a, .a_count = count, .direction = way};
    return tow_sim_partition(chaos->sim, &cut, NULL);
}

static tow_status_t chaos_degrade_path(tow_sim_chaos_t *chaos)
{
    static const tow_sim_path_t path = {.latency_ns = 10 * US,
                                        .jitter_ns = 20 * US,
                                        .bandwidth_bytes_per_second = 100000000,
                                        .loss_ppm = 500,
                                        .corrupt_ppm = 500,
                                        .duplicate_ppm = 50000,
                                        .reorder_ppm = 50000};
    tow_sim_host_t *from = chaos_host(chaos);
    tow_sim_host_t *to = chaos_host(chaos);
    return tow_sim_set_path(chaos->sim, from, to, TOW_SIM_ONE_WAY, &path);
}

static tow_status_t chaos_inject_failure(tow_sim_chaos_t *chaos)
{
    size_t count = tow_sim_node_count(chaos->sim);
    tow_sim_node_t *node =
        tow_sim_node_at(chaos->sim, tow_random_below(&chaos->random, count));
    switch (tow_random_below(&chaos->random, 9)) {
    case 0: tow_sim_crash(node); break;
    case 1:
    case 2: tow_sim_restart(node); break;
    case 3: tow_sim_pause(node); break;
    case 4:
    case 5: tow_sim_resume(node); break;
    case 6: return chaos_cut(chaos);
    case 7: tow_sim_heal(chaos->sim, 0); break;
    default: return chaos_degrade_path(chaos);
    }
    return TOW_OK;
}

static void chaos_fail_and_reschedule(void *context, tow_sim_t *sim)
{
    tow_sim_chaos_t *chaos = context;
    tow_status_t status = chaos_inject_failure(chaos);
    if (status == TOW_OK) {
        int64_t pause_ns = (int64_t)tow_random_below(
            &chaos->random, (uint64_t)(2 * chaos->failure_interval_ns));
        status = tow_sim_schedule(
            sim, tow_sim_now_ns(sim) + pause_ns,
            &(tow_sim_action_t){.kind = TOW_SIM_CALL,
                                .call = chaos_fail_and_reschedule,
                                .context = chaos},
            NULL);
    }
    if (status != TOW_OK) tow_sim_fail(sim, status);
}

static tow_status_t chaos_create_nodes(tow_sim_chaos_t *chaos)
{
    for (int i = 0; i < CHAOS_NODE_COUNT; i++) {
        tow_sim_host_t *host = NULL;
        tow_sim_node_t *node;
        char name[32];
        snprintf(name, sizeof(name), "node/%d", i);
        /* Every other host charges for its cores; every third node shares
         * one. */
        if (i % 3 == 2)
            host =
                tow_sim_node_host(tow_sim_node_at(chaos->sim, (size_t)i - 1));
        else if (i % 2)
            TOW_RETURN_IF_ERROR(tow_sim_host_create(
                chaos->sim,
                &(tow_sim_host_options_t){.core_count = 1,
                                          .costs = {.turn_ns = 200,
                                                    .receive_ns = 1500,
                                                    .send_ns = 900,
                                                    .send_ns_per_kib = 300}},
                &host));
        TOW_RETURN_IF_ERROR(tow_sim_node_create(
            chaos->sim,
            &(tow_sim_node_options_t){
                .name = name, .host = host, .program = &chaos_program},
            &node));
    }
    return TOW_OK;
}

/* Not after each event: a check costs a hundred of them. */
static void chaos_check(void *context, tow_sim_t *sim)
{
    (void)context;
    if (tow_sim_counts(sim).events % 32 == 0) tow_sim_check(sim);
}

tow_status_t tow_sim_chaos_open(tow_sim_chaos_t *chaos, uint64_t seed,
                                int64_t failure_interval_ns, FILE *event_log)
{
    *chaos = (tow_sim_chaos_t){.failure_interval_ns = failure_interval_ns};
    tow_random_init(&chaos->random, seed);
    TOW_RETURN_IF_ERROR(tow_sim_create(
        &(tow_sim_options_t){
            .seed = seed,
            .fault_chance_ppm = 1000,
            .remote_path = {.latency_ns = 20 * US,
                            .jitter_ns = 5 * US,
                            .bandwidth_bytes_per_second = 1000000000,
                            .loss_ppm = 200,
                            .corrupt_ppm = 200},
            .timeouts = {.link_ns = 30 * MS,
                         .lane_ns = 40 * MS,
                         .dial_ns = 20 * MS},
            .link_bytes_max = 16 << 10,
            .lane_bytes_max = 8 << 10,
            .log.level = TOW_LOG_OFF,
            .event_log = event_log,
            .after_event = chaos_check},
        &chaos->sim));
    TOW_RETURN_IF_ERROR(chaos_create_nodes(chaos));
    if (failure_interval_ns == 0) return TOW_OK;
    return tow_sim_schedule(
        chaos->sim, failure_interval_ns,
        &(tow_sim_action_t){.kind = TOW_SIM_CALL,
                            .call = chaos_fail_and_reschedule,
                            .context = chaos},
        NULL);
}
