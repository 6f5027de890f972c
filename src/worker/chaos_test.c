/* The worker with a controller that sends random messages over a faulty
 * network, with crashes on both sides, by seed. No state may be left when the
 * session has ended. */
#include "worker/worker_testing_impl.h"

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
    worker_fixture_t fixture;
    tow_random_t random;
    uint64_t next_object; /* objects 1 to this have been used */
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

/* Mostly one of the latest; otherwise any, perhaps one that does not exist. */
static uint64_t any_object(chaos_t *chaos)
{
    if (below(chaos, 10) < 8 && chaos->next_object > 4)
        return chaos->next_object - below(chaos, 4);
    return 1 + below(chaos, chaos->next_object + 2);
}

static void prepare(chaos_t *chaos)
{
    worker_fixture_t *fixture = &chaos->fixture;
    worker_fixture_send_load(fixture, 101, add_text);
    worker_fixture_send_load(fixture, 102, update_text);
    worker_fixture_send_load(fixture, 103, greedy_text);
    for (uint64_t i = 0; i < 4; i++) /* The last has no executable. */
        worker_fixture_send_program(fixture, 201 + i, 101 + i);
    chaos->is_ready = true;
    worker_fixture_run_for(fixture, 2000000);
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
    worker_fixture_send(&chaos->fixture, TOW_MESSAGE_GRANT, &grant.base);
}

static void put_any(chaos_t *chaos)
{
    static const uint8_t bytes[DEVICES * 16] = {1, 2, 3};
    switch (below(chaos, 4)) {
    case 0:
        worker_fixture_send_put(&chaos->fixture, ++chaos->next_object, 30000,
                                NULL, 0);
        break;
    case 1:
        worker_fixture_send_put(&chaos->fixture, any_object(chaos), 16, bytes,
                                16);
        break;
    default:
        worker_fixture_send_put(&chaos->fixture, ++chaos->next_object, 16,
                                bytes, sizeof(bytes));
    }
}

/* To the put that was opened last, which may have ended. */
static void write_any(chaos_t *chaos)
{
    static uint8_t bytes[30000];
    worker_fixture_t *fixture = &chaos->fixture;
    if (fixture->received.target_count == 0 || fixture->lane != NULL ||
        fixture->written_count != chaos->write_count)
        return;
    must(tow_env_lane_open(
        fixture->client_env,
        &(tow_lane_options_t){.address = fixture->received.address,
                              .address_size = fixture->received.address_size,
                              .peer_name = "worker",
                              .down = worker_fixture_lane_down,
                              .context = fixture},
        &fixture->lane));
    fixture->write = (tow_write_t){
        .bytes = bytes,
        .size = below(chaos, 4) == 0 ? 100 : sizeof(bytes),
        .key = fixture->received
                   .targets[below(chaos, fixture->received.target_count)],
        .done = worker_fixture_write_done};
    if (tow_lane_write(fixture->lane, &fixture->write) == TOW_SEND_OK)
        chaos->write_count++;
}

static void end_write(chaos_t *chaos)
{
    worker_fixture_t *fixture = &chaos->fixture;
    if (fixture->lane == NULL) return;
    tow_lane_close(fixture->lane, TOW_LANE_CLOSE_FORCE, (tow_closed_t){0});
    fixture->lane = NULL;
}

static void unload_any(chaos_t *chaos)
{
    tow_msg_unload_t unload = TOW_MSG_UNLOAD_INIT;
    if (below(chaos, 2) == 0)
        worker_fixture_send_load(&chaos->fixture,
                                 1000 + ++chaos->next_executable,
                                 below(chaos, 3) == 0 ? "nonsense" : add_text);
    unload.executable = 1000 + below(chaos, chaos->next_executable + 2);
    worker_fixture_send(&chaos->fixture, TOW_MESSAGE_UNLOAD, &unload.base);
}

static void report_any(chaos_t *chaos)
{
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.kind = (uint32_t)below(chaos, 4);
    worker_fixture_send(&chaos->fixture, TOW_MESSAGE_REPORT_GET, &get.base);
}

static void kill_controller(chaos_t *chaos)
{
    worker_fixture_t *fixture = &chaos->fixture;
    tow_sim_crash(fixture->controller);
    if (fixture->session != NULL) tow_session_discard(fixture->session);
    tow_session_port_discard(fixture->port);
    fixture->session = NULL;
    tow_sim_restart(fixture->controller);
    worker_fixture_listen(fixture);
}

/* If the worker has joined with this session. */
static void send_any(chaos_t *chaos)
{
    worker_fixture_t *fixture = &chaos->fixture;
    if (fixture->session == NULL || !tow_session_is_open(fixture->session) ||
        tow_worker_stats(fixture->worker).state != TOW_WORKER_JOINED) {
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
        worker_fixture_send_get(
            fixture, ++chaos->next_request, any_object(chaos),
            (uint32_t)below(chaos, DEVICES + 1), below(chaos, 2) == 0);
    else if (choice < 80)
        worker_fixture_send_release(fixture, any_object(chaos),
                                    (uint32_t)below(chaos, 5));
    else if (choice < 88)
        worker_fixture_send_abort(
            fixture, 1 + below(chaos, chaos->next_run + 1), "by chance");
    else if (choice < 94)
        unload_any(chaos);
    else
        report_any(chaos);
}

static void act(chaos_t *chaos)
{
    worker_fixture_t *fixture = &chaos->fixture;
    const uint64_t choice = below(chaos, 1000);
    if (choice < 5) {
        kill_controller(chaos);
    } else if (choice < 10) {
        tow_sim_crash(fixture->worker_node);
        tow_sim_restart(fixture->worker_node);
        worker_fixture_run_for(fixture, 1000); /* Starts the worker. */
    } else if (choice < 40) {
        write_any(chaos);
    } else if (choice < 60) {
        end_write(chaos);
    } else {
        send_any(chaos);
    }
    if (below(chaos, 3) == 0)
        worker_fixture_run_for(fixture, (int64_t)below(chaos, 3000000));
}

static void run_seed(uint64_t seed)
{
    chaos_t chaos = {0};
    tow_random_init(&chaos.random, seed);
    worker_fixture_t *fixture = &chaos.fixture;
    fixture->seed = seed;
    worker_fixture_join(fixture, (tow_worker_limits_t){0});
    for (int i = 0; i < STEPS; i++)
        act(&chaos);
    end_write(&chaos);
    kill_controller(&chaos);
    worker_fixture_run_for(fixture, 30 * SECOND);
    assert_int_equal(tow_worker_stats(fixture->worker).state,
                     TOW_WORKER_JOINED);
    worker_fixture_expect_empty(fixture);
    worker_fixture_close(fixture);
}

static void no_state_is_left_after_random_operations(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_seed(seed);
}

TOW_TEST_MAIN(cmocka_unit_test(no_state_is_left_after_random_operations))
