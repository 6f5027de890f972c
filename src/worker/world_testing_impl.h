/* A simulated world for the worker's tests: a controller that says what the test
 * tells it to say and writes down what it hears, a worker with simulated devices,
 * and a client with a region. */
#ifndef TOW_WORKER_WORLD_TESTING_IMPL_H_
#define TOW_WORKER_WORLD_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/options.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "worker/worker.h"

#define DEVICES      2
#define MEMORY_BYTES (64u << 20)
#define FIRST_ID     2048 /* of process 1 */
#define REGION_BYTES (1u << 20)
#define HEARD_MAX    64
#define CLUSTER      77

#define SECOND 1000000000ll

/* What was heard, by kind. */
typedef struct heard {
    int arrived_count; /* sessions */
    int gone_count;
    tow_code_t gone_code;
    char gone_message[512];
    int join_count;
    uint32_t join_process;
    char join_host[64];
    size_t join_devices;
    int done_count; /* messages */
    uint64_t runs[HEARD_MAX];
    size_t run_count;
    struct {
        uint64_t run;
        uint32_t node;
        tow_code_t code;
        char message[256];
    } failures[HEARD_MAX];
    size_t failure_count;
    int load_count;
    uint64_t load_executable;
    tow_code_t load_code;
    int opened_count;
    tow_region_key_t targets[DEVICES];
    size_t target_count;
    uint8_t address[TOW_LANE_ADDRESS_MAX];
    size_t address_size;
    int put_count;
    uint64_t put_object;
    tow_code_t put_code;
    char put_message[256];
    int get_count;
    uint64_t get_request;
    tow_code_t get_code;
    char get_message[256];
    uint8_t get_bytes[256];
    size_t get_size;
    int spill_count; /* answers to spills and unspills */
    uint64_t spill_object, spill_number;
    bool spill_is_back;
    tow_code_t spill_code;
    char spill_message[256];
    int report_count;
    tow_code_t report_code;
    char *report_text; /* owned */
    size_t wait_count, wait_missing_count;
    uint64_t wait_gang;
    /* As a relay. */
    uint64_t whole_runs[HEARD_MAX]; /* of which all have reported */
    size_t whole_count;
    uint64_t part_runs[HEARD_MAX];
    uint32_t part_processes[HEARD_MAX];
    size_t part_count;
    uint32_t relay_lost_process;
    int relay_lost_count;
    int callback_count;
    uint64_t callback_run, callback_call, callback_function;
    char callback_text[64]; /* its arguments */
    int peer_added_count, peer_gone_count;
    tow_worker_peer_t peer;
    int joined_count, lost_count;
} heard_t;

typedef struct world {
    uint64_t seed;    /* 0: a kind network */
    const char *door; /* where other workers reach it; NULL: nowhere */
    tow_sim_t *sim;
    tow_sim_node_t *controller;
    tow_sim_node_t *worker_node;
    tow_sim_node_t *client;
    tow_env_t *controller_env;
    tow_env_t *client_env;
    tow_session_port_t *port;
    tow_session_t *session; /* NULL: none */
    tow_arena_t arena;
    heard_t heard;
    bool refuses;   /* the next worker that wants to join */
    bool is_silent; /* does not answer to a join */
    /* In the worker's node. */
    tow_driver_t *driver;
    tow_worker_t *worker;
    tow_worker_limits_t limits;
    bool is_closed;
    /* In the client's. */
    tow_region_t *region;
    uint8_t *memory;
    int arrived_count;
    tow_arrival_t arrival;
    tow_lane_t *lane;
    tow_write_t write;
    tow_code_t write_code;
    int written_count;
} world_t;

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline void run_for(world_t *world, int64_t span_ns)
{
    must(tow_sim_run(world->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(world->sim) + span_ns}));
}

static inline void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

static inline tow_code_t code_of(const tow_msg_failure_t *failure, char *text,
                                 size_t capacity)
{
    if (failure == NULL) return TOW_CODE_OK;
    snprintf(text, capacity, "%s", failure->message);
    return (tow_code_t)failure->code;
}

/* -- The controller ---------------------------------------------------------- */

static inline void say(world_t *world, uint32_t type, const tow_body_t *body)
{
    assert_non_null(world->session);
    const tow_send_result_t result =
        tow_session_send(world->session, type, body);
    if (world->seed == 0) assert_int_equal(result, TOW_SEND_OK);
}

static inline uint64_t say_blob(world_t *world, const void *bytes, size_t size)
{
    char *copy = tow_malloc(size + 1);
    memcpy(copy, bytes, size);
    return tow_session_send_blob(
        world->session,
        &(tow_session_blob_t){
            .bytes = copy, .size = size, .release = tow_free, .context = copy});
}

static inline void hear_join(world_t *world, const tow_msg_worker_join_t *join)
{
    heard_t *heard = &world->heard;
    heard->join_count++;
    heard->join_process = join->process;
    heard->join_devices = join->n_devices;
    snprintf(heard->join_host, sizeof(heard->join_host), "%s", join->host);
    if (world->is_silent) return;
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    joined.cluster = CLUSTER;
    if (world->refuses) {
        failure.code = TOW_ALREADY_EXISTS;
        failure.message = (char *)"process 1 is taken";
        joined.failure = &failure;
    }
    say(world, TOW_MESSAGE_WORKER_JOINED, &joined.base);
}

static inline void hear_done(heard_t *heard, const tow_msg_done_t *done)
{
    heard->done_count++;
    for (size_t i = 0; i < done->n_runs; i++)
        heard->runs[heard->run_count++ % HEARD_MAX] = done->runs[i];
    for (size_t i = 0; i < done->n_failures; i++) {
        size_t at = heard->failure_count++ % HEARD_MAX;
        heard->failures[at].run = done->failures[i]->run;
        heard->failures[at].node = done->failures[i]->node;
        heard->failures[at].code =
            code_of(done->failures[i]->failure, heard->failures[at].message,
                    sizeof(heard->failures[at].message));
    }
}

static inline void hear_opened(heard_t *heard,
                               const tow_msg_shard_put_opened_t *opened)
{
    heard->opened_count++;
    heard->target_count = opened->n_targets;
    assert_true(opened->n_targets <= DEVICES);
    for (size_t i = 0; i < opened->n_targets; i++) {
        const tow_msg_lane_target_t *target = opened->targets[i];
        heard->targets[i] =
            (tow_region_key_t){target->region_id, target->region_secret};
        heard->address_size = target->lane_address.len;
        memcpy(heard->address, target->lane_address.data,
               target->lane_address.len);
    }
}

static inline void hear_get(heard_t *heard,
                            const tow_msg_shard_get_done_t *done)
{
    heard->get_count++;
    heard->get_request = done->request;
    heard->get_code =
        code_of(done->failure, heard->get_message, sizeof(heard->get_message));
    heard->get_size = done->bytes.len;
    if (done->bytes.len > 0)
        memcpy(heard->get_bytes, done->bytes.data,
               done->bytes.len < sizeof(heard->get_bytes)
                   ? done->bytes.len
                   : sizeof(heard->get_bytes));
}

static inline void hear_spill(heard_t *heard, const tow_msg_spill_done_t *done)
{
    heard->spill_count++;
    heard->spill_object = done->object;
    heard->spill_number = done->spill;
    heard->spill_is_back = done->is_back;
    heard->spill_code = code_of(done->failure, heard->spill_message,
                                sizeof(heard->spill_message));
}

static inline void hear_relay_done(heard_t *heard,
                                   const tow_msg_relay_done_t *done)
{
    for (size_t i = 0; i < done->n_runs; i++)
        heard->whole_runs[heard->whole_count++ % HEARD_MAX] = done->runs[i];
    assert_int_equal(done->n_part_runs, done->n_part_processes);
    for (size_t i = 0; i < done->n_part_runs; i++) {
        const size_t at = heard->part_count++ % HEARD_MAX;
        heard->part_runs[at] = done->part_runs[i];
        heard->part_processes[at] = done->part_processes[i];
    }
}

static inline void hear_callback(heard_t *heard,
                                 const tow_msg_callback_t *message)
{
    heard->callback_count++;
    heard->callback_run = message->run;
    heard->callback_call = message->call;
    heard->callback_function = message->function;
    snprintf(heard->callback_text, sizeof(heard->callback_text), "%.*s",
             (int)message->bytes.len, (const char *)message->bytes.data);
}

static inline void controller_message(void *context, tow_session_t *session,
                                      const tow_message_t *message)
{
    (void)session;
    world_t *world = context;
    heard_t *heard = &world->heard;
    const tow_body_t *body;
    tow_arena_reset(&world->arena);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &world->arena, &body));
    switch (message->type) {
    case TOW_MESSAGE_WORKER_JOIN:
        hear_join(world, (const tow_msg_worker_join_t *)body);
        break;
    case TOW_MESSAGE_DONE:
        hear_done(heard, (const tow_msg_done_t *)body);
        break;
    case TOW_MESSAGE_LOAD_DONE: {
        const tow_msg_load_done_t *done = (const tow_msg_load_done_t *)body;
        char text[256];
        heard->load_count++;
        heard->load_executable = done->executable;
        heard->load_code = code_of(done->failure, text, sizeof(text));
        break;
    }
    case TOW_MESSAGE_SHARD_PUT_OPENED:
        hear_opened(heard, (const tow_msg_shard_put_opened_t *)body);
        break;
    case TOW_MESSAGE_SHARD_PUT_DONE: {
        const tow_msg_shard_put_done_t *done =
            (const tow_msg_shard_put_done_t *)body;
        heard->put_count++;
        heard->put_object = done->object;
        heard->put_code = code_of(done->failure, heard->put_message,
                                  sizeof(heard->put_message));
        break;
    }
    case TOW_MESSAGE_SHARD_GET_DONE:
        hear_get(heard, (const tow_msg_shard_get_done_t *)body);
        break;
    case TOW_MESSAGE_SPILL_DONE:
        hear_spill(heard, (const tow_msg_spill_done_t *)body);
        break;
    case TOW_MESSAGE_RELAY_DONE:
        hear_relay_done(heard, (const tow_msg_relay_done_t *)body);
        break;
    case TOW_MESSAGE_RELAY_LOST:
        heard->relay_lost_count++;
        heard->relay_lost_process =
            ((const tow_msg_relay_lost_t *)body)->process;
        break;
    case TOW_MESSAGE_CALLBACK:
        hear_callback(heard, (const tow_msg_callback_t *)body);
        break;
    case TOW_MESSAGE_REPORT: {
        char text[256];
        const tow_msg_report_t *report = (const tow_msg_report_t *)body;
        heard->report_count++;
        heard->wait_count = report->n_waits;
        if (report->n_waits > 0) {
            heard->wait_gang = report->waits[0]->gang;
            heard->wait_missing_count = report->waits[0]->n_missing;
        }
        heard->report_code = code_of(report->failure, text, sizeof(text));
        break;
    }
    default: fail_msg("a worker says %s", tow_message_type_name(message->type));
    }
}

static inline void controller_blob(void *context, tow_session_t *session,
                                   uint64_t blob, void *take_bytes, size_t size)
{
    (void)session, (void)blob;
    world_t *world = context;
    tow_free(world->heard.report_text);
    world->heard.report_text = tow_calloc(1, size + 1);
    memcpy(world->heard.report_text, take_bytes, size);
    tow_free(take_bytes);
}

static inline void controller_opened(void *context, tow_session_t *session)
{
    (void)context, (void)session;
}

static inline void controller_gone(void *context, tow_session_t *session,
                                   tow_status_t cause)
{
    world_t *world = context;
    world->heard.gone_count++;
    world->heard.gone_code = tow_status_code(cause);
    snprintf(world->heard.gone_message, sizeof(world->heard.gone_message), "%s",
             tow_status_message(cause));
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    world->session = NULL;
}

static const tow_session_handler_t controller_handler = {
    .opened = controller_opened,
    .message = controller_message,
    .blob = controller_blob,
    .gone = controller_gone,
};

static inline void controller_arrived(void *context, tow_session_t *session)
{
    world_t *world = context;
    assert_null(world->session);
    world->session = session;
    world->heard.arrived_count++;
    tow_session_accept(session, &controller_handler, world);
}

static inline void controller_listen(world_t *world)
{
    world->controller_env = tow_sim_node_env(world->controller);
    must(tow_session_listen(
        world->controller_env,
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = controller_arrived,
                                        .context = world},
        &world->port));
}

/* -- The worker's process ------------------------------------------------------ */

static inline void on_joined(void *context, uint64_t cluster)
{
    assert_int_equal(cluster, CLUSTER);
    ((world_t *)context)->heard.joined_count++;
}

static inline void on_lost(void *context, tow_status_t cause)
{
    assert_true(cause != TOW_OK);
    ((world_t *)context)->heard.lost_count++;
}

static inline void on_peer_added(void *context, const tow_worker_peer_t *peer)
{
    world_t *world = context;
    world->heard.peer_added_count++;
    world->heard.peer = *peer;
}

static inline void on_peer_gone(void *context, uint32_t process,
                                tow_status_t cause)
{
    (void)process;
    assert_true(cause != TOW_OK);
    ((world_t *)context)->heard.peer_gone_count++;
}

static inline size_t on_waits(void *context, tow_worker_wait_t *waits,
                              size_t capacity)
{
    (void)context;
    assert_true(capacity >= DEVICES);
    waits[0] = (tow_worker_wait_t){.device = FIRST_ID,
                                   .gang_id = 77,
                                   .waited_ns = SECOND,
                                   .missing_count = 2,
                                   .missing = {5, 6}};
    return 1;
}

static inline tow_status_t worker_start(tow_env_t *env, void *argument,
                                        void **out_machine)
{
    world_t *world = argument;
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &model));
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env,
        &(tow_sim_device_options_t){.model = &model,
                                    .device_count = DEVICES,
                                    .first_id = FIRST_ID,
                                    .memory_bytes = MEMORY_BYTES},
        &world->driver));
    *out_machine = world;
    return tow_worker_open(env,
                           &(tow_worker_options_t){
                               .controller = "sim:controller",
                               .host = "host-1",
                               .process = 1,
                               .door = world->door,
                               .driver = world->driver,
                               .hooks = {.joined = on_joined,
                                         .lost = on_lost,
                                         .peer_added = on_peer_added,
                                         .peer_gone = on_peer_gone,
                                         .waits = on_waits,
                                         .context = world},
                               .limits = world->limits,
                           },
                           &world->worker);
}

static inline void worker_destroy(void *machine)
{
    world_t *world = machine;
    tow_worker_abandon(world->worker);
    tow_sim_device_driver_crash(world->driver);
    world->worker = NULL;
    world->driver = NULL;
}

static const tow_sim_program_t worker_program = {.start = worker_start,
                                                 .destroy = worker_destroy};

/* -- The client ------------------------------------------------------------------ */

static inline void client_arrived(void *context, tow_region_t *region,
                                  const tow_arrival_t *arrival)
{
    (void)region;
    world_t *world = context;
    world->arrived_count++;
    world->arrival = *arrival;
}

static inline void lane_down(void *context, tow_lane_t *lane,
                             tow_status_t cause)
{
    (void)context, (void)lane, (void)cause;
}

static inline void write_done(tow_write_t *write, tow_status_t take_status)
{
    world_t *world = TOW_CONTAINER_OF(write, world_t, write);
    world->write_code = tow_status_code(take_status);
    world->written_count++;
    tow_status_release(take_status);
}

/* Writes to target `index` of the last ShardPutOpened. */
static inline void client_write(world_t *world, size_t index, const void *bytes,
                                size_t size, uint64_t offset)
{
    if (world->lane == NULL)
        must(tow_env_lane_open(
            world->client_env,
            &(tow_lane_options_t){.address = world->heard.address,
                                  .address_size = world->heard.address_size,
                                  .peer_name = "worker",
                                  .down = lane_down,
                                  .context = world},
            &world->lane));
    const int before = world->written_count;
    world->write = (tow_write_t){.bytes = bytes,
                                 .size = size,
                                 .offset = offset,
                                 .key = world->heard.targets[index],
                                 .tag = 5,
                                 .done = write_done};
    assert_int_equal(tow_lane_write(world->lane, &world->write), TOW_SEND_OK);
    run_for(world, SECOND / 10);
    assert_int_equal(world->written_count, before + 1);
}

/* -- The world --------------------------------------------------------------------- */

static inline void world_make_nodes(world_t *world)
{
    must(tow_sim_node_create(world->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &world->controller));
    must(tow_sim_node_create(world->sim,
                             &(tow_sim_node_options_t){.name = "client"},
                             &world->client));
    world->client_env = tow_sim_node_env(world->client);
    must(tow_sim_node_create(
        world->sim,
        &(tow_sim_node_options_t){
            .name = "worker/1", .program = &worker_program, .argument = world},
        &world->worker_node));
}

static inline void world_open(world_t *world, tow_worker_limits_t limits)
{
    *world =
        (world_t){.limits = limits, .seed = world->seed, .door = world->door};
    tow_sim_options_t options = {.seed = world->seed,
                                 .remote_path = {.latency_ns = 20000}};
    if (world->seed != 0) {
        options.remote_path.jitter_ns = 100000;
        options.remote_path.loss_ppm = 1000;
        options.remote_path.corrupt_ppm = 500;
        options.remote_path.bandwidth_bytes_per_second = 1000000000;
        options.fault_chance_ppm = 200;
    }
    options.log.level = TOW_LOG_OFF;
    tow_arena_init(&world->arena, 0);
    must(tow_sim_create(&options, &world->sim));
    world_make_nodes(world);
    world->memory = test_calloc(1, REGION_BYTES);
    must(tow_env_region_open(world->client_env,
                             &(tow_region_options_t){.bytes = world->memory,
                                                     .size = REGION_BYTES,
                                                     .arrived = client_arrived,
                                                     .context = world},
                             &world->region));
}

static inline void world_join(world_t *world, tow_worker_limits_t limits)
{
    world_open(world, limits);
    controller_listen(world);
    run_for(world, world->seed != 0 ? 10 * SECOND : SECOND);
    if (world->seed == 0) assert_int_equal(world->heard.joined_count, 1);
    assert_int_equal(tow_worker_stats(world->worker).state, TOW_WORKER_JOINED);
}

static inline void on_worker_closed(void *context)
{
    ((world_t *)context)->is_closed = true;
}

/* Nothing of any session is left. */
static inline void expect_empty(const world_t *world)
{
    const tow_worker_stats_t stats = tow_worker_stats(world->worker);
    assert_int_equal(stats.shelf.object_count, 0);
    assert_int_equal(stats.shelf.bytes, 0);
    assert_int_equal(stats.dataflow.run_count, 0);
    assert_int_equal(stats.dataflow.program_count, 0);
    assert_int_equal(stats.dataflow.executable_count, 0);
    assert_int_equal(stats.load_count + stats.put_count + stats.get_count, 0);
    assert_int_equal(stats.put_bytes + stats.get_bytes, 0);
    assert_int_equal(stats.lane_count + stats.peer_count + stats.blob_count, 0);
    assert_int_equal(stats.outbox_bytes, 0);
    const tow_sim_device_counts_t counts = tow_sim_device_counts(world->driver);
    assert_int_equal(counts.buffers, 0);
    assert_int_equal(counts.executables, 0);
}

/* The worker leaves and gives everything back. */
static inline void world_close(world_t *world)
{
    if (world->worker != NULL) {
        tow_worker_close(world->worker, TOW_OK,
                         (tow_closed_t){on_worker_closed, world});
        run_for(world, 10 * SECOND);
        assert_true(world->is_closed);
        world->worker = NULL;
        const tow_sim_device_counts_t counts =
            tow_sim_device_counts(world->driver);
        assert_int_equal(counts.buffers + counts.executables, 0);
    }
    tow_sim_crash(world->controller);
    if (world->session != NULL) tow_session_abandon(world->session);
    if (world->port != NULL) tow_session_port_abandon(world->port);
    tow_sim_destroy(world->sim);
    tow_arena_deinit(&world->arena);
    tow_free(world->heard.report_text);
    test_free(world->memory);
}

/* -- Things to run ------------------------------------------------------------------ */

/* Serialised as a simulated executable is: the cost program itself. */
static inline void say_load(world_t *world, uint64_t executable,
                            const char *text)
{
    int64_t ids[DEVICES];
    uint8_t options_bytes[256];
    for (int i = 0; i < DEVICES; i++)
        ids[i] = FIRST_ID + i;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = DEVICES, .device_ids = ids}};
    const size_t options_size =
        tow_compile_options_pack(&options, options_bytes);
    tow_msg_load_t load = TOW_MSG_LOAD_INIT;
    load.executable = executable;
    load.code_blob = say_blob(world, text, strlen(text));
    load.options_blob = say_blob(world, options_bytes, options_size);
    say(world, TOW_MESSAGE_LOAD, &load.base);
}

typedef enum step_kind {
    LEAVES_ARGUMENT,
    CONSUMES_ARGUMENT,
    SEQUENTIAL
} step_kind_t;

/* argument -> executable -> result; node 1. */
static inline void say_step(world_t *world, uint64_t program,
                            uint64_t executable, step_kind_t kind)
{
    const bool consumes = kind == CONSUMES_ARGUMENT;
    static const uint32_t argument[] = {0}, result[] = {1}, kept[] = {0};
    const tow_lowered_step_t step = {.executable = {executable},
                                     .inputs = argument,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .kept = kept,
                                     .kept_count = consumes ? 0 : 1,
                                     .freed = argument,
                                     .freed_count = consumes ? 1 : 0,
                                     .is_sequential = kind == SEQUENTIAL,
                                     .node = 1};
    void *bytes;
    size_t size;
    must(tow_lowered_pack(&(tow_lowered_t){.slot_count = 2,
                                           .argument_count = 1,
                                           .results = result,
                                           .result_count = 1,
                                           .steps = &step,
                                           .step_count = 1,
                                           .step_count_all = 1},
                          &bytes, &size));
    tow_msg_program_load_t load = TOW_MSG_PROGRAM_LOAD_INIT;
    load.program = program;
    load.lowered_blob = say_blob(world, bytes, size);
    tow_free(bytes);
    say(world, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
}

static inline void say_program(world_t *world, uint64_t program,
                               uint64_t executable)
{
    say_step(world, program, executable, LEAVES_ARGUMENT);
}

/* Results are objects 1000 * run, ... */
static inline void say_grant(world_t *world, uint64_t run, uint64_t program,
                             uint64_t argument)
{
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    grant.run = run;
    grant.program = program;
    grant.arguments = &argument;
    grant.n_arguments = 1;
    grant.first_result = 1000 * run;
    grant.first_gang = 10 * run;
    say(world, TOW_MESSAGE_GRANT, &grant.base);
}

/* u8[size] on all devices. */
static inline void say_put(world_t *world, uint64_t object, size_t size,
                           const void *bytes, size_t byte_count)
{
    uint32_t devices[DEVICES] = {0, 1};
    int64_t dims[] = {(int64_t)size};
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    tow_msg_shard_put_t put = TOW_MSG_SHARD_PUT_INIT;
    type.type = TOW_TYPE_U8;
    type.dims = dims;
    type.n_dims = 1;
    type.bytes = size;
    put.object = object;
    put.type = &type;
    put.devices = devices;
    put.n_devices = DEVICES;
    put.replicated = byte_count == size;
    put.inlined = bytes != NULL;
    put.bytes.data = (uint8_t *)bytes;
    put.bytes.len = bytes != NULL ? byte_count : 0;
    say(world, TOW_MESSAGE_SHARD_PUT, &put.base);
}

static inline void say_get(world_t *world, uint64_t request, uint64_t object,
                           uint32_t shard, bool has_target)
{
    tow_msg_shard_get_t get = TOW_MSG_SHARD_GET_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    const void *address;
    tow_env_lane_address(world->client_env, &address, &target.lane_address.len);
    target.lane_address.data = (uint8_t *)address;
    target.region_id = tow_region_key(world->region).id;
    target.region_secret = tow_region_key(world->region).secret;
    get.request = request;
    get.object = object;
    get.shard = shard;
    if (has_target) get.target = &target;
    say(world, TOW_MESSAGE_SHARD_GET, &get.base);
}

static inline void say_release(world_t *world, uint64_t first, uint32_t count)
{
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = &first;
    release.n_firsts = 1;
    release.counts = &count;
    release.n_counts = 1;
    say(world, TOW_MESSAGE_RELEASE, &release.base);
}

static inline void say_regroup(world_t *world, uint64_t object,
                               const uint64_t sources[DEVICES], uint32_t shard)
{
    uint32_t shards[DEVICES] = {0, shard};
    tow_msg_shard_regroup_t regroup = TOW_MSG_SHARD_REGROUP_INIT;
    regroup.object = object;
    regroup.sources = (uint64_t *)sources;
    regroup.n_sources = DEVICES;
    regroup.shards = shards;
    regroup.n_shards = DEVICES;
    say(world, TOW_MESSAGE_SHARD_REGROUP, &regroup.base);
}

static inline void say_abort(world_t *world, uint64_t run, const char *why)
{
    tow_msg_abort_t abort = TOW_MSG_ABORT_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_CANCELLED;
    failure.message = (char *)why;
    abort.run = run;
    if (why != NULL) abort.failure = &failure;
    say(world, TOW_MESSAGE_ABORT, &abort.base);
}

#endif /* TOW_WORKER_WORLD_TESTING_IMPL_H_ */
