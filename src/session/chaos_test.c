/* Random faults of every kind, from many seeds: messages and blobs arrive once
 * and in order, or both sides see a disconnection; and when the faults stop,
 * sessions work as before. */
#include "session/session_testing_impl.h"

#define SEED_COUNT     300
#define WORKER_COUNT   3
#define CHAOS_NS       (20 * SECOND)
#define CALM_NS        (12 * SECOND)
#define HUB_OWNERS_MAX 256

typedef struct machine {
    tow_env_t *env;
    struct world *world;
    bool is_hub;
    tow_timer_t timer;
    tow_session_port_t *port;
    owner_t owners[HUB_OWNERS_MAX]; /* a worker has one */
    int owner_count;
} machine_t;

typedef struct world {
    tow_sim_t *sim;
    tow_random_t random;
    tow_sim_node_t *hub;
    tow_sim_node_t *workers[WORKER_COUNT];
    int64_t balance; /* blobs that were not released */
    bool is_calm;
    uint64_t received;
    uint64_t disconnected;
    uint64_t blobs;
    uint64_t again;
} world_t;

static uint64_t roll(machine_t *machine, uint64_t bound)
{
    return tow_random_below(tow_env_random(machine->env), bound);
}

/* Mostly of one part, sometimes of up to three. */
static size_t blob_size(machine_t *machine)
{
    bool is_large = roll(machine, 8) == 0;
    return roll(machine, is_large ? 600u << 10 : 2000);
}

static void chat(machine_t *machine, owner_t *owner)
{
    if (owner->session == NULL || !tow_session_is_open(owner->session)) return;
    uint64_t count = roll(machine, 20);
    for (uint64_t i = 0; i < count; i++) {
        if (roll(machine, 100) == 0)
            (void)owner_send_blob(owner, &machine->world->balance,
                                  blob_size(machine));
        else if (owner_send(owner) != TOW_SEND_OK)
            return;
    }
}

static void forget(owner_t *owner, world_t *world)
{
    world->received += owner->received;
    world->blobs += owner->blobs_received;
    world->disconnected += owner->disconnected_count;
}

/* All peers follow the protocol, so no violation may be reported. */
static void check_gone(owner_t *owner)
{
    if (owner->disconnect_code != TOW_CANCELLED &&
        owner->disconnect_code != TOW_ABORTED &&
        owner->disconnect_code != TOW_UNAVAILABLE &&
        owner->disconnect_code != TOW_NOT_FOUND)
        fail_msg("%s", owner->disconnect_message);
}

static void dial_hub(machine_t *machine)
{
    owner_t *owner = &machine->owners[0];
    forget(owner, machine->world);
    *owner =
        (owner_t){.close_on_disconnect = true, .on_disconnect = check_gone};
    must(tow_session_dial(machine->env,
                          &(tow_session_dial_options_t){
                              .address = "sim:hub",
                              .connect_timeout_ns = 60 * SECOND,
                              .limits = {.retransmit_bytes_max = 200000},
                              .handler = &owner_handler,
                              .context = owner},
                          &owner->session));
}

static void tick(tow_timer_t *timer)
{
    machine_t *machine = TOW_CONTAINER_OF(timer, machine_t, timer);
    if (!machine->is_hub && machine->owners[0].session == NULL)
        dial_hub(machine);
    for (int i = 0; i < machine->owner_count && !machine->world->is_calm; i++) {
        owner_t *owner = &machine->owners[i];
        chat(machine, owner);
        if (owner->session != NULL && roll(machine, 150) == 0) {
            tow_session_close(owner->session, TOW_OK, (tow_closed_t){0});
            owner->session = NULL;
        }
    }
    tow_env_timer_start(machine->env, timer,
                        tow_env_now_ns(machine->env) + 100 * MS);
}

static void hub_arrived(void *context, tow_session_t *session)
{
    machine_t *machine = context;
    int index = 0;
    while (machine->owners[index].session != NULL)
        index++;
    assert_true(index < HUB_OWNERS_MAX);
    if (index == machine->owner_count) machine->owner_count++;
    owner_t *owner = &machine->owners[index];
    forget(owner, machine->world);
    *owner = (owner_t){.session = session,
                       .close_on_disconnect = true,
                       .on_disconnect = check_gone};
    tow_session_accept(session, &owner_handler, owner);
}

static tow_status_t start(tow_env_t *env, void *argument, void **out_machine)
{
    world_t *world = argument;
    machine_t *machine = tow_calloc(1, sizeof(*machine));
    assert_non_null(machine);
    *out_machine = machine;
    machine->env = env;
    machine->world = world;
    machine->is_hub = strcmp(env->name, "hub") == 0;
    machine->timer.fire = tick;
    machine->owner_count = machine->is_hub ? 0 : 1;
    if (machine->is_hub)
        must(tow_session_listen(env,
                                &(tow_session_listen_options_t){
                                    .address = "sim:hub",
                                    .limits = {.retransmit_bytes_max = 200000},
                                    .arrived = hub_arrived,
                                    .context = machine},
                                &machine->port));
    tow_env_timer_start(env, &machine->timer, tow_env_now_ns(env));
    return TOW_OK;
}

static void destroy(void *context)
{
    machine_t *machine = context;
    if (machine == NULL) return;
    for (int i = 0; i < machine->owner_count; i++) {
        forget(&machine->owners[i], machine->world);
        tow_session_discard(machine->owners[i].session);
    }
    tow_session_port_discard(machine->port);
    tow_free(machine);
}

static const tow_sim_program_t program = {.start = start, .destroy = destroy};

/* -- Fault injection ------------------------------------------------------- */

static uint64_t draw(world_t *world, uint64_t bound)
{
    return tow_random_below(&world->random, bound);
}

static void plan(world_t *world, int64_t time_ns, tow_sim_action_t action)
{
    must(tow_sim_schedule(world->sim, time_ns, &action, NULL));
}

static void plan_cut(world_t *world, tow_sim_node_t *node, int64_t time_ns)
{
    tow_sim_host_t *host = tow_sim_node_host(node);
    tow_sim_host_t *hub = tow_sim_node_host(world->hub);
    bool one_way = draw(world, 3) == 0;
    bool outwards = draw(world, 2) == 0;
    uint64_t cut_id = 0;
    tow_sim_action_t action = {
        .kind = TOW_SIM_PARTITION,
        .cut = {.a = outwards ? &host : &hub,
                .a_count = 1,
                .b = outwards ? &hub : &host,
                .b_count = 1,
                .direction = one_way ? TOW_SIM_ONE_WAY : TOW_SIM_BOTH_WAYS}};
    must(tow_sim_schedule(world->sim, time_ns, &action, &cut_id));
    int64_t span_ns = (int64_t)draw(world, 4000) * MS;
    plan(world, time_ns + span_ns,
         (tow_sim_action_t){.kind = TOW_SIM_HEAL, .cut_id = cut_id});
}

/* Faults of nodes end before the quiet phase. */
static void plan_fates(world_t *world)
{
    uint64_t count = 3 + draw(world, 10);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t index = draw(world, WORKER_COUNT + 1);
        tow_sim_node_t *node =
            index == WORKER_COUNT ? world->hub : world->workers[index];
        int64_t time_ns = (int64_t)draw(world, CHAOS_NS / MS) * MS;
        int64_t span_ns = (int64_t)draw(world, 4000) * MS;
        uint64_t fate = draw(world, 3);
        if (fate == 0) {
            plan(world, time_ns,
                 (tow_sim_action_t){.kind = TOW_SIM_CRASH, .node = node});
            plan(world, time_ns + span_ns,
                 (tow_sim_action_t){.kind = TOW_SIM_RESTART, .node = node});
        } else if (fate == 1) {
            plan(world, time_ns,
                 (tow_sim_action_t){.kind = TOW_SIM_PAUSE, .node = node});
            plan(world, time_ns + span_ns,
                 (tow_sim_action_t){.kind = TOW_SIM_RESUME, .node = node});
        } else if (node != world->hub) {
            plan_cut(world, node, time_ns);
        }
    }
}

static void make_nodes(world_t *world)
{
    must(tow_sim_node_create(world->sim,
                             &(tow_sim_node_options_t){.name = "hub",
                                                       .program = &program,
                                                       .argument = world},
                             &world->hub));
    for (int i = 0; i < WORKER_COUNT; i++) {
        char name[16];
        snprintf(name, sizeof(name), "worker/%d", i);
        must(tow_sim_node_create(world->sim,
                                 &(tow_sim_node_options_t){.name = name,
                                                           .program = &program,
                                                           .argument = world},
                                 &world->workers[i]));
    }
}

static void open_world(world_t *world, uint64_t seed)
{
    *world = (world_t){0};
    tow_random_init(&world->random, seed);
    tow_sim_path_t path = {.latency_ns = 1 + (int64_t)draw(world, 5 * MS)};
    path.jitter_ns = (int64_t)draw(world, 3 * MS);
    path.loss_ppm = draw(world, 2) ? (uint32_t)draw(world, 3000) : 0;
    path.corrupt_ppm = draw(world, 3) ? 0 : (uint32_t)draw(world, 3000);
    if (draw(world, 2)) path.bandwidth_bytes_per_second = 30u << 20;
    tow_sim_options_t options = {
        .seed = seed, .remote_path = path, .log.level = TOW_LOG_OFF};
    if (draw(world, 3) == 0) options.link_bytes_max = 300000;
    must(tow_sim_create(&options, &world->sim));
    make_nodes(world);
    plan_fates(world);
}

static void calm_down(world_t *world)
{
    const tow_sim_path_t kind = {.latency_ns = 50 * TOW_NS_PER_US};
    world->is_calm = true;
    tow_sim_heal(world->sim, 0);
    for (int i = 0; i < WORKER_COUNT; i++)
        must(tow_sim_set_path(world->sim, tow_sim_node_host(world->hub),
                              tow_sim_node_host(world->workers[i]),
                              TOW_SIM_BOTH_WAYS, &kind));
    for (int i = -1; i < WORKER_COUNT; i++) {
        tow_sim_node_t *node = i < 0 ? world->hub : world->workers[i];
        tow_sim_resume(node);
        tow_sim_restart(node);
    }
}

/* -- Final checks ---------------------------------------------------------- */

static owner_t *find_open(machine_t *hub, uint64_t id)
{
    for (int i = 0; i < hub->owner_count; i++)
        if (hub->owners[i].session != NULL && hub->owners[i].session->id == id)
            return &hub->owners[i];
    return NULL;
}

static void check_pair(uint64_t seed, world_t *world, const owner_t *here,
                       const owner_t *there)
{
    tow_session_stats_t stats = tow_session_stats(here->session);
    if (here->sent != there->received || stats.retransmit_bytes != 0)
        fail_msg("seed %d: %d sent, %d received, %d bytes unacknowledged",
                 (int)seed, (int)here->sent, (int)there->received,
                 (int)stats.retransmit_bytes);
    world->again += stats.messages_sent_again;
}

static void check_calm(uint64_t seed, world_t *world)
{
    machine_t *hub = tow_sim_node_machine(world->hub);
    int open_count = 0;
    for (int i = 0; i < hub->owner_count; i++)
        open_count += hub->owners[i].session != NULL;
    if (open_count != WORKER_COUNT)
        fail_msg("seed %d: %d sessions are open", (int)seed, open_count);
    for (int i = 0; i < WORKER_COUNT; i++) {
        machine_t *machine = tow_sim_node_machine(world->workers[i]);
        owner_t *here = &machine->owners[0];
        assert_non_null(here->session);
        owner_t *there = find_open(hub, here->session->id);
        if (there == NULL || here->opened_count != 1)
            fail_msg("seed %d: worker %d has no session", (int)seed, i);
        check_pair(seed, world, here, there);
        check_pair(seed, world, there, here);
    }
    assert_int_equal(world->balance, 0);
}

static void run_for(world_t *world, int64_t span_ns)
{
    must(tow_sim_run(world->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(world->sim) + span_ns}));
}

static void random_faults_lose_nothing(void **state)
{
    world_t sum = {0};
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++) {
        world_t world;
        open_world(&world, seed);
        run_for(&world, CHAOS_NS);
        calm_down(&world);
        run_for(&world, CALM_NS);
        check_calm(seed, &world);
        tow_sim_destroy(world.sim);
        assert_int_equal(world.balance, 0);
        assert_int_equal(tow_alloc_live_count(), 0);
        sum.received += world.received;
        sum.blobs += world.blobs;
        sum.disconnected += world.disconnected;
        sum.again += world.again;
    }
    print_message(
        "%llu received, of them %llu blobs; %llu disconnected; %llu sent "
        "again at the end\n",
        (unsigned long long)sum.received, (unsigned long long)sum.blobs,
        (unsigned long long)sum.disconnected, (unsigned long long)sum.again);
    assert_true(sum.disconnected > SEED_COUNT && sum.again > SEED_COUNT);
}

TOW_TEST_MAIN(cmocka_unit_test(random_faults_lose_nothing))
