/* The worker under a controller that does anything in any order, over a network
 * that breaks, with crashes on both sides, by seed. Whatever happens, nothing is
 * left when the session has ended. */
#include "worker/world_testing_impl.h"

#include "base/random.h"

#define SEEDS 60
#define STEPS 600

static const char add_text[] = "towpath-cost 1\n"
                               "name add\n"
                               "argument u8[16]\n"
                               "result u8[16]\n"
                               "duration 30000\n"
                               "all_reduce 16\n";
static const char update_text[] = "towpath-cost 1\n"
                                  "name update\n"
                                  "argument u8[16]\n"
                                  "result u8[16] alias 0\n"
                                  "duration 5000000\n";
static const char greedy_text[] = "towpath-cost 1\n"
                                  "name greedy\n"
                                  "argument u8[16]\n"
                                  "result u8[16]\n"
                                  "temporary 100000000\n";

typedef struct chaos {
    world_t world;
    tow_random_t random;
    uint64_t next_object; /* objects 1 to this have been named */
    uint64_t next_run;
    uint64_t next_request;
    uint64_t next_executable;
    int write_count;
    bool is_ready; /* this session has executables and programs */
} chaos_t;

static uint64_t below(chaos_t *chaos, uint64_t limit)
{
    return tow_random_below(&chaos->random, limit);
}

/* As a rule one of the last; one that was named, will be, or never was. */
static uint64_t any_object(chaos_t *chaos)
{
    if (below(chaos, 10) < 8 && chaos->next_object > 4)
        return chaos->next_object - below(chaos, 4);
    return 1 + below(chaos, chaos->next_object + 2);
}

static void prepare(chaos_t *chaos)
{
    world_t *world = &chaos->world;
    say_load(world, 101, add_text);
    say_load(world, 102, update_text);
    say_load(world, 103, greedy_text);
    for (uint64_t i = 0; i < 4; i++) /* The last has no executable. */
        say_program(world, 201 + i, 101 + i);
    chaos->is_ready = true;
    run_for(world, 2000000);
}

static void grant_any(chaos_t *chaos)
{
    uint64_t argument = any_object(chaos);
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    grant.run = ++chaos->next_run;
    const uint64_t choice = below(chaos, 20);
    grant.program = choice < 12 ? 201 : choice < 17 ? 202 : 186 + choice;
    grant.arguments = &argument;
    grant.n_arguments = below(chaos, 20) == 0 ? 0 : 1;
    grant.first_result = ++chaos->next_object;
    grant.first_gang = grant.run;
    say(&chaos->world, TOW_MESSAGE_GRANT, &grant.base);
}

static void put_any(chaos_t *chaos)
{
    static const uint8_t bytes[DEVICES * 16] = {1, 2, 3};
    switch (below(chaos, 4)) {
    case 0: say_put(&chaos->world, ++chaos->next_object, 30000, NULL, 0); break;
    case 1: say_put(&chaos->world, any_object(chaos), 16, bytes, 16); break;
    default:
        say_put(&chaos->world, ++chaos->next_object, 16, bytes, sizeof(bytes));
    }
}

/* To the last put that was opened, whatever became of it. */
static void write_any(chaos_t *chaos)
{
    static uint8_t bytes[30000];
    world_t *world = &chaos->world;
    if (world->heard.target_count == 0 || world->lane != NULL ||
        world->written_count != chaos->write_count)
        return;
    must(tow_env_lane_open(
        world->client_env,
        &(tow_lane_options_t){.address = world->heard.address,
                              .address_size = world->heard.address_size,
                              .peer_name = "worker",
                              .down = lane_down,
                              .context = world},
        &world->lane));
    world->write = (tow_write_t){
        .bytes = bytes,
        .size = below(chaos, 4) == 0 ? 100 : sizeof(bytes),
        .key = world->heard.targets[below(chaos, world->heard.target_count)],
        .done = write_done};
    if (tow_lane_write(world->lane, &world->write) == TOW_SEND_OK)
        chaos->write_count++;
}

static void end_write(chaos_t *chaos)
{
    world_t *world = &chaos->world;
    if (world->lane == NULL) return;
    tow_lane_close(world->lane, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    world->lane = NULL;
}

static void unload_any(chaos_t *chaos)
{
    tow_msg_unload_t unload = TOW_MSG_UNLOAD_INIT;
    if (below(chaos, 2) == 0)
        say_load(&chaos->world, 1000 + ++chaos->next_executable,
                 below(chaos, 3) == 0 ? "nonsense" : add_text);
    unload.executable = 1000 + below(chaos, chaos->next_executable + 2);
    say(&chaos->world, TOW_MESSAGE_UNLOAD, &unload.base);
}

static void report_any(chaos_t *chaos)
{
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.kind = (uint32_t)below(chaos, 4);
    say(&chaos->world, TOW_MESSAGE_REPORT_GET, &get.base);
}

static void kill_controller(chaos_t *chaos)
{
    world_t *world = &chaos->world;
    tow_sim_crash(world->controller);
    if (world->session != NULL) tow_session_abandon(world->session);
    tow_session_port_abandon(world->port);
    world->session = NULL;
    tow_sim_restart(world->controller);
    controller_listen(world);
}

/* The session is there, but the worker may not have joined by it yet. */
static void speak(chaos_t *chaos)
{
    world_t *world = &chaos->world;
    if (world->session == NULL || !tow_session_is_open(world->session) ||
        tow_worker_stats(world->worker).state != TOW_WORKER_JOINED) {
        chaos->is_ready = false;
        return;
    }
    if (!chaos->is_ready) prepare(chaos);
    const uint64_t choice = below(chaos, 100);
    if (choice < 40)
        grant_any(chaos);
    else if (choice < 55)
        put_any(chaos);
    else if (choice < 70)
        say_get(world, ++chaos->next_request, any_object(chaos),
                (uint32_t)below(chaos, DEVICES + 1), below(chaos, 2) == 0);
    else if (choice < 80)
        say_release(world, any_object(chaos), (uint32_t)below(chaos, 5));
    else if (choice < 88)
        say_abort(world, 1 + below(chaos, chaos->next_run + 1), "by chance");
    else if (choice < 94)
        unload_any(chaos);
    else
        report_any(chaos);
}

static void act(chaos_t *chaos)
{
    world_t *world = &chaos->world;
    const uint64_t choice = below(chaos, 1000);
    if (choice < 5) {
        kill_controller(chaos);
    } else if (choice < 10) {
        tow_sim_crash(world->worker_node);
        tow_sim_restart(world->worker_node);
        run_for(world, 1000); /* Its first turn. */
    } else if (choice < 40) {
        write_any(chaos);
    } else if (choice < 60) {
        end_write(chaos);
    } else {
        speak(chaos);
    }
    if (below(chaos, 3) == 0) run_for(world, (int64_t)below(chaos, 3000000));
}

static void run_seed(uint64_t seed)
{
    chaos_t chaos = {0};
    tow_random_init(&chaos.random, seed);
    world_t *world = &chaos.world;
    world->seed = seed;
    world_join(world, (tow_worker_limits_t){0});
    for (int i = 0; i < STEPS; i++)
        act(&chaos);
    end_write(&chaos);
    kill_controller(&chaos);
    run_for(world, 30 * SECOND);
    assert_int_equal(tow_worker_stats(world->worker).state, TOW_WORKER_JOINED);
    expect_empty(world);
    world_close(world);
}

static void nothing_is_left_whatever_happens(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_seed(seed);
}

TOW_TEST_MAIN(cmocka_unit_test(nothing_is_left_whatever_happens))
