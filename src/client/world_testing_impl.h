/* A simulated world for the client's tests: the client's state machine, and a
 * controller that says what the test tells it to say and writes down what it
 * hears. */
#ifndef TOW_CLIENT_WORLD_TESTING_IMPL_H_
#define TOW_CLIENT_WORLD_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/vec.h"
#include "client/client.h"
#include "device/signature.h"
#include "env/sim/sim.h"
#include "session/session.h"

#define SECOND 1000000000ll

typedef struct note {
    uint32_t type;
    uint8_t *bytes; /* owned */
    size_t size;
} note_t;

typedef struct world {
    tow_sim_t *sim;
    tow_sim_node_t *controller_node;
    tow_sim_node_t *client_node;
    tow_session_port_t *port;
    tow_session_t *session; /* NULL: none, or gone */
    tow_arena_t arena;
    TOW_VEC(note_t) notes;
    size_t read_count;
    int gone_count;
    tow_client_t *client;
    /* A region of the controller's node, as a worker would open it. */
    uint8_t *memory; /* owned */
    tow_region_t *region;
    int arrived_count;
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

static inline void soon(world_t *world)
{
    run_for(world, SECOND / 100);
}

static inline void expect_error(tow_status_t status, tow_code_t code,
                                const char *part)
{
    if (tow_status_code(status) != code ||
        strstr(tow_status_message(status), part) == NULL)
        fail_msg("code %d: %s", tow_status_code(status),
                 tow_status_message(status));
}

static inline void expect_settled(const tow_settling_t *settling)
{
    assert_true(settling->settled);
    must(settling->error);
}

static inline void expect_failed(const tow_settling_t *settling,
                                 tow_code_t code, const char *part)
{
    assert_true(settling->settled);
    expect_error(settling->error, code, part);
}

/* -- The controller --------------------------------------------------------------- */

static inline void say(world_t *world, uint32_t type, const tow_body_t *body)
{
    assert_non_null(world->session);
    assert_int_equal(tow_session_send(world->session, type, body), TOW_SEND_OK);
}

static inline void on_message(void *context, tow_session_t *session,
                              const tow_message_t *message)
{
    (void)session;
    world_t *world = context;
    note_t note = {.type = message->type,
                   .bytes = tow_malloc(message->size + 1),
                   .size = message->size};
    memcpy(note.bytes, message->bytes, message->size);
    assert_true(tow_vec_push(&world->notes, note));
}

static inline void on_blob(void *context, tow_session_t *session, uint64_t blob,
                           void *take_bytes, size_t size)
{
    (void)context, (void)session, (void)blob, (void)size;
    tow_free(take_bytes);
}

static inline void on_gone(void *context, tow_session_t *session,
                           tow_status_t cause)
{
    (void)cause;
    world_t *world = context;
    world->gone_count++;
    world->session = NULL;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
}

static const tow_session_handler_t controller_handler = {.message = on_message,
                                                         .blob = on_blob,
                                                         .gone = on_gone};

static inline void on_arrived(void *context, tow_session_t *session)
{
    world_t *world = context;
    world->session = session;
    tow_session_accept(session, &controller_handler, world);
}

static inline const tow_body_t *hear(world_t *world, uint32_t type)
{
    if (world->read_count == world->notes.count) soon(world);
    if (world->read_count == world->notes.count)
        fail_msg("nothing is heard, not %s", tow_message_type_name(type));
    const note_t *note = &world->notes.items[world->read_count++];
    if (note->type != type)
        fail_msg("%s is heard, not %s", tow_message_type_name(note->type),
                 tow_message_type_name(type));
    const tow_body_t *body;
    tow_arena_reset(&world->arena);
    must(tow_message_decode(note->type, note->bytes, note->size, &world->arena,
                            &body));
    return body;
}

#define HEAR(world, kind, name) \
    ((const tow_msg_##name##_t *)hear((world), TOW_MESSAGE_##kind))

static inline void hear_nothing(world_t *world)
{
    soon(world);
    if (world->read_count < world->notes.count)
        fail_msg(
            "%s is heard",
            tow_message_type_name(world->notes.items[world->read_count].type));
}

static inline tow_msg_failure_t failure_of(tow_code_t code, const char *text)
{
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = code;
    failure.message = (char *)text;
    return failure;
}

/* -- The world ---------------------------------------------------------------------- */

static inline void world_listen(world_t *world)
{
    must(tow_session_listen(
        tow_sim_node_env(world->controller_node),
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = on_arrived,
                                        .context = world},
        &world->port));
}

/* The client dials; nobody has answered yet. */
static inline void world_open(world_t *world)
{
    *world = (world_t){0};
    tow_sim_options_t options = {.seed = 3,
                                 .remote_path = {.latency_ns = 20000}};
    options.log.level = TOW_LOG_OFF;
    tow_arena_init(&world->arena, 0);
    must(tow_sim_create(&options, &world->sim));
    must(tow_sim_node_create(world->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &world->controller_node));
    must(tow_sim_node_create(world->sim,
                             &(tow_sim_node_options_t){.name = "client/1"},
                             &world->client_node));
    world_listen(world);
    must(tow_client_dial(tow_sim_node_env(world->client_node),
                         &(tow_machine_options_t){.address = "sim:controller"},
                         &world->client));
}

static inline void say_opened(world_t *world)
{
    assert_string_equal(HEAR(world, CLIENT_OPEN, client_open)->name,
                        "client/1");
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    opened.cluster = 5;
    opened.client = 7;
    say(world, TOW_MESSAGE_CLIENT_OPENED, &opened.base);
    soon(world);
    expect_settled(tow_client_opening(world->client));
}

static inline void say_refused(world_t *world)
{
    HEAR(world, CLIENT_OPEN, client_open);
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    tow_msg_failure_t failure =
        failure_of(TOW_RESOURCE_EXHAUSTED, "no more numbers");
    opened.failure = &failure;
    say(world, TOW_MESSAGE_CLIENT_OPENED, &opened.base);
    soon(world);
}

static inline void world_connect(world_t *world)
{
    world_open(world);
    say_opened(world);
}

static inline void world_free(world_t *world)
{
    tow_sim_crash(world->controller_node);
    tow_session_abandon(world->session);
    if (world->port != NULL) tow_session_port_abandon(world->port);
    tow_sim_destroy(world->sim);
    for (size_t i = 0; i < world->notes.count; i++)
        tow_free(world->notes.items[i].bytes);
    tow_vec_deinit(&world->notes);
    tow_arena_deinit(&world->arena);
    tow_free(world->memory);
}

/* The controller dies, and the client knows it. */
static inline void world_lose(world_t *world)
{
    tow_sim_crash(world->controller_node);
    tow_session_abandon(world->session);
    tow_session_port_abandon(world->port);
    world->session = NULL;
    world->port = NULL;
    run_for(world, 5 * SECOND);
    world->read_count = world->notes.count;
}

/* It listens again, knowing nothing; the client finds it. */
static inline void world_restart(world_t *world)
{
    tow_sim_restart(world->controller_node);
    world_listen(world);
    run_for(world, 3 * SECOND);
}

static inline void world_come_again(world_t *world)
{
    world_restart(world);
    say_opened(world);
    must(tow_client_lost(world->client));
}

/* The client leaves, and nothing of it is left. */
static inline void world_close(world_t *world)
{
    tow_client_shut(world->client);
    run_for(world, SECOND);
    assert_true(tow_client_is_quiet(world->client));
    tow_client_free(world->client);
    world_free(world);
}

/* -- Things --------------------------------------------------------------------------- */

static inline void say_slice(world_t *world, uint64_t slice, size_t count)
{
    tow_msg_device_t devices[4], *list[4];
    for (size_t i = 0; i < count; i++) {
        devices[i] = (tow_msg_device_t)TOW_MSG_DEVICE_INIT;
        devices[i].id = 2048 + (int64_t)i;
        devices[i].kind = (char *)"TPU v4";
        devices[i].name = devices[i].worker = devices[i].host = (char *)"w";
        devices[i].island = (char *)"west";
        list[i] = &devices[i];
    }
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    opened.slice = slice;
    opened.devices = list;
    opened.n_devices = count;
    say(world, TOW_MESSAGE_SLICE_OPENED, &opened.base);
    soon(world);
}

static inline tow_slice_t *open_slice(world_t *world)
{
    tow_slice_t *slice;
    tow_slice_options_t options = {.struct_size = sizeof(options), .dims = {2}};
    must(tow_slice_ask(world->client, &options, &slice));
    const tow_msg_slice_open_t *open = HEAR(world, SLICE_OPEN, slice_open);
    assert_int_equal(open->n_dims, 1);
    say_slice(world, open->slice, 2);
    expect_settled(tow_slice_opening(slice));
    return slice;
}

static const tow_shape_t row = {.type = TOW_TYPE_U8, .rank = 1, .dims = {16}};

/* One row to one row. */
static inline void say_compiled(world_t *world, uint64_t function)
{
    tow_array_info_t info = {.shape = row, .bytes = 16};
    tow_signature_t signature = {.name = "f",
                                 .replica_count = 2,
                                 .partition_count = 1,
                                 .argument_count = 1,
                                 .arguments = &info,
                                 .result_count = 1,
                                 .results = &info};
    void *bytes;
    size_t size;
    must(tow_signature_pack(&signature, &bytes, &size));
    tow_msg_compile_done_t done = TOW_MSG_COMPILE_DONE_INIT;
    done.function = function;
    done.signature = (ProtobufCBinaryData){size, bytes};
    say(world, TOW_MESSAGE_COMPILE_DONE, &done.base);
    tow_free(bytes);
    soon(world);
}

static inline tow_function_t *compile(world_t *world, tow_slice_t *slice)
{
    tow_function_t *function;
    tow_source_t source = {.struct_size = sizeof(source),
                           .format = TOW_SOURCE_COST,
                           .bytes = "text",
                           .size = 4};
    must(tow_function_ask(slice, &source, &function));
    const tow_msg_compile_t *heard = HEAR(world, COMPILE, compile);
    assert_true(heard->program_blob != 0);
    say_compiled(world, heard->function);
    expect_settled(tow_function_compiling(function));
    return function;
}

static inline tow_program_t *call_of(world_t *world, tow_function_t *function,
                                     tow_slice_t *slice)
{
    tow_program_t *program;
    must(tow_function_program(function, slice, &program));
    HEAR(world, PROGRAM_ADD, program_add);
    return program;
}

static inline void say_done(world_t *world, uint64_t run)
{
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    say(world, TOW_MESSAGE_RUNS_DONE, &done.base);
    soon(world);
}

static inline void say_failed(world_t *world, uint64_t run, tow_code_t code,
                              const char *text)
{
    tow_msg_failure_t failure = failure_of(code, text);
    tow_msg_run_failure_t entry = TOW_MSG_RUN_FAILURE_INIT;
    tow_msg_run_failure_t *list = &entry;
    entry.run = run;
    entry.failure = &failure;
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.failures = &list;
    done.n_failures = 1;
    say(world, TOW_MESSAGE_RUNS_DONE, &done.base);
    soon(world);
}

static inline void say_put_done(world_t *world, uint64_t object,
                                const tow_msg_failure_t *failure)
{
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    done.object = object;
    done.failure = (tow_msg_failure_t *)failure;
    say(world, TOW_MESSAGE_PUT_DONE, &done.base);
    soon(world);
}

static inline tow_status_t start_upload(tow_slice_t *slice, const void *bytes,
                                        size_t shard_bytes,
                                        tow_array_t **out_array)
{
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .bytes = bytes,
                                    .size = shard_bytes,
                                    .replicated = true};
    tow_shape_t shape = row;
    shape.dims[0] = (int64_t)shard_bytes;
    return tow_upload_start(slice, &options, &shape, shard_bytes, NULL,
                            out_array);
}

/* An object of one row, settled. */
static inline tow_array_t *make_array(world_t *world, tow_slice_t *slice)
{
    tow_array_t *array;
    must(start_upload(slice, "0123456789abcde", 16, &array));
    const tow_msg_put_t *put = HEAR(world, PUT, put);
    assert_true(put->inlined && put->replicated);
    assert_memory_equal(put->bytes.data, "0123456789abcde", 16);
    say_put_done(world, put->object, NULL);
    expect_settled(tow_array_value(array));
    return array;
}

/* Counts calls; the last code. */
typedef struct calls {
    int count;
    tow_code_t code;
} calls_t;

static inline void called(void *context, tow_status_t take_status)
{
    calls_t *calls = context;
    calls->count++;
    calls->code = tow_status_code(take_status);
    tow_status_release(take_status);
}

static inline tow_callback_t *make_callback(calls_t *calls)
{
    tow_callback_t *callback = tow_calloc(1, sizeof(*callback));
    callback->done = called;
    callback->context = calls;
    return callback;
}

static inline void say_got(world_t *world, uint64_t request, const void *bytes,
                           size_t size, const tow_msg_failure_t *failure)
{
    tow_msg_get_done_t done = TOW_MSG_GET_DONE_INIT;
    done.request = request;
    done.bytes = (ProtobufCBinaryData){size, (uint8_t *)bytes};
    done.failure = (tow_msg_failure_t *)failure;
    say(world, TOW_MESSAGE_GET_DONE, &done.base);
    soon(world);
}

/* -- Much under way ------------------------------------------------------------- */

static uint8_t large[100000];

static inline void target_arrived(void *context, tow_region_t *region,
                                  const tow_arrival_t *arrival)
{
    (void)region, (void)arrival;
    ((world_t *)context)->arrived_count++;
}

/* Opens both shards of an upload in the controller's own memory. */
static inline void say_put_opened(world_t *world, uint64_t object)
{
    tow_env_t *env = tow_sim_node_env(world->controller_node);
    world->memory = tow_calloc(1, sizeof(large));
    must(tow_env_region_open(env,
                             &(tow_region_options_t){.bytes = world->memory,
                                                     .size = sizeof(large),
                                                     .arrived = target_arrived,
                                                     .context = world},
                             &world->region));
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    tow_msg_lane_target_t *list[] = {&target, &target};
    const void *address;
    tow_env_lane_address(env, &address, &target.lane_address.len);
    target.lane_address.data = (uint8_t *)address;
    target.region_id = tow_region_key(world->region).id;
    target.region_secret = tow_region_key(world->region).secret;
    tow_msg_put_opened_t opened = TOW_MSG_PUT_OPENED_INIT;
    opened.object = object;
    opened.targets = list;
    opened.n_targets = 2;
    say(world, TOW_MESSAGE_PUT_OPENED, &opened.base);
}

/* A run, an upload, and downloads of both kinds, all without an answer. */
typedef struct busy {
    tow_slice_t *slice;
    tow_function_t *function;
    tow_array_t *x, *y, *upload, *wide;
    uint8_t *bytes;
    calls_t run, small, large_get;
} busy_t;

static inline void make_busy(world_t *world, busy_t *busy)
{
    *busy = (busy_t){.bytes = tow_calloc(1, sizeof(large))};
    busy->slice = open_slice(world);
    busy->function = compile(world, busy->slice);
    busy->x = make_array(world, busy->slice);
    tow_program_t *program = call_of(world, busy->function, busy->slice);
    must(tow_program_start(program, &busy->x, 1, &busy->y, 1));
    tow_array_call_when_ready(busy->y, make_callback(&busy->run));
    must(start_upload(busy->slice, large, sizeof(large), &busy->upload));
    HEAR(world, RUN, run);
    say_put_opened(world, HEAR(world, PUT, put)->object);
    run_for(world, SECOND / 1000);
    must(tow_download_start(busy->y, 0, busy->bytes, 16, NULL,
                            make_callback(&busy->small)));
    must(tow_download_start(busy->upload, 0, busy->bytes, sizeof(large), NULL,
                            make_callback(&busy->large_get)));
}

static inline void drop_busy(busy_t *busy)
{
    tow_array_drop(busy->x);
    tow_array_drop(busy->y);
    tow_array_drop(busy->upload);
    tow_function_drop(busy->function);
    tow_slice_drop(busy->slice);
}

static inline void expect_told(const busy_t *busy, tow_code_t code)
{
    assert_int_equal(busy->run.count, 1);
    assert_int_equal(busy->run.code, code);
    assert_int_equal(busy->small.count, 1);
    assert_int_equal(busy->large_get.count, 1);
    assert_int_equal(busy->large_get.code, code);
    assert_true(tow_array_value(busy->upload)->settled);
}

#endif /* TOW_CLIENT_WORLD_TESTING_IMPL_H_ */
